/* The verbs transport: loop, upcalls, table, begin and end.
 *
 *   fds ready: note it           (rdma_cm, completion channel, device events)
 *   ev_prepare: events -> completions -> upcalls -> post what they asked for
 *                  |   something happened: ev_idle, go round again
 *                  `-- quiet: sleep on the three fds, at most one tick
 *
 * Decides the order within a turn; the other files (see fabric_verbs.h) decide
 * what an event means. The tick only watches deadlines. Invariants: upcalls run
 * from turn() alone; device events come before completions, so that the cause
 * is known when work is flushed; a connection is freed by its last upcall. */
#include "fabric_verbs.h"
#include "memlock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UPCALLS_MAX     512 /* per turn */
#define COMPLETIONS_MAX 256 /* events of the channel per turn */
#define TICK_S          0.2
#define END_NS          4000000000LL

void bt_verbs_push(struct bt_verbs *verbs, struct bt_tevent *event,
                   enum bt_verbs_kind kind, struct bt_verbs_conn *conn)
{
    event->kind = (int)kind;
    event->conn = &conn->base;
    event->next = NULL;
    *verbs->last = event;
    verbs->last = &event->next;
    if (!verbs->in_turn)
        ev_idle_start(verbs->loop, &verbs->idle);
}

static struct bt_tevent *pop(struct bt_verbs *verbs)
{
    struct bt_tevent *event = verbs->first;

    if (event == NULL)
        return NULL;
    verbs->first = event->next;
    if (verbs->first == NULL)
        verbs->last = &verbs->first;
    return event;
}

/* Outside of a turn the loop must not fall asleep over it, whatever order the
 * prepare watchers have. */
void bt_verbs_want(struct bt_verbs_conn *conn, bool poll, bool flush)
{
    struct bt_verbs *verbs = conn->verbs;

    conn->must_poll = conn->must_poll || poll;
    conn->must_flush = conn->must_flush || flush;
    if (!conn->in_work)
        TAILQ_INSERT_TAIL(&verbs->work, conn, work_entry);
    conn->in_work = true;
    if (!verbs->in_turn)
        ev_idle_start(verbs->loop, &verbs->idle);
}

void bt_verbs_say(struct bt_verbs *verbs, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(verbs->text, sizeof(verbs->text), format, args);
    va_end(args);
    if (getenv("BATON_VERBS_LOG") != NULL)
        fprintf(stderr, "verbs %s:%u: %s\n", verbs->port.device,
                verbs->port.number, verbs->text);
}

/* ---- upcalls ---- */

static void announce(struct bt_verbs_conn *conn)
{
    struct bt_tlisten *l = conn->listener;

    conn->listener = NULL;
    if (conn->state >= BT_VERBS_DRAINING)
        return;
    if (l != NULL)
        l->accept(l->arg, &conn->base);
    if (conn->base.events == NULL)
        bt_verbs_close(&conn->base);
}

static void frame_up(struct bt_verbs_conn *conn, const void *bytes, size_t size)
{
    if (conn->state < BT_VERBS_DRAINING && conn->base.events != NULL)
        conn->base.events->frame(conn->base.arg, bytes, size);
}

static void frame_in(struct bt_verbs_conn *conn, struct bt_verbs_in *in)
{
    const unsigned char *at =
        conn->segment + (size_t)in->index * BT_VERBS_BUFFER;

    frame_up(conn, at + sizeof(struct bt_verbs_head), in->bytes);
    bt_verbs_in_done(conn, in);
}

static void joined_in(struct bt_verbs_conn *conn,
                      struct bt_verbs_joined *joined)
{
    frame_up(conn, joined->data, joined->bytes);
    bt_verbs_joined_done(conn, joined);
}

static void failed(struct bt_verbs_conn *conn)
{
    if (conn->state >= BT_VERBS_DRAINING)
        return;
    if (conn->base.events != NULL)
        conn->base.events->failed(conn->base.arg, conn->why);
    else
        bt_verbs_close(&conn->base);
}

/* A get that was asked for meanwhile is told of first. */
static void closed(struct bt_verbs_conn *conn)
{
    if (conn->gets_ending > 0) {
        bt_verbs_push(conn->verbs, &conn->closed, BT_VERBS_CLOSED, conn);
        return;
    }
    if (conn->base.events != NULL)
        conn->base.events->closed(conn->base.arg);
    bt_verbs_conn_free(conn);
}

