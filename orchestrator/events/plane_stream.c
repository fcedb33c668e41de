/* One rank of one source: its sequence rules, its events and its sockets tied
 * together. Decides who may replay now (first come, first served) and what the
 * sink hears of the stream's worth; the rules themselves are kv_stream.c's and
 * kv_apply.c's.
 * Invariant: the replay socket lives for one request, so that nothing of an
 * earlier answer reaches the next.
 */
#include "plane_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "endpoint.h"
#include "kv_peek.h"

uint32_t stream_rank(const struct stream *st)
{
    return (uint32_t)(st - st->source->streams);
}

/* ---- worth ---- */

static enum bt_stream_state overlaid(const struct stream *st,
                                     enum bt_stream_cause *cause)
{
    enum bt_stream_state state = st->seq.state;

    *cause = st->seq.cause;
    if (state != BT_STREAM_EXACT && state != BT_STREAM_PARTIAL) {
        if (state == BT_STREAM_ABSENT && st->busy_silent)
            *cause = BT_CAUSE_BUSY_SILENT;
        return state;
    }
    if (st->busy_silent) {
        *cause = BT_CAUSE_BUSY_SILENT;
        return BT_STREAM_DEGRADED;
    }
    if (st->lag.late) {
        *cause = BT_CAUSE_LATE;
        return BT_STREAM_DEGRADED;
    }
    if (*cause == BT_CAUSE_AGED_OUT)
        return state;
    if (st->apply.size_bad)
        *cause = BT_CAUSE_BLOCK_SIZE;
    else if (kv_groups_unsure(&st->apply.groups))
        *cause = BT_CAUSE_GROUPS;
    else
        return state;
    return BT_STREAM_PARTIAL;
}

/* A further hole of a degraded stream is told again. */
static void publish(struct stream *st, bool another_hole)
{
    struct bt_event_plane *plane = st->source->plane;
    enum bt_stream_cause cause;
    enum bt_stream_state state = overlaid(st, &cause);

    st->again = state == st->state && cause == st->cause;
    if (st->again && !another_hole)
        return;
    if (cause == BT_CAUSE_RANKS_MIXED && st->cause != cause)
        plane_say(plane, 1, "kv_ranks_mixed",
                  "worker=%s rank=%" PRIu32
                  " why=\"the same numbers come again "
                  "with other contents: several ranks on one socket\"",
                  st->source->name, stream_rank(st));
    st->state = state;
    st->cause = cause;
    plane->sink.state(plane->sink.arg, st->source->number, stream_rank(st),
                      state, cause);
}

void stream_publish(struct stream *st)
{
    publish(st, false);
}

/* ---- the connection ---- */

/* What was sent before the break is taken first. */
void stream_cut(struct stream *st)
{
    struct bt_event_plane *plane = st->source->plane;

    if (!st->connected)
        return;
    read_queued(st);
    st->connected = false;
    st->cut_ns = plane_now_ns();
    if (st->seq.started)
        plane_say(plane, 1, "kv_source_lost",
                  "worker=%s rank=%" PRIu32 " why=\"connection closed\"",
                  st->source->name, stream_rank(st));
    kv_stream_cut(&st->seq);
    /* Told also when it was syncing: a question for the last batch that is
     * under way may look the same. */
    st->state = BT_STREAM_ABSENT;
    st->cause = BT_CAUSE_NONE;
    stream_publish(st);
    stream_clock(st);
}

void stream_connected(struct stream *st)
{
    if (st->connected)
        return;
    st->connected = true;
    st->gone = false;
    kv_stream_connected(&st->seq, plane_now_ns());
    stream_publish(st);
    stream_clock(st);
}

