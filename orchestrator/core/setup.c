/* Checks the configuration and takes the core's memory from the arena. Decides
 * no request; after bt_core_init() nothing is ever taken again.
 *
 * bt_core_bytes() counts what the take_ functions take, in the same units: a
 * table added to one must be added to the other. */
#include "core_internal.h"

#include <stdint.h>
#include <string.h>

/* Time-outs beyond a year are a slip of the unit; sums of them stay sane. */
#define RANKS_MAX       64u
#define DURATION_MAX_NS (366LL * 86400 * 1000000000)

static bool durations_are_sane(const struct bt_core_config *c)
{
    const int64_t all[] = {
        c->lease_ns,           c->lease_margin_ns,    c->queue_timeout_ns,
        c->prefill_timeout_ns, c->handoff_timeout_ns, c->idle_stream_timeout_ns,
        c->suspect_ns,         c->slo.ttft_base_ns,   c->slo.tpot_ns,
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
            c->workers[i].ranks > RANKS_MAX ||
            (c->workers[i].roles & ~(unsigned int)BT_ROLE_BOTH) != 0)
            return false;
    }
    return true;
}

static bool hold_is_sane(const struct bt_core_config *c)
{
    return (!c->hold.enabled || c->hold.ask_max > 0) && c->hold.lead_ns >= 0 &&
           c->hold.patience_ns >= 0 && c->hold.ageing >= 0 &&
           c->hold.fairness >= 0 && c->slo.ttft_factor >= 0;
}

static bool topology_is_sane(const struct bt_core_config *c)
{
    return c->topology == NULL ||
           (bt_topology_worker_count(c->topology) >= c->worker_count &&
            c->requests_max < NO_SLOT / 2);
}

static bool config_is_sane(const struct bt_core_config *c)
{
    return c->policy != NULL && c->workers != NULL && c->links != NULL &&
           c->models != NULL && c->worker_count > 0 &&
           c->worker_count <= BT_WORKER_SLOTS_MAX && c->model_count > 0 &&
           c->requests_max > 0 && c->requests_max < NO_SLOT &&
           c->index_blocks_max > 0 && c->index_holdings_max > 0 &&
           c->attempts_max >= 2 && c->suspect_failures > 0 &&
           (c->approx_blocks_max == 0 || c->approx_ttl_ns > 0) &&
           durations_are_sane(c) && parts_are_sane(c) && hold_is_sane(c) &&
           topology_is_sane(c);
}

static uint64_t rate_of(const void *arg, uint32_t p, uint32_t d)
{
    const struct bt_core_config *c = arg;

    return c->links[(size_t)p * c->worker_count + d].model.rate_bytes_per_s;
}

/* The configuration must outlive the ledger: the core's own copy. */
static struct bt_ledger_limits ledger_limits(const struct bt_core_config *c,
                                             struct bt_network *network)
{
    struct bt_ledger_limits limits = {
        .workers_max = c->worker_count,
        .requests_max = c->requests_max,
        .rate = rate_of,
        .rate_arg = c,
        .network = network,
    };

    return limits;
}

static struct bt_prefix_index_limits
index_limits(const struct bt_core_config *c)
{
    struct bt_prefix_index_limits limits = {
        .workers_max = core_rows_total(c),
        .blocks_max = c->index_blocks_max,
        .holdings_max = c->index_holdings_max,
    };

    return limits;
}

static struct bt_approx_limits approx_limits(const struct bt_core_config *c)
{
    struct bt_approx_limits limits = {
        .workers_max = core_rows_total(c),
        .entries_max = c->approx_blocks_max,
        .ttl_ns = c->approx_ttl_ns,
    };

    return limits;
}

/* One flow of a hand-off and one of a fetch per request. */
static struct bt_network_limits network_limits(const struct bt_core_config *c)
{
    struct bt_network_limits limits = {
        .topology = c->topology,
        .flows_max = 2 * c->requests_max,
    };

    return limits;
}

struct bt_policy_limits core_policy_limits(const struct bt_core_config *c)
{
    struct bt_policy_limits limits = {
        .workers_max = c->worker_count,
        .requests_max = c->requests_max,
    };

    return limits;
}

static size_t policy_memory(const struct bt_policy *policy,
                            const struct bt_core_config *c)
{
    struct bt_policy_limits limits = core_policy_limits(c);

    return policy == NULL || policy->memory == NULL ? 0
                                                    : policy->memory(&limits);
}

/* A what-if may name any policy of the table. */
static size_t guest_memory(const struct bt_core_config *c)
{
    size_t most = policy_memory(c->policy, c);
    const struct bt_policy *policy;

    for (size_t i = 0; (policy = bt_policy_at(i)) != NULL; i++) {
        size_t bytes = policy_memory(policy, c);

        if (bytes > most)
            most = bytes;
    }
    return most;
}

static uint32_t picks_max(const struct bt_core_config *c)
{
    uint32_t max = c->hold.enabled ? c->hold.ask_max : 1;

    return max < c->requests_max ? max : c->requests_max;
}

