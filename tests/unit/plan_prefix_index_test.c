/* Prefix index against the event vectors of engine-wire.md 1.14 (V, X, G rows,
 * decoded by hand) and the counting rules of 1.10. */
#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define KEY1 0xcb38e4d7fb2dca5cULL /* tokens 1..4, block 4 */
#define KEY2 0x44a2b2379d6d3c3dULL /* 1..8 */
#define KEY3 0xaea1e67a6c80cf84ULL /* 1..12 */

static _Alignas(16) unsigned char memory[1 << 20];

static const uint32_t tokens[] = {1, 2,  3,  4,  5,  6,  7,  8,
                                  9, 10, 11, 12, 13, 14, 15, 16};

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

static struct bt_prefix_index *start(void)
{
    return start_with(4, 64, 128);
}

/* Blocks of 4 from tokens[first..], no parent. */
static struct bt_kv_store store_of(const uint64_t *hashes, size_t count,
                                   size_t first)
{
    struct bt_kv_store s = {.hashes = hashes,
                            .hash_count = count,
                            .tokens = tokens + first,
                            .token_count = 4 * count,
                            .block_tokens = 4,
                            .tier = BT_TIER_DEVICE,
                            .full_attention = 1};

    return s;
}

static struct bt_kv_store child_of(uint64_t parent, const uint64_t *hashes,
                                   size_t count, size_t first)
{
    struct bt_kv_store s = store_of(hashes, count, first);

    s.has_parent = 1;
    s.parent = parent;
    return s;
}

static struct bt_prefix_index_stats stats(const struct bt_prefix_index *x)
{
    struct bt_prefix_index_stats out;

    bt_prefix_index_stats_get(x, &out);
    return out;
}

static void assert_drained(const struct bt_prefix_index *x)
{
    assert_int_equal(stats(x).blocks, 0);
    assert_int_equal(stats(x).holdings, 0);
    for (uint32_t w = 0; w < 4; w++)
        assert_int_equal(bt_prefix_index_worker_blocks(x, w), 0);
}

static void v1_v7_store_and_remove(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t h = 1001;
    struct bt_kv_store s = store_of(&h, 1, 0);

    (void)state;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, KEY1));
    assert_false(bt_prefix_index_holds(x, 1, KEY1));
    bt_prefix_index_remove(x, 0, 1, &h, 1, BT_TIER_DEVICE); /* other rank */
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_HOST);   /* other tier */
    assert_int_equal(stats(x).unknown_removes, 2);
    assert_true(bt_prefix_index_holds(x, 0, KEY1));
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DEVICE);
    assert_false(bt_prefix_index_holds(x, 0, KEY1));
    assert_int_equal(stats(x).removes, 1);
    assert_drained(x);
}

static void v11_child_of_known_parent(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t h11 = 11, h12 = 12, h13 = 13;
    struct bt_kv_store root = store_of(&h11, 1, 0);
    struct bt_kv_store child = child_of(11, &h12, 1, 4);
    struct bt_kv_store orphan = child_of(99, &h13, 1, 8);

    (void)state;
    assert_int_equal(bt_prefix_index_store(x, 2, 0, &root), BT_OK);
    assert_int_equal(bt_prefix_index_store(x, 2, 0, &child), BT_OK);
    assert_true(bt_prefix_index_holds(x, 2, KEY2));
    assert_int_equal(bt_prefix_index_store(x, 2, 0, &orphan), BT_NOT_FOUND);
    /* Parents are known per rank. */
    assert_int_equal(bt_prefix_index_store(x, 2, 1, &child), BT_NOT_FOUND);
    assert_int_equal(stats(x).unknown_parents, 2);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 2), 2);
}

static void v12_v13_counts_only(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t two[] = {21, 22}, h31 = 31, h22 = 22;
    struct bt_kv_store odd = store_of(two, 2, 0);
    struct bt_kv_store holder = {.hashes = &h31,
                                 .hash_count = 1,
                                 .tier = BT_TIER_HOST,
                                 .full_attention = 1};
    struct bt_kv_store child = child_of(22, &h31, 1, 8);
    struct bt_kv_store self = child_of(22, &h22, 1, 8);

    (void)state;
    odd.token_count = 5;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &odd), BT_INVALID);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &holder), BT_OK);
    assert_int_equal(stats(x).blocks, 0);
    assert_int_equal(stats(x).holdings, 3);
    assert_int_equal(stats(x).malformed, 1);
    /* A counts-only parent has no key to chain from. */
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &child), BT_NOT_FOUND);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &self), BT_INVALID);
    bt_prefix_index_remove(x, 0, 0, two, 2, BT_TIER_DEVICE);
    bt_prefix_index_remove(x, 0, 0, &h31, 1, BT_TIER_HOST);
    assert_int_equal(stats(x).unknown_removes, 0);
    assert_drained(x);
}

/* engine-wire.md 2.4: B = 4, tokens 1..9, windows 1..5 and 5..9. One token more
 * is Eagle only when the event says so. */
