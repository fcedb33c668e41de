/* Ablation: from immediate dispatch by load + prefix to the whole planner, one
 * part at a time, then the whole without each part, then its sequential twins.
 * The order of the steps is the one that can be built: queue order needs held
 * requests, so "slack order" comes with late dispatch (its veto turned off, by
 * allowing a free worker ten times as bad), and transfer-aware decode comes
 * before it. Each step's share is its part of the way in mean TTST from the
 * first step to the last; shares depend on the order, which is why the second
 * part takes each part away from the whole. */
#include "study_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BARE "fetch=0,local=0,hold=0+noprices"

struct step {
    const char *text, *policy;
};
static const struct step CHAIN[] = {
    {"load + prefix, at once, FIFO", "prefix_load"},
    {"d by static tier time (S1)", "s1:" BARE},
    {"p charged its egress (S2)", "s2:" BARE},
    {"live contention (S3)", "s3:" BARE},
    {"joint pair, sum (J0)", "j0+nohold+nofetch+nolocal+noprices"},
    {"arrival against slot", "joint:guard=0," BARE},
    {"guard", "joint:" BARE},
    {"slack order, late dispatch", "joint:fetch=0,local=0,veto=10+noprices"},
    {"warm-worker veto", "joint:fetch=0,local=0+noprices"},
    {"peer fetch", "joint:local=0+noprices"},
    {"eviction and queue price", "joint:local=0"},
    {"local prefill (all)", "joint"},
};
static const struct step WITHOUT[] = {
    {"without the guard", "joint:guard=0"},
    {"without holding", "joint:hold=0"},
    {"without the veto", "joint:veto=10"},
    {"without fetch", "joint:fetch=0"},
    {"without prices", "joint+noprices"},
    {"without local prefill", "joint:local=0"},
    {"twin S1, all else alike", "s1"},
    {"twin S2, all else alike", "s2"},
    {"twin S3, all else alike", "s3"},
    {"twin J0, which cannot hold", "j0"},
};
#define CHAIN_COUNT   (sizeof(CHAIN) / sizeof(CHAIN[0]))
#define WITHOUT_COUNT (sizeof(WITHOUT) / sizeof(WITHOUT[0]))
#define STEPS         (CHAIN_COUNT + WITHOUT_COUNT)
#define LAST          ((uint32_t)CHAIN_COUNT - 1)

static const double LOADS[] = {0.8, 0.95};
#define LOAD_COUNT 2u

struct line {
    const struct step *step;
    struct bt_report_row row;
    struct bt_report_difference mean, p99; /* TTST against the step before, or
                                              the whole */
    double share;                          /* NAN: not part of the way */
};

static const struct step *step_at(uint32_t i)
{
    return i < CHAIN_COUNT ? &CHAIN[i] : &WITHOUT[i - CHAIN_COUNT];
}

/* Against what a step is measured: the one before it, the whole for the
 * second part. */
static uint32_t base_of(uint32_t i)
{
    if (i == 0)
        return 0;
    return i < CHAIN_COUNT ? i - 1 : LAST;
}

static enum bt_status fill(const struct bt_report_matrix *m, uint32_t at[2],
                           struct line *lines)
{
    uint32_t seeds = m->setup->seed_count;
    enum bt_status status = BT_OK;
    double whole;

    for (uint32_t i = 0; i < STEPS && status == BT_OK; i++) {
        const struct bt_report_result *a = bt_report_group(m, at[0], at[1], i),
                                      *b = bt_report_group(m, at[0], at[1],
                                                           base_of(i));

        memset(&lines[i], 0, sizeof(lines[i]));
        lines[i].step = step_at(i);
        bt_report_row_get(m, at[0], at[1], i, &lines[i].row);
        if (i == 0)
            continue;
        status = bt_report_compare(a, b, seeds, BT_REPORT_TTST, BT_REPORT_MEAN,
                                   &lines[i].mean);
        if (status == BT_OK)
            status = bt_report_compare(a, b, seeds, BT_REPORT_TTST,
                                       BT_REPORT_P99, &lines[i].p99);
    }
    whole =
        lines[0].row.mean.all.ttst.mean - lines[LAST].row.mean.all.ttst.mean;
    for (uint32_t i = 0; i < STEPS; i++)
        lines[i].share = i == 0 || i > LAST || fabs(whole) < 1e-9
                             ? (double)NAN
                             : (lines[i - 1].row.mean.all.ttst.mean -
                                lines[i].row.mean.all.ttst.mean) /
                                   whole;
    return status;
}

