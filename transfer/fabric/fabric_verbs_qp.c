/* One RC queue pair with its completion queue: made on our own device context,
 * moved by us with the attributes that rdma_cm worked out. So we decide access
 * rights, MTU, retries and outstanding READs, and check that the path is the
 * configured one (GID, partition). Leaves events to fabric_verbs_conn.c.
 *
 *   INIT --RTR, RTS (hello of the peer)--> works --ERR--> flushed --> destroyed
 *
 * Invariants: the pair starts without any remote right, allow() gives it; the
 * completion queue holds every request of both queues, so it cannot overrun.
 *
 * A dead peer is known once retries are used up: 4.096 us * 2^15 * (7 + 1) =
 * 1.07 s after the first packet without an answer; the InfiniBand specification
 * lets a device take up to four times as long, 4.3 s. */
#include "fabric_verbs.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ACK_TIMEOUT 15
#define RETRIES     7
#define RNR_TIMER   12 /* 0.64 ms; credits make it idle */
#define RNR_RETRIES 6
#define MAGIC       0x42544E56u
#define VERSION     1

/* ---- what the ends tell each other ---- */

void bt_verbs_hello(const struct bt_verbs_conn *conn,
                    struct bt_verbs_hello *out)
{
    *out = (struct bt_verbs_hello){.magic = htole32(MAGIC),
                                   .version = htole16(VERSION),
                                   .mtu = htole16(conn->mtu),
                                   .buffer_bytes = htole32(BT_VERBS_BUFFER),
                                   .recvs = htole16(BT_VERBS_RECVS)};
}

/* Buffers below ours would let one frame use up all credits. */
enum bt_status bt_verbs_hello_read(const void *bytes, size_t size,
                                   struct bt_verbs_hello *out)
{
    struct bt_verbs_hello h;

    if (bytes == NULL || size < sizeof(h))
        return BT_INCOMPATIBLE;
    memcpy(&h, bytes, sizeof(h));
    h = (struct bt_verbs_hello){.magic = le32toh(h.magic),
                                .version = le16toh(h.version),
                                .mtu = le16toh(h.mtu),
                                .buffer_bytes = le32toh(h.buffer_bytes),
                                .recvs = le16toh(h.recvs)};
    if (h.magic != MAGIC || h.version != VERSION || h.mtu < 256 ||
        h.buffer_bytes < BT_VERBS_BUFFER || h.buffer_bytes > (1u << 20) ||
        h.recvs < BT_VERBS_RECVS || h.recvs > 4096)
        return BT_INCOMPATIBLE;
    *out = h;
    return BT_OK;
}

/* ---- making it ---- */

/* Devices name limits that they cannot give all at once: ask for less. */
static struct ibv_qp *make(struct bt_verbs_conn *conn)
{
    struct bt_verbs_port *port = &conn->verbs->port;

    for (;;) {
        struct ibv_qp_init_attr init = {
            .qp_context = conn,
            .send_cq = conn->cq,
            .recv_cq = conn->cq,
            .cap = {.max_send_wr = port->depth,
                    .max_recv_wr = BT_VERBS_RECVS,
                    .max_send_sge = port->sge_max,
                    .max_recv_sge = 1,
                    .max_inline_data = port->inline_max},
            .qp_type = IBV_QPT_RC,
        };
        struct ibv_qp *qp = ibv_create_qp(conn->verbs->pd, &init);

        if (qp != NULL || (errno != EINVAL && errno != ENOMEM) ||
            (port->sge_max == 1 && port->inline_max == 0))
            return qp;
        if (port->inline_max > 0)
            port->inline_max /= 2;
        else
            port->sge_max /= 2;
    }
}

static enum bt_status check_partition(struct bt_verbs_conn *conn,
                                      uint16_t index)
{
    struct bt_verbs *verbs = conn->verbs;
    __be16 pkey = 0;

    if (ibv_query_pkey(verbs->port.context, verbs->port.number, index, &pkey) !=
        0)
        return BT_IO;
    if ((ntohs(pkey) & 0x7FFF) == (verbs->port.pkey & 0x7FFF))
        return BT_OK;
    bt_verbs_say(verbs, "path is in partition 0x%04x, the rail's is 0x%04x",
                 ntohs(pkey), verbs->port.pkey);
    return BT_INCOMPATIBLE;
}

