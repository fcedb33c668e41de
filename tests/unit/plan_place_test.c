/* Placement terms and policies: W9 of cost-models.md, the guard of section 15
 * worked by hand, the must-tie list, infeasible candidates. */
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#define S(x)  ((int64_t)((x)*1e9))
#define MS(x) ((int64_t)((x)*1e6))

/* Up to four workers and their links, all of which a test may change. */
struct world {
    struct bt_compute_model model;
    struct bt_link_model link_models[16];
    struct bt_place_link links[16];
    struct bt_place_worker workers[4];
    struct bt_place_view view;
};

/* p0 p1 d0 d1 idle and empty; 12 GB/s, 1 ms set-up everywhere. */
static void world_init(struct world *w)
{
    memset(w, 0, sizeof(*w));
    bt_compute_preset("h100-70b-tp8", &w->model);
    for (uint32_t i = 0; i < 16; i++) {
        w->link_models[i].rate_bytes_per_s = 12000000000;
        w->link_models[i].setup_ns = MS(1);
        w->links[i].model = &w->link_models[i];
    }
    for (uint32_t i = 0; i < 4; i++) {
        w->workers[i].id = bt_worker_id_make(i, 1);
        w->workers[i].roles = i < 2 ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
        w->workers[i].prefill_ok = i < 2;
        w->workers[i].decode_ok = i >= 2;
        w->workers[i].model = &w->model;
    }
    w->view = (struct bt_place_view){.prompt_tokens = 12000,
                                     .block_tokens = 16,
                                     .output_tokens = 100,
                                     .kv_bytes_per_token = 327680,
                                     .workers = w->workers,
                                     .worker_count = 4,
                                     .links = w->links,
                                     .overlap_known = true};
}

static struct bt_link_model *link_at(struct world *w, uint32_t p, uint32_t d)
{
    return &w->link_models[p * 4 + d];
}

static void w9_world(struct world *w)
{
    world_init(w);
    w->view.now_ns = S(5);
    w->workers[0].prefill_free_ns = S(5.10);
    w->workers[1].prefill_free_ns = S(5.30);
    w->workers[1].overlap_tokens = 8192;
    w->workers[2].decode_free_ns = S(5.20);
    w->workers[3].decode_free_ns = S(5.60);
    w->workers[3].overlap_tokens = 8192;
    for (uint32_t d = 2; d < 4; d++) {
        w->workers[d].decode_requests = 63;
        w->workers[d].decode_tokens = 64 * 4096 - 12000;
    }
    w->workers[3].decode_tokens++; /* so that d0 is the least loaded */
    link_at(w, 1, 3)->rate_bytes_per_s = 48000000000;
}

static void assert_s(int64_t ns, double s)
{
    double got = (double)ns / 1e9;

    if (fabs(got - s) > 5e-6 * s)
        fail_msg("%.9g s instead of %.9g", got, s);
}

/* The policies of this file; the rivals have tests of their own. */
static const char *const ours[] = {"round_robin", "least_loaded", "prefix_load",
                                   "joint"};
#define OURS (sizeof(ours) / sizeof(ours[0]))

static void start(const struct bt_policy *policy, struct bt_policy_state *state,
                  uint64_t seed)
{
    bt_policy_state_init(state, seed);
    for (size_t i = 0; policy->knobs != NULL && policy->knobs[i].name; i++)
        state->knobs[i] = policy->knobs[i].value;
}

static struct bt_placement
place_with(const char *name, const struct bt_place_view *view, uint64_t seed)
{
    const struct bt_policy *policy = bt_policy_find(name);
    struct bt_policy_state state;
    struct bt_placement out;

    assert_non_null(policy);
    start(policy, &state, seed);
    assert_int_equal(policy->place(&state, view, &out), BT_OK);
    return out;
}

static void assert_pair(const struct bt_place_candidate *c, uint32_t p,
                        uint32_t d)
{
    assert_int_equal(c->p, p);
    assert_int_equal(c->d, d);
}

static void w9_terms(void **state)
{
    static const double arrival[2][2] = {{0.891718, 0.668022},
                                         {0.787455, 0.485771}};
    static const double ready[2][2] = {{0.891718, 0.668022},
                                       {0.787455, 0.600000}};
    struct world w;
    struct bt_place_terms t;

    (void)state;
    w9_world(&w);
    for (uint32_t p = 0; p < 2; p++) {
        for (uint32_t d = 0; d < 2; d++) {
            bt_place_terms(&w.view, p, 2 + d, &t);
            assert_s(t.prefill_ns, p == 0 ? 0.463038 : 0.158775);
            assert_s(t.queue_ns, p == 0 ? 0.1 : 0.3);
            assert_s(t.arrival_ns, arrival[p][d]);
            assert_int_equal(t.arrival_ns,
                             t.queue_ns + t.prefill_ns + t.transfer_ns);
            assert_s(t.slot_ns, d == 0 ? 0.2 : 0.6);
            assert_s(t.step_ns, 0.0137271);
            assert_s(t.total_ns, ready[p][d] + 0.0137271);
        }
    }
    assert_int_equal(t.kv_bytes, 238ULL * 16 * 327680);
    assert_int_equal(t.overlap_p, 8192);
    assert_int_equal(t.overlap_d, 8192);
}