/* Its blocks are not believed for ever. */
static void check_gone(struct stream *st, int64_t now_ns)
{
    struct bt_event_plane *plane = st->source->plane;

    if (!st->seq.cut || st->gone || plane->config.gone_ns == 0 ||
        now_ns - st->cut_ns < plane->config.gone_ns)
        return;
    st->gone = true;
    if (st->seq.started)
        plane_say(plane, 1, "kv_source_gone",
                  "worker=%s rank=%" PRIu32
                  " why=\"no connection for %.1f s: its blocks are forgotten\"",
                  st->source->name, stream_rank(st),
                  (double)(now_ns - st->cut_ns) * 1e-9);
    kv_stream_gone(&st->seq);
}

/* Never heard of: said once. */
static void check_unheard(struct stream *st, int64_t now_ns)
{
    const struct source *source = st->source;
    int64_t limit = source->plane->config.unheard_ns;

    if (limit == 0 || st->unheard_said || now_ns - st->opened_ns < limit)
        return;
    st->unheard_said = true;
    if (st->seq.started || st->counts.batches > 0)
        return;
    plane_say(source->plane, 1, "kv_source_silent",
              "worker=%s rank=%" PRIu32 " endpoint=%.100s why=\"%s\"",
              source->name, stream_rank(st),
              source->by_topic ? "(topic)" : source->events,
              source->by_topic || st->connected
                  ? "connected, but no event has come yet"
                  : "no connection yet");
}

/* ---- what the rules ask for ---- */

static void on_apply(void *arg, const struct kv_batch *batch)
{
    struct stream *st = arg;

    st->busy_silent = st->silent_said = false;
    st->heard_ns = plane_now_ns();
    st->since_ns = (int64_t)(ev_now(st->source->plane->loop) * 1e9);
    if (batch->ts > 0.)
        st->ts = batch->ts;
    kv_apply_batch(&st->apply, st->heard_ns, batch->payload, batch->bytes);
}

static void on_forget(void *arg)
{
    struct stream *st = arg;

    st->ts = 0.;
    st->lag = (struct kv_lag){0};
    kv_apply_forget(&st->apply);
}

static void on_state(void *arg, enum bt_stream_state state,
                     enum bt_stream_cause cause)
{
    (void)cause;
    publish(arg, state == BT_STREAM_DEGRADED);
}

static bool on_label(void *arg, const struct kv_batch *batch, int64_t *rank_out)
{
    (void)arg;
    return kv_peek_rank(batch->payload, batch->bytes, rank_out);
}

static bool on_want(void *arg)
{
    struct stream *st = arg;
    struct bt_event_plane *plane = st->source->plane;

    if (plane->replays < plane->config.replays_max) {
        plane->replays++;
        st->replays = true;
        return true;
    }
    st->waits = true;
    st->wait_next = NULL;
    if (plane->wait_last != NULL)
        plane->wait_last->wait_next = st;
    else
        plane->wait_first = st;
    plane->wait_last = st;
    return false;
}

static void wait_leave(struct bt_event_plane *plane, struct stream *st)
{
    struct stream *before = NULL, *at = plane->wait_first;

    for (; at != NULL && at != st; at = at->wait_next)
        before = at;
    if (at == NULL)
        return;
    if (before != NULL)
        before->wait_next = st->wait_next;
    else
        plane->wait_first = st->wait_next;
    if (plane->wait_last == st)
        plane->wait_last = before;
    st->waits = false;
}

static void dealer_close(struct stream *st)
{
    if (st->dealer == NULL)
        return;
    ev_io_stop(st->source->plane->loop, &st->dealer_io);
    zmq_close(st->dealer);
    st->dealer = NULL;
    st->dealer_life++;
}

/* The slot goes to who has waited longest. */
static void slot_free(struct bt_event_plane *plane)
{
    struct stream *next = plane->wait_first;

    plane->replays--;
    if (next == NULL)
        return;
    wait_leave(plane, next);
    plane->replays++;
    next->replays = true;
    kv_stream_granted(&next->seq, plane_now_ns());
    stream_clock(next);
}

static void on_done(void *arg)
{
    struct stream *st = arg;

    dealer_close(st);
    if (st->waits)
        wait_leave(st->source->plane, st);
    if (!st->replays)
        return;
    st->replays = false;
    slot_free(st->source->plane);
}

