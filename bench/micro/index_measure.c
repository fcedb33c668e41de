/* The passes of a run over the planner's index, own keys given:
 *
 *   events    the whole log into an empty index
 *   look-ups  the log again; before every GROUP requests it stands still and
 *             their chains are looked up, which alone is timed
 *   mixed     per request its look-up, then its events; all of it timed
 *   single    as mixed, each look-up timed alone, the clock's cost taken off
 *
 * Each from an empty index of the same limits (the log's peaks), several
 * rounds, the best counts. After the events the index must hold exactly what
 * the caches hold, unless it says that it gave something up.
 */
#include "index_parts.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROUP      256u
#define ROUNDS     3
#define ROUNDS_MAX 25
#define SHORT_NS   1000000000LL /* more rounds while they took less */
#define LONG_NS    3000000000LL /* no further round after so long */

int64_t index_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t index_cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

enum bt_status index_bench_fresh(struct index_bench *b)
{
    struct bt_arena arena;

    memset(b->memory, 0, b->bytes);
    bt_arena_init(&arena, b->memory, b->bytes);
    b->index = bt_prefix_index_init(&arena, &b->limits);
    return b->index ? BT_OK : BT_NO_MEMORY;
}

void index_apply(struct bt_prefix_index *index, const struct index_log *log,
                 const struct index_event *e)
{
    struct bt_kv_store store = {.own_keys = log->keys + e->at,
                                .hashes = log->hashes + e->at,
                                .hash_count = e->count,
                                .parent = e->parent,
                                .has_parent = e->has_parent,
                                .tier = BT_TIER_DEVICE,
                                .full_attention = 1};

    if (e->store)
        (void)bt_prefix_index_store(index, e->worker, 0, &store);
    for (uint32_t i = 0; !e->store && i < e->count; i++)
        bt_prefix_index_remove(index, e->worker, 0, log->hashes + e->at + i, 1,
                               BT_TIER_DEVICE);
}

static void apply_request(struct index_bench *b, const struct index_request *r)
{
    for (size_t i = 0; i < r->event_count; i++)
        index_apply(b->index, b->log, &b->log->events[r->event_at + i]);
}

static void look_up(struct index_bench *b, const struct index_request *r,
                    bool tiers)
{
    const uint64_t *keys = b->log->chain + r->key_at;

    if (r->key_count == 0)
        return;
    if (tiers)
        bt_prefix_index_match_tiers(b->index, keys, r->key_count, b->depth);
    else
        bt_prefix_index_match(b->index, keys, r->key_count, b->depth);
    b->sink += b->depth[0];
}

/* ---- events ---- */

static enum bt_status events_round(struct index_bench *b,
                                   struct bt_micro_index_speed *best)
{
    const struct index_log *log = b->log;
    double blocks = (double)(log->stored + log->removed), rate;
    struct index_counts counts;
    int64_t from;

    if (index_bench_fresh(b) != BT_OK)
        return BT_NO_MEMORY;
    index_counters_start(b->counters);
    from = index_cpu_ns();
    for (size_t i = 0; i < log->event_count; i++)
        index_apply(b->index, log, &log->events[i]);
    rate = blocks * 1e9 / (double)(index_cpu_ns() - from);
    index_counters_stop(b->counters, &counts);
    if (rate <= best->best)
        return BT_OK;
    best->best = rate;
    best->instructions =
        counts.instructions < 0 ? -1 : counts.instructions / blocks;
    best->cache_misses = counts.misses < 0 ? -1 : counts.misses / blocks;
    return BT_OK;
}

static enum bt_status check_end(struct index_bench *b)
{
    struct bt_prefix_index_stats s;

    bt_prefix_index_stats_get(b->index, &s);
    b->run->evicted = s.evicted;
    b->run->dropped = s.dropped;
    if (s.evicted + s.dropped > 0 || (s.blocks == b->log->last_blocks &&
                                      s.holdings == b->log->last_holdings))
        return BT_OK;
    snprintf(b->error, BT_MICRO_INDEX_ERROR_MAX,
             "%u workers, blocks of %u: the index ends with %llu blocks and "
             "%llu holdings, the caches with %llu and %llu",
             b->log->workers, b->keys->block_tokens,
             (unsigned long long)s.blocks, (unsigned long long)s.holdings,
             (unsigned long long)b->log->last_blocks,
             (unsigned long long)b->log->last_holdings);
    return BT_BUG;
}

/* ---- look-ups ---- */

/* Requests first..end: looked up, timed; then their events. */
static int64_t group(struct index_bench *b, size_t first, size_t end,
                     bool tiers, struct index_counts *sum)
{
    struct index_counts counts;
    int64_t from, spent;

    index_counters_start(b->counters);
    from = index_cpu_ns();
    for (size_t i = first; i < end; i++)
        look_up(b, &b->log->requests[i], tiers);
    spent = index_cpu_ns() - from;
    index_counters_stop(b->counters, &counts);
    sum->instructions += counts.instructions;
    sum->misses += counts.misses;
    for (size_t i = first; i < end; i++)
        apply_request(b, &b->log->requests[i]);
    return spent;
}

