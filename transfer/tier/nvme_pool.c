/* Requests of an NVMe pool: accepts them, keeps `depth` at the device, ends
 * them by call-back from the loop. Leaves the two phases of a store to
 * nvme_commit.c, what is where to nvme_index.c, the disk to nvme_ring.c.
 *
 *   load:  waiting -> device -> ended        (pins its slot from the start)
 *   store: waiting -> device -> commit -> ended   (owns its slot)
 *
 * Invariants: a request is in one list; there are depth + waiting_max of them,
 * all made at opening; call-backs run from the loop or from close, never from
 * the call that made the request; the device gets its next request before the
 * last one's bytes are hashed. */
#include "nvme.h"

#include "baton/transfer/runs.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH       32u
#define DEPTH_MAX   1024u
#define WAITING     4096u
#define WAITING_MAX (1u << 20)

/* ---- ends ---- */

static void to_ended(struct bt_nvme_pool *pool, struct bt_nvme_request *r,
                     enum bt_status status)
{
    r->status = status;
    TAILQ_INSERT_TAIL(&pool->ended, r, entry);
}

void bt_nvme_erase(struct bt_nvme_pool *pool, uint32_t slot, bool soon)
{
    bt_nvme_record_erase(&pool->file, slot);
    bt_nvme_commit_dirty(pool, slot, soon);
}

void bt_nvme_store_end(struct bt_nvme_pool *pool, struct bt_nvme_request *r,
                       enum bt_status status)
{
    struct bt_nvme_slot *slot = &pool->index.slots[r->slot];
    enum bt_status others = status == BT_OK ? BT_EXISTS : status;
    struct bt_nvme_request *f;

    if (slot->state == BT_SLOT_GONE && status == BT_OK)
        status = others = BT_CANCELLED;
    slot->store = NULL;
    if (status == BT_OK) {
        bt_nvme_index_stored(&pool->index, r->slot);
        pool->stats.writes++;
        pool->stats.write_bytes += pool->file.block_bytes;
    } else {
        bt_nvme_erase(pool, r->slot, false);
        bt_nvme_index_remove(&pool->index, r->slot);
    }
    pool->stores--;
    while ((f = TAILQ_FIRST(&r->followers)) != NULL) {
        TAILQ_REMOVE(&r->followers, f, entry);
        to_ended(pool, f, others);
    }
    to_ended(pool, r, status);
}

static void drop_slot(struct bt_nvme_pool *pool, uint32_t slot, bool soon)
{
    bt_nvme_erase(pool, slot, soon);
    bt_nvme_index_remove(&pool->index, slot);
}

/* The bytes are there: are they the ones that were stored? */
static enum bt_status prove(struct bt_nvme_pool *pool,
                            const struct bt_nvme_request *r)
{
    struct bt_nvme_slot *slot = &pool->index.slots[r->slot];

    if (!pool->verify && !slot->unproven)
        return BT_OK;
    if (bt_block_checksum(r->op.buffer, pool->file.block_bytes) !=
        slot->checksum)
        return BT_CHECKSUM;
    slot->unproven = false;
    return BT_OK;
}

static void load_end(struct bt_nvme_pool *pool, struct bt_nvme_request *r)
{
    if (r->status == BT_OK)
        r->status = prove(pool, r);
    if (r->status == BT_OK) {
        pool->stats.reads++;
        pool->stats.read_bytes += pool->file.block_bytes;
    }
    if (r->status == BT_CHECKSUM)
        pool->stats.checksum_failures++;
    if ((r->status == BT_CHECKSUM || r->status == BT_IO) &&
        pool->index.slots[r->slot].state == BT_SLOT_HELD)
        drop_slot(pool, r->slot, true);
    bt_nvme_index_unpin(&pool->index, r->slot);
}

/* ---- device ---- */

static enum bt_status status_of(int error)
{
    if (error == 0)
        return BT_OK;
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? BT_LIMIT
                                                                : BT_IO;
}

static void data_done(struct bt_nvme_pool *pool, struct bt_nvme_request *r,
                      int error)
{
    enum bt_status status = status_of(error);

    pool->at_device--;
    if (error)
        pool->stats.io_errors++;
    if (pool->closing)
        status = BT_CANCELLED;
    if (r->op.kind == BT_NVME_READ)
        to_ended(pool, r, status == BT_LIMIT ? BT_IO : status);
    else if (status == BT_OK)
        bt_nvme_commit_written(pool, r);
    else
        bt_nvme_store_end(pool, r, status);
}

