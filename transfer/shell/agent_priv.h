/* What the files of the agent share. Two kinds of thread: callers, and the
 * agent's own, which alone touches libev, the fabric, its sources and sinks.
 *
 *   agent.c        calls: check, put a message in a ring, wake the thread
 *   agent_loop.c   the thread: fabric, regions, messages, events out
 *   agent_pull.c   pulls, on the thread
 *   agent_source.c leases and asked references, on the thread (leases: any)
 *
 * `lock` guards what both sides touch: free pulls, leases, asks, cancels,
 * statistics, copies of meters and paths. It is never held over a call of the
 * fabric.
 *
 * Events: only the agent's thread writes the event ring. What does not fit
 * waits: ended pulls and asks in `waiting` (their slots stay taken until their
 * event is in the ring), leases in their table. So nothing is lost and nothing
 * grows.
 */
#ifndef BATON_TRANSFER_SHELL_AGENT_PRIV_H
#define BATON_TRANSFER_SHELL_AGENT_PRIV_H

#include "agent_path.h"
#include "agent_ring.h"

#include "baton/transfer/agent.h"
#include "baton/transfer/lease.h"
#include "baton/transfer/seal.h"

#include <ev.h>
#include <pthread.h>
#include <sys/queue.h>

#define BT_AGENT_REGIONS_MAX 16u
#define BT_AGENT_CALLS_MAX   1024u
#define BT_AGENT_EVENTS_MAX  1024u
#define BT_AGENT_ASKS_MAX    1024u
#define BT_AGENT_HOST_MAX    64u
#define BT_AGENT_METERS_MAX  65u
#define BT_AGENT_EXPIRED_MAX 4096u /* ids remembered per region */
#define BT_AGENT_BEAT_MAX_NS 5000000000LL

enum call_kind { CALL_PULL, CALL_BEAT, CALL_RELEASE };

/* One message to the thread. */
struct call {
    enum call_kind kind;
    uint32_t slot; /* PULL */
    uint16_t port; /* the rest: BEAT, RELEASE */
    char host[BT_AGENT_HOST_MAX];
    char remote_region[BT_KV_NAME_MAX];
    char request_id[BT_KV_REQUEST_MAX + 1];
};

/* An event that waits for room in the ring. */
struct waiting {
    TAILQ_ENTRY(waiting) entry;
    struct bt_agent_event event;
    void (*pushed)(struct bt_agent *agent, struct waiting *waiting);
};

/* X(state, name, allowed next, waiting for) */
#define BT_AGENT_PULL_STATES(X)                                                \
    X(SLOT_FREE, "free", 1u << SLOT_CALLED, "a call")                          \
    X(SLOT_CALLED, "called", 1u << SLOT_RUNNING | 1u << SLOT_FREE,             \
      "the thread")                                                            \
    X(SLOT_RUNNING, "running", 1u << SLOT_ENDED, "the fabric")                 \
    X(SLOT_ENDED, "ended", 1u << SLOT_FREE, "room in the event ring")
enum slot_state {
#define X(state, name, next, waits) state,
    BT_AGENT_PULL_STATES(X)
#undef X
};

struct pull_slot {
    struct waiting waiting; /* first */
    enum slot_state state;  /* lock */
    uint32_t index, generation;
    struct pull_slot *next_free;         /* lock */
    TAILQ_ENTRY(pull_slot) cancel_entry; /* lock */
    bool cancelled, cancel_queued;       /* lock */
    struct bt_agent_pull spec;           /* strings point below */
    char host[BT_AGENT_HOST_MAX], remote_region[BT_KV_NAME_MAX];
    char request_id[BT_KV_REQUEST_MAX + 1];
    uint64_t *remote; /* malloc'd with local behind it */
    uint32_t *local;
    int64_t called_ns;
    struct bt_kv_pull *pull; /* the thread's; NULL when not in the fabric */
    struct bt_path_flow flow;
    struct bt_agent *agent;
};

/* References that a peer asked for and the owner looks up. */
struct ask_slot {
    struct waiting waiting; /* first */
    bool used, answered;    /* lock */
    bool accepted;          /* the source knows: `left` will come */
    uint32_t lefts;
    uint32_t index, generation;
    TAILQ_ENTRY(ask_slot) answer_entry; /* lock */
    struct agent_region *region;
    uint64_t ticket; /* the source's */
    uint64_t *refs;  /* malloc'd with blocks behind it */
    uint32_t count;
    enum bt_status status; /* of the answer */
    uint32_t *blocks;      /* of the answer */
};

