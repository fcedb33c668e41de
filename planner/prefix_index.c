/* Tables and look-ups of the prefix index; prefix_apply.c applies the events.
 * Decides memory layout and how a prompt is matched; leaves the meaning of
 * stores and removals to prefix_apply.c. Layout: prefix_index_impl.h.
 *
 * A match keeps the sets of workers still alive, by tier, as bits and ands them
 * with each block's: cost is one table probe per block plus the words that are
 * not empty yet, whatever the number of holders.
 */
#include "prefix_index_impl.h"

#include "baton/base/ids.h"
#include "baton/base/rng.h"

#include <assert.h>
#include <string.h>

#define ITEMS_MAX (1u << 30)
#define WORDS_MAX ((BT_WORKER_SLOTS_MAX + 63) / 64)
#define AHEAD     4 /* keys between a bucket's fetch, its block's and its use */

static uint32_t bucket_count(uint32_t items)
{
    uint32_t n = 16;

    while (n < items)
        n *= 2;
    return n;
}

uint32_t pi_table_take(struct pi_table *t)
{
    uint32_t item = t->free_head;

    if (item != 0)
        t->free_head = t->next[item];
    else if (t->fresh < t->max)
        item = ++t->fresh;
    else
        return 0;
    t->used++;
    return item;
}

void pi_table_give(struct pi_table *t, uint32_t item)
{
    assert(t->used > 0);
    t->next[item] = t->free_head;
    t->free_head = item;
    t->used--;
}

void pi_table_link(struct pi_table *t, uint32_t item, uint64_t hash)
{
    uint32_t *bucket = &t->buckets[hash & t->mask];

    t->next[item] = *bucket;
    *bucket = item;
}

void pi_table_unlink(struct pi_table *t, uint32_t item, uint64_t hash)
{
    uint32_t *at = &t->buckets[hash & t->mask];

    while (*at != item) {
        assert(*at != 0);
        at = &t->next[*at];
    }
    *at = t->next[item];
}

uint64_t pi_block_hash(uint64_t key)
{
    return bt_mix64(key);
}

uint64_t pi_presence_hash(uint32_t block, uint32_t worker)
{
    return bt_mix64((uint64_t)worker << 32 | block);
}

uint32_t pi_block_find(const struct bt_prefix_index *index, uint64_t key)
{
    const struct pi_table *t = &index->block_table;
    uint32_t item = t->buckets[pi_block_hash(key) & t->mask];

    while (item != 0 && index->blocks[item].key != key)
        item = t->next[item];
    return item;
}

uint32_t pi_presence_find(const struct bt_prefix_index *index, uint32_t block,
                          uint32_t worker)
{
    const struct pi_table *t = &index->presence_table;
    uint32_t item = t->buckets[pi_presence_hash(block, worker) & t->mask];

    while (item != 0 && (index->presences[item].block != block ||
                         index->presences[item].worker != worker))
        item = t->next[item];
    return item;
}

static bool limits_ok(const struct bt_prefix_index_limits *l)
{
    return l->workers_max > 0 && l->workers_max <= BT_WORKER_SLOTS_MAX &&
           l->blocks_max > 0 && l->blocks_max <= ITEMS_MAX &&
           l->holdings_max > 0 && l->holdings_max <= ITEMS_MAX;
}

static uint32_t sources_limit(const struct bt_prefix_index_limits *l)
{
    uint64_t n = (uint64_t)l->workers_max * PI_RANKS_MAX;

    return n < l->holdings_max ? (uint32_t)n : l->holdings_max;
}

static uint32_t word_count(const struct bt_prefix_index_limits *l)
{
    return (l->workers_max + 63) / 64;
}

static size_t table_bytes(uint32_t items)
{
    return bt_arena_need(bucket_count(items), sizeof(uint32_t)) +
           bt_arena_need((size_t)items + 1, sizeof(uint32_t));
}

size_t bt_prefix_index_bytes(const struct bt_prefix_index_limits *limits)
{
    const struct bt_prefix_index_limits *l = limits;
    size_t blocks = (size_t)l->blocks_max + 1;
    size_t holdings = (size_t)l->holdings_max + 1;

    if (!limits_ok(l))
        return SIZE_MAX;
    return bt_arena_need(1, sizeof(struct bt_prefix_index)) +
           table_bytes(l->blocks_max) + 2 * table_bytes(l->holdings_max) +
           bt_arena_need(blocks, sizeof(struct pi_block)) +
           bt_arena_need(blocks * BT_TIERS * word_count(l), sizeof(uint64_t)) +
           bt_arena_need(holdings, sizeof(struct pi_presence)) +
           bt_arena_need(holdings, sizeof(struct pi_holding)) +
           bt_arena_need((size_t)sources_limit(l) + 1,
                         sizeof(struct pi_source)) +
           2 * bt_arena_need(l->workers_max, sizeof(uint32_t));
}

