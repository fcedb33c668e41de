/* Keys of requests against blocks of events, through decoder and index: one
 * namespace on both sides, Eagle windows on both sides, images on one. Right
 * values: seeds and keys of engine-wire.md 2.9, XXH3 called here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "baton/orchestrator/openai.h"
#include "kv_index_bed.h"
#include <xxhash.h>

#define BLOCK  4u
#define BLOCKS 3u

/* ns: as 2.9 has it, for the adapter and salt of both sides. */
static const struct {
    const char *lora, *salt;
    uint64_t ns;
} spaces[] = {
    {NULL, NULL, 1337},
    {"lora-a", NULL, 0xeabdaa2c31af1245},
    {NULL, "salt", 0x37e84b7cf73fac36},
    {NULL, "dynamo-cache-salt:salt", 0x37e84b7cf73fac36},
    {"lora-a", "salt", 0x22a5f5a928eeb942},
    {NULL, "tenant-a", 0x1b095b6229544fb6},
    {"X", NULL, 0x715e1e961e1e0a70},
    {NULL, "X", 0x02baa75b0e5def4b},
    {"b", "a", 0x2a50dbb5b4103098},
    {NULL, "ab", 0xad9eb8f4efd985b4},
};
#define SPACES (sizeof(spaces) / sizeof(spaces[0]))

static void run(uint32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)i + 1;
}

/* Namespace of a request as the server takes it from the body. */
static uint64_t ns_of_request(const char *lora, const char *salt)
{
    struct bt_openai_request r;
    char body[256], message[160];
    char salted[128] = "";

    if (salt != NULL)
        snprintf(salted, sizeof(salted), ",\"cache_salt\":\"%s\"", salt);
    snprintf(body, sizeof(body), "{\"model\":\"%s\",\"prompt\":[1]%s}",
             lora == NULL ? "base" : lora, salted);
    assert_int_equal(bt_openai_parse(BT_ROUTE_COMPLETIONS, body, strlen(body),
                                     &r, message, sizeof(message)),
                     BT_OK);
    return bt_ns_seed(lora, lora == NULL ? 0 : strlen(lora), r.salt,
                      r.salt_bytes);
}

static void store_in(size_t space)
{
    static const uint64_t hashes[BLOCKS] = {201, 202, 203};
    uint32_t tokens[BLOCK * BLOCKS];
    struct pk_store s = {.hashes = hashes,
                         .hash_count = BLOCKS,
                         .tokens = tokens,
                         .token_count = BLOCK * BLOCKS,
                         .block_tokens = BLOCK,
                         .lora = spaces[space].lora,
                         .salt = spaces[space].salt};

    run(tokens, BLOCK * BLOCKS);
    assert_int_equal(bed_store(&s), BT_OK);
}

static void a_request_finds_its_namespace_only(void **state)
{
    uint32_t tokens[BLOCK * BLOCKS];
    uint64_t keys[BLOCKS];

    run(tokens, BLOCK * BLOCKS);
    for (size_t e = 0; e < SPACES; e++) {
        assert_int_equal(bed_setup(state), 0);
        store_in(e);
        for (size_t q = 0; q < SPACES; q++) {
            uint64_t ns = ns_of_request(spaces[q].lora, spaces[q].salt);
            uint32_t want = spaces[e].ns == spaces[q].ns ? BLOCKS : 0;

            assert_true(ns == spaces[q].ns);
            assert_int_equal(
                bt_block_keys(tokens, BLOCK * BLOCKS, BLOCK, ns, keys, BLOCKS),
                BLOCKS);
            if (bed_depth(0, keys, BLOCKS) != want)
                fail_msg("event of namespace %zu, request of %zu: %u blocks", e,
                         q, bed_depth(0, keys, BLOCKS));
        }
        (void)bed_down(state);
    }
}

/* X1, X2: an image over the first two blocks, told in extra_keys. The request
 * knows only its tokens: nothing from the image on may match (C15). */
static void an_image_is_no_text(void **state)
{
    uint32_t tokens[BLOCK * BLOCKS];
    uint64_t keys[BLOCKS];

    (void)state;
    assert_int_equal(bed_feed("X1"), BT_OK);
    assert_int_equal(bed_feed("X2"), BT_OK);
    run(tokens, BLOCK * BLOCKS);
    assert_int_equal(bt_block_keys(tokens, BLOCK * BLOCKS, BLOCK,
                                   ns_of_request("lora-a", "salt"), keys,
                                   BLOCKS),
                     BLOCKS);
    assert_int_equal(bed_depth(0, keys, BLOCKS), 0);
}

