/* Whose turn it is: equal shares, promotion by slack computed by hand, and
 * what failed going to another lane. */
#include "transfer_jobs_bed.h"

#include <string.h>

#define LANE_RATE 1000000000ull /* bytes/s: 1 MB is 1 ms */
#define MS        1000000ll

/* Ends the operation and says whose it was. */
static void *turn(struct bed *bed, struct bt_lane_id lane, int64_t now_ns)
{
    struct bt_job_op op = bed_next(bed, lane, now_ns);

    bed_end(bed, &op, BT_OK);
    return op.owner;
}

static void test_equal_shares(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(MB, 4);
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    char names[3];
    int count[3] = {0, 0, 0};

    (void)state;
    for (int i = 0; i < 2; i++)
        bed_start(&bed, bed_add(&bed, 50, MB, INT64_MAX, &names[i]), lane);
    for (int n = 0; n < 60; n++) {
        count[(char *)turn(&bed, lane, 0) - names]++;
        assert_true(abs(count[0] - count[1]) <= 1);
    }
    assert_true(count[0] == 30 && count[1] == 30);
    /* A third one shares at once; it does not catch up. */
    bed_start(&bed, bed_add(&bed, 50, MB, INT64_MAX, &names[2]), lane);
    for (int n = 0; n < 30; n++)
        count[(char *)turn(&bed, lane, 0) - names]++;
    assert_true(count[0] == 40 && count[1] == 40 && count[2] == 10);
    bed_close(&bed);
}

/* A small job among large ones waits for one operation of each at most. */
static void test_small_among_large(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(MB, 1);
    struct bt_lane_id lane = bed_lane(&bed, &spec);
    char large, small;
    int waited = 0;

    (void)state;
    for (int i = 0; i < 5; i++)
        bed_start(&bed, bed_add(&bed, 1000, MB, INT64_MAX, &large), lane);
    for (int i = 0; i < 7; i++)
        assert_ptr_equal(turn(&bed, lane, 0), &large);
    bed_start(&bed, bed_add(&bed, 1, 4096, INT64_MAX, &small), lane);
    while (turn(&bed, lane, 0) == &large)
        waited++;
    assert_true(waited <= 5);
    assert_ptr_equal(bed_reap(&bed).owner, &small);
    bed_close(&bed);
}

/* 10 MB at 1 GB/s take 10 ms; 80 %: urgent 12.5 ms before the deadline. */
static void test_promotion(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(MB, 60);
    struct bt_lane_id lane;
    struct bt_job_op out[4];
    char a, b;

    (void)state;
    spec.rate_bytes_per_s = LANE_RATE;
    lane = bed_lane(&bed, &spec);
    bed_start(&bed, bed_add(&bed, 100, MB, INT64_MAX, &a), lane);
    bed_start(&bed, bed_add(&bed, 10, MB, 30 * MS, &b), lane);
    /* Before 17.5 ms in turn; nothing lands, so nothing changes. */
    assert_ptr_equal(bed_next(&bed, lane, 0).owner, &a);
    out[0] = bed_next(&bed, lane, 10 * MS);
    assert_ptr_equal(out[0].owner, &b);
    assert_ptr_equal(bed_next(&bed, lane, 17 * MS).owner, &a);
    out[1] = bed_next(&bed, lane, 17500000 - 1);
    assert_ptr_equal(out[1].owner, &b);
    assert_ptr_equal(bed_next(&bed, lane, 17500000 - 1).owner, &a);
    /* From then on b alone. */
    for (int i = 2; i < 4; i++) {
        out[i] = bed_next(&bed, lane, 17500000);
        assert_ptr_equal(out[i].owner, &b);
    }
    /* 4 MB landed: 6 MB, urgent from 30 - 7.5 = 22.5 ms. */
    for (int i = 0; i < 4; i++)
        bed_end(&bed, &out[i], BT_OK);
    assert_ptr_equal(bed_next(&bed, lane, 22500000 - 1).owner, &a); /* turn */
    assert_ptr_equal(bed_next(&bed, lane, 22500000 - 1).owner, &b);
    assert_ptr_equal(bed_next(&bed, lane, 22500000 - 1).owner, &a);
    assert_ptr_equal(bed_next(&bed, lane, 22500000).owner, &b);
    assert_ptr_equal(bed_next(&bed, lane, 22500000).owner, &b);
    bed_close(&bed);
}

