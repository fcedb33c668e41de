/* Sequence rules of an event stream against the table of engine-wire.md 1.8:
 * gaps, repeats, restarts, doubt. */
#include "kv_stream_world.h"

/* ---- gaps and replays ---- */

/* Field failure C01. */
static void gap_is_read_back(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 42);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    live(&w, 45);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    assert_int_equal(w.asked_from, 42); /* one batch of overlap */
    live(&w, 46);
    assert_int_equal(w.applied_count, 43); /* nothing early */
    replay(&w, 42, 45);
    end(&w);
    check_applied(&w, 0, 46);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(w.counts.gaps, 1);
    assert_int_equal(w.counts.missing, 2);
    assert_int_equal(w.counts.replays_complete, 1);
    assert_int_equal(w.forgets, 0); /* C02: nothing is dropped for it */
    assert_int_equal(w.dones, 1);
    stop(&w);
}

static void first_contact_late(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 7);
    assert_int_equal(w.asked_from, 0);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_FIRST_CONTACT);
    replay(&w, 0, 7);
    end(&w);
    check_applied(&w, 0, 7);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

static void first_contact_beyond_the_buffer(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 12000);
    replay(&w, 2000, 12000);
    end(&w);
    check_applied(&w, 2000, 12000);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    stop(&w);
}

/* The dump begins at once with the hole's end: only misses, or stale? */
static void no_replay_socket(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    live(&w, 7);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    live(&w, 8);
    live(&w, 11);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    assert_int_equal(w.asks, 0);
    assert_int_equal(w.applied_count, 3);
    stop(&w);
}

/* Field failure C03: a hole of 12,000 with a buffer of 10,000. */
static void hole_older_than_the_buffer(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 12001);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 2002, 12001);
    end(&w);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_SHORT);
    assert_int_equal(w.applied_count, 1 + 10000);
    assert_int_equal(w.counts.replays_partial, 1);
    live(&w, 12002);
    assert_int_equal(w.applied[w.applied_count - 1], 12002);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_SHORT);
    /* A gap that is filled does not make the old hole good. */
    live(&w, 12004);
    replay(&w, 12002, 12004);
    end(&w);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_SHORT);
    w.clears = true;
    live(&w, 12005);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    stop(&w);
}

static void clear_ends_a_hole_of_late_joining(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    live(&w, 7);
    w.clears = true;
    live(&w, 8);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    stop(&w);
}

static void hole_ages_out(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    kv_stream_alive(&w.stream, w.now_ns, false, 100);
    live(&w, 0);
    live(&w, 2);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    w.stores = 9;
    lives(&w, 3, 13);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY); /* 99 of 100 */
    w.stores = 1;
    live(&w, 14);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_AGED_OUT);
    stop(&w);
}

/* A second hole starts the count again; with an unknown capacity it never
 * ends. */
static void ageing_counts_from_the_last_hole(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    kv_stream_alive(&w.stream, w.now_ns, false, 100);
    live(&w, 0);
    w.stores = 60;
    live(&w, 2);
    assert_int_equal(w.degradeds, 1);
    live(&w, 4);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    assert_int_equal(w.degradeds, 2);
    live(&w, 5);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_AGED_OUT);
    assert_int_equal(w.degradeds, 2);
    stop(&w);
    start(&w, false);
    w.stores = 1000;
    live(&w, 0);
    lives(&w, 2, 100);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    stop(&w);
}

/* ---- repeats and restarts ---- */

static void duplicate_is_dropped(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 4);
    live(&w, 3);
    check_applied(&w, 0, 4);
    assert_int_equal(w.counts.duplicates, 1);
    assert_int_equal(w.forgets, 0);
    /* Also one that is older than what we remember, by its time. */
    lives(&w, 5, 200);
    live(&w, 3);
    live(&w, 0);
    assert_int_equal(w.counts.duplicates, 3);
    assert_int_equal(w.forgets, 0);
    stop(&w);
}

