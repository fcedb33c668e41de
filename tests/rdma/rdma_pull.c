/* A source and a sink of KV blocks as two processes, for tests that break what
 * lies between them. The sink pulls without pause, checks every byte against
 * what the block must hold (not against what the source sent), and prints how
 * each pull ended; scripts inject the faults and judge the lines.
 *
 * Each pull under way owns a window of the sink's region, which is overwritten
 * before it starts: bytes of an earlier pull never pass for new ones. */
#include "rdma_pull.h"
#include "baton/base/status.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON     0xA5
#define AGAIN_S    0.05 /* between a failed pull and the next */
#define OVERTIME_S 20.0 /* past its deadline a pull is called hung */
#define EXIT_START 3
#define EXIT_HUNG  4
#define EXIT_WRONG 5

struct run;

/* One of the pulls under way. */
struct slot {
    struct run *run;
    ev_timer again;
    uint32_t index, first_remote;
    uint64_t *remote;
    uint32_t *local;
    double started_ms;
    bool is_busy;
};

struct run {
    const struct pull_args *args;
    struct ev_loop *loop;
    struct bt_fabric *fabric;
    struct bt_kv_source *source;
    struct bt_kv_sink *sink;
    unsigned char *region;
    struct slot slots[PULL_AT_ONCE_MAX];
    ev_timer stop, watch;
    uint32_t started, ok, failed, wrong;
    uint64_t bytes, rail_bytes[BT_RAILS_MAX];
    double slowest_ms;
    bool is_ending;
    int code;
};

static void say_error(const char *where, enum bt_status status,
                      const char *text)
{
    char safe[256];

    pull_quote(text, safe, sizeof(safe));
    printf("{\"event\":\"error\",\"where\":\"%s\",\"status\":\"%s\","
           "\"text\":\"%s\",\"at_ms\":%.1f}\n",
           where, bt_status_name(status), safe, pull_now_ms());
}

static bool fabric_open(struct run *run)
{
    const struct pull_args *args = run->args;
    const struct bt_fabric_config config = {
        .kind = args->fabric,
        .rails = args->rails,
        .rail_count = args->rail_count,
        .heartbeat_ns = (int64_t)(args->heartbeat_s * 1e9),
        .chunk_bytes = args->chunk_bytes,
    };
    char error[256] = "";
    enum bt_status status = bt_fabric_create(run->loop, &config, &run->fabric,
                                             error, sizeof(error));

    if (status != BT_OK)
        say_error("fabric", status, error);
    return status == BT_OK;
}

static struct bt_kv_layout layout_of(const struct pull_args *args)
{
    return (struct bt_kv_layout){1, 16, args->block_bytes, 0xBA70};
}

/* ---- source ---- */

/* Everything may be read. */
static enum bt_status on_check(void *arg, const struct bt_kv_ask *ask)
{
    (void)arg;
    (void)ask;
    return BT_OK;
}

static void on_request(void *arg, const char *request)
{
    (void)arg;
    (void)request;
}

static void on_refused(void *arg, const char *sink, const char *reason)
{
    (void)arg;
    (void)sink;
    say_error("sink refused", BT_INCOMPATIBLE, reason);
}

static bool source_open(struct run *run)
{
    const struct pull_args *args = run->args;
    const struct bt_kv_source_config config = {
        .name = "p0",
        .address = args->host,
        .port = args->port,
        .layout = layout_of(args),
        .region = run->region,
        .block_count = args->blocks,
        .check = on_check,
        .released = on_request,
        .renewed = on_request,
        .refused = on_refused,
        .arg = run,
    };
    char error[256] = "";
    enum bt_status status;

    pull_fill(run->region, args->blocks, args->block_bytes);
    status = bt_kv_source_start(run->fabric, &config, &run->source, error,
                                sizeof(error));
    if (status != BT_OK) {
        say_error("source", status, error);
        return false;
    }
    printf("{\"event\":\"ready\",\"port\":%u,\"at_ms\":%.1f}\n",
           (unsigned int)bt_kv_source_port(run->source), pull_now_ms());
    return true;
}

/* ---- sink ---- */

static unsigned char *window(const struct slot *slot)
{
    const struct pull_args *args = slot->run->args;

    return slot->run->region +
           (size_t)slot->index * args->pull_blocks * args->block_bytes;
}

static uint32_t wrong_blocks(const struct slot *slot)
{
    const struct pull_args *args = slot->run->args;
    uint32_t wrong = 0;

    for (uint32_t i = 0; i < args->pull_blocks; i++) {
        if (!pull_is_block(window(slot) + (size_t)i * args->block_bytes,
                           (uint32_t)slot->remote[i], args->block_bytes))
            wrong++;
    }
    return wrong;
}

