/* Own flows on shared links against W6, W7 and W12 of cost-models.md and
 * against fluid runs worked by hand. */
#include "baton/planner/cost.h"
#include "baton/planner/network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define GB 1000000000ULL
#define MS 1000000LL

static _Alignas(16) unsigned char memory[262144];

static struct bt_network *start(const struct bt_topology_spec *spec)
{
    struct bt_network_limits limits = {.flows_max = 16};
    struct bt_arena arena;

    memset(memory, 0, sizeof(memory));
    bt_arena_init(&arena, memory, sizeof(memory));
    limits.topology = bt_topology_init(&arena, spec);
    assert_non_null(limits.topology);
    assert_true(bt_network_bytes(&limits) < sizeof(memory) - arena.used);
    return bt_network_init(&arena, &limits);
}

/* Workers 0..3 of nodes without limits; out and in of each in GB/s. */
struct fleet {
    struct bt_topology_node nodes[4];
    struct bt_topology_worker workers[4];
    struct bt_topology_spec spec;
};

static struct bt_network *flat(struct fleet *fleet, const uint64_t out[4],
                               const uint64_t in[4])
{
    memset(fleet, 0, sizeof(*fleet));
    for (uint32_t i = 0; i < 4; i++) {
        fleet->nodes[i].rack = BT_LINK_NONE;
        fleet->workers[i].node = i;
        fleet->workers[i].nic_out_bytes_per_s = out[i] * GB;
        fleet->workers[i].nic_in_bytes_per_s = in[i] * GB;
    }
    fleet->spec.nodes = fleet->nodes;
    fleet->spec.workers = fleet->workers;
    fleet->spec.node_count = fleet->spec.worker_count = 4;
    return start(&fleet->spec);
}

static const uint64_t fast[4] = {900, 900, 900, 900};
static const uint64_t ten_in[4] = {900, 900, 900, 10};

/* To six significant digits. */
static void near_s(int64_t ns, double seconds)
{
    double off = (double)ns / 1e9 - seconds;

    if (off > 5e-7 * seconds || off < -5e-7 * seconds)
        fail_msg("%.9f s, not %.9f s", (double)ns / 1e9, seconds);
}

/* W6: 2, 6 and 1 GB meet at the ingress of worker 3, 10 GB/s. */
static void closed_form(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);

    (void)state;
    bt_network_open(net, 0, 0, 0, 3, 2 * GB, 0);
    bt_network_open(net, 1, 0, 1, 3, 6 * GB, 0);
    bt_network_open(net, 2, 0, 2, 3, 1 * GB, 0);
    near_s(bt_network_transfer_ns(net, 0, 0, 0, 3, 4 * GB, 1), 1.1);
    near_s(bt_network_externality_ns(net, 0, 0, 3, 4 * GB), 0.7);
    near_s(bt_network_in_bound_ns(net, 0, 0, 3, 4 * GB), 1.1);
    near_s(bt_network_exact_ns(net, 0, 0, 0, 3, 4 * GB, 1), 1.1);
    assert_int_equal(bt_network_flows_on(
                         net, bt_topology_nic_in(bt_network_topology(net), 3)),
                     3);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, 0, 5), 0);
}

/* W7, with workers p0 p1 e0 in rack A (uplink 25) and p2 d0 d1 in rack B. f2
 * goes to e0, which takes 50 as d0 does: p0 carries f0 and f2 just as d0 does
 * in the example, so that the rates are the same. */
enum { P0, P1, E0, P2, D0, D1, W7_WORKERS };

struct w7 {
    struct bt_topology_rack racks[2];
    struct bt_topology_node nodes[W7_WORKERS];
    struct bt_topology_worker workers[W7_WORKERS];
    struct bt_topology_spec spec;
};

static const uint32_t w7_flows[4][2] = {{P0, D0}, {P1, D1}, {P0, E0}, {P2, D1}};

static struct bt_network *w7(struct w7 *w)
{
    memset(w, 0, sizeof(*w));
    w->racks[0] = (struct bt_topology_rack){"A", BT_LINK_NONE, 25 * GB, 0};
    w->racks[1] = (struct bt_topology_rack){"B", BT_LINK_NONE, 0, 0};
    for (uint32_t i = 0; i < W7_WORKERS; i++) {
        w->nodes[i].rack = i <= E0 ? 0 : 1;
        w->nodes[i].rails = 1;
        w->nodes[i].rail_bytes_per_s = 50 * GB;
        w->workers[i].node = i;
    }
    w->workers[D1].nic_in_bytes_per_s = 20 * GB;
    w->spec = (struct bt_topology_spec){.racks = w->racks,
                                        .rack_count = 2,
                                        .nodes = w->nodes,
                                        .node_count = W7_WORKERS,
                                        .workers = w->workers,
                                        .worker_count = W7_WORKERS};
    return start(&w->spec);
}

