/* A well-known proxy as same-run reference: nginx, else haproxy, one thread,
 * found in PATH or the usual folders. Private to bench/micro. */
#ifndef BENCH_MICRO_REFERENCE_H
#define BENCH_MICRO_REFERENCE_H

#include "baton/base/status.h"
#include "baton/bench/process.h"
#include <stdint.h>

struct ev_loop;

struct reference {
    const char *name; /* "nginx", "haproxy" */
    struct bt_process process;
    uint16_t port;
};

/* Start it in front of the worker's port; files go to directory. BT_NOT_FOUND:
 * neither is installed; BT_TIMEOUT: it does not listen (its last words in
 * error_out). */
enum bt_status reference_start(struct reference *reference,
                               struct ev_loop *loop, const char *directory,
                               uint16_t worker_port, char *error_out,
                               size_t error_size);
void reference_stop(struct reference *reference);

#endif
