/* Sequence rules of one event stream, the live side. Decides what is applied,
 * held or dropped, when another life speaks, and what the stream is worth;
 * leaves asking and what a dump brings to kv_replay.c, the held batches to
 * kv_held.c, and decoding, sockets and timers to others.
 * Invariants: batches are applied in ascending order without repeats; while a
 * replay runs live batches are held, within limits, and never applied early.
 */
#include "kv_stream_priv.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void kv_stream_init(struct kv_stream *s, const struct kv_stream_ops *ops,
                    const struct kv_stream_limits *limits, bool has_replay,
                    struct bt_stream_counts *counts)
{
    memset(s, 0, sizeof(*s));
    s->ops = *ops;
    s->limits = *limits;
    s->has_replay = has_replay;
    s->counts = counts;
    s->state = BT_STREAM_ABSENT;
    s->cause = BT_CAUSE_SILENT;
}

void kv_stream_fini(struct kv_stream *s)
{
    kv_held_drop(s);
}

/* ---- what it is worth ---- */

static enum bt_stream_state worth(const struct kv_stream *s,
                                  enum bt_stream_cause *cause_out)
{
    if (s->cut && s->started) {
        *cause_out = BT_CAUSE_RECONNECT;
        return BT_STREAM_SYNCING;
    }
    if (s->unproven || (kv_replay_active(s) && !s->fresh)) {
        *cause_out = s->sync_cause;
        return BT_STREAM_SYNCING;
    }
    if (!s->started) {
        *cause_out = s->mixed                 ? BT_CAUSE_RANKS_MIXED
                     : s->phase == KV_COOLING ? BT_CAUSE_REPLAY_FAILED
                                              : BT_CAUSE_SILENT;
        return BT_STREAM_ABSENT;
    }
    if (s->hole) {
        *cause_out = s->hole_cause;
        return BT_STREAM_DEGRADED;
    }
    if (s->mixed || !s->from_zero) {
        *cause_out = s->mixed ? BT_CAUSE_RANKS_MIXED : s->partial_cause;
        return BT_STREAM_PARTIAL;
    }
    *cause_out = s->exact_cause;
    return BT_STREAM_EXACT;
}

void kv_settle(struct kv_stream *s)
{
    enum bt_stream_cause cause;
    enum bt_stream_state state = worth(s, &cause);

    if (s->state == state && s->cause == cause &&
        (state != BT_STREAM_DEGRADED || s->hole_told))
        return;
    s->state = state;
    s->cause = cause;
    s->hole_told = s->hole_told || state == BT_STREAM_DEGRADED;
    s->ops.state(s->ops.arg, state, cause);
}

void kv_set_hole(struct kv_stream *s, enum bt_stream_cause cause)
{
    s->hole = true;
    s->hole_told = false;
    s->hole_cause = cause;
    s->stored_since_hole = 0;
}

void kv_stream_damaged(struct kv_stream *s, enum bt_stream_cause cause)
{
    kv_set_hole(s, cause);
    kv_settle(s);
}

void kv_stream_missed(struct kv_stream *s, enum bt_stream_cause cause)
{
    s->from_zero = false;
    s->partial_cause = cause;
    kv_settle(s);
}

/* The rank holds nothing: whatever was missed before is void. */
void kv_stream_cleared(struct kv_stream *s)
{
    s->hole = false;
    s->from_zero = true;
    s->exact_cause = BT_CAUSE_FROM_START;
    kv_settle(s);
}

void kv_stream_stored(struct kv_stream *s, size_t blocks)
{
    if (!s->hole)
        return;
    s->stored_since_hole += blocks;
    if (s->blocks == 0 || s->stored_since_hole < s->blocks)
        return;
    s->hole = false;
    kv_stream_missed(s, BT_CAUSE_AGED_OUT);
}

/* ---- one batch ---- */

uint64_t kv_payload_hash(const struct kv_batch *batch)
{
    return XXH3_64bits(batch->payload, batch->bytes);
}

enum kv_match kv_recent_match(const struct kv_stream *s, uint64_t seq,
                              uint64_t hash)
{
    uint64_t count =
        s->recent_count < BT_STREAM_RECENT ? s->recent_count : BT_STREAM_RECENT;

    for (uint64_t i = 1; i <= count; i++) {
        size_t at = (s->recent_count - i) % BT_STREAM_RECENT;

        if (s->recent[at].seq == seq)
            return s->recent[at].hash == hash ? KV_MATCH_SAME : KV_MATCH_OTHER;
    }
    return KV_MATCH_UNKNOWN;
}

