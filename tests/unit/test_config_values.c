/* bt_config_load on good files: the defaults are those of the header comment
 * of config.h (written out below), every key can be set, the example file in
 * deploy/config loads, nearest words come out as a person would say. */
#include "baton/base/units.h"
#include "baton/orchestrator/config.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ull * 1024)
#define S   BT_NS_PER_S

static const char GOOD[] = "models:\n  - {name: demo}\n"
                           "workers:\n"
                           "  - {name: w0, url: 'http://127.0.0.1:1'}\n";

static struct bt_config *load(const char *yaml)
{
    char path[] = "/tmp/baton-config-XXXXXX", error[512];
    struct bt_config *config = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
    close(fd);
    if (bt_config_load(path, &config, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    unlink(path);
    return config;
}

static void check_default_limits(const struct bt_config *c)
{
    assert_int_equal(c->limits.requests, 4096);
    assert_int_equal(c->limits.queue, 1024);
    assert_int_equal(c->limits.body, 64 * MIB);
    assert_int_equal(c->limits.body_total, 1024 * MIB);
    assert_int_equal(c->limits.headers, 32 * 1024);
    assert_int_equal(c->limits.connections, 4096);
    assert_int_equal(c->limits.stream_buffer, 256 * 1024);
    assert_int_equal(c->limits.upstream_connections, 4096);
    assert_int_equal(c->limits.per_worker_connections, 1024);
    assert_int_equal(c->limits.prompt_tokens, 1048576);
    assert_int_equal(c->limits.tokenize_in_flight, 64);
    assert_int_equal(c->limits.index_blocks, 1048576);
}

static void check_default_times(const struct bt_config *c)
{
    assert_int_equal(c->timeouts.connect, 2 * S);
    assert_int_equal(c->timeouts.tokenize, 50 * BT_NS_PER_MS);
    assert_int_equal(c->timeouts.queue, 30 * S);
    assert_int_equal(c->timeouts.prefill, 300 * S);
    assert_int_equal(c->timeouts.handoff, 60 * S);
    assert_int_equal(c->timeouts.idle_stream, 60 * S);
    assert_int_equal(c->timeouts.client_send, 60 * S);
    assert_int_equal(c->timeouts.client_idle, 60 * S);
    assert_int_equal(c->timeouts.drain, 30 * S);
    assert_int_equal(c->health.interval_ns, 5 * S);
    assert_int_equal(c->health.timeout_ns, 2 * S);
    assert_int_equal(c->health.stats_interval_ns, 1 * S);
    assert_int_equal(c->breaker.suspect_ns, 10 * S);
    assert_int_equal(c->lease.duration_ns, 30 * S);
    assert_int_equal(c->lease.margin_ns, 5 * S);
}

static void check_default_top(const struct bt_config *c)
{
    assert_string_equal(c->policy, "joint");
    assert_int_equal(c->tokenizer, BT_TOKENIZER_WORKER);
    assert_false(c->pd_required);
    assert_int_equal(c->seed, 1);
    assert_string_equal(c->listen.address, "127.0.0.1");
    assert_int_equal(c->listen.port, 8000);
    assert_string_equal(c->metrics.address, "127.0.0.1");
    assert_int_equal(c->metrics.port, 9464);
    assert_string_equal(c->admin.address, "127.0.0.1");
    assert_int_equal(c->admin.port, 9465);
    assert_int_equal(c->log_level, BT_LOG_INFO);
    assert_int_equal(c->log_format, BT_LOG_AUTO);
    assert_null(c->decision_file);
    assert_int_equal(c->decision_ring, 10000);
    assert_int_equal(c->retry.attempts, 4);
    assert_true(c->retry.budget == 0.1);
    assert_int_equal(c->retry.budget_min, 10);
    assert_int_equal(c->health.ok, 2);
    assert_int_equal(c->health.fail, 3);
    assert_int_equal(c->breaker.failures, 5);
    assert_int_equal(c->planner.expected_output, 256);
    assert_int_equal(c->planner.pd_min_tokens, 0);
}

static void check_default_planner(const struct bt_config *c)
{
    assert_ptr_equal(c->policy_rule, bt_policy_find("joint"));
    assert_true(c->planner.calibrate);
    assert_false(c->planner.hold);
    assert_int_equal(c->planner.lead_ns, 20 * BT_NS_PER_MS);
    assert_int_equal(c->planner.patience_ns, 2 * S);
    assert_int_equal(c->planner.ask_max, 64);
    assert_true(c->planner.ageing == 0.15);
    assert_true(c->planner.fairness == 0.5);
    assert_true(c->planner.oldest_share == 0.02);
    assert_true(c->planner.prices.queue == -1);
    assert_true(c->planner.prices.eviction == 0.3);
    assert_true(c->planner.prices.link == 1);
    assert_true(c->planner.prices.hbm == 1);
    assert_true(c->planner.prices.decode == 0.1);
    assert_int_equal(c->slo.ttft_ns, 0);
    assert_true(c->slo.ttft_factor == 0);
    assert_int_equal(c->slo.tpot_ns, 0);
    assert_null(c->journal.file);
    assert_int_equal(c->journal.bytes_max, 1024 * MIB);
}

static void check_default_events(const struct bt_config *c)
{
    const struct bt_worker_config *w = &c->workers[0];
    assert_null(c->events.bind);
    assert_int_equal(c->events.held_batches, 4096);
    assert_int_equal(c->events.held_bytes, 64 * MIB);
    assert_int_equal(c->events.held_total, 1024 * MIB);
    assert_int_equal(c->events.parked_events, 4096);
    assert_int_equal(c->events.parked_ns, 60 * S);
    assert_int_equal(c->events.replays_max, 8);
    assert_int_equal(c->events.silence_ns, 2 * S);
    assert_int_equal(c->events.replay_ns, 120 * S);
    assert_int_equal(c->events.cooldown_ns, 30 * S);
    assert_int_equal(c->events.busy_silent_ns, 60 * S);
    assert_int_equal(c->events.late_ns, 5 * S);
    assert_true(c->index.approximate && c->index.self_check);
    assert_int_equal(c->index.approximate_blocks, 2097152);
    assert_int_equal(c->index.approximate_ttl_ns, 3600 * S);
    assert_null(c->index.snapshot);
    assert_int_equal(c->index.snapshot_interval_ns, 30 * S);
    assert_int_equal(w->ranks, 1);
    assert_null(w->events_topic);
    assert_int_equal(w->removals, BT_REMOVALS_AUTO);
    assert_false(w->healing);
    assert_int_equal(c->models[0].engine_hash, BT_ENGINE_HASH_NONE);
    assert_null(c->models[0].engine_hash_seed);
}

/* vLLM's pull: nothing overlaps, d is named last, only what it lacks moves. */
static void check_default_engine(const struct bt_config *c)
{
    const struct bt_model_config *m = &c->models[0];
    const struct bt_worker_config *w = &c->workers[0];
    assert_int_equal(m->engine.overlap, BT_OVERLAP_NONE);
    assert_int_equal(m->engine.pieces, 1);
    assert_false(m->engine.allocate_first);
    assert_true(m->engine.decode_delta);
    assert_true(m->engine.late_decode);
    assert_int_equal(m->engine.descriptors_per_block, 1);
    assert_int_equal(m->engine.replication, 1);
    assert_false(m->engine.eagle);
    assert_false(w->local_prefill);
    assert_int_equal(w->prefill_chunk_tokens, 512);
    assert_int_equal(w->batch_tokens, 0);
    assert_int_equal(w->host.rate_bytes_per_s, 0);
    assert_int_equal(w->host.setup_ns, 0);
    assert_int_equal(w->disk.rate_bytes_per_s, 0);
    assert_int_equal(w->disk.setup_ns, 0);
}

static void check_default_lists(const struct bt_config *c)
{
    const struct bt_worker_config *w = &c->workers[0];
    assert_int_equal(c->model_count, 1);
    assert_int_equal(c->models[0].block_size, 16);
    assert_int_equal(c->models[0].kv_bytes_per_token, 131072);
    assert_int_equal(c->models[0].adapter_count, 0);
    assert_int_equal(c->worker_count, 1);
    assert_string_equal(w->name, "w0");
    assert_int_equal(w->roles, BT_ROLE_BOTH);
    assert_string_equal(w->url, "http://127.0.0.1:1");
    assert_int_equal(w->model, 0);
    assert_string_equal(w->compute, "h100-8b-tp1");
    assert_true(w->speedup == 1.0);
    assert_true(w->compute_model.speedup == 1.0);
    assert_int_equal(w->decode_slots, 256);
    assert_int_equal(w->kv_capacity_tokens, 0);
    assert_null(w->events);
    assert_null(w->replay);
    assert_int_equal(c->link_count, 0);
    assert_null(c->link_default.from);
    assert_null(c->link_default.to);
    assert_string_equal(c->link_default.link_class, "default");
    assert_int_equal(c->link_default.model.rate_bytes_per_s, 12000000000ull);
    assert_int_equal(c->link_default.model.setup_ns, BT_NS_PER_MS);
    assert_int_equal(c->link_default.model.per_descriptor_ns, BT_NS_PER_US);
}

static void defaults_are_the_documented_ones(void **state)
{
    (void)state;
    struct bt_config *c = load(GOOD);
    check_default_top(c);
    check_default_limits(c);
    check_default_times(c);
    check_default_planner(c);
    check_default_engine(c);
    check_default_events(c);
    check_default_lists(c);
    bt_config_destroy(c);
}

/* The file of the header comment of config.h, written out. */
static const char DOCUMENTED[] =
    "config_schema: 1\n"
    "policy: joint                 # round_robin | ...\n"
    "tokenizer: worker\n"
    "pd: preferred\n"
    "seed: 1\n"
    "listen:  {address: 127.0.0.1, port: 8000}\n"
    "metrics: {address: 127.0.0.1, port: 9464}\n"
    "admin:   {address: 127.0.0.1, port: 9465}\n"
    "log: {level: info, format: auto}\n"
    "decisions: {file: \"\", ring: 10000}\n"
    "limits: {requests: 4096, queue: 1024, body: 64MiB, body_total: 1GiB,\n"
    "         headers: 32KiB, connections: 4096, stream_buffer: 256KiB,\n"
    "         upstream_connections: 4096, per_worker_connections: 1024,\n"
    "         prompt_tokens: 1048576, tokenize_in_flight: 64,\n"
    "         index_blocks: 1048576}\n"
    "timeouts: {connect: 2s, tokenize: 50ms, queue: 30s, prefill: 300s,\n"
    "           handoff: 60s, idle_stream: 60s, client_send: 60s,\n"
    "           client_idle: 60s, drain: 30s}\n"
    "retry: {attempts: 4, budget: 0.1, budget_min: 10}\n"
    "health: {interval: 5s, timeout: 2s, ok: 2, fail: 3, stats_interval: 1s}\n"
    "breaker: {failures: 5, suspect: 10s}\n"
    "lease: {duration: 30s, margin: 5s}\n"
    "planner: {expected_output: 256, pd_min_tokens: 0, calibrate: on,\n"
    "          hold: off, lead: 20ms, patience: 2s, ask_max: 64, ageing: "
    "0.15,\n"
    "          fairness: 0.5, oldest_share: 0.02,\n"
    "          prices: {queue: adaptive, eviction: 0.3, link: 1, hbm: 1,\n"
    "                   decode: 0.1}}\n"
    "slo: {ttft: 0s, ttft_factor: 0, tpot: 0s}            # 0: none\n"
    "journal: {file: \"\", max: 1GiB}                       # \"\" = none\n"
    "events: {bind: \"\", held_batches: 4096, held_bytes: 64MiB,\n"
    "         held_total: 1GiB, parked_events: 4096, parked: 60s,\n"
    "         replays: 8, silence: 2s, replay: 120s, cooldown: 30s,\n"
    "         busy_silent: 60s,\n"
    "         late: 5s}\n"
    "index: {approximate: on, approximate_blocks: 2097152,\n"
    "        approximate_ttl: 1h, self_check: on, snapshot: \"\",\n"
    "        snapshot_interval: 30s}\n"
    "models:\n"
    "  - {name: demo, kv_bytes_per_token: 131072, block_size: 16,\n"
    "     adapters: [lora-a], engine_hash: \"\",\n"
    "     engine: {overlap: none, pieces: 1, allocate_first: off,\n"
    "              decode_delta: on, late_decode: on,\n"
    "              descriptors_per_block: 1, replication: 1, eagle: off}}\n"
    "workers:\n"
    "  - {name: p0, role: prefill, url: \"http://127.0.0.1:8100\",\n"
    "     model: demo, compute: h100-8b-tp1, speedup: 1.0,\n"
    "     decode_slots: 256, kv_capacity: 0, local_prefill: off,\n"
    "     prefill_chunk: 512, batch_tokens: 0, host: {rate: 0B/s, setup: "
    "0us},\n"
    "     disk: {rate: 0B/s, setup: 0us}, events: \"tcp://127.0.0.1:5557\",\n"
    "     replay: \"tcp://127.0.0.1:5558\", ranks: 1,\n"
    "     events_topic: \"\", removals: auto, healing: off}\n"
    "  - {name: d1, role: decode, url: \"http://127.0.0.1:8101/\"}\n"
    "links:\n"
    "  - {from: p0, to: d1, class: slow, rate: 100MB/s, setup: 1ms,\n"
    "     descriptor: 1us}\n"
    "link_default: {class: default, rate: 12GB/s, setup: 1ms,\n"
    "               descriptor: 1us}\n";

static void documented_file_loads(void **state)
{
    (void)state;
    struct bt_config *c = load(DOCUMENTED);
    check_default_top(c);
    check_default_limits(c);
    check_default_times(c);
    check_default_planner(c);
    check_default_engine(c);
    check_default_events(c);
    assert_int_equal(c->models[0].adapter_count, 1);
    assert_string_equal(c->models[0].adapters[0], "lora-a");
    assert_int_equal(c->workers[0].roles, BT_ROLE_PREFILL);
    assert_int_equal(c->workers[1].roles, BT_ROLE_DECODE);
    assert_string_equal(c->workers[1].url, "http://127.0.0.1:8101");
    assert_string_equal(c->workers[0].events, "tcp://127.0.0.1:5557");
    assert_string_equal(c->workers[0].replay, "tcp://127.0.0.1:5558");
    assert_int_equal(c->link_count, 1);
    assert_string_equal(c->links[0].from, "p0");
    assert_string_equal(c->links[0].to, "d1");
    assert_string_equal(c->links[0].link_class, "slow");
    assert_int_equal(c->links[0].model.rate_bytes_per_s, 100000000);
    bt_config_destroy(c);
}

static const char CHANGED[] =
    "policy: 'joint:guard=0,fetch=0'\ntokenizer: bytes\npd: required\nseed: "
    "77\n"
    "listen: {address: '::1', port: 0}\nmetrics: {address: 0.0.0.0, port: 1}\n"
    "admin: {address: 127.0.0.2, port: 0}\n"
    "log: {level: trace, format: json}\n"
    "decisions: {file: /tmp/d.jsonl, ring: 5}\n"
    "limits: {requests: 11, queue: 12, body: 13KiB, body_total: 14MiB,\n"
    "  headers: 15kB, connections: 16, stream_buffer: 17KiB,\n"
    "  upstream_connections: 18, per_worker_connections: 19,\n"
    "  prompt_tokens: 20, tokenize_in_flight: 21, index_blocks: 22}\n"
    "timeouts: {connect: 1ms, tokenize: 2ms, queue: 3ms, prefill: 4ms,\n"
    "  handoff: 5ms, idle_stream: 6ms, client_send: 7ms, client_idle: 8ms,\n"
    "  drain: 9ms}\n"
    "retry: {attempts: 2, budget: 0.25, budget_min: 0}\n"
    "health: {interval: 10ms, timeout: 11ms, ok: 4, fail: 6,\n"
    "  stats_interval: 12ms}\n"
    "breaker: {failures: 7, suspect: 13ms}\n"
    "lease: {duration: 15ms, margin: 14ms}\n"
    "planner: {expected_output: 9, pd_min_tokens: 8, calibrate: off,\n"
    "  hold: true, lead: 16ms, patience: 17ms, ask_max: 18, ageing: 0.25,\n"
    "  fairness: 0.75, oldest_share: 0.0625, prices: {queue: 1.5, eviction: "
    "0.5,\n"
    "  link: 0.125, hbm: 0, decode: 0.375}}\n"
    "slo: {ttft: 18ms, ttft_factor: 4.5, tpot: 19ms}\n"
    "journal: {file: /tmp/j, max: 16KiB}\n"
    "events: {bind: 'tcp://*:9999', held_batches: 31, held_bytes: 64KiB,\n"
    "  held_total: 65KiB, parked_events: 32, parked: 33ms, replays: 34,\n"
    "  silence: 35ms, replay: 36ms, cooldown: 37ms, busy_silent: 0s,\n"
    "  late: 43ms}\n"
    "index: {approximate: off, approximate_blocks: 41,\n"
    "  approximate_ttl: 42ms, self_check: off, snapshot: /tmp/s,\n"
    "  snapshot_interval: 43ms}\n"
    "link_default: {class: fast, rate: 400Gbps, setup: 0us, descriptor: 2ns}\n"
    "models:\n  - {name: org/a, block_size: 64, kv_bytes_per_token: 10}\n"
    "  - {name: b, adapters: [x, y], engine_hash: 'xxhash_cbor:4294967295',\n"
    "     engine: {overlap: layer, pieces: 80,\n"
    "     allocate_first: on, decode_delta: false, late_decode: off,\n"
    "     descriptors_per_block: 2, replication: 3, eagle: on}}\n"
    "workers:\n"
    "  - {name: w0, role: both, url: 'http://[::1]:80', model: b,\n"
    "     compute: h100-70b-tp4, speedup: 20, decode_slots: 3,\n"
    "     kv_capacity: 4000, local_prefill: on, prefill_chunk: 0,\n"
    "     batch_tokens: 8192, host: {rate: 50GB/s, setup: 400us},\n"
    "     disk: {setup: 200us, rate: 24GB/s}, events: 'ipc:///tmp/e'}\n"
    "  - {name: w1, url: 'http://host-a.x:65535', model: org/a, ranks: 64,\n"
    "     events_topic: 'kv@a@', replay: 'tcp://a:65472',\n"
    "     removals: last_copy, healing: on}\n"
    "links: [{to: w1, class: c, rate: 1MiB/s, setup: 3us, descriptor: 4us}]\n";

static void check_changed_limits(const struct bt_config *c)
{
    assert_int_equal(c->limits.requests, 11);
    assert_int_equal(c->limits.queue, 12);
    assert_int_equal(c->limits.body, 13 * 1024);
    assert_int_equal(c->limits.body_total, 14 * MIB);
    assert_int_equal(c->limits.headers, 15000);
    assert_int_equal(c->limits.connections, 16);
    assert_int_equal(c->limits.stream_buffer, 17 * 1024);
    assert_int_equal(c->limits.upstream_connections, 18);
    assert_int_equal(c->limits.per_worker_connections, 19);
    assert_int_equal(c->limits.prompt_tokens, 20);
    assert_int_equal(c->limits.tokenize_in_flight, 21);
    assert_int_equal(c->limits.index_blocks, 22);
}

static void check_changed_times(const struct bt_config *c)
{
    const int64_t times[] = {
        c->timeouts.connect,     c->timeouts.tokenize,
        c->timeouts.queue,       c->timeouts.prefill,
        c->timeouts.handoff,     c->timeouts.idle_stream,
        c->timeouts.client_send, c->timeouts.client_idle,
        c->timeouts.drain,       c->health.interval_ns,
        c->health.timeout_ns,    c->health.stats_interval_ns,
        c->breaker.suspect_ns,   c->lease.margin_ns,
        c->lease.duration_ns,
    };
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        assert_int_equal(times[i], (int64_t)(i + 1) * BT_NS_PER_MS);
}

static void check_changed_top(const struct bt_config *c)
{
    assert_string_equal(c->policy, "joint:guard=0,fetch=0");
    assert_int_equal(c->tokenizer, BT_TOKENIZER_BYTES);
    assert_true(c->pd_required);
    assert_int_equal(c->seed, 77);
    assert_string_equal(c->listen.address, "::1");
    assert_int_equal(c->listen.port, 0);
    assert_string_equal(c->metrics.address, "0.0.0.0");
    assert_int_equal(c->metrics.port, 1);
    assert_string_equal(c->admin.address, "127.0.0.2");
    assert_int_equal(c->log_level, BT_LOG_TRACE);
    assert_int_equal(c->log_format, BT_LOG_JSON);
    assert_string_equal(c->decision_file, "/tmp/d.jsonl");
    assert_int_equal(c->decision_ring, 5);
    assert_int_equal(c->retry.attempts, 2);
    assert_true(c->retry.budget == 0.25);
    assert_int_equal(c->retry.budget_min, 0);
    assert_int_equal(c->health.ok, 4);
    assert_int_equal(c->health.fail, 6);
    assert_int_equal(c->breaker.failures, 7);
    assert_int_equal(c->planner.expected_output, 9);
    assert_int_equal(c->planner.pd_min_tokens, 8);
}

static void check_changed_planner(const struct bt_config *c)
{
    const struct bt_policy *joint = bt_policy_find("joint");
    assert_ptr_equal(c->policy_rule, joint);
    for (size_t i = 0; joint->knobs[i].name; i++) {
        const char *name = joint->knobs[i].name;
        bool set = strcmp(name, "guard") == 0 || strcmp(name, "fetch") == 0;
        assert_true(c->policy_knobs[i] == (set ? 0 : joint->knobs[i].value));
    }
    assert_false(c->planner.calibrate);
    assert_true(c->planner.hold);
    assert_int_equal(c->planner.lead_ns, 16 * BT_NS_PER_MS);
    assert_int_equal(c->planner.patience_ns, 17 * BT_NS_PER_MS);
    assert_int_equal(c->planner.ask_max, 18);
    assert_true(c->planner.ageing == 0.25);
    assert_true(c->planner.fairness == 0.75);
    assert_true(c->planner.oldest_share == 0.0625);
    assert_true(c->planner.prices.queue == 1.5);
    assert_true(c->planner.prices.eviction == 0.5);
    assert_true(c->planner.prices.link == 0.125);
    assert_true(c->planner.prices.hbm == 0);
    assert_true(c->planner.prices.decode == 0.375);
    assert_int_equal(c->slo.ttft_ns, 18 * BT_NS_PER_MS);
    assert_true(c->slo.ttft_factor == 4.5);
    assert_int_equal(c->slo.tpot_ns, 19 * BT_NS_PER_MS);
    assert_string_equal(c->journal.file, "/tmp/j");
    assert_int_equal(c->journal.bytes_max, 16 * 1024);
}

static void check_changed_engine(const struct bt_config *c)
{
    const struct bt_model_config *m = &c->models[1];
    const struct bt_worker_config *w = &c->workers[0];
    assert_int_equal(m->engine.overlap, BT_OVERLAP_LAYER);
    assert_int_equal(m->engine.pieces, 80);
    assert_true(m->engine.allocate_first);
    assert_false(m->engine.decode_delta);
    assert_false(m->engine.late_decode);
    assert_int_equal(m->engine.descriptors_per_block, 2);
    assert_int_equal(m->engine.replication, 3);
    assert_true(m->engine.eagle);
    assert_true(w->local_prefill);
    assert_int_equal(w->prefill_chunk_tokens, 0);
    assert_int_equal(w->batch_tokens, 8192);
    assert_int_equal(w->host.rate_bytes_per_s, 50000000000ull);
    assert_int_equal(w->host.setup_ns, 400 * BT_NS_PER_US);
    assert_int_equal(w->disk.rate_bytes_per_s, 24000000000ull);
    assert_int_equal(w->disk.setup_ns, 200 * BT_NS_PER_US);
}

static void check_changed_events(const struct bt_config *c)
{
    const struct bt_worker_config *w = &c->workers[1];
    assert_string_equal(c->events.bind, "tcp://*:9999");
    assert_int_equal(c->events.held_batches, 31);
    assert_int_equal(c->events.held_bytes, 65536);
    assert_int_equal(c->events.held_total, 66560);
    assert_int_equal(c->events.parked_events, 32);
    assert_int_equal(c->events.parked_ns, 33 * BT_NS_PER_MS);
    assert_int_equal(c->events.replays_max, 34);
    assert_int_equal(c->events.silence_ns, 35 * BT_NS_PER_MS);
    assert_int_equal(c->events.replay_ns, 36 * BT_NS_PER_MS);
    assert_int_equal(c->events.cooldown_ns, 37 * BT_NS_PER_MS);
    assert_int_equal(c->events.busy_silent_ns, 0);
    assert_int_equal(c->events.late_ns, 43 * BT_NS_PER_MS);
    assert_false(c->index.approximate || c->index.self_check);
    assert_int_equal(c->index.approximate_blocks, 41);
    assert_int_equal(c->index.approximate_ttl_ns, 42 * BT_NS_PER_MS);
    assert_string_equal(c->index.snapshot, "/tmp/s");
    assert_int_equal(c->index.snapshot_interval_ns, 43 * BT_NS_PER_MS);
    assert_int_equal(w->ranks, 64);
    assert_string_equal(w->events_topic, "kv@a@");
    assert_string_equal(w->replay, "tcp://a:65472");
    assert_int_equal(w->removals, BT_REMOVALS_LAST);
    assert_true(w->healing);
    assert_int_equal(c->models[1].engine_hash, BT_ENGINE_HASH_XXHASH_CBOR);
    assert_string_equal(c->models[1].engine_hash_seed, "4294967295");
}

static void check_changed_lists(const struct bt_config *c)
{
    const struct bt_worker_config *w = &c->workers[0];
    assert_int_equal(c->model_count, 2);
    assert_string_equal(c->models[0].name, "org/a");
    assert_int_equal(c->models[0].block_size, 64);
    assert_int_equal(c->models[0].kv_bytes_per_token, 10);
    assert_int_equal(c->models[1].adapter_count, 2);
    assert_string_equal(c->models[1].adapters[1], "y");
    assert_int_equal(w->model, 1);
    assert_int_equal(c->workers[1].model, 0);
    assert_string_equal(w->url, "http://[::1]:80");
    assert_string_equal(w->compute, "h100-70b-tp4");
    assert_true(w->speedup == 20 && w->compute_model.speedup == 20);
    assert_int_equal(w->decode_slots, 3);
    assert_int_equal(w->kv_capacity_tokens, 4000);
    assert_string_equal(w->events, "ipc:///tmp/e");
    assert_string_equal(c->links[0].from, "*");
    assert_string_equal(c->links[0].to, "w1");
    assert_int_equal(c->links[0].model.rate_bytes_per_s, MIB);
    assert_int_equal(c->links[0].model.setup_ns, 3000);
    assert_int_equal(c->links[0].model.per_descriptor_ns, 4000);
    assert_string_equal(c->link_default.link_class, "fast");
    assert_int_equal(c->link_default.model.rate_bytes_per_s, 50000000000ull);
    assert_int_equal(c->link_default.model.setup_ns, 0);
    assert_int_equal(c->link_default.model.per_descriptor_ns, 2);
}

static void every_key_changes_its_member(void **state)
{
    (void)state;
    struct bt_config *c = load(CHANGED);
    check_changed_top(c);
    check_changed_limits(c);
    check_changed_times(c);
    check_changed_planner(c);
    check_changed_engine(c);
    check_changed_events(c);
    check_changed_lists(c);
    bt_config_destroy(c);
}

/* "a.b.c" and a value: "a: {b: {c: 'value'}}". */
static void write_nested(const char *path, const char *value, char *yaml,
                         size_t size)
{
    size_t used = 0, sections = 0;
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        used += (size_t)snprintf(yaml + used, size - used, "%.*s: {",
                                 (int)(dot - path), path);
        sections++;
    }
    used += (size_t)snprintf(yaml + used, size - used, "%s: '%s'", path, value);
    assert_true(used + sections < size);
    memset(yaml + used, '}', sections);
    yaml[used + sections] = '\0';
}

/* One key of the table with its own default written out, flow style. */
static void write_key(const struct bt_config_key *key, char *yaml, size_t size)
{
    const char *element = strstr(key->path, "[].");
    char nested[256];
    write_nested(element ? element + 3 : key->path, key->fallback, nested,
                 sizeof(nested));
    if (!element)
        snprintf(yaml, size, "%s%s\n", GOOD, nested);
    else if (strncmp(key->path, "models", 6) == 0)
        snprintf(yaml, size,
                 "models:\n  - {name: demo, %s}\nworkers:\n"
                 "  - {name: w0, url: 'http://127.0.0.1:1'}\n",
                 nested);
    else if (strncmp(key->path, "workers", 7) == 0)
        snprintf(yaml, size,
                 "models:\n  - {name: demo}\nworkers:\n"
                 "  - {name: w0, url: 'http://127.0.0.1:1', %s}\n",
                 nested);
    else
        snprintf(yaml, size, "%slinks:\n  - {%s}\n", GOOD, nested);
}

static void every_key_of_the_table_takes_its_default(void **state)
{
    (void)state;
    char yaml[512];
    size_t keys = 0;
    for (; bt_config_key_at(keys); keys++) {
        const struct bt_config_key *key = bt_config_key_at(keys);
        assert_true(key->values[0] != '\0' && key->text[0] != '\0');
        if (!key->fallback || strstr(key->path, "adapters"))
            continue;
        write_key(key, yaml, sizeof(yaml));
        bt_config_destroy(load(yaml));
    }
    assert_int_equal(keys, 131);
}

static void policies_are_replaced(void **state)
{
    (void)state;
    struct bt_config *c = load(GOOD);
    char error[256];
    assert_int_equal(
        bt_config_policy_set(c, "jsq:requests=1", error, sizeof(error)), BT_OK);
    assert_string_equal(c->policy, "jsq:requests=1");
    assert_ptr_equal(c->policy_rule, bt_policy_find("jsq"));
    assert_true(c->policy_knobs[0] == 1);
    assert_int_equal(bt_config_policy_set(c, "jqs", error, sizeof(error)),
                     BT_NOT_FOUND);
    assert_int_equal(
        bt_config_policy_set(c, "jsq:requests=x", error, sizeof(error)),
        BT_INVALID);
    assert_string_equal(c->policy, "jsq:requests=1");
    assert_true(c->policy_knobs[0] == 1);
    bt_config_destroy(c);
}

static void example_loads(void **state)
{
    (void)state;
    struct bt_config *config = NULL;
    char error[512];
    enum bt_status status =
        bt_config_load(BATON_SOURCE_DIR "/deploy/config/baton.yaml", &config,
                       error, sizeof(error));
    if (status != BT_OK)
        fail_msg("%s", error);
    assert_true(config->worker_count >= 2);
    bt_config_destroy(config);
}

static void nearest_words(void **state)
{
    (void)state;
    static const char *const words[] = {"policy", "prefill", "queue", "seed",
                                        "pd"};
    assert_string_equal(bt_nearest("polcy", words, 5), "policy");
    assert_string_equal(bt_nearest("plicoy", words, 5), "policy");
    assert_string_equal(bt_nearest("sede", words, 5), "seed");
    assert_string_equal(bt_nearest("queues", words, 5), "queue");
    assert_null(bt_nearest("xyzzy", words, 5));
    assert_null(bt_nearest("", words, 5));
    assert_null(bt_nearest("policy", words, 0));
    assert_string_equal(bt_nearest("policy", words, 5), "policy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_documented_ones),
        cmocka_unit_test(documented_file_loads),
        cmocka_unit_test(every_key_changes_its_member),
        cmocka_unit_test(every_key_of_the_table_takes_its_default),
        cmocka_unit_test(policies_are_replaced),
        cmocka_unit_test(example_loads),
        cmocka_unit_test(nearest_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
