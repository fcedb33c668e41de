/* Puts the server together: configuration -> core, listeners, loop, tick,
 * drain; and runs events through the core, performing its effects in order.
 * Leaves requests to exchange.c, workers to workers.c, events to
 * event_plane.c.
 */
#include "serve_priv.h"

#include "baton/orchestrator/big_memory.h"
#include "baton/orchestrator/index_query.h"
#include "baton/orchestrator/topology_file.h"
#include "exchange.h"
#include "recorder.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TICK_S 0.05
/* Effects of nested steps queue here; each step may add up to STEP_EFFECTS. */
#define STEP_EFFECTS 256u
#define EFFECTS_MAX  (64u * STEP_EFFECTS)
/* For the last words to the clients of a cut drain. */
#define CUT_GRACE_S 2.0

int64_t serve_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * BT_NS_PER_S + now.tv_nsec;
}

/* ---- stepping ---- */

enum bt_status serve_step(struct bt_serve *serve, struct bt_event *event)
{
    struct bt_effects effects;
    enum bt_status status;

    /* Deep nesting cannot happen (an effect causes at most a few events), so
     * a full buffer is a bug, not load. */
    assert(serve->pending_count + STEP_EFFECTS <= EFFECTS_MAX);
    effects = (struct bt_effects){
        .items = serve->pending + serve->pending_count,
        .capacity = STEP_EFFECTS,
    };
    event->now_ns = serve_now_ns();
    status = bt_core_step(serve->core, event, &effects);
    recorder_event(serve, event, &effects);
    for (size_t i = 0; i < effects.count; i++)
        exchange_keep_decision(&effects.items[i]);
    serve->pending_count += effects.count;
    if (!serve->performing)
        serve_perform(serve);
    return status;
}

void serve_perform(struct bt_serve *serve)
{
    assert(!serve->performing);
    serve->performing = true;
    for (size_t i = 0; i < serve->pending_count; i++)
        exchange_perform(serve, &serve->pending[i]);
    serve->pending_count = 0;
    serve->performing = false;
}

static void on_tick(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_serve *serve = timer->data;
    struct bt_event event = {.type = BT_EV_TICK};
    int64_t now = serve_now_ns();

    (void)loop;
    (void)events;
    bt_prom_observe(&serve->counters.loop_lag,
                    (double)(now - serve->last_tick_ns) / 1e9 - TICK_S);
    serve->last_tick_ns = now;
    exchange_tick_all(serve);
    serve_step(serve, &event);
    kv_watch_tick(serve, now);
}

/* ---- readiness ---- */

bool serve_is_ready(const struct bt_serve *serve, const char **reason_out)
{
    bool prefill = false, decode = false;
    struct bt_core_worker_info info;

    if (serve->draining) {
        *reason_out = "draining";
        return false;
    }
    for (uint32_t w = 0; w < bt_core_worker_count(serve->core); w++) {
        if (bt_core_worker_get(serve->core, w, &info) != BT_OK ||
            info.state != BT_WORKER_READY)
            continue;
        prefill = prefill || (info.roles & BT_ROLE_PREFILL) != 0;
        decode = decode || (info.roles & BT_ROLE_DECODE) != 0;
    }
    if (!decode)
        *reason_out = "no decode worker is ready";
    else if (!prefill && serve->config->pd_required)
        *reason_out = "no prefill worker is ready";
    return decode && (prefill || !serve->config->pd_required);
}

const char *serve_worker_name(const struct bt_serve *serve, uint32_t slot)
{
    return slot < serve->config->worker_count
               ? serve->config->workers[slot].name
               : "-";
}

/* ---- configuration -> core ---- */

static uint32_t class_index(struct bt_serve *serve, const char *name)
{
    for (uint32_t i = 0; i < serve->link_class_count; i++) {
        const char *known = serve->link_classes[i];

        if (known != NULL && strcmp(known, name) == 0)
            return i;
    }
    serve->link_classes[serve->link_class_count] = name;
    return serve->link_class_count++;
}

static bool rule_fits(const struct bt_link_rule *rule, const char *from,
                      const char *to)
{
    return (strcmp(rule->from, "*") == 0 || strcmp(rule->from, from) == 0) &&
           (strcmp(rule->to, "*") == 0 || strcmp(rule->to, to) == 0);
}

static const struct bt_link_rule *find_rule(const struct bt_config *config,
                                            const char *from, const char *to)
{
    for (uint32_t i = 0; i < config->link_count; i++)
        if (rule_fits(&config->links[i], from, to))
            return &config->links[i];
    return &config->link_default;
}

