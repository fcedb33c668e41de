/* How leg P ended and what follows.
 *
 *   answer with parameters     leg D with them, on the d chosen and booked
 *   answer without             once another p, then plain to a d
 *   4xx the client caused      passed on, no retry
 *   anything else              another p within attempts and budget, then
 *                              plain to a d, or an error if pd_required
 *
 * Parameters of a p that has restarted since are not used: its blocks are
 * gone. A plain leg D after a failed leg P is not a retry: it is the leg D
 * that was due anyway. */
#include "core_internal.h"

#include <assert.h>

static uint32_t attempts_left(const struct bt_core *core,
                              const struct request *r)
{
    uint32_t used = r->record.attempt_count;

    return used < core->config.attempts_max ? core->config.attempts_max - used
                                            : 0;
}

static bool other_pair_exists(const struct bt_core *core,
                              const struct request *r)
{
    struct place_query q = core_query_of(core, r);
    struct eligible found = core_eligible_mark(core, &q);

    return found.p_count > 0 && found.d_count > 0;
}

/* Another p, if attempts (one is kept for leg D) and budget allow. */
static bool retry_prefill(struct bt_core *core, struct request *r,
                          struct bt_effects *fx)
{
    if (attempts_left(core, r) < 2 || !other_pair_exists(core, r) ||
        !core_budget_take(core))
        return false;
    if (core_place_pair(core, r, false) != BT_OK)
        return false;
    core_send_placed(core, r, fx);
    return true;
}

static bool fall_back(struct bt_core *core, struct request *r,
                      enum bt_fallback fallback, struct bt_effects *fx)
{
    if (attempts_left(core, r) < 1 ||
        core_place_plain(core, r, BT_REASON_RETRY, false) != BT_OK)
        return false;
    core_record_fallback(core, r, fallback);
    core_send_decode(core, r, false, fx);
    return true;
}

static void without_params(struct bt_core *core, struct request *r,
                           struct bt_effects *fx)
{
    uint32_t block = core->config.models[r->ask.model].block_tokens;
    bool first = !r->no_params_seen;

    r->no_params_seen = true;
    bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
    if (first && r->prompt_tokens >= block && retry_prefill(core, r, fx))
        return;
    if (!fall_back(core, r, BT_FALLBACK_NO_PARAMS, fx))
        core_request_finish_unplaced(core, r, fx);
}

static bool booked_d_is_up(const struct bt_core *core, const struct request *r)
{
    enum bt_worker_state state = core->workers[bt_worker_slot(r->d)].state;

    return state == BT_WORKER_READY || state == BT_WORKER_DRAINING;
}

/* d was chosen before leg P; one that went down since is replaced if another
 * is there, else tried all the same. One that is up may still give way to a
 * better one where engine and policy allow it (handoff.c). */
static void hand_off(struct bt_core *core, struct request *r,
                     struct bt_effects *fx)
{
    struct place_query q = core_query_of(core, r);

    r->handoff_held = true;
    if (!booked_d_is_up(core, r) && core_eligible_mark(core, &q).d_count > 0) {
        bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
        if (core_place_handoff(core, r) == BT_OK) {
            core_send_decode(core, r, true, fx);
            return;
        }
        core_handoff_abandon(core, r, fx);
        if (!fall_back(core, r, BT_FALLBACK_HANDOFF_FAILED, fx))
            core_request_finish_unplaced(core, r, fx);
        return;
    }
    r->d = core_worker_id_of(core, bt_worker_slot(r->d));
    core_handoff_reconsider(core, r);
    core_learn_handoff(core, r);
    core_send_decode(core, r, true, fx);
}

/* A late answer that carries parameters leaves blocks held on p, unless it
 * repeats one that was used. Of an older request in the slot nothing is known:
 * counted. An id that never was is not. */
static enum bt_status late_answer(struct bt_core *core,
                                  const struct bt_ev_prefill_done *ev)
{
    uint32_t slot = bt_request_slot(ev->request);
    uint32_t generation = bt_request_generation(ev->request);
    const struct request *r;
    bool was_used = false;

    core->counters.late_events++;
    if (!ev->has_params || slot >= core->config.requests_max)
        return BT_STALE;
    r = &core->requests[slot];
    if (generation == 0 || generation > r->generation)
        return BT_STALE;
    if (generation == r->generation) {
        if (ev->attempt == 0 || ev->attempt > r->record.attempt_count)
            return BT_STALE;
        if (ev->attempt <= BT_ATTEMPTS_KEPT) {
            const struct bt_attempt *a = &r->record.attempts[ev->attempt - 1];

            was_used = a->ok || a->leg != BT_LEG_PREFILL;
        }
    }
    if (!was_used)
        core->counters.stranded_handoffs++;
    return BT_STALE;
}

enum bt_status core_prefill_done_event(struct bt_core *core,
                                       const struct bt_ev_prefill_done *ev,
                                       struct bt_effects *fx)
{
    struct request *r = core_request_find(core, ev->request);

    if (r == NULL || !r->leg_out || r->leg != BT_LEG_PREFILL ||
        r->attempt != ev->attempt)
        return late_answer(core, ev);
    core_record_attempt_end(core, r, true, BT_FAIL_REFUSED, 200);
    core_worker_succeeded(core, r->p, r->sent_ns);
    r->record.prefill_done_ns = core->now_ns;
    r->record.prefill_cached_tokens = ev->cached_tokens;
    core_credit_check(core, r, r->p, ev->cached_tokens);
    core_learn_prefill(core, r, ev);
    core_learn_prefill_end(core, r, true);
    bt_ledger_prefill_done(core->ledger, &r->booking, core->now_ns);
    core_hold_kick(core);
    if (!ev->has_params) {
        without_params(core, r, fx);
    } else if (core_worker_is_current(core, r->p)) {
        hand_off(core, r, fx);
    } else {
        bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
        if (!fall_back(core, r, BT_FALLBACK_HANDOFF_FAILED, fx))
            core_request_finish_unplaced(core, r, fx);
    }
    return BT_OK;
}

void core_prefill_failed(struct bt_core *core, struct request *r,
                         const struct leg_failure *failure,
                         struct bt_effects *fx)
{
    if (core_failure_is_charged(failure))
        core_worker_failed(core, r->p);
    core_learn_prefill_end(core, r, false);
    core_hold_kick(core);
    bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
    if (core_failure_is_client_error(failure)) {
        core_request_finish(core, r, BT_OUTCOME_CLIENT_ERROR, failure->status,
                            fx);
        return;
    }
    if (retry_prefill(core, r, fx))
        return;
    if (!core->config.pd_required &&
        fall_back(core, r, BT_FALLBACK_PREFILL_FAILED, fx))
        return;
    core_request_finish(core, r, BT_OUTCOME_UPSTREAM_ERROR,
                        core_failure_status(failure), fx);
}
