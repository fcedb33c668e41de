/* See kv_tap.h. Connections are the inner transport's own; a side table says
 * which tap one belongs to. Held gets are ended by close, before `closed`, as
 * the rules of transport.h want. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_tap.h"

#include "fabric.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define CONNS_MAX 256
#define HELD_MAX  4096

struct tapped {
    struct bt_transport base; /* first */
    struct bt_transport_ops ops;
    struct bt_transport *inner;
    struct ev_loop *loop;
    uint32_t rail;
    bt_taccept_fn accept;
    void *accept_arg;
    ev_timer ends;
};

struct line {
    struct tapped *tapped;
    struct bt_tconn *conn;
    bool closing; /* asked for; the inner close follows from the loop */
};
struct held {
    struct bt_tconn *conn;
    struct bt_tspan span;
    struct bt_tget *get;
};

struct tap tap;
static struct line lines[CONNS_MAX];
static struct held held[HELD_MAX];
static size_t held_count;

/* The owner's get while the inner one is out. */
struct passing {
    struct bt_tget get; /* first */
    struct bt_tget *outer;
    struct tapped *tapped;
    struct bt_tspan span;
};

static struct line *line_of(const struct bt_tconn *conn)
{
    for (size_t i = 0; i < CONNS_MAX; i++) {
        if (lines[i].conn == conn)
            return &lines[i];
    }
    fail_msg("a connection that is not tapped");
    return NULL;
}

static void line_add(struct tapped *t, struct bt_tconn *conn)
{
    struct line *line = line_of(NULL);

    *line = (struct line){t, conn, false};
}

static struct tap_rail *rail_of(const struct bt_tconn *conn)
{
    return &tap.rails[line_of(conn)->tapped->rail];
}

static const struct bt_transport_ops *inner_of(const struct bt_tconn *conn)
{
    return line_of(conn)->tapped->inner->ops;
}

static bool spend(int *count)
{
    if (*count <= 0)
        return false;
    (*count)--;
    return true;
}

/* ---- gets ---- */

static void on_passed(struct bt_tget *get, enum bt_status status)
{
    struct passing *p = (struct passing *)get;
    struct tap_rail *rail = &tap.rails[p->tapped->rail];
    struct bt_tget *outer = p->outer;

    rail->posted--;
    if (status == BT_OK && spend(&rail->flip_get))
        ((unsigned char *)p->span.pieces[0].local)[3] ^= 0x10;
    free(p);
    outer->done(outer, status);
}

static void pass(struct tapped *t, struct bt_tconn *conn,
                 const struct bt_tspan *span, struct bt_tget *get)
{
    struct passing *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    p->get.done = on_passed;
    p->outer = get;
    p->tapped = t;
    p->span = *span;
    tap.rails[t->rail].posted++;
    t->inner->ops->get(conn, &p->span, &p->get);
}

static void tap_get(struct bt_tconn *conn, const struct bt_tspan *span,
                    struct bt_tget *get)
{
    struct tap_rail *rail = rail_of(conn);
    struct tapped *t = line_of(conn)->tapped;

    rail->gets++;
    if (rail->cut || rail->hold_gets || rail->fail_get > 0) {
        assert_true(held_count < HELD_MAX);
        held[held_count++] = (struct held){conn, *span, get};
        if (!rail->cut && !rail->hold_gets) {
            ev_timer_set(&t->ends, 0, 0);
            ev_timer_start(t->loop, &t->ends);
        }
        return;
    }
    pass(t, conn, span, get);
}

static struct held take(size_t i)
{
    struct held h = held[i];

    held[i] = held[--held_count];
    return h;
}

void tap_release(uint32_t rail)
{
    size_t i = 0;

    tap.rails[rail].hold_gets = false;
    while (i < held_count) {
        struct line *line = line_of(held[i].conn);
        struct held h;

        if (line->tapped->rail != rail || line->closing) {
            i++;
            continue;
        }
        h = take(i);
        pass(line->tapped, h.conn, &h.span, h.get);
    }
}

/* ---- the end of connections, and of gets that shall fail ---- */

static bool end_gets(struct tapped *t)
{
    bool worked = false;
    size_t i = 0;

    while (i < held_count) {
        struct line *line = line_of(held[i].conn);
        struct tap_rail *rail = &tap.rails[t->rail];
        enum bt_status status = BT_CANCELLED;
        struct held h;

        if (line->tapped != t ||
            (!line->closing && (rail->cut || rail->hold_gets))) {
            i++;
            continue;
        }
        h = take(i);
        worked = true;
        if (!line->closing && !spend(&rail->fail_get)) {
            pass(t, h.conn, &h.span, h.get);
            continue;
        }
        if (!line->closing)
            status = BT_PEER_ERROR;
        h.get->done(h.get, status);
        i = 0; /* the table may have changed */
    }
    return worked;
}

static bool end_lines(struct tapped *t)
{
    bool worked = end_gets(t);

    for (size_t i = 0; i < CONNS_MAX; i++) {
        struct bt_tconn *conn = lines[i].conn;

        if (conn == NULL || lines[i].tapped != t || !lines[i].closing)
            continue;
        lines[i] = (struct line){0};
        t->inner->ops->close(conn);
        worked = true;
    }
    return worked;
}

static void on_ends(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    end_lines(w->data);
}

static void tap_close(struct bt_tconn *conn)
{
    struct line *line = line_of(conn);

    if (line->closing)
        return;
    line->closing = true;
    ev_timer_set(&line->tapped->ends, 0, 0);
    ev_timer_start(line->tapped->loop, &line->tapped->ends);
}

