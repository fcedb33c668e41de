/* Micro benchmarks of `baton bench`: results as rows with a unit and, where
 * one was measured in the same run, a baseline and the ratio to it.
 */
#ifndef BATON_BENCH_MICRO_H
#define BATON_BENCH_MICRO_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_MICRO_ROWS_MAX  96
#define BT_MICRO_NAME_MAX  64
#define BT_MICRO_NOTES_MAX 2048

struct bt_micro_row {
    char name[BT_MICRO_NAME_MAX];
    double value;
    const char *unit;                 /* static storage */
    char baseline[BT_MICRO_NAME_MAX]; /* "" = none */
    double ratio;                     /* value over the baseline's */
};
/* Whole decisions on a fleet of prefill x decode workers. */
struct bt_micro_speed {
    uint32_t prefill, decode;
    double mean_ns, p99_ns;
};
#define BT_MICRO_SPEEDS_MAX 8
struct bt_micro_report {
    struct bt_micro_row rows[BT_MICRO_ROWS_MAX];
    size_t count;
    struct bt_micro_speed speeds[BT_MICRO_SPEEDS_MAX];
    size_t speed_count;
    char notes[BT_MICRO_NOTES_MAX]; /* lines */
};

/* Rows past the maximum are dropped. baseline names an earlier row or is
 * NULL; the ratio is left out when that row is not there or 0. */
void bt_micro_add(struct bt_micro_report *report, const char *name,
                  double value, const char *unit, const char *baseline);
void bt_micro_add_speed(struct bt_micro_report *report,
                        const struct bt_micro_speed *speed);
void bt_micro_note(struct bt_micro_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* BT_IO. As JSON, "results" are the speeds and "rows" the rows; without speeds
 * "results" are the rows. */
enum bt_status bt_micro_print_table(const struct bt_micro_report *report,
                                    FILE *to);
enum bt_status bt_micro_print_json(const struct bt_micro_report *report,
                                   FILE *to);

/* Cost of the hot path: hashing, index look-up, placement; speed of whole
 * decisions, on fleets of at most `largest` prefill and as many decode workers.
 * BT_NO_MEMORY; BT_NO_WORKER: a decision failed. */
enum bt_status bt_micro_place(uint64_t seed, uint32_t largest,
                              struct bt_micro_report *report);

struct bt_micro_http_options {
    const char *program;       /* of baton; NULL: this very program */
    uint32_t latency_requests; /* per latency row */
    int64_t throughput_ns;     /* per throughput row */
    uint32_t connections;      /* of the throughput rows */
    uint32_t streams;          /* held open for the memory row */
    bool progress;             /* say on stderr what runs */
    bool verbose;
};
void bt_micro_http_options_init(struct bt_micro_http_options *options);
/* `baton serve` between a raw load generator and a raw fake worker, next to
 * nginx or haproxy if there is one. error_out >= BT_CLUSTER_ERROR_MIN. */
enum bt_status bt_micro_http(const struct bt_micro_http_options *options,
                             struct bt_micro_report *report, char *error_out,
                             size_t error_size);

#endif
