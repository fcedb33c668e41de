/* Paired differences of two arms with bootstrap intervals: seeds are drawn
 * with replacement and, within each, blocks of BLOCK consecutive requests.
 * Requests are paired by their place; one that either arm did not answer is
 * left out, and the shares answered are given so that a rule that sheds does
 * not look fast. Quantiles of a resample come from one sorted list and the
 * number of times each block was drawn, so that nothing is sorted again. */
#include "baton/base/rng.h"
#include "report_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK          64u
#define RESAMPLES_MEAN 10000u
#define RESAMPLES_RANK 1000u
#define RNG_SEED       20260901u

struct ranked {
    double value;
    uint32_t block;
};

struct side {
    struct ranked *sorted; /* by value */
    double *block_sum;
};

/* One seed: its pairs, both sides. */
struct pairs {
    size_t count;
    uint32_t blocks;
    uint32_t *block_size, *drawn; /* drawn: times, of the present resample */
    struct side sides[2];
};

static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    return (x->value > y->value) - (x->value < y->value);
}

static void pairs_fini(struct pairs *p)
{
    free(p->block_size);
    free(p->drawn);
    for (int i = 0; i < 2; i++) {
        free(p->sides[i].sorted);
        free(p->sides[i].block_sum);
    }
    memset(p, 0, sizeof(*p));
}

static enum bt_status pairs_room(struct pairs *p, size_t n)
{
    size_t blocks = n / BLOCK + 1;

    p->block_size = calloc(blocks, sizeof(*p->block_size));
    p->drawn = calloc(blocks, sizeof(*p->drawn));
    for (int i = 0; i < 2; i++) {
        p->sides[i].sorted = calloc(n + 1, sizeof(struct ranked));
        p->sides[i].block_sum = calloc(blocks, sizeof(double));
        if (!p->sides[i].sorted || !p->sides[i].block_sum)
            return BT_NO_MEMORY;
    }
    return p->block_size && p->drawn ? BT_OK : BT_NO_MEMORY;
}

static enum bt_status pairs_init(struct pairs *p, const float *a,
                                 const float *b, size_t n)
{
    enum bt_status status = pairs_room(p, n);

    if (status != BT_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        uint32_t block = (uint32_t)(p->count / BLOCK);
        double value[2] = {(double)a[i], (double)b[i]};

        if (!isfinite(value[0]) || !isfinite(value[1]))
            continue;
        for (int k = 0; k < 2; k++) {
            p->sides[k].sorted[p->count] = (struct ranked){value[k], block};
            p->sides[k].block_sum[block] += value[k];
        }
        p->block_size[block]++;
        p->drawn[block] = 1;
        p->count++;
        p->blocks = block + 1;
    }
    for (int k = 0; k < 2; k++)
        qsort(p->sides[k].sorted, p->count, sizeof(struct ranked), by_value);
    return BT_OK;
}

static double mean_of(const struct pairs *p, int side)
{
    double sum = 0, n = 0;

    for (uint32_t i = 0; i < p->blocks; i++) {
        sum += p->sides[side].block_sum[i] * p->drawn[i];
        n += (double)p->block_size[i] * p->drawn[i];
    }
    return n > 0 ? sum / n : 0;
}

/* Nearest rank, as bt_stat_quantile, each value as often as its block was
 * drawn; from the nearer end. */
static double quantile_of(const struct pairs *p, int side, double q)
{
    const struct ranked *sorted = p->sides[side].sorted;
    uint64_t total = 0, rank, seen = 0;

    for (uint32_t i = 0; i < p->blocks; i++)
        total += (uint64_t)p->block_size[i] * p->drawn[i];
    rank = (uint64_t)ceil(q * (double)total * (1 - 1e-12));
    rank = rank < 1 ? 1 : rank;
    if (q > 0.5) {
        for (size_t i = p->count; i-- > 0;) {
            seen += p->drawn[sorted[i].block];
            if (seen > total - rank)
                return sorted[i].value;
        }
    }
    for (size_t i = 0; i < p->count; i++) {
        seen += p->drawn[sorted[i].block];
        if (seen >= rank)
            return sorted[i].value;
    }
    return 0;
}

static double stat_of(const struct pairs *p, int side, enum bt_report_stat stat)
{
    switch (stat) {
    case BT_REPORT_MEAN:
        return mean_of(p, side);
    case BT_REPORT_P50:
        return quantile_of(p, side, 0.5);
    case BT_REPORT_P90:
        return quantile_of(p, side, 0.9);
    case BT_REPORT_P95:
        return quantile_of(p, side, 0.95);
    case BT_REPORT_P99:
        return quantile_of(p, side, 0.99);
    }
    return 0;
}

static void draw(struct pairs *p, struct bt_rng *rng)
{
    memset(p->drawn, 0, p->blocks * sizeof(*p->drawn));
    for (uint32_t i = 0; i < p->blocks; i++)
        p->drawn[bt_rng_below(rng, p->blocks)]++;
}

