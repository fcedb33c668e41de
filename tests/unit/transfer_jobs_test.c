/* Jobs: limits, cutting by worked examples, windows, ends, damage, lanes that
 * close, stale handles. */
#include "transfer_jobs_bed.h"

#include "baton/base/rng.h"

#include <string.h>

/* ---- limits ---- */

static void test_config(void **state)
{
    struct bt_jobs_config config = bed_config(), bad;
    unsigned char small[1024] = {0};
    struct bt_jobs *jobs = NULL;
    struct bt_arena arena;

    (void)state;
    bt_arena_init(&arena, small, sizeof(small));
    assert_int_equal(bt_jobs_init(&arena, &config, &jobs), BT_NO_MEMORY);
    bad = config, bad.jobs_max = 0;
    assert_int_equal(bt_jobs_init(&arena, &bad, &jobs), BT_INVALID);
    bad = config, bad.blocks_max = 0;
    assert_int_equal(bt_jobs_init(&arena, &bad, &jobs), BT_INVALID);
    bad = config, bad.blocks_total_max = 0;
    assert_int_equal(bt_jobs_init(&arena, &bad, &jobs), BT_INVALID);
    bad = config, bad.lanes_max = 0;
    assert_int_equal(bt_jobs_init(&arena, &bad, &jobs), BT_INVALID);
    bad = config, bad.ops_max = 0;
    assert_int_equal(bt_jobs_init(&arena, &bad, &jobs), BT_INVALID);
    bad = config, bad.retries_max = 0;
    assert_int_equal(bt_jobs_init(&arena, &bad, &jobs), BT_INVALID);
    assert_null(jobs);
}

static enum bt_status try_add(struct bed *bed, const uint32_t *local,
                              uint32_t count, uint32_t bytes)
{
    static uint32_t remote[BED_BLOCKS + 1];
    struct bt_job_spec spec = {remote, local, count, bytes, 5, NULL};
    struct bt_job_id job;

    return bt_jobs_add(bed->jobs, 0, &spec, &job);
}

static void test_add(void **state)
{
    static uint32_t local[BED_BLOCKS + 1];
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_job_end end;
    struct bt_job_id job;

    (void)state;
    for (uint32_t i = 0; i <= BED_BLOCKS; i++)
        local[i] = i * 977;
    assert_int_equal(try_add(&bed, local, 0, 8), BT_INVALID);
    assert_int_equal(try_add(&bed, local, 3, 0), BT_INVALID);
    assert_int_equal(try_add(&bed, local, BED_BLOCKS + 1, 8), BT_LIMIT);
    local[700] = local[12]; /* given twice */
    assert_int_equal(try_add(&bed, local, BED_BLOCKS, 8), BT_INVALID);
    local[700] = 700 * 977;
    assert_int_equal(try_add(&bed, local, BED_BLOCKS, 8), BT_OK);
    assert_int_equal(try_add(&bed, local, BED_BLOCKS - 15, 8), BT_OK);
    for (int i = 0; i < 13; i++) /* 1 block in a page of its own each */
        job = bed_add(&bed, 1, 8, INT64_MAX, NULL);
    assert_int_equal(try_add(&bed, local, 3, 8), BT_LIMIT);
    assert_int_equal(try_add(&bed, local, 2, 8), BT_OK);
    assert_int_equal(try_add(&bed, local, 1, 8), BT_LIMIT);
    /* An end makes room, once it is fetched. */
    assert_int_equal(bt_jobs_stop(bed.jobs, job, BT_CANCELLED, 0), BT_OK);
    assert_int_equal(try_add(&bed, local, 1, 8), BT_LIMIT);
    end = bed_reap(&bed);
    assert_int_equal(end.status, BT_CANCELLED);
    assert_true(end.ops == 0 && end.queued_ns == 0 && end.moved_ns == 0);
    assert_int_equal(try_add(&bed, local, 1, 8), BT_OK);
    bed_close(&bed);
}

