/* Sequence rules of an event stream: dumps that lose batches (engine-wire.md
 * 1.9), limits and deadlines, ranks on one socket, warm restarts. */
#include "kv_stream_world.h"

/* ---- lossy dumps ---- */

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
    end(&w);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    assert_int_equal(w.asked_from, 9); /* 10 is missing, 9 proves */
    replay(&w, 9, 20);
    end(&w);
    check_applied(&w, 0, 20);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* 10,000 batches of 20 KB: a third comes each time (1.9), without an end
 * mark; converges by silence. */
static void a_dump_that_loses_most_converges(void **state)
{
    static struct world w;
    int rounds = 0;

    (void)state;
    start(&w, true);
    live(&w, 10000);
    while (w.state == BT_STREAM_SYNCING && rounds++ < 40) {
        uint64_t from = w.asked_from, take = (10001 - from) * 35 / 100 + 1;

        replay(&w, from, from + take);
        replay(&w, from + take + 7, 10000);
        if (w.state == BT_STREAM_SYNCING)
            pass(&w);
    }
    check_applied(&w, 0, 10000);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_true(rounds > 3);
    stop(&w);
}

/* The dump never brings what is missing, and the engine falls silent: what was
 * missed stays known. */
static void a_hole_in_every_dump_is_named(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 10);
    live(&w, 20);
    replay(&w, 10, 10);
    replay(&w, 12, 20);
    for (int i = 0; i < 2 * KV_STREAM_ATTEMPTS && w.stream.phase == KV_ASKED;
         i++) {
        end(&w);
        replay(&w, 10, 10);
        replay(&w, 12, 20); /* 11 is lost on its way each time */
    }
    assert_int_equal(w.stream.phase, KV_COOLING);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
    assert_int_equal(w.applied[w.applied_count - 1], 20);
    assert_int_equal(w.counts.replays_failed, 1);
    stop(&w);
}

/* The same after the worker came back, with nothing held. */
static void a_hole_without_live_batches_is_named(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    for (int i = 0; i < 2 * KV_STREAM_ATTEMPTS && w.stream.phase == KV_ASKED;
         i++) {
        replay(&w, i == 0 ? 0 : 3, 3);
        replay(&w, 5, 9);
        end(&w);
    }
    assert_int_equal(w.stream.phase, KV_COOLING);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
    stop(&w);
}

static void a_missing_end_mark_is_no_failure(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 5);
    replay(&w, 0, 4);
    pass(&w); /* the silence; 5 was held and meets the dump */
    check_applied(&w, 0, 5);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
    /* With nothing held the range is asked for again, until only the overlap
     * comes. */
    start(&w, true);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    replay(&w, 0, 4);
    pass(&w);
    assert_int_equal(w.asked_from, 4);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++) {
        replay(&w, 4, 4);
        pass(&w);
    }
    check_applied(&w, 0, 4);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(w.counts.replays_failed, 0);
    stop(&w);
}

/* ---- limits ---- */

static void silence_gives_up(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 5);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        pass(&w);
    assert_int_equal(w.asks, KV_STREAM_ATTEMPTS);
    assert_int_equal(w.now_ns, SECOND + 2 * SECOND * KV_STREAM_ATTEMPTS);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
    assert_int_equal(w.applied[w.applied_count - 1], 5);
    assert_int_equal(w.counts.replays_failed, 1);
    live(&w, 6); /* goes on */
    assert_int_equal(w.applied[w.applied_count - 1], 6);
    assert_int_equal(w.degradeds, 1);
    live(&w, 8); /* a further gap waits for the cool-down */
    assert_int_equal(w.asks, KV_STREAM_ATTEMPTS);
    assert_int_equal(w.degradeds, 2);
    stop(&w);
}

/* After the cool-down all is read anew: believed until the first answer, live
 * batches applied meanwhile, exact when the buffer reaches back to 0. */
