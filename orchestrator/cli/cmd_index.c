/* `baton index`: the prefix index as a service of its own. Decides how options
 * and a serve configuration become a service, when the process ends and what
 * it says: one JSON line on stdout when it listens, its log on stderr.
 *
 * SIGTERM and SIGINT end it: a last snapshot is written, exit code 0, or 1
 * when that could not be done.
 */
#include "command.h"
#include "daemon.h"
#include "parent.h"

#include "baton/orchestrator/config.h"
#include "baton/orchestrator/index_service.h"
#include "baton/orchestrator/log.h"
#include "baton/orchestrator/snapshot.h"
#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Of blocks and of holdings: what a prefix index can number. */
#define TABLE_MAX (UINT64_C(1) << 30)

struct index_options {
    const char *listen, *config, *snapshot;
    uint64_t blocks, holdings, workers, scopes;
    int64_t interval_ns, idle_ns;
    bool die_with_parent;
};

#define AT(member) offsetof(struct index_options, member)

static const struct bt_option options[] = {
    {"listen", 'l', BT_OPTION_STRING, "ADDR:PORT",
     "HTTP, port 0 picks one (127.0.0.1:9466)", AT(listen)},
    {"config", 'c', BT_OPTION_STRING, "FILE",
     "take workers, models and events of this serve configuration", AT(config)},
    {"blocks", 0, BT_OPTION_U64, "N", "distinct blocks per scope (1048576)",
     AT(blocks)},
    {"holdings", 0, BT_OPTION_U64, "N",
     "engine blocks per scope, over all workers (twice --blocks)",
     AT(holdings)},
    {"workers", 0, BT_OPTION_U64, "N",
     "registrations, and ranks per scope (1024)", AT(workers)},
    {"scopes", 0, BT_OPTION_U64, "N",
     "indexes: model, block size, tenant, salt, group (16)", AT(scopes)},
    {"snapshot", 's', BT_OPTION_STRING, "FILE",
     "for a warm restart; none without", AT(snapshot)},
    {"snapshot-interval", 0, BT_OPTION_DURATION, "TIME",
     "between snapshots, 0s: only at the end (30s)", AT(interval_ns)},
    {"idle-check", 0, BT_OPTION_DURATION, "TIME",
     "quiet engines are asked for their last events, 0s: never (10s)",
     AT(idle_ns)},
    {"die-with-parent", 0, BT_OPTION_FLAG, NULL,
     "end when the parent process ends", AT(die_with_parent)},
    {0},
};

static int run(int argc, char **argv);

const struct bt_command bt_command_index = {
    .name = "index",
    .summary = "prefix index of many engines, over HTTP",
    .arguments = "",
    .options = options,
    .run = run,
};

/* ---- options into configuration ---- */

static int usage(const char *what)
{
    fprintf(stderr, "baton index: %s; see baton index --help\n", what);
    return BT_EXIT_USAGE;
}

static int read_options(struct index_options *o,
                        struct bt_index_service_config *c, char *address,
                        size_t size)
{
    if (!daemon_address(o->listen, address, size, &c->port))
        return usage("--listen is ADDR:PORT, such as 127.0.0.1:9466");
    if (o->holdings == 0)
        o->holdings = 2 * o->blocks;
    if (o->blocks == 0 || o->blocks > TABLE_MAX || o->holdings > TABLE_MAX)
        return usage("--blocks and --holdings are 1 to 1073741824 "
                     "(--holdings is twice --blocks if not given)");
    if (o->workers == 0 || o->workers > 65535)
        return usage("--workers is 1 to 65535");
    if (o->scopes == 0 || o->scopes > 4096)
        return usage("--scopes is 1 to 4096");
    c->address = address;
    c->blocks_max = (uint32_t)o->blocks;
    c->holdings_max = (uint32_t)o->holdings;
    c->workers_max = (uint32_t)o->workers;
    c->scopes_max = (uint32_t)o->scopes;
    c->snapshot = o->snapshot;
    c->snapshot_interval_ns = o->interval_ns;
    c->idle_check_ns = o->idle_ns;
    c->say = daemon_say;
    return BT_EXIT_OK;
}

static void take_plane(const struct bt_config *from,
                       struct bt_event_plane_config *to)
{
    to->bind = from->events.bind;
    to->held_batches = from->events.held_batches;
    to->held_bytes = from->events.held_bytes;
    to->held_total = from->events.held_total;
    to->parked_events = from->events.parked_events;
    to->parked_ns = from->events.parked_ns;
    to->replays_max = from->events.replays_max;
    to->silence_ns = from->events.silence_ns;
    to->replay_ns = from->events.replay_ns;
    to->cooldown_ns = from->events.cooldown_ns;
    to->busy_silent_ns = 0; /* nobody tells us how busy an engine is */
}

