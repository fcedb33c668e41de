/* Paired differences against statistics worked by other means, and the rules
 * that turn an interval into a verdict. */
#include "baton/base/rng.h"
#include "report_world.h"

#define N 1280u

struct pair {
    struct bt_report_result a[4], b[4];
    uint32_t seeds;
};

static void pair_init(struct pair *p, uint32_t seeds)
{
    memset(p, 0, sizeof(*p));
    p->seeds = seeds;
    for (uint32_t s = 0; s < seeds; s++) {
        struct bt_report_result *r[2] = {&p->a[s], &p->b[s]};

        for (int k = 0; k < 2; k++) {
            r[k]->sample_count = r[k]->all.measured = r[k]->all.ok = N;
            for (int i = 0; i < BT_REPORT_SAMPLE_COUNT; i++)
                r[k]->samples[i] = calloc(N, sizeof(float));
        }
    }
}

static void pair_fini(struct pair *p)
{
    for (uint32_t s = 0; s < 4; s++) {
        bt_report_result_fini(&p->a[s]);
        bt_report_result_fini(&p->b[s]);
    }
}

/* b: exponential with mean 1; a: `factor` times b with some noise. */
static void fill(struct pair *p, double factor, double noise, uint64_t seed)
{
    struct bt_rng rng;

    bt_rng_seed(&rng, seed);
    for (uint32_t s = 0; s < p->seeds; s++) {
        for (size_t i = 0; i < N; i++) {
            double x = bt_rng_exponential(&rng, 1);

            p->b[s].samples[0][i] = (float)x;
            p->a[s].samples[0][i] =
                (float)(x * factor * (1 + noise * (bt_rng_unit(&rng) - 0.5)));
        }
    }
}

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Nearest rank of one seed's samples. */
static double rank(const float *values, double q)
{
    float sorted[N];

    memcpy(sorted, values, sizeof(sorted));
    qsort(sorted, N, sizeof(float), by_value);
    return (double)sorted[(size_t)ceil(q * N) - 1];
}

static void point_estimates_are_means_of_each_seeds_statistic(void **state)
{
    static const struct {
        enum bt_report_stat stat;
        double q;
    } stats[] = {{BT_REPORT_P50, 0.5},
                 {BT_REPORT_P90, 0.9},
                 {BT_REPORT_P95, 0.95},
                 {BT_REPORT_P99, 0.99}};
    struct bt_report_difference d;
    struct pair p;

    (void)state;
    pair_init(&p, 3);
    fill(&p, 0.9, 0.3, 11);
    for (size_t k = 0; k < 4; k++) {
        double a = 0, b = 0;

        for (uint32_t s = 0; s < 3; s++) {
            a += rank(p.a[s].samples[0], stats[k].q) / 3;
            b += rank(p.b[s].samples[0], stats[k].q) / 3;
        }
        assert_int_equal(
            bt_report_compare(p.a, p.b, 3, BT_REPORT_TTFT, stats[k].stat, &d),
            BT_OK);
        assert_true(fabs(d.subject - a) < 1e-12 && fabs(d.rival - b) < 1e-12);
        assert_true(fabs(d.relative.mean - (a / b - 1)) < 1e-12);
        assert_true(d.relative.low <= d.relative.mean &&
                    d.relative.mean <= d.relative.high);
        assert_int_equal(d.pairs, 3 * N);
    }
    pair_fini(&p);
}

/* 40 draws of a system whose true difference is -10 %: a 95 % interval holds
 * it in about 38 of them; fewer than 33 has a chance below one in a thousand.
 * None may hold 0. */
static void the_interval_holds_the_truth_about_as_often_as_it_says(void **state)
{
    uint32_t held = 0;

    (void)state;
    for (uint64_t draw = 1; draw <= 40; draw++) {
        struct bt_report_difference d;
        struct pair p;

        pair_init(&p, 1);
        fill(&p, 0.9, 0.8, draw);
        assert_int_equal(
            bt_report_compare(p.a, p.b, 1, BT_REPORT_TTFT, BT_REPORT_MEAN, &d),
            BT_OK);
        held += d.relative.low <= -0.1 && d.relative.high >= -0.1;
        if (d.relative.high >= 0)
            fail_msg("draw %llu: [%g, %g]", (unsigned long long)draw,
                     d.relative.low, d.relative.high);
        pair_fini(&p);
    }
    if (held < 33)
        fail_msg("%u of 40 intervals hold the truth", held);
}

