/* Invariants 1, 2, 5, 6, 10 and 11 of cost-models.md section 21 for the
 * arithmetic of the planner, on random input. */
#include "baton/base/rng.h"
#include "baton/planner/calibrate.h"
#include "baton/planner/kv_geometry.h"
#include "baton/planner/slot.h"
#include "baton/planner/transfer_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#define SEED   81
#define ROUNDS 20000

static uint64_t round_now;

/* Names the round: with the seed it is the whole input. */
#define check(what)                                                            \
    do {                                                                       \
        if (!(what))                                                           \
            fail_msg("seed %d round %llu: %s", SEED,                           \
                     (unsigned long long)round_now, #what);                    \
    } while (0)

/* Log-uniform in [1, e^range). */
static double spread(struct bt_rng *rng, double range)
{
    return exp(bt_rng_unit(rng) * range);
}

static uint64_t more(struct bt_rng *rng, uint64_t v)
{
    return v + (uint64_t)spread(rng, 20) - 1;
}

struct sample {
    int64_t setup, post;
    double rate;
    uint64_t n, bytes, piece;
    struct bt_stage stages[3];
};

static struct sample draw(struct bt_rng *rng)
{
    struct sample s = {.setup = (int64_t)spread(rng, 16),
                       .post = (int64_t)spread(rng, 9),
                       .rate = 1e3 * spread(rng, 20),
                       .n = (uint64_t)spread(rng, 14),
                       .bytes = (uint64_t)spread(rng, 34),
                       .piece = (uint64_t)spread(rng, 25)};

    for (int i = 0; i < 3; i++) {
        s.stages[i].overhead_ns = (int64_t)spread(rng, 12);
        s.stages[i].rate_bytes_per_s = 1e6 * spread(rng, 12);
    }
    return s;
}

static int64_t additive(const struct sample *s)
{
    return bt_transfer_additive_ns(s->setup, s->post, s->rate, s->n, s->bytes);
}

static int64_t greatest(const struct sample *s)
{
    return bt_transfer_max_ns(s->setup, s->post, 1, s->rate, s->n, s->bytes, 0);
}

static int64_t staged(const struct sample *s)
{
    return bt_pipeline_ns(s->setup, s->stages, 3, s->bytes, s->piece);
}

/* 1: never less for more bytes or descriptors, never more for more bandwidth,
 * never below the setup; the two forms within a factor of two. */
static void monotone(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    for (round_now = 0; round_now < ROUNDS; round_now++) {
        struct sample s = draw(&rng);
        struct sample bytes = s;
        struct sample n = s;
        struct sample fast = s;

        bytes.bytes = more(&rng, s.bytes);
        n.n = more(&rng, s.n);
        fast.rate = s.rate * spread(&rng, 3);
        for (int i = 0; i < 3; i++)
            fast.stages[i].rate_bytes_per_s *= spread(&rng, 3);
        check(additive(&s) >= s.setup && greatest(&s) >= s.setup);
        check(staged(&s) >= s.setup);
        check(additive(&bytes) >= additive(&s));
        check(greatest(&bytes) >= greatest(&s));
        check(staged(&bytes) >= staged(&s));
        check(additive(&n) >= additive(&s) && greatest(&n) >= greatest(&s));
        check(additive(&fast) <= additive(&s));
        check(greatest(&fast) <= greatest(&s));
        check(staged(&fast) <= staged(&s));
        check(greatest(&s) <= additive(&s));
        check(additive(&s) >= BT_COST_INFINITE ||
              additive(&s) <= 2 * greatest(&s) + 1);
    }
}

/* 2: more pieces never arrive later, and without a cached part many of them
 * cost only the longer of compute and send. */
static void overlap_helps(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    for (round_now = 0; round_now < ROUNDS; round_now++) {
        int64_t compute = (int64_t)spread(&rng, 23);
        int64_t setup = (int64_t)spread(&rng, 14);
        double rate = 1e6 * spread(&rng, 12);
        uint64_t held = bt_rng_below(&rng, 2) ? (uint64_t)spread(&rng, 25) : 0;
        uint64_t fresh = (uint64_t)spread(&rng, 25);
        uint32_t few = 2 + (uint32_t)bt_rng_below(&rng, 20);
        uint32_t many = few + (uint32_t)bt_rng_below(&rng, 100);
        int64_t none = bt_arrival_ns(compute, setup, rate, held, fresh, 1);
        int64_t chunk = bt_arrival_ns(compute, setup, rate, held, fresh, few);
        int64_t layer = bt_arrival_ns(compute, setup, rate, held, fresh, many);
        double send = (double)fresh / rate * 1e9;

        check(layer <= chunk && chunk <= none);
        check(layer >= compute);
        if (held > 0)
            continue;
        layer = bt_arrival_ns(compute, setup, rate, 0, fresh, UINT32_MAX);
        check(fabs((double)(layer - setup) - fmax((double)compute, send)) <=
              2 + 1e-6 * send);
    }
}

static int64_t arrival(const struct bt_compute_model *m, uint64_t prompt,
                       uint64_t held_p, uint64_t held_d, uint32_t pieces)
{
    const uint64_t kappa = 327680;
    uint64_t later = held_p > held_d ? held_p : held_d;
    uint64_t ready = held_p > held_d ? held_p - held_d : 0;

    return bt_arrival_ns(bt_prefill_ns(m, prompt - held_p, held_p), 1000000,
                         12e9, kappa * ready, kappa * (prompt - later), pieces);
}

/* 5: more held at d never arrives later, more held at p never computes longer;
 * whole, in chunks, and in bytes. */
static void holding_more_never_hurts(void **state)
{
    struct bt_compute_model m;
    struct bt_kv_geometry g;
    struct bt_rng rng;

    (void)state;
    assert_int_equal(bt_compute_preset("h100-70b-tp8", &m), BT_OK);
    assert_int_equal(bt_kv_preset("gpt-oss-120b", &g), BT_OK);
    bt_rng_seed(&rng, SEED);
    for (round_now = 0; round_now < ROUNDS; round_now++) {
        uint64_t prompt = 1 + (uint64_t)spread(&rng, 11.5);
        uint64_t p = bt_rng_below(&rng, prompt);
        uint64_t d = bt_rng_below(&rng, prompt);
        uint64_t p_more = p + bt_rng_below(&rng, prompt - p);
        uint64_t d_more = d + bt_rng_below(&rng, prompt - d + 1);
        uint32_t pieces = 1 + (uint32_t)bt_rng_below(&rng, 80);
        uint64_t chunk = 1 + bt_rng_below(&rng, 4096);
        uint32_t block = 1 + (uint32_t)bt_rng_below(&rng, 64);

        check(arrival(&m, prompt, p, d_more, pieces) <=
              arrival(&m, prompt, p, d, pieces));
        check(bt_prefill_ns(&m, prompt - p_more, p_more) <=
              bt_prefill_ns(&m, prompt - p, p));
        check(bt_prefill_chunked_ns(&m, prompt - p_more, p_more, chunk) <=
              bt_prefill_chunked_ns(&m, prompt - p, p, chunk));
        check(bt_kv_bytes(&g, prompt, d_more, block) <=
              bt_kv_bytes(&g, prompt, d, block));
        check(bt_kv_bytes(&g, prompt + p, d, block) >=
              bt_kv_bytes(&g, prompt, d, block));
    }
}

/* The definition of section 12, tried at every instant of a fine grid. */
static int64_t alloc_by_grid(const struct bt_slot_query *q, int64_t until)
{
    for (int64_t t = q->now_ns; t <= until; t += 1000000) {
        double room = (double)q->free_blocks;
        size_t ended = 0;

        for (; ended < q->count && q->releases[ended].at_ns <= t; ended++)
            room += (double)q->releases[ended].blocks;
        room -= q->growth_blocks_per_s * (double)(t - q->now_ns) / 1e9 *
                (double)(q->count - ended) / fmax(1, (double)q->count);
        if (room >= (double)(q->ahead_blocks + q->need_blocks))
            return t;
    }
    return BT_COST_INFINITE;
}

/* 6: against the grid, and monotone. Releases lie on the grid. */
static void slots(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    for (round_now = 0; round_now < ROUNDS / 10; round_now++) {
        struct bt_slot_release ends[6];
        struct bt_slot_query q = {.now_ns = 5000000,
                                  .free_blocks = bt_rng_below(&rng, 500),
                                  .ahead_blocks = bt_rng_below(&rng, 500),
                                  .releases = ends,
                                  .count = bt_rng_below(&rng, 7)};
        uint64_t prompt = 1 + bt_rng_below(&rng, 20000);
        uint64_t held = bt_rng_below(&rng, prompt);
        struct bt_slot_query other;
        int64_t at = 0;

        for (size_t i = 0; i < q.count; i++) {
            at += (int64_t)bt_rng_below(&rng, 40) * 1000000;
            ends[i] = (struct bt_slot_release){at, bt_rng_below(&rng, 500)};
        }
        q.running = (uint32_t)q.count;
        q.ahead = (uint32_t)bt_rng_below(&rng, 4);
        q.running_max = (uint32_t)bt_rng_below(&rng, 9);
        q.growth_blocks_per_s =
            bt_rng_below(&rng, 2) ? (double)bt_rng_below(&rng, 5000) : 0;
        q.need_blocks = bt_slot_need(prompt, 512, held, 16);
        check(bt_slot_alloc_ns(&q) == alloc_by_grid(&q, 300000000));
        check(bt_slot_run_ns(&q) >= bt_slot_alloc_ns(&q));
        other = q;
        other.free_blocks += bt_rng_below(&rng, 300);
        check(bt_slot_alloc_ns(&other) <= bt_slot_alloc_ns(&q));
        check(bt_slot_run_ns(&other) <= bt_slot_run_ns(&q));
        other = q;
        other.need_blocks = bt_slot_need(prompt, 512, more(&rng, held), 16);
        check(bt_slot_alloc_ns(&other) <= bt_slot_alloc_ns(&q));
        other = q;
        other.ahead_blocks += bt_rng_below(&rng, 300);
        other.ahead++;
        check(bt_slot_alloc_ns(&other) >= bt_slot_alloc_ns(&q));
        check(bt_slot_run_ns(&other) >= bt_slot_run_ns(&q));
    }
}

static double noise(struct bt_rng *rng)
{
    static const double odd[] = {0,     -1,     (double)NAN, (double)INFINITY,
                                 1e300, 1e-300, 1e9,         1e-9};

    if (bt_rng_below(rng, 10) == 0)
        return odd[bt_rng_below(rng, 8)];
    return spread(rng, 6) / 20;
}

static void check_sound(const struct bt_rls *r)
{
    for (int i = 0; i < 3; i++) {
        check(r->theta[i] >= r->floor[i] && r->theta[i] <= r->ceiling[i]);
        check(r->p[i][i] >= 0 && isfinite(r->p[i][i]));
        for (int j = 0; j < 3; j++)
            check(r->p[i][j] == r->p[j][i]);
    }
}

/* 10: own predictions leave theta alone, clamps hold whatever comes, P stays
 * bounded. */
static void least_squares(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, SEED);
    for (round_now = 0; round_now < ROUNDS / 100; round_now++) {
        double theta[3], p[3], kept[3];
        struct bt_rls r;

        for (int i = 0; i < 3; i++) {
            theta[i] = spread(&rng, 5);
            p[i] = theta[i] * theta[i] * 0.25;
        }
        bt_rls_init(&r, theta, p, 0.95 + 0.05 * bt_rng_unit(&rng), 0.1);
        for (int i = 0; i < 3; i++) {
            r.floor[i] = theta[i] / 10;
            r.ceiling[i] = theta[i] * 10;
        }
        for (int k = 0; k < 300; k++) {
            double x[3] = {1, spread(&rng, 4) / 8, spread(&rng, 4) / 8};

            bt_rls_update(&r, x, bt_rls_predict(&r, x));
        }
        for (int i = 0; i < 3; i++)
            check(r.theta[i] == theta[i]);
        for (int k = 0; k < 300; k++) {
            double x[3] = {1, noise(&rng), noise(&rng)};

            bt_rls_update(&r, x, noise(&rng) * theta[0] * 10);
            check_sound(&r);
            check(r.p[0][0] / p[0] + r.p[1][1] / p[1] + r.p[2][2] / p[2] <=
                  12 / 0.95 + 1);
        }
        for (int i = 0; i < 3; i++)
            kept[i] = r.theta[i];
        bt_rls_reset_p(&r);
        for (int i = 0; i < 3; i++)
            check(r.theta[i] == kept[i] && r.p[i][i] == p[i]);
    }
}

