/* Server and client together on one loop, as `baton serve` uses them: origin
 * (httpd) <- proxy (upstream + httpd) <- raw client. An abort at the origin is
 * seen as truncated by our client and told on (A09); a client that never reads
 * stops the origin (A13); its departure closes the origin's connection.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/orchestrator/httpd.h"
#include "baton/orchestrator/upstream.h"
#include "net_world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER (64U * 1024)
#define BLOCK  (16U * 1024)

struct flow {
    struct bt_httpd_request *client;
    struct bt_call *call;
    bool ended;
    enum bt_status status;
};

struct world {
    struct ev_loop *loop;
    struct bt_httpd *origin, *front;
    struct bt_upstream *upstream;
    struct bt_httpd_request *origin_req;
    size_t origin_bytes;
    bool origin_full;
    unsigned origin_gone, origin_closed, client_gone;
    struct flow flow;
    char url[64];
};

static struct world world;

/* ---- origin ---- */

static void on_origin_gone(void *arg)
{
    (void)arg;
    world.origin_gone++;
    world.origin_req = NULL;
}

static void on_origin_closed(void *arg)
{
    (void)arg;
    world.origin_closed++;
    world.origin_req = NULL;
}

static void on_origin_drain(void *arg)
{
    (void)arg;
    world.origin_full = false;
}

static void on_origin(void *arg, struct bt_httpd_request *req)
{
    (void)arg;
    world.origin_req = req;
    bt_httpd_watch(req, on_origin_gone, on_origin_closed, NULL);
    bt_httpd_stream_begin(req, 200, "text/event-stream", on_origin_drain, NULL);
}

static void origin_pour(void)
{
    static char block[BLOCK];
    while (world.origin_req && !world.origin_full) {
        enum bt_status s =
            bt_httpd_stream_write(world.origin_req, block, BLOCK);
        world.origin_bytes += BLOCK;
        world.origin_full = s != BT_OK;
    }
}

/* ---- proxy ---- */

static void on_client_gone(void *arg)
{
    struct flow *f = arg;
    world.client_gone++;
    f->client = NULL;
    if (!f->ended)
        bt_call_cancel(f->call);
}

static void on_client_closed(void *arg)
{
    ((struct flow *)arg)->client = NULL;
}

static void on_client_drain(void *arg)
{
    struct flow *f = arg;
    if (!f->ended)
        bt_call_resume(f->call);
}

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct flow *f = arg;
    bt_httpd_stream_begin(f->client, head->status, head->content_type,
                          on_client_drain, f);
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct flow *f = arg;
    enum bt_status s = bt_httpd_stream_write(f->client, bytes, count);
    assert_true(s == BT_OK || s == BT_AGAIN);
    return s;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct flow *f = arg;
    f->ended = true;
    f->status = end->status;
    if (end->status == BT_OK)
        bt_httpd_stream_end(f->client);
    else if (end->http)
        bt_httpd_stream_abort(f->client);
    else
        bt_httpd_reply(f->client, 502, "text/plain", "bad", 3);
}

static void on_front(void *arg, struct bt_httpd_request *req)
{
    (void)arg;
    size_t bytes;
    const char *body = bt_httpd_body(req, &bytes);
    world.flow = (struct flow){.client = req};
    struct bt_call_spec spec = {
        .method = "POST",
        .url = world.url,
        .body = body,
        .body_bytes = bytes,
        .head = on_head,
        .data = on_data,
        .done = on_done,
        .arg = &world.flow,
    };
    bt_httpd_watch(req, on_client_gone, on_client_closed, &world.flow);
    assert_int_equal(bt_call_start(world.upstream, &spec, &world.flow.call),
                     BT_OK);
}

/* ---- fixture ---- */

static int setup(void **state)
{
    (void)state;
    struct bt_httpd_limits limits = {.stream_buffer_bytes = BUFFER,
                                     .send_timeout_s = 1};
    char error[160];
    memset(&world, 0, sizeof(world));
    world.loop = ev_loop_new(EVFLAG_AUTO);
    if (bt_httpd_start(world.loop, "127.0.0.1", 0, NULL, on_origin, NULL,
                       &world.origin, error, sizeof(error)) != BT_OK ||
        bt_httpd_start(world.loop, "127.0.0.1", 0, &limits, on_front, NULL,
                       &world.front, error, sizeof(error)) != BT_OK)
        return 1;
    snprintf(world.url, sizeof(world.url), "http://127.0.0.1:%u/v1",
             bt_httpd_port(world.origin));
    return bt_upstream_create(world.loop, 64, 64, &world.upstream) != BT_OK;
}

