/* What every fabric must do, run over each of bed_fabrics: bytes arrive, each
 * pull ends exactly once, damage and refusals are told apart, and the end of
 * the other side is noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"
#include "kv_tap.h"

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 4096u
#define SMALL  1024u

static void test_shapes(void **state)
{
    static uint32_t remote[BLOCKS], local[BLOCKS];
    struct bed bed;

    bed_both(&bed, state, BLOCKS, SMALL);
    remote[0] = 17;
    local[0] = 3;
    bed_pull_ok(&bed, remote, local, 1, 1);
    bed_pull_ok(&bed, remote, local, 0, 0);
    for (uint32_t i = 0; i < 100; i++) { /* neighbours */
        remote[i] = 50 + i;
        local[i] = 900 + i;
    }
    bed_pull_ok(&bed, remote, local, 100, 1);
    for (uint32_t i = 0; i < 100; i++) { /* neighbours, listed backwards */
        remote[i] = 149 - i;
        local[i] = 299 - i;
    }
    bed_pull_ok(&bed, remote, local, 100, 1);
    for (uint32_t i = 0; i < 100; i++) { /* every third one */
        remote[i] = 3 * i;
        local[i] = 1000 + i;
    }
    bed_pull_ok(&bed, remote, local, 100, 100);
    for (uint32_t i = 0; i < 4000; i++) { /* no two neighbours stay together */
        remote[i] = i;
        local[i] = (i * 997) % BLOCKS;
    }
    bed_pull_ok(&bed, remote, local, bed_part(4000), bed_part(4000));
    for (uint32_t i = 0; i < 4000; i++)
        remote[i] = local[i] = i;
    bed_pull_ok(&bed, remote, local, 4000, 1);
    bed_close(&bed);
}

/* One remote block may go to several places. */
static void test_fan_out(void **state)
{
    const uint32_t remote[] = {5, 5, 6}, local[] = {1, 9, 2};
    struct bed bed;

    bed_both(&bed, state, 16, 5000);
    bed_pull_ok(&bed, remote, local, 3, 2);
    bed_close(&bed);
}

/* Blocks larger than a chunk, and lists longer than a frame. */
static void test_sizes(void **state)
{
    static uint32_t remote[40000], local[40000];
    const uint32_t many = bed_part(40000);
    struct bed bed;

    bed_both(&bed, state, 3, 3000001);
    remote[0] = 2, remote[1] = 0, local[0] = 0, local[1] = 1;
    bed_pull_ok(&bed, remote, local, 2, 2);
    bed_close(&bed);
    bed_both(&bed, state, many, 64);
    for (uint32_t i = 0; i < many; i++) {
        remote[i] = i;
        local[i] = many - 1 - i;
    }
    bed_pull_ok(&bed, remote, local, many, many);
    bed_close(&bed);
}

static void test_refusals(void **state)
{
    struct bed bed;
    struct bed_end end;

    bed_both(&bed, state, 8, SMALL);
    assert_int_equal(bed_pull_one(&bed, "nobody", 0, &end), BT_NOT_FOUND);
    assert_int_equal(bed_pull_one(&bed, "expired", 0, &end), BT_LEASE_EXPIRED);
    assert_int_equal(bed_pull_one(&bed, "ok", 8, &end), BT_NOT_FOUND);
    assert_int_equal(bed_pull_one(&bed, "ok", 7, &end), BT_OK);
    assert_int_equal(bed.checks, 3);
    bed_until(&bed, &bed.released, 1);
    assert_int_equal(bed.released, 1);
    bed_close(&bed);
}

static void test_arguments(void **state)
{
    const uint32_t zero[] = {0, 1}, twice[] = {4, 4}, outside[] = {0, 8};
    char name[BT_KV_REQUEST_MAX + 2];
    struct bed bed;
    struct bed_end end, other;
    struct bt_kv_pull_spec dns = {.host = "prefill-0.example",
                                  .port = 1,
                                  .request_id = "ok",
                                  .deadline_ns = 1};

    bed_both(&bed, state, 8, SMALL);
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    assert_int_equal(
        bed_pull(&bed, bed.sink, name, zero, zero, 2, 1, &end, NULL),
        BT_INVALID);
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", zero, twice, 2, 1, &end, NULL),
        BT_EXISTS);
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", zero, outside, 2, 1, &end, NULL),
        BT_INVALID);
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", zero, zero, 2, 0, &end, NULL),
        BT_INVALID);
    assert_int_equal(bt_kv_pull_start(bed.sink, &dns, NULL, NULL, NULL),
                     BT_INVALID);
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", zero, zero, 2, BED_LONG_S, &end, NULL),
        BT_OK);
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", zero, zero + 1, 1, 1, &other, NULL),
        BT_EXISTS);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_OK);
    bed_close(&bed);
}

