/* Slot instants against W8 of cost-models.md section 20, and running
 * quantiles of output lengths against sorted samples. */
#include "baton/base/rng.h"
#include "baton/planner/cost.h"
#include "baton/planner/slot.h"
#include "cost_digits.h"

#include <stdlib.h>

#define S 1000000000LL

static const struct bt_slot_release running[] = {
    {400000000, 300}, {900000000, 500}, {1500000000, 800}};

static struct bt_slot_query w8_query(uint64_t held)
{
    return (struct bt_slot_query){.free_blocks = 200,
                                  .ahead_blocks = 350,
                                  .need_blocks =
                                      bt_slot_need(12000, 512, held, 16),
                                  .releases = running,
                                  .count = 3,
                                  .running = 3,
                                  .ahead = 1};
}

static void w8_slot(void **state)
{
    struct bt_slot_query q = w8_query(0);

    (void)state;
    assert_int_equal(q.need_blocks, 782);
    assert_int_equal(bt_slot_alloc_ns(&q), 1500000000);
    q = w8_query(8192);
    assert_int_equal(q.need_blocks, 270);
    assert_int_equal(bt_slot_alloc_ns(&q), 900000000);
}

static void need(void **state)
{
    (void)state;
    assert_int_equal(bt_slot_need(16, 0, 0, 16), 1);
    assert_int_equal(bt_slot_need(17, 0, 15, 16), 2);
    assert_int_equal(bt_slot_need(17, 0, 16, 16), 1);
    assert_int_equal(bt_slot_need(16, 0, 9999, 16), 0);
    assert_int_equal(bt_slot_need(5, 2, 1, 0), 6);
    assert_true(bt_slot_need(UINT64_MAX, 9, 0, 1) == UINT64_MAX);
}

static void at_once_or_never(void **state)
{
    struct bt_slot_query q = w8_query(0);

    (void)state;
    q.now_ns = 7 * S; /* all releases are overdue: they count as now */
    assert_int_equal(bt_slot_alloc_ns(&q), 7 * S);
    q.need_blocks = 1451;
    assert_true(bt_slot_alloc_ns(&q) == BT_COST_INFINITE);
    assert_true(bt_slot_run_ns(&q) == BT_COST_INFINITE);
    q.need_blocks = UINT64_MAX;
    q.ahead_blocks = UINT64_MAX;
    assert_true(bt_slot_alloc_ns(&q) == BT_COST_INFINITE);
    q = (struct bt_slot_query){.now_ns = 3, .free_blocks = 5, .need_blocks = 5};
    assert_int_equal(bt_slot_alloc_ns(&q), 3);
    q.need_blocks = 6;
    assert_true(bt_slot_alloc_ns(&q) == BT_COST_INFINITE);
}

/* 200 free, three running grow by 300 blocks/s together. At 0.9 s two have
 * ended: 1,000 less a third of 270. All ended: nothing grows. */
static void growth(void **state)
{
    struct bt_slot_query q = w8_query(0);

    (void)state;
    q.growth_blocks_per_s = 300;
    q.ahead_blocks = 0;
    q.need_blocks = 910;
    assert_int_equal(bt_slot_alloc_ns(&q), 900000000);
    q.need_blocks = 911;
    assert_int_equal(bt_slot_alloc_ns(&q), 1500000000);
    q.need_blocks = 1800;
    assert_int_equal(bt_slot_alloc_ns(&q), 1500000000);
    q.growth_blocks_per_s = (double)NAN;
    q.need_blocks = 1000;
    assert_int_equal(bt_slot_alloc_ns(&q), 900000000);
}

static void batch_limit(void **state)
{
    struct bt_slot_query q = w8_query(8192); /* room at 0.9 s */

    (void)state;
    q.running_max = 5;
    assert_int_equal(bt_slot_run_ns(&q), 900000000);
    q.running_max = 4; /* 3 running and 1 ahead: the first end */
    assert_int_equal(bt_slot_run_ns(&q), 900000000);
    q.running_max = 2;
    assert_int_equal(bt_slot_run_ns(&q), 1500000000);
    /* The fifth end: three in 1.5 s, so 0.5 s each after that. */
    q.ahead = 3;
    assert_int_equal(bt_slot_run_ns(&q), 2500000000);
    q.ahead = UINT32_MAX;
    assert_true(bt_slot_run_ns(&q) > 1000000 * S);
    q.need_blocks = q.ahead_blocks = 0;
    q.count = 0;
    assert_true(bt_slot_run_ns(&q) == BT_COST_INFINITE);
}

/* ---- lengths ---- */

