/* KV events from the engines: one SUB and, where configured, one replay DEALER
 * per worker, on the loop through ZMQ_FD (edge-triggered: read until empty, at
 * most TURN_MAX messages a turn). Decodes batches into core events; the order
 * and the worth of a stream are kv_stream.c's.
 */
#include "serve_priv.h"

#include "baton/orchestrator/kv_events.h"
#include "kv_stream.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define TURN_MAX         256
#define RECEIVE_HWM      100000
#define MESSAGE_MAX      (64 << 20) /* a larger frame drops the connection */
#define REPLAY_SILENCE_S 2.0
#define HASHES_MAX       65536u
#define TOKENS_MAX       (1u << 20)

struct feed {
    struct bt_serve *serve;
    uint32_t slot;
    uint64_t incarnation;
    void *sub, *replay;
    ev_io sub_io, replay_io;
    ev_timer silence;
    struct kv_stream stream;
    bool size_warned, opened;
};

struct event_plane {
    void *context;
    struct feed *feeds;
    struct bt_kv_scratch scratch;
    ev_timer more; /* some socket has more than one turn took */
};

/* ---- decoded events -> core ---- */

static void on_kv_event(void *arg, const struct bt_kv_event *kv)
{
    struct feed *f = arg;
    struct bt_serve *serve = f->serve;
    uint64_t *counts = serve->counters.kv_events;
    struct bt_event event;
    uint32_t want =
        serve->config->models[serve->config->workers[f->slot].model].block_size;

    memset(&event, 0, sizeof(event));
    if (!kv->local) {
        counts[3]++;
        return;
    }
    switch (kv->type) {
    case BT_KV_STORED:
        counts[0]++;
        if (kv->store.block_tokens != 0 && kv->store.block_tokens != want &&
            !f->size_warned) {
            f->size_warned = true;
            bt_log(BT_LOG_ERROR, "kv_block_size",
                   "worker=%s events=%u configured=%u",
                   serve_worker_name(serve, f->slot), kv->store.block_tokens,
                   want);
        }
        event.type = BT_EV_KV_STORE;
        event.u.kv_store.worker = f->slot;
        event.u.kv_store.store = &kv->store;
        if (serve_step(serve, &event) == BT_NOT_FOUND)
            serve->counters.kv_unknown_parents++;
        return;
    case BT_KV_REMOVED:
        counts[1]++;
        event.type = BT_EV_KV_REMOVE;
        event.u.kv_remove = (struct bt_ev_kv_remove){
            .worker = f->slot,
            .hashes = kv->hashes,
            .count = kv->hash_count,
            .tier = kv->tier,
        };
        serve_step(serve, &event);
        return;
    case BT_KV_CLEARED:
        counts[2]++;
        event.type = BT_EV_KV_CLEAR;
        event.u.kv_clear.worker = f->slot;
        serve_step(serve, &event);
        return;
    }
}

static void on_apply(void *arg, const void *payload, size_t bytes)
{
    struct feed *f = arg;
    struct bt_serve *serve = f->serve;
    struct bt_kv_batch_stats stats;

    if (bt_kv_batch_decode(payload, bytes, &serve->events->scratch, &stats,
                           on_kv_event, f) != BT_OK) {
        serve->counters.kv_event_errors[2]++;
        bt_log(BT_LOG_WARN, "kv_batch_bad", "worker=%s bytes=%zu",
               serve_worker_name(serve, f->slot), bytes);
    }
    serve->counters.kv_event_errors[3] += stats.skipped;
    serve->counters.kv_events[3] += stats.unknown_tags;
}

static void on_forget(void *arg)
{
    struct feed *f = arg;
    struct bt_event event = {.type = BT_EV_KV_CLEAR};

    event.u.kv_clear.worker = f->slot;
    event.u.kv_clear.all_ranks = true;
    serve_step(f->serve, &event);
}

static void on_state(void *arg, enum bt_stream_state state)
{
    struct feed *f = arg;
    struct bt_event event = {.type = BT_EV_KV_STREAM};

    event.u.kv_stream.worker = f->slot;
    event.u.kv_stream.state = state;
    bt_log(state == BT_STREAM_DEGRADED ? BT_LOG_WARN : BT_LOG_INFO, "kv_stream",
           "worker=%s state=%s next=%llu", serve_worker_name(f->serve, f->slot),
           bt_stream_state_name(state), (unsigned long long)f->stream.next);
    serve_step(f->serve, &event);
}

