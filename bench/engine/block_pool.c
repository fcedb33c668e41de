/* See block_pool.h. Decides which block is reused next (least recently freed)
 * and keeps the key -> block table; who may take how many is the caller's.
 *
 * Invariants: a block is in the free list exactly when ref == 0; it is in a
 * bucket exactly when registered; free_count and registered_count count them.
 */
#include "block_pool.h"

#include "baton/base/rng.h"

#include <assert.h>
#include <stdlib.h>

static uint32_t *bucket_of(const struct bt_pool *pool, uint64_t key)
{
    return &pool->buckets[bt_mix64(key) & pool->bucket_mask];
}

static void free_append(struct bt_pool *pool, uint32_t i)
{
    struct bt_pool_block *b = &pool->blocks[i];
    b->prev = pool->tail;
    b->next = BT_POOL_NONE;
    if (pool->tail == BT_POOL_NONE) {
        pool->head = i;
    } else {
        pool->blocks[pool->tail].next = i;
    }
    pool->tail = i;
    pool->free_count++;
}

static void free_remove(struct bt_pool *pool, uint32_t i)
{
    struct bt_pool_block *b = &pool->blocks[i];
    if (b->prev == BT_POOL_NONE) {
        pool->head = b->next;
    } else {
        pool->blocks[b->prev].next = b->next;
    }
    if (b->next == BT_POOL_NONE) {
        pool->tail = b->prev;
    } else {
        pool->blocks[b->next].prev = b->prev;
    }
    pool->free_count--;
}

static void unregister(struct bt_pool *pool, uint32_t i)
{
    struct bt_pool_block *b = &pool->blocks[i];
    if (b->same_prev == BT_POOL_NONE) {
        *bucket_of(pool, b->key) = b->same_next;
    } else {
        pool->blocks[b->same_prev].same_next = b->same_next;
    }
    if (b->same_next != BT_POOL_NONE) {
        pool->blocks[b->same_next].same_prev = b->same_prev;
    }
    b->registered = false;
    pool->registered_count--;
}

enum bt_status bt_pool_init(struct bt_pool *pool, uint32_t count,
                            bt_pool_evict_fn evict, void *arg)
{
    if (count == 0 || count > 1u << 24) {
        return BT_INVALID;
    }
    uint32_t buckets = 16;
    while (buckets < count) {
        buckets *= 2;
    }
    struct bt_pool p = {.bucket_mask = buckets - 1,
                        .count = count,
                        .head = BT_POOL_NONE,
                        .tail = BT_POOL_NONE,
                        .evict = evict,
                        .arg = arg};
    p.blocks = calloc(count, sizeof(*p.blocks));
    p.buckets = malloc(buckets * sizeof(*p.buckets));
    if (p.blocks == NULL || p.buckets == NULL) {
        free(p.blocks);
        free(p.buckets);
        return BT_NO_MEMORY;
    }
    for (uint32_t i = 0; i < buckets; i++) {
        p.buckets[i] = BT_POOL_NONE;
    }
    for (uint32_t i = 0; i < count; i++) {
        free_append(&p, i);
    }
    *pool = p;
    return BT_OK;
}

void bt_pool_fini(struct bt_pool *pool)
{
    free(pool->blocks);
    free(pool->buckets);
    pool->blocks = NULL;
    pool->buckets = NULL;
}

uint32_t bt_pool_find(const struct bt_pool *pool, uint64_t key)
{
    uint32_t i = *bucket_of(pool, key);
    while (i != BT_POOL_NONE && pool->blocks[i].key != key) {
        i = pool->blocks[i].same_next;
    }
    return i;
}

uint32_t bt_pool_room(const struct bt_pool *pool)
{
    assert(pool->reserved <= pool->free_count);
    return pool->free_count - pool->reserved;
}

void bt_pool_ref(struct bt_pool *pool, uint32_t block)
{
    assert(block < pool->count);
    if (pool->blocks[block].ref == 0) {
        free_remove(pool, block);
    }
    pool->blocks[block].ref++;
}

uint32_t bt_pool_take(struct bt_pool *pool)
{
    uint32_t i = pool->head;
    assert(i != BT_POOL_NONE);
    struct bt_pool_block *b = &pool->blocks[i];
    if (b->registered) {
        unregister(pool, i);
        if (pool->evict != NULL) {
            pool->evict(pool->arg, i, b->key);
        }
    }
    free_remove(pool, i);
    b->ref = 1;
    return i;
}

void bt_pool_put(struct bt_pool *pool, uint32_t block)
{
    assert(block < pool->count && pool->blocks[block].ref > 0);
    if (--pool->blocks[block].ref == 0) {
        free_append(pool, block);
    }
}

void bt_pool_register(struct bt_pool *pool, uint32_t block, uint64_t key)
{
    assert(block < pool->count);
    struct bt_pool_block *b = &pool->blocks[block];
    assert(b->ref > 0 && !b->registered);
    uint32_t *bucket = bucket_of(pool, key);
    b->key = key;
    b->registered = true;
    b->same_prev = BT_POOL_NONE;
    b->same_next = *bucket;
    if (*bucket != BT_POOL_NONE) {
        pool->blocks[*bucket].same_prev = block;
    }
    *bucket = block;
    pool->registered_count++;
}

bool bt_pool_reset(struct bt_pool *pool)
{
    if (pool->free_count != pool->count) {
        return false;
    }
    for (uint32_t i = 0; i < pool->count; i++) {
        if (pool->blocks[i].registered) {
            unregister(pool, i);
        }
    }
    return true;
}
