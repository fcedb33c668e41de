/* Gets over UCX messages, and the receiving end of everything.
 *
 *   sink                                           source
 *   READ {token, key, ranges}                 ->
 *            DATA {token, offset} + bytes ... <-   a train
 *
 *   WRITE {token, key, ranges}                ->
 *   FILL {token, offset} + bytes ...          ->   lands
 *                                DONE {token} <-
 *
 * Not ucp_get and ucp_put: on tcp UCX 1.13.1 answers them on a failed endpoint
 * by abort(), so an end that dies would take the other with it. Messages fail
 * with a status. Decides where bytes go; what is sent, and in which portions,
 * is fabric_ucx_train.c's.
 * Invariants: nothing is read or written but memory exported under the key that
 * the peer names, and only for peers that were allowed; each byte lands once,
 * because offsets must follow each other; bytes land by a copy of ours inside
 * progress, so a get that has ended is never written again. */
#include "fabric_ucx.h"

#include <stdlib.h>
#include <string.h>

#define ASKS_MAX 1024u /* READ and WRITE of a peer under way */

/* ---- ranges ---- */

uint32_t bt_ucx_ranges(const struct bt_tspan *span, bool remote,
                       struct range *out)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < span->count; i++) {
        const struct bt_tpiece *p = &span->pieces[i];
        uint64_t address = remote ? p->remote : (uintptr_t)p->local;
        struct range *last = count > 0 ? &out[count - 1] : NULL;

        if (last != NULL && last->address + last->bytes == address &&
            p->bytes <= UINT32_MAX - last->bytes)
            last->bytes += p->bytes;
        else
            out[count++] =
                (struct range){.address = address, .bytes = p->bytes};
    }
    return count;
}

void bt_ucx_advance(struct cursor *at, const struct range *ranges,
                    uint32_t bytes)
{
    at->offset += bytes;
    at->used += bytes;
    while (at->index < at->count && at->used >= ranges[at->index].bytes) {
        at->used -= ranges[at->index].bytes;
        at->index++;
    }
}

/* ---- landing ---- */

static void landing_free(struct landing *landing)
{
    LIST_REMOVE(landing, entry);
    if (landing->id == AM_FILL)
        landing->conn->asks--;
    free(landing);
}

static void landing_end(struct landing *landing, enum bt_status status)
{
    struct bt_tget *get = landing->get;

    landing_free(landing);
    if (get != NULL)
        bt_ucx_op_ended(get, status);
}

static void landed_if_all(struct landing *landing)
{
    struct conn *conn = landing->conn;
    uint64_t token = landing->token;
    bool is_write = landing->id == AM_FILL;

    if (landing->at.offset < landing->at.bytes)
        return;
    landing_end(landing, BT_OK);
    if (is_write)
        bt_ucx_send(conn, AM_DONE, &token, sizeof(token));
}

/* The endpoint is closed. */
void bt_ucx_landings_end(struct conn *conn)
{
    struct landing *landing, *next;

    for (landing = LIST_FIRST(&conn->landings); landing != NULL;
         landing = next) {
        next = LIST_NEXT(landing, entry);
        landing_end(landing, BT_CANCELLED);
    }
}

static void copy_in(struct landing *landing, const unsigned char *data,
                    size_t size)
{
    while (size > 0) {
        const struct range *r = &landing->ranges[landing->at.index];
        uint32_t room = r->bytes - landing->at.used;
        uint32_t part = size < room ? (uint32_t)size : room;

        memcpy((void *)(uintptr_t)(r->address + landing->at.used), data, part);
        bt_ucx_advance(&landing->at, landing->ranges, part);
        data += part;
        size -= part;
    }
}

static struct landing *landing_find(struct conn *conn, unsigned int id,
                                    uint64_t token)
{
    struct landing *landing;

    LIST_FOREACH(landing, &conn->landings, entry)
    {
        if (landing->token == token && landing->id == id)
            return landing;
    }
    return NULL;
}

/* Bytes of a get or a WRITE. */
static void on_part(struct conn *conn, unsigned int id,
                    const struct data_header *header, const void *data,
                    size_t size)
{
    struct ucx *ucx = conn->ucx;
    struct landing *landing = landing_find(conn, id, header->token);

    if (landing == NULL || header->offset != landing->at.offset || size == 0 ||
        size > landing->at.bytes - landing->at.offset ||
        (id == AM_FILL && bt_ucx_mem_of(ucx, landing->key) == NULL)) {
        bt_ucx_fail(conn, BT_PEER_ERROR);
        return;
    }
    copy_in(landing, data, size);
    landed_if_all(landing);
}

