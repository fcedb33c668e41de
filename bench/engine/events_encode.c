/* See events_encode.h. Decides the bytes of an event; when it is sent and with
 * which sequence number is events.c.
 *
 * Field order and left-out defaults follow vLLM 0.24 and later (maps) and the
 * 2026-05 array form without the window (vectors M1 and A1); the map batch is
 * that of vector V3.
 */
#include "events_encode.h"

#include "baton/base/rng.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST_BYTES 32

static void put_text(msgpack_packer *pk, const char *text, size_t bytes)
{
    msgpack_pack_str(pk, bytes);
    msgpack_pack_str_body(pk, text, bytes);
}

static void put_name(msgpack_packer *pk, const char *text)
{
    put_text(pk, text, strlen(text));
}

static bool as_maps(const struct bt_event_batch *batch)
{
    return batch->form != BT_ENGINE_EVENTS_ARRAY;
}

/* The key, in map form only. */
static void put_key(const struct bt_event_batch *batch, msgpack_packer *pk,
                    const char *key)
{
    if (as_maps(batch)) {
        put_name(pk, key);
    }
}

/* Head of an event of `fields` members, the tag being one of them. */
static void put_head(struct bt_event_batch *batch, msgpack_packer *pk,
                     size_t fields, const char *tag)
{
    msgpack_packer_init(pk, batch->events, msgpack_sbuffer_write);
    if (as_maps(batch)) {
        msgpack_pack_map(pk, fields);
    } else {
        msgpack_pack_array(pk, fields);
    }
    put_key(batch, pk, "type");
    put_name(pk, tag);
    batch->count++;
}

enum bt_status bt_event_batch_init(struct bt_event_batch *batch,
                                   enum bt_engine_event_form form,
                                   bool hash_bytes)
{
    memset(batch, 0, sizeof(*batch));
    batch->form = form;
    batch->hash_bytes = hash_bytes;
    batch->events = msgpack_sbuffer_new();
    return batch->events == NULL ? BT_NO_MEMORY : BT_OK;
}

void bt_event_batch_fini(struct bt_event_batch *batch)
{
    if (batch->events != NULL) {
        msgpack_sbuffer_free(batch->events);
    }
    batch->events = NULL;
}

void bt_event_batch_clear(struct bt_event_batch *batch)
{
    msgpack_sbuffer_clear(batch->events);
    batch->count = 0;
}

/* As an integer, or a digest whose other bytes follow from its handle. */
static void put_hash(const struct bt_event_batch *batch, msgpack_packer *pk,
                     uint64_t handle)
{
    unsigned char digest[DIGEST_BYTES];
    uint64_t word = handle;
    if (!batch->hash_bytes) {
        msgpack_pack_uint64(pk, handle);
        return;
    }
    for (int at = DIGEST_BYTES - 8; at >= 0; at -= 8) {
        for (int i = 0; i < 8; i++) {
            digest[at + i] = (unsigned char)(word >> (56 - 8 * i));
        }
        word = bt_mix64(word);
    }
    msgpack_pack_bin(pk, DIGEST_BYTES);
    msgpack_pack_bin_body(pk, digest, DIGEST_BYTES);
}

static void put_extra_keys(const struct bt_event_batch *batch,
                           msgpack_packer *pk, const struct bt_event_store *s)
{
    put_key(batch, pk, "extra_keys");
    msgpack_pack_array(pk, s->hash_count);
    for (uint32_t i = 0; i < s->hash_count; i++) {
        bool salted = s->salt != NULL && !s->has_parent && i == 0;
        size_t items = (s->lora != NULL) + (size_t)salted;
        if (items == 0) {
            msgpack_pack_nil(pk);
            continue;
        }
        msgpack_pack_array(pk, items);
        if (s->lora != NULL) {
            put_name(pk, s->lora);
        }
        if (salted) {
            put_text(pk, s->salt, s->salt_bytes);
        }
    }
}

