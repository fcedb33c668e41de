/* Shared by cmd_bench*.c. Private to orchestrator/cli. */
#ifndef BATON_CLI_CMD_BENCH_H
#define BATON_CLI_CMD_BENCH_H

#include <stdbool.h>
#include <stdint.h>

struct bench_index_options {
    const char *trace;        /* NULL: conversation, else synthetic */
    const char *workers;      /* list; NULL: 8,64,1000 */
    const char *block_tokens; /* list; NULL: the trace's own, and 16 */
    uint64_t requests;        /* 0: all */
    uint64_t cache, seed;     /* cache 0: by the trace */
    bool json;
};
/* The whole command; an exit code. */
int bench_index_run(const struct bench_index_options *options);

struct bench_tier_options {
    const char *directory; /* NULL: $TMPDIR, else . */
    uint64_t bytes, seed;  /* bytes 0: 1 GiB */
    bool json;
};
/* The whole command; an exit code. */
int bench_tier_run(const struct bench_tier_options *options);

struct bench_transfer_options {
    uint64_t bytes, seed; /* bytes 0: 1 GiB */
    bool json;
};
/* The whole command; an exit code. */
int bench_transfer_run(const struct bench_transfer_options *options);

#endif
