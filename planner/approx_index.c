/* Belief about what workers hold, from our own placements. Decides what is
 * believed (last use, time to live, the worker's capacity, the table's size);
 * leaves the matching to a prefix index that holds exactly the same pairs.
 *
 *   entry (worker, key)   hash table; on two lists, oldest use first:
 *     |-- all entries       what a full table and the clock take
 *     `-- of the worker     what its capacity takes
 *
 * Invariants: both lists are in the order of use, so times along them never
 * fall; entries and pairs in the index are the same set, each counted once (an
 * entry makes room here before the index would have to); a worker with a
 * capacity has no more entries than that; entry 0 is "none".
 */
#include "baton/planner/approx_index.h"

#include "baton/base/rng.h"
#include "baton/planner/prefix_index.h"

#include <assert.h>
#include <stdbool.h>

#define ENTRIES_MAX  (1u << 30)
#define EXPIRE_MATCH 64 /* entries a match may forget before it looks */
#define EXPIRE_PER_ADD                                                         \
    2 /* entries forgotten per block added: no backlog grows                   \
         while placements go on */

enum order { ORDER_ALL, ORDER_WORKER };
#define ORDERS 2

struct link {
    uint32_t older, newer;
};

struct list {
    uint32_t oldest, newest;
};

struct entry {
    uint64_t key;
    int64_t used_ns;
    uint32_t worker;
    uint32_t next; /* in its bucket, or free */
    struct link links[ORDERS];
};

struct row {
    struct list list;
    uint32_t entries;
    uint32_t capacity; /* 0: no limit of its own */
};

struct bt_approx_index {
    struct bt_approx_limits limits;
    struct bt_prefix_index *index;
    struct entry *entries;
    uint32_t *buckets;
    uint32_t mask;  /* bucket count - 1 */
    uint32_t fresh; /* entries never used so far: fresh + 1 .. entries_max */
    uint32_t free_head;
    struct list all;
    struct row *rows;
    int64_t now_ns; /* latest seen */
    struct bt_approx_stats stats;
};

/* ---- memory ---- */

static bool in_range(const struct bt_approx_limits *limits)
{
    return limits->workers_max > 0 && limits->entries_max > 0 &&
           limits->entries_max <= ENTRIES_MAX && limits->ttl_ns > 0;
}

static uint32_t bucket_count(uint32_t entries)
{
    uint32_t n = 16;

    while (n < entries)
        n *= 2;
    return n;
}

static struct bt_prefix_index_limits
index_limits(const struct bt_approx_limits *limits)
{
    const struct bt_prefix_index_limits of_index = {
        .workers_max = limits->workers_max,
        .blocks_max = limits->entries_max,
        .holdings_max = limits->entries_max};

    return of_index;
}

size_t bt_approx_bytes(const struct bt_approx_limits *limits)
{
    struct bt_prefix_index_limits of_index;
    size_t part[5], sum = 0;

    if (!in_range(limits))
        return SIZE_MAX;
    of_index = index_limits(limits);
    part[0] = bt_arena_need(1, sizeof(struct bt_approx_index));
    part[1] =
        bt_arena_need((size_t)limits->entries_max + 1, sizeof(struct entry));
    part[2] =
        bt_arena_need(bucket_count(limits->entries_max), sizeof(uint32_t));
    part[3] = bt_arena_need(limits->workers_max, sizeof(struct row));
    part[4] = bt_prefix_index_bytes(&of_index);
    for (size_t i = 0; i < 5; i++) {
        if (part[i] > SIZE_MAX - 1 - sum)
            return SIZE_MAX;
        sum += part[i];
    }
    return sum;
}

static bool take_tables(struct bt_approx_index *approx, struct bt_arena *arena)
{
    const struct bt_prefix_index_limits of_index =
        index_limits(&approx->limits);
    uint32_t buckets = bucket_count(approx->limits.entries_max);

    approx->mask = buckets - 1;
    approx->entries =
        bt_arena_take(arena, (size_t)approx->limits.entries_max + 1,
                      sizeof(*approx->entries));
    approx->buckets = bt_arena_take(arena, buckets, sizeof(*approx->buckets));
    approx->rows =
        bt_arena_take(arena, approx->limits.workers_max, sizeof(*approx->rows));
    if (!approx->entries || !approx->buckets || !approx->rows)
        return false;
    approx->index = bt_prefix_index_init(arena, &of_index);
    return approx->index != NULL;
}

struct bt_approx_index *bt_approx_init(struct bt_arena *arena,
                                       const struct bt_approx_limits *limits)
{
    size_t before = arena->used;
    struct bt_approx_index *approx;

    if (!in_range(limits))
        return NULL;
    approx = bt_arena_take(arena, 1, sizeof(*approx));
    if (approx == NULL)
        return NULL;
    approx->limits = *limits;
    approx->now_ns = INT64_MIN;
    if (!take_tables(approx, arena))
        return NULL;
    approx->stats.bytes = arena->used - before;
    return approx;
}

