/* Calibration: W12 of cost-models.md section 20, convergence from a wrong
 * preset, and garbage. Truth is a model the calibration never sees. */
#include "baton/base/rng.h"
#include "baton/planner/calibrate.h"
#include "cost_digits.h"

#define SEED 20260713

static double normal(struct bt_rng *rng)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += bt_rng_unit(rng);
    return sum;
}

/* ---- parts ---- */

static void w12_own_flows(void **state)
{
    struct bt_link_calibration c;

    (void)state;
    /* 0.250 s with 0.4 ms setup, 4.4 GB of ours beside it. */
    bt_link_calibration_init(&c, 50000000000);
    for (int i = 0; i < BT_LINK_WINDOW; i++)
        bt_link_observe(&c, 2684354560, 4400000000, 249600000);
    assert_digits((double)bt_link_rate(&c) / 1e9, 28.3828);
    for (int i = 0; i < BT_LINK_WINDOW; i++)
        bt_link_observe(&c, 2684354560, 0, 249600000);
    assert_digits((double)bt_link_rate(&c) / 1e9, 10.7546);
}

static void w12_rls(void **state)
{
    static const double start[3] = {0.4, 1, 20.8333};
    static const double p[3] = {0.04, 0.25, 40};
    struct bt_rls r;

    (void)state;
    bt_rls_init(&r, start, p, 0.99, 0.1);
    assert_true(bt_rls_update(&r, (double[]){1, 0.512, 0.335544}, 12.0));
    assert_digits(r.theta[0], 0.427160);
    assert_digits(r.theta[1], 1.08691);
    assert_digits(r.theta[2], 29.9465);
    assert_true(bt_rls_update(&r, (double[]){1, 4.096, 0.335544}, 15.5));
    assert_digits(r.theta[0], 0.427696);
    assert_digits(r.theta[1], 1.16366);
    assert_digits(r.theta[2], 30.1266);
    assert_true(bt_rls_update(&r, (double[]){1, 0.512, 2.684355}, 90.0));
    assert_digits(r.theta[0], 0.416204);
    assert_digits(r.theta[1], 1.08106);
    assert_digits(r.theta[2], 31.5280);
    assert_digits(bt_rls_predict(&r, (double[]){1, 1.024, 0.671089}), 22.6813);
    assert_int_equal(r.updates, 3);
}

static void w12_cusum(void **state)
{
    static const double z[] = {.02, -.05, .10, .35, .40, .38, .42};
    static const double up[] = {0, 0, .025, .3, .625, .93, 1.275};
    struct bt_cusum c, deaf;

    (void)state;
    bt_cusum_init(&c, 0.15);
    bt_cusum_init(&deaf, 0.15);
    deaf.h = (double)INFINITY; /* to see the sum go on */
    for (int i = 0; i < 7; i++) {
        assert_int_equal(bt_cusum_observe(&c, z[i]), i == 5);
        assert_false(bt_cusum_observe(&deaf, z[i]));
        assert_true(fabs(deaf.up - up[i]) < 1e-9);
    }
    assert_int_equal(c.alarms, 1);
    assert_true(fabs(c.up - (.42 - .075)) < 1e-9); /* started anew */
}

static void cusum_sees_both_sides(void **state)
{
    struct bt_cusum c;

    (void)state;
    bt_cusum_init(&c, 0.1);
    assert_false(bt_cusum_observe(&c, (double)NAN));
    assert_false(bt_cusum_observe(&c, (double)-INFINITY));
    assert_false(bt_cusum_observe(&c, -0.4));
    assert_true(bt_cusum_observe(&c, -0.4));
    assert_true(c.down == 0 && c.up == 0);
}

static void rls_refuses_garbage(void **state)
{
    static const double start[3] = {1, 2, 3};
    static const double p[3] = {1, 1, 1};
    static const double ys[] = {0, -1, (double)NAN, (double)INFINITY, 1e-320};
    struct bt_rls r, before;

    (void)state;
    bt_rls_init(&r, start, p, 0.99, 0.1);
    before = r;
    for (size_t i = 0; i < sizeof(ys) / sizeof(ys[0]); i++)
        assert_false(bt_rls_update(&r, (double[]){1, 1, 1}, ys[i]));
    assert_false(bt_rls_update(&r, (double[]){1, (double)NAN, 1}, 1));
    assert_false(bt_rls_update(&r, (double[]){1, (double)INFINITY, 1}, 1));
    assert_false(bt_rls_update(&r, (double[]){0, 0, 0}, 1)); /* nothing new */
    assert_int_equal(r.skipped, 8);
    before.skipped = 8;
    assert_memory_equal(&r, &before, sizeof(r));
}