static void test_layout_differs(void **state)
{
    struct bed_end end;

    for (int field = 0; field < 4; field++) {
        struct bed bed;

        bed_open_case(&bed, state, 8, SMALL);
        bed_source(&bed);
        bed.layout.version += field == 0;
        bed.layout.block_tokens += field == 1;
        bed.layout.block_bytes -= field == 2;
        bed.layout.model_hash += field == 3;
        bed_sink(&bed);
        assert_int_equal(bed_pull_one(&bed, "ok", 0, &end), BT_INCOMPATIBLE);
        assert_non_null(strstr(end.detail, "differs"));
        assert_int_equal(bed.refused, 1);
        assert_string_equal(bed.reason, end.detail);
        assert_int_equal(bed.checks, 0);
        bed_close(&bed);
    }
}

/* The source hashes when the pull opens; the flip comes before the first get,
 * which the link's set-up time holds back. */
static void test_damage_is_found(void **state)
{
    const uint32_t blocks[] = {0, 1, 2, 3};
    struct bed bed;
    struct bed_end end;

    bed_both(&bed, state, 8, SMALL);
    bed_slow(&bed, 1u << 30, 0.3);
    bed.flip_after_s = 0.02;
    bed.flip_block = 2;
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", blocks, blocks, 4,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until(&bed, &end.calls, 1);
    assert_true(bed.flipped);
    assert_int_equal(end.end.status, BT_CHECKSUM);
    assert_int_equal(bed.released, 0);
    bed_close(&bed);
}

/* Harmed on the way: the second get heals it, and no third is tried. */
static void test_damage_is_fetched_again(void **state)
{
    static uint32_t blocks[500];
    struct bed bed;
    struct bed_end end;

    bed_line(blocks, 500);
    tap_install();
    bed_both(&bed, state, 500, SMALL);
    for (int times = 1; times <= 2; times++) {
        tap.rails[0].flip_get = times;
        memset(bed.to, 0, 500 * SMALL);
        assert_int_equal(bed_pull(&bed, bed.sink, "ok", blocks, blocks, 1,
                                  BED_LONG_S, &end, NULL),
                         BT_OK);
        bed_until(&bed, &end.calls, 1);
        assert_int_equal(end.end.status, times == 1 ? BT_OK : BT_CHECKSUM);
        if (times == 2)
            continue;
        assert_int_equal(end.end.descriptors, 2);
        assert_int_equal(end.end.bytes, SMALL);
    }
    bed_until(&bed, &bed.released, 1);
    bed_close(&bed);
    tap_remove();
}

static void test_two_sinks_many_pulls(void **state)
{
    static struct bed_end ends[2][64];
    static uint32_t remote[64][16], local[64][16];
    struct bed bed;
    struct bt_kv_sink *sinks[2];
    unsigned char *to;

    bed_both(&bed, state, 1024, 4096);
    to = calloc(1024, 4096);
    assert_non_null(to);
    sinks[0] = bed.sink;
    sinks[1] = bed_other_sink(&bed, to);
    for (uint32_t p = 0; p < 64; p++) {
        for (uint32_t i = 0; i < 16; i++) {
            remote[p][i] = (p * 16 + i * 37) % 1024;
            local[p][i] = p * 16 + i;
        }
        for (int s = 0; s < 2; s++)
            assert_int_equal(bed_pull(&bed, sinks[s], "ok", remote[p], local[p],
                                      16, BED_LONG_S, &ends[s][p], NULL),
                             BT_OK);
    }
    for (uint32_t p = 0; p < 64; p++) {
        bed_until(&bed, &ends[0][p].calls, 1);
        bed_until(&bed, &ends[1][p].calls, 1);
        assert_int_equal(ends[0][p].end.status, BT_OK);
        assert_int_equal(ends[1][p].end.status, BT_OK);
        bed_same(&bed, bed.to, remote[p], local[p], 16);
        bed_same(&bed, to, remote[p], local[p], 16);
    }
    bed_until(&bed, &bed.released, 128);
    bt_kv_sink_destroy(sinks[1]);
    free(to);
    bed_close(&bed);
}

