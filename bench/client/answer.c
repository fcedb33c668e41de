/* Joins the texts of a streamed completion. Decides what counts as a token
 * event (non-empty text) and as a whole answer; leaves timing to its caller.
 * Lines and text are bounded. */
#include "answer.h"
#include "baton/orchestrator/json.h"
#include <stdlib.h>
#include <string.h>

void answer_init(struct answer *a)
{
    memset(a, 0, sizeof(*a));
}

void answer_fini(struct answer *a)
{
    free(a->text);
    a->text = NULL;
}

static enum bt_status add_text(struct answer *a, const struct bt_json *value)
{
    size_t need = a->text_bytes + value->bytes, bytes = 0, size;
    char *moved;

    if (need > ANSWER_TEXT_MAX) {
        a->text_overflow = true;
        return BT_OK;
    }
    if (need > a->text_size) {
        size = need < 512 ? 1024 : need * 2;
        moved = realloc(a->text, size);
        if (!moved)
            return BT_NO_MEMORY;
        a->text = moved;
        a->text_size = size;
    }
    if (bt_json_string(value, a->text + a->text_bytes,
                       a->text_size - a->text_bytes, &bytes) != BT_OK)
        return BT_INVALID;
    a->text_bytes += bytes;
    if (bytes)
        a->token_events++;
    return BT_OK;
}

static void get_count(const struct bt_json *object, const char *name,
                      uint64_t *out)
{
    struct bt_json value;

    if (bt_json_member(object, name, &value, NULL))
        (void)bt_json_u64(&value, out);
}

static void get_usage(struct answer *a, const struct bt_json *usage)
{
    struct bt_json details;

    if (usage->type != BT_JSON_OBJECT)
        return;
    a->usage = true;
    get_count(usage, "prompt_tokens", &a->prompt_tokens);
    get_count(usage, "completion_tokens", &a->completion_tokens);
    if (bt_json_member(usage, "prompt_tokens_details", &details, NULL) &&
        details.type == BT_JSON_OBJECT)
        get_count(&details, "cached_tokens", &a->cached_tokens);
}

static enum bt_status get_choice(struct answer *a, const struct bt_json *event)
{
    struct bt_json choices, choice, value;
    size_t cursor = 0;

    if (!bt_json_member(event, "choices", &choices, NULL) ||
        choices.type != BT_JSON_ARRAY ||
        !bt_json_next(&choices, &cursor, NULL, &choice) ||
        choice.type != BT_JSON_OBJECT)
        return BT_OK;
    if (bt_json_member(&choice, "finish_reason", &value, NULL) &&
        value.type == BT_JSON_STRING)
        a->finished = true;
    if (bt_json_member(&choice, "text", &value, NULL) &&
        value.type == BT_JSON_STRING)
        return add_text(a, &value);
    return BT_OK;
}

static enum bt_status get_event(struct answer *a, const char *text,
                                size_t bytes)
{
    struct bt_json event, value;

    if (bytes == 6 && memcmp(text, "[DONE]", 6) == 0) {
        a->done = true;
        return BT_OK;
    }
    if (bt_json_parse(text, bytes, &event, NULL) != BT_OK ||
        event.type != BT_JSON_OBJECT)
        return BT_INVALID;
    if (bt_json_member(&event, "error", &value, NULL))
        a->failed = true;
    if (bt_json_member(&event, "usage", &value, NULL))
        get_usage(a, &value);
    return get_choice(a, &event);
}

static enum bt_status end_line(struct answer *a)
{
    size_t used = a->used, at = 5;

    a->used = 0;
    if (used && a->line[used - 1] == '\r')
        used--;
    if (used < 5 || memcmp(a->line, "data:", 5) != 0)
        return BT_OK;
    if (used > at && a->line[at] == ' ')
        at++;
    return a->overlong ? BT_INVALID : get_event(a, a->line + at, used - at);
}

enum bt_status answer_feed(struct answer *a, const char *bytes, size_t count)
{
    const char *end = bytes + count;

    while (bytes < end) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        size_t part = (size_t)((newline ? newline : end) - bytes);
        size_t room = ANSWER_LINE_MAX - a->used;
        enum bt_status status;

        if (part > room) {
            a->overlong = true;
            part = room;
        }
        memcpy(a->line + a->used, bytes, part);
        a->used += part;
        if (!newline)
            return BT_OK;
        status = end_line(a);
        if (status != BT_OK)
            return status;
        bytes = newline + 1;
    }
    return BT_OK;
}

bool answer_is_whole(const struct answer *a)
{
    return a->done && a->finished && !a->failed && !a->overlong;
}