/* No order of the vLLM dialect makes an engine fetch a prefix from a peer:
 * fetch_ok stays false. What it has in tiers of its own it loads unasked. */
static struct bt_core_worker_config
core_worker(const struct bt_worker_config *worker)
{
    return (struct bt_core_worker_config){
        .roles = worker->roles,
        .model = worker->model,
        .compute = worker->compute_model,
        .decode_slots = worker->decode_slots,
        .kv_capacity_tokens = worker->kv_capacity_tokens,
        .host = worker->host,
        .disk = worker->disk,
        .local_ok = worker->local_prefill,
        .fetch_ok = false,
        .chunk_tokens = worker->prefill_chunk_tokens,
        .batch_tokens = worker->batch_tokens,
        .ranks = worker->ranks,
    };
}

static struct bt_core_model_config
core_model(const struct bt_model_config *model)
{
    return (struct bt_core_model_config){
        .kv_bytes_per_token = model->kv_bytes_per_token,
        .block_tokens = model->block_size,
        .mode = {.overlap = (enum bt_overlap)model->engine.overlap,
                 .pieces = model->engine.pieces,
                 .allocate_first = model->engine.allocate_first,
                 .whole_prompt = !model->engine.decode_delta,
                 .late_decode = model->engine.late_decode,
                 .descriptors_per_block = model->engine.descriptors_per_block,
                 .replication = model->engine.replication},
    };
}

static enum bt_status build_tables(struct bt_serve *serve)
{
    const struct bt_config *config = serve->config;
    uint32_t n = config->worker_count;

    serve->core_workers = calloc(n + 1, sizeof(*serve->core_workers));
    serve->core_links = calloc((size_t)n * n + 1, sizeof(*serve->core_links));
    serve->core_models =
        calloc(config->model_count + 1, sizeof(*serve->core_models));
    serve->link_classes =
        calloc((size_t)config->link_count + 1, sizeof(*serve->link_classes));
    if (serve->core_workers == NULL || serve->core_links == NULL ||
        serve->core_models == NULL || serve->link_classes == NULL)
        return BT_NO_MEMORY;
    for (uint32_t w = 0; w < n; w++)
        serve->core_workers[w] = core_worker(&config->workers[w]);
    for (uint32_t m = 0; m < config->model_count; m++)
        serve->core_models[m] = core_model(&config->models[m]);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t d = 0; d < n; d++) {
            const struct bt_link_rule *rule = find_rule(
                config, config->workers[p].name, config->workers[d].name);

            serve->core_links[p * n + d] = (struct bt_core_link_config){
                .model = rule->model,
                .class_index = class_index(serve, rule->link_class),
            };
        }
    return BT_OK;
}

static struct bt_core_config core_config(const struct bt_serve *serve)
{
    const struct bt_config *c = serve->config;
    struct bt_core_config core = {
        .policy = c->policy_rule,
        .knobs_set = true,
        .topology =
            c->topology == NULL ? NULL : bt_topology_file_topology(c->topology),
        .prices = c->planner.prices,
        .hold = {.enabled = c->planner.hold,
                 .lead_ns = c->planner.lead_ns,
                 .patience_ns = c->planner.patience_ns,
                 .ask_max = c->planner.ask_max,
                 .ageing = c->planner.ageing,
                 .fairness = c->planner.fairness,
                 .oldest_share = c->planner.oldest_share},
        .slo = {.ttft_base_ns = c->slo.ttft_ns,
                .ttft_factor = c->slo.ttft_factor,
                .tpot_ns = c->slo.tpot_ns},
        .calibrate = c->planner.calibrate,
        .workers = serve->core_workers,
        .worker_count = c->worker_count,
        .links = serve->core_links,
        .models = serve->core_models,
        .model_count = c->model_count,
        .requests_max = c->limits.requests,
        .queue_max = c->limits.queue,
        .index_blocks_max = c->limits.index_blocks,
        .index_holdings_max = c->limits.index_blocks * 2,
        .approx_blocks_max =
            c->index.approximate ? c->index.approximate_blocks : 0,
        .approx_ttl_ns = c->index.approximate_ttl_ns,
        .self_check = c->index.self_check,
        .prompt_blocks_max = c->limits.prompt_tokens,
        .attempts_max = c->retry.attempts,
        .retry_budget_ratio = c->retry.budget,
        .retry_budget_min = c->retry.budget_min,
        .pd_required = c->pd_required,
        .pd_min_tokens = c->planner.pd_min_tokens,
        .expected_output_tokens = c->planner.expected_output,
        .lease_ns = c->lease.duration_ns,
        .lease_margin_ns = c->lease.margin_ns,
        .queue_timeout_ns = c->timeouts.queue,
        .prefill_timeout_ns = c->timeouts.prefill,
        .handoff_timeout_ns = c->timeouts.handoff,
        .idle_stream_timeout_ns = c->timeouts.idle_stream,
        .suspect_ns = c->breaker.suspect_ns,
        .suspect_failures = c->breaker.failures,
        .seed = c->seed,
    };

