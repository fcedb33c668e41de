/* Renderings of a demo's report: a table (metrics down, policies across, at
 * most 100 columns) and JSON. Decides words, units and digits; measures
 * nothing. */
#include "baton/base/units.h"
#include "baton/bench/demo.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_WIDTH 30
#define RESAMPLES   10000
#define LATE_MS     10 /* of the client; above it a run is disturbed */
#define COLUMNS_MAX 100
#define NOISE_SHARE 0.05 /* of the mean; run to run on a busy machine */

void bt_demo_report_fini(struct bt_demo_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        free(report->results[i].ttft_ms);
        report->results[i].ttft_ms = NULL;
    }
}

static const struct bt_demo_result *find(const struct bt_demo_report *report,
                                         const char *policy)
{
    for (size_t i = 0; i < report->count; i++) {
        if (strcmp(report->results[i].policy, policy) == 0)
            return &report->results[i];
    }
    return NULL;
}

void bt_demo_compare(struct bt_demo_report *report, uint64_t seed)
{
    const struct bt_demo_result *joint = find(report, "joint");
    const struct bt_demo_result *base = find(report, "prefix_load");
    struct bt_demo_comparison *c = &report->comparison;
    size_t count = report->workload.requests, n = 0;
    double *differences, sum = 0;

    memset(c, 0, sizeof(*c));
    if (!joint || !base || !joint->ttft_ms || !base->ttft_ms)
        return;
    differences = calloc(count + 1, sizeof(*differences));
    if (!differences)
        return;
    for (size_t i = 0; i < count; i++) {
        if (joint->ttft_ms[i] < 0 || base->ttft_ms[i] < 0)
            continue;
        differences[n++] = joint->ttft_ms[i] - base->ttft_ms[i];
        sum += base->ttft_ms[i];
    }
    if (n == 0) {
        free(differences);
        return;
    }
    c->policy = joint->policy;
    c->baseline = base->policy;
    c->pairs = n;
    c->known = bt_stat_bootstrap(differences, n, RESAMPLES, seed,
                                 &c->ttft_ms) == BT_OK;
    c->baseline_mean_ms = sum / (double)n;
    free(differences);
}

/* Negative stands for unknown. */
static double known_or_nan(double value)
{
    return value < 0 ? (double)NAN : value;
}

static double counted(const struct bt_demo_prediction *p, double value)
{
    return p->count == 0 ? (double)NAN : value;
}

/* ---- table ---- */

static int width(const struct bt_demo_report *report)
{
    int room = COLUMNS_MAX - LABEL_WIDTH;
    int each = report->count ? room / (int)report->count : room;

    return each > 14 ? 14 : each;
}

typedef double (*get_fn)(const struct bt_demo_result *r);

struct row {
    const char *label;
    get_fn get;
    int digits; /* after the point */
};

#define GET(name, expression)                                                  \
    static double name(const struct bt_demo_result *r)                         \
    {                                                                          \
        return (double)(expression);                                           \
    }
GET(get_requests, r->client.requests)
GET(get_wrong, r->client.wrong)
GET(get_errors, r->client.errors)
GET(get_ttft_mean, r->client.ttft_ms.mean)
GET(get_ttft_p50, r->client.ttft_ms.p50)
GET(get_ttft_p95, r->client.ttft_ms.p95)
GET(get_ttft_p99, r->client.ttft_ms.p99)
GET(get_ttst_mean, r->client.ttst_ms.mean)
GET(get_ttst_p50, r->client.ttst_ms.p50)
GET(get_ttst_p99, r->client.ttst_ms.p99)
GET(get_tpot_p50, r->client.tpot_ms.p50)
GET(get_tpot_p99, r->client.tpot_ms.p99)
GET(get_goodput, r->client.goodput_rps)
GET(get_slo, r->client.slo_share * 100)
GET(get_overlap, known_or_nan(r->prefix_overlap_ratio) * 100)
GET(get_saved, r->prefill_tokens_saved)
GET(get_balance_p, r->imbalance_prefill)
GET(get_balance_d, r->imbalance_decode)
GET(get_routing_p50, known_or_nan(r->routing_p50_us))
GET(get_routing_p99, known_or_nan(r->routing_p99_us))

GET(get_transfer_predicted, counted(&r->transfer, r->transfer.predicted_ms))
GET(get_transfer_realised, counted(&r->transfer, r->transfer.realised_ms))
GET(get_transfer_error, counted(&r->transfer, r->transfer.error_median * 100))
GET(get_transfer_off, counted(&r->transfer, r->transfer.error_mean_ms))
GET(get_pull_predicted, counted(&r->pull, r->pull.predicted_ms))
GET(get_pull_realised, counted(&r->pull, r->pull.realised_ms))
GET(get_pull_error, counted(&r->pull, r->pull.error_median * 100))
GET(get_pull_off, counted(&r->pull, r->pull.error_mean_ms))
GET(get_total_predicted, counted(&r->total, r->total.predicted_ms))
GET(get_total_realised, counted(&r->total, r->total.realised_ms))
GET(get_total_error, counted(&r->total, r->total.error_median * 100))
GET(get_total_off, counted(&r->total, r->total.error_mean_ms))

