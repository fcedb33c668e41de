/* Streaming answers: each chunk leaves at once (A07), a client that never
 * reads costs a bounded buffer and is cut (A13), the end of a stream is told
 * apart from its abortion (A09, A10).
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
#include <unistd.h>

#define BUFFER (64U * 1024)
#define BLOCK  (16U * 1024)

struct world {
    struct ev_loop *loop;
    struct bt_httpd *httpd;
    struct bt_httpd_request *req;
    unsigned gone, closed, drained;
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

static void on_drain(void *arg)
{
    ((struct world *)arg)->drained++;
}

static void on_request(void *arg, struct bt_httpd_request *req)
{
    struct world *w = arg;
    w->req = req;
    bt_httpd_watch(req, on_gone, on_closed, w);
    bt_httpd_stream_begin(req, 200, "text/event-stream", on_drain, w);
}

static int setup(void **state)
{
    (void)state;
    struct bt_httpd_limits limits = {.stream_buffer_bytes = BUFFER,
                                     .receive_timeout_s = 30,
                                     .send_timeout_s = 1};
    char error[160];
    memset(&world, 0, sizeof(world));
    world.loop = ev_loop_new(EVFLAG_AUTO);
    return bt_httpd_start(world.loop, "127.0.0.1", 0, &limits, on_request,
                          &world, &world.httpd, error, sizeof(error)) != BT_OK;
}

static int teardown(void **state)
{
    (void)state;
    bt_httpd_stop(world.httpd);
    ev_loop_destroy(world.loop);
    return 0;
}

static bool has_request(void *arg)
{
    (void)arg;
    return world.req != NULL;
}

static bool has_ended(void *arg)
{
    (void)arg;
    return world.gone + world.closed > 0;
}

static bool has_drained(void *arg)
{
    (void)arg;
    return world.drained > 0;
}

static int begin(int receive_bytes)
{
    int fd = net_connect_narrow(bt_httpd_port(world.httpd), receive_bytes);
    assert_true(net_say(world.loop, fd, "GET /s HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(net_until(world.loop, has_request, NULL));
    return fd;
}

static void chunks_arrive_one_by_one(void **state)
{
    (void)state;
    struct net_text text = {0};
    char event[32];
    int fd = begin(0);
    /* the head comes before any byte of the body */
    assert_true(net_read_until(world.loop, fd, &text, "\r\n\r\n", 1));
    assert_non_null(strstr(text.bytes, "Transfer-Encoding: chunked"));
    assert_non_null(strstr(text.bytes, "text/event-stream"));
    for (int i = 0; i < 20; i++) {
        snprintf(event, sizeof(event), "data: %d\n\n", i);
        assert_int_equal(bt_httpd_stream_write(world.req, event, strlen(event)),
                         BT_OK);
        assert_true(net_read_until(world.loop, fd, &text, event, 1));
    }
    bt_httpd_stream_end(world.req);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n0\r\n\r\n", 1));
    assert_true(net_until(world.loop, has_ended, NULL));
    assert_int_equal(world.closed, 1);
    /* keep-alive goes on */
    world.req = NULL;
    assert_true(net_say(world.loop, fd, "GET /s HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_true(net_until(world.loop, has_request, NULL));
    bt_httpd_stream_end(world.req);
    assert_true(net_read_until(world.loop, fd, &text, "0\r\n\r\n", 2));
    close(fd);
    net_text_free(&text);
}

/* A write is on the wire when the loop turn it was made in is over. */
static void write_leaves_in_its_turn(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = begin(0);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n\r\n", 1));
    for (int i = 0; i < 20; i++)
        net_turn(world.loop);
    bt_httpd_stream_write(world.req, "one-", 4);
    bt_httpd_stream_write(world.req, "chunk", 5);
    ev_run(world.loop, EVRUN_NOWAIT);
    net_poll(fd, &text);
    assert_non_null(strstr(text.bytes, "9\r\none-chunk\r\n"));
    bt_httpd_stream_end(world.req);
    ev_run(world.loop, EVRUN_NOWAIT);
    net_poll(fd, &text);
    assert_non_null(strstr(text.bytes, "\r\n0\r\n\r\n"));
    close(fd);
    net_text_free(&text);
}

/* Everything written arrives, in order, through a small buffer and a client
 * that reads in bursts. */
static void backpressure_keeps_every_byte(void **state)
{
    (void)state;
    struct net_text text = {0};
    char block[BLOCK];
    size_t written = 0, total = 8U << 20;
    unsigned full = 0;
    int64_t deadline = net_now_ms() + 5 * NET_DEADLINE_MS;
    int fd = begin(8192);
    bool stopped = false;
    while (written < total && net_now_ms() < deadline) {
        while (!stopped && written < total) {
            for (size_t i = 0; i < BLOCK; i++)
                block[i] = (char)('a' + (written + i) % 23);
            enum bt_status s = bt_httpd_stream_write(world.req, block, BLOCK);
            assert_true(s == BT_OK || s == BT_AGAIN);
            written += BLOCK;
            stopped = s == BT_AGAIN;
            full += stopped;
        }
        if (stopped)
            assert_int_equal(bt_httpd_stream_write(world.req, "x", 1),
                             BT_LIMIT);
        world.drained = 0;
        for (int i = 0; i < 10000 && world.drained == 0; i++) {
            net_turn(world.loop);
            net_poll(fd, &text);
        }
        stopped = world.drained == 0;
    }
    bt_httpd_stream_end(world.req);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n0\r\n\r\n", 1));
    assert_true(full > 10);
    size_t body = 0;
    char *at = strstr(text.bytes, "\r\n\r\n") + 4;
    for (;;) { /* undo the chunking with our own eyes */
        char *next;
        size_t bytes = strtoul(at, &next, 16);
        at = next + 2;
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(at[i], 'a' + (body + i) % 23);
        body += bytes;
        at += bytes + 2;
        if (bytes == 0)
            break;
    }
    assert_int_equal(body, total);
    close(fd);
    net_text_free(&text);
}

static void client_that_never_reads_is_cut(void **state)
{
    (void)state;
    static char block[BLOCK];
    size_t taken = 0;
    enum bt_status s = BT_OK;
    struct bt_httpd_counters counters;
    int fd = begin(4096);
    while (s != BT_LIMIT && taken < (64U << 20)) {
        s = bt_httpd_stream_write(world.req, block, BLOCK);
        if (s != BT_LIMIT)
            taken += BLOCK;
        if (s == BT_AGAIN) {
            world.drained = 0;
            for (int i = 0; i < 50 && world.drained == 0; i++)
                net_turn(world.loop);
        }
    }
    assert_int_equal(s, BT_LIMIT);
    print_message("taken before the buffer stayed full: %zu\n", taken);
    /* ours plus socket buffers (doubled by the kernel for its overhead) */
    assert_true(taken < BUFFER + (2U << 20));
    assert_int_equal(world.gone, 0);
    assert_true(net_until(world.loop, has_ended, NULL));
    assert_int_equal(world.gone, 1);
    assert_int_equal(world.closed, 0);
    bt_httpd_counters_get(world.httpd, &counters);
    assert_int_equal(counters.slow_clients, 1);
    assert_int_equal(counters.clients_gone, 1);
    assert_int_equal(counters.connections, 0);
    close(fd);
}

static void departure_is_told_while_idle_and_while_full(void **state)
{
    (void)state;
    static char block[BLOCK];
    for (int full = 0; full < 2; full++) {
        memset(&world.req, 0, sizeof(world.req));
        world.gone = world.closed = 0;
        int fd = begin(4096);
        for (int i = 0; full && i < 200; i++) {
            bt_httpd_stream_write(world.req, block, BLOCK);
            net_turn(world.loop);
        }
        close(fd);
        assert_true(net_until(world.loop, has_ended, NULL));
        assert_int_equal(world.gone, 1);
        assert_int_equal(world.closed, 0);
    }
}

static void abort_cuts_without_final_chunk(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = begin(0);
    bt_httpd_stream_write(world.req, "data: x\n\n", 9);
    bt_httpd_stream_abort(world.req);
    assert_true(net_read_end(world.loop, fd, &text));
    assert_non_null(strstr(text.bytes, "data: x\n\n"));
    assert_null(strstr(text.bytes, "\r\n0\r\n"));
    assert_true(net_until(world.loop, has_ended, NULL));
    assert_int_equal(world.closed, 1);
    assert_int_equal(world.gone, 0);
    close(fd);
    net_text_free(&text);
}

/* ... not even when the client does not read (A10: ends within 1 s). */
static void abort_does_not_wait_for_the_client(void **state)
{
    (void)state;
    static char block[BLOCK];
    int fd = begin(4096);
    for (int i = 0; i < 200; i++) {
        bt_httpd_stream_write(world.req, block, BLOCK);
        net_turn(world.loop);
    }
    bt_httpd_stream_abort(world.req);
    assert_true(net_until(world.loop, has_ended, NULL));
    assert_int_equal(world.gone + world.closed, 1);
    close(fd);
}

/* A full buffer is followed by one drain, and then takes bytes again. */
static void drain_follows_full(void **state)
{
    (void)state;
    static char block[BLOCK];
    struct net_text text = {0};
    int fd = begin(4096);
    enum bt_status s = BT_OK;
    for (int i = 0; i < 1000 && s != BT_LIMIT; i++)
        s = bt_httpd_stream_write(world.req, block, BLOCK);
    assert_int_equal(s, BT_LIMIT);
    for (int64_t end = net_now_ms() + NET_DEADLINE_MS;
         !has_drained(NULL) && net_now_ms() < end;) {
        net_turn(world.loop);
        net_poll(fd, &text);
    }
    assert_int_equal(world.drained, 1);
    assert_int_equal(bt_httpd_stream_write(world.req, block, BLOCK), BT_OK);
    bt_httpd_stream_end(world.req);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n0\r\n\r\n", 1));
    close(fd);
    net_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(chunks_arrive_one_by_one),
        T(write_leaves_in_its_turn),
        T(backpressure_keeps_every_byte),
        T(client_that_never_reads_is_cut),
        T(departure_is_told_while_idle_and_while_full),
        T(abort_cuts_without_final_chunk),
        T(abort_does_not_wait_for_the_client),
        T(drain_follows_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
