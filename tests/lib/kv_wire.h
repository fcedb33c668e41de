/* Writes KV event batches as an engine does (array batch, map events), for
 * tests of the event plane. Independent of the decoder and of the emulated
 * engine. */
#ifndef BATON_TESTS_KV_WIRE_H
#define BATON_TESTS_KV_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KV_WIRE_MAX 65536

struct kv_wire {
    unsigned char at[KV_WIRE_MAX];
    size_t bytes, events_at;
    uint16_t events;
};

struct kv_wire_store {
    const uint64_t *hashes;
    size_t count;
    bool has_parent;
    uint64_t parent;
    const uint32_t *tokens; /* count * size, or NULL: first, first + 1, ... */
    uint32_t first;
    uint32_t token_count; /* 0: count * size */
    uint32_t size;
    const char *medium, *lora, *salt, *kind, *locality;
    int group; /* -1: not said */
};

static inline void wire_byte(struct kv_wire *w, unsigned int v)
{
    w->at[w->bytes++] = (unsigned char)v;
}

static inline void wire_be(struct kv_wire *w, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        wire_byte(w, (unsigned int)(v >> (8 * i)) & 0xff);
}

static inline void wire_uint(struct kv_wire *w, uint64_t v)
{
    if (v < 128) {
        wire_byte(w, (unsigned int)v);
        return;
    }
    wire_byte(w, 0xcf);
    wire_be(w, v, 8);
}

static inline void wire_text(struct kv_wire *w, const char *text)
{
    size_t bytes = strlen(text);

    wire_byte(w, 0xd9);
    wire_byte(w, (unsigned int)bytes);
    memcpy(w->at + w->bytes, text, bytes);
    w->bytes += bytes;
}

static inline void wire_begin(struct kv_wire *w, double ts)
{
    uint64_t bits;

    memcpy(&bits, &ts, sizeof(bits));
    w->bytes = w->events = 0;
    wire_byte(w, 0x93);
    wire_byte(w, 0xcb);
    wire_be(w, bits, 8);
    wire_byte(w, 0xdc);
    w->events_at = w->bytes;
    wire_be(w, 0, 2);
}

/* rank < 0: nil. */
static inline void wire_end(struct kv_wire *w, int rank)
{
    w->at[w->events_at] = (unsigned char)(w->events >> 8);
    w->at[w->events_at + 1] = (unsigned char)w->events;
    if (rank < 0)
        wire_byte(w, 0xc0);
    else
        wire_uint(w, (uint64_t)rank);
}

static inline void wire_hashes(struct kv_wire *w, const uint64_t *hashes,
                               size_t count)
{
    wire_text(w, "block_hashes");
    wire_byte(w, 0xdc);
    wire_be(w, count, 2);
    for (size_t i = 0; i < count; i++)
        wire_uint(w, hashes[i]);
}

static inline unsigned int wire_optional(struct kv_wire *w, const char *key,
                                         const char *text)
{
    if (text == NULL)
        return 0;
    wire_text(w, key);
    wire_text(w, text);
    return 1;
}

static inline void wire_stored(struct kv_wire *w, const struct kv_wire_store *s)
{
    size_t head = w->bytes, tokens = s->token_count;
    unsigned int keys = 5;

    if (tokens == 0)
        tokens = s->count * s->size;
    wire_byte(w, 0x80);
    wire_text(w, "type");
    wire_text(w, "BlockStored");
    wire_hashes(w, s->hashes, s->count);
    wire_text(w, "parent_block_hash");
    if (s->has_parent)
        wire_uint(w, s->parent);
    else
        wire_byte(w, 0xc0);
    wire_text(w, "token_ids");
    wire_byte(w, 0xdc);
    wire_be(w, tokens, 2);
    for (size_t i = 0; i < tokens; i++)
        wire_uint(w, s->tokens != NULL ? s->tokens[i] : s->first + (uint32_t)i);
    wire_text(w, "block_size");
    wire_uint(w, s->size);
    keys += wire_optional(w, "medium", s->medium);
    keys += wire_optional(w, "lora_name", s->lora);
    keys += wire_optional(w, "cache_salt", s->salt);
    keys += wire_optional(w, "kv_cache_spec_kind", s->kind);
    keys += wire_optional(w, "locality", s->locality);
    if (s->group >= 0) {
        wire_text(w, "group_idx");
        wire_uint(w, (uint64_t)s->group);
        keys++;
    }
    w->at[head] = (unsigned char)(0x80 | keys);
    w->events++;
}

/* medium NULL: not said; group < 0: not said. */
static inline void wire_removed(struct kv_wire *w, const uint64_t *hashes,
                                size_t count, const char *medium, int group)
{
    size_t head = w->bytes;
    unsigned int keys = 2;

    wire_byte(w, 0x80);
    wire_text(w, "type");
    wire_text(w, "BlockRemoved");
    wire_hashes(w, hashes, count);
    keys += wire_optional(w, "medium", medium);
    if (group >= 0) {
        wire_text(w, "group_idx");
        wire_uint(w, (uint64_t)group);
        keys++;
    }
    w->at[head] = (unsigned char)(0x80 | keys);
    w->events++;
}

static inline void wire_cleared(struct kv_wire *w, const char *medium)
{
    size_t head = w->bytes;
    unsigned int keys = 1;

    wire_byte(w, 0x80);
    wire_text(w, "type");
    wire_text(w, "AllBlocksCleared");
    keys += wire_optional(w, "medium", medium);
    w->at[head] = (unsigned char)(0x80 | keys);
    w->events++;
}

/* An event that every decoder refuses. */
static inline void wire_broken(struct kv_wire *w)
{
    wire_byte(w, 0x81);
    wire_text(w, "type");
    wire_text(w, "BlockStored");
    w->events++;
}

#endif
