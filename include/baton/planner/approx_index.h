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
    int64_t ttl_ns;       /* > 0; since the last use */
};

struct bt_approx_stats {
    uint64_t entries, blocks; /* gauges: pairs, distinct keys */
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
void bt_approx_drop_worker(struct bt_approx_index *approx, uint32_t worker);
/* Forget what is over its time, at most `most` entries; returns how many. A
 * match does not count expired entries even when nobody has called this. */
size_t bt_approx_expire(struct bt_approx_index *approx, int64_t now_ns,
                        size_t most);
/* Leading blocks each worker is believed to hold: depth_out[workers_max], all
 * written. One pass over the keys. */
void bt_approx_match(struct bt_approx_index *approx, const uint64_t *keys,
                     size_t count, int64_t now_ns, uint32_t *depth_out);
uint32_t bt_approx_worker_blocks(const struct bt_approx_index *approx,
                                 uint32_t worker);
void bt_approx_stats_get(const struct bt_approx_index *approx,
                         struct bt_approx_stats *out);

#endif
