/* The agent's pool over real tiers: which key is where, what is pinned, and
 * that the bytes under a key are always that key's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "pool.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096u
#define SEED  4711u

struct rig {
    struct ev_loop *loop;
    struct pool *pool;
    char path[64];
};

static void fill(struct rig *r, uint32_t slot, uint64_t key)
{
    uint64_t *at =
        (uint64_t *)(void *)((char *)pool_base(r->pool) + (size_t)slot * BLOCK);

    for (uint32_t i = 0; i < BLOCK / 8; i++)
        at[i] = bt_mix64(key * 1000 + i);
}

static void expect_bytes(const struct rig *r, uint32_t slot, uint64_t key)
{
    const uint64_t *at =
        (const uint64_t *)(const void *)((char *)pool_base(r->pool) +
                                         (size_t)slot * BLOCK);

    for (uint32_t i = 0; i < BLOCK / 8; i++)
        assert_int_equal(at[i], bt_mix64(key * 1000 + i));
}

static void rig_open(struct rig *r, uint32_t slots, uint32_t nvme_blocks)
{
    char error[200] = "";
    struct pool_config c = {.block_bytes = BLOCK,
                            .host_bytes = (uint64_t)slots * BLOCK,
                            .nvme_bytes = (uint64_t)nvme_blocks * BLOCK,
                            .identity = 1};

    if (r->loop == NULL)
        r->loop = ev_loop_new(EVFLAG_AUTO);
    c.loop = r->loop;
    if (nvme_blocks > 0) {
        if (r->path[0] == '\0')
            snprintf(r->path, sizeof(r->path), "agent_pool_%d.kv",
                     (int)getpid());
        c.nvme_path = r->path;
    }
    if (pool_create(&c, &r->pool, error, sizeof(error)) != BT_OK)
        fail_msg("pool: %s", error);
}

static void rig_close(struct rig *r)
{
    pool_destroy(r->pool);
    ev_loop_destroy(r->loop);
    if (r->path[0] != '\0')
        unlink(r->path);
}

static enum bt_status land(struct rig *r, uint64_t key, bool well)
{
    uint32_t slot = POOL_NONE;
    enum bt_status status = pool_land(r->pool, key, &slot);

    if (status != BT_OK)
        return status;
    fill(r, slot, key);
    pool_landed(r->pool, slot, well);
    return BT_OK;
}

static void on_ready(void *arg, struct pool_hold *hold)
{
    (void)hold;
    ++*(int *)arg;
}

/* Have the keys; the loop runs while they are on their way. */
static enum bt_status hold(struct rig *r, const uint64_t *keys, uint32_t count,
                           struct pool_hold *h)
{
    int ready = 0;

    memset(h, 0, sizeof(*h));
    h->ready = on_ready;
    h->arg = &ready;
    enum bt_status status = pool_hold(r->pool, keys, count, h);
    if (status != BT_OK)
        return status;
    bool waits = h->loads > 0;
    while (h->loads > 0)
        ev_run(r->loop, EVRUN_ONCE);
    assert_int_equal(ready, waits);
    for (uint32_t i = 0; i < count && h->status == BT_OK; i++)
        expect_bytes(r, h->slots[i], keys[i]);
    return h->status;
}

static void settle(struct rig *r)
{
    struct pool_state_counts c;

    pool_report(r->pool, &c);
    while (c.storing > 0) {
        ev_run(r->loop, EVRUN_ONCE);
        pool_report(r->pool, &c);
    }
}

static void host_only(void **state)
{
    struct rig r = {0};
    struct pool_hold h, all;
    struct pool_state_counts c;
    uint64_t one = 1;
    const uint64_t rest[] = {1, 5, 6, 7};

    (void)state;
    rig_open(&r, 4, 0);
    for (uint64_t key = 1; key <= 4; key++)
        assert_int_equal(land(&r, key, true), BT_OK);
    assert_int_equal(land(&r, 3, true), BT_EXISTS);
    assert_int_equal(hold(&r, &one, 1, &h), BT_OK);
    for (uint64_t key = 5; key <= 7; key++) /* 2, 3, 4 make room */
        assert_int_equal(land(&r, key, true), BT_OK);
    for (uint64_t key = 2; key <= 4; key++)
        assert_int_equal(hold(&r, &key, 1, &all), BT_NOT_FOUND);
    assert_int_equal(hold(&r, rest, 4, &all), BT_OK);
    assert_int_equal(land(&r, 8, true), BT_OVERLOADED);
    pool_let_go(r.pool, &all);
    assert_int_equal(land(&r, 8, false), BT_OK); /* 5 made room, in vain */
    assert_false(pool_has(r.pool, 8));
    assert_false(pool_has(r.pool, 5));
    assert_true(pool_drop(r.pool, 1)); /* read on, but not found any more */
    assert_false(pool_has(r.pool, 1));
    expect_bytes(&r, h.slots[0], 1);
    pool_report(r.pool, &c);
    assert_int_equal(c.held, 3);
    pool_let_go(r.pool, &h);
    pool_report(r.pool, &c);
    assert_int_equal(c.held, 2);
    assert_int_equal(c.counters.evicted, 4);
    assert_int_equal(c.counters.lost, 4); /* no tier below */
    rig_close(&r);
}

