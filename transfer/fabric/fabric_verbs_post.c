/* Work requests of a verbs connection: messages with credits, gets and puts
 * with gather lists, and their completions.
 *
 *   send queue   slots[ended .. posted): in order; one request in 32, the last
 *                of a get and the last of each chain are signalled. A signalled
 *                end of request n ends all up to n.
 *   credits      one per receive buffer of the peer. A message takes one; the
 *                peer gives it back in the head of its next message, or in one
 *                of its own once half of them are owed. The last credit is kept
 *                for such a message, so two full ends cannot wait for each
 *                other, and the receiver is always ready (never RNR). A frame
 *                takes 9 buffers at most; those of one that is not whole yet
 *                (8) and the last credit leave more than half of the 24 to be
 *                owed, so one long frame after the other goes on.
 *
 * Decides order: credits, frames, then data, one chain of at most 64 requests
 * per doorbell, doorbells once per loop turn. Invariants: data takes no more
 * than the window and leaves 32 slots to messages, so that a frame never waits
 * behind more than the window; a get ends once, when its last request has ended
 * and none is left to post; slots are ended exactly once, flushed or not. */
#include "fabric_verbs.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define SIGNAL_EVERY 32u
#define SEND_SLOTS   32u /* of the send queue, kept for messages */
#define REQUEST_MAX  (1u << 20)
#define WINDOW_BYTES (4u << 20)
#define GETS_MAX     4096u /* waiting, per connection */
#define OUT_MAX      (64u << 20)
#define POLL_BATCH   32
#define POLL_ROUNDS  4
#define IS_RECV      (1ull << 63)
#define HEAD         sizeof(struct bt_verbs_head)

/* A chain being built. */
struct chain {
    struct bt_verbs_conn *conn;
    uint32_t count;
};

static enum bt_status status_of(const struct bt_verbs_conn *conn,
                                enum ibv_wc_status status)
{
    if (status == IBV_WC_SUCCESS)
        return BT_OK;
    if (status == IBV_WC_WR_FLUSH_ERR && conn->state >= BT_VERBS_DRAINING)
        return BT_CANCELLED;
    if (status == IBV_WC_WR_FLUSH_ERR)
        return conn->is_failed ? conn->why : BT_RESET;
    if (status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RESP_TIMEOUT_ERR)
        return BT_PEER_DEAD;
    if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
        status == IBV_WC_REM_OP_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR ||
        status == IBV_WC_REM_ABORT_ERR || status == IBV_WC_BAD_RESP_ERR)
        return BT_PEER_ERROR;
    return BT_IO;
}

/* ---- cursor of a get: piece and offset of what is posted next ---- */

static uint32_t cursor_piece(const struct bt_tget *get)
{
    return (uint32_t)(get->token >> 32);
}

static uint32_t cursor_offset(const struct bt_tget *get)
{
    return (uint32_t)get->token;
}

static void cursor_set(struct bt_tget *get, uint32_t piece, uint32_t offset)
{
    get->token = (uint64_t)piece << 32 | offset;
}

static void get_end(struct bt_verbs_conn *conn, struct bt_tget *get)
{
    conn->gets_ending++;
    bt_verbs_push(conn->verbs, &get->event, BT_VERBS_GET_ENDED, conn);
}

static void get_unlink(struct bt_verbs_conn *conn, struct bt_tget *get)
{
    assert(get == LIST_FIRST(&conn->gets));
    if (get == conn->gets_last)
        conn->gets_last = NULL;
    LIST_REMOVE(get, entry);
    conn->gets_waiting--;
}

void bt_verbs_drop_waiting(struct bt_verbs_conn *conn, enum bt_status why)
{
    struct bt_verbs_out *out;
    struct bt_tget *get;

    while ((get = LIST_FIRST(&conn->gets)) != NULL) {
        get_unlink(conn, get);
        cursor_set(get, get->span.count, 0);
        if (get->status == BT_OK)
            get->status = why;
        if (get->left == 0)
            get_end(conn, get);
    }
    while ((out = STAILQ_FIRST(&conn->outs)) != NULL) {
        STAILQ_REMOVE_HEAD(&conn->outs, entry);
        conn->out_bytes -= out->bytes;
        free(out);
    }
}

