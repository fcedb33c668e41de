/* The judge: a plan by hand that is right, and one wrong step for each rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "baton/transfer/plan_check.h"

#include <cmocka.h>
#include <string.h>

/* Blocks of 100 bytes, grain 50: remote 7 -> local 2, 8 -> 3, 4 -> 0. */
static const uint32_t remote[] = {7, 8, 4}, local[] = {2, 3, 0};
static uint8_t grains[6];
static uint32_t by_local[3];
static struct bt_plan_check check;
static char text[128];

static int start(void **state)
{
    (void)state;
    memset(grains, 0, sizeof(grains));
    text[0] = '\0';
    check = (struct bt_plan_check){.remote = remote,
                                   .local = local,
                                   .count = 3,
                                   .block_bytes = 100,
                                   .state = grains,
                                   .grain = 50};
    check.window_bytes[1] = 250;
    check.window_ops[1] = 2;
    return 0;
}

static struct bt_job_op one(uint64_t from, uint64_t to, uint32_t bytes)
{
    struct bt_job_op op;

    memset(&op, 0, sizeof(op));
    op.bytes = bytes;
    op.piece_count = 1;
    op.pieces[0] = (struct bt_job_piece){from, to, bytes};
    return op;
}

static void post(uint32_t lane, const struct bt_job_op *op)
{
    assert_int_equal(bt_plan_posted(&check, lane, op, text, sizeof(text)),
                     BT_OK);
}

static void end(uint32_t lane, const struct bt_job_op *op, bool ok)
{
    assert_int_equal(bt_plan_ended(&check, lane, op, ok, text, sizeof(text)),
                     BT_OK);
}

