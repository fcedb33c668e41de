/* `baton bench index`: a block trace through LRU caches of a fleet, and what
 * the planner's prefix index makes of the KV events that come out of it. One
 * thread, no network: the index alone.
 *
 * Routing of the replay: the worker with the longest cached prefix among those
 * whose assigned blocks are at most 1.25 x the mean + one longest request; ties
 * by fewest assigned blocks, then by number.
 */
#ifndef BATON_BENCH_MICRO_INDEX_H
#define BATON_BENCH_MICRO_INDEX_H

#include "baton/base/status.h"
#include "baton/bench/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_MICRO_INDEX_WORKERS_MAX 4096u
#define BT_MICRO_INDEX_LIST_MAX    8
#define BT_MICRO_INDEX_RUNS_MAX    16
#define BT_MICRO_INDEX_ERROR_MAX   256

struct bt_micro_index_options {
    const struct bt_trace *trace; /* with prefixes */
    const char *source;           /* where it is from, in words */
    uint32_t workers[BT_MICRO_INDEX_LIST_MAX];
    size_t worker_count;
    /* Tokens per indexed block; divisors of the trace's. */
    uint32_t block_tokens[BT_MICRO_INDEX_LIST_MAX];
    size_t block_count; /* runs: worker_count x block_count <= RUNS_MAX */
    /* Cache of a worker in blocks of the trace; 0: half of the different blocks
     * over the workers, at least 16, so that every cache evicts. */
    uint32_t cache_blocks;
    uint64_t seed; /* of tokens and hashes */
    bool quick;    /* one round each, small samples: for tests */
    bool progress; /* a bar on stderr */
};

struct bt_micro_index_speed {
    double best;                       /* per second */
    double instructions, cache_misses; /* each; < 0: not counted */
};

/* One (block size, workers). Blocks are indexed blocks; rates are per second of
 * the thread's CPU time, best round; quantiles are of the wall clock, so that
 * what else runs shows in them, and in cpu_share. < 0 or 0: not measured. */
struct bt_micro_index_run {
    uint32_t workers, block_tokens, cache_blocks; /* of the trace */
    uint64_t requests, lookups; /* with a full block to look up */
    uint64_t keys, hit_keys;    /* of all look-ups; of them held by the best */
    uint64_t stored, removed;   /* blocks */
    uint64_t peak_blocks, peak_holdings; /* each at its own peak */
    double copies;                       /* holdings / blocks at the peak */
    struct bt_micro_index_speed events, lookups_only;
    double events_from_tokens, events_from_array_wire, events_from_map_wire;
    uint64_t token_blocks, wire_bytes_array, wire_bytes_map; /* of the sample */
    double tier_lookups, keys_per_s;
    double mixed_events, mixed_lookups;
    double p50_us, p99_us, p999_us;     /* look-ups amid events */
    double tier_p50_us, tier_p99_us;    /* match_tiers, the same */
    uint64_t bytes_tight, bytes_roomy;  /* arena at the peaks; at twice */
    uint64_t evicted, dropped;          /* by the index, limits at the peak */
    double naive_events, naive_lookups; /* baseline */
    uint64_t naive_compared;            /* look-ups that agreed with it */
    double cpu_share; /* of the run's wall time that the thread had a core */
    double read_ns; /* dependent random read in memory as large as the index */
};

struct bt_micro_index_report {
    char trace[64], source[256];
    bool synthetic;
    uint32_t trace_block_tokens;
    uint64_t seed;
    double cpu_clock_ns; /* of one reading of the thread's CPU time */
    double clock_ns;     /* of one reading, taken off each look-up's time */
    char counters[160];  /* "" they work, else why not */
    struct bt_micro_index_run runs[BT_MICRO_INDEX_RUNS_MAX];
    size_t count;
    char error[BT_MICRO_INDEX_ERROR_MAX];
};

/* BT_INVALID: an option (error says which); BT_NO_MEMORY; BT_BUG: the index
 * differs from the replay or from the baseline (error says how). Blocks. */
enum bt_status bt_micro_index(const struct bt_micro_index_options *options,
                              struct bt_micro_index_report *report);
/* BT_IO. JSON: "results" has one member per number of workers, of the trace's
 * own blocks (or of the first size asked for); runs of other block sizes are in
 * "by_block_tokens". */
enum bt_status
bt_micro_index_print_table(const struct bt_micro_index_report *report,
                           FILE *to);
enum bt_status
bt_micro_index_print_json(const struct bt_micro_index_report *report, FILE *to);

#endif
