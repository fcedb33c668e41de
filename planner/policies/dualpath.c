/* DualPath-like: P with the fewest tokens, engines above beta left out while
 * there are others; D from the host with the fewest tokens, among its workers
 * below Z times the mean with KV room; the prefix from storage by the shorter
 * disk queue.
 *
 * Approximations, because the view has no disk queues: no worker is left out
 * for its disk (alpha), and the prefix is read on p's own side, from the tier
 * that holds most of it; the way over d and its network card is not taken. One
 * request is never split over both sides, as in the original.
 */
#include "rivals.h"

enum { BETA, Z };

static const struct bt_policy_knob knobs[] = {
    {"beta", 0, 0, 1e12, "leave out P with more tokens than this; 0: none"},
    {"z", 1.05, 1, 64, "D's tokens against the mean of its host"},
    {0},
};

static double tokens_below_beta(const struct rival *r, uint32_t w)
{
    double beta = r->knobs[BETA], tokens = rival_tokens(r, w);

    return beta > 0 && tokens > beta ? RIVAL_NEVER : tokens;
}

static uint32_t pick_p(const struct rival *r)
{
    uint32_t w = rival_least(r, tokens_below_beta, NULL);

    return w != BT_PLACE_NONE ? w : rival_least(r, rival_tokens, NULL);
}

/* ---- hosts: workers of one node; each alone without a topology ---- */

static bool is_same_host(const struct rival *r, uint32_t a, uint32_t b)
{
    switch (rival_class_of(r->view, a, b)) {
    case BT_PATH_LOCAL:
    case BT_PATH_NVLINK:
    case BT_PATH_NODE:
        return true;
    case BT_PATH_RACK:
    case BT_PATH_POD:
    case BT_PATH_CROSS_POD:
    case BT_PATH_UNKNOWN:
    case BT_PATH_CLASS_COUNT:
        break;
    }
    return false;
}

struct host {
    double tokens, workers;
};

static struct host host_of(const struct rival *r, uint32_t w)
{
    struct host h = {0, 0};

    for (uint32_t x = 0; x < r->view->worker_count; x++)
        if (is_same_host(r, w, x) && rival_may(r, x)) {
            h.tokens += rival_tokens(r, x);
            h.workers++;
        }
    return h;
}

/* Mean, so that hosts of several sizes compare. */
static double host_tokens(const struct rival *r, uint32_t w)
{
    struct host h = host_of(r, w);

    return h.workers > 0 ? h.tokens / h.workers : 0;
}

/* aux: a worker of the chosen host, its mean. */
enum { HOST, MEAN };

static double below_mean(const struct rival *r, uint32_t w)
{
    if (!is_same_host(r, w, (uint32_t)r->aux[HOST]) ||
        !rival_has_room(r->view, w) ||
        rival_tokens(r, w) > r->knobs[Z] * r->aux[MEAN])
        return RIVAL_NEVER;
    return rival_tokens(r, w);
}

static uint32_t pick_d(struct rival *r)
{
    uint32_t host = rival_least(r, host_tokens, rival_tokens), w;

    if (host == BT_PLACE_NONE)
        return host;
    r->aux[HOST] = host;
    r->aux[MEAN] = host_tokens(r, host);
    w = rival_least(r, below_mean, NULL);
    return w != BT_PLACE_NONE ? w : rival_least(r, rival_tokens, NULL);
}

static uint32_t pick(struct rival *r)
{
    return r->side == RIVAL_PREFILL ? pick_p(r) : pick_d(r);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    enum bt_status s = rival_sequential(state, view, out, pick);
    struct bt_place_source source;

    if (s != BT_OK || out->chosen.p == BT_PLACE_NONE)
        return s;
    source = rival_own_tier(view, out->chosen.p);
    rival_load(view, out, &source);
    return s;
}

const struct bt_policy bt_policy_dualpath = {
    .name = "dualpath",
    .summary = "DualPath-like: fewest tokens on both sides, prefix from disk",
    .place = place,
    .knobs = knobs,
};
