/* Tokens and own keys of a trace's blocks. A trace holds ids that stand for
 * contents; here each id gets tokens (from the seed) and is cut into blocks of
 * the size that is indexed, whose keys are the planner's XXH3 chain. A block
 * that the prompt does not fill has no key, as in engines.
 *
 * Invariant: an id names a whole prefix, so its parent is always the same and
 * one pass in the order of requests meets every parent before its child.
 */
#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"
#include "index_log.h"
#include <stdlib.h>
#include <string.h>

void index_keys_tokens(const struct index_keys *k, uint32_t place,
                       uint32_t *out)
{
    uint64_t base = bt_mix64(k->seed ^ bt_mix64((uint64_t)place + 1));

    for (uint32_t i = 0; i < k->block_tokens; i++) {
        base = base * 6364136223846793005u + 1442695040888963407u;
        out[i] = (uint32_t)((base >> 33) % INDEX_LOG_VOCABULARY);
    }
}

/* How many full blocks each id has, by the longest use of it. */
static void count_subs(struct index_keys *k)
{
    const struct bt_trace *t = k->trace;

    for (size_t i = 0; i < t->count; i++) {
        const struct bt_trace_request *q = &t->requests[i];

        for (uint32_t b = 0; b < q->block_count; b++) {
            uint32_t left = q->input_tokens - b * t->block_tokens;
            uint32_t *subs = &k->subs[t->blocks[q->block_at + b]];

            if (left > t->block_tokens)
                left = t->block_tokens;
            if (left / k->block_tokens > *subs)
                *subs = left / k->block_tokens;
        }
    }
}

static enum bt_status place(struct index_keys *k)
{
    uint64_t sum = 0;

    for (uint64_t id = 0; id < k->trace->block_ids; id++) {
        k->at[id] = (uint32_t)sum;
        sum += k->subs[id];
        if (sum >= UINT32_MAX / 2)
            return BT_TOO_LARGE;
    }
    k->count = (size_t)sum;
    k->keys = calloc(k->count + 1, sizeof(*k->keys));
    return k->keys ? BT_OK : BT_NO_MEMORY;
}

/* Keys of one id after `parent` (has_parent). */
static void chain(struct index_keys *k, uint64_t id, const uint64_t *parent,
                  uint32_t *tokens)
{
    uint64_t *keys = k->keys + k->at[id];

    for (uint32_t s = 0; s < k->subs[id]; s++) {
        uint64_t local;

        index_keys_tokens(k, k->at[id] + s, tokens);
        local = bt_block_local(tokens, k->block_tokens, NULL, 0, BT_NS_PLAIN);
        keys[s] = parent ? bt_block_chain(*parent, local) : local;
        parent = &keys[s];
    }
}

static enum bt_status hash_all(struct index_keys *k)
{
    const struct bt_trace *t = k->trace;
    bool *done = calloc((size_t)t->block_ids + 1, sizeof(*done));
    uint32_t *tokens = malloc(k->block_tokens * sizeof(*tokens));
    enum bt_status status = done && tokens ? BT_OK : BT_NO_MEMORY;

    for (size_t i = 0; status == BT_OK && i < t->count; i++) {
        const struct bt_trace_request *q = &t->requests[i];
        const uint64_t *ids = t->blocks + q->block_at, *parent = NULL;

        for (uint32_t b = 0; b < q->block_count; b++) {
            if (!done[ids[b]])
                chain(k, ids[b], parent, tokens);
            done[ids[b]] = true;
            if (k->subs[ids[b]] > 0)
                parent = &k->keys[k->at[ids[b]] + k->subs[ids[b]] - 1];
        }
    }
    free(tokens);
    free(done);
    return status;
}

enum bt_status index_keys_init(struct index_keys *k,
                               const struct bt_trace *trace,
                               uint32_t block_tokens, uint64_t seed)
{
    enum bt_status status = BT_NO_MEMORY;

    memset(k, 0, sizeof(*k));
    if (trace->block_ids >= UINT32_MAX)
        return BT_TOO_LARGE;
    k->trace = trace;
    k->block_tokens = block_tokens;
    k->split = trace->block_tokens / block_tokens;
    k->seed = seed;
    k->subs = calloc((size_t)trace->block_ids + 1, sizeof(*k->subs));
    k->at = calloc((size_t)trace->block_ids + 1, sizeof(*k->at));
    if (k->subs && k->at) {
        count_subs(k);
        status = place(k);
    }
    if (status == BT_OK)
        status = hash_all(k);
    if (status != BT_OK)
        index_keys_fini(k);
    return status;
}

void index_keys_fini(struct index_keys *k)
{
    free(k->subs);
    free(k->at);
    free(k->keys);
    memset(k, 0, sizeof(*k));
}