/* From the decision log and the engines; shown when there is a log. */
static const struct row rows_predicted[] = {
    {"transfer predicted, mean ms", get_transfer_predicted, 1},
    {"transfer realised, mean ms", get_transfer_realised, 1},
    {"  median error, %", get_transfer_error, 1},
    {"  mean error, ms", get_transfer_off, 1},
    {"KV pull predicted, mean ms", get_pull_predicted, 1},
    {"KV pull realised, mean ms", get_pull_realised, 1},
    {"  median error, %", get_pull_error, 1},
    {"  mean error, ms", get_pull_off, 1},
    {"total predicted, mean ms", get_total_predicted, 1},
    {"total realised, mean ms", get_total_realised, 1},
    {"  median error, %", get_total_error, 1},
    {"  mean error, ms", get_total_off, 1},
};
static const struct row rows_before[] = {
    {"requests", get_requests, 0},
    {"wrong outputs", get_wrong, 0},
    {"errors", get_errors, 0},
    {"TTFT mean, ms", get_ttft_mean, 1},
    {"TTFT p50, ms", get_ttft_p50, 1},
    {"TTFT p95, ms", get_ttft_p95, 1},
    {"TTFT p99, ms", get_ttft_p99, 1},
    {"TTST mean, ms", get_ttst_mean, 1},
    {"TTST p50, ms", get_ttst_p50, 1},
    {"TTST p99, ms", get_ttst_p99, 1},
    {"TPOT p50, ms", get_tpot_p50, 2},
    {"TPOT p99, ms", get_tpot_p99, 2},
    {"goodput in SLO, requests/s", get_goodput, 2},
    {"requests in SLO, %", get_slo, 1},
    {"prefix overlap, % of prompt", get_overlap, 1},
    {"prefill tokens saved", get_saved, 0},
};
static const struct row rows_after[] = {
    {"prefill imbalance, max/mean", get_balance_p, 2},
    {"decode imbalance, max/mean", get_balance_d, 2},
    {"routing p50, us", get_routing_p50, 1},
    {"routing p99, us", get_routing_p99, 1},
};

static void print_rows(const struct bt_demo_report *report, FILE *to,
                       const struct row *rows, size_t count)
{
    int w = width(report);

    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%-*s", LABEL_WIDTH, rows[i].label);
        for (size_t j = 0; j < report->count; j++) {
            double value = rows[i].get(&report->results[j]);

            if (isnan(value))
                fprintf(to, "%*s", w, "unknown");
            else
                fprintf(to, "%*.*f", w, rows[i].digits, value);
        }
        fputc('\n', to);
    }
}

static uint64_t class_bytes(const struct bt_demo_result *r, const char *name)
{
    for (uint32_t i = 0; i < r->class_count; i++) {
        if (strcmp(r->classes[i].name, name) == 0)
            return r->classes[i].bytes;
    }
    return 0;
}

/* Link classes of all results, each once. */
static size_t class_names(const struct bt_demo_report *report,
                          const char *names[], size_t max)
{
    size_t count = 0;

    for (size_t i = 0; i < report->count; i++) {
        for (uint32_t j = 0; j < report->results[i].class_count; j++) {
            const char *name = report->results[i].classes[j].name;
            bool known = false;

            for (size_t k = 0; k < count; k++)
                known = known || strcmp(names[k], name) == 0;
            if (!known && count < max)
                names[count++] = name;
        }
    }
    return count;
}

static void print_classes(const struct bt_demo_report *report, FILE *to)
{
    const char *names[BT_CLUSTER_CLASSES_MAX];
    size_t count = class_names(report, names, BT_CLUSTER_CLASSES_MAX);
    int w = width(report);

    for (size_t i = 0; i < count; i++) {
        char label[64];

        snprintf(label, sizeof(label), "KV over %s links, MB", names[i]);
        fprintf(to, "%-*s", LABEL_WIDTH, label);
        for (size_t j = 0; j < report->count; j++)
            fprintf(to, "%*.1f", w,
                    (double)class_bytes(&report->results[j], names[i]) / 1e6);
        fputc('\n', to);
    }
}

/* The interval covers the requests of these two runs; that the machine was
 * busier in one of them is not in it, so a small share counts as noise too. */
static bool beyond_noise(const struct bt_demo_comparison *c)
{
    if (c->ttft_ms.low <= 0 && c->ttft_ms.high >= 0)
        return false;
    return fabs(c->ttft_ms.mean) > NOISE_SHARE * c->baseline_mean_ms;
}

