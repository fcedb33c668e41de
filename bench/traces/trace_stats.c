/* What a trace holds: rates, lengths, and the reuse of prefixes that caches of
 * several sizes would find. Decides the definitions, which are those of
 * baselines-and-evaluation.md section 8:
 *
 *   ideal hit      leading blocks seen in any earlier request; a partial last
 *                  block counts with its own tokens
 *   common blocks  leading blocks that every request has: worth nothing to a
 *                  router, since all workers hold them after one request
 *   continuation   a request that holds the last full block of an earlier one,
 *                  below the common blocks
 *
 * Leaves the LRU caches to trace_lru.c.
 */
#include "trace_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t LRU_BLOCKS[6] = {1000, 3000, 10000, 30000, 50000, 100000};

struct block {
    uint32_t uses;
    bool ended; /* the last full block of an earlier request */
};

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Exact quantiles: least value with at least q of all at or below it. */
static void quantiles(uint32_t *values, size_t count, uint32_t out[6])
{
    static const double q[6] = {0, 0.50, 0.90, 0.95, 0.99, 1};

    qsort(values, count, sizeof(*values), by_value);
    for (size_t i = 0; i < 6; i++) {
        size_t rank = (size_t)ceil(q[i] * (double)count);

        out[i] = values[rank ? rank - 1 : 0];
    }
}

static enum bt_status lengths(const struct bt_trace *trace,
                              struct bt_trace_stats *s)
{
    uint32_t *values = malloc(trace->count * sizeof(*values));
    double input = 0, output = 0;

    if (!values)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < trace->count; i++) {
        values[i] = trace->requests[i].input_tokens;
        input += values[i];
    }
    quantiles(values, trace->count, s->input);
    for (size_t i = 0; i < trace->count; i++) {
        values[i] = trace->requests[i].output_tokens;
        output += values[i];
    }
    quantiles(values, trace->count, s->output);
    s->input_mean = input / (double)trace->count;
    s->output_mean = output / (double)trace->count;
    free(values);
    return BT_OK;
}

static void arrivals(const struct bt_trace *trace, struct bt_trace_stats *s)
{
    const struct bt_trace_request *q = trace->requests;
    double mean, sum2 = 0;
    size_t gaps = trace->count - 1;

    s->seconds = (double)(q[gaps].arrival_ns - q[0].arrival_ns) / 1e9;
    s->jitter_suspected = gaps > 0 && trace_is_quantised(trace, 1000000000);
    if (gaps == 0 || s->seconds <= 0)
        return;
    s->rate_per_s = (double)gaps / s->seconds;
    mean = s->seconds / (double)gaps;
    for (size_t i = 1; i <= gaps; i++) {
        double gap =
            (double)(q[i].arrival_ns - q[i - 1].arrival_ns) / 1e9 - mean;

        sum2 += gap * gap;
    }
    s->interarrival_cv = sqrt(sum2 / (double)gaps) / mean;
}

uint32_t trace_common_blocks(const struct bt_trace *trace)
{
    const struct bt_trace_request *first = &trace->requests[0];
    uint32_t common = first->block_count;

    for (size_t i = 1; i < trace->count && common; i++) {
        const struct bt_trace_request *q = &trace->requests[i];
        uint32_t n = 0;

        while (n < common && n < q->block_count &&
               trace->blocks[q->block_at + n] ==
                   trace->blocks[first->block_at + n])
            n++;
        common = n;
    }
    return trace->count > 1 ? common : 0;
}

struct reuse {
    struct block *blocks;
    uint32_t common;
    uint64_t hit_tokens, hit_blocks, tokens, uses;
    size_t with_hit, with_deep_hit, continuations;
};

static void use(struct reuse *u, const struct bt_trace *trace,
                const struct bt_trace_request *q)
{
    const uint64_t *ids = trace->blocks + q->block_at;
    uint32_t depth = 0, full = q->input_tokens / trace->block_tokens;
    uint64_t tokens;
    bool continues = false;

    while (depth < q->block_count && u->blocks[ids[depth]].uses)
        depth++;
    tokens = (uint64_t)depth * trace->block_tokens;
    u->hit_tokens += tokens < q->input_tokens ? tokens : q->input_tokens;
    u->hit_blocks += depth;
    u->tokens += q->input_tokens;
    u->uses += q->block_count;
    u->with_hit += depth > 0;
    u->with_deep_hit += depth > 1;
    for (uint32_t i = 0; i < q->block_count; i++) {
        continues = continues || (i >= u->common && u->blocks[ids[i]].ended);
        u->blocks[ids[i]].uses++;
    }
    u->continuations += continues;
    if (full > u->common && full <= q->block_count)
        u->blocks[ids[full - 1]].ended = true;
}

static enum bt_status reuse(const struct bt_trace *trace,
                            struct bt_trace_stats *s)
{
    struct reuse u = {.common = trace_common_blocks(trace)};
    double count = (double)trace->count;

    u.blocks = calloc((size_t)trace->block_ids, sizeof(*u.blocks));
    if (!u.blocks)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < trace->count; i++)
        use(&u, trace, &trace->requests[i]);
    for (uint64_t i = 0; i < trace->block_ids; i++)
        s->block_once += u.blocks[i].uses == 1;
    free(u.blocks);
    s->block_uses = u.uses;
    s->block_unique = trace->block_ids;
    s->ideal_hit_tokens = (double)u.hit_tokens / (double)u.tokens;
    s->ideal_hit_blocks = (double)u.hit_blocks / (double)u.uses;
    s->requests_with_hit = (double)u.with_hit / count;
    s->requests_with_deep_hit = (double)u.with_deep_hit / count;
    s->common_to_all_blocks = u.common;
    s->continuation_share = (double)u.continuations / count;
    return BT_OK;
}

static enum bt_status caches(const struct bt_trace *trace,
                             struct bt_trace_stats *s)
{
    enum bt_status status = BT_OK;

    for (size_t i = 0; i < 6 && status == BT_OK; i++) {
        s->lru_blocks[i] = LRU_BLOCKS[i];
        status = trace_lru(trace, 1, LRU_BLOCKS[i], &s->lru_global[i]);
        if (status == BT_OK)
            status =
                trace_lru(trace, s->workers, LRU_BLOCKS[i], &s->lru_random[i]);
    }
    return status;
}

enum bt_status bt_trace_stats_get(const struct bt_trace *trace,
                                  uint32_t workers, struct bt_trace_stats *out)
{
    struct bt_trace_stats s = {.requests = trace->count, .workers = workers};
    enum bt_status status;

    if (workers == 0 || workers > TRACE_WORKERS_MAX || trace->count == 0)
        return BT_INVALID;
    status = lengths(trace, &s);
    if (status != BT_OK)
        return status;
    arrivals(trace, &s);
    if (trace->block_ids > 0) {
        status = reuse(trace, &s);
        if (status == BT_OK)
            status = caches(trace, &s);
    }
    if (status == BT_OK)
        *out = s;
    return status;
}
