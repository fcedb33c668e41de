/* Reading of request bodies and of /tokenize: what is accepted, what is
 * refused and in which words (field-failures.md A01 - A05, A21, B14). */
#include "baton/orchestrator/openai.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char message[160];

static enum bt_status parse(enum bt_route route, const char *body,
                            struct bt_openai_request *r)
{
    message[0] = '\0';
    return bt_openai_parse(route, body, strlen(body), r, message,
                           sizeof message);
}

static struct bt_openai_request good(enum bt_route route, const char *body)
{
    struct bt_openai_request r;
    enum bt_status status = parse(route, body, &r);
    if (status != BT_OK)
        fail_msg("%s: %s", body, message);
    return r;
}

static void four_prompts_are_four_kinds(void **state)
{
    static const struct {
        const char *prompt;
        enum bt_prompt_kind kind;
        size_t count;
        bool pd;
    } cases[] = {
        {"\"1,2,3\"", BT_PROMPT_TEXT, 1, true},
        {"[1,2,3]", BT_PROMPT_TOKENS, 1, true},
        {"[\"1\",\"2\",\"3\"]", BT_PROMPT_TEXT_BATCH, 3, false},
        {"[[1,2],[3]]", BT_PROMPT_TOKEN_BATCH, 2, false},
        {"[\"one\"]", BT_PROMPT_TEXT, 1, true},
        {"[[7,8]]", BT_PROMPT_TOKENS, 1, true},
        {"[0,4294967295]", BT_PROMPT_TOKENS, 1, true},
        {"\"\\ud800\\u0000\"", BT_PROMPT_TEXT, 1, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[128];
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":%s}",
                       cases[i].prompt);
        struct bt_openai_request r = good(BT_ROUTE_COMPLETIONS, body);
        assert_int_equal(r.kind, cases[i].kind);
        assert_int_equal(r.prompt_count, cases[i].count);
        assert_int_equal(r.pd_allowed, cases[i].pd);
        if (!cases[i].pd)
            assert_string_equal(r.pd_refusal, "batch");
        else
            assert_null(r.pd_refusal);
    }
}

#define CHAT(more)                                                             \
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}]" more "}"
#define TEXT(more) "{\"model\":\"m\",\"prompt\":\"p\"" more "}"

