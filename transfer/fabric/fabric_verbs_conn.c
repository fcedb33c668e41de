/* Connections of the verbs transport: listeners, set-up by rdma_cm events, and
 * the end of each.
 *
 *   connect: resolving --address, route--> connecting --response--> up
 *   accept:               request, accepted: connecting --established--> up
 *   any --close--> draining --all flushed, or 2 s--> gone --closed--> freed
 *
 * Decides which status an rdma_cm event means; leaves retries to the layers
 * above. Invariants: an event is acknowledged before it is handled, so an id
 * may be destroyed while handling it; a queue pair is destroyed before the last
 * get ends with it, so nothing lands later; a connection that nobody has been
 * told of is closed here. */
#include "fabric_verbs.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX   64 /* per turn */
#define STARTING_MAX 16 /* set up at a time: a storm loses its requests */
#define RESOLVE_MS   2000
#define CONNECT_NS   10000000000LL
#define DRAIN_NS     2000000000LL
#define BACKLOG      1024 /* the kernel refuses what is beyond */
#define REJ_CONSUMER 28   /* the peer's own reason is in the private data */
#define PRIVATE_MAX  196u

struct happening {
    struct rdma_cm_event event;
    uint8_t bytes[PRIVATE_MAX];
    size_t size;
};
/* Private data of a refusal. */
struct refusal {
    uint16_t check, status;
};

/* Set up, or given up: the next one's turn. */
static void started(struct bt_verbs_conn *conn)
{
    if (!conn->is_starting)
        return;
    conn->is_starting = false;
    conn->verbs->starting--;
    conn->verbs->must_start = true;
}

void bt_verbs_fail(struct bt_verbs_conn *conn, enum bt_status why)
{
    if (conn->is_failed || conn->state >= BT_VERBS_DRAINING)
        return;
    conn->is_failed = true;
    conn->why = why;
    started(conn);
    bt_verbs_qp_break(conn);
    bt_verbs_drop_waiting(conn, why);
    bt_verbs_push(conn->verbs, &conn->failed, BT_VERBS_FAILED, conn);
    bt_verbs_want(conn, true, false);
}

void bt_verbs_fail_all(struct bt_verbs *verbs, enum bt_status why)
{
    struct bt_verbs_conn *conn;

    LIST_FOREACH(conn, &verbs->conns, entry)
    {
        bt_verbs_fail(conn, why);
    }
}

static struct bt_verbs_conn *conn_new(struct bt_verbs *verbs)
{
    struct bt_verbs_conn *conn;

    if (verbs->conn_count == BT_VERBS_CONNS_MAX)
        return NULL;
    conn = calloc(1, sizeof(*conn));
    if (conn == NULL)
        return NULL;
    conn->verbs = verbs;
    conn->mtu = verbs->port.mtu;
    conn->deadline_ns = bt_fabric_now() + CONNECT_NS;
    STAILQ_INIT(&conn->outs);
    LIST_INIT(&conn->gets);
    for (uint16_t i = 0; i < BT_VERBS_RECVS; i++) {
        conn->ins[i].index = i;
        conn->idle[conn->idle_count++] = i;
    }
    while (conn->free_send_count < BT_VERBS_SENDS) {
        conn->free_sends[conn->free_send_count] = conn->free_send_count;
        conn->free_send_count++;
    }
    LIST_INSERT_HEAD(&verbs->conns, conn, entry);
    verbs->conn_count++;
    return conn;
}

void bt_verbs_conn_free(struct bt_verbs_conn *conn)
{
    bt_verbs_qp_close(conn);
    bt_verbs_segment_give(conn);
    bt_verbs_messages_free(conn);
    if (conn->in_work)
        TAILQ_REMOVE(&conn->verbs->work, conn, work_entry);
    LIST_REMOVE(conn, entry);
    conn->verbs->conn_count--;
    free(conn);
}

void bt_verbs_is_up(struct bt_verbs_conn *conn)
{
    if (conn->state != BT_VERBS_CONNECTING)
        return;
    conn->state = BT_VERBS_UP;
    started(conn);
    bt_verbs_want(conn, false, true);
}

/* ---- the end ---- */

static void finish(struct bt_verbs_conn *conn)
{
    bt_verbs_abandon(conn);
    bt_verbs_qp_close(conn);
    conn->state = BT_VERBS_GONE;
    bt_verbs_push(conn->verbs, &conn->closed, BT_VERBS_CLOSED, conn);
}