static void eagle_windows(void **state)
{
    const uint64_t local1 = 0x1a92ffa9004c0851, local2 = 0x1ac55a72d61806e3;
    struct bt_prefix_index *x = start();
    const uint64_t two[] = {41, 42}, h43 = 43;
    struct bt_kv_store e = {.hashes = two,
                            .hash_count = 2,
                            .tokens = tokens,
                            .token_count = 9,
                            .block_tokens = 4,
                            .full_attention = 1,
                            .eagle = 1};
    struct bt_kv_store root = e, child = e;

    (void)state;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &e), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, local1));
    assert_true(bt_prefix_index_holds(x, 0, bt_block_chain(local1, local2)));
    root.hash_count = 1;
    root.token_count = 5;
    assert_int_equal(bt_prefix_index_store(x, 1, 0, &root), BT_OK);
    child.hashes = &h43;
    child.hash_count = 1;
    child.parent = 41;
    child.has_parent = 1;
    child.tokens = tokens + 4;
    child.token_count = 5;
    assert_int_equal(bt_prefix_index_store(x, 1, 0, &child), BT_OK);
    assert_true(bt_prefix_index_holds(x, 1, bt_block_chain(local1, local2)));
    e.eagle = 0;
    assert_int_equal(bt_prefix_index_store(x, 2, 0, &e), BT_INVALID);
    e.eagle = 1;
    for (e.token_count = 0; e.token_count < 9; e.token_count++)
        assert_int_equal(bt_prefix_index_store(x, 2, 0, &e), BT_INVALID);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 2), 0);
    assert_int_equal(stats(x).malformed, 10);
}

static void x1_x2_x3_lora_salt_image_offload(void **state)
{
    static const char image[] =
        "0123456789abcdef00112233445566778899aabbccddeeff"
        "fedcba9876543210";
    struct bt_prefix_index *x = start();
    const uint64_t two[] = {101, 102}, h103 = 103, h101 = 101;
    const uint16_t per_block[] = {1, 1};
    uint64_t mm[2];
    struct bt_kv_store s = store_of(two, 2, 0);
    struct bt_kv_store child = child_of(102, &h103, 1, 8);
    struct bt_kv_store offload = {.hashes = &h101,
                                  .hash_count = 1,
                                  .tier = BT_TIER_HOST,
                                  .full_attention = 1};

    (void)state;
    mm[0] = mm[1] = bt_mm_hash(image, strlen(image));
    s.lora = child.lora = "lora-a";
    s.lora_bytes = child.lora_bytes = 6;
    s.salt = "salt";
    s.salt_bytes = 4;
    s.mm = mm;
    s.mm_per_block = per_block;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, 0x6224eaa093e54698ULL));
    assert_true(bt_prefix_index_holds(x, 0, 0xc6eb2220fd1464aaULL));
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &child), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, 0x5937faa5b0c08f97ULL));
    assert_false(bt_prefix_index_holds(x, 0, 0x9806313f650d2b69ULL));
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &offload), BT_OK);
    assert_int_equal(bt_prefix_index_tiers(x, 0, 0x6224eaa093e54698ULL),
                     1u << BT_TIER_DEVICE | 1u << BT_TIER_HOST);
    bt_prefix_index_remove(x, 0, 0, &h101, 1, BT_TIER_DEVICE);
    assert_int_equal(bt_prefix_index_tiers(x, 0, 0x6224eaa093e54698ULL),
                     1u << BT_TIER_HOST);
    assert_int_equal(stats(x).holdings, 3);
}

/* G2: the salt gives another key; SGLang shares the engine hash between
 * tenants, and a removal takes one copy from each. */
static void g2_salts_share_an_engine_hash(void **state)
{
    static const uint32_t pair[] = {1, 2};
    struct bt_prefix_index *x = start();
    const uint64_t h = 123, h2 = 124;
    struct bt_kv_store s = store_of(&h, 1, 0);
    struct bt_kv_store child = child_of(123, &h2, 1, 4);
    uint64_t ns_b = bt_ns_seed(NULL, 0, "tenant-b", 8);
    uint64_t key_b = bt_block_local(pair, 2, NULL, 0, ns_b);
    uint64_t child_b =
        bt_block_chain(key_b, bt_block_local(tokens + 4, 4, NULL, 0, ns_b));

    (void)state;
    s.tokens = pair;
    s.token_count = s.block_tokens = 2;
    s.salt = "tenant-a";
    s.salt_bytes = 8;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, 0xd070ee4e528a4152ULL));
    assert_false(bt_prefix_index_holds(x, 0, 0x9581a6bbf9cef45aULL));
    s.salt = "tenant-b";
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, key_b));
    assert_true(bt_prefix_index_holds(x, 0, 0xd070ee4e528a4152ULL));
    /* A child with its own salt hangs on the parent of that namespace. */
    child.salt = "tenant-c";
    child.salt_bytes = 8;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &child), BT_NOT_FOUND);
    child.salt = "tenant-b";
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &child), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, child_b));
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DEVICE);
    bt_prefix_index_remove(x, 0, 0, &h2, 1, BT_TIER_DEVICE);
    assert_drained(x);
}

/* vLLM: one hash on two physical blocks, two removals (1.10). */
static void copies_are_counted(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t h = 5;
    struct bt_kv_store s = store_of(&h, 1, 0);

    (void)state;
    bt_prefix_index_store(x, 0, 0, &s);
    bt_prefix_index_store(x, 0, 0, &s);
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DEVICE);
    assert_true(bt_prefix_index_holds(x, 0, KEY1));
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DEVICE);
    assert_false(bt_prefix_index_holds(x, 0, KEY1));
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DEVICE);
    assert_int_equal(stats(x).unknown_removes, 1);
    assert_drained(x);
}

