/* Insides of the UCX transport, shared by the fabric_ucx files, the only ones
 * that see UCX.
 *
 *   fabric_ucx.c        loop, connections, control messages
 *   fabric_ucx_open.c   options, context, worker, the table
 *   fabric_ucx_mem.c    registrations and keys
 *   fabric_ucx_ask.c    gets and puts over messages: asking, landing
 *   fabric_ucx_train.c  the other end: bytes as a train of messages
 *   fabric_ucx_rma.c    gets and puts by ucp_get and ucp_put
 *   fabric_ucx_near.c   gets from a process on the same host
 */
#ifndef BATON_TRANSFER_FABRIC_FABRIC_UCX_H
#define BATON_TRANSFER_FABRIC_FABRIC_UCX_H

#include "fabric.h"

#include <stdatomic.h>
#include <ucp/api/ucp.h>

#define AM_FRAME    7u
#define AM_READ     8u  /* asks for DATA */
#define AM_DATA     9u  /* part of what a READ asked for */
#define AM_WRITE    10u /* announces FILL */
#define AM_FILL     11u /* part of what a WRITE announced */
#define AM_DONE     12u /* a WRITE has landed */
#define AM_NEAR_ASK 13u /* bytes to be shown in memory */
#define AM_NEAR     14u /* where they are */

#define BT_UCX_PIECES_MAX 256u
#define BT_UCX_ERROR_MAX  192u
#define BT_UCX_IDLE_MAX   32u /* registrations kept without a user */
#define BT_UCX_NONCE      16u

enum kind { ACCEPT, FRAME, PUMP, OP_DONE, FAILED, CLOSED };

/* What the names in UCX_TLS mean for us. */
struct bt_ucx_kind {
    bool tcp, shm, rdma, ud;
    bool near; /* memory of a process on the same host may be read */
    /* ucp_get and ucp_put: only where tcp cannot carry them, see above
     * bt_ucx_classify. */
    bool rma;
    uint32_t eager_bytes; /* largest DATA message */
};

/* A registration: of one mapped range, or of several inside it. */
struct reg {
    TAILQ_ENTRY(reg) entry;
    ucp_mem_h memh;
    uintptr_t address;
    size_t bytes;
    uint32_t users;
    int slot; /* in ucx->idle; -1 in use */
};
/* Read by whoever unmaps memory, on any thread. */
struct idle_slot {
    _Atomic uintptr_t begin, end; /* end 0: free */
    atomic_bool is_stale;
    struct reg *reg; /* the loop's only */
};

struct ucx {
    struct bt_transport base;
    struct ev_loop *loop;
    struct bt_ucx_kind kind;
    /* Connections leave from here (the rail's address); size 0: from any. */
    struct sockaddr_storage from;
    socklen_t from_size;
    ucp_context_h context;
    ucp_worker_h worker;
    ev_io io;
    ev_prepare prepare;
    ev_idle idle_watch;
    ev_timer tick;
    bool tick_busy;
    int64_t active_ns;
    struct bt_tevent *first, **last;
    LIST_HEAD(, conn) conns;
    LIST_HEAD(, bt_tlisten) listeners; /* retired ones too */
    LIST_HEAD(, bt_tmem) mems;
    TAILQ_HEAD(reg_list, reg) regs; /* in use */
    struct reg_list idle_regs;      /* least recently used first */
    struct idle_slot idle[BT_UCX_IDLE_MAX];
    uint64_t reg_hits, reg_made, reg_evicted;
    bool is_hooked;
    char map_error[BT_UCX_ERROR_MAX]; /* of the last map that failed */
    uint64_t next_key, next_token;
    size_t conn_count, frames_held, outstanding, parting;
};

struct train;
struct landing;
struct rma;
struct near_get;

struct bt_ucx_near {
    unsigned char nonce[BT_UCX_NONCE]; /* sink: the source must show it */
    unsigned char shown[BT_UCX_NONCE]; /* source: read by the sink */
    bool is_asked, is_on;
    pid_t pid;
    uint64_t shown_at;
    TAILQ_HEAD(, near_get) gets;
};

