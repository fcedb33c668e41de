/* Predictions of the agent against a fluid model of links that shares no code
 * with them: a flow waits for its set-up and descriptors, then has an equal
 * share of its path and of the link into the node. What must come out is the
 * issue's bound: median 5 % and p95 15 % alone, 10 % and 30 % with others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent_path.h"
#include "baton/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED       20261130u
#define BLOCK      65536u
#define BLOCKS_MAX 256u
#define FLOWS_MAX  8u
#define SAMPLES    4000u

struct world {
    double setup_s, per_s, path_rate, in_rate; /* truth; in_rate 0: none */
    uint32_t flows, peers;
    double noise; /* of each set-up */
    uint64_t nominal;
    uint64_t random;
};

struct one {
    struct bt_path_flow flow;
    uint32_t peer, blocks, runs;
    double start_s, gate_s, left;
};

struct errors {
    double value[SAMPLES];
    size_t count;
};

static uint64_t next(struct world *w)
{
    w->random = bt_mix64(w->random + 0x9E3779B97F4A7C15u);
    return w->random;
}

static double uniform(struct world *w)
{
    return (double)(next(w) >> 11) / 9007199254740992.0;
}

static int64_t ns(double s)
{
    return (int64_t)(s * 1e9);
}

static void begin(struct world *w, struct bt_paths *paths, struct one *one,
                  double now_s)
{
    static uint64_t remote[BLOCKS_MAX];
    static uint32_t local[BLOCKS_MAX];
    struct bt_agent_pull pull = {
        .host = "10.0.0.1", .remote = remote, .local = local};
    double noise = 1 + w->noise * (2 * uniform(w) - 1);
    uint64_t at = 0;

    one->blocks = 8 + (uint32_t)(next(w) % (BLOCKS_MAX - 8));
    one->runs = 0;
    for (uint32_t i = 0; i < one->blocks; i++) {
        bool gap = i == 0 || next(w) % 4 == 0;

        at += gap ? 2 : 1;
        remote[i] = at;
        local[i] = (uint32_t)at;
        one->runs += gap;
    }
    pull.port = (uint16_t)(1000 + one->peer);
    pull.count = one->blocks;
    bt_paths_begin(paths, &one->flow, &pull, "kv", BLOCK, ns(now_s));
    one->start_s = now_s;
    one->gate_s = now_s + (w->setup_s + one->runs * w->per_s) * noise;
    one->left = (double)one->blocks * BLOCK;
}

static void end(struct bt_paths *paths, struct one *one, double now_s,
                struct errors *errors)
{
    struct bt_agent_event event = {
        .status = BT_OK,
        .bytes = (uint64_t)one->blocks * BLOCK,
        .descriptors = one->runs,
        .duration_ns = ns(now_s) - ns(one->start_s),
        .setup_ns = ns(one->gate_s) - ns(one->start_s),
        .moved_ns = ns(now_s) - ns(one->gate_s),
    };
    double real = now_s - one->start_s;

    bt_paths_end(paths, &one->flow, &event, ns(now_s));
    if (event.predicted_ns > 0 && errors->count < SAMPLES)
        errors->value[errors->count++] =
            fabs((double)event.predicted_ns / 1e9 - real) / real;
}

static double rate_of(const struct world *w, const struct one *all,
                      const struct one *one, double now_s)
{
    uint32_t on_path = 0, on_all = 0;

    for (uint32_t i = 0; i < w->flows; i++) {
        bool moves = now_s >= all[i].gate_s - 1e-12;

        on_all += moves;
        on_path += moves && all[i].peer == one->peer;
    }
    if (now_s < one->gate_s - 1e-12)
        return 0;
    double path = w->path_rate / on_path;
    return w->in_rate > 0 ? fmin(path, w->in_rate / on_all) : path;
}

/* Time to the next gate or end, at the present rates. */
static double step_of(const struct world *w, const struct one *all,
                      double now_s)
{
    double step = 1e9;

    for (uint32_t i = 0; i < w->flows; i++) {
        double rate = rate_of(w, all, &all[i], now_s);

        step =
            fmin(step, rate > 0 ? all[i].left / rate : all[i].gate_s - now_s);
    }
    return step;
}

/* `flows` pulls at any time, each followed by another. */
static void run_world(struct world *w, struct bt_paths *paths, uint32_t pulls,
                      struct errors *errors)
{
    struct one all[FLOWS_MAX];
    double now_s = 1;
    uint32_t ended = 0;

