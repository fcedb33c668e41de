/* The summary of records made by hand, figures worked out on paper. */
#include "baton/base/units.h"
#include "baton/bench/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#define MS BT_NS_PER_MS

static const struct bt_core_slo_config slo = {.tpot_ns = 50 * MS};

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-9)
        fail_msg("%.12f, not %.12f", got, want);
}

/* Request i: first token after (i + 1) * 100 ms, second 10 ms later, 11 tokens,
 * one every 10 ms; its limit is 1 s. */
static struct bt_sim_record record(int i)
{
    int64_t at = i * BT_NS_PER_S, first = at + (i + 1) * 100 * MS;
    struct bt_sim_record r = {
        .arrival_ns = at,
        .predicted_at_ns = at,
        .first_token_ns = first,
        .second_token_ns = first + 10 * MS,
        .finished_ns = first + 100 * MS,
        .unloaded_ttft_ns = 100 * MS,
        .ttft_slo_ns = BT_NS_PER_S,
        .input_tokens = 1000,
        .output_tokens = 11,
        .cached_tokens = 250,
        .outcome = BT_OUTCOME_OK,
        .measured = true,
        .regret_ns = -1,
    };

    r.predicted.total_ns = (i + 1) * 110 * MS;
    r.predicted_p90_ns = r.predicted.total_ns;
    return r;
}

static void test_quantiles(void **state)
{
    struct bt_sim_record records[20];
    struct bt_sim_result result = {.records = records, .count = 20};
    struct bt_sim_summary s;

    (void)state;
    for (int i = 0; i < 20; i++)
        records[i] = record(i);
    bt_sim_summarise(&result, &slo, -1, &s);
    assert_int_equal(s.measured, 20);
    assert_int_equal(s.ok, 20);
    assert_int_equal(s.met, 10);
    near(s.attainment, 0.5);
    near(s.goodput_per_s, 10.0 / 19);
    near(s.ttft.mean, 1.05);
    near(s.ttft.p50, 1.0);
    near(s.ttft.p95, 1.9);
    near(s.ttft.p99, 2.0);
    near(s.ttst.p50, 1.01);
    near(s.tpot.p99, 0.01);
    near(s.slowdown.p99, 20);
    near(s.hit_share, 0.25);
    near(s.error_total, 0.1);
    near(s.bias_total, 0.1);
    near(s.coverage_p90, 1);
    assert_true(s.regret_mean_s < 0);
    assert_false(bt_sim_meets(&s));
}

/* A request that failed is a miss and has no latency; one of the warm-up and
 * one of another class do not count. */
static void test_who_counts(void **state)
{
    struct bt_sim_record records[4] = {record(0), record(1), record(2),
                                       record(3)};
    struct bt_sim_result result = {.records = records, .count = 4};
    struct bt_sim_summary s;

    (void)state;
    records[0].measured = false;
    records[1].outcome = BT_OUTCOME_SHED;
    records[3].input_tokens = 40000;
    bt_sim_summarise(&result, &slo, 0, &s);
    assert_int_equal(s.measured, 2);
    assert_int_equal(s.ok, 1);
    near(s.attainment, 0.5);
    near(s.ttft.mean, 0.3);
    bt_sim_summarise(&result, &slo, 3, &s);
    assert_int_equal(s.measured, 1);
    near(s.ttft.mean, 0.4);
}

/* TPOT 60 ms misses 50 ms whatever the first token. */
static void test_tpot(void **state)
{
    struct bt_sim_record records[1] = {record(0)};
    struct bt_sim_result result = {.records = records, .count = 1};
    struct bt_sim_summary s;

    (void)state;
    records[0].finished_ns = records[0].first_token_ns + 600 * MS;
    bt_sim_summarise(&result, &slo, -1, &s);
    assert_int_equal(s.met, 0);
    near(s.tpot.mean, 0.06);
}

static void test_capacity_rule(void **state)
{
    struct bt_sim_summary s = {.measured = 100, .attainment = 0.95};

    (void)state;
    s.slowdown.p99 = 10;
    assert_true(bt_sim_meets(&s));
    s.attainment = 0.949;
    assert_false(bt_sim_meets(&s));
    s.attainment = 0.99;
    s.slowdown.p99 = 10.01;
    assert_false(bt_sim_meets(&s));
    s.measured = 0;
    s.slowdown.p99 = 0;
    assert_false(bt_sim_meets(&s));
}

static void test_regret_and_balance(void **state)
{
    struct bt_sim_record records[2] = {record(0), record(1)};
    unsigned int roles[3] = {BT_ROLE_PREFILL, BT_ROLE_PREFILL, BT_ROLE_DECODE};
    double busy[3] = {0.9, 0.3, 0.5};
    struct bt_sim_link_use links[3] = {
        {.kind = BT_LINK_NIC_OUT, .rate_bytes_per_s = 50e9, .bytes = 7},
        {.kind = BT_LINK_NIC_OUT, .rate_bytes_per_s = 6e9, .bytes = 11},
        {.kind = BT_LINK_RACK_UP, .rate_bytes_per_s = 25e9, .bytes = 13},
    };
    struct bt_sim_result result = {.records = records,
                                   .count = 2,
                                   .worker_count = 3,
                                   .roles = roles,
                                   .busy_share = busy,
                                   .links = links,
                                   .link_count = 3};
    struct bt_sim_summary s;

    (void)state;
    records[0].regret_ns = 0;
    records[1].regret_ns = 30 * MS;
    records[1].differs = true;
    bt_sim_summarise(&result, &slo, -1, &s);
    near(s.regret_mean_s, 0.015);
    near(s.regret_p99_s, 0.03);
    near(s.changed_share, 0.5);
    near(s.imbalance_prefill, 1.5);
    near(s.imbalance_decode, 1);
    near(s.bytes_hot, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_who_counts),
        cmocka_unit_test(test_tpot),
        cmocka_unit_test(test_capacity_rule),
        cmocka_unit_test(test_regret_and_balance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
