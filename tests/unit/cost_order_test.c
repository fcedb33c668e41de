/* Keys of the three orders and tenant fairness, by cases worked out by hand.
 * The bound on waiting has a property test. */
#include "baton/planner/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#define S 1000000000LL

static const struct bt_order_knobs slack = {BT_ORDER_SLACK, 0.15, 0.5};

static int compare(const struct bt_order_knobs *knobs, struct bt_order_item a,
                   struct bt_order_item b)
{
    struct bt_order_key ka = bt_order_key_of(knobs, &a);
    struct bt_order_key kb = bt_order_key_of(knobs, &b);

    assert_int_equal(bt_order_compare(&ka, &kb), -bt_order_compare(&kb, &ka));
    return bt_order_compare(&ka, &kb);
}

static void fcfs(void **state)
{
    struct bt_order_knobs k = {.rule = BT_ORDER_FCFS};
    struct bt_order_item a = {.arrival_ns = 1, .service_ns = 9 * S};
    struct bt_order_item b = {.arrival_ns = 2, .service_ns = 1};

    (void)state;
    assert_int_equal(compare(&k, a, b), -1);
    b.arrival_ns = 1;
    assert_int_equal(compare(&k, a, b), 0);
    b.arrival_ns = 5;
    b.priority = 1;
    assert_int_equal(compare(&k, a, b), 1);
}

/* (1 + priority) / max(1, prompt - cached), largest first. */
static void wspt(void **state)
{
    struct bt_order_knobs k = {.rule = BT_ORDER_WSPT};
    struct bt_order_item a = {.prompt_tokens = 8000, .cached_tokens = 7500};
    struct bt_order_item b = {.prompt_tokens = 1000};

    (void)state;
    assert_int_equal(compare(&k, a, b), -1); /* 1/500 against 1/1000 */
    b.priority = 1;                          /* 2/1000 */
    assert_int_equal(compare(&k, a, b), 0);
    b.priority = 2; /* 3/1000: a weight, not a class */
    assert_int_equal(compare(&k, a, b), 1);
    a.cached_tokens = 9000; /* nothing left counts as one token */
    assert_int_equal(compare(&k, a, b), -1);
    b = a;
    b.priority = -3;
    assert_int_equal(compare(&k, a, b), -1);
}

static void slack_classes(void **state)
{
    struct bt_order_item fits = {
        .service_ns = 2 * S, .waited_ns = S, .slo_ns = 3 * S};
    struct bt_order_item late = {
        .service_ns = S, .waited_ns = 2 * S + 1, .slo_ns = 3 * S};

    (void)state;
    /* Slack exactly 0 still fits; one ns less does not. The late one goes
     * behind though it is shorter and has waited longer. */
    assert_int_equal(bt_order_key_of(&slack, &fits).late, 0);
    assert_int_equal(bt_order_key_of(&slack, &late).late, 1);
    assert_int_equal(compare(&slack, fits, late), -1);
    late.slo_ns = 0; /* no limit: never late */
    assert_int_equal(compare(&slack, fits, late), 1);
    late.slo_ns = 3 * S;
    late.priority = 1;
    assert_int_equal(compare(&slack, fits, late), 1);
}

static void slack_value(void **state)
{
    struct bt_order_item a = {.service_ns = S, .waited_ns = 0};
    struct bt_order_item b = {.service_ns = 2 * S, .waited_ns = 6 * S};

    (void)state;
    assert_true(bt_order_key_of(&slack, &a).value == 1e9);
    assert_true(fabs(bt_order_key_of(&slack, &b).value - 1.1e9) < 1);
    assert_int_equal(compare(&slack, a, b), -1);
    b.waited_ns = 7 * S; /* 2 - 0.15 * 7 = 0.95 */
    assert_int_equal(compare(&slack, a, b), 1);
    b.tenant_lead = 0.2 * S; /* + 0.5 * 0.2 */
    assert_int_equal(compare(&slack, a, b), -1);
}

/* Its limit is lost, but after service / ageing = 6.7 s it is held back no
 * longer: it goes before any newcomer. */
/* Among late ones a second waited makes up for 0.15 s of service; however long
 * a late one has waited, one in time goes before it. */