/* ---- the end of requests ---- */

static void slot_end(struct bt_verbs_conn *conn, struct bt_verbs_slot *slot,
                     enum bt_status status)
{
    struct bt_tget *get = slot->get;

    if (slot->kind == BT_VERBS_SLOT_SEND) {
        if (slot->buffer >= 0)
            conn->free_sends[conn->free_send_count++] = (uint16_t)slot->buffer;
        conn->sends--;
        return;
    }
    conn->data_out -= slot->bytes;
    get->left--;
    if (status != BT_OK && get->status == BT_OK)
        get->status = status;
    if (get->left == 0 && cursor_piece(get) == get->span.count)
        get_end(conn, get);
}

/* All up to and with request `last` have ended, the last one with status. */
static void slots_end(struct bt_verbs_conn *conn, uint64_t last,
                      enum bt_status status)
{
    assert(last >= conn->ended && last < conn->posted);
    while (conn->ended <= last) {
        uint64_t n = conn->ended++;

        slot_end(conn, &conn->slots[n % conn->verbs->port.depth],
                 n == last ? status : BT_OK);
    }
}

void bt_verbs_abandon(struct bt_verbs_conn *conn)
{
    if (conn->qp != NULL)
        (void)ibv_destroy_qp(conn->qp);
    conn->qp = NULL;
    conn->recvs_posted = 0;
    while (conn->ended < conn->posted)
        slots_end(conn, conn->ended, BT_CANCELLED);
}

/* ---- messages in ---- */

static unsigned char *recv_buffer(const struct bt_verbs_conn *conn, uint32_t n)
{
    return conn->segment + (size_t)n * BT_VERBS_BUFFER;
}

static unsigned char *send_buffer(const struct bt_verbs_conn *conn, uint32_t n)
{
    return recv_buffer(conn, BT_VERBS_RECVS + n);
}

void bt_verbs_in_done(struct bt_verbs_conn *conn, struct bt_verbs_in *in)
{
    assert(conn->idle_count < BT_VERBS_RECVS);
    conn->idle[conn->idle_count++] = in->index;
    if (conn->state < BT_VERBS_DRAINING)
        bt_verbs_want(conn, false, true);
}

void bt_verbs_joined_done(struct bt_verbs_conn *conn,
                          struct bt_verbs_joined *joined)
{
    while (joined->held != NULL) {
        struct bt_verbs_in *in = joined->held;

        joined->held = (struct bt_verbs_in *)in->event.next;
        bt_verbs_in_done(conn, in);
    }
    free(joined);
}

void bt_verbs_messages_free(struct bt_verbs_conn *conn)
{
    bt_verbs_drop_waiting(conn, BT_CANCELLED);
    free(conn->joined);
    conn->joined = NULL;
}

enum bt_status bt_verbs_recvs_post(struct bt_verbs_conn *conn)
{
    struct ibv_recv_wr wrs[BT_VERBS_RECVS], *bad = NULL;
    struct ibv_sge sges[BT_VERBS_RECVS];
    uint16_t count = conn->idle_count;

    if (count == 0)
        return BT_OK;
    for (uint16_t i = 0; i < count; i++) {
        sges[i] = (struct ibv_sge){
            .addr = (uintptr_t)recv_buffer(conn, conn->idle[i]),
            .length = BT_VERBS_BUFFER,
            .lkey = conn->slab->mr->lkey};
        wrs[i] =
            (struct ibv_recv_wr){.wr_id = IS_RECV | conn->idle[i],
                                 .next = i + 1 < count ? &wrs[i + 1] : NULL,
                                 .sg_list = &sges[i],
                                 .num_sge = 1};
    }
    if (ibv_post_recv(conn->qp, wrs, &bad) != 0)
        return BT_IO;
    if (conn->can_receive)
        conn->returns = (uint16_t)(conn->returns + count);
    conn->recvs_posted = (uint16_t)(conn->recvs_posted + count);
    conn->idle_count = 0;
    return BT_OK;
}