/* A pair that never got to RTR has nothing to flush. */
void bt_verbs_closed_if_done(struct bt_verbs_conn *conn)
{
    if (conn->state != BT_VERBS_DRAINING)
        return;
    if (!conn->can_receive ||
        (conn->ended == conn->posted && conn->recvs_posted == 0))
        finish(conn);
}

void bt_verbs_close(struct bt_tconn *base)
{
    struct bt_verbs_conn *conn = (struct bt_verbs_conn *)base;
    if (conn->state >= BT_VERBS_DRAINING)
        return;
    conn->state = BT_VERBS_DRAINING;
    started(conn);
    conn->deadline_ns = bt_fabric_now() + DRAIN_NS;
    bt_verbs_drop_waiting(conn, BT_CANCELLED);
    if (conn->is_known && !conn->verbs->is_down)
        (void)rdma_disconnect(conn->id);
    bt_verbs_qp_break(conn);
    bt_verbs_want(conn, true, false);
    if (conn->verbs->is_fatal)
        finish(conn);
    else
        bt_verbs_closed_if_done(conn);
}

void bt_verbs_check_time(struct bt_verbs *verbs, int64_t now_ns)
{
    struct bt_verbs_conn *conn;

    LIST_FOREACH(conn, &verbs->conns, entry)
    {
        if (now_ns < conn->deadline_ns)
            continue;
        switch (conn->state) {
        case BT_VERBS_RESOLVING:
        case BT_VERBS_CONNECTING:
            bt_verbs_fail(conn, BT_TIMEOUT);
            break;
        case BT_VERBS_DRAINING:
            bt_verbs_say(verbs, "queue pair did not drain");
            finish(conn);
            break;
        case BT_VERBS_UP:
        case BT_VERBS_GONE:
            break;
        }
    }
}

/* ---- a connection that we open ---- */

/* The source address selects GID and port. */
static struct sockaddr *source_of(struct bt_verbs *verbs, int family)
{
    struct bt_verbs_port *port = &verbs->port;

    return port->has_address && port->address.ss_family == family
               ? (struct sockaddr *)&port->address
               : NULL;
}

static void start(struct bt_verbs_conn *conn)
{
    struct bt_verbs *verbs = conn->verbs;
    uint8_t tos = verbs->port.traffic_class;

    conn->is_waiting = false;
    conn->is_starting = true;
    verbs->starting++;
    conn->deadline_ns = bt_fabric_now() + CONNECT_NS;
    if (tos != 0)
        (void)rdma_set_option(conn->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS,
                              &tos, sizeof(tos));
    if (verbs->is_down || verbs->is_fatal) {
        bt_verbs_fail(conn, BT_RESET);
        return;
    }
    if (rdma_resolve_addr(conn->id, source_of(verbs, conn->peer.ss_family),
                          (struct sockaddr *)&conn->peer, RESOLVE_MS) != 0) {
        bt_verbs_say(verbs, "address: %s", strerror(errno));
        bt_verbs_fail(conn, BT_REFUSED);
    }
}

/* The one that has waited longest: new ones are put at the head. */
static struct bt_verbs_conn *next_waiting(struct bt_verbs *verbs)
{
    struct bt_verbs_conn *conn, *found = NULL;

    LIST_FOREACH(conn, &verbs->conns, entry)
    {
        if (conn->is_waiting && !conn->is_failed &&
            conn->state == BT_VERBS_RESOLVING)
            found = conn;
    }
    return found;
}

void bt_verbs_start_some(struct bt_verbs *verbs)
{
    struct bt_verbs_conn *conn;

    verbs->must_start = false;
    while (verbs->starting < STARTING_MAX &&
           (conn = next_waiting(verbs)) != NULL)
        start(conn);
}

enum bt_status bt_verbs_connect(struct bt_transport *transport,
                                const struct sockaddr *address, socklen_t size,
                                struct bt_tconn **out)
{
    struct bt_verbs *verbs = (struct bt_verbs *)transport;
    struct bt_verbs_conn *conn = conn_new(verbs);

    if (conn == NULL)
        return BT_LIMIT;
    if (rdma_create_id(verbs->channel, &conn->id, conn, RDMA_PS_TCP) != 0) {
        bt_verbs_say(verbs, "rdma_create_id: %s", strerror(errno));
        conn->id = NULL;
        bt_verbs_conn_free(conn);
        return BT_LIMIT;
    }
    memcpy(&conn->peer, address,
           size < sizeof(conn->peer) ? size : sizeof(conn->peer));
    conn->is_waiting = true;
    conn->deadline_ns = INT64_MAX;
    verbs->must_start = true;
    bt_verbs_want(conn, false, false); /* in the next turn */
    *out = &conn->base;
    return BT_OK;
}

