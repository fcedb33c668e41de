/* The window of a lane against links in virtual time: one queue of rate R, a
 * way of D there and back, lanes that always have something to ask for. Due
 * values come from the rule's fixed point (rate * full + share, FAST TCP) and
 * from the link, which cannot carry more than R.
 *
 *   BATON_SEED  of the random events */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "baton/transfer/window.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define MS    1000000ll
#define US    1000ll
#define KI    1024ull
#define MI    (1024 * KI)
#define LANES 3
#define OUT   512 /* operations of a lane */

static const struct bt_window_limits usual = {
    .ops_max = 16, .op_max = 1u << 20, .target_ns = MS};

struct lane {
    struct bt_window window;
    struct bt_window_op op[OUT]; /* a ring, in the order of their ends */
    int64_t end_ns[OUT];
    uint32_t head, count;
    bool is_on;
    uint64_t ended; /* bytes */
    int64_t worst_ns;
};
struct link {
    double ns_per_byte;
    int64_t base_ns, now_ns;
    double free_ns;
    int64_t stall_ns; /* nobody looks before this */
    struct lane lanes[LANES];
};
static struct link l;

static void start(double rate_bytes_per_s, int64_t base_ns, int lanes)
{
    memset(&l, 0, sizeof(l));
    l.ns_per_byte = 1e9 / rate_bytes_per_s;
    l.base_ns = base_ns;
    for (int i = 0; i < LANES; i++) {
        bt_window_init(&l.lanes[i].window, &usual);
        bt_window_round_trip(&l.lanes[i].window, 2 * base_ns);
        bt_window_round_trip(&l.lanes[i].window, base_ns);
        bt_window_round_trip(&l.lanes[i].window, 3 * base_ns);
        l.lanes[i].is_on = i < lanes;
    }
}

static void ask(struct lane *lane)
{
    struct bt_window *w = &lane->window;

    (void)bt_window_wake(w, l.now_ns);
    while (lane->is_on && lane->count < w->limits.ops_max &&
           (lane->count == 0 || w->out + w->op_bytes <= w->bytes)) {
        uint32_t at = (lane->head + lane->count++) % OUT;

        if (l.free_ns < (double)l.now_ns)
            l.free_ns = (double)l.now_ns;
        l.free_ns += w->op_bytes * l.ns_per_byte;
        lane->end_ns[at] = (int64_t)l.free_ns + l.base_ns;
        bt_window_issued(w, l.now_ns, w->op_bytes, &lane->op[at]);
        assert_true(lane->count == 1 || w->out <= w->bytes);
    }
}

static void check_sizes(const struct bt_window *w)
{
    assert_in_range(w->bytes, 32 * KI, 16 * MI);
    assert_in_range(w->op_bytes, 16 * KI, MI);
    assert_true(w->op_bytes <= w->bytes);
}

/* The next end of any lane; false: none is out. */
static bool step(void)
{
    struct lane *next = NULL;
    struct bt_window_op *op;
    int64_t took_ns;

    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &l.lanes[i];

        ask(lane);
        if (lane->count > 0 && (next == NULL || lane->end_ns[lane->head] <
                                                    next->end_ns[next->head]))
            next = lane;
    }
    if (next == NULL)
        return false;
    if (next->end_ns[next->head] > l.now_ns)
        l.now_ns = next->end_ns[next->head];
    if (l.now_ns < l.stall_ns)
        l.now_ns = l.stall_ns;
    op = &next->op[next->head];
    took_ns = l.now_ns - op->issued_ns;
    if (took_ns > next->worst_ns)
        next->worst_ns = took_ns;
    next->ended += op->bytes;
    next->head = (next->head + 1) % OUT;
    next->count--;
    (void)bt_window_ended(&next->window, op, l.now_ns, true);
    check_sizes(&next->window);
    return true;
}

static void run(int64_t span_ns)
{
    int64_t end_ns = l.now_ns + span_ns;

    for (int i = 0; i < LANES; i++) {
        l.lanes[i].ended = 0;
        l.lanes[i].worst_ns = 0;
    }
    while (l.now_ns < end_ns)
        assert_true(step());
}

