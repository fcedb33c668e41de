/* What of a prompt its tokens do not show (field fault C15): the verdict on
 * request bodies, and where the byte tokenizer's text ends. Right values: what
 * vLLM's /tokenize is told (engine-wire.md 4.7), the template counted by hand.
 */
#include "baton/orchestrator/bytes_tokenizer.h"
#include "baton/orchestrator/openai.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct bt_openai_request parsed(enum bt_route route, const char *body)
{
    struct bt_openai_request r;
    char message[160];

    if (bt_openai_parse(route, body, strlen(body), &r, message,
                        sizeof(message)) != BT_OK)
        fail_msg("%s: %s", body, message);
    return r;
}

static const struct {
    const char *content;
    enum bt_openai_hidden hidden;
} contents[] = {
    {"\"text\"", BT_HIDDEN_NOTHING},
    {"null", BT_HIDDEN_NOTHING},
    {"[]", BT_HIDDEN_NOTHING},
    {"[\"text\"]", BT_HIDDEN_NOTHING},
    {"[{\"type\":\"text\",\"text\":\"a\"}]", BT_HIDDEN_NOTHING},
    {"[{\"t\\u0079pe\":\"te\\u0078t\",\"text\":\"a\"}]", BT_HIDDEN_NOTHING},
    {"[{\"type\":\"refusal\",\"refusal\":\"a\"}]", BT_HIDDEN_NOTHING},
    {"[{\"type\":\"input_text\",\"text\":\"a\"}]", BT_HIDDEN_NOTHING},
    {"[{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\"}}]",
     BT_HIDDEN_PART},
    {"[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"image\":1}]",
     BT_HIDDEN_PART},
    {"[{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"x\"}}]",
     BT_HIDDEN_PART},
    {"[{\"type\":\"audio_url\",\"audio_url\":{}}]", BT_HIDDEN_PART},
    {"[{\"type\":\"video_url\",\"video_url\":{}}]", BT_HIDDEN_PART},
    {"[{\"type\":\"file\",\"file\":{\"file_id\":\"f\"}}]", BT_HIDDEN_PART},
    {"[{\"type\":\"prompt_embeds\",\"prompt_embeds\":\"x\"}]", BT_HIDDEN_PART},
    {"[{\"type\":\"image_embeds\",\"image_embeds\":\"x\"}]", BT_HIDDEN_PART},
    {"[{\"type\":\"of tomorrow\"}]", BT_HIDDEN_PART},
    {"[{\"image_url\":\"u\"}]", BT_HIDDEN_PART}, /* engines guess its type */
    {"[{\"type\":7}]", BT_HIDDEN_PART},
    {"[{\"type\":\"text\",\"type\":\"image_url\"}]", BT_HIDDEN_PART},
    {"[7]", BT_HIDDEN_PART},
    {"[[\"text\"]]", BT_HIDDEN_PART},
    {"{\"type\":\"text\",\"text\":\"a\"}", BT_HIDDEN_PART},
};

static void parts_of_messages(void **state)
{
    static const char *const roles[] = {"system", "user", "tool", "assistant"};
    char body[512];

    (void)state;
    for (size_t i = 0; i < sizeof(contents) / sizeof(contents[0]); i++)
        for (size_t r = 0; r < 4; r++) {
            snprintf(body, sizeof(body),
                     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                     "\"content\":\"first\"},{\"role\":\"%s\",\"content\":%s},"
                     "{\"role\":\"user\",\"content\":\"last\"}]}",
                     roles[r], contents[i].content);
            if (parsed(BT_ROUTE_CHAT, body).hidden != contents[i].hidden)
                fail_msg(
                    "%s: %s", body,
                    bt_openai_hidden_name(parsed(BT_ROUTE_CHAT, body).hidden));
        }
}

static const struct {
    const char *more;
    bool hides;
} members[] = {
    {"", false},
    /* /tokenize is told of these */
    {",\"tools\":[{}],\"chat_template\":\"x\"", false},
    {",\"chat_template_kwargs\":{\"enable_thinking\":false}", false},
    {",\"add_generation_prompt\":false,\"continue_final_message\":true", false},
    {",\"add_special_tokens\":true", false},
    /* nothing without a part that is not text */
    {",\"mm_processor_kwargs\":{\"num_crops\":4}", false},
    {",\"media_io_kwargs\":{}", false},
    /* of the answer only */
    {",\"temperature\":0.5,\"stop\":\"x\",\"modalities\":[\"text\"]", false},
    {",\"cache_salt\":\"s\"", false}, /* a namespace */
    {",\"documents\":null,\"suffix\":null,\"truncate_prompt_tokens\":null",
     false},
    {",\"documents\":[{\"text\":\"d\"}]", true},
    {",\"reasoning_effort\":\"high\"", true},
    {",\"reas\\u006fning_effort\":\"high\"", true},
    {",\"suffix\":\"x\"", true},
    {",\"multi_modal_data\":{\"image\":\"x\"}", true},
    {",\"image_data\":\"x\"", true},
    {",\"input_ids\":[1]", true},
    {",\"lora_path\":\"a\"", true},
    {",\"extra_key\":\"a\"", true},
    {",\"tool_choice\":\"none\"", false}, /* there are none to leave out */
    {",\"tools\":null,\"tool_choice\":\"none\"", false},
    {",\"tools\":[{}],\"tool_choice\":\"auto\"", false},
    {",\"tools\":[{}],\"tool_choice\":\"required\"", false},
    {",\"tools\":[{}],\"tool_choice\":\"none\"", true},
    {",\"tools\":[{}],\"tool_choice\":{\"type\":\"function\"}", true},
    {",\"truncate_prompt_tokens\":-1", true},
    {",\"truncate_prompt_tokens\":0", true},
    {",\"truncate_prompt_tokens\":\"9\"", true},
    {",\"truncate_prompt_tokens\":9", false}, /* depends on the length */
};