/* Store 1<-2<-3<-4, remove 2: a look-up stops at 1, 3 and 4 stay (1.10). */
static void holes_stop_a_match(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t four[] = {1, 2, 3, 4}, other[] = {71, 72}, h2 = 2;
    struct bt_kv_store s = store_of(four, 4, 0), t = store_of(other, 2, 0);
    uint64_t keys[4];
    uint32_t depth[4];

    (void)state;
    assert_int_equal(bt_block_keys(tokens, 16, 4, BT_NS_PLAIN, keys, 4), 4);
    bt_prefix_index_store(x, 1, 0, &s);
    bt_prefix_index_store(x, 3, 0, &t);
    bt_prefix_index_match(x, keys, 4, depth);
    assert_memory_equal(depth, ((uint32_t[]){0, 4, 0, 2}), sizeof(depth));
    bt_prefix_index_remove(x, 1, 0, &h2, 1, BT_TIER_DEVICE);
    bt_prefix_index_match(x, keys, 4, depth);
    assert_memory_equal(depth, ((uint32_t[]){0, 1, 0, 2}), sizeof(depth));
    assert_int_equal(bt_prefix_index_worker_blocks(x, 1), 3);
    bt_prefix_index_match(x, keys, 1, depth);
    assert_memory_equal(depth, ((uint32_t[]){0, 1, 0, 1}), sizeof(depth));
    bt_prefix_index_match(x, keys, 0, depth);
    assert_memory_equal(depth, ((uint32_t[]){0, 0, 0, 0}), sizeof(depth));
}

static void ranks_clear_and_drop(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t a[] = {1, 2}, b[] = {901, 902, 903};
    struct bt_kv_store s = store_of(a, 2, 0), t = store_of(b, 3, 0);

    (void)state;
    bt_prefix_index_store(x, 0, 0, &s);
    bt_prefix_index_store(x, 0, 3, &t);
    bt_prefix_index_store(x, 2, 0, &t);
    assert_int_equal(stats(x).blocks, 3);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 0), 3);
    bt_prefix_index_clear(x, 0, 3);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 0), 2);
    assert_false(bt_prefix_index_holds(x, 0, KEY3));
    bt_prefix_index_clear(x, 0, 3); /* nothing left of it: harmless */
    bt_prefix_index_store(x, 0, 3, &t);
    bt_prefix_index_drop_worker(x, 0);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 0), 0);
    assert_true(bt_prefix_index_holds(x, 2, KEY3));
    bt_prefix_index_drop_worker(x, 2);
    assert_drained(x);
    assert_int_equal(stats(x).clears, 2);
}

/* X4: sliding window group, 1 hash, 8 tokens. */
static void other_attention_counts_only(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t h = 202;
    struct bt_kv_store s = child_of(200, &h, 1, 0);

    (void)state;
    s.token_count = 8;
    s.full_attention = 0;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    assert_int_equal(stats(x).blocks, 0);
    assert_int_equal(stats(x).holdings, 1);
    bt_prefix_index_clear(x, 0, 0);
    assert_drained(x);
}

static void full_tables_drop(void **state)
{
    struct bt_prefix_index *x = start_with(4, 2, 128);
    const uint64_t three[] = {1, 2, 3};
    struct bt_kv_store s = store_of(three, 3, 0);
    uint64_t keys[3];
    uint32_t depth[4];

    (void)state;
    bt_block_keys(tokens, 12, 4, BT_NS_PLAIN, keys, 3);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_LIMIT);
    assert_int_equal(stats(x).dropped, 1);
    bt_prefix_index_match(x, keys, 3, depth);
    assert_int_equal(depth[0], 2);
    x = start_with(4, 64, 2);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_LIMIT);
    assert_int_equal(stats(x).blocks, 2);
    assert_int_equal(stats(x).holdings, 2);
    bt_prefix_index_remove(x, 0, 0, three, 3, BT_TIER_DEVICE);
    assert_int_equal(bt_prefix_index_store(x, 1, 0, &s), BT_LIMIT);
    bt_prefix_index_drop_worker(x, 1);
    assert_drained(x);
}

static void ranks_are_bounded(void **state)
{
    struct bt_prefix_index *x = start_with(1, 64, 128);
    const uint64_t h = 1;
    struct bt_kv_store s = store_of(&h, 1, 0);

    (void)state;
    for (uint32_t rank = 0; rank < 64; rank++)
        assert_int_equal(bt_prefix_index_store(x, 0, rank, &s), BT_OK);
    assert_int_equal(bt_prefix_index_store(x, 0, 64, &s), BT_LIMIT);
    bt_prefix_index_clear(x, 0, 7);
    assert_int_equal(bt_prefix_index_store(x, 0, 64, &s), BT_OK);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 0), 1);
}

/* More than one word of workers. */
static void many_workers(void **state)
{
    struct bt_prefix_index *x = start_with(130, 16, 512);
    const uint64_t three[] = {1, 2, 3};
    uint64_t keys[3];
    uint32_t depth[130];

    (void)state;
    bt_block_keys(tokens, 12, 4, BT_NS_PLAIN, keys, 3);
    for (uint32_t w = 0; w < 130; w++) {
        struct bt_kv_store s = store_of(three, w % 4, 0);

        assert_int_equal(bt_prefix_index_store(x, w, 0, &s), BT_OK);
    }
    bt_prefix_index_match(x, keys, 3, depth);
    for (uint32_t w = 0; w < 130; w++)
        assert_int_equal(depth[w], w % 4);
}

