/* The step function. An event is checked here, given to the file that knows
 * its subject, and that is all; every rule is elsewhere (README.md has the
 * map), and so is the memory (setup.c).
 *
 * Invariants between steps: requests == sum of outcomes + live requests; each
 * live request is queued or has exactly one leg out; the ledger holds only
 * what live requests hold. */
#include "core_internal.h"

#include <assert.h>

static enum bt_status stats_event(struct bt_core *core,
                                  const struct bt_ev_worker_stats *ev)
{
    struct worker *w;

    if (ev->worker >= core->config.worker_count)
        return BT_INVALID;
    w = &core->workers[ev->worker];
    w->running = ev->running;
    w->waiting = ev->waiting;
    w->kv_usage = ev->kv_usage;
    w->stats_at_ns = core->now_ns;
    return BT_OK;
}

static enum bt_status kv_event(struct bt_core *core,
                               const struct bt_event *event)
{
    uint32_t n = core->config.worker_count;
    const struct bt_ev_kv_remove *remove = &event->u.kv_remove;
    const struct bt_ev_kv_clear *clear = &event->u.kv_clear;
    const struct bt_ev_kv_store *store = &event->u.kv_store;
    const struct bt_ev_kv_stream *stream = &event->u.kv_stream;

    if (event->type == BT_EV_KV_STORE) {
        if (store->worker >= n || store->store == NULL)
            return BT_INVALID;
        return bt_prefix_index_store(core->index, store->worker, store->rank,
                                     store->store);
    }
    if (event->type == BT_EV_KV_REMOVE) {
        if (remove->worker >= n)
            return BT_INVALID;
        bt_prefix_index_remove(core->index, remove->worker, remove->rank,
                               remove->hashes, remove->count, remove->tier);
        return BT_OK;
    }
    if (event->type == BT_EV_KV_CLEAR) {
        if (clear->worker >= n)
            return BT_INVALID;
        if (clear->all_ranks)
            bt_prefix_index_drop_worker(core->index, clear->worker);
        else
            bt_prefix_index_clear(core->index, clear->worker, clear->rank);
        return BT_OK;
    }
    if (event->type == BT_EV_KV_COUNTING || stream->worker >= n)
        return BT_INVALID;
    core->workers[stream->worker].stream = stream->state;
    return BT_OK;
}

static enum bt_status dispatch(struct bt_core *core,
                               const struct bt_event *event,
                               struct bt_effects *fx)
{
    enum bt_status status;

    switch (event->type) {
    case BT_EV_TICK:
        core_timers_scan(core, fx);
        core_queue_drain(core, fx);
        core_hold_kick(core);
        return BT_OK;
    case BT_EV_WORKER_STATE:
        status = core_worker_state_event(core, &event->u.worker_state);
        if (status == BT_OK && event->u.worker_state.state == BT_WORKER_READY) {
            core_queue_drain(core, fx);
            core_hold_kick(core);
        }
        return status;
    case BT_EV_WORKER_STATS:
        return stats_event(core, &event->u.worker_stats);
    case BT_EV_KV_STORE:
    case BT_EV_KV_REMOVE:
    case BT_EV_KV_CLEAR:
    case BT_EV_KV_STREAM:
    case BT_EV_KV_COUNTING:
        return kv_event(core, event);
    case BT_EV_REQUEST:
        return core_request_event(core, &event->u.request, fx);
    case BT_EV_CLIENT_GONE:
        return core_client_gone_event(core, event->u.client_gone, fx);
    case BT_EV_PREFILL_DONE:
        return core_prefill_done_event(core, &event->u.prefill_done, fx);
    case BT_EV_LEG_FAILED:
        return core_leg_failed_event(core, &event->u.leg_failed, fx);
    case BT_EV_FIRST_TOKEN:
        return core_progress_event(core, &event->u.progress, true);
    case BT_EV_TOKENS:
        return core_progress_event(core, &event->u.progress, false);
    case BT_EV_DECODE_DONE:
        return core_decode_done_event(core, &event->u.progress, fx);
    }
    return BT_INVALID;
}

/* A clock that steps back is held at the latest time seen. */
enum bt_status bt_core_step(struct bt_core *core, const struct bt_event *event,
                            struct bt_effects *effects)
{
    enum bt_status status;

    assert(effects->count <= effects->capacity);
    assert(core_effects_room(effects) >= UNIT_EFFECTS);
    if (event->now_ns > core->now_ns)
        core->now_ns = event->now_ns;
    status = dispatch(core, event, effects);
    if (status == BT_OK)
        core_hold_drain(core, effects, 0);
    return status;
}

const struct bt_core_counters *bt_core_counters_get(const struct bt_core *core)
{
    return &core->counters;
}

void bt_core_index_stats(const struct bt_core *core,
                         struct bt_prefix_index_stats *out)
{
    bt_prefix_index_stats_get(core->index, out);
}

enum bt_status bt_core_own_key(const struct bt_core *core, uint32_t worker,
                               uint32_t rank, uint64_t hash, uint64_t *key_out)
{
    if (worker >= core->config.worker_count)
        return BT_NOT_FOUND;
    return bt_prefix_index_own_key(core->index, worker, rank, hash, key_out);
}

const struct bt_network *bt_core_network(const struct bt_core *core)
{
    return core->network;
}

bool bt_core_is_idle(const struct bt_core *core)
{
    return core->live_count == 0 && bt_ledger_is_empty(core->ledger) &&
           (core->network == NULL || bt_network_is_empty(core->network));
}
