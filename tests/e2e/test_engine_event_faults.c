/* Delayed and reordered KV events of a real engine process, and a replay socket
 * that is asked the wrong things. What arrives is compared with the sequence
 * numbers that the engine says it has used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <zmq.h>

#include "engine_rig.h"

#define SEQS_MAX 256
#define END      UINT64_MAX
#define WAIT_MS  10000

struct bed {
    struct rig e;
    void *context, *sub, *dealer;
    uint64_t next; /* first number that is not published yet */
    unsigned int variant;
};

static uint64_t be64(const unsigned char *in)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        v = v << 8 | in[i];
    }
    return v;
}

static void put_be64(unsigned char *out, uint64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8) {
        out[i] = (unsigned char)v;
    }
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void *open_socket(void *context, int type, const char *endpoint)
{
    int linger = 0, hwm = 0;
    void *s = zmq_socket(context, type);
    assert_non_null(s);
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    if (type == ZMQ_SUB) {
        zmq_setsockopt(s, ZMQ_SUBSCRIBE, "kv-events", 9);
    }
    assert_int_equal(zmq_connect(s, endpoint), 0);
    return s;
}

/* The number of the next message: its last frame but one. False: none within
 * ms. */
static bool receive(void *socket, int ms, uint64_t *seq_out)
{
    uint64_t numbers[2] = {0, 0}; /* of the last two frames */
    int more = 1, frames = 0;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &ms, sizeof(ms));
    while (more) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, 0) < 0) {
            assert_int_equal(frames, 0);
            zmq_msg_close(&m);
            return false;
        }
        numbers[0] = numbers[1];
        numbers[1] = zmq_msg_size(&m) == 8 ? be64(zmq_msg_data(&m)) : 0;
        more = zmq_msg_more(&m);
        frames++;
        zmq_msg_close(&m);
    }
    assert_true(frames == 3 || frames == 4);
    *seq_out = numbers[0];
    return true;
}

