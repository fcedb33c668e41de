/* The table of transfers: memory, handles, life and end of a job. Which bytes
 * an operation carries is decided in jobs_blocks.c and jobs_again.c, which job
 * goes first in jobs_order.c, lanes are in jobs_lanes.c, operations in
 * jobs_ops.c.
 *
 * Invariants: a job is in the list of ended ones exactly once, and only when
 * none of its operations is out; its generation changes when it is reaped, so
 * every older handle is stale. */
#include "jobs_core.h"

#include <assert.h>
#include <string.h>

#define PROMOTE_PERCENT 80

static const struct {
    const char *name, *waits;
    unsigned int next;
} states[] = {
#define X(state, name, next, waits) {name, waits, next},
    BT_JOB_STATES(X)
#undef X
};

void bt_job_move(struct job *job, enum job_state next)
{
    assert(states[job->state].next & 1u << next);
    job->state = next;
}

/* ---- memory ---- */

enum part {
    PART_TABLE,
    PART_JOBS,
    PART_LANES,
    PART_OPS,
    PART_AGAIN,
    PART_PAGES,
    PART_PAGE_OF,
    PART_PAGE_FREE,
    PART_ORDER,
    PART_RUNS,
    PART_SEEN,
    PARTS
};
struct shape {
    size_t count, bytes;
};

static uint32_t stride(const struct bt_jobs_config *config)
{
    return config->blocks_max / JOB_PAGE + 1;
}

/* Each job may leave one page partly empty. */
static uint64_t page_count(const struct bt_jobs_config *config)
{
    return config->blocks_total_max / JOB_PAGE + config->jobs_max;
}

static uint32_t seen_size(const struct bt_jobs_config *config)
{
    uint32_t size = 16;

    while (size < 2 * config->blocks_max && size < 1u << 31)
        size *= 2;
    return size;
}

static void shapes(const struct bt_jobs_config *c, struct shape out[PARTS])
{
    uint64_t pages = page_count(c);

    out[PART_TABLE] = (struct shape){1, sizeof(struct bt_jobs)};
    out[PART_JOBS] = (struct shape){c->jobs_max, sizeof(struct job)};
    out[PART_LANES] = (struct shape){c->lanes_max, sizeof(struct job_lane)};
    out[PART_OPS] = (struct shape){c->ops_max, sizeof(struct job_op)};
    out[PART_AGAIN] = (struct shape){(size_t)c->ops_max * JOB_AGAIN,
                                     sizeof(struct job_again)};
    out[PART_PAGES] = (struct shape){pages, sizeof(struct job_page)};
    out[PART_PAGE_OF] =
        (struct shape){(size_t)c->jobs_max * stride(c), sizeof(uint32_t)};
    out[PART_PAGE_FREE] = (struct shape){pages, sizeof(uint32_t)};
    out[PART_ORDER] = (struct shape){c->blocks_max, sizeof(uint32_t)};
    out[PART_RUNS] = (struct shape){c->blocks_max, sizeof(struct bt_run)};
    out[PART_SEEN] = (struct shape){seen_size(c), sizeof(uint64_t)};
}

static bool is_sound(const struct bt_jobs_config *c)
{
    if (c->jobs_max == 0 || c->blocks_max == 0 || c->blocks_total_max == 0 ||
        c->lanes_max == 0 || c->ops_max == 0 || c->retries_max == 0)
        return false;
    return c->blocks_max <= JOB_BLOCKS_MAX && page_count(c) < JOB_NONE &&
           c->jobs_max < JOB_NONE / BT_JOB_LANES_MAX &&
           c->ops_max < JOB_NONE / JOB_AGAIN && c->lanes_max < JOB_NONE;
}

size_t bt_jobs_bytes(const struct bt_jobs_config *config)
{
    struct shape parts[PARTS];
    size_t sum = 0;

    if (!is_sound(config))
        return 0;
    shapes(config, parts);
    for (size_t i = 0; i < PARTS; i++) {
        size_t need = bt_arena_need(parts[i].count, parts[i].bytes);

        if (need > SIZE_MAX - sum)
            return SIZE_MAX;
        sum += need;
    }
    return sum;
}