/* 11: up to 2^50 bytes and down to 1 kB/s: right, or infinite; never negative,
 * never wrapped. */
static void nothing_overflows(void **state)
{
    const uint64_t most = 1ULL << 50;
    const struct bt_stage stages[2] = {{1000, 1e3}, {1000, 2e3}};
    struct bt_station station = {4, 1e3, 0.25, 8, 1000};
    struct bt_rng rng;

    (void)state;
    check(bt_transfer_additive_ns(1, 1, 1e3, 1, most) == BT_COST_INFINITE);
    check(bt_transfer_max_ns(1, 1, 1, 1e3, 1, most, 1) == BT_COST_INFINITE);
    check(bt_pipeline_ns(1, stages, 2, most, 65536) == BT_COST_INFINITE);
    check(bt_arrival_ns(1, 1, 1e3, most, most, 80) == BT_COST_INFINITE);
    check(bt_station_ns(&station, 4, most, most) == BT_COST_INFINITE);
    check(bt_arrival_ns(BT_COST_INFINITE, BT_COST_INFINITE, 1e3, UINT64_MAX,
                        UINT64_MAX, 1) == BT_COST_INFINITE);
    /* 2^50 bytes at 1 GB/s: 13 days, which fits. */
    check(bt_transfer_additive_ns(0, 0, 1e9, 0, most) == (int64_t)most);
    bt_rng_seed(&rng, SEED);
    for (round_now = 0; round_now < ROUNDS; round_now++) {
        uint64_t a = bt_rng_u64(&rng) >> bt_rng_below(&rng, 64);
        uint64_t b = bt_rng_u64(&rng) >> bt_rng_below(&rng, 64);
        double rate = spread(&rng, 60);
        int64_t ns = (int64_t)(b >> 2);
        int64_t all[6] = {bt_transfer_additive_ns(ns, ns, rate, a, b),
                          bt_transfer_max_ns(ns, ns, 3, rate, b, a, ns),
                          bt_pipeline_ns(ns, stages, 2, a, b),
                          bt_arrival_ns(ns, ns, rate, a, b, (uint32_t)a),
                          bt_station_ns(&station, (uint32_t)a, a, b),
                          0};

        for (int i = 0; i < 5; i++)
            check(all[i] >= 0 && all[i] <= BT_COST_INFINITE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotone),
        cmocka_unit_test(overlap_helps),
        cmocka_unit_test(holding_more_never_hurts),
        cmocka_unit_test(slots),
        cmocka_unit_test(least_squares),
        cmocka_unit_test(nothing_overflows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