struct conn {
    struct bt_tconn base;
    LIST_ENTRY(conn) entry;
    struct ucx *ucx;
    struct bt_tlisten *listener; /* accepted on, not yet announced */
    ucp_ep_h ep;
    struct bt_tevent accept, failed, closed, pump;
    enum bt_status why;
    bool is_failed, is_closing, is_ep_closed, is_closed, is_allowed;
    bool is_wired;   /* its lanes are connected: may be sent to */
    bool is_settled; /* its set-up has ended, well or not */
    bool is_parting; /* to be closed once it has; see close_conn */
    int64_t made_ns;
    bool is_pumping; /* PUMP is queued */
    size_t ops, sends, send_bytes;
    size_t asks;                   /* READ and WRITE of the peer under way */
    size_t parcels;                /* messages of trains under way */
    size_t rma_out;                /* ucp_get and ucp_put under way */
    STAILQ_HEAD(, send) held;      /* until it is wired */
    TAILQ_HEAD(, train) trains;    /* bytes to send, first come first served */
    LIST_HEAD(, train) puts;       /* own puts until acknowledged */
    LIST_HEAD(, landing) landings; /* what data is expected for */
    TAILQ_HEAD(, rma) rmas;
    struct bt_ucx_near near;
};

struct bt_tlisten {
    LIST_ENTRY(bt_tlisten) entry;
    struct ucx *ucx;
    ucp_listener_h listener;
    struct sockaddr_storage at;
    bool is_retired; /* nobody listens; see fabric_ucx_listen.c */
    int shut_fd;     /* its socket, shut at the end; -1 */
    bt_taccept_fn accept;
    void *arg;
};

struct bt_tmem {
    LIST_ENTRY(bt_tmem) entry;
    struct reg *reg;
    uintptr_t address;
    size_t bytes;
    uint64_t key;   /* what a peer must name to use it; 0: not exported */
    uint64_t guard; /* read by near peers; 0: not, or no longer, exported */
};

struct bt_tkey {
    uint64_t key;
    uint64_t base, bytes;     /* bounds that the peer gave */
    uint64_t guard, guard_at; /* near; guard_at 0: not */
    ucp_rkey_h rkey;          /* rma */
};

/* On the wire, in the order of this machine: both ends run the same kind. */
struct range {
    uint64_t address;
    uint32_t bytes;
    uint32_t zero;
};
/* READ and WRITE, ranges behind. */
struct ask_header {
    uint64_t token; /* comes back in DATA, FILL, DONE */
    uint64_t key;
    uint32_t count, zero;
};
/* In front of DATA and FILL. Offsets follow each other without a gap. */
struct data_header {
    uint64_t token, offset;
};

/* Where in a list of ranges a transfer is. */
struct cursor {
    uint64_t offset, bytes; /* done, all */
    uint32_t index, used;   /* range, bytes done of it */
    uint32_t count;
};

/* Bytes going out: the answer to a READ, or a put of our own. */
struct train {
    TAILQ_ENTRY(train) entry;
    LIST_ENTRY(train) put_entry;
    unsigned int id; /* AM_DATA, AM_FILL */
    uint64_t token, key;
    struct cursor at;
    uint32_t out;        /* messages under way */
    struct bt_tget *put; /* NULL: an answer */
    bool is_sent, is_acked;
    struct range ranges[];
};

/* Bytes coming in: for a get of our own, or a WRITE of the peer. */
struct landing {
    LIST_ENTRY(landing) entry;
    struct conn *conn;
    unsigned int id;
    uint64_t token, key;
    struct cursor at;
    struct bt_tget *get;
    struct range ranges[];
};

struct frame {
    struct bt_tevent event;
    size_t size;
    unsigned char bytes[];
};

struct send {
    STAILQ_ENTRY(send) entry;
    struct conn *conn;
    unsigned int id;
    size_t size;
    unsigned char bytes[];
};

/* ---- fabric_ucx.c ---- */
enum bt_status bt_ucx_status(ucs_status_t status);
/* Queue an upcall. */
void bt_ucx_push(struct ucx *ucx, struct bt_tevent *event, enum kind kind,
                 struct conn *conn);
/* Have bt_ucx_pump called from the loop. */
void bt_ucx_push_pump(struct conn *conn);
/* Queue done(). The operation must be in no list any more. */
void bt_ucx_op_ended(struct bt_tget *op, enum bt_status status);
/* The connection is broken: `failed`, once. */
void bt_ucx_fail(struct conn *conn, enum bt_status why);
/* `closed`, once nothing is under way; call after each end of something. */
void bt_ucx_closed_if_done(struct conn *conn);
/* Send a copy of a small message. */
void bt_ucx_send(struct conn *conn, unsigned int id, const void *bytes,
                 size_t size);
/* Whose message is it? NULL: nobody's that still matters. */
struct conn *bt_ucx_sender(struct ucx *ucx, const ucp_am_recv_param_t *param);
ucs_status_t bt_ucx_on_message(void *arg, const void *header, size_t header_len,
                               void *data, size_t size,
                               const ucp_am_recv_param_t *param);
