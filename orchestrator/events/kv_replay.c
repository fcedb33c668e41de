/* Sequence rules of one event stream, the replay side. Decides when an engine
 * is asked, what of its dump is applied, when an attempt and when the whole
 * replay is over, and what is left then. A dump may lose batches anywhere
 * behind its first, and its end mark (engine-wire.md 1.9).
 * Invariants: at most one request in flight; a dump is applied only as far as
 * it is without a hole, then it is asked for again from there, with one batch
 * of overlap that proves the process.
 */
#include "kv_stream_priv.h"

#include <stdlib.h>

bool kv_replay_active(const struct kv_stream *s)
{
    return s->phase == KV_WAITING || s->phase == KV_ASKED;
}

bool kv_replay_possible(const struct kv_stream *s)
{
    return s->has_replay && s->phase == KV_IDLE && !s->mixed;
}

static bool has_overlap(const struct kv_stream *s)
{
    return s->started && !s->fresh && s->next > 0;
}

static void send_request(struct kv_stream *s, int64_t now_ns)
{
    s->dump_any = s->hole_in_dump = false;
    s->next_at_ask = s->started ? s->next : 0;
    s->heard_ns = now_ns;
    s->ops.ask(s->ops.arg, has_overlap(s) ? s->next - 1 : 0);
}

void kv_stream_granted(struct kv_stream *s, int64_t now_ns)
{
    if (s->phase != KV_WAITING)
        return;
    s->phase = KV_ASKED;
    s->granted_ns = now_ns;
    send_request(s, now_ns);
}

void kv_replay_begin(struct kv_stream *s, int64_t now_ns,
                     enum bt_stream_cause cause)
{
    s->phase = KV_WAITING;
    s->attempts = 0;
    s->sync_cause = cause;
    s->retry = false;
    kv_settle(s);
    if (s->ops.want(s->ops.arg))
        kv_stream_granted(s, now_ns);
}

void kv_replay_abandon(struct kv_stream *s)
{
    if (kv_replay_active(s))
        s->ops.done(s->ops.arg);
    s->phase = KV_IDLE;
    s->fresh = s->prove = false;
}

void kv_replay_prove(struct kv_stream *s, int64_t now_ns,
                     enum bt_stream_cause cause)
{
    if (!s->has_replay || s->mixed)
        return;
    s->fresh = false;
    s->prove = s->next > 0;
    if (!kv_replay_active(s)) {
        kv_replay_begin(s, now_ns, cause);
        return;
    }
    s->sync_cause = cause;
    if (s->phase == KV_ASKED)
        send_request(s, now_ns);
}

bool kv_stream_probe(struct kv_stream *s, int64_t now_ns,
                     enum bt_stream_cause cause)
{
    if (!kv_replay_possible(s) || !s->started || s->next == 0)
        return false;
    kv_replay_prove(s, now_ns, cause);
    return true;
}

enum bt_status kv_stream_resync(struct kv_stream *s, int64_t now_ns)
{
    if (!s->has_replay)
        return BT_INVALID;
    kv_replay_abandon(s);
    kv_held_drop(s);
    s->mixed = false;
    s->fresh = s->started;
    kv_replay_begin(s, now_ns, BT_CAUSE_FIRST_CONTACT);
    return BT_OK;
}

/* ---- its end ---- */

static bool is_stale(const struct kv_stream *s, const struct kv_held *h)
{
    return h->batch.seq >= s->next && kv_is_older(s, &h->batch);
}

/* Apply what was held. force: over holes, which are named. True: all. */
static bool drain(struct kv_stream *s, bool force, enum bt_stream_cause cause)
{
    const struct kv_held *h;

    while ((h = kv_held_first(s)) != NULL) {
        struct kv_held own;
        bool stale = is_stale(s, h); /* of the life before */

        if (!s->started)
            kv_start(s, h->batch.seq);
        if (h->batch.seq > s->next && !stale) {
            if (!force)
                return false;
            kv_set_hole(s, cause);
            s->next = h->batch.seq;
        }
        own = kv_held_pop(s);
        if (!stale && own.batch.seq == s->next)
            kv_apply(s, &own.batch, own.hash);
        else
            s->counts->duplicates++;
        free((void *)(uintptr_t)own.batch.payload);
    }
    return true;
}

/* Dropped for want of room, and no dump has brought it yet. */
static bool still_lost(const struct kv_stream *s)
{
    return s->held_lost && (!s->started || s->lost_last >= s->next);
}

static void complete(struct kv_stream *s)
{
    if (s->hole || !s->from_zero)
        s->counts->replays_partial++;
    else
        s->counts->replays_complete++;
    s->phase = KV_IDLE;
    s->held_lost = s->prove = s->unproven = false;
    s->exact_cause = s->resumed ? BT_CAUSE_RESUMED : BT_CAUSE_REPLAYED;
    s->resumed = false;
    s->ops.done(s->ops.arg);
    kv_settle(s);
}

static void fail(struct kv_stream *s, int64_t now_ns)
{
    enum bt_stream_cause cause =
        still_lost(s) ? BT_CAUSE_BUFFER_FULL : BT_CAUSE_REPLAY_FAILED;

    s->counts->replays_failed++;
    if (s->unproven)
        kv_forget(s);
    if (!s->fresh) {
        if (s->started && (s->hole_in_dump || s->prove))
            kv_set_hole(s, cause);
        drain(s, true, cause);
        if (s->started && still_lost(s)) {
            kv_set_hole(s, cause);
            s->next = s->lost_last + 1;
        }
    }
    s->held_lost = s->fresh = s->prove = false;
    s->retry = true;
    s->phase = KV_COOLING;
    s->cool_until_ns = now_ns + s->limits.cooldown_ns;
    s->ops.done(s->ops.arg);
    kv_settle(s);
}

