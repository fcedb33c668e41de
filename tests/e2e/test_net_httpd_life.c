/* Life of a connection and of the server: keep-alive, pipelining, late
 * answers, clients that leave while their request waits (A13's sibling: a
 * suspended connection is blind in libmicrohttpd), a taken port, stopping.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/orchestrator/httpd.h"
#include "net_world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct world {
    struct ev_loop *loop;
    struct bt_httpd *httpd;
    struct bt_httpd_request *held[16]; /* in order of arrival */
    unsigned held_count, gone, closed;
    bool watch;
};

static struct world world;

static void on_gone(void *arg)
{
    ((struct world *)arg)->gone++;
}

static void on_closed(void *arg)
{
    ((struct world *)arg)->closed++;
}

/* /now answers at once, /missing 404 at once, /hold waits for the test. */
static void on_request(void *arg, struct bt_httpd_request *req)
{
    struct world *w = arg;
    const char *path = bt_httpd_path(req);
    if (w->watch)
        bt_httpd_watch(req, on_gone, on_closed, w);
    if (strcmp(path, "/now") == 0) {
        const char *value = bt_httpd_query(req, "v");
        const char *echo = bt_httpd_header(req, "x-echo");
        bt_httpd_add_header(req, "X-Echo", echo ? echo : "none");
        value = value ? value : "now";
        bt_httpd_reply(req, 200, "text/plain", value, strlen(value));
    } else if (strcmp(path, "/missing") == 0) {
        bt_httpd_reply(req, 404, "text/plain", "lost", 4);
    } else {
        assert_true(w->held_count < 16);
        w->held[w->held_count++] = req;
    }
}

static int setup(void **state)
{
    (void)state;
    char error[160];
    memset(&world, 0, sizeof(world));
    world.watch = true;
    world.loop = ev_loop_new(EVFLAG_AUTO);
    return bt_httpd_start(world.loop, "127.0.0.1", 0, NULL, on_request, &world,
                          &world.httpd, error, sizeof(error)) != BT_OK;
}

static int teardown(void **state)
{
    (void)state;
    if (world.httpd)
        bt_httpd_stop(world.httpd);
    ev_loop_destroy(world.loop);
    return 0;
}

static bool held_one(void *arg)
{
    (void)arg;
    return world.held_count >= 1;
}

static bool gone_one(void *arg)
{
    (void)arg;
    return world.gone >= 1;
}

static bool no_connection(void *arg)
{
    (void)arg;
    struct bt_httpd_counters counters;
    bt_httpd_counters_get(world.httpd, &counters);
    return counters.connections == 0;
}

