/* Approximate index: every expectation is worked out by hand from the two
 * rules, time to live since the last use and least recently used first, where
 * one prompt uses its leaf before its root.
 */
#include "baton/planner/approx_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 3
#define TTL     100
#define MANY    2048
#define WIDE    300 /* workers */

struct world {
    void *memory;
    struct bt_approx_index *x;
};

static void open_wide(struct world *w, uint32_t workers, uint32_t entries)
{
    const struct bt_approx_limits limits = {
        .workers_max = workers, .entries_max = entries, .ttl_ns = TTL};
    size_t bytes = bt_approx_bytes(&limits);
    struct bt_arena arena;

    w->memory = calloc(1, bytes);
    assert_non_null(w->memory);
    bt_arena_init(&arena, w->memory, bytes);
    w->x = bt_approx_init(&arena, &limits);
    assert_non_null(w->x);
}

static void open_world(struct world *w, uint32_t entries)
{
    open_wide(w, WORKERS, entries);
}

static void close_world(struct world *w)
{
    free(w->memory);
}

/* A prompt as a literal: its keys and their number. */
#define KEYS(...)                                                              \
    (const uint64_t[]){__VA_ARGS__},                                           \
        sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)

static void add(struct world *w, uint32_t worker, int64_t now,
                const uint64_t *keys, size_t count)
{
    bt_approx_add(w->x, worker, keys, count, now);
}

static uint32_t depth(struct world *w, uint32_t worker, int64_t now,
                      const uint64_t *keys, size_t count)
{
    uint32_t found[WORKERS];

    memset(found, 0xff, sizeof(found));
    bt_approx_match(w->x, keys, count, now, found);
    return found[worker];
}

static struct bt_approx_stats stats(const struct world *w)
{
    struct bt_approx_stats st;

    bt_approx_stats_get(w->x, &st);
    assert_int_equal(st.entries,
                     st.added - st.expired - st.evicted - st.removed);
    return st;
}

static void matches_per_worker(void **state)
{
    const uint64_t odd[] = {0, UINT64_MAX};
    uint32_t found[WORKERS];
    struct world w;

    (void)state;
    open_world(&w, 16);
    add(&w, 0, 10, KEYS(1, 2, 3));
    add(&w, 2, 10, KEYS(1, 2, 13, 14));
    assert_int_equal(depth(&w, 0, 10, KEYS(1, 2, 3, 4)), 3);
    assert_int_equal(depth(&w, 1, 10, KEYS(1, 2, 3, 4)), 0);
    assert_int_equal(depth(&w, 2, 10, KEYS(1, 2, 3, 4)), 2);
    assert_int_equal(depth(&w, 0, 10, KEYS(2, 3)), 2);
    assert_int_equal(depth(&w, 0, 10, NULL, 0), 0);
    assert_int_equal(bt_approx_worker_blocks(w.x, 0), 3);
    assert_int_equal(bt_approx_worker_blocks(w.x, 2), 4);
    assert_int_equal(stats(&w).entries, 7);
    assert_int_equal(stats(&w).blocks, 5);
    /* No key is special. */
    bt_approx_add(w.x, 1, odd, 2, 10);
    bt_approx_match(w.x, odd, 2, 10, found);
    assert_int_equal(found[0], 0);
    assert_int_equal(found[1], 2);
    close_world(&w);
}

static void time_to_live(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    add(&w, 0, 1000, KEYS(1, 2, 3));
    assert_int_equal(depth(&w, 0, 1099, KEYS(1, 2, 3)), 3);
    assert_int_equal(depth(&w, 0, 1100, KEYS(1, 2, 3)), 0);
    assert_int_equal(stats(&w).expired, 3);
    add(&w, 0, 1100, KEYS(1, 2, 3));
    add(&w, 0, 1150, KEYS(1, 2)); /* counts from the last use */
    assert_int_equal(depth(&w, 0, 1199, KEYS(1, 2, 3)), 3);
    assert_int_equal(depth(&w, 0, 1200, KEYS(1, 2, 3)), 2);
    assert_int_equal(depth(&w, 0, 1249, KEYS(1, 2, 3)), 2);
    assert_int_equal(depth(&w, 0, 1250, KEYS(1, 2, 3)), 0);
    assert_int_equal(stats(&w).entries, 0);
    /* A match is no use. */
    assert_int_equal(stats(&w).added, 6);
    close_world(&w);
}

