/* Insides of the verbs transport, shared by the fabric_verbs files. With them
 * the only files of this folder that see libibverbs and librdmacm.
 *
 *   fabric_verbs.c         loop, upcalls, table, begin and end
 *   fabric_verbs_port.c    choice of device, port, GID, partition, MTU
 *   fabric_verbs_mem.c     registrations, keys, message buffers, locked memory
 *   fabric_verbs_conn.c    connections: rdma_cm events, their begin and end
 *   fabric_verbs_qp.c      one queue pair: create, move, access, drain
 *   fabric_verbs_post.c    work requests, credits, completions
 */
#ifndef BATON_TRANSFER_FABRIC_FABRIC_VERBS_H
#define BATON_TRANSFER_FABRIC_FABRIC_VERBS_H

#include "baton/transfer/rails.h"
#include "fabric.h"
#include "transport_open.h"

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/queue.h>

#define BT_VERBS_BUFFER    8192u /* bytes of one message buffer */
#define BT_VERBS_RECVS     24u   /* receive buffers per connection */
#define BT_VERBS_SENDS     8u    /* send buffers per connection */
#define BT_VERBS_SEGMENT   (BT_VERBS_BUFFER * (BT_VERBS_RECVS + BT_VERBS_SENDS))
#define BT_VERBS_SLAB      8u  /* segments per registration */
#define BT_VERBS_CHAIN     64u /* work requests per doorbell */
#define BT_VERBS_SGE_MAX   16u
#define BT_VERBS_DEPTH     256u /* send queue, if the device has as much */
#define BT_VERBS_INLINE    128u
#define BT_VERBS_TEXT      200u
#define BT_VERBS_CONNS_MAX 1024u

enum bt_verbs_kind {
    BT_VERBS_ACCEPT,
    BT_VERBS_FRAME,  /* whole frame in a receive buffer */
    BT_VERBS_JOINED, /* frame put together from several buffers */
    BT_VERBS_GET_ENDED,
    BT_VERBS_FAILED,
    BT_VERBS_CLOSED,
    BT_VERBS_IS_GET, /* in a queue of work, not an upcall */
    BT_VERBS_IS_PUT
};

/* Head of every message, little endian. */
struct bt_verbs_head {
    uint32_t frame_bytes; /* of the whole frame, + 1; 0: only credits */
    uint16_t credits;     /* receive buffers posted anew by the sender */
    uint16_t check;       /* BT_VERBS_CHECK */
};
#define BT_VERBS_CHECK 0xB47Fu

/* Private data of connect and accept: what an end offers, then what both use.
 * Fits the 56 bytes that rdma_cm leaves. Little endian. */
struct bt_verbs_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t mtu;          /* path MTU, bytes; the lower of both counts */
    uint32_t buffer_bytes; /* of a receive buffer */
    uint16_t recvs;        /* receive buffers posted */
    uint16_t reserved;
};

/* What a rail stands on. */
struct bt_verbs_port {
    struct ibv_context *context;
    char device[64];
    uint8_t number;
    struct ibv_device_attr attr;
    struct bt_nic nic; /* GIDs and partitions of the port */
    int gid_index;     /* chosen; -1: none (InfiniBand without an address) */
    bool is_gid_fixed; /* by the configuration */
    union ibv_gid gid;
    uint16_t pkey; /* chosen */
    uint16_t mtu;  /* bytes, the lower of the port's and the rail's */
    uint8_t traffic_class;
    bool has_address;
    struct sockaddr_storage address; /* source of every connection, port 0 */
    uint32_t sge_max, depth, inline_max, reads_max, answers_max;
};

struct bt_verbs_slab {
    LIST_ENTRY(bt_verbs_slab) entry;
    struct ibv_mr *mr;
    unsigned char *bytes;
    uint32_t used; /* bit per segment */
};

/* A message buffer's way up. */
struct bt_verbs_in {
    struct bt_tevent event;
    uint32_t bytes;
    uint16_t index;
};
/* A frame put together. */
struct bt_verbs_joined {
    struct bt_tevent event;
    uint32_t bytes, have;
    struct bt_verbs_in *held; /* buffers it came in, by event.next */
    unsigned char data[];
};
/* A frame to send. */
struct bt_verbs_out {
    STAILQ_ENTRY(bt_verbs_out) entry;
    uint32_t bytes, sent;
    unsigned char data[];
};

