/* Chooses and books, in one step. core_place_pair() asks the policy;
 * core_place_plain() takes the d that serves the whole request first;
 * core_place_handoff() finds another d for KV that already lies on p. What to
 * do when nobody is found is the callers' matter. Invariant: BT_OK means booked
 * and `placed`; anything else, nothing held.
 *
 * A local prefill (p == d) is booked as a request that d serves alone, less
 * the tokens that it loads or fetches. */
#include "core_internal.h"

#include "baton/base/units.h"
#include <assert.h>

/* A cost that a model cannot state is booked as this, to keep sums sane. */
#define BOOKED_COST_MAX (3600 * BT_NS_PER_S)

struct place_query core_query_of(const struct bt_core *core,
                                 const struct request *r)
{
    struct place_query q = {
        .model = r->ask.model,
        .prompt_tokens = r->prompt_tokens,
        .output_tokens = r->output_tokens,
        .tokens_known = r->ask.tokens_known,
        .keys = r->ask.keys,
        .key_count = r->ask.key_count,
        .request = r,
        .body_bytes = r->ask.body_bytes,
        .waited_ns = core->now_ns - r->record.received_ns,
        .ttft_slo_ns = r->record.ttft_slo_ns,
    };

    return q;
}

static bool candidate_before(const struct bt_place_terms *a,
                             const struct bt_place_terms *b)
{
    return a->total_ns < b->total_ns;
}

static void candidate_none(struct bt_place_candidate *c)
{
    *c = (struct bt_place_candidate){.p = BT_PLACE_NONE, .d = BT_PLACE_NONE};
}

static void consider(const struct bt_place_candidate *candidate,
                     struct bt_placement *best)
{
    best->considered++;
    if (best->chosen.d == BT_PLACE_NONE ||
        candidate_before(&candidate->terms, &best->chosen.terms)) {
        best->second = best->chosen;
        best->chosen = *candidate;
    } else if (best->second.d == BT_PLACE_NONE ||
               candidate_before(&candidate->terms, &best->second.terms)) {
        best->second = *candidate;
    }
}

static void placement_open(struct bt_placement *placement)
{
    candidate_none(&placement->chosen);
    candidate_none(&placement->second);
    candidate_none(&placement->baseline);
    placement->considered = 0;
    placement->reason = BT_REASON_BASELINE;
}

/* d alone: earliest first token, lowest slot on a tie. */
enum bt_status core_plain_choose(const struct bt_core *core,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out)
{
    struct bt_place_candidate c = {.p = BT_PLACE_NONE};

    (void)core;
    placement_open(out);
    for (c.d = 0; c.d < view->worker_count; c.d++) {
        if (!view->workers[c.d].decode_ok)
            continue;
        bt_place_terms(view, BT_PLACE_NONE, c.d, &c.terms);
        consider(&c, out);
    }
    return out->chosen.d == BT_PLACE_NONE ? BT_NO_WORKER : BT_OK;
}

static bool prefill_streams_blind(const struct bt_core *core)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if ((core->marks[i] & BT_ROLE_PREFILL) != 0 &&
            (core->workers[i].stream == BT_STREAM_EXACT ||
             core->workers[i].stream == BT_STREAM_PARTIAL))
            return false;
    }
    return true;
}

/* The policy's reason, unless the core knows one that says more. */
static enum bt_reason reason_of(const struct bt_core *core,
                                const struct place_query *q,
                                const struct bt_placement *placement)
{
    enum bt_reason reason = placement->reason;
    bool by_cost = reason == BT_REASON_LOAD_PREFIX ||
                   reason == BT_REASON_JOINT || reason == BT_REASON_NO_TOKENS;

    if (placement->chosen.p == BT_PLACE_NONE && reason == BT_REASON_NO_PREFILL)
        return reason;
    if (placement->chosen.p == BT_PLACE_NONE)
        return BT_REASON_LOCAL;
    if (placement->chosen.p == placement->chosen.d)
        return BT_REASON_LOCAL;
    if (q->request != NULL && q->request->record.placements > 0)
        return BT_REASON_RETRY;
    if (!q->tokens_known)
        return BT_REASON_NO_TOKENS;
    if (by_cost && prefill_streams_blind(core))
        return BT_REASON_EVENTS_DEGRADED;
    return reason;
}

