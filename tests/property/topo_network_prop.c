/* Random own flows opened, planned and closed on random fleets, against a slow
 * simulation of its own: flows per link, exact durations, closed forms, bytes
 * that passed. Then what must hold whatever the numbers: bounds bound, more
 * bytes or more flows never make it shorter, times scale with rates, and the
 * last close leaves nothing (cost-models.md sections 8 and 21). */
#include "baton/base/rng.h"
#include "baton/planner/cost.h"
#include "baton/planner/network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 7
#define NODES   5
#define FLOWS   12
#define FLEETS  60
#define STEPS   150
#define SECOND  1000000000LL

/* ---- fleet ---- */

struct fleet {
    struct bt_topology_pod pods[2];
    struct bt_topology_rack racks[3];
    struct bt_topology_node nodes[NODES];
    struct bt_topology_worker workers[WORKERS];
    struct bt_topology_spec spec;
    void *memory;
    struct bt_network *net;
    const struct bt_topology *t;
};

static uint64_t draw_rate(struct bt_rng *rng)
{
    return bt_rng_below(rng, 4) ? 4 * (1 + bt_rng_below(rng, 50)) * 100000 : 0;
}

static void draw_fleet(struct bt_rng *rng, struct fleet *f)
{
    memset(f, 0, sizeof(*f));
    for (uint32_t i = 0; i < 2; i++)
        f->pods[i] =
            (struct bt_topology_pod){NULL, draw_rate(rng), draw_rate(rng)};
    for (uint32_t i = 0; i < 3; i++)
        f->racks[i] =
            (struct bt_topology_rack){NULL, (uint32_t)bt_rng_below(rng, 2),
                                      draw_rate(rng), draw_rate(rng)};
    for (uint32_t i = 0; i < NODES; i++)
        f->nodes[i] = (struct bt_topology_node){NULL,
                                                (uint32_t)bt_rng_below(rng, 3),
                                                (uint32_t)bt_rng_below(rng, 3),
                                                draw_rate(rng),
                                                bt_rng_below(rng, 2) != 0,
                                                draw_rate(rng)};
    for (uint32_t i = 0; i < WORKERS; i++) {
        f->workers[i].node = (uint32_t)bt_rng_below(rng, NODES);
        f->workers[i].rails = (uint32_t)bt_rng_below(rng, 2);
        f->workers[i].nic_in_bytes_per_s =
            bt_rng_below(rng, 3) ? 0 : draw_rate(rng);
    }
    f->spec = (struct bt_topology_spec){.pods = f->pods,
                                        .pod_count = 2,
                                        .racks = f->racks,
                                        .rack_count = 3,
                                        .nodes = f->nodes,
                                        .node_count = NODES,
                                        .workers = f->workers,
                                        .worker_count = WORKERS};
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        f->spec.classes[i].flow_bytes_per_s_max =
            bt_rng_below(rng, 3) ? 0 : draw_rate(rng);
}

static void scale_fleet(struct fleet *f, uint64_t by)
{
    for (uint32_t i = 0; i < 2; i++) {
        f->pods[i].up_bytes_per_s *= by;
        f->pods[i].down_bytes_per_s *= by;
    }
    for (uint32_t i = 0; i < 3; i++) {
        f->racks[i].up_bytes_per_s *= by;
        f->racks[i].down_bytes_per_s *= by;
    }
    for (uint32_t i = 0; i < NODES; i++) {
        f->nodes[i].rail_bytes_per_s *= by;
        f->nodes[i].nvlink_bytes_per_s *= by;
    }
    for (uint32_t i = 0; i < WORKERS; i++)
        f->workers[i].nic_in_bytes_per_s *= by;
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        f->spec.classes[i].flow_bytes_per_s_max *= by;
}