static void far_apart_times(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    add(&w, 0, INT64_MIN, KEYS(1));
    assert_int_equal(depth(&w, 0, INT64_MIN + 99, KEYS(1)), 1);
    assert_int_equal(depth(&w, 0, INT64_MAX, KEYS(1)), 0);
    add(&w, 0, INT64_MAX, KEYS(1));
    assert_int_equal(depth(&w, 0, INT64_MAX, KEYS(1)), 1);
    close_world(&w);
}

static void expire_is_bounded(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    add(&w, 0, 0, KEYS(1, 2, 3, 4, 5));
    add(&w, 1, 50, KEYS(9));
    assert_int_equal(bt_approx_expire(w.x, 99, 10), 0);
    assert_int_equal(bt_approx_expire(w.x, 100, 2), 2);
    assert_int_equal(bt_approx_worker_blocks(w.x, 0), 3);
    assert_int_equal(bt_approx_expire(w.x, 100, 0), 0);
    assert_int_equal(bt_approx_expire(w.x, 100, 10), 3);
    assert_int_equal(stats(&w).entries, 1);
    assert_int_equal(stats(&w).expired, 5);
    close_world(&w);
}

/* Far more has expired than one match forgets: 2,000 blocks of worker 1, then
 * 3 of worker 0. Neither may count, and what is in time must. */
static void lull(void **state)
{
    static uint64_t old[2000];
    uint32_t found[WORKERS];
    struct world w;

    (void)state;
    for (size_t i = 0; i < 2000; i++)
        old[i] = 1000 + i;
    open_world(&w, MANY);
    bt_approx_add(w.x, 1, old, 2000, 0);
    add(&w, 0, 1, KEYS(1, 2, 3));
    add(&w, 0, 90, KEYS(11, 12, 13));
    add(&w, 2, 90, KEYS(1, 2, 3));
    assert_int_equal(depth(&w, 0, 101, KEYS(1, 2, 3)), 0);
    assert_int_equal(depth(&w, 2, 101, KEYS(1, 2, 3)), 3);
    assert_int_equal(depth(&w, 0, 101, KEYS(11, 12, 13)), 3);
    assert_true(stats(&w).entries > 1000); /* still many to forget */
    bt_approx_match(w.x, old, 2000, 101, found);
    assert_int_equal(found[1], 0);
    assert_int_equal(stats(&w).entries, 9); /* the last 3 are the next one's */
    assert_int_equal(depth(&w, 0, 101, KEYS(11, 12, 13)), 3);
    assert_int_equal(depth(&w, 2, 101, KEYS(1, 2, 3)), 3);
    assert_int_equal(stats(&w).entries, 6);
    close_world(&w);
}

/* Nobody calls expire and nobody asks: placements alone work a backlog off,
 * two per block. */
static void adds_work_a_backlog_off(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 64);
    add(&w, 0, 0, KEYS(1, 2, 3, 4, 5));
    add(&w, 1, 200, KEYS(21, 22));
    assert_int_equal(stats(&w).expired, 4);
    add(&w, 1, 200, KEYS(21));
    assert_int_equal(stats(&w).expired, 5);
    assert_int_equal(stats(&w).entries, 2);
    close_world(&w);
}

