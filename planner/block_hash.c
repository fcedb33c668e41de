/* Own block keys by XXH3-64. Decides the bytes that are hashed (tokens as
 * little-endian u32, then the sorted multimodal hashes) and how blocks chain;
 * leaves to callers which tokens make a block and which namespace applies.
 *
 * Invariant: the same bytes on every host, whatever its byte order.
 */
#include "baton/planner/block_hash.h"

#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#define CHAIN_SEED 1337u
#define MM_MAX     64
#define MM_DIGITS  64 /* hex digits of an identifier that is a digest */
#define TAG        "dynamo-cache-salt:"

static bool host_is_little(void)
{
    const uint16_t probe = 1;
    unsigned char first;

    memcpy(&first, &probe, 1);
    return first == 1;
}

static void put_u32(unsigned char *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(v >> (8 * i));
}

static void put_u64(unsigned char *to, uint64_t v)
{
    put_u32(to, (uint32_t)v);
    put_u32(to + 4, (uint32_t)(v >> 32));
}

uint64_t bt_ns_seed(const char *lora, size_t lora_bytes, const char *salt,
                    size_t salt_bytes)
{
    const size_t tag_bytes = sizeof(TAG) - 1;
    uint64_t ns = BT_NS_PLAIN;

    if (lora != NULL && lora_bytes > 0)
        ns += XXH3_64bits_withSeed(lora, lora_bytes, 0);
    if (salt == NULL)
        return ns;
    if (salt_bytes >= tag_bytes && memcmp(salt, TAG, tag_bytes) == 0) {
        salt += tag_bytes;
        salt_bytes -= tag_bytes;
    }
    if (salt_bytes > 0)
        ns += XXH3_64bits_withSeed(salt, salt_bytes, 1);
    return ns;
}

static void sort_u64(uint64_t *v, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        uint64_t x = v[i];
        size_t j = i;

        for (; j > 0 && v[j - 1] > x; j--)
            v[j] = v[j - 1];
        v[j] = x;
    }
}

static void feed_tokens(XXH3_state_t *state, const uint32_t *tokens,
                        size_t count)
{
    unsigned char bytes[4];

    if (host_is_little()) {
        XXH3_64bits_update(state, tokens, count * sizeof(*tokens));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        put_u32(bytes, tokens[i]);
        XXH3_64bits_update(state, bytes, sizeof(bytes));
    }
}

static void feed_mm(XXH3_state_t *state, const uint64_t *mm, size_t mm_count)
{
    uint64_t sorted[MM_MAX];
    unsigned char bytes[8];

    if (mm_count > MM_MAX)
        mm_count = MM_MAX;
    memcpy(sorted, mm, mm_count * sizeof(*mm));
    sort_u64(sorted, mm_count);
    for (size_t i = 0; i < mm_count; i++) {
        put_u64(bytes, sorted[i]);
        XXH3_64bits_update(state, bytes, sizeof(bytes));
    }
}

uint64_t bt_block_local(const uint32_t *tokens, size_t count,
                        const uint64_t *mm, size_t mm_count, uint64_t ns)
{
    XXH3_state_t state;

    if (mm == NULL)
        mm_count = 0;
    if (mm_count == 0 && host_is_little())
        return XXH3_64bits_withSeed(tokens, count * sizeof(*tokens), ns);
    XXH3_64bits_reset_withSeed(&state, ns);
    if (count > 0)
        feed_tokens(&state, tokens, count);
    if (mm_count > 0)
        feed_mm(&state, mm, mm_count);
    return XXH3_64bits_digest(&state);
}

uint64_t bt_block_chain(uint64_t parent_key, uint64_t local)
{
    unsigned char bytes[16];

    put_u64(bytes, parent_key);
    put_u64(bytes + 8, local);
    return XXH3_64bits_withSeed(bytes, sizeof(bytes), CHAIN_SEED);
}

/* Chained keys of windows of block_tokens + over tokens, one every
 * block_tokens; `blocks` of them are there. */
static size_t window_keys(const uint32_t *tokens, size_t blocks,
                          uint32_t block_tokens, uint32_t over, uint64_t ns,
                          uint64_t *keys_out)
{
    uint64_t key = 0;

    for (size_t i = 0; i < blocks; i++) {
        uint64_t local =
            bt_block_local(tokens + i * block_tokens,
                           (size_t)block_tokens + over, NULL, 0, ns);

        key = i == 0 ? local : bt_block_chain(key, local);
        keys_out[i] = key;
    }
    return blocks;
}

static size_t blocks_in(size_t count, uint32_t block_tokens, size_t keys_max)
{
    size_t blocks = block_tokens == 0 ? 0 : count / block_tokens;

    return blocks < keys_max ? blocks : keys_max;
}

size_t bt_block_keys(const uint32_t *tokens, size_t count,
                     uint32_t block_tokens, uint64_t ns, uint64_t *keys_out,
                     size_t keys_max)
{
    return window_keys(tokens, blocks_in(count, block_tokens, keys_max),
                       block_tokens, 0, ns, keys_out);
}

size_t bt_block_keys_eagle(const uint32_t *tokens, size_t count,
                           uint32_t block_tokens, uint64_t ns,
                           uint64_t *keys_out, size_t keys_max)
{
    if (count == 0)
        return 0;
    return window_keys(tokens, blocks_in(count - 1, block_tokens, keys_max),
                       block_tokens, 1, ns, keys_out);
}

/* Value of a hex digit, -1 for any other character. */
static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

uint64_t bt_mm_hash(const char *identifier, size_t bytes)
{
    uint64_t head = 0;
    bool digest = bytes == MM_DIGITS;

    for (size_t i = 0; digest && i < bytes; i++) {
        int v = hex_value(identifier[i]);

        digest = v >= 0;
        if (i < 16)
            head = head << 4 | (uint64_t)(v & 15);
    }
    return digest ? head : XXH3_64bits_withSeed(identifier, bytes, 0);
}
