/* A sink, its sources and its pulls: shared by kv_sink.c (connections) and
 * kv_pull.c (pulls). */
#ifndef BATON_TRANSFER_FABRIC_KV_SINK_H
#define BATON_TRANSFER_FABRIC_KV_SINK_H

#include "baton/transfer/runs.h"
#include "fabric.h"

#define BT_SINK_PEERS_MAX 256u
#define BT_SINK_PULLS_MAX 1024u
#define BT_SINK_NOTES_MAX 1024u /* per source, waiting for a connection */

/* X(state, name, allowed next, waiting for) */
#define BT_PULL_STATES(X)                                                      \
    X(PULL_WAIT, "wait", 1u << PULL_OPEN | 1u << PULL_DRAIN, "a connection")   \
    X(PULL_OPEN, "open", 1u << PULL_FETCH | 1u << PULL_DRAIN, "GRANT")         \
    X(PULL_FETCH, "fetch", 1u << PULL_DRAIN, "gets")                           \
    X(PULL_DRAIN, "drain", 1u << PULL_ENDED, "landing gets")                   \
    X(PULL_ENDED, "ended", 0u, "its call-back")
enum pull_state {
#define X(state, name, next, waits) state,
    BT_PULL_STATES(X)
#undef X
};

#define BT_PEER_STATES(X)                                                      \
    X(PEER_DOWN, "down", 1u << PEER_GREETING, "a pull")                        \
    X(PEER_GREETING, "greeting", 1u << PEER_READY | 1u << PEER_CLOSING,        \
      "WELCOME")                                                               \
    X(PEER_READY, "ready", 1u << PEER_CLOSING, "work")                         \
    X(PEER_CLOSING, "closing", 1u << PEER_DOWN, "the transport")
enum peer_state {
#define X(state, name, next, waits) state,
    BT_PEER_STATES(X)
#undef X
};

/* One get under way. */
struct chunk {
    struct bt_tget get; /* first */
    struct bt_kv_pull *pull;
    struct bt_chunk span;
    struct bt_tpiece piece;
    struct chunk *next_free;
};

/* DONE or BEAT that waits for the connection. */
struct note {
    STAILQ_ENTRY(note) entry;
    enum bt_wire_type type;
    char request[BT_KV_REQUEST_MAX + 1];
};

/* One source, as this sink sees it. Lives as long as the sink. */
struct peer {
    LIST_ENTRY(peer) entry;
    struct bt_kv_sink *sink;
    enum peer_state state;
    uint16_t port;
    char host[64];
    char name[BT_KV_NAME_MAX]; /* "" before the first WELCOME */
    struct bt_tconn *conn;     /* not in PEER_DOWN */
    struct bt_tkey *key;
    uint64_t region;
    uint32_t block_count;
    bool heard;
    unsigned int missed;
    ev_timer connect_timer;
    struct bt_lane own;   /* when there is no rule */
    struct bt_lane *lane; /* the rule's, or own */
    TAILQ_HEAD(, bt_kv_pull) pulls;
    STAILQ_HEAD(, note) notes;
    unsigned int note_count;
    struct chunk *chunks, *free_chunks; /* inflight_max of them */
};

struct bt_kv_sink {
    LIST_ENTRY(bt_kv_sink) entry;
    struct bt_fabric *fabric;
    struct bt_kv_sink_config config;
    char name[BT_KV_NAME_MAX];
    struct bt_tmem *mem;
    LIST_HEAD(, peer) peers;
    size_t peer_count, pull_count;
    bool closing; /* no new pulls, no new connections */
    uint64_t next_pull;
    TAILQ_HEAD(, bt_kv_pull) ended;
    ev_timer report; /* zero: call-backs of ended pulls */
    ev_timer beat;
    uint8_t *target; /* bit per local block: some pull writes there */
};

struct bt_kv_pull {
    TAILQ_ENTRY(bt_kv_pull) entry; /* of its peer, then of sink->ended */
    struct bt_flow flow;
    struct peer *peer;
    enum pull_state state;
    uint64_t id;
    bt_kv_pull_fn fn;
    void *arg;
    ev_timer deadline;
    int64_t start_ns;
    uint32_t count, granted, gets, bad;
    bool again; /* second and last try of damaged blocks */
    bool grace; /* deadline passed, landing gets may still end */
    size_t run_count;
    struct bt_run_cursor cursor;
    struct bt_run *runs;
    uint32_t *remote, *local, *order, *left; /* left: bytes, by order */
    uint64_t *hashes;                        /* by list position */
    struct bt_kv_pull_end end;
    char request[BT_KV_REQUEST_MAX + 1];
    char detail[128];
    void *memory; /* of the arrays */
};

/* ---- kv_sink.c ---- */
void bt_peer_send(struct peer *peer, const struct bt_wire_frame *frame);
/* Send DONE or BEAT now, or once connected; dropped over the limit. */
void bt_peer_note(struct peer *peer, enum bt_wire_type type,
                  const char *request);
/* End every pull of the peer with this status and close the connection. */
void bt_peer_drop(struct peer *peer, enum bt_status status, const char *detail);
struct peer *bt_peer_get(struct bt_kv_sink *sink, const char *host,
                         uint16_t port, enum bt_status *status_out);
/* Begin to connect if the peer is down. A failure ends its pulls. */
void bt_peer_want(struct peer *peer);

/* ---- kv_pull.c ---- */
void bt_pull_open(struct bt_kv_pull *pull); /* the peer is ready */
void bt_pull_grant(struct bt_kv_pull *pull, const struct bt_wire_frame *f);
void bt_pull_finish(struct bt_kv_pull *pull, enum bt_status status,
                    const char *detail);
/* Call-backs of ended pulls. */
void bt_pull_report(struct bt_kv_sink *sink);

#endif