static void change(FILE *to, const struct bt_report_difference *d)
{
    char text[64] = "-";

    if (d->known)
        snprintf(text, sizeof(text), "%+.1f [%+.1f, %+.1f]",
                 d->relative.mean * 100, d->relative.low * 100,
                 d->relative.high * 100);
    fprintf(to, "%24s", text);
}

static void print_line(FILE *to, const struct line *l)
{
    const struct bt_sim_summary *s = &l->row.mean.all;

    fprintf(to, "%-30s", l->step->text);
    if (l->row.failed == l->row.seeds) {
        fprintf(to, "  failed: %.90s\n", l->row.mean.error);
        return;
    }
    fprintf(to, "%8.1f%9.3f%9.3f%9.3f%9.1f", s->attainment * 100, s->ttft.mean,
            s->ttst.mean, s->ttst.p99, s->hit_share * 100);
    change(to, &l->mean);
    change(to, &l->p99);
    if (isfinite(l->share))
        fprintf(to, "%9.0f", l->share * 100);
    fputc('\n', to);
}

static void print_table(const struct bt_report_matrix *m, uint32_t at[2],
                        const struct line *lines, FILE *to)
{
    fprintf(to,
            "\nfabric %s, load %.0f %%, speed %.3f\n%-30s%8s%9s%9s%9s%9s%24s"
            "%24s%9s\n",
            m->setup->scenarios[at[0]].name, m->loads[at[1]] * 100,
            m->speeds[at[0]][at[1]], "step", "met %", "TTFT s", "TTST s",
            "TTST p99", "saved %", "TTST mean %", "TTST p99 %", "share %");
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i == CHAIN_COUNT)
            fprintf(to, "against the whole:\n");
        print_line(to, &lines[i]);
    }
}

static void print_json(const struct bt_report_matrix *m, uint32_t at[2],
                       const struct line *lines, bool first, FILE *to)
{
    for (uint32_t i = 0; i < STEPS; i++) {
        fprintf(to, "%s\n{\"scenario\":", first && i == 0 ? "" : ",");
        report_json_text(to, m->setup->scenarios[at[0]].name);
        fputc(',', to);
        report_json_number(to, "load", m->loads[at[1]]);
        fputc(',', to);
        report_json_number(to, "speed", m->speeds[at[0]][at[1]]);
        fputs(",\"step\":", to);
        report_json_text(to, lines[i].step->text);
        fputs(",\"arm\":", to);
        report_json_text(to, lines[i].step->policy);
        fprintf(to, ",\"chain\":%s,", i < CHAIN_COUNT ? "true" : "false");
        report_json_number(to, "share", lines[i].share);
        fputs(",\"ttst_mean\":{", to);
        report_json_difference(to, &lines[i].mean);
        fputs("},\"ttst_p99\":{", to);
        report_json_difference(to, &lines[i].p99);
        fputs("},\"summary\":", to);
        report_json_summary(to, &lines[i].row.mean.all);
        fputc('}', to);
    }
}

