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

#define TESTS_MAX 64
#define RAILS     2u

#define KIND(name)                                                             \
    static enum bt_status create_##name(                                       \
        struct ev_loop *loop, const struct bt_fabric_config *config,           \
        struct bt_fabric **out, char *error, size_t size)                      \
    {                                                                          \
        struct bt_fabric_config c = *config;                                   \
                                                                               \
        c.kind = #name;                                                        \
        return bt_fabric_create(loop, &c, out, error, size);                   \
    }
KIND(ucx)
KIND(sim)
KIND(verbs)
#undef KIND

const struct bed_fabric bed_fabrics[] = {
    {"ucx", create_ucx, true, false},
    {"sim", create_sim, false, false},
    {"verbs", create_verbs, true, true},
    {NULL, NULL, false, false},
};

const uint8_t bed_key[32] = {1, 2, 3, 4, 5, 6, 7, 8};
const uint8_t bed_other_key[32] = {1, 2, 3, 4, 5, 6, 7, 9};

/* Item of a list with commas; the last one stands for all that follow. */
static const char *item(const char *list, uint32_t index, char out[48])
{
    for (uint32_t i = 0; i < index && strchr(list, ',') != NULL; i++)
        list = strchr(list, ',') + 1;
    snprintf(out, 48, "%.*s", (int)strcspn(list, ","), list);
    return out;
}

const char *bed_address(uint32_t rail)
{
    static const char *const own[RAILS] = {"127.0.0.1", "127.0.0.1"};
    static char given[RAILS][48];
    const char *list = getenv("BATON_FABRIC_ADDRESS");

    assert_true(rail < RAILS);
    return list == NULL ? own[rail] : item(list, rail, given[rail]);
}

static const char *device_of(uint32_t rail)
{
    static char given[RAILS][48];
    const char *list = getenv("BATON_FABRIC_DEVICE");

    return list == NULL ? NULL : item(list, rail, given[rail]);
}

double bed_slowness(void)
{
    const char *given = getenv("BATON_SLOW");
    double slowness = given != NULL ? strtod(given, NULL) : 1;

    return slowness >= 1 && slowness <= 20 ? slowness : 1;
}

uint32_t bed_part(uint32_t blocks)
{
    const char *given = getenv("BATON_DIVIDE");
    unsigned long by = given != NULL ? strtoul(given, NULL, 10) : 1;

    return by >= 1 && by <= 16 ? blocks / (uint32_t)by : blocks;
}

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

static enum bt_status on_check(void *arg, const struct bt_kv_ask *ask)
{
    struct bed *bed = arg;

    assert_non_null(ask->refs);
    assert_true(ask->count > 0);
    bed->checks++;
    bed->first_ref = ask->refs[0];
    if (strcmp(ask->request_id, "expired") == 0)
        return BT_LEASE_EXPIRED;
    if (strncmp(ask->request_id, "later", 5) == 0) {
        bed->ticket = ask->ticket;
        bed->asked++;
        return BT_AGAIN;
    }
    if (strncmp(ask->request_id, "ok", 2) != 0)
        return BT_NOT_FOUND;
    for (size_t i = 0; bed->keyed_refs && i < ask->count; i++)
        ask->blocks_out[i] = (uint32_t)(ask->refs[i] >> 32);
    if (bed->flip_after_s > 0) {
        ev_timer_set(&bed->flip, bed->flip_after_s, 0);
        ev_timer_start(bed->loop, &bed->flip);
    }
    return BT_OK;
}

static void on_left(void *arg, const char *request)
{
    struct bed *bed = arg;

    assert_non_null(request);
    bed->left++;
}

