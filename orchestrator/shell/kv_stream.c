/* Sequence rules of one event stream. Decides what is applied, in which
 * order, when to ask for a replay and what the stream is worth; leaves
 * decoding, sockets and timers to event_plane.c.
 * Invariants: batches are applied in ascending order without repeats; while a
 * replay runs live batches are held, within limits, and never applied early.
 */
#include "kv_stream.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum bt_status kv_stream_init(struct kv_stream *s,
                              const struct kv_stream_ops *ops, bool has_replay)
{
    memset(s, 0, sizeof(*s));
    s->ops = *ops;
    s->has_replay = has_replay;
    s->held = calloc(KV_STREAM_BUFFER_MAX, sizeof(*s->held));
    return s->held == NULL ? BT_NO_MEMORY : BT_OK;
}

static void drop_held(struct kv_stream *s)
{
    for (size_t i = 0; i < s->held_count; i++)
        free(s->held[i].payload);
    s->held_count = 0;
    s->held_bytes = 0;
}

void kv_stream_fini(struct kv_stream *s)
{
    drop_held(s);
    free(s->held);
    s->held = NULL;
}

static void move_to(struct kv_stream *s, enum bt_stream_state state)
{
    if (s->state == state)
        return;
    s->state = state;
    s->ops.state(s->ops.arg, state);
}

/* What the stream is worth when it is not being read back. */
static void settle(struct kv_stream *s)
{
    if (!s->started)
        move_to(s, BT_STREAM_ABSENT);
    else if (s->hole)
        move_to(s, BT_STREAM_DEGRADED);
    else
        move_to(s, s->from_zero ? BT_STREAM_EXACT : BT_STREAM_PARTIAL);
}

static void apply(struct kv_stream *s, uint64_t seq, const void *payload,
                  size_t bytes)
{
    size_t i = seq % KV_STREAM_RECENT;

    s->recent[i].seq = seq;
    s->recent[i].hash = XXH3_64bits(payload, bytes);
    s->recent[i].used = true;
    s->next = seq + 1;
    s->counts.batches++;
    s->ops.apply(s->ops.arg, payload, bytes);
}

enum match { MATCH_UNKNOWN, MATCH_SAME, MATCH_OTHER };

static enum match recent_match(const struct kv_stream *s, uint64_t seq,
                               const void *payload, size_t bytes)
{
    size_t i = seq % KV_STREAM_RECENT;

    if (!s->recent[i].used || s->recent[i].seq != seq)
        return MATCH_UNKNOWN;
    return s->recent[i].hash == XXH3_64bits(payload, bytes) ? MATCH_SAME
                                                            : MATCH_OTHER;
}

static void forget(struct kv_stream *s)
{
    s->counts.resets += s->started ? 1 : 0;
    s->started = s->from_zero = s->hole = s->replaying = false;
    s->attempts = 0;
    memset(s->recent, 0, sizeof(s->recent));
    drop_held(s);
    s->ops.forget(s->ops.arg);
}

static void ask(struct kv_stream *s, uint64_t from)
{
    s->replaying = true;
    s->hole_in_dump = false;
    s->wanted = from;
    s->next_at_ask = s->started ? s->next : 0;
    move_to(s, BT_STREAM_SYNCING);
    s->ops.ask_replay(s->ops.arg, from);
}

static void hold(struct kv_stream *s, uint64_t seq, const void *payload,
                 size_t bytes)
{
    void *copy;

    if (s->held_count == KV_STREAM_BUFFER_MAX ||
        bytes > KV_STREAM_BUFFER_BYTES - s->held_bytes ||
        (copy = malloc(bytes + 1)) == NULL) {
        s->counts.dropped++;
        return;
    }
    memcpy(copy, payload, bytes);
    s->held[s->held_count++] =
        (struct kv_stream_held){.seq = seq, .payload = copy, .bytes = bytes};
    s->held_bytes += bytes;
}

void kv_stream_begin(struct kv_stream *s, bool restarted)
{
    if (restarted)
        forget(s);
    else if (s->state == BT_STREAM_EXACT || s->replaying)
        return;
    if (s->has_replay)
        ask(s, s->started && s->next > 0 ? s->next - 1 : 0);
}

static void first(struct kv_stream *s, uint64_t seq, const void *payload,
                  size_t bytes)
{
    if (seq > 0 && s->has_replay) {
        hold(s, seq, payload, bytes);
        ask(s, 0);
        return;
    }
    s->started = true;
    s->from_zero = seq == 0;
    apply(s, seq, payload, bytes);
    settle(s);
}

