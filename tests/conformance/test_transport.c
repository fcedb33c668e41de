/* What every transport must do (transport.h), run over each kind of
 * transport_bed.c: connections and their end, frames, gets and puts, and that
 * a refusal hurts nobody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "transport_bed.h"

#include "baton/base/rng.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_MAX   65536u
#define PIECE_SLOTS 4096u
#define OPS_MAX     64

static struct tbed bed;

static void open_bed(void **state)
{
    tbed_open(&bed, *state);
}

/* ---- connections ---- */

static void test_refused(void **state)
{
    struct tend *end, *near, *far;
    uint16_t port;

    open_bed(state);
    /* a port that was just listened on, so nobody else has it */
    port = bed.side[1].port;
    bed.side[1].transport->ops->unlisten(bed.side[1].listener);
    end = tbed_connect(&bed, 0, port);
    tend_send(end, "lost", 4);
    tend_until_failed(end, "refusal");
    assert_int_equal(end->frames, 0);
    tend_closed(end);
    /* and listening there again works */
    bed.side[1].listener = NULL;
    {
        struct tside *side = &bed.side[1];

        assert_int_equal(tbed_listen(side, port), BT_OK);
        tbed_pair(&bed, 0, &near, &far);
        tend_closed(near);
        tend_closed(far);
    }
    tbed_close(&bed);
}

static void test_port_taken(void **state)
{
    struct tside *side;
    struct bt_tlisten *first;
    uint16_t port;

    open_bed(state);
    side = &bed.side[0];
    first = side->listener;
    port = side->port;
    assert_int_not_equal(tbed_listen(side, port), BT_OK);
    assert_ptr_equal(side->listener, first);
    assert_int_equal(side->port, port);
    tbed_close(&bed);
}

/* An acceptor that takes no interest: the connection is closed for it. */
static void test_unwanted(void **state)
{
    struct tend *end;

    open_bed(state);
    bed.side[1].refuses = true;
    end = tbed_connect(&bed, 0, bed.side[1].port);
    tend_until_failed(end, "unwanted");
    assert_int_equal(bed.side[1].accepted, 1);
    tend_closed(end);
    tbed_close(&bed);
}

static void good_get(struct tend *end);

static void test_close_at_once(void **state)
{
    struct tend *end, *far, *good, *good_far;

    open_bed(state);
    tbed_pair(&bed, 0, &good, &good_far);
    for (int i = 0; i < 20; i++) {
        end = tbed_connect(&bed, i % 2, bed.side[!(i % 2)].port);
        if (i % 3 == 0)
            tend_send(end, "x", 1);
        tend_closed(end);
        good_get(good);
    }
    for (int i = 0; i < TBED_SIDES; i++) {
        while ((far = tbed_accepted(&bed.side[i])) != NULL) {
            tend_until_failed(far, "far end fails");
            tend_closed(far);
        }
    }
    tend_closed(good);
    tend_closed(good_far);
    tbed_close(&bed);
}

#define MANY 200

static struct tend *many_near[MANY], *many_far[MANY];

/* Accepts come in any order: the first frame says whose the end is. */
static void on_hello(struct tend *end, const unsigned char *bytes, size_t size)
{
    int index;

    assert_int_equal(size, sizeof(index));
    memcpy(&index, bytes, sizeof(index));
    assert_in_range(index, 0, MANY - 1);
    assert_null(many_far[index]);
    many_far[index] = end;
}

static bool all_said(void *arg)
{
    (void)arg;
    for (int i = 0; i < MANY; i++) {
        if (many_far[i] == NULL)
            return false;
    }
    return true;
}

static void test_many(void **state)
{
    struct tend *first, *other;

    open_bed(state);
    memset(many_far, 0, sizeof(many_far));
    bed.side[1].on_frame = on_hello;
    for (int i = 0; i < MANY; i++) {
        many_near[i] = tbed_connect(&bed, 0, bed.side[1].port);
        tend_send(many_near[i], &i, sizeof(i));
    }
    tbed_until(&bed, all_said, NULL, "hello");
    while (tbed_accepted(&bed.side[1]) != NULL)
        ;
    assert_int_equal(bed.side[1].accepted, MANY);
    for (int i = 0; i < MANY; i++)
        tend_close(i % 2 ? many_near[i] : many_far[i]);
    for (int i = 0; i < MANY; i++) {
        first = i % 2 ? many_near[i] : many_far[i];
        other = i % 2 ? many_far[i] : many_near[i];
        tend_until_failed(other, "other end fails");
        assert_int_equal(many_far[i]->frames, 1);
        tend_closed(other);
        tbed_until_int(&bed, &first->closed, 1, "closed");
        free(first);
    }
    tbed_close(&bed);
}

