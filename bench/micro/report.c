/* Rows of micro benchmarks as a table or JSON. */
#include "baton/bench/micro.h"
#include <math.h>
#include <stdarg.h>
#include <string.h>

void bt_micro_add(struct bt_micro_report *report, const char *name,
                  double value, const char *unit, const char *baseline)
{
    struct bt_micro_row *row;

    if (report->count == BT_MICRO_ROWS_MAX)
        return;
    row = &report->rows[report->count];
    memset(row, 0, sizeof(*row));
    snprintf(row->name, sizeof(row->name), "%s", name);
    row->value = value;
    row->unit = unit;
    for (size_t i = 0; baseline && i < report->count; i++) {
        const struct bt_micro_row *base = &report->rows[i];

        if (strcmp(base->name, baseline) != 0 || base->value == 0)
            continue;
        snprintf(row->baseline, sizeof(row->baseline), "%s", baseline);
        row->ratio = value / base->value;
    }
    report->count++;
}

void bt_micro_add_speed(struct bt_micro_report *report,
                        const struct bt_micro_speed *speed)
{
    if (report->speed_count < BT_MICRO_SPEEDS_MAX)
        report->speeds[report->speed_count++] = *speed;
}

void bt_micro_note(struct bt_micro_report *report, const char *format, ...)
{
    size_t used = strlen(report->notes);
    va_list args;

    va_start(args, format);
    vsnprintf(report->notes + used, sizeof(report->notes) - used, format, args);
    va_end(args);
}

static int digits(double value)
{
    if (fabs(value) >= 1000)
        return 0;
    return fabs(value) >= 10 ? 1 : 3;
}

/* "nginx" for "nginx: requests, 1 KB" beside "serve: requests, 1 KB"; else the
 * whole name. Returns its length. */
static int short_name(const struct bt_micro_row *row)
{
    const char *mine = strchr(row->name, ':');
    const char *other = strchr(row->baseline, ':');

    if (mine && other && strcmp(mine, other) == 0)
        return (int)(other - row->baseline);
    return (int)strlen(row->baseline);
}

static double per_second(const struct bt_micro_speed *speed)
{
    return speed->mean_ns > 0 ? 1e9 / speed->mean_ns : 0;
}

static void print_speeds(const struct bt_micro_report *report, FILE *to)
{
    if (report->speed_count == 0)
        return;
    fprintf(to, "\n%9s%9s%14s%10s\n", "prefill", "decode", "decisions/s",
            "p99 us");
    for (size_t i = 0; i < report->speed_count; i++) {
        const struct bt_micro_speed *s = &report->speeds[i];

        fprintf(to, "%9u%9u%14.0f%10.1f\n", s->prefill, s->decode,
                per_second(s), s->p99_ns / 1000);
    }
}

enum bt_status bt_micro_print_table(const struct bt_micro_report *report,
                                    FILE *to)
{
    fprintf(to, "%-42s%11s  %-9s%s\n", "", "value", "unit", "baseline");
    for (size_t i = 0; i < report->count; i++) {
        const struct bt_micro_row *r = &report->rows[i];

        fprintf(to, "%-42s%11.*f  ", r->name, digits(r->value), r->value);
        if (r->baseline[0])
            fprintf(to, "%-9s%.2f x %.*s\n", r->unit, r->ratio, short_name(r),
                    r->baseline);
        else
            fprintf(to, "%s\n", r->unit);
    }
    print_speeds(report, to);
    if (report->notes[0])
        fprintf(to, "\n%s", report->notes);
    return ferror(to) ? BT_IO : BT_OK;
}

/* Names and notes are ours: quotes and backslashes do not occur in names;
 * notes may hold paths and line ends. */
static void quoted(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if (*text == '\n')
            fputs("\\n", to);
        else if ((unsigned char)*text >= 0x20)
            fputc(*text, to);
    }
    fputc('"', to);
}

static void rows_as_json(const struct bt_micro_report *report, FILE *to)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct bt_micro_row *r = &report->rows[i];

        fprintf(to, "%s{\"name\":", i ? "," : "");
        quoted(to, r->name);
        fprintf(to, ",\"value\":%.6g,\"unit\":\"%s\",\"baseline\":", r->value,
                r->unit);
        if (r->baseline[0]) {
            quoted(to, r->baseline);
            fprintf(to, ",\"ratio\":%.6g}", r->ratio);
        } else {
            fprintf(to, "null,\"ratio\":null}");
        }
    }
}

static void speeds_as_json(const struct bt_micro_report *report, FILE *to)
{
    for (size_t i = 0; i < report->speed_count; i++) {
        const struct bt_micro_speed *s = &report->speeds[i];

        fprintf(to,
                "%s{\"prefill\":%u,\"decode\":%u,\"decisions_per_s\":%.6g,"
                "\"p99_us\":%.6g}",
                i ? "," : "", s->prefill, s->decode, per_second(s),
                s->p99_ns / 1000);
    }
}

enum bt_status bt_micro_print_json(const struct bt_micro_report *report,
                                   FILE *to)
{
    fprintf(to, "{\"results\":[");
    if (report->speed_count > 0) {
        speeds_as_json(report, to);
        fprintf(to, "],\"rows\":[");
    }
    rows_as_json(report, to);
    fprintf(to, "],\"notes\":");
    quoted(to, report->notes);
    fprintf(to, "}\n");
    return ferror(to) ? BT_IO : BT_OK;
}
