/* Server-sent events: an incremental reader that only looks. Bytes go to the
 * client as they came; what is learnt here must not depend on how they were
 * cut (engine-wire.md 4.9: inside UTF-8, between CR and LF, "data:" without a
 * space, comments, one byte per segment). Pure, bounded: a data line longer
 * than BT_SSE_LINE_MAX is looked at up to there only.
 */
#ifndef BATON_ORCHESTRATOR_SSE_H
#define BATON_ORCHESTRATOR_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_SSE_LINE_MAX 8192

struct bt_sse {
    char line[BT_SSE_LINE_MAX]; /* current line, without its end */
    size_t used;
    bool overlong, after_cr;
    /* what has been seen so far */
    uint64_t events;       /* data events, [DONE] not counted */
    uint64_t token_events; /* events with a non-empty text or delta content,
                              reasoning, or tool call */
    bool done;             /* "data: [DONE]" */
    bool finish_reason;    /* some choice had a non-null finish_reason */
    bool finish_error;     /* finish_reason "error" */
    bool error;            /* an event with an "error" member */
    uint64_t prompt_tokens, completion_tokens, cached_tokens; /* usage */
    bool usage;
};

void bt_sse_init(struct bt_sse *sse);
/* Look at the next bytes. */
void bt_sse_feed(struct bt_sse *sse, const char *bytes, size_t count);
/* The stream ended cleanly: consider a last line without its newline. True
 * when the answer is complete: [DONE] or a finish_reason was seen, no error. */
bool bt_sse_complete(struct bt_sse *sse);

#endif
