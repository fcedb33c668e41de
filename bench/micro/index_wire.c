/* KV event payloads in msgpack, array events (A) and map events (B) of
 * engine-wire.md 1.5 and 1.6, with the fields that a stock vLLM sends for
 * full-attention blocks on the device. Only writes; the reader is production's.
 */
#include "index_parts.h"
#include <stdlib.h>
#include <string.h>

static unsigned char *room(struct index_wire *w, size_t bytes)
{
    size_t capacity = w->capacity ? w->capacity : 65536;
    unsigned char *more, *at;

    while (capacity < w->count + bytes)
        capacity *= 2;
    if (capacity != w->capacity && !w->failed) {
        more = realloc(w->bytes, capacity);
        w->failed = more == NULL;
        if (more) {
            w->bytes = more;
            w->capacity = capacity;
        }
    }
    if (w->failed)
        return NULL;
    at = w->bytes + w->count;
    w->count += bytes;
    return at;
}

/* A tag byte and a big-endian number of `bytes` bytes. */
static void tagged(struct index_wire *w, unsigned char tag, uint64_t value,
                   unsigned int bytes)
{
    unsigned char *at = room(w, 1 + bytes);

    if (!at)
        return;
    at[0] = tag;
    for (unsigned int i = bytes; i > 0; i--, value >>= 8)
        at[i] = (unsigned char)value;
}

static void number(struct index_wire *w, uint64_t value)
{
    if (value < 128)
        tagged(w, (unsigned char)value, 0, 0);
    else if (value < 256)
        tagged(w, 0xcc, value, 1);
    else if (value < 65536)
        tagged(w, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        tagged(w, 0xce, value, 4);
    else
        tagged(w, 0xcf, value, 8);
}

static void text(struct index_wire *w, const char *s)
{
    size_t bytes = strlen(s); /* < 32 */
    unsigned char *at;

    tagged(w, (unsigned char)(0xa0 | bytes), 0, 0);
    at = room(w, bytes);
    for (size_t i = 0; at && i < bytes; i++)
        at[i] = (unsigned char)s[i];
}

static void array(struct index_wire *w, size_t count)
{
    if (count < 16)
        tagged(w, (unsigned char)(0x90 | count), 0, 0);
    else if (count < 65536)
        tagged(w, 0xdc, count, 2);
    else
        tagged(w, 0xdd, count, 4);
}

static void nil(struct index_wire *w)
{
    tagged(w, 0xc0, 0, 0);
}

static void key(struct index_wire *w, const char *name)
{
    if (w->as_maps)
        text(w, name);
}

static void head(struct index_wire *w, unsigned char fields, const char *tag)
{
    tagged(w, (unsigned char)((w->as_maps ? 0x80 : 0x90) | fields), 0, 0);
    key(w, "type");
    text(w, tag);
}

static void numbers(struct index_wire *w, const uint64_t *values, size_t count)
{
    array(w, count);
    for (size_t i = 0; i < count; i++)
        number(w, values[i]);
}

void index_wire_batch(struct index_wire *w, uint32_t event_count)
{
    array(w, 3);
    tagged(w, 0xcb, 0x41d9000000000000u, 8); /* a time in 2023 */
    array(w, event_count);
}

void index_wire_rank(struct index_wire *w)
{
    number(w, 0);
}

void index_wire_stored(struct index_wire *w, const struct bt_kv_store *s)
{
    head(w, 8, "BlockStored");
    key(w, "block_hashes");
    numbers(w, s->hashes, s->hash_count);
    key(w, "parent_block_hash");
    if (s->has_parent)
        number(w, s->parent);
    else
        nil(w);
    key(w, "token_ids");
    array(w, s->token_count);
    for (size_t i = 0; i < s->token_count; i++)
        number(w, s->tokens[i]);
    key(w, "block_size");
    number(w, s->block_tokens);
    key(w, "lora_id");
    nil(w);
    key(w, "medium");
    text(w, "GPU");
    key(w, "lora_name");
    nil(w);
}

void index_wire_removed(struct index_wire *w, uint64_t hash)
{
    head(w, 3, "BlockRemoved");
    key(w, "block_hashes");
    numbers(w, &hash, 1);
    key(w, "medium");
    text(w, "GPU");
}

void index_wire_fini(struct index_wire *w)
{
    free(w->bytes);
    memset(w, 0, sizeof(*w));
}
