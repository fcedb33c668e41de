/* The pure part of probing: plans within their bounds, lines found again under
 * noise and outliers, standard errors that match the scatter of many fits, and
 * shares worked out by hand and by small steps of time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "baton/transfer/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MB 1000000ull

static void near(double got, double want, double part)
{
    if (fabs(got - want) > part * fabs(want) + 1e-9)
        fail_msg("got %g, want %g within %g", got, want, part);
}

/* ---- plans ---- */

static const struct bt_probe_limits roomy = {.bytes_max = 1ull << 30,
                                             .longest_ns = 100000000,
                                             .blocks = 16384,
                                             .rate_bytes_per_s = 50000000,
                                             .repeats = 5};

static uint64_t largest_in(const struct bt_probe_point *p, size_t n)
{
    uint64_t largest = 0;

    for (size_t i = 0; i < n; i++)
        largest = p[i].bytes > largest ? p[i].bytes : largest;
    return largest;
}

static void test_plan_by_rate(void **state)
{
    struct bt_probe_point p[BT_PROBE_PLAN_MAX];
    struct bt_rng rng;
    uint32_t with[4] = {0}, many = 0;

    (void)state;
    bt_rng_seed(&rng, 1);
    assert_int_equal(bt_probe_plan(&roomy, &rng, p), 35);
    /* 5 MB in 100 ms: 4 MiB is the power of two nearest below */
    assert_int_equal(largest_in(p, 35), 4 << 20);
    for (int i = 0; i < 35; i++) {
        for (int k = 0; k < 4; k++)
            with[k] +=
                p[i].bytes == 4ull << (20 - 2 * k) && p[i].descriptors == 1;
        many += p[i].descriptors > 1;
        assert_true(p[i].descriptors <= p[i].bytes / BT_PROBE_BLOCK_BYTES);
    }
    for (int k = 0; k < 4; k++)
        assert_int_equal(with[k], 5);
    assert_int_equal(many, 15);
}

static void test_plan_is_bounded(void **state)
{
    struct bt_probe_point p[BT_PROBE_PLAN_MAX];
    struct bt_rng rng;
    size_t planned = 0;

    (void)state;
    bt_rng_seed(&rng, 2);
    for (uint64_t max = 100000; max < 1ull << 32; max = max * 3 / 2) {
        for (uint64_t blocks = 4; blocks < 1 << 20; blocks *= 4) {
            struct bt_probe_limits l = roomy;

            l.bytes_max = max;
            l.blocks = blocks;
            l.rate_bytes_per_s = max * blocks;
            size_t n = bt_probe_plan(&l, &rng, p);
            planned += n > 0;
            assert_true(bt_probe_plan_bytes(p, n) <= max);
            for (size_t i = 0; i < n; i++)
                assert_true(p[i].bytes / BT_PROBE_BLOCK_BYTES +
                                p[i].descriptors - 1 <=
                            blocks);
        }
    }
    assert_true(planned > 50);
}

static void test_plan_gives_up_repeats_first(void **state)
{
    struct bt_probe_limits l = roomy;
    struct bt_probe_point p[BT_PROBE_PLAN_MAX];
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 3);
    l.bytes_max = 25ull << 20; /* 7.6 MiB once: three times */
    assert_int_equal(bt_probe_plan(&l, &rng, p), 21);
    assert_int_equal(largest_in(p, 21), 4 << 20);
    l.bytes_max = 22ull << 20;
    assert_int_equal(bt_probe_plan(&l, &rng, p), 21);
    assert_int_equal(largest_in(p, 21), 2 << 20);
    l.bytes_max = 300000;
    assert_int_equal(bt_probe_plan(&l, &rng, p), 0);
}

static void test_plan_is_shuffled(void **state)
{
    struct bt_probe_point a[BT_PROBE_PLAN_MAX], b[BT_PROBE_PLAN_MAX];
    struct bt_rng one, same, two;

    (void)state;
    bt_rng_seed(&one, 1);
    bt_rng_seed(&same, 1);
    bt_rng_seed(&two, 2);
    bt_probe_plan(&roomy, &one, a);
    bt_probe_plan(&roomy, &same, b);
    assert_memory_equal(a, b, 35 * sizeof(a[0]));
    bt_probe_plan(&roomy, &two, b);
    assert_memory_not_equal(a, b, 35 * sizeof(a[0]));
}

/* ---- lines ---- */

struct truth {
    double setup_ns, descriptor_ns, byte_ns, credit, noise, outliers;
    uint64_t slow_below; /* sizes below take slow_ns more */
    double slow_ns;
};

