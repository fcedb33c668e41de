/* What every fabric that reaches other processes must do when the other side
 * is killed, stops, or comes back: it is noticed within heartbeats, ends what
 * it must and nothing else, and nothing lands afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 4096u
#define SMALL  1024u
#define LARGE  (16u << 10) /* BLOCKS of them: 64 MiB, many gets at once */

static void spawned(struct bed *bed, void **state)
{
    bed_need_spawn(state);
    bed_open_case(bed, state, BLOCKS, SMALL);
    bed_spawn(bed, 0);
    bed_sink(bed);
}

static void test_killed_in_the_middle(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end;
    int tick;

    bed_line(line, BLOCKS);
    spawned(&bed, state);
    bed_slow(&bed, BED_SLOW, 0);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until_landed(&bed, 0);
    bed_kill(&bed, SIGKILL);
    tick = bed.ticks;
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_PEER_DEAD);
    print_message("kill in flight: %d heartbeats\n", end.at_tick - tick);
    assert_true(end.at_tick - tick <= 40);
    bed_close(&bed);
}

static void test_killed_idle_and_back(void **state)
{
    const uint32_t one = 1;
    struct bed bed;
    struct bed_end end;
    uint16_t port;

    spawned(&bed, state);
    port = bed.port;
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    bed_kill(&bed, SIGKILL);
    bed_until(&bed, &bed.ticks, bed.ticks + 8);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_REFUSED);
    bed_spawn(&bed, port);
    assert_int_equal(bed.port, port);
    memset(bed.to, 0, SMALL);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    bed_same(&bed, bed.to, &one, &(const uint32_t){0}, 1);
    /* killed and back between two pulls, nothing in between */
    bed_kill(&bed, SIGKILL);
    bed_spawn(&bed, port);
    if (bed_pull_one(&bed, "ok", 1, &end) != BT_OK)
        assert_int_equal(end.end.status, BT_PEER_DEAD);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    bed_close(&bed);
}

/* The source was stopped: a heartbeat says so, or its device has answered all
 * the same and every byte is right. True: the former. */
static bool died_or_all_there(void **state, struct bed *bed,
                              const struct bed_end *end, const uint32_t *line)
{
    const struct bed_case *c = *state;

    if (c->fabric->one_sided && end->end.status == BT_OK) {
        bed_same(bed, bed->to, line, line, BLOCKS);
        bed_until(bed, &bed->downs, 1); /* the silence is noticed later */
        assert_int_equal(bed->last_rail.status, BT_PEER_DEAD);
        return false;
    }
    assert_int_equal(end->end.status, BT_PEER_DEAD);
    return true;
}

static void test_stopped_in_the_middle(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end;
    int tick;

    bed_line(line, BLOCKS);
    spawned(&bed, state);
    bed_slow(&bed, BED_SLOW, 0);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until_landed(&bed, 0);
    bed_kill(&bed, SIGSTOP);
    tick = bed.ticks;
    bed_until(&bed, &end.calls, 1);
    if (died_or_all_there(state, &bed, &end, line)) {
        print_message("stop in flight: %d heartbeats\n", end.at_tick - tick);
        assert_true(end.at_tick - tick >= 4 && end.at_tick - tick <= 40);
    }
    bed_close(&bed);
}

/* Many gets out to a source that stops; it goes on later: too late. */
static void test_stopped_with_gets_out(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end;

    bed_line(line, BLOCKS);
    bed_need_spawn(state);
    bed_open_case(&bed, state, BLOCKS, LARGE);
    bed_spawn(&bed, 0);
    bed_sink(&bed);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed_until_landed(&bed, 0);
    bed_kill(&bed, SIGSTOP);
    bed_until(&bed, &end.calls, 1);
    (void)died_or_all_there(state, &bed, &end, line);
    bed_kill(&bed, SIGCONT);
    bed_nothing_lands(&bed);
    assert_int_equal(end.calls, 1);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK); /* reconnects */
    bed_close(&bed);
}

