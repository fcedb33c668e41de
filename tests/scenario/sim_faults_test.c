/* Every fault: each request ends once, the world comes to rest, and the fault
 * is seen where it must be. */
#include "sim_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S BT_NS_PER_S

static struct bed *b;
static struct bt_sim_fault faults[2];

static int open_bed(void **state)
{
    (void)state;
    b = bed_open(3, 3);
    b->config.policy = "joint";
    b->config.faults = faults;
    load_add(b, 400, 10, 21);
    return 0;
}

static int close_bed(void **state)
{
    (void)state;
    bed_close(b);
    return 0;
}

static void fault(enum bt_sim_fault_kind kind, uint32_t worker, int64_t from,
                  int64_t to, double factor)
{
    faults[b->config.fault_count++] =
        (struct bt_sim_fault){kind, worker, from, to, factor};
}

static const struct bt_sim_record *run(void)
{
    const struct bt_sim_record *r = bed_run(b);

    if (b->result.check_failures != 0)
        fail_msg("%s", b->result.first_failure);
    return r;
}

/* Requests whose first token came in [from, to) by way of this worker. */
static uint32_t served(uint32_t worker, int64_t from, int64_t to)
{
    uint32_t n = 0;

    for (size_t i = 0; i < b->result.count; i++) {
        const struct bt_sim_record *r = &b->result.records[i];

        n += (r->p == worker || r->d == worker) && r->first_token_ns >= from &&
             r->first_token_ns < to;
    }
    return n;
}

static uint64_t outcome(enum bt_outcome o)
{
    return b->result.counters.outcomes[o];
}

static void test_kill_prefill(void **state)
{
    (void)state;
    fault(BT_SIM_KILL, 0, 10 * S, 20 * S, 0);
    (void)run();
    assert_true(served(0, 0, 10 * S) > 0);
    assert_int_equal(served(0, 11 * S, 20 * S), 0);
    assert_true(served(0, 20 * S, 60 * S) > 0);
    assert_int_equal(outcome(BT_OUTCOME_OK), 400);
}

/* Answers that had begun are cut off; nothing else is lost. */
static void test_kill_decode(void **state)
{
    (void)state;
    fault(BT_SIM_KILL, 4, 10 * S, 20 * S, 0);
    (void)run();
    assert_int_equal(served(4, 10 * S + 1, 20 * S), 0);
    assert_true(served(4, 20 * S, 60 * S) > 0);
    assert_true(outcome(BT_OUTCOME_TRUNCATED) > 0);
    assert_int_equal(outcome(BT_OUTCOME_OK) + outcome(BT_OUTCOME_TRUNCATED),
                     400);
}

/* For ever: the other two carry on. */
static void test_kill_for_ever(void **state)
{
    (void)state;
    fault(BT_SIM_KILL, 0, 10 * S, 0, 0);
    fault(BT_SIM_KILL, 4, 12 * S, 0, 0);
    (void)run();
    assert_int_equal(served(0, 11 * S, 1000 * S), 0);
    assert_true(outcome(BT_OUTCOME_OK) > 380);
}

static void test_slow(void **state)
{
    int64_t slowest = 0;
    const struct bt_sim_record *r;

    (void)state;
    fault(BT_SIM_SLOW, 4, 10 * S, 20 * S, 8);
    r = run();
    for (size_t i = 0; i < b->result.count; i++)
        if (r[i].gap_max_ns > slowest)
            slowest = r[i].gap_max_ns;
    assert_true(slowest > 8 * 8860000);
    assert_int_equal(outcome(BT_OUTCOME_OK), 400);
}

static double transfer_rate_min(const struct bt_sim_record *r, uint32_t d)
{
    double least = 1e18;

    for (size_t i = 0; i < b->result.count; i++) {
        double s = (double)(r[i].transfer_end_ns - r[i].transfer_start_ns);

        if (r[i].d == d && r[i].transfer_bytes > 0 &&
            (double)r[i].transfer_bytes / s < least)
            least = (double)r[i].transfer_bytes / s;
    }
    return least;
}

static void test_nic(void **state)
{
    (void)state;
    fault(BT_SIM_NIC, 4, 10 * S, 20 * S, 0.1);
    assert_true(transfer_rate_min(run(), 4) <= 5.001);
    assert_int_equal(outcome(BT_OUTCOME_OK), 400);
}

/* Transfers stand still, are given up, and the requests served otherwise. */
static void test_cut(void **state)
{
    (void)state;
    fault(BT_SIM_CUT, 4, 10 * S, 20 * S, 0);
    (void)run();
    assert_int_equal(outcome(BT_OUTCOME_OK), 400);
    assert_true(b->result.counters.fallbacks[BT_FALLBACK_HANDOFF_FAILED] > 0);
}

/* The same while p still computes what it pushes: p goes on, and nobody waits
 * for a time-out. */
static void test_cut_while_pushing(void **state)
{
    const struct bt_sim_record *r;

    (void)state;
    b->cluster.mode.overlap = BT_OVERLAP_CHUNK;
    b->cluster.mode.pieces = 4;
    for (size_t i = 0; i < b->trace.count; i += 8)
        b->requests[i].input_tokens = 90000; /* 6 s, beyond the 5 s */
    for (uint32_t i = 0; i < b->cluster.pool_count; i++)
        b->cluster.pools[i].kv_tokens = 4000000;
    b->config.speed = 0.1;
    fault(BT_SIM_CUT, 4, 100 * S, 200 * S, 0);
    r = run();
    assert_int_equal(outcome(BT_OUTCOME_OK), 400);
    for (size_t i = 0; i < b->result.count; i++)
        assert_true(r[i].first_token_ns - r[i].dispatched_ns < 200 * S);
}

static void test_hang(void **state)
{
    (void)state;
    fault(BT_SIM_HANG, 4, 10 * S, 20 * S, 0);
    (void)run();
    assert_int_equal(served(4, 10 * S + 1, 20 * S), 0);
    assert_true(served(4, 20 * S, 60 * S) > 0);
    assert_int_equal(outcome(BT_OUTCOME_OK), 400);
}

/* A worker that hangs for ever is left by its time-outs. */
static void test_hang_for_ever(void **state)
{
    (void)state;
    fault(BT_SIM_HANG, 0, 10 * S, 0, 0);
    (void)run();
    assert_int_equal(served(0, 10 * S + 1, 1000 * S), 0);
    assert_true(outcome(BT_OUTCOME_OK) > 380);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_bed, close_bed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_kill_prefill),
        CASE(test_kill_decode),
        CASE(test_kill_for_ever),
        CASE(test_slow),
        CASE(test_nic),
        CASE(test_cut),
        CASE(test_cut_while_pushing),
        CASE(test_hang),
        CASE(test_hang_for_ever),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
