/* Decides whether a request body is one that baton serves and what it asks
 * for; how the bodies of the legs are made is in openai_legs.c. Everything
 * that would make a decode worker refuse while parsing is refused here,
 * because a refusal there strands the blocks that the prefill worker holds
 * (engine-wire.md 3.3). One pass over the members, last one of a name wins as
 * in the engines' parsers. A batch of one prompt is taken as that prompt.
 * Invariant: messages name fields and positions, never their contents.
 */
#include "baton/orchestrator/openai.h"

#include "json_walk.h"
#include "openai_fields.h"
#include <stdio.h>
#include <string.h>

enum field {
    F_MODEL,
    F_PROMPT,
    F_MESSAGES,
    F_PROMPT_EMBEDS,
    F_STREAM,
    F_STREAM_OPTIONS,
    F_MAX_TOKENS,
    F_MAX_COMPLETION_TOKENS,
    F_MIN_TOKENS,
    F_N,
    F_BEST_OF,
    F_CACHE_SALT,
    F_PROMPT_LOGPROBS,
    F_ECHO,
    F_LOGPROBS,
    F_BEAM_SEARCH,
    F_VLLM_XARGS,
    F_PRIORITY,
    F_COUNT
};

static const char *const field_names[F_COUNT] = {
    "model",           "prompt",
    "messages",        "prompt_embeds",
    "stream",          "stream_options",
    "max_tokens",      "max_completion_tokens",
    "min_tokens",      "n",
    "best_of",         "cache_salt",
    "prompt_logprobs", "echo",
    "logprobs",        "use_beam_search",
    "vllm_xargs",      "priority",
};

struct body {
    struct bt_json field[F_COUNT]; /* type NULL: absent or null */
    bool given[F_COUNT];
    struct bt_openai_request *out;
    char *message;
    size_t message_size;
};

static enum bt_status refuse(struct body *b, enum bt_status status,
                             enum field field, const char *what)
{
    (void)snprintf(b->message, b->message_size, "'%s' %s", field_names[field],
                   what);
    return status;
}

static bool has(const struct body *b, enum field field)
{
    return b->field[field].type != BT_JSON_NULL;
}

static bool is_true(const struct body *b, enum field field)
{
    return b->field[field].type == BT_JSON_TRUE;
}

bool bt_openai_is_handoff(const struct bt_json *key)
{
    return bt_json_key_is(key, "kv_transfer_params") ||
           bt_json_key_is(key, "ec_transfer_params") ||
           bt_json_key_starts(key, BT_OPENAI_BOOTSTRAP);
}

static void fields_collect(struct body *b)
{
    struct bt_json key, value;
    size_t cursor = 0;
    for (int i = 0; i < F_COUNT; i++)
        b->field[i].type = BT_JSON_NULL;
    while (bt_json_next(&b->out->root, &cursor, &key, &value)) {
        if (bt_openai_is_handoff(&key)) {
            b->out->client_params++;
            continue;
        }
        for (int i = 0; i < F_COUNT; i++) {
            if (!bt_json_key_is(&key, field_names[i]))
                continue;
            b->field[i] = value;
            b->given[i] = true;
            break;
        }
    }
}

static enum bt_status model_check(struct body *b)
{
    const struct bt_json *v = &b->field[F_MODEL];
    if (!b->given[F_MODEL])
        return refuse(b, BT_INVALID, F_MODEL, "is missing");
    if (v->type != BT_JSON_STRING)
        return refuse(b, BT_TYPE, F_MODEL, "must be a string");
    if (v->bytes == 2)
        return refuse(b, BT_INVALID, F_MODEL, "is empty");
    b->out->model = *v;
    return BT_OK;
}

static enum bt_status bools_check(struct body *b)
{
    static const enum field bools[] = {F_STREAM, F_ECHO, F_BEAM_SEARCH};
    for (size_t i = 0; i < sizeof bools / sizeof bools[0]; i++) {
        enum bt_json_type type = b->field[bools[i]].type;
        if (type != BT_JSON_NULL && type != BT_JSON_TRUE &&
            type != BT_JSON_FALSE)
            return refuse(b, BT_TYPE, bools[i], "must be true or false");
    }
    return BT_OK;
}

