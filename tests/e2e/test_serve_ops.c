/* Operating `baton serve`: drains that cut, workers that come, go and answer
 * their probes badly, clients that are slow, what may stand in a log line.
 * Truth: operators.md 5 (drain), field-failures.md A13, the contracts of
 * serve.h and core.h, and the bytes that the other side saw. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT   "\"prompt\":\"a prompt that is certainly longer than two blocks\""
#define STREAM "{\"model\":\"m\"," TEXT ",\"stream\":true}"
#define WHOLE  "{\"model\":\"m\"," TEXT "}"
#define CHUNK  "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"

static struct bed bed;
static char out[262144];

static bool is_gone(void *arg)
{
    return ((struct bed_worker *)arg)->gone > 0;
}

static bool is_posted(void *arg)
{
    return ((struct bed_worker *)arg)->posts > 0;
}

static bool has_chunk(void *arg)
{
    return strstr(((struct bed_client *)arg)->in, "\"text\":\"a\"") != NULL;
}

static bool is_eof(void *arg)
{
    return ((struct bed_client *)arg)->eof;
}

static const char *workers(void)
{
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    return out;
}

static const char *wanted;

static bool workers_say(void *arg)
{
    (void)arg;
    return strstr(workers(), wanted) != NULL;
}

static void until_workers_say(const char *text)
{
    wanted = text;
    bed_until(&bed, workers_say, NULL, text);
}

static void post(const char *path)
{
    struct bed_client c;

    bed_connect(&bed, &c, bed.ports.admin);
    bed_post(&c, path, "");
    assert_int_equal(bed_answer(&c), 200);
    bed_close(&c);
}

static size_t occurrences(const char *text, const char *word)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n++;
    return n;
}

/* ---- drain ---- */

static struct bt_httpd_request *held;

/* Ends in the middle of an event. */
static void d_one_and_a_half(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    held = req;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    bt_httpd_stream_write(req, CHUNK "data: {\"cho", strlen(CHUNK) + 11);
}

static void drain_cuts_with_words(void **state)
{
    struct bed_client stream, whole;
    const char *error;

    (void)state;
    bed_start(&bed, "pdd", NULL);
    bed.workers[1].script = bed.workers[2].script = d_one_and_a_half;
    bed_connect(&bed, &stream, bed.ports.listen);
    bed_post(&stream, "/v1/completions", STREAM);
    bed_until(&bed, has_chunk, &stream, "a first chunk");
    bed.workers[0].script = bed_hang;
    bed.workers[0].posts = 0;
    bed_connect(&bed, &whole, bed.ports.listen);
    bed_post(&whole, "/v1/completions", WHOLE);
    bed_until(&bed, is_posted, &bed.workers[0], "leg P is out");
    bt_serve_drain(bed.serve);
    bt_serve_drain(bed.serve); /* the second signal */
    assert_false(bt_serve_drained_clean(bed.serve));
    /* The stream: what came, closed; then an error event; then a clean end. */
    assert_int_equal(bed_answer(&stream), 200);
    error = strstr(bed_body(&stream), "\n\ndata: {\"error\":{");
    assert_non_null(error);
    assert_non_null(strstr(error, "shutting down"));
    assert_null(strstr(bed_body(&stream), "[DONE]"));
    /* The one without an answer yet gets one. */
    assert_int_equal(bed_answer(&whole), 503);
    assert_non_null(strcasestr(whole.in, "\r\nRetry-After:"));
    assert_non_null(strstr(whole.in, "\"error\":{"));
    bed_until(&bed, is_gone, &bed.workers[0], "leg P is aborted");
    bed_close(&stream);
    bed_close(&whole);
    bed_idle(&bed);
    bed_stop(&bed);
}

static bool is_prompt_gone(void *arg)
{
    (void)arg;
    return bed_metric(&bed, "baton_http_body_bytes") == 0;
}

