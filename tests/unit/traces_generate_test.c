/* The generator of traces: same seed, same trace; rates, shares and reuse as
 * asked; blocks that are true prefix chains; fixed sizes; tenants. Bounds are
 * several standard deviations wide and seeds are fixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/trace.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void make(const struct bt_trace_generate_options *o, struct bt_trace *t)
{
    assert_int_equal(bt_trace_generate(o, t), BT_OK);
    assert_int_equal(t->count, o->requests);
    assert_true(t->synthetic);
    assert_true(t->has_prefixes);
    assert_non_null(strstr(t->name, "synthetic"));
}

static void only(struct bt_trace_generate_options *o, enum bt_trace_mix kind)
{
    bt_trace_generate_options_init(o);
    memset(o->mix, 0, sizeof(o->mix));
    o->mix[kind] = 1;
    o->requests = 3000;
    o->rate_per_s = 8;
}

/* Every id has one parent; counts fit lengths; ids are dense and used. */
static void check_chains(const struct bt_trace *t)
{
    uint64_t *parent = malloc(t->block_ids * sizeof(*parent));
    uint64_t known = 0;

    assert_non_null(parent);
    memset(parent, 0xff, t->block_ids * sizeof(*parent));
    for (size_t i = 0; i < t->count; i++) {
        const struct bt_trace_request *q = &t->requests[i];
        uint64_t last = UINT64_MAX - 1;

        assert_true(i == 0 || q->arrival_ns >= t->requests[i - 1].arrival_ns);
        assert_true(q->input_tokens >= 1 && q->output_tokens >= 1);
        assert_int_equal(q->block_count,
                         (q->input_tokens + t->block_tokens - 1) /
                             t->block_tokens);
        for (uint32_t b = 0; b < q->block_count; b++) {
            uint64_t id = t->blocks[q->block_at + b];

            assert_true(id < t->block_ids);
            known += parent[id] == UINT64_MAX;
            if (parent[id] == UINT64_MAX)
                parent[id] = last;
            assert_int_equal(parent[id], last);
            last = id;
        }
    }
    assert_int_equal(known, t->block_ids);
    free(parent);
}

static void test_same_seed_same_trace(void **state)
{
    struct bt_trace_generate_options o;
    struct bt_trace a, b, c;

    (void)state;
    bt_trace_generate_options_init(&o);
    make(&o, &a);
    make(&o, &b);
    o.seed = 2;
    make(&o, &c);
    assert_int_equal(a.block_count, b.block_count);
    assert_memory_equal(a.blocks, b.blocks, a.block_count * sizeof(*a.blocks));
    assert_memory_equal(a.requests, b.requests, a.count * sizeof(*a.requests));
    assert_true(memcmp(a.requests, c.requests, a.count * sizeof(*a.requests)) !=
                0);
    bt_trace_fini(&a);
    bt_trace_fini(&b);
    bt_trace_fini(&c);
}

static void test_chains_of_each_kind(void **state)
{
    struct bt_trace_generate_options o;
    struct bt_trace t;

    (void)state;
    for (int kind = 0; kind < BT_MIX_COUNT; kind++) {
        only(&o, (enum bt_trace_mix)kind);
        o.block_tokens = kind % 2 ? 16 : 512;
        o.tenants = 2;
        make(&o, &t);
        check_chains(&t);
        bt_trace_fini(&t);
    }
}

static void test_reuse_of_each_kind(void **state)
{
    static const struct {
        enum bt_trace_mix kind;
        double least, most;
    } due[] = {
        {BT_MIX_CHAT, 0.3, 0.8},   {BT_MIX_AGENT, 0.90, 0.99},
        {BT_MIX_TOOL, 0.6, 0.95},  {BT_MIX_RAG, 0.5, 0.97},
        {BT_MIX_LONG, 0.0, 0.001},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++) {
        struct bt_trace_generate_options o;
        struct bt_trace_stats s;
        struct bt_trace t;

        only(&o, due[i].kind);
        make(&o, &t);
        assert_int_equal(bt_trace_stats_get(&t, 8, &s), BT_OK);
        if (s.ideal_hit_tokens < due[i].least ||
            s.ideal_hit_tokens > due[i].most)
            fail_msg("%s: ideal hit %.3f", bt_trace_mix_name(due[i].kind),
                     s.ideal_hit_tokens);
        assert_true(s.rate_per_s > 7.2 && s.rate_per_s < 8.8);
        assert_true(s.interarrival_cv > 0.9 && s.interarrival_cv < 1.1);
        bt_trace_fini(&t);
    }
}

static void test_bursts(void **state)
{
    struct bt_trace_generate_options o;
    struct bt_trace_stats s;
    struct bt_trace t;

    (void)state;
    only(&o, BT_MIX_CHAT);
    o.requests = 20000;
    o.burst = 4;
    make(&o, &t);
    assert_int_equal(bt_trace_stats_get(&t, 1, &s), BT_OK);
    assert_true(s.rate_per_s > 7.4 && s.rate_per_s < 8.6);
    assert_true(s.interarrival_cv > 3);
    bt_trace_fini(&t);
}

