/* Requests that the policy holds back: order, veto, patience, fairness,
 * refusal, and when the policy is asked again.
 *
 * The policy of these tests holds while the worker it wants has more work than
 * the lead: it wants the one that would have the prefill done first, whatever
 * its role; patience takes the veto away, not the lead. */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define EXPECT(call, text) assert_string_equal(call, text)
#define MS                 1000000LL

static uint32_t
    refuse_waiting;    /* refuse with so many others waiting; 0 never */
static uint32_t asked; /* of the policy, all requests */

static int64_t work_before(const struct bt_place_view *view, uint32_t p)
{
    return view->workers[p].prefill_free_ns - view->now_ns;
}

static uint32_t pick_d(const struct bt_place_view *view)
{
    uint32_t best = BT_PLACE_NONE;

    for (uint32_t d = 0; d < view->worker_count; d++) {
        if (view->workers[d].decode_ok &&
            (best == BT_PLACE_NONE || view->workers[d].decode_requests <
                                          view->workers[best].decode_requests))
            best = d;
    }
    return best;
}

/* Ends the prefill first; among those without work only, if free_only. */
static uint32_t pick_p(const struct bt_place_view *view, uint32_t d,
                       bool free_only)
{
    int64_t best_ns = BT_COST_INFINITE;
    uint32_t best = BT_PLACE_NONE;
    struct bt_place_terms terms;

    for (uint32_t p = 0; p < view->worker_count; p++) {
        if (!view->workers[p].prefill_ok ||
            (free_only && work_before(view, p) > view->lead_ns))
            continue;
        bt_place_terms(view, p, d, &terms);
        if (terms.queue_ns + terms.prefill_ns < best_ns) {
            best_ns = terms.queue_ns + terms.prefill_ns;
            best = p;
        }
    }
    return best;
}

static enum bt_status place_hold(struct bt_policy_state *state,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out)
{
    const struct bt_place_candidate none = {.p = BT_PLACE_NONE,
                                            .d = BT_PLACE_NONE};
    uint32_t d = pick_d(view), p;
    bool patient = view->waited_ns < view->patience_ns;

    (void)state;
    asked++;
    if (view->may_hold && refuse_waiting > 0 && view->waiting >= refuse_waiting)
        return BT_OVERLOADED;
    p = pick_p(view, d, view->may_hold && !patient);
    if (p == BT_PLACE_NONE)
        return view->may_hold ? BT_AGAIN : BT_NO_WORKER;
    if (view->may_hold && work_before(view, p) > view->lead_ns)
        return BT_AGAIN;
    *out = (struct bt_placement){.second = none,
                                 .baseline = none,
                                 .considered = 1,
                                 .reason = BT_REASON_JOINT};
    out->chosen = (struct bt_place_candidate){.p = p, .d = d};
    bt_place_terms(view, p, d, &out->chosen.terms);
    return BT_OK;
}

static const struct bt_policy in_slack_order = {.name = "hold_slack",
                                                .summary = "for tests",
                                                .place = place_hold,
                                                .order_rule = BT_ORDER_SLACK};
static const struct bt_policy in_order = {.name = "hold_fcfs",
                                          .summary = "for tests",
                                          .place = place_hold,
                                          .order_rule = BT_ORDER_FCFS};

/* Prefill of n tokens takes 1 + n / 10 ms. */
static void init(struct world *w, const struct bt_policy *policy)
{
    refuse_waiting = 0;
    asked = 0;
    world_init(w);
    w->config.policy = policy;
    w->config.hold = (struct bt_core_hold_config){
        .enabled = true, .patience_ns = 2000 * MS, .ask_max = 8};
    for (size_t i = 0; i < WORLD_WORKERS; i++)
        w->workers[i].decode_slots = 0;
}

static const char *send(struct world *w, uint64_t cookie, uint32_t tokens)
{
    struct bt_ev_request ask = world_ask(cookie);

    ask.prompt_tokens = tokens;
    return world_send(w, &ask);
}

static void only_one_prefill_worker(struct world *w)
{
    EXPECT(world_worker(w, 1, BT_WORKER_DRAINING), "");
}

