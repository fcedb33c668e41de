/* Leg P: how it may end and what the core does next (engine-wire.md 3.10,
 * 3.11; field-failures B03, B07, B17). */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define P BT_LEG_PREFILL
#define D BT_LEG_DECODE

#define EXPECT(call, text) assert_string_equal(call, text)

static const struct bt_core_counters *counters(const struct world *w)
{
    return bt_core_counters_get(w->core);
}

static void test_client_errors_pass(void **state)
{
    static const int statuses[] = {400, 401, 404, 413, 422};
    struct world w;
    char line[64];

    (void)state;
    world_init(&w);
    world_start(&w);
    for (unsigned int i = 0; i < 5; i++) {
        EXPECT(world_request(&w, i), i == 0   ? "A0 P0#1@0"
                                     : i == 1 ? "A1 P1#1@0"
                                     : i == 2 ? "A2 P2#1@0"
                                     : i == 3 ? "A3 P3#1@0"
                                              : "A4 P4#1@0");
        (void)snprintf(line, sizeof(line), "F%u:client_error/%d", i,
                       statuses[i]);
        EXPECT(world_http(&w, i, 1, P, statuses[i]), line);
    }
    assert_int_equal(world_info(&w, 0).failures, 0);
    assert_int_equal(counters(&w)->retries, 0);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_other_p_then_plain(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_http(&w, 1, 1, P, 500), "P1#2@1");
    assert_int_equal(world_info(&w, 0).prefill_requests, 0);
    assert_int_equal(world_info(&w, 1).prefill_requests, 1);
    EXPECT(world_fail(&w, 1, 2, P, BT_FAIL_RESET), "D1#3@2");
    assert_int_equal(world_info(&w, 2).prefill_requests, 1);
    EXPECT(world_first(&w, 1, 3), "");
    assert_int_equal(world_info(&w, 2).prefill_requests, 0);
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_PREFILL_FAILED);
    assert_int_equal(w.decisions[1].reason, BT_REASON_RETRY);
    assert_int_equal(w.decisions[1].attempt_count, 3);
    assert_int_equal(w.decisions[1].placements, 3);
    assert_int_equal(w.decisions[1].attempts[0].status, 500);
    assert_false(w.decisions[1].attempts[1].ok);
    assert_true(w.decisions[1].attempts[2].ok);
    assert_int_equal(counters(&w)->retries, 1);
    assert_int_equal(counters(&w)->fallbacks[BT_FALLBACK_PREFILL_FAILED], 1);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_every_transport_failure_retries(void **state)
{
    static const enum bt_leg_failure all[] = {BT_FAIL_REFUSED, BT_FAIL_RESET,
                                              BT_FAIL_TIMEOUT, BT_FAIL_BODY,
                                              BT_FAIL_TRUNCATED};
    struct world w;

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        world_init(&w);
        world_start(&w);
        EXPECT(world_request(&w, 1), "A1 P1#1@0");
        EXPECT(world_fail(&w, 1, 1, P, all[i]), "P1#2@1");
        assert_int_equal(world_info(&w, 0).failures, 1);
        EXPECT(world_gone(&w, 1), "X1#2@1 F1:cancelled/499");
        world_fini(&w);
    }
}

static void test_busy_p_is_not_blamed(void **state)
{
    static const int busy[] = {408, 409, 425, 429};
    struct world w;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        world_init(&w);
        world_start(&w);
        EXPECT(world_request(&w, 1), "A1 P1#1@0");
        EXPECT(world_http(&w, 1, 1, P, busy[i]), "P1#2@1");
        assert_int_equal(world_info(&w, 0).failures, 0);
        world_fini(&w);
    }
}

static void check_required(int http, enum bt_leg_failure how, const char *end)
{
    struct world w;

    world_init(&w);
    w.config.pd_required = true;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    if (how == BT_FAIL_HTTP) {
        EXPECT(world_http(&w, 1, 1, P, http), "P1#2@1");
        EXPECT(world_http(&w, 1, 2, P, http), end);
    } else {
        EXPECT(world_fail(&w, 1, 1, P, how), "P1#2@1");
        EXPECT(world_fail(&w, 1, 2, P, how), end);
    }
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_required_ends_in_error(void **state)
{
    (void)state;
    check_required(500, BT_FAIL_HTTP, "F1:upstream_error/502");
    check_required(429, BT_FAIL_HTTP, "F1:upstream_error/429");
    check_required(0, BT_FAIL_TIMEOUT, "F1:upstream_error/504");
    check_required(0, BT_FAIL_REFUSED, "F1:upstream_error/502");
}

static void test_no_params_once_more_then_plain(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, false), "P1#2@1");
    EXPECT(world_prefilled(&w, 1, 2, false), "D1#3@2");
    EXPECT(world_first(&w, 1, 3), "");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NO_PARAMS);
    assert_int_equal(counters(&w)->fallbacks[BT_FALLBACK_NO_PARAMS], 1);
    assert_int_equal(world_info(&w, 0).failures, 0);
    world_fini(&w);
}

