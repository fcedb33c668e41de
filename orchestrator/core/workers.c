/* The registry: who is there, which incarnation, how far it is trusted.
 *
 * A worker that becomes ready after pending or refused, or with another
 * incarnation, is a new generation: its breaker and the suspicion of its pairs
 * are forgotten, and with another incarnation than it last had its blocks. A
 * worker whose block size differs from
 * its model's is refused. Legs that are out on a worker are never touched
 * here: they end by their own answer or timer.
 */
#include "core_internal.h"

#include <assert.h>

struct bt_worker_id core_worker_id_of(const struct bt_core *core, uint32_t slot)
{
    return bt_worker_id_make(slot, core->workers[slot].generation);
}

bool core_worker_is_current(const struct bt_core *core, struct bt_worker_id id)
{
    uint32_t slot = bt_worker_slot(id);

    return !bt_worker_is_none(id) && slot < core->config.worker_count &&
           bt_worker_same(core_worker_id_of(core, slot), id);
}

bool core_worker_is_suspect(const struct bt_core *core, uint32_t slot)
{
    return core->workers[slot].suspect_until_ns > core->now_ns;
}

/* Only the incarnation that failed is charged. */
void core_worker_failed(struct bt_core *core, struct bt_worker_id id)
{
    struct worker *w;

    if (!core_worker_is_current(core, id))
        return;
    w = &core->workers[bt_worker_slot(id)];
    if (w->failures < UINT32_MAX)
        w->failures++;
    if (w->failures < core->config.suspect_failures)
        return;
    if (!core_worker_is_suspect(core, bt_worker_slot(id)))
        w->suspect_since_ns = core->now_ns;
    w->suspect_until_ns = core->now_ns + core->config.suspect_ns;
}

/* An answer to something sent since the suspicion began clears it. */
void core_worker_succeeded(struct bt_core *core, struct bt_worker_id id,
                           int64_t sent_ns)
{
    struct worker *w;

    if (!core_worker_is_current(core, id))
        return;
    w = &core->workers[bt_worker_slot(id)];
    w->failures = 0;
    if (sent_ns >= w->suspect_since_ns)
        w->suspect_until_ns = 0;
}

void core_pair_suspect(struct bt_core *core, struct bt_worker_id p,
                       struct bt_worker_id d)
{
    size_t at;

    if (!core_worker_is_current(core, p) || !core_worker_is_current(core, d))
        return;
    assert(core_roles_allow(core, bt_worker_slot(p), bt_worker_slot(d)));
    at = core_pair_at(core, bt_worker_slot(p), bt_worker_slot(d));
    core->pair_suspect_until_ns[at] = core->now_ns + core->config.suspect_ns;
    core->any_pair_suspect_until_ns = core->pair_suspect_until_ns[at];
}

bool core_pair_is_suspect(const struct bt_core *core, uint32_t p, uint32_t d)
{
    return core_roles_allow(core, p, d) &&
           core->pair_suspect_until_ns[core_pair_at(core, p, d)] > core->now_ns;
}

static void start_generation(struct bt_core *core, uint32_t slot)
{
    struct worker *w = &core->workers[slot];
    uint32_t n = core->config.worker_count;

    w->generation = (w->generation + 1) & 0xffffu;
    if (w->generation == 0)
        w->generation = 1;
    w->failures = 0;
    w->suspect_since_ns = w->suspect_until_ns = 0;
    w->running = w->waiting = 0;
    w->kv_usage = 0;
    w->stats_at_ns = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (core_roles_allow(core, slot, i))
            core->pair_suspect_until_ns[core_pair_at(core, slot, i)] = 0;
        if (core_roles_allow(core, i, slot))
            core->pair_suspect_until_ns[core_pair_at(core, i, slot)] = 0;
    }
}