static void watch(struct stream *st, void *socket, ev_io *io,
                  void (*fn)(struct ev_loop *, ev_io *, int))
{
    struct ev_loop *loop = st->source->plane->loop;

    ev_io_init(io, fn, socket_fd(socket), EV_READ);
    io->data = st;
    ev_io_start(loop, io);
    /* ZMQ_FD tells of changes only: look once. */
    ev_feed_event(loop, io, EV_READ);
}

static void on_ask(void *arg, uint64_t seq)
{
    struct stream *st = arg;
    struct bt_event_plane *plane = st->source->plane;
    char endpoint[ENDPOINT_MAX], error[160];
    const char *why = error;

    dealer_close(st);
    if (endpoint_of_rank(st->source->replay, stream_rank(st), endpoint,
                         sizeof(endpoint), error, sizeof(error)) == BT_OK)
        st->dealer =
            socket_open(plane->context, ZMQ_DEALER, false, endpoint, &why);
    if (st->dealer == NULL) {
        plane_say(plane, 0, "kv_replay_socket",
                  "worker=%s rank=%" PRIu32 " why=\"%s\"", st->source->name,
                  stream_rank(st), why);
        return; /* the silence timer ends it */
    }
    socket_ask(st->dealer, seq);
    watch(st, st->dealer, &st->dealer_io, read_replay);
}

/* ---- time ---- */

static void on_clock(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct stream *st = timer->data;

    (void)loop;
    (void)events;
    plane_enter(st->source->plane);
    kv_stream_tick(&st->seq, plane_now_ns());
    stream_clock(st);
    plane_leave(st->source->plane);
}

void stream_clock(struct stream *st)
{
    struct ev_loop *loop = st->source->plane->loop;
    int64_t at = kv_stream_deadline(&st->seq), left;

    ev_timer_stop(loop, &st->clock);
    if (at == 0)
        return;
    left = at - plane_now_ns();
    ev_timer_set(&st->clock, left > 0 ? (double)left * 1e-9 : 0., 0.);
    ev_timer_start(loop, &st->clock);
}

/* The source has run requests all the time, and nothing came of this rank: its
 * last batch is asked for again, where that can be done; else what is believed
 * may be stale. */
static void check_silence(struct stream *st, int64_t now_ns)
{
    struct source *source = st->source;
    int64_t limit = source->plane->config.busy_silent_ns;

    if (limit == 0 || source->busy_ns == 0 ||
        now_ns - source->busy_ns < limit || now_ns - st->heard_ns < limit ||
        st->busy_silent)
        return;
    if (!st->silent_said)
        plane_say(source->plane, 1, "kv_busy_silent",
                  "worker=%s rank=%" PRIu32 " running=%" PRIu32
                  " silent_s=%.1f",
                  source->name, stream_rank(st), source->running,
                  (double)(now_ns - st->heard_ns) * 1e-9);
    st->silent_said = true;
    st->heard_ns = now_ns;
    if (!kv_stream_probe(&st->seq, now_ns, BT_CAUSE_BUSY_SILENT))
        st->busy_silent = true;
}

void stream_second(struct stream *st, int64_t now_ns)
{
    kv_parked_expire(&st->apply.parked,
                     now_ns - st->source->plane->config.parked_ns);
    check_silence(st, now_ns);
    check_gone(st, now_ns);
    check_unheard(st, now_ns);
    stream_publish(st);
    stream_clock(st);
}

/* ---- life ---- */

