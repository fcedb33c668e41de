/* What holds for every policy of the table, with its defaults, on random
 * fleets: only feasible choices, an answer exactly when there is one, the same
 * seed the same choice, positions do not matter, and no rule reacts to what its
 * product does not look at (baselines-and-evaluation.md section 2).
 */
#include "rivals_world.h"

#define FLEET_MAX 9u
#define ROUNDS    100

static const uint64_t seed = 20261129;

struct fleet {
    struct bt_compute_model models[2];
    struct bt_link_model link_models[FLEET_MAX * FLEET_MAX];
    struct bt_place_link links[FLEET_MAX * FLEET_MAX];
    struct bt_place_worker workers[FLEET_MAX];
    uint64_t left[3], keys[64];
    struct bt_place_view view;
};

static int64_t below(struct bt_rng *rng, uint64_t bound)
{
    return (int64_t)bt_rng_below(rng, bound);
}

static void random_loads(struct bt_rng *rng, struct bt_place_worker *w,
                         int64_t now)
{
    w->prefill_tokens = bt_rng_below(rng, 6) * 3000;
    w->prefill_requests = (uint32_t)below(rng, 90);
    w->prefill_free_ns = now + below(rng, 3) * 100000000 - 100000000;
    w->seen_waiting = (uint32_t)below(rng, 9);
    w->seen_running = (uint32_t)below(rng, 9);
}

static void random_decode(struct bt_rng *rng, struct bt_place_worker *w,
                          int64_t now)
{
    w->decode_requests = (uint32_t)below(rng, 90);
    w->decode_tokens = bt_rng_below(rng, 6) * 20000;
    w->decode_free_ns = now + below(rng, 3) * 100000000 - 100000000;
}

static void random_prefix(struct bt_rng *rng, struct bt_place_worker *w)
{
    w->overlap_tokens = (uint32_t)below(rng, 5) * 2048;
    w->host_tokens = w->overlap_tokens + (uint32_t)below(rng, 3) * 1024;
    w->disk_tokens = w->host_tokens + (uint32_t)below(rng, 3) * 1024;
}

static void random_links(struct bt_rng *rng, struct fleet *f, bool may_be_down)
{
    uint32_t n = f->view.worker_count;

    for (uint32_t i = 0; i < n * n; i++) {
        uint64_t steps = bt_rng_below(rng, 4) + !may_be_down;

        f->link_models[i] = (struct bt_link_model){
            steps * 6000000000, below(rng, 3) * 1000000, below(rng, 2) * 1000};
        f->links[i] = (struct bt_place_link){.model = &f->link_models[i],
                                             .left = f->left,
                                             .flows = bt_rng_below(rng, 4)};
    }
}

static void random_fleet(struct bt_rng *rng, struct fleet *f, bool may_be_down)
{
    uint32_t n = 1 + (uint32_t)below(rng, FLEET_MAX);

    memset(f, 0, sizeof(*f));
    bt_compute_preset("h100-8b-tp1", &f->models[0]);
    bt_compute_preset("a100-70b-tp8", &f->models[1]);
    for (int i = 0; i < 3; i++)
        f->left[i] = bt_rng_below(rng, 4000000000);
    for (uint64_t i = 0; i < 64; i++)
        f->keys[i] = 1 + i;
    f->view =
        (struct bt_place_view){.now_ns = S(50),
                               .prompt_tokens = 1 + (uint32_t)below(rng, 9000),
                               .block_tokens = 16,
                               .output_tokens = (uint32_t)below(rng, 500),
                               .kv_bytes_per_token = 160000,
                               .workers = f->workers,
                               .worker_count = n,
                               .links = f->links,
                               .overlap_known = true,
                               .keys = f->keys,
                               .key_count = bt_rng_below(rng, 64)};
    for (uint32_t i = 0; i < n; i++) {
        struct bt_place_worker *w = &f->workers[i];

        w->id = bt_worker_id_make(i + 3, 1);
        w->roles = 1 + (unsigned int)below(rng, 3);
        w->prefill_ok = below(rng, 8) != 0;
        w->decode_ok = below(rng, 8) != 0;
        w->local_ok = below(rng, 4) == 0;
        w->fetch_ok = below(rng, 2) == 0;
        w->kv_capacity_tokens = below(rng, 5) ? 0 : bt_rng_below(rng, 20000);
        w->model = &f->models[below(rng, 2)];
        w->host = (struct bt_tier_model){bt_rng_below(rng, 2) * 50000000000, 0};
        w->disk = (struct bt_tier_model){bt_rng_below(rng, 2) * 5000000000, 0};
        random_loads(rng, w, f->view.now_ns);
        random_decode(rng, w, f->view.now_ns);
        random_prefix(rng, w);
    }
    random_links(rng, f, may_be_down);
}

