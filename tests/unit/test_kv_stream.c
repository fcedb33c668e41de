/* Sequence rules of an event stream against engine-wire.md 1.8/1.9: an
 * in-memory "engine" keeps all batches it ever sent; the test decides what
 * arrives. Truth: the list of numbers applied, in order. */
#include "kv_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LOG_MAX 20000

struct world {
    struct kv_stream stream;
    unsigned int life; /* which process speaks */
    uint64_t applied[LOG_MAX];
    size_t applied_count;
    unsigned int forgets, asks;
    uint64_t asked_from;
    enum bt_stream_state state;
};

static size_t payload(const struct world *w, uint64_t seq, char *buf)
{
    return (size_t)snprintf(buf, 64, "life %u batch %llu", w->life,
                            (unsigned long long)seq);
}

static void on_apply(void *arg, const void *bytes, size_t count)
{
    struct world *w = arg;
    unsigned int life;
    unsigned long long seq;
    char text[64];

    assert_true(count < sizeof(text));
    memcpy(text, bytes, count);
    text[count] = '\0';
    assert_int_equal(sscanf(text, "life %u batch %llu", &life, &seq), 2);
    assert_true(w->applied_count < LOG_MAX);
    w->applied[w->applied_count++] = seq;
}

static void on_forget(void *arg)
{
    struct world *w = arg;

    w->forgets++;
    w->applied_count = 0;
}

static void on_ask(void *arg, uint64_t seq)
{
    struct world *w = arg;

    w->asks++;
    w->asked_from = seq;
}

static void on_state(void *arg, enum bt_stream_state state)
{
    ((struct world *)arg)->state = state;
}

static void start(struct world *w, bool replay)
{
    struct kv_stream_ops ops = {on_apply, on_forget, on_ask, on_state, w};

    memset(w, 0, sizeof(*w));
    assert_int_equal(kv_stream_init(&w->stream, &ops, replay), BT_OK);
}

static void live(struct world *w, uint64_t seq)
{
    char buf[64];

    kv_stream_live(&w->stream, seq, buf, payload(w, seq, buf));
}

static void replay(struct world *w, uint64_t from, uint64_t to)
{
    char buf[64];

    for (uint64_t seq = from; seq <= to; seq++)
        kv_stream_replayed(&w->stream, seq, buf, payload(w, seq, buf));
}

static void check_applied(const struct world *w, uint64_t from, uint64_t to)
{
    assert_int_equal(w->applied_count, to - from + 1);
    for (size_t i = 0; i < w->applied_count; i++)
        assert_int_equal(w->applied[i], from + i);
}

static void gap_is_read_back(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    for (uint64_t i = 0; i <= 42; i++)
        live(&w, i);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    live(&w, 45);
    assert_int_equal(w.state, BT_STREAM_SYNCING);
    assert_int_equal(w.asked_from, 42); /* one batch of overlap */
    live(&w, 46);
    replay(&w, 42, 45);
    kv_stream_replay_end(&w.stream);
    check_applied(&w, 0, 46);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    assert_int_equal(w.stream.counts.gaps, 1);
    assert_int_equal(w.stream.counts.missing, 2);
    assert_int_equal(w.forgets, 0);
    kv_stream_fini(&w.stream);
}

static void first_contact_late(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 7);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 7);
    kv_stream_replay_end(&w.stream);
    check_applied(&w, 0, 7);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    kv_stream_fini(&w.stream);
}

static void no_replay_socket(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    live(&w, 7);
    assert_int_equal(w.state, BT_STREAM_PARTIAL);
    live(&w, 8);
    live(&w, 11);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    assert_int_equal(w.asks, 0);
    assert_int_equal(w.applied_count, 3);
    kv_stream_fini(&w.stream);
}

/* A hole of 12,000 with a buffer of 10,000: never called exact again. */
static void hole_older_than_the_buffer(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 12001);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 2002, 12001);
    kv_stream_replay_end(&w.stream);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    assert_int_equal(w.applied_count, 1 + 10000);
    assert_int_equal(w.stream.counts.replays_partial, 1);
    live(&w, 12002);
    assert_int_equal(w.applied[w.applied_count - 1], 12002);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    kv_stream_fini(&w.stream);
}

static void duplicate_is_dropped(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    for (uint64_t i = 0; i < 5; i++)
        live(&w, i);
    live(&w, 3);
    check_applied(&w, 0, 4);
    assert_int_equal(w.stream.counts.duplicates, 1);
    assert_int_equal(w.forgets, 0);
    kv_stream_fini(&w.stream);
}

