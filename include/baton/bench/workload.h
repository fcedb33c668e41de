/* A workload: requests with arrival times and prompts as token ids. Made by a
 * seeded generator or read from a Mooncake JSONL trace; the same seed and
 * options give the same workload on every platform.
 *
 * Prompts lie one after the other in `tokens`. Nothing here is a secret, but
 * token ids never reach a log: they may come from a user's trace.
 */
#ifndef BATON_BENCH_WORKLOAD_H
#define BATON_BENCH_WORKLOAD_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

enum bt_workload_kind {
    BT_WORKLOAD_CHAT, /* shared system prompt, several turns */
    BT_WORKLOAD_RAG,  /* system prompt + shared document + question */
    BT_WORKLOAD_LONG, /* long and unlike any other */
    BT_WORKLOAD_TRACE /* from a file */
};

struct bt_workload_request {
    int64_t arrival_ns;    /* from the start of the run; never decreasing */
    uint64_t token_at;     /* index of the first prompt token in tokens[] */
    uint32_t token_count;  /* prompt tokens, >= 1 */
    uint32_t max_tokens;   /* answer tokens asked for, >= 1 */
    uint32_t conversation; /* requests of one conversation share it */
    uint32_t turn;         /* 0-based in its conversation */
    enum bt_workload_kind kind;
};

/* Owns both arrays. Zeroed = empty. */
struct bt_workload {
    struct bt_workload_request *requests;
    size_t count, capacity;
    uint32_t *tokens;
    size_t token_count, token_capacity;
    size_t requests_max, tokens_max; /* limits, 0: 1,000,000 and 256 Mi */
};

/* What the engines would answer: write max_tokens ids to out (the expected
 * output), so that a next turn repeats what the engine holds. */
typedef void (*bt_workload_answer_fn)(void *arg, const uint32_t *prompt,
                                      size_t count, uint32_t max_tokens,
                                      uint32_t *out);

struct bt_workload_options {
    uint64_t seed;
    size_t requests;         /* number of requests, >= 1 */
    double rate_per_s;       /* Poisson arrivals, > 0 */
    uint32_t vocabulary;     /* token ids are below it, >= 2 */
    uint32_t system_prompts; /* shared prompts, chosen by Zipf(1) */
    uint32_t system_tokens;  /* length of each */
    uint32_t documents;      /* shared documents, chosen by Zipf(1) */
    uint32_t document_tokens_min, document_tokens_max;
    uint32_t question_min, question_max; /* new user tokens per turn */
    uint32_t long_min, long_max;         /* unique long prompts */
    uint32_t answer_min, answer_max;     /* answer tokens */
    double share_rag, share_long;        /* of new conversations; rest chat */
    double follow_up; /* chance that an arrival continues a chat */
    uint32_t turns_max;
    double think_s;               /* least gap between turns */
    bt_workload_answer_fn answer; /* NULL: answers are drawn at random */
    void *answer_arg;
};
/* Values of the default demo. */
void bt_workload_options_init(struct bt_workload_options *options);

/* Fill an empty workload. BT_INVALID: options out of range; BT_TOO_LARGE: over
 * the workload's limits; BT_NO_MEMORY. On failure the workload is empty. */
enum bt_status bt_workload_generate(const struct bt_workload_options *options,
                                    struct bt_workload *workload);

struct bt_trace_options {
    uint64_t seed;           /* of the jitter */
    uint32_t vocabulary;     /* as above */
    double speed;            /* arrival times are divided by it, > 0 */
    uint32_t tokens_divisor; /* lengths are divided by it, 1..512 */
    int64_t jitter_ns;       /* uniform [0, jitter) is added to each stamp */
    size_t requests_max;     /* stop after so many lines; 0 = all */
    int64_t duration_ns;     /* drop later arrivals (scaled time); 0 = none */
};
void bt_trace_options_init(struct bt_trace_options *options);

/* Read Mooncake JSONL: {"timestamp": ms, "input_length", "output_length",
 * "hash_ids"}; an id stands for 512 tokens together with all before them, the
 * last id for the rest. Sorted by arrival after jitter. BT_NOT_FOUND: no such
 * file; BT_INVALID, BT_TYPE, BT_TOO_LARGE: error_out (>= 256 bytes) holds
 * "FILE:LINE:COLUMN: what". A line is at most 1 MiB. On failure the workload
 * is empty. */
enum bt_status bt_trace_read(const char *path,
                             const struct bt_trace_options *options,
                             struct bt_workload *workload, char *error_out,
                             size_t error_size);

/* Append a request with room for its tokens; *tokens_out is the place to write
 * them (valid until the next call). BT_TOO_LARGE, BT_NO_MEMORY. */
enum bt_status bt_workload_append(struct bt_workload *workload,
                                  const struct bt_workload_request *request,
                                  uint32_t **tokens_out);
const uint32_t *bt_workload_prompt(const struct bt_workload *workload,
                                   size_t request);
/* Sort by arrival; equal times keep their order. BT_NO_MEMORY. */
enum bt_status bt_workload_sort(struct bt_workload *workload);
void bt_workload_fini(struct bt_workload *workload);

struct bt_trace;
/* The same requests without tokens, in blocks of block_tokens >= 1: what the
 * simulator needs to run the same workload. *out is overwritten. BT_TOO_LARGE,
 * BT_NO_MEMORY; then it is empty. */
enum bt_status bt_workload_trace(const struct bt_workload *workload,
                                 uint32_t block_tokens, struct bt_trace *out);

struct bt_workload_stats {
    size_t requests;
    uint64_t prompt_tokens, answer_tokens;
    uint32_t prompt_max;
    int64_t span_ns;          /* last arrival */
    uint64_t blocks;          /* full and partial blocks of all prompts */
    uint64_t repeated_blocks; /* of them, full ones seen before with the same
                                 prefix: what an endless cache would hit */
};
/* block_tokens >= 1. BT_NO_MEMORY. */
enum bt_status bt_workload_stats_get(const struct bt_workload *workload,
                                     uint32_t block_tokens,
                                     struct bt_workload_stats *out);

#endif