static void rls_clamps(void **state)
{
    static const double start[3] = {1, 2, 3};
    static const double p[3] = {100, 100, 100};
    struct bt_rls r;

    (void)state;
    bt_rls_init(&r, start, p, 0.95, 0.1);
    r.floor[1] = 1.5;
    r.ceiling[2] = 4;
    for (int i = 0; i < 300; i++) {
        double x[3] = {1, 1 + i % 3, 1 + i % 7};

        bt_rls_update(&r, x, i % 2 ? 1e-3 : 1e6);
        assert_true(r.theta[0] >= 0);
        assert_true(r.theta[1] >= 1.5);
        assert_true(r.theta[2] >= 0 && r.theta[2] <= 4);
    }
}

/* Two thousand samples that are all the same, then something else. */
static void rls_does_not_wind_up(void **state)
{
    static const double start[3] = {1, 1, 1};
    static const double p[3] = {0.25, 0.25, 0.25};
    struct bt_rls r;
    double trace = 0;

    (void)state;
    bt_rls_init(&r, start, p, 0.95, 0.1);
    for (int i = 0; i < 2000; i++)
        bt_rls_update(&r, (double[]){1, 2, 3}, 6);
    for (int i = 0; i < 3; i++)
        trace += r.p[i][i];
    assert_true(trace < 5 * 0.75);
    /* What has been seen is still well known, and still followed. */
    assert_near(bt_rls_predict(&r, (double[]){1, 2, 3}), 6, 1e-9);
    for (int i = 0; i < 200; i++)
        bt_rls_update(&r, (double[]){1, 2, 3}, 9);
    assert_near(bt_rls_predict(&r, (double[]){1, 2, 3}), 9, 0.01);
}

static void residual_quantiles(void **state)
{
    struct bt_residual r;
    struct bt_rng rng;

    (void)state;
    bt_residual_init(&r, 1);
    assert_true(bt_residual_quantile(&r, 0.5) == 1);
    bt_rng_seed(&rng, SEED);
    for (int i = 0; i < 7; i++)
        bt_residual_observe(&r, 1);
    assert_true(bt_residual_sigma(&r, 0.15) == 0.15);
    bt_residual_init(&r, 1);
    for (int i = 0; i < 20000; i++)
        bt_residual_observe(&r, 1 + 0.2 * normal(&rng));
    /* Normal: median 1, p90 at 1.2816 sigma. */
    assert_near(bt_residual_quantile(&r, 0.5), 1, 0.01);
    assert_near(bt_residual_quantile(&r, 0.9), 1.25632, 0.01);
    assert_near(bt_residual_sigma(&r, 0.15), 0.2, 0.05);
}

static void residual_ignores_garbage(void **state)
{
    struct bt_residual r;

    (void)state;
    bt_residual_init(&r, 0.98);
    bt_residual_observe(&r, 0);
    bt_residual_observe(&r, -1);
    bt_residual_observe(&r, (double)NAN);
    bt_residual_observe(&r, (double)INFINITY);
    assert_true(r.total == 0);
    bt_residual_observe(&r, 1e-9); /* both ends take what is beyond */
    bt_residual_observe(&r, 1e9);
    assert_true(r.weight[0] == 0.98 && r.weight[63] == 1);
    /* Decay counts eight observations, not a weight of eight. */
    for (int i = 0; i < 5; i++)
        bt_residual_observe(&r, 1);
    assert_true(bt_residual_sigma(&r, 7) == 7);
    bt_residual_observe(&r, 1);
    assert_false(bt_residual_sigma(&r, 7) == 7);
}

/* ---- compute ---- */

static struct bt_compute_model preset(void)
{
    struct bt_compute_model m;

    assert_int_equal(bt_compute_preset("h100-70b-tp8", &m), BT_OK);
    return m;
}

static struct bt_compute_model scaled(struct bt_compute_model m, double by)
{
    m.prefill_a_ms *= by;
    m.prefill_b_ms *= by;
    m.prefill_c_ms *= by;
    m.decode_a_ms *= by;
    m.decode_b_ms *= by;
    m.decode_c_ms *= by;
    return m;
}

