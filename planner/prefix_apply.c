/* KV events applied to the prefix index (engine-wire.md 1.10, 2.5). Decides
 * which stores get an own key, how namespaces are inherited and how presence is
 * counted; leaves decoding to the event consumer and look-ups to
 * prefix_index.c.
 *
 * Rules that bend towards a miss, never a false hit:
 *   - a store whose parent is unknown is counted and left out (not parked);
 *   - a removal carries neither namespace nor group, so it takes one copy from
 *     every entry of that engine hash;
 *   - counts-only entries (odd token count, not full attention, placeholder of
 *     an unknown hash) never gain an own key later.
 */
#include "prefix_index_impl.h"

#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"

#include <assert.h>
#include <string.h>

static uint64_t holding_hash(uint32_t source, uint64_t hash)
{
    return bt_mix64(hash ^ (uint64_t)source * 0x9e3779b97f4a7c15ULL);
}

/* ---- sources ---- */

static uint32_t source_find(const struct bt_prefix_index *x, uint32_t worker,
                            uint32_t rank)
{
    uint32_t s = x->worker_sources[worker];

    while (s != 0 && x->sources[s].rank != rank)
        s = x->sources[s].next;
    return s;
}

static uint32_t source_make(struct bt_prefix_index *x, uint32_t worker,
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

/* Give the source back when it has no entry left. */
static void source_settle(struct bt_prefix_index *x, uint32_t s)
{
    uint32_t *at = &x->worker_sources[x->sources[s].worker];

    if (x->sources[s].head != 0)
        return;
    while (*at != s) {
        assert(*at != 0);
        at = &x->sources[*at].next;
    }
    *at = x->sources[s].next;
    x->sources[s].next = x->sources_free;
    x->sources_free = s;
}

/* ---- blocks and presences ---- */

static uint32_t block_make(struct bt_prefix_index *x, uint64_t key)
{
    uint32_t b = pi_block_find(x, key);

    if (b != 0)
        return b;
    b = pi_table_take(&x->block_table);
    if (b == 0)
        return 0;
    x->blocks[b] = (struct pi_block){.key = key};
    memset(pi_holders(x, b), 0, x->words * BT_TIERS * sizeof(uint64_t));
    pi_table_link(&x->block_table, b, pi_block_hash(key));
    return b;
}

static void block_settle(struct bt_prefix_index *x, uint32_t b)
{
    if (x->blocks[b].holders > 0)
        return;
    pi_table_unlink(&x->block_table, b, pi_block_hash(x->blocks[b].key));
    pi_table_give(&x->block_table, b);
}

/* Bring the worker's bits in the block's sets up to its holdings. */
static void presence_mark(struct bt_prefix_index *x, uint32_t p)
{
    const struct pi_presence *pr = &x->presences[p];
    uint64_t *words =
        pi_holders(x, pr->block) + (size_t)(pr->worker / 64) * BT_TIERS;
    uint64_t bit = 1ULL << pr->worker % 64;
    bool held = false;

    for (unsigned int t = 0; t < BT_TIERS; t++) {
        held = held || pr->holdings[t] > 0;
        words[t] = held ? words[t] | bit : words[t] & ~bit;
    }
}

static uint32_t presence_make(struct bt_prefix_index *x, uint64_t key,
                              uint32_t worker)
{
    uint32_t b = block_make(x, key);
    uint32_t p;

    if (b == 0)
        return 0;
    p = pi_presence_find(x, b, worker);
    if (p != 0)
        return p;
    p = pi_table_take(&x->presence_table);
    if (p == 0) {
        block_settle(x, b);
        return 0;
    }
    x->presences[p] = (struct pi_presence){.block = b, .worker = worker};
    pi_table_link(&x->presence_table, p, pi_presence_hash(b, worker));
    x->blocks[b].holders++;
    x->worker_blocks[worker]++;
    return p;
}

static void presence_settle(struct bt_prefix_index *x, uint32_t p)
{
    const struct pi_presence *pr = &x->presences[p];
    uint32_t b = pr->block;
    uint32_t worker = pr->worker;

    for (unsigned int t = 0; t < BT_TIERS; t++)
        if (pr->holdings[t] > 0)
            return;
    assert(x->blocks[b].holders > 0 && x->worker_blocks[worker] > 0);
    x->blocks[b].holders--;
    x->worker_blocks[worker]--;
    pi_table_unlink(&x->presence_table, p, pi_presence_hash(b, worker));
    pi_table_give(&x->presence_table, p);
    block_settle(x, b);
}

/* ---- holdings ---- */

/* Next entry of (source, hash) at or after `item` in its chain. */
static uint32_t holding_scan(const struct bt_prefix_index *x, uint32_t item,
                             uint32_t source, uint64_t hash)
{
    while (item != 0 && (x->holdings[item].hash != hash ||
                         x->holdings[item].source != source))
        item = x->holding_table.next[item];
    return item;
}

static uint32_t holding_first(const struct bt_prefix_index *x, uint32_t source,
                              uint64_t hash)
{
    const struct pi_table *t = &x->holding_table;

    return holding_scan(x, t->buckets[holding_hash(source, hash) & t->mask],
                        source, hash);
}

static uint32_t holding_after(const struct bt_prefix_index *x, uint32_t item)
{
    return holding_scan(x, x->holding_table.next[item],
                        x->holdings[item].source, x->holdings[item].hash);
}

static uint32_t holding_find(const struct bt_prefix_index *x, uint32_t source,
                             uint64_t hash, uint64_t ns, bool keyed)
{
    uint32_t item = holding_first(x, source, hash);

    while (item != 0) {
        bool has_key = x->holdings[item].presence != 0;

        if (has_key == keyed && (!keyed || x->holdings[item].ns == ns))
            break;
        item = holding_after(x, item);
    }
    return item;
}

/* A new entry with no count yet; presence 0 makes it counts-only. */
static uint32_t holding_make(struct bt_prefix_index *x, uint32_t source,
                             uint64_t hash, uint64_t ns, uint32_t presence)
{
    uint32_t head = x->sources[source].head;
    uint32_t item = pi_table_take(&x->holding_table);

    if (item == 0)
        return 0;
    x->holdings[item] = (struct pi_holding){.hash = hash,
                                            .ns = ns,
                                            .source = source,
                                            .presence = presence,
                                            .next_of_source = head};
    if (head != 0)
        x->holdings[head].prev = item;
    x->sources[source].head = item;
    pi_table_link(&x->holding_table, item, holding_hash(source, hash));
    return item;
}

static void holding_free(struct bt_prefix_index *x, uint32_t item)
{
    const struct pi_holding *h = &x->holdings[item];

    if (h->prev != 0)
        x->holdings[h->prev].next_of_source = h->next_of_source;
    else
        x->sources[h->source].head = h->next_of_source;
    if (h->next_of_source != 0)
        x->holdings[h->next_of_source].prev = h->prev;
    pi_table_unlink(&x->holding_table, item, holding_hash(h->source, h->hash));
    pi_table_give(&x->holding_table, item);
}

static void holding_add(struct bt_prefix_index *x, uint32_t item,
                        enum bt_tier tier)
{
    struct pi_holding *h = &x->holdings[item];

    if (h->count[tier] == 0 && h->presence != 0 &&
        x->presences[h->presence].holdings[tier]++ == 0)
        presence_mark(x, h->presence);
    if (h->count[tier] < UINT16_MAX)
        h->count[tier]++;
}

/* Set the tier's count to zero; the caller settles what is empty then. */
static void holding_zero(struct bt_prefix_index *x, uint32_t item,
                         unsigned int tier)
{
    struct pi_holding *h = &x->holdings[item];

    if (h->count[tier] == 0)
        return;
    h->count[tier] = 0;
    if (h->presence == 0)
        return;
    assert(x->presences[h->presence].holdings[tier] > 0);
    if (--x->presences[h->presence].holdings[tier] == 0)
        presence_mark(x, h->presence);
}

static bool holding_is_empty(const struct pi_holding *h)
{
    for (unsigned int t = 0; t < BT_TIERS; t++)
        if (h->count[t] > 0)
            return false;
    return true;
}

/* Free the entry when no tier counts it any more. */
static void holding_settle(struct bt_prefix_index *x, uint32_t item)
{
    uint32_t presence = x->holdings[item].presence;

    if (!holding_is_empty(&x->holdings[item]))
        return;
    holding_free(x, item);
    if (presence != 0)
        presence_settle(x, presence);
}

/* ---- store ---- */

/* Count one copy of a block with an own key. False: a table is full. */
static bool store_keyed(struct bt_prefix_index *x, uint32_t source,
                        uint64_t hash, uint64_t ns, enum bt_tier tier,
                        uint64_t *key)
{
    uint32_t item = holding_find(x, source, hash, ns, true);
    uint32_t presence;

    if (item != 0) {
        /* The key mapped first stays: children hang on it. */
        presence = x->holdings[item].presence;
        *key = x->blocks[x->presences[presence].block].key;
        holding_add(x, item, tier);
        return true;
    }
    presence = presence_make(x, *key, x->sources[source].worker);
    if (presence == 0)
        return false;
    item = holding_make(x, source, hash, ns, presence);
    if (item == 0) {
        presence_settle(x, presence);
        return false;
    }
    holding_add(x, item, tier);
    return true;
}

static bool store_counted(struct bt_prefix_index *x, uint32_t source,
                          uint64_t hash, enum bt_tier tier)
{
    uint32_t item = holding_find(x, source, hash, 0, false);

    if (item == 0)
        item = holding_make(x, source, hash, 0, 0);
    if (item == 0)
        return false;
    holding_add(x, item, tier);
    return true;
}

/* An offload event names a block only by its hash: one more tier for every
 * entry of it. */
static bool store_placeholder(struct bt_prefix_index *x, uint32_t source,
                              uint64_t hash, enum bt_tier tier)
{
    uint32_t item = holding_first(x, source, hash);

    if (item == 0)
        return store_counted(x, source, hash, tier);
    for (; item != 0; item = holding_after(x, item))
        holding_add(x, item, tier);
    return true;
}

struct chain {
    uint64_t ns;
    uint64_t key;
    bool started; /* key is the parent's */
};

/* Namespace and parent key. False: the parent is not known. An event without
 * a salt of its own takes the parent's namespace (vLLM shows the salt on block
 * 0 only). */
static bool chain_start(const struct bt_prefix_index *x, uint32_t source,
                        const struct bt_kv_store *s, struct chain *out)
{
    bool salted = s->salt != NULL && s->salt_bytes > 0;
    uint64_t ns = bt_ns_seed(s->lora, s->lora_bytes, s->salt, s->salt_bytes);
    uint32_t item;

    if (!s->has_parent) {
        *out = (struct chain){.ns = ns};
        return true;
    }
    item = source != 0 ? holding_first(x, source, s->parent) : 0;
    while (item != 0 && (x->holdings[item].presence == 0 ||
                         (salted && x->holdings[item].ns != ns)))
        item = holding_after(x, item);
    if (item == 0)
        return false;
    *out = (struct chain){
        .ns = x->holdings[item].ns,
        .key = x->blocks[x->presences[x->holdings[item].presence].block].key,
        .started = true};
    return true;
}

static bool store_chain(struct bt_prefix_index *x, uint32_t source,
                        const struct bt_kv_store *s, struct chain *c, size_t j,
                        const uint64_t *mm)
{
    size_t mm_count = s->mm_per_block != NULL ? s->mm_per_block[j] : 0;
    uint32_t window = s->block_tokens + (s->eagle != 0);
    uint64_t local = bt_block_local(s->tokens + j * s->block_tokens, window, mm,
                                    mm_count, c->ns);

    c->key = c->started ? bt_block_chain(c->key, local) : local;
    c->started = true;
    return store_keyed(x, source, s->hashes[j], c->ns, s->tier, &c->key);
}

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

/* Blocks of the event applied; fewer than all when a table filled up. */
static size_t store_blocks(struct bt_prefix_index *x, uint32_t source,
                           const struct bt_kv_store *s, struct chain *c)
{
    enum bt_kv_store_kind kind = bt_kv_store_kind_of(s);
    const uint64_t *mm = s->mm_per_block != NULL ? s->mm : NULL;

    for (size_t j = 0; j < s->hash_count; j++) {
        bool ok = true;

        switch (kind) {
        case BT_KV_STORE_KEYED:
            ok = store_chain(x, source, s, c, j, mm);
            if (mm != NULL)
                mm += s->mm_per_block[j];
            break;
        case BT_KV_STORE_GIVEN:
            assert(s->own_keys != NULL); /* the kind says so */
            c->key = s->own_keys[j];
            ok = store_keyed(x, source, s->hashes[j], BT_NS_PLAIN, s->tier,
                             &c->key);
            break;
        case BT_KV_STORE_COUNTED:
            ok = store_counted(x, source, s->hashes[j], s->tier);
            break;
        case BT_KV_STORE_PLACEHOLDER:
            ok = store_placeholder(x, source, s->hashes[j], s->tier);
            break;
        case BT_KV_STORE_REFUSED:
            return 0;
        }
        if (!ok)
            return j;
    }
    return s->hash_count;
}

enum bt_status bt_prefix_index_store(struct bt_prefix_index *index,
                                     uint32_t worker, uint32_t rank,
                                     const struct bt_kv_store *store)
{
    struct chain chain = {0};
    bool malformed =
        store->own_keys == NULL && store->full_attention && is_malformed(store);
    uint32_t source;
    size_t done;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)store->tier < BT_TIERS);
    if (store->hash_count == 0)
        return BT_OK;
    if (bt_kv_store_kind_of(store) == BT_KV_STORE_REFUSED) {
        index->stats.malformed++;
        return BT_INVALID;
    }
    source = source_find(index, worker, rank);
    if (bt_kv_store_kind_of(store) == BT_KV_STORE_KEYED &&
        !chain_start(index, source, store, &chain)) {
        index->stats.unknown_parents++;
        return BT_NOT_FOUND;
    }
    if (source == 0)
        source = source_make(index, worker, rank);
    done = source != 0 ? store_blocks(index, source, store, &chain) : 0;
    if (source != 0)
        source_settle(index, source);
    index->stats.stores += done;
    index->stats.dropped += store->hash_count - done;
    index->stats.malformed += malformed;
    if (malformed)
        return BT_INVALID;
    return done < store->hash_count ? BT_LIMIT : BT_OK;
}

