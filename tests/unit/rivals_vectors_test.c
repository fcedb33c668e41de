/* The check vectors of baselines-and-evaluation.md section 4, one test each,
 * and for the rules without a vector an example worked by hand. A cost is not
 * visible from outside, so each number is pinned by what flips the choice just
 * below and just above it.
 */
#include "rivals_world.h"

/* ---- Dynamo ---- */

/* w0: raw 768, credit 256 + 0.75 * 64 = 304, cost 464. w1: 512 - its device
 * blocks. */
static void dynamo_world(struct world *w, uint32_t blocks_1)
{
    world_init(w);
    w->workers[0].prefill_tokens = 4096;
    w->workers[0].overlap_tokens = 256 * 16;
    w->workers[0].host_tokens = 320 * 16;
    w->workers[1].overlap_tokens = blocks_1 * 16;
}

static void dynamo_cost(void **state)
{
    struct world w;

    (void)state;
    dynamo_world(&w, 0);
    expect_p("dynamo", &w.view, 0);
    expect_p("dynamo_wspt", &w.view, 0);
    dynamo_world(&w, 47); /* 465 */
    expect_p("dynamo", &w.view, 0);
    dynamo_world(&w, 49); /* 463 */
    expect_p("dynamo", &w.view, 1);
    /* credits by tier: 768 - 256 - 64 * 0.5 = 480 = 512 - 32 */
    dynamo_world(&w, 31);
    expect_p("dynamo:host_w=0.5", &w.view, 0);
    dynamo_world(&w, 33);
    expect_p("dynamo:host_w=0.5", &w.view, 1);
    /* disk beyond host, another 64 blocks at 0.25: 448 = 512 - 64 */
    dynamo_world(&w, 63);
    w.workers[0].disk_tokens = 384 * 16;
    expect_p("dynamo", &w.view, 0);
    w.workers[1].overlap_tokens = 65 * 16;
    expect_p("dynamo", &w.view, 1);
}

/* x = 0.5, decay 0.666667, w0 549.333. */
static void dynamo_decay(void **state)
{
    const char *exact = "dynamo:credit_decay=1,request_w=0.0001";
    struct world w;

    (void)state;
    dynamo_world(&w, 0);
    expect_p("dynamo:credit_decay=1", &w.view, 1);
    w.workers[1].prefill_requests = 3733; /* 549.33 */
    expect_p("dynamo:credit_decay=1,request_w=0.01", &w.view, 1);
    w.workers[1].prefill_requests = 3734; /* 549.34 */
    expect_p("dynamo:credit_decay=1,request_w=0.01", &w.view, 0);
    w.workers[1].prefill_requests = 373333; /* 549.3333 */
    expect_p(exact, &w.view, 1);
    w.workers[1].prefill_requests = 373334; /* 549.3334 */
    expect_p(exact, &w.view, 0);
}

/* A preferred weight of 0.85 multiplies the cost by 0.501040. */
static void dynamo_taint(void **state)
{
    static const uint32_t own[WORKERS] = {0, 1, 2, 3};
    static const uint32_t racks[WORKERS] = {0, 0, 0, 1};
    static const uint32_t pods[WORKERS] = {0, 0, 0, 0};
    const char *spec = "dynamo:taint=0.85";
    struct fabric f;
    struct world w;

    (void)state;
    world_init(&w);
    fabric_init(&f, &w, own, racks, pods, 12500000000);
    w.workers[1].prefill_ok = false;
    /* a million blocks in p's rack count as 501,040 */
    w.workers[2].decode_tokens = 16000000 - 8192;
    w.workers[3].decode_tokens = 501039 * 16 - 8192;
    expect_d(spec, &w.view, 3);
    w.workers[3].decode_tokens = 501041 * 16 - 8192;
    expect_d(spec, &w.view, 2);
    fabric_fini(&f);
}

/* Decode: least potential blocks, blind to what d holds. */
static void dynamo_decode_pick(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].decode_tokens = 1000;
    w.workers[2].overlap_tokens = 8192;
    w.workers[3].decode_tokens = 999;
    expect_d("dynamo", &w.view, 3);
}

static enum bt_status ask(const char *spec, const struct bt_place_view *view)
{
    struct bt_placement out;
    struct rule r;
    enum bt_status s;

    rule_init(&r, spec, 1);
    s = r.policy->place(&r.state, view, &out);
    rule_fini(&r);
    return s;
}

