/* See pool.h. Decides which slot a key gets and which one makes room; bytes are
 * moved by the tiers (transfer/tier.h) and by pulls.
 *
 * Invariants: the recency list holds exactly the slots that may be dropped now
 * (held, not pinned, not being stored); a slot in the hash table has a key and
 * is not `gone`; what is `gone` is free as soon as nobody reads it.
 */
#include "pool.h"

#include "baton/base/rng.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_MAX (1u << 26)

struct pool_waiter {
    LIST_ENTRY(pool_waiter) entry;
    struct pool_hold *hold;
    uint32_t at;
    bool linked;
};

LIST_HEAD(waiter_list, pool_waiter);

struct slot {
    struct pool *pool;
    uint64_t key;
    enum pool_state state;
    uint32_t index, pins, chained; /* chained: next with this hash */
    bool to_store, storing, stored, gone, idle; /* idle: in `recency` */
    TAILQ_ENTRY(slot) recency_entry, store_entry;
    struct waiter_list waiters;
};

struct pool {
    struct pool_config config;
    struct bt_host_pool *host;
    struct bt_nvme_pool *nvme;
    struct slot *slots;
    uint32_t slot_count, mask;
    uint32_t *buckets;
    TAILQ_HEAD(, slot) recency; /* least recently used first */
    TAILQ_HEAD(, slot) stores;  /* wait for the disk */
    bool closing;
    struct pool_counters counters;
};

static void move(struct slot *slot, enum pool_state state)
{
    static const unsigned int next[] = {
#define X(from, name, allowed, waits) allowed,
        POOL_STATES(X)
#undef X
    };

    assert((next[slot->state] >> state & 1u) != 0);
    slot->state = state;
}

/* ---- by key ---- */

static uint32_t *bucket_of(const struct pool *pool, uint64_t key)
{
    return &pool->buckets[bt_mix64(key) & pool->mask];
}

static struct slot *find(const struct pool *pool, uint64_t key)
{
    uint32_t at = *bucket_of(pool, key);

    while (at != POOL_NONE && pool->slots[at].key != key)
        at = pool->slots[at].chained;
    return at == POOL_NONE ? NULL : &pool->slots[at];
}

static void hash_add(struct slot *slot)
{
    uint32_t *bucket = bucket_of(slot->pool, slot->key);

    slot->chained = *bucket;
    *bucket = slot->index;
}

static void hash_remove(struct slot *slot)
{
    uint32_t *at = bucket_of(slot->pool, slot->key);

    while (*at != slot->index)
        at = &slot->pool->slots[*at].chained;
    *at = slot->chained;
}

/* ---- slots ---- */

static void slot_free(struct slot *slot)
{
    if (!slot->gone)
        hash_remove(slot);
    move(slot, POOL_FREE);
    slot->gone = slot->stored = false;
    bt_host_pool_put(slot->pool->host, slot->index);
}

/* Nobody reads or stores it: it may make room, or goes at once. */
static void settle(struct slot *slot)
{
    if (slot->state != POOL_HELD || slot->pins > 0 || slot->to_store ||
        slot->storing || slot->idle)
        return;
    if (slot->gone) {
        slot_free(slot);
        return;
    }
    slot->idle = true;
    TAILQ_INSERT_TAIL(&slot->pool->recency, slot, recency_entry);
}

static void unidle(struct slot *slot)
{
    if (slot->idle)
        TAILQ_REMOVE(&slot->pool->recency, slot, recency_entry);
    slot->idle = false;
}

static void evict_one(struct pool *pool)
{
    struct slot *slot = TAILQ_FIRST(&pool->recency);

    unidle(slot);
    pool->counters.evicted++;
    pool->counters.lost += !slot->stored;
    slot_free(slot);
}

/* A slot for the key, in the table already. */
static struct slot *slot_take(struct pool *pool, uint64_t key,
                              enum pool_state state)
{
    uint32_t index = POOL_NONE;

    if (bt_host_pool_free(pool->host) == 0 && !TAILQ_EMPTY(&pool->recency))
        evict_one(pool);
    if (bt_host_pool_get(pool->host, &index) != BT_OK) {
        pool->counters.refused++;
        return NULL;
    }
    struct slot *slot = &pool->slots[index];
    slot->key = key;
    slot->pins = 0;
    LIST_INIT(&slot->waiters);
    move(slot, state);
    hash_add(slot);
    return slot;
}

/* ---- storing below ---- */

static void on_stored(void *arg, enum bt_status status);