static void on_ask(void *arg, uint64_t seq)
{
    struct feed *f = arg;
    unsigned char be[8];

    for (int i = 0; i < 8; i++)
        be[i] = (unsigned char)(seq >> (56 - 8 * i));
    /* A full queue or a dead peer ends in the silence timer. */
    if (zmq_send(f->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == 0)
        (void)zmq_send(f->replay, be, sizeof(be), ZMQ_DONTWAIT);
    ev_timer_again(f->serve->loop, &f->silence);
    ev_feed_event(f->serve->loop, &f->replay_io, EV_READ);
}

/* ---- sockets ---- */

#define FRAMES_MAX 6

struct message {
    zmq_msg_t frames[FRAMES_MAX];
    int count;
    bool overlong;
};

/* False: nothing there. */
static bool receive(void *socket, struct message *m)
{
    int more = 1;
    size_t size = sizeof(more);

    m->count = 0;
    m->overlong = false;
    while (more) {
        zmq_msg_t extra, *frame = &m->frames[m->count];

        if (m->count == FRAMES_MAX) {
            m->overlong = true;
            frame = &extra;
        }
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(frame);
            return m->count > 0;
        }
        if (m->overlong)
            zmq_msg_close(frame);
        else
            m->count++;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
    }
    return true;
}

static void message_close(struct message *m)
{
    for (int i = 0; i < m->count; i++)
        zmq_msg_close(&m->frames[i]);
}

static bool read_seq(zmq_msg_t *frame, uint64_t *seq_out)
{
    const unsigned char *at = zmq_msg_data(frame);
    uint64_t seq = 0;

    if (zmq_msg_size(frame) != 8)
        return false;
    for (int i = 0; i < 8; i++)
        seq = seq << 8 | at[i];
    *seq_out = seq;
    return true;
}

static void take_live(struct feed *f, struct message *m)
{
    uint64_t seq;

    if (m->count != 3 || m->overlong) {
        f->serve->counters.kv_event_errors[0]++;
        return;
    }
    if (!read_seq(&m->frames[1], &seq)) {
        f->serve->counters.kv_event_errors[1]++;
        return;
    }
    kv_stream_live(&f->stream, seq, zmq_msg_data(&m->frames[2]),
                   zmq_msg_size(&m->frames[2]));
}

/* Both reply forms: the payload is the last frame, the number before it. */
static void take_replayed(struct feed *f, struct message *m)
{
    zmq_msg_t *payload;
    uint64_t seq;

    if (m->count < 2 || m->overlong) {
        f->serve->counters.kv_event_errors[0]++;
        return;
    }
    payload = &m->frames[m->count - 1];
    if (!read_seq(&m->frames[m->count - 2], &seq)) {
        f->serve->counters.kv_event_errors[1]++;
        return;
    }
    if (f->stream.replaying)
        ev_timer_again(f->serve->loop, &f->silence);
    if (seq == UINT64_MAX || zmq_msg_size(payload) == 0)
        kv_stream_replay_end(&f->stream);
    else
        kv_stream_replayed(&f->stream, seq, zmq_msg_data(payload),
                           zmq_msg_size(payload));
    if (!f->stream.replaying)
        ev_timer_stop(f->serve->loop, &f->silence);
}

/* Up to TURN_MAX messages; true when there may be more. */
static bool read_some(struct feed *f, void *socket,
                      void (*take)(struct feed *, struct message *))
{
    for (int i = 0; i < TURN_MAX; i++) {
        struct message m;

        if (!receive(socket, &m))
            return false;
        take(f, &m);
        message_close(&m);
    }
    return true;
}

static void read_feed(struct feed *f)
{
    bool more = read_some(f, f->sub, take_live);

    if (f->replay != NULL)
        more = read_some(f, f->replay, take_replayed) || more;
    if (more)
        ev_timer_start(f->serve->loop, &f->serve->events->more);
}

static void on_readable(struct ev_loop *loop, ev_io *io, int events)
{
    (void)loop;
    (void)events;
    read_feed(io->data);
}

/* In the next turn of the loop, however busy that is: an idle watcher would
 * starve, and ZMQ_FD does not tell again. */
static void on_more(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_serve *serve = timer->data;

    (void)loop;
    (void)events;
    for (uint32_t i = 0; i < serve->config->worker_count; i++)
        if (serve->events->feeds[i].opened)
            read_feed(&serve->events->feeds[i]);
}

static void on_silence(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct feed *f = timer->data;

    (void)events;
    kv_stream_replay_silent(&f->stream);
    if (!f->stream.replaying)
        ev_timer_stop(loop, timer);
}

static void *open_socket(void *context, int type, const char *endpoint)
{
    void *socket = zmq_socket(context, type);
    int hwm = RECEIVE_HWM, linger = 0, keep = 1;
    int64_t largest = MESSAGE_MAX;

    if (socket == NULL)
        return NULL;
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE, &keep, sizeof(keep));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    if (zmq_connect(socket, endpoint) != 0) {
        bt_log(BT_LOG_ERROR, "kv_endpoint_bad", "endpoint=%s why=%s", endpoint,
               zmq_strerror(errno));
        zmq_close(socket);
        return NULL;
    }
    return socket;
}

