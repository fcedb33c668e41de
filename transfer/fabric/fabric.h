/* Insides of a fabric, shared by the files of this folder: its rails, sources
 * and sinks, the links (one end of a connection), the lanes (paced links) and
 * the meters. */
#ifndef BATON_TRANSFER_FABRIC_FABRIC_H
#define BATON_TRANSFER_FABRIC_FABRIC_H

#include "baton/base/rng.h"
#include "baton/transfer/kv.h"
#include "baton/transfer/pacing.h"
#include "baton/transfer/seal.h"
#include "baton/transfer/wire.h"
#include "transport.h"

#include <ev.h>
#include <sys/queue.h>

#define BT_FABRIC_RULES_MAX 64
#define BT_FABRIC_CLASS_MAX 32
/* Silent for so many heartbeats: a rail is dead that others of its peer are
 * heard beside; a source is dead to its sink; a source forgets a sink later, as
 * nothing of it waits. */
#define BT_FABRIC_SILENT_RAIL   2
#define BT_FABRIC_SILENT_SOURCE 5
#define BT_FABRIC_SILENT_SINK   25
/* A heartbeat without a sign of life counts so much, one that came late itself
 * a quarter: our own loop was held up, an answer had less of a chance. */
#define BT_FABRIC_BEAT      4u
#define BT_FABRIC_BEAT_LATE 1u

/* ---- pace.c: who may fetch the next chunk, and when ---- */

/* What waits for a link: the pulls from one peer over one rail. */
struct bt_flow {
    TAILQ_ENTRY(bt_flow) entry;
    bool queued;
    int64_t gate_ns; /* its bytes are there since then */
    /* Bytes of the next chunk; 0: not now (too many gets out). */
    uint32_t (*peek)(struct bt_flow *flow, int64_t now_ns);
    /* Start that chunk; false: nothing is left to start. */
    bool (*issue)(struct bt_flow *flow, int64_t now_ns);
};

/* A link that a rule paces. */
struct bt_lane {
    struct bt_fabric *fabric;
    TAILQ_HEAD(, bt_flow) flows; /* head is served next */
    struct bt_pace pace;
    uint32_t chunk_max;
    int64_t setup_ns;
    ev_timer wake;
    char peer[BT_KV_NAME_MAX];
    char link_class[BT_FABRIC_CLASS_MAX];
};

void bt_lane_fini(struct bt_lane *lane);
void bt_lane_add(struct bt_lane *lane, struct bt_flow *flow);
void bt_lane_remove(struct bt_lane *lane, struct bt_flow *flow);
/* Start what may start now, arm the timer for the rest. */
void bt_lane_pump(struct bt_lane *lane);
/* The rule for a peer, or NULL. */
struct bt_lane *bt_lane_find(struct bt_fabric *fabric, const char *peer);

/* ---- the fabric ---- */

struct bt_fabric_rail {
    struct bt_transport *transport;
    char name[32];
    char address[BT_WIRE_ADDRESS]; /* "": any */
    uint64_t rate_bytes_per_s;
};

struct bt_fabric {
    struct ev_loop *loop;
    struct bt_fabric_rail rails[BT_RAILS_MAX];
    uint32_t rail_count;
    bool has_key;
    uint8_t key[BT_SEAL_KEY];
    uint64_t instance; /* of this life of it: sources tell their sinks */
    struct bt_rng rng; /* jitter only */
    int64_t heartbeat_ns, beaten_ns; /* beaten: the last time */
    unsigned int beat_weight;        /* of this one */
    uint32_t chunk_bytes, inflight_max;
    int64_t window_target_ns;
    ev_timer heartbeat;
    LIST_HEAD(, bt_door) doors;
    bool doors_are_shut; /* for want of descriptors */
    LIST_HEAD(, bt_kv_sink) sinks;
    struct bt_lane *rules[BT_FABRIC_RULES_MAX];
    size_t rule_count;
    struct bt_fabric_meter meters[BT_FABRIC_RULES_MAX + 1];
    size_t meter_count;
    struct bt_fabric_stats stats;
    char map_error[240]; /* of the last registration that failed */
    uint8_t scratch[BT_WIRE_FRAME_MAX]; /* one frame being encoded */
};

