/* The transfer agent as a library: what an engine links, or finds with
 * dlopen("libbaton_agent.so.1") and bt_agent_api(). One agent per process owns
 * a thread with the fabric, its rails, connections, leases and jobs; calls put
 * a message in a bounded ring and return, results come back through another and
 * are handed out by bt_agent_progress() on the caller's thread.
 *
 *   decode engine                            prefill engine
 *   bt_agent_open, bt_agent_region           bt_agent_open, bt_agent_region
 *                                            bt_agent_publish("req-1", ...)
 *   bt_agent_pull(host, port, "req-1", ...)
 *   poll(bt_agent_fd), bt_agent_progress:    poll, bt_agent_progress:
 *   PULLED                                   RELEASED
 *
 * Any thread may call; progress by one thread at a time. Nothing here blocks,
 * except open and close (bounded: a few heartbeats). Every pull ends with one
 * event within its deadline plus two heartbeats; its blocks are untouched
 * afterwards.
 */
#ifndef BATON_TRANSFER_AGENT_H
#define BATON_TRANSFER_AGENT_H

#include "baton/base/status.h"
#include "baton/transfer/kv.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_AGENT_API_VERSION 1

struct bt_agent;

struct bt_agent_config {
    uint32_t api_version;               /* BT_AGENT_API_VERSION */
    const char *name;                   /* of this engine, < BT_KV_NAME_MAX */
    const char *fabric;                 /* "ucx", "verbs", "sim"; NULL: "ucx" */
    const struct bt_rail_config *rails; /* NULL, 0: one, any device */
    uint32_t rail_count;
    const char *transports; /* UCX_TLS of rails that name none; NULL: default */
    bool rail_threads;      /* a thread per rail (NIC) */
    const char *listen;     /* numeric; NULL: no source, only pulls */
    uint16_t port;          /* 0 picks one */
    const uint8_t *key;     /* 32 bytes shared by all peers; NULL: none, and
                               then listen must be loopback or `insecure` */
    bool insecure;
    bool checksums;       /* ask for and verify block checksums */
    int64_t heartbeat_ns; /* 0: 200 ms */
    int64_t beat_ns;      /* renewal of leases of pulls that wait; 0: 5 s */
    uint32_t chunk_bytes, inflight_max; /* as in bt_fabric_config */
    int64_t window_target_ns;           /* the same */
    uint32_t pulls_max;                 /* 0: 1,024 */
    uint32_t leases_max;                /* 0: 4,096 */
    uint64_t lease_blocks_max;          /* 0: 1,048,576 */
};
/* error_out >= 160 bytes. BT_INVALID, BT_UNSUPPORTED (fabric), BT_LIMIT
 * (memlock), BT_EXISTS (port), BT_IO, BT_NO_MEMORY. */
enum bt_status bt_agent_open(const struct bt_agent_config *config,
                             struct bt_agent **out, char *error_out,
                             size_t error_size);
/* Pulls end with CANCELLED and leases with WITHDRAWN: events are lost that
 * were not fetched before. */
void bt_agent_close(struct bt_agent *agent);
uint16_t bt_agent_port(const struct bt_agent *agent);
/* Pace decorator (demo, tests): see bt_fabric_pace. Before the first pull. */
enum bt_status bt_agent_pace(struct bt_agent *agent, const char *peer,
                             uint64_t rate_bytes_per_s, int64_t setup_ns,
                             const char *link_class);
size_t bt_agent_meters(struct bt_agent *agent, struct bt_fabric_meter *out,
                       size_t max);

/* ---- memory ---- */

/* Who may read a region. */
enum bt_agent_serve {
    BT_AGENT_SERVE_LEASED, /* what was published under the request id */
    BT_AGENT_SERVE_OPEN,   /* any block, any request id: a probe's scratch */
    BT_AGENT_SERVE_KEYED   /* references are the owner's keys: event ASKED */
};
struct bt_agent_region {
    const char *name; /* peers ask for it; "kv" for an engine's pool */
    void *base;
    uint32_t block_count;
    struct bt_kv_layout layout; /* what both ends must agree on */
    enum bt_agent_serve serve;
};
/* Register; waits for the agent's thread. At most 16. BT_LIMIT: memlock, or
 * too many, with a reason in error_out. */
