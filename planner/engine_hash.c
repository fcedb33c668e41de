/* vLLM's CBOR block digests. Decides the bytes (engine-wire.md 2.7: canonical
 * CBOR of parent, tokens, extra keys) and how they reach the hash; leaves
 * SHA-256 to nettle, XXH3 to xxhash, and which extra keys a block has to the
 * caller.
 *
 * Canonical: every length and number has the shortest head there is, no
 * indefinite lengths. Bytes are passed on as they arise, so a block of any size
 * needs the same stack.
 */
#include "engine_hash_impl.h"

#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <assert.h>
#include <nettle/sha2.h>
#include <string.h>
#include <xxhash.h>

/* ---- CBOR (RFC 8949 section 3), the five major types that occur ---- */

enum major {
    MAJOR_UINT = 0,
    MAJOR_NEGATIVE = 1,
    MAJOR_BYTES = 2,
    MAJOR_TEXT = 3,
    MAJOR_ARRAY = 4
};
#define CBOR_NULL 0xf6u

/* Gathers short pieces, so that a token is not one call of the hash. */
struct writer {
    eh_bytes_fn sink;
    void *arg;
    size_t used;
    unsigned char buffer[256];
};

static void flush(struct writer *w)
{
    if (w->used > 0)
        w->sink(w->arg, w->buffer, w->used);
    w->used = 0;
}

static void put(struct writer *w, const void *bytes, size_t size)
{
    if (size > sizeof(w->buffer) - w->used)
        flush(w);
    if (size > sizeof(w->buffer)) {
        w->sink(w->arg, bytes, size);
        return;
    }
    if (size > 0)
        memcpy(w->buffer + w->used, bytes, size);
    w->used += size;
}

/* Up to 23 the value is in the first byte; 24..27 there say that 1, 2, 4 or 8
 * bytes follow, highest first. */
static void put_head(struct writer *w, enum major major, uint64_t value)
{
    unsigned int wide =
        (value > UINT8_MAX) + (value > UINT16_MAX) + (value > UINT32_MAX);
    unsigned int more = value < 24 ? 0 : 1u << wide;
    unsigned int info = value < 24 ? (unsigned int)value : 24 + wide;
    unsigned char head[9];

    head[0] = (unsigned char)((unsigned int)major << 5 | info);
    for (unsigned int i = 0; i < more; i++)
        head[1 + i] = (unsigned char)(value >> (8 * (more - 1 - i)));
    put(w, head, 1 + more);
}

static void put_string(struct writer *w, enum major major, const void *bytes,
                       size_t size)
{
    put_head(w, major, size);
    put(w, bytes, size);
}

/* A negative number n is written as -1 - n. */
static void put_int(struct writer *w, int64_t value)
{
    if (value >= 0)
        put_head(w, MAJOR_UINT, (uint64_t)value);
    else
        put_head(w, MAJOR_NEGATIVE, (uint64_t)(-1 - value));
}

static void put_extra(struct writer *w, const struct bt_engine_extra *extra,
                      size_t count)
{
    static const unsigned char null = CBOR_NULL;

    if (extra == NULL || count == 0) {
        put(w, &null, 1);
        return;
    }
    put_head(w, MAJOR_ARRAY, count);
    for (size_t i = 0; i < count; i++) {
        if (extra[i].has_offset)
            put_head(w, MAJOR_ARRAY, 2);
        put_string(w, MAJOR_TEXT, extra[i].text, extra[i].bytes);
        if (extra[i].has_offset)
            put_int(w, extra[i].offset);
    }
}

void eh_encode_block(const struct eh_block *block, eh_bytes_fn sink, void *arg)
{
    struct writer w = {.sink = sink, .arg = arg};

    put_head(&w, MAJOR_ARRAY, 3);
    put_string(&w, MAJOR_BYTES, block->parent->bytes, block->parent->size);
    put_head(&w, MAJOR_ARRAY, block->token_count);
    for (size_t i = 0; i < block->token_count; i++)
        put_head(&w, MAJOR_UINT, block->tokens[i]);
    put_extra(&w, block->extra, block->extra_count);
    flush(&w);
}

