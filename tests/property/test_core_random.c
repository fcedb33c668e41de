/* A random world around the core: workers come and go, legs answer, fail, come
 * late or twice, clients leave, time jumps. After every event the invariants
 * of core.h are checked against the test's own book of what was sent. Worlds
 * differ in policy (every one of the table, and a wild one that holds back,
 * refuses, fetches, serves locally and moves hand-offs by the dice), in whether
 * links are shared, requests may be held and models are learned.
 *
 *   argv[1]  a seed: runs that world alone (default: SEEDS worlds from 1)
 *
 * The same seed run twice must give the same XXH3 hash of all effects, and so
 * must a run with what-if questions in between, of times to come as well. */
#include "test_core_wild.h"

#include "baton/base/rng.h"
#include "baton/orchestrator/core.h"
#include "baton/planner/block_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#define SEEDS    60u
#define EVENTS   5000u
#define WORKERS  7u
#define COOKIES  (EVENTS + 1u)
#define LIVE_MAX 48u
#define MS       1000000LL
#define LEASE_MS 3000
#define MARGIN   500
#define BLOCKS   8u

/* The test's own book of one request. */
struct entry {
    struct bt_request_id id;
    bool accepted, finished;
    bool leg_out; /* an attempt is out, as the effects told */
    enum bt_leg leg;
    uint32_t attempt;
    bool params_good; /* last leg P answered with parameters */
    int64_t prefill_done_ns;
    bool first_token;
    bool prefetched;
};

struct world {
    struct bt_rng rng;
    struct bt_core_config config;
    struct bt_core_worker_config workers[WORKERS];
    struct bt_core_link_config links[WORKERS * WORKERS];
    struct bt_core_model_config models[2];
    uint64_t incarnations[WORKERS];
    struct bt_topology_rack racks[2];
    struct bt_topology_node nodes[WORKERS];
    struct bt_topology_worker places[WORKERS];
    void *topology_memory; /* NULL: pairs only */
    void *memory;
    struct bt_core *core;
    int64_t now_ns;
    struct bt_effect items[64];
    struct bt_effects fx;
    struct entry *book; /* COOKIES */
    uint32_t asked;
    XXH64_hash_t hash;
    uint64_t events, stepped[BT_EV_DECODE_DONE + 1];
};

static uint32_t prompt[BLOCKS * 16];
static uint64_t keys[BLOCKS];
static uint64_t only_seed;
static uint64_t total_events;
/* Of all finished requests: what is worth nothing unless it happens. */
static struct {
    uint64_t held, moved, fetched, local, refused, flows, ahead, ahead_used;
    uint64_t guessed, discounted, ranked;
} reached;

static bool chance(struct world *w, unsigned int percent)
{
    return bt_rng_below(&w->rng, 100) < percent;
}

/* Half of the worlds are wild. */
static const struct bt_policy *some_policy(struct world *w)
{
    size_t count = 0;

    if (chance(w, 50))
        return wild_policy(bt_rng_below(&w->rng, WILD_POLICIES));
    while (bt_policy_at(count) != NULL)
        count++;
    return bt_policy_at(bt_rng_below(&w->rng, count));
}

/* ---- the world ---- */

/* Two racks, the last worker in none: its pairs have links of their own. */
static void make_topology(struct world *w)
{
    struct bt_topology_spec spec = {.racks = w->racks,
                                    .rack_count = 2,
                                    .nodes = w->nodes,
                                    .node_count = WORKERS,
                                    .workers = w->places,
                                    .worker_count = WORKERS};
    struct bt_arena arena;
    size_t bytes;

    for (uint32_t i = 0; i < 2; i++)
        w->racks[i] = (struct bt_topology_rack){.name = "rack",
                                                .pod = BT_LINK_NONE,
                                                .up_bytes_per_s = 20000000,
                                                .down_bytes_per_s = 20000000};
    for (uint32_t i = 0; i < WORKERS; i++) {
        w->nodes[i] = (struct bt_topology_node){
            .name = "node",
            .rack = i % 2,
            .rails = 1,
            .rail_bytes_per_s = 1000000u << bt_rng_below(&w->rng, 12)};
        w->places[i].node = i < WORKERS - 1 ? i : BT_LINK_NONE;
    }
    bytes = bt_topology_bytes(&spec);
    w->topology_memory = calloc(1, bytes);
    assert_non_null(w->topology_memory);
    bt_arena_init(&arena, w->topology_memory, bytes);
    w->config.topology = bt_topology_init(&arena, &spec);
    assert_non_null(w->config.topology);
}

