/* Prefix index with full tables: whose entries make room, what is refused, what
 * is moved. Each outcome is worked out by hand. */
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define KEY1 0xcb38e4d7fb2dca5cULL /* tokens 1..4, block 4 */

static _Alignas(16) unsigned char memory[1 << 20];

static const uint32_t tokens[] = {1, 2, 3, 4};

static struct bt_prefix_index *start_with(uint32_t workers, uint32_t blocks,
                                          uint32_t holdings)
{
    const struct bt_prefix_index_limits limits = {
        .workers_max = workers, .blocks_max = blocks, .holdings_max = holdings};
    size_t bytes = bt_prefix_index_bytes(&limits);
    struct bt_prefix_index *x;
    struct bt_arena arena;

    assert_true(bytes <= sizeof(memory));
    memset(memory, 0, bytes);
    bt_arena_init(&arena, memory, bytes);
    x = bt_prefix_index_init(&arena, &limits);
    assert_non_null(x);
    return x;
}

static struct bt_prefix_index_stats stats(const struct bt_prefix_index *x)
{
    struct bt_prefix_index_stats out;

    bt_prefix_index_stats_get(x, &out);
    return out;
}

static struct bt_kv_store given(const uint64_t *hashes, const uint64_t *keys,
                                size_t count, enum bt_tier tier)
{
    struct bt_kv_store s = {.own_keys = keys,
                            .hashes = hashes,
                            .hash_count = count,
                            .tier = tier,
                            .full_attention = 1};

    return s;
}

static void store_times(struct bt_prefix_index *x, uint32_t worker,
                        uint64_t key, enum bt_tier tier, int times)
{
    struct bt_kv_store s = given(&key, &key, 1, tier);

    for (int i = 0; i < times; i++)
        assert_int_equal(bt_prefix_index_store(x, worker, 0, &s), BT_OK);
}

/* A second entry that finds no room to be told apart is refused: a hit is lost
 * later, none is invented. There is room for 1,024 here. */
static void the_table_of_second_entries_is_bounded(void **state)
{
    struct bt_prefix_index *x = start_with(2, 2000, 4000);
    uint32_t refused = 0;

    (void)state;
    for (uint64_t key = 1; key <= 1100; key++) {
        struct bt_kv_store s = given(&key, &key, 1, BT_TIER_DEVICE);

        assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
        refused += bt_prefix_index_store(x, 0, 1, &s) == BT_LIMIT;
    }
    assert_int_equal(refused, 1100 - 1024);
    assert_int_equal(stats(x).dropped, refused);
    assert_int_equal(stats(x).holdings, 1100 + 1024);
    bt_prefix_index_clear(x, 0, 0);
    for (uint64_t key = 1; key <= 1100; key++)
        assert_int_equal(bt_prefix_index_holds(x, 0, key), key <= 1024);
    bt_prefix_index_clear(x, 0, 1);
    assert_int_equal(stats(x).blocks + stats(x).holdings, 0);
}

/* ---- making room ---- */

/* Two places: the one that is not asked for goes. */
static void a_second_chance_for_what_is_asked_for(void **state)
{
    struct bt_prefix_index *x = start_with(2, 2, 8);
    const uint64_t hot = 1, cold = 2, next = 3;

    (void)state;
    store_times(x, 0, hot, BT_TIER_DEVICE, 1);
    store_times(x, 0, cold, BT_TIER_DEVICE, 1);
    bt_prefix_index_touch(x, &hot, 1);
    store_times(x, 1, next, BT_TIER_DEVICE, 1);
    assert_true(bt_prefix_index_holds(x, 0, hot));
    assert_false(bt_prefix_index_holds(x, 0, cold));
    assert_true(bt_prefix_index_holds(x, 1, next));
    assert_int_equal(stats(x).evicted, 1);
    assert_int_equal(stats(x).dropped, 0);
}

/* A root under ever new children stays, asked for or only a parent; those who
 * hold little lose nothing to who stores much. */
