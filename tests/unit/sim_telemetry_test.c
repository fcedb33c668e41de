/* What a simulated worker reports of itself, against the lists it is in.
 * telemetry.c alone: the test is its clock and its core. */
#include "sim_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct bt_event last;
static size_t told;

void sim_after(struct sim *s, int64_t at_ns, enum sim_what what, uint32_t a,
               uint64_t b)
{
    (void)s;
    (void)at_ns;
    (void)what;
    (void)a;
    (void)b;
}

void sim_tell(struct sim *s, const struct bt_event *event)
{
    (void)s;
    last = *event;
    told++;
}

void sim_kv_forget(struct sim *s, uint32_t worker)
{
    (void)s;
    (void)worker;
}

/* Three decode, one joins, a leg P and a local prefill compute, two pull their
 * KV; one waits for its prefill and four for room: 3 + 1 + 2 run, the pulling
 * ones wait like the five others. Slots: 3 + 1 + 1 + 2. */
static void test_counts(void **state)
{
    struct bt_sim_config config = {.knowledge.telemetry_ns = 1};
    struct sim_job jobs[2] = {{.link = {SIM_NONE, 1}},
                              {.link = {0, SIM_NONE}, .slot = true}};
    struct sim_worker w = {.up = true,
                           .kv_tokens = 1000,
                           .private_kv = 150,
                           .slots = 7,
                           .batch_count = 3,
                           .prefill = {0, 1, 2},
                           .join.count = 1,
                           .prefill_wait.count = 1,
                           .pull_wait.count = 4,
                           .tiers[0].pinned = 5};
    static struct sim_stats ring[SIM_STATS_FLYING];
    struct sim s = {.stats = ring,
                    .config = &config,
                    .workers = &w,
                    .jobs = jobs,
                    .block_tokens = 20};

    (void)state;
    sim_stats_look(&s, 0);
    assert_int_equal(told, 1);
    assert_int_equal(last.type, BT_EV_WORKER_STATS);
    assert_int_equal(last.u.worker_stats.running, 6);
    assert_int_equal(last.u.worker_stats.waiting, 7);
    assert_true(last.u.worker_stats.kv_usage == 0.25);
    w.hung = 1;
    sim_stats_look(&s, 0);
    assert_int_equal(told, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
