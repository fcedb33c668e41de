/* What-if: the same view as a real request and the same policy, or another one,
 * on a copy of the core's head so that neither time nor the policy's state
 * moves. Nothing is booked; only scratch memory is written. */
#include "core_internal.h"

#include <string.h>

static void placement_none(struct bt_placement *out)
{
    *out = (struct bt_placement){
        .chosen = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .second = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .baseline = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE},
        .reason = BT_REASON_NO_PREFILL,
    };
}

/* A head whose policy may scribble on its memory: a copy of the real one, or
 * none yet for a policy that is only asked. */
static void head_of(const struct bt_core *core, struct bt_core *head)
{
    *head = *core;
    if (core->policy_memory_bytes == 0)
        return;
    memcpy(core->guest_memory, core->policy_state.memory,
           core->policy_memory_bytes);
    head->policy_state.memory = core->guest_memory;
}

static bool head_of_guest(const struct bt_core *core,
                          const struct bt_policy *policy, const double *knobs,
                          struct bt_core *head)
{
    struct bt_policy_limits limits = core_policy_limits(&core->config);
    size_t bytes = policy->memory == NULL ? 0 : policy->memory(&limits);

    if (bytes > core->guest_memory_bytes)
        return false;
    *head = *core;
    head->config.policy = policy;
    bt_policy_state_init(&head->policy_state, core->config.seed);
    if (knobs != NULL)
        memcpy(head->policy_state.knobs, knobs,
               sizeof(head->policy_state.knobs));
    else
        bt_policy_defaults(policy, head->policy_state.knobs);
    if (bytes > 0) {
        memset(core->guest_memory, 0, bytes);
        head->policy_state.memory = core->guest_memory;
    }
    return true;
}

static bool is_whole(const struct bt_core *core, const struct place_query *q,
                     bool pd_allowed)
{
    return !pd_allowed || q->prompt_tokens < core->config.pd_min_tokens ||
           q->prompt_tokens < core->config.models[q->model].block_tokens;
}

static void choose(struct bt_core *head, const struct place_query *q,
                   const struct bt_place_view *view, bool pair,
                   struct bt_placement *out)
{
    if (pair &&
        core_policy_choose(head, &head->policy_state, view, q, out) == BT_OK)
        return;
    if (core_plain_choose(head, view, out) == BT_OK) {
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
    struct bt_core head;
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
    head_of(core, &head);
    q.output_tokens = core_expected_output(core, model, max_tokens);
    q.ttft_slo_ns = core_ttft_slo_ns(core, model, q.prompt_tokens);
    if (now_ns > head.now_ns)
        head.now_ns = now_ns;
    found = core_eligible_mark(&head, &q);
    core_view_build(&head, &q, &view);
    choose(&head, &q, &view, found.p_count > 0 && found.d_count > 0,
           placement_out);
    return bt_place_table(&view, table, table_max);
}

enum bt_status bt_core_ask(const struct bt_core *core,
                           const struct bt_policy *policy, const double *knobs,
                           const struct bt_ev_request *request,
                           struct bt_placement *placement_out)
{
    struct place_query q = {
        .model = request->model,
        .prompt_tokens =
            request->prompt_tokens == 0 ? 1 : request->prompt_tokens,
        .tokens_known = request->tokens_known,
        .keys = request->keys,
        .key_count = request->key_count,
        .body_bytes = request->body_bytes,
    };
    struct bt_placement placement;
    struct bt_place_view view;
    struct bt_core head;
    struct eligible found;
    bool whole;

    if (request->model >= core->config.model_count ||
        (request->key_count != 0 && request->keys == NULL))
        return BT_INVALID;
    if (!head_of_guest(core, policy, knobs, &head))
        return BT_LIMIT;
    q.output_tokens = core_expected_output(core, q.model, request->max_tokens);
    q.ttft_slo_ns = core_ttft_slo_ns(core, q.model, q.prompt_tokens);
    whole = is_whole(core, &q, request->pd_allowed);
    found = core_eligible_mark(&head, &q);
    core_view_build(&head, &q, &view);
    if (found.p_count == 0 && !whole && core->config.pd_required)
        return BT_NO_WORKER;
    choose(&head, &q, &view, !whole && found.p_count > 0, &placement);
    if (placement.chosen.d == BT_PLACE_NONE)
        return BT_NO_WORKER;
    *placement_out = placement;
    return BT_OK;
}
