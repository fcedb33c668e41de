/* When a stream is late: worked by hand. */
#include "kv_lag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The engine's clock is 1,000 s behind ours: only what is beyond it counts. */
static void beyond_the_least(void **state)
{
    struct kv_lag l = {0};

    (void)state;
    kv_lag_seen(&l, 1000., 0., 5.);
    assert_false(l.late);
    kv_lag_seen(&l, 1004.9, 0., 5.);
    assert_false(l.late);
    kv_lag_seen(&l, 1005., 0., 5.);
    assert_true(l.late);
    kv_lag_seen(&l, 1002.5, 0., 5.); /* half of it still is */
    assert_true(l.late);
    kv_lag_seen(&l, 1002.4, 0., 5.);
    assert_false(l.late);
    kv_lag_seen(&l, 998., 0., 5.); /* the first was late itself */
    kv_lag_seen(&l, 1003., 0., 5.);
    assert_true(l.late);
}

/* 5 s in 50,000 s is a clock; 5 s in 40,000 s is not. */
static void clocks_drift(void **state)
{
    struct kv_lag l = {0};

    (void)state;
    kv_lag_seen(&l, -3., 0., 5.);
    kv_lag_seen(&l, 2., 40000., 5.); /* least is 1 by then */
    assert_false(l.late);
    kv_lag_seen(&l, 6.1, 40000., 5.);
    assert_true(l.late);
    kv_lag_seen(&l, 3.4, 40000., 5.);
    assert_false(l.late);
}

static void never(void **state)
{
    struct kv_lag l = {0};

    (void)state;
    kv_lag_seen(&l, 0., 0., 0.);
    kv_lag_seen(&l, 1e9, 0., 0.);
    assert_false(l.late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beyond_the_least),
        cmocka_unit_test(clocks_drift),
        cmocka_unit_test(never),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
