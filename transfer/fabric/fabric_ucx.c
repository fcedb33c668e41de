/* The UCX transport: loop, connections, messages, end. Only the fabric_ucx
 * files include UCX; fabric_ucx.h says which file does what.
 *
 *   loop turn:  ev_prepare -> progress (bounded) -> upcalls -> arm
 *                  |   something happened, or arm says BUSY: ev_idle, again
 *                  `-- quiet: sleep on the event fd, at most one tick
 *
 * Decides how work of the table in transport.h maps to ucp calls; leaves
 * heartbeats, deadlines and retries to the layers above, because UCX 1.13.1
 * notices neither a silent tcp peer nor, without the tick, a dead one.
 * Invariants: a ucp call-back only queues an event, upcalls run outside of
 * ucp_worker_progress; an endpoint is closed once, by force; a connection is
 * freed after its endpoint is closed and its operations and sends have ended,
 * also those that were asked for after it was closed. */
#include "fabric_ucx.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRESS_MAX    128 /* rounds of progress per loop turn */
#define UPCALLS_MAX     512 /* events handled per loop turn */
#define CONNS_MAX       1024u
#define FRAMES_HELD_MAX (64u << 20) /* bytes of frames not yet handled */
#define SEND_HELD_MAX   (64u << 20) /* bytes per connection not yet sent */
#define LISTING_MAX     4096u       /* of ucp_ep_print_info */
#define TICK_BUSY_S     0.001
#define TICK_IDLE_S     0.050
#define ACTIVE_NS       5000000LL /* busy tick goes on for so long */
#define END_NS          2000000000LL
#define PART_NS         250000000 /* of a set-up, before its end is closed */

enum bt_status bt_ucx_status(ucs_status_t status)
{
    if (status == UCS_OK)
        return BT_OK;
    if (status == UCS_ERR_CANCELED)
        return BT_CANCELLED;
    if (status == UCS_ERR_NO_MEMORY)
        return BT_NO_MEMORY;
    if (status == UCS_ERR_REJECTED || status == UCS_ERR_UNREACHABLE ||
        status == UCS_ERR_NOT_CONNECTED)
        return BT_REFUSED;
    if (status == UCS_ERR_CONNECTION_RESET)
        return BT_RESET;
    if (status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_TIMED_OUT)
        return BT_PEER_DEAD;
    return BT_IO;
}

/* ---- events: from ucp call-backs to upcalls ---- */

void bt_ucx_push(struct ucx *ucx, struct bt_tevent *event, enum kind kind,
                 struct conn *conn)
{
    event->kind = (int)kind;
    event->conn = &conn->base;
    event->next = NULL;
    *ucx->last = event;
    ucx->last = &event->next;
}

static struct bt_tevent *pop(struct ucx *ucx)
{
    struct bt_tevent *event = ucx->first;

    if (event == NULL)
        return NULL;
    ucx->first = event->next;
    if (ucx->first == NULL)
        ucx->last = &ucx->first;
    return event;
}

void bt_ucx_push_pump(struct conn *conn)
{
    if (conn->is_pumping || conn->is_closing)
        return;
    conn->is_pumping = true;
    bt_ucx_push(conn->ucx, &conn->pump, PUMP, conn);
}

void bt_ucx_op_ended(struct bt_tget *op, enum bt_status status)
{
    struct conn *conn = (struct conn *)op->event.conn;

    op->status = status;
    conn->ucx->outstanding--;
    bt_ucx_push(conn->ucx, &op->event, OP_DONE, conn);
}

void bt_ucx_fail(struct conn *conn, enum bt_status why)
{
    conn->is_settled = true;
    if (conn->is_failed || conn->is_closing)
        return;
    conn->is_failed = true;
    conn->why = why;
    bt_ucx_push(conn->ucx, &conn->failed, FAILED, conn);
}

void bt_ucx_closed_if_done(struct conn *conn)
{
    if (conn->is_closed || !conn->is_closing || !conn->is_ep_closed)
        return;
    if (conn->ops > 0 || conn->sends > 0 || conn->asks > 0 || conn->rma_out > 0)
        return;
    conn->is_closed = true;
    bt_ucx_push(conn->ucx, &conn->closed, CLOSED, conn);
}

