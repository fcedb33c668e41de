/* The port of a fabric: memory, connections, small messages, gets and puts over
 * one rail (a local NIC or address). A fabric of several rails has one
 * transport per rail.
 *
 * The table below is all that kv_source.c, kv_sink.c and kv_pull.c know of a
 * transport; ucx, verbs and sim fill it, the decorators thread, trace and fault
 * wrap it (transport_open.h). Rules every implementation keeps:
 *
 *  - nothing blocks (map, key_open, listen and destroy may take milliseconds);
 *    all calls and all upcalls are on the loop's thread
 *  - upcalls (frame, failed, closed, done, accept) come from the loop or from
 *    ops->turn, never from inside another call of the table
 *  - per connection, upcalls keep the order in which things happened;
 *    failed comes at most once, closed exactly once and last
 *  - every get ends with exactly one done, also when the connection fails or
 *    is closed; done means that nothing will write there any more
 */
#ifndef BATON_TRANSFER_FABRIC_TRANSPORT_H
#define BATON_TRANSFER_FABRIC_TRANSPORT_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

struct bt_tmem;    /* registered memory */
struct bt_tkey;    /* right to read a peer's memory over one connection */
struct bt_tlisten; /* a listening address */
struct bt_transport_ops;

struct bt_transport {
    const struct bt_transport_ops *ops;
};

struct bt_tconn_events {
    void (*frame)(void *arg, const void *bytes, size_t size);
    void (*failed)(void *arg, enum bt_status status); /* call close now */
    void (*closed)(void *arg); /* the connection is gone after this */
};
/* Head of every transport's connection. The owner sets events and arg: right
 * after connect, or inside accept. */
struct bt_tconn {
    const struct bt_tconn_events *events;
    void *arg;
};

/* Queue node of the transport. */
struct bt_tevent {
    struct bt_tevent *next;
    int kind;
    struct bt_tconn *conn;
};

/* One range: `remote` is an address in the peer's memory. */
struct bt_tpiece {
    void *local;
    uint64_t remote;
    uint32_t bytes; /* > 0 */
};
/* Where from and where to: 1..limits.pieces_max pieces of one local and one
 * remote registration. Pieces are the caller's and stay until done; those that
 * touch on both sides should be one. Local ranges of a get do not overlap. */
struct bt_tspan {
    const struct bt_tpiece *pieces;
    uint32_t count;
    uint64_t bytes; /* sum, <= limits.bytes_max */
    struct bt_tmem *local_mem;
    struct bt_tkey *remote_key;
};
/* One get or put, embedded in the caller's chunk, who sets done; the rest is
 * the transport's until then. */
struct bt_tget {
    struct bt_tevent event;
    enum bt_status status;
    void (*done)(struct bt_tget *get, enum bt_status status);
    LIST_ENTRY(bt_tget) entry;
    struct bt_tspan span;
    uint64_t token;
    uint32_t left; /* parts still out */
    void *more;    /* whatever else the transport hangs on it */
};
struct bt_tlimits {
    uint32_t pieces_max; /* per get or put, >= 1 */
    uint64_t bytes_max;  /* per get or put */
    bool put;            /* put is there */
    bool heartbeat;      /* sees a dead peer by itself; ours runs anyway */
};

typedef void (*bt_taccept_fn)(void *arg, struct bt_tconn *conn);

struct bt_transport_ops {
    const char *name;
    struct bt_tlimits limits;
    void (*destroy)(struct bt_transport *transport);
    /* One round of progress and upcalls; true if anything happened. For
     * orderly ends only: the loop does it otherwise. */
    bool (*turn)(struct bt_transport *transport);

    /* BT_LIMIT: locked memory or registrations are used up; `why` has it in
     * words. */
    enum bt_status (*map)(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out);
    void (*unmap)(struct bt_transport *transport, struct bt_tmem *mem);
    /* What a peer needs to read mem; BT_TOO_LARGE. */
    enum bt_status (*key_pack)(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out);
    enum bt_status (*key_open)(struct bt_tconn *conn, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out);
    void (*key_close)(struct bt_tkey *key);

    enum bt_status (*listen)(struct bt_transport *transport,
                             const struct sockaddr *address, socklen_t size,
                             bt_taccept_fn accept, void *arg,
                             uint16_t *port_out, struct bt_tlisten **out);
    /* Nobody is accepted any more. The port may stay taken until destroy; it
     * can be listened on again. */
    void (*unlisten)(struct bt_tlisten *listener);
    /* Returns at once; a failure to connect is `failed`. */
    enum bt_status (*connect)(struct bt_transport *transport,
                              const struct sockaddr *address, socklen_t size,
                              struct bt_tconn **out);
    /* The peer of this connection may now use memory whose key was packed: what
     * it asks before is refused and fails the connection. A source calls it
     * once it knows who the peer is. */
    void (*allow)(struct bt_tconn *conn);
    /* Abrupt: outstanding work ends with BT_CANCELLED, then `closed`. */
    void (*close)(struct bt_tconn *conn);
    /* A copy is sent; a failure is `failed`. */
    void (*send)(struct bt_tconn *conn, const void *bytes, size_t size);
    /* Has everything sent left this process? */
    bool (*sent)(const struct bt_tconn *conn);
    void (*get)(struct bt_tconn *conn, const struct bt_tspan *span,
                struct bt_tget *get);
    /* The other way; done means that the bytes are in the peer's memory. NULL
     * unless limits.put. */
    void (*put)(struct bt_tconn *conn, const struct bt_tspan *span,
                struct bt_tget *put);
    /* In words, for logs: what carries this connection ("tcp/lo cma/memory").
     * "" when not known. NULL: nothing to say. */
    void (*describe)(const struct bt_tconn *conn, char *out, size_t size);
    /* Why map failed last, in words with the figures; "" when it has not. NULL:
     * nothing to say. */
    void (*why)(const struct bt_transport *transport, char *out, size_t size);
};

#endif