static void say_pull(const struct slot *slot, const struct bt_kv_pull_end *end,
                     uint32_t wrong, double ms)
{
    const struct run *run = slot->run;
    char detail[192];

    pull_quote(end->detail, detail, sizeof(detail));
    printf("{\"event\":\"pull\",\"slot\":%u,\"status\":\"%s\",\"ms\":%.1f,"
           "\"bytes\":%llu,\"wrong\":%u,\"at_ms\":%.1f,\"rails\":[",
           slot->index, bt_status_name(end->status), ms,
           (unsigned long long)end->bytes, wrong, pull_now_ms());
    for (uint32_t r = 0; r < run->args->rail_count; r++)
        printf("%s%llu", r ? "," : "", (unsigned long long)end->rail_bytes[r]);
    printf("],\"detail\":\"%s\"}\n", detail);
}

static void maybe_end(struct run *run)
{
    if (!run->is_ending)
        return;
    for (uint32_t i = 0; i < run->args->at_once; i++) {
        if (run->slots[i].is_busy)
            return;
    }
    ev_break(run->loop, EVBREAK_ALL);
}

static void note(struct run *run, const struct bt_kv_pull_end *end, double ms)
{
    if (ms > run->slowest_ms)
        run->slowest_ms = ms;
    for (uint32_t r = 0; r < run->args->rail_count; r++)
        run->rail_bytes[r] += end->rail_bytes[r];
    if (end->status != BT_OK) {
        run->failed++;
        return;
    }
    run->ok++;
    run->bytes += end->bytes;
}

static void slot_start(struct slot *slot);

static void on_end(void *arg, const struct bt_kv_pull_end *end)
{
    struct slot *slot = arg;
    struct run *run = slot->run;
    uint32_t wrong = end->status == BT_OK ? wrong_blocks(slot) : 0;
    double ms = pull_now_ms() - slot->started_ms;

    slot->is_busy = false;
    note(run, end, ms);
    if (wrong > 0) {
        run->wrong += wrong;
        run->code = EXIT_WRONG;
    }
    say_pull(slot, end, wrong, ms);
    if (end->status == BT_OK) {
        slot_start(slot);
        return;
    }
    ev_timer_set(&slot->again, AGAIN_S, 0);
    ev_timer_start(run->loop, &slot->again);
    maybe_end(run);
}

/* Blocks that are neighbours in pairs only, another set each time. */
static void slot_list(struct slot *slot)
{
    const struct pull_args *args = slot->run->args;

    for (uint32_t i = 0; i < args->pull_blocks; i++) {
        uint32_t at = slot->first_remote + i / 2 * 3 + i % 2;

        slot->remote[i] = at % args->blocks;
        slot->local[i] = slot->index * args->pull_blocks + i;
    }
    slot->first_remote = (slot->first_remote + 7) % args->blocks;
}

static void slot_start(struct slot *slot)
{
    struct run *run = slot->run;
    const struct pull_args *args = run->args;
    struct bt_kv_pull_spec spec = {
        .host = args->host,
        .port = args->port,
        .request_id = "r",
        .remote = slot->remote,
        .local = slot->local,
        .count = args->pull_blocks,
        .deadline_ns = (int64_t)(args->deadline_s * 1e9),
    };
    struct bt_kv_pull *pull;
    enum bt_status status;

    if (args->pulls > 0 && run->started == args->pulls)
        run->is_ending = true;
    if (run->is_ending) {
        maybe_end(run);
        return;
    }
    slot_list(slot);
    memset(window(slot), POISON, (size_t)args->pull_blocks * args->block_bytes);
    slot->started_ms = pull_now_ms();
    status = bt_kv_pull_start(run->sink, &spec, on_end, slot, &pull);
    if (status != BT_OK) {
        say_error("pull", status, bt_status_text(status));
        run->code = EXIT_START;
        run->is_ending = true;
        maybe_end(run);
        return;
    }
    slot->is_busy = true;
    run->started++;
}

static void on_again(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    slot_start(w->data);
}

static void on_stop(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct run *run = w->data;

    (void)loop;
    (void)revents;
    run->is_ending = true;
    maybe_end(run);
}

/* A pull that outlives its deadline by far is a hang: say so and go, as an
 * orderly end could hang as well. */
static void on_watch(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct run *run = w->data;
    double limit_ms = (run->args->deadline_s + OVERTIME_S) * 1e3;

    (void)loop;
    (void)revents;
    for (uint32_t i = 0; i < run->args->at_once; i++) {
        const struct slot *slot = &run->slots[i];

        if (!slot->is_busy || pull_now_ms() - slot->started_ms < limit_ms)
            continue;
        printf("{\"event\":\"hung\",\"slot\":%u,\"at_ms\":%.1f}\n", i,
               pull_now_ms());
        exit(EXIT_HUNG);
    }
}

