/* Invariants 1, 3, 5, 7, 8 of cost-models.md section 21 on random fleets, and
 * joint against a brute force over every pair. */
#include "baton/base/rng.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define WORKERS_MAX 80 /* more than one chunk of the scan */
#define ROUNDS      3000

static struct bt_compute_model models[2];
static struct bt_link_model link_models[WORKERS_MAX * WORKERS_MAX];
static struct bt_place_link links[WORKERS_MAX * WORKERS_MAX];
static struct bt_place_worker workers[WORKERS_MAX];
static uint64_t left[4];

static int64_t below(struct bt_rng *rng, int64_t bound)
{
    return (int64_t)bt_rng_below(rng, (uint64_t)bound);
}

static void random_worker(struct bt_rng *rng, uint32_t i, int64_t now)
{
    workers[i] = (struct bt_place_worker){
        .id = bt_worker_id_make(i, 1),
        .roles = 1 + (unsigned int)below(rng, 3),
        .prefill_ok = below(rng, 8) != 0,
        .decode_ok = below(rng, 8) != 0,
        .overlap_tokens = (uint32_t)below(rng, 9000),
        .prefill_tokens = bt_rng_below(rng, 4) * 1000,
        .prefill_free_ns = now + below(rng, 600000000) - 200000000,
        .decode_requests = (uint32_t)below(rng, 64),
        .decode_tokens = bt_rng_below(rng, 5) * 50000,
        .kv_capacity_tokens = below(rng, 5) ? 0 : bt_rng_below(rng, 20000),
        .decode_free_ns = now + below(rng, 600000000) - 400000000,
        .model = below(rng, 20) ? &models[below(rng, 2)] : NULL,
    };
}

static struct bt_place_view random_view(struct bt_rng *rng, uint32_t n)
{
    struct bt_place_view v = {
        .now_ns = 1000000000,
        .prompt_tokens = 1 + (uint32_t)below(rng, 9000),
        .block_tokens = below(rng, 10) ? 16 : 0,
        .output_tokens = (uint32_t)below(rng, 500),
        .kv_bytes_per_token = bt_rng_below(rng, 3) * 160000,
        .workers = workers,
        .worker_count = n,
        .links = links,
        .overlap_known = true,
    };

    for (int i = 0; i < 4; i++)
        left[i] = bt_rng_below(rng, 4000000000ULL);
    for (uint32_t i = 0; i < n; i++)
        random_worker(rng, i, v.now_ns);
    for (uint32_t i = 0; i < n * n; i++) {
        link_models[i] = (struct bt_link_model){
            .rate_bytes_per_s = bt_rng_below(rng, 4) * 6000000000ULL,
            .setup_ns = below(rng, 3000000),
            .per_descriptor_ns = below(rng, 2000)};
        links[i] = (struct bt_place_link){.model = &link_models[i],
                                          .left = left,
                                          .flows = bt_rng_below(rng, 5)};
    }
    return v;
}

/* Least total over every pair, the slow way, and the number of feasible ones.
 */
static int64_t brute(const struct bt_place_view *v, uint32_t *feasible_out)
{
    int64_t least = BT_COST_INFINITE;
    int pool = 0;

    *feasible_out = 0;
    for (uint32_t p = 0; p < v->worker_count; p++)
        pool |= workers[p].prefill_ok && (workers[p].roles & BT_ROLE_PREFILL) &&
                workers[p].model != NULL &&
                (workers[p].kv_capacity_tokens == 0 ||
                 workers[p].kv_capacity_tokens >= v->prompt_tokens);
    for (uint32_t p = 0; p < (pool ? v->worker_count : 1); p++) {
        for (uint32_t d = 0; d < v->worker_count; d++) {
            struct bt_place_terms t;

            bt_place_terms(v, pool ? p : BT_PLACE_NONE, d, &t);
            if (t.total_ns >= BT_COST_INFINITE)
                continue;
            ++*feasible_out;
            if (t.total_ns < least)
                least = t.total_ns;
        }
    }
    return least;
}

static void check_feasible(const struct bt_place_view *v,
                           const struct bt_place_candidate *c)
{
    const struct bt_place_worker *d = &v->workers[c->d];

    assert_true(d->decode_ok && (d->roles & BT_ROLE_DECODE));
    assert_true(d->kv_capacity_tokens == 0 ||
                d->kv_capacity_tokens >= v->prompt_tokens + v->output_tokens);
    assert_true(c->terms.total_ns < BT_COST_INFINITE);
    if (c->p == BT_PLACE_NONE)
        return;
    assert_true(v->workers[c->p].prefill_ok &&
                (v->workers[c->p].roles & BT_ROLE_PREFILL));
    if (c->p != c->d)
        assert_true(
            v->links[c->p * v->worker_count + c->d].model->rate_bytes_per_s >
            0);
}

/* Joint takes the least total or, behind its guard, the naive choice. Without a
 * prefill pool the reason is that, whichever of the two it was. */