/* The dump overtakes the live socket: what it has brought comes again. */
static void late_replay_after_live(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    live(&w, 0);
    live(&w, 2);
    replay(&w, 0, 300); /* all this is still on its way live */
    lives(&w, 3, 250);
    end(&w);
    lives(&w, 251, 301);
    check_applied(&w, 0, 301);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(w.forgets, 0);
    /* And replies that come when nobody waits any more are left alone. */
    replay(&w, 100, 400);
    end(&w);
    check_applied(&w, 0, 301);
    stop(&w);
}

static void restart_is_noticed_by_its_numbers(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 4);
    w.life = 1;
    live(&w, 0);
    assert_int_equal(w.forgets, 1);
    check_applied(&w, 0, 0);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    assert_int_equal(w.counts.resets, 1);
    stop(&w);
}

/* Its first batches were missed: seq > 0, not remembered, but newer. */
static void restart_is_noticed_by_its_time(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 200);
    w.life = 1;
    live(&w, 50);
    assert_int_equal(w.forgets, 1);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RESTART);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 50);
    end(&w);
    check_applied(&w, 0, 50);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* The engine restarted and has already passed our number: only the overlap
 * batch tells. */
static void restart_is_noticed_by_the_overlap(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 4);
    w.life = 1;
    live(&w, 9);
    assert_int_equal(w.asked_from, 4);
    replay(&w, 4, 4);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 9);
    end(&w);
    check_applied(&w, 0, 9);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* The buffer begins after our number, with a time before it: another life,
 * whose clock is behind. */
static void restart_is_noticed_by_a_time_before(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    w.life = 5;
    lives(&w, 0, 4);
    live(&w, 9);
    w.life = 2;
    replay(&w, 6, 6);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 6, 12);
    end(&w);
    check_applied(&w, 6, 12);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    stop(&w);
}

/* Without a replay, in a live gap. */
static void live_gap_with_a_time_before_is_a_restart(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    w.life = 5;
    lives(&w, 0, 4);
    w.life = 2;
    live(&w, 9);
    assert_int_equal(w.forgets, 1);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    stop(&w);
}

static void restart_during_a_replay(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 100);
    lives(&w, 110, 120); /* held */
    w.life = 1;
    live(&w, 3);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    assert_int_equal(w.stream.held_count, 1); /* the old life's are gone */
    replay(&w, 0, 3);
    end(&w);
    check_applied(&w, 0, 3);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(w.wants, w.dones);
    stop(&w);
}

static void other_incarnation_clears_at_once(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 100);
    kv_stream_alive(&w.stream, w.now_ns, true, 0);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.applied_count, 0);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RESTART);
    /* Field failure C05: still queued of the old life. */
    lives(&w, 101, 110);
    w.life = 1;
    replay(&w, 0, 2);
    end(&w);
    live(&w, 3);
    check_applied(&w, 0, 3);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
    start(&w, false);
    lives(&w, 0, 100);
    kv_stream_alive(&w.stream, w.now_ns, true, 0);
    is(&w, BT_STREAM_ABSENT, BT_CAUSE_SILENT);
    lives(&w, 90, 100); /* what we had cannot come back */
    assert_int_equal(w.applied_count, 0);
    w.life = 1;
    lives(&w, 0, 1);
    check_applied(&w, 0, 1);
    stop(&w);
}

/* The new life is heard before its dump has ended, behind old batches. */
static void other_incarnation_is_heard_behind_the_old(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 100);
    kv_stream_alive(&w.stream, w.now_ns, true, 0);
    lives(&w, 101, 110);
    w.life = 1;
    replay(&w, 0, 2);
    live(&w, 3);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 3);
    end(&w);
    check_applied(&w, 0, 3);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* ---- doubt ---- */

