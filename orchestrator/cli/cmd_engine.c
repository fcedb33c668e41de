/* `baton engine`: one emulated engine as a process. Decides nothing but how
 * options become a bt_engine_config, when the process ends and what it says:
 * one JSON line on stdout when it is ready, talk on stderr.
 *
 * SIGTERM and SIGINT end it with exit code 0.
 */
#include "command.h"
#include "parent.h"
#include "transfer_options.h"

#include "baton/base/units.h"
#include "baton/bench/engine.h"

#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

struct engine_options {
    const char *name, *role, *address, *model, *preset, *encoding;
    const char *events, *connect, *replay, *framing, *topic, *hash;
    const char *failure, *transports, *fabric, *key_file;
    uint64_t port, block_size, blocks, seqs, kv_bytes, layers, model_len;
    uint64_t layout_version, seed, event_buffer;
    double speedup;
    int64_t lease_ns, pull_timeout_ns, startup_delay_ns;
    bool no_events, stream_eager, die_with_parent;
    struct bt_option_list adapters, paces, faults, rails;
};

#define AT(member) offsetof(struct engine_options, member)

static const struct bt_option options[] = {
    {"name", 0, BT_OPTION_STRING, "NAME", "name towards peers (engine)",
     AT(name)},
    {"role", 0, BT_OPTION_STRING, "ROLE", "prefill, decode or both (both)",
     AT(role)},
    {"address", 0, BT_OPTION_STRING, "IP", "to listen on (127.0.0.1)",
     AT(address)},
    {"port", 'p', BT_OPTION_U64, "PORT", "HTTP, 0 picks one (0)", AT(port)},
    {"model", 'm', BT_OPTION_STRING, "MODEL", "model served (demo)", AT(model)},
    {"adapter", 0, BT_OPTION_LIST, "NAME", "LoRA adapter served; repeatable",
     AT(adapters)},
    {"preset", 0, BT_OPTION_STRING, "PRESET",
     "compute times, see baton(1) (h100-8b-tp1)", AT(preset)},
    {"speedup", 0, BT_OPTION_DOUBLE, "X", "divides every time (1)",
     AT(speedup)},
    {"block-size", 0, BT_OPTION_U64, "TOKENS", "tokens per block (16)",
     AT(block_size)},
    {"num-gpu-blocks", 0, BT_OPTION_U64, "N", "blocks in the pool (4096)",
     AT(blocks)},
    {"max-num-seqs", 0, BT_OPTION_U64, "N", "sequences running at once (256)",
     AT(seqs)},
    {"max-model-len", 0, BT_OPTION_U64, "TOKENS",
     "prompt and output, 0: up to the pool, at most 131072 (0)", AT(model_len)},
    {"kv-bytes-per-token", 0, BT_OPTION_U64, "BYTES",
     "KV bytes of one token over all layers (256)", AT(kv_bytes)},
    {"layers", 0, BT_OPTION_U64, "N", "layers the KV is split into (4)",
     AT(layers)},
    {"kv-layout-version", 0, BT_OPTION_U64, "N",
     "peers with another one are refused (1)", AT(layout_version)},
    {"seed", 0, BT_OPTION_U64, "N", "of the model's content (0)", AT(seed)},
    {"lease", 0, BT_OPTION_DURATION, "TIME",
     "how long blocks are held for a peer (30s)", AT(lease_ns)},
    {"pull-timeout", 0, BT_OPTION_DURATION, "TIME", "longest KV transfer (30s)",
     AT(pull_timeout_ns)},
    {"kv-load-failure-policy", 0, BT_OPTION_STRING, "POLICY",
     "fail or recompute (fail)", AT(failure)},
    {"stream-eager", 0, BT_OPTION_FLAG, NULL,
     "answer 200 before the first token, as vLLM does", AT(stream_eager)},
    {"events", 0, BT_OPTION_STRING, "ENDPOINT",
     "KV events, PUB, bound (tcp://127.0.0.1:*)", AT(events)},
    {"events-connect", 0, BT_OPTION_STRING, "ENDPOINT",
     "connect PUB to the orchestrator's socket instead of binding it",
     AT(connect)},
    {"replay", 0, BT_OPTION_STRING, "ENDPOINT",
     "replay of events, ROUTER, bound; none (tcp://127.0.0.1:*)", AT(replay)},
    {"replay-framing", 0, BT_OPTION_STRING, "FORM",
     "new, or old: replies without a topic (new)", AT(framing)},
    {"events-topic", 0, BT_OPTION_STRING, "TOPIC",
     "first frame (kv-events; connected: kv@ADDRESS:PORT@MODEL)", AT(topic)},
    {"event-encoding", 0, BT_OPTION_STRING, "FORM",
     "array, map or mapbatch (map)", AT(encoding)},
    {"event-hash", 0, BT_OPTION_STRING, "KIND",
     "int, bytes, or vLLM's sha256_cbor[:SEED], xxhash_cbor[:SEED] (int)",
     AT(hash)},
    {"event-buffer", 0, BT_OPTION_U64, "N", "batches kept for replay (10000)",
     AT(event_buffer)},
    {"no-events", 0, BT_OPTION_FLAG, NULL, "no event plane", AT(no_events)},
    {"pace", 0, BT_OPTION_LIST, "PEER=RATE[:CLASS[:SETUP]]",
     "link to a peer, e.g. p1=200MB/s:slow:2ms; repeatable", AT(paces)},
    {"transports", 0, BT_OPTION_STRING, "LIST", "UCX_TLS (tcp,self)",
     AT(transports)},
    {"fabric", 0, BT_OPTION_STRING, "KIND",
     "what KV bytes move by: ucx, verbs or sim (ucx)", AT(fabric)},
    {"transfer-rail", 0, BT_OPTION_LIST, TRANSFER_RAIL,
     "NIC that carries KV bytes, e.g. r0=10.0.0.1@mlx5_0:1,gid=3; keys: gid, "
     "partition, mtu, class, rate, transports; repeatable",
     AT(rails)},
    {"transfer-key-file", 0, BT_OPTION_STRING, "FILE",
     "key that all peers hold: 64 hex digits, or 32 bytes", AT(key_file)},
    {"fault", 0, BT_OPTION_LIST, "SPEC",
     "KIND[@PHASE][:count=N][:factor=X], see baton(1); repeatable", AT(faults)},
    {"startup-delay", 0, BT_OPTION_DURATION, "TIME",
     "before anything is opened (0s)", AT(startup_delay_ns)},
    {"die-with-parent", 0, BT_OPTION_FLAG, NULL,
     "end when the parent process ends", AT(die_with_parent)},
    {NULL, 0, BT_OPTION_FLAG, NULL, NULL, 0},
};

