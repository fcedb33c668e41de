/* What the planner is told: models and links as configured, biased or
 * permuted where its knowledge is to be bad, and limits large enough that the
 * simulator measures placement, not the core's tables.
 */
#include "sim_priv.h"

#include "baton/orchestrator/journal.h"

#include <stdlib.h>

#define REQUESTS_MAX    32768u
#define EFFECTS_MAX     16384u
#define EXPECTED_TOKENS 512u
#define APPROX_MAX      2097152u /* as `baton serve`: index.approximate_blocks */

/* Every order of the workers is as likely. */
static void permute(const struct sim *s, uint32_t *of)
{
    struct bt_rng rng;

    bt_rng_seed(&rng, s->config->seed ^ 0x73687566u);
    for (uint32_t i = 0; i < s->worker_count; i++)
        of[i] = i;
    for (uint32_t i = s->worker_count; i-- > 1;) {
        uint32_t k = (uint32_t)bt_rng_below(&rng, i + 1u), t = of[i];

        of[i] = of[k];
        of[k] = t;
    }
}

static void tell_worker(struct sim *s, uint32_t worker, uint32_t as)
{
    const struct bt_sim_config *c = s->config;
    const struct sim_worker *w = &s->workers[worker];
    struct bt_core_worker_config *told = &s->told_workers[worker];
    bool decodes = (w->roles & BT_ROLE_DECODE) != 0;

    *told = (struct bt_core_worker_config){
        .roles = w->roles,
        .compute = s->workers[as].compute,
        .decode_slots = w->slots_max,
        .kv_capacity_tokens = w->kv_tokens,
        .local_ok = decodes && c->local && w->pool->local_chunk != 0,
        .fetch_ok = c->fetch && w->pool->fetch,
        .chunk_tokens = decodes ? w->chunk : 0,
        .batch_tokens = w->chunk,
    };
    told->compute.speedup /= 1 + c->knowledge.compute_bias;
    if (c->aggregated)
        told->local_ok = true;
    if (!c->fetch)
        return;
    if (w->has_tier[1])
        told->host = w->pool->host;
    if (w->has_tier[2])
        told->disk = w->pool->disk;
}

static void tell_link(struct sim *s, uint32_t p, uint32_t d,
                      const uint64_t *nics, uint64_t rack_up)
{
    struct bt_core_link_config *link =
        &s->told_links[(size_t)p * s->worker_count + d];
    uint64_t rate = nics[p] < nics[d] ? nics[p] : nics[d];

    if (rack_up != 0 && rack_up < rate &&
        s->workers[p].rack != s->workers[d].rack)
        rate = rack_up;
    link->model.rate_bytes_per_s = rate;
    link->model.setup_ns = s->fabric->setup_ns;
    link->model.per_descriptor_ns = s->fabric->per_descriptor_ns;
}

static uint64_t biased(const struct sim *s, uint64_t rate)
{
    return (uint64_t)((double)rate * (1 + s->config->knowledge.link_bias));
}

static enum bt_status tell_all(struct sim *s)
{
    uint32_t n = s->worker_count;
    uint64_t *nics = calloc(n, sizeof(*nics));
    uint32_t *as = calloc(n, sizeof(*as));
    uint64_t rack_up = biased(s, s->fabric->rack_up_bytes_per_s);
    enum bt_status status = BT_NO_MEMORY;

    s->told_workers = calloc(n, sizeof(*s->told_workers));
    s->told_links = calloc((size_t)n * n, sizeof(*s->told_links));
    if (nics == NULL || as == NULL || s->told_workers == NULL ||
        s->told_links == NULL)
        goto undo;
    for (uint32_t i = 0; i < n; i++)
        as[i] = i;
    if (s->config->knowledge.shuffled_costs)
        permute(s, as);
    for (uint32_t i = 0; i < n; i++) {
        nics[i] = biased(s, s->workers[as[i]].nic_bytes_per_s);
        tell_worker(s, i, as[i]);
    }
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t d = 0; d < n; d++)
            tell_link(s, p, d, nics, rack_up);
    status = sim_topology(s, nics, rack_up, &s->told_topology);
undo:
    free(nics);
    free(as);
    return status;
}

static uint64_t blocks_of_all(const struct sim *s)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s->worker_count; i++)
        for (uint32_t tier = 0; tier < 3; tier++)
            if (s->workers[i].has_tier[tier])
                sum += s->workers[i].tiers[tier].capacity;
    return sum;
}

static uint32_t blocks_longest(const struct sim *s)
{
    uint32_t most = 1;

    for (size_t i = 0; i < s->request_count; i++)
        if (s->requests[i].blocks > most)
            most = s->requests[i].blocks;
    return most;
}

