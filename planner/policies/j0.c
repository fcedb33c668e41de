/* Joint with the sum objective (J0): over all pairs the least queue + prefill +
 * transfer + slot + step, the same terms as joint, charged one after the other
 * where joint takes the later of arrival and slot. The same prefix sources and
 * prices, no guard.
 */
#include "rivals.h"

/* The prefill side of the p looked at last, with its best source. */
struct last {
    struct place_world world;
    uint32_t p;
    struct place_p side;
};

static double sum_of(const struct bt_place_terms *t)
{
    if (t->total_ns >= BT_COST_INFINITE)
        return RIVAL_NEVER;
    return (double)t->arrival_ns + (double)t->slot_ns + (double)t->step_ns +
           (double)t->price_ns;
}

static double cost(const struct rival *r, uint32_t p, uint32_t d)
{
    struct last *last = r->arg;
    struct bt_place_terms t;
    struct place_d dt;

    if (p == BT_PLACE_NONE || p == d) {
        bt_place_terms(r->view, p, d, &t);
        return sum_of(&t);
    }
    if (p != last->p) {
        struct place_p plain = place_p_terms(r->view, p);

        last->p = p;
        last->side = place_p_best(&last->world, p, &plain);
    }
    dt = place_d_terms(r->view, d);
    place_combine(r->view, p, d, &last->side, &dt, &t);
    return sum_of(&t);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    const struct place_wish wish = place_wish_all();
    struct last last = {.p = BT_PLACE_NONE};
    enum bt_status s;
    struct place_p plain;

    place_world_init(&last.world, view, &wish);
    s = rival_joint(state, view, out, cost, &last);
    if (s != BT_OK || out->chosen.p == BT_PLACE_NONE ||
        out->chosen.p == out->chosen.d)
        return s;
    plain = place_p_terms(view, out->chosen.p);
    last.side = place_p_best(&last.world, out->chosen.p, &plain);
    rival_load(view, out, &last.side.source);
    return s;
}

static double cost_handoff(const struct rival *r, uint32_t d)
{
    struct bt_place_candidate c = place_handoff(r->view, r->p, d);

    return sum_of(&c.terms);
}

static enum bt_status handoff(struct bt_policy_state *state,
                              const struct bt_place_view *view, uint32_t p,
                              struct bt_placement *out)
{
    struct rival r;

    rival_begin(&r, state, view);
    return rival_handoff(&r, p, cost_handoff, out);
}

const struct bt_policy bt_policy_j0 = {
    .name = "j0",
    .summary = "joint over all pairs by the sum of its terms",
    .place = place,
    .handoff = handoff,
};
