/* Leg D and the hand-off: retries, leases, pairs, cancels (engine-wire.md 3.3,
 * 3.10, 3.11; field-failures B01, B02, B04, B06, B16, B19). */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define P BT_LEG_PREFILL
#define D BT_LEG_DECODE

#define EXPECT(call, text) assert_string_equal(call, text)

static const struct bt_core_counters *counters(const struct world *w)
{
    return bt_core_counters_get(w->core);
}

/* Up to leg D with parameters on slot 2. */
static void start_handed_off(struct world *w)
{
    world_start(w);
    EXPECT(world_request(w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(w, 1, 1, true), "D1#2@2+kv");
}

static void finish_idle(struct world *w)
{
    assert_true(bt_core_is_idle(w->core));
    world_fini(w);
}

static void test_bookings_by_stage(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    assert_int_equal(world_info(&w, 0).prefill_tokens, 100);
    assert_int_equal(world_info(&w, 2).decode_tokens, 110);
    assert_int_equal(world_info(&w, 2).transfers, 1);
    w.now_ms += 11;
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    assert_int_equal(world_info(&w, 0).prefill_tokens, 0);
    assert_int_equal(world_info(&w, 0).transfers, 1);
    w.now_ms += 12;
    EXPECT(world_first(&w, 1, 2), "");
    assert_int_equal(world_info(&w, 0).transfers, 0);
    assert_int_equal(world_info(&w, 2).decode_requests, 1);
    w.now_ms += 10;
    EXPECT(world_tokens(&w, 1, 2, 2), "");
    w.now_ms += 70;
    EXPECT(world_tokens(&w, 1, 2, 9), "");
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_int_equal(w.decisions[1].received_ns / 1000000, 1000);
    assert_int_equal(w.decisions[1].placed_ns / 1000000, 1000);
    assert_int_equal(w.decisions[1].prefill_done_ns / 1000000, 1011);
    assert_int_equal(w.decisions[1].decode_sent_ns / 1000000, 1011);
    assert_int_equal(w.decisions[1].first_token_ns / 1000000, 1023);
    assert_int_equal(w.decisions[1].second_token_ns / 1000000, 1033);
    assert_int_equal(w.decisions[1].finished_ns / 1000000, 1103);
    assert_int_equal(w.decisions[1].output_tokens, 10);
    assert_int_equal(w.decisions[1].attempt_count, 2);
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NONE);
    assert_int_equal(w.decisions[1].phase, BT_REQUEST_DECODING);
    assert_int_equal(w.decisions[1].placement.chosen.p, 0);
    assert_int_equal(w.decisions[1].placement.chosen.d, 2);
    finish_idle(&w);
}

static void test_done_without_token_events(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_int_equal(w.decisions[1].first_token_ns, 0);
    finish_idle(&w);
}

static void test_tokens_may_come_first(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_tokens(&w, 1, 2, 0), "");
    assert_int_equal(counters(&w)->live[BT_REQUEST_HANDING_OFF], 1);
    EXPECT(world_tokens(&w, 1, 2, 3), "");
    assert_int_equal(counters(&w)->live[BT_REQUEST_DECODING], 1);
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    finish_idle(&w);
}

static void test_never_a_retry_after_bytes(void **state)
{
    static const enum bt_leg_failure all[] = {
        BT_FAIL_REFUSED, BT_FAIL_RESET, BT_FAIL_TIMEOUT,
        BT_FAIL_HTTP,    BT_FAIL_BODY,  BT_FAIL_TRUNCATED};
    struct world w;

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        world_init(&w);
        start_handed_off(&w);
        EXPECT(world_first(&w, 1, 2), "");
        EXPECT(world_cut(&w, 1, 2, all[i]), "F1:truncated/502");
        assert_int_equal(counters(&w)->retries, 0);
        finish_idle(&w);
    }
}

static void test_client_error_passes(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_http(&w, 1, 2, D, 400), "F1:client_error/400");
    assert_int_equal(world_info(&w, 2).failures, 0);
    assert_int_equal(counters(&w)->stranded_handoffs, 0);
    finish_idle(&w);
}