static double gauss(struct bt_rng *rng)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += bt_rng_unit(rng);
    return sum;
}

static int64_t true_ns(const struct truth *t, uint64_t bytes,
                       uint32_t descriptors, struct bt_rng *rng)
{
    double ns = t->setup_ns + t->descriptor_ns * descriptors +
                fmax((double)bytes - t->credit, 0) * t->byte_ns;

    if (bytes < t->slow_below)
        ns += t->slow_ns;
    ns *= 1 + t->noise * gauss(rng);
    if (bt_rng_unit(rng) < t->outliers)
        ns += 200e6; /* a retransmission timer */
    return (int64_t)ns;
}

static size_t sample(const struct truth *t, uint64_t seed,
                     struct bt_probe_sample *out)
{
    struct bt_probe_point p[BT_PROBE_PLAN_MAX];
    struct bt_rng rng;

    bt_rng_seed(&rng, seed);
    size_t n = bt_probe_plan(&roomy, &rng, p);
    for (size_t i = 0; i < n; i++)
        out[i] = (struct bt_probe_sample){
            p[i].bytes, p[i].descriptors,
            true_ns(t, p[i].bytes, p[i].descriptors, &rng)};
    return n;
}

static struct bt_probe_fit fit_of(const struct truth *t, uint64_t seed)
{
    struct bt_probe_sample s[BT_PROBE_PLAN_MAX];
    struct bt_probe_fit fit;
    size_t n = sample(t, seed, s);

    if (bt_probe_fit(s, n, &fit) != BT_OK)
        fail_msg("seed %llu", (unsigned long long)seed);
    return fit;
}

static void test_line_without_noise(void **state)
{
    const struct truth t = {
        .setup_ns = 1e6, .descriptor_ns = 2e3, .byte_ns = 20};
    struct bt_probe_fit fit = fit_of(&t, 1);

    (void)state;
    near(fit.setup_ns, 1e6, 1e-4);
    near(fit.descriptor_ns, 2e3, 1e-4);
    near(fit.byte_ns, 20, 1e-6);
    assert_true(fit.credit_bytes == 0);
    assert_true(fit.is_line);
    assert_int_equal(fit.linear_from, 65536);
    assert_int_equal(fit.samples, 35);
    near(bt_probe_alone_ns(&fit, 10 * MB, 100), 1e6 + 2e5 + 2e8, 1e-5);
    assert_true(bt_probe_alone_ns(&fit, 0, 1) == 0);
}

/* A bucket of 56 KiB at 25 MB/s with 100 us of set-up: the line meets zero
 * time at 57344 - 100000 / 40 bytes. */
static void test_credit(void **state)
{
    const struct truth t = {.setup_ns = 1e5, .byte_ns = 40, .credit = 57344};
    struct bt_probe_fit fit = fit_of(&t, 1);

    (void)state;
    near(fit.credit_bytes, 54844, 1e-3);
    assert_true(fit.setup_ns == 0);
    near(fit.byte_ns, 40, 1e-4);
    near(bt_probe_alone_ns(&fit, 1 << 20, 1), 1e5 + (1048576 - 57344) * 40.0,
         1e-4);
}

static void test_noise_and_outliers(void **state)
{
    const struct truth t = {.setup_ns = 1e6,
                            .descriptor_ns = 5e3,
                            .byte_ns = 20,
                            .noise = 0.02,
                            .outliers = 0.02};
    double setup = 0, descriptor = 0, rate = 0, sigma = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct bt_probe_fit fit = fit_of(&t, seed);

        near(fit.byte_ns, 20, 0.06);
        sigma += fit.sigma / 200;
        setup += fit.setup_ns / 200;
        descriptor += fit.descriptor_ns / 200;
        rate += fit.byte_ns / 200;
    }
    near(rate, 20, 0.01);
    near(sigma, 0.02, 0.3);
    near(setup, 1e6, 0.1);
    near(descriptor, 5e3, 0.1);
}