static void alike_is_zero_and_only_answered_requests_pair(void **state)
{
    struct bt_report_difference d;
    struct pair p;

    (void)state;
    pair_init(&p, 2);
    fill(&p, 1, 0, 5);
    for (size_t i = 0; i < 300; i++)
        p.a[0].samples[0][i] = NAN;
    for (size_t i = 200; i < 400; i++)
        p.b[1].samples[0][i] = NAN;
    p.a[0].all.ok = N - 300;
    p.b[1].all.ok = N - 200;
    assert_int_equal(
        bt_report_compare(p.a, p.b, 2, BT_REPORT_TTFT, BT_REPORT_P99, &d),
        BT_OK);
    assert_true(d.known);
    assert_int_equal(d.pairs, 2 * N - 500);
    assert_true(fabs(d.answered_subject - (1 - 150.0 / N)) < 1e-12);
    assert_true(d.relative.mean == 0 && d.relative.low == 0 &&
                d.relative.high == 0);
    p.b[0].status = p.b[1].status = BT_PEER_DEAD;
    assert_int_equal(
        bt_report_compare(p.a, p.b, 2, BT_REPORT_TTFT, BT_REPORT_P99, &d),
        BT_OK);
    assert_false(d.known);
    pair_fini(&p);
}

/* ---- verdicts ---- */

static struct bt_report_difference at(double low, double mean, double high)
{
    return (struct bt_report_difference){
        .relative = {.mean = mean, .low = low, .high = high},
        .answered_subject = 1,
        .answered_rival = 1,
        .known = true};
}

static void claims_are_judged_by_mean_and_interval(void **state)
{
    const struct bt_report_claim_rule p1 = {-0.03, -0.20, -0.10, true},
                                      p2 = {0.01, -0.05, 0, false};
    const struct {
        const struct bt_report_claim_rule *rule;
        double low, mean, high;
        enum bt_report_verdict verdict;
    } cases[] = {
        {&p1, -0.18, -0.15, -0.12, BT_VERDICT_HOLDS},
        {&p1, -0.40, -0.35, -0.30, BT_VERDICT_HOLDS},
        {&p1, -0.08, -0.06, -0.04, BT_VERDICT_SMALLER},
        {&p1, -0.20, -0.12, -0.02, BT_VERDICT_FAILS}, /* CI includes -3 % */
        {&p1, -0.04, -0.02, 0.00, BT_VERDICT_FAILS},
        {&p2, -0.04, -0.02, 0.00, BT_VERDICT_HOLDS},
        {&p2, -0.01, 0.005, 0.009, BT_VERDICT_SMALLER},
        {&p2, -0.02, 0.005, 0.03, BT_VERDICT_OPEN},
        {&p2, 0.00, 0.02, 0.04, BT_VERDICT_FAILS},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bt_report_difference d =
            at(cases[i].low, cases[i].mean, cases[i].high);

        if (bt_report_judge_claim(cases[i].rule, &d) != cases[i].verdict)
            fail_msg("case %zu: %s", i,
                     bt_report_verdict_name(
                         bt_report_judge_claim(cases[i].rule, &d)));
    }
}

static void ties_need_the_whole_interval_inside(void **state)
{
    struct bt_report_difference d = at(-0.009, 0, 0.009);

    (void)state;
    assert_int_equal(bt_report_judge_tie(0.01, &d), BT_VERDICT_TIES);
    d = at(-0.009, 0.003, 0.011);
    assert_int_equal(bt_report_judge_tie(0.01, &d), BT_VERDICT_OPEN);
    d = at(0.011, 0.02, 0.03);
    assert_int_equal(bt_report_judge_tie(0.01, &d), BT_VERDICT_FAILS);
    d = at(-0.05, -0.04, -0.02);
    assert_int_equal(bt_report_judge_tie(0.01, &d), BT_VERDICT_BETTER);
    d = at(-0.05, -0.04, -0.02);
    assert_int_equal(bt_report_judge_floor(0.01, &d), BT_VERDICT_HOLDS);
    d = at(-0.05, 0, 0.02);
    assert_int_equal(bt_report_judge_floor(0.01, &d), BT_VERDICT_OPEN);
    d = at(0.02, 0.03, 0.04);
    assert_int_equal(bt_report_judge_floor(0.01, &d), BT_VERDICT_FAILS);
}

static void no_data_and_shedding_are_verdicts_too(void **state)
{
    const struct bt_report_claim_rule rule = {0, -1, 0, false};
    struct bt_report_difference d = at(-0.5, -0.4, -0.3);

    (void)state;
    d.answered_subject = 0.98;
    assert_int_equal(bt_report_judge_claim(&rule, &d), BT_VERDICT_SHEDS);
    assert_int_equal(bt_report_judge_floor(0.01, &d), BT_VERDICT_SHEDS);
    d.answered_rival = 0.5; /* it is the rival that sheds */
    assert_int_equal(bt_report_judge_claim(&rule, &d), BT_VERDICT_HOLDS);
    d.known = false;
    assert_int_equal(bt_report_judge_tie(0.01, &d), BT_VERDICT_NO_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(point_estimates_are_means_of_each_seeds_statistic),
        cmocka_unit_test(
            the_interval_holds_the_truth_about_as_often_as_it_says),
        cmocka_unit_test(alike_is_zero_and_only_answered_requests_pair),
        cmocka_unit_test(claims_are_judged_by_mean_and_interval),
        cmocka_unit_test(ties_need_the_whole_interval_inside),
        cmocka_unit_test(no_data_and_shedding_are_verdicts_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
