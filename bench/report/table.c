/* Text tables of a matrix and of capacities, at most LINE_WIDTH columns. One
 * row per arm; figures are means over the seeds of a cell. "-" is a figure that
 * was not computed. A name that has no room stands on a line of its own: names
 * are never cut, they tell the settings of a grid apart. Notes say where the
 * figures of a table mean less than they seem to. */
#include "report_priv.h"
#include <math.h>
#include <string.h>

#define LINE_WIDTH 120
#define NAME_WIDTH 24
/* Arrivals of less than this are a burst: what is late has no time to show. */
#define STEADY_S 30.0

struct column {
    const char *group, *name;
    int width, digits;
    size_t offset; /* of a double in struct bt_sim_summary */
    double scale;
};
#define AT(member) offsetof(struct bt_sim_summary, member)
static const struct column COLUMNS[] = {
    {"SLO", "met %", 6, 1, AT(attainment), 100},
    {"good", "req/s", 8, 2, AT(goodput_per_s), 1},
    {"TTFT", "p50 s", 8, 3, AT(ttft.p50), 1},
    {"", "p90 s", 8, 3, AT(ttft.p90), 1},
    {"", "p99 s", 8, 3, AT(ttft.p99), 1},
    {"TTST", "mean s", 8, 3, AT(ttst.mean), 1},
    {"TPOT", "p50 ms", 7, 1, AT(tpot.p50), 1e3},
    {"", "p99 ms", 7, 1, AT(tpot.p99), 1e3},
    {"slow", "p99 x", 8, 2, AT(slowdown.p99), 1},
    {"hit", "%", 6, 1, AT(hit_share), 100},
    {"moved", "GB", 8, 1, AT(bytes_moved), 1e-9},
    {"changed", "%", 8, 1, AT(changed_share), 100},
    {"error", "%", 6, 1, AT(error_total), 100},
    {"regret", "ms", 8, 1, AT(regret_mean_s), 1e3},
};
#define COLUMN_COUNT (sizeof(COLUMNS) / sizeof(COLUMNS[0]))

static double value_of(const struct column *c, const struct bt_sim_summary *s)
{
    const struct report_field field = {c->name, c->offset};
    double value = report_field_value(&field, s);

    if (c->offset == AT(regret_mean_s) && value < 0)
        return (double)NAN;
    if (c->offset == AT(goodput_per_s) && value <= 0 && s->attainment > 0)
        return (double)NAN; /* one arrival has no rate */
    return value * c->scale;
}
#undef AT

/* The last column, regret, is there when it was asked for. */
static size_t columns_of(const struct bt_report_setup *s)
{
    return s->regret_every > 0 ? COLUMN_COUNT : COLUMN_COUNT - 1;
}

static void head(FILE *to, size_t columns)
{
    fprintf(to, "%-*s", NAME_WIDTH, "");
    for (size_t i = 0; i < columns; i++)
        fprintf(to, "%*s", COLUMNS[i].width, COLUMNS[i].group);
    fprintf(to, "\n%-*s", NAME_WIDTH, "policy");
    for (size_t i = 0; i < columns; i++)
        fprintf(to, "%*s", COLUMNS[i].width, COLUMNS[i].name);
    fputc('\n', to);
}

static void print_name(FILE *to, const char *name)
{
    if (strlen(name) < NAME_WIDTH)
        fprintf(to, "%-*s", NAME_WIDTH, name);
    else
        fprintf(to, "%s\n%-*s", name, NAME_WIDTH, "");
}

