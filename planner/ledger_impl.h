/* Insides of the ledger, shared by ledger.c (bookings, prefill queues) and
 * ledger_flows.c (flows and the fluid model). Private to this folder.
 *
 *   worker  FIFO of prefills: free = max(now, head start + head cost) + rest,
 *           re-based whenever one is added or leaves
 *   flow    two per request at most, numbered 2 * handle (transfer, p to d) and
 *           2 * handle + 1 (fetch, from a peer to p); it lives in the network
 *           when the topology knows its pair, else on the pair
 *   pair    exists while a flow on it is held; in a hash table by (a, b); its
 *           live flows (bytes left) in a list, newest first
 *
 * Memory is proportionate to workers + requests, not to pairs of workers.
 */
#ifndef BATON_PLANNER_LEDGER_IMPL_H
#define BATON_PLANNER_LEDGER_IMPL_H

#include "baton/planner/ledger.h"

struct ledger_worker {
    struct bt_ledger_worker sums;
    uint32_t head, tail;   /* FIFO of prefills, handle + 1 */
    int64_t head_start_ns; /* when the head began, absolute */
    int64_t cost_ns;       /* of the whole FIFO, saturating reads only */
};

/* Item 0 is "none". */
struct ledger_pair {
    uint32_t p, d;                 /* from, to */
    uint64_t rate_bytes_per_s;     /* 0: unknown, bytes stay until done */
    int64_t rolled_ns;             /* flows are valid at this instant */
    uint32_t first;                /* live flows, number + 1 */
    uint32_t held;                 /* flows not closed, live or not */
    uint32_t next_in_bucket;       /* or next free */
    uint32_t busy_prev, busy_next; /* pairs with live flows */
};

struct ledger_flow {
    double left; /* bytes */
    int64_t start_ns;
    uint32_t prev, next;
    bool live; /* in the pair's list */
};

/* A flow as the fluid model sees it. */
struct ledger_fluid {
    double left;
    int64_t start_ns;
    uint32_t flow;
};

struct bt_ledger {
    struct bt_ledger_limits limits;
    struct ledger_worker *workers;
    struct ledger_pair *pairs; /* flows_max + 1 */
    uint32_t *buckets;
    uint32_t bucket_mask;
    uint32_t pair_free, pairs_fresh; /* never used: fresh + 1 .. */
    uint32_t busy_first;
    uint32_t flows_max;
    struct ledger_flow *flows; /* by number */
    struct bt_booking **bookings;
    struct ledger_fluid *fluid; /* scratch, flows_max */
    uint64_t held;
};

size_t ledger_flows_bytes(const struct bt_ledger_limits *limits);
bool ledger_flows_init(struct bt_ledger *ledger, struct bt_arena *arena);

/* A flow as the bookings name it. */
struct ledger_hop {
    uint32_t flow;     /* number */
    uint32_t from, to; /* workers */
};

/* Held from here to the close; counted in full until the planned start. */
void ledger_flow_open(struct bt_ledger *ledger, const struct ledger_hop *hop,
                      int64_t now_ns, uint64_t bytes, int64_t start_ns);
void ledger_flow_close(struct bt_ledger *ledger, const struct ledger_hop *hop,
                       int64_t now_ns);
/* A held flow is now planned for start_ns; the past stays as it was. */
void ledger_flow_plan(struct bt_ledger *ledger, const struct ledger_hop *hop,
                      int64_t now_ns, int64_t start_ns);

#endif
