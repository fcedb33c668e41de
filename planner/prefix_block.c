/* Blocks of the prefix index: who holds one, in which tiers, in which
 * namespace. Decides how holders are kept (bits, three inside, a chain of some,
 * a bit set) and when that changes; leaves to the holdings' side which of them
 * come and go.
 *
 * Invariants: `who` is empty exactly for a block that is not in the table; a
 * set outside comes back inside at two holders; when its pool is used up the
 * newcomer is refused, so nothing is ever said that is not so.
 */
#include "prefix_index_impl.h"

#include <assert.h>
#include <string.h>

#define SLOT_BITS 20u
#define SLOT_MASK ((1u << SLOT_BITS) - 1)
#define MORE_MAX  UINT8_MAX
#define TIER_BITS ((1u << BT_TIERS) - 1)

/* ---- tables and pools ---- */

static uint32_t take_fresh(struct pi_table *t)
{
    assert(t->fresh < t->max);
    return ++t->fresh;
}

static uint32_t pool_take(struct pi_pool *p)
{
    uint32_t i = p->free_head;

    if (i != 0)
        memcpy(&p->free_head, pi_record(p, i), sizeof(p->free_head));
    else if (p->fresh < p->max)
        i = ++p->fresh;
    else
        return 0;
    memset(pi_record(p, i), 0, p->record);
    return i;
}

static void pool_give(struct pi_pool *p, uint32_t i)
{
    memcpy(pi_record(p, i), &p->free_head, sizeof(p->free_head));
    p->free_head = i;
}

/* ---- namespaces ---- */

uint16_t pi_ns_get(struct bt_prefix_index *x, uint64_t seed)
{
    struct pi_table *t = &x->ns_table;
    uint32_t *bucket = &t->buckets[pi_bucket(seed, t->bucket_count)];
    uint32_t n = *bucket;

    while (n != 0 && x->namespaces[n].seed != seed)
        n = x->namespaces[n].next;
    if (n != 0) {
        x->namespaces[n].refs++;
        return (uint16_t)n;
    }
    if (pi_table_full(t))
        return 0;
    n = t->free_head;
    if (n != 0)
        t->free_head = x->namespaces[n].next;
    else
        n = take_fresh(t);
    x->namespaces[n] = (struct pi_ns){.seed = seed, .refs = 1, .next = *bucket};
    *bucket = n;
    t->used++;
    return (uint16_t)n;
}

void pi_ns_put(struct bt_prefix_index *x, uint16_t ns)
{
    struct pi_table *t = &x->ns_table;
    struct pi_ns *n = &x->namespaces[ns];
    uint32_t *at;

    assert(ns != 0 && n->refs > 0);
    if (--n->refs > 0)
        return;
    at = &t->buckets[pi_bucket(n->seed, t->bucket_count)];
    while (*at != ns) {
        assert(*at != 0);
        at = &x->namespaces[*at].next;
    }
    *at = n->next;
    n->next = t->free_head;
    t->free_head = ns;
    t->used--;
}

/* ---- blocks ---- */

uint32_t pi_block_make(struct bt_prefix_index *x, struct pi_home home,
                       uint64_t key, uint16_t ns)
{
    uint32_t b = x->blocks_free;

    assert(!pi_blocks_full(x));
    if (b != 0)
        x->blocks_free = (uint32_t)x->blocks[b].who;
    else
        b = ++x->blocks_fresh;
    x->blocks_used++;
    x->blocks[b] = (struct pi_block){.key = key, .ns = ns};
    pi_map_put(&x->block_map, home, b);
    x->namespaces[ns].refs++;
    return b;
}

static void block_free(struct bt_prefix_index *x, uint32_t b)
{
    struct pi_block *block = &x->blocks[b];

    pi_map_replace(&x->block_map, pi_block_home(x, block->key), b, 0);
    pi_ns_put(x, block->ns);
    block->who = x->blocks_free;
    block->flags = 0;
    x->blocks_free = b;
    x->blocks_used--;
}

/* ---- holders ---- */

static unsigned int direct_tiers(uint64_t who, uint32_t worker)
{
    uint64_t v = who >> worker;

    return (unsigned int)((v & 1) | (v >> (PI_DIRECT - 1) & 2) |
                          (v >> (2 * PI_DIRECT - 2) & 4) |
                          (v >> (3 * PI_DIRECT - 3) & 8));
}

