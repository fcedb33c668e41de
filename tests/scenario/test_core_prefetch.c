/* A prefix ahead of a held request: when one is sent, what stays booked for it,
 * and every way it may end. The policy of these tests answers as told. */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define EXPECT(call, text) assert_string_equal(call, text)
#define MS                 1000000LL
#define MANY               24u

static struct bt_place_candidate told;
static bool holds;   /* while it may */
static bool refuses; /* likewise */

static enum bt_status place_told(struct bt_policy_state *state,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out)
{
    const struct bt_place_candidate none = {.p = BT_PLACE_NONE,
                                            .d = BT_PLACE_NONE};

    (void)state;
    if (view->may_hold && refuses)
        return BT_OVERLOADED;
    out->chosen = told;
    if (view->may_hold && holds)
        return BT_AGAIN;
    out->second = out->baseline = none;
    out->considered = 1;
    out->reason = BT_REASON_JOINT;
    return BT_OK;
}

static const struct bt_policy as_told = {
    .name = "as_told", .summary = "for tests", .place = place_told};

static struct bt_topology *topology_make(void **memory_out, uint32_t workers)
{
    struct bt_topology_node nodes[MANY + 2];
    struct bt_topology_worker places[MANY + 2];
    struct bt_topology_spec spec = {.nodes = nodes,
                                    .node_count = workers,
                                    .workers = places,
                                    .worker_count = workers};
    struct bt_topology *topology;
    struct bt_arena arena;
    size_t bytes;

    for (uint32_t i = 0; i < workers; i++) {
        nodes[i] = (struct bt_topology_node){.name = "node",
                                             .rack = BT_LINK_NONE,
                                             .rails = 1,
                                             .rail_bytes_per_s = 1000000000};
        places[i] = (struct bt_topology_worker){.node = i};
    }
    bytes = bt_topology_bytes(&spec);
    *memory_out = calloc(1, bytes);
    assert_non_null(*memory_out);
    bt_arena_init(&arena, *memory_out, bytes);
    topology = bt_topology_init(&arena, &spec);
    assert_non_null(topology);
    return topology;
}

struct bed {
    struct world w;
    const struct bt_topology *topology;
    void *memory;
};

static uint32_t flows_into(const struct bed *b, uint32_t worker)
{
    return bt_network_flows_on(bt_core_network(b->w.core),
                               bt_topology_nic_in(b->topology, worker));
}

/* Held, likely on 1, whose work takes 60 ms; 64 tokens lie on 0 and would be
 * there in 30 ms. Asked again once its patience of 10 ms is over, and then
 * every 250 ms. */
static void init(struct bed *b)
{
    told = (struct bt_place_candidate){.p = 1,
                                       .d = 2,
                                       .source = {.tokens = 64, .worker = 0},
                                       .terms = {.queue_ns = 60 * MS,
                                                 .fetch_ns = 30 * MS,
                                                 .prefill_ns = 4 * MS,
                                                 .fetch_bytes = 30000000,
                                                 .kv_bytes = 10000000,
                                                 .overlap_p = 64}};
    holds = true;
    refuses = false;
    world_init(&b->w);
    b->topology = topology_make(&b->memory, 4);
    b->w.config.topology = b->topology;
    b->w.config.policy = &as_told;
    b->w.config.hold = (struct bt_core_hold_config){.enabled = true,
                                                    .lead_ns = 20 * MS,
                                                    .patience_ns = 10 * MS,
                                                    .ask_max = 8,
                                                    .prefetch = true};
    b->w.workers[1].fetch_ok = b->w.workers[2].fetch_ok = true;
}

static void fini(struct bed *b)
{
    assert_true(bt_core_is_idle(b->w.core));
    world_fini(&b->w);
    free(b->memory);
}

