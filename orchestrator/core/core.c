/* The step function and the core's memory. An event is checked here, given to
 * the file that knows its subject, and that is all; every rule is elsewhere
 * (README.md has the map). All memory comes from the arena at init.
 *
 * Invariants between steps: requests == sum of outcomes + live requests; each
 * live request is queued or has exactly one leg out; the ledger holds only
 * what live requests hold. */
#include "core_internal.h"

#include <assert.h>
#include <stdint.h>

/* Time-outs beyond a year are a slip of the unit; sums of them stay sane. */
#define DURATION_MAX_NS (366LL * 86400 * 1000000000)

static bool durations_are_sane(const struct bt_core_config *c)
{
    const int64_t all[] = {
        c->lease_ns,           c->lease_margin_ns,    c->queue_timeout_ns,
        c->prefill_timeout_ns, c->handoff_timeout_ns, c->idle_stream_timeout_ns,
        c->suspect_ns,
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i] < 0 || all[i] > DURATION_MAX_NS)
            return false;
    }
    return c->lease_ns == 0 || c->lease_margin_ns < c->lease_ns;
}

static bool parts_are_sane(const struct bt_core_config *c)
{
    for (uint32_t i = 0; i < c->model_count; i++) {
        if (c->models[i].block_tokens == 0)
            return false;
    }
    for (uint32_t i = 0; i < c->worker_count; i++) {
        if (c->workers[i].model >= c->model_count ||
            (c->workers[i].roles & ~(unsigned int)BT_ROLE_BOTH) != 0)
            return false;
    }
    return true;
}

static bool config_is_sane(const struct bt_core_config *c)
{
    return c->policy != NULL && c->workers != NULL && c->links != NULL &&
           c->models != NULL && c->worker_count > 0 &&
           c->worker_count <= BT_WORKER_SLOTS_MAX && c->model_count > 0 &&
           c->requests_max > 0 && c->requests_max < NO_SLOT &&
           c->index_blocks_max > 0 && c->index_holdings_max > 0 &&
           c->attempts_max >= 2 && c->suspect_failures > 0 &&
           durations_are_sane(c) && parts_are_sane(c);
}

static uint64_t rate_of(const void *arg, uint32_t p, uint32_t d)
{
    const struct bt_core_config *c = arg;

    return c->links[(size_t)p * c->worker_count + d].model.rate_bytes_per_s;
}

/* The configuration must outlive the ledger: the core's own copy. */
static struct bt_ledger_limits ledger_limits(const struct bt_core_config *c)
{
    struct bt_ledger_limits limits = {
        .workers_max = c->worker_count,
        .requests_max = c->requests_max,
        .rate = rate_of,
        .rate_arg = c,
    };

    return limits;
}

static struct bt_prefix_index_limits
index_limits(const struct bt_core_config *c)
{
    struct bt_prefix_index_limits limits = {
        .workers_max = c->worker_count,
        .blocks_max = c->index_blocks_max,
        .holdings_max = c->index_holdings_max,
    };

    return limits;
}

static size_t add_need(size_t sum, size_t count, size_t bytes)
{
    size_t need = bt_arena_need(count, bytes);

    return sum > SIZE_MAX - need ? SIZE_MAX : sum + need;
}

size_t bt_core_bytes(const struct bt_core_config *config)
{
    struct bt_ledger_limits ledger = ledger_limits(config);
    struct bt_prefix_index_limits index = index_limits(config);
    size_t n = config->worker_count, requests = config->requests_max;
    size_t pairs = core_view_pairs(config), sum = 0;

    sum = add_need(sum, 1, sizeof(struct bt_core));
    sum = add_need(sum, n, sizeof(struct bt_core_worker_config));
    sum = add_need(sum, n, sizeof(struct worker));
    sum = add_need(sum, n, sizeof(size_t));
    sum = add_need(sum, n, sizeof(uint32_t));
    sum = add_need(sum, pairs, sizeof(int64_t));
    sum = add_need(sum, requests, sizeof(struct request));
    sum = add_need(sum, requests, sizeof(uint32_t));
    sum = add_need(sum, n, sizeof(struct bt_place_worker));
    sum = add_need(sum, pairs, sizeof(struct bt_place_link));
    sum = add_need(sum, 1, sizeof(struct view_marks));
    sum = add_need(sum, requests, sizeof(size_t));
    sum = add_need(sum, requests, sizeof(uint64_t));
    sum = add_need(sum, n, sizeof(uint32_t));
    for (int i = 0; i < 3; i++)
        sum = add_need(sum, n, 1);
    sum = add_need(sum, 1, bt_ledger_bytes(&ledger));
    return add_need(sum, 1, bt_prefix_index_bytes(&index));
}

