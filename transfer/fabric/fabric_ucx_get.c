/* Memory and gets over UCX messages.
 *
 *   sink    READ {token, key, address, bytes}   ->   source
 *           DATA {token} + bytes                <-
 *
 * A get is READ (small message) answered by DATA (a message that UCX moves by
 * rendezvous when it is large), not ucp_get: UCX 1.13.1 answers a get request
 * on a failed endpoint by abort(), so a sink that dies would take its source
 * with it. ucp_put has the same fault. Messages fail with a status. * A large
 * DATA goes by rendezvous straight into the sink's region. Invariants: a source
 * sends only what lies inside memory it has exported under that key; a get is
 * in its connection's waiting list until its data starts to land, and ends
 * once. */
#include "fabric_ucx.h"

#include <stdlib.h>
#include <string.h>

#define READS_MAX 1024u /* answers under way per connection */

/* ---- memory ---- */

enum bt_status bt_ucx_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out)
{
    struct ucx *ucx = (struct ucx *)transport;
    struct bt_tmem *mem = malloc(sizeof(*mem));
    ucp_mem_map_params_t params = {
        .field_mask =
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = address,
        .length = bytes,
    };
    ucs_status_t status;

    if (mem == NULL)
        return BT_NO_MEMORY;
    *mem = (struct bt_tmem){.address = address, .bytes = bytes};
    status = ucp_mem_map(ucx->context, &params, &mem->memh);
    if (status != UCS_OK) {
        free(mem);
        return bt_ucx_status(status);
    }
    LIST_INSERT_HEAD(&ucx->mems, mem, entry);
    *out = mem;
    return BT_OK;
}

void bt_ucx_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    ucp_mem_unmap(((struct ucx *)transport)->context, mem->memh);
    LIST_REMOVE(mem, entry);
    free(mem);
}

enum bt_status bt_ucx_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out)
{
    struct ucx *ucx = (struct ucx *)transport;

    if (size < sizeof(mem->key))
        return BT_TOO_LARGE;
    if (mem->key == 0)
        mem->key = ++ucx->next_key;
    memcpy(out, &mem->key, sizeof(mem->key));
    *used_out = sizeof(mem->key);
    return BT_OK;
}

enum bt_status bt_ucx_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out)
{
    struct bt_tkey *key;

    (void)base;
    if (size != sizeof(key->key))
        return BT_INVALID;
    key = malloc(sizeof(*key));
    if (key == NULL)
        return BT_NO_MEMORY;
    memcpy(&key->key, bytes, sizeof(key->key));
    *out = key;
    return BT_OK;
}

void bt_ucx_key_close(struct bt_tkey *key)
{
    free(key);
}

/* ---- gets, at the source: READ in, DATA out ---- */

static void answer_ended(struct read *read, ucs_status_t status)
{
    struct conn *conn = (struct conn *)read->event.conn;

    conn->reads--;
    conn->sends--;
    conn->ucx->outstanding--;
    free(read);
    if (status != UCS_OK)
        bt_ucx_fail(conn, bt_ucx_status(status));
    bt_ucx_closed_if_done(conn);
}

static void on_answered(void *request, ucs_status_t status, void *arg)
{
    ucp_request_free(request);
    answer_ended(arg, status);
}

/* The bytes that READ asks for, or NULL: unmapped meanwhile, or made up. */
static const unsigned char *span_of(const struct ucx *ucx,
                                    const struct read_header *h)
{
    const struct bt_tmem *mem;

    LIST_FOREACH(mem, &ucx->mems, entry)
    {
        uint64_t offset = h->address - (uintptr_t)mem->address;

        if (mem->key != 0 && mem->key == h->key &&
            h->address >= (uintptr_t)mem->address && offset <= mem->bytes &&
            h->bytes <= mem->bytes - offset)
            return mem->address + offset;
    }
    return NULL;
}

