/* What-if: the same view and the same policy as a real request, on a copy of
 * the core's head so that neither time nor the policy's state moves. Nothing
 * is booked; only scratch memory is written. */
#include "core_internal.h"

static void placement_none(struct bt_placement *out)
{
    *out = (struct bt_placement){
        .chosen = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .second = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .baseline = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .reason = BT_REASON_NO_PREFILL,
    };
}

static void choose(struct bt_core *head, const struct place_query *q,
                   const struct bt_place_view *view,
                   const struct eligible *found, struct bt_placement *out)
{
    if (found->p_count > 0 && found->d_count > 0 &&
        core_policy_choose(head, &head->policy_state, view, q, out) == BT_OK)
        return;
    if (found->d_count > 0 && core_plain_choose(head, view, out) == BT_OK) {
        out->reason = BT_REASON_NO_PREFILL;
        return;
    }
    placement_none(out);
}

size_t bt_core_explain(const struct bt_core *core, int64_t now_ns,
                       uint32_t model, uint32_t prompt_tokens,
                       const uint64_t *keys, size_t key_count,
                       uint32_t max_tokens, struct bt_placement *placement_out,
                       struct bt_place_candidate *table, size_t table_max)
{
    struct bt_core head = *core;
    uint32_t expected = core->config.expected_output_tokens;
    struct place_query q = {
        .model = model,
        .prompt_tokens = prompt_tokens == 0 ? 1 : prompt_tokens,
        .tokens_known = keys != NULL,
        .keys = keys,
        .key_count = key_count,
    };
    struct bt_place_view view;
    struct eligible found;

    if (model >= core->config.model_count) {
        placement_none(placement_out);
        return 0;
    }
    if (max_tokens != 0 && (max_tokens < expected || expected == 0))
        expected = max_tokens;
    q.output_tokens = expected == 0 ? 1 : expected;
    if (now_ns > head.now_ns)
        head.now_ns = now_ns;
    found = core_eligible_mark(&head, &q);
    core_view_build(&head, &q, &view);
    choose(&head, &q, &view, &found, placement_out);
    return bt_place_table(&view, table, table_max);
}
