/* Gets and puts by ucp_get_nbx and ucp_put_nbx, a ucp call per piece: for RDMA
 * devices, whose hardware answers. Decides how many are out; never used where
 * tcp could carry them (the target would abort).
 * Invariants: each piece lies within the bounds that came with the key; at most
 * RMA_MAX calls of a connection are under way, in the order of the gets; a get
 * ends after its last call has, a put after a flush behind its last. */
#include "fabric_ucx.h"

#include <stdlib.h>

#define RMA_MAX 64u

struct rma {
    TAILQ_ENTRY(rma) entry;
    struct conn *conn;
    struct bt_tget *op;
    bool is_put, is_posted, is_flushed;
    uint32_t next, out;
    enum bt_status why;
};

static void rma_end_if_done(struct rma *rma);

static void call_ended(struct rma *rma, ucs_status_t status)
{
    struct conn *conn = rma->conn;

    rma->out--;
    conn->rma_out--;
    if (status != UCS_OK && rma->why == BT_OK)
        rma->why = bt_ucx_status(status);
    rma_end_if_done(rma);
    if (!TAILQ_EMPTY(&conn->rmas))
        bt_ucx_push_pump(conn);
    bt_ucx_closed_if_done(conn);
}

static void on_call(void *request, ucs_status_t status, void *arg)
{
    ucp_request_free(request);
    call_ended(arg, status);
}

static const ucp_request_param_t call_params = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
    .cb.send = on_call,
};

/* A put's completion says that its memory may be reused; the flush, that the
 * peer's holds it. True: it is under way. */
static bool flush(struct rma *rma)
{
    ucp_request_param_t params = call_params;
    void *request;

    rma->is_flushed = true;
    params.user_data = rma;
    request = ucp_ep_flush_nbx(rma->conn->ep, &params);
    if (UCS_PTR_IS_PTR(request)) {
        rma->out++;
        rma->conn->rma_out++;
        return true;
    }
    rma->why = bt_ucx_status(UCS_PTR_STATUS(request));
    return false;
}

static void rma_end_if_done(struct rma *rma)
{
    struct conn *conn = rma->conn;
    struct bt_tget *op = rma->op;
    enum bt_status why;

    if (rma->out > 0 || !rma->is_posted)
        return;
    if (rma->why == BT_OK && rma->is_put && !rma->is_flushed && flush(rma))
        return;
    why = rma->why;
    free(rma);
    if (why != BT_OK)
        bt_ucx_fail(conn, why);
    bt_ucx_op_ended(op, why);
}

static void post(struct rma *rma)
{
    struct bt_tspan *span = &rma->op->span;
    const struct bt_tpiece *piece = &span->pieces[rma->next++];
    ucp_rkey_h rkey = span->remote_key->rkey;
    ucp_ep_h ep = rma->conn->ep;
    ucp_request_param_t params = call_params;
    void *request;

    params.user_data = rma;
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = span->local_mem->reg->memh;
    rma->out++;
    rma->conn->rma_out++;
    if (rma->next == span->count) {
        rma->is_posted = true;
        TAILQ_REMOVE(&rma->conn->rmas, rma, entry);
    }
    request = rma->is_put ? ucp_put_nbx(ep, piece->local, piece->bytes,
                                        piece->remote, rkey, &params)
                          : ucp_get_nbx(ep, piece->local, piece->bytes,
                                        piece->remote, rkey, &params);
    if (!UCS_PTR_IS_PTR(request))
        call_ended(rma, UCS_PTR_STATUS(request));
}

void bt_ucx_rma_pump(struct conn *conn)
{
    struct rma *rma;

    for (uint32_t i = 0; i < RMA_MAX && conn->rma_out < RMA_MAX; i++) {
        /* One that has ended is in no list. */
        rma = TAILQ_FIRST(&conn->rmas);
        if (rma == NULL || conn->is_failed || conn->is_closing)
            return;
        post(rma); /* NOLINT(clang-analyzer-unix.Malloc) */
    }
    if (!TAILQ_EMPTY(&conn->rmas) && conn->rma_out < RMA_MAX)
        bt_ucx_push_pump(conn);
}

/* The endpoint is closed: no further calls. */
void bt_ucx_rma_end(struct conn *conn)
{
    struct rma *rma;

    while ((rma = TAILQ_FIRST(&conn->rmas)) != NULL) {
        TAILQ_REMOVE(&conn->rmas, rma, entry);
        rma->is_posted = true;
        if (rma->why == BT_OK)
            rma->why = BT_CANCELLED;
        rma_end_if_done(rma);
    }
}

bool bt_ucx_inside(const struct bt_tspan *span)
{
    const struct bt_tkey *key = span->remote_key;

    for (uint32_t i = 0; i < span->count; i++) {
        uint64_t offset = span->pieces[i].remote - key->base;

        if (span->pieces[i].remote < key->base || offset > key->bytes ||
            span->pieces[i].bytes > key->bytes - offset)
            return false;
    }
    return true;
}

static void begin(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *op, bool is_put)
{
    struct conn *conn = (struct conn *)base;
    struct rma *rma;

    op->event.conn = base;
    op->span = *span;
    conn->ops++;
    conn->ucx->outstanding++;
    if (conn->is_closing || conn->is_failed) {
        bt_ucx_op_ended(op, BT_CANCELLED);
        return;
    }
    if (!bt_ucx_inside(span)) {
        bt_ucx_op_ended(op, BT_PEER_ERROR);
        bt_ucx_fail(conn, BT_PEER_ERROR);
        return;
    }
    rma = calloc(1, sizeof(*rma));
    if (rma == NULL) {
        bt_ucx_op_ended(op, BT_NO_MEMORY);
        return;
    }
    rma->conn = conn;
    rma->op = op;
    rma->is_put = is_put;
    TAILQ_INSERT_TAIL(&conn->rmas, rma, entry);
    if (conn->is_wired)
        bt_ucx_rma_pump(conn);
}

void bt_ucx_rma_get(struct bt_tconn *base, const struct bt_tspan *span,
                    struct bt_tget *get)
{
    begin(base, span, get, false);
}

void bt_ucx_rma_put(struct bt_tconn *base, const struct bt_tspan *span,
                    struct bt_tget *put)
{
    begin(base, span, put, true);
}
