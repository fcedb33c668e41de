/* The decorator thread, inner side: a thread with a loop of its own and the
 * inner transport on it. Takes calls from the ring, makes them, and posts what
 * the inner transport says. Invariants: only this thread touches the inner
 * transport; an upcall of the inner transport only posts; a synchronous call
 * runs after every call that was made before it. */
#include "thread.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_PER_TURN 512
#define FRAMES_IN_MAX  (64u << 20) /* bytes per connection */
#define SENT_TICK_S    0.001

/* ---- upcalls of the inner transport ---- */

static void fail(struct thr_conn *conn, enum bt_status why)
{
    if (conn->has_failed)
        return;
    conn->has_failed = true;
    conn->why = why;
    bt_thr_post(&conn->thr->upcalls, &conn->failed);
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct thr_conn *conn = arg;
    struct thr_frame *frame = NULL;

    if (conn->has_failed)
        return;
    if (atomic_load(&conn->in_held) + size <= FRAMES_IN_MAX)
        frame = malloc(sizeof(*frame) + size);
    if (frame == NULL) {
        fail(conn, BT_LIMIT);
        return;
    }
    frame->event = (struct bt_tevent){NULL, THR_FRAME, &conn->base};
    frame->size = size;
    memcpy(frame->bytes, bytes, size);
    atomic_fetch_add(&conn->in_held, size);
    bt_thr_post(&conn->thr->upcalls, &frame->event);
}

static void on_failed(void *arg, enum bt_status status)
{
    fail(arg, status);
}

static void gone(struct thr_conn *conn)
{
    atomic_store(&conn->frames_gone, conn->frames_taken);
    if (!conn->is_unsent)
        return;
    conn->is_unsent = false;
    LIST_REMOVE(conn, unsent);
}

static void on_closed(void *arg)
{
    struct thr_conn *conn = arg;

    gone(conn);
    bt_thr_post(&conn->thr->upcalls, &conn->closed);
}

static const struct bt_tconn_events events = {
    .frame = on_frame, .failed = on_failed, .closed = on_closed};

struct thr_conn *bt_thr_conn_new(struct thr *thr)
{
    struct thr_conn *conn = calloc(1, sizeof(*conn));

    if (conn == NULL)
        return NULL;
    conn->thr = thr;
    conn->close = (struct bt_tevent){NULL, THR_CLOSE, &conn->base};
    conn->allow = (struct bt_tevent){NULL, THR_ALLOW, &conn->base};
    conn->accept = (struct bt_tevent){NULL, THR_ACCEPT, &conn->base};
    conn->failed = (struct bt_tevent){NULL, THR_FAILED, &conn->base};
    conn->closed = (struct bt_tevent){NULL, THR_CLOSED, &conn->base};
    conn->broken = (struct bt_tevent){NULL, THR_BROKEN, &conn->base};
    return conn;
}

void bt_thr_adopt(struct thr_conn *conn, struct bt_tconn *inner)
{
    conn->inner = inner;
    inner->arg = conn;
    inner->events = &events;
}

void bt_thr_accept(void *arg, struct bt_tconn *inner)
{
    struct bt_tlisten *l = arg;
    struct thr_conn *conn = bt_thr_conn_new(l->thr);

    if (conn == NULL)
        return; /* without events the inner transport closes it */
    bt_thr_adopt(conn, inner);
    conn->listener = l;
    bt_thr_post(&l->thr->upcalls, &conn->accept);
}

static void on_done(struct bt_tget *get, enum bt_status status)
{
    struct thr_job *job =
        (struct thr_job *)((char *)get - offsetof(struct thr_job, get));
    struct thr_conn *conn = (struct thr_conn *)job->event.conn;

    job->status = status;
    job->event.kind = THR_DONE;
    bt_thr_post(&conn->thr->upcalls, &job->event);
}

/* ---- calls ---- */

static void send_frame(struct thr *thr, struct thr_frame *frame)
{
    struct thr_conn *conn = (struct thr_conn *)frame->event.conn;

    thr->inner->ops->send(conn->inner, frame->bytes, frame->size);
    atomic_fetch_sub(&conn->out_held, frame->size);
    free(frame);
    conn->frames_taken++;
    if (conn->is_unsent)
        return;
    conn->is_unsent = true;
    LIST_INSERT_HEAD(&thr->unsent, conn, unsent);
}

static void start(struct thr *thr, struct thr_job *job)
{
    const struct bt_transport_ops *ops = thr->inner->ops;
    struct bt_tconn *inner = ((struct thr_conn *)job->event.conn)->inner;

    memset(&job->get, 0, sizeof(job->get));
    job->get.done = on_done;
    if (job->event.kind == THR_GET)
        ops->get(inner, &job->span, &job->get);
    else
        ops->put(inner, &job->span, &job->get);
}

