/* Tables and look-ups of the prefix index; prefix_apply.c applies the events.
 * Decides memory layout and how a prompt is matched; leaves the meaning of
 * stores and removals to prefix_apply.c. Layout: prefix_index_impl.h.
 *
 * A match keeps the set of workers still alive as bits and ands it with each
 * block's holders: cost is one table probe plus words per block, whatever the
 * number of holders.
 */
#include "prefix_index_impl.h"

#include "baton/base/ids.h"
#include "baton/base/rng.h"

#include <assert.h>
#include <string.h>

#define ITEMS_MAX (1u << 30)
#define WORDS_MAX ((BT_WORKER_SLOTS_MAX + 63) / 64)
#define AHEAD     4 /* blocks whose bucket is fetched early */

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
           bt_arena_need(blocks * word_count(l), sizeof(uint64_t)) +
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
    x->holders = bt_arena_take(arena, blocks * x->words, sizeof(*x->holders));
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

static void set_depths(uint64_t set, uint32_t word, uint32_t depth,
                       uint32_t *depth_out)
{
    while (set != 0) {
        depth_out[word * 64 + (uint32_t)__builtin_ctzll(set)] = depth;
        set &= set - 1;
    }
}

/* And the holders of one block into the set of workers still alive; those that
 * fall out end at this depth. False when nobody is left. */
static bool match_block(const uint64_t *holders, uint32_t words, uint32_t depth,
                        uint64_t *alive, uint32_t *depth_out)
{
    uint64_t any = 0;

    for (uint32_t w = 0; w < words; w++) {
        set_depths(alive[w] & ~holders[w], w, depth, depth_out);
        alive[w] &= holders[w];
        any |= alive[w];
    }
    return any != 0;
}

void bt_prefix_index_match(const struct bt_prefix_index *index,
                           const uint64_t *keys, size_t count,
                           uint32_t *depth_out)
{
    const struct pi_table *t = &index->block_table;
    uint64_t alive[WORDS_MAX];
    uint32_t words = index->words;
    size_t depth = 0;

    memset(depth_out, 0, index->limits.workers_max * sizeof(*depth_out));
    if (count == 0)
        return;
    if (count > UINT32_MAX)
        count = UINT32_MAX;
    memset(alive, 0xff, words * sizeof(*alive));
    if (index->limits.workers_max % 64 != 0)
        alive[words - 1] = (1ULL << index->limits.workers_max % 64) - 1;
    for (; depth < count; depth++) {
        uint32_t block;

        if (depth + AHEAD < count)
            __builtin_prefetch(
                &t->buckets[pi_block_hash(keys[depth + AHEAD]) & t->mask]);
        block = pi_block_find(index, keys[depth]);
        if (block == 0 || !match_block(pi_holders(index, block), words,
                                       (uint32_t)depth, alive, depth_out))
            break;
    }
    for (uint32_t w = 0; w < words; w++)
        set_depths(alive[w], w, (uint32_t)depth, depth_out);
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
