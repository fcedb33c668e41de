/* Mooncake's Algorithm 1: P by least predicted TTFT, D by load.
 *
 *   TTFT(p) = T_x + T_queue(p) + T_prefill(len, prefix)
 *
 * mooncake: own prefixes only, T_x = 0. mooncake_fetch: where the best prefix
 * of any prefill worker is more than theta times p's own, p pulls what it lacks
 * of it first, in time T_x on the idle path: all of it, from one holder, before
 * the queue and not beside it, blind to what the holder sends already. Only
 * workers that can pull are asked to. The copy that a pull leaves behind is the
 * rule's replication of hot prefixes.
 *
 * The terms written down for a pull are ours (it runs beside the queue); the
 * serial sum only makes the choice.
 */
#include "rivals.h"

/* Knobs; mooncake has the first two only. */
enum { TTFT_MAX_S, TBT_MAX_MS, THETA };

#define REFUSALS                                                               \
    {"ttft_max_s", 0, 0, 3600, "refuse above this TTFT; 0: never; paper 30"},  \
    {                                                                          \
        "tbt_max_ms", 0, 0, 60000,                                             \
            "refuse above this decode step; 0: never; paper 100 to 300"        \
    }

static const struct bt_policy_knob local_knobs[] = {REFUSALS, {0}};

static const struct bt_policy_knob fetch_knobs[] = {
    REFUSALS,
    {"theta", 1, 1, 1000, "pull when the best prefix is this many times ours"},
    {0},
};

/* ---- pulls ---- */

struct pull {
    struct bt_place_source source; /* tokens 0: none */
    int64_t ns;
};

/* Time of a pull on the idle path. */
static int64_t pull_ns(const struct bt_place_view *view, uint32_t w,
                       const struct bt_place_source *source)
{
    struct place_p t = place_p_from(view, w, source);
    uint64_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint64_t bytes = t.fetch_bytes, regions = 1;

    if (t.fetch_ns >= BT_COST_INFINITE || t.prefill_ns >= BT_COST_INFINITE)
        return BT_COST_INFINITE; /* not within reach */
    if (view->mode != NULL && view->mode->descriptors_per_block > 1)
        regions = view->mode->descriptors_per_block;
    return place_idle_ns(view, source->worker, w, bytes,
                         (source->tokens - rival_held(view, w)) / blk *
                             regions);
}

/* Longest, nearest of equals, lowest id. */
static bool is_better_pull(const struct bt_place_view *view,
                           const struct pull *a, const struct pull *b)
{
    if (a->source.tokens != b->source.tokens)
        return a->source.tokens > b->source.tokens;
    if (a->ns != b->ns)
        return a->ns < b->ns;
    return view->workers[a->source.worker].id.v <
           view->workers[b->source.worker].id.v;
}

/* From the best holder of those that w can reach. */
static struct pull best_pull(const struct bt_place_view *view, uint32_t w)
{
    uint32_t own = rival_whole_blocks(view, rival_held(view, w));
    struct pull best = {.ns = 0};

    for (uint32_t x = 0; x < view->worker_count; x++) {
        struct pull one = {.source = {.worker = x, .tier = BT_TIER_DEVICE}};

        if (x == w || !place_p_ok(view, x))
            continue;
        one.source.tokens = rival_whole_blocks(view, rival_held(view, x));
        if (one.source.tokens <= own || one.source.tokens < best.source.tokens)
            continue;
        one.ns = pull_ns(view, w, &one.source);
        if (one.ns < BT_COST_INFINITE &&
            (best.source.tokens == 0 || is_better_pull(view, &one, &best)))
            best = one;
    }
    return best;
}

/* What p would pull under the rule. */
static struct pull pull_of(const struct bt_place_view *view, uint32_t w,
                           double theta)
{
    struct pull pull = {.ns = 0};

    if (view->workers[w].fetch_ok)
        pull = best_pull(view, w);
    if ((double)pull.source.tokens <= theta * rival_held(view, w))
        pull.source.tokens = 0;
    return pull;
}

/* One after the other: pull, queue, prefill. */
static double ttft_with(const struct bt_place_view *view, uint32_t w,
                        const struct pull *pull)
{
    struct place_p t = place_p_from(view, w, &pull->source);
    int64_t sum = place_add(place_add(pull->ns, t.queue_ns), t.prefill_ns);

    return rival_ns(sum);
}

static double fetch_ttft(const struct rival *r, uint32_t w)
{
    struct pull pull = pull_of(r->view, w, r->knobs[THETA]);

    return pull.source.tokens == 0 ? rival_ttft(r, w)
                                   : ttft_with(r->view, w, &pull);
}

/* ---- the two policies ---- */

static uint32_t pick(struct rival *r, rival_cost_fn ttft)
{
    return rival_least(r, r->side == RIVAL_DECODE ? rival_tokens : ttft, NULL);
}

static uint32_t pick_local(struct rival *r)
{
    return pick(r, rival_ttft);
}

static uint32_t pick_fetch(struct rival *r)
{
    return pick(r, fetch_ttft);
}

static bool is_refused(const struct bt_policy_state *state,
                       const struct bt_place_view *view,
                       const struct bt_placement *out)
{
    const double *k = state->knobs;
    const struct bt_place_terms *t = &out->chosen.terms;
    double ttft_ns =
        (double)t->fetch_ns + (double)t->queue_ns + (double)t->prefill_ns;

    if (!view->may_hold)
        return false;
    return (k[TTFT_MAX_S] > 0 && ttft_ns > k[TTFT_MAX_S] * 1e9) ||
           (k[TBT_MAX_MS] > 0 && (double)t->step_ns > k[TBT_MAX_MS] * 1e6);
}

static enum bt_status answer(const struct bt_policy_state *state,
                             const struct bt_place_view *view,
                             const struct bt_placement *made,
                             struct bt_placement *out)
{
    if (is_refused(state, view, made))
        return BT_OVERLOADED;
    *out = *made;
    return BT_OK;
}

static enum bt_status place_local(struct bt_policy_state *state,
                                  const struct bt_place_view *view,
                                  struct bt_placement *out)
{
    struct bt_placement made;
    enum bt_status s = rival_sequential(state, view, &made, pick_local);

    return s == BT_OK ? answer(state, view, &made, out) : s;
}

static enum bt_status place_fetch(struct bt_policy_state *state,
                                  const struct bt_place_view *view,
                                  struct bt_placement *out)
{
    struct bt_placement made;
    enum bt_status s = rival_sequential(state, view, &made, pick_fetch);
    struct pull pull;

    if (s != BT_OK)
        return s;
    if (made.chosen.p != BT_PLACE_NONE && made.reason != BT_REASON_LOCAL) {
        pull = pull_of(view, made.chosen.p, state->knobs[THETA]);
        rival_load(view, &made, &pull.source);
    }
    return answer(state, view, &made, out);
}

const struct bt_policy bt_policy_mooncake = {
    .name = "mooncake",
    .summary = "Mooncake's Algorithm 1, own prefixes: least predicted TTFT",
    .place = place_local,
    .knobs = local_knobs,
};

const struct bt_policy bt_policy_mooncake_fetch = {
    .name = "mooncake_fetch",
    .summary = "Mooncake's Algorithm 1 with the fetch of the best prefix",
    .place = place_fetch,
    .knobs = fetch_knobs,
};