static void test_lane_limits(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(8, 1), bad;
    struct bt_lane_id lanes[10], lane;
    struct bt_job_id job = bed_add(&bed, 1, 8, INT64_MAX, NULL);

    (void)state;
    bad = spec, bad.op_pieces = 0;
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &bad, &lane), BT_INVALID);
    bad.op_pieces = BT_JOB_PIECES_MAX + 1;
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &bad, &lane), BT_INVALID);
    bad = spec, bad.op_bytes = 0;
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &bad, &lane), BT_INVALID);
    bad = spec, bad.window_bytes = 0;
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &bad, &lane), BT_INVALID);
    bad = spec, bad.window_ops = 0;
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &bad, &lane), BT_INVALID);
    for (int i = 0; i < 10; i++) {
        lanes[i] = bed_lane(&bed, &spec);
        assert_int_equal(bt_jobs_use(bed.jobs, job, lanes[i]),
                         i < BT_JOB_LANES_MAX ? BT_OK : BT_LIMIT);
    }
    assert_int_equal(bt_jobs_use(bed.jobs, job, lanes[3]), BT_EXISTS);
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &spec, &lane), BT_LIMIT);
    bt_jobs_lane_close(bed.jobs, lanes[3]);
    assert_int_equal(bt_jobs_use(bed.jobs, job, lanes[3]), BT_STALE);
    assert_int_equal(bt_jobs_use(bed.jobs, job, lanes[8]), BT_OK);
    assert_int_equal(bt_jobs_lane_open(bed.jobs, &spec, &lane), BT_OK);
    assert_int_equal(lane.index, lanes[3].index);
    assert_int_not_equal(lane.generation, lanes[3].generation);
    bed_close(&bed);
}

/* ---- cutting ---- */

static void assert_piece(const struct bt_job_op *op, uint32_t i,
                         uint64_t remote, uint64_t local, uint32_t bytes)
{
    assert_true(i < op->piece_count);
    assert_int_equal(op->pieces[i].remote, remote);
    assert_int_equal(op->pieces[i].local, local);
    assert_int_equal(op->pieces[i].bytes, bytes);
}

/* Blocks of 10 bytes: 4,5,6 -> 0,1,2 are one piece, 9 -> 3 another; they are
 * sorted by local - remote: -6 before -4. Operations of at most 25 bytes. */
static void test_worked_example(void **state)
{
    const uint32_t remote[] = {5, 9, 6, 4}, local[] = {1, 3, 2, 0};
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(25, 4);
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    struct bt_job_spec job_spec = {remote, local, 4, 10, INT64_MAX, &bed};
    struct bt_job_op op[2];
    struct bt_job_id job;
    uint32_t landed[4], count = 99;

    (void)state;
    assert_int_equal(bt_jobs_add(bed.jobs, 0, &job_spec, &job), BT_OK);
    bed_none(&bed, lane);
    assert_int_equal(bt_jobs_use(bed.jobs, job, lane), BT_OK);
    bed_none(&bed, lane);
    assert_int_equal(bt_jobs_start(bed.jobs, job, 0), BT_OK);
    op[0] = bed_next(&bed, lane, 0);
    op[1] = bed_next(&bed, lane, 0);
    bed_none(&bed, lane);
    assert_int_equal(op[0].piece_count, 2);
    assert_piece(&op[0], 0, 90, 30, 10);
    assert_piece(&op[0], 1, 40, 0, 15);
    assert_int_equal(op[1].piece_count, 1);
    assert_piece(&op[1], 0, 55, 15, 15);
    /* 6 -> 2 lands whole first, 5 -> 1 by its second half later. */
    assert_int_equal(
        bt_jobs_op_ended(bed.jobs, op[1].op, BT_OK, 7, landed, 1, &count),
        BT_TOO_LARGE);
    assert_int_equal(count, 99);
    assert_int_equal(
        bt_jobs_op_ended(bed.jobs, op[1].op, BT_OK, 7, landed, 4, &count),
        BT_OK);
    assert_int_equal(count, 1);
    assert_int_equal(landed[0], 2);
    assert_int_equal(
        bt_jobs_op_ended(bed.jobs, op[1].op, BT_OK, 7, landed, 4, &count),
        BT_STALE);
    assert_int_equal(
        bt_jobs_op_ended(bed.jobs, op[0].op, BT_OK, 9, landed, 4, &count),
        BT_OK);
    assert_int_equal(count, 3);
    assert_true(landed[0] == 1 && landed[1] == 3 && landed[2] == 0);
    assert_ptr_equal(bed_reap(&bed).owner, &bed);
    bed_close(&bed);
}

/* E20: 10,000 blocks of 4 KiB in operations of 1 MiB: 40 of them, however the
 * blocks lie; with 4 pieces each as many as 4 blocks need. */
