/* The event plane's public face: sources and their calls. Decides what is a
 * good source and when a call may act: one that comes from inside a call-back
 * is put off until that has returned, so that no stream changes under the
 * hands of its own rules. Sockets, rules and events are the other files'.
 */
#include "plane_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "endpoint.h"

#define SOURCES_MAX 65535u
#define HASHES_MAX  65536u
#define TOKENS_MAX  (1u << 20)
#define LINE_SIZE   320

int64_t plane_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void plane_say(const struct bt_event_plane *plane, int level, const char *word,
               const char *format, ...)
{
    char line[LINE_SIZE];
    va_list args;

    if (plane->sink.say == NULL)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    plane->sink.say(plane->sink.arg, level, word, line);
}

/* ---- calls from inside call-backs ---- */

static void later(struct source *source)
{
    if (source->later_queued)
        return;
    source->later_queued = true;
    source->later_next = source->plane->later_first;
    source->plane->later_first = source;
}

static void later_leave(struct source *source)
{
    struct source **link = &source->plane->later_first;

    for (; *link != NULL && *link != source; link = &(*link)->later_next)
        ;
    if (*link == source)
        *link = source->later_next;
    source->later_queued = false;
}

void plane_enter(struct bt_event_plane *plane)
{
    plane->depth++;
}

static void do_later(struct source *source)
{
    bool lost = source->later_lost, alive = source->later_alive;
    uint64_t resync = source->later_resync;

    source->later_lost = source->later_alive = false;
    source->later_resync = 0;
    if (lost)
        bt_event_plane_lost(source->plane, source->number);
    if (alive)
        bt_event_plane_alive(source->plane, source->number,
                             source->later_incarnation, source->later_blocks);
    for (uint32_t r = 0; r < source->ranks; r++)
        if (resync >> r & 1)
            (void)bt_event_plane_resync(source->plane, source->number, r);
}

/* What is put off meanwhile is the loop's next, not a deeper call's. */
void plane_leave(struct bt_event_plane *plane)
{
    plane->depth--;
    if (plane->depth > 0 || plane->catching_up)
        return;
    plane->catching_up = true;
    while (plane->later_first != NULL) {
        struct source *source = plane->later_first;

        later_leave(source);
        do_later(source);
    }
    plane->catching_up = false;
}

/* ---- the plane ---- */

void bt_event_plane_config_init(struct bt_event_plane_config *config)
{
    *config = (struct bt_event_plane_config){
        .sources_max = 1024,
        .held_batches = 4096,
        .held_bytes = UINT64_C(64) << 20,
        .held_total = UINT64_C(1) << 30,
        .parked_events = 4096,
        .parked_ns = INT64_C(60000000000),
        .replays_max = 8,
        .silence_ns = INT64_C(2000000000),
        .replay_ns = INT64_C(120000000000),
        .cooldown_ns = INT64_C(30000000000),
        .busy_silent_ns = INT64_C(60000000000),
        .late_ns = INT64_C(5000000000),
        .unheard_ns = INT64_C(30000000000),
    };
}

static enum bt_status config_check(const struct bt_event_plane_config *c,
                                   char *error_out, size_t error_size)
{
    const struct {
        const char *name;
        bool good;
    } checks[] = {
        {"sources_max", c->sources_max > 0 && c->sources_max <= SOURCES_MAX},
        {"held_batches", c->held_batches > 0},
        {"held_bytes", c->held_bytes > 0},
        {"held_total", c->held_total > 0},
        {"parked_ns", c->parked_ns > 0},
        {"replays_max", c->replays_max > 0},
        {"silence_ns", c->silence_ns > 0},
        {"replay_ns", c->replay_ns > 0},
        {"cooldown_ns", c->cooldown_ns > 0},
        {"busy_silent_ns", c->busy_silent_ns >= 0},
        {"late_ns", c->late_ns >= 0},
        {"unheard_ns", c->unheard_ns >= 0},
        {"gone_ns", c->gone_ns >= 0},
    };

    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (checks[i].good)
            continue;
        snprintf(error_out, error_size, "%s is out of range", checks[i].name);
        return BT_INVALID;
    }
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
    s->remaining = calloc(s->hashes_max, sizeof(*s->remaining));
    return s->hashes == NULL || s->tokens == NULL || s->mm == NULL ||
                   s->mm_per_block == NULL || s->remaining == NULL
               ? BT_NO_MEMORY
               : BT_OK;
}

static void on_second(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_event_plane *plane = timer->data;
    int64_t now_ns = plane_now_ns();

    (void)loop;
    (void)events;
    plane_enter(plane);
    for (uint32_t i = 0; i < plane->config.sources_max; i++)
        for (uint32_t r = 0;
             plane->sources[i] != NULL && r < plane->sources[i]->ranks; r++)
            stream_second(&plane->sources[i]->streams[r], now_ns);
    plane_leave(plane);
}

