/* The decorator thread, caller's side: the inner transport runs on a thread of
 * its own, calls go down one ring and upcalls come back by another.
 *
 *   caller's loop                             inner transport's loop
 *   call   --> [ring of calls]    --async-->  thread_inner.c makes it
 *   upcall <-- [ring of upcalls]  <--async--  its upcall, posted
 *
 * A full ring is back-pressure: messages wait in order on the side that made
 * them (thread_line.c); frames count bytes against their connection and break
 * it with BT_LIMIT past 64 MiB; gets past `gets` wait here, in the caller's own
 * bt_tget. Decides the order and the life of connections on this side.
 * Invariants: an upcall is made from the loop or turn(), one at a time; what
 * this side made up about a connection (`here`) is told before anything that
 * comes from the ring after it, so `closed` is last. */
#include "thread.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UPCALLS_PER_TURN 512
#define FRAMES_OUT_MAX   (64u << 20) /* bytes per connection */
#define RING_SIZE        4096u
#define GETS_MAX         1024u

/* ---- gets: at most so many are with the inner transport ---- */

static void tell_here(struct thr *thr, struct bt_tevent *event)
{
    bt_thr_append(&thr->here_last, event);
    ev_async_send(thr->loop, &thr->wake);
}

static void launch(struct thr *thr, struct bt_tget *get)
{
    struct thr_job *job = thr->free;

    thr->free = job->next;
    job->outer = get;
    job->event.kind = get->event.kind;
    job->event.conn = get->event.conn;
    job->span = get->span;
    job->span.remote_key = get->span.remote_key->inner;
    bt_thr_post(&thr->calls, &job->event);
}

static void submit(struct bt_tconn *base, const struct bt_tspan *span,
                   struct bt_tget *get, enum thr_kind kind)
{
    struct thr_conn *conn = (struct thr_conn *)base;
    struct thr *thr = conn->thr;

    get->event.kind = kind;
    get->event.conn = base;
    get->span = *span;
    if (conn->is_closing || conn->is_failed) {
        get->event.kind = THR_ENDED;
        tell_here(thr, &get->event);
    } else if (thr->free != NULL && thr->waiting == NULL) {
        launch(thr, get);
    } else {
        thr->get_waits++;
        bt_thr_append(&thr->waiting_last, &get->event);
    }
}

static void get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *g)
{
    submit(base, span, g, THR_GET);
}

static void put(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *g)
{
    submit(base, span, g, THR_PUT);
}

static void launch_waiting(struct thr *thr)
{
    struct bt_tevent *event;

    while (thr->free != NULL && (event = thr->waiting) != NULL) {
        thr->waiting = event->next;
        if (thr->waiting == NULL)
            thr->waiting_last = &thr->waiting;
        launch(thr, (struct bt_tget *)event);
    }
}

/* Gets of this connection that have not been started will not be. */
static void end_waiting(struct thr_conn *conn)
{
    struct thr *thr = conn->thr;
    struct bt_tevent *event, **at = &thr->waiting;

    thr->waiting_last = &thr->waiting;
    while ((event = *at) != NULL) {
        if (event->conn != &conn->base) {
            at = &event->next;
            thr->waiting_last = at;
            continue;
        }
        *at = event->next;
        event->kind = THR_ENDED;
        tell_here(thr, event);
    }
}

/* ---- other calls that do not wait ---- */

static void allow(struct bt_tconn *base)
{
    struct thr_conn *conn = (struct thr_conn *)base;

    if (conn->is_closing || conn->is_allowed)
        return;
    conn->is_allowed = true;
    bt_thr_post(&conn->thr->calls, &conn->allow);
}

static void close_conn(struct bt_tconn *base)
{
    struct thr_conn *conn = (struct thr_conn *)base;

    if (conn->is_closing)
        return;
    conn->is_closing = true;
    end_waiting(conn);
    bt_thr_post(&conn->thr->calls, &conn->close);
}