static void cool_down_then_a_new_try(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 5);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        pass(&w);
    pass(&w);
    assert_int_equal(w.now_ns, SECOND + 6 * SECOND + 30 * SECOND);
    assert_int_equal(w.asked_from, 0);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
    live(&w, 6);
    assert_int_equal(w.applied[w.applied_count - 1], 6);
    assert_int_equal(w.forgets, 0);
    replay(&w, 0, 6);
    assert_int_equal(w.forgets, 1);
    live(&w, 7);
    end(&w);
    check_applied(&w, 0, 7);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

static void cool_down_again_and_again(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 5);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
            pass(&w);
        is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
        assert_int_equal(w.counts.replays_failed, round + 1);
        pass(&w); /* the cool-down */
    }
    assert_int_equal(w.forgets, 0);
    /* Its buffer begins later: nothing invented, blocks missing. */
    replay(&w, 3, 5);
    end(&w);
    check_applied(&w, 3, 5);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    stop(&w);
}

/* No answer at first contact: partial, until a later try. */
static void first_contact_unanswered(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 7);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        pass(&w);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    check_applied(&w, 7, 7);
    pass(&w);
    replay(&w, 0, 7);
    end(&w);
    check_applied(&w, 0, 7);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* Progress each time, but for ever: the whole replay has its own limit. */
static void the_whole_replay_has_a_deadline(void **state)
{
    static struct world w;
    uint64_t at = 0;

    (void)state;
    start(&w, true);
    live(&w, 20000);
    while (w.stream.phase == KV_ASKED) {
        replay(&w, at, at);
        at++;
        w.now_ns += SECOND;
        kv_stream_tick(&w.stream, w.now_ns);
        assert_true(at < 1000);
    }
    assert_int_equal(w.now_ns, SECOND + 120 * SECOND);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
    stop(&w);
}

static void waits_for_a_slot(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    w.refuse = true;
    live(&w, 0);
    live(&w, 5);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    assert_int_equal(w.asks, 0);
    assert_int_equal(kv_stream_deadline(&w.stream), 0);
    w.now_ns += 1000 * SECOND;
    kv_stream_granted(&w.stream, w.now_ns);
    assert_int_equal(w.asks, 1);
    assert_int_equal(kv_stream_deadline(&w.stream), w.now_ns + 2 * SECOND);
    replay(&w, 0, 5);
    end(&w);
    check_applied(&w, 0, 5);
    kv_stream_granted(&w.stream, w.now_ns); /* not wanted: nothing */
    assert_int_equal(w.asks, 1);
    stop(&w);
}

static void held_batches_are_bounded(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    lives(&w, 2, HELD + 99);
    assert_int_equal(w.stream.held_count, HELD);
    assert_int_equal(w.counts.held_dropped, 98 - 0);
    replay(&w, 0, HELD + 99);
    end(&w);
    check_applied(&w, 0, HELD + 99);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* What was dropped is asked for once more after the dump. */
static void what_was_dropped_is_asked_for_again(void **state)
{
    static struct world w;

    (void)state;
    start_with(&w, true, 4, 1 << 20, 1 << 30);
    live(&w, 0);
    lives(&w, 2, 9); /* 2 to 5 fit */
    assert_int_equal(w.counts.held_dropped, 4);
    replay(&w, 0, 1); /* the dump was made before the rest */
    end(&w);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    assert_int_equal(w.asked_from, 5);
    replay(&w, 5, 9);
    end(&w);
    check_applied(&w, 0, 9);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

static void a_full_buffer_is_named(void **state)
{
    static struct world w;

    (void)state;
    start_with(&w, true, 4, 1 << 20, 1 << 30);
    live(&w, 0);
    lives(&w, 2, 9);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        pass(&w);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_BUFFER_FULL);
    assert_int_equal(w.stream.next, 10);
    live(&w, 10);
    assert_int_equal(w.applied[w.applied_count - 1], 10);
    stop(&w);
}

static void held_bytes_are_bounded(void **state)
{
    static struct world w;
    struct kv_budget *budget = &w.budget;

    (void)state;
    start_with(&w, true, HELD, 300, 1 << 30);
    live(&w, 0);
    lives(&w, 2, 100);
    assert_true(w.stream.held_bytes <= 300 && w.stream.held_bytes > 200);
    assert_true(w.counts.held_dropped > 80);
    stop(&w);
    /* And by what all streams share. */
    start_with(&w, true, HELD, 1 << 20, 300);
    budget->used = 200;
    live(&w, 0);
    lives(&w, 2, 100);
    assert_true(budget->used <= 300 && budget->used > 240);
    budget->used -= 200;
    stop(&w);
}

/* ---- other ends ---- */

static void silent_engine_is_exact(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_FIRST_CONTACT);
    end(&w);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    live(&w, 0);
    check_applied(&w, 0, 0);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

static void resync_reads_all_anew(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 30);
    assert_int_equal(kv_stream_resync(&w.stream, w.now_ns), BT_OK);
    assert_int_equal(w.asked_from, 0);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START); /* until it answers */
    replay(&w, 0, 0);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_FIRST_CONTACT);
    replay(&w, 1, 30);
    end(&w);
    check_applied(&w, 0, 30);
    assert_int_equal(w.forgets, 1);
    stop(&w);
    start(&w, false);
    assert_int_equal(kv_stream_resync(&w.stream, w.now_ns), BT_INVALID);
    stop(&w);
}

