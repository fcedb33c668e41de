/* Requests that wait, bounded by queue_max: those that nobody can take yet and
 * those that the policy holds back. The former are tried first in first out
 * when a worker becomes ready and at each tick; one that still finds nobody
 * keeps its place and does not block those behind it (they may be for another
 * model). The latter are hold.c's; time-outs are timers.c's. */
#include "core_internal.h"

#include <assert.h>

bool core_queue_push(struct bt_core *core, struct request *r)
{
    uint32_t slot = core_request_slot_of(core, r);

    if (core->queue_count >= core->config.queue_max)
        return false;
    core_request_move(core, r, BT_REQUEST_QUEUED);
    r->queue_prev = core->queue_last;
    r->queue_next = NO_SLOT;
    if (core->queue_last == NO_SLOT)
        core->queue_first = slot;
    else
        core->requests[core->queue_last].queue_next = slot;
    core->queue_last = slot;
    core->queue_count++;
    core_timers_note(core, r);
    if (core->config.hold.enabled)
        bt_fairness_enter(&core->fairness, r->ask.tenant, core->now_ns);
    return true;
}

void core_queue_remove(struct bt_core *core, struct request *r)
{
    assert(core->queue_count > 0);
    if (r->queue_prev == NO_SLOT)
        core->queue_first = r->queue_next;
    else
        core->requests[r->queue_prev].queue_next = r->queue_next;
    if (r->queue_next == NO_SLOT)
        core->queue_last = r->queue_prev;
    else
        core->requests[r->queue_next].queue_prev = r->queue_prev;
    r->queue_prev = r->queue_next = NO_SLOT;
    core->queue_count--;
    core_hold_forget(core, r);
    if (core->config.hold.enabled)
        bt_fairness_leave(&core->fairness, r->ask.tenant);
}

/* At most queue_count dispatches; stops early when the effects are full. */
void core_queue_drain(struct bt_core *core, struct bt_effects *fx)
{
    uint32_t slot = core->queue_first;

    if (core->held_count == core->queue_count)
        return;
    while (slot != NO_SLOT && core_effects_room(fx) >= UNIT_EFFECTS) {
        struct request *r = &core->requests[slot];
        uint32_t next = r->queue_next;

        if (!r->held)
            (void)core_request_dispatch(core, r, fx);
        slot = next;
    }
}