/* `count` prefills and decode steps of `truth` with relative noise. */
static void feed(struct bt_compute_calibration *c,
                 const struct bt_compute_model *truth, struct bt_rng *rng,
                 int count, double noise)
{
    for (int i = 0; i < count; i++) {
        uint64_t n = 64 + (uint64_t)exp(bt_rng_unit(rng) * 9);
        uint64_t h = bt_rng_below(rng, 3) ? bt_rng_below(rng, 20000) : 0;
        uint64_t batch = 1 + bt_rng_below(rng, 200);
        uint64_t ctx = batch * (100 + bt_rng_below(rng, 6000));
        double p = (double)bt_prefill_ns(truth, n, h);
        double d = (double)bt_decode_step_ns(truth, batch, ctx);

        p *= fmax(0.5, 1 + noise * normal(rng));
        d *= fmax(0.5, 1 + noise * normal(rng));
        bt_compute_observe_prefill(c, n, h, (int64_t)p);
        bt_compute_observe_decode(c, batch, ctx, (int64_t)d);
    }
}

static void assert_models_agree(const struct bt_compute_model *got,
                                const struct bt_compute_model *truth,
                                double rel)
{
    static const uint64_t ns[] = {256, 1000, 4000, 8000, 16000};

    for (size_t i = 0; i < 5; i++) {
        for (uint64_t h = 0; h <= 16000; h += 8000)
            assert_near((double)bt_prefill_ns(got, ns[i], h),
                        (double)bt_prefill_ns(truth, ns[i], h), rel);
        for (uint64_t b = 1; b <= 128; b *= 2)
            assert_near((double)bt_decode_step_ns(got, b, b * ns[i] / 3),
                        (double)bt_decode_step_ns(truth, b, b * ns[i] / 3),
                        rel);
    }
}

static void converges_from_30_percent(void **state)
{
    static const double off[] = {1.3, 0.7, 1 / 1.3, 1 / 0.7};
    struct bt_compute_model base = preset();

    (void)state;
    for (uint64_t seed = SEED; seed < SEED + 20; seed++) {
        struct bt_compute_model truth = scaled(base, off[seed % 4]);
        struct bt_compute_calibration c;
        struct bt_rng rng;

        bt_rng_seed(&rng, seed);
        bt_compute_calibration_init(&c, &base);
        assert_true(bt_compute_prefill_sigma(&c) == 0.15);
        assert_true(bt_compute_decode_sigma(&c) == 0.15);
        feed(&c, &truth, &rng, 200, 0.05);
        assert_models_agree(&c.model, &truth, 0.05);
        assert_in_range((int)(bt_compute_prefill_sigma(&c) * 1000), 25, 90);
        assert_in_range((int)(bt_compute_decode_sigma(&c) * 1000), 25, 90);
        assert_int_equal(c.outliers, 0);
    }
}

/* Another machine altogether: each coefficient off by a factor of its own. */
static void converges_from_another_preset(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_model truth;
    struct bt_compute_calibration c;
    struct bt_rng rng;

    (void)state;
    assert_int_equal(bt_compute_preset("a100-70b-tp8", &truth), BT_OK);
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    feed(&c, &truth, &rng, 400, 0.05);
    assert_models_agree(&c.model, &truth, 0.08);
}

/* Emulated engines run 100 times faster; the table stays in their own ms. */
static void speedup_is_kept_apart(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_model truth;
    struct bt_compute_calibration c;
    struct bt_rng rng;

    (void)state;
    base.speedup = 100;
    truth = scaled(base, 1.3);
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    feed(&c, &truth, &rng, 200, 0.02);
    assert_true(c.model.speedup == 100);
    assert_models_agree(&c.model, &truth, 0.03);
    assert_near(c.model.prefill_b_ms, truth.prefill_b_ms, 0.05);
}

static void own_predictions_change_nothing(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    feed(&c, &base, &rng, 1000, 0);
    assert_models_agree(&c.model, &base, 1e-6);
    assert_near(c.model.prefill_b_ms, base.prefill_b_ms, 1e-5);
    assert_int_equal(c.prefill_change.alarms + c.decode_change.alarms, 0);
}

static void garbage_is_counted_not_learned(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_calibration c;
    int64_t right = bt_prefill_ns(&base, 4000, 0);

    (void)state;
    bt_compute_calibration_init(&c, &base);
    bt_compute_observe_prefill(&c, 4000, 0, 0);
    bt_compute_observe_prefill(&c, 4000, 0, -5);
    bt_compute_observe_prefill(&c, 0, 0, 5);
    bt_compute_observe_decode(&c, 0, 0, 5);
    bt_compute_observe_decode(&c, 8, 100, 0);
    assert_int_equal(c.prefill.skipped, 3);
    assert_int_equal(c.decode.skipped, 2);
    bt_compute_observe_prefill(&c, 4000, 0, right * 1000);
    bt_compute_observe_prefill(&c, 4000, 0, right / 1000);
    bt_compute_observe_prefill(&c, 4000, 0, INT64_MAX);
    bt_compute_observe_prefill(&c, UINT64_MAX, UINT64_MAX, right);
    bt_compute_observe_decode(&c, UINT64_MAX, UINT64_MAX, 1);
    assert_int_equal(c.outliers, 5);
    assert_memory_equal(&c.model, &base, sizeof(base));
}

