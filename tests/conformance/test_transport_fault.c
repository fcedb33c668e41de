/* The decorators fault and trace over sim: each chance at 10,000 does what
 * transport_open.h says, at 0 nothing, in between about its share and the same
 * for the same seed; the trace has a line for each call and upcall. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "transport_bed.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL 10000

static struct tbed bed;
static struct bt_tfault chances; /* of side 0; side 1 has none */
static int opened;
static struct top op;

static enum bt_status open_faulty(struct ev_loop *loop,
                                  const struct bt_rail_config *rail,
                                  struct bt_transport **out, char *error,
                                  size_t size)
{
    enum bt_status status = bt_transport_sim_open(loop, rail, out, error, size);

    if (status != BT_OK || opened++ > 0)
        return status;
    *out = bt_transport_fault(loop, *out, &chances);
    return *out != NULL ? BT_OK : BT_NO_MEMORY;
}

static const struct tbed_kind faulty = {"faulty", open_faulty, 0, 0};

static void open_bed(struct tend **near, struct tend **far)
{
    opened = 0;
    tbed_open(&bed, &faulty);
    tbed_pair(&bed, 0, near, far);
}

static void close_bed(struct tend *near, struct tend *far)
{
    tend_closed(near);
    tend_closed(far);
    tbed_close(&bed);
}

static void get_once(struct tend *end, struct bt_tkey *key, uint32_t bytes)
{
    op = (struct top){.count = 0};
    memset(bed.side[0].target, 0, 2 * bytes + 64);
    top_add(&op, bed.side[0].target, bed.side[1].region, bytes);
    top_add(&op, bed.side[0].target + bytes + 7, bed.side[1].region + bytes + 7,
            bytes);
    top_get(&op, end, key);
    tbed_until_int(&bed, &op.done, 1, "get");
}

static int flipped_bits(const unsigned char *a, const unsigned char *b,
                        size_t size)
{
    int bits = 0;

    for (size_t i = 0; i < size; i++)
        bits += __builtin_popcount((unsigned int)(a[i] ^ b[i]));
    return bits;
}

static int get_flips(uint32_t bytes)
{
    const unsigned char *to = bed.side[0].target, *from = bed.side[1].region;

    return flipped_bits(to, from, bytes) +
           flipped_bits(to + bytes + 7, from + bytes + 7, bytes);
}

static void test_get_fails(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    (void)state;
    chances = (struct bt_tfault){.seed = 1, .get_fails = ALL};
    open_bed(&near, &far);
    key = tend_key(near);
    for (int i = 0; i < 20; i++) {
        get_once(near, key, 1000);
        assert_int_equal(op.status, BT_PEER_ERROR);
    }
    tend_send(near, "alive", 5); /* the connection lives */
    tbed_until_int(&bed, &far->frames, 1, "frame");
    assert_int_equal(near->failed + far->failed, 0);
    op = (struct top){.count = 0}; /* puts too */
    top_add(&op, bed.side[0].region, bed.side[1].region, 10);
    top_put(&op, near, key);
    tbed_until_int(&bed, &op.done, 1, "put");
    assert_int_equal(op.status, BT_PEER_ERROR);
    tend_key_close(near, key);
    close_bed(near, far);
}

static void test_get_flips(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    (void)state;
    chances = (struct bt_tfault){.seed = 2, .get_flips = ALL};
    open_bed(&near, &far);
    key = tend_key(near);
    for (int i = 0; i < 50; i++) {
        get_once(near, key, 999);
        assert_int_equal(op.status, BT_OK);
        assert_int_equal(get_flips(999), 1);
    }
    tend_key_close(near, key);
    close_bed(near, far);
}

/* ---- frames ---- */

static int wrong_bits;

static void on_counted(struct tend *end, const unsigned char *bytes,
                       size_t size)
{
    unsigned char want[512];

    (void)end;
    assert_int_equal(size, sizeof(want));
    memset(want, 0x5A, sizeof(want));
    wrong_bits += flipped_bits(bytes, want, size);
}

static void send_counted(struct tend *end, int count)
{
    unsigned char frame[512];

    memset(frame, 0x5A, sizeof(frame));
    for (int i = 0; i < count; i++)
        tend_send(end, frame, sizeof(frame));
}

