/* `baton demo`: the same seeded workload under each policy on a small cluster,
 * from cold each time, and a table that compares them.
 */
#ifndef BATON_BENCH_DEMO_H
#define BATON_BENCH_DEMO_H

#include "baton/base/status.h"
#include "baton/bench/client.h"
#include "baton/bench/cluster.h"
#include "baton/bench/stats.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_DEMO_POLICIES_MAX 8

struct bt_demo_options {
    const char *policies[BT_DEMO_POLICIES_MAX];
    size_t policy_count;
    uint64_t seed;
    size_t requests;     /* 0: as many as rate x duration gives */
    double rate_per_s;   /* Poisson arrivals of the generator */
    int64_t duration_ns; /* of the arrivals */
    const char *trace;   /* Mooncake JSONL, NULL = generator */
    double trace_speed;
    uint64_t trace_divisor; /* of lengths, 1..512 */
    bool uniform;           /* all links alike and fast */
    const char *cluster;    /* fleet from a simulator's file, NULL: the own */
    const char *fabric;     /* of that file, NULL: its first */
    const char *netbed;     /* bed whose hosts the engines run on, NULL: here */
    uint32_t rails;         /* of its hosts, 1 or 2 */
    bool hosts;             /* only say which host needs which rate */
    double speedup;         /* of the engines' compute model */
    int64_t slo_ttft_ns, slo_tpot_ns;
    const char *directory; /* kept; NULL: a temporary one, removed */
    uint64_t port;         /* of serve, 0 = any */
    bool verbose, json, keep;
    bool progress; /* draw a progress bar on stderr */
};
void bt_demo_options_init(struct bt_demo_options *options);

struct bt_demo_class {
    char name[32];
    uint64_t bytes;
};
/* Predicted times of a run beside what came, of requests that ended well and
 * were placed once (all pulls that ended well); transfers and pulls of at least
 * 5 ms predicted. Errors are
 * (realised - predicted) / predicted. */
struct bt_demo_prediction {
    size_t count;                     /* 0: unknown, nothing else is filled */
    double predicted_ms, realised_ms; /* means */
    double error_median, error_p95, bias; /* |error|, |error|, median error */
    double error_mean_ms;                 /* |realised - predicted| */
};
/* One policy's row. */
struct bt_demo_result {
    const char *policy;
    struct bt_client_summary client;
    double prefix_overlap_ratio; /* overlap seen when placing / prompt tokens */
    uint64_t prefill_tokens_saved, prefill_tokens_computed;
    struct bt_demo_class classes[BT_CLUSTER_CLASSES_MAX];
    uint32_t class_count;
    double imbalance_prefill, imbalance_decode; /* max / mean of tokens */
    double routing_p50_us, routing_p99_us;      /* -1 unknown */
    /* transfer: from the end of prefill to the first token less a step, as
     * serve can see it; pull: of the KV alone, as the decode engine sees it. */
    struct bt_demo_prediction transfer, pull, total;
    double *ttft_ms; /* per request, -1 = none; owned */
    char first_failure[256];
};
/* Difference of two policies over the requests both answered. */
struct bt_demo_comparison {
    const char *policy, *baseline;
    size_t pairs;
    struct bt_stat_interval ttft_ms; /* policy - baseline */
    double baseline_mean_ms;
    bool known;
};
struct bt_demo_report {
    struct bt_demo_options options;
    size_t count;
    struct bt_demo_result results[BT_DEMO_POLICIES_MAX];
    struct bt_workload_stats workload;
    double wall_s;
    struct bt_demo_comparison comparison;
};

/* Fill report->comparison (joint against prefix_load, if both are there). */
void bt_demo_compare(struct bt_demo_report *report, uint64_t seed);
/* Renderings, at most 100 columns. BT_IO. */
enum bt_status bt_demo_print_table(const struct bt_demo_report *report,
                                   FILE *to);
enum bt_status bt_demo_print_json(const struct bt_demo_report *report,
                                  FILE *to);
void bt_demo_report_fini(struct bt_demo_report *report);

/* Run it all; blocks for the length of the runs. Messages go to stderr, the
 * report to stdout. Returns an exit code (0, 1 wrong output or error, 3 bad
 * trace or options, 4 a child did not start). */
int bt_demo_run(const struct bt_demo_options *options);

#endif
