/* What `baton serve` knows of a worker's events before it is in service, and
 * what it says of events that prove wrong: hits disproved, hits that nothing
 * foresaw, Eagle blocks where none are configured. Truth: the rules of
 * engine-wire.md 1.8, 1.13 and 2.4; the vectors of 1.14; and an engine whose
 * cached tokens the test decides. */
#include "event_bed.h"
#include "kv_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

/* V11: hash 11 and its child 12, tokens 1..8. G4: 124, Eagle, tokens
 * [[1,2],[2,3]], host tier, block size 2. V1 in blocks of 2: 7, tokens 1, 2. */
#define V11                                                                    \
    "93cb3ff00000000000009395ab426c6f636b53746f726564910bc094010203040493ab46" \
    "75747572654576656e74910181a1780195ab426c6f636b53746f726564910c0b94050607" \
    "080400"
#define G4                                                                     \
    "93cb3ff00000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f" \
    "686173686573917cb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964" \
    "739292010292"                                                             \
    "0203aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756daa4350555f50" \
    "494e4e454400"

#define ASK                                                                    \
    "{\"model\":\"m\",\"stream\":true,\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12," \
    "13,14,15,16,17,18]}"

static char out[262144];

/* ---- the log ---- */

static int log_fd, saved_fd;

static void log_begin(void)
{
    char path[] = "/tmp/baton-log-XXXXXX";

    log_fd = mkstemp(path);
    assert_true(log_fd >= 0);
    unlink(path);
    saved_fd = dup(STDERR_FILENO);
    dup2(log_fd, STDERR_FILENO);
}

static unsigned int log_count(const char *word)
{
    ssize_t n = pread(log_fd, out, sizeof(out) - 1, 0);
    unsigned int count = 0;

    assert_true(n >= 0 && n < (ssize_t)sizeof(out) - 1);
    out[n] = '\0';
    for (const char *at = out; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

static void log_end(void)
{
    dup2(saved_fd, STDERR_FILENO);
    close(saved_fd);
    close(log_fd);
}

static const char *wanted_word;

static bool log_has(void *arg)
{
    (void)arg;
    return log_count(wanted_word) > 0;
}

static void until_said(const char *word)
{
    wanted_word = word;
    bed_until(&bed, log_has, NULL, word);
}

/* ---- requests ---- */

/* What P says it found cached of each prompt. */
static unsigned int cached;

static void p_says(struct bed_worker *w, struct bt_httpd_request *req)
{
    char buf[1024];
    int n = snprintf(buf, sizeof(buf),
                     "{\"id\":\"c\",\"choices\":[{\"text\":\"x\"}],"
                     "\"usage\":{\"prompt_tokens\":18,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":%u}},"
                     "\"kv_transfer_params\":%s}",
                     cached, bed_params());

    w->held++;
    bt_httpd_reply(req, 200, "application/json", buf, (size_t)n);
}

static void ask(unsigned int times)
{
    for (unsigned int i = 0; i < times; i++) {
        assert_int_equal(
            bed_request(&bed, "/v1/completions", ASK, out, sizeof(out)), 200);
        bed_idle(&bed);
    }
}

static void check_decision(const char *want)
{
    ask(1);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
    if (strstr(out, want) == NULL)
        fail_msg("no %s in %s", want, out);
}

/* Blocks first .. first + count - 1 of a chain of tokens from..., as one. */
static void publish_chain(uint64_t first, size_t count, uint32_t from)
{
    static struct kv_wire wire;
    uint64_t hashes[256];
    const struct kv_wire_store store = {.hashes = hashes,
                                        .count = count,
                                        .first = from,
                                        .size = 4,
                                        .group = -1};

    assert_true(count <= sizeof(hashes) / sizeof(hashes[0]));
    for (size_t i = 0; i < count; i++)
        hashes[i] = first + i;
    wire_begin(&wire, 1.);
    wire_stored(&wire, &store);
    wire_end(&wire, 0);
    publish_bytes(wire.at, wire.bytes);
}

/* ---- before service ---- */

static bool has_w1(void *arg)
{
    (void)arg;
    return bed_metric(&bed,
                      "baton_worker_ready{worker=\"w1\",role=\"decode\"}") > 0;
}

static bool has_w0(void *arg)
{
    (void)arg;
    return bed_metric(&bed,
                      "baton_worker_ready{worker=\"w0\",role=\"prefill\"}") > 0;
}

static double w0_blocks(void)
{
    return bed_metric(&bed, "baton_worker_index_blocks{worker=\"w0\","
                            "role=\"prefill\"}");
}

