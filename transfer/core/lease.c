/* Leases by request id. Each record is found by its id through a hash table;
 * each (lease, block) pair through another, so a pull of n blocks is checked in
 * O(n) and the table is full only when it really holds blocks_max blocks. Live
 * leases stand in a heap by expiry, those that are over in a queue.
 *
 *   live --release/withdraw/expiry--> closing --no reader--> over --reap-->
 * gone or remembered (expired)
 *
 * Invariants: a lease is in the heap exactly while live and in the queue
 * exactly while over; its blocks leave the table when it is reaped, never under
 * a reader. Time comes with the call. */
#include "baton/transfer/lease.h"

#include "baton/base/rng.h"
#include "baton/transfer/kv.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#define NONE UINT32_MAX

/* X(state, name, allowed next, waiting for) */
#define LEASE_STATES(X)                                                        \
    X(LEASE_FREE, "free", 1u << LEASE_LIVE, "an id")                           \
    X(LEASE_LIVE, "live", 1u << LEASE_CLOSING, "release or expiry")            \
    X(LEASE_CLOSING, "closing", 1u << LEASE_OVER, "its readers")               \
    X(LEASE_OVER, "over", 1u << LEASE_FREE | 1u << LEASE_REMEMBERED, "reap")   \
    X(LEASE_REMEMBERED, "remembered", 1u << LEASE_FREE, "its id, or room")
enum lease_state {
#define X(state, name, next, waits) state,
    LEASE_STATES(X)
#undef X
};

static const struct {
    const char *name, *waits;
    unsigned int next;
} states[] = {
#define X(state, name, next, waits) {name, waits, next},
    LEASE_STATES(X)
#undef X
};

struct lease {
    char id[BT_KV_REQUEST_MAX + 1];
    enum lease_state state;
    enum bt_lease_why why;
    uint32_t readers, block_count;
    uint32_t blocks;  /* first of its entries; NONE */
    uint32_t chained; /* next with this hash */
    uint32_t next;    /* of the free, over or remembered ones */
    uint32_t place;   /* in the heap */
    uint64_t serial;
    int64_t expires_ns;
    void *owner;
};

/* One block of one lease. */
struct entry {
    uint64_t block;
    uint32_t lease;
    uint32_t chained; /* next with this hash */
    uint32_t next;    /* of this lease, or free */
};

/* First in, first out, through lease.next. */
struct queue {
    uint32_t head, tail, count;
};

struct bt_leases {
    struct bt_leases_config config;
    struct lease *leases; /* leases_max + expired_max */
    struct entry *entries;
    uint32_t *ids, *pairs; /* buckets */
    uint32_t *heap;
    uint32_t id_mask, pair_mask;
    uint32_t lease_free, entry_free;
    uint32_t heap_count, count;
    struct queue over, remembered;
    uint64_t serial, blocks;
};

static void move(struct lease *lease, enum lease_state next)
{
    assert(states[lease->state].next & 1u << next);
    lease->state = next;
}

/* ---- memory ---- */

static size_t records(const struct bt_leases_config *c)
{
    return (size_t)c->leases_max + c->expired_max;
}

static size_t buckets(size_t count)
{
    size_t size = 16;

    while (size < count && size < (size_t)1 << 31)
        size *= 2;
    return size;
}

static bool is_sound(const struct bt_leases_config *c)
{
    return c->leases_max > 0 && c->blocks_max > 0 && records(c) < NONE &&
           c->blocks_max < NONE;
}

size_t bt_leases_bytes(const struct bt_leases_config *c)
{
    const size_t parts[] = {
        bt_arena_need(1, sizeof(struct bt_leases)),
        bt_arena_need(records(c), sizeof(struct lease)),
        bt_arena_need(c->blocks_max, sizeof(struct entry)),
        bt_arena_need(buckets(records(c)), sizeof(uint32_t)),
        bt_arena_need(buckets(c->blocks_max), sizeof(uint32_t)),
        bt_arena_need(c->leases_max, sizeof(uint32_t)),
    };
    size_t sum = 0;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i] > SIZE_MAX - sum)
            return SIZE_MAX;
        sum += parts[i];
    }
    return sum;
}

static void lists_init(struct bt_leases *leases)
{
    size_t count = records(&leases->config);

    for (size_t i = 0; i < count; i++)
        leases->leases[i].next = i + 1 < count ? (uint32_t)i + 1 : NONE;
    for (size_t i = 0; i < leases->config.blocks_max; i++)
        leases->entries[i].next =
            i + 1 < leases->config.blocks_max ? (uint32_t)i + 1 : NONE;
    for (size_t i = 0; i <= leases->id_mask; i++)
        leases->ids[i] = NONE;
    for (size_t i = 0; i <= leases->pair_mask; i++)
        leases->pairs[i] = NONE;
    leases->over = leases->remembered = (struct queue){NONE, NONE, 0};
}