/* The whole transport goes while connections are up. */
static void test_destroyed(void **state)
{
    struct tend *near, *far;
    struct tside *side;

    open_bed(state);
    tbed_pair(&bed, 0, &near, &far);
    tend_send(near, "x", 1);
    tbed_until_int(&bed, &far->frames, 1, "frame");
    side = &bed.side[1];
    side->transport->ops->unlisten(side->listener);
    tbed_unmap(side, side->region_mem);
    tbed_unmap(side, side->target_mem);
    side->transport->ops->destroy(side->transport);
    side->transport = NULL;
    free(far);
    tend_until_failed(near, "peer is gone");
    tend_closed(near);
    tbed_close(&bed);
}

/* ---- frames ---- */

static const size_t frame_sizes[] = {
    1, 2, 7, 64, 100, 1000, 4096, 8191, 8192, 20000, 40000, 65535, FRAME_MAX};
#define SIZES  (sizeof(frame_sizes) / sizeof(frame_sizes[0]))
#define ROUNDS 20

static void frame_make(unsigned char *out, uint32_t index, size_t size,
                       uint64_t seed)
{
    tbed_fill(out, size, seed * 1000003 + index);
}

static void frame_check(struct tend *end, const unsigned char *bytes,
                        size_t size)
{
    static unsigned char want[FRAME_MAX];
    uint32_t index = (uint32_t)end->frames - 1;

    assert_int_equal(size, frame_sizes[index % SIZES]);
    frame_make(want, index, size, (uintptr_t)end->arg);
    assert_memory_equal(bytes, want, size);
}

static bool nothing_left(void *arg)
{
    return tend_sent(arg);
}

static void test_frames(void **state)
{
    static unsigned char frame[FRAME_MAX];
    struct tend *near, *far;

    open_bed(state);
    tbed_pair(&bed, 0, &near, &far);
    near->on_frame = far->on_frame = frame_check;
    near->arg = (void *)(uintptr_t)1;
    far->arg = (void *)(uintptr_t)2;
    for (uint32_t i = 0; i < ROUNDS * SIZES; i++) {
        size_t size = frame_sizes[i % SIZES];

        frame_make(frame, i, size, 2);
        tend_send(near, frame, size);
        frame_make(frame, i, size, 1);
        tend_send(far, frame, size);
        memset(frame, 0xEE, size); /* a copy was sent */
    }
    tbed_until(&bed, nothing_left, near, "sent");
    tbed_until(&bed, nothing_left, far, "sent");
    tbed_until_int(&bed, &near->frames, ROUNDS * SIZES, "frames");
    tbed_until_int(&bed, &far->frames, ROUNDS * SIZES, "frames");
    tend_closed(near);
    tend_closed(far);
    tbed_close(&bed);
}

/* What was sent arrives, though the connection is closed right after. */
static void test_sent_then_closed(void **state)
{
    struct tend *near, *far;

    open_bed(state);
    for (int i = 0; i < 10; i++) {
        tbed_pair(&bed, i % 2, &near, &far);
        tend_send(near, "last", 4);
        tbed_until_int(&bed, &far->frames, 1, "first frame");
        tend_send(near, "words", 5);
        tbed_until(&bed, nothing_left, near, "sent");
        tend_close(near);
        tend_until_failed(far, "peer closed");
        tbed_until_int(&bed, &near->closed, 1, "closed");
        free(near);
        tend_closed(far);
    }
    tbed_close(&bed);
}

/* ---- gets and puts ---- */

static struct top ops[OPS_MAX];

static void clear_target(int side)
{
    memset(bed.side[side].target, 0, TBED_REGION);
}

static uint32_t pieces_max(const struct tend *end)
{
    uint32_t max = end->transport->ops->limits.pieces_max;

    assert_true(max >= 1);
    return max < TBED_PIECES_MAX ? max : TBED_PIECES_MAX;
}

/* Pieces of odd sizes at odd places, in no order at the far end, so that no
 * two touch; everything around them stays as it was. */
