/* Joint: earliest first decoded token over all pairs, behind a guard. Decides
 * p and d in one step from queue, prefill, transfer under our own flows, and
 * decode slot; leaves the naive choice in place unless the predicted gain
 * exceeds its own error (cost-models.md section 15).
 *
 * Error of the gain: independent relative errors of the terms that the two
 * choices do not share. Prefill and step come from one fitted curve when both
 * workers run the same model, so only their difference is uncertain there.
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

static double gain_sigma(const struct bt_place_view *view,
                         const struct bt_place_candidate *b,
                         const struct bt_place_candidate *x)
{
    const struct bt_place_worker *w = view->workers;
    const struct bt_place_terms *s = &b->terms, *t = &x->terms;
    uint32_t bp = prefills_on(b), xp = prefills_on(x);
    double var = variance(s->transfer_ns, t->transfer_ns, REL_TRANSFER);

    if (bp != xp) {
        var += variance(s->queue_ns, t->queue_ns, REL_QUEUE);
        var += same_model(w[bp].model, w[xp].model)
                   ? variance_alike(s->prefill_ns, t->prefill_ns, REL_PREFILL)
                   : variance(s->prefill_ns, t->prefill_ns, REL_PREFILL);
    }
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
                        const struct bt_place_candidate *x)
{
    double gain = (double)(b->terms.total_ns - x->terms.total_ns);
    double least = GAIN_MIN_SHARE * (double)b->terms.total_ns;

    if (least > (double)GAIN_MIN_NS)
        least = (double)GAIN_MIN_NS;
    return gain > least && gain > gain_sigma(view, b, x);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    struct bt_place_candidate base = place_load_prefix(state, view);
    enum bt_reason reason = BT_REASON_JOINT;
    struct place_scan scan;

    place_scan(view, &scan);
    if (scan.best.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    out->chosen = scan.best;
    if (base.d != BT_PLACE_NONE && !place_is_same(&base, &scan.best) &&
        !is_worth_it(view, &base, &scan.best)) {
        out->chosen = base;
        reason = BT_REASON_GUARD;
    } else if (scan.best.p == scan.best.d) {
        reason = BT_REASON_LOCAL;
    }
    place_finish_scan(out, view, &scan, &base, reason);
    return BT_OK;
}

const struct bt_policy bt_policy_joint = {
    .name = "joint",
    .summary = "earliest first token over all pairs, transfer included, "
               "guarded by the estimate's error",
    .place = place,
};