static void expect_counts(const struct bed *b, uint64_t sent, uint64_t used,
                          uint64_t wasted)
{
    const struct bt_core_counters *c = bt_core_counters_get(b->w.core);

    assert_int_equal(c->prefetches, sent);
    assert_int_equal(c->prefetches_used, used);
    assert_int_equal(c->prefetches_wasted, wasted);
}

/* The leg finds it on the way: it names the source, and the one flow is its
 * fetch, which ends with its prefill. */
static void test_leg_joins_what_is_on_the_way(void **state)
{
    struct bed b;

    (void)state;
    init(&b);
    world_start(&b.w);
    EXPECT(world_request(&b.w, 1), "A1 W1@1<0:64");
    assert_int_equal(flows_into(&b, 1), 1);
    assert_int_equal(world_info(&b.w, 1).prefill_requests, 0);
    expect_counts(&b, 1, 0, 0);
    holds = false;
    told.source.tokens = 0; /* it would be computed */
    told.terms.overlap_p = 0;
    EXPECT(world_tick(&b.w, 10), "P1#1@1<0:64");
    assert_int_equal(flows_into(&b, 1), 1);
    expect_counts(&b, 1, 1, 0);
    EXPECT(world_prefilled(&b.w, 1, 1, true), "D1#2@2+kv");
    assert_int_equal(flows_into(&b, 1), 0);
    EXPECT(world_done(&b.w, 1, 2), "F1:ok/200");
    assert_true(b.w.decisions[1].prefetched);
    fini(&b);
}

/* Over by then: nothing is booked or named any more. Once per request. */
static void test_leg_after_it(void **state)
{
    struct bed b;

    (void)state;
    init(&b);
    world_start(&b.w);
    EXPECT(world_request(&b.w, 1), "A1 W1@1<0:64");
    EXPECT(world_tick(&b.w, 10), "");
    EXPECT(world_tick(&b.w, 250), "");
    holds = false;
    told.source.tokens = 0;
    EXPECT(world_tick(&b.w, 250), "P1#1@1");
    assert_int_equal(flows_into(&b, 1), 0);
    expect_counts(&b, 1, 1, 0);
    EXPECT(world_gone(&b.w, 1), "X1#1@1 F1:cancelled/499");
    fini(&b);
}

static void test_leg_goes_elsewhere(void **state)
{
    struct bed b;

    (void)state;
    init(&b);
    world_start(&b.w);
    EXPECT(world_request(&b.w, 1), "A1 W1@1<0:64");
    holds = false;
    told.p = 0;
    told.source.tokens = 0;
    EXPECT(world_tick(&b.w, 10), "P1#1@0");
    assert_int_equal(flows_into(&b, 1), 0);
    expect_counts(&b, 1, 0, 1);
    EXPECT(world_gone(&b.w, 1), "X1#1@0 F1:cancelled/499");
    fini(&b);
}

/* Another process has the worker's place: what was sent is gone. The leg
 * fetches as the policy says. */
static void test_worker_restarts(void **state)
{
    struct bed b;

    (void)state;
    init(&b);
    world_start(&b.w);
    EXPECT(world_request(&b.w, 1), "A1 W1@1<0:64");
    holds = false;
    told.source.tokens = 48;
    EXPECT(world_ready(&b.w, 1, 2, WORLD_BLOCK), "");
    EXPECT(world_tick(&b.w, 10), "P1#1@1<0:48");
    expect_counts(&b, 1, 0, 1);
    assert_int_equal(flows_into(&b, 1), 1); /* the leg's own */
    EXPECT(world_gone(&b.w, 1), "X1#1@1 F1:cancelled/499");
    fini(&b);
}

static void test_local_prefill(void **state)
{
    struct bed b;

    (void)state;
    init(&b);
    b.w.workers[2].local_ok = true;
    told.p = told.d = 2;
    world_start(&b.w);
    EXPECT(world_request(&b.w, 1), "A1 W1@2<0:64");
    holds = false;
    EXPECT(world_tick(&b.w, 10), "D1#1@2<0:64");
    assert_int_equal(flows_into(&b, 2), 1);
    expect_counts(&b, 1, 1, 0);
    EXPECT(world_done(&b.w, 1, 1), "F1:ok/200");
    fini(&b);
}