/* `who` of a block with one holder in one tier. */
static uint64_t sole(const struct bt_prefix_index *x, uint32_t worker,
                     unsigned int tier)
{
    return x->direct ? 1ULL << (PI_DIRECT * tier + worker)
                     : (uint64_t)worker << BT_TIERS | 1u << tier;
}

/* The bits of the worker's row and its neighbours, one word per tier. */
static uint64_t *wide_words(const struct bt_prefix_index *x, uint64_t who,
                            uint32_t worker)
{
    uint64_t *set = pi_record(&x->wides, (uint32_t)who);

    return set + (size_t)(worker / 64) * BT_TIERS;
}

static struct pi_some *some_unit(const struct bt_prefix_index *x, uint32_t unit)
{
    return pi_record(&x->somes, unit);
}

/* Where the chain keeps the worker; NULL: it does not. */
static uint32_t *some_find(const struct bt_prefix_index *x, uint64_t who,
                           uint32_t worker)
{
    for (uint32_t u = (uint32_t)who; u != 0; u = some_unit(x, u)->next)
        for (unsigned int i = 0; i < PI_SOME_HOLDERS; i++) {
            uint32_t *h = &some_unit(x, u)->holder[i];

            if (*h != 0 && *h >> BT_TIERS == worker)
                return h;
        }
    return NULL;
}

unsigned int pi_block_tiers(const struct bt_prefix_index *x, uint32_t b,
                            uint32_t worker)
{
    const struct pi_block *block = &x->blocks[b];
    unsigned int tiers = 0;

    if (x->direct)
        return direct_tiers(block->who, worker);
    if (block->flags & PI_WIDE) {
        const uint64_t *w = wide_words(x, block->who, worker);

        for (unsigned int t = 0; t < BT_TIERS; t++)
            tiers |= (unsigned int)(w[t] >> worker % 64 & 1) << t;
        return tiers;
    }
    if (block->flags & PI_SOME) {
        const uint32_t *h = some_find(x, block->who, worker);

        return h != NULL ? *h & TIER_BITS : 0;
    }
    for (uint64_t who = block->who; who != 0; who >>= SLOT_BITS)
        if ((who & SLOT_MASK) >> BT_TIERS == worker && (who & TIER_BITS) != 0)
            return (unsigned int)(who & TIER_BITS);
    return 0;
}

uint32_t pi_block_holders(const struct bt_prefix_index *x, uint32_t b)
{
    uint64_t who = x->blocks[b].who;
    uint32_t count = 0;

    if (x->direct) {
        who |= who >> 2 * PI_DIRECT;
        who |= who >> PI_DIRECT;
        who &= (1u << PI_DIRECT) - 1;
        for (; who != 0; who &= who - 1)
            count++;
        return count;
    }
    if (x->blocks[b].flags & (PI_SOME | PI_WIDE))
        return (uint32_t)(who >> 32);
    for (; who != 0; who >>= SLOT_BITS)
        count += (who & TIER_BITS) != 0;
    return count;
}

static void wide_put(struct bt_prefix_index *x, uint64_t to, uint32_t holder)
{
    uint64_t *w = wide_words(x, to, holder >> BT_TIERS);

    for (unsigned int t = 0; t < BT_TIERS; t++)
        w[t] |= (uint64_t)(holder >> t & 1) << (holder >> BT_TIERS) % 64;
}

static void chain_free(struct bt_prefix_index *x, uint32_t unit)
{
    while (unit != 0) {
        uint32_t next = some_unit(x, unit)->next;

        pool_give(&x->somes, unit);
        unit = next;
    }
}

/* From inside or from a chain to a bit set. */
static bool go_wide(struct bt_prefix_index *x, struct pi_block *block,
                    uint32_t holders)
{
    uint32_t set = pool_take(&x->wides);

    if (set == 0)
        return false;
    if (block->flags & PI_SOME) {
        for (uint32_t u = (uint32_t)block->who; u != 0;
             u = some_unit(x, u)->next)
            for (unsigned int i = 0; i < PI_SOME_HOLDERS; i++)
                if (some_unit(x, u)->holder[i] != 0)
                    wide_put(x, set, some_unit(x, u)->holder[i]);
        chain_free(x, (uint32_t)block->who);
    } else {
        for (uint64_t who = block->who; who != 0; who >>= SLOT_BITS)
            wide_put(x, set, (uint32_t)(who & SLOT_MASK));
        x->stats.shared++;
    }
    block->flags = (uint16_t)((block->flags & ~PI_SOME) | PI_WIDE);
    block->who = (uint64_t)holders << 32 | set;
    return true;
}