struct agent_region {
    struct bt_agent *agent;
    struct bt_agent_region config;
    char name[BT_KV_NAME_MAX];
    uint32_t index;
    struct bt_kv_source *source; /* the thread's */
    struct bt_kv_sink *sink;
    /* lock: */
    struct bt_leases *leases; /* NULL unless LEASED */
    void *lease_memory;
    uint64_t *scratch; /* lease_blocks_max references */
    int64_t lease_ns;  /* as given last: what a beat renews by */
    bool expire;       /* all of them, now */
};

enum sync_kind { SYNC_NONE, SYNC_REGION, SYNC_PACE };
/* A call that waits for the thread; one at a time. */
struct sync {
    enum sync_kind kind;
    bool done;
    struct agent_region *region;
    const char *peer, *link_class;
    uint64_t rate;
    int64_t setup_ns;
    enum bt_status status;
    char error[160];
};

struct bt_agent {
    struct bt_agent_config config; /* strings and arrays are copies */
    char name[BT_KV_NAME_MAX], fabric_name[16], listen[64];
    char transports[128];
    uint8_t key[BT_SEAL_KEY];
    struct bt_rail_config rails[BT_RAILS_MAX];
    char *rail_texts[BT_RAILS_MAX][4]; /* their strings */

    pthread_t thread;
    pthread_mutex_t sync_lock; /* held over a whole synchronous call */
    pthread_mutex_t lock;
    pthread_cond_t cond; /* sync.done, started */
    bool started, closing;
    enum bt_status start_status;
    char start_error[160];
    struct sync sync;

    struct bt_agent_ring calls, events;
    struct pull_slot *pulls, *free_pulls;
    TAILQ_HEAD(, pull_slot) cancels;
    struct ask_slot *asks;
    TAILQ_HEAD(, ask_slot) answers;
    struct agent_region regions[BT_AGENT_REGIONS_MAX];
    uint32_t region_count;
    uint16_t port;
    struct bt_agent_stats stats;
    struct bt_fabric_meter meters[BT_AGENT_METERS_MAX];
    size_t meter_count;
    struct bt_paths paths;

    /* the thread's */
    struct ev_loop *loop;
    ev_async wake;
    ev_timer timer; /* next expiry */
    struct bt_fabric *fabric;
    uint32_t rail_down[BT_RAILS_MAX]; /* peers that cannot be had over it */
    TAILQ_HEAD(waiting_list, waiting) waiting;
};

int64_t bt_agent_now(void); /* CLOCK_MONOTONIC */
static inline uint64_t bt_agent_id(uint32_t index, uint32_t generation)
{
    return (uint64_t)generation << 32 | index;
}

/* ---- agent_loop.c, on the thread ---- */
void *bt_agent_main(void *arg);
void bt_agent_wait(struct bt_agent *agent, struct waiting *waiting);
/* Events into the ring as far as there is room; then the timer. */
void bt_agent_flush(struct bt_agent *agent);
/* Copy the fabric's figures to where callers see them. */
void bt_agent_refresh(struct bt_agent *agent);
/* May be lost when the ring is full. */
void bt_agent_remark(struct bt_agent *agent, enum bt_agent_event_kind kind,
                     const char *peer, const char *detail);

/* ---- agent_pull.c ---- */
void bt_agent_slot_move(struct pull_slot *slot, enum slot_state state);
/* Any thread. */
void bt_agent_slot_free(struct bt_agent *agent, struct pull_slot *slot);
void bt_agent_pull_begin(struct bt_agent *agent, struct pull_slot *slot);
void bt_agent_pull_cancel(struct bt_agent *agent);

/* ---- agent_source.c ---- */
/* A table for a LEASED region; any thread. */
enum bt_status bt_agent_leases_init(struct agent_region *region);
void bt_agent_leases_fini(struct agent_region *region);
/* Events of leases that are over. */
void bt_agent_leases_reap(struct agent_region *region);
enum bt_status bt_agent_source_start(struct agent_region *region,
                                     char *error_out, size_t error_size);
void bt_agent_answers_send(struct bt_agent *agent);
void bt_agent_asks_fini(struct bt_agent *agent);

#endif
