/* What UCX 1.13.1 does when an end goes away, stops or lies, and that the
 * transport holds: ../shared's lab notes C have the traps, each has a test
 * here, over messages on tcp and over shared memory (error mode NONE). With
 * BATON_UCX_TLS (and BATON_UCX_ADDRESS) the same tests run over that instead,
 * which is how the soft-RoCE machine runs them ("rc_verbs,self").
 *
 * A peer that dies is killed, one that falls silent is stopped. Limits of
 * waiting are for a hang only; nothing is asserted about how long things take.
 */
#include "baton/base/rng.h"
#include "ucx_traps_bed.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define TCP "tcp,self"
#define SHM "posix,sysv,cma,self"
#define MIB (1u << 20)

static const char *wanted(const char *transports)
{
    const char *other = getenv("BATON_UCX_TLS");

    return other != NULL ? other : transports;
}

static void expect_words(const unsigned char *bytes, uint64_t first,
                         uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t word;

        memcpy(&word, bytes + i * 8, 8);
        if (word != bed_word(first + i))
            fail_msg("word %lu is wrong", (unsigned long)(first + i));
    }
}

static struct bt_tpiece piece(struct bed *bed, uint64_t local, uint64_t remote,
                              uint32_t bytes)
{
    return (struct bt_tpiece){.local = bed->region + local,
                              .remote = bed->remote + remote,
                              .bytes = bytes};
}

/* A get of the first MiB has the right bytes: both ends live. */
static void expect_serves(struct bed *bed)
{
    struct bt_tpiece p = piece(bed, 0, 0, MIB);

    memset(bed->region, 0, MIB);
    bed_get(bed, 0, &p, 1);
    assert_true(bed_wait_ops(bed, 1, 10));
    assert_int_equal(bed->op[0].status, BT_OK);
    expect_words(bed->region, 0, MIB / 8);
}

/* ---- bytes ---- */

/* Pieces of odd sizes in odd order, over all of the region. */
static uint32_t odd_pieces(struct bed *bed, struct bt_rng *rng,
                           struct bt_tpiece *out, uint32_t max)
{
    uint64_t local = bt_rng_below(rng, 64);
    uint32_t count = 0;

    while (count < max) {
        uint32_t bytes = 1 + (uint32_t)bt_rng_below(rng, 1 << 17);

        if (bt_rng_below(rng, 2) == 0)
            bytes = 1 + bytes % 9000;
        if (local + bytes > BED_REGION)
            break;
        out[count++] =
            piece(bed, local, bt_rng_below(rng, BED_REGION - bytes), bytes);
        local += bytes + bt_rng_below(rng, 3) * 100;
    }
    return count;
}

static void expect_pieces(struct bed *bed, const struct bt_tpiece *pieces,
                          uint32_t count)
{
    unsigned char *all = malloc(BED_REGION);

    assert_non_null(all);
    for (uint64_t i = 0; i < BED_REGION / 8; i++) {
        uint64_t word = bed_word(i);

        memcpy(all + i * 8, &word, 8);
    }
    for (uint32_t i = 0; i < count; i++)
        assert_memory_equal(pieces[i].local,
                            all + (pieces[i].remote - bed->remote),
                            pieces[i].bytes);
    free(all);
}

static void gets_of_many_pieces(const char *transports)
{
    struct bt_tpiece *pieces = calloc(256, sizeof(*pieces));
    struct bed bed = {0};
    struct bt_rng rng;
    uint64_t seed = 20261130;

    assert_non_null(pieces);
    print_message("seed %lu\n", (unsigned long)seed);
    bt_rng_seed(&rng, seed);
    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    for (int round = 0; round < 20; round++) {
        uint32_t count = odd_pieces(&bed, &rng, pieces,
                                    1 + (uint32_t)bt_rng_below(&rng, 256));

        memset(bed.region, 0, BED_REGION);
        bed_get(&bed, 0, pieces, count);
        assert_true(bed_wait_ops(&bed, 1, 10));
        assert_int_equal(bed.op[0].status, BT_OK);
        expect_pieces(&bed, pieces, count);
    }
    free(pieces);
    bed_close(&bed);
}

