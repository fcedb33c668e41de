/* What pulls take beside each other: fluid flows with max-min fair shares of
 * the ends' links (the planner's solver), each at most as fast as alone. Before
 * its bytes move a flow takes nothing from anybody: set-up and descriptors.
 *
 *   waiting --start + overhead--> queued --queue gone--> moving --bytes-->
 * ended
 *
 * The queue is the sender's: the grant waits there behind the bytes of others.
 */
#include "baton/planner/network.h"
#include "baton/transfer/probe.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Bytes of a flow are in the queue that soon after it began to move. */
#define QUEUE_NS 500000.0

enum phase { WAITING, QUEUED, MOVING, ENDED };

struct state {
    enum phase phase;
    double at_ns; /* when the phase ends (waiting, queued), began (moving) */
    double left;  /* bytes, at the rate of the path alone */
};

/* Bytes that the time alone stands for, without what comes before them. */
static double bytes_of(const struct bt_probe_flow *f, double *before_ns)
{
    double alone = bt_probe_alone_ns(f->fit, f->bytes, f->descriptors);
    double before = f->fit->setup_ns + f->descriptors * f->fit->descriptor_ns;

    *before_ns = fmin(before, alone);
    return (alone - *before_ns) / f->fit->byte_ns;
}

static uint32_t beside(const struct bt_probe_flow *flows, size_t count,
                       size_t i)
{
    uint32_t out = 0, in = 0;

    for (size_t k = 0; k < count; k++) {
        out += flows[k].from == flows[i].from;
        in += flows[k].to == flows[i].to;
    }
    return out > in ? out : in;
}

static void set_up(const struct bt_probe_flow *flows, size_t count,
                   struct state *s)
{
    for (size_t i = 0; i < count; i++) {
        double before = 0, credit = flows[i].fit->credit_bytes;
        uint32_t sharers = beside(flows, count, i);

        s[i].left = bytes_of(&flows[i], &before);
        s[i].left += fmin(credit, (double)flows[i].bytes) * (1 - 1.0 / sharers);
        s[i].at_ns = (double)flows[i].start_ns + before;
        s[i].phase = WAITING;
    }
}

size_t bt_probe_scratch(size_t flows, size_t ends)
{
    return bt_maxmin_scratch(flows, 2 * ends) + 2 * ends * sizeof(double);
}

static void add_link(struct bt_maxmin_flow *m, double capacity, uint32_t link)
{
    if (capacity > 0)
        m->links[m->count++] = link;
}

/* Rates of those that move; rate[i] of the others is 0. */
static void share(const struct bt_probe_ends *ends,
                  const struct bt_probe_flow *flows, const struct state *s,
                  size_t count, void *scratch, double *rate)
{
    struct bt_maxmin_flow m[BT_PROBE_FLOWS_MAX];
    uint32_t of[BT_PROBE_FLOWS_MAX];
    double *capacity = scratch;
    size_t n = 0;

    for (uint32_t e = 0; e < ends->count; e++) {
        capacity[e] = fmax(ends->out[e], 0);
        capacity[ends->count + e] = fmax(ends->in[e], 0);
    }
    for (size_t i = 0; i < count; i++) {
        rate[i] = 0;
        if (s[i].phase != MOVING)
            continue;
        of[n] = (uint32_t)i;
        memset(&m[n], 0, sizeof(m[n]));
        m[n].cap_bytes_per_s = 1e9 / flows[i].fit->byte_ns;
        add_link(&m[n], ends->out[flows[i].from], flows[i].from);
        add_link(&m[n], ends->in[flows[i].to], ends->count + flows[i].to);
        n++;
    }
    bt_maxmin_rates(m, n, capacity, (size_t)2 * ends->count,
                    (char *)scratch + 2 * ends->count * sizeof(double));
    for (size_t k = 0; k < n; k++)
        rate[of[k]] = m[k].rate / 1e9;
}

/* When something changes next; HUGE_VAL: never. */
static double next_change(const struct state *s, const double *rate,
                          size_t count, double now)
{
    double next = HUGE_VAL;

    for (size_t i = 0; i < count; i++) {
        if (s[i].phase == WAITING || s[i].phase == QUEUED)
            next = fmin(next, s[i].at_ns);
        if (s[i].phase == MOVING)
            next = fmin(next, now + s[i].left / rate[i]);
    }
    return next;
}

