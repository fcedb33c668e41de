/* Failing workers and leaving clients (field-failures.md A08-A11, A13, A19,
 * B01-B06, B16-B20 for this dialect). Each case ends in one stated outcome,
 * nothing stays booked, and the fallback has a name. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEXT   "\"prompt\":\"a prompt that is certainly longer than two blocks\""
#define STREAM "{\"model\":\"m\"," TEXT ",\"stream\":true}"

static struct bed bed;
static char out[65536];

static void start(const char *roles, const char *extra)
{
    bed_start(&bed, roles, extra);
}

static void finish(void)
{
    bed_idle(&bed);
    bed_stop(&bed);
}

static int completions(const char *body)
{
    return bed_request(&bed, "/v1/completions", body, out, sizeof(out));
}

static double count(const char *row)
{
    return bed_metric(&bed, row);
}

static bool has_params(const struct bed_worker *w)
{
    return strstr(w->last_body, "remote_block_ids") != NULL;
}

/* ---- leg P ---- */

static void p_400(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] = "{\"error\":{\"message\":\"context too long\","
                               "\"type\":\"BadRequestError\",\"code\":400}}";

    (void)w;
    bt_httpd_reply(req, 400, "application/json", body, strlen(body));
}

static void p_refusal_is_passed_on(void **state)
{
    (void)state;
    start("ppd", NULL);
    bed.workers[0].script = bed.workers[1].script = p_400;
    assert_int_equal(completions(STREAM), 400);
    assert_non_null(strstr(out, "context too long"));
    assert_int_equal(bed.workers[0].posts + bed.workers[1].posts, 1);
    assert_int_equal(bed.workers[2].posts, 0);
    bed_idle(&bed);
    assert_true(count("baton_requests_total{outcome=\"client_error\"}") == 1);
    assert_true(count("baton_upstream_answers_total{class=\"4xx\"}") == 1);
    finish();
}

static void p_failing_once(struct bed_worker *w, struct bt_httpd_request *req)
{
    /* the first prefill worker asked fails, whichever it is */
    for (size_t i = 0; i < w->bed->count; i++)
        if (&w->bed->workers[i] != w && w->bed->workers[i].n > 0) {
            bed_well_behaved(w, req);
            return;
        }
    w->n++;
    bed_refuse_500(w, req);
}

static void p_500_goes_to_another(void **state)
{
    (void)state;
    start("ppd", NULL);
    bed.workers[0].script = bed.workers[1].script = p_failing_once;
    assert_int_equal(completions(STREAM), 200);
    assert_int_equal(bed.workers[0].posts, 1);
    assert_int_equal(bed.workers[1].posts, 1);
    assert_true(has_params(&bed.workers[2]));
    bed_idle(&bed);
    assert_true(count("baton_retries_total") == 1);
    finish();
}

static void p_reset(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_stream_begin(req, 200, "application/json", NULL, NULL);
    bt_httpd_stream_abort(req);
}

static void p_error_200(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] = "{\"error\":{\"message\":\"x\"}}";

    (void)w;
    bt_httpd_reply(req, 200, "application/json", body, strlen(body));
}

static void p_html(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_reply(req, 200, "text/html", "upstream connect error", 22);
}

static void p_empty(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_reply(req, 200, "application/json", "", 0);
}

static void p_no_params(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] =
        "{\"choices\":[{\"text\":\"x\"}],\"kv_transfer_params\":null}";

    (void)w;
    bt_httpd_reply(req, 200, "application/json", body, strlen(body));
}

static void p_no_blocks(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] =
        "{\"choices\":[{\"text\":\"x\"}],\"kv_transfer_params\":{"
        "\"do_remote_prefill\":true,\"remote_block_ids\":[],"
        "\"remote_engine_id\":\"e\",\"remote_request_id\":\"r\","
        "\"remote_host\":\"h\",\"remote_port\":1}}";

    (void)w;
    bt_httpd_reply(req, 200, "application/json", body, strlen(body));
}

