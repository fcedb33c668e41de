/* Control frames: one written out by hand, round trips of all, and every way
 * to spoil one that can be listed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/transfer/wire.h"

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint8_t buffer[BT_WIRE_FRAME_MAX + 16];
static uint64_t refs[BT_WIRE_OPEN_PART + 1];
static uint32_t blocks[BT_WIRE_GRANT_PART + 1];
static uint64_t hashes[BT_WIRE_GRANT_PART + 1];

#define TYPES  11u
#define FRAMES (TYPES + 2)

static void fill_greeting(struct bt_wire_frame *f)
{
    static const struct bt_kv_layout layout = {7, 16, 1u << 20,
                                               0x0123456789ABCDEFu};

    if (f->type == BT_WIRE_HELLO || f->type == BT_WIRE_WELCOME) {
        memcpy(f->name, "prefill-0", 10);
        f->layout = layout;
        f->session = 0x1122334455667788u;
    }
    if (f->type == BT_WIRE_HELLO) {
        memcpy(f->region_name, "kv", 3);
        f->rail = 7;
        f->flags = BT_WIRE_KEYED;
    }
    if (f->type == BT_WIRE_HELLO || f->type == BT_WIRE_CHALLENGE)
        memset(f->nonce, 0x5A, sizeof(f->nonce));
    if (f->type == BT_WIRE_CHALLENGE || f->type == BT_WIRE_PROVE)
        memset(f->proof, 0xC3, sizeof(f->proof));
    if (f->type == BT_WIRE_WELCOME) {
        f->region = 0x7f0011223344u;
        f->block_count = 4096;
        f->key_size = 12;
        memset(f->key, 0xA5, 12);
        f->rail_count = 2;
        memcpy(f->rails[0].address, "10.0.1.7", 9);
        f->rails[0].port = 4001;
        f->rails[1].port = 4002;
    }
}

/* One of each type, small; then the largest OPEN and GRANT. */
static struct bt_wire_frame sample(size_t i)
{
    struct bt_wire_frame f = {0};

    for (size_t k = 0; k < BT_WIRE_OPEN_PART; k++)
        refs[k] = k * 0x9E3779B97F4A7C15u;
    for (size_t k = 0; k < BT_WIRE_GRANT_PART; k++) {
        blocks[k] = (uint32_t)(k * 2654435761u);
        hashes[k] = ~(k * 0x9E3779B97F4A7C15u);
    }
    f.type = i < TYPES ? (enum bt_wire_type)(i + 1)
                       : (i == TYPES ? BT_WIRE_OPEN : BT_WIRE_GRANT);
    fill_greeting(&f);
    if (f.type == BT_WIRE_NO) {
        f.pull = 3;
        f.status = BT_LEASE_EXPIRED;
        memcpy(f.text, "the lease is over", 18);
    }
    if (f.type == BT_WIRE_OPEN || f.type == BT_WIRE_GRANT) {
        f.pull = 0xFFFFFFFFFFu;
        f.count = i < TYPES    ? 3
                  : i == TYPES ? BT_WIRE_OPEN_PART
                               : BT_WIRE_GRANT_PART;
        f.offset = 5;
        f.total = f.count + 9;
    }
    if (f.type == BT_WIRE_OPEN) {
        f.flags = BT_WIRE_CHECKSUMS;
        f.refs = refs;
    }
    if (f.type == BT_WIRE_GRANT) {
        f.blocks = blocks;
        f.hashes = hashes;
    }
    if (f.type == BT_WIRE_DONE) {
        f.pull = 77;
        f.flags = BT_WIRE_RELEASE;
    }
    if (f.type == BT_WIRE_OPEN || f.type == BT_WIRE_DONE ||
        f.type == BT_WIRE_BEAT)
        memcpy(f.request, "cmpl-1_2", 9);
    if (f.type == BT_WIRE_PING || f.type == BT_WIRE_PONG)
        f.token = 99;
    return f;
}

static size_t index_of(enum bt_wire_type type)
{
    return (size_t)type - 1;
}

