/* Own ledger. Decides what a worker still has to do for us and how many bytes
 * our own flows have left on a pair; leaves engine telemetry and the choice
 * itself to others.
 *
 *   worker  FIFO of prefills: free = max(now, head start + head cost) + rest,
 *           re-based whenever one is added or leaves
 *   pair    flows, each {planned start, bytes left}; those that have started
 *           share the pair's rate equally (fluid model) and are rolled forward
 *           on every change and every look
 *
 * Invariants: a sum is exactly the sum over the bookings that hold it; held is
 * the number of single bookings (prefill, decode, transfer); nothing held means
 * every sum is zero.
 */
#include "baton/planner/ledger.h"

#include "baton/planner/cost.h"
#include "baton/planner/place.h"

#include <assert.h>
#include <string.h>

struct worker {
    struct bt_ledger_worker sums;
    uint32_t head, tail;   /* FIFO of prefills, handle + 1 */
    int64_t head_start_ns; /* when the head began, absolute */
    int64_t cost_ns;       /* of the whole FIFO, saturating reads only */
};

struct pair {
    uint64_t rate_bytes_per_s; /* 0: unknown, bytes stay until done */
    int64_t rolled_ns;         /* flows are valid at this instant */
    uint32_t head;             /* flows, handle + 1 */
};

struct flow {
    double left; /* bytes */
    uint32_t prev, next;
};

struct bt_ledger {
    struct bt_ledger_limits limits;
    struct worker *workers;
    struct pair *pairs; /* [p * workers_max + d] */
    struct flow *flows; /* by handle */
    struct bt_booking **bookings;
    uint64_t held;
    int64_t seen_ns; /* latest time any call gave */
};

size_t bt_ledger_bytes(const struct bt_ledger_limits *limits)
{
    size_t w = limits->workers_max;
    size_t r = limits->requests_max;

    return bt_arena_need(1, sizeof(struct bt_ledger)) +
           bt_arena_need(w, sizeof(struct worker)) +
           bt_arena_need(w * w, sizeof(struct pair)) +
           bt_arena_need(r, sizeof(struct flow)) +
           bt_arena_need(r, sizeof(struct bt_booking *));
}

struct bt_ledger *bt_ledger_init(struct bt_arena *arena,
                                 const struct bt_ledger_limits *limits)
{
    struct bt_ledger *l = bt_arena_take(arena, 1, sizeof(*l));
    size_t w = limits->workers_max;

    if (l == NULL || w == 0 || limits->requests_max == 0 ||
        limits->requests_max == UINT32_MAX)
        return NULL;
    l->limits = *limits;
    l->workers = bt_arena_take(arena, w, sizeof(*l->workers));
    l->pairs = bt_arena_take(arena, w * w, sizeof(*l->pairs));
    l->flows = bt_arena_take(arena, limits->requests_max, sizeof(*l->flows));
    l->bookings =
        bt_arena_take(arena, limits->requests_max, sizeof(struct bt_booking *));
    if (l->workers == NULL || l->pairs == NULL || l->flows == NULL ||
        l->bookings == NULL)
        return NULL;
    return l;
}

static struct pair *pair_at(const struct bt_ledger *l, uint32_t p, uint32_t d)
{
    assert(p < l->limits.workers_max && d < l->limits.workers_max);
    return &l->pairs[(size_t)p * l->limits.workers_max + d];
}

void bt_ledger_set_rate(struct bt_ledger *ledger, uint32_t p, uint32_t d,
                        uint64_t rate_bytes_per_s)
{
    pair_at(ledger, p, d)->rate_bytes_per_s = rate_bytes_per_s;
}

static void see(struct bt_ledger *l, int64_t now_ns)
{
    if (now_ns > l->seen_ns)
        l->seen_ns = now_ns;
}

/* ---- flows ---- */

/* Look at the pair's flows at instant t: how many are running, the least bytes
 * among them, and the next planned start after t. */
struct census {
    size_t running;
    double least;
    int64_t next_start_ns;
};