/* ---- asked by the peer: READ, WRITE ---- */

/* Are they all inside the memory of that key? Sum in *bytes_out. */
static bool ranges_good(const struct ucx *ucx, uint64_t key,
                        const struct range *ranges, uint32_t count,
                        uint64_t *bytes_out)
{
    const struct bt_tmem *mem = bt_ucx_mem_of(ucx, key);
    uint64_t sum = 0;

    if (mem == NULL)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t offset = ranges[i].address - mem->address;

        if (ranges[i].bytes == 0 || ranges[i].address < mem->address ||
            offset > mem->bytes || ranges[i].bytes > mem->bytes - offset)
            return false;
        sum += ranges[i].bytes;
    }
    *bytes_out = sum;
    return sum <= bt_ucx_ops.limits.bytes_max;
}

static bool asked_read(struct conn *conn, const struct ask_header *h,
                       const struct range *ranges, uint64_t bytes)
{
    size_t size = h->count * sizeof(*ranges);
    struct train *train = calloc(1, sizeof(*train) + size);

    if (train == NULL)
        return false;
    train->id = AM_DATA;
    train->token = h->token;
    train->key = h->key;
    train->at = (struct cursor){.bytes = bytes, .count = h->count};
    memcpy(train->ranges, ranges, size);
    conn->asks++;
    bt_ucx_train_add(conn, train);
    return true;
}

static bool asked_write(struct conn *conn, const struct ask_header *h,
                        const struct range *ranges, uint64_t bytes)
{
    size_t size = h->count * sizeof(*ranges);
    struct landing *landing;

    if (landing_find(conn, AM_FILL, h->token) != NULL)
        return false;
    landing = calloc(1, sizeof(*landing) + size);
    if (landing == NULL)
        return false;
    landing->conn = conn;
    landing->id = AM_FILL;
    landing->token = h->token;
    landing->key = h->key;
    landing->at = (struct cursor){.bytes = bytes, .count = h->count};
    memcpy(landing->ranges, ranges, size);
    conn->asks++;
    LIST_INSERT_HEAD(&conn->landings, landing, entry);
    return true;
}

static void on_ask(struct conn *conn, unsigned int id, const void *data,
                   size_t size)
{
    struct range ranges[BT_UCX_PIECES_MAX];
    struct ask_header h;
    uint64_t bytes = 0;
    bool good;

    good = size >= sizeof(h) && conn->asks < ASKS_MAX && conn->is_allowed;
    if (good) {
        memcpy(&h, data, sizeof(h));
        good = h.count > 0 && h.count <= BT_UCX_PIECES_MAX &&
               size == sizeof(h) + h.count * sizeof(ranges[0]);
    }
    if (good) {
        memcpy(ranges, (const unsigned char *)data + sizeof(h),
               h.count * sizeof(ranges[0]));
        good = ranges_good(conn->ucx, h.key, ranges, h.count, &bytes);
    }
    if (good)
        good = id == AM_READ ? asked_read(conn, &h, ranges, bytes)
                             : asked_write(conn, &h, ranges, bytes);
    if (!good)
        bt_ucx_fail(conn, BT_PEER_ERROR);
}

/* ---- the message handlers ---- */

