/* Decides what a stream of server-sent events has said so far. It keeps one
 * line and looks at it when its end comes ("\n", "\r\n" or "\r"), so nothing
 * depends on how the bytes were cut; passing the bytes on is left to others.
 * A line longer than the buffer is looked at up to there: it counts as an
 * event, and as tokens unless its visible part says otherwise.
 */
#include "baton/orchestrator/sse.h"

#include "json_walk.h"
#include <string.h>

void bt_sse_init(struct bt_sse *sse)
{
    memset(sse, 0, sizeof *sse);
}

/* A non-empty string or list. */
static bool is_filled(const struct bt_json *v)
{
    struct bt_json item;
    size_t cursor = 0;
    if (v->type == BT_JSON_ARRAY)
        return bt_json_next(v, &cursor, NULL, &item);
    return v->type == BT_JSON_STRING && v->bytes > 2;
}

static bool delta_has_tokens(const struct bt_json *delta)
{
    static const char *const parts[] = {"content", "reasoning",
                                        "reasoning_content", "tool_calls"};
    struct bt_json key, v;
    size_t cursor = 0;
    if (delta->type != BT_JSON_OBJECT)
        return false;
    while (bt_json_next(delta, &cursor, &key, &v))
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            if (bt_json_key_is(&key, parts[i]) && is_filled(&v))
                return true;
    return false;
}

/* True when the choice carries tokens. */
static bool choice_look(struct bt_sse *sse, const struct bt_json *choice)
{
    struct bt_json key, v;
    size_t cursor = 0;
    bool tokens = false;
    if (choice->type != BT_JSON_OBJECT)
        return false;
    while (bt_json_next(choice, &cursor, &key, &v)) {
        if (bt_json_key_is(&key, "text")) {
            tokens |= is_filled(&v);
        } else if (bt_json_key_is(&key, "delta")) {
            tokens |= delta_has_tokens(&v);
        } else if (bt_json_key_is(&key, "finish_reason") && is_filled(&v)) {
            sse->finish_reason = true;
            sse->finish_error |= bt_json_is(&v, "error");
        }
    }
    return tokens;
}

static void choices_look(struct bt_sse *sse, const struct bt_json *choices)
{
    struct bt_json choice;
    size_t cursor = 0;
    bool tokens = false;
    if (choices->type != BT_JSON_ARRAY)
        return;
    while (bt_json_next(choices, &cursor, NULL, &choice))
        tokens |= choice_look(sse, &choice);
    sse->token_events += tokens;
}

static void count_look(const struct bt_json *object, const char *name,
                       uint64_t *out)
{
    struct bt_json v;
    if (bt_json_member(object, name, &v, NULL))
        (void)bt_json_u64(&v, out);
}

static void usage_look(struct bt_sse *sse, const struct bt_json *usage)
{
    struct bt_json details;
    if (usage->type != BT_JSON_OBJECT)
        return;
    sse->usage = true;
    count_look(usage, "prompt_tokens", &sse->prompt_tokens);
    count_look(usage, "completion_tokens", &sse->completion_tokens);
    if (bt_json_member(usage, "prompt_tokens_details", &details, NULL))
        count_look(&details, "cached_tokens", &sse->cached_tokens);
}

/* Look at the members of an event; true when "choices" was among them. */
static bool members_look(struct bt_sse *sse, const struct bt_json *root)
{
    struct bt_json key, v;
    size_t cursor = 0;
    bool choices = false;
    while (bt_json_next(root, &cursor, &key, &v)) {
        if (bt_json_key_is(&key, "error")) {
            sse->error |= v.type != BT_JSON_NULL;
        } else if (bt_json_key_is(&key, "object")) {
            sse->error |= bt_json_is(&v, "error");
        } else if (bt_json_key_is(&key, "choices")) {
            choices_look(sse, &v);
            choices = true;
        } else if (bt_json_key_is(&key, "usage")) {
            usage_look(sse, &v);
        }
    }
    return choices;
}

/* The visible part of a line that was too long: members before the cut are
 * read, a member under the cut is judged by its name. */
static void cut_look(struct bt_sse *sse, const char *data, size_t bytes)
{
    struct bt_json root = {.at = data, .bytes = bytes, .type = BT_JSON_OBJECT};
    bool before = sse->error;
    sse->error = false;
    bool choices = *data == '{' && members_look(sse, &root);
    if (memmem(data, bytes < 64 ? bytes : 64, "\"error\"", 7) != NULL)
        sse->error = true;
    sse->token_events += !choices && !sse->error;
    sse->error |= before;
}

static void data_look(struct bt_sse *sse, const char *data, size_t bytes)
{
    struct bt_json root;
    while (bytes > 0 && (data[bytes - 1] == ' ' || data[bytes - 1] == '\t'))
        bytes--;
    if (bytes == 0)
        return;
    if (bytes == 6 && memcmp(data, "[DONE]", 6) == 0) {
        sse->done = true;
        return;
    }
    sse->events++;
    if (sse->overlong) {
        cut_look(sse, data, bytes);
        return;
    }
    if (bt_json_parse(data, bytes, &root, NULL) == BT_OK &&
        root.type == BT_JSON_OBJECT)
        (void)members_look(sse, &root);
}

static void line_end(struct bt_sse *sse)
{
    const char *line = sse->line;
    size_t bytes = sse->used;
    if (bytes >= 5 && memcmp(line, "data:", 5) == 0) {
        size_t skip = bytes > 5 && line[5] == ' ' ? 6 : 5;
        data_look(sse, line + skip, bytes - skip);
    }
    sse->used = 0;
    sse->overlong = false;
}

static void line_add(struct bt_sse *sse, const char *bytes, size_t count)
{
    size_t room = sizeof sse->line - sse->used;
    if (count > room) {
        sse->overlong = true;
        count = room;
    }
    memcpy(sse->line + sse->used, bytes, count);
    sse->used += count;
}

static const char *end_find(const char *p, const char *end)
{
    const char *lf = memchr(p, '\n', (size_t)(end - p));
    const char *stop = lf != NULL ? lf : end;
    const char *cr = memchr(p, '\r', (size_t)(stop - p));
    return cr != NULL ? cr : stop;
}

void bt_sse_feed(struct bt_sse *sse, const char *bytes, size_t count)
{
    if (count == 0)
        return;
    const char *p = bytes, *end = bytes + count;
    while (p < end) {
        if (sse->after_cr && *p == '\n') {
            sse->after_cr = false;
            p++;
            continue;
        }
        sse->after_cr = false;
        const char *stop = end_find(p, end);
        line_add(sse, p, (size_t)(stop - p));
        if (stop == end)
            return;
        line_end(sse);
        sse->after_cr = *stop == '\r';
        p = stop + 1;
    }
}

bool bt_sse_complete(struct bt_sse *sse)
{
    if (sse->used > 0)
        line_end(sse);
    return (sse->done || sse->finish_reason) && !sse->error &&
           !sse->finish_error;
}
