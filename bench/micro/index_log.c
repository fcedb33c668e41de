/* Runs a trace through the LRU caches of a fleet and writes down the events
 * that the engines would send: removals of what made room, one hash each as
 * vLLM sends them, then stores in chains of at most 8,192 tokens, as prefill
 * steps publish them. Decides routing and eviction; keys are index_keys.c's.
 *
 * Caches work in blocks of the trace; each is split into the indexed blocks.
 * A request's blocks are touched from the last to the first, so that a chain
 * leaves from its tail and what a cache holds is closed under prefixes: the
 * holders of a block hold all before it. A request longer than the cache
 * leaves its head there.
 */
#include "index_log.h"
#include "baton/base/rng.h"
#include <stdlib.h>
#include <string.h>

#define NONE  UINT32_MAX
#define BOUND 1.25 /* of the mean load */

struct node {
    uint32_t worker, id;
    uint32_t newer, older;
    uint32_t next; /* holder of the same id, or free node */
};
struct cache {
    uint32_t newest, oldest, count;
    uint64_t load; /* blocks assigned */
};
struct fleet {
    const struct index_keys *keys;
    struct index_log *log;
    struct node *nodes;
    uint32_t free, longest;
    struct cache *caches;
    uint32_t *holders; /* per id: a node */
    uint64_t load;     /* of all */
    uint64_t blocks, holdings;
};

uint64_t index_log_hash(uint64_t key, uint32_t worker)
{
    return bt_mix64(key ^ bt_mix64((uint64_t)worker + 1));
}

/* ---- caches ---- */

static uint32_t find(const struct fleet *f, uint32_t id, uint32_t worker)
{
    uint32_t at = f->holders[id];

    while (at != NONE && f->nodes[at].worker != worker)
        at = f->nodes[at].next;
    return at;
}

static void unlink_node(struct fleet *f, uint32_t at)
{
    const struct node *n = &f->nodes[at];
    struct cache *c = &f->caches[n->worker];

    if (n->newer == NONE)
        c->newest = n->older;
    else
        f->nodes[n->newer].older = n->older;
    if (n->older == NONE)
        c->oldest = n->newer;
    else
        f->nodes[n->older].newer = n->newer;
}

static void link_newest(struct fleet *f, uint32_t at)
{
    struct node *n = &f->nodes[at];
    struct cache *c = &f->caches[n->worker];

    n->newer = NONE;
    n->older = c->newest;
    if (c->newest == NONE)
        c->oldest = at;
    else
        f->nodes[c->newest].newer = at;
    c->newest = at;
}

static void touch(struct fleet *f, uint32_t at)
{
    unlink_node(f, at);
    link_newest(f, at);
}

static void insert(struct fleet *f, uint32_t id, uint32_t worker)
{
    uint32_t at = f->free;
    struct node *n = &f->nodes[at];

    f->free = n->next;
    n->worker = worker;
    n->id = id;
    n->next = f->holders[id];
    f->blocks += n->next == NONE ? f->keys->subs[id] : 0;
    f->holdings += f->keys->subs[id];
    f->holders[id] = at;
    link_newest(f, at);
    f->caches[worker].count++;
}

static void take_out(struct fleet *f, uint32_t at)
{
    struct node *n = &f->nodes[at];
    uint32_t *link = &f->holders[n->id];

    unlink_node(f, at);
    while (*link != at)
        link = &f->nodes[*link].next;
    *link = n->next;
    f->holdings -= f->keys->subs[n->id];
    f->blocks -= f->holders[n->id] == NONE ? f->keys->subs[n->id] : 0;
    f->caches[n->worker].count--;
    n->next = f->free;
    f->free = at;
}

/* ---- the log ---- */

static enum bt_status grow(void **array, size_t *capacity, size_t need,
                           size_t bytes)
{
    size_t wanted = *capacity ? *capacity : 1024;
    void *more;

    while (wanted < need)
        wanted *= 2;
    if (wanted == *capacity)
        return BT_OK;
    more = realloc(*array, wanted * bytes);
    if (!more)
        return BT_NO_MEMORY;
    *array = more;
    *capacity = wanted;
    return BT_OK;
}

static enum bt_status room_for_blocks(struct index_log *log, size_t count)
{
    size_t need = log->block_count + count, was = log->block_capacity;
    size_t a = was, b = was, c = was;
    enum bt_status status;

    if (need <= was)
        return BT_OK;
    status = grow((void **)&log->hashes, &a, need, sizeof(*log->hashes));
    if (status == BT_OK)
        status = grow((void **)&log->keys, &b, need, sizeof(*log->keys));
    if (status == BT_OK)
        status = grow((void **)&log->places, &c, need, sizeof(*log->places));
    if (status == BT_OK)
        log->block_capacity = a;
    return status;
}