bool kv_is_older(const struct kv_stream *s, const struct kv_batch *batch)
{
    return batch->ts > 0. && s->ts > 0. &&
           batch->ts < s->ts - KV_STREAM_CLOCK_STEP_S;
}

static void learn_label(struct kv_stream *s, const struct kv_batch *batch)
{
    if (s->label_asked)
        return;
    s->label_asked = true;
    s->has_label = s->ops.label(s->ops.arg, batch, &s->label);
    if (s->has_label && (s->restart_marks == 0 || s->label < s->label_low))
        s->label_low = s->label;
}

void kv_apply(struct kv_stream *s, const struct kv_batch *batch, uint64_t hash)
{
    size_t i = s->recent_count++ % BT_STREAM_RECENT;

    learn_label(s, batch);
    s->recent[i].seq = batch->seq;
    s->recent[i].hash = hash;
    s->next = batch->seq + 1;
    if (batch->ts > s->ts)
        s->ts = batch->ts;
    s->batches_since_restart++;
    s->counts->batches++;
    s->counts->bytes += batch->bytes;
    s->ops.apply(s->ops.arg, batch);
}

void kv_start(struct kv_stream *s, uint64_t seq)
{
    s->started = true;
    s->next = seq;
    s->from_zero = seq == 0;
    s->exact_cause =
        kv_replay_active(s) ? BT_CAUSE_REPLAYED : BT_CAUSE_FROM_START;
    s->partial_cause = BT_CAUSE_JOINED_LATE;
}

void kv_forget(struct kv_stream *s)
{
    s->counts->resets += s->started ? 1 : 0;
    if (s->ts > 0.)
        s->life_ts = s->ts;
    s->ts = 0.;
    s->had_label = s->has_label;
    s->label_before = s->label;
    s->label_asked = s->has_label = false;
    s->started = s->from_zero = s->hole = s->fresh = s->prove = false;
    s->resumed = s->unproven = s->doubted = s->retry = false;
    s->next = 0;
    s->stale_ns = 0;
    s->recent_count = 0;
    s->stored_since_hole = 0;
    kv_held_drop(s);
    s->ops.forget(s->ops.arg);
}

/* ---- live ---- */

static void first(struct kv_stream *s, int64_t now_ns,
                  const struct kv_batch *batch, enum bt_stream_cause cause)
{
    uint64_t hash = kv_payload_hash(batch);

    if (batch->seq > 0 && kv_replay_possible(s)) {
        kv_held_push(s, batch, hash);
        kv_replay_begin(s, now_ns, cause);
        return;
    }
    kv_start(s, batch->seq);
    kv_apply(s, batch, hash);
    kv_settle(s);
}

/* Several publishers on one socket. With labels the lowest is followed, and
 * the rest left out; without, nothing can be known for a while. */
static void mix(struct kv_stream *s, int64_t now_ns)
{
    kv_replay_abandon(s);
    s->mixed = true;
    s->mixed_labelled =
        s->has_label && s->had_label && s->label != s->label_before;
    s->mixed_until_ns = now_ns + s->limits.cooldown_ns;
    s->restart_marks = 0;
    kv_forget(s);
    kv_settle(s);
}

static bool of_other_rank(struct kv_stream *s, const struct kv_batch *batch)
{
    int64_t label;

    return s->ops.label(s->ops.arg, batch, &label) && label != s->label_low;
}

/* True: not to be looked at. */
static bool mixed_skips(struct kv_stream *s, int64_t now_ns,
                        const struct kv_batch *batch)
{
    if (s->mixed_labelled) {
        if (!of_other_rank(s, batch))
            return false;
        s->counts->rank_mismatches++;
        return true;
    }
    if (now_ns < s->mixed_until_ns) {
        s->counts->sequence_errors++;
        return true;
    }
    s->mixed = false;
    return false;
}

/* The numbers went back: another process speaks, or another rank. */
static void other_life(struct kv_stream *s, int64_t now_ns,
                       const struct kv_batch *batch)
{
    int64_t label;
    bool back = s->had_label && s->restart_marks > 0 &&
                s->ops.label(s->ops.arg, batch, &label) &&
                label == s->label_before && label != s->label;

    if (s->batches_since_restart >= KV_STREAM_MIXED_BATCHES)
        s->restart_marks = 0;
    s->batches_since_restart = 0;
    if (++s->restart_marks >= KV_STREAM_MIXED_RESTARTS || back) {
        mix(s, now_ns);
        return;
    }
    if (s->has_label && s->restart_marks == 1)
        s->label_low = s->label;
    kv_replay_abandon(s);
    kv_forget(s);
    first(s, now_ns, batch, BT_CAUSE_RESTART);
}

