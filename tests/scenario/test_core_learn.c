/* What the core learns from answers, in a world whose true times are known and
 * differ from the configured ones: prefill, decode step, link rates, set-up,
 * output length; that it converges within 200 observations, that garbage does
 * not move it, and which observations it leaves out. */
#include "test_core_world.h"

#include "baton/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXPECT(call, text) assert_string_equal(call, text)
#define MS                 1000000LL
#define GB                 1000000000ULL

/* The pair the test wants; what the policy saw. */
static struct {
    uint32_t p, d, source;
    uint32_t output_tokens;
    double prefill_error;
    int64_t prefill_ns;
} plan;

static enum bt_status place_planned(struct bt_policy_state *state,
                                    const struct bt_place_view *view,
                                    struct bt_placement *out)
{
    const struct bt_place_candidate none = {.p = BT_PLACE_NONE,
                                            .d = BT_PLACE_NONE};

    (void)state;
    *out = (struct bt_placement){.second = none,
                                 .baseline = none,
                                 .considered = 1,
                                 .reason = BT_REASON_JOINT};
    out->chosen = (struct bt_place_candidate){.p = plan.p, .d = plan.d};
    bt_place_terms(view, plan.p, plan.d, &out->chosen.terms);
    if (plan.source != BT_PLACE_NONE) {
        out->chosen.source =
            (struct bt_place_source){.tokens = 16, .worker = plan.source};
        out->chosen.terms.fetch_ns = 50 * MS;
    }
    plan.output_tokens = view->output_tokens;
    plan.prefill_error = view->workers[plan.p].prefill_error;
    plan.prefill_ns = out->chosen.terms.prefill_ns;
    return BT_OK;
}

static const struct bt_policy planned = {
    .name = "planned", .summary = "for tests", .place = place_planned};

static void init(struct world *w)
{
    plan.p = 0;
    plan.d = 2;
    plan.source = BT_PLACE_NONE;
    world_init(w);
    w->config.policy = &planned;
    w->config.calibrate = true;
    w->config.prefill_timeout_ns = w->config.handoff_timeout_ns = 0;
    w->config.lease_ns = 0;
    w->config.lease_margin_ns = 0;
}

/* True times: prefill 5 ms + 0.2 ms a token, preset 1 ms + 0.1. */
static int64_t true_prefill_ms(uint32_t new_tokens)
{
    return 5 + new_tokens / 5;
}

static const char *send(struct world *w, uint64_t cookie, uint32_t tokens)
{
    struct bt_ev_request ask = world_ask(cookie);

    ask.prompt_tokens = tokens;
    w->finished[cookie] = 0; /* cookies come again */
    return world_send(w, &ask);
}

static void finish(struct world *w, uint64_t cookie)
{
    (void)world_done(w, cookie, 2);
    assert_int_equal(w->finished[cookie], 1);
}

/* One request alone: prefill of ms, then the rest at once. */
static void serve(struct world *w, uint32_t tokens, uint32_t cached, int64_t ms)
{
    EXPECT(send(w, 1, tokens), "A1 P1#1@0");
    w->now_ms += ms;
    EXPECT(world_answered(w, 1, 1, tokens, cached), "D1#2@2+kv");
    finish(w, 1);
}

static double model_prefill_ms(const struct world *w, uint32_t n, uint32_t h)
{
    struct bt_compute_model model;
    double sigma;

    assert_int_equal(bt_core_worker_model(w->core, 0, &model, &sigma), BT_OK);
    return (double)bt_prefill_ns(&model, n, h) / 1e6;
}

static void assert_near(double value, double expected, double part)
{
    if (fabs(value - expected) > part * expected)
        fail_msg("%g is not within %g of %g", value, part, expected);
}

static uint32_t some_tokens(struct bt_rng *rng)
{
    return 100 + 5 * (uint32_t)bt_rng_below(rng, 400);
}