/* The client leaves, the policy refuses, the wait is too long. */
static void test_ends_while_held(void **state)
{
    struct bed b;

    (void)state;
    init(&b);
    world_start(&b.w);
    EXPECT(world_request(&b.w, 1), "A1 W1@1<0:64");
    EXPECT(world_gone(&b.w, 1), "F1:cancelled/499");
    expect_counts(&b, 1, 0, 1);
    assert_true(bt_core_is_idle(b.w.core));
    EXPECT(world_request(&b.w, 2), "A2 W2@1<0:64");
    refuses = true;
    EXPECT(world_tick(&b.w, 10), "F2:shed/429");
    expect_counts(&b, 2, 0, 2);
    assert_true(bt_core_is_idle(b.w.core));
    refuses = false;
    EXPECT(world_request(&b.w, 3), "A3 W3@1<0:64");
    EXPECT(world_tick(&b.w, 5000), "F3:deadline/503");
    expect_counts(&b, 3, 0, 3);
    fini(&b);
}

/* One that finds no place in the queue sends nothing ahead. */
static void test_queue_is_full(void **state)
{
    struct bt_ev_request ask = world_ask(2);
    struct bed b;

    (void)state;
    init(&b);
    b.w.config.queue_max = 1;
    world_start(&b.w);
    told.source.tokens = 0;
    EXPECT(world_request(&b.w, 1), "A1");
    told.source.tokens = 64;
    ask.priority = 1;
    EXPECT(world_send(&b.w, &ask), "A2 F2:shed/429");
    EXPECT(world_gone(&b.w, 1), "F1:cancelled/499");
    expect_counts(&b, 0, 0, 0);
    fini(&b);
}

/* ---- when none is sent ---- */

enum against {
    SWITCHED_OFF,
    NOT_UNDERSTOOD, /* by the worker */
    LEAD_HIDES_IT,
    BUSY_FOR_TOO_SHORT,
    NO_SOURCE,
    OWN_TIER,
    NO_BYTES,
    WORKER_DRAINS,
    AGAINST_COUNT
};

static void turn_against(struct bed *b, enum against what)
{
    switch (what) {
    case SWITCHED_OFF:
        b->w.config.hold.prefetch = false;
        break;
    case NOT_UNDERSTOOD:
        b->w.workers[1].fetch_ok = false;
        break;
    case LEAD_HIDES_IT:
        told.terms.fetch_ns = 20 * MS;
        break;
    case BUSY_FOR_TOO_SHORT: /* 50 - 20 is not more than 30 */
        told.terms.queue_ns = 50 * MS;
        break;
    case NO_SOURCE:
        told.source.tokens = 0;
        break;
    case OWN_TIER:
        told.source.worker = 1;
        told.source.tier = BT_TIER_HOST;
        break;
    case NO_BYTES:
        told.terms.fetch_bytes = 0;
        break;
    case WORKER_DRAINS:
    case AGAINST_COUNT:
        break;
    }
}

static void test_when_none_is_sent(void **state)
{
    (void)state;
    for (int what = 0; what < AGAINST_COUNT; what++) {
        struct bed b;

        init(&b);
        turn_against(&b, (enum against)what);
        world_start(&b.w);
        if (what == WORKER_DRAINS)
            EXPECT(world_worker(&b.w, 1, BT_WORKER_DRAINING), "");
        EXPECT(world_request(&b.w, 1), "A1");
        expect_counts(&b, 0, 0, 0);
        EXPECT(world_gone(&b.w, 1), "F1:cancelled/499");
        assert_false(b.w.decisions[1].prefetched);
        fini(&b);
    }
}

