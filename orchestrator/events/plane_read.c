/* Takes messages off the sockets, on the loop through ZMQ_FD (edge-triggered:
 * read until empty, at most TURN_MAX a turn, the rest in the loop's next turn).
 * Decides which frames are a batch and of which stream; what it means is the
 * stream's. A bad message is counted and costs itself only.
 */
#include "plane_priv.h"

#include "kv_peek.h"

#define TURN_MAX   256
#define QUEUED_MAX 131072 /* beyond what a live socket queues */

/* ---- one message ---- */

static void take_live(struct stream *st, struct message *m, int64_t now_ns)
{
    const struct bt_event_plane *plane = st->source->plane;
    struct kv_batch batch;

    if (!message_seq(m, 1, &batch.seq)) {
        st->counts.sequence_errors++;
        return;
    }
    batch.payload = zmq_msg_data(&m->frames[2]);
    batch.bytes = zmq_msg_size(&m->frames[2]);
    batch.ts = kv_peek_ts(batch.payload, batch.bytes);
    if (batch.ts > 0.) {
        st->lag_s = ev_now(plane->loop) - batch.ts;
        kv_lag_seen(&st->lag, st->lag_s, (double)now_ns * 1e-9,
                    (double)plane->config.late_ns * 1e-9);
    }
    kv_stream_live(&st->seq, now_ns, &batch);
}

/* Both reply forms: the payload is the last frame, the number before it. */
static void take_replayed(struct stream *st, struct message *m, int64_t now_ns)
{
    struct kv_batch batch;

    if (m->count < 2 || m->overlong) {
        st->counts.frame_errors++;
        return;
    }
    if (!message_seq(m, m->count - 2, &batch.seq)) {
        st->counts.sequence_errors++;
        return;
    }
    batch.payload = zmq_msg_data(&m->frames[m->count - 1]);
    batch.bytes = zmq_msg_size(&m->frames[m->count - 1]);
    batch.ts = kv_peek_ts(batch.payload, batch.bytes);
    if (batch.seq == UINT64_MAX || batch.bytes == 0)
        kv_stream_replay_end(&st->seq, now_ns);
    else
        kv_stream_replayed(&st->seq, now_ns, &batch);
}

/* Which rank's batch it is on the bound socket; the first, if it is no rank
 * of the source. */
static struct stream *stream_by_label(struct source *source, struct message *m)
{
    int64_t label;

    if (source->ranks == 1 ||
        !kv_peek_rank(zmq_msg_data(&m->frames[2]), zmq_msg_size(&m->frames[2]),
                      &label))
        return &source->streams[0];
    if (label < 0 || label >= (int64_t)source->ranks) {
        source->streams[0].counts.rank_mismatches++;
        return NULL;
    }
    return &source->streams[label];
}

static void take_bound(struct bt_event_plane *plane, struct message *m,
                       int64_t now_ns)
{
    uint32_t number;
    struct source *source;
    struct stream *st;

    if (topics_find(&plane->topics, zmq_msg_data(&m->frames[0]),
                    zmq_msg_size(&m->frames[0]), &number) != BT_OK) {
        plane->strangers++;
        return;
    }
    source = plane->sources[number];
    if (m->count != 3 || m->overlong) {
        source->streams[0].counts.frame_errors++;
        return;
    }
    st = stream_by_label(source, m);
    if (st == NULL)
        return;
    take_live(st, m, now_ns);
    stream_publish(st);
    stream_clock(st);
}

/* ---- sockets ---- */

static void queue_more(struct bt_event_plane *plane, struct stream *st)
{
    if (st != NULL && !st->more_queued) {
        st->more_queued = true;
        st->more_next = plane->more_first;
        plane->more_first = st;
    }
    if (!ev_is_active(&plane->more)) {
        /* A timer, not an idle watcher: that would starve, and ZMQ_FD does
         * not tell again. */
        ev_timer_set(&plane->more, 0., 0.);
        ev_timer_start(plane->loop, &plane->more);
    }
}