static bool table_init(struct pi_table *t, struct bt_arena *arena,
                       uint32_t items)
{
    uint32_t buckets = bucket_count(items);

    t->buckets = bt_arena_take(arena, buckets, sizeof(uint32_t));
    t->next = bt_arena_take(arena, (size_t)items + 1, sizeof(uint32_t));
    t->mask = buckets - 1;
    t->max = items;
    return t->buckets != NULL && t->next != NULL;
}

static bool items_init(struct bt_prefix_index *x, struct bt_arena *arena)
{
    const struct bt_prefix_index_limits *l = &x->limits;
    size_t blocks = (size_t)l->blocks_max + 1;
    size_t holdings = (size_t)l->holdings_max + 1;

    x->sources_max = sources_limit(l);
    x->words = word_count(l);
    x->blocks = bt_arena_take(arena, blocks, sizeof(*x->blocks));
    x->holders =
        bt_arena_take(arena, blocks * BT_TIERS * x->words, sizeof(*x->holders));
    x->presences = bt_arena_take(arena, holdings, sizeof(*x->presences));
    x->holdings = bt_arena_take(arena, holdings, sizeof(*x->holdings));
    x->sources =
        bt_arena_take(arena, (size_t)x->sources_max + 1, sizeof(*x->sources));
    x->worker_sources =
        bt_arena_take(arena, l->workers_max, sizeof(*x->worker_sources));
    x->worker_blocks =
        bt_arena_take(arena, l->workers_max, sizeof(*x->worker_blocks));
    return x->blocks != NULL && x->holders != NULL && x->presences != NULL &&
           x->holdings != NULL && x->sources != NULL &&
           x->worker_sources != NULL && x->worker_blocks != NULL;
}

struct bt_prefix_index *
bt_prefix_index_init(struct bt_arena *arena,
                     const struct bt_prefix_index_limits *limits)
{
    struct bt_prefix_index *x;

    if (!limits_ok(limits))
        return NULL;
    x = bt_arena_take(arena, 1, sizeof(*x));
    if (x == NULL)
        return NULL;
    x->limits = *limits;
    if (!table_init(&x->block_table, arena, limits->blocks_max) ||
        !table_init(&x->presence_table, arena, limits->holdings_max) ||
        !table_init(&x->holding_table, arena, limits->holdings_max) ||
        !items_init(x, arena))
        return NULL;
    return x;
}

/* One match. Tiers from `first` on are asked for; the sets of faster tiers are
 * part of those of slower ones, so a word that is empty in the last tier is
 * empty in all and left out from then on. */
struct match {
    uint64_t alive[WORDS_MAX][BT_TIERS]; /* workers without a hole so far */
    uint32_t words[WORDS_MAX];           /* that are not empty */
    uint32_t word_count;
    unsigned int first;
    uint32_t *depth_out; /* [worker * (BT_TIERS - first) + tier - first] */
};

static void match_start(const struct bt_prefix_index *index, struct match *m)
{
    uint32_t max = index->limits.workers_max;

    for (uint32_t w = 0; w < index->words; w++) {
        m->words[w] = w;
        for (unsigned int t = m->first; t < BT_TIERS; t++)
            m->alive[w][t] = UINT64_MAX;
    }
    m->word_count = index->words;
    for (unsigned int t = m->first; t < BT_TIERS && max % 64 != 0; t++)
        m->alive[index->words - 1][t] = (1ULL << max % 64) - 1;
}

/* These workers end at this depth. */
static void set_depths(const struct match *m, uint64_t set, uint32_t word,
                       unsigned int tier, uint32_t depth)
{
    size_t stride = BT_TIERS - m->first;

    while (set != 0) {
        uint32_t worker = word * 64 + (uint32_t)__builtin_ctzll(set);

        m->depth_out[worker * stride + tier - m->first] = depth;
        set &= set - 1;
    }
}

/* Those that hold this block too go on. */
static void match_block(struct match *m, const uint64_t *holders,
                        uint32_t depth)
{
    uint32_t emptied = 0, kept = 0;

    for (uint32_t i = 0; i < m->word_count; i++) {
        uint32_t w = m->words[i];
        uint64_t *alive = m->alive[w];
        const uint64_t *held = holders + (size_t)w * BT_TIERS;

        for (unsigned int t = m->first; t < BT_TIERS; t++) {
            uint64_t gone = alive[t] & ~held[t];

            if (gone == 0)
                continue;
            alive[t] &= held[t];
            set_depths(m, gone, w, t, depth);
            emptied += t == BT_TIERS - 1 && alive[t] == 0;
        }
    }
    for (uint32_t i = 0; i < m->word_count && emptied > 0; i++) {
        m->words[kept] = m->words[i];
        kept += m->alive[m->words[i]][BT_TIERS - 1] != 0;
    }
    if (emptied > 0)
        m->word_count = kept;
}