enum bt_status bt_prefix_index_own_key(const struct bt_prefix_index *index,
                                       uint32_t worker, uint32_t rank,
                                       uint64_t hash, uint64_t *key_out)
{
    uint32_t source, item;

    assert(worker < index->limits.workers_max);
    source = source_find(index, worker, rank);
    item = source != 0 ? holding_first(index, source, hash) : 0;
    while (item != 0 && index->holdings[item].presence == 0)
        item = holding_after(index, item);
    if (item == 0)
        return BT_NOT_FOUND;
    *key_out =
        index->blocks[index->presences[index->holdings[item].presence].block]
            .key;
    return BT_OK;
}

/* ---- remove, clear, drop ---- */

/* One copy off every entry of the hash; false when none was there. */
static bool remove_one(struct bt_prefix_index *x, uint32_t source,
                       uint64_t hash, enum bt_tier tier)
{
    uint32_t item = holding_first(x, source, hash);
    bool found = false;

    while (item != 0) {
        uint32_t after = holding_after(x, item);
        struct pi_holding *h = &x->holdings[item];

        if (h->count[tier] > 0) {
            found = true;
            if (h->count[tier] > 1)
                h->count[tier]--;
            else
                holding_zero(x, item, tier);
            holding_settle(x, item);
        }
        item = after;
    }
    return found;
}