/* The running process. */
struct process {
    struct ev_loop *loop;
    struct bt_engine_config config;
    struct bt_engine *engine;
    const char *role;
    ev_timer start;
    ev_signal on_term, on_int;
    int exit_code;
};

static int usage(const char *format, const char *value)
{
    fprintf(stderr, "baton engine: ");
    fprintf(stderr, "%s: '%s'\n", format, value);
    return BT_EXIT_USAGE;
}

/* ---- options into configuration ---- */

/* PEER=RATE[:CLASS[:SETUP]]; cut up in place. */
static bool read_pace(char *text, struct bt_engine_pace *out)
{
    char *rate = strchr(text, '=');
    if (rate == NULL || rate == text) {
        return false;
    }
    *rate++ = '\0';
    char *link_class = strchr(rate, ':'), *setup = NULL;
    if (link_class != NULL) {
        *link_class++ = '\0';
        setup = strchr(link_class, ':');
    }
    if (setup != NULL) {
        *setup++ = '\0';
    }
    out->peer = text;
    out->link_class = link_class;
    out->setup_ns = 0;
    return bt_rate_parse(rate, &out->rate_bytes_per_s) == BT_OK &&
           (setup == NULL || bt_duration_parse(setup, &out->setup_ns) == BT_OK);
}

