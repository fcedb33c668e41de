/* baton bench transfer: reads the options, prints; or is the second process of
 * another one. The measuring is bench/micro's. */
#include "baton/bench/micro_transfer.h"
#include "cmd_bench.h"
#include "command.h"
#include <stdlib.h>
#include <unistd.h>

#define BYTES (UINT64_C(1) << 30)

static int print(const struct bench_transfer_options *options,
                 const struct bt_micro_transfer_report *report)
{
    enum bt_status status = options->json
                                ? bt_micro_transfer_print_json(report, stdout)
                                : bt_micro_transfer_print_table(report, stdout);

    if (fflush(stdout) == 0 && status == BT_OK)
        return 0;
    fprintf(stderr, "baton bench: standard output cannot be written\n");
    return BT_EXIT_FAILED;
}

int bench_transfer_run(const struct bench_transfer_options *options)
{
    const char *job = getenv(BT_MICRO_TRANSFER_PEER);
    struct bt_micro_transfer_options o = {
        .bytes = options->bytes ? options->bytes : BYTES,
        .seed = options->seed,
        .progress = isatty(STDERR_FILENO) != 0,
    };
    struct bt_micro_transfer_report *report;
    enum bt_status status = BT_NO_MEMORY;
    int code = BT_EXIT_FAILED;

    if (job)
        return bt_micro_transfer_peer(job) == BT_OK ? 0 : BT_EXIT_FAILED;
    report = calloc(1, sizeof(*report));
    if (report)
        status = bt_micro_transfer(&o, report);
    if (status == BT_OK)
        code = print(options, report);
    else
        fprintf(stderr, "baton bench transfer: %s\n",
                report && report->error[0] ? report->error
                                           : bt_status_text(status));
    free(report);
    return status == BT_INVALID ? BT_EXIT_USAGE : code;
}
