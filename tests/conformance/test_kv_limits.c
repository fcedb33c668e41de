/* What must not grow or cost: dead peers, idle ones, many of them, thousands
 * of pulls. BATON_CYCLES sets how many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCKS 64u
#define BYTES  4096u
#define CYCLES 1000

static const uint64_t ref;
static const uint32_t local;

/* A port of the system's choice that nobody listens on: bound, not listening.
 */
static uint16_t dead_port(int *fd_out)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t size = sizeof(a);

    *fd_out = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(*fd_out >= 0);
    inet_pton(AF_INET, bed_address(0), &a.sin_addr);
    assert_int_equal(bind(*fd_out, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(*fd_out, (struct sockaddr *)&a, &size), 0);
    return ntohs(a.sin_port);
}

static void on_end(void *arg, const struct bt_kv_pull_end *e)
{
    struct bed_end *end = arg;

    end->calls++;
    end->end = *e;
    snprintf(end->detail, sizeof(end->detail), "%s", e->detail);
}

static void pull_from(struct bed *bed, const char *host, uint16_t port,
                      struct bed_end *end)
{
    const struct bt_kv_pull_spec spec = {.host = host,
                                         .port = port,
                                         .request_id = "ok",
                                         .remote = &ref,
                                         .local = &local,
                                         .count = 1,
                                         .deadline_ns = 5000000000};

    memset(end, 0, sizeof(*end));
    assert_int_equal(bt_kv_pull_start(bed->sink, &spec, on_end, end, NULL),
                     BT_OK);
    bed_until(bed, &end->calls, 1);
}

/* Field-failures E17: after the first few tries a peer that is not there costs
 * nothing; E02: it is not struck off for ever. */
static void test_dead_port_is_spared(void **state)
{
    struct bed bed;
    struct bed_end end;
    struct bt_fabric_stats stats;
    uint16_t port, live;
    int fd;

    bed_both(&bed, state, BLOCKS, BYTES);
    live = bed.port;
    port = dead_port(&fd);
    for (int i = 0; i < 200; i++) {
        pull_from(&bed, bed_address(0), port, &end);
        assert_int_equal(end.end.status, BT_REFUSED);
    }
    stats = bed_stats(bed.sink_fabric);
    assert_true(stats.connects >= 3 * bed.rails);
    assert_true(stats.connects <= 12 * bed.rails); /* a loaded machine's */
    assert_true(stats.connects_spared >= 180);
    assert_non_null(strstr(end.detail, "not tried again yet"));
    bed.port = live;
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    close(fd);
    /* it comes up after all */
    bt_kv_source_stop(bed.source);
    bed.source = NULL;
    for (int i = 0; i < 10; i++)
        (void)bed_pull_one(&bed, "ok", 1, &end);
    bt_fabric_destroy(bed.source_fabric);
    bed_source_at(&bed, live);
    do {
        pull_from(&bed, bed_address(0), live, &end);
        bed_until(&bed, &bed.ticks, bed.ticks + 1);
    } while (end.end.status != BT_OK);
    bed_close(&bed);
}

/* E21: addresses that lead nowhere, more than the table holds. */
static void test_many_dead_peers(void **state)
{
    struct bed bed;
    struct bed_end end;
    uint16_t port;
    int fd;

    if (getenv("BATON_FABRIC_ADDRESS") != NULL)
        skip(); /* wants the whole of 127/8 */
    bed_both(&bed, state, BLOCKS, BYTES);
    port = dead_port(&fd);
    for (int i = 0; i < 600; i++) {
        char host[32];

        snprintf(host, sizeof(host), "127.1.%d.%d", i / 200, 1 + i % 200);
        pull_from(&bed, host, port, &end);
        assert_int_equal(end.end.status, BT_REFUSED);
    }
    assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
    close(fd);
    bed_close(&bed);
}

static void test_idle_is_left(void **state)
{
    struct bed bed;
    struct bed_end end;

    bed_open_case(&bed, state, BLOCKS, BYTES);
    bed.idle_ns = 300000000;
    bed_source(&bed);
    bed_sink(&bed);
    for (uint64_t i = 1; i <= 2; i++) {
        assert_int_equal(bed_pull_one(&bed, "ok", 1, &end), BT_OK);
        assert_int_equal(bed_stats(bed.sink_fabric).peers_idle, i - 1);
        while (bed_stats(bed.sink_fabric).peers_idle < i)
            ev_run(bed.loop, EVRUN_ONCE);
    }
    if (bed.downs > 0)
        print_message("rail %u: %s\n", bed.last_rail.rail,
                      bt_status_text(bed.last_rail.status));
    assert_int_equal(bed.downs, 0); /* no rail failed */
    bed_close(&bed);
}

static size_t heap_used(void)
{
    return mallinfo2().uordblks;
}

/* One of: a pull, a cancelled one, a refused one. */
static void cycle(struct bed *bed, int i)
{
    static uint32_t line[BLOCKS];
    struct bed_end end;
    struct bt_kv_pull *pull;
    const char *request = i % 10 == 9 ? "expired" : "ok";

    bed_line(line, BLOCKS);
    assert_int_equal(bed_pull(bed, bed->sink, request, line, line, BLOCKS,
                              BED_LONG_S, &end, &pull),
                     BT_OK);
    if (i % 10 == 8)
        bt_kv_pull_cancel(pull);
    bed_until(bed, &end.calls, 1);
    if (i % 10 < 8)
        assert_int_equal(end.end.status, BT_OK);
}

static void test_memory_is_flat(void **state)
{
    const char *given = getenv("BATON_CYCLES");
    int cycles = given != NULL ? (int)strtol(given, NULL, 10) : CYCLES;
    struct bed bed;
    size_t before, after;

    bed_both(&bed, state, BLOCKS, BYTES);
    for (int i = 0; i < 300; i++)
        cycle(&bed, i);
    bed_until(&bed, &bed.ticks, bed.ticks + 3);
    before = heap_used();
    for (int i = 0; i < cycles; i++)
        cycle(&bed, i);
    bed_until(&bed, &bed.ticks, bed.ticks + 3);
    after = heap_used();
    print_message("%d cycles: heap %zu -> %zu bytes\n", cycles, before, after);
    bed_close(&bed);
    if (before == 0)
        skip(); /* a sanitizer's allocator does not tell */
    assert_true(after < before + 128 * 1024);
}

#define T(name)                                                                \
    {                                                                          \
#name, name, NULL, NULL, NULL                                          \
    }
static const struct CMUnitTest suite[] = {
    T(test_dead_port_is_spared),
    T(test_many_dead_peers),
    T(test_idle_is_left),
    T(test_memory_is_flat),
};

int main(int argc, char **argv)
{
    static const struct bed_variant variants[] = {{1, false}, {2, true}};

    return bed_main(argc, argv, suite, sizeof(suite) / sizeof(suite[0]),
                    variants, sizeof(variants) / sizeof(variants[0]));
}
