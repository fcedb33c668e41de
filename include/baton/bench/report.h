/* Comparing policies in the simulator: matrices of cells (fabric x policy x
 * load x seed), each in a process of its own, search for the SLO capacity,
 * paired intervals, tables, JSON, pages. `baton sim` is a reader of options
 * above this; the simulator itself is sim.h.
 *
 * Common random numbers: cells of one scenario, load and seed see the same
 * arrivals whatever the policy, so requests are paired by their place.
 */
#ifndef BATON_BENCH_REPORT_H
#define BATON_BENCH_REPORT_H

#include "baton/base/status.h"
#include "baton/bench/sim.h"
#include "baton/bench/stats.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_REPORT_SPEC_MAX      96
#define BT_REPORT_NAME_MAX      64
#define BT_REPORT_ARMS_MAX      64
#define BT_REPORT_SCENARIOS_MAX 32
#define BT_REPORT_SEEDS_MAX     64
#define BT_REPORT_LOADS_MAX     16
#define BT_REPORT_CELLS_MAX     65536
#define BT_REPORT_JOBS_MAX      256
#define BT_REPORT_CLASSES       4 /* of prompts: < 1K, < 8K, < 32K, more */
#define BT_REPORT_ERROR_MIN     512

/* ---- one cell ---- */

enum bt_report_sample {
    BT_REPORT_TTFT,
    BT_REPORT_TTST,
    BT_REPORT_TPOT,
    BT_REPORT_SAMPLE_COUNT
};

/* What comes back from one run. Times in seconds. */
struct bt_report_result {
    enum bt_status status; /* not BT_OK: only error means something */
    char error[256];
    struct bt_sim_summary all, by_class[BT_REPORT_CLASSES];
    double bytes_by_class[BT_PATH_CLASS_COUNT];
    double nic_imbalance; /* bytes into the busiest NIC over the mean */
    double wait_max_s;    /* longest from arrival to dispatch */
    uint64_t prefetches, prefetches_used; /* of the whole run; core.h */
    uint64_t effects_hash, events, requests;
    double wall_s, sim_s;
    uint64_t check_failures;
    char first_failure[160];
    /* With a NIC fault: transfers that still used that worker until its share
     * of them had halved; < 0: it never did, or there was no such fault. */
    int64_t transfers_to_avoid;
    /* Of the prompt tokens of measured requests: cached at the prefill worker
     * as the planner thought when it decided, and in truth when the prefill
     * began; and of the predicted, the part that was not there. */
    double predicted_share, realised_share, wrong_credit;
    /* Per request of the slice in order of arrival; NAN: not measured, or did
     * not come. Owned; NULL without keep_samples. */
    float *samples[BT_REPORT_SAMPLE_COUNT];
    size_t sample_count;
};
void bt_report_result_fini(struct bt_report_result *result);

/* One run; fills *out, its status included. Called in a child process. */
typedef void (*bt_report_run_fn)(void *arg, const struct bt_sim_config *config,
                                 bool keep_samples,
                                 struct bt_report_result *out);
/* The one of production: bt_sim_run and bt_sim_summarise. arg is not used. */
void bt_report_run_sim(void *arg, const struct bt_sim_config *config,
                       bool keep_samples, struct bt_report_result *out);

/* ---- what is compared ---- */

enum bt_report_switch { BT_REPORT_BASE, BT_REPORT_OFF, BT_REPORT_ON };

/* A policy with everything that belongs to it; the rest comes from the base
 * configuration. */
struct bt_report_arm {
    char name[BT_REPORT_NAME_MAX];   /* row of the tables */
    char policy[BT_REPORT_SPEC_MAX]; /* "name:knob=value" */
    char family[BT_REPORT_NAME_MAX]; /* settings tuned against each other */
    enum bt_report_switch hold, local, fetch, prefetch, prices, approximate,
        self_check;
    bool aggregated;
};

struct bt_report_scenario {
    char name[BT_REPORT_NAME_MAX];
    const struct bt_sim_cluster *cluster;
    uint32_t fabric;
    const struct bt_trace *trace;
    size_t first, count; /* slice; count 0: to the end */
    struct bt_sim_knowledge knowledge;
    const struct bt_sim_fault *faults;
    size_t fault_count;
};

struct bt_report_jobs {
    uint32_t jobs;         /* processes at once; 0: processors online */
    int64_t cell_limit_ns; /* of wall time; 0: 1 h */
    bool progress;         /* bar on stderr after 2 s */
    bt_report_run_fn run;  /* NULL: bt_report_run_sim */
    void *run_arg;
};

/* Pointers of base and scenarios outlive the runs. */
struct bt_report_setup {
    struct bt_sim_config base;
    struct bt_report_arm arms[BT_REPORT_ARMS_MAX];
    uint32_t arm_count;
    struct bt_report_scenario scenarios[BT_REPORT_SCENARIOS_MAX];
    uint32_t scenario_count;
    uint64_t seeds[BT_REPORT_SEEDS_MAX];
    uint32_t seed_count;
    bool keep_samples;
    bool median_of_seeds;  /* capacity: the median seed meets, not all */
    uint32_t regret_every; /* of the first seed only */
    struct bt_report_jobs jobs;
};
/* Defaults of bt_sim_config_init, one seed (1). */
void bt_report_setup_init(struct bt_report_setup *setup);
/* Adds arms for "name:knob=a|b,knob=c": every combination, at most the room
 * left. BT_INVALID, BT_NOT_FOUND (policy), BT_LIMIT: error_out (>=
 * BT_REPORT_ERROR_MIN) says what. */