static void test_prefill_converges(void **state)
{
    struct bt_rng rng;
    struct world w;

    (void)state;
    init(&w);
    world_start(&w);
    bt_rng_seed(&rng, 20261129);
    assert_near(model_prefill_ms(&w, 1000, 0), 101, 1e-6);
    for (int i = 0; i < 200; i++) {
        uint32_t tokens = some_tokens(&rng);

        serve(&w, tokens, 0, true_prefill_ms(tokens));
    }
    assert_int_equal(world_info(&w, 0).prefill_samples, 200);
    assert_near(model_prefill_ms(&w, 1000, 0), 205, 0.02);
    assert_near(model_prefill_ms(&w, 200, 0), 45, 0.02);
    assert_near((double)plan.prefill_ns / 1e6,
                (double)w.decisions[1].prompt_tokens / 5 + 5, 0.03);
    assert_true(plan.prefill_error > 0 && plan.prefill_error < 0.2);
    /* nobody else has learned from it */
    assert_int_equal(world_info(&w, 1).prefill_samples, 0);
    world_fini(&w);
}

/* Two at a time: the second one's service starts when the first one ends. And
 * what the engine found cached is not new, whatever was predicted. */
static void test_prefill_of_a_queue(void **state)
{
    struct bt_rng rng;
    struct world w;

    (void)state;
    init(&w);
    world_start(&w);
    bt_rng_seed(&rng, 7);
    for (int i = 0; i < 100; i++) {
        uint32_t a = some_tokens(&rng), b = some_tokens(&rng);

        EXPECT(send(&w, 1, a), "A1 P1#1@0");
        w.now_ms += 3;
        EXPECT(send(&w, 2, b + 1000), "A2 P2#1@0");
        w.now_ms += true_prefill_ms(a) - 3;
        EXPECT(world_answered(&w, 1, 1, a, 0), "D1#2@2+kv");
        w.now_ms += true_prefill_ms(b);
        EXPECT(world_answered(&w, 2, 1, b + 1000, 1000), "D2#2@2+kv");
        finish(&w, 1);
        EXPECT(world_done(&w, 2, 2), "F2:ok/200");
    }
    assert_int_equal(world_info(&w, 0).prefill_samples, 200);
    assert_near(model_prefill_ms(&w, 1000, 0), 205, 0.03);
    assert_near(model_prefill_ms(&w, 200, 1000), 45, 0.05);
    world_fini(&w);
}

/* Every fourth answer comes absurdly late or at once. */
static void test_garbage_does_not_move_it(void **state)
{
    struct bt_rng rng;
    struct world w;

    (void)state;
    init(&w);
    world_start(&w);
    bt_rng_seed(&rng, 99);
    for (int i = 0; i < 400; i++) {
        uint32_t tokens = some_tokens(&rng);
        int64_t ms = true_prefill_ms(tokens);

        if (i % 4 == 3)
            ms = i % 8 == 3 ? 0 : ms * 1000;
        serve(&w, tokens, i % 16 == 2 ? UINT32_MAX : 0, ms);
    }
    assert_near(model_prefill_ms(&w, 1000, 0), 205, 0.1);
    world_fini(&w);
}

static void test_unclean_prefills_are_left_out(void **state)
{
    struct world w;

    (void)state;
    init(&w);
    w.workers[0].fetch_ok = true;
    world_start(&w);
    /* something was cut short before it in the queue */
    EXPECT(send(&w, 1, 500), "A1 P1#1@0");
    EXPECT(send(&w, 2, 500), "A2 P2#1@0");
    w.now_ms += 50;
    EXPECT(world_gone(&w, 1), "X1#1@0 F1:cancelled/499");
    w.now_ms += 105;
    EXPECT(world_answered(&w, 2, 1, 500, 0), "D2#2@2+kv");
    EXPECT(world_done(&w, 2, 2), "F2:ok/200");
    assert_int_equal(world_info(&w, 0).prefill_samples, 0);
    /* it overtook another one */
    EXPECT(send(&w, 1, 500), "A1 P1#1@0");
    w.now_ms += 1;
    EXPECT(send(&w, 3, 500), "A3 P3#1@0");
    w.now_ms += 105;
    EXPECT(world_answered(&w, 3, 1, 500, 0), "D3#2@2+kv");
    assert_int_equal(world_info(&w, 0).prefill_samples, 0);
    EXPECT(world_gone(&w, 1), "X1#1@0 F1:cancelled/499");
    EXPECT(world_done(&w, 3, 2), "F3:ok/200");
    /* a fetch that no queue hid */
    w.now_ms += 1;
    plan.source = 1;
    EXPECT(send(&w, 4, 500), "A4 P4#1@0<1:16");
    w.now_ms += 155;
    EXPECT(world_answered(&w, 4, 1, 500, 16), "D4#2@2+kv");
    assert_int_equal(world_info(&w, 0).prefill_samples, 0);
    EXPECT(world_done(&w, 4, 2), "F4:ok/200");
    /* and one that is fine */
    plan.source = BT_PLACE_NONE;
    w.now_ms += 1;
    serve(&w, 500, 0, 105);
    assert_int_equal(world_info(&w, 0).prefill_samples, 1);
    world_fini(&w);
}