static void row(FILE *to, const struct bt_report_arm *arm,
                const struct bt_report_row *r, size_t columns)
{
    print_name(to, arm->name);
    if (r->failed == r->seeds) {
        fprintf(to, "  failed: %.100s\n", r->mean.error);
        return;
    }
    for (size_t i = 0; i < columns; i++) {
        double value = value_of(&COLUMNS[i], &r->mean.all);

        if (isfinite(value))
            fprintf(to, " %*.*f", COLUMNS[i].width - 1, COLUMNS[i].digits,
                    value);
        else
            fprintf(to, "%*s", COLUMNS[i].width, "-");
    }
    fputc('\n', to);
    if (r->failed > 0)
        fprintf(to, "%-*s  %u of %u seeds failed: %.80s\n", NAME_WIDTH, "",
                r->failed, r->seeds, r->mean.error);
}

/* ---- what was run ---- */

void report_wrap(FILE *to, const char *text)
{
    size_t indent = 0;

    while (strlen(text) + indent > LINE_WIDTH) {
        size_t at = LINE_WIDTH - indent;

        while (at > 0 && text[at] != ' ')
            at--;
        if (at == 0)
            break;
        fprintf(to, "%*s%.*s\n", (int)indent, "", (int)at, text);
        text += at + 1;
        indent = 2;
    }
    fprintf(to, "%*s%s\n", (int)indent, "", text);
}

/* What is measured of it: arrivals after the warm-up, as bt_sim_summarise
 * counts goodput. */
void report_window_get(const struct bt_sim_config *c,
                       struct report_window *window_out)
{
    const struct bt_trace *t = c->trace;
    size_t end = c->count ? c->first + c->count : t->count, from;

    *window_out = (struct report_window){0};
    if (end > t->count)
        end = t->count;
    if (end <= c->first || !(c->speed > 0))
        return;
    from = c->first + (size_t)((double)(end - c->first) * c->warmup);
    if (from >= end)
        return;
    window_out->seconds = (double)(t->requests[end - 1].arrival_ns -
                                   t->requests[from].arrival_ns) /
                          1e9 / c->speed;
    if (window_out->seconds > 0)
        window_out->rate_per_s = (double)(end - from) / window_out->seconds;
    window_out->is_short = window_out->seconds < STEADY_S;
}

void report_describe_knowledge(const struct bt_sim_knowledge *k, char *text,
                               size_t size)
{
    snprintf(text, size,
             "compute %+.0f %%, links %+.0f %%%s, telemetry %s%.0f ms "
             "(%.0f ms late), events %s%.0f ms late, %.3g %% lost%s%s%s, %s%s",
             k->compute_bias * 100, k->link_bias * 100,
             k->shuffled_costs ? ", costs shuffled" : "",
             k->telemetry_ns > 0 ? "every " : "off ",
             (double)k->telemetry_ns / 1e6, (double)k->telemetry_lag_ns / 1e6,
             k->events_off ? "off " : "", (double)k->event_lag_ns / 1e6,
             k->event_loss * 100,
             k->event_loss > 0 && !k->event_replay ? " for good" : "",
             k->approximate ? "" : ", no guesses",
             k->self_check ? "" : ", no self-check",
             k->calibrate ? "learning" : "not learning",
             k->output_known ? ", output length told" : "");
}

void report_describe(const struct bt_sim_config *c, char *text, size_t size)
{
    static const char *const overlaps[] = {"no", "chunk", "layer"};
    const struct bt_engine_mode *mode = &c->cluster->mode;

    snprintf(text, size,
             "cluster %s, requests %zu..%zu of the %s trace '%s', warm-up "
             "%.0f %%, engine: %s overlap%s%s%s",
             c->cluster->name, c->first,
             c->count ? c->first + c->count : c->trace->count,
             c->trace->synthetic ? "generated" : "recorded", c->trace->name,
             c->warmup * 100, overlaps[mode->overlap],
             mode->allocate_first ? ", allocates first" : "",
             mode->whole_prompt ? ", whole prompts" : ", delta",
             mode->late_decode ? ", late decode" : "");
}

