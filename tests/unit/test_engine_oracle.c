/* The oracle against a second implementation written the slow way: whole KV in
 * memory, every digest from scratch, byte by byte; and the byte tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "baton/bench/oracle.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define TOKENS_MAX 300
#define GOLDEN     0x9e3779b97f4a7c15ULL

/* ---- the slow way ---- */

static uint64_t naive_chain(const struct bt_oracle *o, const uint32_t *tokens,
                            size_t upto)
{
    uint64_t h = bt_mix64(o->model_seed ^ bt_mix64(o->ns + GOLDEN));
    for (size_t t = 0; t <= upto; t++) {
        h = bt_mix64((h ^ tokens[t]) + GOLDEN);
    }
    return h;
}

/* Byte `at` of the row of a chain value in a layer. */
static unsigned char naive_byte(uint64_t chain, uint32_t layer, size_t at)
{
    uint64_t key = bt_mix64(chain + (layer + 1ULL) * GOLDEN);
    return (unsigned char)(bt_mix64(key ^ (at / 8 * GOLDEN)) >> (at % 8 * 8));
}

static uint64_t naive_digest(const struct bt_oracle *o, const uint32_t *tokens,
                             size_t rows, size_t block)
{
    static unsigned char bytes[1 << 16];
    size_t row = o->kv_bytes_per_token / o->layers;
    size_t first = block * o->block_tokens;
    size_t filled =
        rows - first < o->block_tokens ? rows - first : o->block_tokens;
    uint64_t digest = filled;
    for (uint32_t layer = 0; layer < o->layers; layer++) {
        for (size_t s = 0; s < filled; s++) {
            uint64_t chain = naive_chain(o, tokens, first + s);
            for (size_t i = 0; i < row; i++) {
                bytes[s * row + i] = naive_byte(chain, layer, i);
            }
        }
        digest = bt_mix64(digest) ^ XXH3_64bits(bytes, filled * row);
    }
    return digest;
}

static uint64_t naive_absorb(uint64_t state, uint64_t digest)
{
    return bt_mix64(bt_mix64(state + GOLDEN) ^ digest);
}

static void naive_output(const struct bt_oracle *o, const uint32_t *prompt,
                         size_t count, size_t n_out, uint32_t *out)
{
    static const char alphabet[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
    uint32_t tokens[TOKENS_MAX];
    memcpy(tokens, prompt, count * sizeof(*prompt));
    size_t size = o->block_tokens, rows = count;
    uint64_t state = bt_mix64(o->model_seed ^ bt_mix64(o->ns + GOLDEN));
    for (size_t b = 0; b < (rows + size - 1) / size; b++) {
        state = naive_absorb(state, naive_digest(o, tokens, rows, b));
    }
    for (size_t i = 0; i < n_out; i++) {
        out[i] = (unsigned char)alphabet[state >> 58];
        tokens[rows++] = out[i];
        size_t b = i % ((rows + size - 1) / size);
        state = naive_absorb(state, naive_digest(o, tokens, rows, b));
    }
}

/* ---- tests ---- */

static void equals_naive(void **state)
{
    (void)state;
    const uint64_t seed = 20261129;
    const struct {
        uint32_t block, bytes, layers;
    } shapes[] = {{16, 256, 4}, {4, 32, 2}, {1, 8, 1}, {7, 120, 3}};
    struct bt_rng rng;
    bt_rng_seed(&rng, seed);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 24; round++) {
        struct bt_oracle o;
        bt_oracle_init(&o, "m", bt_rng_u64(&rng), bt_rng_u64(&rng));
        o.block_tokens = shapes[round % 4].block;
        o.kv_bytes_per_token = shapes[round % 4].bytes;
        o.layers = shapes[round % 4].layers;
        size_t count = 1 + bt_rng_below(&rng, 70);
        size_t n_out = bt_rng_below(&rng, 40);
        uint32_t prompt[TOKENS_MAX], want[64], got[64];
        for (size_t i = 0; i < count; i++) {
            prompt[i] = (uint32_t)bt_rng_u64(&rng);
        }
        naive_output(&o, prompt, count, n_out, want);
        assert_int_equal(bt_oracle_output(&o, prompt, count, n_out, got),
                         BT_OK);
        assert_memory_equal(got, want, n_out * sizeof(*got));
    }
}