static const struct {
    enum bt_route route;
    const char *body;
    enum bt_status status;
    const char *says;
} refused[] = {
    {0, "", BT_INVALID, "byte 0"},
    {0, "{\"model\":\"m\",}", BT_INVALID, "byte 13"},
    {0, "[]", BT_TYPE, "JSON object"},
    {0, "\"x\"", BT_TYPE, "JSON object"},
    {0, "{\"prompt\":\"p\"}", BT_INVALID, "'model' is missing"},
    {0, "{\"model\":null,\"prompt\":\"p\"}", BT_TYPE, "'model' must be"},
    {0, "{\"model\":7,\"prompt\":\"p\"}", BT_TYPE, "'model' must be"},
    {0, "{\"model\":\"\",\"prompt\":\"p\"}", BT_INVALID, "'model' is empty"},
    {0, "{\"model\":\"m\"}", BT_INVALID, "'prompt' is missing"},
    {0, "{\"model\":\"m\",\"prompt\":null}", BT_INVALID, "'prompt' is null"},
    {0, "{\"model\":\"m\",\"prompt\":\"\"}", BT_INVALID, "'prompt' is empty"},
    {0, "{\"model\":\"m\",\"prompt\":[]}", BT_INVALID, "'prompt' is empty"},
    {0, "{\"model\":\"m\",\"prompt\":[\"\"]}", BT_INVALID, "is empty"},
    {0, "{\"model\":\"m\",\"prompt\":[[]]}", BT_INVALID, "empty list"},
    {0, "{\"model\":\"m\",\"prompt\":[[1],[]]}", BT_INVALID, "empty list"},
    {0, "{\"model\":\"m\",\"prompt\":7}", BT_TYPE, "'prompt' must be"},
    {0, "{\"model\":\"m\",\"prompt\":{}}", BT_TYPE, "'prompt' must be"},
    {0, "{\"model\":\"m\",\"prompt\":[1,\"a\"]}", BT_TYPE, "'prompt'"},
    {0, "{\"model\":\"m\",\"prompt\":[\"a\",1]}", BT_TYPE, "'prompt'"},
    {0, "{\"model\":\"m\",\"prompt\":[[1],\"a\"]}", BT_TYPE, "'prompt'"},
    {0, "{\"model\":\"m\",\"prompt\":[[1],[\"a\"]]}", BT_TYPE, "'prompt'"},
    {0, "{\"model\":\"m\",\"prompt\":[1.5]}", BT_TYPE, "integers"},
    {0, "{\"model\":\"m\",\"prompt\":[null]}", BT_TYPE, "'prompt'"},
    {0, "{\"model\":\"m\",\"prompt\":[-1]}", BT_INVALID, "token id"},
    {0, "{\"model\":\"m\",\"prompt\":[4294967296]}", BT_INVALID, "token id"},
    {0, TEXT(",\"stream\":\"true\""), BT_TYPE, "'stream' must be"},
    {0, TEXT(",\"stream\":1"), BT_TYPE, "'stream' must be"},
    {0, TEXT(",\"stream_options\":{}"), BT_INVALID, "'stream_options'"},
    {0, TEXT(",\"stream\":true,\"stream_options\":7"), BT_TYPE,
     "'stream_options'"},
    {0, TEXT(",\"stream\":true,\"prompt_logprobs\":1"), BT_INVALID,
     "'prompt_logprobs'"},
    {0, TEXT(",\"max_tokens\":0"), BT_INVALID, "'max_tokens'"},
    {0, TEXT(",\"max_tokens\":-5"), BT_INVALID, "'max_tokens'"},
    {0, TEXT(",\"max_tokens\":1.5"), BT_TYPE, "'max_tokens'"},
    {0, TEXT(",\"max_tokens\":\"8\""), BT_TYPE, "'max_tokens'"},
    {0, TEXT(",\"max_tokens\":99999999999999999999"), BT_INVALID,
     "'max_tokens'"},
    {0, TEXT(",\"max_tokens\":9,\"min_tokens\":10"), BT_INVALID,
     "'min_tokens'"},
    {0, TEXT(",\"min_tokens\":-1"), BT_INVALID, "'min_tokens'"},
    {0, TEXT(",\"n\":0"), BT_INVALID, "'n'"},
    {0, TEXT(",\"n\":true"), BT_TYPE, "'n'"},
    {0, TEXT(",\"best_of\":\"x\""), BT_TYPE, "'best_of'"},
    {0, TEXT(",\"cache_salt\":\"\""), BT_INVALID, "'cache_salt'"},
    {0, TEXT(",\"cache_salt\":7"), BT_TYPE, "'cache_salt'"},
    {0, TEXT(",\"prompt_embeds\":\"AA\""), BT_INVALID, "'prompt_embeds'"},
    {0, TEXT(",\"vllm_xargs\":{\"kv_transfer_params\":1}"), BT_INVALID,
     "'vllm_xargs'"},
    {1, "{\"model\":\"m\"}", BT_INVALID, "'messages' is missing"},
    {1, "{\"model\":\"m\",\"messages\":[]}", BT_INVALID, "is empty"},
    {1, "{\"model\":\"m\",\"messages\":null}", BT_TYPE, "a list"},
    {1, "{\"model\":\"m\",\"messages\":\"hi\"}", BT_TYPE, "a list"},
    {1, "{\"model\":\"m\",\"messages\":[7]}", BT_TYPE, "objects"},
    {1, "{\"model\":\"m\",\"messages\":[{},\"x\"]}", BT_TYPE, "objects"},
    {1, CHAT(",\"max_completion_tokens\":0"), BT_INVALID,
     "'max_completion_tokens'"},
    {1,
     CHAT(",\"max_tokens\":500,\"max_completion_tokens\":5,"
          "\"min_tokens\":8"),
     BT_INVALID, "'min_tokens'"},
    {1, CHAT(",\"stream\":[]"), BT_TYPE, "'stream'"},
};

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct bt_openai_request r;
        enum bt_status status = parse(refused[i].route, refused[i].body, &r);
        if (status != refused[i].status || !strstr(message, refused[i].says))
            fail_msg("%s: %s, %s", refused[i].body, bt_status_name(status),
                     message);
    }
}

/* vLLM serves small numbers first; what is no whole number it judges itself. */
static void priorities(void **state)
{
    static const struct {
        const char *text;
        int32_t priority;
    } samples[] = {
        {"0", 0},
        {"-0", 0},
        {"5", -5},
        {"-5", 5},
        {"2147483647", -2147483647},
        {"2147483648", -2147483647},
        {"-2147483648", 2147483647},
        {"99999999999999999999", -2147483647},
        {"-99999999999999999999", 2147483647},
        {"null", 0},
        {"1.5", 0},
        {"-1e3", 0},
        {"\"-7\"", 0},
        {"[-7]", 0},
        {"true", 0},
    };
    char body[128];
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        snprintf(body, sizeof body,
                 "{\"model\":\"m\",\"prompt\":\"x\",\"priority\":%s}",
                 samples[i].text);
        struct bt_openai_request r = good(BT_ROUTE_COMPLETIONS, body);
        if (r.priority != samples[i].priority)
            fail_msg("%s: %d", samples[i].text, r.priority);
    }
    assert_int_equal(good(BT_ROUTE_CHAT, CHAT(",\"priority\":-2")).priority, 2);
    assert_int_equal(good(BT_ROUTE_CHAT, CHAT("")).priority, 0);
}

