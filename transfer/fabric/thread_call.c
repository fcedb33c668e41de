/* The decorator thread, calls that return something: the caller hands a note
 * to the thread and waits until it is answered. The wait is bounded by what
 * the calls made before take (at most a ring of them, none of which blocks)
 * plus the call itself: milliseconds. Memory, keys, listeners and connections
 * of the inner transport are made and ended only this way. */
#include "thread.h"

#include <sched.h>
#include <stdlib.h>

void bt_thr_call(struct thr *thr, struct thr_call *call,
                 void (*fn)(struct thr *thr, struct thr_call *call))
{
    call->fn = fn;
    call->is_done = false;
    while (!bt_thr_flush(&thr->calls))
        sched_yield(); /* the thread empties the ring whatever we do */
    pthread_mutex_lock(&thr->lock);
    thr->call = call;
    pthread_mutex_unlock(&thr->lock);
    ev_async_send(thr->calls.to, thr->calls.wake);
    pthread_mutex_lock(&thr->lock);
    while (!call->is_done)
        pthread_cond_wait(&thr->done, &thr->lock);
    pthread_mutex_unlock(&thr->lock);
}

/* ---- memory ---- */

struct map_call {
    struct thr_call call;
    void *address;
    size_t bytes;
    struct bt_tmem *mem;
};

static void map_run(struct thr *thr, struct thr_call *call)
{
    struct map_call *c = (struct map_call *)call;

    call->status =
        thr->inner->ops->map(thr->inner, c->address, c->bytes, &c->mem);
}

enum bt_status bt_thr_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out)
{
    struct map_call c = {.address = address, .bytes = bytes};

    bt_thr_call((struct thr *)transport, &c.call, map_run);
    if (c.call.status == BT_OK)
        *out = c.mem;
    return c.call.status;
}

static void unmap_run(struct thr *thr, struct thr_call *call)
{
    thr->inner->ops->unmap(thr->inner, ((struct map_call *)call)->mem);
}

void bt_thr_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    struct map_call c = {.mem = mem};

    bt_thr_call((struct thr *)transport, &c.call, unmap_run);
}

/* ---- words ---- */

struct text_call {
    struct thr_call call;
    const struct bt_tconn *inner;
    char *out;
    size_t size;
};

static void why_run(struct thr *thr, struct thr_call *call)
{
    struct text_call *c = (struct text_call *)call;

    thr->inner->ops->why(thr->inner, c->out, c->size);
}

/* The table has const there; what is called does not change what it says. */
void bt_thr_why(const struct bt_transport *transport, char *out, size_t size)
{
    struct text_call c = {.out = out, .size = size};

    bt_thr_call((struct thr *)(uintptr_t)transport, &c.call, why_run);
}

static void describe_run(struct thr *thr, struct thr_call *call)
{
    struct text_call *c = (struct text_call *)call;

    thr->inner->ops->describe(c->inner, c->out, c->size);
}

void bt_thr_describe(const struct bt_tconn *base, char *out, size_t size)
{
    const struct thr_conn *conn = (const struct thr_conn *)base;
    struct text_call c = {.inner = conn->inner, .out = out, .size = size};

    bt_thr_call(conn->thr, &c.call, describe_run);
}

/* ---- keys ---- */

struct key_call {
    struct thr_call call;
    struct bt_tmem *mem;
    uint8_t *out;
    const uint8_t *bytes;
    size_t size;
    uint16_t used;
    struct thr_conn *conn;
    struct bt_tkey *key;
};

static void pack_run(struct thr *thr, struct thr_call *call)
{
    struct key_call *c = (struct key_call *)call;

    call->status = thr->inner->ops->key_pack(thr->inner, c->mem, c->out,
                                             c->size, &c->used);
}

enum bt_status bt_thr_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out)
{
    struct key_call c = {.mem = mem, .out = out, .size = size};

    bt_thr_call((struct thr *)transport, &c.call, pack_run);
    if (c.call.status == BT_OK)
        *used_out = c.used;
    return c.call.status;
}

