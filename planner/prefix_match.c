/* Prompts against the prefix index: how far each worker's prefix goes. Decides
 * how the workers still in the game are kept; leaves the tables to
 * prefix_block.c.
 *
 *   up to 15 rows   the 60 bits of `who`, made cumulative, anded block by block
 *   more            a list, from a block with few holders on (one that holds
 *                   the rest of the prompt is among them); before that the bit
 *                   sets of the blocks that many hold, anded word by word
 *
 * Memory is fetched ahead: a key's line, then its block, then its set.
 * Invariant: depths are written once per worker and tier, when it drops out.
 */
#include "prefix_index_impl.h"

#include "baton/base/ids.h"

#include <string.h>

#define WORDS_MAX   ((BT_WORKER_SLOTS_MAX + 63) / 64)
#define WORDS_USUAL 16 /* up to 1,024 rows */
#define LIST_MAX    (PI_SOME_HOLDERS * PI_SOME_CHAIN)
#define TIER_BITS   ((1u << BT_TIERS) - 1)
#define SLOT_BITS   20u
#define AHEAD       6u /* keys between two steps of fetching */
#define RING        32u

/* ---- the blocks of a prompt, one after the other ---- */

struct walk {
    const struct bt_prefix_index *x;
    const uint64_t *keys;
    size_t count;
    struct pi_home home[RING]; /* of the keys that come soon */
    uint32_t item[RING];       /* blocks they are, most likely */
};

static inline void see_line(struct walk *w, size_t i)
{
    struct pi_home home = pi_block_home(w->x, w->keys[i]);

    w->home[i % RING] = home;
    __builtin_prefetch(pi_line(&w->x->block_map, home.bucket));
}

static inline void see_block(struct walk *w, size_t i)
{
    uint32_t item = pi_map_guess(&w->x->block_map, w->home[i % RING]);

    w->item[i % RING] = item;
    __builtin_prefetch(&w->x->blocks[item]);
}

static inline void see_set(struct walk *w, size_t i)
{
    const struct pi_block *b = &w->x->blocks[w->item[i % RING]];

    if (!(b->flags & (PI_SOME | PI_WIDE)))
        return;
    if (b->flags & PI_SOME)
        __builtin_prefetch(pi_record(&w->x->somes, (uint32_t)b->who));
    else
        __builtin_prefetch(pi_record(&w->x->wides, (uint32_t)b->who));
}

static void walk_start(struct walk *w, const struct bt_prefix_index *x,
                       const uint64_t *keys, size_t count)
{
    w->x = x;
    w->keys = keys;
    w->count = count;
    for (size_t i = 0; i < count && i < (size_t)3 * AHEAD; i++)
        see_line(w, i);
    for (size_t i = 0; i < count && i < (size_t)2 * AHEAD; i++)
        see_block(w, i);
    for (size_t i = 0; i < count && i < AHEAD; i++)
        see_set(w, i);
}

/* Block of key i, 0: nobody holds it. Called for i = 0, 1, ... */
static inline uint32_t walk_to(struct walk *w, size_t i)
{
    uint32_t block = w->item[i % RING];

    if (w->count - i > (size_t)3 * AHEAD)
        see_line(w, i + (size_t)3 * AHEAD);
    if (w->count - i > (size_t)2 * AHEAD)
        see_block(w, i + (size_t)2 * AHEAD);
    if (w->count - i > AHEAD)
        see_set(w, i + AHEAD);
    if (block != 0 && w->x->blocks[block].key == w->keys[i])
        return block;
    return pi_block_find_at(w->x, w->home[i % RING], w->keys[i]);
}

/* ---- one match ---- */

struct match {
    struct walk walk;
    unsigned int first;  /* tiers from this one on are asked for */
    unsigned int stride; /* BT_TIERS - first */
    uint32_t *depth_out; /* [worker * stride + tier - first] */
    uint32_t list_count;
    uint32_t list[LIST_MAX]; /* row << 4 | tiers, cumulative */
    uint32_t word_count;
    uint32_t *words; /* that are not empty, with bit sets */
    uint64_t (*alive)[BT_TIERS];
};

/* Tiers from the fastest one held on. */
static inline unsigned int cumulative(unsigned int tiers)
{
    return (0u - (tiers & (0u - tiers))) & TIER_BITS;
}

static inline void set_depth(const struct match *m, uint32_t worker,
                             unsigned int tiers, uint32_t depth)
{
    tiers >>= m->first;
    for (uint32_t *to = m->depth_out + (size_t)worker * m->stride; tiers != 0;
         tiers >>= 1, to++)
        if (tiers & 1)
            *to = depth;
}

