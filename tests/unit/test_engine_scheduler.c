/* Times of jobs against the closed forms (cost-models.md W1, profile H) and
 * the order of prefills and decode steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler.h"

static const struct bt_compute_model h100_70b = {
    .prefill_a_ms = 6.51,
    .prefill_b_ms = 0.03520,
    .prefill_c_ms = 2.37e-7,
    .decode_a_ms = 8.86,
    .decode_b_ms = 0.0228,
    .decode_c_ms = 1.30e-5,
    .speedup = 1.0,
};

static void expect_ms(int64_t ns, double ms)
{
    double off = (double)ns / 1e6 / ms - 1.0;
    assert_true(off < 5e-6 && off > -5e-6);
}

static struct bt_sched fresh(double speedup)
{
    struct bt_compute_model m = h100_70b;
    struct bt_sched s;
    m.speedup = speedup;
    bt_sched_init(&s, &m);
    return s;
}

static void worked_examples(void **state)
{
    (void)state;
    struct bt_sched s = fresh(1.0);
    expect_ms(bt_sched_prefill(&s, 0, 8192, 0), 310.773);
    (void)bt_sched_finish(&s);
    bt_sched_rest(&s);
    expect_ms(bt_sched_prefill(&s, 1000000000, 4096, 4096) - 1000000000,
              162.618);
    (void)bt_sched_finish(&s);
    bt_sched_rest(&s);
    int64_t at = 5000000000;
    expect_ms(bt_sched_decode(&s, at, 64, 64 * 4096) - at, 13.7271);
    (void)bt_sched_finish(&s);
    bt_sched_rest(&s);
    at = 6000000000;
    expect_ms(bt_sched_decode(&s, at, 1, 8192) - at, 8.98930);
    assert_int_equal(s.prefills, 2);
    assert_int_equal(s.steps, 1 + 1);
}

static void speedup_and_slowness(void **state)
{
    (void)state;
    struct bt_sched s = fresh(10.0);
    expect_ms(bt_sched_prefill(&s, 0, 8192, 0), 31.0773);
    (void)bt_sched_finish(&s);
    bt_sched_rest(&s);
    s.slow = 3.0;
    int64_t at = 1000000000;
    expect_ms(bt_sched_prefill(&s, at, 8192, 0) - at, 93.2319);
}

static void jobs_follow_each_other(void **state)
{
    (void)state;
    struct bt_sched s = fresh(1.0);
    int64_t end = bt_sched_prefill(&s, 100, 1000, 0);
    assert_false(bt_sched_due(&s, end - 1));
    assert_int_equal(bt_sched_pick(&s, true, true), BT_SCHED_IDLE);
    assert_true(bt_sched_due(&s, end + 2000000));
    assert_int_equal(bt_sched_finish(&s), BT_SCHED_PREFILL);
    /* woken 2 ms late: the next job starts where the last one ended */
    (void)bt_sched_prefill(&s, end + 2000000, 1000, 0);
    assert_int_equal(s.start_ns, end);
    (void)bt_sched_finish(&s);
    /* later than the limit: from now on */
    int64_t late = s.end_ns + BT_SCHED_LAG_MAX_NS;
    (void)bt_sched_prefill(&s, late, 1000, 0);
    assert_int_equal(s.start_ns, late);
    (void)bt_sched_finish(&s);
    /* idle in between: never before it was asked for */
    bt_sched_rest(&s);
    (void)bt_sched_prefill(&s, s.end_ns + 10, 1000, 0);
    assert_int_equal(s.start_ns, late + (end - 100) + 10);
}

static void kinds_alternate(void **state)
{
    (void)state;
    struct bt_sched s = fresh(1.0);
    assert_int_equal(bt_sched_pick(&s, false, false), BT_SCHED_IDLE);
    assert_int_equal(bt_sched_pick(&s, false, true), BT_SCHED_DECODE);
    assert_int_equal(bt_sched_pick(&s, true, true), BT_SCHED_PREFILL);
    (void)bt_sched_prefill(&s, 0, 10, 0);
    (void)bt_sched_finish(&s);
    assert_int_equal(bt_sched_pick(&s, true, true), BT_SCHED_DECODE);
    assert_int_equal(bt_sched_pick(&s, true, false), BT_SCHED_PREFILL);
    (void)bt_sched_decode(&s, s.end_ns, 1, 10);
    (void)bt_sched_finish(&s);
    assert_int_equal(bt_sched_pick(&s, true, true), BT_SCHED_PREFILL);
}

static void abort_frees_the_device(void **state)
{
    (void)state;
    struct bt_sched s = fresh(1.0);
    (void)bt_sched_prefill(&s, 1000, 8192, 0);
    bt_sched_abort(&s, 5000);
    assert_int_equal(s.running, BT_SCHED_IDLE);
    assert_int_equal(s.busy_prefill_ns, 4000);
    (void)bt_sched_prefill(&s, 6000, 1, 0);
    assert_int_equal(s.start_ns, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(speedup_and_slowness),
        cmocka_unit_test(jobs_follow_each_other),
        cmocka_unit_test(kinds_alternate),
        cmocka_unit_test(abort_frees_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
