/* The KV events of a fleet of LRU caches that a trace runs through, kept in
 * memory as decoded events. Private to bench/micro.
 */
#ifndef BENCH_MICRO_INDEX_LOG_H
#define BENCH_MICRO_INDEX_LOG_H

#include "baton/base/status.h"
#include "baton/bench/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_LOG_VOCABULARY   128000u
#define INDEX_LOG_STORE_TOKENS 8192u /* of one store event at most */

/* Own keys of the trace's blocks, cut into blocks of block_tokens. */
struct index_keys {
    const struct bt_trace *trace;
    uint32_t block_tokens, split; /* trace block = split of ours */
    uint64_t seed;
    uint32_t *subs; /* per trace id: full blocks in it, 0..split */
    uint32_t *at;   /* per trace id: its first in keys */
    uint64_t *keys;
    size_t count;
};
/* block_tokens divides the trace's. BT_NO_MEMORY, BT_TOO_LARGE. */
enum bt_status index_keys_init(struct index_keys *k,
                               const struct bt_trace *trace,
                               uint32_t block_tokens, uint64_t seed);
void index_keys_fini(struct index_keys *k);
/* Tokens of the block at `place` in keys: block_tokens of them. */
void index_keys_tokens(const struct index_keys *k, uint32_t place,
                       uint32_t *out);
/* Engine hash of a key at a worker: engines seed their hashes differently. */
uint64_t index_log_hash(uint64_t key, uint32_t worker);

struct index_event {
    uint32_t worker;
    bool store; /* else removals, to be applied one hash at a time */
    bool has_parent;
    uint32_t count;
    size_t at;       /* first in hashes, keys, places */
    uint64_t parent; /* engine hash */
};
struct index_request {
    uint32_t worker;
    uint32_t key_count;
    size_t key_at; /* in chain */
    size_t event_at, event_count;
};

struct index_log {
    uint32_t workers, cache_blocks;
    struct index_event *events;
    size_t event_count, event_capacity;
    uint64_t *hashes, *keys; /* one per stored or removed block */
    uint32_t *places;        /* position of the block in index_keys.keys */
    size_t block_count, block_capacity;
    struct index_request *requests;
    size_t request_count;
    uint64_t *chain; /* own keys of all requests */
    size_t chain_count;
    uint64_t stored, removed;
    uint64_t peak_blocks, peak_holdings; /* each at its own peak */
    uint64_t last_blocks, last_holdings; /* at the end */
    double peak_copies; /* holdings / blocks when holdings peaked */
    uint64_t hit_keys;  /* leading ones held by the chosen worker */
};
/* cache_blocks: of the trace. BT_NO_MEMORY, BT_TOO_LARGE. */
enum bt_status index_log_init(struct index_log *log,
                              const struct index_keys *keys, uint32_t workers,
                              uint32_t cache_blocks);
void index_log_fini(struct index_log *log);

#endif