/* ---- lists and table ---- */

static struct row *row_of(const struct bt_approx_index *approx, uint32_t worker)
{
    assert(worker < approx->limits.workers_max);
    return &approx->rows[worker];
}

static struct list *list_of(struct bt_approx_index *approx, uint32_t e,
                            enum order order)
{
    return order == ORDER_ALL ? &approx->all
                              : &approx->rows[approx->entries[e].worker].list;
}

static void append(struct bt_approx_index *approx, uint32_t e, enum order order)
{
    struct list *list = list_of(approx, e, order);
    struct link *link = &approx->entries[e].links[order];

    link->older = list->newest;
    link->newer = 0;
    if (list->newest != 0)
        approx->entries[list->newest].links[order].newer = e;
    else
        list->oldest = e;
    list->newest = e;
}

static void unlink_from(struct bt_approx_index *approx, uint32_t e,
                        enum order order)
{
    struct list *list = list_of(approx, e, order);
    struct link link = approx->entries[e].links[order];

    if (link.older != 0)
        approx->entries[link.older].links[order].newer = link.newer;
    else
        list->oldest = link.newer;
    if (link.newer != 0)
        approx->entries[link.newer].links[order].older = link.older;
    else
        list->newest = link.older;
}

static uint32_t *bucket_of(const struct bt_approx_index *approx,
                           uint32_t worker, uint64_t key)
{
    uint64_t hash = bt_mix64(key + bt_mix64((uint64_t)worker + 1));

    return &approx->buckets[hash & approx->mask];
}

/* Entry of (worker, key), 0 when there is none. */
static uint32_t find(const struct bt_approx_index *approx, uint32_t worker,
                     uint64_t key)
{
    uint32_t e = *bucket_of(approx, worker, key);

    while (e != 0 && (approx->entries[e].key != key ||
                      approx->entries[e].worker != worker))
        e = approx->entries[e].next;
    return e;
}

/* Only with fewer than entries_max entries. */
static uint32_t take_entry(struct bt_approx_index *approx)
{
    uint32_t e = approx->free_head;

    if (e != 0) {
        approx->free_head = approx->entries[e].next;
        return e;
    }
    assert(approx->fresh < approx->limits.entries_max);
    return ++approx->fresh;
}

static void unlink_bucket(struct bt_approx_index *approx, uint32_t e)
{
    const struct entry *entry = &approx->entries[e];
    uint32_t *at = bucket_of(approx, entry->worker, entry->key);

    while (*at != e)
        at = &approx->entries[*at].next;
    *at = entry->next;
}

/* The index still has the pair. */
static void give_entry(struct bt_approx_index *approx, uint32_t e)
{
    struct entry *entry = &approx->entries[e];

    unlink_from(approx, e, ORDER_ALL);
    unlink_from(approx, e, ORDER_WORKER);
    unlink_bucket(approx, e);
    approx->rows[entry->worker].entries--;
    approx->stats.entries--;
    entry->next = approx->free_head;
    approx->free_head = e;
}

static void forget(struct bt_approx_index *approx, uint32_t e)
{
    bt_prefix_index_remove(approx->index, approx->entries[e].worker, 0,
                           &approx->entries[e].key, 1, BT_TIER_DEVICE);
    give_entry(approx, e);
}

/* ---- time ---- */

static void advance(struct bt_approx_index *approx, int64_t now_ns)
{
    if (now_ns > approx->now_ns)
        approx->now_ns = now_ns;
}

/* Unsigned: the difference of two times may not fit in an int64_t. */
static bool is_over(const struct bt_approx_index *approx, uint32_t e)
{
    return (uint64_t)approx->now_ns - (uint64_t)approx->entries[e].used_ns >=
           (uint64_t)approx->limits.ttl_ns;
}

static bool has_backlog(const struct bt_approx_index *approx)
{
    return approx->all.oldest != 0 && is_over(approx, approx->all.oldest);
}

size_t bt_approx_expire(struct bt_approx_index *approx, int64_t now_ns,
                        size_t most)
{
    size_t n = 0;

    advance(approx, now_ns);
    for (; n < most && has_backlog(approx); n++)
        forget(approx, approx->all.oldest);
    approx->stats.expired += n;
    return n;
}

/* ---- changes ---- */

static void make_room_by(struct bt_approx_index *approx, uint32_t oldest)
{
    if (is_over(approx, oldest))
        approx->stats.expired++;
    else
        approx->stats.evicted++;
    forget(approx, oldest);
}

void bt_approx_capacity(struct bt_approx_index *approx, uint32_t worker,
                        uint32_t blocks)
{
    struct row *row = row_of(approx, worker);

    row->capacity = blocks;
    while (blocks != 0 && row->entries > blocks)
        make_room_by(approx, row->list.oldest);
}

