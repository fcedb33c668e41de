/* Own ledger: what we dispatched and have not seen finish. Booked in the same
 * step as the choice, released exactly once on every path; engine telemetry is
 * kept apart and never added to it. Pure.
 *
 * Three kinds of booking per request, each with its own life:
 *   prefill   from the choice until leg P ends (whatever way)
 *   decode    from the choice until leg D ends
 *   transfer  from the choice until the first token of leg D (then the KV has
 *             arrived) or the end of the hand-off
 * and beside them the fetch of a prefix, which ends with the prefill it is for;
 * a prefetch begins before there is a choice.
 */
#ifndef BATON_PLANNER_LEDGER_H
#define BATON_PLANNER_LEDGER_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include "baton/planner/network.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rate of the pair's link, bytes per second; 0: unknown, then a flow on it
 * counts in full until transfer_done. Asked when a pair gets its first flow.
 * Pure. */
typedef uint64_t (*bt_ledger_rate_fn)(const void *arg, uint32_t p, uint32_t d);

struct bt_ledger_limits {
    uint32_t workers_max;
    uint32_t requests_max;  /* live requests, each may hold one of each kind */
    bt_ledger_rate_fn rate; /* NULL: all unknown */
    const void *rate_arg;   /* must outlive the ledger */
    /* Not NULL: flows of pairs whose path class is known live there, handles
     * 2 * request (transfer) and 2 * request + 1 (fetch); the ledger opens,
     * plans and closes them. Needs flows_max >= 2 * requests_max. */
    struct bt_network *network;
};

/* One request's bookings; embedded in the request by its owner. Zeroed =
 * nothing held. The ledger owns what is inside. */
struct bt_booking {
    bool prefill_held, decode_held, transfer_held, fetch_held;
    uint32_t p, d;           /* worker slots */
    uint32_t fetch_from;     /* worker slot, while fetch_held */
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

/* Grows with workers_max and requests_max, not with pairs of workers. */
size_t bt_ledger_bytes(const struct bt_ledger_limits *limits);
struct bt_ledger *bt_ledger_init(struct bt_arena *arena,
                                 const struct bt_ledger_limits *limits);

/* Book a choice. p == BT_PLACE_NONE: d serves alone (its prefill is booked on
 * d, no transfer). handle is the request's slot, < requests_max, and must not
 * hold anything (asserted) but a prefetch to the worker that is booked to
 * prefill now: that becomes the fetch of this booking. */
void bt_ledger_book(struct bt_ledger *ledger, struct bt_booking *booking,
                    int64_t now_ns, uint32_t p, uint32_t d, uint32_t handle,
                    uint64_t prefill_tokens, int64_t prefill_cost_ns,
                    uint64_t transfer_bytes, uint64_t decode_tokens);
/* Each releases once; a second call is a no-op. Releasing a prefill re-bases
 * the rest of that worker's queue on now. */
void bt_ledger_prefill_done(struct bt_ledger *ledger,
                            struct bt_booking *booking, int64_t now_ns);
void bt_ledger_transfer_done(struct bt_ledger *ledger,
                             struct bt_booking *booking, int64_t now_ns);
/* Beside a booking just made: p pulls `bytes` of prefix from worker `from`,
 * starting now. Ends with prefill_done or release_all. */
void bt_ledger_book_fetch(struct bt_ledger *ledger, struct bt_booking *booking,
                          int64_t now_ns, uint32_t from, uint64_t bytes);
/* Before anything is booked: worker `to` pulls `bytes` of prefix from worker
 * `from`, starting now, for a request that is not placed yet. bytes > 0,
 * to != from. Ends with fetch_done or release_all, or as the fetch of a booking
 * (bt_ledger_book). */
void bt_ledger_book_prefetch(struct bt_ledger *ledger,
                             struct bt_booking *booking, int64_t now_ns,
                             uint32_t handle, uint32_t from, uint32_t to,
                             uint64_t bytes);
void bt_ledger_fetch_done(struct bt_ledger *ledger, struct bt_booking *booking,
                          int64_t now_ns);
/* The hand-off goes to another d: decode and transfer bookings move there, the
 * prefill booking stays as it is. transfer_bytes from now on. */
void bt_ledger_rebook_decode(struct bt_ledger *ledger,
                             struct bt_booking *booking, int64_t now_ns,
                             uint32_t d, uint64_t transfer_bytes);
void bt_ledger_decode_done(struct bt_ledger *ledger,
                           struct bt_booking *booking);
void bt_ledger_release_all(struct bt_ledger *ledger, struct bt_booking *booking,
                           int64_t now_ns);

void bt_ledger_worker_get(const struct bt_ledger *ledger, uint32_t worker,
                          struct bt_ledger_worker *out);
/* Bytes left of own flows on the pair (p, d), as a fair share fluid estimate
 * at now: at most max values written, returns the count. A flow counts in full
 * until its planned start, and not at all once the estimate has it finished.
 * Writes scratch memory only: a look, even one at a later time, leaves no
 * trace. */
size_t bt_ledger_flows(const struct bt_ledger *ledger, uint32_t p, uint32_t d,
                       int64_t now_ns, uint64_t *left_out, size_t max);
/* Walk over the pairs that may have bytes left, in no particular order: after
 * is 0 to begin, then what the last call returned; 0: no more. Valid until the
 * next change. */
uint32_t bt_ledger_busy(const struct bt_ledger *ledger, uint32_t after,
                        uint32_t *p_out, uint32_t *d_out);
/* bt_ledger_flows of the pair a walk stands at. */
size_t bt_ledger_busy_flows(const struct bt_ledger *ledger, uint32_t at,
                            int64_t now_ns, uint64_t *left_out, size_t max);
/* True when nothing at all is booked. */
bool bt_ledger_is_empty(const struct bt_ledger *ledger);

#endif
