/* Log-linear histogram of int64 values (HDR style): 32 linear sub-buckets per
 * power of two, so a quantile is at most 1/32 = 3.2 % above the true one.
 * Values below 0 count as 0. Fixed size, no allocation; pure. */
#ifndef BATON_BASE_HISTOGRAM_H
#define BATON_BASE_HISTOGRAM_H

#include <stdint.h>

#define BT_HISTOGRAM_BUCKETS 1920

struct bt_histogram {
    uint64_t count;
    int64_t min, max; /* of the recorded values; 0 while empty */
    double sum;
    uint32_t buckets[BT_HISTOGRAM_BUCKETS];
};

void bt_histogram_reset(struct bt_histogram *h);
void bt_histogram_add(struct bt_histogram *h, int64_t value);
void bt_histogram_merge(struct bt_histogram *to, const struct bt_histogram *h);
/* Smallest bucket upper bound with at least q * count values at or below it,
 * clamped to [min, max]; q in [0, 1]; 0 while empty. */
int64_t bt_histogram_quantile(const struct bt_histogram *h, double q);
double bt_histogram_mean(const struct bt_histogram *h);

#endif