static enum bt_status bind_open(struct bt_event_plane *plane, char *error_out,
                                size_t error_size)
{
    const char *why = "";

    if (plane->config.bind == NULL)
        return BT_OK;
    plane->bound =
        socket_open(plane->context, ZMQ_SUB, true, plane->config.bind, &why);
    if (plane->bound == NULL) {
        snprintf(error_out, error_size, "%.100s: %.40s", plane->config.bind,
                 why);
        return BT_IO;
    }
    ev_io_init(&plane->bound_io, read_bound, socket_fd(plane->bound), EV_READ);
    plane->bound_io.data = plane;
    ev_io_start(plane->loop, &plane->bound_io);
    ev_feed_event(plane->loop, &plane->bound_io, EV_READ);
    return BT_OK;
}

static enum bt_status plane_init(struct bt_event_plane *plane)
{
    const char *bind = plane->config.bind;
    int most = 0;

    ev_timer_init(&plane->more, read_more, 0., 0.);
    plane->more.data = plane;
    ev_timer_init(&plane->second, on_second, 1., 1.);
    plane->second.data = plane;
    plane->budget.max = plane->config.held_total;
    plane->config.bind = NULL;
    if (bind != NULL && (plane->config.bind = strdup(bind)) == NULL)
        return BT_NO_MEMORY;
    plane->sources = calloc(plane->config.sources_max, sizeof(struct source *));
    plane->context = zmq_ctx_new();
    if (plane->sources == NULL || plane->context == NULL ||
        scratch_init(&plane->scratch) != BT_OK ||
        topics_init(&plane->topics, plane->config.sources_max) != BT_OK)
        return BT_NO_MEMORY;
    most = zmq_ctx_get(plane->context, ZMQ_SOCKET_LIMIT);
    if (most > 0)
        zmq_ctx_set(plane->context, ZMQ_MAX_SOCKETS, most);
    ev_timer_start(plane->loop, &plane->second);
    return BT_OK;
}

enum bt_status bt_event_plane_create(struct ev_loop *loop,
                                     const struct bt_event_plane_config *config,
                                     const struct bt_event_sink *sink,
                                     struct bt_event_plane **out,
                                     char *error_out, size_t error_size)
{
    struct bt_event_plane *plane;
    enum bt_status status = config_check(config, error_out, error_size);

    if (status != BT_OK)
        return status;
    plane = calloc(1, sizeof(*plane));
    if (plane == NULL)
        return BT_NO_MEMORY;
    plane->loop = loop;
    plane->config = *config;
    plane->sink = *sink;
    status = plane_init(plane);
    if (status == BT_OK)
        status = bind_open(plane, error_out, error_size);
    if (status != BT_OK) {
        bt_event_plane_destroy(plane);
        return status;
    }
    *out = plane;
    return BT_OK;
}

void bt_event_plane_destroy(struct bt_event_plane *plane)
{
    if (plane == NULL)
        return;
    for (uint32_t i = 0;
         plane->sources != NULL && i < plane->config.sources_max; i++)
        bt_event_plane_remove(plane, i);
    ev_timer_stop(plane->loop, &plane->more);
    ev_timer_stop(plane->loop, &plane->second);
    if (plane->bound != NULL) {
        ev_io_stop(plane->loop, &plane->bound_io);
        zmq_close(plane->bound);
    }
    if (plane->context != NULL)
        zmq_ctx_term(plane->context);
    topics_fini(&plane->topics);
    free(plane->scratch.hashes);
    free(plane->scratch.tokens);
    free(plane->scratch.mm);
    free(plane->scratch.mm_per_block);
    free(plane->scratch.remaining);
    free(plane->sources);
    free((void *)(uintptr_t)plane->config.bind);
    free(plane);
}

/* ---- sources ---- */

static enum bt_status invalid(char *error_out, size_t error_size,
                              const char *what)
{
    snprintf(error_out, error_size, "%s", what);
    return BT_INVALID;
}

static enum bt_status source_check(const struct bt_event_plane *plane,
                                   uint32_t number,
                                   const struct bt_event_source_config *c,
                                   char *error_out, size_t error_size)
{
    struct bt_engine_digest root;

    if (number >= plane->config.sources_max)
        return BT_LIMIT;
    if (plane->sources[number] != NULL)
        return invalid(error_out, error_size, "the number is in use");
    if (c->ranks == 0 || c->ranks > RANKS_MAX)
        return invalid(error_out, error_size, "ranks are 1 to 64");
    if ((c->events == NULL) == (c->topic == NULL))
        return invalid(error_out, error_size,
                       "either an endpoint or a topic, not both");
    if (c->topic != NULL && plane->bound == NULL)
        return invalid(error_out, error_size,
                       "a topic needs a socket that is bound");
    if (c->hash != BT_ENGINE_HASH_NONE &&
        (c->hash_seed == NULL ||
         bt_engine_hash_root(c->hash, c->hash_seed, &root) != BT_OK))
        return invalid(error_out, error_size, "the hash needs its seed");
    return endpoints_check(c->events, c->replay, c->ranks, error_out,
                           error_size);
}

