/* A workload as a trace: lengths and arrivals stay, equal prefixes and only
 * these get equal ids, a last short block counts by what is in it. */
#include "baton/bench/trace.h"
#include "baton/bench/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Prompts of 4-token blocks: a, the same and more, the same from the second
 * block on, and a again cut within its second block. */
static const uint32_t prompts[4][10] = {
    {1, 2, 3, 4, 5, 6, 7, 8},
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 9},
    {9, 2, 3, 4, 5, 6, 7, 8},
    {1, 2, 3, 4, 5, 6},
};
static const uint32_t lengths[4] = {8, 10, 8, 6};

static void blocks_are_prefixes(void **state)
{
    struct bt_workload workload;
    struct bt_trace trace;
    const uint64_t *b;

    (void)state;
    memset(&workload, 0, sizeof(workload));
    for (uint32_t i = 0; i < 4; i++) {
        struct bt_workload_request r = {.arrival_ns = i * 1000000,
                                        .token_count = lengths[i],
                                        .max_tokens = 7 + i};
        uint32_t *tokens;

        assert_int_equal(bt_workload_append(&workload, &r, &tokens), BT_OK);
        memcpy(tokens, prompts[i], lengths[i] * sizeof(*tokens));
    }
    assert_int_equal(bt_workload_trace(&workload, 4, &trace), BT_OK);
    assert_int_equal(trace.count, 4);
    assert_int_equal(trace.block_tokens, 4);
    assert_int_equal(trace.requests[2].arrival_ns, 2000000);
    assert_int_equal(trace.requests[1].input_tokens, 10);
    assert_int_equal(trace.requests[3].output_tokens, 10);
    /* a0 a1 | a0 a1 m | c0 c1 | a0 cut */
    assert_int_equal(trace.block_count, 9);
    b = trace.blocks;
    assert_true(b[2] == b[0] && b[3] == b[1] && b[7] == b[0]);
    assert_true(b[5] != b[0] && b[6] != b[1]);
    assert_true(b[8] != b[1] && b[8] != b[6]);
    assert_int_equal(trace.block_ids, 6);
    bt_trace_fini(&trace);
    bt_workload_fini(&workload);
}

static void nothing_is_nothing(void **state)
{
    struct bt_workload workload;
    struct bt_trace trace;

    (void)state;
    memset(&workload, 0, sizeof(workload));
    assert_int_equal(bt_workload_trace(&workload, 16, &trace), BT_OK);
    assert_int_equal(trace.count, 0);
    bt_trace_fini(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_prefixes),
        cmocka_unit_test(nothing_is_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