enum bt_status bt_report_arm_add(struct bt_report_setup *setup,
                                 const char *spec, char *error_out,
                                 size_t error_size);
/* The configuration of a cell; its strings live in the setup. */
void bt_report_config(const struct bt_report_setup *setup, uint32_t scenario,
                      uint32_t arm, double speed, uint32_t seed,
                      struct bt_sim_config *out);
/* Hash of everything that decides what a group of cells does, seeds left out;
 * the same on every machine. */
uint64_t bt_report_config_hash(const struct bt_sim_config *config);

/* ---- the matrix ---- */

struct bt_report_matrix {
    const struct bt_report_setup *setup;
    uint32_t load_count;
    double loads[BT_REPORT_LOADS_MAX]; /* as named: share of the capacity, or
                                          the speed itself */
    bool loads_are_shares;
    double speeds[BT_REPORT_SCENARIOS_MAX][BT_REPORT_LOADS_MAX];
    struct bt_report_result *results; /* owned; [scenario][load][arm][seed] */
    size_t count;
    double wall_s;
};
/* Run all cells. A cell that fails is in its result; BT_NO_MEMORY, BT_LIMIT
 * (too many cells), BT_IO (no process or pipe). speeds and loads are set by
 * the caller. Blocks. */
enum bt_status bt_report_matrix_run(struct bt_report_matrix *matrix);
void bt_report_matrix_fini(struct bt_report_matrix *matrix);
/* Cells of a group, one per seed. */
const struct bt_report_result *
bt_report_group(const struct bt_report_matrix *matrix, uint32_t scenario,
                uint32_t load, uint32_t arm);

/* A group's mean over the seeds that did not fail. */
struct bt_report_row {
    struct bt_report_result mean; /* no samples; status: first failure */
    uint32_t seeds, failed;
};
void bt_report_row_get(const struct bt_report_matrix *matrix, uint32_t scenario,
                       uint32_t load, uint32_t arm, struct bt_report_row *out);

/* ---- capacity: highest speed at which bt_sim_meets holds ---- */

struct bt_report_search_options {
    double start, factor; /* first probe; of the bracket, > 1 */
    double tolerance;     /* relative width of the last bracket */
    double lowest, highest;
    uint32_t probes_max;
    bool verify; /* one probe below and one above the result */
};
void bt_report_search_options_init(struct bt_report_search_options *o);

/* Bracket, then bisection, then the two probes of verify. No monotone answer
 * is assumed: what contradicts it is reported, not repaired. */
struct bt_report_search {
    struct bt_report_search_options options;
    double low, high; /* highest that met below high, lowest that failed; 0 */
    double asked;
    uint32_t probes;
    int phase;              /* private */
    bool below_failed;      /* the probe at 0.8 x low failed */
    bool above_met;         /* the probe at 1.15 x high met */
    bool none_met, all_met; /* at lowest, at highest */
    bool out_of_probes;
};
void bt_report_search_init(struct bt_report_search *search,
                           const struct bt_report_search_options *options);
/* False: it is over and low is the capacity. Else the speed to try, whose
 * outcome bt_report_search_tell gives back. */
bool bt_report_search_next(struct bt_report_search *search, double *speed_out);
void bt_report_search_tell(struct bt_report_search *search, bool met);

struct bt_report_capacity {
    struct bt_report_search search;
    struct bt_report_result at; /* mean over seeds of the run at low; no
                                   samples */
    uint32_t runs;
    char error[256]; /* of the first cell that failed; "" none */
};
/* For every scenario and arm: out[scenario * arm_count + arm]. Searches
 * advance together, so that all processes are busy. Statuses as
 * bt_report_matrix_run. */
enum bt_status
bt_report_capacity_run(const struct bt_report_setup *setup,
                       const struct bt_report_search_options *options,
                       struct bt_report_capacity *out);

/* Keep of each family only the arm that is best over the scenarios on the
 * first `share` of the trace (geometric mean of capacity, one seed), and move
 * every scenario to the rest. Families with one arm keep it. what_out may be
 * NULL; else one line per family is written to it. */
enum bt_status bt_report_tune(struct bt_report_setup *setup, double share,
                              FILE *what_out);

/* ---- paired differences ---- */

enum bt_report_stat {
    BT_REPORT_MEAN,
    BT_REPORT_P50,
    BT_REPORT_P90,
    BT_REPORT_P95,
    BT_REPORT_P99
};

