/* Configuration of `baton serve`: one strict YAML file (libcyaml schema over
 * libyaml). A key that is unknown or given twice, a value of the wrong type or
 * out of its range, and settings that exclude each other are errors with
 * file:line:column and, for keys, the nearest valid one. Quantities carry units
 * ("30s", "512MiB", "12GB/s").
 *
 *   config_schema: 1
 *   policy: joint                 # NAME or NAME:knob=value,... of any policy
 *   tokenizer: worker             # worker (/tokenize) | bytes (emulated)
 *   pd: preferred                 # preferred | required
 *   seed: 1
 *   listen:  {address: 127.0.0.1, port: 8000}
 *   metrics: {address: 127.0.0.1, port: 9464}
 *   admin:   {address: 127.0.0.1, port: 9465}
 *   log: {level: info, format: auto}          # text on a terminal, else json
 *   decisions: {file: "", ring: 10000}        # "" = ring only
 *   limits: {requests: 4096, queue: 1024, body: 64MiB, body_total: 1GiB,
 *            headers: 32KiB, connections: 4096, stream_buffer: 256KiB,
 *            upstream_connections: 4096, per_worker_connections: 1024,
 *            prompt_tokens: 1048576, tokenize_in_flight: 64,
 *            index_blocks: 1048576}
 *   timeouts: {connect: 2s, tokenize: 50ms, queue: 30s, prefill: 300s,
 *              handoff: 60s, idle_stream: 60s, client_send: 60s,
 *              client_idle: 60s, drain: 30s}
 *   retry: {attempts: 4, budget: 0.1, budget_min: 10}
 *   health: {interval: 5s, timeout: 2s, ok: 2, fail: 3, stats_interval: 1s}
 *   breaker: {failures: 5, suspect: 10s}
 *   lease: {duration: 30s, margin: 5s}
 *   planner: {expected_output: 256, pd_min_tokens: 0, calibrate: on,
 *             hold: off, lead: 20ms, patience: 2s, ask_max: 64, ageing: 0.15,
 *             fairness: 0.5, oldest_share: 0.02,
 *             prices: {queue: adaptive, eviction: 0.3, link: 1, hbm: 1,
 *                      decode: 0.1}}
 *   slo: {ttft: 0s, ttft_factor: 0, tpot: 0s}            # 0: none
 *   journal: {file: "", max: 1GiB}                       # "" = none
 *   events: {bind: "", held_batches: 4096, held_bytes: 64MiB,
 *            held_total: 1GiB, parked_events: 4096, parked: 60s, replays: 8,
 *            silence: 2s, replay: 120s, cooldown: 30s, busy_silent: 60s,
 *            late: 5s}
 *   index: {approximate: on, approximate_blocks: 2097152,
 *           approximate_ttl: 1h, self_check: on, snapshot: "",
 *           snapshot_interval: 30s}
 *   models:
 *     - {name: demo, kv_bytes_per_token: 131072, block_size: 16,
 *        adapters: [lora-a], engine_hash: "",     # or "sha256_cbor:0"
 *        engine: {overlap: none, pieces: 1, allocate_first: off,
 *                 decode_delta: on, late_decode: on,
 *                 descriptors_per_block: 1, replication: 1, eagle: off}}
 *   workers:
 *     - {name: p0, role: prefill, url: "http://127.0.0.1:8100", model: demo,
 *        compute: h100-8b-tp1, speedup: 1.0, decode_slots: 256,
 *        kv_capacity: 0, local_prefill: off, prefill_chunk: 512,
 *        batch_tokens: 0, host: {rate: 0B/s, setup: 0us},
 *        disk: {rate: 0B/s, setup: 0us}, events: "tcp://127.0.0.1:5557",
 *        replay: "tcp://127.0.0.1:5558", ranks: 1, events_topic: "",
 *        removals: auto, healing: off}
 *   links:                       # first match wins; "*" = any; else default
 *     - {from: p0, to: d1, class: slow, rate: 100MB/s, setup: 1ms,
 *        descriptor: 1us}
 *   link_default: {class: default, rate: 12GB/s, setup: 1ms, descriptor: 1us}
 *   topology: ""                 # file of topology_file.h, "" = none
 */
#ifndef BATON_ORCHESTRATOR_CONFIG_H
#define BATON_ORCHESTRATOR_CONFIG_H

#include "baton/base/status.h"
#include "baton/orchestrator/event_plane.h"
#include "baton/planner/cost.h"
#include "baton/planner/engine_hash.h"
#include "baton/planner/place.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_topology_file;

enum bt_tokenizer { BT_TOKENIZER_WORKER, BT_TOKENIZER_BYTES };
enum bt_log_level {
    BT_LOG_ERROR,
    BT_LOG_WARN,
    BT_LOG_INFO,
    BT_LOG_DEBUG,
    BT_LOG_TRACE
};
enum bt_log_format { BT_LOG_AUTO, BT_LOG_TEXT, BT_LOG_JSON };