/* Parked while every eligible worker is above threshold * batch tokens. */
static void dynamo_queue(void **state)
{
    const char *spec = "dynamo:queue_threshold=4";
    struct world w;

    (void)state;
    world_init(&w);
    w.view.may_hold = true;
    w.workers[0].batch_tokens = 1000;
    w.workers[1].batch_tokens = 2000;
    w.workers[0].prefill_tokens = 4001;
    w.workers[1].prefill_tokens = 8001;
    assert_int_equal(ask(spec, &w.view), BT_AGAIN);
    w.workers[1].prefill_tokens = 8000;
    assert_int_equal(ask(spec, &w.view), BT_OK);
    w.workers[1].prefill_tokens = 8001;
    w.view.may_hold = false;
    assert_int_equal(ask(spec, &w.view), BT_OK);
    w.view.may_hold = true;
    assert_int_equal(ask("dynamo", &w.view), BT_OK); /* unset */
    w.workers[1].prefill_ok = false; /* not eligible: does not count */
    w.workers[1].prefill_tokens = 0;
    assert_int_equal(ask(spec, &w.view), BT_AGAIN);
    assert_int_equal(bt_policy_find("dynamo")->order_rule, BT_ORDER_FCFS);
    assert_int_equal(bt_policy_find("dynamo_wspt")->order_rule, BT_ORDER_WSPT);
}

/* Two workers at both ends of the costs: odds 1 : exp(-1 / T). */
static void dynamo_temperature(void **state)
{
    struct bt_placement out;
    unsigned int near = 0;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.workers[1].prefill_tokens = 1600;
    rule_init(&r, "dynamo:temperature=0.5", 77);
    for (int i = 0; i < 4000; i++) {
        assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
        near += out.chosen.p == 0;
    }
    /* 1 / (1 + e^-2) = 0.880797: 3523, sd 20.5 */
    assert_in_range(near, 3523 - 103, 3523 + 103);
    rule_fini(&r);
}

/* ---- LMetric ---- */

/* 4,096 * 12 = 49,152 against 8,192 * 5 = 40,960. */
static void lmetric_product(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 4096;
    w.workers[0].prefill_requests = 11; /* and this one */
    w.workers[1].prefill_requests = 4;
    w.workers[1].prefill_tokens = 4096;
    expect_p("lmetric", &w.view, 1);
    w.workers[1].prefill_tokens = 9830 - 4096; /* 49,150 */
    expect_p("lmetric", &w.view, 1);
    w.workers[1].prefill_tokens = 9831 - 4096; /* 49,155 */
    expect_p("lmetric", &w.view, 0);
    w.workers[1].overlap_tokens = 2; /* 49,145: cached ones do not count */
    expect_p("lmetric", &w.view, 1);
}

/* prefill blocks * (decode blocks + 1): 256 * 11 = 2,816; 352 * 8 = 2,816. */
static void lmetric_adjusted(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 4096;
    w.workers[0].decode_tokens = 10 * 16;
    w.workers[1].decode_tokens = 7 * 16;
    w.workers[1].prefill_tokens = 351 * 16 - 4096;
    expect_p("lmetric:adjusted=1", &w.view, 1);
    w.workers[1].prefill_tokens = 353 * 16 - 4096;
    expect_p("lmetric:adjusted=1", &w.view, 0);
}

/* ---- two-tier, SGLang ---- */

static void two_tier(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 160;
    world_overlap(&w, 0, 160);
    world_requests(&w, 10, 43);
    expect_pair("two_tier", &w.view, 0, 2); /* 33 > 32, 43 > 11 */
    world_requests(&w, 10, 42);
    expect_pair("two_tier", &w.view, 1, 3); /* 32 is not > 32 */
    world_overlap(&w, 0, 80);
    world_requests(&w, 0, 4);
    expect_pair("two_tier", &w.view, 0, 2); /* 0.5 is not > 0.5 */
    world_overlap(&w, 0, 96);
    expect_pair("two_tier", &w.view, 1, 3);
    world_requests(&w, 400, 440); /* 40 > 32, but 440 is not > 440 */
    expect_pair("two_tier", &w.view, 1, 3);
    world_requests(&w, 400, 441);
    expect_pair("two_tier", &w.view, 0, 2);
    world_overlap(&w, 96, 96); /* best overlap twice: the less loaded */
    world_requests(&w, 3, 2);
    expect_pair("two_tier", &w.view, 1, 3);
}

#define SGLANG_CLI "sglang:threshold=0.3,abs=64,rel=1.5"