static void on_rail(void *arg, const struct bt_kv_rail_event *event)
{
    struct bed *bed = arg;

    if (event->is_first)
        return;
    bed->ups += event->is_up;
    bed->downs += !event->is_up;
    bed->last_rail = *event;
    if (event->is_up)
        return;
    snprintf(bed->last_why, sizeof(bed->last_why), "%s", event->detail);
    print_message("rail %u down: %s: %s\n", event->rail,
                  bt_status_name(event->status), event->detail);
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

static struct bt_fabric *fabric_new(struct bed *bed, const uint8_t *key)
{
    struct bt_rail_config rails[RAILS];
    const struct bt_fabric_config config = {
        .rails = rails,
        .rail_count = bed->rails > 0 ? bed->rails : 1,
        .rail_threads = getenv("BATON_RAIL_THREADS") != NULL,
        .key = key,
        .heartbeat_ns = (int64_t)(BED_HEARTBEAT_S * 1e9),
    };
    struct bt_fabric *fabric = NULL;
    char error[160] = "";
    enum bt_status status;

    assert_true(config.rail_count <= RAILS);
    for (uint32_t i = 0; i < config.rail_count; i++)
        rails[i] = (struct bt_rail_config){.device = device_of(i),
                                           .address = bed_address(i),
                                           .sim_latency_ns = 20000,
                                           .sim_rate_bytes_per_s = 1u << 28};
    status = bed->create(bed->loop, &config, &fabric, error, sizeof(error));
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
        .address = bed_address(0),
        .port = port,
        .region_name = bed->region_name,
        .keyed = bed->keyed_refs,
        .layout = bed->layout,
        .region = bed->from,
        .block_count = bed->blocks,
        .check = on_check,
        .released = on_released,
        .renewed = on_renewed,
        .arg = bed,
        .refused = on_refused,
        .left = on_left,
    };
    char error[160] = "";
    enum bt_status status;

    bed->source_fabric = fabric_new(bed, bed->key);
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

void bed_source_at(struct bed *bed, uint16_t port)
{
    source_start(bed, port);
}

struct bt_kv_sink *bed_other_sink(struct bed *bed, unsigned char *to)
{
    const struct bt_kv_sink_config config = {
        .name = "d0",
        .layout = bed->layout,
        .region = to,
        .block_count = bed->blocks,
        .connect_timeout_ns = (int64_t)(1e9 * (4 + bed_slowness())),
        .beat_ns = 50000000,
        .idle_ns = bed->idle_ns,
        .no_checksums = bed->no_checksums,
        .rail = on_rail,
        .arg = bed,
    };
    struct bt_kv_sink *sink = NULL;

    assert_int_equal(bt_kv_sink_create(bed->sink_fabric, &config, &sink),
                     BT_OK);
    return sink;
}

void bed_sink(struct bed *bed)
{
    bed->sink_fabric = fabric_new(bed, bed->sink_key);
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
    uint64_t *refs = malloc((count + 1) * sizeof(*refs));
    struct bt_kv_pull_spec spec = {
        .host = bed_address(0),
        .port = bed->port,
        .request_id = request,
        .remote = refs,
        .local = local,
        .count = count,
        .deadline_ns = (int64_t)(deadline_s * 1e9),
    };
    struct bt_kv_pull *pull;
    enum bt_status status;

    assert_non_null(refs);
    for (size_t i = 0; i < count; i++)
        refs[i] = bed->keyed_refs ? (uint64_t)remote[i] << 32 : remote[i];
    memset(end, 0, sizeof(*end));
    end->bed = bed;
    status = bt_kv_pull_start(sink, &spec, on_end, end, out ? out : &pull);
    free(refs);
    return status;
}

enum bt_status bed_pull_one(struct bed *bed, const char *request,
                            uint32_t remote, struct bed_end *end)
{
    const uint32_t local = 0;

    assert_int_equal(bed_pull(bed, bed->sink, request, &remote, &local, 1,
                              BED_LONG_S, end, NULL),
                     BT_OK);
    bed_until(bed, &end->calls, 1);
    return end->end.status;
}

void bed_same(const struct bed *bed, const unsigned char *to,
              const uint32_t *remote, const uint32_t *local, size_t count)
{
    uint64_t bytes = bed->layout.block_bytes;

    for (size_t i = 0; i < count; i++)
        assert_memory_equal(bed->from + remote[i] * bytes,
                            to + local[i] * bytes, bytes);
}

void bed_pull_ok(struct bed *bed, const uint32_t *remote, const uint32_t *local,
                 size_t count, uint32_t runs)
{
    struct bed_end end;
    int released = bed->released;

    assert_int_equal(bed_pull(bed, bed->sink, "ok", remote, local, count,
                              BED_LONG_S, &end, NULL),
                     BT_OK);
    assert_int_equal(end.calls, 0);
    bed_until(bed, &end.calls, 1);
    assert_int_equal(end.end.status, BT_OK);
    assert_int_equal(end.end.bytes, count * bed->layout.block_bytes);
    assert_int_equal(end.end.descriptors, runs);
    assert_string_equal(end.peer, BED_NAME_SOURCE);
    assert_true(end.end.duration_ns > 0);
    bed_same(bed, bed->to, remote, local, count);
    bed_until(bed, &bed->released, released + 1);
    assert_string_equal(bed->last_request, "ok");
    assert_int_equal(end.calls, 1);
}

void bed_line(uint32_t *blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = i;
}

void bed_slow(struct bed *bed, uint64_t rate, double setup_s)
{
    assert_int_equal(bt_fabric_pace(bed->sink_fabric, BED_NAME_SOURCE, rate,
                                    (int64_t)(setup_s * 1e9), "slow"),
                     BT_OK);
}

struct bt_fabric_stats bed_stats(const struct bt_fabric *fabric)
{
    struct bt_fabric_stats stats;

    bt_fabric_stats(fabric, &stats);
    return stats;
}

void bed_open_case(struct bed *bed, void **state, uint32_t blocks,
                   uint64_t block_bytes)
{
    const struct bed_case *c = *state;

    bed_open(bed, c->fabric->create, blocks, block_bytes);
    bed->rails = c->rails;
    bed->key = bed->sink_key = c->keyed ? bed_key : NULL;
}

void bed_both(struct bed *bed, void **state, uint32_t blocks,
              uint64_t block_bytes)
{
    bed_open_case(bed, state, blocks, block_bytes);
    bed_source(bed);
    bed_sink(bed);
}

void bed_need_spawn(void **state)
{
    const struct bed_case *c = *state;

    if (!c->fabric->spawns)
        skip();
}

void bed_until(struct bed *bed, const int *flag, int value)
{
    double end = now_s() + GUARD_S * bed_slowness();

    while (*flag < value) {
        ev_run(bed->loop, EVRUN_ONCE);
        if (now_s() > end)
            fail_msg("nothing happened for %.0f s", GUARD_S);
    }
}

/* Looks at memory that a rail's thread may be writing: a peek, no more. */
__attribute__((no_sanitize("thread"))) void bed_until_landed(struct bed *bed,
                                                             uint32_t block)
{
    const unsigned char *at = bed->to + block * bed->layout.block_bytes;
    double end = now_s() + GUARD_S * bed_slowness();

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

void bed_nothing_lands(struct bed *bed)
{
    size_t bytes = bed->blocks * (size_t)bed->layout.block_bytes;

    memset(bed->to, 0xEE, bytes);
    bed_until(bed, &bed->ticks, bed->ticks + 4);
    for (size_t i = 0; i < bytes; i++) {
        if (bed->to[i] != 0xEE)
            fail_msg("byte %zu was written after the call-back", i);
    }
}

/* ---- sources in processes of their own ---- */

void bed_spawn(struct bed *bed, uint16_t port)
{
    char args[7][24], reply[16] = "";
    char *argv[] = {(char[]){"bed"}, (char[]){"--source"},
                    args[0],         args[1],
                    args[2],         args[3],
                    args[4],         args[5],
                    args[6],         NULL};
    int fds[2];
    size_t row = 0;

    while (bed_fabrics[row].create != bed->create)
        row++;
    assert_int_equal(pipe(fds), 0);
    snprintf(args[0], sizeof(args[0]), "%d", fds[1]);
    snprintf(args[1], sizeof(args[1]), "%u", (unsigned int)port);
    snprintf(args[2], sizeof(args[2]), "%u", bed->blocks);
    snprintf(args[3], sizeof(args[3]), "%llu",
             (unsigned long long)bed->layout.block_bytes);
    snprintf(args[4], sizeof(args[4]), "%zu", row);
    snprintf(args[5], sizeof(args[5]), "%u", bed->rails);
    snprintf(args[6], sizeof(args[6]), "%d", bed->key != NULL);
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

    if (argc != 9 || strcmp(argv[1], "--source") != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = (int)strtol(argv[2], NULL, 10);
    bed_open(&bed, bed_fabrics[strtoul(argv[6], NULL, 10)].create,
             (uint32_t)strtoul(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
    bed.rails = (uint32_t)strtoul(argv[7], NULL, 10);
    bed.key = strcmp(argv[8], "1") == 0 ? bed_key : NULL;
    source_start(&bed, (uint16_t)strtoul(argv[3], NULL, 10));
    size = snprintf(line, sizeof(line), "%u\n", (unsigned int)bed.port);
    if (write(fd, line, (size_t)size) != size)
        exit(2);
    close(fd);
    ev_run(bed.loop, 0);
    exit(0);
}

/* ---- suites ---- */

static bool is_wanted(const struct bed_fabric *fabric)
{
    const char *only = getenv("BATON_FABRIC");

    return only == NULL ? strcmp(fabric->name, "verbs") != 0
                        : strcmp(fabric->name, only) == 0;
}

int bed_main(int argc, char **argv, const struct CMUnitTest *tests,
             size_t count, const struct bed_variant *variants, size_t n)
{
    int failed = 0, ran = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    bed_child_main(argc, argv);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    for (const struct bed_fabric *f = bed_fabrics; f->name != NULL; f++) {
        for (size_t v = 0; v < n && is_wanted(f); v++) {
            struct bed_case c = {f, variants[v].rails, variants[v].keyed};
            struct CMUnitTest copy[TESTS_MAX];
            char name[64];

            assert_true(count <= TESTS_MAX);
            snprintf(name, sizeof(name), "%s, %u rail(s)%s", f->name, c.rails,
                     c.keyed ? ", key" : "");
            for (size_t i = 0; i < count; i++) {
                copy[i] = tests[i];
                copy[i].initial_state = &c;
            }
            ran++;
            failed += _cmocka_run_group_tests(name, copy, count, NULL, NULL);
        }
    }
    return ran > 0 ? failed : 1; /* a fabric that is not there is no success */
}
