/* Builds what a policy decides on, from registry, own ledger and prefix index.
 * Every worker is in the view at the position of its slot; those that may not
 * be chosen have prefill_ok and decode_ok false. Scratch arrays belong to the
 * core and live until the next build; the links are view_links.c's.
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
                           const struct bt_ledger_worker *booked,
                           const struct place_query *q)
{
    uint64_t need = (uint64_t)q->prompt_tokens + q->output_tokens;
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
    step = bt_decode_step_ns(&w->config->compute, batch, booked->decode_tokens);
    wait = mul_sat((uint64_t)step, q->output_tokens);
    wait = mul_sat(wait, excess) / batch;
    return core->now_ns + (int64_t)wait;
}

static void fill_worker(const struct bt_core *core, const struct place_query *q,
                        uint32_t slot, struct bt_place_worker *out)
{
    const struct worker *w = &core->workers[slot];
    uint64_t overlap = core->depths[slot];
    struct bt_ledger_worker booked;

    overlap *= core->config.models[q->model].block_tokens;
    if (overlap > q->prompt_tokens)
        overlap = q->prompt_tokens;
    bt_ledger_worker_get(core->ledger, slot, &booked);
    *out = (struct bt_place_worker){
        .id = core_worker_id_of(core, slot),
        .roles = w->config->roles,
        .prefill_ok = (core->marks[slot] & BT_ROLE_PREFILL) != 0,
        .decode_ok = (core->marks[slot] & BT_ROLE_DECODE) != 0,
        .overlap_tokens = (uint32_t)overlap,
        .prefill_tokens = booked.prefill_tokens,
        .prefill_requests = booked.prefill_requests,
        .prefill_free_ns = booked.prefill_free_ns,
        .decode_requests = booked.decode_requests,
        .decode_slots = w->config->decode_slots,
        .decode_tokens = booked.decode_tokens,
        .kv_capacity_tokens = w->kv_capacity_tokens,
        .decode_free_ns = decode_free(core, w, &booked, q),
        .model = &w->config->compute,
    };
    if (out->prefill_free_ns < core->now_ns)
        out->prefill_free_ns = core->now_ns;
}

static void match_prefix(const struct bt_core *core,
                         const struct place_query *q)
{
    size_t count = q->key_count;

    if (!q->tokens_known || q->keys == NULL)
        count = 0;
    if (count > core->config.prompt_blocks_max)
        count = core->config.prompt_blocks_max;
    bt_prefix_index_match(core->index, q->keys, count, core->depths);
}

static bool any_stream(const struct bt_core *core)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if (core->marks[i] != 0 && core->workers[i].stream != BT_STREAM_ABSENT)
            return true;
    }
    return false;
}

void core_view_build(const struct bt_core *core, const struct place_query *q,
                     struct bt_place_view *view_out)
{
    const struct bt_core_model_config *model = &core->config.models[q->model];
    uint32_t n = core->config.worker_count;

    match_prefix(core, q);
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
    };
}

static int badness(enum bt_stream_state state)
{
    switch (state) {
    case BT_STREAM_EXACT:
        return 0;
    case BT_STREAM_PARTIAL:
        return 1;
    case BT_STREAM_SYNCING:
        return 2;
    case BT_STREAM_ABSENT:
        return 3;
    case BT_STREAM_DEGRADED:
        return 4;
    }
    return 4;
}

/* Worst stream among the marked workers: absent only costs hits, degraded may
 * believe in blocks that are gone. */
enum bt_stream_state core_view_worst_stream(const struct bt_core *core)
{
    enum bt_stream_state worst = BT_STREAM_EXACT;
    bool any = false;

    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if (core->marks[i] == 0)
            continue;
        any = true;
        if (badness(core->workers[i].stream) > badness(worst))
            worst = core->workers[i].stream;
    }
    return any ? worst : BT_STREAM_ABSENT;
}
