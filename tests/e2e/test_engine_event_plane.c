/* The event plane alone, on a loop of the test: endpoints and topics that
 * cannot be had, and a queue of delayed batches that overflows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ev.h>
#include <zmq.h>

#include "events.h"

#define LOCAL "tcp://127.0.0.1:0"

static struct bt_events_config config_of(const char *endpoint,
                                         const char *replay)
{
    return (struct bt_events_config){.form = BT_ENGINE_EVENTS_MAP,
                                     .endpoint = endpoint,
                                     .replay_endpoint = replay,
                                     .topic = "kv-events",
                                     .buffer = 10000,
                                     .seed = 1};
}

static void expect_refusal(const struct bt_events_config *config,
                           enum bt_status want, const char *words)
{
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_events *events = NULL;
    char error[160] = "";
    enum bt_status got =
        bt_events_create(loop, config, &events, error, sizeof(error));
    if (got != want) {
        fail_msg("%s: %s, not %s", config->endpoint, bt_status_name(got),
                 bt_status_name(want));
    }
    assert_null(events);
    assert_non_null(strstr(error, words));
    ev_loop_destroy(loop);
}

static void bad_endpoints(void **state)
{
    (void)state;
    char path[200] = "ipc:///tmp/";
    memset(path + strlen(path), 'x', sizeof(path) - 1 - strlen(path));
    path[sizeof(path) - 1] = '\0';
    const char *const bad[] = {"nonsense",
                               "",
                               "tcp://",
                               "tcp://127.0.0.1",
                               "tcp://127.0.0.1:70000",
                               "tcp://127.0.0.1:123456789",
                               "tcp://127.0.0.1:55x",
                               "tcp://127.0.0.1:port",
                               "carrier-pigeon://roof",
                               path};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct bt_events_config live = config_of(bad[i], LOCAL);
        struct bt_events_config replay = config_of(LOCAL, bad[i]);
        expect_refusal(&live, BT_INVALID, "cannot bind ");
        expect_refusal(&replay, BT_INVALID, "cannot bind ");
    }
}

static void long_topic(void **state)
{
    (void)state;
    char topic[129];
    struct bt_events_config config = config_of(LOCAL, LOCAL);
    memset(topic, 't', sizeof(topic) - 1);
    topic[128] = '\0';
    config.topic = topic;
    expect_refusal(&config, BT_INVALID, "topic");
}

static void taken_ports(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_events *events = NULL;
    struct bt_events_config config = config_of(LOCAL, LOCAL);
    char error[160];
    assert_int_equal(
        bt_events_create(loop, &config, &events, error, sizeof(error)), BT_OK);
    const char *live = bt_events_endpoint(events);
    config = config_of(live, LOCAL);
    expect_refusal(&config, BT_EXISTS, live);
    config = config_of(LOCAL, live);
    expect_refusal(&config, BT_EXISTS, live);
    bt_events_destroy(events);
    ev_loop_destroy(loop);
}

/* ---- a full queue ---- */

static void publish(struct bt_events *events)
{
    bt_events_cleared(events);
    bt_events_flush(events);
}

/* False: none within ms. */
static bool receive(void *sub, int ms, uint64_t *seq_out)
{
    unsigned char topic[64], seq[8], payload[256];
    zmq_setsockopt(sub, ZMQ_RCVTIMEO, &ms, sizeof(ms));
    if (zmq_recv(sub, topic, sizeof(topic), 0) < 0) {
        return false;
    }
    assert_int_equal(zmq_recv(sub, seq, sizeof(seq), 0), 8);
    assert_true(zmq_recv(sub, payload, sizeof(payload), 0) > 0);
    *seq_out = 0;
    for (int i = 0; i < 8; i++) {
        *seq_out = *seq_out << 8 | seq[i];
    }
    return true;
}

static void *join(void *context, struct bt_events *events)
{
    int hwm = 0;
    uint64_t seq = 0;
    bool seen = false;
    void *sub = zmq_socket(context, ZMQ_SUB);
    zmq_setsockopt(sub, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(sub, bt_events_endpoint(events)), 0);
    for (int tries = 0; tries < 100 && !seen; tries++) {
        publish(events);
        seen = receive(sub, 100, &seq);
    }
    assert_true(seen);
    while (seq + 1 < bt_events_next_sequence(events)) {
        assert_true(receive(sub, 10000, &seq));
    }
    return sub;
}

/* The oldest leave early; none is lost and the order stays. */
static void delayed_queue_overflows(void **state)
{
    (void)state;
    enum { BATCHES = 5000, ROOM = 4096 };
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_events *events = NULL;
    struct bt_events_config config = config_of(LOCAL, LOCAL);
    struct bt_events_faults faults = {.delay_ms = 3600000};
    char error[160];
    uint64_t seq = 0;
    void *context = zmq_ctx_new();
    assert_int_equal(
        bt_events_create(loop, &config, &events, error, sizeof(error)), BT_OK);
    void *sub = join(context, events);
    uint64_t first = bt_events_next_sequence(events);
    bt_events_set_faults(events, &faults);
    for (int i = 0; i < BATCHES; i++) {
        publish(events);
    }
    for (uint64_t i = 0; i < BATCHES - ROOM; i++) {
        assert_true(receive(sub, 10000, &seq));
        assert_int_equal(seq, first + i);
    }
    assert_false(receive(sub, 50, &seq));
    faults.delay_ms = 0;
    bt_events_set_faults(events, &faults);
    for (uint64_t i = BATCHES - ROOM; i < BATCHES; i++) {
        assert_true(receive(sub, 10000, &seq));
        assert_int_equal(seq, first + i);
    }
    zmq_close(sub);
    zmq_ctx_term(context);
    bt_events_destroy(events);
    ev_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_endpoints),
        cmocka_unit_test(long_topic),
        cmocka_unit_test(taken_ports),
        cmocka_unit_test(delayed_queue_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
