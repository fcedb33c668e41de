/* The virtual clock against closed forms: a backlog of b bytes ends at
 * start + b / rate, whatever the chunks; n equal flows end together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/transfer/pacing.h"

#include <cmocka.h>

#define NS 1000000000ll

static void test_chunk_size(void **state)
{
    (void)state;
    assert_int_equal(bt_pace_chunk(0, 1 << 20), 1 << 20);
    assert_int_equal(bt_pace_chunk(100000000, 1 << 20), 200000);
    assert_int_equal(bt_pace_chunk(1000, 1 << 20), 4096);
    assert_int_equal(bt_pace_chunk(12000000000u, 1 << 20), 1 << 20);
    assert_int_equal(bt_pace_chunk(1000, 512), 512);
    assert_int_equal(bt_pace_chunk(UINT64_MAX, 1 << 20), 1 << 20);
}

/* Rates that do not divide 10^9: no drift over a million chunks. */
static void test_no_drift(void **state)
{
    static const uint64_t rates[] = {3, 7, 999999937, 100000000, 4096};
    static const uint32_t chunks[] = {1, 4096, 65537};

    (void)state;
    for (size_t r = 0; r < 5; r++) {
        for (size_t c = 0; c < 3; c++) {
            struct bt_pace p;
            const int64_t start = 5 * NS;
            const uint64_t n = 100000;
            uint64_t bytes = n * chunks[c];
            int64_t whole =
                (int64_t)(bytes / rates[r]) * NS +
                (int64_t)(bytes % rates[r] * (uint64_t)NS / rates[r]);

            bt_pace_init(&p, rates[r]);
            bt_pace_begin(&p, start, start);
            for (uint64_t i = 0; i < n; i++) {
                int64_t due = bt_pace_due(&p, chunks[c]);

                bt_pace_take(&p, chunks[c]);
                assert_true(due - p.clock_ns == (p.carry > 0));
            }
            assert_true(p.clock_ns == start + whole);
        }
    }
}

/* Two flows on 1 MB/s by round robin, 10 and 30 chunks of 4,000 bytes: fluid
 * sharing ends the short one at 80 ms (half the link), the long at 160 ms. */
static void test_fair_share(void **state)
{
    struct bt_pace p;
    int left[2] = {10, 30};
    int64_t end[2] = {0, 0};

    (void)state;
    bt_pace_init(&p, 1000000);
    bt_pace_begin(&p, NS, NS);
    for (int turn = 0; left[0] + left[1] > 0; turn ^= 1) {
        if (left[turn] == 0)
            continue;
        bt_pace_take(&p, 4000);
        if (--left[turn] == 0)
            end[turn] = p.clock_ns - NS;
    }
    assert_true(end[0] >= 80000000 - 4000000 && end[0] <= 80000000);
    assert_true(end[1] == 160000000);
}

static void test_idle_link_has_no_credit(void **state)
{
    struct bt_pace p;

    (void)state;
    bt_pace_init(&p, 1000);
    bt_pace_begin(&p, NS, NS);
    bt_pace_take(&p, 500);
    assert_true(p.clock_ns == NS + NS / 2);
    bt_pace_idle(&p);
    bt_pace_begin(&p, 10 * NS, 10 * NS); /* late: no burst for 8.5 s idle */
    assert_true(bt_pace_due(&p, 1000) == 11 * NS);
    bt_pace_take(&p, 1000);
    bt_pace_idle(&p);
    bt_pace_begin(&p, 10 * NS + 1, 10 * NS + 1); /* the wire is still busy */
    assert_true(bt_pace_due(&p, 1000) == 12 * NS);
}

/* A late wake-up is caught up in a backlog, but for 100 ms at most. */
static void test_lag(void **state)
{
    struct bt_pace p;

    (void)state;
    bt_pace_init(&p, 1000000);
    bt_pace_begin(&p, NS, NS);
    bt_pace_begin(&p, NS, NS + 50000000);
    assert_true(bt_pace_due(&p, 1000) == NS + 1000000);
    bt_pace_begin(&p, NS, 3 * NS);
    assert_true(bt_pace_due(&p, 1000) == 3 * NS - BT_PACE_LAG_NS + 1000000);
}

static void test_extremes(void **state)
{
    struct bt_pace p;

    (void)state;
    bt_pace_init(&p, UINT64_MAX);
    bt_pace_begin(&p, 0, 0);
    assert_true(bt_pace_due(&p, UINT32_MAX) <= 4295);
    bt_pace_init(&p, 1);
    bt_pace_begin(&p, 0, 0);
    assert_true(bt_pace_due(&p, UINT32_MAX) == (int64_t)UINT32_MAX * NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunk_size),
        cmocka_unit_test(test_no_drift),
        cmocka_unit_test(test_fair_share),
        cmocka_unit_test(test_idle_link_has_no_credit),
        cmocka_unit_test(test_lag),
        cmocka_unit_test(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
