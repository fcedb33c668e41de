/* index.html of the written report: one file, no scripts, plots inside as
 * data. Null cells stand beside wins in the same table. Beside a
 * figure stands what it was made from, down to the hash of the configuration.
 */
#include "baton/base/rng.h"
#include "report_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES     1024
#define PLOT_BYTES_MAX (4u << 20)

static const char STYLE[] =
    "<style>\n"
    "body{font:15px/1.45 sans-serif;color:#1a1a1a;background:#fff;"
    "max-width:1320px;margin:2em auto;padding:0 1em}\n"
    "h1{font-size:1.7em}h2{margin-top:2em;border-bottom:1px solid #bbb}\n"
    "table{border-collapse:collapse;margin:.8em 0;font-size:13px;"
    "display:block;overflow-x:auto}\n"
    "th,td{padding:.2em .55em;text-align:right;border-bottom:1px solid #ddd;"
    "white-space:nowrap}\n"
    "th:first-child,td:first-child{text-align:left}\n"
    "thead th{border-bottom:2px solid #888;background:#f4f4f4}\n"
    "tr.subject td{font-weight:bold}\n"
    ".win{background:#d4ecd9}.loss{background:#f8d7d0}.null{color:#555}\n"
    "figure{display:inline-block;margin:.4em;vertical-align:top}\n"
    "figcaption,.small{font-size:12px;color:#444;max-width:620px}\n"
    ".wide figcaption{max-width:1000px}\n"
    ".notice{background:#fff3cd;padding:.6em 1em;border:1px solid #d9b84c}\n"
    "code{background:#f4f4f4;padding:.1em .3em}\n"
    "dt{font-weight:bold;float:left;clear:left;min-width:8.5em}\n"
    "dd{margin:0 0 .2em 8.5em}\n"
    "</style>\n";

static void text(FILE *to, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", to);
        else if (*s == '>')
            fputs("&gt;", to);
        else if (*s == '&')
            fputs("&amp;", to);
        else if (*s == '"')
            fputs("&quot;", to);
        else
            fputc(*s, to);
    }
}

static void cell(FILE *to, double value, int digits)
{
    if (isfinite(value))
        fprintf(to, "<td>%.*f</td>", digits, value);
    else
        fputs("<td>-</td>", to);
}

/* ---- what every figure carries ---- */

static uint64_t scenario_hash(const struct report_book *b, uint32_t scenario)
{
    uint64_t hash = 0;

    for (uint32_t l = 0; l < b->matrix->load_count; l++) {
        for (uint32_t a = 0; a < b->setup->arm_count; a++) {
            struct bt_sim_config config;

            bt_report_config(b->setup, scenario, a,
                             b->matrix->speeds[scenario][l], 0, &config);
            hash = bt_mix64(hash ^ bt_report_config_hash(&config));
        }
    }
    return hash;
}

static void provenance(const struct report_book *b, uint32_t scenario, FILE *to)
{
    const struct bt_report_setup *s = b->setup;
    struct bt_sim_config config;
    char what[400];

    bt_report_config(s, scenario, b->subject, b->matrix->speeds[scenario][0], 0,
                     &config);
    report_describe(&config, what, sizeof(what));
    text(to, what);
    fputs("; seeds", to);
    for (uint32_t i = 0; i < s->seed_count; i++)
        fprintf(to, " %llu", (unsigned long long)s->seeds[i]);
    fputs("; knowledge: ", to);
    report_describe_knowledge(&config.knowledge, what, sizeof(what));
    text(to, what);
    fprintf(to, "; configuration <code>%016llx</code>",
            (unsigned long long)scenario_hash(b, scenario));
}

/* ---- plots ---- */

static void base64(FILE *to, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < count; i += 3) {
        unsigned int x = (unsigned int)bytes[i] << 16;

        if (i + 1 < count)
            x |= (unsigned int)bytes[i + 1] << 8;
        if (i + 2 < count)
            x |= bytes[i + 2];
        fputc(digits[x >> 18], to);
        fputc(digits[x >> 12 & 63], to);
        fputc(i + 1 < count ? digits[x >> 6 & 63] : '=', to);
        fputc(i + 2 < count ? digits[x & 63] : '=', to);
    }
}

