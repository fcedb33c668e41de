/* LMetric: least product of new prefill tokens (queued ones and what this
 * request adds) and batch size (this request included, so that an idle worker
 * is no better than its cache). Adjusted form, as proposed for Dynamo:
 * adjusted prefill blocks * (decode blocks + 1). The decode pick has no new
 * prefill tokens: fewest KV tokens, in both forms. Sees no link.
 */
#include "rivals.h"

#include <math.h>

enum { ADJUSTED };

static const struct bt_policy_knob knobs[] = {
    {"adjusted", 0, 0, 1, "1: prefill blocks * (decode blocks + 1)"},
    {0},
};

static double batch(const struct rival *r, uint32_t w)
{
    const struct bt_place_worker *x = &r->view->workers[w];
    double others = x->decode_requests;

    if (r->side == RIVAL_PREFILL)
        others += x->prefill_requests;
    return others + 1;
}

static double product(const struct rival *r, uint32_t w)
{
    const struct bt_place_worker *x = &r->view->workers[w];
    double fresh = (double)x->prefill_tokens + rival_uncached(r->view, w);
    double blk = rival_block_tokens(r->view);

    if (r->knobs[ADJUSTED] > 0)
        return fresh / blk * (floor((double)x->decode_tokens / blk) + 1);
    return fresh * batch(r, w);
}

static uint32_t pick(struct rival *r)
{
    if (r->side == RIVAL_DECODE)
        return rival_least(r, rival_tokens, NULL);
    return rival_least(r, product, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_lmetric = {
    .name = "lmetric",
    .summary = "least product of new prefill tokens and batch size",
    .place = place,
    .knobs = knobs,
};
