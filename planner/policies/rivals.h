/* Pieces of the rival rules (baselines-and-evaluation.md sections 1 to 3): who
 * may be picked, the least of a cost with seeded ties, idle times of a path,
 * the end of a choice. Private to this folder.
 *
 * A rule that picks one side after the other is one rival_pick_fn, called once
 * for each side; a rule over whole pairs is one rival_pair_fn. Without a
 * prefill pool both are asked for one worker that does everything.
 */
#ifndef BATON_PLANNER_POLICIES_RIVALS_H
#define BATON_PLANNER_POLICIES_RIVALS_H

#include "place_parts.h"

#include <math.h>

/* A cost that is never taken. */
#define RIVAL_NEVER ((double)INFINITY)

enum rival_side { RIVAL_PREFILL, RIVAL_DECODE, RIVAL_ALONE };

/* One decision under way. */
struct rival {
    struct bt_policy_state *state;
    const struct bt_place_view *view;
    const double *knobs;
    enum rival_side side; /* of the pick under way */
    uint32_t p, d;        /* picked so far, or BT_PLACE_NONE */
    uint64_t draw;        /* orders equals of this pick */
    bool pool;            /* there are prefill workers */
    uint32_t some_p, some_d;
    double aux[4]; /* the rule's own, set before a pick */
    void *arg;     /* the same */
    struct bt_place_candidate base;
};

typedef uint32_t (*rival_pick_fn)(struct rival *r);
/* Smaller is better; not finite: not to be taken. */
typedef double (*rival_cost_fn)(const struct rival *r, uint32_t w);
typedef double (*rival_pair_fn)(const struct rival *r, uint32_t p, uint32_t d);

/* Draws for the naive choice and remembers it. */
void rival_begin(struct rival *r, struct bt_policy_state *state,
                 const struct bt_place_view *view);
/* The next pick is of this side; draws for its ties. */
void rival_turn(struct rival *r, enum rival_side side);
/* May w be picked for the side under way: able to, and within reach of the
 * other side's worker, or of any if that is still open? */
bool rival_may(const struct rival *r, uint32_t w);
/* May w serve all of it though there is a pool? */
bool rival_may_serve(const struct rival *r, uint32_t w);

/* The eligible worker of least cost, equals (within 1e-9) by least tie_cost
 * (may be NULL), then by seeded uniform choice; BT_PLACE_NONE. */
uint32_t rival_least(const struct rival *r, rival_cost_fn cost,
                     rival_cost_fn tie_cost);

/* Least and most of a value over the eligible workers (0, 0 without any);
 * returns how many there are. */
uint32_t rival_range(const struct rival *r, rival_cost_fn value,
                     double *least_out, double *most_out);

/* Prefill, then decode; or one worker alone. */
enum bt_status rival_sequential(struct bt_policy_state *state,
                                const struct bt_place_view *view,
                                struct bt_placement *out, rival_pick_fn pick);
/* Least cost over all pairs, those of one worker that may serve alone among
 * them (p == d, or p none without a pool). */
enum bt_status rival_joint(struct bt_policy_state *state,
                           const struct bt_place_view *view,
                           struct bt_placement *out, rival_pair_fn cost,
                           void *arg);
/* The same choice with another prefix source (tokens 0: none). */
void rival_load(const struct bt_place_view *view, struct bt_placement *out,
                const struct bt_place_source *source);
/* The choice r->p, r->d, or BT_NO_WORKER. Where no pair is left but one worker
 * may serve alone, the one with the fewest KV tokens does. */
enum bt_status rival_finish(struct rival *r, struct bt_placement *out,
                            enum bt_reason reason);
/* The same for a candidate that has been made already. */
enum bt_status rival_finish_with(struct rival *r, struct bt_placement *out,
                                 const struct bt_place_candidate *c,
                                 enum bt_reason reason);

/* The KV lies on p: d by least cost (arg, aux for the rule), with the terms of
 * what is still to come. Draws as place() does. */
enum bt_status rival_handoff(struct rival *r, uint32_t p, rival_cost_fn cost,
                             struct bt_placement *out);

/* ---- what rules look at ---- */

/* A time as a cost, ns; RIVAL_NEVER where it is infinite. */
static inline double rival_ns(int64_t ns)
{
    return ns < BT_COST_INFINITE ? (double)ns : RIVAL_NEVER;
}

