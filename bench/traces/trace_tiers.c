/* Hits by tier: three LRU lists, one below the other. A block used comes to the
 * head of the device's list; what a list has too many of goes from its tail to
 * the head of the next, and out of the last. Blocks of a request are touched
 * from the last to the first, as in trace_lru.c, whose ratio the sum of the
 * tiers is for one cache of all sizes together.
 *
 * Invariant: a list never holds more than its limit; a block is in one list.
 */
#include "trace_priv.h"
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define OUT  BT_TRACE_TIERS /* in no list */

struct node {
    uint32_t newer, older;
    uint32_t tier;
};
struct list {
    uint32_t newest, oldest;
    uint64_t count, limit;
};
struct stack {
    struct node *nodes;
    size_t ids;
    struct list lists[BT_TRACE_TIERS];
    struct bt_trace_tiers *sum;
};

static void take_out(struct stack *s, uint32_t id)
{
    const struct node *n = &s->nodes[id];
    struct list *l = &s->lists[n->tier];

    if (n->newer == NONE)
        l->newest = n->older;
    else
        s->nodes[n->newer].older = n->older;
    if (n->older == NONE)
        l->oldest = n->newer;
    else
        s->nodes[n->older].newer = n->newer;
    l->count--;
}

static void put_in(struct stack *s, uint32_t id, uint32_t tier)
{
    struct list *l = &s->lists[tier];

    s->nodes[id] = (struct node){NONE, l->newest, tier};
    if (l->newest == NONE)
        l->oldest = id;
    else
        s->nodes[l->newest].newer = id;
    l->newest = id;
    l->count++;
}

static void touch(struct stack *s, uint32_t id)
{
    if (s->nodes[id].tier != OUT)
        take_out(s, id);
    put_in(s, id, 0);
    for (uint32_t t = 0; t < BT_TRACE_TIERS; t++) {
        struct list *l = &s->lists[t];
        uint32_t last = l->oldest;

        if (l->count <= l->limit)
            break;
        take_out(s, last);
        s->nodes[last].tier = OUT;
        if (t + 1 < BT_TRACE_TIERS)
            put_in(s, last, t + 1);
    }
}

static void serve(struct stack *s, const struct bt_trace *trace,
                  const struct bt_trace_request *q)
{
    const uint64_t *ids = trace->blocks + q->block_at;
    bool seen[BT_TRACE_TIERS] = {false};

    for (uint32_t i = 0; i < q->block_count; i++) {
        uint32_t tier = s->nodes[ids[i]].tier;
        double before = (double)i * trace->block_tokens, n;

        if (tier == OUT)
            break;
        n = (double)q->input_tokens - before;
        if (n > trace->block_tokens)
            n = trace->block_tokens;
        s->sum->tiers[tier].tokens += n;
        s->sum->tiers[tier].moment += n * (n + 2 * before);
        s->sum->tiers[tier].requests += !seen[tier];
        seen[tier] = true;
    }
    for (uint32_t i = q->block_count; i > 0; i--)
        touch(s, (uint32_t)ids[i - 1]);
}

static void run(struct stack *s, const struct bt_trace *trace,
                const uint16_t *draws, uint32_t worker)
{
    for (size_t i = 0; i < s->ids; i++)
        s->nodes[i].tier = OUT;
    for (uint32_t t = 0; t < BT_TRACE_TIERS; t++) {
        s->lists[t].newest = s->lists[t].oldest = NONE;
        s->lists[t].count = 0;
    }
    for (size_t i = 0; i < trace->count; i++)
        if (draws[i] == worker)
            serve(s, trace, &trace->requests[i]);
}

enum bt_status bt_trace_tiers_get(const struct bt_trace *trace,
                                  uint32_t workers,
                                  const uint64_t blocks[BT_TRACE_TIERS],
                                  struct bt_trace_tiers *out)
{
    struct bt_trace_tiers sum = {.tokens = 0};
    struct stack s = {.ids = (size_t)trace->block_ids, .sum = &sum};
    uint16_t *draws;
    enum bt_status status = BT_OK;

    if (workers == 0 || workers > TRACE_WORKERS_MAX || s.ids == 0 ||
        blocks[0] == 0)
        return BT_INVALID;
    if (s.ids >= NONE)
        return BT_TOO_LARGE;
    for (uint32_t t = 0; t < BT_TRACE_TIERS; t++)
        sum.tiers[t].blocks = s.lists[t].limit = blocks[t];
    s.nodes = calloc(s.ids, sizeof(*s.nodes));
    draws = trace_draws(trace->count, workers);
    if (!s.nodes || !draws)
        status = BT_NO_MEMORY;
    for (uint32_t w = 0; status == BT_OK && w < workers; w++)
        run(&s, trace, draws, w);
    for (size_t i = 0; i < trace->count; i++) {
        double n = trace->requests[i].input_tokens;

        sum.tokens += n;
        sum.moment += n * n;
    }
    free(s.nodes);
    free(draws);
    if (status == BT_OK)
        *out = sum;
    return status;
}