static void assert_choice(const struct bt_place_view *view,
                          const struct bt_place_candidate *c)
{
    assert(c->d < view->worker_count && view->workers[c->d].decode_ok);
    assert(c->p == BT_PLACE_NONE ||
           (c->p < view->worker_count &&
            (view->workers[c->p].prefill_ok ||
             (c->p == c->d && view->workers[c->d].local_ok))));
    assert(c->source.tokens == 0 || c->source.worker < view->worker_count);
}

enum bt_status core_policy_choose(const struct bt_core *core,
                                  struct bt_policy_state *state,
                                  const struct bt_place_view *view,
                                  const struct place_query *q,
                                  struct bt_placement *out)
{
    enum bt_status status;

    core_view_avoid_suspect_pairs(core, view);
    placement_open(out); /* what a policy that holds back leaves as it is */
    status = core->config.policy->place(state, view, out);
    assert(status != BT_AGAIN || view->may_hold);
    if (status != BT_OK)
        return status;
    assert_choice(view, &out->chosen);
    out->reason = reason_of(core, q, out);
    return BT_OK;
}

static uint64_t uncached_tokens(const struct request *r, uint32_t overlap)
{
    if (overlap >= r->prompt_tokens)
        overlap = r->prompt_tokens - 1;
    return r->prompt_tokens - overlap;
}

static bool is_alone(const struct bt_place_candidate *c)
{
    return c->p == BT_PLACE_NONE || c->p == c->d;
}

static int64_t booked_cost(int64_t ns)
{
    return ns < BOOKED_COST_MAX ? ns : BOOKED_COST_MAX;
}

/* Worker that prefills. */
static uint32_t prefiller(const struct bt_place_candidate *c)
{
    return c->p == BT_PLACE_NONE ? c->d : c->p;
}

void core_book(struct bt_core *core, struct request *r,
               const struct bt_place_candidate *c)
{
    bool alone = is_alone(c);
    uint32_t overlap = alone && c->source.tokens == 0 ? c->terms.overlap_d
                                                      : c->terms.overlap_p;

    bt_ledger_book(
        core->ledger, &r->booking, core->now_ns, alone ? BT_PLACE_NONE : c->p,
        c->d, core_request_slot_of(core, r), uncached_tokens(r, overlap),
        booked_cost(c->terms.prefill_ns), alone ? 0 : c->terms.kv_bytes,
        (uint64_t)r->prompt_tokens + r->output_tokens);
    if (c->source.tokens > 0 && c->source.worker != prefiller(c) &&
        !r->booking.fetch_held)
        bt_ledger_book_fetch(core->ledger, &r->booking, core->now_ns,
                             c->source.worker, c->terms.fetch_bytes);
}

static void commit(struct bt_core *core, struct request *r,
                   const struct bt_placement *placement)
{
    const struct bt_place_candidate *c = &placement->chosen;
    struct bt_worker_id none = {0};

    core_request_move(core, r, BT_REQUEST_PLACED);
    r->p = is_alone(c) ? none : core_worker_id_of(core, c->p);
    r->d = core_worker_id_of(core, c->d);
    r->source = c->source;
    r->transfer_clean = false;
    core_prefetch_end(core, r, prefiller(c));
    core_book(core, r, c);
    core_hold_note_booked(core, prefiller(c));
    if (core->config.hold.enabled)
        bt_fairness_serve(&core->fairness, r->ask.tenant,
                          booked_cost(c->terms.prefill_ns));
    core_record_placement(core, r, placement);
    core_promise(core, r);
}

static bool same_pair(const struct bt_place_candidate *a,
                      const struct bt_place_candidate *b)
{
    return a->p == b->p && a->d == b->d;
}

/* The best candidates, and the chosen one whatever its rank. */
static void keep_candidates(struct request *r, const struct bt_place_view *view,
                            const struct bt_placement *placement)
{
    struct bt_decision *record = &r->record;
    size_t n = bt_place_table(view, record->candidates, BT_CANDIDATES_KEPT);

    if (n > BT_CANDIDATES_KEPT)
        n = BT_CANDIDATES_KEPT;
    for (size_t i = 0; i < n; i++)
        if (same_pair(&record->candidates[i], &placement->chosen)) {
            record->candidate_count = (uint32_t)n;
            return;
        }
    if (n == BT_CANDIDATES_KEPT)
        n--;
    record->candidates[n] = placement->chosen;
    record->candidate_count = (uint32_t)n + 1;
}