static void describe(const struct bt_report_matrix *m, FILE *to)
{
    struct bt_sim_config config;
    char text[400];

    bt_report_config(m->setup, 0, 0, m->speeds[0][0], 0, &config);
    report_describe(&config, text, sizeof(text));
    report_wrap(to, text);
    fputs("knowledge: ", to);
    report_describe_knowledge(&config.knowledge, text, sizeof(text));
    report_wrap(to, text);
    fprintf(to,
            "SLO: TTFT <= %.3g s + %.3g x unloaded prefill, TPOT <= %.3g ms; "
            "seeds:",
            (double)config.slo.ttft_base_ns / 1e9, config.slo.ttft_factor,
            (double)config.slo.tpot_ns / 1e6);
    for (uint32_t i = 0; i < m->setup->seed_count; i++)
        fprintf(to, " %llu", (unsigned long long)m->setup->seeds[i]);
    fprintf(to, "\n");
}

static void block_title(const struct bt_report_matrix *m, uint32_t scenario,
                        uint32_t load, const struct report_window *w, FILE *to)
{
    fprintf(to, "\nfabric %s, ", m->setup->scenarios[scenario].name);
    if (m->loads_are_shares)
        fprintf(to, "load %.0f %% of the best capacity, ",
                m->loads[load] * 100);
    fprintf(to, "speed %.4g", m->speeds[scenario][load]);
    if (w->rate_per_s > 0)
        fprintf(to, ": %.2f requests/s, %.4g s measured", w->rate_per_s,
                w->seconds);
    fputc('\n', to);
}

static void block(const struct bt_report_matrix *m, uint32_t scenario,
                  uint32_t load, FILE *to)
{
    const struct bt_report_setup *s = m->setup;
    size_t columns = columns_of(s);
    struct bt_sim_config config;
    struct report_window window;
    bool easy = s->arm_count > 1;

    bt_report_config(s, scenario, 0, m->speeds[scenario][load], 0, &config);
    report_window_get(&config, &window);
    block_title(m, scenario, load, &window, to);
    head(to, columns);
    for (uint32_t a = 0; a < s->arm_count; a++) {
        struct bt_report_row r;

        bt_report_row_get(m, scenario, load, a, &r);
        row(to, &s->arms[a], &r, columns);
        easy = easy && r.failed == 0 && r.mean.all.attainment >= 0.99;
    }
    if (window.is_short)
        fprintf(to,
                "note: a burst, no steady state: fewer than %.0f s of "
                "arrivals; give more requests\n",
                STEADY_S);
    else if (easy)
        fputs("note: every policy meets the SLO here; a higher speed or a "
              "search for the capacity tells more\n",
              to);
}

enum bt_status bt_report_print_table(const struct bt_report_matrix *matrix,
                                     FILE *to)
{
    const struct bt_report_setup *s = matrix->setup;

    if (s->scenario_count == 0 || s->arm_count == 0)
        return BT_OK;
    describe(matrix, to);
    for (uint32_t i = 0; i < s->scenario_count; i++) {
        for (uint32_t l = 0; l < matrix->load_count; l++)
            block(matrix, i, l, to);
    }
    return ferror(to) ? BT_IO : BT_OK;
}

/* ---- capacity ---- */

static const char *remark(const struct bt_report_search *s)
{
    if (s->none_met)
        return "the rule holds at no speed tried";
    if (s->all_met)
        return "the rule holds at the highest speed tried";
    if (s->out_of_probes)
        return "probes ran out before 2 %";
    if (s->below_failed)
        return "NOT MONOTONE: a lower speed failed";
    return s->above_met ? "NOT MONOTONE: a higher speed met" : "";
}

void report_capacity_window(const struct bt_report_setup *s, uint32_t scenario,
                            uint32_t arm, const struct bt_report_capacity *c,
                            struct report_window *window_out)
{
    struct bt_sim_config config;

    bt_report_config(s, scenario, arm, c->search.low, 0, &config);
    report_window_get(&config, window_out);
    if (c->error[0] || c->search.none_met)
        window_out->is_short = false;
}