struct bt_listen_config {
    char *address;
    uint16_t port;
};
struct bt_model_config {
    char *name;
    uint64_t kv_bytes_per_token;
    uint32_t block_size;
    char **adapters;
    uint32_t adapter_count;
    enum bt_engine_hash engine_hash; /* NONE: opaque */
    char *engine_hash_seed;          /* NULL with NONE */
    struct {
        unsigned int overlap; /* enum bt_overlap */
        uint32_t pieces, descriptors_per_block, replication;
        bool allocate_first, decode_delta, late_decode, eagle;
    } engine;
};
struct bt_worker_config {
    char *name;
    unsigned int roles; /* bits of enum bt_role */
    char *url;          /* no trailing slash */
    uint32_t model;     /* index */
    char *compute;      /* preset name */
    struct bt_compute_model compute_model;
    double speedup;
    uint32_t decode_slots;
    uint64_t kv_capacity_tokens;
    bool local_prefill;
    uint32_t prefill_chunk_tokens, batch_tokens; /* 0: whole; unknown */
    struct bt_tier_model host, disk;             /* rate 0: none */
    char *events, *replay;                       /* NULL = none */
    uint32_t ranks;            /* data-parallel: events and replay on ports
                                  from these on */
    char *events_topic;        /* NULL, or it publishes to events.bind */
    enum bt_removals removals; /* event_plane.h */
    bool healing;              /* leg P asks it to announce blocks again */
};
struct bt_link_rule {
    char *from, *to; /* worker name or "*" */
    char *link_class;
    struct bt_link_model model;
};

struct bt_config {
    char *policy; /* as written: "joint", "joint:guard=0" */
    const struct bt_policy *policy_rule; /* what it names */
    double policy_knobs[BT_POLICY_KNOBS_MAX];
    enum bt_tokenizer tokenizer;
    bool pd_required;
    uint64_t seed;
    struct bt_listen_config listen, metrics, admin;
    enum bt_log_level log_level;
    enum bt_log_format log_format;
    char *decision_file; /* NULL = ring only */
    uint32_t decision_ring;
    struct {
        uint32_t requests, queue, headers, connections, stream_buffer,
            upstream_connections, per_worker_connections, prompt_tokens,
            tokenize_in_flight, index_blocks;
        uint64_t body, body_total;
    } limits;
    struct { /* all ns */
        int64_t connect, tokenize, queue, prefill, handoff, idle_stream,
            client_send, client_idle, drain;
    } timeouts;
    struct {
        uint32_t attempts, budget_min;
        double budget;
    } retry;
    struct {
        int64_t interval_ns, timeout_ns, stats_interval_ns;
        uint32_t ok, fail;
    } health;
    struct {
        uint32_t failures;
        int64_t suspect_ns;
    } breaker;
    struct {
        int64_t duration_ns, margin_ns;
    } lease;
    struct {
        uint32_t expected_output, pd_min_tokens, ask_max;
        bool calibrate, hold;
        int64_t lead_ns, patience_ns;
        double ageing, fairness, oldest_share;
        struct bt_place_prices prices;
    } planner;
    struct {
        int64_t ttft_ns, tpot_ns; /* 0: none */
        double ttft_factor;
    } slo;
    struct {
        char *file; /* NULL = none */
        uint64_t bytes_max;
    } journal;
    struct {        /* struct bt_event_plane_config says more */
        char *bind; /* NULL = none */
        uint32_t held_batches, parked_events, replays_max;
        uint64_t held_bytes, held_total;
        int64_t parked_ns, silence_ns, replay_ns, cooldown_ns, busy_silent_ns,
            late_ns; /* 0: never */
    } events;
    struct {
        bool approximate, self_check;
        uint32_t approximate_blocks;
        int64_t approximate_ttl_ns, snapshot_interval_ns;
        char *snapshot; /* path, NULL = none */
    } index;
    struct bt_model_config *models;
    uint32_t model_count;
    struct bt_worker_config *workers;
    uint32_t worker_count;
    struct bt_link_rule *links;
    uint32_t link_count;
    struct bt_link_rule link_default;  /* from, to NULL */
    char *topology_path;               /* as written; NULL = none */
    struct bt_topology_file *topology; /* owned, workers in order; or NULL */
};

/* Load and check. On failure *out is untouched and error_out (>= 512 bytes)
 * holds "FILE:LINE:COLUMN: what is wrong (did you mean 'x'?)". BT_NOT_FOUND:
 * no such file; BT_INVALID, BT_TYPE, BT_DUPLICATE: the first fault. */
enum bt_status bt_config_load(const char *path, struct bt_config **out,
                              char *error_out, size_t error_size);
void bt_config_destroy(struct bt_config *config);

/* Another policy instead of the file's, written as there. BT_NOT_FOUND,
 * BT_INVALID: error_out says what; BT_NO_MEMORY. Then nothing has changed. */
enum bt_status bt_config_policy_set(struct bt_config *config, const char *spec,
                                    char *error_out, size_t error_size);

/* One row per key, for docs, `baton check --defaults` and the test that every
 * key is documented: dotted path, default as written, unit or values, text. */
struct bt_config_key {
    const char *path; /* "limits.body", "workers[].role" */
    const char *fallback;
    const char *values;
    const char *text;
};
const struct bt_config_key *bt_config_key_at(size_t i); /* NULL past the end */

/* Nearest of the candidates by edit distance, or NULL when none is close. */
const char *bt_nearest(const char *word, const char *const *candidates,
                       size_t count);

#endif
