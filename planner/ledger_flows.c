/* Flows of the ledger: how many bytes our own transfers have left on a pair.
 * Pairs whose path the topology knows are the network's: those flows are passed
 * on to it and appear in no pair. On the others, those that have started share
 * the pair's rate equally (fluid model). Changes (a flow opens, closes, is
 * planned anew) roll the pair forward to their time; a look works on a copy, so
 * looking, at whatever time, changes nothing.
 *
 * Invariants: a pair is in the table while held > 0, and in the busy list
 * while it has live flows; a live flow had bytes left when its pair was last
 * rolled.
 */
#include "ledger_impl.h"

#include "baton/base/rng.h"

#include <assert.h>

static uint32_t bucket_count(uint32_t items)
{
    uint32_t n = 16;

    while (n < items && n < 1u << 30)
        n *= 2;
    return n;
}

size_t ledger_flows_bytes(const struct bt_ledger_limits *limits)
{
    size_t f = 2 * (size_t)limits->requests_max;

    return bt_arena_need(f + 1, sizeof(struct ledger_pair)) +
           bt_arena_need(bucket_count(limits->requests_max), sizeof(uint32_t)) +
           bt_arena_need(f, sizeof(struct ledger_flow)) +
           bt_arena_need(f, sizeof(struct ledger_fluid));
}

bool ledger_flows_init(struct bt_ledger *l, struct bt_arena *arena)
{
    size_t f = 2 * (size_t)l->limits.requests_max;
    uint32_t buckets = bucket_count(l->limits.requests_max);

    l->flows_max = (uint32_t)f;
    l->pairs = bt_arena_take(arena, f + 1, sizeof(*l->pairs));
    l->buckets = bt_arena_take(arena, buckets, sizeof(*l->buckets));
    l->bucket_mask = buckets - 1;
    l->flows = bt_arena_take(arena, f, sizeof(*l->flows));
    l->fluid = bt_arena_take(arena, f, sizeof(*l->fluid));
    return l->pairs != NULL && l->buckets != NULL && l->flows != NULL &&
           l->fluid != NULL;
}

/* ---- pairs ---- */

static uint32_t *bucket_of(const struct bt_ledger *l, uint32_t p, uint32_t d)
{
    return &l->buckets[bt_mix64((uint64_t)p << 32 | d) & l->bucket_mask];
}

/* 0: no flow is held on it. */
static uint32_t pair_find(const struct bt_ledger *l, uint32_t p, uint32_t d)
{
    uint32_t i = *bucket_of(l, p, d);

    while (i != 0 && (l->pairs[i].p != p || l->pairs[i].d != d))
        i = l->pairs[i].next_in_bucket;
    return i;
}

/* There are as many pairs as flows may be held: one is always free. */
static uint32_t pair_make(struct bt_ledger *l, uint32_t p, uint32_t d,
                          int64_t now_ns)
{
    uint32_t *bucket = bucket_of(l, p, d);
    uint32_t i = l->pair_free;
    uint64_t rate = 0;

    if (i != 0)
        l->pair_free = l->pairs[i].next_in_bucket;
    else
        i = ++l->pairs_fresh;
    assert(i <= l->flows_max);
    if (l->limits.rate != NULL)
        rate = l->limits.rate(l->limits.rate_arg, p, d);
    l->pairs[i] = (struct ledger_pair){.p = p,
                                       .d = d,
                                       .rate_bytes_per_s = rate,
                                       .rolled_ns = now_ns,
                                       .next_in_bucket = *bucket};
    *bucket = i;
    return i;
}

static void pair_free(struct bt_ledger *l, uint32_t pair)
{
    uint32_t *link = bucket_of(l, l->pairs[pair].p, l->pairs[pair].d);

    assert(l->pairs[pair].first == 0);
    while (*link != pair)
        link = &l->pairs[*link].next_in_bucket;
    *link = l->pairs[pair].next_in_bucket;
    l->pairs[pair].next_in_bucket = l->pair_free;
    l->pair_free = pair;
}

static void link_flow(struct bt_ledger *l, uint32_t pair, uint32_t flow)
{
    struct ledger_pair *x = &l->pairs[pair];

    if (x->first == 0) {
        x->busy_prev = 0;
        x->busy_next = l->busy_first;
        if (l->busy_first != 0)
            l->pairs[l->busy_first].busy_prev = pair;
        l->busy_first = pair;
    } else {
        l->flows[x->first - 1].prev = flow + 1;
    }
    l->flows[flow].next = x->first;
    l->flows[flow].live = true;
    x->first = flow + 1;
}

