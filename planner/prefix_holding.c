/* Holdings of the prefix index: the entries (source, engine hash), in pages
 * that belong to one source each, so that a source's entries are found without
 * a list through them. Decides where an entry lies and moves entries together
 * when pages run out; leaves their meaning to prefix_apply.c.
 *
 * Bound: with no more sources than spare pages (see prefix_index.c) there is a
 * slot as long as there are fewer than holdings_max entries: else some source
 * has a page's worth of free slots, and moving frees a page.
 */
#include "prefix_index_impl.h"

#include <assert.h>

#define COMPACT_LOOKS 16 /* open pages among which the emptiest is sought */

/* ---- sources ---- */

uint32_t pi_source_find(const struct bt_prefix_index *x, uint32_t worker,
                        uint32_t rank)
{
    uint32_t s = x->worker_sources[worker];

    while (s != 0 && x->sources[s].rank != rank)
        s = x->sources[s].next;
    return s;
}

uint32_t pi_source_make(struct bt_prefix_index *x, uint32_t worker,
                        uint32_t rank)
{
    uint32_t s = x->worker_sources[worker];
    uint32_t ranks = 0;

    for (; s != 0; s = x->sources[s].next)
        ranks++;
    if (ranks >= PI_RANKS_MAX)
        return 0;
    if (x->sources_free != 0) {
        s = x->sources_free;
        x->sources_free = x->sources[s].next;
    } else if (x->sources_fresh < x->sources_max) {
        s = ++x->sources_fresh;
    } else {
        return 0;
    }
    x->sources[s] = (struct pi_source){
        .worker = worker, .rank = rank, .next = x->worker_sources[worker]};
    x->worker_sources[worker] = s;
    return s;
}

void pi_source_settle(struct bt_prefix_index *x, uint32_t s)
{
    uint32_t *at = &x->worker_sources[x->sources[s].worker];

    if (x->sources[s].count > 0)
        return;
    while (*at != s) {
        assert(*at != 0);
        at = &x->sources[*at].next;
    }
    *at = x->sources[s].next;
    x->sources[s].next = x->sources_free;
    x->sources_free = s;
}

/* ---- pages ---- */

static void list_remove(struct bt_prefix_index *x, struct pi_list *l,
                        uint32_t page)
{
    const struct pi_page *p = &x->pages[page];

    if (p->prev != 0)
        x->pages[p->prev].next = p->next;
    else
        l->head = p->next;
    if (p->next != 0)
        x->pages[p->next].prev = p->prev;
    else
        l->tail = p->prev;
}

static void list_append(struct bt_prefix_index *x, struct pi_list *l,
                        uint32_t page)
{
    x->pages[page].prev = l->tail;
    x->pages[page].next = 0;
    if (l->tail != 0)
        x->pages[l->tail].next = page;
    else
        l->head = page;
    l->tail = page;
}

static void list_push(struct bt_prefix_index *x, struct pi_list *l,
                      uint32_t page)
{
    x->pages[page].prev = 0;
    x->pages[page].next = l->head;
    if (l->head != 0)
        x->pages[l->head].prev = page;
    else
        l->tail = page;
    l->head = page;
}

static void page_give(struct bt_prefix_index *x, uint32_t page)
{
    x->sources[x->pages[page].source].pages--;
    x->pages[page].next = x->pages_free;
    x->pages_free = page;
}

static uint32_t slot_take(struct bt_prefix_index *x, struct pi_source *s)
{
    uint32_t page = s->open.head;
    struct pi_page *p = &x->pages[page];
    uint32_t slot;

    assert(page != 0);
    slot = (uint32_t)__builtin_ctz(~p->used);
    p->used |= 1u << slot;
    if (p->used == x->page_full) {
        list_remove(x, &s->open, page);
        list_append(x, &s->full, page);
    }
    return page << x->page_shift | slot;
}

static void slot_give(struct bt_prefix_index *x, uint32_t item)
{
    uint32_t page = item >> x->page_shift;
    struct pi_page *p = &x->pages[page];
    struct pi_source *s = &x->sources[p->source];

    if (p->used == x->page_full) {
        list_remove(x, &s->full, page);
        list_push(x, &s->open, page);
    }
    p->used &= ~(1u << (item & ((1u << x->page_shift) - 1)));
    if (p->used == 0) {
        list_remove(x, &s->open, page);
        page_give(x, page);
    }
}

static struct pi_home item_home(const struct bt_prefix_index *x,
                                uint32_t source, uint32_t item)
{
    return pi_holding_home(x, source, pi_holding_hash(&x->holdings[item]));
}

static void page_move(struct bt_prefix_index *x, uint32_t source, uint32_t page)
{
    struct pi_source *s = &x->sources[source];

    list_remove(x, &s->open, page);
    for (uint32_t used = x->pages[page].used; used != 0; used &= used - 1) {
        uint32_t from = page << x->page_shift | (uint32_t)__builtin_ctz(used);
        uint32_t to = slot_take(x, s);

        pi_map_replace(&x->holding_map, item_home(x, source, from), from, to);
        x->holdings[to] = x->holdings[from];
    }
    x->pages[page].used = 0;
    page_give(x, page);
}

static uint32_t slots_used(const struct bt_prefix_index *x, uint32_t page)
{
    uint32_t count = 0;

    for (uint32_t used = x->pages[page].used; used != 0; used &= used - 1)
        count++;
    return count;
}

