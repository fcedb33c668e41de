/* The open-loop client against a canned server on the same loop: what each
 * kind of answer is called, texts cut at any byte, leaving, dropping, records.
 * Times are only checked for order, never for size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/client.h"
#include "baton/orchestrator/httpd.h"
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT(text)                                                            \
    "data: {\"choices\":[{\"index\":0,\"text\":\"" text                        \
    "\",\"finish_reason\":null}]}\n\n"
#define LAST                                                                   \
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
#define USAGE(n)                                                               \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,"                    \
    "\"completion_tokens\":" n                                                 \
    ",\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n"
#define DONE "data: [DONE]\n\n"

struct server {
    struct ev_loop *loop;
    struct bt_httpd *httpd;
    int status;
    const char *answer;
    bool cut;     /* abort instead of ending */
    bool hang;    /* never answer */
    size_t piece; /* bytes a write, 0 = all */
    unsigned int requests, gone;
    char body[512];
    struct bt_client *client;
};

static void on_gone(void *arg)
{
    struct server *s = arg;

    s->gone++;
}

static void handle(void *arg, struct bt_httpd_request *req)
{
    struct server *s = arg;
    size_t bytes = 0, left = strlen(s->answer);
    const char *body = bt_httpd_body(req, &bytes), *at = s->answer;

    s->requests++;
    if (bytes < sizeof(s->body)) {
        memcpy(s->body, body, bytes);
        s->body[bytes] = '\0';
    }
    bt_httpd_watch(req, on_gone, NULL, s);
    if (s->hang)
        return;
    if (s->status != 200) {
        bt_httpd_reply(req, s->status, "application/json", s->answer, left);
        return;
    }
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    while (left) {
        size_t part = s->piece && s->piece < left ? s->piece : left;

        (void)bt_httpd_stream_write(req, at, part);
        at += part;
        left -= part;
    }
    if (s->cut)
        bt_httpd_stream_abort(req);
    else
        bt_httpd_stream_end(req);
}

static const char *expect(void *arg, size_t request, size_t *bytes_out)
{
    (void)arg;
    (void)request;
    *bytes_out = 3;
    return "a\"c";
}

static uint32_t leave_at_once(void *arg, size_t request)
{
    (void)arg;
    (void)request;
    return 0;
}

static uint32_t leave_after_two(void *arg, size_t request)
{
    (void)arg;
    (void)request;
    return 2;
}

static void on_progress(void *arg, size_t ended, size_t total)
{
    struct server *s = arg;

    if (ended == total)
        ev_break(s->loop, EVBREAK_ONE);
}

static void on_deadline(struct ev_loop *loop, struct ev_timer *timer, int e)
{
    (void)timer;
    (void)e;
    ev_break(loop, EVBREAK_ONE);
}

static void make_workload(struct bt_workload *w, size_t count)
{
    memset(w, 0, sizeof(*w));
    for (size_t i = 0; i < count; i++) {
        struct bt_workload_request r = {.token_count = 3, .max_tokens = 3};
        uint32_t *tokens;

        assert_int_equal(bt_workload_append(w, &r, &tokens), BT_OK);
        tokens[0] = 7;
        tokens[1] = 4294967295u;
        tokens[2] = 0;
    }
}

/* Run `count` requests; the record of the first one. */
static struct bt_client_record run(struct server *s, size_t count,
                                   uint32_t in_flight_max,
                                   uint32_t (*leave)(void *, size_t),
                                   struct bt_client_summary *summary)
{
    const struct bt_client_slo slo = {1000000000000, 1000000000000};
    struct bt_client_record record;
    struct bt_client_spec spec;
    struct bt_workload w;
    struct ev_timer deadline;
    char url[64], error[256];

    make_workload(&w, count);
    s->loop = ev_loop_new(EVFLAG_AUTO);
    assert_non_null(s->loop);
    assert_int_equal(bt_httpd_start(s->loop, "127.0.0.1", 0, NULL, handle, s,
                                    &s->httpd, error, sizeof(error)),
                     BT_OK);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bt_httpd_port(s->httpd));
    memset(&spec, 0, sizeof(spec));
    spec.url = url;
    spec.model = "demo";
    spec.workload = &w;
    spec.in_flight_max = in_flight_max;
    spec.request_timeout_ns = s->hang && !leave ? 100000000 : 20000000000;
    spec.expect = expect;
    spec.leave_after = leave;
    spec.progress = on_progress;
    spec.arg = s;
    assert_int_equal(bt_client_create(s->loop, &spec, &s->client), BT_OK);
    ev_timer_init(&deadline, on_deadline, 30., 0.);
    ev_timer_start(s->loop, &deadline);
    bt_client_start(s->client);
    ev_run(s->loop, 0);
    ev_timer_stop(s->loop, &deadline);
    assert_true(bt_client_is_done(s->client));
    assert_int_equal(bt_client_in_flight(s->client), 0);
    record = *bt_client_record_at(s->client, 0);
    if (summary)
        assert_int_equal(bt_client_summarise(s->client, &slo, summary), BT_OK);
    bt_client_destroy(s->client);
    bt_httpd_stop(s->httpd);
    ev_loop_destroy(s->loop);
    bt_workload_fini(&w);
    return record;
}

#define WHOLE EVENT("a") EVENT("\\\"") EVENT("c") LAST USAGE("3") DONE