/* Two lanes halve the need; a slower or closed one brings urgency forward. */
static void test_rates(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(MB, 60);
    struct bt_lane_id one, two;
    struct bt_job_id job;
    char a, b;

    (void)state;
    spec.rate_bytes_per_s = LANE_RATE;
    one = bed_lane(&bed, &spec);
    two = bed_lane(&bed, &spec);
    bed_start(&bed, bed_add(&bed, 100, MB, INT64_MAX, &a), one);
    job = bed_add(&bed, 40, MB, 60 * MS, &b);
    assert_int_equal(bt_jobs_use(bed.jobs, job, two), BT_OK);
    bed_start(&bed, job, one);
    /* 40 MB at 2 GB/s: 20 ms, urgent from 60 - 25 = 35 ms. */
    assert_ptr_equal(bed_next(&bed, one, 35 * MS - 1).owner, &a);
    assert_ptr_equal(bed_next(&bed, one, 35 * MS - 1).owner, &b);
    assert_ptr_equal(bed_next(&bed, one, 35 * MS).owner, &b);
    /* 1.25 GB/s in all: 32 ms, from 60 - 40 = 20 ms. */
    bt_jobs_lane_rate(bed.jobs, two, LANE_RATE / 4);
    assert_ptr_equal(bed_next(&bed, one, 20 * MS - 1).owner, &a);
    assert_ptr_equal(bed_next(&bed, one, 20 * MS).owner, &b);
    assert_ptr_equal(bed_next(&bed, one, 20 * MS).owner, &b);
    /* 1 GB/s: 40 ms, from 60 - 50 = 10 ms. */
    bt_jobs_lane_close(bed.jobs, two);
    bed_next(&bed, one, 10 * MS - 1);
    bed_next(&bed, one, 10 * MS - 1);
    assert_ptr_equal(bed_next(&bed, one, 10 * MS).owner, &b);
    assert_ptr_equal(bed_next(&bed, one, 10 * MS).owner, &b);
    /* Not known: never. */
    bt_jobs_lane_rate(bed.jobs, one, 0);
    for (int i = 0; i < 4; i++)
        assert_ptr_equal(bed_next(&bed, one, 59 * MS).owner, i % 2 ? &b : &a);
    bed_close(&bed);
}

/* b must begin by 30 - 10 = 20 ms, c by 24 - 5 = 19 ms: c first though it
 * came last and is smaller; equal slack: the older. */
static void test_least_slack(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(MB, 60);
    struct bt_lane_id lane;
    char a, b, c, d;

    (void)state;
    spec.rate_bytes_per_s = LANE_RATE;
    lane = bed_lane(&bed, &spec);
    bed_start(&bed, bed_add(&bed, 100, MB, INT64_MAX, &a), lane);
    bed_start(&bed, bed_add(&bed, 10, MB, 30 * MS, &b), lane);
    bed_start(&bed, bed_add(&bed, 10, MB, 30 * MS, &d), lane);
    bed_start(&bed, bed_add(&bed, 5, MB, 24 * MS, &c), lane);
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(bed_next(&bed, lane, 18 * MS).owner, &c);
    for (int i = 0; i < 10; i++)
        assert_ptr_equal(bed_next(&bed, lane, 18 * MS).owner, &b);
    for (int i = 0; i < 10; i++)
        assert_ptr_equal(bed_next(&bed, lane, 18 * MS).owner, &d);
    assert_ptr_equal(bed_next(&bed, lane, 18 * MS).owner, &a);
    bed_close(&bed);
}

