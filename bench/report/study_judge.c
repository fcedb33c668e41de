/* A check of a study: which difference it looks at, between which arms, and
 * the verdict on it. Per-request measures are paired by request; the others
 * (bytes, goodput, ...) are one number per run, paired by seed: with a single
 * seed they have no interval and no claim about them can be sure. */
#include "study_priv.h"
#include <math.h>
#include <string.h>

#define RESAMPLES     10000u
#define AVOID_LIMIT   20
#define NO_INTERVAL_S 1e9

const char *study_measure_name(enum study_measure measure)
{
    switch (measure) {
    case STUDY_TTFT_MEAN:
        return "TTFT mean";
    case STUDY_TTFT_P50:
        return "TTFT p50";
    case STUDY_TTFT_P90:
        return "TTFT p90";
    case STUDY_TTFT_P95:
        return "TTFT p95";
    case STUDY_TTFT_P99:
        return "TTFT p99";
    case STUDY_TTST_MEAN:
        return "TTST mean";
    case STUDY_TTST_P99:
        return "TTST p99";
    case STUDY_TPOT_S:
        return "TPOT mean, s";
    case STUDY_HOT_BYTES:
        return "hot bytes";
    case STUDY_HBM:
        return "HBM held";
    case STUDY_GOODPUT:
        return "goodput lost";
    case STUDY_ATTAINMENT:
        return "SLO points lost";
    case STUDY_NIC:
        return "NIC max/mean";
    case STUDY_WAIT_MAX:
        return "longest wait";
    case STUDY_AVOID:
        return "transfers - 20";
    case STUDY_DECISION:
        return "p99, us";
    }
    return "?";
}

/* True: a statistic over requests. */
static bool sampled(enum study_measure measure, enum bt_report_sample *sample,
                    enum bt_report_stat *stat)
{
    *sample = BT_REPORT_TTFT;
    *stat = BT_REPORT_MEAN;
    switch (measure) {
    case STUDY_TTFT_MEAN:
        return true;
    case STUDY_TTFT_P50:
        *stat = BT_REPORT_P50;
        return true;
    case STUDY_TTFT_P90:
        *stat = BT_REPORT_P90;
        return true;
    case STUDY_TTFT_P95:
        *stat = BT_REPORT_P95;
        return true;
    case STUDY_TTFT_P99:
        *stat = BT_REPORT_P99;
        return true;
    case STUDY_TTST_P99:
        *stat = BT_REPORT_P99;
        *sample = BT_REPORT_TTST;
        return true;
    case STUDY_TTST_MEAN:
        *sample = BT_REPORT_TTST;
        return true;
    case STUDY_TPOT_S:
        *sample = BT_REPORT_TPOT;
        return true;
    case STUDY_HOT_BYTES:
    case STUDY_HBM:
    case STUDY_GOODPUT:
    case STUDY_ATTAINMENT:
    case STUDY_NIC:
    case STUDY_WAIT_MAX:
    case STUDY_AVOID:
    case STUDY_DECISION:
        break;
    }
    return false;
}

static double ratio(double a, double b)
{
    if (b > 0)
        return a / b - 1;
    return a > 0 ? 1 : 0; /* both nothing: alike */
}

static double run_difference(enum study_measure measure,
                             const struct bt_report_result *a,
                             const struct bt_report_result *b)
{
    switch (measure) {
    case STUDY_HOT_BYTES:
        return ratio(a->all.bytes_hot, b->all.bytes_hot);
    case STUDY_HBM:
        return ratio(a->all.hbm_byte_seconds, b->all.hbm_byte_seconds);
    case STUDY_GOODPUT:
        return ratio(b->all.goodput_per_s, a->all.goodput_per_s);
    case STUDY_ATTAINMENT:
        return b->all.attainment - a->all.attainment;
    case STUDY_NIC:
        return ratio(a->nic_imbalance, b->nic_imbalance);
    case STUDY_WAIT_MAX:
        return ratio(a->wait_max_s, b->wait_max_s);
    case STUDY_AVOID:
        return a->transfers_to_avoid < 0
                   ? NO_INTERVAL_S
                   : (double)a->transfers_to_avoid - AVOID_LIMIT;
    case STUDY_TTFT_MEAN:
    case STUDY_TTFT_P50:
    case STUDY_TTFT_P90:
    case STUDY_TTFT_P95:
    case STUDY_TTFT_P99:
    case STUDY_TTST_MEAN:
    case STUDY_TTST_P99:
    case STUDY_TPOT_S:
    case STUDY_DECISION:
        break;
    }
    return 0;
}