static void on_done(void *arg, struct bt_nvme_op *op, int error)
{
    struct bt_nvme_pool *pool = arg;

    switch (op->kind) {
    case BT_NVME_READ:
    case BT_NVME_WRITE:
        data_done(pool, (struct bt_nvme_request *)op, error);
        break;
    case BT_NVME_FLUSH:
        bt_nvme_commit_flushed(pool, error);
        break;
    case BT_NVME_RECORDS:
        bt_nvme_commit_recorded(pool, (struct bt_nvme_bounce *)op, error);
        break;
    }
}

static void pump(struct bt_nvme_pool *pool)
{
    struct bt_nvme_request *r;

    while (pool->at_device < pool->depth &&
           (r = TAILQ_FIRST(&pool->waiting)) != NULL) {
        TAILQ_REMOVE(&pool->waiting, r, entry);
        pool->stats.waiting--;
        pool->at_device++;
        bt_nvme_ring_start(&pool->ring, &r->op);
    }
    bt_nvme_commit_step(pool);
    bt_nvme_ring_submit(&pool->ring);
}

/* ---- call-backs ---- */

static void deliver(struct bt_nvme_pool *pool)
{
    struct bt_nvme_request *r = TAILQ_FIRST(&pool->ended);
    bt_tier_fn fn = r->fn;
    void *arg = r->arg;
    enum bt_status status;

    TAILQ_REMOVE(&pool->ended, r, entry);
    if (r->op.kind == BT_NVME_READ)
        load_end(pool, r);
    status = r->status;
    pool->stats.out--;
    TAILQ_INSERT_HEAD(&pool->free, r, entry);
    fn(arg, status);
}

static void destroy(struct bt_nvme_pool *pool)
{
    bt_nvme_commit_fini(pool);
    bt_nvme_index_fini(&pool->index);
    bt_nvme_file_close(&pool->file);
    free(pool->requests);
    free(pool);
}

static void on_event(struct ev_loop *loop, struct ev_io *w, int revents)
{
    struct bt_nvme_pool *pool = w->data;
    struct bt_nvme_request *last;

    (void)loop;
    (void)revents;
    pool->busy++;
    bt_nvme_ring_reap(&pool->ring);
    pump(pool);
    /* What call-backs add ends in a later turn. */
    last = TAILQ_LAST(&pool->ended, bt_nvme_requests);
    for (bool more = last != NULL; more && !pool->closing;) {
        more = TAILQ_FIRST(&pool->ended) != last;
        deliver(pool);
        if (!pool->closing)
            pump(pool);
    }
    pool->busy--;
    if (pool->closed && pool->busy == 0)
        destroy(pool);
    else if (!pool->closing && !TAILQ_EMPTY(&pool->ended))
        bt_nvme_ring_wake(&pool->ring);
}

/* ---- open and close ---- */

static enum bt_status make_requests(struct bt_nvme_pool *pool, uint32_t count)
{
    TAILQ_INIT(&pool->free);
    TAILQ_INIT(&pool->waiting);
    TAILQ_INIT(&pool->ended);
    pool->requests = calloc(count, sizeof(*pool->requests));
    if (!pool->requests)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        TAILQ_INIT(&pool->requests[i].followers);
        TAILQ_INSERT_TAIL(&pool->free, &pool->requests[i], entry);
    }
    return BT_OK;
}

static enum bt_status set_up(struct bt_nvme_pool *pool,
                             const struct bt_nvme_config *c)
{
    uint32_t waiting = c->waiting_max ? c->waiting_max : WAITING;
    enum bt_status status;
    uint64_t dropped;

    pool->depth = c->depth ? c->depth : DEPTH;
    pool->verify = c->verify;
    status = bt_nvme_index_init(&pool->index, pool->file.block_count);
    if (status == BT_OK)
        status = bt_nvme_commit_init(pool);
    if (status == BT_OK)
        status = make_requests(pool, pool->depth + waiting);
    if (status != BT_OK)
        return status;
    dropped = bt_nvme_index_load(&pool->index, &pool->file);
    if (dropped == UINT64_MAX)
        return BT_NO_MEMORY;
    pool->stats.dropped_at_open = pool->file.dropped + dropped;
    return BT_OK;
}

