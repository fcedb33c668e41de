/* What workers hold, guessed from our own placements: for engines that tell
 * nothing, and for streams that cannot be believed.
 *
 * A block is believed in from the placement that computed or fetched it, until
 * its time to live is over, or until the worker has been given `capacity`
 * other blocks since it was used last (LRU, as the engine itself evicts). Both
 * bend towards belief that is old, so a hit here is worth less than one from
 * events; the caller says so in its record.
 *
 * Pure; memory from the arena, never grows. When the table is full the entry
 * that was used longest ago, of any worker, makes room (`evicted`).
 */
#ifndef BATON_PLANNER_APPROX_INDEX_H
#define BATON_PLANNER_APPROX_INDEX_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

struct bt_approx_limits {
    uint32_t workers_max; /* rows, as in the prefix index */
    uint32_t entries_max; /* (worker, block) pairs over all workers */
    int64_t ttl_ns;       /* > 0; since the last use: over from this age on */
};

struct bt_approx_stats {
    uint64_t entries, blocks; /* gauges: pairs, distinct keys */
    /* Pairs since the start: entries = added - expired - evicted - removed.
     * evicted: by a full table or by the worker's capacity. */
    uint64_t added, expired, evicted, removed;
    size_t bytes;
};

struct bt_approx_index;

/* SIZE_MAX: a limit is out of range. */
size_t bt_approx_bytes(const struct bt_approx_limits *limits);
/* NULL when the arena is too small or a limit is out of range. */
struct bt_approx_index *bt_approx_init(struct bt_arena *arena,
                                       const struct bt_approx_limits *limits);
/* Blocks the worker's cache has room for; 0 (at first): only ttl and table. */
void bt_approx_capacity(struct bt_approx_index *approx, uint32_t worker,
                        uint32_t blocks);
/* The worker has, or will soon have, these leading blocks of a prompt: used
 * now, the first one last, so that leaves go before their parents. now_ns never
 * decreases from call to call. */
void bt_approx_add(struct bt_approx_index *approx, uint32_t worker,
                   const uint64_t *keys, size_t count, int64_t now_ns);
/* An event said it is gone. */
void bt_approx_remove(struct bt_approx_index *approx, uint32_t worker,
                      uint64_t key);
/* Forgets the worker's blocks; its capacity stays. */
void bt_approx_drop_worker(struct bt_approx_index *approx, uint32_t worker);
/* Forget what is over its time, at most `most` entries; returns how many. A
 * match does not count expired entries even when nobody has called this. */
size_t bt_approx_expire(struct bt_approx_index *approx, int64_t now_ns,
                        size_t most);
/* Leading blocks each worker is believed to hold: depth_out[workers_max], all
 * written. One pass over the keys at the cost of bt_prefix_index_match; forgets
 * up to 64 expired entries on the way. While more than that are waiting (after
 * a lull in which nobody called expire) it forgets as many more as the depths
 * add up to, and looks those pairs up one by one if that was not enough. */
void bt_approx_match(struct bt_approx_index *approx, const uint64_t *keys,
                     size_t count, int64_t now_ns, uint32_t *depth_out);
/* Entries of the worker. Like stats.entries, with those that are expired and
 * not forgotten yet. */
uint32_t bt_approx_worker_blocks(const struct bt_approx_index *approx,
                                 uint32_t worker);
void bt_approx_stats_get(const struct bt_approx_index *approx,
                         struct bt_approx_stats *out);

#endif