/* The sim of no latency has nothing under way once both sides are idle. */
static void drain(void)
{
    struct bt_transport *a = bed.side[0].transport, *b = bed.side[1].transport;

    while (a->ops->turn(a) || b->ops->turn(b))
        ;
}

static void test_send_drops(void **state)
{
    struct tend *near, *far;

    (void)state;
    chances = (struct bt_tfault){.seed = 3, .send_drops = ALL};
    open_bed(&near, &far);
    send_counted(near, 30);
    tend_send(far, "mark", 4);
    tbed_until_int(&bed, &near->frames, 1, "mark");
    drain();
    assert_int_equal(far->frames, 0);
    close_bed(near, far);
}

static void test_send_flips(void **state)
{
    struct tend *near, *far;

    (void)state;
    chances = (struct bt_tfault){.seed = 4, .send_flips = ALL};
    wrong_bits = 0;
    open_bed(&near, &far);
    far->on_frame = on_counted;
    send_counted(near, 30);
    tbed_until_int(&bed, &far->frames, 30, "frames");
    assert_int_equal(wrong_bits, 30);
    close_bed(near, far);
}

static void test_send_twice(void **state)
{
    struct tend *near, *far;

    (void)state;
    chances = (struct bt_tfault){.seed = 5, .send_twice = ALL};
    wrong_bits = 0;
    open_bed(&near, &far);
    far->on_frame = on_counted;
    send_counted(near, 30);
    tbed_until_int(&bed, &far->frames, 60, "frames");
    assert_int_equal(wrong_bits, 0);
    close_bed(near, far);
}

static void test_none(void **state)
{
    struct tend *near, *far;

    (void)state;
    chances = (struct bt_tfault){.seed = 6};
    wrong_bits = 0;
    open_bed(&near, &far);
    far->on_frame = on_counted;
    send_counted(near, 200);
    tbed_until_int(&bed, &far->frames, 200, "frames");
    far->on_frame = NULL;
    tbed_round_trips(&bed, 5);
    assert_int_equal(far->frames, 200);
    assert_int_equal(wrong_bits, 0);
    close_bed(near, far);
}

/* A tenth is dropped: 2,000 frames, expected 200 +- 13 (one sigma). */
static void test_share(void **state)
{
    int first = 0;

    (void)state;
    for (int round = 0; round < 2; round++) {
        struct tend *near, *far;

        chances = (struct bt_tfault){.seed = 7, .send_drops = 1000};
        open_bed(&near, &far);
        send_counted(near, 2000);
        drain();
        assert_in_range(far->frames, 1800 - 65, 1800 + 65);
        if (round == 0)
            first = far->frames;
        assert_int_equal(far->frames, first); /* same seed, same faults */
        close_bed(near, far);
    }
}

/* ---- connections, memory, time ---- */

static void test_conn_fails(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    (void)state;
    chances = (struct bt_tfault){.seed = 8, .conn_fails = ALL};
    open_bed(&near, &far);
    tend_send(near, "x", 1);
    tbed_until_int(&bed, &near->closed, 1, "failed, then closed");
    assert_int_equal(near->failed, 1);
    tbed_until_int(&bed, &far->closed, 1, "the other end as well");
    assert_int_equal(far->frames, 0);
    free(near);
    free(far);
    tbed_pair(&bed, 0, &near, &far);
    key = tend_key(near);
    get_once(near, key, 100);
    assert_int_not_equal(op.status, BT_OK);
    tbed_until_int(&bed, &near->closed, 1, "failed, then closed");
    assert_int_equal(near->failed, 1);
    assert_int_equal(get_flips(100) > 0, 1); /* nothing landed */
    tend_key_close(near, key);
    close_bed(near, far);
}

static void test_map_fails(void **state)
{
    struct bt_transport *inner, *t;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    const struct bt_tfault all = {.seed = 9, .map_fails = ALL};
    struct bt_tmem *mem = NULL;
    char error[160];

    (void)state;
    assert_int_equal(
        bt_transport_sim_open(loop, NULL, &inner, error, sizeof(error)), BT_OK);
    t = bt_transport_fault(loop, inner, &all);
    assert_non_null(t);
    assert_int_equal(t->ops->map(t, error, sizeof(error), &mem), BT_LIMIT);
    assert_null(mem);
    t->ops->destroy(t);
    ev_loop_destroy(loop);
}