static void break_here(struct thr_conn *conn, enum bt_status why)
{
    conn->is_failed = true;
    conn->broken_why = why;
    tell_here(conn->thr, &conn->broken);
}

static void send_frame(struct bt_tconn *base, const void *bytes, size_t size)
{
    struct thr_conn *conn = (struct thr_conn *)base;
    struct thr_frame *frame = NULL;

    if (conn->is_closing || conn->is_failed)
        return;
    if (atomic_load(&conn->out_held) + size <= FRAMES_OUT_MAX)
        frame = malloc(sizeof(*frame) + size);
    if (frame == NULL) {
        break_here(conn, BT_LIMIT);
        return;
    }
    frame->event = (struct bt_tevent){NULL, THR_SEND, base};
    frame->size = size;
    memcpy(frame->bytes, bytes, size);
    atomic_fetch_add(&conn->out_held, size);
    conn->frames_sent++;
    bt_thr_post(&conn->thr->calls, &frame->event);
}

static bool all_sent(const struct bt_tconn *base)
{
    const struct thr_conn *conn = (const struct thr_conn *)base;

    return conn->is_closing ||
           atomic_load(&conn->frames_gone) == conn->frames_sent;
}

/* ---- upcalls ---- */

static void announce(struct thr_conn *conn)
{
    struct bt_tlisten *l = conn->listener;

    LIST_INSERT_HEAD(&conn->thr->conns, conn, entry);
    if (!l->is_dead)
        l->accept(l->arg, &conn->base);
    if (conn->base.events == NULL)
        close_conn(&conn->base);
}

static void frame_in(struct thr_conn *conn, struct thr_frame *frame)
{
    atomic_fetch_sub(&conn->in_held, frame->size);
    if (!conn->is_closing && !conn->is_failed && conn->base.events != NULL)
        conn->base.events->frame(conn->base.arg, frame->bytes, frame->size);
    free(frame);
}

static void failed(struct thr_conn *conn, enum bt_status why)
{
    if (conn->is_closing)
        return;
    if (conn->base.events == NULL)
        close_conn(&conn->base);
    else
        conn->base.events->failed(conn->base.arg, why);
}

static void closed(struct thr_conn *conn)
{
    if (conn->base.events != NULL)
        conn->base.events->closed(conn->base.arg);
    LIST_REMOVE(conn, entry);
    free(conn);
}

static void done(struct thr *thr, struct thr_job *job)
{
    struct bt_tget *outer = job->outer;
    enum bt_status status = job->status;

    job->next = thr->free;
    thr->free = job;
    launch_waiting(thr);
    outer->done(outer, status);
}

static void unlistened(struct bt_tevent *event)
{
    struct bt_tlisten *l =
        (struct bt_tlisten *)((char *)event -
                              offsetof(struct bt_tlisten, gone));

    LIST_REMOVE(l, entry);
    free(l);
}

static void upcall(struct thr *thr, struct bt_tevent *event)
{
    struct thr_conn *conn = (struct thr_conn *)event->conn;

    switch ((enum thr_kind)event->kind) {
    case THR_ACCEPT:
        announce(conn);
        break;
    case THR_FRAME:
        frame_in(conn, (struct thr_frame *)event);
        break;
    case THR_FAILED:
        if (!conn->is_failed) {
            conn->is_failed = true;
            failed(conn, conn->why);
        }
        break;
    case THR_BROKEN:
        failed(conn, conn->broken_why);
        break;
    case THR_CLOSED:
        closed(conn);
        break;
    case THR_DONE:
        done(thr, (struct thr_job *)event);
        break;
    case THR_ENDED:
        ((struct bt_tget *)event)->done((struct bt_tget *)event, BT_CANCELLED);
        break;
    case THR_UNLISTENED:
        unlistened(event);
        break;
    case THR_CLOSE:
    case THR_ALLOW:
    case THR_SEND:
    case THR_GET:
    case THR_PUT:
        break; /* never come up */
    }
}

static struct bt_tevent *next_event(struct thr *thr)
{
    struct bt_tevent *event = thr->here;