/* Every way in which all P's fail ends in a plain request to D, by name. */
static void p_failures_fall_back(void **state)
{
    static const struct {
        bed_script_fn script;
        const char *fallback;
    } cases[] = {
        {bed_refuse_500, "prefill_failed"}, {p_reset, "prefill_failed"},
        {p_error_200, "prefill_failed"},    {p_html, "prefill_failed"},
        {p_empty, "prefill_failed"},        {p_no_params, "no_params"},
        {p_no_blocks, "no_params"},
    };
    char row[128];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start("ppd", NULL);
        bed.workers[0].script = bed.workers[1].script = cases[i].script;
        assert_int_equal(completions(STREAM), 200);
        assert_non_null(strstr(out, "[DONE]"));
        assert_false(has_params(&bed.workers[2]));
        /* plain means the client's own bytes */
        assert_string_equal(bed.workers[2].last_body, STREAM);
        bed_idle(&bed);
        snprintf(row, sizeof(row), "baton_plan_fallbacks_total{reason=\"%s\"}",
                 cases[i].fallback);
        if (count(row) != 1)
            fail_msg("case %zu: no %s", i, row);
        finish();
    }
}

static void p_timeout_is_aborted_there(void **state)
{
    (void)state;
    start("pd", "timeouts: {prefill: 300ms}");
    bed.workers[0].script = bed_hang;
    assert_int_equal(completions(STREAM), 200);
    assert_int_equal(bed.workers[0].gone, 1);
    finish();
}

static bool worker_is_unhealthy(void *arg)
{
    (void)arg;
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    return strstr(out, "unhealthy") != NULL;
}

static void no_prefill_worker(void **state)
{
    (void)state;
    start("d", NULL);
    assert_int_equal(completions(STREAM), 200);
    bed_idle(&bed);
    assert_true(count("baton_plan_fallbacks_total{reason=\"no_prefill\"}") ==
                1);
    finish();
    start("pd", "pd: required\ntimeouts: {queue: 200ms}");
    bed.workers[0].healthy = false;
    bed_until(&bed, worker_is_unhealthy, NULL, "unhealthy in the admin API");
    assert_int_equal(completions(STREAM), 503);
    assert_int_equal(bed.workers[1].posts, 0);
    assert_non_null(strstr(out, "\"error\":{"));
    finish();
}

/* ---- leg D, before a byte went out ---- */

static void d_400(struct bed_worker *w, struct bt_httpd_request *req)
{
    p_400(w, req);
}

static void d_refusal_is_passed_on(void **state)
{
    (void)state;
    start("pdd", NULL);
    bed.workers[1].script = bed.workers[2].script = d_400;
    assert_int_equal(completions(STREAM), 400);
    assert_non_null(strstr(out, "context too long"));
    assert_int_equal(bed.workers[1].posts + bed.workers[2].posts, 1);
    finish();
}

/* Fails a leg with parameters; a plain one is served. */
static void d_cannot_load(struct bed_worker *w, struct bt_httpd_request *req)
{
    if (has_params(w))
        bed_refuse_500(w, req);
    else
        bed_well_behaved(w, req);
}

static void d_load_failure_recomputes(void **state)
{
    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_cannot_load;
    assert_int_equal(completions(STREAM), 200);
    assert_int_equal(bed.workers[1].posts, 2);
    assert_string_equal(bed.workers[1].last_body, STREAM);
    bed_idle(&bed);
    assert_true(
        count("baton_plan_fallbacks_total{reason=\"handoff_failed\"}") == 1);
    finish();
}

static void d_empty_stream(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    bt_httpd_stream_end(req);
}

static void d_error_first(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] = "data: {\"error\":{\"message\":\"no kv\"}}\n\n"
                               "data: [DONE]\n\n";

    (void)w;
    bt_httpd_reply(req, 200, "text/event-stream", body, strlen(body));
}