static size_t add_need(size_t sum, size_t count, size_t bytes)
{
    size_t need = bt_arena_need(count, bytes);

    return sum > SIZE_MAX - need ? SIZE_MAX : sum + need;
}

static size_t learning_bytes(const struct bt_core_config *c)
{
    size_t sum = 0;

    if (!c->calibrate)
        return 0;
    sum = add_need(sum, 1, sizeof(struct calibration));
    sum = add_need(sum, c->worker_count, sizeof(struct bt_compute_calibration));
    if (c->topology != NULL)
        sum = add_need(sum, (size_t)bt_topology_link_count(c->topology) + 1,
                       sizeof(struct bt_link_calibration));
    return sum;
}

/* Rows, their depths, and the approximate index. */
static size_t rows_bytes(const struct bt_core_config *c)
{
    struct bt_approx_limits approx = approx_limits(c);
    size_t rows = core_rows_total(c);
    size_t sum = add_need(0, rows, sizeof(struct row));

    if (rows != c->worker_count)
        sum = add_need(sum, rows, BT_TIERS * sizeof(uint32_t));
    if (c->approx_blocks_max == 0)
        return sum;
    sum = add_need(sum, rows, sizeof(uint32_t));
    return add_need(sum, 1, bt_approx_bytes(&approx));
}

static size_t parts_bytes(const struct bt_core_config *config)
{
    struct bt_ledger_limits ledger = ledger_limits(config, NULL);
    struct bt_prefix_index_limits index = index_limits(config);
    struct bt_network_limits network = network_limits(config);
    size_t sum = learning_bytes(config);

    sum = add_need(sum, 1, rows_bytes(config));
    sum = add_need(sum, 1, bt_ledger_bytes(&ledger));
    sum = add_need(sum, 1, bt_prefix_index_bytes(&index));
    if (config->topology != NULL)
        sum = add_need(sum, 1, bt_network_bytes(&network));
    sum = add_need(sum, 1, policy_memory(config->policy, config));
    sum = add_need(sum, 1, guest_memory(config));
    sum = add_need(sum, config->model_count, sizeof(struct model_state));
    sum = add_need(sum, config->requests_max, sizeof(struct hold_item));
    return add_need(sum, picks_max(config), sizeof(struct hold_pick));
}

size_t bt_core_bytes(const struct bt_core_config *config)
{
    size_t n = config->worker_count, requests = config->requests_max;
    size_t pairs = core_view_pairs(config), sum = parts_bytes(config);

    sum = add_need(sum, 1, sizeof(struct bt_core));
    sum = add_need(sum, n, sizeof(struct bt_core_worker_config));
    sum = add_need(sum, n, sizeof(struct worker));
    sum = add_need(sum, n, sizeof(size_t));
    sum = add_need(sum, n, sizeof(uint32_t));
    sum = add_need(sum, n, sizeof(uint32_t));
    sum = add_need(sum, pairs, sizeof(int64_t));
    sum = add_need(sum, requests, sizeof(struct request));
    sum = add_need(sum, requests, sizeof(uint32_t));
    sum = add_need(sum, n, sizeof(struct bt_place_worker));
    sum = add_need(sum, pairs, sizeof(struct bt_place_link));
    sum = add_need(sum, 1, sizeof(struct view_marks));
    sum = add_need(sum, requests, sizeof(size_t));
    sum = add_need(sum, requests, sizeof(uint64_t));
    sum = add_need(sum, n, BT_TIERS * sizeof(uint32_t));
    for (int i = 0; i < 3; i++)
        sum = add_need(sum, n, 1);
    return sum;
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
    core->depths = bt_arena_take(arena, n, BT_TIERS * sizeof(uint32_t));
    core->marks = bt_arena_take(arena, n, 1);
    core->tiers_p = bt_arena_take(arena, n, 1);
    core->tiers_d = bt_arena_take(arena, n, 1);
    core->held = bt_arena_take(arena, requests, sizeof(struct hold_item));
    core->picks = bt_arena_take(arena, picks_max(&core->config),
                                sizeof(struct hold_pick));
    if (core->view_marks == NULL)
        return false;
    core->view_marks->busy = bt_arena_take(arena, requests, sizeof(size_t));
    return core->view_workers != NULL && core->view_links != NULL &&
           core->view_marks->busy != NULL && core->flows != NULL &&
           core->depths != NULL && core->marks != NULL &&
           core->tiers_p != NULL && core->tiers_d != NULL &&
           core->held != NULL && core->picks != NULL;
}

/* The network comes before the ledger that keeps its flows there. */
static bool take_ledger(struct bt_core *core, struct bt_arena *arena)
{
    const struct bt_core_config *config = &core->config;
    struct bt_network_limits network = network_limits(config);
    struct bt_ledger_limits ledger;

    if (config->topology != NULL) {
        core->network = bt_network_init(arena, &network);
        if (core->network == NULL)
            return false;
    }
    ledger = ledger_limits(config, core->network);
    core->ledger = bt_ledger_init(arena, &ledger);
    return core->ledger != NULL;
}

