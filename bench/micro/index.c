/* Runs of `baton bench index`: for each block size and number of workers the
 * log is made, an arena with limits at the log's peaks set up, the passes run.
 * Decides sizes; what a pass does is index_measure.c's, index_feeds.c's and
 * index_compare.c's. */
#include "baton/base/rng.h"
#include "baton/orchestrator/big_memory.h"
#include "index_parts.h"
#include <stdlib.h>
#include <string.h>

#define CACHE_LEAST 16u
#define CLOCK_READS 20001u
#define MIDDLE      10000u
#define LINE        64u
#define READS       1000000u

static uint32_t cache_of(const struct bt_micro_index_options *o,
                         uint32_t workers)
{
    uint64_t blocks = o->trace->block_ids / (2 * (uint64_t)workers);

    if (o->cache_blocks > 0)
        return o->cache_blocks;
    return blocks > CACHE_LEAST ? (uint32_t)blocks : CACHE_LEAST;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Median of two readings with nothing between. */
static double clock_cost(int64_t (*now)(void))
{
    int64_t *gaps = malloc(CLOCK_READS * sizeof(*gaps));
    double median;

    if (!gaps)
        return 0;
    for (size_t i = 0; i < CLOCK_READS; i++) {
        int64_t from = now();

        gaps[i] = now() - from;
    }
    qsort(gaps, CLOCK_READS, sizeof(*gaps), by_value);
    median = (double)gaps[MIDDLE];
    free(gaps);
    return median;
}

static void describe(const struct index_keys *keys, const struct index_log *log,
                     struct bt_micro_index_run *run)
{
    memset(run, 0, sizeof(*run));
    run->workers = log->workers;
    run->block_tokens = keys->block_tokens;
    run->cache_blocks = log->cache_blocks;
    run->requests = log->request_count;
    for (size_t i = 0; i < log->request_count; i++)
        run->lookups += log->requests[i].key_count > 0;
    run->keys = log->chain_count;
    run->hit_keys = log->hit_keys;
    run->stored = log->stored;
    run->removed = log->removed;
    run->peak_blocks = log->peak_blocks;
    run->peak_holdings = log->peak_holdings;
    run->copies = log->peak_copies;
}

static enum bt_status set_up(struct index_bench *b)
{
    const struct index_log *log = b->log;
    struct bt_prefix_index_limits roomy;

    if (log->peak_holdings >= UINT32_MAX / 2 || log->peak_blocks == 0) {
        snprintf(b->error, BT_MICRO_INDEX_ERROR_MAX,
                 log->peak_blocks ? "more holdings than an index may have"
                                  : "no request has a full block of %u tokens",
                 b->keys->block_tokens);
        return BT_INVALID;
    }
    b->limits = (struct bt_prefix_index_limits){
        log->workers, (uint32_t)log->peak_blocks, (uint32_t)log->peak_holdings};
    roomy = b->limits;
    roomy.blocks_max *= 2;
    roomy.holdings_max *= 2;
    b->bytes = bt_prefix_index_bytes(&b->limits);
    b->run->bytes_tight = b->bytes;
    b->run->bytes_roomy = bt_prefix_index_bytes(&roomy);
    b->memory = bt_big_memory_take(b->bytes);
    b->depth = calloc((size_t)log->workers * (BT_TIERS + 1), sizeof(*b->depth));
    b->times = calloc(log->request_count + 1, sizeof(*b->times));
    return b->memory && b->depth && b->times ? BT_OK : BT_NO_MEMORY;
}

/* A read that waits for the one before it, somewhere in memory as large as the
 * index: what a cache miss costs here, for scale. */
static double read_cost(struct index_bench *b)
{
    size_t lines = b->bytes / LINE, at = 0;
    unsigned char *memory = b->memory;
    struct bt_rng rng;
    int64_t from;

    if (lines < 2 || lines > UINT32_MAX)
        return 0;
    bt_rng_seed(&rng, 1);
    for (size_t i = 0; i < lines; i++)
        *(uint64_t *)(void *)(memory + i * LINE) = i;
    for (size_t i = lines - 1; i > 0; i--) { /* one cycle (Sattolo) */
        size_t j = (size_t)bt_rng_below(&rng, i);
        uint64_t *x = (uint64_t *)(void *)(memory + i * LINE);
        uint64_t *y = (uint64_t *)(void *)(memory + j * LINE), kept = *x;

        *x = *y;
        *y = kept;
    }
    from = index_cpu_ns();
    for (size_t i = 0; i < READS; i++)
        at = (size_t) * (const uint64_t *)(void *)(memory + at * LINE);
    b->sink += at;
    return (double)(index_cpu_ns() - from) / READS;
}

/* ---- progress ---- */

#define BAR_WIDTH 30
#define STEPS     5 /* of a run */

struct bar {
    bool on;
    size_t done, total;
};

/* One step more is done; the next is of this run. */
static void bar_step(struct bar *bar, uint32_t workers, uint32_t block_tokens)
{
    char text[BAR_WIDTH + 1];
    size_t full = bar->done * BAR_WIDTH / bar->total;

    if (!bar->on)
        return;
    for (size_t i = 0; i < BAR_WIDTH; i++)
        text[i] = i < full ? '#' : '.';
    text[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %zu of %zu, %u workers, blocks of %u tokens   ",
            text, bar->done, bar->total, workers, block_tokens);
    fflush(stderr);
    bar->done++;
}

static void bar_end(const struct bar *bar)
{
    if (bar->on)
        fputs("\r\033[K", stderr);
}

/* ---- runs ---- */

/* The measuring steps of a run, in order. */
static enum bt_status (*const PASSES[])(struct index_bench *b) = {
    index_measure, index_measure_feeds, index_measure_naive};

static enum bt_status run_log(struct index_bench *b, struct bar *bar)
{
    int64_t from = index_now_ns(), cpu = index_cpu_ns();
    enum bt_status status;

    describe(b->keys, b->log, b->run);
    status = set_up(b);
    for (size_t i = 0; i < sizeof(PASSES) / sizeof(PASSES[0]); i++) {
        bar_step(bar, b->log->workers, b->keys->block_tokens);
        if (status == BT_OK)
            status = PASSES[i](b);
    }
    bar_step(bar, b->log->workers, b->keys->block_tokens);
    if (status == BT_OK)
        b->run->read_ns = read_cost(b);
    b->run->cpu_share =
        (double)(index_cpu_ns() - cpu) / (double)(index_now_ns() - from + 1);
    bt_big_memory_give(b->memory, b->bytes);
    free(b->depth);
    free(b->times);
    return status;
}

static enum bt_status run_one(const struct bt_micro_index_options *o,
                              const struct index_keys *keys, uint32_t workers,
                              const struct index_counters *counters,
                              struct bar *bar,
                              struct bt_micro_index_report *report)
{
    struct index_log log;
    struct index_bench b = {.keys = keys,
                            .log = &log,
                            .options = o,
                            .counters = counters,
                            .clock_ns = report->clock_ns,
                            .cpu_clock_ns = report->cpu_clock_ns,
                            .run = &report->runs[report->count],
                            .error = report->error};
    enum bt_status status;

    bar_step(bar, workers, keys->block_tokens);
    status = index_log_init(&log, keys, workers, cache_of(o, workers));
    if (status != BT_OK)
        return status;
    status = run_log(&b, bar);
    report->count += status == BT_OK;
    index_log_fini(&log);
    return status;
}

static enum bt_status refuse(struct bt_micro_index_report *report,
                             const char *what, uint64_t value)
{
    snprintf(report->error, sizeof(report->error), "%s%llu", what,
             (unsigned long long)value);
    return BT_INVALID;
}

static enum bt_status check(const struct bt_micro_index_options *o,
                            struct bt_micro_index_report *report)
{
    const struct bt_trace *t = o->trace;

    if (!t->has_prefixes || t->block_ids == 0 || t->count == 0)
        return refuse(report,
                      "a trace without prefix blocks; requests: ", t->count);
    if (o->worker_count * o->block_count > BT_MICRO_INDEX_RUNS_MAX ||
        o->worker_count == 0 || o->block_count == 0)
        return refuse(report, "runs are 1 to ", BT_MICRO_INDEX_RUNS_MAX);
    for (size_t i = 0; i < o->worker_count; i++)
        if (o->workers[i] == 0 || o->workers[i] > BT_MICRO_INDEX_WORKERS_MAX)
            return refuse(report, "workers are 1 to ",
                          BT_MICRO_INDEX_WORKERS_MAX);
    for (size_t i = 0; i < o->block_count; i++)
        if (o->block_tokens[i] == 0 ||
            t->block_tokens % o->block_tokens[i] != 0)
            return refuse(report, "blocks must divide the trace's, of ",
                          t->block_tokens);
    return BT_OK;
}

enum bt_status bt_micro_index(const struct bt_micro_index_options *o,
                              struct bt_micro_index_report *report)
{
    struct bar bar = {.on = o->progress,
                      .total = STEPS * o->worker_count * o->block_count};
    struct index_counters counters;
    enum bt_status status;

    memset(report, 0, sizeof(*report));
    snprintf(report->trace, sizeof(report->trace), "%s", o->trace->name);
    snprintf(report->source, sizeof(report->source), "%s",
             o->source ? o->source : "");
    report->synthetic = o->trace->synthetic;
    report->trace_block_tokens = o->trace->block_tokens;
    report->seed = o->seed;
    status = check(o, report);
    if (status != BT_OK)
        return status;
    report->clock_ns = clock_cost(index_now_ns);
    report->cpu_clock_ns = clock_cost(index_cpu_ns);
    index_counters_open(&counters, report->counters, sizeof(report->counters));
    for (size_t i = 0; i < o->block_count && status == BT_OK; i++) {
        struct index_keys keys;

        status = index_keys_init(&keys, o->trace, o->block_tokens[i], o->seed);
        if (status != BT_OK)
            break;
        for (size_t j = 0; j < o->worker_count && status == BT_OK; j++)
            status = run_one(o, &keys, o->workers[j], &counters, &bar, report);
        index_keys_fini(&keys);
    }
    bar_end(&bar);
    index_counters_close(&counters);
    return status;
}
