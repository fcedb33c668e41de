/* Paths that start with what a probe measured: the first pull is foreseen by
 * the line, from that host and port only, and what was learned is not undone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent_path.h"

#include <string.h>

static const struct bt_agent_start start = {.host = "10.0.0.1",
                                            .port = 7000,
                                            .setup_ns = 2000000,
                                            .per_descriptor_ns = 1000,
                                            .rate_bytes_per_s = 1000000000};

static const uint64_t remote[4] = {0, 1, 5, 6};
static const uint32_t local[4] = {0, 1, 2, 3};

/* Four blocks of 1 MB in two runs. */
static int64_t first_pull(struct bt_paths *paths, const char *host,
                          uint16_t port, const char *region)
{
    const struct bt_agent_pull pull = {.host = host,
                                       .port = port,
                                       .remote = remote,
                                       .local = local,
                                       .count = 4};
    struct bt_agent_event event = {.status = BT_CANCELLED};
    struct bt_path_flow flow;

    bt_paths_begin(paths, &flow, &pull, region, 1000000, 1000);
    int64_t predicted_ns = flow.predicted_ns;
    bt_paths_end(paths, &flow, &event, 2000);
    return predicted_ns;
}

static void test_first_pull_is_foreseen(void **state)
{
    struct bt_paths paths;

    (void)state;
    bt_paths_init(&paths, 0);
    assert_int_equal(bt_paths_calibrate(&paths, &start, 1), BT_OK);
    /* 2 ms + 2 us + 4 MB at 1 GB/s, whatever the region */
    assert_in_range(first_pull(&paths, "10.0.0.1", 7000, "kv"), 6001000,
                    6003000);
    assert_in_range(first_pull(&paths, "10.0.0.1", 7000, "pool"), 6001000,
                    6003000);
    assert_int_equal(first_pull(&paths, "10.0.0.1", 7001, "kv"), 0);
    assert_int_equal(first_pull(&paths, "10.0.0.2", 7000, "kv"), 0);
    bt_paths_fini(&paths);
}

static void test_known_paths_stay(void **state)
{
    struct bt_agent_start other = start;
    struct bt_paths paths;

    (void)state;
    bt_paths_init(&paths, 0);
    assert_int_equal(bt_paths_calibrate(&paths, &start, 1), BT_OK);
    int64_t before = first_pull(&paths, "10.0.0.1", 7000, "kv");
    other.rate_bytes_per_s *= 2;
    assert_int_equal(bt_paths_calibrate(&paths, &other, 1), BT_OK);
    assert_int_equal(first_pull(&paths, "10.0.0.1", 7000, "kv"), before);
    assert_in_range(first_pull(&paths, "10.0.0.1", 7000, "pool"), 4001000,
                    4003000);
    bt_paths_fini(&paths);
}

static void test_refused(void **state)
{
    static struct bt_agent_start many[BT_PATHS_MAX + 1];
    struct bt_agent_start bad = start;
    struct bt_paths paths;

    (void)state;
    bt_paths_init(&paths, 0);
    for (uint32_t i = 0; i <= BT_PATHS_MAX; i++)
        many[i] = start;
    assert_int_equal(bt_paths_calibrate(&paths, many, BT_PATHS_MAX + 1),
                     BT_LIMIT);
    assert_int_equal(bt_paths_calibrate(&paths, many, BT_PATHS_MAX), BT_OK);
    bad.rate_bytes_per_s = 0;
    assert_int_equal(bt_paths_calibrate(&paths, &bad, 1), BT_INVALID);
    bad = start;
    bad.setup_ns = -1;
    assert_int_equal(bt_paths_calibrate(&paths, &bad, 1), BT_INVALID);
    bad = start;
    bad.host[0] = '\0';
    assert_int_equal(bt_paths_calibrate(&paths, &bad, 1), BT_INVALID);
    assert_int_equal(bt_paths_calibrate(&paths, NULL, 0), BT_OK);
    assert_int_equal(first_pull(&paths, "10.0.0.1", 7000, "kv"), 0);
    bt_paths_fini(&paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_pull_is_foreseen),
        cmocka_unit_test(test_known_paths_stay),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