/* A stream with tokens needs its prompt no more, neither to end well nor to be
 * left by its client. */
static void a_stream_gives_its_prompt_back(void **state)
{
    struct bed_client stays, leaves;

    (void)state;
    bed_start(&bed, "pd", NULL);
    bed.workers[1].script = d_one_and_a_half;
    bed_connect(&bed, &leaves, bed.ports.listen);
    bed_post(&leaves, "/v1/completions", STREAM);
    bed_until(&bed, has_chunk, &leaves, "a first chunk");
    bed_connect(&bed, &stays, bed.ports.listen);
    bed_post(&stays, "/v1/completions", STREAM);
    bed_until(&bed, has_chunk, &stays, "a first chunk");
    bed_until(&bed, is_prompt_gone, NULL, "no body is held");
    bed_close(&leaves);
    bt_httpd_stream_write(held,
                          "ices\":[]}\n\n"
                          "data: [DONE]\n\n",
                          strlen("ices\":[]}\n\n"
                                 "data: [DONE]\n\n"));
    bt_httpd_stream_end(held);
    assert_int_equal(bed_answer(&stays), 200);
    assert_non_null(strstr(bed_body(&stays), "[DONE]"));
    bed_close(&stays);
    bed_idle(&bed);
    assert_int_equal(bed_metric(&bed, "baton_requests_total{outcome=\"ok\"}"),
                     1);
    bed_stop(&bed);
}

static void on_late_drain(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)timer;
    (void)events;
    bt_serve_drain(bed.serve);
    bt_serve_drain(bed.serve);
}

/* The loop is broken by the drain, also while D goes on writing, and a third
 * signal is harmless. */
static void drain_breaks_the_loop(void **state)
{
    struct bed_client c;
    ev_timer timer;

    (void)state;
    bed_start(&bed, "pd", NULL);
    bed.workers[1].script = d_one_and_a_half;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    bed_until(&bed, has_chunk, &c, "a first chunk");
    ev_timer_init(&timer, on_late_drain, 0.01, 0.);
    ev_timer_start(bed.loop, &timer);
    ev_run(bed.loop, 0);
    bt_serve_drain(bed.serve);
    assert_int_equal(bed_answer(&c), 200);
    bed_close(&c);
    bed_stop(&bed);
}

/* A client that does not read has a full buffer: no room for an error event,
 * so its answer must not end like a whole one. */
struct flood {
    struct bt_httpd_request *req;
    size_t sent, most;
    bool ends;
};
static struct flood flood;
static char piece[16384];

static void pour(void *arg)
{
    struct flood *f = arg;

    while (f->sent < f->most) {
        enum bt_status status =
            bt_httpd_stream_write(f->req, piece, sizeof(piece));

        if (status == BT_LIMIT)
            return;
        f->sent += sizeof(piece);
        if (status == BT_AGAIN)
            return; /* [DONE] too must wait for room */
    }
    if (!f->ends)
        return;
    bt_httpd_stream_write(f->req, "data: [DONE]\n\n", 14);
    bt_httpd_stream_end(f->req);
    f->ends = false;
}

static void d_flood(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    memset(piece, 'x', sizeof(piece));
    memcpy(piece, "data: {\"choices\":[{\"text\":\"", 26);
    memcpy(piece + sizeof(piece) - 6, "\"}]}\n\n", 6);
    flood.req = req;
    flood.sent = 0;
    bt_httpd_stream_begin(req, 200, "text/event-stream", pour, &flood);
    pour(&flood);
}

static void connect_slow(struct bed_client *c)
{
    int small = 262144;

    bed_connect(&bed, c, bed.ports.listen);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    ev_io_stop(bed.loop, &c->io);
}

static void until_stuck(void)
{
    size_t before;

    do {
        before = flood.sent;
        bed_turn(&bed, 0.2);
    } while (flood.sent != before || before == 0);
}