static void probe_proves_that_nothing_was_missed(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    assert_false(kv_stream_probe(&w.stream, w.now_ns, BT_CAUSE_BUSY_SILENT));
    lives(&w, 0, 9);
    assert_true(kv_stream_probe(&w.stream, w.now_ns, BT_CAUSE_BUSY_SILENT));
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_BUSY_SILENT);
    replay(&w, 9, 12); /* the live socket had died */
    end(&w);
    check_applied(&w, 0, 12);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

static void damage_is_a_hole(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 9);
    kv_stream_damaged(&w.stream, BT_CAUSE_DECODE_ERRORS);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_DECODE_ERRORS);
    w.clears = true;
    live(&w, 10);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    stop(&w);
}

/* ---- several ranks on one socket (field failure C13) ---- */

static void from_rank(struct world *w, int64_t label, uint64_t seq)
{
    w->label = label;
    w->life = (unsigned int)label;
    w->clock_s =
        1000. - (double)label * 10000. + (double)seq + (double)label * 0.1;
    live(w, seq);
    w->life = 0;
}

static void ranks_on_one_socket_are_noticed(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    for (uint64_t seq = 0; seq < 20; seq++)
        for (int64_t rank = 0; rank < 4; rank++)
            from_rank(&w, rank, seq);
    assert_true(w.stream.mixed);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_RANKS_MIXED);
    /* The lowest is followed, nothing of the others is believed. */
    for (size_t i = 0; i < w.applied_count; i++)
        assert_int_equal(w.applied_life[i], 0);
    assert_true(w.applied_count > 10);
    assert_true(w.counts.rank_mismatches > 30);
    /* Another process: it may be right again. */
    kv_stream_alive(&w.stream, w.now_ns, true, 0);
    assert_false(w.stream.mixed);
    stop(&w);
}

static void ranks_without_labels_are_not_believed(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    for (uint64_t seq = 0; seq < 20; seq++)
        for (unsigned int rank = 0; rank < 4; rank++) {
            w.life = rank;
            w.clock_s = 1000. - rank * 10000. + (double)seq + rank * 0.1;
            live(&w, seq);
        }
    is(&w, BT_STREAM_ABSENT, BT_CAUSE_RANKS_MIXED);
    assert_int_equal(w.applied_count, 0);
    assert_true(w.counts.sequence_errors > 50);
    w.now_ns += 31 * SECOND;
    w.life = 9;
    w.clock_s = 1000.;
    live(&w, 0);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    stop(&w);
}

/* ---- warm restart ---- */

