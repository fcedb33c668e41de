/* How late or lossy KV events may be before routing by them is worse than
 * routing by load alone, and what the fallback is worth: a grid of lag x loss x
 * replay, two policies that use events, each with the fallback (guesses from
 * placements, self-check) and without, against least_loaded. That one is run
 * once, with perfect events: it chooses by load alone, but events decide how
 * many tokens of a prompt it counts as load. Decides the grid and the
 * break-even; seeds, trace, cluster and speed are the user's.
 *
 * predicted, realised: prompt tokens at the prefill worker that the planner
 * counted on, and that were there when the prefill began. wrong credit: of what
 * was predicted, the part that was not there. It is not 0 with perfect events:
 * blocks are evicted between the decision and the prefill.
 */
#include "baton/base/units.h"
#include "study_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOAD 0.8 /* of the best capacity of the three, without --speed */
#define MS   1000000LL

/* Each with the fallback, then without. */
#define WITH    "+approximate+selfcheck"
#define WITHOUT "+noapproximate+noselfcheck"
static const struct {
    const char *spec, *policy, *fallback, *words;
} SUBJECTS[] = {
    {"joint" WITH, "joint", "approx+check", "joint"},
    {"joint" WITHOUT, "joint", "none", "joint without fallback"},
    {"prefix_load" WITH, "prefix_load", "approx+check", "prefix_load"},
    {"prefix_load" WITHOUT, "prefix_load", "none",
     "prefix_load without fallback"},
};
#define SUBJECT_COUNT 4u
#define LOAD_ONLY     "least_loaded"

static const int64_t LAGS[] = {0, 100 * MS, 1000 * MS, 10000 * MS, 60000 * MS};
static const double LOSSES[] = {0, 0.01, 0.1};

struct cell {
    int64_t lag_ns;
    double loss; /* 1: no events at all */
    bool replay;
};
struct grid {
    struct cell cells[BT_REPORT_SCENARIOS_MAX];
    uint32_t count;
};
struct study {
    const struct bt_report_study_options *options;
    struct grid grid;
    struct bt_report_setup *setup, *load_setup;
    struct bt_report_matrix matrix, load;
    struct bt_report_difference *differences; /* [cell][subject] */
    struct bt_report_difference *worth;       /* of its fallback, likewise */
    FILE *to;
};

/* ---- the grid ---- */

static bool add(struct grid *g, int64_t lag_ns, double loss, bool replay)
{
    if (g->count == BT_REPORT_SCENARIOS_MAX)
        return false;
    g->cells[g->count++] = (struct cell){lag_ns, loss, replay};
    return true;
}

/* Without loss there is nothing to replay; without events no lag. Ordered by
 * loss, then replay, then lag; last the fleet that hears nothing. */
static bool make_grid(const struct bt_report_study_options *o, struct grid *g)
{
    const int64_t *lags = o->lag_count ? o->lags : LAGS;
    const double *losses = o->loss_count ? o->losses : LOSSES;
    size_t lag_count =
        o->lag_count ? o->lag_count : sizeof(LAGS) / sizeof(LAGS[0]);
    size_t loss_count =
        o->loss_count ? o->loss_count : sizeof(LOSSES) / sizeof(LOSSES[0]);
    bool fits = true;

    g->count = 0;
    for (size_t l = 0; l < loss_count; l++)
        for (int off = 0; off < 2; off++)
            for (size_t i = 0; i < lag_count && fits; i++)
                if (losses[l] < 1 && (losses[l] > 0 || off == 0))
                    fits = add(g, lags[i], losses[l], off == 0);
    return fits && add(g, 0, 1, false);
}

static void tell(struct bt_report_scenario *s, const struct cell *c)
{
    s->knowledge.event_lag_ns = c->lag_ns;
    s->knowledge.event_loss = c->loss < 1 ? c->loss : 0;
    s->knowledge.events_off = c->loss >= 1;
    s->knowledge.event_replay = c->replay;
}

static void name(const struct cell *c, char *text, size_t size)
{
    char lag[32];

    if (c->loss >= 1)
        snprintf(text, size, "%-14s %6s", "no events", "-");
    else
        snprintf(text, size, "%-7s %4.1f %% %6s",
                 bt_duration_format(c->lag_ns, lag, sizeof(lag)), 100 * c->loss,
                 c->loss > 0 ? (c->replay ? "on" : "off") : "-");
}

/* ---- runs ---- */

