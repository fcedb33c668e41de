/* Builds what a policy decides on, from registry, own ledger and the depths of
 * overlap.c.
 * Every worker is in the view at the position of its slot; those that may not
 * be chosen have prefill_ok and decode_ok false. Scratch arrays belong to the
 * core and live until the next build; the links are view_links.c's.
 *
 * A block in a slower tier counts there if the cost of loading it is known
 * (the worker has a model of a tier); else it counts as if it were on the
 * device: the engine loads it by itself and that is still no recomputation.
 *
 * When d has room (absolute): at once if a slot and the KV tokens are free.
 * Else `excess` of its running requests must end first. A full batch of
 * `batch` requests, staggered evenly over `output` steps, loses one every
 * step * output / batch:
 *
 *     decode_free = now + step * output * excess / batch
 *
 * where excess is the larger of (requests - slots + 1) and the number of
 * average requests whose tokens must be freed; output is the expected output
 * of a request; step is that of d's present batch.
 */
#include "core_internal.h"

#include "baton/planner/cost.h"

static uint64_t mul_sat(uint64_t a, uint64_t b)
{
    uint64_t product;

    if (__builtin_mul_overflow(a, b, &product))
        return (uint64_t)BT_COST_INFINITE;
    return product < (uint64_t)BT_COST_INFINITE ? product
                                                : (uint64_t)BT_COST_INFINITE;
}

/* Requests that must end before `need` tokens are free. */
static uint64_t excess_for_tokens(const struct bt_ledger_worker *booked,
                                  uint64_t capacity, uint64_t need)
{
    uint64_t over, average;

    if (capacity == 0 || booked->decode_requests == 0 ||
        booked->decode_tokens + need <= capacity)
        return 0;
    over = booked->decode_tokens + need - capacity;
    average = booked->decode_tokens / booked->decode_requests;
    if (average == 0)
        average = 1;
    over = (over + average - 1) / average;
    return over < booked->decode_requests ? over : booked->decode_requests;
}

static int64_t decode_free(const struct bt_core *core, const struct worker *w,
                           const struct bt_ledger_worker *booked, uint64_t need,
                           uint32_t output_tokens)
{
    uint64_t slots = w->config->decode_slots;
    uint64_t batch = booked->decode_requests, excess, wait;
    int64_t step;

    excess = excess_for_tokens(booked, w->kv_capacity_tokens, need);
    if (slots != 0 && batch >= slots) {
        if (excess < batch - slots + 1)
            excess = batch - slots + 1;
        batch = slots;
    }
    if (excess == 0)
        return core->now_ns;
    step = bt_decode_step_ns(w->model, batch, booked->decode_tokens);
    wait = mul_sat((uint64_t)step, output_tokens);
    wait = mul_sat(wait, excess) / batch;
    return core->now_ns + (int64_t)wait;
}

int64_t core_decode_free_ns(const struct bt_core *core, uint32_t slot,
                            uint64_t need, uint32_t output_tokens)
{
    struct bt_ledger_worker booked;

    bt_ledger_worker_get(core->ledger, slot, &booked);
    return decode_free(core, &core->workers[slot], &booked, need,
                       output_tokens);
}

uint32_t core_tokens_of(const struct bt_core *core, const struct place_query *q,
                        uint32_t blocks)
{
    uint64_t tokens = blocks;

    tokens *= core->config.models[q->model].block_tokens;
    return tokens < q->prompt_tokens ? (uint32_t)tokens : q->prompt_tokens;
}

static void fill_prefix(const struct bt_core *core, const struct place_query *q,
                        uint32_t slot, struct bt_place_worker *out)
{
    const struct worker *w = &core->workers[slot];
    const struct bt_core_worker_config *config = w->config;
    const uint32_t *depths = &core->depths[(size_t)slot * BT_TIERS];
    bool tiers =
        config->host.rate_bytes_per_s > 0 || config->disk.rate_bytes_per_s > 0;

    out->host = config->host;
    out->disk = config->disk;
    out->overlap_tokens = core_tokens_of(
        core, q, core_credit_of(w, core_overlap_blocks(core, slot)));
    if (!tiers)
        return;
    out->host_tokens =
        core_tokens_of(core, q, core_credit_of(w, depths[BT_TIER_HOST]));
    out->disk_tokens =
        core_tokens_of(core, q, core_credit_of(w, depths[BT_TIER_DISK]));
}