static void reconnect_asks_for_proof(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 10);
    kv_stream_lost(&w.stream);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    assert_int_equal(w.asked_from, 10);
    replay(&w, 10, 10);
    end(&w);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(w.forgets, 0);
    check_applied(&w, 0, 10);
    /* Alive again without having been lost: nothing to prove. */
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    assert_int_equal(w.asks, 1);
    stop(&w);
}

static void reconnect_to_another_batch_is_a_restart(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 10);
    kv_stream_lost(&w.stream);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    w.life = 1;
    replay(&w, 10, 10);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 12);
    end(&w);
    check_applied(&w, 0, 12);
    stop(&w);
}

/* It has not even as many: an end mark, and no batch. */
static void reconnect_to_nothing_is_a_restart(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 10);
    kv_stream_lost(&w.stream);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    w.life = 1;
    end(&w);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 2);
    end(&w);
    check_applied(&w, 0, 2);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    stop(&w);
}

/* Its host's clock was set back, or was wrong before: what it says looks like
 * the end of the life before, but is heard in the end. */
static void life_with_a_clock_behind(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    lives(&w, 0, 5);
    kv_stream_alive(&w.stream, w.now_ns, true, 0);
    w.clock_s = 500.;
    live(&w, 3);
    w.now_ns += KV_STREAM_STALE_NS - 1;
    live(&w, 4);
    is(&w, BT_STREAM_ABSENT, BT_CAUSE_SILENT);
    assert_int_equal(w.counts.duplicates, 2);
    w.now_ns++;
    live(&w, 5);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    check_applied(&w, 5, 5);
    /* The time is counted anew for the next life. */
    kv_stream_alive(&w.stream, w.now_ns, true, 0);
    w.clock_s = 400.;
    live(&w, 3);
    is(&w, BT_STREAM_ABSENT, BT_CAUSE_SILENT);
    stop(&w);
}

/* Its buffer begins later: nothing proves that it is the same. */
static void reconnect_without_proof_is_a_restart(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 10);
    kv_stream_lost(&w.stream);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    replay(&w, 500, 510);
    assert_int_equal(w.forgets, 1);
    replay(&w, 500, 510);
    end(&w);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    stop(&w);
}

static void silent_proof_degrades(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 10);
    kv_stream_lost(&w.stream);
    kv_stream_alive(&w.stream, w.now_ns, false, 0);
    for (int i = 0; i < KV_STREAM_ATTEMPTS; i++)
        pass(&w);
    is(&w, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_FAILED);
    stop(&w);
}

/* ---- the connection ---- */

static void cut_is_proved_by_a_replay(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 9);
    kv_stream_cut(&w.stream);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    kv_stream_alive(&w.stream, w.now_ns, false, 100); /* nobody to ask */
    assert_int_equal(w.asks, 0);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    kv_stream_connected(&w.stream, w.now_ns);
    assert_int_equal(w.asked_from, 9);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    replay(&w, 9, 12); /* it went on meanwhile */
    end(&w);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    check_applied(&w, 0, 12);
    assert_int_equal(w.forgets, 0);

    kv_stream_cut(&w.stream);
    w.life++;
    kv_stream_connected(&w.stream, w.now_ns);
    replay(&w, 12, 12);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 12);
    end(&w);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    check_applied(&w, 0, 12);
    stop(&w);
}

/* A gap's replay that the break ended: what it held comes again. */
static void cut_in_a_replay(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 4);
    live(&w, 8);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    kv_stream_cut(&w.stream);
    assert_int_equal(w.dones, 1);
    assert_int_equal(w.budget.used, 0);
    kv_stream_connected(&w.stream, w.now_ns);
    assert_int_equal(w.asked_from, 4);
    replay(&w, 4, 8);
    end(&w);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    check_applied(&w, 0, 8);
    stop(&w);
}