/* Every fifth sample is wrong by up to 1000 times either way, evenly over the
 * logarithm: the estimate may be led astray now and then, never far, and is
 * within 10 % most of the time. */
static void survives_outliers(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_model truth = scaled(base, 1.3);
    double right = (double)bt_prefill_ns(&truth, 4000, 0);
    struct bt_compute_calibration c;
    struct bt_rng rng;
    int astray = 0;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    for (int i = 0; i < 400; i++) {
        double by = exp((bt_rng_unit(&rng) * 2 - 1) * 6.9);
        double got;

        feed(&c, &truth, &rng, 4, 0.05);
        bt_compute_observe_prefill(&c, 4000, 0, (int64_t)(right * by));
        got = (double)bt_prefill_ns(&c.model, 4000, 0);
        assert_true(got > right / 2.25 && got < right * 2.25);
        astray += i >= 20 && fabs(got - right) > 0.1 * right;
    }
    assert_in_range(astray, 0, 80); /* of 380 */
    assert_in_range(c.outliers, 200, 330);
    feed(&c, &truth, &rng, 200, 0.05);
    assert_models_agree(&c.model, &truth, 0.05);
}

/* With P wide open the very first sample could set everything. */
static void one_sample_moves_by_half_at_most(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_calibration c;
    double right = (double)bt_prefill_ns(&base, 4000, 0);
    double got;

    (void)state;
    bt_compute_calibration_init(&c, &base);
    bt_compute_observe_prefill(&c, 4000, 0, (int64_t)(right * 5));
    got = (double)bt_prefill_ns(&c.model, 4000, 0);
    assert_true(got > right * 1.2 && got <= right * 1.5);
    bt_compute_calibration_init(&c, &base);
    bt_compute_observe_prefill(&c, 4000, 0, (int64_t)(right / 5));
    got = (double)bt_prefill_ns(&c.model, 4000, 0);
    assert_true(got < right / 1.2 && got >= right / 1.5);
}

static void identical_samples_then_a_mix(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_model truth = scaled(base, 1.3);
    struct bt_compute_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    for (int i = 0; i < 5000; i++) {
        bt_compute_observe_prefill(&c, 4000, 0, bt_prefill_ns(&truth, 4000, 0));
        bt_compute_observe_decode(&c, 64, 200000,
                                  bt_decode_step_ns(&truth, 64, 200000));
    }
    assert_near((double)bt_prefill_ns(&c.model, 4000, 0),
                (double)bt_prefill_ns(&truth, 4000, 0), 0.01);
    feed(&c, &truth, &rng, 200, 0.05);
    assert_models_agree(&c.model, &truth, 0.05);
}

/* A worker that slows down to half (a throttled GPU): seen, P reset, theta
 * kept, and right again within 100 samples. */
static void change_resets_p(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_model slow = scaled(base, 2);
    struct bt_compute_calibration c;
    struct bt_rng rng;
    double before[3] = {0};
    uint64_t n = 1;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    feed(&c, &base, &rng, 300, 0.03);
    assert_int_equal(c.prefill_change.alarms, 0);
    assert_true(c.prefill.p[1][1] < 0.2 * c.prefill.p_start[1]);
    for (; c.prefill_change.alarms == 0; n++) {
        assert_in_range(n, 1, 10);
        for (int i = 0; i < 3; i++)
            before[i] = c.prefill.theta[i];
        feed(&c, &slow, &rng, 1, 0.03);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(c.prefill.p[i][i] == c.prefill.p_start[i]);
        assert_true(c.prefill.theta[i] == before[i]);
    }
    assert_true(bt_compute_prefill_sigma(&c) == 0.15);
    feed(&c, &slow, &rng, 100, 0.03);
    assert_models_agree(&c.model, &slow, 0.05);
}