static void build(struct fleet *f)
{
    struct bt_network_limits limits = {.flows_max = FLOWS + 1};
    size_t bytes = bt_topology_bytes(&f->spec);
    struct bt_arena arena;

    f->memory = calloc(1, bytes + 262144);
    assert_non_null(f->memory);
    bt_arena_init(&arena, f->memory, bytes);
    f->t = limits.topology = bt_topology_init(&arena, &f->spec);
    assert_non_null(f->t);
    assert_true(bt_network_bytes(&limits) <= 262144);
    bt_arena_init(&arena, (unsigned char *)f->memory + (bytes + 15) / 16 * 16,
                  bt_network_bytes(&limits));
    f->net = bt_network_init(&arena, &limits);
    assert_non_null(f->net);
}

/* ---- the slow simulation ---- */

struct flow {
    bool held;
    struct bt_path path;
    double cap, bytes, left, rate;
    int64_t start_ns;
    double beside[BT_PATH_LINKS_MAX]; /* others' bytes since the start */
};

struct world {
    const struct fleet *fleet;
    struct flow flows[FLOWS + 1];
    double at_ns;
};

static bool runs(const struct world *w, const struct flow *f)
{
    return f->held && f->left > 0 && (double)f->start_ns <= w->at_ns;
}

static bool uses(const struct flow *f, uint32_t link)
{
    for (uint32_t k = 0; k < f->path.count; k++) {
        if (f->path.links[k] == link)
            return true;
    }
    return false;
}

/* Max-min rates by bisection on one common level, again and again: each flow
 * is fixed at the level at which the first of its links is full. */
static double room_on(const struct world *w, uint32_t link, double level)
{
    double room =
        (double)bt_topology_link_at(w->fleet->t, link)->rate_bytes_per_s;

    for (uint32_t i = 0; i <= FLOWS; i++) {
        const struct flow *f = &w->flows[i];

        if (runs(w, f) && uses(f, link))
            room -= f->rate >= 0 ? f->rate : level;
    }
    return room;
}

static bool full_at(const struct world *w, const struct flow *f, double level)
{
    if (f->cap > 0 && level >= f->cap)
        return true;
    for (uint32_t k = 0; k < f->path.count; k++) {
        if (room_on(w, f->path.links[k], level) <= 0)
            return true;
    }
    return false;
}

static bool any_full(const struct world *w, double level)
{
    for (uint32_t i = 0; i <= FLOWS; i++) {
        const struct flow *f = &w->flows[i];

        if (runs(w, f) && f->rate < 0 && full_at(w, f, level))
            return true;
    }
    return false;
}

static void solve(struct world *w)
{
    bool open = false;

    for (uint32_t i = 0; i <= FLOWS; i++) {
        w->flows[i].rate = -1;
        open = open || runs(w, &w->flows[i]);
    }
    while (open) {
        double low = 0, high = 1e12;

        for (int turn = 0; turn < 100; turn++) {
            double mid = (low + high) / 2;

            if (any_full(w, mid))
                high = mid;
            else
                low = mid;
        }
        open = false;
        for (uint32_t i = 0; i <= FLOWS; i++) {
            struct flow *f = &w->flows[i];

            if (!runs(w, f) || f->rate >= 0)
                continue;
            if (full_at(w, f, high * (1 + 1e-9)))
                f->rate = low;
            else
                open = true;
        }
    }
}

static double next_event(const struct world *w)
{
    double next = HUGE_VAL;

    for (uint32_t i = 0; i <= FLOWS; i++) {
        const struct flow *f = &w->flows[i];

        if (runs(w, f))
            next = fmin(next, w->at_ns + f->left / f->rate * 1e9);
        else if (f->held && f->left > 0)
            next = fmin(next, (double)f->start_ns);
    }
    return next;
}

static void pass(struct world *w, const struct flow *by, double bytes)
{
    for (uint32_t i = 0; i <= FLOWS; i++) {
        struct flow *f = &w->flows[i];

        if (f == by || !f->held || (double)f->start_ns > w->at_ns)
            continue;
        for (uint32_t k = 0; k < f->path.count; k++)
            f->beside[k] += uses(by, f->path.links[k]) ? bytes : 0;
    }
}

