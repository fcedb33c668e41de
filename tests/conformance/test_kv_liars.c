/* Peers that lie or do not hold the key: nobody is let in by less than the
 * whole greeting, what was proved once is worth nothing elsewhere, strangers do
 * not crowd out friends, and a sink believes a source only what it can check.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_liar.h"
#include "kv_tap.h"

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS    16u
#define BYTES     1024u
#define STRANGERS 300 /* more than a door keeps */

static const char *kind_of(void **state)
{
    return ((const struct bed_case *)*state)->fabric->name;
}

static bool keyed(void **state)
{
    return ((const struct bed_case *)*state)->keyed;
}

static void opened(struct bed *bed, struct liar *liar, void **state)
{
    bed_both(bed, state, BLOCKS, BYTES);
    liar_open(liar, bed, kind_of(state));
}

/* The liar has left no trace; the bed's own sink is served. */
static void closed(struct bed *bed, struct liar *liar, int checks)
{
    struct bed_end end;

    assert_int_equal(bed->checks, checks);
    assert_int_equal(bed->released, 0);
    assert_int_equal(bed->renewed, 0);
    assert_int_equal(bed_pull_one(bed, "ok", 3, &end), BT_OK);
    liar_close(liar);
    bed_close(bed);
}

/* ---- at a source ---- */

static void test_first_frame(void **state)
{
    const uint64_t refs[] = {1};
    const uint32_t blocks[] = {1};
    struct liar liar;
    struct bed bed;
    int closes = 0;

    opened(&bed, &liar, state);
    for (int type = BT_WIRE_CHALLENGE; type <= BT_WIRE_PONG; type++) {
        struct liar_end *end = liar_connect(&liar);
        struct bt_wire_frame f = {.type = (enum bt_wire_type)type,
                                  .pull = 1,
                                  .name = "d0",
                                  .layout = bed.layout,
                                  .request = "ok",
                                  .total = 1,
                                  .count = 1,
                                  .refs = refs,
                                  .blocks = blocks,
                                  .hashes = refs};

        if (type == BT_WIRE_DONE)
            f.flags = BT_WIRE_RELEASE;
        liar_send(end, &f);
        bed_until(&bed, &end->closed, 1);
        assert_int_equal(end->frames, 0);
        assert_int_equal(liar.closed, ++closes);
    }
    closed(&bed, &liar, 0);
}

/* Not frames at all, and sizes that are none. */
static void test_rubbish(void **state)
{
    static const uint8_t rubbish[][12] = {
        {0},
        {0x42, 0x4B, 2, 1, 8, 0, 0, 0},                      /* empty HELLO */
        {0x42, 0x4B, 2, 1, 255, 255, 255, 255, 1, 'x', 1},   /* its size lies */
        {0x42, 0x4B, 2, 99, 12, 0, 0, 0},                    /* no such type */
        {0x42, 0x4B, 2, 1, 12, 0, 0, 0, 200, 'x', 'x', 'x'}, /* name too long */
    };
    static uint8_t longest[BT_WIRE_FRAME_MAX];
    struct liar liar;
    struct bed bed;
    struct liar_end *end;

    opened(&bed, &liar, state);
    for (size_t i = 0; i < sizeof(rubbish) / sizeof(rubbish[0]); i++) {
        end = liar_connect(&liar);
        liar_send_raw(end, rubbish[i], sizeof(rubbish[i]));
        bed_until(&bed, &end->closed, 1);
    }
    memset(longest, 0x42, sizeof(longest));
    end = liar_connect(&liar);
    liar_send_raw(end, longest, sizeof(longest));
    bed_until(&bed, &end->closed, 1);
    assert_int_equal(bed_stats(bed.source_fabric).frames_malformed, 6);
    closed(&bed, &liar, 0);
}

/* Connections that never greet, half of them silent, half stopping after
 * HELLO: a friend gets in all the same, and they go by themselves. */
