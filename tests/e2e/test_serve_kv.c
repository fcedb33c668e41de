/* KV events end to end: an engine's PUB and replay ROUTER, the server's index,
 * and what a decision says of it; and that nothing private leaves the server.
 * Truth: the vectors of engine-wire.md 1.14 and the rules of 1.8 - 1.10. */
#include "event_bed.h"

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

static char out[262144];

static bool is_refused(void *arg)
{
    (void)arg;
    return bed_metric(&bed, "baton_workers{state=\"refused\"}") > 0.5;
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
    event_bed_start(true, V11);
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
    event_bed_finish();
}

static void garbage_on_the_stream(void **state)
{
    static unsigned char deep[10000];
    char cut[64];

    (void)state;
    event_bed_start(true, NULL);
    until_state(BT_STREAM_EXACT);
    zmq_send(engine.pub, "kv", 2, ZMQ_SNDMORE); /* two frames */
    zmq_send(engine.pub, "x", 1, 0);
    send_frames("1234567", 7, "", 0);
    publish("");
    snprintf(cut, sizeof(cut), "%.60s", V2);
    publish(cut);
    publish("dbffffffff");
    memset(deep, 0x91, sizeof(deep));
    publish_bytes(deep, sizeof(deep));
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
    event_bed_finish();
}

/* Another process: seen by its start time, its history read from zero. */
static void a_restart_forgets(void **state)
{
    (void)state;
    event_bed_start(true, V11);
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
    event_bed_finish();
}

/* No replay socket: what is missing stays missing, and is named. */
static void a_hole_for_good_is_named(void **state)
{
    (void)state;
    event_bed_start(false, NULL);
    publish_as(0, V11);
    until_state(BT_STREAM_EXACT);
    until_blocks(2);
    publish_as(5, V1);
    until_state(BT_STREAM_DEGRADED);
    check_decision(8, "degraded");
    event_bed_finish();
}

/* A replay socket that never answers: the live stream serves. */
static void a_mute_replay_socket(void **state)
{
    (void)state;
    event_bed_start(true, NULL);
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
    event_bed_finish();
}

/* Field failure C10: its own word was right, its events say otherwise. */
static void a_block_size_in_events_is_refused(void **state)
{
    /* V2 with two hashes, 3 and 4, of two tokens each. */
    static const char other[] =
        "93cb3ff00000000000009188a474797065ab426c6f636b53746f726564ac626c6f63"
        "6b5f686173686573920304b1706172656e745f626c6f636b5f68617368c0a9746f6b"
        "656e5f6964739401020304aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d"
        "656469756da3475055a96c6f72615f6e616d65c000";

    (void)state;
    event_bed_start(true, NULL);
    until_state(BT_STREAM_EXACT);
    publish(other);
    bed_until(&bed, is_refused, NULL, "the refusal");
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    assert_non_null(strstr(out, "block size is 2 tokens in its events"));
    assert_int_equal(
        bed_metric(&bed, "baton_kv_event_errors_total{reason=\"block_size\"}"),
        1);
    /* Another process of it may be right. */
    engine.next = 0;
    bed.workers[0].start_time = 8888;
    bed_ready(&bed);
    until_state(BT_STREAM_EXACT);
    event_bed_finish();
}

/* The rows of each rank's stream. */
static void streams_show_in_metrics(void **state)
{
    (void)state;
    event_bed_start(false, NULL);
    publish_as(0, V11);
    until_blocks(2);
    assert_int_equal(bed_metric(&bed, "baton_kv_stream_cause{worker=\"w0\","
                                      "rank=\"0\",cause=\"from_start\"}"),
                     1);
    /* V11's time is the first second of 1970. */
    assert_true(bed_metric(&bed, "baton_kv_stream_lag_seconds{worker=\"w0\","
                                 "rank=\"0\"}") > 1e9);
    publish_as(2, V7);
    until_state(BT_STREAM_DEGRADED);
    assert_int_equal(bed_metric(&bed, "baton_kv_stream_cause{worker=\"w0\","
                                      "rank=\"0\",cause=\"no_replay\"}"),
                     1);
    assert_int_equal(bed_metric(&bed, "baton_kv_stream_parked{worker=\"w0\","
                                      "rank=\"0\"}"),
                     0);
    assert_int_equal(bed_metric(&bed, "baton_kv_event_batches_total"), 2);
    event_bed_finish();
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
        cmocka_unit_test(a_block_size_in_events_is_refused),
        cmocka_unit_test(streams_show_in_metrics),
        cmocka_unit_test(nothing_private_leaves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