static void on_address(struct bt_verbs_conn *conn)
{
    struct bt_verbs *verbs = conn->verbs;

    if (!bt_verbs_port_is(&verbs->port, conn->id)) {
        bt_verbs_say(verbs, "the way to the peer is not by %s:%u",
                     verbs->port.device, verbs->port.number);
        bt_verbs_fail(conn, BT_INCOMPATIBLE);
    } else if (rdma_resolve_route(conn->id, RESOLVE_MS) != 0) {
        bt_verbs_say(verbs, "route: %s", strerror(errno));
        bt_verbs_fail(conn, BT_REFUSED);
    }
}

static void on_route(struct bt_verbs_conn *conn)
{
    struct bt_verbs *verbs = conn->verbs;
    struct bt_verbs_hello hello;
    struct rdma_conn_param param = {
        .private_data = &hello,
        .private_data_len = sizeof(hello),
        .responder_resources = (uint8_t)verbs->port.answers_max,
        .initiator_depth = (uint8_t)verbs->port.reads_max,
        .flow_control = 1,
        .retry_count = 7,
        .rnr_retry_count = 6,
    };
    enum bt_status status = bt_verbs_qp_open(conn);

    if (status != BT_OK) {
        bt_verbs_fail(conn, status);
        return;
    }
    bt_verbs_hello(conn, &hello);
    param.qp_num = conn->qp->qp_num;
    conn->state = BT_VERBS_CONNECTING;
    if (rdma_connect(conn->id, &param) != 0) {
        bt_verbs_say(verbs, "rdma_connect: %s", strerror(errno));
        bt_verbs_fail(conn, BT_REFUSED);
    }
}

static uint8_t lower(uint32_t ours, uint8_t theirs)
{
    return theirs < ours ? theirs : (uint8_t)ours;
}

static enum bt_status peer_of(const struct bt_verbs *verbs,
                              const struct happening *h,
                              struct bt_verbs_peer *out)
{
    const struct rdma_conn_param *p = &h->event.param.conn;

    out->answers = lower(verbs->port.answers_max, p->responder_resources);
    out->reads = lower(verbs->port.reads_max, p->initiator_depth);
    return bt_verbs_hello_read(h->bytes, h->size, &out->hello);
}

static void on_response(struct bt_verbs_conn *conn, const struct happening *h)
{
    struct bt_verbs_peer peer;
    enum bt_status status = peer_of(conn->verbs, h, &peer);

    if (status == BT_OK)
        status = bt_verbs_qp_ready(conn, &peer);
    if (status == BT_OK && rdma_establish(conn->id) != 0)
        status = BT_IO;
    conn->is_known = status == BT_OK;
    if (status == BT_OK)
        bt_verbs_is_up(conn);
    else
        bt_verbs_fail(conn, status);
}

static void on_rejected(struct bt_verbs_conn *conn, const struct happening *h)
{
    struct refusal refusal = {0};
    enum bt_status status = BT_REFUSED;

    if (h->event.status == REJ_CONSUMER && h->size >= sizeof(refusal))
        memcpy(&refusal, h->bytes, sizeof(refusal));
    if (le16toh(refusal.check) == BT_VERBS_CHECK) {
        int code = le16toh(refusal.status);

        if (code == BT_LIMIT || code == BT_INCOMPATIBLE)
            status = (enum bt_status)code;
    }
    bt_verbs_say(conn->verbs, "refused by the peer: reason %d, %s",
                 h->event.status, bt_status_name(status));
    bt_verbs_fail(conn, status);
}

/* ---- a connection that the peer opens ---- */

