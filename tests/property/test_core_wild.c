/* Policies that answer by the dice: see test_core_wild.h. */
#include "test_core_wild.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000LL

static bool dice(struct bt_policy_state *state, unsigned int percent)
{
    return bt_rng_below(&state->rng, 100) < percent;
}

/* A position that `ok` allows, or BT_PLACE_NONE. */
static uint32_t any_worker(struct bt_policy_state *state,
                           const struct bt_place_view *view,
                           bool (*ok)(const struct bt_place_worker *worker))
{
    uint32_t first = (uint32_t)bt_rng_below(&state->rng, view->worker_count);

    for (uint32_t i = 0; i < view->worker_count; i++) {
        uint32_t at = (first + i) % view->worker_count;

        if (ok(&view->workers[at]))
            return at;
    }
    return BT_PLACE_NONE;
}

static bool prefills(const struct bt_place_worker *worker)
{
    return worker->prefill_ok;
}

static bool decodes(const struct bt_place_worker *worker)
{
    return worker->decode_ok;
}

static bool serves_alone(const struct bt_place_worker *worker)
{
    return worker->decode_ok && (worker->local_ok || worker->prefill_ok);
}

static void wild_source(struct bt_policy_state *state,
                        const struct bt_place_view *view,
                        struct bt_place_candidate *c)
{
    if (view->prompt_tokens < 16 || !dice(state, 50))
        return;
    c->source = (struct bt_place_source){
        .tokens = 16,
        .worker = (uint32_t)bt_rng_below(&state->rng, view->worker_count),
        .tier = (enum bt_tier)bt_rng_below(&state->rng, 3)};
    c->terms.fetch_bytes = bt_rng_below(&state->rng, 1 << 24);
    c->terms.fetch_ns = (int64_t)(1 + bt_rng_below(&state->rng, 40)) * MS;
    if (c->terms.overlap_p < 16)
        c->terms.overlap_p = 16;
}

static enum bt_status place_wild(struct bt_policy_state *state,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out)
{
    const struct bt_place_candidate none = {.p = BT_PLACE_NONE,
                                            .d = BT_PLACE_NONE};
    struct bt_place_candidate c = none;
    uint32_t alone = any_worker(state, view, serves_alone);

    c.p = any_worker(state, view, prefills);
    c.d = any_worker(state, view, decodes);
    if (alone != BT_PLACE_NONE && dice(state, 20))
        c.p = c.d = alone;
    if (c.p == BT_PLACE_NONE || c.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    bt_place_terms(view, c.p, c.d, &c.terms);
    wild_source(state, view, &c);
    if (view->may_hold && dice(state, 3))
        return BT_OVERLOADED;
    if (view->may_hold && dice(state, 50)) {
        if (dice(state, 50))
            out->chosen = c;
        return BT_AGAIN;
    }
    *out = (struct bt_placement){.chosen = c,
                                 .second = none,
                                 .baseline = none,
                                 .considered = 1,
                                 .reason = BT_REASON_JOINT};
    return BT_OK;
}

static enum bt_status handoff_wild(struct bt_policy_state *state,
                                   const struct bt_place_view *view, uint32_t p,
                                   struct bt_placement *out)
{
    if (dice(state, 10))
        return BT_NO_WORKER;
    memset(out, 0, sizeof(*out));
    out->chosen.p = p;
    out->chosen.d = (uint32_t)bt_rng_below(&state->rng, view->worker_count);
    if (view->workers[out->chosen.d].decode_ok)
        bt_place_terms(view, p, out->chosen.d, &out->chosen.terms);
    return BT_OK;
}

static size_t memory_wild(const struct bt_policy_limits *limits)
{
    return limits->workers_max * sizeof(uint64_t);
}

static void placed_wild(struct bt_policy_state *state,
                        const struct bt_place_view *view,
                        const struct bt_placement *placement)
{
    uint64_t *counts = state->memory;

    assert_true(placement->chosen.d < view->worker_count);
    counts[placement->chosen.d]++;
}

static const struct bt_policy policies[WILD_POLICIES] = {
    {.name = "wild_fcfs",
     .summary = "for tests",
     .place = place_wild,
     .handoff = handoff_wild,
     .placed = placed_wild,
     .memory = memory_wild},
    {.name = "wild_slack",
     .summary = "for tests",
     .place = place_wild,
     .handoff = handoff_wild,
     .order_rule = BT_ORDER_SLACK},
    {.name = "wild_wspt",
     .summary = "for tests",
     .place = place_wild,
     .memory = memory_wild,
     .placed = placed_wild,
     .order_rule = BT_ORDER_WSPT}};

const struct bt_policy *wild_policy(size_t i)
{
    assert_true(i < WILD_POLICIES);
    return &policies[i];
}
