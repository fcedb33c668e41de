/* Fetches ahead of a booking: held once, shared links feel them, they become
 * the fetch of the booking that follows or end before it. On pairs without a
 * topology, so that the rate of the pair is all there is. */
#include "baton/planner/ledger.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static _Alignas(16) unsigned char memory[65536];

/* 1 byte per ns everywhere. */
static uint64_t rate(const void *arg, uint32_t p, uint32_t d)
{
    (void)arg;
    (void)p;
    (void)d;
    return 1000000000;
}

static struct bt_ledger *start(void)
{
    struct bt_ledger_limits limits = {
        .workers_max = 4, .requests_max = 4, .rate = rate};
    struct bt_ledger *ledger;
    struct bt_arena arena;

    memset(memory, 0, sizeof(memory));
    bt_arena_init(&arena, memory, sizeof(memory));
    ledger = bt_ledger_init(&arena, &limits);
    assert_non_null(ledger);
    return ledger;
}

/* Bytes left from a to b. */
static uint64_t left(const struct bt_ledger *l, uint32_t a, uint32_t b,
                     int64_t now_ns)
{
    uint64_t bytes[4], sum = 0;
    size_t n = bt_ledger_flows(l, a, b, now_ns, bytes, 4);

    for (size_t i = 0; i < n; i++)
        sum += bytes[i];
    return sum;
}

static void test_ends_alone(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b = {0};
    struct bt_ledger_worker w;

    (void)state;
    bt_ledger_book_prefetch(l, &b, 100, 3, 0, 1, 1000);
    assert_false(bt_ledger_is_empty(l));
    assert_int_equal(left(l, 0, 1, 100), 1000);
    assert_int_equal(left(l, 0, 1, 700), 400);
    assert_int_equal(left(l, 0, 1, 1100), 0);
    bt_ledger_worker_get(l, 1, &w);
    assert_int_equal(w.transfers, 1);
    assert_int_equal(w.prefill_requests + w.decode_requests, 0);
    bt_ledger_fetch_done(l, &b, 700);
    assert_int_equal(left(l, 0, 1, 700), 0);
    assert_true(bt_ledger_is_empty(l));
    bt_ledger_fetch_done(l, &b, 700); /* once */
    assert_true(bt_ledger_is_empty(l));
    bt_ledger_book_prefetch(l, &b, 800, 3, 2, 1, 10); /* its handle is free */
    bt_ledger_release_all(l, &b, 900);
    assert_true(bt_ledger_is_empty(l));
}

/* p has 400 of 1000 bytes to come when it is booked, and no more after its
 * prefill. The transfer and the decode live on. */
static void test_becomes_the_fetch(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b = {0};
    struct bt_ledger_worker w;

    (void)state;
    bt_ledger_book_prefetch(l, &b, 0, 0, 0, 1, 1000);
    bt_ledger_book(l, &b, 600, 1, 2, 0, 50, 5000, 300, 60);
    assert_true(b.fetch_held && b.prefill_held);
    assert_int_equal(left(l, 0, 1, 600), 400);
    assert_int_equal(left(l, 1, 2, 600), 300);
    bt_ledger_worker_get(l, 1, &w);
    assert_int_equal(w.transfers, 2);
    assert_int_equal(w.prefill_tokens, 50);
    bt_ledger_prefill_done(l, &b, 700);
    assert_false(b.fetch_held);
    assert_int_equal(left(l, 0, 1, 700), 0);
    assert_false(bt_ledger_is_empty(l));
    bt_ledger_release_all(l, &b, 800);
    assert_true(bt_ledger_is_empty(l));
}

/* d alone is its own prefill worker. */
static void test_becomes_the_fetch_of_one_alone(void **state)
{
    struct bt_ledger *l = start();
    struct bt_booking b = {0};

    (void)state;
    bt_ledger_book_prefetch(l, &b, 0, 0, 0, 2, 1000);
    bt_ledger_book(l, &b, 0, BT_PLACE_NONE, 2, 0, 50, 5000, 0, 60);
    assert_true(b.fetch_held);
    bt_ledger_release_all(l, &b, 1);
    assert_true(bt_ledger_is_empty(l));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_alone),
        cmocka_unit_test(test_becomes_the_fetch),
        cmocka_unit_test(test_becomes_the_fetch_of_one_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
