/* A world around the sequence rules of one stream: an in-memory "engine" keeps
 * all batches it ever sent; the test decides what arrives and what time it is.
 * Truth: the list of numbers applied, in order. */
#ifndef BATON_TESTS_KV_STREAM_WORLD_H
#define BATON_TESTS_KV_STREAM_WORLD_H

#include "kv_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LOG_MAX 40000
#define SECOND  INT64_C(1000000000)
#define HELD    4096

struct world {
    struct kv_stream stream;
    struct kv_budget budget;
    struct bt_stream_counts counts;
    unsigned int life; /* which process speaks */
    int64_t label;     /* which rank it says it is; -1 does not */
    double clock_s;    /* the engine's */
    int64_t now_ns;    /* ours */
    bool refuse;       /* no slot free */
    bool clears;       /* the next batch empties the rank */
    size_t stores;     /* blocks that each batch stores */
    uint64_t applied[LOG_MAX];
    unsigned int applied_life[LOG_MAX];
    size_t applied_count;
    unsigned int forgets, asks, wants, dones;
    int degradeds;
    uint64_t asked_from;
    enum bt_stream_state state;
    enum bt_stream_cause cause;
};

static inline size_t payload(const struct world *w, uint64_t seq, char *buf)
{
    return (size_t)snprintf(buf, 64, "life %u batch %llu label %lld", w->life,
                            (unsigned long long)seq, (long long)w->label);
}

static inline void on_apply(void *arg, const struct kv_batch *batch)
{
    struct world *w = arg;
    unsigned int life;
    unsigned long long seq;
    char text[64];

    assert_true(batch->bytes < sizeof(text));
    memcpy(text, batch->payload, batch->bytes);
    text[batch->bytes] = '\0';
    assert_int_equal(sscanf(text, "life %u batch %llu", &life, &seq), 2);
    assert_int_equal(seq, batch->seq);
    assert_true(w->applied_count < LOG_MAX);
    w->applied_life[w->applied_count] = life;
    w->applied[w->applied_count++] = seq;
    if (w->clears)
        kv_stream_cleared(&w->stream);
    w->clears = false;
    if (w->stores > 0)
        kv_stream_stored(&w->stream, w->stores);
}

static inline void on_forget(void *arg)
{
    struct world *w = arg;

    w->forgets++;
    w->applied_count = 0;
}

static inline bool on_want(void *arg)
{
    struct world *w = arg;

    w->wants++;
    return !w->refuse;
}

static inline void on_ask(void *arg, uint64_t seq)
{
    struct world *w = arg;

    w->asks++;
    w->asked_from = seq;
}

static inline void on_done(void *arg)
{
    ((struct world *)arg)->dones++;
}

static inline void on_state(void *arg, enum bt_stream_state state,
                            enum bt_stream_cause cause)
{
    struct world *w = arg;

    if (state == BT_STREAM_DEGRADED)
        w->degradeds++; /* each hole, told again while it is so already */
    else
        assert_true(w->state != state || w->cause != cause);
    w->state = state;
    w->cause = cause;
}

static inline bool on_label(void *arg, const struct kv_batch *batch,
                            int64_t *rank_out)
{
    char text[64];
    long long label;

    (void)arg;
    memcpy(text, batch->payload, batch->bytes);
    text[batch->bytes] = '\0';
    assert_int_equal(sscanf(text, "life %*u batch %*u label %lld", &label), 1);
    *rank_out = label;
    return label >= 0;
}

static inline void start_with(struct world *w, bool replay, uint32_t batches,
                              uint64_t bytes, uint64_t total)
{
    struct kv_stream_ops ops = {on_apply, on_forget, on_want,  on_ask,
                                on_done,  on_state,  on_label, w};
    struct kv_stream_limits limits = {.held_batches = batches,
                                      .held_bytes = bytes,
                                      .silence_ns = 2 * SECOND,
                                      .replay_ns = 120 * SECOND,
                                      .cooldown_ns = 30 * SECOND,
                                      .budget = &w->budget};

    memset(w, 0, sizeof(*w));
    w->label = -1;
    w->clock_s = 1000.;
    w->now_ns = SECOND;
    w->budget.max = total;
    w->cause = BT_CAUSE_SILENT;
    kv_stream_init(&w->stream, &ops, &limits, replay, &w->counts);
}

static inline void start(struct world *w, bool replay)
{
    start_with(w, replay, HELD, 64 << 20, 1 << 30);
}

static inline void stop(struct world *w)
{
    kv_stream_fini(&w->stream);
    assert_int_equal(w->budget.used, 0);
}

/* When the engine wrote the batch: it writes one each 10 ms. */
static inline double ts_of(const struct world *w, uint64_t seq)
{
    return w->clock_s + (double)w->life * 10000. + (double)seq * 0.01;
}

static inline void live(struct world *w, uint64_t seq)
{
    char buf[64];
    struct kv_batch batch = {seq, ts_of(w, seq), buf, payload(w, seq, buf)};

    kv_stream_live(&w->stream, w->now_ns, &batch);
}

static inline void lives(struct world *w, uint64_t from, uint64_t to)
{
    for (uint64_t seq = from; seq <= to; seq++)
        live(w, seq);
}

static inline void replay(struct world *w, uint64_t from, uint64_t to)
{
    char buf[64];

    for (uint64_t seq = from; seq <= to; seq++) {
        struct kv_batch batch = {seq, ts_of(w, seq), buf, payload(w, seq, buf)};

        kv_stream_replayed(&w->stream, w->now_ns, &batch);
    }
}

static inline void end(struct world *w)
{
    kv_stream_replay_end(&w->stream, w->now_ns);
}

/* On to the next deadline, by that much late. */
static inline void pass(struct world *w)
{
    int64_t at = kv_stream_deadline(&w->stream);

    assert_true(at > 0);
    w->now_ns = at > w->now_ns ? at : w->now_ns;
    kv_stream_tick(&w->stream, w->now_ns);
}

static inline void check_applied(const struct world *w, uint64_t from,
                                 uint64_t to)
{
    assert_int_equal(w->applied_count, to - from + 1);
    for (size_t i = 0; i < w->applied_count; i++) {
        assert_int_equal(w->applied[i], from + i);
        assert_int_equal(w->applied_life[i], w->life);
    }
}

static inline void is(const struct world *w, enum bt_stream_state state,
                      enum bt_stream_cause cause)
{
    if (w->state != state || w->cause != cause)
        fail_msg("stream is %s/%s, not %s/%s", bt_stream_state_name(w->state),
                 bt_stream_cause_name(w->cause), bt_stream_state_name(state),
                 bt_stream_cause_name(cause));
}

#endif