/* Wrap every transport that bt_fabric_create opens from now on (tests: faults,
 * traces); NULL ends it. The wrapper owns the inner one; NULL from it: no
 * memory. */
typedef struct bt_transport *(*bt_fabric_wrap_fn)(void *arg,
                                                  struct ev_loop *loop,
                                                  uint32_t rail,
                                                  struct bt_transport *inner);
void bt_fabric_wrap(bt_fabric_wrap_fn fn, void *arg);
/* fabric_open.c: the transport of one rail. */
enum bt_status bt_fabric_open_rail(struct ev_loop *loop,
                                   const struct bt_fabric_config *config,
                                   uint32_t rail, struct bt_transport **out,
                                   char *error_out, size_t error_size);
int64_t bt_fabric_now(void); /* CLOCK_MONOTONIC */
/* From the system's generator: nonces and sessions. */
void bt_fabric_random(void *out, size_t bytes);
/* (Re)start a one-shot timer, counted from the true now: the loop's may be old
 * after a long call-back, which would cut a time-out short. */
void bt_fabric_timer(struct bt_fabric *fabric, ev_timer *timer, int64_t ns);
/* first * 2^tries, at most max, minus up to a quarter at random. */
int64_t bt_fabric_backoff(struct bt_fabric *fabric, unsigned int tries,
                          int64_t first_ns, int64_t max_ns);
/* Turn the transports until done(arg) or limit_ns has passed. */
void bt_fabric_settle(struct bt_fabric *fabric, bool (*done)(void *arg),
                      void *arg, int64_t limit_ns);
/* Numeric address, or "localhost". BT_INVALID. */
enum bt_status bt_fabric_address(const char *host, uint16_t port,
                                 struct sockaddr_storage *out,
                                 socklen_t *size_out);
/* errno of binding a TCP socket there (EADDRNOTAVAIL: not an address of this
 * machine), 0 when it can be. For messages only: others may come between. */
int bt_fabric_bind_error(const struct sockaddr_storage *address,
                         socklen_t size);

/* Register a region on every rail; all or nothing. bt_fabric_map_error has a
 * failure in words. */
enum bt_status bt_fabric_map(struct bt_fabric *fabric, void *region,
                             size_t bytes, struct bt_tmem **mems_out);
void bt_fabric_unmap(struct bt_fabric *fabric, struct bt_tmem **mems);

/* ---- kv_link.c: one end of a connection, its seal ---- */

struct bt_link {
    struct bt_fabric *fabric;
    struct bt_transport *transport;
    struct bt_tconn *conn;        /* NULL: none */
    bool sealed;                  /* every frame from now on */
    uint8_t nonce[BT_SEAL_NONCE]; /* ours */
    struct bt_seal seal;
};
/* Encode, seal and send; a frame that does not encode is a bug. */
void bt_link_send(struct bt_link *link, const struct bt_wire_frame *frame);
/* Both nonces are known: from the next frame on everything is sealed once
 * `sealed` is set. The session key stands on every byte of HELLO, not only on
 * its nonce: who changes a name, region or session on the way has another key
 * than the ends. */
void bt_link_keyed(struct bt_link *link, const struct bt_wire_frame *hello,
                   const uint8_t *source_nonce, bool is_sink);
/* Unseal and decode; counts what is wrong. The text says it in words.
 * BT_INCOMPATIBLE: another version; else close the connection. */
enum bt_status bt_link_open(struct bt_link *link, const void *bytes,
                            size_t size, struct bt_wire_frame *frame_out,
                            const char **text_out);

/* ---- meter.c ---- */
void bt_meter_note(struct bt_fabric *fabric, const char *link_class,
                   const struct bt_kv_pull_end *end);
/* Make the class's row; BT_LIMIT. */
enum bt_status bt_meter_add(struct bt_fabric *fabric, const char *link_class);

/* ---- kv_door.c, kv_source.c, kv_sink.c ---- */
void bt_doors_heartbeat(struct bt_fabric *fabric);
void bt_kv_sink_heartbeat(struct bt_fabric *fabric);
void bt_kv_sources_stop(struct bt_fabric *fabric);
void bt_kv_sinks_stop(struct bt_fabric *fabric);

#endif
