/* The event plane: KV event streams of many engines on one libev loop, decoded,
 * put in order and told to a sink. Knows sockets, sequence numbers, replays,
 * parked stores and groups; knows neither index nor core. `baton serve` and
 * `baton index` are its users.
 *
 * One source is one engine process with `ranks` publishers, on consecutive
 * ports from its endpoints' (engine-wire.md 1.2). Two wirings: the engine binds
 * and we connect (endpoint), or the engine connects to the one socket that we
 * bind and its topic names it (topic).
 *
 * Nothing blocks; all calls and call-backs are on the loop's thread. Calls into
 * the plane from a call-back are allowed except remove and destroy.
 */
#ifndef BATON_ORCHESTRATOR_EVENT_PLANE_H
#define BATON_ORCHESTRATOR_EVENT_PLANE_H

#include "baton/base/status.h"
#include "baton/orchestrator/core.h"
#include "baton/planner/engine_hash.h"
#include "baton/planner/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_text;

struct ev_loop;
struct bt_event_plane;

/* What a removal means when a block has several copies (engine-wire.md 1.10).
 * AUTO: per copy, until more copies are counted in the device tier than the
 * engine has blocks; from then on the last copy. */
enum bt_removals { BT_REMOVALS_AUTO, BT_REMOVALS_PER_COPY, BT_REMOVALS_LAST };

struct bt_event_plane_config {
    const char *bind;       /* our SUB for engines that connect; NULL: none */
    uint32_t sources_max;   /* <= 65535 */
    uint32_t held_batches;  /* per stream while it replays (4096) */
    uint64_t held_bytes;    /* per stream (64 MiB) */
    uint64_t held_total;    /* all streams and parked stores (1 GiB) */
    uint32_t parked_events; /* per stream, unknown parents (4096) */
    int64_t parked_ns;      /* (60 s) */
    uint32_t replays_max;   /* at the same time (8) */
    int64_t silence_ns;     /* of a replay, then an attempt is over (2 s) */
    int64_t replay_ns;      /* whole replay (120 s) */
    int64_t cooldown_ns;    /* after a failed one, before the next (30 s) */
    int64_t busy_silent_ns; /* works but says nothing (60 s); 0: never */
    int64_t late_ns;    /* more delay than its least so far (5 s); 0: never */
    int64_t unheard_ns; /* nothing of it yet, then said once (30 s); 0 */
    int64_t gone_ns;    /* of a broken connection, then all is forgotten and the
                           stream absent; 0: never (0) */
};
void bt_event_plane_config_init(struct bt_event_plane_config *config);

/* Are its blocks SGLang's Eagle windows (engine-wire.md 2.4)? Stores of the
 * other shape count (eagle_mismatches) and are said once per source; they are
 * applied all the same, hashed as what they are. UNTOLD: any shape will do. */
enum bt_eagle { BT_EAGLE_UNTOLD, BT_EAGLE_OFF, BT_EAGLE_ON };

/* Strings are copied. */
struct bt_event_source_config {
    const char *name;
    const char *events;    /* endpoint of rank 0 to connect to, or NULL */
    const char *replay;    /* of rank 0; NULL: no replay */
    const char *topic;     /* with config.bind: what its topic begins with, e.g.
                              "kv@10.0.0.1:8000@"; NULL with events */
    uint32_t ranks;        /* 1..64 */
    uint32_t block_tokens; /* expected; 0: what its first event says */
    enum bt_removals removals;
    enum bt_engine_hash hash; /* NONE, or check announced hashes */
    const char *hash_seed;
    enum bt_eagle eagle;
};

/* Status of store: BT_NOT_FOUND parks the event until its parent comes. The
 * handles are the engine's hashes (of the group that is indexed). */
struct bt_event_sink {
    enum bt_status (*store)(void *arg, uint32_t source, uint32_t rank,
                            const struct bt_kv_store *store);
    void (*remove)(void *arg, uint32_t source, uint32_t rank,
                   const struct bt_ev_kv_remove *remove); /* worker unset */
    /* has_tier as in bt_ev_kv_clear; a restart clears every tier. */
    void (*clear)(void *arg, uint32_t source, uint32_t rank,
                  const struct bt_ev_kv_clear *clear);
    void (*counting)(void *arg, uint32_t source, uint32_t rank,
                     enum bt_kv_counting counting);
    /* Of each change, and of each further hole while DEGRADED: what was stored
     * before it is in doubt. */
    void (*state)(void *arg, uint32_t source, uint32_t rank,
                  enum bt_stream_state state, enum bt_stream_cause cause);
    /* Events say another block size than expected, or than before: told once
     * per size. The stores are dropped. */
    void (*block_size)(void *arg, uint32_t source, uint32_t rank,
                       uint32_t block_tokens);
    /* Copies counted in the device tier (bt_prefix_index_copies), for AUTO. */
    uint64_t (*copies)(void *arg, uint32_t source, uint32_t rank);
    /* A line for the log; level 0 error, 1 warn, 2 info; word as in log.h. */
    void (*say)(void *arg, int level, const char *word, const char *text);
    void *arg;
};

/* BT_INVALID: error_out (>= 160 bytes) says which setting. BT_NO_MEMORY, BT_IO
 * (the bound socket). */
enum bt_status bt_event_plane_create(struct ev_loop *loop,
                                     const struct bt_event_plane_config *config,
                                     const struct bt_event_sink *sink,
                                     struct bt_event_plane **out,
                                     char *error_out, size_t error_size);
void bt_event_plane_destroy(struct bt_event_plane *plane);

/* source: the caller's number for it, < sources_max, not in use. BT_INVALID: an
 * endpoint is malformed or a rank's port leaves 1..65535 (error_out has the
 * number); replay ports that collide with those of events. BT_LIMIT. The sink
 * is told nothing yet: each stream begins absent, cause silent. */