/* No replay: what comes before the worker has said who it is comes once. */
static void events_before_readiness_stay(void **state)
{
    (void)state;
    event_bed_open(false);
    bed.workers[0].healthy = false;
    event_bed_serve(NULL);
    bed_until(&bed, has_w1, NULL, "the other worker");
    publish(V11);
    until_blocks(2);
    bed.workers[0].healthy = true;
    bed_until(&bed, has_w0, NULL, "the worker");
    assert_int_equal(w0_blocks(), 2);
    until_state(BT_STREAM_EXACT);
    check_decision("\"hit_p\":8,");
    /* Another process: nothing of the first is left, at once. */
    engine.next = 0;
    bed.workers[0].start_time = 7777;
    until_blocks(0);
    publish(V11);
    until_blocks(2);
    check_decision("\"hit_p\":8,");
    event_bed_finish();
}

static bool is_refused(void *arg)
{
    (void)arg;
    return bed_metric(&bed, "baton_workers{state=\"refused\"}") > 0.5;
}

static void a_refusal_keeps_events_of_the_process(void **state)
{
    (void)state;
    event_bed_open(false);
    bed.workers[0].model = "other";
    event_bed_serve(NULL);
    bed_until(&bed, is_refused, NULL, "the refusal");
    publish(V11);
    until_blocks(2);
    bed.workers[0].model = "m";
    bed_ready(&bed);
    assert_int_equal(w0_blocks(), 2);
    check_decision("\"hit_p\":8,");
    event_bed_finish();
}

/* Configured, but nothing has come: not the same as no events at all. */
static void silence_has_its_name(void **state)
{
    (void)state;
    event_bed_open(false);
    bed.workers[0].healthy = false;
    event_bed_serve(NULL);
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    assert_non_null(
        strstr(out, "\"stream\":\"absent\",\"stream_cause\":\"silent\""));
    assert_non_null(
        strstr(out, "\"stream\":\"absent\",\"stream_cause\":\"no_events\""));
    bed.workers[0].healthy = true;
    bed_ready(&bed);
    event_bed_finish();
}

/* ---- what proves wrong ---- */

static unsigned int wanted_replays;

static bool has_replayed(void *arg)
{
    (void)arg;
    return engine.asked == wanted_replays;
}

static void disproved_hits_are_said_and_read_anew(void **state)
{
    unsigned int asked;

    (void)state;
    log_begin();
    event_bed_open(true);
    bed.workers[0].script = p_says;
    event_bed_serve("log: {level: info}");
    bed_ready(&bed);
    publish_chain(1, 4, 1);
    until_blocks(4);
    until_state(BT_STREAM_EXACT);
    cached = 16; /* as predicted: it reports */
    ask(1);
    asked = engine.asked;
    cached = 0;
    ask(20);
    until_said("kv_stream_disproved");
    until_said("kv_stream_resync");
    wanted_replays = asked + 1;
    bed_until(&bed, has_replayed, NULL, "the replay");
    assert_int_equal(log_count("kv_stream_disproved"), 1);
    until_blocks(4); /* the history says so still */
    cached = 16;
    ask(40);
    until_said("kv_stream_recovered");
    /* Again, within the cooldown: said, not asked. */
    cached = 0;
    ask(40);
    bed_turn(&bed, 1.5);
    assert_int_equal(log_count("kv_stream_disproved"), 2);
    assert_int_equal(engine.asked, asked + 1);
    event_bed_finish();
    log_end();
}

/* Field failure C10: all local figures are fine, but nothing ever matches. */
static void hits_that_nothing_foresaw(void **state)
{
    (void)state;
    log_begin();
    event_bed_open(false);
    bed.workers[0].script = p_says;
    event_bed_serve("log: {level: info}");
    bed_ready(&bed);
    for (uint64_t i = 0; i < 4; i++) /* of other prompts: 1,000 in all */
        publish_chain(1 + i * 250, 250, 100000 + (uint32_t)i * 1000);
    until_blocks(1000);
    cached = 16;
    ask(8);
    bed_turn(&bed, 1.5);
    assert_int_equal(log_count("kv_hits_unforeseen"), 0);
    publish_chain(5000, 1, 1000000);
    until_said("worker=w0 checks=8 found=128 blocks=1001");
    ask(4);
    bed_turn(&bed, 1.5);
    assert_int_equal(log_count("kv_hits_unforeseen"), 1);
    assert_int_equal(
        bed_metric(&bed, "baton_worker_hit_unforeseen_tokens_total{worker="
                         "\"w0\",role=\"prefill\"}"),
        12 * 16);
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    assert_non_null(strstr(out, "\"hit_unforeseen_tokens\":192"));
    event_bed_finish();
    log_end();
}

/* ---- healing ---- */

#define FULL "\"vllm_xargs\":{\"kv_cache_report_mode\":\"full\"}"

static void publish_gap(uint64_t first, size_t count, uint32_t from)
{
    engine.next += 3;
    publish_chain(first, count, from);
}

/* A hole that nobody fills: prefills ask to be told again, and what is told
 * again is no second copy, so that one removal ends it. */
