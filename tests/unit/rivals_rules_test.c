/* The rival rules without a check vector, each by an example worked by hand:
 * load and prefix rules, transfer rules, the twins of joint on W9 of
 * cost-models.md.
 */
#include "rivals_world.h"

/* ---- load and prefix ---- */

/* Uniform: 4,000 draws over two workers, 1/2 +- 5 sigma (158). */
static void random_is_uniform(void **state)
{
    unsigned int p0 = 0, d2 = 0, both = 0;
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_tokens = 1000000;
    w.workers[2].decode_tokens = 1000000;
    rule_init(&r, "random", 3);
    for (int i = 0; i < 4000; i++) {
        assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
        p0 += out.chosen.p == 0;
        d2 += out.chosen.d == 2;
        both += out.chosen.p == 0 && out.chosen.d == 2;
    }
    assert_in_range(p0, 1842, 2158);
    assert_in_range(d2, 1842, 2158);
    assert_in_range(both, 863, 1137); /* independent: 1/4 */
    rule_fini(&r);
}

static void jsq_units(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_requests(&w, 1, 2);
    w.workers[0].prefill_tokens = w.workers[2].decode_tokens = 11;
    w.workers[1].prefill_tokens = w.workers[3].decode_tokens = 10;
    expect_pair("jsq", &w.view, 1, 3);
    expect_pair("jsq:requests=1", &w.view, 0, 2);
}

/* Of two workers both are drawn: always the less loaded. Of three the most
 * loaded is never taken, the least in 2 of 3 pairs. */
static void power_of_two_picks(void **state)
{
    unsigned int count[3] = {0};
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_tokens = 1;
    w.workers[3].decode_tokens = 1;
    expect_pair("power_of_two:ledger=1", &w.view, 1, 2);
    w.workers[2].roles = BT_ROLE_BOTH;
    w.workers[2].prefill_ok = true;
    w.workers[2].prefill_tokens = 2;
    rule_init(&r, "power_of_two:ledger=1", 4);
    for (int i = 0; i < 3000; i++) {
        assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
        count[out.chosen.p]++;
    }
    assert_int_equal(count[2], 0);
    assert_in_range(count[1], 2000 - 129, 2000 + 129); /* 5 sigma */
    rule_fini(&r);
}

/* Polls are up to five seconds old. */
static void power_of_two_polls(void **state)
{
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.workers[0].seen_waiting = 1;
    w.workers[2].seen_running = 1;
    rule_init(&r, "power_of_two", 4);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
    assert_int_equal(out.chosen.d, 3);
    w.workers[1].seen_waiting = 9;
    w.workers[3].seen_waiting = 9;
    w.view.now_ns += S(4.9);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
        assert_int_equal(out.chosen.p, 1);
        assert_int_equal(out.chosen.d, 3);
    }
    w.view.now_ns += S(0.1);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 0);
    assert_int_equal(out.chosen.d, 2);
    /* one that came back is asked at once */
    w.workers[0].id = bt_worker_id_make(0, 2);
    w.workers[0].seen_waiting = 100;
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
    rule_fini(&r);
}

static void prefix_only(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].overlap_tokens = 512;
    w.workers[0].prefill_tokens = 1000000;
    w.workers[0].prefill_free_ns = w.view.now_ns + S(1000);
    w.workers[2].overlap_tokens = 8192;
    w.workers[2].decode_tokens = 1;
    expect_pair("prefix_only", &w.view, 0, 3);
    w.workers[1].overlap_tokens = 512; /* equal matches: load */
    expect_pair("prefix_only", &w.view, 1, 3);
}

/* w * (512 - held) + queue / 16: w0 512 w, w1 256 w + 300. */
static void cla_prefill(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[1].overlap_tokens = 4096;
    w.workers[1].prefill_tokens = 300 * 16;
    expect_p("cla", &w.view, 0);         /* 512, 556 */
    expect_p("cla:w=1.171", &w.view, 0); /* even at 1.171875 */
    expect_p("cla:w=1.172", &w.view, 1);
}