static void upcall(struct bt_tevent *event)
{
    struct bt_verbs_conn *conn = (struct bt_verbs_conn *)event->conn;
    struct bt_tget *get = (struct bt_tget *)event;

    switch ((enum bt_verbs_kind)event->kind) {
    case BT_VERBS_ACCEPT:
        announce(conn);
        break;
    case BT_VERBS_FRAME:
        frame_in(conn, (struct bt_verbs_in *)event);
        break;
    case BT_VERBS_JOINED:
        joined_in(conn, (struct bt_verbs_joined *)event);
        break;
    case BT_VERBS_GET_ENDED:
        conn->gets_ending--;
        if (conn->base.events != NULL) /* else its owner has given up on it */
            get->done(get, get->status);
        break;
    case BT_VERBS_FAILED:
        failed(conn);
        break;
    case BT_VERBS_CLOSED:
        closed(conn);
        break;
    case BT_VERBS_IS_GET:
    case BT_VERBS_IS_PUT:
        break; /* never queued */
    }
}

/* ---- a turn ---- */

/* Armed before it is polled: what comes later makes a new event. */
static bool take_completions(struct bt_verbs *verbs)
{
    struct ibv_cq *cq;
    void *conn;
    int count = 0;

    while (count < COMPLETIONS_MAX &&
           ibv_get_cq_event(verbs->completions, &cq, &conn) == 0) {
        ibv_ack_cq_events(cq, 1);
        (void)ibv_req_notify_cq(cq, 0);
        bt_verbs_want(conn, true, false);
        count++;
    }
    return count > 0;
}

static bool work(struct bt_verbs *verbs)
{
    struct bt_verbs_conn *conn, *end = TAILQ_LAST(&verbs->work, work_head);
    bool is_end = end == NULL;

    while (!is_end && (conn = TAILQ_FIRST(&verbs->work)) != NULL) {
        is_end = conn == end;
        TAILQ_REMOVE(&verbs->work, conn, work_entry);
        conn->in_work = false;
        if (conn->must_poll)
            bt_verbs_poll(conn);
        if (conn->must_flush)
            bt_verbs_flush(conn);
    }
    return end != NULL;
}

static bool take_events(struct bt_verbs *verbs)
{
    bool worked = false;

    if (verbs->async_ready)
        worked = bt_verbs_port_events(verbs) || worked;
    if (verbs->cm_ready)
        worked = bt_verbs_cm_events(verbs) || worked;
    if (verbs->completion_ready)
        worked = take_completions(verbs) || worked;
    verbs->async_ready = verbs->cm_ready = verbs->completion_ready = false;
    return worked;
}

static bool run_turn(struct bt_verbs *verbs)
{
    struct bt_tevent *event;
    int upcalls = 0;
    bool worked;

    verbs->in_turn = true;
    worked = take_events(verbs);
    worked = work(verbs) || worked;
    while (upcalls < UPCALLS_MAX && (event = pop(verbs)) != NULL) {
        upcall(event);
        upcalls++;
    }
    if (verbs->must_start)
        bt_verbs_start_some(verbs);
    worked = work(verbs) || worked;
    verbs->in_turn = false;
    return worked || upcalls > 0;
}

static bool turn(struct bt_transport *transport)
{
    struct bt_verbs *verbs = (struct bt_verbs *)transport;

    verbs->async_ready = verbs->cm_ready = verbs->completion_ready = true;
    bt_verbs_check_time(verbs, bt_fabric_now());
    return run_turn(verbs);
}

static void on_prepare(struct ev_loop *loop, ev_prepare *w, int revents)
{
    struct bt_verbs *verbs = w->data;

    (void)revents;
    if (run_turn(verbs) || verbs->first != NULL || !TAILQ_EMPTY(&verbs->work))
        ev_idle_start(loop, &verbs->idle);
}

static void on_idle(struct ev_loop *loop, ev_idle *w, int revents)
{
    (void)revents;
    ev_idle_stop(loop, w);
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
    struct bt_verbs *verbs = w->data;

    (void)loop;
    (void)revents;
    if (w == &verbs->cm_io)
        verbs->cm_ready = true;
    else if (w == &verbs->completion_io)
        verbs->completion_ready = true;
    else
        verbs->async_ready = true;
}

