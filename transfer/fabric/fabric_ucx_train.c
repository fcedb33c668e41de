/* Bytes going out over messages: the answer to a READ, or a put.
 *
 *   train:  ranges cut into messages of eager_bytes, offsets without a gap
 *
 * Decides how bytes are cut and how many messages are out. Never by rendezvous:
 * READ was the handshake already; UCX gathers the ranges into its send buffer
 * (or sends one from where it is) and the sink copies them from the receive
 * buffer, so small blocks need no buffers of ours; and what a rendezvous leaves
 * under way when an end goes is what UCX 1.13 falls over (README).
 * Invariants: trains of a connection go one after the other; at most
 * PARCELS_MAX messages of a connection are under way; a train whose memory is
 * no longer exported fails the connection; its ranges are not read after it has
 * ended. */
#include "fabric_ucx.h"

#include <assert.h>
#include <stdlib.h>

#define PARCELS_MAX 32u
#define BURST_MAX   32u /* messages a loop turn */
#define IOV_MAX     64u /* ranges of a message */

/* A message under way. */
struct parcel {
    struct conn *conn;
    struct train *train;
    struct data_header header;
    size_t count, bytes;
    ucp_dt_iov_t iov[IOV_MAX];
};

/* A put ends when it is acknowledged, or the endpoint gone, and nothing of it
 * is being read; an answer when all has left. */
static void train_end_if_done(struct conn *conn, struct train *train)
{
    struct bt_tget *put = train->put;

    if (train->out > 0 || (!train->is_sent && !conn->is_ep_closed))
        return;
    if (put != NULL && !train->is_acked && !conn->is_ep_closed)
        return;
    if (!train->is_sent)
        TAILQ_REMOVE(&conn->trains, train, entry);
    if (put != NULL) {
        LIST_REMOVE(train, put_entry);
        bt_ucx_op_ended(put, train->is_acked ? BT_OK : BT_CANCELLED);
    }
    if (train->id == AM_DATA)
        conn->asks--;
    free(train);
}

void bt_ucx_train_add(struct conn *conn, struct train *train)
{
    TAILQ_INSERT_TAIL(&conn->trains, train, entry);
    bt_ucx_push_pump(conn);
}

static void parcel_ended(struct parcel *parcel, ucs_status_t status)
{
    struct conn *conn = parcel->conn;
    struct train *train = parcel->train;

    conn->parcels--;
    conn->sends--;
    conn->ucx->outstanding--;
    train->out--;
    free(parcel);
    if (status != UCS_OK)
        bt_ucx_fail(conn, bt_ucx_status(status));
    train_end_if_done(conn, train);
    if (!TAILQ_EMPTY(&conn->trains))
        bt_ucx_push_pump(conn);
    bt_ucx_closed_if_done(conn);
}

static void on_parcel(void *request, ucs_status_t status, void *arg)
{
    ucp_request_free(request);
    parcel_ended(arg, status);
}

/* Cut the next message off the train. */
static void parcel_fill(struct parcel *parcel, struct train *train,
                        uint32_t eager_bytes)
{
    uint32_t room = eager_bytes;

    while (room > 0 && parcel->count < IOV_MAX &&
           train->at.index < train->at.count) {
        const struct range *r = &train->ranges[train->at.index];
        uint32_t part = r->bytes - train->at.used;

        part = part < room ? part : room;
        parcel->iov[parcel->count++] = (ucp_dt_iov_t){
            .buffer = (void *)(uintptr_t)(r->address + train->at.used),
            .length = part,
        };
        parcel->bytes += part;
        room -= part;
        bt_ucx_advance(&train->at, train->ranges, part);
    }
}

static void parcel_post(struct parcel *parcel)
{
    struct train *train = parcel->train;
    bool one = parcel->count == 1;
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE,
        .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        .datatype = one ? ucp_dt_make_contig(1) : ucp_dt_make_iov(),
        .cb.send = on_parcel,
        .user_data = parcel,
    };
    void *request = ucp_am_send_nbx(
        parcel->conn->ep, train->id, &parcel->header, sizeof(parcel->header),
        one ? parcel->iov[0].buffer : (void *)parcel->iov,
        one ? parcel->iov[0].length : parcel->count, &params);

    if (!UCS_PTR_IS_PTR(request))
        parcel_ended(parcel, UCS_PTR_STATUS(request));
}

static bool train_step(struct conn *conn, struct train *train)
{
    struct parcel *parcel = malloc(sizeof(*parcel));

    if (parcel == NULL) {
        bt_ucx_fail(conn, BT_NO_MEMORY);
        return false;
    }
    parcel->conn = conn;
    parcel->train = train;
    parcel->header.token = train->token;
    parcel->header.offset = train->at.offset;
    parcel->count = parcel->bytes = 0;
    parcel_fill(parcel, train, conn->ucx->kind.eager_bytes);
    assert(parcel->bytes > 0);
    train->out++;
    conn->parcels++;
    conn->sends++;
    conn->ucx->outstanding++;
    if (train->at.offset == train->at.bytes) {
        train->is_sent = true;
        TAILQ_REMOVE(&conn->trains, train, entry);
    }
    parcel_post(parcel);
    /* on_parcel frees it: NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    return true;
}

void bt_ucx_trains_pump(struct conn *conn)
{
    struct train *train;
    uint32_t burst = 0;

    while ((train = TAILQ_FIRST(&conn->trains)) != NULL && burst < BURST_MAX &&
           conn->parcels < PARCELS_MAX) {
        if (conn->is_failed || conn->is_closing)
            return;
        if (train->id == AM_DATA &&
            bt_ucx_mem_of(conn->ucx, train->key) == NULL) {
            bt_ucx_fail(conn, BT_PEER_ERROR); /* unmapped meanwhile */
            return;
        }
        if (!train_step(conn, train))
            return;
        burst++;
    }
    if (train != NULL && burst == BURST_MAX)
        bt_ucx_push_pump(conn);
}

/* The endpoint is closed. */
void bt_ucx_trains_end(struct conn *conn)
{
    struct train *train, *next;

    for (train = TAILQ_FIRST(&conn->trains); train != NULL; train = next) {
        next = TAILQ_NEXT(train, entry);
        train_end_if_done(conn, train);
    }
    for (train = LIST_FIRST(&conn->puts); train != NULL; train = next) {
        next = LIST_NEXT(train, put_entry);
        train_end_if_done(conn, train);
    }
}

void bt_ucx_put_landed(struct conn *conn, uint64_t token)
{
    struct train *train;

    LIST_FOREACH(train, &conn->puts, put_entry)
    {
        if (train->token == token)
            break;
    }
    if (train == NULL || !train->is_sent) {
        bt_ucx_fail(conn, BT_PEER_ERROR);
        return;
    }
    train->is_acked = true;
    train_end_if_done(conn, train);
}