static int say(const char *text)
{
    int fd = net_connect(bt_httpd_port(world.httpd));
    assert_true(net_say(world.loop, fd, text));
    return fd;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

static void keeps_alive_after_error(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = say(GET("/missing"));
    assert_true(net_read_until(world.loop, fd, &text, "lost", 1));
    assert_non_null(strstr(text.bytes, "HTTP/1.1 404 "));
    for (unsigned i = 0; i < 3; i++) {
        assert_true(net_say(world.loop, fd,
                            "GET /now?v=v%20w&x=1 HTTP/1.1\r\nHost: a\r\n"
                            "X-Echo: echo\r\n\r\n"));
        assert_true(net_read_until(world.loop, fd, &text, "v w", i + 1));
    }
    assert_non_null(strstr(text.bytes, "X-Echo: echo\r\n"));
    assert_int_equal(world.closed, 4);
    assert_int_equal(world.gone, 0);
    close(fd);
    net_text_free(&text);
}

static void answers_pipelined_in_order(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = say(GET("/hold") GET("/now?v=second"));
    assert_true(net_until(world.loop, held_one, NULL));
    assert_int_equal(world.held_count, 1);
    bt_httpd_reply(world.held[0], 200, "text/plain", "first", 5);
    assert_true(net_read_until(world.loop, fd, &text, "second", 1));
    assert_true(strstr(text.bytes, "first") < strstr(text.bytes, "second"));
    assert_int_equal(net_occurrences(&text, "HTTP/1.1 200"), 2);
    assert_int_equal(world.gone, 0); /* unread bytes are no departure */
    close(fd);
    net_text_free(&text);
}

static void notices_departure_while_waiting(void **state)
{
    (void)state;
    struct bt_httpd_counters counters;
    for (int reset = 0; reset < 2; reset++) {
        struct linger hard = {reset, 0};
        world.held_count = world.gone = world.closed = 0;
        int fd = say("POST /hold HTTP/1.1\r\nHost: a\r\n"
                     "Content-Length: 3\r\n\r\nabc" GET("/now"));
        assert_true(net_until(world.loop, held_one, NULL));
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        int64_t left = net_now_ms();
        close(fd);
        assert_true(net_until(world.loop, gone_one, NULL));
        print_message("noticed after %d ms\n", (int)(net_now_ms() - left));
        assert_true(net_until(world.loop, no_connection, NULL));
        assert_int_equal(world.gone, 1);
        assert_int_equal(world.closed, 0);
    }
    bt_httpd_counters_get(world.httpd, &counters);
    assert_int_equal(counters.clients_gone, 2);
    assert_int_equal(counters.body_bytes, 0);
}

/* Nobody watches: the request stays usable until it is answered. */
static void unwatched_request_outlives_client(void **state)
{
    (void)state;
    struct net_text text = {0};
    size_t bytes;
    world.watch = false;
    int fd = say(GET("/hold"));
    assert_true(net_until(world.loop, held_one, NULL));
    close(fd);
    for (int i = 0; i < 20; i++)
        net_turn(world.loop);
    assert_string_equal(bt_httpd_body(world.held[0], &bytes), "");
    bt_httpd_stream_begin(world.held[0], 200, "text/plain", NULL, NULL);
    for (int i = 0; i < 20; i++) {
        net_turn(world.loop);
        assert_int_equal(bt_httpd_stream_write(world.held[0], "x", 1), BT_OK);
    }
    assert_true(net_until(world.loop, no_connection, NULL));
    bt_httpd_stream_end(world.held[0]);
    fd = say(GET("/now"));
    assert_true(net_read_until(world.loop, fd, &text, "now", 1));
    close(fd);
    net_text_free(&text);
}

static void answers_head(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = say("HEAD /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_true(net_until(world.loop, held_one, NULL));
    bt_httpd_stream_begin(world.held[0], 200, "text/plain", NULL, NULL);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n\r\n", 1));
    assert_int_equal(bt_httpd_stream_write(world.held[0], "xyz", 3), BT_OK);
    bt_httpd_stream_end(world.held[0]);
    assert_true(net_say(world.loop, fd, GET("/now")));
    assert_true(net_read_until(world.loop, fd, &text, "now", 1));
    assert_null(strstr(text.bytes, "xyz"));
    assert_int_equal(world.closed, 2);
    assert_int_equal(world.gone, 0);
    close(fd);
    net_text_free(&text);
}

static void tells_taken_port(void **state)
{
    (void)state;
    struct bt_httpd *other = NULL;
    char error[160] = "", port[16];
    snprintf(port, sizeof(port), ":%u", bt_httpd_port(world.httpd));
    assert_int_equal(
        bt_httpd_start(world.loop, "127.0.0.1", bt_httpd_port(world.httpd),
                       NULL, on_request, &world, &other, error, sizeof(error)),
        BT_EXISTS);
    assert_null(other);
    assert_non_null(strstr(error, "127.0.0.1"));
    assert_non_null(strstr(error, port));
    assert_int_equal(bt_httpd_start(world.loop, "localhost", 0, NULL,
                                    on_request, &world, &other, error,
                                    sizeof(error)),
                     BT_INVALID);
    assert_non_null(strstr(error, "localhost"));
}

static void quiesce_finishes_open_work(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = say(GET("/hold"));
    assert_true(net_until(world.loop, held_one, NULL));
    bt_httpd_quiesce(world.httpd);
    net_turn(world.loop);
    assert_int_equal(net_connect(bt_httpd_port(world.httpd)), -1);
    bt_httpd_reply(world.held[0], 200, "text/plain", "done", 4);
    assert_true(net_read_until(world.loop, fd, &text, "done", 1));
    close(fd);
    net_text_free(&text);
}

static void stop_tells_open_requests(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fds[3] = {say(GET("/hold")), say(GET("/hold")), say(GET("/hold"))};
    for (int64_t end = net_now_ms() + NET_DEADLINE_MS;
         world.held_count < 3 && net_now_ms() < end;)
        net_turn(world.loop);
    assert_int_equal(world.held_count, 3);
    bt_httpd_stream_begin(world.held[1], 200, "text/plain", NULL, NULL);
    bt_httpd_stream_write(world.held[1], "a", 1);
    bt_httpd_reply(world.held[2], 200, "text/plain", "b", 1);
    bt_httpd_stop(world.httpd);
    world.httpd = NULL;
    assert_int_equal(world.gone + world.closed, 3);
    assert_true(world.gone >= 2);
    for (int i = 0; i < 3; i++) {
        assert_true(net_read_end(world.loop, fds[i], &text));
        close(fds[i]);
        net_text_free(&text);
    }
}

/* Neither an idle connection nor half a request stays for ever. */
static void cuts_idle_and_half_requests(void **state)
{
    (void)state;
    static const char *const halves[] = {
        "", "GET /now HT", "GET /now HTTP/1.1\r\nHost: a\r\n",
        "POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"};
    struct bt_httpd_limits limits = {.receive_timeout_s = 1};
    struct bt_httpd_counters counters;
    struct bt_httpd *impatient;
    char error[160];
    int fds[4];
    struct net_text text = {0};
    assert_int_equal(bt_httpd_start(world.loop, "127.0.0.1", 0, &limits,
                                    on_request, &world, &impatient, error,
                                    sizeof(error)),
                     BT_OK);
    for (int i = 0; i < 4; i++) {
        fds[i] = net_connect(bt_httpd_port(impatient));
        assert_true(net_say(world.loop, fds[i], halves[i]));
    }
    for (int i = 0; i < 4; i++) {
        assert_true(net_read_end(world.loop, fds[i], &text));
        close(fds[i]);
        net_text_free(&text);
    }
    bt_httpd_counters_get(impatient, &counters);
    assert_int_equal(counters.requests, 0);
    assert_int_equal(counters.body_bytes, 0);
    assert_int_equal(counters.clients_gone, 0);
    bt_httpd_stop(impatient);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(keeps_alive_after_error),
        T(answers_pipelined_in_order),
        T(notices_departure_while_waiting),
        T(unwatched_request_outlives_client),
        T(answers_head),
        T(tells_taken_port),
        T(cuts_idle_and_half_requests),
        T(quiesce_finishes_open_work),
        T(stop_tells_open_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
