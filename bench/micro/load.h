/* Raw closed-loop load: N connections, each sends the same bytes again as soon
 * as its answer is complete. Cheap, so that what is measured is the proxy.
 * Private to bench/micro. */
#ifndef BENCH_MICRO_LOAD_H
#define BENCH_MICRO_LOAD_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

struct load_spec {
    uint16_t port;
    uint32_t connections;
    uint32_t requests;   /* stop after so many answers; 0 = by time */
    int64_t duration_ns; /* 0 = by count */
    const char *request; /* head and body */
    size_t request_bytes;
};
struct load_result {
    double *latency_us; /* per answer, sorted; the caller frees */
    size_t count, errors;
    double elapsed_s;
};
/* BT_REFUSED, BT_NO_MEMORY, BT_TIMEOUT (no answer for 10 s). */
enum bt_status load_run(const struct load_spec *spec, struct load_result *out);

/* Open `count` connections, send the request on each and wait until every one
 * has some answer bytes. The fds (count of them) stay open. BT_REFUSED,
 * BT_TIMEOUT. */
enum bt_status load_hold(const struct load_spec *spec, uint32_t count,
                         int *fds_out);

/* A POST /v1/completions whose body has `bytes` bytes; malloc'd. */
char *load_request_make(size_t body_bytes, const char *members,
                        size_t *bytes_out);

#endif
