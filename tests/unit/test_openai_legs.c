/* Bodies of the two legs and leg P's reply, against results written by hand
 * from engine-wire.md 3.2 and 3.3. */
#include "baton/orchestrator/openai.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIX                                                                    \
    "\"kv_transfer_params\":{\"do_remote_decode\":true,"                       \
    "\"do_remote_prefill\":false,\"remote_engine_id\":null,"                   \
    "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"

static struct bt_openai_request good(enum bt_route route, const char *body)
{
    struct bt_openai_request r;
    char message[160];
    if (bt_openai_parse(route, body, strlen(body), &r, message,
                        sizeof message) != BT_OK)
        fail_msg("%s: %s", body, message);
    return r;
}

static void leg_p_is(enum bt_route route, const char *body, const char *want)
{
    char buf[2048];
    struct bt_text t;
    struct bt_openai_request r = good(route, body);
    bt_text_init(&t, buf, strlen(body) + 512);
    assert_int_equal(bt_openai_leg_prefill(&r, NULL, &t), BT_OK);
    bt_text_add(&t, "", 1);
    assert_string_equal(buf, want);
}

/* want NULL: the client's vllm_xargs are to be left alone, with `status`. */
static void healed_leg_p_is(const char *body, enum bt_status status,
                            const char *want)
{
    char buf[2048], room[256];
    struct bt_text t, xargs;
    struct bt_openai_request r = good(BT_ROUTE_COMPLETIONS, body);
    bt_text_init(&xargs, room, sizeof room);
    assert_int_equal(bt_openai_full_report(&r, &xargs), status);
    if (want == NULL)
        return;
    bt_text_init(&t, buf, strlen(body) + xargs.used + 512);
    assert_int_equal(bt_openai_leg_prefill(&r, &xargs, &t), BT_OK);
    bt_text_add(&t, "", 1);
    assert_string_equal(buf, want);
}

static void leg_d_is(enum bt_route route, const char *body, const char *params,
                     const char *want)
{
    char buf[2048];
    struct bt_text t;
    struct bt_json p;
    struct bt_openai_request r = good(route, body);
    if (params != NULL)
        assert_int_equal(bt_json_parse(params, strlen(params), &p, NULL),
                         BT_OK);
    bt_text_init(&t, buf,
                 strlen(body) + (params != NULL ? strlen(params) : 0) + 64);
    assert_int_equal(bt_openai_leg_decode(&r, params != NULL ? &p : NULL, &t),
                     BT_OK);
    bt_text_add(&t, "", 1);
    assert_string_equal(buf, want);
}

static const char chat[] =
    "{\"model\":\"m\",\"messages\":[{\"content\":\"\\u4e2d\"}],\"stream\":true,"
    "\"stream_options\":{\"include_usage\":true},\"max_completion_tokens\":500,"
    "\"min_tokens\":8}";

static void the_example_of_the_reference(void **state)
{
    (void)state;
    leg_p_is(
        BT_ROUTE_CHAT, chat,
        "{\"model\":\"m\",\"messages\":[{\"content\":\"\\u4e2d\"}],"
        "\"stream\":false,\"max_tokens\":1,\"max_completion_tokens\":1," SIX
        "}");
    leg_d_is(BT_ROUTE_CHAT, chat, "{\"remote_port\":1,\"big\":1e999}",
             "{\"model\":\"m\",\"messages\":[{\"content\":\"\\u4e2d\"}],"
             "\"stream\":true,\"stream_options\":{\"include_usage\":true},"
             "\"max_completion_tokens\":500,\"min_tokens\":8,"
             "\"kv_transfer_params\":{\"remote_port\":1,\"big\":1e999}}");
    leg_d_is(BT_ROUTE_CHAT, chat, NULL, chat);
}

#define HEAD  "{\"model\":\"m\",\"prompt\":\"p\""
#define LEG_P ",\"stream\":false,\"max_tokens\":1," SIX ",\"vllm_xargs\":"

/* engine-wire.md 1.12. */
static void healing_merges_its_mode(void **state)
{
    (void)state;
    healed_leg_p_is(HEAD "}", BT_OK,
                    HEAD LEG_P "{\"kv_cache_report_mode\":\"full\"}}");
    healed_leg_p_is(HEAD ",\"vllm_xargs\":null}", BT_OK,
                    HEAD LEG_P "{\"kv_cache_report_mode\":\"full\"}}");
    healed_leg_p_is(HEAD ",\"vllm_xargs\":{}}", BT_OK,
                    HEAD LEG_P "{\"kv_cache_report_mode\":\"full\"}}");
    healed_leg_p_is(
        HEAD ",\"vllm_xargs\":{ \"a\\u0062\":1.0e1 , \"c\":[1,{}]}}", BT_OK,
        HEAD LEG_P "{ \"a\\u0062\":1.0e1 , \"c\":[1,{}],"
                   "\"kv_cache_report_mode\":\"full\"}}");
    healed_leg_p_is(HEAD ",\"vllm_xargs\":\"x\"}", BT_TYPE, NULL);
    healed_leg_p_is(HEAD ",\"vllm_xargs\":[{}]}", BT_TYPE, NULL);
    healed_leg_p_is(HEAD ",\"vllm_xargs\":{\"kv_cache_report_mode\":\"none\"}}",
                    BT_EXISTS, NULL);
}