/* A turn extends the prompt of the turn before and its answer. */
static void test_turns_extend(void **state)
{
    struct bt_trace_generate_options o;
    const struct bt_trace_request *last[4096] = {0};
    struct bt_trace t;
    size_t turns = 0;

    (void)state;
    only(&o, BT_MIX_AGENT);
    make(&o, &t);
    for (size_t i = 0; i < t.count; i++) {
        const struct bt_trace_request *q = &t.requests[i];
        const struct bt_trace_request *before;

        assert_true(q->session >= 1 && q->session < 4096);
        before = last[q->session];
        last[q->session] = q;
        assert_int_equal(q->turn, before ? before->turn + 1 : 0);
        if (!before)
            continue;
        turns++;
        assert_true(q->input_tokens >
                    before->input_tokens + before->output_tokens);
        assert_memory_equal(t.blocks + q->block_at, t.blocks + before->block_at,
                            before->input_tokens / 512 * sizeof(uint64_t));
    }
    assert_true(turns > 2500);
    bt_trace_fini(&t);
}

static void test_tenants_share_nothing(void **state)
{
    struct bt_trace_generate_options o;
    struct bt_trace t;
    uint32_t *owner, seen[5] = {0};

    (void)state;
    bt_trace_generate_options_init(&o);
    o.tenants = 4;
    o.block_tokens = 16;
    make(&o, &t);
    owner = calloc(t.block_ids, sizeof(*owner));
    assert_non_null(owner);
    for (size_t i = 0; i < t.count; i++) {
        const struct bt_trace_request *q = &t.requests[i];

        assert_true(q->tenant >= 1 && q->tenant <= 4);
        seen[q->tenant]++;
        for (uint32_t b = 0; b < q->block_count; b++) {
            uint32_t *who = &owner[t.blocks[q->block_at + b]];

            assert_true(*who == 0 || *who == q->tenant);
            *who = q->tenant;
        }
    }
    for (int i = 1; i <= 4; i++)
        assert_true(seen[i] > 100);
    free(owner);
    bt_trace_fini(&t);
}

/* 8,000 tokens of which 75 % are common: 375 of 500 blocks of 16. */
static void test_fixed_sizes(void **state)
{
    struct bt_trace_generate_options o;
    struct bt_trace_stats s;
    struct bt_trace t;

    (void)state;
    bt_trace_generate_options_init(&o);
    o.requests = 100;
    o.input_fixed = 8000;
    o.output_fixed = 50;
    o.hit_fixed = 0.75;
    o.block_tokens = 16;
    make(&o, &t);
    check_chains(&t);
    assert_int_equal(t.block_ids, 375 + 100 * 125);
    assert_int_equal(bt_trace_stats_get(&t, 1, &s), BT_OK);
    assert_int_equal(s.input[0], 8000);
    assert_int_equal(s.input[5], 8000);
    assert_int_equal(s.output[0], 50);
    assert_int_equal(s.output[5], 50);
    assert_true(fabs(s.ideal_hit_tokens - 0.75 * 99 / 100) < 1e-12);
    assert_true(s.common_to_all_blocks == 375);
    bt_trace_fini(&t);
}

static void test_options_out_of_range(void **state)
{
    struct bt_trace_generate_options good, bad;
    struct bt_trace t = {.count = 0};

    (void)state;
    bt_trace_generate_options_init(&good);
#define REFUSE(change)                                                         \
    do {                                                                       \
        bad = good;                                                            \
        change;                                                                \
        assert_int_equal(bt_trace_generate(&bad, &t), BT_INVALID);             \
    } while (0)
    REFUSE(bad.requests = 0);
    REFUSE(bad.rate_per_s = 0);
    REFUSE(bad.rate_per_s = (double)NAN);
    REFUSE(bad.burst = 0.5);
    REFUSE(bad.mix[0] += 0.1);
    REFUSE(bad.mix[0] = -0.1);
    REFUSE(bad.block_tokens = 0);
    REFUSE(bad.output_mean = 0);
    REFUSE(bad.hit_fixed = 0.5);
    REFUSE((bad.input_fixed = 10, bad.hit_fixed = 1.5));
    assert_null(t.requests);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_trace),
        cmocka_unit_test(test_chains_of_each_kind),
        cmocka_unit_test(test_reuse_of_each_kind),
        cmocka_unit_test(test_bursts),
        cmocka_unit_test(test_turns_extend),
        cmocka_unit_test(test_tenants_share_nothing),
        cmocka_unit_test(test_fixed_sizes),
        cmocka_unit_test(test_options_out_of_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