static void fill_worker(const struct bt_core *core, const struct place_query *q,
                        uint32_t slot, struct bt_place_worker *out)
{
    const struct worker *w = &core->workers[slot];
    struct bt_ledger_worker booked;

    bt_ledger_worker_get(core->ledger, slot, &booked);
    *out = (struct bt_place_worker){
        .id = core_worker_id_of(core, slot),
        .roles = w->config->roles,
        .prefill_ok = (core->marks[slot] & BT_ROLE_PREFILL) != 0,
        .decode_ok = (core->marks[slot] & BT_ROLE_DECODE) != 0,
        .prefill_tokens = booked.prefill_tokens,
        .prefill_requests = booked.prefill_requests,
        .prefill_free_ns = booked.prefill_free_ns,
        .decode_requests = booked.decode_requests,
        .decode_slots = w->config->decode_slots,
        .decode_tokens = booked.decode_tokens,
        .kv_capacity_tokens = w->kv_capacity_tokens,
        .decode_free_ns = decode_free(
            core, w, &booked, (uint64_t)q->prompt_tokens + q->output_tokens,
            q->output_tokens),
        .model = w->model,
        .local_ok = w->config->local_ok,
        .fetch_ok = w->config->fetch_ok,
        .chunk_tokens = w->config->chunk_tokens,
        .batch_tokens = w->config->batch_tokens,
        .prefill_error = w->prefill_error,
        .seen_running = w->running,
        .seen_waiting = w->waiting,
        .seen_kv_usage = w->kv_usage,
        .seen_at_ns = w->stats_at_ns,
    };
    fill_prefix(core, q, slot, out);
    if (out->prefill_free_ns < core->now_ns)
        out->prefill_free_ns = core->now_ns;
}

size_t core_key_count(const struct bt_core *core, const struct place_query *q)
{
    if (!q->tokens_known || q->keys == NULL)
        return 0;
    return q->key_count < core->config.prompt_blocks_max
               ? q->key_count
               : core->config.prompt_blocks_max;
}

static bool any_stream(const struct bt_core *core)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if (core->marks[i] != 0 &&
            (core->workers[i].stream != BT_STREAM_ABSENT ||
             core->approx != NULL))
            return true;
    }
    return false;
}

static void fill_request(const struct bt_core *core,
                         const struct place_query *q,
                         struct bt_place_view *view)
{
    bool queued = q->request != NULL && q->request->state == BT_REQUEST_QUEUED;

    view->keys = q->keys;
    view->key_count = core_key_count(core, q);
    view->body_bytes = q->body_bytes;
    view->ttft_slo_ns = q->ttft_slo_ns;
    view->tpot_slo_ns = core->config.slo.tpot_ns;
    view->waited_ns = q->waited_ns;
    view->waiting = core->queue_count - queued;
    view->may_hold = q->may_hold;
    view->lead_ns = core->config.hold.lead_ns;
    view->patience_ns = core->config.hold.patience_ns;
}

void core_view_build(const struct bt_core *core, const struct place_query *q,
                     struct bt_place_view *view_out)
{
    const struct bt_core_model_config *model = &core->config.models[q->model];
    uint32_t n = core->config.worker_count;

    core_overlap_match(core, q);
    for (uint32_t i = 0; i < n; i++)
        fill_worker(core, q, i, &core->view_workers[i]);
    core_view_links_fill(core);
    *view_out = (struct bt_place_view){
        .now_ns = core->now_ns,
        .prompt_tokens = q->prompt_tokens,
        .block_tokens = model->block_tokens,
        .output_tokens = q->output_tokens,
        .kv_bytes_per_token = model->kv_bytes_per_token,
        .workers = core->view_workers,
        .worker_count = n,
        .links = core->view_links,
        .overlap_known = q->tokens_known && any_stream(core),
        .bounds = core_view_links_bounds(core),
        .link_row = core->link_row,
        .link_column = core->link_column,
        .network = core->network,
        .mode = &model->mode,
        .prices = &core->config.prices,
    };
    fill_request(core, q, view_out);
}

/* Worst stream among the marked workers: absent only costs hits, degraded may
 * believe in blocks that are gone. */
enum bt_stream_state core_view_worst_stream(const struct bt_core *core,
                                            enum bt_stream_cause *cause_out)
{
    const struct worker *worst = NULL;

    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        const struct worker *w = &core->workers[i];

        if (core->marks[i] != 0 &&
            (worst == NULL || core_stream_badness(w->stream) >
                                  core_stream_badness(worst->stream)))
            worst = w;
    }
    *cause_out = worst == NULL ? BT_CAUSE_NO_EVENTS : worst->cause;
    return worst == NULL ? BT_STREAM_ABSENT : worst->stream;
}
