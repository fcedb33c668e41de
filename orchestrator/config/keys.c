/* The key table: the one list of what a configuration file may say. It gives
 * the default, the range, the documentation and the place of each key; the
 * walk, the libcyaml schema, the conversion, `baton check --defaults` and the
 * documentation test all read it. Invariants: the rows of a scope and of a
 * section are neighbours; a scope fits its raw struct. */
#include "schema.h"

#define AT(member)   offsetof(struct bt_config, member)
#define IN_M(member) offsetof(struct bt_model_config, member)
#define IN_W(member) offsetof(struct bt_worker_config, member)
#define IN_L(member) offsetof(struct bt_link_rule, member)
#define U32_LIMIT    4294967295.0
#define NS_DAY       86400e9

static const char *const TOKENIZERS[] = {"worker", "bytes", NULL};
static const char *const PD_MODES[] = {"preferred", "required", NULL};
static const char *const LEVELS[] = {"error", "warn",  "info",
                                     "debug", "trace", NULL};
static const char *const FORMATS[] = {"auto", "text", "json", NULL};
static const char *const SWITCH[] = {"off", "on", "false", "true", NULL};
static const char *const OVERLAPS[] = {"none", "chunk", "layer", NULL};
static const char *const REMOVALS[] = {"auto", "per_copy", "last_copy", NULL};
static const char *const ROLES[] = {"prefill", "decode", "both", NULL};

#define ROW(path, fallback, values, text, kind, offset, min, max)              \
    {                                                                          \
        {path, fallback, values, text}, kind, offset, min, max, NULL           \
    }
#define WORDS(path, fallback, values, text, kind, offset, words)               \
    {                                                                          \
        {path, fallback, values, text}, kind, offset, 0, 0, words              \
    }
#define PORT(path, fallback, text, offset)                                     \
    ROW(path, fallback, "0..65535, 0 = any free port", text, KEY_U16, offset,  \
        0, 65535)
#define COUNT(path, fallback, text, offset)                                    \
    ROW(path, fallback, "1..4294967295", text, KEY_U32, offset, 1, U32_LIMIT)
#define TIME(path, fallback, text, offset)                                     \
    ROW(path, fallback, "duration, 1us..24h", text, KEY_DURATION, offset, 1e3, \
        NS_DAY)
#define SWITCHED(path, fallback, text, offset)                                 \
    WORDS(path, fallback, "off | on", text, KEY_FLAG, offset, SWITCH)
#define TIER(name, text, offset)                                               \
    ROW("workers[]." name ".rate", "0B/s", "rate, 0B/s = none",                \
        "at which it loads " text, KEY_RATE,                                   \
        (offset) + offsetof(struct bt_tier_model, rate_bytes_per_s), 0, 1e15), \
        ROW("workers[]." name ".setup", "0us", "duration, 0us..24h",           \
            "per load of " text, KEY_DURATION,                                 \
            (offset) + offsetof(struct bt_tier_model, setup_ns), 0, NS_DAY)
#define LIMIT_TIME(path, fallback, values, text, offset)                       \
    ROW(path, fallback, values, text, KEY_DURATION, offset, 0, NS_DAY)