static void ageing_orders_the_late(void **state)
{
    struct bt_order_item late = {.service_ns = S, .slo_ns = S};
    struct bt_order_item short_late = {
        .service_ns = S / 10, .slo_ns = 1, .waited_ns = S};
    struct bt_order_item in_time = {.service_ns = 5 * S, .slo_ns = 9 * S};

    (void)state;
    late.waited_ns = 6999999999;
    assert_int_equal(compare(&slack, late, short_late), 1);
    late.waited_ns = 7000000001;
    assert_int_equal(compare(&slack, late, short_late), -1);
    late.waited_ns = 1000 * S;
    assert_int_equal(compare(&slack, late, in_time), 1);
}

/* 10 % of the work: after 3 s of the oldest's, 27 s of others must be served
 * before its turn comes again. */
static void the_oldest_get_their_share(void **state)
{
    struct bt_order_turn turn = {.share = 0.1};
    struct bt_order_turn never = {0};

    (void)state;
    assert_true(bt_order_turn_is_due(&turn));
    bt_order_turn_served(&turn, 3 * S, true);
    for (int i = 0; i < 27; i++) {
        assert_false(bt_order_turn_is_due(&turn));
        bt_order_turn_served(&turn, S, false);
    }
    bt_order_turn_served(&turn, S / 1000, false);
    assert_true(bt_order_turn_is_due(&turn));
    bt_order_turn_served(&never, S, true);
    assert_false(bt_order_turn_is_due(&never));
    turn.credit_ns = 0;
    bt_order_turn_served(&turn, INT64_MAX, true);
    assert_true(turn.credit_ns >= -3.6e12);
}

static void odd_input_stays_ordered(void **state)
{
    struct bt_order_knobs odd = {BT_ORDER_SLACK, (double)NAN, (double)NAN};
    struct bt_order_item a = {.service_ns = INT64_MAX,
                              .waited_ns = INT64_MAX,
                              .slo_ns = 1,
                              .priority = INT32_MIN,
                              .tenant_lead = (double)NAN};
    struct bt_order_item b = {
        .service_ns = 1, .waited_ns = INT64_MIN, .slo_ns = INT64_MAX};

    (void)state;
    assert_int_equal(compare(&odd, a, b), 1);
    assert_int_equal(bt_order_key_of(&odd, &a).late, 1);
    assert_int_equal(bt_order_key_of(&odd, &b).late, 0);
    assert_int_equal(bt_order_key_of(&odd, &a).minus_priority, INT32_MAX);
    assert_false(isnan(bt_order_key_of(&odd, &a).value));
    odd.ageing = -1;
    b.waited_ns = S;
    assert_true(bt_order_key_of(&odd, &b).value == 1);
}

/* ---- fairness ---- */

static void lead_is_what_one_had_more(void **state)
{
    struct bt_fairness f;

    (void)state;
    bt_fairness_init(&f);
    assert_true(bt_fairness_lead(&f, 1) == 0);
    bt_fairness_enter(&f, 1, 0);
    bt_fairness_enter(&f, 2, 0);
    bt_fairness_serve(&f, 1, 3 * S);
    bt_fairness_serve(&f, 2, S);
    assert_true(bt_fairness_lead(&f, 1) == 2e9);
    assert_true(bt_fairness_lead(&f, 2) == 0);
    f.slots[0].weight = 2; /* pays half from here on */
    bt_fairness_serve(&f, 1, 2 * S);
    assert_true(bt_fairness_lead(&f, 1) == 3e9);
    /* The least served one goes away: the other leads nobody. */
    bt_fairness_leave(&f, 2);
    assert_true(bt_fairness_lead(&f, 1) == 0);
}

static void idle_tenants_save_nothing(void **state)
{
    struct bt_fairness f;

    (void)state;
    bt_fairness_init(&f);
    bt_fairness_enter(&f, 2, 0);
    bt_fairness_serve(&f, 2, S);
    bt_fairness_leave(&f, 2);
    bt_fairness_enter(&f, 1, 1);
    bt_fairness_serve(&f, 1, 3600 * S);
    /* Back after an hour: level with the one that was there. */
    bt_fairness_enter(&f, 2, 2);
    assert_true(bt_fairness_lead(&f, 1) == 0);
    assert_true(bt_fairness_lead(&f, 2) == 0);
    bt_fairness_serve(&f, 1, S);
    assert_true(bt_fairness_lead(&f, 1) == 1e9);
    /* A second request of the same tenant raises nothing. */
    bt_fairness_enter(&f, 2, 3);
    assert_true(bt_fairness_lead(&f, 1) == 1e9);
}

