/* HTTP requests of the OpenAI-like API: routes, bodies, checks. Turns a body
 * into a call with one sequence per prompt and copy; answers everything else
 * at once. An implementation of its own (jansson), so that it does not share
 * the orchestrator's parser and its faults.
 *
 * Invariants: a request is either answered here or owned by a call; nothing is
 * submitted before all of its prompts are known to be good.
 */
#include "engine_priv.h"

#include "baton/planner/block_hash.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a body asks for. */
struct body {
    struct bt_engine *engine;
    json_t *root;
    const char *wrong, *param; /* first fault: message, field */
    int wrong_status;
    char message[256];
    int adapter;
    uint64_t max_tokens, copies;
    bool chat, stream, include_usage, continuous_usage;
    bool remote_decode, has_remote;
    struct bt_remote remote;
    uint32_t *tokens; /* of all prompts, one after the other */
    size_t token_count, tokens_max;
    size_t ends[BT_ENGINE_PROMPTS_MAX];
    size_t prompt_count;
};

static bool wrong(struct body *b, int status, const char *param,
                  const char *message)
{
    b->wrong_status = status;
    b->param = param;
    b->wrong = message;
    return false;
}

/* Whole numbers; reals with a whole value come from bodies with big integers,
 * which are read again as reals. */
static bool whole(const json_t *value, uint64_t *out)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *out = (uint64_t)json_integer_value(value);
        return true;
    }
    double d = json_is_real(value) ? json_real_value(value) : -1;
    if (d < 0 || d > 9e15 || floor(d) != d) {
        return false;
    }
    *out = (uint64_t)d;
    return true;
}

static json_t *parse_json(struct bt_httpd_request *req)
{
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);
    json_t *root = json_loadb(body, bytes, JSON_ALLOW_NUL, NULL);
    if (root == NULL) {
        root = json_loadb(body, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL,
                          NULL);
    }
    if (root != NULL && !json_is_object(root)) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* ---- members ---- */

static bool read_model(struct body *b)
{
    const json_t *model = json_object_get(b->root, "model");
    struct bt_engine *e = b->engine;
    b->adapter = -1;
    if (model == NULL || json_is_null(model)) {
        return true;
    }
    const char *name = json_string_value(model);
    if (name == NULL) {
        return wrong(b, 400, "model", "model must be a string");
    }
    if (strcmp(name, e->model) == 0) {
        return true;
    }
    for (size_t i = 0; i < e->adapter_count; i++) {
        if (strcmp(name, e->adapters[i]) == 0) {
            b->adapter = (int)i;
            return true;
        }
    }
    snprintf(b->message, sizeof(b->message),
             "The model `%.128s` does not exist.", name);
    return wrong(b, 404, "model", b->message);
}

/* A whole number >= least, or absent / null (then *out stays). */
static bool read_count(struct body *b, const char *name, uint64_t least,
                       uint64_t *out)
{
    const json_t *value = json_object_get(b->root, name);
    uint64_t v = 0;
    if (value == NULL || json_is_null(value)) {
        return true;
    }
    if (!whole(value, &v) || v < least || v > UINT32_MAX) {
        snprintf(b->message, sizeof(b->message),
                 "%s must be a whole number of at least %llu", name,
                 (unsigned long long)least);
        return wrong(b, 400, name, b->message);
    }
    *out = v;
    return true;
}

static bool read_lengths(struct body *b)
{
    uint64_t least = 0;
    b->max_tokens = 16;
    b->copies = 1;
    if (!read_count(b, "max_tokens", 1, &b->max_tokens) ||
        (b->chat &&
         !read_count(b, "max_completion_tokens", 1, &b->max_tokens)) ||
        !read_count(b, "min_tokens", 0, &least) ||
        !read_count(b, "n", 1, &b->copies)) {
        return false;
    }
    if (least > b->max_tokens) {
        return wrong(b, 400, "min_tokens",
                     "min_tokens must be less than or equal to max_tokens");
    }
    if (b->copies > 128) {
        return wrong(b, 400, "n", "n must be at most 128");
    }
    return true;
}

