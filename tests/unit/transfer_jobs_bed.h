/* A table of jobs, with calls that must succeed. */
#ifndef BATON_TESTS_TRANSFER_JOBS_BED_H
#define BATON_TESTS_TRANSFER_JOBS_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/transfer/jobs.h"

#include <cmocka.h>
#include <stdlib.h>

#define BED_BLOCKS 20000
#define MB         1000000

struct bed {
    struct bt_jobs *jobs;
    void *memory;
};

static inline struct bt_jobs_config bed_config(void)
{
    return (struct bt_jobs_config){
        .jobs_max = 16,
        .blocks_max = BED_BLOCKS,
        .blocks_total_max = 2 * BED_BLOCKS,
        .lanes_max = 10,
        .ops_max = 64,
        .retries_max = 2,
    };
}

static inline struct bed bed_open(const struct bt_jobs_config *config)
{
    struct bed bed = {.jobs = NULL};
    size_t size = bt_jobs_bytes(config);
    struct bt_arena arena;

    bed.memory = calloc(1, size);
    assert_non_null(bed.memory);
    bt_arena_init(&arena, bed.memory, size);
    assert_int_equal(bt_jobs_init(&arena, config, &bed.jobs), BT_OK);
    return bed;
}

static inline void bed_close(struct bed *bed)
{
    free(bed->memory);
}

static inline struct bt_lane_spec bed_spec(uint32_t op_bytes, uint32_t ops)
{
    return (struct bt_lane_spec){
        .window_bytes = (uint64_t)op_bytes * ops,
        .window_ops = ops,
        .op_bytes = op_bytes,
        .op_pieces = BT_JOB_PIECES_MAX,
    };
}

static inline struct bt_lane_id bed_lane(struct bed *bed,
                                         const struct bt_lane_spec *spec)
{
    struct bt_lane_id lane = {0, 0};

    assert_int_equal(bt_jobs_lane_open(bed->jobs, spec, &lane), BT_OK);
    return lane;
}

/* Blocks 0..count-1 to the same places. */
static inline struct bt_job_id bed_add(struct bed *bed, uint32_t count,
                                       uint32_t block_bytes,
                                       int64_t deadline_ns, void *owner)
{
    static uint32_t same[BED_BLOCKS];
    struct bt_job_spec spec = {same,        same,        count,
                               block_bytes, deadline_ns, owner};
    struct bt_job_id job = {0, 0};

    for (uint32_t i = 0; i < count; i++)
        same[i] = i;
    assert_int_equal(bt_jobs_add(bed->jobs, 0, &spec, &job), BT_OK);
    return job;
}

static inline struct bt_job_id bed_start(struct bed *bed, struct bt_job_id job,
                                         struct bt_lane_id lane)
{
    assert_int_equal(bt_jobs_use(bed->jobs, job, lane), BT_OK);
    assert_int_equal(bt_jobs_start(bed->jobs, job, 0), BT_OK);
    return job;
}

static inline struct bt_job_op bed_next(struct bed *bed, struct bt_lane_id lane,
                                        int64_t now_ns)
{
    struct bt_job_op op;
    uint64_t bytes = bt_jobs_peek(bed->jobs, lane, now_ns);

    assert_true(bt_jobs_next(bed->jobs, lane, now_ns, &op));
    assert_int_equal(op.bytes, bytes);
    return op;
}

static inline void bed_none(struct bed *bed, struct bt_lane_id lane)
{
    struct bt_job_op op;

    assert_int_equal(bt_jobs_peek(bed->jobs, lane, 0), 0);
    assert_false(bt_jobs_next(bed->jobs, lane, 0, &op));
}

static inline void bed_end(struct bed *bed, const struct bt_job_op *op,
                           enum bt_status status)
{
    assert_int_equal(
        bt_jobs_op_ended(bed->jobs, op->op, status, 0, NULL, 0, NULL), BT_OK);
}

static inline struct bt_job_end bed_reap(struct bed *bed)
{
    struct bt_job_end end;

    assert_true(bt_jobs_reap(bed->jobs, &end));
    return end;
}

static inline void bed_no_end(struct bed *bed)
{
    struct bt_job_end end;

    assert_false(bt_jobs_reap(bed->jobs, &end));
}

#endif
