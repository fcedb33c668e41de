/* What stands in for KV events that cannot be believed: guesses from own
 * placements (their time to live, the worker's capacity) and the self-check.
 * Truth is the world's: the tokens that were cached when the prefill began. */
#include "sim_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define BLOCK  512
#define PROMPT (16 * BLOCK + 100) /* 16 full blocks */

static void fallback(struct bed *b, bool on)
{
    b->config.knowledge.approximate = on;
    b->config.knowledge.self_check = on;
}

static const struct bt_sim_record *run(struct bed *b)
{
    const struct bt_sim_record *r = bed_run(b);

    if (b->result.check_failures != 0)
        fail_msg("%s", b->result.first_failure);
    return r;
}

struct credit {
    double predicted, found, missing; /* tokens */
};

static struct credit credit_of(const struct bed *b)
{
    struct credit c = {0, 0, 0};

    for (size_t i = 0; i < b->result.count; i++) {
        const struct bt_sim_record *r = &b->result.records[i];

        c.predicted += r->predicted_overlap;
        c.found += r->cached_tokens;
        if (r->predicted_overlap > r->cached_tokens)
            c.missing += r->predicted_overlap - r->cached_tokens;
    }
    return c;
}

static double mean_ttft(const struct bed *b)
{
    struct bt_sim_summary s;

    bt_sim_summarise(&b->result, &b->config.slo, -1, &s);
    assert_int_equal(s.ok, s.measured);
    return s.ttft.mean;
}

static struct bed *open_load(const char *policy)
{
    struct bed *b = bed_open(3, 2);

    b->config.policy = policy;
    load_add(b, 400, 8, 31);
    return b;
}

/* Undisturbed streams are exact: nothing is guessed, no credit is lost. */
static void test_exact_changes_nothing(void **state)
{
    static const char *const policies[] = {"joint", "prefix_load",
                                           "least_loaded"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct bed *b = open_load(policies[i]);
        uint64_t with;

        fallback(b, true);
        (void)run(b);
        with = b->result.effects_hash;
        fallback(b, false);
        (void)run(b);
        assert_true(b->result.effects_hash == with);
        bed_close(b);
    }
}

/* What is late but not lost stays the stream's own business. */
static void test_replay_changes_nothing(void **state)
{
    struct bed *b = open_load("joint");
    uint64_t with;

    (void)state;
    b->config.knowledge.event_loss = 0.02;
    fallback(b, true);
    (void)run(b);
    with = b->result.effects_hash;
    fallback(b, false);
    (void)run(b);
    assert_true(b->result.effects_hash == with);
    bed_close(b);
}

/* A rule that counts requests hears nothing of events, whatever becomes of
 * them. (least_loaded counts tokens less those that events say are cached.) */
static void test_counting_requests_needs_no_events(void **state)
{
    struct bed *b = open_load("power_of_two");
    struct bt_sim_knowledge *k = &b->config.knowledge;
    uint64_t exact;

    (void)state;
    (void)run(b);
    exact = b->result.effects_hash;
    k->event_lag_ns = 60 * BT_NS_PER_S;
    k->event_loss = 0.1;
    for (int replay = 0; replay < 2; replay++) {
        k->event_replay = replay != 0;
        (void)run(b);
        assert_true(b->result.effects_hash == exact);
    }
    k->events_off = true;
    (void)run(b);
    assert_true(b->result.effects_hash == exact);
    bed_close(b);
}

/* Engines that tell nothing: guesses find what is there, and pay. */
static void test_no_events(void **state)
{
    struct bed *b = open_load("joint");
    struct credit with, without;
    double ttft;

    (void)state;
    b->config.knowledge.events_off = true;
    fallback(b, true);
    (void)run(b);
    with = credit_of(b);
    ttft = mean_ttft(b);
    fallback(b, false);
    (void)run(b);
    without = credit_of(b);
    assert_true(without.predicted < 1);
    assert_true(with.predicted > 0.8 * with.found);
    assert_true(with.found > 1.2 * without.found);
    assert_true(with.missing < 0.02 * with.predicted);
    assert_true(ttft < mean_ttft(b));
    b->config.policy = "least_loaded";
    (void)run(b);
    assert_true(ttft < mean_ttft(b));
    bed_close(b);
}