/* used / total + v * share that d lacks: d2 0.5, d3 0.25 + v / 2. */
static void cla_decode(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].kv_capacity_tokens = 100000;
    w.workers[3].kv_capacity_tokens = 200000;
    w.workers[2].decode_tokens = w.workers[3].decode_tokens = 50000;
    w.workers[2].overlap_tokens = 8192;
    w.workers[3].overlap_tokens = 4096;
    expect_d("cla", &w.view, 3);
    expect_d("cla:v=0.49", &w.view, 3);
    expect_d("cla:v=0.51", &w.view, 2);
}

/* llm-d's weights: p0 2 * 1 + 2 + 0, p1 0 + 2 + 3 * held share. */
static void cla_blend(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prompt_tokens = 1600;
    w.workers[1].prefill_requests = 1;
    w.workers[1].overlap_tokens = 66 * 16; /* 1.98 */
    expect_p("cla:blend=1", &w.view, 0);
    w.workers[1].overlap_tokens = 67 * 16; /* 2.01 */
    expect_p("cla:blend=1", &w.view, 1);
}

/* ---- rules that see the transfer ---- */

/* p by TTFT, then the nearest d for what it lacks, however loaded. */
static void flowkv(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_free_ns = w.view.now_ns + S(0.001);
    w.workers[3].decode_tokens = 1000000;
    w.workers[3].decode_free_ns = w.view.now_ns + S(9);
    world_link(&w, 1, 3)->rate_bytes_per_s = 12501000000;
    world_link(&w, 0, 2)->rate_bytes_per_s = 90000000000;
    expect_pair("flowkv", &w.view, 1, 3);
    w.workers[2].overlap_tokens = 16; /* one block less to send */
    expect_pair("flowkv", &w.view, 1, 2);
}

/* Z: d2 and d3 on hosts of their own; fewest tokens, with room. */
static void dualpath_decode(void **state)
{
    static const uint32_t nodes[WORKERS] = {0, 1, 2, 2};
    static const uint32_t racks[WORKERS] = {0, 0, 0, 0};
    static const uint32_t pods[WORKERS] = {0, 0, 0, 0};
    struct fabric f;
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].decode_tokens = 1000;
    w.workers[3].decode_tokens = 2000;
    expect_d("dualpath", &w.view, 2);
    fabric_init(&f, &w, nodes, racks, pods, 12500000000);
    expect_d("dualpath", &w.view, 2);
    w.workers[2].kv_capacity_tokens = 9000; /* 1000 + 8192 + 100 */
    w.workers[3].decode_tokens = 1100;      /* mean 1050, limit 1102.5 */
    expect_d("dualpath", &w.view, 3);
    fabric_fini(&f);
}

/* beta leaves out the loaded one only while there is another; the prefix comes
 * from p's own slower tier. */
static void dualpath_prefill(void **state)
{
    struct bt_placement out;
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_tokens = 5000;
    w.workers[1].prefill_tokens = 6000;
    expect_p("dualpath:beta=4000", &w.view, 0);
    w.workers[0].prefill_tokens = 7000;
    expect_p("dualpath:beta=6500", &w.view, 1);
    w.workers[1].disk_tokens = 4096;
    w.workers[1].disk = (struct bt_tier_model){5000000000, MS(1)};
    out = expect_p("dualpath", &w.view, 1);
    assert_int_equal(out.chosen.source.worker, 1);
    assert_int_equal(out.chosen.source.tokens, 4096);
    assert_int_equal(out.chosen.source.tier, BT_TIER_DISK);
    /* 1,342,177,280 B at 5 GB/s + 1 ms */
    assert_near_s(out.chosen.terms.fetch_ns, 0.269435);
}

/* max(queue + prefill, d_queue) + transfer + step. 8,192 tokens: 310.77 ms and
 * 214.75 ms; the step 8.86 + 0.0228 batch + 1.3e-5 context, here 8.98930. */
static void atom_pairs(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[1].prefill_ok = false;
    w.workers[2].seen_waiting = 34; /* 305.6 ms: hidden behind the prefill */
    world_link(&w, 0, 3)->rate_bytes_per_s = 12400000000;
    expect_pair("atom", &w.view, 0, 2);
    w.workers[2].seen_waiting = 35; /* 314.6: 3.86 more; 3's way 1.73 more */
    expect_pair("atom", &w.view, 0, 3);
    world_link(&w, 0, 3)->rate_bytes_per_s = 12200000000; /* 5.28 more */
    expect_pair("atom", &w.view, 0, 2);
}

