/* Join the shortest queue, in tokens: P with the fewest outstanding prefill
 * tokens, D with the fewest KV tokens reserved. Sees neither prefix nor link.
 * Ties are a seeded uniform choice.
 */
#include "place_parts.h"

static uint32_t least_prefill(const struct bt_place_view *view, uint64_t draw)
{
    uint32_t best = BT_PLACE_NONE;

    for (uint32_t p = 0; p < view->worker_count; p++) {
        uint64_t load = view->workers[p].prefill_tokens;
        uint64_t least =
            best == BT_PLACE_NONE ? 0 : view->workers[best].prefill_tokens;

        if (!place_p_ok(view, p) || (best != BT_PLACE_NONE && load > least))
            continue;
        if (best != BT_PLACE_NONE && load == least &&
            place_tie(draw, view, p) >= place_tie(draw, view, best))
            continue;
        if (place_p_useful(view, p))
            best = p;
    }
    return best;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    struct bt_place_candidate base = place_load_prefix(state, view);
    uint64_t draw = bt_rng_u64(&state->rng);
    uint32_t p = BT_PLACE_NONE;

    if (place_has_pool(view)) {
        p = least_prefill(view, draw);
        if (p == BT_PLACE_NONE)
            return BT_NO_WORKER;
    }
    out->chosen = place_pair(view, p, place_least_decode(view, p, draw));
    if (out->chosen.terms.total_ns >= BT_COST_INFINITE)
        return BT_NO_WORKER;
    place_finish(out, view, &base, BT_REASON_BASELINE);
    return BT_OK;
}

const struct bt_policy bt_policy_least_loaded = {
    .name = "least_loaded",
    .summary = "fewest outstanding prefill tokens, then fewest decode tokens",
    .place = place,
};
