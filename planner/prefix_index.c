/* Memory of the prefix index and the look-ups of one block or one worker.
 * Decides how large each table is for given limits; leaves prompts to
 * prefix_match.c, events to prefix_apply.c. Layout: prefix_index_impl.h.
 *
 * Besides one place per block and per holding there are, from the limits:
 *   map slots   5 per 4 places, in cache lines (prefix_map.h)
 *   spare pages 4 per worker (64 at least; 1 in large fleets): every source may
 *               have one that is not full
 *   sources     16 per worker (64 at least), 64 of one worker at most
 *   namespaces  1 per 32 blocks, 64 at least
 *   extras      1 per 16 holdings, 1,024 at least
 *   bit sets    enough for every block that can have more than three holders,
 *               but 16 bytes per block at most; in large fleets chains of some
 *               holders, 10 bytes per block at most, come before them
 */
#include "prefix_index_impl.h"

#include "baton/base/ids.h"

#include <assert.h>

#define ITEMS_MAX   (1u << 30)
#define LEAST       64u /* of what is few, so that small indexes work too */
#define WIDE_BYTES  16u /* per block */
#define SOME_BLOCKS 4u  /* blocks per unit of a chain */
#define NS_BLOCKS   32u
#define NS_MAX      UINT16_MAX
#define EXTRA_SHARE 16u
#define EXTRA_LEAST 1024u
#define PAGE_SHIFT  5u
#define PAGE_SMALL  3u /* where spare pages of 32 would weigh too much */
#define SPARE_PAGES 4u /* per worker */
#define SPARE_MANY  4096u
#define RANKS_USUAL 16u
#define SOME_WORDS  3u /* chains of holders from so many words of a set on */

/* What the limits come to. */
struct sizes {
    uint32_t words, wides, somes, some_chain;
    uint32_t page_shift, pages, sources;
    uint32_t extras, namespaces;
};

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static uint32_t most(uint64_t a, uint64_t b)
{
    return (uint32_t)(a > b ? a : b);
}

static void size_holders(const struct bt_prefix_index_limits *l,
                         struct sizes *s)
{
    uint32_t need = least(l->blocks_max, l->holdings_max / PI_INLINE + 1);
    uint64_t bytes;

    s->words = (l->workers_max + 63) / 64;
    if (l->workers_max <= PI_DIRECT)
        return;
    bytes = (uint64_t)l->blocks_max * WIDE_BYTES;
    s->wides =
        least(need, most(LEAST, bytes / ((uint64_t)s->words * BT_TIERS * 8)));
    if (s->words < SOME_WORDS)
        return;
    s->some_chain = s->words < 2 * SOME_WORDS ? 1 : PI_SOME_CHAIN;
    s->somes = least(need, most(LEAST, l->blocks_max / SOME_BLOCKS));
}

static void size_pages(const struct bt_prefix_index_limits *l, struct sizes *s)
{
    uint64_t ranks = (uint64_t)l->workers_max * PI_RANKS_MAX;
    uint64_t spare = most(LEAST, (uint64_t)l->workers_max * SPARE_PAGES);

    spare = least(spare, most(l->workers_max, SPARE_MANY));
    spare = least(spare, least(ranks, l->holdings_max));
    s->page_shift =
        spare << PAGE_SHIFT <= l->holdings_max / 8 ? PAGE_SHIFT : PAGE_SMALL;
    s->pages = (l->holdings_max >> s->page_shift) + 1 + (uint32_t)spare;
    s->sources = least(least(ranks, s->pages),
                       most(LEAST, (uint64_t)l->workers_max * RANKS_USUAL));
}

static struct sizes sizes_of(const struct bt_prefix_index_limits *l)
{
    struct sizes s = {0};

    size_holders(l, &s);
    size_pages(l, &s);
    s.extras = least(l->holdings_max,
                     most(EXTRA_LEAST, l->holdings_max / EXTRA_SHARE));
    s.namespaces = least(
        NS_MAX, least(l->blocks_max, most(LEAST, l->blocks_max / NS_BLOCKS)));
    return s;
}

static bool limits_ok(const struct bt_prefix_index_limits *l)
{
    return l->workers_max > 0 && l->workers_max <= BT_WORKER_SLOTS_MAX &&
           l->blocks_max > 0 && l->blocks_max <= ITEMS_MAX &&
           l->holdings_max > 0 && l->holdings_max <= ITEMS_MAX;
}

static size_t table_bytes(uint32_t items, size_t item_bytes)
{
    return bt_arena_need(items, sizeof(uint32_t)) +
           bt_arena_need((size_t)items + 1, item_bytes);
}

/* Whole cache lines, wherever the arena stands. */
static uint32_t map_buckets(uint32_t items)
{
    return items / PI_FILL + 1;
}