static bool has_end(void *arg)
{
    struct bed_client *c = arg;

    return c->eof ||
           (c->used > 5 && memcmp(c->in + c->used - 5, "0\r\n\r\n", 5) == 0);
}

static void a_cut_slow_stream_looks_cut(void **state)
{
    struct bed_client c;

    (void)state;
    bed_start(&bed, "pd", "limits: {stream_buffer: 64KiB}");
    flood = (struct flood){.most = 64u << 20};
    bed.workers[1].script = d_flood;
    connect_slow(&c);
    bed_post(&c, "/v1/completions", STREAM);
    until_stuck();
    assert_true(flood.sent < flood.most);
    bt_serve_drain(bed.serve);
    bt_serve_drain(bed.serve);
    ev_io_start(bed.loop, &c.io);
    bed_until(&bed, is_eof, &c, "the end of the connection");
    assert_true(c.used < 5 || memcmp(c.in + c.used - 5, "0\r\n\r\n", 5) != 0);
    bed_close(&c);
    bed_idle(&bed);
    bed_stop(&bed);
}

/* The stream stops for longer than idle_stream because the client is slow:
 * that is not D's fault. Then the client reads on and misses nothing, with a
 * buffer smaller than one piece. */
static void a_slow_client_is_no_dead_worker(void **state)
{
    struct bed_client c;

    (void)state;
    bed_start(&bed, "pd",
              "limits: {stream_buffer: 4KiB}\n"
              "timeouts: {client_send: 30s, idle_stream: 500ms}");
    flood = (struct flood){.most = 8u << 20, .ends = true};
    bed.workers[1].script = d_flood;
    connect_slow(&c);
    bed_post(&c, "/v1/completions", STREAM);
    until_stuck();
    assert_true(flood.sent < flood.most);
    bed_turn(&bed, 1.2);
    assert_int_equal(bed.workers[1].gone, 0);
    ev_io_start(bed.loop, &c.io);
    bed_until(&bed, has_end, &c, "the whole stream");
    assert_int_equal(bed_answer(&c), 200);
    assert_int_equal(strlen(bed_body(&c)), flood.most + 14);
    assert_int_equal(occurrences(bed_body(&c), "data: {"),
                     flood.most / sizeof(piece));
    bed_close(&c);
    bed_idle(&bed);
    assert_int_equal(bed_metric(&bed, "baton_requests_total{outcome=\"ok\"}"),
                     1);
    bed_stop(&bed);
}

/* A first event larger than the client's buffer, in pieces. */
static char event[40000];
static struct {
    struct bt_httpd_request *req;
    size_t at;
    ev_timer timer;
} dribble;

static void on_dribble(struct ev_loop *loop, ev_timer *timer, int events)
{
    size_t n = sizeof(event) - dribble.at;

    (void)events;
    if (n > 3000)
        n = 3000;
    bt_httpd_stream_write(dribble.req, event + dribble.at, n);
    dribble.at += n;
    if (dribble.at < sizeof(event))
        return;
    ev_timer_stop(loop, timer);
    bt_httpd_stream_write(dribble.req, CHUNK "data: [DONE]\n\n",
                          strlen(CHUNK) + 14);
    bt_httpd_stream_end(dribble.req);
}

static void d_dribble(struct bed_worker *w, struct bt_httpd_request *req)
{
    for (size_t i = 0; i < sizeof(event); i++)
        event[i] = (char)('a' + i % 23);
    memcpy(event, "data: {\"choices\":[{\"text\":\"", 26);
    memcpy(event + sizeof(event) - 6, "\"}]}\n\n", 6);
    dribble.req = req;
    dribble.at = 0;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    ev_timer_init(&dribble.timer, on_dribble, 0., 0.002);
    ev_timer_start(w->bed->loop, &dribble.timer);
}

