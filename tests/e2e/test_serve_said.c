/* said.c against sse.c: streams cut anywhere and looked at in turns through one
 * borrowed reader say what each says when read in one piece by its own. */
#include "said.h"

#include "baton/base/rng.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STREAMS 3
#define ROUNDS  300
#define USAGE                                                                  \
    "{\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":3}" \
    "}"

static const char *const lines[] = {
    "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"\\u00e9\"}}]}\r\n\r\n",
    ": a comment\n",
    "data: {\"choices\":[],\"usage\":" USAGE "}\n\n",
    "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n",
    "data: {\"error\":{\"message\":\"no\"}}\n\n",
};
#define LINES (sizeof(lines) / sizeof(lines[0]))

struct stream {
    char bytes[4096];
    size_t count, at;
    struct said said;
    struct bt_sse whole;
};

static void fill(struct stream *s, struct bt_rng *rng)
{
    memset(s, 0, sizeof(*s));
    for (size_t n = 1 + bt_rng_below(rng, 12); n > 0; n--) {
        size_t last = bt_rng_below(rng, 8) == 0 ? LINES : LINES - 1;
        const char *line = lines[bt_rng_below(rng, last)];

        memcpy(s->bytes + s->count, line, strlen(line));
        s->count += strlen(line);
        if (line == lines[LINES - 1])
            break; /* nobody reads on */
    }
    s->count -= bt_rng_below(rng, 3); /* also an unfinished last line */
    bt_sse_init(&s->whole);
    bt_sse_feed(&s->whole, s->bytes, s->count);
}

static void same(struct stream *s, struct bt_sse *borrowed, unsigned round)
{
    bool complete = bt_sse_complete(&s->whole);

    if (said_complete(&s->said, borrowed) != complete ||
        s->said.events != s->whole.events ||
        s->said.token_events != s->whole.token_events ||
        s->said.completion_tokens != s->whole.completion_tokens ||
        s->said.cached_tokens != s->whole.cached_tokens ||
        s->said.done != s->whole.done || s->said.error != s->whole.error ||
        s->said.finish_error != s->whole.finish_error ||
        s->said.usage != s->whole.usage)
        fail_msg("seed 1 round %u: <%s>", round, s->bytes);
    assert_null(s->said.line);
    said_reset(&s->said);
}

static void cut_anywhere_and_in_turns(void **state)
{
    static struct stream streams[STREAMS];
    static struct bt_sse borrowed;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t left = 0;

        for (size_t i = 0; i < STREAMS; i++) {
            fill(&streams[i], &rng);
            left += streams[i].count;
        }
        while (left > 0) {
            struct stream *s = &streams[bt_rng_below(&rng, STREAMS)];
            size_t count = 1 + bt_rng_below(&rng, 40), seen = 0;

            if (count > s->count - s->at)
                count = s->count - s->at;
            assert_int_equal(
                said_feed(&s->said, &borrowed, s->bytes + s->at, count, &seen),
                BT_OK);
            s->at += count;
            left -= count;
        }
        for (size_t i = 0; i < STREAMS; i++)
            same(&streams[i], &borrowed, round);
    }
}

static void looks_no_further_than_an_error(void **state)
{
    static const char text[] = "data: {\"error\":{}}\ndata: [DONE]\n\n";
    static struct bt_sse borrowed;
    struct said said = {0};
    size_t seen = 0;

    (void)state;
    assert_int_equal(said_feed(&said, &borrowed, text, sizeof(text) - 1, &seen),
                     BT_OK);
    assert_int_equal(seen, strchr(text, '\n') + 1 - text);
    assert_true(said.error);
    assert_false(said.done);
    said_reset(&said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_anywhere_and_in_turns),
        cmocka_unit_test(looks_no_further_than_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
