/* Decoder of engines' KV event batches (msgpack; engine-wire.md 1.5 - 1.7):
 * encodings A (array events), B (map events), C (map batches), and the events
 * of Mooncake's standard (2.10: own keys on the wire), mixed in one stream.
 * Pure, zero-copy, iterative, bounded before use: a length that the payload
 * cannot hold is an error, and so is nesting beyond 16. One bad event costs
 * itself only: it is counted, its neighbours are delivered.
 *
 * Standard events are maps with an event_type (or type) stored, removed or
 * cleared, or with seq_hashes or an object_key. No batch form is published for
 * them; assumed is that of the others: their list stands in an array or map
 * batch as A, B or C have it, next to engines' events or alone. What a standard
 * event leaves out (block size, tokens, parent, rank) is 0 or false here.
 */
#ifndef BATON_ORCHESTRATOR_KV_EVENTS_H
#define BATON_ORCHESTRATOR_KV_EVENTS_H

#include "baton/base/status.h"
#include "baton/planner/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_kv_event_type { BT_KV_STORED, BT_KV_REMOVED, BT_KV_CLEARED };

struct bt_kv_event {
    enum bt_kv_event_type type;
    /* STORED. Standard events: own_keys are the hashes, with two exceptions.
     * additional_salt (then the salt here) names a scope that we do not have:
     * full_attention is 0. Under an adapter the standard's keys are not ours:
     * own_keys is NULL when the tokens are there to be hashed anew, or else
     * full_attention is 0. Salts are as on the wire: it is bt_ns_seed that
     * takes off Dynamo's mark. */
    struct bt_kv_store store;
    const uint64_t *hashes; /* REMOVED */
    size_t hash_count;
    const uint32_t *remaining; /* REMOVED: copies left of each hash, or NULL */
    enum bt_tier tier;         /* STORED, REMOVED */
    bool has_tier;             /* CLEARED: only that tier */
    bool local;                /* locality absent or LOCAL */
    bool has_group;
    uint32_t group; /* group_idx, 0 absent */
    /* STORED: what the cache is of. NONE: not said, store.full_attention is 1
     * and the group decides (kv_groups in event_plane.h). */
    enum bt_kv_spec { BT_KV_SPEC_NONE, BT_KV_SPEC_FULL, BT_KV_SPEC_OTHER } spec;
    /* STORED: the length rule holds (blocks * block size, or as Eagle). A
     * placeholder (no tokens, block size 0) and own keys without tokens are
     * whole: they say nothing against their group. */
    bool whole;
    /* Standard events (2.10) name their rank each; others have the batch's. */
    bool has_rank;
    int64_t rank;
};

struct bt_kv_batch_stats {
    uint64_t events, skipped, unknown_tags;
    double ts; /* seconds */
    bool has_rank;
    int64_t rank;
};

/* Scratch for decoded arrays, reused from batch to batch; caller-owned. */
struct bt_kv_scratch {
    uint64_t *hashes;
    size_t hashes_max;
    uint32_t *tokens;
    size_t tokens_max;
    uint64_t *mm;
    size_t mm_max;
    uint16_t *mm_per_block;
    size_t mm_per_block_max;
    uint32_t *remaining; /* hashes_max; also working space for stores. Fastest
                            when hashes_max is twice the longest store. */
};

typedef void (*bt_kv_event_fn)(void *arg, const struct bt_kv_event *event);

/* Decode one payload and call fn per good event, in order. stats_out is
 * written in any case. BT_INVALID: not a batch at all (nothing delivered, or
 * cut in the middle: what came before the cut was). */
enum bt_status bt_kv_batch_decode(const void *payload, size_t bytes,
                                  struct bt_kv_scratch *scratch,
                                  struct bt_kv_batch_stats *stats_out,
                                  bt_kv_event_fn fn, void *arg);

#endif