static void test_delay(void **state)
{
    const int64_t delay_ns = 20000000;
    struct tend *near, *far;
    struct bt_tkey *key;
    ev_tstamp begun, longest = 0;

    (void)state;
    chances = (struct bt_tfault){.seed = 10, .get_delay_ns = delay_ns};
    open_bed(&near, &far);
    key = tend_key(near);
    for (int i = 0; i < 10; i++) {
        begun = ev_time();
        get_once(near, key, 1000);
        assert_int_equal(op.status, BT_OK);
        assert_int_equal(get_flips(1000), 0);
        if (ev_time() - begun > longest)
            longest = ev_time() - begun;
    }
    /* Ten of up to 20 ms: all below 4 ms would be 1 in 10 million. */
    assert_true(longest > 0.004);
    /* A close ends those that wait, before closed (the bed checks it). */
    op = (struct top){.count = 0};
    top_add(&op, bed.side[0].target, bed.side[1].region, 10);
    top_get(&op, near, key);
    tend_close(near);
    tbed_until_int(&bed, &near->closed, 1, "closed");
    assert_int_equal(op.done, 1);
    tend_key_close(near, key);
    close_bed(near, far);
}

/* ---- trace ---- */

#define LINES_MAX 64

static char lines[LINES_MAX][160];
static int line_count;

static void on_line(void *arg, const char *line)
{
    assert_ptr_equal(arg, &bed);
    if (line_count < LINES_MAX)
        snprintf(lines[line_count], sizeof(lines[0]), "%s", line);
    line_count++;
}

static enum bt_status open_traced(struct ev_loop *loop,
                                  const struct bt_rail_config *rail,
                                  struct bt_transport **out, char *error,
                                  size_t size)
{
    enum bt_status status = bt_transport_sim_open(loop, rail, out, error, size);

    if (status != BT_OK || opened++ > 0)
        return status;
    *out = bt_transport_trace(*out, on_line, &bed);
    return *out != NULL ? BT_OK : BT_NO_MEMORY;
}

static void test_trace(void **state)
{
    static const struct tbed_kind traced = {"traced", open_traced, 0, 0};
    static const char *const want[] = {
        "map bytes=12582912 status=ok",
        "map bytes=12582912 status=ok",
        "listen port=",
        "connect conn=1 status=ok",
        "frame conn=1 bytes=7", /* tbed_pair's */
        "send conn=1 bytes=3",
        "frame conn=1 bytes=4",
        "allow conn=1",
        "get conn=1 pieces=2 bytes=2000",
        "done conn=1 bytes=2000 status=ok",
        "failed conn=1 status=reset",
        "close conn=1",
        "closed conn=1",
        "unmap",
        "unmap",
        "destroy",
    };
    struct tend *near, *far;
    struct bt_tkey *key;

    (void)state;
    opened = 0;
    line_count = 0;
    tbed_open(&bed, &traced);
    tbed_pair(&bed, 0, &near, &far);
    tend_send(near, "abc", 3);
    tend_send(far, "defg", 4);
    tbed_until_int(&bed, &near->frames, 1, "frame");
    tend_allow(near);
    key = tend_key(near);
    get_once(near, key, 1000);
    tend_key_close(near, key);
    tend_close(far);
    tbed_until_int(&bed, &near->closed, 1, "closed");
    close_bed(near, far);
    assert_int_equal(line_count, sizeof(want) / sizeof(want[0]));
    for (int i = 0; i < line_count; i++)
        assert_memory_equal(lines[i], want[i], strlen(want[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_fails),  cmocka_unit_test(test_get_flips),
        cmocka_unit_test(test_send_drops), cmocka_unit_test(test_send_flips),
        cmocka_unit_test(test_send_twice), cmocka_unit_test(test_none),
        cmocka_unit_test(test_share),      cmocka_unit_test(test_conn_fails),
        cmocka_unit_test(test_map_fails),  cmocka_unit_test(test_delay),
        cmocka_unit_test(test_trace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