static void plot(const struct report_book *b, uint32_t scenario,
                 const char *kind, const char *title, FILE *to)
{
    unsigned char *bytes;
    char path[PATH_BYTES];
    size_t count;
    FILE *from;

    report_plot_path(b, scenario, kind, "svg", path, sizeof(path));
    from = fopen(path, "r");
    bytes = from ? malloc(PLOT_BYTES_MAX) : NULL;
    if (!bytes) {
        if (from)
            fclose(from);
        return;
    }
    count = fread(bytes, 1, PLOT_BYTES_MAX, from);
    fclose(from);
    fprintf(to, "<figure%s><img alt=\"",
            strcmp(kind, "capacity") == 0 ? " class=\"wide\"" : "");
    text(to, title);
    fputs("\" src=\"data:image/svg+xml;base64,", to);
    base64(to, bytes, count);
    fputs("\"><figcaption>", to);
    text(to, title);
    fputs(". ", to);
    provenance(b, scenario, to);
    fputs("</figcaption></figure>\n", to);
    free(bytes);
}

/* ---- capacity ---- */

static const struct bt_report_capacity *
capacity_of(const struct report_book *b, uint32_t scenario, uint32_t arm)
{
    return &b->capacity[(size_t)scenario * b->setup->arm_count + arm];
}

static void capacity_cell(const struct bt_report_capacity *c, double best,
                          FILE *to)
{
    const struct bt_report_search *s = &c->search;

    if (c->error[0])
        fputs("<td>failed</td>", to);
    else if (s->none_met)
        fputs("<td>none</td>", to);
    else
        fprintf(to, "<td%s>%.3f%s%s</td>",
                s->low >= best ? " class=\"win\"" : "", s->low,
                s->below_failed || s->above_met ? " *" : "",
                s->all_met ? " +" : "");
}

/* A capacity found on a few seconds of arrivals is none. */
static void burst_notice(const struct report_book *b, FILE *to)
{
    const struct bt_report_setup *s = b->setup;
    double shortest = (double)INFINITY;

    for (uint32_t i = 0; i < s->scenario_count; i++) {
        for (uint32_t a = 0; a < s->arm_count; a++) {
            struct report_window w;

            report_capacity_window(s, i, a, capacity_of(b, i, a), &w);
            if (w.is_short)
                shortest = fmin(shortest, w.seconds);
        }
    }
    if (isfinite(shortest))
        fprintf(to,
                "<p class=\"notice\">Bursts, no steady state: at the highest "
                "of these speeds only %.3g s of arrivals are measured. Such a "
                "speed is no capacity that lasts, and differences at shares of "
                "it may not last either; run it with more requests.</p>\n",
                shortest);
}

