/* Operations: posted within the window of a lane, ended well, lost or landed
 * damaged. The order is jobs_order.c's, the bytes are jobs_again.c's.
 *
 * Invariants: nothing is posted that takes a lane beyond its window (as it is
 * then), except one operation alone; nothing fresh is posted while operations
 * out and ranges that wait to be sent again fill again_max together, so that a
 * failure finds room; a job whose last byte landed ends only with the next
 * call, when no block of that operation can be reported damaged any more. */
#include "jobs_core.h"

#include <assert.h>

/* ---- post ---- */

static bool fits(const struct job_lane *lane, uint64_t bytes)
{
    if (lane->ops_out == 0)
        return true;
    return lane->bytes_out + bytes <= lane->spec.window_bytes;
}

/* Before it is known what would go. */
static const struct job_lane *ready(const struct bt_jobs *jobs,
                                    struct bt_lane_id id)
{
    const struct job_lane *lane;

    if (!bt_job_lane_live(jobs, id) || jobs->op_free == JOB_NONE)
        return NULL;
    lane = &jobs->lanes[id.index];
    if (lane->head == JOB_NONE || lane->ops_out >= lane->spec.window_ops ||
        (lane->ops_out > 0 && lane->bytes_out >= lane->spec.window_bytes))
        return NULL;
    return lane;
}

/* Fresh bytes need room to fail; what waits goes in any case. */
static bool has_room(const struct bt_jobs *jobs, const struct job *job,
                     const struct job_range *range)
{
    return range->from != job->cursor ||
           jobs->load.ops + jobs->again_count < jobs->again_max;
}

uint64_t bt_jobs_peek(const struct bt_jobs *jobs, struct bt_lane_id id,
                      int64_t now_ns)
{
    const struct job_lane *lane = ready(jobs, id);
    struct job_range range;
    const struct job *job;
    int64_t promote_ns;
    uint64_t bytes;
    uint32_t node;

    if (lane == NULL)
        return 0;
    node = bt_job_pick(jobs, lane, now_ns, &range, &promote_ns);
    if (node == JOB_NONE)
        return 0;
    job = &jobs->jobs[node / BT_JOB_LANES_MAX];
    bytes = bt_job_cut(jobs, job, &range, &lane->spec, NULL);
    return fits(lane, bytes) && has_room(jobs, job, &range) ? bytes : 0;
}

static void post(struct bt_jobs *jobs, struct job *job, uint32_t node,
                 const struct job_op *made)
{
    uint32_t index = jobs->op_free;
    uint64_t bytes = made->range.to - made->range.from;

    jobs->op_free = jobs->ops[index].next;
    jobs->ops[index] = *made;
    jobs->ops[index].use = node % BT_JOB_LANES_MAX;
    jobs->lanes[made->lane].ops_out++;
    jobs->lanes[made->lane].bytes_out += bytes;
    jobs->load.ops++;
    jobs->load.bytes_out += bytes;
    job->ops_out++;
    job->end.ops++;
}

static void first_op(struct job *job, int64_t now_ns)
{
    if (job->state != JOB_OPEN)
        return;
    bt_job_move(job, JOB_RUNNING);
    job->first_ns = job->last_ns = now_ns;
    job->end.queued_ns = now_ns - job->started_ns;
}

bool bt_jobs_next(struct bt_jobs *jobs, struct bt_lane_id id, int64_t now_ns,
                  struct bt_job_op *op_out)
{
    struct job_op made = {.is_out = true, .lane = id.index, .next = JOB_NONE};
    struct job_lane *lane;
    struct job *job;
    uint64_t bytes;
    uint32_t node;

    bt_job_settle(jobs);
    if (ready(jobs, id) == NULL)
        return false;
    lane = &jobs->lanes[id.index];
    node = bt_job_pick(jobs, lane, now_ns, &made.range, &lane->promote_ns);
    if (node == JOB_NONE)
        return false;
    made.job = node / BT_JOB_LANES_MAX;
    job = &jobs->jobs[made.job];
    bytes = bt_job_cut(jobs, job, &made.range, &lane->spec, op_out);
    if (!fits(lane, bytes) || !has_room(jobs, job, &made.range))
        return false;
    op_out->op = jobs->op_free;
    op_out->job = bt_job_id_of(jobs, job);
    op_out->owner = job->owner;
    if (lane->head == node)
        lane->head = job->uses[node % BT_JOB_LANES_MAX].next;
    bt_job_advance(jobs, job, &made.range, bytes);
    made.range.to = made.range.from + bytes;
    post(jobs, job, node, &made);
    job->end.descriptors += op_out->piece_count;
    first_op(job, now_ns);
    if (job->to_send == 0)
        bt_job_relink(jobs, job);
    return true;
}

/* ---- end ---- */

static uint32_t first_block(const struct job *job, const struct job_range *r)
{
    return (uint32_t)(r->from / job->block_bytes);
}

static uint32_t last_block(const struct job *job, const struct job_range *r)
{
    return (uint32_t)((r->to - 1) / job->block_bytes);
}

