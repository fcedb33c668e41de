/* Insides of the prefix index, private to this folder. prefix_index.c: memory
 * and small look-ups; prefix_match.c: prompts; prefix_block.c: who holds a
 * block; prefix_holding.c: entries and their pages; prefix_evict.c: making
 * room; prefix_apply.c: what events mean.
 *
 *   source    (worker, rank)             list per worker, counters
 *     |  open and full pages
 *   page      8 or 32 holdings of one source
 *     |
 *   holding   engine hash in a source    hash table; copies per tier, age
 *     |  many to one (0: counts only)
 *   block     own key, namespace         hash table; `who` says the rest
 *
 *   who, up to 15 rows   4 tiers of 15 bits
 *   who, more rows       three holders of 20 bits (row << 4 | tiers), or, from
 *                        the fourth on, holders << 32 | index of a chain of
 *                        `struct pi_some` (many rows only) or of a bit set
 *
 * Invariants: a block exists exactly while a holding names it; a worker's tier
 * bit of a block is set exactly while a holding of his with copies there names
 * it, and how many more do is in `extras` (rare: two ranks, two engine hashes).
 * A holding has a copy in some tier. Sets of tiers are exact, not cumulative.
 * A page is on its source's full list when no slot is free, else on its open
 * list, and free when empty. Index 0 of every table is "none".
 */
#ifndef BATON_PLANNER_PREFIX_INDEX_IMPL_H
#define BATON_PLANNER_PREFIX_INDEX_IMPL_H

#include "baton/planner/prefix_index.h"
#include "prefix_map.h"

#include <stdbool.h>

/* DP ranks of one worker that may have entries at the same time. */
#define PI_RANKS_MAX 64u
#define PI_DIRECT    15u /* rows whose bits fit into `who` */
#define PI_INLINE    3u  /* holders that do when there are more rows */
#define PI_COPIES    127u
#define PI_PAGE_MAX  32u
#define PI_CHUNK     16u /* blocks of an event whose memory is fetched at once */

/* Chained hash table; the links lie in the items, which are free-listed by the
 * same links. The number of buckets is free: multiply and shift. */
struct pi_table {
    uint32_t *buckets;
    uint32_t bucket_count;
    uint32_t max;
    uint32_t fresh; /* items never used so far: fresh + 1 .. max */
    uint32_t free_head;
    uint32_t used;
};

enum pi_block_flag {
    PI_REF = 1,   /* asked for or a parent since the hand last passed */
    PI_PIN = 2,   /* of the event that is being applied: may not make room */
    PI_EXTRA = 4, /* may have entries in `extras` */
    PI_SOME = 8,  /* who names a chain of struct pi_some */
    PI_WIDE = 16  /* who names a bit set */
};

/* At 20 bytes, for want of padding. */
struct __attribute__((packed, aligned(4))) pi_block {
    uint64_t key;
    uint64_t who; /* of a free block: the next free one */
    uint16_t ns;  /* id in the namespace table */
    uint16_t flags;
};

#define PI_SOME_HOLDERS 9u
#define PI_SOME_CHAIN   3u /* units of a chain at most */

struct pi_some {
    uint32_t holder[PI_SOME_HOLDERS]; /* row << 4 | tiers, 0: free */
    uint32_t next;
};

struct pi_ns {
    uint64_t seed;
    uint32_t refs; /* blocks, and the event being applied */
    uint32_t next;
};

/* Holdings of a worker that name a block in a tier, without the first. */
struct pi_extra {
    uint32_t block, worker, next;
    uint8_t more[BT_TIERS];
};

/* counts: 4 x 7 bits of copies, then 4 bits of the source's epoch when the
 * entry was last stored. Its source is that of its page. */
struct pi_holding {
    uint32_t hash[2]; /* low, high */
    uint32_t block;   /* 0: counts only, no own key */
    uint32_t counts;
};

struct pi_page {
    unsigned int source : 26;
    unsigned int hand : 6; /* slot that is looked at next when making room */
    uint32_t prev, next;
    uint32_t used; /* bit per slot */
};

struct pi_list {
    uint32_t head, tail;
};

