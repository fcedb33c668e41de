/* Parks the state of a struct bt_sse between two pieces of its stream. Decides
 * nothing about events; that is sse.c's.
 *
 * Invariant: line is NULL exactly when no line is under way. A zeroed state is
 * what bt_sse_init makes.
 */
#include "said.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct bt_sse, line) == 0 &&
                   offsetof(struct bt_sse, used) == BT_SSE_LINE_MAX,
               "the line, then all that is parked");

void said_reset(struct said *said)
{
    free(said->line);
    *said = (struct said){0};
}

static void take_out(const struct said *said, struct bt_sse *sse)
{
    memcpy((unsigned char *)sse + offsetof(struct bt_sse, used), said->state,
           sizeof(said->state));
    if (said->line != NULL)
        memcpy(sse->line, said->line, sse->used);
}

static enum bt_status park(struct said *said, const struct bt_sse *sse)
{
    char *line = NULL;

    memcpy(said->state,
           (const unsigned char *)sse + offsetof(struct bt_sse, used),
           sizeof(said->state));
    said->events = sse->events;
    said->token_events = sse->token_events;
    said->completion_tokens = sse->completion_tokens;
    said->cached_tokens = sse->cached_tokens;
    said->done = sse->done;
    said->error = sse->error;
    said->finish_error = sse->finish_error;
    said->usage = sse->usage;
    if (sse->used > 0)
        line = malloc(sse->used);
    free(said->line);
    said->line = line;
    if (line == NULL)
        return sse->used > 0 ? BT_NO_MEMORY : BT_OK;
    memcpy(line, sse->line, sse->used);
    return BT_OK;
}

enum bt_status said_feed(struct said *said, struct bt_sse *borrowed,
                         const char *bytes, size_t count, size_t *seen_out)
{
    size_t at = 0;

    take_out(said, borrowed);
    while (at < count && !borrowed->error && !borrowed->finish_error) {
        const char *nl = memchr(bytes + at, '\n', count - at);
        size_t n = nl == NULL ? count - at : (size_t)(nl - bytes) + 1 - at;

        bt_sse_feed(borrowed, bytes + at, n);
        at += n;
    }
    *seen_out = at;
    return park(said, borrowed);
}

bool said_complete(struct said *said, struct bt_sse *borrowed)
{
    bool complete;

    take_out(said, borrowed);
    complete = bt_sse_complete(borrowed);
    (void)park(said, borrowed); /* no line is left: nothing can fail */
    return complete;
}
