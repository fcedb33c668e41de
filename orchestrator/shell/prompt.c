/* From a prompt's tokens to the keys that the core may match. Decides which of
 * them name blocks: none behind what the tokens do not show, or two tenants'
 * images would be one prefix (field fault C15). What is hidden is found by
 * orchestrator/proto; how a block is hashed is in planner/block_hash.
 * Invariant: a key stands for exactly one content; in doubt there is none.
 */
#include "exchange.h"

#include "baton/planner/block_hash.h"
#include <stdlib.h>

/* Below it events come more often than once per so many tokens. */
#define BLOCK_TOKENS_SMALL 16u

size_t prompt_keys(const struct bt_model_config *model, const uint32_t *tokens,
                   size_t count, uint64_t ns, uint64_t *keys_out)
{
    size_t most = count / model->block_size;

    return model->engine.eagle
               ? bt_block_keys_eagle(tokens, count, model->block_size, ns,
                                     keys_out, most)
               : bt_block_keys(tokens, count, model->block_size, ns, keys_out,
                               most);
}

static bool is_cut(const struct exchange *x, size_t count)
{
    return x->request.truncate_tokens > 0 && x->request.truncate_tokens < count;
}

static void note_hidden(struct exchange *x, enum bt_openai_hidden what)
{
    x->hidden = what;
    x->serve->counters.hidden[what]++;
}

/* How many of the tokens, `told` of which show all there is, name blocks. */
static size_t naming(struct exchange *x, size_t count, size_t told)
{
    if (x->request.hidden == BT_HIDDEN_MEMBER || is_cut(x, count)) {
        note_hidden(x, BT_HIDDEN_MEMBER);
        return 0;
    }
    if (told < count)
        note_hidden(x, BT_HIDDEN_PART);
    return told;
}

enum bt_status prompt_hash(struct exchange *x, const uint32_t *tokens,
                           size_t count, size_t told)
{
    const struct bt_model_config *model = &x->serve->config->models[x->model];
    size_t named = naming(x, count, told), blocks = named / model->block_size;

    x->tokens_known = true;
    x->prompt_tokens =
        (uint32_t)(is_cut(x, count) ? x->request.truncate_tokens : count);
    if (blocks == 0)
        return BT_OK;
    x->keys = malloc(blocks * sizeof(*x->keys));
    if (x->keys == NULL)
        return BT_NO_MEMORY;
    x->key_count = prompt_keys(model, tokens, named, x->ns, x->keys);
    return BT_OK;
}

static bool has_events(const struct bt_config *config, uint32_t model)
{
    for (uint32_t w = 0; w < config->worker_count; w++) {
        const struct bt_worker_config *worker = &config->workers[w];

        if (worker->model == model &&
            (worker->events != NULL || worker->events_topic != NULL))
            return true;
    }
    return false;
}

void prompt_warn(const struct bt_config *config)
{
    for (uint32_t m = 0; m < config->model_count; m++) {
        const struct bt_model_config *model = &config->models[m];

        if (model->block_size < BLOCK_TOKENS_SMALL && has_events(config, m))
            bt_log(BT_LOG_WARN, "kv_block_size_small",
                   "model=%s block_size=%u: engines announce each block, %u "
                   "for 1000 tokens of prompt; an index of limits.index_blocks "
                   "covers %llu tokens",
                   model->name, model->block_size, 1000 / model->block_size,
                   (unsigned long long)config->limits.index_blocks *
                       model->block_size);
    }
}