static bool read_stream(struct body *b)
{
    const json_t *stream = json_object_get(b->root, "stream");
    const json_t *options = json_object_get(b->root, "stream_options");
    if (stream != NULL && !json_is_null(stream) && !json_is_boolean(stream)) {
        return wrong(b, 400, "stream", "stream must be a boolean");
    }
    b->stream = json_is_true(stream);
    if (options != NULL && !json_is_null(options)) {
        if (!b->stream) {
            return wrong(b, 400, "stream_options",
                         "Stream options can only be defined when "
                         "`stream=True`.");
        }
        b->include_usage =
            json_is_true(json_object_get(options, "include_usage"));
        b->continuous_usage =
            b->include_usage &&
            json_is_true(json_object_get(options, "continuous_usage_stats"));
    }
    if (b->stream &&
        json_is_integer(json_object_get(b->root, "prompt_logprobs"))) {
        return wrong(b, 400, "prompt_logprobs",
                     "`prompt_logprobs` are not available when `stream=True`.");
    }
    return true;
}

static bool read_block_ids(struct body *b, const json_t *ids)
{
    const json_t *first = json_array_get(ids, 0);
    const json_t *list = json_is_array(first) ? first : ids;
    size_t count = json_array_size(list);
    if (count == 0) {
        return false;
    }
    b->remote.blocks = malloc(count * sizeof(*b->remote.blocks));
    if (b->remote.blocks == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;
        if (!whole(json_array_get(list, i), &id) ||
            (id >= UINT32_MAX && b->remote.region[0] == '\0')) {
            return false;
        }
        b->remote.blocks[i] = id;
    }
    b->remote.block_count = count;
    return true;
}

static bool read_text(const json_t *object, const char *name, char *out,
                      size_t size)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (text == NULL || strlen(text) >= size || text[0] == '\0') {
        return false;
    }
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool read_params(struct body *b)
{
    const json_t *params = json_object_get(b->root, "kv_transfer_params");
    uint64_t port = 0;
    char id[64];
    if (!json_is_object(params)) {
        return true;
    }
    b->remote_decode =
        json_is_true(json_object_get(params, "do_remote_decode"));
    if (!json_is_true(json_object_get(params, "do_remote_prefill"))) {
        return true;
    }
    b->has_remote = true;
    /* Of an agent's pool: then the ids are its keys, up to 64 bits. */
    bool ok = json_object_get(params, "remote_region") == NULL ||
              read_text(params, "remote_region", b->remote.region,
                        sizeof(b->remote.region));
    ok = ok && read_block_ids(b, json_object_get(params, "remote_block_ids"));
    ok = ok && read_text(params, "remote_engine_id", id, sizeof(id));
    ok = ok && read_text(params, "remote_request_id", b->remote.request_id,
                         sizeof(b->remote.request_id));
    ok = ok && read_text(params, "remote_host", b->remote.host,
                         sizeof(b->remote.host));
    ok = ok && whole(json_object_get(params, "remote_port"), &port) &&
         port > 0 && port < 65536;
    b->remote.port = (uint16_t)port;
    return ok || wrong(b, 500, "kv_transfer_params",
                       "Got invalid KVTransferParams: a key is missing or "
                       "malformed.");
}

/* ---- prompts ---- */

static bool end_prompt(struct body *b)
{
    size_t start = b->prompt_count > 0 ? b->ends[b->prompt_count - 1] : 0;
    uint64_t count = b->token_count - start;
    if (count == 0) {
        return wrong(b, 400, b->chat ? "messages" : "prompt",
                     "The prompt is empty.");
    }
    if (b->prompt_count * b->copies >= BT_ENGINE_PROMPTS_MAX) {
        return wrong(b, 400, "prompt", "Too many prompts in one request.");
    }
    if (count + b->max_tokens > b->engine->model_len_max) {
        snprintf(b->message, sizeof(b->message),
                 "This model's maximum context length is %u tokens. However, "
                 "you requested %llu output tokens and your prompt contains "
                 "%llu tokens.",
                 b->engine->model_len_max, (unsigned long long)b->max_tokens,
                 (unsigned long long)count);
        return wrong(b, 400, "max_tokens", b->message);
    }
    b->ends[b->prompt_count++] = b->token_count;
    return true;
}

