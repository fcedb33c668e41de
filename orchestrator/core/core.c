/* The step function. An event is checked here, given to the file that knows
 * its subject, and that is all; every rule is elsewhere (README.md has the
 * map), and so is the memory (setup.c).
 *
 * Invariants between steps: requests == sum of outcomes + live requests; each
 * live request is queued or has exactly one leg out; the ledger holds only
 * what live requests hold. */
#include "core_internal.h"

#include <assert.h>

static enum bt_status stats_event(struct bt_core *core,
                                  const struct bt_ev_worker_stats *ev)
{
    struct worker *w;

    if (ev->worker >= core->config.worker_count)
        return BT_INVALID;
    w = &core->workers[ev->worker];
    w->running = ev->running;
    w->waiting = ev->waiting;
    w->kv_usage = ev->kv_usage;
    w->stats_at_ns = core->now_ns;
    return BT_OK;
}

static enum bt_status dispatch(struct bt_core *core,
                               const struct bt_event *event,
                               struct bt_effects *fx)
{
    enum bt_status status;

    switch (event->type) {
    case BT_EV_TICK:
        core_guess_expire(core);
        core_timers_scan(core, fx);
        core_queue_drain(core, fx);
        core_hold_kick(core);
        return BT_OK;
    case BT_EV_WORKER_STATE:
        status = core_worker_state_event(core, &event->u.worker_state);
        if (status == BT_OK && event->u.worker_state.state == BT_WORKER_READY) {
            core_queue_drain(core, fx);
            core_hold_kick(core);
        }
        return status;
    case BT_EV_WORKER_STATS:
        return stats_event(core, &event->u.worker_stats);
    case BT_EV_KV_STORE:
    case BT_EV_KV_REMOVE:
    case BT_EV_KV_CLEAR:
    case BT_EV_KV_STREAM:
    case BT_EV_KV_COUNTING:
        return core_kv_event(core, event);
    case BT_EV_REQUEST:
        return core_request_event(core, &event->u.request, fx);
    case BT_EV_CLIENT_GONE:
        return core_client_gone_event(core, event->u.client_gone, fx);
    case BT_EV_PREFILL_DONE:
        return core_prefill_done_event(core, &event->u.prefill_done, fx);
    case BT_EV_LEG_FAILED:
        return core_leg_failed_event(core, &event->u.leg_failed, fx);
    case BT_EV_FIRST_TOKEN:
        return core_progress_event(core, &event->u.progress, true);
    case BT_EV_TOKENS:
        return core_progress_event(core, &event->u.progress, false);
    case BT_EV_DECODE_DONE:
        return core_decode_done_event(core, &event->u.progress, fx);
    }
    return BT_INVALID;
}

/* A clock that steps back is held at the latest time seen. */
enum bt_status bt_core_step(struct bt_core *core, const struct bt_event *event,
                            struct bt_effects *effects)
{
    enum bt_status status;

    assert(effects->count <= effects->capacity);
    assert(core_effects_room(effects) >= UNIT_EFFECTS);
    if (event->now_ns > core->now_ns)
        core->now_ns = event->now_ns;
    core->guess_now_ns = core->now_ns;
    core_learn_age(core);
    core_credit_age(core);
    status = dispatch(core, event, effects);
    if (status == BT_OK)
        core_hold_drain(core, effects, 0);
    return status;
}

const struct bt_core_counters *bt_core_counters_get(const struct bt_core *core)
{
    return &core->counters;
}

const struct bt_network *bt_core_network(const struct bt_core *core)
{
    return core->network;
}

bool bt_core_is_idle(const struct bt_core *core)
{
    return core->live_count == 0 && bt_ledger_is_empty(core->ledger) &&
           (core->network == NULL || bt_network_is_empty(core->network));
}