/* Text in front of the image: shared; behind it: another prefix. */
static void text_before_an_image_is_shared(void **state)
{
    static const uint64_t hashes[BLOCKS] = {201, 202, 203};
    static const char *const images[BLOCKS] = {
        NULL,
        "0123456789abcdef00112233445566778899aabbccddeefffedcba9876543210",
        NULL};
    uint32_t tokens[BLOCK * BLOCKS];
    uint64_t keys[BLOCKS];
    struct pk_store s = {.hashes = hashes,
                         .hash_count = BLOCKS,
                         .tokens = tokens,
                         .token_count = BLOCK * BLOCKS,
                         .block_tokens = BLOCK,
                         .images = images};

    (void)state;
    run(tokens, BLOCK * BLOCKS);
    assert_int_equal(bed_store(&s), BT_OK);
    bt_block_keys(tokens, BLOCK * BLOCKS, BLOCK, 1337, keys, BLOCKS);
    assert_int_equal(bed_depth(0, keys, BLOCKS), 1);
}

/* ---- Eagle ---- */

static uint64_t chained(uint64_t parent, uint64_t local)
{
    unsigned char bytes[16];

    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(parent >> 8 * i);
        bytes[8 + i] = (unsigned char)(local >> 8 * i);
    }
    return XXH3_64bits_withSeed(bytes, sizeof(bytes), 1337);
}

static void eagle_keys(void **state)
{
    uint32_t tokens[9];
    uint64_t keys[3] = {7, 7, 7};

    (void)state;
    run(tokens, 9);
    assert_int_equal(bt_block_keys_eagle(tokens, 9, 4, 1337, keys, 3), 2);
    assert_true(keys[0] == 0x1a92ffa9004c0851);
    assert_true(keys[1] == chained(0x1a92ffa9004c0851, 0x1ac55a72d61806e3));
    assert_true(keys[2] == 7);
    /* floor((n - 1) / B) of them */
    assert_int_equal(bt_block_keys_eagle(tokens, 8, 4, 1337, keys, 3), 1);
    assert_int_equal(bt_block_keys_eagle(tokens, 5, 4, 1337, keys, 3), 1);
    assert_int_equal(bt_block_keys_eagle(tokens, 4, 4, 1337, keys, 3), 0);
    assert_int_equal(bt_block_keys_eagle(tokens, 0, 4, 1337, keys, 3), 0);
    assert_int_equal(bt_block_keys_eagle(tokens, 9, 0, 1337, keys, 3), 0);
    assert_int_equal(bt_block_keys_eagle(tokens, 9, 4, 1337, keys, 1), 1);
}

/* SGLang with EAGLE: token_ids are pairs (1,2) (2,3) ... (8,9) of two blocks.
 */
static void store_pairs(void)
{
    static const uint64_t hashes[] = {301, 302};
    unsigned char bytes[512];
    struct pk p = {.at = bytes, .max = sizeof(bytes)};

    pk_batch(&p, 1);
    pk_map(&p, 6);
    pk_text(&p, "type", "BlockStored");
    pk_str(&p, "block_hashes");
    pk_hashes(&p, hashes, 2);
    pk_text(&p, "parent_block_hash", NULL);
    pk_str(&p, "token_ids");
    pk_list(&p, 8);
    for (uint64_t t = 1; t <= 8; t++) {
        pk_list(&p, 2);
        pk_uint(&p, t);
        pk_uint(&p, t + 1);
    }
    pk_str(&p, "block_size");
    pk_uint(&p, 4);
    pk_text(&p, "lora_id", NULL);
    assert_false(p.full);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
}

static void eagle_events_meet_eagle_requests(void **state)
{
    uint32_t tokens[13];
    uint64_t keys[3];

    (void)state;
    store_pairs();
    assert_true(bed_tiers(0x1a92ffa9004c0851) != 0);
    run(tokens, 13);
    assert_int_equal(bt_block_keys_eagle(tokens, 13, 4, 1337, keys, 3), 3);
    assert_int_equal(bed_depth(0, keys, 3), 2);
    /* 8 tokens tell the last pair of the second block only in part */
    assert_int_equal(bt_block_keys_eagle(tokens, 8, 4, 1337, keys, 3), 1);
    assert_int_equal(bed_depth(0, keys, 1), 1);
    /* another token behind the block is another window */
    tokens[8] = 77;
    assert_int_equal(bt_block_keys_eagle(tokens, 13, 4, 1337, keys, 3), 3);
    assert_int_equal(bed_depth(0, keys, 3), 1);
    /* hashed the plain way nothing is ever found */
    run(tokens, 13);
    assert_int_equal(bt_block_keys(tokens, 13, 4, 1337, keys, 3), 3);
    assert_int_equal(bed_depth(0, keys, 3), 0);
}

#define IN_BED(f) cmocka_unit_test_setup_teardown(f, bed_setup, bed_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_finds_its_namespace_only),
        IN_BED(an_image_is_no_text),
        IN_BED(text_before_an_image_is_shared),
        cmocka_unit_test(eagle_keys),
        IN_BED(eagle_events_meet_eagle_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