static void refuses_bad_limits(void **state)
{
    struct bt_prefix_index_limits limits = {
        .workers_max = 4, .blocks_max = 0, .holdings_max = 8};
    struct bt_arena arena;

    (void)state;
    bt_arena_init(&arena, memory, sizeof(memory));
    assert_null(bt_prefix_index_init(&arena, &limits));
    limits.blocks_max = 8;
    bt_arena_init(&arena, memory, 300);
    assert_null(bt_prefix_index_init(&arena, &limits));
}

/* ---- own keys given, tiers ---- */

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

static void own_keys_are_taken_as_given(void **state)
{
    const uint64_t hashes[] = {101, 102, 103}, keys[] = {71, 72, 73};
    const uint64_t other = 104;
    struct bt_kv_store s = given(hashes, keys, 3, BT_TIER_DEVICE);
    struct bt_prefix_index *x = start();
    uint32_t depth[4];
    uint64_t key = 0;

    (void)state;
    s.has_parent = 1; /* neither parent nor tokens are looked at */
    s.parent = 101;
    s.token_count = 5;
    assert_int_equal(bt_prefix_index_store(x, 2, 0, &s), BT_OK);
    bt_prefix_index_match(x, keys, 3, depth);
    assert_int_equal(depth[2], 3);
    assert_int_equal(depth[0], 0);
    assert_int_equal(bt_prefix_index_own_key(x, 2, 0, 102, &key), BT_OK);
    assert_int_equal(key, 72);
    assert_int_equal(bt_prefix_index_own_key(x, 2, 1, 102, &key), BT_NOT_FOUND);
    assert_int_equal(bt_prefix_index_own_key(x, 1, 0, 102, &key), BT_NOT_FOUND);
    assert_int_equal(bt_prefix_index_own_key(x, 2, 0, 109, &key), BT_NOT_FOUND);
    s = given(&other, keys, 1, BT_TIER_DEVICE);
    s.full_attention = 0; /* counted, no key */
    assert_int_equal(bt_prefix_index_store(x, 2, 0, &s), BT_OK);
    assert_int_equal(bt_prefix_index_own_key(x, 2, 0, 104, &key), BT_NOT_FOUND);
    assert_int_equal(key, 72);
    bt_prefix_index_remove(x, 2, 0, hashes, 3, BT_TIER_DEVICE);
    bt_prefix_index_remove(x, 2, 0, &other, 1, BT_TIER_DEVICE);
    assert_drained(x);
}

/* A hashed child of given blocks continues their chain. */
static void given_parent_of_hashed_child(void **state)
{
    const uint64_t root = 1, root_key = KEY1, child = 2, both[] = {KEY1, KEY2};
    struct bt_kv_store s = given(&root, &root_key, 1, BT_TIER_DEVICE);
    struct bt_prefix_index *x = start();
    uint32_t depth[4];

    (void)state;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    s = child_of(1, &child, 1, 4);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    bt_prefix_index_match(x, both, 2, depth);
    assert_int_equal(depth[0], 2);
}

static void tiers_of_one_prompt(void **state)
{
    const uint64_t keys[] = {11, 12, 13, 14, 15};
    struct bt_prefix_index *x = start();
    uint32_t depth[4 * BT_TIERS];
    struct bt_kv_store s = given(keys, keys, 1, BT_TIER_DEVICE);
    const uint32_t expected[BT_TIERS] = {1, 3, 4, 5};

    (void)state;
    (void)bt_prefix_index_store(x, 1, 0, &s);
    s = given(keys + 1, keys + 1, 1, BT_TIER_HOST);
    (void)bt_prefix_index_store(x, 1, 0, &s);
    s = given(keys + 2, keys + 2, 1, BT_TIER_DEVICE);
    (void)bt_prefix_index_store(x, 1, 0, &s);
    s = given(keys + 3, keys + 3, 1, BT_TIER_DISK);
    (void)bt_prefix_index_store(x, 1, 0, &s);
    s = given(keys + 4, keys + 4, 1, BT_TIER_EXTERNAL);
    (void)bt_prefix_index_store(x, 1, 0, &s);
    bt_prefix_index_match_tiers(x, keys, 5, depth);
    for (int t = 0; t < BT_TIERS; t++) {
        assert_int_equal(depth[1 * BT_TIERS + t], expected[t]);
        assert_int_equal(depth[0 * BT_TIERS + t], 0);
    }
    /* to the device, then off the host */
    s = given(keys + 1, keys + 1, 1, BT_TIER_DEVICE);
    (void)bt_prefix_index_store(x, 1, 0, &s);
    bt_prefix_index_remove(x, 1, 0, keys + 1, 1, BT_TIER_HOST);
    bt_prefix_index_match_tiers(x, keys, 5, depth);
    assert_int_equal(depth[1 * BT_TIERS], 3);
    assert_int_equal(depth[1 * BT_TIERS + 1], 3);
    bt_prefix_index_match_tiers(x, keys, 0, depth);
    assert_int_equal(depth[1 * BT_TIERS], 0);
}

/* Random copies in random tiers, on more workers than one word has bits; the
 * depths by a plain count of copies. */
#define RW 70u
#define RB 12u

