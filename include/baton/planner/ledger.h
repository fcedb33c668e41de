/* Own ledger: what we dispatched and have not seen finish. Booked in the same
 * step as the choice, released exactly once on every path; engine telemetry is
 * kept apart and never added to it. Pure.
 *
 * Three kinds of booking per request, each with its own life:
 *   prefill   from the choice until leg P ends (whatever way)
 *   decode    from the choice until leg D ends
 *   transfer  from the choice until the first token of leg D (then the KV has
 *             arrived) or the end of the hand-off
 */
#ifndef BATON_PLANNER_LEDGER_H
#define BATON_PLANNER_LEDGER_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_ledger_limits {
    uint32_t workers_max;
    uint32_t requests_max; /* live requests, each may hold one of each kind */
};

/* One request's bookings; embedded in the request by its owner. Zeroed =
 * nothing held. The ledger owns what is inside. */
struct bt_booking {
    bool prefill_held, decode_held, transfer_held;
    uint32_t p, d;           /* worker slots */
    uint64_t prefill_tokens; /* uncached */
    int64_t prefill_cost_ns;
    uint32_t prefill_prev, prefill_next; /* FIFO of p, by handle + 1 */
    int64_t transfer_start_ns;           /* planned, absolute */
    uint64_t transfer_bytes;
    uint64_t decode_tokens; /* prompt + expected output */
    uint32_t handle;        /* set by bt_ledger_book */
};

struct bt_ledger_worker {
    uint64_t prefill_tokens;
    uint32_t prefill_requests;
    int64_t prefill_free_ns; /* absolute; max(now, ...) by the reader */
    uint64_t decode_tokens;
    uint32_t decode_requests;
    uint32_t transfers; /* in flight into or out of it */
};

struct bt_ledger;

size_t bt_ledger_bytes(const struct bt_ledger_limits *limits);
struct bt_ledger *bt_ledger_init(struct bt_arena *arena,
                                 const struct bt_ledger_limits *limits);

/* Book a choice. p == BT_PLACE_NONE: d serves alone (its prefill is booked on
 * d, no transfer). handle is the request's slot, < requests_max, and must not
 * hold anything (asserted). */
void bt_ledger_book(struct bt_ledger *ledger, struct bt_booking *booking,
                    int64_t now_ns, uint32_t p, uint32_t d, uint32_t handle,
                    uint64_t prefill_tokens, int64_t prefill_cost_ns,
                    uint64_t transfer_bytes, uint64_t decode_tokens);
/* Each releases once; a second call is a no-op. Releasing a prefill re-bases
 * the rest of that worker's queue on now. */
void bt_ledger_prefill_done(struct bt_ledger *ledger,
                            struct bt_booking *booking, int64_t now_ns);
void bt_ledger_transfer_done(struct bt_ledger *ledger,
                             struct bt_booking *booking);
void bt_ledger_decode_done(struct bt_ledger *ledger,
                           struct bt_booking *booking);
void bt_ledger_release_all(struct bt_ledger *ledger, struct bt_booking *booking,
                           int64_t now_ns);

void bt_ledger_worker_get(const struct bt_ledger *ledger, uint32_t worker,
                          struct bt_ledger_worker *out);
/* Rate of the pair's link, so that flows can be rolled forward. 0, the start
 * value, is unknown: then a flow counts in full until transfer_done. */
void bt_ledger_set_rate(struct bt_ledger *ledger, uint32_t p, uint32_t d,
                        uint64_t rate_bytes_per_s);
/* Bytes left of own flows on the pair (p, d), as a fair share fluid estimate
 * at now (see bt_ledger_set_rate): at most max values written, returns the
 * count. A flow counts in full until its planned start, and not at all once
 * the estimate has it finished. now must not lie before an earlier call. */
size_t bt_ledger_flows(const struct bt_ledger *ledger, uint32_t p, uint32_t d,
                       int64_t now_ns, uint64_t *left_out, size_t max);
/* True when nothing at all is booked. */
bool bt_ledger_is_empty(const struct bt_ledger *ledger);

#endif
