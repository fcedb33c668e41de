/* Sequence rules of one engine's event stream (engine-wire.md 1.8, 1.9):
 * duplicate, gap, replay, restart. Pure of sockets and clocks: what arrives is
 * pushed in, what must be done comes out through call-backs, so that the rules
 * are tested without a network.
 *
 *            first seq 0              gap, or first seq > 0 with replay
 *   absent ------------> exact <----> syncing --> exact | partial | degraded
 *      \--- first seq > 0, no replay --> partial
 *   any:  seq <= last with other bytes, or a new incarnation: everything of the
 *         worker is forgotten and the stream starts over
 *
 * partial: blocks may be missing, none are invented. degraded: a removal may
 * have been missed, so a believed block may be gone.
 */
#ifndef BATON_SHELL_KV_STREAM_H
#define BATON_SHELL_KV_STREAM_H

#include "baton/orchestrator/core.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_STREAM_RECENT       64
#define KV_STREAM_BUFFER_MAX   4096        /* batches held during a replay */
#define KV_STREAM_BUFFER_BYTES (64u << 20) /* and their bytes */
#define KV_STREAM_ATTEMPTS     3           /* replays without progress */

struct kv_stream_ops {
    /* Apply a batch in order. */
    void (*apply)(void *arg, const void *payload, size_t bytes);
    /* Forget all that the worker announced. */
    void (*forget)(void *arg);
    /* Ask the replay socket for all batches from seq on. */
    void (*ask_replay)(void *arg, uint64_t seq);
    void (*state)(void *arg, enum bt_stream_state state);
    void *arg;
};

struct kv_stream_counts {
    uint64_t batches, duplicates, gaps, missing, resets, dropped;
    uint64_t replays_complete, replays_partial, replays_timeout;
};

struct kv_stream_held {
    uint64_t seq;
    void *payload; /* owned */
    size_t bytes;
};

struct kv_stream {
    struct kv_stream_ops ops;
    bool has_replay;
    bool started;   /* next is meaningful */
    bool from_zero; /* nothing before next was missed */
    bool hole;      /* something was missed for good */
    bool replaying;
    bool hole_in_dump; /* the dump itself lost batches */
    uint32_t attempts;
    uint64_t next;   /* expected sequence number */
    uint64_t wanted; /* first number asked for */
    uint64_t next_at_ask;
    enum bt_stream_state state;
    struct {
        uint64_t seq, hash;
        bool used;
    } recent[KV_STREAM_RECENT];
    struct kv_stream_held *held; /* KV_STREAM_BUFFER_MAX, owned */
    size_t held_count, held_bytes;
    struct kv_stream_counts counts;
};

/* BT_NO_MEMORY. */
enum bt_status kv_stream_init(struct kv_stream *s,
                              const struct kv_stream_ops *ops, bool has_replay);
void kv_stream_fini(struct kv_stream *s);
/* The engine is there (again); restarted: as another process. Asks for the
 * whole history where there is a replay socket. */
void kv_stream_begin(struct kv_stream *s, bool restarted);
void kv_stream_live(struct kv_stream *s, uint64_t seq, const void *payload,
                    size_t bytes);
void kv_stream_replayed(struct kv_stream *s, uint64_t seq, const void *payload,
                        size_t bytes);
void kv_stream_replay_end(struct kv_stream *s);
/* Nothing came for the time allowed. */
void kv_stream_replay_silent(struct kv_stream *s);

#endif