static void test_refused_goes_on_with_same_params(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    w.now_ms += 24999;
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_REFUSED), "D1#3@3+kv");
    assert_int_equal(world_info(&w, 2).decode_requests, 0);
    assert_int_equal(world_info(&w, 2).failures, 1);
    assert_int_equal(world_info(&w, 3).transfers, 1);
    assert_int_equal(world_info(&w, 0).prefill_requests, 0);
    EXPECT(world_first(&w, 1, 3), "");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NONE);
    assert_int_equal(w.decisions[1].placement.chosen.p, 0);
    assert_int_equal(w.decisions[1].placement.chosen.d, 3);
    finish_idle(&w);
}

static void test_lease_margin_passed(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    w.now_ms += 25000; /* lease 30 s less margin 5 s */
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_REFUSED), "R1@3 D1#3@3");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_LEASE_EXPIRED);
    assert_int_equal(counters(&w)->fallbacks[BT_FALLBACK_LEASE_EXPIRED], 1);
    finish_idle(&w);
}

static void test_lease_over_releases_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    w.now_ms += 30000;
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_REFUSED), "D1#3@3");
    assert_int_equal(counters(&w)->stranded_handoffs, 0);
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    finish_idle(&w);
}

static void test_refused_avoids_suspect_pair(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.worker_count = 5;
    world_start(&w);
    EXPECT(world_worker(&w, 2, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@3+kv");
    EXPECT(world_http(&w, 1, 2, D, 500), "D1#3@4");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    EXPECT(world_ready(&w, 2, 1, WORLD_BLOCK), "");
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@2+kv");
    EXPECT(world_fail(&w, 2, 2, D, BT_FAIL_REFUSED), "D2#3@4+kv");
    EXPECT(world_done(&w, 2, 3), "F2:ok/200");
    finish_idle(&w);
}

/* The only other d is p itself: it serves the request whole, and nobody is
 * left to deliver the parameters to. */
static void test_refused_and_p_is_the_only_other(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    for (int late = 0; late < 2; late++) {
        world_init(&w);
        w.config.worker_count = 2;
        w.workers[0].roles = BT_ROLE_BOTH;
        w.workers[0].decode_slots = 1;
        w.workers[1].roles = BT_ROLE_DECODE;
        world_start(&w);
        ask.pd_allowed = false;
        EXPECT(world_send(&w, &ask), "A1 D1#1@0"); /* fills d 0 */
        EXPECT(world_request(&w, 2), "A2 P2#1@0");
        EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@1+kv");
        w.now_ms += late ? 26000 : 1000;
        EXPECT(world_fail(&w, 2, 2, D, BT_FAIL_REFUSED), "D2#3@0");
        assert_int_equal(counters(&w)->stranded_handoffs, 1);
        EXPECT(world_done(&w, 2, 3), "F2:ok/200");
        assert_int_equal(w.decisions[2].fallback,
                         late ? BT_FALLBACK_LEASE_EXPIRED
                              : BT_FALLBACK_HANDOFF_FAILED);
        EXPECT(world_done(&w, 1, 1), "F1:ok/200");
        finish_idle(&w);
    }
}

static void test_refused_by_the_only_d(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.worker_count = 3;
    start_handed_off(&w);
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_REFUSED), "F1:upstream_error/502");
    assert_int_equal(counters(&w)->stranded_handoffs, 1);
    finish_idle(&w);
}

static void test_refused_out_of_budget_releases(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.retry_budget_min = 0;
    start_handed_off(&w);
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_REFUSED),
           "R1@3 F1:upstream_error/502");
    finish_idle(&w);
}

static void test_refused_after_p_restart(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_ready(&w, 0, 2, WORLD_BLOCK), "");
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_REFUSED), "D1#3@3");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_HANDOFF_FAILED);
    finish_idle(&w);
}

/* How d failed with the parameters, and whom that is charged to. */
static void check_lost_handoff(enum bt_leg_failure how, int status,
                               uint32_t d_failures)
{
    struct world w;

    world_init(&w);
    start_handed_off(&w);
    if (how == BT_FAIL_HTTP)
        EXPECT(world_http(&w, 1, 2, D, status), "D1#3@3");
    else
        EXPECT(world_fail(&w, 1, 2, D, how), "D1#3@3");
    assert_int_equal(world_info(&w, 2).failures, d_failures);
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_HANDOFF_FAILED);
    /* pair (0, 2) is avoided: (0, 3) is as good but for the order */
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@3+kv");
    EXPECT(world_done(&w, 2, 2), "F2:ok/200");
    (void)world_tick(&w, 30000);
    EXPECT(world_request(&w, 3), "A3 P3#1@0");
    EXPECT(world_prefilled(&w, 3, 1, true), "D3#2@2+kv");
    EXPECT(world_done(&w, 3, 2), "F3:ok/200");
    finish_idle(&w);
}