static void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    bt_verbs_check_time(w->data, bt_fabric_now());
}

/* ---- begin and end ---- */

static void watch_fd(struct bt_verbs *verbs, ev_io *io, int fd)
{
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    ev_io_init(io, on_io, fd, EV_READ);
    io->data = verbs;
    ev_io_start(verbs->loop, io);
}

static void watch(struct bt_verbs *verbs)
{
    watch_fd(verbs, &verbs->cm_io, verbs->channel->fd);
    watch_fd(verbs, &verbs->completion_io, verbs->completions->fd);
    watch_fd(verbs, &verbs->async_io, verbs->port.context->async_fd);
    ev_prepare_init(&verbs->prepare, on_prepare);
    ev_idle_init(&verbs->idle, on_idle);
    ev_timer_init(&verbs->tick, on_tick, TICK_S, TICK_S);
    verbs->prepare.data = verbs;
    verbs->tick.data = verbs;
    ev_prepare_start(verbs->loop, &verbs->prepare);
    ev_timer_start(verbs->loop, &verbs->tick);
}

static void unwatch(struct bt_verbs *verbs)
{
    ev_io_stop(verbs->loop, &verbs->cm_io);
    ev_io_stop(verbs->loop, &verbs->completion_io);
    ev_io_stop(verbs->loop, &verbs->async_io);
    ev_prepare_stop(verbs->loop, &verbs->prepare);
    ev_idle_stop(verbs->loop, &verbs->idle);
    ev_timer_stop(verbs->loop, &verbs->tick);
}

/* The layers above have closed what they had; connections that were accepted
 * but never announced are closed here. Draining ends by itself, at the latest
 * by its deadline. */
static void destroy(struct bt_transport *transport)
{
    struct bt_verbs *verbs = (struct bt_verbs *)transport;
    int64_t end = bt_fabric_now() + END_NS;
    struct bt_verbs_conn *conn;

    LIST_FOREACH(conn, &verbs->conns, entry)
    {
        conn->base.events = NULL;
        bt_verbs_close(&conn->base);
    }
    while (!LIST_EMPTY(&verbs->conns) && bt_fabric_now() < end)
        turn(transport);
    unwatch(verbs);
    while ((conn = LIST_FIRST(&verbs->conns)) != NULL)
        bt_verbs_conn_free(conn);
    bt_verbs_unpark(verbs);
    while (!LIST_EMPTY(&verbs->listeners))
        bt_verbs_unlisten(LIST_FIRST(&verbs->listeners));
    while (!LIST_EMPTY(&verbs->mems))
        bt_verbs_unmap(transport, LIST_FIRST(&verbs->mems));
    bt_verbs_slabs_free(verbs);
    (void)ibv_destroy_comp_channel(verbs->completions);
    (void)ibv_dealloc_pd(verbs->pd);
    rdma_destroy_event_channel(verbs->channel);
    bt_verbs_port_close(&verbs->port);
    free(verbs);
}

/* One way only: all connections of a rail go by its port. */
static void describe(const struct bt_tconn *base, char *out, size_t size)
{
    const struct bt_verbs *verbs = ((const struct bt_verbs_conn *)base)->verbs;

    snprintf(out, size, "rc_verbs/%s:%u", verbs->port.device,
             verbs->port.number);
}

static void why(const struct bt_transport *transport, char *out, size_t size)
{
    snprintf(out, size, "%s", bt_verbs_text(transport));
}

static const struct bt_transport_ops verbs_ops = {
    .name = "verbs",
    .limits = {.pieces_max = 65536, .bytes_max = 1ull << 30, .put = true},
    .destroy = destroy,
    .turn = turn,
    .map = bt_verbs_map,
    .unmap = bt_verbs_unmap,
    .key_pack = bt_verbs_key_pack,
    .key_open = bt_verbs_key_open,
    .key_close = bt_verbs_key_close,
    .listen = bt_verbs_listen,
    .unlisten = bt_verbs_unlisten,
    .connect = bt_verbs_connect,
    .allow = bt_verbs_allow,
    .close = bt_verbs_close,
    .send = bt_verbs_send,
    .sent = bt_verbs_sent,
    .get = bt_verbs_get,
    .put = bt_verbs_put,
    .describe = describe,
    .why = why,
};