/* The rest of the configuration, by the dice. */
static void make_late_binding(struct world *w)
{
    struct bt_core_config *c = &w->config;

    c->calibrate = chance(w, 50);
    c->hold = (struct bt_core_hold_config){
        .enabled = chance(w, 75),
        .lead_ns = (int64_t)bt_rng_below(&w->rng, 30) * MS,
        .patience_ns = (int64_t)bt_rng_below(&w->rng, 500) * MS,
        .ask_max = 1 + (uint32_t)bt_rng_below(&w->rng, 6),
        .ageing = chance(w, 50) ? 0.15 : 0,
        .fairness = chance(w, 50) ? 0.5 : 0,
        .prefetch = chance(w, 75)};
    if (chance(w, 50))
        c->slo = (struct bt_core_slo_config){
            .ttft_base_ns = 100 * MS, .ttft_factor = 3, .tpot_ns = 50 * MS};
    if (chance(w, 50))
        c->prices = (struct bt_place_prices){
            .queue = -1, .eviction = 1, .link = 0.5, .hbm = 1, .decode = 0.5};
    w->models[0].mode.late_decode = chance(w, 50);
    w->models[0].mode.overlap = (enum bt_overlap)bt_rng_below(&w->rng, 3);
    w->models[0].mode.pieces = 4;
    for (uint32_t i = 0; i < WORKERS; i++) {
        w->workers[i].local_ok = chance(w, 50);
        w->workers[i].fetch_ok = chance(w, 50);
        w->workers[i].chunk_tokens = chance(w, 50) ? 64 : 0;
        if (chance(w, 50))
            w->workers[i].host =
                (struct bt_tier_model){.rate_bytes_per_s = 100000000};
        w->workers[i].ranks = (uint32_t)bt_rng_below(&w->rng, 4);
    }
    c->self_check = chance(w, 50);
    c->approx_blocks_max = chance(w, 50) ? 24 : 0;
    c->approx_ttl_ns = 700 * MS;
    if (chance(w, 60))
        make_topology(w);
}

static void make_config(struct world *w)
{
    struct bt_compute_model compute = {.prefill_a_ms = 1,
                                       .prefill_b_ms = 0.1,
                                       .prefill_c_ms = 0.00001,
                                       .decode_a_ms = 10,
                                       .decode_b_ms = 0.1,
                                       .speedup = 1};

    for (uint32_t i = 0; i < WORKERS; i++)
        w->workers[i] = (struct bt_core_worker_config){
            .roles = i < 2   ? BT_ROLE_PREFILL
                     : i < 4 ? BT_ROLE_DECODE
                     : i < 6 ? BT_ROLE_BOTH
                             : BT_ROLE_DECODE,
            .model = i == 5,
            .compute = compute,
            .decode_slots = i == 2 ? 2 : 0,
            .kv_capacity_tokens = i == 3 ? 2000 : 0};
    for (uint32_t i = 0; i < WORKERS * WORKERS; i++)
        w->links[i].model = (struct bt_link_model){
            .rate_bytes_per_s = 1000000u << bt_rng_below(&w->rng, 12),
            .setup_ns = MS};
    for (uint32_t i = 0; i < 2; i++)
        w->models[i] = (struct bt_core_model_config){.kv_bytes_per_token = 1000,
                                                     .block_tokens = 16};
    w->config = (struct bt_core_config){
        .policy = some_policy(w),
        .workers = w->workers,
        .worker_count = WORKERS,
        .links = w->links,
        .models = w->models,
        .model_count = 2,
        .requests_max = LIVE_MAX,
        .queue_max = 8,
        .index_blocks_max = 64,
        .index_holdings_max = 128,
        .prompt_blocks_max = 64,
        .attempts_max = 2 + (uint32_t)bt_rng_below(&w->rng, 10),
        .retry_budget_ratio = chance(w, 50) ? 0.5 : 0.02,
        .retry_budget_min = (uint32_t)bt_rng_below(&w->rng, 6),
        .pd_required = chance(w, 30),
        .pd_min_tokens = chance(w, 50) ? 32 : 0,
        .expected_output_tokens = 64,
        .lease_ns = LEASE_MS * MS,
        .lease_margin_ns = MARGIN * MS,
        .queue_timeout_ns = 1000 * MS,
        .prefill_timeout_ns = 2000 * MS,
        .handoff_timeout_ns = 4000 * MS,
        .idle_stream_timeout_ns = 2000 * MS,
        .suspect_ns = 1000 * MS,
        .suspect_failures = 3,
        .seed = bt_rng_u64(&w->rng)};
}