static void accepted_values(void **state)
{
    (void)state;
    struct bt_openai_request r = good(
        BT_ROUTE_COMPLETIONS,
        TEXT(",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
             "\"max_tokens\":7,\"max_completion_tokens\":9,\"n\":null,"
             "\"min_tokens\":7,\"seed\":18446744073709551615,\"temperature\":"
             "1e999,\"cache_salt\":\"te\\u006eant\",\"stop\":null"));
    assert_true(r.stream);
    assert_int_equal(r.max_tokens, 7);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.salt_bytes, 6);
    assert_memory_equal(r.salt, "tenant", 6);
    assert_true(r.pd_allowed);
    r = good(BT_ROUTE_CHAT, CHAT(",\"max_tokens\":7,\"max_completion_tokens\":"
                                 "9,\"stream\":null,\"min_tokens\":8"));
    assert_int_equal(r.max_tokens, 9);
    assert_false(r.stream);
    r = good(BT_ROUTE_CHAT, CHAT(",\"max_tokens\":null"));
    assert_int_equal(r.max_tokens, 0);
    r = good(BT_ROUTE_COMPLETIONS, "{\"model\":\"a\",\"prompt\":\"x\","
                                   "\"mod\\u0065l\":\"b\"}");
    assert_true(bt_json_is(&r.model, "b"));
}

static void contents_of_every_shape(void **state)
{
    static const char *const contents[] = {
        "\"content\":\"a\"",
        "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_"
        "url\""
        ",\"image_url\":{\"url\":\"data:,\"}}]",
        "\"content\":null,\"tool_calls\":[{}]",
        "\"role\":\"user\"",
        "\"content\":{\"text\":\"a\"}",
        "\"content\":[]",
        "\"content\":\"\\ud800\"",
        "\"content\":\"\\u0000\"",
        "\"content\":\"x\",\"content\":\"y\"",
        "\"x\":1e999",
    };
    (void)state;
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        char body[256];
        (void)snprintf(body, sizeof body,
                       "{\"model\":\"m\",\"messages\":[{%s}]}", contents[i]);
        struct bt_openai_request r = good(BT_ROUTE_CHAT, body);
        assert_int_equal(r.kind, BT_PROMPT_MESSAGES);
        char out[1024];
        struct bt_text t;
        bt_text_init(&t, out, sizeof out);
        assert_int_equal(bt_openai_leg_decode(&r, NULL, &t), BT_OK);
        assert_int_equal(t.used, strlen(body));
        assert_memory_equal(out, body, t.used);
    }
}

static void depth_bomb(void **state)
{
    static char body[10100] = "{\"model\":\"m\",\"prompt\":\"p\",\"x\":";
    struct bt_openai_request r;
    (void)state;
    memset(body + strlen(body), '[', 10000);
    assert_int_equal(parse(BT_ROUTE_COMPLETIONS, body, &r), BT_TOO_LARGE);
    assert_non_null(strstr(message, "64 levels"));
}

static void long_salt(void **state)
{
    char body[400], salt[258];
    struct bt_openai_request r;
    (void)state;
    memset(salt, 's', 257);
    salt[257] = '\0';
    (void)snprintf(body, sizeof body, TEXT(",\"cache_salt\":\"%s\""), salt);
    assert_int_equal(parse(BT_ROUTE_COMPLETIONS, body, &r), BT_INVALID);
    (void)snprintf(body, sizeof body, TEXT(",\"cache_salt\":\"%s\""), salt + 1);
    assert_int_equal(parse(BT_ROUTE_COMPLETIONS, body, &r), BT_OK);
    assert_int_equal(r.salt_bytes, 256);
}