static struct census count_flows(const struct bt_ledger *l,
                                 const struct pair *pair, int64_t t)
{
    struct census c = {0, 0, INT64_MAX};

    for (uint32_t i = pair->head; i != 0; i = l->flows[i - 1].next) {
        int64_t start = l->bookings[i - 1]->transfer_start_ns;
        double left = l->flows[i - 1].left;

        if (left <= 0)
            continue;
        if (start > t) {
            if (start < c.next_start_ns)
                c.next_start_ns = start;
            continue;
        }
        if (c.running == 0 || left < c.least)
            c.least = left;
        c.running++;
    }
    return c;
}

static void drain_flows(const struct bt_ledger *l, const struct pair *pair,
                        int64_t t, double bytes)
{
    for (uint32_t i = pair->head; i != 0; i = l->flows[i - 1].next) {
        struct flow *f = &l->flows[i - 1];

        if (l->bookings[i - 1]->transfer_start_ns > t)
            continue;
        f->left = f->left > bytes ? f->left - bytes : 0;
    }
}

/* Roll the pair's fluid model forward to now. Every turn ends a flow, starts
 * one or reaches now, so there are at most 2 * flows + 1 turns. */
static void roll(const struct bt_ledger *l, struct pair *pair, int64_t now_ns)
{
    double per_ns = (double)pair->rate_bytes_per_s / 1e9;

    while (pair->head != 0 && pair->rate_bytes_per_s != 0 &&
           pair->rolled_ns < now_ns) {
        int64_t t = pair->rolled_ns;
        struct census c = count_flows(l, pair, t);
        int64_t until = c.next_start_ns < now_ns ? c.next_start_ns : now_ns;
        double share, span = (double)(until - t);

        if (c.running > 0) {
            share = per_ns / (double)c.running;
            if (c.least <= share * span) {
                int64_t used = (int64_t)(c.least / share);

                drain_flows(l, pair, t, c.least);
                until = used < until - t ? t + used : until;
            } else {
                drain_flows(l, pair, t, share * span);
            }
        }
        pair->rolled_ns = until;
    }
    if (pair->rolled_ns < now_ns)
        pair->rolled_ns = now_ns;
}

static void flow_open(struct bt_ledger *l, struct bt_booking *b, int64_t now_ns)
{
    struct pair *pair = pair_at(l, b->p, b->d);
    struct flow *f = &l->flows[b->handle];

    roll(l, pair, now_ns);
    *f = (struct flow){.left = (double)b->transfer_bytes, .next = pair->head};
    if (pair->head != 0)
        l->flows[pair->head - 1].prev = b->handle + 1;
    pair->head = b->handle + 1;
    l->workers[b->p].sums.transfers++;
    l->workers[b->d].sums.transfers++;
    b->transfer_held = true;
    l->held++;
}

static void flow_close(struct bt_ledger *l, struct bt_booking *b)
{
    struct pair *pair = pair_at(l, b->p, b->d);
    struct flow *f = &l->flows[b->handle];

    roll(l, pair, l->seen_ns);
    if (f->prev != 0)
        l->flows[f->prev - 1].next = f->next;
    else
        pair->head = f->next;
    if (f->next != 0)
        l->flows[f->next - 1].prev = f->prev;
    assert(l->workers[b->p].sums.transfers > 0);
    assert(l->workers[b->d].sums.transfers > 0);
    l->workers[b->p].sums.transfers--;
    l->workers[b->d].sums.transfers--;
    b->transfer_held = false;
    l->held--;
}

/* A booking's transfer is now planned for `at`; the past stays as it was. */
static void plan_transfer(struct bt_ledger *l, struct bt_booking *b,
                          int64_t at_ns, int64_t now_ns)
{
    if (b->transfer_held)
        roll(l, pair_at(l, b->p, b->d), now_ns);
    b->transfer_start_ns = at_ns;
}

/* ---- prefill queue ---- */