/* What a flow keeps under way at this rate, bytes per ns. */
static double window(const struct bt_probe_flow *flow, double rate)
{
    double most = (double)flow->window_bytes;

    if (flow->window_target_ns <= 0)
        return most;
    return fmin(most, rate * (double)flow->window_target_ns +
                          (double)flow->window_share);
}

/* What others have in the queue of the sender when the flow i begins. */
static double queue_ns(const struct bt_probe_ends *ends,
                       const struct bt_probe_flow *flows, const struct state *s,
                       size_t count, size_t i)
{
    double bytes = 0, rate = ends->out[flows[i].from];
    uint32_t sharers = 0;

    for (size_t k = 0; k < count; k++)
        sharers += flows[k].from == flows[i].from && s[k].phase == MOVING;
    for (size_t k = 0; k < count && rate > 0; k++) {
        if (k != i && flows[k].from == flows[i].from && s[k].phase == MOVING &&
            s[i].at_ns - s[k].at_ns >= QUEUE_NS)
            bytes += fmin(s[k].left, window(&flows[k], rate / 1e9 / sharers));
    }
    return rate > 0 ? bytes * 1e9 / rate : 0;
}

static void begin(const struct bt_probe_ends *ends,
                  const struct bt_probe_flow *flows, struct state *s,
                  size_t count, double now)
{
    for (size_t i = 0; i < count; i++) {
        if (s[i].phase == WAITING && s[i].at_ns <= now) {
            s[i].at_ns = now + queue_ns(ends, flows, s, count, i);
            s[i].phase = QUEUED;
        }
        if (s[i].phase == QUEUED && s[i].at_ns <= now)
            s[i].phase = MOVING;
    }
}

static void move_on(struct bt_probe_flow *flows, struct state *s,
                    const double *rate, size_t count, double span, double now)
{
    for (size_t i = 0; i < count; i++) {
        if (s[i].phase != MOVING)
            continue;
        s[i].left -= rate[i] * span;
        if (s[i].left > rate[i] * 0.5) /* half a nanosecond */
            continue;
        s[i].phase = ENDED;
        flows[i].ns = now - (double)flows[i].start_ns;
    }
}

void bt_probe_predict(const struct bt_probe_ends *ends,
                      struct bt_probe_flow *flows, size_t count, void *scratch)
{
    struct state s[BT_PROBE_FLOWS_MAX];
    double rate[BT_PROBE_FLOWS_MAX];
    double now = -HUGE_VAL;

    assert(count <= BT_PROBE_FLOWS_MAX);
    set_up(flows, count, s);
    /* each step takes at least one flow to its next phase */
    for (size_t steps = 0; steps < 3 * count; steps++) {
        share(ends, flows, s, count, scratch, rate);
        double next = next_change(s, rate, count, now);
        if (isinf(next))
            break;
        move_on(flows, s, rate, count, isinf(now) ? 0 : next - now, next);
        begin(ends, flows, s, count, next);
        now = next;
    }
}

double bt_probe_link_rate(const struct bt_probe_flow *flows, size_t count,
                          double span_ns)
{
    double bytes = 0, least = HUGE_VAL;

    for (size_t i = 0; i < count; i++) {
        double before = 0;

        bytes += bytes_of(&flows[i], &before);
        least = fmin(least, before);
    }
    return count > 0 && span_ns > least ? bytes * 1e9 / (span_ns - least) : 0;
}

static void sort(double *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        double x = v[i];
        size_t j = i;

        for (; j > 0 && v[j - 1] > x; j--)
            v[j] = v[j - 1];
        v[j] = x;
    }
}

void bt_probe_errors(double *errors, size_t count, struct bt_probe_error *out)
{
    memset(out, 0, sizeof(*out));
    out->count = (uint32_t)count;
    if (count == 0)
        return;
    sort(errors, count);
    out->bias = errors[(count - 1) / 2];
    for (size_t i = 0; i < count; i++)
        errors[i] = fabs(errors[i]);
    sort(errors, count);
    out->median = errors[(count - 1) / 2];
    out->p95 = errors[(count * 95 + 99) / 100 - 1];
    out->worst = errors[count - 1];
}