static uint32_t depth_by_hand(const int copies[RW][RB][BT_TIERS], uint32_t w,
                              int tier)
{
    uint32_t depth = 0;
    bool held = true;

    while (depth < RB && held) {
        held = false;
        for (int t = 0; t <= tier; t++)
            held = held || copies[w][depth][t] > 0;
        depth += held;
    }
    return depth;
}

static void tiers_against_a_plain_count(void **state)
{
    static int copies[RW][RB][BT_TIERS];
    static uint32_t depth[RW * BT_TIERS];
    struct bt_prefix_index *x = start_with(RW, 64, 4000);
    uint64_t keys[RB];
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 20261130);
    memset(copies, 0, sizeof(copies));
    for (uint32_t b = 0; b < RB; b++)
        keys[b] = 1000 + b;
    for (int i = 0; i < 20000; i++) {
        uint32_t w = (uint32_t)bt_rng_below(&rng, RW);
        uint32_t b = (uint32_t)bt_rng_below(&rng, RB);
        enum bt_tier t = (enum bt_tier)bt_rng_below(&rng, BT_TIERS);
        struct bt_kv_store s = given(keys + b, keys + b, 1, t);

        if (bt_rng_below(&rng, 100) < 60) {
            assert_int_equal(bt_prefix_index_store(x, w, 0, &s), BT_OK);
            copies[w][b][t]++;
        } else {
            bt_prefix_index_remove(x, w, 0, keys + b, 1, t);
            copies[w][b][t] -= copies[w][b][t] > 0;
        }
        if (i % 100 != 0)
            continue;
        bt_prefix_index_match_tiers(x, keys, RB, depth);
        for (w = 0; w < RW; w++)
            for (int tier = 0; tier < BT_TIERS; tier++)
                if (depth[w * BT_TIERS + (uint32_t)tier] !=
                    depth_by_hand(copies, w, tier))
                    fail_msg("step %d worker %u tier %d: %u", i, w, tier,
                             depth[w * BT_TIERS + (uint32_t)tier]);
    }
    for (uint32_t w = 0; w < RW; w++)
        bt_prefix_index_drop_worker(x, w);
    assert_drained(x);
}

/* ---- remaining, copies, counting ---- */

static void store_times(struct bt_prefix_index *x, uint32_t worker,
                        uint64_t key, enum bt_tier tier, int times)
{
    struct bt_kv_store s = given(&key, &key, 1, tier);

    for (int i = 0; i < times; i++)
        assert_int_equal(bt_prefix_index_store(x, worker, 0, &s), BT_OK);
}

static uint64_t device_copies(const struct bt_prefix_index *x)
{
    return bt_prefix_index_copies(x, 0, 0, BT_TIER_DEVICE);
}

/* engine-wire.md X5: removal of 101 and 102 with [1, 0] left. */
static void remaining_says_what_is_left(void **state)
{
    const uint64_t hashes[] = {101, 102, 103};
    const uint32_t left[] = {1, 0, 2};
    struct bt_prefix_index *x = start();

    (void)state;
    store_times(x, 0, 101, BT_TIER_DEVICE, 3);
    store_times(x, 0, 102, BT_TIER_DEVICE, 2);
    assert_int_equal(device_copies(x), 5);
    bt_prefix_index_remaining(x, 0, 0, hashes, left, 3, BT_TIER_DEVICE);
    assert_int_equal(device_copies(x), 1);
    assert_true(bt_prefix_index_holds(x, 0, 101));
    assert_false(bt_prefix_index_holds(x, 0, 102));
    assert_int_equal(stats(x).removes, 2);
    assert_int_equal(stats(x).unknown_removes, 1); /* 103 is not invented */
    assert_false(bt_prefix_index_holds(x, 0, 103));
    bt_prefix_index_remaining(x, 0, 0, hashes, left, 1, BT_TIER_HOST);
    assert_int_equal(bt_prefix_index_copies(x, 0, 0, BT_TIER_HOST), 0);
    bt_prefix_index_remaining(x, 0, 0, hashes, left + 2, 1, BT_TIER_DEVICE);
    assert_int_equal(device_copies(x), 2); /* more than we knew of */
    bt_prefix_index_remaining(x, 3, 0, hashes, left, 3, BT_TIER_DEVICE);
    assert_int_equal(stats(x).unknown_removes, 5); /* 1, host, 3 of worker 3 */
    bt_prefix_index_remaining(x, 0, 0, hashes, left + 1, 1, BT_TIER_DEVICE);
    assert_drained(x);
}