static void a_first_event_larger_than_the_buffer(void **state)
{
    struct bed_client c;

    (void)state;
    bed_start(&bed, "pd", "limits: {stream_buffer: 4KiB}");
    bed.workers[1].script = d_dribble;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", STREAM);
    assert_int_equal(bed_answer(&c), 200);
    assert_int_equal(strlen(bed_body(&c)), sizeof(event) + strlen(CHUNK) + 14);
    assert_memory_equal(bed_body(&c), event, sizeof(event));
    bed_close(&c);
    bed_idle(&bed);
    bed_stop(&bed);
}

/* D cannot be reached and no retry is allowed: the hand-off is given back by
 * the other D. Returns that one, with the giving back on its way. */
static struct bed_worker *give_a_handoff_back(void)
{
    struct bed_worker *down, *other;

    bed_start(&bed, "pdd",
              "health: {interval: 30s, stats_interval: 30s}\n"
              "retry: {attempts: 4, budget: 0, budget_min: 0}");
    bed_request(&bed, "/v1/completions", STREAM, out, sizeof(out));
    bed_idle(&bed);
    down = &bed.workers[bed.workers[1].posts > 0 ? 1 : 2];
    other = &bed.workers[down == &bed.workers[1] ? 2 : 1];
    other->script = bed_hang;
    bed_worker_stop(down); /* idle again: the same choice */
    assert_int_equal(
        bed_request(&bed, "/v1/completions", STREAM, out, sizeof(out)), 502);
    bed_until(&bed, is_posted, other, "the hand-off at the other D");
    assert_non_null(strstr(other->last_body, "remote_block_ids"));
    return other;
}

static void a_handoff_goes_back(void **state)
{
    struct bed_worker *d = give_a_handoff_back();

    (void)state;
    bt_serve_drain(bed.serve);
    ev_run(bed.loop, 0); /* the drain waits for it */
    bed_until(&bed, is_gone, d, "the connection is closed again");
    assert_true(bt_serve_drained_clean(bed.serve));
    bed_idle(&bed);
    bed_stop(&bed);
}

/* The server ends in the middle of that. */
static void destroyed_while_a_handoff_goes_back(void **state)
{
    (void)state;
    give_a_handoff_back();
    bt_serve_destroy(bed.serve);
    bed.serve = NULL;
    bed_turn(&bed, 0.4); /* no timer of it is left */
    bed_stop(&bed);
}

/* ---- identity ---- */

static struct bt_httpd_request *probe;

static bool hold_health(struct bed_worker *w, struct bt_httpd_request *req,
                        const char *path)
{
    if (strcmp(path, "/health") != 0)
        return false;
    w->probe = NULL;
    probe = req;
    return true;
}

static bool is_probed(void *arg)
{
    (void)arg;
    return probe != NULL;
}

/* Drain and undrain arrive while a probe is out: its answer is no scrape. */
static void drain_during_a_probe(void **state)
{
    (void)state;
    bed_start(&bed, "pd", NULL);
    for (int i = 0; i < 2; i++) {
        probe = NULL;
        bed.workers[1].probe = hold_health;
        bed_until(&bed, is_probed, NULL, "a health probe");
        post(i == 0 ? "/admin/v1/workers/w1/drain"
                    : "/admin/v1/workers/w1/undrain");
        bt_httpd_reply(probe, 200, "text/plain", "", 0);
        bed_turn(&bed, 0.35); /* some probes later */
        workers();
        if (strstr(out, i == 0 ? "\"state\":\"draining\",\"reason\":\"\""
                               : "\"state\":\"ready\",\"reason\":\"\"") == NULL)
            fail_msg("%s", out);
        assert_null(strstr(out, "refused"));
        assert_null(strstr(out, "\"generation\":2"));
    }
    bed_stop(&bed);
}

static const char *scrape_body;

static bool odd_metrics(struct bed_worker *w, struct bt_httpd_request *req,
                        const char *path)
{
    if (strcmp(path, "/metrics") != 0)
        return false;
    w->n++;
    bt_httpd_reply(req, 200, "text/plain", scrape_body, strlen(scrape_body));
    return true;
}