static void every_rule_of_leg_p(void **state)
{
    (void)state;
    leg_p_is(BT_ROUTE_COMPLETIONS,
             "{ \"model\" : \"m\", \"prompt\":[1,2], \"n\":1, \"best_of\":1,"
             "\"min_tokens\":3,\"min_completion_tokens\":2,\"logprobs\":5,"
             "\"top_logprobs\":2,\"request_id\":\"r\",\"seed\":"
             "18446744073709551615,\"stop\":[\"x\"],\"ec_transfer_params\":{},"
             "\"bootstrap_room\":7,\"max_tokens\":9,\"max_tokens\":10,"
             "\"cache_salt\":\"s\",\"priority\":-1 }",
             "{ \"model\" : \"m\", \"prompt\":[1,2],\"seed\":"
             "18446744073709551615,\"stop\":[\"x\"],\"cache_salt\":\"s\","
             "\"priority\":-1 ,\"stream\":false,\"max_tokens\":1," SIX "}");
}

static void clients_hand_off_fields_go(void **state)
{
    static const char body[] =
        "{\"bootstrap_host\":\"10.0.0.9\",\"model\":\"m\",\"prompt\":\"p\","
        "\"bootstrap_room\":7,\"kv_transfer_params\":{\"remote_port\":1},"
        "\"kv_transfer_p\\u0061rams\":null,\"boot\\u0073trap_port\":1,"
        "\"bootstrap\":1,\"x\":{\"bootstrap_room\":1},\"request_id\":\"r\","
        "\"ec_transfer_params\":1}";
    (void)state;
    struct bt_openai_request r = good(BT_ROUTE_COMPLETIONS, body);
    assert_int_equal(r.client_params, 6);
    leg_d_is(BT_ROUTE_COMPLETIONS, body, NULL,
             "{\"model\":\"m\",\"prompt\":\"p\",\"bootstrap\":1,"
             "\"x\":{\"bootstrap_room\":1}}");
    leg_d_is(BT_ROUTE_COMPLETIONS, body, "{}",
             "{\"model\":\"m\",\"prompt\":\"p\",\"bootstrap\":1,"
             "\"x\":{\"bootstrap_room\":1},\"kv_transfer_params\":{}}");
    leg_p_is(
        BT_ROUTE_COMPLETIONS, body,
        "{\"model\":\"m\",\"prompt\":\"p\",\"bootstrap\":1,"
        "\"x\":{\"bootstrap_room\":1},\"stream\":false,\"max_tokens\":1," SIX
        "}");
}

