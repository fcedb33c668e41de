/* Words and figures of `baton bench transfer`. */
#include "baton/bench/micro_transfer.h"
#include <inttypes.h>
#include <string.h>

#define GB 1e9

static void print_rows(const struct bt_micro_transfer_report *report, FILE *to)
{
    fprintf(to, "%-6s%10s%12s%16s  %-12s%8s%6s\n", "", "get", "ours",
            "ucx_perftest", "its test", "ratio", "CPU");
    for (size_t i = 0; i < report->row_count; i++) {
        const struct bt_micro_transfer_row *r = &report->rows[i];

        fprintf(to, "%-6s%6" PRIu64 " KiB%7.2f GB/s", r->transport,
                r->size >> 10, r->bytes_per_s / GB);
        if (r->perftest != NULL)
            fprintf(to, "%11.2f GB/s  %-12s%7.0f%%",
                    r->perftest_bytes_per_s / GB, r->perftest, r->ratio * 100);
        else
            fprintf(to, "%16s  %-12s%8s", "not measured", "", "");
        fprintf(to, "%6.2f\n", r->cpu_load);
    }
}

static void print_blocks(const struct bt_micro_transfer_report *report,
                         FILE *to)
{
    fprintf(to, "\n%u blocks of %u bytes\n%-6s%-12s%-11s%10s%16s%18s\n",
            report->block_n, report->block_bytes, "", "blocks", "checksums",
            "time", "of one large", "a get per block");
    for (size_t i = 0; i < report->block_count; i++) {
        const struct bt_micro_transfer_blocks *b = &report->blocks[i];

        fprintf(to, "%-6s%-12s%-11s%7.1f ms%15.0f%%%12.1f ms %.1fx\n",
                b->transport, b->shape, b->checksums ? "on" : "off",
                b->seconds * 1e3, b->large_ratio * 100, b->naive_seconds * 1e3,
                b->naive_seconds / b->seconds);
    }
}

enum bt_status
bt_micro_transfer_print_table(const struct bt_micro_transfer_report *report,
                              FILE *to)
{
    print_rows(report, to);
    print_blocks(report, to);
    fprintf(to,
            "\nMedians of %d rounds taking turns, each end on a CPU of its "
            "own; ratios round by round.\nCPU: of the receiving process. "
            "Of one large: speed over that of one get of all bytes.\n%s",
            BT_MICRO_TRANSFER_ROUNDS, report->notes);
    return ferror(to) ? BT_IO : BT_OK;
}

/* Lines as members of an array; they are ours, but for names of devices. */
static void print_notes(const char *notes, FILE *to)
{
    fputs("[", to);
    for (const char *at = notes; *at != '\0';) {
        size_t size = strcspn(at, "\n");

        fprintf(to, "%s\"", at == notes ? "" : ",");
        for (size_t i = 0; i < size; i++) {
            if (at[i] == '"' || at[i] == '\\')
                fputc('\\', to);
            if ((unsigned char)at[i] >= ' ')
                fputc(at[i], to);
        }
        fputs("\"", to);
        at += size + (at[size] == '\n');
    }
    fputs("]", to);
}

enum bt_status
bt_micro_transfer_print_json(const struct bt_micro_transfer_report *report,
                             FILE *to)
{
    fputs("{\"results\":[", to);
    for (size_t i = 0; i < report->row_count; i++) {
        const struct bt_micro_transfer_row *r = &report->rows[i];

        fprintf(to,
                "%s{\"transport\":\"%s\",\"size\":%" PRIu64
                ",\"in_flight\":%u,\"bytes_per_s\":%.0f,\"cpu_load\":%.3f",
                i > 0 ? "," : "", r->transport, r->size, r->in_flight,
                r->bytes_per_s, r->cpu_load);
        if (r->perftest != NULL)
            fprintf(to,
                    ",\"ucx_perftest\":\"%s\",\"ucx_perftest_bytes_per_s\":"
                    "%.0f,\"ratio\":%.4f",
                    r->perftest, r->perftest_bytes_per_s, r->ratio);
        fputs("}", to);
    }
    fputs("],\"blocks\":[", to);
    for (size_t i = 0; i < report->block_count; i++) {
        const struct bt_micro_transfer_blocks *b = &report->blocks[i];

        fprintf(to,
                "%s{\"transport\":\"%s\",\"shape\":\"%s\",\"checksums\":%s,"
                "\"count\":%u,\"bytes\":%u,\"seconds\":%.6f,"
                "\"large_ratio\":%.4f,\"naive_seconds\":%.6f,"
                "\"over_naive\":%.3f}",
                i > 0 ? "," : "", b->transport, b->shape,
                b->checksums ? "true" : "false", report->block_n,
                report->block_bytes, b->seconds, b->large_ratio,
                b->naive_seconds, b->naive_seconds / b->seconds);
    }
    fputs("],\"notes\":", to);
    print_notes(report->notes, to);
    fputs("}\n", to);
    return ferror(to) ? BT_IO : BT_OK;
}
