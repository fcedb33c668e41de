/* The written A/B report: tune, find each policy's capacity, run all cells at
 * shares of the best capacity of their fabric, compare the subject with every
 * other arm, write JSON, text, plots and page. Decides the order of the work
 * and which differences are shown; each output is a file of its own. */
#include "report_priv.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES 1024

/* What the subject is compared by, at each load. */
static const struct {
    enum bt_report_sample sample;
    enum bt_report_stat stat;
} METRICS[] = {
    {BT_REPORT_TTFT, BT_REPORT_MEAN}, {BT_REPORT_TTFT, BT_REPORT_P50},
    {BT_REPORT_TTFT, BT_REPORT_P99},  {BT_REPORT_TTST, BT_REPORT_MEAN},
    {BT_REPORT_TTST, BT_REPORT_P99},  {BT_REPORT_TPOT, BT_REPORT_MEAN},
};
#define METRIC_COUNT (sizeof(METRICS) / sizeof(METRICS[0]))

void bt_report_options_init(struct bt_report_options *options)
{
    static const double loads[] = {0.5, 0.8, 0.95, 1.1};

    memset(options, 0, sizeof(*options));
    options->load_count = 4;
    memcpy(options->loads, loads, sizeof(loads));
    options->command = "";
}

static enum bt_status fail(enum bt_status status, char *error, size_t size,
                           const char *what, const char *why)
{
    snprintf(error, size, "%.200s: %.250s", what, why);
    return status;
}

static void say(const struct bt_report_options *o, const char *what)
{
    if (o->verbose)
        fprintf(stderr, "baton sim: %s\n", what);
}

static enum bt_status make_directories(const char *path, char *error,
                                       size_t size)
{
    char plots[PATH_BYTES];

    if ((size_t)snprintf(plots, sizeof(plots), "%s/plots", path) >=
        sizeof(plots))
        return fail(BT_INVALID, error, size, path, "path too long");
    if ((mkdir(path, 0777) != 0 && errno != EEXIST) ||
        (mkdir(plots, 0777) != 0 && errno != EEXIST))
        return fail(BT_IO, error, size, path, strerror(errno));
    return BT_OK;
}

static bool find_subject(const struct bt_report_setup *s, const char *name,
                         uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 0; name && i < s->arm_count; i++) {
        if (strcmp(s->arms[i].name, name) != 0 &&
            strcmp(s->arms[i].family, name) != 0)
            continue;
        *out = i;
        return true;
    }
    return name == NULL;
}

/* Highest capacity of any arm but aggregated ones, which are another kind of
 * serving; the trace's own rate when there is none. */
static double best_capacity(const struct bt_report_setup *s,
                            const struct bt_report_capacity *capacity,
                            uint32_t scenario)
{
    double best = 0;

    for (uint32_t a = 0; a < s->arm_count; a++) {
        const struct bt_report_capacity *c =
            &capacity[(size_t)scenario * s->arm_count + a];

        if (!s->arms[a].aggregated && !c->error[0] && c->search.low > best)
            best = c->search.low;
    }
    return best > 0 ? best : 1;
}

static void set_speeds(const struct bt_report_options *o,
                       const struct bt_report_capacity *capacity,
                       struct bt_report_matrix *m)
{
    m->load_count = o->load_count;
    m->loads_are_shares = true;
    memcpy(m->loads, o->loads, sizeof(m->loads));
    for (uint32_t i = 0; i < m->setup->scenario_count; i++) {
        double best = best_capacity(m->setup, capacity, i);

        for (uint32_t l = 0; l < o->load_count; l++)
            m->speeds[i][l] = best * o->loads[l];
    }
}

static enum bt_status compare_all(const struct bt_report_matrix *m,
                                  uint32_t subject,
                                  struct report_comparison *out, size_t *count)
{
    const struct bt_report_setup *s = m->setup;
    enum bt_status status = BT_OK;
    size_t cells = (size_t)s->scenario_count * m->load_count * s->arm_count;

    *count = 0;
    for (size_t i = 0; i < cells * METRIC_COUNT && status == BT_OK; i++) {
        size_t metric = i % METRIC_COUNT, group = i / METRIC_COUNT;
        struct report_comparison *c = &out[*count];

        c->rival = (uint32_t)(group % s->arm_count);
        c->load = (uint32_t)(group / s->arm_count % m->load_count);
        c->scenario = (uint32_t)(group / s->arm_count / m->load_count);
        c->sample = METRICS[metric].sample;
        c->stat = METRICS[metric].stat;
        if (c->rival == subject)
            continue;
        status = bt_report_compare(
            bt_report_group(m, c->scenario, c->load, subject),
            bt_report_group(m, c->scenario, c->load, c->rival), s->seed_count,
            c->sample, c->stat, &c->difference);
        (*count)++;
    }
    return status;
}

