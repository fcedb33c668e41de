/* The simulator: the real core over a world in virtual time (bench/sim). The
 * planner sees what production would see: reported telemetry, KV events with
 * lag and loss, answers; never the world's state.
 *
 * Same configuration and seed: same hash of effects, on every compiler.
 */
#ifndef BATON_BENCH_SIM_H
#define BATON_BENCH_SIM_H

#include "baton/base/status.h"
#include "baton/bench/trace.h"
#include "baton/orchestrator/core.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- cluster file (bench/clusters/sim/NAME.yaml) ---- */

#define BT_SIM_NAME_MAX    48
#define BT_SIM_POOLS_MAX   8
#define BT_SIM_FABRICS_MAX 24

struct bt_sim_pool {
    char name[BT_SIM_NAME_MAX];
    unsigned int roles;
    uint32_t count;
    struct bt_compute_model compute;   /* true times */
    char preset[BT_SIM_NAME_MAX];      /* its name, "": own coefficients */
    uint64_t kv_tokens;                /* device cache and running requests */
    uint64_t host_tokens, disk_tokens; /* slower tiers, 0: none */
    struct bt_tier_model host, disk;
    uint32_t disk_servers, disk_saturation; /* NVMe station */
    double disk_first_share;
    uint32_t decode_slots;
    uint32_t prefill_chunk; /* tokens per step of a prefill-only worker, all
                               requests together; 0: whole prompts, FIFO */
    uint32_t local_chunk;   /* prefill tokens beside decodes; 0: never serves
                               a whole request while there is a pool */
    bool fetch;             /* pulls prefixes from peers when told to */
};

struct bt_sim_fabric {
    char name[BT_SIM_NAME_MAX];
    uint64_t nic_bytes_per_s;
    uint64_t slow_nic_bytes_per_s; /* of every second worker of each pool; 0 */
    uint32_t slow_pool;            /* instead: of this pool's workers, 1 is the
                                      first; 0 */
    uint32_t racks;                /* workers of each pool spread over them */
    uint64_t rack_up_bytes_per_s;  /* each way; 0: no limit */
    int64_t setup_ns, per_descriptor_ns;
    double background;            /* share of each rack uplink used by others */
    int64_t background_period_ns; /* on-off; 0: constant */
    double degraded_factor; /* true NIC rate of one worker is this share of
                               what the topology says; 0: none */
    uint32_t degraded_worker;
    uint32_t prefill_count, decode_count; /* instead of the pools'; 0 */
};

struct bt_sim_cluster {
    char name[BT_SIM_NAME_MAX];
    uint64_t kv_bytes_per_token;
    uint32_t descriptor_tokens; /* tokens per descriptor: block size of the
                                   engine, or more when coalesced */
    struct bt_engine_mode mode;
    struct bt_sim_pool pools[BT_SIM_POOLS_MAX];
    uint32_t pool_count;
    struct bt_sim_fabric fabrics[BT_SIM_FABRICS_MAX];
    uint32_t fabric_count;
};
/* Strict YAML; faults as "FILE:LINE:COLUMN: what". error_out >= 512 bytes. */
enum bt_status bt_sim_cluster_load(const char *path, struct bt_sim_cluster *out,
                                   char *error_out, size_t error_size);
/* NIC rate of the index-th worker (0-based) of a pool, each way. */
uint64_t bt_sim_fabric_nic(const struct bt_sim_fabric *fabric, uint32_t pool,
                           uint32_t index);
/* BT_NOT_FOUND. */
enum bt_status bt_sim_fabric_find(const struct bt_sim_cluster *cluster,
                                  const char *name, uint32_t *index_out);

/* ---- a run ---- */