/* An engine may be both: one fabric, pulling from itself. */
static void test_one_fabric(void **state)
{
    const uint32_t remote[] = {0, 1, 2, 7}, local[] = {4, 5, 6, 0};
    struct bed bed;

    bed_open_case(&bed, state, 8, 70000);
    bed_source(&bed);
    bed.sink_fabric = bed.source_fabric;
    bed.sink = bed_other_sink(&bed, bed.to);
    bed_pull_ok(&bed, remote, local, 4, 2);
    bt_kv_sink_destroy(bed.sink);
    bed.sink = NULL;
    bed.sink_fabric = NULL;
    bed_close(&bed);
}

static void test_pull_limit(void **state)
{
    static struct bed_end ends[1025];
    struct bed bed;
    uint32_t i;

    bed_both(&bed, state, 1025, 64);
    for (i = 0; i < 1024; i++)
        assert_int_equal(bed_pull(&bed, bed.sink, "ok", &i, &i, 1, BED_LONG_S,
                                  &ends[i], NULL),
                         BT_OK);
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", &i, &i, 1, BED_LONG_S, &ends[i], NULL),
        BT_LIMIT);
    for (i = 0; i < 1024; i++) {
        bed_until(&bed, &ends[i].calls, 1);
        assert_int_equal(ends[i].end.status, BT_OK);
        bed_same(&bed, bed.to, &i, &i, 1);
    }
    i = 1024;
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", &i, &i, 1, BED_LONG_S, &ends[i], NULL),
        BT_OK);
    bed_until(&bed, &ends[i].calls, 1);
    bed_until(&bed, &bed.released, 1025);
    bed_close(&bed);
}

static void test_cancel(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end, next;
    struct bt_kv_pull *pull;

    bed_line(line, BLOCKS);
    bed_both(&bed, state, BLOCKS, SMALL);
    bed_slow(&bed, BED_SLOW, 0);
    /* before there is a connection */
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-1", line, line, BLOCKS,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    bt_kv_pull_cancel(pull);
    assert_int_equal(end.calls, 0);
    bed_until(&bed, &bed.released, 1);
    assert_int_equal(end.calls, 1);
    assert_int_equal(end.end.status, BT_CANCELLED);
    assert_string_equal(bed.last_request, "ok-1");
    /* in the middle; its blocks may be used at once */
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-2", line, line, BLOCKS,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    bed_until_landed(&bed, 0);
    bt_kv_pull_cancel(pull);
    assert_int_equal(end.calls, 0);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_CANCELLED);
    assert_true(end.end.bytes < BLOCKS * SMALL);
    bed_until(&bed, &bed.released, 2);
    assert_string_equal(bed.last_request, "ok-2");
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-3", line + 100, line, 10,
                              BED_LONG_S, &next, NULL),
                     BT_OK);
    bed_until(&bed, &next.calls, 1);
    assert_int_equal(next.end.status, BT_OK);
    bed_same(&bed, bed.to, line + 100, line, 10);
    assert_int_equal(end.calls, 1);
    bed_close(&bed);
}

#define LARGE (16u << 10) /* BLOCKS of them: 64 MiB, many gets at once */

static void test_cancel_waits_for_gets(void **state)
{
    static uint32_t line[BLOCKS];
    const uint32_t count = bed_part(BLOCKS);
    struct bed bed;
    struct bed_end end;
    struct bt_kv_pull *pull;

    bed_line(line, BLOCKS);
    tap_install();
    bed_both(&bed, state, count, LARGE);
    tap.rails[0].hold_gets = true;
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, count,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    bed_until(&bed, &tap.rails[0].gets, 4);
    bt_kv_pull_cancel(pull);
    bed_until(&bed, &bed.ticks, bed.ticks + 2);
    assert_int_equal(end.calls, 0);
    tap_release(0); /* now they land, and then it ends */
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_CANCELLED);
    bed_same(&bed, bed.to, line, line, 1);
    bed_nothing_lands(&bed);
    bed_close(&bed);
    tap_remove();
}

static void test_deadline(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end, other;

    bed_line(line, BLOCKS);
    bed_both(&bed, state, BLOCKS, SMALL);
    bed_slow(&bed, BED_SLOW, 0);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line + 100, 20,
                              BED_LONG_S, &other, NULL),
                     BT_OK);
    bed_until(&bed, &bed.checks, 1); /* the deadline is of gets, not set-up */
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line + 120, line + 120,
                              3900, 0.3 * bed_slowness(), &end, NULL),
                     BT_OK);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_TIMEOUT);
    assert_string_equal(end.detail, "gets");
    bed_until(&bed, &other.calls, 1); /* the others are not touched */
    assert_int_equal(other.end.status, BT_OK);
    bed_close(&bed);
}