static size_t map_words(uint32_t items)
{
    return ((size_t)map_buckets(items) + 1) * PI_LINE;
}

static size_t pool_bytes(uint32_t records, size_t record)
{
    return records == 0 ? 0 : bt_arena_need((size_t)records + 1, record);
}

static size_t wide_bytes(const struct sizes *s)
{
    return (size_t)s->words * BT_TIERS * sizeof(uint64_t);
}

size_t bt_prefix_index_bytes(const struct bt_prefix_index_limits *limits)
{
    const struct bt_prefix_index_limits *l = limits;
    struct sizes s;

    if (!limits_ok(l))
        return SIZE_MAX;
    s = sizes_of(l);
    return bt_arena_need(1, sizeof(struct bt_prefix_index)) +
           bt_arena_need(map_words(l->blocks_max), sizeof(uint32_t)) +
           bt_arena_need((size_t)l->blocks_max + 1, sizeof(struct pi_block)) +
           table_bytes(s.extras, sizeof(struct pi_extra)) +
           table_bytes(s.namespaces, sizeof(struct pi_ns)) +
           pool_bytes(s.somes, sizeof(struct pi_some)) +
           pool_bytes(s.wides, wide_bytes(&s)) +
           bt_arena_need(map_words(l->holdings_max), sizeof(uint32_t)) +
           bt_arena_need((size_t)(s.pages + 1) << s.page_shift,
                         sizeof(struct pi_holding)) +
           bt_arena_need((size_t)s.pages + 1, sizeof(struct pi_page)) +
           bt_arena_need((size_t)s.sources + 1, sizeof(struct pi_source)) +
           2 * bt_arena_need(l->workers_max, sizeof(uint32_t));
}

/* NULL: the arena is too small. The items are the caller's to keep. */
static void *table_init(struct pi_table *t, struct bt_arena *arena,
                        uint32_t items, size_t item_bytes)
{
    t->bucket_count = items;
    t->max = items;
    t->buckets = bt_arena_take(arena, t->bucket_count, sizeof(uint32_t));
    if (t->buckets == NULL)
        return NULL;
    return bt_arena_take(arena, (size_t)items + 1, item_bytes);
}

/* items: how many at most; number: the largest that is used. */
static bool map_init(struct pi_map *m, struct bt_arena *arena, uint32_t items,
                     uint32_t number)
{
    void *memory = bt_arena_take(arena, map_words(items), sizeof(*m->lines));
    size_t bytes = PI_LINE * sizeof(*m->lines);

    if (memory == NULL)
        return false;
    m->lines =
        (uint32_t *)(void *)((unsigned char *)memory +
                             (bytes - (uintptr_t)memory % bytes) % bytes);
    m->buckets = map_buckets(items);
    m->item_mask = UINT32_MAX >> __builtin_clz(number);
    return true;
}

static bool pool_init(struct pi_pool *p, struct bt_arena *arena,
                      uint32_t records, size_t record)
{
    p->max = records;
    p->record = (uint32_t)record;
    if (records == 0)
        return true;
    p->base = bt_arena_take(arena, (size_t)records + 1, record);
    return p->base != NULL;
}

static bool blocks_init(struct bt_prefix_index *x, struct bt_arena *arena,
                        const struct sizes *s)
{
    x->words = s->words;
    x->direct = x->limits.workers_max <= PI_DIRECT;
    x->some_chain = s->some_chain;
    x->blocks = bt_arena_take(arena, (size_t)x->limits.blocks_max + 1,
                              sizeof(*x->blocks));
    x->extras =
        table_init(&x->extra_table, arena, s->extras, sizeof(*x->extras));
    x->namespaces =
        table_init(&x->ns_table, arena, s->namespaces, sizeof(*x->namespaces));
    return map_init(&x->block_map, arena, x->limits.blocks_max,
                    x->limits.blocks_max) &&
           x->blocks != NULL && x->extras != NULL && x->namespaces != NULL &&
           pool_init(&x->somes, arena, s->somes, sizeof(struct pi_some)) &&
           pool_init(&x->wides, arena, s->wides, wide_bytes(s));
}

static bool holdings_init(struct bt_prefix_index *x, struct bt_arena *arena,
                          const struct sizes *s)
{
    const struct bt_prefix_index_limits *l = &x->limits;

    x->page_shift = s->page_shift;
    x->page_full = UINT32_MAX >> (PI_PAGE_MAX - (1u << s->page_shift));
    x->pages_max = s->pages;
    x->sources_max = s->sources;
    x->holdings = bt_arena_take(arena, (size_t)(s->pages + 1) << s->page_shift,
                                sizeof(*x->holdings));
    x->pages = bt_arena_take(arena, (size_t)s->pages + 1, sizeof(*x->pages));
    x->sources =
        bt_arena_take(arena, (size_t)s->sources + 1, sizeof(*x->sources));
    x->worker_sources =
        bt_arena_take(arena, l->workers_max, sizeof(*x->worker_sources));
    x->worker_blocks =
        bt_arena_take(arena, l->workers_max, sizeof(*x->worker_blocks));
    return map_init(&x->holding_map, arena, l->holdings_max,
                    ((s->pages + 1) << s->page_shift) - 1) &&
           x->holdings != NULL && x->pages != NULL && x->sources != NULL &&
           x->worker_sources != NULL && x->worker_blocks != NULL;
}

