/* The client-facing routes: what is served, what is refused and in which
 * words. A completion becomes an exchange; everything else is answered here.
 *
 *   POST /v1/completions, /v1/chat/completions   prefill/decode
 *   GET  /v1/models        from our registry: models that a ready worker has
 *   GET  /livez /readyz /healthz /health
 *   any other path         404; another method on these: 405
 */
#include "exchange.h"

#include "baton/planner/block_hash.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *text_alloc(struct bt_text *text, size_t size)
{
    char *at = malloc(size);

    bt_text_init(text, at, at == NULL ? 0 : size);
    return at;
}

void reply_json(struct bt_httpd_request *req, int status, const char *body,
                size_t bytes)
{
    bt_httpd_reply(req, status, "application/json", body, bytes);
}

void reply_error(struct bt_httpd_request *req, int status, const char *message)
{
    char buf[1024];
    struct bt_text text;

    bt_text_init(&text, buf, sizeof(buf));
    bt_openai_error(&text, status, message);
    reply_json(req, status, buf, text.used);
}

/* ---- request id ---- */

static bool id_is_safe(const char *id)
{
    size_t n = strlen(id);

    return n > 0 && n <= REQUEST_ID_MAX &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                      "0123456789-_.:") == n;
}

static void take_request_id(struct exchange *x)
{
    static const char *const names[] = {"x-request-id", "x-correlation-id",
                                        "x-trace-id", "request-id"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *given = bt_httpd_header(x->http, names[i]);

        if (given != NULL && id_is_safe(given)) {
            snprintf(x->request_id, sizeof(x->request_id), "%s", given);
            return;
        }
    }
    exchange_new_upstream_id(x);
    snprintf(x->request_id, sizeof(x->request_id), "req-%s", x->upstream_id);
}

/* ---- completions ---- */

static void refuse(struct exchange *x, int status, const char *message)
{
    reply_error(x->http, status, message);
    exchange_discard(x);
}

/* Model or adapter by name; false: unknown. */
static bool find_model(struct exchange *x)
{
    const struct bt_config *config = x->serve->config;

    for (uint32_t m = 0; m < config->model_count; m++) {
        const struct bt_model_config *model = &config->models[m];

        x->model = m;
        if (bt_json_is(&x->request.model, model->name))
            return true;
        for (uint32_t a = 0; a < model->adapter_count; a++) {
            x->adapter = model->adapters[a];
            if (bt_json_is(&x->request.model, x->adapter))
                return true;
        }
        x->adapter = NULL;
    }
    return false;
}

static void submit_ids(struct exchange *x)
{
    size_t max = x->serve->config->limits.prompt_tokens, count = 0;
    size_t most = x->request.prompt.bytes / 2 + 1; /* "1," per token */
    uint32_t *ids = malloc((most < max ? most : max) * sizeof(*ids));
    enum bt_status status;

    if (ids == NULL) {
        refuse(x, 503, "out of memory");
        return;
    }
    status =
        bt_openai_token_ids(&x->request, ids, most < max ? most : max, &count);
    if (status == BT_TOO_LARGE)
        refuse(x, 400, "'prompt' has more tokens than limits.prompt_tokens");
    else if (status != BT_OK)
        refuse(x, 400, "'prompt' holds a token id outside 0 .. 2^32-1");
    else
        exchange_submit(x, ids, count, count);
    free(ids);
}

static void submit_bytes(struct exchange *x)
{
    struct bt_bytes_prompt p;

    if (!bytes_tokenize(&x->request, x->serve->config->limits.prompt_tokens,
                        &p)) {
        exchange_submit(x, NULL, 0, 0);
        return;
    }
    exchange_submit(x, p.tokens, p.count, p.text_count);
    free(p.tokens);
}

static void submit(struct exchange *x)
{
    bool batch = x->request.kind == BT_PROMPT_TEXT_BATCH ||
                 x->request.kind == BT_PROMPT_TOKEN_BATCH;

    if (batch)
        exchange_submit(x, NULL, 0, 0);
    else if (x->request.kind == BT_PROMPT_TOKENS)
        submit_ids(x);
    else if (x->serve->config->tokenizer == BT_TOKENIZER_BYTES)
        submit_bytes(x);
    else if (tokenize_start(x) != BT_OK)
        exchange_submit(x, NULL, 0, 0);
}

static void handle_completion(struct bt_serve *serve,
                              struct bt_httpd_request *req, enum bt_route route)
{
    struct exchange *x;
    char message[256];
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);
    enum bt_status status;

    if (serve->draining) {
        bt_httpd_add_header(req, "Connection", "close");
        bt_httpd_add_header(req, "Retry-After", "1");
        reply_error(req, 503, "the server is draining");
        return;
    }
    x = exchange_open(serve, req);
    if (x == NULL) {
        reply_error(req, 503, "out of memory");
        return;
    }
    take_request_id(x);
    bt_httpd_add_header(req, "x-request-id", x->request_id);
    status = bt_openai_parse(route, body, bytes, &x->request, message,
                             sizeof(message));
    if (status != BT_OK) {
        refuse(x, 400, message);
        return;
    }
    if (!find_model(x)) {
        refuse(x, 404,
               "the model does not exist here; GET /v1/models lists "
               "those that do");
        return;
    }
    if (x->request.client_params > 0)
        serve->counters.client_params_removed += x->request.client_params;
    x->ns = bt_ns_seed(x->adapter, x->adapter == NULL ? 0 : strlen(x->adapter),
                       x->request.salt, x->request.salt_bytes);
    submit(x);
}

