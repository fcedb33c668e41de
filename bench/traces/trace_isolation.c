/* What namespaces cost: the trace once as it is, once with every block id made
 * the tenant's own, through the same caches. Decides who a request belongs to
 * where the trace does not say: a request that holds the last full block of an
 * earlier one, below the blocks that all have, goes on with its conversation
 * (the definition of trace_stats.c); others begin one, whose tenant is drawn.
 */
#include "baton/base/rng.h"
#include "trace_priv.h"
#include <stdlib.h>
#include <string.h>

#define SEED        0x74656e616e7473u
#define NONE        UINT32_MAX
#define TENANTS_MAX 65536u

static const uint32_t LRU_BLOCKS[6] = {1000, 3000, 10000, 30000, 50000, 100000};

static bool has_tenants(const struct bt_trace *trace)
{
    for (size_t i = 0; i < trace->count; i++)
        if (trace->requests[i].tenant != trace->requests[0].tenant)
            return true;
    return false;
}

/* Tenant of the conversation that the request goes on with; NONE: a new one.
 * ended: per id, the tenant whose request ended there. */
static uint32_t goes_on(const struct bt_trace *trace,
                        const struct bt_trace_request *q, uint32_t common,
                        const uint32_t *ended)
{
    for (uint32_t i = q->block_count; i > common; i--) {
        uint32_t tenant = ended[trace->blocks[q->block_at + i - 1]];

        if (tenant != NONE)
            return tenant;
    }
    return NONE;
}

static enum bt_status draw(const struct bt_trace *trace, uint32_t tenants,
                           uint32_t *tenant_of, uint64_t *conversations_out)
{
    size_t ids = (size_t)trace->block_ids;
    uint32_t *ended = malloc((ids + 1) * sizeof(*ended));
    uint32_t common = trace_common_blocks(trace);
    struct bt_rng rng;

    if (!ended)
        return BT_NO_MEMORY;
    memset(ended, 0xff, (ids + 1) * sizeof(*ended));
    bt_rng_seed(&rng, SEED);
    *conversations_out = 0;
    for (size_t i = 0; i < trace->count; i++) {
        const struct bt_trace_request *q = &trace->requests[i];
        uint32_t full = q->input_tokens / trace->block_tokens;
        uint32_t tenant = goes_on(trace, q, common, ended);

        if (tenant == NONE) {
            tenant = (uint32_t)bt_rng_below(&rng, tenants);
            (*conversations_out)++;
        }
        tenant_of[i] = tenant;
        if (full > common && full <= q->block_count)
            ended[trace->blocks[q->block_at + full - 1]] = tenant;
    }
    free(ended);
    return BT_OK;
}

static enum bt_status own_tenants(const struct bt_trace *trace,
                                  uint32_t *tenant_of,
                                  struct bt_trace_isolation *out)
{
    struct pair_map seen = {.slots = NULL};
    enum bt_status status = BT_OK;
    uint64_t dense;
    bool found;

    out->tenants = 0;
    for (size_t i = 0; i < trace->count && status == BT_OK; i++) {
        tenant_of[i] = trace->requests[i].tenant;
        status = pair_map_get(&seen, tenant_of[i], 0, 0, &dense, &found);
        out->tenants += status == BT_OK && !found;
    }
    pair_map_fini(&seen);
    return status;
}

/* `own` is the trace with ids by tenant; it shares the requests. */
static enum bt_status separate(const struct bt_trace *trace,
                               const uint32_t *tenant_of, struct bt_trace *own)
{
    struct pair_map map = {.slots = NULL};
    enum bt_status status = BT_OK;
    bool found;

    *own = *trace;
    own->block_ids = 0;
    own->blocks = malloc((trace->block_count + 1) * sizeof(*own->blocks));
    if (!own->blocks)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < trace->count && status == BT_OK; i++) {
        const struct bt_trace_request *q = &trace->requests[i];

        for (uint64_t b = q->block_at;
             b < q->block_at + q->block_count && status == BT_OK; b++) {
            status = pair_map_get(&map, tenant_of[i], trace->blocks[b],
                                  own->block_ids, &own->blocks[b], &found);
            own->block_ids += status == BT_OK && !found;
        }
    }
    pair_map_fini(&map);
    return status;
}

static enum bt_status measure(const struct bt_trace *trace,
                              const struct bt_trace *own,
                              struct bt_trace_isolation *out)
{
    enum bt_status status = trace_lru(trace, 1, UINT32_MAX, &out->ideal_shared);

    if (status == BT_OK)
        status = trace_lru(own, 1, UINT32_MAX, &out->ideal_own);
    for (size_t i = 0; i < 6 && status == BT_OK; i++) {
        out->lru_blocks[i] = LRU_BLOCKS[i];
        status = trace_lru(trace, 1, LRU_BLOCKS[i], &out->lru_shared[i]);
        if (status == BT_OK)
            status = trace_lru(own, 1, LRU_BLOCKS[i], &out->lru_own[i]);
    }
    return status;
}

enum bt_status bt_trace_isolation_get(const struct bt_trace *trace,
                                      uint32_t tenants,
                                      struct bt_trace_isolation *out)
{
    struct bt_trace_isolation r = {.tenants = tenants};
    struct bt_trace own = {.blocks = NULL};
    uint32_t *tenant_of;
    enum bt_status status;

    if (trace->count == 0 || trace->block_ids == 0 || tenants < 2 ||
        tenants > TENANTS_MAX)
        return BT_INVALID;
    tenant_of = malloc(trace->count * sizeof(*tenant_of));
    if (!tenant_of)
        return BT_NO_MEMORY;
    r.from_trace = has_tenants(trace);
    status = r.from_trace ? own_tenants(trace, tenant_of, &r)
                          : draw(trace, tenants, tenant_of, &r.conversations);
    if (status == BT_OK)
        status = separate(trace, tenant_of, &own);
    r.blocks_shared = trace->block_ids;
    r.blocks_own = own.block_ids;
    if (status == BT_OK)
        status = measure(trace, &own, &r);
    free(own.blocks);
    free(tenant_of);
    if (status == BT_OK)
        *out = r;
    return status;
}
