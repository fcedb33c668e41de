/* KV events applied to the prefix index (engine-wire.md 1.10, 2.5). Decides
 * which stores get an own key, how namespaces are inherited and how copies are
 * counted; leaves decoding to the event consumer and the tables to
 * prefix_block.c and prefix_holding.c.
 *
 * Rules that bend towards a miss, never a false hit:
 *   - a store whose parent is unknown is counted and left out (not parked);
 *   - a removal carries neither namespace nor group, so it takes one copy from
 *     every entry of that engine hash;
 *   - counts-only entries (odd token count, not full attention, placeholder of
 *     an unknown hash) never gain an own key later;
 *   - an engine hash keeps the own key it had first.
 * Blocks of an event are applied PI_CHUNK at a time, so that the memory of one
 * is fetched while another is worked on.
 */
#include "prefix_index_impl.h"

#include "baton/planner/block_hash.h"

#include <assert.h>

#define ROOM_ROUNDS 256 /* entries given up for one, at most */

/* One store event on its way in. */
struct run {
    const struct bt_kv_store *s;
    enum bt_kv_store_kind kind;
    uint32_t source;
    uint32_t last; /* block before the next one, 0: none */
    uint64_t seed; /* of the namespace */
    uint16_t ns;   /* its id, counted while the event lasts */
    bool started;  /* key is the parent's, or the block's before */
    bool pinned;   /* the blocks so far may not make room */
    uint64_t key;
    const uint64_t *mm; /* of the next block */
    /* Of the chunk: */
    size_t first, count;
    uint64_t keys[PI_CHUNK], locals[PI_CHUNK];
    struct pi_home holding_home[PI_CHUNK], block_home[PI_CHUNK];
};

static struct pi_entry entry_at(const struct run *r, size_t i)
{
    return (struct pi_entry){r->s->hashes[r->first + i], r->source,
                             r->holding_home[i]};
}

/* ---- making room ---- */

static void mark_hash(struct bt_prefix_index *x, uint32_t source, uint64_t hash,
                      bool pin)
{
    struct pi_entries entries = pi_entries_of(x, source, hash);
    uint32_t item;

    while ((item = pi_entries_next(x, &entries)) != 0) {
        struct pi_block *b = &x->blocks[x->holdings[item].block];

        b->flags = (uint16_t)(pin ? b->flags | PI_PIN : b->flags & ~PI_PIN);
    }
}

/* Blocks of the event before position `end`, and its parent. */
static void mark_run(struct bt_prefix_index *x, struct run *r, size_t end,
                     bool pin)
{
    for (size_t j = 0; j < end; j++)
        mark_hash(x, r->source, r->s->hashes[j], pin);
    if (r->s->has_parent)
        mark_hash(x, r->source, r->s->parent, pin);
    r->pinned = pin;
}

/* A slot for one more entry and, with a key, a place for its block. */
static bool have_room(struct bt_prefix_index *x, struct run *r, size_t i,
                      bool keyed)
{
    for (unsigned int round = 0; round < ROOM_ROUNDS; round++) {
        bool slot = pi_holding_room(x, r->source);
        bool block = !keyed || !pi_blocks_full(x) ||
                     pi_block_find_at(x, r->block_home[i], r->keys[i]) != 0;

        if (slot && block)
            return true;
        if (!r->pinned)
            mark_run(x, r, r->first + i, true);
        if (!pi_make_room(x, r->source, !block))
            return false;
    }
    return false;
}

/* ---- store ---- */

/* One copy more of a present entry. */
static bool holding_count(struct bt_prefix_index *x, uint32_t source,
                          uint32_t item, enum bt_tier tier)
{
    struct pi_holding *h = &x->holdings[item];
    const struct pi_source *s = &x->sources[source];
    unsigned int copies = pi_copies(h->counts, tier);

    h->counts = (h->counts & PI_COUNTS_MASK) | (uint32_t)s->epoch << 28;
    if (copies > 0 && s->counting == BT_KV_COUNT_SET)
        return true;
    return pi_holding_set(x, item, source, tier, copies + 1);
}

/* A new entry with its first copy; false: no room. A block that is new has no
 * holder that could lack room. */