/* The same prompt 100 s later. */
static void test_time_to_live(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->config.policy = "joint";
    b->config.knowledge.events_off = true;
    bed_add(b, 0, PROMPT, 2, 0);
    bed_add(b, 100 * BT_NS_PER_S, PROMPT, 2, 0);
    b->config.knowledge.approximate_ttl_ns = 100 * BT_NS_PER_S + 1;
    r = run(b);
    assert_int_equal(r[1].predicted_overlap, 16 * BLOCK);
    assert_int_equal(r[1].cached_tokens, 16 * BLOCK);
    b->config.knowledge.approximate_ttl_ns = 99 * BT_NS_PER_S;
    r = run(b);
    assert_int_equal(r[1].predicted_overlap, 0);
    assert_int_equal(r[1].cached_tokens, 16 * BLOCK); /* it was there */
    bed_close(b);
}

/* Room for 40 blocks: the first of four prompts of 16 is gone when it comes
 * again, the last one is not; and that is what is guessed. */
static void test_capacity(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->config.policy = "joint";
    b->config.knowledge.events_off = true;
    b->cluster.pools[0].kv_tokens = 40 * BLOCK;
    for (uint32_t i = 0; i < 4; i++)
        bed_add(b, i * 10 * BT_NS_PER_S, PROMPT, 2, 1000u * i);
    bed_add(b, 40 * BT_NS_PER_S, PROMPT, 2, 3000); /* the last again */
    bed_add(b, 50 * BT_NS_PER_S, PROMPT, 2, 0);    /* the first */
    r = run(b);
    assert_int_equal(r[4].cached_tokens, 16 * BLOCK);
    assert_int_equal(r[4].predicted_overlap, 16 * BLOCK);
    assert_int_equal(r[5].cached_tokens, 0);
    assert_int_equal(r[5].predicted_overlap, 0);
    bed_close(b);
}

/* Half of all events are lost for good and the caches are small, just above the
 * longest prompt: of what was evicted every second block is believed in. */
static struct bed *open_lossy(void)
{
    struct bed *b = open_load("joint");

    b->cluster.pools[0].kv_tokens = 36 * BLOCK;
    b->config.knowledge.event_loss = 0.5;
    b->config.knowledge.event_replay = false;
    return b;
}

static double wrong_share(struct bed *b, bool approximate, bool self_check)
{
    struct credit c;

    b->config.knowledge.approximate = approximate;
    b->config.knowledge.self_check = self_check;
    (void)run(b);
    c = credit_of(b);
    assert_true(c.predicted > 0);
    return c.missing / c.predicted;
}

static void test_lossy(void **state)
{
    struct bed *b = open_lossy();
    double neither = wrong_share(b, false, false);
    double checked = wrong_share(b, false, true);
    double guessed = wrong_share(b, true, false);
    double both = wrong_share(b, true, true);

    (void)state;
    if (!(neither > 0.2 && checked < neither && guessed < neither / 10 &&
          both < neither / 10))
        fail_msg("wrong: neither %.3f, checked %.3f, guessed %.3f, both %.3f",
                 neither, checked, guessed, both);
    bed_close(b);
}

static void test_refused(void **state)
{
    struct bed *b = bed_open(1, 1);

    (void)state;
    bed_add(b, 0, PROMPT, 2, 0);
    b->config.knowledge.approximate_ttl_ns = 0;
    assert_int_equal(
        bt_sim_run(&b->config, &b->result, b->error, sizeof(b->error)),
        BT_INVALID);
    assert_non_null(strstr(b->error, "approximate_ttl"));
    b->config.knowledge.approximate = false;
    (void)run(b);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_changes_nothing),
        cmocka_unit_test(test_replay_changes_nothing),
        cmocka_unit_test(test_counting_requests_needs_no_events),
        cmocka_unit_test(test_no_events),
        cmocka_unit_test(test_time_to_live),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