/* Free lists hand out the lowest index first. */
static void lists_init(struct bt_jobs *jobs)
{
    const struct bt_jobs_config *c = &jobs->config;
    uint32_t pages = (uint32_t)page_count(c);

    jobs->page_free_count = pages;
    for (uint32_t i = 0; i < pages; i++)
        jobs->page_free[i] = pages - 1 - i;
    for (uint32_t i = 0; i < c->jobs_max; i++) {
        jobs->jobs[i].generation = 1;
        jobs->jobs[i].next = i + 1 < c->jobs_max ? i + 1 : JOB_NONE;
    }
    for (uint32_t i = 0; i < c->lanes_max; i++) {
        jobs->lanes[i].generation = 1;
        jobs->lanes[i].next = i + 1 < c->lanes_max ? i + 1 : JOB_NONE;
    }
    for (uint32_t i = 0; i < c->ops_max; i++)
        jobs->ops[i].next = i + 1 < c->ops_max ? i + 1 : JOB_NONE;
    for (uint32_t i = 0; i < jobs->again_max; i++)
        jobs->again[i].next = i + 1 < jobs->again_max ? i + 1 : JOB_NONE;
    jobs->ended_head = jobs->ended_tail = JOB_NONE;
    jobs->verdict.job = JOB_NONE;
}

enum bt_status bt_jobs_init(struct bt_arena *arena,
                            const struct bt_jobs_config *config,
                            struct bt_jobs **out)
{
    struct shape parts[PARTS];
    void *at[PARTS];
    struct bt_jobs *jobs;

    if (!is_sound(config))
        return BT_INVALID;
    shapes(config, parts);
    for (size_t i = 0; i < PARTS; i++) {
        at[i] = bt_arena_take(arena, parts[i].count, parts[i].bytes);
        if (at[i] == NULL)
            return BT_NO_MEMORY;
    }
    jobs = at[PART_TABLE];
    jobs->config = *config;
    if (jobs->config.promote_percent == 0)
        jobs->config.promote_percent = PROMOTE_PERCENT;
    jobs->jobs = at[PART_JOBS];
    jobs->lanes = at[PART_LANES];
    jobs->ops = at[PART_OPS];
    jobs->again = at[PART_AGAIN];
    jobs->again_max = config->ops_max * JOB_AGAIN;
    jobs->pages = at[PART_PAGES];
    jobs->page_of = at[PART_PAGE_OF];
    jobs->page_stride = stride(config);
    jobs->page_free = at[PART_PAGE_FREE];
    jobs->order = at[PART_ORDER];
    jobs->runs = at[PART_RUNS];
    jobs->seen = at[PART_SEEN];
    jobs->seen_mask = seen_size(config) - 1;
    lists_init(jobs);
    *out = jobs;
    return BT_OK;
}

/* ---- handles ---- */

struct job *bt_job_get(const struct bt_jobs *jobs, struct bt_job_id id)
{
    struct job *job;

    if (id.index >= jobs->config.jobs_max)
        return NULL;
    job = &jobs->jobs[id.index];
    if (job->generation != id.generation || job->state == JOB_FREE)
        return NULL;
    return job;
}

struct bt_job_id bt_job_id_of(const struct bt_jobs *jobs, const struct job *job)
{
    return (struct bt_job_id){(uint32_t)(job - jobs->jobs), job->generation};
}

/* ---- life ---- */

enum bt_status bt_jobs_add(struct bt_jobs *jobs, int64_t now_ns,
                           const struct bt_job_spec *spec,
                           struct bt_job_id *out)
{
    uint32_t index = jobs->job_free;
    enum bt_status status;
    struct job *job;

