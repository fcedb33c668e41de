/* See scheduler.h. Decides order and times of jobs on one device; which
 * sequence is meant, blocks and slots are the caller's.
 *
 * Invariant: running jobs never overlap; a job's start is not before the end
 * of the one before it.
 */
#include "scheduler.h"

#include <assert.h>
#include <string.h>

void bt_sched_init(struct bt_sched *s, const struct bt_compute_model *model)
{
    memset(s, 0, sizeof(*s));
    s->model = *model;
    s->slow = 1.0;
    s->running = BT_SCHED_IDLE;
    s->last = BT_SCHED_IDLE;
}

enum bt_sched_kind bt_sched_pick(const struct bt_sched *s, bool prefill_ready,
                                 bool decode_ready)
{
    if (s->running != BT_SCHED_IDLE || (!prefill_ready && !decode_ready)) {
        return BT_SCHED_IDLE;
    }
    if (prefill_ready && decode_ready) {
        return s->chained && s->last == BT_SCHED_PREFILL ? BT_SCHED_DECODE
                                                         : BT_SCHED_PREFILL;
    }
    return prefill_ready ? BT_SCHED_PREFILL : BT_SCHED_DECODE;
}

static int64_t stretch(const struct bt_sched *s, int64_t ns)
{
    if (ns >= BT_COST_INFINITE) {
        return BT_COST_INFINITE;
    }
    double slowed = (double)ns * s->slow;
    if (!(slowed < (double)BT_COST_INFINITE)) {
        return BT_COST_INFINITE;
    }
    return (int64_t)slowed;
}

static int64_t begin(struct bt_sched *s, enum bt_sched_kind kind,
                     int64_t now_ns, int64_t duration_ns)
{
    assert(s->running == BT_SCHED_IDLE);
    int64_t start = now_ns;
    if (s->chained && s->end_ns <= now_ns &&
        now_ns - s->end_ns < BT_SCHED_LAG_MAX_NS) {
        start = s->end_ns;
    }
    s->running = kind;
    s->start_ns = start;
    s->end_ns = start + duration_ns;
    return s->end_ns;
}

int64_t bt_sched_prefill(struct bt_sched *s, int64_t now_ns,
                         uint64_t new_tokens, uint64_t cached_tokens)
{
    int64_t ns = bt_prefill_ns(&s->model, new_tokens, cached_tokens);
    s->prefills++;
    return begin(s, BT_SCHED_PREFILL, now_ns, stretch(s, ns));
}

int64_t bt_sched_decode(struct bt_sched *s, int64_t now_ns, uint64_t batch,
                        uint64_t context_tokens)
{
    int64_t ns = bt_decode_step_ns(&s->model, batch, context_tokens);
    s->steps++;
    return begin(s, BT_SCHED_DECODE, now_ns, stretch(s, ns));
}

bool bt_sched_due(const struct bt_sched *s, int64_t now_ns)
{
    return s->running != BT_SCHED_IDLE && now_ns >= s->end_ns;
}

enum bt_sched_kind bt_sched_finish(struct bt_sched *s)
{
    enum bt_sched_kind kind = s->running;
    assert(kind != BT_SCHED_IDLE);
    if (kind == BT_SCHED_PREFILL) {
        s->busy_prefill_ns += s->end_ns - s->start_ns;
    } else {
        s->busy_decode_ns += s->end_ns - s->start_ns;
    }
    s->last = kind;
    s->running = BT_SCHED_IDLE;
    s->chained = true;
    return kind;
}

void bt_sched_abort(struct bt_sched *s, int64_t now_ns)
{
    assert(s->running == BT_SCHED_PREFILL);
    s->end_ns = now_ns < s->end_ns ? now_ns : s->end_ns;
    if (s->end_ns < s->start_ns) {
        s->end_ns = s->start_ns;
    }
    (void)bt_sched_finish(s);
}

void bt_sched_rest(struct bt_sched *s)
{
    s->chained = false;
}