/* A fleet in which p and d are two workers. */
static bool has_pairs(const struct bt_place_view *v)
{
    struct bt_place_terms t;

    for (uint32_t p = 0; p < v->worker_count; p++)
        for (uint32_t d = 0; d < v->worker_count; d++) {
            bt_place_terms(v, p, d, &t);
            if (p != d && t.total_ns < BT_COST_INFINITE)
                return true;
        }
    return false;
}

/* Any pair, or any worker that may serve alone, by the public terms alone. */
static bool is_servable(const struct bt_place_view *v)
{
    struct bt_place_terms t;

    for (uint32_t p = 0; p < v->worker_count; p++)
        for (uint32_t d = 0; d < v->worker_count; d++) {
            bt_place_terms(v, p, d, &t);
            if (t.total_ns < BT_COST_INFINITE)
                return true;
        }
    for (uint32_t p = 0; p < v->worker_count; p++) {
        const struct bt_place_worker *w = &v->workers[p];

        if (w->prefill_ok && (w->roles & BT_ROLE_PREFILL) != 0 &&
            (w->kv_capacity_tokens == 0 ||
             w->kv_capacity_tokens >= v->prompt_tokens))
            return false; /* there is a pool: no service without it */
    }
    for (uint32_t d = 0; d < v->worker_count; d++) {
        bt_place_terms(v, BT_PLACE_NONE, d, &t);
        if (t.total_ns < BT_COST_INFINITE)
            return true;
    }
    return false;
}

static void check_pair(const char *name, const struct bt_place_view *v,
                       const struct bt_place_candidate *c)
{
    const struct bt_place_worker *d = &v->workers[c->d], *p;
    uint32_t n = v->worker_count;

    if (!(d->decode_ok && (d->roles & BT_ROLE_DECODE) != 0) ||
        (d->kv_capacity_tokens > 0 &&
         d->kv_capacity_tokens < v->prompt_tokens + v->output_tokens))
        fail_msg("%s: d %u cannot", name, c->d);
    if (c->terms.total_ns >= BT_COST_INFINITE)
        fail_msg("%s: infinite total", name);
    if (c->p == BT_PLACE_NONE)
        return;
    p = &v->workers[c->p];
    if (c->p == c->d ? !p->local_ok && !p->prefill_ok
                     : !(p->prefill_ok && (p->roles & BT_ROLE_PREFILL) != 0))
        fail_msg("%s: p %u cannot", name, c->p);
    if (c->p != c->d && v->links[c->p * n + c->d].model->rate_bytes_per_s == 0)
        fail_msg("%s: link %u %u is down", name, c->p, c->d);
    if (c->source.tokens > 0 && c->source.worker != c->p &&
        (!p->fetch_ok ||
         v->links[c->source.worker * n + c->p].model->rate_bytes_per_s == 0))
        fail_msg("%s: fetch from %u", name, c->source.worker);
}

/* The naive rule knows pairs only: it may refuse what one worker could serve
 * alone beside a pool that reaches nobody. */
static bool is_right(const char *name, bool can, enum bt_status s)
{
    if (can && strcmp(name, "prefix_load") == 0 && s == BT_NO_WORKER)
        return true;
    return s == (can ? BT_OK : BT_NO_WORKER);
}

/* One life per policy over all fleets, so that state is carried on. */
static void only_feasible_choices(void **state)
{
    struct bt_rng rng;
    struct rule r;
    unsigned int served = 0, not_served = 0;

    (void)state;
    for (size_t k = 0; bt_policy_at(k) != NULL; k++) {
        const char *name = bt_policy_at(k)->name;

        bt_rng_seed(&rng, seed);
        rule_init(&r, name, seed);
        for (int i = 0; i < ROUNDS; i++) {
            struct bt_placement out;
            enum bt_status s;
            struct fleet f;
            bool can;

            random_fleet(&rng, &f, true);
            can = is_servable(&f.view);
            s = r.policy->place(&r.state, &f.view, &out);
            if (!is_right(name, can, s))
                fail_msg("%s, round %d: %s", name, i, bt_status_name(s));
            served += can;
            not_served += !can;
            if (s != BT_OK)
                continue;
            check_pair(name, &f.view, &out.chosen);
            if (out.baseline.d != BT_PLACE_NONE)
                check_pair(name, &f.view, &out.baseline);
            assert_true(out.considered > 0);
            assert_true((out.second.d == BT_PLACE_NONE) ==
                        (out.considered == 1));
            if (r.policy->placed != NULL)
                r.policy->placed(&r.state, &f.view, &out);
        }
        rule_fini(&r);
    }
    assert_true(served > 1500 && not_served > 100);
}

