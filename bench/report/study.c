/* Runs a study that is a table of rows: each row's cell is made real, its
 * speed found (a share of the best capacity of the row's own arms), its arms
 * run over all seeds, and every check printed with its verdict as soon as it is
 * known. A row that cannot run is a verdict too ("no data"), not an end. */
#include "study_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 1e6 /* a difference beyond this stands for "no interval" */

static const struct {
    const char *name;
    const struct study_row *rows;
    const size_t *count;
} STUDIES[] = {
    {"claims", STUDY_CLAIMS, &STUDY_CLAIM_COUNT},
    {"ties", STUDY_TIES, &STUDY_TIE_COUNT},
    {"knowledge", STUDY_KNOWLEDGE, &STUDY_KNOWLEDGE_COUNT},
};

struct report {
    const struct bt_report_study_options *options;
    FILE *to;
    bool first;
    size_t counts[BT_VERDICT_SHEDS + 1];
};

static void rule_text(const struct study_check *check, char *text, size_t size)
{
    const struct bt_report_claim_rule *c = &check->claim;

    if (check->rule == STUDY_TIE)
        snprintf(text, size, "+-%.0f %%", c->limit * 100);
    else if (check->rule == STUDY_FLOOR)
        snprintf(text, size, "<= %+.0f %%", c->limit * 100);
    else if (check->measure == STUDY_TPOT_S)
        snprintf(text, size, "<= %+.0f ms", c->limit * 1e3);
    else if (check->measure == STUDY_AVOID)
        snprintf(text, size, "<= 0");
    else if (check->measure == STUDY_DECISION)
        snprintf(text, size, "<= %.0f us, fails > %.0f", c->expected_high,
                 c->limit);
    else
        snprintf(text, size, "%+.0f..%+.0f, fails > %+.0f %%",
                 c->expected_low * 100, c->expected_high * 100, c->limit * 100);
}

static void found_text(const struct study_check *check,
                       const struct bt_report_difference *d, char *text,
                       size_t size)
{
    bool plain =
        check->measure == STUDY_AVOID || check->measure == STUDY_DECISION;
    double scale = check->measure == STUDY_TPOT_S ? 1e3 : plain ? 1 : 100;

    if (!d->known)
        snprintf(text, size, "-");
    else if (fabs(d->relative.mean) > SHOWN_MAX)
        snprintf(text, size, "never");
    else if (fabs(d->relative.high) > SHOWN_MAX)
        snprintf(text, size, "%+.1f [one seed]", d->relative.mean * scale);
    else
        snprintf(text, size, "%+.1f [%+.1f, %+.1f]", d->relative.mean * scale,
                 d->relative.low * scale, d->relative.high * scale);
}

static void print_text(struct report *r, const struct study_row *row,
                       const struct study_check *check,
                       const struct study_outcome *o, double speed)
{
    bool wide = strlen(o->rival) > 26; /* never cut: it tells rivals apart */
    char rule[64], found[64];

    rule_text(check, rule, sizeof(rule));
    found_text(check, &o->difference, found, sizeof(found));
    if (wide)
        fprintf(r->to, "%-5s %7.3f %s\n%-14s", row->id, speed, o->rival, "");
    else
        fprintf(r->to, "%-5s %7.3f ", row->id, speed);
    fprintf(r->to, "%-26s %-15s %-24s %-24s %s\n", wide ? "" : o->rival,
            o->measure, rule, found, bt_report_verdict_name(o->verdict));
}

static void print_json(struct report *r, const struct study_row *row,
                       const struct study_check *check,
                       const struct study_outcome *o, double speed)
{
    fprintf(r->to, "%s\n{\"id\":", r->first ? "" : ",");
    report_json_text(r->to, row->id);
    fputs(",\"claim\":", r->to);
    report_json_text(r->to, row->claim);
    fputs(",\"subject\":", r->to);
    report_json_text(r->to, row->subject);
    fputs(",\"rival\":", r->to);
    report_json_text(r->to, o->rival);
    fputs(",\"measure\":", r->to);
    report_json_text(r->to, o->measure);
    fputc(',', r->to);
    report_json_number(r->to, "speed", speed);
    fputc(',', r->to);
    report_json_number(r->to, "load", row->world.load);
    fputc(',', r->to);
    report_json_number(r->to, "limit", check->claim.limit);
    fputc(',', r->to);
    report_json_number(r->to, "expected_low", check->claim.expected_low);
    fputc(',', r->to);
    report_json_number(r->to, "expected_high", check->claim.expected_high);
    fputs(",\"difference\":{", r->to);
    report_json_difference(r->to, &o->difference);
    fprintf(r->to, "},\"verdict\":\"%s\"}", bt_report_verdict_name(o->verdict));
    r->first = false;
}