static bool some_live(struct stream *st, int64_t now_ns)
{
    for (int i = 0; i < TURN_MAX; i++) {
        struct message m;

        if (!message_receive(st->sub, &m))
            return false;
        if (m.count != 3 || m.overlong)
            st->counts.frame_errors++;
        else
            take_live(st, &m, now_ns);
        message_close(&m);
    }
    return true;
}

static bool some_replayed(struct stream *st, int64_t now_ns)
{
    uint64_t life = st->dealer_life;

    for (int i = 0; i < TURN_MAX; i++) {
        struct message m;

        if (st->dealer == NULL || st->dealer_life != life ||
            !message_receive(st->dealer, &m))
            return false;
        take_replayed(st, &m, now_ns);
        message_close(&m);
    }
    return st->dealer != NULL;
}

static void read_stream(struct stream *st)
{
    struct bt_event_plane *plane = st->source->plane;
    int64_t now_ns = plane_now_ns();
    bool more = st->sub != NULL && some_live(st, now_ns);

    if (st->dealer != NULL)
        more = some_replayed(st, now_ns) || more;
    if (more)
        queue_more(plane, st);
    stream_publish(st);
    stream_clock(st);
}

static void read_bound_some(struct bt_event_plane *plane)
{
    int64_t now_ns = plane_now_ns();

    plane->bound_more = false;
    for (int i = 0; i < TURN_MAX; i++) {
        struct message m;

        if (!message_receive(plane->bound, &m))
            return;
        take_bound(plane, &m, now_ns);
        message_close(&m);
    }
    plane->bound_more = true;
    queue_more(plane, NULL);
}

/* What was sent before the caller knew of a new life comes before it here too:
 * taken as ever, then cleared with the rest. */
void read_queued(struct stream *st)
{
    struct bt_event_plane *plane = st->source->plane;
    int64_t now_ns = plane_now_ns();

    for (int i = 0; i < QUEUED_MAX / TURN_MAX; i++) {
        if (st->sub != NULL && !some_live(st, now_ns))
            return;
        if (st->sub != NULL)
            continue;
        read_bound_some(plane);
        if (!plane->bound_more)
            return;
    }
}

void read_live(struct ev_loop *loop, ev_io *io, int events)
{
    struct stream *st = io->data;

    (void)loop;
    (void)events;
    plane_enter(st->source->plane);
    read_stream(st);
    plane_leave(st->source->plane);
}

void read_replay(struct ev_loop *loop, ev_io *io, int events)
{
    read_live(loop, io, events);
}

/* Edge-triggered, too: until it is empty. The monitor holds MONITOR_HWM at
 * most, and what it tells while we read comes with the next event. */
void read_monitor(struct ev_loop *loop, ev_io *io, int events)
{
    struct stream *st = io->data;
    bool up;
    int turn = 0;

    (void)events;
    plane_enter(st->source->plane);
    while (turn < TURN_MAX && monitor_receive(st->monitor, &up)) {
        turn++;
        if (up)
            stream_connected(st);
        else
            stream_cut(st);
    }
    if (turn == TURN_MAX)
        ev_feed_event(loop, io, EV_READ);
    plane_leave(st->source->plane);
}

void read_bound(struct ev_loop *loop, ev_io *io, int events)
{
    struct bt_event_plane *plane = io->data;

    (void)loop;
    (void)events;
    plane_enter(plane);
    read_bound_some(plane);
    plane_leave(plane);
}

void read_more(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_event_plane *plane = timer->data;
    struct stream *st = plane->more_first;

    (void)loop;
    (void)events;
    plane_enter(plane);
    plane->more_first = NULL;
    while (st != NULL) {
        struct stream *next = st->more_next;

        st->more_queued = false;
        read_stream(st);
        st = next;
    }
    if (plane->bound_more)
        read_bound_some(plane);
    plane_leave(plane);
}