static void w9_choice(void **state)
{
    struct world w;
    struct bt_placement out;

    (void)state;
    w9_world(&w);
    out = place_with("joint", &w.view, 1);
    assert_pair(&out.chosen, 1, 3);
    assert_s(out.chosen.terms.total_ns, 0.613727);
    assert_int_equal(out.reason, BT_REASON_JOINT);
    assert_pair(&out.baseline, 1, 2);
    assert_s(out.baseline.terms.total_ns, 0.801182);
    assert_pair(&out.second, 0, 3);
    assert_int_equal(out.considered, 4);
    out = place_with("prefix_load", &w.view, 1);
    assert_pair(&out.chosen, 1, 2);
    assert_pair(&out.second, 1, 3);
    assert_int_equal(out.reason, BT_REASON_LOAD_PREFIX);
}

static void table_is_ordered(void **state)
{
    static const uint32_t order[4][2] = {{1, 3}, {0, 3}, {1, 2}, {0, 2}};
    struct world w;
    struct bt_place_candidate all[8], top[2];

    (void)state;
    w9_world(&w);
    assert_int_equal(bt_place_table(&w.view, all, 8), 4);
    for (size_t i = 0; i < 4; i++)
        assert_pair(&all[i], order[i][0], order[i][1]);
    assert_int_equal(bt_place_table(&w.view, top, 2), 4);
    assert_memory_equal(top, all, sizeof(top));
    assert_int_equal(bt_place_table(&w.view, NULL, 0), 4);
}

/* W2: 12,035 tokens, block 16, 256 blocks held; 5,000 tokens, none held. */
static void w2_bytes(void **state)
{
    struct world w;
    struct bt_place_terms t;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 12035;
    w.workers[2].overlap_tokens = 256 * 16;
    bt_place_terms(&w.view, 0, 2, &t);
    assert_int_equal(t.kv_bytes, 2605711360);
    w.view.prompt_tokens = 5000;
    bt_place_terms(&w.view, 0, 3, &t);
    assert_int_equal(t.kv_bytes, 1641021440);
}

/* W6 through a view: flows in flight on the pair. */
static void flows_share_the_link(void **state)
{
    static const uint64_t left[] = {2000000000, 6000000000, 1000000000};
    struct world w;
    struct bt_place_terms t;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 4000;
    w.view.kv_bytes_per_token = 1000000;
    w.links[0 * 4 + 2].left = left;
    w.links[0 * 4 + 2].flows = 3;
    link_at(&w, 0, 2)->rate_bytes_per_s = 10000000000;
    link_at(&w, 0, 2)->setup_ns = 0;
    bt_place_terms(&w.view, 0, 2, &t);
    assert_s(t.transfer_ns, 1.1);
}

static void overlap_is_capped(void **state)
{
    struct world w;
    struct bt_place_terms t;

    (void)state;
    world_init(&w);
    w.workers[0].overlap_tokens = 20000;
    w.workers[2].overlap_tokens = 20000;
    bt_place_terms(&w.view, 0, 2, &t);
    assert_int_equal(t.overlap_p, 11999);
    assert_int_equal(t.prefill_ns, bt_prefill_ns(&w.model, 1, 11999));
    assert_int_equal(t.kv_bytes, 0);
    assert_int_equal(t.transfer_ns, 0);
}

/* One p; d0 is least loaded; transfers of b and x ms; sigma is 0.1 * hypot. */
static enum bt_reason guard_with(double b_ms, double x_ms, double speedup)
{
    struct world w;
    struct bt_placement out;

    world_init(&w);
    w.workers[1].prefill_ok = false;
    w.workers[3].decode_tokens = 1;
    w.model.speedup = speedup;
    w.view.kv_bytes_per_token = 1;
    link_at(&w, 0, 2)->setup_ns = MS(b_ms);
    link_at(&w, 0, 3)->setup_ns = MS(x_ms);
    out = place_with("joint", &w.view, 1);
    assert_pair(&out.baseline, 0, 2);
    assert_pair(&out.chosen, 0, out.reason == BT_REASON_JOINT ? 3 : 2);
    return out.reason;
}

