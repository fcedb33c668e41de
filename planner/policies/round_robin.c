/* Round robin: turns over the prefill and, independently, over the decode
 * workers. Each pass starts at a place drawn anew: with fixed offsets equal
 * pool sizes would pair the same indices for ever, and whether that suits the
 * topology would be chance (baselines section 1). Sees neither load nor prefix
 * nor link.
 */
#include "place_parts.h"

/* The turn-th of the workers that serve: prefill when p is NULL, else decode
 * within reach of *p. */
static bool serves(const struct bt_place_view *view, const uint32_t *p,
                   uint32_t w)
{
    if (p == NULL)
        return place_p_useful(view, w);
    return place_d_ok(view, w) && place_link_ok(view, *p, w);
}

static uint32_t take_turn(const struct bt_place_view *view, const uint32_t *p,
                          struct bt_rng *rng, uint64_t *turn, uint32_t *shift)
{
    uint32_t eligible = 0, skip;

    for (uint32_t w = 0; w < view->worker_count; w++)
        eligible += serves(view, p, w);
    if (eligible == 0)
        return BT_PLACE_NONE;
    if (*turn % eligible == 0)
        *shift = (uint32_t)bt_rng_below(rng, eligible);
    skip = (uint32_t)(((*turn)++ + *shift) % eligible);
    for (uint32_t w = 0; w < view->worker_count; w++)
        if (serves(view, p, w) && skip-- == 0)
            return w;
    return BT_PLACE_NONE;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    struct bt_place_candidate base = place_load_prefix(state, view);
    uint32_t p = BT_PLACE_NONE, d;

    if (place_has_pool(view)) {
        p = take_turn(view, NULL, &state->rng, &state->round_p.turn,
                      &state->round_p.shift);
        if (p == BT_PLACE_NONE)
            return BT_NO_WORKER;
    }
    d = take_turn(view, &p, &state->rng, &state->round_d.turn,
                  &state->round_d.shift);
    out->chosen = place_pair(view, p, d);
    if (out->chosen.terms.total_ns >= BT_COST_INFINITE)
        return BT_NO_WORKER;
    place_finish(out, view, &base, BT_REASON_BASELINE);
    return BT_OK;
}

const struct bt_policy bt_policy_round_robin = {
    .name = "round_robin",
    .summary = "independent turns over prefill and decode workers",
    .place = place,
};
