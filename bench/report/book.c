/* results.json and results.txt of the written report; README.md holds the
 * schema. */
#include "report_priv.h"
#include <math.h>

static void comparison_json(const struct report_book *book,
                            const struct report_comparison *c, FILE *to)
{
    const struct bt_report_setup *s = book->setup;

    fputs("{\"scenario\":", to);
    report_json_text(to, s->scenarios[c->scenario].name);
    fputc(',', to);
    report_json_number(to, "load", book->matrix->loads[c->load]);
    fputs(",\"subject\":", to);
    report_json_text(to, s->arms[book->subject].name);
    fputs(",\"rival\":", to);
    report_json_text(to, s->arms[c->rival].name);
    fprintf(to, ",\"metric\":\"%s\",\"statistic\":\"%s\",",
            report_sample_name(c->sample), report_stat_name(c->stat));
    report_json_difference(to, &c->difference);
    fputc('}', to);
}

enum bt_status report_book_json(const struct report_book *book, FILE *to)
{
    fputs("{\"schema\":\"baton.sim.report/1\",\"command\":", to);
    report_json_text(to, book->options->command);
    fputc(',', to);
    report_json_setup(to, book->setup);
    fputs(",\"capacity\":[", to);
    report_json_capacity(to, book->setup, book->capacity);
    fputs("],\"groups\":[", to);
    report_json_cells(to, book->matrix);
    fputs("],\"comparisons\":[", to);
    for (size_t i = 0; i < book->comparison_count; i++) {
        fprintf(to, "%s\n", i ? "," : "");
        comparison_json(book, &book->comparisons[i], to);
    }
    fputs("],", to);
    report_json_number(to, "wall_s", book->matrix->wall_s);
    fputs("}\n", to);
    return ferror(to) ? BT_IO : BT_OK;
}

static void comparison_text(const struct report_book *book,
                            const struct report_comparison *c, FILE *to)
{
    const struct bt_report_difference *d = &c->difference;

    fprintf(to, "  %-24s %s %-4s ", book->setup->arms[c->rival].name,
            report_sample_name(c->sample), report_stat_name(c->stat));
    if (!d->known) {
        fprintf(to, "nothing to pair\n");
        return;
    }
    fprintf(to,
            "%+7.1f %% [%+7.1f, %+7.1f]  %.4g s against %.4g s, %zu "
            "pairs\n",
            d->relative.mean * 100, d->relative.low * 100,
            d->relative.high * 100, d->subject, d->rival, d->pairs);
}

static void comparisons_text(const struct report_book *book, FILE *to)
{
    uint32_t scenario = UINT32_MAX, load = UINT32_MAX;

    fprintf(to,
            "\n%s against each rival: paired difference, 95 %% interval; less "
            "is better\n",
            book->setup->arms[book->subject].name);
    for (size_t i = 0; i < book->comparison_count; i++) {
        const struct report_comparison *c = &book->comparisons[i];

        if (c->scenario != scenario || c->load != load)
            fprintf(to, "\nfabric %s, load %.0f %%\n",
                    book->setup->scenarios[c->scenario].name,
                    book->matrix->loads[c->load] * 100);
        scenario = c->scenario;
        load = c->load;
        comparison_text(book, c, to);
    }
}

enum bt_status report_book_text(const struct report_book *book, FILE *to)
{
    enum bt_status status =
        bt_report_print_capacity(book->setup, book->capacity, false, to);

    fputc('\n', to);
    if (status == BT_OK)
        status = bt_report_print_table(book->matrix, to);
    comparisons_text(book, to);
    return ferror(to) ? BT_IO : status;
}