static void two_bottlenecks(void **state)
{
    static const double exact[] = {2.0 / 3, 1, 2.0 / 7, 1};
    static const double ranked[] = {0.8, 1, 0.4, 1};
    struct w7 w;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct bt_network *net = w7(&w);
        const uint32_t *mine = w7_flows[i];

        for (uint32_t k = 0; k < 4; k++) {
            if (k != i)
                bt_network_open(net, k, 0, w7_flows[k][0], w7_flows[k][1],
                                10 * GB, 0);
        }
        near_s(bt_network_exact_ns(net, 0, 0, mine[0], mine[1], 10 * GB, 1),
               exact[i]);
        near_s(bt_network_transfer_ns(net, 0, 0, mine[0], mine[1], 10 * GB, 1),
               ranked[i]);
    }
}

/* The same four as own flows: the roll ends each at its time. */
static void roll_ends_flows_exactly(void **state)
{
    static const struct {
        int64_t at_ns;

        uint32_t p0, d1; /* flows on p0 out and d1 in */
    } rows[] = {{285714285, 2, 2}, {285714287, 1, 2}, {666666666, 1, 2},
                {666666668, 0, 2}, {999999999, 0, 2}, {1000000001, 0, 0}};
    struct w7 w;
    struct bt_network *net = w7(&w);
    const struct bt_topology *t = bt_network_topology(net);

    (void)state;
    for (uint32_t k = 0; k < 4; k++)
        bt_network_open(net, k, 0, w7_flows[k][0], w7_flows[k][1], 10 * GB, 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bt_network_open(net, 9, rows[i].at_ns, E0, P1, 0, rows[i].at_ns);
        bt_network_close(net, 9, rows[i].at_ns); /* changes nothing, rolls */
        assert_int_equal(bt_network_flows_on(net, bt_topology_nic_out(t, P0)),
                         rows[i].p0);
        assert_int_equal(bt_network_flows_on(net, bt_topology_nic_in(t, D1)),
                         rows[i].d1);
    }
    assert_false(bt_network_is_empty(net));
    for (uint32_t k = 0; k < 4; k++)
        bt_network_close(net, k, 2 * GB);
    assert_true(bt_network_is_empty(net));
}

/* 10 GB at 10 GB/s from 0: half is left at 0.5 s, nothing at 1 s. An estimate
 * looks ahead; looking changes nothing. */
static void drains_linearly(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    int64_t now = 250 * MS;

    (void)state;
    bt_network_open(net, 0, 0, 0, 3, 10 * GB, 0);
    near_s(bt_network_transfer_ns(net, 0, 2000 * MS, 1, 3, 10 * GB, 1), 1);
    near_s(bt_network_transfer_ns(net, now, 500 * MS, 1, 3, 10 * GB, 1), 1.5);
    near_s(bt_network_transfer_ns(net, now, 1000 * MS, 1, 3, 10 * GB, 1), 1);
    near_s(bt_network_transfer_ns(net, now, 0, 1, 3, 10 * GB, 1), 1.75);
    bt_network_close(net, 0, now);
    near_s(bt_network_transfer_ns(net, now, now, 1, 3, 10 * GB, 1), 1);
}

