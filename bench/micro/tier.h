/* Parts of `baton bench tier`, private to bench/micro. */
#ifndef MICRO_TIER_H
#define MICRO_TIER_H

#include "baton/bench/micro_tier.h"

struct tier_run {
    const char *path; /* of fio's file or the pool's */
    uint64_t file_bytes, block_bytes;
    uint32_t depth;
    bool write;
    bool flush; /* fio: its time includes fsync at the end */
};

/* fio over its own file, in random order. BT_NOT_FOUND: not installed; BT_IO:
 * why_out says what it said. `fill`: write the file, unmeasured. */
enum bt_status tier_fio(const struct tier_run *run, bool fill,
                        double *bytes_per_s_out, char *why_out,
                        size_t why_size);

/* A pool filled with blocks. */
struct tier_disk;
enum bt_status tier_disk_open(const struct tier_run *run, bool verify,
                              uint64_t seed, struct tier_disk **out,
                              char *error_out, size_t error_size);
/* Every block once, in random order: loads, or stores of new keys that push
 * out the oldest. */
enum bt_status tier_disk_run(struct tier_disk *disk, bool write,
                             double *bytes_per_s_out);
const char *tier_disk_note(const struct tier_disk *disk);
void tier_disk_close(struct tier_disk *disk);

/* Bytes per second of copying blocks between two host pools. page_out: what
 * they were backed by. */
enum bt_status tier_host(bool huge, uint64_t block_bytes,
                         double *bytes_per_s_out, uint64_t *page_out);

#endif
