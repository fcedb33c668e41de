/* The event plane over real sockets, one rank: replays in either framing, bad
 * frames, restarts. Truth: the list of blocks that the publisher has stored,
 * against what the sink was told. */
#include "events_plane_rig.h"

/* ---- one rank ---- */

static void follows_from_the_start(void **state)
{
    struct bt_stream_info info;

    (void)state;
    one_engine(false);
    subscribed(&p[0], 0);
    for (int i = 0; i < 50; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count == 50);
    check_blocks(&p[0], 0, 0);
    assert_int_equal(w.ranks[0].state, BT_STREAM_EXACT);
    info_of(0, &info);
    assert_int_equal(info.next, 50);
    assert_int_equal(info.block_tokens, BLOCK);
    assert_true(info.ts == p[0].ts);
    assert_true(info.lag_s > 0.); /* its clock stands near 1970 */
    assert_int_equal(info.counts.stored_blocks, 50);
    stop_all();
}

/* Field failures C01, C02: only the hole is fetched, in order. */
static void gap_is_fetched(void **state)
{
    (void)state;
    for (int framing = FRAMING_OLD; framing <= FRAMING_NEW; framing++) {
        one_engine(true);
        p[0].framing = (enum framing)framing;
        subscribed(&p[0], 0);
        for (int i = 0; i < 43; i++)
            store(&p[0], false);
        UNTIL(w.ranks[0].count == 43);
        store(&p[0], true);
        store(&p[0], true);
        store(&p[0], false);
        UNTIL(w.ranks[0].count == 46);
        UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
        check_blocks(&p[0], 0, 0);
        assert_int_equal(p[0].asked, 1);
        assert_int_equal(w.ranks[0].clears, 0);
        assert_int_equal(w.ranks[0].cause, BT_CAUSE_REPLAYED);
        stop_all();
    }
}

static void dump_with_a_hole_and_without_its_end(void **state)
{
    (void)state;
    one_engine(true);
    p[0].no_end_mark = true;
    p[0].lose = 7;
    for (int i = 0; i < 20; i++)
        store(&p[0], true);
    subscribed(&p[0], 0);
    store(&p[0], false); /* first contact, late */
    UNTIL(w.ranks[0].count == 21);
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    check_blocks(&p[0], 0, 0);
    assert_true(p[0].asked >= 2);
    stop_all();
}

/* Field failure C03. */
static void buffer_that_begins_later(void **state)
{
    (void)state;
    one_engine(true);
    subscribed(&p[0], 0);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    for (int i = 0; i < 100; i++)
        store(&p[0], true);
    p[0].first = 50;
    store(&p[0], false);
    UNTIL(w.ranks[0].state == BT_STREAM_DEGRADED);
    assert_int_equal(w.ranks[0].cause, BT_CAUSE_REPLAY_SHORT);
    assert_int_equal(w.ranks[0].count, 1 + 52);
    stop_all();
}

