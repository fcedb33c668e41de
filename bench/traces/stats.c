/* What a workload holds: sizes and the reuse an endless cache would find.
 * Blocks are named by a chained 64-bit mix of their own tokens and all before;
 * a set of names tells repeats. Only full blocks can be repeated. */
#include "baton/base/rng.h"
#include "baton/bench/workload.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct name_set {
    uint64_t *slots; /* 0 = free */
    size_t mask;
};

static enum bt_status set_init(struct name_set *set, uint64_t names)
{
    size_t size = 1024;

    while (size < names * 2)
        size *= 2;
    set->slots = calloc(size, sizeof(*set->slots));
    set->mask = size - 1;
    return set->slots ? BT_OK : BT_NO_MEMORY;
}

/* True when the name was there already. */
static int set_add(struct name_set *set, uint64_t name)
{
    size_t i = (size_t)name & set->mask;

    name = name ? name : 1;
    while (set->slots[i]) {
        if (set->slots[i] == name)
            return 1;
        i = (i + 1) & set->mask;
    }
    set->slots[i] = name;
    return 0;
}

static uint64_t block_name(uint64_t parent, const uint32_t *tokens,
                           uint32_t count)
{
    uint64_t name = bt_mix64(parent + 0x9e3779b97f4a7c15u);

    for (uint32_t i = 0; i < count; i++)
        name = bt_mix64(name ^ tokens[i]) + i;
    return name;
}

static uint64_t count_repeats(struct name_set *set, const uint32_t *tokens,
                              uint32_t count, uint32_t block_tokens)
{
    uint64_t name = 0, repeats = 0;

    for (uint32_t at = 0; at + block_tokens <= count; at += block_tokens) {
        name = block_name(name, tokens + at, block_tokens);
        repeats += (uint64_t)set_add(set, name);
    }
    return repeats;
}

enum bt_status bt_workload_stats_get(const struct bt_workload *workload,
                                     uint32_t block_tokens,
                                     struct bt_workload_stats *out)
{
    struct bt_workload_stats stats;
    struct name_set set;
    enum bt_status status;

    assert(block_tokens > 0);
    memset(&stats, 0, sizeof(stats));
    stats.requests = workload->count;
    for (size_t i = 0; i < workload->count; i++) {
        const struct bt_workload_request *r = &workload->requests[i];

        stats.prompt_tokens += r->token_count;
        stats.answer_tokens += r->max_tokens;
        stats.blocks +=
            ((uint64_t)r->token_count + block_tokens - 1) / block_tokens;
        if (r->token_count > stats.prompt_max)
            stats.prompt_max = r->token_count;
        if (r->arrival_ns > stats.span_ns)
            stats.span_ns = r->arrival_ns;
    }
    status = set_init(&set, stats.blocks);
    if (status != BT_OK)
        return status;
    for (size_t i = 0; i < workload->count; i++)
        stats.repeated_blocks +=
            count_repeats(&set, bt_workload_prompt(workload, i),
                          workload->requests[i].token_count, block_tokens);
    free(set.slots);
    *out = stats;
    return BT_OK;
}