static void open_run(struct thr *thr, struct thr_call *call)
{
    struct key_call *c = (struct key_call *)call;

    call->status = thr->inner->ops->key_open(c->conn->inner, c->bytes, c->size,
                                             &c->key->inner);
}

enum bt_status bt_thr_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out)
{
    struct thr_conn *conn = (struct thr_conn *)base;
    struct bt_tkey *key = malloc(sizeof(*key));
    struct key_call c = {
        .bytes = bytes, .size = size, .conn = conn, .key = key};

    if (key == NULL)
        return BT_NO_MEMORY;
    key->thr = conn->thr;
    bt_thr_call(conn->thr, &c.call, open_run);
    if (c.call.status != BT_OK) {
        free(key);
        return c.call.status;
    }
    *out = key;
    return BT_OK;
}

static void key_close_run(struct thr *thr, struct thr_call *call)
{
    thr->inner->ops->key_close(((struct key_call *)call)->key->inner);
}

void bt_thr_key_close(struct bt_tkey *key)
{
    struct key_call c = {.key = key};

    bt_thr_call(key->thr, &c.call, key_close_run);
    free(key);
}

/* ---- listening and connecting ---- */

struct address_call {
    struct thr_call call;
    const struct sockaddr *address;
    socklen_t size;
    struct bt_tlisten *listener;
    uint16_t port;
    struct thr_conn *conn;
};

static void listen_run(struct thr *thr, struct thr_call *call)
{
    struct address_call *c = (struct address_call *)call;

    call->status =
        thr->inner->ops->listen(thr->inner, c->address, c->size, bt_thr_accept,
                                c->listener, &c->port, &c->listener->inner);
}

enum bt_status bt_thr_listen(struct bt_transport *transport,
                             const struct sockaddr *address, socklen_t size,
                             bt_taccept_fn accept, void *arg,
                             uint16_t *port_out, struct bt_tlisten **out)
{
    struct thr *thr = (struct thr *)transport;
    struct bt_tlisten *l = calloc(1, sizeof(*l));
    struct address_call c = {.address = address, .size = size, .listener = l};

    if (l == NULL)
        return BT_NO_MEMORY;
    l->thr = thr;
    l->accept = accept;
    l->arg = arg;
    l->gone.kind = THR_UNLISTENED;
    bt_thr_call(thr, &c.call, listen_run);
    if (c.call.status != BT_OK) {
        free(l);
        return c.call.status;
    }
    LIST_INSERT_HEAD(&thr->listeners, l, entry);
    *port_out = c.port;
    *out = l;
    return BT_OK;
}

/* What was accepted before is on its way up: `gone` comes after it. */
static void unlisten_run(struct thr *thr, struct thr_call *call)
{
    struct bt_tlisten *l = ((struct address_call *)call)->listener;

    thr->inner->ops->unlisten(l->inner);
    bt_thr_post(&thr->upcalls, &l->gone);
}

void bt_thr_unlisten(struct bt_tlisten *l)
{
    struct address_call c = {.listener = l};

    l->is_dead = true;
    bt_thr_call(l->thr, &c.call, unlisten_run);
}

static void connect_run(struct thr *thr, struct thr_call *call)
{
    struct address_call *c = (struct address_call *)call;
    struct bt_tconn *inner;

    call->status =
        thr->inner->ops->connect(thr->inner, c->address, c->size, &inner);
    if (call->status == BT_OK)
        bt_thr_adopt(c->conn, inner);
}

enum bt_status bt_thr_connect(struct bt_transport *transport,
                              const struct sockaddr *address, socklen_t size,
                              struct bt_tconn **out)
{
    struct thr *thr = (struct thr *)transport;
    struct thr_conn *conn = bt_thr_conn_new(thr);
    struct address_call c = {.address = address, .size = size, .conn = conn};

    if (conn == NULL)
        return BT_NO_MEMORY;
    bt_thr_call(thr, &c.call, connect_run);
    if (c.call.status != BT_OK) {
        free(conn);
        return c.call.status;
    }
    LIST_INSERT_HEAD(&thr->conns, conn, entry);
    *out = &conn->base;
    return BT_OK;
}