static void capacity_takes_leaves_first(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    bt_approx_capacity(w.x, 0, 3);
    add(&w, 0, 1, KEYS(1, 2));
    add(&w, 0, 2, KEYS(11, 12)); /* 2 goes */
    assert_int_equal(depth(&w, 0, 2, KEYS(1, 2)), 1);
    assert_int_equal(depth(&w, 0, 2, KEYS(11, 12)), 2);
    add(&w, 0, 3, KEYS(21)); /* 1 goes */
    assert_int_equal(depth(&w, 0, 3, KEYS(1)), 0);
    assert_int_equal(depth(&w, 0, 3, KEYS(11, 12)), 2);
    add(&w, 0, 4, KEYS(31)); /* 12 goes, its root 11 stays */
    assert_int_equal(depth(&w, 0, 4, KEYS(11, 12)), 1);
    assert_int_equal(bt_approx_worker_blocks(w.x, 0), 3);
    assert_int_equal(stats(&w).evicted, 3);
    /* Others are not touched by it. */
    add(&w, 1, 4, KEYS(1, 2, 3, 4, 5));
    assert_int_equal(depth(&w, 1, 4, KEYS(1, 2, 3, 4, 5)), 5);
    close_world(&w);
}

static void use_refreshes(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    bt_approx_capacity(w.x, 0, 3);
    add(&w, 0, 1, KEYS(1));
    add(&w, 0, 2, KEYS(2));
    add(&w, 0, 3, KEYS(3));
    add(&w, 0, 4, KEYS(1)); /* again */
    add(&w, 0, 5, KEYS(4)); /* 2 is the oldest now */
    assert_int_equal(depth(&w, 0, 5, KEYS(1)), 1);
    assert_int_equal(depth(&w, 0, 5, KEYS(2)), 0);
    assert_int_equal(depth(&w, 0, 5, KEYS(3)), 1);
    assert_int_equal(stats(&w).added, 4);
    close_world(&w);
}

static void capacity_changes(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    add(&w, 0, 1, KEYS(1, 2, 3, 4));
    bt_approx_capacity(w.x, 0, 2); /* 4 and 3 go */
    assert_int_equal(depth(&w, 0, 1, KEYS(1, 2, 3, 4)), 2);
    assert_int_equal(stats(&w).evicted, 2);
    /* Only the head of a prompt that is longer than the cache stays. */
    add(&w, 0, 2, KEYS(11, 12, 13, 14, 15));
    assert_int_equal(depth(&w, 0, 2, KEYS(11, 12, 13, 14, 15)), 2);
    assert_int_equal(depth(&w, 0, 2, KEYS(1, 2)), 0);
    bt_approx_capacity(w.x, 0, 0);
    add(&w, 0, 3, KEYS(11, 12, 13, 14, 15));
    assert_int_equal(depth(&w, 0, 3, KEYS(11, 12, 13, 14, 15)), 5);
    close_world(&w);
}

static void full_table(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 4);
    add(&w, 0, 1, KEYS(1, 2));
    add(&w, 1, 2, KEYS(1, 2));
    add(&w, 2, 3, KEYS(9)); /* worker 0's leaf is the oldest of all */
    assert_int_equal(depth(&w, 0, 3, KEYS(1, 2)), 1);
    assert_int_equal(depth(&w, 1, 3, KEYS(1, 2)), 2);
    assert_int_equal(depth(&w, 2, 3, KEYS(9)), 1);
    add(&w, 2, 4, KEYS(9, 10, 11)); /* then its root, then worker 1's leaf */
    assert_int_equal(depth(&w, 0, 4, KEYS(1, 2)), 0);
    assert_int_equal(depth(&w, 1, 4, KEYS(1, 2)), 1);
    assert_int_equal(depth(&w, 2, 4, KEYS(9, 10, 11)), 3);
    assert_int_equal(stats(&w).entries, 4);
    assert_int_equal(stats(&w).evicted, 3);
    /* A prompt longer than the table: its first blocks. */
    add(&w, 0, 5, KEYS(1, 2, 3, 4, 5, 6));
    assert_int_equal(depth(&w, 0, 5, KEYS(1, 2, 3, 4, 5, 6)), 4);
    assert_int_equal(stats(&w).entries, 4);
    /* What is over makes room as expired, not as evicted. */
    assert_int_equal(stats(&w).expired, 0);
    add(&w, 1, 105, KEYS(7));
    assert_int_equal(stats(&w).expired, 2);
    assert_int_equal(stats(&w).evicted, 7);
    close_world(&w);
}