static int read_role(const char *text, enum bt_engine_role *out)
{
    if (strcmp(text, "prefill") == 0) {
        *out = BT_ENGINE_PREFILL;
    } else if (strcmp(text, "decode") == 0) {
        *out = BT_ENGINE_DECODE;
    } else if (strcmp(text, "both") == 0) {
        *out = BT_ENGINE_BOTH;
    } else {
        return usage("--role is prefill, decode or both", text);
    }
    return BT_EXIT_OK;
}

static int read_words(const struct engine_options *o,
                      struct bt_engine_config *c)
{
    int code = read_role(o->role, &c->role);
    bool recompute = strcmp(o->failure, "recompute") == 0;
    if (code == BT_EXIT_OK && !recompute && strcmp(o->failure, "fail") != 0) {
        code =
            usage("--kv-load-failure-policy is fail or recompute", o->failure);
    }
    c->recompute = recompute;
    return code;
}

static int read_form(const char *text, enum bt_engine_event_form *out)
{
    static const char *const names[] = {"array", "map", "mapbatch"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum bt_engine_event_form)i;
            return BT_EXIT_OK;
        }
    }
    return usage("--event-encoding is array, map or mapbatch", text);
}

/* int, bytes, ALGORITHM[:SEED], seed 0 by default. */
static int read_hash(const char *text, struct bt_engine_config *c)
{
    static char name[32];
    c->event_hash_bytes = strcmp(text, "bytes") == 0;
    if (c->event_hash_bytes || strcmp(text, "int") == 0) {
        return BT_EXIT_OK;
    }
    const char *colon = strchr(text, ':');
    snprintf(name, sizeof(name), "%.*s",
             (int)(colon != NULL ? colon - text : (long)strlen(text)), text);
    c->event_hash_seed = colon != NULL ? colon + 1 : "0";
    if (bt_engine_hash_find(name, &c->event_hash) != BT_OK ||
        c->event_hash == BT_ENGINE_HASH_NONE || c->event_hash_seed[0] == '\0') {
        return usage("--event-hash is int, bytes, sha256_cbor[:SEED] or "
                     "xxhash_cbor[:SEED]",
                     text);
    }
    return BT_EXIT_OK;
}

/* The event plane. */
static int read_events(const struct engine_options *o,
                       struct bt_engine_config *c)
{
    c->events = !o->no_events;
    c->events_connect = o->connect;
    c->events_topic = o->topic;
    c->replay_bare = strcmp(o->framing, "old") == 0;
    c->replay_endpoint = strcmp(o->replay, "none") == 0 ? NULL : o->replay;
    if (o->connect != NULL && o->events != NULL) {
        return usage("--events and --events-connect exclude each other",
                     o->connect);
    }
    if (o->events != NULL) {
        c->events_endpoint = o->events;
    }
    if (!c->replay_bare && strcmp(o->framing, "new") != 0) {
        return usage("--replay-framing is new or old", o->framing);
    }
    int code = read_form(o->encoding, &c->event_form);
    return code != BT_EXIT_OK ? code : read_hash(o->hash, c);
}

static int read_preset(const struct engine_options *o,
                       struct bt_engine_config *c)
{
    if (bt_compute_preset(o->preset, &c->compute) != BT_OK) {
        (void)usage("--preset is not known", o->preset);
        for (size_t i = 0; bt_compute_preset_name(i) != NULL; i++) {
            fprintf(stderr, "  %s\n", bt_compute_preset_name(i));
        }
        return BT_EXIT_USAGE;
    }
    c->compute.speedup = o->speedup;
    return BT_EXIT_OK;
}