static bool take_policy(struct bt_core *core, struct bt_arena *arena)
{
    const struct bt_core_config *config = &core->config;
    struct bt_policy_state *state = &core->policy_state;

    bt_policy_state_init(state, config->seed);
    if (config->knobs_set)
        memcpy(state->knobs, config->knobs, sizeof(state->knobs));
    else
        bt_policy_defaults(config->policy, state->knobs);
    core->policy_memory_bytes = policy_memory(config->policy, config);
    core->guest_memory_bytes = guest_memory(config);
    if (core->policy_memory_bytes > 0)
        state->memory = bt_arena_take(arena, 1, core->policy_memory_bytes);
    if (core->guest_memory_bytes > 0)
        core->guest_memory = bt_arena_take(arena, 1, core->guest_memory_bytes);
    return (core->policy_memory_bytes == 0 || state->memory != NULL) &&
           (core->guest_memory_bytes == 0 || core->guest_memory != NULL);
}

static bool take_learning(struct bt_core *core, struct bt_arena *arena)
{
    const struct bt_core_config *config = &core->config;
    struct calibration *c;

    if (!config->calibrate)
        return true;
    c = bt_arena_take(arena, 1, sizeof(*c));
    if (c == NULL)
        return false;
    core->calibration = c;
    c->workers =
        bt_arena_take(arena, config->worker_count, sizeof(*c->workers));
    if (config->topology == NULL)
        return c->workers != NULL;
    c->links = bt_arena_take(
        arena, (size_t)bt_topology_link_count(config->topology) + 1,
        sizeof(*c->links));
    return c->workers != NULL && c->links != NULL;
}

static bool take_rows(struct bt_core *core, struct bt_arena *arena)
{
    const struct bt_core_config *config = &core->config;
    struct bt_approx_limits approx = approx_limits(config);
    size_t rows = core_rows_total(config);

    core->row_count = (uint32_t)rows;
    core->rows = bt_arena_take(arena, rows, sizeof(struct row));
    core->row_depths = core->depths;
    if (rows != config->worker_count)
        core->row_depths =
            bt_arena_take(arena, rows, BT_TIERS * sizeof(uint32_t));
    if (core->rows == NULL || core->row_depths == NULL)
        return false;
    if (config->approx_blocks_max == 0)
        return true;
    core->guess_depths = bt_arena_take(arena, rows, sizeof(uint32_t));
    core->approx = bt_approx_init(arena, &approx);
    return core->guess_depths != NULL && core->approx != NULL;
}

static bool take_memory(struct bt_core *core, struct bt_arena *arena)
{
    const struct bt_core_config *config = &core->config;
    struct bt_prefix_index_limits index = index_limits(config);
    size_t n = config->worker_count, requests = config->requests_max;

    core->worker_configs = bt_arena_take(arena, n, sizeof(*config->workers));
    core->workers = bt_arena_take(arena, n, sizeof(struct worker));
    core->link_row = bt_arena_take(arena, n, sizeof(size_t));
    core->link_column = bt_arena_take(arena, n, sizeof(uint32_t));
    core->paces = bt_arena_take(arena, n, sizeof(uint32_t));
    core->pair_suspect_until_ns =
        bt_arena_take(arena, core_view_pairs(config), sizeof(int64_t));
    core->requests = bt_arena_take(arena, requests, sizeof(struct request));
    core->free_slots = bt_arena_take(arena, requests, sizeof(uint32_t));
    core->models =
        bt_arena_take(arena, config->model_count, sizeof(struct model_state));
    core->index = bt_prefix_index_init(arena, &index);
    return core->worker_configs != NULL && core->workers != NULL &&
           core->link_row != NULL && core->link_column != NULL &&
           core->paces != NULL && core->pair_suspect_until_ns != NULL &&
           core->requests != NULL && core->free_slots != NULL &&
           core->models != NULL && core->index != NULL &&
           take_ledger(core, arena) && take_scratch(core, arena) &&
           take_rows(core, arena) && take_policy(core, arena) &&
           take_learning(core, arena);
}

static void start_workers(struct bt_core *core)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        core->worker_configs[i] = core->config.workers[i];
        core->workers[i].config = &core->worker_configs[i];
        core->workers[i].model = &core->worker_configs[i].compute;
        core->workers[i].state = BT_WORKER_PENDING;
    }
    core->config.workers = core->worker_configs;
    core_rows_start(core);
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
    core->likely_of = NO_SLOT;
    core->deadline_ns = INT64_MAX;
    core_paces_find(core);
    bt_fairness_init(&core->fairness);
    core->turn.share = config->hold.oldest_share;
    core_learn_start(core);
    core_budget_init(&core->budget, config->retry_budget_ratio,
                     config->retry_budget_min);
    return core;
}