struct bt_report_difference {
    double subject, rival;            /* the statistic, mean of seeds */
    struct bt_stat_interval relative; /* subject / rival - 1 */
    struct bt_stat_interval absolute; /* subject - rival, seconds */
    size_t pairs;                     /* requests both answered */
    uint32_t seeds;
    double answered_subject, answered_rival; /* share of the measured */
    bool known;
};
/* Over seeds (resampled with replacement) and, within each, blocks of
 * consecutive requests (neighbours wait in the same queue, so single requests
 * are not independent). 95 % percentile intervals. known stays false without
 * samples. BT_NO_MEMORY. */
enum bt_status bt_report_compare(const struct bt_report_result *subject,
                                 const struct bt_report_result *rival,
                                 uint32_t seeds, enum bt_report_sample sample,
                                 enum bt_report_stat stat,
                                 struct bt_report_difference *out);

/* ---- verdicts ---- */

#define BT_REPORT_VERDICT_LIST(X)                                              \
    X(BT_VERDICT_HOLDS, "holds")           /* as claimed */                    \
    X(BT_VERDICT_SMALLER, "holds, weaker") /* sure, but below the range */     \
    X(BT_VERDICT_OPEN, "open")             /* the interval allows both */      \
    X(BT_VERDICT_FAILS, "FAILS")                                               \
    X(BT_VERDICT_TIES, "ties")                                                 \
    X(BT_VERDICT_BETTER, "better")      /* beyond the margin, to our good */   \
    X(BT_VERDICT_NO_DATA, "no data")    /* cells failed or nothing paired */   \
    X(BT_VERDICT_SHEDS, "incomparable") /* answers fewer requests */
enum bt_report_verdict {
#define X(code, name) code,
    BT_REPORT_VERDICT_LIST(X)
#undef X
};
const char *bt_report_verdict_name(enum bt_report_verdict verdict);

/* A claim about a relative difference where less is better. It fails when the
 * mean is above limit; when only the interval reaches above, it is open, or
 * fails too with by_interval. */
struct bt_report_claim_rule {
    double limit;                       /* e.g. -0.03 */
    double expected_low, expected_high; /* e.g. -0.20, -0.10 */
    bool by_interval;
};
enum bt_report_verdict
bt_report_judge_claim(const struct bt_report_claim_rule *rule,
                      const struct bt_report_difference *difference);
/* Two one-sided tests: ties when the interval lies within +-margin, better or
 * fails when it lies outside on that side, else open. */
enum bt_report_verdict
bt_report_judge_tie(double margin,
                    const struct bt_report_difference *difference);
/* Never worse: fails when the whole interval is above the margin; open when
 * it straddles it. */
enum bt_report_verdict
bt_report_judge_floor(double margin,
                      const struct bt_report_difference *difference);

/* ---- outputs ---- */

/* BT_IO. Tables are at most 120 columns, 128 with
 * regret. */
enum bt_status bt_report_print_table(const struct bt_report_matrix *matrix,
                                     FILE *to);
enum bt_status bt_report_print_json(const struct bt_report_matrix *matrix,
                                    FILE *to);
enum bt_status
bt_report_print_capacity(const struct bt_report_setup *setup,
                         const struct bt_report_capacity *capacity, bool json,
                         FILE *to);

struct bt_report_options {
    const char *directory; /* made when it is not there */
    const char *subject;   /* arm compared with the rest; NULL: the first */
    uint32_t load_count;   /* shares of the best capacity per scenario */
    double loads[BT_REPORT_LOADS_MAX];
    double tune_share;   /* 0: no tuning */
    const char *command; /* as typed, for the page */
    bool verbose;        /* say on stderr what runs */
};
void bt_report_options_init(struct bt_report_options *options);
/* The whole A/B matrix: tune, capacity, cells, comparisons; writes
 * results.json, results.txt, index.html and plots/. Without gnuplot the page
 * has no plots and says so. error_out >= BT_REPORT_ERROR_MIN. BT_IO and what
 * bt_report_matrix_run gives. */
enum bt_status bt_report_write(struct bt_report_setup *setup,
                               const struct bt_report_options *options,
                               char *error_out, size_t error_size);

/* ---- named studies ---- */

#define BT_REPORT_STUDIES    "ablation, claims, ties, knowledge, staleness"
#define BT_REPORT_EVENTS_MAX 8
struct bt_report_study_options {
    bool json;
    double load;      /* > 0: at this speed instead of shares of the capacity */
    const char *only; /* id of one row; NULL: all */
    bool verbose;
    /* staleness: that are tried, growing; counts 0: its own */
    int64_t lags[BT_REPORT_EVENTS_MAX]; /* ns */
    double losses[BT_REPORT_EVENTS_MAX];
    size_t lag_count, loss_count;
};
/* setup gives base configuration, one scenario (cluster and trace), seeds and
 * jobs; its arms are not used. Prints a table or JSON with a verdict per row.
 * BT_NOT_FOUND: no such study; BT_INVALID: staleness with more cells than
 * BT_REPORT_SCENARIOS_MAX; BT_OK also when verdicts fail. *failed_out:
 * rows that failed. */
enum bt_status bt_report_study(const char *name,
                               const struct bt_report_setup *setup,
                               const struct bt_report_study_options *options,
                               FILE *to, size_t *failed_out, char *error_out,
                               size_t error_size);

#endif