static void healing_asks_and_counts_once(void **state)
{
    static struct kv_wire wire;
    const uint64_t last = 4;

    (void)state;
    log_begin();
    event_bed_open(false);
    bed.workers[0].keys = "healing: on";
    event_bed_serve("log: {level: info}");
    bed_ready(&bed);
    publish_chain(1, 4, 1);
    until_state(BT_STREAM_EXACT);
    until_blocks(4);
    ask(1);
    assert_null(strstr(bed.workers[0].last_body, "vllm_xargs"));
    publish_gap(9, 1, 5000);
    until_state(BT_STREAM_DEGRADED);
    until_said("\"kv_healing\"");
    ask(1);
    assert_non_null(strstr(bed.workers[0].last_body, FULL));
    assert_null(strstr(bed.workers[1].last_body, "vllm_xargs"));
    assert_int_equal(bed_metric(&bed, "baton_kv_healing_legs_total"), 1);
    publish_chain(1, 4, 1); /* the engine does as it is asked, twice */
    publish_chain(1, 4, 1);
    wire_begin(&wire, 1.);
    wire_removed(&wire, &last, 1, NULL, -1);
    wire_end(&wire, 0);
    publish_bytes(wire.at, wire.bytes);
    until_blocks(4); /* 1, 2, 3 and 9 */
    event_bed_finish();
    log_end();
}

/* Without the key nothing is added, whatever the stream. */
static void no_healing_unasked(void **state)
{
    (void)state;
    event_bed_open(false);
    event_bed_serve(NULL);
    bed_ready(&bed);
    publish_chain(1, 4, 1);
    until_blocks(4);
    publish_gap(9, 1, 5000);
    until_state(BT_STREAM_DEGRADED);
    bed_turn(&bed, 1.5);
    ask(1);
    assert_null(strstr(bed.workers[0].last_body, "vllm_xargs"));
    event_bed_finish();
}

/* ---- Eagle ---- */

static void ask_index(const char *tokens, const char *want)
{
    struct bed_client c;
    char body[128];

    snprintf(body, sizeof(body), "{\"model_name\":\"m\",\"token_ids\":%s}",
             tokens);
    bed_connect(&bed, &c, bed.ports.admin);
    bed_post(&c, "/query", body);
    assert_int_equal(bed_answer(&c), 200);
    if (strstr(bed_body(&c), want) == NULL)
        fail_msg("no %s in %s", want, bed_body(&c));
    bed_close(&c);
}

static void run_eagle(const char *keys)
{
    log_begin();
    event_bed_open(false);
    bed.block_size = bed.workers[0].block_size = bed.workers[1].block_size = 2;
    bed.model_keys = keys;
    event_bed_serve("log: {level: info}");
    bed_ready(&bed);
    publish(G4);
    until_blocks(1);
    assert_int_equal(log_count("kv_eagle_mismatch"), keys == NULL);
}

static void eagle_queries_hash_eagles_way(void **state)
{
    static const char plain[] =
        "93cb3ff00000000000009195ab426c6f636b53746f7265649107c09201020200";

    (void)state;
    run_eagle("engine: {eagle: on}");
    ask_index("[1,2,3]", "\"cpu\":2,");
    ask_index("[1,2]", "\"cpu\":0,"); /* no window */
    ask_index("[1,2,4]", "\"cpu\":0,");
    /* The reverse: plain blocks. */
    publish(plain);
    until_blocks(2);
    publish(plain);
    until_said("kv_eagle_mismatch");
    bed_turn(&bed, 0.2);
    assert_int_equal(log_count("kv_eagle_mismatch"), 1);
    assert_int_equal(
        bed_metric(&bed, "baton_kv_event_errors_total{reason=\"eagle\"}"), 2);
    event_bed_finish();
    log_end();
}

static void eagle_events_unasked_are_said_once(void **state)
{
    (void)state;
    run_eagle(NULL);
    publish(G4);
    bed_turn(&bed, 0.2);
    assert_int_equal(log_count("kv_eagle_mismatch"), 1);
    assert_int_equal(
        bed_metric(&bed, "baton_kv_event_errors_total{reason=\"eagle\"}"), 2);
    ask_index("[1,2,3]", "\"cpu\":0,");
    event_bed_finish();
    log_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_before_readiness_stay),
        cmocka_unit_test(a_refusal_keeps_events_of_the_process),
        cmocka_unit_test(silence_has_its_name),
        cmocka_unit_test(disproved_hits_are_said_and_read_anew),
        cmocka_unit_test(hits_that_nothing_foresaw),
        cmocka_unit_test(healing_asks_and_counts_once),
        cmocka_unit_test(no_healing_unasked),
        cmocka_unit_test(eagle_queries_hash_eagles_way),
        cmocka_unit_test(eagle_events_unasked_are_said_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