static bool scraped(void *arg)
{
    return ((struct bed_worker *)arg)->n >= 2;
}

/* A scrape that tells nothing is no restart and takes nobody out. */
static void odd_scrapes_of_a_ready_worker(void **state)
{
    static const char *const bodies[] = {
        "", "<html>502</html>", "{\"detail\":\"Not Found\"}",
        "vllm:num_requests_running NaN\nvllm:kv_cache_usage_perc +Inf\n"
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} "
        "1\n"};

    (void)state;
    bed_start(&bed, "pd", NULL);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        scrape_body = bodies[i];
        bed.workers[1].n = 0;
        bed.workers[1].probe = odd_metrics;
        bed_until(&bed, scraped, &bed.workers[1], "two scrapes");
        bed.workers[1].probe = NULL;
        bed_turn(&bed, 0.3);
        workers();
        if (occurrences(out, "\"state\":\"ready\"") != 2 ||
            occurrences(out, "\"generation\":1,") != 2)
            fail_msg("body %zu: %s", i, out);
        assert_null(strcasestr(out, "nan"));
        assert_null(strcasestr(out, "inf"));
    }
    bed_stop(&bed);
}

static bool bad_models(struct bed_worker *w, struct bt_httpd_request *req,
                       const char *path)
{
    static const char *const bodies[] = {"", "[]", "{\"data\":{}}",
                                         "{\"data\":[1,{},{\"id\":7}]}",
                                         "{\"data\":[{\"id\":\"m\""};

    if (strcmp(path, "/v1/models") != 0)
        return false;
    bt_httpd_reply(req, 200, "application/json", bodies[w->n],
                   strlen(bodies[w->n]));
    return true;
}

static void worker_without_its_model(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        bed_workers(&bed, "pd");
        bed.workers[1].probe = bad_models;
        bed.workers[1].n = i;
        bed_serve(&bed, NULL);
        until_workers_say(
            "\"state\":\"refused\",\"reason\":\"/v1/models does not list");
        assert_int_equal(
            bed_get(&bed, bed.ports.listen, "/readyz", out, sizeof(out)), 503);
        bed.workers[1].probe = NULL; /* it learns */
        bed_ready(&bed);
        bed_stop(&bed);
    }
}

/* Not there at the start: pending, with the reason; then it comes. */
static void unreachable_at_the_start(void **state)
{
    (void)state;
    bed_workers(&bed, "pd");
    bed_worker_stop(&bed.workers[1]);
    bed_serve(&bed, NULL);
    until_workers_say("\"state\":\"pending\",\"reason\":\"/health: ");
    assert_int_equal(
        bed_get(&bed, bed.ports.listen, "/readyz", out, sizeof(out)), 503);
    assert_non_null(strstr(out, "no decode worker is ready"));
    assert_int_equal(bed_request(&bed, "/v1/completions", "{\"model\":\"x\"}",
                                 out, sizeof(out)),
                     400);
    bed_worker_start(&bed.workers[1]);
    bed_ready(&bed);
    bed_stop(&bed);
}

/* ---- what a log line may hold ---- */

static bool evil_version(struct bed_worker *w, struct bt_httpd_request *req,
                         const char *path)
{
    static const char body[] =
        "{\"version\":\"1\\nerror forged x=1\\r\\u001b[2J"
        "\"}";

    (void)w;
    if (strcmp(path, "/version") != 0)
        return false;
    bt_httpd_reply(req, 200, "application/json", body, strlen(body));
    return true;
}

