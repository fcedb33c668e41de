/* Limits on every phase, looked at on each tick (0 switches one off):
 *
 *   queued       queue_timeout from acceptance
 *   prefilling   prefill_timeout from sending leg P
 *   handing_off  handoff_timeout from sending leg D to its first token
 *   decoding     plain, no token yet: prefill + handoff timeout (d prefills);
 *                with tokens: idle_stream_timeout from the last sign of life
 *
 * An answer that comes in one piece (whole_answer) shows no tokens: its leg D
 * gets the first limit plus idle_stream_timeout plus four times the predicted
 * decode time of max_tokens, at most an hour (an hour if max_tokens is not
 * given). A leg past its limit is aborted and treated as timed out. The scan
 * is bounded by the live requests and stops when the effects are full: what
 * is left is found by the next tick.
 *
 * Invariant: core->deadline_ns is not after any live request's limit. Signs of
 * life only move a limit back, so that a tick before it has nothing to do. */
#include "core_internal.h"

#include <assert.h>

static int64_t answer_limit(const struct request *r, int64_t base_ns,
                            int64_t idle_ns)
{
    int64_t step = r->record.placement.chosen.terms.step_ns;
    int64_t decode;

    if (r->ask.max_tokens == 0 || step >= ANSWER_MAX_NS ||
        __builtin_mul_overflow(4 * step, (int64_t)r->ask.max_tokens, &decode) ||
        decode > ANSWER_MAX_NS - base_ns - idle_ns)
        return ANSWER_MAX_NS;
    return base_ns + idle_ns + decode;
}

/* Time allowed since leg D was sent; 0: none. */
static int64_t first_token_limit(const struct bt_core *core,
                                 const struct request *r)
{
    int64_t limit = core->config.handoff_timeout_ns;

    if (limit == 0)
        return 0;
    if (!r->with_params)
        limit += core->config.prefill_timeout_ns;
    if (r->ask.whole_answer)
        limit = answer_limit(r, limit, core->config.idle_stream_timeout_ns);
    return limit;
}

/* from + limit; never when there is no limit. */
static int64_t after(int64_t from_ns, int64_t limit_ns)
{
    return limit_ns == 0 ? INT64_MAX : from_ns + limit_ns;
}

static int64_t decode_deadline(const struct bt_core *core,
                               const struct request *r)
{
    if (r->record.first_token_ns != 0)
        return after(r->progress_ns, core->config.idle_stream_timeout_ns);
    return after(r->sent_ns, first_token_limit(core, r));
}

static int64_t deadline_of(const struct bt_core *core, const struct request *r)
{
    const struct bt_core_config *config = &core->config;

    switch (r->state) {
    case BT_REQUEST_QUEUED:
        return after(r->record.received_ns, config->queue_timeout_ns);
    case BT_REQUEST_PREFILLING:
        return after(r->sent_ns, config->prefill_timeout_ns);
    case BT_REQUEST_HANDING_OFF:
    case BT_REQUEST_DECODING:
        return decode_deadline(core, r);
    case BT_REQUEST_RECEIVED:
    case BT_REQUEST_PLACED:
    case BT_REQUEST_DONE:
    case BT_REQUEST_FAILED:
    case BT_REQUEST_CANCELLED:
    case BT_REQUEST_SHED:
    case BT_REQUEST_STATE_COUNT:
        break;
    }
    return INT64_MAX;
}

void core_timers_note(struct bt_core *core, const struct request *r)
{
    int64_t deadline = deadline_of(core, r);

    if (deadline < core->deadline_ns)
        core->deadline_ns = deadline;
}

static void expire_queued(struct bt_core *core, struct request *r,
                          struct bt_effects *fx)
{
    struct place_query q = core_query_of(core, r);
    bool somebody = core_eligible_mark(core, &q).d_count > 0;

    core_request_finish(core, r,
                        somebody ? BT_OUTCOME_DEADLINE : BT_OUTCOME_NO_WORKER,
                        503, fx);
}

static void expire_leg(struct bt_core *core, struct request *r,
                       struct bt_effects *fx)
{
    struct leg_failure failure = {
        .how = BT_FAIL_TIMEOUT,
        .bytes_sent = r->record.first_token_ns != 0,
    };

    core_leg_abort(core, r, fx);
    core_record_attempt_end(core, r, false, BT_FAIL_TIMEOUT, 0);
    if (r->leg == BT_LEG_PREFILL)
        core_prefill_failed(core, r, &failure, fx);
    else
        core_decode_failed(core, r, &failure, fx);
}

static void expire(struct bt_core *core, struct request *r,
                   struct bt_effects *fx)
{
    if (r->state == BT_REQUEST_QUEUED)
        expire_queued(core, r, fx);
    else
        expire_leg(core, r, fx);
}

/* What a leg that expires sends instead is noted as it is sent. */
void core_timers_scan(struct bt_core *core, struct bt_effects *fx)
{
    uint32_t slot = core->live_first;

    if (core->now_ns < core->deadline_ns)
        return;
    core->deadline_ns = INT64_MAX;
    while (slot != NO_SLOT && core_effects_room(fx) >= UNIT_EFFECTS) {
        struct request *r = &core->requests[slot];

        slot = r->live_next;
        if (deadline_of(core, r) <= core->now_ns)
            expire(core, r, fx);
        else
            core_timers_note(core, r);
    }
    if (slot != NO_SLOT)
        core->deadline_ns = core->now_ns;
}