static void a_hot_root_survives(void **state)
{
    struct bt_prefix_index *x = start_with(4, 512, 1024);
    const uint64_t roots[] = {1, 2};
    struct bt_kv_store s = given(roots, roots, 1, BT_TIER_DEVICE);

    (void)state;
    bt_prefix_index_store(x, 0, 0, &s);
    s = (struct bt_kv_store){.hashes = roots + 1,
                             .hash_count = 1,
                             .tokens = tokens,
                             .token_count = 4,
                             .block_tokens = 4,
                             .full_attention = 1};
    bt_prefix_index_store(x, 0, 0, &s);
    store_times(x, 3, 999, BT_TIER_DEVICE, 1);
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t h = 1000 + i;
        uint32_t own[4] = {(uint32_t)i, 1, 2, 3};

        s.hashes = &h;
        s.has_parent = 1;
        s.parent = 2;
        s.tokens = own;
        assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
        bt_prefix_index_touch(x, roots, 1);
    }
    assert_true(bt_prefix_index_holds(x, 0, 1));
    assert_true(bt_prefix_index_holds(x, 0, KEY1));
    assert_true(bt_prefix_index_holds(x, 3, 999));
    assert_int_equal(stats(x).evicted, 20000 + 3 - 512);
    assert_int_equal(stats(x).blocks, 512);
}

/* Pages of a rank that has shrunk are moved together for one that grows. */
static void free_slots_are_found_anywhere(void **state)
{
    struct bt_prefix_index *x = start_with(2, 8000, 8000);

    (void)state;
    for (uint64_t i = 1; i <= 8000; i++)
        store_times(x, 0, i, BT_TIER_DEVICE, 1);
    for (uint64_t i = 1; i <= 8000; i++)
        if (i % 32 != 5)
            bt_prefix_index_remove(x, 0, 0, &i, 1, BT_TIER_DEVICE);
    for (uint64_t i = 10001; i <= 10000 + 7750; i++)
        store_times(x, 1, i, BT_TIER_DEVICE, 1);
    assert_int_equal(stats(x).evicted + stats(x).dropped, 0);
    assert_int_equal(stats(x).holdings, 8000);
    for (uint64_t i = 1; i <= 8000; i++)
        assert_int_equal(bt_prefix_index_holds(x, 0, i), i % 32 == 5);
    bt_prefix_index_drop_worker(x, 0);
    bt_prefix_index_drop_worker(x, 1);
    assert_int_equal(stats(x).blocks + stats(x).holdings, 0);
}

/* The last row there can be, and memory that does not grow with rows times
 * blocks. */
static void the_largest_fleet(void **state)
{
    const struct bt_prefix_index_limits few = {65535, 1000, 4000};
    const struct bt_prefix_index_limits many = {65535, 1001000, 4000};
    struct bt_prefix_index *x;
    uint32_t *depth = calloc(65535, sizeof(*depth));
    void *large = calloc(1, bt_prefix_index_bytes(&few));
    const uint64_t keys[] = {11, 12, 13};
    struct bt_arena arena;

    (void)state;
    assert_non_null(depth);
    assert_non_null(large);
    bt_arena_init(&arena, large, bt_prefix_index_bytes(&few));
    x = bt_prefix_index_init(&arena, &few);
    assert_non_null(x);
    for (uint32_t w = 0; w < 65535; w += 65534 / 2) {
        struct bt_kv_store s = given(keys, keys, w % 3 + 1, BT_TIER_DEVICE);

        assert_int_equal(bt_prefix_index_store(x, w, 0, &s), BT_OK);
    }
    bt_prefix_index_match(x, keys, 3, depth);
    assert_int_equal(depth[0], 1);
    assert_int_equal(depth[32767], 32767 % 3 + 1);
    assert_int_equal(depth[65534], 65534 % 3 + 1);
    assert_int_equal(depth[1], 0);
    assert_true(bt_prefix_index_bytes(&many) - bt_prefix_index_bytes(&few) <
                64 * 1000000ULL);
    free(large);
    free(depth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_second_entries_is_bounded),
        cmocka_unit_test(a_second_chance_for_what_is_asked_for),
        cmocka_unit_test(a_hot_root_survives),
        cmocka_unit_test(free_slots_are_found_anywhere),
        cmocka_unit_test(the_largest_fleet),
    };

    return cmocka_run_group_tests_name("prefix_room", tests, NULL, NULL);
}