/* Leases: BEAT while a pull is under way, and on request before one. */
static void test_beats(void **state)
{
    static uint32_t line[1000];
    struct bed bed;
    struct bed_end end;

    bed_line(line, 1000);
    bed_both(&bed, state, 1000, SMALL);
    bed_slow(&bed, BED_SLOW * 2, 0);
    bt_kv_sink_beat(bed.sink, bed_address(0), bed.port, "ok-waiting");
    bed_until(&bed, &bed.renewed, 1);
    assert_string_equal(bed.last_request, "ok-waiting");
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-moving", line, line, 1000,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until(&bed, &bed.renewed, 3);
    assert_string_equal(bed.last_request, "ok-moving");
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_OK);
    bt_kv_sink_release(bed.sink, bed_address(0), bed.port, "ok-unwanted");
    bed_until(&bed, &bed.released, 2);
    assert_string_equal(bed.last_request, "ok-unwanted");
    bed_close(&bed);
}

static void test_destroy_ends_pulls(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end, early;

    bed_line(line, BLOCKS);
    bed_both(&bed, state, BLOCKS, SMALL);
    bed_slow(&bed, BED_SLOW, 0);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS - 1,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until_landed(&bed, 0);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line + BLOCKS - 1, 1,
                              BED_LONG_S, &early, NULL),
                     BT_OK);
    bt_fabric_destroy(bed.sink_fabric);
    bed.sink_fabric = NULL;
    bed.sink = NULL;
    assert_int_equal(end.calls, 1);
    assert_int_equal(end.end.status, BT_CANCELLED);
    assert_int_equal(early.calls, 1);
    bed_close(&bed);
}

static void test_meters(void **state)
{
    const uint32_t line[] = {0, 1, 2, 5};
    struct bt_fabric_meter m[3];
    struct bed bed;
    struct bed_end end;

    bed_both(&bed, state, 8, SMALL);
    bed_slow(&bed, 1u << 30, 0);
    assert_int_equal(
        bt_fabric_pace(bed.sink_fabric, BED_NAME_SOURCE, 1, 0, "other"),
        BT_DUPLICATE);
    bed_pull_ok(&bed, line, line, 4, 2);
    assert_int_equal(bed_pull_one(&bed, "expired", 0, &end), BT_LEASE_EXPIRED);
    assert_int_equal(bt_fabric_meters(bed.sink_fabric, m, 3), 1);
    assert_string_equal(m[0].link_class, "slow");
    assert_int_equal(m[0].bytes, 4 * SMALL);
    assert_int_equal(m[0].pulls, 2);
    assert_int_equal(m[0].failed, 1);
    assert_int_equal(m[0].descriptors, 2); /* none for the refused one */
    bed_close(&bed);
}

static void test_nobody_listens(void **state)
{
    struct bed bed;
    struct bed_end end;

    bed_both(&bed, state, 8, SMALL);
    bt_kv_source_stop(bed.source);
    bed.source = NULL;
    assert_int_equal(bed_pull_one(&bed, "ok", 0, &end), BT_REFUSED);
    bed_close(&bed);
}

#define T(name)                                                                \
    {                                                                          \
#name, name, NULL, NULL, NULL                                          \
    }
static const struct CMUnitTest suite[] = {
    T(test_shapes),
    T(test_fan_out),
    T(test_sizes),
    T(test_refusals),
    T(test_arguments),
    T(test_layout_differs),
    T(test_damage_is_found),
    T(test_damage_is_fetched_again),
    T(test_two_sinks_many_pulls),
    T(test_one_fabric),
    T(test_pull_limit),
    T(test_cancel),
    T(test_cancel_waits_for_gets),
    T(test_deadline),
    T(test_beats),
    T(test_destroy_ends_pulls),
    T(test_meters),
    T(test_nobody_listens),
};

int main(int argc, char **argv)
{
    static const struct bed_variant variants[] = {{1, false}, {2, true}};

    return bed_main(argc, argv, suite, sizeof(suite) / sizeof(suite[0]),
                    variants, sizeof(variants) / sizeof(variants[0]));
}
