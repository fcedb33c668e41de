/* Memory for arenas: zeros at both ends and in between for sizes around the
 * bound, a huge page's alignment above it, nothing resident before it is
 * touched, nothing mapped after it was given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "baton/orchestrator/big_memory.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE     ((size_t)1 << 30)

/* Second number of /proc/self/statm is resident, first is mapped; pages. */
static void pages(long *mapped_out, long *resident_out)
{
    FILE *f = fopen("/proc/self/statm", "r");
    char line[128], *end;

    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    assert_int_equal(fclose(f), 0);
    *mapped_out = strtol(line, &end, 10);
    *resident_out = strtol(end, NULL, 10);
    assert_true(*mapped_out > 0 && *resident_out > 0);
}

static void test_zeros(void **state)
{
    static const size_t sizes[] = {0,
                                   1,
                                   4095,
                                   BT_BIG_MEMORY_LEAST - 1,
                                   BT_BIG_MEMORY_LEAST,
                                   BT_BIG_MEMORY_LEAST + 1,
                                   BT_BIG_MEMORY_LEAST + HUGE_PAGE + 4097};

    (void)state;
    for (size_t round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            unsigned char *memory = bt_big_memory_take(sizes[i]);

            assert_non_null(memory);
            if (sizes[i] >= BT_BIG_MEMORY_LEAST)
                assert_int_equal((uintptr_t)memory % HUGE_PAGE, 0);
            for (size_t j = 0; j < sizes[i]; j += sizes[i] / 61 + 1) {
                assert_int_equal(memory[j], 0);
                memory[j] = 0xff;
            }
            if (sizes[i] > 0)
                memory[sizes[i] - 1] = 0xff;
            bt_big_memory_give(memory, sizes[i]);
        }
}

static void test_sparse(void **state)
{
    long mapped, resident, mapped_after, resident_after;
    unsigned char *memory;

    (void)state;
    pages(&mapped, &resident);
    memory = bt_big_memory_take(LARGE);
    assert_non_null(memory);
    memory[LARGE / 2] = 1;
    pages(&mapped_after, &resident_after);
    assert_true(mapped_after - mapped >= (long)(LARGE / 65536));
    /* One huge page, and what the test itself needed. */
    assert_true((resident_after - resident) * 4096L < 2 * (long)HUGE_PAGE);
    bt_big_memory_give(memory, LARGE);
    pages(&mapped_after, &resident_after);
    assert_true(mapped_after - mapped < (long)(HUGE_PAGE / 4096));
}

static void test_limits(void **state)
{
    (void)state;
    assert_null(bt_big_memory_take(SIZE_MAX));
    assert_null(bt_big_memory_take(SIZE_MAX / 2));
    bt_big_memory_give(NULL, 1);
    bt_big_memory_give(NULL, LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_zeros),
                                       cmocka_unit_test(test_sparse),
                                       cmocka_unit_test(test_limits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
