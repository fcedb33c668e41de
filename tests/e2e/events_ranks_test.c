/* The event plane over real sockets: ranks on ports, both wirings, topics, bad
 * endpoints. Truth: what each publisher has stored. */
#include "events_plane_rig.h"

/* ---- ranks (field failure C13) ---- */

static void ranks_on_consecutive_ports(void **state)
{
    int base = port_base();
    struct bt_stream_info info;

    (void)state;
    plane_start(NULL);
    publishers = RANKS;
    for (int r = 0; r < RANKS; r++) {
        publisher_open(&p[r], base + r, base + 10 + r);
        p[r].label = r;
    }
    add_source(0, p[0].endpoint, p[0].replay, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        subscribed(&p[r], r);
    for (int i = 0; i < 40; i++)
        for (int r = 0; r < RANKS; r++)
            store(&p[r], r == 2 && i % 7 == 3); /* rank 2 loses some */
    for (uint32_t r = 0; r < RANKS; r++) {
        UNTIL(w.ranks[r].count == 40);
        UNTIL(w.ranks[r].state == BT_STREAM_EXACT);
        check_blocks(&p[r], r, 0);
        info_of(r, &info);
        assert_int_equal(info.counts.rank_mismatches, 0);
    }
    stop_all();
}

static void a_label_that_is_always_0(void **state)
{
    int base = port_base();
    struct bt_stream_info info;

    (void)state;
    plane_start(NULL);
    publishers = RANKS;
    for (int r = 0; r < RANKS; r++) {
        publisher_open(&p[r], base + r, 0);
        p[r].label = 0;
        p[r].life = (uint64_t)r;
    }
    add_source(0, p[0].endpoint, NULL, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        subscribed(&p[r], r);
        store(&p[r], false);
        store(&p[r], false);
        UNTIL(w.ranks[r].count == 2);
        check_blocks(&p[r], r, 0);
        info_of(r, &info);
        assert_int_equal(info.counts.rank_mismatches, r == 0 ? 0 : 2);
    }
    assert_non_null(strstr(w.said, "kv_rank_label"));
    stop_all();
}

/* All ranks publish through one port: the same number comes twice. */
static void all_ranks_on_one_port(void **state)
{
    (void)state;
    one_engine(false);
    subscribed(&p[0], 0);
    for (uint64_t seq = 0; seq < 10; seq++)
        for (int r = 0; r < RANKS; r++) {
            p[0].seq = seq;
            p[0].label = r;
            store(&p[0], false);
        }
    UNTIL(w.ranks[0].cause == BT_CAUSE_RANKS_MIXED);
    assert_non_null(strstr(w.said, "kv_ranks_mixed"));
    UNTIL(w.ranks[0].count > 5);
    p[0].label = 0;
    for (size_t i = 0; i < w.ranks[0].count; i++)
        assert_true(w.ranks[0].blocks[i].hash >= block_of(&p[0], 0) &&
                    w.ranks[0].blocks[i].hash <= block_of(&p[0], 9));
    assert_int_equal(w.ranks[0].state, BT_STREAM_PARTIAL);
    stop_all();
}

static void bad_ports_are_named(void **state)
{
    static const struct {
        const char *events, *replay, *said;
        uint32_t ranks;
    } cases[] = {
        {"tcp://h:65534", NULL, "65537", 4},
        {"tcp://h:0", NULL, "port 0", 1},
        {"tcp://h:5557", "tcp://h:65535", "65536", 2},
        {"tcp://h:5557", "tcp://h:5558", "5558", 2},
        {"tcp://h:5558", "tcp://h:5557", "5558", 2},
        {"tcp://h", NULL, "tcp://h", 1},
        {"tcp://:5557", NULL, "tcp://:5557", 1},
        {"tcp://h:x", NULL, "tcp://h:x", 1},
        {"tcp://h:99999999999999999999", NULL, "neither", 1},
        {"udp://h:1", NULL, "udp", 1},
        {"ipc:///tmp/baton-x", NULL, "rank 1", 2},
        {"ipc://", NULL, "neither", 1},
        {NULL, NULL, "endpoint or a topic", 1},
        {"tcp://h:1", NULL, "ranks", 0},
        {"tcp://h:1", NULL, "ranks", 65},
    };

    (void)state;
    plane_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bt_event_source_config c = {.name = "e",
                                           .events = cases[i].events,
                                           .replay = cases[i].replay,
                                           .ranks = cases[i].ranks};
        char error[160] = "";

        assert_int_equal(
            bt_event_plane_add(w.plane, 0, &c, error, sizeof(error)),
            BT_INVALID);
        if (strstr(error, cases[i].said) == NULL)
            fail_msg("case %zu says \"%s\"", i, error);
    }
    plane_stop();
}