static void count_ops(const uint32_t *local, uint32_t pieces_max,
                      uint32_t ops_right, uint32_t pieces_right)
{
    static uint32_t remote[10000];
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(1 << 20, 4);
    struct bt_job_spec job_spec = {remote, local, 10000, 4096, INT64_MAX, NULL};
    struct bt_lane_id lane;
    struct bt_job_end end;
    struct bt_job_id job;
    struct bt_job_op op;

    spec.op_pieces = pieces_max;
    lane = bed_lane(&bed, &spec);
    for (uint32_t i = 0; i < 10000; i++)
        remote[i] = i;
    assert_int_equal(bt_jobs_add(bed.jobs, 0, &job_spec, &job), BT_OK);
    bed_start(&bed, job, lane);
    while (bt_jobs_next(bed.jobs, lane, 0, &op)) {
        assert_true(op.piece_count <= pieces_max);
        bed_end(&bed, &op, BT_OK);
    }
    end = bed_reap(&bed);
    assert_int_equal(end.status, BT_OK);
    assert_int_equal(end.ops, ops_right);
    assert_int_equal(end.descriptors, pieces_right);
    bed_close(&bed);
}

static void test_e20_many_small_blocks(void **state)
{
    static uint32_t local[10000];

    (void)state;
    for (uint32_t i = 0; i < 10000; i++)
        local[i] = i + 7;
    count_ops(local, 256, 40, 40);
    for (uint32_t i = 0; i < 10000; i++)
        local[i] = 2 * i; /* every other */
    count_ops(local, 256, 40, 10000);
    count_ops(local, 4, 2500, 10000);
    for (uint32_t i = 0; i < 10000; i++)
        local[i] = i * 7919 % 10007; /* no two neighbours: 7919 is not 1 */
    count_ops(local, 256, 40, 10000);
}

/* ---- windows ---- */

static void test_window(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = {250, 3, 100, 16, 0},
                        tight = {10, 3, 100, 16, 0};
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    struct bt_job_op op[3];

    (void)state;
    bed_start(&bed, bed_add(&bed, 10, 100, INT64_MAX, NULL), lane);
    op[0] = bed_next(&bed, lane, 0);
    op[1] = bed_next(&bed, lane, 0);
    bed_none(&bed, lane); /* 300 bytes would be out */
    bed_end(&bed, &op[0], BT_OK);
    op[0] = bed_next(&bed, lane, 0);
    bed_none(&bed, lane);
    bed_end(&bed, &op[0], BT_OK);
    bed_end(&bed, &op[1], BT_OK);
    bt_jobs_lane_close(bed.jobs, lane);
    /* Smaller than any operation: one at a time. */
    lane = bed_lane(&bed, &tight);
    bed_start(&bed, bed_add(&bed, 3, 100, INT64_MAX, NULL), lane);
    for (int i = 0; i < 3; i++) {
        op[0] = bed_next(&bed, lane, 0);
        bed_none(&bed, lane);
        bed_end(&bed, &op[0], BT_OK);
    }
    /* Operations count too. */
    spec.window_bytes = 1000000;
    lane = bed_lane(&bed, &spec);
    bed_start(&bed, bed_add(&bed, 10, 100, INT64_MAX, NULL), lane);
    for (int i = 0; i < 3; i++)
        op[i] = bed_next(&bed, lane, 0);
    bed_none(&bed, lane);
    bed_end(&bed, &op[1], BT_RESET);
    op[1] = bed_next(&bed, lane, 0);
    bed_none(&bed, lane);
    bed_close(&bed);
}

/* 300 bytes out, then 150 allowed in operations of 50: nothing goes before 200
 * have ended, then one of the new size. */
