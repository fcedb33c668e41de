/* A transport around another one that passes everything on: the base of the
 * decorators trace and fault. Decides only how connections, listeners and gets
 * of the two layers belong together. Invariant: a connection of this layer
 * lives exactly as long as the inner one it is the owner of. */
#include "wrap.h"

#include <stdlib.h>

struct bt_tlisten {
    LIST_ENTRY(bt_tlisten) entry;
    struct wrap *wrap;
    struct bt_tlisten *inner;
    bt_taccept_fn accept;
    void *arg;
};

static const struct bt_transport_ops *inner_ops(const struct bt_tconn *base)
{
    return ((const struct wrap_conn *)base)->wrap->inner->ops;
}

static struct bt_tconn *inner_conn(const struct bt_tconn *base)
{
    return ((const struct wrap_conn *)base)->inner;
}

/* ---- upcalls ---- */

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct wrap_conn *conn = arg;

    conn->wrap->hooks->frame(conn, bytes, size);
}

static void on_failed(void *arg, enum bt_status status)
{
    struct wrap_conn *conn = arg;

    conn->wrap->hooks->failed(conn, status);
}

static void on_closed(void *arg)
{
    struct wrap_conn *conn = arg;

    conn->wrap->hooks->closed(conn);
}

static const struct bt_tconn_events events = {
    .frame = on_frame, .failed = on_failed, .closed = on_closed};

void bt_wrap_frame(struct wrap_conn *conn, const void *bytes, size_t size)
{
    if (!conn->is_closing && conn->base.events != NULL)
        conn->base.events->frame(conn->base.arg, bytes, size);
}

void bt_wrap_failed(struct wrap_conn *conn, enum bt_status status)
{
    if (conn->is_closing)
        return;
    if (conn->base.events != NULL)
        conn->base.events->failed(conn->base.arg, status);
    else
        bt_wrap_close(&conn->base);
}

static void conn_free(struct wrap_conn *conn)
{
    LIST_REMOVE(conn, entry);
    free(conn);
}

void bt_wrap_closed(struct wrap_conn *conn)
{
    if (conn->base.events != NULL)
        conn->base.events->closed(conn->base.arg);
    conn_free(conn);
}

void bt_wrap_done(struct wrap_get *get, enum bt_status status)
{
    struct bt_tget *outer = get->outer;

    LIST_REMOVE(get, entry);
    free(get);
    outer->done(outer, status);
}

/* ---- connections ---- */

static struct wrap_conn *conn_new(struct wrap *wrap)
{
    struct wrap_conn *conn = calloc(1, wrap->hooks->conn_size);

    if (conn == NULL)
        return NULL;
    conn->wrap = wrap;
    conn->id = ++wrap->last_id;
    LIST_INSERT_HEAD(&wrap->conns, conn, entry);
    return conn;
}

static void adopt(struct wrap_conn *conn, struct bt_tconn *inner)
{
    conn->inner = inner;
    inner->arg = conn;
    inner->events = &events;
}

static void on_accept(void *arg, struct bt_tconn *inner)
{
    struct bt_tlisten *l = arg;
    struct wrap_conn *conn = conn_new(l->wrap);

    if (conn == NULL)
        return; /* without events the inner transport closes it */
    adopt(conn, inner);
    if (l->wrap->hooks->accepted != NULL)
        l->wrap->hooks->accepted(conn);
    l->accept(l->arg, &conn->base);
    if (conn->base.events != NULL)
        return;
    inner->events = NULL;
    conn_free(conn);
}

enum bt_status bt_wrap_listen(struct bt_transport *transport,
                              const struct sockaddr *address, socklen_t size,
                              bt_taccept_fn accept, void *arg,
                              uint16_t *port_out, struct bt_tlisten **out)
{
    struct wrap *wrap = (struct wrap *)transport;
    struct bt_tlisten *l = calloc(1, sizeof(*l));
    enum bt_status status;

    if (l == NULL)
        return BT_NO_MEMORY;
    l->wrap = wrap;
    l->accept = accept;
    l->arg = arg;
    status = wrap->inner->ops->listen(wrap->inner, address, size, on_accept, l,
                                      port_out, &l->inner);
    if (status != BT_OK) {
        free(l);
        return status;
    }
    LIST_INSERT_HEAD(&wrap->listeners, l, entry);
    *out = l;
    return BT_OK;
}

void bt_wrap_unlisten(struct bt_tlisten *l)
{
    l->wrap->inner->ops->unlisten(l->inner);
    LIST_REMOVE(l, entry);
    free(l);
}

enum bt_status bt_wrap_connect(struct bt_transport *transport,
                               const struct sockaddr *address, socklen_t size,
                               struct bt_tconn **out)
{
    struct wrap *wrap = (struct wrap *)transport;
    struct wrap_conn *conn = conn_new(wrap);
    struct bt_tconn *inner;
    enum bt_status status;

    if (conn == NULL)
        return BT_NO_MEMORY;
    status = wrap->inner->ops->connect(wrap->inner, address, size, &inner);
    if (status != BT_OK) {
        conn_free(conn);
        return status;
    }
    adopt(conn, inner);
    *out = &conn->base;
    return BT_OK;
}

void bt_wrap_allow(struct bt_tconn *base)
{
    inner_ops(base)->allow(inner_conn(base));
}

