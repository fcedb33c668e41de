/* Log-linear histogram. Values below 32 have a bucket each; above, every power
 * of two [2^e, 2^(e+1)) is cut into 32 equal buckets:
 *
 *   index = (e - 5) * 32 + (v >> (e - 5)),   v >> (e - 5) in [32, 63]
 *
 * Invariant: sum of buckets == count, unless a bucket saturated at 2^32 - 1.
 */
#include "baton/base/histogram.h"

#include <string.h>

#define SUB_BITS 5

static unsigned int bucket_of(int64_t value)
{
    uint64_t v = (uint64_t)value;
    unsigned int shift;

    if (v < 1u << (SUB_BITS + 1))
        return (unsigned int)v;
    shift = 63u - (unsigned int)__builtin_clzll(v) - SUB_BITS;
    return (shift << SUB_BITS) + (unsigned int)(v >> shift);
}

/* Largest value that falls into bucket i. */
static int64_t bucket_top(unsigned int i)
{
    unsigned int shift, sub;

    if (i < 1u << (SUB_BITS + 1))
        return (int64_t)i;
    shift = (i >> SUB_BITS) - 1;
    sub = (i & ((1u << SUB_BITS) - 1)) + (1u << SUB_BITS);
    return (int64_t)((((uint64_t)sub + 1) << shift) - 1);
}

static void add_saturated(uint32_t *bucket, uint32_t n)
{
    *bucket = n > UINT32_MAX - *bucket ? UINT32_MAX : *bucket + n;
}

void bt_histogram_reset(struct bt_histogram *h)
{
    memset(h, 0, sizeof(*h));
}

void bt_histogram_add(struct bt_histogram *h, int64_t value)
{
    if (value < 0)
        value = 0;
    if (h->count == 0 || value < h->min)
        h->min = value;
    if (h->count == 0 || value > h->max)
        h->max = value;
    h->count++;
    h->sum += (double)value;
    add_saturated(&h->buckets[bucket_of(value)], 1);
}

void bt_histogram_merge(struct bt_histogram *to, const struct bt_histogram *h)
{
    if (h->count == 0)
        return;
    if (to->count == 0 || h->min < to->min)
        to->min = h->min;
    if (to->count == 0 || h->max > to->max)
        to->max = h->max;
    to->count += h->count;
    to->sum += h->sum;
    for (unsigned int i = 0; i < BT_HISTOGRAM_BUCKETS; i++)
        add_saturated(&to->buckets[i], h->buckets[i]);
}

/* How many values must lie at or below the answer: ceil(q * count), at least
 * one, at most all. */
static uint64_t rank_of(double q, uint64_t count)
{
    double exact = q > 0 ? q * (double)count : 0;
    uint64_t rank = exact >= (double)count ? count : (uint64_t)exact;

    if ((double)rank < exact && rank < count)
        rank++;
    return rank == 0 ? 1 : rank;
}

int64_t bt_histogram_quantile(const struct bt_histogram *h, double q)
{
    uint64_t seen = 0, rank;

    if (h->count == 0)
        return 0;
    rank = rank_of(q, h->count);
    for (unsigned int i = 0; i < BT_HISTOGRAM_BUCKETS; i++) {
        int64_t top;

        seen += h->buckets[i];
        if (seen < rank)
            continue;
        top = bucket_top(i);
        if (top > h->max)
            return h->max;
        return top < h->min ? h->min : top;
    }
    return h->max;
}

double bt_histogram_mean(const struct bt_histogram *h)
{
    return h->count == 0 ? 0 : h->sum / (double)h->count;
}