/* A hole cannot be filled in order: all is read anew. */
static void cut_with_a_hole_reads_all(void **state)
{
    static struct world w;

    (void)state;
    start(&w, true);
    lives(&w, 0, 4);
    kv_stream_damaged(&w.stream, BT_CAUSE_GAP);
    kv_stream_cut(&w.stream);
    kv_stream_connected(&w.stream, w.now_ns);
    assert_int_equal(w.forgets, 1);
    assert_int_equal(w.asked_from, 0);
    replay(&w, 0, 4);
    end(&w);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    check_applied(&w, 0, 4);
    stop(&w);
}

static void cut_without_replay_goes_on_or_not(void **state)
{
    static struct world w;

    (void)state;
    start(&w, false);
    lives(&w, 0, 9);
    kv_stream_cut(&w.stream);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    kv_stream_connected(&w.stream, w.now_ns);
    is(&w, BT_STREAM_SYNCING, BT_CAUSE_RECONNECT);
    assert_int_equal(w.forgets, 0);
    live(&w, 10);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    check_applied(&w, 0, 10);

    kv_stream_cut(&w.stream); /* something was lost, or it is another */
    kv_stream_connected(&w.stream, w.now_ns);
    live(&w, 12);
    is(&w, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    assert_int_equal(w.forgets, 1);
    check_applied(&w, 12, 12);

    kv_stream_cut(&w.stream);
    w.life++;
    kv_stream_connected(&w.stream, w.now_ns);
    lives(&w, 0, 1);
    is(&w, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    assert_int_equal(w.forgets, 2);
    check_applied(&w, 0, 1);
    stop(&w);
}

static void gone_is_forgotten(void **state)
{
    static struct world w;

    (void)state;
    for (int with = 0; with < 2; with++) {
        start(&w, with != 0);
        lives(&w, 0, 9);
        kv_stream_cut(&w.stream);
        kv_stream_gone(&w.stream);
        is(&w, BT_STREAM_ABSENT, BT_CAUSE_SILENT);
        assert_int_equal(w.forgets, 1);
        assert_int_equal(w.applied_count, 0);
        kv_stream_connected(&w.stream, w.now_ns);
        assert_int_equal(w.asks, with);
        assert_int_equal(w.asked_from, 0);
        if (with != 0) {
            replay(&w, 0, 9);
            end(&w);
            is(&w, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
        }
        stop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_is_read_back),
        cmocka_unit_test(first_contact_late),
        cmocka_unit_test(first_contact_beyond_the_buffer),
        cmocka_unit_test(no_replay_socket),
        cmocka_unit_test(hole_older_than_the_buffer),
        cmocka_unit_test(clear_ends_a_hole_of_late_joining),
        cmocka_unit_test(hole_ages_out),
        cmocka_unit_test(ageing_counts_from_the_last_hole),
        cmocka_unit_test(duplicate_is_dropped),
        cmocka_unit_test(late_replay_after_live),
        cmocka_unit_test(restart_is_noticed_by_its_numbers),
        cmocka_unit_test(restart_is_noticed_by_its_time),
        cmocka_unit_test(restart_is_noticed_by_the_overlap),
        cmocka_unit_test(restart_is_noticed_by_a_time_before),
        cmocka_unit_test(live_gap_with_a_time_before_is_a_restart),
        cmocka_unit_test(restart_during_a_replay),
        cmocka_unit_test(other_incarnation_clears_at_once),
        cmocka_unit_test(other_incarnation_is_heard_behind_the_old),
        cmocka_unit_test(reconnect_asks_for_proof),
        cmocka_unit_test(reconnect_to_another_batch_is_a_restart),
        cmocka_unit_test(reconnect_to_nothing_is_a_restart),
        cmocka_unit_test(life_with_a_clock_behind),
        cmocka_unit_test(reconnect_without_proof_is_a_restart),
        cmocka_unit_test(silent_proof_degrades),
        cmocka_unit_test(cut_is_proved_by_a_replay),
        cmocka_unit_test(cut_in_a_replay),
        cmocka_unit_test(cut_with_a_hole_reads_all),
        cmocka_unit_test(cut_without_replay_goes_on_or_not),
        cmocka_unit_test(gone_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
