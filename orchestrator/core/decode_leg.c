/* How leg D went and what follows a failure.
 *
 *   bytes went to the client   truncated, never a retry
 *   4xx the client caused      passed on, no retry
 *   refused, with parameters   nobody saw them: another d with the same ones
 *                              while the lease allows, else plain
 *   other, with parameters     d may have pulled and p freed the blocks: never
 *                              the same parameters again; plain to another d,
 *                              or to the same one if it is the only one; the
 *                              pair (p, d) is suspect unless d was only busy
 *   plain                      another d
 *
 * All of it within attempts_max and the retry budget. */
#include "core_internal.h"

#include <assert.h>

static bool status_is_busy(int status)
{
    return status == 408 || status == 409 || status == 425 || status == 429;
}

static bool failure_is_busy(const struct leg_failure *failure)
{
    return failure->how == BT_FAIL_HTTP && status_is_busy(failure->status);
}

bool core_failure_is_client_error(const struct leg_failure *failure)
{
    return failure->how == BT_FAIL_HTTP && failure->status >= 400 &&
           failure->status < 500 && !status_is_busy(failure->status);
}

/* Does it count against the worker? What the client caused or a busy worker
 * answered never does. */
bool core_failure_is_charged(const struct leg_failure *failure)
{
    return failure->how != BT_FAIL_HTTP || failure->status < 400 ||
           failure->status >= 500;
}

int core_failure_status(const struct leg_failure *failure)
{
    if (failure->how == BT_FAIL_TIMEOUT)
        return 504;
    if (failure->how == BT_FAIL_HTTP && failure->status == 429)
        return 429;
    return 502;
}

/* D says it could not load the KV: the pair is at fault, both may serve
 * others. */
static bool failure_is_load(const struct leg_failure *failure)
{
    return failure->how == BT_FAIL_BODY ||
           (failure->how == BT_FAIL_HTTP && core_failure_is_charged(failure));
}

static void charge(struct bt_core *core, const struct request *r,
                   const struct leg_failure *failure)
{
    bool handing = r->with_params && !failure->bytes_sent;

    if (!core_failure_is_charged(failure))
        return;
    if (!handing || !failure_is_load(failure))
        core_worker_failed(core, r->d);
    if (handing && failure->how != BT_FAIL_REFUSED)
        core_pair_suspect(core, r->p, r->d);
}

static bool another_try(struct bt_core *core, const struct request *r,
                        bool allow_tried_d)
{
    struct place_query q = core_query_of(core, r);

    q.allow_tried_d = allow_tried_d;
    return r->record.attempt_count < core->config.attempts_max &&
           core_eligible_mark(core, &q).d_count > 0 && core_budget_take(core);
}

static void give_up(struct bt_core *core, struct request *r,
                    const struct leg_failure *failure, struct bt_effects *fx)
{
    core_handoff_abandon(core, r, fx);
    core_request_finish(core, r, BT_OUTCOME_UPSTREAM_ERROR,
                        core_failure_status(failure), fx);
}

static void retry_plain(struct bt_core *core, struct request *r,
                        enum bt_fallback fallback, bool allow_tried_d,
                        struct bt_effects *fx)
{
    enum bt_status status =
        core_place_plain(core, r, BT_REASON_RETRY, allow_tried_d);

    assert(status == BT_OK); /* another_try() saw one */
    if (fallback != BT_FALLBACK_NONE)
        core_record_fallback(core, r, fallback);
    core_send_decode(core, r, false, fx);
}

/* Nobody saw the parameters. */
static void retry_refused(struct bt_core *core, struct request *r,
                          const struct leg_failure *failure,
                          struct bt_effects *fx)
{
    bool usable = core_handoff_is_usable(core, r);
    bool restarted = !core_worker_is_current(core, r->p);

    if (!another_try(core, r, false)) {
        give_up(core, r, failure, fx);
        return;
    }
    if (usable && core_place_handoff(core, r) == BT_OK) {
        core_send_decode(core, r, true, fx);
        return;
    }
    core_handoff_abandon(core, r, fx);
    retry_plain(core, r,
                usable || restarted ? BT_FALLBACK_HANDOFF_FAILED
                                    : BT_FALLBACK_LEASE_EXPIRED,
                false, fx);
}

static void retry_delivered(struct bt_core *core, struct request *r,
                            const struct leg_failure *failure,
                            struct bt_effects *fx)
{
    bool had_params = r->with_params;
    bool same_d = had_params && !failure_is_busy(failure);

    if (!another_try(core, r, same_d)) {
        give_up(core, r, failure, fx);
        return;
    }
    retry_plain(core, r,
                had_params ? BT_FALLBACK_HANDOFF_FAILED : BT_FALLBACK_NONE,
                same_d, fx);
}