static void test_strangers(void **state)
{
    struct liar_end *ends[STRANGERS];
    struct bt_wire_frame hello;
    struct bed_end pulled;
    struct liar liar;
    struct bed bed;

    opened(&bed, &liar, state);
    hello = liar_hello(&bed, keyed(state));
    hello.layout.version++; /* without a key: refused, and it stays */
    for (int i = 0; i < STRANGERS; i++) {
        ends[i] = liar_connect(&liar);
        if (i % 2 == 0)
            liar_send(ends[i], &hello);
        if (i % 50 == 49) /* not all at once: a backlog has an end */
            bed_until(&bed, &ends[i - 1]->frames, 1);
    }
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &pulled), BT_OK);
    assert_true(liar.closed >= STRANGERS - 129 - 50);
    bed_until(&bed, &liar.closed, STRANGERS);
    assert_int_equal(bed.checks, 1);
    bed.released = bed.renewed = 0;
    closed(&bed, &liar, 1);
}

static void prove(struct liar_end *end, const struct bt_wire_frame *hello,
                  const uint8_t *key, struct bt_wire_frame *prove_out)
{
    const uint8_t *source = end->last.nonce;
    uint8_t bytes[1024];
    struct bt_seal over, seal;
    size_t used = 0;

    assert_int_equal(end->last.type, BT_WIRE_CHALLENGE);
    assert_int_equal(bt_wire_encode(hello, bytes, sizeof(bytes), &used), BT_OK);
    bt_seal_init(&over, key, hello->nonce, source, true);
    assert_int_equal(bt_seal_add(&over, bytes, used, sizeof(bytes), &used),
                     BT_OK);
    bt_seal_init(&seal, key, bytes + used - BT_SEAL_NONCE, source, true);
    *prove_out = (struct bt_wire_frame){.type = BT_WIRE_PROVE};
    bt_seal_proof(&seal, prove_out->proof);
}

/* HELLO, CHALLENGE, PROVE; its answer is end->last. */
static struct liar_end *greet(struct liar *liar,
                              const struct bt_wire_frame *said,
                              const struct bt_wire_frame *proved,
                              const uint8_t *key, struct bt_wire_frame *proof)
{
    struct liar_end *end = liar_connect(liar);

    liar_send(end, said);
    bed_until(liar->bed, &end->frames, 1);
    prove(end, proved, key, proof);
    liar_send(end, proof);
    bed_until(liar->bed, &end->frames, 2);
    return end;
}

/* The proof is of this key, this HELLO and this challenge. */
static void test_proofs(void **state)
{
    struct bt_wire_frame hello, other, proof, again;
    struct liar liar;
    struct bed bed;
    struct liar_end *end;

    if (!keyed(state))
        skip();
    opened(&bed, &liar, state);
    hello = other = liar_hello(&bed, true);
    end = greet(&liar, &hello, &hello, bed_key, &proof);
    assert_int_equal(end->last.type, 0); /* sealed, WELCOME */
    end = greet(&liar, &hello, &hello, bed_other_key, &again);
    assert_int_equal(end->last.type, BT_WIRE_NO);
    assert_string_equal(end->last.text, "wrong key");
    /* somebody changed the session (or name, region) on the way */
    other.session++;
    end = greet(&liar, &other, &hello, bed_key, &again);
    assert_int_equal(end->last.type, BT_WIRE_NO);
    /* heard on one connection, said again on another */
    end = liar_connect(&liar);
    liar_send(end, &hello);
    bed_until(&bed, &end->frames, 1);
    liar_send(end, &proof);
    bed_until(&bed, &end->frames, 2);
    assert_int_equal(end->last.type, BT_WIRE_NO);
    assert_int_equal(bed_stats(bed.source_fabric).refused_key, 3);
    closed(&bed, &liar, 0);
}

/* Another sink's session is worth nothing without the key: its pulls, leases
 * and requests are out of reach. */
static void test_theft(void **state)
{
    struct bt_wire_frame hello, done = {.type = BT_WIRE_DONE,
                                        .pull = 1,
                                        .request = "ok",
                                        .flags = BT_WIRE_RELEASE};
    struct liar liar;
    struct bed bed;
    struct liar_end *end;

    if (!keyed(state))
        skip();
    opened(&bed, &liar, state);
    hello = liar_hello(&bed, true);
    end = liar_connect(&liar);
    liar_send(end, &hello);
    bed_until(&bed, &end->frames, 1);
    liar_send(end, &done); /* in place of PROVE */
    bed_until(&bed, &end->closed, 1);
    hello.flags = 0; /* without a key, then */
    end = liar_connect(&liar);
    liar_send(end, &hello);
    bed_until(&bed, &end->frames, 1);
    assert_int_equal(end->last.type, BT_WIRE_NO);
    liar_send(end, &done);
    bed_until(&bed, &end->closed, 1);
    closed(&bed, &liar, 0);
}

