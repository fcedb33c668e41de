/* What a policy may use beside a pair: sources, local prefill, a second choice
 * of d at the hand-off, shared links, knobs, memory; and the what-if of another
 * policy. The policies here do what a test tells them. */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXPECT(call, text) assert_string_equal(call, text)
#define MS                 1000000LL
#define GB                 1000000000ULL

/* ---- a policy that is told its answer ---- */

static struct bt_place_candidate told;
static uint32_t told_handoff; /* d */
static struct bt_place_view seen;
static struct bt_place_worker seen_workers[WORLD_WORKERS];
static double seen_knob;
static uint32_t placed_calls;

static void look(const struct bt_place_view *view)
{
    seen = *view;
    memcpy(seen_workers, view->workers,
           view->worker_count * sizeof(seen_workers[0]));
}

static enum bt_status place_told(struct bt_policy_state *state,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out)
{
    const struct bt_place_candidate none = {.p = BT_PLACE_NONE,
                                            .d = BT_PLACE_NONE};

    look(view);
    seen_knob = state->knobs[1];
    *out = (struct bt_placement){.chosen = told,
                                 .second = none,
                                 .baseline = none,
                                 .considered = 1,
                                 .reason = BT_REASON_JOINT};
    if (told.source.tokens == 0 && told.terms.total_ns == 0)
        bt_place_terms(view, told.p, told.d, &out->chosen.terms);
    return BT_OK;
}

static enum bt_status handoff_told(struct bt_policy_state *state,
                                   const struct bt_place_view *view, uint32_t p,
                                   struct bt_placement *out)
{
    (void)state;
    look(view);
    assert_true(view->workers[p].prefill_ok);
    memset(out, 0, sizeof(*out));
    out->chosen.p = p;
    out->chosen.d = told_handoff;
    bt_place_terms(view, p, told_handoff, &out->chosen.terms);
    out->reason = BT_REASON_HANDOFF;
    return BT_OK;
}

/* Memory: how often it was told of a booking on each worker. */
static void note_placed(struct bt_policy_state *state,
                        const struct bt_place_view *view,
                        const struct bt_placement *placement)
{
    uint32_t *counts = state->memory;

    assert_true(placement->chosen.d < view->worker_count);
    counts[placement->chosen.d]++;
    placed_calls = counts[placement->chosen.d];
}

static size_t memory_of(const struct bt_policy_limits *limits)
{
    return limits->workers_max * sizeof(uint32_t);
}

static const struct bt_policy_knob knobs[] = {
    {.name = "first", .value = 1, .max = 10, .text = "for tests"},
    {.name = "second", .value = 2, .max = 10, .text = "for tests"},
    {0}};

static const struct bt_policy as_told = {.name = "as_told",
                                         .summary = "for tests",
                                         .place = place_told,
                                         .handoff = handoff_told,
                                         .placed = note_placed,
                                         .memory = memory_of,
                                         .knobs = knobs};

/* ---- shared links: every worker on a node of its own, NICs of 1 GB/s ---- */

struct fabric {
    struct bt_topology_node nodes[WORLD_WORKERS];
    struct bt_topology_worker workers[WORLD_WORKERS];
    struct bt_topology_spec spec;
    void *memory;
    struct bt_topology *topology;
};

static void fabric_make(struct fabric *f, uint32_t workers)
{
    struct bt_arena arena;
    size_t bytes;

    memset(f, 0, sizeof(*f));
    for (uint32_t i = 0; i < workers; i++) {
        f->nodes[i] = (struct bt_topology_node){.name = "node",
                                                .rack = BT_LINK_NONE,
                                                .rails = 1,
                                                .rail_bytes_per_s = GB};
        f->workers[i] = (struct bt_topology_worker){.node = i};
    }
    f->spec = (struct bt_topology_spec){.nodes = f->nodes,
                                        .node_count = workers,
                                        .workers = f->workers,
                                        .worker_count = workers};
    bytes = bt_topology_bytes(&f->spec);
    f->memory = calloc(1, bytes);
    assert_non_null(f->memory);
    bt_arena_init(&arena, f->memory, bytes);
    f->topology = bt_topology_init(&arena, &f->spec);
    assert_non_null(f->topology);
}