/* One more part of a frame that needs several buffers. */
static bool join(struct bt_verbs_conn *conn, struct bt_verbs_in *in,
                 const unsigned char *bytes, uint32_t total)
{
    struct bt_verbs_joined *joined = conn->joined;

    if (joined == NULL) {
        joined = malloc(sizeof(*joined) + total);
        if (joined == NULL)
            return false;
        joined->bytes = total;
        joined->have = 0;
        joined->held = NULL;
        conn->joined = joined;
    }
    if (joined->bytes != total || in->bytes == 0 ||
        in->bytes > total - joined->have)
        return false;
    memcpy(joined->data + joined->have, bytes, in->bytes);
    joined->have += in->bytes;
    in->event.next = (struct bt_tevent *)joined->held;
    joined->held = in;
    if (joined->have < total)
        return true;
    conn->joined = NULL;
    bt_verbs_push(conn->verbs, &joined->event, BT_VERBS_JOINED, conn);
    return true;
}

/* False: the peer does not keep to the protocol, or no memory. */
static bool message_in(struct bt_verbs_conn *conn, struct bt_verbs_in *in,
                       uint32_t bytes)
{
    const unsigned char *at = recv_buffer(conn, in->index);
    struct bt_verbs_head head;
    uint32_t total, credits;

    if (bytes < HEAD)
        return false;
    memcpy(&head, at, HEAD);
    credits = conn->credits + (uint32_t)le16toh(head.credits);
    total = le32toh(head.frame_bytes);
    if (le16toh(head.check) != BT_VERBS_CHECK || credits > conn->credits_max ||
        total > BT_WIRE_FRAME_MAX + 1)
        return false;
    conn->credits = (uint16_t)credits;
    bt_verbs_want(conn, false, true);
    if (total == 0) {
        bt_verbs_in_done(conn, in);
        return true;
    }
    total--;
    in->bytes = bytes - (uint32_t)HEAD;
    if (conn->joined != NULL || in->bytes != total)
        return join(conn, in, at + HEAD, total);
    bt_verbs_push(conn->verbs, &in->event, BT_VERBS_FRAME, conn);
    return true;
}

static void recv_end(struct bt_verbs_conn *conn, const struct ibv_wc *wc)
{
    struct bt_verbs_in *in = &conn->ins[wc->wr_id & ~IS_RECV];

    conn->recvs_posted--;
    if (wc->status != IBV_WC_SUCCESS) {
        bt_verbs_fail(conn, status_of(conn, wc->status));
        return;
    }
    if (conn->is_failed || conn->state >= BT_VERBS_DRAINING)
        return;
    bt_verbs_is_up(conn);
    if (!message_in(conn, in, wc->byte_len)) {
        bt_verbs_say(conn->verbs, "peer sent a malformed message");
        bt_verbs_fail(conn, BT_PEER_ERROR);
    }
}

/* ---- completions ---- */

static void send_end(struct bt_verbs_conn *conn, const struct ibv_wc *wc)
{
    enum bt_status status = status_of(conn, wc->status);

    slots_end(conn, wc->wr_id, status);
    if (status == BT_OK) {
        bt_verbs_want(conn, false, true);
        return;
    }
    if (!conn->is_failed && conn->state < BT_VERBS_DRAINING)
        bt_verbs_say(conn->verbs, "request failed: %s",
                     ibv_wc_status_str(wc->status));
    bt_verbs_fail(conn, status);
}

void bt_verbs_poll(struct bt_verbs_conn *conn)
{
    struct ibv_wc wc[POLL_BATCH];
    int count = POLL_BATCH;

    conn->must_poll = false;
    for (int round = 0; round < POLL_ROUNDS && count == POLL_BATCH; round++) {
        count = conn->cq != NULL ? ibv_poll_cq(conn->cq, POLL_BATCH, wc) : 0;
        for (int i = 0; i < count; i++) {
            if (wc[i].wr_id & IS_RECV)
                recv_end(conn, &wc[i]);
            else
                send_end(conn, &wc[i]);
        }
    }
    if (count == POLL_BATCH)
        bt_verbs_want(conn, true, false);
    else if (count < 0)
        bt_verbs_fail(conn, BT_IO);
    bt_verbs_closed_if_done(conn);
}