static void restart_is_noticed_by_its_numbers(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    for (uint64_t i = 0; i < 5; i++)
        live(&w, i);
    w.life = 1;
    live(&w, 0);
    assert_int_equal(w.forgets, 1);
    check_applied(&w, 0, 0);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    kv_stream_fini(&w.stream);
}

/* The engine restarted and has already passed our number: only the overlap
 * batch tells. */
static void restart_is_noticed_by_the_overlap(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    for (uint64_t i = 0; i < 5; i++)
        live(&w, i);
    w.life = 1;
    live(&w, 9);
    assert_int_equal(w.asked_from, 4);
    replay(&w, 4, 4);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 9);
    kv_stream_replay_end(&w.stream);
    check_applied(&w, 0, 9);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    kv_stream_fini(&w.stream);
}

/* The dump itself lost batches: ask again from the hole, not from zero. */
static void holes_in_the_dump(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 20);
    replay(&w, 0, 9);
    replay(&w, 14, 20);
    kv_stream_replay_end(&w.stream);
    assert_int_equal(w.state, BT_STREAM_SYNCING);
    assert_int_equal(w.asked_from, 10);
    replay(&w, 10, 20);
    kv_stream_replay_end(&w.stream);
    check_applied(&w, 0, 20);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    kv_stream_fini(&w.stream);
}

/* The dump never brings what is missing, and the engine falls silent: what was
 * missed stays known. */
static void a_hole_in_every_dump_is_named(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    for (uint64_t i = 0; i <= 10; i++)
        live(&w, i);
    kv_stream_begin(&w.stream, false); /* exact: nothing is asked */
    assert_int_equal(w.asks, 0);
    live(&w, 20);
    replay(&w, 10, 10);
    replay(&w, 12, 20);
    for (int i = 0; i < 2 * KV_STREAM_ATTEMPTS && w.stream.replaying; i++) {
        kv_stream_replay_end(&w.stream);
        if (w.stream.replaying)
            replay(&w, 12, 20); /* 11 is lost on its way each time */
    }
    assert_false(w.stream.replaying);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    assert_int_equal(w.applied[w.applied_count - 1], 20);
    kv_stream_fini(&w.stream);
}

/* The same after the worker came back, with nothing held. */
static void a_hole_without_live_batches_is_named(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    kv_stream_begin(&w.stream, true);
    for (int i = 0; i < 2 * KV_STREAM_ATTEMPTS && w.stream.replaying; i++) {
        replay(&w, 0, 3);
        replay(&w, 5, 9);
        kv_stream_replay_end(&w.stream);
    }
    assert_false(w.stream.replaying);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    kv_stream_fini(&w.stream);
}

static void silence_gives_up(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 5);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        kv_stream_replay_silent(&w.stream);
    assert_false(w.stream.replaying);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    assert_int_equal(w.applied[w.applied_count - 1], 5);
    assert_int_equal(w.stream.counts.replays_timeout, 1);
    live(&w, 6); /* goes on */
    assert_int_equal(w.applied[w.applied_count - 1], 6);
    kv_stream_fini(&w.stream);
}

static void silent_engine_is_exact(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    kv_stream_begin(&w.stream, true);
    assert_int_equal(w.state, BT_STREAM_SYNCING);
    kv_stream_replay_end(&w.stream);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    live(&w, 0);
    check_applied(&w, 0, 0);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    kv_stream_fini(&w.stream);
}

static void held_batches_are_bounded(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 2);
    for (uint64_t i = 3; i < KV_STREAM_BUFFER_MAX + 100; i++)
        live(&w, i);
    assert_int_equal(w.stream.held_count, KV_STREAM_BUFFER_MAX);
    assert_true(w.stream.counts.dropped > 0);
    replay(&w, 0, KV_STREAM_BUFFER_MAX + 99);
    kv_stream_replay_end(&w.stream);
    check_applied(&w, 0, KV_STREAM_BUFFER_MAX + 99);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    kv_stream_fini(&w.stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_is_read_back),
        cmocka_unit_test(first_contact_late),
        cmocka_unit_test(no_replay_socket),
        cmocka_unit_test(hole_older_than_the_buffer),
        cmocka_unit_test(duplicate_is_dropped),
        cmocka_unit_test(restart_is_noticed_by_its_numbers),
        cmocka_unit_test(restart_is_noticed_by_the_overlap),
        cmocka_unit_test(holes_in_the_dump),
        cmocka_unit_test(a_hole_in_every_dump_is_named),
        cmocka_unit_test(a_hole_without_live_batches_is_named),
        cmocka_unit_test(silence_gives_up),
        cmocka_unit_test(silent_engine_is_exact),
        cmocka_unit_test(held_batches_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