static void set_counting_ends_with_one_removal(void **state)
{
    const uint64_t h = 7, other = 8;
    const uint32_t left = 5;
    struct bt_prefix_index *x = start();

    (void)state;
    store_times(x, 0, h, BT_TIER_DEVICE, 4);
    store_times(x, 0, h, BT_TIER_HOST, 2);
    bt_prefix_index_counting(x, 0, 0, BT_KV_COUNT_SET);
    assert_int_equal(device_copies(x), 1);
    assert_int_equal(bt_prefix_index_copies(x, 0, 0, BT_TIER_HOST), 1);
    store_times(x, 0, h, BT_TIER_DEVICE, 3);
    bt_prefix_index_remaining(x, 0, 0, &h, &left, 1, BT_TIER_DEVICE);
    assert_int_equal(device_copies(x), 1);
    bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DEVICE);
    assert_int_equal(bt_prefix_index_tiers(x, 0, h), 1u << BT_TIER_HOST);
    bt_prefix_index_counting(x, 0, 0, BT_KV_COUNT_COPIES);
    store_times(x, 0, h, BT_TIER_DEVICE, 2);
    assert_int_equal(device_copies(x), 2);
    bt_prefix_index_clear(x, 0, 0);
    /* Set before the first entry it counts for those to come; without entries
     * it is forgotten. */
    bt_prefix_index_counting(x, 0, 0, BT_KV_COUNT_SET);
    store_times(x, 0, other, BT_TIER_DEVICE, 2);
    assert_int_equal(device_copies(x), 1);
    bt_prefix_index_remove(x, 0, 0, &other, 1, BT_TIER_DEVICE);
    store_times(x, 0, other, BT_TIER_DEVICE, 2);
    assert_int_equal(device_copies(x), 2);
    bt_prefix_index_drop_worker(x, 0);
    assert_drained(x);
}

/* 127 copies are the most that is counted: too few only costs a miss. */
static void copies_saturate(void **state)
{
    const uint64_t h = 7;
    struct bt_prefix_index *x = start();

    (void)state;
    store_times(x, 0, h, BT_TIER_DISK, 130);
    assert_int_equal(bt_prefix_index_copies(x, 0, 0, BT_TIER_DISK), 127);
    for (int i = 0; i < 127; i++) {
        assert_true(bt_prefix_index_holds(x, 0, h));
        bt_prefix_index_remove(x, 0, 0, &h, 1, BT_TIER_DISK);
    }
    assert_drained(x);
}

/* ---- age, one tier ---- */

static void aged_entries_are_confirmed_or_dropped(void **state)
{
    const uint64_t keys[] = {11, 12, 13};
    struct bt_kv_store all = given(keys, keys, 3, BT_TIER_DEVICE);
    struct bt_kv_store second = given(keys + 1, keys + 1, 1, BT_TIER_HOST);
    struct bt_prefix_index *x = start();

    (void)state;
    bt_prefix_index_age(x, 0, 0); /* nothing there: harmless */
    assert_int_equal(bt_prefix_index_drop_aged(x, 0, 0), 0);
    bt_prefix_index_store(x, 0, 0, &all);
    bt_prefix_index_store(x, 0, 1, &all);
    bt_prefix_index_age(x, 0, 0);
    assert_true(bt_prefix_index_holds(x, 0, 11)); /* aged is not gone */
    bt_prefix_index_store(x, 0, 0, &second);
    assert_int_equal(bt_prefix_index_drop_aged(x, 0, 0), 2);
    assert_int_equal(bt_prefix_index_drop_aged(x, 0, 0), 0);
    assert_int_equal(stats(x).holdings, 4); /* the other rank's, and 12 */
    assert_int_equal(bt_prefix_index_tiers(x, 0, 12),
                     1u << BT_TIER_DEVICE | 1u << BT_TIER_HOST);
    /* However often: what is not confirmed stays aged. */
    for (int i = 0; i < 40; i++) {
        bt_prefix_index_age(x, 0, 1);
        second.tier = BT_TIER_DEVICE;
        assert_int_equal(bt_prefix_index_store(x, 0, 1, &second), BT_OK);
    }
    assert_int_equal(bt_prefix_index_drop_aged(x, 0, 1), 2);
    for (int i = 0; i < 40; i++)
        bt_prefix_index_age(x, 0, 1);
    assert_int_equal(bt_prefix_index_drop_aged(x, 0, 1), 1);
    bt_prefix_index_clear(x, 0, 0);
    assert_drained(x);
}

static void one_tier_is_cleared(void **state)
{
    const uint64_t keys[] = {11, 12, 13};
    struct bt_kv_store s = given(keys, keys, 3, BT_TIER_DEVICE);
    struct bt_prefix_index *x = start();

    (void)state;
    bt_prefix_index_store(x, 0, 0, &s);
    bt_prefix_index_store(x, 0, 1, &s);
    s = given(keys + 1, keys + 1, 1, BT_TIER_HOST);
    bt_prefix_index_store(x, 0, 0, &s);
    bt_prefix_index_clear_tier(x, 0, 0, BT_TIER_DEVICE);
    assert_int_equal(device_copies(x), 0);
    assert_int_equal(stats(x).holdings, 4);
    assert_int_equal(bt_prefix_index_tiers(x, 0, 12),
                     1u << BT_TIER_DEVICE | 1u << BT_TIER_HOST);
    bt_prefix_index_clear_tier(x, 0, 1, BT_TIER_DEVICE);
    assert_int_equal(bt_prefix_index_tiers(x, 0, 12), 1u << BT_TIER_HOST);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 0), 1);
    bt_prefix_index_clear_tier(x, 0, 0, BT_TIER_HOST);
    assert_int_equal(stats(x).clears, 3);
    assert_drained(x);
}

/* ---- two holdings of one worker on one block ---- */

/* Ranks and engine hashes that mean the same block: it is held until the last
 * one goes. */
