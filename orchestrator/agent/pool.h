/* KV blocks by 64-bit key in two tiers: slots in host memory, which peers read
 * and pulls write, and NVMe below. Every block that comes in is also stored
 * below as soon as the disk takes it, so that making room is dropping the least
 * recently used slot.
 *
 *   landing --landed--> held --evict--> free
 *   loading --loaded--> held      (not while pinned or being stored)
 *
 * A key is in one slot at most. All on one loop. */
#ifndef BATON_ORCHESTRATOR_AGENT_POOL_H
#define BATON_ORCHESTRATOR_AGENT_POOL_H

#include "baton/base/status.h"
#include "baton/transfer/tier.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define POOL_NONE UINT32_MAX

/* X(state, name, allowed next, waiting for) */
#define POOL_STATES(X)                                                         \
    X(POOL_FREE, "free", 1u << POOL_LANDING | 1u << POOL_LOADING, "a key")     \
    X(POOL_LANDING, "landing", 1u << POOL_HELD | 1u << POOL_FREE, "its pull")  \
    X(POOL_LOADING, "loading", 1u << POOL_HELD | 1u << POOL_FREE, "the disk")  \
    X(POOL_HELD, "held", 1u << POOL_FREE, "eviction")
enum pool_state {
#define X(state, name, next, waits) state,
    POOL_STATES(X)
#undef X
};

struct pool_config {
    struct ev_loop *loop;
    uint64_t block_bytes; /* of a block, as peers see it */
    uint64_t host_bytes, nvme_bytes;
    const char *nvme_path; /* NULL: none */
    uint64_t identity;     /* of the layout */
};
struct pool_counters {
    uint64_t hits_host, hits_nvme, misses; /* keys that peers asked for */
    uint64_t landed, evicted, stored, store_failed, load_failed, refused;
    uint64_t lost; /* evicted with no copy below */
};

/* Somebody who waits for keys to be in host memory, and then reads them. */
struct pool_hold {
    TAILQ_ENTRY(pool_hold) entry;
    uint32_t count, loads; /* loads: keys still on their way from the disk */
    enum bt_status status;
    uint32_t *slots; /* one per key, pinned; POOL_NONE: not (yet) */
    struct pool_waiter *waiters;
    void (*ready)(void *arg, struct pool_hold *hold); /* loads is 0 */
    void *arg;
    uint64_t id;
};

struct pool;
enum bt_status pool_create(const struct pool_config *config, struct pool **out,
                           char *error_out, size_t error_size);
/* Holds that wait get their `ready` with BT_CANCELLED. */
void pool_destroy(struct pool *pool);
void *pool_base(const struct pool *pool);
uint32_t pool_slots(const struct pool *pool);

/* Have these keys in host memory and pin them. BT_NOT_FOUND: neither tier has
 * one of them; BT_OVERLOADED: no slot can be freed now. BT_OK: hold.loads says
 * whether `ready` comes (later) or all is there. */
enum bt_status pool_hold(struct pool *pool, const uint64_t *keys,
                         uint32_t count, struct pool_hold *hold);
/* Unpin and forget; memory of the arrays is freed. */
void pool_let_go(struct pool *pool, struct pool_hold *hold);

/* Is the key in either tier, or coming in? */
bool pool_has(const struct pool *pool, uint64_t key);
/* A slot for a key that is to be written by a pull. BT_EXISTS; BT_OVERLOADED.
 */
enum bt_status pool_land(struct pool *pool, uint64_t key, uint32_t *slot_out);
/* Its pull ended. */
void pool_landed(struct pool *pool, uint32_t slot, bool well);
/* Forget a key in both tiers; false: it was not there. Readers go on. */
bool pool_drop(struct pool *pool, uint64_t key);

struct pool_state_counts {
    uint32_t slots, held, landing, loading, pinned, storing;
    uint64_t page_bytes;
    struct pool_counters counters;
    bool has_nvme;
    struct bt_nvme_stats nvme;
};
void pool_report(const struct pool *pool, struct pool_state_counts *out);

#endif
