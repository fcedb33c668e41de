/* FlowKV, normal mode: P by least predicted TTFT, then D by the transfer time
 * of the blocks it lacks on the idle path from P (equals: fewest KV tokens).
 * Its role flipping and scaling are out of scope.
 */
#include "rivals.h"

static double send(const struct rival *r, uint32_t d)
{
    struct place_p t = place_p_terms(r->view, r->p);
    int64_t ns = rival_idle_left_ns(r->view, r->p, d, &t);

    return rival_ns(ns);
}

static uint32_t pick(struct rival *r)
{
    if (r->side == RIVAL_DECODE)
        return rival_least(r, send, rival_tokens);
    return rival_least(r, rival_ttft, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_flowkv = {
    .name = "flowkv",
    .summary = "least predicted TTFT, then the shortest idle transfer",
    .place = place,
};
