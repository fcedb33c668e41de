/* A workload as a trace: the same requests without their tokens, so that the
 * simulator can run what engines were given. Decides what a block is called:
 * hash of its tokens after the block before it; leaves writing to
 * trace_write.c. Invariant: equal ids stand for equal prefixes, as far as
 * XXH3-64 tells.
 */
#include "trace_priv.h"

#include "baton/bench/workload.h"

#include <string.h>
#include <xxhash.h>

static enum bt_status name_blocks(struct trace_build *build,
                                  const uint32_t *tokens, uint32_t count,
                                  uint32_t block_tokens, uint64_t *out)
{
    uint64_t parent = UINT64_MAX;
    enum bt_status status = BT_OK;

    for (uint32_t at = 0; at < count && status == BT_OK; at += block_tokens) {
        uint32_t n = count - at < block_tokens ? count - at : block_tokens;
        uint64_t name =
            XXH3_64bits_withSeed(tokens + at, n * sizeof(*tokens), n);

        status = trace_block(build, parent, name, out);
        parent = *out++;
    }
    return status;
}

static enum bt_status add(struct trace_build *build,
                          const struct bt_workload *workload, size_t i,
                          uint32_t block_tokens)
{
    const struct bt_workload_request *from = &workload->requests[i];
    struct bt_trace_request request = {
        .arrival_ns = from->arrival_ns,
        .input_tokens = from->token_count,
        .output_tokens = from->max_tokens,
        .block_count = (from->token_count + block_tokens - 1) / block_tokens,
    };
    uint64_t *blocks;
    enum bt_status status = trace_append(build->trace, &request, &blocks);

    if (status != BT_OK)
        return status;
    return name_blocks(build, bt_workload_prompt(workload, i),
                       from->token_count, block_tokens, blocks);
}

enum bt_status bt_workload_trace(const struct bt_workload *workload,
                                 uint32_t block_tokens, struct bt_trace *out)
{
    struct trace_build build = {.trace = out};
    enum bt_status status = BT_OK;

    memset(out, 0, sizeof(*out));
    out->block_tokens = block_tokens;
    out->has_prefixes = true;
    out->synthetic = true;
    snprintf(out->name, sizeof(out->name), "workload");
    for (size_t i = 0; i < workload->count && status == BT_OK; i++)
        status = add(&build, workload, i, block_tokens);
    trace_build_fini(&build);
    if (status != BT_OK)
        bt_trace_fini(out);
    return status;
}
