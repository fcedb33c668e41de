/* When a decode worker has room, and how long outputs are. Decides the instant
 * from a list of expected releases; leaves who runs where and when they end to
 * the ledger's owner.
 *
 * Invariants: more free blocks or a longer held prefix never make it later, a
 * longer queue never earlier. Lengths: bucket sums equal `total` up to
 * rounding.
 */
#include "baton/planner/slot.h"

#include "baton/base/units.h"
#include "baton/planner/cost.h"

#include <string.h>

uint64_t bt_slot_need(uint64_t prompt_tokens, uint64_t reserve_tokens,
                      uint64_t held_tokens, uint32_t block_tokens)
{
    uint64_t block = block_tokens > 0 ? block_tokens : 1;
    uint64_t tokens, all;

    if (__builtin_add_overflow(prompt_tokens, reserve_tokens, &tokens))
        tokens = UINT64_MAX;
    all = tokens / block + (tokens % block != 0);
    return all > held_tokens / block ? all - held_tokens / block : 0;
}

/* Blocks per ns that each running request grows by. */
static double growth_each(const struct bt_slot_query *q)
{
    size_t all = q->running > q->count ? q->running : q->count;

    if (!(q->growth_blocks_per_s > 0))
        return 0;
    return q->growth_blocks_per_s / (double)BT_NS_PER_S /
           (double)(all > 0 ? all : 1);
}

/* Room only grows at a release, so only those instants can be the first. Those
 * that have ended gave back all they held, growth included. */
int64_t bt_slot_alloc_ns(const struct bt_slot_query *q)
{
    double need = (double)q->ahead_blocks + (double)q->need_blocks;
    double room = (double)q->free_blocks;
    double each = growth_each(q);
    double left = (double)(q->running > q->count ? q->running : q->count);

    if (room >= need)
        return q->now_ns;
    for (size_t i = 0; i < q->count; i++) {
        int64_t at = q->releases[i].at_ns;

        if (at >= BT_COST_INFINITE)
            break;
        at = at > q->now_ns ? at : q->now_ns;
        room += (double)q->releases[i].blocks;
        left -= 1;
        if (room - each * left * (double)(at - q->now_ns) >= need)
            return at;
    }
    return BT_COST_INFINITE;
}

/* End of the k-th request from now (1-based). Past the list the pace of the
 * list goes on: those ahead will end too. */
static int64_t kth_end_ns(const struct bt_slot_query *q, uint64_t k)
{
    int64_t last;
    double at;

    if (q->count == 0)
        return BT_COST_INFINITE;
    if (k <= q->count)
        return q->releases[k - 1].at_ns;
    last = q->releases[q->count - 1].at_ns;
    last = last > q->now_ns ? last : q->now_ns;
    at = (double)last +
         (double)(k - q->count) * (double)(last - q->now_ns) / (double)q->count;
    return at < (double)BT_COST_INFINITE ? (int64_t)at : BT_COST_INFINITE;
}

int64_t bt_slot_run_ns(const struct bt_slot_query *q)
{
    int64_t alloc = bt_slot_alloc_ns(q);
    uint64_t before = (uint64_t)q->running + q->ahead;
    int64_t slot;

    if (q->running_max == 0 || before < q->running_max)
        return alloc;
    slot = kth_end_ns(q, before - q->running_max + 1);
    return slot > alloc ? slot : alloc;
}

/* ---- lengths ---- */

/* Every value of a bucket that starts at lo is less than 5 % away from its mid,
 * and the bucket is as long as that allows. Whole numbers, so the first 19 hold
 * one value each; 96 of them reach 42,000. */
static uint32_t mid_of(uint32_t lo)
{
    return lo + (lo - 1) / 20;
}

static void lay_out(struct bt_length *l)
{
    l->start[0] = 1;
    for (size_t i = 0; i < BT_LENGTH_BUCKETS; i++)
        l->start[i + 1] = (20 * mid_of(l->start[i]) - 1) / 19 + 1;
}

/* Values beyond the last bucket count as its. */
static size_t bucket_of(const struct bt_length *l, uint64_t value)
{
    size_t lo = 0;
    size_t hi = BT_LENGTH_BUCKETS;

    while (hi - lo > 1) {
        size_t at = (lo + hi) / 2;

        if (value >= l->start[at])
            lo = at;
        else
            hi = at;
    }
    return lo;
}

/* What the configured prior weighs, in observations. */
#define PRIOR_WEIGHT 8.0

void bt_length_init(struct bt_length *l, double decay, uint32_t prior)
{
    memset(l, 0, sizeof(*l));
    lay_out(l);
    l->decay = decay >= 0.99 ? decay : 0.99;
    if (l->decay > 1)
        l->decay = 1;
    if (prior == 0)
        return;
    l->weight[bucket_of(l, prior)] = PRIOR_WEIGHT;
    l->total = PRIOR_WEIGHT;
}

void bt_length_observe(struct bt_length *l, uint64_t value)
{
    double total = 0;

    if (value == 0)
        return;
    for (size_t i = 0; i < BT_LENGTH_BUCKETS; i++)
        l->weight[i] *= l->decay;
    l->weight[bucket_of(l, value)] += 1;
    for (size_t i = 0; i < BT_LENGTH_BUCKETS; i++)
        total += l->weight[i];
    l->total = total;
}

uint64_t bt_length_quantile(const struct bt_length *l, double q)
{
    double need = q > 0 ? q * l->total : 0;
    double sum = 0;
    uint64_t last = 0;

    for (size_t i = 0; i < BT_LENGTH_BUCKETS; i++) {
        if (!(l->weight[i] > 0))
            continue;
        sum += l->weight[i];
        last = mid_of(l->start[i]);
        if (sum >= need)
            break;
    }
    return last;
}

/* Mean of what lies above `seen`, each bucket at its mid; the one that `seen`
 * cuts counts by the part above, at that part's middle. */
uint64_t bt_length_left(const struct bt_length *l, uint64_t seen)
{
    size_t cut = bucket_of(l, seen);
    double past = (double)l->start[cut + 1]; /* first value behind it */
    double weight = 0;
    double sum = 0;

    if (seen >= l->start[cut] && seen < l->start[cut + 1] - 1) {
        weight = l->weight[cut] * (past - 1 - (double)seen) /
                 (past - (double)l->start[cut]);
        sum = weight * ((double)seen + past) / 2;
    }
    if (seen > 0)
        cut++;
    for (size_t i = cut; i < BT_LENGTH_BUCKETS; i++) {
        weight += l->weight[i];
        sum += l->weight[i] * (double)mid_of(l->start[i]);
    }
    if (!(weight > 1e-9))
        return l->total > 0 ? seen / 20 + 1 : 0;
    return (uint64_t)(sum / weight - (double)seen + 0.5);
}