static void members_of_bodies(void **state)
{
    static const char *const prompts[] = {
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]",
        "\"prompt\":\"x\"", "\"prompt\":[1,2]"};
    char body[256];

    (void)state;
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        for (size_t p = 0; p < 3; p++) {
            struct bt_openai_request r;

            snprintf(body, sizeof(body), "{\"model\":\"m\",%s%s}", prompts[p],
                     members[i].more);
            r = parsed(p == 0 ? BT_ROUTE_CHAT : BT_ROUTE_COMPLETIONS, body);
            if (r.hidden !=
                (members[i].hides ? BT_HIDDEN_MEMBER : BT_HIDDEN_NOTHING))
                fail_msg("%s: %s", body, bt_openai_hidden_name(r.hidden));
        }
}

/* All of the prompt is hidden, not only from the part on. */
static void a_member_outweighs_a_part(void **state)
{
    struct bt_openai_request r =
        parsed(BT_ROUTE_CHAT, "{\"model\":\"m\",\"reasoning_effort\":\"low\","
                              "\"messages\":[{\"role\":\"user\",\"content\":["
                              "{\"type\":\"image_url\"}]}]}");

    (void)state;
    assert_int_equal(r.hidden, BT_HIDDEN_MEMBER);
    r = parsed(BT_ROUTE_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"x\","
                                     "\"truncate_prompt_tokens\":12}");
    assert_int_equal(r.truncate_tokens, 12);
    r = parsed(BT_ROUTE_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"x\"}");
    assert_int_equal(r.truncate_tokens, 0);
    assert_string_equal(bt_openai_hidden_name(BT_HIDDEN_NOTHING), "none");
    assert_string_equal(bt_openai_hidden_name(BT_HIDDEN_PART), "multimodal");
    assert_string_equal(bt_openai_hidden_name(BT_HIDDEN_MEMBER),
                        "hidden_member");
}

#define IMAGE      "{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\"}}"
#define PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"

/* "<|user|>" is 8 tokens, "<|assistant|>" 13, each message ends with one. */
static const struct {
    const char *messages;
    size_t text, all;
} places[] = {
    {"[{\"role\":\"user\",\"content\":\"abc\"}]", 25, 25},
    {"[{\"role\":\"user\",\"content\":[" PART("abc") "]}]", 25, 25},
    {"[{\"role\":\"user\",\"content\":[" IMAGE "," PART("abc") "]}]", 8, 25},
    {"[{\"role\":\"user\",\"content\":[" PART("abc") "," IMAGE "]}]", 11, 25},
    {"[{\"role\":\"user\",\"content\":[" PART("a\\u00e9") "," IMAGE "," PART(
         "b") "," IMAGE "]}]",
     11, 26},
    {"[{\"role\":\"user\",\"content\":\"abc\"},{\"role\":\"user\","
     "\"content\":[" IMAGE "]}]",
     20, 34},
    {"[{\"role\":\"user\",\"content\":[]},{\"role\":\"user\",\"content\":["
     "{\"type\":\"new\"}]},{\"role\":\"user\",\"content\":\"abc\"}]",
     17, 43},
};

static void where_text_ends(void **state)
{
    uint32_t tokens[64];

    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct bt_bytes_prompt p = {.tokens = tokens, .max = 64};

        assert_int_equal(bt_bytes_tokenize_json(places[i].messages,
                                                strlen(places[i].messages),
                                                true, &p),
                         BT_OK);
        if (p.text_count != places[i].text || p.count != places[i].all)
            fail_msg("%s: %zu of %zu", places[i].messages, p.text_count,
                     p.count);
    }
}

static void plain_text_has_no_end(void **state)
{
    uint32_t tokens[8];
    struct bt_bytes_prompt p = {.tokens = tokens, .max = 8, .count = 2};

    (void)state;
    assert_int_equal(bt_bytes_tokenize_json("\"abc\"", 5, false, &p), BT_OK);
    assert_int_equal(p.count, 5);
    assert_int_equal(p.text_count, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_messages),
        cmocka_unit_test(members_of_bodies),
        cmocka_unit_test(a_member_outweighs_a_part),
        cmocka_unit_test(where_text_ends),
        cmocka_unit_test(plain_text_has_no_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
