/* Which gets move a list of blocks: (remote, local) pairs become runs that are
 * contiguous on both sides, runs become chunks of bounded size, and each block
 * is checked against its XXH3-64 once all its bytes are there. Pure. */
#ifndef BATON_TRANSFER_RUNS_H
#define BATON_TRANSFER_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blocks order[first .. first+count-1] of the list: block k of the run is
 * remote + k on the source and local + k on the sink. */
struct bt_run {
    uint32_t remote, local, count, first;
};

/* Cut the list into the fewest runs. The list is a set: its order does not
 * matter, so order_out (count entries) receives a permutation of 0..count-1
 * sorted by (local - remote, remote), and runs_out (count entries) the runs.
 * Returns the number of runs. O(count log count), in place. */
size_t bt_runs_build(const uint32_t *remote, const uint32_t *local,
                     size_t count, uint32_t *order_out,
                     struct bt_run *runs_out);

/* A position in runs, in bytes. Start with zeros. */
struct bt_run_cursor {
    size_t run;
    uint64_t offset; /* bytes into that run */
};
struct bt_chunk {
    size_t run;
    uint64_t offset;        /* bytes into the run */
    uint64_t remote, local; /* bytes from the start of each region */
    uint64_t bytes;
};
/* Next chunk of at most chunk_max bytes (> 0); false at the end. A chunk never
 * spans two runs. */
bool bt_run_next(const struct bt_run *runs, size_t run_count,
                 uint64_t block_bytes, uint64_t chunk_max,
                 struct bt_run_cursor *cursor, struct bt_chunk *chunk_out);
/* Bytes that bt_run_next would give now; 0 at the end. */
uint64_t bt_run_peek(const struct bt_run *runs, size_t run_count,
                     uint64_t block_bytes, uint64_t chunk_max,
                     const struct bt_run_cursor *cursor);
/* Bytes of block k (0-based, of the run) that the chunk carries. */
uint64_t bt_chunk_overlap(const struct bt_chunk *chunk, uint64_t block_bytes,
                          uint64_t k);

/* XXH3-64 (seed 0) of one block. */
uint64_t bt_block_checksum(const void *block, size_t bytes);

#endif