static void d_html_502(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_reply(req, 502, "text/html", "<html>bad</html>", 16);
}

static void d_text_503(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_reply(req, 503, "text/plain", "busy", 4);
}

static void d_finish_error(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] = "data: {\"choices\":[{\"index\":0,\"text\":\"\","
                               "\"finish_reason\":\"error\"}]}\n\n"
                               "data: [DONE]\n\n";

    (void)w;
    bt_httpd_reply(req, 200, "text/event-stream", body, strlen(body));
}

/* All D's fail before a byte: a JSON error of OpenAI shape, never a 200. */
static void d_failures_end_in_an_error(void **state)
{
    static const bed_script_fn scripts[] = {
        d_empty_stream, d_error_first,  d_html_502, d_text_503,
        d_finish_error, bed_refuse_500, p_reset,    p_empty};

    (void)state;
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        int status;

        start("pdd", NULL);
        bed.workers[1].script = bed.workers[2].script = scripts[i];
        status = completions(STREAM);
        if (status < 500 || strstr(out, "\"error\":{") == NULL)
            fail_msg("case %zu: %d %s", i, status, out);
        assert_true(bed.workers[1].posts + bed.workers[2].posts >= 2);
        finish();
    }
}

static void d_hangs(void **state)
{
    (void)state;
    start("pdd", "timeouts: {handoff: 300ms, prefill: 300ms}");
    bed.workers[1].script = bed_hang;
    bed.workers[2].script = bed_hang;
    assert_int_equal(completions(STREAM), 504);
    assert_true(bed.workers[1].gone + bed.workers[2].gone >= 2);
    finish();
}

static void d_refused_keeps_the_handoff(void **state)
{
    (void)state;
    start("pdd", "health: {interval: 60s, stats_interval: 60s}");
    /* D1 is gone, nobody has noticed yet; D2 gets the same parameters. */
    bt_httpd_stop(bed.workers[1].httpd);
    bed.workers[1].httpd = NULL;
    for (int i = 0; i < 8; i++)
        assert_int_equal(completions(STREAM), 200);
    assert_int_equal(bed.workers[2].posts, 8);
    assert_true(has_params(&bed.workers[2]));
    bed_idle(&bed);
    assert_true(
        count("baton_plan_fallbacks_total{reason=\"handoff_failed\"}") == 0);
    finish();
}

static void dead_worker_is_noticed(void **state)
{
    (void)state;
    start("ppdd", NULL);
    bt_httpd_stop(bed.workers[0].httpd);
    bed.workers[0].httpd = NULL;
    bed_until(&bed, worker_is_unhealthy, NULL, "unhealthy in the admin API");
    assert_int_equal(completions(STREAM), 200);
    finish();
}

/* ---- leg D, after bytes ---- */

#define CHUNK "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"

static void d_two_then_end(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    bt_httpd_stream_write(req, CHUNK CHUNK, 2 * strlen(CHUNK));
    bt_httpd_stream_end(req);
}

static size_t occurrences(const char *text, const char *word)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n++;
    return n;
}

static void a_stream_without_its_end(void **state)
{
    (void)state;
    start("pdd", NULL);
    bed.workers[1].script = bed.workers[2].script = d_two_then_end;
    assert_int_equal(completions(STREAM), 200);
    assert_int_equal(occurrences(out, "\"text\":\"a\""), 2);
    assert_int_equal(occurrences(out, "\"error\":{"), 1);
    assert_null(strstr(out, "[DONE]"));
    assert_null(strstr(out, "finish_reason"));
    assert_int_equal(bed.workers[1].posts + bed.workers[2].posts, 1);
    bed_idle(&bed);
    assert_true(count("baton_requests_total{outcome=\"truncated\"}") == 1);
    finish();
}