static void replay_that_nobody_answers(void **state)
{
    void *router;

    (void)state;
    one_engine(true);
    router = p[0].router;
    p[0].router = NULL; /* bound, but silent */
    subscribed(&p[0], 0);
    store(&p[0], false);
    store(&p[0], true);
    store(&p[0], false);
    UNTIL(w.ranks[0].state == BT_STREAM_DEGRADED);
    assert_int_equal(w.ranks[0].cause, BT_CAUSE_REPLAY_FAILED);
    assert_int_equal(w.ranks[0].count, 2);
    p[0].router = router; /* it answers again; the cool-down passes */
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

static void restart_in_place(void **state)
{
    (void)state;
    one_engine(true);
    subscribed(&p[0], 0);
    for (int i = 0; i < 10; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count == 10);
    restart(&p[0]);
    for (int i = 0; i < 3; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count == 3);
    check_blocks(&p[0], 0, 0);
    assert_int_equal(w.ranks[0].clears, 1);
    /* Passed our number before we hear of it. */
    restart(&p[0]);
    for (int i = 0; i < 9; i++)
        store(&p[0], true);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 10 && w.ranks[0].state == BT_STREAM_EXACT);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

static void other_incarnation(void **state)
{
    (void)state;
    one_engine(true);
    subscribed(&p[0], 0);
    bt_event_plane_alive(w.plane, 0, 1, 100);
    for (int i = 0; i < 10; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count == 10 && w.ranks[0].state == BT_STREAM_EXACT);
    restart(&p[0]);
    bt_event_plane_lost(w.plane, 0);
    bt_event_plane_alive(w.plane, 0, 2, 100);
    assert_int_equal(w.ranks[0].count, 0); /* within the call */
    assert_int_equal(w.ranks[0].state, BT_STREAM_SYNCING);
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

/* A call from inside a call-back waits until that has returned. */
static void alive_from_inside(void **state)
{
    (void)state;
    one_engine(true);
    subscribed(&p[0], 0);
    bt_event_plane_alive(w.plane, 0, 1, 100);
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    for (int i = 0; i < 3; i++)
        store(&p[0], false);
    w.nested_alive = true;
    UNTIL(w.ranks[0].clears == 1);
    UNTIL(w.ranks[0].count == 3 && w.ranks[0].state == BT_STREAM_EXACT);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

/* Field failure C05: gone means gone, whatever is queued. */
static void removed_with_batches_queued(void **state)
{
    (void)state;
    one_engine(true);
    subscribed(&p[0], 0);
    for (int i = 0; i < 500; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count > 0);
    bt_event_plane_remove(w.plane, 0);
    memset(w.ranks, 0, sizeof(w.ranks));
    restart(&p[0]);
    add_source(0, p[0].endpoint, p[0].replay, NULL, 1);
    subscribed(&p[0], 0);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

/* Field failure C11, the frames: bad ones cost themselves only. */
static void bad_frames(void **state)
{
    static const unsigned char seq0[8];
    struct bt_stream_info info;
    uint64_t frames;

    (void)state;
    one_engine(false);
    subscribed(&p[0], 0);
    frames = frame_errors();
    send_frames(&p[0], seq0, 7, "x", 1);
    zmq_send(p[0].pub, "", 0, ZMQ_SNDMORE);
    zmq_send(p[0].pub, seq0, 8, 0);
    for (int i = 0; i < 9; i++)
        zmq_send(p[0].pub, "f", 1, i < 8 ? ZMQ_SNDMORE : 0);
    send_frames(&p[0], seq0, 8, "", 0);
    p[0].seq = 1;
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    info_of(0, &info);
    assert_int_equal(info.counts.sequence_errors, 1);
    assert_int_equal(info.counts.frame_errors - frames, 2);
    assert_int_equal(info.counts.batch_errors, 1);
    assert_int_equal(info.counts.batches, 2);
    stop_all();
}

/* Field failure C10: the events' size is found and refused loudly. */
static void other_block_size(void **state)
{
    struct bt_stream_info info;

    (void)state;
    one_engine(false);
    subscribed(&p[0], 0);
    for (int i = 0; i < 20; i++)
        store_sized(&p[0], false, 64, false, 0);
    store_sized(&p[0], false, 32, false, 0);
    UNTIL(w.ranks[0].sizes == 2);
    assert_int_equal(w.ranks[0].size, 32);
    assert_int_equal(w.ranks[0].count, 0);
    assert_int_equal(w.ranks[0].state, BT_STREAM_PARTIAL);
    assert_int_equal(w.ranks[0].cause, BT_CAUSE_BLOCK_SIZE);
    info_of(0, &info);
    assert_int_equal(info.counts.size_mismatches, 21);
    assert_int_equal(info.block_tokens, 32);
    stop_all();
}

static void stores_wait_for_their_parent(void **state)
{
    struct bt_stream_info info;

    (void)state;
    one_engine(false);
    subscribed(&p[0], 0);
    store(&p[0], true); /* the parent of the first that is heard */
    store_sized(&p[0], false, BLOCK, true, block_of(&p[0], 0));
    store_sized(&p[0], false, BLOCK, true, block_of(&p[0], 1));
    UNTIL((info_of(0, &info), info.parked == 2));
    assert_int_equal(w.ranks[0].count, 0);
    p[0].seq = 0;
    store_sized(&p[0], true, BLOCK, false, 0); /* bring block 0's hash ... */
    {
        static struct kv_wire wire;
        uint64_t hash = block_of(&p[0], 0);
        struct kv_wire_store s = {
            .hashes = &hash, .count = 1, .size = BLOCK, .group = -1};

        p[0].seq = 3; /* ... as the fourth batch */
        wire_begin(&wire, p[0].ts += 1.);
        wire_stored(&wire, &s);
        wire_end(&wire, -1);
        publish(&p[0], &wire, false);
    }
    UNTIL(w.ranks[0].count == 3);
    info_of(0, &info);
    assert_int_equal(info.parked, 0);
    assert_int_equal(info.counts.attached, 2);
    stop_all();
}

/* Works, and says nothing: the last batch is asked for; without a replay
 * socket what is believed may be stale. */
static void busy_and_silent(void **state)
{
    (void)state;
    one_engine(true);
    subscribed(&p[0], 0);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    store(&p[0], true); /* never heard: only the probe finds it */
    bt_event_plane_busy(w.plane, 0, 5);
    UNTIL(w.ranks[0].count == 2);
    assert_non_null(strstr(w.said, "kv_busy_silent"));
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    stop_all();
    one_engine(false);
    subscribed(&p[0], 0);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    bt_event_plane_busy(w.plane, 0, 5);
    UNTIL(w.ranks[0].state == BT_STREAM_DEGRADED);
    assert_int_equal(w.ranks[0].cause, BT_CAUSE_BUSY_SILENT);
    store(&p[0], false);
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    stop_all();
}

/* The clocks differ by decades, and that is no delay. */
static void late_and_whole(void **state)
{
    (void)state;
    one_engine(false);
    subscribed(&p[0], 0);
    p[0].ts += 100.;
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    p[0].ts -= 10.; /* stamped ten seconds before the last one */
    store(&p[0], false);
    UNTIL(w.ranks[0].state == BT_STREAM_DEGRADED);
    assert_int_equal(w.ranks[0].cause, BT_CAUSE_LATE);
    assert_int_equal(w.ranks[0].count, 2);
    p[0].ts += 10.;
    store(&p[0], false);
    UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
    assert_int_equal(w.ranks[0].clears, 0);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

static void warm_restart(void **state)
{
    struct bt_stream_mark mark;
    char error[160];
    struct bt_event_source_config c = {
        .name = "engine", .ranks = 1, .block_tokens = BLOCK};

    (void)state;
    one_engine(true);
    c.events = p[0].endpoint;
    c.replay = p[0].replay;
    subscribed(&p[0], 0);
    for (int i = 0; i < 5; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count == 5);
    assert_int_equal(bt_event_plane_mark(w.plane, 0, 0, &mark), BT_OK);
    for (int life = 0; life < 2; life++) {
        bt_event_plane_remove(w.plane, 0);
        memset(w.ranks, 0, sizeof(w.ranks));
        assert_int_equal(
            bt_event_plane_add(w.plane, 0, &c, error, sizeof(error)), BT_OK);
        assert_int_equal(bt_event_plane_resume(w.plane, 0, 0, &mark), BT_OK);
        assert_int_equal(bt_event_plane_resume(w.plane, 0, 0, &mark),
                         BT_INVALID);
        if (life == 0)
            store(&p[0], true);
        UNTIL(w.ranks[0].state == BT_STREAM_EXACT);
        if (life == 0) { /* the same process: only what is new */
            assert_int_equal(w.ranks[0].cause, BT_CAUSE_RESUMED);
            check_blocks(&p[0], 0, 5);
            restart(&p[0]);
            for (int i = 0; i < 8; i++)
                store(&p[0], true);
        } else { /* another: the marked entries are cleared */
            assert_int_equal(w.ranks[0].clears, 1);
            check_blocks(&p[0], 0, 0);
        }
    }
    stop_all();
}

/* ---- the connection ---- */

static bool was_said(const char *line)
{
    const char *at = strstr(w.said, line);

    return at != NULL && strstr(at + 1, line) == NULL;
}

static void die(struct publisher *pub)
{
    zmq_close(pub->pub);
    if (pub->router != NULL)
        zmq_close(pub->router);
    pub->pub = pub->router = NULL;
}

static bool is_bound(struct publisher *pub)
{
    return zmq_bind(pub->pub, pub->endpoint) == 0;
}

/* Its ports become free a moment after it has closed them. */
static void come_back(struct publisher *pub)
{
    int linger = 0;

    pub->pub = zmq_socket(pub->context, ZMQ_PUB);
    zmq_setsockopt(pub->pub, ZMQ_LINGER, &linger, sizeof(linger));
    UNTIL(is_bound(pub));
    if (pub->replay[0] == '\0')
        return;
    void *router = zmq_socket(pub->context, ZMQ_ROUTER);
    zmq_setsockopt(router, ZMQ_LINGER, &linger, sizeof(linger));
    UNTIL(zmq_bind(router, pub->replay) == 0);
    pub->router = router;
}

/* The publisher goes and comes back as another process; with a replay socket
 * it is read, without one its first batch tells. */
static void broken_connection(void **state)
{
    struct bt_stream_info info;

    (void)state;
    for (int replay = 0; replay < 2; replay++) {
        one_engine(replay != 0);
        subscribed(&p[0], 0);
        for (int i = 0; i < 10; i++)
            store(&p[0], false);
        UNTIL(w.ranks[0].count == 10 && w.ranks[0].state == BT_STREAM_EXACT);
        die(&p[0]);
        UNTIL(w.ranks[0].state == BT_STREAM_SYNCING);
        assert_int_equal(w.ranks[0].cause, BT_CAUSE_RECONNECT);
        assert_true(was_said("1 kv_source_lost "));
        info_of(0, &info);
        assert_true(info.cut);
        assert_int_equal(w.ranks[0].count, 10);
        restart(&p[0]);
        come_back(&p[0]);
        subscribed(&p[0], 0);
        store(&p[0], false);
        UNTIL(w.ranks[0].clears >= 1 && w.ranks[0].count == 1 &&
              w.ranks[0].state == BT_STREAM_EXACT);
        check_blocks(&p[0], 0, 0);
        info_of(0, &info);
        assert_false(info.cut);
        stop_all();
    }
}

static void gone_for_good(void **state)
{
    struct bt_stream_info info;

    (void)state;
    gone_ns = 100 * MS;
    one_engine(false);
    gone_ns = 0;
    subscribed(&p[0], 0);
    for (int i = 0; i < 10; i++)
        store(&p[0], false);
    UNTIL(w.ranks[0].count == 10);
    die(&p[0]);
    UNTIL(w.ranks[0].state == BT_STREAM_ABSENT);
    assert_int_equal(w.ranks[0].count, 0);
    assert_true(was_said("1 kv_source_gone "));
    info_of(0, &info);
    assert_true(info.cut);
    come_back(&p[0]);
    stop_all();
}

/* Nobody listens there. */
static void never_heard_of(void **state)
{
    char endpoint[64];

    (void)state;
    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%d", port_base());
    unheard_ns = 100 * MS;
    plane_start(NULL);
    unheard_ns = 0;
    add_source(0, endpoint, NULL, NULL, 1);
    UNTIL(strstr(w.said, "kv_source_silent") != NULL);
    double until = ev_now(w.loop) + 2.5; /* two more looks */
    UNTIL(ev_now(w.loop) > until);
    assert_true(was_said("1 kv_source_silent "));
    assert_non_null(strstr(w.said, "no connection yet"));
    plane_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_from_the_start),
        cmocka_unit_test(gap_is_fetched),
        cmocka_unit_test(dump_with_a_hole_and_without_its_end),
        cmocka_unit_test(buffer_that_begins_later),
        cmocka_unit_test(replay_that_nobody_answers),
        cmocka_unit_test(restart_in_place),
        cmocka_unit_test(other_incarnation),
        cmocka_unit_test(alive_from_inside),
        cmocka_unit_test(removed_with_batches_queued),
        cmocka_unit_test(bad_frames),
        cmocka_unit_test(other_block_size),
        cmocka_unit_test(stores_wait_for_their_parent),
        cmocka_unit_test(busy_and_silent),
        cmocka_unit_test(late_and_whole),
        cmocka_unit_test(warm_restart),
        cmocka_unit_test(broken_connection),
        cmocka_unit_test(gone_for_good),
        cmocka_unit_test(never_heard_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
