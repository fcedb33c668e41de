/* Two phases of a store: its block is on the disk before its record is written.
 * One fdatasync serves every store whose block was written before it began; the
 * records it covers go out by page, at most 8 pages at a time, and one write
 * serves every record that waits for a page.
 *
 *   written --fdatasync--> flushing --record in the image--> riders --> ended
 *
 * Why one fdatasync and not two: a record that a power cut loses means a block
 * that is absent, which a cache may be; a record without its block would be a
 * lie, so that order is kept. Records are flushed by the next group, or by a
 * flush of their own when no store is under way.
 * Invariants: a page is at the device at most once, as a copy: the image may
 * change meanwhile and the page is then dirty again. */
#include "nvme.h"

#include "baton/transfer/runs.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum bt_status bt_nvme_commit_init(struct bt_nvme_pool *pool)
{
    struct bt_nvme_commit *c = &pool->commit;

    TAILQ_INIT(&c->written);
    TAILQ_INIT(&c->flushing);
    TAILQ_INIT(&c->queue);
    c->flush.kind = BT_NVME_FLUSH;
    c->pages = calloc(pool->file.pages, sizeof(*c->pages));
    c->memory = aligned_alloc(NVME_PAGE, (size_t)NVME_BOUNCES * NVME_PAGE);
    if (!c->pages || !c->memory)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < pool->file.pages; i++)
        TAILQ_INIT(&c->pages[i].riders);
    for (uint32_t i = 0; i < NVME_BOUNCES; i++) {
        c->bounce[i].op.kind = BT_NVME_RECORDS;
        c->bounce[i].op.buffer = c->memory + (size_t)i * NVME_PAGE;
        c->bounce[i].op.bytes = NVME_PAGE;
        TAILQ_INIT(&c->bounce[i].riders);
    }
    return BT_OK;
}

void bt_nvme_commit_fini(struct bt_nvme_pool *pool)
{
    free(pool->commit.pages);
    free(pool->commit.memory);
}

void bt_nvme_commit_written(struct bt_nvme_pool *pool,
                            struct bt_nvme_request *r)
{
    TAILQ_INSERT_TAIL(&pool->commit.written, r, entry);
}

static void enqueue(struct bt_nvme_commit *c, struct bt_nvme_page *page)
{
    if (page->queued)
        return;
    page->queued = true;
    TAILQ_INSERT_TAIL(&c->queue, page, entry);
}

void bt_nvme_commit_dirty(struct bt_nvme_pool *pool, uint32_t slot, bool soon)
{
    struct bt_nvme_page *page = &pool->commit.pages[slot / NVME_PER_PAGE];

    page->dirty = true;
    if (soon)
        enqueue(&pool->commit, page);
}

/* ---- fdatasync ---- */

/* Nothing under way that would flush the last records along. */
static bool idle_flush(const struct bt_nvme_pool *pool)
{
    const struct bt_nvme_commit *c = &pool->commit;

    return c->unsynced && pool->stores == 0 && c->pages_out == 0 &&
           TAILQ_EMPTY(&c->queue) && !pool->closing;
}

static void start_flush(struct bt_nvme_pool *pool)
{
    struct bt_nvme_commit *c = &pool->commit;

    if (c->flush_out || (TAILQ_EMPTY(&c->written) && !idle_flush(pool)))
        return;
    TAILQ_CONCAT(&c->flushing, &c->written, entry);
    c->unsynced = c->pages_out > 0;
    c->flush_out = true;
    bt_nvme_ring_start(&pool->ring, &c->flush);
    bt_nvme_ring_submit(&pool->ring);
    /* The checksums are ready when the disk is. */
    for (struct bt_nvme_request *r = TAILQ_FIRST(&c->flushing); r;
         r = TAILQ_NEXT(r, entry))
        pool->index.slots[r->slot].checksum =
            bt_block_checksum(r->op.buffer, pool->file.block_bytes);
}

