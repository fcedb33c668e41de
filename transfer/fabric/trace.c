/* The decorator trace: a line of text for each call and upcall, in the order
 * in which they happen, a call before what it leads to. Changes nothing.
 * Lines: the name of the call, then key=value; connections are numbered from 1
 * in the order in which they are made. Keys and turns are not traced. */
#include "wrap.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define LINE_MAX_BYTES 160

struct trace {
    struct wrap wrap;
    bt_ttrace_fn fn;
    void *arg;
};

__attribute__((format(printf, 2, 3))) static void say(const struct wrap *wrap,
                                                      const char *format, ...)
{
    const struct trace *trace = (const struct trace *)wrap;
    char line[LINE_MAX_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    trace->fn(trace->arg, line);
}

static const struct wrap *of(const struct bt_tconn *base)
{
    return ((const struct wrap_conn *)base)->wrap;
}

static uint32_t id(const struct bt_tconn *base)
{
    return ((const struct wrap_conn *)base)->id;
}

/* ---- calls ---- */

static enum bt_status map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out)
{
    enum bt_status status = bt_wrap_map(transport, address, bytes, out);

    say((struct wrap *)transport, "map bytes=%zu status=%s", bytes,
        bt_status_name(status));
    return status;
}

static void unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    say((struct wrap *)transport, "unmap");
    bt_wrap_unmap(transport, mem);
}

static enum bt_status listen_on(struct bt_transport *transport,
                                const struct sockaddr *address, socklen_t size,
                                bt_taccept_fn accept, void *arg,
                                uint16_t *port_out, struct bt_tlisten **out)
{
    uint16_t port = 0;
    enum bt_status status =
        bt_wrap_listen(transport, address, size, accept, arg, &port, out);

    say((struct wrap *)transport, "listen port=%u status=%s",
        (unsigned int)port, bt_status_name(status));
    if (status == BT_OK)
        *port_out = port;
    return status;
}

static enum bt_status connect_to(struct bt_transport *transport,
                                 const struct sockaddr *address, socklen_t size,
                                 struct bt_tconn **out)
{
    enum bt_status status = bt_wrap_connect(transport, address, size, out);

    say((struct wrap *)transport, "connect conn=%u status=%s",
        status == BT_OK ? (unsigned int)id(*out) : 0, bt_status_name(status));
    return status;
}

static void allow(struct bt_tconn *base)
{
    say(of(base), "allow conn=%u", id(base));
    bt_wrap_allow(base);
}

static void close_conn(struct bt_tconn *base)
{
    say(of(base), "close conn=%u", id(base));
    bt_wrap_close(base);
}

static void send_frame(struct bt_tconn *base, const void *bytes, size_t size)
{
    say(of(base), "send conn=%u bytes=%zu", id(base), size);
    bt_wrap_send(base, bytes, size);
}

static void start(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *outer, bool is_put)
{
    struct wrap_get *get = bt_wrap_get_new(base, span, outer, is_put);

    say(of(base), "%s conn=%u pieces=%u bytes=%" PRIu64, is_put ? "put" : "get",
        id(base), span->count, span->bytes);
    if (get != NULL)
        bt_wrap_start(get);
    else
        bt_wrap_plain(base, span, outer, is_put);
}

static void get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *outer)
{
    start(base, span, outer, false);
}

static void put(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *outer)
{
    start(base, span, outer, true);
}

/* ---- upcalls ---- */

static void accepted(struct wrap_conn *conn)
{
    say(conn->wrap, "accept conn=%u", conn->id);
}

static void frame(struct wrap_conn *conn, const void *bytes, size_t size)
{
    say(conn->wrap, "frame conn=%u bytes=%zu", conn->id, size);
    bt_wrap_frame(conn, bytes, size);
}

static void failed(struct wrap_conn *conn, enum bt_status status)
{
    say(conn->wrap, "failed conn=%u status=%s", conn->id,
        bt_status_name(status));
    bt_wrap_failed(conn, status);
}

static void closed(struct wrap_conn *conn)
{
    say(conn->wrap, "closed conn=%u", conn->id);
    bt_wrap_closed(conn);
}

static void done(struct wrap_get *g, enum bt_status status)
{
    say(g->conn->wrap, "done conn=%u bytes=%" PRIu64 " status=%s", g->conn->id,
        g->span.bytes, bt_status_name(status));
    bt_wrap_done(g, status);
}

/* ---- begin and end ---- */

static void destroy(struct bt_transport *transport)
{
    struct trace *trace = (struct trace *)transport;

    say(&trace->wrap, "destroy");
    bt_wrap_fini(&trace->wrap);
    free(trace);
}

struct bt_transport *bt_transport_trace(struct bt_transport *inner,
                                        bt_ttrace_fn fn, void *arg)
{
    static const struct wrap_hooks hooks = {
        .conn_size = sizeof(struct wrap_conn),
        .get_size = sizeof(struct wrap_get),
        .accepted = accepted,
        .frame = frame,
        .failed = failed,
        .closed = closed,
        .done = done,
    };
    struct trace *trace = calloc(1, sizeof(*trace));
    struct bt_transport_ops *ops;

    if (trace == NULL)
        return NULL;
    bt_wrap_init(&trace->wrap, inner, &hooks);
    trace->fn = fn;
    trace->arg = arg;
    ops = &trace->wrap.ops;
    ops->destroy = destroy;
    ops->map = map;
    ops->unmap = unmap;
    ops->listen = listen_on;
    ops->connect = connect_to;
    ops->allow = allow;
    ops->close = close_conn;
    ops->send = send_frame;
    ops->get = get;
    ops->put = ops->limits.put ? put : NULL;
    return &trace->wrap.base;
}
