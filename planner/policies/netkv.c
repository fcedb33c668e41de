/* NetKV: P by least predicted TTFT; D when the KV lies on p, by
 *
 *   T(d) = bytes d lacks / B_eff + lat(tier) + T_queue(d) + T_first_step(d)
 *   B_eff = B_tier * (1 - c) / (n + 1)
 *
 * a sum, per tier (path class) and sender, blind to the receiver's other
 * traffic. netkv_static: c = 0, n = 0. Where the engine names d before the
 * prefill, place() has to use the same rule then.
 *
 * n: own flows out of p in that tier, from the table of links; with a topology
 * the view only has them by link, so those on p's NIC count whatever their
 * tier. A tier's rate is a knob; 0 takes the fastest nominal path of that class
 * out of p, which is what a tuned table would say.
 */
#include "rivals.h"

enum { NODE_GBS, RACK_GBS, POD_GBS, CROSS_GBS, C };

#define TIERS                                                                  \
    {"node_gbs", 0, 0, 1e5, "GB/s in a node; 0: nominal; paper 450"},          \
        {"rack_gbs", 0, 0, 1e5, "GB/s in a rack; 0: nominal; paper 12.5"},     \
        {"pod_gbs", 0, 0, 1e5, "GB/s in a pod; 0: nominal; paper 6.25"},       \
        {"cross_gbs", 0, 0, 1e5, "GB/s between pods; paper 3.125"},

static const struct bt_policy_knob static_knobs[] = {TIERS{0}};
static const struct bt_policy_knob live_knobs[] = {
    TIERS{"c", 0, 0, 0.95, "share of each tier used by others"},
    {0},
};

/* aux: the live rule. Whether the prefill is still to come makes no difference
 * between decode workers, so place() and handoff() share the cost. */
enum { LIVE };

/* ---- tiers ---- */

static double knob_rate(const struct rival *r, enum bt_path_class tier)
{
    switch (tier) {
    case BT_PATH_LOCAL:
    case BT_PATH_NVLINK:
    case BT_PATH_NODE:
        return r->knobs[NODE_GBS] * 1e9;
    case BT_PATH_RACK:
        return r->knobs[RACK_GBS] * 1e9;
    case BT_PATH_POD:
        return r->knobs[POD_GBS] * 1e9;
    case BT_PATH_CROSS_POD:
        return r->knobs[CROSS_GBS] * 1e9;
    case BT_PATH_UNKNOWN:
    case BT_PATH_CLASS_COUNT:
        break;
    }
    return 0;
}

/* Fastest nominal path of this class out of p; the pair's own where the class
 * is unknown. */
static double nominal_rate(const struct rival *r, uint32_t d,
                           enum bt_path_class tier)
{
    struct bt_link_model m;
    uint64_t most = 0;

    if (tier == BT_PATH_UNKNOWN)
        return place_idle_link(r->view, r->p, d, &m)
                   ? (double)m.rate_bytes_per_s
                   : 0;
    for (uint32_t x = 0; x < r->view->worker_count; x++)
        if (x != r->p && place_d_ok(r->view, x) &&
            rival_class_of(r->view, r->p, x) == tier &&
            place_idle_link(r->view, r->p, x, &m) && m.rate_bytes_per_s > most)
            most = m.rate_bytes_per_s;
    return (double)most;
}

/* Own flows out of p towards workers of this tier. */
static double flows_of(const struct rival *r, enum bt_path_class tier)
{
    const struct bt_place_view *view = r->view;
    double flows = 0;

    if (tier != BT_PATH_UNKNOWN) {
        uint32_t slot = bt_worker_slot(view->workers[r->p].id);
        uint32_t nic =
            bt_topology_nic_out(bt_network_topology(view->network), slot);

        return nic == BT_LINK_NONE ? 0
                                   : bt_network_flows_on(view->network, nic);
    }
    for (uint32_t x = 0; x < view->worker_count; x++)
        if (x != r->p && place_d_ok(view, x) &&
            rival_class_of(view, r->p, x) == tier)
            flows += (double)bt_place_link_of(view, r->p, x)->flows;
    return flows;
}

static double rate_of(const struct rival *r, uint32_t d)
{
    enum bt_path_class tier = rival_class_of(r->view, r->p, d);
    double rate = knob_rate(r, tier);

    if (rate <= 0)
        rate = nominal_rate(r, d, tier);
    if (r->aux[LIVE] <= 0)
        return rate;
    return rate * (1 - r->knobs[C]) / (flows_of(r, tier) + 1);
}

/* ---- the rule ---- */

/* ns */
static double cost_d(const struct rival *r, uint32_t d)
{
    struct place_d t = place_d_terms(r->view, d);
    double sum = (double)t.slot_ns + (double)t.step_ns, rate;
    struct bt_link_model m;

    if (t.slot_ns >= BT_COST_INFINITE || t.step_ns >= BT_COST_INFINITE)
        return RIVAL_NEVER;
    if (r->p == BT_PLACE_NONE || r->p == d || t.kv_bytes == 0)
        return sum;
    rate = rate_of(r, d);
    if (!(rate > 0) || !place_idle_link(r->view, r->p, d, &m))
        return RIVAL_NEVER;
    return sum + (double)t.kv_bytes / rate * 1e9 + (double)m.setup_ns;
}

static double cost_alone(const struct rival *r, uint32_t w)
{
    return rival_ttft(r, w) + cost_d(r, w);
}

static uint32_t pick(struct rival *r)
{
    switch (r->side) {
    case RIVAL_PREFILL:
        return rival_least(r, rival_ttft, NULL);
    case RIVAL_DECODE:
        return rival_least(r, cost_d, NULL);
    case RIVAL_ALONE:
        break;
    }
    return rival_least(r, cost_alone, NULL);
}

static uint32_t pick_static(struct rival *r)
{
    r->aux[LIVE] = 0;
    return pick(r);
}

static uint32_t pick_live(struct rival *r)
{
    r->aux[LIVE] = 1;
    return pick(r);
}

static enum bt_status handoff(struct bt_policy_state *state,
                              const struct bt_place_view *view, uint32_t p,
                              struct bt_placement *out, double live)
{
    struct rival r;

    rival_begin(&r, state, view);
    r.aux[LIVE] = live;
    return rival_handoff(&r, p, cost_d, out);
}

static enum bt_status place_static(struct bt_policy_state *state,
                                   const struct bt_place_view *view,
                                   struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick_static);
}

static enum bt_status place_live(struct bt_policy_state *state,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick_live);
}

static enum bt_status handoff_static(struct bt_policy_state *state,
                                     const struct bt_place_view *view,
                                     uint32_t p, struct bt_placement *out)
{
    return handoff(state, view, p, out, 0);
}

static enum bt_status handoff_live(struct bt_policy_state *state,
                                   const struct bt_place_view *view, uint32_t p,
                                   struct bt_placement *out)
{
    return handoff(state, view, p, out, 1);
}

const struct bt_policy bt_policy_netkv_static = {
    .name = "netkv_static",
    .summary = "NetKV with static tiers: decode by transfer, queue and step",
    .place = place_static,
    .handoff = handoff_static,
    .knobs = static_knobs,
};

const struct bt_policy bt_policy_netkv = {
    .name = "netkv",
    .summary = "NetKV: decode by transfer under own flows, queue and step",
    .place = place_live,
    .handoff = handoff_live,
    .knobs = live_knobs,
};