    memcpy(core.knobs, c->policy_knobs, sizeof(core.knobs));
    return core;
}

static enum bt_status build_core(struct bt_serve *serve)
{
    struct bt_core_config config;
    struct bt_arena arena;
    size_t bytes;

    if (build_tables(serve) != BT_OK)
        return BT_NO_MEMORY;
    config = core_config(serve);
    bytes = bt_core_bytes(&config);
    serve->core_memory = bt_big_memory_take(bytes);
    serve->core_bytes = bytes;
    if (serve->core_memory == NULL)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, serve->core_memory, bytes);
    serve->core = bt_core_init(&arena, &config);
    return serve->core == NULL ? BT_INVALID : BT_OK;
}

/* ---- listeners ---- */

static enum bt_status start_listeners(struct bt_serve *serve, char *error,
                                      size_t error_size)
{
    const struct bt_config *c = serve->config;
    struct bt_httpd_limits front = {
        .connections_max = c->limits.connections,
        .body_bytes_max = c->limits.body,
        .body_total_bytes_max = c->limits.body_total,
        .header_bytes_max = c->limits.headers,
        .stream_buffer_bytes = c->limits.stream_buffer,
        .receive_timeout_s =
            (uint32_t)((c->timeouts.client_idle + BT_NS_PER_S - 1) /
                       BT_NS_PER_S),
        .send_timeout_s =
            (uint32_t)((c->timeouts.client_send + BT_NS_PER_S - 1) /
                       BT_NS_PER_S),
    };
    struct bt_httpd_limits small = {.connections_max = 64,
                                    .body_bytes_max = 1 << 20};
    struct bt_httpd_limits admin = {.connections_max = 64,
                                    .body_bytes_max = BT_INDEX_BODY_MAX};
    enum bt_status status;

    status = bt_httpd_start(serve->loop, c->metrics.address, c->metrics.port,
                            &small, metrics_handle, serve, &serve->metrics,
                            error, error_size);
    if (status == BT_OK)
        status = bt_httpd_start(serve->loop, c->admin.address, c->admin.port,
                                &admin, admin_handle, serve, &serve->admin,
                                error, error_size);
    if (status == BT_OK)
        status = bt_httpd_start(serve->loop, c->listen.address, c->listen.port,
                                &front, front_handle, serve, &serve->front,
                                error, error_size);
    return status;
}

static enum bt_status start_parts(struct bt_serve *serve, char *error,
                                  size_t error_size)
{
    const struct bt_config *c = serve->config;
    struct bt_core_config core;
    enum bt_status status;

    snprintf(error, error_size, "out of memory");
    serve->pending = calloc(EFFECTS_MAX, sizeof(*serve->pending));
    if (serve->pending == NULL)
        return BT_NO_MEMORY;
    status = build_core(serve);
    if (status != BT_OK) {
        snprintf(error, error_size, "the core cannot be built: %s",
                 bt_status_text(status));
        return status;
    }
    if (bt_upstream_create(serve->loop, c->limits.upstream_connections,
                           c->limits.per_worker_connections,
                           &serve->upstream) != BT_OK ||
        tokenizer_start(serve) != BT_OK)
        return BT_NO_MEMORY;
    status = decisions_start(serve, error, error_size);
    if (status == BT_OK)
        status = start_listeners(serve, error, error_size);
    if (status == BT_OK) {
        core = core_config(serve);
        status = recorder_start(serve, &core, error, error_size);
    }
    if (status == BT_OK) {
        snprintf(error, error_size, "the event plane cannot be started");
        status = event_plane_start(serve);
    }
    if (status == BT_OK)
        status = kv_watch_start(serve);
    if (status == BT_OK)
        status = warm_start(serve);
    if (status == BT_OK)
        status = workers_start(serve);
    return status;
}

static void log_start(const struct bt_serve *serve)
{
    const struct bt_config *c = serve->config;
    struct bt_serve_ports ports;

    bt_serve_ports_get(serve, &ports);
    bt_log(BT_LOG_INFO, "serve_started",
           "listen=%s:%u metrics=%s:%u admin=%s:%u policy=%s workers=%u "
           "models=%u pd=%s",
           c->listen.address, ports.listen, c->metrics.address, ports.metrics,
           c->admin.address, ports.admin, c->policy, c->worker_count,
           c->model_count, c->pd_required ? "required" : "preferred");
}