/* Only for the first in order: the second may lose the worker to it. */
static void test_only_for_the_first(void **state)
{
    struct bt_ev_request ask = world_ask(3);
    struct bed b;

    (void)state;
    init(&b);
    world_start(&b.w);
    told.source.tokens = 0;
    EXPECT(world_request(&b.w, 1), "A1");
    told.source.tokens = 64;
    EXPECT(world_request(&b.w, 2), "A2");
    ask.priority = 1;
    EXPECT(world_send(&b.w, &ask), "A3 W3@1<0:64");
    for (uint64_t i = 1; i <= 3; i++)
        (void)world_gone(&b.w, i);
    expect_counts(&b, 1, 0, 1);
    fini(&b);
}

/* One to each worker until it is there. */
static void test_one_per_worker(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct bed b;

    (void)state;
    init(&b);
    b.w.config.hold.patience_ns = 0; /* nobody is asked again */
    world_start(&b.w);
    EXPECT(world_send(&b.w, &ask), "A1 W1@1<0:64");
    ask.cookie = 2;
    ask.priority = 2;
    b.w.now_ms += 29;
    EXPECT(world_send(&b.w, &ask), "A2");
    ask.cookie = 3;
    ask.priority = 3;
    b.w.now_ms += 1;
    EXPECT(world_send(&b.w, &ask), "A3 W3@1<0:64");
    for (uint64_t i = 1; i <= 3; i++)
        (void)world_gone(&b.w, i);
    expect_counts(&b, 2, 0, 2);
    fini(&b);
}

/* 16 at once in the whole fleet, and again as soon as one has ended. */
static void test_limit_of_the_fleet(void **state)
{
    static struct bt_core_worker_config workers[MANY + 2];
    static struct bt_core_link_config links[(MANY + 2) * (MANY + 2)];
    struct bed b;

    (void)state;
    init(&b);
    free(b.memory);
    b.topology = topology_make(&b.memory, MANY + 2);
    b.w.config.topology = b.topology;
    for (uint32_t i = 0; i < MANY + 2; i++) {
        workers[i] = b.w.workers[i == 0 ? 0 : i <= MANY ? 1 : 2];
        for (uint32_t k = 0; k < MANY + 2; k++)
            links[i * (MANY + 2) + k] = b.w.links[0];
    }
    b.w.config.workers = workers;
    b.w.config.links = links;
    b.w.config.worker_count = MANY + 2;
    world_start(&b.w);
    told.d = MANY + 1;
    for (uint32_t i = 1; i <= MANY; i++) {
        struct bt_ev_request ask = world_ask(i);

        ask.priority = (int32_t)i;
        told.p = i;
        (void)world_send(&b.w, &ask);
        expect_counts(&b, i < 16 ? i : 16, 0, 0);
    }
    EXPECT(world_gone(&b.w, 7), "F7:cancelled/499");
    told.p = 7;
    {
        struct bt_ev_request ask = world_ask(MANY + 1);

        ask.priority = MANY + 1;
        EXPECT(world_send(&b.w, &ask), "A25 W25@7<0:64");
    }
    for (uint64_t i = 1; i <= MANY + 1; i++)
        if (i != 7)
            (void)world_gone(&b.w, i);
    expect_counts(&b, 17, 0, 17);
    fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leg_joins_what_is_on_the_way),
        cmocka_unit_test(test_leg_after_it),
        cmocka_unit_test(test_leg_goes_elsewhere),
        cmocka_unit_test(test_worker_restarts),
        cmocka_unit_test(test_local_prefill),
        cmocka_unit_test(test_ends_while_held),
        cmocka_unit_test(test_queue_is_full),
        cmocka_unit_test(test_when_none_is_sent),
        cmocka_unit_test(test_only_for_the_first),
        cmocka_unit_test(test_one_per_worker),
        cmocka_unit_test(test_limit_of_the_fleet),
    };

    return cmocka_run_group_tests_name("core_prefetch", tests, NULL, NULL);
}
