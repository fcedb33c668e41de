/* The `bytes` tokenizer and its chat template (bytes_tokenizer.h). Decides what
 * text becomes which tokens; knows nothing of requests.
 *
 * Invariant: text and tokens map one to one, so generated text that comes back
 * as part of the next prompt hits the cache.
 */
#include "baton/orchestrator/bytes_tokenizer.h"

#include "baton/orchestrator/json.h"

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

static enum bt_status content_tokens(const struct bt_json *content,
                                     uint32_t *out, size_t max, size_t *count)
{
    if (content->type == BT_JSON_STRING) {
        return string_tokens(content, out, max, count);
    }
    if (content->type != BT_JSON_ARRAY) {
        return content->type == BT_JSON_NULL ? BT_OK : BT_TYPE;
    }
    struct bt_json part, kind, text;
    size_t cursor = 0;
    while (bt_json_next(content, &cursor, NULL, &part)) {
        if (part.type != BT_JSON_OBJECT ||
            !bt_json_member(&part, "type", &kind, NULL) ||
            !bt_json_is(&kind, "text") ||
            !bt_json_member(&part, "text", &text, NULL) ||
            text.type != BT_JSON_STRING) {
            continue;
        }
        enum bt_status status = string_tokens(&text, out, max, count);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

static enum bt_status message_tokens(const struct bt_json *message,
                                     uint32_t *out, size_t max, size_t *count)
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
        status = bt_bytes_tokenize_role(name, name_bytes, out, max, count);
    }
    if (status == BT_OK && bt_json_member(message, "content", &content, NULL)) {
        status = content_tokens(&content, out, max, count);
    }
    if (status == BT_OK) {
        status = bt_bytes_tokenize_message_end(out, max, count);
    }
    return status;
}

enum bt_status bt_bytes_tokenize_json(const char *json, size_t bytes, bool chat,
                                      uint32_t *out, size_t max, size_t *count)
{
    struct bt_json root, message;
    enum bt_status status = bt_json_parse(json, bytes, &root, NULL);
    if (status != BT_OK) {
        return status;
    }
    if (!chat) {
        return root.type == BT_JSON_STRING
                   ? string_tokens(&root, out, max, count)
                   : BT_TYPE;
    }
    if (root.type != BT_JSON_ARRAY) {
        return BT_TYPE;
    }
    size_t cursor = 0;
    while (bt_json_next(&root, &cursor, NULL, &message)) {
        status = message_tokens(&message, out, max, count);
        if (status != BT_OK) {
            return status;
        }
    }
    return bt_bytes_tokenize_answer(out, max, count);
}
