/* Shared by cmd_sim*.c: the options of `baton sim` and what they become. */
#ifndef BATON_CLI_CMD_SIM_H
#define BATON_CLI_CMD_SIM_H

#include "baton/bench/report.h"
#include "command.h"

#define SIM_FAULTS_MAX 64

struct sim_options {
    struct bt_option_list policies, speeds, faults;
    const char *cluster, *fabric, *trace, *generate, *seeds, *hold, *local,
        *fetch, *prefetch, *prices, *bias, *degrade, *output, *report, *subject,
        *loads, *study, *only, *journal, *event_lag, *event_loss, *approximate,
        *self_check;
    uint64_t requests, jobs, regret;
    double rate, warmup;
    int64_t lead, patience, telemetry, telemetry_lag, jitter, approximate_ttl;
    bool aggregated, check, capacity, tune, median, verbose, list, no_learning,
        output_known, no_event_replay;
};

/* --event-lag and --event-loss; counts 0: not given. */
struct sim_events {
    int64_t lags[BT_REPORT_EVENTS_MAX];
    double losses[BT_REPORT_EVENTS_MAX];
    size_t lag_count, loss_count;
};

/* Everything a run needs; large, on the heap. */
struct sim_work {
    struct bt_sim_cluster cluster;
    struct bt_trace trace;
    struct bt_sim_fault faults[SIM_FAULTS_MAX];
    size_t fault_count;
    struct bt_report_setup setup;
    double speeds[BT_REPORT_LOADS_MAX];
    uint32_t speed_count;
    double loads[BT_REPORT_LOADS_MAX]; /* of the report, shares */
    uint32_t load_count;
    struct sim_events events;
    char command[512];
};

/* Fill *work from the options. 0, or an exit code after a line on stderr. */
int sim_prepare(const struct sim_options *o, struct sim_work *work);
void sim_work_fini(struct sim_work *work);
/* 0, or an exit code after a line on stderr. */
int sim_events_take(const struct sim_options *o, struct sim_events *events);
/* Names of cluster files that can be found, with their fabrics. */
int sim_list(void);

#endif