/* The same stream cut at every byte: the client's bytes are D's bytes. */
#define ODD                                                                    \
    ": keep-alive\n\ndata:{\"choices\":[]}\r\n\r\ndata: {\"choices\":[{"       \
    "\"index\":0,\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"index\":0,"        \
    "\"text\":\"\xe5\x8c\x97\"}]}\n\ndata: {\"choices\":[{\"index\":0,"        \
    "\"text\":\"b\",\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\n\n"

struct slow_stream {
    struct bt_httpd_request *req;
    ev_timer timer;
    size_t at, step;
};

static void on_slow(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct slow_stream *s = timer->data;
    size_t left = strlen(ODD) - s->at, n = left < s->step ? left : s->step;

    (void)events;
    bt_httpd_stream_write(s->req, &ODD[s->at], n);
    s->at += n;
    if (s->at == strlen(ODD)) {
        ev_timer_stop(loop, timer);
        bt_httpd_stream_end(s->req);
    }
}

static struct slow_stream slow;

static void d_odd_cuts(struct bed_worker *w, struct bt_httpd_request *req)
{
    slow.req = req;
    slow.at = 0;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    ev_timer_init(&slow.timer, on_slow, 0., 0.0005);
    slow.timer.data = &slow;
    ev_timer_start(w->bed->loop, &slow.timer);
}

static void bytes_are_passed_as_they_come(void **state)
{
    static const size_t steps[] = {1, 2, 3, 7, 64, 4096};

    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_odd_cuts;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        slow.step = steps[i];
        assert_int_equal(completions(STREAM), 200);
        assert_string_equal(out, ODD);
    }
    bed_idle(&bed);
    assert_true(count("baton_requests_total{outcome=\"ok\"}") == 6);
    /* two token events each, however they were cut */
    assert_true(count("baton_request_output_tokens_total") == 12);
    finish();
}

/* ---- each chunk leaves at once ---- */

static struct bt_httpd_request *held;

static void d_one_chunk(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    held = req;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    bt_httpd_stream_write(req, CHUNK, strlen(CHUNK));
}

static bool client_has_chunk(void *arg)
{
    struct bed_client *c = arg;

    return strstr(c->in, "\"text\":\"a\"") != NULL;
}

static void chunks_are_not_gathered(void **state)
{
    struct bed_client c;

    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_one_chunk;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, client_has_chunk, &c, "the chunk, before the next is sent");
    bt_httpd_stream_write(held, "data: [DONE]\n\n", 14);
    bt_httpd_stream_end(held);
    assert_int_equal(bed_answer(&c), 200);
    bed_close(&c);
    finish();
}

static void connection_lost_after_bytes(void **state)
{
    struct bed_client c;

    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_one_chunk;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, client_has_chunk, &c, "a first chunk");
    bt_httpd_stream_abort(held);
    assert_int_equal(bed_answer(&c), 200);
    assert_int_equal(occurrences(c.in, "\"error\":{"), 1);
    assert_null(strstr(c.in, "[DONE]"));
    bed_close(&c);
    bed_idle(&bed);
    assert_true(count("baton_requests_total{outcome=\"truncated\"}") == 1);
    assert_int_equal(bed.workers[1].posts, 1);
    finish();
}

/* D's own error event goes through once, its [DONE] does not. */
static void an_error_event_after_bytes(void **state)
{
    static const char bytes[] = "data: {\"error\":{\"message\":\"died\"}}\n\n"
                                "data: [DONE]\n\n";
    struct bed_client c;

    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_one_chunk;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, client_has_chunk, &c, "a first chunk");
    bt_httpd_stream_write(held, bytes, strlen(bytes));
    assert_int_equal(bed_answer(&c), 200);
    assert_int_equal(occurrences(c.in, "\"error\":{"), 1);
    assert_non_null(strstr(c.in, "died"));
    assert_null(strstr(c.in, "[DONE]"));
    bed_close(&c);
    bed_idle(&bed);
    assert_true(count("baton_requests_total{outcome=\"truncated\"}") == 1);
    finish();
}

