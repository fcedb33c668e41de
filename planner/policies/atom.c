/* ATOM Mesh draft (kv_cache_aware): over all pairs the least
 *
 *   max(p_ms, d_queue) + transfer of what d lacks + decode step
 *
 * p_ms is queue plus prefill, or plus loading from p's host memory where that
 * is sooner; d_queue is requests waiting at d times its step; the transfer is a
 * curve per pair measured beforehand: here the idle path at nominal rates.
 * Pairs without a curve are out unless there are no others; so are those
 * without free blocks by the own ledger. No contention, no learning, nothing
 * hidden behind prefill or d's wait.
 */
#include "rivals.h"

/* Costs in ms; these put what is not wanted behind all that is. */
#define NO_ROOM_MS  1e12
#define NO_CURVE_MS 1e13

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* Requests at d without a slot: by the ledger, or as d said last. */
static double waiting(const struct bt_place_worker *x)
{
    uint32_t over = x->decode_slots > 0 && x->decode_requests > x->decode_slots
                        ? x->decode_requests - x->decode_slots
                        : 0;

    return over > x->seen_waiting ? over : x->seen_waiting;
}

/* How p gets the prompt ready soonest; source.tokens 0: by computing it. */
struct ready {
    int64_t ns;
    struct bt_place_source source;
};

static struct ready ready_on(const struct bt_place_view *view, uint32_t w)
{
    struct ready r = {.ns = rival_ttft_ns(view, w)};
    struct bt_place_source tier = rival_own_tier(view, w);
    struct place_p t;
    int64_t ns;

    if (tier.tokens == 0 || tier.tier != BT_TIER_HOST)
        return r;
    t = place_p_from(view, w, &tier);
    ns = place_add(place_add(t.queue_ns, t.fetch_ns), t.prefill_ns);
    if (ns < r.ns) {
        r.ns = ns;
        r.source = tier;
    }
    return r;
}

static double transfer_ms(const struct rival *r, uint32_t p, uint32_t d,
                          const struct place_d *t)
{
    int64_t ns;

    if (p == BT_PLACE_NONE || p == d)
        return 0;
    ns = place_idle_ns(r->view, p, d, t->kv_bytes, t->descriptors);
    return ns < BT_COST_INFINITE ? ms(ns) : NO_CURVE_MS;
}

static double cost(const struct rival *r, uint32_t p, uint32_t d)
{
    uint32_t runs_on = p == BT_PLACE_NONE ? d : p;
    struct place_d t = place_d_terms(r->view, d);
    struct ready ready = ready_on(r->view, runs_on);
    double sum, d_queue = waiting(&r->view->workers[d]) * ms(t.step_ns);

    if (ready.ns >= BT_COST_INFINITE || t.step_ns >= BT_COST_INFINITE)
        return RIVAL_NEVER;
    sum =
        fmax(ms(ready.ns), d_queue) + transfer_ms(r, p, d, &t) + ms(t.step_ns);
    if (!rival_has_room(r->view, runs_on) || !rival_has_room(r->view, d))
        sum += NO_ROOM_MS;
    return sum;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    enum bt_status s = rival_joint(state, view, out, cost, NULL);
    struct ready ready;

    if (s != BT_OK || out->chosen.p == BT_PLACE_NONE)
        return s;
    ready = ready_on(view, out->chosen.p);
    rival_load(view, out, &ready.source);
    return s;
}

const struct bt_policy bt_policy_atom = {
    .name = "atom",
    .summary = "ATOM draft: pair by max(prefill, d queue) + idle transfer",
    .place = place,
};
