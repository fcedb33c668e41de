/* Transfer, overlap, stages, station and fetch against the worked examples of
 * cost-models.md section 20. W6 and the ledger have tests of their own. */
#include "baton/base/units.h"
#include "baton/planner/transfer_cost.h"
#include "cost_digits.h"

#define MIB   1048576ULL
#define KAPPA 327680ULL /* bytes per token of a 70B model */

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static double s(int64_t ns)
{
    return (double)ns / 1e9;
}

static struct bt_compute_model preset(const char *name)
{
    struct bt_compute_model m;

    assert_int_equal(bt_compute_preset(name, &m), BT_OK);
    return m;
}

static void w1_chunked(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");

    (void)state;
    assert_digits(ms(bt_prefill_chunked_ns(&h, 8192, 0, 2048)), 330.303);
    assert_int_equal(bt_prefill_chunked_ns(&h, 8192, 0, 0),
                     bt_prefill_ns(&h, 8192, 0));
    assert_int_equal(bt_prefill_chunked_ns(&h, 2048, 6144, 4096),
                     bt_prefill_ns(&h, 2048, 6144));
    h.speedup = 0;
    assert_true(bt_prefill_chunked_ns(&h, 1, 0, 0) == BT_COST_INFINITE);
}

/* 8,192 tokens at TP8: 81,920 pieces of 4 KiB a rank. NIXL's estimate of the
 * first is 0 (W16): each piece is rounded down to whole microseconds. */
static void w3_two_forms(void **state)
{
    uint64_t bytes = 81920 * 4096;

    (void)state;
    assert_digits(ms(bt_transfer_additive_ns(6200, 1000, 48e9, 81920, bytes)),
                  88.9167);
    assert_digits(ms(bt_transfer_max_ns(6200, 1000, 1, 48e9, 81920, bytes, 0)),
                  81.9262);
    assert_digits(ms(bt_transfer_additive_ns(6200, 1000, 48e9, 512, bytes)),
                  7.50871);
    assert_digits(ms(bt_transfer_max_ns(6200, 1000, 1, 48e9, 512, bytes, 0)),
                  6.99671);
    /* Four threads post in a quarter of the time; a cold pair adds its own. */
    assert_digits(
        ms(bt_transfer_max_ns(6200, 1000, 4, 48e9, 81920, bytes, 5000000)),
        0.0062 + 81.92 / 4 + 5);
}

static void w3_effective_rate(void **state)
{
    (void)state;
    assert_digits(bt_effective_rate(48.8e9, 6200, 16384, 1) / 1e9, 2.50683);
    assert_digits(bt_effective_rate(48.8e9, 6200, 16384, 8) / 1e9, 20.0547);
    assert_digits(bt_effective_rate(48.8e9, 6200, 131072, 1) / 1e9, 14.7506);
    assert_digits(bt_effective_rate(48.8e9, 6200, MIB, 1) / 1e9, 37.8722);
    assert_true(bt_effective_rate(48.8e9, 6200, MIB, 64) == 48.8e9);
    assert_true(bt_effective_rate(0, 6200, MIB, 64) == 0);
    assert_true(bt_effective_rate((double)NAN, 6200, MIB, 64) == 0);
    assert_true(bt_effective_rate(48.8e9, 6200, 0, 64) == 0);
}

static void w3_whole_nodes(void **state)
{
    (void)state;
    assert_digits(ms(bt_transfer_additive_ns(380000, 0, 146.1e9, 0, 578 * MIB)),
                  4.52837);
    assert_digits(
        ms(bt_transfer_additive_ns(1835000, 0, 171.1e9, 0, 3150000000)),
        20.2453);
}

static const struct bt_stage bounce[] = {
    {8000, 25e9}, {10000, 48.8e9}, {8000, 25e9}};

static void w4_staged_bounce(void **state)
{
    const uint64_t bytes = 2684354560;

    (void)state;
    assert_digits(ms(bt_pipeline_ns(6200, bounce, 3, bytes, 64 * MIB)),
                  111.778);
    assert_digits(ms(bt_pipeline_ns(6200, bounce, 3, bytes, 16 * MIB)),
                  109.693);
    assert_digits(ms(bt_pipeline_ns(6200, bounce, 3, bytes, 4 * MIB)), 112.772);
    assert_digits(ms(bt_pipeline_ns(6200, bounce, 3, bytes, MIB)), 127.942);
    assert_digits((double)bt_pipeline_piece(bounce, 3, bytes), 18841600);
    /* No overlap between stages: 40 pieces, one at a time. */
    assert_digits(ms(6200 + 40 * bt_pipeline_ns(0, bounce, 3, 64 * MIB, 0)),
                  270.802);
    assert_digits(ms(bt_transfer_additive_ns(6200, 0, 48.8e9, 0, bytes)),
                  55.0135);
}