/* With zeroed knobs and without memory nothing breaks either. */
static void bare_state_is_safe(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < ROUNDS; i++) {
        struct fleet f;
        bool can;

        random_fleet(&rng, &f, true);
        can = is_servable(&f.view);
        for (size_t k = 0; bt_policy_at(k) != NULL; k++) {
            struct bt_policy_state st;
            struct bt_placement out;
            enum bt_status s;

            bt_policy_state_init(&st, seed);
            s = bt_policy_at(k)->place(&st, &f.view, &out);
            if (!is_right(bt_policy_at(k)->name, can, s))
                fail_msg("%s, round %d: %s", bt_policy_at(k)->name, i,
                         bt_status_name(s));
            if (s == BT_OK)
                check_pair(bt_policy_at(k)->name, &f.view, &out.chosen);
        }
    }
}

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcmp(name, *list) == 0)
            return true;
    return false;
}

/* Worker ids of the choice; fails where there is none. */
static void ids_of(const char *name, const struct bt_place_view *v,
                   uint32_t out[2])
{
    struct bt_placement o = place_seeded(name, v, seed);

    out[0] = o.chosen.p == BT_PLACE_NONE ? 0 : v->workers[o.chosen.p].id.v;
    out[1] = v->workers[o.chosen.d].id.v;
}

static void same_seed_same_choice(void **state)
{
    struct bt_rng rng;
    struct fleet f;

    (void)state;
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < 50; i++) {
        random_fleet(&rng, &f, true);
        if (!is_servable(&f.view))
            continue;
        for (size_t k = 0; bt_policy_at(k) != NULL; k++) {
            struct bt_placement a, b;
            enum bt_status status;
            struct rule r, s;

            memset(&a, 0, sizeof(a));
            memset(&b, 0, sizeof(b));
            rule_init(&r, bt_policy_at(k)->name, seed + (uint64_t)i);
            rule_init(&s, bt_policy_at(k)->name, seed + (uint64_t)i);
            status = r.policy->place(&r.state, &f.view, &a);
            assert_int_equal(s.policy->place(&s.state, &f.view, &b), status);
            assert_int_equal(a.chosen.p, b.chosen.p);
            assert_int_equal(a.chosen.d, b.chosen.d);
            assert_memory_equal(&r.state.rng, &s.state.rng,
                                sizeof(r.state.rng));
            rule_fini(&r);
            rule_fini(&s);
        }
    }
}

/* The same workers at other positions: the same workers are chosen. Rules that
 * count positions by construction are left out. */
static void positions_do_not_matter(void **state)
{
    static const char *const by_position[] = {"round_robin", "power_of_two",
                                              NULL};
    struct bt_rng rng;
    struct fleet f, g;

    (void)state;
    bt_rng_seed(&rng, seed);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n, turn;

        random_fleet(&rng, &f, true);
        if (!has_pairs(&f.view))
            continue;
        g = f;
        n = f.view.worker_count;
        turn = (uint32_t)below(&rng, n);
        g.view.workers = g.workers;
        g.view.links = g.links;
        g.view.keys = g.keys;
        for (uint32_t a = 0; a < n; a++) {
            g.workers[(a + turn) % n] = f.workers[a];
            for (uint32_t b = 0; b < n; b++)
                g.links[(a + turn) % n * n + (b + turn) % n] =
                    f.links[a * n + b];
        }
        for (size_t k = 0; bt_policy_at(k) != NULL; k++) {
            const char *name = bt_policy_at(k)->name;
            uint32_t x[2], y[2];

            if (is_one_of(name, by_position))
                continue;
            ids_of(name, &f.view, x);
            ids_of(name, &g.view, y);
            if (x[0] != y[0] || x[1] != y[1])
                fail_msg("%s, round %d: %x %x became %x %x", name, i, x[0],
                         x[1], y[0], y[1]);
        }
    }
}