void core_decode_failed(struct bt_core *core, struct request *r,
                        const struct leg_failure *failure,
                        struct bt_effects *fx)
{
    bool refused = r->with_params && failure->how == BT_FAIL_REFUSED;

    charge(core, r, failure);
    core_learn_prefill_end(core, r, false);
    core_hold_kick(core);
    bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
    if (!refused)
        r->handoff_held = false;
    if (failure->bytes_sent)
        core_request_finish(core, r, BT_OUTCOME_TRUNCATED, 502, fx);
    else if (core_failure_is_client_error(failure))
        core_request_finish(core, r, BT_OUTCOME_CLIENT_ERROR, failure->status,
                            fx);
    else if (refused)
        retry_refused(core, r, failure, fx);
    else
        retry_delivered(core, r, failure, fx);
}

/* The request whose leg D this is about, or NULL: late. */
static struct request *find_decoding(struct bt_core *core,
                                     const struct bt_ev_progress *ev)
{
    struct request *r = core_request_find(core, ev->request);

    if (r != NULL && r->leg_out && r->leg == BT_LEG_DECODE &&
        r->attempt == ev->attempt)
        return r;
    core->counters.late_events++;
    return NULL;
}

static void first_token(struct bt_core *core, struct request *r)
{
    r->record.first_token_ns = core->now_ns;
    r->handoff_held = false;
    core_worker_succeeded(core, r->d, r->sent_ns);
    core_learn_first_token(core, r);
    core_learn_total(core, r);
    if (r->booking.prefill_held) {
        core_learn_prefill_end(core, r, true);
        core_hold_kick(core);
    }
    bt_ledger_prefill_done(core->ledger, &r->booking, core->now_ns);
    bt_ledger_transfer_done(core->ledger, &r->booking, core->now_ns);
    if (r->state == BT_REQUEST_HANDING_OFF)
        core_request_move(core, r, BT_REQUEST_DECODING);
    core_timers_note(core, r);
}

static void note_tokens(struct bt_core *core, struct request *r,
                        uint32_t tokens)
{
    if (tokens > r->record.output_tokens)
        r->record.output_tokens = tokens;
    if (tokens >= 2 && r->record.second_token_ns == 0) {
        r->record.second_token_ns = core->now_ns;
        if (tokens == 2)
            core_learn_second_token(core, r);
    }
}

/* FIRST_TOKEN (first) or TOKENS. A shell that missed the first one may start
 * with TOKENS; zero tokens only show that the stream lives. */
enum bt_status core_progress_event(struct bt_core *core,
                                   const struct bt_ev_progress *ev, bool first)
{
    struct request *r = find_decoding(core, ev);

    if (r == NULL)
        return BT_STALE;
    if (first && r->record.first_token_ns != 0) {
        core->counters.late_events++;
        return BT_STALE;
    }
    r->progress_ns = core->now_ns;
    if ((first || ev->tokens > 0) && r->record.first_token_ns == 0)
        first_token(core, r);
    note_tokens(core, r, ev->tokens);
    return BT_OK;
}

enum bt_status core_decode_done_event(struct bt_core *core,
                                      const struct bt_ev_progress *ev,
                                      struct bt_effects *fx)
{
    struct request *r = find_decoding(core, ev);

    if (r == NULL)
        return BT_STALE;
    r->handoff_held = false;
    core_worker_succeeded(core, r->d, r->sent_ns);
    core_record_attempt_end(core, r, true, BT_FAIL_REFUSED, 200);
    if (ev->tokens > r->record.output_tokens)
        r->record.output_tokens = ev->tokens;
    r->record.decode_cached_tokens = ev->cached_tokens;
    if (bt_worker_is_none(r->p)) /* it has prefilled too */
        core_credit_check(core, r, r->d, ev->cached_tokens);
    core_learn_output(core, r);
    core_request_finish(core, r, BT_OUTCOME_OK, 200, fx);
    return BT_OK;
}

enum bt_status core_leg_failed_event(struct bt_core *core,
                                     const struct bt_ev_leg_failed *ev,
                                     struct bt_effects *fx)
{
    struct request *r = core_request_find(core, ev->request);
    struct leg_failure failure = {
        .how = ev->how, .status = ev->status, .bytes_sent = ev->bytes_sent};

    if (r == NULL || !r->leg_out || r->leg != ev->leg ||
        r->attempt != ev->attempt) {
        core->counters.late_events++;
        return BT_STALE;
    }
    core_record_attempt_end(core, r, false, ev->how, ev->status);
    if (ev->leg == BT_LEG_PREFILL)
        core_prefill_failed(core, r, &failure, fx);
    else
        core_decode_failed(core, r, &failure, fx);
    return BT_OK;
}