static void pipeline_edges(void **state)
{
    struct bt_stage bad[] = {{8000, 25e9}, {8000, 0}};
    struct bt_stage long_path[BT_STAGES_MAX + 1] = {{8000, 25e9}};

    (void)state;
    assert_int_equal(bt_pipeline_ns(6200, bounce, 3, 0, MIB), 6200);
    assert_int_equal(bt_pipeline_ns(6200, bounce, 0, MIB, MIB), 6200);
    assert_int_equal(bt_pipeline_ns(0, bounce, 3, MIB, 64 * MIB),
                     bt_pipeline_ns(0, bounce, 3, MIB, 0));
    assert_true(bt_pipeline_ns(0, bad, 2, MIB, 0) == BT_COST_INFINITE);
    assert_true(bt_pipeline_ns(0, long_path, 5, MIB, 0) == BT_COST_INFINITE);
    assert_int_equal(bt_pipeline_piece(bounce, 1, MIB), MIB);
    assert_int_equal(bt_pipeline_piece(bad, 2, MIB), MIB);
    assert_int_equal(bt_pipeline_piece(bounce, 3, 0), 0);
}

/* Time with a fractional number of pieces, so that rounding up to whole ones
 * does not blur the comparison. */
static double smooth(const struct bt_stage *stages, double bytes, double piece)
{
    double sum = 0;
    double slowest = 0;

    for (int i = 0; i < 3; i++) {
        double one = (double)stages[i].overhead_ns +
                     piece / stages[i].rate_bytes_per_s * 1e9;

        sum += one;
        slowest = fmax(slowest, one);
    }
    return sum + (bytes / piece - 1) * slowest;
}

/* No piece of a fine grid does better than the one chosen. The second path is
 * best where two stages change places, the third where a fast one leads. */
static void best_piece(void **state)
{
    const struct bt_stage paths[][3] = {
        {{8000, 25e9}, {10000, 48.8e9}, {8000, 25e9}},
        {{900000, 40e9}, {1000, 20e9}, {1000, 60e9}},
        {{0, 20e9}, {50000, 40e9}, {0, 50e9}},
        {{0, 20e9}, {0, 40e9}, {0, 50e9}},
    };
    const uint64_t bytes = 1ULL << 32;

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        uint64_t best = bt_pipeline_piece(paths[i], 3, bytes);
        double ns = smooth(paths[i], (double)bytes, (double)best);

        assert_in_range(best, 65536, bytes);
        for (uint64_t q = 65536; q < bytes; q += q / 50) {
            double other = smooth(paths[i], (double)bytes, (double)q);

            if (other < ns * (1 - 1e-6))
                fail_msg("path %zu: %llu takes %.0f ns, %llu only %.0f", i,
                         (unsigned long long)best, ns, (unsigned long long)q,
                         other);
        }
    }
}

static void w5_arrival(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");
    int64_t cold = bt_prefill_ns(&h, 32768, 0);
    int64_t warm = bt_prefill_ns(&h, 2048, 30720);
    uint64_t all = 32768 * KAPPA;
    uint64_t tail = 2048 * KAPPA;
    uint64_t held = all - tail;
    const int64_t t0 = 1000000;

    (void)state;
    assert_digits(s(bt_arrival_ns(cold, t0, 12e9, 0, all, 1)), 2.31021);
    assert_digits(s(bt_arrival_ns(cold, t0, 12e9, 0, all, 4)), 1.63912);
    assert_digits(s(bt_arrival_ns(cold, t0, 12e9, 0, all, 80)), 1.42661);
    assert_digits(s(bt_arrival_ns(warm, t0, 12e9, held, tail, 1)), 1.00520);
    assert_digits(s(bt_arrival_ns(warm, t0, 12e9, held, tail, 80)), 0.895785);
    assert_digits(s(bt_arrival_ns(warm, t0, 12e9, 0, tail, 1)), 0.166339);
    assert_digits(s(bt_arrival_ns(warm, t0, 12e9, 0, tail, 80)), 0.111114);
    /* The rates that would just hide it: compute and send end together. */
    assert_digits((double)all / s(cold) / 1e9, 7.59139);
    assert_digits((double)all / s(warm) / 1e9, 98.1347);
}