/* One number per run, paired by seed. */
static enum bt_status compare_runs(enum study_measure measure,
                                   const struct bt_report_result *a,
                                   const struct bt_report_result *b,
                                   uint32_t seeds,
                                   struct bt_report_difference *out)
{
    double values[BT_REPORT_SEEDS_MAX];
    uint32_t n = 0;
    enum bt_status status;

    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < seeds; i++) {
        if (a[i].status == BT_OK && b[i].status == BT_OK &&
            a[i].all.measured > 0)
            values[n++] = run_difference(measure, &a[i], &b[i]);
    }
    if (n == 0)
        return BT_OK;
    status = bt_stat_bootstrap(values, n, RESAMPLES, 1, &out->relative);
    if (status != BT_OK)
        return status;
    /* a count against a limit needs no interval: the worst seed counts */
    for (uint32_t i = 0; measure == STUDY_AVOID && i < n; i++)
        out->relative.high = out->relative.mean =
            fmax(out->relative.mean, values[i]);
    if (n == 1 && measure != STUDY_AVOID) {
        out->relative.low = -NO_INTERVAL_S;
        out->relative.high = NO_INTERVAL_S;
    }
    out->seeds = n;
    out->known = true;
    return BT_OK;
}

static enum bt_status difference(const struct bt_report_matrix *m,
                                 uint32_t rival, enum study_measure measure,
                                 struct bt_report_difference *out)
{
    const struct bt_report_result *a = bt_report_group(m, 0, 0, 0),
                                  *b = bt_report_group(m, 0, 0, rival);
    uint32_t seeds = m->setup->seed_count;
    enum bt_report_sample sample;
    enum bt_report_stat stat;
    enum bt_status status;

    if (!sampled(measure, &sample, &stat))
        return compare_runs(measure, a, b, seeds, out);
    status = bt_report_compare(a, b, seeds, sample, stat, out);
    if (status == BT_OK && measure == STUDY_TPOT_S)
        out->relative = out->absolute;
    return status;
}

/* Of the settings of a rival's grid the one that looks best by this measure;
 * chosen on the very cell, in the rival's favour. */
static enum bt_status strongest(const struct study_cell *cell,
                                const struct bt_report_matrix *m,
                                uint32_t rival, enum study_measure measure,
                                struct study_outcome *out)
{
    enum bt_status status = BT_OK;
    bool any = false;

    for (uint32_t i = 0; i < cell->rival_count[rival] && status == BT_OK; i++) {
        uint32_t arm = cell->rival_first[rival] + i;
        struct bt_report_difference d;

        memset(&d, 0, sizeof(d));
        status = difference(m, arm, measure, &d);
        if (any &&
            !(d.known && d.relative.mean > out->difference.relative.mean))
            continue;
        out->difference = d;
        out->rival = m->setup->arms[arm].name;
        any = d.known;
    }
    return status;
}

enum bt_status study_judge(const struct study_cell *cell,
                           const struct bt_report_matrix *matrix,
                           const struct study_row *row, uint32_t rival,
                           const struct study_check *check,
                           struct study_outcome *out)
{
    enum bt_status status;

    memset(out, 0, sizeof(*out));
    out->rival = row->rivals[rival];
    out->measure = study_measure_name(check->measure);
    status = strongest(cell, matrix, rival, check->measure, out);
    if (status != BT_OK)
        return status;
    switch (check->rule) {
    case STUDY_CLAIM:
        out->verdict = bt_report_judge_claim(&check->claim, &out->difference);
        break;
    case STUDY_TIE:
        out->verdict =
            bt_report_judge_tie(check->claim.limit, &out->difference);
        break;
    case STUDY_FLOOR:
        out->verdict =
            bt_report_judge_floor(check->claim.limit, &out->difference);
        break;
    case STUDY_NONE:
        out->verdict = BT_VERDICT_NO_DATA;
        break;
    }
    return BT_OK;
}
