/* Sequence rules of one rank's event stream (engine-wire.md 1.8, 1.9):
 * duplicate, gap, replay, restart. Free of sockets, clocks and msgpack: what
 * arrives is pushed in with the time, what must be done comes out through
 * call-backs, so that the rules are tested without a network.
 *
 *   absent --seq 0--> exact      absent --seq > 0, no replay--> partial
 *   any --gap, first contact, restart, doubt; replay socket--> syncing
 *   syncing --whole--> exact | partial     --not whole--> degraded
 *   any --gap, no replay socket--> degraded
 *   degraded --AllBlocksCleared, or read anew from 0--> exact
 *   degraded --read anew, the buffer begins later--> partial
 *   degraded --`blocks` further blocks stored--> partial, aged_out
 *   any --another life--> all of the rank is forgotten, first contact
 *
 * partial: blocks may be missing, none are invented. degraded: a removal may
 * have been missed, so a believed block may be gone.
 *
 * A replay (phase): idle -> waiting (for one of the plane's slots) -> asked ->
 * idle | cooling -> waiting ... After a failed replay what was held is applied
 * over the hole; the hole can then no longer be filled in order, so that the
 * next try reads everything anew (`fresh`): the old entries are believed until
 * its first answer, and live batches are applied until then.
 */
#ifndef BATON_EVENTS_KV_STREAM_H
#define BATON_EVENTS_KV_STREAM_H

#include "baton/orchestrator/core.h"
#include "baton/orchestrator/event_plane.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_STREAM_ATTEMPTS 3 /* of a replay, without progress */
/* An engine's clock may step back by this much within one life. */
#define KV_STREAM_CLOCK_STEP_S 1.0
/* What was still under way of a life that was cleared comes within this time;
 * after it a new life with a clock that is behind is believed. */
#define KV_STREAM_STALE_NS INT64_C(5000000000)
/* Restarts proved by the sequence alone, this many within as many batches:
 * several publishers share the socket. */
#define KV_STREAM_MIXED_RESTARTS 3
#define KV_STREAM_MIXED_BATCHES  64
/* Looked through for a repeat among the held. */
#define KV_STREAM_HELD_LOOK 64

/* Bytes held by all streams together, parked stores included. */
struct kv_budget {
    uint64_t used, max;
};

struct kv_batch {
    uint64_t seq;
    double ts; /* engine's clock, s; 0: not known */
    const void *payload;
    size_t bytes;
};

struct kv_stream_ops {
    /* Apply a batch, in order. */
    void (*apply)(void *arg, const struct kv_batch *batch);
    /* Forget all that the rank announced. */
    void (*forget)(void *arg);
    /* A replay is wanted: true if it may begin now, else
     * kv_stream_granted comes later. */
    bool (*want)(void *arg);
    /* Ask the replay socket for all batches from seq on; what is still under
     * way of an earlier answer must not come any more. */
    void (*ask)(void *arg, uint64_t seq);
    /* The slot is free again, or no longer waited for. */
    void (*done)(void *arg);
    void (*state)(void *arg, enum bt_stream_state state,
                  enum bt_stream_cause cause);
    /* Which rank the batch says it is of; false: it does not. */
    bool (*label)(void *arg, const struct kv_batch *batch, int64_t *rank_out);
    void *arg;
};

struct kv_stream_limits {
    uint32_t held_batches;
    uint64_t held_bytes;
    int64_t silence_ns, replay_ns, cooldown_ns;
    struct kv_budget *budget; /* kept */
};

struct kv_held {
    struct kv_batch batch; /* payload owned */
    uint64_t hash;
};

enum kv_phase { KV_IDLE, KV_WAITING, KV_ASKED, KV_COOLING };

struct kv_stream {
    struct kv_stream_ops ops;
    struct kv_stream_limits limits;
    bool has_replay;

    bool started;     /* next is meaningful */
    bool from_zero;   /* nothing before next was missed */
    bool hole;        /* a removal may have been missed */
    bool hole_told;   /* to ops.state: each is, also while degraded */
    bool doubted;     /* lost; the next alive asks for proof */
    bool resumed;     /* from a mark */
    bool unproven;    /* and not known yet to be of the same process */
    bool mixed;       /* several publishers on the socket */
    bool cut;         /* the connection is down */
    uint64_t next;    /* expected sequence number */
    double ts;        /* of the newest batch of this life */
    double life_ts;   /* of the newest of the life before */
    int64_t stale_ns; /* since when such are left out, 0: none came */
    uint64_t blocks, stored_since_hole;
    uint64_t restart_marks, batches_since_restart;
    bool label_asked, has_label, had_label, mixed_labelled;
    int64_t label, label_before,
        label_low; /* of this life, the life before,
                      the lowest since the first mark */
    int64_t mixed_until_ns;

