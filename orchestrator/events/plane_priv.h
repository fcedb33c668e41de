/* Private to orchestrator/events: the plane's parts. */
#ifndef BATON_EVENTS_PLANE_PRIV_H
#define BATON_EVENTS_PLANE_PRIV_H

#include "baton/orchestrator/event_plane.h"
#include "kv_apply.h"
#include "kv_lag.h"
#include "kv_stream.h"
#include "socket.h"
#include "topics.h"
#include <ev.h>

struct source;

/* One rank of one source. */
struct stream {
    struct source *source;
    void *sub, *dealer; /* dealer only while a replay runs */
    void *monitor;      /* tells of sub's connection; NULL with a topic */
    uint64_t dealer_life;
    ev_io sub_io, dealer_io, monitor_io;
    ev_timer clock; /* kv_stream_deadline */
    struct kv_stream seq;
    struct kv_apply apply;
    struct bt_stream_counts counts;
    enum bt_stream_state state; /* as told */
    enum bt_stream_cause cause;
    bool again; /* told last for a further hole */
    bool busy_silent, silent_said;
    struct kv_lag lag;
    int64_t heard_ns; /* monotonic: of the last batch, or of the source */
    int64_t since_ns;
    int64_t opened_ns, cut_ns;
    bool connected, unheard_said, gone;
    double ts, lag_s;
    /* queues of the plane */
    struct stream *more_next; /* has more than one turn took */
    struct stream *wait_next; /* wants a replay */
    bool more_queued, waits, replays;
};

struct source {
    struct bt_event_plane *plane;
    uint32_t number, ranks;
    char *name, *events, *replay; /* owned */
    bool by_topic;
    bool eagle_said;
    uint64_t incarnation;
    bool has_incarnation;
    uint32_t running;
    int64_t busy_ns; /* since when; 0: idle */
    /* Asked for from inside a call-back, done when that has returned. */
    struct source *later_next;
    bool later_queued, later_alive, later_lost;
    uint64_t later_incarnation, later_blocks, later_resync;
    struct stream streams[]; /* by rank */
};

struct bt_event_plane {
    struct ev_loop *loop;
    struct bt_event_plane_config config; /* bind is owned */
    struct bt_event_sink sink;
    void *context;
    uint64_t monitors; /* opened so far: their ids */
    void *bound;
    ev_io bound_io;
    bool bound_more;
    struct topics topics;
    struct source **sources; /* sources_max */
    struct bt_kv_scratch scratch;
    struct kv_budget budget;
    uint64_t strangers;
    struct bt_stream_counts gone; /* of removed sources */
    struct stream *more_first;
    ev_timer more;
    struct stream *wait_first, *wait_last;
    uint32_t replays;
    ev_timer second;  /* parked stores, busy and silent */
    uint32_t depth;   /* of calls that may reach the sink */
    bool catching_up; /* does what was put off */
    struct source *later_first;
};

#define RANKS_MAX 64

int64_t plane_now_ns(void);
__attribute__((format(printf, 4, 5))) void
plane_say(const struct bt_event_plane *plane, int level, const char *word,
          const char *format, ...);
/* Around everything that may reach the sink; leave does what was put off. */
void plane_enter(struct bt_event_plane *plane);
void plane_leave(struct bt_event_plane *plane);

/* ---- plane_stream.c ---- */
/* BT_NO_MEMORY, BT_IO (error_out). */
enum bt_status stream_open(struct source *source, uint32_t rank,
                           const struct bt_event_source_config *config,
                           char *error_out, size_t error_size);
void stream_close(struct stream *st);
uint32_t stream_rank(const struct stream *st);
/* Tell the sink if what the stream is worth has changed. */
void stream_publish(struct stream *st);
/* Of its SUB socket. */
void stream_cut(struct stream *st);
void stream_connected(struct stream *st);
void stream_clock(struct stream *st);
/* Once a second. */
void stream_second(struct stream *st, int64_t now_ns);

/* ---- plane_read.c ---- */
void read_live(struct ev_loop *loop, ev_io *io, int events);
void read_replay(struct ev_loop *loop, ev_io *io, int events);
void read_monitor(struct ev_loop *loop, ev_io *io, int events);
void read_bound(struct ev_loop *loop, ev_io *io, int events);
/* Everything that is queued of the stream's socket, now. */
void read_queued(struct stream *st);
void read_more(struct ev_loop *loop, ev_timer *timer, int events);

#endif
