/* Who may read what: keys, harmed and replayed frames, regions, answers that
 * come later, readers that are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"
#include "kv_tap.h"

#include "baton/transfer/wire.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 16u
#define BYTES  1024u

static bool keyed(void **state)
{
    return ((const struct bed_case *)*state)->keyed;
}

/* ---- keys ---- */

static void refused_with(void **state, const uint8_t *source_key,
                         const uint8_t *sink_key, const char *text)
{
    struct bed bed;
    struct bed_end end;

    bed_open_case(&bed, state, BLOCKS, BYTES);
    bed.key = source_key;
    bed.sink_key = sink_key;
    bed_source(&bed);
    bed_sink(&bed);
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_REFUSED);
    assert_string_equal(end.detail, text);
    bed_until(&bed, &bed.refused, 1);
    assert_string_equal(bed.reason, text);
    assert_int_equal(bed_stats(bed.source_fabric).refused_key, 1);
    assert_int_equal(bed.checks, 0);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(bed.to[i], 0);
    bed_close(&bed);
}

static void test_wrong_key(void **state)
{
    refused_with(state, bed_key, bed_other_key, "wrong key");
}

static void test_one_has_no_key(void **state)
{
    refused_with(state, bed_key, NULL,
                 "the source wants a key, the sink has none");
    refused_with(state, NULL, bed_key,
                 "the sink wants a key, the source has none");
}

/* ---- frames harmed on the way ---- */

static uint64_t found(const struct bed *bed)
{
    struct bt_fabric_stats a = bed_stats(bed->source_fabric);
    struct bt_fabric_stats b = bed_stats(bed->sink_fabric);

    return a.frames_corrupt + a.frames_replayed + b.frames_corrupt +
           b.frames_replayed;
}

/* One frame of this type is harmed: the pull ends in a way that is told, or
 * well with the right bytes; the next one is not touched. */
static void one_harmed(void **state, enum bt_wire_type type, bool twice)
{
    struct bed bed;
    struct bed_end end;
    struct bt_fabric_stats a, b;
    const uint32_t three = 3, zero = 0;

    tap_install();
    bed_both(&bed, state, BLOCKS, BYTES);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    tap.rails[0].type = (uint8_t)type;
    if (twice)
        tap.rails[0].twice_send = 1;
    else
        tap.rails[0].flip_send = 1;
    assert_int_equal(
        bed_pull(&bed, bed.sink, "ok", &three, &zero, 1, 1.0, &end, NULL),
        BT_OK);
    bed_until(&bed, &end.calls, 1);
    if (end.end.status == BT_OK)
        bed_same(&bed, bed.to, &three, &zero, 1);
    while (tap.rails[0].twice_send + tap.rails[0].flip_send > 0)
        ev_run(bed.loop, EVRUN_ONCE);
    bed_until(&bed, &bed.ticks, bed.ticks + 1);
    for (int i = 0; keyed(state) && found(&bed) == 0 && i < 100; i++)
        bed_until(&bed, &bed.ticks, bed.ticks + 1); /* on its way */
    a = bed_stats(bed.source_fabric);
    b = bed_stats(bed.sink_fabric);
    if (keyed(state)) {
        assert_int_equal(a.frames_corrupt + b.frames_corrupt, !twice);
        assert_int_equal(a.frames_replayed + b.frames_replayed, twice);
    }
    if (bed_pull_one(&bed, "ok", 3, &end) != BT_OK) /* was closing */
        assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_OK);
    bed_same(&bed, bed.to, &three, &zero, 1);
    bed_close(&bed);
    tap_remove();
}

static void test_corrupt(void **state)
{
    static const enum bt_wire_type types[] = {
        BT_WIRE_OPEN, BT_WIRE_GRANT, BT_WIRE_DONE, BT_WIRE_PING, BT_WIRE_PONG};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        one_harmed(state, types[i], false);
}

static void test_replayed(void **state)
{
    static const enum bt_wire_type types[] = {
        BT_WIRE_OPEN, BT_WIRE_GRANT, BT_WIRE_DONE, BT_WIRE_PING, BT_WIRE_PONG};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        one_harmed(state, types[i], true);
}

/* Greeting frames: nobody is let in by a harmed one, the next try works. */
static void test_greeting_harmed(void **state)
{
    static const enum bt_wire_type types[] = {BT_WIRE_HELLO, BT_WIRE_CHALLENGE,
                                              BT_WIRE_PROVE, BT_WIRE_WELCOME};

    if (!keyed(state))
        skip();
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct bed bed;
        struct bed_end end;

        tap_install();
        bed_both(&bed, state, BLOCKS, BYTES);
        tap.rails[0].type = (uint8_t)types[i];
        tap.rails[0].flip_send = 1;
        if (bed_pull_one(&bed, "ok", 3, &end) == BT_OK)
            assert_true(bed.rails > 1); /* over the other one */
        assert_int_equal(tap.rails[0].flip_send, 0);
        assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_OK);
        bed_close(&bed);
        tap_remove();
    }
}