enum bt_status bt_agent_region(struct bt_agent *agent,
                               const struct bt_agent_region *region,
                               uint32_t *region_out, char *error_out,
                               size_t error_size);

/* ---- source ---- */

struct bt_agent_publication {
    uint32_t region;
    const char *request_id;
    const uint32_t *blocks; /* indices in the region; copied */
    size_t count;
    int64_t lease_ns; /* from now; a beat renews by two thirds of the one
                         given last for this region */
    void *owner;      /* comes back in the event */
};
/* The blocks may be pulled under this id for lease_ns, or until a puller says
 * it is done; then an event gives them back. BT_LIMIT: leases full; BT_EXISTS:
 * id is live; BT_INVALID: id, lease, a block twice or outside the region. */
enum bt_status bt_agent_publish(struct bt_agent *agent,
                                const struct bt_agent_publication *publication);
/* Take back early; the event WITHDRAWN comes when no reader is left.
 * BT_NOT_FOUND. */
enum bt_status bt_agent_withdraw(struct bt_agent *agent, uint32_t region,
                                 const char *request_id);
/* Every lease of the region ends as if its time had come. */
void bt_agent_expire(struct bt_agent *agent, uint32_t region);
/* Answer an ASKED event, once: OK with one block index per reference (copied),
 * or the reason of refusal. After OK the blocks stay as they are until the
 * event LEFT with the same id. Never lost: answers have room of their own. */
void bt_agent_answer(struct bt_agent *agent, uint64_t id, enum bt_status status,
                     const uint32_t *blocks);

/* ---- sink ---- */

struct bt_agent_pull {
    uint32_t region; /* where to */
    const char *host;
    uint16_t port;
    const char *remote_region; /* NULL: the region's own name */
    const char *request_id;
    const uint64_t *remote; /* block references at the source */
    const uint32_t *local;  /* copied */
    size_t count;           /* 0: only says done */
    int64_t deadline_ns;    /* from now */
    uint64_t estimate_ns;   /* the planner's, 0: none; comes back */
    void *owner;
};
/* id_out names it for cancel. BT_LIMIT: ring or pulls full, too many blocks
 * (65,536); BT_INVALID: region, host, id, deadline, or a local block outside
 * the region. What only the thread can see (a local block that another pull
 * writes: BT_EXISTS) comes with the event. */
enum bt_status bt_agent_pull(struct bt_agent *agent,
                             const struct bt_agent_pull *pull,
                             uint64_t *id_out);
void bt_agent_cancel(struct bt_agent *agent, uint64_t id);
/* Keep a lease alive / tell the source that nobody comes. Best effort; lost
 * (and counted) when the ring is full. */
void bt_agent_beat(struct bt_agent *agent, const char *host, uint16_t port,
                   const char *remote_region, const char *request_id);
void bt_agent_release(struct bt_agent *agent, const char *host, uint16_t port,
                      const char *remote_region, const char *request_id);

/* ---- events ---- */

enum bt_agent_event_kind {
    BT_AGENT_PULLED,    /* a pull ended: all fields */
    BT_AGENT_RELEASED,  /* a puller has what it wanted: blocks are back */
    BT_AGENT_EXPIRED,   /* nobody came: blocks are back */
    BT_AGENT_WITHDRAWN, /* as asked: blocks are back */
    BT_AGENT_REFUSED,   /* a peer was refused, or all new ones are for want of
                           descriptors: detail says why */
    BT_AGENT_RAIL,      /* a rail to a peer is there for the first time, went
                           down or came back: detail, transport */
    BT_AGENT_ASKED,     /* a peer wants references of an KEYED region: id,
                           request_id, refs; bt_agent_answer */
    BT_AGENT_LEFT       /* that reader (id) has left: owner may reuse */
};
struct bt_agent_event {
    enum bt_agent_event_kind kind;
    enum bt_status status; /* PULLED: how; else BT_OK */
    uint64_t id;
    void *owner;
    char request_id[BT_KV_REQUEST_MAX + 1];
    char peer[BT_KV_NAME_MAX];
    char detail[160];
    uint64_t bytes;
    uint32_t descriptors, retries;
    int64_t queued_ns, setup_ns, moved_ns, duration_ns; /* duration: all */
    uint64_t estimate_ns;                               /* as given */
    uint64_t predicted_ns; /* the agent's own, from its calibration; 0: none */
    uint64_t rail_bytes[BT_RAILS_MAX];
    char transport[64]; /* RAIL, up: what really carries it, "tcp/eth0" */
    uint32_t region;
    const uint64_t *refs; /* ASKED: the agent's, until the answer */
    uint32_t ref_count;
};
/* Readable when events wait. */
int bt_agent_fd(const struct bt_agent *agent);
/* Hand out up to max events, oldest first; returns how many. */
size_t bt_agent_progress(struct bt_agent *agent, struct bt_agent_event *out,
                         size_t max);