static int teardown(void **state)
{
    (void)state;
    bt_httpd_stop(world.front);
    bt_upstream_destroy(world.upstream);
    bt_httpd_stop(world.origin);
    ev_loop_destroy(world.loop);
    return 0;
}

static bool origin_has_request(void *arg)
{
    (void)arg;
    return world.origin_req != NULL;
}

static bool origin_lost(void *arg)
{
    (void)arg;
    return world.origin_gone > 0;
}

static int begin(int receive_bytes)
{
    int fd = net_connect_narrow(bt_httpd_port(world.front), receive_bytes);
    assert_true(net_say(world.loop, fd,
                        "POST /v1 HTTP/1.1\r\nHost: a\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n"
                        "2\r\n{}\r\n0\r\n\r\n"));
    assert_true(net_until(world.loop, origin_has_request, NULL));
    return fd;
}

/* A08: whatever the cuts, the bytes are the same. */
static void stream_passes_unchanged(void **state)
{
    (void)state;
    static const char bytes[] = "data: {\"t\":\"\xE5\x8C\x97\"}\r\n\r\n"
                                "data:{}\n\n: keep-alive\n\ndata: [DONE]\n\n";
    struct net_text text = {0};
    char got[sizeof(bytes)] = "";
    size_t count = 0;
    int fd = begin(0);
    for (size_t i = 0; i < sizeof(bytes) - 1; i++) {
        bt_httpd_stream_write(world.origin_req, bytes + i, 1);
        assert_true(net_read_until(world.loop, fd, &text, "\r\n1\r\n",
                                   (unsigned)i + 1));
    }
    bt_httpd_stream_end(world.origin_req);
    assert_true(net_read_until(world.loop, fd, &text, "\r\n0\r\n\r\n", 1));
    for (char *at = strstr(text.bytes, "\r\n1\r\n");
         at && count < sizeof(bytes) - 1; at += 6)
        got[count++] = at[5]; /* "CRLF 1 CRLF x" for each byte */
    assert_memory_equal(got, bytes, sizeof(bytes) - 1);
    assert_int_equal(world.flow.status, BT_OK);
    close(fd);
    net_text_free(&text);
}

static void abort_is_told_as_truncated(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = begin(0);
    bt_httpd_stream_write(world.origin_req, "data: 1\n\n", 9);
    assert_true(net_read_until(world.loop, fd, &text, "data: 1", 1));
    bt_httpd_stream_abort(world.origin_req);
    assert_true(net_read_end(world.loop, fd, &text));
    assert_true(world.flow.ended);
    assert_int_equal(world.flow.status, BT_TRUNCATED);
    assert_null(strstr(text.bytes, "\r\n0\r\n"));
    close(fd);
    net_text_free(&text);
}

static void client_departure_reaches_origin(void **state)
{
    (void)state;
    int fd = begin(0);
    close(fd);
    assert_true(net_until(world.loop, origin_lost, NULL));
    assert_int_equal(world.client_gone, 1);
}

static void client_that_never_reads_stops_origin(void **state)
{
    (void)state;
    struct bt_httpd_counters counters;
    int fd = begin(4096);
    for (int64_t end = net_now_ms() + NET_DEADLINE_MS;
         world.origin_gone == 0 && net_now_ms() < end;) {
        origin_pour();
        net_turn(world.loop);
    }
    assert_int_equal(world.origin_gone, 1);
    assert_int_equal(world.client_gone, 1);
    print_message("origin wrote %zu bytes\n", world.origin_bytes);
    assert_true(world.origin_bytes < (16U << 20)); /* socket buffers */
    bt_httpd_counters_get(world.front, &counters);
    assert_int_equal(counters.slow_clients, 1);
    assert_int_equal(counters.clients_gone, 1);
    assert_int_equal(counters.connections, 0);
    assert_int_equal(counters.body_bytes, 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(stream_passes_unchanged),
        T(abort_is_told_as_truncated),
        T(client_departure_reaches_origin),
        T(client_that_never_reads_stops_origin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
