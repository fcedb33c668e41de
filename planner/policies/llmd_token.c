/* llm-d's token-aware filter: P among the workers that hold nearly all of the
 * prompt, unless the least busy of them has so many more tokens in flight than
 * the least busy of all that waiting costs more than the penalty; then all.
 * Among those, fewest tokens in flight (score 1 - min(1, tokens / cap)). D by
 * active requests. Tokens in flight are uncached ones, this request's among
 * them. Sees no link.
 */
#include "rivals.h"

enum { MATCH, R_PEAK, PENALTY_MS, CAP };

static const struct bt_policy_knob knobs[] = {
    {"match", 0.8, 0, 1, "share of blocks that makes a worker warm"},
    {"r_peak", 15928, 1, 1e9, "tokens/s of a worker's prefill"},
    {"penalty_ms", 18000, 0, 1e9, "lead worth following the cache for"},
    {"cap", 4194304, 1, 1e12, "tokens in flight that score nothing"},
    {0},
};

static double in_flight(const struct rival *r, uint32_t w)
{
    return rival_tokens(r, w) + rival_uncached(r->view, w);
}

static bool is_warm(const struct rival *r, uint32_t w)
{
    return rival_match(r->view, w) >= r->knobs[MATCH];
}

static double warm_in_flight(const struct rival *r, uint32_t w)
{
    return is_warm(r, w) ? in_flight(r, w) : RIVAL_NEVER;
}

static double minus_score(const struct rival *r, uint32_t w)
{
    double cap = r->knobs[CAP];

    return cap > 0 ? fmin(1, in_flight(r, w) / cap) : 0;
}

static double minus_warm_score(const struct rival *r, uint32_t w)
{
    return is_warm(r, w) ? minus_score(r, w) : RIVAL_NEVER;
}

static bool follows_cache(const struct rival *r)
{
    double warm, any, most;

    rival_range(r, warm_in_flight, &warm, &most);
    rival_range(r, in_flight, &any, &most);
    if (!isfinite(warm))
        return false;
    return warm - any <= r->knobs[R_PEAK] * r->knobs[PENALTY_MS] / 1e3;
}

static uint32_t pick(struct rival *r)
{
    if (r->side == RIVAL_DECODE)
        return rival_least(r, rival_requests, NULL);
    return rival_least(r, follows_cache(r) ? minus_warm_score : minus_score,
                       NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_llmd_token = {
    .name = "llmd_token",
    .summary = "llm-d's token-aware filter: warm workers while they keep up",
    .place = place,
    .knobs = knobs,
};
