/* Deflection (Kairos-like): the best pair by TTFT via p (queue + prefill, then
 * the least loaded D), against a chunked prefill on the decode worker where it
 * would end first. Deflect when that is sooner by the safety factor and a step
 * with a chunk in it still meets the TPOT limit. The original refreshes its
 * state every 100 ms; this sees the ledger as it is.
 */
#include "rivals.h"

enum { ALPHA };

static const struct bt_policy_knob knobs[] = {
    {"alpha", 1.3, 1, 64, "how many times sooner d has to be"},
    {0},
};

static uint32_t pick(struct rival *r)
{
    return rival_least(r, r->side == RIVAL_DECODE ? rival_tokens : rival_ttft,
                       NULL);
}

/* Time to the end of a chunked prefill on d, between its decode steps;
 * infinite where a step with a chunk would miss the TPOT limit. */
static double local_ttft(const struct rival *r, uint32_t d)
{
    struct bt_place_terms t;

    if (!rival_may_serve(r, d))
        return RIVAL_NEVER;
    bt_place_terms(r->view, d, d, &t);
    return rival_ns(place_add(t.queue_ns, t.prefill_ns));
}

static double remote_ttft(const struct rival *r)
{
    struct place_p t = place_p_terms(r->view, r->p);
    int64_t ns = place_add(rival_ttft_ns(r->view, r->p),
                           rival_idle_left_ns(r->view, r->p, r->d, &t));

    return rival_ns(ns);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    enum bt_reason reason = BT_REASON_BASELINE;
    struct rival r;
    uint32_t best;

    rival_begin(&r, state, view);
    if (!r.pool)
        return rival_sequential(state, view, out, pick);
    rival_turn(&r, RIVAL_PREFILL);
    r.p = pick(&r);
    rival_turn(&r, RIVAL_DECODE);
    if (r.p == BT_PLACE_NONE)
        return rival_finish(&r, out, reason);
    r.d = pick(&r);
    rival_turn(&r, RIVAL_ALONE);
    best = rival_least(&r, local_ttft, NULL);
    if (r.d != BT_PLACE_NONE && best != BT_PLACE_NONE &&
        fmax(1, r.knobs[ALPHA]) * local_ttft(&r, best) < remote_ttft(&r)) {
        r.p = r.d = best;
        reason = BT_REASON_LOCAL;
    }
    return rival_finish(&r, out, reason);
}

const struct bt_policy bt_policy_deflect = {
    .name = "deflect",
    .summary = "least TTFT via p, or a chunked prefill on d when sooner",
    .place = place,
    .knobs = knobs,
};