/* ---- regions ---- */

static enum bt_status pull_region(struct bed *bed, const char *region,
                                  struct bed_end *end);

static void on_end(void *arg, const struct bt_kv_pull_end *e)
{
    struct bed_end *end = arg;

    end->calls++;
    end->end = *e;
    snprintf(end->detail, sizeof(end->detail), "%s", e->detail);
}

static enum bt_status pull_region(struct bed *bed, const char *region,
                                  struct bed_end *end)
{
    const uint64_t remote = 3;
    const uint32_t local = 0;
    const struct bt_kv_pull_spec spec = {.host = bed_address(0),
                                         .port = bed->port,
                                         .request_id = "ok",
                                         .remote = &remote,
                                         .local = &local,
                                         .count = 1,
                                         .deadline_ns = 5000000000,
                                         .region = region};
    struct bt_kv_pull *pull;

    memset(end, 0, sizeof(*end));
    assert_int_equal(bt_kv_pull_start(bed->sink, &spec, on_end, end, &pull),
                     BT_OK);
    bed_until(bed, &end->calls, 1);
    return end->end.status;
}

static void test_regions(void **state)
{
    const uint32_t three = 3, zero = 0;
    unsigned char *more = malloc(BLOCKS * BYTES);
    struct bt_kv_source_config c;
    struct bt_kv_source *second, *third;
    struct bed bed;
    struct bed_end end;
    char error[160];

    assert_non_null(more);
    bed_fill(more, BLOCKS * BYTES, 99);
    bed_open_case(&bed, state, BLOCKS, BYTES);
    bed.region_name = "pool";
    bed_source(&bed);
    bed_sink(&bed);
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_NOT_FOUND);
    assert_string_equal(end.detail, "no region \"kv\" here");
    assert_int_equal(bed.refused, 1);
    assert_int_equal(pull_region(&bed, "pool", &end), BT_OK);
    bed_same(&bed, bed.to, &three, &zero, 1);
    c = (struct bt_kv_source_config){.name = BED_NAME_SOURCE,
                                     .address = bed_address(0),
                                     .port = bed.port,
                                     .region_name = "kv",
                                     .layout = bed.layout,
                                     .region = more,
                                     .block_count = BLOCKS};
    assert_int_equal(bt_kv_source_start(bed.source_fabric, &c, &second, error,
                                        sizeof(error)),
                     BT_OK);
    assert_int_equal(bt_kv_source_port(second), bed.port);
    assert_int_equal(
        bt_kv_source_start(bed.source_fabric, &c, &third, error, sizeof(error)),
        BT_EXISTS);
    assert_int_equal(pull_region(&bed, "kv", &end), BT_OK);
    assert_memory_equal(bed.to, more + 3 * BYTES, BYTES);
    assert_int_equal(pull_region(&bed, "pool", &end), BT_OK);
    bed_same(&bed, bed.to, &three, &zero, 1);
    bt_kv_source_stop(second); /* the other one stays at the door */
    assert_int_equal(pull_region(&bed, "pool", &end), BT_OK);
    assert_int_equal(pull_region(&bed, NULL, &end) == BT_OK, false);
    bed_close(&bed);
    free(more);
}

/* ---- answers that come later, keys for references ---- */

