/* The `bytes` tokenizer and its chat template (bytes_tokenizer.h). Decides what
 * text becomes which tokens; knows nothing of requests.
 *
 * Invariant: text and tokens map one to one, so generated text that comes back
 * as part of the next prompt hits the cache.
 */
#include "baton/orchestrator/bytes_tokenizer.h"

#include "baton/orchestrator/openai.h"

#include <string.h>

enum bt_status bt_bytes_tokenize_text(const char *text, size_t bytes,
                                      uint32_t *out, size_t max, size_t *count)
{
    if (bytes > max - *count) {
        return BT_TOO_LARGE;
    }
    for (size_t i = 0; i < bytes; i++) {
        out[*count + i] = (unsigned char)text[i];
    }
    *count += bytes;
    return BT_OK;
}

enum bt_status bt_bytes_tokenize_role(const char *role, size_t bytes,
                                      uint32_t *out, size_t max, size_t *count)
{
    if (bytes > max || bytes + 4 > max - *count) {
        return BT_TOO_LARGE;
    }
    (void)bt_bytes_tokenize_text("<|", 2, out, max, count);
    (void)bt_bytes_tokenize_text(role, bytes, out, max, count);
    return bt_bytes_tokenize_text("|>", 2, out, max, count);
}

enum bt_status bt_bytes_tokenize_message_end(uint32_t *out, size_t max,
                                             size_t *count)
{
    return bt_bytes_tokenize_text("\n", 1, out, max, count);
}

enum bt_status bt_bytes_tokenize_answer(uint32_t *out, size_t max,
                                        size_t *count)
{
    return bt_bytes_tokenize_role("assistant", 9, out, max, count);
}

/* ---- from raw JSON ---- */

/* Decode a JSON string in place of its tokens: the decoded bytes are first
 * written to the end of the free room, as chars, then widened from the front.
 * A decoded string is never longer than its source. */
static enum bt_status string_tokens(const struct bt_json *value, uint32_t *out,
                                    size_t max, size_t *count)
{
    size_t room = max - *count;
    if (room == 0) {
        return value->bytes == 2 ? BT_OK : BT_TOO_LARGE;
    }
    /* chars at the last quarter of the room: token i is written at byte 4*i of
     * the room, char i sits at byte 3*room + i, which is read first. */
    char *chars = (char *)(out + *count) + 3 * room;
    size_t bytes = 0;
    enum bt_status status = bt_json_string(value, chars, room, &bytes);
    if (status != BT_OK) {
        return status;
    }
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c;
        memcpy(&c, chars + i, 1);
        out[*count + i] = c;
    }
    *count += bytes;
    return BT_OK;
}

/* The tokens of the parts from here on do not tell prompts apart. */
static void text_ends(struct bt_bytes_prompt *p)
{
    if (p->text_count > p->count) {
        p->text_count = p->count;
    }
}

static enum bt_status part_tokens(const struct bt_json *part,
                                  struct bt_bytes_prompt *p)
{
    struct bt_json kind, text;
    if (!bt_openai_part_is_text(part)) {
        text_ends(p);
    }
    if (part->type != BT_JSON_OBJECT ||
        !bt_json_member(part, "type", &kind, NULL) ||
        !bt_json_is(&kind, "text") ||
        !bt_json_member(part, "text", &text, NULL) ||
        text.type != BT_JSON_STRING) {
        return BT_OK;
    }
    return string_tokens(&text, p->tokens, p->max, &p->count);
}

static enum bt_status content_tokens(const struct bt_json *content,
                                     struct bt_bytes_prompt *p)
{
    if (content->type == BT_JSON_STRING) {
        return string_tokens(content, p->tokens, p->max, &p->count);
    }
    if (content->type != BT_JSON_ARRAY) {
        return content->type == BT_JSON_NULL ? BT_OK : BT_TYPE;
    }
    struct bt_json part;
    size_t cursor = 0;
    enum bt_status status = BT_OK;
    while (status == BT_OK && bt_json_next(content, &cursor, NULL, &part)) {
        status = part_tokens(&part, p);
    }
    return status;
}

static enum bt_status message_tokens(const struct bt_json *message,
                                     struct bt_bytes_prompt *p)
{
    struct bt_json role, content;
    if (message->type != BT_JSON_OBJECT ||
        !bt_json_member(message, "role", &role, NULL)) {
        return BT_TYPE;
    }
    char name[64];
    size_t name_bytes = 0;
    enum bt_status status =
        bt_json_string(&role, name, sizeof(name), &name_bytes);
    if (status == BT_OK) {
        status = bt_bytes_tokenize_role(name, name_bytes, p->tokens, p->max,
                                        &p->count);
    }
    if (status == BT_OK && bt_json_member(message, "content", &content, NULL)) {
        status = content_tokens(&content, p);
    }
    if (status == BT_OK) {
        status = bt_bytes_tokenize_message_end(p->tokens, p->max, &p->count);
    }
    return status;
}

static enum bt_status chat_tokens(const struct bt_json *messages,
                                  struct bt_bytes_prompt *p)
{
    struct bt_json message;
    size_t cursor = 0;
    if (messages->type != BT_JSON_ARRAY) {
        return BT_TYPE;
    }
    while (bt_json_next(messages, &cursor, NULL, &message)) {
        enum bt_status status = message_tokens(&message, p);
        if (status != BT_OK) {
            return status;
        }
    }
    return bt_bytes_tokenize_answer(p->tokens, p->max, &p->count);
}

enum bt_status bt_bytes_tokenize_json(const char *json, size_t bytes, bool chat,
                                      struct bt_bytes_prompt *p)
{
    struct bt_json root;
    enum bt_status status = bt_json_parse(json, bytes, &root, NULL);
    if (status != BT_OK) {
        return status;
    }
    p->text_count = SIZE_MAX;
    if (chat) {
        status = chat_tokens(&root, p);
    } else if (root.type == BT_JSON_STRING) {
        status = string_tokens(&root, p->tokens, p->max, &p->count);
    } else {
        status = BT_TYPE;
    }
    text_ends(p);
    return status;
}