static void test_window_changes(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = {300, 16, 100, 16, 0};
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    struct bt_job_op op[3], small;

    (void)state;
    bed_start(&bed, bed_add(&bed, 10, 100, INT64_MAX, NULL), lane);
    for (int i = 0; i < 3; i++)
        op[i] = bed_next(&bed, lane, 0);
    assert_int_equal(bt_jobs_lane_window(bed.jobs, lane, 0, 50), BT_INVALID);
    assert_int_equal(bt_jobs_lane_window(bed.jobs, lane, 150, 0), BT_INVALID);
    assert_int_equal(bt_jobs_lane_window(bed.jobs, lane, 150, 50), BT_OK);
    bed_none(&bed, lane);
    bed_end(&bed, &op[0], BT_OK);
    bed_none(&bed, lane);
    bed_end(&bed, &op[1], BT_OK);
    small = bed_next(&bed, lane, 0);
    assert_int_equal(small.bytes, 50);
    bed_none(&bed, lane); /* 200 would be out */
    /* And more again. */
    assert_int_equal(bt_jobs_lane_window(bed.jobs, lane, 1000, 400), BT_OK);
    op[0] = bed_next(&bed, lane, 0);
    assert_int_equal(op[0].bytes, 400);
    bt_jobs_lane_close(bed.jobs, lane);
    assert_int_equal(bt_jobs_lane_window(bed.jobs, lane, 150, 50), BT_STALE);
    bed_end(&bed, &op[0], BT_RESET);
    bed_end(&bed, &op[2], BT_OK);
    bed_end(&bed, &small, BT_OK);
    bed_close(&bed);
}

/* ---- ends ---- */

/* Cancelled under a landing write: not over before that has ended. */
static void test_stop(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(100, 4);
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    struct bt_job_id job = bed_add(&bed, 10, 100, INT64_MAX, NULL);
    struct bt_job_op a, b;
    struct bt_job_end end;
    uint32_t landed[4], count = 9;

    (void)state;
    assert_int_equal(bt_jobs_use(bed.jobs, job, lane), BT_OK);
    assert_int_equal(bt_jobs_start(bed.jobs, job, 100), BT_OK);
    a = bed_next(&bed, lane, 130);
    b = bed_next(&bed, lane, 140);
    assert_int_equal(bt_jobs_stop(bed.jobs, job, BT_OK, 150), BT_INVALID);
    assert_int_equal(bt_jobs_stop(bed.jobs, job, BT_TIMEOUT, 150), BT_OK);
    assert_int_equal(bt_jobs_stop(bed.jobs, job, BT_CANCELLED, 150), BT_OK);
    assert_int_equal(bt_jobs_use(bed.jobs, job, lane), BT_STALE);
    assert_int_equal(bt_jobs_start(bed.jobs, job, 150), BT_INVALID);
    bed_none(&bed, lane);
    bed_no_end(&bed);
    assert_int_equal(
        bt_jobs_op_ended(bed.jobs, a.op, BT_OK, 160, landed, 4, &count), BT_OK);
    assert_int_equal(count, 0);
    bed_no_end(&bed);
    assert_int_equal(
        bt_jobs_op_ended(bed.jobs, b.op, BT_RESET, 190, landed, 4, &count),
        BT_OK);
    end = bed_reap(&bed);
    assert_int_equal(end.status, BT_TIMEOUT); /* the first reason */
    assert_int_equal(end.bytes, 100);
    assert_int_equal(end.lane_bytes[0], 100);
    assert_int_equal(end.queued_ns, 30);
    assert_int_equal(end.moved_ns, 60);
    assert_int_equal(end.descriptors, 2);
    bed_no_end(&bed);
    bed_close(&bed);
}

/* retries_max is 2: the third failure of the same bytes ends the job, after
 * what is still out has ended. Failures of a lane that closed are free. */
static void test_retries(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(100, 4);
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    struct bt_job_id job = bed_add(&bed, 2, 100, INT64_MAX, NULL);
    struct bt_job_op op, other;
    struct bt_job_end end;

    (void)state;
    bed_start(&bed, job, lane);
    other = bed_next(&bed, lane, 0);
    for (int flap = 0; flap < 5; flap++) {
        op = bed_next(&bed, lane, 0);
        assert_int_equal(op.pieces[0].local, 100);
        bt_jobs_lane_close(bed.jobs, lane);
        bed_none(&bed, lane);
        bed_end(&bed, &op, BT_PEER_DEAD);
        lane = bed_lane(&bed, &spec);
        assert_int_equal(bt_jobs_use(bed.jobs, job, lane), BT_OK);
    }
    for (int i = 0; i < 3; i++) {
        op = bed_next(&bed, lane, 0);
        assert_int_equal(op.pieces[0].local, 100);
        bed_end(&bed, &op, BT_RESET);
    }
    bed_none(&bed, lane);
    bed_no_end(&bed);
    bed_end(&bed, &other, BT_OK);
    end = bed_reap(&bed);
    assert_int_equal(end.status, BT_PEER_ERROR);
    assert_int_equal(end.retries, 5 + 2);
    assert_int_equal(end.lane_bytes[0], 100); /* the same place every time */
    assert_int_equal(bt_jobs_stop(bed.jobs, job, BT_CANCELLED, 0), BT_STALE);
    bed_close(&bed);
}

