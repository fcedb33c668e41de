/* A paced link over real UCX: durations follow set-up + bytes / rate, flows
 * share. Wall-clock, so each case may try three times and has a wide margin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#define BLOCKS 1024u
#define BYTES  4096u
#define TRIES  3
#define MARGIN 0.30

static uint32_t line[BLOCKS];

static void open_paced(struct bed *bed, uint64_t rate, double setup_s)
{
    const uint32_t zero = 0;
    struct bed_end warm;

    bed_open(bed, bed_fabrics[0].create, BLOCKS, BYTES);
    bed_source(bed);
    bed_sink(bed);
    assert_int_equal(bt_fabric_pace(bed->sink_fabric, BED_NAME_SOURCE, rate,
                                    (int64_t)(setup_s * 1e9), "slow"),
                     BT_OK);
    for (uint32_t i = 0; i < BLOCKS; i++)
        line[i] = i;
    assert_int_equal(
        bed_pull(bed, bed->sink, "ok", &zero, &zero, 1, 30, &warm, NULL),
        BT_OK);
    bed_until(bed, &warm.calls, 1); /* the connection is up */
    assert_int_equal(warm.end.status, BT_OK);
}

static double busy_s(const struct bed *bed)
{
    struct bt_fabric_meter m;

    assert_int_equal(bt_fabric_meters(bed->sink_fabric, &m, 1), 1);
    return (double)m.busy_ns / 1e9;
}

/* Seconds that the meter booked for one pull of `count` blocks. */
static double one_pull_s(struct bed *bed, uint32_t count)
{
    double before = busy_s(bed);
    struct bed_end end;

    assert_int_equal(
        bed_pull(bed, bed->sink, "ok", line, line, count, 30, &end, NULL),
        BT_OK);
    bed_until(bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_OK);
    return busy_s(bed) - before;
}

static void test_duration_follows_model(void **state)
{
    static const struct {
        uint64_t rate;
        double setup_s;
        uint32_t count;
    } cases[] = {
        {4000000, 0, 256},    {20000000, 0, 1024}, {20000000, 0.1, 256},
        {100000000, 0, 1024}, {1000000, 0.02, 10}, {400000, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double model_s = cases[i].setup_s +
                         (double)cases[i].count * BYTES / (double)cases[i].rate;
        double took_s = 0;
        struct bed bed;

        open_paced(&bed, cases[i].rate, cases[i].setup_s);
        for (int try = 0; try < TRIES; try++) {
            took_s = one_pull_s(&bed, cases[i].count);
            if (fabs(took_s / model_s - 1) < MARGIN)
                break;
        }
        print_message("model %.1f ms took %.1f ms\n", model_s * 1e3,
                      took_s * 1e3);
        assert_true(took_s > model_s * 0.98); /* never faster than the link */
        assert_true(took_s < model_s * (1 + MARGIN));
        bed_close(&bed);
    }
}

/* 100 and 300 blocks at once: fluid sharing ends the first when 200 blocks
 * have crossed, the second when 400 have. */
static void test_flows_share(void **state)
{
    const double rate = 8000000;
    struct bed bed;
    bool good = false;

    (void)state;
    open_paced(&bed, (uint64_t)rate, 0);
    for (int try = 0; try < TRIES && !good; try++) {
        struct bed_end a, b;
        double a_s, b_s;

        assert_int_equal(
            bed_pull(&bed, bed.sink, "ok", line, line, 300, 30, &b, NULL),
            BT_OK);
        assert_int_equal(bed_pull(&bed, bed.sink, "ok", line + 300, line + 300,
                                  100, 30, &a, NULL),
                         BT_OK);
        bed_until(&bed, &a.calls, 1);
        bed_until(&bed, &b.calls, 1);
        a_s = (double)a.end.duration_ns / 1e9 / (200 * BYTES / rate);
        b_s = (double)b.end.duration_ns / 1e9 / (400 * BYTES / rate);
        print_message("share: short %.3f, long %.3f of the model\n", a_s, b_s);
        good = fabs(a_s - 1) < MARGIN && fabs(b_s - 1) < MARGIN;
    }
    assert_true(good);
    bed_close(&bed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_duration_follows_model),
        cmocka_unit_test(test_flows_share),
    };

    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    bed_child_main(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
