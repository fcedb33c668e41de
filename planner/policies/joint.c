/* Joint: earliest first decoded token over all pairs and prefix sources, prices
 * included, behind a guard, dispatched late. Decides p, its source and d in one
 * step from queue, fetch, prefill, transfer under our own flows, and decode
 * slot; leaves the naive pair in place unless the predicted gain exceeds its
 * own error (cost-models.md section 15).
 *
 * Error of the gain: independent relative errors of the terms that the two
 * choices do not share. Prefill and step come from one fitted curve when both
 * workers run the same model, so only their difference is uncertain there. The
 * naive pair is weighed with the best source of its own p, and taken with it:
 * the guard is about the pair.
 *
 * Late dispatch (section 17): the choice goes out when its worker is about to
 * be free. If it is not, the best worker that is serves in its stead only while
 * it is nearly as good (the warm-worker veto), or when the request has waited
 * out its patience; else the request is held. A pair whose links are crowded is
 * as busy as one whose worker is: the order of transfers on them cannot be
 * changed either.
 */
#include "place_parts.h"

#include "baton/base/units.h"

#include <math.h>
#include <string.h>

/* Relative errors: section 3 gives 2-6 % for the compute fits (servers run 5 to
 * 15 % slower than them, all alike), section 5 a mean of 2-4 % and a worst of 7
 * for transfers on idle paths; queue and slot are sums of such terms. */
#define REL_QUEUE    0.10
#define REL_PREFILL  0.05
#define REL_TRANSFER 0.10
#define REL_SLOT     0.10
#define REL_STEP     0.05

/* Least gain worth a deviation, however sure: 1 ms, and 2 % of the naive total
 * where everything is shorter (emulated engines). */
#define GAIN_MIN_NS    BT_NS_PER_MS
#define GAIN_MIN_SHARE 0.02

enum {
    KNOB_GUARD,
    KNOB_FETCH,
    KNOB_LOCAL,
    KNOB_HOLD,
    KNOB_VETO,
    KNOB_CROWD,
    KNOB_REJECT
};

static const struct bt_policy_knob knobs[] = {
    {"guard", 1, 0, 10, "error widths a gain must exceed; 0: least gain only"},
    {"fetch", 1, 0, 1, "prefixes from peers and slower tiers (1) or not (0)"},
    {"local", 1, 0, 1, "prefill on decode workers that allow it (1) or not"},
    {"hold", 1, 0, 1, "dispatch when a worker is nearly free (1) or at once"},
    {"veto", 1.25, 1, 10, "how much worse than the best a free worker may be"},
    {"crowd", 3, 0, 1000,
     "a transfer so many times the idle one counts as a busy worker; 0: none"},
    {"reject", 0, 0, 1000,
     "refuse what would take so many times its TTFT limit; 0: never"},
    {NULL, 0, 0, 0, NULL},
};

static double variance(int64_t a, int64_t b, double rel)
{
    double x = (double)a, y = (double)b;

    return rel * rel * (x * x + y * y);
}

/* Both from the same curve: a common scale error cancels but for the
 * difference. */
static double variance_alike(int64_t a, int64_t b, double rel)
{
    double x = (double)a - (double)b;

    return rel * rel * x * x;
}

static bool same_model(const struct bt_compute_model *a,
                       const struct bt_compute_model *b)
{
    return a == b ||
           (a->prefill_a_ms == b->prefill_a_ms &&
            a->prefill_b_ms == b->prefill_b_ms &&
            a->prefill_c_ms == b->prefill_c_ms &&
            a->decode_a_ms == b->decode_a_ms &&
            a->decode_b_ms == b->decode_b_ms &&
            a->decode_c_ms == b->decode_c_ms && a->speedup == b->speedup);
}

static uint32_t prefills_on(const struct bt_place_candidate *c)
{
    return c->p == BT_PLACE_NONE ? c->d : c->p;
}

/* What was observed at either worker, else what the fits are worth. */
static double prefill_error(const struct bt_place_worker *a,
                            const struct bt_place_worker *b, double otherwise)
{
    double error = a->prefill_error > b->prefill_error ? a->prefill_error
                                                       : b->prefill_error;

    return error > 0 ? error : otherwise;
}

static double prefill_variance(const struct bt_place_worker *wb,
                               const struct bt_place_worker *wx,
                               const struct bt_place_terms *b,
                               const struct bt_place_terms *x)
{
    double rel = prefill_error(wb, wx, REL_PREFILL);
    double var =
        variance(b->queue_ns, x->queue_ns, prefill_error(wb, wx, REL_QUEUE));

    var += variance(b->fetch_ns, x->fetch_ns, REL_TRANSFER);
    return var + (same_model(wb->model, wx->model)
                      ? variance_alike(b->prefill_ns, x->prefill_ns, rel)
                      : variance(b->prefill_ns, x->prefill_ns, rel));
}

static double gain_sigma(const struct bt_place_view *view,
                         const struct bt_place_candidate *b,
                         const struct bt_place_candidate *x)
{
    const struct bt_place_worker *w = view->workers;
    const struct bt_place_terms *s = &b->terms, *t = &x->terms;
    double var = variance(s->transfer_ns, t->transfer_ns, REL_TRANSFER);

    if (prefills_on(b) != prefills_on(x))
        var += prefill_variance(&w[prefills_on(b)], &w[prefills_on(x)], s, t);
    if (b->d != x->d) {
        var += variance(s->slot_ns, t->slot_ns, REL_SLOT);
        var += same_model(w[b->d].model, w[x->d].model)
                   ? variance_alike(s->step_ns, t->step_ns, REL_STEP)
                   : variance(s->step_ns, t->step_ns, REL_STEP);
    }
    return sqrt(var);
}

