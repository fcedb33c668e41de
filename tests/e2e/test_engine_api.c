/* The engine's HTTP API: shapes, refusals, batches, streams, cancellation,
 * faults, and that nothing is left behind. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "engine_rig.h"

#define BODY 8192

static void start_one(struct rig *rig)
{
    struct bt_engine_config c;
    const char *adapter = "lora-a";
    rig_config(&c, "e0");
    c.adapters = &adapter;
    c.adapter_count = 1;
    rig_start(rig, &c);
}

static void stop_one(struct rig *rig)
{
    rig_wait(rig, "blocks.held", 0);
    assert_int_equal(rig_state(rig, "blocks.free"),
                     rig_state(rig, "blocks.total"));
    rig_stop(rig);
}

static void expect_status(const struct rig *rig, const char *path,
                          const char *body, long status, const char *part)
{
    struct answer a = rig_call(rig, path, body);
    if (a.status != status || strstr(a.body, part) == NULL) {
        fail_msg("%s: %ld %s", body ? body : path, a.status, a.body);
    }
    answer_free(&a);
}

static void refusals(void **state)
{
    (void)state;
    struct rig e;
    const char *c = "/v1/completions";
    const char *chat = "/v1/chat/completions";
    start_one(&e);
    expect_status(&e, c, "{", 400, "BadRequestError");
    expect_status(&e, c, "[]", 400, "error");
    expect_status(&e, c, "{\"model\":\"gpt\",\"prompt\":\"x\"}", 404,
                  "The model `gpt` does not exist.");
    expect_status(&e, c, "{\"prompt\":\"\"}", 400, "empty");
    expect_status(&e, c, "{\"prompt\":[]}", 400, "empty");
    expect_status(&e, c, "{}", 400, "prompt");
    expect_status(&e, c, "{\"prompt\":[\"a\",[1]]}", 400, "mixes");
    expect_status(&e, c, "{\"prompt\":[1,-1]}", 400, "token ids");
    expect_status(&e, c, "{\"prompt\":[1,1.5]}", 400, "token ids");
    expect_status(&e, c, "{\"prompt\":\"x\",\"max_tokens\":0}", 400,
                  "max_tokens");
    expect_status(&e, c, "{\"prompt\":\"x\",\"max_tokens\":\"1\"}", 400,
                  "max_tokens");
    expect_status(&e, c, "{\"prompt\":\"x\",\"max_tokens\":2000}", 400,
                  "maximum context length is 1024");
    expect_status(&e, c, "{\"prompt\":\"x\",\"min_tokens\":20}", 400,
                  "min_tokens");
    expect_status(&e, c, "{\"prompt\":\"x\",\"stream_options\":{}}", 400,
                  "stream_options");
    expect_status(&e, chat, "{\"messages\":[]}", 400, "messages");
    expect_status(&e, chat, "{\"messages\":[{\"content\":\"x\"}]}", 400,
                  "malformed");
    expect_status(&e, "/nowhere", NULL, 404, "Not Found");
    expect_status(&e, c, NULL, 405, "Method Not Allowed");
    expect_status(&e, c,
                  "{\"prompt\":\"x\",\"max_tokens\":1,"
                  "\"seed\":18446744073709551615}",
                  200, "choices");
    stop_one(&e);
}

static void surface(void **state)
{
    (void)state;
    struct rig e;
    start_one(&e);
    expect_status(&e, "/health", NULL, 200, "");
    expect_status(&e, "/ping", "", 200, "");
    expect_status(&e, "/version", NULL, 200, "\"version\"");
    expect_status(&e, "/v1/models", NULL, 200, "\"id\":\"lora-a\"");
    expect_status(&e, "/metrics", NULL, 200,
                  "block_size=\"16\",enable_prefix_caching=\"True\",engine="
                  "\"0\",num_gpu_blocks=\"64\"");
    expect_status(&e, "/tokenize", "{\"prompt\":\"h\\u00e9\"}", 200,
                  "{\"count\":3,\"max_model_len\":1024,\"tokens\":"
                  "[104,195,169]");
    expect_status(&e, "/tokenize",
                  "{\"messages\":[{\"role\":\"u\",\"content\":\"a\"}]}", 200,
                  "\"count\":20,");
    expect_status(&e, "/reset_prefix_cache", "", 200, "");
    stop_one(&e);
}

/* Text, ids of the same bytes, a batch and n copies: the same answers. */
static void prompts_of_all_kinds(void **state)
{
    (void)state;
    struct rig e;
    char want[17], other[17], got[64], part[128];
    start_one(&e);
    oracle_text("abc", NULL, 16, want);
    oracle_text("xyz!", NULL, 16, other);
    const char *const same[] = {"{\"prompt\":\"abc\"}",
                                "{\"prompt\":[97,98,99],\"n\":3}",
                                "{\"prompt\":[\"abc\",\"xyz!\"]}",
                                "{\"prompt\":[[97,98,99],[1]],\"n\":2}",
                                "{\"prompt\":\"abc\",\"stream\":true}"};
    for (size_t i = 0; i < 5; i++) {
        struct answer a = rig_call(&e, "/v1/completions", same[i]);
        assert_int_equal(a.status, 200);
        answer_text(&a, got, sizeof(got));
        assert_string_equal(got, want);
        answer_free(&a);
    }
    snprintf(part, sizeof(part), "{\"index\":1,\"text\":\"%s\"", other);
    expect_status(&e, "/v1/completions", same[2], 200, part);
    snprintf(part, sizeof(part), "{\"index\":1,\"text\":\"%s\"", want);
    expect_status(&e, "/v1/completions", same[3], 200, part);
    expect_status(&e, "/v1/completions", same[3], 200,
                  "\"prompt_tokens\":4,\"total_tokens\":68,"
                  "\"completion_tokens\":64");
    stop_one(&e);
}

