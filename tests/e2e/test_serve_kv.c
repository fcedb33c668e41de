/* KV events end to end: an engine's PUB and replay ROUTER, the server's index,
 * and what a decision says of it; and that nothing private leaves the server.
 * Truth: the vectors of engine-wire.md 1.14 and the rules of 1.8 - 1.10. */
#include "serve_bed.h"

#include "baton/orchestrator/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>
#include <zmq.h>

/* V1: hash 1001, tokens 1..4. V7: removed again. V9: cleared. V11: 11 and its
 * child 12, tokens 1..8, an unknown event between them. M1: the real engine's
 * form of V1 with a full 64-bit hash. All with 4 tokens to the block. */
#define V1                                                                     \
    "93cb3ff00000000000009198ab426c6f636b53746f72656491cd03e9c0940102030404c0" \
    "a3475055c000"
#define V2                                                                     \
    "93cb3ff00000000000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f" \
    "68617368657391cd03e9b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f" \
    "6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756d" \
    "a3475055a96c6f72615f6e616d65c0"
#define V7                                                                     \
    "93cb3ff00000000000009193ac426c6f636b52656d6f76656491cd03e9a347505500"
#define V9 "93cb3ff00000000000009191b0416c6c426c6f636b73436c656172656400"
#define V11                                                                    \
    "93cb3ff00000000000009395ab426c6f636b53746f726564910bc094010203040493ab46" \
    "75747572654576656e74910181a1780195ab426c6f636b53746f726564910c0b94050607" \
    "080400"
#define M1                                                                     \
    "93cb41daa8dbe0351eb8918ba474797065ab426c6f636b53746f726564ac626c6f636b5f" \
    "68617368657391cfdab89baa7b5857c0b1706172656e745f626c6f636b5f68617368c0a9" \
    "746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a6" \
    "6d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967" \
    "726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f6174" \
    "74656e74696f6e00"

#define ASK                                                                    \
    "{\"model\":\"m\",\"stream\":true,\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12," \
    "13,14]}"

static struct bed bed;
static char out[262144];

/* ---- an engine's event plane ---- */

#define HISTORY_MAX 64

struct engine {
    void *context, *pub, *router;
    char events[64], replay[64];
    struct {
        unsigned char bytes[16384];
        size_t count;
    } history[HISTORY_MAX];
    unsigned int next;
    unsigned int asked; /* replays served */
    bool subscribed, mute;
    ev_timer timer;
};
static struct engine engine;

static size_t from_hex(const char *hex, unsigned char *bytes)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned int value;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
        bytes[i] = (unsigned char)value;
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
    for (unsigned int i = be[7]; i < engine.next; i++)
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

/* History that was there before the server: needs the replay socket. */
static void remember(const char *hex)
{
    assert_true(engine.next < HISTORY_MAX);
    engine.history[engine.next].count =
        from_hex(hex, engine.history[engine.next].bytes);
    engine.next++;
}

static void send_frames(const void *seq, size_t seq_bytes, const void *payload,
                        size_t count)
{
    zmq_send(engine.pub, "kv", 2, ZMQ_SNDMORE);
    zmq_send(engine.pub, seq, seq_bytes, ZMQ_SNDMORE);
    zmq_send(engine.pub, payload, count, 0);
}

static void publish_as(uint64_t seq, const char *hex)
{
    static unsigned char bytes[16384];
    unsigned char be[8];

    put_be(be, seq);
    send_frames(be, 8, bytes, from_hex(hex, bytes));
}

static void publish(const char *hex)
{
    remember(hex);
    publish_as(engine.next - 1, hex);
}

/* The prefill worker has the event plane; blocks of 4 tokens. */
static void start(bool replay, const char *past)
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
    if (past != NULL)
        remember(past);
    bed.block_size = bed.workers[0].block_size = bed.workers[1].block_size = 4;
    bed.workers[0].events = engine.events;
    bed.workers[0].replay = replay ? engine.replay : NULL;
    bed_serve(&bed, NULL);
    bed_ready(&bed);
    bed_until(&bed, is_subscribed, NULL, "the subscription");
}

