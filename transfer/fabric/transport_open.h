/* Who makes transports and decorators. Each opener returns a transport on this
 * loop that the caller destroys; error_out (>= 160 bytes) says what failed:
 * BT_UNSUPPORTED: not built in, or no such device here; BT_INVALID: bad rail;
 * BT_LIMIT: locked memory; BT_IO, BT_NO_MEMORY. */
#ifndef BATON_TRANSFER_FABRIC_TRANSPORT_OPEN_H
#define BATON_TRANSFER_FABRIC_TRANSPORT_OPEN_H

#include "baton/transfer/kv.h"
#include "transport.h"

struct ev_loop;

typedef enum bt_status (*bt_topen_fn)(struct ev_loop *loop,
                                      const struct bt_rail_config *rail,
                                      struct bt_transport **out,
                                      char *error_out, size_t error_size);

/* UCX worker bound to rail->device (UCX_NET_DEVICES) and rail->transports
 * (UCX_TLS). */
enum bt_status bt_transport_ucx_open(struct ev_loop *loop,
                                     const struct bt_rail_config *rail,
                                     struct bt_transport **out, char *error_out,
                                     size_t error_size);
/* libibverbs + librdmacm, RC queue pairs on rail->device. */
enum bt_status bt_transport_verbs_open(struct ev_loop *loop,
                                       const struct bt_rail_config *rail,
                                       struct bt_transport **out,
                                       char *error_out, size_t error_size);
/* Memory to memory inside this process: transports opened with the same
 * rail->device (name of the network, NULL: one per process) reach each other by
 * address and port. rail->sim shapes it. */
enum bt_status bt_transport_sim_open(struct ev_loop *loop,
                                     const struct bt_rail_config *rail,
                                     struct bt_transport **out, char *error_out,
                                     size_t error_size);

/* Decorator thread: `open` runs on a thread of its own with its own loop; calls
 * and upcalls cross by two bounded rings and a wake-up each. */
enum bt_status bt_transport_thread_open(struct ev_loop *loop, bt_topen_fn open,
                                        const struct bt_rail_config *rail,
                                        struct bt_transport **out,
                                        char *error_out, size_t error_size);

/* Decorators over an open transport, which they own from then on; NULL: no
 * memory (inner is untouched). */
/* A line per call and upcall: "get conn=1 pieces=3 bytes=65536". */
typedef void (*bt_ttrace_fn)(void *arg, const char *line);
struct bt_transport *bt_transport_trace(struct bt_transport *inner,
                                        bt_ttrace_fn fn, void *arg);
/* Faults by a seeded generator; each chance is per 10,000. */
struct bt_tfault {
    uint64_t seed;
    uint16_t get_fails;   /* get ends with BT_PEER_ERROR, connection lives */
    uint16_t get_flips;   /* one bit of what landed is flipped */
    uint16_t send_drops;  /* frame is lost */
    uint16_t send_flips;  /* one bit of a frame is flipped */
    uint16_t send_twice;  /* frame is sent again later */
    uint16_t conn_fails;  /* per get or send: the connection fails */
    uint16_t map_fails;   /* map gives BT_LIMIT */
    int64_t get_delay_ns; /* done comes later by up to this */
};
struct bt_transport *bt_transport_fault(struct ev_loop *loop,
                                        struct bt_transport *inner,
                                        const struct bt_tfault *fault);

#endif