static bool take_text(struct body *b, const json_t *text)
{
    if (bt_bytes_tokenize_text(json_string_value(text),
                               json_string_length(text), b->tokens,
                               b->tokens_max, &b->token_count) != BT_OK) {
        return wrong(b, 400, "prompt", "The prompt is too long.");
    }
    return end_prompt(b);
}

static bool take_ids(struct body *b, const json_t *ids)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint64_t v = 0;
        if (!whole(json_array_get(ids, i), &v) || v > UINT32_MAX) {
            return wrong(b, 400, "prompt",
                         "prompt must be a string, a list of strings, a list "
                         "of token ids or a list of lists of token ids");
        }
        if (b->token_count == b->tokens_max) {
            return wrong(b, 400, "prompt", "The prompt is too long.");
        }
        b->tokens[b->token_count++] = (uint32_t)v;
    }
    return end_prompt(b);
}

static bool take_prompt(struct body *b)
{
    const json_t *prompt = json_object_get(b->root, "prompt");
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_string(prompt)) {
        return take_text(b, prompt);
    }
    if (first == NULL || json_is_number(first)) {
        if (!json_is_array(prompt)) {
            return wrong(b, 400, "prompt",
                         "Either prompt or prompt_embeds must be provided.");
        }
        return take_ids(b, prompt);
    }
    bool texts = json_is_string(first);
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *item = json_array_get(prompt, i);
        if (texts ? !json_is_string(item) : !json_is_array(item)) {
            return wrong(b, 400, "prompt", "prompt mixes kinds of items");
        }
        if (texts ? !take_text(b, item) : !take_ids(b, item)) {
            return false;
        }
    }
    return true;
}

static bool take_content(struct body *b, const json_t *content)
{
    if (json_is_string(content)) {
        return bt_bytes_tokenize_text(json_string_value(content),
                                      json_string_length(content), b->tokens,
                                      b->tokens_max, &b->token_count) == BT_OK;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (type == NULL || strcmp(type, "text") != 0 ||
            !json_is_string(text)) {
            continue;
        }
        if (bt_bytes_tokenize_text(json_string_value(text),
                                   json_string_length(text), b->tokens,
                                   b->tokens_max, &b->token_count) != BT_OK) {
            return false;
        }
    }
    return content == NULL || json_is_null(content) || json_is_array(content);
}

static bool take_messages(struct body *b)
{
    const json_t *messages = json_object_get(b->root, "messages");
    if (json_array_size(messages) == 0) {
        return wrong(b, 400, "messages", "messages must be a non-empty list");
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *role = json_object_get(message, "role");
        if (!json_is_string(role) || json_string_length(role) > 63 ||
            bt_bytes_tokenize_role(json_string_value(role),
                                   json_string_length(role), b->tokens,
                                   b->tokens_max, &b->token_count) != BT_OK ||
            !take_content(b, json_object_get(message, "content")) ||
            bt_bytes_tokenize_message_end(b->tokens, b->tokens_max,
                                          &b->token_count) != BT_OK) {
            return wrong(b, 400, "messages", "malformed message");
        }
    }
    if (bt_bytes_tokenize_answer(b->tokens, b->tokens_max, &b->token_count) !=
        BT_OK) {
        return wrong(b, 400, "messages", "The prompt is too long.");
    }
    return end_prompt(b);
}

/* A byte of body becomes at most one token; the final role adds 13. */
static bool take_tokens(struct body *b, size_t body_bytes)
{
    b->tokens_max = body_bytes + 32;
    b->tokens = calloc(b->tokens_max, sizeof(*b->tokens));
    if (b->tokens == NULL) {
        return wrong(b, 503, NULL, "out of memory");
    }
    return b->chat ? take_messages(b) : take_prompt(b);
}

static void body_fini(struct body *b)
{
    json_decref(b->root);
    free(b->tokens);
    free(b->remote.blocks);
}

/* ---- calls ---- */