static void test_shortest_first_in_slack_order(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_slack_order);
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 100), "A1 P1#1@0");
    EXPECT(send(&w, 2, 1000), "A2");
    EXPECT(send(&w, 3, 200), "A3");
    EXPECT(send(&w, 4, 400), "A4");
    assert_int_equal(bt_core_counters_get(w.core)->live[BT_REQUEST_QUEUED], 3);
    w.now_ms += 5;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv P3#1@0");
    EXPECT(world_prefilled(&w, 3, 1, true), "D3#2@3+kv P4#1@0");
    EXPECT(world_prefilled(&w, 4, 1, true), "D4#2@2+kv P2#1@0");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@3+kv");
    EXPECT(world_done(&w, 2, 2), "F2:ok/200");
    assert_true(w.decisions[2].asks >= 2);
    assert_int_equal(w.decisions[2].provisional.p, 0);
    assert_int_equal(w.decisions[2].placed_ns - w.decisions[2].received_ns,
                     5 * MS);
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_int_equal(w.decisions[1].asks, 1);
    assert_int_equal(w.decisions[1].provisional.d, BT_PLACE_NONE);
    world_fini(&w);
}

/* At 100 ms: 3 has 113 ms in all, needs 21 and has waited 100: late, behind
 * all that are not, though it is the shorter one. 2 has 353 ms. */
static void test_late_ones_step_back(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_slack_order);
    w.config.slo =
        (struct bt_core_slo_config){.ttft_base_ns = 50 * MS, .ttft_factor = 3};
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 2000), "A1 P1#1@0");
    EXPECT(send(&w, 2, 1000), "A2");
    EXPECT(send(&w, 3, 200), "A3");
    w.now_ms += 100;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv P2#1@0");
    EXPECT(world_gone(&w, 3), "F3:cancelled/499");
    assert_int_equal(w.decisions[3].ttft_slo_ns, 113 * MS);
    EXPECT(world_gone(&w, 2), "X2#1@0 F2:cancelled/499");
    assert_int_equal(w.decisions[2].ttft_slo_ns, 353 * MS);
    world_fini(&w);
}

/* Priority goes before everything else. */
static void test_priority(void **state)
{
    struct bt_ev_request ask = world_ask(3);
    struct world w;

    (void)state;
    init(&w, &in_slack_order);
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 100), "A1 P1#1@0");
    EXPECT(send(&w, 2, 100), "A2");
    ask.prompt_tokens = 4000;
    ask.priority = 1;
    EXPECT(world_send(&w, &ask), "A3");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv P3#1@0");
    world_fini(&w);
}

/* One who was asked and finds room has it; who comes later does not pass. */
static void test_newcomer_does_not_pass(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 100), "A1 P1#1@0");
    EXPECT(send(&w, 2, 1000), "A2");
    /* 11 ms are over by our own clock: nothing tells, but 2 goes first */
    w.now_ms += 12;
    EXPECT(send(&w, 3, 100), "P2#1@0 A3");
    world_fini(&w);
}

/* No event but time: the predicted end of the work is enough. */
static void test_lead_is_kept(void **state)
{
    struct bt_event stats = {.type = BT_EV_WORKER_STATS};
    struct world w;

    (void)state;
    init(&w, &in_order);
    w.config.hold.lead_ns = 4 * MS;
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 100), "A1 P1#1@0"); /* until 11 ms */
    EXPECT(send(&w, 2, 100), "A2");
    w.now_ms += 6;
    EXPECT(world_step(&w, &stats), "");
    assert_int_equal(asked, 3); /* 1, 2 and where 2 would go */
    w.now_ms += 1;
    EXPECT(world_step(&w, &stats), "P2#1@0");
    assert_int_equal(asked, 4);
    world_fini(&w);
}

/* Blocks of the prompt with the given keys on a worker. */
static void hold_blocks(struct world *w, uint32_t worker, const uint64_t *keys,
                        size_t count)
{
    struct bt_kv_store store = {.own_keys = keys,
                                .hashes = keys,
                                .hash_count = count,
                                .full_attention = 1};
    struct bt_event e = {.type = BT_EV_KV_STORE,
                         .u.kv_store = {.worker = worker, .store = &store}};

    EXPECT(world_step(w, &e), "");
    assert_int_equal(w->status, BT_OK);
}

static const uint64_t keys[60] = {
    1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45,
    46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60};

static const char *send_known(struct world *w, uint64_t cookie)
{
    struct bt_ev_request ask = world_ask(cookie);

    ask.prompt_tokens = 1000;
    ask.keys = keys;
    ask.key_count = 60;
    return world_send(w, &ask);
}

/* Request 2 has 960 of 1000 tokens on worker 0: 5 ms there after 21 ms of work,
 * 101 ms on worker 1, which is free. It waits for worker 0. */
