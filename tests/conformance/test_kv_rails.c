/* Two rails: they share the bytes; one fails, falls silent, comes back; control
 * moves; a pull ends badly only when both are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"
#include "kv_tap.h"

#include "baton/transfer/wire.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 1024u
#define BYTES  16384u /* 16 MiB: many gets on each rail */

static uint32_t line[BLOCKS];

static uint64_t bytes_of(const struct bed_end *end)
{
    return end->end.rail_bytes[0] + end->end.rail_bytes[1];
}

static void pull_all(struct bed *bed, const char *request, struct bed_end *end)
{
    memset(bed->to, 0, (size_t)BLOCKS * BYTES);
    assert_int_equal(bed_pull(bed, bed->sink, request, line, line, BLOCKS,
                              BED_LONG_S, end, NULL),
                     BT_OK);
}

static void ends_ok(struct bed *bed, struct bed_end *end)
{
    bed_until(bed, &end->calls, 1);
    if (end->end.status != BT_OK)
        print_message("status %s: %s\n", bt_status_name(end->end.status),
                      end->detail);
    assert_int_equal(end->end.status, BT_OK);
    assert_int_equal(end->end.bytes, BLOCKS * (uint64_t)BYTES);
    assert_int_equal(bytes_of(end), BLOCKS * (uint64_t)BYTES);
    bed_same(bed, bed->to, line, line, BLOCKS);
}

/* Pull until the other rail takes part. */
static void until_both(struct bed *bed)
{
    struct bed_end end;

    do {
        pull_all(bed, "ok", &end);
        ends_ok(bed, &end);
    } while (end.end.rail_bytes[0] == 0 || end.end.rail_bytes[1] == 0);
}

static void opened(struct bed *bed, void **state)
{
    bed_line(line, BLOCKS);
    tap_install();
    bed_both(bed, state, BLOCKS, BYTES);
    until_both(bed);
}

static void closed(struct bed *bed)
{
    bed_close(bed);
    tap_remove();
}

/* Over some pulls: what a rail carries of one depends on the window that it has
 * come to by then. */
static void test_share(void **state)
{
    struct bed bed;
    struct bed_end end;
    uint64_t sums[2] = {0, 0};

    opened(&bed, state);
    for (int n = 0; n < 8; n++) {
        pull_all(&bed, "ok", &end);
        ends_ok(&bed, &end);
        for (int i = 0; i < 2; i++)
            sums[i] += end.end.rail_bytes[i];
    }
    for (int i = 0; i < 2; i++)
        assert_true(sums[i] >= 8 * BLOCKS * (uint64_t)BYTES / 20);
    assert_int_equal(end.end.retries, 0);
    assert_int_equal(bed.downs, 0);
    closed(&bed);
}

/* A rail breaks with gets out: the other one brings their bytes; it comes back
 * and is used again. */
static void broken_in_the_middle(void **state, uint32_t rail)
{
    struct bed bed;
    struct bed_end end;

    opened(&bed, state);
    tap.rails[rail].gets = 0;
    tap.rails[rail].hold_gets = true;
    pull_all(&bed, "ok", &end);
    bed_until(&bed, &tap.rails[rail].gets, 1);
    tap.rails[rail].refuse = true; /* it is not back before the pull's end */
    tap_break(bed.loop, rail);
    ends_ok(&bed, &end);
    assert_int_equal(end.end.rail_bytes[rail], 0);
    assert_int_equal(bed.downs, 1);
    assert_int_equal(bed.last_rail.rail, rail);
    tap.rails[rail].refuse = false;
    tap_release(rail);
    bed_until(&bed, &bed.ups, 1);
    until_both(&bed);
    assert_int_equal(bed.downs, 1);
    assert_int_equal(bed_stats(bed.sink_fabric).rails_lost, 1);
    assert_int_equal(bed_stats(bed.sink_fabric).rails_back, 1);
    closed(&bed);
}

static void test_second_breaks(void **state)
{
    broken_in_the_middle(state, 1);
}

static void test_control_breaks(void **state)
{
    broken_in_the_middle(state, 0);
}

/* A frame is lost with the rail that carries control: OPEN is asked again over
 * the other one, the source does not check twice; a DONE that may be lost is
 * said again. One reader left, once. */
static void lost_with_control(void **state, enum bt_wire_type type)
{
    struct bed bed;
    struct bed_end end;
    int checks, left, released;

    opened(&bed, state);
    bed_until(&bed, &bed.left, bed.checks);
    checks = bed.checks;
    left = bed.left;
    released = bed.released;
    tap.rails[0].type = (uint8_t)type;
    tap.rails[0].drop_send = 1;
    pull_all(&bed, "ok", &end);
    while (tap.rails[0].drop_send > 0)
        ev_run(bed.loop, EVRUN_ONCE);
    tap_break(bed.loop, 0);
    ends_ok(&bed, &end);
    bed_until(&bed, &bed.left, left + 1);
    bed_until(&bed, &bed.released, released + 1);
    assert_int_equal(bed.checks, checks + 1);
    assert_int_equal(bed.left, left + 1);
    closed(&bed);
}

static void test_grant_lost(void **state)
{
    lost_with_control(state, BT_WIRE_GRANT);
}

static void test_done_lost(void **state)
{
    lost_with_control(state, BT_WIRE_DONE);
}

/* The cable is cut: no error, nothing comes. Two beats later (eight where our
 * own loop is held up), as the other rail answers, its gets go over that. */