static void vector(struct tend *end, struct bt_tkey *key, uint32_t count,
                   uint32_t bytes, bool is_put)
{
    struct tside *mine = tend_side(end), *other = tend_other(end);
    uint32_t stride = bytes + 13;
    struct top *op = &ops[0];
    static unsigned char want[TBED_REGION];
    unsigned char *to = is_put ? other->target : mine->target;
    const unsigned char *from = is_put ? mine->region : other->region;
    size_t used = (size_t)stride * count + 64;

    assert_true(used < TBED_REGION);
    memset(to, 0xA5, used);
    memset(want, 0xA5, used);
    *op = (struct top){.count = 0};
    for (uint32_t i = 0; i < count; i++) {
        size_t at = 3 + (size_t)stride * i;
        size_t across = 5 + (size_t)stride * ((i * 7) % count);

        if (count % 7 == 0)
            across = 5 + (size_t)stride * (count - 1 - i);
        memcpy(want + (is_put ? across : at), from + (is_put ? at : across),
               bytes);
        if (is_put)
            top_add(op, mine->region + at, other->target + across, bytes);
        else
            top_add(op, mine->target + at, other->region + across, bytes);
    }
    if (is_put)
        top_put(op, end, key);
    else
        top_get(op, end, key);
    tbed_until_int(&bed, &op->done, 1, is_put ? "put" : "get");
    assert_int_equal(op->status, BT_OK);
    assert_memory_equal(to, want, used);
}

static void vectors(struct tend *end, struct bt_tkey *key, bool is_put)
{
    static const uint32_t bytes[] = {1, 3, 8, 129, 4096, 20000, 65537};
    const uint32_t max = pieces_max(end);

    for (size_t b = 0; b < sizeof(bytes) / sizeof(bytes[0]); b++) {
        for (uint32_t n = 1; n <= max; n = n < 3 ? n + 1 : n * 3 + 1) {
            if ((uint64_t)(bytes[b] + 13) * n < TBED_REGION / 2)
                vector(end, key, n, bytes[b], is_put);
        }
        if ((uint64_t)(bytes[b] + 13) * max < TBED_REGION / 2)
            vector(end, key, max, bytes[b], is_put);
    }
    vector(end, key, 1, 1u << 20, is_put);
    vector(end, key, 1, 8u << 20, is_put);
    if (max >= 3)
        vector(end, key, 3, (8u << 20) / 3, is_put);
}

static void test_gets(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    open_bed(state);
    tbed_pair(&bed, 0, &near, &far);
    key = tend_key(near);
    vectors(near, key, false);
    tend_key_close(near, key);
    tend_allow_told(near, far); /* and the one that was connected to gets */
    key = tend_key(far);
    vectors(far, key, false);
    tend_key_close(far, key);
    tend_closed(near);
    tend_closed(far);
    tbed_close(&bed);
}

static void test_puts(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    open_bed(state);
    assert_int_equal(bed.side[0].transport->ops->put != NULL,
                     bed.side[0].transport->ops->limits.put);
    if (bed.side[0].transport->ops->limits.put) {
        tbed_pair(&bed, 0, &near, &far);
        key = tend_target_key(near);
        vectors(near, key, true);
        tend_key_close(near, key);
        tend_closed(near);
        tend_closed(far);
    }
    tbed_close(&bed);
}

/* Many gets and frames at once, in both directions over one connection. */
static void test_both_ways(void **state)
{
    static struct top more[OPS_MAX];
    const uint32_t bytes = 100003;
    struct tend *near, *far;
    struct bt_tkey *near_key, *far_key;

    open_bed(state);
    tbed_pair(&bed, 0, &near, &far);
    tend_allow_told(near, far);
    near_key = tend_key(near);
    far_key = tend_key(far);
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        ops[i] = more[i] = (struct top){.count = 0};
        top_add(&ops[i], bed.side[0].target + i * bytes,
                bed.side[1].region + (OPS_MAX - i) * bytes, bytes);
        top_add(&more[i], bed.side[1].target + i * bytes,
                bed.side[0].region + i * bytes + 1, bytes);
        top_get(&ops[i], near, near_key);
        top_get(&more[i], far, far_key);
        tend_send(near, "over", 4);
        tend_send(far, "under", 5);
    }
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        tbed_until_int(&bed, &ops[i].done, 1, "get");
        tbed_until_int(&bed, &more[i].done, 1, "get");
        assert_int_equal(ops[i].status, BT_OK);
        assert_int_equal(more[i].status, BT_OK);
        assert_memory_equal(bed.side[0].target + i * bytes,
                            bed.side[1].region + (OPS_MAX - i) * bytes, bytes);
        assert_memory_equal(bed.side[1].target + i * bytes,
                            bed.side[0].region + i * bytes + 1, bytes);
    }
    tbed_until_int(&bed, &near->frames, OPS_MAX, "frames");
    tbed_until_int(&bed, &far->frames, OPS_MAX, "frames");
    tend_key_close(near, near_key);
    tend_key_close(far, far_key);
    tend_closed(near);
    tend_closed(far);
    tbed_close(&bed);
}