enum bt_status bt_leases_init(struct bt_arena *arena,
                              const struct bt_leases_config *config,
                              struct bt_leases **out)
{
    struct bt_leases *leases;
    size_t ids, pairs;

    if (!is_sound(config))
        return BT_INVALID;
    ids = buckets(records(config));
    pairs = buckets(config->blocks_max);
    leases = bt_arena_take(arena, 1, sizeof(*leases));
    if (leases == NULL)
        return BT_NO_MEMORY;
    leases->config = *config;
    leases->leases =
        bt_arena_take(arena, records(config), sizeof(struct lease));
    leases->entries =
        bt_arena_take(arena, config->blocks_max, sizeof(struct entry));
    leases->ids = bt_arena_take(arena, ids, sizeof(uint32_t));
    leases->pairs = bt_arena_take(arena, pairs, sizeof(uint32_t));
    leases->heap = bt_arena_take(arena, config->leases_max, sizeof(uint32_t));
    if (leases->leases == NULL || leases->entries == NULL ||
        leases->ids == NULL || leases->pairs == NULL || leases->heap == NULL)
        return BT_NO_MEMORY;
    leases->id_mask = (uint32_t)ids - 1;
    leases->pair_mask = (uint32_t)pairs - 1;
    lists_init(leases);
    *out = leases;
    return BT_OK;
}

/* ---- queues ---- */

static void push(struct bt_leases *leases, struct queue *queue, uint32_t index)
{
    leases->leases[index].next = NONE;
    if (queue->head == NONE)
        queue->head = index;
    else
        leases->leases[queue->tail].next = index;
    queue->tail = index;
    queue->count++;
}

static uint32_t pop(struct bt_leases *leases, struct queue *queue)
{
    uint32_t index = queue->head;

    queue->head = leases->leases[index].next;
    queue->count--;
    return index;
}

static void remove_from(struct bt_leases *leases, struct queue *queue,
                        uint32_t index)
{
    uint32_t *link = &queue->head, before = NONE;

    while (*link != index) {
        before = *link;
        link = &leases->leases[*link].next;
    }
    *link = leases->leases[index].next;
    if (queue->tail == index)
        queue->tail = before;
    queue->count--;
}

/* ---- heap of live leases, earliest expiry first, then the older ---- */

static bool sooner(const struct bt_leases *leases, uint32_t a, uint32_t b)
{
    const struct lease *x = &leases->leases[a], *y = &leases->leases[b];

    if (x->expires_ns != y->expires_ns)
        return x->expires_ns < y->expires_ns;
    return x->serial < y->serial;
}

static void put_at(struct bt_leases *leases, uint32_t place, uint32_t index)
{
    leases->heap[place] = index;
    leases->leases[index].place = place;
}