static bool take_scratch(struct bt_core *core, struct bt_arena *arena)
{
    size_t n = core->config.worker_count, requests = core->config.requests_max;

    core->view_workers =
        bt_arena_take(arena, n, sizeof(struct bt_place_worker));
    core->view_links = bt_arena_take(arena, core_view_pairs(&core->config),
                                     sizeof(struct bt_place_link));
    core->view_marks = bt_arena_take(arena, 1, sizeof(struct view_marks));
    core->flows = bt_arena_take(arena, requests, sizeof(uint64_t));
    core->depths = bt_arena_take(arena, n, sizeof(uint32_t));
    core->marks = bt_arena_take(arena, n, 1);
    core->tiers_p = bt_arena_take(arena, n, 1);
    core->tiers_d = bt_arena_take(arena, n, 1);
    if (core->view_marks == NULL)
        return false;
    core->view_marks->busy = bt_arena_take(arena, requests, sizeof(size_t));
    return core->view_workers != NULL && core->view_links != NULL &&
           core->view_marks->busy != NULL && core->flows != NULL &&
           core->depths != NULL && core->marks != NULL &&
           core->tiers_p != NULL && core->tiers_d != NULL;
}

static bool take_memory(struct bt_core *core, struct bt_arena *arena)
{
    const struct bt_core_config *config = &core->config;
    struct bt_ledger_limits ledger = ledger_limits(config);
    struct bt_prefix_index_limits index = index_limits(config);
    size_t n = config->worker_count, requests = config->requests_max;

    core->worker_configs = bt_arena_take(arena, n, sizeof(*config->workers));
    core->workers = bt_arena_take(arena, n, sizeof(struct worker));
    core->link_row = bt_arena_take(arena, n, sizeof(size_t));
    core->link_column = bt_arena_take(arena, n, sizeof(uint32_t));
    core->pair_suspect_until_ns =
        bt_arena_take(arena, core_view_pairs(config), sizeof(int64_t));
    core->requests = bt_arena_take(arena, requests, sizeof(struct request));
    core->free_slots = bt_arena_take(arena, requests, sizeof(uint32_t));
    core->ledger = bt_ledger_init(arena, &ledger);
    core->index = bt_prefix_index_init(arena, &index);
    return core->worker_configs != NULL && core->workers != NULL &&
           core->link_row != NULL && core->link_column != NULL &&
           core->pair_suspect_until_ns != NULL && core->requests != NULL &&
           core->free_slots != NULL && core->ledger != NULL &&
           core->index != NULL && take_scratch(core, arena);
}

static void start_workers(struct bt_core *core)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        core->worker_configs[i] = core->config.workers[i];
        core->workers[i].config = &core->worker_configs[i];
        core->workers[i].state = BT_WORKER_PENDING;
        core->workers[i].stream = BT_STREAM_ABSENT;
    }
    core->config.workers = core->worker_configs;
    core_view_start(core);
}

struct bt_core *bt_core_init(struct bt_arena *arena,
                             const struct bt_core_config *config)
{
    struct bt_core *core;

    if (!config_is_sane(config))
        return NULL;
    core = bt_arena_take(arena, 1, sizeof(*core));
    if (core == NULL)
        return NULL;
    core->config = *config;
    if (!take_memory(core, arena))
        return NULL;
    start_workers(core);
    for (uint32_t i = 0; i < config->requests_max; i++)
        core->free_slots[i] = i;
    core->free_count = config->requests_max;
    core->live_first = core->live_last = NO_SLOT;
    core->queue_first = core->queue_last = NO_SLOT;
    bt_policy_state_init(&core->policy_state, config->seed);
    core_budget_init(&core->budget, config->retry_budget_ratio,
                     config->retry_budget_min);
    return core;
}

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
    if (stream->worker >= n)
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
        return BT_OK;
    case BT_EV_WORKER_STATE:
        status = core_worker_state_event(core, &event->u.worker_state);
        if (status == BT_OK && event->u.worker_state.state == BT_WORKER_READY)
            core_queue_drain(core, fx);
        return status;
    case BT_EV_WORKER_STATS:
        return stats_event(core, &event->u.worker_stats);
    case BT_EV_KV_STORE:
    case BT_EV_KV_REMOVE:
    case BT_EV_KV_CLEAR:
    case BT_EV_KV_STREAM:
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
    assert(effects->count <= effects->capacity);
    assert(core_effects_room(effects) >= UNIT_EFFECTS);
    if (event->now_ns > core->now_ns)
        core->now_ns = event->now_ns;
    return dispatch(core, event, effects);
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

bool bt_core_is_idle(const struct bt_core *core)
{
    return core->live_count == 0 && bt_ledger_is_empty(core->ledger);
}
