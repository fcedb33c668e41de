/* Cache plus load, tuned (CLA*): P by w * blocks to compute + blocks queued, D
 * by KV use + v * share of the prompt it lacks. With blend: the fixed scores
 * that llm-d ships (queue 2, KV use 2, prefix 3, most wins), a point of the
 * grid. Sees no link. Where no worker says how much KV it has, use is counted
 * against the fullest one.
 */
#include "rivals.h"

#include <math.h>

enum { W, V, BLEND };

static const struct bt_policy_knob knobs[] = {
    {"w", 1, 0, 64, "weight of the blocks to compute; grid 0.5 1 2 4 8"},
    {"v", 0, 0, 16, "weight of d's missing share; grid 0 0.25 0.5 1"},
    {"blend", 0, 0, 1, "1: llm-d's fixed scores instead"},
    {0},
};

static double cost_p(const struct rival *r, uint32_t w)
{
    double lacks = rival_blocks(r->view) - rival_held_blocks(r->view, w);

    return r->knobs[W] * lacks + (double)r->view->workers[w].prefill_tokens /
                                     rival_block_tokens(r->view);
}

static double cost_d(const struct rival *r, uint32_t w)
{
    return rival_kv_use(r->view, w) +
           r->knobs[V] * (1 - rival_match(r->view, w));
}

/* One worker for all: both halves in blocks of the prompt. */
static double cost_alone(const struct rival *r, uint32_t w)
{
    return cost_p(r, w) / fmax(1, rival_blocks(r->view)) + cost_d(r, w);
}

/* The fixed blend; aux: least and most requests. */
static double minus_score(const struct rival *r, uint32_t w)
{
    double least = r->aux[0], most = r->aux[1];
    double queue =
        most > least ? (most - rival_requests(r, w)) / (most - least) : 1;

    return -(2 * queue + 2 * (1 - rival_kv_use(r->view, w)) +
             3 * rival_match(r->view, w));
}

static uint32_t pick(struct rival *r)
{
    if (r->knobs[BLEND] > 0) {
        rival_range(r, rival_requests, &r->aux[0], &r->aux[1]);
        return rival_least(r, minus_score, NULL);
    }
    switch (r->side) {
    case RIVAL_PREFILL:
        return rival_least(r, cost_p, NULL);
    case RIVAL_DECODE:
        return rival_least(r, cost_d, NULL);
    case RIVAL_ALONE:
        break;
    }
    return rival_least(r, cost_alone, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_cla = {
    .name = "cla",
    .summary = "weighted prefix plus load on both sides, tuned by knobs",
    .place = place,
    .knobs = knobs,
};