static void sglang_true_cache(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 1600;
    world_overlap(&w, 640, 0); /* 0.4 */
    world_requests(&w, 40, 5);
    expect_pair("sglang", &w.view, 1, 3);
    expect_pair(SGLANG_CLI, &w.view, 0, 2);
    world_overlap(&w, 480, 0); /* 0.3 is not > 0.3 */
    expect_pair(SGLANG_CLI, &w.view, 1, 3);
    world_overlap(&w, 1600, 0);
    world_requests(&w, 440, 400); /* 40 > 32, but 440 is not > 440 */
    expect_pair("sglang", &w.view, 0, 2);
    world_requests(&w, 441, 400);
    expect_pair("sglang", &w.view, 1, 3);
}

static void run(struct rule *r, const struct bt_place_view *view,
                struct bt_placement *out)
{
    assert_int_equal(r->policy->place(&r->state, view, out), BT_OK);
    if (r->policy->placed != NULL)
        r->policy->placed(&r->state, view, out);
}

/* It goes by what it sent where, not by what is cached. */
static void sglang_own_history(void **state)
{
    static const uint64_t a[] = {11, 12, 13, 14}, b[] = {11, 12, 93, 94},
                          c[] = {11, 99, 93, 94};
    struct bt_placement first, next;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 64;
    w.view.keys = a;
    w.view.key_count = 4;
    rule_init(&r, "sglang:own_history=1,threshold=0.5", 5);
    run(&r, &w.view, &first);
    world_requests(&w, first.chosen.p == 0 ? 9 : 0,
                   first.chosen.p == 0 ? 0 : 9);
    world_overlap(&w, first.chosen.p == 0 ? 0 : 64,
                  first.chosen.p == 0 ? 64 : 0);
    w.workers[2].decode_requests = w.workers[3].decode_requests = 3;
    run(&r, &w.view, &next);
    assert_int_equal(next.chosen.p, first.chosen.p);
    assert_int_equal(next.chosen.d, first.chosen.d);
    w.view.keys = b; /* two of four: not above a half */
    run(&r, &w.view, &next);
    assert_int_not_equal(next.chosen.p, first.chosen.p);
    w.view.keys = c; /* the other took 93 94: three of four, not in a row */
    world_requests(&w, first.chosen.p == 0 ? 0 : 9,
                   first.chosen.p == 0 ? 9 : 0);
    run(&r, &w.view, &next);
    assert_int_equal(next.chosen.p, first.chosen.p);
    world_requests(&w, first.chosen.p == 0 ? 9 : 0,
                   first.chosen.p == 0 ? 0 : 9);
    /* a worker that came back under another generation holds nothing */
    w.view.keys = a;
    w.workers[first.chosen.p].id = bt_worker_id_make(first.chosen.p, 2);
    run(&r, &w.view, &next);
    assert_int_not_equal(next.chosen.p, first.chosen.p);
    rule_fini(&r);
}

/* A match is what comes in a row from the first block on. */
static void sglang_matches_prefixes(void **state)
{
    static const uint64_t a[] = {11, 12}, b[] = {11, 77, 13, 14},
                          q[] = {11, 12, 13, 14};
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 64;
    rule_init(&r, "sglang:own_history=1,threshold=0.5", 5);
    w.view.keys = a;
    w.view.key_count = 2;
    world_requests(&w, 0, 1);
    run(&r, &w.view, &out);
    assert_int_equal(out.chosen.p, 0);
    w.view.keys = b;
    w.view.key_count = 4;
    world_requests(&w, 1, 0);
    run(&r, &w.view, &out);
    assert_int_equal(out.chosen.p, 1);
    w.view.keys = q; /* p0 has two of four, p1 one */
    world_requests(&w, 0, 1);
    run(&r, &w.view, &out);
    assert_int_equal(out.chosen.p, 0);
    rule_fini(&r);
}

/* Its memory is bounded: what was not used for long is forgotten, the rest is
 * not. */
static void sglang_history_is_bounded(void **state)
{
    static uint64_t keys[100];
    struct bt_placement out;
    uint32_t home[2];
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 1600;
    w.view.keys = keys;
    w.view.key_count = 100;
    rule_init(&r, "sglang:own_history=1", 5);
    for (uint64_t prompt = 0; prompt < 1400; prompt++) {
        for (uint64_t i = 0; i < 100; i++)
            keys[i] = 1000000 + prompt * 100 + i;
        world_requests(&w, prompt % 2 ? 1 : 0, prompt % 2 ? 0 : 1);
        run(&r, &w.view, &out);
        home[prompt % 2] = out.chosen.p;
    }
    assert_int_equal(home[0], 0);
    assert_int_equal(home[1], 1);
    /* the last one, p1's, though p0 has less to do now */
    world_requests(&w, 0, 1);
    run(&r, &w.view, &out);
    assert_int_equal(out.chosen.p, 1);
    /* prompt 1299, p1's too, 10,000 keys ago: every way of a set is used */
    for (uint64_t i = 0; i < 100; i++)
        keys[i] = 1000000 + 129900 + i;
    run(&r, &w.view, &out);
    assert_int_equal(out.chosen.p, 1);
    /* prompt 1, p1's too, 140,000 keys ago */
    for (uint64_t i = 0; i < 100; i++)
        keys[i] = 1000000 + 100 + i;
    run(&r, &w.view, &out);
    assert_int_equal(out.chosen.p, 0);
    rule_fini(&r);
}

