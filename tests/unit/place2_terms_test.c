/* The full model of a placement on worked examples: W5, W9, W10, W15 of
 * cost-models.md through the view, late dispatch, hand-off, and the invariants
 * of its section 21 that concern a whole choice. */
#include "baton/base/rng.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define S(x)  ((int64_t)((x)*1e9))
#define MS(x) ((int64_t)((x)*1e6))
#define N     6u

struct world {
    struct bt_compute_model model;
    struct bt_link_model link_models[N * N];
    struct bt_place_link links[N * N];
    struct bt_place_worker workers[N];
    struct bt_engine_mode mode;
    struct bt_place_prices prices;
    struct bt_place_view view;
};

/* The first half prefill, the second half decode; idle, empty; 12 GB/s. */
static void world_init(struct world *w, const char *preset, uint32_t n)
{
    memset(w, 0, sizeof(*w));
    assert_int_equal(bt_compute_preset(preset, &w->model), BT_OK);
    for (uint32_t i = 0; i < n * n; i++) {
        w->link_models[i] = (struct bt_link_model){12000000000, MS(1), 0};
        w->links[i].model = &w->link_models[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        bool prefill = i < n / 2;

        w->workers[i] = (struct bt_place_worker){
            .id = bt_worker_id_make(i, 1),
            .roles = prefill ? BT_ROLE_PREFILL : BT_ROLE_DECODE,
            .prefill_ok = prefill,
            .decode_ok = !prefill,
            .model = &w->model};
    }
    w->view = (struct bt_place_view){.now_ns = S(5),
                                     .prompt_tokens = 12000,
                                     .block_tokens = 16,
                                     .output_tokens = 100,
                                     .kv_bytes_per_token = 327680,
                                     .workers = w->workers,
                                     .worker_count = n,
                                     .links = w->links,
                                     .mode = &w->mode,
                                     .overlap_known = true};
}

static struct bt_link_model *link_at(struct world *w, uint32_t a, uint32_t b)
{
    return &w->link_models[a * w->view.worker_count + b];
}

static void start(struct bt_policy_state *state, uint64_t seed)
{
    const struct bt_policy *joint = bt_policy_find("joint");

    bt_policy_state_init(state, seed);
    for (size_t i = 0; joint->knobs[i].name != NULL; i++)
        state->knobs[i] = joint->knobs[i].value;
}

static void set_knob(struct bt_policy_state *state, const char *name, double to)
{
    const struct bt_policy_knob *knobs = bt_policy_find("joint")->knobs;
    size_t i = 0;

    while (knobs[i].name != NULL && strcmp(knobs[i].name, name) != 0)
        i++;
    assert_non_null(knobs[i].name);
    state->knobs[i] = to;
}

static struct bt_placement joint(struct world *w)
{
    struct bt_policy_state state;
    struct bt_placement out;

    start(&state, 1);
    assert_int_equal(bt_policy_find("joint")->place(&state, &w->view, &out),
                     BT_OK);
    return out;
}

static void assert_s(int64_t ns, double s)
{
    double got = (double)ns / 1e9;

    if (fabs(got - s) > 5e-6 * fabs(s))
        fail_msg("%.9g s instead of %.9g", got, s);
}

static void assert_pair(const struct bt_place_candidate *c, uint32_t p,
                        uint32_t d)
{
    assert_int_equal(c->p, p);
    assert_int_equal(c->d, d);
}

/* ---- W5: overlap ---- */

static double w5(enum bt_overlap overlap, uint32_t pieces, uint32_t held_p,
                 uint32_t held_d)
{
    struct world w;
    struct bt_place_terms t;

    world_init(&w, "h100-70b-tp8", 2);
    w.view.prompt_tokens = 32768;
    w.workers[0].overlap_tokens = held_p;
    w.workers[1].overlap_tokens = held_d;
    w.mode.overlap = overlap;
    w.mode.pieces = pieces;
    bt_place_terms(&w.view, 0, 1, &t);
    assert_int_equal(t.arrival_ns, t.queue_ns + t.prefill_ns + t.transfer_ns);
    return (double)t.arrival_ns / 1e9;
}

static void w5_overlap(void **state)
{
    static const struct {
        enum bt_overlap overlap;
        uint32_t pieces, held_p, held_d;
        double arrival;
    } rows[] = {
        {BT_OVERLAP_NONE, 0, 0, 0, 2.31021},
        {BT_OVERLAP_CHUNK, 4, 0, 0, 1.63912},
        {BT_OVERLAP_LAYER, 80, 0, 0, 1.42661},
        {BT_OVERLAP_NONE, 0, 30720, 0, 1.00520},
        {BT_OVERLAP_LAYER, 80, 30720, 0, 0.895785},
        {BT_OVERLAP_NONE, 0, 30720, 30720, 0.166339},
        {BT_OVERLAP_LAYER, 80, 30720, 30720, 0.111114},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_s(S(w5(rows[i].overlap, rows[i].pieces, rows[i].held_p,
                      rows[i].held_d)),
                 rows[i].arrival);
}

/* ---- W9: joint, fetch, allocate first ---- */

static void w9_world(struct world *w)
{
    world_init(w, "h100-70b-tp8", 4);
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
    link_at(w, 1, 3)->rate_bytes_per_s = 48000000000;
}

static void w9_fetch(void **state)
{
    struct world w;
    struct bt_placement out;
    const struct bt_place_candidate *c = &out.second;

    (void)state;
    w9_world(&w);
    w.workers[0].fetch_ok = true;
    link_at(&w, 1, 0)->rate_bytes_per_s = 24000000000;
    out = joint(&w);
    assert_pair(&out.chosen, 1, 3); /* the tie goes to fewer bytes */
    assert_s(out.chosen.terms.total_ns, 0.613727);
    assert_int_equal(out.chosen.source.tokens, 0);
    assert_pair(c, 0, 3);
    assert_int_equal(c->terms.total_ns, out.chosen.terms.total_ns);
    assert_int_equal(c->source.worker, 1);
    assert_int_equal(c->source.tokens, 8192);
    assert_int_equal(c->source.tier, BT_TIER_DEVICE);
    assert_s(c->terms.fetch_ns, 0.112848);
    assert_s(c->terms.arrival_ns, 0.376607);
    assert_s(c->terms.total_ns - c->terms.step_ns, 0.600000);
    assert_int_equal(c->terms.fetch_bytes, 2684354560);
    assert_int_equal(c->terms.overlap_p, 8192);
}

static void w9_allocate_first(void **state)
{
    struct world w;
    struct bt_place_terms t;

    (void)state;
    w9_world(&w);
    w.mode.allocate_first = true;
    bt_place_terms(&w.view, 1, 3, &t);
    assert_s(t.arrival_ns, 0.785771);
    bt_place_terms(&w.view, 1, 2, &t);
    assert_s(t.arrival_ns, 0.787455);
}

/* Engine facts that change bytes: W2 numbers times what the mode says. */
static void mode_sizes(void **state)
{
    struct world w;
    struct bt_place_terms t;

    (void)state;
    world_init(&w, "h100-70b-tp8", 2);
    w.view.prompt_tokens = 12035;
    w.workers[1].overlap_tokens = 256 * 16;
    bt_place_terms(&w.view, 0, 1, &t);
    assert_int_equal(t.kv_bytes, 2605711360);
    w.mode.replication = 2;
    bt_place_terms(&w.view, 0, 1, &t);
    assert_int_equal(t.kv_bytes, 2 * 2605711360);
    w.mode.replication = 0;
    w.mode.whole_prompt = true;
    bt_place_terms(&w.view, 0, 1, &t);
    assert_int_equal(t.kv_bytes, 753ULL * 16 * 327680);
    link_at(&w, 0, 1)->per_descriptor_ns = 1000;
    w.mode.descriptors_per_block = 160;
    bt_place_terms(&w.view, 0, 1, &t);
    assert_s(t.transfer_ns,
             0.001 + 753 * 160 * 1e-6 + 753.0 * 16 * 327680 / 12e9);
}

/* ---- W10: prices ---- */

/* Warm worker 0 busy, cold worker 1 nearly free; the way to d takes no time. */
static void w10_world(struct world *w, double mu, bool fetch)
{
    world_init(w, "a100-70b-tp8", 4);
    w->view.prompt_tokens = 12035;
    w->view.block_tokens = 512;
    w->view.prices = &w->prices;
    w->prices.queue = mu;
    w->prices.eviction = 0.3;
    w->workers[0].overlap_tokens = 20 * 512;
    w->workers[0].prefill_free_ns = S(6.2);
    w->workers[1].prefill_free_ns = S(5.1);
    w->workers[1].fetch_ok = fetch;
    w->workers[3].decode_ok = false;
    *link_at(w, 0, 1) = (struct bt_link_model){20000000000, MS(2), 0};
    *link_at(w, 0, 2) = (struct bt_link_model){1000000000000000000, 0, 0};
    *link_at(w, 1, 2) = *link_at(w, 0, 2);
}

static double w10_score(double mu, bool fetch, uint32_t p)
{
    struct bt_place_candidate two[2];
    struct world w;

    w10_world(&w, mu, fetch);
    assert_int_equal(bt_place_table(&w.view, two, 2), 2);
    for (int i = 0; i < 2; i++)
        if (two[i].p == p)
            return (double)(two[i].terms.total_ns - two[i].terms.step_ns +
                            two[i].terms.price_ns) /
                   1e9;
    fail();
    return 0;
}

static void w10_prices(void **state)
{
    static const double rows[3][4] = {{0, 1.41701, 1.36477, 0.386787},
                                      {1, 1.63403, 2.62953, 0.899850},
                                      {4, 2.28507, 6.42383, 2.43904}};
    struct bt_place_candidate best;
    struct world w;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_s(S(w10_score(rows[i][0], false, 0)), rows[i][1]);
        assert_s(S(w10_score(rows[i][0], false, 1)), rows[i][2]);
        assert_s(S(w10_score(rows[i][0], true, 1)), rows[i][3]);
    }
    w10_world(&w, 3.47992, true);
    assert_int_equal(bt_place_table(&w.view, &best, 1), 2);
    assert_int_equal(best.p, 1);
    w10_world(&w, 3.47994, true);
    assert_int_equal(bt_place_table(&w.view, &best, 1), 2);
    assert_int_equal(best.p, 0);
    /* adaptive: (3 + 1 + 4 held) requests on two workers are mu = 4 */
    w10_world(&w, -1, true);
    w.workers[0].prefill_requests = 3;
    w.workers[1].prefill_requests = 1;
    w.view.waiting = 4;
    assert_int_equal(bt_place_table(&w.view, &best, 1), 2);
    assert_s(best.terms.total_ns - best.terms.step_ns + best.terms.price_ns,
             2.28507);
}

/* Own flows lose min(left, bytes) / rate each; memory held early costs. */
static void pair_prices(void **state)
{
    static const uint64_t left[] = {2000000000, 6000000000, 1000000000};
    struct world w;
    struct bt_place_terms t;

    (void)state;
    world_init(&w, "h100-70b-tp8", 2); /* W6 */
    w.view.prompt_tokens = 4000;
    w.view.kv_bytes_per_token = 1000000;
    w.view.prices = &w.prices;
    *link_at(&w, 0, 1) = (struct bt_link_model){10000000000, 0, 0};
    w.links[1].left = left;
    w.links[1].flows = 3;
    w.prices.link = 1;
    bt_place_terms(&w.view, 0, 1, &t);
    assert_s(t.price_ns, 0.700000);
    w.prices.link = 0;
    w.prices.hbm = 1;
    w.workers[1].seen_waiting = 3;
    w.workers[1].kv_capacity_tokens = 40000;
    w.workers[1].decode_free_ns = S(5) + t.arrival_ns + S(0.5);
    bt_place_terms(&w.view, 0, 1, &t);
    assert_s(t.price_ns, 3 * 0.1 * 0.5);
}

/* ---- W15: the guard ---- */

/* Transfers 300 and 200 ms (sigma 30 and 20), a step that is 55 ms longer on
 * the better side (5 % of it: 2.75): gain 45 ms, sigma 36.1603. */
static enum bt_reason w15(double width)
{
    struct bt_policy_state state;
    struct bt_placement out;
    struct world w;

    world_init(&w, "h100-70b-tp8", 4);
    w.workers[1].prefill_ok = false;
    w.view.kv_bytes_per_token = 1;
    link_at(&w, 0, 2)->setup_ns = MS(300);
    link_at(&w, 0, 3)->setup_ns = MS(200);
    w.workers[3].decode_tokens = 4230769; /* 55 ms at 1.3e-5 ms */
    start(&state, 1);
    set_knob(&state, "guard", width);
    assert_int_equal(bt_policy_find("joint")->place(&state, &w.view, &out),
                     BT_OK);
    assert_pair(&out.baseline, 0, 2);
    assert_s(out.baseline.terms.total_ns -
                 (out.reason == BT_REASON_GUARD ? out.second : out.chosen)
                     .terms.total_ns,
             0.045);
    return out.reason;
}

static void w15_guard(void **state)
{
    (void)state;
    assert_int_equal(w15(1), BT_REASON_JOINT);
    assert_int_equal(w15(1.5), BT_REASON_GUARD);
    assert_int_equal(w15(1.2444), BT_REASON_JOINT);
    assert_int_equal(w15(1.2446), BT_REASON_GUARD);
}

/* ---- sources ---- */

static struct bt_place_source source_of(struct world *w)
{
    return joint(w).chosen.source;
}

static void own_tiers(void **state)
{
    struct world w;
    struct bt_placement out;

    (void)state;
    world_init(&w, "h100-70b-tp8", 2);
    w.workers[0].overlap_tokens = 1600;
    w.workers[0].host_tokens = 4800;
    w.workers[0].disk_tokens = 8000;
    w.workers[0].host = (struct bt_tier_model){50000000000, MS(1)};
    w.workers[0].disk = (struct bt_tier_model){20000000000, MS(2)};
    out = joint(&w);
    assert_int_equal(out.reason, BT_REASON_ONLY_ONE);
    assert_int_equal(out.chosen.source.worker, 0);
    assert_int_equal(out.chosen.source.tier, BT_TIER_DISK);
    assert_int_equal(out.chosen.source.tokens, 8000);
    assert_s(out.chosen.terms.fetch_ns,
             0.003 + 3200 * 327680 / 50e9 + 3200 * 327680 / 20e9);
    w.workers[0].disk.rate_bytes_per_s = 500000000; /* slower than computing */
    assert_int_equal(source_of(&w).tier, BT_TIER_HOST);
    assert_int_equal(source_of(&w).tokens, 4800);
    w.workers[0].host_tokens = 4801; /* whole blocks only */
    assert_int_equal(source_of(&w).tokens, 4800);
    w.workers[0].host.rate_bytes_per_s = 0;
    assert_int_equal(source_of(&w).tokens, 0);
}

/* A slow link, a short queue: half of the prefix comes in time. */
static void half_a_prefix(void **state)
{
    struct world w;
    struct bt_placement out;

    (void)state;
    world_init(&w, "h100-70b-tp8", 2);
    w.workers[0].fetch_ok = true;
    w.workers[0].prefill_free_ns = S(5.3);
    w.workers[1].overlap_tokens = 8000; /* d had an earlier turn */
    link_at(&w, 1, 0)->rate_bytes_per_s = 5000000000;
    out = joint(&w);
    /* 4,000 tokens: 0.263 s, hidden; 8,000: 0.525 s, 225 ms later; computing
     * 4,000 more takes about 152 ms */
    assert_int_equal(out.chosen.source.tokens, 4000);
    assert_int_equal(out.chosen.source.worker, 1);
    assert_s(out.chosen.terms.fetch_ns, 0.001 + 4000 * 327680 / 5e9);
    link_at(&w, 1, 0)->rate_bytes_per_s = 50000000000;
    assert_int_equal(source_of(&w).tokens, 8000);
    w.workers[0].fetch_ok = false;
    assert_int_equal(source_of(&w).tokens, 0);
}

static void local_beside_a_pool(void **state)
{
    struct world w;
    struct bt_placement out;
    int64_t step;

    (void)state;
    world_init(&w, "h100-70b-tp8", 2);
    w.workers[0].prefill_free_ns = S(8);
    w.workers[1].local_ok = true;
    w.workers[1].chunk_tokens = 512;
    w.workers[1].decode_requests = 64;
    w.workers[1].decode_tokens = 64 * 4096;
    step = bt_decode_step_ns(&w.model, 64, 64 * 4096);
    out = joint(&w);
    assert_pair(&out.chosen, 1, 1);
    assert_int_equal(out.reason, BT_REASON_LOCAL);
    assert_int_equal(out.considered, 2);
    /* 24 chunks: a 24 times instead of once, and 24 steps between */
    assert_s(out.chosen.terms.prefill_ns,
             (6.51 * 24 + 0.0352 * 12000 + 2.37e-7 * 12000 * 12000) / 1e3 +
                 24 * (double)step / 1e9);
    assert_int_equal(out.chosen.terms.kv_bytes, 0);
    w.view.tpot_slo_ns = MS(20); /* a chunk and a step take more */
    out = joint(&w);
    assert_pair(&out.chosen, 0, 1);
    w.view.tpot_slo_ns = 0;
    w.prices.decode = 1; /* 64 streams lose 0.6 s each */
    w.view.prices = &w.prices;
    out = joint(&w);
    assert_pair(&out.chosen, 0, 1);
}

/* The whole request on one worker: 12,000 tokens in chunks of 512 are 24
 * steps, 23 of 512 tokens and one of 224, each with a decode step of 64
 * requests. Told nothing of chunks, the prompt goes in one piece. */
static void alone_in_chunks(void **state)
{
    struct world w;
    struct bt_place_terms t;
    double step = (8.86 + 0.0228 * 64 + 1.3e-5 * 64 * 4096) / 1e3;
    double work = (0.0352 * 12000 + 2.37e-7 * 12000 * 12000) / 1e3;

    (void)state;
    world_init(&w, "h100-70b-tp8", 2);
    w.workers[0].prefill_ok = false;
    w.workers[1].decode_requests = 64;
    w.workers[1].decode_tokens = 64 * 4096;
    w.view.tpot_slo_ns = MS(20); /* there is nobody else to prefill */
    bt_place_terms(&w.view, BT_PLACE_NONE, 1, &t);
    assert_s(t.prefill_ns, 0.00651 + work);
    w.workers[1].chunk_tokens = 512;
    bt_place_terms(&w.view, BT_PLACE_NONE, 1, &t);
    assert_s(t.prefill_ns, 24 * 0.00651 + work + 24 * step);
    assert_int_equal(t.arrival_ns, t.prefill_ns);
    assert_int_equal(joint(&w).chosen.terms.prefill_ns, t.prefill_ns);
    w.workers[1].decode_requests = 0;
    w.workers[1].decode_tokens = 0;
    bt_place_terms(&w.view, BT_PLACE_NONE, 1, &t);
    assert_s(t.prefill_ns, 24 * 0.00651 + work);
}

/* ---- late dispatch ---- */

/* Worker 0 is warm and busy for `queue` s; worker 1 is cold and free. */
static enum bt_status held(double queue, double veto, int64_t waited_ns,
                           struct bt_placement *out)
{
    struct bt_policy_state state;
    struct world w;

    world_init(&w, "h100-70b-tp8", 4);
    w.workers[0].overlap_tokens = 8192;
    w.workers[0].prefill_free_ns = S(5) + S(queue);
    w.workers[3].decode_ok = false;
    w.view.may_hold = true;
    w.view.lead_ns = MS(20);
    w.view.patience_ns = S(2);
    w.view.waited_ns = waited_ns;
    start(&state, 1);
    set_knob(&state, "veto", veto);
    return bt_policy_find("joint")->place(&state, &w.view, out);
}

static void dispatch_late(void **state)
{
    struct bt_placement out;

    (void)state;
    /* total 0.50 s warm and free */
    assert_int_equal(held(0.01, 1.25, 0, &out), BT_OK);
    assert_int_equal(out.chosen.p, 0);
    /* warm 0.61 against cold 0.81 s: 1.32 times as long */
    assert_int_equal(held(0.1, 1.25, 0, &out), BT_AGAIN);
    assert_int_equal(held(0.1, 1.4, 0, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
    assert_int_equal(out.reason, BT_REASON_JOINT);
    assert_int_equal(held(0.1, 1.25, S(2), &out), BT_OK); /* patience */
    assert_int_equal(out.chosen.p, 1);
    /* cold is the best of all by then */
    assert_int_equal(held(0.4, 1.25, 0, &out), BT_OK);
    assert_int_equal(out.chosen.p, 1);
}

/* One pair, X = 12,000 * 327,680 bytes at 12 GB/s: 0.32868 s idle. With k equal
 * flows it takes (k + 1) times X/C: 0.98404 s for two, 1.31172 s for three;
 * the limit is 3 * 0.32868 + 0.25 = 1.23604 s. */
static enum bt_status crowded(size_t flows, double crowd)
{
    static const uint64_t left[3] = {1ULL << 40, 1ULL << 40, 1ULL << 40};
    struct bt_policy_state state;
    struct bt_placement out;
    struct world w;

    world_init(&w, "h100-70b-tp8", 2);
    w.view.may_hold = true;
    w.view.lead_ns = MS(20);
    w.view.patience_ns = S(2);
    w.links[1].left = left;
    w.links[1].flows = flows;
    start(&state, 1);
    set_knob(&state, "crowd", crowd);
    return bt_policy_find("joint")->place(&state, &w.view, &out);
}

static void a_crowded_network_holds(void **state)
{
    (void)state;
    assert_int_equal(crowded(0, 3), BT_OK);
    assert_int_equal(crowded(2, 3), BT_OK);
    assert_int_equal(crowded(3, 3), BT_AGAIN);
    assert_int_equal(crowded(3, 3.5), BT_OK);
    assert_int_equal(crowded(3, 0), BT_OK);
}

/* Idle pair: 0.46304 s of prefill, 0.32868 s of transfer, a step of 0.00904 s:
 * 0.80075 s; 0.9 s have passed. */
static enum bt_status after_waiting(double reject, int64_t slo_ns, bool hold)
{
    struct bt_policy_state state;
    struct bt_placement out;
    struct world w;

    world_init(&w, "h100-70b-tp8", 2);
    w.view.may_hold = hold;
    w.view.waited_ns = S(0.9);
    w.view.ttft_slo_ns = slo_ns;
    start(&state, 1);
    set_knob(&state, "reject", reject);
    return bt_policy_find("joint")->place(&state, &w.view, &out);
}

static void the_hopeless_are_refused(void **state)
{
    (void)state;
    assert_int_equal(after_waiting(1.70, S(1), true), BT_OVERLOADED);
    assert_int_equal(after_waiting(1.71, S(1), true), BT_OK);
    assert_int_equal(after_waiting(0, S(1), true), BT_OK);
    assert_int_equal(after_waiting(1.70, 0, true), BT_OK);
    assert_int_equal(after_waiting(1.70, S(1), false), BT_OK);
}

static void nobody_is_free(void **state)
{
    struct bt_policy_state st;
    struct bt_placement out;
    struct world w;

    (void)state;
    world_init(&w, "h100-70b-tp8", 4);
    w.workers[0].prefill_free_ns = w.workers[1].prefill_free_ns = S(6);
    w.view.lead_ns = MS(20);
    w.view.waited_ns = S(60);
    w.view.may_hold = true;
    start(&st, 1);
    assert_int_equal(bt_policy_find("joint")->place(&st, &w.view, &out),
                     BT_AGAIN);
    set_knob(&st, "hold", 0);
    assert_int_equal(bt_policy_find("joint")->place(&st, &w.view, &out), BT_OK);
    set_knob(&st, "hold", 1);
    w.view.may_hold = false;
    assert_int_equal(bt_policy_find("joint")->place(&st, &w.view, &out), BT_OK);
    w.workers[2].decode_ok = w.workers[3].decode_ok = false;
    w.view.may_hold = true;
    assert_int_equal(bt_policy_find("joint")->place(&st, &w.view, &out),
                     BT_NO_WORKER);
    assert_int_equal(bt_policy_find("joint")->order_rule, BT_ORDER_SLACK);
}

/* ---- hand-off ---- */

static void hand_off(void **state)
{
    struct bt_policy_state st;
    struct bt_placement out;
    struct world w;

    (void)state;
    w9_world(&w);
    start(&st, 1);
    /* to d0 0.32868 s, slot there by then; to d1 0.026996 but its slot 0.6 */
    assert_int_equal(bt_policy_find("joint")->handoff(&st, &w.view, 1, &out),
                     BT_OK);
    assert_pair(&out.chosen, 1, 2);
    assert_int_equal(out.reason, BT_REASON_HANDOFF);
    assert_s(out.chosen.terms.total_ns, 0.328680 + 0.0137271);
    assert_int_equal(out.chosen.terms.prefill_ns, 0);
    assert_int_equal(out.considered, 2);
    assert_pair(&out.second, 1, 3);
    assert_s(out.second.terms.total_ns, 0.613727);
    w.workers[3].decode_free_ns = 0;
    bt_policy_find("joint")->handoff(&st, &w.view, 1, &out);
    assert_pair(&out.chosen, 1, 3);
    assert_s(out.chosen.terms.transfer_ns, 0.001 + 238.0 * 16 * 327680 / 48e9);
    /* p may keep it when it has both roles */
    w.workers[1].roles = BT_ROLE_BOTH;
    w.workers[1].decode_ok = true;
    bt_policy_find("joint")->handoff(&st, &w.view, 1, &out);
    assert_pair(&out.chosen, 1, 1);
    assert_int_equal(out.chosen.terms.transfer_ns, 0);
    for (uint32_t i = 0; i < 4; i++)
        w.workers[i].decode_ok = false;
    assert_int_equal(bt_policy_find("joint")->handoff(&st, &w.view, 1, &out),
                     BT_NO_WORKER);
}

/* ---- invariants on random worlds ---- */

static void shake(struct world *w, struct bt_rng *rng)
{
    static const uint64_t left[] = {700000000, 60000000, 2000000000};

    world_init(w, "h100-70b-tp8", N);
    /* longer than any prefix: equal depths would be a tie between holders */
    w->view.prompt_tokens = 12000 + (uint32_t)bt_rng_below(rng, 10000);
    w->mode = (struct bt_engine_mode){
        .overlap = (enum bt_overlap)bt_rng_below(rng, 3),
        .pieces = 1 + (uint32_t)bt_rng_below(rng, 40),
        .allocate_first = bt_rng_below(rng, 2) != 0};
    for (uint32_t i = 0; i < N; i++) {
        struct bt_place_worker *x = &w->workers[i];

        x->overlap_tokens = (uint32_t)bt_rng_below(rng, 12000);
        x->prefill_free_ns = S(5) + (int64_t)bt_rng_below(rng, 300) * 1000000;
        x->decode_free_ns = S(5) + (int64_t)bt_rng_below(rng, 300) * 1000000;
        x->decode_requests = (uint32_t)bt_rng_below(rng, 60);
        x->decode_tokens = bt_rng_below(rng, 200000);
        x->fetch_ok = bt_rng_below(rng, 2) != 0;
        x->local_ok = bt_rng_below(rng, 3) == 0;
        x->chunk_tokens = 1024;
    }
    for (uint32_t i = 0; i < N * N; i++) {
        w->link_models[i].rate_bytes_per_s =
            bt_rng_below(rng, 4) * 8000000000 + bt_rng_below(rng, 2);
        w->links[i].left = left;
        w->links[i].flows = bt_rng_below(rng, 4);
    }
}

static int64_t best_of(const struct world *w)
{
    struct bt_place_candidate best;

    return bt_place_table(&w->view, &best, 1) > 0 ? best.terms.total_ns
                                                  : BT_COST_INFINITE;
}

/* Twice as fast everywhere: half the time, up to the rounding of each term. */
static void scaling_scales(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 41);
    for (int i = 0; i < 1000; i++) {
        struct world w;
        int64_t slow, fast;

        shake(&w, &rng);
        slow = best_of(&w);
        w.model.speedup *= 2;
        for (uint32_t l = 0; l < N * N; l++) {
            w.link_models[l].rate_bytes_per_s *= 2;
            w.link_models[l].setup_ns /= 2;
        }
        for (uint32_t x = 0; x < N; x++) {
            w.workers[x].prefill_free_ns =
                S(5) + (w.workers[x].prefill_free_ns - S(5)) / 2;
            w.workers[x].decode_free_ns =
                S(5) + (w.workers[x].decode_free_ns - S(5)) / 2;
        }
        fast = best_of(&w);
        if (slow < BT_COST_INFINITE && llabs(slow - 2 * fast) > 200)
            fail_msg("case %d: %lld, not twice %lld", i, (long long)slow,
                     (long long)fast);
    }
}

/* The source of p is chosen by the end of its prefill alone, which is the best
 * for every d unless the engine overlaps or waits for d first. */
static void a_faster_link_never_slows(void **state)
{
    struct bt_rng rng;
    unsigned int gains = 0;

    (void)state;
    bt_rng_seed(&rng, 42);
    for (int i = 0; i < 2000; i++) {
        struct world w;
        uint32_t l = (uint32_t)bt_rng_below(&rng, N * N);
        int64_t before, after;

        shake(&w, &rng);
        w.mode.overlap = BT_OVERLAP_NONE;
        w.mode.allocate_first = false;
        before = best_of(&w);
        w.link_models[l].rate_bytes_per_s += 20000000000; /* or a new one */
        after = best_of(&w);
        assert_true(after <= before);
        gains += after < before;
    }
    assert_true(gains > 50);
}

/* Position i of the renamed world is worker n - 1 - i. */
static void renaming_renames(void **state)
{
    struct bt_rng rng;
    unsigned int compared = 0;

    (void)state;
    bt_rng_seed(&rng, 43);
    for (int i = 0; i < 1000; i++) {
        struct bt_place_candidate a[2], b[2];
        struct world w, r;
        size_t n;

        shake(&w, &rng);
        r = w;
        r.view.workers = r.workers;
        r.view.links = r.links;
        r.view.mode = &r.mode;
        for (uint32_t x = 0; x < N; x++) {
            r.workers[x] = w.workers[N - 1 - x];
            r.workers[x].id = bt_worker_id_make(x, 1);
            for (uint32_t y = 0; y < N; y++)
                r.links[x * N + y] = w.links[(N - 1 - x) * N + N - 1 - y];
        }
        n = bt_place_table(&w.view, a, 2);
        assert_int_equal(bt_place_table(&r.view, b, 2), n);
        if (n == 0)
            continue;
        assert_int_equal(a[0].terms.total_ns, b[0].terms.total_ns);
        if (n > 1 && a[0].terms.total_ns == a[1].terms.total_ns)
            continue;
        assert_pair(&b[0], N - 1 - a[0].p, N - 1 - a[0].d);
        compared++;
    }
    assert_true(compared > 500);
}

static void more_at_d_never_later(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 44);
    for (int i = 0; i < 3000; i++) {
        struct bt_place_terms a, b;
        struct world w;

        shake(&w, &rng);
        bt_place_terms(&w.view, 0, N - 1, &a);
        w.workers[N - 1].overlap_tokens += (uint32_t)bt_rng_below(&rng, 4000);
        bt_place_terms(&w.view, 0, N - 1, &b);
        assert_true(b.arrival_ns <= a.arrival_ns);
        assert_true(a.total_ns >= a.arrival_ns && a.total_ns >= a.slot_ns);
        w.mode.overlap = BT_OVERLAP_NONE;
        bt_place_terms(&w.view, 0, N - 1, &a);
        assert_true(b.arrival_ns <= a.arrival_ns); /* overlap never hurts */
    }
}

static void one_pair_no_guard(void **state)
{
    struct bt_rng rng;
    unsigned int fetched = 0;

    (void)state;
    bt_rng_seed(&rng, 45);
    for (int i = 0; i < 1000; i++) {
        struct bt_policy_state st;
        struct bt_placement out;
        struct world w;

        shake(&w, &rng);
        for (uint32_t x = 0; x < N; x++) {
            w.workers[x].local_ok = false;
            w.workers[x].prefill_ok = x == 0;
            w.workers[x].decode_ok = x == N - 1;
        }
        start(&st, (uint64_t)i);
        if (bt_policy_find("joint")->place(&st, &w.view, &out) != BT_OK)
            continue;
        assert_int_equal(out.reason, BT_REASON_ONLY_ONE);
        fetched += out.chosen.source.tokens > 0;
    }
    assert_true(fetched > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w5_overlap),
        cmocka_unit_test(w9_fetch),
        cmocka_unit_test(w9_allocate_first),
        cmocka_unit_test(mode_sizes),
        cmocka_unit_test(w10_prices),
        cmocka_unit_test(pair_prices),
        cmocka_unit_test(w15_guard),
        cmocka_unit_test(own_tiers),
        cmocka_unit_test(half_a_prefix),
        cmocka_unit_test(local_beside_a_pool),
        cmocka_unit_test(alone_in_chunks),
        cmocka_unit_test(dispatch_late),
        cmocka_unit_test(a_crowded_network_holds),
        cmocka_unit_test(the_hopeless_are_refused),
        cmocka_unit_test(nobody_is_free),
        cmocka_unit_test(hand_off),
        cmocka_unit_test(scaling_scales),
        cmocka_unit_test(a_faster_link_never_slows),
        cmocka_unit_test(renaming_renames),
        cmocka_unit_test(more_at_d_never_later),
        cmocka_unit_test(one_pair_no_guard),
    };

    return cmocka_run_group_tests_name("place_model", tests, NULL, NULL);
}
