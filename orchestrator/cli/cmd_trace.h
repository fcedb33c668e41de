/* Printing of `baton trace stats`. Private to orchestrator/cli. */
#ifndef BATON_CLI_CMD_TRACE_H
#define BATON_CLI_CMD_TRACE_H

#include "baton/bench/trace.h"

/* Least bandwidth at which moving a cached prefix beats computing it again
 * (cost-models.md section 16), at the start of a prompt and deep inside. */
#define TRACE_DEPTH 32768u
struct trace_break_even {
    const char *compute, *kv;
    double rate_bytes_per_s, deep_rate_bytes_per_s;
};
/* 0, or an exit code after a message. */
int trace_break_even_get(const char *compute, const char *kv,
                         struct trace_break_even *out);

void trace_stats_table(const struct bt_trace *trace,
                       const struct bt_trace_stats *stats,
                       const struct trace_break_even *even);
/* 0, or an exit code after a message. */
int trace_stats_json(const struct bt_trace *trace,
                     const struct bt_trace_stats *stats,
                     const struct trace_break_even *even);

#endif