static uint32_t flows_into(const struct world *w, const struct fabric *f,
                           uint32_t worker)
{
    return bt_network_flows_on(bt_core_network(w->core),
                               bt_topology_nic_in(f->topology, worker));
}

static uint32_t flows_out_of(const struct world *w, const struct fabric *f,
                             uint32_t worker)
{
    return bt_network_flows_on(bt_core_network(w->core),
                               bt_topology_nic_out(f->topology, worker));
}

static void init(struct world *w, uint32_t p, uint32_t d)
{
    told = (struct bt_place_candidate){.p = p, .d = d};
    told_handoff = d;
    placed_calls = 0;
    world_init(w);
    w->config.policy = &as_told;
}

/* ---- fetch ---- */

static void test_fetch_is_sent_and_booked(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w, 1, 2);
    fabric_make(&f, 4);
    w.config.topology = f.topology;
    w.workers[1].fetch_ok = true;
    told.source = (struct bt_place_source){.tokens = 64, .worker = 0};
    told.terms = (struct bt_place_terms){.fetch_ns = 6 * MS,
                                         .prefill_ns = 5 * MS,
                                         .fetch_bytes = 6400000,
                                         .kv_bytes = 10000000,
                                         .overlap_p = 64};
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@1<0:64");
    assert_true(seen_workers[1].fetch_ok);
    assert_false(seen_workers[0].fetch_ok);
    assert_ptr_equal(seen.network, bt_core_network(w.core));
    /* 36 of 100 tokens are left to compute */
    assert_int_equal(world_info(&w, 1).prefill_tokens, 36);
    assert_int_equal(flows_out_of(&w, &f, 0), 1);
    assert_int_equal(flows_into(&w, &f, 1), 1);
    assert_int_equal(flows_into(&w, &f, 2), 1); /* planned */
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    assert_int_equal(flows_out_of(&w, &f, 0), 0);
    assert_int_equal(flows_into(&w, &f, 1), 0);
    assert_int_equal(flows_out_of(&w, &f, 1), 1);
    assert_int_equal(flows_into(&w, &f, 2), 1);
    EXPECT(world_first(&w, 1, 2), "");
    assert_true(bt_network_is_empty(bt_core_network(w.core)));
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_int_equal(w.decisions[1].placement.chosen.source.tokens, 64);
    assert_int_equal(w.decisions[1].placement.chosen.source.worker, 0);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
    free(f.memory);
}

/* From its own tier: told to the engine, nothing crosses the network. */
static void test_own_tier_is_no_flow(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w, 1, 2);
    fabric_make(&f, 4);
    w.config.topology = f.topology;
    told.source = (struct bt_place_source){
        .tokens = 64, .worker = 1, .tier = BT_TIER_HOST};
    told.terms = (struct bt_place_terms){.fetch_ns = 1 * MS, .overlap_p = 64};
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@1<1:64");
    assert_int_equal(flows_out_of(&w, &f, 1), 0);
    EXPECT(world_gone(&w, 1), "X1#1@1 F1:cancelled/499");
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
    free(f.memory);
}

/* Every way a request with all three flows may end leaves nothing behind. */
static void test_fetch_ends_with_its_request(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w, 1, 2);
    fabric_make(&f, 4);
    w.config.topology = f.topology;
    told.source = (struct bt_place_source){.tokens = 64, .worker = 0};
    told.terms = (struct bt_place_terms){
        .fetch_bytes = 6400000, .kv_bytes = 10000000, .overlap_p = 64};
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@1<0:64");
    EXPECT(world_gone(&w, 1), "X1#1@1 F1:cancelled/499");
    assert_true(bt_core_is_idle(w.core));
    EXPECT(world_request(&w, 2), "A2 P2#1@1<0:64");
    EXPECT(world_worker(&w, 0, BT_WORKER_UNHEALTHY), ""); /* the source */
    EXPECT(world_http(&w, 2, 1, BT_LEG_PREFILL, 400), "F2:client_error/400");
    assert_true(bt_core_is_idle(w.core));
    EXPECT(world_request(&w, 3), "A3 P3#1@1<0:64");
    EXPECT(world_tick(&w, 20000), "X3#1@1 D3#2@2");
    assert_true(bt_network_is_empty(bt_core_network(w.core)));
    EXPECT(world_done(&w, 3, 2), "F3:ok/200");
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
    free(f.memory);
}