void bt_ucx_watch(struct ucx *ucx, int fd);
extern const struct bt_transport_ops bt_ucx_ops;
extern const struct bt_transport_ops bt_ucx_rma_ops;

/* ---- fabric_ucx_open.c ---- */
/* Names of UCX_TLS, with commas between them. */
struct bt_ucx_kind bt_ucx_classify(const char *transports);

/* ---- fabric_ucx_mem.c ---- */
enum bt_status bt_ucx_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out);
void bt_ucx_unmap(struct bt_transport *transport, struct bt_tmem *mem);
void bt_ucx_why(const struct bt_transport *transport, char *out, size_t size);
enum bt_status bt_ucx_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out);
enum bt_status bt_ucx_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out);
void bt_ucx_key_close(struct bt_tkey *key);
/* The memory exported under this key; NULL: none, or no longer. */
const struct bt_tmem *bt_ucx_mem_of(const struct ucx *ucx, uint64_t key);
void bt_ucx_mem_init(struct ucx *ucx);
void bt_ucx_mem_fini(struct ucx *ucx);

/* ---- fabric_ucx_ask.c ---- */
/* The side of a span that is here or there, neighbours made one; returns how
 * many ranges. */
uint32_t bt_ucx_ranges(const struct bt_tspan *span, bool remote,
                       struct range *out);
/* Move on by bytes, which lie within the ranges. */
void bt_ucx_advance(struct cursor *at, const struct range *ranges,
                    uint32_t bytes);
struct bt_ucx_message {
    const void *header;
    size_t header_size;
    void *data;
    size_t size;
    const ucp_am_recv_param_t *param;
};
#define BT_UCX_HANDLER(name)                                                   \
    ucs_status_t name(void *arg, const void *header, size_t header_size,       \
                      void *data, size_t size,                                 \
                      const ucp_am_recv_param_t *param)
BT_UCX_HANDLER(bt_ucx_on_read);
BT_UCX_HANDLER(bt_ucx_on_data);
BT_UCX_HANDLER(bt_ucx_on_write);
BT_UCX_HANDLER(bt_ucx_on_fill);
BT_UCX_HANDLER(bt_ucx_on_done);
BT_UCX_HANDLER(bt_ucx_on_near_ask);
BT_UCX_HANDLER(bt_ucx_on_near);
void bt_ucx_landings_end(struct conn *conn);
/* A get that has begun, over messages. */
void bt_ucx_get_message(struct conn *conn, struct bt_tget *get);
void bt_ucx_allow(struct bt_tconn *base);
void bt_ucx_get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *get);
void bt_ucx_put(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *put);

/* ---- fabric_ucx_listen.c ---- */
void bt_ucx_listener_add(struct bt_tlisten *l,
                         const struct sockaddr_storage *at);
/* A retired one of this address goes on; NULL: there is none. */
struct bt_tlisten *bt_ucx_listener_again(struct ucx *ucx,
                                         const struct sockaddr *address,
                                         socklen_t size);
void bt_ucx_listener_retire(struct bt_tlisten *l);
/* All of them; connections are gone, the worker is still there. */
void bt_ucx_listeners_end(struct ucx *ucx);

/* ---- fabric_ucx_train.c ---- */
void bt_ucx_train_add(struct conn *conn, struct train *train);
/* Send what may be sent now; from the loop, not from a ucp call-back. */
void bt_ucx_trains_pump(struct conn *conn);
void bt_ucx_trains_end(struct conn *conn);
void bt_ucx_put_landed(struct conn *conn, uint64_t token);

/* ---- fabric_ucx_rma.c ---- */
/* Every piece within the bounds of the key? */
bool bt_ucx_inside(const struct bt_tspan *span);
void bt_ucx_rma_get(struct bt_tconn *base, const struct bt_tspan *span,
                    struct bt_tget *get);
void bt_ucx_rma_put(struct bt_tconn *base, const struct bt_tspan *span,
                    struct bt_tget *put);
void bt_ucx_rma_pump(struct conn *conn);
void bt_ucx_rma_end(struct conn *conn);

/* ---- fabric_ucx_near.c ---- */
/* Ask the source whether its memory may be read; once. */
void bt_ucx_near_ask(struct conn *conn);
/* What came: BT_UCX_NONCE bytes; two u64. */
void bt_ucx_near_asked(struct conn *conn, const void *data);
void bt_ucx_near_answered(struct conn *conn, const void *data);
/* A get that has begun; false: it must go another way. */
bool bt_ucx_near_get(struct conn *conn, struct bt_tget *op);
void bt_ucx_near_pump(struct conn *conn);
void bt_ucx_near_hide(struct conn *conn);
void bt_ucx_near_end(struct conn *conn);

#endif