/* Of many fits: the scatter is what each says of itself. */
static void test_standard_errors(void **state)
{
    const struct truth t = {
        .setup_ns = 5e6, .descriptor_ns = 2e4, .byte_ns = 20, .noise = 0.03};
    double sum[3] = {0}, square[3] = {0}, said[3] = {0};
    int n = 400;

    (void)state;
    for (int i = 0; i < n; i++) {
        struct bt_probe_fit fit = fit_of(&t, 1000 + (uint64_t)i);
        const double v[3] = {fit.setup_ns, fit.descriptor_ns, fit.byte_ns};
        const double e[3] = {fit.setup_error_ns, fit.descriptor_error_ns,
                             fit.byte_error_ns};

        for (int k = 0; k < 3; k++) {
            sum[k] += v[k] / n;
            square[k] += v[k] * v[k] / n;
            said[k] += e[k] / n;
        }
    }
    for (int k = 0; k < 3; k++) {
        double scatter = sqrt(square[k] - sum[k] * sum[k]);

        if (said[k] < 0.6 * scatter || said[k] > 2.2 * scatter)
            fail_msg("parameter %d: scatter %g, said %g", k, scatter, said[k]);
    }
}

static void test_line_begins_above_slow_start(void **state)
{
    const struct truth t = {.setup_ns = 1e6,
                            .byte_ns = 20,
                            .noise = 0.005,
                            .slow_below = 200000,
                            .slow_ns = 3e6};
    struct bt_probe_fit fit = fit_of(&t, 7);

    (void)state;
    assert_true(fit.is_line);
    assert_int_equal(fit.linear_from, 262144);
    near(fit.byte_ns, 20, 0.02);
    /* there, what was measured: 64 KiB in 1 + 1.31 + 3 ms */
    near(bt_probe_alone_ns(&fit, 65536, 1), 5.31e6, 0.03);
    double between = bt_probe_alone_ns(&fit, 128 << 10, 1);
    assert_true(between > 5.31e6 && between < 6.3e6);
    assert_int_equal(fit.samples, 30);
}

static void test_no_line(void **state)
{
    struct bt_probe_sample s[] = {{1 << 16, 1, 1000000},
                                  {1 << 18, 1, 1100000},
                                  {1 << 20, 1, 30000000},
                                  {1 << 22, 1, 31000000}};
    struct bt_probe_fit fit;

    (void)state;
    assert_int_equal(bt_probe_fit(s, 4, &fit), BT_OK);
    assert_false(fit.is_line);
}

static void test_descriptors_cost_nothing_less(void **state)
{
    const struct truth t = {
        .setup_ns = 3e6, .descriptor_ns = -1e3, .byte_ns = 20};
    struct bt_probe_fit fit = fit_of(&t, 1);

    (void)state;
    assert_true(fit.descriptor_ns == 0);
    assert_true(fit.byte_ns > 0);
}

static void test_refused(void **state)
{
    struct bt_probe_sample s[80] = {{4096, 1, 1000}, {4096, 2, 1100}};
    struct bt_probe_fit fit;

    (void)state;
    assert_int_equal(bt_probe_fit(s, 0, &fit), BT_INVALID);
    assert_int_equal(bt_probe_fit(s, 2, &fit), BT_INVALID); /* one size */
    s[1] = (struct bt_probe_sample){8192, 1, 0};
    assert_int_equal(bt_probe_fit(s, 2, &fit), BT_INVALID);
    s[1] = (struct bt_probe_sample){8192, 1, 900}; /* faster when larger */
    assert_int_equal(bt_probe_fit(s, 2, &fit), BT_OK);
    assert_true(fit.byte_ns > 0 && fit.setup_ns >= 0);
    for (uint32_t i = 0; i < 80; i++)
        s[i] = (struct bt_probe_sample){4096 * (1 + i % 2), i + 1, 1000};
    assert_int_equal(bt_probe_fit(s, 80, &fit), BT_INVALID);
}

/* ---- shares ---- */

static const struct bt_probe_fit ten = {.byte_ns = 100}; /* 10 MB/s */
static const struct bt_probe_fit two = {.byte_ns = 500};

static void predict(const struct bt_probe_ends *ends,
                    struct bt_probe_flow *flows, size_t n)
{
    size_t bytes = (bt_probe_scratch(n, ends->count) + 15) / 16 * 16;
    void *scratch = aligned_alloc(16, bytes);

    assert_non_null(scratch);
    memset(scratch, 0, bytes);
    bt_probe_predict(ends, flows, n, scratch);
    free(scratch);
}