struct bt_agent_stats {
    uint64_t pulls, pulls_failed, bytes, descriptors, retries,
        checksum_failures;
    uint64_t published, released, expired, refused_auth, refused_layout;
    uint64_t ring_full;  /* calls refused with BT_LIMIT for it */
    uint64_t doors_shut; /* as in bt_fabric_stats */
    uint32_t live_pulls, live_leases, peers, rails_up;
};
void bt_agent_stats(struct bt_agent *agent, struct bt_agent_stats *out);

/* What this agent knows of the way to one region of one peer: its own
 * calibration (cost-models.md section 11: setup + descriptors * per + bytes /
 * rate, own flows beside it counted in) and how well it predicted. */
struct bt_agent_path {
    char host[64], name[BT_KV_NAME_MAX], region[BT_KV_NAME_MAX];
    uint16_t port;
    uint64_t pulls, failed, bytes;
    int64_t setup_ns, per_descriptor_ns;
    uint64_t rate_bytes_per_s; /* 0: nothing learned yet */
    bool changed;              /* a short while ago */
    bool fallback_suspected;   /* ten times below what the rails should do */
    uint32_t predicted;        /* pulls in the two quantiles, <= 256 */
    double error_median, error_p95; /* |predicted - real| / real */
    char transport[192]; /* what really carries its rails, "" if not known */
};
/* Oldest first; returns how many were written. */
size_t bt_agent_paths(struct bt_agent *agent, struct bt_agent_path *out,
                      size_t max);

/* What a probe measured of the way from one peer: the paths from there, to any
 * region, start with it, instead of with nothing. Those that are known already
 * stay as they are. At most 256, copied; replaces what was given before.
 * BT_LIMIT; BT_INVALID: no host, a rate of 0, a negative time; BT_NO_MEMORY. */
struct bt_agent_start {
    char host[64];
    uint16_t port;
    int64_t setup_ns, per_descriptor_ns;
    uint64_t rate_bytes_per_s;
};
enum bt_status bt_agent_calibrate(struct bt_agent *agent,
                                  const struct bt_agent_start *starts,
                                  size_t count);

/* ---- dlopen ---- */

struct bt_agent_table {
    uint32_t api_version, size;
    enum bt_status (*open)(const struct bt_agent_config *, struct bt_agent **,
                           char *, size_t);
    void (*close)(struct bt_agent *);
    uint16_t (*port)(const struct bt_agent *);
    enum bt_status (*region)(struct bt_agent *, const struct bt_agent_region *,
                             uint32_t *, char *, size_t);
    enum bt_status (*publish)(struct bt_agent *,
                              const struct bt_agent_publication *);
    enum bt_status (*withdraw)(struct bt_agent *, uint32_t, const char *);
    enum bt_status (*pull)(struct bt_agent *, const struct bt_agent_pull *,
                           uint64_t *);
    void (*cancel)(struct bt_agent *, uint64_t);
    int (*fd)(const struct bt_agent *);
    size_t (*progress)(struct bt_agent *, struct bt_agent_event *, size_t);
    void (*stats)(struct bt_agent *, struct bt_agent_stats *);
};
/* The only symbol that needs looking up; NULL: another version. */
const struct bt_agent_table *bt_agent_api(uint32_t api_version);

#endif