/* ---- what must not be had ---- */

static void good_get(struct tend *end)
{
    struct bt_tkey *key = tend_key(end);

    vector(end, key, 1, 5000, false);
    tend_key_close(end, key);
}

/* A get that must be refused: it ends, its connection fails on both ends,
 * nothing lands, and another connection does not notice. */
static void refused(struct tend *near, struct tend *far, struct bt_tkey *key,
                    const void *remote, uint32_t bytes, bool is_put)
{
    struct top *op = &ops[1];
    unsigned char *target = bed.side[0].target;

    clear_target(0);
    clear_target(1);
    *op = (struct top){.count = 0};
    top_add(op, is_put ? bed.side[0].region : target, remote, bytes);
    if (is_put)
        top_put(op, near, key);
    else
        top_get(op, near, key);
    tend_until_failed(near, "refusal fails the connection");
    tbed_until_int(&bed, &near->closed, 1, "closed");
    assert_int_equal(op->done, 1);
    assert_int_not_equal(op->status, BT_OK);
    for (uint32_t i = 0; i < bytes && i < TBED_REGION; i++) {
        assert_int_equal(target[i], 0);
        assert_int_equal(bed.side[1].target[i], 0);
    }
    tend_until_failed(far, "the refusing end fails too");
    free(near);
    tend_closed(far);
}

static void test_outside(void **state)
{
    struct tend *near, *far, *good, *good_far;
    struct bt_tkey *key;
    struct tside *side;

    open_bed(state);
    side = &bed.side[1];
    tbed_pair(&bed, 0, &good, &good_far);
    for (int i = 0; i < 5; i++) {
        const unsigned char *remote[] = {
            side->region - 1, side->region + TBED_REGION - 99,
            side->region + TBED_REGION, side->target, (void *)(uintptr_t)8};

        tbed_pair(&bed, 0, &near, &far);
        key = tend_key(near);
        refused(near, far, key, remote[i], 100, false);
        tend_key_close(good, key);
        good_get(good);
    }
    tend_closed(good);
    tend_closed(good_far);
    tbed_close(&bed);
}

static void test_put_outside(void **state)
{
    struct tend *near, *far, *good, *good_far;
    struct bt_tkey *key;
    struct tside *side;

    open_bed(state);
    side = &bed.side[1];
    tbed_pair(&bed, 0, &good, &good_far);
    for (int i = 0; i < 2 && side->transport->ops->limits.put; i++) {
        tbed_pair(&bed, 0, &near, &far);
        key = tend_target_key(near);
        refused(near, far, key,
                i == 0 ? side->target - 1 : side->target + TBED_REGION - 99,
                100, true);
        tend_key_close(good, key);
        good_get(good);
    }
    tend_closed(good);
    tend_closed(good_far);
    tbed_close(&bed);
}

static void test_made_up_key(void **state)
{
    struct tend *near, *far, *good, *good_far;
    struct bt_tkey *key;
    struct tside *side;
    uint8_t bytes[256];
    enum bt_status status;

    open_bed(state);
    side = &bed.side[1];
    tbed_pair(&bed, 0, &good, &good_far);
    for (int i = 0; i < 8; i++) {
        tbed_pair(&bed, 0, &near, &far);
        memcpy(bytes, side->key, side->key_size);
        bytes[(size_t)i * side->key_size / 8] ^= 0x55;
        status = tend_key_bytes(near, bytes, side->key_size, &key);
        if (status == BT_OK) {
            refused(near, far, key, side->region + 10, 100, false);
            tend_key_close(good, key);
        } else {
            tend_closed(near);
            tend_closed(far);
        }
        good_get(good);
    }
    tend_closed(good);
    tend_closed(good_far);
    tbed_close(&bed);
}