static size_t encode(const struct bt_wire_frame *f)
{
    size_t used = 0;

    assert_int_equal(bt_wire_encode(f, buffer, BT_WIRE_FRAME_MAX, &used),
                     BT_OK);
    return used;
}

static void test_bytes_open(void **state)
{
    static const uint8_t want[] = {
        0x42, 0x4B, 2,   6,   52,  0,   0,   0,  /* BK, version, OPEN, 52 */
        0x02, 0x01, 0,   0,   0,   0,   0,   0,  /* pull 258 */
        1,                                       /* with checksums */
        6,    'r',  'e', 'q', '-', '1', '7',     /* request */
        2,    0,    0,   0,   0,   0,   0,   0,  /* total 2, offset 0 */
        2,    0,    0,   0,                      /* 2 here */
        1,    0,    0,   0,   0,   0,   0,   0,  /* 1 */
        8,    7,    6,   5,   4,   3,   2,   1}; /* 0x0102030405060708 */
    const uint64_t list[] = {1, 0x0102030405060708u};
    struct bt_wire_frame f = {.type = BT_WIRE_OPEN,
                              .pull = 258,
                              .flags = BT_WIRE_CHECKSUMS,
                              .request = "req-17",
                              .total = 2,
                              .count = 2,
                              .refs = list};
    struct bt_wire_frame got;

    (void)state;
    assert_int_equal(encode(&f), sizeof(want));
    assert_memory_equal(buffer, want, sizeof(want));
    assert_int_equal(bt_wire_decode(want, sizeof(want), &got), BT_OK);
    assert_true(bt_wire_ref(&got, 1) == 0x0102030405060708u);
}

static void test_bytes_hello(void **state)
{
    static const uint8_t want[] = {
        0x42, 0x4B, 2,   1,  64,  0,   0,  0, /* BK, version, HELLO, 64 */
        2,    'd',  '0', 2,  'k', 'v',        /* name, region */
        1,    0,    0,   0,  16,  0,   0,  0, /* layout: version, tokens */
        0,    0x10, 0,   0,  0,   0,   0,  0, /* bytes */
        0xED, 0xFE, 0,   0,  0,   0,   0,  0, /* model */
        3,    1,                              /* rail, keyed */
        9,    0,    0,   0,  0,   0,   0,  0, /* session */
        1,    2,    3,   4,  5,   6,   7,  8, /* nonce */
        9,    10,   11,  12, 13,  14,  15, 16};
    struct bt_wire_frame got;

    (void)state;
    assert_int_equal(bt_wire_decode(want, sizeof(want), &got), BT_OK);
    assert_int_equal(got.type, BT_WIRE_HELLO);
    assert_string_equal(got.name, "d0");
    assert_string_equal(got.region_name, "kv");
    assert_int_equal(got.layout.block_bytes, 4096);
    assert_int_equal(got.layout.model_hash, 0xFEED);
    assert_int_equal(got.rail, 3);
    assert_int_equal(got.flags, BT_WIRE_KEYED);
    assert_int_equal(got.session, 9);
    assert_int_equal(got.nonce[15], 16);
    assert_int_equal(encode(&got), sizeof(want));
    assert_memory_equal(buffer, want, sizeof(want));
}

