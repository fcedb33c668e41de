/* bt_policy_parse and bt_policy_defaults: what a spec means, what is wrong with
 * it, and that the table's knobs keep the contract.
 */
#include "rivals_world.h"

static void defaults_and_values(void **state)
{
    const struct bt_policy *policy = NULL;
    double knobs[BT_POLICY_KNOBS_MAX];
    char error[200] = "";

    (void)state;
    assert_int_equal(
        bt_policy_parse("two_tier", &policy, knobs, error, sizeof(error)),
        BT_OK);
    assert_string_equal(policy->name, "two_tier");
    assert_true(knobs[0] == 32 && knobs[1] == 1.1 && knobs[2] == 0.5);
    assert_true(knobs[3] == 0);
    assert_int_equal(bt_policy_parse("two_tier:cache=.25,abs=64", &policy,
                                     knobs, error, sizeof(error)),
                     BT_OK);
    assert_true(knobs[0] == 64 && knobs[1] == 1.1 && knobs[2] == 0.25);
    assert_int_equal(bt_policy_parse("llmd:non_cached=-1", &policy, knobs,
                                     error, sizeof(error)),
                     BT_OK);
    assert_true(knobs[4] == -1);
    assert_int_equal(
        bt_policy_parse("random", &policy, knobs, error, sizeof(error)), BT_OK);
    assert_true(knobs[0] == 0);
}

static void assert_refused(const char *spec, enum bt_status status,
                           const char *why)
{
    static const struct bt_policy untouched = {.name = "untouched"};
    const struct bt_policy *policy = &untouched;
    double knobs[BT_POLICY_KNOBS_MAX] = {-77};
    char error[200] = "";

    assert_int_equal(
        bt_policy_parse(spec, &policy, knobs, error, sizeof(error)), status);
    if (strcmp(error, why) != 0)
        fail_msg("'%s' gave \"%s\" instead of \"%s\"", spec, error, why);
    assert_ptr_equal(policy, &untouched);
    assert_true(knobs[0] == -77);
}

static void refusals(void **state)
{
    const char *range = "knob 'abs': expected a number from 0 to 65536, got ";
    static const char *const numbers[] = {
        "x", "1e3", "-1",   "65537", "1.2.3", ".",
        "-", "1 ",  "0x10", "nan",   "inf",   "0000000000000001"};
    char spec[80], why[160];

    (void)state;
    assert_refused("dynomo", BT_NOT_FOUND,
                   "unknown policy 'dynomo' (did you mean 'dynamo'?)");
    assert_refused("mooncake_fetsh:theta=2", BT_NOT_FOUND,
                   "unknown policy 'mooncake_fetsh' (did you mean "
                   "'mooncake_fetch'?)");
    assert_refused("two_tier:cash=0.1", BT_INVALID,
                   "policy 'two_tier' has no knob 'cash' (did you mean "
                   "'cache'?)");
    assert_refused("random:seed=1", BT_INVALID,
                   "policy 'random' has no knobs, got 'seed'");
    assert_refused("two_tier:abs=1,abs=2", BT_INVALID,
                   "knob 'abs' is given twice");
    assert_refused("", BT_INVALID, "expected policy[:knob=value,...], got ''");
    assert_refused("two_tier:", BT_INVALID,
                   "expected knob=value[,knob=value ...] at ''");
    assert_refused("two_tier:abs", BT_INVALID,
                   "expected knob=value[,knob=value ...] at 'abs'");
    assert_refused("two_tier:abs=", BT_INVALID,
                   "expected knob=value[,knob=value ...] at 'abs='");
    assert_refused("two_tier:abs,rel=1", BT_INVALID,
                   "expected knob=value[,knob=value ...] at 'abs,rel=1'");
    assert_refused("two_tier:abs=1,", BT_INVALID,
                   "a knob is missing after ','");
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        snprintf(spec, sizeof(spec), "two_tier:abs=%s", numbers[i]);
        snprintf(why, sizeof(why), "%s'%s'", range, numbers[i]);
        assert_refused(spec, BT_INVALID, why);
    }
}

/* Overlong words are refused and the error never leaves its buffer. */
static void bounds(void **state)
{
    const struct bt_policy *policy = NULL;
    double knobs[BT_POLICY_KNOBS_MAX];
    char spec[200], error[16];

    (void)state;
    memset(spec, 'a', sizeof(spec));
    spec[199] = '\0';
    memset(error, 'x', sizeof(error));
    assert_int_equal(bt_policy_parse(spec, &policy, knobs, error, 8),
                     BT_INVALID);
    assert_int_equal(strlen(error), 7);
    assert_int_equal(error[8], 'x');
    memcpy(spec, "cla:w=", 6);
    assert_int_equal(bt_policy_parse(spec, &policy, knobs, error, 8),
                     BT_INVALID);
    assert_int_equal(bt_policy_parse("cla:w=9", &policy, knobs, error, 0),
                     BT_OK);
    assert_int_equal(bt_policy_parse("cla:q=9", &policy, knobs, NULL, 0),
                     BT_INVALID);
}

/* Every knob of the table: default inside its range, text, room. */
static void table_keeps_the_contract(void **state)
{
    double knobs[BT_POLICY_KNOBS_MAX];

    (void)state;
    for (size_t k = 0; bt_policy_at(k) != NULL; k++) {
        const struct bt_policy *p = bt_policy_at(k);
        size_t i = 0;

        assert_non_null(p->place);
        assert_true(strlen(p->summary) > 10);
        assert_ptr_equal(bt_policy_find(p->name), p);
        bt_policy_defaults(p, knobs);
        for (; p->knobs != NULL && p->knobs[i].name != NULL; i++) {
            assert_true(i < BT_POLICY_KNOBS_MAX);
            assert_true(p->knobs[i].value >= p->knobs[i].min &&
                        p->knobs[i].value <= p->knobs[i].max);
            assert_true(knobs[i] == p->knobs[i].value);
            assert_true(strlen(p->knobs[i].text) > 5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_values),
        cmocka_unit_test(refusals),
        cmocka_unit_test(bounds),
        cmocka_unit_test(table_keeps_the_contract),
    };

    return cmocka_run_group_tests_name("rivals_knobs", tests, NULL, NULL);
}
