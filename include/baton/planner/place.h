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
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_role {
    BT_ROLE_PREFILL = 1,
    BT_ROLE_DECODE = 2,
    BT_ROLE_BOTH = 3 /* bit set */
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
};

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
 * arrival = queue + prefill + transfer and slot = wait for a decode slot, all
 * counted from now. p == d: no transfer. */
struct bt_place_terms {
    int64_t queue_ns; /* until p starts */
    int64_t prefill_ns;
    int64_t transfer_ns;
    int64_t arrival_ns; /* queue + prefill + transfer */
    int64_t slot_ns;    /* until d has a slot and KV room */
    int64_t step_ns;    /* one decode step at d, this request included */
    int64_t total_ns;   /* max(arrival, slot) + step */
    uint64_t kv_bytes;  /* blocks d lacks, partial tail included */
    uint32_t overlap_p, overlap_d; /* tokens, capped at prompt - 1 for p */
};

struct bt_place_candidate {
    uint32_t p, d; /* positions in view.workers, BT_PLACE_NONE = none */
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
    X(BT_REASON_RETRY, "retry")

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

struct bt_policy_state {
    struct bt_rng rng;
    struct {
        uint64_t turn;
        uint32_t shift; /* of the present pass */
    } round_p, round_d; /* round robin, independent */
};

struct bt_policy {
    const char *name;
    const char *summary; /* one line for --help and docs */
    /* BT_OK, or BT_NO_WORKER when no feasible candidate exists. */
    enum bt_status (*place)(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out);
};

/* The table, NULL-terminated order of listing: round_robin, least_loaded,
 * prefix_load, joint. */
const struct bt_policy *bt_policy_find(const char *name);
const struct bt_policy *bt_policy_at(size_t i); /* NULL past the end */

void bt_policy_state_init(struct bt_policy_state *state, uint64_t seed);

/* Terms of the pair (p, d); either may be BT_PLACE_NONE for d-only service
 * (p none: d prefills itself). Infeasible parts give BT_COST_INFINITE. */
void bt_place_terms(const struct bt_place_view *view, uint32_t p, uint32_t d,
                    struct bt_place_terms *out);
/* Every feasible pair with its terms, ordered by total then lowest ids; at
 * most max; returns the number of feasible pairs (may exceed max). Used by
 * explain. */
size_t bt_place_table(const struct bt_place_view *view,
                      struct bt_place_candidate *out, size_t max);

#endif
