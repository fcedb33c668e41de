/* The window of a lane: rules and sources in window.h. Decides the two sizes;
 * leaves to core/jobs.c that they are kept. Invariants: the least of smallest
 * operations <= bytes <= ops_max * op_max; smallest <= op_bytes <= op_max and
 * op_bytes <= bytes; the sizes change at most once from the filling of the
 * window to the end of the operation that filled it. */
#include "baton/transfer/window.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define PARTS     8u   /* operations that make a window, if large enough */
#define LEAST     2u   /* smallest operations */
#define BEST_PART 2.0  /* of target * best rate: the least */
#define LONGER    1.25 /* than the base: full */
#define SPAN_NS   50000000ll
#define TIME_MAX  (INT64_MAX / 4)

static uint64_t most(const struct bt_window_limits *l)
{
    return (uint64_t)l->ops_max * l->op_max;
}

static uint32_t smallest(const struct bt_window_limits *l)
{
    return l->op_max < BT_WINDOW_OP_MIN ? l->op_max : BT_WINDOW_OP_MIN;
}

uint64_t bt_window_share(const struct bt_window_limits *l)
{
    return (uint64_t)BT_WINDOW_SHARE * smallest(l);
}

static int64_t target(const struct bt_window_limits *l)
{
    int64_t ns = l->target_ns == 0 ? BT_WINDOW_TARGET_NS : l->target_ns;

    return ns < TIME_MAX ? ns : TIME_MAX;
}

/* False: as it was. */
static bool resize(struct bt_window *w, double bytes)
{
    uint32_t small = smallest(&w->limits), op_max = w->limits.op_max;
    uint32_t parts = w->limits.ops_max < PARTS ? w->limits.ops_max : PARTS;
    double top = (double)most(&w->limits), least = fmin(LEAST * small, top);
    uint64_t before = w->bytes, op;

    w->bytes = (uint64_t)fmax(fmin(bytes, top), least);
    op = w->bytes / parts;
    if (op > op_max)
        op = op_max;
    w->op_bytes = op < small ? small : (uint32_t)op;
    return w->bytes != before;
}

void bt_window_init(struct bt_window *window,
                    const struct bt_window_limits *limits)
{
    assert(limits->ops_max > 0 && limits->op_max > 0);
    memset(window, 0, sizeof(*window));
    window->limits = *limits;
    window->base_ns = TIME_MAX; /* not known */
    (void)resize(window, (double)bt_window_share(limits));
    if (limits->target_ns >= 0)
        return;
    window->bytes = most(limits);
    window->op_bytes = limits->op_max;
}

void bt_window_follow(struct bt_window *window, const struct bt_window *other)
{
    if (window->limits.target_ns >= 0 && other->bytes > window->bytes)
        (void)resize(window, (double)other->bytes);
}

void bt_window_round_trip(struct bt_window *window, int64_t took_ns)
{
    if (took_ns >= 0 && took_ns < window->base_ns)
        window->base_ns = took_ns;
}

bool bt_window_wake(struct bt_window *w, int64_t now_ns)
{
    double start = (double)bt_window_share(&w->limits);

    if (w->limits.target_ns < 0 || w->out > 0 || w->serial == 0 ||
        now_ns - w->idle_ns < BT_WINDOW_IDLE_NS)
        return false;
    w->in_round = false;
    w->best[0] = w->best[1] = 0;
    w->idle_ns = now_ns;
    return (double)w->bytes > start && resize(w, start);
}

void bt_window_issued(struct bt_window *w, int64_t now_ns, uint64_t bytes,
                      struct bt_window_op *op_out)
{
    *op_out = (struct bt_window_op){w->serial++, bytes, now_ns};
    if (w->out == 0)
        w->mark_ns = now_ns;
    w->out += bytes;
    if (w->in_round || w->out + w->op_bytes <= w->bytes)
        return;
    w->in_round = true;
    w->filled = op_out->serial;
    w->low_ns = TIME_MAX;
}

/* ---- the best rate ---- */

/* Over a while with something out: what a link lets through at once after a
 * pause is not its rate. */
static void meter(struct bt_window *w, int64_t now_ns, uint64_t bytes)
{
    if (now_ns > w->mark_ns)
        w->span_ns += now_ns - w->mark_ns;
    w->mark_ns = now_ns;
    w->span_bytes += bytes;
    if (w->span_ns < SPAN_NS)
        return;
    if (now_ns - w->best_ns >= BT_WINDOW_BEST_NS) {
        w->best[1] = w->best[0];
        w->best[0] = 0;
        w->best_ns = now_ns;
    }
    w->best[0] = fmax(w->best[0], (double)w->span_bytes / (double)w->span_ns);
    w->span_ns = 0;
    w->span_bytes = 0;
}

/* ---- a round is over ---- */

/* Where the rule leads if operations took this long. */
static double next_bytes(const struct bt_window *w, int64_t took_ns)
{
    double aim = (double)target(&w->limits);
    double base = w->base_ns < TIME_MAX ? (double)w->base_ns : 0;
    double full = fmax(aim, LONGER * base);

    return (double)w->bytes * full / (double)(took_ns + 1) +
           (double)bt_window_share(&w->limits);
}

/* Less only if all took long, more only if the last did not. */
static bool judge(struct bt_window *w, int64_t last_ns)
{
    double bytes = (double)w->bytes;
    double less = next_bytes(w, w->low_ns), more = next_bytes(w, last_ns);
    double kept =
        fmax(w->best[0], w->best[1]) * (double)target(&w->limits) / BEST_PART;

    if (less < bytes)
        return resize(w, fmax(fmax(less, bytes / 2), fmin(kept, bytes)));
    return more > bytes && resize(w, fmin(more, 2 * bytes));
}

bool bt_window_ended(struct bt_window *w, const struct bt_window_op *op,
                     int64_t now_ns, bool ok)
{
    int64_t took_ns = now_ns - op->issued_ns;

    assert(w->out >= op->bytes);
    w->out -= op->bytes;
    w->idle_ns = now_ns;
    if (w->limits.target_ns < 0)
        return false;
    meter(w, now_ns, ok ? op->bytes : 0);
    took_ns = took_ns < 0 ? 0 : took_ns;
    took_ns = took_ns > TIME_MAX ? TIME_MAX : took_ns;
    if (ok && took_ns < w->low_ns)
        w->low_ns = took_ns;
    if (!w->in_round || op->serial < w->filled)
        return false;
    w->in_round = false;
    return ok && judge(w, took_ns);
}