/* The attempt did not bring everything. */
static void again(struct kv_stream *s, int64_t now_ns)
{
    bool progress = s->started && s->next > s->next_at_ask;

    s->attempts = progress ? 0 : s->attempts + 1;
    if (s->attempts < KV_STREAM_ATTEMPTS)
        send_request(s, now_ns);
    else
        fail(s, now_ns);
}

/* What we know is of another process: begin with its first batch. */
static void other_life(struct kv_stream *s, int64_t now_ns)
{
    kv_forget(s);
    s->sync_cause = BT_CAUSE_RESTART;
    s->attempts = 0;
    kv_settle(s);
    send_request(s, now_ns);
}

void kv_stream_replay_end(struct kv_stream *s, int64_t now_ns)
{
    if (s->phase != KV_ASKED)
        return;
    if (s->fresh) {
        /* It has nothing to tell, whatever we believed. */
        kv_replay_abandon(s);
        kv_forget(s);
        kv_settle(s);
        return;
    }
    if (s->prove && !s->dump_any) {
        other_life(s, now_ns);
        return;
    }
    if (!s->started && s->held_count == 0 && !s->held_lost)
        kv_start(s, 0); /* it has said nothing yet: exact from the start */
    if ((s->dump_any || !has_overlap(s) || s->held_count == 0) &&
        !s->hole_in_dump && drain(s, false, BT_CAUSE_NONE) && !still_lost(s))
        complete(s);
    else
        again(s, now_ns);
}

/* Nothing came for the time allowed. A dump that met the live batches, or
 * whose overlap is all there is, has only lost its end mark. */
static void silent(struct kv_stream *s, int64_t now_ns)
{
    bool met = s->held_count > 0;
    bool last_try =
        s->next == s->next_at_ask && s->attempts + 1 >= KV_STREAM_ATTEMPTS;

    if (s->dump_any && !s->hole_in_dump && drain(s, false, BT_CAUSE_NONE) &&
        !still_lost(s) && (met || last_try))
        complete(s);
    else
        again(s, now_ns);
}

int64_t kv_stream_deadline(const struct kv_stream *s)
{
    switch (s->phase) {
    case KV_IDLE:
    case KV_WAITING:
        return 0;
    case KV_ASKED: {
        int64_t silence = s->heard_ns + s->limits.silence_ns;
        int64_t total = s->granted_ns + s->limits.replay_ns;

        return silence < total ? silence : total;
    }
    case KV_COOLING:
        return s->cool_until_ns;
    }
    return 0;
}

static void cooled(struct kv_stream *s, int64_t now_ns)
{
    s->phase = KV_IDLE;
    if (!s->retry || (s->started && s->from_zero && !s->hole) || s->mixed) {
        kv_settle(s);
        return;
    }
    s->fresh = s->started;
    kv_replay_begin(s, now_ns, BT_CAUSE_REPLAY_FAILED);
}

void kv_stream_tick(struct kv_stream *s, int64_t now_ns)
{
    if (kv_stream_deadline(s) == 0 || now_ns < kv_stream_deadline(s))
        return;
    if (s->phase == KV_COOLING)
        cooled(s, now_ns);
    else if (now_ns >= s->granted_ns + s->limits.replay_ns)
        fail(s, now_ns);
    else
        silent(s, now_ns);
}

/* ---- its batches ---- */

/* One batch of overlap proves that the same process speaks. True: it does not,
 * and all begins anew. */
static bool check_overlap(struct kv_stream *s, int64_t now_ns,
                          const struct kv_batch *batch, uint64_t hash)
{
    enum kv_match match = batch->seq < s->next
                              ? kv_recent_match(s, batch->seq, hash)
                              : KV_MATCH_UNKNOWN;
    bool first = !s->dump_any;

    if (match == KV_MATCH_SAME) {
        s->prove = s->unproven = false;
        return false;
    }
    if (match == KV_MATCH_OTHER || s->prove ||
        (first && kv_is_older(s, batch))) {
        other_life(s, now_ns);
        return true;
    }
    return false;
}

void kv_stream_replayed(struct kv_stream *s, int64_t now_ns,
                        const struct kv_batch *batch)
{
    uint64_t hash;
    bool first;

    if (s->phase != KV_ASKED)
        return;
    s->heard_ns = now_ns;
    if (s->fresh) {
        kv_forget(s);
        kv_settle(s);
    }
    hash = kv_payload_hash(batch);
    if (s->started && check_overlap(s, now_ns, batch, hash))
        return;
    first = !s->dump_any;
    s->dump_any = true;
    if (!s->started)
        kv_start(s, batch->seq);
    if (batch->seq < s->next || s->hole_in_dump)
        return;
    if (batch->seq > s->next) {
        if (!first) {
            s->hole_in_dump = true;
            return;
        }
        /* The buffer does not reach back far enough: lost for good. */
        kv_set_hole(s, BT_CAUSE_REPLAY_SHORT);
    }
    kv_apply(s, batch, hash);
}