static void test_damaged(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(1000, 4);
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    struct bt_job_op op;
    struct bt_job_end end;
    uint32_t landed[20], count;

    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        struct bt_job_id job = bed_add(&bed, 8, 100, INT64_MAX, NULL);

        bed_start(&bed, job, lane);
        op = bed_next(&bed, lane, 0);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 3), BT_INVALID);
        assert_int_equal(
            bt_jobs_op_ended(bed.jobs, op.op, BT_OK, 0, landed, 20, &count),
            BT_OK);
        assert_int_equal(count, 8);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 8), BT_INVALID);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 3), BT_OK);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 3), BT_INVALID);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 4), BT_OK);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 0), BT_OK);
        bed_no_end(&bed);
        assert_int_equal(bt_jobs_damaged(bed.jobs, job, 5), BT_INVALID);
        op = bed_next(&bed, lane, 0); /* neighbours together */
        assert_int_equal(op.piece_count, 1);
        assert_piece(&op, 0, 300, 300, 200);
        bed_end(&bed, &op, BT_OK);
        op = bed_next(&bed, lane, 0);
        assert_piece(&op, 0, 0, 0, 100);
        assert_int_equal(
            bt_jobs_op_ended(bed.jobs, op.op, BT_OK, 0, landed, 20, &count),
            BT_OK);
        assert_true(count == 1 && landed[0] == 0);
        if (twice)
            assert_int_equal(bt_jobs_damaged(bed.jobs, job, 0), BT_OK);
        end = bed_reap(&bed);
        assert_int_equal(end.status, twice ? BT_CHECKSUM : BT_OK);
        assert_int_equal(end.damaged, twice ? 4 : 3);
        assert_int_equal(end.bytes, 1100);
    }
    bed_close(&bed);
}

/* One operation out at most leaves room for 4 ranges that wait. Ranges that
 * split without end are given up with a reason, and do not stop others. */
static void test_waiting_ranges(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bt_lane_spec large = bed_spec(1600, 1), small = bed_spec(100, 1);
    struct bt_lane_id a, b, c;
    struct bt_job_id job;
    struct bt_job_op op;
    struct bt_job_end end;
    struct bed bed;

    (void)state;
    config.ops_max = 1;
    bed = bed_open(&config);
    a = bed_lane(&bed, &large);
    b = bed_lane(&bed, &small);
    c = bed_lane(&bed, &small);
    job = bed_add(&bed, 16, 100, INT64_MAX, NULL);
    bed_start(&bed, job, a);
    assert_int_equal(bt_jobs_use(bed.jobs, job, b), BT_OK);
    op = bed_next(&bed, a, 0);
    bed_end(&bed, &op, BT_RESET);
    bt_jobs_lane_close(bed.jobs, a);
    for (int i = 0; i < 8; i++) { /* every other one fails */
        op = bed_next(&bed, b, 0);
        assert_int_equal(op.pieces[0].local, 100 * i);
        bed_end(&bed, &op, i % 2 ? BT_OK : BT_RESET);
    }
    /* Full: nothing fresh for others, until somebody gives way. */
    bed_start(&bed, bed_add(&bed, 1, 100, INT64_MAX, &bed), c);
    bed_none(&bed, c);
    op = bed_next(&bed, b, 0);
    bed_end(&bed, &op, BT_RESET);
    end = bed_reap(&bed);
    assert_int_equal(end.status, BT_LIMIT);
    op = bed_next(&bed, c, 0);
    bed_end(&bed, &op, BT_OK);
    assert_ptr_equal(bed_reap(&bed).owner, &bed);
    bed_close(&bed);
}

/* Operations of a small lane that failed side by side go as one over a larger
 * one. */