static void assert_compute_clamped(const struct bt_compute_calibration *c)
{
    for (int i = 0; i < 3; i++) {
        assert_true(c->prefill.theta[i] >= c->prefill.floor[i] &&
                    c->prefill.theta[i] <= c->prefill.ceiling[i]);
        assert_true(c->decode.theta[i] >= c->decode.floor[i] &&
                    c->decode.theta[i] <= c->decode.ceiling[i]);
    }
    assert_true(c->prefill.floor[1] > 0 && c->decode.floor[0] > 0);
}

static void alternating_regimes(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_model other = scaled(base, 6);
    struct bt_compute_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &base);
    for (int i = 0; i < 300; i++) {
        feed(&c, i % 2 ? &base : &other, &rng, 1 + i % 7, 0.05);
        assert_compute_clamped(&c);
    }
    assert_true(bt_compute_prefill_sigma(&c) >= 0.15);
    feed(&c, &base, &rng, 300, 0.05);
    assert_models_agree(&c.model, &base, 0.08);
}

static void presets_with_holes(void **state)
{
    struct bt_compute_model zero = {.speedup = 1};
    struct bt_compute_model bad = preset();
    struct bt_compute_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_compute_calibration_init(&c, &zero);
    feed(&c, &bad, &rng, 50, 0.05);
    assert_int_equal(c.prefill.updates, 0); /* nothing to compare with */
    bad.prefill_c_ms = (double)NAN;
    bad.decode_b_ms = -4;
    bt_compute_calibration_init(&c, &bad);
    zero = preset();
    feed(&c, &zero, &rng, 300, 0.05);
    assert_models_agree(&c.model, &zero, 0.08);
    bad.speedup = 0;
    bt_compute_calibration_init(&c, &bad);
    feed(&c, &zero, &rng, 50, 0.05);
    assert_int_equal(c.prefill.updates, 0);
}

/* Steadily 30 % off is not certain, however small the spread. */
static void bias_counts_as_uncertainty(void **state)
{
    struct bt_compute_model base = preset();
    struct bt_compute_calibration c;

    (void)state;
    bt_compute_calibration_init(&c, &base);
    for (int i = 0; i < 50; i++) {
        bt_residual_observe(&c.prefill_residual, 1.3);
        bt_residual_observe(&c.decode_residual, 1.001);
    }
    assert_near(bt_compute_prefill_sigma(&c), 0.3, 0.15);
    assert_true(bt_compute_decode_sigma(&c) < 0.06);
}

/* ---- transfers ---- */

struct path {
    double setup_ms, descriptor_us, rate;
};

static void send(struct bt_transfer_calibration *c, const struct path *truth,
                 struct bt_rng *rng, int count, double noise)
{
    for (int i = 0; i < count; i++) {
        uint64_t bytes = (uint64_t)exp(16 + bt_rng_unit(rng) * 6);
        uint64_t own = bt_rng_below(rng, 2) ? bt_rng_below(rng, bytes) : 0;
        uint64_t n = 1 + bt_rng_below(rng, 5000);
        double y = truth->setup_ms * 1e6 +
                   truth->descriptor_us * 1e3 * (double)n +
                   (double)(bytes + own) / truth->rate * 1e9;

        y *= fmax(0.5, 1 + noise * normal(rng));
        bt_transfer_observe(c, n, bytes, own, (int64_t)y);
    }
}

static void assert_path(const struct bt_transfer_calibration *c,
                        const struct path *truth, double rel)
{
    static const double gb[] = {0.05, 0.3, 1, 3};
    int64_t setup, descriptor;
    double rate;

    bt_transfer_model_get(c, &setup, &descriptor, &rate);
    for (int i = 0; i < 4; i++) {
        double n = 500 + 700.0 * i;

        assert_near((double)setup + n * (double)descriptor +
                        gb[i] * 1e18 / rate,
                    truth->setup_ms * 1e6 + truth->descriptor_us * 1e3 * n +
                        gb[i] * 1e18 / truth->rate,
                    rel);
    }
}

static void path_converges(void **state)
{
    struct path truth = {0.55, 1.4, 33e9};

    (void)state;
    for (uint64_t seed = SEED; seed < SEED + 20; seed++) {
        struct bt_transfer_calibration c;
        struct bt_rng rng;

        bt_rng_seed(&rng, seed);
        bt_transfer_calibration_init(&c, 400000, 1000, 48000000000);
        assert_true(bt_transfer_sigma(&c) == 0.3);
        send(&c, &truth, &rng, 200, 0.05);
        assert_path(&c, &truth, 0.05);
        assert_true(bt_transfer_sigma(&c) < 0.1);
        assert_int_equal(c.observations, 200);
        assert_false(c.fallback_suspected);
    }
}

