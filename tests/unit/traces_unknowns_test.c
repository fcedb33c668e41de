/* What an operator asks of a trace, on traces whose answers are worked out by
 * hand: hits by tier, from which fleet on routing by prefix pays, what
 * namespaces cost. Generated ones where a second way gives the figure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/trace.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 10u

static void begin(struct bt_trace *t, uint64_t ids)
{
    memset(t, 0, sizeof(*t));
    t->requests = calloc(4096, sizeof(*t->requests));
    t->blocks = calloc(16384, sizeof(*t->blocks));
    assert_non_null(t->requests);
    assert_non_null(t->blocks);
    t->block_tokens = BLOCK;
    t->block_ids = ids;
    t->has_prefixes = true;
}

static void add(struct bt_trace *t, uint32_t tenant, uint32_t tokens,
                const uint64_t *ids)
{
    struct bt_trace_request *q = &t->requests[t->count++];

    assert_true(t->count <= 4096);
    *q = (struct bt_trace_request){.arrival_ns = (int64_t)t->count * 1000000000,
                                   .input_tokens = tokens,
                                   .output_tokens = 1,
                                   .block_at = t->block_count,
                                   .block_count = (tokens + BLOCK - 1) / BLOCK,
                                   .tenant = tenant};
    for (uint32_t b = 0; b < q->block_count; b++)
        t->blocks[t->block_count++] = ids[b];
    assert_true(t->block_count <= 16384);
}

static void near(double value, double due, double slack)
{
    if (!(fabs(value - due) <= slack))
        fail_msg("%.9f, not %.9f +- %g", value, due, slack);
}

/* ---- tiers ---- */

/* Device and host of 2 blocks, disk of 1; newest first:
 *   0 1       device 0 1
 *   2 3       device 2 3, host 0 1
 *   0 1       both from the host; device 0 1, host 2 3
 *   2 3 4     both from the host; device 2 3, host 4 0, disk 1
 *   0 1 5     0 from the host, 1 from the disk
 * The last prompt has 25 tokens, the one before 22. */
static void test_tiers_by_hand(void **state)
{
    static const uint64_t a[] = {0, 1}, b[] = {2, 3}, d[] = {2, 3, 4},
                          e[] = {0, 1, 5};
    static const uint64_t sizes[BT_TRACE_TIERS] = {2, 2, 1};
    struct bt_trace_tiers r;
    struct bt_trace t;

    (void)state;
    begin(&t, 6);
    add(&t, 0, 20, a);
    add(&t, 0, 20, b);
    add(&t, 0, 20, a);
    add(&t, 0, 22, d);
    add(&t, 0, 25, e);
    assert_int_equal(bt_trace_tiers_get(&t, 1, sizes, &r), BT_OK);
    near(r.tokens, 20 + 20 + 20 + 22 + 25, 0);
    near(r.moment, 400 + 400 + 400 + 484 + 625, 0);
    near(r.tiers[0].tokens, 0, 0);
    near(r.tiers[1].tokens, 50, 0);
    near(r.tiers[2].tokens, 10, 0);
    /* n^2 + 2nh: 100 at depth 0, 300 at depth 10 */
    near(r.tiers[1].moment, 400 + 400 + 100, 0);
    near(r.tiers[2].moment, 300, 0);
    assert_int_equal(r.tiers[0].requests, 0);
    assert_int_equal(r.tiers[1].requests, 3);
    assert_int_equal(r.tiers[2].requests, 1);
    /* without the slower ones nothing is found; with a device of 6, all */
    {
        static const uint64_t one[BT_TRACE_TIERS] = {2, 0, 0};
        static const uint64_t large[BT_TRACE_TIERS] = {6, 0, 0};

        assert_int_equal(bt_trace_tiers_get(&t, 1, one, &r), BT_OK);
        near(r.tiers[0].tokens + r.tiers[1].tokens + r.tiers[2].tokens, 0, 0);
        assert_int_equal(bt_trace_tiers_get(&t, 1, large, &r), BT_OK);
        near(r.tiers[0].tokens, 60, 0);
    }
    bt_trace_fini(&t);
}

/* A partial last block counts with its own tokens. */
static void test_tiers_partial(void **state)
{
    static const uint64_t a[] = {0, 1};
    static const uint64_t sizes[BT_TRACE_TIERS] = {8, 0, 0};
    struct bt_trace_tiers r;
    struct bt_trace t;

    (void)state;
    begin(&t, 2);
    add(&t, 0, 15, a);
    add(&t, 0, 15, a);
    assert_int_equal(bt_trace_tiers_get(&t, 1, sizes, &r), BT_OK);
    near(r.tiers[0].tokens, 15, 0);
    near(r.tiers[0].moment, 15 * 15, 0);
    bt_trace_fini(&t);
}

