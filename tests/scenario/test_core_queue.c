/* Acceptance, limits, the queue, cancellation while queued. */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define EXPECT(call, text) assert_string_equal(call, text)

static const struct bt_core_counters *counters(const struct world *w)
{
    return bt_core_counters_get(w->core);
}

static void test_drained_in_order(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start_pending(&w);
    EXPECT(world_request(&w, 1), "A1");
    EXPECT(world_request(&w, 2), "A2");
    EXPECT(world_request(&w, 3), "A3");
    assert_int_equal(counters(&w)->live[BT_REQUEST_QUEUED], 3);
    EXPECT(world_ready(&w, 0, 1, WORLD_BLOCK), "");
    EXPECT(world_tick(&w, 100), "");
    EXPECT(world_gone(&w, 2), "F2:cancelled/499");
    assert_int_equal(w.decisions[2].phase, BT_REQUEST_QUEUED);
    EXPECT(world_ready(&w, 2, 1, WORLD_BLOCK), "P1#1@0 P3#1@0");
    assert_int_equal(counters(&w)->live[BT_REQUEST_QUEUED], 0);
    assert_int_equal(counters(&w)->live[BT_REQUEST_PREFILLING], 2);
    world_fini(&w);
}

static void test_full_queue_sheds(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.queue_max = 2;
    world_start_pending(&w);
    EXPECT(world_request(&w, 1), "A1");
    EXPECT(world_request(&w, 2), "A2");
    EXPECT(world_request(&w, 3), "A3 F3:shed/429");
    EXPECT(world_gone(&w, 1), "F1:cancelled/499");
    EXPECT(world_request(&w, 4), "A4");
    world_fini(&w);
}