static void check_joint(const struct bt_placement *o, int64_t least)
{
    bool naive = o->chosen.p == o->baseline.p && o->chosen.d == o->baseline.d;

    if (o->reason == BT_REASON_GUARD)
        assert_true(naive);
    if (o->chosen.terms.total_ns != least) {
        assert_true(naive);
        assert_true(o->reason == BT_REASON_GUARD ||
                    o->reason == BT_REASON_NO_PREFILL);
        assert_int_equal(o->second.terms.total_ns, least);
    }
    if (o->baseline.d != BT_PLACE_NONE)
        assert_true(o->chosen.terms.total_ns <= o->baseline.terms.total_ns);
}

static void policies_choose_feasible_pairs(void **state)
{
    struct bt_policy_state st;
    struct bt_rng rng;
    unsigned int placed = 0, guarded = 0;
    const uint64_t seed = 31337;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    bt_policy_state_init(&st, seed);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n = i % 100 == 0 ? WORKERS_MAX : 1 + (uint32_t)below(&rng, 7);
        struct bt_place_view v = random_view(&rng, n);
        uint32_t feasible;
        int64_t least = brute(&v, &feasible);

        assert_int_equal(bt_place_table(&v, NULL, 0), feasible);
        for (size_t k = 0; bt_policy_at(k) != NULL; k++) {
            struct bt_placement o;
            enum bt_status s = bt_policy_at(k)->place(&st, &v, &o);

            assert_int_equal(s, feasible > 0 ? BT_OK : BT_NO_WORKER);
            if (s != BT_OK)
                continue;
            placed++;
            assert_int_equal(o.considered, feasible);
            check_feasible(&v, &o.chosen);
            check_feasible(&v, &o.baseline);
            assert_true((o.second.d == BT_PLACE_NONE) == (feasible == 1));
            if (feasible == 1)
                assert_true(o.reason == BT_REASON_ONLY_ONE ||
                            o.reason == BT_REASON_NO_PREFILL);
            if (strcmp(bt_policy_at(k)->name, "joint") == 0) {
                check_joint(&o, least);
                guarded += o.reason == BT_REASON_GUARD;
            }
        }
    }
    assert_true(placed > ROUNDS && guarded > 10);
}

static void terms_are_monotonic(void **state)
{
    struct bt_rng rng;
    const uint64_t seed = 4711;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < ROUNDS; i++) {
        struct bt_place_view v = random_view(&rng, 2);
        struct bt_place_terms a, b;

        workers[0].model = workers[1].model = &models[0];
        bt_place_terms(&v, 0, 1, &a);
        assert_true(a.total_ns >= a.arrival_ns && a.total_ns >= a.slot_ns);
        assert_true(a.arrival_ns >= a.transfer_ns);
        workers[1].overlap_tokens += (uint32_t)below(&rng, 3000);
        bt_place_terms(&v, 0, 1, &b);
        assert_true(b.arrival_ns <= a.arrival_ns);
        assert_true(b.kv_bytes <= a.kv_bytes);
        workers[0].overlap_tokens += (uint32_t)below(&rng, 3000);
        bt_place_terms(&v, 0, 1, &a);
        assert_true(a.prefill_ns <= b.prefill_ns);
    }
}

static void transfers_are_bounded(void **state)
{
    struct bt_rng rng;
    const uint64_t seed = 90210;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < 20000; i++) {
        struct bt_link_model m = {.rate_bytes_per_s =
                                      1 + bt_rng_below(&rng, 100000000000ULL),
                                  .setup_ns = below(&rng, 1000000),
                                  .per_descriptor_ns = below(&rng, 1000)};
        uint64_t flows[6], s = 1 + bt_rng_below(&rng, 8000000000ULL);
        size_t n = bt_rng_below(&rng, 6);
        double sum = (double)s, rate = (double)m.rate_bytes_per_s;
        int64_t t, u;

        for (size_t j = 0; j < n; j++) {
            flows[j] = bt_rng_below(&rng, 8000000000ULL);
            sum += (double)flows[j];
        }
        t = bt_transfer_ns(&m, s, 10, flows, n);
        assert_true(t >= m.setup_ns);
        u = t - m.setup_ns - 10 * m.per_descriptor_ns;
        assert_true((double)u <= sum / rate * 1e9 + 2); /* FIFO */
        assert_true((double)u <= (double)s * (double)(n + 1) / rate * 1e9 + 2);
        if (n == 0)
            assert_true((double)u + 2 >= (double)s / rate * 1e9);
        assert_true(bt_transfer_ns(&m, s + 1000, 10, flows, n) >= t);
        assert_true(bt_transfer_ns(&m, s, 11, flows, n) >= t);
        assert_true(n == 0 || bt_transfer_ns(&m, s, 10, flows, n - 1) <= t);
        m.rate_bytes_per_s *= 2;
        assert_true(bt_transfer_ns(&m, s, 10, flows, n) <= t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_choose_feasible_pairs),
        cmocka_unit_test(terms_are_monotonic),
        cmocka_unit_test(transfers_are_bounded),
    };

    bt_compute_preset("h100-8b-tp1", &models[0]);
    bt_compute_preset("a100-70b-tp8", &models[1]);
    return cmocka_run_group_tests_name("place_invariants", tests, NULL, NULL);
}
