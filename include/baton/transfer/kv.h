/* Pull of KV blocks between engines: the wire protocol's two ends.
 *
 * A *source* (prefill side) exports one region of equal blocks and answers
 * pulls for requests whose blocks are held under a lease. A *sink* (decode
 * side) connects to a source, checks that layouts agree, and pulls a list of
 * blocks into its own region. Data moves by the fabric's get (over UCX 1.13 a
 * request message answered by a rendezvous: its own put and get abort the
 * target when an endpoint fails); control moves by small active messages:
 *
 *   sink                                   source
 *   HELLO {version, layout}          ->
 *                                    <-    WELCOME {name, region, rkey} | NO
 *   OPEN {request id, blocks}        ->    lease checked, blocks hashed
 *                                    <-    GRANT {xxh3 of each block} | NO
 *   get, get, ...  (runs of neighbours coalesced)
 *   verify each block, then
 *   DONE {request id}                ->    blocks released
 *   BEAT {request ids}               ->    leases renewed
 *   PING                            <->    PONG   (own heartbeat: UCX does not
 *                                          notice a silent peer)
 *
 * All on one libev loop; nothing blocks. Every pull ends with exactly one
 * call-back within its deadline.
 */
#ifndef BATON_TRANSFER_KV_H
#define BATON_TRANSFER_KV_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_fabric;
struct bt_kv_source;
struct bt_kv_sink;
struct bt_kv_pull;

/* What both ends must agree on; any difference refuses the pair, loudly. */
struct bt_kv_layout {
    uint32_t version; /* of engine + connector */
    uint32_t block_tokens;
    uint64_t block_bytes; /* one block, all layers */
    uint64_t model_hash;  /* model, revision, dtype */
};

#define BT_KV_NAME_MAX    64
#define BT_KV_REQUEST_MAX 128 /* bytes of a remote request id */

/* ---- fabric: the transport ---- */

#define BT_RAILS_MAX 8

/* One rail: a local NIC (port) or address that carries part of the bytes. */
struct bt_rail_config {
    const char *name;          /* in logs and metrics; NULL: "rail0"... */
    const char *device;        /* ucx: net device ("eth1", "mlx5_0:1"); verbs:
                                  device or device:port; sim: network; NULL: any */
    const char *address;       /* numeric, this end's; NULL: any */
    const char *transports;    /* UCX_TLS; NULL: "tcp,self" */
    uint64_t rate_bytes_per_s; /* what it should carry; 0: not known */
    /* verbs: */
    int gid_index;         /* -1: chosen by kind, RoCE v2 over IPv4 first */
    uint16_t partition;    /* 0: the default key */
    uint8_t traffic_class; /* 0: default */
    uint16_t mtu;          /* 256..4096; 0: the port's */
    /* sim: of the whole network; 0: at once */
    int64_t sim_latency_ns;
    uint64_t sim_rate_bytes_per_s;
};
struct bt_fabric_config {
    const char *transports; /* UCX_TLS, NULL = "tcp,self" */
    int64_t heartbeat_ns;   /* 0: 200 ms; a peer silent for 5 of them is dead */
    uint32_t chunk_bytes;   /* largest single get, 0: 1 MiB */
    uint32_t inflight_max;  /* gets outstanding per peer, 0: 16 */
};

/* UCX on this loop: event fd plus a progress tick (1 ms while work is out,
 * 50 ms idle). error_out >= 160 bytes. */
enum bt_status bt_fabric_ucx_create(struct ev_loop *loop,
                                    const struct bt_fabric_config *config,
                                    struct bt_fabric **out, char *error_out,
                                    size_t error_size);
/* Decorator `pace`: pulls from the named peer share a link of this rate (all
 * flows on it together, fair); link_class is for the meter. Peers without a
 * rule are not slowed. Call before pulling. BT_DUPLICATE, BT_LIMIT (64). */
enum bt_status bt_fabric_pace(struct bt_fabric *fabric, const char *peer,
                              uint64_t rate_bytes_per_s, int64_t setup_ns,
                              const char *link_class);
/* Decorator `meter`: totals per link class ("default" without a rule). */
struct bt_fabric_meter {
    char link_class[32];
    uint64_t bytes, pulls, descriptors, failed;
    int64_t busy_ns; /* sum of pull durations */
};
size_t bt_fabric_meters(const struct bt_fabric *fabric,
                        struct bt_fabric_meter *out, size_t max);
