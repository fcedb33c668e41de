/* See kv_bed.h. A spawned source is this program executed anew, never a bare
 * fork: UCX does not survive one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_bed.h"

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GUARD_S 60.0
#define SEED    7u

const struct bed_fabric bed_fabrics[] = {
    {"ucx", bt_fabric_ucx_create},
    {NULL, NULL},
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void bed_fill(unsigned char *bytes, size_t size, uint64_t seed)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;

    for (size_t i = 0; i < size; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes[i] = (unsigned char)(x >> 32);
    }
}

static void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bed *bed = w->data;

    (void)loop;
    (void)revents;
    bed->ticks++;
}

static void on_flip(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bed *bed = w->data;

    (void)revents;
    bed->from[bed->flip_block * bed->layout.block_bytes + 1] ^= 0x40;
    bed->flipped = true;
    ev_timer_stop(loop, w);
    if (bed->flip_back_s <= 0)
        return;
    ev_timer_set(w, bed->flip_back_s, 0);
    bed->flip_back_s = 0;
    ev_timer_start(loop, w);
}

static enum bt_status on_check(void *arg, const char *request,
                               const uint32_t *blocks, size_t count)
{
    struct bed *bed = arg;

    assert_non_null(blocks);
    assert_true(count > 0);
    bed->checks++;
    if (strcmp(request, "expired") == 0)
        return BT_LEASE_EXPIRED;
    if (strncmp(request, "ok", 2) != 0)
        return BT_NOT_FOUND;
    if (bed->flip_after_s > 0) {
        ev_timer_set(&bed->flip, bed->flip_after_s, 0);
        ev_timer_start(bed->loop, &bed->flip);
    }
    return BT_OK;
}

static void remember(struct bed *bed, const char *request)
{
    snprintf(bed->last_request, sizeof(bed->last_request), "%s", request);
}

static void on_released(void *arg, const char *request)
{
    struct bed *bed = arg;

    bed->released++;
    remember(bed, request);
}

static void on_renewed(void *arg, const char *request)
{
    struct bed *bed = arg;

    bed->renewed++;
    remember(bed, request);
}

static void on_refused(void *arg, const char *sink, const char *reason)
{
    struct bed *bed = arg;

    assert_non_null(sink);
    bed->refused++;
    snprintf(bed->reason, sizeof(bed->reason), "%s", reason);
}

static struct bt_fabric *fabric_new(struct bed *bed)
{
    const struct bt_fabric_config config = {
        .heartbeat_ns = (int64_t)(BED_HEARTBEAT_S * 1e9)};
    struct bt_fabric *fabric = NULL;
    char error[160] = "";
    enum bt_status status =
        bed->create(bed->loop, &config, &fabric, error, sizeof(error));

    if (status != BT_OK)
        fprintf(stderr, "fabric: %s\n", error);
    assert_int_equal(status, BT_OK);
    return fabric;
}

void bed_open(struct bed *bed, bed_fabric_fn create, uint32_t blocks,
              uint64_t block_bytes)
{
    size_t bytes = blocks * block_bytes;

    memset(bed, 0, sizeof(*bed));
    bed->create = create;
    bed->blocks = blocks;
    bed->layout = (struct bt_kv_layout){1, 16, block_bytes, 0xFEED};
    bed->loop = ev_loop_new(EVFLAG_AUTO);
    bed->from = malloc(bytes);
    bed->to = calloc(1, bytes);
    assert_non_null(bed->loop);
    assert_non_null(bed->from);
    assert_non_null(bed->to);
    bed_fill(bed->from, bytes, SEED);
    ev_timer_init(&bed->flip, on_flip, 0, 0);
    bed->flip.data = bed;
    ev_timer_init(&bed->beats, on_tick, BED_HEARTBEAT_S, BED_HEARTBEAT_S);
    bed->beats.data = bed;
    ev_timer_start(bed->loop, &bed->beats);
}

static void source_start(struct bed *bed, uint16_t port)
{
    struct bt_kv_source_config config = {
        .name = BED_NAME_SOURCE,
        .address = "127.0.0.1",
        .port = port,
        .layout = bed->layout,
        .region = bed->from,
        .block_count = bed->blocks,
        .check = on_check,
        .released = on_released,
        .renewed = on_renewed,
        .arg = bed,
        .refused = on_refused,
    };
    char error[160] = "";
    enum bt_status status;

    bed->source_fabric = fabric_new(bed);
    status = bt_kv_source_start(bed->source_fabric, &config, &bed->source,
                                error, sizeof(error));
    if (status != BT_OK)
        fprintf(stderr, "source: %s\n", error);
    assert_int_equal(status, BT_OK);
    bed->port = bt_kv_source_port(bed->source);
    assert_true(bed->port > 0);
}

void bed_source(struct bed *bed)
{
    source_start(bed, 0);
}

struct bt_kv_sink *bed_other_sink(struct bed *bed, unsigned char *to)
{
    const struct bt_kv_sink_config config = {
        .name = "d0",
        .layout = bed->layout,
        .region = to,
        .block_count = bed->blocks,
        .connect_timeout_ns = 2000000000,
        .beat_ns = 50000000,
    };
    struct bt_kv_sink *sink = NULL;

    assert_int_equal(bt_kv_sink_create(bed->sink_fabric, &config, &sink),
                     BT_OK);
    return sink;
}

void bed_sink(struct bed *bed)
{
    bed->sink_fabric = fabric_new(bed);
    bed->sink = bed_other_sink(bed, bed->to);
}

void bed_close(struct bed *bed)
{
    if (bed->child > 0)
        bed_kill(bed, SIGKILL);
    bt_kv_sink_destroy(bed->sink);
    bt_fabric_destroy(bed->sink_fabric);
    bt_kv_source_stop(bed->source);
    bt_fabric_destroy(bed->source_fabric);
    ev_timer_stop(bed->loop, &bed->flip);
    ev_timer_stop(bed->loop, &bed->beats);
    ev_loop_destroy(bed->loop);
    free(bed->from);
    free(bed->to);
}

static void on_end(void *arg, const struct bt_kv_pull_end *end)
{
    struct bed_end *e = arg;

    e->calls++;
    e->end = *end;
    snprintf(e->peer, sizeof(e->peer), "%s", end->peer);
    snprintf(e->detail, sizeof(e->detail), "%s", end->detail);
    e->end.peer = e->peer;
    e->end.detail = e->detail;
    e->at_tick = e->bed->ticks;
}

enum bt_status bed_pull(struct bed *bed, struct bt_kv_sink *sink,
                        const char *request, const uint32_t *remote,
                        const uint32_t *local, size_t count, double deadline_s,
                        struct bed_end *end, struct bt_kv_pull **out)
{
    const struct bt_kv_pull_spec spec = {
        .host = "127.0.0.1",
        .port = bed->port,
        .request_id = request,
        .remote = remote,
        .local = local,
        .count = count,
        .deadline_ns = (int64_t)(deadline_s * 1e9),
    };
    struct bt_kv_pull *pull;

    memset(end, 0, sizeof(*end));
    end->bed = bed;
    return bt_kv_pull_start(sink, &spec, on_end, end, out ? out : &pull);
}

void bed_until(struct bed *bed, const int *flag, int value)
{
    double end = now_s() + GUARD_S;

    while (*flag < value) {
        ev_run(bed->loop, EVRUN_ONCE);
        if (now_s() > end)
            fail_msg("nothing happened for %.0f s", GUARD_S);
    }
}

void bed_until_landed(struct bed *bed, uint32_t block)
{
    const unsigned char *at = bed->to + block * bed->layout.block_bytes;
    double end = now_s() + GUARD_S;

    for (;;) {
        for (uint64_t i = 0; i < bed->layout.block_bytes; i++) {
            if (at[i] != 0)
                return;
        }
        ev_run(bed->loop, EVRUN_ONCE);
        if (now_s() > end)
            fail_msg("no byte landed for %.0f s", GUARD_S);
    }
}

/* ---- sources in processes of their own ---- */