/* All idle, then a newcomer and one with a past: nobody owes for before. */
static void a_new_busy_period_starts_level(void **state)
{
    struct bt_fairness f;

    (void)state;
    bt_fairness_init(&f);
    bt_fairness_enter(&f, 1, 0);
    bt_fairness_serve(&f, 1, 100 * S);
    bt_fairness_leave(&f, 1);
    bt_fairness_enter(&f, 2, 1);
    bt_fairness_enter(&f, 1, 2);
    assert_true(bt_fairness_lead(&f, 1) == 0);
    assert_true(bt_fairness_lead(&f, 2) == 0);
}

static void values_stay_bounded(void **state)
{
    struct bt_fairness f;

    (void)state;
    bt_fairness_init(&f);
    bt_fairness_enter(&f, 1, 0);
    bt_fairness_enter(&f, 2, 0);
    /* 2 cannot be served: the lead of 1 ends at a minute. */
    for (int i = 0; i < 1000; i++)
        bt_fairness_serve(&f, 1, 10 * S);
    assert_true(bt_fairness_lead(&f, 1) == 60e9);
    for (int i = 0; i < 100; i++) {
        bt_fairness_serve(&f, 1, INT64_MAX / 4);
        bt_fairness_serve(&f, 2, INT64_MAX / 4);
        assert_true(f.slots[0].served_ns <= 2e15);
        assert_true(f.slots[1].served_ns <= 2e15);
    }
    /* After eleven days of service all start over, leads kept. */
    f.slots[0].served_ns = 1e15;
    f.slots[1].served_ns = 1e15 - 5e9;
    bt_fairness_serve(&f, 1, S);
    assert_true(bt_fairness_lead(&f, 1) == 6e9);
    assert_true(f.slots[0].served_ns == 6e9);
    bt_fairness_serve(&f, 1, -5);
    bt_fairness_serve(&f, 77, S); /* unknown */
    bt_fairness_leave(&f, 77);
}

static void the_longest_idle_makes_room(void **state)
{
    struct bt_fairness f;

    (void)state;
    bt_fairness_init(&f);
    for (uint64_t t = 0; t < BT_ORDER_TENANTS; t++)
        bt_fairness_enter(&f, t, (int64_t)t);
    bt_fairness_serve(&f, 5, 9 * S);
    /* All wait: a further tenant is not tracked, and harmless. */
    bt_fairness_enter(&f, 1000, 100);
    bt_fairness_serve(&f, 1000, S);
    assert_true(bt_fairness_lead(&f, 1000) == 0);
    bt_fairness_leave(&f, 1000);
    bt_fairness_leave(&f, 9);
    bt_fairness_leave(&f, 5);
    bt_fairness_enter(&f, 1001, 101); /* takes 5, idle since t = 5 */
    assert_true(bt_fairness_lead(&f, 5) == 0);
    bt_fairness_serve(&f, 1001, S);
    assert_true(bt_fairness_lead(&f, 1001) == 1e9);
    bt_fairness_enter(&f, 9, 102); /* still there */
    bt_fairness_serve(&f, 9, S);
    assert_true(bt_fairness_lead(&f, 9) == 1e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fcfs),
        cmocka_unit_test(wspt),
        cmocka_unit_test(slack_classes),
        cmocka_unit_test(slack_value),
        cmocka_unit_test(ageing_orders_the_late),
        cmocka_unit_test(the_oldest_get_their_share),
        cmocka_unit_test(odd_input_stays_ordered),
        cmocka_unit_test(lead_is_what_one_had_more),
        cmocka_unit_test(idle_tenants_save_nothing),
        cmocka_unit_test(a_new_busy_period_starts_level),
        cmocka_unit_test(values_stay_bounded),
        cmocka_unit_test(the_longest_idle_makes_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
