/* Own ledger. Decides what a worker still has to do for us; leaves the flows
 * between workers to ledger_flows.c, engine telemetry and the choice itself to
 * others.
 *
 * Invariants: a sum is exactly the sum over the bookings that hold it; held is
 * the number of single bookings (prefill, decode, transfer, fetch); nothing
 * held means every sum is zero.
 */
#include "ledger_impl.h"

#include "baton/planner/cost.h"
#include "baton/planner/place.h"

#include <assert.h>

size_t bt_ledger_bytes(const struct bt_ledger_limits *limits)
{
    size_t w = limits->workers_max;
    size_t r = limits->requests_max;

    return bt_arena_need(1, sizeof(struct bt_ledger)) +
           bt_arena_need(w, sizeof(struct ledger_worker)) +
           bt_arena_need(r, sizeof(struct bt_booking *)) +
           ledger_flows_bytes(limits);
}

struct bt_ledger *bt_ledger_init(struct bt_arena *arena,
                                 const struct bt_ledger_limits *limits)
{
    struct bt_ledger *l = bt_arena_take(arena, 1, sizeof(*l));
    size_t w = limits->workers_max;

    if (l == NULL || w == 0 || limits->requests_max == 0 ||
        limits->requests_max > UINT32_MAX / 2 - 1)
        return NULL;
    l->limits = *limits;
    l->workers = bt_arena_take(arena, w, sizeof(*l->workers));
    l->bookings =
        bt_arena_take(arena, limits->requests_max, sizeof(struct bt_booking *));
    if (l->workers == NULL || l->bookings == NULL ||
        !ledger_flows_init(l, arena))
        return NULL;
    return l;
}

/* ---- flows of a booking ---- */

static struct ledger_hop transfer_of(const struct bt_booking *b)
{
    return (struct ledger_hop){2 * b->handle, b->p, b->d};
}

static struct ledger_hop fetch_of(const struct bt_booking *b)
{
    return (struct ledger_hop){2 * b->handle + 1, b->fetch_from, b->p};
}

static void transfer_open(struct bt_ledger *l, struct bt_booking *b,
                          int64_t now_ns)
{
    struct ledger_hop hop = transfer_of(b);

    if (b->p == b->d || b->transfer_bytes == 0)
        return;
    ledger_flow_open(l, &hop, now_ns, b->transfer_bytes, b->transfer_start_ns);
    b->transfer_held = true;
}

static void transfer_close(struct bt_ledger *l, struct bt_booking *b,
                           int64_t now_ns)
{
    struct ledger_hop hop = transfer_of(b);

    if (!b->transfer_held)
        return;
    ledger_flow_close(l, &hop, now_ns);
    b->transfer_held = false;
}

static void transfer_plan(struct bt_ledger *l, struct bt_booking *b,
                          int64_t at_ns, int64_t now_ns)
{
    struct ledger_hop hop = transfer_of(b);

    if (at_ns == b->transfer_start_ns)
        return;
    b->transfer_start_ns = at_ns;
    if (b->transfer_held)
        ledger_flow_plan(l, &hop, now_ns, at_ns);
}

static void fetch_close(struct bt_ledger *l, struct bt_booking *b,
                        int64_t now_ns)
{
    struct ledger_hop hop = fetch_of(b);

    if (!b->fetch_held)
        return;
    ledger_flow_close(l, &hop, now_ns);
    b->fetch_held = false;
}

/* ---- prefill queue ---- */

static int64_t later(int64_t at_ns, int64_t by_ns)
{
    return at_ns >= INT64_MAX / 2 - by_ns ? INT64_MAX / 2 : at_ns + by_ns;
}

