/* Grids of policies, cells in processes, capacity and tuning over a closed
 * system. */
#include "report_world.h"

static const char *const TWO[] = {"joint", "dynamo", NULL};

static enum bt_status add(struct world *w, const char *spec, char *error)
{
    return bt_report_arm_add(&w->setup, spec, error, BT_REPORT_ERROR_MIN);
}

static void expands_every_combination_in_order(void **state)
{
    static const char *const expected[] = {"cla:w=1,v=0", "cla:w=1,v=0.5",
                                           "cla:w=2,v=0", "cla:w=2,v=0.5",
                                           "cla:w=4,v=0", "cla:w=4,v=0.5"};
    static const char *const none[] = {NULL};
    struct world *w = malloc(sizeof(*w));
    char error[BT_REPORT_ERROR_MIN] = "";

    (void)state;
    world_init(w, none);
    assert_int_equal(add(w, "cla:w=1|2|4,v=0|0.5", error), BT_OK);
    assert_int_equal(w->setup.arm_count, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_string_equal(w->setup.arms[i].policy, expected[i]);
        assert_string_equal(w->setup.arms[i].family, "cla");
    }
    assert_int_equal(add(w, "joint:guard=0+nohold+aggregated", error), BT_OK);
    assert_string_equal(w->setup.arms[6].policy, "joint:guard=0");
    assert_string_equal(w->setup.arms[6].name,
                        "joint:guard=0+nohold+aggregated");
    assert_string_equal(w->setup.arms[6].family, "joint+nohold+aggregated");
    assert_int_equal(w->setup.arms[6].hold, BT_REPORT_OFF);
    assert_int_equal(w->setup.arms[6].fetch, BT_REPORT_BASE);
    assert_true(w->setup.arms[6].aggregated);
    free(w);
}

static void refuses_what_it_cannot_read(void **state)
{
    static const char *const bad[] = {
        "joint:guard",   "joint:guard=", "joint:guard=1|", "joint:=1",
        "joint+quickly", "nobody",       "joint:w=1",      "joint:guard=1000"};
    static const char *const none[] = {NULL};
    struct world *w = malloc(sizeof(*w));
    char error[BT_REPORT_ERROR_MIN];

    (void)state;
    world_init(w, none);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        error[0] = '\0';
        if (add(w, bad[i], error) == BT_OK)
            fail_msg("'%s' was taken", bad[i]);
        assert_true(strlen(error) > 0);
    }
    /* 16 x 5 settings are more than there is room for */
    assert_int_equal(add(w,
                         "cla:w=1|2|3|4|5|6|7|8|9|10|11|12|13|14|15|16,"
                         "v=1|2|3|4|5",
                         error),
                     BT_LIMIT);
    free(w);
}

static void a_cell_is_base_scenario_and_arm(void **state)
{
    static const char *const arms[] = {"joint", "joint+nohold+noprices+local",
                                       "joint+noprefetch",
                                       "joint+noapproximate+noselfcheck", NULL};
    struct world *w = malloc(sizeof(*w));
    struct bt_sim_config c;

    (void)state;
    world_init(w, arms);
    w->setup.base.prices.queue = -1;
    w->setup.seeds[0] = 7;
    w->setup.regret_every = 9;
    w->setup.seed_count = 2;
    w->setup.seeds[1] = 8;
    bt_report_config(&w->setup, 1, 2, 2.5, 0, &c);
    assert_true(c.hold.enabled && !c.hold.prefetch);
    bt_report_config(&w->setup, 1, 1, 2.5, 0, &c);
    assert_true(c.hold.prefetch);
    assert_true(c.knowledge.approximate && c.knowledge.self_check);
    assert_int_equal(c.fabric, 1);
    assert_true(c.speed == 2.5 && c.seed == 7 && c.regret_every == 9);
    assert_false(c.hold.enabled);
    assert_true(c.local && !c.fetch);
    assert_true(c.prices.queue == 0);
    bt_report_config(&w->setup, 1, 3, 2.5, 0, &c);
    assert_false(c.knowledge.approximate || c.knowledge.self_check);
    bt_report_config(&w->setup, 0, 0, 2.5, 1, &c);
    assert_true(c.hold.enabled && c.prices.queue == -1);
    assert_int_equal(c.regret_every, 0);
    free(w);
}

static void the_hash_sees_what_decides_and_not_the_seed(void **state)
{
    struct world *w = malloc(sizeof(*w));
    struct bt_sim_config a, b;

    (void)state;
    world_init(w, TWO);
    w->setup.seed_count = 2;
    w->setup.seeds[1] = 2;
    bt_report_config(&w->setup, 0, 0, 1, 0, &a);
    bt_report_config(&w->setup, 0, 0, 1, 1, &b);
    assert_int_equal(bt_report_config_hash(&a), bt_report_config_hash(&b));
    b.speed = 1.01;
    assert_int_not_equal(bt_report_config_hash(&a), bt_report_config_hash(&b));
    b = a;
    b.knowledge.link_bias = 0.3;
    assert_int_not_equal(bt_report_config_hash(&a), bt_report_config_hash(&b));
    b = a;
    w->cluster.fabrics[0].rack_up_bytes_per_s++;
    assert_int_not_equal(bt_report_config_hash(&a), 0);
    b.fabric = 1;
    assert_int_not_equal(bt_report_config_hash(&a), bt_report_config_hash(&b));
    free(w);
}