/* What the child's memory must be after puts, made here by memcpy. */
static void puts_of_many_pieces(const char *transports)
{
    struct bt_tpiece pieces[64];
    unsigned char *model = malloc(BED_REGION);
    struct bed bed = {0};
    struct bt_rng rng;

    assert_non_null(model);
    bt_rng_seed(&rng, 7);
    for (uint64_t i = 0; i < BED_REGION / 8; i++) {
        uint64_t word = bed_word(i);

        memcpy(model + i * 8, &word, 8);
    }
    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    for (uint64_t i = 0; i < BED_REGION; i++)
        bed.region[i] = (unsigned char)bt_rng_u64(&rng);
    for (int round = 0; round < 10; round++) {
        uint64_t remote = 0;
        uint32_t count = 0;

        /* Targets do not overlap: their order is not defined. */
        while (count < 64) {
            uint32_t bytes = 1 + (uint32_t)bt_rng_below(&rng, 1 << 18);

            if (remote + bytes > BED_REGION)
                break;
            pieces[count] = piece(&bed, bt_rng_below(&rng, BED_REGION - bytes),
                                  remote, bytes);
            memcpy(model + remote, pieces[count].local, bytes);
            remote += bytes + bt_rng_below(&rng, 5000);
            count++;
        }
        bed_put(&bed, 0, pieces, count);
        assert_true(bed_wait_ops(&bed, 1, 10));
        assert_int_equal(bed.op[0].status, BT_OK);
        bed_ask(&bed, 'h');
        assert_true(bed_answer(&bed, 10));
        assert_int_equal(bed.word, bed_hash(model, BED_REGION));
    }
    free(model);
    bed_close(&bed);
}

/* ---- an end goes away in the middle ---- */

/* ucp_put (and get) on tcp: the target aborts when its initiator goes. */
static void close_in_the_middle(const char *transports, bool put)
{
    struct bed bed = {0};

    bed_open(&bed, transports, 'a', NULL);
    for (int round = 0; round < 20; round++) {
        struct bt_tpiece p[8];

        bed_connect(&bed);
        for (uint32_t i = 0; i < 8; i++) {
            p[i] = piece(&bed, (8ull + i) * MIB, (8ull + i) * MIB, MIB);
            (put ? bed_put : bed_get)(&bed, i, &p[i], 1);
        }
        /* Some rounds have sent a little, some a lot. */
        for (int turn = 0; turn < round; turn++)
            ev_run(bed.loop, EVRUN_NOWAIT);
        bed_disconnect(&bed);
        for (uint32_t i = 0; i < 8; i++)
            assert_true(bed.op[i].is_done);
        assert_true(bed_child_lives(&bed));
    }
    bed_connect(&bed);
    expect_serves(&bed);
    bed_close(&bed);
}

static void killed_in_the_middle(const char *transports)
{
    struct bed bed = {0};
    struct bt_tpiece p[16];

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    for (uint32_t i = 0; i < 16; i++) {
        p[i] = piece(&bed, i * (uint64_t)MIB, i * (uint64_t)MIB, MIB);
        (i % 4 == 3 ? bed_put : bed_get)(&bed, i, &p[i], 1);
    }
    bed_signal(&bed, SIGKILL);
    /* It may be told; if not, whoever keeps heartbeats closes. */
    (void)bed_wait(&bed, &bed.is_failed, 0.5);
    print_message("%s: killed peer %s\n", transports,
                  bed.is_failed ? "was reported" : "was not reported");
    bed_disconnect(&bed);
    for (uint32_t i = 0; i < 16; i++)
        assert_true(bed.op[i].is_done);
    bed_close(&bed);
}