/* A step of 16 ms + 1/8 ms a request; the preset says 10 ms + 1/10. Batches of
 * 8, 16 ... 48. */
static void test_decode_converges(void **state)
{
    struct bt_compute_model model;
    struct bt_rng rng;
    struct world w;
    double sigma;

    (void)state;
    init(&w);
    w.workers[2].compute.decode_b_ms = 0.1;
    world_start(&w);
    bt_rng_seed(&rng, 3);
    for (int i = 0; i < 40; i++) {
        uint32_t batch = 8 + 8 * (uint32_t)bt_rng_below(&rng, 6);

        for (uint64_t c = 1; c <= batch; c++) {
            (void)send(&w, c, 100);
            (void)world_answered(&w, c, 1, 100, 0);
            EXPECT(world_first(&w, c, 2), "");
        }
        w.now_ms += 16 + batch / 8;
        for (uint64_t c = 1; c <= batch; c++)
            EXPECT(world_tokens(&w, c, 2, 2), "");
        for (uint64_t c = 1; c <= batch; c++)
            (void)world_done(&w, c, 2);
        w.now_ms += 100;
    }
    assert_true(world_info(&w, 2).decode_samples > 50);
    assert_int_equal(bt_core_worker_model(w.core, 2, &model, &sigma), BT_OK);
    for (uint32_t batch = 8; batch <= 48; batch += 8)
        assert_near((double)bt_decode_step_ns(&model, batch, batch * 110) / 1e6,
                    16 + batch / 8.0, 0.02);
    /* several tokens at once tell nothing of a step */
    w.now_ms += 1;
    {
        uint64_t before = world_info(&w, 2).decode_samples;

        (void)send(&w, 1, 100);
        (void)world_answered(&w, 1, 1, 100, 0);
        EXPECT(world_first(&w, 1, 2), "");
        w.now_ms += 60;
        EXPECT(world_tokens(&w, 1, 2, 4), "");
        assert_int_equal(world_info(&w, 2).decode_samples, before);
    }
    world_fini(&w);
}

/* ---- links ---- */

struct fabric {
    struct bt_topology_node nodes[WORLD_WORKERS];
    struct bt_topology_worker workers[WORLD_WORKERS];
    void *memory;
    struct bt_topology *topology;
};

static void fabric_make_at(struct fabric *f, uint64_t rate)
{
    struct bt_topology_spec spec = {.nodes = f->nodes,
                                    .node_count = 4,
                                    .workers = f->workers,
                                    .worker_count = 4};
    struct bt_arena arena;
    size_t bytes;

    memset(f, 0, sizeof(*f));
    for (uint32_t i = 0; i < 4; i++) {
        f->nodes[i] = (struct bt_topology_node){.name = "node",
                                                .rack = BT_LINK_NONE,
                                                .rails = 1,
                                                .rail_bytes_per_s = rate};
        f->workers[i] = (struct bt_topology_worker){.node = i};
    }
    bytes = bt_topology_bytes(&spec);
    f->memory = calloc(1, bytes);
    assert_non_null(f->memory);
    bt_arena_init(&arena, f->memory, bytes);
    f->topology = bt_topology_init(&arena, &spec);
    assert_non_null(f->topology);
}

static void fabric_make(struct fabric *f)
{
    fabric_make_at(f, GB);
}