static void a_block_is_held_until_the_last_entry_goes(void **state)
{
    const uint64_t hashes[] = {1, 2}, keys[] = {77, 77};
    struct bt_kv_store s = given(hashes, keys, 2, BT_TIER_DEVICE);
    struct bt_prefix_index *x = start();

    (void)state;
    bt_prefix_index_store(x, 1, 0, &s);
    bt_prefix_index_store(x, 1, 1, &s);
    assert_int_equal(stats(x).holdings, 4);
    assert_int_equal(bt_prefix_index_worker_blocks(x, 1), 1);
    bt_prefix_index_remove(x, 1, 0, hashes, 2, BT_TIER_DEVICE);
    bt_prefix_index_remove(x, 1, 1, hashes + 1, 1, BT_TIER_DEVICE);
    assert_true(bt_prefix_index_holds(x, 1, 77));
    bt_prefix_index_remove(x, 1, 1, hashes, 1, BT_TIER_DEVICE);
    assert_false(bt_prefix_index_holds(x, 1, 77));
    assert_drained(x);
}

/* ---- namespaces, collisions ---- */

static void given_blocks_say_their_namespace(void **state)
{
    const uint64_t root = 1, root_key = 0xd070ee4e528a4152ULL, child = 2;
    const uint64_t ns = bt_ns_seed(NULL, 0, "tenant-a", 8);
    const uint64_t local = bt_block_local(tokens + 4, 4, NULL, 0, ns);
    struct bt_kv_store s = given(&root, &root_key, 1, BT_TIER_DEVICE);
    struct bt_prefix_index *x = start();

    (void)state;
    s.own_ns = ns;
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    s = child_of(1, &child, 1, 4);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
    assert_true(bt_prefix_index_holds(x, 0, bt_block_chain(root_key, local)));
    assert_int_equal(stats(x).namespaces, 1);
    bt_prefix_index_drop_worker(x, 0);
    assert_int_equal(stats(x).namespaces, 0);
}

/* Tenants come and go: only those with blocks count; too many at once are
 * refused. */
static void namespaces_do_not_leak(void **state)
{
    struct bt_prefix_index *x = start();
    uint32_t refused = 0;

    (void)state;
    for (uint64_t ns = 10000; ns < 80000; ns++) {
        struct bt_kv_store s = given(&ns, &ns, 1, BT_TIER_DEVICE);

        s.own_ns = ns;
        assert_int_equal(bt_prefix_index_store(x, 0, 0, &s), BT_OK);
        bt_prefix_index_remove(x, 0, 0, &ns, 1, BT_TIER_DEVICE);
    }
    assert_int_equal(stats(x).namespaces, 0);
    x = start_with(4, 4000, 8000);
    for (uint64_t ns = 1; ns <= 200; ns++) {
        struct bt_kv_store s = given(&ns, &ns, 1, BT_TIER_DEVICE);

        s.own_ns = ns;
        refused += bt_prefix_index_store(x, 0, 0, &s) == BT_LIMIT;
    }
    assert_int_equal(refused, 200 - 4000 / 32);
    assert_int_equal(stats(x).dropped, refused);
    assert_int_equal(stats(x).namespaces, 4000 / 32);
}

/* field-failures C06: a handle of 64 bits that two contents share. */
static void a_hash_keeps_its_first_content(void **state)
{
    const uint64_t two[] = {11, 12};
    struct bt_kv_store first = store_of(two, 1, 0);
    struct bt_kv_store again = store_of(two, 2, 4);
    uint64_t second = bt_block_local(tokens + 8, 4, NULL, 0, BT_NS_PLAIN);
    struct bt_prefix_index *x = start();

    (void)state;
    bt_prefix_index_store(x, 0, 0, &first);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &again), BT_OK);
    assert_int_equal(stats(x).collisions, 1);
    assert_int_equal(device_copies(x), 3);
    assert_true(bt_prefix_index_holds(x, 0, KEY1));
    assert_false(bt_prefix_index_holds(
        x, 0, bt_block_local(tokens + 4, 4, NULL, 0, BT_NS_PLAIN)));
    /* the child hangs on what is mapped */
    assert_true(bt_prefix_index_holds(x, 0, bt_block_chain(KEY1, second)));
    bt_prefix_index_drop_worker(x, 0);
    assert_drained(x);
}

/* ---- spread, each, C16 ---- */

static void spread_counts_workers(void **state)
{
    const uint64_t keys[] = {11, 12, 13, 14};
    struct bt_prefix_index *x = start_with(100, 64, 1000);
    uint32_t copies[4];

    (void)state;
    for (uint32_t w = 0; w < 100; w++) {
        struct bt_kv_store s = given(keys, keys,
                                     w == 0   ? 3
                                     : w < 30 ? 2
                                              : 1,
                                     BT_TIER_HOST);

        bt_prefix_index_store(x, w, 0, &s);
        bt_prefix_index_store(x, w, 1, &s); /* a second rank: one worker */
    }
    assert_int_equal(bt_prefix_index_spread(x, keys, 4, copies), 3);
    assert_memory_equal(copies, ((uint32_t[]){100, 30, 1, 0}), sizeof(copies));
    assert_int_equal(stats(x).shared, 2);
    for (uint32_t w = 2; w < 100; w++)
        bt_prefix_index_drop_worker(x, w);
    assert_int_equal(bt_prefix_index_spread(x, keys, 2, copies), 2);
    assert_memory_equal(copies, ((uint32_t[]){2, 2}), 8);
    assert_int_equal(stats(x).shared, 0); /* back inside the blocks */
}

struct told {
    uint32_t count;
    struct bt_prefix_entry entry[4];
};