/* References beyond the region or the limits. */
static void test_open_beyond(void **state)
{
    static uint64_t refs[BT_WIRE_OPEN_PART];
    struct bt_wire_frame hello, f = {.type = BT_WIRE_OPEN,
                                     .request = "ok",
                                     .total = BT_WIRE_LIST_MAX,
                                     .count = BT_WIRE_OPEN_PART,
                                     .refs = refs};
    struct liar liar;
    struct bed bed;
    struct liar_end *end;
    int frames;

    if (keyed(state))
        skip(); /* the same after the greeting */
    opened(&bed, &liar, state);
    hello = liar_hello(&bed, false);
    end = liar_connect(&liar);
    liar_send(end, &hello);
    bed_until(&bed, &end->frames, 1);
    assert_int_equal(end->last.type, BT_WIRE_WELCOME);
    /* lists begun and never ended: as many as one sink may have */
    for (f.pull = 1; f.pull <= 32; f.pull++)
        liar_send(end, &f);
    frames = end->frames;
    f.pull = 33;
    liar_send(end, &f);
    bed_until(&bed, &end->frames, frames + 1);
    assert_int_equal(end->last.type, BT_WIRE_NO);
    assert_true(end->last.pull == 33);
    assert_int_equal(end->last.status, BT_REFUSED);
    /* one reference, outside */
    f = (struct bt_wire_frame){.type = BT_WIRE_DONE, .request = "x", .pull = 1};
    liar_send(end, &f);
    refs[0] = UINT64_MAX;
    f = (struct bt_wire_frame){.type = BT_WIRE_OPEN,
                               .request = "ok",
                               .pull = 50,
                               .total = 1,
                               .count = 1,
                               .refs = refs};
    liar_send(end, &f);
    bed_until(&bed, &end->frames, frames + 2);
    assert_int_equal(end->last.status, BT_NOT_FOUND);
    refs[0] = 0;
    closed(&bed, &liar, 0);
}

/* ---- at a sink ---- */

static struct bt_wire_frame lie;      /* answer to OPEN */
static struct bt_wire_frame greeting; /* to HELLO */

static void on_ask(struct liar_end *end, const struct bt_wire_frame *frame)
{
    struct bt_wire_frame f = greeting;
    struct bt_wire_frame pong = {.type = BT_WIRE_PONG, .token = frame->token};

    if (frame->type == BT_WIRE_PING)
        liar_send(end, &pong);
    if (frame->type == BT_WIRE_HELLO) {
        if (f.type == BT_WIRE_WELCOME && f.key_size == 0) {
            memcpy(f.key, end->liar->key, end->liar->key_size);
            f.key_size = end->liar->key_size;
        }
        liar_send(end, &f);
    }
    if (frame->type == BT_WIRE_OPEN) {
        f = lie;
        f.pull = frame->pull;
        liar_send(end, &f);
    }
}

static void as_source(struct bed *bed, struct liar *liar, void **state,
                      const uint8_t *sink_key)
{
    bed_open_case(bed, state, BLOCKS, BYTES);
    bed->sink_key = sink_key;
    liar_open(liar, bed, kind_of(state));
    liar->answer = on_ask;
    liar_listen(liar);
    bed_sink(bed);
    bed->port = liar->port;
    assert_int_equal(liar->transport->ops->map(liar->transport, bed->from,
                                               BLOCKS * BYTES, &liar->mem),
                     BT_OK);
    assert_int_equal(
        liar->transport->ops->key_pack(liar->transport, liar->mem, liar->key,
                                       sizeof(liar->key), &liar->key_size),
        BT_OK);
    greeting = liar_welcome(bed);
    greeting.region = (uintptr_t)bed->from;
}

static void untouched(const struct bed *bed)
{
    for (size_t i = 0; i < BLOCKS * BYTES; i++)
        assert_int_equal(bed->to[i], 0);
}