/* False: it does not fit. NULL is "". */
static bool put_text(char out[BT_INDEX_TEXT_MAX], const char *text)
{
    int n = snprintf(out, BT_INDEX_TEXT_MAX, "%s", text == NULL ? "" : text);

    return n >= 0 && n < BT_INDEX_TEXT_MAX;
}

static int register_worker(struct bt_index_service *service,
                           const struct bt_config *config, uint32_t w)
{
    const struct bt_worker_config *worker = &config->workers[w];
    const struct bt_model_config *model = &config->models[worker->model];
    struct bt_index_instance in;
    char error[256] = "a name or endpoint is longer than 255 bytes";

    if (worker->events == NULL && worker->events_topic == NULL)
        return BT_EXIT_OK; /* nothing to know of it */
    bt_index_instance_init(&in);
    in.block_tokens = model->block_size;
    in.ranks = worker->ranks;
    in.removals = worker->removals;
    in.hash = model->engine_hash;
    in.hash_seed = model->engine_hash_seed;
    in.eagle = model->engine.eagle;
    if (put_text(in.instance, worker->name) &&
        put_text(in.model, model->name) &&
        put_text(in.endpoint, worker->events) &&
        put_text(in.topic, worker->events_topic) &&
        put_text(in.replay, worker->replay) &&
        bt_index_service_register(service, &in, error, sizeof(error)) == BT_OK)
        return BT_EXIT_OK;
    fprintf(stderr, "baton index: worker %s: %s\n", worker->name, error);
    return BT_EXIT_CONFIG;
}

/* ---- the process ---- */

static void say_ready(const struct bt_index_service *service,
                      const struct bt_index_service_config *c)
{
    printf("{\"ready\":true,\"address\":\"%s\",\"http\":%u}\n", c->address,
           bt_index_service_port(service));
    fflush(stdout);
}

struct plan {
    const struct bt_config *config; /* NULL: none */
    const struct bt_index_service_config *service;
};

static int serve(struct ev_loop *loop, void *arg)
{
    const struct plan *plan = arg;
    const struct bt_config *config = plan->config;
    const struct bt_index_service_config *c = plan->service;
    struct bt_index_service *service = NULL;
    char error[256] = "";
    int code = BT_EXIT_OK;

    if (bt_index_service_create(loop, c, &service, error, sizeof(error)) !=
        BT_OK) {
        fprintf(stderr, "baton index: %s\n", error);
        return BT_EXIT_FAILED;
    }
    for (uint32_t w = 0; config != NULL && w < config->worker_count; w++)
        if (code == BT_EXIT_OK)
            code = register_worker(service, config, w);
    if (code == BT_EXIT_OK) {
        bt_index_service_begin(service);
        say_ready(service, c);
        ev_run(loop, 0);
        if (bt_index_service_save(service) != BT_OK)
            code = BT_EXIT_FAILED;
    }
    bt_index_service_destroy(service);
    return code;
}

static bool can_save(const struct bt_index_service_config *c)
{
    char error[256] = "";

    if (c->snapshot == NULL ||
        bt_snapshot_probe(c->snapshot, error, sizeof(error)) == BT_OK)
        return true;
    fprintf(stderr, "baton index: --snapshot cannot be written: %s\n", error);
    return false;
}

static int run(int argc, char **argv)
{
    struct bt_index_service_config c;
    struct index_options o = {.listen = "127.0.0.1:9466"};
    struct bt_config *config = NULL;
    char address[128], error[512];
    int first = 0, code;

    bt_index_service_config_init(&c);
    o.blocks = c.blocks_max;
    o.workers = c.workers_max;
    o.scopes = c.scopes_max;
    o.interval_ns = c.snapshot_interval_ns;
    o.idle_ns = c.idle_check_ns;
    code = bt_options_parse(&bt_command_index, argc, argv, &o, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return usage("no arguments expected");
    code = read_options(&o, &c, address, sizeof(address));
    if (code != BT_EXIT_OK)
        return code;
    if (o.die_with_parent && !parent_follow("index"))
        return BT_EXIT_FAILED;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a snapshot beyond the limit fails, not we */
    daemon_limit_raise(RLIMIT_NOFILE); /* up to four per rank of an engine */
    if (o.config != NULL &&
        bt_config_load(o.config, &config, error, sizeof(error)) != BT_OK) {
        fprintf(stderr, "%s\n", error);
        return BT_EXIT_CONFIG;
    }
    bt_log_init(config != NULL ? config->log_level : BT_LOG_INFO,
                config != NULL ? config->log_format : BT_LOG_AUTO);
    if (config != NULL)
        take_plane(config, &c.plane);
    struct plan plan = {config, &c};
    code = can_save(&c) ? daemon_run("index", serve, &plan) : BT_EXIT_CONFIG;
    if (config != NULL)
        bt_config_destroy(config);
    return code;
}