static void arrival_edges(void **state)
{
    (void)state;
    /* Nothing to send: no setup, and no link is needed. */
    assert_int_equal(bt_arrival_ns(700, 50, 0, 0, 0, 80), 700);
    assert_int_equal(bt_arrival_ns(700, 50, 1e9, 0, 10, 0), 760);
    assert_true(bt_arrival_ns(700, 50, 0, 0, 1, 80) == BT_COST_INFINITE);
    assert_true(bt_arrival_ns(700, 50, -1, 0, 1, 1) == BT_COST_INFINITE);
    assert_true(bt_arrival_ns(700, 50, (double)NAN, 1, 0, 80) ==
                BT_COST_INFINITE);
    assert_true(bt_arrival_ns(700, 50, (double)INFINITY, 1, 0, 80) ==
                BT_COST_INFINITE);
    assert_true(bt_arrival_ns(700, -1, 1e9, 1, 0, 80) == BT_COST_INFINITE);
    assert_true(bt_arrival_ns(BT_COST_INFINITE, 1, 1e9, 1, 0, 80) ==
                BT_COST_INFINITE);
}

/* The four pairs of W9: prefill, queue before it, bytes the receiver lacks. */
static void w9_arrivals(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");
    int64_t cold = bt_prefill_ns(&h, 12000, 0);
    int64_t warm = bt_prefill_ns(&h, 12000 - 8192, 8192);
    uint64_t all = 12000 * KAPPA;
    uint64_t rest = (12000 - 8192) * KAPPA;
    const int64_t t0 = 1000000;

    (void)state;
    assert_digits(s(cold), 0.463038);
    assert_digits(s(warm), 0.158775);
    assert_digits(0.1 + s(bt_arrival_ns(cold, t0, 12e9, 0, all, 1)), 0.891718);
    assert_digits(0.1 + s(bt_arrival_ns(cold, t0, 12e9, 0, rest, 1)), 0.668022);
    assert_digits(0.3 + s(bt_arrival_ns(warm, t0, 12e9, 0, all, 1)), 0.787455);
    assert_digits(0.3 + s(bt_arrival_ns(warm, t0, 48e9, 0, rest, 1)), 0.485771);
}

/* Waiting for the warm worker, recomputing on the idle one, or fetching there,
 * as the price of compute rises. */
static void w10_prices(void **state)
{
    struct bt_compute_model g = preset("a100-70b-tp8");
    const uint64_t hit = 20 * 512;
    double warm = s(bt_prefill_ns(&g, 12035 - hit, hit));
    double cold = s(bt_prefill_ns(&g, 12035, 0));
    double fetch = s(bt_transfer_additive_ns(2000000, 0, 20e9, 0, hit * KAPPA));
    double copies = 0.3 * g.prefill_b_ms * (double)hit / 1e3;

    (void)state;
    assert_digits(warm, 0.217015);
    assert_digits(cold, 1.26477);
    assert_digits(fetch + warm, 0.386787);
    assert_digits(1.2 + warm + 1 * warm, 1.63403);
    assert_digits(0.1 + cold + 1 * cold, 2.62953);
    assert_digits(fmax(0.1, fetch) + warm + 1 * (warm + copies), 0.899850);
    assert_digits(1.2 + warm + 4 * warm, 2.28507);
    assert_digits(0.1 + cold + 4 * cold, 6.42383);
    assert_digits(fmax(0.1, fetch) + warm + 4 * (warm + copies), 2.43904);
    assert_digits((1.2 - fetch) / copies, 3.47993);
}

static void w11_fetch(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");
    const uint64_t bytes = 4096 * KAPPA;

    (void)state;
    assert_digits(ms(bt_transfer_additive_ns(2000000, 0, 3e9, 0, bytes)),
                  449.392);
    assert_digits(ms(bt_transfer_additive_ns(2000000, 0, 12e9, 0, bytes)),
                  113.848);
    assert_digits(ms(bt_transfer_additive_ns(2000000, 0, 48e9, 0, bytes)),
                  29.9620);
    assert_digits(
        ms(bt_prefill_ns(&h, 8192, 0) - bt_prefill_ns(&h, 4096, 4096)),
        148.155);
    assert_digits(bt_fetch_min_tokens(&h, KAPPA, 12e9, 2000000), 253.378);
    assert_true(isinf(bt_fetch_min_tokens(&h, KAPPA, 9.3e9, 2000000)));
    assert_true(isinf(bt_fetch_min_tokens(&h, KAPPA, 0, 2000000)));
    assert_true(isinf(bt_fetch_min_tokens(&h, KAPPA, 12e9, -1)));
}