/* Of each block the last eight holders are known: here lives of worker 0. */
static void sglang_keeps_eight_holders(void **state)
{
    static const uint64_t keys[] = {11, 12};
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 32;
    w.view.keys = keys;
    w.view.key_count = 2;
    w.workers[1].prefill_ok = false;
    rule_init(&r, "sglang:own_history=1", 5);
    for (uint32_t life = 1; life <= 20; life++) {
        w.workers[0].id = bt_worker_id_make(0, life);
        run(&r, &w.view, &out);
    }
    w.workers[1].prefill_ok = true;
    world_requests(&w, 1, 0);
    w.workers[0].id = bt_worker_id_make(0, 13);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 0);
    w.workers[0].id = bt_worker_id_make(0, 12);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
    rule_fini(&r);
}

/* ---- Mooncake ---- */

static void mooncake_world(struct world *w, double queue_0)
{
    world_init(w);
    bt_compute_preset("a100-70b-tp8", &w->model);
    w->view.prompt_tokens = 12035;
    w->workers[0].overlap_tokens = 10240;
    w->workers[0].prefill_free_ns = w->view.now_ns + S(queue_0);
    w->workers[1].prefill_free_ns = w->view.now_ns + S(0.1);
}

static void mooncake_local(void **state)
{
    struct bt_placement out;
    struct bt_place_terms t;
    struct world w;

    (void)state;
    mooncake_world(&w, 1.2);
    out = expect_p("mooncake", &w.view, 1);
    assert_near_s(out.chosen.terms.queue_ns + out.chosen.terms.prefill_ns,
                  1.36477);
    bt_place_terms(&w.view, 0, 2, &t);
    assert_near_s(t.queue_ns + t.prefill_ns, 1.41701);
    mooncake_world(&w, 1.14770); /* 0.05224 less is a tie */
    expect_p("mooncake", &w.view, 0);
    mooncake_world(&w, 1.14782);
    expect_p("mooncake", &w.view, 1);
}

static void mooncake_fetch(void **state)
{
    const struct bt_place_terms *t;
    struct bt_placement out;
    struct world w;

    (void)state;
    mooncake_world(&w, 1.2);
    w.workers[1].fetch_ok = true;
    *world_link(&w, 0, 1) = (struct bt_link_model){20000000000, MS(2), 0};
    out = expect_p("mooncake_fetch", &w.view, 1);
    t = &out.chosen.terms;
    assert_int_equal(out.reason, BT_REASON_FETCH);
    assert_int_equal(out.chosen.source.tokens, 10240);
    assert_int_equal(out.chosen.source.worker, 0);
    assert_int_equal(t->fetch_bytes, 10240ULL * 327680);
    assert_near_s(t->fetch_ns + t->queue_ns + t->prefill_ns, 0.486787);
    /* booked as it runs: beside the queue */
    assert_near_s(t->arrival_ns - t->transfer_ns, 0.386787);
    /* the choice goes by the serial sum: w0 has 0.217010 + its queue */
    mooncake_world(&w, 0.26977);
    w.workers[1].fetch_ok = true;
    out = expect_p("mooncake_fetch", &w.view, 0);
    assert_int_equal(out.chosen.source.tokens, 0);
    mooncake_world(&w, 0.26979);
    w.workers[1].fetch_ok = true;
    *world_link(&w, 0, 1) = (struct bt_link_model){20000000000, MS(2), 0};
    expect_p("mooncake_fetch", &w.view, 1);
    /* without the means to pull it is the local rule */
    w.workers[1].fetch_ok = false;
    expect_p("mooncake_fetch", &w.view, 0);
}