static enum bt_status to_init(struct bt_verbs_conn *conn)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    enum bt_status status;
    int mask = 0;

    if (rdma_init_qp_attr(conn->id, &attr, &mask) != 0)
        return BT_IO;
    status = check_partition(conn, attr.pkey_index);
    if (status != BT_OK)
        return status;
    attr.qp_access_flags = 0;
    return ibv_modify_qp(conn->qp, &attr, mask | IBV_QP_ACCESS_FLAGS) == 0
               ? BT_OK
               : BT_IO;
}

enum bt_status bt_verbs_qp_open(struct bt_verbs_conn *conn)
{
    struct bt_verbs *verbs = conn->verbs;
    enum bt_status status = bt_verbs_segment_take(conn);

    if (status != BT_OK)
        return status;
    conn->slots = calloc(verbs->port.depth, sizeof(*conn->slots));
    if (conn->slots == NULL)
        return BT_NO_MEMORY;
    conn->cq = ibv_create_cq(verbs->port.context,
                             (int)(verbs->port.depth + BT_VERBS_RECVS), conn,
                             verbs->completions, 0);
    if (conn->cq == NULL || ibv_req_notify_cq(conn->cq, 0) != 0) {
        bt_verbs_say(verbs, "completion queue: %s", strerror(errno));
        return BT_LIMIT;
    }
    conn->qp = make(conn);
    if (conn->qp == NULL) {
        bt_verbs_say(verbs, "queue pair: %s", strerror(errno));
        return BT_LIMIT;
    }
    status = to_init(conn);
    return status == BT_OK ? bt_verbs_recvs_post(conn) : status;
}

/* ---- to work ---- */

/* The GID that rdma_cm chose for the path is the rail's, or of its address. */
static enum bt_status check_gid(struct bt_verbs_conn *conn,
                                const struct ibv_ah_attr *ah)
{
    const struct bt_verbs_port *port = &conn->verbs->port;
    union ibv_gid gid;

    if (!ah->is_global || port->gid_index < 0 ||
        ah->grh.sgid_index == port->gid_index)
        return BT_OK;
    if (ibv_query_gid(port->context, port->number, ah->grh.sgid_index, &gid) !=
        0)
        return BT_IO;
    if (!port->is_gid_fixed &&
        memcmp(gid.raw, port->gid.raw, sizeof(gid.raw)) == 0)
        return BT_OK; /* same address, the version rdma_cm is set to */
    bt_verbs_say(conn->verbs, "path uses GID %u of %s:%u, the rail's is %d",
                 ah->grh.sgid_index, port->device, port->number,
                 port->gid_index);
    return BT_INCOMPATIBLE;
}

static enum bt_status to_rtr(struct bt_verbs_conn *conn,
                             const struct bt_verbs_peer *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    enum bt_status status;
    int mask = 0;

    if (rdma_init_qp_attr(conn->id, &attr, &mask) != 0)
        return BT_IO;
    status = check_gid(conn, &attr.ah_attr);
    if (status != BT_OK)
        return status;
    if (bt_verbs_mtu_bytes(attr.path_mtu) < conn->mtu)
        conn->mtu = bt_verbs_mtu_bytes(attr.path_mtu);
    if (peer->hello.mtu < conn->mtu)
        conn->mtu = peer->hello.mtu;
    attr.path_mtu = bt_verbs_mtu_code(conn->mtu);
    attr.max_dest_rd_atomic = peer->answers;
    attr.min_rnr_timer = RNR_TIMER;
    if (attr.ah_attr.is_global && conn->verbs->port.traffic_class != 0)
        attr.ah_attr.grh.traffic_class = conn->verbs->port.traffic_class;
    return ibv_modify_qp(conn->qp, &attr, mask) == 0 ? BT_OK : BT_IO;
}