static void put_blocks(const struct bt_event_batch *batch, msgpack_packer *pk,
                       const struct bt_event_store *s)
{
    put_key(batch, pk, "block_hashes");
    msgpack_pack_array(pk, s->hash_count);
    for (uint32_t i = 0; i < s->hash_count; i++) {
        put_hash(batch, pk, s->hashes[i]);
    }
    put_key(batch, pk, "parent_block_hash");
    if (s->has_parent) {
        put_hash(batch, pk, s->parent);
    } else {
        msgpack_pack_nil(pk);
    }
    put_key(batch, pk, "token_ids");
    msgpack_pack_array(pk, s->token_count);
    for (uint32_t i = 0; i < s->token_count; i++) {
        msgpack_pack_uint32(pk, s->tokens[i]);
    }
    put_key(batch, pk, "block_size");
    msgpack_pack_uint32(pk, s->block_tokens);
}

void bt_event_stored(struct bt_event_batch *batch,
                     const struct bt_event_store *store)
{
    msgpack_packer pk;
    put_head(batch, &pk, 11, "BlockStored");
    put_blocks(batch, &pk, store);
    put_key(batch, &pk, "lora_id");
    if (store->lora != NULL) {
        msgpack_pack_uint32(&pk, store->lora_id);
    } else {
        msgpack_pack_nil(&pk);
    }
    put_key(batch, &pk, "medium");
    put_name(&pk, "GPU");
    put_key(batch, &pk, "lora_name");
    if (store->lora != NULL) {
        put_name(&pk, store->lora);
    } else {
        msgpack_pack_nil(&pk);
    }
    put_extra_keys(batch, &pk, store);
    put_key(batch, &pk, "group_idx");
    msgpack_pack_uint32(&pk, 0);
    put_key(batch, &pk, "kv_cache_spec_kind");
    put_name(&pk, "full_attention");
}

void bt_event_removed(struct bt_event_batch *batch, uint64_t hash)
{
    msgpack_packer pk;
    put_head(batch, &pk, 4, "BlockRemoved");
    put_key(batch, &pk, "block_hashes");
    msgpack_pack_array(&pk, 1);
    put_hash(batch, &pk, hash);
    put_key(batch, &pk, "medium");
    put_name(&pk, "GPU");
    put_key(batch, &pk, "group_idx");
    msgpack_pack_uint32(&pk, 0);
}

void bt_event_cleared(struct bt_event_batch *batch)
{
    msgpack_packer pk;
    put_head(batch, &pk, 1, "AllBlocksCleared");
}

/* Key of a map batch; false: out of memory. */
static bool put_member(msgpack_packer *pk, const char *name)
{
    size_t bytes = strlen(name);
    return msgpack_pack_str(pk, bytes) >= 0 &&
           msgpack_pack_str_body(pk, name, bytes) >= 0;
}

void *bt_event_batch_payload(const struct bt_event_batch *batch, double ts,
                             uint32_t rank, size_t *bytes_out)
{
    msgpack_sbuffer out;
    msgpack_packer pk;
    msgpack_sbuffer_init(&out);
    msgpack_packer_init(&pk, &out, msgpack_sbuffer_write);
    bool map = batch->form == BT_ENGINE_EVENTS_MAP_BATCH;
    bool bad =
        (map ? msgpack_pack_map(&pk, 3) : msgpack_pack_array(&pk, 3)) < 0;
    bad |= map && !put_member(&pk, "ts");
    bad |= msgpack_pack_double(&pk, ts) < 0;
    bad |= map && !put_member(&pk, "events");
    bad |= msgpack_pack_array(&pk, batch->count) < 0;
    bad |= batch->events->size > 0 &&
           msgpack_sbuffer_write(&out, batch->events->data,
                                 batch->events->size) < 0;
    bad |= map && !put_member(&pk, "data_parallel_rank");
    bad |= msgpack_pack_uint32(&pk, rank) < 0;
    if (bad) {
        msgpack_sbuffer_destroy(&out);
        return NULL;
    }
    *bytes_out = out.size;
    return msgpack_sbuffer_release(&out);
}
