/* Statistics of benchmark reports: exact quantiles of small samples and
 * bootstrap intervals. No clock, no allocation beyond one scratch array. */
#ifndef BATON_BENCH_STATS_H
#define BATON_BENCH_STATS_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

/* 0 for an empty sample. */
double bt_stat_mean(const double *values, size_t count);
void bt_stat_sort(double *values, size_t count);
/* Nearest rank on a sorted sample: the smallest value with at least q * count
 * values at or below it; q in [0, 1]. 0 for an empty sample. */
double bt_stat_quantile(const double *sorted, size_t count, double q);

struct bt_stat_interval {
    double mean, low, high; /* 95 % percentile bootstrap of the mean */
};
/* Resample with replacement, seeded. BT_INVALID for an empty sample or no
 * resamples, BT_NO_MEMORY. */
enum bt_status bt_stat_bootstrap(const double *values, size_t count,
                                 uint32_t resamples, uint64_t seed,
                                 struct bt_stat_interval *out);
/* Largest value over the mean, 1 for an even spread; 0 when all are 0. */
double bt_stat_imbalance(const double *values, size_t count);

#endif
