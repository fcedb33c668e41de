/* How far a prediction can be trusted: the p90 of the time from placement to
 * first token, learned from realised over predicted. Against a second
 * implementation: the weighted quantile of a list. */
#include "test_core_world.h"

#include "baton/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS    1000000LL
#define SEEN  400
#define START 1.38448     /* 1 + 1.2816 * 0.3 */
#define WIDTH 1.0746      /* of a bucket: 64 over two decades */
#define OLD   0.995       /* weight after each further one */
#define SEED  20261129ull /* printed on failure */

static struct {
    double ratio[SEEN];
    int count;
} seen;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The least ratio that at least 90 % of the weight does not exceed. */
static double p90_of_seen(void)
{
    struct {
        double ratio, weight;
    } rows[SEEN];
    double all = 0, below = 0, weight = 1;

    for (int i = seen.count - 1; i >= 0; i--) {
        rows[i].ratio = seen.ratio[i];
        rows[i].weight = weight;
        all += weight;
        weight *= OLD;
    }
    qsort(rows, (size_t)seen.count, sizeof(rows[0]), by_value);
    for (int i = 0; i < seen.count; i++) {
        below += rows[i].weight;
        if (below >= 0.9 * all)
            return rows[i].ratio;
    }
    return 0;
}

static void open_world(struct world *w, bool calibrate)
{
    seen.count = 0;
    world_init(w);
    w->config.calibrate = calibrate;
    w->config.prefill_timeout_ns = w->config.handoff_timeout_ns = 0;
    w->config.lease_ns = w->config.lease_margin_ns = 0;
    world_start(w);
}

/* A prompt of 100 tokens: the prefill takes its 11 ms, so nothing else is
 * learned, and its first token comes `after_ms` later. */
static const struct bt_decision *serve(struct world *w, int64_t after_ms)
{
    const struct bt_decision *d = &w->decisions[1];
    double predicted;

    w->finished[1] = 0;
    (void)world_request(w, 1);
    w->now_ms += 11;
    (void)world_answered(w, 1, 1, 100, 0);
    w->now_ms += after_ms;
    (void)world_first(w, 1, 2);
    w->now_ms += 1000; /* the next one finds everything idle */
    (void)world_done(w, 1, 2);
    assert_int_equal(w->finished[1], 1);
    predicted = (double)d->placement.chosen.terms.total_ns;
    seen.ratio[seen.count++] = (double)((11 + after_ms) * MS) / predicted;
    return d;
}

static double told(const struct bt_decision *d)
{
    return (double)d->total_p90_ns / (double)d->placement.chosen.terms.total_ns;
}

static void assert_near(double value, double expected, double factor)
{
    if (!(value < expected * factor && value > expected / factor))
        fail_msg("seed %llu, after %d: %g instead of %g",
                 (unsigned long long)SEED, seen.count, value, expected);
}

static void test_learned(void **state)
{
    struct bt_rng rng;
    struct world w;

    (void)state;
    open_world(&w, true);
    bt_rng_seed(&rng, SEED);
    for (int i = 0; i < SEEN; i++) {
        double expected = i < 32 ? START : p90_of_seen();
        double exp = bt_rng_exponential(&rng, 40);

        if (i > SEEN / 2)
            exp = 2 * exp; /* and it follows a change */
        assert_near(told(serve(&w, 1 + (int64_t)fmin(exp, 120))), expected,
                    i < 32 ? 1 + 1e-6 : WIDTH);
    }
    assert_true(p90_of_seen() > 2);
    world_fini(&w);
}

/* Long predictions do not learn from short ones; another reason does, until it
 * has enough of its own. */
static void test_what_is_alike(void **state)
{
    struct bt_ev_request ask = world_ask(2);
    struct world w;

    (void)state;
    open_world(&w, true);
    for (int i = 0; i < 40; i++)
        (void)serve(&w, 60);
    assert_near(told(&w.decisions[1]), p90_of_seen(), WIDTH);
    ask.prompt_tokens = 1000; /* 101 ms and more */
    (void)world_send(&w, &ask);
    (void)world_gone(&w, 2);
    assert_near(told(&w.decisions[2]), START, 1 + 1e-6);
    ask = world_ask(3);
    ask.pd_allowed = false; /* unsupported_request, d alone: 21 ms */
    (void)world_send(&w, &ask);
    (void)world_gone(&w, 3);
    assert_int_equal(w.decisions[3].reason, BT_REASON_UNSUPPORTED);
    assert_near(told(&w.decisions[3]), p90_of_seen(), WIDTH);
    world_fini(&w);
}

static void test_not_without_learning(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, false);
    for (int i = 0; i < 60; i++)
        assert_near(told(serve(&w, 60)), START, 1 + 1e-6);
    assert_int_equal(
        bt_core_total_p90_ns(w.core, 0, BT_REASON_JOINT, BT_COST_INFINITE),
        BT_COST_INFINITE);
    assert_int_equal(bt_core_total_p90_ns(w.core, 9, BT_REASON_JOINT, 7), 7);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learned),
        cmocka_unit_test(test_what_is_alike),
        cmocka_unit_test(test_not_without_learning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