static enum bt_status stream_check(struct body *b)
{
    b->out->stream = is_true(b, F_STREAM);
    if (has(b, F_STREAM_OPTIONS)) {
        if (b->field[F_STREAM_OPTIONS].type != BT_JSON_OBJECT)
            return refuse(b, BT_TYPE, F_STREAM_OPTIONS, "must be an object");
        if (!b->out->stream)
            return refuse(b, BT_INVALID, F_STREAM_OPTIONS,
                          "is only allowed with 'stream': true");
    }
    if (has(b, F_PROMPT_LOGPROBS) && b->out->stream)
        return refuse(b, BT_INVALID, F_PROMPT_LOGPROBS,
                      "is not available with 'stream': true");
    return BT_OK;
}

/* A whole number of at least `least`; absent leaves *out alone. */
static enum bt_status count_check(struct body *b, enum field field,
                                  uint64_t least, uint64_t *out)
{
    uint64_t v = 0;
    if (!has(b, field))
        return BT_OK;
    enum bt_status status = bt_json_u64(&b->field[field], &v);
    if (status == BT_TYPE)
        return refuse(b, BT_TYPE, field, "must be an integer");
    if (status != BT_OK || v < least)
        return refuse(b, BT_INVALID, field,
                      least > 0 ? "must be at least 1 and fit 64 bits"
                                : "must not be negative and fit 64 bits");
    *out = v;
    return BT_OK;
}

static enum bt_status lengths_check(struct body *b)
{
    uint64_t min = 0, max = 0, completion = 0;
    enum bt_status status = count_check(b, F_MAX_TOKENS, 1, &max);
    if (status == BT_OK)
        status = count_check(b, F_MAX_COMPLETION_TOKENS, 1, &completion);
    if (status == BT_OK)
        status = count_check(b, F_MIN_TOKENS, 0, &min);
    if (status != BT_OK)
        return status;
    if (b->out->route == BT_ROUTE_CHAT && completion > 0)
        max = completion;
    if (max > 0 && min > max)
        return refuse(b, BT_INVALID, F_MIN_TOKENS,
                      "is larger than the maximum of tokens");
    b->out->max_tokens = max;
    return BT_OK;
}

static enum bt_status salt_check(struct body *b)
{
    struct bt_openai_request *out = b->out;
    if (!has(b, F_CACHE_SALT))
        return BT_OK;
    enum bt_status status = bt_json_string(&b->field[F_CACHE_SALT], out->salt,
                                           sizeof out->salt, &out->salt_bytes);
    if (status == BT_TYPE)
        return refuse(b, BT_TYPE, F_CACHE_SALT, "must be a string");
    if (status != BT_OK)
        return refuse(b, BT_INVALID, F_CACHE_SALT, "is longer than 256 bytes");
    if (out->salt_bytes == 0)
        return refuse(b, BT_INVALID, F_CACHE_SALT, "is empty");
    return BT_OK;
}

/* The engines count the other way: smaller is served first. What is no whole
 * number is theirs to judge, in leg P. */
static enum bt_status priority_check(struct body *b)
{
    struct bt_json digits = b->field[F_PRIORITY];
    bool negative = digits.type == BT_JSON_NUMBER && digits.at[0] == '-';
    uint64_t v = 0;
    if (negative) {
        digits.at++;
        digits.bytes--;
    }
    enum bt_status status = bt_json_u64(&digits, &v);
    if (status == BT_TYPE)
        return BT_OK;
    if (status != BT_OK || v > INT32_MAX)
        v = INT32_MAX;
    b->out->priority = negative ? (int32_t)v : -(int32_t)v;
    return BT_OK;
}

/* vllm_xargs are merged into what kv_transfer_params sets: no back door. */
static enum bt_status xargs_check(struct body *b)
{
    struct bt_json key, value;
    size_t cursor = 0;
    if (!has(b, F_VLLM_XARGS))
        return BT_OK;
    while (bt_json_next(&b->field[F_VLLM_XARGS], &cursor, &key, &value))
        if (b->field[F_VLLM_XARGS].type == BT_JSON_OBJECT &&
            bt_openai_is_handoff(&key))
            return refuse(b, BT_INVALID, F_VLLM_XARGS,
                          "must not carry hand-off parameters");
    return BT_OK;
}

