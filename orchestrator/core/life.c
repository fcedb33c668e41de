/* The two ends of a request: acceptance with its first placement, and the one
 * FINISHED. Retries and fallbacks are the legs' files.
 *
 * Accepted means: it has an id, it is counted, and it will end. It is placed
 * at once when a decode worker can take it and the policy does not hold it
 * back, else it waits in the queue; one that no registered worker could ever
 * hold, or that the policy refuses, is answered at once. */
#include "core_internal.h"

#include <assert.h>

static bool is_short(const struct bt_core *core, const struct request *r)
{
    return r->prompt_tokens < core->config.pd_min_tokens ||
           r->prompt_tokens < core->config.models[r->ask.model].block_tokens;
}

static enum bt_status place_first(struct bt_core *core, struct request *r)
{
    bool may_hold = core->config.hold.enabled;
    enum bt_status status;

    if (!r->ask.pd_allowed)
        return core_place_plain(core, r, BT_REASON_UNSUPPORTED, false);
    if (is_short(core, r))
        return core_place_plain(core, r, BT_REASON_SHORT_PROMPT, false);
    status = core_place_pair(core, r, may_hold);
    if (status != BT_NO_WORKER || core->config.pd_required)
        return status;
    status = core_place_plain(core, r, BT_REASON_NO_PREFILL, false);
    if (status == BT_OK)
        core_record_fallback(core, r, BT_FALLBACK_NO_PREFILL);
    return status;
}

enum bt_status core_request_dispatch(struct bt_core *core, struct request *r,
                                     struct bt_effects *fx)
{
    struct place_query q = core_query_of(core, r);
    bool queued = r->state == BT_REQUEST_QUEUED;
    enum bt_status status;

    if (core_eligible_mark(core, &q).d_count == 0) {
        if (core_decode_may_ever_fit(core, &q))
            return BT_AGAIN;
        core_request_finish_unplaced(core, r, fx);
        return BT_OK;
    }
    status = place_first(core, r);
    if (status == BT_AGAIN) {
        if (queued)
            core_prefetch(core, r, fx);
        return BT_AGAIN;
    }
    if (status != BT_OK) {
        if (status == BT_OVERLOADED)
            core_request_finish(core, r, BT_OUTCOME_SHED, 429, fx);
        else
            core_request_finish_unplaced(core, r, fx);
        return BT_OK;
    }
    if (queued)
        core_queue_remove(core, r);
    core_send_placed(core, r, fx);
    return BT_OK;
}

enum bt_status core_request_event(struct bt_core *core,
                                  const struct bt_ev_request *ev,
                                  struct bt_effects *fx)
{
    struct request *r;

    if (ev->model >= core->config.model_count ||
        (ev->key_count != 0 && ev->keys == NULL))
        return BT_INVALID;
    /* Those that waited longer are asked first. */
    if (core->free_count > 0)
        core_hold_drain(core, fx, UNIT_EFFECTS);
    r = core_request_take(core);
    if (r == NULL)
        return BT_LIMIT;
    core->counters.requests++;
    core_budget_request(&core->budget);
    r->ask = *ev;
    r->prompt_tokens = ev->prompt_tokens == 0 ? 1 : ev->prompt_tokens;
    r->output_tokens = core_expected_output(core, ev->model, ev->max_tokens);
    r->number = ++core->accepted;
    core_record_open(core, r);
    (void)core_effect_add(core, fx, BT_FX_ACCEPTED, r);
    if (core_request_dispatch(core, r, fx) != BT_AGAIN)
        return BT_OK;
    if (core_queue_push(core, r))
        core_prefetch(core, r, fx);
    else
        core_request_finish(core, r, BT_OUTCOME_SHED, 429, fx);
    return BT_OK;
}

static enum bt_request_state final_state(enum bt_outcome outcome)
{
    switch (outcome) {
    case BT_OUTCOME_OK:
        return BT_REQUEST_DONE;
    case BT_OUTCOME_CANCELLED:
        return BT_REQUEST_CANCELLED;
    case BT_OUTCOME_SHED:
        return BT_REQUEST_SHED;
    case BT_OUTCOME_CLIENT_ERROR:
    case BT_OUTCOME_UPSTREAM_ERROR:
    case BT_OUTCOME_TRUNCATED:
    case BT_OUTCOME_NO_WORKER:
    case BT_OUTCOME_DEADLINE:
    case BT_OUTCOME_COUNT:
        break;
    }
    return BT_REQUEST_FAILED;
}

void core_request_finish(struct bt_core *core, struct request *r,
                         enum bt_outcome outcome, int status,
                         struct bt_effects *fx)
{
    struct bt_effect *effect;

    assert(outcome < BT_OUTCOME_COUNT);
    assert(!r->leg_out);
    if (r->state == BT_REQUEST_QUEUED)
        core_queue_remove(core, r);
    core_hold_forget(core, r); /* the queue was full */
    core_learn_prefill_end(core, r, false);
    core_prefetch_end(core, r, NO_SLOT);
    bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
    core_hold_kick(core);
    r->record.phase = r->state;
    r->record.outcome = outcome;
    r->record.status = status;
    r->record.finished_ns = core->now_ns;
    core_request_move(core, r, final_state(outcome));
    core->counters.outcomes[outcome]++;
    effect = core_effect_add(core, fx, BT_FX_FINISHED, r);
    effect->decision = &r->record;
    core_request_give(core, r);
}

void core_request_finish_unplaced(struct bt_core *core, struct request *r,
                                  struct bt_effects *fx)
{
    core_request_finish(core, r, BT_OUTCOME_NO_WORKER, 503, fx);
}

enum bt_status core_client_gone_event(struct bt_core *core,
                                      struct bt_request_id id,
                                      struct bt_effects *fx)
{
    struct request *r = core_request_find(core, id);

    if (r == NULL) {
        core->counters.late_events++;
        return BT_STALE;
    }
    if (r->leg_out) {
        core_leg_abort(core, r, fx);
        core_record_attempt_end(core, r, false, BT_FAIL_RESET, 499);
    }
    core_request_finish(core, r, BT_OUTCOME_CANCELLED, 499, fx);
    return BT_OK;
}
