/* Which prompts the server takes for the same (field faults C15, C19; C14 from
 * outside): two requests, and how much of the second was believed to be cached.
 * Workers announce nothing, so what is believed comes from own placements,
 * where nobody else would notice a false hit. Right values: the template of the
 * byte tokenizer counted by hand, namespaces of engine-wire.md 2.9. */
#include "serve_bed.h"
#include "serve_priv.h"

#include "baton/planner/block_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

static struct bed bed;
static char out[262144];

static int teardown(void **state)
{
    (void)state;
    bed_idle(&bed);
    bed_stop(&bed);
    return 0;
}

static int setup_bytes(void **state)
{
    (void)state;
    bed_start(&bed, "pd", NULL);
    return 0;
}

static void last_decision(void)
{
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
}

static void expect(const char *name, const char *value)
{
    char want[128];

    snprintf(want, sizeof(want), "\"%s\":%s,", name, value);
    if (strstr(out, want) == NULL)
        fail_msg("no %s in %s", want, out);
}

static void expect_count(const char *name, unsigned int count)
{
    char value[16];

    snprintf(value, sizeof(value), "%u", count);
    expect(name, value);
}

/* One request; its decision stays in out. */
static void ask(const char *path, const char *body, unsigned int hit)
{
    assert_int_equal(bed_request(&bed, path, body, out, sizeof(out)), 200);
    last_decision();
    expect_count("hit_p", hit);
}

static void ask_chat(const char *content, const char *more, unsigned int hit)
{
    char body[2048];

    snprintf(body, sizeof(body),
             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":%s}"
             "]%s}",
             content, more);
    ask("/v1/chat/completions", body, hit);
}

/* ---- byte tokenizer ---- */

/* 72 and 100 characters. With "<|user|>" in front the first make 80 tokens, 5
 * blocks; both with "\n<|assistant|>" behind them 194, 12 blocks. */
#define T36        "thirty six characters are in here..."
#define T50        "and there are just fifty of them in here, I think."
#define BEFORE     T36 T36
#define AFTER      T50 T50
#define TEXT(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define IMAGE(url)                                                             \
    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:" url "\"}}"
#define AROUND(part) "[" TEXT(BEFORE) "," part "," TEXT(AFTER) "]"

static void another_image_is_another_prompt(void **state)
{
    static const char *const parts[] = {
        IMAGE("2"), IMAGE("1"),
        "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"x\"}}",
        "{\"type\":\"video_url\",\"video_url\":{\"url\":\"x\"}}",
        "{\"type\":\"file\",\"file\":{\"file_id\":\"x\"}}"};
    char content[512];

    (void)state;
    assert_int_equal(strlen(BEFORE), 72);
    assert_int_equal(strlen(AFTER), 100);
    ask_chat(AROUND(IMAGE("1")), "", 0);
    expect("prompt_hidden", "\"multimodal\"");
    expect_count("named_tokens", 80);
    expect_count("input_tokens", 194);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(content, sizeof(content),
                 "[" TEXT(BEFORE) ",%s," TEXT(AFTER) "]", parts[i]);
        ask_chat(content, "", 80);
    }
    assert_int_equal(
        bed_metric(&bed, "baton_plan_fallbacks_total{reason=\"multimodal\"}"),
        6);
}

/* The same tokens without an image: whole, and not for those with one. */
static void text_is_not_an_image(void **state)
{
    (void)state;
    ask_chat("\"" BEFORE AFTER "\"", "", 0);
    expect("prompt_hidden", "\"none\"");
    expect_count("named_tokens", 192);
    ask_chat("[" TEXT(BEFORE) "," TEXT(AFTER) "]", "", 192);
    ask_chat(AROUND(IMAGE("1")), "", 80);
    assert_int_equal(
        bed_metric(&bed, "baton_plan_fallbacks_total{reason=\"multimodal\"}"),
        1);
}

