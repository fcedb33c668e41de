/* The HTTP client against raw servers that misbehave on purpose: how each end
 * is told (A09), the retry of a stale pooled connection (A12), cancellation
 * closes the connection (engine-wire 4.6), what goes over the wire (A18),
 * pausing with bounded memory (A13).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/orchestrator/upstream.h"
#include "net_world.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLS 200

struct result {
    struct bt_call *call;
    unsigned heads, dones, datas;
    int http;
    char type[64];
    struct bt_call_end end;
    char body[256];
    size_t body_bytes;
    bool pause, cancel_in_data, cancel_in_head, cancel_in_done, sequence_ok;
};

struct world {
    struct ev_loop *loop;
    struct bt_upstream *upstream;
    int listener;
    uint16_t port;
    char url[64];
};

static struct world world;

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct result *r = arg;
    r->heads++;
    r->http = head->status;
    snprintf(r->type, sizeof(r->type), "%s",
             head->content_type ? head->content_type : "");
    if (r->cancel_in_head)
        bt_call_cancel(r->call);
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct result *r = arg;
    r->datas++;
    for (size_t i = 0; i < count; i++) {
        if (r->body_bytes + i < sizeof(r->body) - 1)
            r->body[r->body_bytes + i] = bytes[i];
        r->sequence_ok &= bytes[i] == (char)('a' + (r->body_bytes + i) % 23);
    }
    r->body_bytes += count;
    if (r->cancel_in_data)
        bt_call_cancel(r->call);
    return r->pause ? BT_AGAIN : BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct result *r = arg;
    r->dones++;
    r->end = *end;
    assert_non_null(end->detail);
    if (r->cancel_in_done)
        bt_call_cancel(r->call);
}

static int setup(void **state)
{
    (void)state;
    world.loop = ev_loop_new(EVFLAG_AUTO);
    world.listener = net_listen(&world.port);
    snprintf(world.url, sizeof(world.url), "http://127.0.0.1:%u/v1",
             world.port);
    return bt_upstream_create(world.loop, 256, 256, &world.upstream) != BT_OK;
}

static int teardown(void **state)
{
    (void)state;
    if (world.upstream)
        bt_upstream_destroy(world.upstream);
    close(world.listener);
    ev_loop_destroy(world.loop);
    return 0;
}

static struct bt_call_spec spec_of(struct result *r)
{
    struct bt_call_spec spec = {
        .method = "POST",
        .url = world.url,
        .body = "{}",
        .body_bytes = 2,
        .head = on_head,
        .data = on_data,
        .done = on_done,
        .arg = r,
    };
    r->sequence_ok = true;
    return spec;
}

static void start(struct result *r)
{
    struct bt_call_spec spec = spec_of(r);
    assert_int_equal(bt_call_start(world.upstream, &spec, &r->call), BT_OK);
}

static bool is_done(void *arg)
{
    return ((struct result *)arg)->dones > 0;
}

/* Accept, read one request whole, answer these bytes; fd stays open. */
static int serve_on(int fd, const char *answer)
{
    struct net_text text = {0};
    assert_true(net_read_until(world.loop, fd, &text, "{}", 1));
    assert_int_equal(net_occurrences(&text, "POST /v1 HTTP/1.1\r\n"), 1);
    net_text_free(&text);
    assert_true(net_say(world.loop, fd, answer));
    return fd;
}

static int serve(const char *answer)
{
    int fd = net_accept(world.loop, world.listener);
    assert_true(fd >= 0);
    return serve_on(fd, answer);
}

#define OK5 "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"

static void whole_answer_and_reuse(void **state)
{
    (void)state;
    struct result r = {0}, second = {0};
    start(&r);
    assert_int_equal(r.dones + r.heads + r.datas, 0);
    int fd = serve("HTTP/1.1 503 Busy\r\nContent-Type: text/x\r\n"
                   "Content-Length: 5\r\n\r\nabcde");
    assert_true(net_until(world.loop, is_done, &r));
    assert_int_equal(r.end.status, BT_OK);
    assert_int_equal(r.end.http, 503);
    assert_int_equal(r.http, 503);
    assert_string_equal(r.type, "text/x");
    assert_string_equal(r.body, "abcde");
    assert_true(r.end.connected);
    assert_int_equal(r.end.body_bytes, 5);
    assert_int_equal(r.heads, 1);
    start(&second); /* comes on the same connection */
    serve_on(fd, OK5 "abcde");
    assert_true(net_until(world.loop, is_done, &second));
    assert_int_equal(second.end.status, BT_OK);
    close(fd);
}