static void make(struct thr *thr, struct bt_tevent *event)
{
    struct thr_conn *conn = (struct thr_conn *)event->conn;

    switch ((enum thr_kind)event->kind) {
    case THR_CLOSE:
        thr->inner->ops->close(conn->inner);
        break;
    case THR_ALLOW:
        thr->inner->ops->allow(conn->inner);
        break;
    case THR_SEND:
        send_frame(thr, (struct thr_frame *)event);
        break;
    case THR_GET:
    case THR_PUT:
        start(thr, (struct thr_job *)event);
        break;
    case THR_ACCEPT:
    case THR_FRAME:
    case THR_FAILED:
    case THR_CLOSED:
    case THR_DONE:
    case THR_UNLISTENED:
    case THR_ENDED:
    case THR_BROKEN:
        break; /* never in this ring */
    }
}

static void answer(struct thr *thr)
{
    struct bt_tevent *event;
    struct thr_call *call;

    pthread_mutex_lock(&thr->lock);
    call = thr->call;
    thr->call = NULL;
    pthread_mutex_unlock(&thr->lock);
    if (call == NULL)
        return;
    while ((event = bt_thr_take(&thr->calls, &thr->upcalls)) != NULL)
        make(thr, event); /* bounded: the caller waits */
    call->fn(thr, call);
    pthread_mutex_lock(&thr->lock);
    call->is_done = true;
    pthread_cond_signal(&thr->done);
    pthread_mutex_unlock(&thr->lock);
}

/* There is no upcall for "sent": ask while anything is under way. */
static void ask_sent(struct thr *thr)
{
    struct thr_conn *conn, *next;

    for (conn = LIST_FIRST(&thr->unsent); conn != NULL; conn = next) {
        next = LIST_NEXT(conn, unsent);
        if (thr->inner->ops->sent(conn->inner))
            gone(conn);
    }
    if (LIST_EMPTY(&thr->unsent))
        ev_timer_stop(thr->inner_loop, &thr->tick);
    else if (!ev_is_active(&thr->tick))
        ev_timer_again(thr->inner_loop, &thr->tick);
}

static void on_wake(struct ev_loop *loop, ev_async *w, int revents)
{
    struct thr *thr = w->data;
    struct bt_tevent *event;
    int calls = 0;

    (void)revents;
    (void)bt_thr_flush(&thr->upcalls);
    for (;;) {
        event = bt_thr_take(&thr->calls, &thr->upcalls);
        if (event == NULL && bt_ring_sleep(&thr->calls.ring))
            break;
        if (event != NULL)
            make(thr, event);
        if (++calls == CALLS_PER_TURN) {
            ev_async_send(loop, w);
            break;
        }
    }
    answer(thr);
}

/* Last of the prepare watchers, so after the inner transport's progress. */
static void on_prepare(struct ev_loop *loop, ev_prepare *w, int revents)
{
    (void)loop;
    (void)revents;
    ask_sent(w->data);
}

static void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)w;
    (void)revents; /* the next prepare asks */
}

/* ---- begin and end ---- */

void bt_thr_stop(struct thr *thr, struct thr_call *call)
{
    (void)call;
    thr->inner->ops->destroy(thr->inner);
    LIST_INIT(&thr->unsent);
    ev_async_stop(thr->inner_loop, &thr->inner_wake);
    ev_prepare_stop(thr->inner_loop, &thr->prepare);
    ev_timer_stop(thr->inner_loop, &thr->tick);
    ev_break(thr->inner_loop, EVBREAK_ALL);
}

static enum bt_status begin(struct thr *thr)
{
    enum bt_status status = thr->open(thr->inner_loop, thr->rail, &thr->inner,
                                      thr->error, thr->error_size);

    if (status != BT_OK)
        return status;
    ev_async_init(&thr->inner_wake, on_wake);
    ev_prepare_init(&thr->prepare, on_prepare);
    ev_timer_init(&thr->tick, on_tick, 0, SENT_TICK_S);
    ev_set_priority(&thr->prepare, EV_MINPRI);
    thr->inner_wake.data = thr->prepare.data = thr;
    ev_async_start(thr->inner_loop, &thr->inner_wake);
    ev_prepare_start(thr->inner_loop, &thr->prepare);
    return BT_OK;
}

void *bt_thr_main(void *arg)
{
    struct thr *thr = arg;
    struct thr_call *first = thr->call;
    enum bt_status status = begin(thr);

    pthread_mutex_lock(&thr->lock);
    thr->call = NULL;
    first->status = status;
    first->is_done = true;
    pthread_cond_signal(&thr->done);
    pthread_mutex_unlock(&thr->lock);
    if (status == BT_OK)
        ev_run(thr->inner_loop, 0);
    return NULL;
}