/* seq is not beyond what is known: a repeat, or another life? newest_ts: of
 * what is known. */
static bool is_repeat(struct kv_stream *s, const struct kv_batch *batch,
                      uint64_t hash, double newest_ts)
{
    int held = kv_held_match(s, batch->seq, hash);
    enum kv_match match = kv_recent_match(s, batch->seq, hash);

    if (held >= 0)
        return held == 1;
    if (match != KV_MATCH_UNKNOWN)
        return match == KV_MATCH_SAME;
    if (batch->ts > 0. && newest_ts > 0.)
        return batch->ts <= newest_ts;
    return batch->seq > 0;
}

static void live_held(struct kv_stream *s, int64_t now_ns,
                      const struct kv_batch *batch)
{
    uint64_t hash = kv_payload_hash(batch), last = 0;
    bool any = s->started && s->next > 0;
    double ts = s->ts;

    if (any)
        last = s->next - 1;
    if (s->held_count > 0) {
        const struct kv_held *h =
            &s->held[(s->held_at + s->held_count - 1) % s->limits.held_batches];

        last = h->batch.seq > last || !any ? h->batch.seq : last;
        ts = h->batch.ts > ts ? h->batch.ts : ts;
        any = true;
    }
    if (s->held_lost && (!any || s->lost_last > last)) {
        last = s->lost_last;
        any = true;
    }
    if (!any || batch->seq > last)
        kv_held_push(s, batch, hash);
    else if (is_repeat(s, batch, hash, ts))
        s->counts->duplicates++;
    else
        other_life(s, now_ns, batch);
}

static void gap(struct kv_stream *s, int64_t now_ns,
                const struct kv_batch *batch)
{
    if (kv_is_older(s, batch)) {
        other_life(s, now_ns, batch);
        return;
    }
    s->counts->gaps++;
    s->counts->missing += batch->seq - s->next;
    if (kv_replay_possible(s)) {
        kv_held_push(s, batch, kv_payload_hash(batch));
        kv_replay_begin(s, now_ns, BT_CAUSE_GAP);
        return;
    }
    kv_set_hole(s, s->has_replay && !s->mixed ? BT_CAUSE_REPLAY_FAILED
                                              : BT_CAUSE_NO_REPLAY);
    s->retry = s->has_replay;
    kv_settle(s); /* what this batch stores is younger than the hole */
    kv_apply(s, batch, kv_payload_hash(batch));
}

/* Resumed, or connected again, without a replay socket, and nobody vouched for
 * the process. After a break the next batch goes on where the last one was;
 * after our own restart that number proves nothing. */
static void prove_live(struct kv_stream *s, const struct kv_batch *batch)
{
    bool repeat =
        batch->seq < s->next &&
        kv_recent_match(s, batch->seq, kv_payload_hash(batch)) == KV_MATCH_SAME;
    bool goes_on =
        !s->resumed && batch->seq == s->next && !kv_is_older(s, batch);

    if (!repeat && !goes_on) {
        kv_forget(s);
        return;
    }
    s->unproven = s->resumed = false;
    kv_settle(s);
}

static void live_now(struct kv_stream *s, int64_t now_ns,
                     const struct kv_batch *batch)
{
    uint64_t hash;

    if (s->unproven)
        prove_live(s, batch);
    if (!s->started) {
        first(s, now_ns, batch, BT_CAUSE_FIRST_CONTACT);
        return;
    }
    if (batch->seq > s->next) {
        gap(s, now_ns, batch);
        return;
    }
    hash = kv_payload_hash(batch);
    if (batch->seq == s->next) {
        kv_apply(s, batch, hash);
        kv_settle(s);
    } else if (is_repeat(s, batch, hash, s->ts)) {
        s->counts->duplicates++;
    } else {
        other_life(s, now_ns, batch);
    }
}

/* Still under way of the life that was cleared? By its time it may be; not for
 * ever: clocks are set back, and then a new life would never be heard. */
static bool of_life_before(struct kv_stream *s, int64_t now_ns,
                           const struct kv_batch *batch)
{
    if (s->started || batch->seq == 0 || batch->ts <= 0. ||
        batch->ts > s->life_ts)
        return false;
    if (s->stale_ns == 0)
        s->stale_ns = now_ns;
    return now_ns - s->stale_ns < KV_STREAM_STALE_NS;
}