static enum bt_status become_ready(struct bt_core *core,
                                   const struct bt_ev_worker_state *ev)
{
    struct worker *w = &core->workers[ev->worker];

    w->block_tokens = ev->block_tokens;
    if (ev->block_tokens !=
        core->config.models[w->config->model].block_tokens) {
        w->state = BT_WORKER_REFUSED;
        w->known = false;
        return BT_INVALID;
    }
    /* Before it said who it is, and while it was refused, events of the same
     * process have come: its blocks stay. Another process, and they go. */
    if (w->incarnation != 0 && w->incarnation != ev->incarnation)
        core_rows_forget(core, ev->worker);
    if (!w->known || w->incarnation != ev->incarnation)
        start_generation(core, ev->worker);
    w->incarnation = ev->incarnation;
    w->kv_capacity_tokens = w->config->kv_capacity_tokens;
    if (w->kv_capacity_tokens == 0)
        w->kv_capacity_tokens = ev->kv_capacity_tokens;
    w->state = BT_WORKER_READY;
    w->known = true;
    core_guess_capacity(core, ev->worker);
    return BT_OK;
}

enum bt_status core_worker_state_event(struct bt_core *core,
                                       const struct bt_ev_worker_state *ev)
{
    if (ev->worker >= core->config.worker_count)
        return BT_INVALID;
    switch (ev->state) {
    case BT_WORKER_READY:
        return become_ready(core, ev);
    case BT_WORKER_PENDING:
    case BT_WORKER_REFUSED:
        core->workers[ev->worker].known = false;
        core->workers[ev->worker].state = ev->state;
        return BT_OK;
    case BT_WORKER_UNHEALTHY:
    case BT_WORKER_DRAINING:
        core->workers[ev->worker].state = ev->state;
        return BT_OK;
    }
    return BT_INVALID;
}

uint32_t bt_core_worker_count(const struct bt_core *core)
{
    return core->config.worker_count;
}

static void info_of_index(const struct bt_core *core, const struct worker *w,
                          struct bt_core_worker_info *out)
{
    for (uint32_t row = w->row; row < w->row + w->ranks; row++) {
        out->index_blocks += bt_prefix_index_worker_blocks(core->index, row);
        if (core->approx != NULL)
            out->approx_blocks += bt_approx_worker_blocks(core->approx, row);
    }
    out->hit_predicted = w->hits.predicted;
    out->hit_actual = w->hits.actual;
    out->hit_unforeseen = w->hits.unforeseen;
    out->hit_checks = w->hits.checks;
    out->hit_unforeseen_checks = w->hits.unforeseen_checks;
    out->credit = w->hits.credit;
}

enum bt_status bt_core_worker_get(const struct bt_core *core, uint32_t slot,
                                  struct bt_core_worker_info *out)
{
    const struct worker *w;
    struct bt_ledger_worker booked;

    if (slot >= core->config.worker_count)
        return BT_NOT_FOUND;
    w = &core->workers[slot];
    bt_ledger_worker_get(core->ledger, slot, &booked);
    *out = (struct bt_core_worker_info){
        .id = core_worker_id_of(core, slot),
        .state = w->state,
        .stream = w->stream,
        .cause = w->cause,
        .ranks = w->ranks,
        .roles = w->config->roles,
        .model = w->config->model,
        .prefill_requests = booked.prefill_requests,
        .decode_requests = booked.decode_requests,
        .transfers = booked.transfers,
        .prefill_tokens = booked.prefill_tokens,
        .decode_tokens = booked.decode_tokens,
        .running = w->running,
        .waiting = w->waiting,
        .kv_usage = w->kv_usage,
        .stats_at_ns = w->stats_at_ns,
        .suspect_until_ns = w->suspect_until_ns,
        .failures = w->failures,
        .block_tokens = w->block_tokens,
        .kv_capacity_tokens = w->kv_capacity_tokens,
        .prefill_samples = w->prefill_seen,
        .decode_samples = w->decode_seen,
        .prefill_error = w->prefill_error,
    };
    info_of_index(core, w, out);
    return BT_OK;
}