static void a_version_makes_no_log_line(void **state)
{
    char path[] = "/tmp/baton-log-XXXXXX", log[8192];
    int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    ssize_t n;

    (void)state;
    assert_true(fd >= 0 && saved >= 0);
    unlink(path);
    dup2(fd, STDERR_FILENO);
    bed_workers(&bed, "pd");
    bed.workers[0].probe = evil_version;
    bed_serve(&bed, "log: {level: trace, format: text}");
    bed_ready(&bed);
    bed_stop(&bed);
    dup2(saved, STDERR_FILENO);
    close(saved);
    n = pread(fd, log, sizeof(log) - 1, 0);
    close(fd);
    assert_true(n > 0);
    log[n] = '\0';
    assert_non_null(
        strstr(log, "worker_ready worker=w0 version=1?error forged"));
    assert_null(strstr(log, "\nerror forged"));
    assert_null(strchr(log, '\r'));
    assert_null(strchr(log, 0x1b));
}

/* A full pipe on stderr loses lines; the server goes on. */
static void a_full_log_pipe_does_not_block(void **state)
{
    int ends[2], saved = dup(STDERR_FILENO), result;
    char fill[4096];

    (void)state;
    memset(fill, 'x', sizeof(fill));
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], fill, sizeof(fill)) > 0)
        ;
    fcntl(ends[1], F_SETFL, 0);
    bed_start(&bed, "pd", NULL);
    bed_stop(&bed);
    dup2(ends[1], STDERR_FILENO);
    bed_start(&bed, "pd", "log: {level: trace, format: json}");
    result = bed_request(&bed, "/v1/completions", STREAM, out, sizeof(out));
    bed_idle(&bed);
    dup2(saved, STDERR_FILENO);
    assert_int_equal(result, 200);
    assert_true(bed_metric(&bed, "baton_log_folded_total") > 0);
    bed_stop(&bed);
    close(saved);
    close(ends[0]);
    close(ends[1]);
}

/* ---- edges of the API ---- */

static bool two_answers(void *arg)
{
    return occurrences(((struct bed_client *)arg)->in, "[DONE]") == 2 &&
           strstr(((struct bed_client *)arg)->in, "\"object\":\"list\"") !=
               NULL;
}

static void pipelined_requests(void **state)
{
    static char bytes[4096];
    struct bed_client c;
    int n;

    (void)state;
    bed_start(&bed, "pd", NULL);
    n = snprintf(bytes, sizeof(bytes),
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                 "Content-Length: %zu\r\n\r\n%s"
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                 "Content-Length: %zu\r\n\r\n%s"
                 "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
                 strlen(STREAM), STREAM, strlen(STREAM), STREAM);
    bed_connect(&bed, &c, bed.ports.listen);
    bed_send(&c, bytes, (size_t)n);
    bed_until(&bed, two_answers, &c, "three answers in order");
    assert_int_equal(occurrences(c.in, "HTTP/1.1 200"), 3);
    assert_int_equal(bed.workers[0].posts, 2);
    bed_close(&c);
    bed_idle(&bed);
    bed_stop(&bed);
}

static void one_request_id_twice_at_once(void **state)
{
    struct bed_client c[2];
    char head[512];
    int n = snprintf(head, sizeof(head),
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                     "X-Request-Id: same\r\nContent-Length: %zu\r\n\r\n%s",
                     strlen(STREAM), STREAM);

    (void)state;
    bed_start(&bed, "ppdd", NULL);
    for (int i = 0; i < 2; i++) {
        bed_connect(&bed, &c[i], bed.ports.listen);
        bed_send(&c[i], head, (size_t)n);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(bed_answer(&c[i]), 200);
        assert_non_null(strstr(bed_body(&c[i]), "[DONE]"));
        bed_close(&c[i]);
    }
    /* The workers never see the client's id, so they cannot mix them up. */
    for (int i = 0; i < 4; i++)
        assert_string_not_equal(bed.workers[i].last_id, "same");
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=10", out,
            sizeof(out));
    assert_int_equal(occurrences(out, "\"request_id\":\"same\""), 2);
    bed_stop(&bed);
}