/* Ids in this run are at most what the trace has; holdings what fits. */
static void size_index(const struct sim *s, struct bt_core_config *c)
{
    uint64_t held = blocks_of_all(s) + 1024;
    uint64_t uses = 0, most = UINT32_MAX / 4;

    for (size_t i = 0; i < s->request_count; i++)
        uses += s->requests[i].blocks;
    uses = uses * 3 * s->worker_count + 1024;
    if (held > uses)
        held = uses;
    if (held > most)
        held = most;
    c->index_holdings_max = (uint32_t)held;
    c->index_blocks_max = (uint32_t)held;
    if (s->config->trace->block_ids > 0 &&
        s->config->trace->block_ids + 16 < held)
        c->index_blocks_max = (uint32_t)s->config->trace->block_ids + 16;
}

/* More than the workers hold would only be wrong. */
static void guesses(const struct sim *s, struct bt_core_config *c)
{
    const struct bt_sim_knowledge *k = &s->config->knowledge;

    c->self_check = k->self_check;
    if (!k->approximate)
        return;
    c->approx_ttl_ns = k->approximate_ttl_ns;
    c->approx_blocks_max =
        c->index_holdings_max < APPROX_MAX ? c->index_holdings_max : APPROX_MAX;
}

static void timeouts(const struct sim *s, struct bt_core_config *c)
{
    if (s->config->fault_count == 0)
        return;
    c->queue_timeout_ns = 600 * BT_NS_PER_S;
    c->prefill_timeout_ns = 300 * BT_NS_PER_S;
    c->handoff_timeout_ns = 120 * BT_NS_PER_S;
    c->idle_stream_timeout_ns = 60 * BT_NS_PER_S;
}

static struct bt_core_config core_config(struct sim *s)
{
    const struct bt_sim_config *config = s->config;
    struct bt_core_config c = {
        .policy = &s->policy,
        .knobs_set = true,
        .topology = s->told_topology.topology,
        .prices = config->prices,
        .hold = config->hold,
        .slo = config->slo,
        .calibrate = config->knowledge.calibrate,
        .workers = s->told_workers,
        .worker_count = s->worker_count,
        .links = s->told_links,
        .models = &s->told_model,
        .model_count = 1,
        .requests_max = REQUESTS_MAX,
        .queue_max = REQUESTS_MAX,
        .prompt_blocks_max = blocks_longest(s),
        .attempts_max = 4,
        .retry_budget_ratio = 0.1,
        .retry_budget_min = 1000,
        .expected_output_tokens =
            config->knowledge.output_known != 0 ? 0 : EXPECTED_TOKENS,
        .suspect_ns = 5 * BT_NS_PER_S,
        .suspect_failures = 2,
        .seed = config->seed,
    };

    for (uint32_t i = 0; i < BT_POLICY_KNOBS_MAX; i++)
        c.knobs[i] = s->knobs[i];
    if (s->request_count < REQUESTS_MAX)
        c.requests_max = c.queue_max = (uint32_t)s->request_count;
    size_index(s, &c);
    guesses(s, &c);
    timeouts(s, &c);
    s->told_model = (struct bt_core_model_config){
        .kv_bytes_per_token = s->cluster->kv_bytes_per_token,
        .block_tokens = s->block_tokens,
        .mode = s->cluster->mode,
    };
    return c;
}

static enum bt_status open_journal(struct sim *s,
                                   const struct bt_core_config *config,
                                   char *error_out, size_t error_size)
{
    enum bt_status status;

    if (s->config->journal == NULL)
        return BT_OK;
    status = bt_journal_create(s->config->journal, config,
                               &s->told_topology.spec, 0, &s->journal);
    if (status != BT_OK)
        (void)snprintf(error_out, error_size, "journal %s: %s",
                       s->config->journal, bt_status_text(status));
    return status;
}

enum bt_status sim_setup_core(struct sim *s, char *error_out, size_t error_size)
{
    struct bt_core_config config;
    struct bt_arena arena;
    enum bt_status status = tell_all(s);
    size_t bytes;

    if (status == BT_OK)
        status = sim_policy_init(s, error_out, error_size);
    if (status != BT_OK)
        return status;
    config = core_config(s);
    bytes = bt_core_bytes(&config);
    s->core_memory = calloc(1, bytes);
    s->effects.items = calloc(EFFECTS_MAX, sizeof(*s->effects.items));
    s->effects.capacity = EFFECTS_MAX;
    if (s->core_memory == NULL || s->effects.items == NULL)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, s->core_memory, bytes);
    s->core = bt_core_init(&arena, &config);
    if (s->core != NULL)
        return open_journal(s, &config, error_out, error_size);
    (void)snprintf(error_out, error_size,
                   "the core refuses the configuration (%u workers, %u "
                   "requests, %zu bytes)",
                   s->worker_count, config.requests_max, bytes);
    return BT_INVALID;
}
