/* Names of blocks against the vectors of engine-wire.md 2.9: own keys and
 * vLLM's CBOR hashes, with and without adapter and salt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "baton/planner/block_hash.h"
#include "block_names.h"
#include "block_pool.h"

#define BLOCKS 4

static uint32_t tokens[32];

/* Blocks 0 and 1: tokens 1..16 and 17..32. */
static void name_two(struct bt_block_names *n, const char *lora,
                     const char *salt)
{
    size_t lora_bytes = lora != NULL ? strlen(lora) : 0;
    size_t salt_bytes = salt != NULL ? strlen(salt) : 0;
    struct bt_block_content c = {
        .block = 2,
        .parent = BT_POOL_NONE,
        .key = 11,
        .tokens = tokens,
        .token_count = 16,
        .ns = bt_ns_seed(lora, lora_bytes, salt, salt_bytes),
        .lora = lora,
        .salt = salt,
        .salt_bytes = (uint32_t)salt_bytes};
    for (uint32_t i = 0; i < 32; i++) {
        tokens[i] = i + 1;
    }
    bt_block_names_set(n, &c);
    c.block = 1;
    c.parent = 2;
    c.key = 12;
    c.tokens = tokens + 16;
    bt_block_names_set(n, &c);
}

static void real_hashes(void **state)
{
    (void)state;
    const struct {
        enum bt_engine_hash kind;
        const char *lora, *salt;
        uint64_t own[2], handle[2]; /* 0: no vector */
    } rows[] = {
        {BT_ENGINE_HASH_SHA256_CBOR,
         NULL,
         NULL,
         {0xea06fc71a5ee6e88, 0xad01835a37dd294c},
         {3236607068019569386u, 2758186210834249151u}},
        {BT_ENGINE_HASH_SHA256_CBOR,
         NULL,
         "salt",
         {0x2b51f1fda179f6c7, 0x1f22a84a494f28a1},
         {0xf86091a2d25fbd47, 0}},
        {BT_ENGINE_HASH_SHA256_CBOR,
         "lora-a",
         NULL,
         {0x0702878993acc331, 0x7f874620866466ba},
         {0xe01a1ca3ec1218ea, 0}},
        {BT_ENGINE_HASH_XXHASH_CBOR,
         NULL,
         NULL,
         {0xea06fc71a5ee6e88, 0xad01835a37dd294c},
         {882618318818381833u, 12890060145260523405u}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bt_block_names n;
        assert_int_equal(bt_block_names_init(&n, BLOCKS, rows[i].kind, "0", 7),
                         BT_OK);
        name_two(&n, rows[i].lora, rows[i].salt);
        for (int b = 0; b < 2; b++) {
            assert_int_equal(n.own[2 - b], rows[i].own[b]);
            if (rows[i].handle[b] != 0) {
                assert_int_equal(n.handles[2 - b], rows[i].handle[b]);
            }
        }
        bt_block_names_fini(&n);
    }
}

/* Opaque ones are of the process and of the content, not of the index. */
static void opaque_hashes(void **state)
{
    (void)state;
    struct bt_block_names a, b;
    assert_int_equal(
        bt_block_names_init(&a, BLOCKS, BT_ENGINE_HASH_NONE, NULL, 1), BT_OK);
    assert_int_equal(
        bt_block_names_init(&b, BLOCKS, BT_ENGINE_HASH_NONE, NULL, 2), BT_OK);
    name_two(&a, "lora-a", "salt");
    name_two(&b, "lora-a", "salt");
    assert_int_equal(a.own[1], 0xe52bff7fc75c1c68);
    assert_int_equal(b.own[1], a.own[1]);
    assert_int_not_equal(a.handles[1], b.handles[1]);
    assert_int_not_equal(a.handles[1], a.handles[2]);
    bt_block_names_fini(&a);
    bt_block_names_fini(&b);
}

static void no_seed(void **state)
{
    (void)state;
    struct bt_block_names n;
    assert_int_equal(
        bt_block_names_init(&n, BLOCKS, BT_ENGINE_HASH_SHA256_CBOR, "", 1),
        BT_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_hashes),
        cmocka_unit_test(opaque_hashes),
        cmocka_unit_test(no_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
