/* Statistics of traces: a small trace worked by hand, brute force on generated
 * ones, and the published figures of the real traces when they are there
 * (baselines-and-evaluation.md section 8). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/trace.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Blocks of 10 tokens; request i arrives at i seconds. */
static void build(struct bt_trace *t, const uint32_t *inputs,
                  const uint64_t *ids, size_t count, uint64_t distinct)
{
    memset(t, 0, sizeof(*t));
    t->requests = calloc(count, sizeof(*t->requests));
    t->blocks = calloc(64, sizeof(*t->blocks));
    assert_non_null(t->requests);
    assert_non_null(t->blocks);
    t->count = count;
    t->block_tokens = 10;
    t->block_ids = distinct;
    t->has_prefixes = true;
    for (size_t i = 0; i < count; i++) {
        t->requests[i] =
            (struct bt_trace_request){.arrival_ns = (int64_t)i * 1000000000,
                                      .input_tokens = inputs[i],
                                      .output_tokens = (uint32_t)i + 1,
                                      .block_at = t->block_count,
                                      .block_count = (inputs[i] + 9) / 10};
        for (uint32_t b = 0; b < t->requests[i].block_count; b++)
            t->blocks[t->block_count++] = *ids++;
    }
}

static void near(double value, double due, double slack)
{
    if (!(fabs(value - due) <= slack))
        fail_msg("%.6f, not %.6f +- %g", value, due, slack);
}

/*   0 1 2    first of a conversation, 30 tokens
 *   0 3'     other, 15 tokens (3 is a partial block)
 *   0 1 2 4  continues the first, 35 tokens
 *   0 3'     the same 15 tokens again */
static void test_by_hand(void **state)
{
    static const uint32_t inputs[] = {30, 15, 35, 15};
    static const uint64_t ids[] = {0, 1, 2, 0, 3, 0, 1, 2, 4, 0, 3};
    struct bt_trace_stats s;
    struct bt_trace t;

    (void)state;
    build(&t, inputs, ids, 4, 5);
    assert_int_equal(bt_trace_stats_get(&t, 1, &s), BT_OK);
    assert_int_equal(s.requests, 4);
    near(s.seconds, 3, 0);
    near(s.rate_per_s, 1, 1e-12);
    near(s.interarrival_cv, 0, 1e-12);
    assert_true(s.jitter_suspected);
    near(s.input_mean, 95.0 / 4, 1e-12);
    near(s.output_mean, 2.5, 1e-12);
    assert_int_equal(s.input[0], 15);
    assert_int_equal(s.input[1], 15);
    assert_int_equal(s.input[2], 35);
    assert_int_equal(s.input[5], 35);
    assert_int_equal(s.block_uses, 11);
    assert_int_equal(s.block_unique, 5);
    assert_int_equal(s.block_once, 1);
    /* 0, 10, 30 and 15 (a partial block counts its own tokens) of 95 */
    near(s.ideal_hit_tokens, 55.0 / 95, 1e-12);
    near(s.ideal_hit_blocks, 6.0 / 11, 1e-12);
    near(s.requests_with_hit, 0.75, 0);
    near(s.requests_with_deep_hit, 0.5, 0);
    near(s.common_to_all_blocks, 1, 0);
    near(s.continuation_share, 0.25, 0);
    for (int i = 0; i < 6; i++) {
        near(s.lru_global[i], 55.0 / 95, 1e-12);
        near(s.lru_random[i], 55.0 / 95, 1e-12); /* of one worker */
    }
    bt_trace_fini(&t);
}

/* Hits of one LRU by a plain list, newest first. */
static double lru_by_force(const struct bt_trace *t, size_t limit)
{
    uint64_t *list = calloc(limit + 1, sizeof(*list));
    uint64_t hits = 0, tokens = 0;
    size_t used = 0;

    assert_non_null(list);
    for (size_t i = 0; i < t->count; i++) {
        const struct bt_trace_request *q = &t->requests[i];
        uint64_t depth = 0;

        for (uint32_t b = 0; b < q->block_count; b++) {
            size_t at = 0;

            while (at < used && list[at] != t->blocks[q->block_at + b])
                at++;
            if (at == used)
                break;
            depth++;
        }
        hits += depth * t->block_tokens < q->input_tokens
                    ? depth * t->block_tokens
                    : q->input_tokens;
        tokens += q->input_tokens;
        for (uint32_t b = q->block_count; b > 0; b--) {
            uint64_t id = t->blocks[q->block_at + b - 1];
            size_t at = 0;

            while (at < used && list[at] != id)
                at++;
            used += at == used && used < limit;
            if (at == limit)
                at--; /* the oldest goes */
            memmove(list + 1, list, at * sizeof(*list));
            list[0] = id;
        }
    }
    free(list);
    return (double)hits / (double)tokens;
}