static void set_id(struct bt_call *call, const char *given)
{
    char clean[80];
    size_t n = 0;
    for (; given != NULL && given[n] != '\0' && n < sizeof(clean) - 1; n++) {
        unsigned char c = (unsigned char)given[n];
        clean[n] = isalnum(c) || strchr("-_.:", c) != NULL ? (char)c : '_';
    }
    clean[n] = '\0';
    if (n == 0) {
        snprintf(clean, sizeof(clean), "%016llx",
                 (unsigned long long)bt_mix64(call->engine->serial ^
                                              (uint64_t)bt_engine_now()));
    }
    snprintf(call->id, sizeof(call->id), "%s-%s",
             call->chat ? "chatcmpl" : "cmpl", clean);
}

static struct bt_call *call_create(struct body *b, struct bt_httpd_request *req)
{
    struct bt_engine *e = b->engine;
    struct bt_call *call = calloc(1, sizeof(*call));
    if (call == NULL) {
        return NULL;
    }
    call->seqs = calloc(b->prompt_count * b->copies, sizeof(void *));
    if (call->seqs == NULL) {
        free(call);
        return NULL;
    }
    call->engine = e;
    call->http = req;
    call->chat = b->chat;
    call->stream = b->stream;
    call->include_usage = b->include_usage;
    call->continuous_usage = b->continuous_usage;
    call->copies = (uint32_t)b->copies;
    call->created_s = (long long)time(NULL);
    call->model = b->adapter < 0 ? e->model : e->adapters[b->adapter];
    const json_t *id = json_object_get(b->root, "request_id");
    const char *header = bt_httpd_header(req, "X-Request-Id");
    set_id(call, header != NULL ? header : json_string_value(id));
    const json_t *salt = json_object_get(b->root, "cache_salt");
    call->salt_bytes = json_string_length(salt) < sizeof(call->salt)
                           ? json_string_length(salt)
                           : sizeof(call->salt);
    if (call->salt_bytes > 0) {
        memcpy(call->salt, json_string_value(salt), call->salt_bytes);
    }
    call->next = e->calls;
    if (e->calls != NULL) {
        e->calls->prev = call;
    }
    e->calls = call;
    return call;
}

static bool add_seq(struct bt_call *call, const struct body *b, size_t prompt)
{
    struct bt_engine *e = b->engine;
    const char *lora = b->adapter < 0 ? "" : e->adapters[b->adapter];
    size_t start = prompt > 0 ? b->ends[prompt - 1] : 0;
    uint64_t ns = bt_ns_seed(lora, strlen(lora), call->salt, call->salt_bytes);
    struct bt_seq *seq = bt_seq_create(call, b->tokens + start,
                                       (uint32_t)(b->ends[prompt] - start),
                                       (uint32_t)b->max_tokens, ns);
    if (seq == NULL) {
        return false;
    }
    seq->index = call->seq_count;
    seq->adapter = b->adapter;
    seq->salt = call->salt;
    seq->salt_bytes = call->salt_bytes;
    call->seqs[call->seq_count++] = seq;
    return true;
}

/* What `baton serve` foresees for the pull; no other router says it. */
static uint64_t estimate_of(struct bt_call *call)
{
    const char *text = bt_httpd_header(call->http, "X-Baton-Transfer-Ns");
    uint64_t ns = 0;
    if (text == NULL || strlen(text) > 18) {
        return 0;
    }
    for (; *text >= '0' && *text <= '9'; text++) {
        ns = 10 * ns + (uint64_t)(*text - '0');
    }
    return *text == '\0' ? ns : 0;
}

/* Roles of the first sequence; a batch has one set of parameters only. */
static void set_roles(struct bt_call *call, struct body *b)
{
    call->seqs[0]->remote_decode = b->remote_decode;
    if (b->has_remote) {
        call->seqs[0]->has_remote = true;
        call->seqs[0]->remote = b->remote;
        call->seqs[0]->remote.estimate_ns = estimate_of(call);
        b->remote.blocks = NULL; /* handed over */
    }
}

static bool enough_remote_blocks(struct body *b)
{
    size_t size = b->engine->oracle.block_tokens;
    return !b->has_remote ||
           b->remote.block_count >= (b->ends[0] + size - 1) / size ||
           wrong(b, 500, "kv_transfer_params",
                 "Got invalid KVTransferParams: too few remote blocks.");
}