static enum bt_status open_ring(struct bt_nvme_pool *pool, const char *path,
                                char *error_out, size_t error_size)
{
    int error = bt_nvme_ring_init(&pool->ring, pool->depth + NVME_BOUNCES + 1,
                                  pool->file.fd);

    if (error == 0) {
        pool->ring.done = on_done;
        pool->ring.arg = pool;
        return BT_OK;
    }
    snprintf(error_out, error_size, "%s: io_uring: %s", path, strerror(error));
    if (error == ENOMEM)
        return BT_LIMIT;
    return error == ENOSYS || error == EPERM || error == EINVAL ? BT_UNSUPPORTED
                                                                : BT_IO;
}

enum bt_status bt_nvme_pool_open(struct ev_loop *loop,
                                 const struct bt_nvme_config *config,
                                 struct bt_nvme_pool **out, char *error_out,
                                 size_t error_size)
{
    struct bt_nvme_pool *pool;
    enum bt_status status;

    if (config->depth > DEPTH_MAX || config->waiting_max > WAITING_MAX) {
        snprintf(error_out, error_size, "%s: depth at most %u, waiting %u",
                 config->path, DEPTH_MAX, WAITING_MAX);
        return BT_INVALID;
    }
    pool = calloc(1, sizeof(*pool));
    if (!pool) {
        snprintf(error_out, error_size, "%s: out of memory", config->path);
        return BT_NO_MEMORY;
    }
    status = bt_nvme_file_open(&pool->file, config, error_out, error_size);
    if (status != BT_OK) {
        free(pool);
        return status;
    }
    status = set_up(pool, config);
    if (status == BT_OK)
        status = open_ring(pool, config->path, error_out, error_size);
    else
        snprintf(error_out, error_size, "%s: out of memory", config->path);
    if (status != BT_OK) {
        destroy(pool);
        return status;
    }
    pool->loop = loop;
    ev_io_init(&pool->watcher, on_event, pool->ring.event_fd, EV_READ);
    pool->watcher.data = pool;
    ev_io_start(loop, &pool->watcher);
    *out = pool;
    return BT_OK;
}

static void cancel_waiting(struct bt_nvme_pool *pool)
{
    struct bt_nvme_request *r;

    while ((r = TAILQ_FIRST(&pool->waiting)) != NULL) {
        TAILQ_REMOVE(&pool->waiting, r, entry);
        pool->stats.waiting--;
        if (r->op.kind == BT_NVME_READ)
            to_ended(pool, r, BT_CANCELLED);
        else
            bt_nvme_store_end(pool, r, BT_CANCELLED);
    }
    while ((r = TAILQ_FIRST(&pool->commit.written)) != NULL) {
        TAILQ_REMOVE(&pool->commit.written, r, entry);
        bt_nvme_store_end(pool, r, BT_CANCELLED);
    }
}

/* Records that were to go out: their stores have not been called back, so they
 * may as well be gone. */
static void cancel_riders(struct bt_nvme_pool *pool)
{
    struct bt_nvme_page *page;
    struct bt_nvme_request *r;

    while ((page = TAILQ_FIRST(&pool->commit.queue)) != NULL) {
        TAILQ_REMOVE(&pool->commit.queue, page, entry);
        page->queued = false;
        while ((r = TAILQ_FIRST(&page->riders)) != NULL) {
            TAILQ_REMOVE(&page->riders, r, entry);
            bt_nvme_store_end(pool, r, BT_CANCELLED);
        }
    }
}

void bt_nvme_pool_close(struct bt_nvme_pool *pool)
{
    if (!pool || pool->closing)
        return;
    pool->closing = true;
    cancel_waiting(pool);
    cancel_riders(pool);
    while (pool->ring.out > 0) {
        bt_nvme_ring_wait(&pool->ring);
        bt_nvme_ring_reap(&pool->ring);
    }
    while (!TAILQ_EMPTY(&pool->ended))
        deliver(pool);
    assert(pool->stores == 0 && pool->stats.out == 0);
    bt_nvme_commit_sync(pool);
    ev_io_stop(pool->loop, &pool->watcher);
    bt_nvme_ring_fini(&pool->ring);
    pool->closed = true;
    if (pool->busy == 0)
        destroy(pool);
}

/* ---- requests ---- */

enum bt_status bt_nvme_register(struct bt_nvme_pool *pool, void *base,
                                uint64_t bytes)
{
    return bt_nvme_ring_register(&pool->ring, base, bytes);
}

static enum bt_status admit(struct bt_nvme_pool *pool,
                            const struct bt_nvme_request *want,
                            struct bt_nvme_request **out)
{
    struct bt_nvme_request *r = TAILQ_FIRST(&pool->free);