static enum bt_status find_speed(const struct study *s, double *speed_out,
                                 char *error, size_t size)
{
    struct bt_report_setup *all = malloc(sizeof(*all));
    struct bt_report_capacity c[SUBJECT_COUNT + 1];
    struct bt_report_search_options options;
    enum bt_status status;
    double best = 0;

    if (!all)
        return BT_NO_MEMORY;
    *all = *s->setup;
    all->scenario_count = 1;
    all->seed_count = 1;
    all->arm_count = 0; /* without loss the fallback changes nothing */
    for (uint32_t i = 0; i < SUBJECT_COUNT; i += 2)
        all->arms[all->arm_count++] = s->setup->arms[i];
    all->arms[all->arm_count++] = s->load_setup->arms[0];
    bt_report_search_options_init(&options);
    options.verify = false;
    options.tolerance = 0.05;
    status = bt_report_capacity_run(all, &options, c);
    for (uint32_t i = 0; status == BT_OK && i < all->arm_count; i++) {
        if (c[i].error[0])
            snprintf(error, size, "%s", c[i].error);
        else
            best = fmax(best, c[i].search.low);
    }
    free(all);
    if (status == BT_OK && best <= 0) {
        if (!error[0])
            snprintf(error, size,
                     "the SLO rule holds at no speed; give --speed");
        status = BT_INVALID;
    }
    *speed_out = best * LOAD;
    return status;
}

static enum bt_status set_up(struct study *s,
                             const struct bt_report_setup *user, char *error,
                             size_t size)
{
    enum bt_status status = BT_OK;

    *s->setup = *user;
    s->setup->arm_count = 0;
    s->setup->keep_samples = true;
    s->setup->scenario_count = 1;
    *s->load_setup = *s->setup;
    for (uint32_t i = 0; i < SUBJECT_COUNT && status == BT_OK; i++)
        status = bt_report_arm_add(s->setup, SUBJECTS[i].spec, error, size);
    if (status == BT_OK)
        status = bt_report_arm_add(s->load_setup, LOAD_ONLY, error, size);
    for (uint32_t i = s->grid.count; i > 0; i--) {
        s->setup->scenarios[i - 1] = s->setup->scenarios[0];
        tell(&s->setup->scenarios[i - 1], &s->grid.cells[i - 1]);
    }
    tell(&s->load_setup->scenarios[0], &s->grid.cells[0]);
    s->setup->scenario_count = s->grid.count;
    return status;
}

static enum bt_status run_all(struct study *s, double speed)
{
    enum bt_status status;

    s->matrix.setup = s->setup;
    s->load.setup = s->load_setup;
    s->matrix.load_count = s->load.load_count = 1;
    s->matrix.loads[0] = s->load.loads[0] = speed;
    s->load.speeds[0][0] = speed;
    for (uint32_t i = 0; i < s->grid.count; i++)
        s->matrix.speeds[i][0] = speed;
    status = bt_report_matrix_run(&s->load);
    return status == BT_OK ? bt_report_matrix_run(&s->matrix) : status;
}

static bool has_fallback(uint32_t subject)
{
    return subject % 2 == 0;
}

static enum bt_status compare_one(struct study *s, uint32_t i, uint32_t a)
{
    const struct bt_report_result *subject =
        bt_report_group(&s->matrix, i, 0, a);
    uint32_t at = i * SUBJECT_COUNT + a, seeds = s->setup->seed_count;
    enum bt_status status =
        bt_report_compare(subject, bt_report_group(&s->load, 0, 0, 0), seeds,
                          BT_REPORT_TTFT, BT_REPORT_MEAN, &s->differences[at]);

    if (status == BT_OK && has_fallback(a))
        status = bt_report_compare(
            subject, bt_report_group(&s->matrix, i, 0, a + 1), seeds,
            BT_REPORT_TTFT, BT_REPORT_MEAN, &s->worth[at]);
    return status;
}

static enum bt_status compare(struct study *s)
{
    enum bt_status status = BT_OK;

    for (uint32_t i = 0; i < s->grid.count && status == BT_OK; i++)
        for (uint32_t a = 0; a < SUBJECT_COUNT && status == BT_OK; a++)
            status = compare_one(s, i, a);
    return status;
}

/* The policy did the same with the fallback and without, in every run. */
static bool is_idle(const struct study *s, uint32_t i, uint32_t subject)
{
    const struct bt_report_result *with =
        bt_report_group(&s->matrix, i, 0, subject & ~1u);
    const struct bt_report_result *without =
        bt_report_group(&s->matrix, i, 0, subject | 1u);

    for (uint32_t k = 0; k < s->setup->seed_count; k++)
        if (with[k].status != BT_OK || without[k].status != BT_OK ||
            with[k].effects_hash != without[k].effects_hash)
            return false;
    return true;
}

