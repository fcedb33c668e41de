/* Writes KV event batches in msgpack for tests and fuzzing; a second, plain
 * implementation of the wire format (engine-wire.md 1.5, 1.6). What does not
 * fit is left out, and the pack is marked. */
#ifndef BATON_TEST_KV_PACK_H
#define BATON_TEST_KV_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pk {
    unsigned char *at;
    size_t used, max;
    bool full;
};

static inline void pk_raw(struct pk *p, const void *bytes, size_t count)
{
    if (count > p->max - p->used) {
        p->full = true;
        return;
    }
    memcpy(p->at + p->used, bytes, count);
    p->used += count;
}

/* A marker, then `width` bytes of v, highest first. */
static inline void pk_be(struct pk *p, unsigned marker, uint64_t v,
                         unsigned width)
{
    unsigned char b[9] = {(unsigned char)marker};
    for (unsigned i = 0; i < width; i++)
        b[1 + i] = (unsigned char)(v >> 8 * (width - 1 - i));
    pk_raw(p, b, 1 + width);
}

static inline void pk_nil(struct pk *p)
{
    pk_be(p, 0xc0, 0, 0);
}

static inline void pk_uint(struct pk *p, uint64_t v)
{
    if (v < 0x80)
        pk_be(p, (unsigned)v, 0, 0);
    else if (v <= UINT8_MAX)
        pk_be(p, 0xcc, v, 1);
    else if (v <= UINT16_MAX)
        pk_be(p, 0xcd, v, 2);
    else if (v <= UINT32_MAX)
        pk_be(p, 0xce, v, 4);
    else
        pk_be(p, 0xcf, v, 8);
}

/* SGLang's and early vLLM's: signed 64 bits. */
static inline void pk_int64(struct pk *p, int64_t v)
{
    pk_be(p, 0xd3, (uint64_t)v, 8);
}

static inline void pk_float(struct pk *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    pk_be(p, 0xcb, bits, 8);
}

static inline void pk_list(struct pk *p, size_t count)
{
    if (count < 16)
        pk_be(p, 0x90 | (unsigned)count, 0, 0);
    else if (count <= UINT16_MAX)
        pk_be(p, 0xdc, count, 2);
    else
        pk_be(p, 0xdd, count, 4);
}

static inline void pk_map(struct pk *p, size_t pairs)
{
    if (pairs < 16)
        pk_be(p, 0x80 | (unsigned)pairs, 0, 0);
    else
        pk_be(p, 0xde, pairs, 2);
}

static inline void pk_str(struct pk *p, const char *text)
{
    size_t n = strlen(text);
    if (n < 32)
        pk_be(p, 0xa0 | (unsigned)n, 0, 0);
    else
        pk_be(p, 0xd9, n, 1);
    pk_raw(p, text, n);
}

static inline void pk_bin(struct pk *p, const void *bytes, size_t count)
{
    pk_be(p, 0xc4, count, 1);
    pk_raw(p, bytes, count);
}

/* [ts, [event * count ...: the caller writes the events next. */
static inline void pk_batch(struct pk *p, size_t events)
{
    pk_list(p, 2);
    pk_float(p, 1.0);
    pk_list(p, events);
}

/* A store in vLLM's map form; what is NULL or 0 and may be left out is. */
struct pk_store {
    const uint64_t *hashes;
    size_t hash_count;
    const uint64_t *parent;
    const uint32_t *tokens;
    size_t token_count;
    uint32_t block_tokens;
    const char *medium, *lora, *salt;
    const char *const *images; /* identifier per block, or NULL: none there */
    const char *kind;
    int group; /* group_idx + 1 */
};

static inline void pk_hashes(struct pk *p, const uint64_t *hashes, size_t count)
{
    pk_list(p, count);
    for (size_t i = 0; i < count; i++)
        pk_uint(p, hashes[i]);
}

static inline void pk_text(struct pk *p, const char *name, const char *value)
{
    pk_str(p, name);
    if (value != NULL)
        pk_str(p, value);
    else
        pk_nil(p);
}

static inline void pk_images(struct pk *p, const struct pk_store *s)
{
    pk_str(p, "extra_keys");
    pk_list(p, s->hash_count);
    for (size_t i = 0; i < s->hash_count; i++) {
        if (s->images[i] == NULL) {
            pk_nil(p);
            continue;
        }
        pk_list(p, 1);
        pk_list(p, 2);
        pk_str(p, s->images[i]);
        pk_uint(p, 0);
    }
}

static inline void pk_stored(struct pk *p, const struct pk_store *s)
{
    pk_map(p, 8u + (s->salt != NULL) + (s->images != NULL) + (s->kind != NULL) +
                  (s->group != 0));
    pk_text(p, "type", "BlockStored");
    pk_str(p, "block_hashes");
    pk_hashes(p, s->hashes, s->hash_count);
    pk_str(p, "parent_block_hash");
    if (s->parent != NULL)
        pk_uint(p, *s->parent);
    else
        pk_nil(p);
    pk_str(p, "token_ids");
    pk_list(p, s->token_count);
    for (size_t i = 0; i < s->token_count; i++)
        pk_uint(p, s->tokens[i]);
    pk_str(p, "block_size");
    pk_uint(p, s->block_tokens);
    pk_text(p, "lora_id", NULL);
    pk_text(p, "medium", s->medium);
    pk_text(p, "lora_name", s->lora);
    if (s->salt != NULL)
        pk_text(p, "cache_salt", s->salt);
    if (s->images != NULL)
        pk_images(p, s);
    if (s->group != 0) {
        pk_str(p, "group_idx");
        pk_uint(p, (uint64_t)s->group - 1);
    }
    if (s->kind != NULL)
        pk_text(p, "kv_cache_spec_kind", s->kind);
}

static inline void pk_removed(struct pk *p, const uint64_t *hashes,
                              size_t count, const char *medium)
{
    pk_map(p, 3);
    pk_text(p, "type", "BlockRemoved");
    pk_str(p, "block_hashes");
    pk_hashes(p, hashes, count);
    pk_text(p, "medium", medium);
}

#endif
