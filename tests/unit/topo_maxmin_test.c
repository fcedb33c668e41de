/* Water-filling against W7 of cost-models.md and small cases by hand. */
#include "baton/planner/network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#define FLOWS 8
#define LINKS 8

static _Alignas(16) unsigned char scratch[16384];

static void solve(struct bt_maxmin_flow *flows, size_t n, const double *caps,
                  size_t links)
{
    assert_true(bt_maxmin_scratch(n, links) <= sizeof(scratch));
    bt_maxmin_rates(flows, n, caps, links, scratch);
}

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-9 * want)
        fail_msg("rate %.12g, not %.12g", got, want);
}

/* W7. Links p0 p1 p2 up d0 d1. */
static void two_bottlenecks(void **state)
{
    static const double caps[] = {50e9, 50e9, 50e9, 25e9, 50e9, 20e9};
    static const double want[] = {15e9, 10e9, 35e9, 10e9};
    struct bt_maxmin_flow f[] = {
        {.links = {0, 3, 4}, .count = 3},
        {.links = {1, 3, 5}, .count = 3},
        {.links = {0, 4}, .count = 2},
        {.links = {2, 5}, .count = 2},
    };

    (void)state;
    memset(scratch, 0, sizeof(scratch));
    solve(f, 4, caps, 6);
    for (size_t i = 0; i < 4; i++)
        near(f[i].rate, want[i]);
}

static void caps_hold(void **state)
{
    static const double caps[] = {10e9};
    struct bt_maxmin_flow f[] = {
        {.links = {0}, .count = 1, .cap_bytes_per_s = 1e9},
        {.links = {0}, .count = 1},
        {.links = {0}, .count = 1, .cap_bytes_per_s = 8e9},
        {.count = 0, .cap_bytes_per_s = 3e9},
        {.count = 0},
    };

    (void)state;
    memset(scratch, 0, sizeof(scratch));
    solve(f, 5, caps, 1);
    near(f[0].rate, 1e9);
    near(f[1].rate, 4.5e9);
    near(f[2].rate, 4.5e9);
    near(f[3].rate, 3e9);
    assert_true(isinf(f[4].rate));
}

static void dead_links_give_nothing(void **state)
{
    const double caps[] = {0, 10, nan(""), -5};
    struct bt_maxmin_flow f[] = {
        {.links = {0, 1}, .count = 2},
        {.links = {1}, .count = 1},
        {.links = {1, 2}, .count = 2},
        {.links = {3}, .count = 1},
    };

    (void)state;
    memset(scratch, 0, sizeof(scratch));
    solve(f, 4, caps, 4);
    near(f[0].rate + 1, 1);
    near(f[1].rate, 10);
    near(f[2].rate + 1, 1);
    near(f[3].rate + 1, 1);
}

/* The scratch is as good as new after a call, also for fewer flows. */
static void scratch_is_reusable(void **state)
{
    static const double caps[] = {12, 6, 3};
    struct bt_maxmin_flow f[] = {
        {.links = {0, 1}, .count = 2},
        {.links = {0}, .count = 1},
        {.links = {0, 2}, .count = 2},
    };

    (void)state;
    memset(scratch, 0, sizeof(scratch));
    for (size_t turn = 0; turn < 3; turn++) {
        solve(f, 3, caps, 3);
        near(f[0].rate, 4.5);
        near(f[1].rate, 4.5);
        near(f[2].rate, 3);
        solve(f, 1, caps, 3);
        near(f[0].rate, 6);
    }
    solve(f, 0, caps, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_bottlenecks),
        cmocka_unit_test(caps_hold),
        cmocka_unit_test(dead_links_give_nothing),
        cmocka_unit_test(scratch_is_reusable),
    };

    return cmocka_run_group_tests_name("maxmin", tests, NULL, NULL);
}