static void emit(struct report *r, const struct study_row *row,
                 const struct study_check *check, const struct study_outcome *o,
                 double speed)
{
    r->counts[o->verdict]++;
    if (r->options->json)
        print_json(r, row, check, o, speed);
    else
        print_text(r, row, check, o, speed);
    fflush(r->to);
}

static enum bt_status judge_all(struct report *r, const struct study_row *row,
                                const struct study_cell *cell,
                                const struct bt_report_matrix *m)
{
    enum bt_status status = BT_OK;

    for (uint32_t i = 0; i < STUDY_RIVALS_MAX && row->rivals[i]; i++) {
        for (uint32_t k = 0; k < STUDY_CHECKS_MAX && status == BT_OK; k++) {
            struct study_outcome o;

            if (row->checks[k].rule == STUDY_NONE)
                break;
            status = study_judge(cell, m, row, i, &row->checks[k], &o);
            if (status == BT_OK)
                emit(r, row, &row->checks[k], &o, cell->speed);
        }
    }
    return status;
}

/* The first run of the cell that failed, or NULL. */
static const char *run_error(const struct bt_report_matrix *m)
{
    for (size_t i = 0; i < m->count; i++) {
        if (m->results[i].status != BT_OK)
            return m->results[i].error;
    }
    return NULL;
}

static void no_data(struct report *r, const struct study_row *row,
                    const char *why)
{
    const struct study_outcome o = {
        .rival = row->rivals[0], .measure = "", .verdict = BT_VERDICT_NO_DATA};

    emit(r, row, &row->checks[0], &o, 0);
    fprintf(stderr, "baton sim: %s: %s\n", row->id, why);
}

/* Said before the figures that it weakens. */
static void print_burst(struct report *r, const struct study_cell *cell)
{
    struct bt_sim_config config;
    struct report_window window;

    bt_report_config(&cell->setup, 0, 0, cell->speed, 0, &config);
    report_window_get(&config, &window);
    if (window.is_short)
        fprintf(r->to,
                "note: a burst, no steady state: %.3g s of arrivals at this "
                "speed; give more requests\n",
                window.seconds);
}

static enum bt_status run_cell(struct report *r, const struct study_row *row,
                               struct study_cell *cell, char *error,
                               size_t size)
{
    struct bt_report_matrix m = {.setup = &cell->setup, .load_count = 1};
    enum bt_status status = BT_OK;

    if (r->options->load > 0)
        cell->speed = r->options->load;
    else
        status = study_cell_speed(cell, row->world.load, error, size);
    if (status != BT_OK)
        return status;
    study_cell_fault(cell, &row->world);
    m.loads[0] = m.speeds[0][0] = cell->speed;
    if (!r->options->json)
        print_burst(r, cell);
    status = bt_report_matrix_run(&m);
    if (status == BT_OK && run_error(&m))
        fprintf(stderr, "baton sim: %s: %s\n", row->id, run_error(&m));
    if (status == BT_OK)
        status = judge_all(r, row, cell, &m);
    bt_report_matrix_fini(&m);
    return status;
}

static enum bt_status run_row(struct report *r,
                              const struct bt_report_setup *user,
                              const struct study_row *row)
{
    struct study_cell *cell = malloc(sizeof(*cell));
    char error[BT_REPORT_ERROR_MIN] = "";
    enum bt_status status;

    if (!cell)
        return BT_NO_MEMORY;
    if (!r->options->json)
        fprintf(r->to, "\n%s: %s\n", row->id, row->claim);
    status = study_cell_init(cell, user, row, error, sizeof(error));
    if (status == BT_OK)
        status = run_cell(r, row, cell, error, sizeof(error));
    study_cell_fini(cell);
    free(cell);
    if (status == BT_OK || status == BT_NO_MEMORY || status == BT_IO)
        return status;
    no_data(r, row, error[0] ? error : bt_status_text(status));
    return BT_OK;
}

static enum bt_status run_cost(struct report *r)
{
    struct study_outcome o;
    enum bt_status status = study_cost(&o);

    if (!r->options->json)
        fprintf(r->to, "\n%s: %s\n", STUDY_COST.id, STUDY_COST.claim);
    emit(r, &STUDY_COST, &STUDY_COST.checks[0], &o, 0);
    return status == BT_NO_MEMORY ? status : BT_OK;
}

