/* vLLM's metrics of one engine (engine-wire.md 5.1, 5.2): counters and
 * histograms, and their text exposition. Adding a sample is a few additions. */
#ifndef BATON_BENCH_ENGINE_METRICS_H
#define BATON_BENCH_ENGINE_METRICS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_METRIC_BUCKETS_MAX 28

enum bt_engine_hist {
    BT_HIST_TTFT,
    BT_HIST_ITL,
    BT_HIST_TPOT,
    BT_HIST_E2E,
    BT_HIST_QUEUE,
    BT_HIST_INFERENCE,
    BT_HIST_PREFILL,
    BT_HIST_DECODE,
    BT_HIST_PREFILL_COMPUTED,
    BT_HIST_ITERATION_TOKENS,
    BT_HIST_PROMPT_TOKENS,
    BT_HIST_GENERATION_TOKENS,
    BT_HIST_XFER_TIME,
    BT_HIST_XFER_POST,
    BT_HIST_XFER_BYTES,
    BT_HIST_XFER_DESCRIPTORS
};
#define BT_HISTS 16

struct bt_metric_hist {
    uint64_t buckets[BT_METRIC_BUCKETS_MAX + 1]; /* last: +Inf */
    uint64_t count;
    double sum;
};

struct bt_engine_metrics {
    struct bt_metric_hist hists[BT_HISTS];
    uint64_t prefix_queries, prefix_hits;     /* tokens */
    uint64_t external_queries, external_hits; /* tokens */
    uint64_t prompt_tokens, prompt_computed, prompt_local, prompt_external;
    uint64_t generation_tokens;
    uint64_t success_length, success_abort, success_error;
    uint64_t nixl_failed_transfers, nixl_failed_notifications, nixl_expired;
};

/* Values read at the time of the scrape. */
struct bt_engine_gauges {
    const char *model;
    uint32_t running, waiting, waiting_capacity, waiting_deferred;
    double kv_usage;
    uint32_t block_tokens, block_count;
    double start_time_s;
    const char *running_adapters, *waiting_adapters; /* comma lists */
    uint32_t adapters_max;
};

void bt_metric_add(struct bt_engine_metrics *m, enum bt_engine_hist hist,
                   double value);
void bt_metrics_write(const struct bt_engine_metrics *m,
                      const struct bt_engine_gauges *g, FILE *out);

#endif