static void test_key_sizes(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key = NULL;
    struct tside *side;
    uint8_t small[1];
    uint16_t used;

    open_bed(state);
    side = &bed.side[1];
    assert_int_equal(side->transport->ops->key_pack(
                         side->transport, side->region_mem, small, 0, &used),
                     BT_TOO_LARGE);
    tbed_pair(&bed, 0, &near, &far);
    assert_int_not_equal(tend_key_bytes(near, side->key, 0, &key), BT_OK);
    assert_int_not_equal(
        tend_key_bytes(near, side->key, side->key_size - 1u, &key), BT_OK);
    assert_null(key);
    good_get(near);
    tend_closed(near);
    tend_closed(far);
    tbed_close(&bed);
}

static void test_not_allowed(void **state)
{
    struct tend *near, *far, *good, *good_far;
    struct bt_tkey *key;

    open_bed(state);
    tbed_pair(&bed, 0, &good, &good_far);
    bed.side[1].allows = false;
    tbed_pair(&bed, 0, &near, &far);
    key = tend_key(near);
    refused(near, far, key, bed.side[1].region, 100, false);
    tend_key_close(good, key);
    good_get(good);
    tbed_pair(&bed, 0, &near, &far);
    tend_send(far, "later", 5);
    tbed_until_int(&bed, &near->frames, 1, "frame");
    tend_allow(far);
    tend_send(far, "now", 3);
    tbed_until_int(&bed, &near->frames, 2, "frame");
    good_get(near);
    tend_closed(near);
    tend_closed(far);
    tend_closed(good);
    tend_closed(good_far);
    tbed_close(&bed);
}

/* Memory that its owner has unmapped meanwhile. */
static void test_unmapped(void **state)
{
    struct tend *near, *far, *good, *good_far;
    struct tside *side;
    struct bt_tmem *mem;
    struct bt_tkey *key;
    unsigned char *page;
    uint8_t bytes[256];
    uint16_t size;

    open_bed(state);
    side = &bed.side[1];
    page = malloc(65536);
    assert_non_null(page);
    tbed_fill(page, 65536, 99);
    tbed_pair(&bed, 0, &good, &good_far);
    tbed_pair(&bed, 0, &near, &far);
    assert_int_equal(tbed_map(side, page, 65536, &mem), BT_OK);
    assert_int_equal(side->transport->ops->key_pack(side->transport, mem, bytes,
                                                    sizeof(bytes), &size),
                     BT_OK);
    assert_int_equal(tend_key_bytes(near, bytes, size, &key), BT_OK);
    ops[0] = (struct top){.count = 0};
    top_add(&ops[0], bed.side[0].target, page, 65536);
    top_get(&ops[0], near, key);
    tbed_until_int(&bed, &ops[0].done, 1, "get");
    assert_int_equal(ops[0].status, BT_OK);
    assert_memory_equal(bed.side[0].target, page, 65536);
    tbed_unmap(side, mem);
    refused(near, far, key, page, 4096, false);
    tend_key_close(good, key);
    free(page);
    good_get(good);
    tend_closed(good);
    tend_closed(good_far);
    tbed_close(&bed);
}

/* Map, get into it, unmap: over and over. */
static void test_map_cycles(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    open_bed(state);
    tbed_pair(&bed, 0, &near, &far);
    key = tend_key(near);
    for (int i = 0; i < 100; i++) {
        unsigned char *page = calloc(1, 8192);
        struct bt_tmem *mem;

        assert_non_null(page);
        assert_int_equal(tbed_map(&bed.side[0], page, 8192, &mem), BT_OK);
        ops[0] = (struct top){.count = 0};
        top_add(&ops[0], page + 1, bed.side[1].region + 8192 * i, 8000);
        top_get_into(&ops[0], near, key, mem);
        tbed_until_int(&bed, &ops[0].done, 1, "get");
        assert_int_equal(ops[0].status, BT_OK);
        tbed_unmap(&bed.side[0], mem);
        assert_memory_equal(page + 1, bed.side[1].region + 8192 * i, 8000);
        free(page);
    }
    tend_key_close(near, key);
    tend_closed(near);
    tend_closed(far);
    tbed_close(&bed);
}

/* ---- ends in the middle ---- */

#define BIG (150u << 10)

