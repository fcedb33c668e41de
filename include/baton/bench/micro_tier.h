/* `baton bench tier`: the NVMe pool against fio on the same file system, size,
 * block and depth, taking turns in one run; and copies between host pools with
 * small and with 2 MiB pages.
 */
#ifndef BATON_BENCH_MICRO_TIER_H
#define BATON_BENCH_MICRO_TIER_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_MICRO_TIER_ROWS_MAX  48
#define BT_MICRO_TIER_NOTES_MAX 1024
#define BT_MICRO_TIER_ROUNDS    3

struct bt_micro_tier_options {
    const char *directory; /* files are made there, and deleted */
    uint64_t bytes;        /* of each file and of each run; >= 16 MiB, a
                              multiple of 2 MiB */
    uint64_t seed;         /* order of blocks */
    bool progress;         /* a line per row on standard error */
};

struct bt_micro_tier_row {
    /* nvme_read, nvme_read_checked (checksum of every block), nvme_write, the
     * same beside a fio that flushes at its end: nvme_write_durable;
     * host_copy, host_copy_huge. Static. */
    const char *what;
    uint64_t block_bytes;
    uint32_t depth;          /* 0: no device */
    double bytes_per_s;      /* median of the rounds */
    double base_bytes_per_s; /* fio's; host_copy_huge: of host_copy; 0: none */
};

struct bt_micro_tier_report {
    struct bt_micro_tier_row rows[BT_MICRO_TIER_ROWS_MAX];
    size_t count;
    char notes[BT_MICRO_TIER_NOTES_MAX]; /* lines: what was left out, and why */
    char error[512];
};

/* BT_INVALID, BT_NO_MEMORY, or what a pool or the disk answered: error says
 * which. A missing fio is a note. Blocks for a minute or more. */
enum bt_status bt_micro_tier(const struct bt_micro_tier_options *options,
                             struct bt_micro_tier_report *report);
/* BT_IO. */
enum bt_status
bt_micro_tier_print_table(const struct bt_micro_tier_report *report, FILE *to);
enum bt_status
bt_micro_tier_print_json(const struct bt_micro_tier_report *report, FILE *to);

#endif