/* UCX 1.13.1 aborts a process that answers a get or put on an endpoint that
 * has failed: sinks that leave in the middle must not take the source along. */
static void test_sinks_leave_source_lives(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end;

    bed_line(line, BLOCKS);
    bed_need_spawn(state);
    bed_open_case(&bed, state, BLOCKS, LARGE);
    bed_spawn(&bed, 0);
    for (int i = 0; i < 10; i++) {
        bed_sink(&bed);
        memset(bed.to, 0, LARGE);
        assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS,
                                  BED_LONG_S, &end, NULL),
                         BT_OK);
        bed_until_landed(&bed, 0);
        if (i % 2 == 1)
            bed_kill(&bed, SIGSTOP);
        bt_fabric_destroy(bed.sink_fabric);
        assert_int_equal(end.end.status, BT_CANCELLED);
        bed_kill(&bed, SIGCONT);
    }
    bed_sink(&bed);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    bed_close(&bed);
}

static void test_stopped_before_the_deadline(void **state)
{
    static uint32_t line[BLOCKS];
    struct bed bed;
    struct bed_end end;

    bed_line(line, BLOCKS);
    spawned(&bed, state);
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    bed_kill(&bed, SIGSTOP);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, BLOCKS,
                              BED_HEARTBEAT_S * 2, &end, NULL),
                     BT_OK);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_TIMEOUT);
    assert_string_equal(end.detail, "GRANT");
    bed_close(&bed);
}

/* A stopped source accepts in its kernel but never greets. */
static void test_stopped_before_connecting(void **state)
{
    struct bed bed;
    struct bed_end end;

    spawned(&bed, state);
    bed_kill(&bed, SIGSTOP);
    assert_int_equal(bed_pull_one(&bed, "ok", 0, &end), BT_PEER_DEAD);
    assert_string_equal(end.peer, "");
    bed_close(&bed);
}

/* Two sources; one dies: the pull from the other goes on. */
static void test_one_of_two_dies(void **state)
{
    static uint32_t line[BLOCKS], upper[1000];
    struct bed bed;
    struct bed_end end, other;
    uint16_t mine;

    bed_line(line, BLOCKS);
    bed_need_spawn(state);
    bed_both(&bed, state, BLOCKS, SMALL);
    bed_slow(&bed, BED_SLOW, 0);
    for (uint32_t i = 0; i < 1000; i++)
        upper[i] = 3000 + i;
    mine = bed.port;
    bed_spawn(&bed, 0);
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, line, 3000,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    bed.port = mine;
    assert_int_equal(bed_pull(&bed, bed.sink, "ok", line, upper, 1000,
                              BED_LONG_S, &other, NULL),
                     BT_OK);
    bed_until_landed(&bed, 0);
    bed_kill(&bed, SIGKILL);
    bed_until(&bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_PEER_DEAD);
    bed_until(&bed, &other.calls, 1);
    assert_int_equal(other.end.status, BT_OK);
    bed_same(&bed, bed.to, line, upper, 1000);
    bed_close(&bed);
}

#define T(name)                                                                \
    {                                                                          \
#name, name, NULL, NULL, NULL                                          \
    }
static const struct CMUnitTest suite[] = {
    T(test_killed_in_the_middle),      T(test_killed_idle_and_back),
    T(test_stopped_in_the_middle),     T(test_stopped_with_gets_out),
    T(test_sinks_leave_source_lives),  T(test_stopped_before_the_deadline),
    T(test_stopped_before_connecting), T(test_one_of_two_dies),
};

int main(int argc, char **argv)
{
    static const struct bed_variant variants[] = {{1, false}, {2, true}};

    return bed_main(argc, argv, suite, sizeof(suite) / sizeof(suite[0]),
                    variants, sizeof(variants) / sizeof(variants[0]));
}
