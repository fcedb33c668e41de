/* `baton bench transfer`: gets between two processes over one rail, beside
 * ucx_perftest on the same two CPUs, taking turns in one run; and many small
 * blocks beside one large copy and beside one get per block.
 */
#ifndef BATON_BENCH_MICRO_TRANSFER_H
#define BATON_BENCH_MICRO_TRANSFER_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_MICRO_TRANSFER_ROWS_MAX  8
#define BT_MICRO_TRANSFER_NOTES_MAX 2048
#define BT_MICRO_TRANSFER_ROUNDS    5
#define BT_MICRO_TRANSFER_AIM       0.95 /* of ucx_perftest, from 1 MiB */
/* Names the job of the second process, which runs the same program with the
 * same arguments. */
#define BT_MICRO_TRANSFER_PEER "BATON_BENCH_TRANSFER_PEER"

struct bt_micro_transfer_options {
    uint64_t bytes; /* of each run, 64 MiB or more */
    uint64_t seed;  /* order of the random blocks */
    bool progress;  /* a line per round on standard error */
};

struct bt_micro_transfer_row {
    const char *transport; /* "tcp", "shm" */
    uint64_t size;         /* of a get, and of a message of ucx_perftest */
    uint32_t in_flight;
    double bytes_per_s;   /* medians of the rounds */
    const char *perftest; /* its fastest test; NULL: not measured */
    double perftest_bytes_per_s;
    double ratio;    /* median of the rounds' ratios */
    double cpu_load; /* of our receiving process, 1 = a core */
};
struct bt_micro_transfer_blocks {
    const char *transport, *shape; /* "contiguous", "strided", "random" */
    bool checksums;
    double seconds, naive_seconds; /* naive: a get per block */
    double large_ratio;            /* speed over that of one large copy */
};
struct bt_micro_transfer_report {
    struct bt_micro_transfer_row rows[BT_MICRO_TRANSFER_ROWS_MAX];
    struct bt_micro_transfer_blocks blocks[2 * BT_MICRO_TRANSFER_ROWS_MAX];
    size_t row_count, block_count;
    uint32_t block_bytes, block_n;
    char notes[BT_MICRO_TRANSFER_NOTES_MAX]; /* lines: carriers, what was left
                                                out, what was not reached */
    char error[512];
};

/* BT_INVALID, BT_NO_MEMORY, or what a transport answered: error says which. A
 * missing ucx_perftest is a note. Blocks for a minute or more. */
enum bt_status
bt_micro_transfer(const struct bt_micro_transfer_options *options,
                  struct bt_micro_transfer_report *report);
/* The second process's part, by the text in BT_MICRO_TRANSFER_PEER. */
enum bt_status bt_micro_transfer_peer(const char *job);
/* BT_IO. */
enum bt_status
bt_micro_transfer_print_table(const struct bt_micro_transfer_report *report,
                              FILE *to);
enum bt_status
bt_micro_transfer_print_json(const struct bt_micro_transfer_report *report,
                             FILE *to);

#endif
