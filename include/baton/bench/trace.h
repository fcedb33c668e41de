/* A trace: when requests arrive, how long they are, and which prefix blocks
 * they share. No tokens: blocks are ids that stand for their content and all
 * before it. Read from published formats, or made by a seeded generator
 * (labelled synthetic). The simulator runs on it; workload.h is the kind with
 * tokens for emulated engines.
 */
#ifndef BATON_BENCH_TRACE_H
#define BATON_BENCH_TRACE_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_trace_format {
    BT_TRACE_AUTO,     /* by extension and first line */
    BT_TRACE_MOONCAKE, /* JSONL timestamp ms | delay, input_length,
                          output_length, hash_ids of 512 tokens */
    BT_TRACE_BAILIAN,  /* JSONL chat_id, parent_chat_id, timestamp s,
                          input_length, output_length, hash_ids of 16 */
    BT_TRACE_AZURE,    /* CSV TIMESTAMP,ContextTokens,GeneratedTokens */
    BT_TRACE_BURSTGPT  /* CSV Timestamp,...,Request tokens,Response tokens */
};

struct bt_trace_request {
    int64_t arrival_ns;     /* from the start; never decreasing */
    uint32_t input_tokens;  /* >= 1 */
    uint32_t output_tokens; /* >= 1 */
    uint64_t block_at;      /* first of its blocks in blocks[] */
    uint32_t block_count;   /* ceil(input / block_tokens); 0: no prefix info */
    uint32_t session;       /* requests of one conversation; 0 unknown */
    uint32_t turn;
    uint32_t tenant; /* 0: all alike */
    int32_t priority;
};

/* Owns its arrays. Zeroed = empty. A block id names the whole prefix up to and
 * including it: equal ids, equal prefixes. Ids are dense, 0 .. block_ids - 1.
 */
struct bt_trace {
    struct bt_trace_request *requests;
    size_t count, capacity;
    uint64_t *blocks;
    size_t block_count, block_capacity;
    uint64_t block_ids;    /* distinct ids */
    uint32_t block_tokens; /* 512, 16, ... */
    bool has_prefixes, synthetic;
    char name[64];
};

struct bt_trace_read_options {
    enum bt_trace_format format;
    uint64_t seed;       /* of the jitter */
    int64_t jitter_ns;   /* uniform [0, jitter) on each stamp; < 0: 3 s for
                            Mooncake files whose stamps are within 5 ms of
                            multiples of 3 s, else 0 */
    size_t requests_max; /* 0: all (limit 4 Mi) */
};
void bt_trace_read_options_init(struct bt_trace_read_options *o);
/* BT_NOT_FOUND, BT_INVALID, BT_TYPE, BT_TOO_LARGE: error_out (>= 256) holds
 * "FILE:LINE:COLUMN: what"; the trace stays empty. "-" is not read. */
enum bt_status bt_trace_load(const char *path,
                             const struct bt_trace_read_options *options,
                             struct bt_trace *out, char *error_out,
                             size_t error_size);
/* Another seed: same stamps, other jitter. Without jitter the order stays. */

enum bt_trace_mix { /* shares of the generator, sum 1 */
                    BT_MIX_CHAT,
                    BT_MIX_AGENT, /* many turns, small appends, hit > 90 % */
                    BT_MIX_TOOL,  /* shared tool prompts, short answers */
                    BT_MIX_RAG,   /* shared documents */
                    BT_MIX_LONG,  /* unique long prompts */
                    BT_MIX_COUNT
};
/* "chat", "agent", ... Static storage. */
const char *bt_trace_mix_name(enum bt_trace_mix kind);
struct bt_trace_generate_options {
    uint64_t seed;
    size_t requests;
    double rate_per_s; /* of requests */
    double burst;      /* 1 Poisson; > 1: on-off, share of time on 1/burst,
                          bursts of 5 s on average */
    double mix[BT_MIX_COUNT];
    uint32_t block_tokens;
    uint32_t tenants; /* prompts of different tenants share nothing */
    double output_mean;
    uint32_t input_fixed, output_fixed; /* 0: by kind; else all alike */
    double hit_fixed; /* with input_fixed: share of the prompt that is common */
};
void bt_trace_generate_options_init(struct bt_trace_generate_options *o);
/* BT_INVALID: an option out of range; BT_TOO_LARGE, BT_NO_MEMORY. */
enum bt_status bt_trace_generate(const struct bt_trace_generate_options *o,
                                 struct bt_trace *out);