static bool holding_new(struct bt_prefix_index *x, struct run *r, size_t i,
                        bool keyed, uint32_t *block_out)
{
    const struct pi_entry entry = entry_at(r, i);
    uint32_t block = 0;

    if (!have_room(x, r, i, keyed))
        return false;
    if (keyed) {
        block = pi_block_find_at(x, r->block_home[i], r->keys[i]);
        if (block == 0)
            block = pi_block_make(x, r->block_home[i], r->keys[i], r->ns);
    }
    *block_out = block;
    return pi_holding_make(x, &entry, block, r->s->tier);
}

/* The entry of (hash, namespace): the one that has the key, or one of the same
 * namespace with another. */
static uint32_t holding_keyed(struct bt_prefix_index *x, const struct run *r,
                              size_t i)
{
    const struct pi_entry entry = entry_at(r, i);
    struct pi_entries entries = pi_entries_at(x, &entry);
    uint32_t item, other = 0;

    while ((item = pi_entries_next(x, &entries)) != 0) {
        const struct pi_block *b = &x->blocks[x->holdings[item].block];

        if (x->holdings[item].block == 0)
            continue;
        if (b->key == r->keys[i])
            return item;
        if (b->ns == r->ns)
            other = item;
    }
    x->stats.collisions += other != 0;
    return other;
}

/* Count one copy of a block with an own key; the key that is mapped, whichever
 * it is, goes on in the chain. False: a table is full. */
static bool store_keyed(struct bt_prefix_index *x, struct run *r, size_t i,
                        uint64_t *key_out)
{
    uint32_t item = holding_keyed(x, r, i), block = x->holdings[item].block;
    struct pi_block *b;

    if (item == 0 && !holding_new(x, r, i, true, &block))
        return false;
    x->blocks[r->last].flags |= PI_REF; /* it is a parent */
    r->last = block;
    b = &x->blocks[block];
    b->flags |= r->pinned ? PI_PIN : 0;
    *key_out = b->key;
    return item == 0 || holding_count(x, r->source, item, r->s->tier);
}

static bool store_counted(struct bt_prefix_index *x, struct run *r, size_t i)
{
    const struct pi_entry entry = entry_at(r, i);
    struct pi_entries entries = pi_entries_at(x, &entry);
    uint32_t item, none;

    do
        item = pi_entries_next(x, &entries);
    while (item != 0 && x->holdings[item].block != 0);
    if (item == 0)
        return holding_new(x, r, i, false, &none);
    return holding_count(x, r->source, item, r->s->tier);
}

/* An offload event names a block only by its hash: one more tier for every
 * entry of it. */
static bool store_placeholder(struct bt_prefix_index *x, struct run *r,
                              size_t i)
{
    const struct pi_entry entry = entry_at(r, i);
    struct pi_entries entries = pi_entries_at(x, &entry);
    uint32_t item = pi_entries_next(x, &entries);
    bool ok = true;

    if (item == 0)
        return store_counted(x, r, i);
    for (; item != 0; item = pi_entries_next(x, &entries))
        ok = holding_count(x, r->source, item, r->s->tier) && ok;
    return ok;
}

/* ---- the chain of an event ---- */

/* Entry that the event's parent names. With a salt of its own the event hangs
 * on the parent of that namespace; without, it takes the parent's (vLLM shows
 * the salt on block 0 only). */
static uint32_t parent_of(const struct bt_prefix_index *x, uint32_t source,
                          const struct bt_kv_store *s, uint64_t ns)
{
    bool salted = s->salt != NULL && s->salt_bytes > 0;
    struct pi_entries entries;
    uint32_t item;

    if (source == 0)
        return 0;
    entries = pi_entries_of(x, source, s->parent);
    while ((item = pi_entries_next(x, &entries)) != 0) {
        uint32_t b = x->holdings[item].block;

        if (b != 0 && (!salted || x->namespaces[x->blocks[b].ns].seed == ns))
            break;
    }
    return item;
}

/* Namespace and parent key. BT_NOT_FOUND: the parent is not known. */
static enum bt_status chain_start(struct bt_prefix_index *x, struct run *r)
{
    const struct bt_kv_store *s = r->s;
    uint64_t ns = s->own_ns != 0 ? s->own_ns : BT_NS_PLAIN;
    uint32_t item;