enum bt_verbs_slot_kind { BT_VERBS_SLOT_SEND, BT_VERBS_SLOT_DATA };
/* One posted work request of the send queue. */
struct bt_verbs_slot {
    enum bt_verbs_slot_kind kind;
    int buffer;          /* -1: went inline */
    uint32_t bytes;      /* of a get or put */
    struct bt_tget *get; /* of SLOT_DATA */
};

enum bt_verbs_state {
    BT_VERBS_RESOLVING,  /* waits for address and route */
    BT_VERBS_CONNECTING, /* waits for the peer */
    BT_VERBS_UP,
    BT_VERBS_DRAINING, /* closed by its owner; waits for flushed work */
    BT_VERBS_GONE      /* waits for its last upcall */
};

struct bt_verbs_conn {
    struct bt_tconn base;
    LIST_ENTRY(bt_verbs_conn) entry;
    TAILQ_ENTRY(bt_verbs_conn) work_entry;
    struct bt_verbs *verbs;
    struct bt_tlisten *listener; /* accepted on, not yet announced */
    struct rdma_cm_id *id;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct bt_tevent accept, failed, closed;
    enum bt_verbs_state state;
    enum bt_status why;
    bool is_failed, is_allowed, in_work, must_poll, must_flush;
    bool is_known;    /* the peer counts it as a connection */
    bool is_left;     /* the peer has said good-bye, or answered ours */
    bool can_receive; /* queue pair is past RTR: flushes what is posted */
    int64_t deadline_ns;
    bool is_waiting, is_starting; /* for its turn to connect; has it */
    struct sockaddr_storage peer; /* to connect to */
    uint16_t mtu;

    /* messages */
    struct bt_verbs_slab *slab;
    unsigned char *segment;
    struct bt_verbs_in ins[BT_VERBS_RECVS];
    uint16_t idle[BT_VERBS_RECVS]; /* handled, not yet posted anew */
    uint16_t idle_count, recvs_posted, returns; /* credits owed to the peer */
    uint16_t credits, credits_max, peer_buffer;
    uint16_t free_sends[BT_VERBS_SENDS], free_send_count;
    STAILQ_HEAD(, bt_verbs_out) outs;
    size_t out_bytes;
    uint32_t sends; /* posted, not ended */
    struct bt_verbs_joined *joined;

    /* send queue; slots[n % depth] is work request n */
    struct bt_verbs_slot *slots;
    uint64_t posted, ended;
    uint32_t since_signal;
    LIST_HEAD(, bt_tget) gets; /* not wholly posted, in order */
    struct bt_tget *gets_last;
    uint32_t gets_waiting;
    uint32_t gets_ending; /* their upcall is queued */
    uint64_t data_out;    /* bytes of gets and puts posted, not ended */
};

struct bt_tlisten {
    LIST_ENTRY(bt_tlisten) entry;
    struct bt_verbs *verbs;
    struct rdma_cm_id *id; /* NULL: its device is gone */
    bt_taccept_fn accept;
    void *arg;
};
/* Only memory whose key was packed has remote rights. */
struct bt_tmem {
    LIST_ENTRY(bt_tmem) entry;
    void *address;
    size_t bytes;
    struct ibv_mr *local;    /* NULL: `exported` serves both */
    struct ibv_mr *exported; /* NULL: no key was packed */
    bool is_used;            /* gets or puts were given the local one */
};
struct bt_tkey {
    uint32_t rkey;
    uint64_t address, bytes;
};

