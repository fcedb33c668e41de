/* Admin listener (default 127.0.0.1): workers, decisions, what-if. GETs change
 * nothing; each POST is logged.
 *
 *   GET  /admin/v1/workers                      POST .../{name}/drain|undrain
 *   GET  /admin/v1/decisions[?limit=N]          GET /admin/v1/decisions/{id}
 *   POST /admin/v1/explain {model, tokens | token_ids, max_tokens}
 *   GET  /admin/v1/summary                      GET /admin/v1/index/stats
 *   POST /admin/v1/index/query, query_by_hash   the same as /query, ... (ask.c)
 */
#include "serve_priv.h"

#include "baton/orchestrator/openai.h"
#include "baton/planner/block_hash.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECENT_MAX  1000u
#define EXPLAIN_MAX 64u

static const char *role_text(unsigned int roles)
{
    if (roles == BT_ROLE_PREFILL)
        return "prefill";
    return roles == BT_ROLE_DECODE ? "decode" : "both";
}

static void field(struct bt_text *t, const char *name, uint64_t value)
{
    bt_text_str(t, ",\"");
    bt_text_str(t, name);
    bt_text_str(t, "\":");
    bt_text_u64(t, value);
}

static void quoted_field(struct bt_text *t, const char *name, const char *value)
{
    bt_text_str(t, ",\"");
    bt_text_str(t, name);
    bt_text_str(t, "\":");
    bt_text_quoted(t, value, strlen(value));
}

/* Models in force, with the coefficients of cost.h. */
static void add_model(struct bt_text *t, const struct bt_serve *serve,
                      const struct bt_core_worker_info *info, uint32_t slot)
{
    struct bt_compute_model m;
    double sigma;
    const struct {
        const char *name;
        const double *value;
    } rows[] = {
        {"prefill_a_ms", &m.prefill_a_ms}, {"prefill_b_ms", &m.prefill_b_ms},
        {"prefill_c_ms", &m.prefill_c_ms}, {"decode_a_ms", &m.decode_a_ms},
        {"decode_b_ms", &m.decode_b_ms},   {"decode_c_ms", &m.decode_c_ms},
        {"prefill_sigma", &sigma},
    };

    if (bt_core_worker_model(serve->core, slot, &m, &sigma) != BT_OK)
        return;
    bt_text_str(t, ",\"compute\":{\"prefill_samples\":");
    bt_text_u64(t, info->prefill_samples);
    field(t, "decode_samples", info->decode_samples);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bt_text_str(t, ",\"");
        bt_text_str(t, rows[i].name);
        bt_text_str(t, "\":");
        bt_text_fixed(t, *rows[i].value, 9);
    }
    bt_text_str(t, "}");
}

static void add_hits(struct bt_text *t, const struct bt_core_worker_info *info)
{
    field(t, "approximate_blocks", info->approx_blocks);
    bt_text_str(t, ",\"credit\":");
    bt_text_fixed(t, info->credit, 4);
    field(t, "hit_checks", info->hit_checks);
    field(t, "hit_predicted_tokens", info->hit_predicted);
    field(t, "hit_found_tokens", info->hit_actual);
    field(t, "hit_unforeseen_tokens", info->hit_unforeseen);
}

static void add_worker(struct bt_text *t, const struct bt_serve *serve,
                       uint32_t slot)
{
    const struct bt_worker_config *config = &serve->config->workers[slot];
    struct bt_core_worker_info info;

    if (bt_core_worker_get(serve->core, slot, &info) != BT_OK)
        return;
    bt_text_str(t, "{\"name\":");
    bt_text_quoted(t, config->name, strlen(config->name));
    quoted_field(t, "role", role_text(info.roles));
    quoted_field(t, "url", config->url);
    quoted_field(t, "model", serve->config->models[info.model].name);
    quoted_field(t, "state", bt_worker_state_name(info.state));
    quoted_field(t, "reason", workers_reason(serve, slot));
    quoted_field(t, "version", workers_version(serve, slot));
    quoted_field(t, "stream", bt_stream_state_name(info.stream));
    quoted_field(t, "stream_cause", bt_stream_cause_name(info.cause));
    field(t, "ranks", info.ranks);
    field(t, "generation", bt_worker_generation(info.id));
    field(t, "block_tokens", info.block_tokens);
    field(t, "kv_capacity_tokens", info.kv_capacity_tokens);
    field(t, "prefill_requests", info.prefill_requests);
    field(t, "prefill_tokens", info.prefill_tokens);
    field(t, "decode_requests", info.decode_requests);
    field(t, "decode_tokens", info.decode_tokens);
    field(t, "transfers", info.transfers);
    field(t, "index_blocks", info.index_blocks);
    add_hits(t, &info);
    field(t, "reported_running", info.running);
    field(t, "reported_waiting", info.waiting);
    bt_text_str(t, ",\"reported_kv_usage\":");
    bt_text_fixed(t, info.kv_usage, 4);
    bt_text_str(t, ",\"stats_age_ms\":");
    if (info.stats_at_ns == 0)
        bt_text_str(t, "null");
    else
        bt_text_i64(t, (serve_now_ns() - info.stats_at_ns) / BT_NS_PER_MS);
    field(t, "failures", info.failures);
    bt_text_str(t, ",\"suspect\":");
    bt_text_str(t, info.suspect_until_ns > serve_now_ns() ? "true" : "false");
    add_model(t, serve, &info, slot);
    bt_text_str(t, "}");
}