/* theta 2: 10,240 is twice 5,120 and not more. */
static void mooncake_theta(void **state)
{
    struct bt_placement out;
    struct world w;

    (void)state;
    mooncake_world(&w, 100);
    w.workers[1].fetch_ok = true;
    *world_link(&w, 0, 1) = (struct bt_link_model){20000000000, MS(2), 0};
    w.workers[1].overlap_tokens = 5120;
    out = expect_p("mooncake_fetch:theta=2", &w.view, 1);
    assert_int_equal(out.chosen.source.tokens, 0);
    w.workers[1].overlap_tokens = 5104;
    out = expect_p("mooncake_fetch:theta=2", &w.view, 1);
    assert_int_equal(out.chosen.source.tokens, 10240);
}

/* A TTFT above its limit is refused, if the caller understands that. */
static void mooncake_refuses(void **state)
{
    struct world w;

    (void)state;
    mooncake_world(&w, 1.2);
    w.view.may_hold = true;
    assert_int_equal(ask("mooncake:ttft_max_s=1.36", &w.view), BT_OVERLOADED);
    assert_int_equal(ask("mooncake:ttft_max_s=1.37", &w.view), BT_OK);
    assert_int_equal(ask("mooncake:tbt_max_ms=10", &w.view), BT_OVERLOADED);
    w.view.may_hold = false;
    assert_int_equal(ask("mooncake:ttft_max_s=1.36", &w.view), BT_OK);
}

/* ---- llm-d ---- */

/* p0: match 0.8, queue 6, same pod as d2. p1: 0.2, 2, d2's host. */
static void llmd_world(struct world *w, struct fabric *f)
{
    static const uint32_t nodes[WORKERS] = {0, 2, 2, 3};
    static const uint32_t racks[WORKERS] = {0, 1, 1, 2};
    static const uint32_t pods[WORKERS] = {0, 0, 0, 0};

    world_init(w);
    w->view.prompt_tokens = 160;
    w->workers[0].overlap_tokens = 128;
    w->workers[1].overlap_tokens = 32;
    w->workers[0].prefill_requests = 6;
    w->workers[1].prefill_requests = 2;
    w->workers[3].decode_ok = false;
    fabric_init(f, w, nodes, racks, pods, 12500000000);
}

/* 1.65 against 2.40. Without topology_w 1.6 + 0.05 t = 1.4 + t at 0.210526. */
static void llmd_scores(void **state)
{
    struct fabric f;
    struct world w;

    (void)state;
    llmd_world(&w, &f);
    expect_p("llmd", &w.view, 1);
    expect_p("llmd:topology_w=0", &w.view, 0);
    expect_p("llmd:topology_w=0.2105", &w.view, 0);
    expect_p("llmd:topology_w=0.2106", &w.view, 1);
    w.view.network = NULL; /* no labels */
    expect_p("llmd", &w.view, 0);
    fabric_fini(&f);
}

/* Rack 0.20 against cross-pod 0.02: 0.2 + 0.02 t = 0.20 t at 1.111111. */
static void llmd_curve(void **state)
{
    static const uint32_t own[WORKERS] = {0, 1, 2, 3};
    static const uint32_t racks[WORKERS] = {0, 1, 1, 2};
    static const uint32_t pods[WORKERS] = {0, 1, 1, 1};
    struct fabric f;
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 160;
    w.workers[0].overlap_tokens = 16; /* 2 * 0.1 more */
    w.workers[3].decode_ok = false;
    fabric_init(&f, &w, own, racks, pods, 12500000000);
    expect_p("llmd:topology_w=1.1111", &w.view, 0);
    expect_p("llmd:topology_w=1.1112", &w.view, 1);
    fabric_fini(&f);
}

/* d first: the pair of the best d, even where another pair is closer. */
static void llmd_order(void **state)
{
    static const uint32_t own[WORKERS] = {0, 1, 2, 3};
    static const uint32_t racks[WORKERS] = {0, 1, 0, 1};
    static const uint32_t pods[WORKERS] = {0, 0, 0, 0};
    struct fabric f;
    struct world w;

    (void)state;
    world_init(&w);
    fabric_init(&f, &w, own, racks, pods, 12500000000);
    w.workers[3].overlap_tokens = 8192;
    w.workers[0].overlap_tokens = 512; /* 1/16: 0.125 < 0.15 of the rack */
    expect_pair("llmd", &w.view, 1, 3);
    /* p first: p0 by prefix; d2 is close by, d3 holds all of it */
    expect_pair("llmd:prefill_first=1", &w.view, 0, 3);
    w.workers[3].overlap_tokens = 512; /* 0.125 against 0.15 */
    expect_pair("llmd:prefill_first=1", &w.view, 0, 2);
    fabric_fini(&f);
}