static enum bt_status to_rts(struct bt_verbs_conn *conn, uint8_t reads)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    int mask = 0;

    if (rdma_init_qp_attr(conn->id, &attr, &mask) != 0)
        return BT_IO;
    attr.max_rd_atomic = reads;
    attr.timeout = ACK_TIMEOUT;
    attr.retry_cnt = RETRIES;
    attr.rnr_retry = RNR_RETRIES;
    return ibv_modify_qp(conn->qp, &attr, mask) == 0 ? BT_OK : BT_IO;
}

static void set_access(struct bt_verbs_conn *conn)
{
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_WRITE};

    if (ibv_modify_qp(conn->qp, &attr, IBV_QP_ACCESS_FLAGS) == 0)
        return;
    bt_verbs_say(conn->verbs,
                 "%s does not give a working queue pair rights: %s",
                 conn->verbs->port.device, strerror(errno));
    bt_verbs_fail(conn, BT_UNSUPPORTED);
}

enum bt_status bt_verbs_qp_ready(struct bt_verbs_conn *conn,
                                 const struct bt_verbs_peer *peer)
{
    enum bt_status status;

    if (peer->reads == 0 || peer->answers == 0) {
        bt_verbs_say(conn->verbs, "the peer takes no RDMA READ");
        return BT_INCOMPATIBLE;
    }
    status = to_rtr(conn, peer);
    if (status != BT_OK)
        return status;
    conn->can_receive = true;
    status = to_rts(conn, peer->reads);
    if (status != BT_OK)
        return status;
    conn->credits_max = peer->hello.recvs;
    conn->credits = conn->credits_max;
    conn->peer_buffer = BT_VERBS_BUFFER;
    if (conn->is_allowed)
        set_access(conn);
    return BT_OK;
}

/* RTS to RTS may change the rights; mlx5 and rxe do it. A device that does not
 * loses the connection rather than the check. */
void bt_verbs_allow(struct bt_tconn *base)
{
    struct bt_verbs_conn *conn = (struct bt_verbs_conn *)base;

    if (conn->is_allowed || conn->is_failed || conn->state >= BT_VERBS_DRAINING)
        return;
    conn->is_allowed = true;
    if (conn->can_receive)
        set_access(conn);
}

/* ---- end ---- */

void bt_verbs_qp_break(struct bt_verbs_conn *conn)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    if (conn->qp != NULL)
        (void)ibv_modify_qp(conn->qp, &attr, IBV_QP_STATE);
}

void bt_verbs_unpark(struct bt_verbs *verbs)
{
    while (verbs->parked != NULL)
        bt_verbs_unpark_one(verbs, verbs->parked);
}

void bt_verbs_unpark_one(struct bt_verbs *verbs, const struct rdma_cm_id *id)
{
    struct rdma_cm_id *at = verbs->parked, *before = NULL;

    while (at != NULL && at != id) {
        before = at;
        at = at->context;
    }
    if (at == NULL)
        return;
    if (before == NULL)
        verbs->parked = at->context;
    else
        before->context = at->context;
    verbs->parked_count--;
    (void)rdma_destroy_id(at);
}

static void id_close(struct bt_verbs_conn *conn)
{
    struct bt_verbs *verbs = conn->verbs;

    if (!conn->is_known || conn->is_left || verbs->is_fatal ||
        verbs->parked_count == BT_VERBS_CONNS_MAX) {
        (void)rdma_destroy_id(conn->id);
        return;
    }
    conn->id->context = verbs->parked;
    verbs->parked = conn->id;
    verbs->parked_count++;
}

void bt_verbs_qp_close(struct bt_verbs_conn *conn)
{
    if (conn->qp != NULL)
        (void)ibv_destroy_qp(conn->qp);
    if (conn->cq != NULL)
        (void)ibv_destroy_cq(conn->cq);
    if (conn->id != NULL)
        id_close(conn);
    free(conn->slots);
    conn->qp = NULL;
    conn->cq = NULL;
    conn->id = NULL;
    conn->slots = NULL;
}