void tap_break(struct ev_loop *loop, uint32_t rail)
{
    (void)loop;
    for (size_t i = 0; i < CONNS_MAX; i++) {
        struct bt_tconn *conn = lines[i].conn;

        if (conn == NULL || lines[i].closing || lines[i].tapped->rail != rail)
            continue;
        conn->events->failed(conn->arg, BT_RESET);
    }
}

/* ---- frames ---- */

static void tap_send(struct bt_tconn *conn, const void *bytes, size_t size)
{
    struct tap_rail *rail = rail_of(conn);
    const struct bt_transport_ops *inner = inner_of(conn);
    bool is_it = ((const uint8_t *)bytes)[3] == rail->type;
    uint8_t *copy;

    if (line_of(conn)->closing)
        return;
    rail->sends++;
    if (rail->cut || (is_it && spend(&rail->drop_send)))
        return;
    if (is_it && spend(&rail->flip_send)) {
        copy = malloc(size);
        assert_non_null(copy);
        memcpy(copy, bytes, size);
        copy[size / 2] ^= 4;
        inner->send(conn, copy, size);
        free(copy);
        return;
    }
    inner->send(conn, bytes, size);
    if (is_it && spend(&rail->twice_send))
        inner->send(conn, bytes, size);
}

static bool tap_sent(const struct bt_tconn *conn)
{
    return inner_of(conn)->sent(conn);
}

/* ---- the rest of the table ---- */

static enum bt_status tap_connect(struct bt_transport *base,
                                  const struct sockaddr *address,
                                  socklen_t size, struct bt_tconn **out)
{
    struct tapped *t = (struct tapped *)base;
    enum bt_status status;

    tap.rails[t->rail].connects++;
    if (tap.rails[t->rail].refuse)
        return BT_REFUSED;
    status = t->inner->ops->connect(t->inner, address, size, out);
    if (status == BT_OK)
        line_add(t, *out);
    return status;
}

static void on_accept(void *arg, struct bt_tconn *conn)
{
    struct tapped *t = arg;

    line_add(t, conn);
    t->accept(t->accept_arg, conn);
    if (conn->events == NULL)
        *line_of(conn) = (struct line){0};
}

/* One listener per transport is all that these tests need. */
static enum bt_status tap_listen(struct bt_transport *base,
                                 const struct sockaddr *address, socklen_t size,
                                 bt_taccept_fn accept, void *arg,
                                 uint16_t *port_out, struct bt_tlisten **out)
{
    struct tapped *t = (struct tapped *)base;

    t->accept = accept;
    t->accept_arg = arg;
    return t->inner->ops->listen(t->inner, address, size, on_accept, t,
                                 port_out, out);
}

static bool tap_turn(struct bt_transport *base)
{
    struct tapped *t = (struct tapped *)base;
    bool ended = end_lines(t);

    return t->inner->ops->turn(t->inner) || ended;
}

static enum bt_status tap_map(struct bt_transport *base, void *address,
                              size_t bytes, struct bt_tmem **out)
{
    struct tapped *t = (struct tapped *)base;

    return t->inner->ops->map(t->inner, address, bytes, out);
}

static void tap_unmap(struct bt_transport *base, struct bt_tmem *mem)
{
    struct tapped *t = (struct tapped *)base;

    t->inner->ops->unmap(t->inner, mem);
}

static enum bt_status tap_key_pack(struct bt_transport *base,
                                   struct bt_tmem *mem, uint8_t *out,
                                   size_t size, uint16_t *used_out)
{
    struct tapped *t = (struct tapped *)base;

    return t->inner->ops->key_pack(t->inner, mem, out, size, used_out);
}

static void tap_destroy(struct bt_transport *base)
{
    struct tapped *t = (struct tapped *)base;

    end_lines(t);
    ev_timer_stop(t->loop, &t->ends);
    t->inner->ops->destroy(t->inner);
    for (size_t i = 0; i < CONNS_MAX; i++) {
        if (lines[i].tapped == t)
            lines[i] = (struct line){0};
    }
    free(t);
}

static struct bt_transport *tap_wrap(void *arg, struct ev_loop *loop,
                                     uint32_t rail, struct bt_transport *inner)
{
    struct tapped *t = calloc(1, sizeof(*t));

    (void)arg;
    assert_non_null(t);
    assert_true(rail < TAP_RAILS);
    t->ops = *inner->ops; /* what is not replaced needs no transport */
    t->ops.destroy = tap_destroy;
    t->ops.turn = tap_turn;
    t->ops.map = tap_map;
    t->ops.unmap = tap_unmap;
    t->ops.key_pack = tap_key_pack;
    t->ops.listen = tap_listen;
    t->ops.connect = tap_connect;
    t->ops.close = tap_close;
    t->ops.send = tap_send;
    t->ops.sent = tap_sent;
    t->ops.get = tap_get;
    t->base.ops = &t->ops;
    t->inner = inner;
    t->loop = loop;
    t->rail = rail;
    ev_timer_init(&t->ends, on_ends, 0, 0);
    t->ends.data = t;
    return &t->base;
}

/* What a failed test has left behind must not reach the next one. */
void tap_install(void)
{
    memset(&tap, 0, sizeof(tap));
    memset(lines, 0, sizeof(lines));
    memset(held, 0, sizeof(held));
    held_count = 0;
    bt_fabric_wrap(tap_wrap, NULL);
}

void tap_remove(void)
{
    bt_fabric_wrap(NULL, NULL);
    memset(&tap, 0, sizeof(tap));
}
