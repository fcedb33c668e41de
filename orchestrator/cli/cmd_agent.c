/* `baton agent`: the transfer agent of a node as a process. Decides how options
 * become a bt_agent_service_config, when the process ends and what it says: one
 * JSON line on stdout when it is ready, its log on stderr.
 *
 * SIGTERM and SIGINT end it with exit code 0.
 */
#include "cmd_agent_calibration.h"
#include "command.h"
#include "daemon.h"
#include "parent.h"
#include "transfer_options.h"

#include "baton/base/units.h"
#include "baton/orchestrator/agent_service.h"
#include "baton/orchestrator/log.h"

#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct agent_options {
    const char *name, *listen, *http, *key_file, *fabric, *transports, *nvme;
    const char *model_hash, *calibration, *window_target;
    uint64_t host_pool, block_bytes, probe_bytes, block_tokens, version;
    uint64_t chunk, inflight;
    bool require_rdma, insecure, die_with_parent;
    struct bt_option_list rails;
};

#define AT(member) offsetof(struct agent_options, member)

static const struct bt_option options[] = {
    {"name", 0, BT_OPTION_STRING, "NAME", "name towards peers (agent)",
     AT(name)},
    {"listen", 'l', BT_OPTION_STRING, "ADDR:PORT",
     "transfers, port 0 picks one (127.0.0.1:0)", AT(listen)},
    {"http", 0, BT_OPTION_STRING, "ADDR:PORT",
     "state, metrics and pool, port 0 picks one (127.0.0.1:0)", AT(http)},
    {"key-file", 0, BT_OPTION_STRING, "FILE",
     "key that all peers hold: 64 hex digits, or 32 bytes", AT(key_file)},
    {"insecure", 0, BT_OPTION_FLAG, NULL,
     "listen beyond loopback without a key, and with HTTP", AT(insecure)},
    {"fabric", 0, BT_OPTION_STRING, "KIND",
     "what bytes move by: ucx, verbs or sim (ucx)", AT(fabric)},
    {"transports", 0, BT_OPTION_STRING, "LIST", "UCX_TLS (tcp,self)",
     AT(transports)},
    {"rail", 0, BT_OPTION_LIST, TRANSFER_RAIL,
     "NIC that carries bytes, e.g. r0=10.0.0.1@mlx5_0:1,gid=3; keys: gid, "
     "partition, mtu, class, rate, transports; repeatable",
     AT(rails)},
    {"chunk", 0, BT_OPTION_SIZE, "BYTES", "largest single read (1MiB)",
     AT(chunk)},
    {"inflight", 0, BT_OPTION_U64, "N",
     "most reads under way per peer and rail (16)", AT(inflight)},
    {"window-target", 0, BT_OPTION_STRING, "TIME|off",
     "reads become fewer and smaller while they take longer; off: never (4ms)",
     AT(window_target)},
    {"require-rdma", 0, BT_OPTION_FLAG, NULL,
     "refuse to start when bytes would go by TCP", AT(require_rdma)},
    {"host-pool", 0, BT_OPTION_SIZE, "BYTES",
     "pool of KV blocks in host memory, 0: none (0)", AT(host_pool)},
    {"nvme", 0, BT_OPTION_STRING, "PATH:BYTES",
     "file below the pool, made if absent", AT(nvme)},
    {"block-bytes", 0, BT_OPTION_SIZE, "BYTES",
     "of one block of the pool (4KiB)", AT(block_bytes)},
    {"block-tokens", 0, BT_OPTION_U64, "N",
     "tokens per block, as the engines have it (16)", AT(block_tokens)},
    {"kv-layout-version", 0, BT_OPTION_U64, "N",
     "peers with another one are refused (1)", AT(version)},
    {"model-hash", 0, BT_OPTION_STRING, "HEX",
     "model of the pool's blocks, as engines report it (0)", AT(model_hash)},
    {"calibration", 0, BT_OPTION_STRING, "FILE",
     "what baton probe --output json printed: paths start with it",
     AT(calibration)},
    {"probe-size", 0, BT_OPTION_SIZE, "BYTES",
     "scratch region that peers measure the path with (64MiB)",
     AT(probe_bytes)},
    {"die-with-parent", 0, BT_OPTION_FLAG, NULL,
     "end when the parent process ends", AT(die_with_parent)},
    {0},
};