static void killed_idle(const char *transports)
{
    struct bed bed = {0};

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    expect_serves(&bed);
    bed_signal(&bed, SIGKILL);
    (void)bed_wait(&bed, &bed.is_failed, 0.5);
    print_message("%s: idle peer, killed, %s\n", transports,
                  bed.is_failed ? "was reported" : "was not reported");
    bed_disconnect(&bed);
    bed_close(&bed);
}

/* Stopped with gets out: close ends them, and nothing of them may be written
 * once the peer goes on. */
static void stopped_then_goes_on(const char *transports)
{
    struct bed bed = {0};
    struct bt_tpiece p[8];

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    bed_signal(&bed, SIGSTOP);
    for (uint32_t i = 0; i < 8; i++) {
        p[i] = piece(&bed, (8ull + i) * MIB, (8ull + i) * MIB, MIB);
        (i % 2 ? bed_put : bed_get)(&bed, i, &p[i], 1);
    }
    (void)bed_wait(&bed, &bed.is_failed, 0.2);
    assert_false(bed.is_failed); /* UCX does not notice */
    bed_disconnect(&bed);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(bed.op[i].is_done);
    memset(bed.region, 0x5a, BED_REGION);
    bed_signal(&bed, SIGCONT);
    bed_connect(&bed);
    expect_serves(&bed);
    bed_ask(&bed, 'e');
    assert_true(bed_answer(&bed, 10));
    for (uint64_t i = MIB; i < BED_REGION; i++)
        assert_int_equal(bed.region[i], 0x5a);
    bed_close(&bed);
}

/* Dead between our connect to its data port and the first byte sent there. With
 * connects that wait (UCX_TCP_CONN_NB=n, UCX's default) the endpoint fails
 * before it is marked as ours, is put down for destruction, and its end then
 * aborts us: `tcp_ep.c:478`. */
static void test_killed_at_the_connect(void **state)
{
    uint32_t hits = 0;

    (void)state;
    if (getenv("BATON_UCX_TLS") != NULL)
        skip();
    for (int round = 0; round < 48 && hits < 3; round++) {
        struct bed bed = {0};

        bed_open(&bed, TCP, 'a', NULL);
        if (bed_connect_killing(&bed)) {
            hits++;
            assert_true(bed.is_failed);
        }
        bed_close(&bed);
    }
    print_message("%u died so\n", hits);
    assert_int_equal(hits, 3);
}

/* ---- set-up, wake-ups ---- */

/* Both ends must make progress to connect: a stopped one must not stop us. */
static void connect_to_the_stopped(const char *transports)
{
    struct bed bed = {0};
    struct sockaddr_in to = {.sin_family = AF_INET};

    bed_open(&bed, transports, 'a', NULL);
    bed_signal(&bed, SIGSTOP);
    to.sin_port = htons(bed.port);
    assert_int_equal(inet_pton(AF_INET, bed.address, &to.sin_addr), 1);
    assert_int_equal(bed.ops->connect(bed.transport, (struct sockaddr *)&to,
                                      sizeof(to), &bed.conn),
                     BT_OK);
    bed.conn->events = NULL; /* announced to nobody */
    bed.ops->close(bed.conn);
    bed.conn = NULL;
    bed_signal(&bed, SIGCONT);
    bed_connect(&bed);
    expect_serves(&bed);
    bed_close(&bed);
}

/* After a second of silence a message arrives. The event fd alone would lose
 * it now and then (20 s); a loop that spins instead of sleeping would find it
 * too, so turns are counted: a tick every 50 ms is 20 of them. */
static void message_after_silence(const char *transports)
{
    struct bed bed = {0};

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    for (int round = 0; round < 3; round++) {
        bed_ask(&bed, 'd');
        bed.turns = 0;
        assert_true(bed_answer(&bed, 10));
        assert_in_range(bed.turns, 1, 400);
        print_message("%s: %lu turns\n", transports, (unsigned long)bed.turns);
    }
    bed_close(&bed);
}

