/* Transfers as state machines: lists of blocks become pieces, pieces become
 * operations, operations go to lanes. Pure: events in, operations out, time in
 * the event; no fabric, no clock. One table serves one end (a sink); a lane is
 * one connection of one peer over one rail.
 *
 *   job    waiting -> open -> running -> draining -> ended
 *          add        grant   last op    last op out
 *
 * Invariants (checked by the property test and by plan_check.h, which shares
 * no code with this):
 *  - every byte of a job is in exactly one operation that ended well, or the
 *    job did not end well
 *  - a job ends once, and not before its last operation has ended: a buffer
 *    under a landing write is never given back, also after cancel
 *  - no operation is posted that takes a lane beyond its window of that moment,
 *    except one alone
 *  - what a lane lost is sent again over another lane, or the same one when it
 *    is back; bytes that failed again after retries_max repeats end the job
 *  - a block that failed its checksum is fetched once more; then it ends the
 *    job with BT_CHECKSUM
 *
 * Order: round robin by operation over the jobs of a lane's peer, so that flows
 * share fairly; a job whose urgency = bytes left / (time left * rate of its
 * lanes) comes near 1 (promote_percent) goes first, least slack first
 * (cost-models.md section 13; MFS). Ties: the older job. Without a known rate
 * no job is urgent. What failed on a lane waits for another open one of the
 * job, if there is one: ask all lanes again after every end, and close a lane
 * that shall rest.
 */
#ifndef BATON_TRANSFER_JOBS_H
#define BATON_TRANSFER_JOBS_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_JOB_LANES_MAX  8   /* rails of one peer */
#define BT_JOB_PIECES_MAX 256 /* pieces of one operation */

struct bt_jobs;

struct bt_jobs_config {
    uint32_t jobs_max;         /* live ones; BT_LIMIT over it */
    uint32_t blocks_max;       /* of one job */
    uint64_t blocks_total_max; /* of all live jobs: bounds the memory */
    uint32_t lanes_max;
    uint32_t ops_max;         /* out at once, all lanes */
    uint32_t retries_max;     /* repeats of an operation that failed */
    uint32_t promote_percent; /* 0: 80 */
};
/* Arena bytes that init takes for this configuration. */
size_t bt_jobs_bytes(const struct bt_jobs_config *config);
/* BT_INVALID: a zero limit; BT_NO_MEMORY: the arena. */
enum bt_status bt_jobs_init(struct bt_arena *arena,
                            const struct bt_jobs_config *config,
                            struct bt_jobs **out);

/* A stale handle is BT_STALE, never a crash. */
struct bt_job_id {
    uint32_t index, generation;
};
struct bt_lane_id {
    uint32_t index, generation;
};

/* ---- lanes ---- */

struct bt_lane_spec {
    uint64_t window_bytes; /* out at once; at least one operation may be */
    uint32_t window_ops;
    uint32_t op_bytes;  /* largest operation (chunk) */
    uint32_t op_pieces; /* 1..BT_JOB_PIECES_MAX, what the transport takes */
    uint64_t rate_bytes_per_s; /* estimate for slack; 0: not known */
};
enum bt_status bt_jobs_lane_open(struct bt_jobs *jobs,
                                 const struct bt_lane_spec *spec,
                                 struct bt_lane_id *out);
void bt_jobs_lane_rate(struct bt_jobs *jobs, struct bt_lane_id lane,
                       uint64_t rate_bytes_per_s);
/* Other sizes from now on. What is out stays: below it nothing new goes until
 * enough has ended. BT_INVALID: a zero; BT_STALE: closed. Nothing changes then.
 */
enum bt_status bt_jobs_lane_window(struct bt_jobs *jobs, struct bt_lane_id lane,
                                   uint64_t window_bytes, uint32_t op_bytes);
/* No new operations on it; those out must still be reported by
 * bt_jobs_op_ended (with a failure, which does not count as a retry of the
 * operation: the lane was at fault). The handle dies with the last of them. */
void bt_jobs_lane_close(struct bt_jobs *jobs, struct bt_lane_id lane);

/* ---- jobs ---- */