/* KServe's variant scores P's free KV: 2 * 0.4 against 2 * use. */
static void llmd_free_kv(void **state)
{
    const char *spec = "llmd:kv_w=2";
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 160;
    w.workers[0].overlap_tokens = 64;
    w.workers[0].kv_capacity_tokens = w.workers[1].kv_capacity_tokens = 100000;
    w.workers[0].decode_tokens = 39000;
    expect_p(spec, &w.view, 0);
    w.workers[0].decode_tokens = 41000;
    expect_p(spec, &w.view, 1);
    expect_p("llmd", &w.view, 0);
}

/* The hard filter beats any score, and fails open. */
static void llmd_host_filter(void **state)
{
    struct fabric f;
    struct world w;

    (void)state;
    llmd_world(&w, &f);
    expect_p("llmd:topology_w=0,host_filter=1", &w.view, 1);
    w.workers[1].prefill_ok = false;
    expect_p("llmd:topology_w=0,host_filter=1", &w.view, 0);
    fabric_fini(&f);
}

/* Fewer than 16 tokens to compute stay on d, if it may. */
static void llmd_decider(void **state)
{
    struct bt_placement out;
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].overlap_tokens = 8192 - 16;
    w.workers[2].local_ok = true;
    out = expect_d("llmd", &w.view, 2);
    assert_int_not_equal(out.chosen.p, 2);
    w.view.prompt_tokens = 8191; /* 15 */
    out = expect_pair("llmd", &w.view, 2, 2);
    assert_int_equal(out.reason, BT_REASON_LOCAL);
    assert_int_not_equal(expect_d("llmd:non_cached=-1", &w.view, 2).chosen.p,
                         2);
    w.workers[2].local_ok = false;
    assert_int_not_equal(expect_d("llmd", &w.view, 2).chosen.p, 2);
    w.workers[2].local_ok = true;
    w.workers[2].overlap_tokens = 16;
    expect_pair("llmd:non_cached=0", &w.view, 2, 2); /* never away */
}

/* 18 s at 15,928 tokens/s are 286,704 tokens. */
static void llmd_token(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].overlap_tokens = 6560; /* 410 of 512 blocks: 0.80078 */
    w.workers[0].prefill_tokens = 286704 + 6560;
    expect_p("llmd_token", &w.view, 0);
    w.workers[0].prefill_tokens++;
    expect_p("llmd_token", &w.view, 1);
    expect_p("llmd_token:r_peak=39065", &w.view, 0);
    w.workers[0].prefill_tokens = 10000;
    expect_p("llmd_token", &w.view, 0);
    w.workers[0].overlap_tokens = 6544; /* 409: 0.79883, not warm */
    expect_p("llmd_token", &w.view, 1);
    w.workers[2].decode_requests = 1; /* d by requests, not tokens */
    w.workers[3].decode_tokens = 1000;
    expect_d("llmd_token", &w.view, 3);
}

/* ---- NetKV ---- */

/* d2 lacks 238 blocks = 1,247,805,440 B; d3 has all but a slot `wait` away. */
static void netkv_world(struct world *w, double wait)
{
    static const uint64_t left[2] = {1000000000, 1000000000};

    world_init(w);
    w->view.prompt_tokens = 12000;
    w->workers[1].prefill_ok = false;
    w->workers[2].overlap_tokens = 8192;
    w->workers[3].overlap_tokens = 12000;
    w->workers[3].decode_free_ns = w->view.now_ns + S(wait);
    for (uint32_t d = 2; d < 4; d++) {
        world_link(w, 0, d)->setup_ns = MS(0.1);
        w->links[d].left = left;
        w->links[d].flows = d == 2 ? 2 : 0;
    }
}

/* B_eff = 12.5 * 0.7 / 3 = 2.91667 GB/s; 0.427919 s + queue + step. */
static void netkv_sum(void **state)
{
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    netkv_world(&w, 0.427918);
    expect_d("netkv:c=0.3", &w.view, 3);
    netkv_world(&w, 0.427920);
    expect_d("netkv:c=0.3", &w.view, 2);
    netkv_world(&w, 0.0999); /* 1,247,805,440 / 12.5e9 + 0.0001 = 0.0999244 */
    expect_d("netkv_static", &w.view, 3);
    netkv_world(&w, 0.0999245);
    expect_d("netkv_static", &w.view, 2);
    /* a sum: d2's own queue is not hidden by the transfer */
    w.workers[2].decode_free_ns = w.view.now_ns + S(0.05);
    expect_d("netkv_static", &w.view, 3);
    /* the same at the hand-off, when only the transfer is to come */
    netkv_world(&w, 0.427920);
    rule_init(&r, "netkv:c=0.3", 1);
    assert_int_equal(r.policy->handoff(&r.state, &w.view, 0, &out), BT_OK);
    assert_int_equal(out.chosen.p, 0);
    assert_int_equal(out.chosen.d, 2);
    assert_int_equal(out.second.d, 3);
    assert_int_equal(out.reason, BT_REASON_HANDOFF);
    assert_int_equal(out.considered, 2);
    assert_int_equal(out.chosen.terms.prefill_ns, 0);
    assert_int_equal(out.chosen.terms.arrival_ns, out.chosen.terms.transfer_ns);
    w.workers[2].decode_ok = w.workers[3].decode_ok = false;
    assert_int_equal(r.policy->handoff(&r.state, &w.view, 0, &out),
                     BT_NO_WORKER);
    rule_fini(&r);
}

