/* The life of a request as a table: which state may follow which, and what a
 * request in that state waits for. core_request_move() is the only place that
 * changes a state; it asserts the step and keeps the gauges per live state.
 *
 *   received -> queued -> placed -> prefilling -> handing_off -> decoding
 *                           ^           |              |            |
 *                           +-----------+--------------+------------+ retry
 *
 * A retry or a fallback goes through `placed` again: every choice is booked
 * there, within one step.
 */
#include "core_internal.h"

#include <assert.h>

#define BIT(state) (1u << (state))
#define ENDED      (BIT(BT_REQUEST_FAILED) | BIT(BT_REQUEST_CANCELLED))

static const struct {
    enum bt_request_state state;
    const char *name;
    unsigned int next; /* bits of the states that may follow */
    const char *waiting_for;
} table[BT_REQUEST_STATE_COUNT] = {
    {BT_REQUEST_RECEIVED, "received",
     BIT(BT_REQUEST_QUEUED) | BIT(BT_REQUEST_PLACED) | BIT(BT_REQUEST_SHED) |
         ENDED,
     "the first look, same step"},
    {BT_REQUEST_QUEUED, "queued",
     BIT(BT_REQUEST_PLACED) | BIT(BT_REQUEST_SHED) | ENDED,
     "a worker to become ready or free"},
    {BT_REQUEST_PLACED, "placed",
     BIT(BT_REQUEST_PREFILLING) | BIT(BT_REQUEST_HANDING_OFF) |
         BIT(BT_REQUEST_DECODING) | ENDED,
     "the leg to be sent, same step"},
    {BT_REQUEST_PREFILLING, "prefilling",
     BIT(BT_REQUEST_PLACED) | BIT(BT_REQUEST_HANDING_OFF) | ENDED,
     "the answer of leg P"},
    {BT_REQUEST_HANDING_OFF, "handing_off",
     BIT(BT_REQUEST_PLACED) | BIT(BT_REQUEST_DECODING) | BIT(BT_REQUEST_DONE) |
         ENDED,
     "the first token of leg D"},
    {BT_REQUEST_DECODING, "decoding",
     BIT(BT_REQUEST_PLACED) | BIT(BT_REQUEST_DONE) | ENDED,
     "the next token or the end of leg D"},
    {BT_REQUEST_DONE, "done", 0, "nothing"},
    {BT_REQUEST_FAILED, "failed", 0, "nothing"},
    {BT_REQUEST_CANCELLED, "cancelled", 0, "nothing"},
    {BT_REQUEST_SHED, "shed", 0, "nothing"},
};

const char *bt_request_state_name(enum bt_request_state state)
{
    if ((unsigned int)state >= BT_REQUEST_STATE_COUNT)
        return "unknown";
    assert(table[state].state == state);
    return table[state].name;
}

bool core_request_state_is_live(enum bt_request_state state)
{
    return table[state].next != 0;
}

void core_request_move(struct bt_core *core, struct request *r,
                       enum bt_request_state next)
{
    assert(r->live);
    assert((table[r->state].next & BIT(next)) != 0);
    assert(core->counters.live[r->state] > 0);
    core->counters.live[r->state]--;
    if (core_request_state_is_live(next))
        core->counters.live[next]++;
    r->state = next;
}
