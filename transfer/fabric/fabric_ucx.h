/* Insides of the UCX transport, shared by fabric_ucx.c and fabric_ucx_get.c.
 * With them the only files that see UCX. */
#ifndef BATON_TRANSFER_FABRIC_FABRIC_UCX_H
#define BATON_TRANSFER_FABRIC_FABRIC_UCX_H

#include "fabric.h"

#include <ucp/api/ucp.h>

#define AM_FRAME 7u
#define AM_READ  8u
#define AM_DATA  9u

enum kind { ACCEPT, FRAME, READ, GET_DONE, FAILED, CLOSED };

struct ucx {
    struct bt_transport base;
    struct ev_loop *loop;
    ucp_context_h context;
    ucp_worker_h worker;
    ev_io io;
    ev_prepare prepare;
    ev_idle idle;
    ev_timer tick;
    bool tick_busy;
    int64_t active_ns;
    struct bt_tevent *first, **last;
    LIST_HEAD(, conn) conns;
    LIST_HEAD(, bt_tmem) mems;
    uint64_t next_key, next_token;
    size_t conn_count, frames_held, outstanding;
};

struct conn {
    struct bt_tconn base;
    LIST_ENTRY(conn) entry;
    struct ucx *ucx;
    struct bt_tlisten *listener; /* accepted on, not yet announced */
    ucp_ep_h ep;
    struct bt_tevent accept, failed, closed;
    enum bt_status why;
    bool is_failed, is_closing, is_ep_closed, is_closed, is_allowed;
    size_t gets, sends, send_bytes, reads;
    LIST_HEAD(, bt_tget) waiting; /* no data yet */
};

struct bt_tlisten {
    struct ucx *ucx;
    ucp_listener_h listener;
    bt_taccept_fn accept;
    void *arg;
};

struct bt_tmem {
    LIST_ENTRY(bt_tmem) entry;
    ucp_mem_h memh;
    const unsigned char *address;
    size_t bytes;
    uint64_t key; /* what a peer must name to read it; 0: not exported */
};

struct bt_tkey {
    uint64_t key;
};

/* Header of READ; its first member is also the header of DATA. */
struct read_header {
    uint64_t token; /* of the get, back in DATA */
    uint64_t key, address, bytes;
};

/* A READ being answered. */
struct read {
    struct bt_tevent event;
    struct read_header header;
};

struct frame {
    struct bt_tevent event;
    size_t size;
    unsigned char bytes[];
};

struct send {
    struct conn *conn;
    size_t size;
    unsigned char bytes[];
};

/* ---- fabric_ucx.c ---- */
enum bt_status bt_ucx_status(ucs_status_t status);
/* Queue an upcall. */
void bt_ucx_push(struct ucx *ucx, struct bt_tevent *event, enum kind kind,
                 struct conn *conn);
/* The connection is broken: `failed`, once. */
void bt_ucx_fail(struct conn *conn, enum bt_status why);
/* `closed`, once nothing is under way; call after each end of something. */
void bt_ucx_closed_if_done(struct conn *conn);
/* Send a copy of a small message. */
void bt_ucx_send(struct conn *conn, unsigned int id, const void *bytes,
                 size_t size);
/* Whose message is it? NULL: nobody's that still matters. */
struct conn *bt_ucx_sender(struct ucx *ucx, const ucp_am_recv_param_t *param);

/* ---- fabric_ucx_get.c ---- */
void bt_ucx_answer(struct conn *conn, struct read *read);
void bt_ucx_get_ended(struct bt_tget *get, ucs_status_t status);
ucs_status_t bt_ucx_on_read(void *arg, const void *header, size_t header_len,
                            void *data, size_t size,
                            const ucp_am_recv_param_t *param);
ucs_status_t bt_ucx_on_data(void *arg, const void *header, size_t header_len,
                            void *data, size_t size,
                            const ucp_am_recv_param_t *param);
/* Rows of the ops table. */
enum bt_status bt_ucx_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out);
void bt_ucx_unmap(struct bt_transport *transport, struct bt_tmem *mem);
enum bt_status bt_ucx_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out);
enum bt_status bt_ucx_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out);
void bt_ucx_key_close(struct bt_tkey *key);
void bt_ucx_allow(struct bt_tconn *base);
void bt_ucx_get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *get);

#endif
