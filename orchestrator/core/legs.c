/* What goes out: the legs, their aborts, and the release of a hand-off that
 * nobody will pull. Every attempt has a number; events must quote it.
 *
 * A hand-off may be used while now < prefill_done + lease - margin and p is
 * still the process that holds the blocks (lease 0: no limit known). Given up
 * before its lease ends it is delivered to a decode worker and closed, which
 * frees p's blocks; with no worker to deliver to it is counted as stranded. */
#include "core_internal.h"

#include <assert.h>

size_t core_effects_room(const struct bt_effects *fx)
{
    return fx->capacity - fx->count;
}

struct bt_effect *core_effect_add(struct bt_core *core, struct bt_effects *fx,
                                  enum bt_effect_type type,
                                  const struct request *r)
{
    struct bt_effect *effect;

    assert(fx->count < fx->capacity);
    effect = &fx->items[fx->count++];
    *effect = (struct bt_effect){
        .type = type,
        .request = core_request_id_of(core, r),
        .cookie = r->ask.cookie,
    };
    return effect;
}

void core_send_prefill(struct bt_core *core, struct request *r,
                       struct bt_effects *fx)
{
    struct bt_effect *effect;

    core_request_move(core, r, BT_REQUEST_PREFILLING);
    core_record_attempt(core, r, BT_LEG_PREFILL, r->p);
    core_timers_note(core, r);
    effect = core_effect_add(core, fx, BT_FX_SEND_PREFILL, r);
    effect->attempt = r->attempt;
    effect->leg = BT_LEG_PREFILL;
    effect->worker = r->p;
    effect->peer = r->d;
    effect->has_rank = r->has_rank;
    effect->rank = r->record.overlap_rank;
    effect->source = r->source;
}

void core_send_decode(struct bt_core *core, struct request *r, bool with_params,
                      struct bt_effects *fx)
{
    struct bt_effect *effect;

    assert(!with_params ||
           (r->handoff_held && core_handoff_is_usable(core, r)));
    core_request_move(
        core, r, with_params ? BT_REQUEST_HANDING_OFF : BT_REQUEST_DECODING);
    core_record_attempt(core, r, BT_LEG_DECODE, r->d);
    r->with_params = with_params;
    r->progress_ns = core->now_ns;
    core_timers_note(core, r);
    effect = core_effect_add(core, fx, BT_FX_SEND_DECODE, r);
    effect->attempt = r->attempt;
    effect->leg = BT_LEG_DECODE;
    effect->worker = r->d;
    effect->with_params = with_params;
    if (!with_params)
        effect->source = r->source;
    else
        core_guess_prompt(core, r, bt_worker_slot(r->d), 0);
    if (with_params)
        effect->transfer_ns = r->record.placement.chosen.terms.transfer_ns;
}

void core_send_placed(struct bt_core *core, struct request *r,
                      struct bt_effects *fx)
{
    if (bt_worker_is_none(r->p))
        core_send_decode(core, r, false, fx);
    else
        core_send_prefill(core, r, fx);
}

/* The attempt stays open in the record: the caller says how it ended. */
void core_leg_abort(struct bt_core *core, struct request *r,
                    struct bt_effects *fx)
{
    struct bt_effect *effect;

    assert(r->leg_out);
    effect = core_effect_add(core, fx, BT_FX_ABORT, r);
    effect->attempt = r->attempt;
    effect->leg = r->leg;
    effect->worker = r->leg == BT_LEG_PREFILL ? r->p : r->d;
}

static bool lease_runs(const struct bt_core *core, const struct request *r,
                       int64_t margin_ns)
{
    if (core->config.lease_ns == 0)
        return true;
    return core->now_ns - r->record.prefill_done_ns <
           core->config.lease_ns - margin_ns;
}

bool core_handoff_is_usable(const struct bt_core *core, const struct request *r)
{
    return core_worker_is_current(core, r->p) &&
           lease_runs(core, r, core->config.lease_margin_ns);
}

static uint32_t release_target(const struct bt_core *core,
                               const struct request *r)
{
    struct place_query q = core_query_of(core, r);

    if (core_eligible_mark(core, &q).d_count == 0)
        return NO_SLOT;
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if ((core->marks[i] & BT_ROLE_DECODE) != 0 && i != bt_worker_slot(r->p))
            return i;
    }
    return NO_SLOT;
}

/* Call before the request is placed anew: r->p is the holder. */
void core_handoff_abandon(struct bt_core *core, struct request *r,
                          struct bt_effects *fx)
{
    struct bt_effect *effect;
    uint32_t target;

    if (!r->handoff_held)
        return;
    r->handoff_held = false;
    if (!core_worker_is_current(core, r->p) || !lease_runs(core, r, 0))
        return;
    target = release_target(core, r);
    if (target == NO_SLOT) {
        core->counters.stranded_handoffs++;
        return;
    }
    effect = core_effect_add(core, fx, BT_FX_RELEASE_HANDOFF, r);
    effect->leg = BT_LEG_DECODE;
    effect->worker = core_worker_id_of(core, target);
    effect->with_params = true;
}