static void test_answer_later(void **state)
{
    const uint32_t remote[] = {1, 2, 3}, local[] = {4, 5, 6};
    const uint32_t staged[] = {9, 7, 8}, outside[] = {9, 7, BLOCKS};
    struct bed bed;
    struct bed_end end;
    struct bt_kv_pull *pull;

    bed_both(&bed, state, BLOCKS, BYTES);
    assert_int_equal(bed_pull(&bed, bed.sink, "later-1", remote, local, 3,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until(&bed, &bed.asked, 1);
    bed_until(&bed, &bed.ticks, bed.ticks + 3);
    assert_int_equal(end.calls, 0);
    assert_int_equal(
        bt_kv_source_answer(bed.source, bed.ticket + 1, BT_OK, staged, 3),
        BT_STALE);
    assert_int_equal(
        bt_kv_source_answer(bed.source, bed.ticket, BT_OK, staged, 3), BT_OK);
    assert_int_equal(
        bt_kv_source_answer(bed.source, bed.ticket, BT_OK, staged, 3),
        BT_STALE);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_OK);
    bed_same(&bed, bed.to, staged, local, 3);
    bed_until(&bed, &bed.left, 1);
    /* no; a wrong list; nobody waits any more */
    assert_int_equal(bed_pull(&bed, bed.sink, "later-2", remote, local, 3,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until(&bed, &bed.asked, 2);
    assert_int_equal(
        bt_kv_source_answer(bed.source, bed.ticket, BT_CHECKSUM, NULL, 0),
        BT_OK);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_CHECKSUM);
    assert_int_equal(bed_pull(&bed, bed.sink, "later-3", remote, local, 3,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until(&bed, &bed.asked, 3);
    assert_int_equal(
        bt_kv_source_answer(bed.source, bed.ticket, BT_OK, outside, 3),
        BT_INVALID);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_NOT_FOUND);
    assert_int_equal(bed_pull(&bed, bed.sink, "later-4", remote, local, 3,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    bed_until(&bed, &bed.asked, 4);
    bt_kv_pull_cancel(pull);
    bed_until(&bed, &bed.released, 2);
    assert_int_equal(
        bt_kv_source_answer(bed.source, bed.ticket, BT_OK, staged, 3),
        BT_STALE);
    bed_close(&bed);
}

static void test_references_are_keys(void **state)
{
    const uint32_t remote[] = {11, 2}, local[] = {0, 1};
    struct bed bed;

    bed_open_case(&bed, state, BLOCKS, BYTES);
    bed.keyed_refs = true;
    bed_source(&bed);
    bed_sink(&bed);
    bed_pull_ok(&bed, remote, local, 2, 2);
    assert_true(bed.first_ref == 11ull << 32);
    bed_close(&bed);
}

/* ---- readers ---- */

static void test_left_once_per_ok(void **state)
{
    static uint32_t line[4096];
    struct bed bed;
    struct bed_end end;
    struct bt_kv_pull *pull;

    bed_line(line, 4096);
    bed_both(&bed, state, 4096, BYTES);
    bed_slow(&bed, BED_SLOW, 0);
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_OK);
    bed_until(&bed, &bed.left, 1);
    assert_int_equal(bed_pull_one(&bed, "expired", 3, &end), BT_LEASE_EXPIRED);
    /* a deadline: the reader is gone, the lease stays */
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-2", line, line, 4096,
                              bed_slowness(), &end, NULL),
                     BT_OK);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_TIMEOUT);
    bed_until(&bed, &bed.left, 2);
    assert_int_equal(bed.released, 1);
    /* cancelled */
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-3", line, line, 4096,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    bed_until(&bed, &bed.checks, 4);
    bt_kv_pull_cancel(pull);
    bed_until(&bed, &bed.released, 2);
    assert_int_equal(bed.left, 3);
    /* the sink vanishes in the middle */
    assert_int_equal(bed_pull(&bed, bed.sink, "ok-4", line, line, 4096,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    bed_until(&bed, &bed.checks, 5);
    bt_fabric_destroy(bed.sink_fabric);
    bed.sink = NULL;
    bed.sink_fabric = NULL;
    bed_until(&bed, &bed.left, 4);
    bed_until(&bed, &bed.ticks, bed.ticks + 2);
    assert_int_equal(bed.left, 4);
    bed_close(&bed);
}

/* Without checksums nobody hashes, and nobody notices. */
static void test_no_checksums(void **state)
{
    struct bed bed;
    struct bed_end end;

    tap_install();
    bed_open_case(&bed, state, BLOCKS, BYTES);
    bed.no_checksums = true;
    bed_source(&bed);
    bed_sink(&bed);
    tap.rails[0].flip_get = 1;
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_OK);
    assert_int_equal(tap.rails[0].flip_get, 0);
    bed.to[3] ^= 0x10;
    assert_memory_equal(bed.to, bed.from + 3 * BYTES, BYTES);
    assert_int_equal(bed_stats(bed.sink_fabric).blocks_damaged, 0);
    bed_close(&bed);
    tap_remove();
}

#define T(name)                                                                \
    {                                                                          \
#name, name, NULL, NULL, NULL                                          \
    }
static const struct CMUnitTest suite[] = {
    T(test_wrong_key),    T(test_one_has_no_key),      T(test_corrupt),
    T(test_replayed),     T(test_greeting_harmed),     T(test_regions),
    T(test_answer_later), T(test_references_are_keys), T(test_left_once_per_ok),
    T(test_no_checksums),
};

int main(int argc, char **argv)
{
    static const struct bed_variant variants[] = {
        {1, false}, {1, true}, {2, true}};

    return bed_main(argc, argv, suite, sizeof(suite) / sizeof(suite[0]),
                    variants, sizeof(variants) / sizeof(variants[0]));
}