/* A18: Content-Length, never chunked, no Expect, the given headers once. */
static void bytes_on_the_wire(void **state)
{
    (void)state;
    static const char *const headers[] = {"Content-Type: application/json",
                                          "X-Request-Id: r1", NULL};
    struct result r = {0};
    struct net_text text = {0};
    char *body = malloc(100001);
    memset(body, 'b', 100000);
    body[100000] = 0;
    struct bt_call_spec spec = spec_of(&r);
    spec.headers = headers;
    spec.body = body;
    spec.body_bytes = 100000;
    assert_int_equal(bt_call_start(world.upstream, &spec, &r.call), BT_OK);
    int fd = net_accept(world.loop, world.listener);
    assert_true(net_read_until(world.loop, fd, &text, "bbbbbbbbbb", 10000));
    assert_non_null(strstr(text.bytes, "POST /v1 HTTP/1.1\r\n"));
    assert_int_equal(net_occurrences(&text, "Content-Length: 100000\r\n"), 1);
    assert_int_equal(
        net_occurrences(&text, "Content-Type: application/json\r\n"), 1);
    assert_int_equal(net_occurrences(&text, "Content-Type"), 1);
    assert_int_equal(net_occurrences(&text, "X-Request-Id: r1\r\n"), 1);
    assert_int_equal(net_occurrences(&text, "Expect"), 0);
    assert_int_equal(net_occurrences(&text, "Transfer-Encoding"), 0);
    net_say(world.loop, fd, OK5 "abcde");
    assert_true(net_until(world.loop, is_done, &r));
    close(fd);
    free(body);
    net_text_free(&text);
    struct result get = {0};
    spec = spec_of(&get);
    spec.method = "GET";
    spec.body = NULL;
    spec.body_bytes = 0;
    assert_int_equal(bt_call_start(world.upstream, &spec, &get.call), BT_OK);
    fd = net_accept(world.loop, world.listener);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n\r\n", 1));
    assert_int_equal(strncmp(text.bytes, "GET /v1 HTTP/1.1\r\n", 18), 0);
    assert_int_equal(net_occurrences(&text, "Content-"), 0);
    net_say(world.loop, fd, OK5 "abcde");
    assert_true(net_until(world.loop, is_done, &get));
    close(fd);
    net_text_free(&text);
}

static void refused(void **state)
{
    (void)state;
    struct result r = {0};
    close(world.listener);
    start(&r);
    assert_true(net_until(world.loop, is_done, &r));
    assert_int_equal(r.end.status, BT_REFUSED);
    assert_false(r.end.connected);
    assert_int_equal(r.end.http, 0);
    assert_int_equal(r.heads, 0);
    world.listener = net_listen(&world.port);
}

static void bad_url(void **state)
{
    (void)state;
    static const char *const urls[] = {"",           "ftp://a/",  "http://",
                                       "http:///x",  "127.0.0.1", "http://a b/",
                                       "file:///etc"};
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct result r = {0};
        struct bt_call_spec spec = spec_of(&r);
        spec.url = urls[i];
        assert_int_equal(bt_call_start(world.upstream, &spec, &r.call),
                         BT_INVALID);
    }
}

