/* Own block keys against the vectors of engine-wire.md 2.9 and 1.14. */
#include "baton/planner/block_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define IMAGE_A                                                                \
    "0123456789abcdef00112233445566778899aabbccddeefffedcba9876543210"
#define IMAGE_B "opaque-renderer-image-0"

static uint64_t ns_of(const char *lora, const char *salt)
{
    return bt_ns_seed(lora, strlen(lora), salt, strlen(salt));
}

static void run_from(uint32_t first, uint32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tokens[i] = first + (uint32_t)i;
}

static void namespaces(void **state)
{
    (void)state;
    assert_true(ns_of("", "") == 1337);
    assert_true(bt_ns_seed(NULL, 0, NULL, 0) == 1337);
    assert_true(ns_of("lora-a", "") == 0xeabdaa2c31af1245ULL);
    assert_true(ns_of("", "salt") == 0x37e84b7cf73fac36ULL);
    assert_true(ns_of("lora-a", "salt") == 0x22a5f5a928eeb942ULL);
    assert_true(ns_of("", "tenant-a") == 0x1b095b6229544fb6ULL);
    assert_true(ns_of("X", "") == 0x715e1e961e1e0a70ULL);
    assert_true(ns_of("", "X") == 0x02baa75b0e5def4bULL);
    assert_true(ns_of("b", "a") == 0x2a50dbb5b4103098ULL);
    assert_true(ns_of("", "ab") == 0xad9eb8f4efd985b4ULL);
    assert_true(ns_of("lora_7", "") == 3865872906902550615ULL);
    /* Dynamo's tag is stripped once, and a bare tag is no salt. */
    assert_true(ns_of("", "dynamo-cache-salt:salt") == 0x37e84b7cf73fac36ULL);
    assert_true(ns_of("", "dynamo-cache-salt:") == 1337);
    assert_true(ns_of("", "dynamo-cache-salt:dynamo-cache-salt:salt") !=
                0x37e84b7cf73fac36ULL);
}

static void plain_chains(void **state)
{
    static const uint64_t local4[] = {
        0xcb38e4d7fb2dca5cULL, 0xe8d3ec39b907b74cULL, 0x06b748f1777d599cULL};
    static const uint64_t seq4[] = {
        0xcb38e4d7fb2dca5cULL, 0x44a2b2379d6d3c3dULL, 0xaea1e67a6c80cf84ULL};
    static const uint64_t local16[] = {
        0xea06fc71a5ee6e88ULL, 0x1fbf39bd106be0b5ULL, 0xa8562fe663b7a097ULL};
    static const uint64_t seq16[] = {
        0xea06fc71a5ee6e88ULL, 0xad01835a37dd294cULL, 0x0d55e56c2bccbd1aULL};
    uint32_t tokens[48];
    uint64_t keys[3];

    (void)state;
    run_from(1, tokens, 48);
    for (size_t i = 0; i < 3; i++) {
        assert_true(bt_block_local(tokens + 4 * i, 4, NULL, 0, 1337) ==
                    local4[i]);
        assert_true(bt_block_local(tokens + 16 * i, 16, NULL, 0, 1337) ==
                    local16[i]);
    }
    assert_int_equal(bt_block_keys(tokens, 12, 4, 1337, keys, 3), 3);
    assert_memory_equal(keys, seq4, sizeof(seq4));
    assert_int_equal(bt_block_keys(tokens, 48, 16, 1337, keys, 3), 3);
    assert_memory_equal(keys, seq16, sizeof(seq16));
}

static void odd_tokens(void **state)
{
    static const uint32_t wide[] = {128000, 65535, 65536, 255, 256, 23, 24, 0,
                                    0,      1,     2,     3,   4,   5,  6,  7};
    static const uint32_t extreme[] = {4294967295u, 0, 1, 2};

    (void)state;
    assert_true(bt_block_local(wide, 16, NULL, 0, 1337) ==
                0x9ff00ef500c8aba4ULL);
    assert_true(bt_block_local(extreme, 4, NULL, 0, 1337) ==
                0x577e414cde328a02ULL);
    assert_true(bt_block_local(wide, 0, NULL, 0, 1337) ==
                0xd1f3e77444430ab9ULL);
}

