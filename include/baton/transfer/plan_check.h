/* Judge of a transfer plan: given what was asked and every operation that was
 * posted and how it ended, was every byte moved exactly once and no limit
 * exceeded? Shares no code with runs.h and jobs.h; tests, `--paranoid` runs and
 * the simulator use it. Pure; memory is the caller's.
 */
#ifndef BATON_TRANSFER_PLAN_CHECK_H
#define BATON_TRANSFER_PLAN_CHECK_H

#include "baton/transfer/jobs.h"

struct bt_plan_check {
    const uint32_t *remote, *local; /* as asked */
    uint32_t count, block_bytes;
    uint8_t *state; /* count * block_bytes / grain bytes, zeroed by the caller;
                       0 not moved, 1 out, 2 moved */
    uint32_t grain; /* divides block_bytes and every piece */
    uint64_t out_bytes[BT_JOB_LANES_MAX];
    uint32_t out_ops[BT_JOB_LANES_MAX];
    /* 0: no limit. May change: an operation is judged when it is posted. */
    uint64_t window_bytes[BT_JOB_LANES_MAX];
    uint32_t window_ops[BT_JOB_LANES_MAX];
    const uint32_t *by_local; /* bt_plan_index's; NULL: every look-up reads the
                                 whole list */
};
/* For long lists: fill by_local (count entries, the caller's, stays) with the
 * positions in the order of their local blocks, and use it from now on. */
void bt_plan_index(struct bt_plan_check *check, uint32_t *by_local);
/* BT_OK, or BT_BUG with what is wrong in text_out (>= 128 bytes): a piece
 * outside what was asked or pairing the wrong blocks, a byte already out or
 * already moved, a window exceeded. */
enum bt_status bt_plan_posted(struct bt_plan_check *check, uint32_t lane,
                              const struct bt_job_op *op, char *text_out,
                              size_t text_size);
enum bt_status bt_plan_ended(struct bt_plan_check *check, uint32_t lane,
                             const struct bt_job_op *op, bool ok,
                             char *text_out, size_t text_size);
/* A block is to be moved again (damaged). BT_BUG: it has not been moved. */
enum bt_status bt_plan_again(struct bt_plan_check *check, uint32_t position);
/* The job ended: nothing may be out, and if it ended well nothing missing. */
enum bt_status bt_plan_done(const struct bt_plan_check *check, bool ok,
                            char *text_out, size_t text_size);

#endif