static void print_verdict(const struct bt_demo_report *report, FILE *to)
{
    const struct bt_demo_comparison *c = &report->comparison;
    double share;

    if (!c->known)
        return;
    share = c->baseline_mean_ms > 0
                ? c->ttft_ms.mean / c->baseline_mean_ms * 100
                : 0;
    if (!beyond_noise(c))
        fprintf(
            to,
            "\n%s and %s do not differ in mean TTFT beyond noise (%.0f %% "
            "or an interval around 0):\n%+.1f ms (%+.1f %%), 95 %% interval "
            "%+.1f .. %+.1f ms over %zu requests paired by number.\n",
            c->policy, c->baseline, NOISE_SHARE * 100, c->ttft_ms.mean, share,
            c->ttft_ms.low, c->ttft_ms.high, c->pairs);
    else
        fprintf(to,
                "\n%s has a mean TTFT %.1f ms (%.1f %%) %s than %s: 95 %% "
                "interval of the\ndifference %+.1f .. %+.1f ms over %zu "
                "requests paired by number.\n",
                c->policy, fabs(c->ttft_ms.mean), fabs(share),
                c->ttft_ms.mean < 0 ? "lower" : "higher", c->baseline,
                c->ttft_ms.low, c->ttft_ms.high, c->pairs);
}

static void print_predictions(const struct bt_demo_report *report, FILE *to)
{
    bool any = false;

    for (size_t i = 0; i < report->count; i++)
        any = any || report->results[i].total.count > 0;
    if (any)
        print_rows(report, to, rows_predicted,
                   sizeof(rows_predicted) / sizeof(rows_predicted[0]));
}

static void print_notes(const struct bt_demo_report *report, FILE *to)
{
    const struct bt_demo_options *o = &report->options;
    const struct bt_workload_stats *w = &report->workload;

    fprintf(to,
            "\n%zu requests in %.1f s, %.0f prompt tokens each on average, "
            "%.1f %% of the prompt blocks\nrepeat (what an endless cache would "
            "reuse); seed %llu; SLO: TTFT <= %.0f ms, TPOT <= %.0f ms.\n",
            w->requests, (double)w->span_ns / 1e9,
            w->requests ? (double)w->prompt_tokens / (double)w->requests : 0,
            w->blocks ? 100 * (double)w->repeated_blocks / (double)w->blocks
                      : 0,
            (unsigned long long)o->seed, (double)o->slo_ttft_ns / 1e6,
            (double)o->slo_tpot_ns / 1e6);
    fprintf(to,
            "TTFT, TTST: from the client's send to the first, second token. "
            "TPOT: mean gap after the\nfirst token. Imbalance: tokens computed "
            "(prefill) or generated (decode), busiest worker\nover the mean. "
            "Routing: time of one placement inside serve. Engines are "
            "emulated: their\ncompute time is a model, their KV bytes and "
            "transfers are real.\n");
    for (size_t i = 0; i < report->count; i++) {
        const struct bt_demo_result *r = &report->results[i];

        if (r->client.late_ms_p99 > LATE_MS)
            fprintf(to,
                    "Disturbed: under %s the client itself was up to %.0f ms "
                    "late (p99): this machine is busy.\n",
                    r->policy, r->client.late_ms_p99);
    }
}

enum bt_status bt_demo_print_table(const struct bt_demo_report *report,
                                   FILE *to)
{
    int w = width(report);

    fprintf(to, "%-*s", LABEL_WIDTH, "");
    for (size_t i = 0; i < report->count; i++)
        fprintf(to, "%*.*s", w, w - 1, report->results[i].policy);
    fputc('\n', to);
    print_rows(report, to, rows_before,
               sizeof(rows_before) / sizeof(rows_before[0]));
    print_classes(report, to);
    print_rows(report, to, rows_after,
               sizeof(rows_after) / sizeof(rows_after[0]));
    print_predictions(report, to);
    print_notes(report, to);
    print_verdict(report, to);
    return ferror(to) ? BT_IO : BT_OK;
}

/* ---- JSON ---- */

static void json_number(FILE *to, const char *name, double value)
{
    if (isfinite(value))
        fprintf(to, "\"%s\":%.3f", name, value);
    else
        fprintf(to, "\"%s\":null", name);
}

static void json_quantiles(FILE *to, const char *name,
                           const struct bt_client_quantiles *q)
{
    fprintf(to,
            "\"%s\":{\"mean\":%.3f,\"p50\":%.3f,\"p95\":%.3f,"
            "\"p99\":%.3f},",
            name, q->mean, q->p50, q->p95, q->p99);
}