/* A token is 100 kB; after the transfer comes a step of 10 ms. */
static void transfer_of(struct world *w, uint32_t d, uint32_t tokens,
                        int64_t ms)
{
    plan.d = d;
    (void)send(w, 1, tokens);
    w->now_ms += true_prefill_ms(tokens);
    (void)world_answered(w, 1, 1, tokens, 0);
    assert_int_equal(w->items[0].type, BT_FX_SEND_DECODE);
    w->now_ms += ms + 10;
    EXPECT(world_first(w, 1, 2), "");
    (void)world_done(w, 1, 2);
    w->now_ms += 10;
}

/* 1,008 tokens are 100.8 MB: 101 ms at 1 GB/s. */
static void transfer(struct world *w, uint32_t p, uint32_t d, int64_t ms)
{
    plan.p = p;
    transfer_of(w, d, 1008, ms);
}

static double rate_in(const struct world *w, const struct fabric *f, uint32_t i)
{
    return (double)bt_network_rate(bt_core_network(w->core),
                                   bt_topology_nic_in(f->topology, i));
}

/* Worker 3 gets a quarter of what the topology says: only its own NIC is blamed
 * for it, and the estimates of the transfers to it follow. */
static void test_slow_link_is_found(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w);
    fabric_make(&f);
    w.config.topology = f.topology;
    world_start(&w);
    for (int i = 0; i < 40; i++) {
        transfer(&w, (uint32_t)i % 2, 2, 101);
        transfer(&w, (uint32_t)i % 2, 3, 404);
    }
    assert_near(rate_in(&w, &f, 3), 0.25 * GB, 0.05);
    assert_near(rate_in(&w, &f, 2), GB, 0.06);
    for (uint32_t p = 0; p < 2; p++)
        assert_near((double)bt_network_rate(bt_core_network(w.core),
                                            bt_topology_nic_out(f.topology, p)),
                    GB, 0.06);
    transfer(&w, 0, 3, 404);
    assert_near((double)w.decisions[1].placement.chosen.terms.transfer_ns,
                404 * MS, 0.06);
    world_fini(&w);
    free(f.memory);
}

/* Links of 100 MB/s, 20 transfers to each of two workers: the way to worker 3
 * turns out to be a quarter of that. */
static void learn_slow_link(struct world *w, struct fabric *f)
{
    init(w);
    fabric_make_at(f, GB / 10);
    w->config.topology = f->topology;
    world_start(w);
    for (int i = 0; i < 20; i++) {
        plan.p = (uint32_t)i % 2;
        transfer_of(w, 2, 160, 160);
        transfer_of(w, 3, 160, 640);
    }
    assert_near(rate_in(w, f, 3), 0.025 * GB, 0.05);
}

/* 16 MB are 160 ms, far more than setup, and count although they are few bytes.
 * A quarter of the rate is in force after 20 transfers. */
static void test_slow_link_of_a_slow_fabric(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    learn_slow_link(&w, &f);
    assert_near(rate_in(&w, &f, 2), 0.1 * GB, 0.06);
    world_fini(&w);
    free(f.memory);
}

/* Found slow, then nobody uses it: its rate doubles every ten seconds until it
 * is nominal, without a transfer. One more slow transfer, and the slow rate is
 * in force again; a fast one, and it is nominal for good. */
static void test_slow_link_gets_another_chance(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    learn_slow_link(&w, &f);
    for (int i = 0; i < 11; i++) {
        w.now_ms += 1000;
        transfer_of(&w, 2, 160, 160);
    }
    assert_near(rate_in(&w, &f, 3), 0.05 * GB, 0.05);
    for (int i = 0; i < 20; i++) {
        w.now_ms += 1000;
        transfer_of(&w, 2, 160, 160);
    }
    assert_near(rate_in(&w, &f, 3), 0.1 * GB, 0.05);
    transfer_of(&w, 3, 160, 640);
    assert_near(rate_in(&w, &f, 3), 0.025 * GB, 0.05);
    for (int i = 0; i < 20; i++) {
        w.now_ms += 1000;
        transfer_of(&w, 2, 160, 160);
    }
    transfer_of(&w, 3, 160, 160);
    for (int i = 0; i < 5; i++) {
        w.now_ms += 10000;
        transfer_of(&w, 2, 160, 160);
    }
    assert_near(rate_in(&w, &f, 3), 0.1 * GB, 0.06);
    assert_near(rate_in(&w, &f, 2), 0.1 * GB, 0.06);
    world_fini(&w);
    free(f.memory);
}

