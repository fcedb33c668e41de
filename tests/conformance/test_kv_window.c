/* A small pull beside a large one on a slow link: how much of the large one
 * goes before it is counted in bytes, so a busy machine makes no difference.
 * The link is simulated, 25 MB/s: the window settles at about 260 KiB. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"

#include <cmocka.h>
#include <ev.h>
#include <string.h>

#define BLOCKS 512u
#define BYTES  16384u /* 8 MiB in all: 320 ms */
#define LARGE  (BLOCKS - 1)
#define BEFORE 64u /* of them landed when the small one begins */
#define RATE   25000000u

static int64_t target_ns;

static enum bt_status create_slow(struct ev_loop *loop,
                                  const struct bt_fabric_config *config,
                                  struct bt_fabric **out, char *error,
                                  size_t size)
{
    struct bt_fabric_config c = *config;
    struct bt_rail_config rail = config->rails[0];

    rail.device = "slow";
    rail.sim_rate_bytes_per_s = RATE;
    c.kind = "sim";
    c.rails = &rail;
    c.window_target_ns = target_ns;
    return bt_fabric_create(loop, &c, out, error, size);
}

static uint32_t landed(const struct bed *bed)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < LARGE; i++) {
        size_t last = (size_t)(i + 1) * BYTES - 8;

        count += memcmp(bed->to + last, bed->from + last, 8) == 0;
    }
    return count;
}

/* Blocks of the large pull that had landed when the small one began, and when
 * it ended. */
static void beside(int64_t target, uint32_t landed_out[2])
{
    static uint32_t line[BLOCKS];
    struct bed_end large, small;
    struct bed bed;

    target_ns = target;
    bed_line(line, BLOCKS);
    bed_open(&bed, create_slow, BLOCKS, BYTES);
    bed_source(&bed);
    bed_sink(&bed);
    assert_int_equal(bed_pull_one(&bed, "ok", LARGE, &small), BT_OK);
    memset(bed.to, 0, (size_t)BLOCKS * BYTES);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok1", line, line, LARGE,
                              BED_LONG_S, &large, NULL),
                     BT_OK);
    bed_until_landed(&bed, BEFORE);
    landed_out[0] = landed(&bed);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok2", line + LARGE, line + LARGE,
                              1, BED_LONG_S, &small, NULL),
                     BT_OK);
    bed_until(&bed, &small.calls, 1);
    landed_out[1] = landed(&bed);
    bed_until(&bed, &large.calls, 1);
    assert_int_equal(small.end.status, BT_OK);
    assert_int_equal(large.end.status, BT_OK);
    bed_same(&bed, bed.to, line, line, BLOCKS);
    bed_close(&bed);
}

/* What is out when it is asked for, and what goes until its GRANT is here: two
 * windows or so. 1 MiB is plenty. */
static void test_small_goes_soon(void **state)
{
    uint32_t had[2];

    (void)state;
    beside(0, had);
    print_message("%u, then %u of %u\n", had[0], had[1], LARGE);
    assert_in_range(had[1] - had[0], 0, (1u << 20) / BYTES);
}

/* As it was with windows that stay: 8 MiB are out at once, and first. */
static void test_fixed_window(void **state)
{
    uint32_t had[2];

    (void)state;
    beside(-1, had);
    print_message("%u, then %u of %u\n", had[0], had[1], LARGE);
    assert_int_equal(had[1], LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_goes_soon),
        cmocka_unit_test(test_fixed_window),
    };

    return cmocka_run_group_tests_name("kv_window", tests, NULL, NULL);
}
