/* What the SSE reader learns must not depend on the cut: every sample is fed
 * whole, at every split point, at pairs of split points and byte by byte
 * (engine-wire.md 4.9; field-failures.md A08, A09, A11). */
#include "baton/orchestrator/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct want {
    uint64_t events, token_events;
    bool done, finish, finish_error, error, usage, complete;
    uint64_t prompt, completion, cached;
};

#define D(json) "data: " json "\n\n"
#define TOKEN   D("{\"choices\":[{\"index\":0,\"text\":\"\xe5\x8c\x97\"}]}")
#define LAST    D("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}")
#define USAGE                                                                  \
    D("{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3" \
      ",\"prompt_tokens_details\":{\"cached_tokens\":5}}}")

static const struct {
    const char *name, *stream;
    struct want want;
} samples[] = {
    {"nothing", "", {0}},
    {"plain",
     TOKEN TOKEN LAST USAGE D("[DONE]"),
     {4, 2, true, true, false, false, true, true, 7, 3, 5}},
    {"crlf",
     "data: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\ndata: [DONE]\r\n\r\n",
     {1, 1, true, false, false, false, false, true, 0, 0, 0}},
    {"cr alone",
     "data: {\"choices\":[{\"text\":\"a\"}]}\r\rdata: [DONE]\r\r",
     {1, 1, true, false, false, false, false, true, 0, 0, 0}},
    {"no space, comments, other fields",
     ": keep-alive\n\nevent: x\nid: 1\ndata:{\"choices\":[{\"text\":\"a\"}]}\n"
     "\n:\nretry: 3\n\ndata:[DONE]\n\n",
     {1, 1, true, false, false, false, false, true, 0, 0, 0}},
    {"last line without its end",
     TOKEN "data: [DONE]",
     {1, 1, true, false, false, false, false, true, 0, 0, 0}},
    {"role only, empty delta, no choices, empty text",
     D("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}")
         D("{\"choices\":[{\"delta\":{}}]}") D("{\"choices\":[]}")
             D("{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}")
                 D("{\"choices\":[{\"delta\":{\"content\":null,"
                   "\"tool_calls\":[]}}]}"),
     {5, 0, false, false, false, false, false, false, 0, 0, 0}},
    {"deltas",
     D("{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}")
         D("{\"choices\":[{\"delta\":{\"reasoning\":\"a\"}}]}")
             D("{\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}]}")
                 D("{\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}")
                     D("{\"choices\":[{\"text\":\"\"},{\"text\":\"b\"}]}"),
     {5, 5, false, false, false, false, false, false, 0, 0, 0}},
    {"cut without an end",
     TOKEN TOKEN,
     {2, 2, false, false, false, false, false, false, 0, 0, 0}},
    {"cut after finish_reason",
     TOKEN LAST,
     {2, 1, false, true, false, false, false, true, 0, 0, 0}},
    {"error and then done",
     TOKEN D("{\"error\":{\"message\":\"x\"}}") D("[DONE]"),
     {2, 1, true, false, false, true, false, false, 0, 0, 0}},
    {"error as a string",
     D("{\"error\":\"x\"}"),
     {1, 0, false, false, false, true, false, false, 0, 0, 0}},
    {"error null is none",
     D("{\"error\":null,\"choices\":[]}") D("[DONE]"),
     {1, 0, true, false, false, false, false, true, 0, 0, 0}},
    {"object error",
     D("{\"object\":\"error\",\"message\":\"x\"}"),
     {1, 0, false, false, false, true, false, false, 0, 0, 0}},
    {"finish_reason error",
     D("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"error\"}]}")
         D("[DONE]"),
     {1, 0, true, true, true, false, false, false, 0, 0, 0}},
    {"no JSON",
     D("hello") D("{\"choices\":[") D("[1]") D("[DONE] "),
     {3, 0, true, false, false, false, false, true, 0, 0, 0}},
    {"empty data", "data:\n\ndata: \n\ndata\n\n", {0}},
    {"done inside a text",
     D("{\"choices\":[{\"text\":\"data: [DONE]\"}]}"),
     {1, 1, false, false, false, false, false, false, 0, 0, 0}},
    {"usage in each",
     D("{\"choices\":[{\"text\":\"a\"}],\"usage\":{\"completion_tokens\":1}}")
         D("{\"choices\":[{\"text\":\"a\"}],\"usage\":null}")
             D("{\"choices\":[{\"text\":\"a\"}],\"usage\":"
               "{\"completion_tokens\":2,\"prompt_tokens_details\":null}}"),
     {3, 3, false, false, false, false, true, false, 0, 2, 0}},
};

