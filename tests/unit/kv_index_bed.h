/* A prefix index that is fed with payloads through the decoder, as worker
 * `at.worker`, rank `at.rank`: what the event plane does with events of one
 * group in right order. */
#ifndef BATON_TEST_KV_INDEX_BED_H
#define BATON_TEST_KV_INDEX_BED_H

#include "baton/orchestrator/kv_events.h"
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"
#include "kv_pack.h"
#include "test_kv_events_vectors.h"

#include <stdlib.h>

#define BED_WORKERS 3

static struct {
    void *memory;
    struct bt_prefix_index *index;
    struct bt_kv_scratch scratch;
    struct bt_kv_batch_stats stats; /* of the last payload */
    uint32_t worker, rank;
    unsigned stores, invalid; /* calls of store, of them BT_INVALID */
} at;

static inline int bed_up(uint32_t blocks)
{
    const struct bt_prefix_index_limits limits = {.workers_max = BED_WORKERS,
                                                  .blocks_max = blocks,
                                                  .holdings_max = blocks};
    struct bt_kv_scratch *s = &at.scratch;
    size_t bytes = bt_prefix_index_bytes(&limits);
    struct bt_arena arena;
    memset(&at, 0, sizeof at);
    s->hashes_max = s->mm_max = s->mm_per_block_max = blocks;
    s->tokens_max = 4 * (size_t)blocks;
    s->hashes = calloc(s->hashes_max, sizeof *s->hashes);
    s->tokens = calloc(s->tokens_max, sizeof *s->tokens);
    s->mm = calloc(s->mm_max, sizeof *s->mm);
    s->mm_per_block = calloc(s->mm_per_block_max, sizeof *s->mm_per_block);
    s->remaining = calloc(s->hashes_max, sizeof *s->remaining);
    at.memory = calloc(1, bytes);
    if (at.memory == NULL)
        return -1;
    bt_arena_init(&arena, at.memory, bytes);
    at.index = bt_prefix_index_init(&arena, &limits);
    return at.index != NULL && s->hashes != NULL && s->tokens != NULL &&
                   s->mm != NULL && s->mm_per_block != NULL &&
                   s->remaining != NULL
               ? 0
               : -1;
}

static inline int bed_down(void **state)
{
    (void)state;
    free(at.memory);
    free(at.scratch.hashes);
    free(at.scratch.tokens);
    free(at.scratch.mm);
    free(at.scratch.mm_per_block);
    free(at.scratch.remaining);
    return 0;
}

static inline int bed_setup(void **state)
{
    (void)state;
    return bed_up(2048);
}

static inline void bed_apply(void *arg, const struct bt_kv_event *e)
{
    (void)arg;
    switch (e->type) {
    case BT_KV_STORED:
        at.stores++;
        at.invalid += bt_prefix_index_store(at.index, at.worker, at.rank,
                                            &e->store) == BT_INVALID;
        break;
    case BT_KV_REMOVED:
        if (e->remaining != NULL)
            bt_prefix_index_remaining(at.index, at.worker, at.rank, e->hashes,
                                      e->remaining, e->hash_count, e->tier);
        else
            bt_prefix_index_remove(at.index, at.worker, at.rank, e->hashes,
                                   e->hash_count, e->tier);
        break;
    case BT_KV_CLEARED:
        if (e->has_tier)
            bt_prefix_index_clear_tier(at.index, at.worker, at.rank, e->tier);
        else
            bt_prefix_index_clear(at.index, at.worker, at.rank);
        break;
    }
}

/* An exact copy of the payload, so that a sanitizer sees a read beyond it. */
static inline enum bt_status bed_payload(const void *payload, size_t bytes)
{
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL)
        return BT_NO_MEMORY;
    memcpy(copy, payload, bytes);
    enum bt_status status = bt_kv_batch_decode(copy, bytes, &at.scratch,
                                               &at.stats, bed_apply, NULL);
    free(copy);
    return status;
}

static inline size_t bed_unhex(const char *hex, unsigned char *out, size_t max)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n && i < max; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return n < max ? n : max;
}

static inline const char *bed_vector(const char *name)
{
    for (size_t i = 0; i < sizeof kv_vectors / sizeof kv_vectors[0]; i++)
        if (strcmp(kv_vectors[i].name, name) == 0)
            return kv_vectors[i].hex;
    return NULL;
}

/* Feed a vector of engine-wire.md 1.14. */
static inline enum bt_status bed_feed(const char *name)
{
    unsigned char bytes[1024];
    const char *hex = bed_vector(name);
    if (hex == NULL)
        return BT_NOT_FOUND;
    return bed_payload(bytes, bed_unhex(hex, bytes, sizeof bytes));
}

static inline enum bt_status bed_store(const struct pk_store *store)
{
    static unsigned char bytes[1 << 21];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    pk_stored(&p, store);
    return p.full ? BT_LIMIT : bed_payload(bytes, p.used);
}

static inline enum bt_status bed_remove(const uint64_t *hashes, size_t count,
                                        const char *medium)
{
    unsigned char bytes[1024];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    pk_removed(&p, hashes, count, medium);
    return p.full ? BT_LIMIT : bed_payload(bytes, p.used);
}

static inline unsigned bed_tiers(uint64_t key)
{
    return bt_prefix_index_tiers(at.index, at.worker, key);
}

/* Leading blocks of the keys that the worker holds. */
static inline uint32_t bed_depth(uint32_t worker, const uint64_t *keys,
                                 size_t count)
{
    uint32_t depth[BED_WORKERS];
    bt_prefix_index_match(at.index, keys, count, depth);
    return depth[worker];
}

static inline struct bt_prefix_index_stats bed_stats(void)
{
    struct bt_prefix_index_stats stats;
    bt_prefix_index_stats_get(at.index, &stats);
    return stats;
}

#endif
