/* Pull of KV blocks between engines: the wire protocol's two ends.
 *
 * A *source* (prefill side) exports regions of equal blocks and answers pulls
 * for requests whose blocks are held under a lease. A *sink* (decode side)
 * connects to a source over every rail it has, checks that layouts agree and
 * that both hold the same key, and pulls a list of blocks into its own region.
 * Data moves by the fabric's get, over all rails at once; control moves by
 * small messages on one of them, or another when that one fails:
 *
 *   sink (per rail)                        source
 *   HELLO {region, layout, session}  ->
 *                                    <-    CHALLENGE {nonce, proof}  with a key
 *   PROVE {proof}                    ->
 *                                    <-    WELCOME {name, key, rails} | NO
 *   OPEN {request id, references}    ->    lease checked, blocks hashed
 *                                    <-    GRANT {block, xxh3 of each} | NO
 *   get, get, ...  (runs of neighbours coalesced)
 *   verify each block, then
 *   DONE {pull, request id}          ->    reader left, blocks released
 *   BEAT {request id}                ->    lease renewed
 *   PING                            <->    PONG   (own heartbeat, per rail)
 *
 * With a key both ends prove it before anything else is heard, and every byte
 * of HELLO is part of what is proved; all who hold it are trusted alike: each
 * may read what a source exports and say DONE for any request. Without a key
 * whoever can connect may; a sink then goes only to rails near the source's
 * address, or near one of its own (16 bits of IPv4, 48 of IPv6).
 *
 * All on one libev loop; nothing blocks. Every pull ends with exactly one
 * call-back within its deadline and two heartbeats.
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
    const char *gid;       /* its index in the port's table, "3"; NULL: chosen
                              by kind, RoCE v2 over IPv4 first */
    uint16_t partition;    /* 0: the default key */
    uint8_t traffic_class; /* 0: default */
    uint16_t mtu;          /* 256..4096; 0: the port's */
    /* sim: of the whole network; 0: at once */
    int64_t sim_latency_ns;
    uint64_t sim_rate_bytes_per_s;
};

/* Defaults. */
#define BT_KV_CHUNK_BYTES (1u << 20)
#define BT_KV_INFLIGHT    16u

struct bt_fabric_config {
    const char *kind;                   /* "ucx" (also NULL), "verbs", "sim" */
    const struct bt_rail_config *rails; /* NULL: one, any device */
    uint32_t rail_count;                /* <= BT_RAILS_MAX */
    bool rail_threads;                  /* a thread per rail */
    const uint8_t *key;     /* 32 bytes that all peers hold; NULL: none */
    const char *transports; /* of rails that name none: UCX_TLS, NULL =
                               "tcp,self" */
    int64_t heartbeat_ns;   /* 0: 200 ms; a rail silent for 5 of them is dead,
                               for 2 if others of its peer are not */
    uint32_t chunk_bytes;   /* largest single get, 0: BT_KV_CHUNK_BYTES */
    uint32_t inflight_max;  /* gets outstanding per peer and rail, 0:
                               BT_KV_INFLIGHT */
    /* Both are the most: gets become smaller and fewer while their time from
     * issue to end is above this (window.h). 0: 4 ms; < 0: always the most */
    int64_t window_target_ns;
};

/* Open every rail on this loop. Strings and key are copied. error_out >= 160
 * bytes. BT_INVALID: unknown kind, too many rails; BT_UNSUPPORTED: not built
 * in, or no such device; BT_LIMIT: locked memory; BT_IO, BT_NO_MEMORY. */
enum bt_status bt_fabric_create(struct ev_loop *loop,
                                const struct bt_fabric_config *config,
                                struct bt_fabric **out, char *error_out,
                                size_t error_size);
uint32_t bt_fabric_rails(const struct bt_fabric *fabric);
/* Which rail refused to register a region, and why, with the figures; "" if
 * none has. Of the last failure; valid until the next one. */
const char *bt_fabric_map_error(const struct bt_fabric *fabric);
/* Counted since the fabric was made. */
struct bt_fabric_stats {
    uint64_t frames_malformed; /* not a frame; connection closed */
    uint64_t frames_corrupt;   /* wrong tag; connection closed */
    uint64_t frames_replayed;  /* wrong sequence; connection closed */
    uint64_t refused_key, refused_layout; /* by this end as a source */
    uint64_t doors_shut; /* times that descriptors ran out: nobody new is let
                            in until some are free, those inside are served */
    uint64_t connects, connects_failed;
    uint64_t connects_spared; /* not tried: the peer has failed before */
    uint64_t rails_lost, rails_back;
    uint64_t gets_failed; /* each was sent again, or its pull ended */
    uint64_t blocks_damaged;
    uint64_t peers_idle; /* closed for lack of pulls */
};
void bt_fabric_stats(const struct bt_fabric *fabric,
                     struct bt_fabric_stats *out);
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

/* What a sink asks for. */
struct bt_kv_ask {
    const char *request_id;
    const uint64_t *refs; /* as the sink listed them */
    size_t count;         /* > 0 */
    uint32_t *blocks_out; /* index in the region per reference; the reference
                             itself is there already unless `keyed` */
    uint64_t ticket;      /* names it in bt_kv_source_answer */
    const char *sink;     /* name of who asks */
};
/* May these be read for this id? BT_OK: yes, blocks_out is filled; they stay
 * as they are until `left`. BT_AGAIN: the answer comes later, by
 * bt_kv_source_answer (not from inside). Anything else refuses the pull
 * (BT_NOT_FOUND, BT_LEASE_EXPIRED reach the sink as they are). */
