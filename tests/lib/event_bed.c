/* The engine of event_bed.h: answers subscriptions and replays on a timer of
 * the bed's loop. */
#include "event_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <zmq.h>

struct bed bed;
struct event_engine engine;

static size_t from_hex(const char *hex, unsigned char *bytes)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        char *end = NULL;

        bytes[i] = (unsigned char)strtoul(digits, &end, 16);
        assert_true(end == digits + 2);
    }
    return n;
}

static void put_be(unsigned char be[8], uint64_t seq)
{
    for (int i = 0; i < 8; i++)
        be[i] = (unsigned char)(seq >> (56 - 8 * i));
}

static void reply(void *identity, size_t identity_bytes, uint64_t seq,
                  const void *payload, size_t count)
{
    unsigned char be[8];

    put_be(be, seq);
    zmq_send(engine.router, identity, identity_bytes, ZMQ_SNDMORE);
    zmq_send(engine.router, "", 0, ZMQ_SNDMORE);
    zmq_send(engine.router, be, 8, ZMQ_SNDMORE);
    zmq_send(engine.router, payload, count, 0);
}

static void on_engine(struct ev_loop *loop, ev_timer *timer, int events)
{
    unsigned char identity[64], be[16], subscription[16];
    int n;

    (void)loop;
    (void)timer;
    (void)events;
    if (zmq_recv(engine.pub, subscription, sizeof(subscription), ZMQ_DONTWAIT) >
        0)
        engine.subscribed = true;
    if (engine.router == NULL)
        return;
    n = zmq_recv(engine.router, identity, sizeof(identity), ZMQ_DONTWAIT);
    if (n <= 0)
        return;
    assert_int_equal(zmq_recv(engine.router, be, sizeof(be), 0), 0);
    assert_int_equal(zmq_recv(engine.router, be, sizeof(be), 0), 8);
    if (engine.mute)
        return;
    engine.asked++;
    for (unsigned int i = be[7] > engine.first ? be[7] : engine.first;
         i < engine.next; i++)
        reply(identity, (size_t)n, i, engine.history[i].bytes,
              engine.history[i].count);
    reply(identity, (size_t)n, UINT64_MAX, "", 0);
}

static void *bind_socket(int type, char *endpoint, size_t size)
{
    void *socket = zmq_socket(engine.context, type);
    int linger = 0;

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size),
                     0);
    return socket;
}

static bool is_subscribed(void *arg)
{
    (void)arg;
    return engine.subscribed;
}

void remember(const char *hex)
{
    assert_true(engine.next < EVENT_BED_HISTORY);
    engine.history[engine.next].count =
        from_hex(hex, engine.history[engine.next].bytes);
    engine.next++;
}

void send_frames(const void *seq, size_t seq_bytes, const void *payload,
                 size_t count)
{
    zmq_send(engine.pub, "kv", 2, ZMQ_SNDMORE);
    zmq_send(engine.pub, seq, seq_bytes, ZMQ_SNDMORE);
    zmq_send(engine.pub, payload, count, 0);
}

void publish_as(uint64_t seq, const char *hex)
{
    static unsigned char bytes[16384];
    unsigned char be[8];

    put_be(be, seq);
    send_frames(be, 8, bytes, from_hex(hex, bytes));
}

void publish(const char *hex)
{
    remember(hex);
    publish_as(engine.next - 1, hex);
}

void publish_bytes(const void *bytes, size_t count)
{
    unsigned char be[8];

    assert_true(engine.next < EVENT_BED_HISTORY);
    assert_true(count <= sizeof(engine.history[0].bytes));
    memcpy(engine.history[engine.next].bytes, bytes, count);
    engine.history[engine.next].count = count;
    put_be(be, engine.next++);
    send_frames(be, 8, bytes, count);
}

void until_subscribed(void)
{
    bed_until(&bed, is_subscribed, NULL, "the subscription");
}

void event_bed_open(bool replay)
{
    bed_workers(&bed, "pd");
    memset(&engine, 0, sizeof(engine));
    engine.context = zmq_ctx_new();
    engine.pub = bind_socket(ZMQ_XPUB, engine.events, sizeof(engine.events));
    if (replay)
        engine.router =
            bind_socket(ZMQ_ROUTER, engine.replay, sizeof(engine.replay));
    ev_timer_init(&engine.timer, on_engine, 0., 0.001);
    ev_timer_start(bed.loop, &engine.timer);
    bed.block_size = bed.workers[0].block_size = bed.workers[1].block_size = 4;
    bed.workers[0].events = engine.events;
    bed.workers[0].replay = replay ? engine.replay : NULL;
}

void event_bed_serve(const char *extra)
{
    bed_serve(&bed, extra);
    until_subscribed();
}

void event_bed_start(bool replay, const char *past)
{
    event_bed_open(replay);
    if (past != NULL)
        remember(past);
    event_bed_serve(NULL);
    bed_ready(&bed);
}

void event_bed_finish(void)
{
    if (bed.serve != NULL)
        bed_idle(&bed);
    ev_timer_stop(bed.loop, &engine.timer);
    zmq_close(engine.pub);
    if (engine.router != NULL)
        zmq_close(engine.router);
    bed_stop(&bed);
    zmq_ctx_term(engine.context);
}

static double wanted_state;

static bool has_state(void *arg)
{
    double state = bed_metric(
        &bed, "baton_kv_stream_state{worker=\"w0\",role=\"prefill\"}");

    (void)arg;
    return state >= wanted_state && state <= wanted_state;
}

void until_state(enum bt_stream_state state)
{
    wanted_state = state;
    bed_until(&bed, has_state, NULL, bt_stream_state_name(state));
}

static double wanted_blocks;

static bool has_blocks(void *arg)
{
    double n = bed_metric(
        &bed, "baton_worker_index_blocks{worker=\"w0\",role=\"prefill\"}");

    (void)arg;
    return n >= wanted_blocks && n <= wanted_blocks;
}

void until_blocks(unsigned int n)
{
    wanted_blocks = n;
    bed_until(&bed, has_blocks, NULL, "blocks in the index");
}