static void test_a_right_answer(void **state)
{
    struct server s = {.status = 200, .answer = WHOLE};
    struct bt_client_summary summary;
    struct bt_client_record r = run(&s, 1, 0, NULL, &summary);

    (void)state;
    assert_int_equal(r.result, BT_CLIENT_OK);
    assert_int_equal(r.http, 200);
    assert_int_equal(r.answer_tokens, 3);
    assert_int_equal(r.prompt_tokens, 3);
    assert_int_equal(r.cached_tokens, 2);
    assert_true(r.ttft_ns >= 0 && r.ttst_ns >= r.ttft_ns);
    assert_true(r.tpot_ns >= 0 && r.e2e_ns >= r.ttst_ns);
    assert_non_null(strstr(s.body, "\"model\":\"demo\""));
    assert_non_null(strstr(s.body, "\"prompt\":[7,4294967295,0]"));
    assert_non_null(strstr(s.body, "\"max_tokens\":3"));
    assert_non_null(strstr(s.body, "\"stream\":true"));
    assert_int_equal(summary.ok, 1);
    assert_int_equal(summary.errors, 0);
    assert_int_equal(summary.cached_tokens, 2);
    assert_true(summary.slo_share == 1);
}

static void test_any_cut_gives_the_same(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 12; piece++) {
        struct server s = {.status = 200, .answer = WHOLE, .piece = piece};
        struct bt_client_record r = run(&s, 1, 0, NULL, NULL);

        assert_int_equal(r.result, BT_CLIENT_OK);
        assert_int_equal(r.answer_tokens, 3);
    }
}

struct verdict {
    const char *answer;
    enum bt_client_result result;
};

static const struct verdict verdicts[] = {
    {EVENT("a") EVENT("b") EVENT("c") LAST USAGE("3") DONE, BT_CLIENT_WRONG},
    {EVENT("a") EVENT("\\\"") LAST USAGE("3") DONE, BT_CLIENT_WRONG},
    {EVENT("a") EVENT("\\\"") EVENT("c") LAST USAGE("4") DONE, BT_CLIENT_WRONG},
    {EVENT("a\\\"c") LAST DONE, BT_CLIENT_OK},
    {EVENT("a") EVENT("\\\"") EVENT("c") LAST, BT_CLIENT_STREAM},
    {EVENT("a") EVENT("\\\"") EVENT("c") DONE, BT_CLIENT_STREAM},
    {EVENT("a") "data: {\"error\":{\"message\":\"x\"}}\n\n" DONE,
     BT_CLIENT_STREAM},
    {EVENT("a") "data: {broken\n\n" DONE, BT_CLIENT_STREAM},
    {": comment\r\n\r\ndata:{\"choices\":[{\"text\":\"a\\\"c\"}]}\r\n\r\n" LAST
         DONE,
     BT_CLIENT_OK},
};

static void test_verdicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++) {
        struct server s = {.status = 200, .answer = verdicts[i].answer};
        struct bt_client_record r = run(&s, 1, 0, NULL, NULL);

        if (r.result != verdicts[i].result)
            fail_msg("answer %zu is '%s'", i, bt_client_result_name(r.result));
    }
}

static void test_error_status(void **state)
{
    struct server s = {.status = 503, .answer = "{\"error\":{}}"};
    struct bt_client_summary summary;
    struct bt_client_record r = run(&s, 2, 0, NULL, &summary);

    (void)state;
    assert_int_equal(r.result, BT_CLIENT_HTTP);
    assert_int_equal(r.http, 503);
    assert_true(r.ttft_ns == -1 && r.ttst_ns == -1 && r.tpot_ns == -1);
    assert_int_equal(summary.errors, 2);
    assert_true(summary.slo_share == 0);
}

static void test_a_cut_connection(void **state)
{
    struct server s = {.status = 200, .answer = EVENT("a"), .cut = true};
    struct bt_client_record r = run(&s, 1, 0, NULL, NULL);

    (void)state;
    assert_int_equal(r.result, BT_CLIENT_STREAM);
}

static void test_time_limit(void **state)
{
    struct server s = {.status = 200, .answer = "", .hang = true};
    struct bt_client_record r = run(&s, 1, 0, NULL, NULL);

    (void)state;
    assert_int_equal(r.result, BT_CLIENT_TIMEOUT);
}

static void test_leaving(void **state)
{
    struct server waits = {.status = 200, .answer = "", .hang = true};
    struct server tells = {.status = 200, .answer = WHOLE};
    struct bt_client_summary summary;
    struct bt_client_record r = run(&waits, 3, 0, leave_at_once, &summary);

    (void)state;
    assert_int_equal(r.result, BT_CLIENT_LEFT);
    assert_int_equal(summary.errors, 0);
    r = run(&tells, 1, 0, leave_after_two, NULL);
    assert_true(r.result == BT_CLIENT_LEFT || r.result == BT_CLIENT_OK);
}

static void test_the_limit_drops(void **state)
{
    struct server s = {.status = 200, .answer = WHOLE};
    struct bt_client_summary summary;
    struct bt_client_record r = run(&s, 5, 2, NULL, &summary);

    (void)state;
    assert_int_equal(r.result, BT_CLIENT_OK);
    assert_int_equal(summary.ok, 2);
    assert_int_equal(summary.errors, 3);
    assert_int_equal(s.requests, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_right_answer),
        cmocka_unit_test(test_any_cut_gives_the_same),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_error_status),
        cmocka_unit_test(test_a_cut_connection),
        cmocka_unit_test(test_time_limit),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_the_limit_drops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