static void many_gets(struct tend *end, struct bt_tkey *key)
{
    clear_target(0);
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        ops[i] = (struct top){.count = 0};
        top_add(&ops[i], bed.side[0].target + i * BIG,
                bed.side[1].region + i * BIG, BIG);
        top_get(&ops[i], end, key);
    }
}

/* After closed: all done, and what is written into the targets then stays. */
static void check_quiet(void)
{
    struct tside *side = &bed.side[0];

    for (uint32_t i = 0; i < OPS_MAX; i++) {
        assert_int_equal(ops[i].done, 1);
        if (ops[i].status == BT_OK)
            assert_memory_equal(side->target + i * BIG,
                                bed.side[1].region + i * BIG, BIG);
    }
    memset(side->target, 0x3C, TBED_REGION);
    tbed_round_trips(&bed, 20);
    for (size_t i = 0; i < TBED_REGION; i++)
        assert_int_equal(side->target[i], 0x3C);
}

static void test_close_with_gets(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    open_bed(state);
    for (int landed = 0; landed < 3; landed++) {
        tbed_pair(&bed, 0, &near, &far);
        key = tend_key(near);
        many_gets(near, key);
        if (landed > 0)
            tbed_until_int(&bed, &ops[landed - 1].done, 1, "first get");
        tend_close(near);
        tbed_until_int(&bed, &near->closed, 1, "closed");
        tend_key_close(near, key);
        free(near);
        tend_until_failed(far, "far end fails");
        tend_closed(far);
        check_quiet();
    }
    tbed_close(&bed);
}

/* A get that is asked for after close, before closed. */
static void test_get_after_close(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    open_bed(state);
    tbed_pair(&bed, 0, &near, &far);
    key = tend_key(near);
    tend_close(near);
    many_gets(near, key);
    tend_send(near, "lost", 4);
    tbed_until_int(&bed, &near->closed, 1, "closed");
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        assert_int_equal(ops[i].done, 1);
        assert_int_not_equal(ops[i].status, BT_OK);
    }
    tend_key_close(near, key);
    free(near);
    tend_closed(far);
    tbed_close(&bed);
}

static void test_peer_closes(void **state)
{
    struct tend *near, *far;
    struct bt_tkey *key;

    open_bed(state);
    for (int landed = 0; landed < 3; landed++) {
        tbed_pair(&bed, 0, &near, &far);
        key = tend_key(near);
        many_gets(near, key);
        if (landed > 0)
            tbed_until_int(&bed, &ops[landed - 1].done, 1, "first get");
        tend_close(far);
        tend_until_failed(near, "peer closed");
        tend_close(near);
        tbed_until_int(&bed, &near->closed, 1, "closed");
        tend_key_close(near, key);
        free(near);
        tbed_until_int(&bed, &far->closed, 1, "closed");
        free(far);
        check_quiet();
    }
    tbed_close(&bed);
}

/* ---- */

#define TEST(name) cmocka_unit_test(name)

static const struct CMUnitTest suite[] = {
    TEST(test_refused),
    TEST(test_port_taken),
    TEST(test_unwanted),
    TEST(test_close_at_once),
    TEST(test_many),
    TEST(test_destroyed),
    TEST(test_frames),
    TEST(test_sent_then_closed),
    TEST(test_gets),
    TEST(test_puts),
    TEST(test_both_ways),
    TEST(test_outside),
    TEST(test_put_outside),
    TEST(test_made_up_key),
    TEST(test_key_sizes),
    TEST(test_not_allowed),
    TEST(test_unmapped),
    TEST(test_map_cycles),
    TEST(test_close_with_gets),
    TEST(test_get_after_close),
    TEST(test_peer_closes),
};
#define SUITE (sizeof(suite) / sizeof(suite[0]))

/* [KIND [TEST]]: only this kind, only this test. */
int main(int argc, char **argv)
{
    int failed = 0, groups = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    for (const struct tbed_kind *k = tbed_choose(); k->name != NULL; k++) {
        struct CMUnitTest tests[SUITE];

        if (argc >= 2 && strcmp(argv[1], k->name) != 0)
            continue;
        for (size_t i = 0; i < SUITE; i++) {
            tests[i] = suite[i];
            tests[i].initial_state = (void *)(uintptr_t)k;
        }
        failed += cmocka_run_group_tests_name(k->name, tests, NULL, NULL);
        groups++;
    }
    return groups > 0 ? failed : 1;
}