/* Ends that are no ends: status, whether a response line had come. */
static void broken_answers(void **state)
{
    (void)state;
    static const struct {
        const char *answer;
        bool reset;
        enum bt_status status;
        int http;
    } cases[] = {
        {"", false, BT_RESET, 0},
        {"", true, BT_RESET, 0},
        {OK5 "ab", false, BT_TRUNCATED, 200},
        {OK5 "ab", true, BT_RESET, 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
         false, BT_TRUNCATED, 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false,
         BT_TRUNCATED, 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false,
         BT_TRUNCATED, 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
         "3\r\nabcXX\r\n0\r\n\r\n",
         false, BT_TRUNCATED, 200},
        {"SSH-2.0-x\r\n\r\n", false, BT_RESET, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct result r = {0};
        struct linger hard = {cases[i].reset, 0};
        start(&r);
        int fd = serve(cases[i].answer);
        for (int turn = 0; turn < 20; turn++)
            net_turn(world.loop);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        close(fd);
        assert_true(net_until(world.loop, is_done, &r));
        if (r.end.status != cases[i].status || r.end.http != cases[i].http)
            fail_msg("case %zu: %s, http %d (%s)", i,
                     bt_status_name(r.end.status), r.end.http, r.end.detail);
        assert_true(r.end.connected);
    }
}

static void timeouts(void **state)
{
    (void)state;
    struct result r = {0};
    struct bt_call_spec spec = spec_of(&r);
    spec.total_timeout_ms = 50;
    assert_int_equal(bt_call_start(world.upstream, &spec, &r.call), BT_OK);
    assert_true(net_until(world.loop, is_done, &r)); /* accepted by backlog */
    assert_int_equal(r.end.status, BT_TIMEOUT);
    assert_true(r.end.connected);
}

/* A12. Three pooled connections die; the next call meets a dead one, libcurl
 * tries once more, and on a fresh connection. */
static void stale_connection_is_retried_once_on_a_new_one(void **state)
{
    (void)state;
    struct result r[3], again = {0};
    int fds[3];
    memset(r, 0, sizeof(r));
    for (int i = 0; i < 3; i++)
        start(&r[i]);
    for (int i = 0; i < 3; i++)
        fds[i] = serve("");
    for (int i = 0; i < 3; i++)
        assert_true(net_say(world.loop, fds[i], OK5 "abcde"));
    for (int i = 0; i < 3; i++)
        assert_true(net_until(world.loop, is_done, &r[i]));
    /* The servers read the second request and close without an answer: the
     * moment when FIN and request cross. */
    start(&again);
    struct net_text text[3];
    memset(text, 0, sizeof(text));
    int met = -1;
    for (int64_t end = net_now_ms() + NET_DEADLINE_MS;
         met < 0 && net_now_ms() < end;) {
        net_turn(world.loop);
        for (int i = 0; i < 3; i++) {
            net_poll(fds[i], &text[i]);
            if (text[i].count > 0)
                met = i;
        }
    }
    assert_true(met >= 0);
    close(fds[met]);
    int fresh = serve(OK5 "abcde"); /* a new connection, not fds[others] */
    assert_true(net_until(world.loop, is_done, &again));
    assert_int_equal(again.end.status, BT_OK);
    assert_string_equal(again.body, "abcde");
    for (int i = 0; i < 3; i++) {
        if (i != met) {
            net_poll(fds[i], &text[i]);
            assert_int_equal(text[i].count, 0);
            close(fds[i]);
        }
        net_text_free(&text[i]);
    }
    close(fresh);
}

/* ... and when the fresh one dies as well, that is the end. */
static void retry_happens_at_most_once(void **state)
{
    (void)state;
    struct result first = {0}, again = {0};
    start(&first);
    int fd = serve(OK5 "abcde");
    assert_true(net_until(world.loop, is_done, &first));
    start(&again);
    serve_on(fd, "");
    close(fd);
    fd = serve("");
    close(fd);
    assert_true(net_until(world.loop, is_done, &again));
    assert_int_equal(again.end.status, BT_RESET);
    assert_int_equal(again.end.http, 0);
    for (int i = 0; i < 20; i++)
        net_turn(world.loop);
    assert_int_equal(accept(world.listener, NULL, NULL), -1);
}

/* Closed while idle: found before the request is sent. */
static void idle_close_is_invisible(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct result r = {0};
        start(&r);
        int fd = serve(OK5 "abcde");
        assert_true(net_until(world.loop, is_done, &r));
        assert_int_equal(r.end.status, BT_OK);
        close(fd);
    }
}

static void answered_in_part_is_not_retried(void **state)
{
    (void)state;
    struct result first = {0}, again = {0};
    start(&first);
    int fd = serve(OK5 "abcde");
    assert_true(net_until(world.loop, is_done, &first));
    start(&again);
    serve_on(fd, "HTTP/1.1 200 OK\r\nContent-Le");
    close(fd);
    assert_true(net_until(world.loop, is_done, &again));
    assert_int_equal(again.end.status, BT_RESET);
    assert_int_equal(accept(world.listener, NULL, NULL), -1);
}

