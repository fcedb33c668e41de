/* Blocks of a job: checked, sorted so that neighbours stand side by side
 * (runs.h), kept in pages of the table, and cut into pieces. Pages and not one
 * array per job: the table then holds blocks_total_max blocks however jobs come
 * and go. Which range is cut next is jobs_again.c's. Invariant: the pieces of
 * all ranges that partition 0..total cover every block exactly once. */
#include "jobs_core.h"

#include "baton/base/rng.h"

#include <assert.h>

static uint32_t pages_for(uint32_t count)
{
    return (count + JOB_PAGE - 1) / JOB_PAGE;
}

/* Open addressing; an entry counts only if it has this job's stamp. */
static bool locals_differ(struct bt_jobs *jobs, const struct bt_job_spec *spec)
{
    uint64_t stamp = ++jobs->stamp;

    if ((uint32_t)stamp == 0) { /* stamps begin again */
        for (uint32_t i = 0; i <= jobs->seen_mask; i++)
            jobs->seen[i] = 0;
        stamp = ++jobs->stamp;
    }
    for (uint32_t i = 0; i < spec->count; i++) {
        uint64_t entry = stamp << 32 | spec->local[i];
        uint32_t at = (uint32_t)bt_mix64(spec->local[i]) & jobs->seen_mask;

        while (jobs->seen[at] >> 32 == (stamp & UINT32_MAX)) {
            if (jobs->seen[at] == entry)
                return false;
            at = (at + 1) & jobs->seen_mask;
        }
        jobs->seen[at] = entry;
    }
    return true;
}

enum bt_status bt_job_blocks_take(struct bt_jobs *jobs, struct job *job,
                                  const struct bt_job_spec *spec)
{
    size_t row = (size_t)(job - jobs->jobs) * jobs->page_stride;

    if (spec->count == 0 || spec->block_bytes == 0)
        return BT_INVALID;
    if (spec->count > jobs->config.blocks_max ||
        spec->count > jobs->config.blocks_total_max - jobs->blocks)
        return BT_LIMIT;
    if (!locals_differ(jobs, spec))
        return BT_INVALID;
    for (uint32_t i = 0; i < pages_for(spec->count); i++) {
        assert(jobs->page_free_count > 0);
        jobs->page_of[row + i] = jobs->page_free[--jobs->page_free_count];
    }
    bt_runs_build(spec->remote, spec->local, spec->count, jobs->order,
                  jobs->runs);
    for (uint32_t i = 0; i < spec->count; i++) {
        uint32_t at = jobs->order[i];

        *bt_job_block(jobs, job, i) = (struct job_block){
            spec->remote[at], spec->local[at], at, spec->block_bytes};
    }
    jobs->blocks += spec->count;
    return BT_OK;
}

void bt_job_blocks_drop(struct bt_jobs *jobs, struct job *job)
{
    size_t row = (size_t)(job - jobs->jobs) * jobs->page_stride;

    for (uint32_t i = pages_for(job->count); i > 0; i--)
        jobs->page_free[jobs->page_free_count++] = jobs->page_of[row + i - 1];
    jobs->blocks -= job->count;
}

/* A place in both regions, and the piece that ends there. */
struct pen {
    uint64_t remote, local;
    uint32_t pieces;
};

/* Add bytes at a place: to the last piece when they touch it on both sides.
 * False: no further piece fits. */
static bool draw(struct pen *pen, const struct bt_job_piece *at,
                 uint32_t pieces_max, struct bt_job_op *op)
{
    bool touches =
        pen->pieces > 0 && at->remote == pen->remote && at->local == pen->local;

    if (!touches) {
        if (pen->pieces == pieces_max)
            return false;
        if (op != NULL)
            op->pieces[pen->pieces] =
                (struct bt_job_piece){at->remote, at->local, 0};
        pen->pieces++;
    }
    if (op != NULL)
        op->pieces[pen->pieces - 1].bytes += at->bytes;
    pen->remote = at->remote + at->bytes;
    pen->local = at->local + at->bytes;
    return true;
}

uint64_t bt_job_cut(const struct bt_jobs *jobs, const struct job *job,
                    const struct job_range *range,
                    const struct bt_lane_spec *lane, struct bt_job_op *op_out)
{
    uint64_t size = job->block_bytes, left = range->to - range->from, taken = 0;
    uint32_t block = (uint32_t)(range->from / size);
    uint32_t offset = (uint32_t)(range->from % size);
    struct pen pen = {0, 0, 0};

    if (left > lane->op_bytes)
        left = lane->op_bytes;
    for (; taken < left; block++, offset = 0) {
        const struct job_block *b = bt_job_block(jobs, job, block);
        struct bt_job_piece at = {b->remote * size + offset,
                                  b->local * size + offset,
                                  (uint32_t)size - offset};

        if (at.bytes > left - taken)
            at.bytes = (uint32_t)(left - taken);
        if (!draw(&pen, &at, lane->op_pieces, op_out))
            break;
        taken += at.bytes;
    }
    if (op_out != NULL) {
        op_out->bytes = taken;
        op_out->piece_count = pen.pieces;
    }
    return taken;
}