struct bt_verbs {
    struct bt_transport base;
    struct ev_loop *loop;
    struct bt_verbs_port port;
    struct rdma_event_channel *channel;
    struct ibv_pd *pd;
    struct ibv_comp_channel *completions;
    ev_io cm_io, completion_io, async_io;
    ev_prepare prepare;
    ev_idle idle;
    ev_timer tick;
    bool in_turn, cm_ready, completion_ready, async_ready;
    bool is_down, is_fatal; /* port; device */
    struct bt_tevent *first, **last;
    LIST_HEAD(, bt_verbs_conn) conns;
    LIST_HEAD(, bt_tlisten) listeners;
    LIST_HEAD(, bt_tmem) mems;
    LIST_HEAD(, bt_verbs_slab) slabs;
    TAILQ_HEAD(work_head, bt_verbs_conn) work;
    struct rdma_cm_id *parked; /* linked by context; see bt_verbs_unpark */
    uint32_t parked_count;
    uint32_t conn_count;
    uint32_t starting;                    /* connections being set up by us */
    bool must_start;                      /* others wait for that */
    uint64_t doorbells, requests, pieces; /* since the beginning */
    char text[BT_VERBS_TEXT];             /* last trouble, in words */
    /* the chain being built */
    struct ibv_send_wr wrs[BT_VERBS_CHAIN];
    struct ibv_sge sges[BT_VERBS_CHAIN][BT_VERBS_SGE_MAX];
    unsigned char tiny[BT_VERBS_CHAIN][BT_VERBS_INLINE];
};

/* ---- fabric_verbs.c ---- */
/* Queue an upcall. */
void bt_verbs_push(struct bt_verbs *verbs, struct bt_tevent *event,
                   enum bt_verbs_kind kind, struct bt_verbs_conn *conn);