/* The room made is for the worker that is full, not for the oldest of all. */
static void capacity_before_table(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 4);
    bt_approx_capacity(w.x, 1, 2);
    add(&w, 0, 1, KEYS(1, 2));
    add(&w, 1, 2, KEYS(1, 2));
    add(&w, 1, 3, KEYS(5));
    assert_int_equal(depth(&w, 0, 3, KEYS(1, 2)), 2);
    assert_int_equal(depth(&w, 1, 3, KEYS(1, 2)), 1);
    close_world(&w);
}

static void remove_makes_a_hole(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 16);
    add(&w, 0, 1, KEYS(1, 2, 3));
    add(&w, 1, 1, KEYS(1, 2, 3));
    bt_approx_remove(w.x, 0, 2);
    bt_approx_remove(w.x, 0, 2);  /* twice */
    bt_approx_remove(w.x, 0, 77); /* never there */
    assert_int_equal(depth(&w, 0, 1, KEYS(1, 2, 3)), 1);
    assert_int_equal(depth(&w, 1, 1, KEYS(1, 2, 3)), 3);
    assert_int_equal(stats(&w).removed, 1);
    add(&w, 0, 1, KEYS(1, 2));
    assert_int_equal(depth(&w, 0, 1, KEYS(1, 2, 3)), 3);
    close_world(&w);
}

static void drop_worker(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 6);
    bt_approx_capacity(w.x, 0, 3);
    add(&w, 0, 1, KEYS(1, 2, 3));
    add(&w, 1, 1, KEYS(1, 2, 3));
    bt_approx_drop_worker(w.x, 0);
    bt_approx_drop_worker(w.x, 2); /* has nothing */
    assert_int_equal(depth(&w, 0, 1, KEYS(1, 2, 3)), 0);
    assert_int_equal(depth(&w, 1, 1, KEYS(1, 2, 3)), 3);
    assert_int_equal(bt_approx_worker_blocks(w.x, 0), 0);
    assert_int_equal(stats(&w).removed, 3);
    assert_int_equal(stats(&w).blocks, 3);
    add(&w, 0, 2, KEYS(4, 5, 6, 7)); /* the row is free, its capacity stays */
    assert_int_equal(depth(&w, 0, 2, KEYS(4, 5, 6, 7)), 3);
    assert_int_equal(stats(&w).evicted, 0);
    close_world(&w);
}

/* Churn neither grows nor shrinks the tables. */
static void churn(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, 8);
    for (uint32_t i = 0; i < 1000; i++) {
        add(&w, i % WORKERS, i, KEYS(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3));
        assert_int_equal(depth(&w, i % WORKERS, i,
                               KEYS(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3)),
                         4);
    }
    assert_int_equal(stats(&w).entries, 8);
    for (uint32_t i = 0; i < WORKERS; i++)
        bt_approx_drop_worker(w.x, i);
    assert_int_equal(stats(&w).entries, 0);
    assert_int_equal(stats(&w).blocks, 0);
    close_world(&w);
}

/* Every worker holds the same blocks and the table has room for exactly these:
 * all of them match, before and after half of them have changed. */
static void exactly_full_by_many_holders(void **state)
{
    static const uint64_t before[] = {1, 2, 3, 4}, after[] = {1, 2, 5, 6};
    static uint32_t found[WIDE];
    struct world w;

    (void)state;
    open_wide(&w, WIDE, 4 * WIDE);
    for (uint32_t i = 0; i < WIDE; i++) {
        bt_approx_capacity(w.x, i, 4);
        bt_approx_add(w.x, i, before, 4, 1);
    }
    bt_approx_match(w.x, before, 4, 1, found);
    for (uint32_t i = 0; i < WIDE; i++)
        assert_int_equal(found[i], 4);
    assert_int_equal(stats(&w).evicted, 0);
    for (uint32_t i = 0; i < WIDE; i += 2)
        bt_approx_add(w.x, i, after, 4, 2);
    bt_approx_match(w.x, after, 4, 2, found);
    for (uint32_t i = 0; i < WIDE; i++)
        assert_int_equal(found[i], i % 2 == 0 ? 4 : 2);
    bt_approx_match(w.x, before, 4, 2, found);
    for (uint32_t i = 0; i < WIDE; i++)
        assert_int_equal(found[i], i % 2 == 0 ? 2 : 4);
    assert_int_equal(stats(&w).evicted, WIDE);
    close_world(&w);
}