static void past(struct kv_stream *s, uint64_t seq, const void *payload,
                 size_t bytes)
{
    if (recent_match(s, seq, payload, bytes) == MATCH_SAME) {
        s->counts.duplicates++;
        return;
    }
    /* The numbers went back: another process speaks. */
    forget(s);
    first(s, seq, payload, bytes);
}

void kv_stream_live(struct kv_stream *s, uint64_t seq, const void *payload,
                    size_t bytes)
{
    if (s->replaying) {
        hold(s, seq, payload, bytes);
        return;
    }
    if (!s->started) {
        first(s, seq, payload, bytes);
    } else if (seq == s->next) {
        apply(s, seq, payload, bytes);
    } else if (seq < s->next) {
        past(s, seq, payload, bytes);
    } else {
        s->counts.gaps++;
        s->counts.missing += seq - s->next;
        if (s->has_replay) {
            hold(s, seq, payload, bytes);
            ask(s, s->next > 0 ? s->next - 1 : 0);
            return;
        }
        s->hole = true;
        apply(s, seq, payload, bytes);
        settle(s);
    }
}

void kv_stream_replayed(struct kv_stream *s, uint64_t seq, const void *payload,
                        size_t bytes)
{
    if (!s->replaying)
        return;
    if (!s->started) {
        s->started = true;
        s->from_zero = seq == 0;
        apply(s, seq, payload, bytes);
        return;
    }
    if (seq < s->next) {
        /* One batch of overlap proves that the same process speaks. */
        if (recent_match(s, seq, payload, bytes) == MATCH_OTHER) {
            forget(s);
            ask(s, 0);
        }
        return;
    }
    if (seq == s->next && !s->hole_in_dump) {
        apply(s, seq, payload, bytes);
        return;
    }
    if (seq > s->next && s->next == s->next_at_ask && !s->hole_in_dump &&
        seq > s->wanted + 1) {
        /* The buffer does not reach back far enough: lost for good. */
        s->hole = true;
        apply(s, seq, payload, bytes);
        return;
    }
    s->hole_in_dump = true; /* ask again from the hole, see replay_end */
}

/* Apply what was held; false: there is still a hole before it. */
static bool drain(struct kv_stream *s, bool force)
{
    size_t i;

    for (i = 0; i < s->held_count; i++) {
        struct kv_stream_held *h = &s->held[i];

        if (!s->started) {
            s->started = true;
            s->from_zero = h->seq == 0;
            s->next = h->seq;
        }
        if (h->seq > s->next) {
            if (!force)
                break;
            s->hole = true;
            s->next = h->seq;
        }
        if (h->seq == s->next)
            apply(s, h->seq, h->payload, h->bytes);
        free(h->payload);
        s->held_bytes -= h->bytes;
    }
    memmove(s->held, s->held + i, (s->held_count - i) * sizeof(*s->held));
    s->held_count -= i;
    return s->held_count == 0;
}

void kv_stream_replay_end(struct kv_stream *s)
{
    bool progress = s->started && s->next > s->next_at_ask;
    bool whole;

    if (!s->replaying)
        return;
    if (!s->started && s->held_count == 0) {
        /* An engine that has said nothing yet: exact from the start. */
        s->started = s->from_zero = true;
        s->next = 0;
    }
    whole = !s->hole_in_dump && drain(s, false);
    s->attempts = progress ? 0 : s->attempts + 1;
    if (!whole && s->attempts < KV_STREAM_ATTEMPTS) {
        ask(s, s->started ? s->next : 0);
        return;
    }
    drain(s, true);
    s->hole = s->hole || s->hole_in_dump;
    s->replaying = false;
    s->attempts = 0;
    if (whole && !s->hole)
        s->counts.replays_complete++;
    else
        s->counts.replays_partial++;
    settle(s);
}

void kv_stream_replay_silent(struct kv_stream *s)
{
    bool progress = s->started && s->next > s->next_at_ask;

    if (!s->replaying)
        return;
    s->attempts = progress ? 0 : s->attempts + 1;
    if (s->attempts < KV_STREAM_ATTEMPTS) {
        ask(s, s->started && s->next > 0 ? s->next - 1 : 0);
        return;
    }
    s->counts.replays_timeout++;
    s->replaying = false;
    s->attempts = 0;
    drain(s, true);
    settle(s);
}
