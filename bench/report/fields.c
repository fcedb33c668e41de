/* The figures of a summary by name: one table drives means over seeds, JSON
 * and pages, so that no output can miss one. */
#include "report_priv.h"
#include <math.h>
#include <string.h>

#define AT(member) offsetof(struct bt_sim_summary, member)

const struct report_field REPORT_FIELDS[] = {
    {"attainment", AT(attainment)},
    {"goodput_per_s", AT(goodput_per_s)},
    {"ttft_mean_s", AT(ttft.mean)},
    {"ttft_p50_s", AT(ttft.p50)},
    {"ttft_p90_s", AT(ttft.p90)},
    {"ttft_p95_s", AT(ttft.p95)},
    {"ttft_p99_s", AT(ttft.p99)},
    {"ttft_max_s", AT(ttft.max)},
    {"ttst_mean_s", AT(ttst.mean)},
    {"ttst_p50_s", AT(ttst.p50)},
    {"ttst_p90_s", AT(ttst.p90)},
    {"ttst_p95_s", AT(ttst.p95)},
    {"ttst_p99_s", AT(ttst.p99)},
    {"ttst_max_s", AT(ttst.max)},
    {"tpot_mean_s", AT(tpot.mean)},
    {"tpot_p50_s", AT(tpot.p50)},
    {"tpot_p90_s", AT(tpot.p90)},
    {"tpot_p95_s", AT(tpot.p95)},
    {"tpot_p99_s", AT(tpot.p99)},
    {"tpot_max_s", AT(tpot.max)},
    {"slowdown_mean", AT(slowdown.mean)},
    {"slowdown_p50", AT(slowdown.p50)},
    {"slowdown_p90", AT(slowdown.p90)},
    {"slowdown_p95", AT(slowdown.p95)},
    {"slowdown_p99", AT(slowdown.p99)},
    {"slowdown_max", AT(slowdown.max)},
    {"hit_share", AT(hit_share)},
    {"fetched_share", AT(fetched_share)},
    {"moved_bytes", AT(bytes_moved)},
    {"fetched_bytes", AT(bytes_fetched)},
    {"hot_bytes", AT(bytes_hot)},
    {"imbalance_prefill", AT(imbalance_prefill)},
    {"imbalance_decode", AT(imbalance_decode)},
    {"changed_share", AT(changed_share)},
    {"error_total", AT(error_total)},
    {"error_prefill", AT(error_prefill)},
    {"error_transfer", AT(error_transfer)},
    {"error_queue", AT(error_queue)},
    {"bias_total", AT(bias_total)},
    {"coverage_p90", AT(coverage_p90)},
    {"regret_mean_s", AT(regret_mean_s)},
    {"regret_p99_s", AT(regret_p99_s)},
    {"hbm_byte_seconds", AT(hbm_byte_seconds)},
    {"slot_idle_seconds", AT(slot_idle_seconds)},
};
const size_t REPORT_FIELD_COUNT =
    sizeof(REPORT_FIELDS) / sizeof(REPORT_FIELDS[0]);

double report_field_value(const struct report_field *field,
                          const struct bt_sim_summary *summary)
{
    double value;

    memcpy(&value, (const char *)summary + field->offset, sizeof(value));
    return value;
}

static double mean_of(const struct bt_sim_summary *const *items, size_t count,
                      const struct report_field *field)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += report_field_value(field, items[i]);
    return sum / (double)count;
}

/* Regret is computed for some seeds only: the others say < 0. */
static double mean_known(const struct bt_sim_summary *const *items,
                         size_t count, const struct report_field *field)
{
    double sum = 0;
    size_t known = 0;

    for (size_t i = 0; i < count; i++) {
        double value = report_field_value(field, items[i]);

        if (value < 0)
            continue;
        sum += value;
        known++;
    }
    return known ? sum / (double)known : -1;
}

void report_summary_mean(const struct bt_sim_summary *const *items,
                         size_t count, struct bt_sim_summary *mean)
{
    double decisions = 0;

    memset(mean, 0, sizeof(*mean));
    if (count == 0)
        return;
    for (size_t i = 0; i < REPORT_FIELD_COUNT; i++) {
        const struct report_field *f = &REPORT_FIELDS[i];
        bool regret =
            f->offset == AT(regret_mean_s) || f->offset == AT(regret_p99_s);
        double value =
            regret ? mean_known(items, count, f) : mean_of(items, count, f);

        memcpy((char *)mean + f->offset, &value, sizeof(value));
    }
    for (size_t i = 0; i < count; i++) {
        mean->measured += items[i]->measured;
        mean->ok += items[i]->ok;
        mean->met += items[i]->met;
        decisions += items[i]->decisions_per_s;
    }
    mean->decisions_per_s = decisions / (double)count;
}

static void add_result(const struct bt_report_result *from, double share,
                       struct bt_report_result *mean)
{
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        mean->bytes_by_class[i] += from->bytes_by_class[i] * share;
    mean->nic_imbalance += from->nic_imbalance * share;
    mean->wall_s += from->wall_s * share;
    mean->sim_s += from->sim_s * share;
    mean->predicted_share += from->predicted_share * share;
    mean->realised_share += from->realised_share * share;
    mean->wrong_credit += from->wrong_credit * share;
    mean->wait_max_s = fmax(mean->wait_max_s, from->wait_max_s);
    mean->requests += from->requests;
    mean->prefetches += from->prefetches;
    mean->prefetches_used += from->prefetches_used;
    mean->events += from->events;
    /* the worst seed: one that never avoided the worker is worst of all */
    if (from->transfers_to_avoid < 0 || mean->transfers_to_avoid < 0)
        mean->transfers_to_avoid = -1;
    else if (from->transfers_to_avoid > mean->transfers_to_avoid)
        mean->transfers_to_avoid = from->transfers_to_avoid;
}

void report_row_make(const struct bt_report_result *results, uint32_t count,
                     struct bt_report_row *out)
{
    const struct bt_sim_summary *all[BT_REPORT_SEEDS_MAX];
    const struct bt_sim_summary *by_class[BT_REPORT_SEEDS_MAX];
    const struct bt_report_result *good[BT_REPORT_SEEDS_MAX];
    uint32_t n = 0;

    memset(out, 0, sizeof(*out));
    out->seeds = count;
    for (uint32_t i = 0; i < count && i < BT_REPORT_SEEDS_MAX; i++) {
        if (results[i].status == BT_OK) {
            good[n++] = &results[i];
        } else if (out->failed++ == 0) {
            out->mean.status = results[i].status;
            snprintf(out->mean.error, sizeof(out->mean.error), "%s",
                     results[i].error);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        all[i] = &good[i]->all;
        add_result(good[i], 1.0 / n, &out->mean);
    }
    report_summary_mean(all, n, &out->mean.all);
    for (int c = 0; c < BT_REPORT_CLASSES; c++) {
        uint32_t filled = 0;

        for (uint32_t i = 0; i < n; i++) {
            if (good[i]->by_class[c].measured > 0)
                by_class[filled++] = &good[i]->by_class[c];
        }
        report_summary_mean(by_class, filled, &out->mean.by_class[c]);
    }
    out->mean.effects_hash = n > 0 ? good[0]->effects_hash : 0;
}