static void take_lookups(struct index_bench *b, double rate, bool tiers,
                         const struct index_counts *counts)
{
    struct bt_micro_index_run *r = b->run;
    double n = (double)r->lookups;

    if (tiers && rate > r->tier_lookups)
        r->tier_lookups = rate;
    if (tiers || rate <= r->lookups_only.best)
        return;
    r->lookups_only.best = rate;
    r->keys_per_s = rate * (double)r->keys / n;
    r->lookups_only.instructions =
        counts->instructions < 0 ? -1 : counts->instructions / n;
    r->lookups_only.cache_misses = counts->misses < 0 ? -1 : counts->misses / n;
}

static enum bt_status lookups_round(struct index_bench *b, bool tiers)
{
    struct index_counts sum = {0, 0};
    size_t count = b->log->request_count;
    int64_t spent = 0;

    if (index_bench_fresh(b) != BT_OK)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < count; i += GROUP)
        spent +=
            group(b, i, i + GROUP < count ? i + GROUP : count, tiers, &sum);
    if (b->counters->instructions < 0)
        sum.instructions = -1;
    if (b->counters->misses < 0)
        sum.misses = -1;
    take_lookups(b, (double)b->run->lookups * 1e9 / (double)(spent + 1), tiers,
                 &sum);
    return BT_OK;
}

/* ---- both ---- */

static enum bt_status mixed_round(struct index_bench *b)
{
    const struct index_log *log = b->log;
    double seconds;
    int64_t from;

    if (index_bench_fresh(b) != BT_OK)
        return BT_NO_MEMORY;
    from = index_cpu_ns();
    for (size_t i = 0; i < log->request_count; i++) {
        look_up(b, &log->requests[i], false);
        apply_request(b, &log->requests[i]);
    }
    seconds = (double)(index_cpu_ns() - from + 1) / 1e9;
    if ((double)b->run->lookups / seconds > b->run->mixed_lookups) {
        b->run->mixed_lookups = (double)b->run->lookups / seconds;
        b->run->mixed_events = (double)(log->stored + log->removed) / seconds;
    }
    return BT_OK;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Least value with at least q of all at or below it, us. */
static double quantile(const uint32_t *sorted, size_t count, double q)
{
    size_t rank = (size_t)(q * (double)count + 0.999999);

    if (count == 0)
        return 0;
    rank = rank < 1 ? 1 : rank;
    return sorted[(rank > count ? count : rank) - 1] / 1e3;
}

static void least(double *best, double value)
{
    if (*best <= 0 || value < *best)
        *best = value;
}

static enum bt_status single_round(struct index_bench *b, bool tiers)
{
    const struct index_log *log = b->log;
    struct bt_micro_index_run *r = b->run;
    size_t n = 0;

    if (index_bench_fresh(b) != BT_OK)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < log->request_count; i++) {
        int64_t from = index_now_ns();
        double spent;

        look_up(b, &log->requests[i], tiers);
        spent = (double)(index_now_ns() - from) - b->clock_ns;
        if (log->requests[i].key_count > 0)
            b->times[n++] = spent > 0 ? (uint32_t)spent : 0;
        apply_request(b, &log->requests[i]);
    }
    qsort(b->times, n, sizeof(*b->times), by_value);
    least(tiers ? &r->tier_p50_us : &r->p50_us, quantile(b->times, n, 0.5));
    least(tiers ? &r->tier_p99_us : &r->p99_us, quantile(b->times, n, 0.99));
    if (!tiers)
        least(&r->p999_us, quantile(b->times, n, 0.999));
    return BT_OK;
}

static enum bt_status one_round(struct index_bench *b)
{
    enum bt_status status = lookups_round(b, false);

    if (status == BT_OK)
        status = lookups_round(b, true);
    if (status == BT_OK)
        status = mixed_round(b);
    if (status == BT_OK)
        status = single_round(b, false);
    return status == BT_OK ? single_round(b, true) : status;
}

static bool another(const struct index_bench *b, int rounds, int64_t spent)
{
    if (rounds == 0)
        return true;
    if (b->options->quick || rounds >= ROUNDS_MAX || spent > LONG_NS)
        return false;
    return rounds < ROUNDS || spent < SHORT_NS;
}

enum bt_status index_measure(struct index_bench *b)
{
    int64_t from = index_now_ns();
    enum bt_status status = BT_OK;

    for (int i = 0; status == BT_OK && another(b, i, index_now_ns() - from);
         i++) {
        status = events_round(b, &b->run->events);
        if (status == BT_OK)
            status = check_end(b);
        if (status == BT_OK)
            status = one_round(b);
    }
    return status;
}
