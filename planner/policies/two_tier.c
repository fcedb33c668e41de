/* Dynamo's two_tier router, load first, each pool by itself: when loads are
 * uneven, or no worker holds enough of the prompt, the least loaded worker;
 * else the least loaded of those that hold most. Load is active requests,
 * overlap what the device holds. Sees no link.
 */
#include "rivals.h"

enum { ABS, REL, CACHE };

static const struct bt_policy_knob knobs[] = {
    {"abs", 32, 0, 65536, "requests between the ends that count as uneven"},
    {"rel", 1.1, 0, 64, "and their ratio"},
    {"cache", 0.5, 0, 1, "share of the prompt worth following"},
    {0},
};

static double minus_match(const struct rival *r, uint32_t w)
{
    return -rival_match(r->view, w);
}

static uint32_t pick(struct rival *r)
{
    const double *k = r->knobs;
    double least, most, best, worst;

    rival_range(r, rival_requests, &least, &most);
    if (most - least > k[ABS] && most > k[REL] * least)
        return rival_least(r, rival_requests, NULL);
    rival_range(r, minus_match, &best, &worst);
    if (-best > k[CACHE])
        return rival_least(r, minus_match, rival_requests);
    return rival_least(r, rival_requests, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_two_tier = {
    .name = "two_tier",
    .summary = "least loaded, or the cached one while loads are even",
    .place = place,
    .knobs = knobs,
};