/* Tiers together find what one LRU of their sum finds (a stack of LRUs is an
 * LRU), whatever the split. */
static void test_tiers_sum(void **state)
{
    static const uint64_t splits[][BT_TRACE_TIERS] = {
        {200, 300, 500}, {1, 0, 999}, {999, 1, 0}, {1000, 0, 0}};

    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct bt_trace_generate_options g;
        struct bt_trace_stats s;
        struct bt_trace t;

        bt_trace_generate_options_init(&g);
        g.seed = seed;
        g.requests = 400;
        assert_int_equal(bt_trace_generate(&g, &t), BT_OK);
        assert_int_equal(bt_trace_stats_get(&t, 4, &s), BT_OK);
        assert_int_equal(s.lru_blocks[0], 1000);
        for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
            struct bt_trace_tiers one, four;

            assert_int_equal(bt_trace_tiers_get(&t, 1, splits[i], &one), BT_OK);
            assert_int_equal(bt_trace_tiers_get(&t, 4, splits[i], &four),
                             BT_OK);
            near((one.tiers[0].tokens + one.tiers[1].tokens +
                  one.tiers[2].tokens) /
                     one.tokens,
                 s.lru_global[0], 1e-12);
            near((four.tiers[0].tokens + four.tiers[1].tokens +
                  four.tiers[2].tokens) /
                     four.tokens,
                 s.lru_random[0], 1e-12);
        }
        bt_trace_fini(&t);
    }
}

/* ---- pays ---- */

/* 1,000 times the same block. One cache misses once; N caches with requests at
 * random once each (1,000 requests reach each of 64): gain (N - 1) / 1000,
 * which is 3 % at 31 workers: 32 pay, 16 do not. */
static void test_pays_from_32(void **state)
{
    static const uint64_t a[] = {0};
    struct bt_trace_pays p;
    struct bt_trace t;

    (void)state;
    begin(&t, 1);
    for (int i = 0; i < 1000; i++)
        add(&t, 0, BLOCK, a);
    assert_int_equal(bt_trace_pays_get(&t, 8, 5, 0.03, &p), BT_OK);
    for (size_t i = 0; i < BT_TRACE_PAYS && p.counts[i] <= 64; i++)
        near(p.by_workers[i], (p.counts[i] - 1) / 1000.0, 1e-12);
    assert_int_equal(p.workers_from, 32);
    /* with 8 workers no cache pays */
    near(p.by_cache[0], 0.007, 1e-12);
    assert_int_equal(p.blocks_from, 0);
    assert_int_equal(p.blocks_to, 0);
    /* with 64 each does */
    assert_int_equal(bt_trace_pays_get(&t, 64, 5, 0.03, &p), BT_OK);
    assert_int_equal(p.blocks_from, 100);
    assert_int_equal(p.blocks_to, 300000);
    /* and a bound no fleet reaches */
    assert_int_equal(bt_trace_pays_get(&t, 64, 5, 0.5, &p), BT_OK);
    assert_int_equal(p.workers_from, 0);
    bt_trace_fini(&t);
}

/* 400 prompts of one block, three rounds: one cache must hold 400 to hit at
 * all. Two workers of 300 hold them together, 100 each do not: caches pay from
 * 300 on; what random routing finds grows with the cache only to its own
 * share, so they pay up to the largest. */
static void test_pays_by_cache(void **state)
{
    struct bt_trace_pays p;
    struct bt_trace t;

    (void)state;
    begin(&t, 400);
    for (int round = 0; round < 3; round++)
        for (uint64_t i = 0; i < 400; i++)
            add(&t, 0, BLOCK, &i);
    assert_int_equal(bt_trace_pays_get(&t, 2, 100, 0.03, &p), BT_OK);
    near(p.by_cache[0], 0, 1e-12); /* 200 together: none */
    assert_int_equal(p.blocks_from, 300);
    assert_int_equal(p.blocks_to, 300000);
    /* of 100 each it takes more than 2 workers; 4 hold all 400 */
    near(p.by_workers[0], 0, 1e-12);
    assert_true(p.by_workers[1] > 0.03);
    assert_int_equal(p.workers_from, 4);
    bt_trace_fini(&t);
}

/* ---- isolation ---- */