static void watch(struct feed *f, void *socket, ev_io *io)
{
    int fd = -1;
    size_t size = sizeof(fd);

    zmq_getsockopt(socket, ZMQ_FD, &fd, &size);
    ev_io_init(io, on_readable, fd, EV_READ);
    io->data = f;
    ev_io_start(f->serve->loop, io);
}

static enum bt_status feed_open(struct feed *f)
{
    const struct bt_worker_config *w = &f->serve->config->workers[f->slot];
    struct kv_stream_ops ops = {.apply = on_apply,
                                .forget = on_forget,
                                .ask_replay = on_ask,
                                .state = on_state,
                                .arg = f};

    ev_timer_init(&f->silence, on_silence, 0., REPLAY_SILENCE_S);
    f->silence.data = f;
    if (w->events == NULL)
        return BT_OK;
    if (kv_stream_init(&f->stream, &ops, w->replay != NULL) != BT_OK)
        return BT_NO_MEMORY;
    f->opened = true;
    f->sub = open_socket(f->serve->events->context, ZMQ_SUB, w->events);
    if (f->sub == NULL)
        return BT_INVALID;
    watch(f, f->sub, &f->sub_io);
    if (w->replay == NULL)
        return BT_OK;
    f->replay = open_socket(f->serve->events->context, ZMQ_DEALER, w->replay);
    if (f->replay == NULL)
        return BT_INVALID;
    watch(f, f->replay, &f->replay_io);
    return BT_OK;
}

static enum bt_status scratch_init(struct bt_kv_scratch *s)
{
    s->hashes_max = s->mm_max = s->mm_per_block_max = HASHES_MAX;
    s->tokens_max = TOKENS_MAX;
    s->hashes = calloc(s->hashes_max, sizeof(*s->hashes));
    s->tokens = calloc(s->tokens_max, sizeof(*s->tokens));
    s->mm = calloc(s->mm_max, sizeof(*s->mm));
    s->mm_per_block = calloc(s->mm_per_block_max, sizeof(*s->mm_per_block));
    return s->hashes == NULL || s->tokens == NULL || s->mm == NULL ||
                   s->mm_per_block == NULL
               ? BT_NO_MEMORY
               : BT_OK;
}

enum bt_status event_plane_start(struct bt_serve *serve)
{
    struct event_plane *plane = calloc(1, sizeof(*plane));
    enum bt_status status = BT_OK;

    if (plane == NULL)
        return BT_NO_MEMORY;
    serve->events = plane;
    ev_timer_init(&plane->more, on_more, 0., 0.);
    plane->more.data = serve;
    plane->context = zmq_ctx_new();
    plane->feeds =
        calloc(serve->config->worker_count + 1, sizeof(*plane->feeds));
    if (plane->context == NULL || plane->feeds == NULL ||
        scratch_init(&plane->scratch) != BT_OK)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < serve->config->worker_count && status == BT_OK;
         i++) {
        plane->feeds[i].serve = serve;
        plane->feeds[i].slot = i;
        status = feed_open(&plane->feeds[i]);
    }
    return status;
}

static void feed_close(struct feed *f)
{
    if (f->serve == NULL)
        return;
    ev_timer_stop(f->serve->loop, &f->silence);
    ev_io_stop(f->serve->loop, &f->sub_io);
    ev_io_stop(f->serve->loop, &f->replay_io);
    if (f->sub != NULL)
        zmq_close(f->sub);
    if (f->replay != NULL)
        zmq_close(f->replay);
    if (f->opened)
        kv_stream_fini(&f->stream);
}

void event_plane_stop(struct bt_serve *serve)
{
    struct event_plane *plane = serve->events;

    ev_timer_stop(serve->loop, &plane->more);
    for (uint32_t i = 0;
         plane->feeds != NULL && i < serve->config->worker_count; i++)
        feed_close(&plane->feeds[i]);
    if (plane->context != NULL)
        zmq_ctx_term(plane->context);
    free(plane->feeds);
    free(plane->scratch.hashes);
    free(plane->scratch.tokens);
    free(plane->scratch.mm);
    free(plane->scratch.mm_per_block);
    free(plane);
    serve->events = NULL;
}

void event_plane_reset(struct bt_serve *serve, uint32_t slot,
                       uint64_t incarnation)
{
    struct feed *f = &serve->events->feeds[slot];

    if (!f->opened)
        return;
    kv_stream_begin(&f->stream, f->incarnation != incarnation);
    f->incarnation = incarnation;
}

void event_plane_counts(const struct bt_serve *serve,
                        struct kv_stream_counts *out)
{
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < serve->config->worker_count; i++) {
        const struct kv_stream_counts *c =
            &serve->events->feeds[i].stream.counts;

        out->batches += c->batches;
        out->duplicates += c->duplicates;
        out->gaps += c->gaps;
        out->missing += c->missing;
        out->resets += c->resets;
        out->dropped += c->dropped;
        out->replays_complete += c->replays_complete;
        out->replays_partial += c->replays_partial;
        out->replays_timeout += c->replays_timeout;
    }
}
