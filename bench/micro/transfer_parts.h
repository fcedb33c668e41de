/* Parts of `baton bench transfer`, private to bench/micro/transfer*.c. */
#ifndef BATON_MICRO_TRANSFER_PARTS_H
#define BATON_MICRO_TRANSFER_PARTS_H

#include "baton/bench/micro_transfer.h"
#include "baton/transfer/pair.h"
#include <sys/types.h>

#define TRANSFER_REGION (96u << 20)
#define TRANSFER_BLOCK  4096u
#define TRANSFER_BLOCKS 10000u

/* Two CPUs this process may run on: [0] sends, [1] receives; the same one twice
 * when there is no second. */
struct transfer_cpus {
    int cpu[2];
};
void transfer_cpus_find(struct transfer_cpus *out);
/* This process, and what it starts from now on. */
void transfer_pin(int cpu);

/* A process with the source's end, and a pair to it. */
struct transfer_ends {
    struct bt_pair *pair;
    pid_t child;
    int control;
};
enum bt_status transfer_ends_open(const char *transports,
                                  const struct transfer_cpus *cpus,
                                  struct transfer_ends *out, char *error_out,
                                  size_t error_size);
void transfer_ends_close(struct transfer_ends *ends);

/* One run of ucx_perftest's test with messages of this size. BT_NOT_FOUND: not
 * installed; BT_FAILED-like statuses: it gave no figure. */
enum bt_status transfer_perftest(const char *test, const char *transports,
                                 const struct transfer_cpus *cpus,
                                 uint64_t size, uint64_t bytes,
                                 double *bytes_per_s_out);

#endif