static void check(const char *name, struct bt_sse *s, const struct want *w)
{
    bool complete = bt_sse_complete(s);
    if (s->events != w->events || s->token_events != w->token_events ||
        s->done != w->done || s->finish_reason != w->finish ||
        s->finish_error != w->finish_error || s->error != w->error ||
        s->usage != w->usage || s->prompt_tokens != w->prompt ||
        s->completion_tokens != w->completion ||
        s->cached_tokens != w->cached || complete != w->complete)
        fail_msg("%s: events %lu tokens %lu done %d finish %d/%d error %d "
                 "usage %d %lu %lu %lu complete %d",
                 name, s->events, s->token_events, s->done, s->finish_reason,
                 s->finish_error, s->error, s->usage, s->prompt_tokens,
                 s->completion_tokens, s->cached_tokens, complete);
}

static void same_at_every_cut(void **state)
{
    static struct bt_sse s;
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        const char *text = samples[i].stream;
        size_t n = strlen(text);
        for (size_t a = 0; a <= n; a++) {
            bt_sse_init(&s);
            bt_sse_feed(&s, text, a);
            bt_sse_feed(&s, text + a, n - a);
            check(samples[i].name, &s, &samples[i].want);
        }
        for (size_t step = 1; step < 9; step++) {
            bt_sse_init(&s);
            for (size_t at = 0; at < n; at += step)
                bt_sse_feed(&s, text + at, n - at < step ? n - at : step);
            check(samples[i].name, &s, &samples[i].want);
        }
    }
}

/* A data line of `bytes` bytes in all, starting with head, ending with tail. */
static char *long_line(const char *head, const char *tail, size_t bytes)
{
    char *text = malloc(bytes + 2);
    size_t h = strlen(head), t = strlen(tail);
    assert_non_null(text);
    memset(text, 'x', bytes);
    memcpy(text, head, h);
    memcpy(text + bytes - t, tail, t);
    memcpy(text + bytes, "\n", 2);
    return text;
}

static void feed_both_ways(const char *text, const struct want *w)
{
    static struct bt_sse s;
    size_t n = strlen(text);
    bt_sse_init(&s);
    bt_sse_feed(&s, text, n);
    check("whole", &s, w);
    bt_sse_init(&s);
    for (size_t i = 0; i < n; i++)
        bt_sse_feed(&s, text + i, 1);
    check("bytes", &s, w);
}

static void long_lines_are_bounded(void **state)
{
    static const char head[] = "data: {\"choices\":[{\"text\":\"";
    static const char tail[] = "\",\"finish_reason\":\"stop\"}]}";
    const struct want fits = {
        .events = 1, .token_events = 1, .finish = true, .complete = true};
    const struct want over = {.events = 1, .token_events = 1};
    const struct want error = {.events = 1, .error = true};
    const struct want end = {.events = 1, .finish = true, .complete = true};
    (void)state;
    char *text = long_line(head, tail, BT_SSE_LINE_MAX);
    feed_both_ways(text, &fits);
    free(text);
    /* one byte over: only the last bracket is out of sight */
    text = long_line(head, tail, BT_SSE_LINE_MAX + 1);
    feed_both_ways(text, &fits);
    free(text);
    text = long_line(head, tail, BT_SSE_LINE_MAX + 3);
    feed_both_ways(text, &over);
    free(text);
    text = long_line(head, tail, 1 << 20);
    feed_both_ways(text, &over);
    free(text);
    text = long_line("data: {\"error\":{\"message\":\"", "\"}}", 1 << 16);
    feed_both_ways(text, &error);
    free(text);
    text = long_line("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":"
                     "\"stop\"}],\"kv_transfer_params\":\"",
                     "\"}", 1 << 16);
    feed_both_ways(text, &end);
    free(text);
    text = long_line(": ", "", 1 << 16);
    feed_both_ways(text, &(struct want){0});
    free(text);
}

static void a_line_after_a_long_one_is_read(void **state)
{
    static struct bt_sse s;
    (void)state;
    char *text = long_line("data: {", "}", 20000);
    bt_sse_init(&s);
    bt_sse_feed(&s, text, strlen(text));
    bt_sse_feed(&s, "data: [DONE]\n", 13);
    assert_true(s.done);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_at_every_cut),
        cmocka_unit_test(long_lines_are_bounded),
        cmocka_unit_test(a_line_after_a_long_one_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