/* Static curve, blind to our own flows; no room goes last; a sooner load from
 * host memory is taken. */
static void atom_details(void **state)
{
    static const uint64_t left[1] = {100000000000};
    struct bt_placement out;
    struct world w;

    (void)state;
    world_init(&w);
    w.links[0 * WORKERS + 2].left = w.links[1 * WORKERS + 2].left = left;
    w.links[0 * WORKERS + 2].flows = w.links[1 * WORKERS + 2].flows = 1;
    w.workers[3].decode_requests = 1;
    expect_d("atom", &w.view, 2);
    w.workers[2].kv_capacity_tokens = 20000;
    w.workers[2].decode_tokens = 12000;
    w.workers[3].decode_tokens = 30000;
    expect_d("atom", &w.view, 3);
    w.workers[1].host_tokens = 8000;
    w.workers[1].host = (struct bt_tier_model){100000000000, MS(1)};
    out = expect_p("atom", &w.view, 1);
    assert_int_equal(out.chosen.source.tokens, 8000);
    assert_int_equal(out.chosen.source.tier, BT_TIER_HOST);
    w.workers[0].prefill_ok = false;
    w.workers[1].host.rate_bytes_per_s = 1000000000; /* 2.6 s: compute */
    out = expect_p("atom", &w.view, 1);
    assert_int_equal(out.chosen.source.tokens, 0);
}

/* ---- twins of joint, W9 ---- */

/* Queue + prefill 0.563038 and 0.458775; transfers 0.328680, 0.104984 from p0,
 * 0.328680, 0.026996 from p1; slots 0.2 and 0.6. */
static void w9_world(struct world *w)
{
    world_init(w);
    for (uint32_t i = 0; i < WORKERS * WORKERS; i++)
        w->link_models[i] = (struct bt_link_model){12000000000, MS(1), 0};
    w->view.prompt_tokens = 12000;
    w->workers[0].prefill_free_ns = w->view.now_ns + S(0.10);
    w->workers[1].prefill_free_ns = w->view.now_ns + S(0.30);
    w->workers[1].overlap_tokens = 8192;
    w->workers[2].decode_free_ns = w->view.now_ns + S(0.20);
    w->workers[3].decode_free_ns = w->view.now_ns + S(0.60);
    w->workers[3].overlap_tokens = 8192;
    for (uint32_t d = 2; d < 4; d++) {
        w->workers[d].decode_requests = 63;
        w->workers[d].decode_tokens = 64 * 4096 - 12000;
    }
    world_link(w, 1, 3)->rate_bytes_per_s = 48000000000;
}

/* max(arrival, slot): d3 at 0.600 against 0.787. The sum: 0.328680 + 0.2 is
 * less than 0.026996 + 0.6; over all pairs 0.987455 is the least. */
static void twins_on_w9(void **state)
{
    struct bt_placement out;
    struct world w;

    (void)state;
    w9_world(&w);
    out = expect_pair("s1", &w.view, 1, 3);
    assert_near_s(out.chosen.terms.total_ns, 0.6137271);
    expect_pair("s2", &w.view, 1, 3);
    expect_pair("s3", &w.view, 1, 3);
    expect_pair("s1:sum=1", &w.view, 1, 2);
    expect_pair("s3:sum=1", &w.view, 1, 2);
    expect_pair("j0", &w.view, 1, 2);
}

/* p1 is sooner by 0.104263 s and sends at 1 GB/s: 0.328680 + ... against
 * 1.248805 to d3. s1 does not look, s2 does. */
static void s2_charges_the_egress(void **state)
{
    struct world w;

    (void)state;
    w9_world(&w);
    world_link(&w, 1, 2)->rate_bytes_per_s = 1000000000;
    world_link(&w, 1, 3)->rate_bytes_per_s = 1000000000;
    expect_pair("s1", &w.view, 1, 3);
    expect_pair("s2", &w.view, 0, 3);
    expect_pair("s3", &w.view, 0, 3);
}