static void an_image_in_front_leaves_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ask_chat("[" IMAGE("1") "," TEXT(BEFORE AFTER) "]", "", 0);
        expect_count("named_tokens", 0);
    }
    ask_chat("\"" BEFORE AFTER "\"", "", 0); /* nor was anything learned */
}

/* An image anywhere: also in what a tool said, turns ago. */
static void an_image_of_an_earlier_turn(void **state)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
        "\"" BEFORE "\"},{\"role\":\"tool\",\"content\":[" IMAGE(
            "%s") "]},"
                  "{\"role\":\"user\",\"content\":\"" AFTER "\"}]}";
    char text[1024];

    (void)state;
    snprintf(text, sizeof(text), body, "1");
    ask("/v1/chat/completions", text, 0);
    /* 80, "\n<|tool|>": 89 tokens, 5 blocks */
    expect_count("named_tokens", 80);
    snprintf(text, sizeof(text), body, "2");
    ask("/v1/chat/completions", text, 80);
}

static void tenants_with_one_image(void **state)
{
    (void)state;
    ask_chat(AROUND(IMAGE("1")), ",\"cache_salt\":\"salt\"", 0);
    expect("namespace", "\"37e84b7cf73fac36\"");
    ask_chat(AROUND(IMAGE("1")), ",\"cache_salt\":\"tenant-a\"", 0);
    expect("namespace", "\"1b095b6229544fb6\"");
    ask_chat(AROUND(IMAGE("1")), "", 0);
    expect("namespace", "\"0000000000000539\"");
    ask_chat(AROUND(IMAGE("2")), ",\"cache_salt\":\"salt\"", 80);
    ask_chat(AROUND(IMAGE("2")), ",\"cache_salt\":\"dynamo-cache-salt:salt\"",
             80);
    expect("namespace", "\"37e84b7cf73fac36\"");
    ask_chat(AROUND(IMAGE("1")), ",\"model\":\"lora-a\"", 0);
    expect("namespace", "\"eabdaa2c31af1245\"");
    ask_chat(AROUND(IMAGE("1")),
             ",\"model\":\"lora-a\",\"cache_salt\":\"salt\"", 0);
    expect("namespace", "\"22a5f5a928eeb942\"");
    ask_chat(AROUND(IMAGE("2")), ",\"model\":\"lora-a\"", 80);
}

static void members_that_change_the_prompt(void **state)
{
    static const char *const more[] = {
        ",\"documents\":[{\"text\":\"d\"}]",
        ",\"reasoning_effort\":\"high\"",
        ",\"truncate_prompt_tokens\":193",
        ",\"truncate_prompt_tokens\":-1",
        ",\"tools\":[{}],\"tool_choice\":\"none\"",
        ",\"lora_path\":\"other\"",
    };

    (void)state;
    ask_chat("\"" BEFORE AFTER "\"", "", 0);
    ask_chat("\"" BEFORE AFTER "\"", ",\"truncate_prompt_tokens\":194", 192);
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        ask_chat("\"" BEFORE AFTER "\"", more[i], 0);
        expect("prompt_hidden", "\"hidden_member\"");
        expect_count("named_tokens", 0);
        expect_count("input_tokens", i == 2 ? 193 : 194);
    }
    assert_int_equal(bed_metric(&bed, "baton_plan_fallbacks_total{reason="
                                      "\"hidden_member\"}"),
                     6);
}

/* ---- tokens from a worker ---- */

/* Whatever the text, 70 tokens: 4 blocks. */
static void tokenizes(struct bed_worker *w, struct bt_httpd_request *req)
{
    char buf[512] = "{\"tokens\":[1";

    if (strcmp(bt_httpd_path(req), "/tokenize") != 0) {
        bed_well_behaved(w, req);
        return;
    }
    for (int i = 2; i <= 70; i++)
        snprintf(buf + strlen(buf), sizeof(buf) - strlen(buf), ",%d", i);
    snprintf(buf + strlen(buf), sizeof(buf) - strlen(buf), "]}");
    bt_httpd_reply(req, 200, "application/json", buf, strlen(buf));
}