static void restart_on_the_same_port(const char *transports)
{
    struct bed bed = {0};
    uint16_t port;

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    expect_serves(&bed);
    port = bed.port;
    bed_signal(&bed, SIGKILL);
    bed_close(&bed);
    bed.port = port; /* bed_open asks for it */
    bed_open(&bed, transports, 'a', NULL);
    assert_int_equal(bed.port, port);
    bed_connect(&bed);
    expect_serves(&bed);
    bed_close(&bed);
}

/* ---- peers that lie ---- */

static void expect_refused(struct bed *bed, uint64_t remote, uint32_t bytes,
                           bool put)
{
    struct bt_tpiece p = {
        .local = bed->region, .remote = remote, .bytes = bytes};

    bed_connect(bed);
    (put ? bed_put : bed_get)(bed, 0, &p, 1);
    assert_true(bed_wait(bed, &bed->is_failed, 10));
    bed_disconnect(bed);
    assert_true(bed->op[0].is_done);
    assert_int_not_equal(bed->op[0].status, BT_OK);
    assert_true(bed_child_lives(bed));
}

/* READ and WRITE beyond what was exported, by one byte and by a lot. */
static void outside_is_refused(const char *transports)
{
    struct bed bed = {0};
    uint64_t base;

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    base = bed.remote;
    bed_disconnect(&bed);
    for (int put = 0; put < 2; put++) {
        expect_refused(&bed, base - 1, 8, put);
        expect_refused(&bed, base + BED_REGION - 7, 8, put);
        expect_refused(&bed, base + BED_REGION, 1, put);
        expect_refused(&bed, UINT64_MAX - 3, 8, put);
    }
    bed_connect(&bed);
    expect_serves(&bed);
    bed_ask(&bed, 'h');
    assert_true(bed_answer(&bed, 10));
    bed_close(&bed);
}

/* With RDMA the key is the permission: it goes to peers that may. */
static void not_allowed_is_refused(const char *transports)
{
    struct bed bed = {0};

    if (strstr(transports, "rc") != NULL)
        skip();
    bed_open(&bed, transports, 'n', NULL);
    bed_connect(&bed);
    bed_disconnect(&bed);
    expect_refused(&bed, bed.remote, 8, false);
    expect_refused(&bed, bed.remote, 8, true);
    bed_close(&bed);
}

/* A key cut short, longer, or of nothing. */
static void bad_keys_are_refused(const char *transports)
{
    struct bed bed = {0};
    struct bt_tkey *key;

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    for (size_t size = 0; size < 24; size++) {
        if (size != bed.packed_size)
            assert_int_equal(
                bed.ops->key_open(bed.conn, bed.packed, size, &key),
                BT_INVALID);
    }
    if (bed.packed_size > 24) {
        memset(bed.packed, 0xff, 24); /* bounds that wrap around */
        assert_int_equal(
            bed.ops->key_open(bed.conn, bed.packed, bed.packed_size, &key),
            BT_INVALID);
    } else {
        assert_int_equal(
            bed.ops->key_open(bed.conn, bed.packed, sizeof(bed.packed), &key),
            BT_INVALID);
    }
    bed_close(&bed);
}

/* ---- options, memory ---- */

/* UCX 1.13 drops an option that it does not know with a warning only. */
static void options_are_known(const char *transports)
{
    char log[] = "/tmp/ucx_traps_XXXXXX", text[4096] = "";
    int fd = mkstemp(log);
    struct bed bed = {0};
    FILE *from;

    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(setenv("BATON_UCX_LOG", "warn", 1), 0);
    bed_open(&bed, transports, 'a', log);
    assert_int_equal(unsetenv("BATON_UCX_LOG"), 0);
    bed_connect(&bed);
    expect_serves(&bed);
    bed_close(&bed);
    from = fopen(log, "r");
    assert_non_null(from);
    (void)!fread(text, 1, sizeof(text) - 1, from);
    fclose(from);
    unlink(log);
    if (strstr(text, "invalid configuration") != NULL)
        fail_msg("%s", text);
}