static void output_of(uint64_t ns, uint64_t seed, uint32_t change, char *text)
{
    struct bt_oracle o;
    uint32_t prompt[50], out[32];
    bt_oracle_init(&o, "demo", seed, ns);
    for (uint32_t i = 0; i < 50; i++) {
        prompt[i] = i + (i == change);
    }
    assert_int_equal(bt_oracle_output(&o, prompt, 50, 32, out), BT_OK);
    for (int i = 0; i < 32; i++) {
        text[i] = (char)out[i];
    }
}

static void everything_matters(void **state)
{
    (void)state;
    char base[32], other[32];
    output_of(1337, 0, 99, base);
    output_of(1338, 0, 99, other);
    assert_memory_not_equal(base, other, 32);
    output_of(1337, 1, 99, other);
    assert_memory_not_equal(base, other, 32);
    for (uint32_t at = 0; at < 50; at++) {
        output_of(1337, 0, at, other);
        assert_memory_not_equal(base, other, 32);
    }
}

static void unusable_sizes(void **state)
{
    (void)state;
    struct bt_oracle o;
    uint32_t token = 1, out = 7;
    bt_oracle_init(&o, "m", 0, 1337);
    assert_true(bt_oracle_valid(&o));
    assert_int_equal(bt_oracle_output(&o, &token, 0, 1, &out), BT_INVALID);
    o.layers = 3; /* 256 / 3 */
    assert_false(bt_oracle_valid(&o));
    o.layers = 64; /* rows of 4 bytes */
    assert_false(bt_oracle_valid(&o));
    o.layers = 0;
    assert_int_equal(bt_oracle_output(&o, &token, 1, 1, &out), BT_INVALID);
    assert_int_equal(out, 7);
}

static void expect_tokens(const uint32_t *tokens, size_t count,
                          const char *text)
{
    assert_int_equal(count, strlen(text));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(tokens[i], (unsigned char)text[i]);
    }
}

/* The JSON tokenizer as the others are called: out[*count ...]. */
static enum bt_status from_json(const char *json, bool chat, uint32_t *out,
                                size_t max, size_t *count)
{
    struct bt_bytes_prompt p = {.tokens = out, .max = max, .count = *count};
    enum bt_status status =
        bt_bytes_tokenize_json(json, strlen(json), chat, &p);

    if (status == BT_OK)
        *count = p.count;
    return status;
}

static void tokenizes_json(void **state)
{
    (void)state;
    uint32_t out[128];
    size_t count = 0;
    const char *prompt = "\"h\\u00e9\\n\"";
    assert_int_equal(from_json(prompt, false, out, 128, &count), BT_OK);
    expect_tokens(out, count, "h\xc3\xa9\n");
    const char *chat =
        "[{\"role\":\"system\",\"content\":\"be brief\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"image_url\"},{\"type\":\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"tool\",\"content\":null}]";
    count = 0;
    assert_int_equal(from_json(chat, true, out, 128, &count), BT_OK);
    expect_tokens(out, count,
                  "<|system|>be brief\n<|user|>ab\n<|tool|>\n<|assistant|>");
}

static void tokenizer_keeps_its_room(void **state)
{
    (void)state;
    uint32_t out[8] = {0};
    size_t count = 0;
    assert_int_equal(from_json("\"abcd\"", false, out, 3, &count),
                     BT_TOO_LARGE);
    assert_int_equal(from_json("\"abcd\"", false, out, 4, &count), BT_OK);
    assert_int_equal(count, 4);
    assert_int_equal(bt_bytes_tokenize_text("x", 1, out, 4, &count),
                     BT_TOO_LARGE);
    assert_int_equal(from_json("7", false, out, 8, &count), BT_TYPE);
    assert_int_equal(from_json("[7]", true, out, 8, &count), BT_TYPE);
    assert_int_equal(from_json("[", true, out, 8, &count), BT_INVALID);
    assert_int_equal(out[4], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_naive),
        cmocka_unit_test(everything_matters),
        cmocka_unit_test(unusable_sizes),
        cmocka_unit_test(tokenizes_json),
        cmocka_unit_test(tokenizer_keeps_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
