/* Content of KV rows, digests of blocks and the output they lead to: the
 * functions of oracle.h. Decides nothing about where blocks live (block_pool)
 * or when (scheduler).
 *
 * Invariants: a row depends on the token prefix, namespace, model seed and
 * layer only; a digest depends on the filled slots only, so bytes beyond them
 * may be anything. Words are written little-endian on every host.
 */
#include "baton/bench/oracle.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define GOLDEN 0x9e3779b97f4a7c15ULL

static const char alphabet[65] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";

/* The same bijection as bt_mix64, inlined: it runs once per 8 bytes of KV. */
static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

void bt_oracle_init(struct bt_oracle *o, const char *model, uint64_t seed,
                    uint64_t ns)
{
    o->model_seed = XXH3_64bits_withSeed(model, strlen(model), seed);
    o->ns = ns;
    o->block_tokens = BT_ORACLE_BLOCK;
    o->kv_bytes_per_token = BT_ORACLE_KV_BYTES;
    o->layers = BT_ORACLE_LAYERS;
}

bool bt_oracle_valid(const struct bt_oracle *o)
{
    if (o->block_tokens == 0 || o->block_tokens > 4096 || o->layers == 0) {
        return false;
    }
    if (o->kv_bytes_per_token == 0 || o->kv_bytes_per_token > 1u << 24) {
        return false;
    }
    return o->kv_bytes_per_token % o->layers == 0 &&
           o->kv_bytes_per_token / o->layers % 8 == 0;
}

uint64_t bt_oracle_block_bytes(const struct bt_oracle *o)
{
    return (uint64_t)o->block_tokens * o->kv_bytes_per_token;
}

uint64_t bt_oracle_root(const struct bt_oracle *o)
{
    return mix(o->model_seed ^ mix(o->ns + GOLDEN));
}

uint64_t bt_oracle_next(uint64_t chain, uint32_t token)
{
    return mix((chain ^ token) + GOLDEN);
}

void bt_oracle_row_write(const struct bt_oracle *o, uint64_t chain,
                         unsigned char *block, uint32_t slot)
{
    size_t row = o->kv_bytes_per_token / o->layers;
    for (uint32_t layer = 0; layer < o->layers; layer++) {
        uint64_t key = mix(chain + (layer + 1ULL) * GOLDEN);
        unsigned char *at = block + (layer * o->block_tokens + slot) * row;
        for (size_t w = 0; w < row / 8; w++) {
            uint64_t word = htole64(mix(key ^ (w * GOLDEN)));
            memcpy(at + w * 8, &word, 8);
        }
    }
}

uint64_t bt_oracle_digest(const struct bt_oracle *o, const unsigned char *block,
                          uint32_t filled)
{
    size_t row = o->kv_bytes_per_token / o->layers;
    uint64_t digest = filled;
    for (uint32_t layer = 0; layer < o->layers; layer++) {
        const unsigned char *at = block + layer * o->block_tokens * row;
        digest = mix(digest) ^ XXH3_64bits(at, filled * row);
    }
    return digest;
}

uint64_t bt_oracle_absorb(uint64_t state, uint64_t digest)
{
    return mix(mix(state + GOLDEN) ^ digest);
}

uint32_t bt_oracle_token(uint64_t state)
{
    return (unsigned char)alphabet[state >> 58];
}

/* The oracle keeps the digests of full blocks and the bytes of the last one. */
struct replay {
    const struct bt_oracle *o;
    unsigned char *last;
    uint64_t *full; /* digests */
    size_t full_count;
    uint64_t chain;
    uint32_t filled; /* slots of `last` */
};

static void replay_push(struct replay *r, uint32_t token)
{
    r->chain = bt_oracle_next(r->chain, token);
    bt_oracle_row_write(r->o, r->chain, r->last, r->filled++);
    if (r->filled == r->o->block_tokens) {
        r->full[r->full_count++] = bt_oracle_digest(r->o, r->last, r->filled);
        r->filled = 0;
    }
}

static uint64_t replay_digest(const struct replay *r, size_t block)
{
    if (block < r->full_count) {
        return r->full[block];
    }
    return bt_oracle_digest(r->o, r->last, r->filled);
}

static size_t replay_blocks(const struct replay *r)
{
    return r->full_count + (r->filled > 0);
}

enum bt_status bt_oracle_output(const struct bt_oracle *o,
                                const uint32_t *tokens, size_t count,
                                size_t n_out, uint32_t *out)
{
    if (!bt_oracle_valid(o) || count == 0 || count > UINT32_MAX ||
        n_out > UINT32_MAX) {
        return BT_INVALID;
    }
    struct replay r = {.o = o, .chain = bt_oracle_root(o)};
    r.last = malloc(bt_oracle_block_bytes(o));
    r.full = malloc(((count + n_out) / o->block_tokens + 1) * sizeof(*r.full));
    enum bt_status status = BT_NO_MEMORY;
    if (r.last == NULL || r.full == NULL) {
        goto undo;
    }
    for (size_t t = 0; t < count; t++) {
        replay_push(&r, tokens[t]);
    }
    uint64_t state = bt_oracle_root(o);
    for (size_t b = 0; b < replay_blocks(&r); b++) {
        state = bt_oracle_absorb(state, replay_digest(&r, b));
    }
    for (size_t i = 0; i < n_out; i++) {
        out[i] = bt_oracle_token(state);
        replay_push(&r, out[i]);
        size_t at = i % replay_blocks(&r);
        state = bt_oracle_absorb(state, replay_digest(&r, at));
    }
    status = BT_OK;
undo:
    free(r.full);
    free(r.last);
    return status;
}
