/* From which fleet on, and with which caches, routing by prefix pays. Decides
 * the sizes that are looked at; hits are trace_lru.c's. */
#include "trace_priv.h"
#include <string.h>

static const uint32_t COUNTS[BT_TRACE_PAYS] = {2, 4, 8, 16, 32, 64, 128, 256};
static const uint32_t BLOCKS[BT_TRACE_PAYS] = {100,   300,   1000,   3000,
                                               10000, 30000, 100000, 300000};

static enum bt_status gain(const struct bt_trace *trace, uint32_t workers,
                           uint32_t blocks, double *gain_out)
{
    uint64_t all = (uint64_t)workers * blocks;
    double together = 0, spread = 0;
    enum bt_status status = trace_lru(
        trace, 1, all < UINT32_MAX ? (uint32_t)all : UINT32_MAX, &together);

    if (status == BT_OK)
        status = trace_lru(trace, workers, blocks, &spread);
    *gain_out = together - spread;
    return status;
}

static void judge(struct bt_trace_pays *p)
{
    for (size_t i = BT_TRACE_PAYS; i > 0; i--) {
        if (p->by_workers[i - 1] < p->least)
            break;
        p->workers_from = p->counts[i - 1];
    }
    for (size_t i = 0; i < BT_TRACE_PAYS; i++) {
        if (p->by_cache[i] < p->least)
            continue;
        if (p->blocks_from == 0)
            p->blocks_from = p->blocks[i];
        p->blocks_to = p->blocks[i];
    }
}

enum bt_status bt_trace_pays_get(const struct bt_trace *trace, uint32_t workers,
                                 uint32_t cache_blocks, double least,
                                 struct bt_trace_pays *out)
{
    struct bt_trace_pays p = {
        .least = least, .workers = workers, .cache_blocks = cache_blocks};
    enum bt_status status = BT_OK;

    if (workers == 0 || workers > TRACE_WORKERS_MAX || cache_blocks == 0 ||
        trace->block_ids == 0)
        return BT_INVALID;
    memcpy(p.counts, COUNTS, sizeof(p.counts));
    memcpy(p.blocks, BLOCKS, sizeof(p.blocks));
    for (size_t i = 0; i < BT_TRACE_PAYS && status == BT_OK; i++) {
        status = gain(trace, COUNTS[i], cache_blocks, &p.by_workers[i]);
        if (status == BT_OK)
            status = gain(trace, workers, BLOCKS[i], &p.by_cache[i]);
    }
    if (status != BT_OK)
        return status;
    judge(&p);
    *out = p;
    return BT_OK;
}
