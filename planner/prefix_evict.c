/* Making room in a full prefix index. Decides whose entries go: those of the
 * sources that have most, in the order in which their pages filled up, each
 * block once more if it was asked for or a parent since (second chance). Leaves
 * to prefix_apply.c when room is needed.
 *
 * Invariants: what is pinned stays (an event never makes room for its end with
 * its beginning); the hand looks at a bounded number of entries, then takes
 * what comes; the same calls give up the same entries.
 */
#include "prefix_index_impl.h"

#include <assert.h>

/* So much at once that the search for the largest does not count: a part of
 * all entries, a part of each victim's. */
#define BATCH_SHARE  1024
#define BATCH_MAX    256
#define SOURCE_SHARE 64
#define SOURCE_MAX   32
#define VICTIMS      16
#define LOOKS        1024u /* entries before the hand takes what comes */

struct hand {
    bool for_block;
    uint32_t budget; /* entries still to go */
    uint32_t looks;  /* entries it may still look at */
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* At least 1. */
static uint32_t within(uint32_t n, uint32_t max)
{
    return n < 1 ? 1 : least(n, max);
}

/* Entries of the source that could be of use. */
static uint32_t weight(const struct bt_prefix_index *x, uint32_t s,
                       bool for_block)
{
    return for_block ? x->sources[s].keyed : x->sources[s].count;
}

/* The largest sources, those with half as much too, but one; lowest number
 * first. */
static uint32_t find_victims(const struct bt_prefix_index *x, uint32_t but,
                             bool for_block, uint32_t *out)
{
    uint32_t most = 0, count = 0;

    for (uint32_t s = 1; s <= x->sources_fresh; s++)
        if (s != but && weight(x, s, for_block) > most)
            most = weight(x, s, for_block);
    for (uint32_t s = 1; s <= x->sources_fresh && count < VICTIMS; s++)
        if (s != but && weight(x, s, for_block) > 0 &&
            weight(x, s, for_block) >= most / 2)
            out[count++] = s;
    return count;
}

/* Is the block held by this one holding only? */
static bool is_alone(const struct bt_prefix_index *x, uint32_t b)
{
    return !(x->blocks[b].flags & (PI_SOME | PI_WIDE | PI_EXTRA)) &&
           pi_block_holders(x, b) == 1;
}

/* May this entry go now? Takes the block's second chance. */
static bool may_go(struct bt_prefix_index *x, uint32_t item, bool for_block,
                   bool force)
{
    uint32_t b = x->holdings[item].block;
    bool spared;

    if (b == 0)
        return !for_block;
    if (x->blocks[b].flags & PI_PIN)
        return false;
    spared = x->blocks[b].flags & PI_REF || (for_block && !is_alone(x, b));
    x->blocks[b].flags &= (uint16_t)~PI_REF;
    return !spared || force;
}

/* At most `want` entries of the page, from its hand on, once around. */
static uint32_t page_evict(struct bt_prefix_index *x, uint32_t page,
                           bool for_block, bool force, uint32_t want)
{
    uint32_t slots = 1u << x->page_shift, source = x->pages[page].source;
    uint32_t gone = 0;

    for (uint32_t i = 0; i < slots && gone < want; i++) {
        uint32_t slot = x->pages[page].hand & (slots - 1);
        uint32_t item = page << x->page_shift | slot;

        x->pages[page].hand = (slot + 1) & (PI_PAGE_MAX - 1);
        if (!(x->pages[page].used >> slot & 1) ||
            !may_go(x, item, for_block, force))
            continue;
        pi_holding_drop(x, item, source);
        gone++;
    }
    return gone;
}

/* At most `want` entries of the source; twice around at most: once to take the
 * chances, once to take those without. */
static uint32_t source_evict(struct bt_prefix_index *x, uint32_t source,
                             struct hand *h, uint32_t want)
{
    uint32_t gone = 0, pages = 2 * x->sources[source].pages;

    for (; pages > 0 && gone < want && h->looks > 0; pages--) {
        uint32_t page;

        if (x->sources[source].count == 0)
            break;
        page = pi_page_turn(x, source);
        pi_page_fetch(x, page);
        gone += page_evict(x, page, h->for_block, false, want - gone);
        h->looks -= least(h->looks, 1u << x->page_shift);
    }
    return gone;
}

/* The hand may not look any further: one entry of the source. */
static uint32_t source_force(struct bt_prefix_index *x, uint32_t source,
                             bool for_block)
{
    uint32_t pages = least(x->sources[source].pages, LOOKS >> x->page_shift);
    uint32_t gone = 0;

    for (; pages > 0 && gone == 0; pages--)
        gone = page_evict(x, pi_page_turn(x, source), for_block, true, 1);
    return gone;
}

static uint32_t evict(struct bt_prefix_index *x, uint32_t source, uint32_t but,
                      bool for_block)
{
    uint32_t victims[VICTIMS], gone = 0;
    uint32_t count = find_victims(x, but, for_block, victims);
    struct hand h = {.for_block = for_block, .looks = LOOKS};

    h.budget = within(x->holdings_used / BATCH_SHARE, BATCH_MAX);
    for (uint32_t i = 0; i < count && gone < h.budget; i++) {
        uint32_t part =
            within(x->sources[victims[i]].count / SOURCE_SHARE, SOURCE_MAX);

        gone += source_evict(x, victims[i], &h, least(part, h.budget - gone));
    }
    for (uint32_t i = 0; i < count && gone == 0; i++)
        gone = source_force(x, victims[i], for_block);
    for (uint32_t i = 0; i < count; i++)
        if (victims[i] != source)
            pi_source_settle(x, victims[i]);
    x->stats.evicted += gone;
    return gone;
}

bool pi_make_room(struct bt_prefix_index *x, uint32_t source, bool for_block)
{
    /* All that the largest has may be pinned: it is the one that stores. */
    return evict(x, source, 0, for_block) > 0 ||
           evict(x, source, source, for_block) > 0;
}