static void close_conn(struct bt_tconn *base);
static void part_some(struct ucx *ucx);
static void wire_up(struct conn *conn);
static void held_end(struct conn *conn);

static void announce(struct conn *conn)
{
    struct bt_tlisten *l = conn->listener;

    conn->listener = NULL;
    if (!conn->is_closing)
        wire_up(conn);
    if (l != NULL)
        l->accept(l->arg, &conn->base);
    if (conn->base.events == NULL)
        close_conn(&conn->base);
}

static void frame_in(struct conn *conn, struct frame *frame)
{
    conn->ucx->frames_held -= frame->size;
    if (!conn->is_closing && conn->base.events != NULL)
        conn->base.events->frame(conn->base.arg, frame->bytes, frame->size);
    free(frame);
}

static void conn_free(struct conn *conn)
{
    LIST_REMOVE(conn, entry);
    conn->ucx->conn_count--;
    free(conn);
}

static void pump(struct conn *conn)
{
    conn->is_pumping = false;
    if (!conn->is_wired)
        return;
    bt_ucx_trains_pump(conn);
    bt_ucx_rma_pump(conn);
    bt_ucx_near_pump(conn);
}

static void op_done(struct conn *conn, struct bt_tget *op)
{
    conn->ops--;
    if (conn->base.events != NULL) /* else its owner has given up on it */
        op->done(op, op->status);
    bt_ucx_closed_if_done(conn);
}

static void closed(struct conn *conn)
{
    if (conn->ops > 0) { /* asked for meanwhile: once more after them */
        conn->is_closed = false;
        return;
    }
    if (conn->base.events != NULL)
        conn->base.events->closed(conn->base.arg);
    conn_free(conn);
}

static void upcall(struct bt_tevent *event)
{
    struct conn *conn = (struct conn *)event->conn;
    const struct bt_tconn_events *events = conn->base.events;

    switch ((enum kind)event->kind) {
    case ACCEPT:
        announce(conn);
        break;
    case FRAME:
        frame_in(conn, (struct frame *)event);
        break;
    case PUMP:
        pump(conn);
        break;
    case OP_DONE:
        op_done(conn, (struct bt_tget *)event);
        break;
    case FAILED:
        if (!conn->is_closing && events != NULL)
            events->failed(conn->base.arg, conn->why);
        else if (!conn->is_closing)
            close_conn(&conn->base);
        break;
    case CLOSED:
        closed(conn);
        break;
    }
}

/* ---- progress ---- */

static bool turn(struct bt_transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;
    struct bt_tevent *event;
    int rounds = 0, upcalls = 0;

    while (rounds < PROGRESS_MAX && ucp_worker_progress(ucx->worker) != 0)
        rounds++;
    if (ucx->parting > 0)
        part_some(ucx);
    while (upcalls < UPCALLS_MAX && (event = pop(ucx)) != NULL) {
        upcall(event);
        upcalls++;
    }
    return rounds > 0 || upcalls > 0;
}

static void set_tick(struct ucx *ucx, bool busy)
{
    if (ucx->tick_busy == busy && ev_is_active(&ucx->tick))
        return;
    ucx->tick_busy = busy;
    ucx->tick.repeat = busy ? TICK_BUSY_S : TICK_IDLE_S;
    ev_timer_again(ucx->loop, &ucx->tick);
}

static void on_prepare(struct ev_loop *loop, ev_prepare *w, int revents)
{
    struct ucx *ucx = w->data;
    bool worked = turn(&ucx->base);
    int64_t now_ns = bt_fabric_now();

    (void)revents;
    if (worked)
        ucx->active_ns = now_ns;
    set_tick(ucx, ucx->outstanding > 0 || now_ns - ucx->active_ns < ACTIVE_NS);
    /* Progress may have ended what somebody waits for: go round once more
     * instead of sleeping. BUSY: events came since. */
    if (worked || ucp_worker_arm(ucx->worker) == UCS_ERR_BUSY)
        ev_idle_start(loop, &ucx->idle_watch);
}

