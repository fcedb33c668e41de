/* The own ledger against sums, queue times and fluid flows worked by hand. */
#include "baton/planner/ledger.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static _Alignas(16) unsigned char memory[65536];

/* 1 byte per ns from 0 to 2, the rest unknown. */
static uint64_t rate_of(const void *arg, uint32_t p, uint32_t d)
{
    (void)arg;
    return p == 0 && d == 2 ? 1000000000 : 0;
}

static struct bt_ledger *start(void)
{
    const struct bt_ledger_limits limits = {
        .workers_max = 4, .requests_max = 8, .rate = rate_of};
    struct bt_arena arena;

    assert_true(bt_ledger_bytes(&limits) <= sizeof(memory));
    memset(memory, 0, sizeof(memory));
    bt_arena_init(&arena, memory, bt_ledger_bytes(&limits));
    return bt_ledger_init(&arena, &limits);
}

static struct bt_ledger_worker look(const struct bt_ledger *l, uint32_t w)
{
    struct bt_ledger_worker out;

    bt_ledger_worker_get(l, w, &out);
    return out;
}

static void books_three_kinds(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b = {0};

    (void)state;
    assert_non_null(l);
    assert_true(bt_ledger_is_empty(l));
    bt_ledger_book(l, &b, 1000, 0, 2, 5, 700, 300, 4096, 900);
    assert_true(b.prefill_held && b.decode_held && b.transfer_held);
    assert_int_equal(look(l, 0).prefill_tokens, 700);
    assert_int_equal(look(l, 0).prefill_free_ns, 1300);
    assert_int_equal(look(l, 0).transfers, 1);
    assert_int_equal(look(l, 2).transfers, 1);
    assert_int_equal(look(l, 2).decode_tokens, 900);
    assert_int_equal(b.transfer_start_ns, 1300);
    bt_ledger_prefill_done(l, &b, 1200);
    bt_ledger_prefill_done(l, &b, 1300);
    assert_int_equal(look(l, 0).prefill_requests, 0);
    assert_int_equal(b.transfer_start_ns, 1200);
    bt_ledger_transfer_done(l, &b, 1250);
    bt_ledger_transfer_done(l, &b, 1250);
    assert_int_equal(look(l, 0).transfers + look(l, 2).transfers, 0);
    assert_false(bt_ledger_is_empty(l));
    bt_ledger_decode_done(l, &b);
    bt_ledger_release_all(l, &b, 1400);
    assert_true(bt_ledger_is_empty(l));
    bt_ledger_book(l, &b, 2000, 0, 2, 5, 1, 1, 1, 1); /* the handle is free */
    bt_ledger_release_all(l, &b, 2000);
    assert_true(bt_ledger_is_empty(l));
}

static void one_worker_serves_alone(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking a = {0}, b = {0};

    (void)state;
    bt_ledger_book(l, &a, 0, BT_PLACE_NONE, 3, 0, 10, 50, 0, 20);
    bt_ledger_book(l, &b, 0, 3, 3, 1, 10, 50, 999, 20);
    assert_false(a.transfer_held || b.transfer_held);
    assert_int_equal(look(l, 3).prefill_tokens, 20);
    assert_int_equal(look(l, 3).prefill_free_ns, 100);
    assert_int_equal(look(l, 3).decode_requests, 2);
    assert_int_equal(look(l, 3).transfers, 0);
    bt_ledger_release_all(l, &a, 0);
    bt_ledger_release_all(l, &b, 0);
    assert_true(bt_ledger_is_empty(l));
}

/* Costs 100, 200, 300 from t = 0. */
static void queue_is_rebased(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b[3] = {{0}, {0}, {0}};

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        bt_ledger_book(l, &b[i], 0, 1, 2, i, 1, 100 * (i + 1), 10, 1);
    assert_int_equal(look(l, 1).prefill_free_ns, 600);
    assert_int_equal(b[2].transfer_start_ns, 600);
    bt_ledger_prefill_done(l, &b[0], 150); /* late by 50 */
    assert_int_equal(look(l, 1).prefill_free_ns, 650);
    assert_int_equal(b[1].transfer_start_ns, 350);
    assert_int_equal(b[2].transfer_start_ns, 650);
    bt_ledger_prefill_done(l, &b[2], 200); /* cancelled while it waits */
    assert_int_equal(look(l, 1).prefill_free_ns, 350);
    bt_ledger_prefill_done(l, &b[1], 300);
    assert_int_equal(look(l, 1).prefill_free_ns, 300);
    for (uint32_t i = 0; i < 3; i++)
        bt_ledger_release_all(l, &b[i], 400);
    assert_true(bt_ledger_is_empty(l));
}

/* An overdue head counts as ending now, the rest in full. */
static void overdue_head(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b[2] = {{0}, {0}};

    (void)state;
    bt_ledger_book(l, &b[0], 0, 0, 2, 0, 1, 100, 0, 1);
    bt_ledger_book(l, &b[1], 250, 0, 2, 1, 1, 40, 0, 1);
    assert_int_equal(look(l, 0).prefill_free_ns, 290);
    bt_ledger_release_all(l, &b[0], 260);
    assert_int_equal(look(l, 0).prefill_free_ns, 300);
    bt_ledger_release_all(l, &b[1], 300);
    assert_true(bt_ledger_is_empty(l));
}

/* 1 byte per ns. A: 1000 B from t = 0. B: 1000 B from t = 500. Shared from 500:
 * A ends at 1500 with B at 500, B ends at 2000. */