static void guard(void **state)
{
    (void)state;
    /* gain 15, sigma 15.24 */
    assert_int_equal(guard_with(115, 100, 1), BT_REASON_GUARD);
    /* gain 16, sigma 15.32 */
    assert_int_equal(guard_with(116, 100, 1), BT_REASON_JOINT);
    /* gain 0.9 ms: below 1 ms of a total near 480 ms */
    assert_int_equal(guard_with(1, 0.1, 1), BT_REASON_GUARD);
    assert_int_equal(guard_with(1.2, 0.1, 1), BT_REASON_JOINT);
    /* the same 0.9 ms when the whole takes 5 ms: 2 % of that is 0.1 ms */
    assert_int_equal(guard_with(1, 0.1, 100), BT_REASON_JOINT);
    assert_int_equal(guard_with(0.15, 0.1, 100), BT_REASON_GUARD);
}

/* Must-tie 1: flat and idle, whatever the prefixes on p. */
static void flat_idle_ties(void **state)
{
    struct bt_policy_state a, b;
    struct bt_rng rng;
    unsigned int per_d[4] = {0};

    (void)state;
    start(bt_policy_find("joint"), &a, 11);
    start(bt_policy_find("prefix_load"), &b, 11);
    bt_rng_seed(&rng, 5);
    for (int i = 0; i < 2000; i++) {
        struct world w;
        struct bt_placement x, y;

        world_init(&w);
        w.view.prompt_tokens = 1 + (uint32_t)bt_rng_below(&rng, 20000);
        w.workers[0].overlap_tokens = (uint32_t)bt_rng_below(&rng, 4) * 512;
        w.workers[1].overlap_tokens = (uint32_t)bt_rng_below(&rng, 4) * 512;
        assert_int_equal(bt_policy_find("joint")->place(&a, &w.view, &x),
                         BT_OK);
        assert_int_equal(bt_policy_find("prefix_load")->place(&b, &w.view, &y),
                         BT_OK);
        assert_pair(&x.chosen, y.chosen.p, y.chosen.d);
        per_d[x.chosen.d]++;
    }
    assert_in_range(per_d[2], 880, 1120); /* uniform among equals, 5 sigma */
}

static void no_prefill_pool(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_ok = w.workers[1].prefill_ok = false;
    w.workers[2].prefill_free_ns = S(1);
    w.workers[2].prefill_tokens = 100;
    w.workers[2].decode_tokens = 100;
    for (size_t i = 0; i < OURS; i++) {
        struct bt_placement out = place_with(ours[i], &w.view, 3);

        assert_int_equal(out.chosen.p, BT_PLACE_NONE);
        assert_int_equal(out.reason, BT_REASON_NO_PREFILL);
        assert_int_equal(out.chosen.terms.transfer_ns, 0);
        assert_int_equal(out.considered, 2);
        assert_pair(&out.baseline, BT_PLACE_NONE, 3);
        if (i > 0)
            assert_int_equal(out.chosen.d, 3);
    }
}

/* A worker with both roles close by beats a slow hand-off. */
static void local_prefill(void **state)
{
    struct world w;
    struct bt_placement out;

    (void)state;
    world_init(&w);
    w.workers[2].roles = BT_ROLE_BOTH;
    w.workers[2].prefill_ok = true;
    w.workers[2].prefill_free_ns = MS(1);
    w.workers[3].decode_ok = false;
    w.workers[0].prefill_free_ns = w.workers[1].prefill_free_ns = 0;
    out = place_with("joint", &w.view, 1);
    assert_pair(&out.chosen, 2, 2);
    assert_int_equal(out.reason, BT_REASON_LOCAL);
    assert_int_equal(out.chosen.terms.kv_bytes, 0);
    assert_int_equal(out.considered, 3);
}

static void only_one(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_ok = false;
    w.workers[3].decode_ok = false;
    for (size_t i = 0; i < OURS; i++) {
        struct bt_placement out = place_with(ours[i], &w.view, 3);

        assert_pair(&out.chosen, 1, 2);
        assert_int_equal(out.considered, 1);
        assert_int_equal(out.reason, BT_REASON_ONLY_ONE);
        assert_pair(&out.second, BT_PLACE_NONE, BT_PLACE_NONE);
    }
}

/* Invariant 8: a dead link or a full worker never wins, even when every other
 * choice is far worse; nothing left is an error. */
static void infeasible_never_wins(void **state)
{
    struct world w;

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        world_init(&w);
        link_at(&w, 0, 2)->rate_bytes_per_s = 0;
        link_at(&w, 0, 3)->rate_bytes_per_s = 0;
        w.workers[1].prefill_free_ns = S(500);
        w.workers[1].prefill_tokens = 1000000;
        w.workers[2].kv_capacity_tokens = 12099;
        w.workers[3].decode_tokens = 1000000;
        for (size_t i = 0; i < OURS; i++) {
            struct bt_placement out = place_with(ours[i], &w.view, seed);

            assert_pair(&out.chosen, 1, 3);
        }
    }
    w.workers[3].kv_capacity_tokens = 12099;
    for (size_t i = 0; i < OURS; i++) {
        struct bt_policy_state st;
        struct bt_placement out;

        start(bt_policy_find(ours[i]), &st, 1);
        assert_int_equal(bt_policy_find(ours[i])->place(&st, &w.view, &out),
                         BT_NO_WORKER);
    }
    w.view.output_tokens = 99; /* exactly fits */
    assert_int_equal(bt_place_table(&w.view, NULL, 0), 2);
}