static bool go_some(struct bt_prefix_index *x, struct pi_block *block)
{
    uint32_t unit = pool_take(&x->somes);
    uint64_t who = block->who;

    if (unit == 0)
        return false;
    for (unsigned int i = 0; i < PI_INLINE; i++, who >>= SLOT_BITS)
        some_unit(x, unit)->holder[i] = (uint32_t)(who & SLOT_MASK);
    block->flags |= PI_SOME;
    block->who = (uint64_t)PI_INLINE << 32 | unit;
    x->stats.shared++;
    return true;
}

/* A free place in the chain, made longer if it may be; NULL: there is none. */
static uint32_t *some_place(struct bt_prefix_index *x, struct pi_block *block)
{
    uint32_t length = 0, unit = 0;

    for (uint32_t u = (uint32_t)block->who; u != 0; u = some_unit(x, u)->next) {
        for (unsigned int i = 0; i < PI_SOME_HOLDERS; i++)
            if (some_unit(x, u)->holder[i] == 0)
                return &some_unit(x, u)->holder[i];
        length++;
    }
    if (length < x->some_chain)
        unit = pool_take(&x->somes);
    if (unit == 0)
        return NULL;
    some_unit(x, unit)->next = (uint32_t)block->who;
    block->who = block->who >> 32 << 32 | unit;
    return &some_unit(x, unit)->holder[0];
}

/* Back inside: two holders are left. */
static void come_inside(struct bt_prefix_index *x, struct pi_block *block)
{
    uint64_t who = 0;

    if (block->flags & PI_SOME) {
        for (uint32_t u = (uint32_t)block->who; u != 0;
             u = some_unit(x, u)->next)
            for (unsigned int i = 0; i < PI_SOME_HOLDERS; i++)
                if (some_unit(x, u)->holder[i] != 0)
                    who = who << SLOT_BITS | some_unit(x, u)->holder[i];
        chain_free(x, (uint32_t)block->who);
    }
    for (uint32_t g = 0; block->flags & PI_WIDE && g < x->words; g++) {
        const uint64_t *w = wide_words(x, block->who, g * 64);
        uint64_t any = w[0] | w[1] | w[2] | w[3];

        for (; any != 0; any &= any - 1) {
            uint32_t bit = (uint32_t)__builtin_ctzll(any);
            uint64_t holder = (uint64_t)(g * 64 + bit) << BT_TIERS;

            for (unsigned int t = 0; t < BT_TIERS; t++)
                holder |= (w[t] >> bit & 1) << t;
            who = who << SLOT_BITS | holder;
        }
    }
    if (block->flags & PI_WIDE)
        pool_give(&x->wides, (uint32_t)block->who);
    block->flags &= (uint16_t) ~(PI_SOME | PI_WIDE);
    block->who = who;
    x->stats.shared--;
}

/* A holder that the block does not have yet. */
static bool holder_join(struct bt_prefix_index *x, struct pi_block *block,
                        uint32_t holder)
{
    uint32_t holders, *place;

    if (!(block->flags & (PI_SOME | PI_WIDE))) {
        for (unsigned int i = 0; i < PI_INLINE; i++)
            if ((block->who >> SLOT_BITS * i & SLOT_MASK) == 0) {
                block->who |= (uint64_t)holder << SLOT_BITS * i;
                return true;
            }
        if (x->some_chain > 0 ? !go_some(x, block)
                              : !go_wide(x, block, PI_INLINE))
            return false;
    }
    holders = (uint32_t)(block->who >> 32);
    if (block->flags & PI_SOME) {
        place = some_place(x, block);
        if (place != NULL)
            *place = holder;
        else if (!go_wide(x, block, holders))
            return false;
    }
    if (block->flags & PI_WIDE)
        wide_put(x, block->who, holder);
    block->who += 1ULL << 32;
    return true;
}

/* New tiers of a holder that the block has, 0: it leaves. */
static void holder_change(struct bt_prefix_index *x, struct pi_block *block,
                          uint32_t worker, unsigned int tiers)
{
    uint32_t holder = tiers != 0 ? worker << BT_TIERS | tiers : 0;

    if (block->flags & PI_WIDE) {
        uint64_t *w = wide_words(x, block->who, worker);
        uint64_t bit = 1ULL << worker % 64;

        for (unsigned int t = 0; t < BT_TIERS; t++)
            w[t] = tiers >> t & 1 ? w[t] | bit : w[t] & ~bit;
    } else if (block->flags & PI_SOME) {
        uint32_t *place = some_find(x, block->who, worker);

        assert(place != NULL);
        *place = holder;
    } else {
        for (unsigned int i = 0; i < PI_INLINE; i++) {
            uint64_t slot = block->who >> SLOT_BITS * i & SLOT_MASK;

            if (slot == 0 || slot >> BT_TIERS != worker)
                continue;
            block->who ^= (slot ^ holder) << SLOT_BITS * i;
            return;
        }
        return;
    }
    if (tiers != 0)
        return;
    block->who -= 1ULL << 32;
    if (block->who >> 32 < PI_INLINE)
        come_inside(x, block);
}

