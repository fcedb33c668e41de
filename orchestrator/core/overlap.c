/* How much of a prompt each worker holds: the prefix index by row, guesses in
 * place of rows that are not believed, then per tier the largest of a worker's
 * ranks. Decides what the record says of it; what a hit is worth is credit.c's.
 *
 * A guess knows no tier: its blocks count as the events place them where these
 * reach as deep, else as if they were on the device. Invariant: the scratch
 * depths are those of the last view, until the next is built. */
#include "core_internal.h"

#include <string.h>

static bool row_is_needed(const struct bt_core *core, uint32_t row)
{
    return core->rows[row].guessed && core->marks[core->rows[row].worker] != 0;
}

static bool any_guess_is_needed(const struct bt_core *core)
{
    for (uint32_t row = 0; row < core->row_count; row++) {
        if (row_is_needed(core, row))
            return true;
    }
    return false;
}

static void put_guess(uint32_t *depths, uint32_t guess)
{
    bool told = depths[BT_TIERS - 1] >= guess;

    for (uint32_t t = 0; t < BT_TIERS; t++) {
        if (!told || depths[t] > guess || t == BT_TIERS - 1)
            depths[t] = guess;
    }
}

static void put_guesses(const struct bt_core *core, const struct place_query *q,
                        size_t keys)
{
    bt_approx_match(core->approx, q->keys, keys, core->guess_now_ns,
                    core->guess_depths);
    for (uint32_t row = 0; row < core->row_count; row++) {
        if (core->rows[row].guessed)
            put_guess(&core->row_depths[(size_t)row * BT_TIERS],
                      core->guess_depths[row]);
    }
}

/* By worker: per tier the largest of its ranks. */
static void fold_ranks(const struct bt_core *core)
{
    memset(core->depths, 0,
           (size_t)core->config.worker_count * BT_TIERS *
               sizeof(*core->depths));
    for (uint32_t row = 0; row < core->row_count; row++) {
        const uint32_t *from = &core->row_depths[(size_t)row * BT_TIERS];
        uint32_t *to = &core->depths[(size_t)core->rows[row].worker * BT_TIERS];

        for (uint32_t t = 0; t < BT_TIERS; t++) {
            if (from[t] > to[t])
                to[t] = from[t];
        }
    }
}

void core_overlap_match(const struct bt_core *core, const struct place_query *q)
{
    size_t keys = core_key_count(core, q);

    bt_prefix_index_match_tiers(core->index, q->keys, keys, core->row_depths);
    if (core->guessed_rows > 0 && keys > 0 && any_guess_is_needed(core))
        put_guesses(core, q, keys);
    if (core->row_depths != core->depths)
        fold_ranks(core);
}

uint32_t core_overlap_blocks(const struct bt_core *core, uint32_t slot)
{
    const struct bt_core_worker_config *config = core->workers[slot].config;
    bool tiers =
        config->host.rate_bytes_per_s > 0 || config->disk.rate_bytes_per_s > 0;

    return core->depths[(size_t)slot * BT_TIERS +
                        (tiers ? BT_TIER_DEVICE : BT_TIERS - 1)];
}

/* Of the worker's ranks the one that holds most, then most on its device, then
 * the lowest. */
static uint32_t best_rank(const struct bt_core *core, const struct worker *w)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < w->ranks; i++) {
        const uint32_t *a = &core->row_depths[(size_t)(w->row + i) * BT_TIERS];
        const uint32_t *b =
            &core->row_depths[(size_t)(w->row + best) * BT_TIERS];

        if (a[BT_TIERS - 1] > b[BT_TIERS - 1] ||
            (a[BT_TIERS - 1] == b[BT_TIERS - 1] &&
             a[BT_TIER_DEVICE] > b[BT_TIER_DEVICE]))
            best = i;
    }
    return best;
}

static enum bt_overlap_source source_of(const struct bt_core *core,
                                        const struct worker *w, uint32_t rank,
                                        size_t keys)
{
    const struct row *row = &core->rows[w->row + rank];

    if (keys == 0 || (row->stream == BT_STREAM_ABSENT && !row->guessed))
        return BT_PREFIX_UNKNOWN;
    if (row->guessed)
        return BT_PREFIX_APPROX;
    return w->hits.disproved ? BT_PREFIX_DISCOUNTED : BT_PREFIX_EVENTS;
}

/* Of everyone that could have prefilled instead: what all of them have does not
 * tell one from another. */
static uint32_t common_tokens(const struct bt_core *core, bool alone)
{
    unsigned int role = alone ? BT_ROLE_DECODE : BT_ROLE_PREFILL;
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if ((core->marks[i] & role) != 0 &&
            core->view_workers[i].overlap_tokens < least)
            least = core->view_workers[i].overlap_tokens;
    }
    return least == UINT32_MAX ? 0 : least;
}

/* Workers of the model that by their events hold `blocks` from the start (keys
 * do not name the model, and a worker's ranks are one); the worker itself is
 * one, also by a guess. */
static uint32_t copies_of(const struct bt_core *core,
                          const struct place_query *q, uint32_t blocks)
{
    uint32_t copies = 0, last = NO_SLOT;

    if (blocks == 0)
        return 0;
    for (uint32_t i = 0; i < core->row_count; i++) {
        const struct row *row = &core->rows[i];
        size_t any = (size_t)i * BT_TIERS + BT_TIERS - 1;

        if (row->guessed || row->worker == last ||
            core->row_depths[any] < blocks ||
            core->workers[row->worker].config->model != q->model)
            continue;
        last = row->worker;
        copies++;
    }
    return copies == 0 ? 1 : copies;
}

/* Engines always compute the last token: they find whole blocks before it. */
static uint32_t findable(const struct bt_core *core,
                         const struct place_query *q, uint32_t tokens)
{
    uint32_t block = core->config.models[q->model].block_tokens;
    uint32_t most = (q->prompt_tokens - 1) / block * block;

    return tokens < most ? tokens : most;
}

/* Do we know that it is this rank? Prompts that were sent to no rank in
 * particular are guessed on rank 0. */
static bool rank_is_known(const struct bt_core *core, const struct worker *w,
                          uint32_t rank)
{
    const struct row *row = &core->rows[w->row + rank];

    return rank > 0 || !row->guessed || row->seeded;
}

void core_overlap_note(struct bt_core *core, struct request *r,
                       const struct place_query *q, uint32_t slot)
{
    const struct worker *w = &core->workers[slot];
    struct bt_decision *record = &r->record;
    uint32_t blocks = core_overlap_blocks(core, slot);
    size_t keys = core_key_count(core, q);

    record->overlap_rank = best_rank(core, w);
    record->overlap_source = source_of(core, w, record->overlap_rank, keys);
    record->overlap_raw_tokens = core_tokens_of(core, q, blocks);
    record->credit = w->hits.credit;
    record->common_tokens = common_tokens(core, bt_worker_is_none(r->p));
    record->copies = copies_of(core, q, blocks);
    r->has_rank = w->ranks > 1 && core->view_workers[slot].overlap_tokens > 0 &&
                  rank_is_known(core, w, record->overlap_rank);
    r->predicted_known = keys > 0;
    r->predicted_fetch = r->source.tokens > 0 || record->prefetched;
    r->predicted_tokens = findable(core, q, record->overlap_raw_tokens);
    bt_prefix_index_touch(core->index, q->keys, blocks);
    core_guess_prompt(core, r, slot, record->overlap_rank);
}