    enum bt_stream_state state;
    enum bt_stream_cause cause;
    enum bt_stream_cause exact_cause, partial_cause, hole_cause, sync_cause;

    enum kv_phase phase;
    bool fresh;        /* forget at the first answer */
    bool retry;        /* read anew after the cool-down */
    bool prove;        /* the batch at next - 1 must come and be the same */
    bool dump_any;     /* something of this dump came */
    bool hole_in_dump; /* the dump itself lost batches */
    uint32_t attempts;
    uint64_t next_at_ask;
    int64_t heard_ns, granted_ns, cool_until_ns;

    uint64_t recent_count;
    struct {
        uint64_t seq, hash;
    } recent[BT_STREAM_RECENT]; /* ring, [recent_count % size] is next */

    struct kv_held *held; /* ring of limits.held_batches, from the first */
    uint32_t held_at, held_count;
    uint64_t held_bytes;
    bool held_lost;     /* some found no room */
    uint64_t lost_last; /* the highest of them */

    struct bt_stream_counts *counts; /* the caller's */
};

/* counts: where to count, kept. */
void kv_stream_init(struct kv_stream *s, const struct kv_stream_ops *ops,
                    const struct kv_stream_limits *limits, bool has_replay,
                    struct bt_stream_counts *counts);
void kv_stream_fini(struct kv_stream *s);

/* The engine is in service. other: as another process than before. Asks for
 * the history, or after lost for the proof that it is the same. blocks: of its
 * device tier, 0 unknown. */
void kv_stream_alive(struct kv_stream *s, int64_t now_ns, bool other,
                     uint64_t blocks);
void kv_stream_lost(struct kv_stream *s);
/* The connection broke. What is known is doubted until it is back and the
 * engine has proved to be the same process: by a replay from the last batch,
 * or without a replay socket by the next batch, which must be the one expected.
 * Until then syncing, reconnect. */
void kv_stream_cut(struct kv_stream *s);
/* There is a connection, for the first time or again. */
void kv_stream_connected(struct kv_stream *s, int64_t now_ns);
/* It did not come back in time: all is forgotten. */
void kv_stream_gone(struct kv_stream *s);
void kv_stream_live(struct kv_stream *s, int64_t now_ns,
                    const struct kv_batch *batch);
void kv_stream_replayed(struct kv_stream *s, int64_t now_ns,
                        const struct kv_batch *batch);
void kv_stream_replay_end(struct kv_stream *s, int64_t now_ns);
void kv_stream_granted(struct kv_stream *s, int64_t now_ns);
/* Read all anew, the old entries believed until the first answer. BT_INVALID:
 * no replay socket. */
enum bt_status kv_stream_resync(struct kv_stream *s, int64_t now_ns);
/* Ask whether next - 1 is still the newest (busy but silent). False: not
 * possible now. */
bool kv_stream_probe(struct kv_stream *s, int64_t now_ns,
                     enum bt_stream_cause cause);
/* When kv_stream_tick wants to be called; 0: never. */
int64_t kv_stream_deadline(const struct kv_stream *s);
void kv_stream_tick(struct kv_stream *s, int64_t now_ns);

/* Told from inside ops.apply: the rank said that it is empty; blocks were
 * stored. */
void kv_stream_cleared(struct kv_stream *s);
void kv_stream_stored(struct kv_stream *s, size_t blocks);
/* Events were lost behind the sequence's back: degraded, as a hole. */
void kv_stream_damaged(struct kv_stream *s, enum bt_stream_cause cause);
/* Blocks were left out, none invented. */
void kv_stream_missed(struct kv_stream *s, enum bt_stream_cause cause);

/* Warm restart; after init, before anything came. */
void kv_stream_mark(const struct kv_stream *s, struct bt_stream_mark *out);
void kv_stream_resume(struct kv_stream *s, int64_t now_ns,
                      const struct bt_stream_mark *mark);

/* ---- kv_held.c: batches that wait for a replay ---- */
/* False: no room, counted. */
bool kv_held_push(struct kv_stream *s, const struct kv_batch *batch,
                  uint64_t hash);
struct kv_held *kv_held_first(struct kv_stream *s);
/* The payload is the caller's to free. */
struct kv_held kv_held_pop(struct kv_stream *s);
void kv_held_drop(struct kv_stream *s);
/* 1: held with these contents, 0: with others, -1: not among the last. */
int kv_held_match(const struct kv_stream *s, uint64_t seq, uint64_t hash);

#endif