static enum bt_status answer(struct bt_verbs_conn *conn,
                             const struct happening *h)
{
    struct bt_verbs *verbs = conn->verbs;
    struct bt_verbs_hello hello;
    struct bt_verbs_peer peer;
    struct rdma_conn_param param = {.private_data = &hello,
                                    .private_data_len = sizeof(hello),
                                    .flow_control = 1,
                                    .rnr_retry_count = 6};
    enum bt_status status = peer_of(verbs, h, &peer);

    if (status != BT_OK)
        return status;
    if (!bt_verbs_port_is(&verbs->port, conn->id))
        return BT_INCOMPATIBLE;
    if (verbs->is_down || verbs->is_fatal)
        return BT_LIMIT;
    status = bt_verbs_qp_open(conn);
    if (status == BT_OK)
        status = bt_verbs_qp_ready(conn, &peer);
    if (status != BT_OK)
        return status;
    bt_verbs_hello(conn, &hello);
    param.qp_num = conn->qp->qp_num;
    param.responder_resources = peer.answers;
    param.initiator_depth = peer.reads;
    return rdma_accept(conn->id, &param) == 0 ? BT_OK : BT_IO;
}

static void on_request(struct bt_tlisten *listener, const struct happening *h)
{
    struct bt_verbs *verbs = listener->verbs;
    struct rdma_cm_id *id = h->event.id;
    struct bt_verbs_conn *conn = conn_new(verbs);
    enum bt_status status = BT_LIMIT;
    struct refusal refusal;

    if (conn != NULL) {
        conn->id = id;
        id->context = conn;
        conn->state = BT_VERBS_CONNECTING;
        status = answer(conn, h);
    }
    if (status == BT_OK) {
        conn->is_known = true;
        conn->listener = listener;
        bt_verbs_push(verbs, &conn->accept, BT_VERBS_ACCEPT, conn);
        return;
    }
    bt_verbs_say(verbs, "refused a peer: %s", bt_status_name(status));
    refusal =
        (struct refusal){htole16(BT_VERBS_CHECK), htole16((uint16_t)status)};
    (void)rdma_reject(id, &refusal, sizeof(refusal));
    if (conn != NULL)
        bt_verbs_conn_free(conn);
    else
        (void)rdma_destroy_id(id);
}

/* Any address means the rail's. */
static void fix_any(struct bt_verbs *verbs, struct sockaddr_storage *at)
{
    const struct sockaddr_storage *ours = &verbs->port.address;
    struct sockaddr_in *v4 = (struct sockaddr_in *)at;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at;

    if (!verbs->port.has_address || at->ss_family != ours->ss_family)
        return;
    if (at->ss_family == AF_INET && v4->sin_addr.s_addr == htonl(INADDR_ANY))
        v4->sin_addr = ((const struct sockaddr_in *)ours)->sin_addr;
    if (at->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)) {
        v6->sin6_addr = ((const struct sockaddr_in6 *)ours)->sin6_addr;
        v6->sin6_scope_id = ((const struct sockaddr_in6 *)ours)->sin6_scope_id;
    }
}

static enum bt_status open_listener(struct bt_tlisten *l,
                                    struct sockaddr *address)
{
    struct bt_verbs *verbs = l->verbs;
    enum bt_status status;

    if (rdma_create_id(verbs->channel, &l->id, l, RDMA_PS_TCP) != 0)
        return BT_LIMIT;
    if (rdma_bind_addr(l->id, address) != 0) {
        status = errno == EADDRINUSE ? BT_EXISTS : BT_IO;
        bt_verbs_say(verbs, "bind: %s", strerror(errno));
    } else if (l->id->verbs != NULL && !bt_verbs_port_is(&verbs->port, l->id)) {
        status = BT_INVALID;
        bt_verbs_say(verbs, "the address to listen on is not of %s:%u",
                     verbs->port.device, verbs->port.number);
    } else if (rdma_listen(l->id, BACKLOG) != 0) {
        status = errno == EADDRINUSE ? BT_EXISTS : BT_IO;
        bt_verbs_say(verbs, "listen: %s", strerror(errno));
    } else {
        return BT_OK;
    }
    (void)rdma_destroy_id(l->id);
    return status;
}

enum bt_status bt_verbs_listen(struct bt_transport *transport,
                               const struct sockaddr *address, socklen_t size,
                               bt_taccept_fn accept, void *arg,
                               uint16_t *port_out, struct bt_tlisten **out)
{
    struct bt_verbs *verbs = (struct bt_verbs *)transport;
    struct bt_tlisten *l = calloc(1, sizeof(*l));
    struct sockaddr_storage at = {0};
    enum bt_status status;

    if (l == NULL)
        return BT_NO_MEMORY;
    memcpy(&at, address, size < sizeof(at) ? size : sizeof(at));
    fix_any(verbs, &at);
    *l = (struct bt_tlisten){.verbs = verbs, .accept = accept, .arg = arg};
    status = open_listener(l, (struct sockaddr *)&at);
    if (status != BT_OK) {
        free(l);
        return status;
    }
    *port_out = ntohs(rdma_get_src_port(l->id));
    LIST_INSERT_HEAD(&verbs->listeners, l, entry);
    *out = l;
    return BT_OK;
}

