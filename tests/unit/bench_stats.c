/* Quantiles, bootstrap and imbalance against definitions worked by hand or
 * counted by brute force. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "baton/bench/stats.h"
#include <math.h>
#include <stdlib.h>

/* The definition, word for word: smallest value with >= q*n at or below. */
static double brute_quantile(const double *values, size_t n, double q)
{
    double best = (double)INFINITY;

    for (size_t i = 0; i < n; i++) {
        size_t below = 0;

        for (size_t j = 0; j < n; j++)
            below += values[j] <= values[i];
        if ((double)below >= q * (double)n - 1e-9 * (double)n &&
            values[i] < best)
            best = values[i];
    }
    return best;
}

static void test_quantiles_follow_the_definition(void **state)
{
    const double qs[] = {0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1};
    struct bt_rng rng;
    double values[120], sorted[120];

    (void)state;
    bt_rng_seed(&rng, 7);
    for (size_t n = 1; n <= 120; n++) {
        for (size_t i = 0; i < n; i++)
            values[i] = sorted[i] = (double)bt_rng_below(&rng, 40);
        bt_stat_sort(sorted, n);
        for (size_t k = 0; k < sizeof(qs) / sizeof(qs[0]); k++)
            assert_true(bt_stat_quantile(sorted, n, qs[k]) ==
                        brute_quantile(values, n, qs[k]));
    }
}

static void test_worked_quantiles(void **state)
{
    double v[100];

    (void)state;
    for (int i = 0; i < 100; i++)
        v[i] = i + 1;
    assert_true(bt_stat_quantile(v, 100, 0.5) == 50);
    assert_true(bt_stat_quantile(v, 100, 0.95) == 95);
    assert_true(bt_stat_quantile(v, 100, 0.99) == 99);
    assert_true(bt_stat_quantile(v, 100, 1) == 100);
    assert_true(bt_stat_quantile(v, 1, 0.5) == 1);
    assert_true(bt_stat_quantile(v, 0, 0.5) == 0);
    assert_true(bt_stat_mean(v, 100) == 50.5);
    assert_true(bt_stat_mean(v, 0) == 0);
}

/* Two values: a resample's mean over n draws is binomial; the interval must
 * agree with the normal approximation. */
static void test_bootstrap_matches_theory(void **state)
{
    double v[400];
    struct bt_stat_interval interval;
    double spread = 1.96 * 0.5 / sqrt(400);

    (void)state;
    for (int i = 0; i < 400; i++)
        v[i] = i % 2;
    assert_int_equal(bt_stat_bootstrap(v, 400, 4000, 3, &interval), BT_OK);
    assert_true(interval.mean == 0.5);
    assert_true(fabs(interval.low - (0.5 - spread)) < 0.01);
    assert_true(fabs(interval.high - (0.5 + spread)) < 0.01);
}

static void test_bootstrap_edges(void **state)
{
    const double same[] = {4, 4, 4};
    struct bt_stat_interval a, b;

    (void)state;
    assert_int_equal(bt_stat_bootstrap(same, 0, 10, 1, &a), BT_INVALID);
    assert_int_equal(bt_stat_bootstrap(same, 3, 0, 1, &a), BT_INVALID);
    assert_int_equal(bt_stat_bootstrap(same, 3, 50, 1, &a), BT_OK);
    assert_true(a.low == 4 && a.high == 4 && a.mean == 4);
    assert_int_equal(bt_stat_bootstrap(same, 3, 50, 1, &b), BT_OK);
    assert_true(a.low == b.low && a.high == b.high);
}

static void test_imbalance(void **state)
{
    const double even[] = {5, 5, 5, 5}, one[] = {8, 0, 0, 0}, none[] = {0, 0};

    (void)state;
    assert_true(bt_stat_imbalance(even, 4) == 1);
    assert_true(bt_stat_imbalance(one, 4) == 4);
    assert_true(bt_stat_imbalance(none, 2) == 0);
    assert_true(bt_stat_imbalance(none, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles_follow_the_definition),
        cmocka_unit_test(test_worked_quantiles),
        cmocka_unit_test(test_bootstrap_matches_theory),
        cmocka_unit_test(test_bootstrap_edges),
        cmocka_unit_test(test_imbalance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