/* The table of section 16, three digits. */
static void crossover_rates(void **state)
{
    static const struct {
        const char *name;
        uint64_t kappa;
        double gb[4]; /* at depth 0, 8K, 32K, 64K */
    } rows[] = {
        {"a100-70b-tp8", 327680, {3.40, 3.09, 2.44, 1.90}},
        {"a100-70b-tp4", 327680, {2.04, 1.79, 1.32, 0.98}},
        {"h100-70b-tp4", 327680, {5.08, 4.80, 4.13, 3.48}},
        {"h100-70b-tp8", 327680, {9.31, 8.38, 6.46, 4.95}},
        {"h100-70b-tp8-fp8", 163840, {5.85, 5.28, 4.09, 3.14}},
        {"h200-70b-tp8", 327680, {8.79, 8.40, 7.41, 6.40}},
        {"h100-8b-tp1", 131072, {6.61, 5.03, 2.93, 1.88}},
        {"h100-qwen3-32b-tp2", 262144, {5.03, 4.26, 2.92, 2.06}},
    };
    static const uint64_t depth[4] = {0, 8192, 32768, 65536};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bt_compute_model m = preset(rows[i].name);

        for (int k = 0; k < 4; k++)
            assert_true(
                fabs(bt_fetch_crossover_rate(&m, rows[i].kappa, depth[k]) /
                         1e9 -
                     rows[i].gb[k]) < 0.00501);
    }
    assert_true(
        isinf(bt_fetch_crossover_rate(&(struct bt_compute_model){0}, 1, 1)));
}

static const struct bt_station nvme = {.servers = 4,
                                       .rate_bytes_per_s = 24e9,
                                       .first_share = 0.25,
                                       .saturation = 8,
                                       .base_ns = 200000};

static void w13_station(void **state)
{
    int64_t finish[6];

    (void)state;
    assert_digits(bt_station_rate(&nvme, 1) / 1e9, 6.00000);
    assert_digits(bt_station_rate(&nvme, 2) / 1e9, 8.57143);
    assert_digits(bt_station_rate(&nvme, 3) / 1e9, 11.1429);
    assert_digits(bt_station_rate(&nvme, 4) / 1e9, 13.7143);
    /* Six reads of 1 GB: four start at once, the others as servers free. */
    for (uint32_t i = 0; i < 4; i++)
        finish[i] = bt_station_ns(&nvme, i, 0, 1000000000);
    finish[4] = finish[0] + bt_station_ns(&nvme, 3, 0, 1000000000);
    finish[5] = finish[1] + bt_station_ns(&nvme, 3, 0, 1000000000);
    assert_digits(s(finish[0]), 0.166867);
    assert_digits(s(finish[1]), 0.233533);
    assert_digits(s(finish[2]), 0.269431);
    assert_digits(s(finish[3]), 0.291867);
    assert_digits(s(finish[4]), 0.458733);
    assert_digits(s(finish[5]), 0.525400);
}

static void station_edges(void **state)
{
    struct bt_station bad = nvme;

    (void)state;
    assert_true(bt_station_rate(&nvme, 0) == 0);
    /* No more than the servers are ever in service. */
    assert_true(bt_station_rate(&nvme, 50) == bt_station_rate(&nvme, 4));
    bad.saturation = 2;
    assert_true(bt_station_rate(&bad, 2) == 24e9);
    bad.saturation = 0;
    assert_true(bt_station_rate(&bad, 1) == 24e9);
    bad.servers = 0;
    assert_true(bt_station_ns(&bad, 0, 0, 1) == BT_COST_INFINITE);
    bad = nvme;
    bad.first_share = (double)NAN;
    assert_true(bt_station_ns(&bad, 0, 0, 1) == BT_COST_INFINITE);
    bad = nvme;
    bad.first_share = 0; /* one job alone gets nothing */
    assert_true(bt_station_ns(&bad, 0, 0, 1) == BT_COST_INFINITE);
    bad.rate_bytes_per_s = -1;
    assert_true(bt_station_ns(&bad, 3, 0, 1) == BT_COST_INFINITE);
}

/* A full station: 13.7 GB queued take a second, our own gigabyte 4/13.7. */
static void station_queue(void **state)
{
    int64_t own = bt_station_ns(&nvme, 3, 0, 1000000000);
    int64_t wait =
        bt_station_ns(&nvme, 4, 13714285714, 1000000000) - own - own / 5;

    (void)state;
    assert_near((double)wait, 1e9, 1e-6);
    /* A queue means that all servers are in use, whatever was said. */
    assert_int_equal(bt_station_ns(&nvme, 1, 1, 1000000000), own);
}