static void opening(const struct report *r, const char *name,
                    const struct bt_report_setup *user)
{
    struct bt_report_setup *s = malloc(sizeof(*s));
    struct bt_sim_config config;
    char text[400];

    if (!s)
        return;
    *s = *user;
    s->arm_count = 1;
    bt_report_config(s, 0, 0, 1, 0, &config);
    report_describe(&config, text, sizeof(text));
    if (r->options->json) {
        fprintf(r->to, "{\"schema\":\"baton.sim.study/1\",\"study\":\"%s\",",
                name);
        report_json_setup(r->to, user);
        fputs(",\"base\":", r->to);
        report_json_text(r->to, text);
        fputs(",\"rows\":[", r->to);
    } else {
        fprintf(r->to,
                "%s: joint unless the row says otherwise; differences "
                "in %%, less is better; %u seed%s\n",
                name, user->seed_count, user->seed_count == 1 ? "" : "s");
        report_wrap(r->to, text);
        fprintf(r->to, "%-5s %7s %-26s %-15s %-24s %-24s %s\n", "id", "speed",
                "against", "measure", "rule", "found [95 % interval]",
                "verdict");
    }
    free(s);
}

static void closing(const struct report *r)
{
    fputs(r->options->json ? "],\"verdicts\":{" : "\nverdicts:", r->to);
    for (int i = 0; i <= BT_VERDICT_SHEDS; i++) {
        const char *name = bt_report_verdict_name((enum bt_report_verdict)i);

        if (r->options->json)
            fprintf(r->to, "%s\"%s\":%zu", i ? "," : "", name, r->counts[i]);
        else if (r->counts[i])
            fprintf(r->to, " %zu %s;", r->counts[i], name);
    }
    fputs(r->options->json ? "}}\n" : "\n", r->to);
}

static bool has_cost(size_t which)
{
    return STUDIES[which].rows == STUDY_CLAIMS;
}

/* Before anything is printed: is there such a row? */
static enum bt_status check_only(size_t which, const char *only, char *error,
                                 size_t size)
{
    size_t count = *STUDIES[which].count, used;

    if (!only || (has_cost(which) && strcmp(only, STUDY_COST.id) == 0))
        return BT_OK;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(STUDIES[which].rows[i].id, only) == 0)
            return BT_OK;
    }
    used = (size_t)snprintf(error, size, "no row '%.100s' in %s; rows:", only,
                            STUDIES[which].name);
    for (size_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(error + used, size - used, " %s",
                                 STUDIES[which].rows[i].id);
    if (has_cost(which) && used < size)
        snprintf(error + used, size - used, " %s", STUDY_COST.id);
    return BT_NOT_FOUND;
}

static enum bt_status unknown(const char *name, char *error, size_t size)
{
    snprintf(error, size, "no study '%.100s'; studies: " BT_REPORT_STUDIES,
             name);
    return BT_NOT_FOUND;
}

enum bt_status bt_report_study(const char *name,
                               const struct bt_report_setup *setup,
                               const struct bt_report_study_options *options,
                               FILE *to, size_t *failed_out, char *error_out,
                               size_t error_size)
{
    struct report r = {.options = options, .to = to, .first = true};
    enum bt_status status = BT_OK;
    size_t which = 0;

    if (strcmp(name, "ablation") == 0)
        return study_ablation(setup, options, to, failed_out, error_out,
                              error_size);
    if (strcmp(name, "staleness") == 0)
        return study_staleness(setup, options, to, failed_out, error_out,
                               error_size);
    while (which < 3 && strcmp(STUDIES[which].name, name) != 0)
        which++;
    if (which == 3)
        return unknown(name, error_out, error_size);
    status = check_only(which, options->only, error_out, error_size);
    if (status != BT_OK)
        return status;
    opening(&r, name, setup);
    for (size_t i = 0; i < *STUDIES[which].count && status == BT_OK; i++) {
        const struct study_row *row = &STUDIES[which].rows[i];

        if (options->only && strcmp(options->only, row->id) != 0)
            continue;
        status = run_row(&r, setup, row);
    }
    if (status == BT_OK && has_cost(which) &&
        (!options->only || strcmp(options->only, STUDY_COST.id) == 0))
        status = run_cost(&r);
    if (status != BT_OK)
        return status;
    closing(&r);
    *failed_out = r.counts[BT_VERDICT_FAILS];
    return ferror(to) ? BT_IO : BT_OK;
}