static void rules_init(struct stream *st, uint32_t rank,
                       const struct bt_event_source_config *config)
{
    struct source *source = st->source;
    struct bt_event_plane *plane = source->plane;
    const struct bt_event_plane_config *c = &plane->config;
    struct kv_stream_ops ops = {.apply = on_apply,
                                .forget = on_forget,
                                .want = on_want,
                                .ask = on_ask,
                                .done = on_done,
                                .state = on_state,
                                .label = on_label,
                                .arg = st};
    struct kv_stream_limits limits = {.held_batches = c->held_batches,
                                      .held_bytes = c->held_bytes,
                                      .silence_ns = c->silence_ns,
                                      .replay_ns = c->replay_ns,
                                      .cooldown_ns = c->cooldown_ns,
                                      .budget = &plane->budget};
    struct kv_apply_config apply = {.name = source->name,
                                    .source = source->number,
                                    .rank = rank,
                                    .port_is_rank = !source->by_topic,
                                    .ranks = source->ranks,
                                    .block_tokens = config->block_tokens,
                                    .removals = config->removals,
                                    .hash = config->hash,
                                    .eagle = config->eagle,
                                    .eagle_said = &source->eagle_said,
                                    .sink = &plane->sink,
                                    .scratch = &plane->scratch,
                                    .budget = &plane->budget,
                                    .parked_max = c->parked_events,
                                    .stream = &st->seq,
                                    .counts = &st->counts};

    if (config->hash != BT_ENGINE_HASH_NONE)
        (void)bt_engine_hash_root(config->hash, config->hash_seed, &apply.root);
    kv_stream_init(&st->seq, &ops, &limits, source->replay != NULL,
                   &st->counts);
    kv_apply_init(&st->apply, &apply);
}

/* What it fails to open, stream_close leaves out; watchers come after all. */
static bool sockets_open(struct stream *st, const char *endpoint,
                         const char **why_out)
{
    struct bt_event_plane *plane = st->source->plane;

    st->sub = socket_make(plane->context, ZMQ_SUB, endpoint, why_out);
    if (st->sub == NULL)
        return false;
    st->monitor =
        monitor_open(plane->context, st->sub, ++plane->monitors, why_out);
    return st->monitor != NULL && socket_connect(st->sub, endpoint, why_out);
}

enum bt_status stream_open(struct source *source, uint32_t rank,
                           const struct bt_event_source_config *config,
                           char *error_out, size_t error_size)
{
    struct stream *st = &source->streams[rank];
    char endpoint[ENDPOINT_MAX];
    const char *why = "";

    st->source = source;
    st->state = BT_STREAM_ABSENT;
    st->cause = BT_CAUSE_SILENT;
    st->lag_s = -1.;
    st->heard_ns = st->opened_ns = plane_now_ns();
    ev_init(&st->clock, on_clock);
    st->clock.data = st;
    rules_init(st, rank, config);
    if (source->by_topic)
        return BT_OK;
    if (endpoint_of_rank(config->events, rank, endpoint, sizeof(endpoint),
                         error_out, error_size) != BT_OK)
        return BT_INVALID;
    if (!sockets_open(st, endpoint, &why)) {
        snprintf(error_out, error_size, "%.100s: %.40s", endpoint, why);
        return BT_IO;
    }
    watch(st, st->sub, &st->sub_io, read_live);
    watch(st, st->monitor, &st->monitor_io, read_monitor);
    return BT_OK;
}

static void more_leave(struct bt_event_plane *plane, struct stream *st)
{
    struct stream **link = &plane->more_first;

    for (; *link != NULL && *link != st; link = &(*link)->more_next)
        ;
    if (*link == st)
        *link = st->more_next;
    st->more_queued = false;
}

void stream_close(struct stream *st)
{
    struct bt_event_plane *plane;

    if (st->source == NULL)
        return;
    plane = st->source->plane;
    ev_timer_stop(plane->loop, &st->clock);
    if (st->more_queued)
        more_leave(plane, st);
    on_done(st);
    if (st->monitor != NULL) {
        ev_io_stop(plane->loop, &st->monitor_io);
        monitor_close(st->monitor, st->sub);
        st->monitor = NULL;
    }
    if (st->sub != NULL) {
        ev_io_stop(plane->loop, &st->sub_io);
        zmq_close(st->sub);
        st->sub = NULL;
    }
    kv_stream_fini(&st->seq);
    kv_apply_fini(&st->apply);
}
