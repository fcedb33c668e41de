/* Placement: the view of the fleet a policy decides on, and its answer.
 *
 * A policy is one file behind one const table. It sees the same view whatever
 * it is: same index, same own ledger, same cost models (baselines section 1).
 * It is pure and allocates nothing; its only state is struct bt_policy_state.
 * Booking is the caller's (core): same step, from the terms chosen here.
 */
#ifndef BATON_PLANNER_PLACE_H
#define BATON_PLANNER_PLACE_H

#include "baton/base/ids.h"
#include "baton/base/rng.h"
#include "baton/base/status.h"
#include "baton/planner/cost.h"
#include "baton/planner/network.h"
#include "baton/planner/order.h"
#include "baton/planner/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_role {
    BT_ROLE_PREFILL = 1,
    BT_ROLE_DECODE = 2,
    BT_ROLE_BOTH = 3 /* bit set */
};

/* How the engines hand KV over: a property of the engine, never of a policy
 * (cost-models.md section 7). */
enum bt_overlap { BT_OVERLAP_NONE, BT_OVERLAP_CHUNK, BT_OVERLAP_LAYER };
struct bt_engine_mode {
    enum bt_overlap overlap;
    uint32_t pieces;     /* K of chunk and layer: pieces per prompt, >= 1 */
    bool allocate_first; /* d reserves the whole prompt before p starts */
    bool whole_prompt;   /* no decode-side delta: all blocks travel */
    bool late_decode;    /* d is named after the prefill (vLLM pull): it may
                            be chosen anew at the hand-off */
    uint32_t descriptors_per_block; /* regions; 0 counts as 1 */
    uint32_t replication;           /* rho; 0 counts as 1 */
};

/* What choices cost others (cost-models.md section 14). All zero: none. */
struct bt_place_prices {
    double queue;    /* mu, per unit of service; < 0: adaptive, mean number of
                        waiting requests per prefill worker */
    double eviction; /* epsilon: share of the recompute time of blocks that a
                        fetch would replicate, times mu */
    double link;     /* of the externality on own flows, 0..1 */
    double hbm;      /* per byte and second of early arrival, times requests
                        waiting at d over its pool bytes */
    double decode;   /* of the delay a local prefill causes to d's running
                        requests, 0..1 */
};

/* Loading a prefix from a worker's own slower tier to its device. */
struct bt_tier_model {
    uint64_t rate_bytes_per_s; /* 0: the tier is not used */
    int64_t setup_ns;
};

/* One worker as the policies see it: identity, own ledger, model. */
struct bt_place_worker {
    struct bt_worker_id id;
    unsigned int roles;         /* bits of enum bt_role */
    bool prefill_ok, decode_ok; /* may be chosen for that role now */
    uint32_t overlap_tokens;    /* leading prompt tokens it holds */
    uint64_t prefill_tokens;    /* dispatched, not yet prefilled */
    uint32_t prefill_requests;
    int64_t prefill_free_ns;     /* absolute: when its queue is empty */
    uint32_t decode_requests;    /* reserved or running */
    uint32_t decode_slots;       /* batch limit, 0 = unknown */
    uint64_t decode_tokens;      /* KV tokens reserved or in use */
    uint64_t kv_capacity_tokens; /* 0 = unknown */
    int64_t decode_free_ns;      /* absolute: earliest slot + KV room */
    const struct bt_compute_model *model;
    /* Leading prompt tokens held in device or host, and in device, host or
     * disk; each >= overlap_tokens, which is the device's. 0: as the one
     * before it. */
    uint32_t host_tokens, disk_tokens;
    struct bt_tier_model host, disk;
    bool local_ok; /* may serve a request alone though there is a pool */
    bool fetch_ok; /* can pull a prefix from a peer before its prefill */
    uint32_t chunk_tokens; /* prefill chunk beside decodes; 0: whole prompts */
    uint32_t batch_tokens; /* max_num_batched_tokens, 0 unknown */
    double prefill_error;  /* relative sigma of its estimates; 0: defaults */
    /* Telemetry as last reported, stale by seen_at_ns: for rules that poll. */
    uint32_t seen_running, seen_waiting;
    double seen_kv_usage; /* 0..1 */
    int64_t seen_at_ns;   /* 0: never */
};

/* Link of a pair and the bytes left of our own flows on it. A flow that has
 * been planned but not started counts in full. */
struct bt_place_link {
    const struct bt_link_model *model;
    uint32_t class_index; /* link class, for reports */
    const uint64_t *left; /* bytes left per own flow */
    size_t flows;
};

/* What holds for the link model and flows of every pair that may be chosen,
 * p != d: each rate lies in [min, max], and so on. */
struct bt_place_bounds {
    uint64_t rate_min, rate_max;                  /* > 0 */
    int64_t setup_min_ns, setup_max_ns;           /* >= 0, < BT_COST_INFINITE */
    int64_t descriptor_min_ns, descriptor_max_ns; /* >= 0 */
    size_t flows_max;                             /* on one pair */
};

