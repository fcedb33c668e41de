/* Text tables of a matrix and of capacities. One row per arm; figures are
 * means over the seeds of a cell. "-" is a figure that was not computed. */
#include "report_priv.h"
#include <math.h>
#include <string.h>

#define NAME_WIDTH 26

struct column {
    const char *group, *name;
    int width, digits;
    size_t offset; /* of a double in struct bt_sim_summary */
    double scale;
};
#define AT(member) offsetof(struct bt_sim_summary, member)
static const struct column COLUMNS[] = {
    {"SLO", "met %", 7, 1, AT(attainment), 100},
    {"good", "req/s", 7, 2, AT(goodput_per_s), 1},
    {"TTFT", "p50 s", 8, 3, AT(ttft.p50), 1},
    {"", "p90 s", 8, 3, AT(ttft.p90), 1},
    {"", "p99 s", 8, 3, AT(ttft.p99), 1},
    {"TTST", "mean s", 8, 3, AT(ttst.mean), 1},
    {"TPOT", "p50 ms", 8, 1, AT(tpot.p50), 1e3},
    {"", "p99 ms", 8, 1, AT(tpot.p99), 1e3},
    {"slow", "p99 x", 8, 2, AT(slowdown.p99), 1},
    {"hit", "%", 6, 1, AT(hit_share), 100},
    {"moved", "GB", 8, 1, AT(bytes_moved), 1e-9},
    {"changed", "%", 8, 1, AT(changed_share), 100},
    {"error", "%", 7, 1, AT(error_total), 100},
    {"regret", "ms", 8, 1, AT(regret_mean_s), 1e3},
};
#define COLUMN_COUNT (sizeof(COLUMNS) / sizeof(COLUMNS[0]))

static double value_of(const struct column *c, const struct bt_sim_summary *s)
{
    const struct report_field field = {c->name, c->offset};
    double value = report_field_value(&field, s);

    if (c->offset == AT(regret_mean_s) && value < 0)
        return (double)NAN;
    return value * c->scale;
}
#undef AT

static void head(FILE *to)
{
    fprintf(to, "%-*s", NAME_WIDTH, "");
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        fprintf(to, "%*s", COLUMNS[i].width, COLUMNS[i].group);
    fprintf(to, "%8s\n%-*s", "wall", NAME_WIDTH, "policy");
    for (size_t i = 0; i < COLUMN_COUNT; i++)
        fprintf(to, "%*s", COLUMNS[i].width, COLUMNS[i].name);
    fprintf(to, "%8s\n", "s");
}

static void row(FILE *to, const struct bt_report_arm *arm,
                const struct bt_report_row *r)
{
    fprintf(to, "%-*.*s", NAME_WIDTH, NAME_WIDTH - 1, arm->name);
    if (r->failed == r->seeds) {
        fprintf(to, "  failed: %.100s\n", r->mean.error);
        return;
    }
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        double value = value_of(&COLUMNS[i], &r->mean.all);

        if (isfinite(value))
            fprintf(to, "%*.*f", COLUMNS[i].width, COLUMNS[i].digits, value);
        else
            fprintf(to, "%*s", COLUMNS[i].width, "-");
    }
    fprintf(to, "%8.2f\n", r->mean.wall_s);
    if (r->failed > 0)
        fprintf(to, "%-*s  %u of %u seeds failed: %.80s\n", NAME_WIDTH, "",
                r->failed, r->seeds, r->mean.error);
}

void report_describe_knowledge(const struct bt_sim_knowledge *k, char *text,
                               size_t size)
{
    snprintf(text, size,
             "compute %+.0f %%, links %+.0f %%%s, telemetry %s%.0f ms "
             "(%.0f ms late), events %s%.0f ms late, %.3g %% lost%s, %s%s",
             k->compute_bias * 100, k->link_bias * 100,
             k->shuffled_costs ? ", costs shuffled" : "",
             k->telemetry_ns > 0 ? "every " : "off ",
             (double)k->telemetry_ns / 1e6, (double)k->telemetry_lag_ns / 1e6,
             k->events_off ? "off " : "", (double)k->event_lag_ns / 1e6,
             k->event_loss * 100,
             k->event_loss > 0 && !k->event_replay ? " for good" : "",
             k->calibrate ? "learning" : "not learning",
             k->output_known ? ", output length told" : "");
}