void bt_ucx_answer(struct conn *conn, struct read *read)
{
    const unsigned char *span = span_of(conn->ucx, &read->header);
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_AM_SEND_FLAG_REPLY,
        .cb.send = on_answered,
        .user_data = read,
    };
    void *request;

    if (span == NULL || !conn->is_allowed) {
        conn->reads--;
        free(read);
        bt_ucx_fail(conn, BT_PEER_ERROR);
        return;
    }
    conn->sends++;
    conn->ucx->outstanding++;
    request = ucp_am_send_nbx(conn->ep, AM_DATA, &read->header.token,
                              sizeof(read->header.token), span,
                              read->header.bytes, &params);
    if (!UCS_PTR_IS_PTR(request))
        answer_ended(read, UCS_PTR_STATUS(request));
    /* else on_answered frees it */
}

ucs_status_t bt_ucx_on_read(void *arg, const void *header, size_t header_len,
                            void *data, size_t size,
                            const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = arg;
    struct conn *conn = bt_ucx_sender(ucx, param);
    struct read *read;

    (void)header;
    (void)header_len;
    if (conn == NULL)
        return UCS_OK;
    read = size == sizeof(read->header) && conn->reads < READS_MAX &&
                   !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
               ? malloc(sizeof(*read))
               : NULL;
    if (read == NULL) {
        bt_ucx_fail(conn, BT_PEER_ERROR);
        return UCS_OK;
    }
    memcpy(&read->header, data, sizeof(read->header));
    conn->reads++;
    bt_ucx_push(ucx, &read->event, READ, conn);
    return UCS_OK;
}

/* ---- gets, at the sink: READ out, DATA in ---- */

void bt_ucx_get_ended(struct bt_tget *get, ucs_status_t status)
{
    struct conn *conn = (struct conn *)get->event.conn;

    get->status = bt_ucx_status(status);
    conn->ucx->outstanding--;
    bt_ucx_push(conn->ucx, &get->event, GET_DONE, conn);
}

static void on_got(void *request, ucs_status_t status, size_t size, void *arg)
{
    (void)size;
    ucp_request_free(request);
    bt_ucx_get_ended(arg, status);
}

static struct bt_tget *get_find(struct conn *conn, const void *header,
                                size_t header_len)
{
    struct bt_tget *get;
    uint64_t token;

    if (header_len != sizeof(token))
        return NULL;
    memcpy(&token, header, sizeof(token));
    LIST_FOREACH(get, &conn->waiting, entry)
    {
        if (get->token == token)
            return get;
    }
    return NULL;
}

static void land(struct ucx *ucx, struct bt_tget *get, void *data, bool rndv)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = on_got,
        .user_data = get,
    };
    void *request;

    LIST_REMOVE(get, entry);
    if (!rndv) {
        memcpy(get->span.pieces[0].local, data, get->span.bytes);
        bt_ucx_get_ended(get, UCS_OK);
        return;
    }
    request = ucp_am_recv_data_nbx(ucx->worker, data, get->span.pieces[0].local,
                                   get->span.bytes, &params);
    if (!UCS_PTR_IS_PTR(request))
        bt_ucx_get_ended(get, UCS_PTR_STATUS(request));
}

ucs_status_t bt_ucx_on_data(void *arg, const void *header, size_t header_len,
                            void *data, size_t size,
                            const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = arg;
    struct conn *conn = bt_ucx_sender(ucx, param);
    struct bt_tget *get =
        conn != NULL ? get_find(conn, header, header_len) : NULL;

    if (conn == NULL)
        return UCS_OK;
    if (get == NULL || size != get->span.bytes)
        bt_ucx_fail(conn, BT_PEER_ERROR);
    else
        land(ucx, get, data,
             (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
    return UCS_OK;
}

void bt_ucx_get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *get)
{
    struct conn *conn = (struct conn *)base;
    struct read_header header = {
        .token = ++conn->ucx->next_token,
        .key = span->remote_key->key,
        .address = span->pieces[0].remote,
        .bytes = span->bytes,
    };

    get->event.conn = base;
    get->span = *span;
    get->token = header.token;
    conn->gets++;
    conn->ucx->outstanding++;
    if (conn->is_closing || conn->is_failed) {
        bt_ucx_get_ended(get, UCS_ERR_CANCELED);
        return;
    }
    LIST_INSERT_HEAD(&conn->waiting, get, entry);
    bt_ucx_send(conn, AM_READ, &header, sizeof(header));
}

/* Until then READs are refused. */
void bt_ucx_allow(struct bt_tconn *base)
{
    ((struct conn *)base)->is_allowed = true;
}