static void test_bytes_grant(void **state)
{
    static const uint8_t want[] = {
        0x42, 0x4B, 2, 7, 52, 0, 0, 0, /* BK, version, GRANT, 52 */
        5,    0,    0, 0, 0,  0, 0, 0, /* pull 5 */
        3,    0,    0, 0, 1,  0, 0, 0, /* total 3, offset 1 */
        2,    0,    0, 0,              /* 2 here */
        7,    0,    0, 0, 1,  2, 3, 4, 5, 6, 7, 8,
        9,    1,    0, 0, 8,  0, 0, 0, 0, 0, 0, 0x80};
    struct bt_wire_frame got;

    (void)state;
    assert_int_equal(bt_wire_decode(want, sizeof(want), &got), BT_OK);
    assert_int_equal(got.offset, 1);
    assert_int_equal(bt_wire_block(&got, 0), 7);
    assert_true(bt_wire_hash(&got, 0) == 0x0807060504030201u);
    assert_int_equal(bt_wire_block(&got, 1), 265);
    assert_true(bt_wire_hash(&got, 1) == 0x8000000000000008u);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < FRAMES; i++) {
        struct bt_wire_frame f = sample(i), got;
        size_t used = encode(&f);

        assert_true(used <= BT_WIRE_FRAME_MAX - BT_WIRE_TAIL);
        assert_int_equal(bt_wire_decode(buffer, used, &got), BT_OK);
        for (uint32_t k = 0; k < f.count; k++) {
            if (f.type == BT_WIRE_OPEN) {
                assert_true(bt_wire_ref(&got, k) == refs[k]);
                continue;
            }
            assert_int_equal(bt_wire_block(&got, k), blocks[k]);
            assert_true(bt_wire_hash(&got, k) == hashes[k]);
        }
        f.refs = NULL;
        f.blocks = NULL;
        f.hashes = NULL;
        got.list = NULL;
        assert_memory_equal(&f, &got, sizeof(f));
    }
}

/* Every shorter copy is refused, in memory of its exact size, so that a read
 * past the end shows under ASan; so is one byte more. */
static void test_truncation(void **state)
{
    struct bt_wire_frame got;

    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        struct bt_wire_frame f = sample(i);
        size_t used = encode(&f);

        for (size_t n = 0; n < used; n++) {
            uint8_t *copy = malloc(n + 1);

            assert_non_null(copy);
            memcpy(copy, buffer, n);
            assert_int_equal(bt_wire_decode(copy, n, &got), BT_INVALID);
            if (n >= 8) { /* with a size field that matches */
                copy[4] = (uint8_t)n;
                copy[5] = (uint8_t)(n >> 8);
                copy = realloc(copy, n);
                assert_non_null(copy);
                assert_int_equal(bt_wire_decode(copy, n, &got), BT_INVALID);
            }
            free(copy);
        }
        buffer[used] = 0;
        assert_int_equal(bt_wire_decode(buffer, used + 1, &got), BT_INVALID);
        buffer[4] = (uint8_t)(used + 1);
        assert_int_equal(bt_wire_decode(buffer, used + 1, &got), BT_INVALID);
    }
}

static void test_spoiled(void **state)
{
    struct bt_wire_frame f = sample(index_of(BT_WIRE_PONG)), got;
    size_t used = encode(&f);

    (void)state;
    for (int version = 0; version < 256; version++) {
        buffer[2] = (uint8_t)version;
        assert_int_equal(bt_wire_decode(buffer, used, &got),
                         version == BT_WIRE_VERSION ? BT_OK : BT_INCOMPATIBLE);
    }
    buffer[2] = BT_WIRE_VERSION;
    buffer[0] ^= 1;
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_INVALID);
    buffer[0] ^= 1;
    buffer[3] = 0;
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_INVALID);
    buffer[3] = TYPES + 1;
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_INVALID);
    /* a name that would fill the field */
    f = sample(index_of(BT_WIRE_HELLO));
    used = encode(&f);
    buffer[8] = BT_KV_NAME_MAX;
    assert_int_equal(bt_wire_decode(buffer, sizeof(buffer), &got), BT_INVALID);
    /* a part outside its list: offset 5 + count 3 > total */
    f = sample(index_of(BT_WIRE_GRANT));
    used = encode(&f);
    buffer[16] = 7;
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_INVALID);
    buffer[16] = 8;
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_OK);
    buffer[18] = 2; /* total over BT_WIRE_LIST_MAX */
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_INVALID);
}

/* What ends up in logs holds no line ends, escapes or NULs. */
static void test_text(void **state)
{
    struct bt_wire_frame f = sample(index_of(BT_WIRE_BEAT)), got;
    size_t used = encode(&f);

    (void)state;
    for (int c = 0; c < 256; c++) {
        bool good = c >= ' ' && c != 0x7f;

        buffer[10] = (uint8_t)c;
        assert_int_equal(bt_wire_decode(buffer, used, &got),
                         good ? BT_OK : BT_INVALID);
    }
}