static void test_no_params_only_p(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_worker(&w, 1, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 1, false), "D1#2@2");
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NO_PARAMS);
    assert_int_equal(counters(&w)->retries, 0);
    world_fini(&w);
}

static void test_timeout_aborts_and_late_answer_is_stranded(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_tick(&w, 19999), "");
    EXPECT(world_tick(&w, 1), "X1#1@0 P1#2@1");
    EXPECT(world_prefilled(&w, 1, 1, true), "");
    assert_int_equal(w.status, BT_STALE);
    assert_int_equal(counters(&w)->stranded_handoffs, 1);
    assert_int_equal(counters(&w)->late_events, 1);
    EXPECT(world_prefilled(&w, 1, 2, true), "D1#3@2+kv");
    EXPECT(world_done(&w, 1, 3), "F1:ok/200");
    world_fini(&w);
}

static void test_budget_denies(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.retry_budget_min = 0;
    w.config.retry_budget_ratio = 0;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_http(&w, 1, 1, P, 503), "D1#2@2");
    assert_int_equal(counters(&w)->retries_denied, 1);
    assert_int_equal(counters(&w)->retries, 0);
    EXPECT(world_fail(&w, 1, 2, D, BT_FAIL_RESET), "F1:upstream_error/502");
    assert_int_equal(counters(&w)->retries_denied, 2);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

/* ratio 0.1: of ten requests that fail their first leg P one is retried. */
static void test_budget_ratio(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.retry_budget_min = 0;
    w.config.retry_budget_ratio = 0.1;
    w.config.suspect_failures = 1000;
    w.config.pd_required = true;
    world_start(&w);
    for (uint64_t i = 0; i < 10; i++)
        (void)world_request(&w, i);
    for (uint64_t i = 0; i < 10; i++)
        (void)world_http(&w, i, 1, P, 503);
    assert_int_equal(counters(&w)->retries, 1);
    assert_int_equal(counters(&w)->retries_denied, 9);
    assert_int_equal(counters(&w)->outcomes[BT_OUTCOME_UPSTREAM_ERROR], 9);
    world_fini(&w);
}

/* min 2 per 10 s, used up, there again 10 s later. */
static void test_budget_min_refills(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.retry_budget_min = 2;
    w.config.suspect_failures = 1000;
    w.config.pd_required = true;
    world_start(&w);
    for (uint64_t i = 0; i < 5; i++) {
        (void)world_request(&w, i);
        (void)world_http(&w, i, 1, P, 503);
    }
    assert_int_equal(counters(&w)->retries, 2);
    assert_int_equal(counters(&w)->retries_denied, 3);
    (void)world_tick(&w, 10000);
    (void)world_request(&w, 5);
    (void)world_http(&w, 5, 1, P, 503);
    assert_int_equal(counters(&w)->retries, 3);
    world_fini(&w);
}

static void test_attempts_max_keeps_one_for_d(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.attempts_max = 2;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_http(&w, 1, 1, P, 503), "D1#2@2");
    EXPECT(world_http(&w, 1, 2, D, 503), "F1:upstream_error/502");
    world_fini(&w);
}

static void test_restarted_p_is_not_pulled_from(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_ready(&w, 0, 2, WORLD_BLOCK), "");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2");
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_HANDOFF_FAILED);
    world_fini(&w);
}