void kv_stream_live(struct kv_stream *s, int64_t now_ns,
                    const struct kv_batch *batch)
{
    if (s->mixed && mixed_skips(s, now_ns, batch))
        return;
    if (of_life_before(s, now_ns, batch)) {
        s->counts->duplicates++;
        return;
    }
    if (kv_replay_active(s) && !s->fresh)
        live_held(s, now_ns, batch);
    else
        live_now(s, now_ns, batch);
}

/* ---- the process ---- */

void kv_stream_lost(struct kv_stream *s)
{
    s->doubted = s->started;
}

void kv_stream_cut(struct kv_stream *s)
{
    kv_replay_abandon(s);
    kv_held_drop(s);
    s->held_lost = false;
    s->cut = true;
    if (s->started) {
        s->unproven = true;
        s->sync_cause = BT_CAUSE_RECONNECT;
    }
    kv_settle(s);
}

void kv_stream_connected(struct kv_stream *s, int64_t now_ns)
{
    bool was_cut = s->cut;

    s->cut = false;
    if (s->phase == KV_COOLING && !was_cut)
        s->cool_until_ns = now_ns; /* the reason may have gone */
    if (was_cut && s->has_replay && !s->mixed && !kv_replay_active(s)) {
        kv_replay_abandon(s);
        if (s->started && s->next > 0 && !s->hole) {
            kv_replay_prove(s, now_ns, BT_CAUSE_RECONNECT);
        } else {
            if (s->started)
                kv_forget(s);
            kv_replay_begin(s, now_ns, BT_CAUSE_RECONNECT);
        }
    }
    kv_settle(s);
}

void kv_stream_gone(struct kv_stream *s)
{
    kv_replay_abandon(s);
    if (s->started)
        kv_forget(s);
    kv_settle(s);
}

void kv_stream_alive(struct kv_stream *s, int64_t now_ns, bool other,
                     uint64_t blocks)
{
    bool doubted = s->doubted;

    s->blocks = blocks;
    s->doubted = false;
    if (other) {
        kv_replay_abandon(s);
        s->mixed = false;
        s->restart_marks = 0;
        kv_forget(s);
        if (kv_replay_possible(s))
            kv_replay_begin(s, now_ns, BT_CAUSE_RESTART);
        kv_settle(s);
        return;
    }
    if (s->cut) {
        kv_settle(s); /* its proof comes with the connection */
        return;
    }
    if (s->unproven && !s->has_replay)
        s->unproven = s->resumed = false; /* the process is vouched for */
    if (doubted && s->started && s->next > 0)
        kv_replay_prove(s, now_ns, BT_CAUSE_RECONNECT);
    else if (!s->started && kv_replay_possible(s))
        kv_replay_begin(s, now_ns, BT_CAUSE_FIRST_CONTACT);
    kv_settle(s);
}

/* ---- warm restart ---- */

void kv_stream_mark(const struct kv_stream *s, struct bt_stream_mark *out)
{
    uint64_t count =
        s->recent_count < BT_STREAM_RECENT ? s->recent_count : BT_STREAM_RECENT;

    memset(out, 0, sizeof(*out));
    out->next = s->next;
    out->started = s->started && !s->unproven;
    out->from_zero = s->from_zero;
    out->hole = s->hole;
    out->recent_count = (uint32_t)count;
    for (uint64_t i = 0; i < count; i++) {
        size_t at = (s->recent_count - count + i) % BT_STREAM_RECENT;

        out->recent[i].seq = s->recent[at].seq;
        out->recent[i].hash = s->recent[at].hash;
    }
}

void kv_stream_resume(struct kv_stream *s, int64_t now_ns,
                      const struct bt_stream_mark *mark)
{
    kv_start(s, mark->next);
    s->from_zero = mark->from_zero;
    s->exact_cause = BT_CAUSE_RESUMED;
    if (mark->hole)
        kv_set_hole(s, BT_CAUSE_GAP);
    s->resumed = s->unproven = true;
    s->sync_cause = BT_CAUSE_RECONNECT;
    for (uint32_t i = 0; i < mark->recent_count && i < BT_STREAM_RECENT; i++) {
        s->recent[i].seq = mark->recent[i].seq;
        s->recent[i].hash = mark->recent[i].hash;
    }
    s->recent_count = mark->recent_count < BT_STREAM_RECENT ? mark->recent_count
                                                            : BT_STREAM_RECENT;
    if (s->has_replay)
        kv_replay_prove(s, now_ns, BT_CAUSE_RECONNECT);
    kv_settle(s);
}
