/* What the planner knows: it sees no prefix without events, an old or partial
 * view with lag and loss, and wrong times when it is told wrong ones. The
 * world is the same throughout. */
#include "sim_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

static struct bed *open_load(void)
{
    struct bed *b = bed_open(3, 2);

    b->config.policy = "joint";
    b->config.hold.enabled = false;
    b->config.knowledge.calibrate = false;
    load_add(b, 300, 8, 31);
    return b;
}

static uint64_t predicted_overlap(struct bed *b)
{
    const struct bt_sim_record *r = bed_run(b);
    uint64_t sum = 0;

    if (b->result.check_failures != 0)
        fail_msg("%s", b->result.first_failure);
    for (size_t i = 0; i < b->result.count; i++)
        sum += r[i].predicted_overlap;
    return sum;
}

static void test_events(void **state)
{
    struct bed *b = open_load();
    uint64_t exact, lagged, replayed, lossy;

    (void)state;
    b->config.knowledge.approximate = false; /* see sim_fallback_test.c */
    b->config.knowledge.self_check = false;
    exact = predicted_overlap(b);
    b->config.knowledge.event_lag_ns = 3 * BT_NS_PER_S;
    lagged = predicted_overlap(b);
    b->config.knowledge.event_lag_ns = 0;
    b->config.knowledge.event_loss = 0.2;
    replayed = predicted_overlap(b);
    b->config.knowledge.event_replay = false;
    lossy = predicted_overlap(b);
    b->config.knowledge.event_loss = 0;
    b->config.knowledge.events_off = true;
    assert_int_equal(predicted_overlap(b), 0);
    assert_true(exact > 0);
    assert_true(lagged < exact);
    assert_true(lossy < exact);
    assert_true(lossy < replayed);
    assert_true(replayed > exact - exact / 10); /* a few ms late */
    bed_close(b);
}

/* Nine in ten first tokens come before the predicted p90, learned from those
 * before; after 100 of them. Rather more where most errors are less than the
 * 7.5 % that a bucket of the histogram is wide. */
static double covered(struct bed *b)
{
    const struct bt_sim_record *r = bed_run(b);
    double below = 0;

    for (size_t i = 100; i < b->result.count; i++)
        below +=
            r[i].first_token_ns - r[i].predicted_at_ns <= r[i].predicted_p90_ns;
    return below / (double)(b->result.count - 100);
}

static void test_coverage(void **state)
{
    static const double bias[] = {0, 0.5, -0.4};
    struct bed *b = bed_open(3, 2);

    (void)state;
    b->config.policy = "joint";
    load_add(b, 1200, 8, 31);
    for (size_t i = 0; i < sizeof(bias) / sizeof(bias[0]); i++) {
        double share;

        b->config.knowledge.compute_bias = bias[i];
        share = covered(b);
        if (!(share > 0.86 && share < 0.985))
            fail_msg("bias %g: %g below their p90", bias[i], share);
    }
    b->config.knowledge.compute_bias = 0;
    b->config.aggregated = true;
    b->cluster.pools[0].local_chunk = b->cluster.pools[1].local_chunk = 512;
    assert_true(covered(b) > 0.86);
    bed_close(b);
}

/* With exact events a prefix is never held that is not there: what was
 * promised is what was found, for those that were served at once. */
static void test_exact_is_exact(void **state)
{
    struct bed *b = open_load();
    const struct bt_sim_record *r = bed_run(b);

    (void)state;
    for (size_t i = 0; i < b->result.count; i++)
        if (r[i].reason != BT_REASON_SHORT_PROMPT)
            assert_true(r[i].cached_tokens + 511 >= r[i].predicted_overlap);
    bed_close(b);
}

/* Told 30 % longer compute, it predicts 30 % longer prefills. */
static void test_bias(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;
    double ratio;

    (void)state;
    b->config.knowledge.calibrate = false;
    bed_add(b, 0, 8192, 2, 0);
    for (int i = 0; i < 2; i++) {
        double bias = i == 0 ? 0.3 : -0.3;

        b->config.knowledge.compute_bias = bias;
        r = bed_run(b);
        ratio = (double)r->predicted.prefill_ns /
                (double)(r->prefill_done_ns - r->prefill_start_ns);
        assert_true(fabs(ratio - (1 + bias)) < 1e-6);
    }
    b->config.knowledge.compute_bias = 0;
    b->config.knowledge.link_bias = 0.25;
    r = bed_run(b);
    ratio = (double)r->predicted.transfer_ns /
            (double)(r->transfer_end_ns - r->transfer_start_ns);
    assert_true(fabs(ratio - 1 / 1.25) < 1e-3);
    bed_close(b);
}

/* A worker's NIC at a quarter of what the topology says: true transfers from
 * it take four times as long, and the planner is not told. */
static void test_silent_degradation(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->cluster.fabrics[0].degraded_worker = 0;
    b->cluster.fabrics[0].degraded_factor = 0.25;
    bed_add(b, 0, 8192, 2, 0);
    r = bed_run(b);
    assert_true(fabs((double)(r->transfer_end_ns - r->transfer_start_ns) -
                     8192 * 327680.0 / 12.5) < 10);
    assert_true(fabs((double)r->predicted.transfer_ns - 8192 * 327680.0 / 50) <
                1000);
    bed_close(b);
}

/* Others use 60 % of the uplinks: a transfer between racks gets the rest. */
static void test_background(void **state)
{
    struct bed *b = bed_open(1, 2);
    const struct bt_sim_record *r;
    double seconds;

    (void)state;
    b->cluster.fabrics[0].racks = 2;
    b->cluster.fabrics[0].rack_up_bytes_per_s = 50000000000ull;
    b->cluster.fabrics[0].background = 0.6;
    bed_add(b, 0, 8192, 2, 0);
    bed_add(b, BT_NS_PER_S, 8192, 2, 100);
    r = bed_run(b);
    for (int i = 0; i < 2; i++) {
        bool crosses = r[i].d == 2; /* second of its pool: rack 1 */

        seconds = (double)(r[i].transfer_end_ns - r[i].transfer_start_ns);
        assert_true(fabs(seconds - 8192 * 327680.0 / (crosses ? 20 : 50)) < 10);
    }
    assert_true(r[0].d != r[1].d);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_exact_is_exact),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_silent_degradation),
        cmocka_unit_test(test_background),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
