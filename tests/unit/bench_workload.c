/* Generator and container of workloads: determinism, the prefix property of
 * turns, lengths within bounds, the arrival rate, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "baton/bench/workload.h"
#include <math.h>
#include <string.h>

/* A stand-in for the engines: depends on the whole prompt. */
static void answer(void *arg, const uint32_t *prompt, size_t count,
                   uint32_t max_tokens, uint32_t *out)
{
    uint64_t h = 1;

    (void)arg;
    for (size_t i = 0; i < count; i++)
        h = bt_mix64(h ^ prompt[i]);
    for (uint32_t i = 0; i < max_tokens; i++)
        out[i] = (uint32_t)(bt_mix64(h + i) % 256);
}

static void generate(uint64_t seed, size_t requests, struct bt_workload *out)
{
    struct bt_workload_options options;

    bt_workload_options_init(&options);
    options.seed = seed;
    options.requests = requests;
    options.answer = answer;
    memset(out, 0, sizeof(*out));
    assert_int_equal(bt_workload_generate(&options, out), BT_OK);
}

static void test_same_seed_same_workload(void **state)
{
    struct bt_workload a, b, c;

    (void)state;
    generate(5, 200, &a);
    generate(5, 200, &b);
    generate(6, 200, &c);
    assert_int_equal(a.count, 200);
    assert_int_equal(b.count, 200);
    assert_int_equal(a.token_count, b.token_count);
    assert_memory_equal(a.tokens, b.tokens, a.token_count * sizeof(*a.tokens));
    for (size_t i = 0; i < a.count; i++) {
        assert_int_equal(a.requests[i].arrival_ns, b.requests[i].arrival_ns);
        assert_int_equal(a.requests[i].max_tokens, b.requests[i].max_tokens);
    }
    assert_true(c.token_count != a.token_count ||
                memcmp(a.tokens, c.tokens, a.token_count * 4) != 0);
    bt_workload_fini(&a);
    bt_workload_fini(&b);
    bt_workload_fini(&c);
}

/* Request i as the next turn of request j. */
static void check_follow_up(const struct bt_workload *w, size_t i, size_t j)
{
    const struct bt_workload_request *now = &w->requests[i];
    const struct bt_workload_request *last = &w->requests[j];
    const uint32_t *prompt = bt_workload_prompt(w, i);
    uint32_t expected[64];

    assert_true(last->max_tokens <= 64);
    assert_true(now->token_count > last->token_count + last->max_tokens);
    assert_memory_equal(prompt, bt_workload_prompt(w, j),
                        last->token_count * sizeof(*prompt));
    answer(NULL, prompt, last->token_count, last->max_tokens, expected);
    assert_memory_equal(prompt + last->token_count, expected,
                        last->max_tokens * sizeof(*prompt));
}

static void test_turns_extend_prompt_and_answer(void **state)
{
    struct bt_workload w;
    size_t followed = 0;

    (void)state;
    generate(11, 300, &w);
    for (size_t i = 0; i < w.count; i++) {
        if (w.requests[i].turn == 0)
            continue;
        for (size_t j = 0; j < i; j++) {
            if (w.requests[j].conversation == w.requests[i].conversation &&
                w.requests[j].turn + 1 == w.requests[i].turn) {
                check_follow_up(&w, i, j);
                assert_true(w.requests[i].arrival_ns -
                                w.requests[j].arrival_ns >=
                            1000000000);
                followed++;
            }
        }
    }
    assert_true(followed > 50);
    bt_workload_fini(&w);
}

static void test_mix_and_rate(void **state)
{
    size_t kinds[4] = {0};
    struct bt_workload w;
    double mean_s;

    (void)state;
    generate(3, 2000, &w);
    for (size_t i = 0; i < w.count; i++) {
        const struct bt_workload_request *r = &w.requests[i];

        kinds[r->kind]++;
        assert_true(i == 0 || r->arrival_ns >= w.requests[i - 1].arrival_ns);
        assert_in_range(r->max_tokens, 8, 40);
        assert_true(r->turn < 6);
        for (uint32_t t = 0; t < r->token_count; t++)
            assert_true(w.tokens[r->token_at + t] < 256);
    }
    assert_true(kinds[BT_WORKLOAD_CHAT] > 200);
    assert_true(kinds[BT_WORKLOAD_RAG] > 200);
    assert_true(kinds[BT_WORKLOAD_LONG] > 100);
    assert_int_equal(kinds[BT_WORKLOAD_TRACE], 0);
    /* Poisson at 10/s: the mean gap of 2,000 is 0.1 s, sd 0.0022 s */
    mean_s = (double)w.requests[w.count - 1].arrival_ns / 1e9 / 2000;
    assert_true(fabs(mean_s - 0.1) < 0.011);
    bt_workload_fini(&w);
}