static void admin_takes_odd_input(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
    } cases[] = {
        {"/admin/v1/explain", "", 400},
        {"/admin/v1/explain", "{}", 400},
        {"/admin/v1/explain", "{\"tokens\":0}", 400},
        {"/admin/v1/explain", "{\"tokens\":99999999999}", 400},
        {"/admin/v1/explain", "{\"tokens\":40,\"model\":\"none\"}", 400},
        {"/admin/v1/explain", "{\"tokens\":40,\"max_tokens\":-1}", 400},
        {"/admin/v1/explain", "{\"token_ids\":[1,\"x\"]}", 400},
        {"/admin/v1/explain", "{\"token_ids\":[4294967296]}", 400},
        {"/admin/v1/explain", "{\"token_ids\":[1,2,3]}", 200},
        {"/admin/v1/explain", "{\"tokens\":40}", 200},
        {"/admin/v1/workers/w0/explode", "", 404},
        {"/admin/v1/workers/none/drain", "", 404},
        {"/admin/v1/workers/", "", 404},
        {"/admin/v1/decisions", "", 404},
    };

    (void)state;
    bed_start(&bed, "pd", NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed_client c;
        int status;

        bed_connect(&bed, &c, bed.ports.admin);
        bed_post(&c, cases[i].path, cases[i].body);
        status = bed_answer(&c);
        if (status != cases[i].status)
            fail_msg("case %zu: %d %s", i, status, c.in);
        bed_close(&c);
    }
    assert_int_equal(bed_get(&bed, bed.ports.admin,
                             "/admin/v1/decisions?limit=-1", out, sizeof(out)),
                     200);
    assert_int_equal(bed_get(&bed, bed.ports.admin,
                             "/admin/v1/decisions/%00%0a\"'", out, sizeof(out)),
                     400);
    bed_idle(&bed);
    bed_stop(&bed);
}

/* The client leaves while /tokenize is out: the call is closed, no leg goes. */
static void client_leaves_during_tokenize(void **state)
{
    struct bed_client c;

    (void)state;
    bed_start(&bed, "pd", "tokenizer: worker\ntimeouts: {tokenize: 5s}");
    bed.workers[0].script = bed.workers[1].script = bed_hang;
    for (int i = 0; i < 2; i++) {
        struct bed_worker *w = &bed.workers[i];

        bed_connect(&bed, &c, bed.ports.listen);
        bed_post(&c, "/v1/completions", STREAM);
        bed_turn(&bed, 0.1);
        bed_close(&c);
        bed_until(&bed, is_gone, w, "/tokenize is closed");
    }
    bed_idle(&bed);
    assert_int_equal(bed.workers[0].posts + bed.workers[1].posts, 0);
    assert_int_equal(bed_metric(&bed, "baton_requests_accepted_total"), 0);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drain_cuts_with_words),
        cmocka_unit_test(drain_breaks_the_loop),
        cmocka_unit_test(a_stream_gives_its_prompt_back),
        cmocka_unit_test(a_cut_slow_stream_looks_cut),
        cmocka_unit_test(a_slow_client_is_no_dead_worker),
        cmocka_unit_test(a_first_event_larger_than_the_buffer),
        cmocka_unit_test(a_handoff_goes_back),
        cmocka_unit_test(destroyed_while_a_handoff_goes_back),
        cmocka_unit_test(drain_during_a_probe),
        cmocka_unit_test(odd_scrapes_of_a_ready_worker),
        cmocka_unit_test(worker_without_its_model),
        cmocka_unit_test(unreachable_at_the_start),
        cmocka_unit_test(a_version_makes_no_log_line),
        cmocka_unit_test(a_full_log_pipe_does_not_block),
        cmocka_unit_test(pipelined_requests),
        cmocka_unit_test(one_request_id_twice_at_once),
        cmocka_unit_test(admin_takes_odd_input),
        cmocka_unit_test(client_leaves_during_tokenize),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
