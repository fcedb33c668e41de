/* The storage station against W13 of the cost model (recomputed rates), and
 * against plain arithmetic for a load that is dropped. */
#include "sim_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

static const struct bt_station w13 = {.servers = 4,
                                      .rate_bytes_per_s = 24e9,
                                      .first_share = 0.25,
                                      .saturation = 8,
                                      .base_ns = 200000};

static void run(struct sim_station *s, double *seconds_out)
{
    for (int i = 0; i < 1000; i++) {
        int64_t next = sim_station_next(s);
        uint32_t tag;

        if (next == SIM_NEVER)
            return;
        for (tag = sim_station_take(s, next); tag != SIM_NONE;
             tag = sim_station_take(s, next))
            seconds_out[tag] = (double)next * 1e-9;
    }
    fail_msg("the station does not come to rest");
}

static void near(double got, double want)
{
    if (fabs(got / want - 1) > 2e-6)
        fail_msg("%.9f s, not %.9f s", got, want);
}

static void test_w13(void **state)
{
    struct sim_station s;
    double end[6] = {0};

    (void)state;
    sim_station_init(&s, &w13);
    for (uint32_t i = 0; i < 6; i++)
        assert_true(sim_station_put(&s, 0, i, 1e9));
    run(&s, end);
    for (uint32_t i = 0; i < 4; i++)
        near(end[i], 0.291867);
    near(end[4], 0.525400);
    near(end[5], 0.525400);
    sim_station_fini(&s);
}

/* One alone runs at W(1) = 6 GB/s. A second from 0.1 s on: both at
 * W(2) / 2 = 4.285714 GB/s until the second is dropped at 0.15 s. */
static void test_drop(void **state)
{
    struct sim_station s;
    double end[2] = {0}, left = 1e9;

    (void)state;
    sim_station_init(&s, &w13);
    assert_true(sim_station_put(&s, 0, 0, 1e9));
    assert_true(sim_station_put(&s, 100000000, 1, 1e9));
    sim_station_drop(&s, 150000000, 1);
    run(&s, end);
    left -= (0.1 - 0.0002) * 6e9;
    left -= 0.05 * 8.57142857142857e9 / 2;
    near(end[0], 0.15 + left / 6e9);
    assert_true(end[1] == 0);
    sim_station_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_w13),
        cmocka_unit_test(test_drop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