static void test_isolation_own_tenants(void **state)
{
    static const uint64_t a[] = {0, 1};
    struct bt_trace_isolation s;
    struct bt_trace t;

    (void)state;
    begin(&t, 2);
    add(&t, 1, 20, a);
    add(&t, 2, 20, a);
    add(&t, 1, 20, a);
    add(&t, 2, 20, a);
    assert_int_equal(bt_trace_isolation_get(&t, 7, &s), BT_OK);
    assert_true(s.from_trace);
    assert_int_equal(s.tenants, 2);
    near(s.ideal_shared, 0.75, 1e-12);
    near(s.ideal_own, 0.5, 1e-12);
    assert_int_equal(s.blocks_shared, 2);
    assert_int_equal(s.blocks_own, 4);
    for (int i = 0; i < 6; i++) {
        near(s.lru_shared[i], 0.75, 1e-12);
        near(s.lru_own[i], 0.5, 1e-12);
    }
    bt_trace_fini(&t);
}

/* 20 conversations of three turns (10, 20, 30 tokens) behind `shared` blocks
 * that all have. */
static void conversations(struct bt_trace *t, uint32_t shared)
{
    begin(t, 60 + shared);
    for (uint32_t turn = 1; turn <= 3; turn++)
        for (uint64_t c = 0; c < 20; c++) {
            uint64_t ids[8];

            for (uint32_t i = 0; i < shared; i++)
                ids[i] = 60 + i;
            for (uint32_t i = 0; i < turn; i++)
                ids[shared + i] = c * 3 + i;
            add(t, 0, (shared + turn) * BLOCK, ids);
        }
}

/* A conversation stays with one tenant, so nothing of it is lost; a system
 * prompt is stored once per tenant. */
static void test_isolation_of_conversations(void **state)
{
    struct bt_trace_isolation s;
    struct bt_trace t;

    (void)state;
    conversations(&t, 0);
    assert_int_equal(bt_trace_isolation_get(&t, 4, &s), BT_OK);
    assert_false(s.from_trace);
    assert_int_equal(s.conversations, 20);
    near(s.ideal_shared, 600.0 / 1200, 1e-12);
    near(s.ideal_own, 600.0 / 1200, 1e-12);
    assert_int_equal(s.blocks_own, 60);
    bt_trace_fini(&t);

    conversations(&t, 2);
    assert_int_equal(bt_trace_isolation_get(&t, 2, &s), BT_OK);
    assert_int_equal(s.conversations, 20);
    /* of 2400 tokens: each request but the first finds the 20 shared ones */
    near(s.ideal_shared, (600 + 59 * 20) / 2400.0, 1e-12);
    near(s.ideal_own, (600 + 58 * 20) / 2400.0, 1e-12);
    assert_int_equal(s.blocks_own, s.blocks_shared + 2);
    bt_trace_fini(&t);
}

static void test_refuses(void **state)
{
    static const uint64_t a[] = {0}, none[BT_TRACE_TIERS] = {0, 5, 5},
                          some[BT_TRACE_TIERS] = {1, 0, 0};
    struct bt_trace_isolation s;
    struct bt_trace_tiers r;
    struct bt_trace_pays p;
    struct bt_trace t;

    (void)state;
    begin(&t, 1);
    add(&t, 0, BLOCK, a);
    assert_int_equal(bt_trace_tiers_get(&t, 1, none, &r), BT_INVALID);
    assert_int_equal(bt_trace_tiers_get(&t, 0, some, &r), BT_INVALID);
    assert_int_equal(bt_trace_tiers_get(&t, 4097, some, &r), BT_INVALID);
    assert_int_equal(bt_trace_pays_get(&t, 4097, 1, 0.03, &p), BT_INVALID);
    assert_int_equal(bt_trace_pays_get(&t, 1, 0, 0.03, &p), BT_INVALID);
    assert_int_equal(bt_trace_isolation_get(&t, 1, &s), BT_INVALID);
    assert_int_equal(bt_trace_isolation_get(&t, 65537, &s), BT_INVALID);
    t.block_ids = 0; /* no prefixes */
    assert_int_equal(bt_trace_tiers_get(&t, 1, some, &r), BT_INVALID);
    assert_int_equal(bt_trace_pays_get(&t, 1, 1, 0.03, &p), BT_INVALID);
    assert_int_equal(bt_trace_isolation_get(&t, 2, &s), BT_INVALID);
    bt_trace_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers_by_hand),
        cmocka_unit_test(test_tiers_partial),
        cmocka_unit_test(test_tiers_sum),
        cmocka_unit_test(test_pays_from_32),
        cmocka_unit_test(test_pays_by_cache),
        cmocka_unit_test(test_isolation_own_tenants),
        cmocka_unit_test(test_isolation_of_conversations),
        cmocka_unit_test(test_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