static void source_free(struct source *source)
{
    free(source->name);
    free(source->events);
    free(source->replay);
    free(source);
}

static struct source *source_new(struct bt_event_plane *plane, uint32_t number,
                                 const struct bt_event_source_config *c)
{
    struct source *source =
        calloc(1, sizeof(*source) + c->ranks * sizeof(struct stream));

    if (source == NULL)
        return NULL;
    source->plane = plane;
    source->number = number;
    source->ranks = c->ranks;
    source->by_topic = c->events == NULL;
    source->name = strdup(c->name == NULL ? "" : c->name);
    source->events = c->events == NULL ? NULL : strdup(c->events);
    source->replay = c->replay == NULL ? NULL : strdup(c->replay);
    if (source->name == NULL || (c->events != NULL && source->events == NULL) ||
        (c->replay != NULL && source->replay == NULL)) {
        source_free(source);
        return NULL;
    }
    return source;
}

enum bt_status bt_event_plane_add(struct bt_event_plane *plane, uint32_t number,
                                  const struct bt_event_source_config *config,
                                  char *error_out, size_t error_size)
{
    enum bt_status status =
        source_check(plane, number, config, error_out, error_size);
    struct source *source;

    if (status != BT_OK)
        return status;
    source = source_new(plane, number, config);
    if (source == NULL)
        return BT_NO_MEMORY;
    plane->sources[number] = source;
    if (config->topic != NULL) {
        status = topics_add(&plane->topics, config->topic, number);
        if (status == BT_INVALID)
            snprintf(error_out, error_size,
                     "topic %.100s is empty, too long or another source's",
                     config->topic);
    }
    for (uint32_t r = 0; status == BT_OK && r < config->ranks; r++)
        status = stream_open(source, r, config, error_out, error_size);
    if (status != BT_OK)
        bt_event_plane_remove(plane, number);
    return status;
}

static struct source *source_of(const struct bt_event_plane *plane,
                                uint32_t number)
{
    return number < plane->config.sources_max ? plane->sources[number] : NULL;
}

static struct stream *stream_of(const struct bt_event_plane *plane,
                                uint32_t number, uint32_t rank)
{
    struct source *source = source_of(plane, number);

    return source == NULL || rank >= source->ranks ? NULL
                                                   : &source->streams[rank];
}

/* All members are counters of 64 bits. */
static void counts_add(struct bt_stream_counts *to,
                       const struct bt_stream_counts *from)
{
    uint64_t a[sizeof(*to) / sizeof(uint64_t)], b[sizeof(a) / sizeof(a[0])];

    _Static_assert(sizeof(*to) % sizeof(uint64_t) == 0, "counters only");
    memcpy(a, to, sizeof(a));
    memcpy(b, from, sizeof(b));
    for (size_t i = 0; i < sizeof(a) / sizeof(a[0]); i++)
        a[i] += b[i];
    memcpy(to, a, sizeof(a));
}

void bt_event_plane_remove(struct bt_event_plane *plane, uint32_t number)
{
    struct source *source = source_of(plane, number);

    if (source == NULL)
        return;
    if (source->later_queued)
        later_leave(source);
    topics_remove(&plane->topics, number);
    for (uint32_t r = 0; r < source->ranks; r++) {
        counts_add(&plane->gone, &source->streams[r].counts);
        stream_close(&source->streams[r]);
    }
    plane->sources[number] = NULL;
    source_free(source);
}

/* ---- what the caller knows of the process ---- */

void bt_event_plane_alive(struct bt_event_plane *plane, uint32_t number,
                          uint64_t incarnation, uint64_t blocks)
{
    struct source *source = source_of(plane, number);
    bool other;

    if (source == NULL)
        return;
    if (plane->depth > 0) {
        source->later_alive = true;
        source->later_incarnation = incarnation;
        source->later_blocks = blocks;
        later(source);
        return;
    }
    other = source->has_incarnation && source->incarnation != incarnation;
    source->has_incarnation = true;
    source->incarnation = incarnation;
    plane_enter(plane);
    for (uint32_t r = 0; r < source->ranks; r++) {
        struct stream *st = &source->streams[r];

        if (other)
            read_queued(st);
        st->busy_silent = st->busy_silent && !other;
        kv_stream_alive(&st->seq, plane_now_ns(), other, blocks);
        stream_publish(st);
        stream_clock(st);
    }
    plane_leave(plane);
}