/* ---- break-even ---- */

static const struct bt_report_difference *at(const struct study *s, uint32_t i,
                                             uint32_t subject)
{
    return &s->differences[i * SUBJECT_COUNT + subject];
}

static bool same_series(const struct cell *a, const struct cell *b)
{
    return a->loss == b->loss && a->replay == b->replay;
}

struct even {
    uint32_t first, last; /* cells of the series */
    uint32_t from;        /* load alone is better from this cell on; last + 1:
                             never */
    bool known;
};

static bool series_is_idle(const struct study *s, const struct even *e,
                           uint32_t subject)
{
    for (uint32_t i = e->first; i <= e->last; i++)
        if (!is_idle(s, i, subject))
            return false;
    return true;
}

/* Over the lags of the series that begins at `first`: the least from which on
 * the mean TTFT is above that of load alone. */
static struct even even_of(const struct study *s, uint32_t first,
                           uint32_t subject)
{
    struct even e = {.first = first, .last = first, .known = true};

    while (e.last + 1 < s->grid.count &&
           same_series(&s->grid.cells[first], &s->grid.cells[e.last + 1]))
        e.last++;
    e.from = e.last + 1;
    for (uint32_t i = e.first; i <= e.last; i++)
        e.known = e.known && at(s, i, subject)->known;
    while (e.known && e.from > e.first &&
           at(s, e.from - 1, subject)->relative.mean > 0)
        e.from--;
    return e;
}

/* What the interval allows to say. */
static const char *word(const struct bt_report_difference *d)
{
    if (d->relative.high < 0)
        return "better than";
    return d->relative.low > 0 ? "worse than" : "not told apart from";
}

static void series_text(const struct cell *c, char *text, size_t size)
{
    if (c->loss >= 1)
        snprintf(text, size, "without events");
    else if (c->loss > 0)
        snprintf(text, size, "at %.1f %% loss, replay %s", 100 * c->loss,
                 c->replay ? "on" : "off");
    else
        snprintf(text, size, "without loss");
}

static void even_text(const struct study *s, const struct even *e,
                      uint32_t subject, char *text, size_t size)
{
    bool never = e->from > e->last;
    uint32_t shown = never ? e->last : e->from;
    const struct bt_report_difference *d = at(s, shown, subject);
    char series[48], lag[32], found[64];

    series_text(&s->grid.cells[e->first], series, sizeof(series));
    bt_duration_format(s->grid.cells[shown].lag_ns, lag, sizeof(lag));
    snprintf(found, sizeof(found), "mean TTFT %+.1f %% [%+.1f, %+.1f]",
             100 * d->relative.mean, 100 * d->relative.low,
             100 * d->relative.high);
    if (!e->known)
        snprintf(text, size, "%s, %s: no figure, runs failed",
                 SUBJECTS[subject].words, series);
    else if (s->grid.cells[e->first].loss >= 1)
        snprintf(text, size, "%s, %s: %s load alone (%s)",
                 SUBJECTS[subject].words, series, word(d), found);
    else if (never)
        snprintf(text, size,
                 "%s, %s: %s load alone at %s, the longest lag (%s)",
                 SUBJECTS[subject].words, series, word(d), lag, found);
    else
        snprintf(text, size,
                 "%s, %s: load alone is better from a lag of %s on%s (%s)",
                 SUBJECTS[subject].words, series, lag,
                 d->relative.low > 0 ? "" : ", not surely", found);
}

/* ---- table ---- */

static void relative_text(const struct bt_report_difference *d, char *text,
                          size_t size)
{
    snprintf(text, size, "-");
    if (d && d->known)
        snprintf(text, size, "%+.1f [%+.1f,%+.1f]", 100 * d->relative.mean,
                 100 * d->relative.low, 100 * d->relative.high);
}

struct line {
    char cell[48];
    const char *policy, *fallback;
    struct bt_report_row row;
    const struct bt_report_difference *load, *worth; /* NULL: none */
};

static void print_row(const struct study *s, const struct line *l)
{
    const struct bt_report_result *r = &l->row.mean;
    char load[64], worth[64];

    fprintf(s->to, "%s %-12s %-12s ", l->cell, l->policy, l->fallback);
    if (l->row.failed == l->row.seeds) {
        fprintf(s->to, "failed: %.70s\n", r->error);
        return;
    }
    relative_text(l->load, load, sizeof(load));
    relative_text(l->worth, worth, sizeof(worth));
    fprintf(s->to, "%7.3f %6.3f %5.1f %5.1f %5.1f %19s %19s\n",
            r->all.ttft.mean, r->all.ttft.p99, 100 * r->predicted_share,
            100 * r->realised_share, 100 * r->wrong_credit, load, worth);
}