static void resume_of_the_same_process(void **state)
{
    static struct world w;
    struct bt_stream_mark mark;

    (void)state;
    start(&w, true);
    lives(&w, 0, 100);
    kv_stream_mark(&w.stream, &mark);
    stop(&w);
    assert_int_equal(mark.next, 101);
    assert_int_equal(mark.recent_count, BT_STREAM_RECENT);
    assert_int_equal(mark.recent[BT_STREAM_RECENT - 1].seq, 100);
    start(&w, true);
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    assert_int_equal(w.asked_from, 100);
    live(&w, 104);
    replay(&w, 100, 104);
    end(&w);
    check_applied(&w, 101, 104);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_RESUMED);
    assert_int_equal(w.forgets, 0);
    stop(&w);
}

static void resume_of_another_process(void **state)
{
    static struct world w;
    struct bt_stream_mark mark;

    (void)state;
    start(&w, true);
    lives(&w, 0, 100);
    kv_stream_mark(&w.stream, &mark);
    stop(&w);
    start(&w, true);
    w.life = 1;
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    replay(&w, 100, 100);
    assert_int_equal(w.forgets, 1);
    replay(&w, 0, 100);
    end(&w);
    check_applied(&w, 0, 100);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
    /* Nobody answers: not proved, forgotten. */
    start(&w, true);
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        pass(&w);
    assert_int_equal(w.forgets, 1);
    is(&w, BT_STREAM_ABSENT, BT_CAUSE_REPLAY_FAILED);
    stop(&w);
}

static void resume_without_a_replay_socket(void **state)
{
    static struct world w;
    struct bt_stream_mark mark;

    (void)state;
    start(&w, false);
    lives(&w, 0, 100);
    kv_stream_mark(&w.stream, &mark);
    stop(&w);
    /* The process is vouched for. */
    start(&w, false);
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_RESUMED);
    live(&w, 101);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_RESUMED);
    live(&w, 103);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    stop(&w);
    /* It is not, but a batch that we had comes again. */
    start(&w, false);
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    live(&w, 100);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_RESUMED);
    stop(&w);
    /* Neither: forgotten. */
    start(&w, false);
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    live(&w, 101);
    assert_int_equal(w.forgets, 1);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    stop(&w);
}

static void resume_of_a_hole(void **state)
{
    static struct world w;
    struct bt_stream_mark mark;

    (void)state;
    start(&w, false);
    live(&w, 0);
    live(&w, 5);
    kv_stream_mark(&w.stream, &mark);
    stop(&w);
    start(&w, true);
    kv_stream_resume(&w.stream, w.now_ns, &mark);
    replay(&w, 5, 6);
    end(&w);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holes_in_the_dump),
        cmocka_unit_test(a_dump_that_loses_most_converges),
        cmocka_unit_test(a_hole_in_every_dump_is_named),
        cmocka_unit_test(a_hole_without_live_batches_is_named),
        cmocka_unit_test(a_missing_end_mark_is_no_failure),
        cmocka_unit_test(silence_gives_up),
        cmocka_unit_test(cool_down_then_a_new_try),
        cmocka_unit_test(cool_down_again_and_again),
        cmocka_unit_test(first_contact_unanswered),
        cmocka_unit_test(the_whole_replay_has_a_deadline),
        cmocka_unit_test(waits_for_a_slot),
        cmocka_unit_test(held_batches_are_bounded),
        cmocka_unit_test(what_was_dropped_is_asked_for_again),
        cmocka_unit_test(a_full_buffer_is_named),
        cmocka_unit_test(held_bytes_are_bounded),
        cmocka_unit_test(silent_engine_is_exact),
        cmocka_unit_test(resync_reads_all_anew),
        cmocka_unit_test(probe_proves_that_nothing_was_missed),
        cmocka_unit_test(damage_is_a_hole),
        cmocka_unit_test(ranks_on_one_socket_are_noticed),
        cmocka_unit_test(ranks_without_labels_are_not_believed),
        cmocka_unit_test(resume_of_the_same_process),
        cmocka_unit_test(resume_of_another_process),
        cmocka_unit_test(resume_without_a_replay_socket),
        cmocka_unit_test(resume_of_a_hole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
