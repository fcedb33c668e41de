/* Invariants 1, 3, 5, 7, 8 of cost-models.md section 21 on random fleets, and
 * joint against a brute force over every pair. */
#include "baton/base/rng.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 80 /* more than one chunk of the scan */
#define ROUNDS      3000

static struct bt_compute_model models[2];
static struct bt_link_model link_models[WORKERS_MAX * WORKERS_MAX];
static struct bt_place_link links[WORKERS_MAX * WORKERS_MAX];
static struct bt_place_worker workers[WORKERS_MAX];
static uint64_t left[4];

/* The rivals have tests of their own. */
static const char *const ours[] = {"round_robin", "least_loaded", "prefix_load",
                                   "joint"};
#define OURS (sizeof(ours) / sizeof(ours[0]))

/* Default knobs of a policy, its generator as it is. */
static void set_knobs(const struct bt_policy *policy,
                      struct bt_policy_state *state)
{
    for (size_t i = 0; policy->knobs != NULL && policy->knobs[i].name; i++)
        state->knobs[i] = policy->knobs[i].value;
}

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
        for (size_t k = 0; k < OURS; k++) {
            const struct bt_policy *policy = bt_policy_find(ours[k]);
            struct bt_placement o;
            enum bt_status s;

            set_knobs(policy, &st);
            s = policy->place(&st, &v, &o);

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
            if (strcmp(ours[k], "joint") == 0) {
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

/* ---- one pass with bounds, against every pair by itself ---- */

#define TABLE_MAX 16u

static struct bt_place_candidate all_pairs[WORKERS_MAX * WORKERS_MAX];

static int by_total_then_ids(const void *a, const void *b)
{
    const struct bt_place_candidate *x = a, *y = b;

    if (x->terms.total_ns != y->terms.total_ns)
        return x->terms.total_ns < y->terms.total_ns ? -1 : 1;
    if (x->p != y->p)
        return x->p < y->p ? -1 : 1;
    return (x->d > y->d) - (x->d < y->d);
}

/* Every feasible pair, sorted: ids grow with the position here. */
static size_t sorted_pairs(const struct bt_place_view *v)
{
    uint32_t feasible;
    size_t n = 0;
    bool pool = false;

    (void)brute(v, &feasible);
    for (uint32_t p = 0; p < v->worker_count; p++)
        pool |= workers[p].prefill_ok && (workers[p].roles & BT_ROLE_PREFILL) &&
                workers[p].model != NULL &&
                (workers[p].kv_capacity_tokens == 0 ||
                 workers[p].kv_capacity_tokens >= v->prompt_tokens);
    for (uint32_t p = 0; p < (pool ? v->worker_count : 1); p++)
        for (uint32_t d = 0; d < v->worker_count; d++) {
            struct bt_place_candidate *c = &all_pairs[n];

            c->p = pool ? p : BT_PLACE_NONE;
            c->d = d;
            bt_place_terms(v, c->p, d, &c->terms);
            n += c->terms.total_ns < BT_COST_INFINITE;
        }
    assert_int_equal(n, feasible);
    qsort(all_pairs, n, sizeof(all_pairs[0]), by_total_then_ids);
    return n;
}

/* Bounds that hold for every pair p != d of the view, as tight as can be. */
static bool bounds_of(const struct bt_place_view *v, struct bt_place_bounds *b)
{
    bool usable = true;

    *b = (struct bt_place_bounds){.rate_min = UINT64_MAX,
                                  .setup_min_ns = INT64_MAX,
                                  .descriptor_min_ns = INT64_MAX};
    for (uint32_t i = 0; i < v->worker_count * v->worker_count; i++) {
        const struct bt_link_model *m = links[i].model;

        if (i / v->worker_count == i % v->worker_count)
            continue;
        usable = usable && m->rate_bytes_per_s > 0;
        if (m->rate_bytes_per_s < b->rate_min)
            b->rate_min = m->rate_bytes_per_s;
        if (m->rate_bytes_per_s > b->rate_max)
            b->rate_max = m->rate_bytes_per_s;
        if (m->setup_ns < b->setup_min_ns)
            b->setup_min_ns = m->setup_ns;
        if (m->setup_ns > b->setup_max_ns)
            b->setup_max_ns = m->setup_ns;
        if (m->per_descriptor_ns < b->descriptor_min_ns)
            b->descriptor_min_ns = m->per_descriptor_ns;
        if (m->per_descriptor_ns > b->descriptor_max_ns)
            b->descriptor_max_ns = m->per_descriptor_ns;
        if (links[i].flows > b->flows_max)
            b->flows_max = links[i].flows;
    }
    return usable && v->worker_count > 1;
}

/* Some links alike, loads and overlaps in few steps: many equal totals. */
static void coarsen(struct bt_rng *rng, const struct bt_place_view *v)
{
    bool alike = below(rng, 2) != 0, rated = below(rng, 4) != 0;

    for (uint32_t i = 0; i < v->worker_count; i++) {
        workers[i].overlap_tokens -= workers[i].overlap_tokens % 4096;
        workers[i].prefill_free_ns = v->now_ns + below(rng, 3) * 100000000;
        workers[i].decode_free_ns = v->now_ns + below(rng, 2) * 400000000;
        workers[i].decode_requests = 8;
        workers[i].model = &models[0];
    }
    for (uint32_t i = 0; i < v->worker_count * v->worker_count; i++) {
        if (alike)
            link_models[i] = link_models[0];
        if (rated && link_models[i].rate_bytes_per_s == 0)
            link_models[i].rate_bytes_per_s = 12000000000ULL;
        if (alike)
            links[i].flows = 0;
    }
}

static void check_table(const struct bt_place_view *v, size_t n)
{
    static struct bt_place_candidate table[TABLE_MAX];

    for (size_t max = 0; max <= TABLE_MAX; max = max * 2 + 1) {
        size_t kept = n < max ? n : max;

        memset(table, 0xee, sizeof(table));
        assert_int_equal(bt_place_table(v, table, max), n);
        for (size_t i = 0; i < kept; i++) {
            assert_int_equal(table[i].p, all_pairs[i].p);
            assert_int_equal(table[i].d, all_pairs[i].d);
            assert_memory_equal(&table[i].terms, &all_pairs[i].terms,
                                sizeof(table[i].terms));
        }
        if (kept < TABLE_MAX)
            assert_int_equal(table[kept].p, 0xeeeeeeeeu);
    }
}

static void one_pass_finds_the_same(void **state)
{
    struct bt_rng rng;
    struct bt_place_bounds bounds;
    unsigned int bounded = 0;
    const uint64_t seed = 60661;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n = i % 100 == 0 ? WORKERS_MAX : 1 + (uint32_t)below(&rng, 12);
        struct bt_place_view v = random_view(&rng, n), w;

        if (below(&rng, 3))
            coarsen(&rng, &v);
        w = v;
        if (bounds_of(&v, &bounds))
            w.bounds = &bounds;
        bounded += w.bounds != NULL;
        check_table(&v, sorted_pairs(&v));
        check_table(&w, sorted_pairs(&v));
        for (size_t k = 0; k < OURS; k++) {
            const struct bt_policy *policy = bt_policy_find(ours[k]);
            struct bt_policy_state s, t;
            struct bt_placement a = {0}, b = {0};

            bt_policy_state_init(&s, seed + (uint64_t)i);
            set_knobs(policy, &s);
            t = s;
            assert_int_equal(policy->place(&s, &v, &a),
                             policy->place(&t, &w, &b));
            assert_memory_equal(&a, &b, sizeof(a));
            assert_memory_equal(&s, &t, sizeof(s));
        }
    }
    assert_true(bounded > ROUNDS / 10);
}

/* ---- joint beside the naive rule, with the same draw ---- */

static void joint_never_hurts(void **state)
{
    const struct bt_policy *naive = bt_policy_find("prefix_load");
    const struct bt_policy *joint = bt_policy_find("joint");
    struct bt_rng rng;
    unsigned int better = 0, same = 0;
    const uint64_t seed = 1357;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < ROUNDS * 3; i++) {
        struct bt_place_view v =
            random_view(&rng, 1 + (uint32_t)below(&rng, 9));
        struct bt_policy_state s, t;
        struct bt_placement a, b;
        enum bt_status status;

        if (below(&rng, 2))
            coarsen(&rng, &v);
        bt_policy_state_init(&s, bt_rng_u64(&rng));
        set_knobs(joint, &s);
        t = s;
        status = naive->place(&s, &v, &a);
        assert_int_equal(status, joint->place(&t, &v, &b));
        if (status != BT_OK)
            continue;
        assert_memory_equal(&s, &t, sizeof(s));
        assert_int_equal(a.chosen.p, b.baseline.p);
        assert_int_equal(a.chosen.d, b.baseline.d);
        assert_true(b.chosen.terms.total_ns <= a.chosen.terms.total_ns);
        if (b.chosen.p != a.chosen.p || b.chosen.d != a.chosen.d) {
            assert_true(b.chosen.terms.total_ns < a.chosen.terms.total_ns);
            better++;
        } else {
            same++;
        }
    }
    assert_true(better > 100 && same > 100);
}