void bt_event_plane_lost(struct bt_event_plane *plane, uint32_t number)
{
    struct source *source = source_of(plane, number);

    if (source == NULL)
        return;
    source->running = 0;
    source->busy_ns = 0;
    if (plane->depth > 0) {
        source->later_lost = true;
        source->later_alive = false;
        later(source);
        return;
    }
    for (uint32_t r = 0; r < source->ranks; r++)
        kv_stream_lost(&source->streams[r].seq);
}

void bt_event_plane_busy(struct bt_event_plane *plane, uint32_t number,
                         uint32_t running)
{
    struct source *source = source_of(plane, number);

    if (source == NULL)
        return;
    source->running = running;
    if (running == 0)
        source->busy_ns = 0;
    else if (source->busy_ns == 0)
        source->busy_ns = plane_now_ns();
}

enum bt_status bt_event_plane_resync(struct bt_event_plane *plane,
                                     uint32_t number, uint32_t rank)
{
    struct stream *st = stream_of(plane, number, rank);
    enum bt_status status;

    if (st == NULL)
        return BT_NOT_FOUND;
    if (!st->seq.has_replay)
        return BT_INVALID;
    if (plane->depth > 0) {
        st->source->later_resync |= UINT64_C(1) << rank;
        later(st->source);
        return BT_OK;
    }
    plane_enter(plane);
    status = kv_stream_resync(&st->seq, plane_now_ns());
    stream_publish(st);
    stream_clock(st);
    plane_leave(plane);
    return status;
}

void bt_event_plane_heal(struct bt_event_plane *plane, uint32_t number, bool on)
{
    struct source *source = source_of(plane, number);

    if (source == NULL)
        return;
    plane_enter(plane);
    for (uint32_t r = 0; r < source->ranks; r++)
        kv_apply_heal(&source->streams[r].apply, on);
    plane_leave(plane);
}

/* ---- what is known ---- */

enum bt_status bt_event_plane_stream(const struct bt_event_plane *plane,
                                     uint32_t number, uint32_t rank,
                                     struct bt_stream_info *out)
{
    const struct stream *st = stream_of(plane, number, rank);

    if (st == NULL)
        return BT_NOT_FOUND;
    *out = (struct bt_stream_info){
        .state = st->state,
        .cause = st->cause,
        .next = st->seq.next,
        .ts = st->ts,
        .lag_s = st->lag_s,
        .cut = st->seq.cut,
        .again = st->again,
        .since_ns = st->since_ns,
        .block_tokens = st->apply.block_tokens,
        .held = st->seq.held_count,
        .parked = st->apply.parked.count,
        .held_bytes = st->seq.held_bytes,
        .counts = st->counts,
    };
    return BT_OK;
}

void bt_event_plane_counts(const struct bt_event_plane *plane,
                           struct bt_stream_counts *out)
{
    *out = plane->gone;
    for (uint32_t i = 0; i < plane->config.sources_max; i++)
        for (uint32_t r = 0;
             plane->sources[i] != NULL && r < plane->sources[i]->ranks; r++)
            counts_add(out, &plane->sources[i]->streams[r].counts);
}

uint64_t bt_event_plane_strangers(const struct bt_event_plane *plane)
{
    return plane->strangers;
}

/* ---- warm restart ---- */

enum bt_status bt_event_plane_mark(const struct bt_event_plane *plane,
                                   uint32_t number, uint32_t rank,
                                   struct bt_stream_mark *out)
{
    const struct stream *st = stream_of(plane, number, rank);

    if (st == NULL)
        return BT_NOT_FOUND;
    kv_stream_mark(&st->seq, out);
    out->incarnation = st->source->incarnation;
    out->block_tokens = st->apply.block_tokens;
    out->counting = st->apply.counting;
    kv_groups_mark(&st->apply.groups, out);
    return BT_OK;
}

enum bt_status bt_event_plane_resume(struct bt_event_plane *plane,
                                     uint32_t number, uint32_t rank,
                                     const struct bt_stream_mark *mark)
{
    struct stream *st = stream_of(plane, number, rank);

    if (st == NULL)
        return BT_NOT_FOUND;
    if (!mark->started || st->seq.started || st->seq.phase != KV_IDLE ||
        plane->depth > 0)
        return BT_INVALID;
    if (mark->incarnation != 0) {
        st->source->has_incarnation = true;
        st->source->incarnation = mark->incarnation;
    }
    plane_enter(plane);
    kv_apply_resume(&st->apply, mark);
    kv_stream_resume(&st->seq, plane_now_ns(), mark);
    stream_publish(st);
    stream_clock(st);
    plane_leave(plane);
    return BT_OK;
}