void report_describe(const struct bt_sim_config *c, char *text, size_t size)
{
    static const char *const overlaps[] = {"no", "chunk", "layer"};
    const struct bt_engine_mode *mode = &c->cluster->mode;

    snprintf(text, size,
             "cluster %s, %s trace %s requests %zu..%zu, warm-up %.0f %%, "
             "engine: %s overlap%s%s%s",
             c->cluster->name, c->trace->synthetic ? "synthetic" : "recorded",
             c->trace->name, c->first,
             c->count ? c->first + c->count : c->trace->count, c->warmup * 100,
             overlaps[mode->overlap],
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
    fprintf(to, "%s\n", text);
    report_describe_knowledge(&config.knowledge, text, sizeof(text));
    fprintf(to,
            "knowledge: %s; SLO: TTFT <= %.3g s + %.3g x unloaded, TPOT "
            "<= %.3g ms; seeds:",
            text, (double)config.slo.ttft_base_ns / 1e9, config.slo.ttft_factor,
            (double)config.slo.tpot_ns / 1e6);
    for (uint32_t i = 0; i < m->setup->seed_count; i++)
        fprintf(to, " %llu", (unsigned long long)m->setup->seeds[i]);
    fprintf(to, "\n");
}

static void block(const struct bt_report_matrix *m, uint32_t scenario,
                  uint32_t load, FILE *to)
{
    const struct bt_report_setup *s = m->setup;

    fprintf(to, "\nfabric %s, ", s->scenarios[scenario].name);
    if (m->loads_are_shares)
        fprintf(to, "load %.0f %% of the best capacity, ",
                m->loads[load] * 100);
    fprintf(to, "speed %.4g\n", m->speeds[scenario][load]);
    head(to);
    for (uint32_t a = 0; a < s->arm_count; a++) {
        struct bt_report_row r;

        bt_report_row_get(m, scenario, load, a, &r);
        row(to, &s->arms[a], &r);
    }
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

static void capacity_row(const struct bt_report_setup *s,
                         const struct bt_report_capacity *c, uint32_t arm,
                         bool best, FILE *to)
{
    const struct bt_sim_summary *at = &c->at.all;

    fprintf(to, "%-*.*s", NAME_WIDTH, NAME_WIDTH - 1, s->arms[arm].name);
    if (c->error[0]) {
        fprintf(to, "  failed: %.100s\n", c->error);
        return;
    }
    fprintf(to, "%9.3f%10.2f%9.1f%10.2f%10.3f%10.2f%7u  %s%s\n", c->search.low,
            at->goodput_per_s, at->attainment * 100, at->slowdown.p99,
            at->ttft.p50, at->ttft.p99, c->runs,
            best ? "best of its family " : "", remark(&c->search));
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

static void capacity_table(const struct bt_report_setup *s,
                           const struct bt_report_capacity *capacity, FILE *to)
{
    for (uint32_t i = 0; i < s->scenario_count; i++) {
        const struct bt_report_capacity *c =
            &capacity[(size_t)i * s->arm_count];

        fprintf(to,
                "%sfabric %s: highest speed with >= 95 %% inside the SLO and "
                "p99 of slowdown <= 10\n%-*s%9s%10s%9s%10s%10s%10s%7s\n",
                i ? "\n" : "", s->scenarios[i].name, NAME_WIDTH, "policy",
                "speed", "good/s", "met %", "slow p99", "TTFT p50", "TTFT p99",
                "runs");
        for (uint32_t a = 0; a < s->arm_count; a++)
            capacity_row(s, &c[a], a, best_of_family(s, c, a), to);
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
