/* Power of two choices: two distinct workers of each pool at random, the less
 * loaded of them. The gateway that does so polls loads every few seconds, so by
 * default each worker's reported requests are kept until they are that old;
 * ledger=1 looks at our own bookings instead. Sees neither prefix nor link.
 */
#include "rivals.h"

enum { LEDGER, PERIOD_S };

static const struct bt_policy_knob knobs[] = {
    {"ledger", 0, 0, 1, "1: own bookings, in tokens, instead of polls"},
    {"period_s", 5, 0, 3600, "seconds between two polls"},
    {0},
};

/* Memory: last poll by registry slot. id 0: none. */
struct poll {
    uint32_t id;
    int64_t at_ns;
    uint64_t load;
};

static size_t memory(const struct bt_policy_limits *limits)
{
    (void)limits; /* slots of a view are known to be below this alone */
    return (BT_WORKER_SLOTS_MAX + 1u) * sizeof(struct poll);
}

static uint64_t seen(const struct bt_place_worker *x)
{
    return (uint64_t)x->seen_running + x->seen_waiting;
}

static void poll_all(const struct rival *r)
{
    struct poll *polls = r->state->memory;
    int64_t period_ns = (int64_t)(r->knobs[PERIOD_S] * 1e9);

    for (uint32_t w = 0; polls != NULL && w < r->view->worker_count; w++) {
        const struct bt_place_worker *x = &r->view->workers[w];
        struct poll *poll = &polls[bt_worker_slot(x->id)];

        if (poll->id == x->id.v && r->view->now_ns - poll->at_ns < period_ns)
            continue;
        *poll = (struct poll){x->id.v, r->view->now_ns, seen(x)};
    }
}

static double load(const struct rival *r, uint32_t w)
{
    const struct bt_place_worker *x = &r->view->workers[w];
    const struct poll *polls = r->state->memory;

    if (r->knobs[LEDGER] > 0)
        return rival_tokens(r, w);
    return (double)(polls != NULL ? polls[bt_worker_slot(x->id)].load
                                  : seen(x));
}

/* The n-th eligible worker. */
static uint32_t nth(const struct rival *r, uint64_t n)
{
    for (uint32_t w = 0; w < r->view->worker_count; w++)
        if (rival_may(r, w) && n-- == 0)
            return w;
    return BT_PLACE_NONE;
}

static uint32_t pick(struct rival *r)
{
    double least, most;
    uint32_t count = rival_range(r, load, &least, &most), a, b;
    uint64_t i, j;

    if (count < 2)
        return nth(r, 0);
    i = bt_rng_below(&r->state->rng, count);
    j = bt_rng_below(&r->state->rng, count - 1);
    a = nth(r, i);
    b = nth(r, j < i ? j : j + 1);
    return load(r, b) < load(r, a) ? b : a;
}

static uint32_t pick_polled(struct rival *r)
{
    poll_all(r);
    return pick(r);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick_polled);
}

const struct bt_policy bt_policy_power_of_two = {
    .name = "power_of_two",
    .summary = "two random workers of each pool, the less loaded of them",
    .place = place,
    .memory = memory,
    .knobs = knobs,
};