/* All but control frames. Nothing may come by rendezvous. */
static ucs_status_t on_any(struct ucx *ucx, unsigned int id,
                           const struct bt_ucx_message *m)
{
    struct conn *conn = bt_ucx_sender(ucx, m->param);
    bool rndv = (m->param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    bool is_part = id == AM_DATA || id == AM_FILL;
    bool is_near = id == AM_NEAR_ASK || id == AM_NEAR;
    struct data_header header;
    uint64_t token;

    if (conn == NULL || conn->is_failed)
        return UCS_OK;
    if (rndv || (is_part && m->header_size != sizeof(header)) ||
        (id == AM_DONE && m->size != sizeof(token)) ||
        (is_near && m->size != BT_UCX_NONCE)) {
        bt_ucx_fail(conn, BT_PEER_ERROR);
    } else if (is_part) {
        memcpy(&header, m->header, sizeof(header));
        on_part(conn, id, &header, m->data, m->size);
    } else if (id == AM_DONE) {
        memcpy(&token, m->data, sizeof(token));
        bt_ucx_put_landed(conn, token);
    } else if (is_near) {
        (id == AM_NEAR ? bt_ucx_near_answered : bt_ucx_near_asked)(conn,
                                                                   m->data);
    } else {
        on_ask(conn, id, m->data, m->size);
    }
    return UCS_OK;
}

#define HANDLER(name, id)                                                      \
    ucs_status_t name(void *arg, const void *header, size_t header_size,       \
                      void *data, size_t size,                                 \
                      const ucp_am_recv_param_t *param)                        \
    {                                                                          \
        const struct bt_ucx_message m = {header, header_size, data, size,      \
                                         param};                               \
                                                                               \
        return on_any(arg, id, &m);                                            \
    }
HANDLER(bt_ucx_on_read, AM_READ)
HANDLER(bt_ucx_on_data, AM_DATA)
HANDLER(bt_ucx_on_write, AM_WRITE)
HANDLER(bt_ucx_on_fill, AM_FILL)
HANDLER(bt_ucx_on_done, AM_DONE)
HANDLER(bt_ucx_on_near_ask, AM_NEAR_ASK)
HANDLER(bt_ucx_on_near, AM_NEAR)

/* Until then READ and WRITE are refused. */
void bt_ucx_allow(struct bt_tconn *base)
{
    ((struct conn *)base)->is_allowed = true;
}

/* ---- gets of our own ---- */

/* READ or WRITE of a span. */
static void send_ask(struct conn *conn, unsigned int id,
                     const struct bt_tspan *span, uint64_t token)
{
    struct {
        struct ask_header header;
        struct range ranges[BT_UCX_PIECES_MAX];
    } ask;

    ask.header = (struct ask_header){
        .token = token,
        .key = span->remote_key->key,
        .count = bt_ucx_ranges(span, true, ask.ranges),
    };
    bt_ucx_send(conn, id, &ask,
                sizeof(ask.header) + ask.header.count * sizeof(ask.ranges[0]));
}

static void op_begin(struct conn *conn, const struct bt_tspan *span,
                     struct bt_tget *op)
{
    op->event.conn = &conn->base;
    op->span = *span;
    op->token = ++conn->ucx->next_token;
    conn->ops++;
    conn->ucx->outstanding++;
}

void bt_ucx_get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *get)
{
    struct conn *conn = (struct conn *)base;

    op_begin(conn, span, get);
    if (conn->is_closing || conn->is_failed)
        bt_ucx_op_ended(get, BT_CANCELLED);
    else if (!bt_ucx_near_get(conn, get))
        bt_ucx_get_message(conn, get);
}

void bt_ucx_get_message(struct conn *conn, struct bt_tget *get)
{
    const struct bt_tspan *span = &get->span;
    struct landing *landing;

    landing =
        calloc(1, sizeof(*landing) + span->count * sizeof(landing->ranges[0]));
    if (landing == NULL) {
        bt_ucx_op_ended(get, BT_NO_MEMORY);
        return;
    }
    landing->conn = conn;
    landing->id = AM_DATA;
    landing->token = get->token;
    landing->get = get;
    landing->at.bytes = span->bytes;
    landing->at.count = bt_ucx_ranges(span, false, landing->ranges);
    LIST_INSERT_HEAD(&conn->landings, landing, entry);
    send_ask(conn, AM_READ, span, get->token);
}

void bt_ucx_put(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *put)
{
    struct conn *conn = (struct conn *)base;
    struct train *train;

    op_begin(conn, span, put);
    if (conn->is_closing || conn->is_failed) {
        bt_ucx_op_ended(put, BT_CANCELLED);
        return;
    }
    train = calloc(1, sizeof(*train) + span->count * sizeof(train->ranges[0]));
    if (train == NULL) {
        bt_ucx_op_ended(put, BT_NO_MEMORY);
        return;
    }
    train->id = AM_FILL;
    train->token = put->token;
    train->put = put;
    train->at.bytes = span->bytes;
    train->at.count = bt_ucx_ranges(span, false, train->ranges);
    LIST_INSERT_HEAD(&conn->puts, train, put_entry);
    send_ask(conn, AM_WRITE, span, put->token);
    bt_ucx_train_add(conn, train);
}
