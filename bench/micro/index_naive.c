/* What a first version of an index would be: two chained hash maps, (worker,
 * engine hash) -> own key and (worker, own key) -> copies, and a look-up that
 * walks the chain for every worker. Nodes come from a pool, so that the
 * allocator is not what is compared. */
#include "baton/base/rng.h"
#include "index_parts.h"
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct entry {
    uint64_t number, value;
    uint32_t worker, next;
};
struct map {
    struct entry *entries;
    uint32_t *buckets;
    uint32_t free;
    size_t mask;
};
struct index_naive {
    struct map by_hash, by_key;
};

static uint32_t *bucket(const struct map *m, uint32_t worker, uint64_t number)
{
    return &m->buckets[bt_mix64(number + worker * 0x9e3779b97f4a7c15u) &
                       m->mask];
}

static uint32_t *find(const struct map *m, uint32_t worker, uint64_t number)
{
    uint32_t *at = bucket(m, worker, number);

    while (*at != NONE && (m->entries[*at].number != number ||
                           m->entries[*at].worker != worker))
        at = &m->entries[*at].next;
    return at;
}

/* The value, 0 when it is new; NULL: no room. */
static uint64_t *put(struct map *m, uint32_t worker, uint64_t number)
{
    uint32_t *at = find(m, worker, number), fresh;

    if (*at != NONE)
        return &m->entries[*at].value;
    fresh = m->free;
    if (fresh == NONE)
        return NULL;
    m->free = m->entries[fresh].next;
    m->entries[fresh] = (struct entry){number, 0, worker, NONE};
    *at = fresh;
    return &m->entries[fresh].value;
}

static void take_out(struct map *m, uint32_t *at)
{
    uint32_t gone = *at;

    *at = m->entries[gone].next;
    m->entries[gone].next = m->free;
    m->free = gone;
}

static bool map_init(struct map *m, uint64_t entries)
{
    size_t buckets = 16;

    while (buckets < entries)
        buckets *= 2;
    m->mask = buckets - 1;
    m->entries = malloc((size_t)entries * sizeof(*m->entries));
    m->buckets = malloc(buckets * sizeof(*m->buckets));
    if (!m->entries || !m->buckets)
        return false;
    memset(m->buckets, 0xff, buckets * sizeof(*m->buckets));
    for (uint32_t i = 0; i < entries; i++)
        m->entries[i].next = i + 1 < entries ? i + 1 : NONE;
    return true;
}

struct index_naive *index_naive_create(uint64_t holdings)
{
    struct index_naive *n = calloc(1, sizeof(*n));

    if (!n || holdings == 0 || holdings >= NONE ||
        !map_init(&n->by_hash, holdings) || !map_init(&n->by_key, holdings)) {
        index_naive_destroy(n);
        return NULL;
    }
    return n;
}

void index_naive_destroy(struct index_naive *n)
{
    if (!n)
        return;
    free(n->by_hash.entries);
    free(n->by_hash.buckets);
    free(n->by_key.entries);
    free(n->by_key.buckets);
    free(n);
}

void index_naive_store(struct index_naive *n, uint32_t worker,
                       const uint64_t *hashes, const uint64_t *keys,
                       size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t *key = put(&n->by_hash, worker, hashes[i]);
        uint64_t *copies = put(&n->by_key, worker, keys[i]);

        if (!key || !copies)
            return;
        *key = keys[i];
        (*copies)++;
    }
}

void index_naive_remove(struct index_naive *n, uint32_t worker, uint64_t hash)
{
    uint32_t *at = find(&n->by_hash, worker, hash), *held;

    if (*at == NONE)
        return;
    held = find(&n->by_key, worker, n->by_hash.entries[*at].value);
    take_out(&n->by_hash, at);
    if (*held != NONE && --n->by_key.entries[*held].value == 0)
        take_out(&n->by_key, held);
}

void index_naive_match(const struct index_naive *n, uint32_t workers,
                       const uint64_t *keys, size_t count, uint32_t *depth_out)
{
    for (uint32_t w = 0; w < workers; w++) {
        size_t depth = 0;

        while (depth < count && *find(&n->by_key, w, keys[depth]) != NONE)
            depth++;
        depth_out[w] = (uint32_t)depth;
    }
}