static void cancel_closes_the_connection(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        struct result r = {0};
        struct net_text text = {0};
        r.cancel_in_head = how == 1;
        r.cancel_in_data = how == 2;
        start(&r);
        int fd = serve("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "3\r\nabc\r\n3\r\ndef\r\n");
        for (int64_t end = net_now_ms() + NET_DEADLINE_MS;
             r.heads == 0 && net_now_ms() < end;)
            net_turn(world.loop);
        if (how == 0 || how == 3)
            bt_call_cancel(r.call);
        assert_true(net_read_end(world.loop, fd, &text));
        assert_int_equal(r.dones, 0);
        assert_true(r.datas <= (how == 1 ? 0u : how == 2 ? 1u : 2u));
        close(fd);
        net_text_free(&text);
    }
    struct result r = {0}, never = {0};
    r.cancel_in_done = true; /* harmless */
    start(&r);
    start(&never);
    bt_call_cancel(never.call); /* before it began */
    int fd = serve(OK5 "abcde");
    assert_true(net_until(world.loop, is_done, &r));
    assert_int_equal(r.dones, 1);
    assert_int_equal(never.dones, 0);
    close(fd);
}

#define LARGE (16U << 20)

struct race {
    struct ev_check check;
    struct result *r;
    char *body;
};

static void on_check(struct ev_loop *loop, struct ev_check *check, int events)
{
    (void)events;
    struct race *race = check->data;
    ev_check_stop(loop, check);
    bt_call_cancel(race->r->call);
    free(race->body);
    race->body = NULL;
}

/* The owner frees the body right after the cancel, in a turn of the loop in
 * which the socket can take more of it: nothing of it may be read then. */
static void body_may_go_with_the_cancel(void **state)
{
    (void)state;
    struct result r = {0};
    struct race race = {.r = &r, .body = malloc(LARGE)};
    struct bt_call_spec spec = spec_of(&r);
    static char sink[65536];
    assert_non_null(race.body);
    memset(race.body, 'x', LARGE);
    spec.body = race.body;
    spec.body_bytes = LARGE;
    assert_int_equal(bt_call_start(world.upstream, &spec, &r.call), BT_OK);
    int fd = net_accept(world.loop, world.listener);
    assert_true(fd >= 0);
    for (int i = 0; i < 50; i++) /* until the socket is full */
        net_turn(world.loop);
    while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
        ;
    ev_check_init(&race.check, on_check);
    ev_set_priority(&race.check, EV_MAXPRI);
    race.check.data = &race;
    ev_check_start(world.loop, &race.check);
    for (int i = 0; i < 50; i++)
        net_turn(world.loop);
    assert_null(race.body);
    assert_int_equal(r.dones + r.heads + r.datas, 0);
    struct net_text text = {0};
    assert_true(net_read_end(world.loop, fd, &text));
    net_text_free(&text);
    close(fd);
}

static bool has_data(void *arg)
{
    return ((struct result *)arg)->datas > 0;
}

/* An answer that overtakes its request's body does not free it; the answer to
 * a request that has left does, if it is a good one. */
static void body_may_go_once_sent(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *answer;
        bool sent;
    } cases[] = {
        {100000, "HTTP/1.1 200 OK\r\n\r\na", true},
        {100, "HTTP/1.1 200 OK\r\n\r\na", true},
        {100, "HTTP/1.1 401 Who\r\n\r\na", false},
        {LARGE, "HTTP/1.1 200 OK\r\n\r\na", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct result r = {0};
        struct net_text text = {0};
        struct bt_call_spec spec = spec_of(&r);
        char *body = malloc(cases[i].bytes);
        assert_non_null(body);
        memset(body, 'x', cases[i].bytes);
        spec.body = body;
        spec.body_bytes = cases[i].bytes;
        assert_int_equal(bt_call_start(world.upstream, &spec, &r.call), BT_OK);
        assert_false(bt_call_body_sent(r.call));
        int fd = net_accept(world.loop, world.listener);
        assert_true(net_read_until(world.loop, fd, &text, "\r\n\r\n", 1));
        if (cases[i].bytes < LARGE)
            assert_true(net_read_until(world.loop, fd, &text, "x",
                                       (unsigned)cases[i].bytes));
        assert_false(bt_call_body_sent(r.call));
        assert_true(net_say(world.loop, fd, cases[i].answer));
        assert_true(net_until(world.loop, has_data, &r));
        assert_int_equal(bt_call_body_sent(r.call), cases[i].sent);
        if (cases[i].sent) {
            free(body);
            body = NULL;
        }
        net_say(world.loop, fd, "bcd");
        close(fd);
        assert_true(net_until(world.loop, is_done, &r));
        free(body);
        net_text_free(&text);
    }
}

