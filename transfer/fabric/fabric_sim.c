/* The simulated transport: connections, messages, begin and end. Transports
 * of one process meet on a named network (fabric_sim_net.c), each on the loop
 * and thread of its owner.
 *
 *   call --> network lock --> event {time} in the queue of whom it concerns
 *                             --> its timer fd --> loop: due events, upcalls
 *
 * Decides when things happen; leaves what bytes move to fabric_sim_get.c.
 * Invariants: a queue is sorted by time and keeps the order of equals; an
 * event of a connection is in one queue at most; after close only ended gets
 * and `closed` of it are left there; upcalls run without the lock. */
#include "fabric_sim.h"
#include "transport_open.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define UPCALLS_MAX     512 /* per loop turn */
#define CONNS_MAX       4096u
#define FRAMES_HELD_MAX (64u << 20) /* bytes per connection */

static void lock(struct sim *sim)
{
    pthread_mutex_lock(&sim->net->lock);
}

static void unlock(struct sim *sim)
{
    pthread_mutex_unlock(&sim->net->lock);
}

/* ---- the queue of a transport ---- */

static bool is_get(const struct bt_tevent *event)
{
    return event->kind == SIM_GET || event->kind == SIM_PUT;
}

static int64_t due_of(const struct bt_tevent *event)
{
    if (is_get(event))
        return (int64_t)((const struct bt_tget *)event)->token;
    return ((const struct sim_timed *)event)->due_ns;
}

static void set_due(struct bt_tevent *event, int64_t due_ns)
{
    if (is_get(event))
        ((struct bt_tget *)event)->token = (uint64_t)due_ns;
    else
        ((struct sim_timed *)event)->due_ns = due_ns;
}