/* ---- tiers ---- */

static void store(struct world *w, uint32_t worker, enum bt_tier tier,
                  const uint64_t *keys, size_t count)
{
    struct bt_kv_store s = {.own_keys = keys,
                            .hashes = keys,
                            .hash_count = count,
                            .tier = tier,
                            .full_attention = 1};
    struct bt_event e = {.type = BT_EV_KV_STORE,
                         .u.kv_store = {.worker = worker, .store = &s}};

    EXPECT(world_step(w, &e), "");
}

/* Worker 0 has tiers with a known cost, worker 1 has not: there a block counts
 * wherever it lies. */
static void test_tiers_in_the_view(void **state)
{
    static const uint64_t keys[] = {11, 12, 13, 14, 15, 16};
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    init(&w, 1, 2);
    w.workers[0].host =
        (struct bt_tier_model){.rate_bytes_per_s = GB, .setup_ns = 7};
    w.workers[0].chunk_tokens = 512;
    w.workers[0].batch_tokens = 2048;
    world_start(&w);
    for (uint32_t i = 0; i < 2; i++) {
        store(&w, i, BT_TIER_DEVICE, keys, 1);
        store(&w, i, BT_TIER_HOST, keys + 1, 1);
        store(&w, i, BT_TIER_DEVICE, keys + 2, 1);
        store(&w, i, BT_TIER_DISK, keys + 3, 2);
    }
    ask.keys = keys;
    ask.key_count = 6;
    ask.body_bytes = 1234;
    EXPECT(world_send(&w, &ask), "A1 P1#1@1");
    assert_int_equal(seen_workers[0].overlap_tokens, 16);
    assert_int_equal(seen_workers[0].host_tokens, 48);
    assert_int_equal(seen_workers[0].disk_tokens, 80);
    assert_int_equal(seen_workers[0].host.setup_ns, 7);
    assert_int_equal(seen_workers[0].chunk_tokens, 512);
    assert_int_equal(seen_workers[0].batch_tokens, 2048);
    assert_int_equal(seen_workers[1].overlap_tokens, 80);
    assert_int_equal(seen_workers[1].host_tokens, 0);
    assert_int_equal(seen.key_count, 6);
    assert_ptr_equal(seen.keys, keys);
    assert_int_equal(seen.body_bytes, 1234);
    assert_null(seen.network);
    world_fini(&w);
}

/* ---- local prefill ---- */