static void test_grants(void **state)
{
    static const uint32_t blocks[] = {BLOCKS, UINT32_MAX, 1, 2};
    static const uint64_t hashes[] = {1, 2, 3, 4};
    const struct bt_wire_frame lies[] = {
        {.type = BT_WIRE_GRANT, .total = 1, .count = 1}, /* block BLOCKS */
        {.type = BT_WIRE_GRANT, .total = 2, .count = 2},
        {.type = BT_WIRE_GRANT, .total = 4, .offset = 2, .count = 2},
        {.type = BT_WIRE_GRANT, .total = 65536, .count = 1},
    };
    struct liar liar;
    struct bed bed;
    struct bed_end end;
    uint64_t connects;

    if (keyed(state))
        skip(); /* the same from one that has the key */
    as_source(&bed, &liar, state, NULL);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        lie = lies[i];
        lie.blocks = blocks;
        lie.hashes = hashes;
        assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_REFUSED);
        assert_non_null(strstr(end.detail, "GRANT"));
    }
    untouched(&bed);
    /* a region larger than its key: what is outside is not had */
    greeting.block_count = UINT32_MAX;
    bt_kv_sink_destroy(bed.sink);
    bed.sink = bed_other_sink(&bed, bed.to);
    lie = lies[0];
    lie.blocks = &(const uint32_t){UINT32_MAX - 1};
    lie.hashes = hashes;
    connects = bed_stats(bed.sink_fabric).connects;
    assert_int_not_equal(bed_pull_one(&bed, "ok", 3, &end), BT_OK);
    assert_true(bed_stats(bed.sink_fabric).connects <= connects + 20);
    untouched(&bed);
    liar_close(&liar);
    bed_close(&bed);
}

/* Who has not proved the key is not heard on anything else. */
static void test_false_source(void **state)
{
    struct liar liar;
    struct bed bed;
    struct bed_end end;

    if (!keyed(state))
        skip();
    as_source(&bed, &liar, state, bed_key);
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_REFUSED);
    assert_string_equal(end.detail,
                        "the sink wants a key, the source has none");
    greeting = (struct bt_wire_frame){
        .type = BT_WIRE_NO, .status = BT_LEASE_EXPIRED, .text = "gone"};
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_REFUSED);
    greeting = (struct bt_wire_frame){
        .type = BT_WIRE_NO, .pull = 3, .status = BT_NOT_FOUND};
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_REFUSED);
    greeting = (struct bt_wire_frame){.type = BT_WIRE_CHALLENGE};
    bt_kv_sink_destroy(bed.sink); /* it would spare us now */
    bed.sink = bed_other_sink(&bed, bed.to);
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_REFUSED);
    assert_string_equal(end.detail, "wrong key");
    untouched(&bed);
    liar_close(&liar);
    bed_close(&bed);
}

/* A source that proved nothing names rails somewhere else: nobody goes. */
static void test_rails_elsewhere(void **state)
{
    struct liar liar;
    struct bed bed;
    struct bed_end end;

    if (keyed(state))
        skip();
    tap_install();
    as_source(&bed, &liar, state, NULL);
    greeting.rail_count = 1;
    greeting.rails[0] = (struct bt_wire_rail){"198.51.100.7", 80};
    lie = (struct bt_wire_frame){.type = BT_WIRE_NO, .status = BT_NOT_FOUND};
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_NOT_FOUND);
    bed_until(&bed, &bed.ticks, bed.ticks + 4);
    assert_int_equal(tap.rails[0].connects, 1);
    assert_int_equal(tap.rails[1].connects, 0);
    assert_int_equal(bed_pull_one(&bed, "ok", 3, &end), BT_NOT_FOUND);
    liar_close(&liar);
    bed_close(&bed);
    tap_remove();
}

#define T(name)                                                                \
    {                                                                          \
#name, name, NULL, NULL, NULL                                          \
    }
static const struct CMUnitTest suite[] = {
    T(test_first_frame), T(test_rubbish),      T(test_strangers),
    T(test_proofs),      T(test_theft),        T(test_open_beyond),
    T(test_grants),      T(test_false_source), T(test_rails_elsewhere),
};

int main(int argc, char **argv)
{
    static const struct bed_variant variants[] = {{2, false}, {1, true}};

    return bed_main(argc, argv, suite, sizeof(suite) / sizeof(suite[0]),
                    variants, sizeof(variants) / sizeof(variants[0]));
}