/* Write as Mooncake JSONL (timestamp in whole ms). What Mooncake has no field
 * for is written where it is not the default: block_size, session_id, turn,
 * tenant, priority, and "synthetic": true in every line of a generated trace;
 * bt_trace_load reads them back. BT_IO. */
enum bt_status bt_trace_write(const struct bt_trace *trace, const char *path);
void bt_trace_fini(struct bt_trace *trace);

struct bt_trace_stats {
    size_t requests;
    double seconds, rate_per_s, interarrival_cv;
    double input_mean, output_mean;
    uint32_t input[6], output[6]; /* min p50 p90 p95 p99 max */
    uint64_t block_uses, block_unique, block_once;
    double ideal_hit_tokens, ideal_hit_blocks;        /* endless cache, 0..1 */
    double requests_with_hit, requests_with_deep_hit; /* > 0, > 1 block */
    double common_to_all_blocks; /* leading blocks every request shares */
    double continuation_share;
    /* token hit ratio of one LRU of n blocks, and of `workers` LRUs of n each
     * under random routing: what affinity is worth */
    uint32_t lru_blocks[6];
    double lru_global[6], lru_random[6];
    uint32_t workers;
    bool jitter_suspected; /* stamps within 5 ms of whole seconds */
};
/* BT_INVALID: no requests, or workers not 1 .. 4096; BT_NO_MEMORY. */
enum bt_status bt_trace_stats_get(const struct bt_trace *trace,
                                  uint32_t workers, struct bt_trace_stats *out);

/* ---- what an operator asks of a trace ---- */

/* From how many workers on, and for which caches, routing by prefix is worth
 * something: gain = token hit ratio of one LRU as large as all caches together,
 * which routing can come near but not beat, less that of the caches with
 * requests spread at random. */
#define BT_TRACE_PAYS 8
struct bt_trace_pays {
    double least;                     /* a gain from which on it pays */
    uint32_t workers, cache_blocks;   /* of each worker */
    uint32_t counts[BT_TRACE_PAYS];   /* of workers, each with cache_blocks */
    double by_workers[BT_TRACE_PAYS]; /* their gains */
    uint32_t blocks[BT_TRACE_PAYS];   /* of each cache, with `workers` */
    double by_cache[BT_TRACE_PAYS];
    uint32_t workers_from; /* it pays for this count and all above; 0: never */
    uint32_t blocks_from, blocks_to; /* least and largest that pays; 0: none */
};
/* BT_INVALID: workers not 1 .. 4096, no cache, no prefixes; BT_NO_MEMORY. */
enum bt_status bt_trace_pays_get(const struct bt_trace *trace, uint32_t workers,
                                 uint32_t cache_blocks, double least,
                                 struct bt_trace_pays *out);

/* Hits by tier: LRU on the device, whose evicted blocks sink to the next tier,
 * and so on; a hit brings them all to the device. A hit is the leading run
 * that is in any tier. */
#define BT_TRACE_TIERS 3 /* device, host, disk */
struct bt_trace_tier {
    uint64_t blocks;   /* given; 0: no such tier */
    double tokens;     /* hit there */
    double moment;     /* of them: sum of n^2 + 2 n h, n tokens after h; what
                          prefill time grows with beside n (cost.h) */
    uint64_t requests; /* that hit there */
};
struct bt_trace_tiers {
    struct bt_trace_tier tiers[BT_TRACE_TIERS];
    double tokens, moment; /* of all prompts: sums of n and n^2 */
};
/* `workers` with caches of `blocks` each, requests spread at random. BT_INVALID
 * as above (all tiers 0), BT_NO_MEMORY, BT_TOO_LARGE. */
enum bt_status bt_trace_tiers_get(const struct bt_trace *trace,
                                  uint32_t workers,
                                  const uint64_t blocks[BT_TRACE_TIERS],
                                  struct bt_trace_tiers *out);

/* One namespace for all tenants against one each. Tenants are the trace's own;
 * where it has none, every conversation (requests that hold the last full block
 * of an earlier one) gets one of `tenants` at random (seeded). */
struct bt_trace_isolation {
    uint32_t tenants;
    bool from_trace; /* its own field */
    uint64_t conversations;
    uint64_t blocks_shared, blocks_own; /* different blocks */
    double ideal_shared, ideal_own;     /* token hit ratio, endless cache */
    uint32_t lru_blocks[6];             /* one cache of so many */
    double lru_shared[6], lru_own[6];
};
/* tenants 2 .. 65536. BT_INVALID, BT_NO_MEMORY. */
enum bt_status bt_trace_isolation_get(const struct bt_trace *trace,
                                      uint32_t tenants,
                                      struct bt_trace_isolation *out);

#endif
