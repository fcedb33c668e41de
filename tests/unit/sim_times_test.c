/* Times of single requests through the whole simulator against worked numbers
 * of the cost model: W1 (prefill, chunks, decode), W5 (arrival without and
 * with overlap), and sums made here step by step. */
#include "sim_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

/* Profile H: h100-70b-tp8. */
#define STEP_A 8.86e-3
#define STEP_B 0.0228e-3
#define STEP_C 1.30e-8

static void near(int64_t got_ns, double want_s)
{
    if (fabs((double)got_ns * 1e-9 - want_s) > 4e-6 * want_s + 2e-9)
        fail_msg("%.9f s, not %.9f s", (double)got_ns * 1e-9, want_s);
}

/* W1: prefill 310.773 ms; 2,684,354,560 B at 50 GB/s; first step 8.98930 ms at
 * context 8192. */
static void test_one_request(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;
    double all = 0;

    (void)state;
    b->cluster.fabrics[0].setup_ns = 1000000;
    b->cluster.fabrics[0].per_descriptor_ns = 1000;
    bed_add(b, 0, 8192, 100, 0);
    r = bed_run(b);
    near(r->prefill_done_ns - r->prefill_start_ns, 0.310773);
    near(r->transfer_end_ns - r->transfer_start_ns,
         0.001 + 16e-6 + 2684354560 / 50e9);
    near(r->first_token_ns - r->transfer_end_ns, 0.00898930);
    for (int i = 0; i < 100; i++)
        all += STEP_A + STEP_B + STEP_C * (8192 + i);
    near(r->finished_ns - r->transfer_end_ns, all);
    near(r->gap_max_ns, STEP_A + STEP_B + STEP_C * (8192 + 99));
    assert_int_equal(r->transfer_bytes, 2684354560);
    near(r->unloaded_ttft_ns,
         0.310773 + 0.001016 + 2684354560 / 50e9 + 0.00898930);
    assert_int_equal(b->result.check_failures, 0);
    bed_close(b);
}

/* A newcomer joins at the end of the step in progress, and no earlier. */
static void test_join(void **state)
{
    struct bed *b = bed_open(2, 1);
    const struct bt_sim_record *r;
    double t, joined;
    int steps = 0;

    (void)state;
    bed_add(b, 0, 8192, 2000, 0);
    bed_add(b, 5000000, 8192, 10, 100);
    r = bed_run(b);
    t = (double)r[0].transfer_end_ns * 1e-9;
    joined = (double)r[1].transfer_end_ns * 1e-9;
    assert_true(joined > t);
    while (t < joined)
        t += STEP_A + STEP_B + STEP_C * (8192 + steps++);
    near(r[1].first_token_ns,
         t + STEP_A + 2 * STEP_B + STEP_C * (2 * 8192 + steps));
    bed_close(b);
}

/* Decode again, one step at a time: when whose KV arrived is taken from the
 * run, tokens are counted here. */
struct naive {
    const struct bt_sim_record *r;
    size_t count;
    uint32_t tokens[64];
    double first[64], end[64];
};

static double naive_step(struct naive *n, double t)
{
    double batch = 0, context = 0, next = 1e18;
    bool in[64] = {false};

    for (size_t i = 0; i < n->count; i++) {
        double at = (double)n->r[i].transfer_end_ns * 1e-9;

        in[i] = at <= t + 5e-10 && n->tokens[i] < n->r[i].output_tokens;
        if (at > t + 5e-10 && at < next)
            next = at;
        batch += in[i];
        context += in[i] ? n->r[i].input_tokens + n->tokens[i] : 0;
    }
    if (batch == 0)
        return next;
    t += STEP_A + STEP_B * batch + STEP_C * context;
    for (size_t i = 0; i < n->count; i++) {
        if (in[i] && n->tokens[i]++ == 0)
            n->first[i] = t;
        if (in[i] && n->tokens[i] == n->r[i].output_tokens)
            n->end[i] = t;
    }
    return t;
}

static void test_batch_step_by_step(void **state)
{
    struct bed *b = bed_open(4, 1);
    struct naive n = {.count = 40};
    double t = 0;

    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        bed_add(b, (int64_t)i * 137 * BT_NS_PER_MS, 1000 + 377 * (i % 11),
                1 + 53 * (i % 7), 100u * i);
    n.r = bed_run(b);
    assert_int_equal(b->result.check_failures, 0);
    while (t < 1e17)
        t = naive_step(&n, t);
    for (size_t i = 0; i < n.count; i++) {
        near(n.r[i].first_token_ns, n.first[i]);
        near(n.r[i].finished_ns, n.end[i]);
    }
    bed_close(b);
}

/* Prompts that share 8 of 16 blocks: half is computed, and only what d lacks
 * travels. W1: 4096 after 4096 take 162.618 ms. */