typedef enum bt_status (*bt_kv_hold_fn)(void *arg, const struct bt_kv_ask *ask);
struct bt_kv_source_config {
    const char *name;    /* of this engine, < BT_KV_NAME_MAX */
    const char *address; /* numeric, to listen on; rails with an address of
                            their own listen there, except the first */
    uint16_t port;       /* 0 picks one; that of another source of the fabric:
                            both share it, told apart by region_name */
    const char *region_name; /* < BT_KV_NAME_MAX; NULL: "kv" */
    struct bt_kv_layout layout;
    void *region; /* caller's, block_count * block_bytes, stays put */
    uint32_t block_count;
    /* References are keys that `check` turns into blocks; false: they are
     * block indices, and one outside the region is refused before check. */
    bool keyed;
    bt_kv_hold_fn check;
    /* DONE came: the request is over at its sink. May come twice. */
    void (*released)(void *arg, const char *request_id);
    void (*renewed)(void *arg, const char *request_id); /* BEAT came */
    void *arg;
    /* A sink was refused (layouts, versions, keys or regions differ), or, with
     * an empty name, all new ones are for want of descriptors, or are let in
     * again: log it.
     * NULL: silent. None of these call-backs may stop the source or the
     * fabric. */
    void (*refused)(void *arg, const char *sink, const char *reason);
    /* A pull that was told OK is over, well or not (DONE, or the sink is
     * gone): once per OK, before `released`. */
    void (*left)(void *arg, const char *request_id);
};
enum bt_status bt_kv_source_start(struct bt_fabric *fabric,
                                  const struct bt_kv_source_config *config,
                                  struct bt_kv_source **out, char *error_out,
                                  size_t error_size);
/* The late answer to an ask. blocks: index per reference, NULL: as check left
 * blocks_out. BT_STALE: the sink gave up meanwhile: no `left` will come.
 * BT_INVALID: count or a block is wrong; the pull is refused then. */
enum bt_status bt_kv_source_answer(struct bt_kv_source *source, uint64_t ticket,
                                   enum bt_status status,
                                   const uint32_t *blocks, size_t count);
uint16_t bt_kv_source_port(const struct bt_kv_source *source);
void bt_kv_source_stop(struct bt_kv_source *source);

/* ---- sink ---- */

/* A rail to a source is there for the first time, went down or came back; once
 * per change. */
struct bt_kv_rail_event {
    const char *peer, *host; /* name ("" if unknown), address */
    uint16_t port;
    uint32_t rail;    /* index in bt_fabric_config */
    const char *name; /* of the rail */
    bool is_up;
    bool is_first;         /* up, and was never down */
    enum bt_status status; /* why it went down */
    const char *detail;
    const char *carrier; /* up: what really carries it, "tcp/eth0" (E18); "" if
                            the transport cannot say */
};
struct bt_kv_sink_config {
    const char *name;
    struct bt_kv_layout layout;
    void *region;
    uint32_t block_count;
    int64_t connect_timeout_ns; /* 0: 5 s (NIXL's handshake receive) */
    int64_t beat_ns;            /* 0: 5 s */
    int64_t idle_ns; /* 0: 60 s; a source without pulls is left after it */
    const char *region_name; /* to ask sources for; NULL: "kv" */
    bool no_checksums; /* neither ask for block checksums nor verify them */
    void (*rail)(void *arg, const struct bt_kv_rail_event *event); /* or NULL */
    void *arg;
};
enum bt_status bt_kv_sink_create(struct bt_fabric *fabric,
                                 const struct bt_kv_sink_config *config,
                                 struct bt_kv_sink **out);
void bt_kv_sink_destroy(struct bt_kv_sink *sink);

struct bt_kv_pull_spec {
    const char *host; /* of the source */
    uint16_t port;
    const char *request_id; /* the source's */
    const uint64_t
        *remote;           /* reference per block: index, or the source's key */
    const uint32_t *local; /* destination block index per block */
    size_t count;          /* 0: only DONE is sent */
    int64_t deadline_ns;   /* from now */
    const char *region;    /* of the source; NULL: the sink's region_name */
};
struct bt_kv_pull_end {
    enum bt_status status; /* OK, TIMEOUT, PEER_DEAD, REFUSED, INCOMPATIBLE,
                              LEASE_EXPIRED, NOT_FOUND, CHECKSUM, CANCELLED,
                              PEER_ERROR: a get failed again and again */
    uint64_t bytes;
    uint32_t descriptors; /* coalesced runs, and blocks fetched again */
    uint32_t retries;     /* gets sent again */
    int64_t setup_ns;     /* start to GRANT, connecting included */
    int64_t queued_ns;    /* GRANT to the first get */
    int64_t moved_ns;     /* first get to the last end */
    int64_t duration_ns;  /* start to end */
    uint64_t rail_bytes[BT_RAILS_MAX];
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
/* The same for another region of the source; NULL: the sink's region_name. */
struct bt_kv_note {
    const char *host;
    uint16_t port;
    const char *region, *request_id;
    bool release; /* else a beat */
};
void bt_kv_sink_note(struct bt_kv_sink *sink, const struct bt_kv_note *note);

#endif