/* ---- clients that leave or do not read ---- */

static bool posted(void *arg)
{
    return ((struct bed_worker *)arg)->posts > 0;
}

static bool is_gone(void *arg)
{
    return ((struct bed_worker *)arg)->gone > 0;
}

static void client_leaves_during(size_t worker)
{
    struct bed_client c;

    start("pd", NULL);
    bed.workers[worker].script = bed_hang;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, posted, &bed.workers[worker], "the leg is out");
    bed_close(&c);
    bed_until(&bed, is_gone, &bed.workers[worker], "the leg is aborted");
    bed_idle(&bed);
    assert_true(count("baton_requests_total{outcome=\"cancelled\"}") == 1);
    assert_int_equal(bed.workers[1].posts, worker == 1);
    finish();
}

static void client_leaves_in_prefill(void **state)
{
    (void)state;
    client_leaves_during(0);
}

static void client_leaves_in_handoff(void **state)
{
    (void)state;
    client_leaves_during(1);
}

static void client_leaves_in_decode(void **state)
{
    struct bed_client c;

    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_one_chunk;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, client_has_chunk, &c, "a first chunk");
    bed_close(&c);
    bed_until(&bed, is_gone, &bed.workers[1], "leg D is aborted");
    bed_idle(&bed);
    assert_true(count("baton_client_disconnects_total{phase=\"decoding\"}") ==
                1);
    finish();
}

/* D offers 64 MiB; a client that does not read must stop it early. */
struct flood {
    struct bt_httpd_request *req;
    uint64_t sent;
    bool full;
};
static struct flood flood;
static char big[32768];

static void pour(void *arg)
{
    struct flood *f = arg;

    while (f->sent < (64u << 20)) {
        enum bt_status status =
            bt_httpd_stream_write(f->req, big, sizeof(big) - 1);

        if (status == BT_LIMIT)
            return;
        f->sent += sizeof(big) - 1;
        if (status == BT_AGAIN) {
            f->full = true;
            return;
        }
    }
}

static void d_flood(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    memset(big, 'x', sizeof(big) - 1);
    memcpy(big, "data: {\"choices\":[{\"text\":\"", 26);
    memcpy(big + sizeof(big) - 8, "\"}]}\n\n", 7);
    flood = (struct flood){.req = req};
    bt_httpd_stream_begin(req, 200, "text/event-stream", pour, &flood);
    pour(&flood);
}

static void a_client_that_does_not_read(void **state)
{
    struct bed_client c;
    uint64_t before;

    (void)state;
    start("pd", "timeouts: {client_send: 1s}");
    bed.workers[1].script = d_flood;
    bed_connect(&bed, &c, bed.ports.listen);
    ev_io_stop(bed.loop, &c.io); /* never reads */
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, posted, &bed.workers[1], "leg D is out");
    do { /* until the flow has stopped */
        before = flood.sent;
        bed_turn(&bed, 0.2);
    } while (flood.sent != before);
    /* stream buffer + socket buffers on both hops, far from 64 MiB */
    assert_true(flood.sent < (16u << 20));
    bed_until(&bed, is_gone, &bed.workers[1], "the slow client is cut");
    bed_close(&c);
    bed_idle(&bed);
    assert_true(count("baton_http_slow_clients_total") == 1);
    finish();
}

/* ---- identity ---- */

static void other_block_size_is_refused(void **state)
{
    (void)state;
    start("pdd", NULL);
    /* D2 comes back as another process with another block size. */
    bed.workers[2].block_size = 64;
    bed.workers[2].start_time = 5000;
    for (int i = 0; i < 200; i++) {
        bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
        if (strstr(out, "\"state\":\"refused\"") != NULL)
            break;
        bed_turn(&bed, 0.05);
    }
    if (strstr(out, "block size is 64") == NULL)
        fail_msg("%s", out);
    for (int i = 0; i < 4; i++)
        assert_int_equal(completions(STREAM), 200);
    assert_int_equal(bed.workers[2].posts, 0);
    finish();
}