static void step_to(struct world *w, double until)
{
    double left[FLOWS + 1];

    for (uint32_t i = 0; i <= FLOWS; i++) {
        struct flow *f = &w->flows[i];
        double moved = 0;

        if (runs(w, f))
            moved = fmin(f->left, f->rate * (until - w->at_ns) * 1e-9);
        if (moved > 0)
            pass(w, f, moved);
        left[i] = f->left - moved < 1e-3 ? 0 : f->left - moved;
    }
    for (uint32_t i = 0; i <= FLOWS; i++)
        w->flows[i].left = left[i];
    w->at_ns = until;
}

static void advance(struct world *w, double until)
{
    while (w->at_ns < until) {
        solve(w);
        step_to(w, fmin(until, next_event(w)));
    }
}

static void enter(struct world *w, uint32_t i, uint32_t a, uint32_t b,
                  uint64_t bytes)
{
    struct flow *f = &w->flows[i];

    memset(f, 0, sizeof(*f));
    f->held = true;
    bt_topology_path(w->fleet->t, a, b, &f->path);
    f->cap =
        (double)w->fleet->spec.classes[f->path.path_class].flow_bytes_per_s_max;
    f->bytes = f->left = f->path.count == 0 ? 0 : (double)bytes;
}

/* ---- comparison ---- */

static uint64_t seed;
static uint32_t fleet_number, step_number;

static void near(const char *what, double got, double want, double slack)
{
    if (fabs(got - want) > slack + 1e-6 * fabs(want))
        fail_msg("seed %llu fleet %u step %u: %s is %.3f, not %.3f",
                 (unsigned long long)seed, fleet_number, step_number, what, got,
                 want);
}

/* A flow so near its end that rounding decides. */
static bool on_the_brink(const struct world *w)
{
    for (uint32_t i = 0; i <= FLOWS; i++) {
        if (w->flows[i].left > 0 && w->flows[i].left < 1)
            return true;
    }
    return false;
}

static void compare_links(const struct world *w)
{
    for (uint32_t l = 0; l < bt_topology_link_count(w->fleet->t); l++) {
        uint32_t want = 0;

        for (uint32_t i = 0; i < FLOWS; i++)
            want += w->flows[i].held && w->flows[i].left > 0 &&
                    uses(&w->flows[i], l);
        near("flows on a link", bt_network_flows_on(w->fleet->net, l), want, 0);
    }
}

static void compare_passed(const struct world *w, int64_t now)
{
    for (uint32_t i = 0; i < FLOWS; i++) {
        const struct flow *f = &w->flows[i];

        for (uint32_t k = 0; f->held && k < f->path.count; k++) {
            uint64_t got = bt_network_passed_beside(w->fleet->net, i,
                                                    f->path.links[k], now);

            if (f->bytes > 0)
                near("bytes beside", (double)got, f->beside[k], 2);
        }
    }
}

static double naive_exact(const struct world *w, int64_t at, uint32_t a,
                          uint32_t b, uint64_t bytes)
{
    struct world copy = *w;
    struct flow *f = &copy.flows[FLOWS];

    enter(&copy, FLOWS, a, b, bytes);
    if (f->path.count == 0)
        return f->cap > 0 ? (double)bytes / f->cap * 1e9 : 0;
    f->start_ns = at;
    while (f->left > 0) {
        solve(&copy);
        step_to(&copy, next_event(&copy));
    }
    return copy.at_ns - (double)at;
}

/* Closed form at the instant of the last change, planned flows that start
 * before the end counted one by one. */
