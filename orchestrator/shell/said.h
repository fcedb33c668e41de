/* What a stream of events has said, in little memory: struct bt_sse has 8 KiB
 * for the current line, which between two pieces of a stream is nearly always
 * empty. All streams borrow one struct bt_sse while a piece is looked at.
 */
#ifndef BATON_SHELL_SAID_H
#define BATON_SHELL_SAID_H

#include "baton/base/status.h"
#include "baton/orchestrator/sse.h"

struct said {
    /* copies of the members of that name */
    uint64_t events, token_events, completion_tokens, cached_tokens;
    bool done, error, finish_error, usage;
    char *line; /* copy of an unfinished line or NULL; owned */
    unsigned char state[sizeof(struct bt_sse) - offsetof(struct bt_sse, used)];
};

/* Zeroed memory is a valid, empty one. */
void said_reset(struct said *said); /* empty, nothing owned */
/* Look at the next bytes, but not beyond the line that shows an error; how far
 * in seen_out. BT_NO_MEMORY: an unfinished line could not be kept; the stream
 * cannot be followed further. */
enum bt_status said_feed(struct said *said, struct bt_sse *borrowed,
                         const char *bytes, size_t count, size_t *seen_out);
/* The end of the stream: bt_sse_complete. */
bool said_complete(struct said *said, struct bt_sse *borrowed);

#endif