/* Have the next turn poll or post for this connection. */
void bt_verbs_want(struct bt_verbs_conn *conn, bool poll, bool flush);
/* Note trouble: kept as the last text, and on stderr with BATON_VERBS_LOG. */
void bt_verbs_say(struct bt_verbs *verbs, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* For tests, `baton topo` and logs. Of a transport that is verbs itself, not a
 * decorator. describe: "rxe0:1 gid=1 roce_v2_ipv4 10.77.0.1 mtu=4096
 * pkey=0xffff"; text: last trouble in words, "" if none. */
void bt_verbs_describe(const struct bt_transport *transport, char *out,
                       size_t size);
const char *bt_verbs_text(const struct bt_transport *transport);
struct bt_verbs_counts {
    uint64_t doorbells; /* calls of ibv_post_send */
    uint64_t requests;  /* work requests of gets and puts */
    uint64_t pieces;    /* local ranges in them */
};
void bt_verbs_counts(const struct bt_transport *transport,
                     struct bt_verbs_counts *out);

/* ---- fabric_verbs_port.c ---- */
enum bt_status bt_verbs_port_open(struct bt_verbs_port *port,
                                  const struct bt_rail_config *rail,
                                  char *error_out, size_t error_size);
void bt_verbs_port_close(struct bt_verbs_port *port);
/* Is this rdma_cm id on the rail's port? */
bool bt_verbs_port_is(const struct bt_verbs_port *port,
                      const struct rdma_cm_id *id);
/* Events of device and port: fail what they concern. */
bool bt_verbs_port_events(struct bt_verbs *verbs);
enum ibv_mtu bt_verbs_mtu_code(uint16_t bytes);
uint16_t bt_verbs_mtu_bytes(enum ibv_mtu code);

/* ---- fabric_verbs_mem.c ---- */
/* Segment of message buffers for a connection; BT_LIMIT, BT_NO_MEMORY. */
enum bt_status bt_verbs_segment_take(struct bt_verbs_conn *conn);
void bt_verbs_segment_give(struct bt_verbs_conn *conn);
void bt_verbs_slabs_free(struct bt_verbs *verbs);
/* Does [address, address + bytes) lie inside? */
bool bt_verbs_inside(uint64_t base, uint64_t size, uint64_t address,
                     uint64_t bytes);
enum bt_status bt_verbs_map(struct bt_transport *transport, void *address,
                            size_t bytes, struct bt_tmem **out);
void bt_verbs_unmap(struct bt_transport *transport, struct bt_tmem *mem);
/* What work requests of ours name it by; NULL: it was lost (no room to lock it
 * again, see bt_verbs_key_pack). */
const struct ibv_mr *bt_verbs_mr(const struct bt_tmem *mem);
enum bt_status bt_verbs_key_pack(struct bt_transport *transport,
                                 struct bt_tmem *mem, uint8_t *out, size_t size,
                                 uint16_t *used_out);
enum bt_status bt_verbs_key_open(struct bt_tconn *base, const uint8_t *bytes,
                                 size_t size, struct bt_tkey **out);
void bt_verbs_key_close(struct bt_tkey *key);

/* ---- fabric_verbs_conn.c ---- */
/* Take rdma_cm's events; true if there were any. */
bool bt_verbs_cm_events(struct bt_verbs *verbs);
/* `failed`, once. */
void bt_verbs_fail(struct bt_verbs_conn *conn, enum bt_status why);
void bt_verbs_fail_all(struct bt_verbs *verbs, enum bt_status why);
/* Deadlines of set-up and of draining. */
void bt_verbs_check_time(struct bt_verbs *verbs, int64_t now_ns);
/* `closed`, once nothing is under way; call after each end of something. */
void bt_verbs_closed_if_done(struct bt_verbs_conn *conn);
void bt_verbs_conn_free(struct bt_verbs_conn *conn);
/* Begin to set up connections that wait for their turn. */
void bt_verbs_start_some(struct bt_verbs *verbs);
/* The peer has been heard of: the connection is up. */
void bt_verbs_is_up(struct bt_verbs_conn *conn);
enum bt_status bt_verbs_listen(struct bt_transport *transport,
                               const struct sockaddr *address, socklen_t size,
                               bt_taccept_fn accept, void *arg,
                               uint16_t *port_out, struct bt_tlisten **out);
void bt_verbs_unlisten(struct bt_tlisten *listener);
enum bt_status bt_verbs_connect(struct bt_transport *transport,
                                const struct sockaddr *address, socklen_t size,
                                struct bt_tconn **out);
void bt_verbs_close(struct bt_tconn *base);

/* ---- fabric_verbs_qp.c ---- */
enum bt_status bt_verbs_qp_open(struct bt_verbs_conn *conn);
/* To RTR and RTS with what the peer said; BT_INCOMPATIBLE, BT_IO. */
struct bt_verbs_peer {
    struct bt_verbs_hello hello;
    uint8_t reads, answers; /* READs we may have out, and must answer */
};
enum bt_status bt_verbs_qp_ready(struct bt_verbs_conn *conn,
                                 const struct bt_verbs_peer *peer);
/* Work in it ends with errors from now on. */
void bt_verbs_qp_break(struct bt_verbs_conn *conn);
void bt_verbs_qp_close(struct bt_verbs_conn *conn);
/* Ids of connections that are gone, but whose peer may not know it: destroying
 * an id ends the repetition of its good-bye, and one that is destroyed while
 * the port is down would send a good-bye without a route, after which
 * soft-RoCE's management queue pair hears nothing ever again. They stay until
 * rdma_cm's last event for them (it gives up by itself), all until the port
 * comes back or the transport goes. */
void bt_verbs_unpark_one(struct bt_verbs *verbs, const struct rdma_cm_id *id);
void bt_verbs_unpark(struct bt_verbs *verbs);
void bt_verbs_hello(const struct bt_verbs_conn *conn,
                    struct bt_verbs_hello *out);
enum bt_status bt_verbs_hello_read(const void *bytes, size_t size,
                                   struct bt_verbs_hello *out);
void bt_verbs_allow(struct bt_tconn *base);

/* ---- fabric_verbs_post.c ---- */
void bt_verbs_poll(struct bt_verbs_conn *conn);
void bt_verbs_flush(struct bt_verbs_conn *conn);
/* A handled receive buffer, or the buffers of a joined frame, go back. */
void bt_verbs_in_done(struct bt_verbs_conn *conn, struct bt_verbs_in *in);
void bt_verbs_joined_done(struct bt_verbs_conn *conn,
                          struct bt_verbs_joined *joined);
enum bt_status bt_verbs_recvs_post(struct bt_verbs_conn *conn);
/* Nothing more will come out of the queue pair: end all that was posted. */
void bt_verbs_abandon(struct bt_verbs_conn *conn);
/* Drop frames and end gets that are not posted. */
void bt_verbs_drop_waiting(struct bt_verbs_conn *conn, enum bt_status why);
/* Free what messages hold. */
void bt_verbs_messages_free(struct bt_verbs_conn *conn);
void bt_verbs_send(struct bt_tconn *base, const void *bytes, size_t size);
bool bt_verbs_sent(const struct bt_tconn *base);
void bt_verbs_get(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *get);
void bt_verbs_put(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *put);

#endif