/* Send what the text holds, or say that it did not fit; frees buf. */
static void send_text(struct bt_httpd_request *req, char *buf,
                      const struct bt_text *text)
{
    if (buf == NULL)
        reply_error(req, 503, "out of memory");
    else if (text->overflow)
        reply_error(req, 500, "the answer does not fit its buffer");
    else
        reply_json(req, 200, buf, text->used);
    free(buf);
}

static void list_workers(struct bt_serve *serve, struct bt_httpd_request *req)
{
    struct bt_text t;
    char *buf =
        text_alloc(&t, 256 + (size_t)serve->config->worker_count * 2048);

    bt_text_str(&t, "{\"workers\":[");
    for (uint32_t w = 0; w < serve->config->worker_count; w++) {
        if (w > 0)
            bt_text_str(&t, ",");
        add_worker(&t, serve, w);
    }
    bt_text_str(&t, "]}");
    send_text(req, buf, &t);
}

/* /admin/v1/workers/{name}/{verb} */
static void change_worker(struct bt_serve *serve, struct bt_httpd_request *req,
                          const char *rest)
{
    const char *slash = strchr(rest, '/');
    const char *verb = slash == NULL ? "" : slash + 1;
    size_t n = slash == NULL ? strlen(rest) : (size_t)(slash - rest);
    bool drain = strcmp(verb, "drain") == 0;

    if (!drain && strcmp(verb, "undrain") != 0) {
        reply_error(req, 404, "a worker knows drain and undrain");
        return;
    }
    for (uint32_t w = 0; w < serve->config->worker_count; w++) {
        const char *name = serve->config->workers[w].name;

        if (strlen(name) != n || memcmp(name, rest, n) != 0)
            continue;
        bt_log(BT_LOG_INFO, "admin_change", "worker=%s verb=%s", name, verb);
        workers_set_drain(serve, w, drain);
        reply_json(req, 200, "{\"ok\":true}", 11);
        return;
    }
    reply_error(req, 404, "no worker of that name");
}

static void list_decisions(struct bt_serve *serve, struct bt_httpd_request *req)
{
    const char *given = bt_httpd_query(req, "limit");
    unsigned long limit = given == NULL ? 20 : strtoul(given, NULL, 10);
    size_t size = 64;
    struct bt_text t;
    char *buf;

    if (limit > RECENT_MAX)
        limit = RECENT_MAX;
    for (size_t i = 0; i < limit && decisions_recent(serve, i) != NULL; i++)
        size += strlen(decisions_recent(serve, i)) + 2;
    buf = text_alloc(&t, size);
    bt_text_str(&t, "{\"decisions\":[");
    for (size_t i = 0; i < limit && decisions_recent(serve, i) != NULL; i++) {
        if (i > 0)
            bt_text_str(&t, ",");
        bt_text_str(&t, decisions_recent(serve, i));
    }
    bt_text_str(&t, "]}");
    send_text(req, buf, &t);
}

static void one_decision(struct bt_serve *serve, struct bt_httpd_request *req,
                         const char *id)
{
    const char *line = decisions_find(serve, id);

    if (line == NULL)
        reply_error(req, 404,
                    "no decision of that request id is kept (see "
                    "decisions.ring)");
    else
        reply_json(req, 200, line, strlen(line));
}

/* ---- what-if ---- */

struct what_if {
    uint32_t model, prompt_tokens, max_tokens;
    uint64_t *keys;
    size_t key_count;
};