static bool is_worth_it(const struct bt_place_view *view,
                        const struct bt_place_candidate *b,
                        const struct bt_place_candidate *x, double width)
{
    double gain =
        (double)place_score(&b->terms) - (double)place_score(&x->terms);
    double least = GAIN_MIN_SHARE * (double)b->terms.total_ns;

    if (least > (double)GAIN_MIN_NS)
        least = (double)GAIN_MIN_NS;
    return gain > least && gain > width * gain_sigma(view, b, x);
}

/* The naive pair with the best source of its p. */
static struct bt_place_candidate
with_source(struct place_world *world, const struct bt_place_candidate *base)
{
    struct place_p plain, best;

    if (base->p == BT_PLACE_NONE)
        return *base;
    plain = place_p_plain(world, base->p);
    best = place_p_best(world, base->p, &plain);
    return place_pair_at(world->view, world->mu, base->p, base->d,
                         &best.source);
}

/* The best of all, or the naive pair where that is not surely worse. */
static void choose(const struct bt_policy_state *state,
                   struct place_world *world, const struct place_scan *scan,
                   struct bt_placement *out)
{
    const struct bt_place_candidate *base = &out->baseline;
    enum bt_reason reason = BT_REASON_JOINT;
    struct bt_place_candidate naive;

    out->chosen = scan->best;
    if (out->chosen.source.tokens > 0)
        reason = BT_REASON_FETCH;
    if (out->chosen.p == out->chosen.d)
        reason = BT_REASON_LOCAL;
    if (base->d != BT_PLACE_NONE && !place_is_same(base, &scan->best)) {
        naive = with_source(world, base);
        if (!is_worth_it(world->view, &naive, &scan->best,
                         state->knobs[KNOB_GUARD])) {
            out->chosen = naive;
            reason = BT_REASON_GUARD;
        }
    }
    out->reason = reason;
}

/* The choice waits for its worker: is there one that may serve now? */
static enum bt_status dispatch(const struct bt_policy_state *state,
                               struct place_world *world,
                               const struct place_scan *scan,
                               struct bt_placement *out)
{
    const struct bt_place_view *view = world->view;
    struct place_scan free_ones;
    double crowd = state->knobs[KNOB_CROWD], limit;

    if (out->chosen.terms.queue_ns <= view->lead_ns &&
        !place_is_crowded(view, &out->chosen, crowd))
        return BT_OK;
    world->wish.queue_most_ns = view->lead_ns;
    place_scan_world(world, &free_ones);
    if (free_ones.best.d == BT_PLACE_NONE ||
        place_is_crowded(view, &free_ones.best, crowd))
        return BT_AGAIN;
    limit = state->knobs[KNOB_VETO] * (double)place_score(&scan->best.terms);
    if (view->waited_ns < view->patience_ns &&
        (double)place_score(&free_ones.best.terms) > limit)
        return BT_AGAIN;
    out->chosen = free_ones.best;
    out->reason = BT_REASON_JOINT;
    if (out->chosen.source.tokens > 0)
        out->reason = BT_REASON_FETCH;
    if (out->chosen.p == out->chosen.d)
        out->reason = BT_REASON_LOCAL;
    return BT_OK;
}

/* Early rejection: not even the best that is left would be of use. */
static bool is_hopeless(const struct bt_policy_state *state,
                        const struct bt_place_view *view,
                        const struct bt_place_terms *best)
{
    double limit = state->knobs[KNOB_REJECT] * (double)view->ttft_slo_ns;

    return view->may_hold && limit > 0 &&
           (double)view->waited_ns + (double)best->total_ns > limit;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    struct place_wish wish = place_wish_all();
    struct place_world world;
    struct bt_placement made;
    struct place_scan scan;
    enum bt_status status = BT_OK;

    wish.fetch = wish.tiers = state->knobs[KNOB_FETCH] > 0;
    wish.local = state->knobs[KNOB_LOCAL] > 0;
    place_world_init(&world, view, &wish);
    made.baseline = place_load_prefix_in(state, &world);
    place_scan_world(&world, &scan);
    if (scan.best.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    if (is_hopeless(state, view, &scan.best.terms))
        return BT_OVERLOADED;
    choose(state, &world, &scan, &made);
    if (view->may_hold && state->knobs[KNOB_HOLD] > 0)
        status = dispatch(state, &world, &scan, &made);
    if (status != BT_OK)
        return status;
    *out = made;
    place_finish_scan(out, view, &scan, &made.baseline, made.reason);
    return BT_OK;
}

static enum bt_status handoff(struct bt_policy_state *state,
                              const struct bt_place_view *view, uint32_t p,
                              struct bt_placement *out)
{
    struct place_scan scan;

    (void)state;
    place_scan_handoff(view, p, &scan);
    if (scan.best.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    out->chosen = scan.best;
    out->second = scan.second;
    out->baseline = place_none();
    out->considered = scan.feasible;
    out->reason = BT_REASON_HANDOFF;
    return BT_OK;
}

const struct bt_policy bt_policy_joint = {
    .name = "joint",
    .summary = "earliest first token over all pairs and prefix sources, "
               "transfer included, guarded by the estimate's error",
    .place = place,
    .handoff = handoff,
    .order_rule = BT_ORDER_SLACK,
    .knobs = knobs,
};