/* ---- what a rule does not look at ---- */

enum sense { LINKS, PREFIX_D, PREFIX, LOAD_P, LOAD_D };

static void change(struct bt_rng *rng, struct fleet *f, enum sense sense)
{
    if (sense == LINKS)
        random_links(rng, f, false);
    for (uint32_t i = 0; i < f->view.worker_count; i++) {
        struct bt_place_worker *w = &f->workers[i];

        if (sense == PREFIX ||
            (sense == PREFIX_D && w->roles == BT_ROLE_DECODE))
            random_prefix(rng, w);
        if (sense == LOAD_P)
            random_loads(rng, w, f->view.now_ns);
        if (sense == LOAD_D)
            random_decode(rng, w, f->view.now_ns);
    }
}

/* Changes of the choice of `name` when `sense` changes, in ROUNDS fleets. */
static unsigned int reactions(const char *name, enum sense sense)
{
    unsigned int count = 0;
    struct bt_rng rng;
    struct fleet f;

    bt_rng_seed(&rng, seed + sense);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t x[2], y[2];

        random_fleet(&rng, &f, false);
        for (uint32_t w = 0; w < f.view.worker_count; w++)
            f.workers[w].local_ok = false;
        if (!has_pairs(&f.view))
            continue;
        ids_of(name, &f.view, x);
        change(&rng, &f, sense);
        ids_of(name, &f.view, y);
        count += x[0] != y[0] || x[1] != y[1];
    }
    return count;
}

static void blind_to(enum sense sense, const char *const *names)
{
    for (; *names != NULL; names++) {
        unsigned int count = reactions(*names, sense);

        if (count > 0)
            fail_msg("%s reacted %u times to sense %d", *names, count, sense);
    }
}

static void sees(enum sense sense, const char *const *names)
{
    for (; *names != NULL; names++)
        if (reactions(*names, sense) < 3)
            fail_msg("%s does not react to sense %d", *names, sense);
}

static void information(void **state)
{
    static const char *const links_no[] = {
        "round_robin", "random",       "jsq",      "power_of_two",
        "prefix_only", "cla",          "dynamo",   "dynamo_wspt",
        "lmetric",     "two_tier",     "sglang",   "mooncake",
        "llmd",        "llmd_token",   "dualpath", "conditional",
        "prefix_load", "least_loaded", NULL};
    static const char *const links_yes[] = {"flowkv", "netkv", "netkv_static",
                                            "atom",   "s1",    "s2",
                                            "s3",     "j0",    NULL};
    static const char *const prefix_no[] = {
        "round_robin", "random",       "jsq", "power_of_two",
        "dualpath",    "least_loaded", NULL};
    static const char *const prefix_yes[] = {
        "prefix_only", "cla",      "dynamo",         "lmetric", "two_tier",
        "sglang",      "mooncake", "mooncake_fetch", "flowkv",  "llmd",
        "llmd_token",  "netkv",    "atom",           "s1",      NULL};
    static const char *const prefix_d_no[] = {
        "prefix_only", "cla", "dynamo", "mooncake", "llmd_token", NULL};
    static const char *const prefix_d_yes[] = {
        "two_tier", "sglang", "llmd", "flowkv", "netkv", "s1", NULL};
    static const char *const loads_no[] = {"round_robin", "random", NULL};
    static const char *const load_d_no[] = {"round_robin", "random", NULL};
    static const char *const load_d_yes[] = {"jsq",    "prefix_only", "cla",
                                             "dynamo", "mooncake",    "lmetric",
                                             "atom",   "s1",          NULL};

    (void)state;
    blind_to(LINKS, links_no);
    sees(LINKS, links_yes);
    blind_to(PREFIX, prefix_no);
    sees(PREFIX, prefix_yes);
    blind_to(LOAD_P, loads_no);
    blind_to(LOAD_D, load_d_no);
    sees(LOAD_D, load_d_yes);
    blind_to(PREFIX_D, prefix_d_no);
    sees(PREFIX_D, prefix_d_yes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_feasible_choices),
        cmocka_unit_test(bare_state_is_safe),
        cmocka_unit_test(same_seed_same_choice),
        cmocka_unit_test(positions_do_not_matter),
        cmocka_unit_test(information),
    };

    print_message("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("rivals_common", tests, NULL, NULL);
}