static void test_veto_keeps_a_warm_worker(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    world_start(&w);
    hold_blocks(&w, 0, keys, 60);
    EXPECT(send(&w, 1, 200), "A1 P1#1@0");
    EXPECT(send_known(&w, 2), "A2");
    EXPECT(world_tick(&w, 1), "");
    EXPECT(send(&w, 3, 500), "A3 P3#1@1");
    EXPECT(world_tick(&w, 1), "");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv P2#1@0");
    EXPECT(world_gone(&w, 2), "X2#1@0 F2:cancelled/499");
    assert_int_equal(w.decisions[2].placement.chosen.terms.overlap_p, 960);
    assert_int_equal(w.decisions[2].provisional.p, 0);
    world_fini(&w);
}

static void test_patience_lifts_the_veto(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    w.config.hold.patience_ns = 50 * MS;
    world_start(&w);
    hold_blocks(&w, 0, keys, 60);
    EXPECT(send(&w, 1, 900), "A1 P1#1@0"); /* 91 ms */
    EXPECT(send_known(&w, 2), "A2");
    EXPECT(world_tick(&w, 49), "");
    EXPECT(world_tick(&w, 1), "P2#1@1");
    EXPECT(world_gone(&w, 2), "X2#1@1 F2:cancelled/499");
    assert_int_equal(w.decisions[2].provisional.p, 0);
    assert_int_equal(w.decisions[2].placement.chosen.p, 1);
    world_fini(&w);
}

/* With one question per drain a vetoed request is asked about once, and the
 * next time, whatever happens then, the one behind it. When its own worker gets
 * room it is asked at once. */
static void test_vetoed_does_not_block(void **state)
{
    struct bt_event stats = {.type = BT_EV_WORKER_STATS};
    struct world w;

    (void)state;
    init(&w, &in_order);
    w.config.hold.ask_max = 1;
    world_start(&w);
    hold_blocks(&w, 0, keys, 60);
    EXPECT(send(&w, 1, 900), "A1 P1#1@0");
    EXPECT(send(&w, 2, 900), "A2 P2#1@1");
    EXPECT(send_known(&w, 3), "A3");
    EXPECT(send(&w, 4, 900), "A4");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@3+kv");
    w.now_ms += 1;
    EXPECT(world_step(&w, &stats), "P4#1@1");
    w.now_ms += 1;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv P3#1@0");
    world_fini(&w);
}

static const char *send_of(struct world *w, uint64_t cookie, uint32_t tokens,
                           uint64_t tenant)
{
    struct bt_ev_request ask = world_ask(cookie);

    ask.prompt_tokens = tokens;
    ask.tenant = tenant;
    return world_send(w, &ask);
}

/* Keys in ms, tenant 7 with 11 each, tenant 8 with 21. fairness 0: 7 has all
 * three first. 2: after the first one 7 leads by 11, its next key is 33. */
static void serve_tenants(double fairness, const uint64_t order[4])
{
    struct world w;
    char expected[64];

    init(&w, &in_slack_order);
    w.config.hold.fairness = fairness;
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send_of(&w, 9, 100, 1), "A9 P9#1@0");
    EXPECT(send_of(&w, 1, 100, 7), "A1");
    EXPECT(send_of(&w, 2, 100, 7), "A2");
    EXPECT(send_of(&w, 3, 100, 7), "A3");
    EXPECT(send_of(&w, 4, 200, 8), "A4");
    EXPECT(world_gone(&w, 9), "X9#1@0 F9:cancelled/499 P1#1@0");
    for (int i = 0; i < 3; i++) {
        (void)snprintf(expected, sizeof(expected),
                       "X%u#1@0 F%u:cancelled/499 P%u#1@0",
                       (unsigned int)order[i], (unsigned int)order[i],
                       (unsigned int)order[i + 1]);
        EXPECT(world_gone(&w, order[i]), expected);
    }
    world_fini(&w);
}

static void test_fairness_between_tenants(void **state)
{
    (void)state;
    serve_tenants(0, (const uint64_t[]){1, 2, 3, 4});
    serve_tenants(2, (const uint64_t[]){1, 4, 2, 3});
}

static void test_refused_under_overload(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    world_start(&w);
    refuse_waiting = 2;
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 1000), "A1 P1#1@0");
    EXPECT(send(&w, 2, 1000), "A2");
    EXPECT(send(&w, 3, 1000), "A3");
    EXPECT(send(&w, 4, 1000), "A4 F4:shed/429");
    assert_int_equal(w.decisions[4].phase, BT_REQUEST_RECEIVED);
    /* also one that waits already, when it is asked again */
    refuse_waiting = 1;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv F2:shed/429 P3#1@0");
    assert_int_equal(w.decisions[2].phase, BT_REQUEST_QUEUED);
    assert_int_equal(w.decisions[2].status, 429);
    world_fini(&w);
}