static int read_numbers(const struct engine_options *o,
                        struct bt_engine_config *c)
{
    if (o->port > 65535) {
        fprintf(stderr, "baton engine: --port is 0 to 65535\n");
        return BT_EXIT_USAGE;
    }
    if (o->block_size > UINT32_MAX || o->blocks > UINT32_MAX ||
        o->seqs > UINT32_MAX || o->model_len > UINT32_MAX ||
        o->kv_bytes > UINT32_MAX || o->layers > UINT32_MAX ||
        o->layout_version > UINT32_MAX || o->event_buffer > UINT32_MAX) {
        fprintf(stderr, "baton engine: a number is above 4294967295\n");
        return BT_EXIT_USAGE;
    }
    c->port = (uint16_t)o->port;
    c->block_tokens = (uint32_t)o->block_size;
    c->block_count = (uint32_t)o->blocks;
    c->seqs_max = (uint32_t)o->seqs;
    c->model_len_max = (uint32_t)o->model_len;
    c->kv_bytes_per_token = (uint32_t)o->kv_bytes;
    c->layers = (uint32_t)o->layers;
    c->kv_layout_version = (uint32_t)o->layout_version;
    c->event_buffer = (uint32_t)o->event_buffer;
    c->seed = o->seed;
    return BT_EXIT_OK;
}

/* Fabric, rails, own address and key. */
static int read_transfer(const struct engine_options *o,
                         struct bt_engine_config *c)
{
    static struct transfer_rails rails;
    static uint8_t key[TRANSFER_KEY];
    static char address[TRANSFER_HOST];
    char error[200];
    if (o->fabric != NULL && !transfer_fabric_known(o->fabric)) {
        return usage("--fabric is ucx, verbs or sim", o->fabric);
    }
    for (size_t i = 0; i < o->rails.count; i++) {
        if (!transfer_rail_add(&rails, o->rails.items[i], error,
                               sizeof(error))) {
            fprintf(stderr, "baton engine: --transfer-rail '%s': %s\n",
                    o->rails.items[i], error);
            return BT_EXIT_USAGE;
        }
    }
    if (!transfer_rails_resolve("engine", o->fabric, &rails) ||
        !transfer_host("engine", "address", o->address, address)) {
        return BT_EXIT_CONFIG;
    }
    c->address = address;
    c->rails = rails.rails;
    c->rail_count = rails.count;
    if (o->key_file != NULL && !transfer_key_read("engine", o->key_file, key)) {
        return BT_EXIT_CONFIG;
    }
    c->transfer_key = o->key_file != NULL ? key : NULL;
    return BT_EXIT_OK;
}

static int read_options(const struct engine_options *o,
                        struct bt_engine_config *c,
                        struct bt_engine_pace *paces, char (*texts)[256])
{
    c->name = o->name;
    c->address = o->address;
    c->model = o->model;
    c->adapters = o->adapters.items;
    c->adapter_count = o->adapters.count;
    c->lease_ns = o->lease_ns;
    c->pull_timeout_ns = o->pull_timeout_ns;
    c->stream_eager = o->stream_eager;
    c->transports = o->transports;
    c->fabric = o->fabric;
    c->faults = o->faults.items;
    c->fault_count = o->faults.count;
    c->paces = paces;
    c->pace_count = o->paces.count;
    for (size_t i = 0; i < o->paces.count; i++) {
        int n = snprintf(texts[i], sizeof(texts[i]), "%s", o->paces.items[i]);
        if (n >= (int)sizeof(texts[i]) || !read_pace(texts[i], &paces[i])) {
            return usage("--pace is PEER=RATE[:CLASS[:SETUP]], such as "
                         "p1=200MB/s:slow:2ms",
                         o->paces.items[i]);
        }
    }
    int code = read_words(o, c);
    code = code != BT_EXIT_OK ? code : read_events(o, c);
    code = code != BT_EXIT_OK ? code : read_preset(o, c);
    code = code != BT_EXIT_OK ? code : read_transfer(o, c);
    return code != BT_EXIT_OK ? code : read_numbers(o, c);
}