static uint64_t window(int lane)
{
    return l.lanes[lane].window.bytes;
}

/* Percent of what the link could carry in this time. */
static double used(int64_t span_ns)
{
    uint64_t ended = 0;

    for (int i = 0; i < LANES; i++)
        ended += l.lanes[i].ended;
    return (double)ended * l.ns_per_byte * 100 / (double)span_ns;
}

static void assert_near(double value, double due, double part)
{
    if (value < due * (1 - part) || value > due * (1 + part))
        fail_msg("%g, due %g within %g", value, due, part);
}

/* ---- one lane ---- */

/* 25 MB/s, 0.2 ms: 25,000 + 65,536 bytes out, 3.6 ms; never idle. 16 gets of
 * 1 MiB would be 671 ms. */
static void slow_link(void **state)
{
    (void)state;
    start(25e6, 200 * US, 1);
    run(100 * MS);
    run(1000 * MS);
    assert_near((double)window(0), 25000 + 65536, 0.25);
    assert_true(l.lanes[0].worst_ns < 6 * MS);
    assert_int_equal(l.lanes[0].window.op_bytes, 16 * KI);
    assert_near(used(1000 * MS), 100, 0.02);
}

/* 1 GB/s, 50 us: 1 MB + 64 KiB, reached from 64 KiB within 8 round trips of
 * at most the target each (doubled 4 times). */
static void middle_link(void **state)
{
    (void)state;
    start(1e9, 50 * US, 1);
    run(8 * MS);
    assert_true(window(0) > 800 * KI);
    run(1000 * MS);
    assert_near((double)window(0), 1e6 + 65536, 0.25);
    assert_true(l.lanes[0].worst_ns < 2 * MS);
    assert_near(used(1000 * MS), 100, 0.02);
}

/* 50 GB/s, 10 us: 16 MiB take 335 us, so the most is reached: 64 KiB doubled 8
 * times, in 8 rounds and two to see it. Half of it would do for the rate. */
static void fast_link(void **state)
{
    struct bt_window *w = &l.lanes[0].window;
    uint64_t before = 0;
    int rounds = 0;

    (void)state;
    start(50e9, 10 * US, 1);
    for (; w->bytes < 16 * MI && rounds < 100; rounds += w->bytes != before) {
        before = w->bytes;
        assert_true(step());
    }
    assert_in_range(rounds, 1, 10);
    assert_int_equal(w->op_bytes, MI);
    run(100 * MS);
    assert_int_equal(w->bytes, 16 * MI);
    assert_near(used(100 * MS), 100, 0.02);
}

/* 20 ms away, 1 GB/s: longer than the target, the link is filled nevertheless,
 * as far as 16 MiB in 20 ms can. */
static void long_link(void **state)
{
    (void)state;
    start(400e6, 20 * MS, 1);
    run(2000 * MS);
    run(1000 * MS);
    assert_true(used(1000 * MS) > 90);
    start(5e9, 20 * MS, 1);
    run(2000 * MS);
    assert_int_equal(window(0), 16 * MI);
}

/* Slower than a smallest operation per target: two of them stay. */
static void very_slow_link(void **state)
{
    (void)state;
    start(1e6, 0, 1);
    run(5000 * MS);
    assert_true(window(0) <= 128 * KI);
    assert_near(used(5000 * MS), 100, 0.05);
}

/* ---- changes ---- */

/* 1 GB/s, a quarter of it, and back. */
static void rate_falls(void **state)
{
    (void)state;
    start(1e9, 50 * US, 1);
    run(500 * MS);
    l.ns_per_byte *= 4;
    run(20 * MS);
    /* Settled again: 250,000 bytes and the share. */
    run(100 * MS);
    assert_true(l.lanes[0].worst_ns < 3 * MS);
    assert_near(used(100 * MS), 100, 0.02);
    run(11000 * MS); /* the better rate is forgotten */
    assert_near((double)window(0), 250000 + 65536, 0.3);
    l.ns_per_byte /= 4;
    run(20 * MS);
    run(100 * MS);
    assert_near((double)window(0), 1e6 + 65536, 0.25);
    assert_near(used(100 * MS), 100, 0.02);
}