/* ---- models and health ---- */

static bool model_is_served(const struct bt_serve *serve, uint32_t model)
{
    struct bt_core_worker_info info;

    for (uint32_t w = 0; w < serve->config->worker_count; w++)
        if (bt_core_worker_get(serve->core, w, &info) == BT_OK &&
            info.state == BT_WORKER_READY && info.model == model)
            return true;
    return false;
}

static void add_model(struct bt_text *text, const char *name,
                      const char *parent, bool *first)
{
    bt_text_str(text, *first ? "" : ",");
    *first = false;
    bt_text_str(text, "{\"id\":");
    bt_text_quoted(text, name, strlen(name));
    bt_text_str(text, ",\"object\":\"model\",\"owned_by\":\"baton\"");
    if (parent != NULL) {
        bt_text_str(text, ",\"parent\":");
        bt_text_quoted(text, parent, strlen(parent));
    }
    bt_text_str(text, "}");
}

static void handle_models(struct bt_serve *serve, struct bt_httpd_request *req)
{
    const struct bt_config *config = serve->config;
    struct bt_text text;
    size_t size = 256;
    bool first = true;
    char *buf;

    for (uint32_t m = 0; m < config->model_count; m++) {
        size += 7 * strlen(config->models[m].name) + 128;
        for (uint32_t a = 0; a < config->models[m].adapter_count; a++)
            size += 6 * (strlen(config->models[m].adapters[a]) +
                         strlen(config->models[m].name)) +
                    128;
    }
    buf = text_alloc(&text, size);
    bt_text_str(&text, "{\"object\":\"list\",\"data\":[");
    for (uint32_t m = 0; m < config->model_count; m++) {
        const struct bt_model_config *model = &config->models[m];

        if (!model_is_served(serve, m))
            continue;
        add_model(&text, model->name, NULL, &first);
        for (uint32_t a = 0; a < model->adapter_count; a++)
            add_model(&text, model->adapters[a], model->name, &first);
    }
    bt_text_str(&text, "]}");
    if (buf == NULL || text.overflow)
        reply_error(req, 503, "out of memory");
    else
        reply_json(req, 200, buf, text.used);
    free(buf);
}

static bool loop_is_alive(const struct bt_serve *serve)
{
    return serve_now_ns() - serve->last_tick_ns < 5 * BT_NS_PER_S;
}

static void handle_health(struct bt_serve *serve, struct bt_httpd_request *req,
                          const char *path)
{
    const char *reason = "ok";
    bool live = strcmp(path, "/livez") == 0;
    bool ok = loop_is_alive(serve) && (live || serve_is_ready(serve, &reason));
    char buf[160];
    int n = snprintf(buf, sizeof(buf), "{\"status\":\"%s\",\"reason\":\"%s\"}",
                     ok ? "ok" : "unavailable", reason);

    reply_json(req, ok ? 200 : 503, buf, (size_t)n);
}

/* ---- dispatch ---- */

struct path_entry {
    const char *path;
    const char *method;
    enum route_index route;
};

static const struct path_entry paths[] = {
    {"/v1/completions", "POST", ROUTE_COMPLETIONS},
    {"/v1/chat/completions", "POST", ROUTE_CHAT},
    {"/v1/models", "GET", ROUTE_MODELS},
    {"/livez", "GET", ROUTE_HEALTH},
    {"/readyz", "GET", ROUTE_HEALTH},
    {"/healthz", "GET", ROUTE_HEALTH},
    {"/health", "GET", ROUTE_HEALTH},
};

static const struct path_entry *find_path(const char *path)
{
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strcmp(paths[i].path, path) == 0)
            return &paths[i];
    return NULL;
}

static void unknown_path(struct bt_httpd_request *req, const char *path)
{
    /* Engines answer these too; say that they are known but not served. */
    static const char *const engine_only[] = {
        "/v1/responses",  "/v1/messages", "/inference/v1/generate",
        "/v1/embeddings", "/tokenize",    "/detokenize"};

    for (size_t i = 0; i < sizeof(engine_only) / sizeof(engine_only[0]); i++)
        if (strcmp(path, engine_only[i]) == 0) {
            reply_error(req, 404,
                        "this route has no prefill/decode rule and is not "
                        "served; ask a worker directly");
            return;
        }
    reply_error(req, 404, "no such route");
}

void front_handle(void *arg, struct bt_httpd_request *req)
{
    struct bt_serve *serve = arg;
    const char *path = bt_httpd_path(req);
    const struct path_entry *entry = find_path(path);

    if (entry == NULL) {
        unknown_path(req, path);
        return;
    }
    if (strcmp(entry->method, bt_httpd_method(req)) != 0) {
        bt_httpd_add_header(req, "Allow", entry->method);
        reply_error(req, 405, "method not allowed on this route");
        return;
    }
    switch (entry->route) {
    case ROUTE_COMPLETIONS:
        handle_completion(serve, req, BT_ROUTE_COMPLETIONS);
        break;
    case ROUTE_CHAT:
        handle_completion(serve, req, BT_ROUTE_CHAT);
        break;
    case ROUTE_MODELS:
        handle_models(serve, req);
        break;
    case ROUTE_HEALTH:
        handle_health(serve, req, path);
        break;
    case ROUTE_OTHER:
    case ROUTE_COUNT:
        break;
    }
}
