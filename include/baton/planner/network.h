/* Flows on shared links: the reference model is max-min fair sharing
 * (water-filling, cost-models.md section 8). Two users: the planner's ledger
 * of own flows (struct bt_network, live and planned flows over the links of a
 * topology), and the simulator's true network, which uses bt_maxmin_rates
 * only. Pure.
 */
#ifndef BATON_PLANNER_NETWORK_H
#define BATON_PLANNER_NETWORK_H

#include "baton/base/arena.h"
#include "baton/planner/topology.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the solver ---- */

struct bt_maxmin_flow {
    uint32_t links[BT_PATH_LINKS_MAX];
    uint32_t count;         /* links used; 0: only its own cap holds */
    double cap_bytes_per_s; /* of the flow itself; <= 0: none */
    double rate;            /* out, bytes per second */
};
/* Max-min fair rates of n flows over links with the given capacities (bytes
 * per second, index = link). scratch: bt_maxmin_scratch(n, link_count) bytes,
 * 16-aligned. A flow without links and cap gets INFINITY. O(rounds * flows);
 * touches only links that carry flows, apart from first use of scratch, which
 * must be zero-filled once and is left reusable. */
size_t bt_maxmin_scratch(size_t flows, size_t links);
void bt_maxmin_rates(struct bt_maxmin_flow *flows, size_t n,
                     const double *capacity, size_t link_count, void *scratch);

/* ---- own flows of the planner ---- */

struct bt_network_limits {
    const struct bt_topology *topology; /* outlives the network */
    uint32_t flows_max;                 /* handles are below it */
};
struct bt_network;

size_t bt_network_bytes(const struct bt_network_limits *limits);
struct bt_network *bt_network_init(struct bt_arena *arena,
                                   const struct bt_network_limits *limits);
const struct bt_topology *bt_network_topology(const struct bt_network *net);

/* A flow of `bytes` from worker a to worker b, planned to start at start_ns
 * (absolute; <= now: it runs). handle must be free (asserted). Bytes of live
 * flows roll forward by the fluid model at each change; a flow that the model
 * has finished weighs nothing but stays held until closed. */
void bt_network_open(struct bt_network *net, uint32_t handle, int64_t now_ns,
                     uint32_t a, uint32_t b, uint64_t bytes, int64_t start_ns);
/* Another planned start (also: now, it starts). No-op when not held. */
void bt_network_plan(struct bt_network *net, uint32_t handle, int64_t now_ns,
                     int64_t start_ns);
/* Done or given up. No-op when not held. */
void bt_network_close(struct bt_network *net, uint32_t handle, int64_t now_ns);
bool bt_network_is_empty(const struct bt_network *net);
uint32_t bt_network_flows_on(const struct bt_network *net, uint32_t link);

/* Rate in force of a link: nominal at first; calibration sets it. 0 makes
 * every path over it infeasible (a down link). */
void bt_network_rate_set(struct bt_network *net, uint32_t link,
                         uint64_t bytes_per_s);
uint64_t bt_network_rate(const struct bt_network *net, uint32_t link);
/* Set-up in force of a path class, likewise. 0 <= ns < BT_COST_INFINITE
 * (asserted). */
void bt_network_setup_set(struct bt_network *net, enum bt_path_class path_class,
                          int64_t ns);
int64_t bt_network_setup(const struct bt_network *net,
                         enum bt_path_class path_class);
/* Share of the link that somebody else uses, 0..0.95 (section 8, unknown
 * background): mean service grows by 1 / (1 - share). */
void bt_network_background_set(struct bt_network *net, uint32_t link,
                               double share);

/* Candidate estimate, the one that ranks: setup + descriptors + max over the
 * path's links of the closed form (W6), with competitors as they will be at
 * at_ns >= now (linear drain at present rates; flows planned to start before
 * the end count in full). bytes == 0 costs 0. BT_COST_INFINITE when a link is
 * down. Unknown class: BT_COST_INFINITE (the caller uses its pair link). */
int64_t bt_network_transfer_ns(const struct bt_network *net, int64_t now_ns,
                               int64_t at_ns, uint32_t a, uint32_t b,
                               uint64_t bytes, uint64_t descriptors);
/* Lower bound of it for any worker pair with a's NIC (b's NIC): setup 0, own
 * NIC link only. For pruning. */
int64_t bt_network_out_bound_ns(const struct bt_network *net, int64_t now_ns,
                                int64_t at_ns, uint32_t a, uint64_t bytes);
int64_t bt_network_in_bound_ns(const struct bt_network *net, int64_t now_ns,
                               int64_t at_ns, uint32_t b, uint64_t bytes);
/* Exact under the model: rolls all flows forward from now with no later
 * arrivals and returns the duration of the new flow that starts at at_ns
 * (W7: 0.666667, 1, ...). O(flows^2 * links): a reference for the
 * closed form; no policy calls it yet. */
int64_t bt_network_exact_ns(struct bt_network *net, int64_t now_ns,
                            int64_t at_ns, uint32_t a, uint32_t b,
                            uint64_t bytes, uint64_t descriptors);
/* Seconds that own flows without slack lose to the new one on the worst link:
 * sum min(r_i, s) / C (section 14). */
int64_t bt_network_externality_ns(const struct bt_network *net, int64_t now_ns,
                                  uint32_t a, uint32_t b, uint64_t bytes);
/* Bytes of other own flows that passed `link` since the flow `handle` started,
 * by the fluid model: X_own of section 11. */
uint64_t bt_network_passed_beside(const struct bt_network *net, uint32_t handle,
                                  uint32_t link, int64_t now_ns);
/* How much of them only the model says: bytes of flows that nobody has closed,
 * when the flow itself took over half as long again as the model gave it. Its
 * rates are too high then, and what it says of the others as well: a link that
 * has become slow would look fast while it is crowded. Else 0. O(flows that run
 * on the link, or are finished and not closed). */
uint64_t bt_network_unproven_beside(const struct bt_network *net,
                                    uint32_t handle, uint32_t link,
                                    int64_t now_ns);

#endif
