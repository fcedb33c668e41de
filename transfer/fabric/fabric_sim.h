/* Insides of the simulated transport, shared by the fabric_sim files: the
 * network, a transport on it, its connections.
 *
 * One lock per network guards everything below that is marked N; the rest
 * belongs to the thread of its transport's loop. Upcalls run without it. */
#ifndef BATON_TRANSFER_FABRIC_FABRIC_SIM_H
#define BATON_TRANSFER_FABRIC_FABRIC_SIM_H

#include "fabric.h"

#include <pthread.h>

#define BT_SIM_NAME_MAX   64
#define BT_SIM_PIECES_MAX 256u
#define BT_SIM_BYTES_MAX  (1u << 30)

enum sim_kind {
    SIM_ACCEPT,
    SIM_FRAME,
    SIM_GET,
    SIM_PUT,
    SIM_FAILED,
    SIM_CLOSED
};

/* Something that happens to a connection at a time. A get is queued as its
 * own event, its time is the token. */
struct sim_timed {
    struct bt_tevent event;
    int64_t due_ns;
};

struct sim_frame {
    struct sim_timed timed;
    size_t size;
    unsigned char bytes[];
};

struct sim_address {
    int family;
    unsigned char bytes[16]; /* all zero: any */
};

/* One direction between two addresses: first come, first served. */
struct sim_link {
    LIST_ENTRY(sim_link) entry;
    struct sim_address from, to;
    int64_t free_ns; /* N: has carried all it was given then */
};

struct sim_net {
    LIST_ENTRY(sim_net) entry;
    char name[BT_SIM_NAME_MAX];
    uint32_t users;
    pthread_mutex_t lock;
    int64_t latency_ns;
    uint64_t rate_bytes_per_s;
    LIST_HEAD(, bt_tlisten) listeners; /* N */
    LIST_HEAD(, sim_link) links;       /* N */
    uint32_t link_count;               /* N */
    uint64_t key_last;                 /* N */
    uint16_t port_last;                /* N */
};

struct sim {
    struct bt_transport base;
    struct ev_loop *loop;
    struct sim_net *net;
    struct sim_address address;
    int timer_fd;
    ev_io io;
    struct bt_tevent *first, *last; /* N: what is to come, by time */
    int64_t armed_ns;               /* N: timer_fd goes off then; 0: never */
    LIST_HEAD(, sim_conn) conns;    /* N */
    uint32_t conn_count;            /* N */
    LIST_HEAD(, bt_tmem) mems;      /* N */
    uint32_t mem_count;             /* N */
};

struct sim_conn {
    struct bt_tconn base;
    LIST_ENTRY(sim_conn) entry; /* N */
    struct sim *sim;
    struct sim_conn *peer;       /* N: NULL once either end is gone */
    struct sim_link *out, *in;   /* N */
    struct bt_tlisten *listener; /* accepted on, not yet announced */
    struct sim_timed accept, failed, closed;
    enum bt_status why;                     /* N */
    bool is_allowed, is_failed, is_closing; /* N */
    size_t frames_held;                     /* N: bytes on their way to us */
    int64_t sent_ns; /* the last frame has left by then */
};

struct bt_tlisten {
    LIST_ENTRY(bt_tlisten) entry; /* N */
    struct sim *sim;
    struct sim_address address;
    uint16_t port;
    bt_taccept_fn accept;
    void *arg;
};

struct bt_tmem {
    LIST_ENTRY(bt_tmem) entry; /* N */
    unsigned char *address;
    size_t bytes;
    uint64_t key; /* N: 0: not exported */
};

/* ---- fabric_sim_net.c; N held except for the first two ---- */

/* Join the network of this name, made by its first user. BT_INVALID: name too
 * long, or the network has another latency or rate; BT_NO_MEMORY. */
enum bt_status bt_sim_net_join(const struct bt_rail_config *rail,
                               struct sim_net **out);
void bt_sim_net_leave(struct sim_net *net);
/* BT_INVALID: neither IPv4 nor IPv6. */
enum bt_status bt_sim_address(const struct sockaddr *address, socklen_t size,
                              struct sim_address *out, uint16_t *port_out);
bool bt_sim_same(const struct sim_address *a, const struct sim_address *b);
/* Who listens there; NULL: nobody. */
struct bt_tlisten *bt_sim_find(struct sim_net *net,
                               const struct sim_address *address,
                               uint16_t port);
/* A port that is free at this address; 0: none. */
uint16_t bt_sim_port(struct sim_net *net, const struct sim_address *address);
/* NULL: too many, or no memory. */
struct sim_link *bt_sim_link(struct sim_net *net,
                             const struct sim_address *from,
                             const struct sim_address *to);
/* When the link will have carried these bytes, which are ready at ready_ns. */
int64_t bt_sim_carry(const struct sim_net *net, struct sim_link *link,
                     uint64_t bytes, int64_t ready_ns);

/* ---- fabric_sim.c; N held ---- */

void bt_sim_post(struct sim *sim, struct bt_tevent *event, int64_t due_ns);
/* The connection breaks at that time: `failed`, once. */
void bt_sim_fail(struct sim_conn *conn, enum bt_status why, int64_t due_ns);

/* ---- fabric_sim_get.c ---- */

/* Move the bytes of a get or put whose time has come; N held. */
void bt_sim_land(struct bt_tget *get, int64_t now_ns);
/* Rows of the ops table. */
enum bt_status bt_sim_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out);
void bt_sim_unmap(struct bt_transport *transport, struct bt_tmem *mem);
enum bt_status bt_sim_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out);
enum bt_status bt_sim_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out);
void bt_sim_key_close(struct bt_tkey *key);
void bt_sim_get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *get);
void bt_sim_put(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *put);

#endif