/* As many as the disk's queue takes. */
static void store_pump(struct pool *pool)
{
    struct slot *slot;

    while (!pool->closing && (slot = TAILQ_FIRST(&pool->stores)) != NULL) {
        const void *from = bt_host_pool_at(pool->host, slot->index);

        if (bt_nvme_store(pool->nvme, slot->key, from, on_stored, slot) !=
            BT_OK)
            return; /* full: what ends makes room */
        TAILQ_REMOVE(&pool->stores, slot, store_entry);
        slot->to_store = false;
        slot->storing = true;
    }
}

static void on_stored(void *arg, enum bt_status status)
{
    struct slot *slot = arg;
    struct pool *pool = slot->pool;

    slot->storing = false;
    slot->stored = status == BT_OK || status == BT_EXISTS;
    pool->counters.stored += slot->stored;
    pool->counters.store_failed += !slot->stored;
    settle(slot);
    store_pump(pool);
}

static void store_soon(struct slot *slot)
{
    struct pool *pool = slot->pool;

    if (pool->nvme == NULL || pool->closing)
        return;
    slot->to_store = true;
    TAILQ_INSERT_TAIL(&pool->stores, slot, store_entry);
    store_pump(pool);
}

/* ---- holds ---- */

static void pin(struct slot *slot, struct pool_hold *hold, uint32_t at)
{
    unidle(slot);
    slot->pins++;
    hold->slots[at] = slot->index;
}

static void unpin(struct slot *slot)
{
    assert(slot->pins > 0);
    slot->pins--;
    settle(slot);
}

static void wait_for(struct slot *slot, struct pool_hold *hold, uint32_t at)
{
    struct pool_waiter *waiter = &hold->waiters[at];

    waiter->hold = hold;
    waiter->at = at;
    waiter->linked = true;
    LIST_INSERT_HEAD(&slot->waiters, waiter, entry);
    hold->loads++;
}

/* Take the slot's waiters out: what they do may use the slot anew. */
static void take_waiters(struct slot *slot, struct waiter_list *to)
{
    LIST_INIT(to);
    LIST_FIRST(to) = LIST_FIRST(&slot->waiters);
    if (LIST_FIRST(to) != NULL)
        LIST_FIRST(to)->entry.le_prev = &LIST_FIRST(to);
    LIST_INIT(&slot->waiters);
}

static void load_failed(struct slot *slot, const struct waiter_list *waiters,
                        enum bt_status status)
{
    struct pool_waiter *waiter;

    LIST_FOREACH(waiter, waiters, entry)
    {
        waiter->hold->slots[waiter->at] = POOL_NONE;
        waiter->hold->status =
            status == BT_CANCELLED ? BT_CANCELLED : BT_NOT_FOUND;
        slot->pins--;
    }
    slot->pool->counters.load_failed++;
    slot_free(slot);
}

static void on_loaded(void *arg, enum bt_status status)
{
    struct slot *slot = arg;
    struct waiter_list waiters;
    struct pool_waiter *waiter;

    take_waiters(slot, &waiters);
    if (status == BT_OK) {
        slot->stored = true;
        move(slot, POOL_HELD);
        settle(slot); /* its waiters may have gone */
    } else {
        load_failed(slot, &waiters, status);
    }
    while ((waiter = LIST_FIRST(&waiters)) != NULL) {
        struct pool_hold *hold = waiter->hold;

        LIST_REMOVE(waiter, entry);
        waiter->linked = false;
        if (--hold->loads == 0)
            hold->ready(hold->arg, hold);
    }
}

static enum bt_status load(struct pool *pool, uint64_t key,
                           struct slot **slot_out)
{
    struct slot *slot = slot_take(pool, key, POOL_LOADING);

    if (slot == NULL)
        return BT_OVERLOADED;
    enum bt_status status =
        bt_nvme_load(pool->nvme, key, bt_host_pool_at(pool->host, slot->index),
                     on_loaded, slot);
    if (status != BT_OK) {
        slot_free(slot);
        return status == BT_LIMIT ? BT_OVERLOADED : status;
    }
    *slot_out = slot;
    return BT_OK;
}

/* Present in either tier? What is just landing is not there yet. */
static bool can_hold(struct pool *pool, uint64_t key)
{
    const struct slot *slot = find(pool, key);
    bool below = pool->nvme != NULL && bt_nvme_has(pool->nvme, key);

    if (slot != NULL)
        below = slot->state == POOL_HELD || slot->state == POOL_LOADING;
    pool->counters.misses += !below;
    return below;
}