static double naive_closed(const struct world *w, const struct bt_path *path,
                           double cap, uint64_t bytes)
{
    double worst = cap > 0 ? (double)bytes / cap * 1e9 : 0;

    for (uint32_t k = 0; k < path->count; k++) {
        double rate = (double)bt_topology_link_at(w->fleet->t, path->links[k])
                          ->rate_bytes_per_s;
        double sum = (double)bytes;
        bool counted[FLOWS] = {false};

        for (uint32_t i = 0; i < FLOWS;) {
            const struct flow *f = &w->flows[i];

            if (!counted[i] && f->held && uses(f, path->links[k]) &&
                ((double)f->start_ns <= w->at_ns ||
                 (double)f->start_ns - w->at_ns < sum / rate * 1e9)) {
                counted[i] = true;
                sum += fmin(f->left, (double)bytes);
                i = 0;
                continue;
            }
            i++;
        }
        worst = fmax(worst, sum / rate * 1e9);
    }
    return worst;
}

static void compare_estimates(const struct world *w, struct bt_rng *rng,
                              int64_t now)
{
    uint32_t a = (uint32_t)bt_rng_below(rng, WORKERS);
    uint32_t b = (uint32_t)bt_rng_below(rng, WORKERS);
    uint64_t bytes = 1 + bt_rng_below(rng, 20000000);
    int64_t at = now + (int64_t)bt_rng_below(rng, SECOND);
    struct bt_network *net = w->fleet->net;
    struct bt_path path;
    int64_t got, bound;

    bt_topology_path(w->fleet->t, a, b, &path);
    got = bt_network_transfer_ns(net, now, now, a, b, bytes, 1);
    near("closed form", (double)got,
         naive_closed(w, &path,
                      (double)w->fleet->spec.classes[path.path_class]
                          .flow_bytes_per_s_max,
                      bytes),
         2);
    near("exact", (double)bt_network_exact_ns(net, now, at, a, b, bytes, 1),
         naive_exact(w, at, a, b, bytes), 10);
    assert_true(bt_network_transfer_ns(net, now, at, a, b, bytes + 1, 1) >=
                bt_network_transfer_ns(net, now, at, a, b, bytes, 1));
    got = bt_network_transfer_ns(net, now, at, a, b, bytes, 1);
    if (a == b)
        return;
    bound = bt_network_out_bound_ns(net, now, at, a, bytes);
    assert_true(bound >= 0 && bound <= got);
    bound = bt_network_in_bound_ns(net, now, at, b, bytes);
    assert_true(bound >= 0 && bound <= got);
}

/* ---- random life ---- */

static void open_one(struct world *w, struct bt_rng *rng, uint32_t i,
                     int64_t now)
{
    uint32_t a = (uint32_t)bt_rng_below(rng, WORKERS);
    uint32_t b = (uint32_t)bt_rng_below(rng, WORKERS);
    uint64_t bytes = bt_rng_below(rng, 20000000);
    int64_t start =
        now + (int64_t)(bt_rng_below(rng, 2) * bt_rng_below(rng, 2 * SECOND));

    enter(w, i, a, b, bytes);
    w->flows[i].start_ns = start;
    bt_network_open(w->fleet->net, i, now, a, b, bytes, start);
}

static void change_one(struct world *w, struct bt_rng *rng, int64_t now)
{
    uint32_t i = (uint32_t)bt_rng_below(rng, FLOWS);
    struct flow *f = &w->flows[i];
    int64_t start = now + (int64_t)bt_rng_below(rng, SECOND);

    if (!f->held) {
        open_one(w, rng, i, now);
    } else if (bt_rng_below(rng, 3) == 0) {
        start = bt_rng_below(rng, 2) ? now : start;
        f->left = f->bytes;
        memset(f->beside, 0, sizeof(f->beside));
        f->start_ns = start;
        bt_network_plan(w->fleet->net, i, now, start);
    } else {
        f->held = false;
        f->left = 0;
        bt_network_close(w->fleet->net, i, now);
    }
}