static void finish(void)
{
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

static void until_state(enum bt_stream_state state)
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

static void until_blocks(unsigned int n)
{
    wanted_blocks = n;
    bed_until(&bed, has_blocks, NULL, "blocks in the index");
}

/* One request; hit_p and index_state of its decision. */
static void check_decision(unsigned int hit_p, const char *index_state)
{
    char want[64];

    assert_int_equal(
        bed_request(&bed, "/v1/completions", ASK, out, sizeof(out)), 200);
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
    snprintf(want, sizeof(want), "\"hit_p\":%u,", hit_p);
    if (strstr(out, want) == NULL)
        fail_msg("no %s in %s", want, out);
    snprintf(want, sizeof(want), "\"index_state\":\"%s\"", index_state);
    if (index_state[0] != '\0' && strstr(out, want) == NULL)
        fail_msg("no %s in %s", want, out);
}

/* ---- tests ---- */

/* What was said before the server came is read back; a lost batch too. */
static void events_show_in_decisions(void **state)
{
    (void)state;
    start(true, V11);
    until_state(BT_STREAM_EXACT);
    until_blocks(2);
    check_decision(8, "");
    remember(V9); /* published, but lost on the way */
    publish(V2);
    until_blocks(1);
    until_state(BT_STREAM_EXACT);
    check_decision(4, "");
    assert_int_equal(bed_metric(&bed, "baton_kv_event_gaps_total"), 1);
    assert_int_equal(bed_metric(&bed, "baton_kv_event_missing_total"), 1);
    publish(V7);
    until_blocks(0);
    check_decision(0, "");
    publish(M1);
    until_blocks(1);
    check_decision(4, "");
    finish();
}

static void garbage_on_the_stream(void **state)
{
    static unsigned char deep[10000];
    unsigned char be[8];
    char cut[64];

    (void)state;
    start(true, NULL);
    until_state(BT_STREAM_EXACT);
    zmq_send(engine.pub, "kv", 2, ZMQ_SNDMORE); /* two frames */
    zmq_send(engine.pub, "x", 1, 0);
    send_frames("1234567", 7, "", 0);
    publish("");
    snprintf(cut, sizeof(cut), "%.60s", V2);
    publish(cut);
    publish("dbffffffff");
    memset(deep, 0x91, sizeof(deep));
    put_be(be, engine.next);
    memcpy(engine.history[engine.next].bytes, deep, sizeof(deep));
    engine.history[engine.next++].count = sizeof(deep);
    send_frames(be, 8, deep, sizeof(deep));
    publish(V1);
    until_blocks(1);
    until_state(BT_STREAM_EXACT);
    check_decision(4, "");
    assert_int_equal(
        bed_metric(&bed, "baton_kv_event_errors_total{reason=\"frames\"}"), 1);
    assert_int_equal(
        bed_metric(&bed, "baton_kv_event_errors_total{reason=\"sequence\"}"),
        1);
    assert_true(
        bed_metric(&bed, "baton_kv_event_errors_total{reason=\"msgpack\"}") >=
        3);
    finish();
}

/* Another process: seen by its start time, its history read from zero. */
static void a_restart_forgets(void **state)
{
    (void)state;
    start(true, V11);
    until_blocks(2);
    engine.next = 0;
    remember(V1);
    bed.workers[0].start_time = 7777;
    until_blocks(1);
    until_state(BT_STREAM_EXACT);
    check_decision(4, "");
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    assert_non_null(strstr(out, "\"generation\":2,"));
    /* ... and by its numbers alone, before the next scrape tells. */
    engine.next = 0;
    publish(V11);
    until_blocks(2);
    check_decision(8, "");
    finish();
}

/* No replay socket: what is missing stays missing, and is named. */
static void a_hole_for_good_is_named(void **state)
{
    (void)state;
    start(false, NULL);
    publish_as(0, V11);
    until_state(BT_STREAM_EXACT);
    until_blocks(2);
    publish_as(5, V1);
    until_state(BT_STREAM_DEGRADED);
    check_decision(8, "degraded");
    finish();
}

/* A replay socket that never answers: the live stream serves. */
static void a_mute_replay_socket(void **state)
{
    (void)state;
    start(true, NULL);
    until_state(BT_STREAM_EXACT);
    publish(V1);
    until_blocks(1);
    engine.mute = true;
    engine.next = 5;
    publish(V11);
    until_state(BT_STREAM_DEGRADED);
    until_blocks(2); /* 1001 and 11 are one key */
    check_decision(8, "degraded");
    assert_int_equal(
        bed_metric(&bed, "baton_kv_event_replays_total{outcome=\"timeout\"}"),
        1);
    finish();
}

/* ---- privacy ---- */

#define CANARY "CaNaRy"

static void p_refuses_with_its_words(struct bed_worker *w,
                                     struct bt_httpd_request *req)
{
    static const char body[] = "{\"error\":{\"message\":\"cannot take " CANARY
                               "\",\"type\":\"BadRequestError\",\"code\":400}}";

    (void)w;
    bt_httpd_reply(req, 400, "application/json", body, strlen(body));
}

static void check_clean(const char *where, const char *text, size_t count)
{
    if (memmem(text, count, CANARY, strlen(CANARY)) != NULL ||
        memmem(text, count, "271828", 6) != NULL)
        fail_msg("the prompt, a token or the salt is in %s", where);
}

static void check_file(const char *where, int fd)
{
    ssize_t n = pread(fd, out, sizeof(out), 0);

    assert_true(n > 0);
    assert_true(n < (ssize_t)sizeof(out));
    check_clean(where, out, (size_t)n);
}

#define SALTED                                                                 \
    "{\"model\":\"m\",\"stream\":true,\"cache_salt\":\"" CANARY                \
    "\",\"prompt\":\"" CANARY " is a prompt\"}"
#define BAD_LIMIT                                                              \
    "{\"model\":\"m\",\"prompt\":\"" CANARY "\",\"max_tokens\":\"" CANARY "\"" \
    "}"

static void send_canaries(void)
{
    static const char *const bodies[] = {
        SALTED,
        ("{\"model\":\"m\",\"prompt\":\"" CANARY "\",\"user\":\"" CANARY "\"}"),
        "{\"model\":\"m\",\"prompt\":[271828,271828,1,2,3,4,5,6,7,8]}",
        ("{\"model\":\"" CANARY "\",\"prompt\":\"x\"}"),
        BAD_LIMIT,
        ("{\"model\":\"m\",\"prompt\":\"" CANARY)};

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        bed_request(&bed, "/v1/completions", bodies[i], out, sizeof(out));
    bed_request(&bed, "/v1/chat/completions",
                "{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                "\"content\":\"" CANARY "\"}]}",
                out, sizeof(out));
}

static void nothing_private_leaves(void **state)
{
    static const char *const pages[] = {
        "/admin/v1/workers", "/admin/v1/decisions?limit=100",
        "/admin/v1/summary", "/admin/v1/index/stats"};
    char log_path[] = "/tmp/baton-log-XXXXXX", extra[256];
    char file_path[] = "/tmp/baton-dec-XXXXXX";
    int log = mkstemp(log_path), file = mkstemp(file_path);
    int saved = dup(STDERR_FILENO);

    (void)state;
    assert_true(log >= 0 && file >= 0);
    snprintf(extra, sizeof(extra),
             "log: {level: trace, format: json}\ndecisions: {file: %s}",
             file_path);
    dup2(log, STDERR_FILENO);
    bed_start(&bed, "ppd", extra);
    send_canaries();
    bed.workers[0].script = p_refuses_with_its_words;
    bed.workers[1].script = p_refuses_with_its_words;
    send_canaries();
    bed.workers[0].script = bed.workers[1].script = bed_refuse_500;
    bed.workers[2].script = bed_refuse_500;
    send_canaries();
    bed_idle(&bed);
    dup2(saved, STDERR_FILENO);
    close(saved);
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        assert_int_equal(
            bed_get(&bed, bed.ports.admin, pages[i], out, sizeof(out)), 200);
        check_clean(pages[i], out, strlen(out));
    }
    bed_get(&bed, bed.ports.metrics, "/metrics", out, sizeof(out));
    check_clean("/metrics", out, strlen(out));
    bed_stop(&bed);
    check_file("the log", log);
    check_file("the decision file", file);
    close(log);
    close(file);
    unlink(log_path);
    unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_show_in_decisions),
        cmocka_unit_test(garbage_on_the_stream),
        cmocka_unit_test(a_restart_forgets),
        cmocka_unit_test(a_hole_for_good_is_named),
        cmocka_unit_test(a_mute_replay_socket),
        cmocka_unit_test(nothing_private_leaves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