    bt_job_settle(jobs);
    if (index == JOB_NONE)
        return BT_LIMIT;
    job = &jobs->jobs[index];
    status = bt_job_blocks_take(jobs, job, spec);
    if (status != BT_OK)
        return status;
    jobs->job_free = job->next;
    *job = (struct job){
        .state = JOB_FREE,
        .generation = job->generation,
        .serial = ++jobs->serial,
        .owner = spec->owner,
        .count = spec->count,
        .block_bytes = spec->block_bytes,
        .total = (uint64_t)spec->count * spec->block_bytes,
        .deadline_ns = spec->deadline_ns,
        .started_ns = now_ns,
        .promote_ns = JOB_NEVER,
        .start_by_ns = JOB_NEVER,
        .again_head = JOB_NONE,
        .bad_head = JOB_NONE,
        .next = JOB_NONE,
    };
    bt_job_move(job, JOB_WAITING);
    job->to_send = job->missing = job->total;
    job->end.job = bt_job_id_of(jobs, job);
    job->end.owner = spec->owner;
    jobs->load.jobs++;
    jobs->load.bytes_left += job->total;
    *out = job->end.job;
    return BT_OK;
}

enum bt_status bt_jobs_start(struct bt_jobs *jobs, struct bt_job_id id,
                             int64_t now_ns)
{
    struct job *job;

    bt_job_settle(jobs);
    job = bt_job_get(jobs, id);
    if (job == NULL)
        return BT_STALE;
    if (job->state != JOB_WAITING)
        return BT_INVALID;
    job->started_ns = now_ns;
    bt_job_move(job, JOB_OPEN);
    bt_job_relink(jobs, job);
    return BT_OK;
}

enum bt_status bt_jobs_stop(struct bt_jobs *jobs, struct bt_job_id id,
                            enum bt_status status, int64_t now_ns)
{
    struct job *job;

    bt_job_settle(jobs);
    job = bt_job_get(jobs, id);
    if (job == NULL)
        return BT_STALE;
    if (status == BT_OK)
        return BT_INVALID;
    if (job->state == JOB_OPEN)
        job->end.queued_ns = now_ns - job->started_ns;
    bt_job_finish(jobs, job, status);
    return BT_OK;
}

/* ---- ends ---- */

void bt_job_drained(struct bt_jobs *jobs, struct job *job)
{
    uint32_t index = (uint32_t)(job - jobs->jobs);

    if (job->state != JOB_DRAINING || job->ops_out > 0)
        return;
    bt_job_move(job, JOB_ENDED);
    bt_job_blocks_drop(jobs, job);
    job->next = JOB_NONE;
    if (jobs->ended_head == JOB_NONE)
        jobs->ended_head = index;
    else
        jobs->jobs[jobs->ended_tail].next = index;
    jobs->ended_tail = index;
    jobs->load.jobs--;
    if (jobs->verdict.job == index)
        jobs->verdict.job = JOB_NONE;
}

void bt_job_finish(struct bt_jobs *jobs, struct job *job, enum bt_status status)
{
    if (job->state == JOB_DRAINING || job->state == JOB_ENDED)
        return;
    job->end.status = status;
    bt_job_move(job, JOB_DRAINING);
    bt_job_forget(jobs, job);
    bt_job_relink(jobs, job);
    bt_job_drained(jobs, job);
}

void bt_job_settle(struct bt_jobs *jobs)
{
    struct job *job;

    if (jobs->verdict.job == JOB_NONE)
        return;
    job = &jobs->jobs[jobs->verdict.job];
    jobs->verdict.job = JOB_NONE;
    if (job->missing == 0)
        bt_job_finish(jobs, job, BT_OK);
}

bool bt_jobs_reap(struct bt_jobs *jobs, struct bt_job_end *end_out)
{
    uint32_t index;
    struct job *job;

    bt_job_settle(jobs);
    index = jobs->ended_head;
    if (index == JOB_NONE)
        return false;
    job = &jobs->jobs[index];
    jobs->ended_head = job->next;
    if (job->end.ops > 0)
        job->end.moved_ns = job->last_ns - job->first_ns;
    *end_out = job->end;
    bt_job_move(job, JOB_FREE);
    if (++job->generation == 0)
        job->generation = 1;
    job->next = jobs->job_free;
    jobs->job_free = index;
    return true;
}

void bt_jobs_load(const struct bt_jobs *jobs, struct bt_jobs_load *out)
{
    *out = jobs->load;
}
