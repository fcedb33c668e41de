/* The truth of decisions by forks of the process: exact where it can be worked
 * out, never negative, and it leaves the run as it was. */
#include "sim_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <sys/wait.h>

static void no_child_is_left(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* Two prefill workers, one of half the speed, taken in turn: the regret of
 * the wrong one is what it takes longer. */
static void test_worked_out(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;
    int wrong = 0;

    (void)state;
    bed_pool(b, BT_ROLE_PREFILL, 1);
    b->cluster.pools[2].compute.speedup = 0.5;
    b->config.regret_every = 1;
    bed_add(b, 0, 8192, 2, 0);
    bed_add(b, 10 * BT_NS_PER_S, 8192, 2, 100);
    r = bed_run(b);
    for (int i = 0; i < 2; i++) {
        int64_t took = r[i].prefill_done_ns - r[i].prefill_start_ns;

        if (r[i].p == 0) {
            assert_int_equal(r[i].regret_ns, 0);
            continue;
        }
        wrong++;
        assert_true(llabs(r[i].regret_ns - took / 2) <= 2);
    }
    assert_int_equal(wrong, 1);
    no_child_is_left();
    bed_close(b);
}

static void test_looking_changes_nothing(void **state)
{
    struct bed *b = bed_open(2, 2);
    uint64_t hash;
    uint32_t computed = 0;

    (void)state;
    load_add(b, 60, 8, 41);
    (void)bed_run(b);
    hash = b->result.effects_hash;
    b->config.regret_every = 10;
    (void)bed_run(b);
    assert_true(b->result.effects_hash == hash);
    for (size_t i = 0; i < b->result.count; i++) {
        assert_true(b->result.records[i].regret_ns >= -1);
        computed += b->result.records[i].regret_ns >= 0;
    }
    assert_true(computed >= 4);
    no_child_is_left();
    bed_close(b);
}

/* The oracle is never slower than round robin for a request that is alone. */
static void test_oracle(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    bed_pool(b, BT_ROLE_PREFILL, 1);
    b->cluster.pools[2].compute.speedup = 0.5;
    b->config.policy = "oracle";
    for (int i = 0; i < 4; i++)
        bed_add(b, i * 10 * BT_NS_PER_S, 8192, 2, 100u * (uint64_t)i);
    r = bed_run(b);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].p, 0);
        assert_int_equal(r[i].reason, BT_REASON_FORCED);
    }
    no_child_is_left();
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_out),
        cmocka_unit_test(test_looking_changes_nothing),
        cmocka_unit_test(test_oracle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