/* Bytes of a block that the range covers. */
static uint32_t overlap(const struct job *job, const struct job_range *r,
                        uint32_t block)
{
    uint64_t from = (uint64_t)block * job->block_bytes;
    uint64_t to = from + job->block_bytes;

    from = from < r->from ? r->from : from;
    to = to > r->to ? r->to : to;
    return (uint32_t)(to - from);
}

static uint32_t land(struct bt_jobs *jobs, struct job *job,
                     const struct job_range *range, uint32_t *landed_out)
{
    uint32_t first = first_block(job, range), last = last_block(job, range);
    uint32_t count = 0;

    for (uint32_t i = first; i <= last; i++) {
        struct job_block *block = bt_job_block(jobs, job, i);
        uint32_t bytes = overlap(job, range, i);

        assert(block->left >= bytes);
        block->left -= bytes;
        if (block->left == 0 && landed_out != NULL)
            landed_out[count++] = block->position & ~JOB_DAMAGED;
    }
    job->missing -= range->to - range->from;
    jobs->verdict =
        (struct job_verdict){(uint32_t)(job - jobs->jobs), first, last, first};
    return count;
}

static void lose(struct bt_jobs *jobs, struct job *job, const struct job_op *op)
{
    const struct job_lane *lane = &jobs->lanes[op->lane];
    struct job_range range = op->range;

    range.avoid = (struct bt_lane_id){op->lane, lane->generation};
    if (lane->is_open && ++range.tries > jobs->config.retries_max) {
        bt_job_finish(jobs, job, BT_PEER_ERROR);
        return;
    }
    if (!bt_job_again(jobs, job, &range)) {
        bt_job_finish(jobs, job, BT_LIMIT);
        return;
    }
    job->end.retries++;
}

static struct job_op op_take(struct bt_jobs *jobs, uint32_t index)
{
    struct job_op op = jobs->ops[index];
    uint64_t bytes = op.range.to - op.range.from;

    jobs->ops[index].is_out = false;
    jobs->ops[index].next = jobs->op_free;
    jobs->op_free = index;
    jobs->load.ops--;
    jobs->load.bytes_out -= bytes;
    return op;
}

enum bt_status bt_jobs_op_ended(struct bt_jobs *jobs, uint32_t index,
                                enum bt_status status, int64_t now_ns,
                                uint32_t *landed_out, uint32_t landed_max,
                                uint32_t *landed_count_out)
{
    uint32_t landed = 0;
    uint64_t bytes;
    struct job *job;
    struct job_op op;

    bt_job_settle(jobs);
    if (index >= jobs->config.ops_max || !jobs->ops[index].is_out)
        return BT_STALE;
    op = jobs->ops[index];
    job = &jobs->jobs[op.job];
    if (landed_out != NULL &&
        landed_max <= last_block(job, &op.range) - first_block(job, &op.range))
        return BT_TOO_LARGE;
    op_take(jobs, index);
    bytes = op.range.to - op.range.from;
    job->ops_out--;
    job->last_ns = now_ns;
    if (status == BT_OK) {
        job->end.bytes += bytes;
        job->end.lane_bytes[op.use] += bytes;
    }
    if (job->state == JOB_RUNNING && status == BT_OK)
        landed = land(jobs, job, &op.range, landed_out);
    else if (job->state == JOB_RUNNING)
        lose(jobs, job, &op);
    bt_job_lane_ended(jobs, &jobs->lanes[op.lane], bytes);
    bt_job_relink(jobs, job);
    bt_job_drained(jobs, job);
    if (landed_count_out != NULL)
        *landed_count_out = landed;
    return BT_OK;
}

/* ---- damaged ---- */

/* Reports come in the order of the landed list, so that the search is short. */
static uint32_t verdict_find(struct bt_jobs *jobs, const struct job *job,
                             uint32_t position)
{
    struct job_verdict *v = &jobs->verdict;
    uint32_t span = v->last - v->first + 1;

    for (uint32_t n = 0; n < span; n++) {
        uint32_t i = v->hint;
        const struct job_block *block = bt_job_block(jobs, job, i);

        v->hint = i == v->last ? v->first : i + 1;
        if ((block->position & ~JOB_DAMAGED) == position)
            return block->left == 0 ? i : JOB_NONE;
    }
    return JOB_NONE;
}

enum bt_status bt_jobs_damaged(struct bt_jobs *jobs, struct bt_job_id id,
                               uint32_t position)
{
    struct job *job = bt_job_get(jobs, id);
    struct job_block *block;
    uint32_t at;

    if (job == NULL)
        return BT_STALE;
    if (job->state == JOB_DRAINING || job->state == JOB_ENDED)
        return job->end.status == BT_OK ? BT_INVALID : BT_OK;
    if (jobs->verdict.job != id.index)
        return BT_INVALID;
    at = verdict_find(jobs, job, position);
    if (at == JOB_NONE)
        return BT_INVALID;
    block = bt_job_block(jobs, job, at);
    job->end.damaged++;
    if (block->position & JOB_DAMAGED) {
        bt_job_finish(jobs, job, BT_CHECKSUM);
        return BT_OK;
    }
    block->position |= JOB_DAMAGED;
    bt_job_bad(jobs, job, at);
    bt_job_relink(jobs, job);
    return BT_OK;
}