static void on_idle(struct ev_loop *loop, ev_idle *w, int revents)
{
    (void)revents;
    ev_idle_stop(loop, w);
}

/* These two only wake the loop: the next prepare makes progress. */
static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
    (void)loop;
    (void)w;
    (void)revents;
}

static void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)w;
    (void)revents;
}

/* ---- connections ---- */

static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    bt_ucx_fail(arg, bt_ucx_status(status));
}

static struct conn *conn_new(struct ucx *ucx)
{
    struct conn *conn;

    if (ucx->conn_count == CONNS_MAX)
        return NULL;
    conn = calloc(1, sizeof(*conn));
    if (conn == NULL)
        return NULL;
    conn->ucx = ucx;
    conn->made_ns = bt_fabric_now();
    STAILQ_INIT(&conn->held);
    TAILQ_INIT(&conn->trains);
    LIST_INIT(&conn->puts);
    LIST_INIT(&conn->landings);
    TAILQ_INIT(&conn->rmas);
    TAILQ_INIT(&conn->near.gets);
    LIST_INSERT_HEAD(&ucx->conns, conn, entry);
    ucx->conn_count++;
    return conn;
}

static ucs_status_t ep_open(struct conn *conn, ucp_ep_params_t *params)
{
    params->field_mask |=
        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_ep_error;
    params->err_handler.arg = conn;
    return ucp_ep_create(conn->ucx->worker, params, &conn->ep);
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    struct bt_tlisten *l = arg;
    struct conn *conn = l->is_retired ? NULL : conn_new(l->ucx);
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
                              .conn_request = request};

    if (conn == NULL) {
        ucp_listener_reject(l->listener, request);
        return;
    }
    if (ep_open(conn, &params) != UCS_OK) { /* consumed the request */
        conn_free(conn);
        return;
    }
    conn->listener = l;
    bt_ucx_push(l->ucx, &conn->accept, ACCEPT, conn);
}

static uint16_t port_of(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)at)->sin_port);
    return ntohs(((const struct sockaddr_in6 *)at)->sin6_port);
}

static enum bt_status listen_on(struct bt_transport *transport,
                                const struct sockaddr *address, socklen_t size,
                                bt_taccept_fn accept, void *arg,
                                uint16_t *port_out, struct bt_tlisten **out)
{
    struct ucx *ucx = (struct ucx *)transport;
    struct bt_tlisten *l = bt_ucx_listener_again(ucx, address, size);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = address, .addrlen = size},
        .conn_handler = {.cb = on_request},
    };
    ucs_status_t status;

    if (l != NULL) {
        l->accept = accept;
        l->arg = arg;
        *port_out = port_of(&l->at);
        *out = l;
        return BT_OK;
    }
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return BT_NO_MEMORY;
    *l = (struct bt_tlisten){.ucx = ucx, .accept = accept, .arg = arg};
    params.conn_handler.arg = l;
    status = ucp_listener_create(ucx->worker, &params, &l->listener);
    if (status != UCS_OK)
        goto undo_alloc;
    status = ucp_listener_query(l->listener, &attr);
    if (status != UCS_OK)
        goto undo_listen;
    bt_ucx_listener_add(l, &attr.sockaddr);
    *port_out = port_of(&attr.sockaddr);
    *out = l;
    return BT_OK;

undo_listen:
    ucp_listener_destroy(l->listener);
undo_alloc:
    free(l);
    return status == UCS_ERR_BUSY ? BT_EXISTS : BT_IO;
}

static void unlisten(struct bt_tlisten *l)
{
    struct conn *conn;

    LIST_FOREACH(conn, &l->ucx->conns, entry)
    {
        if (conn->listener == l)
            conn->listener = NULL;
    }
    bt_ucx_listener_retire(l);
}