static void chat_streams(void **state)
{
    (void)state;
    struct rig e;
    char want[33], got[64];
    const char *body =
        "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":"
        "\"hi\"}],\"max_completion_tokens\":32,\"max_tokens\":5,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
    start_one(&e);
    oracle_text("<|user|>hi\n<|assistant|>", NULL, 32, want);
    struct answer a = rig_call(&e, "/v1/chat/completions", body);
    assert_int_equal(a.status, 200);
    answer_text(&a, got, sizeof(got));
    assert_string_equal(got, want);
    assert_non_null(strstr(a.body, "\"delta\":{\"role\":\"assistant\","));
    assert_non_null(strstr(a.body, "\"choices\":[],\"usage\":{"
                                   "\"prompt_tokens\":24,"));
    assert_non_null(strstr(a.body, "\"finish_reason\":\"length\""));
    assert_string_equal(a.body + a.bytes - 14, "data: [DONE]\n\n");
    answer_free(&a);
    stop_one(&e);
}

/* The answer of one turn is part of the next prompt: its blocks are reused. */
static void answers_become_prefixes(void **state)
{
    (void)state;
    struct rig e;
    char prompt[512], body[BODY], text[65], got[128], want[65];
    start_one(&e);
    make_prompt(prompt, 100, 5);
    oracle_text(prompt, NULL, 64, text);
    body_plain(body, sizeof(body), prompt, 64);
    struct answer a = rig_call(&e, "/v1/completions", body);
    answer_free(&a);
    /* 164 tokens, 163 of them with rows: 10 blocks */
    memcpy(prompt + strlen(prompt), text, strlen(text) + 1);
    body_plain(body, sizeof(body), prompt, 64);
    a = rig_call(&e, "/v1/completions", body);
    answer_text(&a, got, sizeof(got));
    oracle_text(prompt, NULL, 64, want);
    assert_string_equal(got, want);
    assert_non_null(strstr(a.body, "\"cached_tokens\":160"));
    answer_free(&a);
    stop_one(&e);
}

static void tenants_and_adapters_share_nothing(void **state)
{
    (void)state;
    struct rig e;
    char want[17], got[64];
    const char *prompt = "the same forty-eight tokens for everybody, please";
    char body[512];
    start_one(&e);
    const char *const extra[] = {"", ",\"cache_salt\":\"t1\"",
                                 ",\"cache_salt\":\"t2\"",
                                 ",\"model\":\"lora-a\""};
    for (size_t i = 0; i < 4; i++) {
        snprintf(body, sizeof(body), "{\"prompt\":\"%s\"%s}", prompt, extra[i]);
        struct answer a = rig_call(&e, "/v1/completions", body);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, "\"cached_tokens\":0}"));
        if (i < 3) {
            oracle_text(prompt, i == 0 ? NULL : i == 1 ? "t1" : "t2", 16, want);
            answer_text(&a, got, sizeof(got));
            assert_string_equal(got, want);
        }
        answer_free(&a);
    }
    stop_one(&e);
}