/* When the worker is free, seen at now: an overdue head ends now. */
static int64_t free_at(const struct bt_ledger *l, const struct ledger_worker *w,
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
static void replan(struct bt_ledger *l, struct ledger_worker *w, int64_t now_ns)
{
    int64_t at = w->head_start_ns;

    for (uint32_t i = w->head; i != 0;) {
        struct bt_booking *b = l->bookings[i - 1];

        at = later(at, b->prefill_cost_ns);
        if (at < now_ns)
            at = now_ns;
        transfer_plan(l, b, at, now_ns);
        i = b->prefill_next;
    }
}

static void queue_append(struct bt_ledger *l, struct ledger_worker *w,
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

static void queue_unlink(struct bt_ledger *l, struct ledger_worker *w,
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

/* ---- decode ---- */

static void decode_add(struct bt_ledger *l, struct bt_booking *b)
{
    struct bt_ledger_worker *sums = &l->workers[b->d].sums;

    sums->decode_tokens += b->decode_tokens;
    sums->decode_requests++;
    b->decode_held = true;
    l->held++;
}

static void decode_remove(struct bt_ledger *l, struct bt_booking *b)
{
    struct bt_ledger_worker *sums = &l->workers[b->d].sums;

    assert(sums->decode_tokens >= b->decode_tokens);
    assert(sums->decode_requests > 0);
    sums->decode_tokens -= b->decode_tokens;
    sums->decode_requests--;
    b->decode_held = false;
    l->held--;
}

/* ---- public ---- */

static void assert_unheld(const struct bt_booking *b)
{
    assert(!b->prefill_held && !b->decode_held && !b->transfer_held);
}

/* What a prefetch brings to p stays booked. */
static void assert_prefetch_fits(const struct bt_ledger *l,
                                 const struct bt_booking *b, uint32_t p,
                                 uint32_t handle)
{
    assert(l->bookings[handle] == (b->fetch_held ? b : NULL));
    assert(!b->fetch_held || (b->handle == handle && b->p == p));
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
    assert(prefill_cost_ns >= 0);
    assert_unheld(b);
    assert_prefetch_fits(ledger, b, p, handle);
    if (prefill_cost_ns > BT_COST_INFINITE)
        prefill_cost_ns = BT_COST_INFINITE;
    *b = (struct bt_booking){.p = p,
                             .d = d,
                             .handle = handle,
                             .fetch_held = b->fetch_held,
                             .fetch_from = b->fetch_from,
                             .prefill_tokens = prefill_tokens,
                             .prefill_cost_ns = prefill_cost_ns,
                             .transfer_bytes = transfer_bytes,
                             .decode_tokens = decode_tokens};
    ledger->bookings[handle] = b;
    queue_append(ledger, &ledger->workers[p], b, now_ns);
    transfer_open(ledger, b, now_ns);
    decode_add(ledger, b);
}

/* The handle is free again once nothing of the request is held. */
static void settle(struct bt_ledger *l, struct bt_booking *b)
{
    if (b->prefill_held || b->decode_held || b->transfer_held || b->fetch_held)
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
    struct ledger_worker *w;

    if (!booking->prefill_held)
        return;
    assert_ours(ledger, booking);
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
    fetch_close(ledger, booking, now_ns);
    transfer_plan(ledger, booking, now_ns, now_ns);
    replan(ledger, w, now_ns);
    settle(ledger, booking);
}

void bt_ledger_transfer_done(struct bt_ledger *ledger,
                             struct bt_booking *booking, int64_t now_ns)
{
    if (!booking->transfer_held)
        return;
    assert_ours(ledger, booking);
    transfer_close(ledger, booking, now_ns);
    settle(ledger, booking);
}

void bt_ledger_book_fetch(struct bt_ledger *ledger, struct bt_booking *booking,
                          int64_t now_ns, uint32_t from, uint64_t bytes)
{
    struct ledger_hop hop;

    assert_ours(ledger, booking);
    assert(booking->prefill_held && !booking->fetch_held);
    assert(from < ledger->limits.workers_max);
    if (from == booking->p || bytes == 0)
        return;
    booking->fetch_from = from;
    booking->fetch_held = true;
    hop = fetch_of(booking);
    ledger_flow_open(ledger, &hop, now_ns, bytes, now_ns);
}

void bt_ledger_book_prefetch(struct bt_ledger *ledger,
                             struct bt_booking *booking, int64_t now_ns,
                             uint32_t handle, uint32_t from, uint32_t to,
                             uint64_t bytes)
{
    struct ledger_hop hop;

    assert(from < ledger->limits.workers_max);
    assert(to < ledger->limits.workers_max && from != to && bytes > 0);
    assert(handle < ledger->limits.requests_max);
    assert(ledger->bookings[handle] == NULL);
    assert_unheld(booking);
    assert(!booking->fetch_held);
    *booking = (struct bt_booking){.p = to,
                                   .d = to,
                                   .handle = handle,
                                   .fetch_held = true,
                                   .fetch_from = from};
    ledger->bookings[handle] = booking;
    hop = fetch_of(booking);
    ledger_flow_open(ledger, &hop, now_ns, bytes, now_ns);
}

void bt_ledger_fetch_done(struct bt_ledger *ledger, struct bt_booking *booking,
                          int64_t now_ns)
{
    if (!booking->fetch_held)
        return;
    assert_ours(ledger, booking);
    fetch_close(ledger, booking, now_ns);
    settle(ledger, booking);
}

void bt_ledger_rebook_decode(struct bt_ledger *ledger,
                             struct bt_booking *booking, int64_t now_ns,
                             uint32_t d, uint64_t transfer_bytes)
{
    if (!booking->decode_held)
        return;
    assert_ours(ledger, booking);
    assert(d < ledger->limits.workers_max);
    transfer_close(ledger, booking, now_ns);
    decode_remove(ledger, booking);
    booking->d = d;
    booking->transfer_bytes = transfer_bytes;
    if (!booking->prefill_held)
        booking->transfer_start_ns = now_ns;
    transfer_open(ledger, booking, now_ns);
    decode_add(ledger, booking);
}

void bt_ledger_decode_done(struct bt_ledger *ledger, struct bt_booking *booking)
{
    if (!booking->decode_held)
        return;
    assert_ours(ledger, booking);
    decode_remove(ledger, booking);
    settle(ledger, booking);
}

void bt_ledger_release_all(struct bt_ledger *ledger, struct bt_booking *booking,
                           int64_t now_ns)
{
    bt_ledger_transfer_done(ledger, booking, now_ns);
    bt_ledger_prefill_done(ledger, booking, now_ns);
    bt_ledger_fetch_done(ledger, booking, now_ns);
    bt_ledger_decode_done(ledger, booking);
}

void bt_ledger_worker_get(const struct bt_ledger *ledger, uint32_t worker,
                          struct bt_ledger_worker *out)
{
    assert(worker < ledger->limits.workers_max);
    *out = ledger->workers[worker].sums;
}

bool bt_ledger_is_empty(const struct bt_ledger *ledger)
{
    return ledger->held == 0;
}