static void unlink_flow(struct bt_ledger *l, uint32_t pair, uint32_t flow)
{
    struct ledger_pair *x = &l->pairs[pair];
    struct ledger_flow *f = &l->flows[flow];

    if (f->prev != 0)
        l->flows[f->prev - 1].next = f->next;
    else
        x->first = f->next;
    if (f->next != 0)
        l->flows[f->next - 1].prev = f->prev;
    *f = (struct ledger_flow){0};
    if (x->first != 0)
        return;
    if (x->busy_prev != 0)
        l->pairs[x->busy_prev].busy_next = x->busy_next;
    else
        l->busy_first = x->busy_next;
    if (x->busy_next != 0)
        l->pairs[x->busy_next].busy_prev = x->busy_prev;
}

/* ---- the fluid model ---- */

/* The flows at instant t: how many are running, the least bytes among them,
 * and the next planned start after t. */
struct census {
    size_t running;
    double least;
    int64_t next_start_ns;
};

static struct census count_fluid(const struct ledger_fluid *fluid, size_t n,
                                 int64_t t)
{
    struct census c = {0, 0, INT64_MAX};

    for (size_t i = 0; i < n; i++) {
        if (fluid[i].left <= 0)
            continue;
        if (fluid[i].start_ns > t) {
            if (fluid[i].start_ns < c.next_start_ns)
                c.next_start_ns = fluid[i].start_ns;
            continue;
        }
        if (c.running == 0 || fluid[i].left < c.least)
            c.least = fluid[i].left;
        c.running++;
    }
    return c;
}

static void drain_fluid(struct ledger_fluid *fluid, size_t n, int64_t t,
                        double bytes)
{
    for (size_t i = 0; i < n; i++) {
        if (fluid[i].start_ns <= t)
            fluid[i].left = fluid[i].left > bytes ? fluid[i].left - bytes : 0;
    }
}

/* From t to now. Every turn ends a flow, starts one or reaches now, so there
 * are at most 2 * n + 1 turns. */
static void roll_fluid(struct ledger_fluid *fluid, size_t n, uint64_t rate,
                       int64_t t, int64_t now_ns)
{
    double per_ns = (double)rate / 1e9;

    while (n != 0 && rate != 0 && t < now_ns) {
        struct census c = count_fluid(fluid, n, t);
        int64_t until = c.next_start_ns < now_ns ? c.next_start_ns : now_ns;
        double share, span = (double)(until - t);

        if (c.running > 0) {
            share = per_ns / (double)c.running;
            if (c.least <= share * span) {
                int64_t used = (int64_t)(c.least / share);

                drain_fluid(fluid, n, t, c.least);
                until = used < until - t ? t + used : until;
            } else {
                drain_fluid(fluid, n, t, share * span);
            }
        }
        t = until;
    }
}

/* The pair's live flows at now, in the scratch; returns how many. */
static size_t take_fluid(const struct bt_ledger *l,
                         const struct ledger_pair *pair, int64_t now_ns)
{
    size_t n = 0;

    for (uint32_t i = pair->first; i != 0; i = l->flows[i - 1].next)
        l->fluid[n++] =
            (struct ledger_fluid){.left = l->flows[i - 1].left,
                                  .start_ns = l->flows[i - 1].start_ns,
                                  .flow = i - 1};
    roll_fluid(l->fluid, n, pair->rate_bytes_per_s, pair->rolled_ns, now_ns);
    return n;
}

static void roll(struct bt_ledger *l, uint32_t pair, int64_t now_ns)
{
    struct ledger_pair *x = &l->pairs[pair];
    size_t n;

    if (x->rolled_ns >= now_ns)
        return;
    n = take_fluid(l, x, now_ns);
    for (size_t i = 0; i < n; i++) {
        l->flows[l->fluid[i].flow].left = l->fluid[i].left;
        if (l->fluid[i].left <= 0)
            unlink_flow(l, pair, l->fluid[i].flow);
    }
    x->rolled_ns = now_ns;
}

/* ---- changes ---- */