/* ---- building a chain ---- */

static struct bt_verbs_slot *slot_next(const struct chain *chain)
{
    struct bt_verbs_conn *conn = chain->conn;

    return &conn->slots[(conn->posted + chain->count) %
                        conn->verbs->port.depth];
}

static uint32_t slots_free(const struct chain *chain)
{
    const struct bt_verbs_conn *conn = chain->conn;

    return conn->verbs->port.depth -
           (uint32_t)(conn->posted + chain->count - conn->ended);
}

/* Room for a message of so many bytes; NULL: no buffer is free now. */
static unsigned char *room_for(const struct chain *chain, uint32_t bytes)
{
    struct bt_verbs_conn *conn = chain->conn;
    struct bt_verbs_slot *slot = slot_next(chain);

    *slot = (struct bt_verbs_slot){.kind = BT_VERBS_SLOT_SEND, .buffer = -1};
    if (bytes <= conn->verbs->port.inline_max)
        return conn->verbs->tiny[chain->count];
    if (conn->free_send_count == 0)
        return NULL;
    slot->buffer = conn->free_sends[--conn->free_send_count];
    return send_buffer(conn, (uint32_t)slot->buffer);
}

static void add_send(struct chain *chain, unsigned char *at, uint32_t frame,
                     uint32_t payload)
{
    struct bt_verbs_conn *conn = chain->conn;
    struct bt_verbs *verbs = conn->verbs;
    struct bt_verbs_head head = {.frame_bytes = htole32(frame),
                                 .credits = htole16(conn->returns),
                                 .check = htole16(BT_VERBS_CHECK)};
    bool is_inline = slot_next(chain)->buffer < 0;

    memcpy(at, &head, HEAD);
    conn->returns = 0;
    conn->credits--;
    conn->sends++;
    verbs->sges[chain->count][0] =
        (struct ibv_sge){.addr = (uintptr_t)at,
                         .length = payload + (uint32_t)HEAD,
                         .lkey = is_inline ? 0 : conn->slab->mr->lkey};
    verbs->wrs[chain->count] =
        (struct ibv_send_wr){.sg_list = verbs->sges[chain->count],
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = is_inline ? IBV_SEND_INLINE : 0};
    chain->count++;
}

/* The next part of the first frame. */
static bool add_frame(struct chain *chain)
{
    struct bt_verbs_conn *conn = chain->conn;
    struct bt_verbs_out *out = STAILQ_FIRST(&conn->outs);
    uint32_t most = conn->peer_buffer - (uint32_t)HEAD, bytes;
    unsigned char *at;

    if (out == NULL || conn->credits < 2)
        return false;
    bytes = out->bytes - out->sent;
    if (bytes > most)
        bytes = most;
    at = room_for(chain, bytes + (uint32_t)HEAD);
    if (at == NULL)
        return false;
    memcpy(at + HEAD, out->data + out->sent, bytes);
    add_send(chain, at, out->bytes + 1, bytes);
    out->sent += bytes;
    if (out->sent == out->bytes) {
        STAILQ_REMOVE_HEAD(&conn->outs, entry);
        conn->out_bytes -= out->bytes;
        free(out);
    }
    return true;
}

static bool add_credits(struct chain *chain)
{
    struct bt_verbs_conn *conn = chain->conn;
    unsigned char *at;

    if (conn->returns < BT_VERBS_RECVS / 2 || conn->credits < 1)
        return false;
    at = room_for(chain, HEAD);
    if (at == NULL)
        return false;
    add_send(chain, at, 0, 0);
    return true;
}

/* A request from the cursor on: pieces that follow each other on the peer's
 * side, as many as it takes. Returns its bytes. */
static uint32_t gather(struct bt_verbs *verbs, struct bt_tget *get,
                       struct ibv_send_wr *wr)
{
    const struct bt_tspan *span = &get->span;
    uint32_t n = cursor_piece(get), offset = cursor_offset(get), bytes = 0;
    struct ibv_sge *sge = wr->sg_list;