void eh_encode_text(const char *text, size_t size, eh_bytes_fn sink, void *arg)
{
    struct writer w = {.sink = sink, .arg = arg};

    put_string(&w, MAJOR_TEXT, text, size);
    flush(&w);
}

/* ---- hashes ---- */

static const struct {
    const char *name;
    uint32_t digest_bytes;
} kinds[] = {
    [BT_ENGINE_HASH_NONE] = {"none", 0},
    [BT_ENGINE_HASH_SHA256_CBOR] = {"sha256_cbor", SHA256_DIGEST_SIZE},
    [BT_ENGINE_HASH_XXHASH_CBOR] = {"xxhash_cbor", sizeof(XXH128_canonical_t)},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

enum bt_status bt_engine_hash_find(const char *name, enum bt_engine_hash *out)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            *out = (enum bt_engine_hash)i;
            return BT_OK;
        }
    }
    return BT_NOT_FOUND;
}

const char *bt_engine_hash_name(enum bt_engine_hash kind)
{
    assert((size_t)kind < KINDS);
    return kinds[kind].name;
}

uint64_t bt_engine_digest_handle(const struct bt_engine_digest *digest)
{
    uint64_t handle = 0;

    assert(digest->size >= 8 && digest->size <= sizeof(digest->bytes));
    for (uint32_t i = digest->size - 8; i < digest->size; i++)
        handle = handle << 8 | digest->bytes[i];
    return handle;
}

struct hash {
    enum bt_engine_hash kind;
    union {
        struct sha256_ctx sha;
        XXH3_state_t xxh;
    } state;
};

static void hash_start(struct hash *h, enum bt_engine_hash kind)
{
    h->kind = kind;
    if (kind == BT_ENGINE_HASH_SHA256_CBOR)
        sha256_init(&h->state.sha);
    else
        XXH3_128bits_reset(&h->state.xxh);
}

/* An eh_bytes_fn. */
static void hash_more(void *arg, const unsigned char *bytes, size_t size)
{
    struct hash *h = arg;

    if (h->kind == BT_ENGINE_HASH_SHA256_CBOR)
        sha256_update(&h->state.sha, size, bytes);
    else
        XXH3_128bits_update(&h->state.xxh, bytes, size);
}

static void hash_end(struct hash *h, struct bt_engine_digest *out)
{
    XXH128_canonical_t canonical;

    memset(out, 0, sizeof(*out));
    out->size = kinds[h->kind].digest_bytes;
    if (h->kind == BT_ENGINE_HASH_SHA256_CBOR) {
        sha256_digest(&h->state.sha, out->size, out->bytes);
        return;
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&h->state.xxh));
    memcpy(out->bytes, canonical.digest, out->size);
}

enum bt_status bt_engine_hash_root(enum bt_engine_hash kind, const char *seed,
                                   struct bt_engine_digest *out)
{
    struct hash h;

    assert((size_t)kind < KINDS);
    if (kind == BT_ENGINE_HASH_NONE || seed == NULL || seed[0] == '\0')
        return BT_INVALID;
    hash_start(&h, kind);
    eh_encode_text(seed, strlen(seed), hash_more, &h);
    hash_end(&h, out);
    return BT_OK;
}

enum bt_status bt_engine_hash_block(enum bt_engine_hash kind,
                                    const struct bt_engine_digest *parent,
                                    const uint32_t *tokens, size_t token_count,
                                    const struct bt_engine_extra *extra,
                                    size_t extra_count,
                                    struct bt_engine_digest *out)
{
    const struct eh_block block = {.parent = parent,
                                   .tokens = tokens,
                                   .token_count = token_count,
                                   .extra = extra,
                                   .extra_count = extra_count};
    struct hash h;

    assert((size_t)kind < KINDS);
    if (kind == BT_ENGINE_HASH_NONE || parent->size != kinds[kind].digest_bytes)
        return BT_INVALID;
    hash_start(&h, kind);
    eh_encode_block(&block, hash_more, &h);
    hash_end(&h, out);
    return BT_OK;
}
