/* vLLM's CBOR block digests against the vectors of engine-wire.md 2.9: root
 * digests, block digests, event numbers and the very bytes that are hashed.
 * CBOR heads besides: RFC 8949 appendix A.
 */
#include "engine_hash_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHA         BT_ENGINE_HASH_SHA256_CBOR
#define XXH         BT_ENGINE_HASH_XXHASH_CBOR
#define BLOCK       16
#define TEXT_8      "abababababababab"
#define IMAGE       TEXT_8 TEXT_8 TEXT_8 TEXT_8 /* "ab" x 32 */
#define IMAGE_BYTES (sizeof(IMAGE) - 1)

#define ROOT_SHA                                                               \
    "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
#define ROOT_XXH "1ebe36576dcb573f26b99533a20aaeca"
#define FIRST_SHA                                                              \
    "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea"
#define FIRST_XXH "c2d7a75070fc6d6b0c3fb0af456c1009"

static const uint32_t first16[BLOCK] = {1, 2,  3,  4,  5,  6,  7,  8,
                                        9, 10, 11, 12, 13, 14, 15, 16};
static const uint32_t next16[BLOCK] = {17, 18, 19, 20, 21, 22, 23, 24,
                                       25, 26, 27, 28, 29, 30, 31, 32};
static const uint32_t wide16[BLOCK] = {
    128000, 65535, 65536, 255, 256, 23, 24, 0, 0, 1, 2, 3, 4, 5, 6, 7};

/* Bytes that an encoder gave, as hex. */
struct heard {
    char hex[4096];
    size_t bytes;
    uint32_t calls;
};

static void hear(void *arg, const unsigned char *bytes, size_t size)
{
    struct heard *h = arg;

    assert_true(2 * (h->bytes + size) < sizeof(h->hex));
    for (size_t i = 0; i < size; i++)
        snprintf(h->hex + 2 * (h->bytes + i), 3, "%02x", bytes[i]);
    h->bytes += size;
    h->calls++;
}

static void expect_digest(const struct bt_engine_digest *d, const char *hex)
{
    struct heard h = {.bytes = 0};

    hear(&h, d->bytes, d->size);
    assert_string_equal(h.hex, hex);
}

static void parse(const char *hex, struct bt_engine_digest *out)
{
    memset(out, 0, sizeof(*out));
    out->size = (uint32_t)strlen(hex) / 2;
    for (uint32_t i = 0; i < out->size; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0}, *end;

        out->bytes[i] = (unsigned char)strtoul(pair, &end, 16);
        assert_ptr_equal(end, pair + 2);
    }
}

static void roots(void **state)
{
    struct bt_engine_digest d;
    struct heard h = {.bytes = 0};

    (void)state;
    assert_int_equal(bt_engine_hash_root(SHA, "0", &d), BT_OK);
    expect_digest(&d, ROOT_SHA);
    assert_int_equal(bt_engine_hash_root(XXH, "0", &d), BT_OK);
    expect_digest(&d, ROOT_XXH);
    eh_encode_text("0", 1, hear, &h);
    assert_string_equal(h.hex, "6130");
}

struct row {
    enum bt_engine_hash kind;
    const char *parent; /* hex */
    const uint32_t *tokens;
    struct bt_engine_extra extra[3];
    size_t extra_count;
    const char *digest; /* hex */
    uint64_t event;     /* 0: the table has none */
    const char *hashed; /* hex, NULL: the table has none */
};

