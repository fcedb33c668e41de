/* NVIDIA Dynamo's additive cost, lowest wins, in KV blocks:
 *
 *   raw    = (active prefill tokens + prompt) / block
 *   credit = overlap_credit * decay * device + host_w * host + disk_w * disk
 *   cost   = prefill_scale * max(0, raw - credit) + potential decode blocks
 *            + request_w * active requests
 *
 * Disaggregated it is used twice: the prefill pick without the decode term, the
 * decode pick without credit and prefill (least potential decode blocks, blind
 * to d's prefix and to distance). Without a pool all terms count. A request is
 * held while every eligible prefill worker has more active tokens than
 * queue_threshold * its batch tokens; held ones go by arrival, or by weighted
 * shortest processing time under the second name. A topology taint scales the
 * cost of decode workers outside p's rack as preferred weights do.
 */
#include "rivals.h"

#include <math.h>

/* Where a worker does not say how many tokens it batches. */
#define BATCH_TOKENS 8192.0

static const struct bt_policy_knob knobs[] = {
    [DYNAMO_OVERLAP_CREDIT] = {"overlap_credit", 1, 0, 16,
                               "blocks of cost per block held on the device"},
    [DYNAMO_CREDIT_DECAY] = {"credit_decay", 0, 0, 16,
                             "how fast the credit falls with load"},
    [DYNAMO_HOST_W] = {"host_w", 0.75, 0, 16, "credit per block in host RAM"},
    [DYNAMO_DISK_W] = {"disk_w", 0.25, 0, 16, "credit per block on disk"},
    [DYNAMO_PREFILL_SCALE] = {"prefill_scale", 1, 0, 64,
                              "weight of the prefill blocks"},
    [DYNAMO_REQUEST_W] = {"request_w", 0, 0, 65536,
                          "blocks of cost per active request"},
    [DYNAMO_TEMPERATURE] = {"temperature", 0, 0, 100,
                            "softmax over the costs; 0: the least"},
    [DYNAMO_QUEUE_THRESHOLD] = {"queue_threshold", 0, 0, 1024,
                                "hold above this many batches; 0: never"},
    [DYNAMO_TAINT] = {"taint", 0, 0, 16,
                      "preferred weight of p's rack for d; 0: none"},
    [DYNAMO_KNOBS] = {0},
};

/* aux of a pick. */
enum { LEAST_ACTIVE };

static double active_prefill(const struct rival *r, uint32_t w)
{
    return (double)r->view->workers[w].prefill_tokens;
}

/* Blocks that a slower tier holds beyond what the faster ones do. */
static double beyond(const struct bt_place_view *view, uint32_t tokens,
                     double faster)
{
    uint32_t held = tokens < view->prompt_tokens ? tokens : view->prompt_tokens;

    return fmax(0, floor(held / rival_block_tokens(view)) - faster);
}

static double credit(const struct rival *r, const double *k, uint32_t w)
{
    const struct bt_place_worker *x = &r->view->workers[w];
    double blk = rival_block_tokens(r->view);
    double ahead = (active_prefill(r, w) - r->aux[LEAST_ACTIVE]) / blk /
                   fmax(1, rival_blocks(r->view));
    double decay = 1 / (1 + k[DYNAMO_CREDIT_DECAY] * ahead);
    double device = rival_held_blocks(r->view, w);
    double host = beyond(r->view, x->host_tokens, device);
    double disk = beyond(r->view, x->disk_tokens, device + host);

    return k[DYNAMO_OVERLAP_CREDIT] * decay * device + k[DYNAMO_HOST_W] * host +
           k[DYNAMO_DISK_W] * disk;
}

static double prefill_cost(const struct rival *r, const double *k, uint32_t w)
{
    double raw = (active_prefill(r, w) + r->view->prompt_tokens) /
                 rival_block_tokens(r->view);

    return k[DYNAMO_PREFILL_SCALE] * fmax(0, raw - credit(r, k, w));
}

static double decode_blocks(const struct rival *r, uint32_t w)
{
    return ((double)r->view->workers[w].decode_tokens +
            r->view->prompt_tokens) /
           rival_block_tokens(r->view);
}