    if (r->kind == BT_KV_STORE_KEYED)
        ns = bt_ns_seed(s->lora, s->lora_bytes, s->salt, s->salt_bytes);
    else if (r->kind != BT_KV_STORE_GIVEN)
        return BT_OK;
    if (s->has_parent) {
        item = parent_of(x, r->source, s, ns);
        if (item == 0 && r->kind == BT_KV_STORE_KEYED)
            return BT_NOT_FOUND;
        r->last = item == 0 ? 0 : x->holdings[item].block;
    }
    if (r->kind == BT_KV_STORE_KEYED && s->has_parent) {
        r->key = x->blocks[r->last].key;
        r->started = true;
        ns = x->namespaces[x->blocks[r->last].ns].seed;
    }
    r->seed = ns;
    r->ns = pi_ns_get(x, ns);
    return r->ns != 0 ? BT_OK : BT_LIMIT;
}

/* Keys of the chunk from position i on, as they are unless a hash turns out to
 * be mapped to another. */
static void chain_on(struct run *r, size_t i)
{
    for (; i < r->count; i++) {
        r->key =
            r->started ? bt_block_chain(r->key, r->locals[i]) : r->locals[i];
        r->started = true;
        r->keys[i] = r->key;
    }
}

static void chunk_keys(struct run *r)
{
    const struct bt_kv_store *s = r->s;
    uint32_t window = s->block_tokens + (s->eagle != 0);

    for (size_t i = 0; i < r->count; i++) {
        size_t j = r->first + i;
        size_t mm_count = r->mm != NULL ? s->mm_per_block[j] : 0;

        if (r->kind == BT_KV_STORE_GIVEN) {
            r->keys[i] = s->own_keys[j];
            continue;
        }
        r->locals[i] = bt_block_local(s->tokens + j * s->block_tokens, window,
                                      r->mm, mm_count, r->seed);
        if (r->mm != NULL)
            r->mm += mm_count;
    }
    if (r->kind == BT_KV_STORE_KEYED)
        chain_on(r, 0);
}

static void block_homes(const struct bt_prefix_index *x, struct run *r,
                        size_t i)
{
    for (; i < r->count; i++) {
        r->block_home[i] = pi_block_home(x, r->keys[i]);
        __builtin_prefetch(pi_line(&x->block_map, r->block_home[i].bucket));
    }
}

/* Have the lines of the maps, then the items they name, in the cache. */
static void chunk_fetch(const struct bt_prefix_index *x, struct run *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct pi_home home =
            pi_holding_home(x, r->source, r->s->hashes[r->first + i]);

        __builtin_prefetch(pi_line(&x->holding_map, home.bucket));
        r->holding_home[i] = home;
    }
    if (r->ns != 0)
        block_homes(x, r, 0);
    for (size_t i = 0; i < r->count; i++)
        __builtin_prefetch(
            &x->holdings[pi_map_guess(&x->holding_map, r->holding_home[i])]);
    for (size_t i = 0; i < r->count && r->ns != 0; i++)
        __builtin_prefetch(
            &x->blocks[pi_map_guess(&x->block_map, r->block_home[i])]);
}

static bool store_one(struct bt_prefix_index *x, struct run *r, size_t i)
{
    uint64_t key;

    switch (r->kind) {
    case BT_KV_STORE_KEYED:
    case BT_KV_STORE_GIVEN:
        if (!store_keyed(x, r, i, &key))
            return false;
        if (key != r->keys[i] && r->kind == BT_KV_STORE_KEYED) {
            r->key = key;
            chain_on(r, i + 1);
            block_homes(x, r, i + 1);
        }
        return true;
    case BT_KV_STORE_COUNTED:
        return store_counted(x, r, i);
    case BT_KV_STORE_PLACEHOLDER:
        return store_placeholder(x, r, i);
    case BT_KV_STORE_REFUSED:
        return false;
    }
    return false;
}