/* ---- up to 15 rows ---- */

static inline uint64_t direct_cumulative(uint64_t who)
{
    who |= who << PI_DIRECT;
    return (who | who << 2 * PI_DIRECT) & ((1ULL << 4 * PI_DIRECT) - 1);
}

static void direct_depths(const struct match *m, uint64_t gone, uint32_t depth)
{
    for (; gone != 0; gone &= gone - 1) {
        uint32_t bit = (uint32_t)__builtin_ctzll(gone);

        m->depth_out[(size_t)(bit % PI_DIRECT) * m->stride + bit / PI_DIRECT -
                     m->first] = depth;
    }
}

static void match_direct(struct match *m)
{
    uint64_t alive = UINT64_MAX << PI_DIRECT * m->first;
    uint32_t depth = 0;

    for (; depth < m->walk.count; depth++) {
        uint32_t block = walk_to(&m->walk, depth);
        uint64_t held = 0;

        if (block != 0)
            held = direct_cumulative(m->walk.x->blocks[block].who);
        held &= alive;
        if (held != alive && depth > 0)
            direct_depths(m, alive & ~held, depth);
        alive = held;
        if (alive == 0)
            return;
    }
    if (depth > 0)
        direct_depths(m, alive, depth);
}

/* ---- more rows ---- */

/* Holders of a block that keeps no bit set, with their cumulative tiers. */
static uint32_t few_holders(const struct bt_prefix_index *x,
                            const struct pi_block *block, uint32_t *out)
{
    uint32_t n = 0;

    if (!(block->flags & PI_SOME)) {
        for (uint64_t who = block->who; who != 0; who >>= SLOT_BITS)
            if ((who & TIER_BITS) != 0)
                out[n++] = (uint32_t)(who & ((1u << SLOT_BITS) - 1));
    } else {
        const struct pi_some *some;

        for (uint32_t u = (uint32_t)block->who; u != 0; u = some->next) {
            some = pi_record(&x->somes, u);
            for (unsigned int i = 0; i < PI_SOME_HOLDERS; i++)
                if (some->holder[i] != 0)
                    out[n++] = some->holder[i];
        }
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = (out[i] & ~TIER_BITS) | cumulative(out[i] & TIER_BITS);
    return n;
}

static void list_step(struct match *m, const struct pi_block *block,
                      uint32_t depth)
{
    const struct bt_prefix_index *x = m->walk.x;
    uint32_t b = (uint32_t)(block - x->blocks), kept = 0;

    for (uint32_t i = 0; i < m->list_count; i++) {
        uint32_t worker = m->list[i] >> BT_TIERS;
        unsigned int alive = m->list[i] & TIER_BITS;
        unsigned int stay = alive & cumulative(pi_block_tiers(x, b, worker));

        if (stay != alive)
            set_depth(m, worker, alive & ~stay, depth);
        if (stay >> m->first != 0)
            m->list[kept++] = worker << BT_TIERS | stay;
    }
    m->list_count = kept;
}

static const uint64_t *set_of(const struct match *m,
                              const struct pi_block *block)
{
    return pi_record(&m->walk.x->wides, (uint32_t)block->who);
}

static void sets_start(struct match *m, const struct pi_block *block)
{
    const uint64_t *held = set_of(m, block);

    for (uint32_t w = 0; w < m->walk.x->words; w++, held += BT_TIERS) {
        uint64_t sum = 0;

        for (unsigned int t = 0; t < BT_TIERS; t++)
            m->alive[w][t] = sum |= held[t];
        if (sum != 0)
            m->words[m->word_count++] = w;
    }
}

static void word_depths(const struct match *m, uint32_t word, unsigned int tier,
                        uint64_t gone, uint32_t depth)
{
    for (; gone != 0; gone &= gone - 1) {
        uint32_t worker = word * 64 + (uint32_t)__builtin_ctzll(gone);

        m->depth_out[(size_t)worker * m->stride + tier - m->first] = depth;
    }
}

static void sets_step(struct match *m, const struct pi_block *block,
                      uint32_t depth)
{
    const uint64_t *set = set_of(m, block);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < m->word_count; i++) {
        uint32_t w = m->words[i];
        const uint64_t *held = set + (size_t)w * BT_TIERS;
        uint64_t sum = 0;

        for (unsigned int t = 0; t < BT_TIERS; t++) {
            uint64_t alive = m->alive[w][t];

            sum |= held[t];
            if (t < m->first || (alive & ~sum) == 0)
                continue;
            word_depths(m, w, t, alive & ~sum, depth);
            m->alive[w][t] = alive & sum;
        }
        m->words[kept] = w;
        kept += m->alive[w][BT_TIERS - 1] != 0;
    }
    m->word_count = kept;
}