/* Slow engine: a client that leaves gives its blocks back at once. */
static void disconnect_frees(void **state)
{
    (void)state;
    struct rig e;
    struct bt_engine_config c;
    char body[BODY], prompt[512];
    rig_config(&c, "e0");
    c.compute.speedup = 1;
    c.seqs_max = 2;
    rig_start(&e, &c);
    make_prompt(prompt, 200, 1);
    body_plain(body, sizeof(body), prompt, 400);
    int fds[3];
    for (int i = 0; i < 3; i++) { /* two decode, one waits */
        fds[i] = rig_open(&e, "/v1/completions", body);
    }
    rig_wait(&e, "requests.running", 2);
    rig_wait(&e, "requests.waiting", 1);
    assert_true(rig_state(&e, "blocks.held") > 0);
    for (int i = 0; i < 3; i++) {
        close(fds[i]);
    }
    rig_wait(&e, "requests.running", 0);
    rig_wait(&e, "requests.waiting", 0);
    rig_wait(&e, "totals.aborted", 3);
    stop_one(&e);
}

static void faults(void **state)
{
    (void)state;
    struct rig e;
    char body[BODY];
    start_one(&e);
    body_plain(body, sizeof(body), "some prompt that is more than a block", 8);
    const char *const set[] = {
        "{\"fault\":\"error\",\"phase\":\"before_prefill\",\"count\":1}",
        "{\"fault\":\"error\",\"phase\":\"during_prefill\",\"count\":1}",
        "{\"fault\":\"error\",\"phase\":\"after_prefill\",\"count\":1}",
        "{\"fault\":\"error\",\"phase\":\"before_decode\",\"count\":1}",
        "{\"fault\":\"error\",\"phase\":\"during_decode\",\"count\":1}",
        "{\"fault\":\"error\",\"count\":1}"};
    for (size_t i = 0; i < 6; i++) {
        rig_fault(&e, set[i]);
        expect_status(&e, "/v1/completions", body, 500, "InternalServerError");
        expect_status(&e, "/v1/completions", body, 200, "choices");
    }
    rig_fault(&e, "{\"fault\":\"refuse\",\"phase\":\"all\",\"count\":1}");
    expect_status(&e, "/health", NULL, 503, "error");
    rig_fault(&e, "{\"fault\":\"hang\",\"phase\":\"during_decode\"}");
    int fd = rig_open(&e, "/v1/completions", body);
    rig_wait(&e, "requests.hung", 1);
    assert_true(rig_state(&e, "blocks.held") > 0);
    close(fd);
    rig_wait(&e, "requests.hung", 0);
    expect_status(&e, "/admin/fault", "{\"fault\":\"dye\"}", 400, "fault");
    stop_one(&e);
}

static void dies_when_told(void **state)
{
    (void)state;
    struct rig e;
    char body[BODY];
    start_one(&e);
    body_plain(body, sizeof(body), "x", 8);
    rig_fault(&e, "{\"fault\":\"die\",\"phase\":\"during_decode\"}");
    struct answer a = rig_call(&e, "/v1/completions", body);
    assert_int_equal(a.status, 0);
    answer_free(&a);
    rig_kill(&e); /* reaps it */
}