    for (uint32_t i = 0; i < w->flows; i++) {
        all[i].peer = i % w->peers;
        begin(w, paths, &all[i], now_s + i * 1e-4);
    }
    while (ended < pulls) {
        double rates[FLOWS_MAX] = {0}, step = step_of(w, all, now_s);

        for (uint32_t i = 0; i < w->flows; i++)
            rates[i] = rate_of(w, all, &all[i], now_s);
        now_s += step;
        for (uint32_t i = 0; i < w->flows; i++) {
            all[i].left -= rates[i] * step;
            if (rates[i] <= 0 || all[i].left > 1)
                continue;
            end(paths, &all[i], now_s, errors);
            begin(w, paths, &all[i], now_s);
            ended++;
        }
    }
    for (uint32_t i = 0; i < w->flows; i++) {
        struct bt_agent_event event = {.status = BT_CANCELLED};

        bt_paths_end(paths, &all[i].flow, &event, ns(now_s));
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void expect(const char *what, struct errors *errors, double median_max,
                   double p95_max)
{
    assert_true(errors->count > 200);
    qsort(errors->value, errors->count, sizeof(double), by_value);
    double median = errors->value[errors->count / 2];
    double p95 = errors->value[errors->count * 95 / 100];
    print_message("%s: seed %u, %zu pulls, median %.4f p95 %.4f\n", what, SEED,
                  errors->count, median, p95);
    assert_true(median <= median_max);
    assert_true(p95 <= p95_max);
}

static struct world plain_world(void)
{
    return (struct world){.setup_s = 0.0003,
                          .per_s = 5e-6,
                          .path_rate = 100e6,
                          .flows = 1,
                          .peers = 1,
                          .noise = 0.2,
                          .random = SEED};
}

static void check_world(const char *what, struct world *w, double median_max,
                        double p95_max)
{
    static struct errors warm, errors;
    struct bt_paths paths;

    memset(&warm, 0, sizeof(warm));
    memset(&errors, 0, sizeof(errors));
    bt_paths_init(&paths, w->nominal);
    run_world(w, &paths, 40, &warm);
    run_world(w, &paths, 600, &errors);
    expect(what, &errors, median_max, p95_max);
    bt_paths_fini(&paths);
}

static void alone(void **state)
{
    struct world w = plain_world();

    (void)state;
    check_world("alone", &w, 0.05, 0.15);
    w.nominal = 125000000;
    check_world("alone, nominal 125 MB/s", &w, 0.05, 0.15);
    w.path_rate = 3e9;
    w.nominal = 0;
    check_world("alone, 3 GB/s", &w, 0.05, 0.15);
}

static void with_others(void **state)
{
    (void)state;
    for (uint32_t flows = 2; flows <= 4; flows++) {
        struct world w = plain_world();
        char what[64];

        w.flows = flows;
        snprintf(what, sizeof(what), "%u flows, one peer", flows);
        check_world(what, &w, 0.10, 0.30);
    }
}

static void incast(void **state)
{
    (void)state;
    for (uint32_t flows = 2; flows <= 4; flows++) {
        struct world w = plain_world();
        char what[64];

        w.flows = w.peers = flows;
        w.in_rate = w.path_rate;
        snprintf(what, sizeof(what), "incast of %u", flows);
        check_world(what, &w, 0.10, 0.30);
    }
}

/* Peers whose own links are the narrow ones do not slow each other. */
static void slow_peers(void **state)
{
    struct world w = plain_world();

    (void)state;
    w.flows = w.peers = 3;
    w.in_rate = 1e9;
    w.nominal = 1000000000;
    check_world("3 slow peers", &w, 0.05, 0.15);
}

/* A quarter of the rate: the model has it within 20 pulls. */
static void slowdown_is_learned(void **state)
{
    static struct errors errors;
    struct world w = plain_world();
    struct bt_paths paths;
    struct bt_agent_path path;

    (void)state;
    memset(&errors, 0, sizeof(errors));
    bt_paths_init(&paths, 0);
    run_world(&w, &paths, 100, &errors);
    w.path_rate /= 4;
    run_world(&w, &paths, 20, &errors);
    assert_int_equal(bt_paths_report(&paths, &path, 1), 1);
    print_message("seed %u: 25 MB/s seen as %.1f MB/s\n", SEED,
                  (double)path.rate_bytes_per_s / 1e6);
    assert_true(fabs((double)path.rate_bytes_per_s / 25e6 - 1) < 0.2);
    bt_paths_fini(&paths);
}

static void table_is_bounded(void **state)
{
    static struct bt_path_flow flows[BT_PATHS_MAX + 1];
    struct bt_agent_path *report = calloc(BT_PATHS_MAX + 2, sizeof(*report));
    const uint64_t remote = 0;
    const uint32_t local = 0;
    struct bt_agent_pull pull = {
        .host = "10.0.0.1", .remote = &remote, .local = &local, .count = 1};
    struct bt_agent_event event = {.status = BT_OK, .bytes = 1};
    struct bt_paths paths;

    (void)state;
    assert_non_null(report);
    bt_paths_init(&paths, 0);
    for (uint32_t i = 0; i <= BT_PATHS_MAX; i++) {
        pull.port = (uint16_t)(1 + i);
        bt_paths_begin(&paths, &flows[i], &pull, "kv", 4096, 1);
    }
    /* all busy: the last one has no row, and no prediction */
    assert_null(flows[BT_PATHS_MAX].path);
    assert_int_equal(bt_paths_report(&paths, report, BT_PATHS_MAX + 2),
                     BT_PATHS_MAX);
    for (uint32_t i = 0; i <= BT_PATHS_MAX; i++)
        bt_paths_end(&paths, &flows[i], &event, 2);
    pull.port = 9999; /* takes the row of the least recently used */
    bt_paths_begin(&paths, &flows[0], &pull, "kv", 4096, 3);
    assert_non_null(flows[0].path);
    assert_int_equal(bt_paths_report(&paths, report, BT_PATHS_MAX + 2),
                     BT_PATHS_MAX);
    assert_int_equal(report[0].port, 2);
    assert_int_equal(report[BT_PATHS_MAX - 1].port, 9999);
    bt_paths_end(&paths, &flows[0], &event, 4);
    bt_paths_fini(&paths);
    free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(with_others),
        cmocka_unit_test(incast),
        cmocka_unit_test(slow_peers),
        cmocka_unit_test(slowdown_is_learned),
        cmocka_unit_test(table_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