static void print_cell(const struct study *s, uint32_t i)
{
    for (uint32_t a = 0; a < SUBJECT_COUNT; a++) {
        bool idle = is_idle(s, i, a);
        struct line l = {.policy = SUBJECTS[a].policy,
                         .fallback = idle ? "any" : SUBJECTS[a].fallback,
                         .load = at(s, i, a)};

        if (idle && !has_fallback(a))
            continue;
        if (!idle && has_fallback(a))
            l.worth = &s->worth[i * SUBJECT_COUNT + a];
        name(&s->grid.cells[i], l.cell, sizeof(l.cell));
        bt_report_row_get(&s->matrix, i, 0, a, &l.row);
        print_row(s, &l);
    }
}

static void print_table(const struct study *s)
{
    struct line l = {.policy = LOAD_ONLY, .fallback = "-"};

    fprintf(s->to, "%-7s %6s %6s %-12s %-12s %7s %6s %5s %5s %5s %19s %19s\n",
            "lag", "loss", "replay", "policy", "fallback", "TTFT s", "p99",
            "pred", "real", "wrong", "mean, % of load", "% of no fallback");
    snprintf(l.cell, sizeof(l.cell), "%-7s %6s %6s", "any", "-", "-");
    bt_report_row_get(&s->load, 0, 0, 0, &l.row);
    print_row(s, &l);
    for (uint32_t i = 0; i < s->grid.count; i++)
        print_cell(s, i);
    fprintf(s->to,
            "pred, real: %% of prompt tokens cached at the prefill worker, as "
            "the planner thought and in truth; wrong: %% of\nthe predicted "
            "that was not there; load: " LOAD_ONLY "; fallback: guesses from "
            "placements, self-check; any: it changed nothing\n\n");
    for (uint32_t a = 0; a < SUBJECT_COUNT; a++)
        for (uint32_t i = 0; i < s->grid.count;) {
            struct even e = even_of(s, i, a);
            char text[200];

            i = e.last + 1;
            if (!has_fallback(a) && series_is_idle(s, &e, a))
                continue;
            even_text(s, &e, a, text, sizeof(text));
            fprintf(s->to, "%s\n", text);
        }
}

/* ---- JSON ---- */

static void figures_json(const struct study *s, const struct bt_report_row *row)
{
    const struct bt_report_result *r = &row->mean;
    const struct {
        const char *name;
        double value;
    } figures[] = {{"ttft_mean_s", r->all.ttft.mean},
                   {"ttft_p50_s", r->all.ttft.p50},
                   {"ttft_p99_s", r->all.ttft.p99},
                   {"predicted_hit", r->predicted_share},
                   {"realised_hit", r->realised_share},
                   {"wrong_credit", r->wrong_credit}};
    bool failed = row->failed == row->seeds;

    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        report_json_number(s->to, figures[i].name,
                           failed ? (double)NAN : figures[i].value);
        fputc(',', s->to);
    }
    fprintf(s->to, "\"failed\":%u", row->failed);
}

static void rows_json(const struct study *s)
{
    struct bt_report_row row;

    for (uint32_t i = 0; i < s->grid.count; i++)
        for (uint32_t a = 0; a < SUBJECT_COUNT; a++) {
            const struct cell *c = &s->grid.cells[i];

            bt_report_row_get(&s->matrix, i, 0, a, &row);
            fprintf(s->to,
                    "%s\n{\"arm\":\"%s\",\"fallback\":\"%s\",\"events\":%s,",
                    i + a ? "," : "", SUBJECTS[a].policy, SUBJECTS[a].fallback,
                    c->loss < 1 ? "true" : "false");
            report_json_number(s->to, "lag_s", (double)c->lag_ns / 1e9);
            fputc(',', s->to);
            report_json_number(s->to, "loss", c->loss);
            fprintf(s->to, ",\"replay\":%s,", c->replay ? "true" : "false");
            figures_json(s, &row);
            fputs(",\"against_load_only\":{", s->to);
            report_json_difference(s->to, at(s, i, a));
            if (has_fallback(a)) {
                fputs("},\"against_none\":{", s->to);
                report_json_difference(s->to, &s->worth[i * SUBJECT_COUNT + a]);
            }
            fputs("}}", s->to);
        }
}