/* Counts that would reach past the fixed arrays. */
static void test_rails(void **state)
{
    struct bt_wire_frame f = sample(index_of(BT_WIRE_WELCOME)), got;
    size_t used = encode(&f);
    size_t at = used - (1 + 8 + 2) - (1 + 2) - 1; /* r, two rails after it */

    (void)state;
    assert_int_equal(buffer[at], 2);
    buffer[at] = BT_RAILS_MAX;
    assert_int_equal(bt_wire_decode(buffer, used, &got), BT_INVALID);
    f.rail_count = BT_RAILS_MAX;
    assert_int_equal(bt_wire_encode(&f, buffer, sizeof(buffer), &used),
                     BT_INVALID);
    f = sample(index_of(BT_WIRE_HELLO));
    f.rail = BT_RAILS_MAX;
    assert_int_equal(bt_wire_encode(&f, buffer, sizeof(buffer), &used),
                     BT_INVALID);
}

/* No single flipped bit makes the decoder read outside (ASan) or accept a
 * count that the bytes do not hold. */
static void test_bit_flips(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        struct bt_wire_frame f = sample(i), got;
        size_t used = encode(&f);
        uint8_t *copy = malloc(used);

        assert_non_null(copy);
        for (size_t bit = 0; bit < used * 8; bit++) {
            memcpy(copy, buffer, used);
            copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (bt_wire_decode(copy, used, &got) != BT_OK)
                continue;
            assert_true(got.count * 8 <= used);
            assert_true(got.rail_count < BT_RAILS_MAX);
            assert_true(strlen(got.request) <= BT_KV_REQUEST_MAX);
            if (got.count > 0 && got.type == BT_WIRE_OPEN)
                (void)bt_wire_ref(&got, got.count - 1);
            if (got.count > 0 && got.type == BT_WIRE_GRANT)
                (void)bt_wire_hash(&got, got.count - 1);
        }
        free(copy);
    }
}

static void test_encode_limits(void **state)
{
    struct bt_wire_frame f = sample(TYPES);
    size_t used = 77;

    (void)state;
    f.count++;
    f.total++;
    assert_int_equal(bt_wire_encode(&f, buffer, sizeof(buffer), &used),
                     BT_INVALID);
    f = sample(TYPES + 1);
    f.count++;
    f.total++;
    assert_int_equal(bt_wire_encode(&f, buffer, sizeof(buffer), &used),
                     BT_INVALID);
    f = sample(index_of(BT_WIRE_OPEN));
    memset(f.request, 'x', sizeof(f.request));
    assert_int_equal(bt_wire_encode(&f, buffer, sizeof(buffer), &used),
                     BT_INVALID);
    f = sample(index_of(BT_WIRE_WELCOME));
    f.key_size = BT_WIRE_KEY_MAX + 1;
    assert_int_equal(bt_wire_encode(&f, buffer, sizeof(buffer), &used),
                     BT_INVALID);
    f = sample(index_of(BT_WIRE_HELLO));
    for (size_t size = 0; size < encode(&f); size++)
        assert_int_equal(bt_wire_encode(&f, buffer, size, &used), BT_TOO_LARGE);
    assert_int_equal(used, 77);
}

static void test_layout_match(void **state)
{
    const struct bt_kv_layout a = {1, 16, 4096, 5};
    struct bt_kv_layout b = a;
    char text[100] = "untouched";

    (void)state;
    assert_int_equal(bt_wire_layout_match(&a, &b, text, sizeof(text)), BT_OK);
    assert_string_equal(text, "untouched");
    b.block_bytes = 8192;
    assert_int_equal(bt_wire_layout_match(&a, &b, text, sizeof(text)),
                     BT_INCOMPATIBLE);
    assert_string_equal(text, "block_bytes differs: source 4096, sink 8192");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_open),
        cmocka_unit_test(test_bytes_hello),
        cmocka_unit_test(test_bytes_grant),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_spoiled),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_rails),
        cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_encode_limits),
        cmocka_unit_test(test_layout_match),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