static void test_two_into_one(void **state)
{
    const double rates[3] = {10e6, 10e6, 10e6};
    const struct bt_probe_ends ends = {rates, rates, 3};
    struct bt_probe_flow f[2] = {
        {.from = 0, .to = 2, .bytes = 10 * MB, .fit = &ten},
        {.from = 1, .to = 2, .bytes = 20 * MB, .fit = &ten}};

    (void)state;
    predict(&ends, f, 2);
    near(f[0].ns, 2e9, 1e-9);
    near(f[1].ns, 3e9, 1e-9);
    f[1].start_ns = 500000000; /* 5 MB in 0.5 s, 5 MB in 1 s */
    predict(&ends, f, 2);
    near(f[0].ns, 1.5e9, 1e-9);
    near(f[1].ns, 2.5e9, 1e-9);
    f[1].start_ns = 2000000000; /* after the first */
    predict(&ends, f, 2);
    near(f[0].ns, 1e9, 1e-9);
    near(f[1].ns, 2e9, 1e-9);
    f[1] = (struct bt_probe_flow){
        .from = 1, .to = 2, .bytes = 2 * MB, .fit = &two};
    predict(&ends, f, 2); /* 8 and 2, then 10 */
    near(f[1].ns, 1e9, 1e-9);
    near(f[0].ns, 1.2e9, 1e-9);
}

/* Both ends matter: the first flow gets what the second cannot use. */
static void test_source_and_sink(void **state)
{
    const double out[4] = {10e6, 10e6, 0, 0}, in[4] = {0, 0, 10e6, 4e6};
    const struct bt_probe_ends ends = {out, in, 4};
    struct bt_probe_flow f[3] = {
        {.from = 0, .to = 2, .bytes = 16 * MB, .fit = &ten},
        {.from = 0, .to = 3, .bytes = 4 * MB, .fit = &ten},
        {.from = 1, .to = 3, .bytes = 8 * MB, .fit = &ten}};

    (void)state;
    predict(&ends, f, 3);
    near(f[0].ns, 2e9, 1e-9);
    near(f[1].ns, 2e9, 1e-9);
    near(f[2].ns, 3e9, 1e-9);
}

static void test_queue_of_the_sender(void **state)
{
    const double rates[3] = {10e6, 10e6, 10e6};
    const struct bt_probe_ends ends = {rates, rates, 3};
    struct bt_probe_flow f[2] = {
        {.from = 0, .to = 1, .bytes = 30 * MB, .window_bytes = MB, .fit = &ten},
        {.from = 0,
         .to = 2,
         .bytes = 5 * MB,
         .start_ns = 1000000000,
         .fit = &ten}};

    (void)state;
    predict(&ends, f, 2); /* 1 MB before it: 0.1 s */
    near(f[1].ns, 1.1e9, 1e-9);
    near(f[0].ns, 3.5e9, 1e-9);
    f[1].start_ns = 100000; /* at once: nothing is queued yet */
    predict(&ends, f, 2);
    near(f[1].ns, 1e9, 1e-3);
}

static void test_credit_is_shared(void **state)
{
    const struct bt_probe_fit lent = {.byte_ns = 100, .credit_bytes = 1e6};
    const double rates[3] = {10e6, 10e6, 10e6};
    const struct bt_probe_ends ends = {rates, rates, 3};
    struct bt_probe_flow f[2] = {
        {.from = 0, .to = 2, .bytes = 10 * MB, .fit = &lent},
        {.from = 1, .to = 2, .bytes = 10 * MB, .fit = &lent}};

    (void)state;
    predict(&ends, f, 1);
    near(f[0].ns, 0.9e9, 1e-9);
    predict(&ends, f, 2);
    near(f[0].ns, 1.9e9, 1e-9);
    near(f[1].ns, 1.9e9, 1e-9);
}

/* Second implementation: a tenth of a per cent of the time at a step, shares by
 * raising all rates a little until something is full. */
static void step_rates(const struct bt_probe_ends *e,
                       const struct bt_probe_flow *f, const double *left,
                       const double *begin, double now, size_t n, double *rate)
{
    double out[8] = {0}, in[8] = {0};
    bool stuck[8] = {false};

    memset(rate, 0, n * sizeof(*rate));
    for (double grown = 0; grown < 10e6; grown += 1e4) {
        for (size_t i = 0; i < n; i++) {
            uint32_t a = f[i].from, b = f[i].to;

            if (left[i] <= 0 || now < begin[i] || stuck[i])
                continue;
            stuck[i] = rate[i] + 1e4 > 1e9 / f[i].fit->byte_ns + 1 ||
                       out[a] + 1e4 > e->out[a] + 1 ||
                       in[b] + 1e4 > e->in[b] + 1;
            if (stuck[i])
                continue;
            rate[i] += 1e4;
            out[a] += 1e4;
            in[b] += 1e4;
        }
    }
}