static void start(struct world *w, uint64_t seed)
{
    struct bt_arena arena;
    size_t bytes;

    memset(w, 0, sizeof(*w));
    bt_rng_seed(&w->rng, seed);
    make_config(w);
    make_late_binding(w);
    bytes = bt_core_bytes(&w->config);
    w->memory = calloc(1, bytes);
    w->book = calloc(COOKIES, sizeof(*w->book));
    assert_non_null(w->memory);
    assert_non_null(w->book);
    bt_arena_init(&arena, w->memory, bytes);
    w->core = bt_core_init(&arena, &w->config);
    assert_non_null(w->core);
    w->fx = (struct bt_effects){.items = w->items, .capacity = 64};
    w->now_ns = 1000 * MS;
}

static void check_send(struct world *w, struct entry *e,
                       const struct bt_effect *fx)
{
    assert_false(e->leg_out);
    assert_true(fx->attempt > e->attempt);
    if (fx->type == BT_FX_SEND_DECODE && fx->with_params) {
        assert_true(e->params_good);
        assert_true(w->now_ns < e->prefill_done_ns + (LEASE_MS - MARGIN) * MS);
    }
    if (fx->has_rank) {
        assert_true(fx->type == BT_FX_SEND_PREFILL);
        assert_true(fx->rank < w->workers[bt_worker_slot(fx->worker)].ranks);
        reached.ranked += fx->rank > 0;
    }
    e->leg_out = true;
    e->leg = fx->type == BT_FX_SEND_PREFILL ? BT_LEG_PREFILL : BT_LEG_DECODE;
    e->attempt = fx->attempt;
    e->first_token = false;
    if (e->leg == BT_LEG_PREFILL || !fx->with_params)
        e->params_good = false;
    assert_true(bt_worker_slot(fx->worker) < WORKERS);
    assert_true(fx->source.tokens == 0 || fx->source.worker < WORKERS);
}

/* Ahead of any leg, once, from a peer, to one who understands it. */
static void check_prefetch(const struct world *w, struct entry *e,
                           const struct bt_effect *fx)
{
    uint32_t to = bt_worker_slot(fx->worker);

    assert_true(w->config.hold.enabled && w->config.hold.prefetch);
    assert_true(e->accepted && !e->leg_out && e->attempt == 0);
    assert_false(e->prefetched);
    e->prefetched = true;
    assert_true(to < WORKERS && w->workers[to].fetch_ok);
    assert_true(fx->source.tokens > 0 && fx->source.worker < WORKERS);
    assert_true(fx->source.worker != to);
}

static void check_overlap(const struct world *w, const struct bt_decision *d)
{
    const struct bt_place_candidate *c = &d->placement.chosen;

    if (d->placements == 0)
        return;
    assert_true(d->credit >= 0 && d->credit <= 1);
    assert_true(d->overlap_raw_tokens <=
                (d->prompt_tokens == 0 ? 1 : d->prompt_tokens));
    assert_true(d->tokens_known || d->overlap_source == BT_PREFIX_UNKNOWN);
    assert_true(d->overlap_source != BT_PREFIX_APPROX ||
                w->config.approx_blocks_max > 0);
    assert_true(d->overlap_source != BT_PREFIX_DISCOUNTED ||
                (w->config.self_check && d->credit < 0.8));
    assert_true(d->copies > 0 || d->overlap_raw_tokens == 0);
    assert_true(c->d < WORKERS);
    reached.guessed +=
        d->overlap_source == BT_PREFIX_APPROX && d->overlap_raw_tokens > 0;
    reached.discounted += d->overlap_source == BT_PREFIX_DISCOUNTED;
}

static void check_finished(const struct world *w, struct entry *e,
                           const struct bt_effect *fx)
{
    const struct bt_decision *d = fx->decision;

    assert_false(e->leg_out);
    assert_non_null(d);
    assert_int_equal(d->cookie, fx->cookie);
    assert_int_equal(d->request.v, fx->request.v);
    assert_int_equal(d->finished_ns, w->now_ns);
    assert_true(d->status >= 200 && d->status < 600);
    assert_true((d->outcome == BT_OUTCOME_OK) == (d->status == 200));
    assert_int_equal(d->attempt_count, e->attempt);
    assert_true(d->attempt_count <= w->config.attempts_max);
    assert_true(d->outcome != BT_OUTCOME_SHED || d->attempt_count == 0);
    for (uint32_t i = 0; i < d->attempt_count && i < BT_ATTEMPTS_KEPT; i++) {
        assert_true(d->attempts[i].ended_ns >= d->attempts[i].sent_ns);
        assert_true(d->attempts[i].ended_ns != 0);
    }
    check_overlap(w, d);
    e->finished = true;
    assert_true(d->prefetched == e->prefetched);
    reached.held += d->provisional.d != BT_PLACE_NONE;
    reached.moved += d->handoff_moved;
    reached.fetched += d->placement.chosen.source.tokens > 0;
    reached.local += d->reason == BT_REASON_LOCAL;
    reached.refused +=
        d->outcome == BT_OUTCOME_SHED && d->provisional.d != BT_PLACE_NONE;
    reached.flows += w->config.topology != NULL &&
                     !bt_network_is_empty(bt_core_network(w->core));
}