static void chains_in_namespaces(void **state)
{
    static const struct {
        const char *lora, *salt;
        uint32_t block;
        uint64_t local1; /* 0: not in the table */
        uint64_t seq[3];
    } rows[] = {
        {"lora-a",
         "",
         16,
         0x2da6bdcd9245fe44ULL,
         {0x0702878993acc331ULL, 0x7f874620866466baULL, 0x1d059d4437120408ULL}},
        {"",
         "salt",
         16,
         0xd8405be7847abcc6ULL,
         {0x2b51f1fda179f6c7ULL, 0x1f22a84a494f28a1ULL, 0x69d964d64cf3254cULL}},
        {"lora-a",
         "salt",
         16,
         0x6e6266bccc5e3773ULL,
         {0x6fa591038f2afe68ULL, 0xe52bff7fc75c1c68ULL, 0xd15c85ada26c7457ULL}},
        {"lora-a",
         "",
         4,
         0,
         {0xebe499ac3e8056dcULL, 0x999198c2aa118cccULL, 0x0a66e5f1efbf7da8ULL}},
        {"",
         "salt",
         4,
         0,
         {0xd4792f512213711cULL, 0xec9055172a3b5858ULL, 0x4c34425c65a74c33ULL}},
        {"lora-a",
         "salt",
         4,
         0,
         {0x5222c2f6c9a499abULL, 0xa62e2d1426277c2fULL, 0x1c7bcdef1a5c2837ULL}},
    };
    uint32_t tokens[48];
    uint64_t keys[3];

    (void)state;
    run_from(1, tokens, 48);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t ns = ns_of(rows[i].lora, rows[i].salt);
        uint32_t b = rows[i].block;

        assert_int_equal(bt_block_keys(tokens, 3 * b, b, ns, keys, 3), 3);
        assert_memory_equal(keys, rows[i].seq, sizeof(keys));
        if (rows[i].local1 != 0)
            assert_true(bt_block_local(tokens + b, b, NULL, 0, ns) ==
                        rows[i].local1);
    }
    assert_true(bt_block_local(tokens, 4, NULL, 0, ns_of("lora_7", "")) ==
                6090315765804930700ULL);
    assert_true(bt_block_local(tokens + 4, 4, NULL, 0, ns_of("lora_7", "")) ==
                3193399369686574168ULL);
}

static void multimodal(void **state)
{
    uint32_t tokens[12];
    uint64_t mm[2], swapped[2];

    (void)state;
    run_from(1, tokens, 12);
    mm[0] = bt_mm_hash(IMAGE_A, strlen(IMAGE_A));
    mm[1] = bt_mm_hash(IMAGE_B, strlen(IMAGE_B));
    swapped[0] = mm[1];
    swapped[1] = mm[0];
    assert_true(mm[0] == 0x0123456789abcdefULL);
    assert_true(mm[1] == 0xc85cacd6e51891a1ULL);
    assert_true(bt_block_local(tokens, 4, mm, 1, 1337) ==
                0x1dbcc59563c54cedULL);
    assert_true(bt_block_local(tokens, 4, mm, 2, 1337) ==
                0x7bb4ec5c43645639ULL);
    assert_true(bt_block_local(tokens, 4, swapped, 2, 1337) ==
                0x7bb4ec5c43645639ULL);
    /* 64 characters that are not all hex digits are opaque. */
    assert_true(bt_mm_hash("g123456789abcdef00112233445566778899aabbccddeefff"
                           "edcba9876543210",
                           64) != 0x0123456789abcdefULL);
}

/* X1 and X2: adapter, salt and an image over the first two of three blocks; the
 * third lies in the same namespace although its event does not show the salt.
 */
