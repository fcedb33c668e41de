/* The block pool against a model that keeps the free list as a plain array and
 * searches linearly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "block_pool.h"

#define BLOCKS 24
#define KEYS   40

struct model {
    uint32_t ref[BLOCKS];
    uint64_t key[BLOCKS]; /* 0: not registered */
    uint32_t free[BLOCKS];
    uint32_t free_count;
    uint64_t evicted; /* key of the last eviction, 0: none */
};

static void on_evict(void *arg, uint32_t block, uint64_t key)
{
    assert_in_range(block, 0, BLOCKS - 1);
    *(uint64_t *)arg = key;
}

static void model_unfree(struct model *m, uint32_t block)
{
    uint32_t at = 0;
    while (m->free[at] != block) {
        at++;
    }
    memmove(m->free + at, m->free + at + 1,
            (m->free_count - at - 1) * sizeof(m->free[0]));
    m->free_count--;
}

static void check_same(const struct bt_pool *pool, const struct model *m)
{
    uint32_t registered = 0, at = pool->head;
    assert_int_equal(pool->free_count, m->free_count);
    for (uint32_t i = 0; i < m->free_count; i++) {
        assert_int_equal(at, m->free[i]);
        at = pool->blocks[at].next;
    }
    assert_int_equal(at, BT_POOL_NONE);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        registered += m->key[i] != 0;
        assert_int_equal(pool->blocks[i].ref, m->ref[i]);
    }
    assert_int_equal(pool->registered_count, registered);
    for (uint64_t key = 1; key <= KEYS; key++) {
        uint32_t found = bt_pool_find(pool, key);
        bool held = false;
        for (uint32_t i = 0; i < BLOCKS; i++) {
            held = held || m->key[i] == key;
        }
        assert_int_equal(found != BT_POOL_NONE, held);
        assert_true(found == BT_POOL_NONE || m->key[found] == key);
    }
}

static void take(struct bt_pool *pool, struct model *m, uint64_t *evicted)
{
    if (m->free_count == 0) {
        return;
    }
    uint32_t want = m->free[0];
    uint64_t gone = m->key[want];
    *evicted = 0;
    assert_int_equal(bt_pool_take(pool), want);
    assert_int_equal(*evicted, gone);
    model_unfree(m, want);
    m->key[want] = 0;
    m->ref[want] = 1;
}

static void step(struct bt_pool *pool, struct model *m, struct bt_rng *rng,
                 uint64_t *evicted)
{
    uint32_t block = (uint32_t)bt_rng_below(rng, BLOCKS);
    uint64_t key = 1 + bt_rng_below(rng, KEYS);
    switch (bt_rng_below(rng, 4)) {
    case 0:
        take(pool, m, evicted);
        break;
    case 1: /* put */
        if (m->ref[block] > 0) {
            bt_pool_put(pool, block);
            if (--m->ref[block] == 0) {
                m->free[m->free_count++] = block;
            }
        }
        break;
    case 2: /* register */
        if (m->ref[block] > 0 && m->key[block] == 0) {
            bt_pool_register(pool, block, key);
            m->key[block] = key;
        }
        break;
    default: /* hit */
        block = bt_pool_find(pool, key);
        if (block != BT_POOL_NONE) {
            bt_pool_ref(pool, block);
            if (m->ref[block]++ == 0) {
                model_unfree(m, block);
            }
        }
        break;
    }
}

static void equals_model(void **state)
{
    (void)state;
    const uint64_t seed = 4711;
    struct bt_rng rng;
    struct model m = {.free_count = BLOCKS};
    struct bt_pool pool;
    uint64_t evicted = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        m.free[i] = i;
    }
    assert_int_equal(bt_pool_init(&pool, BLOCKS, on_evict, &evicted), BT_OK);
    for (int i = 0; i < 20000; i++) {
        step(&pool, &m, &rng, &evicted);
        if (i % 10 == 0) {
            check_same(&pool, &m);
        }
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        for (; m.ref[i] > 0; m.ref[i]--) {
            assert_false(bt_pool_reset(&pool));
            bt_pool_put(&pool, i);
        }
    }
    assert_int_equal(pool.free_count, BLOCKS);
    assert_true(bt_pool_reset(&pool));
    assert_int_equal(pool.registered_count, 0);
    bt_pool_fini(&pool);
}

static void reserved_blocks_are_not_room(void **state)
{
    (void)state;
    struct bt_pool pool;
    assert_int_equal(bt_pool_init(&pool, 5, NULL, NULL), BT_OK);
    pool.reserved = 2;
    assert_int_equal(bt_pool_room(&pool), 3);
    (void)bt_pool_take(&pool);
    assert_int_equal(bt_pool_room(&pool), 2);
    bt_pool_fini(&pool);
    assert_int_equal(bt_pool_init(&pool, 0, NULL, NULL), BT_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_model),
        cmocka_unit_test(reserved_blocks_are_not_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