    if (event == NULL)
        return bt_thr_take(&thr->upcalls, &thr->calls);
    thr->here = event->next;
    if (thr->here == NULL)
        thr->here_last = &thr->here;
    return event;
}

static bool turn(struct bt_transport *transport)
{
    struct thr *thr = (struct thr *)transport;
    struct bt_tevent *event;
    int upcalls = 0;

    (void)bt_thr_flush(&thr->calls);
    while (upcalls < UPCALLS_PER_TURN && (event = next_event(thr)) != NULL) {
        upcall(thr, event);
        upcalls++;
    }
    return upcalls > 0;
}

static void on_wake(struct ev_loop *loop, ev_async *w, int revents)
{
    struct thr *thr = w->data;

    (void)revents;
    (void)turn(&thr->base);
    if (thr->here != NULL || !bt_ring_sleep(&thr->upcalls.ring))
        ev_async_send(loop, w); /* the rest later */
}

/* ---- begin and end ---- */

static void drop(struct thr *thr)
{
    struct bt_tevent *event;
    bool room;

    while ((event = bt_ring_take(&thr->upcalls.ring, &room)) != NULL ||
           (event = thr->upcalls.first) != NULL) {
        if (event == thr->upcalls.first)
            thr->upcalls.first = event->next;
        if (event->kind == THR_FRAME)
            free(event);
        else if (event->kind == THR_ACCEPT)
            LIST_INSERT_HEAD(&thr->conns, (struct thr_conn *)event->conn,
                             entry);
    }
}

static void free_all(struct thr *thr)
{
    struct thr_conn *conn, *next_conn;
    struct bt_tlisten *l, *next_l;

    ev_async_stop(thr->loop, &thr->wake);
    ev_loop_destroy(thr->inner_loop);
    for (conn = LIST_FIRST(&thr->conns); conn != NULL; conn = next_conn) {
        next_conn = LIST_NEXT(conn, entry);
        free(conn);
    }
    for (l = LIST_FIRST(&thr->listeners); l != NULL; l = next_l) {
        next_l = LIST_NEXT(l, entry);
        free(l);
    }
    bt_thr_line_fini(&thr->calls);
    bt_thr_line_fini(&thr->upcalls);
    pthread_cond_destroy(&thr->done);
    pthread_mutex_destroy(&thr->lock);
    free(thr->jobs);
    free(thr);
}

static void destroy(struct bt_transport *transport)
{
    struct thr *thr = (struct thr *)transport;
    struct thr_call call;

    bt_thr_call(thr, &call, bt_thr_stop);
    pthread_join(thr->thread, NULL);
    drop(thr);
    free_all(thr);
}

static const struct bt_transport_ops thread_ops = {
    .destroy = destroy,
    .turn = turn,
    .map = bt_thr_map,
    .unmap = bt_thr_unmap,
    .key_pack = bt_thr_key_pack,
    .key_open = bt_thr_key_open,
    .key_close = bt_thr_key_close,
    .listen = bt_thr_listen,
    .unlisten = bt_thr_unlisten,
    .connect = bt_thr_connect,
    .allow = allow,
    .close = close_conn,
    .send = send_frame,
    .sent = all_sent,
    .get = get,
};

/* Signals stay with the threads that handle them. */
static int thread_create(struct thr *thr)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&thr->thread, NULL, bt_thr_main, thr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static enum bt_status start(struct thr *thr)
{
    struct thr_call first = {.is_done = false};

    thr->call = &first;
    if (thread_create(thr) != 0) {
        snprintf(thr->error, thr->error_size, "thread: cannot create one");
        return BT_LIMIT;
    }
    pthread_mutex_lock(&thr->lock);
    while (!first.is_done)
        pthread_cond_wait(&thr->done, &thr->lock);
    pthread_mutex_unlock(&thr->lock);
    if (first.status != BT_OK) {
        pthread_join(thr->thread, NULL);
        return first.status;
    }
    thr->ops = thread_ops;
    thr->ops.name = thr->inner->ops->name;
    thr->ops.limits = thr->inner->ops->limits;
    thr->ops.put = thr->ops.limits.put ? put : NULL;
    if (thr->inner->ops->describe != NULL)
        thr->ops.describe = bt_thr_describe;
    if (thr->inner->ops->why != NULL)
        thr->ops.why = bt_thr_why;
    thr->base.ops = &thr->ops;
    return BT_OK;
}