    wr->num_sge = 0;
    wr->wr.rdma.remote_addr = span->pieces[n].remote + offset;
    while (n < span->count && bytes < REQUEST_MAX &&
           (uint32_t)wr->num_sge < verbs->port.sge_max &&
           span->pieces[n].remote + offset == wr->wr.rdma.remote_addr + bytes) {
        const struct bt_tpiece *piece = &span->pieces[n];
        uint32_t take = piece->bytes - offset;

        if (take > REQUEST_MAX - bytes)
            take = REQUEST_MAX - bytes;
        sge[wr->num_sge++] =
            (struct ibv_sge){.addr = (uintptr_t)piece->local + offset,
                             .length = take,
                             .lkey = bt_verbs_mr(span->local_mem)->lkey};
        bytes += take;
        offset += take;
        if (offset == piece->bytes) {
            offset = 0;
            n++;
        }
    }
    cursor_set(get, n, offset);
    return bytes;
}

static bool add_data(struct chain *chain)
{
    struct bt_verbs_conn *conn = chain->conn;
    struct bt_verbs *verbs = conn->verbs;
    struct bt_tget *get = LIST_FIRST(&conn->gets);
    struct ibv_send_wr *wr = &verbs->wrs[chain->count];
    uint32_t bytes;

    if (get == NULL || slots_free(chain) <= SEND_SLOTS ||
        conn->data_out >= WINDOW_BYTES)
        return false;
    *wr = (struct ibv_send_wr){.sg_list = verbs->sges[chain->count],
                               .opcode = get->event.kind == BT_VERBS_IS_PUT
                                             ? IBV_WR_RDMA_WRITE
                                             : IBV_WR_RDMA_READ};
    wr->wr.rdma.rkey = get->span.remote_key->rkey;
    bytes = gather(verbs, get, wr);
    *slot_next(chain) = (struct bt_verbs_slot){
        .kind = BT_VERBS_SLOT_DATA, .buffer = -1, .bytes = bytes, .get = get};
    get->left++;
    conn->data_out += bytes;
    verbs->requests++;
    verbs->pieces += (uint64_t)wr->num_sge;
    chain->count++;
    if (cursor_piece(get) == get->span.count) {
        get_unlink(conn, get);
        wr->send_flags = IBV_SEND_SIGNALED;
    }
    return true;
}

static void build(struct chain *chain)
{
    while (chain->count < BT_VERBS_CHAIN && slots_free(chain) > 0 &&
           (add_frame(chain) || add_credits(chain) || add_data(chain)))
        ;
}

/* ---- ringing the doorbell ---- */

static void finish_chain(const struct chain *chain)
{
    struct bt_verbs_conn *conn = chain->conn;
    struct ibv_send_wr *wrs = conn->verbs->wrs;

    for (uint32_t i = 0; i < chain->count; i++) {
        bool is_last = i + 1 == chain->count;

        wrs[i].wr_id = conn->posted + i;
        wrs[i].next = is_last ? NULL : &wrs[i + 1];
        if (is_last || ++conn->since_signal >= SIGNAL_EVERY)
            wrs[i].send_flags |= IBV_SEND_SIGNALED;
        if (wrs[i].send_flags & IBV_SEND_SIGNALED)
            conn->since_signal = 0;
    }
}

/* What was not taken ends here; the rest is flushed, as the pair breaks. */
static void post(const struct chain *chain)
{
    struct bt_verbs_conn *conn = chain->conn;
    struct bt_verbs *verbs = conn->verbs;
    struct ibv_send_wr *bad = NULL;
    int error = ibv_post_send(conn->qp, verbs->wrs, &bad);
    uint32_t taken = chain->count;

    verbs->doorbells++;
    if (error != 0)
        taken = bad != NULL ? (uint32_t)(bad - verbs->wrs) : 0;
    for (uint32_t i = taken; i < chain->count; i++)
        slot_end(conn, &conn->slots[(conn->posted + i) % verbs->port.depth],
                 BT_IO);
    conn->posted += taken;
    if (error == 0)
        return;
    bt_verbs_say(verbs, "post: %s", strerror(error));
    bt_verbs_fail(conn, BT_IO);
}