/* 1.6 MB at 200 MB/s are 8 ms: what else takes time would be taken for the
 * link. */
static void test_short_transfers_say_nothing(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w);
    fabric_make_at(&f, GB / 5);
    w.config.topology = f.topology;
    world_start(&w);
    plan.p = 0;
    for (int i = 0; i < 40; i++)
        transfer_of(&w, 3, 16, 70);
    assert_near(rate_in(&w, &f, 3), 0.2 * GB, 0.001);
    world_fini(&w);
    free(f.memory);
}

/* Of the class of all pairs. */
static double setup_ms(const struct world *w, const struct fabric *f)
{
    return (double)bt_network_setup(bt_core_network(w->core),
                                    bt_topology_class_of(f->topology, 0, 3)) /
           1e6;
}

/* 1.6 MB are 1.6 ms of a link of 1 GB/s; here each takes 30 beside that, which
 * nobody has configured. From the 16th on it is foreseen, by every pair of the
 * class. */
static void test_setup_is_learned(void **state)
{
    struct world w;
    struct fabric f;
    int64_t before, after;

    (void)state;
    init(&w);
    fabric_make(&f);
    w.config.topology = f.topology;
    world_start(&w);
    before = bt_network_transfer_ns(bt_core_network(w.core), 0, 0, 1, 2,
                                    10000000, 1);
    for (int i = 0; i < 15; i++)
        transfer_of(&w, 3, 16, 32);
    assert_true(setup_ms(&w, &f) == 0);
    transfer_of(&w, 3, 16, 32);
    assert_near(setup_ms(&w, &f), 30.4, 0.01);
    after = bt_network_transfer_ns(bt_core_network(w.core), 0, 0, 1, 2,
                                   10000000, 1);
    assert_near((double)(after - before) / 1e6, 30.4, 0.01);
    world_fini(&w);
    free(f.memory);
}

/* Worker 3 at a quarter: 4.8 MB take 19.2 ms for 4.8, and 1.8 of set-up. Set-up
 * seems 16.2 ms, until long transfers tell of the link, which it is not in the
 * way of. */
static void test_a_slow_link_is_no_setup(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w);
    fabric_make(&f);
    w.config.topology = f.topology;
    world_start(&w);
    plan.p = 0;
    for (int i = 0; i < 20; i++)
        transfer_of(&w, 3, 48, 21);
    assert_near(setup_ms(&w, &f), 16.2, 0.02);
    assert_near(rate_in(&w, &f, 3), GB, 1e-9);
    for (int i = 0; i < 16; i++)
        transfer(&w, 0, 3, 404);
    assert_near(rate_in(&w, &f, 3), 0.25 * GB, 0.01);
    for (int i = 0; i < 16; i++)
        transfer_of(&w, 3, 48, 21);
    assert_near(setup_ms(&w, &f), 1.8, 0.05);
    world_fini(&w);
    free(f.memory);
}

/* From workers 0 and 1 into one NIC, forty times; each takes ms. */
static void two_at_once(struct world *w, uint32_t tokens, int64_t ms)
{
    for (int i = 0; i < 40; i++) {
        for (uint64_t c = 1; c <= 2; c++) {
            plan.p = (uint32_t)c - 1;
            (void)send(w, c, tokens);
        }
        w->now_ms += 102;
        for (uint64_t c = 1; c <= 2; c++)
            (void)world_answered(w, c, 1, tokens, 0);
        w->now_ms += ms + 10;
        for (uint64_t c = 1; c <= 2; c++)
            EXPECT(world_first(w, c, 2), "");
        for (uint64_t c = 1; c <= 2; c++)
            (void)world_done(w, c, 2);
    }
}

/* Two small ones at once: each waits for the other, neither tells of set-up. */
static void test_setup_beside_others_is_left_out(void **state)
{
    struct world w;
    struct fabric f;
    double before;

    (void)state;
    init(&w);
    fabric_make(&f);
    w.config.topology = f.topology;
    world_start(&w);
    before = setup_ms(&w, &f);
    two_at_once(&w, 32, 40);
    assert_true(setup_ms(&w, &f) == before);
    world_fini(&w);
    free(f.memory);
}