void bt_verbs_unlisten(struct bt_tlisten *l)
{
    struct bt_verbs_conn *conn;

    if (l->id != NULL)
        (void)rdma_destroy_id(l->id);
    LIST_FOREACH(conn, &l->verbs->conns, entry)
    {
        if (conn->listener == l)
            conn->listener = NULL;
    }
    LIST_REMOVE(l, entry);
    free(l);
}

/* ---- events ---- */

/* What came before the end is handled before it. */
static void lost(struct bt_verbs_conn *conn, enum bt_status why)
{
    bt_verbs_poll(conn);
    bt_verbs_fail(conn, why);
}

static void on_conn_event(struct bt_verbs_conn *conn, const struct happening *h)
{
    bool is_silent = h->event.status == -ETIMEDOUT;

    if (h->event.event == RDMA_CM_EVENT_DISCONNECTED)
        conn->is_left = true;
    if (conn->is_failed || conn->state >= BT_VERBS_DRAINING)
        return;
    switch (h->event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        on_address(conn);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        on_route(conn);
        break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        on_response(conn, h);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        bt_verbs_is_up(conn);
        break;
    case RDMA_CM_EVENT_REJECTED:
        on_rejected(conn, h);
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
        bt_verbs_say(
            conn->verbs, "%s: %s", rdma_event_str(h->event.event),
            strerror(h->event.status < 0 ? -h->event.status : h->event.status));
        bt_verbs_fail(conn, is_silent ? BT_PEER_DEAD : BT_REFUSED);
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
    case RDMA_CM_EVENT_ADDR_CHANGE:
        lost(conn, BT_RESET);
        break;
    case RDMA_CM_EVENT_CONNECT_REQUEST: /* a listener's */
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
    }
}

static struct bt_tlisten *listener_of(struct bt_verbs *verbs,
                                      const struct rdma_cm_id *id)
{
    struct bt_tlisten *l;

    LIST_FOREACH(l, &verbs->listeners, entry)
    {
        if (l->id == id)
            return l;
    }
    return NULL;
}

static struct bt_verbs_conn *conn_of(struct bt_verbs *verbs,
                                     const struct rdma_cm_id *id)
{
    struct bt_verbs_conn *conn;

    LIST_FOREACH(conn, &verbs->conns, entry)
    {
        if (conn->id == id)
            return conn;
    }
    return NULL;
}

static void handle(struct bt_verbs *verbs, const struct happening *h)
{
    bool is_request = h->event.event == RDMA_CM_EVENT_CONNECT_REQUEST;
    bool is_removal = h->event.event == RDMA_CM_EVENT_DEVICE_REMOVAL;
    struct bt_verbs_conn *conn = conn_of(verbs, h->event.id);
    struct bt_tlisten *l =
        listener_of(verbs, is_request ? h->event.listen_id : h->event.id);

    if (is_request && l != NULL) {
        on_request(l, h);
    } else if (is_request) {
        (void)rdma_destroy_id(h->event.id);
    } else if (conn != NULL) {
        on_conn_event(conn, h);
    } else if (l != NULL && is_removal) {
        (void)rdma_destroy_id(l->id);
        l->id = NULL;
    } else { /* the last of one that is gone */
        bt_verbs_unpark_one(verbs, h->event.id);
    }
}

static void keep(struct happening *h, const struct rdma_cm_event *event)
{
    const struct rdma_conn_param *p = &event->param.conn;

    h->event = *event;
    h->size = p->private_data != NULL ? p->private_data_len : 0;
    if (h->size > sizeof(h->bytes))
        h->size = sizeof(h->bytes);
    if (h->size > 0)
        memcpy(h->bytes, p->private_data, h->size);
}

bool bt_verbs_cm_events(struct bt_verbs *verbs)
{
    struct rdma_cm_event *event;
    struct happening h;
    int count = 0;

    while (count < EVENTS_MAX &&
           rdma_get_cm_event(verbs->channel, &event) == 0) {
        keep(&h, event);
        (void)rdma_ack_cm_event(event);
        handle(verbs, &h);
        count++;
    }
    return count > 0;
}