/* What the planner is told, against what is true. */
struct bt_sim_knowledge {
    double compute_bias;  /* its prefill and decode models times 1 + this */
    double link_bias;     /* its link rates times 1 + this */
    bool shuffled_costs;  /* compute and links of workers permuted */
    int64_t telemetry_ns; /* between reports of a worker; 0: none */
    int64_t telemetry_lag_ns;
    int64_t event_lag_ns; /* of KV events, mean; exponential */
    double event_loss;    /* share of event batches lost, noticed by the
                             number of the next one; and of replays */
    bool event_replay;    /* the engines keep their batches and send what is
                             missed again: 3 event_lag_ns + 5 ms after it is
                             asked for; later batches wait. One that is lost is
                             asked for again after 2 s, thrice in all. Without,
                             or then: the stream goes on as degraded until the
                             worker has stored as many further blocks as its
                             device holds; then it is partial, aged out */
    bool event_reorder;   /* batches overtake each other */
    bool events_off;      /* stream absent */
    /* As core.h and `baton serve`: where events cannot be believed, blocks are
     * guessed from placements, for ttl since their last use; predicted hits
     * are held against what engines report. */
    bool approximate, self_check;
    int64_t approximate_ttl_ns; /* > 0 with approximate */
    bool calibrate;             /* core learns */
    uint32_t output_known;      /* 0: core's expected_output; 1: told exactly */
};

#define BT_SIM_FAULT_LIST(X)                                                   \
    X(BT_SIM_KILL, "kill") /* worker dies, comes back empty at until */        \
    X(BT_SIM_SLOW, "slow") /* its compute takes factor times longer */         \
    X(BT_SIM_NIC, "nic")   /* its NIC runs at factor of its rate */            \
    X(BT_SIM_CUT, "cut")   /* its transfers stand still, then fail */          \
    X(BT_SIM_HANG, "hang") /* it answers nothing until `until` */
enum bt_sim_fault_kind {
#define X(code, name) code,
    BT_SIM_FAULT_LIST(X)
#undef X
        BT_SIM_FAULT_COUNT
};
struct bt_sim_fault {
    enum bt_sim_fault_kind kind;
    uint32_t worker;
    int64_t at_ns, until_ns; /* until 0: for ever */
    double factor;
};

struct bt_sim_config {
    const struct bt_sim_cluster *cluster;
    uint32_t fabric;
    const struct bt_trace *trace;
    double speed;        /* arrival rate times the trace's, > 0 */
    size_t first, count; /* slice of the trace; count 0: to the end */
    double warmup;       /* share of requests not measured, e.g. 0.1 */
    uint64_t seed;       /* world, jitter of arrivals, core */
    int64_t jitter_ns;   /* more jitter per arrival, from the seed */
    const char *policy;  /* "name:knob=value" */
    bool aggregated;     /* all workers serve whole requests, chunked */
    bool local, fetch;   /* allow what the cluster's workers can */
    struct bt_place_prices prices;
    struct bt_core_hold_config hold;
    struct bt_core_slo_config slo; /* also what attainment is measured by */
    struct bt_sim_knowledge knowledge;
    const struct bt_sim_fault *faults;
    size_t fault_count;
    bool check;            /* invariants of world and ledger after each step */
    uint32_t regret_every; /* 0: none; n: true cost of all pairs for one in n
                              decisions, by forks of the process */
    const char *journal;   /* file to record the core's events to; NULL */
};
/* Defaults: speed 1, warmup 0.1, joint, hold on, SLO of the evaluation
 * reference (0.5 s + 3 x unloaded, 50 ms), calibrate, telemetry 100 ms,
 * replay, approximate (120 s) and self-check. */
void bt_sim_config_init(struct bt_sim_config *config);