/* Leading prompt tokens on w's device, at most the prompt. */
uint32_t rival_held(const struct bt_place_view *view, uint32_t w);
uint32_t rival_uncached(const struct bt_place_view *view, uint32_t w);
/* Blocks of the prompt, partial one included; full blocks that w holds. */
double rival_blocks(const struct bt_place_view *view);
double rival_held_blocks(const struct bt_place_view *view, uint32_t w);
double rival_block_tokens(const struct bt_place_view *view);
/* Share of the prompt's blocks that w holds, 0..1. */
double rival_match(const struct bt_place_view *view, uint32_t w);
/* Share of w's KV in use. Where w does not say how much it has: against the
 * largest that any worker has or uses. */
double rival_kv_use(const struct bt_place_view *view, uint32_t w);
/* Requests, tokens booked on w for the side under way. */
double rival_requests(const struct rival *r, uint32_t w);
double rival_tokens(const struct rival *r, uint32_t w);
/* Queue plus prefill on w. */
double rival_ttft(const struct rival *r, uint32_t w);
int64_t rival_ttft_ns(const struct bt_place_view *view, uint32_t w);
/* KV room at w for this request by the own ledger. */
bool rival_has_room(const struct bt_place_view *view, uint32_t w);

/* What is left of the idle transfer p -> d once the prefill pt has ended, given
 * how the engine overlaps the two (cost-models.md section 7, like
 * place_exposed() but without any flow). */
int64_t rival_idle_left_ns(const struct bt_place_view *view, uint32_t p,
                           uint32_t d, const struct place_p *pt);
enum bt_path_class rival_class_of(const struct bt_place_view *view, uint32_t a,
                                  uint32_t b);

/* ---- prefix sources ---- */

/* Leading tokens as whole blocks, less than the prompt: what a source names. */
uint32_t rival_whole_blocks(const struct bt_place_view *view, uint32_t tokens);
/* The fastest own tier below the device that gives w a longer prefix; tokens
 * 0: there is none. */
struct bt_place_source rival_own_tier(const struct bt_place_view *view,
                                      uint32_t w);

/* ---- the policies of this folder ---- */

extern const struct bt_policy bt_policy_random;
extern const struct bt_policy bt_policy_jsq;
extern const struct bt_policy bt_policy_power_of_two;
extern const struct bt_policy bt_policy_prefix_only;
extern const struct bt_policy bt_policy_cla;
extern const struct bt_policy bt_policy_dynamo;
extern const struct bt_policy bt_policy_dynamo_wspt;
extern const struct bt_policy bt_policy_lmetric;
extern const struct bt_policy bt_policy_two_tier;
extern const struct bt_policy bt_policy_sglang;
extern const struct bt_policy bt_policy_mooncake;
extern const struct bt_policy bt_policy_mooncake_fetch;
extern const struct bt_policy bt_policy_flowkv;
extern const struct bt_policy bt_policy_llmd;
extern const struct bt_policy bt_policy_llmd_token;
extern const struct bt_policy bt_policy_netkv_static;
extern const struct bt_policy bt_policy_netkv;
extern const struct bt_policy bt_policy_dualpath;
extern const struct bt_policy bt_policy_atom;
extern const struct bt_policy bt_policy_conditional;
extern const struct bt_policy bt_policy_deflect;
extern const struct bt_policy bt_policy_s1;
extern const struct bt_policy bt_policy_s2;
extern const struct bt_policy bt_policy_s3;
extern const struct bt_policy bt_policy_j0;

/* ---- Dynamo's cost, used by conditional.c too ---- */

/* Knobs of the cost, in the order of dynamo's knobs. */
enum {
    DYNAMO_OVERLAP_CREDIT,
    DYNAMO_CREDIT_DECAY,
    DYNAMO_HOST_W,
    DYNAMO_DISK_W,
    DYNAMO_PREFILL_SCALE,
    DYNAMO_REQUEST_W,
    DYNAMO_TEMPERATURE,
    DYNAMO_QUEUE_THRESHOLD,
    DYNAMO_TAINT,
    DYNAMO_KNOBS
};
/* The pick of the side under way with these knobs. */
uint32_t dynamo_pick_with(struct rival *r, const double *knobs);

#endif