static void test_local_prefill_beside_a_pool(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    init(&w, 3, 3);
    w.workers[3].local_ok = true;
    world_start(&w);
    ask.prompt_tokens = 1000;
    EXPECT(world_send(&w, &ask), "A1 D1#1@3");
    assert_true(seen_workers[3].local_ok);
    assert_int_equal(world_info(&w, 3).prefill_requests, 1);
    assert_int_equal(world_info(&w, 3).prefill_tokens, 1000);
    assert_int_equal(world_info(&w, 3).decode_requests, 1);
    assert_int_equal(world_info(&w, 3).transfers, 0);
    EXPECT(world_first(&w, 1, 1), "");
    assert_int_equal(world_info(&w, 3).prefill_requests, 0);
    EXPECT(world_done(&w, 1, 1), "F1:ok/200");
    assert_int_equal(w.decisions[1].reason, BT_REASON_LOCAL);
    assert_int_equal(w.decisions[1].placement.chosen.p, 3);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

/* ---- second choice of d ---- */

static void test_handoff_moves_to_another_d(void **state)
{
    struct world w;
    struct fabric f;
    const struct bt_decision *d = &w.decisions[1];

    (void)state;
    init(&w, 0, 2);
    fabric_make(&f, 4);
    w.config.topology = f.topology;
    w.models[0].mode.late_decode = true;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    assert_int_equal(world_info(&w, 2).decode_requests, 1);
    w.now_ms += 30;
    told_handoff = 3;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@3+kv");
    /* its own bookings are not in the view, and are on the new d now */
    assert_int_equal(seen_workers[2].decode_requests, 0);
    assert_int_equal(world_info(&w, 2).decode_requests, 0);
    assert_int_equal(world_info(&w, 3).decode_requests, 1);
    assert_int_equal(world_info(&w, 0).prefill_requests, 0);
    assert_int_equal(flows_into(&w, &f, 2), 0);
    assert_int_equal(flows_into(&w, &f, 3), 1);
    EXPECT(world_first(&w, 1, 2), "");
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_true(d->handoff_moved);
    assert_int_equal(d->placement.chosen.d, 3);
    assert_int_equal(d->placement.chosen.p, 0);
    assert_int_equal(d->placements, 1);
    assert_int_equal(d->reason, BT_REASON_JOINT);
    /* prefill 11 ms; 7 blocks of 16 tokens of 100 kB at 1 GB/s: 11.2 ms; the
     * slot was free 30 ms after the placement; step 10 ms */
    assert_int_equal(d->placement.chosen.terms.arrival_ns, 22200000);
    assert_int_equal(d->placement.chosen.terms.slot_ns, 30 * MS);
    assert_int_equal(d->placement.chosen.terms.total_ns, 40 * MS);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
    free(f.memory);
}

static void test_handoff_stays(void **state)
{
    struct world w;

    (void)state;
    init(&w, 0, 2);
    w.models[0].mode.late_decode = true;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    assert_int_equal(world_info(&w, 2).decode_requests, 1);
    assert_int_equal(world_info(&w, 2).transfers, 1);
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_false(w.decisions[1].handoff_moved);
    /* the engine names d before the prefill: nobody is asked */
    told_handoff = 3;
    world_fini(&w);
    init(&w, 0, 2);
    told_handoff = 3;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    world_fini(&w);
}

/* The first d held five of seven blocks, the other one holds none: all 11.2 MB
 * travel. One that comes beside them later finds them on the link. */
static void test_handoff_moves_all_bytes(void **state)
{
    static const uint64_t keys[] = {11, 12, 13, 14, 15};
    struct bt_ev_request ask = world_ask(1);
    struct world w;
    struct fabric f;

    (void)state;
    init(&w, 0, 2);
    fabric_make(&f, 4);
    w.config.topology = f.topology;
    w.models[0].mode.late_decode = true;
    world_start(&w);
    store(&w, 2, BT_TIER_DEVICE, keys, 5);
    ask.keys = keys;
    ask.key_count = 5;
    EXPECT(world_send(&w, &ask), "A1 P1#1@0");
    told_handoff = 3;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@3+kv");
    assert_int_equal(bt_network_transfer_ns(bt_core_network(w.core),
                                            w.now_ms * MS, w.now_ms * MS, 1, 3,
                                            20000000, 0),
                     31200000);
    world_fini(&w);
    free(f.memory);
}

/* A d that may not be chosen is not taken, nor p itself. */
static void test_handoff_answers_out_of_order(void **state)
{
    struct world w;

    (void)state;
    init(&w, 0, 2);
    w.workers[0].roles = BT_ROLE_BOTH;
    w.models[0].mode.late_decode = true;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_worker(&w, 3, BT_WORKER_DRAINING), "");
    told_handoff = 3;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    told_handoff = 0;
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@2+kv");
    world_fini(&w);
}

/* ---- knobs, memory, telemetry, prices ---- */

