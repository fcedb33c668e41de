/* The const table of policies and what they share at the end of a choice: the
 * runner-up, the naive choice, the reason. Adding a policy: its file, its
 * extern in rivals.h, its line here.
 */
#include "rivals.h"

#include <string.h>

static const struct bt_policy *const policies[] = {
    &bt_policy_round_robin,
    &bt_policy_least_loaded,
    &bt_policy_prefix_load,
    &bt_policy_joint,
    /* rivals, in the order of the evaluation's catalogue */
    &bt_policy_random,
    &bt_policy_jsq,
    &bt_policy_power_of_two,
    &bt_policy_prefix_only,
    &bt_policy_cla,
    &bt_policy_dynamo,
    &bt_policy_dynamo_wspt,
    &bt_policy_lmetric,
    &bt_policy_two_tier,
    &bt_policy_sglang,
    &bt_policy_mooncake,
    &bt_policy_mooncake_fetch,
    &bt_policy_flowkv,
    &bt_policy_llmd,
    &bt_policy_llmd_token,
    &bt_policy_netkv_static,
    &bt_policy_netkv,
    &bt_policy_dualpath,
    &bt_policy_atom,
    &bt_policy_conditional,
    &bt_policy_deflect,
    /* twins of joint */
    &bt_policy_s1,
    &bt_policy_s2,
    &bt_policy_s3,
    &bt_policy_j0,
};

#define POLICIES (sizeof(policies) / sizeof(policies[0]))

const struct bt_policy *bt_policy_at(size_t i)
{
    return i < POLICIES ? policies[i] : NULL;
}

const struct bt_policy *bt_policy_find(const char *name)
{
    for (size_t i = 0; i < POLICIES; i++)
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    return NULL;
}

void bt_policy_state_init(struct bt_policy_state *state, uint64_t seed)
{
    memset(state, 0, sizeof(*state));
    bt_rng_seed(&state->rng, seed);
}

void place_finish_scan(struct bt_placement *out,
                       const struct bt_place_view *view,
                       const struct place_scan *scan,
                       const struct bt_place_candidate *baseline,
                       enum bt_reason reason)
{
    out->baseline = *baseline;
    out->considered = scan->feasible;
    out->second =
        place_is_same(&out->chosen, &scan->best) ? scan->second : scan->best;
    out->reason = reason;
    if (scan->feasible == 1)
        out->reason = BT_REASON_ONLY_ONE;
    if (out->chosen.p == BT_PLACE_NONE && !place_has_pool(view))
        out->reason = BT_REASON_NO_PREFILL;
}

void place_finish(struct bt_placement *out, const struct bt_place_view *view,
                  const struct bt_place_candidate *baseline,
                  enum bt_reason reason)
{
    struct place_scan scan;

    place_scan(view, &scan);
    place_finish_scan(out, view, &scan, baseline, reason);
}