static void add_entry(struct bt_approx_index *approx, uint32_t worker,
                      uint64_t key)
{
    const struct bt_kv_store store = {.own_keys = &key,
                                      .hashes = &key,
                                      .hash_count = 1,
                                      .tier = BT_TIER_DEVICE,
                                      .full_attention = 1};
    uint32_t *bucket = bucket_of(approx, worker, key);
    uint32_t e = take_entry(approx);

    approx->entries[e] = (struct entry){.key = key,
                                        .used_ns = approx->now_ns,
                                        .worker = worker,
                                        .next = *bucket};
    *bucket = e;
    append(approx, e, ORDER_ALL);
    append(approx, e, ORDER_WORKER);
    approx->rows[worker].entries++;
    approx->stats.entries++;
    approx->stats.added++;
    /* The index has room for all entries. Should it refuse, the pair is not
     * believed in: a miss, never an entry that does not match. */
    if (bt_prefix_index_store(approx->index, worker, 0, &store) != BT_OK) {
        approx->stats.evicted++;
        give_entry(approx, e);
    }
}

static void use(struct bt_approx_index *approx, uint32_t worker, uint64_t key)
{
    struct row *row = row_of(approx, worker);
    uint32_t e = find(approx, worker, key);

    if (e != 0) {
        approx->entries[e].used_ns = approx->now_ns;
        unlink_from(approx, e, ORDER_ALL);
        unlink_from(approx, e, ORDER_WORKER);
        append(approx, e, ORDER_ALL);
        append(approx, e, ORDER_WORKER);
        return;
    }
    if (row->capacity != 0 && row->entries >= row->capacity)
        make_room_by(approx, row->list.oldest);
    else if (approx->stats.entries >= approx->limits.entries_max)
        make_room_by(approx, approx->all.oldest);
    add_entry(approx, worker, key);
}

void bt_approx_add(struct bt_approx_index *approx, uint32_t worker,
                   const uint64_t *keys, size_t count, int64_t now_ns)
{
    uint32_t capacity = row_of(approx, worker)->capacity;

    /* What lies beyond would make room for what lies before it at once. */
    if (count > approx->limits.entries_max)
        count = approx->limits.entries_max;
    if (capacity != 0 && count > capacity)
        count = capacity;
    bt_approx_expire(approx, now_ns, EXPIRE_PER_ADD * count);
    for (size_t i = count; i-- > 0;)
        use(approx, worker, keys[i]);
}

void bt_approx_remove(struct bt_approx_index *approx, uint32_t worker,
                      uint64_t key)
{
    uint32_t e = find(approx, worker, key);

    if (e == 0)
        return;
    approx->stats.removed++;
    forget(approx, e);
}

void bt_approx_drop_worker(struct bt_approx_index *approx, uint32_t worker)
{
    struct row *row = row_of(approx, worker);

    bt_prefix_index_drop_worker(approx->index, worker);
    approx->stats.removed += row->entries;
    while (row->list.oldest != 0)
        give_entry(approx, row->list.oldest);
}

/* ---- look-ups ---- */

/* Leading ones of keys[0..depth) that are within their time. */
static uint32_t live_depth(const struct bt_approx_index *approx,
                           uint32_t worker, const uint64_t *keys,
                           uint32_t depth)
{
    for (uint32_t i = 0; i < depth; i++) {
        uint32_t e = find(approx, worker, keys[i]);

        if (e == 0 || is_over(approx, e))
            return i;
    }
    return depth;
}

/* A backlog is more than a match may forget for nothing. Looking every matched
 * pair up costs their number, so as many may be forgotten first: the backlog
 * is gone after few such matches, and none costs more than twice that. */
static void match_past_backlog(struct bt_approx_index *approx,
                               const uint64_t *keys, size_t count,
                               uint32_t *depth_out)
{
    uint32_t workers = approx->limits.workers_max;
    size_t pairs = 0;

    for (uint32_t w = 0; w < workers; w++)
        pairs += depth_out[w];
    bt_approx_expire(approx, approx->now_ns, pairs);
    bt_prefix_index_match(approx->index, keys, count, depth_out);
    if (!has_backlog(approx))
        return;
    for (uint32_t w = 0; w < workers; w++)
        depth_out[w] = live_depth(approx, w, keys, depth_out[w]);
}

void bt_approx_match(struct bt_approx_index *approx, const uint64_t *keys,
                     size_t count, int64_t now_ns, uint32_t *depth_out)
{
    bt_approx_expire(approx, now_ns, EXPIRE_MATCH);
    bt_prefix_index_match(approx->index, keys, count, depth_out);
    if (has_backlog(approx))
        match_past_backlog(approx, keys, count, depth_out);
}

uint32_t bt_approx_worker_blocks(const struct bt_approx_index *approx,
                                 uint32_t worker)
{
    return row_of(approx, worker)->entries;
}

void bt_approx_stats_get(const struct bt_approx_index *approx,
                         struct bt_approx_stats *out)
{
    struct bt_prefix_index_stats of_index;

    bt_prefix_index_stats_get(approx->index, &of_index);
    *out = approx->stats;
    out->blocks = of_index.blocks;
}