static void sets_end(struct match *m, uint32_t depth)
{
    for (uint32_t i = 0; i < m->word_count; i++)
        for (unsigned int t = m->first; t < BT_TIERS; t++)
            word_depths(m, m->words[i], t, m->alive[m->words[i]][t], depth);
    m->word_count = 0;
}

/* From the sets to a list: the block has few holders. */
static void sets_to_list(struct match *m, const struct pi_block *block,
                         uint32_t depth)
{
    uint32_t n = few_holders(m->walk.x, block, m->list);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t worker = m->list[i] >> BT_TIERS;
        uint64_t *alive = m->alive[worker / 64];
        unsigned int tiers = 0;

        for (unsigned int t = m->first; t < BT_TIERS; t++)
            if (m->list[i] >> t & 1 && alive[t] >> worker % 64 & 1) {
                tiers |= 1u << t;
                alive[t] &= ~(1ULL << worker % 64);
            }
        if (tiers != 0)
            m->list[m->list_count++] = worker << BT_TIERS | tiers;
    }
    sets_end(m, depth);
}

static void many_step(struct match *m, const struct pi_block *block,
                      uint32_t depth)
{
    if (depth == 0 && block->flags & PI_WIDE)
        sets_start(m, block);
    else if (depth == 0)
        m->list_count = few_holders(m->walk.x, block, m->list);
    else if (m->word_count == 0)
        list_step(m, block, depth);
    else if (block->flags & PI_WIDE)
        sets_step(m, block, depth);
    else
        sets_to_list(m, block, depth);
}

static void match_many(struct match *m)
{
    uint32_t depth = 0;

    m->list_count = m->word_count = 0;
    for (; depth < m->walk.count; depth++) {
        uint32_t block = walk_to(&m->walk, depth);

        if (block == 0)
            break;
        many_step(m, &m->walk.x->blocks[block], depth);
        if (m->list_count == 0 && m->word_count == 0)
            return;
    }
    for (uint32_t i = 0; i < m->list_count; i++)
        set_depth(m, m->list[i] >> BT_TIERS, m->list[i] & TIER_BITS, depth);
    sets_end(m, depth);
}

/* The usual fleet needs little stack, and a page of it costs time. */
static __attribute__((noinline)) void match_usual(struct match *m)
{
    uint64_t alive[WORDS_USUAL][BT_TIERS];
    uint32_t words[WORDS_USUAL];

    m->alive = alive;
    m->words = words;
    match_many(m);
    m->alive = NULL;
    m->words = NULL;
}

static __attribute__((noinline)) void match_large(struct match *m)
{
    uint64_t alive[WORDS_MAX][BT_TIERS];
    uint32_t words[WORDS_MAX];

    m->alive = alive;
    m->words = words;
    match_many(m);
    m->alive = NULL;
    m->words = NULL;
}

static void match(const struct bt_prefix_index *index, const uint64_t *keys,
                  size_t count, unsigned int first, uint32_t *depth_out)
{
    struct match m; /* only what is used is written */

    m.first = first;
    m.stride = BT_TIERS - first;
    m.depth_out = depth_out;
    memset(depth_out, 0,
           (size_t)index->limits.workers_max * m.stride * sizeof(*depth_out));
    if (count > UINT32_MAX)
        count = UINT32_MAX;
    walk_start(&m.walk, index, keys, count);
    if (index->direct)
        match_direct(&m);
    else if (index->words <= WORDS_USUAL)
        match_usual(&m);
    else
        match_large(&m);
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

/* ---- facts about a prompt's blocks ---- */

void bt_prefix_index_touch(struct bt_prefix_index *index, const uint64_t *keys,
                           size_t count)
{
    struct walk w;

    walk_start(&w, index, keys, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t block = walk_to(&w, i);

        if (block != 0)
            index->blocks[block].flags |= PI_REF;
    }
}

size_t bt_prefix_index_spread(const struct bt_prefix_index *index,
                              const uint64_t *keys, size_t count,
                              uint32_t *copies_out)
{
    struct walk w;
    size_t i = 0;

    walk_start(&w, index, keys, count);
    for (; i < count; i++) {
        uint32_t block = walk_to(&w, i);

        if (block == 0)
            break;
        copies_out[i] = pi_block_holders(index, block);
    }
    for (size_t j = i; j < count; j++)
        copies_out[j] = 0;
    return i;
}