static const char *read_ids(const struct bt_serve *serve,
                            const struct bt_json *ids, struct what_if *out)
{
    const struct bt_model_config *model = &serve->config->models[out->model];
    size_t count = 0, cursor = 0, max = ids->bytes / 2 + 1;
    uint32_t *tokens = malloc(max * sizeof(*tokens));
    const char *fault = NULL;
    struct bt_json item;
    uint64_t value;

    if (tokens == NULL)
        return "out of memory";
    while (fault == NULL && bt_json_next(ids, &cursor, NULL, &item)) {
        if (bt_json_u64(&item, &value) != BT_OK || value > UINT32_MAX)
            fault = "'token_ids' holds something other than a token id";
        else
            tokens[count++] = (uint32_t)value;
    }
    out->prompt_tokens = (uint32_t)count;
    out->keys = malloc((count / model->block_size + 1) * sizeof(*out->keys));
    if (fault == NULL && out->keys != NULL)
        out->key_count =
            prompt_keys(model, tokens, count, BT_NS_PLAIN, out->keys);
    free(tokens);
    return fault;
}

static const char *read_what_if(const struct bt_serve *serve, const char *body,
                                size_t bytes, struct what_if *out)
{
    struct bt_json root, value;
    uint64_t number;

    if (bt_json_parse(body, bytes, &root, NULL) != BT_OK ||
        root.type != BT_JSON_OBJECT)
        return "the body is not a JSON object";
    if (bt_json_member(&root, "model", &value, NULL)) {
        while (out->model < serve->config->model_count &&
               !bt_json_is(&value, serve->config->models[out->model].name))
            out->model++;
        if (out->model == serve->config->model_count)
            return "no such model";
    }
    if (bt_json_member(&root, "max_tokens", &value, NULL)) {
        if (bt_json_u64(&value, &number) != BT_OK || number > UINT32_MAX)
            return "'max_tokens' is not a whole number";
        out->max_tokens = (uint32_t)number;
    }
    if (bt_json_member(&root, "token_ids", &value, NULL) &&
        value.type == BT_JSON_ARRAY)
        return read_ids(serve, &value, out);
    if (!bt_json_member(&root, "tokens", &value, NULL) ||
        bt_json_u64(&value, &number) != BT_OK || number == 0 ||
        number > serve->config->limits.prompt_tokens)
        return "'tokens' (a count within limits.prompt_tokens) or 'token_ids' "
               "is needed";
    out->prompt_tokens = (uint32_t)number;
    return NULL;
}

static void explain(struct bt_serve *serve, struct bt_httpd_request *req)
{
    struct what_if ask = {0};
    struct bt_placement placement;
    struct bt_place_candidate table[EXPLAIN_MAX];
    size_t bytes = 0, feasible, shown;
    const char *body = bt_httpd_body(req, &bytes);
    const char *fault = read_what_if(serve, body, bytes, &ask);
    struct bt_text t;
    char *buf;

    if (fault != NULL) {
        free(ask.keys);
        reply_error(req, 400, fault);
        return;
    }
    feasible = bt_core_explain(serve->core, serve_now_ns(), ask.model,
                               ask.prompt_tokens, ask.keys, ask.key_count,
                               ask.max_tokens, &placement, table, EXPLAIN_MAX);
    free(ask.keys);
    if (feasible == 0) {
        reply_error(req, 503, "no worker can take such a request now");
        return;
    }
    shown = feasible < EXPLAIN_MAX ? feasible : EXPLAIN_MAX;
    buf = text_alloc(&t, 1024 + shown * 768);
    bt_text_str(&t, "{\"policy\":\"");
    bt_text_str(&t, serve->config->policy);
    bt_text_str(&t, "\",\"input_tokens\":");
    bt_text_u64(&t, ask.prompt_tokens);
    quoted_field(&t, "reason", bt_reason_name(placement.reason));
    field(&t, "candidates_considered", feasible);
    bt_text_str(&t, ",\"chosen\":");
    decisions_candidate(&t, serve, &placement.chosen);
    bt_text_str(&t, ",\"candidates\":[");
    for (size_t i = 0; i < shown; i++) {
        if (i > 0)
            bt_text_str(&t, ",");
        decisions_candidate(&t, serve, &table[i]);
    }
    bt_text_str(&t, "]}");
    send_text(req, buf, &t);
}

/* ---- summary ---- */