static void evens_json(const struct study *s)
{
    bool first = true;

    for (uint32_t a = 0; a < SUBJECT_COUNT; a++)
        for (uint32_t i = 0; i < s->grid.count;) {
            struct even e = even_of(s, i, a);
            const struct cell *c = &s->grid.cells[e.first];
            bool worse = e.known && e.from <= e.last;
            char text[200];

            even_text(s, &e, a, text, sizeof(text));
            fprintf(s->to, "%s\n{\"arm\":\"%s\",\"fallback\":\"%s\",",
                    first ? "" : ",", SUBJECTS[a].policy, SUBJECTS[a].fallback);
            report_json_number(s->to, "loss", c->loss);
            fprintf(s->to, ",\"replay\":%s,\"known\":%s,",
                    c->replay ? "true" : "false", e.known ? "true" : "false");
            report_json_number(s->to, "load_only_from_lag_s",
                               worse
                                   ? (double)s->grid.cells[e.from].lag_ns / 1e9
                                   : (double)NAN);
            fputs(",\"text\":", s->to);
            report_json_text(s->to, text);
            fputc('}', s->to);
            first = false;
            i = e.last + 1;
        }
}

static void print_json(const struct study *s)
{
    struct bt_report_row row;

    fputs("{\"schema\":\"baton.sim.study/1\",\"study\":\"staleness\",", s->to);
    report_json_setup(s->to, s->setup);
    fputc(',', s->to);
    report_json_number(s->to, "speed", s->load.speeds[0][0]);
    fputs(",\"load_only\":{\"arm\":\"" LOAD_ONLY "\",", s->to);
    bt_report_row_get(&s->load, 0, 0, 0, &row);
    figures_json(s, &row);
    fputs("},\"rows\":[", s->to);
    rows_json(s);
    fputs("],\"break_even\":[", s->to);
    evens_json(s);
    fputs("]}\n", s->to);
}

/* ---- all of it ---- */

static size_t failed_cells(const struct bt_report_matrix *m)
{
    size_t failed = 0;

    for (size_t i = 0; i < m->count; i++)
        failed += m->results[i].status != BT_OK;
    return failed;
}

static void opening(const struct study *s, double speed)
{
    struct bt_sim_config config;
    struct report_window window;
    char text[400];

    bt_report_config(s->load_setup, 0, 0, speed, 0, &config);
    report_describe(&config, text, sizeof(text));
    fprintf(s->to,
            "staleness: late and lost KV events against load alone, "
            "speed %.3f, %u seed%s\n",
            speed, s->setup->seed_count, s->setup->seed_count == 1 ? "" : "s");
    report_wrap(s->to, text);
    report_window_get(&config, &window);
    if (window.is_short)
        fprintf(s->to,
                "note: a burst, no steady state: %.3g s of arrivals at this "
                "speed; give more requests\n",
                window.seconds);
}

static enum bt_status run(struct study *s, size_t *failed_out, char *error,
                          size_t size)
{
    double speed = s->options->load;
    enum bt_status status = BT_OK;

    if (speed <= 0)
        status = find_speed(s, &speed, error, size);
    if (status == BT_OK && !s->options->json)
        opening(s, speed);
    if (status == BT_OK)
        status = run_all(s, speed);
    if (status == BT_OK)
        status = compare(s);
    if (status != BT_OK)
        return status;
    if (s->options->json)
        print_json(s);
    else
        print_table(s);
    *failed_out = failed_cells(&s->matrix) + failed_cells(&s->load);
    return ferror(s->to) ? BT_IO : BT_OK;
}

enum bt_status study_staleness(const struct bt_report_setup *user,
                               const struct bt_report_study_options *options,
                               FILE *to, size_t *failed_out, char *error_out,
                               size_t error_size)
{
    struct study s = {.options = options, .to = to};
    enum bt_status status = BT_NO_MEMORY;

    if (!make_grid(options, &s.grid)) {
        snprintf(error_out, error_size,
                 "lags x losses x replay on and off make more than %u cells",
                 BT_REPORT_SCENARIOS_MAX);
        return BT_INVALID;
    }
    s.setup = malloc(sizeof(*s.setup));
    s.load_setup = malloc(sizeof(*s.load_setup));
    s.differences =
        calloc((size_t)s.grid.count * SUBJECT_COUNT, sizeof(*s.differences));
    s.worth = calloc((size_t)s.grid.count * SUBJECT_COUNT, sizeof(*s.worth));
    if (s.setup && s.load_setup && s.differences && s.worth)
        status = set_up(&s, user, error_out, error_size);
    if (status == BT_OK)
        status = run(&s, failed_out, error_out, error_size);
    bt_report_matrix_fini(&s.matrix);
    bt_report_matrix_fini(&s.load);
    free(s.setup);
    free(s.load_setup);
    free(s.differences);
    free(s.worth);
    return status;
}