    assert((uintptr_t)want->op.buffer % NVME_PAGE == 0);
    if (!r)
        return BT_LIMIT;
    TAILQ_REMOVE(&pool->free, r, entry);
    r->op = want->op;
    r->op.bytes = pool->file.block_bytes;
    r->slot = want->slot;
    r->fn = want->fn;
    r->arg = want->arg;
    pool->stats.out++;
    *out = r;
    return BT_OK;
}

static void queue(struct bt_nvme_pool *pool, struct bt_nvme_request *r)
{
    r->op.at = bt_nvme_block_at(&pool->file, r->slot);
    TAILQ_INSERT_TAIL(&pool->waiting, r, entry);
    pool->stats.waiting++;
    if (pool->busy == 0)
        pump(pool);
}

/* The key is there, or on its way. */
static void store_again(struct bt_nvme_pool *pool, struct bt_nvme_request *r)
{
    struct bt_nvme_slot *slot = &pool->index.slots[r->slot];

    if (slot->state == BT_SLOT_STORING) {
        TAILQ_INSERT_TAIL(&slot->store->followers, r, entry);
        return;
    }
    to_ended(pool, r, BT_EXISTS);
    bt_nvme_ring_wake(&pool->ring);
}

enum bt_status bt_nvme_store(struct bt_nvme_pool *pool, uint64_t key,
                             const void *from, bt_tier_fn fn, void *arg)
{
    struct bt_nvme_request *r, want = {.fn = fn, .arg = arg};
    uint32_t slot = bt_nvme_index_find(&pool->index, key);
    bool there = slot != NVME_NONE, evicted = false;
    enum bt_status status;

    if (pool->closing)
        return BT_CANCELLED;
    if (TAILQ_EMPTY(&pool->free))
        return BT_LIMIT;
    if (!there)
        slot = bt_nvme_index_take(&pool->index, key, &evicted);
    if (slot == NVME_NONE)
        return BT_LIMIT;
    want.op.kind = BT_NVME_WRITE;
    want.op.buffer = (unsigned char *)(uintptr_t)from;
    want.slot = slot;
    status = admit(pool, &want, &r);
    assert(status == BT_OK);
    if (there) {
        store_again(pool, r);
        return BT_OK;
    }
    if (evicted) {
        pool->stats.evicted++;
        bt_nvme_erase(pool, slot, false);
    }
    pool->index.slots[slot].store = r;
    pool->stores++;
    queue(pool, r);
    return BT_OK;
}

enum bt_status bt_nvme_load(struct bt_nvme_pool *pool, uint64_t key, void *to,
                            bt_tier_fn fn, void *arg)
{
    struct bt_nvme_request *r, want = {.fn = fn, .arg = arg};
    enum bt_status status;

    if (pool->closing)
        return BT_CANCELLED;
    if (!bt_nvme_has(pool, key))
        return BT_NOT_FOUND;
    want.op.kind = BT_NVME_READ;
    want.op.buffer = to;
    want.slot = bt_nvme_index_find(&pool->index, key);
    status = admit(pool, &want, &r);
    if (status != BT_OK)
        return status;
    bt_nvme_index_pin(&pool->index, want.slot);
    queue(pool, r);
    return BT_OK;
}

bool bt_nvme_has(const struct bt_nvme_pool *pool, uint64_t key)
{
    uint32_t slot = bt_nvme_index_find(&pool->index, key);

    return slot != NVME_NONE && pool->index.slots[slot].state == BT_SLOT_HELD;
}

uint64_t bt_nvme_block_bytes(const struct bt_nvme_pool *pool)
{
    return pool->file.block_bytes;
}

void bt_nvme_drop(struct bt_nvme_pool *pool, uint64_t key)
{
    uint32_t slot = bt_nvme_index_find(&pool->index, key);

    if (slot == NVME_NONE || pool->closing)
        return;
    drop_slot(pool, slot, true);
    if (pool->busy == 0)
        pump(pool);
}

void bt_nvme_stats(const struct bt_nvme_pool *pool, struct bt_nvme_stats *out)
{
    *out = pool->stats;
    out->out -= out->waiting;
    out->blocks = pool->index.held;
    out->capacity = pool->file.block_count;
}

void bt_nvme_hook(struct bt_nvme_pool *pool, bt_nvme_hook_fn fn, void *arg)
{
    pool->ring.hook = fn;
    pool->ring.hook_arg = arg;
}