static const struct row rows[] = {
    {SHA,
     ROOT_SHA,
     first16,
     {{0}},
     0,
     FIRST_SHA,
     3236607068019569386u,
     "8358204e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e90"
     "0102030405060708090a0b0c0d0e0f10f6"},
    {SHA,
     FIRST_SHA,
     next16,
     {{0}},
     0,
     "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf",
     2758186210834249151u,
     NULL},
    {SHA,
     ROOT_SHA,
     first16,
     {{"salt", 4, 0, 0}},
     1,
     "0222f5b704a8247ae4068ec648ea39b6a207f22cee65f086f86091a2d25fbd47",
     0,
     NULL},
    {SHA,
     ROOT_SHA,
     first16,
     {{"lora-a", 6, 0, 0}},
     1,
     "299bba42a4abf75c4002c66cf42b9bff3bdcf5452cdc6826e01a1ca3ec1218ea",
     0,
     NULL},
    {SHA,
     ROOT_SHA,
     first16,
     {{"lora-a", 6, 0, 0}, {IMAGE, IMAGE_BYTES, 1, -3}, {"salt", 4, 0, 0}},
     3,
     "bc72289b5916b06c00f78a18afda23b433187ca6bd0c6e445f5150c1b55200c1",
     6868359699617677505u,
     NULL},
    {SHA,
     FIRST_SHA,
     next16,
     {{IMAGE, IMAGE_BYTES, 1, 4}},
     1,
     "43ead709e049da2cbe613feaac9f320fdf456217295fb87050ae96f913701eb5",
     5813750165499027125u,
     NULL},
    {SHA,
     ROOT_SHA,
     wide16,
     {{0}},
     0,
     "8cf878107334886ee3833c0ab7e1c53c109c6e5c962a67ddecbcf98119b66b20",
     17058783821450079008u,
     "8358204e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e90"
     "1a0001f40019ffff1a0001000018ff190100171818000001020304050607f6"},
    {XXH,
     ROOT_XXH,
     first16,
     {{0}},
     0,
     FIRST_XXH,
     882618318818381833u,
     "83501ebe36576dcb573f26b99533a20aaeca900102030405060708090a0b0c0d0e0f10f"
     "6"},
    {XXH,
     FIRST_XXH,
     next16,
     {{0}},
     0,
     "93add93233ea572fb2e2b1685bac6f8d",
     12890060145260523405u,
     NULL},
};

static void blocks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *r = &rows[i];
        struct bt_engine_digest parent, d;

        parse(r->parent, &parent);
        assert_int_equal(bt_engine_hash_block(r->kind, &parent, r->tokens,
                                              BLOCK, r->extra, r->extra_count,
                                              &d),
                         BT_OK);
        expect_digest(&d, r->digest);
        if (r->event != 0)
            assert_true(bt_engine_digest_handle(&d) == r->event);
    }
}

static void hashed_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bt_engine_digest parent;
        struct heard h = {.bytes = 0};
        const struct eh_block block = {
            .parent = &parent, .tokens = rows[i].tokens, .token_count = BLOCK};

        if (rows[i].hashed == NULL)
            continue;
        parse(rows[i].parent, &parent);
        eh_encode_block(&block, hear, &h);
        assert_string_equal(h.hex, rows[i].hashed);
    }
}

/* Text, and the pair whose offset is -3 (0x22, engine-wire.md 2.7). */
static void extra_bytes(void **state)
{
    const struct bt_engine_extra extra[] = {{"lora-a", 6, 0, 0},
                                            {"ab", 2, 1, -3},
                                            {"ab", 2, 1, 4},
                                            {"ab", 2, 1, -500},
                                            {"", 0, 1, INT64_MIN}};
    const struct bt_engine_digest parent = {.bytes = {0xaa}, .size = 1};
    const struct eh_block block = {
        .parent = &parent, .extra = extra, .extra_count = 5};
    struct heard h = {.bytes = 0};

    (void)state;
    eh_encode_block(&block, hear, &h);
    assert_string_equal(h.hex, "83"
                               "41aa"
                               "80"
                               "85"
                               "666c6f72612d61"
                               "8262616222"
                               "8262616204"
                               "826261623901f3" /* RFC 8949: -500 = 3901f3 */
                               "82603b7fffffffffffffff");
}

/* Numbers of RFC 8949 appendix A, and both sides of each change of width. */
static void heads(void **state)
{
    static const uint32_t tokens[] = {0,     1,     10,      23,         24,
                                      25,    100,   255,     256,        1000,
                                      65535, 65536, 1000000, 4294967295u};
    const struct bt_engine_digest parent = {.size = 0};
    const struct eh_block block = {
        .parent = &parent, .tokens = tokens, .token_count = 14};
    struct heard h = {.bytes = 0};

    (void)state;
    eh_encode_block(&block, hear, &h);
    assert_string_equal(h.hex, "83408e"
                               "00010a17"
                               "181818191864"
                               "18ff1901001903e8"
                               "19ffff1a00010000"
                               "1a000f42401affffffff"
                               "f6");
}

