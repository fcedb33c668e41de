/* Who holds which prefix: own block key -> (worker row, tier), plus the map
 * engine hash -> own key per (worker, rank) that KV events are applied through
 * (engine-wire.md section 1.10: removals name engine hashes; vLLM does not
 * deduplicate physical blocks, so presence is counted).
 *
 * Pure; all memory comes from the arena at init and never grows. When a table
 * is full, entries of the (worker, rank) that has the most make room, and of
 * those with at least half as many, a few of each at a time, by second chance:
 * a block that was looked up for a placement (touch) or was a parent since the
 * hand last passed is kept once more. Blocks of the store event that needs the
 * room stay. What is evicted costs a hit, never a false one; `evicted` counts
 * blocks given up so, `dropped` those that found no room at all: also where the
 * side tables are full (namespaces, holders of widely shared blocks, second
 * entries of a worker for one block; sizes in planner/prefix_index.c).
 */
#ifndef BATON_PLANNER_PREFIX_INDEX_H
#define BATON_PLANNER_PREFIX_INDEX_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

enum bt_tier { BT_TIER_DEVICE, BT_TIER_HOST, BT_TIER_DISK, BT_TIER_EXTERNAL };
#define BT_TIERS 4

struct bt_prefix_index_limits {
    uint32_t workers_max;  /* rows: registry slots, or (slot, rank) */
    uint32_t blocks_max;   /* distinct own keys over all workers */
    uint32_t holdings_max; /* (worker, rank, engine hash) entries */
};

/* One store event, already decoded. Arrays are the caller's, read during the
 * call only. */
struct bt_kv_store {
    /* Not NULL: own keys of the blocks, already known (journal, simulator,
     * snapshot); then tokens, lora, salt and mm are not looked at, a parent
     * that is known is only used as one (kept once more), and a stored child
     * that is hashed continues in namespace own_ns (0: the plain one).
     * full_attention and tier count as ever. */
    const uint64_t *own_keys;
    uint64_t own_ns;
    const uint64_t *hashes; /* engine hashes, one per block */
    size_t hash_count;
    uint64_t parent; /* engine hash of the parent */
    int has_parent;  /* 0: chain starts at token 0 */
    const uint32_t *tokens;
    size_t token_count;
    uint32_t block_tokens; /* tokens per block, from the event */
    enum bt_tier tier;
    const char *lora; /* not terminated; NULL = none */
    size_t lora_bytes;
    const char *salt; /* only on root blocks in vLLM's form */
    size_t salt_bytes;
    const uint64_t *mm;           /* flattened mm hashes, or NULL */
    const uint16_t *mm_per_block; /* hash_count counts into mm, or NULL */
    int full_attention;           /* 0: counts only, no own key */
    int eagle; /* windows of block_tokens + 1 tokens, stride block_tokens:
                  token_count is hash_count * block_tokens + 1
                  (engine-wire.md 2.4) */
};

/* How a store is applied, by its form alone. */
enum bt_kv_store_kind {
    BT_KV_STORE_KEYED,       /* own keys from its tokens, if its parent is
                                known */
    BT_KV_STORE_GIVEN,       /* own_keys */
    BT_KV_STORE_COUNTED,     /* no own key: window layers, wrong token count */
    BT_KV_STORE_PLACEHOLDER, /* hashes only: one more tier of what is known */
    BT_KV_STORE_REFUSED      /* its own parent: leaves nothing */
};
enum bt_kv_store_kind bt_kv_store_kind_of(const struct bt_kv_store *store);

struct bt_prefix_index_stats {
    uint64_t blocks;                  /* distinct own keys held by anyone */
    uint64_t holdings;                /* engine-hash entries, all workers */
    uint64_t stores, removes, clears; /* blocks, blocks, events */
    uint64_t unknown_removes, unknown_parents, malformed, dropped;
    uint64_t evicted;    /* blocks that made room, per (worker, rank) entry */
    uint64_t collisions; /* stores of a known engine hash with other content:
                            the mapping that was first stays */
    uint64_t shared;     /* blocks with more holders than an entry has room for
                            inside, gauge */
    uint64_t namespaces; /* gauge */
    size_t bytes;        /* of the arena, all of it */
};

struct bt_prefix_index;

size_t bt_prefix_index_bytes(const struct bt_prefix_index_limits *limits);
/* NULL when the arena is too small or a limit is 0. */
struct bt_prefix_index *
bt_prefix_index_init(struct bt_arena *arena,
                     const struct bt_prefix_index_limits *limits);

/* Apply one store of (worker slot, rank). BT_INVALID: malformed (counted; no
 * own key: a wrong token count leaves counts-only entries so that its removals
 * match, a hash that is its own parent leaves nothing); BT_NOT_FOUND: parent
 * unknown (counted, not indexed); BT_LIMIT: a table is full, or the worker has
 * more than 64 ranks (counted, the blocks before it stay). */
enum bt_status bt_prefix_index_store(struct bt_prefix_index *index,
                                     uint32_t worker, uint32_t rank,
                                     const struct bt_kv_store *store);