struct pi_source {
    uint32_t worker, rank;
    uint32_t next;         /* of the same worker, or free */
    uint32_t count, keyed; /* entries, those with a block */
    uint32_t pages;
    struct pi_list open, full;
    uint8_t epoch, counting;
    uint64_t copies[BT_TIERS];
};

/* Records of a fixed size, free-listed by their first four bytes. */
struct pi_pool {
    unsigned char *base;
    uint32_t record; /* bytes of a record */
    uint32_t max, fresh, free_head;
};

struct bt_prefix_index {
    struct bt_prefix_index_limits limits;
    uint32_t words; /* 64-bit words of a worker set */
    bool direct;
    uint32_t some_chain; /* units of a chain of holders at most, 0: none */
    struct pi_table extra_table, ns_table;
    struct pi_map block_map, holding_map;
    uint32_t blocks_fresh, blocks_free, blocks_used;
    struct pi_block *blocks;
    struct pi_extra *extras;
    struct pi_ns *namespaces;
    struct pi_pool somes, wides;
    uint32_t holdings_used;
    uint32_t page_shift, page_full; /* slots = 1 << shift; mask of all */
    uint32_t pages_max, pages_fresh, pages_free;
    struct pi_holding *holdings;
    struct pi_page *pages;
    struct pi_source *sources;
    uint32_t sources_max, sources_fresh, sources_free;
    uint32_t *worker_sources; /* head of the worker's list */
    uint32_t *worker_blocks;  /* distinct own keys */
    struct bt_prefix_index_stats stats;
};

/* ---- blocks ---- */

static inline uint32_t pi_bucket(uint64_t hash, uint32_t buckets)
{
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15ULL;
    return (uint32_t)((hash >> 32) * buckets >> 32);
}

static inline struct pi_home pi_block_home(const struct bt_prefix_index *x,
                                           uint64_t key)
{
    return pi_home_of(&x->block_map, key);
}

/* Item of an own key, 0 when nobody holds it. */
static inline uint32_t pi_block_find_at(const struct bt_prefix_index *x,
                                        struct pi_home home, uint64_t key)
{
    struct pi_seek seek = pi_seek_from(&x->block_map, home);
    uint32_t b = pi_seek_next(&x->block_map, &seek);

    while (b != 0 && x->blocks[b].key != key)
        b = pi_seek_next(&x->block_map, &seek);
    return b;
}

static inline uint32_t pi_block_find(const struct bt_prefix_index *x,
                                     uint64_t key)
{
    return pi_block_find_at(x, pi_block_home(x, key), key);
}

static inline bool pi_blocks_full(const struct bt_prefix_index *x)
{
    return x->blocks_used >= x->limits.blocks_max;
}

static inline bool pi_table_full(const struct pi_table *t)
{
    return t->free_head == 0 && t->fresh >= t->max;
}

/* A block that nobody holds yet, key at home there; the table is not full. */
uint32_t pi_block_make(struct bt_prefix_index *x, struct pi_home home,
                       uint64_t key, uint16_t ns);
/* Tiers in which the worker holds it. */
unsigned int pi_block_tiers(const struct bt_prefix_index *x, uint32_t block,
                            uint32_t worker);
uint32_t pi_block_holders(const struct bt_prefix_index *x, uint32_t block);
/* One holding more, or less, of the worker names the block in the tier. False:
 * no room to say so, nothing changed; not for a block without holders. The
 * block ends with its last holding. */
bool pi_block_add(struct bt_prefix_index *x, uint32_t block, uint32_t worker,
                  unsigned int tier);
void pi_block_sub(struct bt_prefix_index *x, uint32_t block, uint32_t worker,
                  unsigned int tier);

static inline void *pi_record(const struct pi_pool *p, uint32_t i)
{
    return p->base + (size_t)i * p->record;
}

/* Id of a namespace, counted once more; 0: the table is full. */
uint16_t pi_ns_get(struct bt_prefix_index *x, uint64_t seed);
void pi_ns_put(struct bt_prefix_index *x, uint16_t ns);

/* ---- sources, holdings ---- */

static inline unsigned int pi_copies(uint32_t counts, unsigned int tier)
{
    return counts >> 7 * tier & PI_COPIES;
}