enum bt_status bt_event_plane_add(struct bt_event_plane *plane, uint32_t source,
                                  const struct bt_event_source_config *config,
                                  char *error_out, size_t error_size);
/* Forgets the source; tells the sink nothing. What is still queued of it is
 * never delivered, also when the number is used again. */
void bt_event_plane_remove(struct bt_event_plane *plane, uint32_t source);

/* The engine is in service as this process (any number that changes when the
 * process does). Another number than before: its streams are cleared and read
 * anew, within this call. blocks: in its device tier, 0 unknown. */
void bt_event_plane_alive(struct bt_event_plane *plane, uint32_t source,
                          uint64_t incarnation, uint64_t blocks);
/* It does not answer; its next life must be proved by the sequence. */
void bt_event_plane_lost(struct bt_event_plane *plane, uint32_t source);
/* Telemetry: requests it runs now (busy and silent?). */
void bt_event_plane_busy(struct bt_event_plane *plane, uint32_t source,
                         uint32_t running);
/* Read one rank's stream anew from its start: operator's wish, or the
 * self-check's. BT_NOT_FOUND; BT_INVALID without a replay socket. */
enum bt_status bt_event_plane_resync(struct bt_event_plane *plane,
                                     uint32_t source, uint32_t rank);

/* Requests to this engine ask it, or no longer do, to announce blocks again
 * that it has (engine-wire.md 1.12). On: its ranks count as sets, since what is
 * announced again is no further copy; off: until they are empty, for what is
 * still on its way. */
void bt_event_plane_heal(struct bt_event_plane *plane, uint32_t source,
                         bool on);

/* Is the state worth a warning? Less than exact, but for a stream that is being
 * read, has no events or has not spoken yet. */
static inline bool bt_stream_is_bad(enum bt_stream_state state,
                                    enum bt_stream_cause cause)
{
    switch (state) {
    case BT_STREAM_EXACT:
    case BT_STREAM_SYNCING:
        return false;
    case BT_STREAM_ABSENT:
        return cause != BT_CAUSE_SILENT && cause != BT_CAUSE_NO_EVENTS;
    case BT_STREAM_PARTIAL:
    case BT_STREAM_DEGRADED:
    case BT_STREAM_SUSPECT:
        return true;
    }
    return true;
}

struct bt_stream_counts {
    uint64_t batches, bytes, events[4]; /* stored removed cleared ignored */
    uint64_t stored_blocks, removed_blocks;
    uint64_t duplicates, gaps, missing, resets, held_dropped;
    uint64_t replays_complete, replays_partial, replays_failed;
    uint64_t frame_errors, sequence_errors, batch_errors, event_errors;
    uint64_t unknown_tags, foreign; /* locality REMOTE */
    uint64_t unknown_parents, parked, attached, parked_dropped;
    uint64_t size_mismatches, other_groups, rank_mismatches;
    uint64_t hash_same, hash_other; /* announced against computed */
    uint64_t eagle_mismatches;      /* stores of the other shape */
};
struct bt_stream_info {
    enum bt_stream_state state;
    enum bt_stream_cause cause;
    bool cut;         /* its connection broke and is not back yet */
    bool again;       /* the state was last told for a further hole */
    uint64_t next;    /* sequence number expected */
    double ts;        /* of the last batch, engine's clock, s; 0 none */
    double lag_s;     /* arrival - ts of the last batch: clock skew is in it;
                         -1 none yet */
    int64_t since_ns; /* ev_now-based, of the last batch; 0 none */
    uint32_t block_tokens; /* seen, 0 none */
    uint32_t held, parked; /* gauges: batches, stores */
    uint64_t held_bytes;
    struct bt_stream_counts counts;
};
/* BT_NOT_FOUND. */
enum bt_status bt_event_plane_stream(const struct bt_event_plane *plane,
                                     uint32_t source, uint32_t rank,
                                     struct bt_stream_info *out);
/* Sum of all streams, of removed sources too. */
void bt_event_plane_counts(const struct bt_event_plane *plane,
                           struct bt_stream_counts *out);
/* Append them as Prometheus families (baton_kv_event*, some 3 KB). */
void bt_stream_counts_write(const struct bt_stream_counts *counts,
                            struct bt_text *t);
/* Frames of the bound socket whose topic names no source. */
uint64_t bt_event_plane_strangers(const struct bt_event_plane *plane);

/* ---- warm restart ---- */

#define BT_STREAM_RECENT 64
/* Where a stream stood; with the index entries, enough to go on. */
struct bt_stream_mark {
    uint64_t incarnation; /* of the source, 0 unknown */
    uint64_t next;
    bool started, from_zero, hole;
    uint32_t block_tokens;
    enum bt_kv_counting counting;
    struct { /* what its groups have shown so far, masks */
        uint64_t untold, full, other, bent;
    } groups;
    uint32_t recent_count; /* newest last */
    struct {
        uint64_t seq, hash;
    } recent[BT_STREAM_RECENT];
};
enum bt_status bt_event_plane_mark(const struct bt_event_plane *plane,
                                   uint32_t source, uint32_t rank,
                                   struct bt_stream_mark *out);
/* Right after add, before anything came: the caller has put the entries of
 * that time into its index. The stream asks for a replay from the mark; what
 * comes proves that it is the same process, or the rank is cleared. Without a
 * replay socket only alive() with the mark's incarnation vouches for it, or a
 * batch that is known comes again; any other batch clears the rank. */
enum bt_status bt_event_plane_resume(struct bt_event_plane *plane,
                                     uint32_t source, uint32_t rank,
                                     const struct bt_stream_mark *mark);

#endif