static enum bt_status refuse(char *error_out, size_t error_size,
                             const char *what)
{
    int error = errno;

    snprintf(error_out, error_size, "verbs: %s: %s", what, strerror(error));
    return error == ENODEV || error == ENOENT || error == ENOSYS
               ? BT_UNSUPPORTED
           : error == ENOMEM || error == EMFILE ? BT_LIMIT
                                                : BT_IO;
}

enum bt_status bt_transport_verbs_open(struct ev_loop *loop,
                                       const struct bt_rail_config *rail,
                                       struct bt_transport **out,
                                       char *error_out, size_t error_size)
{
    static const struct bt_rail_config any = {0};
    struct bt_verbs *verbs = calloc(1, sizeof(*verbs));
    enum bt_status status;

    if (verbs == NULL)
        return BT_NO_MEMORY;
    *verbs = (struct bt_verbs){.base.ops = &verbs_ops, .loop = loop};
    verbs->last = &verbs->first;
    TAILQ_INIT(&verbs->work);
    (void)bt_memlock_raise();
    status = bt_verbs_port_open(&verbs->port, rail != NULL ? rail : &any,
                                error_out, error_size);
    if (status != BT_OK)
        goto undo_alloc;
    verbs->pd = ibv_alloc_pd(verbs->port.context);
    if (verbs->pd == NULL) {
        status = refuse(error_out, error_size, "protection domain");
        goto undo_port;
    }
    verbs->completions = ibv_create_comp_channel(verbs->port.context);
    if (verbs->completions == NULL) {
        status = refuse(error_out, error_size, "completion channel");
        goto undo_pd;
    }
    verbs->channel = rdma_create_event_channel();
    if (verbs->channel == NULL) {
        status = refuse(error_out, error_size, "rdma_cm");
        goto undo_completions;
    }
    watch(verbs);
    *out = &verbs->base;
    return BT_OK;

undo_completions:
    (void)ibv_destroy_comp_channel(verbs->completions);
undo_pd:
    (void)ibv_dealloc_pd(verbs->pd);
undo_port:
    bt_verbs_port_close(&verbs->port);
undo_alloc:
    free(verbs);
    return status;
}

/* ---- looking in ---- */

static const char *kind_name(const struct bt_verbs_port *port)
{
    static const char *const names[] = {
        [BT_GID_NONE] = "none",
        [BT_GID_LINK_LOCAL] = "link_local",
        [BT_GID_IB] = "ib",
        [BT_GID_ROCE_V1] = "roce_v1",
        [BT_GID_ROCE_V2_IPV6] = "roce_v2_ipv6",
        [BT_GID_ROCE_V2_IPV4] = "roce_v2_ipv4",
    };

    for (uint32_t i = 0; i < port->nic.gid_count; i++) {
        if (port->nic.gids[i].index == port->gid_index)
            return names[port->nic.gids[i].kind];
    }
    return names[BT_GID_NONE];
}

void bt_verbs_describe(const struct bt_transport *transport, char *out,
                       size_t size)
{
    const struct bt_verbs *verbs = (const struct bt_verbs *)transport;
    const struct bt_verbs_port *port = &verbs->port;
    char address[INET6_ADDRSTRLEN] = "-";

    if (port->has_address && port->address.ss_family == AF_INET)
        inet_ntop(AF_INET,
                  &((const struct sockaddr_in *)&port->address)->sin_addr,
                  address, sizeof(address));
    else if (port->has_address)
        inet_ntop(AF_INET6,
                  &((const struct sockaddr_in6 *)&port->address)->sin6_addr,
                  address, sizeof(address));
    snprintf(out, size, "%s:%u gid=%d %s %s mtu=%u pkey=0x%04x tc=%u",
             port->device, port->number, port->gid_index, kind_name(port),
             address, port->mtu, port->pkey, port->traffic_class);
}

const char *bt_verbs_text(const struct bt_transport *transport)
{
    return ((const struct bt_verbs *)transport)->text;
}

void bt_verbs_counts(const struct bt_transport *transport,
                     struct bt_verbs_counts *out)
{
    const struct bt_verbs *verbs = (const struct bt_verbs *)transport;

    *out = (struct bt_verbs_counts){.doorbells = verbs->doorbells,
                                    .requests = verbs->requests,
                                    .pieces = verbs->pieces};
}