#define PI_COUNTS_MASK 0x0fffffffu
#define PI_EPOCHS      16u

static inline uint64_t pi_holding_hash(const struct pi_holding *h)
{
    return (uint64_t)h->hash[1] << 32 | h->hash[0];
}

static inline uint32_t pi_holding_source(const struct bt_prefix_index *x,
                                         uint32_t item)
{
    return x->pages[item >> x->page_shift].source;
}

static inline struct pi_home pi_holding_home(const struct bt_prefix_index *x,
                                             uint32_t source, uint64_t hash)
{
    return pi_home_of(&x->holding_map,
                      hash ^ (uint64_t)source * 0xd6e8feb86659fd93ULL);
}

/* What an entry is found by, and where. */
struct pi_entry {
    uint64_t hash;
    uint32_t source;
    struct pi_home home;
};

/* Entries of (source, hash), one after the other; 0: no more. The one that was
 * returned last may end meanwhile. */
struct pi_entries {
    struct pi_seek seek;
    uint64_t hash;
    uint32_t source;
};

static inline uint32_t pi_entries_next(const struct bt_prefix_index *x,
                                       struct pi_entries *e)
{
    uint32_t item = pi_seek_next(&x->holding_map, &e->seek);

    while (item != 0 && (pi_holding_hash(&x->holdings[item]) != e->hash ||
                         pi_holding_source(x, item) != e->source))
        item = pi_seek_next(&x->holding_map, &e->seek);
    return item;
}

static inline struct pi_entries pi_entries_at(const struct bt_prefix_index *x,
                                              const struct pi_entry *e)
{
    return (struct pi_entries){.seek = pi_seek_from(&x->holding_map, e->home),
                               .hash = e->hash,
                               .source = e->source};
}

static inline struct pi_entries pi_entries_of(const struct bt_prefix_index *x,
                                              uint32_t source, uint64_t hash)
{
    return pi_entries_at(
        x, &(struct pi_entry){hash, source, pi_holding_home(x, source, hash)});
}

uint32_t pi_source_find(const struct bt_prefix_index *x, uint32_t worker,
                        uint32_t rank);
/* 0: the worker has PI_RANKS_MAX already, or there are too many in all. */
uint32_t pi_source_make(struct bt_prefix_index *x, uint32_t worker,
                        uint32_t rank);
/* Give the source back when it has no entry left. */
void pi_source_settle(struct bt_prefix_index *x, uint32_t source);

/* A page of free slots for the source. May move entries. */
bool pi_page_take(struct bt_prefix_index *x, uint32_t source);

/* Is there a slot for one more entry of the source? */
static inline bool pi_holding_room(struct bt_prefix_index *x, uint32_t source)
{
    return x->holdings_used < x->limits.holdings_max &&
           (x->sources[source].open.head != 0 || pi_page_take(x, source));
}

/* An entry with one copy in the tier; there is room. False: not in the block's
 * tables, nothing changed. */
bool pi_holding_make(struct bt_prefix_index *x, const struct pi_entry *entry,
                     uint32_t block, unsigned int tier);
/* It has copies in this tier alone, and ends. */
void pi_holding_end(struct bt_prefix_index *x, uint32_t item,
                    const struct pi_entry *entry, unsigned int tier);
/* Set the copies in a tier, and free the entry when none is left. False: more
 * would not fit into the block's tables, nothing changed. */
bool pi_holding_set(struct bt_prefix_index *x, uint32_t item, uint32_t source,
                    unsigned int tier, unsigned int copies);
void pi_holding_drop(struct bt_prefix_index *x, uint32_t item, uint32_t source);
/* Have what dropping the page's entries needs in the cache. */
void pi_page_fetch(const struct bt_prefix_index *x, uint32_t page);

/* The page that has been full for longest (open, when none is); it goes to the
 * end of its list. The source has entries. */
uint32_t pi_page_turn(struct bt_prefix_index *x, uint32_t source);

/* ---- making room ---- */

/* Give up entries of the largest sources, at least one; such that end a block
 * if they can be found, when that is what lacks. `source` stays even without
 * entries. False: nothing may go. */
bool pi_make_room(struct bt_prefix_index *x, uint32_t source, bool for_block);

#endif