static void capacity_row(const struct bt_report_setup *s,
                         const struct bt_report_capacity *c, uint32_t arm,
                         const char *remarks, FILE *to)
{
    const struct bt_sim_summary *at = &c->at.all;

    print_name(to, s->arms[arm].name);
    if (c->error[0]) {
        fprintf(to, "  failed: %.100s\n", c->error);
        return;
    }
    fprintf(to, "%9.3f%9.2f%8.1f%9.2f%9.3f%9.3f%6u%s\n", c->search.low,
            at->goodput_per_s, at->attainment * 100, at->slowdown.p99,
            at->ttft.p50, at->ttft.p99, c->runs, remarks);
}

static bool best_of_family(const struct bt_report_setup *s,
                           const struct bt_report_capacity *of_scenario,
                           uint32_t arm)
{
    uint32_t size = 0;

    for (uint32_t i = 0; i < s->arm_count; i++) {
        if (strcmp(s->arms[i].family, s->arms[arm].family) != 0)
            continue;
        size++;
        if (of_scenario[i].search.low > of_scenario[arm].search.low ||
            (of_scenario[i].search.low == of_scenario[arm].search.low &&
             i < arm))
            return false;
    }
    return size > 1;
}

static void capacity_head(const struct bt_report_setup *s, uint32_t scenario,
                          FILE *to)
{
    fprintf(to,
            "fabric %s: highest speed with >= 95 %% inside the SLO and p99 of "
            "slowdown <= 10\n%-*s%9s%9s%8s%9s%9s%9s\n",
            s->scenarios[scenario].name, NAME_WIDTH, "", "", "good", "SLO",
            "slow", "TTFT", "TTFT");
    fprintf(to, "%-*s%9s%9s%8s%9s%9s%9s%6s\n", NAME_WIDTH, "policy", "speed",
            "req/s", "met %", "p99 x", "p50 s", "p99 s", "runs");
}

static void remarks_of(const struct bt_report_capacity *c, bool is_short,
                       bool best, char *text, size_t size)
{
    const char *words[3] = {is_short ? "BURST" : "",
                            best ? "best of its family" : "",
                            remark(&c->search)};
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < 3 && used < size; i++) {
        if (words[i][0])
            used +=
                (size_t)snprintf(text + used, size - used, "  %s", words[i]);
    }
}

static void capacity_table(const struct bt_report_setup *s,
                           const struct bt_report_capacity *capacity, FILE *to)
{
    for (uint32_t i = 0; i < s->scenario_count; i++) {
        const struct bt_report_capacity *c =
            &capacity[(size_t)i * s->arm_count];
        bool any_short = false;

        fputs(i ? "\n" : "", to);
        capacity_head(s, i, to);
        for (uint32_t a = 0; a < s->arm_count; a++) {
            struct report_window w;
            char remarks[160];

            report_capacity_window(s, i, a, &c[a], &w);
            any_short = any_short || w.is_short;
            remarks_of(&c[a], w.is_short, best_of_family(s, c, a), remarks,
                       sizeof(remarks));
            capacity_row(s, &c[a], a, remarks, to);
        }
        if (any_short)
            fprintf(to,
                    "BURST: at that speed fewer than %.0f s of arrivals are "
                    "measured, so this is no capacity that lasts;\n  give "
                    "more requests (-n, or a longer trace)\n",
                    STEADY_S);
    }
}

enum bt_status
bt_report_print_capacity(const struct bt_report_setup *setup,
                         const struct bt_report_capacity *capacity, bool json,
                         FILE *to)
{
    if (json) {
        fputs("{\"schema\":\"baton.sim.capacity/1\",", to);
        report_json_setup(to, setup);
        fputs(",\"capacity\":[", to);
        report_json_capacity(to, setup, capacity);
        fputs("]}\n", to);
    } else {
        capacity_table(setup, capacity, to);
    }
    return ferror(to) ? BT_IO : BT_OK;
}