static enum bt_status connect_to(struct bt_transport *transport,
                                 const struct sockaddr *address, socklen_t size,
                                 struct bt_tconn **out)
{
    struct conn *conn = conn_new((struct ucx *)transport);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = address, .addrlen = size},
    };
    ucs_status_t status;

    if (conn == NULL)
        return BT_LIMIT;
    /* rdma_cm takes the device of the route otherwise, which need not be this
     * rail's (to an address of this machine it is the target's). */
    if (conn->ucx->from_size > 0 &&
        conn->ucx->from.ss_family == address->sa_family) {
        params.field_mask |= UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR;
        params.local_sockaddr.addr = (struct sockaddr *)&conn->ucx->from;
        params.local_sockaddr.addrlen = conn->ucx->from_size;
    }
    status = ep_open(conn, &params);
    if (status != UCS_OK) {
        conn_free(conn);
        return bt_ucx_status(status);
    }
    wire_up(conn);
    *out = &conn->base;
    return BT_OK;
}

/* Data can no longer come: end what waits for it. */
static void ep_closed(struct conn *conn)
{
    if (conn->is_ep_closed)
        return;
    conn->is_ep_closed = true;
    held_end(conn);
    bt_ucx_landings_end(conn);
    bt_ucx_trains_end(conn);
    bt_ucx_rma_end(conn);
    bt_ucx_near_end(conn);
    bt_ucx_closed_if_done(conn);
}

static void on_ep_closed(void *request, ucs_status_t status, void *arg)
{
    struct conn *conn = arg;

    (void)status;
    ucp_request_free(request);
    ep_closed(conn);
}

static void ep_close(struct conn *conn)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_ep_closed,
        .user_data = conn,
    };
    void *request = ucp_ep_close_nbx(conn->ep, &params);

    if (!UCS_PTR_IS_PTR(request))
        ep_closed(conn);
}

/* UCX's thread carries a connection's set-up on after its endpoint is gone and
 * aborts (`tcp_sockcm_ep.c:416`, seen on connect and close in one breath). So
 * an endpoint is closed when its set-up has ended, or has had its time: then it
 * waits for the peer, with nothing left to send. */
static void part_some(struct ucx *ucx)
{
    int64_t since_ns = bt_fabric_now() - PART_NS;
    struct conn *conn;

    LIST_FOREACH(conn, &ucx->conns, entry)
    {
        if (!conn->is_parting ||
            (!conn->is_settled && conn->made_ns > since_ns))
            continue;
        conn->is_parting = false;
        ucx->parting--;
        ucx->outstanding--;
        ep_close(conn);
    }
}

static void close_conn(struct bt_tconn *base)
{
    struct conn *conn = (struct conn *)base;

    if (conn->is_closing)
        return;
    conn->is_closing = true;
    bt_ucx_near_hide(conn);
    if (conn->is_settled || bt_fabric_now() - conn->made_ns >= PART_NS) {
        ep_close(conn);
        return;
    }
    conn->is_parting = true;
    conn->ucx->parting++;
    conn->ucx->outstanding++; /* the tick is quick meanwhile */
}

/* ---- messages ---- */

static void send_ended(struct send *send, ucs_status_t status)
{
    struct conn *conn = send->conn;

    conn->sends--;
    conn->send_bytes -= send->size;
    conn->ucx->outstanding--;
    free(send);
    if (status != UCS_OK)
        bt_ucx_fail(conn, bt_ucx_status(status));
    bt_ucx_closed_if_done(conn);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    ucp_request_free(request);
    send_ended(arg, status);
}

/* EAGER: a control frame must not go by rendezvous, which the receiver would
 * have to fetch. REPLY: the receiver learns which endpoint it came from. */