static void start_call(struct body *b, struct bt_httpd_request *req)
{
    struct bt_engine *e = b->engine;
    size_t seqs = b->prompt_count * b->copies;
    if (e->seq_count + seqs > BT_ENGINE_SEQS_MAX) {
        bt_reply_error(req, 503, "too many requests in the engine", NULL);
        return;
    }
    struct bt_call *call = call_create(b, req);
    if (call == NULL) {
        bt_reply_error(req, 503, "out of memory", NULL);
        return;
    }
    bt_call_watch(call);
    bool ok = true;
    for (size_t i = 0; i < seqs && ok; i++) {
        ok = add_seq(call, b, i / b->copies);
    }
    if (!ok) {
        bt_call_fail(call, 503, "out of memory");
        return;
    }
    set_roles(call, b);
    if (call->stream && e->stream_eager) {
        bt_call_progress(call);
    }
    for (uint32_t i = 0; i < call->seq_count && !call->ended; i++) {
        bt_engine_submit(call->seqs[i]);
    }
}

/* An arrival fault: true when the request has been dealt with. */
static bool arrival_fault(struct bt_engine *e, struct bt_httpd_request *req,
                          enum bt_fault_phase phase)
{
    switch (bt_faults_fire(&e->faults, phase)) {
    case BT_FAULT_DIE:
        _Exit(137);
    case BT_FAULT_HANG:
        return true; /* never answered */
    case BT_FAULT_REFUSE:
        bt_httpd_add_header(req, "Connection", "close");
        bt_reply_error(req, 503, "injected fault", NULL);
        return true;
    case BT_FAULT_ERROR:
        bt_reply_error(req, 500, "injected fault", NULL);
        return true;
    case BT_FAULT_NONE:
    case BT_FAULT_SLOW:
    case BT_FAULT_EVENTS_DROP:
    case BT_FAULT_EVENTS_DELAY:
    case BT_FAULT_EVENTS_REORDER:
    case BT_FAULT_EVENTS_DUPLICATE:
    case BT_FAULT_WRONG_BLOCK_SIZE:
    case BT_FAULT_LEASE_EXPIRE:
    case BT_FAULT_CORRUPT_BLOCK:
        break;
    }
    return false;
}

static void handle_generate(struct bt_engine *e, struct bt_httpd_request *req,
                            bool chat)
{
    struct body b = {.engine = e, .chat = chat};
    size_t bytes = 0;
    (void)bt_httpd_body(req, &bytes);
    if (arrival_fault(e, req, BT_PHASE_ARRIVAL)) {
        return;
    }
    b.root = parse_json(req);
    if (b.root == NULL) {
        bt_reply_error(req, 400, "the body is not a valid JSON object", NULL);
        return;
    }
    if (read_model(&b) && read_lengths(&b) && read_stream(&b) &&
        take_tokens(&b, bytes) && read_params(&b) && enough_remote_blocks(&b)) {
        start_call(&b, req);
    } else {
        bt_reply_error(req, b.wrong_status, b.wrong, b.param);
    }
    body_fini(&b);
}

static void handle_tokenize(struct bt_engine *e, struct bt_httpd_request *req)
{
    struct body b = {.engine = e, .copies = 1};
    size_t bytes = 0, size = 0;
    char *text = NULL;
    (void)bt_httpd_body(req, &bytes);
    b.root = parse_json(req);
    b.chat = b.root != NULL && json_object_get(b.root, "messages") != NULL;
    if (b.root == NULL) {
        bt_reply_error(req, 400, "the body is not a valid JSON object", NULL);
        return;
    }
    FILE *f = NULL;
    if (!read_model(&b) || !take_tokens(&b, bytes)) {
        bt_reply_error(req, b.wrong_status, b.wrong, b.param);
    } else if ((f = open_memstream(&text, &size)) == NULL) {
        bt_reply_error(req, 503, "out of memory", NULL);
    } else {
        fprintf(f, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[",
                b.token_count, e->model_len_max);
        for (size_t i = 0; i < b.token_count; i++) {
            fprintf(f, "%s%u", i == 0 ? "" : ",", b.tokens[i]);
        }
        fprintf(f, "],\"token_strs\":null}");
        fclose(f);
        bt_reply_json(req, 200, text, size);
    }
    free(text);
    body_fini(&b);
}

static json_t *model_card(const struct bt_engine *e, const char *id,
                          const char *parent)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s?, s:i, s:[]}", "id", id,
                     "object", "model", "created", (json_int_t)e->start_time_s,
                     "owned_by", "vllm", "root", id, "parent", parent,
                     "max_model_len", (int)e->model_len_max, "permission");
}