/* Two at once into one NIC at half the rate each: nobody is slow. */
static void test_own_traffic_is_no_slow_link(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w);
    fabric_make(&f);
    w.config.topology = f.topology;
    world_start(&w);
    two_at_once(&w, 1008, 202);
    assert_near(rate_in(&w, &f, 2), GB, 0.06);
    world_fini(&w);
    free(f.memory);
}

/* A transfer that waited for a slot, or that went out with the prefill, says
 * nothing of the link. */
static void test_unclean_transfers_are_left_out(void **state)
{
    struct world w;
    struct fabric f;

    (void)state;
    init(&w);
    fabric_make(&f);
    w.config.topology = f.topology;
    w.models[0].mode.overlap = BT_OVERLAP_LAYER;
    w.models[0].mode.pieces = 80;
    world_start(&w);
    for (int i = 0; i < 20; i++)
        transfer(&w, 0, 3, 404);
    assert_near(rate_in(&w, &f, 3), GB, 1e-9);
    world_fini(&w);
    init(&w);
    w.config.topology = f.topology;
    w.workers[3].decode_slots = 1;
    world_start(&w);
    plan.d = 3;
    (void)send(&w, 2, 100); /* takes the slot and keeps it */
    (void)world_answered(&w, 2, 1, 100, 0);
    for (int i = 0; i < 20; i++)
        transfer(&w, 0, 3, 404);
    assert_near(rate_in(&w, &f, 3), GB, 1e-9);
    world_fini(&w);
    free(f.memory);
}

/* ---- output ---- */

/* Configured 100; answers have 10 tokens: from the 50th on that is expected,
 * and no more than a request allows. */
static void test_output_length(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    init(&w);
    world_start(&w);
    ask.max_tokens = 1000;
    for (int i = 0; i < 60; i++) {
        w.finished[1] = 0;
        EXPECT(world_send(&w, &ask), "A1 P1#1@0");
        if (i < 50)
            assert_int_equal(plan.output_tokens, 100);
        else
            assert_in_range(plan.output_tokens, 9, 11);
        EXPECT(world_answered(&w, 1, 1, 100, 0), "D1#2@2+kv");
        finish(&w, 1);
    }
    w.finished[1] = 0;
    ask.max_tokens = 3;
    EXPECT(world_send(&w, &ask), "A1 P1#1@0");
    assert_int_equal(plan.output_tokens, 3);
    world_fini(&w);
}

/* Not asked to learn: the configured models stay. */
static void test_switched_off(void **state)
{
    struct world w;

    (void)state;
    init(&w);
    w.config.calibrate = false;
    world_start(&w);
    for (int i = 0; i < 60; i++)
        serve(&w, 500, 0, 105);
    assert_near(model_prefill_ms(&w, 1000, 0), 101, 1e-6);
    assert_int_equal(world_info(&w, 0).prefill_samples, 0);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill_converges),
        cmocka_unit_test(test_prefill_of_a_queue),
        cmocka_unit_test(test_garbage_does_not_move_it),
        cmocka_unit_test(test_unclean_prefills_are_left_out),
        cmocka_unit_test(test_decode_converges),
        cmocka_unit_test(test_slow_link_is_found),
        cmocka_unit_test(test_slow_link_of_a_slow_fabric),
        cmocka_unit_test(test_slow_link_gets_another_chance),
        cmocka_unit_test(test_short_transfers_say_nothing),
        cmocka_unit_test(test_setup_is_learned),
        cmocka_unit_test(test_a_slow_link_is_no_setup),
        cmocka_unit_test(test_setup_beside_others_is_left_out),
        cmocka_unit_test(test_own_traffic_is_no_slow_link),
        cmocka_unit_test(test_unclean_transfers_are_left_out),
        cmocka_unit_test(test_output_length),
        cmocka_unit_test(test_switched_off),
    };

    return cmocka_run_group_tests_name("core_learn", tests, NULL, NULL);
}
