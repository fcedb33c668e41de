/* Decides what a worker's JSON answer is worth: token ids of /tokenize, the
 * hand-off parameters of leg P, and how an error is told to the client.
 * Invariant: parameters are passed on as the span they came in; they are
 * judged usable here or not at all (engine-wire.md 3.3: an empty block list or
 * a missing key stops or hangs the decode worker).
 */
#include "baton/orchestrator/openai.h"

#include "json_walk.h"
#include "openai_fields.h"
#include <string.h>

static bool is_error(const struct bt_json *root)
{
    struct bt_json v;
    if (bt_json_member(root, "error", &v, NULL) && v.type != BT_JSON_NULL)
        return true;
    return bt_json_member(root, "object", &v, NULL) && bt_json_is(&v, "error");
}

static enum bt_status reply_parse(const char *body, size_t bytes,
                                  struct bt_json *root_out)
{
    if (bt_json_parse(body, bytes, root_out, NULL) != BT_OK ||
        root_out->type != BT_JSON_OBJECT)
        return BT_INVALID;
    return is_error(root_out) ? BT_PEER_ERROR : BT_OK;
}

enum bt_status bt_openai_tokenize_reply(const char *body, size_t bytes,
                                        uint32_t *out, size_t max,
                                        size_t *count_out)
{
    struct bt_json root, tokens;
    enum bt_status status = reply_parse(body, bytes, &root);
    if (status != BT_OK)
        return status;
    if (!bt_json_member(&root, "tokens", &tokens, NULL) ||
        tokens.type != BT_JSON_ARRAY)
        return BT_INVALID;
    return bt_openai_ids_read(&tokens, out, max, count_out);
}

/* Some block id in a flat or nested (one list per KV group) list. */
static bool has_blocks(const struct bt_json *list)
{
    struct bt_json item, inner;
    size_t cursor = 0;
    uint64_t id;
    if (list->type != BT_JSON_ARRAY)
        return false;
    while (bt_json_next(list, &cursor, NULL, &item)) {
        size_t inside = 0;
        if (bt_json_u64(&item, &id) == BT_OK)
            return true;
        if (item.type == BT_JSON_ARRAY &&
            bt_json_next(&item, &inside, NULL, &inner) &&
            bt_json_u64(&inner, &id) == BT_OK)
            return true;
    }
    return false;
}

static bool is_text(const struct bt_json *value)
{
    return value->type == BT_JSON_STRING && value->bytes > 2;
}

static bool is_port(const struct bt_json *value)
{
    uint64_t port = 0;
    return bt_json_u64(value, &port) == BT_OK && port >= 1 && port <= 65535;
}

static const struct {
    const char *name;
    bool (*usable)(const struct bt_json *value);
} required[] = {
    {"remote_block_ids", has_blocks}, {"remote_engine_id", is_text},
    {"remote_request_id", is_text},   {"remote_host", is_text},
    {"remote_port", is_port},
};

static const char *missing_find(const struct bt_json *params)
{
    struct bt_json v;
    if (params->type != BT_JSON_OBJECT)
        return "kv_transfer_params";
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        if (!bt_json_member(params, required[i].name, &v, NULL) ||
            !required[i].usable(&v))
            return required[i].name;
    return NULL;
}

static uint32_t count_read(const struct bt_json *object, const char *name)
{
    struct bt_json v;
    uint64_t count = 0;
    if (!bt_json_member(object, name, &v, NULL) ||
        bt_json_u64(&v, &count) != BT_OK)
        return 0;
    return count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
}

static void usage_read(const struct bt_json *root, struct bt_prefill_reply *out)
{
    struct bt_json usage, details;
    if (!bt_json_member(root, "usage", &usage, NULL))
        return;
    out->prompt_tokens = count_read(&usage, "prompt_tokens");
    if (bt_json_member(&usage, "prompt_tokens_details", &details, NULL))
        out->cached_tokens = count_read(&details, "cached_tokens");
}

/* A 200 whose only choice ended in "error" is a failure all the same. */
static bool choice_failed(const struct bt_json *root)
{
    struct bt_json choices, choice, reason;
    size_t cursor = 0;
    if (!bt_json_member(root, "choices", &choices, NULL) ||
        choices.type != BT_JSON_ARRAY)
        return false;
    while (bt_json_next(&choices, &cursor, NULL, &choice))
        if (bt_json_member(&choice, "finish_reason", &reason, NULL) &&
            bt_json_is(&reason, "error"))
            return true;
    return false;
}

enum bt_status bt_openai_prefill_reply(const char *body, size_t bytes,
                                       struct bt_prefill_reply *out)
{
    struct bt_json root, params;
    enum bt_status status = reply_parse(body, bytes, &root);
    if (status == BT_OK && choice_failed(&root))
        status = BT_PEER_ERROR;
    if (status != BT_OK)
        return status;
    memset(out, 0, sizeof *out);
    usage_read(&root, out);
    if (!bt_json_member(&root, "kv_transfer_params", &params, NULL) ||
        params.type == BT_JSON_NULL)
        return BT_OK;
    out->missing = missing_find(&params);
    out->has_params = out->missing == NULL;
    if (out->has_params)
        out->params = params;
    return BT_OK;
}

static const struct {
    int http;
    const char *type;
} error_types[] = {
    {400, "BadRequestError"},          {401, "AuthenticationError"},
    {403, "PermissionDeniedError"},    {404, "NotFoundError"},
    {405, "MethodNotAllowedError"},    {408, "RequestTimeoutError"},
    {413, "RequestTooLargeError"},     {415, "UnsupportedMediaTypeError"},
    {422, "UnprocessableEntityError"}, {429, "RateLimitError"},
    {431, "HeadersTooLargeError"},     {501, "NotImplementedError"},
    {502, "BadGatewayError"},          {503, "ServiceUnavailableError"},
    {504, "GatewayTimeoutError"},
};

static const char *error_type(int http)
{
    for (size_t i = 0; i < sizeof error_types / sizeof error_types[0]; i++)
        if (error_types[i].http == http)
            return error_types[i].type;
    return http >= 400 && http < 500 ? "BadRequestError"
                                     : "InternalServerError";
}

void bt_openai_error(struct bt_text *out, int http_status, const char *message)
{
    bt_text_str(out, "{\"error\":{\"message\":");
    bt_text_quoted(out, message, strlen(message));
    bt_text_str(out, ",\"type\":\"");
    bt_text_str(out, error_type(http_status));
    bt_text_str(out, "\",\"param\":null,\"code\":");
    bt_text_i64(out, http_status);
    bt_text_str(out, "}}");
}