enum bt_status bt_serve_create(struct ev_loop *loop,
                               const struct bt_config *config,
                               struct bt_serve **out, char *error_out,
                               size_t error_size)
{
    struct bt_serve *serve = calloc(1, sizeof(*serve));
    enum bt_status status;

    if (serve == NULL) {
        snprintf(error_out, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    serve->loop = loop;
    serve->config = config;
    bt_log_init(config->log_level, config->log_format);
    serve->started_ns = serve->last_tick_ns = serve_now_ns();
    if (getrandom(&serve->id_seed, sizeof(serve->id_seed), 0) < 0)
        serve->id_seed = (uint64_t)serve->started_ns;
    metrics_init(&serve->counters);
    ev_timer_init(&serve->tick, on_tick, TICK_S, TICK_S);
    serve->tick.data = serve;
    status = start_parts(serve, error_out, error_size);
    if (status != BT_OK) {
        bt_serve_destroy(serve);
        return status;
    }
    ev_timer_start(loop, &serve->tick);
    log_start(serve);
    prompt_warn(config);
    *out = serve;
    return BT_OK;
}

void bt_serve_ports_get(const struct bt_serve *serve,
                        struct bt_serve_ports *out)
{
    out->listen = bt_httpd_port(serve->front);
    out->metrics = bt_httpd_port(serve->metrics);
    out->admin = bt_httpd_port(serve->admin);
}

/* ---- drain and end ---- */

/* Cut what is left; the loop runs on for a moment so that the clients hear of
 * it and the workers' hand-offs are given back. */
static void cut_rest(struct bt_serve *serve)
{
    serve->cut = true;
    bt_log(BT_LOG_WARN, "drain_cut", "requests=%u", serve->exchange_count);
    exchange_cut_all(serve);
    ev_timer_stop(serve->loop, &serve->drain_timer);
    ev_timer_set(&serve->drain_timer, CUT_GRACE_S, 0.);
    ev_timer_start(serve->loop, &serve->drain_timer);
    serve_drain_check(serve);
}

static void on_drain_due(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_serve *serve = timer->data;

    (void)events;
    if (serve->cut || serve->exchange_count == 0)
        ev_break(loop, EVBREAK_ALL);
    else
        cut_rest(serve);
}

void serve_drain_check(struct bt_serve *serve)
{
    if (serve->draining && serve->exchange_count == 0 &&
        serve->releases == NULL)
        ev_break(serve->loop, EVBREAK_ALL);
}

void bt_serve_drain(struct bt_serve *serve)
{
    if (serve->draining) {
        on_drain_due(serve->loop, &serve->drain_timer, 0);
        return;
    }
    serve->draining = true;
    bt_log(BT_LOG_INFO, "drain_started", "requests=%u", serve->exchange_count);
    bt_httpd_quiesce(serve->front);
    ev_timer_init(&serve->drain_timer, on_drain_due,
                  (double)serve->config->timeouts.drain / 1e9, 0.);
    serve->drain_timer.data = serve;
    ev_timer_start(serve->loop, &serve->drain_timer);
    serve_drain_check(serve);
}

bool bt_serve_drained_clean(const struct bt_serve *serve)
{
    return !serve->cut;
}

void bt_serve_destroy(struct bt_serve *serve)
{
    ev_timer_stop(serve->loop, &serve->tick);
    ev_timer_stop(serve->loop, &serve->drain_timer);
    if (serve->front != NULL)
        bt_httpd_stop(serve->front);
    if (serve->admin != NULL)
        bt_httpd_stop(serve->admin);
    if (serve->metrics != NULL)
        bt_httpd_stop(serve->metrics);
    handoff_release_stop(serve);
    if (serve->workers != NULL)
        workers_stop(serve);
    warm_stop(serve);
    kv_watch_stop(serve);
    if (serve->events != NULL)
        event_plane_stop(serve);
    if (serve->upstream != NULL)
        bt_upstream_destroy(serve->upstream);
    if (serve->decisions != NULL)
        decisions_stop(serve);
    if (serve->tokenizer != NULL)
        tokenizer_stop(serve);
    recorder_stop(serve);
    free(serve->pending);
    bt_big_memory_give(serve->core_memory, serve->core_bytes);
    free(serve->core_workers);
    free(serve->core_links);
    free(serve->core_models);
    free(serve->link_classes);
    free(serve);
}
