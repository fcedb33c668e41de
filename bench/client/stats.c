/* Exact quantiles and bootstrap intervals of small samples. Which statistic a
 * report shows is the report's business. */
#include "baton/bench/stats.h"
#include "baton/base/rng.h"
#include <stdlib.h>

double bt_stat_mean(const double *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return count ? sum / (double)count : 0;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

void bt_stat_sort(double *values, size_t count)
{
    if (count > 1)
        qsort(values, count, sizeof(*values), compare);
}

double bt_stat_quantile(const double *sorted, size_t count, double q)
{
    double wanted = q * (double)count;
    size_t rank;

    if (count == 0)
        return 0;
    /* the smallest rank (1-based) that is >= wanted, despite rounding */
    rank = wanted > 0 ? (size_t)wanted : 0;
    if ((double)rank + 1e-9 * (double)count < wanted)
        rank++;
    if (rank < 1)
        rank = 1;
    return sorted[rank > count ? count - 1 : rank - 1];
}

enum bt_status bt_stat_bootstrap(const double *values, size_t count,
                                 uint32_t resamples, uint64_t seed,
                                 struct bt_stat_interval *out)
{
    struct bt_rng rng;
    double *means;

    if (count == 0 || resamples == 0)
        return BT_INVALID;
    means = malloc(resamples * sizeof(*means));
    if (!means)
        return BT_NO_MEMORY;
    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < resamples; i++) {
        double sum = 0;

        for (size_t j = 0; j < count; j++)
            sum += values[bt_rng_below(&rng, count)];
        means[i] = sum / (double)count;
    }
    bt_stat_sort(means, resamples);
    out->mean = bt_stat_mean(values, count);
    out->low = bt_stat_quantile(means, resamples, 0.025);
    out->high = bt_stat_quantile(means, resamples, 0.975);
    free(means);
    return BT_OK;
}

double bt_stat_imbalance(const double *values, size_t count)
{
    double mean = bt_stat_mean(values, count), max = 0;

    for (size_t i = 0; i < count; i++)
        max = values[i] > max ? values[i] : max;
    return mean > 0 ? max / mean : 0;
}