static int64_t later(int64_t at_ns, int64_t by_ns)
{
    return at_ns >= INT64_MAX / 2 - by_ns ? INT64_MAX / 2 : at_ns + by_ns;
}

/* When the worker is free, seen at now: an overdue head ends now. */
static int64_t free_at(const struct bt_ledger *l, const struct worker *w,
                       int64_t now_ns)
{
    const struct bt_booking *head;
    int64_t head_end;

    if (w->head == 0)
        return now_ns;
    head = l->bookings[w->head - 1];
    head_end = later(w->head_start_ns, head->prefill_cost_ns);
    if (head_end < now_ns)
        head_end = now_ns;
    return later(head_end, w->cost_ns - head->prefill_cost_ns);
}

/* Plan the transfers of the queue again after one has left it. Cost: the
 * worker's queue. */
static void replan(struct bt_ledger *l, struct worker *w, int64_t now_ns)
{
    int64_t at = w->head_start_ns;

    for (uint32_t i = w->head; i != 0;) {
        struct bt_booking *b = l->bookings[i - 1];

        at = later(at, b->prefill_cost_ns);
        if (at < now_ns)
            at = now_ns;
        plan_transfer(l, b, at, now_ns);
        i = b->prefill_next;
    }
}

static void queue_append(struct bt_ledger *l, struct worker *w,
                         struct bt_booking *b, int64_t now_ns)
{
    int64_t free_ns = free_at(l, w, now_ns);

    b->prefill_prev = w->tail;
    b->prefill_next = 0;
    if (w->tail != 0)
        l->bookings[w->tail - 1]->prefill_next = b->handle + 1;
    else
        w->head = b->handle + 1;
    if (w->head == b->handle + 1)
        w->head_start_ns = now_ns;
    w->tail = b->handle + 1;
    w->cost_ns += b->prefill_cost_ns;
    w->sums.prefill_tokens += b->prefill_tokens;
    w->sums.prefill_requests++;
    w->sums.prefill_free_ns = later(free_ns, b->prefill_cost_ns);
    b->transfer_start_ns = w->sums.prefill_free_ns;
    b->prefill_held = true;
    l->held++;
}

static void queue_unlink(struct bt_ledger *l, struct worker *w,
                         struct bt_booking *b, int64_t now_ns)
{
    if (b->prefill_prev != 0)
        l->bookings[b->prefill_prev - 1]->prefill_next = b->prefill_next;
    else
        w->head = b->prefill_next;
    if (b->prefill_prev == 0)
        w->head_start_ns = now_ns;
    if (b->prefill_next != 0)
        l->bookings[b->prefill_next - 1]->prefill_prev = b->prefill_prev;
    else
        w->tail = b->prefill_prev;
    b->prefill_prev = b->prefill_next = 0;
}

/* ---- public ---- */

static void assert_unheld(const struct bt_booking *b)
{
    assert(!b->prefill_held && !b->decode_held && !b->transfer_held);
}

void bt_ledger_book(struct bt_ledger *ledger, struct bt_booking *booking,
                    int64_t now_ns, uint32_t p, uint32_t d, uint32_t handle,
                    uint64_t prefill_tokens, int64_t prefill_cost_ns,
                    uint64_t transfer_bytes, uint64_t decode_tokens)
{
    struct bt_booking *b = booking;

    if (p == BT_PLACE_NONE)
        p = d;
    assert(p < ledger->limits.workers_max && d < ledger->limits.workers_max);
    assert(handle < ledger->limits.requests_max);
    assert(ledger->bookings[handle] == NULL);
    assert(prefill_cost_ns >= 0);
    assert_unheld(b);
    if (prefill_cost_ns > BT_COST_INFINITE)
        prefill_cost_ns = BT_COST_INFINITE;
    see(ledger, now_ns);
    *b = (struct bt_booking){.p = p,
                             .d = d,
                             .handle = handle,
                             .prefill_tokens = prefill_tokens,
                             .prefill_cost_ns = prefill_cost_ns,
                             .transfer_bytes = transfer_bytes,
                             .decode_tokens = decode_tokens};
    ledger->bookings[handle] = b;
    queue_append(ledger, &ledger->workers[p], b, now_ns);
    if (p != d && transfer_bytes > 0)
        flow_open(ledger, b, now_ns);
    ledger->workers[d].sums.decode_tokens += decode_tokens;
    ledger->workers[d].sums.decode_requests++;
    b->decode_held = true;
    ledger->held++;
}