static bool in_network(const struct bt_ledger *l, const struct ledger_hop *hop)
{
    const struct bt_network *net = l->limits.network;

    return net != NULL &&
           bt_topology_class_of(bt_network_topology(net), hop->from, hop->to) !=
               BT_PATH_UNKNOWN;
}

static void open_on_pair(struct bt_ledger *l, const struct ledger_hop *hop,
                         int64_t now_ns, uint64_t bytes, int64_t start_ns)
{
    uint32_t pair = pair_find(l, hop->from, hop->to);

    if (pair == 0)
        pair = pair_make(l, hop->from, hop->to, now_ns);
    roll(l, pair, now_ns);
    l->flows[hop->flow] =
        (struct ledger_flow){.left = (double)bytes, .start_ns = start_ns};
    link_flow(l, pair, hop->flow);
    l->pairs[pair].held++;
}

static void close_on_pair(struct bt_ledger *l, const struct ledger_hop *hop,
                          int64_t now_ns)
{
    uint32_t pair = pair_find(l, hop->from, hop->to);

    assert(pair != 0 && l->pairs[pair].held > 0);
    roll(l, pair, now_ns);
    if (l->flows[hop->flow].live)
        unlink_flow(l, pair, hop->flow);
    if (--l->pairs[pair].held == 0)
        pair_free(l, pair);
}

void ledger_flow_open(struct bt_ledger *l, const struct ledger_hop *hop,
                      int64_t now_ns, uint64_t bytes, int64_t start_ns)
{
    if (in_network(l, hop))
        bt_network_open(l->limits.network, hop->flow, now_ns, hop->from,
                        hop->to, bytes, start_ns);
    else
        open_on_pair(l, hop, now_ns, bytes, start_ns);
    l->workers[hop->from].sums.transfers++;
    l->workers[hop->to].sums.transfers++;
    l->held++;
}

void ledger_flow_close(struct bt_ledger *l, const struct ledger_hop *hop,
                       int64_t now_ns)
{
    if (in_network(l, hop))
        bt_network_close(l->limits.network, hop->flow, now_ns);
    else
        close_on_pair(l, hop, now_ns);
    assert(l->workers[hop->from].sums.transfers > 0);
    assert(l->workers[hop->to].sums.transfers > 0);
    l->workers[hop->from].sums.transfers--;
    l->workers[hop->to].sums.transfers--;
    l->held--;
}

void ledger_flow_plan(struct bt_ledger *l, const struct ledger_hop *hop,
                      int64_t now_ns, int64_t start_ns)
{
    if (in_network(l, hop)) {
        bt_network_plan(l->limits.network, hop->flow, now_ns, start_ns);
        return;
    }
    roll(l, pair_find(l, hop->from, hop->to), now_ns);
    l->flows[hop->flow].start_ns = start_ns;
}

/* ---- looks ---- */

static size_t look(const struct bt_ledger *l, const struct ledger_pair *pair,
                   int64_t now_ns, uint64_t *left_out, size_t max)
{
    size_t n = take_fluid(l, pair, now_ns), count = 0;

    for (size_t i = 0; i < n && count < max; i++) {
        if (l->fluid[i].left >= 1)
            left_out[count++] = (uint64_t)l->fluid[i].left;
    }
    return count;
}

size_t bt_ledger_flows(const struct bt_ledger *ledger, uint32_t p, uint32_t d,
                       int64_t now_ns, uint64_t *left_out, size_t max)
{
    uint32_t pair;

    assert(p < ledger->limits.workers_max && d < ledger->limits.workers_max);
    pair = pair_find(ledger, p, d);
    if (pair == 0)
        return 0;
    return look(ledger, &ledger->pairs[pair], now_ns, left_out, max);
}

uint32_t bt_ledger_busy(const struct bt_ledger *ledger, uint32_t after,
                        uint32_t *p_out, uint32_t *d_out)
{
    uint32_t i =
        after == 0 ? ledger->busy_first : ledger->pairs[after].busy_next;

    if (i == 0)
        return 0;
    *p_out = ledger->pairs[i].p;
    *d_out = ledger->pairs[i].d;
    return i;
}

size_t bt_ledger_busy_flows(const struct bt_ledger *ledger, uint32_t at,
                            int64_t now_ns, uint64_t *left_out, size_t max)
{
    return look(ledger, &ledger->pairs[at], now_ns, left_out, max);
}
