/* Decides what of a prompt its tokens do not show, so that nobody takes two
 * prompts for one (field fault C15): parts of a message that are not text, and
 * members of the body that change the prompt while /tokenize is not told of
 * them. What is only a switch on such parts (mm_processor_kwargs,
 * media_io_kwargs) hides nothing without them. Names are those of vLLM and
 * SGLang; a member that neither reads cannot change their prompts.
 * Invariant: what is not known to be text is not text.
 */
#include "baton/orchestrator/openai.h"

#include "json_walk.h"
#include "openai_fields.h"

/* By their presence: any value but null. */
static const char *const members[] = {
    /* given to the chat template, but not by /tokenize */
    "documents",
    "reasoning_effort",
    /* a prompt that is not, or not only, text */
    "prompt_embeds",
    "input_embeds",
    "input_ids",
    "features",
    "suffix",
    "multi_modal_data",
    "multi_modal_uuids",
    "mm_hashes",
    "image_data",
    "video_data",
    "audio_data",
    /* another cache: adapter and namespace in SGLang's own words */
    "lora_path",
    "lora_request",
    "extra_key",
};

/* Content types that engines turn into text before the template. */
static const char *const text_types[] = {
    "text", "input_text", "output_text", "refusal", "thinking",
};

const char *bt_openai_hidden_name(enum bt_openai_hidden hidden)
{
    switch (hidden) {
    case BT_HIDDEN_NOTHING:
        return "none";
    case BT_HIDDEN_PART:
        return "multimodal";
    case BT_HIDDEN_MEMBER:
        return "hidden_member";
    }
    return "-";
}

bool bt_openai_part_is_text(const struct bt_json *part)
{
    struct bt_json type;
    if (part->type == BT_JSON_STRING)
        return true;
    if (!bt_json_member(part, "type", &type, NULL))
        return false;
    for (size_t i = 0; i < sizeof text_types / sizeof text_types[0]; i++)
        if (bt_json_is(&type, text_types[i]))
            return true;
    return false;
}

static bool content_is_text(const struct bt_json *content)
{
    struct bt_json part;
    size_t cursor = 0;
    if (content->type != BT_JSON_ARRAY)
        return content->type == BT_JSON_STRING || content->type == BT_JSON_NULL;
    while (bt_json_next(content, &cursor, NULL, &part))
        if (!bt_openai_part_is_text(&part))
            return false;
    return true;
}

static bool messages_are_text(const struct bt_json *messages)
{
    struct bt_json message, content;
    size_t cursor = 0;
    while (bt_json_next(messages, &cursor, NULL, &message))
        if (bt_json_member(&message, "content", &content, NULL) &&
            !content_is_text(&content))
            return false;
    return true;
}

/* What the members of a body say, the last one of a name. */
struct seen {
    struct bt_json tools, tool_choice, truncate; /* absent: null */
    bool hides;
};

static void member_see(struct seen *s, const struct bt_json *key,
                       const struct bt_json *value)
{
    if (bt_json_key_is(key, "tools"))
        s->tools = *value;
    else if (bt_json_key_is(key, "tool_choice"))
        s->tool_choice = *value;
    else if (bt_json_key_is(key, "truncate_prompt_tokens"))
        s->truncate = *value;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (value->type != BT_JSON_NULL && bt_json_key_is(key, members[i]))
            s->hides = true;
}

/* Engines may leave all tools out for "none", and the others for a named one;
 * /tokenize gets all of them. */
static bool leaves_tools_out(const struct seen *s)
{
    return s->tools.type != BT_JSON_NULL &&
           (s->tool_choice.type == BT_JSON_OBJECT ||
            bt_json_is(&s->tool_choice, "none"));
}

/* The engine keeps the last so many tokens; -1, its model's length, is not
 * known here: false. */
static bool truncation_read(const struct seen *s, uint64_t *out)
{
    return s->truncate.type == BT_JSON_NULL ||
           (bt_json_u64(&s->truncate, out) == BT_OK && *out > 0);
}

void bt_openai_hidden_find(struct bt_openai_request *request)
{
    const struct bt_json null = {.type = BT_JSON_NULL};
    struct seen seen = {null, null, null, false};
    struct bt_json key, value;
    size_t cursor = 0;
    while (bt_json_next(&request->root, &cursor, &key, &value))
        member_see(&seen, &key, &value);
    if (!truncation_read(&seen, &request->truncate_tokens) || seen.hides ||
        leaves_tools_out(&seen))
        request->hidden = BT_HIDDEN_MEMBER;
    else if (request->kind == BT_PROMPT_MESSAGES &&
             !messages_are_text(&request->prompt))
        request->hidden = BT_HIDDEN_PART;
}
