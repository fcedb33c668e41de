/* The naive sequential rule: P by earliest end of prefill (queue plus prefill
 * of what it does not hold, so overlap minus load in one unit), then D by
 * fewest KV tokens, blind to the transfer. Without a prefill pool, D itself is
 * chosen by the first rule. Ties are a seeded uniform choice, one draw a
 * decision. Every policy reports this choice as its baseline.
 */
#include "place_parts.h"

uint64_t place_tie(uint64_t draw, const struct bt_place_view *view, uint32_t w)
{
    return bt_mix64(draw ^ view->workers[w].id.v);
}

uint32_t place_least_decode(const struct bt_place_view *view, uint32_t p,
                            uint64_t draw)
{
    uint32_t best = BT_PLACE_NONE;

    for (uint32_t d = 0; d < view->worker_count; d++) {
        uint64_t load = view->workers[d].decode_tokens;

        if (!place_d_ok(view, d))
            continue;
        if (best != BT_PLACE_NONE) {
            uint64_t least = view->workers[best].decode_tokens;

            if (load > least ||
                (load == least &&
                 place_tie(draw, view, d) >= place_tie(draw, view, best)))
                continue;
        }
        if (place_link_ok(view, p, d))
            best = d;
    }
    return best;
}

/* Earliest end of prefill; pool: among prefill workers, else among decode
 * workers that would serve alone. */
static uint32_t earliest_prefill(struct place_world *world, bool pool,
                                 uint64_t draw)
{
    const struct bt_place_view *view = world->view;
    uint32_t best = BT_PLACE_NONE;
    int64_t least = BT_COST_INFINITE;

    for (uint32_t w = 0; w < view->worker_count; w++) {
        const struct bt_place_worker *x = &view->workers[w];
        int64_t end;

        if (pool ? !place_p_ok(view, w) : !place_d_ok(view, w))
            continue;
        end = place_from_now(view, x->prefill_free_ns) +
              place_prefill_of(world, x->model,
                               place_usable(view, x->overlap_tokens))
                  ->ns;
        if (end > least || end >= BT_COST_INFINITE)
            continue;
        if (end == least && best != BT_PLACE_NONE &&
            place_tie(draw, view, w) >= place_tie(draw, view, best))
            continue;
        if (pool && !place_p_useful(view, w))
            continue;
        best = w;
        least = end;
    }
    return best;
}

struct bt_place_candidate place_load_prefix_in(struct bt_policy_state *state,
                                               struct place_world *world)
{
    const struct bt_place_source none = {0};
    const struct bt_place_view *view = world->view;
    uint64_t draw = bt_rng_u64(&state->rng);
    bool pool = place_has_pool(view);
    uint32_t w = earliest_prefill(world, pool, draw);
    struct bt_place_candidate c;

    if (w == BT_PLACE_NONE)
        return place_none();
    c = pool ? place_pair_at(view, world->mu, w,
                             place_least_decode(view, w, draw), &none)
             : place_pair_at(view, world->mu, BT_PLACE_NONE, w, &none);
    return c.terms.total_ns < BT_COST_INFINITE ? c : place_none();
}

struct bt_place_candidate place_load_prefix(struct bt_policy_state *state,
                                            const struct bt_place_view *view)
{
    struct place_world world = {.view = view, .mu = place_mu(view)};

    return place_load_prefix_in(state, &world);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    struct bt_place_candidate c = place_load_prefix(state, view);

    if (c.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    out->chosen = c;
    place_finish(out, view, &c, BT_REASON_LOAD_PREFIX);
    return BT_OK;
}

const struct bt_policy bt_policy_prefix_load = {
    .name = "prefix_load",
    .summary = "prefix overlap minus load for prefill, then least loaded "
               "decode, blind to the transfer",
    .place = place,
};