/* Nobody looks for 200 ms, ten times: full rate 10 ms after each. */
static void stalls(void **state)
{
    (void)state;
    start(1e9, 50 * US, 1);
    run(100 * MS);
    for (int i = 0; i < 10; i++) {
        l.stall_ns = l.now_ns + 200 * MS;
        run(210 * MS);
        assert_true(window(0) > 500 * KI);
        run(20 * MS);
        assert_near(used(20 * MS), 100, 0.05);
    }
}

/* ---- several lanes ---- */

/* One after the other, on a slow and a middle link: equal parts soon. */
static void two_share(void **state)
{
    static const struct {
        double rate;
        int64_t soon_ns;
    } links[] = {{25e6, 40 * MS}, {200e6, 40 * MS}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        start(links[i].rate, 100 * US, 1);
        run(500 * MS);
        l.lanes[1].is_on = true;
        run(links[i].soon_ns);
        run(500 * MS);
        assert_near((double)l.lanes[0].ended / (double)l.lanes[1].ended, 1,
                    0.25);
        assert_near(used(500 * MS), 100, 0.03);
        /* two shares of queue, 64 KiB each, and the target */
        assert_true(l.lanes[1].worst_ns <
                    2 * MS + (int64_t)(3 * 65536 * l.ns_per_byte));
        l.lanes[0].is_on = false; /* the one that stays takes the rest */
        run(50 * MS);
        run(500 * MS);
        assert_near(used(500 * MS), 100, 0.02);
    }
}

static void three_begin_together(void **state)
{
    (void)state;
    start(25e6, 100 * US, 3);
    run(100 * MS); /* from the first moment on */
    for (int i = 0; i < 3; i++)
        assert_near((double)l.lanes[i].ended, 25e6 / 10 / 3, 0.2);
}

/* ---- limits ---- */

static void idle(void **state)
{
    struct bt_window *w = &l.lanes[0].window;
    uint64_t learned;

    (void)state;
    start(1e9, 50 * US, 1);
    assert_false(bt_window_wake(w, 20000 * MS)); /* never used */
    run(100 * MS);
    l.lanes[0].is_on = false;
    while (step()) {
    }
    learned = w->bytes;
    assert_false(bt_window_wake(w, l.now_ns + BT_WINDOW_IDLE_NS - 1));
    assert_int_equal(w->bytes, learned);
    assert_true(bt_window_wake(w, l.now_ns + BT_WINDOW_IDLE_NS));
    assert_int_equal(w->bytes, 64 * KI);
    assert_false(bt_window_wake(w, l.now_ns + BT_WINDOW_IDLE_NS));
}

static void fixed_and_small(void **state)
{
    static const struct {
        struct bt_window_limits limits;
        uint64_t bytes;
        uint32_t op;
    } due[] = {
        {{16, 1u << 20, -1}, 16 * MI, 1u << 20},
        {{4, 16384, 0}, 64 * KI, 16384},
        {{16, 4096, 0}, 16 * KI, 4096},
        {{1, 1u << 20, 0}, 64 * KI, 65536},
        {{1, 100, 0}, 100, 100},
    };
    struct bt_window w;
    struct bt_window_op op;

    (void)state;
    for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++) {
        bt_window_init(&w, &due[i].limits);
        assert_int_equal(w.bytes, due[i].bytes);
        assert_int_equal(w.op_bytes, due[i].op);
    }
    bt_window_init(&w, &due[0].limits);
    for (int i = 0; i < 100; i++) {
        bt_window_issued(&w, 0, 16 * MI, &op);
        assert_false(bt_window_ended(&w, &op, 1000 * MS, true));
    }
    assert_int_equal(w.bytes, 16 * MI);
    /* One operation at a time: it grows all the same. */
    bt_window_init(&w, &due[3].limits);
    bt_window_issued(&w, 0, w.op_bytes, &op);
    assert_true(bt_window_ended(&w, &op, 10 * US, true));
    assert_int_equal(w.bytes, 128 * KI);
    assert_int_equal(w.op_bytes, 128 * KI);
}

