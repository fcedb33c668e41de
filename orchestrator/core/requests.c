/* The pool of requests: slots with generations and the list of live ones in
 * order of acceptance. A slot given back goes to the end of the free ring, so
 * its record stays readable at least until the next step and late events for
 * it are told apart for as long as possible.
 * Invariant: live_count + free_count == requests_max. */
#include "core_internal.h"

#include <assert.h>
#include <string.h>

uint32_t core_request_slot_of(const struct bt_core *core,
                              const struct request *r)
{
    return (uint32_t)(r - core->requests);
}

struct bt_request_id core_request_id_of(const struct bt_core *core,
                                        const struct request *r)
{
    return bt_request_id_make(core_request_slot_of(core, r), r->generation);
}

struct request *core_request_find(struct bt_core *core, struct bt_request_id id)
{
    uint32_t slot = bt_request_slot(id);
    struct request *r;

    if (slot >= core->config.requests_max)
        return NULL;
    r = &core->requests[slot];
    if (!r->live || r->generation != bt_request_generation(id))
        return NULL;
    return r;
}

static void link_live(struct bt_core *core, struct request *r, uint32_t slot)
{
    r->live_prev = core->live_last;
    r->live_next = NO_SLOT;
    if (core->live_last == NO_SLOT)
        core->live_first = slot;
    else
        core->requests[core->live_last].live_next = slot;
    core->live_last = slot;
    core->live_count++;
}

static void unlink_live(struct bt_core *core, struct request *r)
{
    if (r->live_prev == NO_SLOT)
        core->live_first = r->live_next;
    else
        core->requests[r->live_prev].live_next = r->live_next;
    if (r->live_next == NO_SLOT)
        core->live_last = r->live_prev;
    else
        core->requests[r->live_next].live_prev = r->live_prev;
    core->live_count--;
}

struct request *core_request_take(struct bt_core *core)
{
    struct request *r;
    uint32_t slot, generation;

    if (core->free_count == 0)
        return NULL;
    slot = core->free_slots[core->free_head];
    core->free_head = (core->free_head + 1) % core->config.requests_max;
    core->free_count--;
    r = &core->requests[slot];
    generation = r->generation + 1;
    if (generation == 0)
        generation = 1;
    memset(r, 0, sizeof(*r));
    r->generation = generation;
    r->live = true;
    r->state = BT_REQUEST_RECEIVED;
    r->queue_prev = r->queue_next = NO_SLOT;
    link_live(core, r, slot);
    core->counters.live[BT_REQUEST_RECEIVED]++;
    return r;
}

void core_request_give(struct bt_core *core, struct request *r)
{
    uint32_t max = core->config.requests_max;
    uint32_t tail = (core->free_head + core->free_count) % max;

    assert(r->live && !core_request_state_is_live(r->state));
    assert(core->free_count < max);
    unlink_live(core, r);
    r->live = false;
    core->free_slots[tail] = core_request_slot_of(core, r);
    core->free_count++;
}