typedef enum bt_status (*write_fn)(const struct report_book *book, FILE *to);

static enum bt_status write_file(const struct report_book *book,
                                 const char *name, write_fn write, char *error,
                                 size_t size)
{
    char path[PATH_BYTES];
    enum bt_status status;
    FILE *to;

    snprintf(path, sizeof(path), "%s/%s", book->options->directory, name);
    to = fopen(path, "w");
    if (!to)
        return fail(BT_IO, error, size, path, strerror(errno));
    status = write(book, to);
    if (fclose(to) != 0 && status == BT_OK)
        status = BT_IO;
    if (status != BT_OK)
        return fail(status, error, size, path, "cannot be written");
    return BT_OK;
}

static enum bt_status write_all(struct report_book *book, char *error,
                                size_t size)
{
    enum bt_status status =
        write_file(book, "results.json", report_book_json, error, size);

    if (status == BT_OK)
        status = write_file(book, "results.txt", report_book_text, error, size);
    if (status != BT_OK)
        return status;
    status = report_plots_make(book);
    if (status == BT_NOT_FOUND)
        book->plots_missing = "gnuplot is not installed (Debian package "
                              "gnuplot-nox): there are no plots, the tables "
                              "are complete";
    else if (status != BT_OK)
        book->plots_missing =
            "gnuplot failed (see plots/gnuplot.log): there are "
            "no plots, the tables are complete";
    if (book->plots_missing)
        fprintf(stderr, "baton sim: %s\n", book->plots_missing);
    return write_file(book, "index.html", report_book_page, error, size);
}

struct work {
    struct bt_report_capacity *capacity;
    struct report_comparison *comparisons;
    struct bt_report_matrix matrix;
};

static enum bt_status measure(struct bt_report_setup *setup,
                              const struct bt_report_options *o,
                              uint32_t subject, struct work *w,
                              size_t *compared)
{
    struct bt_report_search_options search;
    enum bt_status status;

    say(o, "searching capacities");
    bt_report_search_options_init(&search);
    status = bt_report_capacity_run(setup, &search, w->capacity);
    if (status != BT_OK)
        return status;
    w->matrix.setup = setup;
    set_speeds(o, w->capacity, &w->matrix);
    say(o, "running the matrix");
    status = bt_report_matrix_run(&w->matrix);
    if (status != BT_OK)
        return status;
    say(o, "comparing");
    return compare_all(&w->matrix, subject, w->comparisons, compared);
}

static enum bt_status work_init(const struct bt_report_setup *s,
                                const struct bt_report_options *o,
                                struct work *w)
{
    size_t arms = (size_t)s->scenario_count * s->arm_count;

    memset(w, 0, sizeof(*w));
    w->capacity = calloc(arms + 1, sizeof(*w->capacity));
    w->comparisons = calloc(arms * o->load_count * METRIC_COUNT + 1,
                            sizeof(*w->comparisons));
    return w->capacity && w->comparisons ? BT_OK : BT_NO_MEMORY;
}

enum bt_status bt_report_write(struct bt_report_setup *setup,
                               const struct bt_report_options *options,
                               char *error_out, size_t error_size)
{
    struct report_book book = {.setup = setup, .options = options};
    struct work w;
    enum bt_status status =
        make_directories(options->directory, error_out, error_size);

    if (status != BT_OK)
        return status;
    setup->keep_samples = true;
    snprintf(error_out, error_size, "the runs were given up");
    if (options->tune_share > 0) {
        say(options, "tuning");
        status = bt_report_tune(setup, options->tune_share,
                                options->verbose ? stderr : NULL);
    }
    if (status != BT_OK)
        return status;
    if (!find_subject(setup, options->subject, &book.subject))
        return fail(BT_NOT_FOUND, error_out, error_size, options->subject,
                    "the subject is none of the policies compared");
    status = work_init(setup, options, &w);
    if (status == BT_OK)
        status =
            measure(setup, options, book.subject, &w, &book.comparison_count);
    if (status == BT_OK) {
        book.matrix = &w.matrix;
        book.capacity = w.capacity;
        book.comparisons = w.comparisons;
        status = write_all(&book, error_out, error_size);
    }
    bt_report_matrix_fini(&w.matrix);
    free(w.capacity);
    free(w.comparisons);
    return status;
}
