/* Pieces of a placement that policies share: feasibility of a worker for a
 * role, the terms of one side, the naive choice, the runner-up. Private to
 * this folder.
 */
#ifndef BATON_PLANNER_PLACE_PARTS_H
#define BATON_PLANNER_PLACE_PARTS_H

#include "baton/planner/place.h"

/* Terms that depend on the prefill worker alone. */
struct place_p {
    int64_t queue_ns, prefill_ns;
    uint32_t overlap;
};

/* Terms that depend on the decode worker alone. */
struct place_d {
    int64_t slot_ns, step_ns;
    uint64_t blocks, kv_bytes; /* to be moved from another worker */
    uint32_t overlap;
    bool feasible;
};

struct place_p place_p_terms(const struct bt_place_view *view, uint32_t p);
struct place_d place_d_terms(const struct bt_place_view *view, uint32_t d);

static inline int64_t place_add(int64_t a, int64_t b)
{
    return a >= BT_COST_INFINITE - b ? BT_COST_INFINITE : a + b;
}

/* max(queue + prefill + transfer, slot) + step, saturating. */
static inline int64_t place_total(const struct place_p *pt,
                                  const struct place_d *dt, int64_t transfer_ns)
{
    int64_t arrival =
        place_add(place_add(pt->queue_ns, pt->prefill_ns), transfer_ns);

    return place_add(arrival > dt->slot_ns ? arrival : dt->slot_ns,
                     dt->step_ns);
}
/* All terms of a pair from its sides. p: the worker that prefills, d itself
 * when d serves alone. */
void place_combine(const struct bt_place_view *view, uint32_t p, uint32_t d,
                   const struct place_p *pt, const struct place_d *dt,
                   struct bt_place_terms *out);

/* May p prefill, may d decode this request, seen alone? */
bool place_p_ok(const struct bt_place_view *view, uint32_t p);
bool place_d_ok(const struct bt_place_view *view, uint32_t d);
/* Is there a way from p to d for the KV? (p none or p == d: always.) */
bool place_link_ok(const struct bt_place_view *view, uint32_t p, uint32_t d);
/* place_p_ok and at least one decode worker is within reach. */
bool place_p_useful(const struct bt_place_view *view, uint32_t p);
/* False: no prefill worker at all, requests are served by one worker. */
bool place_has_pool(const struct bt_place_view *view);

/* Order of candidates: by total, then ids; or by total, then fewer bytes, then
 * least loaded d, then ids. */
enum place_order { PLACE_ORDER_IDS, PLACE_ORDER_LOAD };

/* The first max feasible pairs in this order, and how many there are in all.
 * out beyond the count of pairs stays untouched. */
size_t place_scan_all(const struct bt_place_view *view, enum place_order order,
                      struct bt_place_candidate *out, size_t max);

/* The best and the second best pair by PLACE_ORDER_LOAD (place_none() where
 * there is none), and how many feasible pairs there are. */
struct place_scan {
    struct bt_place_candidate best, second;
    uint32_t feasible;
};
void place_scan(const struct bt_place_view *view, struct place_scan *out);

struct bt_place_candidate place_none(void);
struct bt_place_candidate place_pair(const struct bt_place_view *view,
                                     uint32_t p, uint32_t d);
bool place_is_same(const struct bt_place_candidate *a,
                   const struct bt_place_candidate *b);

/* Order of two equal loads: uniform, from one draw per decision. */
uint64_t place_tie(uint64_t draw, const struct bt_place_view *view, uint32_t w);

/* The naive sequential choice; p and d are BT_PLACE_NONE without a feasible
 * pair. Draws once from the generator. */
struct bt_place_candidate place_load_prefix(struct bt_policy_state *state,
                                            const struct bt_place_view *view);

/* Feasible decode worker with the fewest KV tokens reserved within reach of p
 * (none: any), or BT_PLACE_NONE. */
uint32_t place_least_decode(const struct bt_place_view *view, uint32_t p,
                            uint64_t draw);

/* Fill second, baseline, considered and the reason of a choice whose own
 * reason is `reason`. */
void place_finish(struct bt_placement *out, const struct bt_place_view *view,
                  const struct bt_place_candidate *baseline,
                  enum bt_reason reason);

void place_finish_scan(struct bt_placement *out,
                       const struct bt_place_view *view,
                       const struct place_scan *scan,
                       const struct bt_place_candidate *baseline,
                       enum bt_reason reason);

extern const struct bt_policy bt_policy_round_robin;
extern const struct bt_policy bt_policy_least_loaded;
extern const struct bt_policy bt_policy_prefix_load;
extern const struct bt_policy bt_policy_joint;

#endif