/* What failed or did not fill the window says nothing. */
static void not_judged(void **state)
{
    struct bt_window_op op[4];
    struct bt_window w;

    (void)state;
    bt_window_init(&w, &usual);
    for (int i = 0; i < 3; i++)
        bt_window_issued(&w, 0, 16 * KI, &op[i]);
    for (int i = 0; i < 3; i++)
        assert_false(bt_window_ended(&w, &op[i], 500 * MS, true));
    for (int i = 0; i < 4; i++)
        bt_window_issued(&w, 600 * MS, 16 * KI, &op[i]);
    for (int i = 0; i < 4; i++)
        assert_false(bt_window_ended(&w, &op[i], 900 * MS, false));
    assert_int_equal(w.bytes, 64 * KI);
    assert_int_equal(w.out, 0);
}

static void follows(void **state)
{
    struct bt_window a, b;
    const struct bt_window_limits fixed = {16, 1u << 20, -1};

    (void)state;
    bt_window_init(&a, &fixed);
    bt_window_init(&b, &usual);
    bt_window_follow(&b, &a);
    assert_int_equal(b.bytes, 16 * MI);
    assert_int_equal(b.op_bytes, MI);
    bt_window_init(&a, &usual);
    bt_window_follow(&b, &a); /* it has more */
    assert_int_equal(b.bytes, 16 * MI);
}

/* Times without sense, ends in any order, clocks that stand still or go back:
 * the sizes stay within their limits. */
static void any_times(void **state)
{
    const char *one = getenv("BATON_SEED");
    uint64_t seed = one != NULL ? strtoull(one, NULL, 10) : 7000;

    (void)state;
    for (int c = 0; c < 200; c++, seed++) {
        struct bt_window_op op[32];
        struct bt_window_limits limits;
        struct bt_window w;
        struct bt_rng rng;
        uint64_t top, small;
        uint32_t n = 0;
        int64_t now = 0;

        bt_rng_seed(&rng, seed);
        limits.ops_max = 1 + (uint32_t)bt_rng_below(&rng, 32);
        limits.op_max = 1 + (uint32_t)bt_rng_below(&rng, 1u << 22);
        limits.target_ns = (int64_t)bt_rng_below(&rng, 50) * MS;
        top = (uint64_t)limits.ops_max * limits.op_max;
        small = limits.op_max < 16384 ? limits.op_max : 16384;
        bt_window_init(&w, &limits);
        for (int i = 0; i < 2000; i++) {
            now += (int64_t)bt_rng_below(&rng, 30 * MS) - 5 * MS;
            if (n < limits.ops_max && bt_rng_below(&rng, 2) == 0) {
                bt_window_issued(&w, now, w.op_bytes, &op[n++]);
            } else if (n > 0) {
                uint32_t k = (uint32_t)bt_rng_below(&rng, n);

                (void)bt_window_ended(&w, &op[k], now,
                                      bt_rng_below(&rng, 10) > 0);
                op[k] = op[--n];
            }
            if (w.bytes < (2 * small < top ? 2 * small : top) ||
                w.bytes > top || w.op_bytes < small ||
                w.op_bytes > limits.op_max || w.op_bytes > w.bytes)
                fail_msg("BATON_SEED=%llu: step %d, window %llu, operation %u",
                         (unsigned long long)seed, i,
                         (unsigned long long)w.bytes, w.op_bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_link),
        cmocka_unit_test(middle_link),
        cmocka_unit_test(fast_link),
        cmocka_unit_test(long_link),
        cmocka_unit_test(very_slow_link),
        cmocka_unit_test(rate_falls),
        cmocka_unit_test(stalls),
        cmocka_unit_test(two_share),
        cmocka_unit_test(three_begin_together),
        cmocka_unit_test(idle),
        cmocka_unit_test(fixed_and_small),
        cmocka_unit_test(not_judged),
        cmocka_unit_test(follows),
        cmocka_unit_test(any_times),
    };

    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