static void test_lru_against_brute_force(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct bt_trace_generate_options g;
        struct bt_trace_stats s;
        struct bt_trace t;

        bt_trace_generate_options_init(&g);
        g.seed = seed;
        g.requests = 300;
        assert_int_equal(bt_trace_generate(&g, &t), BT_OK);
        assert_int_equal(bt_trace_stats_get(&t, 4, &s), BT_OK);
        for (int i = 0; i < 2; i++) {
            double due = lru_by_force(&t, s.lru_blocks[i]);

            if (fabs(s.lru_global[i] - due) > 1e-12)
                fail_msg("seed %llu, %u blocks: %.9f, brute force %.9f",
                         (unsigned long long)seed, s.lru_blocks[i],
                         s.lru_global[i], due);
        }
        /* more room never finds less of a chain; all of them below ideal */
        for (int i = 1; i < 6; i++)
            assert_true(s.lru_global[i] >= s.lru_global[i - 1]);
        near(s.lru_global[5], s.ideal_hit_tokens, 1e-12);
        assert_true(s.lru_random[5] < s.ideal_hit_tokens);
        bt_trace_fini(&t);
    }
}

/* One prompt again and again over N workers: all but the first at each hit. */
static void test_random_routing(void **state)
{
    struct bt_trace_generate_options g;
    struct bt_trace_stats s;
    struct bt_trace t;

    (void)state;
    bt_trace_generate_options_init(&g);
    g.requests = 400;
    g.input_fixed = 1024;
    g.hit_fixed = 1;
    assert_int_equal(bt_trace_generate(&g, &t), BT_OK);
    assert_int_equal(bt_trace_stats_get(&t, 8, &s), BT_OK);
    near(s.ideal_hit_tokens, 399.0 / 400, 1e-12);
    near(s.lru_random[5], 392.0 / 400, 1e-12);
    near(s.common_to_all_blocks, 2, 0);
    assert_int_equal(bt_trace_stats_get(&t, 0, &s), BT_INVALID);
    assert_int_equal(bt_trace_stats_get(&t, 4097, &s), BT_INVALID);
    bt_trace_fini(&t);
    assert_int_equal(bt_trace_stats_get(&t, 8, &s), BT_INVALID);
}

/* ---- published figures ---- */

struct published {
    const char *file;
    size_t requests;
    double seconds, rate, cv;
    double input_mean, output_mean;
    uint32_t input[6], output_p50, output_p90, output_p99;
    uint64_t uses, unique, once;
    double hit_tokens, hit_blocks, any, deep, continuations, common;
    double global[6], random[6];
};

static const struct published published[] = {
    {"conversation_trace.jsonl",
     12031,
     3537,
     3.40,
     3.03,
     12035,
     343,
     {891, 6909, 27367, 0, 85401, 126195},
     350,
     597,
     1120,
     288500,
     182790,
     138646,
     37.4,
     36.6,
     99.99,
     38.7,
     33,
     1,
     {4.5, 6.7, 21.6, 33.2, 36.1, 37.1},
     {6.1, 9.0, 12.6, 13.5, 13.5, 13.5}},
    {"synthetic_trace.jsonl",
     3993,
     1022,
     3.91,
     1.01,
     15325,
     149,
     {13, 11587, 38615, 0, 66456, 191378},
     69,
     389,
     768,
     121877,
     43924,
     25673,
     65.1,
     64.0,
     44.6,
     43.7,
     36,
     0,
     {8.6, 19.4, 43.2, 63.6, 65.1, 65.1},
     {6.2, 13.3, 23.7, 23.9, 23.9, 23.9}},
};