static void comes_back_from_nvme(void **state)
{
    struct rig r = {0};
    struct pool_hold h;
    struct pool_state_counts c;
    uint64_t keys[8];

    (void)state;
    rig_open(&r, 8, 64);
    for (uint64_t key = 1; key <= 32; key++) {
        assert_int_equal(land(&r, key, true), BT_OK);
        if (key % 4 == 0)
            settle(&r);
    }
    for (uint64_t first = 1; first <= 32; first += 8) {
        for (uint32_t i = 0; i < 8; i++)
            keys[i] = first + i;
        keys[7] = first; /* one twice */
        assert_int_equal(hold(&r, keys, 8, &h), BT_OK);
        assert_int_equal(h.slots[0], h.slots[7]);
        pool_let_go(r.pool, &h);
    }
    pool_report(r.pool, &c);
    assert_int_equal(c.counters.lost, 0);
    assert_true(c.counters.hits_nvme >= 16);
    assert_true(pool_drop(r.pool, 2));
    assert_false(pool_has(r.pool, 2));
    assert_false(pool_drop(r.pool, 2));
    keys[0] = 2;
    assert_int_equal(hold(&r, keys, 1, &h), BT_NOT_FOUND);
    /* a new process finds what was stored */
    pool_destroy(r.pool);
    rig_open(&r, 8, 64);
    for (uint64_t key = 3; key <= 8; key++)
        keys[key - 3] = key;
    assert_int_equal(hold(&r, keys, 6, &h), BT_OK);
    pool_let_go(r.pool, &h);
    rig_close(&r);
}

/* Holds that end before their loads, and a pool that ends before its holds. */
static void ends_under_way(void **state)
{
    struct rig r = {0};
    struct pool_hold a = {0}, b = {0};
    int ready = 0;
    const uint64_t keys[] = {1, 2, 3};

    (void)state;
    rig_open(&r, 4, 64);
    for (uint64_t key = 1; key <= 12; key++) {
        assert_int_equal(land(&r, key, true), BT_OK);
        settle(&r);
    }
    a.ready = b.ready = on_ready;
    a.arg = b.arg = &ready;
    assert_int_equal(pool_hold(r.pool, keys, 3, &a), BT_OK);
    assert_int_equal(pool_hold(r.pool, keys, 2, &b), BT_OK);
    assert_int_equal(a.loads, 3);
    assert_int_equal(b.loads, 2);
    pool_let_go(r.pool, &a);
    while (b.loads > 0)
        ev_run(r.loop, EVRUN_ONCE);
    assert_int_equal(ready, 1);
    expect_bytes(&r, b.slots[1], 2);
    pool_let_go(r.pool, &b);
    const uint64_t others[] = {8, 9, 7};
    assert_int_equal(pool_hold(r.pool, others, 3, &a), BT_OK);
    pool_let_go(r.pool, &a); /* loads are at the disk when it closes */
    rig_close(&r);
}

static void random_use(void **state)
{
    struct rig r = {0};
    struct pool_hold held[4];
    uint64_t keys[4][3], random = SEED;
    uint64_t lost = 0, found = 0;

    (void)state;
    memset(held, 0, sizeof(held));
    rig_open(&r, 16, 256);
    for (int step = 0; step < 2000; step++) {
        random = bt_mix64(random + step);
        uint32_t h = (uint32_t)(random % 4);
        uint64_t key = 1 + (random >> 8) % 40;

        if ((random >> 32) % 64 == 0) {
            (void)pool_drop(r.pool, key);
        } else if ((random >> 32) % 2 == 0) {
            enum bt_status status = land(&r, key, (random >> 40) % 8 != 0);
            assert_true(status == BT_OK || status == BT_EXISTS ||
                        status == BT_OVERLOADED);
        } else if (held[h].slots != NULL) {
            for (uint32_t i = 0; i < 3; i++)
                expect_bytes(&r, held[h].slots[i], keys[h][i]);
            pool_let_go(r.pool, &held[h]);
        } else {
            for (uint32_t i = 0; i < 3; i++)
                keys[h][i] = 1 + (key + i * 7) % 40;
            enum bt_status status = hold(&r, keys[h], 3, &held[h]);
            found += status == BT_OK;
            lost += status != BT_OK;
        }
        ev_run(r.loop, EVRUN_NOWAIT);
        if (step % 8 == 0)
            settle(&r); /* the disk keeps up, whatever else it has to do */
    }
    print_message("seed %u: %llu holds, %llu refused\n", SEED,
                  (unsigned long long)found, (unsigned long long)lost);
    assert_true(found > 100 && lost > 10);
    for (uint32_t h = 0; h < 4; h++) {
        if (held[h].slots != NULL)
            pool_let_go(r.pool, &held[h]);
    }
    rig_close(&r);
}

static void bad_configurations(void **state)
{
    const struct pool_config cases[] = {
        {.block_bytes = 0, .host_bytes = 4096},
        {.block_bytes = 100, .host_bytes = 4096},
        {.block_bytes = 4096, .host_bytes = 4095},
        {.block_bytes = 64, .host_bytes = 64, .nvme_path = "x"},
        {.block_bytes = 4096, .host_bytes = 4096, .nvme_path = "x"},
    };
    struct pool *pool = NULL;
    char error[200];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        error[0] = '\0';
        assert_int_equal(pool_create(&cases[i], &pool, error, sizeof(error)),
                         BT_INVALID);
        assert_true(error[0] != '\0');
        assert_null(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_only),
        cmocka_unit_test(comes_back_from_nvme),
        cmocka_unit_test(ends_under_way),
        cmocka_unit_test(random_use),
        cmocka_unit_test(bad_configurations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
