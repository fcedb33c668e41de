/* Join the shortest queue, each pool by itself: outstanding uncached prompt
 * tokens on the prefill side, KV tokens in use or reserved on the decode side;
 * or requests, as most gateways count. Sees neither prefix nor link.
 */
#include "rivals.h"

enum { REQUESTS };

static const struct bt_policy_knob knobs[] = {
    {"requests", 0, 0, 1, "1: count requests instead of tokens"},
    {0},
};

static double load(const struct rival *r, uint32_t w)
{
    return r->knobs[REQUESTS] > 0 ? rival_requests(r, w) : rival_tokens(r, w);
}

static uint32_t pick(struct rival *r)
{
    return rival_least(r, load, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_jsq = {
    .name = "jsq",
    .summary = "join the shortest queue, in tokens or in requests",
    .place = place,
    .knobs = knobs,
};
