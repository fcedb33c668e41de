/* SSE reader: what it has learnt is the same however the bytes were cut. */
#include "baton/orchestrator/sse.h"
#include "fuzz.h"

#include <string.h>

static const char *const seeds[] = {
    ("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n"
     "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,"
     "\"prompt_tokens_details\":{\"cached_tokens\":1}}}\r\n\r\ndata: "
     "[DONE]\n\n"),
    ("data:{\"choices\":[{\"delta\":{\"content\":\"a\",\"tool_calls\":[{}]}}]}"
     "\r\r: c\rdata: {\"error\":{\"message\":\"m\"}}\r\n"),
    "data: {\"choices\":[{\"finish_reason\":\"error\"}]}\ndata: [DONE] ",
};

size_t fuzz_seed(size_t index, uint8_t *out, size_t max)
{
    if (index >= sizeof seeds / sizeof seeds[0] || strlen(seeds[index]) > max)
        return 0;
    memcpy(out, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}

static void same(struct bt_sse *a, struct bt_sse *b)
{
    FUZZ_CHECK(bt_sse_complete(a) == bt_sse_complete(b));
    FUZZ_CHECK(a->events == b->events && a->token_events == b->token_events);
    FUZZ_CHECK(a->done == b->done && a->finish_reason == b->finish_reason);
    FUZZ_CHECK(a->finish_error == b->finish_error && a->error == b->error);
    FUZZ_CHECK(a->usage == b->usage && a->prompt_tokens == b->prompt_tokens);
    FUZZ_CHECK(a->completion_tokens == b->completion_tokens &&
               a->cached_tokens == b->cached_tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bt_sse whole, cut;
    static const char filler[BT_SSE_LINE_MAX - 64];
    const char *text = (const char *)data;
    for (int padded = 0; padded < 2; padded++) {
        size_t pad = padded ? sizeof filler : 0; /* near the line limit */
        bt_sse_init(&whole);
        bt_sse_feed(&whole, filler, pad);
        bt_sse_feed(&whole, text, size);
        bt_sse_init(&cut);
        bt_sse_feed(&cut, filler, pad);
        for (size_t i = 0; i < size; i++)
            bt_sse_feed(&cut, text + i, 1);
        same(&whole, &cut);
        bt_sse_init(&cut);
        bt_sse_feed(&cut, filler, pad);
        for (size_t at = 0, n; at < size; at += n) {
            n = 1 + (data[at] & 15u);
            n = n < size - at ? n : size - at;
            bt_sse_feed(&cut, text + at, n);
        }
        same(&whole, &cut);
    }
    return 0;
}