/* Equal workers on equal fast links: whatever the draw, the same pair. */
static void joint_ties_on_a_flat_fleet(void **state)
{
    const struct bt_policy *naive = bt_policy_find("prefix_load");
    const struct bt_policy *joint = bt_policy_find("joint");
    struct bt_rng rng;
    const uint64_t seed = 2468;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n = 2 + (uint32_t)below(&rng, 20);
        uint32_t pool = 1 + (uint32_t)below(&rng, n - 1);
        struct bt_place_view v = random_view(&rng, n);
        struct bt_place_worker like = workers[0];
        struct bt_policy_state s, t;
        struct bt_placement a, b;

        like.kv_capacity_tokens = 0;
        like.model = &models[0];
        v.kv_bytes_per_token = 160000;
        for (uint32_t w = 0; w < n; w++) {
            workers[w] = like;
            workers[w].id = bt_worker_id_make(w, 1);
            workers[w].roles = w < pool ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
            workers[w].prefill_ok = w < pool;
            workers[w].decode_ok = w >= pool;
        }
        for (uint32_t l = 0; l < n * n; l++) {
            link_models[l] = (struct bt_link_model){50000000000ULL, 10000, 100};
            links[l].flows = 0;
        }
        bt_policy_state_init(&s, bt_rng_u64(&rng));
        set_knobs(joint, &s);
        t = s;
        assert_int_equal(naive->place(&s, &v, &a), BT_OK);
        assert_int_equal(joint->place(&t, &v, &b), BT_OK);
        assert_int_equal(a.chosen.p, b.chosen.p);
        assert_int_equal(a.chosen.d, b.chosen.d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_choose_feasible_pairs),
        cmocka_unit_test(terms_are_monotonic),
        cmocka_unit_test(transfers_are_bounded),
        cmocka_unit_test(one_pass_finds_the_same),
        cmocka_unit_test(joint_never_hurts),
        cmocka_unit_test(joint_ties_on_a_flat_fleet),
    };

    bt_compute_preset("h100-8b-tp1", &models[0]);
    bt_compute_preset("a100-70b-tp8", &models[1]);
    return cmocka_run_group_tests_name("place_invariants", tests, NULL, NULL);
}