/* Labels, not rates: d2 in p's rack, d3 in another pod. */
static void netkv_tiers(void **state)
{
    static const uint32_t own[WORKERS] = {0, 1, 2, 3};
    static const uint32_t racks[WORKERS] = {0, 0, 0, 1};
    static const uint32_t pods[WORKERS] = {0, 0, 0, 1};
    const char *paper =
        "netkv_static:node_gbs=450,rack_gbs=12.5,pod_gbs=6.25,cross_gbs=3.125";
    struct fabric f;
    struct world w;

    (void)state;
    world_init(&w);
    fabric_init(&f, &w, own, racks, pods, 50000000000);
    w.workers[1].prefill_ok = false;
    /* 8,192 tokens are 2.68435 GB: 0.214748 s and 0.858993 s */
    w.workers[2].decode_free_ns = w.view.now_ns + S(0.644244);
    expect_d(paper, &w.view, 2);
    w.workers[2].decode_free_ns = w.view.now_ns + S(0.644246);
    expect_d(paper, &w.view, 3);
    /* one own flow out of p: both take twice as long */
    bt_network_open(f.network, 0, w.view.now_ns, 0, 1, 1000000000000,
                    w.view.now_ns);
    w.workers[2].decode_free_ns = w.view.now_ns + S(1.288489);
    expect_d("netkv:rack_gbs=12.5,cross_gbs=3.125", &w.view, 2);
    w.workers[2].decode_free_ns = w.view.now_ns + S(1.288491);
    expect_d("netkv:rack_gbs=12.5,cross_gbs=3.125", &w.view, 3);
    expect_d("netkv_static:rack_gbs=12.5,cross_gbs=3.125", &w.view, 3);
    /* nominal: both at 50 GB/s */
    w.workers[2].decode_free_ns = w.view.now_ns + S(0.000001);
    expect_d("netkv_static", &w.view, 3);
    fabric_fini(&f);
}

/* ---- conditional disaggregation, deflection ---- */

static void conditional_world(struct world *w, uint32_t prompt, uint32_t held)
{
    world_init(w);
    w->view.prompt_tokens = prompt;
    w->workers[2].overlap_tokens = held;
    w->workers[2].local_ok = true;
    w->workers[3].decode_ok = false;
}

static void conditional(void **state)
{
    struct world w;

    (void)state;
    conditional_world(&w, 4096, 2304); /* 1,792; 0.4375 */
    assert_int_equal(expect_pair("conditional", &w.view, 2, 2).reason,
                     BT_REASON_LOCAL);
    conditional_world(&w, 2500, 600); /* 1,900; 0.76 */
    assert_in_range(expect_d("conditional", &w.view, 2).chosen.p, 0, 1);
    conditional_world(&w, 4096, 2048); /* 2,048 is not < 2,048 */
    assert_in_range(expect_d("conditional", &w.view, 2).chosen.p, 0, 1);
    conditional_world(&w, 4096, 2049);
    expect_pair("conditional", &w.view, 2, 2);
    w.workers[2].local_ok = false;
    assert_in_range(expect_d("conditional", &w.view, 2).chosen.p, 0, 1);
}

/* With d_credit: 10 blocks in use less what it holds, against none. */
static void conditional_credit(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].decode_tokens = 160;
    w.workers[2].overlap_tokens = 11 * 16;
    expect_d("conditional:d_credit=1", &w.view, 2);
    expect_d("conditional", &w.view, 3);
    w.workers[2].overlap_tokens = 9 * 16;
    expect_d("conditional:d_credit=1", &w.view, 3);
}

