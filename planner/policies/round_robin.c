/* Round robin: turns over the prefill and, independently, over the decode
 * workers. Each pass starts at a place drawn anew: with fixed offsets equal
 * pool sizes would pair the same indices for ever, and whether that suits the
 * topology would be chance (baselines section 1). Sees neither load nor prefix
 * nor link.
 */
#include "rivals.h"

static uint32_t pick(struct rival *r)
{
    const struct bt_place_view *view = r->view;
    struct bt_policy_state *state = r->state;
    bool p_side = r->side == RIVAL_PREFILL;
    uint64_t *turn = p_side ? &state->round_p.turn : &state->round_d.turn;
    uint32_t *shift = p_side ? &state->round_p.shift : &state->round_d.shift;
    uint32_t eligible = 0, skip;

    for (uint32_t w = 0; w < view->worker_count; w++)
        eligible += rival_may(r, w);
    if (eligible == 0)
        return BT_PLACE_NONE;
    if (*turn % eligible == 0)
        *shift = (uint32_t)bt_rng_below(&state->rng, eligible);
    skip = (uint32_t)(((*turn)++ + *shift) % eligible);
    for (uint32_t w = 0; w < view->worker_count; w++)
        if (rival_may(r, w) && skip-- == 0)
            return w;
    return BT_PLACE_NONE;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_round_robin = {
    .name = "round_robin",
    .summary = "independent turns over prefill and decode workers",
    .place = place,
};