struct bt_place_view {
    int64_t now_ns;
    uint32_t prompt_tokens;
    uint32_t block_tokens;
    uint32_t output_tokens;      /* expected */
    uint64_t kv_bytes_per_token; /* whole model, all layers */
    const struct bt_place_worker *workers;
    uint32_t worker_count;
    /* links[p * worker_count + d] by position in workers[] */
    const struct bt_place_link *links;
    bool overlap_known; /* false: no tokens or no events */
    /* NULL: unknown, every link is looked at. Choices are the same with and
     * without; with it most links need not be read. */
    const struct bt_place_bounds *bounds;
    /* NULL: links is a table of all pairs as above. Else it leaves out those
     * that no role allows: links[link_row[p] + link_column[d]]. */
    const size_t *link_row;
    const uint32_t *link_column;
    /* Own flows on shared links, by slot of the workers' ids. NULL: links
     * above. A pair of class unknown uses its link above even when there is a
     * network; without bounds, a link above with rate 0 closes its pair anyway.
     */
    const struct bt_network *network;
    const struct bt_engine_mode *mode;    /* NULL: all zero, pull, delta */
    const struct bt_place_prices *prices; /* NULL: none */
    const uint64_t *keys;                 /* own block keys of the prompt */
    size_t key_count;
    uint64_t body_bytes;              /* of the request */
    int64_t ttft_slo_ns, tpot_slo_ns; /* 0: none */
    int64_t waited_ns;                /* since it was received */
    uint32_t waiting;    /* other requests held in the core's queue */
    bool may_hold;       /* BT_AGAIN is understood; else decide now */
    int64_t lead_ns;     /* work a worker may have before it counts as busy */
    int64_t patience_ns; /* after this long no veto holds a request back */
};

/* Transfer of `bytes` from position p to d that starts at_ns, whatever way the
 * view describes links; 0 when p == d or bytes == 0. */
int64_t bt_place_transfer_ns(const struct bt_place_view *view, uint32_t p,
                             uint32_t d, int64_t at_ns, uint64_t bytes,
                             uint64_t descriptors);

/* The link of a pair, p != d. */
static inline const struct bt_place_link *
bt_place_link_of(const struct bt_place_view *view, uint32_t p, uint32_t d)
{
    if (view->link_row == NULL)
        return &view->links[(size_t)p * view->worker_count + d];
    return &view->links[view->link_row[p] + view->link_column[d]];
}

#define BT_PLACE_NONE UINT32_MAX

/* Terms of one candidate, ns. total = max(arrival, slot) + step, where
 * arrival = max(queue, fetch) + prefill + transfer and slot = wait for a
 * decode slot, all counted from now. p == d: no transfer. transfer is what is
 * left after the prefill ended (overlap hides the rest). Choices order by
 * total + price. */
struct bt_place_terms {
    int64_t queue_ns; /* until p could start */
    int64_t fetch_ns; /* until the fetched prefix is at p; 0: none */
    int64_t prefill_ns;
    int64_t transfer_ns;
    int64_t arrival_ns; /* max(queue, fetch) + prefill + transfer */
    int64_t slot_ns;    /* until d has a slot and KV room */
    int64_t step_ns;    /* one decode step at d, this request included */
    int64_t total_ns;   /* max(arrival, slot) + step */
    int64_t price_ns;   /* what it costs others, in ns of ours */
    uint64_t kv_bytes;  /* blocks d lacks, partial tail included */
    uint64_t fetch_bytes;
    uint32_t overlap_p, overlap_d; /* tokens, capped at prompt - 1 for p;
                                      overlap_p counts the fetched ones */
};

/* Where p gets a prefix from that its device lacks. */
struct bt_place_source {
    uint32_t tokens; /* leading tokens p holds once it has arrived; 0: nothing
                        is loaded and the rest means nothing */
    uint32_t worker; /* position; p itself: from its own tier */
    enum bt_tier tier;
};

/* p == d: d does it all though there is a pool (local prefill). p none: there
 * is no pool. source.tokens == 0: recompute what p lacks. */
struct bt_place_candidate {
    uint32_t p, d; /* positions in view.workers, BT_PLACE_NONE = none */
    struct bt_place_source source;
    struct bt_place_terms terms;
};

