/* Words and figures of `baton bench tier`. */
#include "tier.h"

#include <string.h>

#define AIM 0.90 /* of fio */

static double ratio(const struct bt_micro_tier_row *r)
{
    return r->base_bytes_per_s > 0 ? r->bytes_per_s / r->base_bytes_per_s : 0;
}

static bool has_aim(const struct bt_micro_tier_row *r)
{
    return r->depth > 0 && r->base_bytes_per_s > 0;
}

enum bt_status
bt_micro_tier_print_table(const struct bt_micro_tier_report *report, FILE *to)
{
    size_t reached = 0, all = 0;

    fprintf(to, "%-20s%10s%7s%12s%12s%8s\n", "", "block KiB", "depth", "MB/s",
            "base MB/s", "ratio");
    for (size_t i = 0; i < report->count; i++) {
        const struct bt_micro_tier_row *r = &report->rows[i];

        fprintf(to, "%-20s%10llu%7u%12.0f", r->what,
                (unsigned long long)r->block_bytes / 1024, r->depth,
                r->bytes_per_s / 1e6);
        if (r->base_bytes_per_s > 0)
            fprintf(to, "%12.0f%8.2f\n", r->base_bytes_per_s / 1e6, ratio(r));
        else
            fprintf(to, "%12s%8s\n", "-", "-");
        all += has_aim(r);
        reached += has_aim(r) && ratio(r) >= AIM;
    }
    if (all > 0)
        fprintf(to, "\n%zu of %zu at or above %.2f of fio\n", reached, all,
                AIM);
    fprintf(
        to,
        "base: fio, io_uring, direct, registered, same size and depth, by "
        "turns, median of %d; stores end\nafter fdatasync and their record, "
        "nvme_write's fio never flushes, that of nvme_write_durable\n"
        "does at its end\n",
        BT_MICRO_TIER_ROUNDS);
    if (report->notes[0])
        fprintf(to, "%s", report->notes);
    return ferror(to) ? BT_IO : BT_OK;
}

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

enum bt_status
bt_micro_tier_print_json(const struct bt_micro_tier_report *report, FILE *to)
{
    fprintf(to, "{\"results\":[");
    for (size_t i = 0; i < report->count; i++) {
        const struct bt_micro_tier_row *r = &report->rows[i];
        const char *base = r->depth > 0 ? "fio" : "small_pages";

        fprintf(to,
                "%s\n{\"what\":\"%s\",\"block_bytes\":%llu,\"depth\":%u,"
                "\"bytes_per_s\":%.0f,",
                i ? "," : "", r->what, (unsigned long long)r->block_bytes,
                r->depth, r->bytes_per_s);
        if (r->base_bytes_per_s > 0)
            fprintf(to, "\"%s_bytes_per_s\":%.0f,\"ratio\":%.4f}", base,
                    r->base_bytes_per_s, ratio(r));
        else
            fprintf(to, "\"%s_bytes_per_s\":null,\"ratio\":null}", base);
    }
    fprintf(to, "],\n\"aim\":%.2f,\"notes\":", AIM);
    quoted(to, report->notes);
    fprintf(to, "}\n");
    return ferror(to) ? BT_IO : BT_OK;
}
