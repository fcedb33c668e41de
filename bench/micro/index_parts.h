/* Parts of `baton bench index` beside the log: the baseline, events on the
 * wire, hardware counters, a run's passes. Private to bench/micro. */
#ifndef BENCH_MICRO_INDEX_PARTS_H
#define BENCH_MICRO_INDEX_PARTS_H

#include "baton/bench/micro_index.h"
#include "baton/planner/prefix_index.h"
#include "index_log.h"

/* ---- baseline: chained hash maps of (worker, number) ---- */

struct index_naive;
/* Room for `holdings` entries, taken at once. NULL: out of memory. */
struct index_naive *index_naive_create(uint64_t holdings);
void index_naive_destroy(struct index_naive *naive);
void index_naive_store(struct index_naive *naive, uint32_t worker,
                       const uint64_t *hashes, const uint64_t *keys,
                       size_t count);
void index_naive_remove(struct index_naive *naive, uint32_t worker,
                        uint64_t hash);
/* Leading keys that each of `workers` holds. */
void index_naive_match(const struct index_naive *naive, uint32_t workers,
                       const uint64_t *keys, size_t count, uint32_t *depth_out);

/* ---- the wire: payloads as vLLM publishes them ---- */

struct index_wire {
    unsigned char *bytes;
    size_t count, capacity;
    bool as_maps; /* encoding B, else A */
    bool failed;  /* out of memory: what was written is not whole */
};
void index_wire_fini(struct index_wire *w);
/* One payload [time, [events], 0]; head, its events, no tail. */
void index_wire_batch(struct index_wire *w, uint32_t event_count);
void index_wire_rank(struct index_wire *w);
void index_wire_stored(struct index_wire *w, const struct bt_kv_store *store);
void index_wire_removed(struct index_wire *w, uint64_t hash);

/* ---- hardware counters of this thread ---- */

struct index_counters {
    int instructions, misses; /* descriptors, -1: none */
};
struct index_counts {
    double instructions, misses; /* < 0: not counted */
};
/* why_out: "" when they work, else what the kernel said. */
void index_counters_open(struct index_counters *c, char *why_out, size_t size);
void index_counters_close(struct index_counters *c);
void index_counters_start(const struct index_counters *c);
void index_counters_stop(const struct index_counters *c,
                         struct index_counts *out);

/* ---- one run ---- */

struct index_bench {
    const struct index_keys *keys;
    const struct index_log *log;
    const struct bt_micro_index_options *options;
    const struct index_counters *counters;
    double clock_ns, cpu_clock_ns; /* cost of a reading */
    struct bt_prefix_index_limits limits;
    void *memory;
    size_t bytes;
    struct bt_prefix_index *index;
    uint32_t *depth, *times; /* workers x tiers; one per request, ns */
    volatile uint64_t sink;
    struct bt_micro_index_run *run;
    char *error; /* BT_MICRO_INDEX_ERROR_MAX */
};
/* An empty index over the same memory. */
enum bt_status index_bench_fresh(struct index_bench *b);
void index_apply(struct bt_prefix_index *index, const struct index_log *log,
                 const struct index_event *event);
int64_t index_now_ns(void); /* monotonic: one look-up */
int64_t index_cpu_ns(void); /* of this thread: rates, whoever else runs */
/* Own keys given: events, look-ups, both. */
enum bt_status index_measure(struct index_bench *b);
/* From tokens and from the wire, over the head of the log. */
enum bt_status index_measure_feeds(struct index_bench *b);
/* The baseline, and that both say the same. */
enum bt_status index_measure_naive(struct index_bench *b);

#endif