static const struct key TABLE[] = {
    ROW("config_schema", "1", "1", "version of this schema", KEY_SCHEMA, 0, 1,
        1),
    ROW("policy", "joint", "NAME or NAME:knob=value,...",
        "how workers are chosen", KEY_TEXT, AT(policy), 0, 0),
    WORDS("tokenizer", "worker", "worker | bytes",
          "who turns text into tokens: a worker's /tokenize, or one token per "
          "byte (emulated engines only)",
          KEY_CHOICE, AT(tokenizer), TOKENIZERS),
    WORDS("pd", "preferred", "preferred | required",
          "whether a request may run whole on one worker when no prefill "
          "worker is in service",
          KEY_FLAG, AT(pd_required), PD_MODES),
    ROW("seed", "1", "whole number", "seed of every random choice", KEY_U64,
        AT(seed), 0, 18446744073709549568.0),
    ROW("listen.address", "127.0.0.1", "IPv4 or IPv6 address",
        "address of the OpenAI API", KEY_TEXT, AT(listen.address), 0, 0),
    PORT("listen.port", "8000", "port of the OpenAI API", AT(listen.port)),
    ROW("metrics.address", "127.0.0.1", "IPv4 or IPv6 address",
        "address of the Prometheus endpoint", KEY_TEXT, AT(metrics.address), 0,
        0),
    PORT("metrics.port", "9464", "port of the Prometheus endpoint",
         AT(metrics.port)),
    ROW("admin.address", "127.0.0.1", "IPv4 or IPv6 address",
        "address of the admin API", KEY_TEXT, AT(admin.address), 0, 0),
    PORT("admin.port", "9465", "port of the admin API", AT(admin.port)),
    WORDS("log.level", "info", "error | warn | info | debug | trace",
          "least severity that is logged", KEY_CHOICE, AT(log_level), LEVELS),
    WORDS("log.format", "auto", "auto | text | json",
          "auto: text on a terminal, else json", KEY_CHOICE, AT(log_format),
          FORMATS),
    ROW("decisions.file", "", "path, empty = none",
        "where one JSON line per decision is appended", KEY_OPTIONAL,
        AT(decision_file), 0, 0),
    COUNT("decisions.ring", "10000", "decisions kept for the admin API",
          AT(decision_ring)),
    COUNT("limits.requests", "4096", "requests held at once",
          AT(limits.requests)),
    COUNT("limits.queue", "1024", "requests waiting for a worker",
          AT(limits.queue)),
    ROW("limits.body", "64MiB", "size, 1KiB..4GiB",
        "largest request body (413 above it)", KEY_SIZE64, AT(limits.body),
        1024, 4294967296.0),
    ROW("limits.body_total", "1GiB", "size, 1KiB..1TiB",
        "memory for all request bodies (503 above it)", KEY_SIZE64,
        AT(limits.body_total), 1024, 1099511627776.0),
    ROW("limits.headers", "32KiB", "size, 1KiB..1MiB",
        "request line and headers (431 above it)", KEY_SIZE32,
        AT(limits.headers), 1024, 1048576),
    COUNT("limits.connections", "4096", "client connections",
          AT(limits.connections)),
    ROW("limits.stream_buffer", "256KiB", "size, 4KiB..1GiB",
        "bytes held for a client that does not read", KEY_SIZE32,
        AT(limits.stream_buffer), 4096, 1073741824),
    COUNT("limits.upstream_connections", "4096",
          "connections to all workers together",
          AT(limits.upstream_connections)),
    COUNT("limits.per_worker_connections", "1024", "connections to one worker",
          AT(limits.per_worker_connections)),
    COUNT("limits.prompt_tokens", "1048576", "tokens of one prompt",
          AT(limits.prompt_tokens)),
    COUNT("limits.tokenize_in_flight", "64", "calls of /tokenize at once",
          AT(limits.tokenize_in_flight)),
    COUNT("limits.index_blocks", "1048576", "blocks in the prefix index",
          AT(limits.index_blocks)),
    TIME("timeouts.connect", "2s", "to connect to a worker",
         AT(timeouts.connect)),
    TIME("timeouts.tokenize", "50ms",
         "for /tokenize, then the request is routed without overlap",
         AT(timeouts.tokenize)),
    TIME("timeouts.queue", "30s", "in the queue, then the request is refused",
         AT(timeouts.queue)),
    TIME("timeouts.prefill", "300s", "for the whole prefill answer",
         AT(timeouts.prefill)),
    TIME("timeouts.handoff", "60s",
         "from the prefill answer to the decode worker's first byte",
         AT(timeouts.handoff)),
    TIME("timeouts.idle_stream", "60s", "between two pieces of a stream",
         AT(timeouts.idle_stream)),
    TIME("timeouts.client_send", "60s", "of a client that does not read",
         AT(timeouts.client_send)),
    TIME("timeouts.client_idle", "60s",
         "of a client that sends nothing or half a request",
         AT(timeouts.client_idle)),
    TIME("timeouts.drain", "30s", "to finish requests at shutdown",
         AT(timeouts.drain)),
    ROW("retry.attempts", "4", "1..16", "workers tried for one request",
        KEY_U32, AT(retry.attempts), 1, 16),
    ROW("retry.budget", "0.1", "0..1", "retries as a share of requests",
        KEY_DOUBLE, AT(retry.budget), 0, 1),
    ROW("retry.budget_min", "10", "0..4294967295",
        "retries allowed whatever the share", KEY_U32, AT(retry.budget_min), 0,
        U32_LIMIT),
    TIME("health.interval", "5s", "between two checks of a worker",
         AT(health.interval_ns)),
    TIME("health.timeout", "2s", "for the answer to a check",
         AT(health.timeout_ns)),
    ROW("health.ok", "2", "1..1000", "good answers that bring a worker back",
        KEY_U32, AT(health.ok), 1, 1000),
    ROW("health.fail", "3", "1..1000", "bad answers that take a worker out",
        KEY_U32, AT(health.fail), 1, 1000),
    TIME("health.stats_interval", "1s", "between two reads of its /metrics",
         AT(health.stats_interval_ns)),
    ROW("breaker.failures", "5", "1..1000",
        "failures in a row that open the breaker", KEY_U32,
        AT(breaker.failures), 1, 1000),
    TIME("breaker.suspect", "10s", "that the breaker stays open",
         AT(breaker.suspect_ns)),
    TIME("lease.duration", "30s",
         "that a prefill worker keeps blocks for the decode worker",
         AT(lease.duration_ns)),
    TIME("lease.margin", "5s", "before its end that a lease counts as over",
         AT(lease.margin_ns)),
    ROW("planner.expected_output", "256", "1..4294967295",
        "output tokens assumed per request", KEY_U32,
        AT(planner.expected_output), 1, U32_LIMIT),
    ROW("planner.pd_min_tokens", "0", "0..4294967295",
        "shorter prompts run whole on a decode worker", KEY_U32,
        AT(planner.pd_min_tokens), 0, U32_LIMIT),
    SWITCHED("planner.calibrate", "on",
             "correct the compute models and link rates by what is observed",
             AT(planner.calibrate)),
    SWITCHED("planner.hold", "off",
             "let the policy keep requests back until a worker is about to be "
             "free",
             AT(planner.hold)),
    LIMIT_TIME("planner.lead", "20ms", "duration, 0us..24h",
               "of dispatched work that a worker keeps while requests are held",
               AT(planner.lead_ns)),
    LIMIT_TIME("planner.patience", "2s", "duration, 0us..24h",
               "that a request is held at most for a worker the policy waits "
               "for",
               AT(planner.patience_ns)),
    ROW("planner.ask_max", "64", "1..65536",
        "held requests looked at in one go", KEY_U32, AT(planner.ask_max), 1,
        65536),
    ROW("planner.ageing", "0.15", "0..1000",
        "urgency that waiting adds, per time waited", KEY_DOUBLE,
        AT(planner.ageing), 0, 1000),
    ROW("planner.fairness", "0.5", "0..1000",
        "urgency that service taken beyond other tenants costs; 0 = none",
        KEY_DOUBLE, AT(planner.fairness), 0, 1000),
    ROW("planner.oldest_share", "0.02", "0..1, 0 = none",
        "share of the dispatched work that goes to the longest waiting",
        KEY_DOUBLE, AT(planner.oldest_share), 0, 1),
    ROW("planner.prices.queue", "adaptive", "adaptive | 0..1000",
        "of prefill time, for those who wait; adaptive: waiting requests per "
        "prefill worker",
        KEY_PRICE, AT(planner.prices.queue), 0, 1000),
    ROW("planner.prices.eviction", "0.3", "0..1000",
        "of the room that a fetched copy of blocks takes", KEY_DOUBLE,
        AT(planner.prices.eviction), 0, 1000),
    ROW("planner.prices.link", "1", "0..1", "of delay caused to own transfers",
        KEY_DOUBLE, AT(planner.prices.link), 0, 1),
    ROW("planner.prices.hbm", "1", "0..1000",
        "of KV that waits on a decode worker for its turn", KEY_DOUBLE,
        AT(planner.prices.hbm), 0, 1000),
    ROW("planner.prices.decode", "0.1", "0..1",
        "of delay that a local prefill causes to running requests", KEY_DOUBLE,
        AT(planner.prices.decode), 0, 1),
    LIMIT_TIME("slo.ttft", "0s", "duration, 0us..24h, 0s = none",
               "limit of the time to the first token", AT(slo.ttft_ns)),
    ROW("slo.ttft_factor", "0", "0..1000, 0 = none",
        "added to it: so many times the prefill of the whole prompt on the "
        "fastest idle worker",
        KEY_DOUBLE, AT(slo.ttft_factor), 0, 1000),
    LIMIT_TIME("slo.tpot", "0s", "duration, 0us..24h, 0s = none",
               "limit of the time per output token", AT(slo.tpot_ns)),
    ROW("journal.file", "", "path, empty = none",
        "where every event is recorded for baton replay; a file that is there "
        "is kept, .1, .2, ... are tried",
        KEY_OPTIONAL, AT(journal.file), 0, 0),
    ROW("journal.max", "1GiB", "size, 16KiB..16TiB",
        "bytes of a journal, then it ends", KEY_SIZE64, AT(journal.bytes_max),
        16384, 17592186044416.0),
    ROW("events.bind", "", "tcp://ADDRESS:PORT or ipc://PATH, empty = none",
        "where engines publish whose KV event publisher connects; each needs "
        "workers[].events_topic",
        KEY_OPTIONAL, AT(events.bind), 0, 0),
    ROW("events.held_batches", "4096", "1..1048576",
        "batches of one stream kept while it replays", KEY_U32,
        AT(events.held_batches), 1, 1048576),
    ROW("events.held_bytes", "64MiB", "size, 64KiB..1TiB",
        "bytes of one stream kept while it replays", KEY_SIZE64,
        AT(events.held_bytes), 65536, 1099511627776.0),
    ROW("events.held_total", "1GiB", "size, 64KiB..1TiB",
        "of all streams, stores that wait for their parent included",
        KEY_SIZE64, AT(events.held_total), 65536, 1099511627776.0),
    ROW("events.parked_events", "4096", "1..1048576",
        "stores of one stream that wait for their parent", KEY_U32,
        AT(events.parked_events), 1, 1048576),
    TIME("events.parked", "60s", "that a store waits for its parent",
         AT(events.parked_ns)),
    ROW("events.replays", "8", "1..65536", "replays at the same time", KEY_U32,
        AT(events.replays_max), 1, 65536),
    TIME("events.silence", "2s", "of a replay, then it is tried again",
         AT(events.silence_ns)),
    TIME("events.replay", "120s", "for a whole replay", AT(events.replay_ns)),
    TIME("events.cooldown", "30s", "after a failed replay, before the next",
         AT(events.cooldown_ns)),
    LIMIT_TIME("events.busy_silent", "60s", "duration, 0us..24h, 0s = never",
               "that a worker may run requests without an event, then its "
               "stream counts as lost",
               AT(events.busy_silent_ns)),
    LIMIT_TIME("events.late", "5s", "duration, 0us..24h, 0s = never",
               "of delay beyond its least so far, then guesses stand in",
               AT(events.late_ns)),
    SWITCHED("index.approximate", "on",
             "guess from own placements what a worker holds whose events "
             "cannot be believed",
             AT(index.approximate)),
    COUNT("index.approximate_blocks", "2097152",
          "blocks guessed, over all workers", AT(index.approximate_blocks)),
    TIME("index.approximate_ttl", "1h", "that a guessed block counts",
         AT(index.approximate_ttl_ns)),
    SWITCHED("index.self_check", "on",
             "hold predicted hits against the cached tokens engines report",
             AT(index.self_check)),
    ROW("index.snapshot", "", "path, empty = none",
        "file of what the index holds, for a warm restart", KEY_OPTIONAL,
        AT(index.snapshot), 0, 0),
    TIME("index.snapshot_interval", "30s", "between two snapshots",
         AT(index.snapshot_interval_ns)),
    ROW("topology", "", "path, empty = none",
        "file of nodes, racks and rates, from the folder of this one; pairs "
        "that it knows take no link",
        KEY_OPTIONAL, AT(topology_path), 0, 0),
    ROW("link_default.class", "default", "name",
        "class of the pairs that no link names", KEY_TEXT,
        AT(link_default.link_class), 0, 0),
    ROW("link_default.rate", "12GB/s", "rate", "bandwidth", KEY_RATE,
        AT(link_default.model.rate_bytes_per_s), 1, 1e15),
    ROW("link_default.setup", "1ms", "duration, 0us..24h", "per transfer",
        KEY_DURATION, AT(link_default.model.setup_ns), 0, NS_DAY),
    ROW("link_default.descriptor", "1us", "duration, 0us..24h",
        "per run of neighbouring blocks", KEY_DURATION,
        AT(link_default.model.per_descriptor_ns), 0, NS_DAY),

    ROW("models[].name", NULL, "name", "as clients ask for it", KEY_TEXT,
        IN_M(name), 0, 0),
    ROW("models[].kv_bytes_per_token", "131072", "1..1073741824",
        "KV bytes of one token, all layers", KEY_U64, IN_M(kv_bytes_per_token),
        1, 1073741824),
    ROW("models[].block_size", "16", "1..65536", "tokens of one KV block",
        KEY_U32, IN_M(block_size), 1, 65536),
    ROW("models[].adapters[]", "", "names",
        "LoRA adapters, served under their own names", KEY_LIST, 0, 0, 0),
    ROW("models[].engine_hash", "",
        "sha256_cbor:SEED or xxhash_cbor:SEED, empty = opaque",
        "how its engines hash blocks, and their PYTHONHASHSEED: announced "
        "hashes are checked",
        KEY_OPTIONAL, IN_M(engine_hash_seed), 0, 0),
    WORDS("models[].engine.overlap", "none", "none | chunk | layer",
          "what is sent while the prefill runs", KEY_CHOICE,
          IN_M(engine.overlap), OVERLAPS),
    ROW("models[].engine.pieces", "1", "1..1024",
        "chunks or groups of layers per prompt", KEY_U32, IN_M(engine.pieces),
        1, 1024),
    SWITCHED("models[].engine.allocate_first", "off",
             "a decode worker takes room for the prompt before its prefill",
             IN_M(engine.allocate_first)),
    SWITCHED("models[].engine.decode_delta", "on",
             "only blocks that the decode worker lacks are sent",
             IN_M(engine.decode_delta)),
    SWITCHED("models[].engine.late_decode", "on",
             "the decode worker may be chosen anew after the prefill",
             IN_M(engine.late_decode)),
    ROW("models[].engine.descriptors_per_block", "1", "1..65536",
        "memory regions of one block", KEY_U32,
        IN_M(engine.descriptors_per_block), 1, 65536),
    ROW("models[].engine.replication", "1", "1..1024",
        "times that each KV head crosses the network", KEY_U32,
        IN_M(engine.replication), 1, 1024),
    SWITCHED("models[].engine.eagle", "off",
             "its blocks are SGLang's Eagle windows of a token more: prompts "
             "are hashed so",
             IN_M(engine.eagle)),

    ROW("workers[].name", NULL, "name", "unique; in logs, metrics and links",
        KEY_TEXT, IN_W(name), 0, 0),
    WORDS("workers[].role", "both", "prefill | decode | both",
          "which pool it joins", KEY_ROLES, IN_W(roles), ROLES),
    ROW("workers[].url", NULL, "http://HOST:PORT", "its HTTP API", KEY_TEXT,
        IN_W(url), 0, 0),
    ROW("workers[].model", "", "name, empty = the only model",
        "which of models it serves", KEY_MODEL, IN_W(model), 0, 0),
    ROW("workers[].compute", "h100-8b-tp1", "preset",
        "coefficients of its compute model", KEY_TEXT, IN_W(compute), 0, 0),
    ROW("workers[].speedup", "1.0", "0.001..1000000",
        "how many times faster an emulated engine runs", KEY_DOUBLE,
        IN_W(speedup), 0.001, 1e6),
    ROW("workers[].decode_slots", "256", "0..1048576, 0 = unknown",
        "largest decode batch", KEY_U32, IN_W(decode_slots), 0, 1048576),
    ROW("workers[].kv_capacity", "0", "tokens, 0 = unknown",
        "KV cache size in tokens", KEY_U64, IN_W(kv_capacity_tokens), 0, 1e12),
    SWITCHED("workers[].local_prefill", "off",
             "may serve whole requests beside prefill workers",
             IN_W(local_prefill)),
    ROW("workers[].prefill_chunk", "512", "0..1048576, 0 = whole prompts",
        "tokens of a prefill step beside running requests", KEY_U32,
        IN_W(prefill_chunk_tokens), 0, 1048576),
    ROW("workers[].batch_tokens", "0", "0..16777216, 0 = unknown",
        "its max_num_batched_tokens", KEY_U32, IN_W(batch_tokens), 0, 16777216),
    TIER("host", "blocks offloaded to host memory", IN_W(host)),
    TIER("disk", "blocks on its disks", IN_W(disk)),
    ROW("workers[].events", "", "tcp://HOST:PORT or ipc://PATH, empty = none",
        "its KV event publisher", KEY_OPTIONAL, IN_W(events), 0, 0),
    ROW("workers[].replay", "", "tcp://HOST:PORT or ipc://PATH, empty = none",
        "its KV event replay socket", KEY_OPTIONAL, IN_W(replay), 0, 0),
    ROW("workers[].ranks", "1", "1..64",
        "data-parallel ranks, with events and replay on ports from the given "
        "ones on",
        KEY_U32, IN_W(ranks), 1, 64),
    ROW("workers[].events_topic", "", "text, empty = none",
        "what the topic of its KV events begins with, at events.bind",
        KEY_OPTIONAL, IN_W(events_topic), 0, 0),
    WORDS("workers[].removals", "auto", "auto | per_copy | last_copy",
          "what a removal means when it holds a block more than once",
          KEY_CHOICE, IN_W(removals), REMOVALS),
    SWITCHED("workers[].healing", "off",
             "after a hole in its KV events prefills ask vLLM to announce "
             "their blocks again",
             IN_W(healing)),

    ROW("links[].from", "*", "worker, * = any", "prefill side", KEY_TEXT,
        IN_L(from), 0, 0),
    ROW("links[].to", "*", "worker, * = any", "decode side", KEY_TEXT, IN_L(to),
        0, 0),
    ROW("links[].class", "default", "name", "class in reports and metrics",
        KEY_TEXT, IN_L(link_class), 0, 0),
    ROW("links[].rate", "12GB/s", "rate", "bandwidth", KEY_RATE,
        IN_L(model.rate_bytes_per_s), 1, 1e15),
    ROW("links[].setup", "1ms", "duration, 0us..24h", "per transfer",
        KEY_DURATION, IN_L(model.setup_ns), 0, NS_DAY),
    ROW("links[].descriptor", "1us", "duration, 0us..24h",
        "per run of neighbouring blocks", KEY_DURATION,
        IN_L(model.per_descriptor_ns), 0, NS_DAY),
};