/* Ends all pulls (call-back BT_CANCELLED), sources and sinks first. */
void bt_fabric_destroy(struct bt_fabric *fabric);

/* ---- source ---- */

/* Look up a held request. Fill block indices; BT_NOT_FOUND /
 * BT_LEASE_EXPIRED refuse the pull. Called on the loop. */
typedef enum bt_status (*bt_kv_hold_fn)(void *arg, const char *request_id,
                                        const uint32_t *blocks, size_t count);
struct bt_kv_source_config {
    const char *name;    /* of this engine, < BT_KV_NAME_MAX */
    const char *address; /* numeric, to listen on */
    uint16_t port;       /* 0 picks one */
    struct bt_kv_layout layout;
    void *region; /* caller's, block_count * block_bytes, stays put */
    uint32_t block_count;
    bt_kv_hold_fn check; /* may these blocks be pulled for this id? */
    void (*released)(void *arg, const char *request_id); /* DONE came */
    void (*renewed)(void *arg, const char *request_id);  /* BEAT came */
    void *arg;
    /* A sink was refused (layouts or versions differ): log it. NULL: silent.
     * None of these call-backs may stop the source or the fabric. */
    void (*refused)(void *arg, const char *sink, const char *reason);
};
enum bt_status bt_kv_source_start(struct bt_fabric *fabric,
                                  const struct bt_kv_source_config *config,
                                  struct bt_kv_source **out, char *error_out,
                                  size_t error_size);
uint16_t bt_kv_source_port(const struct bt_kv_source *source);
void bt_kv_source_stop(struct bt_kv_source *source);

/* ---- sink ---- */

struct bt_kv_sink_config {
    const char *name;
    struct bt_kv_layout layout;
    void *region;
    uint32_t block_count;
    int64_t connect_timeout_ns; /* 0: 5 s (NIXL's handshake receive) */
    int64_t beat_ns;            /* 0: 5 s */
};
enum bt_status bt_kv_sink_create(struct bt_fabric *fabric,
                                 const struct bt_kv_sink_config *config,
                                 struct bt_kv_sink **out);
void bt_kv_sink_destroy(struct bt_kv_sink *sink);

struct bt_kv_pull_spec {
    const char *host; /* of the source */
    uint16_t port;
    const char *request_id; /* the source's */
    const uint32_t *remote; /* source block index per block */
    const uint32_t *local;  /* destination block index per block */
    size_t count;           /* 0: only DONE is sent */
    int64_t deadline_ns;    /* from now */
};
struct bt_kv_pull_end {
    enum bt_status status; /* OK, TIMEOUT, PEER_DEAD, REFUSED, INCOMPATIBLE,
                              LEASE_EXPIRED, NOT_FOUND, CHECKSUM, CANCELLED */
    uint64_t bytes;
    uint32_t descriptors; /* coalesced runs */
    int64_t duration_ns;
    const char *peer;   /* name of the source, "" if unknown */
    const char *detail; /* reason in words, "" if none; like peer valid
                           during the call-back only */
};
typedef void (*bt_kv_pull_fn)(void *arg, const struct bt_kv_pull_end *end);

/* Blocks land in the sink's region; until the call-back they are undefined.
 * Arrays are copied. While a request is queued its lease is renewed by BEAT.
 * BT_LIMIT: too many pulls (1,024) or blocks (65,536). BT_EXISTS: a local block
 * is the target of another pull, or given twice. BT_INVALID: host is neither
 * numeric nor "localhost", request id too long, block or deadline out of
 * range. The call-back never runs inside; it may start and cancel pulls, but
 * not destroy the sink or the fabric. *out is valid until it returns. */
enum bt_status bt_kv_pull_start(struct bt_kv_sink *sink,
                                const struct bt_kv_pull_spec *spec,
                                bt_kv_pull_fn fn, void *arg,
                                struct bt_kv_pull **out);
/* End it early: call-back with BT_CANCELLED, after the last landing write has
 * ended, so that the destination blocks may be reused. The source is told that
 * the request is done. */
void bt_kv_pull_cancel(struct bt_kv_pull *pull);
/* Renew the lease of a request that waits before its pull starts / tell the
 * source that it is not wanted (best effort, connects if needed). */
void bt_kv_sink_beat(struct bt_kv_sink *sink, const char *host, uint16_t port,
                     const char *request_id);
void bt_kv_sink_release(struct bt_kv_sink *sink, const char *host,
                        uint16_t port, const char *request_id);

#endif