static void path_clamps(void **state)
{
    struct path fast = {0.4, 1, 480e9};
    struct path dead = {0.4, 1, 48e6};
    struct bt_transfer_calibration c;
    struct bt_rng rng;
    int64_t setup, descriptor;
    double rate;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_transfer_calibration_init(&c, 400000, 1000, 48000000000);
    send(&c, &fast, &rng, 300, 0.05);
    bt_transfer_model_get(&c, &setup, &descriptor, &rate);
    assert_true(rate > 0.8 * 48e9);
    assert_true(rate <= 1.05 * 48e9 * (1 + 1e-9));
    assert_true(setup >= 0 && descriptor >= 0);
    send(&c, &dead, &rng, 300, 0.05);
    bt_transfer_model_get(&c, &setup, &descriptor, &rate);
    assert_true(rate < 0.1 * 48e9);
    assert_true(rate >= 0.05 * 48e9 * (1 - 1e-9));
    assert_true(setup <= 1000000000);
    for (int i = 0; i < 5000; i++)
        bt_transfer_observe(&c, 1 + (uint64_t)i % 9, 4096, 0, INT64_MAX);
    bt_transfer_model_get(&c, &setup, &descriptor, &rate);
    assert_true(setup <= 1000000000 && descriptor <= 1000000);
}

/* 81,920 descriptors: 82 ms of posting beside 7 of wire are no fallback. */
static void posting_is_no_fallback(void **state)
{
    struct bt_transfer_calibration c;

    (void)state;
    bt_transfer_calibration_init(&c, 400000, 1000, 48000000000);
    for (int i = 0; i < 50; i++)
        bt_transfer_observe(&c, 81920, 335544320, 0, 89000000);
    assert_false(c.fallback_suspected);
    for (int i = 0; i < 2; i++)
        bt_transfer_observe(&c, 81920, 335544320, 0, 689000000);
    assert_false(c.fallback_suspected); /* twice may be chance */
    bt_transfer_observe(&c, 81920, 335544320, 0, 689000000);
    assert_true(c.fallback_suspected);
}

/* RDMA falls back to TCP, 49 -> 0.55 GB/s; later it is mended. */
static void silent_fallback(void **state)
{
    struct path rdma = {0.4, 1, 48e9};
    struct path tcp = {0.4, 1, 0.55e9};
    struct bt_transfer_calibration c;
    struct bt_rng rng;
    int64_t setup, descriptor;
    double rate;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_transfer_calibration_init(&c, 400000, 1000, 49000000000);
    send(&c, &rdma, &rng, 200, 0.05);
    assert_false(c.fallback_suspected || c.changed);
    send(&c, &tcp, &rng, 20, 0.05);
    assert_true(c.fallback_suspected);
    assert_true(c.changed);
    assert_true(bt_transfer_sigma(&c) >= 0.3);
    send(&c, &tcp, &rng, 20, 0.05);
    bt_transfer_model_get(&c, &setup, &descriptor, &rate);
    assert_true(rate < 49e9 / 10);
    send(&c, &rdma, &rng, 100, 0.05);
    assert_false(c.fallback_suspected);
    assert_path(&c, &rdma, 0.1);
}

/* Half the rate is a change, not a fallback; it settles. */
static void change_settles(void **state)
{
    struct path before = {0.4, 1, 48e9};
    struct path after = {0.4, 1, 20e9};
    struct bt_transfer_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_transfer_calibration_init(&c, 400000, 1000, 49000000000);
    send(&c, &before, &rng, 200, 0.05);
    assert_false(c.changed);
    send(&c, &after, &rng, 15, 0.05);
    assert_true(c.changed);
    assert_true(bt_transfer_sigma(&c) >= 0.3);
    send(&c, &after, &rng, 100, 0.05);
    assert_false(c.changed || c.fallback_suspected);
    assert_true(bt_transfer_sigma(&c) < 0.1);
    assert_path(&c, &after, 0.05);
}

