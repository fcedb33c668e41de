/* Named studies: tables of cells with a rule for each. */
#ifndef BATON_BENCH_STUDY_PRIV_H
#define BATON_BENCH_STUDY_PRIV_H

#include "report_priv.h"

#define STUDY_RIVALS_MAX 4
#define STUDY_CHECKS_MAX 4
#define GB               1000000000ULL

/* What a cell changes on the user's cluster, fabric and trace; 0: nothing. */
struct study_world {
    uint64_t nic, slow_nic; /* bytes/s; nic 0: the user's fabric stays */
    uint32_t racks, oversubscription;
    double background; /* share of the uplinks, on-off, uneven */
    double degraded;   /* true share of the first decode worker's NIC */
    uint32_t prefill, decode;
    uint64_t kv_bytes_per_token, kv_tokens;
    uint32_t decode_slots;
    bool layers; /* layer-wise overlap */
    /* Synthetic trace instead of the user's: */
    uint32_t input, output; /* all prompts alike */
    double hit;             /* share of the prompt that is common */
    bool agents;            /* the agent mix */
    uint32_t input_min;     /* keep only prompts at least this long */
    double load;            /* share of the best capacity of the cell's arms */
    /* Knowledge. */
    double compute_bias, link_bias;
    bool shuffled;
    int64_t stale_ns;    /* age of telemetry and its period; < 0: none */
    double event_loss;   /* 1: no events at all */
    bool no_replay;      /* what is lost is lost for good */
    double nic_fault_at; /* share of the arrivals after which the first decode
                            worker's NIC falls to 25 %; 0: never */
};

enum study_measure {
    STUDY_TTFT_MEAN,
    STUDY_TTFT_P50,
    STUDY_TTFT_P90,
    STUDY_TTFT_P95,
    STUDY_TTFT_P99,
    STUDY_TTST_MEAN,
    STUDY_TTST_P99,
    STUDY_TPOT_S,     /* mean, difference in seconds */
    STUDY_HOT_BYTES,  /* over uplinks and slow NICs */
    STUDY_HBM,        /* byte-seconds held early */
    STUDY_GOODPUT,    /* rival / subject - 1, so that less is better */
    STUDY_ATTAINMENT, /* rival - subject, points / 100 */
    STUDY_NIC,        /* busiest NIC in over mean */
    STUDY_WAIT_MAX,
    STUDY_AVOID,   /* transfers of the subject to a failing NIC, less 20 */
    STUDY_DECISION /* time of one decision, p99, us: not simulated */
};

enum study_rule { STUDY_NONE, STUDY_CLAIM, STUDY_TIE, STUDY_FLOOR };

struct study_check {
    enum study_rule rule; /* NONE ends the list */
    enum study_measure measure;
    struct bt_report_claim_rule claim; /* TIE, FLOOR: limit is the margin */
};

struct study_row {
    const char *id, *claim;
    struct study_world world;
    const char *subject;                  /* specification */
    const char *rivals[STUDY_RIVALS_MAX]; /* grids: the best setting counts */
    struct study_check checks[STUDY_CHECKS_MAX];
};

extern const struct study_row STUDY_CLAIMS[], STUDY_TIES[], STUDY_KNOWLEDGE[];
extern const size_t STUDY_CLAIM_COUNT, STUDY_TIE_COUNT, STUDY_KNOWLEDGE_COUNT;

/* A cell made real. On the heap: large. */
struct study_cell {
    struct bt_report_setup setup; /* one scenario; arms of the row */
    struct bt_sim_cluster cluster;
    struct bt_trace trace; /* own; empty: the user's */
    struct bt_sim_fault fault;
    uint32_t rival_first[STUDY_RIVALS_MAX], rival_count[STUDY_RIVALS_MAX];
    double speed;
};
/* error_out >= BT_REPORT_ERROR_MIN. */
enum bt_status study_cell_init(struct study_cell *cell,
                               const struct bt_report_setup *user,
                               const struct study_row *row, char *error_out,
                               size_t error_size);
void study_cell_fini(struct study_cell *cell);
/* Speed at `load` of the best capacity of the cell's arms. A capacity of 0
 * (no arm meets the rule at any speed) is BT_INVALID. */
enum bt_status study_cell_speed(struct study_cell *cell, double load,
                                char *error_out, size_t error_size);

/* Places the fault of the world on the time line; the speed must be known. */
void study_cell_fault(struct study_cell *cell, const struct study_world *world);

struct study_outcome {
    const char *rival; /* name of the arm compared with; "" none */
    const char *measure;
    struct bt_report_difference difference;
    enum bt_report_verdict verdict;
};
/* One check of a row against its rival-th rival over the cells of `matrix`
 * (one scenario, one load; arm 0 is the subject). */
enum bt_status study_judge(const struct study_cell *cell,
                           const struct bt_report_matrix *matrix,
                           const struct study_row *row, uint32_t rival,
                           const struct study_check *check,
                           struct study_outcome *out);
const char *study_measure_name(enum study_measure measure);

/* P11: measured on this machine, now, by bench/micro. BT_NO_MEMORY and what
 * bt_micro_place gives. */
extern const struct study_row STUDY_COST;
enum bt_status study_cost(struct study_outcome *out);

/* A grid of lag x loss x replay; of the setup only the first scenario. */
enum bt_status study_staleness(const struct bt_report_setup *user,
                               const struct bt_report_study_options *options,
                               FILE *to, size_t *failed_out, char *error_out,
                               size_t error_size);

/* The table of steps; the other studies are tables of rows. */
enum bt_status study_ablation(const struct bt_report_setup *user,
                              const struct bt_report_study_options *options,
                              FILE *to, size_t *failed_out, char *error_out,
                              size_t error_size);

#endif