static void ipc_works(void **state)
{
    (void)state;
    plane_start(NULL);
    publishers = 1;
    publisher_open(&p[0], 0, 0);
    snprintf(p[0].endpoint, sizeof(p[0].endpoint), "ipc:///tmp/baton-ev-%d",
             (int)getpid());
    assert_int_equal(zmq_bind(p[0].pub, p[0].endpoint), 0);
    add_source(0, p[0].endpoint, NULL, NULL, 1);
    subscribed(&p[0], 0);
    store(&p[0], false);
    UNTIL(w.ranks[0].count == 1);
    unlink(p[0].endpoint + 6);
    stop_all();
}

/* ---- the engine connects to us ---- */

static void bound(uint32_t ranks, bool replay)
{
    static char endpoint[64];
    int base = port_base();

    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%d", base + 5);
    plane_start(endpoint);
    publishers = 1;
    publisher_open(&p[0], 0, replay ? base + 10 : 0);
    snprintf(p[0].topic, sizeof(p[0].topic), "kv@10.0.0.1:8000@m");
    assert_int_equal(zmq_connect(p[0].pub, endpoint), 0);
    add_source(0, NULL, replay ? p[0].replay : NULL, "kv@10.0.0.1:8000@",
               ranks);
}

static void engine_connects(void **state)
{
    (void)state;
    bound(1, true);
    subscribed(&p[0], 0);
    for (int i = 0; i < 10; i++)
        store(&p[0], i == 4);
    UNTIL(w.ranks[0].count == 10 && w.ranks[0].state == BT_STREAM_EXACT);
    check_blocks(&p[0], 0, 0);
    stop_all();
}

static void labels_name_the_rank_there(void **state)
{
    struct bt_stream_info info;
    uint64_t seq[RANKS] = {0};

    (void)state;
    bound(RANKS, false);
    subscribed(&p[0], 0);
    for (int i = 0; i < 40; i++) {
        int r = i % RANKS;

        p[0].label = r;
        p[0].seq = seq[r]++;
        store(&p[0], false);
    }
    for (int r = 0; r < RANKS; r++) {
        UNTIL(w.ranks[r].count == 10);
        p[0].label = r;
        p[0].seq = 10;
        check_blocks(&p[0], (uint32_t)r, 0);
        assert_int_equal(w.ranks[r].state, BT_STREAM_EXACT);
    }
    p[0].label = 9; /* no rank of it */
    p[0].seq = 0;
    store(&p[0], false);
    UNTIL((info_of(0, &info), info.counts.rank_mismatches == 1));
    stop_all();
}

/* The longest prefix names the source; who has none is a stranger. */
static void topics_and_strangers(void **state)
{
    struct bt_stream_info info;

    (void)state;
    bound(1, false);
    add_source(1, NULL, NULL, "kv@10.0.0.1:8000@m2", 1);
    subscribed(&p[0], 0);
    snprintf(p[0].topic, sizeof(p[0].topic), "kv@10.0.0.1:8000@m2");
    store(&p[0], false);
    UNTIL((bt_event_plane_stream(w.plane, 1, 0, &info),
           info.counts.batches == 1));
    snprintf(p[0].topic, sizeof(p[0].topic), "kv@10.0.0.1:80@m");
    store(&p[0], false);
    snprintf(p[0].topic, sizeof(p[0].topic), "%s", "");
    store(&p[0], false);
    UNTIL(bt_event_plane_strangers(w.plane) == 2);
    info_of(0, &info);
    assert_int_equal(info.counts.batches, 0);
    /* A source that is gone is a stranger too. */
    bt_event_plane_remove(w.plane, 1);
    snprintf(p[0].topic, sizeof(p[0].topic), "kv@10.0.0.1:9000@m");
    store(&p[0], false);
    UNTIL(bt_event_plane_strangers(w.plane) == 3);
    {
        struct bt_event_source_config c = {
            .name = "e", .topic = "kv@10.0.0.1:8000@", .ranks = 1};
        char error[160] = "";

        assert_int_equal(
            bt_event_plane_add(w.plane, 2, &c, error, sizeof(error)),
            BT_INVALID);
        assert_non_null(strstr(error, "kv@10.0.0.1:8000@"));
    }
    stop_all();
}

