/* A source's insides, shared by kv_door.c (listeners and greeting), kv_job.c
 * (what sinks ask for) and kv_source.c (life).
 *
 *   door 1--n source 1--n guest 1--n caller
 *                         guest 1--n job
 * A door is one listening port with a listener per rail, a source one region
 * behind it, a guest one sink (its session), a caller one connection of it. */
#ifndef BATON_TRANSFER_FABRIC_KV_SOURCE_H
#define BATON_TRANSFER_FABRIC_KV_SOURCE_H

#include "baton/transfer/runs.h"
#include "fabric.h"

#define BT_DOOR_CALLERS_MAX  1024u
#define BT_DOOR_STRANGERS    128u /* of them, not greeted; the oldest goes */
#define BT_SOURCE_GUESTS_MAX 512u
#define BT_GUEST_JOBS_MAX    1024u
#define BT_SOURCE_REFS_MAX   (1u << 22) /* in all jobs of a source, */
#define BT_GUEST_REFS_MAX    (1u << 21) /* and of one sink */

struct bt_door;
struct guest;

/* X(state, name, waiting for) */
#define BT_CALLER_STATES(X)                                                    \
    X(CALLER_NEW, "new", "HELLO")                                              \
    X(CALLER_CHALLENGED, "challenged", "PROVE")                                \
    X(CALLER_GREETED, "greeted", "requests")                                   \
    X(CALLER_REFUSED, "refused", "its end")                                    \
    X(CALLER_CLOSING, "closing", "the transport")
enum caller_state {
#define X(state, name, waits) state,
    BT_CALLER_STATES(X)
#undef X
};

struct caller {
    LIST_ENTRY(caller) entry; /* of its door */
    LIST_ENTRY(caller) guest_entry;
    struct bt_door *door;
    uint32_t rail; /* ours */
    struct bt_link link;
    enum caller_state state;
    bool heard;
    unsigned int missed;
    struct bt_kv_source *source; /* asked for; NULL: not known yet */
    struct guest *guest;         /* NULL: not greeted */
    struct bt_wire_frame *hello; /* kept until it is greeted */
    char name[BT_KV_NAME_MAX];
};

#define BT_SOURCE_JOB_STATES(X)                                                \
    X(JOB_LISTING, "listing", "the rest of OPEN")                              \
    X(JOB_ASKED, "asked", "bt_kv_source_answer")                               \
    X(JOB_HASHING, "hashing", "its turn")                                      \
    X(JOB_GRANTED, "granted", "DONE")
enum job_state {
#define X(state, name, waits) state,
    BT_SOURCE_JOB_STATES(X)
#undef X
};

struct job {
    TAILQ_ENTRY(job) entry; /* of its guest */
    TAILQ_ENTRY(job) work_entry;
    struct guest *guest;
    struct caller *caller; /* where to answer; NULL: it is gone */
    enum job_state state;
    bool working; /* in the work list */
    bool is_held; /* told OK: `left` is owed */
    bool checksums;
    uint64_t pull, ticket;
    uint32_t total, received, hashed;
    char request[BT_KV_REQUEST_MAX + 1];
    uint64_t *refs;   /* total of them, then */
    uint32_t *blocks; /* in the same memory */
};

struct guest {
    LIST_ENTRY(guest) entry;
    struct bt_kv_source *source;
    uint64_t session;
    unsigned int job_count;
    size_t refs;
    char name[BT_KV_NAME_MAX];
    LIST_HEAD(, caller) callers;
    TAILQ_HEAD(, job) jobs;
};

struct bt_kv_source {
    LIST_ENTRY(bt_kv_source) entry;
    struct bt_fabric *fabric;
    struct bt_door *door;
    struct bt_kv_source_config config;
    char name[BT_KV_NAME_MAX], region_name[BT_KV_NAME_MAX];
    struct bt_tmem *mems[BT_RAILS_MAX];
    uint16_t key_sizes[BT_RAILS_MAX];
    uint8_t keys[BT_RAILS_MAX][BT_WIRE_KEY_MAX];
    ev_timer work;
    TAILQ_HEAD(, job) jobs; /* hashing, in order of arrival */
    LIST_HEAD(, guest) guests;
    size_t guest_count, refs;
    uint64_t next_ticket;
    uint64_t hashes[BT_WIRE_GRANT_PART];
};

struct bt_door_rail {
    struct bt_door *door;
    uint32_t rail;
    uint16_t port;
    struct bt_tlisten *listener;
    char address[BT_WIRE_ADDRESS]; /* to tell sinks; "": as they came */
};
struct bt_door {
    LIST_ENTRY(bt_door) entry;
    struct bt_fabric *fabric;
    char address[BT_WIRE_ADDRESS];
    struct bt_door_rail rails[BT_RAILS_MAX];
    LIST_HEAD(, bt_kv_source) sources;
    LIST_HEAD(, caller) callers;
    size_t caller_count;
};

/* ---- kv_door.c ---- */
/* The door at this address and port, made if needed. */
enum bt_status bt_door_get(struct bt_fabric *fabric, const char *address,
                           uint16_t port, struct bt_door **out,
                           const char **step_out);
/* Close what belongs to this source, and the door when it was its last. */
void bt_door_leave(struct bt_kv_source *source);
void bt_caller_close(struct caller *caller);

/* ---- kv_job.c ---- */
void bt_job_open(struct caller *caller, const struct bt_wire_frame *f);
void bt_job_done(struct caller *caller, const struct bt_wire_frame *f);
/* The caller is closing: its jobs wait for another one to ask again. */
void bt_job_orphans(struct caller *caller);
/* The guest is gone for good. */
void bt_guest_free(struct guest *guest);
void bt_source_work_init(struct bt_kv_source *source);

#endif