/* Why it came out so; names appear unchanged in logs, metrics and docs. */
#define BT_REASON_LIST(X)                                                      \
    X(BT_REASON_BASELINE, "baseline")       /* round robin, ... */             \
    X(BT_REASON_LOAD_PREFIX, "load_prefix") /* naive sequential */             \
    X(BT_REASON_JOINT, "joint")                                                \
    X(BT_REASON_GUARD, "guard_load_prefix")    /* gain below its error */      \
    X(BT_REASON_ONLY_ONE, "only_one")          /* a single candidate */        \
    X(BT_REASON_NO_PREFILL, "no_prefill_pool") /* whole request on d */        \
    X(BT_REASON_LOCAL, "local_prefill")        /* p == d was cheapest */       \
    X(BT_REASON_NO_TOKENS, "no_tokens")        /* routed without overlap */    \
    X(BT_REASON_EVENTS_DEGRADED, "events_degraded")                            \
    X(BT_REASON_SHORT_PROMPT, "short_prompt")                                  \
    X(BT_REASON_UNSUPPORTED, "unsupported_request") /* one worker, no P/D */   \
    X(BT_REASON_RETRY, "retry")                                                \
    X(BT_REASON_FETCH, "fetch")     /* joint, prefix from a peer or a tier */  \
    X(BT_REASON_HANDOFF, "handoff") /* d chosen anew when the KV was there */  \
    X(BT_REASON_FORCED, "forced")   /* named by the caller (what-if) */

enum bt_reason {
#define X(code, name) code,
    BT_REASON_LIST(X)
#undef X
        BT_REASON_COUNT
};
const char *bt_reason_name(enum bt_reason reason);

struct bt_placement {
    struct bt_place_candidate chosen;
    struct bt_place_candidate second;   /* p == d == BT_PLACE_NONE: none */
    struct bt_place_candidate baseline; /* what load + prefix would take */
    uint32_t considered;                /* feasible pairs */
    enum bt_reason reason;
};

/* A parameter of a policy: "name:knob=value,knob=value" on command lines. */
#define BT_POLICY_KNOBS_MAX 12
struct bt_policy_knob {
    const char *name;
    double value, min, max; /* default and range */
    const char *text;
};

struct bt_policy_limits {
    uint32_t workers_max, requests_max;
};

struct bt_policy_state {
    struct bt_rng rng;
    double knobs[BT_POLICY_KNOBS_MAX]; /* in the policy's order */
    void *memory; /* as policy->memory asked for, zeroed; NULL: none */
    struct {
        uint64_t turn;
        uint32_t shift; /* of the present pass */
    } round_p, round_d; /* round robin, independent */
};

struct bt_policy {
    const char *name;
    const char *summary; /* one line for --help and docs */
    /* BT_OK; BT_NO_WORKER when no feasible candidate exists; with
     * view.may_hold also BT_AGAIN: hold it and ask again when a worker has
     * become free, in the order of order_rule; or BT_OVERLOADED: refuse it. */
    enum bt_status (*place)(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out);
    /* The KV lies on p (position): choose d. NULL: the d of place() stays.
     * Asked only where the engine allows it (mode->late_decode). */
    enum bt_status (*handoff)(struct bt_policy_state *state,
                              const struct bt_place_view *view, uint32_t p,
                              struct bt_placement *out);
    /* What was booked, for rules with a history of their own. May be NULL. */
    void (*placed)(struct bt_policy_state *state,
                   const struct bt_place_view *view,
                   const struct bt_placement *placement);
    size_t (*memory)(const struct bt_policy_limits *limits); /* or NULL */
    enum bt_order_rule order_rule;      /* of held requests */
    const struct bt_policy_knob *knobs; /* name NULL ends; NULL: none */
};

/* The table in order of listing. */
const struct bt_policy *bt_policy_find(const char *name);
const struct bt_policy *bt_policy_at(size_t i); /* NULL past the end */

/* "name" or "name:knob=value,...": the policy and its knobs, defaults filled
 * in. BT_NOT_FOUND, BT_INVALID: error_out says what (nearest knob named). */
enum bt_status bt_policy_parse(const char *spec,
                               const struct bt_policy **policy_out,
                               double knobs_out[BT_POLICY_KNOBS_MAX],
                               char *error_out, size_t error_size);
/* Knobs get the policy's defaults; memory NULL. */
void bt_policy_state_init(struct bt_policy_state *state, uint64_t seed);
void bt_policy_defaults(const struct bt_policy *policy,
                        double knobs_out[BT_POLICY_KNOBS_MAX]);

/* Terms of the pair (p, d); either may be BT_PLACE_NONE for d-only service
 * (p none: d prefills itself; p == d without the role: local prefill). Prefix
 * of the device only, no source. Infeasible parts give BT_COST_INFINITE. */
void bt_place_terms(const struct bt_place_view *view, uint32_t p, uint32_t d,
                    struct bt_place_terms *out);
/* Every feasible candidate (pairs with the best source of p, local prefill),
 * ordered by total + price, then lowest ids; at most max; returns the number of
 * feasible ones (may exceed max). Above 256 workers, max <= 16 is served from a
 * shortlist and the number counts pairs of feasible sides. Used by explain. */
size_t bt_place_table(const struct bt_place_view *view,
                      struct bt_place_candidate *out, size_t max);

#endif