static void w14_clark(void **state)
{
    double mean, sigma;

    (void)state;
    bt_clark_max(1.20, 0.15, 1.10, 0.25, &mean, &sigma);
    assert_digits(mean, 1.27309);
    assert_digits(sigma, 0.156467);
    bt_clark_max(1.10, 0.25, 1.20, 0.15, &mean, &sigma);
    assert_digits(mean, 1.27309);
    assert_digits(sigma, 0.156467);
}

static void clark_edges(void **state)
{
    double mean, sigma;

    (void)state;
    bt_clark_max(2, 0, 1, 0, &mean, &sigma);
    assert_true(mean == 2 && sigma == 0);
    /* Far apart: the larger one rules. */
    bt_clark_max(1e9, 3, 1, 5, &mean, &sigma);
    assert_near(mean, 1e9, 1e-12);
    assert_near(sigma, 3, 1e-3);
    bt_clark_max(1, 5, 1e9, 3, &mean, &sigma);
    assert_near(mean, 1e9, 1e-12);
    assert_near(sigma, 3, 1e-3);
    /* Two alike, closed form: sigma/sqrt(pi), sigma sqrt(1 - 1/pi). */
    bt_clark_max(0, 1, 0, 1, &mean, &sigma);
    assert_near(mean, 0.564189584, 1e-9);
    assert_near(sigma, 0.825645271, 1e-9);
    bt_clark_max((double)NAN, 1, 0, 1, &mean, &sigma);
    assert_false(mean < 1e300);
}

static void w16_small_pieces_are_not_free(void **state)
{
    (void)state;
    assert_digits(
        ms(bt_transfer_additive_ns(6200, 1000, 48e9, 81920, 81920ULL * 4096)),
        88.9167);
    /* Each alone: 0.6 us and its bytes, where truncation says 0, 0, 1, 22. */
    assert_int_equal(bt_transfer_additive_ns(600, 0, 48.2e9, 0, 4096), 685);
    assert_int_equal(bt_transfer_additive_ns(600, 0, 48.2e9, 0, 16384), 940);
    assert_int_equal(bt_transfer_additive_ns(600, 0, 48.2e9, 0, 65536), 1960);
    assert_int_equal(bt_transfer_additive_ns(600, 0, 48.2e9, 0, MIB), 22355);
}

static void idle_path_refuses(void **state)
{
    static const double rates[] = {0, -1, -0.0, (double)NAN, (double)INFINITY};

    (void)state;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        assert_true(bt_transfer_additive_ns(1, 1, rates[i], 1, 1) ==
                    BT_COST_INFINITE);
        assert_true(bt_transfer_additive_ns(1, 1, rates[i], 0, 0) ==
                    BT_COST_INFINITE);
        assert_true(bt_transfer_max_ns(1, 1, 1, rates[i], 9, 1, 0) ==
                    BT_COST_INFINITE);
        assert_true(bt_transfer_max_ns(1, 1, 1, rates[i], 9, 0, 0) ==
                    BT_COST_INFINITE);
    }
    assert_true(bt_transfer_additive_ns(-1, 1, 1e9, 1, 1) == BT_COST_INFINITE);
    assert_true(bt_transfer_max_ns(1, -1, 1, 1e9, 1, 1, 0) == BT_COST_INFINITE);
    assert_true(bt_transfer_max_ns(1, -1, 1, 1e9, 0, 1, 0) == BT_COST_INFINITE);
    assert_true(bt_transfer_max_ns(1, 1, 1, 1e9, 1, 1, -1) == BT_COST_INFINITE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w1_chunked),
        cmocka_unit_test(w3_two_forms),
        cmocka_unit_test(w3_effective_rate),
        cmocka_unit_test(w3_whole_nodes),
        cmocka_unit_test(w4_staged_bounce),
        cmocka_unit_test(pipeline_edges),
        cmocka_unit_test(best_piece),
        cmocka_unit_test(w5_arrival),
        cmocka_unit_test(arrival_edges),
        cmocka_unit_test(w9_arrivals),
        cmocka_unit_test(w10_prices),
        cmocka_unit_test(w11_fetch),
        cmocka_unit_test(crossover_rates),
        cmocka_unit_test(w13_station),
        cmocka_unit_test(station_edges),
        cmocka_unit_test(station_queue),
        cmocka_unit_test(w14_clark),
        cmocka_unit_test(clark_edges),
        cmocka_unit_test(w16_small_pieces_are_not_free),
        cmocka_unit_test(idle_path_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
