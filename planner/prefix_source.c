/* What concerns all entries of one (worker, rank) of the prefix index: clear,
 * drop, age, the way of counting. Decides how its pages are gone through;
 * leaves single entries to prefix_holding.c.
 *
 * Invariant: an entry is aged when its epoch is not its source's. When the
 * epochs of four bits are used up, all entries get the lowest and the source
 * the next: all were to be aged at that moment anyway.
 */
#include "prefix_index_impl.h"

#include <assert.h>

/* What to do with an entry; it may end, its neighbours stay where they are. */
typedef void (*entry_fn)(struct bt_prefix_index *x, uint32_t source,
                         uint32_t item, uint64_t *arg);

static void page_visit(struct bt_prefix_index *x, uint32_t page, entry_fn fn,
                       uint64_t *arg)
{
    uint32_t source = x->pages[page].source;

    pi_page_fetch(x, page);
    for (uint32_t used = x->pages[page].used; used != 0; used &= used - 1)
        fn(x, source, page << x->page_shift | (uint32_t)__builtin_ctz(used),
           arg);
}

/* Every entry once; a page that opens on the way is met again, so fn must do
 * nothing to an entry the second time. */
static void source_visit(struct bt_prefix_index *x, uint32_t source,
                         entry_fn fn, uint64_t *arg)
{
    uint32_t page, next;

    for (page = x->sources[source].full.head; page != 0; page = next) {
        next = x->pages[page].next;
        page_visit(x, page, fn, arg);
    }
    for (page = x->sources[source].open.head; page != 0; page = next) {
        next = x->pages[page].next;
        page_visit(x, page, fn, arg);
    }
}

static void entry_drop(struct bt_prefix_index *x, uint32_t source,
                       uint32_t item, uint64_t *arg)
{
    (void)arg;
    pi_holding_drop(x, item, source);
}

static void source_clear(struct bt_prefix_index *x, uint32_t source)
{
    source_visit(x, source, entry_drop, NULL);
    assert(x->sources[source].count == 0);
    pi_source_settle(x, source);
}

void bt_prefix_index_clear(struct bt_prefix_index *index, uint32_t worker,
                           uint32_t rank)
{
    uint32_t source;

    assert(worker < index->limits.workers_max);
    index->stats.clears++;
    source = pi_source_find(index, worker, rank);
    if (source != 0)
        source_clear(index, source);
}

void bt_prefix_index_drop_worker(struct bt_prefix_index *index, uint32_t worker)
{
    assert(worker < index->limits.workers_max);
    while (index->worker_sources[worker] != 0)
        source_clear(index, index->worker_sources[worker]);
}

static void entry_clear_tier(struct bt_prefix_index *x, uint32_t source,
                             uint32_t item, uint64_t *tier)
{
    (void)pi_holding_set(x, item, source, (unsigned int)*tier, 0);
}

void bt_prefix_index_clear_tier(struct bt_prefix_index *index, uint32_t worker,
                                uint32_t rank, enum bt_tier tier)
{
    uint64_t arg = (uint64_t)tier;
    uint32_t source;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)tier < BT_TIERS);
    index->stats.clears++;
    source = pi_source_find(index, worker, rank);
    if (source == 0)
        return;
    source_visit(index, source, entry_clear_tier, &arg);
    pi_source_settle(index, source);
}

/* ---- counting ---- */

static void entry_set(struct bt_prefix_index *x, uint32_t source, uint32_t item,
                      uint64_t *arg)
{
    (void)arg;
    for (unsigned int t = 0; t < BT_TIERS; t++)
        if (pi_copies(x->holdings[item].counts, t) > 1)
            (void)pi_holding_set(x, item, source, t, 1);
}

void bt_prefix_index_counting(struct bt_prefix_index *index, uint32_t worker,
                              uint32_t rank, enum bt_kv_counting counting)
{
    uint32_t source;

    assert(worker < index->limits.workers_max);
    source = pi_source_find(index, worker, rank);
    if (source == 0 && counting != BT_KV_COUNT_COPIES)
        source = pi_source_make(index, worker, rank);
    if (source == 0)
        return;
    if (counting == BT_KV_COUNT_SET)
        source_visit(index, source, entry_set, NULL);
    index->sources[source].counting = (uint8_t)counting;
    if (counting == BT_KV_COUNT_COPIES)
        pi_source_settle(index, source);
}

/* ---- age ---- */

static void entry_oldest(struct bt_prefix_index *x, uint32_t source,
                         uint32_t item, uint64_t *arg)
{
    (void)source;
    (void)arg;
    x->holdings[item].counts &= PI_COUNTS_MASK;
}

void bt_prefix_index_age(struct bt_prefix_index *index, uint32_t worker,
                         uint32_t rank)
{
    uint32_t source;

    assert(worker < index->limits.workers_max);
    source = pi_source_find(index, worker, rank);
    if (source == 0)
        return;
    if (index->sources[source].epoch == PI_EPOCHS - 1) {
        source_visit(index, source, entry_oldest, NULL);
        index->sources[source].epoch = 0;
    }
    index->sources[source].epoch++;
}

static void entry_drop_aged(struct bt_prefix_index *x, uint32_t source,
                            uint32_t item, uint64_t *dropped)
{
    if (x->holdings[item].counts >> 28 == x->sources[source].epoch)
        return;
    pi_holding_drop(x, item, source);
    (*dropped)++;
}

uint64_t bt_prefix_index_drop_aged(struct bt_prefix_index *index,
                                   uint32_t worker, uint32_t rank)
{
    uint64_t dropped = 0;
    uint32_t source;

    assert(worker < index->limits.workers_max);
    source = pi_source_find(index, worker, rank);
    if (source == 0)
        return 0;
    source_visit(index, source, entry_drop_aged, &dropped);
    pi_source_settle(index, source);
    return dropped;
}
