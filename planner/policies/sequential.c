/* The sequential twins of the joint rule, same estimator (evaluation reference
 * section 3), so that joint is only credited with what it adds:
 *
 *   s1  P by queue + prefill; D by the pair's total with the idle transfer
 *   s2  the same, P also charged its cheapest idle transfer to any D
 *   s3  s2 with transfers under our own flows on every shared link
 *
 * Total is max(arrival, slot) + step as joint has it, or with sum=1 transfer +
 * slot + step. P's time is that of its best prefix source, prices included,
 * where the view offers sources and prices; fetch=0 recomputes. A worker that
 * may serve alone is taken where its total is less than the pair's; local=0
 * turns that off. hold and veto are joint's: a choice whose p is not nearly
 * free waits, unless the best p that is comes close or patience has run out.
 */
#include "rivals.h"

enum { SUM, FETCH, LOCAL, HOLD, VETO, CROWD };

static const struct bt_policy_knob knobs[] = {
    {"sum", 0, 0, 1, "1: D by transfer + slot + step"},
    {"fetch", 1, 0, 1, "0: never load or fetch a prefix"},
    {"local", 1, 0, 1, "0: never one worker alone beside a pool"},
    {"hold", 1, 0, 1, "0: dispatch at once"},
    {"veto", 1.25, 1, 10, "how much worse than the best a free p may be"},
    {"crowd", 3, 0, 1000,
     "joint's, for the twin that sees live flows; 0: none"},
    {0},
};

enum rule { S1, S2, S3 };

struct twin {
    enum rule rule;
    struct place_world world;
    struct place_p p;   /* of the worker picked */
    double score;       /* total + price of the pair picked */
    int64_t queue_most; /* leave out workers with a longer queue */
};

/* ---- terms ---- */

static struct place_p side_of(const struct rival *r, uint32_t p)
{
    struct twin *twin = r->arg;
    struct place_p plain = place_p_terms(r->view, p);

    if (r->knobs[FETCH] > 0)
        return place_p_best(&twin->world, p, &plain);
    place_p_charge(r->view, twin->world.mu, p, false, &plain);
    return plain;
}

static int64_t transfer_ns(const struct rival *r, uint32_t p, uint32_t d,
                           const struct place_p *pt)
{
    const struct twin *twin = r->arg;
    struct place_d dt = place_d_terms(r->view, d);

    if (p == d)
        return 0;
    return twin->rule < S3 ? rival_idle_left_ns(r->view, p, d, pt)
                           : place_exposed(r->view, p, d, pt, &dt);
}

static int64_t cheapest_ns(const struct rival *r, uint32_t p,
                           const struct place_p *pt)
{
    int64_t least = BT_COST_INFINITE;

    for (uint32_t d = 0; d < r->view->worker_count; d++) {
        int64_t ns;

        if (!place_d_ok(r->view, d) || !place_link_ok(r->view, p, d))
            continue;
        ns = transfer_ns(r, p, d, pt);
        least = ns < least ? ns : least;
    }
    return least;
}

/* ---- costs ---- */

static double cost_p(const struct rival *r, uint32_t p)
{
    const struct twin *twin = r->arg;
    struct place_p t = side_of(r, p);
    int64_t start = place_max(t.queue_ns, t.fetch_ns);
    int64_t ns = place_add(place_add(start, t.prefill_ns), t.price_ns);

    if (t.queue_ns > twin->queue_most)
        return RIVAL_NEVER;
    if (twin->rule > S1)
        ns = place_add(ns, cheapest_ns(r, p, &t));
    return rival_ns(ns);
}

/* The pair's total by the rule's own transfer. */
static double total_of(const struct rival *r, uint32_t d)
{
    const struct twin *twin = r->arg;
    struct place_d t = place_d_terms(r->view, d);

    return rival_ns(
        place_total(&twin->p, &t, transfer_ns(r, r->p, d, &twin->p)));
}

static double sum_of(const struct rival *r, uint32_t d)
{
    const struct twin *twin = r->arg;
    struct place_d t = place_d_terms(r->view, d);

    return rival_ns(place_add(
        place_add(transfer_ns(r, r->p, d, &twin->p), t.slot_ns), t.step_ns));
}

static double cost_alone(const struct rival *r, uint32_t w)
{
    const struct twin *twin = r->arg;
    struct bt_place_terms t;

    if (r->pool && !rival_may_serve(r, w))
        return RIVAL_NEVER;
    bt_place_terms(r->view, r->pool ? w : BT_PLACE_NONE, w, &t);
    if (t.queue_ns > twin->queue_most)
        return RIVAL_NEVER;
    return rival_ns(place_score(&t));
}

/* ---- choice ---- */

static void pick_pair(struct rival *r, struct twin *twin)
{
    r->p = r->d = BT_PLACE_NONE;
    twin->score = RIVAL_NEVER;
    rival_turn(r, RIVAL_PREFILL);
    r->p = rival_least(r, cost_p, NULL);
    rival_turn(r, RIVAL_DECODE);
    if (r->p == BT_PLACE_NONE)
        return;
    twin->p = side_of(r, r->p);
    r->d = rival_least(r, r->knobs[SUM] > 0 ? sum_of : total_of, NULL);
    if (r->d != BT_PLACE_NONE)
        twin->score = total_of(r, r->d) + (double)twin->p.price_ns;
}

/* One worker alone instead, if that is sooner. */
static void pick_alone(struct rival *r, struct twin *twin)
{
    uint32_t w;

    rival_turn(r, RIVAL_ALONE);
    if (r->pool && r->knobs[LOCAL] <= 0)
        return;
    w = rival_least(r, cost_alone, NULL);
    if (w == BT_PLACE_NONE || !(cost_alone(r, w) < twin->score * (1 - 1e-9)))
        return;
    twin->score = cost_alone(r, w);
    twin->p = (struct place_p){.queue_ns = place_p_terms(r->view, w).queue_ns};
    r->p = r->pool ? w : BT_PLACE_NONE;
    r->d = w;
}

