/* What a job sends next: first what it began to send again, then ranges whose
 * operation failed, then damaged blocks, then bytes never sent. A range that
 * failed on a lane goes to another one while the job has one. Leaves cutting to
 * jobs_blocks.c. Invariant: redo, the list of ranges, the damaged blocks and
 * cursor..total are disjoint and together hold to_send bytes. */
#include "jobs_core.h"

#include <assert.h>

static bool same(struct bt_lane_id a, struct bt_lane_id b)
{
    return a.index == b.index && a.generation == b.generation;
}

/* Damaged blocks that stand side by side go together. */
static struct job_range bad_range(const struct bt_jobs *jobs,
                                  const struct job *job)
{
    uint64_t size = job->block_bytes;
    uint32_t end = job->bad_head;
    uint32_t next = end;

    for (uint32_t n = 0; n < JOB_PAGE && next == end; n++) {
        uint32_t left = bt_job_block(jobs, job, end)->left;

        end++;
        next = left == JOB_LISTED ? JOB_NONE : left - 1;
    }
    return (struct job_range){.from = job->bad_head * size, .to = end * size};
}

static bool avoids(const struct bt_jobs *jobs, const struct job *job,
                   struct bt_lane_id failed, struct bt_lane_id lane)
{
    return same(failed, lane) && bt_job_has_other(jobs, job, lane);
}

bool bt_job_source(const struct bt_jobs *jobs, const struct job *job,
                   struct bt_lane_id lane, struct job_range *out)
{
    struct job_range range = {.from = 0, .to = 0};

    if (job->redo.from < job->redo.to)
        range = job->redo;
    else if (job->again_head != JOB_NONE)
        range = jobs->again[job->again_head].range;
    else if (job->bad_head != JOB_NONE)
        range = bad_range(jobs, job);
    if (range.from < range.to && !avoids(jobs, job, range.avoid, lane)) {
        *out = range;
        return true;
    }
    *out = (struct job_range){.from = job->cursor, .to = job->total};
    return job->cursor < job->total;
}

static void again_free(struct bt_jobs *jobs, uint32_t index)
{
    jobs->again[index].next = jobs->again_free;
    jobs->again_free = index;
    jobs->again_count--;
}

/* The range leaves its list and becomes redo. */
static void take(struct bt_jobs *jobs, struct job *job,
                 const struct job_range *range)
{
    uint32_t index = job->again_head;

    job->redo = *range;
    if (index != JOB_NONE) {
        job->again_head = jobs->again[index].next;
        again_free(jobs, index);
        return;
    }
    for (uint64_t at = range->from; at < range->to; at += job->block_bytes) {
        struct job_block *block = bt_job_block(jobs, job, job->bad_head);
        uint32_t next = block->left;

        block->left = job->block_bytes;
        job->bad_head = next == JOB_LISTED ? JOB_NONE : next - 1;
    }
}

void bt_job_advance(struct bt_jobs *jobs, struct job *job,
                    const struct job_range *range, uint64_t bytes)
{
    job->to_send -= bytes;
    jobs->load.bytes_left -= bytes;
    /* All that was ever sent lies below the cursor. */
    if (range->from == job->cursor) {
        job->cursor += bytes;
        return;
    }
    if (job->redo.from == job->redo.to)
        take(jobs, job, range);
    assert(job->redo.from == range->from);
    job->redo.from += bytes;
}

/* Neighbours that failed alike wait as one. */
static bool joined(struct bt_jobs *jobs, const struct job *job,
                   const struct job_range *range)
{
    struct job_range *last;

    if (job->again_head == JOB_NONE)
        return false;
    last = &jobs->again[job->again_tail].range;
    if (last->to != range->from || last->tries != range->tries ||
        !same(last->avoid, range->avoid))
        return false;
    last->to = range->to;
    return true;
}

static bool queued(struct bt_jobs *jobs, struct job *job,
                   const struct job_range *range)
{
    uint32_t index = jobs->again_free;

    if (index == JOB_NONE)
        return false;
    jobs->again_free = jobs->again[index].next;
    jobs->again_count++;
    jobs->again[index] = (struct job_again){*range, JOB_NONE};
    if (job->again_head == JOB_NONE)
        job->again_head = index;
    else
        jobs->again[job->again_tail].next = index;
    job->again_tail = index;
    return true;
}

bool bt_job_again(struct bt_jobs *jobs, struct job *job,
                  const struct job_range *range)
{
    if (!joined(jobs, job, range) && !queued(jobs, job, range))
        return false;
    job->to_send += range->to - range->from;
    jobs->load.bytes_left += range->to - range->from;
    return true;
}

void bt_job_bad(struct bt_jobs *jobs, struct job *job, uint32_t block)
{
    bt_job_block(jobs, job, block)->left = JOB_LISTED;
    if (job->bad_head == JOB_NONE)
        job->bad_head = block;
    else
        bt_job_block(jobs, job, job->bad_tail)->left = block + 1;
    job->bad_tail = block;
    job->missing += job->block_bytes;
    job->to_send += job->block_bytes;
    jobs->load.bytes_left += job->block_bytes;
}

void bt_job_forget(struct bt_jobs *jobs, struct job *job)
{
    while (job->again_head != JOB_NONE) {
        uint32_t index = job->again_head;

        job->again_head = jobs->again[index].next;
        again_free(jobs, index);
    }
    job->bad_head = JOB_NONE;
    jobs->load.bytes_left -= job->to_send;
    job->to_send = 0;
}
