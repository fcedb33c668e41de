/* KV events. Each (worker, rank) is a row: a worker of the prefix index, with a
 * stream of its own; a worker's state is the worst of its rows'. Decides what a
 * change of state does to what is indexed: a hole ages it, and what is aged
 * still when the hole is over is dropped. Leaves the decoding to the shell, the
 * guesses to guess.c and what a hit was worth to credit.c.
 *
 * Invariant: rows of a worker follow each other by rank; rank 0 is used in the
 * index, always. */
#include "core_internal.h"

static uint32_t ranks_of(const struct bt_core_worker_config *config)
{
    return config->ranks == 0 ? 1 : config->ranks;
}

uint32_t core_rows_total(const struct bt_core_config *config)
{
    uint32_t rows = 0;

    for (uint32_t i = 0; i < config->worker_count; i++)
        rows += ranks_of(&config->workers[i]);
    return rows;
}

void core_rows_start(struct bt_core *core)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        struct worker *w = &core->workers[i];

        w->row = at;
        w->ranks = ranks_of(w->config);
        for (; at < w->row + w->ranks; at++)
            core->rows[at] = (struct row){.worker = i,
                                          .stream = BT_STREAM_ABSENT,
                                          .cause = BT_CAUSE_NO_EVENTS};
        core_credit_start(core, i);
    }
    core_guess_start(core);
}

int core_stream_badness(enum bt_stream_state state)
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
    case BT_STREAM_SUSPECT:
        return 5;
    }
    return 5;
}

void core_worker_stream_update(struct bt_core *core, uint32_t slot)
{
    struct worker *w = &core->workers[slot];
    const struct row *worst = &core->rows[w->row];

    for (uint32_t i = w->row + 1; i < w->row + w->ranks; i++) {
        if (core_stream_badness(core->rows[i].stream) >
            core_stream_badness(worst->stream))
            worst = &core->rows[i];
    }
    w->stream = w->hits.disproved ? BT_STREAM_SUSPECT : worst->stream;
    w->cause = w->hits.disproved ? BT_CAUSE_DISPROVED : worst->cause;
}

static void row_clear(struct bt_core *core, uint32_t row)
{
    bt_prefix_index_drop_worker(core->index, row);
    core_guess_clear(core, row);
}

static void rows_clear(struct bt_core *core, const struct worker *w)
{
    for (uint32_t row = w->row; row < w->row + w->ranks; row++)
        row_clear(core, row);
}

void core_rows_forget(struct bt_core *core, uint32_t slot)
{
    rows_clear(core, &core->workers[slot]);
    core_credit_start(core, slot);
}

/* NO_SLOT: there is no such worker or rank. */
static uint32_t row_of(const struct bt_core *core, uint32_t worker,
                       uint32_t rank)
{
    if (worker >= core->config.worker_count ||
        rank >= core->workers[worker].ranks)
        return NO_SLOT;
    return core->workers[worker].row + rank;
}

static enum bt_status store_event(struct bt_core *core,
                                  const struct bt_ev_kv_store *ev)
{
    uint32_t row = row_of(core, ev->worker, ev->rank);
    enum bt_status status;

    if (row == NO_SLOT || ev->store == NULL)
        return BT_INVALID;
    status = bt_prefix_index_store(core->index, row, 0, ev->store);
    if (status != BT_NOT_FOUND)
        core_guess_store(core, row, ev->store);
    return status;
}

static void remove_some(struct bt_core *core, uint32_t row,
                        const struct bt_ev_kv_remove *ev, size_t from,
                        size_t count)
{
    if (ev->remaining != NULL)
        bt_prefix_index_remaining(core->index, row, 0, ev->hashes + from,
                                  ev->remaining + from, count, ev->tier);
    else
        bt_prefix_index_remove(core->index, row, 0, ev->hashes + from, count,
                               ev->tier);
}

static enum bt_status remove_event(struct bt_core *core,
                                   const struct bt_ev_kv_remove *ev)
{
    uint32_t row = row_of(core, ev->worker, ev->rank);

    if (row == NO_SLOT || (ev->count > 0 && ev->hashes == NULL))
        return BT_INVALID;
    if (!core->rows[row].guessed) {
        remove_some(core, row, ev, 0, ev->count);
        return BT_OK;
    }
    for (size_t i = 0; i < ev->count; i++) {
        uint64_t key;
        bool known = core_guess_key(core, row, ev->hashes[i], &key);

        remove_some(core, row, ev, i, 1);
        if (known)
            core_guess_removed(core, row, key);
    }
    return BT_OK;
}