/* The pinned ones first, so that making room for the others spares them. */
static enum bt_status hold_all(struct pool *pool, const uint64_t *keys,
                               struct pool_hold *hold)
{
    struct slot *slot;
    enum bt_status status = BT_OK;

    for (uint32_t i = 0; i < hold->count; i++) {
        slot = find(pool, keys[i]);
        if (slot != NULL) {
            pin(slot, hold, i);
            pool->counters.hits_host++;
        }
    }
    for (uint32_t i = 0; i < hold->count && status == BT_OK; i++) {
        slot = find(pool, keys[i]);
        if (slot == NULL) {
            status = load(pool, keys[i], &slot);
            pool->counters.hits_nvme++;
        }
        if (status != BT_OK)
            break;
        if (hold->slots[i] == POOL_NONE)
            pin(slot, hold, i);
        if (slot->state == POOL_LOADING)
            wait_for(slot, hold, i);
    }
    return status;
}

enum bt_status pool_hold(struct pool *pool, const uint64_t *keys,
                         uint32_t count, struct pool_hold *hold)
{
    enum bt_status status = BT_OK;

    hold->count = count;
    hold->loads = 0;
    hold->status = BT_OK;
    hold->slots = malloc(count * sizeof(*hold->slots));
    hold->waiters = calloc(count, sizeof(*hold->waiters));
    if (hold->slots == NULL || hold->waiters == NULL) {
        hold->count = 0;
        status = BT_NO_MEMORY;
    }
    for (uint32_t i = 0; i < hold->count; i++)
        hold->slots[i] = POOL_NONE;
    for (uint32_t i = 0; i < hold->count && status == BT_OK; i++) {
        if (!can_hold(pool, keys[i]))
            status = BT_NOT_FOUND;
    }
    if (status == BT_OK)
        status = hold_all(pool, keys, hold);
    if (status != BT_OK)
        pool_let_go(pool, hold);
    return status;
}

void pool_let_go(struct pool *pool, struct pool_hold *hold)
{
    for (uint32_t i = 0; i < hold->count; i++) {
        struct pool_waiter *waiter = &hold->waiters[i];

        if (waiter->linked)
            LIST_REMOVE(waiter, entry);
        if (hold->slots[i] != POOL_NONE)
            unpin(&pool->slots[hold->slots[i]]);
    }
    free(hold->slots);
    free(hold->waiters);
    hold->slots = NULL;
    hold->waiters = NULL;
    hold->count = 0;
}

/* ---- coming in, going out ---- */

bool pool_has(const struct pool *pool, uint64_t key)
{
    return find(pool, key) != NULL ||
           (pool->nvme != NULL && bt_nvme_has(pool->nvme, key));
}

enum bt_status pool_land(struct pool *pool, uint64_t key, uint32_t *slot_out)
{
    if (pool_has(pool, key))
        return BT_EXISTS;
    struct slot *slot = slot_take(pool, key, POOL_LANDING);
    if (slot == NULL)
        return BT_OVERLOADED;
    *slot_out = slot->index;
    return BT_OK;
}

void pool_landed(struct pool *pool, uint32_t index, bool well)
{
    struct slot *slot = &pool->slots[index];

    if (!well) {
        slot_free(slot);
        return;
    }
    move(slot, POOL_HELD);
    pool->counters.landed++;
    if (!slot->gone)
        store_soon(slot);
    settle(slot);
}

bool pool_drop(struct pool *pool, uint64_t key)
{
    struct slot *slot = find(pool, key);
    bool below = pool->nvme != NULL && bt_nvme_has(pool->nvme, key);

    if (slot != NULL && slot->state == POOL_LOADING)
        return false; /* on its way: drop it once it is here */
    if (slot != NULL) {
        hash_remove(slot);
        slot->gone = true;
        if (slot->to_store)
            TAILQ_REMOVE(&pool->stores, slot, store_entry);
        slot->to_store = false;
        unidle(slot);
        settle(slot);
    }
    if (pool->nvme != NULL)
        bt_nvme_drop(pool->nvme, key); /* also one being stored */
    return slot != NULL || below;
}

/* ---- life ---- */