static void summary(struct bt_serve *serve, struct bt_httpd_request *req)
{
    const struct bt_core_counters *c = bt_core_counters_get(serve->core);
    const struct bt_histogram *h = &serve->counters.plan_ns;
    char buf[2048];
    struct bt_text t;
    uint64_t ended = 0;

    for (int i = 0; i < BT_OUTCOME_COUNT; i++)
        ended += c->outcomes[i];
    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"plan_us\":{\"p50\":");
    bt_text_fixed(&t, (double)bt_histogram_quantile(h, 0.5) / 1e3, 3);
    bt_text_str(&t, ",\"p99\":");
    bt_text_fixed(&t, (double)bt_histogram_quantile(h, 0.99) / 1e3, 3);
    bt_text_str(&t, ",\"mean\":");
    bt_text_fixed(&t, bt_histogram_mean(h) / 1e3, 3);
    bt_text_str(&t, "}");
    field(&t, "overlap_tokens", serve->counters.overlap_tokens);
    field(&t, "prompt_tokens", serve->counters.prompt_tokens_placed);
    field(&t, "requests", c->requests);
    field(&t, "ended", ended);
    field(&t, "in_flight", serve->exchange_count);
    field(&t, "retries", c->retries);
    field(&t, "differs_from_baseline", c->differs_from_baseline);
    field(&t, "guard_kept_baseline", c->guard_kept_baseline);
    bt_text_str(&t, ",\"idle\":");
    bt_text_str(&t, bt_core_is_idle(serve->core) ? "true" : "false");
    for (int i = 0; i < BT_OUTCOME_COUNT; i++)
        field(&t, bt_outcome_name((enum bt_outcome)i), c->outcomes[i]);
    bt_text_str(&t, "}");
    reply_json(req, 200, buf, t.used);
}

static void index_stats(struct bt_serve *serve, struct bt_httpd_request *req)
{
    struct bt_prefix_index_stats s;
    char buf[1024];
    struct bt_text t;

    bt_core_index_stats(serve->core, &s);
    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"blocks\":");
    bt_text_u64(&t, s.blocks);
    field(&t, "holdings", s.holdings);
    field(&t, "stores", s.stores);
    field(&t, "removes", s.removes);
    field(&t, "clears", s.clears);
    field(&t, "unknown_removes", s.unknown_removes);
    field(&t, "unknown_parents", s.unknown_parents);
    field(&t, "malformed", s.malformed);
    field(&t, "dropped", s.dropped);
    bt_text_str(&t, "}");
    reply_json(req, 200, buf, t.used);
}

/* ---- dispatch ---- */

/* What others' routers ask, at the paths that they ask and at ours. */
static bool handle_ask(struct bt_serve *serve, struct bt_httpd_request *req,
                       const char *path)
{
    bool tokens = strcmp(path, "/query") == 0 ||
                  strcmp(path, "/admin/v1/index/query") == 0;
    bool hashes = strcmp(path, "/query_by_hash") == 0 ||
                  strcmp(path, "/admin/v1/index/query_by_hash") == 0;

    if (tokens || hashes)
        ask_handle(serve, req, hashes);
    return tokens || hashes;
}

static const char *after(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(path, prefix, n) == 0 ? path + n : NULL;
}

static bool handle_get(struct bt_serve *serve, struct bt_httpd_request *req,
                       const char *path)
{
    const char *id = after(path, "/admin/v1/decisions/");

    if (strcmp(path, "/admin/v1/workers") == 0)
        list_workers(serve, req);
    else if (strcmp(path, "/admin/v1/decisions") == 0)
        list_decisions(serve, req);
    else if (id != NULL)
        one_decision(serve, req, id);
    else if (strcmp(path, "/admin/v1/summary") == 0)
        summary(serve, req);
    else if (strcmp(path, "/admin/v1/index/stats") == 0)
        index_stats(serve, req);
    else
        return false;
    return true;
}

void admin_handle(void *arg, struct bt_httpd_request *req)
{
    struct bt_serve *serve = arg;
    const char *path = bt_httpd_path(req);
    const char *worker = after(path, "/admin/v1/workers/");

    if (strcmp(bt_httpd_method(req), "GET") == 0) {
        if (!handle_get(serve, req, path))
            reply_error(req, 404, "no such admin route");
    } else if (strcmp(bt_httpd_method(req), "POST") != 0) {
        reply_error(req, 405, "GET or POST");
    } else if (worker != NULL) {
        change_worker(serve, req, worker);
    } else if (strcmp(path, "/admin/v1/explain") == 0) {
        explain(serve, req);
    } else if (!handle_ask(serve, req, path)) {
        reply_error(req, 404, "no such admin route");
    }
}