static void test_lost_handoffs(void **state)
{
    (void)state;
    check_lost_handoff(BT_FAIL_HTTP, 500, 0);
    check_lost_handoff(BT_FAIL_HTTP, 503, 0);
    check_lost_handoff(BT_FAIL_BODY, 0, 0);
    check_lost_handoff(BT_FAIL_RESET, 0, 1);
    check_lost_handoff(BT_FAIL_TIMEOUT, 0, 1);
    check_lost_handoff(BT_FAIL_TRUNCATED, 0, 1);
}

/* Policies that do not look at links avoid the suspect pair, too. */
static void test_suspect_pair_blind_policies(void **state)
{
    static const char *const names[] = {"round_robin", "least_loaded",
                                        "prefix_load", "joint"};
    struct world w;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        world_init(&w);
        w.config.policy = bt_policy_find(names[i]);
        world_start(&w);
        EXPECT(world_worker(&w, 1, BT_WORKER_UNHEALTHY), "");
        EXPECT(world_worker(&w, 3, BT_WORKER_UNHEALTHY), "");
        EXPECT(world_request(&w, 1), "A1 P1#1@0");
        EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
        EXPECT(world_http(&w, 1, 2, D, 500), "D1#3@2"); /* same d, alone */
        EXPECT(world_done(&w, 1, 3), "F1:ok/200");
        EXPECT(world_request(&w, 2), "A2 P2#1@0"); /* no other pair */
        EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@2+kv");
        EXPECT(world_ready(&w, 3, 1, WORLD_BLOCK), "");
        for (uint64_t c = 3; c < 7; c++) {
            (void)world_request(&w, c);
            (void)world_prefilled(&w, c, 1, true);
            (void)world_done(&w, c, 2);
            assert_int_equal(w.decisions[c].placement.chosen.d, 3);
        }
        world_fini(&w);
    }
}

static void test_restart_clears_pair(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_http(&w, 1, 2, D, 500), "D1#3@3");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    EXPECT(world_ready(&w, 2, 2, WORLD_BLOCK), "");
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@2+kv");
    world_fini(&w);
}

static void test_plain_goes_to_another_d(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    ask.pd_allowed = false;
    EXPECT(world_send(&w, &ask), "A1 D1#1@2");
    EXPECT(world_fail(&w, 1, 1, D, BT_FAIL_BODY), "D1#2@3");
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_RESET), "F1:upstream_error/502");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NONE);
    assert_int_equal(world_info(&w, 2).failures, 1);
    assert_int_equal(world_info(&w, 3).failures, 1);
    finish_idle(&w);
}

static void test_busy_d(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_http(&w, 1, 2, D, 429), "D1#3@3");
    assert_int_equal(world_info(&w, 2).failures, 0);
    EXPECT(world_http(&w, 1, 3, D, 429), "F1:upstream_error/429");
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@2+kv"); /* not suspect */
    EXPECT(world_done(&w, 2, 2), "F2:ok/200");
    finish_idle(&w);
}

static void test_busy_only_d(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.worker_count = 3;
    start_handed_off(&w);
    EXPECT(world_http(&w, 1, 2, D, 429), "F1:upstream_error/429");
    finish_idle(&w);
}

static void test_handoff_timeout(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_tick(&w, 9999), "");
    EXPECT(world_tick(&w, 1), "X1#2@2 D1#3@3");
    EXPECT(world_first(&w, 1, 2), ""); /* late */
    assert_int_equal(w.status, BT_STALE);
    /* plain: prefill 20 s + hand-off 10 s */
    EXPECT(world_tick(&w, 29999), "");
    EXPECT(world_tick(&w, 1), "X1#3@3 F1:upstream_error/504");
    finish_idle(&w);
}

static void test_idle_stream(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_first(&w, 1, 2), "");
    EXPECT(world_tick(&w, 14000), "");
    EXPECT(world_tokens(&w, 1, 2, 2), "");
    EXPECT(world_tick(&w, 14999), "");
    EXPECT(world_tick(&w, 1), "X1#2@2 F1:truncated/502");
    assert_int_equal(world_info(&w, 2).failures, 1);
    finish_idle(&w);
}