static void tell(void *arg, const struct bt_prefix_entry *entry)
{
    struct told *told = arg;

    assert_true(told->count < 4);
    told->entry[told->count++] = *entry;
}

static void each_tells_every_entry_once(void **state)
{
    struct bt_prefix_index *x = start();
    const uint64_t h = 5, other = 6;
    struct bt_kv_store s = store_of(&h, 1, 0);
    struct told told = {0};

    (void)state;
    s.salt = "salt";
    s.salt_bytes = 4;
    bt_prefix_index_store(x, 2, 1, &s);
    bt_prefix_index_store(x, 2, 1, &s);
    s = store_of(&other, 1, 0);
    s.tier = BT_TIER_DISK;
    s.full_attention = 0;
    bt_prefix_index_store(x, 2, 1, &s);
    bt_prefix_index_each(x, 0, tell, &told);
    assert_int_equal(told.count, 0);
    bt_prefix_index_each(x, 2, tell, &told);
    assert_int_equal(told.count, 2);
    if (!told.entry[0].keyed) {
        told.entry[2] = told.entry[0];
        told.entry[0] = told.entry[1];
        told.entry[1] = told.entry[2];
    }
    assert_int_equal(told.entry[0].rank, 1);
    assert_int_equal(told.entry[0].hash, 5);
    /* engine-wire.md 2.9: B=4, salt, tokens 1..4 */
    assert_int_equal(told.entry[0].key, 0xd4792f512213711cULL);
    assert_int_equal(told.entry[0].ns, 0x37e84b7cf73fac36ULL);
    assert_int_equal(told.entry[0].copies[BT_TIER_DEVICE], 2);
    assert_int_equal(told.entry[1].hash, 6);
    assert_int_equal(told.entry[1].key + told.entry[1].ns, 0);
    assert_false(told.entry[1].keyed);
    assert_int_equal(told.entry[1].copies[BT_TIER_DISK], 1);
}

/* field-failures C16: 1 <- 2 <- 3 <- 4, remove 2, then 4, then 3, then 2 comes
 * back. In between 3 and 4 are held but no prompt reaches them. */
static void c16_children_are_removed_later(void **state)
{
    const uint64_t four[] = {1, 2, 3, 4};
    struct bt_prefix_index *x = start();
    struct bt_kv_store s = store_of(four, 4, 0);
    struct bt_kv_store again = child_of(1, four + 1, 1, 4);
    uint64_t keys[4];
    uint32_t depth[4];

    (void)state;
    bt_block_keys(tokens, 16, 4, BT_NS_PLAIN, keys, 4);
    bt_prefix_index_store(x, 0, 0, &s);
    bt_prefix_index_remove(x, 0, 0, four + 1, 1, BT_TIER_DEVICE);
    bt_prefix_index_match(x, keys, 4, depth);
    assert_int_equal(depth[0], 1);
    bt_prefix_index_remove(x, 0, 0, four + 3, 1, BT_TIER_DEVICE);
    bt_prefix_index_remove(x, 0, 0, four + 2, 1, BT_TIER_DEVICE);
    assert_int_equal(stats(x).unknown_removes, 0);
    assert_int_equal(bt_prefix_index_store(x, 0, 0, &again), BT_OK);
    bt_prefix_index_match(x, keys, 4, depth);
    assert_int_equal(depth[0], 2);
    assert_false(bt_prefix_index_holds(x, 0, keys[2]));
    assert_false(bt_prefix_index_holds(x, 0, keys[3]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_keys_are_taken_as_given),
        cmocka_unit_test(given_parent_of_hashed_child),
        cmocka_unit_test(tiers_of_one_prompt),
        cmocka_unit_test(tiers_against_a_plain_count),
        cmocka_unit_test(v1_v7_store_and_remove),
        cmocka_unit_test(v11_child_of_known_parent),
        cmocka_unit_test(v12_v13_counts_only),
        cmocka_unit_test(eagle_windows),
        cmocka_unit_test(x1_x2_x3_lora_salt_image_offload),
        cmocka_unit_test(g2_salts_share_an_engine_hash),
        cmocka_unit_test(copies_are_counted),
        cmocka_unit_test(holes_stop_a_match),
        cmocka_unit_test(ranks_clear_and_drop),
        cmocka_unit_test(other_attention_counts_only),
        cmocka_unit_test(full_tables_drop),
        cmocka_unit_test(ranks_are_bounded),
        cmocka_unit_test(many_workers),
        cmocka_unit_test(refuses_bad_limits),
        cmocka_unit_test(remaining_says_what_is_left),
        cmocka_unit_test(set_counting_ends_with_one_removal),
        cmocka_unit_test(copies_saturate),
        cmocka_unit_test(aged_entries_are_confirmed_or_dropped),
        cmocka_unit_test(one_tier_is_cleared),
        cmocka_unit_test(a_block_is_held_until_the_last_entry_goes),
        cmocka_unit_test(given_blocks_say_their_namespace),
        cmocka_unit_test(namespaces_do_not_leak),
        cmocka_unit_test(a_hash_keeps_its_first_content),
        cmocka_unit_test(spread_counts_workers),
        cmocka_unit_test(each_tells_every_entry_once),
        cmocka_unit_test(c16_children_are_removed_later),
    };

    return cmocka_run_group_tests_name("prefix_index", tests, NULL, NULL);
}