/* One resample: mean over the drawn seeds of each side's statistic. */
static void resample(struct pairs *seeds, uint32_t count,
                     enum bt_report_stat stat, struct bt_rng *rng,
                     double values[2])
{
    values[0] = values[1] = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct pairs *p = &seeds[bt_rng_below(rng, count)];

        draw(p, rng);
        values[0] += stat_of(p, 0, stat) / count;
        values[1] += stat_of(p, 1, stat) / count;
    }
}

static void interval(double *values, uint32_t n, struct bt_stat_interval *out)
{
    bt_stat_sort(values, n);
    out->low = bt_stat_quantile(values, n, 0.025);
    out->high = bt_stat_quantile(values, n, 0.975);
}

static enum bt_status bootstrap(struct pairs *seeds, uint32_t count,
                                enum bt_report_stat stat,
                                struct bt_report_difference *out)
{
    uint32_t n = stat == BT_REPORT_MEAN ? RESAMPLES_MEAN : RESAMPLES_RANK;
    double *relative = calloc(n, sizeof(double)),
           *absolute = calloc(n, sizeof(double)), values[2];
    struct bt_rng rng;

    if (!relative || !absolute) {
        free(relative);
        free(absolute);
        return BT_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        out->subject += stat_of(&seeds[i], 0, stat) / count;
        out->rival += stat_of(&seeds[i], 1, stat) / count;
    }
    bt_rng_seed(&rng, RNG_SEED);
    for (uint32_t i = 0; i < n; i++) {
        resample(seeds, count, stat, &rng, values);
        absolute[i] = values[0] - values[1];
        relative[i] = values[1] > 0 ? values[0] / values[1] - 1 : 0;
    }
    out->absolute.mean = out->subject - out->rival;
    out->relative.mean = out->rival > 0 ? out->subject / out->rival - 1 : 0;
    interval(absolute, n, &out->absolute);
    interval(relative, n, &out->relative);
    free(relative);
    free(absolute);
    return BT_OK;
}

static void answered(const struct bt_report_result *a,
                     const struct bt_report_result *b,
                     struct bt_report_difference *out)
{
    if (a->all.measured > 0)
        out->answered_subject += (double)a->all.ok / (double)a->all.measured;
    if (b->all.measured > 0)
        out->answered_rival += (double)b->all.ok / (double)b->all.measured;
}

enum bt_status bt_report_compare(const struct bt_report_result *subject,
                                 const struct bt_report_result *rival,
                                 uint32_t seeds, enum bt_report_sample sample,
                                 enum bt_report_stat stat,
                                 struct bt_report_difference *out)
{
    struct pairs pairs[BT_REPORT_SEEDS_MAX];
    struct bt_report_difference d;
    enum bt_status status = BT_OK;
    uint32_t used = 0;

    memset(pairs, 0, sizeof(pairs));
    memset(&d, 0, sizeof(d));
    for (uint32_t i = 0;
         i < seeds && i < BT_REPORT_SEEDS_MAX && status == BT_OK; i++) {
        const struct bt_report_result *a = &subject[i], *b = &rival[i];

        if (a->status != BT_OK || b->status != BT_OK || !a->sample_count ||
            a->sample_count != b->sample_count)
            continue;
        status = pairs_init(&pairs[used], a->samples[sample],
                            b->samples[sample], a->sample_count);
        if (status != BT_OK || pairs[used].count == 0) {
            pairs_fini(&pairs[used]);
            continue;
        }
        answered(a, b, &d);
        d.pairs += pairs[used++].count;
    }
    if (status == BT_OK && used > 0) {
        d.answered_subject /= used;
        d.answered_rival /= used;
        d.seeds = used;
        d.known = true;
        status = bootstrap(pairs, used, stat, &d);
    }
    for (uint32_t i = 0; i < BT_REPORT_SEEDS_MAX; i++)
        pairs_fini(&pairs[i]);
    if (status == BT_OK)
        *out = d;
    return status;
}

const char *report_sample_name(enum bt_report_sample sample)
{
    switch (sample) {
    case BT_REPORT_TTFT:
        return "TTFT";
    case BT_REPORT_TTST:
        return "TTST";
    case BT_REPORT_TPOT:
        return "TPOT";
    case BT_REPORT_SAMPLE_COUNT:
        break;
    }
    return "?";
}

const char *report_stat_name(enum bt_report_stat stat)
{
    switch (stat) {
    case BT_REPORT_MEAN:
        return "mean";
    case BT_REPORT_P50:
        return "p50";
    case BT_REPORT_P90:
        return "p90";
    case BT_REPORT_P95:
        return "p95";
    case BT_REPORT_P99:
        return "p99";
    }
    return "?";
}