void bed_spawn(struct bed *bed, uint16_t port)
{
    char args[5][24], reply[16] = "";
    char *argv[] = {(char[]){"bed"},
                    (char[]){"--source"},
                    args[0],
                    args[1],
                    args[2],
                    args[3],
                    NULL};
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    snprintf(args[0], sizeof(args[0]), "%d", fds[1]);
    snprintf(args[1], sizeof(args[1]), "%u", (unsigned int)port);
    snprintf(args[2], sizeof(args[2]), "%u", bed->blocks);
    snprintf(args[3], sizeof(args[3]), "%llu",
             (unsigned long long)bed->layout.block_bytes);
    assert_int_equal(
        posix_spawn(&bed->child, "/proc/self/exe", NULL, NULL, argv, environ),
        0);
    close(fds[1]);
    for (size_t got = 0; got < sizeof(reply) - 1;) {
        ssize_t n = read(fds[0], reply + got, sizeof(reply) - 1 - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
        if (memchr(reply, '\n', got) != NULL)
            break;
    }
    close(fds[0]);
    bed->port = (uint16_t)strtoul(reply, NULL, 10);
    assert_true(bed->port > 0);
}

void bed_kill(struct bed *bed, int signal_number)
{
    int status;

    assert_true(bed->child > 0);
    kill(bed->child, signal_number);
    if (signal_number != SIGKILL)
        return;
    while (waitpid(bed->child, &status, 0) < 0 && errno == EINTR)
        ;
    bed->child = 0;
}

void bed_child_main(int argc, char **argv)
{
    static struct bed bed;
    char line[16];
    int fd, size;

    if (argc != 6 || strcmp(argv[1], "--source") != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = (int)strtol(argv[2], NULL, 10);
    bed_open(&bed, bed_fabrics[0].create, (uint32_t)strtoul(argv[4], NULL, 10),
             strtoull(argv[5], NULL, 10));
    source_start(&bed, (uint16_t)strtoul(argv[3], NULL, 10));
    size = snprintf(line, sizeof(line), "%u\n", (unsigned int)bed.port);
    if (write(fd, line, (size_t)size) != size)
        exit(2);
    close(fd);
    ev_run(bed.loop, 0);
    exit(0);
}