/* A client that does not read while the whole answer is made, then reads. */
static void slow_reader(void **state)
{
    (void)state;
    enum { TOKENS = 12000 };
    static char want[TOKENS + 1], got[TOKENS + 8];
    struct rig e;
    struct bt_engine_config c;
    struct answer a = {0};
    const char *body = "{\"prompt\":\"abc\",\"max_tokens\":12000,"
                       "\"stream\":true}";
    rig_config(&c, "e0");
    c.block_count = 1024;
    c.compute.speedup = 100000;
    rig_start(&e, &c);
    int fd = rig_open(&e, "/v1/completions", body);
    const int large = 1 << 20,
              small = 65536; /* so that the engine's buffers fill up */
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    rig_wait(&e, "totals.finished", 1);
    rig_wait(&e, "blocks.held", 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof(large));
    while (rig_read(fd, &a)) {
    }
    close(fd);
    rig_parse(&a);
    assert_int_equal(a.status, 200);
    answer_text(&a, got, sizeof(got));
    oracle_text("abc", NULL, TOKENS, want);
    assert_string_equal(got, want);
    answer_free(&a);
    stop_one(&e);
}

/* ---- many at once ---- */

#define ROUNDS   300
#define PARALLEL 24

struct one {
    struct answer answer;
    int fd; /* 0: idle */
    int tokens;
    char prompt[700];
    bool cut; /* leave early */
};

static void launch(const struct rig *e, struct one *o, struct bt_rng *rng)
{
    char body[BODY];
    bool stream = bt_rng_below(rng, 2) == 0;
    memset(o, 0, sizeof(*o));
    o->cut = bt_rng_below(rng, 4) == 0;
    o->tokens = 1 + (int)bt_rng_below(rng, 60);
    make_prompt(o->prompt, 1 + bt_rng_below(rng, 600),
                (unsigned int)bt_rng_below(rng, 4));
    snprintf(body, sizeof(body),
             "{\"prompt\":\"%s\",\"max_tokens\":%d,\"stream\":%s}", o->prompt,
             o->tokens, stream ? "true" : "false");
    o->fd = rig_open(e, "/v1/completions", body);
}

static void settle(struct one *o)
{
    char got[128], want[128];
    rig_parse(&o->answer);
    if (!o->cut) {
        assert_int_equal(o->answer.status, 200);
        answer_text(&o->answer, got, sizeof(got));
        oracle_text(o->prompt, NULL, o->tokens, want);
        assert_string_equal(got, want);
    }
    answer_free(&o->answer);
    close(o->fd);
    o->fd = 0;
}

/* Read from whoever has something; an impatient client leaves at once, or with
 * its first bytes. */
static void serve(struct one *ones, int count)
{
    struct pollfd fds[PARALLEL];
    for (int i = 0; i < count; i++) {
        fds[i].fd = ones[i].fd > 0 ? ones[i].fd : -1;
        fds[i].events = POLLIN;
    }
    assert_true(poll(fds, (nfds_t)count, 30000) > 0);
    for (int i = 0; i < count; i++) {
        if (fds[i].fd >= 0 && fds[i].revents != 0 &&
            (!rig_read(ones[i].fd, &ones[i].answer) || ones[i].cut)) {
            settle(&ones[i]);
        }
    }
}

/* A pool that is too small for all: waiting, eviction, reuse and clients that
 * leave. Every answer is right and every block comes back. */
static void crowd(void **state)
{
    (void)state;
    static struct one ones[PARALLEL];
    struct rig e;
    struct bt_rng rng;
    const uint64_t seed = 99;
    int started = 0, busy = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    start_one(&e);
    do {
        busy = 0;
        for (int i = 0; i < PARALLEL; i++) {
            if (ones[i].fd == 0 && started < ROUNDS) {
                launch(&e, &ones[i], &rng);
                started++;
                if (ones[i].cut && started % 2 == 0) {
                    settle(&ones[i]); /* not even waiting for a byte */
                }
            }
            busy += ones[i].fd != 0;
        }
        if (busy > 0) {
            serve(ones, PARALLEL);
        }
    } while (busy > 0 || started < ROUNDS);
    assert_true(rig_state(&e, "totals.prefill_tokens_cached") > 0);
    stop_one(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(surface),
        cmocka_unit_test(prompts_of_all_kinds),
        cmocka_unit_test(chat_streams),
        cmocka_unit_test(answers_become_prefixes),
        cmocka_unit_test(tenants_and_adapters_share_nothing),
        cmocka_unit_test(disconnect_frees),
        cmocka_unit_test(faults),
        cmocka_unit_test(dies_when_told),
        cmocka_unit_test(slow_reader),
        cmocka_unit_test(crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