static enum bt_status open_host(struct pool *pool, char *error_out,
                                size_t error_size)
{
    const struct bt_host_pool_config host = {
        .block_bytes = pool->config.block_bytes,
        .block_count = pool->slot_count,
        .numa_node = -1,
        .huge_pages = true,
    };
    uint32_t buckets = 16;

    enum bt_status status =
        bt_host_pool_create(&host, &pool->host, error_out, error_size);
    if (status != BT_OK)
        return status;
    while (buckets < pool->slot_count)
        buckets *= 2;
    pool->mask = buckets - 1;
    pool->slots = calloc(pool->slot_count, sizeof(*pool->slots));
    pool->buckets = malloc(buckets * sizeof(*pool->buckets));
    if (pool->slots == NULL || pool->buckets == NULL) {
        snprintf(error_out, error_size, "no memory for %u slots",
                 pool->slot_count);
        return BT_NO_MEMORY;
    }
    memset(pool->buckets, 0xff, buckets * sizeof(*pool->buckets));
    for (uint32_t i = 0; i < pool->slot_count; i++) {
        pool->slots[i].pool = pool;
        pool->slots[i].index = i;
    }
    return BT_OK;
}

static enum bt_status open_nvme(struct pool *pool, char *error_out,
                                size_t error_size)
{
    const struct pool_config *c = &pool->config;
    const struct bt_nvme_config nvme = {
        .path = c->nvme_path,
        .block_bytes = c->block_bytes,
        .block_count = (uint32_t)(c->nvme_bytes / c->block_bytes),
        .verify = true,
        .identity = c->identity,
    };

    if (c->nvme_path == NULL)
        return BT_OK;
    enum bt_status status =
        bt_nvme_pool_open(c->loop, &nvme, &pool->nvme, error_out, error_size);
    if (status == BT_OK) /* cheaper with, works without */
        (void)bt_nvme_register(pool->nvme, pool_base(pool),
                               bt_host_pool_bytes(pool->host));
    return status;
}

static const char *config_fault(const struct pool_config *c)
{
    uint64_t slots = c->block_bytes > 0 ? c->host_bytes / c->block_bytes : 0;

    if (c->block_bytes == 0 || c->block_bytes % 64 != 0 ||
        c->block_bytes > UINT32_MAX)
        return "block-bytes: a multiple of 64";
    if (c->nvme_path != NULL && c->block_bytes % 4096 != 0)
        return "block-bytes: a multiple of 4096 with an NVMe tier";
    if (slots == 0 || slots > SLOTS_MAX)
        return "host-pool: 1 to 67108864 blocks";
    if (c->nvme_path != NULL && (c->nvme_bytes / c->block_bytes == 0 ||
                                 c->nvme_bytes / c->block_bytes > UINT32_MAX))
        return "nvme: at least one block";
    return NULL;
}

enum bt_status pool_create(const struct pool_config *config, struct pool **out,
                           char *error_out, size_t error_size)
{
    const char *fault = config_fault(config);
    struct pool *pool = NULL;

    if (fault != NULL) {
        snprintf(error_out, error_size, "%s", fault);
        return BT_INVALID;
    }
    pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        snprintf(error_out, error_size, "no memory");
        return BT_NO_MEMORY;
    }
    pool->config = *config;
    pool->slot_count = (uint32_t)(config->host_bytes / config->block_bytes);
    TAILQ_INIT(&pool->recency);
    TAILQ_INIT(&pool->stores);
    enum bt_status status = open_host(pool, error_out, error_size);
    if (status == BT_OK)
        status = open_nvme(pool, error_out, error_size);
    if (status != BT_OK) {
        pool_destroy(pool);
        return status;
    }
    *out = pool;
    return BT_OK;
}

void pool_destroy(struct pool *pool)
{
    if (pool == NULL)
        return;
    pool->closing = true;
    if (pool->nvme != NULL)
        bt_nvme_pool_close(pool->nvme); /* call-backs come first */
    if (pool->host != NULL)
        bt_host_pool_destroy(pool->host);
    free(pool->slots);
    free(pool->buckets);
    free(pool);
}

void *pool_base(const struct pool *pool)
{
    return bt_host_pool_base(pool->host);
}

uint32_t pool_slots(const struct pool *pool)
{
    return pool->slot_count;
}

void pool_report(const struct pool *pool, struct pool_state_counts *out)
{
    memset(out, 0, sizeof(*out));
    out->slots = pool->slot_count;
    out->page_bytes = bt_host_pool_page(pool->host);
    out->counters = pool->counters;
    for (uint32_t i = 0; i < pool->slot_count; i++) {
        const struct slot *slot = &pool->slots[i];

        out->held += slot->state == POOL_HELD;
        out->landing += slot->state == POOL_LANDING;
        out->loading += slot->state == POOL_LOADING;
        out->pinned += slot->pins > 0;
        out->storing += slot->storing || slot->to_store;
    }
    out->has_nvme = pool->nvme != NULL;
    if (pool->nvme != NULL)
        bt_nvme_stats(pool->nvme, &out->nvme);
}
