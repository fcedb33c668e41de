/* Whole runs: the same seed gives the same run, on every compiler; fetches and
 * slower tiers are used and pay; pushes and reservations keep their rules;
 * what a configuration may not be is refused in words. */
#include "sim_load.h"

#include "baton/orchestrator/journal.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Of the run in test_golden. Both compilers and all build types must come to
 * it. It changes when the core or the policy decides otherwise: then run this
 * test with both compilers and put in the number they agree on. */
#define GOLDEN 0xb98eba058b6c3541ull

static double mean_ttft(const struct bed *b)
{
    struct bt_sim_summary s;

    bt_sim_summarise(&b->result, &b->config.slo, -1, &s);
    assert_int_equal(s.ok, s.measured);
    return s.ttft.mean;
}

static void clean(const struct bed *b)
{
    if (b->result.check_failures != 0)
        fail_msg("%s", b->result.first_failure);
}

static void test_same_seed(void **state)
{
    struct bed *b = bed_open(3, 2);
    uint64_t hash, events;

    (void)state;
    b->config.policy = "joint";
    b->config.jitter_ns = BT_NS_PER_S;
    load_add(b, 300, 8, 5);
    (void)bed_run(b);
    clean(b);
    hash = b->result.effects_hash;
    events = b->result.events;
    (void)bed_run(b);
    assert_true(b->result.effects_hash == hash);
    assert_true(b->result.events == events);
    b->config.seed = 2;
    (void)bed_run(b);
    assert_true(b->result.effects_hash != hash);
    bed_close(b);
}

static void test_golden(void **state)
{
    struct bed *b = bed_open(2, 2);

    (void)state;
    b->config.hold.enabled = false;
    b->config.knowledge.calibrate = false;
    b->cluster.fabrics[0].racks = 2;
    b->cluster.fabrics[0].rack_up_bytes_per_s = 10000000000ull;
    load_add(b, 200, 6, 11);
    (void)bed_run(b);
    clean(b);
    if (b->result.effects_hash != GOLDEN)
        fail_msg("hash of effects is 0x%llx, not 0x%llx",
                 (unsigned long long)b->result.effects_hash, GOLDEN);
    bed_close(b);
}

/* One long prompt again and again: the second p may fetch it from the first
 * one instead of computing it. */
static void test_fetch_from_peer(void **state)
{
    struct bed *b = bed_open(2, 1);
    uint32_t fetched = 0;
    double without;

    (void)state;
    b->config.policy = "joint";
    for (int i = 0; i < 24; i++) {
        int64_t at = i == 0 ? 0 : 2 * BT_NS_PER_S + i * 60 * BT_NS_PER_MS;

        bed_add(b, at, 16384 + 4096, 2, 1000u * (uint64_t)i);
        if (i > 0)
            bed_share(b, 0, 32);
    }
    (void)bed_run(b);
    without = mean_ttft(b);
    b->config.fetch = true;
    (void)bed_run(b);
    clean(b);
    for (size_t i = 0; i < b->result.count; i++)
        fetched += b->result.records[i].fetched_tokens;
    assert_true(fetched > 0);
    assert_true(mean_ttft(b) < without);
    bed_close(b);
}

/* A device cache that holds one prompt only, a host tier that holds all. */
static void test_host_tier(void **state)
{
    struct bed *b = bed_open(1, 1);
    uint32_t loaded = 0;
    double without;

    (void)state;
    b->config.policy = "joint";
    b->cluster.pools[0].kv_tokens = 20000;
    for (int i = 0; i < 12; i++) {
        bed_add(b, i * 4 * BT_NS_PER_S, 16384 + 100, 2,
                1000u * (uint64_t)(i % 3));
    }
    (void)bed_run(b);
    without = mean_ttft(b);
    b->cluster.pools[0].host_tokens = 200000;
    b->cluster.pools[0].host.rate_bytes_per_s = 40000000000ull;
    b->config.fetch = true;
    (void)bed_run(b);
    clean(b);
    for (size_t i = 0; i < b->result.count; i++)
        loaded += b->result.records[i].fetched_tokens;
    assert_true(loaded > 0);
    assert_true(mean_ttft(b) < without);
    bed_close(b);
}

/* An engine that reserves at d first holds the prefill back until d has room;
 * one that pulls does not. */
static void test_allocate_first(void **state)
{
    struct bed *b = bed_open(2, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->cluster.pools[1].kv_tokens = 10000;
    bed_add(b, 0, 8192, 100, 0);
    bed_add(b, 0, 8192, 100, 100);
    r = bed_run(b);
    assert_true(r[1].prefill_start_ns < r[0].finished_ns);
    b->cluster.mode.allocate_first = true;
    r = bed_run(b);
    clean(b);
    assert_true(r[1].prefill_start_ns >= r[0].finished_ns);
    bed_close(b);
}

/* What the simulator recorded can be replayed: the journal's last hash is that
 * of a core fed with its events. */
static void test_journal(void **state)
{
    struct bed *b = bed_open(2, 2);
    struct bt_journal_reader *reader = NULL;
    struct bt_journal_entry entry;
    char path[] = "/tmp/baton-sim-journal-XXXXXX", error[256];
    uint64_t n = 0;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    b->config.journal = path;
    load_add(b, 50, 5, 3);
    (void)bed_run(b);
    assert_int_equal(bt_journal_open(path, &reader, error, sizeof(error)),
                     BT_OK);
    while (bt_journal_next(reader, &entry, error, sizeof(error)) == BT_OK)
        n++;
    assert_int_equal(n, b->result.events);
    bt_journal_reader_close(reader);
    (void)remove(path);
    bed_close(b);
}

static void refuse(struct bed *b, const char *what)
{
    struct bt_sim_result result;

    b->error[0] = '\0';
    assert_int_equal(
        bt_sim_run(&b->config, &result, b->error, sizeof(b->error)),
        BT_INVALID);
    if (strstr(b->error, what) == NULL)
        fail_msg("\"%s\" does not speak of %s", b->error, what);
}

static void test_refusals(void **state)
{
    struct bt_sim_fault fault = {.kind = BT_SIM_SLOW, .worker = 9};
    struct bed *b = bed_open(1, 1);

    (void)state;
    refuse(b, "trace");
    bed_add(b, 0, 1000, 1, 0);
    b->config.speed = 0;
    refuse(b, "speed");
    b->config.speed = 1;
    b->config.fabric = 7;
    refuse(b, "fabric");
    b->config.fabric = 0;
    b->config.knowledge.event_loss = 1.5;
    refuse(b, "event_loss");
    b->config.knowledge.event_loss = 0;
    b->cluster.pools[0].kv_tokens = 0;
    refuse(b, "kv_tokens");
    b->cluster.pools[0].kv_tokens = 100000;
    b->config.faults = &fault;
    b->config.fault_count = 1;
    refuse(b, "fault");
    b->config.fault_count = 0;
    b->config.policy = "oracle:depth=3";
    refuse(b, "width");
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_fetch_from_peer),
        cmocka_unit_test(test_host_tier),
        cmocka_unit_test(test_allocate_first),
        cmocka_unit_test(test_journal),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
