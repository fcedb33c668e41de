/* Self-check: what a prefill was predicted to find in its worker's cache
 * against the cached tokens that the engine reports for it (PREFILL_DONE; for a
 * request that one worker served alone, DECODE_DONE). Decides what a worker's
 * hits are worth.
 *
 *   credit = sum of min(found + one block, predicted) / sum of predicted
 *
 * over its checks with at least a block predicted, each one's share 31/32 of
 * the next one's, so about the last 32 count; 1 before the first. One block is
 * forgiven, since what is full and what is reported differ by one at the edge.
 * Below 0.5, after 8 such checks, the worker is disproved: suspect, and its
 * overlap times the credit, whole blocks; at 0.8 that ends. The prediction that
 * is checked is never discounted, or nobody could recover.
 *
 * A disproved worker is avoided where others hold the same, and then nothing
 * would ever show that it is sound: 5 s without a check halve the doubt, 1 -
 * credit, and what was seen before weighs a quarter, so that a few checks
 * then decide. One that still lies is asked so often, and no more.
 *
 * Nothing reported and nothing found look alike (both 0): a 0 counts only of a
 * worker that has reported cached tokens at least once as this process. */
#include "core_internal.h"

#include "baton/base/units.h"

#define DECAY       (31.0 / 32)
#define SCORED_MIN  8u
#define LOSES_AT    0.5
#define RECOVERS    0.8
#define AGE_NS      (5 * BT_NS_PER_S)
#define AGE_STEP_NS BT_NS_PER_S
#define AGE_WEIGHT  0.25

void core_credit_start(struct bt_core *core, uint32_t slot)
{
    core->workers[slot].hits = (struct hits){.credit = 1};
    core_worker_stream_update(core, slot);
}

uint32_t core_credit_of(const struct worker *w, uint32_t blocks)
{
    if (!w->hits.disproved)
        return blocks;
    return (uint32_t)(w->hits.credit * blocks);
}

static void score(struct hits *h, uint32_t predicted, uint32_t found,
                  uint32_t block)
{
    uint64_t good = (uint64_t)found + block;

    if (good > predicted)
        good = predicted;
    h->scored++;
    h->came_true = h->came_true * DECAY + (double)good;
    h->sum = h->sum * DECAY + predicted;
    h->credit = h->came_true / h->sum;
    if (h->credit >= RECOVERS)
        h->disproved = false;
    else if (h->scored >= SCORED_MIN && h->credit < LOSES_AT)
        h->disproved = true;
}

static void age(struct hits *h)
{
    h->credit = 1 - (1 - h->credit) / 2;
    h->sum *= AGE_WEIGHT;
    h->came_true = h->sum * h->credit;
    if (h->credit >= RECOVERS)
        h->disproved = false;
}

void core_credit_age(struct bt_core *core)
{
    if (core->now_ns < core->credit_age_at_ns)
        return;
    core->credit_age_at_ns = core->now_ns + AGE_STEP_NS;
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        struct hits *h = &core->workers[i].hits;

        if (!h->disproved || core->now_ns - h->scored_ns < AGE_NS)
            continue;
        age(h);
        h->scored_ns = core->now_ns;
        core_worker_stream_update(core, i);
    }
}

/* cached_tokens 0: none, or not reported. */
void core_credit_check(struct bt_core *core, struct request *r,
                       struct bt_worker_id worker, uint32_t cached_tokens)
{
    uint32_t slot = bt_worker_slot(worker), predicted = r->predicted_tokens;
    uint32_t block = core->config.models[r->ask.model].block_tokens;
    struct hits *h;

    if (!core->config.self_check || !r->predicted_known ||
        !core_worker_is_current(core, worker))
        return;
    r->predicted_known = false;
    h = &core->workers[slot].hits;
    if (cached_tokens == 0 && !h->reports)
        return;
    h->reports = true;
    if (cached_tokens > r->prompt_tokens)
        cached_tokens = r->prompt_tokens;
    h->checks++;
    h->predicted += predicted;
    h->actual += cached_tokens;
    if (cached_tokens > predicted && !r->predicted_fetch)
        h->unforeseen += cached_tokens - predicted;
    if (predicted < block && cached_tokens >= block && !r->predicted_fetch)
        h->unforeseen_checks++;
    if (predicted < block)
        return;
    score(h, predicted, cached_tokens, block);
    h->scored_ns = core->now_ns;
    core_worker_stream_update(core, slot);
}