static void capacity_section(const struct report_book *b, FILE *to)
{
    const struct bt_report_setup *s = b->setup;

    fputs("<h2>SLO capacity</h2>\n<p>Highest arrival rate, as a multiple of "
          "the trace's, with at least 95 % of the requests inside both SLOs "
          "and p99 of TTFT over unloaded TTFT at most 10. * a probe "
          "contradicted a monotone answer; + the rule still held at the "
          "highest rate tried; green: best of the fabric.</p>\n"
          "<table><thead><tr><th>policy</th>",
          to);
    for (uint32_t i = 0; i < s->scenario_count; i++) {
        fputs("<th>", to);
        text(to, s->scenarios[i].name);
        fputs("</th>", to);
    }
    fputs("</tr></thead><tbody>\n", to);
    for (uint32_t a = 0; a < s->arm_count; a++) {
        fprintf(to, "<tr%s><td>", a == b->subject ? " class=\"subject\"" : "");
        text(to, s->arms[a].name);
        fputs("</td>", to);
        for (uint32_t i = 0; i < s->scenario_count; i++) {
            double best = 0;

            for (uint32_t k = 0; k < s->arm_count; k++)
                best = fmax(best, capacity_of(b, i, k)->search.low);
            capacity_cell(capacity_of(b, i, a), best, to);
        }
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table>\n", to);
    burst_notice(b, to);
    for (uint32_t i = 0; i < s->scenario_count; i++)
        plot(b, i, "capacity", "SLO capacity by policy", to);
}

/* ---- comparisons ---- */

static const struct report_comparison *find(const struct report_book *b,
                                            const uint32_t at[3],
                                            enum bt_report_sample sample,
                                            enum bt_report_stat stat)
{
    for (size_t i = 0; i < b->comparison_count; i++) {
        const struct report_comparison *c = &b->comparisons[i];

        if (c->scenario == at[0] && c->load == at[1] && c->rival == at[2] &&
            c->sample == sample && c->stat == stat)
            return c;
    }
    return NULL;
}

static void difference_cell(const struct report_comparison *c, FILE *to)
{
    const struct bt_report_difference *d;
    const char *kind;

    if (!c || !c->difference.known) {
        fputs("<td class=\"null\">no pairs</td>", to);
        return;
    }
    d = &c->difference;
    kind = d->relative.high < 0 ? "win" : d->relative.low > 0 ? "loss" : "null";
    fprintf(to, "<td class=\"%s\">%+.1f [%+.1f, %+.1f]%s</td>", kind,
            d->relative.mean * 100, d->relative.low * 100,
            d->relative.high * 100,
            d->answered_subject < d->answered_rival - 0.01   ? " (sheds)"
            : d->answered_rival < d->answered_subject - 0.01 ? " (rival sheds)"
                                                             : "");
}

static void comparison_table(const struct report_book *b, uint32_t scenario,
                             enum bt_report_sample sample,
                             enum bt_report_stat stat, FILE *to)
{
    const struct bt_report_setup *s = b->setup;

    fprintf(to, "<table><thead><tr><th>%s %s, %% against</th>",
            report_sample_name(sample), report_stat_name(stat));
    for (uint32_t l = 0; l < b->matrix->load_count; l++)
        fprintf(to, "<th>load %.0f %%</th>", b->matrix->loads[l] * 100);
    fputs("</tr></thead><tbody>\n", to);
    for (uint32_t a = 0; a < s->arm_count; a++) {
        if (a == b->subject)
            continue;
        fputs("<tr><td>", to);
        text(to, s->arms[a].name);
        fputs("</td>", to);
        for (uint32_t l = 0; l < b->matrix->load_count; l++)
            difference_cell(
                find(b, (const uint32_t[3]){scenario, l, a}, sample, stat), to);
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table>\n", to);
}

static void comparison_section(const struct report_book *b, uint32_t scenario,
                               FILE *to)
{
    fputs("<h3>Paired differences</h3>\n<p>", to);
    text(to, b->setup->arms[b->subject].name);
    fputs(" against each rival, same arrivals: relative difference in percent "
          "and its 95 % bootstrap interval over seeds and blocks of requests; "
          "less is better. Green: the interval is below 0, red: above, "
          "neither: nothing was shown. A rule that answers fewer requests is "
          "marked: the hardest are missing from its times.</p>\n",
          to);
    comparison_table(b, scenario, BT_REPORT_TTFT, BT_REPORT_MEAN, to);
    comparison_table(b, scenario, BT_REPORT_TTFT, BT_REPORT_P50, to);
    comparison_table(b, scenario, BT_REPORT_TTFT, BT_REPORT_P99, to);
    comparison_table(b, scenario, BT_REPORT_TTST, BT_REPORT_MEAN, to);
    comparison_table(b, scenario, BT_REPORT_TTST, BT_REPORT_P99, to);
    comparison_table(b, scenario, BT_REPORT_TPOT, BT_REPORT_MEAN, to);
}

/* ---- all figures ---- */

#define AT(member) offsetof(struct bt_sim_summary, member)
static const struct {
    const char *title;
    size_t offset;
    double scale;
    int digits;
} COLUMNS[] = {
    {"met %", AT(attainment), 100, 1},
    {"goodput /s", AT(goodput_per_s), 1, 2},
    {"TTFT p50 s", AT(ttft.p50), 1, 3},
    {"p90 s", AT(ttft.p90), 1, 3},
    {"p99 s", AT(ttft.p99), 1, 3},
    {"TTST mean s", AT(ttst.mean), 1, 3},
    {"p99 s", AT(ttst.p99), 1, 3},
    {"TPOT p50 ms", AT(tpot.p50), 1e3, 1},
    {"p99 ms", AT(tpot.p99), 1e3, 1},
    {"slowdown p99", AT(slowdown.p99), 1, 2},
    {"saved %", AT(hit_share), 100, 1},
    {"fetched %", AT(fetched_share), 100, 1},
    {"imbal. P", AT(imbalance_prefill), 1, 2},
    {"imbal. D", AT(imbalance_decode), 1, 2},
    {"changed %", AT(changed_share), 100, 1},
    {"err total %", AT(error_total), 100, 1},
    {"prefill %", AT(error_prefill), 100, 1},
    {"transfer %", AT(error_transfer), 100, 1},
    {"queue %", AT(error_queue), 100, 1},
    {"p90 cover %", AT(coverage_p90), 100, 1},
    {"regret ms", AT(regret_mean_s), 1e3, 1},
};
#undef AT
#define COLUMN_COUNT (sizeof(COLUMNS) / sizeof(COLUMNS[0]))

static void arm_cells(const struct bt_report_row *r, FILE *to)
{
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        const struct report_field field = {"", COLUMNS[i].offset};
        double value = report_field_value(&field, &r->mean.all);
        bool unknown = strncmp(COLUMNS[i].title, "regret", 6) == 0 && value < 0;

        cell(to, unknown ? (double)NAN : value * COLUMNS[i].scale,
             COLUMNS[i].digits);
    }
}

static void arm_row(const struct report_book *b, const uint32_t at[3], FILE *to)
{
    struct bt_sim_config config;
    struct bt_report_row r;

    bt_report_row_get(b->matrix, at[0], at[1], at[2], &r);
    bt_report_config(b->setup, at[0], at[2], b->matrix->speeds[at[0]][at[1]], 0,
                     &config);
    fprintf(to, "<tr%s><td>", at[2] == b->subject ? " class=\"subject\"" : "");
    text(to, b->setup->arms[at[2]].name);
    fputs("</td>", to);
    if (r.failed == r.seeds) {
        fprintf(to, "<td colspan=\"%zu\">", COLUMN_COUNT);
        text(to, r.mean.error);
        fputs("</td>", to);
    } else {
        arm_cells(&r, to);
    }
    fprintf(to, "<td><code>%08x</code></td></tr>\n",
            (unsigned int)(bt_report_config_hash(&config) >> 32));
}

static void figures_table(const struct report_book *b, uint32_t scenario,
                          uint32_t load, FILE *to)
{
    fprintf(to,
            "<h4>Load %.0f %%, speed %.4g</h4>\n<table><thead><tr>"
            "<th>policy</th>",
            b->matrix->loads[load] * 100, b->matrix->speeds[scenario][load]);
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        fprintf(to, "<th>%s</th>", COLUMNS[i].title);
    fputs("<th>config</th></tr></thead><tbody>\n", to);
    for (uint32_t a = 0; a < b->setup->arm_count; a++)
        arm_row(b, (const uint32_t[3]){scenario, load, a}, to);
    fputs("</tbody></table>\n", to);
}

static void class_table(const struct report_book *b, uint32_t scenario,
                        uint32_t load, FILE *to)
{
    static const char *const names[BT_REPORT_CLASSES] = {"&lt; 1K", "&lt; 8K",
                                                         "&lt; 32K", "more"};

    fprintf(to,
            "<h4>By prompt length, load %.0f %%: TTFT p50 / p99, s</h4>\n"
            "<table><thead><tr><th>policy</th>",
            b->matrix->loads[load] * 100);
    for (int c = 0; c < BT_REPORT_CLASSES; c++)
        fprintf(to, "<th>%s</th>", names[c]);
    fputs("</tr></thead><tbody>\n", to);
    for (uint32_t a = 0; a < b->setup->arm_count; a++) {
        struct bt_report_row r;

        bt_report_row_get(b->matrix, scenario, load, a, &r);
        fputs("<tr><td>", to);
        text(to, b->setup->arms[a].name);
        fputs("</td>", to);
        for (int c = 0; c < BT_REPORT_CLASSES; c++) {
            const struct bt_sim_summary *x = &r.mean.by_class[c];

            if (x->measured > 0)
                fprintf(to, "<td>%.3f / %.3f</td>", x->ttft.p50, x->ttft.p99);
            else
                fputs("<td>-</td>", to);
        }
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table>\n", to);
}

static void bytes_table(const struct report_book *b, uint32_t scenario,
                        uint32_t load, FILE *to)
{
    fprintf(to,
            "<h4>KV bytes by path, load %.0f %%, GB</h4>\n<table><thead><tr>"
            "<th>policy</th>",
            b->matrix->loads[load] * 100);
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        fprintf(to, "<th>%s</th>", bt_path_class_name((enum bt_path_class)i));
    fputs("<th>uplinks, slow NICs</th><th>busiest NIC in / mean</th></tr>"
          "</thead><tbody>\n",
          to);
    for (uint32_t a = 0; a < b->setup->arm_count; a++) {
        struct bt_report_row r;

        bt_report_row_get(b->matrix, scenario, load, a, &r);
        fputs("<tr><td>", to);
        text(to, b->setup->arms[a].name);
        fputs("</td>", to);
        for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
            cell(to, r.mean.bytes_by_class[i] / 1e9, 1);
        cell(to, r.mean.all.bytes_hot / 1e9, 1);
        cell(to, r.mean.nic_imbalance, 2);
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table>\n", to);
}

static void scenario_section(const struct report_book *b, uint32_t scenario,
                             FILE *to)
{
    fputs("<h2>Fabric ", to);
    text(to, b->setup->scenarios[scenario].name);
    fputs("</h2>\n<p class=\"small\">", to);
    provenance(b, scenario, to);
    fputs("</p>\n", to);
    for (size_t k = 0; k < REPORT_PLOT_KIND_COUNT; k++)
        plot(b, scenario, REPORT_PLOT_KINDS[k].kind, REPORT_PLOT_KINDS[k].title,
             to);
    comparison_section(b, scenario, to);
    fputs("<h3>All figures</h3>\n", to);
    for (uint32_t l = 0; l < b->matrix->load_count; l++) {
        figures_table(b, scenario, l, to);
        class_table(b, scenario, l, to);
        bytes_table(b, scenario, l, to);
    }
}

static void opening(const struct report_book *b, FILE *to)
{
    const struct bt_sim_config *base = &b->setup->base;

    fputs("<h1>", to);
    text(to, b->setup->arms[b->subject].name);
    fprintf(to,
            " against %u rival%s</h1>\n<p>Deterministic simulation: the real "
            "core over a world in virtual time. SLO: TTFT &le; %.3g s + %.3g "
            "x unloaded prefill, TPOT &le; %.3g ms. Load is the share of the "
            "best disaggregated policy's SLO capacity on each fabric. Times "
            "are means over "
            "seeds of each seed's quantile. <a href=\"#reading\">How to read "
            "it</a>.</p>\n<p class=\"small\"><code>",
            b->setup->arm_count - 1, b->setup->arm_count == 2 ? "" : "s",
            (double)base->slo.ttft_base_ns / 1e9, base->slo.ttft_factor,
            (double)base->slo.tpot_ns / 1e6);
    text(to, b->options->command);
    fputs("</code></p>\n", to);
    if (b->plots_missing) {
        fputs("<p class=\"notice\">", to);
        text(to, b->plots_missing);
        fputs(".</p>\n", to);
    }
}

/* Words of the tables, for who reads one for the first time. */
static void reading(FILE *to)
{
    static const struct {
        const char *word, *meaning;
    } words[] = {
        {"met %", "share of the measured requests inside both SLOs; those "
                  "never answered count as misses"},
        {"goodput", "requests inside both SLOs per second of arrivals; never "
                    "above the arrival rate"},
        {"TTFT, TTST", "time from arrival to the first and to the second "
                       "token; the second one needs the KV on the decode side"},
        {"TPOT", "time per token after the first, mean of a request"},
        {"slowdown", "TTFT over that of the same prompt alone on an idle "
                     "cluster without caches; a hit can bring it below 1"},
        {"saved %", "share of prompt tokens not computed, because a cache had "
                    "them or they were fetched (hit in the text tables)"},
        {"fetched %", "the part of it that came from a peer or a slower tier"},
        {"imbal.", "busiest over mean worker of the pool; 1 is even"},
        {"changed %", "decisions unlike those of load + prefix in the same "
                      "state; says how often, not whether it was right"},
        {"err", "median distance of the predicted from the real time, % of "
                "the real one: total, then by term"},
        {"p90 cover", "share of requests no later than the predicted p90; 90 "
                      "is right"},
        {"regret", "TTFT lost against the best pair of the same moment, found "
                   "by trying all; - without --regret"},
    };

    fputs("<h2 id=\"reading\">How to read it</h2>\n<p>Look at the capacity "
          "first, then at the "
          "paired differences at 80 % load, then at TPOT, which a policy may "
          "pay with.</p>\n<dl class=\"small\">\n",
          to);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        fputs("<dt>", to);
        text(to, words[i].word);
        fputs("</dt><dd>", to);
        text(to, words[i].meaning);
        fputs("</dd>\n", to);
    }
    fputs("</dl>\n", to);
}

enum bt_status report_book_page(const struct report_book *book, FILE *to)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<title>baton sim report</title>\n",
          to);
    fputs(STYLE, to);
    fputs("</head><body>\n", to);
    opening(book, to);
    capacity_section(book, to);
    for (uint32_t i = 0; i < book->setup->scenario_count; i++)
        scenario_section(book, i, to);
    reading(to);
    fputs("</body></html>\n", to);
    return ferror(to) ? BT_IO : BT_OK;
}