static int setup_worker(void **state)
{
    (void)state;
    bed_start(&bed, "pd", "tokenizer: worker\ntimeouts: {tokenize: 10s}");
    bed.workers[0].script = bed.workers[1].script = tokenizes;
    return 0;
}

/* The engine writes one placeholder for any image: where it stands is unknown,
 * so nothing of the prompt is named, but its length is. */
static void worker_tokens_with_an_image(void **state)
{
    (void)state;
    ask_chat("\"x\"", "", 0);
    ask_chat("\"x\"", "", 64);
    expect("prompt_hidden", "\"none\"");
    ask_chat("[" TEXT("x") "," IMAGE("1") "]", "", 0);
    expect("prompt_hidden", "\"multimodal\"");
    expect("tokens_known", "true");
    expect_count("input_tokens", 70);
    expect_count("named_tokens", 0);
    ask_chat("\"x\"", ",\"documents\":[1]", 0);
    expect("prompt_hidden", "\"hidden_member\"");
    ask_chat("\"x\"", ",\"mm_processor_kwargs\":{\"a\":1}", 64);
    ask_chat("[" TEXT("x") "]", "", 64);
}

/* Images only, tokens equal: the first must not have left anything behind. */
static void worker_tokens_leave_nothing(void **state)
{
    (void)state;
    ask_chat("[" IMAGE("1") "]", "", 0);
    ask_chat("[" IMAGE("2") "]", "", 0);
    ask_chat("\"x\"", "", 0);
}

/* ---- block size 1 ---- */

#define LONG_TOKENS 100000u

static bool many_small_blocks(struct bed_worker *w,
                              struct bt_httpd_request *req, const char *path)
{
    char buf[256];

    if (strcmp(path, "/metrics") != 0)
        return false;
    snprintf(buf, sizeof(buf),
             "vllm:num_requests_running{engine=\"0\"} 0\n"
             "vllm:cache_config_info{block_size=\"1\",num_gpu_blocks="
             "\"250000\"} 1\nprocess_start_time_seconds %u\n",
             w->start_time);
    bt_httpd_reply(req, 200, "text/plain", buf, strlen(buf));
    return true;
}

/* Roles by name: the body is longer than what the bed keeps of it. */
static void by_role(struct bed_worker *w, struct bt_httpd_request *req)
{
    char buf[1024];

    if (w->role[0] == 'p') {
        w->held++;
        snprintf(buf, sizeof(buf),
                 "{\"choices\":[{\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":"
                 "%u},\"kv_transfer_params\":%s}",
                 LONG_TOKENS, bed_params());
    } else {
        snprintf(buf, sizeof(buf),
                 "{\"choices\":[{\"text\":\"ab\",\"finish_reason\":\"length\"}]"
                 ",\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":2}}",
                 LONG_TOKENS);
    }
    bt_httpd_reply(req, 200, "application/json", buf, strlen(buf));
}

static int setup_small(void **state)
{
    (void)state;
    bed_workers(&bed, "pd");
    bed.block_size = 1;
    for (size_t i = 0; i < 2; i++) {
        bed.workers[i].block_size = 1;
        bed.workers[i].probe = many_small_blocks;
        bed.workers[i].script = by_role;
    }
    bed_serve(&bed, NULL);
    bed_ready(&bed);
    return 0;
}

/* A prompt of 100,000 tokens, few different ones among them, in 100,000 blocks;
 * then one that differs in the token at `differs`. */