/* Independent turns: all four pairs come up, each worker equally often. */
static void round_robin_turns(void **state)
{
    struct bt_policy_state st;
    struct world w;
    unsigned int p_count[4] = {0}, d_count[4] = {0}, pairs[2][2] = {{0}};

    (void)state;
    world_init(&w);
    bt_policy_state_init(&st, 9);
    for (int i = 0; i < 100; i++) {
        struct bt_placement out;

        bt_policy_find("round_robin")->place(&st, &w.view, &out);
        p_count[out.chosen.p]++;
        d_count[out.chosen.d]++;
        pairs[out.chosen.p][out.chosen.d - 2]++;
        assert_int_equal(out.reason, BT_REASON_BASELINE);
    }
    assert_int_equal(p_count[0], 50);
    assert_int_equal(d_count[2], 50);
    /* within one life, not only over seeds: nothing locks in */
    for (int i = 0; i < 4; i++)
        assert_in_range(pairs[i / 2][i % 2], 10, 40);
}

static void round_robin_offsets_differ(void **state)
{
    unsigned int pairs[2][2] = {{0}};
    struct world w;

    (void)state;
    world_init(&w);
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct bt_placement out = place_with("round_robin", &w.view, seed);

        pairs[out.chosen.p][out.chosen.d - 2]++;
    }
    for (int i = 0; i < 4; i++)
        assert_in_range(pairs[i / 2][i % 2], 60, 140);
}

static void least_loaded_counts_tokens(void **state)
{
    struct world w;
    struct bt_placement out;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_tokens = 10;
    w.workers[1].prefill_tokens = 9;
    w.workers[0].overlap_tokens = 8192; /* not looked at */
    w.workers[2].decode_tokens = 5;
    w.workers[3].decode_tokens = 6;
    out = place_with("least_loaded", &w.view, 1);
    assert_pair(&out.chosen, 1, 2);
    assert_pair(&out.baseline, 0, 2);
    assert_int_equal(out.reason, BT_REASON_BASELINE);
}

/* Overlap minus load in one unit: 2,048 cached tokens are worth about 76 ms. */
static void prefix_load_weighs_queue(void **state)
{
    struct world w;
    struct bt_placement out;
    int64_t saved;

    (void)state;
    world_init(&w);
    saved = bt_prefill_ns(&w.model, 12000, 0) -
            bt_prefill_ns(&w.model, 12000 - 2048, 2048);
    w.workers[1].overlap_tokens = 2048;
    w.workers[1].prefill_free_ns = saved - 1;
    out = place_with("prefix_load", &w.view, 1);
    assert_int_equal(out.chosen.p, 1);
    w.workers[1].prefill_free_ns = saved + 1;
    out = place_with("prefix_load", &w.view, 1);
    assert_int_equal(out.chosen.p, 0);
}

static void table_of_policies(void **state)
{
    size_t count = 0;

    (void)state;
    while (bt_policy_at(count) != NULL)
        count++;
    assert_true(count >= OURS);
    assert_null(bt_policy_at(count + 1));
    for (size_t i = 0; i < count; i++)
        assert_ptr_equal(bt_policy_find(bt_policy_at(i)->name),
                         bt_policy_at(i));
    for (size_t i = 0; i < OURS; i++)
        assert_non_null(bt_policy_find(ours[i]));
    assert_null(bt_policy_find("jointly"));
    assert_string_equal(bt_reason_name(BT_REASON_GUARD), "guard_load_prefix");
    assert_string_equal(bt_reason_name(BT_REASON_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w9_terms),
        cmocka_unit_test(w9_choice),
        cmocka_unit_test(table_is_ordered),
        cmocka_unit_test(w2_bytes),
        cmocka_unit_test(flows_share_the_link),
        cmocka_unit_test(overlap_is_capped),
        cmocka_unit_test(guard),
        cmocka_unit_test(flat_idle_ties),
        cmocka_unit_test(no_prefill_pool),
        cmocka_unit_test(local_prefill),
        cmocka_unit_test(only_one),
        cmocka_unit_test(infeasible_never_wins),
        cmocka_unit_test(round_robin_turns),
        cmocka_unit_test(round_robin_offsets_differ),
        cmocka_unit_test(least_loaded_counts_tokens),
        cmocka_unit_test(prefix_load_weighs_queue),
        cmocka_unit_test(table_of_policies),
    };

    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