enum bt_status core_place_pair(struct bt_core *core, struct request *r,
                               bool may_hold)
{
    struct place_query q = core_query_of(core, r);
    struct eligible found = core_eligible_mark(core, &q);
    const struct bt_policy *policy = core->config.policy;
    struct bt_placement placement;
    struct bt_place_view view;
    enum bt_status status;

    if (found.p_count == 0 || found.d_count == 0)
        return BT_NO_WORKER;
    q.may_hold = may_hold;
    core_view_build(core, &q, &view);
    r->record.asks++;
    status =
        core_policy_choose(core, &core->policy_state, &view, &q, &placement);
    if (status == BT_AGAIN)
        core_hold_note_again(core, r, &view, &placement);
    if (status == BT_AGAIN || status == BT_OVERLOADED)
        return status;
    if (status != BT_OK)
        return BT_NO_WORKER;
    keep_candidates(r, &view, &placement);
    commit(core, r, &placement);
    core_overlap_note(core, r, &q, prefiller(&placement.chosen));
    if (policy->placed != NULL)
        policy->placed(&core->policy_state, &view, &placement);
    return BT_OK;
}

/* Without a choice of p: the chosen worker and the runner-up. */
static void keep_two(struct request *r, const struct bt_placement *placement)
{
    struct bt_decision *record = &r->record;

    record->candidates[0] = placement->chosen;
    record->candidates[1] = placement->second;
    record->candidate_count = placement->second.d == BT_PLACE_NONE ? 1 : 2;
}

enum bt_status core_place_plain(struct bt_core *core, struct request *r,
                                enum bt_reason reason, bool allow_tried_d)
{
    struct place_query q = core_query_of(core, r);
    struct bt_placement placement;
    struct bt_place_view view;

    q.allow_tried_d = allow_tried_d;
    if (core_eligible_mark(core, &q).d_count == 0)
        return BT_NO_WORKER;
    core_view_build(core, &q, &view);
    if (core_plain_choose(core, &view, &placement) != BT_OK)
        return BT_NO_WORKER;
    placement.reason = reason;
    keep_two(r, &placement);
    commit(core, r, &placement);
    core_overlap_note(core, r, &q, placement.chosen.d);
    return BT_OK;
}

/* First token of KV that already lies on p: transfer and slot in parallel. */
static int64_t handoff_total(const struct bt_place_terms *terms)
{
    int64_t wait = terms->transfer_ns > terms->slot_ns ? terms->transfer_ns
                                                       : terms->slot_ns;

    return wait >= BT_COST_INFINITE - terms->step_ns ? BT_COST_INFINITE
                                                     : wait + terms->step_ns;
}

static void handoff_choose(const struct bt_core *core,
                           const struct bt_place_view *view, uint32_t p,
                           struct bt_placement *out)
{
    struct bt_place_candidate c = {.p = p};
    bool avoid = false;

    placement_open(out);
    for (uint32_t d = 0; d < view->worker_count; d++) {
        if (view->workers[d].decode_ok && d != p &&
            !core_pair_is_suspect(core, p, d))
            avoid = true;
    }
    for (c.d = 0; c.d < view->worker_count; c.d++) {
        if (!view->workers[c.d].decode_ok || c.d == p ||
            (avoid && core_pair_is_suspect(core, p, c.d)))
            continue;
        bt_place_terms(view, p, c.d, &c.terms);
        c.terms.queue_ns = c.terms.prefill_ns = 0;
        c.terms.arrival_ns = c.terms.transfer_ns;
        c.terms.total_ns = handoff_total(&c.terms);
        consider(&c, out);
    }
}

enum bt_status core_place_handoff(struct bt_core *core, struct request *r)
{
    struct place_query q = core_query_of(core, r);
    struct bt_worker_id p = r->p;
    struct bt_placement placement;
    struct bt_place_view view;

    assert(!bt_worker_is_none(p));
    if (core_eligible_mark(core, &q).d_count == 0)
        return BT_NO_WORKER;
    /* p may be suspect or draining by now: its blocks are still there. */
    core->marks[bt_worker_slot(p)] |= (unsigned char)BT_ROLE_PREFILL;
    core_view_build(core, &q, &view);
    handoff_choose(core, &view, bt_worker_slot(p), &placement);
    if (placement.chosen.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    placement.reason = BT_REASON_RETRY;
    keep_two(r, &placement);
    commit(core, r, &placement);
    bt_ledger_prefill_done(core->ledger, &r->booking, core->now_ns);
    return BT_OK;
}