static void conditional_modes(void **state)
{
    struct world w;

    (void)state;
    conditional_world(&w, 8192, 0);
    for (uint32_t p = 0; p < 2; p++) {
        w.workers[p].batch_tokens = 2000;
        w.workers[p].prefill_tokens = 4000;
    }
    assert_in_range(
        expect_d("conditional:mode=1,threshold=2", &w.view, 2).chosen.p, 0, 1);
    w.workers[0].prefill_tokens = w.workers[1].prefill_tokens = 4001;
    expect_pair("conditional:mode=1,threshold=2", &w.view, 2, 2);
    expect_pair("conditional:mode=2,threshold=2", &w.view, 2, 2);
    assert_in_range(expect_d("conditional:threshold=2", &w.view, 2).chosen.p, 0,
                    1);
    /* busy d: 0.5 of its KV */
    w.workers[2].kv_capacity_tokens = 100000;
    w.workers[2].decode_tokens = 50001;
    assert_in_range(
        expect_d("conditional:mode=2,threshold=2,busy=0.5", &w.view, 2)
            .chosen.p,
        0, 1);
    w.workers[2].decode_tokens = 50000;
    expect_pair("conditional:mode=2,threshold=2,busy=0.5", &w.view, 2, 2);
}

/* Same model, empty d: local T_c, remote queue + T_c + transfer. 2,048 tokens
 * are 79.6 ms, 671,088,640 B at 12.5 GB/s 53.7 ms. */
static void deflect(void **state)
{
    struct bt_place_terms t;
    double local, remote;
    struct world w;
    char spec[64];

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 2048;
    w.workers[2].local_ok = true;
    w.workers[3].decode_ok = false;
    /* by hand: 6.51 + 0.0352 n + 2.37e-7 n^2 */
    local = 6.51 + 0.0352 * 2048 + 2.37e-7 * 2048 * 2048;
    remote = local + 671088640 / 12.5e6;
    bt_place_terms(&w.view, 2, 2, &t);
    assert_near_s(t.prefill_ns, local / 1e3);
    expect_pair("deflect", &w.view, 2, 2);
    snprintf(spec, sizeof(spec), "deflect:alpha=%.5f", remote / local - 1e-5);
    expect_pair(spec, &w.view, 2, 2);
    snprintf(spec, sizeof(spec), "deflect:alpha=%.5f", remote / local + 1e-5);
    assert_in_range(expect_d(spec, &w.view, 2).chosen.p, 0, 1);
    w.workers[2].local_ok = false;
    assert_in_range(expect_d("deflect", &w.view, 2).chosen.p, 0, 1);
    /* not safe: a step with the whole prompt in it beside running requests */
    w.workers[2].local_ok = true;
    w.workers[2].decode_requests = 4;
    w.view.tpot_slo_ns = MS(50);
    assert_in_range(expect_d("deflect", &w.view, 2).chosen.p, 0, 1);
    w.workers[2].chunk_tokens = 256; /* 15.5 ms and a 9 ms step */
    w.workers[0].prefill_free_ns = w.workers[1].prefill_free_ns =
        w.view.now_ns + S(1);
    expect_pair("deflect", &w.view, 2, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dynamo_cost),
        cmocka_unit_test(dynamo_decay),
        cmocka_unit_test(dynamo_taint),
        cmocka_unit_test(dynamo_decode_pick),
        cmocka_unit_test(dynamo_queue),
        cmocka_unit_test(dynamo_temperature),
        cmocka_unit_test(lmetric_product),
        cmocka_unit_test(lmetric_adjusted),
        cmocka_unit_test(two_tier),
        cmocka_unit_test(sglang_true_cache),
        cmocka_unit_test(sglang_own_history),
        cmocka_unit_test(sglang_matches_prefixes),
        cmocka_unit_test(sglang_history_is_bounded),
        cmocka_unit_test(sglang_keeps_eight_holders),
        cmocka_unit_test(mooncake_local),
        cmocka_unit_test(mooncake_fetch),
        cmocka_unit_test(mooncake_theta),
        cmocka_unit_test(mooncake_refuses),
        cmocka_unit_test(llmd_scores),
        cmocka_unit_test(llmd_curve),
        cmocka_unit_test(llmd_order),
        cmocka_unit_test(llmd_free_kv),
        cmocka_unit_test(llmd_host_filter),
        cmocka_unit_test(llmd_decider),
        cmocka_unit_test(llmd_token),
        cmocka_unit_test(netkv_sum),
        cmocka_unit_test(netkv_tiers),
        cmocka_unit_test(conditional),
        cmocka_unit_test(conditional_credit),
        cmocka_unit_test(conditional_modes),
        cmocka_unit_test(deflect),
    };

    return cmocka_run_group_tests_name("rivals_vectors", tests, NULL, NULL);
}