/* ---- drain ---- */

static void draining_refuses_and_finishes(void **state)
{
    struct bed_client c;

    (void)state;
    start("pd", NULL);
    bed.workers[1].script = d_one_chunk;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, client_has_chunk, &c, "a first chunk");
    bt_serve_drain(bed.serve);
    bt_httpd_stream_write(held, "data: [DONE]\n\n", 14);
    bt_httpd_stream_end(held);
    assert_int_equal(bed_answer(&c), 200);
    assert_non_null(strstr(c.in, "[DONE]"));
    bed_close(&c);
    assert_true(bt_serve_drained_clean(bed.serve));
    bed_stop(&bed);
}

/* ---- tokenizer ---- */

static void tokenizes(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char ids[] =
        "{\"count\":32,\"tokens\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,"
        "18,19,20,21,22,23,24,25,26,27,28,29,30,31,32]}";

    if (strcmp(bt_httpd_path(req), "/tokenize") == 0)
        bt_httpd_reply(req, 200, "application/json", ids, strlen(ids));
    else
        bed_well_behaved(w, req);
}

static void never_tokenizes(struct bed_worker *w, struct bt_httpd_request *req)
{
    if (strcmp(bt_httpd_path(req), "/tokenize") != 0)
        bed_well_behaved(w, req);
}

static void fails_to_tokenize(struct bed_worker *w,
                              struct bt_httpd_request *req)
{
    if (strcmp(bt_httpd_path(req), "/tokenize") == 0)
        bed_refuse_500(w, req);
    else
        bed_well_behaved(w, req);
}

static void text_is_tokenized_by_a_worker(void **state)
{
    static const struct {
        bed_script_fn script;
        const char *row;
    } cases[] = {
        {tokenizes, "baton_kv_index_query_tokens_total"},
        {never_tokenizes,
         "baton_plan_fallbacks_total{reason=\"tokenize_late\"}"},
        {fails_to_tokenize,
         "baton_plan_fallbacks_total{reason=\"tokenize_failed\"}"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start("pd", "tokenizer: worker");
        bed.workers[0].script = bed.workers[1].script = cases[i].script;
        assert_int_equal(completions(STREAM), 200);
        bed_idle(&bed);
        if (count(cases[i].row) != (i == 0 ? 32 : 1))
            fail_msg("case %zu: %s is %g", i, cases[i].row,
                     count(cases[i].row));
        finish();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(p_refusal_is_passed_on),
        cmocka_unit_test(p_500_goes_to_another),
        cmocka_unit_test(p_failures_fall_back),
        cmocka_unit_test(p_timeout_is_aborted_there),
        cmocka_unit_test(no_prefill_worker),
        cmocka_unit_test(d_refusal_is_passed_on),
        cmocka_unit_test(d_load_failure_recomputes),
        cmocka_unit_test(d_failures_end_in_an_error),
        cmocka_unit_test(d_hangs),
        cmocka_unit_test(d_refused_keeps_the_handoff),
        cmocka_unit_test(dead_worker_is_noticed),
        cmocka_unit_test(a_stream_without_its_end),
        cmocka_unit_test(bytes_are_passed_as_they_come),
        cmocka_unit_test(chunks_are_not_gathered),
        cmocka_unit_test(connection_lost_after_bytes),
        cmocka_unit_test(an_error_event_after_bytes),
        cmocka_unit_test(client_leaves_in_prefill),
        cmocka_unit_test(client_leaves_in_handoff),
        cmocka_unit_test(client_leaves_in_decode),
        cmocka_unit_test(a_client_that_does_not_read),
        cmocka_unit_test(other_block_size_is_refused),
        cmocka_unit_test(draining_refuses_and_finishes),
        cmocka_unit_test(text_is_tokenized_by_a_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
