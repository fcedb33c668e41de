/* Token hits of LRU caches over a trace: one cache, or several that requests
 * are spread over at random. Decides the order of use inside a request: its
 * blocks are touched from the last to the first, so that the head of a chain
 * leaves after its tail. A hit is the leading run of blocks that is there.
 *
 * The caches are run one after the other over the whole trace: they share
 * nothing but the draws, and memory is that of one. Invariant: a cache never
 * holds more than its limit; the list holds each cached block once.
 */
#include "baton/base/rng.h"
#include "trace_priv.h"
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define SEED 0x6c7275u

struct node {
    uint32_t newer, older;
    bool held;
};
struct lru {
    struct node *nodes; /* by block id */
    size_t ids;
    uint32_t newest, oldest, count, limit;
};

static void take_out(struct lru *l, uint32_t id)
{
    const struct node *n = &l->nodes[id];

    if (n->newer == NONE)
        l->newest = n->older;
    else
        l->nodes[n->newer].older = n->older;
    if (n->older == NONE)
        l->oldest = n->newer;
    else
        l->nodes[n->older].newer = n->newer;
}

static void touch(struct lru *l, uint32_t id)
{
    if (l->nodes[id].held)
        take_out(l, id);
    else
        l->count++;
    l->nodes[id] = (struct node){NONE, l->newest, true};
    if (l->newest == NONE)
        l->oldest = id;
    else
        l->nodes[l->newest].newer = id;
    l->newest = id;
    if (l->count > l->limit) {
        l->nodes[l->oldest].held = false;
        take_out(l, l->oldest);
        l->count--;
    }
}

/* Tokens of the request that are there; then uses all of its blocks. */
static uint64_t serve(struct lru *l, const struct bt_trace *trace,
                      const struct bt_trace_request *q)
{
    const uint64_t *blocks = trace->blocks + q->block_at;
    uint32_t depth = 0;
    uint64_t tokens;

    while (depth < q->block_count && l->nodes[blocks[depth]].held)
        depth++;
    for (uint32_t i = q->block_count; i > 0; i--)
        touch(l, (uint32_t)blocks[i - 1]);
    tokens = (uint64_t)depth * trace->block_tokens;
    return tokens < q->input_tokens ? tokens : q->input_tokens;
}

/* Hits of the requests that the draws give to `worker`; leaves the nodes as it
 * found them. */
static uint64_t run(struct lru *l, const struct bt_trace *trace,
                    const uint16_t *draws, uint32_t worker)
{
    uint64_t hits = 0;

    l->newest = l->oldest = NONE;
    l->count = 0;
    for (size_t i = 0; i < trace->count; i++)
        if (draws[i] == worker)
            hits += serve(l, trace, &trace->requests[i]);
    for (uint32_t id = l->newest; id != NONE; id = l->nodes[id].older)
        l->nodes[id].held = false;
    return hits;
}

uint16_t *trace_draws(size_t count, uint32_t workers)
{
    uint16_t *draws = malloc((count + 1) * sizeof(*draws));
    struct bt_rng rng;

    bt_rng_seed(&rng, SEED);
    for (size_t i = 0; draws && i < count; i++)
        draws[i] = (uint16_t)bt_rng_below(&rng, workers);
    return draws;
}

enum bt_status trace_lru(const struct bt_trace *trace, uint32_t workers,
                         uint32_t blocks, double *ratio_out)
{
    struct lru l = {.ids = (size_t)trace->block_ids, .limit = blocks};
    enum bt_status status = BT_OK;
    uint64_t hits = 0, tokens = 0;
    uint16_t *draws;

    if (l.ids >= NONE)
        return BT_TOO_LARGE;
    l.nodes = calloc(l.ids + 1, sizeof(*l.nodes));
    draws = trace_draws(trace->count, workers);
    if (!l.nodes || !draws)
        status = BT_NO_MEMORY;
    for (uint32_t w = 0; status == BT_OK && w < workers; w++)
        hits += run(&l, trace, draws, w);
    free(l.nodes);
    free(draws);
    if (status != BT_OK)
        return status;
    for (size_t i = 0; i < trace->count; i++)
        tokens += trace->requests[i].input_tokens;
    *ratio_out = tokens ? (double)hits / (double)tokens : 0;
    return BT_OK;
}
