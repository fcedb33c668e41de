/* A sink, its sources and its pulls, shared by kv_sink.c (life, table of
 * peers), kv_peer.c (control, notes, who is dead), kv_rail.c (connections),
 * kv_greet.c (frames), kv_pull.c (pulls) and kv_get.c (gets).
 *
 *   sink 1--n peer 1--n rail      a connection over one of our rails
 *               1--n pull         one of them carries control
 */
#ifndef BATON_TRANSFER_FABRIC_KV_SINK_H
#define BATON_TRANSFER_FABRIC_KV_SINK_H

#include "baton/transfer/jobs.h"
#include "baton/transfer/window.h"
#include "fabric.h"

#define BT_SINK_PEERS_MAX 256u
#define BT_SINK_PULLS_MAX 1024u
#define BT_SINK_OPS_MIN   1024u
#define BT_SINK_NOTES_MAX 1024u /* per source, waiting or unconfirmed */

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

#define BT_RAIL_STATES(X)                                                      \
    X(RAIL_DOWN, "down", 1u << RAIL_GREETING, "a pull, or its next try")       \
    X(RAIL_GREETING, "greeting", 1u << RAIL_READY | 1u << RAIL_CLOSING,        \
      "WELCOME")                                                               \
    X(RAIL_READY, "ready", 1u << RAIL_CLOSING, "work")                         \
    X(RAIL_CLOSING, "closing", 1u << RAIL_DOWN, "the transport")
enum rail_state {
#define X(state, name, next, waits) state,
    BT_RAIL_STATES(X)
#undef X
};

struct peer;
struct rail;

/* One get under way; kept for the next one with the same number. */
struct chunk {
    struct bt_tget get; /* first */
    struct bt_kv_pull *pull;
    struct rail *rail;
    uint32_t op;
    uint64_t bytes;
    struct bt_window_op timed;
    struct bt_tpiece pieces[]; /* sink->pieces_max */
};

/* DONE or BEAT that waits for a connection, or DONE that may be lost. */
struct note {
    STAILQ_ENTRY(note) entry;
    enum bt_wire_type type;
    uint8_t flags;
    uint64_t pull;
    uint64_t token; /* of the last PING before it was sent */
    char request[BT_KV_REQUEST_MAX + 1];
};
STAILQ_HEAD(notes, note);

/* A connection to a source over one of our rails. */
struct rail {
    struct peer *peer;
    uint32_t index; /* ours */
    enum rail_state state;
    struct bt_link link;
    struct bt_tkey *key;
    bool heard, is_told_down, is_told_up;
    unsigned int missed, missed_alone, fails; /* beats; alone: beside others */
    uint64_t bytes_out;
    int64_t ready_ns;
    ev_timer timer;     /* greeting: its limit; down: the next try */
    enum bt_status why; /* said NO ourselves: how it ends. BT_OK: did not */
    char text[BT_WIRE_TEXT_MAX + 1];
    struct bt_flow flow;       /* of the peer's rule, if it has one */
    struct bt_lane_id lane_id; /* ready only */
    struct bt_window window;   /* of the lane; fixed for a paced peer */
    int64_t asked_ns;          /* the last PING left */
    uint64_t pinged;           /* token of the last PING */
};

/* One region of one source, as this sink sees it. */
struct peer {
    LIST_ENTRY(peer) entry;
    struct bt_kv_sink *sink;
    uint16_t port;
    char host[BT_WIRE_ADDRESS];
    char region_name[BT_KV_NAME_MAX];
    char name[BT_KV_NAME_MAX];  /* "" before the first WELCOME */
    uint64_t session, instance; /* ours for this life; the source's */
    uint64_t region, token;
    uint32_t block_count;
    bool is_known; /* its rails are, from a WELCOME */
    uint8_t remote_count;
    struct bt_wire_rail remotes[BT_RAILS_MAX - 1]; /* port 0: not to be used */
    struct rail *control;                          /* ready; NULL: none is */
    struct bt_lane *rule;                          /* of its name; NULL: none */
    unsigned int refs;  /* pulls that are not reported yet */
    uint64_t todo;      /* bytes of fetching pulls not yet asked for */
    int64_t used_ns;    /* last pull or note */
    unsigned int fails; /* in a row: no rail got ready */
    int64_t spare_ns;   /* not tried before */
    enum bt_status last_status;
    char last_text[128];
    enum bt_status cause; /* of the drop that may come; OK: none yet */
    char cause_text[128];
    TAILQ_HEAD(, bt_kv_pull) pulls;
    struct notes waiting, unconfirmed;
    unsigned int waiting_count, unconfirmed_count;
    struct rail rails[]; /* one per rail of the fabric */
};

