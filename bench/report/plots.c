/* Plots of the written report: data and one script under DIR/plots, rendered
 * to SVG by gnuplot. Decides which arms a plot shows: the subject, aggregated
 * serving, and the rivals of highest capacity, LINES_MAX in all; the tables
 * have them all. */
#include "report_priv.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINES_MAX  8u
#define NO_LINE    UINT32_MAX
#define PATH_BYTES 1024

#define AT(member) offsetof(struct bt_sim_summary, member)
const struct report_plot_kind REPORT_PLOT_KINDS[] = {
    {"ttft_p50", "TTFT, p50", "s", AT(ttft.p50), 1, true},
    {"ttft_p90", "TTFT, p90", "s", AT(ttft.p90), 1, true},
    {"ttft_p99", "TTFT, p99", "s", AT(ttft.p99), 1, true},
    {"ttst_p50", "TTST, p50", "s", AT(ttst.p50), 1, true},
    {"ttst_p99", "TTST, p99", "s", AT(ttst.p99), 1, true},
    {"tpot_p50", "TPOT, p50", "ms", AT(tpot.p50), 1e3, false},
    {"tpot_p99", "TPOT, p99", "ms", AT(tpot.p99), 1e3, true},
    {"goodput", "goodput", "requests/s inside both SLOs", AT(goodput_per_s), 1,
     false},
    {"attainment", "inside both SLOs", "%", AT(attainment), 100, false},
};
const size_t REPORT_PLOT_KIND_COUNT =
    sizeof(REPORT_PLOT_KINDS) / sizeof(REPORT_PLOT_KINDS[0]);
#undef AT

/* Told apart by people who do not see red and green, too. */
static const char *const COLOURS[LINES_MAX] = {"#d55e00", "#0072b2", "#009e73",
                                               "#cc79a7", "#56b4e9", "#e69f00",
                                               "#000000", "#999999"};

static double capacity_of(const struct report_book *b, uint32_t scenario,
                          uint32_t arm)
{
    const struct bt_report_capacity *c =
        &b->capacity[(size_t)scenario * b->setup->arm_count + arm];

    return c->error[0] ? 0 : c->search.low;
}