static void ask_long(uint32_t differs, unsigned int hit)
{
    size_t size = 4 * LONG_TOKENS + 256, n;
    char *body = malloc(size);

    assert_non_null(body);
    n = (size_t)snprintf(body, size, "{\"model\":\"m\",\"prompt\":[");
    for (uint32_t t = 0; t < LONG_TOKENS; t++)
        n += (size_t)snprintf(body + n, size - n, "%s%u", t > 0 ? "," : "",
                              t == differs ? 99 : t % 3);
    snprintf(body + n, size - n, "]}");
    ask("/v1/completions", body, hit);
    free(body);
}

static void one_token_to_the_block(void **state)
{
    (void)state;
    ask_long(UINT32_MAX, 0);
    expect_count("named_tokens", LONG_TOKENS);
    /* all but the last token, which is always computed */
    ask_long(LONG_TOKENS - 1, LONG_TOKENS - 1);
    ask_long(54321, 54321);
}

/* ---- the log at the start ---- */

/* Lines that the server writes while it starts with blocks of that size. */
static void start_log(unsigned int block_size, const char *events)
{
    char path[] = "/tmp/baton-log-XXXXXX";
    int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    ssize_t n;

    assert_true(fd >= 0 && saved >= 0);
    unlink(path);
    bed_workers(&bed, "pd");
    bed.block_size = block_size;
    bed.workers[0].block_size = bed.workers[1].block_size = block_size;
    bed.workers[0].events = events;
    dup2(fd, STDERR_FILENO);
    bed_serve(&bed, "log: {level: warn, format: text}");
    dup2(saved, STDERR_FILENO);
    close(saved);
    n = pread(fd, out, sizeof(out) - 1, 0);
    close(fd);
    assert_true(n >= 0);
    out[n] = '\0';
    bed_stop(&bed);
}

static void small_blocks_are_named_at_the_start(void **state)
{
    (void)state;
    start_log(1, "tcp://127.0.0.1:9");
    assert_non_null(strstr(out, "kv_block_size_small"));
    assert_non_null(strstr(out, "model=m block_size=1:"));
    start_log(15, "tcp://127.0.0.1:9");
    assert_non_null(strstr(out, "kv_block_size_small"));
    start_log(16, "tcp://127.0.0.1:9");
    assert_null(strstr(out, "kv_block_size_small"));
    start_log(1, NULL); /* no events */
    assert_null(strstr(out, "kv_block_size_small"));
}

/* ---- Eagle ---- */

/* models[].engine.eagle decides the form: vectors of 2.9. */
static void eagle_models_hash_windows(void **state)
{
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct bt_model_config model = {.block_size = 4};
    uint64_t keys[2] = {0, 0};

    (void)state;
    assert_int_equal(prompt_keys(&model, tokens, 9, BT_NS_PLAIN, keys), 2);
    assert_true(keys[0] == 0xcb38e4d7fb2dca5c);
    assert_true(keys[1] == 0x44a2b2379d6d3c3d);
    model.engine.eagle = true;
    assert_int_equal(prompt_keys(&model, tokens, 9, BT_NS_PLAIN, keys), 2);
    assert_true(keys[0] == 0x1a92ffa9004c0851);
    assert_true(keys[1] == bt_block_chain(keys[0], 0x1ac55a72d61806e3));
    assert_int_equal(prompt_keys(&model, tokens, 8, BT_NS_PLAIN, keys), 1);
}

#define T(f, setup) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(another_image_is_another_prompt, setup_bytes),
        T(text_is_not_an_image, setup_bytes),
        T(an_image_in_front_leaves_nothing, setup_bytes),
        T(an_image_of_an_earlier_turn, setup_bytes),
        T(tenants_with_one_image, setup_bytes),
        T(members_that_change_the_prompt, setup_bytes),
        T(worker_tokens_with_an_image, setup_worker),
        T(worker_tokens_leave_nothing, setup_worker),
        T(one_token_to_the_block, setup_small),
        cmocka_unit_test(small_blocks_are_named_at_the_start),
        cmocka_unit_test(eagle_models_hash_windows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