static void by_steps(const struct bt_probe_ends *e,
                     const struct bt_probe_flow *f, size_t n, double *ns)
{
    double left[8], begin[8], rate[8], step = 2e6;
    size_t open = n;

    for (size_t i = 0; i < n; i++) {
        left[i] = (double)f[i].bytes;
        begin[i] = (double)f[i].start_ns + f[i].fit->setup_ns;
    }
    for (double now = 0; open > 0; now += step) {
        step_rates(e, f, left, begin, now, n, rate);
        for (size_t i = 0; i < n; i++) {
            if (left[i] <= 0 || rate[i] == 0)
                continue;
            left[i] -= rate[i] * step / 1e9;
            if (left[i] > 0)
                continue;
            ns[i] = now + step - (double)f[i].start_ns;
            open--;
        }
    }
}

static void test_against_small_steps(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 11);
    for (int round = 0; round < 12; round++) {
        struct bt_probe_fit fits[6];
        struct bt_probe_flow f[6];
        double out[4], in[4], want[6];
        const struct bt_probe_ends ends = {out, in, 4};

        for (int i = 0; i < 4; i++) {
            out[i] = 1e6 * (double)(2 + bt_rng_below(&rng, 9));
            in[i] = 1e6 * (double)(2 + bt_rng_below(&rng, 9));
        }
        for (int i = 0; i < 6; i++) {
            memset(&fits[i], 0, sizeof(fits[i]));
            fits[i].byte_ns = 1000.0 / (double)(1 + bt_rng_below(&rng, 10));
            fits[i].setup_ns = 1e6 * (double)bt_rng_below(&rng, 50);
            f[i] = (struct bt_probe_flow){
                .from = (uint32_t)bt_rng_below(&rng, 4),
                .to = (uint32_t)bt_rng_below(&rng, 4),
                .bytes = MB + bt_rng_below(&rng, 3 * MB),
                .start_ns = (int64_t)bt_rng_below(&rng, 500000000),
                .fit = &fits[i]};
        }
        predict(&ends, f, 6);
        by_steps(&ends, f, 6, want);
        for (int i = 0; i < 6; i++)
            near(f[i].ns, want[i], 0.03);
    }
}

static void test_link_rate(void **state)
{
    const struct bt_probe_fit fit = {.byte_ns = 100, .setup_ns = 1e8};
    struct bt_probe_flow f[3] = {{.bytes = 10 * MB, .fit = &fit},
                                 {.bytes = 10 * MB, .fit = &fit},
                                 {.bytes = 10 * MB, .fit = &fit}};

    (void)state;
    near(bt_probe_link_rate(f, 3, 3.1e9), 10e6, 1e-9);
    assert_true(bt_probe_link_rate(f, 3, 1e8) == 0);
    assert_true(bt_probe_link_rate(f, 0, 1e9) == 0);
}

static void test_errors(void **state)
{
    double e[4] = {-0.1, 0.2, 0.05, -0.4};
    struct bt_probe_error out;

    (void)state;
    bt_probe_errors(e, 4, &out);
    assert_int_equal(out.count, 4);
    near(out.median, 0.1, 1e-12);
    near(out.p95, 0.4, 1e-12);
    near(out.worst, 0.4, 1e-12);
    near(out.bias, -0.1, 1e-12);
    double twenty[20];
    for (int i = 0; i < 20; i++)
        twenty[i] = 0.01 * (i + 1);
    bt_probe_errors(twenty, 20, &out);
    near(out.median, 0.10, 1e-12);
    near(out.p95, 0.19, 1e-12);
    bt_probe_errors(twenty, 0, &out);
    assert_int_equal(out.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_by_rate),
        cmocka_unit_test(test_plan_is_bounded),
        cmocka_unit_test(test_plan_gives_up_repeats_first),
        cmocka_unit_test(test_plan_is_shuffled),
        cmocka_unit_test(test_line_without_noise),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_noise_and_outliers),
        cmocka_unit_test(test_standard_errors),
        cmocka_unit_test(test_line_begins_above_slow_start),
        cmocka_unit_test(test_no_line),
        cmocka_unit_test(test_descriptors_cost_nothing_less),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_two_into_one),
        cmocka_unit_test(test_source_and_sink),
        cmocka_unit_test(test_queue_of_the_sender),
        cmocka_unit_test(test_credit_is_shared),
        cmocka_unit_test(test_against_small_steps),
        cmocka_unit_test(test_link_rate),
        cmocka_unit_test(test_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