static void assert_bug(enum bt_status status, const char *word)
{
    assert_int_equal(status, BT_BUG);
    if (strstr(text, word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, word);
}

static void bad_post(const struct bt_job_op *op, const char *word)
{
    assert_bug(bt_plan_posted(&check, 1, op, text, sizeof(text)), word);
}

static void test_right(void **state)
{
    struct bt_job_op a = one(700, 200, 150), b = one(850, 350, 50);

    (void)state;
    b.pieces[1] = (struct bt_job_piece){400, 0, 100};
    b.piece_count = 2;
    b.bytes = 150;
    post(0, &a);
    post(1, &b);
    end(1, &b, false);
    assert_bug(bt_plan_done(&check, true, text, sizeof(text)), "lane 0");
    end(0, &a, true);
    assert_bug(bt_plan_done(&check, true, text, sizeof(text)),
               "block 1 of the list not moved");
    assert_int_equal(bt_plan_done(&check, false, text, sizeof(text)), BT_OK);
    bt_plan_index(&check, by_local);
    post(0, &b);
    end(0, &b, true);
    assert_int_equal(bt_plan_done(&check, true, text, sizeof(text)), BT_OK);
    /* A damaged block once more. */
    assert_int_equal(bt_plan_again(&check, 2), BT_OK);
    assert_int_equal(bt_plan_again(&check, 2), BT_BUG);
    assert_int_equal(bt_plan_again(&check, 3), BT_BUG);
    assert_bug(bt_plan_done(&check, true, text, sizeof(text)),
               "block 2 of the list not moved");
    a = one(400, 0, 100);
    post(1, &a);
    end(1, &a, true);
    assert_int_equal(bt_plan_done(&check, true, text, sizeof(text)), BT_OK);
}

static void test_bytes_twice(void **state)
{
    struct bt_job_op a = one(700, 200, 100), b = one(750, 250, 100), c = a;

    (void)state;
    post(1, &a);
    bad_post(&b, "local byte 250: out, expected not moved");
    end(1, &a, true);
    bad_post(&a, "moved, expected not moved");
    /* Within one operation. */
    start(NULL);
    c.pieces[1] = c.pieces[0];
    c.piece_count = 2;
    c.bytes = 200;
    bad_post(&c, "out, expected not moved");
}

static void test_wrong_places(void **state)
{
    struct bt_job_op op = one(700, 100, 100);

    (void)state;
    for (int indexed = 0; indexed < 2; indexed++) {
        start(NULL);
        if (indexed)
            bt_plan_index(&check, by_local);
        op = one(700, 100, 100);
        bad_post(&op, "block 1 was not asked for");
        op = one(0, 100ull << 40, 100);
        bad_post(&op, "was not asked for");
        op = one(400, 200, 100);
        bad_post(&op, "asked from block 7");
        op = one(750, 200, 50);
        bad_post(&op, "asked from block 7");
        op = one(800, 300, 150); /* runs on into block 4 */
        bad_post(&op, "block 4 was not asked for");
    }
}

static void test_malformed(void **state)
{
    struct bt_job_op op = one(700, 200, 100);

    (void)state;
    op.bytes = 101;
    bad_post(&op, "101 bytes with pieces of 100");
    op = one(700, 200, 0);
    bad_post(&op, "grain");
    op = one(700, 200, 60);
    bad_post(&op, "grain");
    op = one(710, 210, 50);
    bad_post(&op, "grain");
    op.piece_count = 0;
    bad_post(&op, "0 pieces");
    op.piece_count = BT_JOB_PIECES_MAX + 1;
    bad_post(&op, "257 pieces");
    op = one(700, 200, 100);
    assert_bug(
        bt_plan_posted(&check, BT_JOB_LANES_MAX, &op, text, sizeof(text)),
        "lane 8");
}

static void test_windows(void **state)
{
    struct bt_job_op a = one(700, 200, 200), b = one(400, 0, 50);
    struct bt_job_op c = one(450, 50, 50), d = one(400, 0, 100);

    (void)state;
    post(1, &a);
    post(1, &b);
    bad_post(&c, "3 operations, 300 bytes out; window 2, 250");
    start(NULL);
    post(1, &a);
    bad_post(&d, "2 operations, 300 bytes");
    start(NULL);
    check.window_bytes[1] = 100; /* one alone may be larger */
    post(1, &a);
    start(NULL);
    assert_bug(bt_plan_ended(&check, 1, &a, true, text, sizeof(text)),
               "was not out");
    post(0, &a);
    post(1, &b);
    check.out_bytes[1] = 200;
    assert_bug(bt_plan_ended(&check, 1, &d, true, text, sizeof(text)),
               "local byte 0: not moved, expected out");
}

/* Every list finds its blocks: the index against a look at all of them. */
static void test_index(void **state)
{
    static uint32_t many_local[3000], many_remote[3000], index[3000];
    static uint8_t many[3000];
    const uint64_t seed = 31;
    struct bt_rng rng;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (uint32_t n = 0; n < 3000; n = n * 3 + 1) {
        for (uint32_t i = 0; i < n; i++) {
            many_local[i] = 5 * i;
            many_remote[i] = (uint32_t)bt_rng_below(&rng, 9999);
        }
        for (uint32_t i = n; i > 1; i--) {
            uint32_t k = (uint32_t)bt_rng_below(&rng, i), t = many_local[k];

            many_local[k] = many_local[i - 1];
            many_local[i - 1] = t;
        }
        memset(many, 0, sizeof(many));
        check = (struct bt_plan_check){.remote = many_remote,
                                       .local = many_local,
                                       .count = n,
                                       .block_bytes = 8,
                                       .state = many,
                                       .grain = 8};
        bt_plan_index(&check, index);
        for (uint32_t i = 0; i < n; i++) {
            struct bt_job_op op =
                one(many_remote[i] * 8ull, many_local[i] * 8ull, 8);

            assert_int_equal(many[i], 0);
            post(0, &op);
            assert_int_equal(many[i], 1);
            end(0, &op, true);
        }
        assert_int_equal(bt_plan_done(&check, true, text, sizeof(text)), BT_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_right, start),
        cmocka_unit_test_setup(test_bytes_twice, start),
        cmocka_unit_test_setup(test_wrong_places, start),
        cmocka_unit_test_setup(test_malformed, start),
        cmocka_unit_test_setup(test_windows, start),
        cmocka_unit_test(test_index),
    };

    return cmocka_run_group_tests_name("plan_check", tests, NULL, NULL);
}