struct bt_sim_record {
    int64_t arrival_ns, dispatched_ns, prefill_done_ns, first_token_ns,
        second_token_ns, finished_ns;           /* absolute, 0 = never */
    int64_t transfer_start_ns, transfer_end_ns; /* true */
    int64_t prefill_start_ns, slot_ns;          /* true */
    int64_t unloaded_prefill_ns, unloaded_ttft_ns, ttft_slo_ns;
    int64_t gap_max_ns; /* largest gap between tokens */
    uint32_t input_tokens, output_tokens;
    uint32_t cached_tokens, fetched_tokens, predicted_overlap; /* at p */
    uint64_t transfer_bytes, fetch_bytes;
    uint32_t p, d, source; /* worker slots or BT_PLACE_NONE */
    struct bt_place_terms predicted;
    int64_t predicted_at_ns;
    int64_t predicted_p90_ns; /* bt_decision.total_p90_ns */
    enum bt_reason reason;
    enum bt_outcome outcome;
    bool measured;     /* after the warm-up and arrived before the end */
    bool differs;      /* from load + prefix */
    int64_t regret_ns; /* < 0: not computed */
};

struct bt_sim_link_use {
    char name[40];
    uint32_t kind;            /* enum bt_link_kind */
    double rate_bytes_per_s;  /* nominal */
    double bytes, busy_share; /* share: of what it could carry while requests
                                 arrived */
};

struct bt_sim_result {
    struct bt_sim_record *records; /* owned, in order of arrival */
    size_t count;
    uint64_t effects_hash;
    uint64_t events; /* core steps */
    double wall_s;   /* of the run; not part of any hash */
    double sim_s;    /* virtual seconds of arrivals */
    uint32_t worker_count;
    unsigned int *roles;           /* per worker, owned */
    double *busy_share;            /* per worker, owned */
    double *prefill_share;         /* of it, prefill */
    struct bt_sim_link_use *links; /* owned */
    size_t link_count;
    uint64_t bytes_by_class[BT_PATH_CLASS_COUNT]; /* transfers + fetches */
    uint64_t check_failures;                      /* see first_failure */
    char first_failure[160];
    struct bt_core_counters counters;
};

/* BT_INVALID: error_out says which part of the configuration; BT_NOT_FOUND: no
 * such policy; BT_IO: the journal; BT_NO_MEMORY. One run per thread at a time;
 * regret and oracle fork the process and wait for their children. */
enum bt_status bt_sim_run(const struct bt_sim_config *config,
                          struct bt_sim_result *out, char *error_out,
                          size_t error_size);
void bt_sim_result_fini(struct bt_sim_result *result);

/* ---- what a run is worth (bench/sim/summary.c) ---- */

struct bt_sim_quantiles {
    double mean, p50, p90, p95, p99, max; /* seconds */
};
struct bt_sim_summary {
    size_t measured, ok, met; /* met: inside both SLOs */
    double attainment;        /* met / measured */
    double goodput_per_s;     /* met per second of arrivals */
    struct bt_sim_quantiles ttft, ttst, tpot, slowdown; /* slowdown: TTFT /
                                                           unloaded TTFT */
    double hit_share; /* cached + fetched tokens / input tokens */
    double fetched_share;
    double bytes_moved, bytes_fetched, bytes_hot; /* hot: rack or pod uplinks
                                                     and slow NICs */
    double imbalance_prefill, imbalance_decode;   /* max / mean busy share */
    double changed_share; /* decisions that differ from load + prefix */
    double error_total, error_prefill, error_transfer, error_queue; /* median
                               |predicted / realised - 1| of the term */
    double bias_total;   /* median predicted / realised - 1 */
    double coverage_p90; /* share of realised totals below predicted p90 */
    double regret_mean_s, regret_p99_s; /* < 0: not computed */
    double hbm_byte_seconds, slot_idle_seconds;
    double decisions_per_s; /* of wall time, whole run: requests / wall */
};
/* by prompt class too: class < 0 all; 0: < 1K, 1: < 8K, 2: < 32K, 3: more. */
void bt_sim_summarise(const struct bt_sim_result *result,
                      const struct bt_core_slo_config *slo, int prompt_class,
                      struct bt_sim_summary *out);
/* SLO capacity rule: attainment >= 0.95 and p99 of slowdown <= 10. */
bool bt_sim_meets(const struct bt_sim_summary *summary);

#endif
