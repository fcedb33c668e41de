/* What stands in for events that cannot be believed: the approximate index, fed
 * with our own placements. Decides which rows are guessed, and what their
 * guesses learn from the events that still come.
 *
 *   absent, degraded, suspect   guessed
 *   syncing                     as before: a hole that is being filled keeps
 *                               what events told, a stream that begins or was
 *                               not believed is guessed on
 *   exact, partial              events; the guesses are forgotten
 *
 * On the step into degraded or suspect everything that events had told seeds
 * the guesses, with a full time to live: what was evicted unnoticed fades, what
 * is used stays. While it lasts stores add and removals take away. Of a prompt
 * placed on a worker with ranks nobody knows which one got it: the one it was
 * sent to, else rank 0. */
#include "core_internal.h"

/* Per tick; at ten ticks a second 262,144 entries of 120 s need 219. */
#define EXPIRE_PER_TICK 4096u

static bool is_blind(enum bt_stream_state state)
{
    return state == BT_STREAM_DEGRADED || state == BT_STREAM_SUSPECT;
}

static bool is_guessed(const struct row *row)
{
    switch (row->stream) {
    case BT_STREAM_ABSENT:
    case BT_STREAM_DEGRADED:
    case BT_STREAM_SUSPECT:
        return true;
    case BT_STREAM_SYNCING:
        return row->guessed;
    case BT_STREAM_PARTIAL: /* what was in use all along was not stored anew */
        return row->cause == BT_CAUSE_AGED_OUT;
    case BT_STREAM_EXACT:
        return false;
    }
    return false;
}

void core_guess_start(struct bt_core *core)
{
    for (uint32_t i = 0; core->approx != NULL && i < core->row_count; i++) {
        core->rows[i].guessed = true;
        core->guessed_rows++;
    }
}

struct seeding {
    struct bt_core *core;
    uint32_t row;
};

static void seed_entry(void *arg, const struct bt_prefix_entry *entry)
{
    const struct seeding *s = arg;

    if (entry->keyed)
        bt_approx_add(s->core->approx, s->row, &entry->key, 1, s->core->now_ns);
}

void core_guess_mode(struct bt_core *core, uint32_t row)
{
    struct row *r = &core->rows[row];
    struct seeding seeding = {core, row};
    bool guessed = is_guessed(r);

    if (core->approx == NULL)
        return;
    if (r->guessed && !guessed) {
        bt_approx_drop_worker(core->approx, row);
        r->seeded = false;
        core->guessed_rows--;
    } else if (!r->guessed && guessed) {
        core->guessed_rows++;
    }
    r->guessed = guessed;
    if (!is_blind(r->stream) || r->seeded)
        return;
    r->seeded = true;
    bt_prefix_index_each(core->index, row, seed_entry, &seeding);
}

static bool says_keys(const struct bt_kv_store *store)
{
    switch (bt_kv_store_kind_of(store)) {
    case BT_KV_STORE_KEYED:
    case BT_KV_STORE_GIVEN:
    case BT_KV_STORE_PLACEHOLDER:
        return true;
    case BT_KV_STORE_COUNTED:
    case BT_KV_STORE_REFUSED:
        return false;
    }
    return false;
}

/* The first block last, so that it is the youngest. */
void core_guess_store(struct bt_core *core, uint32_t row,
                      const struct bt_kv_store *store)
{
    uint64_t key;

    if (!core->rows[row].guessed || !says_keys(store))
        return;
    for (size_t i = store->hash_count; i > 0; i--) {
        if (bt_prefix_index_own_key(core->index, row, 0, store->hashes[i - 1],
                                    &key) == BT_OK)
            bt_approx_add(core->approx, row, &key, 1, core->now_ns);
    }
}

bool core_guess_key(const struct bt_core *core, uint32_t row, uint64_t hash,
                    uint64_t *key_out)
{
    return core->rows[row].guessed &&
           bt_prefix_index_own_key(core->index, row, 0, hash, key_out) == BT_OK;
}

void core_guess_removed(struct bt_core *core, uint32_t row, uint64_t key)
{
    if (!bt_prefix_index_holds(core->index, row, key))
        bt_approx_remove(core->approx, row, key);
}

void core_guess_clear(struct bt_core *core, uint32_t row)
{
    if (core->rows[row].guessed)
        bt_approx_drop_worker(core->approx, row);
}

/* The capacity of a worker is that of its ranks together. */
void core_guess_capacity(struct bt_core *core, uint32_t slot)
{
    const struct worker *w = &core->workers[slot];
    uint64_t blocks = w->kv_capacity_tokens / w->ranks;

    if (core->approx == NULL)
        return;
    blocks /= core->config.models[w->config->model].block_tokens;
    if (blocks > UINT32_MAX)
        blocks = UINT32_MAX;
    for (uint32_t row = w->row; row < w->row + w->ranks; row++)
        bt_approx_capacity(core->approx, row, (uint32_t)blocks);
}

void core_guess_prompt(struct bt_core *core, const struct request *r,
                       uint32_t slot, uint32_t rank)
{
    const struct worker *w = &core->workers[slot];
    uint32_t row = w->row + (rank < w->ranks ? rank : 0);
    struct place_query q = core_query_of(core, r);

    if (core->rows[row].guessed)
        bt_approx_add(core->approx, row, q.keys, core_key_count(core, &q),
                      core->now_ns);
}

void core_guess_expire(struct bt_core *core)
{
    if (core->approx != NULL)
        (void)bt_approx_expire(core->approx, core->now_ns, EXPIRE_PER_TICK);
}