/* Blocks of the event applied; fewer than all when a table filled up. */
static size_t store_blocks(struct bt_prefix_index *x, struct run *r)
{
    size_t total = r->s->hash_count;

    for (r->first = 0; r->first < total; r->first += PI_CHUNK) {
        r->count = total - r->first < PI_CHUNK ? total - r->first : PI_CHUNK;
        if (r->ns != 0)
            chunk_keys(r);
        chunk_fetch(x, r);
        for (size_t i = 0; i < r->count; i++)
            if (!store_one(x, r, i))
                return r->first + i;
    }
    return total;
}

/* ---- forms of a store ---- */

/* An Eagle store has one token more than its blocks, for the last window. */
static bool is_malformed(const struct bt_kv_store *s)
{
    size_t tokens = s->token_count;

    if (s->block_tokens == 0)
        return tokens != 0;
    if (s->eagle && tokens-- == 0)
        return true;
    return tokens / s->block_tokens != s->hash_count ||
           tokens % s->block_tokens != 0;
}

static bool names_itself(const struct bt_kv_store *s)
{
    if (!s->has_parent || s->own_keys != NULL)
        return false;
    for (size_t j = 0; j < s->hash_count; j++)
        if (s->hashes[j] == s->parent)
            return true;
    return false;
}

enum bt_kv_store_kind bt_kv_store_kind_of(const struct bt_kv_store *store)
{
    if (names_itself(store))
        return BT_KV_STORE_REFUSED;
    if (store->own_keys != NULL)
        return store->full_attention ? BT_KV_STORE_GIVEN : BT_KV_STORE_COUNTED;
    if (store->block_tokens == 0 && store->token_count == 0)
        return BT_KV_STORE_PLACEHOLDER;
    if (!store->full_attention || is_malformed(store))
        return BT_KV_STORE_COUNTED;
    return BT_KV_STORE_KEYED;
}

/* The event is sound and its parent known: blocks applied. */
static size_t run_apply(struct bt_prefix_index *x, struct run *r,
                        uint32_t worker, uint32_t rank)
{
    bool made = r->source == 0;
    size_t done = 0;

    if (made)
        r->source = pi_source_make(x, worker, rank);
    if (r->source == 0)
        return 0;
    done = store_blocks(x, r);
    if (r->pinned)
        mark_run(x, r, done, false);
    if (made || r->pinned)
        pi_source_settle(x, r->source);
    return done;
}

enum bt_status bt_prefix_index_store(struct bt_prefix_index *index,
                                     uint32_t worker, uint32_t rank,
                                     const struct bt_kv_store *store)
{
    struct run run; /* its arrays are written chunk by chunk */
    bool malformed =
        store->own_keys == NULL && store->full_attention && is_malformed(store);
    enum bt_status started;
    size_t done = 0;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)store->tier < BT_TIERS);
    if (store->hash_count == 0)
        return BT_OK;
    run.s = store;
    run.kind = bt_kv_store_kind_of(store);
    if (run.kind == BT_KV_STORE_REFUSED) {
        index->stats.malformed++;
        return BT_INVALID;
    }
    run.source = pi_source_find(index, worker, rank);
    run.mm = store->mm_per_block != NULL ? store->mm : NULL;
    run.last = run.ns = 0;
    run.started = run.pinned = false;
    started = chain_start(index, &run);
    if (started == BT_NOT_FOUND) {
        index->stats.unknown_parents++;
        return BT_NOT_FOUND;
    }
    if (started == BT_OK)
        done = run_apply(index, &run, worker, rank);
    if (run.ns != 0)
        pi_ns_put(index, run.ns);
    index->stats.stores += done;
    index->stats.dropped += store->hash_count - done;
    index->stats.malformed += malformed;
    if (malformed)
        return BT_INVALID;
    return done < store->hash_count ? BT_LIMIT : BT_OK;
}

/* ---- remove ---- */

/* Have in the cache what the removal of these will touch, step by step. Gives
 * where the hashes are at home. */
static void remove_fetch(const struct bt_prefix_index *x, uint32_t source,
                         const uint64_t *hashes, size_t count,
                         struct pi_home *home)
{
    uint32_t item[PI_CHUNK];

