/* Live batches of one stream that wait until a replay has brought what comes
 * before them. Decides what still finds room: so many batches and bytes per
 * stream, and a share of one budget over all. What finds none is dropped and
 * named (held_dropped, lost_last); the replay then has to bring it too.
 * Invariant: numbers ascend from the first to the last.
 */
#include "kv_stream.h"

#include <stdlib.h>
#include <string.h>

static bool has_room(const struct kv_stream *s, size_t bytes)
{
    const struct kv_budget *budget = s->limits.budget;

    return s->held_count < s->limits.held_batches &&
           bytes <= s->limits.held_bytes - s->held_bytes &&
           bytes <= budget->max - budget->used;
}

bool kv_held_push(struct kv_stream *s, const struct kv_batch *batch,
                  uint64_t hash)
{
    uint32_t size = s->limits.held_batches;
    void *copy = NULL;

    if (s->held == NULL)
        s->held = calloc(size, sizeof(*s->held));
    if (s->held != NULL && has_room(s, batch->bytes))
        copy = malloc(batch->bytes + 1);
    if (copy == NULL) {
        s->counts->held_dropped++;
        s->held_lost = true;
        s->lost_last = batch->seq;
        return false;
    }
    memcpy(copy, batch->payload, batch->bytes);
    struct kv_held *at = &s->held[(s->held_at + s->held_count) % size];
    at->batch = *batch;
    at->batch.payload = copy;
    at->hash = hash;
    s->held_count++;
    s->held_bytes += batch->bytes;
    s->limits.budget->used += batch->bytes;
    return true;
}

struct kv_held *kv_held_first(struct kv_stream *s)
{
    return s->held_count == 0 ? NULL : &s->held[s->held_at];
}

struct kv_held kv_held_pop(struct kv_stream *s)
{
    struct kv_held first = s->held[s->held_at];

    s->held_at = (s->held_at + 1) % s->limits.held_batches;
    s->held_count--;
    s->held_bytes -= first.batch.bytes;
    s->limits.budget->used -= first.batch.bytes;
    if (s->held_count == 0) {
        /* Most streams never replay: the ring is not kept for the next. */
        free(s->held);
        s->held = NULL;
        s->held_at = 0;
    }
    return first;
}

void kv_held_drop(struct kv_stream *s)
{
    while (s->held_count > 0) {
        struct kv_held first = kv_held_pop(s);

        free((void *)(uintptr_t)first.batch.payload);
    }
    free(s->held);
    s->held = NULL;
    s->held_lost = false;
}

int kv_held_match(const struct kv_stream *s, uint64_t seq, uint64_t hash)
{
    uint32_t look = s->held_count < KV_STREAM_HELD_LOOK ? s->held_count
                                                        : KV_STREAM_HELD_LOOK;

    for (uint32_t i = 0; i < look; i++) {
        const struct kv_held *at =
            &s->held[(s->held_at + s->held_count - 1 - i) %
                     s->limits.held_batches];

        if (at->batch.seq == seq)
            return at->hash == hash ? 1 : 0;
    }
    return -1;
}