static void send_post(struct send *send)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY,
        .cb.send = on_sent,
        .user_data = send,
    };
    void *request = ucp_am_send_nbx(send->conn->ep, send->id, NULL, 0,
                                    send->bytes, send->size, &params);

    if (!UCS_PTR_IS_PTR(request))
        send_ended(send, UCS_PTR_STATUS(request));
    /* else on_sent frees it: NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
}

static void held_end(struct conn *conn)
{
    struct send *send;

    while ((send = STAILQ_FIRST(&conn->held)) != NULL) {
        STAILQ_REMOVE_HEAD(&conn->held, entry);
        send_ended(send, UCS_ERR_CANCELED);
    }
}

static void wired(struct conn *conn, ucs_status_t status)
{
    struct send *send;

    conn->is_settled = true;
    if (status != UCS_OK) {
        bt_ucx_fail(conn, bt_ucx_status(status));
        return;
    }
    conn->is_wired = true;
    while (!conn->is_closing && (send = STAILQ_FIRST(&conn->held)) != NULL) {
        STAILQ_REMOVE_HEAD(&conn->held, entry);
        send_post(send);
    }
    bt_ucx_push_pump(conn);
}

static void on_wired(void *request, ucs_status_t status, void *arg)
{
    struct conn *conn = arg;

    ucp_request_free(request);
    conn->sends--;
    conn->ucx->outstanding--;
    wired(conn, status);
    bt_ucx_closed_if_done(conn);
}

/* What is sent before the lanes are connected waits in UCX 1.13 with a protocol
 * chosen by the lane of the set-up, and aborts when the real one cannot do it
 * (`proto_am.inl:256`, seen with shared memory). So nothing is: a flush ends
 * once they are. */
static void wire_up(struct conn *conn)
{
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_wired,
        .user_data = conn,
    };
    void *request = ucp_ep_flush_nbx(conn->ep, &params);

    if (!UCS_PTR_IS_PTR(request)) {
        wired(conn, UCS_PTR_STATUS(request));
        return;
    }
    conn->sends++;
    conn->ucx->outstanding++;
}

