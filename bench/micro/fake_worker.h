/* A worker that costs next to nothing: raw HTTP over epoll in a child process,
 * with the answers of a vLLM engine cut down to what an orchestrator asks for.
 * Private to bench/micro. */
#ifndef BENCH_MICRO_FAKE_WORKER_H
#define BENCH_MICRO_FAKE_WORKER_H

#include "baton/base/status.h"
#include <stdint.h>
#include <sys/types.h>

/* A streamed request for this many tokens gets one event and stays open. */
#define FAKE_HOLD_TOKENS "424242"

struct fake_worker {
    pid_t pid;
    uint16_t port;
    char url[64];
};

/* Fork; the child dies with this thread. core: CPU to stay on, -1 = any.
 * BT_IO. */
enum bt_status fake_worker_start(struct fake_worker *worker, int core);
void fake_worker_stop(struct fake_worker *worker);

/* Keep the caller on one CPU; -1: on all of `all`. */
void stay_on(int core);

#endif