static void image_chain(void **state)
{
    static const uint64_t local[] = {
        0x6224eaa093e54698ULL, 0xaf5a539c51e46869ULL, 0xd5c5c38e99ac71d6ULL};
    static const uint64_t seq[] = {0x6224eaa093e54698ULL, 0xc6eb2220fd1464aaULL,
                                   0x5937faa5b0c08f97ULL};
    uint64_t ns = ns_of("lora-a", "salt"), mm, key = 0;
    uint32_t tokens[12];

    (void)state;
    mm = bt_mm_hash(IMAGE_A, strlen(IMAGE_A)); /* the identifier in X1 */
    run_from(1, tokens, 12);
    for (size_t i = 0; i < 3; i++) {
        uint64_t own =
            bt_block_local(tokens + 4 * i, 4, &mm, i < 2 ? 1 : 0, ns);

        assert_true(own == local[i]);
        key = i == 0 ? own : bt_block_chain(key, own);
        assert_true(key == seq[i]);
    }
    /* What comes of it where the salt is not inherited. */
    key = bt_block_local(tokens + 8, 4, NULL, 0, ns_of("lora-a", ""));
    assert_true(bt_block_chain(seq[1], key) == 0x9806313f650d2b69ULL);
}

/* The same vectors as the table has them in decimal. */
static void decimals(void **state)
{
    static const uint64_t seq4[] = {14643705804678351452u, 4945711292740353085u,
                                    12583592247330656132u};
    static const uint64_t seq16[] = {
        16863443419780771464u, 12466389667045779788u, 960926348267535642u};
    static const uint64_t local4[] = {
        14643705804678351452u, 16777012769546811212u, 483935686894639516u};
    static const uint64_t local16[] = {
        16863443419780771464u, 2287610619914608821u, 12129935312930971799u};
    static const uint32_t wide[] = {128000, 65535, 65536, 255, 256, 23, 24, 0,
                                    0,      1,     2,     3,   4,   5,  6,  7};
    uint32_t tokens[48];
    uint64_t keys[3];

    (void)state;
    run_from(1, tokens, 48);
    assert_int_equal(bt_block_keys(tokens, 12, 4, 1337, keys, 3), 3);
    assert_memory_equal(keys, seq4, sizeof(seq4));
    assert_int_equal(bt_block_keys(tokens, 48, 16, 1337, keys, 3), 3);
    assert_memory_equal(keys, seq16, sizeof(seq16));
    for (size_t i = 0; i < 3; i++) {
        assert_true(bt_block_local(tokens + 4 * i, 4, NULL, 0, 1337) ==
                    local4[i]);
        assert_true(bt_block_local(tokens + 16 * i, 16, NULL, 0, 1337) ==
                    local16[i]);
    }
    assert_true(bt_block_local(wide, 16, NULL, 0, 1337) ==
                11524727891884026788u);
    assert_true(ns_of("lora-a", "") == 16914862882262291013u);
    assert_true(ns_of("", "salt") == 4028552866779081782u);
    assert_true(ns_of("lora-a", "salt") == 2496671675331819842u);
    assert_true(ns_of("", "tenant-a") == 1948188790972764086u);
}

/* Windows of 5 tokens, stride 4 (2.4). */
static void eagle_windows(void **state)
{
    uint32_t tokens[9];

    (void)state;
    run_from(1, tokens, 9);
    assert_true(bt_block_local(tokens, 5, NULL, 0, 1337) ==
                0x1a92ffa9004c0851ULL);
    assert_true(bt_block_local(tokens + 4, 5, NULL, 0, 1337) ==
                0x1ac55a72d61806e3ULL);
}

static void key_counts(void **state)
{
    uint32_t tokens[12];
    uint64_t keys[3] = {9, 9, 9};

    (void)state;
    run_from(1, tokens, 12);
    assert_int_equal(bt_block_keys(tokens, 12, 0, 1337, keys, 3), 0);
    assert_int_equal(bt_block_keys(tokens, 3, 4, 1337, keys, 3), 0);
    assert_int_equal(bt_block_keys(tokens, 11, 4, 1337, keys, 3), 2);
    assert_int_equal(bt_block_keys(tokens, 12, 4, 1337, keys, 1), 1);
    assert_true(keys[2] == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(namespaces), cmocka_unit_test(plain_chains),
        cmocka_unit_test(odd_tokens), cmocka_unit_test(chains_in_namespaces),
        cmocka_unit_test(multimodal), cmocka_unit_test(image_chain),
        cmocka_unit_test(decimals),   cmocka_unit_test(eagle_windows),
        cmocka_unit_test(key_counts),
    };

    return cmocka_run_group_tests_name("block_hash", tests, NULL, NULL);
}