static void record(struct bt_nvme_pool *pool, struct bt_nvme_request *r)
{
    struct bt_nvme_page *page = &pool->commit.pages[r->slot / NVME_PER_PAGE];
    const struct bt_nvme_slot *slot = &pool->index.slots[r->slot];
    const struct bt_nvme_record record = {slot->key, slot->generation,
                                          slot->checksum};

    if (slot->state == BT_SLOT_GONE) {
        bt_nvme_store_end(pool, r, BT_CANCELLED);
        return;
    }
    bt_nvme_record_put(&pool->file, r->slot, &record);
    bt_nvme_commit_dirty(pool, r->slot, true);
    TAILQ_INSERT_TAIL(&page->riders, r, entry);
}

void bt_nvme_commit_flushed(struct bt_nvme_pool *pool, int error)
{
    struct bt_nvme_commit *c = &pool->commit;
    struct bt_nvme_request *r;

    c->flush_out = false;
    if (error)
        pool->stats.io_errors++;
    while ((r = TAILQ_FIRST(&c->flushing)) != NULL) {
        TAILQ_REMOVE(&c->flushing, r, entry);
        if (error || pool->closing)
            bt_nvme_store_end(pool, r, error ? BT_IO : BT_CANCELLED);
        else
            record(pool, r);
    }
}

/* ---- records ---- */

static struct bt_nvme_bounce *free_bounce(struct bt_nvme_commit *c)
{
    for (uint32_t i = 0; i < NVME_BOUNCES; i++)
        if (!c->bounce[i].page)
            return &c->bounce[i];
    return NULL;
}

static void write_page(struct bt_nvme_pool *pool, struct bt_nvme_bounce *bounce,
                       struct bt_nvme_page *page)
{
    uint32_t at = (uint32_t)(page - pool->commit.pages);

    page->dirty = false;
    page->busy = true;
    bounce->page = page;
    memcpy(bounce->op.buffer, pool->file.image + (size_t)at * NVME_PAGE,
           NVME_PAGE);
    bounce->op.at = (uint64_t)NVME_PAGE * (1 + at);
    TAILQ_CONCAT(&bounce->riders, &page->riders, entry);
    pool->commit.pages_out++;
    bt_nvme_ring_start(&pool->ring, &bounce->op);
}

static void start_pages(struct bt_nvme_pool *pool)
{
    struct bt_nvme_commit *c = &pool->commit;
    struct bt_nvme_page *page = TAILQ_FIRST(&c->queue);
    struct bt_nvme_page *next;
    struct bt_nvme_bounce *bounce;

    for (; page; page = next) {
        next = TAILQ_NEXT(page, entry);
        bounce = free_bounce(c);
        if (!bounce)
            return;
        if (page->busy)
            continue;
        TAILQ_REMOVE(&c->queue, page, entry);
        page->queued = false;
        write_page(pool, bounce, page);
    }
}

void bt_nvme_commit_recorded(struct bt_nvme_pool *pool,
                             struct bt_nvme_bounce *bounce, int error)
{
    struct bt_nvme_commit *c = &pool->commit;
    struct bt_nvme_page *page = bounce->page;
    struct bt_nvme_request *r;

    bounce->page = NULL;
    page->busy = false;
    c->pages_out--;
    if (error) {
        /* What is on the disk is unknown; the image is right. It goes out with
         * the next record of the page, or at the end. */
        pool->stats.io_errors++;
        page->dirty = true;
    } else {
        c->unsynced = true;
    }
    while ((r = TAILQ_FIRST(&bounce->riders)) != NULL) {
        TAILQ_REMOVE(&bounce->riders, r, entry);
        bt_nvme_store_end(pool, r, error ? BT_IO : BT_OK);
    }
}

void bt_nvme_commit_step(struct bt_nvme_pool *pool)
{
    start_pages(pool);
    start_flush(pool);
}

void bt_nvme_commit_sync(struct bt_nvme_pool *pool)
{
    const struct bt_nvme_file *f = &pool->file;

    for (uint32_t i = 0; i < f->pages; i++) {
        size_t at = (size_t)i * NVME_PAGE;

        if (pool->commit.pages[i].dirty &&
            bt_nvme_pwrite(f->fd, f->image + at, NVME_PAGE, NVME_PAGE + at))
            pool->stats.io_errors++;
    }
    if (fdatasync(f->fd) != 0)
        pool->stats.io_errors++;
}
