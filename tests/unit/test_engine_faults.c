/* Fault specs and how often a fault fires. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "faults.h"

static void specs(void **state)
{
    (void)state;
    struct bt_fault f;
    assert_int_equal(bt_fault_parse("die@during_prefill:count=2", &f), BT_OK);
    assert_int_equal(f.kind, BT_FAULT_DIE);
    assert_int_equal(f.phase, BT_PHASE_DURING_PREFILL);
    assert_int_equal(f.count, 2);
    assert_int_equal(bt_fault_parse("slow:factor=2.5", &f), BT_OK);
    assert_true(f.factor > 2.49 && f.factor < 2.51);
    const char *const bad[] = {"",           "none",        "dye",
                               "die@never",  "die:count=x", "die:count=-1",
                               "die@all",    "error@now",   "slow:factor=nan",
                               "die:often=1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(bt_fault_parse(bad[i], &f), BT_INVALID);
    }
}

static void add(struct bt_faults *faults, const char *spec)
{
    struct bt_fault f;
    assert_int_equal(bt_fault_parse(spec, &f), BT_OK);
    assert_int_equal(bt_faults_add(faults, &f), BT_OK);
}

static void counts(void **state)
{
    (void)state;
    struct bt_faults faults = {.count = 0};
    add(&faults, "error@after_prefill:count=2");
    add(&faults, "slow:factor=3");
    assert_int_equal(bt_faults_fire(&faults, BT_PHASE_ARRIVAL), BT_FAULT_NONE);
    assert_int_equal(bt_faults_fire(&faults, BT_PHASE_AFTER_PREFILL),
                     BT_FAULT_ERROR);
    assert_int_equal(bt_faults_fire(&faults, BT_PHASE_AFTER_PREFILL),
                     BT_FAULT_ERROR);
    assert_int_equal(bt_faults_fire(&faults, BT_PHASE_AFTER_PREFILL),
                     BT_FAULT_NONE);
    assert_true(bt_faults_factor(&faults, BT_FAULT_SLOW, 1.0) > 2.9);
    assert_true(bt_faults_factor(&faults, BT_FAULT_EVENTS_DROP, 0.0) < 0.1);
    add(&faults, "hang");
    for (int i = 0; i < 5; i++) { /* no count: until cleared */
        assert_int_equal(bt_faults_fire(&faults, BT_PHASE_ARRIVAL),
                         BT_FAULT_HANG);
    }
    assert_int_equal(faults.fired, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),
        cmocka_unit_test(counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