struct bt_job_spec {
    const uint32_t *remote, *local; /* block index per block; copied */
    uint32_t count;                 /* > 0 */
    uint32_t block_bytes;
    int64_t deadline_ns; /* absolute; INT64_MAX: none */
    void *owner;         /* comes back in ops and ends */
};
/* BT_LIMIT, BT_INVALID (a local block twice). It waits until bt_jobs_start. */
enum bt_status bt_jobs_add(struct bt_jobs *jobs, int64_t now_ns,
                           const struct bt_job_spec *spec,
                           struct bt_job_id *out);
/* Lanes it may use from now on (also while running: a lane that came back). It
 * takes the place of the first of the job's lanes that is closed, if any, so
 * that one rail keeps its place in lane_bytes. BT_LIMIT, BT_EXISTS, BT_STALE
 * (lane closed; job stopped). */
enum bt_status bt_jobs_use(struct bt_jobs *jobs, struct bt_job_id job,
                           struct bt_lane_id lane);
enum bt_status bt_jobs_start(struct bt_jobs *jobs, struct bt_job_id job,
                             int64_t now_ns);
/* Ends with `status` once nothing of it is out. */
enum bt_status bt_jobs_stop(struct bt_jobs *jobs, struct bt_job_id job,
                            enum bt_status status, int64_t now_ns);

/* ---- operations ---- */

struct bt_job_piece {
    uint64_t remote, local; /* bytes from the start of each region */
    uint32_t bytes;
};
struct bt_job_op {
    uint32_t op; /* < ops_max; names it when it ends; reused afterwards */
    struct bt_job_id job;
    void *owner;
    uint64_t bytes;
    uint32_t piece_count;
    struct bt_job_piece pieces[BT_JOB_PIECES_MAX];
};
/* Bytes of the operation that bt_jobs_next would give, 0: none (window full,
 * nothing to do). Does not change anything. */
uint64_t bt_jobs_peek(const struct bt_jobs *jobs, struct bt_lane_id lane,
                      int64_t now_ns);
/* The next operation of a lane; false: none. */
bool bt_jobs_next(struct bt_jobs *jobs, struct bt_lane_id lane, int64_t now_ns,
                  struct bt_job_op *op_out);
/* It ended. Blocks whose last byte it brought are listed by position in the
 * spec's arrays; verify them and report each damaged one before the next call.
 * landed_out: room for as many as an operation can complete (op_bytes as it
 * was when it was posted / block_bytes + pieces + 1), else BT_TOO_LARGE and
 * nothing changes; NULL: they are not listed. Of a job that was stopped none
 * are. BT_STALE: not out. */
enum bt_status bt_jobs_op_ended(struct bt_jobs *jobs, uint32_t op,
                                enum bt_status status, int64_t now_ns,
                                uint32_t *landed_out, uint32_t landed_max,
                                uint32_t *landed_count_out);
enum bt_status bt_jobs_damaged(struct bt_jobs *jobs, struct bt_job_id job,
                               uint32_t position);

/* ---- ends ---- */

struct bt_job_end {
    struct bt_job_id job; /* stale from now on */
    void *owner;
    enum bt_status status; /* OK; CHECKSUM; TIMEOUT, CANCELLED...: as stopped;
                              PEER_ERROR: retries used up; LIMIT: too many
                              ranges wait to be sent again (4 * ops_max) */
    uint64_t bytes;        /* of operations that ended well */
    uint32_t descriptors;  /* pieces posted, repeats included */
    uint32_t ops, retries, damaged;
    uint64_t lane_bytes[BT_JOB_LANES_MAX]; /* in order of bt_jobs_use */
    int64_t queued_ns;                     /* start to first operation */
    int64_t moved_ns;                      /* first operation to last end */
};
/* Ended jobs in the order of their ends; false: none. */
bool bt_jobs_reap(struct bt_jobs *jobs, struct bt_job_end *end_out);

/* Live jobs, operations and bytes out, bytes not yet posted. */
struct bt_jobs_load {
    uint32_t jobs, ops;
    uint64_t bytes_out, bytes_left;
};
void bt_jobs_load(const struct bt_jobs *jobs, struct bt_jobs_load *out);

#endif
