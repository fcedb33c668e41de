/* Insides of the prefix index, shared by prefix_index.c (tables, look-ups) and
 * prefix_apply.c (events). Private to this folder.
 *
 *   source    (worker, rank) that has entries        per-worker list
 *     |  list
 *   holding   (source, engine hash, namespace)       table, counts per tier
 *     |  many to one
 *   presence  (block, worker)                        table, holdings per tier
 *     |  many to one
 *   block     own key                                table, bit per worker
 *
 * Invariants: a block exists while a presence names it; a presence exists
 * while a holding with a count above zero names it; bit w of set t of a block
 * is set exactly when (block, w) has a presence with a holding in a tier <= t
 * (so the last set holds every presence); a source exists while its list is
 * not empty. Index 0 of every table is "none".
 */
#ifndef BATON_PLANNER_PREFIX_INDEX_IMPL_H
#define BATON_PLANNER_PREFIX_INDEX_IMPL_H

#include "baton/planner/prefix_index.h"

#include <stdbool.h>

/* DP ranks of one worker that may have entries at the same time. */
#define PI_RANKS_MAX 64u

/* Chained hash table over items 1..max, with a free list in the same links:
 * deletion leaves nothing behind. The item arrays live beside it. */
struct pi_table {
    uint32_t *buckets;
    uint32_t *next;
    uint32_t mask; /* bucket count - 1 */
    uint32_t max;
    uint32_t fresh; /* items never used so far: fresh + 1 .. max */
    uint32_t free_head;
    uint32_t used;
};

struct pi_block {
    uint64_t key;
    uint32_t holders; /* bits set */
};

struct pi_presence {
    uint32_t block;
    uint32_t worker;
    uint32_t holdings[BT_TIERS]; /* with a count above zero in the tier */
};

struct pi_holding {
    uint64_t hash;
    uint64_t ns;
    uint32_t source;
    uint32_t presence; /* 0: counts only, no own key */
    uint32_t prev, next_of_source;
    uint16_t count[BT_TIERS];
};

struct pi_source {
    uint32_t worker;
    uint32_t rank;
    uint32_t head; /* first holding */
    uint32_t next; /* of the same worker, or free */
};

struct bt_prefix_index {
    struct bt_prefix_index_limits limits;
    uint32_t words; /* 64-bit words of a worker set */
    struct pi_table block_table, presence_table, holding_table;
    struct pi_block *blocks;
    uint64_t *holders; /* words * BT_TIERS per block */
    struct pi_presence *presences;
    struct pi_holding *holdings;
    struct pi_source *sources;
    uint32_t sources_max, sources_fresh, sources_free;
    uint32_t *worker_sources; /* head of the worker's list */
    uint32_t *worker_blocks;  /* distinct own keys */
    struct bt_prefix_index_stats stats;
};

uint32_t pi_table_take(struct pi_table *t);
void pi_table_give(struct pi_table *t, uint32_t item);
void pi_table_link(struct pi_table *t, uint32_t item, uint64_t hash);
void pi_table_unlink(struct pi_table *t, uint32_t item, uint64_t hash);

uint64_t pi_block_hash(uint64_t key);
/* Item of an own key, 0 when nobody holds it. */
uint32_t pi_block_find(const struct bt_prefix_index *index, uint64_t key);
/* Item of (block, worker), 0 when it has none. */
uint32_t pi_presence_find(const struct bt_prefix_index *index, uint32_t block,
                          uint32_t worker);
uint64_t pi_presence_hash(uint32_t block, uint32_t worker);

/* Sets of the block, word by word: word w of the workers that hold it in a tier
 * <= t is [w * BT_TIERS + t]. */
static inline uint64_t *pi_holders(const struct bt_prefix_index *index,
                                   uint32_t block)
{
    return index->holders + (size_t)block * index->words * BT_TIERS;
}

#endif