static void json_prediction(FILE *to, const char *name,
                            const struct bt_demo_prediction *p)
{
    if (p->count == 0)
        return;
    fprintf(to,
            ",\"%s\":{\"count\":%zu,\"predicted_ms\":%.3f,"
            "\"realised_ms\":%.3f,\"error_median\":%.4f,"
            "\"error_p95\":%.4f,\"bias\":%.4f,\"error_mean_ms\":%.3f}",
            name, p->count, p->predicted_ms, p->realised_ms, p->error_median,
            p->error_p95, p->bias, p->error_mean_ms);
}

static void json_result(FILE *to, const struct bt_demo_report *report,
                        const struct bt_demo_result *r)
{
    const struct bt_demo_options *o = &report->options;

    fprintf(to,
            "{\"policy\":\"%s\",\"requests\":%zu,\"wrong_outputs\":%zu,"
            "\"errors\":%zu,",
            r->policy, r->client.requests, r->client.wrong, r->client.errors);
    json_quantiles(to, "ttft_ms", &r->client.ttft_ms);
    json_quantiles(to, "ttst_ms", &r->client.ttst_ms);
    json_quantiles(to, "tpot_ms", &r->client.tpot_ms);
    json_quantiles(to, "itl_ms", &r->client.itl_ms);
    fprintf(to,
            "\"goodput_rps\":%.3f,\"slo\":{\"ttft_ms\":%.3f,\"tpot_ms\":%.3f,"
            "\"attained\":%.4f},",
            r->client.goodput_rps, (double)o->slo_ttft_ns / 1e6,
            (double)o->slo_tpot_ns / 1e6, r->client.slo_share);
    json_number(to, "prefix_overlap_ratio",
                known_or_nan(r->prefix_overlap_ratio));
    fprintf(to,
            ",\"prefill_tokens_saved\":%llu,"
            "\"prefill_tokens_computed\":%llu,\"kv_bytes\":{",
            (unsigned long long)r->prefill_tokens_saved,
            (unsigned long long)r->prefill_tokens_computed);
    for (uint32_t i = 0; i < r->class_count; i++)
        fprintf(to, "%s\"%s\":%llu", i ? "," : "", r->classes[i].name,
                (unsigned long long)r->classes[i].bytes);
    fprintf(to, "},\"imbalance\":{");
    json_number(to, "prefill", r->imbalance_prefill);
    fputc(',', to);
    json_number(to, "decode", r->imbalance_decode);
    fprintf(to, "},\"routing_us\":{");
    json_number(to, "p50", known_or_nan(r->routing_p50_us));
    fputc(',', to);
    json_number(to, "p99", known_or_nan(r->routing_p99_us));
    fprintf(to, "},");
    json_number(to, "client_late_ms_p99", r->client.late_ms_p99);
    json_prediction(to, "predicted_transfer", &r->transfer);
    json_prediction(to, "predicted_pull", &r->pull);
    json_prediction(to, "predicted_total", &r->total);
    fputc('}', to);
}

static void json_comparison(FILE *to, const struct bt_demo_comparison *c)
{
    if (!c->known)
        return;
    fprintf(to,
            ",\"comparison\":{\"policy\":\"%s\",\"baseline\":\"%s\","
            "\"pairs\":%zu,\"ttft_ms_difference\":{\"mean\":%.3f,"
            "\"low95\":%.3f,\"high95\":%.3f},\"baseline_mean_ms\":%.3f,"
            "\"beyond_noise\":%s}",
            c->policy, c->baseline, c->pairs, c->ttft_ms.mean, c->ttft_ms.low,
            c->ttft_ms.high, c->baseline_mean_ms,
            beyond_noise(c) ? "true" : "false");
}

enum bt_status bt_demo_print_json(const struct bt_demo_report *report, FILE *to)
{
    const struct bt_workload_stats *w = &report->workload;

    fprintf(to, "{\"policies\":[");
    for (size_t i = 0; i < report->count; i++) {
        if (i)
            fputc(',', to);
        json_result(to, report, &report->results[i]);
    }
    fprintf(to, "]");
    json_comparison(to, &report->comparison);
    fprintf(to,
            ",\"workload\":{\"requests\":%zu,\"prompt_tokens\":%llu,"
            "\"answer_tokens\":%llu,\"span_s\":%.3f,"
            "\"repeated_block_ratio\":%.4f,\"seed\":%llu},"
            "\"uniform\":%s,\"wall_s\":%.1f}\n",
            w->requests, (unsigned long long)w->prompt_tokens,
            (unsigned long long)w->answer_tokens, (double)w->span_ns / 1e9,
            w->blocks ? (double)w->repeated_blocks / (double)w->blocks : 0,
            (unsigned long long)report->options.seed,
            report->options.uniform ? "true" : "false", report->wall_s);
    return ferror(to) ? BT_IO : BT_OK;
}