static void test_d_down_while_prefilling(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_worker(&w, 2, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@3+kv");
    assert_int_equal(world_info(&w, 2).decode_requests, 0);
    assert_int_equal(world_info(&w, 3).decode_requests, 1);
    EXPECT(world_worker(&w, 3, BT_WORKER_DRAINING), "");
    EXPECT(world_first(&w, 1, 2), "");
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_suspect_worker_is_last_choice(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.pd_required = true;
    world_start(&w);
    EXPECT(world_worker(&w, 1, BT_WORKER_UNHEALTHY), "");
    for (uint64_t i = 0; i < 3; i++) {
        (void)world_request(&w, i);
        (void)world_fail(&w, i, 1, P, BT_FAIL_REFUSED);
    }
    assert_int_equal(world_info(&w, 0).failures, 3);
    assert_true(world_info(&w, 0).suspect_until_ns > 0);
    EXPECT(world_request(&w, 3), "A3 P3#1@0"); /* nobody else */
    EXPECT(world_ready(&w, 1, 1, WORLD_BLOCK), "");
    EXPECT(world_request(&w, 4), "A4 P4#1@1");
    EXPECT(world_prefilled(&w, 3, 1, true), "D3#2@2+kv");
    assert_int_equal(world_info(&w, 0).failures, 0);
    assert_int_equal(world_info(&w, 0).suspect_until_ns, 0);
    EXPECT(world_request(&w, 5), "A5 P5#1@0");
    world_fini(&w);
}

static void test_suspicion_ends(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.suspect_failures = 1;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_fail(&w, 1, 1, P, BT_FAIL_RESET), "P1#2@1");
    EXPECT(world_gone(&w, 1), "X1#2@1 F1:cancelled/499");
    EXPECT(world_request(&w, 2), "A2 P2#1@1");
    EXPECT(world_gone(&w, 2), "X2#1@1 F2:cancelled/499");
    (void)world_tick(&w, 30000);
    EXPECT(world_request(&w, 3), "A3 P3#1@0");
    world_fini(&w);
}

static void test_late_and_double_events(void **state)
{
    struct world w;
    struct bt_request_id never = bt_request_id_make(7, 9);
    struct bt_request_id outside = bt_request_id_make(4000000, 1);

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_prefilled(&w, 1, 7, true), ""); /* attempt that never was */
    EXPECT(world_first(&w, 1, 1), "");           /* of the wrong leg */
    EXPECT(world_fail(&w, 1, 1, D, BT_FAIL_RESET), "");
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@2+kv");
    EXPECT(world_prefilled(&w, 1, 1, true), ""); /* twice */
    EXPECT(world_fail(&w, 1, 1, P, BT_FAIL_RESET), "");
    assert_int_equal(counters(&w)->late_events, 5);
    assert_int_equal(counters(&w)->stranded_handoffs, 0);
    EXPECT(world_first(&w, 1, 2), "");
    EXPECT(world_first(&w, 1, 2), "");
    EXPECT(world_done(&w, 1, 2), "F1:ok/200");
    EXPECT(world_done(&w, 1, 2), "");
    EXPECT(world_gone(&w, 1), "");
    EXPECT(world_prefilled(&w, 1, 1, true), "");
    assert_int_equal(w.status, BT_STALE);
    assert_int_equal(counters(&w)->late_events, 9);
    assert_int_equal(counters(&w)->stranded_handoffs, 0);
    w.ids[2] = never;
    w.ids[3] = outside;
    for (uint64_t i = 2; i < 4; i++) {
        EXPECT(world_prefilled(&w, i, 1, true), "");
        EXPECT(world_tokens(&w, i, 1, 3), "");
        EXPECT(world_gone(&w, i), "");
        EXPECT(world_http(&w, i, 1, P, 500), "");
        assert_int_equal(w.status, BT_STALE);
    }
    assert_int_equal(counters(&w)->late_events, 17);
    assert_int_equal(counters(&w)->stranded_handoffs, 0);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_answer_after_cancel_is_stranded(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_gone(&w, 1), "X1#1@0 F1:cancelled/499");
    assert_int_equal(w.decisions[1].phase, BT_REQUEST_PREFILLING);
    assert_true(bt_core_is_idle(w.core));
    w.now_ms += 60000;
    EXPECT(world_prefilled(&w, 1, 1, true), "");
    assert_int_equal(counters(&w)->stranded_handoffs, 1);
    assert_int_equal(world_live(&w), 0);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_client_errors_pass),
        cmocka_unit_test(test_other_p_then_plain),
        cmocka_unit_test(test_every_transport_failure_retries),
        cmocka_unit_test(test_busy_p_is_not_blamed),
        cmocka_unit_test(test_required_ends_in_error),
        cmocka_unit_test(test_no_params_once_more_then_plain),
        cmocka_unit_test(test_no_params_only_p),
        cmocka_unit_test(test_timeout_aborts_and_late_answer_is_stranded),
        cmocka_unit_test(test_budget_denies),
        cmocka_unit_test(test_budget_ratio),
        cmocka_unit_test(test_budget_min_refills),
        cmocka_unit_test(test_attempts_max_keeps_one_for_d),
        cmocka_unit_test(test_restarted_p_is_not_pulled_from),
        cmocka_unit_test(test_d_down_while_prefilling),
        cmocka_unit_test(test_suspect_worker_is_last_choice),
        cmocka_unit_test(test_suspicion_ends),
        cmocka_unit_test(test_late_and_double_events),
        cmocka_unit_test(test_answer_after_cancel_is_stranded),
    };

    return cmocka_run_group_tests_name("core_prefill", tests, NULL, NULL);
}