static void check_effect(struct world *w, const struct bt_effect *fx)
{
    struct entry *e;

    assert_true(fx->cookie < COOKIES);
    e = &w->book[fx->cookie];
    assert_false(e->finished);
    switch (fx->type) {
    case BT_FX_ACCEPTED:
        assert_false(e->accepted);
        e->accepted = true;
        e->id = fx->request;
        break;
    case BT_FX_SEND_PREFILL:
    case BT_FX_SEND_DECODE:
        check_send(w, e, fx);
        break;
    case BT_FX_RELEASE_HANDOFF:
        assert_true(e->params_good);
        assert_true(w->now_ns < e->prefill_done_ns + LEASE_MS * MS);
        e->params_good = false;
        break;
    case BT_FX_ABORT:
        assert_true(e->leg_out);
        assert_int_equal(fx->attempt, e->attempt);
        assert_int_equal(fx->leg, e->leg);
        e->leg_out = false;
        break;
    case BT_FX_PREFETCH:
        check_prefetch(w, e, fx);
        break;
    case BT_FX_FINISHED:
        check_finished(w, e, fx);
        break;
    }
    assert_int_equal(e->id.v, fx->request.v);
}

static void hash_effect(struct world *w, const struct bt_effect *fx)
{
    uint64_t words[10] = {fx->type, fx->request.v, fx->cookie,     fx->attempt,
                          fx->leg,  fx->worker.v,  fx->with_params};

    if (fx->decision != NULL) {
        words[7] = fx->decision->outcome;
        words[8] = (uint64_t)fx->decision->placement.chosen.terms.total_ns;
        words[9] = fx->decision->attempt_count * 1000u +
                   fx->decision->reason * 16u + fx->decision->fallback;
    }
    w->hash = XXH3_64bits_withSeed(words, sizeof(words), w->hash);
}

static uint32_t live_of(const struct world *w)
{
    const struct bt_core_counters *c = bt_core_counters_get(w->core);
    uint64_t ended = 0;
    uint32_t live = 0;

    for (int i = 0; i < BT_REQUEST_STATE_COUNT; i++)
        live += c->live[i];
    for (int i = 0; i < BT_OUTCOME_COUNT; i++)
        ended += c->outcomes[i];
    assert_int_equal(c->requests, ended + live);
    assert_int_equal(c->live[BT_REQUEST_RECEIVED], 0);
    assert_int_equal(c->live[BT_REQUEST_PLACED], 0);
    assert_true(c->live[BT_REQUEST_QUEUED] <= 8);
    assert_true(live <= LIVE_MAX);
    return live;
}

static enum bt_status step(struct world *w, struct bt_event *e)
{
    enum bt_status status;

    e->now_ns = w->now_ns;
    w->fx.count = 0;
    status = bt_core_step(w->core, e, &w->fx);
    for (size_t i = 0; i < w->fx.count; i++) {
        hash_effect(w, &w->fx.items[i]);
        check_effect(w, &w->fx.items[i]);
    }
    w->events++;
    w->stepped[e->type]++;
    if (live_of(w) == 0)
        assert_true(bt_core_is_idle(w->core));
    return status;
}

static void event_worker(struct world *w)
{
    static const enum bt_worker_state states[] = {
        BT_WORKER_READY,     BT_WORKER_READY,    BT_WORKER_READY,
        BT_WORKER_UNHEALTHY, BT_WORKER_DRAINING, BT_WORKER_PENDING,
        BT_WORKER_REFUSED};
    struct bt_event e = {.type = BT_EV_WORKER_STATE};
    uint32_t slot = (uint32_t)bt_rng_below(&w->rng, WORKERS);

    if (chance(w, 20))
        w->incarnations[slot]++;
    e.u.worker_state =
        (struct bt_ev_worker_state){.worker = slot,
                                    .state = states[bt_rng_below(&w->rng, 7)],
                                    .incarnation = w->incarnations[slot],
                                    .block_tokens = chance(w, 5) ? 32 : 16,
                                    .kv_capacity_tokens = 5000};
    (void)step(w, &e);
}

