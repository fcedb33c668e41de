/* Conditional disaggregation beside Dynamo's cost: D first decides whether the
 * prefill is worth sending away. With eff = prompt - what the chosen d holds:
 *
 *   isl_bounding  prefill on d iff eff < tokens and eff / prompt < ratio
 *   prefill_load  iff the chosen p has more active tokens than threshold
 *                 batches
 *   isl_or_load   either
 *
 * never where d uses more than busy of its KV, or may not serve alone.
 */
#include "rivals.h"

#define BATCH_TOKENS 8192.0

enum { MODE, TOKENS, RATIO, THRESHOLD, BUSY, D_CREDIT };

static const struct bt_policy_knob knobs[] = {
    {"mode", 0, 0, 2, "0 isl_bounding, 1 prefill_load, 2 isl_or_load"},
    {"tokens", 2048, 0, 1e9, "uncached tokens that d may prefill"},
    {"ratio", 0.7, 0, 1, "and their share of the prompt"},
    {"threshold", 1, 0, 1024, "batches at p that send the prefill to d"},
    {"busy", 0, 0, 1, "not above this KV use of d; 0: no limit"},
    {"d_credit", 0, 0, 16, "blocks of d's cost per block it holds"},
    {0},
};

static const double dynamo_defaults[DYNAMO_KNOBS] = {
    [DYNAMO_OVERLAP_CREDIT] = 1,
    [DYNAMO_HOST_W] = 0.75,
    [DYNAMO_DISK_W] = 0.25,
    [DYNAMO_PREFILL_SCALE] = 1,
};

static double decode_cost(const struct rival *r, uint32_t d)
{
    return rival_tokens(r, d) / rival_block_tokens(r->view) -
           r->knobs[D_CREDIT] * rival_held_blocks(r->view, d);
}

static uint32_t pick(struct rival *r)
{
    if (r->side == RIVAL_DECODE)
        return rival_least(r, decode_cost, NULL);
    return dynamo_pick_with(r, dynamo_defaults);
}

static bool is_short(const struct rival *r)
{
    double eff = rival_uncached(r->view, r->d);

    return eff < r->knobs[TOKENS] &&
           eff < r->knobs[RATIO] * r->view->prompt_tokens;
}

static bool is_p_loaded(const struct rival *r)
{
    const struct bt_place_worker *p = &r->view->workers[r->p];
    double batch = p->batch_tokens > 0 ? p->batch_tokens : BATCH_TOKENS;

    return (double)p->prefill_tokens > r->knobs[THRESHOLD] * batch;
}

static bool stays_on_d(const struct rival *r)
{
    double busy = r->knobs[BUSY];
    bool wanted = false;

    if (!rival_may_serve(r, r->d))
        return false;
    if (busy > 0 && rival_kv_use(r->view, r->d) > busy)
        return false;
    if (r->knobs[MODE] != 1)
        wanted = is_short(r);
    if (r->knobs[MODE] >= 1)
        wanted = wanted || is_p_loaded(r);
    return wanted;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    enum bt_reason reason = BT_REASON_BASELINE;
    struct rival r;

    rival_begin(&r, state, view);
    if (!r.pool)
        return rival_sequential(state, view, out, pick);
    rival_turn(&r, RIVAL_PREFILL);
    r.p = pick(&r);
    rival_turn(&r, RIVAL_DECODE);
    if (r.p != BT_PLACE_NONE)
        r.d = pick(&r);
    if (r.d != BT_PLACE_NONE && stays_on_d(&r)) {
        r.p = r.d;
        reason = BT_REASON_LOCAL;
    }
    return rival_finish(&r, out, reason);
}

const struct bt_policy bt_policy_conditional = {
    .name = "conditional",
    .summary = "Dynamo's cost, short or cached prompts stay on decode",
    .place = place,
    .knobs = knobs,
};