void bt_wrap_close(struct bt_tconn *base)
{
    ((struct wrap_conn *)base)->is_closing = true;
    inner_ops(base)->close(inner_conn(base));
}

void bt_wrap_send(struct bt_tconn *base, const void *bytes, size_t size)
{
    inner_ops(base)->send(inner_conn(base), bytes, size);
}

bool bt_wrap_sent(const struct bt_tconn *base)
{
    return inner_ops(base)->sent(inner_conn(base));
}

void bt_wrap_describe(const struct bt_tconn *base, char *out, size_t size)
{
    inner_ops(base)->describe(inner_conn(base), out, size);
}

/* ---- memory and gets ---- */

enum bt_status bt_wrap_map(struct bt_transport *transport, void *address,
                           size_t bytes, struct bt_tmem **out)
{
    struct bt_transport *inner = ((struct wrap *)transport)->inner;

    return inner->ops->map(inner, address, bytes, out);
}

void bt_wrap_why(const struct bt_transport *transport, char *out, size_t size)
{
    const struct bt_transport *inner = ((const struct wrap *)transport)->inner;

    inner->ops->why(inner, out, size);
}

void bt_wrap_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    struct bt_transport *inner = ((struct wrap *)transport)->inner;

    inner->ops->unmap(inner, mem);
}

enum bt_status bt_wrap_key_pack(struct bt_transport *transport,
                                struct bt_tmem *mem, uint8_t *out, size_t size,
                                uint16_t *used_out)
{
    struct bt_transport *inner = ((struct wrap *)transport)->inner;

    return inner->ops->key_pack(inner, mem, out, size, used_out);
}

enum bt_status bt_wrap_key_open(struct bt_tconn *base, const uint8_t *bytes,
                                size_t size, struct bt_tkey **out)
{
    return inner_ops(base)->key_open(inner_conn(base), bytes, size, out);
}

static void on_done(struct bt_tget *inner, enum bt_status status)
{
    struct wrap_get *get = (struct wrap_get *)inner;

    get->conn->wrap->hooks->done(get, status);
}

struct wrap_get *bt_wrap_get_new(struct bt_tconn *base,
                                 const struct bt_tspan *span,
                                 struct bt_tget *outer, bool is_put)
{
    struct wrap_conn *conn = (struct wrap_conn *)base;
    struct wrap_get *get = calloc(1, conn->wrap->hooks->get_size);

    if (get == NULL)
        return NULL;
    get->get.done = on_done;
    get->span = *span;
    get->outer = outer;
    get->conn = conn;
    get->is_put = is_put;
    LIST_INSERT_HEAD(&conn->wrap->gets, get, entry);
    return get;
}

void bt_wrap_plain(struct bt_tconn *base, const struct bt_tspan *span,
                   struct bt_tget *get, bool is_put)
{
    if (is_put)
        inner_ops(base)->put(inner_conn(base), span, get);
    else
        inner_ops(base)->get(inner_conn(base), span, get);
}

void bt_wrap_start(struct wrap_get *get)
{
    bt_wrap_plain(&get->conn->base, &get->span, &get->get, get->is_put);
}

/* ---- begin and end ---- */

bool bt_wrap_turn(struct bt_transport *transport)
{
    struct bt_transport *inner = ((struct wrap *)transport)->inner;

    return inner->ops->turn(inner);
}

void bt_wrap_init(struct wrap *wrap, struct bt_transport *inner,
                  const struct wrap_hooks *hooks)
{
    wrap->inner = inner;
    wrap->hooks = hooks;
    LIST_INIT(&wrap->conns);
    LIST_INIT(&wrap->gets);
    LIST_INIT(&wrap->listeners);
    wrap->ops = (struct bt_transport_ops){
        .name = inner->ops->name,
        .limits = inner->ops->limits,
        .turn = bt_wrap_turn,
        .map = bt_wrap_map,
        .unmap = bt_wrap_unmap,
        .key_pack = bt_wrap_key_pack,
        .key_open = bt_wrap_key_open,
        .key_close = inner->ops->key_close,
        .listen = bt_wrap_listen,
        .unlisten = bt_wrap_unlisten,
        .connect = bt_wrap_connect,
        .allow = bt_wrap_allow,
        .close = bt_wrap_close,
        .send = bt_wrap_send,
        .sent = bt_wrap_sent,
        .describe = inner->ops->describe != NULL ? bt_wrap_describe : NULL,
        .why = inner->ops->why != NULL ? bt_wrap_why : NULL,
    };
    wrap->base.ops = &wrap->ops;
}

void bt_wrap_fini(struct wrap *wrap)
{
    struct wrap_conn *conn, *next_conn;
    struct wrap_get *get, *next_get;
    struct bt_tlisten *l, *next_l;

    wrap->inner->ops->destroy(wrap->inner);
    for (get = LIST_FIRST(&wrap->gets); get != NULL; get = next_get) {
        next_get = LIST_NEXT(get, entry);
        free(get);
    }
    for (conn = LIST_FIRST(&wrap->conns); conn != NULL; conn = next_conn) {
        next_conn = LIST_NEXT(conn, entry);
        free(conn);
    }
    for (l = LIST_FIRST(&wrap->listeners); l != NULL; l = next_l) {
        next_l = LIST_NEXT(l, entry);
        free(l);
    }
}