static enum bt_status add_event(struct index_log *log,
                                const struct index_event *event)
{
    enum bt_status status = grow((void **)&log->events, &log->event_capacity,
                                 log->event_count + 1, sizeof(*log->events));

    if (status == BT_OK)
        log->events[log->event_count++] = *event;
    return status;
}

static void add_block(struct index_log *log, const struct index_keys *k,
                      uint32_t place, uint32_t worker)
{
    log->keys[log->block_count] = k->keys[place];
    log->hashes[log->block_count] = index_log_hash(k->keys[place], worker);
    log->places[log->block_count++] = place;
}

/* The oldest of the worker makes room, its last block first. */
static enum bt_status evict(struct fleet *f, uint32_t worker)
{
    const struct index_keys *k = f->keys;
    uint32_t at = f->caches[worker].oldest, id = f->nodes[at].id;
    struct index_event e = {
        .worker = worker, .count = k->subs[id], .at = f->log->block_count};
    enum bt_status status = room_for_blocks(f->log, k->split);

    if (status != BT_OK)
        return status;
    for (uint32_t s = k->subs[id]; s > 0; s--)
        add_block(f->log, k, k->at[id] + s - 1, worker);
    f->log->removed += k->subs[id];
    take_out(f, at);
    return e.count ? add_event(f->log, &e) : BT_OK;
}

/* A chain at f->log->hashes[from...] becomes events. */
static enum bt_status cut(struct fleet *f, uint32_t worker, size_t from,
                          const uint64_t *parent)
{
    struct index_log *log = f->log;
    uint32_t most = INDEX_LOG_STORE_TOKENS / f->keys->block_tokens;
    enum bt_status status = BT_OK;

    most = most ? most : 1;
    while (from < log->block_count && status == BT_OK) {
        size_t left = log->block_count - from;
        struct index_event e = {.worker = worker,
                                .store = true,
                                .has_parent = parent != NULL,
                                .count = left < most ? (uint32_t)left : most,
                                .at = from,
                                .parent = parent ? *parent : 0};

        status = add_event(log, &e);
        log->stored += e.count;
        from += e.count;
        parent = &log->hashes[from - 1];
    }
    return status;
}

/* Blocks depth..count of the request are stored. */
static enum bt_status publish(struct fleet *f, uint32_t worker,
                              const uint64_t *ids, uint32_t depth,
                              uint32_t count)
{
    const struct index_keys *k = f->keys;
    size_t from = f->log->block_count;
    uint64_t parent = 0;
    enum bt_status status =
        room_for_blocks(f->log, (size_t)(count - depth) * k->split);

    if (status != BT_OK)
        return status;
    for (uint32_t i = depth; i < count; i++)
        for (uint32_t s = 0; s < k->subs[ids[i]]; s++)
            add_block(f->log, k, k->at[ids[i]] + s, worker);
    if (f->log->block_count == from)
        return BT_OK;
    if (depth > 0)
        parent = index_log_hash(
            k->keys[k->at[ids[depth - 1]] + k->subs[ids[depth - 1]] - 1],
            worker);
    return cut(f, worker, from, depth > 0 ? &parent : NULL);
}

/* ---- routing ---- */

static bool better(const struct fleet *f, uint32_t worker, uint32_t than)
{
    return than == NONE || f->caches[worker].load < f->caches[than].load ||
           (f->caches[worker].load == f->caches[than].load && worker < than);
}

static uint32_t choose(const struct fleet *f, const uint64_t *ids,
                       uint32_t count)
{
    double most = BOUND * (double)f->load / f->log->workers + f->longest;
    uint32_t best = NONE;

    for (uint32_t i = count; i > 0 && best == NONE; i--)
        for (uint32_t n = f->holders[ids[i - 1]]; n != NONE;
             n = f->nodes[n].next) {
            uint32_t worker = f->nodes[n].worker;

            if ((double)f->caches[worker].load <= most &&
                better(f, worker, best))
                best = worker;
        }
    if (best == NONE)
        for (uint32_t w = 0; w < f->log->workers; w++)
            best = better(f, w, best) ? w : best;
    return best;
}

/* ---- a request ---- */

static enum bt_status serve(struct fleet *f, uint32_t worker,
                            const uint64_t *ids, uint32_t count)
{
    struct index_log *log = f->log;
    struct cache *c = &f->caches[worker];
    enum bt_status status = BT_OK;
    uint32_t depth = 0, at;

    if (count > log->cache_blocks)
        count = log->cache_blocks;
    while (depth < count && find(f, (uint32_t)ids[depth], worker) != NONE)
        log->hit_keys += f->keys->subs[ids[depth++]];
    for (uint32_t i = depth; i > 0; i--) /* used: the last to be evicted */
        touch(f, find(f, (uint32_t)ids[i - 1], worker));
    while (status == BT_OK && c->count + count - depth > log->cache_blocks)
        status = evict(f, worker);
    if (status == BT_OK)
        status = publish(f, worker, ids, depth, count);
    if (status != BT_OK)
        return status;
    for (uint32_t i = count; i > depth; i--)
        insert(f, (uint32_t)ids[i - 1], worker);
    for (uint32_t i = depth; i > 0; i--) {
        at = find(f, (uint32_t)ids[i - 1], worker);
        touch(f, at);
    }
    return BT_OK;
}