static void who_is_not_disaggregated(void **state)
{
    static const struct {
        enum bt_route route;
        const char *body, *refusal;
    } cases[] = {
        {0, TEXT(",\"n\":2"), "n"},
        {0, TEXT(",\"best_of\":2"), "best_of"},
        {0, TEXT(",\"prompt_logprobs\":0"), "prompt_logprobs"},
        {0, TEXT(",\"echo\":true,\"logprobs\":1"), "echo_logprobs"},
        {0, TEXT(",\"echo\":true"), NULL},
        {0, TEXT(",\"logprobs\":1"), NULL},
        {0, TEXT(",\"use_beam_search\":true"), "beam_search"},
        {1, CHAT(",\"n\":1,\"best_of\":1"), NULL},
        {1, CHAT(",\"echo\":true,\"logprobs\":false"), NULL},
        {1, CHAT(",\"n\":3"), "n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_openai_request r = good(cases[i].route, cases[i].body);
        assert_int_equal(r.pd_allowed, cases[i].refusal == NULL);
        if (cases[i].refusal != NULL)
            assert_string_equal(r.pd_refusal, cases[i].refusal);
    }
}

static void token_ids(void **state)
{
    uint32_t ids[3] = {0};
    size_t count = 0;
    (void)state;
    struct bt_openai_request r =
        good(BT_ROUTE_COMPLETIONS,
             "{\"model\":\"m\",\"prompt\":[ 1 ,\n4294967295, 0 ]}");
    assert_int_equal(bt_openai_token_ids(&r, ids, 3, &count), BT_OK);
    assert_int_equal(count, 3);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], UINT32_MAX);
    assert_int_equal(ids[2], 0);
    assert_int_equal(bt_openai_token_ids(&r, ids, 2, &count), BT_TOO_LARGE);
    r = good(BT_ROUTE_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[[5,6]]}");
    assert_int_equal(bt_openai_token_ids(&r, ids, 3, &count), BT_OK);
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], 5);
    r = good(BT_ROUTE_COMPLETIONS, TEXT(""));
    assert_int_equal(bt_openai_token_ids(&r, ids, 3, &count), BT_TYPE);
}

static void tokenize_bodies(void **state)
{
    static const struct {
        enum bt_route route;
        const char *body, *want;
    } cases[] = {
        {0, TEXT(",\"max_tokens\":3"), "{\"model\":\"m\",\"prompt\":\"p\"}"},
        {0,
         "{\"prompt\":[\"a\\u00e9\"],\"add_special_tokens\":false,\"model\":"
         "\"m\"}",
         "{\"model\":\"m\",\"prompt\":\"a\\u00e9\",\"add_special_tokens\":"
         "false}"},
        {1,
         CHAT(",\"tools\":[{\"x\":1}],\"chat_template\":null,"
              "\"add_generation_prompt\":false,\"temperature\":1"),
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}],"
         "\"add_generation_prompt\":false,\"tools\":[{\"x\":1}]}"},
    };
    char buf[512];
    struct bt_text t;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_openai_request r = good(cases[i].route, cases[i].body);
        bt_text_init(&t, buf, sizeof buf);
        assert_int_equal(bt_openai_tokenize_body(&r, &t), BT_OK);
        bt_text_add(&t, "", 1);
        assert_string_equal(buf, cases[i].want);
    }
    struct bt_openai_request r =
        good(BT_ROUTE_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1]}");
    assert_int_equal(bt_openai_tokenize_body(&r, &t), BT_UNSUPPORTED);
}

static void tokenize_replies(void **state)
{
    static const struct {
        const char *body;
        enum bt_status status;
        size_t count;
    } cases[] = {
        {"{\"count\":3,\"max_model_len\":9,\"tokens\":[1,2,3],"
         "\"token_strs\":null}",
         BT_OK, 3},
        {"{\"tokens\":[]}", BT_OK, 0},
        {"{\"tokens\":[1,2,3,4,5]}", BT_TOO_LARGE, 0},
        {"{\"tokens\":[-1]}", BT_INVALID, 0},
        {"{\"tokens\":\"x\"}", BT_INVALID, 0},
        {"{\"count\":3}", BT_INVALID, 0},
        {"{\"error\":{\"message\":\"m\"}}", BT_PEER_ERROR, 0},
        {"<html>502</html>", BT_INVALID, 0},
        {"", BT_INVALID, 0},
        {"[1]", BT_INVALID, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t ids[4];
        size_t n = 99;
        enum bt_status status = bt_openai_tokenize_reply(
            cases[i].body, strlen(cases[i].body), ids, 4, &n);
        assert_int_equal(status, cases[i].status);
        assert_int_equal(n, status == BT_OK ? cases[i].count : 99);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_prompts_are_four_kinds),
        cmocka_unit_test(refusals),
        cmocka_unit_test(accepted_values),
        cmocka_unit_test(priorities),
        cmocka_unit_test(contents_of_every_shape),
        cmocka_unit_test(depth_bomb),
        cmocka_unit_test(long_salt),
        cmocka_unit_test(who_is_not_disaggregated),
        cmocka_unit_test(token_ids),
        cmocka_unit_test(tokenize_bodies),
        cmocka_unit_test(tokenize_replies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