static bool load_shared(const char *file, struct bt_trace *t)
{
    struct bt_trace_read_options o;
    char path[512], error[512];

    snprintf(path, sizeof(path), "%s/traces/%s", BATON_SHARED_DIR, file);
    if (access(path, R_OK) != 0) {
        print_message("no %s: skipped\n", path);
        return false;
    }
    bt_trace_read_options_init(&o);
    o.jitter_ns = 0;
    if (bt_trace_load(path, &o, t, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    return true;
}

static void check_published(const struct published *p,
                            const struct bt_trace_stats *s)
{
    assert_int_equal(s->requests, p->requests);
    near(s->seconds, p->seconds, 0.5);
    near(s->rate_per_s, p->rate, 0.01);
    near(s->interarrival_cv, p->cv, 0.01);
    near(s->input_mean, p->input_mean, 0.5);
    near(s->output_mean, p->output_mean, 0.5);
    for (int i = 0; i < 6; i++) /* quantiles by another rule: 2 tokens */
        if (p->input[i])
            near(s->input[i], p->input[i], 2);
    near(s->output[1], p->output_p50, 1);
    near(s->output[2], p->output_p90, 1);
    near(s->output[4], p->output_p99, 1);
    assert_int_equal(s->block_uses, p->uses);
    assert_int_equal(s->block_unique, p->unique);
    assert_int_equal(s->block_once, p->once);
    near(100 * s->ideal_hit_tokens, p->hit_tokens, 0.05);
    near(100 * s->ideal_hit_blocks, p->hit_blocks, 0.05);
    near(100 * s->requests_with_hit, p->any, 0.05);
    near(100 * s->requests_with_deep_hit, p->deep, 0.1);
    near(100 * s->continuation_share, p->continuations, 0.5);
    near(s->common_to_all_blocks, p->common, 0);
    for (int i = 0; i < 6; i++) {
        near(100 * s->lru_global[i], p->global[i], 0.11);
        near(100 * s->lru_random[i], p->random[i], 1.0); /* other draws */
    }
}

static void test_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct bt_trace_stats s;
        struct bt_trace t;

        if (!load_shared(published[i].file, &t))
            skip();
        assert_int_equal(bt_trace_stats_get(&t, 8, &s), BT_OK);
        assert_int_equal(s.jitter_suspected, i == 0);
        check_published(&published[i], &s);
        bt_trace_fini(&t);
    }
}

/* With jitter the conversation trace is no train of bursts any more. */
static void test_jitter_of_conversation(void **state)
{
    struct bt_trace_read_options o;
    struct bt_trace_stats s;
    struct bt_trace t;
    char error[512];
    const char *path = BATON_SHARED_DIR "/traces/conversation_trace.jsonl";

    (void)state;
    if (access(path, R_OK) != 0) {
        print_message("no %s: skipped\n", path);
        skip();
    }
    bt_trace_read_options_init(&o);
    assert_int_equal(bt_trace_load(path, &o, &t, error, sizeof(error)), BT_OK);
    assert_int_equal(bt_trace_stats_get(&t, 8, &s), BT_OK);
    assert_false(s.jitter_suspected);
    assert_true(s.interarrival_cv < 1.2);
    near(s.seconds, 3540, 3);
    near(100 * s.ideal_hit_blocks, 36.6, 0.05);
    bt_trace_fini(&t);
}

static void test_azure(void **state)
{
    static const struct {
        const char *file;
        size_t requests;
        double rate, input_mean, output_mean;
        uint32_t p99;
    } due[] = {
        {"azure2023/AzureLLMInferenceTrace_code.csv", 8819, 2.57, 2048, 28,
         7436},
        {"azure2023/AzureLLMInferenceTrace_conv.csv", 19366, 5.53, 1155, 211,
         4142},
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct bt_trace_stats s;
        struct bt_trace t;

        if (!load_shared(due[i].file, &t))
            skip();
        assert_int_equal(bt_trace_stats_get(&t, 8, &s), BT_OK);
        assert_int_equal(s.requests, due[i].requests);
        near(s.rate_per_s, due[i].rate, 0.01);
        near(s.input_mean, due[i].input_mean, 0.5);
        near(s.output_mean, due[i].output_mean, 0.5);
        near(s.input[4], due[i].p99, 1);
        assert_int_equal(s.block_uses, 0);
        bt_trace_fini(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_lru_against_brute_force),
        cmocka_unit_test(test_random_routing),
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_jitter_of_conversation),
        cmocka_unit_test(test_azure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
