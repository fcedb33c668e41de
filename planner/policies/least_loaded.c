/* Join the shortest queue, in tokens: P with the fewest outstanding prefill
 * tokens, D with the fewest KV tokens reserved. Sees neither prefix nor link.
 * Ties are a seeded uniform choice. The plain baseline of the demo; jsq.c is
 * the same rule with a choice of units.
 */
#include "rivals.h"

static uint32_t pick(struct rival *r)
{
    return rival_least(r, rival_tokens, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_least_loaded = {
    .name = "least_loaded",
    .summary = "fewest outstanding prefill tokens, then fewest decode tokens",
    .place = place,
};