static void live(struct fleet *fleet, struct bt_rng *rng)
{
    struct world w = {.fleet = fleet};
    int64_t now = 0;

    for (step_number = 0; step_number < STEPS; step_number++) {
        now += (int64_t)bt_rng_below(rng, SECOND / 2);
        advance(&w, (double)now);
        change_one(&w, rng, now);
        /* A change of nothing, so that planned changes roll as well. */
        bt_network_open(fleet->net, FLOWS, now, 0, 0, 0, now);
        bt_network_close(fleet->net, FLOWS, now);
        if (on_the_brink(&w))
            continue;
        compare_links(&w);
        compare_passed(&w, now);
        compare_estimates(&w, rng, now);
    }
    for (uint32_t i = 0; i < FLOWS; i++)
        bt_network_close(fleet->net, i, now);
    memset(w.flows, 0, sizeof(w.flows));
    compare_links(&w);
    assert_true(bt_network_is_empty(fleet->net));
}

static void random_life(void **state)
{
    struct bt_rng rng;

    (void)state;
    seed = 8002;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (fleet_number = 0; fleet_number < FLEETS; fleet_number++) {
        struct fleet fleet;

        draw_fleet(&rng, &fleet);
        build(&fleet);
        live(&fleet, &rng);
        free(fleet.memory);
    }
}

/* ---- whatever the numbers ---- */

static int64_t estimate(const struct fleet *f, uint32_t pair, uint64_t bytes)
{
    return bt_network_transfer_ns(f->net, 0, 0, pair / WORKERS, pair % WORKERS,
                                  bytes, 1);
}

#define PAIRS (WORKERS * WORKERS)

/* Flows open one after the other at 0, some planned; every estimate at 0 only
 * grows, and is a quarter on a fleet four times as fast. */
static void grow(struct fleet *slow, struct fleet *fast, struct bt_rng *rng)
{
    int64_t before[PAIRS];
    uint64_t bytes = 4 * (1 + bt_rng_below(rng, 5000000));

    for (uint32_t pair = 0; pair < PAIRS; pair++)
        before[pair] = estimate(slow, pair, bytes);
    for (uint32_t i = 0; i < FLOWS; i++) {
        uint32_t pair = (uint32_t)bt_rng_below(rng, PAIRS);
        uint64_t size = bt_rng_below(rng, 20000000);
        int64_t start =
            4 * (int64_t)(bt_rng_below(rng, 2) * bt_rng_below(rng, SECOND));

        bt_network_open(slow->net, i, 0, pair / WORKERS, pair % WORKERS, size,
                        start);
        bt_network_open(fast->net, i, 0, pair / WORKERS, pair % WORKERS, size,
                        start / 4);
        for (pair = 0; pair < PAIRS; pair++) {
            int64_t got = estimate(slow, pair, bytes);

            assert_true(got >= before[pair]);
            before[pair] = got;
            near("a quarter", (double)estimate(fast, pair, bytes),
                 (double)got / 4, 2);
        }
        near("exact quarter",
             (double)bt_network_exact_ns(fast->net, 0, 0, i % WORKERS, 0, bytes,
                                         1),
             (double)bt_network_exact_ns(slow->net, 0, 0, i % WORKERS, 0, bytes,
                                         1) /
                 4,
             10);
    }
}

static void laws(void **state)
{
    struct bt_rng rng;

    (void)state;
    seed = 8003;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (fleet_number = 0; fleet_number < FLEETS; fleet_number++) {
        struct fleet slow, fast;

        draw_fleet(&rng, &slow);
        fast = slow;
        fast.spec.pods = fast.pods;
        fast.spec.racks = fast.racks;
        fast.spec.nodes = fast.nodes;
        fast.spec.workers = fast.workers;
        scale_fleet(&fast, 4);
        build(&slow);
        build(&fast);
        grow(&slow, &fast, &rng);
        free(slow.memory);
        free(fast.memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_life),
        cmocka_unit_test(laws),
    };

    return cmocka_run_group_tests_name("network_random", tests, NULL, NULL);
}