static void test_neighbours_wait_as_one(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec large = bed_spec(800, 1), small = bed_spec(100, 8);
    struct bt_lane_id a = bed_lane(&bed, &small), b = bed_lane(&bed, &large);
    struct bt_job_id job = bed_add(&bed, 8, 100, INT64_MAX, NULL);
    struct bt_job_op op[8];

    (void)state;
    bed_start(&bed, job, a);
    assert_int_equal(bt_jobs_use(bed.jobs, job, b), BT_OK);
    for (int i = 0; i < 8; i++)
        op[i] = bed_next(&bed, a, 0);
    for (int i = 0; i < 8; i++)
        bed_end(&bed, &op[i], i == 5 ? BT_OK : BT_RESET);
    op[0] = bed_next(&bed, b, 0);
    assert_piece(&op[0], 0, 0, 0, 500);
    bed_end(&bed, &op[0], BT_OK);
    op[0] = bed_next(&bed, b, 0);
    assert_piece(&op[0], 0, 600, 600, 200);
    bed_end(&bed, &op[0], BT_OK);
    assert_int_equal(bed_reap(&bed).status, BT_OK);
    bed_close(&bed);
}

/* But not when one of them has failed more often: each has its own tries. */
static void test_tries_stay_apart(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec large = bed_spec(800, 1), small = bed_spec(100, 8);
    struct bt_lane_id a = bed_lane(&bed, &small), b;
    struct bt_job_id job = bed_add(&bed, 2, 100, INT64_MAX, NULL);
    struct bt_job_op one, two;

    (void)state;
    bed_start(&bed, job, a);
    one = bed_next(&bed, a, 0);
    two = bed_next(&bed, a, 0);
    bed_end(&bed, &one, BT_RESET);
    one = bed_next(&bed, a, 0);
    bed_end(&bed, &one, BT_RESET);
    bed_end(&bed, &two, BT_RESET);
    bt_jobs_lane_close(bed.jobs, a);
    b = bed_lane(&bed, &large);
    assert_int_equal(bt_jobs_use(bed.jobs, job, b), BT_OK);
    one = bed_next(&bed, b, 0);
    assert_piece(&one, 0, 0, 0, 100);
    bed_end(&bed, &one, BT_OK);
    two = bed_next(&bed, b, 0);
    bed_end(&bed, &two, BT_RESET); /* its second */
    two = bed_next(&bed, b, 0);
    bed_end(&bed, &two, BT_OK);
    assert_int_equal(bed_reap(&bed).status, BT_OK);
    bed_close(&bed);
}

/* ---- stale handles ---- */

/* The slot is used again, the old handle does not reach the new job. */
static void test_slot_used_again(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(100, 4);
    struct bt_lane_id lane = bed_lane(&bed, &spec), now;
    struct bt_job_id old = bed_add(&bed, 1, 100, INT64_MAX, NULL), job;

    (void)state;
    assert_int_equal(bt_jobs_stop(bed.jobs, old, BT_CANCELLED, 0), BT_OK);
    bed_reap(&bed);
    job = bed_add(&bed, 1, 100, INT64_MAX, NULL);
    assert_int_equal(job.index, old.index);
    assert_int_equal(bt_jobs_use(bed.jobs, old, lane), BT_STALE);
    assert_int_equal(bt_jobs_start(bed.jobs, old, 0), BT_STALE);
    assert_int_equal(bt_jobs_stop(bed.jobs, old, BT_TIMEOUT, 0), BT_STALE);
    assert_int_equal(bt_jobs_damaged(bed.jobs, old, 0), BT_STALE);
    bt_jobs_lane_close(bed.jobs, lane);
    now = bed_lane(&bed, &spec);
    assert_int_equal(now.index, lane.index);
    assert_int_equal(bt_jobs_use(bed.jobs, job, lane), BT_STALE);
    bt_jobs_lane_close(bed.jobs, lane);
    bed_start(&bed, job, now);
    bed_none(&bed, lane);
    bed_next(&bed, now, 0);
    bed_no_end(&bed);
    bed_close(&bed);
}

#define WILD_STEPS 60000
#define WILD_JOBS  6

struct wild {
    struct bt_rng rng;
    struct bt_job_id jobs[8]; /* some that were given out */
    struct bt_lane_id lanes[8];
    uint32_t ended;
};

static uint32_t wild_number(struct bt_rng *rng, uint32_t known)
{
    uint64_t how = bt_rng_below(rng, 16);

    if (how == 0)
        return (uint32_t)bt_rng_u64(rng);
    return how < 3 ? (uint32_t)bt_rng_below(rng, 7) : known;
}

/* Any numbers for handles, any order of calls: only statuses come back, and
 * the table still ends every job afterwards. */
