/* Printing of `baton trace stats`. Private to orchestrator/cli. */
#ifndef BATON_CLI_CMD_TRACE_H
#define BATON_CLI_CMD_TRACE_H

#include "baton/bench/trace.h"
#include "baton/planner/cost.h"
#include <jansson.h>

/* Least bandwidth at which moving a cached prefix beats computing it again
 * (cost-models.md section 16), at the start of a prompt and deep inside. */
#define TRACE_DEPTH 32768u
struct trace_break_even {
    const char *compute, *kv;
    struct bt_compute_model model;
    uint64_t kv_bytes_per_token;
    double rate_bytes_per_s, deep_rate_bytes_per_s;
};
/* 0, or an exit code after a message. */
int trace_break_even_get(const char *compute, const char *kv,
                         struct trace_break_even *out);

/* Share of all prompt tokens that routing by prefix would save beyond random
 * routing: below the first hardly worth it, below the second a little. */
#define TRACE_LITTLE 0.03
#define TRACE_SOME   0.10

struct trace_tier_options {
    uint64_t blocks; /* 0: no such tier */
    uint64_t rate;   /* bytes/s to load from it; the device: not used */
    int64_t setup_ns;
};
/* "gpu=N,host=M@RATE,disk=K@RATE". 0, or an exit code after a message. */
int trace_tiers_parse(const char *text,
                      struct trace_tier_options tiers[BT_TRACE_TIERS]);

/* What else an operator asks; cmd_trace_value.c. */
struct trace_answers {
    struct bt_trace_pays pays;
    bool has_tiers, has_isolation;
    uint32_t workers;
    struct trace_tier_options tier_options[BT_TRACE_TIERS]; /* per worker */
    struct bt_trace_tiers together, spread;
    struct bt_trace_isolation isolation;
    const char *compute, *kv;
    struct bt_compute_model model;
    uint64_t kv_bytes_per_token;
};
void trace_answers_print(const struct trace_answers *answers);
void trace_answers_json(const struct trace_answers *answers, json_t *into);

/* answers: only looked at when the trace has prefixes. */
void trace_stats_table(const struct bt_trace *trace,
                       const struct bt_trace_stats *stats,
                       const struct trace_break_even *even,
                       const struct trace_answers *answers);
/* 0, or an exit code after a message. */
int trace_stats_json(const struct bt_trace *trace,
                     const struct bt_trace_stats *stats,
                     const struct trace_break_even *even,
                     const struct trace_answers *answers);

#endif