static void event_stream(struct world *w)
{
    struct bt_event e = {
        .type = BT_EV_KV_STREAM,
        .u.kv_stream = {.worker = (uint32_t)bt_rng_below(&w->rng, WORKERS),
                        .state = (enum bt_stream_state)bt_rng_below(
                            &w->rng, BT_STREAM_SUSPECT + 1u),
                        .cause = (enum bt_stream_cause)bt_rng_below(
                            &w->rng, BT_STREAM_CAUSE_COUNT)}};
    uint32_t ranks = w->workers[e.u.kv_stream.worker].ranks;

    e.u.kv_stream.rank = (uint32_t)bt_rng_below(&w->rng, 4);
    assert_int_equal(step(w, &e), e.u.kv_stream.rank < (ranks == 0 ? 1 : ranks)
                                      ? BT_OK
                                      : BT_INVALID);
}

/* Blocks of one fixed prompt: any prefix may be stored, any block removed. */
static void event_kv(struct world *w)
{
    static const uint64_t hashes[BLOCKS] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t from = bt_rng_below(&w->rng, BLOCKS);
    struct bt_kv_store store = {.hashes = hashes,
                                .hash_count = 1 + from,
                                .tokens = prompt,
                                .token_count = (1 + from) * 16,
                                .block_tokens = 16,
                                .full_attention = 1};
    struct bt_event e = {.type = BT_EV_KV_STORE};
    uint32_t worker = (uint32_t)bt_rng_below(&w->rng, WORKERS);
    uint32_t ranks = w->workers[worker].ranks;
    uint32_t rank = (uint32_t)bt_rng_below(&w->rng, ranks == 0 ? 1 : ranks);
    uint32_t left = (uint32_t)bt_rng_below(&w->rng, 3);

    if (chance(w, 60)) {
        e.u.kv_store = (struct bt_ev_kv_store){
            .worker = worker, .rank = rank, .store = &store};
    } else if (chance(w, 80)) {
        e.type = BT_EV_KV_REMOVE;
        e.u.kv_remove =
            (struct bt_ev_kv_remove){.worker = worker,
                                     .rank = rank,
                                     .hashes = hashes + from,
                                     .remaining = chance(w, 30) ? &left : NULL,
                                     .count = 1};
    } else if (chance(w, 50)) {
        e.type = BT_EV_KV_COUNTING;
        e.u.kv_counting = (struct bt_ev_kv_counting){
            .worker = worker,
            .rank = rank,
            .counting = (enum bt_kv_counting)bt_rng_below(&w->rng, 2)};
    } else {
        e.type = BT_EV_KV_CLEAR;
        e.u.kv_clear = (struct bt_ev_kv_clear){.worker = worker,
                                               .rank = rank,
                                               .has_tier = chance(w, 30),
                                               .all_ranks = chance(w, 50)};
    }
    assert_int_equal(step(w, &e), BT_OK);
}

static void event_stats(struct world *w)
{
    struct bt_event e = {
        .type = BT_EV_WORKER_STATS,
        .u.worker_stats = {.worker = (uint32_t)bt_rng_below(&w->rng, WORKERS),
                           .running = 3}};

    assert_int_equal(step(w, &e), BT_OK);
}

static void event_request(struct world *w)
{
    struct bt_event e = {.type = BT_EV_REQUEST};
    struct entry *entry = &w->book[w->asked];
    uint32_t before = live_of(w);
    enum bt_status status;

    e.u.request = (struct bt_ev_request){
        .cookie = w->asked,
        .model = chance(w, 20),
        .prompt_tokens = (uint32_t)bt_rng_below(&w->rng, 3000),
        .tokens_known = chance(w, 80),
        .keys = keys,
        .max_tokens = (uint32_t)bt_rng_below(&w->rng, 100),
        .pd_allowed = chance(w, 90),
        .tenant = bt_rng_below(&w->rng, 3),
        .priority = chance(w, 10) ? 1 : 0,
        .whole_answer = chance(w, 20)};
    e.u.request.key_count = e.u.request.prompt_tokens / 16 < BLOCKS
                                ? e.u.request.prompt_tokens / 16
                                : BLOCKS;
    status = step(w, &e);
    assert_int_equal(status, before < LIVE_MAX ? BT_OK : BT_LIMIT);
    assert_int_equal(entry->accepted, status == BT_OK);
    if (status == BT_OK)
        w->asked++;
}

/* A recent request, mostly a live one; late and unknown ids come along. */
static struct entry *pick(struct world *w)
{
    uint32_t back;

