/* Prefix only: P with the longest match, whatever its queue (equal matches:
 * the least load), then D with the fewest KV tokens. Sees no link. On traces
 * with a common first block it sends everything to one worker: that is the
 * rule, not a fault of this file.
 */
#include "rivals.h"

static double minus_match(const struct rival *r, uint32_t w)
{
    return -(double)rival_held(r->view, w);
}

static uint32_t pick(struct rival *r)
{
    if (r->side == RIVAL_DECODE)
        return rival_least(r, rival_tokens, NULL);
    return rival_least(r, minus_match, rival_tokens);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_prefix_only = {
    .name = "prefix_only",
    .summary = "longest prefix match, then least loaded decode",
    .place = place,
};