static void path_garbage(void **state)
{
    struct path truth = {0.4, 1, 40e9};
    struct bt_transfer_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_transfer_calibration_init(&c, 400000, 1000, 48000000000);
    bt_transfer_observe(&c, 1, 1000, 0, 0);
    bt_transfer_observe(&c, 1, 1000, 0, -1);
    bt_transfer_observe(&c, 1, 0, 0, 1000);
    assert_int_equal(c.observations, 0);
    send(&c, &truth, &rng, 200, 0.05);
    for (int i = 0; i < 60; i++) {
        bt_transfer_observe(&c, i % 2 ? UINT64_MAX : 1,
                            i % 3 ? UINT64_MAX : 1 << 30,
                            i % 5 ? UINT64_MAX : 0, i % 7 ? 1 : INT64_MAX);
        send(&c, &truth, &rng, 30, 0.05);
    }
    send(&c, &truth, &rng, 200, 0.05);
    assert_path(&c, &truth, 0.06);
    /* A path without a rate stays infeasible. */
    bt_transfer_calibration_init(&c, -5, -5, 0);
    bt_transfer_observe(&c, 1, 1 << 30, 0, 1000000);
    {
        int64_t setup, descriptor;
        double rate;

        bt_transfer_model_get(&c, &setup, &descriptor, &rate);
        assert_true(rate == 0 && setup == 0 && descriptor == 0);
    }
}

static void one_outlier_moves_little(void **state)
{
    struct path truth = {0.4, 1, 40e9};
    struct bt_transfer_calibration c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_transfer_calibration_init(&c, 400000, 1000, 48000000000);
    send(&c, &truth, &rng, 200, 0.05);
    bt_transfer_observe(&c, 100, 1 << 30, 0, 27000000000); /* 1000 times */
    assert_path(&c, &truth, 0.10);
    assert_false(c.changed || c.fallback_suspected);
}

/* ---- links ---- */

#define LINK 50000000000ULL

static int64_t at_rate(double rate)
{
    return (int64_t)((double)(1 << 30) / rate * 1e9);
}

static void degraded_link_is_seen(void **state)
{
    struct bt_link_calibration c;
    struct bt_rng rng;
    int told = 0;

    (void)state;
    bt_rng_seed(&rng, SEED);
    bt_link_calibration_init(&c, LINK);
    assert_true(bt_link_rate(&c) == LINK);
    for (int i = 0; i < 100; i++)
        assert_false(bt_link_observe(
            &c, 1 << 30, 0, at_rate(49e9 * (1 - 0.1 * bt_rng_unit(&rng)))));
    for (int i = 0; i < 20; i++)
        told += bt_link_observe(&c, 1 << 30, 0, at_rate(12.5e9));
    assert_in_range(told, 1, 2); /* once, or in two steps as noise leaves */
    assert_near((double)bt_link_rate(&c), 12.5e9, 0.01);
    /* Mended: the first full transfer shows it. */
    assert_true(bt_link_observe(&c, 1 << 30, 0, at_rate(49e9)));
    assert_near((double)bt_link_rate(&c), 49e9, 0.01);
}

/* 15 of 16 transfers were held back by some other link. */
static void healthy_link_is_left_alone(void **state)
{
    struct bt_link_calibration c;

    (void)state;
    bt_link_calibration_init(&c, LINK);
    for (int i = 0; i < 320; i++) {
        double rate = i % 16 == 15 ? 49e9 : 6e9;

        assert_false(bt_link_observe(&c, 1 << 30, 0, at_rate(rate)));
        assert_true((double)bt_link_rate(&c) >= 48.9e9);
    }
}

static void link_clamps(void **state)
{
    struct bt_link_calibration c;

    (void)state;
    bt_link_calibration_init(&c, LINK);
    assert_false(bt_link_observe(&c, 0, 0, 5));
    assert_false(bt_link_observe(&c, 5, 0, 0));
    assert_false(bt_link_observe(&c, 5, 0, -7));
    assert_int_equal(c.count, 0);
    bt_link_observe(&c, UINT64_MAX, UINT64_MAX, 1);
    assert_near((double)bt_link_rate(&c), 1.05 * LINK, 1e-9);
    for (int i = 0; i < 16; i++)
        bt_link_observe(&c, 1, 0, INT64_MAX);
    assert_near((double)bt_link_rate(&c), 0.02 * LINK, 1e-9);
    bt_link_calibration_init(&c, 0);
    bt_link_observe(&c, 1 << 30, 0, 1000);
    assert_int_equal(bt_link_rate(&c), 0);
}

/* A slow slide is told too, once each 10 %. */
static void slide_is_told(void **state)
{
    struct bt_link_calibration c;
    int told = 0;

    (void)state;
    bt_link_calibration_init(&c, LINK);
    for (int i = 0; i < 400; i++)
        told +=
            bt_link_observe(&c, 1 << 30, 0, at_rate(50e9 * (1 - i * 0.002)));
    assert_in_range(told, 10, 17);
}

/* ---- set-up ---- */

/* Configured 5 ms. Nothing that fewer than half of the last 31 say counts; then
 * the median, told once per 10 %. */