/* Free a page of the source with the most free slots. */
static bool compact(struct bt_prefix_index *x)
{
    uint32_t best = 0, most = (1u << x->page_shift) - 1, page;

    for (uint32_t s = 1; s <= x->sources_fresh; s++) {
        uint32_t slots = x->sources[s].pages << x->page_shift;

        if (slots - x->sources[s].count <= most)
            continue;
        most = slots - x->sources[s].count;
        best = s;
    }
    if (best == 0)
        return false;
    page = x->sources[best].open.head;
    for (uint32_t p = page, i = 0; p != 0 && i < COMPACT_LOOKS;
         p = x->pages[p].next, i++)
        if (slots_used(x, p) < slots_used(x, page))
            page = p;
    page_move(x, best, page);
    return true;
}

bool pi_page_take(struct bt_prefix_index *x, uint32_t source)
{
    uint32_t page;

    if (x->pages_free == 0 && x->pages_fresh >= x->pages_max && !compact(x))
        return false;
    page = x->pages_free;
    if (page != 0)
        x->pages_free = x->pages[page].next;
    else
        page = ++x->pages_fresh;
    x->pages[page] = (struct pi_page){.source = source & 0x3ffffffu};
    list_push(x, &x->sources[source].open, page);
    x->sources[source].pages++;
    return true;
}

uint32_t pi_page_turn(struct bt_prefix_index *x, uint32_t source)
{
    struct pi_source *s = &x->sources[source];
    struct pi_list *l = s->full.head != 0 ? &s->full : &s->open;
    uint32_t page = l->head;

    list_remove(x, l, page);
    list_append(x, l, page);
    return page;
}

void pi_page_fetch(const struct bt_prefix_index *x, uint32_t page)
{
    const struct pi_page *p = &x->pages[page];
    uint32_t first = page << x->page_shift;

    for (uint32_t used = p->used; used != 0; used &= used - 1) {
        uint32_t item = first | (uint32_t)__builtin_ctz(used);
        struct pi_home home = item_home(x, p->source, item);

        __builtin_prefetch(pi_line(&x->holding_map, home.bucket));
        __builtin_prefetch(&x->blocks[x->holdings[item].block]);
    }
    for (uint32_t used = p->used; used != 0; used &= used - 1) {
        uint32_t b = x->holdings[first | (uint32_t)__builtin_ctz(used)].block;
        struct pi_home home = pi_block_home(x, x->blocks[b].key);

        __builtin_prefetch(pi_line(&x->block_map, home.bucket));
    }
}

/* ---- holdings ---- */

bool pi_holding_make(struct bt_prefix_index *x, const struct pi_entry *e,
                     uint32_t block, unsigned int tier)
{
    struct pi_source *s = &x->sources[e->source];
    uint32_t item;

    if (block != 0 && !pi_block_add(x, block, s->worker, tier))
        return false;
    item = slot_take(x, s);

    x->holdings[item] = (struct pi_holding){
        .hash = {(uint32_t)e->hash, (uint32_t)(e->hash >> 32)},
        .block = block,
        .counts = (uint32_t)s->epoch << 28 | 1u << 7 * tier};
    pi_map_put(&x->holding_map, e->home, item);
    s->count++;
    s->keyed += block != 0;
    s->copies[tier]++;
    x->holdings_used++;
    return true;
}

/* The caller has taken its copies off its block. */
static void holding_free(struct bt_prefix_index *x, uint32_t item,
                         uint32_t source, struct pi_home home)
{
    pi_map_replace(&x->holding_map, home, item, 0);
    x->sources[source].keyed -= x->holdings[item].block != 0;
    x->sources[source].count--;
    slot_give(x, item);
    x->holdings_used--;
}

void pi_holding_end(struct bt_prefix_index *x, uint32_t item,
                    const struct pi_entry *e, unsigned int tier)
{
    const struct pi_holding *h = &x->holdings[item];
    struct pi_source *s = &x->sources[e->source];

    s->copies[tier] -= pi_copies(h->counts, tier);
    if (h->block != 0)
        pi_block_sub(x, h->block, s->worker, tier);
    holding_free(x, item, e->source, e->home);
}

bool pi_holding_set(struct bt_prefix_index *x, uint32_t item, uint32_t source,
                    unsigned int tier, unsigned int copies)
{
    struct pi_holding *h = &x->holdings[item];
    struct pi_source *s = &x->sources[source];
    unsigned int before = pi_copies(h->counts, tier);

    if (copies > PI_COPIES)
        copies = PI_COPIES;
    if (before == copies)
        return true;
    if (before == 0 && h->block != 0 &&
        !pi_block_add(x, h->block, s->worker, tier))
        return false;
    if (copies == 0 && h->block != 0)
        pi_block_sub(x, h->block, s->worker, tier);
    h->counts ^= (before ^ copies) << 7 * tier;
    s->copies[tier] += (uint64_t)copies - before;
    if ((h->counts & PI_COUNTS_MASK) == 0)
        holding_free(x, item, source, item_home(x, source, item));
    return true;
}

void pi_holding_drop(struct bt_prefix_index *x, uint32_t item, uint32_t source)
{
    unsigned int left = 0;

    for (unsigned int t = 0; t < BT_TIERS; t++)
        left |= (unsigned int)(pi_copies(x->holdings[item].counts, t) > 0) << t;
    for (unsigned int t = 0; left != 0 && t < BT_TIERS; t++)
        if (left >> t & 1)
            (void)pi_holding_set(x, item, source, t, 0);
}
