/* Parked stores. Decides what is kept and what a removal or clear takes from
 * it; leaves to the caller whether a store can be attached.
 *
 *   by age    old -> ... -> new      a list, for the limit of time
 *   parents   hash of the parent     chains of stores
 *   blocks    each block's hash      chains of blocks, for removals
 *
 * Invariants: a store is in all three, or in none; its bytes are in the budget
 * as long as it lives. One allocation holds a store, its blocks and its copy.
 */
#include "kv_parked.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024u /* a power of two */

struct kv_parked_block {
    struct kv_parked_block *next, **link; /* chain of the bucket */
    struct kv_parked_store *of;
    uint64_t hash;
};

struct kv_parked_store {
    struct kv_parked_store *older, *newer;
    struct kv_parked_store *next, **link; /* chain of the bucket, or ready */
    int64_t at_ns;
    size_t bytes;
    struct bt_kv_store store;
    struct kv_parked_block blocks[];
};

void kv_parked_init(struct kv_parked *p, uint32_t max, struct kv_budget *budget,
                    struct bt_stream_counts *counts)
{
    *p = (struct kv_parked){.max = max, .budget = budget, .counts = counts};
}

static uint32_t bucket_of(uint64_t hash)
{
    return (uint32_t)((hash * UINT64_C(0x9e3779b97f4a7c15)) >> 32) &
           (BUCKETS - 1);
}

/* ---- links ---- */

static void block_unlink(struct kv_parked_block *b)
{
    *b->link = b->next;
    if (b->next != NULL)
        b->next->link = b->link;
}

static void block_link(struct kv_parked *p, struct kv_parked_block *b)
{
    struct kv_parked_block **bucket = &p->blocks[bucket_of(b->hash)];

    b->next = *bucket;
    b->link = bucket;
    if (b->next != NULL)
        b->next->link = &b->next;
    *bucket = b;
}

static void store_link(struct kv_parked *p, struct kv_parked_store *e)
{
    struct kv_parked_store **bucket = &p->parents[bucket_of(e->store.parent)];

    e->next = *bucket;
    e->link = bucket;
    if (e->next != NULL)
        e->next->link = &e->next;
    *bucket = e;
    e->older = p->new_;
    e->newer = NULL;
    if (p->new_ != NULL)
        p->new_->newer = e;
    else
        p->old = e;
    p->new_ = e;
    for (size_t i = 0; i < e->store.hash_count; i++)
        block_link(p, &e->blocks[i]);
    p->count++;
}

static void store_unlink(struct kv_parked *p, struct kv_parked_store *e)
{
    *e->link = e->next;
    if (e->next != NULL)
        e->next->link = e->link;
    if (e->older != NULL)
        e->older->newer = e->newer;
    else
        p->old = e->newer;
    if (e->newer != NULL)
        e->newer->older = e->older;
    else
        p->new_ = e->older;
    for (size_t i = 0; i < e->store.hash_count; i++)
        block_unlink(&e->blocks[i]);
    p->count--;
}

static void store_free(struct kv_parked *p, struct kv_parked_store *e)
{
    p->budget->used -= e->bytes;
    free(e);
}

static void store_drop(struct kv_parked *p, struct kv_parked_store *e)
{
    store_unlink(p, e);
    store_free(p, e);
    p->counts->parked_dropped++;
}

void kv_parked_fini(struct kv_parked *p)
{
    while (p->old != NULL) {
        struct kv_parked_store *e = p->old;

        store_unlink(p, e);
        store_free(p, e);
    }
    free(p->parents);
    free(p->blocks);
    p->parents = NULL;
    p->blocks = NULL;
}

/* ---- copies ---- */

/* Each array starts on a multiple of 8. */
static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

static size_t mm_total(const struct bt_kv_store *s)
{
    size_t total = 0;

    for (size_t i = 0; s->mm_per_block != NULL && i < s->hash_count; i++)
        total += s->mm_per_block[i];
    return s->mm == NULL ? 0 : total;
}

static size_t copy_bytes(const struct bt_kv_store *s)
{
    return padded(s->hash_count * (sizeof(uint64_t) * 2)) +
           padded(s->token_count * sizeof(uint32_t)) + padded(s->lora_bytes) +
           padded(s->salt_bytes) + padded(mm_total(s) * sizeof(uint64_t)) +
           padded(s->hash_count * sizeof(uint16_t));
}

static void *copy(char **at, const void *from, size_t bytes)
{
    void *to = *at;

    if (from == NULL)
        return NULL;
    memcpy(to, from, bytes);
    *at += padded(bytes);
    return to;
}