    for (size_t i = 0; i < count; i++) {
        home[i] = pi_holding_home(x, source, hashes[i]);
        __builtin_prefetch(pi_line(&x->holding_map, home[i].bucket));
    }
    for (size_t i = 0; i < count; i++) {
        item[i] = pi_map_guess(&x->holding_map, home[i]);
        __builtin_prefetch(&x->holdings[item[i]]);
        __builtin_prefetch(&x->pages[item[i] >> x->page_shift]);
    }
    for (size_t i = 0; i < count; i++)
        __builtin_prefetch(&x->blocks[x->holdings[item[i]].block]);
    for (size_t i = 0; i < count; i++) {
        const struct pi_block *b = &x->blocks[x->holdings[item[i]].block];

        __builtin_prefetch(
            pi_line(&x->block_map, pi_block_home(x, b->key).bucket));
    }
}

/* Copies of every entry of the hash: one less, or as told. False: none was
 * there. */
static bool remove_one(struct bt_prefix_index *x, const struct pi_entry *e,
                       enum bt_tier tier, const uint32_t *left)
{
    bool set = x->sources[e->source].counting == BT_KV_COUNT_SET;
    struct pi_entries entries = pi_entries_at(x, e);
    uint32_t item;
    bool found = false;

    while ((item = pi_entries_next(x, &entries)) != 0) {
        uint32_t counts = x->holdings[item].counts & PI_COUNTS_MASK;
        unsigned int copies = pi_copies(counts, tier);
        uint32_t to = left != NULL ? *left : copies - 1;

        if (copies == 0)
            continue;
        if (to > 1 && set)
            to = 1;
        if (to == 0 && counts == copies << 7 * tier)
            pi_holding_end(x, item, e, tier);
        else
            (void)pi_holding_set(x, item, e->source, tier, to);
        found = true;
    }
    return found;
}

static void remove_chunk(struct bt_prefix_index *x, struct pi_entry *e,
                         const uint64_t *hashes, const uint32_t *left,
                         size_t count, enum bt_tier tier)
{
    struct pi_home home[PI_CHUNK];
    size_t known = 0;

    remove_fetch(x, e->source, hashes, count, home);
    for (size_t i = 0; i < count; i++) {
        e->hash = hashes[i];
        e->home = home[i];
        known += remove_one(x, e, tier, left != NULL ? left + i : NULL);
    }
    x->stats.removes += known;
    x->stats.unknown_removes += count - known;
}

/* The usual with vLLM: an event for each hash. */
static void remove_single(struct bt_prefix_index *x, struct pi_entry *e,
                          uint64_t hash, const uint32_t *left,
                          enum bt_tier tier)
{
    e->hash = hash;
    e->home = pi_holding_home(x, e->source, hash);
    if (remove_one(x, e, tier, left))
        x->stats.removes++;
    else
        x->stats.unknown_removes++;
}

static void remove_all(struct bt_prefix_index *x, struct pi_entry *e,
                       const uint64_t *hashes, const uint32_t *left,
                       size_t count, enum bt_tier tier)
{
    if (count == 1)
        remove_single(x, e, hashes[0], left, tier);
    else
        for (size_t i = 0; i < count; i += PI_CHUNK)
            remove_chunk(x, e, hashes + i, left != NULL ? left + i : NULL,
                         count - i < PI_CHUNK ? count - i : PI_CHUNK, tier);
    if (x->sources[e->source].count == 0)
        pi_source_settle(x, e->source);
}

void bt_prefix_index_remove(struct bt_prefix_index *index, uint32_t worker,
                            uint32_t rank, const uint64_t *hashes, size_t count,
                            enum bt_tier tier)
{
    struct pi_entry entry;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)tier < BT_TIERS);
    entry.source = pi_source_find(index, worker, rank);
    if (entry.source != 0)
        remove_all(index, &entry, hashes, NULL, count, tier);
    else
        index->stats.unknown_removes += count;
}

void bt_prefix_index_remaining(struct bt_prefix_index *index, uint32_t worker,
                               uint32_t rank, const uint64_t *hashes,
                               const uint32_t *remaining, size_t count,
                               enum bt_tier tier)
{
    struct pi_entry entry;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)tier < BT_TIERS);
    entry.source = pi_source_find(index, worker, rank);
    if (entry.source != 0)
        remove_all(index, &entry, hashes, remaining, count, tier);
    else
        index->stats.unknown_removes += count;
}