void bt_prefix_index_remove(struct bt_prefix_index *index, uint32_t worker,
                            uint32_t rank, const uint64_t *hashes, size_t count,
                            enum bt_tier tier)
{
    uint32_t source;

    assert(worker < index->limits.workers_max);
    assert((unsigned int)tier < BT_TIERS);
    source = source_find(index, worker, rank);
    for (size_t i = 0; i < count; i++) {
        if (source != 0 && remove_one(index, source, hashes[i], tier))
            index->stats.removes++;
        else
            index->stats.unknown_removes++;
    }
    if (source != 0)
        source_settle(index, source);
}

static void source_clear(struct bt_prefix_index *x, uint32_t source)
{
    uint32_t item;

    while ((item = x->sources[source].head) != 0) {
        for (unsigned int t = 0; t < BT_TIERS; t++)
            holding_zero(x, item, t);
        holding_settle(x, item);
    }
    source_settle(x, source);
}

void bt_prefix_index_clear(struct bt_prefix_index *index, uint32_t worker,
                           uint32_t rank)
{
    uint32_t source;

    assert(worker < index->limits.workers_max);
    index->stats.clears++;
    source = source_find(index, worker, rank);
    if (source != 0)
        source_clear(index, source);
}

void bt_prefix_index_drop_worker(struct bt_prefix_index *index, uint32_t worker)
{
    assert(worker < index->limits.workers_max);
    while (index->worker_sources[worker] != 0)
        source_clear(index, index->worker_sources[worker]);
}