/* Ten large jobs under way; a late one with little time goes first. */
static void test_late_but_urgent(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(MB, 2);
    struct bt_lane_id lane;
    char large, late;

    (void)state;
    spec.rate_bytes_per_s = LANE_RATE;
    lane = bed_lane(&bed, &spec);
    for (int i = 0; i < 10; i++)
        bed_start(&bed, bed_add(&bed, 1000, MB, 100000 * MS, &large), lane);
    for (int i = 0; i < 15; i++)
        assert_ptr_equal(turn(&bed, lane, i * MS), &large);
    bed_start(&bed, bed_add(&bed, 8, MB, 23 * MS, &late), lane);
    for (int i = 0; i < 8; i++)
        assert_ptr_equal(turn(&bed, lane, 15 * MS + i * MS), &late);
    assert_ptr_equal(bed_reap(&bed).owner, &late);
    assert_ptr_equal(turn(&bed, lane, 23 * MS), &large);
    bed_close(&bed);
}

/* Rates and sizes at the end of their ranges do not overflow. */
static void test_extremes(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(UINT32_MAX, 60);
    struct bt_lane_id fast, slow;
    char a, b, c;

    (void)state;
    spec.rate_bytes_per_s = UINT64_MAX;
    fast = bed_lane(&bed, &spec);
    spec.rate_bytes_per_s = 1;
    slow = bed_lane(&bed, &spec);
    bed_start(&bed, bed_add(&bed, 9000, UINT32_MAX, INT64_MAX - 1, &a), fast);
    assert_int_equal(bt_jobs_use(bed.jobs, (struct bt_job_id){0, 1}, slow),
                     BT_OK);
    bed_start(&bed, bed_add(&bed, 9000, UINT32_MAX, INT64_MIN, &b), slow);
    bed_start(&bed, bed_add(&bed, 9000, UINT32_MAX, 1, &c), slow);
    assert_ptr_equal(bed_next(&bed, fast, 0).owner, &a);
    assert_ptr_equal(bed_next(&bed, slow, 0).owner, &b);
    assert_ptr_equal(bed_next(&bed, slow, 0).owner, &b);
    bed_close(&bed);
}

/* ---- what failed goes elsewhere first ---- */

static void test_other_lane(void **state)
{
    struct bt_jobs_config config = bed_config();
    struct bed bed = bed_open(&config);
    struct bt_lane_spec spec = bed_spec(100, 4);
    struct bt_lane_id bad = bed_lane(&bed, &spec), good = bed_lane(&bed, &spec);
    struct bt_job_op first, op;
    struct bt_job_id job = bed_add(&bed, 10, 100, INT64_MAX, NULL);
    struct bt_job_end end;

    (void)state;
    assert_int_equal(bt_jobs_use(bed.jobs, job, good), BT_OK);
    bed_start(&bed, job, bad);
    first = bed_next(&bed, bad, 0);
    bed_end(&bed, &first, BT_RESET);
    op = bed_next(&bed, bad, 0); /* something new */
    assert_int_equal(op.pieces[0].local, 100);
    bed_end(&bed, &op, BT_OK);
    op = bed_next(&bed, good, 0);
    assert_int_equal(op.pieces[0].local, first.pieces[0].local);
    bed_end(&bed, &op, BT_RESET);
    op = bed_next(&bed, bad, 0); /* and back */
    assert_int_equal(op.pieces[0].local, first.pieces[0].local);
    /* The only lane left takes what it failed itself. */
    bed_end(&bed, &op, BT_OK);
    bt_jobs_lane_close(bed.jobs, good);
    first = bed_next(&bed, bad, 0);
    bed_end(&bed, &first, BT_RESET);
    op = bed_next(&bed, bad, 0);
    assert_int_equal(op.pieces[0].local, first.pieces[0].local);
    bed_end(&bed, &op, BT_OK);
    while (bt_jobs_next(bed.jobs, bad, 0, &op))
        bed_end(&bed, &op, BT_OK);
    end = bed_reap(&bed);
    assert_int_equal(end.status, BT_OK);
    assert_int_equal(end.retries, 3);
    assert_int_equal(end.bytes, 1000);
    assert_int_equal(end.ops, 13);
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_shares),
        cmocka_unit_test(test_small_among_large),
        cmocka_unit_test(test_promotion),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_least_slack),
        cmocka_unit_test(test_late_but_urgent),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_other_lane),
    };

    return cmocka_run_group_tests_name("jobs_order", tests, NULL, NULL);
}