static void silent(void **state, uint32_t rail)
{
    struct bed bed;
    struct bed_end end;
    int tick;

    opened(&bed, state);
    tap.rails[rail].gets = 0;
    pull_all(&bed, "ok", &end);
    tap.rails[rail].hold_gets = true;
    bed_until(&bed, &tap.rails[rail].gets, 1);
    tap.rails[rail].cut = true;
    tick = bed.ticks;
    bed_until(&bed, &bed.downs, 1);
    assert_true(bed.ticks - tick >= 1 && bed.ticks - tick <= 40);
    ends_ok(&bed, &end);
    assert_int_equal(bed.downs, 1);
    assert_int_equal(bed.last_rail.rail, rail);
    assert_non_null(strstr(bed.last_why, "two heartbeats"));
    tap.rails[rail].cut = false;
    tap_release(rail);
    bed_until(&bed, &bed.ups, 1);
    until_both(&bed);
    closed(&bed);
}

static void test_second_is_silent(void **state)
{
    silent(state, 1);
}

static void test_control_is_silent(void **state)
{
    silent(state, 0);
}

/* Five beats: nothing says that the source is not merely held up. */
static void test_both_are_silent(void **state)
{
    struct bed bed;
    struct bed_end end;
    int tick;

    opened(&bed, state);
    tap.rails[0].cut = tap.rails[1].cut = true;
    pull_all(&bed, "ok", &end);
    tick = bed.ticks;
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_PEER_DEAD);
    assert_true(end.at_tick - tick >= 3 && end.at_tick - tick <= 40);
    assert_non_null(strstr(end.detail, "five heartbeats"));
    tap.rails[0].cut = tap.rails[1].cut = false;
    pull_all(&bed, "ok", &end);
    ends_ok(&bed, &end);
    closed(&bed);
}

/* Our first rail is down from the start: another one reaches the address. */
static void test_first_never_connects(void **state)
{
    struct bed bed;
    struct bed_end end;

    if (strcmp(bed_address(0), bed_address(1)) != 0)
        skip(); /* nets of their own: no way from one to the other */
    bed_line(line, BLOCKS);
    tap_install();
    bed_both(&bed, state, BLOCKS, BYTES);
    tap.rails[0].refuse = true;
    pull_all(&bed, "ok", &end);
    ends_ok(&bed, &end);
    assert_int_equal(end.end.rail_bytes[1], BLOCKS * (uint64_t)BYTES);
    tap.rails[0].refuse = false;
    until_both(&bed);
    closed(&bed);
}

/* A rail that does not come back is tried less and less often, and told once
 * (field-failures E16): 50 ms, 100, 200 ... are about 6 tries in 2 s. */
static void test_tries_are_spaced(void **state)
{
    struct bed bed;
    struct bed_end end;

    opened(&bed, state);
    tap.rails[1].refuse = true;
    tap.rails[1].connects = 0;
    tap_break(bed.loop, 1);
    bed_until(&bed, &bed.ticks, bed.ticks + 20);
    assert_true(tap.rails[1].connects >= 2 && tap.rails[1].connects <= 9);
    assert_int_equal(bed.downs, 1);
    pull_all(&bed, "ok", &end);
    ends_ok(&bed, &end);
    closed(&bed);
}

/* Gets that fail on a rail that lives are asked for again; without an end they
 * end the pull. */
static void test_gets_fail(void **state)
{
    struct bed bed;
    struct bed_end end;

    opened(&bed, state);
    tap.rails[0].fail_get = 3;
    pull_all(&bed, "ok", &end);
    ends_ok(&bed, &end);
    assert_int_equal(tap.rails[0].fail_get, 0);
    assert_true(end.end.retries >= 1);
    assert_int_equal(bed_stats(bed.sink_fabric).gets_failed, 3);
    assert_int_equal(bed.downs, 0);
    tap.rails[0].fail_get = tap.rails[1].fail_get = 100000;
    pull_all(&bed, "ok", &end);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_PEER_ERROR);
    tap.rails[0].fail_get = tap.rails[1].fail_get = 0;
    closed(&bed);
}

/* Gets stuck on one rail: the deadline, two beats, that rail is closed; a pull
 * on the other goes on. */
static void test_deadline_closes_one(void **state)
{
    static uint32_t rest[BLOCKS / 2];
    struct bed bed;
    struct bed_end end, other;

    opened(&bed, state);
    for (uint32_t i = 0; i < BLOCKS / 2; i++)
        rest[i] = BLOCKS / 2 + i;
    tap.rails[1].gets = 0;
    tap.rails[1].hold_gets = true;
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS / 2,
                              2 * bed_slowness(), &end, NULL),
                     BT_OK);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", rest, rest, BLOCKS / 2,
                              BED_LONG_S, &other, NULL),
                     BT_OK);
    bed_until(&bed, &tap.rails[1].gets, 1);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_TIMEOUT);
    bed_until(&bed, &other.calls, 1);
    assert_int_equal(other.end.status, BT_OK);
    bed_same(&bed, bed.to, rest, rest, BLOCKS / 2);
    assert_int_equal(bed.downs, 1);
    tap_release(1);
    closed(&bed);
}

#define T(name)                                                                \
    {                                                                          \
#name, name, NULL, NULL, NULL                                          \
    }
static const struct CMUnitTest suite[] = {
    T(test_share),
    T(test_second_breaks),
    T(test_control_breaks),
    T(test_grant_lost),
    T(test_done_lost),
    T(test_second_is_silent),
    T(test_control_is_silent),
    T(test_both_are_silent),
    T(test_first_never_connects),
    T(test_tries_are_spaced),
    T(test_gets_fail),
    T(test_deadline_closes_one),
};

int main(int argc, char **argv)
{
    static const struct bed_variant variants[] = {{2, false}, {2, true}};

    return bed_main(argc, argv, suite, sizeof(suite) / sizeof(suite[0]),
                    variants, sizeof(variants) / sizeof(variants[0]));
}