static void on_rail(void *arg, const struct bt_kv_rail_event *event)
{
    char detail[192];

    (void)arg;
    pull_quote(event->is_up ? event->carrier : event->detail, detail,
               sizeof(detail));
    printf("{\"event\":\"rail\",\"rail\":%u,\"up\":%s,\"status\":\"%s\","
           "\"at_ms\":%.1f,\"detail\":\"%s\"}\n",
           event->rail, event->is_up ? "true" : "false",
           bt_status_name(event->status), pull_now_ms(), detail);
}

static bool sink_open(struct run *run)
{
    const struct pull_args *args = run->args;
    const struct bt_kv_sink_config config = {.name = "d0",
                                             .layout = layout_of(args),
                                             .region = run->region,
                                             .block_count = args->blocks,
                                             .rail = on_rail,
                                             .arg = run};
    enum bt_status status = bt_kv_sink_create(run->fabric, &config, &run->sink);

    if (status != BT_OK) {
        const char *why = bt_fabric_map_error(run->fabric);

        say_error("sink", status,
                  why[0] != '\0' ? why : bt_status_text(status));
        return false;
    }
    ev_timer_init(&run->stop, on_stop, args->seconds, 0);
    run->stop.data = run;
    ev_timer_start(run->loop, &run->stop);
    ev_timer_init(&run->watch, on_watch, 1, 1);
    run->watch.data = run;
    ev_timer_start(run->loop, &run->watch);
    for (uint32_t i = 0; i < args->at_once; i++) {
        struct slot *slot = &run->slots[i];

        *slot = (struct slot){.run = run, .index = i, .first_remote = i * 31};
        slot->remote = calloc(args->pull_blocks, sizeof(*slot->remote));
        slot->local = calloc(args->pull_blocks, sizeof(*slot->local));
        if (slot->remote == NULL || slot->local == NULL) {
            say_error("sink", BT_NO_MEMORY, "lists of blocks");
            return false;
        }
        ev_timer_init(&slot->again, on_again, AGAIN_S, 0);
        slot->again.data = slot;
        slot_start(slot);
    }
    return true;
}

static void say_end(const struct run *run)
{
    printf("{\"event\":\"end\",\"pulls\":%u,\"ok\":%u,\"failed\":%u,"
           "\"wrong\":%u,\"bytes\":%llu,\"slowest_ms\":%.1f,\"rails\":[",
           run->started, run->ok, run->failed, run->wrong,
           (unsigned long long)run->bytes, run->slowest_ms);
    for (uint32_t r = 0; r < run->args->rail_count; r++)
        printf("%s%llu", r ? "," : "", (unsigned long long)run->rail_bytes[r]);
    printf("]}\n");
}

/* ---- main ---- */

static void run_close(struct run *run)
{
    for (uint32_t i = 0; i < PULL_AT_ONCE_MAX; i++) {
        ev_timer_stop(run->loop, &run->slots[i].again);
        free(run->slots[i].remote);
        free(run->slots[i].local);
    }
    ev_timer_stop(run->loop, &run->stop);
    ev_timer_stop(run->loop, &run->watch);
    bt_kv_sink_destroy(run->sink);
    bt_kv_source_stop(run->source);
    bt_fabric_destroy(run->fabric);
    ev_loop_destroy(run->loop);
    free(run->region);
}

static void on_term(struct ev_loop *loop, ev_signal *w, int revents)
{
    (void)w;
    (void)revents;
    ev_break(loop, EVBREAK_ALL);
}

int main(int argc, char **argv)
{
    static struct run run;
    static struct pull_args args;
    ev_signal term;
    bool is_open = false;

    if (!pull_args_read(argc, argv, &args))
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    run.args = &args;
    run.loop = ev_loop_new(EVFLAG_AUTO);
    run.region = aligned_alloc(
        4096, ((size_t)args.blocks * args.block_bytes + 4095) / 4096 * 4096);
    if (run.loop == NULL || run.region == NULL)
        return EXIT_START;
    ev_signal_init(&term, on_term, SIGTERM);
    ev_signal_start(run.loop, &term);
    if (fabric_open(&run))
        is_open = args.is_source ? source_open(&run) : sink_open(&run);
    if (is_open)
        ev_run(run.loop, 0);
    else
        run.code = EXIT_START;
    if (is_open && !args.is_source)
        say_end(&run);
    ev_signal_stop(run.loop, &term);
    run_close(&run);
    return run.code;
}
