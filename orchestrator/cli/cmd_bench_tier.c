/* baton bench tier: reads the options, prints. The measuring is bench/micro's.
 */
#include "baton/bench/micro_tier.h"
#include "cmd_bench.h"
#include "command.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (UINT64_C(1) << 30)

int bench_tier_run(const struct bench_tier_options *options)
{
    const char *tmp = getenv("TMPDIR");
    struct bt_micro_tier_options o = {
        .directory = options->directory ? options->directory
                     : tmp              ? tmp
                                        : ".",
        .bytes = options->bytes ? options->bytes : SIZE,
        .seed = options->seed,
        .progress = isatty(STDERR_FILENO) != 0,
    };
    struct bt_micro_tier_report *report = calloc(1, sizeof(*report));
    enum bt_status status = BT_NO_MEMORY;
    int code = BT_EXIT_FAILED;

    if (report)
        status = bt_micro_tier(&o, report);
    if (status == BT_OK) {
        status = options->json ? bt_micro_tier_print_json(report, stdout)
                               : bt_micro_tier_print_table(report, stdout);
        if (fflush(stdout) == 0 && status == BT_OK)
            code = 0;
        else
            fprintf(stderr, "baton bench: standard output cannot be written\n");
    } else {
        fprintf(stderr, "baton bench tier: %s\n",
                report && report->error[0] ? report->error
                                           : bt_status_text(status));
        code = status == BT_INVALID ? BT_EXIT_USAGE : BT_EXIT_FAILED;
    }
    free(report);
    return code;
}