static void test_no_queue_at_all(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.queue_max = 0;
    world_start_pending(&w);
    EXPECT(world_request(&w, 1), "A1 F1:shed/429");
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_queue_timeout(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start_pending(&w);
    EXPECT(world_request(&w, 1), "A1");
    w.now_ms += 2000;
    EXPECT(world_request(&w, 2), "A2");
    EXPECT(world_tick(&w, 2999), "");
    EXPECT(world_tick(&w, 1), "F1:no_worker/503");
    EXPECT(world_tick(&w, 2000), "F2:no_worker/503");
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_requests_max(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.requests_max = 2;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    (void)world_request(&w, 2);
    EXPECT(world_request(&w, 3), "");
    assert_int_equal(w.status, BT_LIMIT);
    assert_int_equal(counters(&w)->requests, 2);
    EXPECT(world_gone(&w, 1), "X1#1@0 F1:cancelled/499");
    EXPECT(world_request(&w, 4), "A4 P4#1@0");
    assert_int_equal(w.status, BT_OK);
    /* same slot, next generation */
    assert_int_equal(bt_request_slot(w.ids[4]), bt_request_slot(w.ids[1]));
    assert_int_not_equal(w.ids[4].v, w.ids[1].v);
    world_fini(&w);
}

static void test_effects_capacity_bounds_a_step(void **state)
{
    struct world w;
    size_t sent;

    (void)state;
    world_init(&w);
    world_start_pending(&w);
    for (uint64_t i = 0; i < 200; i++)
        (void)world_request(&w, i);
    assert_int_equal(counters(&w)->live[BT_REQUEST_QUEUED], 200);
    EXPECT(world_ready(&w, 0, 1, WORLD_BLOCK), "");
    (void)world_ready(&w, 2, 1, WORLD_BLOCK);
    sent = w.fx.count;
    assert_in_range(sent, 32, WORLD_EFFECTS);
    for (int i = 0; i < 8 && sent < 200; i++) {
        (void)world_tick(&w, 100);
        sent += w.fx.count;
    }
    assert_int_equal(sent, 200);
    assert_int_equal(counters(&w)->live[BT_REQUEST_PREFILLING], 200);
    world_fini(&w);
}

static void test_many_timeouts_are_all_found(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start_pending(&w);
    for (uint64_t i = 0; i < 200; i++)
        (void)world_request(&w, i);
    (void)world_tick(&w, 5000);
    assert_true(world_live(&w) > 0);
    for (int i = 0; i < 8; i++)
        (void)world_tick(&w, 0);
    assert_int_equal(world_live(&w), 0);
    assert_int_equal(counters(&w)->outcomes[BT_OUTCOME_NO_WORKER], 200);
    world_fini(&w);
}

static void test_other_model_does_not_block(void **state)
{
    struct bt_ev_request ask = world_ask(2);
    struct world w;

    (void)state;
    world_init(&w);
    w.config.model_count = 2;
    w.workers[1].model = 1;
    w.workers[3].model = 1;
    world_start_pending(&w);
    EXPECT(world_request(&w, 1), "A1");
    ask.model = 1;
    EXPECT(world_send(&w, &ask), "A2");
    EXPECT(world_ready(&w, 1, 1, WORLD_BLOCK), "");
    EXPECT(world_ready(&w, 3, 1, WORLD_BLOCK), "P2#1@1");
    ask.model = 2;
    EXPECT(world_send(&w, &ask), "");
    assert_int_equal(w.status, BT_INVALID);
    assert_int_equal(counters(&w)->requests, 2);
    world_fini(&w);
}

static void test_never_fits(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].kv_capacity_tokens = 200;
    w.workers[3].kv_capacity_tokens = 400;
    world_start(&w);
    ask.prompt_tokens = 390;
    EXPECT(world_send(&w, &ask), "A1 P1#1@0"); /* 390 + 10 fit d 3 only */
    EXPECT(world_prefilled(&w, 1, 1, true), "D1#2@3+kv");
    ask.cookie = 2;
    ask.prompt_tokens = 391;
    EXPECT(world_send(&w, &ask), "A2 F2:no_worker/503");
    EXPECT(world_worker(&w, 3, BT_WORKER_UNHEALTHY), "");
    ask.cookie = 3;
    ask.prompt_tokens = 300;
    EXPECT(world_send(&w, &ask), "A3"); /* d 3 may come back */
    EXPECT(world_ready(&w, 3, 1, WORLD_BLOCK), "P3#1@0");
    world_fini(&w);
}

static void test_bad_configurations(void **state)
{
    struct world w;
    struct bt_arena arena;
    unsigned char small[64];
    struct bt_core_config bad;

    (void)state;
    world_init(&w);
    world_start(&w);
    w.arena.used = 0;
    bad = w.config;
    bad.attempts_max = 1;
    assert_null(bt_core_init(&w.arena, &bad));
    bad = w.config;
    bad.requests_max = 0;
    assert_null(bt_core_init(&w.arena, &bad));
    bad = w.config;
    bad.lease_margin_ns = bad.lease_ns;
    assert_null(bt_core_init(&w.arena, &bad));
    bad = w.config;
    bad.policy = NULL;
    assert_null(bt_core_init(&w.arena, &bad));
    bad = w.config;
    bad.prefill_timeout_ns = -1;
    assert_null(bt_core_init(&w.arena, &bad));
    bt_arena_init(&arena, small, sizeof(small));
    assert_null(bt_core_init(&arena, &w.config));
    world_fini(&w);
}

static void test_events_out_of_range(void **state)
{
    struct bt_event events[] = {
        {.type = BT_EV_WORKER_STATE, .u.worker_state = {.worker = 99}},
        {.type = BT_EV_WORKER_STATS, .u.worker_stats = {.worker = 99}},
        {.type = BT_EV_KV_STORE, .u.kv_store = {.worker = 99}},
        {.type = BT_EV_KV_STORE, .u.kv_store = {.worker = 0}},
        {.type = BT_EV_KV_REMOVE, .u.kv_remove = {.worker = 99}},
        {.type = BT_EV_KV_CLEAR, .u.kv_clear = {.worker = 99}},
        {.type = BT_EV_KV_STREAM, .u.kv_stream = {.worker = 99}},
    };
    struct bt_core_worker_info info;
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        EXPECT(world_step(&w, &events[i]), "");
        assert_int_equal(w.status, BT_INVALID);
    }
    assert_int_equal(bt_core_worker_get(w.core, 99, &info), BT_NOT_FOUND);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drained_in_order),
        cmocka_unit_test(test_full_queue_sheds),
        cmocka_unit_test(test_no_queue_at_all),
        cmocka_unit_test(test_queue_timeout),
        cmocka_unit_test(test_requests_max),
        cmocka_unit_test(test_effects_capacity_bounds_a_step),
        cmocka_unit_test(test_many_timeouts_are_all_found),
        cmocka_unit_test(test_other_model_does_not_block),
        cmocka_unit_test(test_never_fits),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_events_out_of_range),
    };

    return cmocka_run_group_tests_name("core_queue", tests, NULL, NULL);
}