static void links_init(struct thr *thr)
{
    LIST_INIT(&thr->conns);
    LIST_INIT(&thr->listeners);
    LIST_INIT(&thr->unsent);
    thr->here_last = &thr->here;
    thr->waiting_last = &thr->waiting;
    thr->calls.to = thr->inner_loop;
    thr->calls.wake = &thr->inner_wake;
    thr->upcalls.to = thr->loop;
    thr->upcalls.wake = &thr->wake;
    pthread_mutex_init(&thr->lock, NULL);
    pthread_cond_init(&thr->done, NULL);
    ev_async_init(&thr->wake, on_wake);
    thr->wake.data = thr;
    ev_async_start(thr->loop, &thr->wake);
}

/* NULL: no memory. */
static struct thr *thr_new(struct ev_loop *loop,
                           const struct bt_tthread_sizes *sizes)
{
    struct thr *thr = aligned_alloc(BT_RING_LINE, sizeof(*thr));

    if (thr == NULL)
        return NULL;
    memset(thr, 0, sizeof(*thr));
    thr->loop = loop;
    thr->inner_loop = ev_loop_new(EVFLAG_AUTO);
    thr->jobs = calloc(sizes->gets, sizeof(*thr->jobs));
    if (thr->inner_loop == NULL || thr->jobs == NULL)
        goto undo_alloc;
    if (!bt_thr_line_init(&thr->calls, sizes->ring))
        goto undo_alloc;
    if (!bt_thr_line_init(&thr->upcalls, sizes->ring))
        goto undo_calls;
    for (uint32_t i = 0; i < sizes->gets; i++) {
        thr->jobs[i].next = thr->free;
        thr->free = &thr->jobs[i];
    }
    links_init(thr);
    return thr;

undo_calls:
    bt_thr_line_fini(&thr->calls);
undo_alloc:
    free(thr->jobs);
    if (thr->inner_loop != NULL)
        ev_loop_destroy(thr->inner_loop);
    free(thr);
    return NULL;
}

enum bt_status bt_transport_thread_open_sized(
    struct ev_loop *loop, bt_topen_fn open, const struct bt_rail_config *rail,
    const struct bt_tthread_sizes *sizes, struct bt_transport **out,
    char *error_out, size_t error_size)
{
    struct thr *thr;
    enum bt_status status;

    assert(sizes->gets > 0);
    thr = thr_new(loop, sizes);
    if (thr == NULL) {
        snprintf(error_out, error_size, "thread: no memory");
        return BT_NO_MEMORY;
    }
    thr->open = open;
    thr->rail = rail;
    thr->error = error_out;
    thr->error_size = error_size;
    status = start(thr);
    if (status != BT_OK) {
        free_all(thr);
        return status;
    }
    *out = &thr->base;
    return BT_OK;
}

enum bt_status bt_transport_thread_open(struct ev_loop *loop, bt_topen_fn open,
                                        const struct bt_rail_config *rail,
                                        struct bt_transport **out,
                                        char *error_out, size_t error_size)
{
    static const struct bt_tthread_sizes sizes = {RING_SIZE, GETS_MAX};

    return bt_transport_thread_open_sized(loop, open, rail, &sizes, out,
                                          error_out, error_size);
}

void bt_transport_thread_waits(const struct bt_transport *transport,
                               struct bt_tthread_waits *out)
{
    const struct thr *thr = (const struct thr *)transport;

    out->calls = atomic_load_explicit(&thr->calls.waits, memory_order_relaxed);
    out->upcalls =
        atomic_load_explicit(&thr->upcalls.waits, memory_order_relaxed);
    out->gets = thr->get_waits;
}
