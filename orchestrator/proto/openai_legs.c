/* Decides how the bodies of the prefill leg, the decode leg and /tokenize
 * differ from the client's (engine-wire.md 3.2, 3.3, 4.7): one table of edits
 * per leg. Everything not named in a table is passed on byte for byte.
 */
#include "baton/orchestrator/openai.h"

#include "json_walk.h"
#include "openai_fields.h"
#include <string.h>

#define SET(field, text)                                                       \
    {                                                                          \
        .name = (field), .value = (text), .bytes = sizeof(text) - 1            \
    }
#define REMOVE(field)                                                          \
    {                                                                          \
        .name = (field)                                                        \
    }

static const struct bt_json_edit prefill_edits[] = {
    SET("stream", "false"),
    REMOVE("stream_options"),
    SET("max_tokens", "1"),
    {.name = "max_completion_tokens",
     .value = "1",
     .bytes = 1,
     .only_if_present = true},
    REMOVE("min_tokens"),
    REMOVE("min_completion_tokens"),
    REMOVE("n"),
    REMOVE("best_of"),
    REMOVE("logprobs"),
    REMOVE("top_logprobs"),
    REMOVE("request_id"),
    REMOVE("ec_transfer_params"),
    SET("kv_transfer_params",
        "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
        "\"remote_engine_id\":null,\"remote_block_ids\":null,"
        "\"remote_host\":null,\"remote_port\":null}"),
};

#define PREFILL_EDITS (sizeof prefill_edits / sizeof prefill_edits[0])

enum bt_status bt_openai_full_report(const struct bt_openai_request *request,
                                     struct bt_text *out)
{
    static const struct bt_json_edit mode[] = {
        SET("kv_cache_report_mode", "\"full\""),
    };
    static const struct bt_json none = {
        .at = "{}", .bytes = 2, .type = BT_JSON_OBJECT};
    struct bt_json xargs, set;
    if (!bt_json_member(&request->root, "vllm_xargs", &xargs, NULL) ||
        xargs.type == BT_JSON_NULL)
        xargs = none;
    if (xargs.type != BT_JSON_OBJECT)
        return BT_TYPE;
    if (bt_json_member(&xargs, mode[0].name, &set, NULL))
        return BT_EXISTS;
    return bt_json_edit(&xargs, mode, 1, out);
}

enum bt_status bt_openai_leg_prefill(const struct bt_openai_request *request,
                                     const struct bt_text *xargs,
                                     struct bt_text *out)
{
    struct bt_json_edit edits[PREFILL_EDITS + 1];
    size_t count = PREFILL_EDITS;
    memcpy(edits, prefill_edits, sizeof prefill_edits);
    if (xargs != NULL)
        edits[count++] = (struct bt_json_edit){
            .name = "vllm_xargs", .value = xargs->at, .bytes = xargs->used};
    return bt_json_edit_drop(&request->root, edits, count, BT_OPENAI_BOOTSTRAP,
                             out);
}

enum bt_status bt_openai_leg_decode(const struct bt_openai_request *request,
                                    const struct bt_json *params,
                                    struct bt_text *out)
{
    struct bt_json_edit edits[] = {
        REMOVE("request_id"),
        REMOVE("ec_transfer_params"),
        {.name = "kv_transfer_params",
         .value = params != NULL ? params->at : NULL,
         .bytes = params != NULL ? params->bytes : 0},
    };
    const struct bt_json *root = &request->root;
    size_t before = (size_t)(root->at - request->body);
    bt_text_add(out, request->body, before);
    enum bt_status status = bt_json_edit_drop(
        root, edits, sizeof edits / sizeof edits[0], BT_OPENAI_BOOTSTRAP, out);
    bt_text_add(out, root->at + root->bytes,
                request->body_bytes - before - root->bytes);
    return status == BT_OK && out->overflow ? BT_TOO_LARGE : status;
}

static const char *const completion_fields[] = {
    "add_special_tokens",
    NULL,
};

static const char *const chat_fields[] = {
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "tools",
    NULL,
};

static void member_add(struct bt_text *out, const char *name,
                       const struct bt_json *value)
{
    bt_text_str(out, ",\"");
    bt_text_str(out, name);
    bt_text_str(out, "\":");
    bt_text_add(out, value->at, value->bytes);
}

enum bt_status bt_openai_tokenize_body(const struct bt_openai_request *request,
                                       struct bt_text *out)
{
    bool chat = request->kind == BT_PROMPT_MESSAGES;
    if (!chat && request->kind != BT_PROMPT_TEXT)
        return BT_UNSUPPORTED;
    bt_text_str(out, "{\"model\":");
    bt_text_add(out, request->model.at, request->model.bytes);
    member_add(out, chat ? "messages" : "prompt", &request->prompt);
    const char *const *fields = chat ? chat_fields : completion_fields;
    struct bt_json value;
    for (; *fields != NULL; fields++)
        if (bt_json_member(&request->root, *fields, &value, NULL) &&
            value.type != BT_JSON_NULL)
            member_add(out, *fields, &value);
    bt_text_str(out, "}");
    return out->overflow ? BT_TOO_LARGE : BT_OK;
}