void bt_ucx_send(struct conn *conn, unsigned int id, const void *bytes,
                 size_t size)
{
    struct send *send;

    if (conn->is_closing || conn->is_failed)
        return;
    send = conn->send_bytes + size <= SEND_HELD_MAX
               ? malloc(sizeof(*send) + size)
               : NULL;
    if (send == NULL) {
        bt_ucx_fail(conn, BT_LIMIT);
        return;
    }
    send->conn = conn;
    send->id = id;
    send->size = size;
    memcpy(send->bytes, bytes, size);
    conn->sends++;
    conn->send_bytes += size;
    conn->ucx->outstanding++;
    if (conn->is_wired)
        send_post(send);
    else
        STAILQ_INSERT_TAIL(&conn->held, send, entry);
    /* on_sent frees it: NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
}

static void send_frame(struct bt_tconn *base, const void *bytes, size_t size)
{
    bt_ucx_send((struct conn *)base, AM_FRAME, bytes, size);
}

static bool all_sent(const struct bt_tconn *base)
{
    return ((const struct conn *)base)->sends == 0;
}

static struct conn *conn_of(struct ucx *ucx, ucp_ep_h ep)
{
    struct conn *conn;

    LIST_FOREACH(conn, &ucx->conns, entry)
    {
        if (conn->ep == ep && !conn->is_ep_closed)
            return conn;
    }
    return NULL;
}

struct conn *bt_ucx_sender(struct ucx *ucx, const ucp_am_recv_param_t *param)
{
    struct conn *conn = NULL;

    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)
        conn = conn_of(ucx, param->reply_ep);
    return conn != NULL && !conn->is_closing ? conn : NULL;
}

ucs_status_t bt_ucx_on_message(void *arg, const void *header, size_t header_len,
                               void *data, size_t size,
                               const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = arg;
    struct conn *conn = bt_ucx_sender(ucx, param);
    struct frame *frame;

    (void)header;
    (void)header_len;
    if (conn == NULL)
        return UCS_OK;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) ||
        size > BT_WIRE_FRAME_MAX) {
        bt_ucx_fail(conn, BT_PEER_ERROR);
        return UCS_OK;
    }
    frame = ucx->frames_held + size <= FRAMES_HELD_MAX
                ? malloc(sizeof(*frame) + size)
                : NULL;
    if (frame == NULL) {
        bt_ucx_fail(conn, BT_LIMIT);
        return UCS_OK;
    }
    frame->size = size;
    memcpy(frame->bytes, data, size);
    ucx->frames_held += size;
    bt_ucx_push(ucx, &frame->event, FRAME, conn);
    return UCS_OK;
}

/* ---- begin and end ---- */

void bt_ucx_watch(struct ucx *ucx, int fd)
{
    ev_io_init(&ucx->io, on_io, fd, EV_READ);
    ev_prepare_init(&ucx->prepare, on_prepare);
    ev_idle_init(&ucx->idle_watch, on_idle);
    ev_timer_init(&ucx->tick, on_tick, TICK_IDLE_S, TICK_IDLE_S);
    ucx->prepare.data = ucx;
    ev_io_start(ucx->loop, &ucx->io);
    ev_prepare_start(ucx->loop, &ucx->prepare);
    ev_timer_start(ucx->loop, &ucx->tick);
}

static void unwatch(struct ucx *ucx)
{
    ev_io_stop(ucx->loop, &ucx->io);
    ev_prepare_stop(ucx->loop, &ucx->prepare);
    ev_idle_stop(ucx->loop, &ucx->idle_watch);
    ev_timer_stop(ucx->loop, &ucx->tick);
}

static void drop_events(struct ucx *ucx)
{
    struct bt_tevent *event;

    while ((event = pop(ucx)) != NULL) {
        if (event->kind == FRAME)
            free(event);
    }
}

/* The layers above have closed what they had; connections that were accepted
 * but never announced are closed here. */
static void destroy(struct bt_transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;
    int64_t end = bt_fabric_now() + END_NS;
    struct conn *conn, *next;

    LIST_FOREACH(conn, &ucx->conns, entry)
    {
        conn->base.events = NULL;
        close_conn(&conn->base);
    }
    while (!LIST_EMPTY(&ucx->conns) && bt_fabric_now() < end)
        turn(transport);
    unwatch(ucx);
    bt_ucx_listeners_end(ucx);
    ucp_worker_destroy(ucx->worker);
    bt_ucx_mem_fini(ucx);
    ucp_cleanup(ucx->context);
    drop_events(ucx);
    for (conn = LIST_FIRST(&ucx->conns); conn != NULL; conn = next) {
        next = LIST_NEXT(conn, entry);
        conn_free(conn);
    }
    free(ucx);
}

/* "tcp/lo.0 cma/memory.1": what UCX chose for this peer, from its own listing,
 * whose lines read "# lane[0]: 2:tcp/lo.0 md[1] -> ...". */
static void describe(const struct bt_tconn *base, char *out, size_t size)
{
    const struct conn *conn = (const struct conn *)base;
    char text[LISTING_MAX] = "";
    FILE *to = fmemopen(text, sizeof(text) - 1, "w");
    size_t used = 0;

    if (size == 0)
        return;
    out[0] = '\0';
    if (to == NULL)
        return;
    if (!conn->is_ep_closed)
        ucp_ep_print_info(conn->ep, to);
    fclose(to);
    for (const char *at = strstr(text, "lane["); at != NULL;
         at = strstr(at + 1, "lane[")) {
        char name[64];
        int n;

        if (sscanf(at, "lane[%*u]: %*u:%63[^ .]", name) != 1 ||
            strstr(out, name) != NULL)
            continue;
        n = snprintf(out + used, size - used, "%s%s", used > 0 ? " " : "",
                     name);
        if (n < 0 || (size_t)n >= size - used)
            return;
        used += (size_t)n;
    }
}

#define LIMITS                                                                 \
    {                                                                          \
        .pieces_max = BT_UCX_PIECES_MAX, .bytes_max = 1ull << 30, .put = true  \
    }
#define COMMON                                                                 \
    .name = "ucx", .limits = LIMITS, .destroy = destroy, .turn = turn,         \
    .map = bt_ucx_map, .unmap = bt_ucx_unmap, .key_pack = bt_ucx_key_pack,     \
    .key_open = bt_ucx_key_open, .key_close = bt_ucx_key_close,                \
    .listen = listen_on, .unlisten = unlisten, .connect = connect_to,          \
    .allow = bt_ucx_allow, .close = close_conn, .send = send_frame,            \
    .sent = all_sent, .describe = describe, .why = bt_ucx_why

const struct bt_transport_ops bt_ucx_ops = {
    COMMON,
    .get = bt_ucx_get,
    .put = bt_ucx_put,
};
const struct bt_transport_ops bt_ucx_rma_ops = {
    COMMON,
    .get = bt_ucx_rma_get,
    .put = bt_ucx_rma_put,
};