/* The same by our own flows instead of the rate: only s3 looks. */
static void s3_sees_own_flows(void **state)
{
    static const uint64_t left[3] = {20000000000, 20000000000, 20000000000};
    struct world w;

    (void)state;
    w9_world(&w);
    for (uint32_t d = 2; d < 4; d++) {
        w.links[1 * WORKERS + d].left = left;
        w.links[1 * WORKERS + d].flows = 3;
    }
    world_link(&w, 1, 3)->rate_bytes_per_s = 12000000000;
    expect_pair("s2", &w.view, 1, 3);
    expect_pair("s3", &w.view, 0, 3);
}

/* A worker that may serve alone, when that is sooner than the pair. */
static void twins_may_stay_local(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[2].local_ok = true;
    for (uint32_t d = 2; d < 4; d++)
        for (uint32_t p = 0; p < 2; p++)
            world_link(&w, p, d)->rate_bytes_per_s = 1000000000;
    assert_int_equal(expect_pair("s1", &w.view, 2, 2).reason, BT_REASON_LOCAL);
    expect_pair("s3", &w.view, 2, 2);
    for (uint64_t seed = 1; seed <= 8; seed++)
        assert_in_range(place_seeded("s2:local=0", &w.view, seed).chosen.p, 0,
                        1);
    w.workers[2].prefill_free_ns = w.view.now_ns + S(10);
    assert_in_range(place_seeded("s1", &w.view, 1).chosen.p, 0, 1);
}

/* mu makes the warm worker worth the wait: 406.549 + 6.549 mu against 310.773 +
 * 310.773 mu ms, even at 0.314821. */
static void twins_pay_prices(void **state)
{
    struct bt_place_prices prices = {.queue = 0.3148};
    struct world w;

    (void)state;
    world_init(&w);
    w.view.prices = &prices;
    w.workers[0].overlap_tokens = 8192;
    w.workers[0].prefill_free_ns = w.view.now_ns + S(0.4);
    expect_p("s1", &w.view, 1);
    prices.queue = 0.3149;
    expect_p("s1", &w.view, 0);
}

/* p0 holds the prompt and is busy; p1 may pull. */
static void twins_fetch(void **state)
{
    struct bt_placement out;
    struct world w;

    (void)state;
    world_init(&w);
    w.workers[0].overlap_tokens = 8192;
    w.workers[0].prefill_free_ns = w.view.now_ns + S(10);
    w.workers[1].fetch_ok = true;
    world_link(&w, 0, 1)->rate_bytes_per_s = 50000000000;
    for (int i = 0; i < 2; i++) {
        out = expect_p(i == 0 ? "s1" : "j0", &w.view, 1);
        assert_int_equal(out.chosen.source.tokens, 8176);
        assert_int_equal(out.chosen.source.worker, 0);
        assert_int_equal(out.reason, BT_REASON_FETCH);
        /* 8,176 * 327,680 B at 50 GB/s */
        assert_near_s(out.chosen.terms.fetch_ns, 0.0535822);
    }
    out = expect_p("s1:fetch=0", &w.view, 1);
    assert_int_equal(out.chosen.source.tokens, 0);
}

/* Without flows idle and live estimates are one, whatever the overlap: s2 and
 * s3 agree. Two implementations of section 7. */
static void idle_is_live_without_flows(void **state)
{
    static const enum bt_overlap kinds[] = {BT_OVERLAP_NONE, BT_OVERLAP_CHUNK,
                                            BT_OVERLAP_LAYER};
    struct bt_engine_mode mode = {.descriptors_per_block = 2};
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 8);
    for (int i = 0; i < 600; i++) {
        struct bt_placement a, b;
        struct world w;

        world_init(&w);
        w.view.mode = &mode;
        mode.overlap = kinds[i % 3];
        mode.pieces = 1 + (uint32_t)bt_rng_below(&rng, 80);
        mode.whole_prompt = bt_rng_below(&rng, 4) == 0;
        for (uint32_t j = 0; j < WORKERS; j++) {
            w.workers[j].overlap_tokens = (uint32_t)bt_rng_below(&rng, 8193);
            w.workers[j].prefill_free_ns =
                w.view.now_ns + (int64_t)bt_rng_below(&rng, 200000000);
        }
        for (uint32_t j = 0; j < WORKERS * WORKERS; j++)
            w.link_models[j] = (struct bt_link_model){
                1000000000 + bt_rng_below(&rng, 20000000000),
                (int64_t)bt_rng_below(&rng, 2000000),
                (int64_t)bt_rng_below(&rng, 2000)};
        a = place_seeded("s2", &w.view, 1);
        b = place_seeded("s3", &w.view, 1);
        if (a.chosen.p != b.chosen.p || a.chosen.d != b.chosen.d)
            fail_msg("round %d: %u %u and %u %u", i, a.chosen.p, a.chosen.d,
                     b.chosen.p, b.chosen.d);
    }
}