static void pause_bounds_memory(void **state)
{
    (void)state;
    struct result r = {.pause = true};
    size_t total = 10U << 20, sent = 0;
    static char block[65536];
    char head[128];
    start(&r);
    snprintf(head, sizeof(head),
             "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", total);
    int fd = serve(head);
    size_t heap = mallinfo2().uordblks, heap_max = heap;
    unsigned stalls = 0;
    int64_t deadline = net_now_ms() + 6 * NET_DEADLINE_MS;
    while (r.dones == 0 && net_now_ms() < deadline) {
        for (bool full = false; !full && sent < total;) {
            size_t count =
                total - sent < sizeof(block) ? total - sent : sizeof(block);
            for (size_t i = 0; i < count; i++)
                block[i] = (char)('a' + (sent + i) % 23);
            ssize_t n = send(fd, block, count, MSG_DONTWAIT | MSG_NOSIGNAL);
            full = n < 0;
            sent += n > 0 ? (size_t)n : 0;
        }
        size_t before = r.body_bytes;
        unsigned datas = r.datas;
        net_turn(world.loop);
        net_turn(world.loop);
        stalls += r.body_bytes == before && r.datas > 0;
        assert_true(r.datas - datas <= 1); /* paused after each */
        if (mallinfo2().uordblks > heap_max)
            heap_max = mallinfo2().uordblks;
        /* flow control reaches the server */
        assert_true(sent - r.body_bytes < (8U << 20));
        bt_call_resume(r.call);
        net_turn(world.loop);
    }
    assert_int_equal(r.end.status, BT_OK);
    assert_int_equal(r.body_bytes, total);
    assert_true(r.sequence_ok);
    assert_true(stalls > 10);
    assert_true(heap_max - heap < 512 * 1024);
    close(fd);
}

static void many_at_once(void **state)
{
    (void)state;
    static struct result r[CALLS];
    static int fds[CALLS];
    memset(r, 0, sizeof(r));
    for (int i = 0; i < CALLS; i++)
        start(&r[i]);
    for (int i = 0; i < CALLS; i++) {
        fds[i] = net_accept(world.loop, world.listener);
        assert_true(fds[i] >= 0);
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        serve_on(fds[i], OK5 "abcde");
    }
    for (int i = 0; i < CALLS; i++) {
        assert_true(net_until(world.loop, is_done, &r[i]));
        assert_int_equal(r[i].end.status, BT_OK);
        assert_int_equal(r[i].dones, 1);
        close(fds[i]);
    }
}

/* More calls than connections: they wait inside and all come through. */
static void waits_for_a_connection(void **state)
{
    (void)state;
    struct result r[5];
    memset(r, 0, sizeof(r));
    bt_upstream_destroy(world.upstream);
    assert_int_equal(bt_upstream_create(world.loop, 4, 1, &world.upstream),
                     BT_OK);
    for (int i = 0; i < 5; i++)
        start(&r[i]);
    int fd = net_accept(world.loop, world.listener);
    for (int i = 0; i < 5; i++)
        serve_on(fd, OK5 "abcde");
    for (int i = 0; i < 5; i++)
        assert_true(net_until(world.loop, is_done, &r[i]));
    assert_int_equal(accept(world.listener, NULL, NULL), -1);
    close(fd);
}

static void destroy_with_open_calls(void **state)
{
    (void)state;
    struct result r = {0}, pending = {0};
    start(&r);
    int fd = serve("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc");
    start(&pending);
    bt_upstream_destroy(world.upstream);
    world.upstream = NULL;
    for (int i = 0; i < 10; i++)
        net_turn(world.loop);
    assert_int_equal(r.dones + pending.dones, 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(whole_answer_and_reuse),
        T(bytes_on_the_wire),
        T(refused),
        T(bad_url),
        T(broken_answers),
        T(timeouts),
        T(stale_connection_is_retried_once_on_a_new_one),
        T(retry_happens_at_most_once),
        T(idle_close_is_invisible),
        T(answered_in_part_is_not_retried),
        T(cancel_closes_the_connection),
        T(body_may_go_with_the_cancel),
        T(body_may_go_once_sent),
        T(pause_bounds_memory),
        T(many_at_once),
        T(waits_for_a_connection),
        T(destroy_with_open_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