static enum bt_status clear_event(struct bt_core *core,
                                  const struct bt_ev_kv_clear *ev)
{
    uint32_t row = row_of(core, ev->worker, ev->all_ranks ? 0 : ev->rank);

    if (row == NO_SLOT)
        return BT_INVALID;
    if (ev->all_ranks) {
        rows_clear(core, &core->workers[ev->worker]);
    } else if (!ev->has_tier) {
        row_clear(core, row);
    } else {
        bt_prefix_index_clear_tier(core->index, row, 0, ev->tier);
        if (ev->tier == BT_TIER_DEVICE)
            core_guess_clear(core, row);
    }
    return BT_OK;
}

static enum bt_status stream_event(struct bt_core *core,
                                   const struct bt_ev_kv_stream *ev)
{
    uint32_t row = row_of(core, ev->worker, ev->rank);

    if (row == NO_SLOT)
        return BT_INVALID;
    core->rows[row].stream = ev->state;
    core->rows[row].cause = ev->cause;
    if (ev->cause == BT_CAUSE_AGED_OUT)
        bt_prefix_index_drop_aged(core->index, row, 0);
    else if ((ev->state == BT_STREAM_DEGRADED && ev->cause != BT_CAUSE_LATE) ||
             ev->state == BT_STREAM_SUSPECT)
        bt_prefix_index_age(core->index, row, 0);
    core_guess_mode(core, row);
    core_worker_stream_update(core, ev->worker);
    return BT_OK;
}

static enum bt_status counting_event(struct bt_core *core,
                                     const struct bt_ev_kv_counting *ev)
{
    uint32_t row = row_of(core, ev->worker, ev->rank);

    if (row == NO_SLOT)
        return BT_INVALID;
    bt_prefix_index_counting(core->index, row, 0, ev->counting);
    return BT_OK;
}

enum bt_status core_kv_event(struct bt_core *core, const struct bt_event *event)
{
    if (event->type == BT_EV_KV_STORE)
        return store_event(core, &event->u.kv_store);
    if (event->type == BT_EV_KV_REMOVE)
        return remove_event(core, &event->u.kv_remove);
    if (event->type == BT_EV_KV_CLEAR)
        return clear_event(core, &event->u.kv_clear);
    if (event->type == BT_EV_KV_STREAM)
        return stream_event(core, &event->u.kv_stream);
    if (event->type == BT_EV_KV_COUNTING)
        return counting_event(core, &event->u.kv_counting);
    return BT_INVALID;
}

void bt_core_approx_stats(const struct bt_core *core,
                          struct bt_approx_stats *out)
{
    *out = (struct bt_approx_stats){0};
    if (core->approx != NULL)
        bt_approx_stats_get(core->approx, out);
}

void bt_core_index_stats(const struct bt_core *core,
                         struct bt_prefix_index_stats *out)
{
    bt_prefix_index_stats_get(core->index, out);
}

const struct bt_prefix_index *bt_core_index(const struct bt_core *core)
{
    return core->index;
}

enum bt_status bt_core_own_key(const struct bt_core *core, uint32_t worker,
                               uint32_t rank, uint64_t hash, uint64_t *key_out)
{
    uint32_t row = row_of(core, worker, rank);

    if (row == NO_SLOT)
        return BT_NOT_FOUND;
    return bt_prefix_index_own_key(core->index, row, 0, hash, key_out);
}

uint32_t bt_core_row_count(const struct bt_core *core)
{
    return core->row_count;
}

uint32_t bt_core_row_of(const struct bt_core *core, uint32_t worker,
                        uint32_t rank)
{
    return row_of(core, worker, rank);
}

void bt_core_match(const struct bt_core *core, uint32_t model,
                   const uint64_t *keys, size_t count, uint32_t *depths_out)
{
    bt_prefix_index_match_tiers(core->index, keys, count, depths_out);
    for (uint32_t row = 0; row < core->row_count; row++) {
        const struct worker *w = &core->workers[core->rows[row].worker];

        for (uint32_t t = 0; w->config->model != model && t < BT_TIERS; t++)
            depths_out[(size_t)row * BT_TIERS + t] = 0;
    }
}