static void a_port_in_use_is_named(void **state)
{
    struct bt_event_plane_config config;
    struct bt_event_sink sink = {0};
    struct bt_event_plane *plane = NULL;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    char endpoint[128], error[160] = "";

    (void)state;
    publisher_open(&p[0], port_base(), 0);
    snprintf(endpoint, sizeof(endpoint), "%s", p[0].endpoint);
    bt_event_plane_config_init(&config);
    config.bind = endpoint;
    assert_int_equal(bt_event_plane_create(loop, &config, &sink, &plane, error,
                                           sizeof(error)),
                     BT_IO);
    assert_non_null(strstr(error, endpoint));
    config.bind = NULL;
    config.replays_max = 0;
    assert_int_equal(bt_event_plane_create(loop, &config, &sink, &plane, error,
                                           sizeof(error)),
                     BT_INVALID);
    assert_non_null(strstr(error, "replays_max"));
    assert_null(plane);
    publisher_close(&p[0]);
    ev_loop_destroy(loop);
}

/* Four streams want to read back, one may at a time: all come to an end. */
static void replays_queue(void **state)
{
    int base = port_base();
    struct bt_event_plane_config config;
    struct bt_event_sink sink = {on_store,    on_remove, on_clear,
                                 on_counting, on_state,  on_size,
                                 on_copies,   on_say,    NULL};
    char error[160];

    (void)state;
    memset(&w, 0, sizeof(w));
    w.loop = ev_loop_new(EVFLAG_AUTO);
    bt_event_plane_config_init(&config);
    config.sources_max = 1;
    config.replays_max = 1;
    config.silence_ns = 200 * MS;
    config.cooldown_ns = 120 * MS;
    assert_int_equal(bt_event_plane_create(w.loop, &config, &sink, &w.plane,
                                           error, sizeof(error)),
                     BT_OK);
    publishers = RANKS;
    for (int r = 0; r < RANKS; r++) {
        publisher_open(&p[r], base + r, base + 10 + r);
        p[r].label = r;
        for (int i = 0; i < 20; i++)
            store(&p[r], true);
    }
    /* The first of them never answers. */
    zmq_close(p[0].router);
    p[0].router = NULL;
    add_source(0, p[0].endpoint, "tcp://127.0.0.1:1", NULL, 1);
    bt_event_plane_remove(w.plane, 0);
    {
        char replay[64];

        snprintf(replay, sizeof(replay), "tcp://127.0.0.1:%d", base + 10);
        add_source(0, p[0].endpoint, replay, NULL, RANKS);
    }
    bt_event_plane_alive(w.plane, 0, 1, 0);
    for (uint32_t r = 1; r < RANKS; r++) {
        UNTIL(w.ranks[r].state == BT_STREAM_EXACT);
        check_blocks(&p[r], r, 0);
    }
    assert_int_equal(w.ranks[0].count, 0);
    assert_false(w.ranks[0].was_exact);
    stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_on_consecutive_ports),
        cmocka_unit_test(a_label_that_is_always_0),
        cmocka_unit_test(all_ranks_on_one_port),
        cmocka_unit_test(bad_ports_are_named),
        cmocka_unit_test(ipc_works),
        cmocka_unit_test(engine_connects),
        cmocka_unit_test(labels_name_the_rank_there),
        cmocka_unit_test(topics_and_strangers),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(replays_queue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