static int run(int argc, char **argv);

const struct bt_command bt_command_agent = {
    .name = "agent",
    .summary = "transfer agent of a node: pool, probe region, telemetry",
    .arguments = "",
    .options = options,
    .run = run,
};

/* Texts that the configuration points to. */
struct texts {
    char listen[256], http[256], nvme[512];
    struct transfer_rails rails;
    uint8_t key[TRANSFER_KEY];
};

static int usage(const char *what)
{
    fprintf(stderr, "baton agent: %s; see baton agent --help\n", what);
    return BT_EXIT_USAGE;
}

/* ---- options into configuration ---- */

/* PATH:BYTES, cut at the last colon. */
static bool read_nvme(const char *text, char *path, size_t size,
                      uint64_t *bytes_out)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : 0;

    if (n == 0 || n >= size || bt_size_parse(colon + 1, bytes_out) != BT_OK)
        return false;
    memcpy(path, text, n);
    path[n] = '\0';
    return true;
}

static bool read_hex(const char *text, uint64_t *out)
{
    char *end = NULL;

    if (text[0] == '\0' || strlen(text) > 18 || text[0] == '-')
        return false;
    *out = strtoull(text, &end, 16);
    return *end == '\0';
}

/* NULL: 0, the agent's own. */
static bool read_target(const char *text, int64_t *ns_out)
{
    if (text == NULL)
        return true;
    *ns_out = -1;
    if (strcmp(text, "off") == 0)
        return true;
    return bt_duration_parse(text, ns_out) == BT_OK && *ns_out > 0;
}

static int read_transfer(const struct agent_options *o,
                         struct bt_agent_service_config *c, struct texts *texts)
{
    char error[200];

    if (!transfer_fabric_known(o->fabric))
        return usage("--fabric is ucx, verbs or sim");
    for (size_t i = 0; i < o->rails.count; i++) {
        if (!transfer_rail_add(&texts->rails, o->rails.items[i], error,
                               sizeof(error))) {
            fprintf(stderr, "baton agent: --rail '%s': %s\n", o->rails.items[i],
                    error);
            return BT_EXIT_USAGE;
        }
    }
    if (!transfer_rails_resolve("agent", o->fabric, &texts->rails))
        return BT_EXIT_CONFIG;
    c->rails = texts->rails.rails;
    if (o->chunk > UINT32_MAX || o->inflight > 65536)
        return usage("--chunk is below 4GiB, --inflight at most 65536");
    c->chunk_bytes = (uint32_t)o->chunk;
    c->inflight_max = (uint32_t)o->inflight;
    if (!read_target(o->window_target, &c->window_target_ns))
        return usage("--window-target is a time above 0, or off");
    c->rail_count = texts->rails.count;
    c->fabric = o->fabric;
    c->transports = o->transports;
    c->insecure = o->insecure;
    c->require_rdma = o->require_rdma;
    if (o->key_file == NULL)
        return BT_EXIT_OK;
    if (!transfer_key_read("agent", o->key_file, texts->key))
        return BT_EXIT_CONFIG;
    c->key = texts->key;
    return BT_EXIT_OK;
}

static int read_pool(const struct agent_options *o,
                     struct bt_agent_service_config *c, struct texts *texts)
{
    if (o->block_tokens > UINT32_MAX || o->version > UINT32_MAX)
        return usage("a number is above 4294967295");
    if (o->nvme != NULL) {
        if (!read_nvme(o->nvme, texts->nvme, sizeof(texts->nvme),
                       &c->nvme_bytes))
            return usage("--nvme is PATH:BYTES, such as /kv/pool:100GiB");
        c->nvme_path = texts->nvme;
    }
    if (!read_hex(o->model_hash, &c->model_hash))
        return usage("--model-hash is up to 16 hex digits");
    c->host_pool_bytes = o->host_pool;
    c->block_bytes = o->block_bytes;
    c->block_tokens = (uint32_t)o->block_tokens;
    c->layout_version = (uint32_t)o->version;
    c->probe_bytes = o->probe_bytes;
    return BT_EXIT_OK;
}