/* Held while p is busy, like joint: until patience is out or a nearly as good
 * worker is free. */
static void twins_hold(void **state)
{
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.view.may_hold = true;
    w.view.lead_ns = S(0.1);
    w.view.patience_ns = S(2);
    w.workers[0].prefill_free_ns = w.view.now_ns + S(0.2);
    w.workers[1].prefill_free_ns = w.view.now_ns + S(0.3);
    rule_init(&r, "s3", 1);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_AGAIN);
    /* p1 free but cold, p0 warm: 0.2 + 0.0075 against 0.31077 s, and both send
     * for 0.215 s; 1.25 times 0.431 is more than 0.535 */
    w.workers[0].overlap_tokens = 8192;
    w.workers[1].prefill_free_ns = 0;
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
    w.workers[0].prefill_free_ns = w.view.now_ns + S(0.15);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_AGAIN);
    w.view.waited_ns = S(2);
    assert_int_equal(r.policy->place(&r.state, &w.view, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
    assert_int_equal(r.policy->order_rule, BT_ORDER_SLACK);
    rule_fini(&r);
    w.view.waited_ns = 0;
    assert_int_equal(place_seeded("s3:hold=0", &w.view, 1).chosen.p, 0);
}

/* At the hand-off only transfer and slot count: d2 0.214749 s away or a slot
 * at 0.2 there. */
static void twins_hand_over(void **state)
{
    static const char *const names[] = {"s1", "s2", "s3", "j0"};
    struct bt_placement out;
    struct world w;
    struct rule r;

    (void)state;
    world_init(&w);
    w.workers[0].prefill_free_ns = w.view.now_ns + S(50);
    world_link(&w, 0, 3)->rate_bytes_per_s = 11000000000;
    for (size_t i = 0; i < 4; i++) {
        w.workers[2].decode_free_ns = w.view.now_ns;
        rule_init(&r, names[i], 1);
        assert_int_equal(r.policy->handoff(&r.state, &w.view, 0, &out), BT_OK);
        assert_int_equal(out.chosen.p, 0);
        assert_int_equal(out.chosen.d, 2);
        assert_int_equal(out.second.d, 3);
        assert_near_s(out.chosen.terms.arrival_ns, 0.214748);
        w.workers[2].decode_free_ns = w.view.now_ns + S(0.2);
        assert_int_equal(r.policy->handoff(&r.state, &w.view, 0, &out), BT_OK);
        assert_int_equal(out.chosen.d, i == 3 ? 3 : 2); /* a sum, or not */
        rule_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_is_uniform),
        cmocka_unit_test(jsq_units),
        cmocka_unit_test(power_of_two_picks),
        cmocka_unit_test(power_of_two_polls),
        cmocka_unit_test(prefix_only),
        cmocka_unit_test(cla_prefill),
        cmocka_unit_test(cla_decode),
        cmocka_unit_test(cla_blend),
        cmocka_unit_test(flowkv),
        cmocka_unit_test(dualpath_decode),
        cmocka_unit_test(dualpath_prefill),
        cmocka_unit_test(atom_pairs),
        cmocka_unit_test(atom_details),
        cmocka_unit_test(twins_on_w9),
        cmocka_unit_test(s2_charges_the_egress),
        cmocka_unit_test(s3_sees_own_flows),
        cmocka_unit_test(twins_may_stay_local),
        cmocka_unit_test(twins_pay_prices),
        cmocka_unit_test(twins_fetch),
        cmocka_unit_test(idle_is_live_without_flows),
        cmocka_unit_test(twins_hold),
        cmocka_unit_test(twins_hand_over),
    };

    return cmocka_run_group_tests_name("rivals_rules", tests, NULL, NULL);
}
