/* The decision record of a request: one per request on every path, no prompt
 * text, no token ids. It tells the placement that was last used, how often it
 * was chosen, and the first BT_ATTEMPTS_KEPT legs. A leg that ended because
 * its client left or its request did is kept as not ok, reset, status 499. */
#include "core_internal.h"

#include <assert.h>

void core_record_open(struct bt_core *core, struct request *r)
{
    const struct bt_ev_request *ask = &r->ask;
    struct bt_placement none = {
        .chosen = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .second = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .baseline = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
    };

    r->record = (struct bt_decision){
        .provisional = none.chosen,
        .tenant = ask->tenant,
        .priority = ask->priority,
        .ttft_slo_ns = core_ttft_slo_ns(core, ask->model, r->prompt_tokens),
        .cookie = ask->cookie,
        .request = core_request_id_of(core, r),
        .ns = ask->ns,
        .model = ask->model,
        .prompt_tokens = ask->prompt_tokens,
        .max_tokens = ask->max_tokens,
        .body_bytes = ask->body_bytes,
        .tokens_known = ask->tokens_known,
        .index_state = BT_STREAM_ABSENT,
        .index_cause = BT_CAUSE_NO_EVENTS,
        .credit = 1,
        .policy = core->config.policy,
        .placement = none,
        .received_ns = core->now_ns,
        .tokenize_ns = ask->tokenize_ns,
    };
}

void core_record_placement(struct bt_core *core, struct request *r,
                           const struct bt_placement *placement)
{
    const struct bt_place_candidate *chosen = &placement->chosen;
    const struct bt_place_candidate *baseline = &placement->baseline;
    struct bt_decision *record = &r->record;

    record->placement = *placement;
    record->reason = placement->reason;
    record->index_state = core_view_worst_stream(core, &record->index_cause);
    record->placements++;
    if (record->placed_ns == 0)
        record->placed_ns = core->now_ns;
    record->first_token_ns = record->second_token_ns = 0;
    assert(placement->reason < BT_REASON_COUNT);
    core->counters.decisions[placement->reason]++;
    if (placement->reason == BT_REASON_GUARD)
        core->counters.guard_kept_baseline++;
    if (baseline->d != BT_PLACE_NONE &&
        (baseline->p != chosen->p || baseline->d != chosen->d))
        core->counters.differs_from_baseline++;
}

static int64_t sum_terms(int64_t a, int64_t b)
{
    return a >= BT_COST_INFINITE - b ? BT_COST_INFINITE : a + b;
}

static int64_t longer(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The hand-off goes to another d. What was predicted of the prefill stays; what
 * concerns d is the new prediction, which counts from now and is moved to count
 * from the placement like the rest:
 *
 *   arrival = max(queue, fetch) + prefill + new transfer
 *   slot    = new slot + time since the placement
 *   total   = max(arrival, slot) + new step
 */
void core_record_handoff(struct bt_core *core, struct request *r,
                         const struct bt_place_candidate *c)
{
    struct bt_place_candidate *chosen = &r->record.placement.chosen;
    struct bt_place_terms *t = &chosen->terms;
    int64_t since_ns = core->now_ns - r->record.prefill_sent_ns;

    r->record.handoff_moved = true;
    chosen->d = c->d;
    t->kv_bytes = c->terms.kv_bytes;
    t->overlap_d = c->terms.overlap_d;
    t->transfer_ns = c->terms.transfer_ns;
    t->slot_ns = sum_terms(c->terms.slot_ns, since_ns);
    t->step_ns = c->terms.step_ns;
    t->arrival_ns = sum_terms(longer(t->queue_ns, t->fetch_ns), t->prefill_ns);
    t->arrival_ns = sum_terms(t->arrival_ns, t->transfer_ns);
    t->total_ns = sum_terms(longer(t->arrival_ns, t->slot_ns), t->step_ns);
    t->price_ns = c->terms.price_ns;
}

void core_record_fallback(struct bt_core *core, struct request *r,
                          enum bt_fallback fallback)
{
    r->record.fallback = fallback;
    core->counters.fallbacks[fallback]++;
}

void core_record_attempt(struct bt_core *core, struct request *r,
                         enum bt_leg leg, struct bt_worker_id worker)
{
    struct bt_decision *record = &r->record;
    uint32_t at = record->attempt_count++;

    assert(!r->leg_out);
    r->leg_out = true;
    r->leg = leg;
    r->attempt = at + 1;
    r->sent_ns = core->now_ns;
    if (leg == BT_LEG_PREFILL)
        record->prefill_sent_ns = core->now_ns;
    else
        record->decode_sent_ns = core->now_ns;
    if (at < BT_ATTEMPTS_KEPT)
        record->attempts[at] = (struct bt_attempt){
            .leg = leg, .worker = worker, .sent_ns = core->now_ns};
}

void core_record_attempt_end(struct bt_core *core, struct request *r, bool ok,
                             enum bt_leg_failure how, int status)
{
    struct bt_attempt *attempt;

    assert(r->leg_out);
    r->leg_out = false;
    if (r->attempt > BT_ATTEMPTS_KEPT)
        return;
    attempt = &r->record.attempts[r->attempt - 1];
    attempt->ended_ns = core->now_ns;
    attempt->ok = ok;
    attempt->how = how;
    attempt->status = status;
}

static uint32_t kept(const struct request *r)
{
    return r->record.attempt_count < BT_ATTEMPTS_KEPT ? r->record.attempt_count
                                                      : BT_ATTEMPTS_KEPT;
}

/* Beyond the kept attempts only the worker of the last placement is known. */
bool core_record_tried(const struct request *r, enum bt_leg leg, uint32_t slot)
{
    struct bt_worker_id last = leg == BT_LEG_PREFILL ? r->p : r->d;

    for (uint32_t i = 0; i < kept(r); i++) {
        if (r->record.attempts[i].leg == leg &&
            bt_worker_slot(r->record.attempts[i].worker) == slot)
            return true;
    }
    return r->record.attempt_count > BT_ATTEMPTS_KEPT && r->leg == leg &&
           !bt_worker_is_none(last) && bt_worker_slot(last) == slot;
}

bool core_record_failed_on(const struct request *r, uint32_t slot)
{
    for (uint32_t i = 0; i < kept(r); i++) {
        const struct bt_attempt *attempt = &r->record.attempts[i];

        if (attempt->ended_ns != 0 && !attempt->ok &&
            bt_worker_slot(attempt->worker) == slot)
            return true;
    }
    return false;
}