static bool good_name(const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n; i++) {
        if (name[i] <= ' ' || name[i] == '"' || name[i] == '\\' ||
            name[i] > '~')
            return false;
    }
    return n > 0 && n < 64;
}

static int read_options(const struct agent_options *o,
                        struct bt_agent_service_config *c, struct texts *texts)
{
    if (!good_name(o->name))
        return usage("--name is 1 to 63 plain characters");
    if (!daemon_address(o->listen, texts->listen, sizeof(texts->listen),
                        &c->port))
        return usage("--listen is ADDR:PORT, such as 10.0.0.1:9468");
    if (!daemon_address(o->http, texts->http, sizeof(texts->http),
                        &c->http_port))
        return usage("--http is ADDR:PORT, such as 127.0.0.1:9467");
    if (!transfer_host("agent", "listen", texts->listen, texts->listen) ||
        !transfer_host("agent", "http", texts->http, texts->http))
        return BT_EXIT_CONFIG;
    c->name = o->name;
    c->address = texts->listen;
    c->http_address = texts->http;
    c->say = daemon_say;
    int code = read_transfer(o, c, texts);
    return code != BT_EXIT_OK ? code : read_pool(o, c, texts);
}

/* ---- the process ---- */

static int exit_code_of(enum bt_status status)
{
    switch (bt_status_class_of(status)) {
    case BT_CLASS_CONFIG:
        return status == BT_EXISTS ? BT_EXIT_FAILED : BT_EXIT_CONFIG;
    case BT_CLASS_NONE:
    case BT_CLASS_RETRY:
    case BT_CLASS_PEER:
    case BT_CLASS_BUG:
        break;
    }
    return BT_EXIT_FAILED;
}

static int serve(struct ev_loop *loop, void *arg)
{
    const struct bt_agent_service_config *c = arg;
    struct bt_agent_service *service = NULL;
    char error[256] = "";
    enum bt_status status =
        bt_agent_service_create(loop, c, &service, error, sizeof(error));

    if (status != BT_OK) {
        fprintf(stderr, "baton agent: %s\n", error);
        return exit_code_of(status);
    }
    printf("{\"ready\":true,\"name\":\"%s\",\"address\":\"%s\","
           "\"transfer\":%u,\"http\":%u}\n",
           c->name, c->address, bt_agent_service_port(service),
           bt_agent_service_http_port(service));
    fflush(stdout);
    ev_run(loop, 0);
    bt_agent_service_destroy(service);
    return BT_EXIT_OK;
}

static int run(int argc, char **argv)
{
    static struct texts texts;
    struct bt_agent_service_config c;
    struct agent_options o = {.name = "agent",
                              .listen = "127.0.0.1:0",
                              .http = "127.0.0.1:0",
                              .fabric = "ucx",
                              .model_hash = "0"};
    int first = 0;

    static struct bt_agent_start starts[AGENT_STARTS_MAX];

    bt_agent_service_config_init(&c);
    o.block_bytes = c.block_bytes;
    o.block_tokens = c.block_tokens;
    o.version = c.layout_version;
    o.probe_bytes = c.probe_bytes;
    int code = bt_options_parse(&bt_command_agent, argc, argv, &o, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return usage("no arguments expected");
    code = read_options(&o, &c, &texts);
    if (code != BT_EXIT_OK)
        return code;
    c.starts = starts;
    if (o.calibration != NULL &&
        !agent_calibration_read(o.calibration, o.name, starts, &c.start_count))
        return BT_EXIT_CONFIG;
    if (o.die_with_parent && !parent_follow("agent"))
        return BT_EXIT_FAILED;
    (void)signal(SIGPIPE, SIG_IGN);
    /* Connections and registered memory. */
    daemon_limit_raise(RLIMIT_NOFILE);
    daemon_limit_raise(RLIMIT_MEMLOCK);
    bt_log_init(BT_LOG_INFO, BT_LOG_AUTO);
    return daemon_run("agent", serve, &c);
}