static void wild_call(struct bed *bed, struct wild *w,
                      const struct bt_lane_spec *spec)
{
    struct bt_rng *rng = &w->rng;
    uint64_t at = bt_rng_below(rng, 8), to = bt_rng_below(rng, 8);
    struct bt_job_id job = {wild_number(rng, w->jobs[at].index),
                            wild_number(rng, w->jobs[at].generation)};
    struct bt_lane_id lane = {wild_number(rng, w->lanes[to].index),
                              wild_number(rng, w->lanes[to].generation)};
    static uint32_t same[64];
    struct bt_job_spec job_spec = {
        same, same, 1 + (uint32_t)bt_rng_below(rng, 40), 64, 5, NULL};
    struct bt_job_op op;
    struct bt_job_end end;

    for (uint32_t i = 0; i < 64; i++)
        same[i] = i;
    switch (bt_rng_below(rng, 13)) {
    case 0:
        bt_jobs_lane_close(bed->jobs, lane);
        break;
    case 1:
        if (bt_jobs_lane_open(bed->jobs, spec, &lane) == BT_OK)
            w->lanes[lane.index] = lane;
        break;
    case 2:
        bt_jobs_lane_rate(bed->jobs, lane, bt_rng_u64(rng));
        break;
    case 3:
        if (bt_jobs_add(bed->jobs, 0, &job_spec, &job) == BT_OK)
            w->jobs[job.index] = job;
        break;
    case 4:
    case 5:
        (void)bt_jobs_use(bed->jobs, job, lane);
        break;
    case 6:
        (void)bt_jobs_start(bed->jobs, job, 0);
        break;
    case 7:
        if (bt_rng_below(rng, 8) == 0)
            (void)bt_jobs_stop(bed->jobs, job, BT_CANCELLED, 0);
        break;
    case 8:
    case 9:
        (void)bt_jobs_next(bed->jobs, lane, 0, &op);
        break;
    case 10:
        (void)bt_jobs_op_ended(
            bed->jobs, wild_number(rng, (uint32_t)bt_rng_below(rng, 6)),
            bt_rng_below(rng, 3) ? BT_OK : BT_RESET, 0, NULL, 0, NULL);
        break;
    case 11:
        (void)bt_jobs_damaged(bed->jobs, job, (uint32_t)bt_rng_below(rng, 40));
        break;
    default:
        w->ended += bt_jobs_reap(bed->jobs, &end) && end.status == BT_OK;
        break;
    }
}

static void test_stale_handles(void **state)
{
    const uint64_t seed = 4711;
    struct bt_jobs_config config = bed_config();
    struct bt_lane_spec spec = bed_spec(700, 3);
    struct bt_jobs_load load;
    struct bt_job_end end;
    struct wild w = {.ended = 0};
    struct bed bed;
    uint32_t ended = 0;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&w.rng, seed);
    config.jobs_max = WILD_JOBS;
    config.lanes_max = 5;
    config.ops_max = 6;
    bed = bed_open(&config);
    for (int i = 0; i < WILD_STEPS; i++)
        wild_call(&bed, &w, &spec);
    for (uint32_t index = 0; index < WILD_JOBS; index++) {
        for (uint32_t g = 0; g < WILD_STEPS; g++)
            (void)bt_jobs_stop(bed.jobs, (struct bt_job_id){index, g},
                               BT_CANCELLED, 0);
    }
    for (uint32_t op = 0; op < config.ops_max; op++)
        (void)bt_jobs_op_ended(bed.jobs, op, BT_OK, 0, NULL, 0, NULL);
    print_message("%u jobs ended well\n", w.ended);
    while (bt_jobs_reap(bed.jobs, &end))
        ended++;
    bt_jobs_load(bed.jobs, &load);
    assert_true(ended <= WILD_JOBS && w.ended > WILD_STEPS / 1000);
    assert_true(load.jobs == 0 && load.ops == 0 && load.bytes_out == 0 &&
                load.bytes_left == 0);
    /* All of the table is free again. */
    for (int i = 0; i < WILD_JOBS; i++)
        bed_add(&bed, BED_BLOCKS / 4, 64, INT64_MAX, NULL);
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_lane_limits),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_e20_many_small_blocks),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_window_changes),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_retries),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_waiting_ranges),
        cmocka_unit_test(test_neighbours_wait_as_one),
        cmocka_unit_test(test_tries_stay_apart),
        cmocka_unit_test(test_slot_used_again),
        cmocka_unit_test(test_stale_handles),
    };

    return cmocka_run_group_tests_name("jobs", tests, NULL, NULL);
}