/* The keys that come soon, by their place in keys[] modulo the ring: a bucket
 * is fetched 2 * AHEAD keys before its use, its first block AHEAD keys. */
struct ahead {
    uint32_t bucket[2 * AHEAD], item[2 * AHEAD];
};

static void see_bucket(const struct bt_prefix_index *index, struct ahead *a,
                       const uint64_t *keys, size_t i)
{
    const struct pi_table *t = &index->block_table;
    uint32_t bucket = (uint32_t)bt_mix64(keys[i]) & t->mask;

    a->bucket[i % (2 * AHEAD)] = bucket;
    __builtin_prefetch(&t->buckets[bucket]);
}

static void see_block(const struct bt_prefix_index *index, struct ahead *a,
                      size_t i)
{
    uint32_t item = index->block_table.buckets[a->bucket[i % (2 * AHEAD)]];

    a->item[i % (2 * AHEAD)] = item;
    __builtin_prefetch(&index->blocks[item]);
    __builtin_prefetch(pi_holders(index, item));
}

static void match_loop(const struct bt_prefix_index *index,
                       const uint64_t *keys, size_t count, struct match *m)
{
    const uint32_t *next = index->block_table.next;
    struct ahead a;
    uint32_t depth = 0;

    for (size_t i = 0; i < count && i < (size_t)2 * AHEAD; i++)
        see_bucket(index, &a, keys, i);
    for (size_t i = 0; i < count && i < AHEAD; i++)
        see_block(index, &a, i);
    for (; depth < count && m->word_count > 0; depth++) {
        uint32_t block = a.item[depth % (2 * AHEAD)];

        if (count - depth > AHEAD)
            see_block(index, &a, (size_t)depth + AHEAD);
        if (count - depth > (size_t)2 * AHEAD)
            see_bucket(index, &a, keys, (size_t)depth + 2 * AHEAD);
        while (block != 0 && index->blocks[block].key != keys[depth])
            block = next[block];
        if (block == 0)
            break;
        match_block(m, pi_holders(index, block), depth);
    }
    for (uint32_t i = 0; i < m->word_count; i++)
        for (unsigned int t = m->first; t < BT_TIERS; t++)
            set_depths(m, m->alive[m->words[i]][t], m->words[i], t, depth);
}

static void match(const struct bt_prefix_index *index, const uint64_t *keys,
                  size_t count, unsigned int first, uint32_t *depth_out)
{
    struct match m; /* its sets are large: match_start() fills what is used */

    memset(depth_out, 0,
           (size_t)index->limits.workers_max * (BT_TIERS - first) *
               sizeof(*depth_out));
    if (count > UINT32_MAX)
        count = UINT32_MAX;
    m.first = first;
    m.depth_out = depth_out;
    match_start(index, &m);
    match_loop(index, keys, count, &m);
}

void bt_prefix_index_match(const struct bt_prefix_index *index,
                           const uint64_t *keys, size_t count,
                           uint32_t *depth_out)
{
    match(index, keys, count, BT_TIERS - 1, depth_out);
}

void bt_prefix_index_match_tiers(const struct bt_prefix_index *index,
                                 const uint64_t *keys, size_t count,
                                 uint32_t *depth_out)
{
    match(index, keys, count, 0, depth_out);
}

int bt_prefix_index_holds(const struct bt_prefix_index *index, uint32_t worker,
                          uint64_t key)
{
    return bt_prefix_index_tiers(index, worker, key) != 0;
}

unsigned int bt_prefix_index_tiers(const struct bt_prefix_index *index,
                                   uint32_t worker, uint64_t key)
{
    unsigned int tiers = 0;
    uint32_t block, presence;

    assert(worker < index->limits.workers_max);
    block = pi_block_find(index, key);
    presence = block != 0 ? pi_presence_find(index, block, worker) : 0;
    if (presence == 0)
        return 0;
    for (unsigned int t = 0; t < BT_TIERS; t++)
        if (index->presences[presence].holdings[t] > 0)
            tiers |= 1u << t;
    return tiers;
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
    out->blocks = index->block_table.used;
    out->holdings = index->holding_table.used;
}