static void store_copy(struct bt_kv_store *to, const struct bt_kv_store *from,
                       char *at)
{
    size_t n = from->hash_count;

    *to = *from;
    to->hashes = copy(&at, from->hashes, n * sizeof(uint64_t));
    to->own_keys = copy(&at, from->own_keys, n * sizeof(uint64_t));
    to->mm = copy(&at, from->mm, mm_total(from) * sizeof(uint64_t));
    to->tokens = copy(&at, from->tokens, from->token_count * sizeof(uint32_t));
    to->mm_per_block = copy(&at, from->mm_per_block, n * sizeof(uint16_t));
    to->lora = copy(&at, from->lora, from->lora_bytes);
    to->salt = copy(&at, from->salt, from->salt_bytes);
}

static bool buckets_ready(struct kv_parked *p)
{
    if (p->parents == NULL)
        p->parents = calloc(BUCKETS, sizeof(struct kv_parked_store *));
    if (p->blocks == NULL)
        p->blocks = calloc(BUCKETS, sizeof(struct kv_parked_block *));
    return p->parents != NULL && p->blocks != NULL;
}

void kv_parked_add(struct kv_parked *p, int64_t now_ns,
                   const struct bt_kv_store *store)
{
    size_t head = sizeof(struct kv_parked_store) +
                  store->hash_count * sizeof(struct kv_parked_block);
    size_t bytes = padded(head) + copy_bytes(store);
    struct kv_parked_store *e = NULL;

    if (p->count < p->max && bytes <= p->budget->max - p->budget->used &&
        buckets_ready(p))
        e = calloc(1, bytes);
    if (e == NULL) {
        p->counts->parked_dropped++;
        return;
    }
    e->at_ns = now_ns;
    e->bytes = bytes;
    store_copy(&e->store, store, (char *)e + padded(head));
    for (size_t i = 0; i < store->hash_count; i++) {
        e->blocks[i].of = e;
        e->blocks[i].hash = store->hashes[i];
    }
    p->budget->used += bytes;
    store_link(p, e);
    p->counts->parked++;
}

/* ---- what happens to them ---- */

/* Move those that wait for the hash to the ready list, the oldest last. */
static void collect(struct kv_parked *p, uint64_t hash,
                    struct kv_parked_store **ready)
{
    struct kv_parked_store *e = p->parents[bucket_of(hash)], *next;

    for (; e != NULL; e = next) {
        next = e->next;
        if (e->store.parent != hash)
            continue;
        store_unlink(p, e);
        e->next = *ready;
        *ready = e;
    }
}

void kv_parked_attach(struct kv_parked *p, const uint64_t *hashes, size_t count,
                      kv_parked_fn fn, void *arg)
{
    struct kv_parked_store *ready = NULL;

    for (size_t i = 0; p->count > 0 && i < count; i++)
        collect(p, hashes[i], &ready);
    while (ready != NULL) {
        struct kv_parked_store *e = ready;

        ready = e->next;
        if (!fn(arg, &e->store)) {
            p->counts->parked_dropped++;
        } else {
            p->counts->attached++;
            for (size_t i = 0; p->count > 0 && i < e->store.hash_count; i++)
                collect(p, e->store.hashes[i], &ready);
        }
        store_free(p, e);
    }
}

/* Keep the first `keep` blocks of the event. */
static void cut(struct kv_parked *p, struct kv_parked_store *e, size_t keep)
{
    struct bt_kv_store *s = &e->store;
    size_t over = s->eagle ? 1 : 0;

    if (keep == 0) {
        store_drop(p, e);
        return;
    }
    for (size_t i = keep; i < s->hash_count; i++)
        block_unlink(&e->blocks[i]);
    if (s->token_count == s->hash_count * s->block_tokens + over)
        s->token_count = keep * s->block_tokens + over;
    s->hash_count = keep;
}

void kv_parked_removed(struct kv_parked *p, uint64_t hash, enum bt_tier tier)
{
    struct kv_parked_block *b, *oldest = NULL;

    if (p->count == 0)
        return;
    /* New ones are put in front: the last that fits is the oldest. */
    for (b = p->blocks[bucket_of(hash)]; b != NULL; b = b->next)
        if (b->hash == hash && b->of->store.tier == tier)
            oldest = b;
    if (oldest != NULL)
        cut(p, oldest->of, (size_t)(oldest - oldest->of->blocks));
}

void kv_parked_clear(struct kv_parked *p, const enum bt_tier *tier)
{
    struct kv_parked_store *e = p->old, *next;

    for (; e != NULL; e = next) {
        next = e->newer;
        if (tier == NULL || e->store.tier == *tier)
            store_drop(p, e);
    }
}

void kv_parked_expire(struct kv_parked *p, int64_t before_ns)
{
    struct kv_parked_store *e = p->old, *next;

    for (; e != NULL && e->at_ns < before_ns; e = next) {
        next = e->newer;
        store_drop(p, e);
    }
}