static void put(struct bt_workload *w, int64_t arrival, const uint32_t *tokens,
                uint32_t count)
{
    struct bt_workload_request r = {
        .arrival_ns = arrival, .token_count = count, .max_tokens = 1};
    uint32_t *to;

    assert_int_equal(bt_workload_append(w, &r, &to), BT_OK);
    memcpy(to, tokens, count * sizeof(*tokens));
}

/* Blocks of 2: {1,2}{3,4} | {1,2}{3,5} | {3,4} | {1,2}{3,4}{9}: repeats are
 * {1,2} of the second, both full ones of the last; {3,4} at another place is
 * another block. */
static void test_stats_worked(void **state)
{
    const uint32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 3, 5}, c[] = {3, 4},
                   d[] = {1, 2, 3, 4, 9};
    struct bt_workload_stats stats;
    struct bt_workload w;

    (void)state;
    memset(&w, 0, sizeof(w));
    put(&w, 30, a, 4);
    put(&w, 10, b, 4);
    put(&w, 20, c, 2);
    put(&w, 40, d, 5);
    assert_int_equal(bt_workload_stats_get(&w, 2, &stats), BT_OK);
    assert_int_equal(stats.requests, 4);
    assert_int_equal(stats.prompt_tokens, 15);
    assert_int_equal(stats.prompt_max, 5);
    assert_int_equal(stats.span_ns, 40);
    assert_int_equal(stats.blocks, 8);
    assert_int_equal(stats.repeated_blocks, 3);
    assert_int_equal(bt_workload_sort(&w), BT_OK);
    assert_int_equal(w.requests[0].arrival_ns, 10);
    assert_memory_equal(bt_workload_prompt(&w, 0), b, sizeof(b));
    assert_memory_equal(bt_workload_prompt(&w, 3), d, sizeof(d));
    bt_workload_fini(&w);
}

static void test_limits(void **state)
{
    struct bt_workload_options options;
    struct bt_workload w;

    (void)state;
    bt_workload_options_init(&options);
    memset(&w, 0, sizeof(w));
    w.requests_max = 10;
    options.requests = 11;
    assert_int_equal(bt_workload_generate(&options, &w), BT_TOO_LARGE);
    assert_int_equal(w.count, 0);
    memset(&w, 0, sizeof(w));
    w.tokens_max = 5000;
    options.requests = 100;
    assert_int_equal(bt_workload_generate(&options, &w), BT_TOO_LARGE);
    assert_null(w.tokens);
}

static void test_options_out_of_range(void **state)
{
    struct bt_workload_options good, bad;
    struct bt_workload w;

    (void)state;
    memset(&w, 0, sizeof(w));
    bt_workload_options_init(&good);
#define REFUSED(change)                                                        \
    do {                                                                       \
        bad = good;                                                            \
        bad.change;                                                            \
        assert_int_equal(bt_workload_generate(&bad, &w), BT_INVALID);          \
    } while (0)
    REFUSED(requests = 0);
    REFUSED(rate_per_s = 0);
    REFUSED(rate_per_s = (double)NAN);
    REFUSED(vocabulary = 1);
    REFUSED(documents = 0);
    REFUSED(question_min = 0);
    REFUSED(question_max = 1);
    REFUSED(answer_max = 1u << 30);
    REFUSED(share_rag = 0.9);
    REFUSED(follow_up = 1.5);
    REFUSED(turns_max = 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_workload),
        cmocka_unit_test(test_turns_extend_prompt_and_answer),
        cmocka_unit_test(test_mix_and_rate),
        cmocka_unit_test(test_stats_worked),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_options_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