static void set_defaults(struct engine_options *o)
{
    struct bt_engine_config c;
    bt_engine_config_init(&c);
    memset(o, 0, sizeof(*o));
    o->name = c.name;
    o->role = "both";
    o->address = c.address;
    o->model = c.model;
    o->preset = "h100-8b-tp1";
    o->encoding = "map";
    o->failure = "fail";
    o->replay = c.replay_endpoint;
    o->framing = "new";
    o->hash = "int";
    o->speedup = 1.0;
    o->block_size = c.block_tokens;
    o->blocks = c.block_count;
    o->seqs = c.seqs_max;
    o->kv_bytes = c.kv_bytes_per_token;
    o->layers = c.layers;
    o->layout_version = c.kv_layout_version;
    o->event_buffer = c.event_buffer;
    o->lease_ns = c.lease_ns;
    o->pull_timeout_ns = c.pull_timeout_ns;
}

/* ---- the process ---- */

static void on_signal(struct ev_loop *loop, ev_signal *w, int revents)
{
    (void)w;
    (void)revents;
    ev_break(loop, EVBREAK_ALL);
}

static void say_ready(const struct process *p)
{
    printf("{\"ready\":true,\"name\":\"%s\",\"role\":\"%s\",\"http\":%u,"
           "\"kv\":%u,\"events\":\"%s\",\"replay\":\"%s\","
           "\"engine_id\":\"%s\"}\n",
           p->config.name, p->role, bt_engine_http_port(p->engine),
           bt_engine_kv_port(p->engine), bt_engine_events_endpoint(p->engine),
           bt_engine_replay_endpoint(p->engine), bt_engine_id(p->engine));
    fflush(stdout);
}

static int exit_code_of(enum bt_status status)
{
    return bt_status_class_of(status) == BT_CLASS_CONFIG && status != BT_EXISTS
               ? BT_EXIT_USAGE
               : BT_EXIT_FAILED;
}

static void on_start(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct process *p = w->data;
    char error[256] = "";
    (void)revents;
    enum bt_status status =
        bt_engine_create(loop, &p->config, &p->engine, error, sizeof(error));
    if (status != BT_OK) {
        fprintf(stderr, "baton engine: %s\n", error);
        p->exit_code = exit_code_of(status);
        ev_break(loop, EVBREAK_ALL);
        return;
    }
    say_ready(p);
}

static int run_process(struct process *p, double delay_s)
{
    p->loop = ev_loop_new(EVFLAG_AUTO);
    if (p->loop == NULL) {
        fprintf(stderr, "baton engine: no event loop\n");
        return BT_EXIT_FAILED;
    }
    ev_signal_init(&p->on_term, on_signal, SIGTERM);
    ev_signal_init(&p->on_int, on_signal, SIGINT);
    ev_signal_start(p->loop, &p->on_term);
    ev_signal_start(p->loop, &p->on_int);
    ev_timer_init(&p->start, on_start, delay_s, 0);
    p->start.data = p;
    ev_timer_start(p->loop, &p->start);
    ev_run(p->loop, 0);
    bt_engine_destroy(p->engine);
    ev_timer_stop(p->loop, &p->start);
    ev_signal_stop(p->loop, &p->on_term);
    ev_signal_stop(p->loop, &p->on_int);
    ev_loop_destroy(p->loop);
    return p->exit_code;
}

static int run(int argc, char **argv)
{
    static struct engine_options o;
    static struct bt_engine_pace paces[BT_OPTION_LIST_MAX];
    static char texts[BT_OPTION_LIST_MAX][256];
    struct process p = {.exit_code = BT_EXIT_OK};
    int first = 0;
    set_defaults(&o);
    int code = bt_options_parse(&bt_command_engine, argc, argv, &o, &first);
    if (code >= 0) {
        return code;
    }
    if (first < argc) {
        return usage("no arguments expected", argv[first]);
    }
    bt_engine_config_init(&p.config);
    code = read_options(&o, &p.config, paces, texts);
    if (code != BT_EXIT_OK) {
        return code;
    }
    if (o.die_with_parent && !parent_follow("engine")) {
        return BT_EXIT_FAILED;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_TIMERSLACK, 1);
    p.role = o.role;
    return run_process(&p, (double)o.startup_delay_ns / 1e9);
}

const struct bt_command bt_command_engine = {
    .name = "engine",
    .summary = "emulated engine: real API, KV events and KV bytes",
    .arguments = "",
    .options = options,
    .run = run,
};
