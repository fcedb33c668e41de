/* Request bodies and replies: whatever is accepted must give valid legs within
 * the stated size, without any hand-off field of the client. */
#include "baton/orchestrator/openai.h"
#include "baton/orchestrator/promtext.h"
#include "fuzz.h"

#include <string.h>

static const char *const seeds[] = {
    "{\"model\":\"m\",\"prompt\":\"p\",\"stream\":true,\"stream_options\":{},"
    "\"max_tokens\":8,\"n\":1,\"kv_transfer_params\":{},\"bootstrap_room\":1}",
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
    "\"max_completion_tokens\":5,\"min_tokens\":2,\"tools\":[],\"request_id\""
    ":\"r\",\"cache_salt\":\"s\\u0061\"}",
    "{\"model\":\"m\",\"prompt\":[1,2,4294967295],\"best_of\":1}",
    "{\"model\":\"m\",\"tools\":[1],\"tool_choice\":\"none\","
    "\"truncate_prompt_tokens\":-1,\"messages\":[{\"role\":\"user\","
    "\"content\":[\"a\",{\"type\":\"text\"},{\"type\":\"image_url\"}]}]}",
    "{\"model\":\"m\",\"prompt\":[[1],[2,3]],\"logprobs\":1,\"echo\":true}",
    " {\"prompt\":[\"a\",\"b\"] , \"model\":\"m\" ,\"seed\":1e999}\n",
    "{\"kv_transfer_params\":{\"remote_block_ids\":[[1],[]],"
    "\"remote_engine_id\":\"e\",\"remote_request_id\":\"r\",\"remote_host\":"
    "\"h\",\"remote_port\":1},\"usage\":{\"prompt_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":1}}}",
    "{\"tokens\":[1,2,3],\"error\":null}",
    "name{a=\"b\",c=\"d\\\"\"} 1.5 17 # {x=\"y\"} 2\nplain +Inf\n# c\n",
};

size_t fuzz_seed(size_t index, uint8_t *out, size_t max)
{
    if (index >= sizeof seeds / sizeof seeds[0] || strlen(seeds[index]) > max)
        return 0;
    memcpy(out, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}

static struct bt_openai_request parsed(enum bt_route route, const char *body,
                                       size_t size)
{
    struct bt_openai_request r;
    char message[160];
    FUZZ_CHECK(bt_openai_parse(route, body, size, &r, message,
                               sizeof message) == BT_OK);
    return r;
}

static void legs(const struct bt_openai_request *r)
{
    static const char raw[] = "{\"remote_port\":1}";
    struct bt_json params, value;
    struct bt_text t;
    size_t size = r->body_bytes + 512, count;
    char *out = malloc(size);
    FUZZ_CHECK(out != NULL);
    FUZZ_CHECK(bt_json_parse(raw, sizeof raw - 1, &params, NULL) == BT_OK);
    bt_text_init(&t, out, size);
    FUZZ_CHECK(bt_openai_leg_prefill(r, NULL, &t) == BT_OK);
    struct bt_openai_request p = parsed(r->route, out, t.used);
    FUZZ_CHECK(!p.stream && p.max_tokens == 1 && p.n == 1);
    FUZZ_CHECK(p.client_params == 1); /* our own */
    FUZZ_CHECK(p.kind == r->kind && p.prompt.bytes == r->prompt.bytes);
    bt_text_init(&t, out, r->body_bytes + 64 + params.bytes);
    FUZZ_CHECK(bt_openai_leg_decode(r, &params, &t) == BT_OK);
    struct bt_openai_request d = parsed(r->route, out, t.used);
    FUZZ_CHECK(d.client_params == 1 && d.stream == r->stream);
    FUZZ_CHECK(d.max_tokens == r->max_tokens);
    FUZZ_CHECK(bt_json_member(&d.root, "kv_transfer_params", &value, &count));
    FUZZ_CHECK(count == 1 && value.bytes == params.bytes);
    bt_text_init(&t, out, r->body_bytes);
    FUZZ_CHECK(bt_openai_leg_decode(r, NULL, &t) == BT_OK);
    if (r->client_params == 0 &&
        !bt_json_member(&r->root, "request_id", &value, NULL))
        FUZZ_CHECK(t.used == r->body_bytes &&
                   memcmp(out, r->body, t.used) == 0);
    bt_text_init(&t, out, size);
    if (bt_openai_tokenize_body(r, &t) == BT_OK)
        FUZZ_CHECK(bt_json_parse(out, t.used, &value, NULL) == BT_OK);
    free(out);
}

static void sample_look(void *arg, const struct bt_prom_sample *sample)
{
    char value[32];
    (void)arg;
    (void)bt_prom_is(sample, "name");
    (void)bt_prom_label(sample, "c", value, sizeof value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *body = (const char *)data;
    uint32_t ids[64];
    size_t count;
    struct bt_prefill_reply reply;
    for (int route = 0; route < 2; route++) {
        struct bt_openai_request r;
        char message[160] = "";
        enum bt_status status = bt_openai_parse(
            (enum bt_route)route, body, size, &r, message, sizeof message);
        FUZZ_CHECK((status == BT_OK) == (message[0] == '\0'));
        if (status != BT_OK)
            continue;
        (void)bt_openai_token_ids(&r, ids, 64, &count);
        legs(&r);
    }
    (void)bt_openai_tokenize_reply(body, size, ids, 64, &count);
    if (bt_openai_prefill_reply(body, size, &reply) == BT_OK)
        FUZZ_CHECK(!reply.has_params || reply.params.type == BT_JSON_OBJECT);
    (void)bt_prom_read(body, size, sample_look, NULL);
    return 0;
}
