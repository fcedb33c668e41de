/* Calls into the event plane from its own call-backs: each is done once, after
 * the call-back, and a chain of them needs no more stack than one. Sources that
 * come and go. Nobody answers them, and no network is waited for. */
#include "baton/orchestrator/event_plane.h"

#include <ev.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SOURCES 200u
/* Bytes; one level more per source would need more. */
#define STACK_MOST 8192u

struct world {
    struct ev_loop *loop;
    struct bt_event_plane *plane;
    unsigned int clears[SOURCES];
    uintptr_t lowest, highest; /* where the call-backs stood */
    unsigned int inside, deepest;
};

static enum bt_status on_store(void *arg, uint32_t source, uint32_t rank,
                               const struct bt_kv_store *store)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)store;
    return BT_OK;
}

static void on_remove(void *arg, uint32_t source, uint32_t rank,
                      const struct bt_ev_kv_remove *remove)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)remove;
}

/* What one source is told of makes the next one's process another. */
static void on_clear(void *arg, uint32_t source, uint32_t rank,
                     const struct bt_ev_kv_clear *clear)
{
    struct world *w = arg;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);

    (void)rank;
    (void)clear;
    w->lowest = here < w->lowest ? here : w->lowest;
    w->highest = here > w->highest ? here : w->highest;
    w->clears[source]++;
    w->inside++;
    w->deepest = w->inside > w->deepest ? w->inside : w->deepest;
    if (source + 1 < SOURCES)
        bt_event_plane_alive(w->plane, source + 1, 2, 0);
    w->inside--;
}

static void on_counting(void *arg, uint32_t source, uint32_t rank,
                        enum bt_kv_counting counting)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)counting;
}

static void on_state(void *arg, uint32_t source, uint32_t rank,
                     enum bt_stream_state state, enum bt_stream_cause cause)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)state;
    (void)cause;
}

static void on_size(void *arg, uint32_t source, uint32_t rank,
                    uint32_t block_tokens)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)block_tokens;
}

static uint64_t on_copies(void *arg, uint32_t source, uint32_t rank)
{
    (void)arg;
    (void)source;
    (void)rank;
    return 0;
}

static void start(struct world *w)
{
    const struct bt_event_sink sink = {on_store,    on_remove, on_clear,
                                       on_counting, on_state,  on_size,
                                       on_copies,   NULL,      w};
    struct bt_event_plane_config config;
    char error[160] = "";

    memset(w, 0, sizeof(*w));
    w->lowest = UINTPTR_MAX;
    w->loop = ev_loop_new(EVFLAG_AUTO);
    bt_event_plane_config_init(&config);
    config.bind = "tcp://127.0.0.1:*";
    config.sources_max = SOURCES;
    if (bt_event_plane_create(w->loop, &config, &sink, &w->plane, error,
                              sizeof(error)) != BT_OK)
        fail_msg("create: %s", error);
    for (uint32_t i = 0; i < SOURCES; i++) {
        char topic[32];
        const struct bt_event_source_config source = {
            .name = "engine", .topic = topic, .ranks = 1};

        snprintf(topic, sizeof(topic), "kv@%u@", i);
        if (bt_event_plane_add(w->plane, i, &source, error, sizeof(error)) !=
            BT_OK)
            fail_msg("add %u: %s", i, error);
        bt_event_plane_alive(w->plane, i, 1, 0);
    }
}

static void chain_of_calls_from_call_backs(void **state)
{
    static struct world w;

    (void)state;
    start(&w);
    assert_int_equal(w.clears[0], 0);
    bt_event_plane_alive(w.plane, 0, 2, 0);
    for (uint32_t i = 0; i < SOURCES; i++)
        if (w.clears[i] != 1)
            fail_msg("source %u was cleared %u times", i, w.clears[i]);
    assert_int_equal(w.deepest, 1);
    assert_in_range(w.highest - w.lowest, 0, STACK_MOST);
    bt_event_plane_destroy(w.plane);
    ev_loop_destroy(w.loop);
}

/* At once, as a warm restart does: nothing of the former may be in its way. */
static void removed_and_added_again(void **state)
{
    static struct world w;
    const struct bt_event_source_config source = {
        .name = "engine", .events = "tcp://127.0.0.1:1", .ranks = 4};
    char error[160] = "";

    (void)state;
    start(&w);
    for (int i = 0; i < 50; i++) {
        bt_event_plane_remove(w.plane, 0);
        if (bt_event_plane_add(w.plane, 0, &source, error, sizeof(error)) !=
            BT_OK)
            fail_msg("add %d: %s", i, error);
    }
    bt_event_plane_destroy(w.plane);
    ev_loop_destroy(w.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain_of_calls_from_call_backs),
        cmocka_unit_test(removed_and_added_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