struct bt_prefix_index *
bt_prefix_index_init(struct bt_arena *arena,
                     const struct bt_prefix_index_limits *limits)
{
    size_t before = arena->used;
    struct bt_prefix_index *x;
    struct sizes sizes;

    if (!limits_ok(limits))
        return NULL;
    x = bt_arena_take(arena, 1, sizeof(*x));
    if (x == NULL)
        return NULL;
    sizes = sizes_of(limits);
    x->limits = *limits;
    if (!blocks_init(x, arena, &sizes) || !holdings_init(x, arena, &sizes))
        return NULL;
    x->stats.bytes = arena->used - before;
    return x;
}

/* ---- look-ups ---- */

unsigned int bt_prefix_index_tiers(const struct bt_prefix_index *index,
                                   uint32_t worker, uint64_t key)
{
    uint32_t block;

    assert(worker < index->limits.workers_max);
    block = pi_block_find(index, key);
    return block != 0 ? pi_block_tiers(index, block, worker) : 0;
}

int bt_prefix_index_holds(const struct bt_prefix_index *index, uint32_t worker,
                          uint64_t key)
{
    return bt_prefix_index_tiers(index, worker, key) != 0;
}

enum bt_status bt_prefix_index_own_key(const struct bt_prefix_index *index,
                                       uint32_t worker, uint32_t rank,
                                       uint64_t hash, uint64_t *key_out)
{
    struct pi_entries entries;
    uint32_t source, item;

    assert(worker < index->limits.workers_max);
    source = pi_source_find(index, worker, rank);
    if (source == 0)
        return BT_NOT_FOUND;
    entries = pi_entries_of(index, source, hash);
    do
        item = pi_entries_next(index, &entries);
    while (item != 0 && index->holdings[item].block == 0);
    if (item == 0)
        return BT_NOT_FOUND;
    *key_out = index->blocks[index->holdings[item].block].key;
    return BT_OK;
}

uint64_t bt_prefix_index_copies(const struct bt_prefix_index *index,
                                uint32_t worker, uint32_t rank,
                                enum bt_tier tier)
{
    uint32_t source;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)tier < BT_TIERS);
    source = pi_source_find(index, worker, rank);
    return source != 0 ? index->sources[source].copies[tier] : 0;
}

static void entry_of(const struct bt_prefix_index *x, uint32_t item,
                     struct bt_prefix_entry *out)
{
    const struct pi_holding *h = &x->holdings[item];

    *out = (struct bt_prefix_entry){
        .rank = x->sources[pi_holding_source(x, item)].rank,
        .hash = pi_holding_hash(h),
        .keyed = h->block != 0};
    if (h->block != 0) {
        out->key = x->blocks[h->block].key;
        out->ns = x->namespaces[x->blocks[h->block].ns].seed;
    }
    for (unsigned int t = 0; t < BT_TIERS; t++)
        out->copies[t] = pi_copies(h->counts, t);
}

static void pages_each(const struct bt_prefix_index *x, uint32_t page,
                       bt_prefix_entry_fn fn, void *arg)
{
    struct bt_prefix_entry entry;

    for (; page != 0; page = x->pages[page].next)
        for (uint32_t used = x->pages[page].used; used != 0; used &= used - 1) {
            entry_of(x, page << x->page_shift | (uint32_t)__builtin_ctz(used),
                     &entry);
            fn(arg, &entry);
        }
}

void bt_prefix_index_each(const struct bt_prefix_index *index, uint32_t worker,
                          bt_prefix_entry_fn fn, void *arg)
{
    uint32_t s;

    assert(worker < index->limits.workers_max);
    for (s = index->worker_sources[worker]; s != 0;
         s = index->sources[s].next) {
        pages_each(index, index->sources[s].full.head, fn, arg);
        pages_each(index, index->sources[s].open.head, fn, arg);
    }
}

uint32_t bt_prefix_index_worker_blocks(const struct bt_prefix_index *index,
                                       uint32_t worker)
{
    assert(worker < index->limits.workers_max);
    return index->worker_blocks[worker];
}

void bt_prefix_index_stats_get(const struct bt_prefix_index *index,
                               struct bt_prefix_index_stats *out)
{
    *out = index->stats;
    out->blocks = index->blocks_used;
    out->holdings = index->holdings_used;
    out->namespaces = index->ns_table.used;
}