static void handle_models(struct bt_engine *e, struct bt_httpd_request *req)
{
    json_t *data = json_array();
    json_array_append_new(data, model_card(e, e->model, NULL));
    for (size_t i = 0; i < e->adapter_count; i++) {
        json_array_append_new(data, model_card(e, e->adapters[i], e->model));
    }
    json_t *root = json_pack("{s:s, s:o}", "object", "list", "data", data);
    bt_reply_tree(req, root);
}

static void handle_reset(struct bt_engine *e, struct bt_httpd_request *req)
{
    bool done = bt_pool_reset(&e->pool);
    if (done && e->events != NULL) {
        bt_events_cleared(e->events);
        bt_engine_kick(e);
    }
    /* vLLM answers 200 whether or not the reset was possible. */
    bt_httpd_reply(req, 200, "text/plain", "", 0);
}

/* ---- routes ---- */

enum route {
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_TOKENIZE,
    ROUTE_MODELS,
    ROUTE_HEALTH,
    ROUTE_VERSION,
    ROUTE_METRICS,
    ROUTE_RESET
};

static const struct {
    const char *path;
    bool get, post;
    enum route route;
} routes[] = {
    {"/v1/completions", false, true, ROUTE_COMPLETIONS},
    {"/v1/chat/completions", false, true, ROUTE_CHAT},
    {"/tokenize", false, true, ROUTE_TOKENIZE},
    {"/v1/models", true, false, ROUTE_MODELS},
    {"/health", true, false, ROUTE_HEALTH},
    {"/ping", true, true, ROUTE_HEALTH},
    {"/version", true, false, ROUTE_VERSION},
    {"/metrics", true, false, ROUTE_METRICS},
    {"/reset_prefix_cache", false, true, ROUTE_RESET},
};

static void dispatch(struct bt_engine *e, struct bt_httpd_request *req,
                     enum route route)
{
    switch (route) {
    case ROUTE_COMPLETIONS:
    case ROUTE_CHAT:
        handle_generate(e, req, route == ROUTE_CHAT);
        break;
    case ROUTE_TOKENIZE:
        handle_tokenize(e, req);
        break;
    case ROUTE_MODELS:
        handle_models(e, req);
        break;
    case ROUTE_HEALTH:
        bt_httpd_reply(req, 200, "text/plain", "", 0);
        break;
    case ROUTE_VERSION:
        bt_reply_json(req, 200, "{\"version\":\"0.28.0+emulated\"}", 29);
        break;
    case ROUTE_METRICS:
        bt_admin_metrics(e, req);
        break;
    case ROUTE_RESET:
        handle_reset(e, req);
        break;
    }
}

void bt_api_handle(void *arg, struct bt_httpd_request *req)
{
    struct bt_engine *e = arg;
    const char *method = bt_httpd_method(req), *path = bt_httpd_path(req);
    bool get = strcmp(method, "GET") == 0, post = strcmp(method, "POST") == 0;
    if (bt_admin_handle(e, req, method, path) ||
        arrival_fault(e, req, BT_PHASE_ALL)) {
        return;
    }
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(path, routes[i].path) != 0) {
            continue;
        }
        if ((get && routes[i].get) || (post && routes[i].post)) {
            dispatch(e, req, routes[i].route);
        } else {
            bt_reply_json(req, 405, "{\"detail\":\"Method Not Allowed\"}", 31);
        }
        return;
    }
    bt_reply_json(req, 404, "{\"detail\":\"Not Found\"}", 22);
}