#define ROWS        (sizeof(TABLE) / sizeof(TABLE[0]))
#define TOP_ROWS    91
#define MODEL_ROWS  13
#define WORKER_ROWS 21
#define LINK_ROWS   6
#define LINK_FIRST  (TOP_ROWS + MODEL_ROWS + WORKER_ROWS)

static const struct scope SCOPES[SCOPE_COUNT] = {
    {NULL, "", 0, TOP_ROWS, 1},
    {"models", "models[].", TOP_ROWS, MODEL_ROWS, CONFIG_MODELS_MAX},
    {"workers", "workers[].", TOP_ROWS + MODEL_ROWS, WORKER_ROWS,
     CONFIG_WORKERS_MAX},
    {"links", "links[].", LINK_FIRST, LINK_ROWS, CONFIG_LINKS_MAX},
};

_Static_assert(ROWS == LINK_FIRST + LINK_ROWS, "scopes cover the table");
#define CELLS(type) (sizeof(((struct type *)0)->value) / sizeof(char *))
_Static_assert(TOP_ROWS <= CELLS(raw_config), "raw_config holds the top");
_Static_assert(MODEL_ROWS <= CELLS(raw_model), "raw_model holds a model");
_Static_assert(WORKER_ROWS <= CELLS(raw_worker), "raw_worker holds a worker");
_Static_assert(LINK_ROWS <= CELLS(raw_link), "raw_link holds a link");

const struct key_table *config_table(void)
{
    static const struct key_table table = {TABLE, ROWS, false};
    return &table;
}

size_t key_count(void)
{
    return ROWS;
}

const struct key *key_at(size_t row)
{
    return &TABLE[row];
}

const struct scope *scope_at(enum scope_id id)
{
    return &SCOPES[id];
}

const struct bt_config_key *bt_config_key_at(size_t i)
{
    return i < ROWS ? &TABLE[i].doc : NULL;
}