static void sift_up(struct bt_leases *leases, uint32_t at)
{
    uint32_t index = leases->heap[at];

    while (at > 0 && sooner(leases, index, leases->heap[(at - 1) / 2])) {
        put_at(leases, at, leases->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put_at(leases, at, index);
}

static void sift_down(struct bt_leases *leases, uint32_t at)
{
    uint32_t index = leases->heap[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= leases->heap_count)
            break;
        if (child + 1 < leases->heap_count &&
            sooner(leases, leases->heap[child + 1], leases->heap[child]))
            child++;
        if (!sooner(leases, leases->heap[child], index))
            break;
        put_at(leases, at, leases->heap[child]);
        at = child;
    }
    put_at(leases, at, index);
}

static void heap_add(struct bt_leases *leases, uint32_t index)
{
    put_at(leases, leases->heap_count++, index);
    sift_up(leases, leases->heap_count - 1);
}

static void heap_remove(struct bt_leases *leases, uint32_t index)
{
    uint32_t at = leases->leases[index].place;
    uint32_t last = leases->heap[--leases->heap_count];

    if (last == index)
        return;
    put_at(leases, at, last);
    sift_up(leases, at);
    sift_down(leases, leases->leases[last].place);
}

/* ---- blocks ---- */

static uint32_t *pair_bucket(const struct bt_leases *leases, uint32_t lease,
                             uint64_t block)
{
    uint64_t hash = bt_mix64(block ^ bt_mix64(lease));

    return &leases->pairs[(uint32_t)hash & leases->pair_mask];
}

static bool has_block(const struct bt_leases *leases, uint32_t lease,
                      uint64_t block)
{
    uint32_t at = *pair_bucket(leases, lease, block);

    while (at != NONE && (leases->entries[at].block != block ||
                          leases->entries[at].lease != lease))
        at = leases->entries[at].chained;
    return at != NONE;
}

static void blocks_drop(struct bt_leases *leases, uint32_t index)
{
    struct lease *lease = &leases->leases[index];

    while (lease->blocks != NONE) {
        uint32_t at = lease->blocks;
        struct entry *entry = &leases->entries[at];
        uint32_t *link = pair_bucket(leases, index, entry->block);

        while (*link != at)
            link = &leases->entries[*link].chained;
        *link = entry->chained;
        lease->blocks = entry->next;
        entry->next = leases->entry_free;
        leases->entry_free = at;
        leases->blocks--;
    }
}

/* False: a block twice. Room was checked. */
static bool blocks_take(struct bt_leases *leases, uint32_t index,
                        const uint64_t *blocks, size_t count)
{
    struct lease *lease = &leases->leases[index];

    for (size_t i = 0; i < count; i++) {
        uint32_t at = leases->entry_free, *bucket;

        if (has_block(leases, index, blocks[i])) {
            blocks_drop(leases, index);
            return false;
        }
        bucket = pair_bucket(leases, index, blocks[i]);
        leases->entry_free = leases->entries[at].next;
        leases->entries[at] =
            (struct entry){blocks[i], index, *bucket, lease->blocks};
        *bucket = lease->blocks = at;
        leases->blocks++;
    }
    return true;
}

/* ---- ids ---- */

static uint32_t *id_bucket(const struct bt_leases *leases, const char *id)
{
    uint64_t hash = XXH3_64bits(id, strlen(id));

    return &leases->ids[(uint32_t)hash & leases->id_mask];
}

static uint32_t find(const struct bt_leases *leases, const char *id)
{
    uint32_t at = *id_bucket(leases, id);

    while (at != NONE && strcmp(leases->leases[at].id, id) != 0)
        at = leases->leases[at].chained;
    return at;
}

/* Forget a record for good. */
static void lease_free(struct bt_leases *leases, uint32_t index)
{
    struct lease *lease = &leases->leases[index];
    uint32_t *link = id_bucket(leases, lease->id);

    while (*link != index)
        link = &leases->leases[*link].chained;
    *link = lease->chained;
    move(lease, LEASE_FREE);
    lease->next = leases->lease_free;
    leases->lease_free = index;
}

/* A live lease; else what to answer. */
static enum bt_status find_live(const struct bt_leases *leases, const char *id,
                                uint32_t *index_out)
{
    uint32_t index = find(leases, id);

    if (index == NONE)
        return BT_NOT_FOUND;
    if (leases->leases[index].state != LEASE_LIVE)
        return leases->leases[index].why == BT_LEASE_EXPIRES ? BT_LEASE_EXPIRED
                                                             : BT_NOT_FOUND;
    *index_out = index;
    return BT_OK;
}

/* ---- publish ---- */

/* Out of the free ones, filled in, not yet in any table. */
static uint32_t lease_take(struct bt_leases *leases, const char *id,
                           int64_t expires_ns, void *owner)
{
    uint32_t index = leases->lease_free;
    struct lease *lease = &leases->leases[index];

    leases->lease_free = lease->next;
    *lease = (struct lease){
        .state = LEASE_FREE,
        .blocks = NONE,
        .chained = NONE,
        .next = NONE,
        .serial = ++leases->serial,
        .expires_ns = expires_ns,
        .owner = owner,
    };
    memcpy(lease->id, id, strlen(id) + 1);
    return index;
}

enum bt_status bt_lease_publish(struct bt_leases *leases, const char *id,
                                const uint64_t *blocks, size_t count,
                                int64_t expires_ns, void *owner)
{
    size_t length = strnlen(id, BT_KV_REQUEST_MAX + 1);
    uint32_t index, old, *bucket;

    if (length == 0 || length > BT_KV_REQUEST_MAX)
        return BT_INVALID;
    index = find(leases, id);
    if (index != NONE && leases->leases[index].state != LEASE_REMEMBERED)
        return BT_EXISTS;
    if (leases->count == leases->config.leases_max ||
        count > leases->config.blocks_max - leases->blocks)
        return BT_LIMIT;
    old = index;
    index = lease_take(leases, id, expires_ns, owner);
    if (!blocks_take(leases, index, blocks, count)) {
        leases->leases[index].next = leases->lease_free;
        leases->lease_free = index;
        return BT_INVALID;
    }
    if (old != NONE) {
        remove_from(leases, &leases->remembered, old);
        lease_free(leases, old);
    }
    bucket = id_bucket(leases, id);
    leases->leases[index].chained = *bucket;
    *bucket = index;
    leases->leases[index].block_count = (uint32_t)count;
    move(&leases->leases[index], LEASE_LIVE);
    heap_add(leases, index);
    leases->count++;
    return BT_OK;
}

/* ---- readers ---- */

enum bt_status bt_lease_read(struct bt_leases *leases, const char *id,
                             const uint64_t *blocks, size_t count,
                             int64_t now_ns)
{
    uint32_t index = NONE;
    enum bt_status status = find_live(leases, id, &index);

    if (status != BT_OK)
        return status;
    if (leases->leases[index].expires_ns <= now_ns)
        return BT_LEASE_EXPIRED;
    for (size_t i = 0; i < count; i++) {
        if (!has_block(leases, index, blocks[i]))
            return BT_NOT_FOUND;
    }
    leases->leases[index].readers++;
    return BT_OK;
}

static void settle(struct bt_leases *leases, uint32_t index)
{
    struct lease *lease = &leases->leases[index];

    if (lease->state != LEASE_CLOSING || lease->readers > 0)
        return;
    move(lease, LEASE_OVER);
    push(leases, &leases->over, index);
}

void bt_lease_left(struct bt_leases *leases, const char *id)
{
    uint32_t index = find(leases, id);

    if (index == NONE || leases->leases[index].readers == 0)
        return;
    leases->leases[index].readers--;
    settle(leases, index);
}

/* ---- ends ---- */

static void close_lease(struct bt_leases *leases, uint32_t index,
                        enum bt_lease_why why)
{
    heap_remove(leases, index);
    leases->leases[index].why = why;
    move(&leases->leases[index], LEASE_CLOSING);
    settle(leases, index);
}

static enum bt_status end(struct bt_leases *leases, const char *id,
                          enum bt_lease_why why)
{
    uint32_t index = NONE;
    enum bt_status status = find_live(leases, id, &index);

    if (status == BT_OK)
        close_lease(leases, index, why);
    return status;
}

enum bt_status bt_lease_release(struct bt_leases *leases, const char *id)
{
    return end(leases, id, BT_LEASE_RELEASED);
}

enum bt_status bt_lease_withdraw(struct bt_leases *leases, const char *id)
{
    return end(leases, id, BT_LEASE_WITHDRAWN);
}

enum bt_status bt_lease_renew(struct bt_leases *leases, const char *id,
                              int64_t expires_ns)
{
    uint32_t index = NONE;
    enum bt_status status = find_live(leases, id, &index);

    if (status != BT_OK || leases->leases[index].expires_ns >= expires_ns)
        return status;
    leases->leases[index].expires_ns = expires_ns;
    sift_down(leases, leases->leases[index].place);
    return BT_OK;
}

static void remember(struct bt_leases *leases, uint32_t index)
{
    if (leases->config.expired_max == 0) {
        lease_free(leases, index);
        return;
    }
    if (leases->remembered.count == leases->config.expired_max)
        lease_free(leases, pop(leases, &leases->remembered));
    move(&leases->leases[index], LEASE_REMEMBERED);
    push(leases, &leases->remembered, index);
}

bool bt_lease_reap(struct bt_leases *leases, int64_t now_ns,
                   struct bt_lease_over *out)
{
    struct lease *lease;
    uint32_t index;

    while (bt_lease_next(leases) <= now_ns && leases->heap_count > 0)
        close_lease(leases, leases->heap[0], BT_LEASE_EXPIRES);
    if (leases->over.count == 0)
        return false;
    index = pop(leases, &leases->over);
    lease = &leases->leases[index];
    memcpy(out->id, lease->id, sizeof(out->id));
    out->owner = lease->owner;
    out->why = lease->why;
    out->block_count = lease->block_count;
    blocks_drop(leases, index);
    leases->count--;
    if (lease->why == BT_LEASE_EXPIRES)
        remember(leases, index);
    else
        lease_free(leases, index);
    return true;
}

/* ---- load ---- */

int64_t bt_lease_next(const struct bt_leases *leases)
{
    if (leases->heap_count == 0)
        return INT64_MAX;
    return leases->leases[leases->heap[0]].expires_ns;
}

uint32_t bt_lease_count(const struct bt_leases *leases)
{
    return leases->count;
}

uint64_t bt_lease_blocks(const struct bt_leases *leases)
{
    return leases->blocks;
}