static void fluid_flows(void **state)
{
    static const struct {
        int64_t at;
        size_t count;
        uint64_t left[2]; /* B, A: newest first */
    } rows[] = {
        {0, 2, {1000, 1000}},  {200, 2, {1000, 800}}, {500, 2, {1000, 500}},
        {1000, 2, {750, 250}}, {1500, 1, {500, 0}},   {1900, 1, {100, 0}},
        {2000, 0, {0, 0}},
    };
    struct bt_ledger *l = start();
    struct bt_booking a = {0}, b = {0};
    uint64_t left[4];

    (void)state;
    bt_ledger_book(l, &a, 0, 0, 2, 0, 1, 0, 1000, 1);
    bt_ledger_book(l, &b, 0, 0, 2, 1, 1, 500, 1000, 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(bt_ledger_flows(l, 0, 2, rows[i].at, left, 4),
                         rows[i].count);
        for (size_t j = 0; j < rows[i].count; j++)
            assert_in_range(left[j], rows[i].left[j] - 1, rows[i].left[j] + 1);
    }
    assert_int_equal(bt_ledger_flows(l, 1, 2, 2000, left, 4), 0);
    bt_ledger_release_all(l, &a, 2000);
    bt_ledger_release_all(l, &b, 2000);
    assert_true(bt_ledger_is_empty(l));
}

static void assert_left(const struct bt_ledger *l, int64_t at, size_t count,
                        uint64_t first, uint64_t second)
{
    uint64_t left[4] = {0};

    assert_int_equal(bt_ledger_flows(l, 0, 2, at, left, 4), count);
    if (count > 0)
        assert_in_range(left[0], first - 1, first + 1);
    if (count > 1)
        assert_in_range(left[1], second - 1, second + 1);
}

/* The same two until A is known to have arrived at 1000: B has 750 left and the
 * link for itself. C, 1000 B, is booked at 1400 to start at 1500: B has 250
 * then, ends at 2000; C has 750 then and ends at 2750. Looks in between, also
 * at times to come, change nothing. */
static void fluid_changes(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking a = {0}, b = {0}, c = {0};

    (void)state;
    bt_ledger_book(l, &a, 0, 0, 2, 0, 1, 0, 1000, 1);
    bt_ledger_prefill_done(l, &a, 0);
    bt_ledger_book(l, &b, 0, 0, 2, 1, 1, 500, 1000, 1);
    assert_left(l, 5000, 0, 0, 0);
    bt_ledger_prefill_done(l, &b, 500);
    assert_left(l, 1000, 2, 750, 250);
    bt_ledger_transfer_done(l, &a, 1000);
    assert_left(l, 5000, 0, 0, 0);
    assert_left(l, 1000, 1, 750, 0);
    assert_left(l, 1400, 1, 350, 0);
    bt_ledger_book(l, &c, 1400, 0, 2, 2, 1, 100, 1000, 1);
    assert_left(l, 1400, 2, 1000, 350);
    assert_left(l, 1500, 2, 1000, 250);
    assert_left(l, 1600, 2, 950, 200);
    assert_left(l, 2000, 1, 750, 0);
    assert_left(l, 2750, 0, 0, 0);
    bt_ledger_release_all(l, &c, 1600);
    assert_left(l, 1700, 1, 100, 0);
    bt_ledger_release_all(l, &b, 1700);
    bt_ledger_release_all(l, &a, 1700);
    assert_left(l, 1700, 0, 0, 0);
    assert_true(bt_ledger_is_empty(l));
}

static void unknown_rate_keeps_bytes(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b[3] = {{0}, {0}, {0}};
    uint64_t left[2];

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        bt_ledger_book(l, &b[i], 0, 0, 3, i, 1, 0, 100 + i, 1);
    assert_int_equal(bt_ledger_flows(l, 0, 3, 1000000, left, 2), 2);
    assert_int_equal(left[0], 102);
    bt_ledger_transfer_done(l, &b[1], 1000000);
    assert_int_equal(bt_ledger_flows(l, 0, 3, 1000000, left, 2), 2);
    assert_int_equal(left[1], 100);
    for (uint32_t i = 0; i < 3; i++)
        bt_ledger_release_all(l, &b[i], 1000000);
    assert_int_equal(bt_ledger_flows(l, 0, 3, 1000000, left, 2), 0);
    assert_true(bt_ledger_is_empty(l));
}

/* Not with pairs of workers. */
static void memory_grows_with_workers(void **state)
{
    struct bt_ledger_limits limits = {.workers_max = 1000,
                                      .requests_max = 4096};
    size_t before = bt_ledger_bytes(&limits);

    (void)state;
    limits.workers_max = 2000;
    assert_true(bt_ledger_bytes(&limits) > before);
    assert_true(bt_ledger_bytes(&limits) - before < (size_t)1000 * 128);
}

static void refuses_bad_limits(void **state)
{
    struct bt_ledger_limits limits = {.workers_max = 0, .requests_max = 1};
    struct bt_arena arena;

    (void)state;
    bt_arena_init(&arena, memory, sizeof(memory));
    assert_null(bt_ledger_init(&arena, &limits));
    limits.workers_max = 4;
    bt_arena_init(&arena, memory, 100);
    assert_null(bt_ledger_init(&arena, &limits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(books_three_kinds),
        cmocka_unit_test(one_worker_serves_alone),
        cmocka_unit_test(queue_is_rebased),
        cmocka_unit_test(overdue_head),
        cmocka_unit_test(fluid_flows),
        cmocka_unit_test(fluid_changes),
        cmocka_unit_test(unknown_rate_keeps_bytes),
        cmocka_unit_test(memory_grows_with_workers),
        cmocka_unit_test(refuses_bad_limits),
    };

    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