/* Longer than the encoder gathers, by many short pieces and by one long one:
 * nothing is lost or doubled at the seams. */
static void long_blocks(void **state)
{
    static uint32_t tokens[300];
    static char text[700];
    const struct bt_engine_extra extra = {text, sizeof(text), 0, 0};
    const struct bt_engine_digest parent = {.size = 0};
    const struct eh_block block = {.parent = &parent,
                                   .tokens = tokens,
                                   .token_count = 300,
                                   .extra = &extra,
                                   .extra_count = 1};
    struct heard h = {.bytes = 0};
    char want[4096] = "834099012c", *at = want + 10;

    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        tokens[i] = 1000 + i;
        at += snprintf(at, 7, "19%04x", 1000u + i);
    }
    at += snprintf(at, 9, "817902bc");
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (char)('a' + i % 26);
        at += snprintf(at, 3, "%02x", (unsigned int)text[i]);
    }
    eh_encode_block(&block, hear, &h);
    assert_int_equal(h.bytes, 5 + 900 + 4 + 700);
    assert_string_equal(h.hex, want);
    assert_true(h.calls > 1 && h.calls < 20);
}

static void refusals(void **state)
{
    struct bt_engine_digest sha, d = {.size = 7};

    (void)state;
    parse(ROOT_SHA, &sha);
    assert_int_equal(bt_engine_hash_root(SHA, "", &d), BT_INVALID);
    assert_int_equal(bt_engine_hash_root(XXH, NULL, &d), BT_INVALID);
    assert_int_equal(bt_engine_hash_root(BT_ENGINE_HASH_NONE, "0", &d),
                     BT_INVALID);
    assert_int_equal(
        bt_engine_hash_block(XXH, &sha, first16, BLOCK, NULL, 0, &d),
        BT_INVALID);
    assert_int_equal(bt_engine_hash_block(BT_ENGINE_HASH_NONE, &sha, first16,
                                          BLOCK, NULL, 0, &d),
                     BT_INVALID);
    assert_int_equal(d.size, 7);
}

/* The parent may be overwritten by its child: a chain in one variable. */
static void in_place(void **state)
{
    struct bt_engine_digest d;

    (void)state;
    assert_int_equal(bt_engine_hash_root(SHA, "0", &d), BT_OK);
    assert_int_equal(bt_engine_hash_block(SHA, &d, first16, BLOCK, NULL, 0, &d),
                     BT_OK);
    assert_int_equal(bt_engine_hash_block(SHA, &d, next16, BLOCK, NULL, 0, &d),
                     BT_OK);
    assert_true(bt_engine_digest_handle(&d) == 2758186210834249151u);
}

static void names(void **state)
{
    enum bt_engine_hash kind = XXH;

    (void)state;
    assert_int_equal(bt_engine_hash_find("none", &kind), BT_OK);
    assert_int_equal(kind, BT_ENGINE_HASH_NONE);
    assert_int_equal(bt_engine_hash_find("sha256_cbor", &kind), BT_OK);
    assert_int_equal(kind, SHA);
    assert_int_equal(bt_engine_hash_find("xxhash_cbor", &kind), BT_OK);
    assert_int_equal(kind, XXH);
    assert_int_equal(bt_engine_hash_find("sha256", &kind), BT_NOT_FOUND);
    assert_int_equal(kind, XXH);
    assert_string_equal(bt_engine_hash_name(SHA), "sha256_cbor");
    assert_string_equal(bt_engine_hash_name(XXH), "xxhash_cbor");
    assert_string_equal(bt_engine_hash_name(BT_ENGINE_HASH_NONE), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roots),        cmocka_unit_test(blocks),
        cmocka_unit_test(hashed_bytes), cmocka_unit_test(extra_bytes),
        cmocka_unit_test(heads),        cmocka_unit_test(long_blocks),
        cmocka_unit_test(refusals),     cmocka_unit_test(in_place),
        cmocka_unit_test(names),
    };

    return cmocka_run_group_tests_name("engine_hash", tests, NULL, NULL);
}