static void test_knobs_reach_the_policy(void **state)
{
    struct bt_event stats = {
        .type = BT_EV_WORKER_STATS,
        .u.worker_stats = {
            .worker = 2, .running = 5, .waiting = 6, .kv_usage = 0.75}};
    struct world w;

    (void)state;
    init(&w, 0, 2);
    w.config.prices.queue = 0.25;
    world_start(&w);
    EXPECT(world_step(&w, &stats), "");
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    assert_true(seen_knob == 2); /* default */
    assert_true(seen.prices->queue == 0.25);
    assert_int_equal(seen_workers[2].seen_running, 5);
    assert_int_equal(seen_workers[2].seen_waiting, 6);
    assert_true(seen_workers[2].seen_kv_usage == 0.75);
    assert_int_equal(seen_workers[2].seen_at_ns, WORLD_START_MS * MS);
    assert_int_equal(seen_workers[3].seen_at_ns, 0);
    world_fini(&w);
    init(&w, 0, 2);
    w.config.knobs_set = true;
    w.config.knobs[1] = 7.5;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    assert_true(seen_knob == 7.5);
    assert_int_equal(placed_calls, 1);
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    assert_int_equal(placed_calls, 2); /* memory lasts */
    world_fini(&w);
}

/* ---- what another policy would do ---- */

static void test_ask_another_policy(void **state)
{
    const double other_knobs[BT_POLICY_KNOBS_MAX] = {0, 4};
    struct bt_ev_request ask = world_ask(9);
    struct bt_placement placement;
    struct world w;

    (void)state;
    init(&w, 0, 2);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    told = (struct bt_place_candidate){.p = 1, .d = 3};
    assert_int_equal(
        bt_core_ask(w.core, &as_told, other_knobs, &ask, &placement), BT_OK);
    assert_true(seen_knob == 4);
    assert_false(seen.may_hold);
    assert_int_equal(placement.chosen.p, 1);
    assert_int_equal(placement.chosen.d, 3);
    assert_int_equal(placement.chosen.terms.prefill_ns, 11 * MS);
    assert_int_equal(bt_core_ask(w.core, &as_told, NULL, &ask, &placement),
                     BT_OK);
    assert_true(seen_knob == 2);
    assert_int_equal(world_info(&w, 3).decode_requests, 0);
    assert_int_equal(placed_calls, 1);
    ask.pd_allowed = false; /* no pair for this one: d alone */
    assert_int_equal(bt_core_ask(w.core, &as_told, NULL, &ask, &placement),
                     BT_OK);
    assert_int_equal(placement.chosen.p, BT_PLACE_NONE);
    assert_int_equal(placement.chosen.d, 2); /* alike, the lowest slot */
    ask.model = 5;
    assert_int_equal(bt_core_ask(w.core, &as_told, NULL, &ask, &placement),
                     BT_INVALID);
    ask.model = 0;
    EXPECT(world_worker(&w, 2, BT_WORKER_DRAINING), "");
    EXPECT(world_worker(&w, 3, BT_WORKER_DRAINING), "");
    assert_int_equal(bt_core_ask(w.core, &as_told, NULL, &ask, &placement),
                     BT_NO_WORKER);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fetch_is_sent_and_booked),
        cmocka_unit_test(test_own_tier_is_no_flow),
        cmocka_unit_test(test_fetch_ends_with_its_request),
        cmocka_unit_test(test_tiers_in_the_view),
        cmocka_unit_test(test_local_prefill_beside_a_pool),
        cmocka_unit_test(test_handoff_moves_to_another_d),
        cmocka_unit_test(test_handoff_stays),
        cmocka_unit_test(test_handoff_moves_all_bytes),
        cmocka_unit_test(test_handoff_answers_out_of_order),
        cmocka_unit_test(test_knobs_reach_the_policy),
        cmocka_unit_test(test_ask_another_policy),
    };

    return cmocka_run_group_tests_name("core_parts", tests, NULL, NULL);
}
