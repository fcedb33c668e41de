/* The true network against the closed forms of the cost model: one flow,
 * k-flow incast, equal shares (W6), two bottlenecks (W7), to 0.1 % and better;
 * a change of capacity on the way; bytes that are handed over in pieces. */
#include "sim_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#define GB 1e9

static struct sim_net net;

static void open_net(const double *capacity, uint32_t links)
{
    assert_true(sim_net_init(&net, links, capacity));
}

static uint32_t start(int64_t at_ns, double bytes, const uint32_t *links,
                      uint32_t count)
{
    struct sim_flow f = {.left = bytes, .count = count};

    for (uint32_t i = 0; i < count; i++)
        f.links[i] = links[i];
    return sim_net_start(&net, at_ns, &f);
}

/* Runs until nothing is left; finish times by flow. */
static void run(int64_t now_ns, double *seconds_out)
{
    for (int i = 0; i < 1000; i++) {
        int64_t next = sim_net_settle(&net, now_ns);
        uint32_t flow;

        if (next == SIM_NEVER)
            return;
        now_ns = next;
        for (flow = sim_net_finished(&net, now_ns); flow != SIM_NONE;
             flow = sim_net_finished(&net, now_ns)) {
            seconds_out[flow] = (double)now_ns * 1e-9;
            sim_net_stop(&net, now_ns, flow);
        }
    }
    fail_msg("the network does not come to rest");
}

static void near(double got, double want)
{
    if (fabs(got / want - 1) > 1e-6)
        fail_msg("%.9f s, not %.9f s", got, want);
}

static void test_one_flow(void **state)
{
    const double capacity[] = {50 * GB, 12.5 * GB};
    const uint32_t links[] = {0, 1};
    double end[4] = {0};

    (void)state;
    open_net(capacity, 2);
    assert_int_equal(start(0, 10 * GB, links, 2), 0);
    run(0, end);
    near(end[0], 10 / 12.5);
    near(net.bytes[0], 10 * GB);
    sim_net_fini(&net);
}

/* k senders of 50 GB/s into one receiver of 50 GB/s: each gets B / k. */
static void test_incast(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 8; k++) {
        double capacity[9], end[8] = {0};

        for (uint32_t i = 0; i < 9; i++)
            capacity[i] = 50 * GB;
        open_net(capacity, 9);
        for (uint32_t i = 0; i < k; i++) {
            const uint32_t links[] = {i, 8};

            (void)start(0, 4 * GB, links, 2);
        }
        run(0, end);
        for (uint32_t i = 0; i < k; i++)
            near(end[i], 4.0 * k / 50);
        assert_false(net.over_capacity);
        sim_net_fini(&net);
    }
}

/* W6: s = 4 GB beside 2, 6 and 1 GB at 10 GB/s ends at 1.1 s. */
static void test_equal_shares(void **state)
{
    const double capacity[] = {10 * GB};
    const uint32_t link = 0;
    double end[4] = {0};

    (void)state;
    open_net(capacity, 1);
    (void)start(0, 2 * GB, &link, 1);
    (void)start(0, 6 * GB, &link, 1);
    (void)start(0, 1 * GB, &link, 1);
    (void)start(0, 4 * GB, &link, 1);
    run(0, end);
    near(end[2], 0.4);
    near(end[0], 0.7);
    near(end[3], 1.1);
    near(end[1], 1.3);
    sim_net_fini(&net);
}

/* W7: links p0 p1 p2 up d0 d1; 10 GB each. */
static void test_two_bottlenecks(void **state)
{
    const double capacity[] = {50 * GB, 50 * GB, 50 * GB,
                               25 * GB, 50 * GB, 20 * GB};
    const uint32_t f0[] = {0, 3, 4}, f1[] = {1, 3, 5}, f2[] = {0, 4},
                   f3[] = {2, 5};
    double end[4] = {0};

    (void)state;
    open_net(capacity, 6);
    (void)start(0, 10 * GB, f0, 3);
    (void)start(0, 10 * GB, f1, 3);
    (void)start(0, 10 * GB, f2, 2);
    (void)start(0, 10 * GB, f3, 2);
    (void)sim_net_settle(&net, 0);
    near(net.flows[0].rate, 15 * GB);
    near(net.flows[1].rate, 10 * GB);
    near(net.flows[2].rate, 35 * GB);
    near(net.flows[3].rate, 10 * GB);
    run(0, end);
    near(end[0], 2.0 / 3);
    near(end[1], 1);
    near(end[2], 10.0 / 35);
    near(end[3], 1);
    sim_net_fini(&net);
}

/* Half of the way at 10, the rest at 2.5 GB/s; then a stand-still. */
static void test_capacity_changes(void **state)
{
    const double capacity[] = {10 * GB};
    const uint32_t link = 0;
    double end[1] = {0};

    (void)state;
    open_net(capacity, 1);
    (void)start(0, 10 * GB, &link, 1);
    (void)sim_net_settle(&net, 0);
    sim_net_capacity_set(&net, 500000000, 0, 2.5 * GB);
    (void)sim_net_settle(&net, 500000000);
    sim_net_capacity_set(&net, 1500000000, 0, 0);
    assert_true(sim_net_settle(&net, 1500000000) == SIM_NEVER);
    sim_net_capacity_set(&net, 4500000000, 0, 2.5 * GB);
    run(4500000000, end);
    near(end[0], 4.5 + 2.5 / 2.5);
    sim_net_fini(&net);
}

/* 1 GB at once, 1 GB handed over at 0.5 s: idle from 0.1 to 0.5 s. */
static void test_pieces(void **state)
{
    const double capacity[] = {10 * GB};
    const uint32_t link = 0;
    double end[1] = {0};
    uint32_t flow;

    (void)state;
    open_net(capacity, 1);
    flow = start(0, 1 * GB, &link, 1);
    net.flows[flow].more = true;
    assert_int_equal(sim_net_settle(&net, 0), 100000000);
    assert_int_equal(sim_net_finished(&net, 100000000), SIM_NONE);
    net.dirty = true;
    assert_true(sim_net_settle(&net, 100000000) == SIM_NEVER);
    sim_net_add(&net, 500000000, flow, 1 * GB, false);
    run(500000000, end);
    near(end[0], 0.6);
    sim_net_fini(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_flow),
        cmocka_unit_test(test_incast),
        cmocka_unit_test(test_equal_shares),
        cmocka_unit_test(test_two_bottlenecks),
        cmocka_unit_test(test_capacity_changes),
        cmocka_unit_test(test_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