#define SAMPLES 4000

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Log-normal-like: product of uniform draws. */
static void draw(uint64_t *v, size_t count, uint64_t seed)
{
    struct bt_rng rng;

    bt_rng_seed(&rng, seed);
    for (size_t i = 0; i < count; i++)
        v[i] =
            1 + (uint64_t)exp(bt_rng_unit(&rng) * 5 + bt_rng_unit(&rng) * 4.5);
}

static void quantiles(void **state)
{
    static const double qs[] = {0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1};
    static uint64_t v[SAMPLES];
    struct bt_length l;

    (void)state;
    draw(v, SAMPLES, 42);
    bt_length_init(&l, 1, 0);
    for (size_t i = 0; i < SAMPLES; i++)
        bt_length_observe(&l, v[i]);
    qsort(v, SAMPLES, sizeof(v[0]), by_value);
    for (size_t i = 0; i < sizeof(qs) / sizeof(qs[0]); i++) {
        size_t rank = (size_t)ceil(qs[i] * SAMPLES) - 1;

        assert_near((double)bt_length_quantile(&l, qs[i]), (double)v[rank],
                    0.05);
    }
}

/* Every single value is given back to within 5 %. */
static void resolution(void **state)
{
    (void)state;
    for (uint64_t v = 1; v <= 40000; v += 1 + v / 50) {
        struct bt_length l;

        bt_length_init(&l, 1, 0);
        bt_length_observe(&l, v);
        assert_near((double)bt_length_quantile(&l, 0.5), (double)v, 0.05);
    }
}

static void what_is_left(void **state)
{
    static const uint64_t seen[] = {0, 10, 100, 500, 2000};
    static uint64_t v[SAMPLES];
    struct bt_length l;

    (void)state;
    draw(v, SAMPLES, 43);
    bt_length_init(&l, 1, 0);
    for (size_t i = 0; i < SAMPLES; i++)
        bt_length_observe(&l, v[i]);
    for (size_t k = 0; k < sizeof(seen) / sizeof(seen[0]); k++) {
        double sum = 0;
        double count = 0;

        for (size_t i = 0; i < SAMPLES; i++) {
            if (v[i] <= seen[k])
                continue;
            sum += (double)(v[i] - seen[k]);
            count++;
        }
        assert_near((double)bt_length_left(&l, seen[k]), sum / count, 0.05);
    }
}

static void left_by_hand(void **state)
{
    struct bt_length l;

    (void)state;
    bt_length_init(&l, 1, 0);
    bt_length_observe(&l, 1);
    bt_length_observe(&l, 9);
    bt_length_observe(&l, 11);
    assert_int_equal(bt_length_left(&l, 0), 7);
    assert_int_equal(bt_length_left(&l, 1), 9);
    assert_int_equal(bt_length_left(&l, 9), 2);
    assert_int_equal(bt_length_left(&l, 10), 1);
}

static void prior_fades(void **state)
{
    struct bt_length l;

    (void)state;
    bt_length_init(&l, 0.99, 0);
    assert_int_equal(bt_length_quantile(&l, 0.5), 0);
    assert_int_equal(bt_length_left(&l, 3), 0);
    bt_length_init(&l, 0.99, 256);
    assert_near((double)bt_length_quantile(&l, 0.5), 256, 0.05);
    assert_near((double)bt_length_left(&l, 0), 256, 0.05);
    for (int i = 0; i < 20; i++)
        bt_length_observe(&l, 19);
    assert_int_equal(bt_length_quantile(&l, 0.5), 19);
    for (int i = 0; i < 1000; i++)
        bt_length_observe(&l, 7);
    assert_int_equal(bt_length_quantile(&l, 0.99), 7);
    assert_true(l.total < 101);
}

static void garbage_lengths(void **state)
{
    struct bt_length l;

    (void)state;
    bt_length_init(&l, (double)NAN, 100);
    bt_length_observe(&l, 0); /* not a length */
    assert_near((double)bt_length_quantile(&l, 1), 100, 0.05);
    bt_length_observe(&l, UINT64_MAX); /* as the longest */
    assert_in_range(bt_length_quantile(&l, 1), 40000, 43000);
    assert_near((double)bt_length_quantile(&l, (double)NAN), 100, 0.05);
    /* Longer than anything known: some more, not none. */
    assert_in_range(bt_length_left(&l, 1000000), 1, 100000);
    assert_true(bt_length_left(&l, UINT64_MAX) == UINT64_MAX / 20 + 1);
    assert_true(isfinite(l.total));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w8_slot),          cmocka_unit_test(need),
        cmocka_unit_test(at_once_or_never), cmocka_unit_test(growth),
        cmocka_unit_test(batch_limit),      cmocka_unit_test(quantiles),
        cmocka_unit_test(resolution),       cmocka_unit_test(what_is_left),
        cmocka_unit_test(left_by_hand),     cmocka_unit_test(prior_fades),
        cmocka_unit_test(garbage_lengths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