static void pick(struct rival *r, struct twin *twin)
{
    twin->score = RIVAL_NEVER;
    if (r->pool)
        pick_pair(r, twin);
    pick_alone(r, twin);
}

/* As joint sees it; only the third twin sees flows at all. */
static bool is_crowded(const struct rival *r, const struct twin *twin)
{
    struct bt_place_candidate c;

    if (twin->rule < S3 || r->p == BT_PLACE_NONE || r->p == r->d)
        return false;
    c = place_pair_from(r->view, r->p, r->d, &twin->p.source);
    return place_is_crowded(r->view, &c, r->knobs[CROWD]);
}

/* The choice waits for its worker: is there one that may serve now? */
static enum bt_status dispatch(struct rival *r, struct twin *twin)
{
    const struct bt_place_view *view = r->view;
    double best = twin->score;

    if (!view->may_hold || r->knobs[HOLD] <= 0 || r->d == BT_PLACE_NONE ||
        (twin->p.queue_ns <= view->lead_ns && !is_crowded(r, twin)))
        return BT_OK;
    twin->queue_most = view->lead_ns;
    pick(r, twin);
    if (r->d == BT_PLACE_NONE || is_crowded(r, twin))
        return BT_AGAIN;
    if (view->waited_ns < view->patience_ns &&
        twin->score > r->knobs[VETO] * best)
        return BT_AGAIN;
    return BT_OK;
}

static void begin(struct rival *r, struct twin *twin,
                  struct bt_policy_state *state,
                  const struct bt_place_view *view)
{
    const struct place_wish wish = place_wish_all();

    rival_begin(r, state, view);
    place_world_init(&twin->world, view, &wish);
    r->arg = twin;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out, enum rule rule)
{
    struct twin twin = {.rule = rule, .queue_most = INT64_MAX};
    struct rival r;
    enum bt_status s;
    uint32_t p;

    begin(&r, &twin, state, view);
    pick(&r, &twin);
    s = dispatch(&r, &twin);
    if (s != BT_OK)
        return s;
    p = r.p;
    s = rival_finish(&r, out, p == r.d ? BT_REASON_LOCAL : BT_REASON_BASELINE);
    if (s == BT_OK && r.p == p && p != BT_PLACE_NONE && p != r.d)
        rival_load(view, out, &twin.p.source);
    return s;
}

/* Time to the first step at d, once the KV is at p. */
static double cost_handoff(const struct rival *r, uint32_t d)
{
    const struct twin *twin = r->arg;
    struct place_d t = place_d_terms(r->view, d);
    int64_t send =
        twin->rule < S3
            ? place_idle_ns(r->view, r->p, d, t.kv_bytes, t.descriptors)
            : bt_place_transfer_ns(r->view, r->p, d, r->view->now_ns,
                                   t.kv_bytes, t.descriptors);

    if (r->knobs[SUM] > 0)
        return rival_ns(place_add(place_add(send, t.slot_ns), t.step_ns));
    return rival_ns(place_add(place_max(send, t.slot_ns), t.step_ns));
}

static enum bt_status handoff(struct bt_policy_state *state,
                              const struct bt_place_view *view, uint32_t p,
                              struct bt_placement *out, enum rule rule)
{
    struct twin twin = {.rule = rule};
    struct rival r;

    begin(&r, &twin, state, view);
    return rival_handoff(&r, p, cost_handoff, out);
}

/* ---- the three of them ---- */

static enum bt_status place_s1(struct bt_policy_state *state,
                               const struct bt_place_view *view,
                               struct bt_placement *out)
{
    return place(state, view, out, S1);
}

static enum bt_status place_s2(struct bt_policy_state *state,
                               const struct bt_place_view *view,
                               struct bt_placement *out)
{
    return place(state, view, out, S2);
}

static enum bt_status place_s3(struct bt_policy_state *state,
                               const struct bt_place_view *view,
                               struct bt_placement *out)
{
    return place(state, view, out, S3);
}

static enum bt_status handoff_s1(struct bt_policy_state *state,
                                 const struct bt_place_view *view, uint32_t p,
                                 struct bt_placement *out)
{
    return handoff(state, view, p, out, S1);
}

static enum bt_status handoff_s2(struct bt_policy_state *state,
                                 const struct bt_place_view *view, uint32_t p,
                                 struct bt_placement *out)
{
    return handoff(state, view, p, out, S2);
}

static enum bt_status handoff_s3(struct bt_policy_state *state,
                                 const struct bt_place_view *view, uint32_t p,
                                 struct bt_placement *out)
{
    return handoff(state, view, p, out, S3);
}

const struct bt_policy bt_policy_s1 = {
    .name = "s1",
    .summary = "sequential twin: prefill by time, decode by idle transfer",
    .place = place_s1,
    .handoff = handoff_s1,
    .order_rule = BT_ORDER_SLACK,
    .knobs = knobs,
};

const struct bt_policy bt_policy_s2 = {
    .name = "s2",
    .summary = "s1 with prefill charged its cheapest idle transfer",
    .place = place_s2,
    .handoff = handoff_s2,
    .order_rule = BT_ORDER_SLACK,
    .knobs = knobs,
};

const struct bt_policy bt_policy_s3 = {
    .name = "s3",
    .summary = "s2 with transfers under our own flows",
    .place = place_s3,
    .handoff = handoff_s3,
    .order_rule = BT_ORDER_SLACK,
    .knobs = knobs,
};