    if (w->asked == 0)
        return NULL;
    for (int i = 0; i < 8; i++) {
        back = (uint32_t)bt_rng_below(&w->rng, LIVE_MAX * 2);
        if (back >= w->asked)
            continue;
        if (!w->book[w->asked - 1 - back].finished || chance(w, 3))
            return &w->book[w->asked - 1 - back];
    }
    return &w->book[bt_rng_below(&w->rng, w->asked)];
}

/* The attempt to quote: the one that is out, or some other. */
static uint32_t quote(struct world *w, const struct entry *e)
{
    if (chance(w, 92))
        return e->attempt;
    return (uint32_t)bt_rng_below(&w->rng, 6);
}

static bool is_current(const struct entry *e, uint32_t attempt, enum bt_leg leg)
{
    return !e->finished && e->leg_out && e->leg == leg && e->attempt == attempt;
}

static void event_prefill_done(struct world *w, struct entry *entry)
{
    struct bt_event e = {.type = BT_EV_PREFILL_DONE};
    uint32_t attempt = quote(w, entry);
    bool params = chance(w, 85);
    bool current = is_current(entry, attempt, BT_LEG_PREFILL);
    enum bt_status status;

    e.u.prefill_done = (struct bt_ev_prefill_done){
        .request = entry->id,
        .attempt = attempt,
        .has_params = params,
        .prompt_tokens = chance(w, 50) ? 100 : 0,
        .cached_tokens = 16 * (uint32_t)bt_rng_below(&w->rng, 9)};
    if (current) {
        entry->leg_out = false;
        entry->params_good = params;
        entry->prefill_done_ns = w->now_ns;
    }
    status = step(w, &e);
    assert_int_equal(status, current ? BT_OK : BT_STALE);
    assert_true(current || w->fx.count == 0);
}

static void event_leg_failed(struct world *w, struct entry *entry)
{
    static const int statuses[] = {400, 404, 408, 422, 429, 500, 502, 503, 504};
    struct bt_event e = {.type = BT_EV_LEG_FAILED};
    uint32_t attempt = quote(w, entry);
    enum bt_leg leg = chance(w, 95) ? entry->leg : BT_LEG_PREFILL;
    bool current = is_current(entry, attempt, leg);
    enum bt_status status;

    e.u.leg_failed = (struct bt_ev_leg_failed){
        .request = entry->id,
        .attempt = attempt,
        .leg = leg,
        .how = (enum bt_leg_failure)bt_rng_below(&w->rng, 6),
        .status = statuses[bt_rng_below(&w->rng, 9)],
        .bytes_sent =
            leg == BT_LEG_DECODE && (entry->first_token || chance(w, 10))};
    if (current) {
        entry->leg_out = false;
        if (leg == BT_LEG_DECODE && e.u.leg_failed.how != BT_FAIL_REFUSED)
            entry->params_good = false;
    }
    status = step(w, &e);
    assert_int_equal(status, current ? BT_OK : BT_STALE);
    assert_true(current || w->fx.count == 0);
    if (current && e.u.leg_failed.bytes_sent)
        assert_true(entry->finished);
}

static void event_progress(struct world *w, struct entry *entry,
                           enum bt_event_type type)
{
    struct bt_event e = {.type = type};
    uint32_t attempt = quote(w, entry);
    bool current = is_current(entry, attempt, BT_LEG_DECODE);
    enum bt_status status;

    e.u.progress =
        (struct bt_ev_progress){.request = entry->id,
                                .attempt = attempt,
                                .tokens = (uint32_t)bt_rng_below(&w->rng, 4)};
    if (current && type == BT_EV_FIRST_TOKEN && entry->first_token)
        current = false; /* twice */
    if (current && type == BT_EV_DECODE_DONE)
        entry->leg_out = false;
    else if (current && (type == BT_EV_FIRST_TOKEN || e.u.progress.tokens > 0))
        entry->first_token = true;
    status = step(w, &e);
    assert_int_equal(status, current ? BT_OK : BT_STALE);
    if (type == BT_EV_DECODE_DONE)
        assert_true(entry->finished || !current);
    else /* others may have been waiting for the time, or for its prefill */
        assert_true(w->fx.count == 0 || (current && w->config.hold.enabled));
}

static void event_gone(struct world *w, struct entry *entry)
{
    struct bt_event e = {.type = BT_EV_CLIENT_GONE, .u.client_gone = entry->id};
    bool live = !entry->finished;
    enum bt_status status = step(w, &e);

    assert_int_equal(status, live ? BT_OK : BT_STALE);
    assert_true(entry->finished);
}