static enum bt_status id_read(const struct bt_json *value, uint32_t *out)
{
    uint64_t v = 0;
    enum bt_status status = bt_json_u64(value, &v);
    if (status == BT_OK && v > UINT32_MAX)
        status = BT_INVALID;
    if (status == BT_OK)
        *out = (uint32_t)v;
    return status;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The plain case in one pass: a valid array of at most max whole numbers below
 * 2^32. False for anything else, which the careful loops then name. out may be
 * NULL: only look. */
static bool ids_scan(const struct bt_json *array, uint32_t *out, size_t max,
                     size_t *count_out)
{
    const char *p = array->at + 1, *end = array->at + array->bytes - 1;
    size_t count = 0;

    while (p < end) {
        uint64_t v = 0;
        const char *digits;

        while (p < end && is_space(*p))
            p++;
        for (digits = p; p < end && *p >= '0' && *p <= '9'; p++)
            v = v * 10 + (uint64_t)(*p - '0');
        if (p == digits || p - digits > 10 || v > UINT32_MAX || count == max)
            return false;
        if (out != NULL)
            out[count] = (uint32_t)v;
        count++;
        while (p < end && is_space(*p))
            p++;
        if (p < end && *p++ != ',')
            return false;
    }
    *count_out = count;
    return count > 0;
}

static enum bt_status ids_check(struct body *b, const struct bt_json *array)
{
    struct bt_json item;
    size_t cursor = 0, count = 0;
    uint32_t id;
    if (ids_scan(array, NULL, SIZE_MAX, &count))
        return BT_OK;
    while (bt_json_next(array, &cursor, NULL, &item)) {
        enum bt_status status = id_read(&item, &id);
        if (status == BT_TYPE)
            return refuse(b, status, F_PROMPT,
                          "must hold integers only in a list of token ids");
        if (status != BT_OK)
            return refuse(b, status, F_PROMPT,
                          "holds a token id outside 0 .. 4294967295");
        count++;
    }
    return count > 0 ? BT_OK
                     : refuse(b, BT_INVALID, F_PROMPT, "has an empty list");
}

static enum bt_status items_check(struct body *b, const struct bt_json *array)
{
    struct bt_json item;
    size_t cursor = 0, count = 0;
    enum bt_json_type type = BT_JSON_NULL;
    while (bt_json_next(array, &cursor, NULL, &item)) {
        if (count++ == 0)
            type = item.type;
        if (item.type != type ||
            (type != BT_JSON_STRING && type != BT_JSON_ARRAY))
            return refuse(b, BT_TYPE, F_PROMPT,
                          "must be a string, a list of strings, a list of "
                          "token ids or a list of such lists");
        enum bt_status status =
            type == BT_JSON_ARRAY ? ids_check(b, &item) : BT_OK;
        if (status != BT_OK)
            return status;
        b->out->prompt = item;
    }
    b->out->prompt_count = count;
    b->out->kind =
        type == BT_JSON_ARRAY ? BT_PROMPT_TOKEN_BATCH : BT_PROMPT_TEXT_BATCH;
    if (count > 1)
        b->out->prompt = *array;
    else
        b->out->kind =
            type == BT_JSON_ARRAY ? BT_PROMPT_TOKENS : BT_PROMPT_TEXT;
    return BT_OK;
}

static enum bt_status prompt_array_check(struct body *b,
                                         const struct bt_json *array)
{
    struct bt_json first;
    size_t cursor = 0;
    if (!bt_json_next(array, &cursor, NULL, &first))
        return refuse(b, BT_INVALID, F_PROMPT, "is empty");
    if (first.type != BT_JSON_NUMBER)
        return items_check(b, array);
    b->out->kind = BT_PROMPT_TOKENS;
    b->out->prompt = *array;
    return ids_check(b, array);
}

static enum bt_status prompt_check(struct body *b)
{
    const struct bt_json *v = &b->field[F_PROMPT];
    if (has(b, F_PROMPT_EMBEDS))
        return refuse(b, BT_INVALID, F_PROMPT_EMBEDS, "is not supported");
    if (!b->given[F_PROMPT])
        return refuse(b, BT_INVALID, F_PROMPT, "is missing");
    if (v->type == BT_JSON_NULL)
        return refuse(b, BT_INVALID, F_PROMPT, "is null");
    if (v->type == BT_JSON_ARRAY) {
        enum bt_status status = prompt_array_check(b, v);
        if (status != BT_OK)
            return status;
    } else if (v->type == BT_JSON_STRING) {
        b->out->kind = BT_PROMPT_TEXT;
        b->out->prompt = *v;
    } else {
        return refuse(b, BT_TYPE, F_PROMPT, "must be a string or a list");
    }
    if (b->out->kind == BT_PROMPT_TEXT && b->out->prompt.bytes == 2)
        return refuse(b, BT_INVALID, F_PROMPT, "is empty");
    return BT_OK;
}

static enum bt_status messages_check(struct body *b)
{
    const struct bt_json *v = &b->field[F_MESSAGES];
    struct bt_json item;
    size_t cursor = 0, count = 0;
    if (!b->given[F_MESSAGES])
        return refuse(b, BT_INVALID, F_MESSAGES, "is missing");
    if (v->type != BT_JSON_ARRAY)
        return refuse(b, BT_TYPE, F_MESSAGES, "must be a list");
    while (bt_json_next(v, &cursor, NULL, &item)) {
        if (item.type != BT_JSON_OBJECT)
            return refuse(b, BT_TYPE, F_MESSAGES, "must hold objects only");
        count++;
    }
    if (count == 0)
        return refuse(b, BT_INVALID, F_MESSAGES, "is empty");
    b->out->kind = BT_PROMPT_MESSAGES;
    b->out->prompt = *v;
    return BT_OK;
}

static const char *refusal_find(const struct body *b, uint64_t best_of)
{
    if (b->out->prompt_count > 1)
        return "batch";
    if (b->out->n > 1)
        return "n";
    if (best_of > 1)
        return "best_of";
    if (has(b, F_PROMPT_LOGPROBS))
        return "prompt_logprobs";
    if (is_true(b, F_ECHO) && has(b, F_LOGPROBS) &&
        b->field[F_LOGPROBS].type != BT_JSON_FALSE)
        return "echo_logprobs";
    if (is_true(b, F_BEAM_SEARCH))
        return "beam_search";
    return NULL;
}

static enum bt_status fields_check(struct body *b)
{
    static enum bt_status (*const checks[])(struct body *) = {
        model_check, bools_check, stream_check,   lengths_check,
        salt_check,  xargs_check, priority_check,
    };
    uint64_t best_of = 1;
    enum bt_status status = BT_OK;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (status == BT_OK)
            status = checks[i](b);
    if (status == BT_OK)
        status = count_check(b, F_N, 1, &b->out->n);
    if (status == BT_OK)
        status = count_check(b, F_BEST_OF, 1, &best_of);
    if (status == BT_OK)
        status = b->out->route == BT_ROUTE_CHAT ? messages_check(b)
                                                : prompt_check(b);
    if (status == BT_OK)
        bt_openai_hidden_find(b->out);
    b->out->pd_refusal = refusal_find(b, best_of);
    b->out->pd_allowed = b->out->pd_refusal == NULL;
    return status;
}

enum bt_status bt_openai_parse(enum bt_route route, const char *body,
                               size_t bytes, struct bt_openai_request *out,
                               char *message_out, size_t message_size)
{
    struct body b = {
        .out = out, .message = message_out, .message_size = message_size};
    size_t at = 0;
    memset(out, 0, sizeof *out);
    out->route = route;
    out->n = out->prompt_count = 1;
    out->body = body;
    out->body_bytes = bytes;
    enum bt_status status = bt_json_parse(body, bytes, &out->root, &at);
    if (status == BT_TOO_LARGE)
        (void)snprintf(message_out, message_size,
                       "the JSON body is nested deeper than %d levels",
                       BT_JSON_DEPTH_MAX);
    else if (status != BT_OK)
        (void)snprintf(message_out, message_size,
                       "the body is not valid JSON: fault at byte %zu of %zu",
                       at, bytes);
    if (status != BT_OK)
        return status;
    if (out->root.type != BT_JSON_OBJECT) {
        (void)snprintf(message_out, message_size,
                       "the body must be a JSON object");
        return BT_TYPE;
    }
    fields_collect(&b);
    return fields_check(&b);
}

enum bt_status bt_openai_ids_read(const struct bt_json *array, uint32_t *out,
                                  size_t max, size_t *count_out)
{
    struct bt_json item;
    size_t cursor = 0, count = 0;
    if (array->type != BT_JSON_ARRAY)
        return BT_TYPE;
    if (ids_scan(array, out, max, count_out))
        return BT_OK;
    while (bt_json_next(array, &cursor, NULL, &item)) {
        if (count == max)
            return BT_TOO_LARGE;
        if (id_read(&item, &out[count++]) != BT_OK)
            return BT_INVALID;
    }
    *count_out = count;
    return BT_OK;
}

enum bt_status bt_openai_token_ids(const struct bt_openai_request *request,
                                   uint32_t *out, size_t max, size_t *count_out)
{
    if (request->kind != BT_PROMPT_TOKENS)
        return BT_TYPE;
    return bt_openai_ids_read(&request->prompt, out, max, count_out);
}