struct bt_kv_sink {
    LIST_ENTRY(bt_kv_sink) entry;
    struct bt_fabric *fabric;
    struct bt_kv_sink_config config;
    char name[BT_KV_NAME_MAX], region_name[BT_KV_NAME_MAX];
    struct bt_tmem *mems[BT_RAILS_MAX];
    LIST_HEAD(, peer) peers;
    size_t peer_count, pull_count;
    bool closing; /* no new pulls, no new connections */
    uint64_t next_pull;
    TAILQ_HEAD(, bt_kv_pull) ended;
    ev_timer report; /* zero: call-backs of ended pulls */
    ev_timer beat;
    uint8_t *target; /* bit per local block: some pull writes there */
    struct bt_jobs *jobs;
    void *jobs_memory;
    uint32_t ops_max, ops_out, pieces_max;
    bool starved;          /* some rail waits for a free operation */
    struct chunk **chunks; /* by operation, made when first needed */
    uint32_t *landed;
    uint32_t landed_max;
};

struct bt_kv_pull {
    TAILQ_ENTRY(bt_kv_pull) entry; /* of its peer, then of sink->ended */
    struct peer *peer;
    enum pull_state state;
    uint64_t id;
    bt_kv_pull_fn fn;
    void *arg;
    ev_timer deadline, gate;
    int64_t start_ns, gate_ns, deadline_ns;
    uint32_t count, granted;
    uint32_t out[BT_RAILS_MAX]; /* gets per rail */
    bool grace;                 /* deadline passed, gets may still end */
    bool has_job;
    struct bt_job_id job;
    uint64_t todo;
    uint64_t *refs, *hashes; /* by list position */
    uint32_t *local, *remote;
    struct bt_kv_pull_end end;
    char request[BT_KV_REQUEST_MAX + 1];
    char detail[128];
    void *memory; /* of the arrays */
};

/* ---- kv_sink.c ---- */
struct bt_peer_where {
    const char *host, *region;
    uint16_t port;
};
struct peer *bt_peer_get(struct bt_kv_sink *sink,
                         const struct bt_peer_where *where,
                         enum bt_status *status_out);
void bt_peer_free(struct peer *peer);

/* ---- kv_peer.c ---- */
/* Begin to connect unless it is connected, or has failed too often. */
void bt_peer_want(struct peer *peer);
bool bt_peer_has(const struct peer *peer, enum rail_state state);
bool bt_peer_is_down(const struct peer *peer); /* every rail is */
/* Something waits for a connection. */
bool bt_peer_has_work(const struct peer *peer);
/* Send a note now or once connected; dropped over the limit. */
void bt_peer_note(struct peer *peer, const struct note *note);
/* This rail is ready. It may carry control. */
void bt_peer_rail_ready(struct rail *rail);
/* It carries control no longer. */
void bt_peer_rail_lost(struct rail *rail);
/* What was sent before PING `token` has arrived. */
void bt_peer_confirmed(struct peer *peer, uint64_t token);
/* End every pull with this status and close every rail. */
void bt_peer_drop(struct peer *peer, enum bt_status status, const char *detail);
void bt_peer_heartbeat(struct peer *peer);
void bt_peer_beat(struct peer *peer); /* BEAT for every pull */

/* ---- kv_rail.c ---- */
void bt_rail_init(struct rail *rail, struct peer *peer, uint32_t index);
void bt_rail_fini(struct rail *rail);
/* false: not even begun. */
bool bt_rail_connect(struct rail *rail);
/* WELCOME is here and good. */
void bt_rail_ready(struct rail *rail);
/* Give it up: what it carried goes to other rails. Without any the peer is
 * dropped. `final`: the source does not want us, other rails need not try. */
void bt_rail_fail(struct rail *rail, enum bt_status status, const char *text,
                  bool final);
/* Close it, no questions. */
void bt_rail_close(struct rail *rail);

/* ---- kv_greet.c ---- */
void bt_rail_frame(void *arg, const void *bytes, size_t size);
void bt_rail_hello(struct rail *rail);

/* ---- kv_pull.c ---- */
/* The peer has control: (re)send OPEN. */
void bt_pull_open(struct bt_kv_pull *pull);
void bt_pull_grant(struct bt_kv_pull *pull, const struct bt_wire_frame *f);
void bt_pull_finish(struct bt_kv_pull *pull, enum bt_status status,
                    const char *detail);
/* Its job is over, with nothing out. */
void bt_pull_job_ended(struct bt_kv_pull *pull, const struct bt_job_end *end);
/* Call-backs of ended pulls. */
void bt_pull_report(struct bt_kv_sink *sink);

/* ---- kv_get.c ---- */
enum bt_status bt_gets_init(struct bt_kv_sink *sink);
void bt_gets_fini(struct bt_kv_sink *sink);
/* Open the rail's lane, let the peer's jobs use it / the reverse. */
void bt_gets_rail_ready(struct rail *rail);
void bt_gets_rail_lost(struct rail *rail);
/* The pull has its GRANT: make and start its job. */
void bt_gets_start(struct bt_kv_pull *pull);
void bt_gets_stop(struct bt_kv_pull *pull, enum bt_status status);
/* Ask for what may be asked for now. */
void bt_gets_pump(struct peer *peer);

#endif