/* What carries a connection is said (field-failures E18). */
static void carrier_is_named(const char *transports, const char *name)
{
    struct bed bed = {0};
    char text[128];

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    expect_serves(&bed);
    bed.ops->describe(bed.conn, text, sizeof(text));
    print_message("%s: carried by %s\n", transports, text);
    if (getenv("BATON_UCX_TLS") == NULL)
        assert_non_null(strstr(text, name));
    bed.ops->describe(bed.conn, text, 4);
    assert_true(strlen(text) < 4);
    bed_close(&bed);
}

/* Maps of one range share, and end in any order. */
static void maps_share(const char *transports)
{
    struct bed bed = {0};
    struct bt_tmem *some[300];

    bed_open(&bed, transports, 'a', NULL);
    bed_connect(&bed);
    for (uint32_t i = 0; i < 300; i++)
        assert_int_equal(bed.ops->map(bed.transport, bed.region + i * 4096u,
                                      4096 * (1 + i % 7), &some[i]),
                         BT_OK);
    for (uint32_t i = 0; i < 300; i++)
        bed.ops->unmap(bed.transport, some[(i * 7) % 300]);
    expect_serves(&bed);
    bed_close(&bed);
}

/* A list that UCX cannot use. */
static void no_such_transport(void **state)
{
    struct bt_rail_config rail = {.transports = "rc_verbs,self",
                                  .device = "nosuch0:1"};
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_transport *transport;
    char error[160] = "";

    (void)state;
    assert_int_equal(
        bt_transport_ucx_open(loop, &rail, &transport, error, sizeof(error)),
        BT_UNSUPPORTED);
    assert_non_null(strstr(error, "ucx"));
    ev_loop_destroy(loop);
}

#define BOTH(name, call_tcp, call_shm)                                         \
    static void name##_tcp(void **state)                                       \
    {                                                                          \
        (void)state;                                                           \
        call_tcp;                                                              \
    }                                                                          \
    static void name##_shm(void **state)                                       \
    {                                                                          \
        (void)state;                                                           \
        call_shm;                                                              \
    }
#define EACH(name) BOTH(test_##name, name(wanted(TCP)), name(wanted(SHM)))
EACH(gets_of_many_pieces)
EACH(puts_of_many_pieces)
EACH(killed_in_the_middle)
EACH(killed_idle)
EACH(stopped_then_goes_on)
EACH(connect_to_the_stopped)
EACH(message_after_silence)
EACH(restart_on_the_same_port)
EACH(outside_is_refused)
EACH(not_allowed_is_refused)
EACH(bad_keys_are_refused)
EACH(options_are_known)
EACH(maps_share)
BOTH(test_close_mid_get, close_in_the_middle(wanted(TCP), false),
     close_in_the_middle(wanted(SHM), false))
BOTH(test_close_mid_put, close_in_the_middle(wanted(TCP), true),
     close_in_the_middle(wanted(SHM), true))
BOTH(test_carrier, carrier_is_named(wanted(TCP), "tcp"),
     carrier_is_named(wanted(SHM), "memory"))

#define TWO(name)                                                              \
    cmocka_unit_test(test_##name##_tcp), cmocka_unit_test(test_##name##_shm)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TWO(gets_of_many_pieces),
        TWO(puts_of_many_pieces),
        TWO(close_mid_get),
        TWO(close_mid_put),
        TWO(killed_in_the_middle),
        TWO(killed_idle),
        cmocka_unit_test(test_killed_at_the_connect),
        TWO(stopped_then_goes_on),
        TWO(connect_to_the_stopped),
        TWO(message_after_silence),
        TWO(restart_on_the_same_port),
        TWO(outside_is_refused),
        TWO(not_allowed_is_refused),
        TWO(bad_keys_are_refused),
        TWO(options_are_known),
        TWO(carrier),
        TWO(maps_share),
        cmocka_unit_test(no_such_transport),
    };

    if (argc > 1 && strcmp(argv[1], "--child") == 0)
        return bed_child_main(argc, argv);
    /* A pattern on the command line chooses tests. */
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