static void test_limits_of_the_queue(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    w.config.queue_max = 1;
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 100000), "A1 P1#1@0"); /* ten seconds */
    EXPECT(send(&w, 2, 1000), "A2");
    EXPECT(send(&w, 3, 1000), "A3 F3:shed/429");
    EXPECT(world_tick(&w, 4999), "");
    EXPECT(world_tick(&w, 1), "F2:deadline/503");
    world_fini(&w);
}

/* A failure frees the worker too; the request that failed is placed first. */
static void test_failure_frees(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    world_start(&w);
    EXPECT(send(&w, 1, 1000), "A1 P1#1@0");
    EXPECT(send(&w, 2, 900), "A2 P2#1@1");
    EXPECT(send(&w, 3, 1000), "A3");
    EXPECT(world_fail(&w, 1, 1, BT_LEG_PREFILL, BT_FAIL_RESET),
           "P1#2@1 P3#1@0");
    world_fini(&w);
}

/* Held ones survive that nobody is there, and those that came meanwhile. */
static void test_workers_come_back(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 1000), "A1 P1#1@0");
    EXPECT(send(&w, 2, 1000), "A2");
    EXPECT(world_worker(&w, 2, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_worker(&w, 3, BT_WORKER_UNHEALTHY), "");
    EXPECT(send(&w, 3, 1000), "A3");
    EXPECT(world_gone(&w, 1), "X1#1@0 F1:cancelled/499");
    EXPECT(world_ready(&w, 3, 1, WORLD_BLOCK), "P3#1@0");
    EXPECT(world_gone(&w, 3), "X3#1@0 F3:cancelled/499 P2#1@0");
    EXPECT(world_gone(&w, 2), "X2#1@0 F2:cancelled/499");
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

/* When only a local prefill could start, two of those that were not asked
 * lately are asked at a time, the next two the next time. */
static void test_questions_for_local_room(void **state)
{
    struct world w;
    uint32_t before;

    (void)state;
    init(&w, &in_order);
    w.workers[3].local_ok = true; /* the policy never takes it */
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 0, 50000), "A0 P0#1@0");
    for (uint64_t i = 1; i < 6; i++)
        (void)send(&w, i, 1000);
    EXPECT(world_tick(&w, 300), ""); /* all five are due again */
    for (int i = 0; i < 4; i++) {
        before = asked;
        EXPECT(world_tick(&w, 1), "");
        assert_int_equal(asked - before, i == 0 ? 2 : i == 1 ? 1 : 0);
    }
    world_fini(&w);
}

/* Not enabled: the policy must decide, and none waits. */
static void test_hold_switched_off(void **state)
{
    struct world w;

    (void)state;
    init(&w, &in_order);
    w.config.hold.enabled = false;
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 1, 1000), "A1 P1#1@0");
    EXPECT(send(&w, 2, 1000), "A2 P2#1@0");
    EXPECT(send(&w, 3, 1000), "A3 P3#1@0");
    world_fini(&w);
}

/* Thousands may wait: a drain asks for ask_max of them. */
static void test_questions_are_bounded(void **state)
{
    struct world w;
    uint32_t before;

    (void)state;
    init(&w, &in_slack_order);
    w.config.hold.ask_max = 4;
    world_start(&w);
    only_one_prefill_worker(&w);
    EXPECT(send(&w, 0, 5000), "A0 P0#1@0");
    for (uint64_t i = 1; i < 200; i++)
        (void)send(&w, i, 1000);
    before = asked;
    (void)world_prefilled(&w, 0, 1, true);
    assert_in_range(asked - before, 1, 4);
    before = asked;
    EXPECT(world_tick(&w, 1), "");
    assert_in_range(asked - before, 0, 1);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shortest_first_in_slack_order),
        cmocka_unit_test(test_late_ones_step_back),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_newcomer_does_not_pass),
        cmocka_unit_test(test_lead_is_kept),
        cmocka_unit_test(test_veto_keeps_a_warm_worker),
        cmocka_unit_test(test_patience_lifts_the_veto),
        cmocka_unit_test(test_vetoed_does_not_block),
        cmocka_unit_test(test_fairness_between_tenants),
        cmocka_unit_test(test_refused_under_overload),
        cmocka_unit_test(test_limits_of_the_queue),
        cmocka_unit_test(test_failure_frees),
        cmocka_unit_test(test_workers_come_back),
        cmocka_unit_test(test_questions_for_local_room),
        cmocka_unit_test(test_hold_switched_off),
        cmocka_unit_test(test_questions_are_bounded),
    };

    return cmocka_run_group_tests_name("core_hold", tests, NULL, NULL);
}