static void setup_is_the_median(void **state)
{
    struct bt_setup_calibration c;

    (void)state;
    bt_setup_calibration_init(&c, 5000000);
    assert_int_equal(bt_setup_ns(&c), 5000000);
    for (int i = 0; i < 15; i++)
        assert_false(bt_setup_observe(&c, 900000000));
    assert_int_equal(bt_setup_ns(&c), 5000000);
    for (int i = 0; i < 15; i++) /* push the rest of the start out */
        assert_false(bt_setup_observe(&c, 5000000));
    /* 15 x 900 ms and 16 x 5 ms in it; then ms 1, 2, 3 ... one by one: the
     * outliers leave first, so the median stays 5 until 16 are below. */
    for (int i = 0; i < 15; i++)
        assert_false(bt_setup_observe(&c, 2000000));
    assert_true(bt_setup_observe(&c, 2000000));
    assert_int_equal(bt_setup_ns(&c), 2000000);
    for (int i = 0; i < 40; i++) /* within 10 % */
        assert_false(bt_setup_observe(&c, 2190000));
    assert_int_equal(bt_setup_ns(&c), 2000000);
    for (int i = 0; i < 15; i++)
        assert_false(bt_setup_observe(&c, 2210000));
    assert_true(bt_setup_observe(&c, 2210000));
    assert_int_equal(bt_setup_ns(&c), 2210000);
}

static void setup_clamps(void **state)
{
    struct bt_setup_calibration c;

    (void)state;
    bt_setup_calibration_init(&c, 0);
    for (int i = 0; i < 40; i++) /* under 100 us: not worth telling */
        assert_false(bt_setup_observe(&c, 90000));
    assert_int_equal(bt_setup_ns(&c), 0);
    for (int i = 0; i < 40; i++)
        (void)bt_setup_observe(&c, INT64_MAX);
    assert_int_equal(bt_setup_ns(&c), 1000000000);
    for (int i = 0; i < 40; i++)
        (void)bt_setup_observe(&c, INT64_MIN);
    assert_int_equal(bt_setup_ns(&c), 0);
    bt_setup_calibration_init(&c, 2000000000);
    for (int i = 0; i < 40; i++)
        (void)bt_setup_observe(&c, INT64_MAX);
    assert_int_equal(bt_setup_ns(&c), 20000000000);
    bt_setup_calibration_init(&c, BT_COST_INFINITE - 1);
    for (int i = 0; i < 40; i++)
        (void)bt_setup_observe(&c, INT64_MAX);
    assert_true(bt_setup_ns(&c) > 0 && bt_setup_ns(&c) < BT_COST_INFINITE);
    bt_setup_calibration_init(&c, -5);
    assert_int_equal(bt_setup_ns(&c), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w12_own_flows),
        cmocka_unit_test(w12_rls),
        cmocka_unit_test(w12_cusum),
        cmocka_unit_test(cusum_sees_both_sides),
        cmocka_unit_test(rls_refuses_garbage),
        cmocka_unit_test(rls_clamps),
        cmocka_unit_test(rls_does_not_wind_up),
        cmocka_unit_test(residual_quantiles),
        cmocka_unit_test(residual_ignores_garbage),
        cmocka_unit_test(converges_from_30_percent),
        cmocka_unit_test(converges_from_another_preset),
        cmocka_unit_test(speedup_is_kept_apart),
        cmocka_unit_test(own_predictions_change_nothing),
        cmocka_unit_test(garbage_is_counted_not_learned),
        cmocka_unit_test(survives_outliers),
        cmocka_unit_test(one_sample_moves_by_half_at_most),
        cmocka_unit_test(identical_samples_then_a_mix),
        cmocka_unit_test(change_resets_p),
        cmocka_unit_test(alternating_regimes),
        cmocka_unit_test(presets_with_holes),
        cmocka_unit_test(bias_counts_as_uncertainty),
        cmocka_unit_test(path_converges),
        cmocka_unit_test(path_clamps),
        cmocka_unit_test(posting_is_no_fallback),
        cmocka_unit_test(silent_fallback),
        cmocka_unit_test(change_settles),
        cmocka_unit_test(path_garbage),
        cmocka_unit_test(one_outlier_moves_little),
        cmocka_unit_test(degraded_link_is_seen),
        cmocka_unit_test(healthy_link_is_left_alone),
        cmocka_unit_test(link_clamps),
        cmocka_unit_test(slide_is_told),
        cmocka_unit_test(setup_is_the_median),
        cmocka_unit_test(setup_clamps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
