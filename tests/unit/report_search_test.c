/* Search for the capacity on systems whose answer is known. */
#include "report_world.h"

struct system {
    double capacity;                /* meets up to here */
    double hole_low, hole_high;     /* but fails in between */
    double island_low, island_high; /* and meets again there */
};

static bool meets(const struct system *s, double speed)
{
    if (speed >= s->hole_low && speed <= s->hole_high)
        return false;
    if (speed >= s->island_low && speed <= s->island_high)
        return true;
    return speed <= s->capacity;
}

static struct bt_report_search solve(const struct system *s,
                                     const struct bt_report_search_options *o)
{
    struct bt_report_search search;
    double speed;

    bt_report_search_init(&search, o);
    while (bt_report_search_next(&search, &speed)) {
        assert_true(speed >= o->lowest * 0.79 && speed <= o->highest * 1.16);
        bt_report_search_tell(&search, meets(s, speed));
        assert_true(search.probes <= o->probes_max);
        if (search.low > 0)
            assert_true(meets(s, search.low));
        if (search.high > 0)
            assert_false(meets(s, search.high));
    }
    return search;
}

static void finds_a_monotone_edge(void **state)
{
    static const double edges[] = {0.05, 0.33, 0.999, 1, 1.7, 3.14159, 40};
    struct bt_report_search_options o;

    (void)state;
    bt_report_search_options_init(&o);
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        struct system s = {.capacity = edges[i]};
        struct bt_report_search r = solve(&s, &o);

        assert_true(r.low <= edges[i] && r.low >= edges[i] / 1.0201);
        assert_true(r.high > edges[i] && r.high <= r.low * 1.0201);
        assert_false(r.below_failed || r.above_met || r.none_met || r.all_met ||
                     r.out_of_probes);
    }
}

static void says_when_nothing_or_all_meets(void **state)
{
    struct system never = {.capacity = 0}, always = {.capacity = 1e9};
    struct bt_report_search_options o;
    struct bt_report_search r;

    (void)state;
    bt_report_search_options_init(&o);
    r = solve(&never, &o);
    assert_true(r.none_met && r.low == 0);
    r = solve(&always, &o);
    assert_true(r.all_met && r.low == o.highest && r.high == 0);
    assert_false(r.none_met || r.above_met);
}

/* The result is 2 to within 2 %; 1.6 = 0.8 x 2 lies in the hole. */
static void reports_a_lower_speed_that_fails(void **state)
{
    struct system s = {.capacity = 2, .hole_low = 1.59, .hole_high = 1.599};
    struct bt_report_search_options o;
    struct bt_report_search r;

    (void)state;
    bt_report_search_options_init(&o);
    o.start = 2;
    s.hole_low = 1.57;
    s.hole_high = 1.62;
    r = solve(&s, &o);
    assert_true(r.low >= 1.96 && r.low <= 2);
    assert_true(r.below_failed);
    assert_false(r.above_met);
}

static void reports_a_higher_speed_that_meets(void **state)
{
    struct system s = {.capacity = 1, .island_low = 1.14, .island_high = 1.18};
    struct bt_report_search_options o;
    struct bt_report_search r;

    (void)state;
    bt_report_search_options_init(&o);
    r = solve(&s, &o);
    assert_true(r.low >= 0.98 && r.low <= 1);
    assert_true(r.above_met);
    assert_false(r.below_failed);
}

static void stops_when_probes_run_out(void **state)
{
    struct system s = {.capacity = 1.3};
    struct bt_report_search_options o;
    struct bt_report_search r;

    (void)state;
    bt_report_search_options_init(&o);
    o.probes_max = 4;
    r = solve(&s, &o);
    assert_int_equal(r.probes, 4);
    assert_true(r.out_of_probes);
    assert_true(r.low <= 1.3 && r.high > 1.3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_a_monotone_edge),
        cmocka_unit_test(says_when_nothing_or_all_meets),
        cmocka_unit_test(reports_a_lower_speed_that_fails),
        cmocka_unit_test(reports_a_higher_speed_that_meets),
        cmocka_unit_test(stops_when_probes_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