static void test_prefix(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    bed_add(b, 0, 8192, 2, 0);
    bed_add(b, 10 * BT_NS_PER_S, 8192, 2, 100);
    bed_share(b, 0, 8);
    r = bed_run(b);
    assert_int_equal(r[1].cached_tokens, 4096);
    near(r[1].prefill_done_ns - r[1].prefill_start_ns, 0.162618);
    assert_int_equal(r[1].transfer_bytes, 4096 * BED_KV);
    b->cluster.mode.whole_prompt = true;
    r = bed_run(b);
    assert_int_equal(r[1].transfer_bytes, 8192 * BED_KV);
    bed_close(b);
}

/* Two FIFO prompts on one worker: the second waits for the first. */
static void test_queue(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->config.hold.enabled = false;
    bed_add(b, 0, 8192, 2, 0);
    bed_add(b, 1000000, 8192, 2, 100);
    r = bed_run(b);
    assert_int_equal(r[1].prefill_start_ns, r[0].prefill_done_ns);
    near(r[1].prefill_done_ns, 2 * 0.310773);
    bed_close(b);
}

/* W1: 8192 in four chunks of 2048: 330.303 ms, the whole request on one
 * worker, first token with the last chunk. */
static void test_chunks(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->config.aggregated = true;
    b->cluster.pools[1].local_chunk = 2048;
    bed_add(b, 0, 8192, 3, 0);
    r = bed_run(b);
    near(r->first_token_ns, 0.330303);
    near(r->second_token_ns - r->first_token_ns,
         STEP_A + STEP_B + STEP_C * 8193);
    assert_int_equal(r->transfer_bytes, 0);
    bed_close(b);
}

/* W5 with t0 = 0 on the wire: 2.31021 and 1.63912 s less 1 ms of t0. */
static void test_overlap(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->cluster.fabrics[0].nic_bytes_per_s = 12000000000ull;
    bed_add(b, 0, 32768, 2, 0);
    r = bed_run(b);
    near(r->transfer_end_ns, 2.30921);
    b->cluster.mode.overlap = BT_OVERLAP_CHUNK;
    b->cluster.mode.pieces = 4;
    r = bed_run(b);
    near(r->transfer_end_ns, 1.63812);
    assert_int_equal(b->result.check_failures, 0);
    bed_close(b);
}

/* W5 with a hit of 30,720 tokens and nothing at d (here: all blocks travel).
 * None: 1.00520 - 1 ms. By pieces, 4 of them: F = max of the three lines. */
static void test_overlap_hit(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;
    double held = 30720 * 327680.0 / 12e9, fresh = 2048 * 327680.0 / 12e9;
    double compute;

    (void)state;
    b->cluster.fabrics[0].nic_bytes_per_s = 12000000000ull;
    b->cluster.mode.whole_prompt = true;
    bed_add(b, 0, 30720, 2, 0);
    bed_add(b, 10 * BT_NS_PER_S, 32768, 2, 1000);
    bed_share(b, 0, 60);
    r = bed_run(b);
    near(r[1].transfer_end_ns - r[1].arrival_ns, 1.00420);
    compute = (double)(r[1].prefill_done_ns - r[1].prefill_start_ns) * 1e-9;
    b->cluster.mode.overlap = BT_OVERLAP_CHUNK;
    b->cluster.mode.pieces = 4;
    r = bed_run(b);
    near(r[1].transfer_end_ns - r[1].arrival_ns,
         fmax(held + fresh, fmax(compute / 4 + fresh, compute + fresh / 4)));
    bed_close(b);
}

/* p has room for one prompt: the second begins when the first has been pulled,
 * neither before nor when its answer is complete. */
static void test_hold_until_pulled(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->config.hold.enabled = false;
    b->cluster.pools[0].kv_tokens = 10000;
    bed_add(b, 0, 8192, 500, 0);
    bed_add(b, 0, 8192, 500, 100);
    r = bed_run(b);
    assert_int_equal(r[1].prefill_start_ns, r[0].transfer_end_ns);
    assert_int_equal(b->result.check_failures, 0);
    bed_close(b);
}

/* KV room for one request only: the second takes its slot when the first has
 * ended. */
static void test_decode_waits_for_room(void **state)
{
    struct bed *b = bed_open(2, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->cluster.pools[1].kv_tokens = 10000; /* room for one of them */
    bed_add(b, 0, 8192, 50, 0);
    bed_add(b, 0, 8192, 50, 100);
    r = bed_run(b);
    assert_true(r[1].slot_ns >= r[0].finished_ns ||
                r[0].slot_ns >= r[1].finished_ns);
    assert_int_equal(b->result.check_failures, 0);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_batch_step_by_step),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_overlap_hit),
        cmocka_unit_test(test_hold_until_pulled),
        cmocka_unit_test(test_decode_waits_for_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