/* 5 GB planned for 1.0 s on a link of 10 GB/s. */
static void planned_starts(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);

    (void)state;
    bt_network_open(net, 0, 0, 0, 3, 5 * GB, 1000 * MS);
    near_s(bt_network_transfer_ns(net, 0, 0, 1, 3, 10 * GB, 1), 1);
    near_s(bt_network_transfer_ns(net, 0, 1, 1, 3, 10 * GB, 1), 1.5);
    near_s(bt_network_exact_ns(net, 0, 0, 1, 3, 10 * GB, 1), 1);
    /* alone to 1.0 s with 5 GB left, then both 5 GB in 1 s */
    near_s(bt_network_exact_ns(net, 0, 500 * MS, 1, 3, 10 * GB, 1), 1.5);
    bt_network_plan(net, 0, 0, 500 * MS);
    near_s(bt_network_transfer_ns(net, 0, 0, 1, 3, 10 * GB, 1), 1.5);
    /* it ran from 0.5 s: 3 GB are left at 0.7 s */
    near_s(bt_network_transfer_ns(net, 700 * MS, 700 * MS, 1, 3, 10 * GB, 1),
           1.5); /* not rolled yet: in full */
    bt_network_open(net, 1, 700 * MS, 1, 2, 1, 700 * MS);
    near_s(bt_network_transfer_ns(net, 700 * MS, 700 * MS, 1, 3, 10 * GB, 1),
           1.3);
    /* it had not started after all */
    bt_network_plan(net, 0, 700 * MS, 750 * MS);
    near_s(bt_network_transfer_ns(net, 700 * MS, 700 * MS, 1, 3, 10 * GB, 1),
           1.5);
    bt_network_plan(net, 5, 700 * MS, 1); /* not held: nothing */
    bt_network_close(net, 5, 700 * MS);
    bt_network_close(net, 0, 800 * MS);
    near_s(bt_network_transfer_ns(net, 800 * MS, 800 * MS, 1, 3, 10 * GB, 1),
           1);
    bt_network_close(net, 1, 800 * MS);
    assert_true(bt_network_is_empty(net));
}

/* W12: 2.68435456 GB with 4.4 GB beside it take 0.250 s, 0.4 ms of them set-up:
 * 7.08435456 GB in 0.2496 s are 28.3828 GB/s. */
static void own_bytes_beside(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    uint32_t in = bt_topology_nic_in(bt_network_topology(net), 3);
    const uint64_t bytes = 2684354560;
    const int64_t end = 249600 * 1000;
    double rate;

    (void)state;
    bt_network_rate_set(net, in, 28382830769);
    bt_network_open(net, 0, 0, 0, 3, bytes, 0);
    bt_network_open(net, 1, 0, 1, 3, 2200000000, 0);
    bt_network_open(net, 2, 0, 2, 3, 2200000000, 0);
    assert_int_equal(bt_network_passed_beside(net, 0, in, 0), 0);
    bt_network_close(net, 1, end);
    bt_network_close(net, 2, end);
    rate = (double)(bytes + bt_network_passed_beside(net, 0, in, end)) / 0.2496;
    assert_true(rate > 28.38275e9 && rate < 28.38285e9);
    assert_int_equal(bt_network_passed_beside(net, 1, in, end), 0); /* free */
}

/* Two equal flows of 10 GB on 10 GB/s: 2.5 GB each by 0.5 s. The second look is
 * ahead of the last roll. A flow that came later saw less. */
static void passed_so_far(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    uint32_t in = bt_topology_nic_in(bt_network_topology(net), 3);
    uint32_t out = bt_topology_nic_out(bt_network_topology(net), 0);

    (void)state;
    bt_network_open(net, 0, 0, 0, 3, 10 * GB, 0);
    bt_network_open(net, 1, 0, 1, 3, 10 * GB, 0);
    assert_int_equal(bt_network_passed_beside(net, 0, in, 500 * MS),
                     5 * GB / 2);
    assert_int_equal(bt_network_passed_beside(net, 0, out, 500 * MS), 0);
    bt_network_open(net, 2, 500 * MS, 2, 3, 10 * GB, 600 * MS);
    assert_int_equal(bt_network_passed_beside(net, 2, in, 550 * MS), 0);
    bt_network_plan(net, 2, 500 * MS, 500 * MS);
    assert_int_equal(bt_network_passed_beside(net, 2, in, 800 * MS), 2 * GB);
    assert_int_equal(bt_network_passed_beside(net, 0, in, 800 * MS),
                     9 * GB / 2);
    assert_int_equal(bt_network_passed_beside(net, 0, 99, 800 * MS), 0);
}

/* The link is said to carry 10 GB/s and truly carries less: 1 GB alone on it
 * ends at 0.4 s and not at 0.1. A second one of 1 GB, open since 0.2 s, counts
 * in full, by the model; a third one of 4 GB that still runs there, from 0.3 s,
 * with 1 GB. Neither is proven; once closed, they are believed. */
