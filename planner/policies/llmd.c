/* llm-d's scheduler: weighted scores, most wins. Decode first: D by prefix and
 * queue; then P by prefix, queue and how close it is to D, by a curve over
 * labels (host 1.00, rack 0.20, zone 0.05, region 0.02) and not by any rate.
 * The request stays on D when it has few tokens to compute and D may serve it.
 * prefill_first turns the order round, host_filter keeps the second pick on the
 * first one's host where there is such a worker (it fails open).
 *
 * Queue lengths are our own ledger's, not polls. Labels need a topology.
 */
#include "rivals.h"

enum {
    PREFIX_W,
    QUEUE_W,
    TOPOLOGY_W,
    KV_W,
    NON_CACHED,
    PREFILL_FIRST,
    HOST_FILTER
};

static const struct bt_policy_knob knobs[] = {
    {"prefix_w", 2, 0, 64, "weight of the share of blocks held"},
    {"queue_w", 1, 0, 64, "weight of the queue score"},
    {"topology_w", 1, 0, 64, "weight of the proximity to the first pick"},
    {"kv_w", 0, 0, 64, "weight of P's free KV; KServe's variant has 2"},
    {"non_cached", 16, -1, 1e9,
     "stay on d below this many tokens to compute; 0: always, -1: never"},
    {"prefill_first", 0, 0, 1, "1: P first, D by proximity to it"},
    {"host_filter", 0, 0, 1, "1: second pick on the first one's host"},
    {0},
};

/* aux of a pick. */
enum { LEAST_QUEUE, MOST_QUEUE };

static double proximity(enum bt_path_class path_class)
{
    switch (path_class) {
    case BT_PATH_LOCAL:
    case BT_PATH_NVLINK:
    case BT_PATH_NODE:
        return 1.00;
    case BT_PATH_RACK:
        return 0.20;
    case BT_PATH_POD:
        return 0.05;
    case BT_PATH_CROSS_POD:
        return 0.02;
    case BT_PATH_UNKNOWN:
    case BT_PATH_CLASS_COUNT:
        break;
    }
    return 0;
}

static double closeness(const struct rival *r, uint32_t w)
{
    uint32_t first = r->side == RIVAL_PREFILL ? r->d : r->p;

    return first == BT_PLACE_NONE
               ? 0
               : proximity(rival_class_of(r->view, first, w));
}

static double minus_score(const struct rival *r, uint32_t w)
{
    const double *k = r->knobs;
    double spread = r->aux[MOST_QUEUE] - r->aux[LEAST_QUEUE], score;

    score =
        spread > 0 ? (r->aux[MOST_QUEUE] - rival_requests(r, w)) / spread : 1;
    score = k[QUEUE_W] * score + k[PREFIX_W] * rival_match(r->view, w) +
            k[TOPOLOGY_W] * closeness(r, w);
    if (r->side == RIVAL_PREFILL && k[KV_W] > 0)
        score += k[KV_W] * (1 - rival_kv_use(r->view, w));
    return -score;
}

static double off_host(const struct rival *r, uint32_t w)
{
    return closeness(r, w) < 1;
}

static uint32_t pick(struct rival *r)
{
    double least, most;

    rival_range(r, rival_requests, &r->aux[LEAST_QUEUE], &r->aux[MOST_QUEUE]);
    rival_range(r, off_host, &least, &most);
    if (r->knobs[HOST_FILTER] > 0 && least < most)
        return rival_least(r, off_host, minus_score);
    return rival_least(r, minus_score, NULL);
}

static bool stays_on_d(const struct rival *r)
{
    double limit = r->knobs[NON_CACHED];

    return r->d != BT_PLACE_NONE && limit >= 0 && rival_may_serve(r, r->d) &&
           (limit == 0 || rival_uncached(r->view, r->d) < limit);
}

static void pick_both(struct rival *r)
{
    bool p_first = r->knobs[PREFILL_FIRST] > 0;

    rival_turn(r, p_first ? RIVAL_PREFILL : RIVAL_DECODE);
    *(p_first ? &r->p : &r->d) = pick(r);
    rival_turn(r, p_first ? RIVAL_DECODE : RIVAL_PREFILL);
    *(p_first ? &r->d : &r->p) = pick(r);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    enum bt_reason reason = BT_REASON_BASELINE;
    struct rival r;

    rival_begin(&r, state, view);
    if (r.pool) {
        pick_both(&r);
    } else {
        rival_turn(&r, RIVAL_ALONE);
        r.d = pick(&r);
    }
    if (r.pool && stays_on_d(&r)) {
        r.p = r.d;
        reason = BT_REASON_LOCAL;
    }
    return rival_finish(&r, out, reason);
}

const struct bt_policy bt_policy_llmd = {
    .name = "llmd",
    .summary = "llm-d's scores: decode first, prefill by proximity labels",
    .place = place,
    .knobs = knobs,
};