/* The handle is free again once nothing of the request is held. */
static void settle(struct bt_ledger *l, struct bt_booking *b)
{
    if (b->prefill_held || b->decode_held || b->transfer_held)
        return;
    l->bookings[b->handle] = NULL;
}

static void assert_ours(const struct bt_ledger *l, const struct bt_booking *b)
{
    assert(b->handle < l->limits.requests_max);
    assert(l->bookings[b->handle] == b);
}

void bt_ledger_prefill_done(struct bt_ledger *ledger,
                            struct bt_booking *booking, int64_t now_ns)
{
    struct worker *w;

    if (!booking->prefill_held)
        return;
    assert_ours(ledger, booking);
    see(ledger, now_ns);
    w = &ledger->workers[booking->p];
    queue_unlink(ledger, w, booking, now_ns);
    assert(w->sums.prefill_tokens >= booking->prefill_tokens);
    assert(w->sums.prefill_requests > 0);
    assert(w->cost_ns >= booking->prefill_cost_ns);
    w->cost_ns -= booking->prefill_cost_ns;
    w->sums.prefill_tokens -= booking->prefill_tokens;
    w->sums.prefill_requests--;
    w->sums.prefill_free_ns = free_at(ledger, w, now_ns);
    booking->prefill_held = false;
    ledger->held--;
    plan_transfer(ledger, booking, now_ns, now_ns);
    replan(ledger, w, now_ns);
    settle(ledger, booking);
}

void bt_ledger_transfer_done(struct bt_ledger *ledger,
                             struct bt_booking *booking)
{
    if (!booking->transfer_held)
        return;
    assert_ours(ledger, booking);
    flow_close(ledger, booking);
    settle(ledger, booking);
}

void bt_ledger_decode_done(struct bt_ledger *ledger, struct bt_booking *booking)
{
    struct bt_ledger_worker *sums;

    if (!booking->decode_held)
        return;
    assert_ours(ledger, booking);
    sums = &ledger->workers[booking->d].sums;
    assert(sums->decode_tokens >= booking->decode_tokens);
    assert(sums->decode_requests > 0);
    sums->decode_tokens -= booking->decode_tokens;
    sums->decode_requests--;
    booking->decode_held = false;
    ledger->held--;
    settle(ledger, booking);
}

void bt_ledger_release_all(struct bt_ledger *ledger, struct bt_booking *booking,
                           int64_t now_ns)
{
    bt_ledger_transfer_done(ledger, booking);
    bt_ledger_prefill_done(ledger, booking, now_ns);
    bt_ledger_decode_done(ledger, booking);
}

void bt_ledger_worker_get(const struct bt_ledger *ledger, uint32_t worker,
                          struct bt_ledger_worker *out)
{
    assert(worker < ledger->limits.workers_max);
    *out = ledger->workers[worker].sums;
}

size_t bt_ledger_flows(const struct bt_ledger *ledger, uint32_t p, uint32_t d,
                       int64_t now_ns, uint64_t *left_out, size_t max)
{
    struct pair *pair = pair_at(ledger, p, d);
    size_t count = 0;

    roll(ledger, pair, now_ns);
    for (uint32_t i = pair->head; i != 0 && count < max;
         i = ledger->flows[i - 1].next) {
        double left = ledger->flows[i - 1].left;

        if (left >= 1)
            left_out[count++] = (uint64_t)left;
    }
    return count;
}

bool bt_ledger_is_empty(const struct bt_ledger *ledger)
{
    return ledger->held == 0;
}