static void what_only_the_model_says(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    uint32_t in = bt_topology_nic_in(bt_network_topology(net), 3);

    (void)state;
    bt_network_open(net, 0, 0, 0, 3, GB, 0);
    assert_int_equal(bt_network_unproven_beside(net, 0, in, 50 * MS), 0);
    bt_network_open(net, 1, 200 * MS, 1, 3, GB, 200 * MS);
    bt_network_open(net, 2, 300 * MS, 2, 3, 4 * GB, 300 * MS);
    assert_int_equal(bt_network_passed_beside(net, 0, in, 400 * MS), 2 * GB);
    assert_int_equal(bt_network_unproven_beside(net, 0, in, 400 * MS), 2 * GB);
    assert_int_equal(bt_network_unproven_beside(net, 2, in, 400 * MS), 0);
    assert_int_equal(bt_network_unproven_beside(net, 0, 99, 400 * MS), 0);
    bt_network_close(net, 1, 400 * MS);
    assert_int_equal(bt_network_unproven_beside(net, 0, in, 400 * MS), GB);
    bt_network_close(net, 2, 400 * MS);
    assert_int_equal(bt_network_unproven_beside(net, 0, in, 400 * MS), 0);
    assert_int_equal(bt_network_unproven_beside(net, 1, in, 400 * MS), 0);
}

static void rates_in_force(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    uint32_t in = bt_topology_nic_in(bt_network_topology(net), 3);

    (void)state;
    assert_int_equal(bt_network_rate(net, in), 10 * GB);
    bt_network_background_set(net, in, 0.5);
    near_s(bt_network_transfer_ns(net, 0, 0, 0, 3, 10 * GB, 1), 2);
    bt_network_background_set(net, in, 7); /* 0.95 at most */
    near_s(bt_network_transfer_ns(net, 0, 0, 0, 3, 10 * GB, 1), 20);
    bt_network_background_set(net, in, -1);
    bt_network_rate_set(net, in, 5 * GB);
    near_s(bt_network_transfer_ns(net, 0, 0, 0, 3, 10 * GB, 1), 2);
    bt_network_rate_set(net, in, 0);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, 1, 1),
                     BT_COST_INFINITE);
    assert_int_equal(bt_network_exact_ns(net, 0, 0, 0, 3, 1, 1),
                     BT_COST_INFINITE);
    assert_int_equal(bt_network_in_bound_ns(net, 0, 0, 3, 1), BT_COST_INFINITE);
    bt_network_open(net, 0, 0, 0, 3, GB, 0); /* stands still */
    bt_network_rate_set(net, in, 10 * GB);
    bt_network_open(net, 1, 1000 * MS, 1, 2, 1, 0); /* rates anew from here */
    near_s(bt_network_exact_ns(net, 1000 * MS, 1000 * MS, 1, 3, GB, 1), 0.2);
    near_s(bt_network_exact_ns(net, 2000 * MS, 2000 * MS, 1, 3, GB, 1), 0.1);
}

/* Of the class that was learned, in both estimates; another one keeps the
 * topology's. */
static void setup_in_force(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    enum bt_path_class class =
        bt_topology_class_of(bt_network_topology(net), 0, 3);
    int64_t before = bt_network_transfer_ns(net, 0, 0, 0, 3, GB, 1);
    struct bt_path path;

    (void)state;
    bt_topology_path(bt_network_topology(net), 0, 3, &path);
    assert_int_equal(bt_network_setup(net, class), path.setup_ns);
    bt_network_setup_set(net, class, bt_network_setup(net, class) + 30 * MS);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, GB, 1) - before,
                     30 * MS);
    assert_int_equal(bt_network_exact_ns(net, 0, 0, 0, 3, GB, 1) - before,
                     30 * MS);
    bt_network_setup_set(net, BT_PATH_NVLINK, 40 * MS);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, GB, 1) - before,
                     30 * MS);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, 0, 0), 0);
}

/* Many flows on a link: an answer is not kept beyond a change. 6 x 1 GB. */
static void crowded_link(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);
    uint32_t in = bt_topology_nic_in(bt_network_topology(net), 3);

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        bt_network_open(net, i, 0, 0, 3, GB, i == 5 ? 9000 * MS : 0);
    near_s(bt_network_transfer_ns(net, 0, 0, 1, 3, 2 * GB, 1), 0.7);
    near_s(bt_network_transfer_ns(net, 0, 100 * MS, 1, 3, 2 * GB, 1), 0.6);
    near_s(bt_network_transfer_ns(net, 0, 100 * MS, 1, 3, GB, 1), 0.5);
    bt_network_plan(net, 5, 0, 150 * MS);
    near_s(bt_network_transfer_ns(net, 0, 100 * MS, 1, 3, GB, 1), 0.6);
    bt_network_rate_set(net, in, 5 * GB);
    near_s(bt_network_transfer_ns(net, 0, 100 * MS, 1, 3, GB, 1), 1.2);
    bt_network_background_set(net, in, 0.5);
    near_s(bt_network_transfer_ns(net, 0, 100 * MS, 1, 3, GB, 1), 2.4);
    bt_network_close(net, 5, 0);
    near_s(bt_network_transfer_ns(net, 0, 0, 1, 3, GB, 1), 2.4);
}