/* Full blocks at the head; a last one that is not full is never cached. */
static uint32_t full_blocks(const struct index_keys *k,
                            const struct bt_trace_request *q)
{
    const uint64_t *ids = k->trace->blocks + q->block_at;
    uint32_t count = q->block_count;

    while (count > 0 && k->subs[ids[count - 1]] == 0)
        count--;
    return count;
}

static void look_up(struct fleet *f, const struct bt_trace_request *q,
                    uint32_t count, struct index_request *r)
{
    const struct index_keys *k = f->keys;
    const uint64_t *ids = k->trace->blocks + q->block_at;

    r->key_at = f->log->chain_count;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(f->log->chain + f->log->chain_count, k->keys + k->at[ids[i]],
               k->subs[ids[i]] * sizeof(*f->log->chain));
        f->log->chain_count += k->subs[ids[i]];
    }
    r->key_count = (uint32_t)(f->log->chain_count - r->key_at);
}

static void note_peak(const struct fleet *f)
{
    struct index_log *log = f->log;

    if (f->blocks > log->peak_blocks)
        log->peak_blocks = f->blocks;
    if (f->holdings > log->peak_holdings) {
        log->peak_holdings = f->holdings;
        log->peak_copies = (double)f->holdings / (double)f->blocks;
    }
    log->last_blocks = f->blocks;
    log->last_holdings = f->holdings;
}

static enum bt_status replay(struct fleet *f)
{
    const struct bt_trace *trace = f->keys->trace;
    enum bt_status status = BT_OK;

    for (size_t i = 0; i < trace->count && status == BT_OK; i++) {
        const struct bt_trace_request *q = &trace->requests[i];
        const uint64_t *ids = trace->blocks + q->block_at;
        uint32_t count = full_blocks(f->keys, q);
        struct index_request *r = &f->log->requests[f->log->request_count++];

        r->worker = choose(f, ids, count);
        r->event_at = f->log->event_count;
        look_up(f, q, count, r);
        f->caches[r->worker].load += count;
        f->load += count;
        status = serve(f, r->worker, ids, count);
        r->event_count = f->log->event_count - r->event_at;
        note_peak(f);
    }
    return status;
}

/* ---- set-up ---- */

static enum bt_status start(struct fleet *f)
{
    const struct bt_trace *trace = f->keys->trace;
    struct index_log *log = f->log;
    size_t nodes = (size_t)log->workers * log->cache_blocks;

    if (nodes > trace->block_count) /* no more is ever inserted */
        nodes = trace->block_count;
    if (nodes + 1 >= NONE)
        return BT_TOO_LARGE;
    f->nodes = calloc(nodes + 1, sizeof(*f->nodes));
    f->caches = calloc(log->workers, sizeof(*f->caches));
    f->holders = malloc(((size_t)trace->block_ids + 1) * sizeof(*f->holders));
    log->requests = calloc(trace->count + 1, sizeof(*log->requests));
    log->chain =
        malloc((trace->block_count * f->keys->split + 1) * sizeof(*log->chain));
    if (!f->nodes || !f->caches || !f->holders || !log->requests || !log->chain)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < nodes; i++)
        f->nodes[i].next = (uint32_t)i + 1;
    memset(f->holders, 0xff,
           ((size_t)trace->block_ids + 1) * sizeof(*f->holders));
    for (uint32_t w = 0; w < log->workers; w++)
        f->caches[w].newest = f->caches[w].oldest = NONE;
    for (size_t i = 0; i < trace->count; i++)
        if (trace->requests[i].block_count > f->longest)
            f->longest = trace->requests[i].block_count;
    return BT_OK;
}

enum bt_status index_log_init(struct index_log *log,
                              const struct index_keys *keys, uint32_t workers,
                              uint32_t cache_blocks)
{
    struct fleet f = {.keys = keys, .log = log};
    enum bt_status status;

    memset(log, 0, sizeof(*log));
    log->workers = workers;
    log->cache_blocks = cache_blocks;
    status = start(&f);
    if (status == BT_OK)
        status = replay(&f);
    free(f.nodes);
    free(f.caches);
    free(f.holders);
    if (status != BT_OK)
        index_log_fini(log);
    return status;
}

void index_log_fini(struct index_log *log)
{
    free(log->events);
    free(log->hashes);
    free(log->keys);
    free(log->places);
    free(log->requests);
    free(log->chain);
    memset(log, 0, sizeof(*log));
}