static void run(struct world *w, struct bt_report_matrix *m, uint32_t jobs)
{
    memset(m, 0, sizeof(*m));
    w->setup.jobs.jobs = jobs;
    m->setup = &w->setup;
    m->load_count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        m->loads[0] = m->speeds[i][0] = 1;
        m->loads[1] = m->speeds[i][1] = 2;
    }
    assert_int_equal(bt_report_matrix_run(m), BT_OK);
}

static void results_stand_in_their_place_whatever_the_jobs(void **state)
{
    static const char *const arms[] = {"joint", "dynamo", "s1", NULL};
    struct world *w = malloc(sizeof(*w));

    (void)state;
    world_init(w, arms);
    w->setup.scenario_count = 2;
    w->setup.seed_count = 3;
    w->setup.keep_samples = true;
    for (uint32_t i = 0; i < 3; i++)
        w->setup.seeds[i] = i + 1;
    for (uint32_t jobs = 1; jobs <= 8; jobs += 7) {
        struct bt_report_matrix m;

        run(w, &m, jobs);
        assert_int_equal(m.count, 2 * 2 * 3 * 3);
        for (uint32_t i = 0; i < 12; i++) {
            uint32_t load = i / 3 % 2, arm = i % 3;
            const struct bt_report_result *r =
                bt_report_group(&m, i / 6, load, arm);

            for (uint32_t seed = 0; seed < 3; seed++) {
                assert_int_equal(r[seed].status, BT_OK);
                assert_int_equal(r[seed].effects_hash,
                                 (seed + 1) * 1000 + (load + 1) * 10);
                assert_int_equal(r[seed].sample_count, WORLD_REQUESTS);
                assert_true(isnan(r[seed].samples[1][0]));
                assert_true(r[seed].samples[2][150] > 2.5f);
            }
        }
        bt_report_matrix_fini(&m);
    }
    free(w);
}

static void a_cell_that_dies_fails_alone(void **state)
{
    static const char *const arms[] = {"joint", "random", "jsq", "lmetric",
                                       NULL};
    struct world *w = malloc(sizeof(*w));
    struct bt_report_matrix m;
    struct bt_report_row row;

    (void)state;
    world_init(w, arms);
    w->setup.seed_count = 2;
    w->setup.seeds[1] = 2;
    run(w, &m, 3);
    bt_report_row_get(&m, 0, 0, 0, &row);
    assert_int_equal(row.failed, 0);
    bt_report_row_get(&m, 0, 1, 1, &row); /* seed 2 of random is killed */
    assert_int_equal(row.failed, 1);
    assert_string_equal(row.mean.error,
                        "its process was ended by a signal (9)");
    assert_true(row.mean.all.ttft.p50 > 1);
    bt_report_row_get(&m, 0, 0, 2, &row);
    assert_int_equal(row.failed, 2);
    assert_string_equal(row.mean.error,
                        "its process ended with a bad exit code (3)");
    bt_report_row_get(&m, 0, 0, 3, &row);
    assert_int_equal(row.mean.status, BT_INVALID);
    assert_string_equal(row.mean.error, "fabric: no such thing");
    bt_report_matrix_fini(&m);
    free(w);
}

static void finds_the_capacity_of_each_policy(void **state)
{
    static const char *const arms[] = {"joint", "dynamo", "lmetric", NULL};
    struct world *w = malloc(sizeof(*w));
    struct bt_report_capacity c[6];
    struct bt_report_search_options o;

    (void)state;
    world_init(w, arms);
    w->setup.scenario_count = 2;
    w->setup.jobs.jobs = 4;
    bt_report_search_options_init(&o);
    assert_int_equal(bt_report_capacity_run(&w->setup, &o, c), BT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        const struct bt_report_capacity *of = &c[i * 3];

        assert_true(of[0].search.low <= 3.1 && of[0].search.low > 3.03);
        assert_true(of[1].search.low <= 1.3 && of[1].search.low > 1.27);
        assert_true(of[0].at.all.attainment == 0.97);
        assert_string_equal(of[2].error, "fabric: no such thing");
        assert_int_equal(of[2].runs, 1);
    }
    free(w);
}

static void
tuning_keeps_the_best_setting_and_the_rest_of_the_trace(void **state)
{
    static const char *const arms[] = {"joint", "cla:w=1|2,v=0|0.5", "dynamo",
                                       NULL};
    struct world *w = malloc(sizeof(*w));
    char what[256] = "";
    FILE *to = fmemopen(what, sizeof(what), "w");

    (void)state;
    world_init(w, arms);
    assert_int_equal(w->setup.arm_count, 6);
    assert_int_equal(bt_report_tune(&w->setup, 0.2, to), BT_OK);
    fclose(to);
    assert_string_equal(what, "cla: cla:w=2,v=0.5 of 4 settings\n");
    assert_int_equal(w->setup.arm_count, 3);
    assert_string_equal(w->setup.arms[0].policy, "joint");
    assert_string_equal(w->setup.arms[1].policy, "cla:w=2,v=0.5");
    assert_string_equal(w->setup.arms[2].policy, "dynamo");
    assert_int_equal(w->setup.scenarios[0].first, 40);
    assert_int_equal(w->setup.scenarios[0].count, 160);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expands_every_combination_in_order),
        cmocka_unit_test(refuses_what_it_cannot_read),
        cmocka_unit_test(a_cell_is_base_scenario_and_arm),
        cmocka_unit_test(the_hash_sees_what_decides_and_not_the_seed),
        cmocka_unit_test(results_stand_in_their_place_whatever_the_jobs),
        cmocka_unit_test(a_cell_that_dies_fails_alone),
        cmocka_unit_test(finds_the_capacity_of_each_policy),
        cmocka_unit_test(
            tuning_keeps_the_best_setting_and_the_rest_of_the_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