static void event_tick(struct world *w)
{
    struct bt_event e = {.type = BT_EV_TICK};

    (void)step(w, &e);
}

static void event_of_request(struct world *w)
{
    struct entry *entry = pick(w);
    uint64_t dice = bt_rng_below(&w->rng, 100);

    if (entry == NULL)
        return;
    if (dice < 6)
        event_gone(w, entry);
    else if (dice < 25)
        event_leg_failed(w, entry);
    else if (entry->leg == BT_LEG_PREFILL || dice < 28)
        event_prefill_done(w, entry);
    else if (dice < 50)
        event_progress(w, entry, BT_EV_FIRST_TOKEN);
    else if (dice < 75)
        event_progress(w, entry, BT_EV_TOKENS);
    else
        event_progress(w, entry, BT_EV_DECODE_DONE);
}

static void random_event(struct world *w)
{
    uint64_t dice = bt_rng_below(&w->rng, 100);

    if (chance(w, 60))
        w->now_ns += (int64_t)bt_rng_below(&w->rng, 40) * MS;
    if (chance(w, 1))
        w->now_ns += 2600 * MS;
    if (dice < 4)
        event_worker(w);
    else if (dice < 5)
        event_stream(w);
    else if (dice < 8)
        event_kv(w);
    else if (dice < 9)
        event_stats(w);
    else if (dice < 14)
        event_tick(w);
    else if (dice < 36)
        event_request(w);
    else
        event_of_request(w);
}

/* None is left open: each was of use or not. */
static void check_prefetches(const struct world *w)
{
    const struct bt_core_counters *c = bt_core_counters_get(w->core);
    uint64_t told = 0;

    for (uint32_t i = 0; i < w->asked; i++)
        told += w->book[i].prefetched;
    assert_int_equal(c->prefetches, told);
    assert_int_equal(c->prefetches_used + c->prefetches_wasted, told);
    reached.ahead += told;
    reached.ahead_used += c->prefetches_used;
}

/* Nothing more comes: the timers alone must end everything. */
static void run_dry(struct world *w)
{
    for (int i = 0; i < 100000 && live_of(w) > 0; i++) {
        w->now_ns += (i < 1000 ? 100 : 10000) * MS;
        event_tick(w);
    }
    assert_int_equal(live_of(w), 0);
    assert_true(bt_core_is_idle(w->core));
    check_prefetches(w);
    assert_true(bt_core_network(w->core) == NULL ||
                bt_network_is_empty(bt_core_network(w->core)));
    for (uint32_t i = 0; i < w->asked; i++)
        assert_true(w->book[i].finished);
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct bt_core_worker_info info;

        assert_int_equal(bt_core_worker_get(w->core, i, &info), BT_OK);
        assert_int_equal(
            info.prefill_requests + info.decode_requests + info.transfers, 0);
        assert_int_equal(info.prefill_tokens + info.decode_tokens, 0);
    }
}

/* Choices of its own: the world's are the same with and without. */
static void explain(const struct world *w, struct bt_rng *rng)
{
    struct bt_place_candidate table[8];
    struct bt_placement placement;
    int64_t ahead_ns = (int64_t)bt_rng_below(rng, 3000) * MS;

    (void)bt_core_explain(
        w->core, w->now_ns + ahead_ns, (uint32_t)bt_rng_below(rng, 3),
        (uint32_t)bt_rng_below(rng, 3000), bt_rng_below(rng, 4) ? keys : NULL,
        bt_rng_below(rng, BLOCKS + 1), 50, &placement, table,
        bt_rng_below(rng, 9));
}

/* What any policy would do, with any request. */
static void ask(const struct world *w, struct bt_rng *rng)
{
    struct bt_ev_request request = {.model = (uint32_t)bt_rng_below(rng, 3),
                                    .prompt_tokens =
                                        (uint32_t)bt_rng_below(rng, 3000),
                                    .tokens_known = bt_rng_below(rng, 4) != 0,
                                    .keys = keys,
                                    .key_count = bt_rng_below(rng, BLOCKS + 1),
                                    .max_tokens = 50,
                                    .pd_allowed = bt_rng_below(rng, 10) != 0};
    const struct bt_policy *policy = bt_policy_at(bt_rng_below(rng, 30));
    struct bt_placement placement = {.chosen = {.d = WORKERS}};
    enum bt_status status;

    if (policy == NULL)
        policy = w->config.policy;
    status = bt_core_ask(w->core, policy, NULL, &request, &placement);
    assert_true(status == BT_OK || status == BT_NO_WORKER ||
                status == BT_INVALID);
    assert_true((status == BT_OK) == (placement.chosen.d < WORKERS));
    assert_true((status == BT_INVALID) == (request.model == 2));
}