/* Any thread may set the timer of a transport whose network it holds. */
static void arm(struct sim *sim)
{
    struct itimerspec at = {.it_value = {0, 1}};
    int64_t due_ns;

    if (sim->first == NULL)
        return;
    due_ns = due_of(sim->first);
    if (sim->armed_ns != 0 && sim->armed_ns <= due_ns)
        return;
    sim->armed_ns = due_ns;
    at.it_value.tv_sec = due_ns / 1000000000;
    at.it_value.tv_nsec = due_ns % 1000000000;
    timerfd_settime(sim->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

void bt_sim_post(struct sim *sim, struct bt_tevent *event, int64_t due_ns)
{
    struct bt_tevent **at = &sim->first;

    set_due(event, due_ns);
    if (sim->last != NULL && due_of(sim->last) <= due_ns)
        at = &sim->last->next;
    while (*at != NULL && due_of(*at) <= due_ns)
        at = &(*at)->next;
    event->next = *at;
    *at = event;
    if (event->next == NULL)
        sim->last = event;
    arm(sim);
}

static struct bt_tevent *pop(struct sim *sim, int64_t now_ns)
{
    struct bt_tevent *event = sim->first;

    if (event == NULL || due_of(event) > now_ns)
        return NULL;
    sim->first = event->next;
    if (sim->first == NULL)
        sim->last = NULL;
    return event;
}

/* Take what is queued of a connection (NULL: of all). */
static struct bt_tevent *take(struct sim *sim, const struct sim_conn *conn)
{
    struct bt_tevent *taken = NULL, **to = &taken, **at = &sim->first;
    struct bt_tevent *event;

    sim->last = NULL;
    while ((event = *at) != NULL) {
        if (conn != NULL && event->conn != &conn->base) {
            sim->last = event;
            at = &event->next;
            continue;
        }
        *at = event->next;
        event->next = NULL;
        *to = event;
        to = &event->next;
    }
    return taken;
}

static void drop_frame(struct bt_tevent *event)
{
    struct sim_frame *frame = (struct sim_frame *)event;

    ((struct sim_conn *)event->conn)->frames_held -= frame->size;
    free(frame);
}

/* End the gets of a connection now, drop all else that is queued of it. */
static void end_gets(struct sim_conn *conn, enum bt_status status,
                     int64_t now_ns)
{
    struct bt_tevent *event = take(conn->sim, conn), *next;

    for (; event != NULL; event = next) {
        next = event->next;
        if (is_get(event)) {
            struct bt_tget *get = (struct bt_tget *)event;

            if (get->status == BT_OK)
                get->status = status;
            bt_sim_post(conn->sim, event, now_ns);
        } else if (event->kind == SIM_FRAME) {
            drop_frame(event);
        }
    }
}

void bt_sim_fail(struct sim_conn *conn, enum bt_status why, int64_t due_ns)
{
    if (conn->is_failed || conn->is_closing)
        return;
    conn->is_failed = true;
    conn->why = why;
    bt_sim_post(conn->sim, &conn->failed.event, due_ns);
}

/* ---- connections ---- */

static void timed_init(struct sim_timed *timed, struct sim_conn *conn,
                       enum sim_kind kind)
{
    timed->event.kind = kind;
    timed->event.conn = &conn->base;
}

static struct sim_conn *conn_new(struct sim *sim)
{
    struct sim_conn *conn;

    if (sim->conn_count == CONNS_MAX)
        return NULL;
    conn = calloc(1, sizeof(*conn));
    if (conn == NULL)
        return NULL;
    conn->sim = sim;
    timed_init(&conn->accept, conn, SIM_ACCEPT);
    timed_init(&conn->failed, conn, SIM_FAILED);
    timed_init(&conn->closed, conn, SIM_CLOSED);
    LIST_INSERT_HEAD(&sim->conns, conn, entry);
    sim->conn_count++;
    return conn;
}

static void conn_free(struct sim_conn *conn)
{
    LIST_REMOVE(conn, entry);
    conn->sim->conn_count--;
    free(conn);
}

/* What had not left when its connection was closed is lost. */
static void recall(struct sim_conn *peer, int64_t now_ns)
{
    struct bt_tevent *event = take(peer->sim, peer), *next;
    int64_t latency_ns = peer->sim->net->latency_ns;

    for (; event != NULL; event = next) {
        next = event->next;
        if (event->kind == SIM_FRAME && due_of(event) - latency_ns > now_ns)
            drop_frame(event);
        else
            bt_sim_post(peer->sim, event, due_of(event));
    }
}

static void detach(struct sim_conn *conn, int64_t now_ns)
{
    struct sim_conn *peer = conn->peer;

    if (peer == NULL)
        return;
    conn->peer = NULL;
    peer->peer = NULL;
    recall(peer, now_ns);
    bt_sim_fail(peer, BT_RESET, now_ns + peer->sim->net->latency_ns);
}

static void close_conn(struct bt_tconn *base)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    int64_t now_ns = bt_fabric_now();

    lock(conn->sim);
    if (!conn->is_closing) {
        conn->is_closing = true;
        detach(conn, now_ns);
        end_gets(conn, BT_CANCELLED, now_ns);
        bt_sim_post(conn->sim, &conn->closed.event, now_ns);
    }
    unlock(conn->sim);
}

static void allow(struct bt_tconn *base)
{
    struct sim_conn *conn = (struct sim_conn *)base;

    lock(conn->sim);
    conn->is_allowed = true;
    unlock(conn->sim);
}

/* Both ends of a new connection; NULL: the listener's side has no room. */
static struct sim_conn *pair(struct sim_conn *conn, struct bt_tlisten *l)
{
    struct sim_net *net = conn->sim->net;
    struct sim *to = l->sim;
    struct sim_link *out = bt_sim_link(net, &conn->sim->address, &to->address);
    struct sim_link *in = bt_sim_link(net, &to->address, &conn->sim->address);
    struct sim_conn *peer;

    if (out == NULL || in == NULL)
        return NULL;
    peer = conn_new(to);
    if (peer == NULL)
        return NULL;
    conn->out = peer->in = out;
    conn->in = peer->out = in;
    conn->peer = peer;
    peer->peer = conn;
    peer->listener = l;
    return peer;
}

static enum bt_status connect_to(struct bt_transport *transport,
                                 const struct sockaddr *address, socklen_t size,
                                 struct bt_tconn **out)
{
    struct sim *sim = (struct sim *)transport;
    int64_t now_ns = bt_fabric_now();
    struct sim_conn *conn, *peer = NULL;
    struct sim_address to;
    struct bt_tlisten *l;
    uint16_t port;
    enum bt_status status = bt_sim_address(address, size, &to, &port);

    if (status != BT_OK)
        return status;
    lock(sim);
    conn = conn_new(sim);
    if (conn != NULL) {
        l = bt_sim_find(sim->net, &to, port);
        if (l != NULL)
            peer = pair(conn, l);
        if (peer != NULL)
            bt_sim_post(peer->sim, &peer->accept.event,
                        now_ns + sim->net->latency_ns);
        else
            bt_sim_fail(conn, BT_REFUSED, now_ns + 2 * sim->net->latency_ns);
    }
    unlock(sim);
    if (conn == NULL)
        return BT_LIMIT;
    *out = &conn->base;
    return BT_OK;
}

static enum bt_status listen_on(struct bt_transport *transport,
                                const struct sockaddr *address, socklen_t size,
                                bt_taccept_fn accept, void *arg,
                                uint16_t *port_out, struct bt_tlisten **out)
{
    struct sim *sim = (struct sim *)transport;
    struct bt_tlisten *l = calloc(1, sizeof(*l));
    enum bt_status status;

    if (l == NULL)
        return BT_NO_MEMORY;
    l->sim = sim;
    l->accept = accept;
    l->arg = arg;
    status = bt_sim_address(address, size, &l->address, &l->port);
    if (status != BT_OK) {
        free(l);
        return status;
    }
    lock(sim);
    if (l->port == 0)
        l->port = bt_sim_port(sim->net, &l->address);
    else if (bt_sim_find(sim->net, &l->address, l->port) != NULL)
        l->port = 0;
    if (l->port != 0)
        LIST_INSERT_HEAD(&sim->net->listeners, l, entry);
    unlock(sim);
    if (l->port == 0) {
        free(l);
        return BT_EXISTS;
    }
    *port_out = l->port;
    *out = l;
    return BT_OK;
}

static void unlisten(struct bt_tlisten *l)
{
    struct sim *sim = l->sim;
    struct sim_conn *conn;

    lock(sim);
    LIST_REMOVE(l, entry);
    LIST_FOREACH(conn, &sim->conns, entry)
    {
        if (conn->listener == l)
            conn->listener = NULL;
    }
    unlock(sim);
    free(l);
}

/* ---- messages ---- */

static void deliver(struct sim_conn *conn, const void *bytes, size_t size)
{
    struct sim_conn *peer = conn->peer;
    const struct sim_net *net = conn->sim->net;
    struct sim_frame *frame = NULL;

    if (peer->frames_held + size <= FRAMES_HELD_MAX)
        frame = malloc(sizeof(*frame) + size);
    if (frame == NULL) {
        bt_sim_fail(conn, BT_LIMIT, bt_fabric_now());
        return;
    }
    timed_init(&frame->timed, peer, SIM_FRAME);
    frame->size = size;
    memcpy(frame->bytes, bytes, size);
    peer->frames_held += size;
    conn->sent_ns = bt_sim_carry(net, conn->out, size, bt_fabric_now());
    bt_sim_post(peer->sim, &frame->timed.event,
                conn->sent_ns + net->latency_ns);
}

static void send_frame(struct bt_tconn *base, const void *bytes, size_t size)
{
    struct sim_conn *conn = (struct sim_conn *)base;

    lock(conn->sim);
    if (!conn->is_closing && !conn->is_failed && conn->peer != NULL)
        deliver(conn, bytes, size);
    unlock(conn->sim);
}

static bool all_sent(const struct bt_tconn *base)
{
    const struct sim_conn *conn = (const struct sim_conn *)base;

    return conn->sent_ns == 0 || bt_fabric_now() >= conn->sent_ns;
}

/* ---- upcalls ---- */

static void announce(struct sim_conn *conn)
{
    struct bt_tlisten *l;

    lock(conn->sim);
    l = conn->listener;
    conn->listener = NULL;
    unlock(conn->sim);
    if (l != NULL)
        l->accept(l->arg, &conn->base);
    if (conn->base.events == NULL)
        close_conn(&conn->base);
}

static void frame_in(struct sim_conn *conn, struct sim_frame *frame)
{
    if (conn->base.events != NULL)
        conn->base.events->frame(conn->base.arg, frame->bytes, frame->size);
    free(frame);
}

static void upcall(struct bt_tevent *event)
{
    struct sim_conn *conn = (struct sim_conn *)event->conn;
    const struct bt_tconn_events *events = conn->base.events;

    switch ((enum sim_kind)event->kind) {
    case SIM_ACCEPT:
        announce(conn);
        break;
    case SIM_FRAME:
        frame_in(conn, (struct sim_frame *)event);
        break;
    case SIM_GET:
    case SIM_PUT: {
        struct bt_tget *get = (struct bt_tget *)event;

        get->done(get, get->status);
        break;
    }
    case SIM_FAILED:
        if (events != NULL)
            events->failed(conn->base.arg, conn->why);
        else
            close_conn(&conn->base);
        break;
    case SIM_CLOSED: {
        struct sim *sim = conn->sim;

        if (events != NULL)
            events->closed(conn->base.arg);
        lock(sim);
        conn_free(conn);
        unlock(sim);
        break;
    }
    }
}

/* Lock held: what of an event concerns the network. */
static void happen(struct bt_tevent *event, int64_t now_ns)
{
    struct sim_conn *conn = (struct sim_conn *)event->conn;

    if (is_get(event))
        bt_sim_land((struct bt_tget *)event, now_ns);
    else if (event->kind == SIM_FRAME)
        conn->frames_held -= ((struct sim_frame *)event)->size;
    else if (event->kind == SIM_FAILED)
        end_gets(conn, conn->why, now_ns);
}

static bool turn(struct bt_transport *transport)
{
    struct sim *sim = (struct sim *)transport;
    struct bt_tevent *event;
    int upcalls = 0;

    while (upcalls < UPCALLS_MAX) {
        int64_t now_ns = bt_fabric_now();

        lock(sim);
        event = pop(sim, now_ns);
        if (event != NULL)
            happen(event, now_ns);
        unlock(sim);
        if (event == NULL)
            break;
        upcall(event);
        upcalls++;
    }
    return upcalls > 0;
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
    struct sim *sim = w->data;
    uint64_t times;

    (void)loop;
    (void)revents;
    if (read(w->fd, &times, sizeof(times)) < 0)
        return; /* set anew meanwhile */
    lock(sim);
    sim->armed_ns = 0;
    unlock(sim);
    (void)turn(&sim->base);
    lock(sim);
    arm(sim);
    unlock(sim);
}

/* ---- begin and end ---- */

static void drop_all(struct sim *sim)
{
    struct bt_tevent *event = take(sim, NULL), *next;
    struct bt_tmem *mem, *next_mem;
    struct sim_conn *conn, *next_conn;

    for (; event != NULL; event = next) {
        next = event->next;
        if (event->kind == SIM_FRAME)
            drop_frame(event);
    }
    for (conn = LIST_FIRST(&sim->conns); conn != NULL; conn = next_conn) {
        next_conn = LIST_NEXT(conn, entry);
        free(conn);
    }
    for (mem = LIST_FIRST(&sim->mems); mem != NULL; mem = next_mem) {
        next_mem = LIST_NEXT(mem, entry);
        free(mem);
    }
}

static void destroy(struct bt_transport *transport)
{
    struct sim *sim = (struct sim *)transport;
    int64_t now_ns = bt_fabric_now();
    struct sim_conn *conn;
    struct bt_tlisten *l, *next;

    ev_io_stop(sim->loop, &sim->io);
    lock(sim);
    LIST_FOREACH(conn, &sim->conns, entry)
    {
        detach(conn, now_ns);
    }
    for (l = LIST_FIRST(&sim->net->listeners); l != NULL; l = next) {
        next = LIST_NEXT(l, entry);
        if (l->sim != sim)
            continue;
        LIST_REMOVE(l, entry);
        free(l);
    }
    drop_all(sim);
    unlock(sim);
    bt_sim_net_leave(sim->net);
    close(sim->timer_fd);
    free(sim);
}

static const struct bt_transport_ops sim_ops = {
    .name = "sim",
    .limits = {.pieces_max = BT_SIM_PIECES_MAX,
               .bytes_max = BT_SIM_BYTES_MAX,
               .put = true,
               .heartbeat = true},
    .destroy = destroy,
    .turn = turn,
    .map = bt_sim_map,
    .unmap = bt_sim_unmap,
    .key_pack = bt_sim_key_pack,
    .key_open = bt_sim_key_open,
    .key_close = bt_sim_key_close,
    .listen = listen_on,
    .unlisten = unlisten,
    .connect = connect_to,
    .allow = allow,
    .close = close_conn,
    .send = send_frame,
    .sent = all_sent,
    .get = bt_sim_get,
    .put = bt_sim_put,
};

static enum bt_status own_address(struct sim *sim, const char *text)
{
    struct sockaddr_storage address;
    socklen_t size;
    uint16_t port;

    if (text == NULL)
        text = "127.0.0.1";
    if (bt_fabric_address(text, 0, &address, &size) != BT_OK)
        return BT_INVALID;
    return bt_sim_address((const struct sockaddr *)&address, size,
                          &sim->address, &port);
}

enum bt_status bt_transport_sim_open(struct ev_loop *loop,
                                     const struct bt_rail_config *rail,
                                     struct bt_transport **out, char *error_out,
                                     size_t error_size)
{
    static const struct bt_rail_config plain;
    struct sim *sim = calloc(1, sizeof(*sim));
    const char *step = "memory";
    enum bt_status status = BT_NO_MEMORY;

    if (rail == NULL)
        rail = &plain;
    if (sim == NULL)
        goto failed;
    sim->base.ops = &sim_ops;
    sim->loop = loop;
    step = "address";
    status = own_address(sim, rail->address);
    if (status != BT_OK)
        goto undo_alloc;
    step = "name, latency or rate of the network";
    status = bt_sim_net_join(rail, &sim->net);
    if (status != BT_OK)
        goto undo_alloc;
    step = "timerfd_create";
    status = BT_IO;
    sim->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (sim->timer_fd < 0)
        goto undo_join;
    ev_io_init(&sim->io, on_io, sim->timer_fd, EV_READ);
    sim->io.data = sim;
    ev_io_start(loop, &sim->io);
    *out = &sim->base;
    return BT_OK;

undo_join:
    bt_sim_net_leave(sim->net);
undo_alloc:
    free(sim);
failed:
    snprintf(error_out, error_size, "sim: %s: %s", step,
             bt_status_text(status));
    return status;
}
