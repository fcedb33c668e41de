/* Reader of one streamed completion: joins the texts of its events. Private to
 * bench/client. A second reading of the SSE format, apart from the server's,
 * so that the two cannot be wrong in the same way. */
#ifndef BENCH_CLIENT_ANSWER_H
#define BENCH_CLIENT_ANSWER_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANSWER_LINE_MAX 8192
#define ANSWER_TEXT_MAX 65536

struct answer {
    char line[ANSWER_LINE_MAX];
    size_t used;
    bool overlong; /* a line was longer than ANSWER_LINE_MAX */
    char *text;    /* joined texts, malloc'd */
    size_t text_bytes, text_size;
    bool text_overflow;
    uint32_t token_events;       /* events with a non-empty text */
    bool done, finished, failed; /* [DONE]; finish_reason; error event */
    bool usage;
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
};

void answer_init(struct answer *a);
void answer_fini(struct answer *a);
/* BT_NO_MEMORY, or BT_INVALID when an event is not JSON. */
enum bt_status answer_feed(struct answer *a, const char *bytes, size_t count);
/* The stream ended whole: [DONE] and a finish_reason came, nothing failed. */
bool answer_is_whole(const struct answer *a);

#endif
