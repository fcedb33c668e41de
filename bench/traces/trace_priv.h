/* Shared by the files of the token-less traces: building a trace, reading
 * lines, faults. Private to bench/traces.
 */
#ifndef BATON_TRACES_TRACE_PRIV_H
#define BATON_TRACES_TRACE_PRIV_H

#include "baton/bench/trace.h"
#include "baton/orchestrator/json.h"
#include <stdio.h>

#define TRACE_REQUESTS_MAX  (4u << 20)
#define TRACE_BLOCKS_MAX    (128u << 20)
#define TRACE_INPUT_MAX     (1u << 24)
#define TRACE_OUTPUT_MAX    (1u << 20)
#define TRACE_LINE_MAX      (1u << 20)
#define TRACE_BLOCK_MAX     65536u
#define TRACE_STAMP_MAX_NS  4000000000000000000LL
#define MOONCAKE_BLOCK      512u
#define MOONCAKE_QUANTUM_NS 3000000000LL

/* Map from a pair of 64-bit keys to a number; open addressing. */
struct pair_map {
    struct pair_slot *slots;
    size_t count, mask;
};
/* The pair's number, or `fresh` after it was put there. *found_out says which.
 * BT_NO_MEMORY. */
enum bt_status pair_map_get(struct pair_map *map, uint64_t a, uint64_t b,
                            uint64_t fresh, uint64_t *value_out,
                            bool *found_out);
void pair_map_fini(struct pair_map *map);

/* A trace in the making. Zeroed = empty. */
struct trace_build {
    struct bt_trace *trace;
    struct pair_map blocks;   /* (dense parent + 1, id in the file) -> dense */
    struct pair_map sessions; /* key of the file -> dense, from 1 */
    uint32_t session_count;
    int64_t *session_last_ns; /* last arrival by session */
    size_t session_capacity;
};
void trace_build_fini(struct trace_build *build);

/* Append a request with block_count blocks that *blocks_out gives room for
 * (valid until the next call). Fills block_at. BT_TOO_LARGE, BT_NO_MEMORY. */
enum bt_status trace_append(struct bt_trace *trace,
                            const struct bt_trace_request *request,
                            uint64_t **blocks_out);
/* Dense id of the block that follows `parent` (UINT64_MAX: the first) and is
 * called `id` in the file: ids of a chain stay what they are, ids of contents
 * become chains. */
enum bt_status trace_block(struct trace_build *build, uint64_t parent,
                           uint64_t id, uint64_t *dense_out);
/* Dense session of a key, 1 for the first. BT_NO_MEMORY. */
enum bt_status trace_session(struct trace_build *build, uint64_t a, uint64_t b,
                             uint32_t *session_out);

/* Session of a chat: its parent's when the parent was seen, else a new one;
 * parent UINT64_MAX: none. BT_NO_MEMORY. */
enum bt_status trace_chat(struct trace_build *build, uint64_t chat,
                          uint64_t parent, uint32_t *session_out);

/* Are all stamps within 5 ms of multiples of the quantum, and not all one? */
bool trace_is_quantised(const struct bt_trace *trace, int64_t quantum_ns);
/* Arrivals from 0, jitter, order. BT_NO_MEMORY. */
enum bt_status trace_settle(struct bt_trace *trace, int64_t jitter_ns,
                            uint64_t seed);

/* ---- reading ---- */

#define CSV_COLUMNS_MAX 16
struct trace_reader {
    const char *path;
    FILE *file;
    char *line; /* TRACE_LINE_MAX bytes, without its end */
    size_t bytes, number;
    char *error;
    size_t error_size;
    struct trace_build build;
    struct bt_trace *trace;
    int64_t last_ns; /* of the line before */
    int columns;     /* CSV: 0 before the header */
    int stamp_at, input_at, output_at, session_at; /* columns, -1 none */
};

/* Formats "FILE:LINE:COLUMN: what"; `at` points into the line or is NULL. */
enum bt_status trace_fault(struct trace_reader *r, const char *at,
                           enum bt_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Appends and reports a full trace or memory. */
enum bt_status trace_add(struct trace_reader *r,
                         const struct bt_trace_request *request,
                         uint64_t **blocks_out);

enum bt_status mooncake_line(struct trace_reader *r);
enum bt_status bailian_line(struct trace_reader *r);
/* The first line names the columns. */
enum bt_status azure_line(struct trace_reader *r);
enum bt_status burstgpt_line(struct trace_reader *r);

/* ---- statistics ---- */

#define TRACE_WORKERS_MAX 4096u
/* Leading blocks that every request has. */
uint32_t trace_common_blocks(const struct bt_trace *trace);
/* The worker of each request when they are spread at random (seeded, always
 * alike). malloc'd; NULL: out of memory. workers <= TRACE_WORKERS_MAX. */
uint16_t *trace_draws(size_t count, uint32_t workers);

/* Token hit ratio of `workers` LRU caches of `blocks` blocks each when every
 * request goes to a random one (seeded). BT_NO_MEMORY. */
enum bt_status trace_lru(const struct bt_trace *trace, uint32_t workers,
                         uint32_t blocks, double *ratio_out);

#endif
