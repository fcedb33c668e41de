/* What the HTTP server accepts and refuses: field failure A17, the table of
 * design.md section 5, A15 (size limits), A16 (Expect). Expected statuses are
 * those documents' and RFC 9112's; bytes go over a raw socket.
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

#define BODY_MAX   10000
#define HEADER_MAX 4096

struct world {
    struct ev_loop *loop;
    struct bt_httpd *httpd;
    char seen_body[64]; /* last one */
    unsigned handled;
};

static struct world world;

/* Answers the body's length and path. */
static void on_request(void *arg, struct bt_httpd_request *req)
{
    struct world *w = arg;
    char text[128];
    size_t bytes;
    const char *body = bt_httpd_body(req, &bytes);
    w->handled++;
    snprintf(w->seen_body, sizeof(w->seen_body), "%.*s", (int)bytes, body);
    snprintf(text, sizeof(text), "%s got %zu", bt_httpd_path(req), bytes);
    bt_httpd_reply(req, 200, "text/plain", text, strlen(text));
}

static int setup(void **state)
{
    (void)state;
    struct bt_httpd_limits limits = {.body_bytes_max = BODY_MAX,
                                     .body_total_bytes_max = 3 * BODY_MAX,
                                     .header_bytes_max = HEADER_MAX};
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

/* Send bytes, read to the end of the connection, return the first status. */
static int exchange(const char *bytes, size_t count, struct net_text *text)
{
    int status = 0;
    int fd = net_connect(bt_httpd_port(world.httpd));
    assert_true(net_send(world.loop, fd, bytes, count));
    assert_true(net_read_end(world.loop, fd, text));
    close(fd);
    if (text->count > 12)
        status = (int)strtol(text->bytes + 9, NULL, 10);
    return status;
}

static void refused_text(const char *bytes, size_t count, int wanted, bool json)
{
    struct net_text text = {0};
    unsigned handled = world.handled;
    int status = exchange(bytes, count, &text);
    if (status != wanted)
        fail_msg("wanted %d, got %d for <%s>", wanted, status, bytes);
    if (json) {
        assert_non_null(strstr(text.bytes, "{\"error\":{\"message\":"));
        assert_non_null(strstr(text.bytes, "application/json"));
    }
    assert_int_equal(net_occurrences(&text, "HTTP/1.1 "), 1);
    assert_true(text.eof); /* a reset would lose the answer on real nets */
    assert_int_equal(world.handled, handled);
    net_text_free(&text);
}

#define H    "POST /x HTTP/1.1\r\nHost: a\r\n"
#define NEXT "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

static const char *const odd_framing[] = {
    /* A17: Content-Length with each coding */
    H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT,
    H "Content-Length: 5\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
    H "Content-Length: 5\r\nTransfer-Encoding: chunked \r\n\r\n0\r\n\r\n",
    H "Content-Length: 5\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
    H "Content-Length: 5\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
      "Transfer-Encoding: chunked\r\n\r\n",
    /* codings alone */
    H "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n",
    H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    H "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding: chunked \r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding: identity\r\n\r\n",
    H "Transfer-Encoding: xchunked\r\n\r\n",
    H "Transfer-Encoding:\r\n\r\n",
    H "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding: \x0b"
      "chunked\r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    H "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    H " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    H "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    H "X: y\rTransfer-Encoding: chunked\r\n\r\n",
    "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    /* lengths */
    H "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    H "Content-Length: 5, 6\r\n\r\nhello!",
    H "Content-Length: 5,5\r\n\r\nhello!",
    H "Content-Length: +5\r\n\r\nhello!",
    H "Content-Length: 0x5\r\n\r\nhello!",
    H "Content-Length: -1\r\n\r\nhello!",
    H "Content-Length: 5 5\r\n\r\nhello!",
    H "Content-Length:\r\n\r\nhello!",
    H "Content-Length : 5\r\n\r\nhello",
    /* heads */
    "GET /x HTTP/1.1\r\n\r\n",
    "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET /x HTTP/1.1\r\nHost: a\r\nno colon here\r\n\r\n",
    "GET /x HTTP/1.1\r\nHost: a\r\n: nameless\r\n\r\n",
    "GET /x HTTP/1.1\r\nHost: a\r\nX: folded\r\n  line\r\n\r\n",
    "GET /x HTTP/1.1\r\nHost: a\r\nX(: y\r\n\r\n",
    "GET /x%00y HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /x\tHTTP/1.1\r\nHost: a\r\n\r\n",
    "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n",
    "G(T /x HTTP/1.1\r\nHost: a\r\n\r\n",
    /* chunks */
    H "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    H "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    H "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    H "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    H "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
};

static void refuses_odd_framing(void **state)
{
    (void)state;
    struct bt_httpd_counters before, after;
    bt_httpd_counters_get(world.httpd, &before);
    for (size_t i = 0; i < sizeof(odd_framing) / sizeof(odd_framing[0]); i++) {
        struct net_text text = {0};
        unsigned handled = world.handled;
        int status = exchange(odd_framing[i], strlen(odd_framing[i]), &text);
        if (status != 400 || net_occurrences(&text, "HTTP/1.1 ") != 1 ||
            world.handled != handled)
            fail_msg("case %zu: status %d, handled %u for <%s>: <%s>", i,
                     status, world.handled - handled, odd_framing[i],
                     text.bytes);
        net_text_free(&text);
    }
    bt_httpd_counters_get(world.httpd, &after);
    assert_true(after.refused_400 > before.refused_400);
    assert_int_equal(after.body_bytes, 0);
}

/* The table of design.md: those that libmicrohttpd lets through, in JSON. */
static void refuses_in_json(void **state)
{
    (void)state;
    static const char both[] =
        H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char two[] =
        H "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!";
    static const char odd[] = H "Transfer-Encoding: chunked,\r\n\r\n";
    static const char nul[] = H "X: a\0b\r\n\r\n";
    static const char nul_last[] = "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n";
    static const char nul_hides[] =
        H "X: a\0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    static const char nul_target[] = "GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n";
    refused_text(both, sizeof(both) - 1, 400, true);
    refused_text(two, sizeof(two) - 1, 400, true);
    refused_text(odd, sizeof(odd) - 1, 400, true);
    refused_text(nul, sizeof(nul) - 1, 400, true);
    refused_text(nul_last, sizeof(nul_last) - 1, 400, true);
    refused_text(nul_hides, sizeof(nul_hides) - 1, 400, true);
    refused_text(nul_target, sizeof(nul_target) - 1, 400, true);
}

static void accepts_plain_framing(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *body;
    } cases[] = {
        {H "Content-Length: 5\r\nConnection: close\r\n\r\nhello", "hello"},
        {H "content-length: 5\r\nconnection: close\r\n\r\nhello", "hello"},
        {H
         "Content-Length:5\r\nX:\r\nY: \t z\r\nConnection: close\r\n\r\nhello",
         "hello"},
        {H "Connection: close\r\n\r\n", ""},
        {H "Content-Length: 0\r\nConnection: close\r\n\r\n", ""},
        {H "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
           "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
         "hello"},
        {H "Transfer-Encoding: Chunked\r\nConnection: close\r\n\r\n"
           "5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
         "hello"},
        /* RFC 9112 7.1.1: unknown extensions are ignored */
        {H "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
           "5;ext=1\r\nhello\r\n0\r\n\r\n",
         "hello"},
        {"GET /x?a=b HTTP/1.0\r\n\r\n", ""},
        {"\r\nGET /x HTTP/1.0\r\nHost: a\r\n\r\n", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct net_text text = {0};
        unsigned handled = world.handled;
        int status = exchange(cases[i].bytes, strlen(cases[i].bytes), &text);
        if (status != 200 || world.handled != handled + 1 ||
            strcmp(world.seen_body, cases[i].body) != 0)
            fail_msg("case %zu: status %d body <%s>", i, status,
                     world.seen_body);
        net_text_free(&text);
    }
}

/* One byte per segment must not change anything (the guard walks memory). */
static void accepts_byte_by_byte(void **state)
{
    (void)state;
    static const char bytes[] = H "Content-Length: 5\r\nX: y\r\n"
                                  "Connection: close\r\n\r\nhello";
    struct net_text text = {0};
    int fd = net_connect(bt_httpd_port(world.httpd));
    for (size_t i = 0; i < sizeof(bytes) - 1; i++) {
        assert_true(net_send(world.loop, fd, bytes + i, 1));
        net_turn(world.loop);
    }
    assert_true(net_read_end(world.loop, fd, &text));
    assert_non_null(strstr(text.bytes, "/x got 5"));
    close(fd);
    net_text_free(&text);
}

static void size_case(size_t bytes, bool chunked, int wanted)
{
    char head[128];
    struct net_text text = {0};
    char *body = malloc(bytes);
    memset(body, 'b', bytes);
    int fd = net_connect(bt_httpd_port(world.httpd));
    if (chunked)
        snprintf(head, sizeof(head),
                 H "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", bytes);
    else
        snprintf(head, sizeof(head), H "Content-Length: %zu\r\n\r\n", bytes);
    assert_true(net_say(world.loop, fd, head));
    (void)net_send(world.loop, fd, body, bytes);
    if (chunked)
        (void)net_say(world.loop, fd, "\r\n0\r\n\r\n");
    if (wanted == 200) {
        assert_true(net_read_until(world.loop, fd, &text, "got ", 1));
    } else {
        assert_true(net_read_end(world.loop, fd, &text));
        assert_true(text.eof);
        assert_non_null(strstr(text.bytes, "{\"error\":"));
        assert_non_null(strstr(text.bytes, "Connection: close"));
    }
    assert_int_equal(strtol(text.bytes + 9, NULL, 10), wanted);
    close(fd);
    free(body);
    net_text_free(&text);
}

static void limits_bodies(void **state)
{
    (void)state;
    struct bt_httpd_counters counters;
    for (int chunked = 0; chunked < 2; chunked++) {
        size_case(BODY_MAX - 1, chunked, 200);
        size_case(BODY_MAX, chunked, 200);
        size_case(BODY_MAX + 1, chunked, 413);
        size_case(BODY_MAX * 300, chunked, 413); /* still being uploaded */
    }
    bt_httpd_counters_get(world.httpd, &counters);
    assert_int_equal(counters.refused_413, 4);
    assert_int_equal(counters.body_bytes, 0);
}

static void limits_chunk_sizes(void **state)
{
    (void)state;
    char big[BODY_MAX + 256];
    /* 17 digits do not fit 64 bits: refused at once */
    static const char overflow[] = H "Transfer-Encoding: chunked\r\n\r\n"
                                     "FFFFFFFFFFFFFFFFF\r\nhello";
    refused_text(overflow, sizeof(overflow) - 1, 413, false);
    /* 16 do: refused when the body passes the limit */
    int head = snprintf(big, sizeof(big),
                        H "Transfer-Encoding: chunked\r\n\r\n"
                          "FFFFFFFFFFFFFFFF\r\n");
    memset(big + head, 'x', sizeof(big) - (size_t)head - 1);
    big[sizeof(big) - 1] = 0;
    refused_text(big, sizeof(big) - 1, 413, true);
}

static void answers_expect(void **state)
{
    (void)state;
    struct net_text text = {0};
    int fd = net_connect(bt_httpd_port(world.httpd));
    assert_true(net_say(world.loop, fd,
                        H "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"));
    assert_true(net_read_until(world.loop, fd, &text, "\r\n\r\n", 1));
    assert_int_equal(strncmp(text.bytes, "HTTP/1.1 100", 12), 0);
    assert_true(net_say(world.loop, fd, "hello"));
    assert_true(net_read_until(world.loop, fd, &text, "got 5", 1));
    close(fd);
    net_text_free(&text);
    static const char over[] =
        H "Content-Length: 10001\r\nExpect: 100-continue\r\n\r\n";
    refused_text(over, sizeof(over) - 1, 413, true);
}

/* A whole head of exactly so many bytes. */
static void big_head(char *out, size_t bytes)
{
    static const char start[] = "GET /x HTTP/1.1\r\nHost: a\r\nX: ";
    memset(out, 'v', bytes);
    memcpy(out, start, sizeof(start) - 1);
    memcpy(out + bytes - 4, "\r\n\r\n", 4);
    out[bytes] = 0;
}

static void limits_headers(void **state)
{
    (void)state;
    static const size_t sizes[] = {HEADER_MAX + 1, 3 * HEADER_MAX,
                                   40 * HEADER_MAX};
    struct bt_httpd_counters counters;
    char *bytes = malloc(41 * HEADER_MAX);
    for (size_t i = 0; i < 3; i++) {
        big_head(bytes, sizes[i]);
        refused_text(bytes, sizes[i], 431, i == 0);
    }
    free(bytes);
    bt_httpd_counters_get(world.httpd, &counters);
    assert_int_equal(counters.refused_431, 3);
}

#define LINE_BYTES 162

/* A whole head of exactly so many bytes in lines of LINE_BYTES. */
static void many_lines(char *out, size_t bytes)
{
    size_t at =
        (size_t)snprintf(out, LINE_BYTES, "GET /x HTTP/1.1\r\nHost: a\r\n");
    for (unsigned i = 0; at + 2 < bytes; i++) {
        size_t line = bytes - 2 - at;
        if (line >= (size_t)2 * LINE_BYTES)
            line = LINE_BYTES;
        memset(out + at, 'v', line);
        int name = snprintf(out + at, line, "X-%03u: ", i);
        out[at + (size_t)name] = 'v'; /* over the NUL */
        memcpy(out + at + line - 2, "\r\n", 2);
        at += line;
    }
    memcpy(out + at, "\r\n", 2);
}

/* Heads up to the limit are taken, in one line or in 200, first or later on
 * their connection; one byte more is refused in JSON. */
static void default_limit_of_heads(void **state)
{
    (void)state;
    enum { LIMIT = 32 * 1024 };
    static char bytes[LIMIT + 2];
    struct net_text text = {0};
    char error[160];
    bt_httpd_stop(world.httpd);
    assert_int_equal(bt_httpd_start(world.loop, "127.0.0.1", 0, NULL,
                                    on_request, &world, &world.httpd, error,
                                    sizeof(error)),
                     BT_OK);
    int fd = net_connect(bt_httpd_port(world.httpd));
    for (unsigned i = 1; i <= 4; i++) {
        if (i % 2 == 0)
            big_head(bytes, LIMIT);
        else
            many_lines(bytes, LIMIT);
        assert_true(net_send(world.loop, fd, bytes, LIMIT));
        assert_true(net_read_until(world.loop, fd, &text, "/x got 0", i));
    }
    close(fd);
    assert_int_equal(net_occurrences(&text, "HTTP/1.1 200"), 4);
    net_text_free(&text);
    big_head(bytes, LIMIT + 1);
    refused_text(bytes, LIMIT + 1, 431, true);
}

/* A14: over the total of all bodies, 503 with Retry-After; then room again. */
static void limits_all_bodies(void **state)
{
    (void)state;
    int fds[3];
    char body[BODY_MAX];
    struct net_text text = {0};
    memset(body, 'b', sizeof(body));
    for (int i = 0; i < 3; i++) {
        fds[i] = net_connect(bt_httpd_port(world.httpd));
        assert_true(
            net_say(world.loop, fds[i], H "Content-Length: 10000\r\n\r\n"));
        assert_true(net_send(world.loop, fds[i], body, 9000));
    }
    net_turn(world.loop);
    int fd = net_connect(bt_httpd_port(world.httpd));
    assert_true(net_say(world.loop, fd, H "Content-Length: 10000\r\n\r\n"));
    assert_true(net_read_end(world.loop, fd, &text));
    assert_int_equal(strncmp(text.bytes, "HTTP/1.1 503", 12), 0);
    assert_non_null(strstr(text.bytes, "Retry-After: "));
    close(fd);
    net_text_free(&text);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    for (int64_t end = net_now_ms() + NET_DEADLINE_MS; net_now_ms() < end;) {
        struct bt_httpd_counters counters;
        net_turn(world.loop);
        bt_httpd_counters_get(world.httpd, &counters);
        if (counters.body_bytes == 0)
            break;
    }
    size_case(BODY_MAX, false, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(refuses_odd_framing),    T(refuses_in_json), T(accepts_plain_framing),
        T(accepts_byte_by_byte),   T(limits_bodies),   T(limits_chunk_sizes),
        T(answers_expect),         T(limits_headers),  T(limits_all_bodies),
        T(default_limit_of_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
