/* The baseline over the same log: its speed, and whether the index says the
 * same as it for a sample of the look-ups, each at its own point of the log. */
#include "index_parts.h"
#include <string.h>

#define NAIVE_NS    1500000000LL /* of its look-ups, at most */
#define NAIVE_LEAST 20u
#define ROUNDS      3 /* of its events, the best counts */

static void apply_naive(const struct index_log *log, struct index_naive *n,
                        size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct index_event *e = &log->events[first + i];

        if (e->store)
            index_naive_store(n, e->worker, log->hashes + e->at,
                              log->keys + e->at, e->count);
        for (uint32_t j = 0; !e->store && j < e->count; j++)
            index_naive_remove(n, e->worker, log->hashes[e->at + j]);
    }
}

static enum bt_status naive_events(struct index_bench *b)
{
    const struct index_log *log = b->log;
    struct index_naive *n = index_naive_create(log->peak_holdings);
    int64_t from;
    double rate;

    if (!n)
        return BT_NO_MEMORY;
    from = index_cpu_ns();
    apply_naive(log, n, 0, log->event_count);
    rate = (double)(log->stored + log->removed) * 1e9 /
           (double)(index_cpu_ns() - from + 1);
    if (rate > b->run->naive_events)
        b->run->naive_events = rate;
    index_naive_destroy(n);
    return BT_OK;
}

/* Both at the same point of the log: same answer for every worker? */
static enum bt_status compare(struct index_bench *b, struct index_naive *n,
                              const struct index_request *r, int64_t *spent)
{
    const uint64_t *keys = b->log->chain + r->key_at;
    uint32_t *due = b->depth + (size_t)b->log->workers * BT_TIERS;
    int64_t from = index_cpu_ns();

    index_naive_match(n, b->log->workers, keys, r->key_count, due);
    *spent += index_cpu_ns() - from - (int64_t)b->cpu_clock_ns;
    bt_prefix_index_match(b->index, keys, r->key_count, b->depth);
    b->run->naive_compared++;
    if (b->run->evicted + b->run->dropped > 0 ||
        memcmp(due, b->depth, b->log->workers * sizeof(*due)) == 0)
        return BT_OK;
    snprintf(b->error, BT_MICRO_INDEX_ERROR_MAX,
             "%u workers, blocks of %u: look-up %zu differs from the "
             "baseline's",
             b->log->workers, b->keys->block_tokens,
             (size_t)(r - b->log->requests));
    return BT_BUG;
}

static enum bt_status naive_lookups(struct index_bench *b,
                                    struct index_naive *n)
{
    const struct index_log *log = b->log;
    size_t stride = log->request_count / 500 + 1;
    enum bt_status status = index_bench_fresh(b);
    int64_t spent = 0;

    for (size_t i = 0; i < log->request_count && status == BT_OK; i++) {
        const struct index_request *r = &log->requests[i];

        if (i % stride == 0 && r->key_count > 0 &&
            (spent < NAIVE_NS || b->run->naive_compared < NAIVE_LEAST))
            status = compare(b, n, r, &spent);
        for (size_t k = 0; k < r->event_count; k++)
            index_apply(b->index, log, &log->events[r->event_at + k]);
        apply_naive(log, n, r->event_at, r->event_count);
    }
    if (spent > 0)
        b->run->naive_lookups =
            (double)b->run->naive_compared * 1e9 / (double)spent;
    return status;
}

enum bt_status index_measure_naive(struct index_bench *b)
{
    enum bt_status status = BT_OK;
    struct index_naive *n;

    for (int i = 0; status == BT_OK && i < (b->options->quick ? 1 : ROUNDS);
         i++)
        status = naive_events(b);
    if (status != BT_OK)
        return status;
    n = index_naive_create(b->log->peak_holdings);
    if (!n)
        return BT_NO_MEMORY;
    status = naive_lookups(b, n);
    index_naive_destroy(n);
    return status;
}