/* The same with no two alike. */
static void exactly_full_of_distinct_blocks(void **state)
{
    static uint64_t chain[MANY];
    static uint32_t found[WIDE];
    struct world w;

    (void)state;
    for (uint32_t i = 0; i < MANY; i++)
        chain[i] = (uint64_t)i << 40 | i;
    open_wide(&w, WIDE, MANY);
    for (int64_t round = 0; round < 3; round++) {
        uint64_t *at = chain + (round % 2) * (MANY / 4);

        bt_approx_add(w.x, 7, at, MANY / 2, round);
        bt_approx_add(w.x, 8, at, MANY / 2, round);
        bt_approx_match(w.x, at, MANY / 2, round, found);
        assert_int_equal(found[7], MANY / 2);
        assert_int_equal(found[8], MANY / 2);
    }
    for (uint32_t i = 0; i < MANY; i++)
        chain[i] += 1000000;
    bt_approx_add(w.x, 9, chain, MANY, 4);
    bt_approx_match(w.x, chain, MANY, 4, found);
    assert_int_equal(found[9], MANY);
    assert_int_equal(stats(&w).blocks, MANY);
    close_world(&w);
}

static void limits(void **state)
{
    static const struct bt_approx_limits bad[] = {
        {0, 10, 1}, {1, 0, 1}, {1, 10, 0}, {1, 10, -5}, {1, UINT32_MAX, 1}};
    const struct bt_approx_limits good = {2, 10, 1};
    static unsigned char memory[1 << 16];
    size_t bytes = bt_approx_bytes(&good);
    struct bt_approx_stats st;
    struct bt_approx_index *x;
    struct bt_arena arena;

    (void)state;
    bt_arena_init(&arena, memory, sizeof(memory));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(bt_approx_bytes(&bad[i]) == SIZE_MAX);
        assert_null(bt_approx_init(&arena, &bad[i]));
    }
    assert_int_equal(arena.used, 0);
    assert_true(bytes < sizeof(memory));
    x = bt_approx_init(&arena, &good);
    assert_non_null(x);
    bt_approx_stats_get(x, &st);
    assert_int_equal(st.bytes, arena.used);
    assert_true(st.bytes <= bytes);
    /* One byte less than it took is refused, wherever the end falls. */
    for (size_t size = 0; size < st.bytes; size += 8) {
        memset(memory, 0, sizeof(memory));
        bt_arena_init(&arena, memory, size);
        assert_null(bt_approx_init(&arena, &good));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_per_worker),
        cmocka_unit_test(time_to_live),
        cmocka_unit_test(far_apart_times),
        cmocka_unit_test(expire_is_bounded),
        cmocka_unit_test(lull),
        cmocka_unit_test(adds_work_a_backlog_off),
        cmocka_unit_test(capacity_takes_leaves_first),
        cmocka_unit_test(use_refreshes),
        cmocka_unit_test(capacity_changes),
        cmocka_unit_test(full_table),
        cmocka_unit_test(capacity_before_table),
        cmocka_unit_test(remove_makes_a_hole),
        cmocka_unit_test(drop_worker),
        cmocka_unit_test(churn),
        cmocka_unit_test(exactly_full_by_many_holders),
        cmocka_unit_test(exactly_full_of_distinct_blocks),
        cmocka_unit_test(limits),
    };

    return cmocka_run_group_tests_name("approx", tests, NULL, NULL);
}