/* Remove by engine hash; unknown hashes are counted and ignored. */
void bt_prefix_index_remove(struct bt_prefix_index *index, uint32_t worker,
                            uint32_t rank, const uint64_t *hashes, size_t count,
                            enum bt_tier tier);
/* The same for an engine that says how many copies are left of each hash
 * (remaining_copy_counts): the count becomes that, 0 removes. */
void bt_prefix_index_remaining(struct bt_prefix_index *index, uint32_t worker,
                               uint32_t rank, const uint64_t *hashes,
                               const uint32_t *remaining, size_t count,
                               enum bt_tier tier);
/* Sum of the copies counted in a tier, to hold against what the engine has. */
uint64_t bt_prefix_index_copies(const struct bt_prefix_index *index,
                                uint32_t worker, uint32_t rank,
                                enum bt_tier tier);
/* How stores of a hash that is present count. Copies (the default): each adds
 * one, each removal takes one. Set: none adds, the first removal ends it;
 * switching to it makes every count 1. Kept until the rank has no entries any
 * more; told before the first, it holds for that. A count goes up to 127. */
enum bt_kv_counting { BT_KV_COUNT_COPIES, BT_KV_COUNT_SET };
void bt_prefix_index_counting(struct bt_prefix_index *index, uint32_t worker,
                              uint32_t rank, enum bt_kv_counting counting);
/* All present entries of the rank become aged: a removal may have been missed.
 * A later store of the hash confirms it. O(1), each 15th time O(the rank's
 * entries), as is drop_aged, which forgets those that are aged still and
 * returns how many blocks that were. */
void bt_prefix_index_age(struct bt_prefix_index *index, uint32_t worker,
                         uint32_t rank);
uint64_t bt_prefix_index_drop_aged(struct bt_prefix_index *index,
                                   uint32_t worker, uint32_t rank);
/* Forget one tier of one rank. O(its entries). */
void bt_prefix_index_clear_tier(struct bt_prefix_index *index, uint32_t worker,
                                uint32_t rank, enum bt_tier tier);
/* Forget everything of one rank / of a whole worker. O(its entries). */
void bt_prefix_index_clear(struct bt_prefix_index *index, uint32_t worker,
                           uint32_t rank);
void bt_prefix_index_drop_worker(struct bt_prefix_index *index,
                                 uint32_t worker);

/* Leading blocks of keys[0..count) that each worker holds in any tier without
 * a hole: depth_out[w] for w < workers_max (all written). One pass over the
 * keys, stops at the first block nobody extends. */
void bt_prefix_index_match(const struct bt_prefix_index *index,
                           const uint64_t *keys, size_t count,
                           uint32_t *depth_out);
/* The same by tier, cumulative: depth_out[w * BT_TIERS + t] = leading blocks
 * that w holds in tiers <= t without a hole. */
void bt_prefix_index_match_tiers(const struct bt_prefix_index *index,
                                 const uint64_t *keys, size_t count,
                                 uint32_t *depth_out);
/* Own key that an engine hash of (worker, rank) stands for. BT_NOT_FOUND, also
 * for one that is only counted. */
enum bt_status bt_prefix_index_own_key(const struct bt_prefix_index *index,
                                       uint32_t worker, uint32_t rank,
                                       uint64_t hash, uint64_t *key_out);
/* Does this worker hold the block in any tier? */
int bt_prefix_index_holds(const struct bt_prefix_index *index, uint32_t worker,
                          uint64_t key);
/* Tiers in which the worker holds the block: bit 1 << enum bt_tier, 0 = none.
 */
unsigned int bt_prefix_index_tiers(const struct bt_prefix_index *index,
                                   uint32_t worker, uint64_t key);
/* These blocks were asked for by a placement: kept once more when room is made.
 * Unknown keys are passed over. */
void bt_prefix_index_touch(struct bt_prefix_index *index, const uint64_t *keys,
                           size_t count);
/* Workers that hold each of keys[0..count) in any tier: copies_out[count], 0
 * from the first block that nobody holds. Returns that block's position. */
size_t bt_prefix_index_spread(const struct bt_prefix_index *index,
                              const uint64_t *keys, size_t count,
                              uint32_t *copies_out);
/* Entries of the worker, for snapshots and for seeding another index, in no
 * particular order; the index may not be changed meanwhile. keyed 0: counted
 * only, key and ns are 0. */
struct bt_prefix_entry {
    uint32_t rank;
    uint64_t hash, key, ns;
    uint32_t copies[BT_TIERS];
    int keyed;
};
typedef void (*bt_prefix_entry_fn)(void *arg,
                                   const struct bt_prefix_entry *entry);
void bt_prefix_index_each(const struct bt_prefix_index *index, uint32_t worker,
                          bt_prefix_entry_fn fn, void *arg);
/* Distinct own keys the worker holds. */
uint32_t bt_prefix_index_worker_blocks(const struct bt_prefix_index *index,
                                       uint32_t worker);
void bt_prefix_index_stats_get(const struct bt_prefix_index *index,
                               struct bt_prefix_index_stats *out);

#endif