static void leg_d_without_a_change_is_the_body(void **state)
{
    static const char *const bodies[] = {
        (" \n{ \"prompt\" :\t\"a\\/b\\u00e9\",\r\n\"model\":\"m\" ,\"x\":1.0e1,"
         "\"x\":1.00, \"seed\":18446744073709551615 }\r\n "),
        "{\"model\":\"m\",\"prompt\":\"\xe5\x8c\x97\",\"n\":3,\"best_of\":4}",
        "{\"model\":\"m\",\"prompt\":[[1],[2]],\"logprobs\":1}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        leg_d_is(BT_ROUTE_COMPLETIONS, bodies[i], NULL, bodies[i]);
}

static void a_small_buffer_is_told(void **state)
{
    char buf[64];
    struct bt_text t;
    struct bt_openai_request r = good(BT_ROUTE_CHAT, chat);
    (void)state;
    bt_text_init(&t, buf, sizeof buf);
    assert_int_equal(bt_openai_leg_prefill(&r, NULL, &t), BT_TOO_LARGE);
    bt_text_init(&t, buf, sizeof buf);
    assert_int_equal(bt_openai_leg_decode(&r, NULL, &t), BT_TOO_LARGE);
    bt_text_init(&t, buf, 8);
    assert_int_equal(bt_openai_tokenize_body(&r, &t), BT_TOO_LARGE);
}

#define PARAMS(blocks, engine, request, host, port)                            \
    "{\"do_remote_prefill\":true, \"remote_block_ids\":" blocks                \
    ",\"remote_engine_id\":" engine ",\"remote_request_id\":" request          \
    ",\"remote_host\":" host ",\"remote_port\":" port ",\"tp_size\":2,"        \
    "\"odd\":1e999}"
#define REPLY(params)                                                          \
    "{\"id\":\"cmpl\",\"choices\":[{\"finish_reason\":\"length\"}],"           \
    "\"kv_transfer_params\":" params                                           \
    ",\"usage\":{\"prompt_tokens\":77,\"prompt_tokens_details\":"              \
    "{\"cached_tokens\":64}}}"

static void prefill_replies(void **state)
{
    static const struct {
        const char *body;
        enum bt_status status;
        bool usable;
        const char *missing;
    } cases[] = {
        {REPLY(PARAMS("[[1,2],[3]]", "\"e\"", "\"r\"", "\"h\"", "5600")), BT_OK,
         true, NULL},
        {REPLY(PARAMS("[1]", "\"e\"", "\"r\"", "\"h\"", "5600")), BT_OK, true,
         NULL},
        {REPLY(PARAMS("[[],[9]]", "\"e\"", "\"r\"", "\"h\"", "5600")), BT_OK,
         true, NULL},
        {REPLY(PARAMS("[]", "\"e\"", "\"r\"", "\"h\"", "5600")), BT_OK, false,
         "remote_block_ids"},
        {REPLY(PARAMS("[[],[]]", "\"e\"", "\"r\"", "\"h\"", "5600")), BT_OK,
         false, "remote_block_ids"},
        {REPLY(PARAMS("null", "\"e\"", "\"r\"", "\"h\"", "5600")), BT_OK, false,
         "remote_block_ids"},
        {REPLY(PARAMS("[1]", "null", "\"r\"", "\"h\"", "5600")), BT_OK, false,
         "remote_engine_id"},
        {REPLY(PARAMS("[1]", "\"e\"", "\"\"", "\"h\"", "5600")), BT_OK, false,
         "remote_request_id"},
        {REPLY(PARAMS("[1]", "\"e\"", "\"r\"", "null", "5600")), BT_OK, false,
         "remote_host"},
        {REPLY(PARAMS("[1]", "\"e\"", "\"r\"", "\"h\"", "null")), BT_OK, false,
         "remote_port"},
        {REPLY(PARAMS("[1]", "\"e\"", "\"r\"", "\"h\"", "0")), BT_OK, false,
         "remote_port"},
        {REPLY("{}"), BT_OK, false, "remote_block_ids"},
        {REPLY("[]"), BT_OK, false, "kv_transfer_params"},
        {REPLY("null"), BT_OK, false, NULL},
        {"{\"choices\":[]}", BT_OK, false, NULL},
        {"{\"error\":{\"message\":\"m\"}}", BT_PEER_ERROR, false, NULL},
        {"{\"error\":\"Unauthorized\"}", BT_PEER_ERROR, false, NULL},
        {"{\"object\":\"error\",\"message\":\"m\"}", BT_PEER_ERROR, false,
         NULL},
        {"{\"choices\":[{\"finish_reason\":\"error\"}]}", BT_PEER_ERROR, false,
         NULL},
        {"", BT_INVALID, false, NULL},
        {"<html>", BT_INVALID, false, NULL},
        {"upstream connect error", BT_INVALID, false, NULL},
        {"{\"choices\":[", BT_INVALID, false, NULL},
        {"[]", BT_INVALID, false, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_prefill_reply r;
        const char *body = cases[i].body;
        enum bt_status status = bt_openai_prefill_reply(body, strlen(body), &r);
        if (status != cases[i].status)
            fail_msg("%s: %s", body, bt_status_name(status));
        if (status != BT_OK)
            continue;
        assert_int_equal(r.has_params, cases[i].usable);
        if (cases[i].missing != NULL)
            assert_string_equal(r.missing, cases[i].missing);
        else
            assert_null(r.missing);
    }
}

static void parameters_are_the_very_bytes(void **state)
{
    static const char params[] =
        PARAMS("[[1, 2]]", "\"\\u0065\"", "\"r\"", "\"h\"", "5600");
    static const char body[] =
        REPLY(PARAMS("[[1, 2]]", "\"\\u0065\"", "\"r\"", "\"h\"", "5600"));
    struct bt_prefill_reply r;
    (void)state;
    assert_int_equal(bt_openai_prefill_reply(body, sizeof body - 1, &r), BT_OK);
    assert_true(r.has_params);
    assert_int_equal(r.params.bytes, sizeof params - 1);
    assert_memory_equal(r.params.at, params, sizeof params - 1);
    assert_int_equal(r.prompt_tokens, 77);
    assert_int_equal(r.cached_tokens, 64);
}

static void errors_have_the_shape(void **state)
{
    static const struct {
        int http;
        const char *want;
    } cases[] = {
        {400, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
              "\"BadRequestError\",\"param\":null,\"code\":400}}"},
        {404, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
              "\"NotFoundError\",\"param\":null,\"code\":404}}"},
        {503, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
              "\"ServiceUnavailableError\",\"param\":null,\"code\":503}}"},
        {418, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
              "\"BadRequestError\",\"param\":null,\"code\":418}}"},
        {500, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
              "\"InternalServerError\",\"param\":null,\"code\":500}}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buf[256];
        struct bt_text t;
        bt_text_init(&t, buf, sizeof buf);
        bt_openai_error(&t, cases[i].http, "a \"b\"");
        bt_text_add(&t, "", 1);
        assert_string_equal(buf, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_reference),
        cmocka_unit_test(healing_merges_its_mode),
        cmocka_unit_test(every_rule_of_leg_p),
        cmocka_unit_test(clients_hand_off_fields_go),
        cmocka_unit_test(leg_d_without_a_change_is_the_body),
        cmocka_unit_test(a_small_buffer_is_told),
        cmocka_unit_test(prefill_replies),
        cmocka_unit_test(parameters_are_the_very_bytes),
        cmocka_unit_test(errors_have_the_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