static uint64_t run_world(uint64_t seed, uint64_t sums[BT_EV_DECODE_DONE + 1],
                          bool explains)
{
    struct world *w = malloc(sizeof(*w));
    struct bt_rng asking;
    uint64_t hash;

    assert_non_null(w);
    start(w, seed);
    bt_rng_seed(&asking, seed);
    for (uint32_t i = 0; i < EVENTS && w->asked < COOKIES - 1; i++) {
        random_event(w);
        if (explains && bt_rng_below(&asking, 2))
            explain(w, &asking);
        if (explains && bt_rng_below(&asking, 2))
            ask(w, &asking);
    }
    run_dry(w);
    total_events += w->events;
    for (int i = 0; i <= BT_EV_DECODE_DONE; i++)
        sums[i] += w->stepped[i];
    hash = w->hash;
    free(w->topology_memory);
    free(w->memory);
    free(w->book);
    free(w);
    return hash;
}

static void test_random_worlds(void **state)
{
    uint64_t sums[BT_EV_DECODE_DONE + 1] = {0};
    uint64_t first = only_seed != 0 ? only_seed : 1;
    uint64_t last = only_seed != 0 ? only_seed : SEEDS;

    (void)state;
    for (uint64_t seed = first; seed <= last; seed++) {
        printf("core_random: seed %llu\n", (unsigned long long)seed);
        fflush(stdout);
        (void)run_world(seed, sums, false);
    }
    printf(
        "core_random: %llu events; %llu held, %llu moved, %llu fetched, "
        "%llu local, %llu refused, %llu with flows, %llu prefetched (%llu "
        "used), %llu guessed, %llu discounted, %llu to a rank\n",
        (unsigned long long)total_events, (unsigned long long)reached.held,
        (unsigned long long)reached.moved, (unsigned long long)reached.fetched,
        (unsigned long long)reached.local, (unsigned long long)reached.refused,
        (unsigned long long)reached.flows, (unsigned long long)reached.ahead,
        (unsigned long long)reached.ahead_used,
        (unsigned long long)reached.guessed,
        (unsigned long long)reached.discounted,
        (unsigned long long)reached.ranked);
    if (only_seed == 0) {
        assert_true(total_events >= 200000);
        assert_true(sums[BT_EV_REQUEST] > 1000);
        assert_true(sums[BT_EV_DECODE_DONE] > 1000);
        assert_true(sums[BT_EV_LEG_FAILED] > 1000);
        assert_true(reached.held > 1000 && reached.moved > 100);
        assert_true(reached.fetched > 1000 && reached.local > 1000);
        assert_true(reached.refused > 100 && reached.flows > 1000);
        assert_true(reached.ahead > 100 && reached.ahead_used > 10);
        assert_true(reached.guessed > 1000 && reached.discounted > 100);
        assert_true(reached.ranked > 100);
    }
}

static void test_same_seed_same_effects(void **state)
{
    uint64_t sums[BT_EV_DECODE_DONE + 1] = {0};
    uint64_t first = only_seed != 0 ? only_seed : 1;

    (void)state;
    for (uint64_t seed = first; seed < first + 4; seed++) {
        uint64_t hash = run_world(seed, sums, false);

        printf("core_random: seed %llu hash %016llx\n",
               (unsigned long long)seed, (unsigned long long)hash);
        assert_true(hash == run_world(seed, sums, false));
    }
    assert_true(run_world(first, sums, false) !=
                run_world(first + 1, sums, false));
}

static void test_explain_leaves_no_trace(void **state)
{
    uint64_t sums[BT_EV_DECODE_DONE + 1] = {0};
    uint64_t first = only_seed != 0 ? only_seed : 1;

    (void)state;
    for (uint64_t seed = first; seed < first + 8; seed++) {
        printf("core_random: seed %llu\n", (unsigned long long)seed);
        assert_true(run_world(seed, sums, false) ==
                    run_world(seed, sums, true));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_worlds),
        cmocka_unit_test(test_same_seed_same_effects),
        cmocka_unit_test(test_explain_leaves_no_trace),
    };

    for (uint32_t i = 0; i < BLOCKS * 16; i++)
        prompt[i] = i;
    (void)bt_block_keys(prompt, BLOCKS * 16, 16, BT_NS_PLAIN, keys, BLOCKS);
    if (argc > 1)
        only_seed = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("core_random", tests, NULL, NULL);
}
