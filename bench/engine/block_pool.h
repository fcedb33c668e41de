/* Paged block pool with prefix cache and LRU eviction, as vLLM keeps it. Pure
 * bookkeeping: block indices and keys, no bytes, no clock.
 *
 *   free list (head = next to be evicted)  <->  in use (ref > 0)
 *
 * A registered block can be found by its key, in use or free, until it is
 * evicted by bt_pool_take. Copies are not merged: one key may be on several
 * blocks, each with its own registration and eviction.
 */
#ifndef BATON_BENCH_ENGINE_BLOCK_POOL_H
#define BATON_BENCH_ENGINE_BLOCK_POOL_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define BT_POOL_NONE UINT32_MAX

/* A registered block is about to be reused for something else. */
typedef void (*bt_pool_evict_fn)(void *arg, uint32_t block, uint64_t key);

struct bt_pool_block {
    uint64_t key;
    uint32_t ref;
    uint32_t prev, next;           /* free list */
    uint32_t same_prev, same_next; /* bucket of the key */
    bool registered;
};

struct bt_pool {
    struct bt_pool_block *blocks;
    uint32_t *buckets;
    uint32_t bucket_mask;
    uint32_t count, free_count, registered_count;
    uint32_t reserved; /* promised to sequences that grow, <= free_count */
    uint32_t head, tail;
    bt_pool_evict_fn evict;
    void *arg;
};

/* count 1 .. 2^24. BT_INVALID, BT_NO_MEMORY. */
enum bt_status bt_pool_init(struct bt_pool *pool, uint32_t count,
                            bt_pool_evict_fn evict, void *arg);
void bt_pool_fini(struct bt_pool *pool);

/* A block registered under this key (the one registered last), or NONE. */
uint32_t bt_pool_find(const struct bt_pool *pool, uint64_t key);
/* Blocks that may be taken or promised now. */
uint32_t bt_pool_room(const struct bt_pool *pool);
/* One more user of a block; it leaves the free list if it was there. */
void bt_pool_ref(struct bt_pool *pool, uint32_t block);
/* The least recently freed block, for one user; evicts its registration. The
 * free list must not be empty. */
uint32_t bt_pool_take(struct bt_pool *pool);
/* One user less; the last one puts the block at the tail of the free list. */
void bt_pool_put(struct bt_pool *pool, uint32_t block);
/* Make a block in use findable. Registering it twice is a fault. */
void bt_pool_register(struct bt_pool *pool, uint32_t block, uint64_t key);
/* Forget all registrations. False, and nothing done, while any is in use. */
bool bt_pool_reset(struct bt_pool *pool);

#endif