/* Make batches: another prompt each time. */
static void ask(struct bed *b, int times)
{
    char prompt[256], body[1024];
    for (int i = 0; i < times; i++) {
        make_prompt(prompt, 100, b->variant++);
        body_plain(body, sizeof(body), prompt, 4);
        struct answer a = rig_call(&b->e, "/v1/completions", body);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
}

static void set_fault(struct bed *b, const char *kind, int factor)
{
    char json[128];
    snprintf(json, sizeof(json), "{\"fault\":\"%s\",\"factor\":%d}", kind,
             factor);
    rig_fault(&b->e, json);
}

static uint64_t published(const struct bed *b)
{
    return (uint64_t)rig_state(&b->e, "events_next");
}

/* An engine and a subscriber that has joined and seen all so far. */
static void start(struct bed *b, uint32_t buffer)
{
    struct bt_engine_config c;
    uint64_t seq = 0;
    bool seen = false;
    memset(b, 0, sizeof(*b));
    rig_config(&c, "e0");
    c.event_buffer = buffer;
    rig_start(&b->e, &c);
    b->context = zmq_ctx_new();
    b->sub = open_socket(b->context, ZMQ_SUB, b->e.events);
    b->dealer = open_socket(b->context, ZMQ_DEALER, b->e.replay);
    for (int tries = 0; tries < 100 && !seen; tries++) { /* slow joiner */
        ask(b, 1);
        seen = receive(b->sub, 100, &seq);
    }
    assert_true(seen);
    b->next = published(b);
    while (seq + 1 < b->next) {
        assert_true(receive(b->sub, WAIT_MS, &seq));
    }
}

static void stop(struct bed *b)
{
    zmq_close(b->sub);
    zmq_close(b->dealer);
    rig_stop(&b->e);
    zmq_ctx_term(b->context);
}

static void send_start(struct bed *b, uint64_t from)
{
    unsigned char start_at[8];
    put_be64(start_at, from);
    assert_int_equal(zmq_send(b->dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(b->dealer, start_at, 8, 0), 8);
}

/* One whole answer: first .. last - 1, then the end. */
static void expect_answer(struct bed *b, uint64_t first, uint64_t last)
{
    uint64_t seq = 0;
    for (uint64_t want = first; want < last; want++) {
        assert_true(receive(b->dealer, WAIT_MS, &seq));
        assert_int_equal(seq, want);
    }
    assert_true(receive(b->dealer, WAIT_MS, &seq));
    assert_int_equal(seq, END);
}

static void expect_replay(struct bed *b, uint64_t from, uint64_t first)
{
    send_start(b, from);
    expect_answer(b, first, published(b));
}

static void expect_live_in_order(struct bed *b, uint64_t first)
{
    uint64_t seq = 0;
    b->next = published(b);
    for (uint64_t want = first; want < b->next; want++) {
        assert_true(receive(b->sub, WAIT_MS, &seq));
        assert_int_equal(seq, want);
    }
    assert_false(receive(b->sub, 50, &seq));
}

/* ---- late ---- */

static void delayed_come_late_in_order(void **state)
{
    (void)state;
    struct bed b;
    uint64_t seq = 0;
    start(&b, 1000);
    uint64_t first = b.next;
    set_fault(&b, "events_delay", 400);
    int64_t from = now_ms();
    ask(&b, 5);
    assert_true(published(&b) >= first + 5);
    set_fault(&b, "events_delay", 1); /* the next may not overtake */
    ask(&b, 3);
    assert_true(receive(b.sub, WAIT_MS, &seq));
    assert_int_equal(seq, first);
    assert_true(now_ms() - from >= 350); /* 400 by the loop's clock */
    expect_live_in_order(&b, first + 1);
    expect_replay(&b, 0, 0);
    stop(&b);
}

static void delayed_are_let_go_when_the_fault_ends(void **state)
{
    (void)state;
    struct bed b;
    uint64_t seq = 0;
    start(&b, 1000);
    uint64_t first = b.next;
    set_fault(&b, "events_delay", 3600000);
    ask(&b, 5);
    assert_true(published(&b) >= first + 5);
    assert_false(receive(b.sub, 100, &seq));
    expect_replay(&b, 0, 0); /* replay knows of no fault */
    set_fault(&b, "events_delay", 0);
    expect_live_in_order(&b, first);
    first = b.next;
    set_fault(&b, "events_delay", 20); /* no left-over timer of an hour */
    ask(&b, 2);
    expect_live_in_order(&b, first);
    stop(&b);
}

/* What is late for longer than the buffer lasts is lost, as is its replay. */
static void delayed_beyond_the_buffer(void **state)
{
    (void)state;
    struct bed b;
    start(&b, 2);
    uint64_t first = b.next;
    set_fault(&b, "events_delay", 3600000);
    ask(&b, 5);
    uint64_t oldest = published(&b) - 2;
    assert_true(oldest > first);
    expect_replay(&b, 0, oldest);
    set_fault(&b, "events_delay", 0);
    expect_live_in_order(&b, oldest);
    stop(&b);
}

/* ---- out of order ---- */

static void reordered_come_once(void **state)
{
    (void)state;
    struct bed b;
    int seen[SEQS_MAX] = {0}, late = 0;
    uint64_t seq = 0, highest = 0;
    start(&b, 1000);
    uint64_t first = b.next;
    set_fault(&b, "events_reorder", 100);
    ask(&b, 6);
    if ((published(&b) - first) % 2 == 0) {
        struct answer a = rig_call(&b.e, "/reset_prefix_cache", "");
        answer_free(&a); /* an odd number: one is kept back */
    }
    set_fault(&b, "events_reorder", 0);
    uint64_t count = published(&b) - first;
    assert_true(count >= 6 && count <= SEQS_MAX);
    for (uint64_t i = 0; i < count; i++) {
        assert_true(receive(b.sub, WAIT_MS, &seq));
        assert_in_range(seq, first, first + count - 1);
        assert_int_equal(seen[seq - first]++, 0);
        late += seq < highest;
        highest = seq > highest ? seq : highest;
    }
    assert_int_equal(late, (int)(count / 2)); /* each second one */
    assert_false(receive(b.sub, 50, &seq));
    expect_replay(&b, 0, 0);
    b.next = first = published(&b);
    ask(&b, 3); /* and it is over */
    expect_live_in_order(&b, first);
    stop(&b);
}

/* ---- replay ---- */

static void send_frames(void *dealer, int count, const char *frame,
                        size_t bytes, size_t last_bytes)
{
    for (int i = 1; i < count; i++) {
        assert_true(zmq_send(dealer, frame, bytes, ZMQ_SNDMORE) >= 0);
    }
    assert_true(zmq_send(dealer, "\0\0\0\0\0\0\0\0\0", last_bytes, 0) >= 0);
}

/* Only the proper requests are answered, in their order. */
static void malformed_replay_requests(void **state)
{
    (void)state;
    struct bed b;
    uint64_t seq = 0;
    start(&b, 1000);
    send_frames(b.dealer, 1, "", 0, 8);  /* no delimiter */
    send_frames(b.dealer, 1, "", 0, 0);  /* nothing else */
    send_frames(b.dealer, 2, "", 0, 7);  /* short number */
    send_frames(b.dealer, 2, "", 0, 9);  /* long number */
    send_frames(b.dealer, 2, "x", 1, 8); /* delimiter not empty */
    send_frames(b.dealer, 3, "", 0, 8);  /* a frame too many */
    send_frames(b.dealer, 200, "", 0, 8);
    zmq_send(b.dealer, "", 0, ZMQ_SNDMORE);
    send_frames(b.dealer, 2, "\0\0\0\0\0\0\0", 8, 0); /* or after it */
    send_start(&b, b.next - 1);
    expect_answer(&b, b.next - 1, b.next);
    send_start(&b, b.next); /* nothing yet */
    expect_answer(&b, b.next, b.next);
    send_start(&b, END);
    expect_answer(&b, b.next, b.next);
    assert_false(receive(b.dealer, 50, &seq));
    stop(&b);
}

/* More at once than one turn of the loop serves, fewer than the socket may
 * hold back (1000 messages). */
static void many_replay_requests(void **state)
{
    (void)state;
    enum { REQUESTS = 400 };
    struct bed b;
    start(&b, 1000);
    for (int i = 0; i < REQUESTS; i++) {
        send_start(&b, b.next - 1);
    }
    for (int i = 0; i < REQUESTS; i++) {
        expect_answer(&b, b.next - 1, b.next);
    }
    stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delayed_come_late_in_order),
        cmocka_unit_test(delayed_are_let_go_when_the_fault_ends),
        cmocka_unit_test(delayed_beyond_the_buffer),
        cmocka_unit_test(reordered_come_once),
        cmocka_unit_test(malformed_replay_requests),
        cmocka_unit_test(many_replay_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