static void classes_cost(void **state)
{
    struct fleet fleet;
    struct bt_network *net;

    (void)state;
    (void)flat(&fleet, fast, ten_in);
    fleet.workers[2].node = 0; /* beside worker 0 */
    fleet.workers[1].node = BT_LINK_NONE;
    fleet.spec.classes[BT_PATH_RACK].setup_ns = 3000;
    fleet.spec.classes[BT_PATH_RACK].per_descriptor_ns = 7;
    fleet.spec.classes[BT_PATH_NODE].flow_bytes_per_s_max = 2 * GB;
    net = start(&fleet.spec);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, 10000, 10), 4070);
    assert_int_equal(bt_network_exact_ns(net, 0, 0, 0, 3, 10000, 10), 4070);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 2, 10000, 10), 5000);
    assert_int_equal(bt_network_exact_ns(net, 0, 0, 0, 2, 10000, 10), 5000);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 0, 10000, 10), 0);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 1, 3, 10000, 10),
                     BT_COST_INFINITE);
    assert_int_equal(bt_network_exact_ns(net, 0, 0, 1, 3, 10000, 10),
                     BT_COST_INFINITE);
    assert_int_equal(bt_network_out_bound_ns(net, 0, 0, 1, 10000), 0);
}

/* Bounds of a worker with NVLink peers do not exceed what they cost. */
static void nvlink_bound(void **state)
{
    struct fleet fleet;
    struct bt_network *net;

    (void)state;
    (void)flat(&fleet, ten_in, ten_in);
    fleet.workers[0].nic_out_bytes_per_s = 10 * GB;
    fleet.workers[2].node = 0;
    fleet.nodes[0].nvlink_domain = true;
    fleet.nodes[0].nvlink_bytes_per_s = 100 * GB;
    net = start(&fleet.spec);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 2, GB, 1), 10 * MS);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 1, GB, 1), 100 * MS);
    assert_int_equal(bt_network_out_bound_ns(net, 0, 0, 0, GB), 10 * MS);
    assert_int_equal(bt_network_in_bound_ns(net, 0, 0, 3, GB), 100 * MS);
}

/* Invariant 11: 2^50 bytes at 1 kB/s saturate. */
static void saturates(void **state)
{
    struct fleet fleet;
    struct bt_network *net = flat(&fleet, fast, ten_in);

    (void)state;
    bt_network_rate_set(net, bt_topology_nic_in(bt_network_topology(net), 3),
                        1000);
    assert_int_equal(bt_network_transfer_ns(net, 0, 0, 0, 3, 1ULL << 50, 1),
                     BT_COST_INFINITE);
    bt_network_open(net, 0, 0, 1, 3, UINT64_MAX, 5);
    assert_int_equal(
        bt_network_transfer_ns(net, 0, 0, 0, 3, 1ULL << 50, UINT64_MAX),
        BT_COST_INFINITE);
    assert_int_equal(bt_network_exact_ns(net, 0, 0, 0, 3, 1ULL << 50, 1),
                     BT_COST_INFINITE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_form),
        cmocka_unit_test(two_bottlenecks),
        cmocka_unit_test(roll_ends_flows_exactly),
        cmocka_unit_test(drains_linearly),
        cmocka_unit_test(planned_starts),
        cmocka_unit_test(own_bytes_beside),
        cmocka_unit_test(passed_so_far),
        cmocka_unit_test(what_only_the_model_says),
        cmocka_unit_test(rates_in_force),
        cmocka_unit_test(setup_in_force),
        cmocka_unit_test(crowded_link),
        cmocka_unit_test(classes_cost),
        cmocka_unit_test(nvlink_bound),
        cmocka_unit_test(saturates),
    };

    return cmocka_run_group_tests_name("network", tests, NULL, NULL);
}