static void sort_by_capacity(const struct report_book *b, uint32_t scenario,
                             uint32_t *order)
{
    for (uint32_t i = 0; i < b->setup->arm_count; i++) {
        uint32_t at = i;

        while (at > 0 && capacity_of(b, scenario, order[at - 1]) <
                             capacity_of(b, scenario, i)) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

static void choose_lines(const struct report_book *b, uint32_t scenario,
                         uint32_t lines[LINES_MAX])
{
    uint32_t order[BT_REPORT_ARMS_MAX] = {0}, count = 0;

    sort_by_capacity(b, scenario, order);
    lines[count++] = b->subject;
    for (uint32_t i = 0; i < b->setup->arm_count && count < LINES_MAX; i++) {
        if (b->setup->arms[i].aggregated && i != b->subject)
            lines[count++] = i;
    }
    for (uint32_t i = 0; i < b->setup->arm_count && count < LINES_MAX; i++) {
        if (order[i] != b->subject && !b->setup->arms[order[i]].aggregated)
            lines[count++] = order[i];
    }
    while (count < LINES_MAX)
        lines[count++] = NO_LINE;
}

void report_plot_path(const struct report_book *book, uint32_t scenario,
                      const char *kind, const char *ending, char *path,
                      size_t size)
{
    snprintf(path, size, "%s/plots/%u_%s.%s", book->options->directory,
             scenario, kind, ending);
}

static FILE *open_data(const struct report_book *b, uint32_t scenario,
                       const char *kind)
{
    char path[PATH_BYTES];

    report_plot_path(b, scenario, kind, "tsv", path, sizeof(path));
    return fopen(path, "w");
}

/* One row per load: load in %, then one column per line. *points counts the
 * values that can be drawn: gnuplot refuses a plot without any. */
static bool write_curve(const struct report_book *b, uint32_t scenario,
                        const struct report_plot_kind *kind,
                        const uint32_t lines[LINES_MAX], size_t *points)
{
    const struct report_field field = {"", kind->offset};
    FILE *to = open_data(b, scenario, kind->kind);

    if (!to)
        return false;
    for (uint32_t l = 0; l < b->matrix->load_count; l++) {
        fprintf(to, "%.6g", b->matrix->loads[l] * 100);
        for (uint32_t i = 0; i < LINES_MAX && lines[i] != NO_LINE; i++) {
            struct bt_report_row row;
            double value;

            bt_report_row_get(b->matrix, scenario, l, lines[i], &row);
            value = report_field_value(&field, &row.mean.all) * kind->scale;
            if (row.failed == row.seeds || (kind->log && !(value > 0)))
                fprintf(to, "\tnan");
            else
                *points += fprintf(to, "\t%.6g", value) > 0;
        }
        fputc('\n', to);
    }
    return fclose(to) == 0;
}

/* Text inside single quotes of gnuplot. */
static void quoted(FILE *to, const char *text)
{
    fputc('\'', to);
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputc('\'', to);
        fputc(*c == '\n' ? ' ' : *c, to);
    }
    fputc('\'', to);
}

static void script_curve(const struct report_book *b, uint32_t scenario,
                         const struct report_plot_kind *kind,
                         const uint32_t lines[LINES_MAX], FILE *to)
{
    char title[200];

    snprintf(title, sizeof(title), "%s, fabric %s", kind->title,
             b->setup->scenarios[scenario].name);
    fprintf(to, "set output '%u_%s.svg'\nset title ", scenario, kind->kind);
    quoted(to, title);
    fprintf(to, "\nset ylabel '%s'\n%s\nplot ", kind->unit,
            kind->log ? "set logscale y" : "unset logscale y");
    for (uint32_t i = 0; i < LINES_MAX && lines[i] != NO_LINE; i++) {
        fprintf(to,
                "%s'%u_%s.tsv' using 1:%u with linespoints lw %s pt %u ps 0.6 "
                "lc rgb '%s' title ",
                i ? ", " : "", scenario, kind->kind, i + 2,
                i == 0 ? "3" : "1.5", i + 4, COLOURS[i]);
        quoted(to, b->setup->arms[lines[i]].name);
    }
    fputs("\n", to);
}

static bool write_bars(const struct report_book *b, uint32_t scenario)
{
    uint32_t order[BT_REPORT_ARMS_MAX] = {0};
    FILE *to = open_data(b, scenario, "capacity");

    if (!to)
        return false;
    sort_by_capacity(b, scenario, order);
    for (uint32_t i = 0; i < b->setup->arm_count; i++) {
        fprintf(to, "%u\t%.6g\t%u\t\"%s\"\n", i,
                capacity_of(b, scenario, order[i]), order[i] == b->subject,
                b->setup->arms[order[i]].name);
    }
    return fclose(to) == 0;
}

static void script_bars(const struct report_book *b, uint32_t scenario,
                        FILE *to)
{
    char title[200];

    fprintf(to,
            "reset\nset terminal svg noenhanced size 1000,460 font "
            "'sans-serif,12' background '#ffffff'\n"
            "set output '%u_capacity.svg'\nset title ",
            scenario);
    snprintf(title, sizeof(title), "SLO capacity, fabric %s",
             b->setup->scenarios[scenario].name);
    quoted(to, title);
    fprintf(to,
            "\nset style fill solid 0.9\nset boxwidth 0.7\nunset key\n"
            "set ylabel 'capacity, x trace rate'\n"
            "set grid ytics lc rgb '#dddddd'\nset yrange [0:*]\n"
            "set xtics rotate by -40 noenhanced\nset xrange [-0.6:%u.4]\n"
            "plot '%u_capacity.tsv' using 1:($3==1?$2:1/0):xtic(4) with boxes "
            "lc rgb '#d55e00', '' using 1:($3==0?$2:1/0):xtic(4) with boxes "
            "lc rgb '#0072b2'\n",
            b->setup->arm_count - 1, scenario);
}

static const char HEAD[] =
    "reset\nset terminal svg noenhanced size 620,460 font 'sans-serif,12' "
    "background '#ffffff'\nset xlabel 'load, % of the best SLO capacity'\n"
    "set grid lc rgb '#dddddd'\nset key below Left reverse samplen 2 maxcols "
    "2\nset format y '%g'\nset datafile missing 'nan'\n";

static bool write_scenario(const struct report_book *b, uint32_t scenario,
                           FILE *script)
{
    uint32_t lines[LINES_MAX];
    bool ok = write_bars(b, scenario);

    choose_lines(b, scenario, lines);
    script_bars(b, scenario, script);
    fputs(HEAD, script);
    for (size_t k = 0; ok && k < REPORT_PLOT_KIND_COUNT; k++) {
        const struct report_plot_kind *kind = &REPORT_PLOT_KINDS[k];
        char path[PATH_BYTES];
        size_t points = 0;

        /* of an earlier report in the same place */
        report_plot_path(b, scenario, kind->kind, "svg", path, sizeof(path));
        (void)unlink(path);
        ok = write_curve(b, scenario, kind, lines, &points);
        if (points > 0)
            script_curve(b, scenario, kind, lines, script);
    }
    return ok;
}

static enum bt_status render(const char *directory)
{
    int how = 0;
    pid_t pid = fork();

    if (pid < 0)
        return BT_IO;
    if (pid == 0) {
        if (chdir(directory) != 0 || !freopen("gnuplot.log", "w", stderr))
            _exit(1); /* its warnings are of no use to who reads the page */
        execlp("gnuplot", "gnuplot", "plots.gp", (char *)NULL);
        _exit(errno == ENOENT ? 127 : 1);
    }
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 127)
        return BT_NOT_FOUND;
    return WIFEXITED(how) && WEXITSTATUS(how) == 0 ? BT_OK : BT_IO;
}

enum bt_status report_plots_make(const struct report_book *book)
{
    char path[PATH_BYTES];
    bool ok = true;
    FILE *script;

    snprintf(path, sizeof(path), "%s/plots/plots.gp", book->options->directory);
    script = fopen(path, "w");
    if (!script)
        return BT_IO;
    for (uint32_t i = 0; ok && i < book->setup->scenario_count; i++)
        ok = write_scenario(book, i, script);
    if (fclose(script) != 0 || !ok)
        return BT_IO;
    snprintf(path, sizeof(path), "%s/plots", book->options->directory);
    fflush(NULL);
    return render(path);
}