/* stream: false shows no tokens: 10 + 15 s + 4 * 10 tokens * 10 ms. */
static void test_whole_answer_has_time(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    ask.whole_answer = true;
    EXPECT(world_send(&w, &ask), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    EXPECT(world_tick(&w, 25399), "");
    EXPECT(world_tick(&w, 1), "X1#2@2 D1#3@3");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    ask.cookie = 2;
    ask.max_tokens = 0; /* unknown: an hour */
    EXPECT(world_send(&w, &ask), "A2 P2#1@0");
    EXPECT(world_prefilled(&w, 2, 1, true), "D2#2@3+kv");
    EXPECT(world_tick(&w, 3599999), "");
    EXPECT(world_done(&w, 2, 2), "F2:ok/200");
    finish_idle(&w);
}

static void test_client_gone_in_each_phase(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_gone(&w, 1), "X1#2@2 F1:cancelled/499");
    assert_int_equal(w.decisions[1].phase, BT_REQUEST_HANDING_OFF);
    assert_true(bt_core_is_idle(w.core));
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    EXPECT(world_gone(&w, 2), "X2#1@0 F2:cancelled/499");
    assert_true(bt_core_is_idle(w.core));
    EXPECT(world_request(&w, 3), "A3 P3#1@0");
    EXPECT(world_prefilled(&w, 3, 1, true), "D3#2@2+kv");
    EXPECT(world_first(&w, 3, 2), "");
    EXPECT(world_gone(&w, 3), "X3#2@2 F3:cancelled/499");
    assert_int_equal(w.decisions[3].phase, BT_REQUEST_DECODING);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(world_info(&w, i).failures, 0);
    finish_idle(&w);
}

static void test_failure_of_an_older_incarnation(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    start_handed_off(&w);
    EXPECT(world_ready(&w, 2, 2, WORLD_BLOCK), "");
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_RESET), "D1#3@3");
    assert_int_equal(world_info(&w, 2).failures, 0);
    world_fini(&w);
}

/* The limit of a stream may end long before that of the hand-off it had. */
static void test_idle_limit_begins_with_the_first_token(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.idle_stream_timeout_ns = 1000 * 1000000LL;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    EXPECT(world_first(&w, 1, 2), "");
    EXPECT(world_tick(&w, 999), "");
    EXPECT(world_tokens(&w, 1, 2, 2), "");
    EXPECT(world_tick(&w, 999), "");
    EXPECT(world_tick(&w, 1), "X1#2@2 F1:truncated/502");
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_limit_begins_with_the_first_token),
        cmocka_unit_test(test_bookings_by_stage),
        cmocka_unit_test(test_done_without_token_events),
        cmocka_unit_test(test_tokens_may_come_first),
        cmocka_unit_test(test_never_a_retry_after_bytes),
        cmocka_unit_test(test_client_error_passes),
        cmocka_unit_test(test_refused_goes_on_with_same_params),
        cmocka_unit_test(test_lease_margin_passed),
        cmocka_unit_test(test_lease_over_releases_nothing),
        cmocka_unit_test(test_refused_avoids_suspect_pair),
        cmocka_unit_test(test_refused_and_p_is_the_only_other),
        cmocka_unit_test(test_refused_by_the_only_d),
        cmocka_unit_test(test_refused_out_of_budget_releases),
        cmocka_unit_test(test_refused_after_p_restart),
        cmocka_unit_test(test_lost_handoffs),
        cmocka_unit_test(test_suspect_pair_blind_policies),
        cmocka_unit_test(test_restart_clears_pair),
        cmocka_unit_test(test_plain_goes_to_another_d),
        cmocka_unit_test(test_busy_d),
        cmocka_unit_test(test_busy_only_d),
        cmocka_unit_test(test_handoff_timeout),
        cmocka_unit_test(test_idle_stream),
        cmocka_unit_test(test_whole_answer_has_time),
        cmocka_unit_test(test_client_gone_in_each_phase),
        cmocka_unit_test(test_failure_of_an_older_incarnation),
    };

    return cmocka_run_group_tests_name("core_decode", tests, NULL, NULL);
}