void bt_verbs_flush(struct bt_verbs_conn *conn)
{
    conn->must_flush = false;
    if (conn->state != BT_VERBS_UP || conn->is_failed)
        return;
    if (bt_verbs_recvs_post(conn) != BT_OK) {
        bt_verbs_fail(conn, BT_IO);
        return;
    }
    while (!conn->is_failed) { /* bounded by the send queue */
        struct chain chain = {.conn = conn};

        build(&chain);
        if (chain.count == 0)
            return;
        finish_chain(&chain);
        post(&chain);
    }
}

/* ---- rows of the table ---- */

void bt_verbs_send(struct bt_tconn *base, const void *bytes, size_t size)
{
    struct bt_verbs_conn *conn = (struct bt_verbs_conn *)base;
    struct bt_verbs_out *out;

    if (conn->is_failed || conn->state >= BT_VERBS_DRAINING)
        return;
    assert(size <= BT_WIRE_FRAME_MAX);
    out =
        conn->out_bytes + size <= OUT_MAX ? malloc(sizeof(*out) + size) : NULL;
    if (out == NULL) {
        bt_verbs_fail(conn, BT_LIMIT);
        return;
    }
    out->bytes = (uint32_t)size;
    out->sent = 0;
    if (size > 0)
        memcpy(out->data, bytes, size);
    conn->out_bytes += size;
    STAILQ_INSERT_TAIL(&conn->outs, out, entry);
    bt_verbs_want(conn, false, true);
}

bool bt_verbs_sent(const struct bt_tconn *base)
{
    const struct bt_verbs_conn *conn = (const struct bt_verbs_conn *)base;

    return STAILQ_EMPTY(&conn->outs) && conn->sends == 0;
}

/* Both sides of every piece inside what was registered? */
static bool span_fits(const struct bt_tspan *span)
{
    const struct bt_tmem *mem = span->local_mem;
    const struct bt_tkey *key = span->remote_key;

    for (uint32_t i = 0; i < span->count; i++) {
        const struct bt_tpiece *p = &span->pieces[i];

        if (p->bytes == 0 ||
            !bt_verbs_inside(key->address, key->bytes, p->remote, p->bytes) ||
            !bt_verbs_inside((uintptr_t)mem->address, mem->bytes,
                             (uintptr_t)p->local, p->bytes))
            return false;
    }
    return span->count > 0;
}

static void start(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *get, enum bt_verbs_kind kind)
{
    struct bt_verbs_conn *conn = (struct bt_verbs_conn *)base;

    get->span = *span;
    get->left = 0;
    get->status = BT_OK;
    cursor_set(get, 0, 0);
    if (conn->is_failed || conn->state >= BT_VERBS_DRAINING)
        get->status = BT_CANCELLED;
    else if (!span_fits(span))
        get->status = BT_INVALID;
    else if (conn->gets_waiting == GETS_MAX ||
             bt_verbs_mr(span->local_mem) == NULL)
        get->status = BT_LIMIT;
    if (get->status != BT_OK) {
        bool is_wrong = get->status == BT_INVALID;

        get_end(conn, get);
        if (is_wrong) /* as if the peer had refused it */
            bt_verbs_fail(conn, BT_INVALID);
        return;
    }
    span->local_mem->is_used = true;
    get->event.kind = (int)kind;
    if (conn->gets_last == NULL)
        LIST_INSERT_HEAD(&conn->gets, get, entry);
    else
        LIST_INSERT_AFTER(conn->gets_last, get, entry);
    conn->gets_last = get;
    conn->gets_waiting++;
    bt_verbs_want(conn, false, true);
}

void bt_verbs_get(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *get)
{
    start(base, span, get, BT_VERBS_IS_GET);
}

void bt_verbs_put(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *put)
{
    start(base, span, put, BT_VERBS_IS_PUT);
}