/* exp(-tanh(weight)). */
static double preferred(double weight)
{
    double e = expm1(2 * weight);

    return exp(-e / (e + 2));
}

/* The preference lowers the cost of workers that bear the label. */
static double taint(const struct rival *r, const double *k, uint32_t w)
{
    if (k[DYNAMO_TAINT] <= 0 || r->p == BT_PLACE_NONE)
        return 1;
    switch (rival_class_of(r->view, r->p, w)) {
    case BT_PATH_LOCAL:
    case BT_PATH_NVLINK:
    case BT_PATH_NODE:
    case BT_PATH_RACK:
        return preferred(k[DYNAMO_TAINT]);
    case BT_PATH_POD:
    case BT_PATH_CROSS_POD:
    case BT_PATH_UNKNOWN:
    case BT_PATH_CLASS_COUNT:
        break;
    }
    return 1;
}

/* k lies behind r->knobs during a pick. */
static double cost(const struct rival *r, uint32_t w)
{
    const double *k = r->knobs;
    double sum = k[DYNAMO_REQUEST_W] * rival_requests(r, w);

    if (r->side != RIVAL_DECODE)
        sum += prefill_cost(r, k, w);
    if (r->side != RIVAL_PREFILL)
        sum += decode_blocks(r, w);
    return sum * (r->side == RIVAL_DECODE ? taint(r, k, w) : 1);
}

/* ---- softmax over -(cost - least) / (most - least) / temperature ---- */

static double weight(const struct rival *r, uint32_t w, double least,
                     double most)
{
    double spread = most > least ? most - least : 1;

    return exp(-(cost(r, w) - least) / spread / r->knobs[DYNAMO_TEMPERATURE]);
}

static uint32_t sample(const struct rival *r)
{
    double least, most, sum = 0, at;
    uint32_t last = BT_PLACE_NONE;

    rival_range(r, cost, &least, &most);
    for (uint32_t w = 0; w < r->view->worker_count; w++)
        if (rival_may(r, w))
            sum += weight(r, w, least, most);
    at = (double)(r->draw >> 11) * 0x1p-53 * sum;
    for (uint32_t w = 0; w < r->view->worker_count; w++) {
        if (!rival_may(r, w))
            continue;
        last = w;
        at -= weight(r, w, least, most);
        if (at < 0)
            break;
    }
    return last;
}

uint32_t dynamo_pick_with(struct rival *r, const double *k)
{
    const double *own = r->knobs;
    double most;
    uint32_t w;

    r->knobs = k;
    rival_range(r, active_prefill, &r->aux[LEAST_ACTIVE], &most);
    w = k[DYNAMO_TEMPERATURE] > 0 ? sample(r) : rival_least(r, cost, NULL);
    r->knobs = own;
    return w;
}

static uint32_t pick(struct rival *r)
{
    return dynamo_pick_with(r, r->state->knobs);
}

/* ---- queue threshold ---- */

static bool is_over(const struct bt_place_worker *x, double threshold)
{
    double batch = x->batch_tokens > 0 ? x->batch_tokens : BATCH_TOKENS;

    return (double)x->prefill_tokens > threshold * batch;
}

static bool must_wait(const struct bt_place_view *view, double threshold)
{
    bool pool = place_has_pool(view), any = false;

    if (threshold <= 0 || !view->may_hold)
        return false;
    for (uint32_t w = 0; w < view->worker_count; w++) {
        if (pool ? !place_p_useful(view, w) : !place_d_ok(view, w))
            continue;
        any = true;
        if (!is_over(&view->workers[w], threshold))
            return false;
    }
    return any;
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    if (must_wait(view, state->knobs[DYNAMO_QUEUE_THRESHOLD]))
        return BT_AGAIN;
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_dynamo = {
    .name = "dynamo",
    .summary = "Dynamo's additive block cost, held requests by arrival",
    .place = place,
    .order_rule = BT_ORDER_FCFS,
    .knobs = knobs,
};

const struct bt_policy bt_policy_dynamo_wspt = {
    .name = "dynamo_wspt",
    .summary = "Dynamo's additive block cost, shortest held requests first",
    .place = place,
    .order_rule = BT_ORDER_WSPT,
    .knobs = knobs,
};