/* One tier more, or less, of what the worker has. */
static bool block_flip(struct bt_prefix_index *x, uint32_t b, uint32_t worker,
                       unsigned int before, unsigned int tier)
{
    struct pi_block *block = &x->blocks[b];
    unsigned int tiers = before ^ 1u << tier;

    if (x->direct)
        block->who ^= sole(x, worker, tier);
    else if (before != 0)
        holder_change(x, block, worker, tiers);
    else if (!holder_join(x, block, worker << BT_TIERS | tiers))
        return false;
    x->worker_blocks[worker] += (before == 0) - (uint32_t)(tiers == 0);
    return true;
}

/* ---- more than one holding of a worker in a tier ---- */

static uint32_t *extra_find(struct bt_prefix_index *x, uint32_t b,
                            uint32_t worker)
{
    struct pi_table *t = &x->extra_table;
    uint32_t *at =
        &t->buckets[pi_bucket((uint64_t)worker << 32 | b, t->bucket_count)];

    while (*at != 0 &&
           (x->extras[*at].block != b || x->extras[*at].worker != worker))
        at = &x->extras[*at].next;
    return at;
}

static bool extra_add(struct bt_prefix_index *x, uint32_t b, uint32_t worker,
                      unsigned int tier)
{
    struct pi_table *t = &x->extra_table;
    uint32_t *at = extra_find(x, b, worker);
    uint32_t e = *at;

    if (e == 0) {
        if (pi_table_full(t))
            return false;
        e = t->free_head;
        if (e != 0)
            t->free_head = x->extras[e].next;
        else
            e = take_fresh(t);
        t->used++;
        x->extras[e] = (struct pi_extra){.block = b, .worker = worker};
        *at = e;
        x->blocks[b].flags |= PI_EXTRA;
    }
    if (x->extras[e].more[tier] == MORE_MAX)
        return false;
    x->extras[e].more[tier]++;
    return true;
}

/* False: the holding is the only one. */
static bool extra_sub(struct bt_prefix_index *x, uint32_t b, uint32_t worker,
                      unsigned int tier)
{
    uint32_t *at = extra_find(x, b, worker);
    struct pi_extra *e = &x->extras[*at];
    uint32_t left = 0, item = *at;

    if (item == 0 || e->more[tier] == 0)
        return false;
    e->more[tier]--;
    for (unsigned int t = 0; t < BT_TIERS; t++)
        left += e->more[t];
    if (left > 0)
        return true;
    *at = e->next;
    e->next = x->extra_table.free_head;
    x->extra_table.free_head = item;
    x->extra_table.used--;
    return true;
}

bool pi_block_add(struct bt_prefix_index *x, uint32_t b, uint32_t worker,
                  unsigned int tier)
{
    unsigned int before;

    if (x->blocks[b].who == 0) { /* the usual: it is new */
        x->blocks[b].who = sole(x, worker, tier);
        x->worker_blocks[worker]++;
        return true;
    }
    before = pi_block_tiers(x, b, worker);
    if (before >> tier & 1)
        return extra_add(x, b, worker, tier);
    return block_flip(x, b, worker, before, tier);
}

void pi_block_sub(struct bt_prefix_index *x, uint32_t b, uint32_t worker,
                  unsigned int tier)
{
    struct pi_block *block = &x->blocks[b];
    unsigned int before;

    if (!(block->flags & (PI_EXTRA | PI_SOME | PI_WIDE)) &&
        block->who == sole(x, worker, tier)) { /* the usual: the last */
        x->worker_blocks[worker]--;
        block_free(x, b);
        return;
    }
    if (block->flags & PI_EXTRA && extra_sub(x, b, worker, tier))
        return;
    before = pi_block_tiers(x, b, worker);
    assert(before >> tier & 1);
    (void)block_flip(x, b, worker, before, tier);
    if (x->blocks[b].who == 0)
        block_free(x, b);
}
