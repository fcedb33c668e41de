/* vLLM's KV event payloads, byte for byte (engine-wire.md 1.5, 1.6, 1.14), in
 * the three encodings of 1.5. */
#ifndef BATON_BENCH_ENGINE_EVENTS_ENCODE_H
#define BATON_BENCH_ENGINE_EVENTS_ENCODE_H

#include "baton/base/status.h"
#include "baton/bench/engine.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Events of one batch, encoded one after the other. */
struct bt_event_batch {
    enum bt_engine_event_form form;
    bool hash_bytes; /* hashes as 32 bytes that end with the handle */
    struct msgpack_sbuffer *events;
    uint32_t count;
};

struct bt_event_store {
    const uint64_t *hashes; /* handles: the last 8 bytes, big-endian */
    uint32_t hash_count;
    bool has_parent;
    uint64_t parent;
    const uint32_t *tokens; /* hash_count * block_tokens */
    uint32_t token_count;
    uint32_t block_tokens; /* as announced */
    const char *lora;      /* NULL: none */
    uint32_t lora_id;      /* when lora is set */
    const char *salt;      /* NULL: none; put on the root block only */
    size_t salt_bytes;
};

enum bt_status bt_event_batch_init(struct bt_event_batch *batch,
                                   enum bt_engine_event_form form,
                                   bool hash_bytes);
void bt_event_batch_fini(struct bt_event_batch *batch);
void bt_event_batch_clear(struct bt_event_batch *batch);
void bt_event_stored(struct bt_event_batch *batch,
                     const struct bt_event_store *store);
void bt_event_removed(struct bt_event_batch *batch, uint64_t hash);
void bt_event_cleared(struct bt_event_batch *batch);
/* The whole payload: [ts, [events], rank], or the map of these three.
 * malloc'd; NULL: out of memory. */
void *bt_event_batch_payload(const struct bt_event_batch *batch, double ts,
                             uint32_t rank, size_t *bytes_out);

#endif