static enum bt_status print_all(const struct bt_report_matrix *m,
                                const struct bt_report_study_options *options,
                                FILE *to)
{
    struct line *lines = calloc(STEPS, sizeof(*lines));
    enum bt_status status = lines ? BT_OK : BT_NO_MEMORY;
    bool first = true;

    if (options->json) {
        fputs("{\"schema\":\"baton.sim.study/1\",\"study\":\"ablation\",", to);
        report_json_setup(to, m->setup);
        fputs(",\"rows\":[", to);
    }
    for (uint32_t i = 0; i < m->setup->scenario_count; i++) {
        for (uint32_t l = 0; l < m->load_count && status == BT_OK; l++) {
            uint32_t at[2] = {i, l};

            status = fill(m, at, lines);
            if (status == BT_OK && options->json)
                print_json(m, at, lines, first, to);
            else if (status == BT_OK)
                print_table(m, at, lines, to);
            first = false;
        }
    }
    if (options->json)
        fputs("]}\n", to);
    free(lines);
    return ferror(to) && status == BT_OK ? BT_IO : status;
}

/* Speeds: shares of what the whole reaches on each fabric, one seed. */
static enum bt_status set_speeds(const struct bt_report_setup *setup,
                                 struct bt_report_matrix *m, char *error,
                                 size_t size)
{
    struct bt_report_capacity c[BT_REPORT_SCENARIOS_MAX];
    struct bt_report_search_options options;
    struct bt_report_setup *whole = malloc(sizeof(*whole));
    enum bt_status status;

    if (!whole)
        return BT_NO_MEMORY;
    *whole = *setup;
    whole->arms[0] = setup->arms[LAST];
    whole->arm_count = 1;
    whole->seed_count = 1;
    bt_report_search_options_init(&options);
    options.verify = false;
    options.tolerance = 0.05;
    status = bt_report_capacity_run(whole, &options, c);
    for (uint32_t i = 0; status == BT_OK && i < setup->scenario_count; i++) {
        if (c[i].error[0] || c[i].search.low <= 0) {
            snprintf(error, size, "%s: %s", setup->scenarios[i].name,
                     c[i].error[0] ? c[i].error
                                   : "the SLO rule holds at no speed; "
                                     "give --speed");
            status = BT_INVALID;
        }
        for (uint32_t l = 0; l < LOAD_COUNT; l++)
            m->speeds[i][l] = c[i].search.low * LOADS[l];
    }
    free(whole);
    return status;
}

static size_t failed_cells(const struct bt_report_matrix *m)
{
    size_t failed = 0;

    for (size_t i = 0; i < m->count; i++)
        failed += m->results[i].status != BT_OK;
    return failed;
}

static enum bt_status run(struct bt_report_setup *setup,
                          const struct bt_report_study_options *options,
                          FILE *to, size_t *failed_out, char *error,
                          size_t size)
{
    struct bt_report_matrix m = {.setup = setup};
    enum bt_status status = BT_OK;

    if (options->load > 0) {
        m.load_count = 1;
        m.loads[0] = options->load;
        for (uint32_t i = 0; i < setup->scenario_count; i++)
            m.speeds[i][0] = options->load;
    } else {
        m.load_count = LOAD_COUNT;
        m.loads_are_shares = true;
        memcpy(m.loads, LOADS, sizeof(LOADS));
        status = set_speeds(setup, &m, error, size);
    }
    if (status == BT_OK)
        status = bt_report_matrix_run(&m);
    if (status == BT_OK)
        status = print_all(&m, options, to);
    *failed_out = failed_cells(&m);
    bt_report_matrix_fini(&m);
    return status;
}

enum bt_status study_ablation(const struct bt_report_setup *user,
                              const struct bt_report_study_options *options,
                              FILE *to, size_t *failed_out, char *error_out,
                              size_t error_size)
{
    struct bt_report_setup *setup = malloc(sizeof(*setup));
    enum bt_status status = BT_OK;

    if (!setup)
        return BT_NO_MEMORY;
    *setup = *user;
    setup->arm_count = 0;
    setup->keep_samples = true;
    for (uint32_t i = 0; i < STEPS && status == BT_OK; i++)
        status =
            bt_report_arm_add(setup, step_at(i)->policy, error_out, error_size);
    if (status == BT_OK)
        status = run(setup, options, to, failed_out, error_out, error_size);
    free(setup);
    return status;
}
