/* baton bench index: reads the lists, finds or makes the trace, prints. The
 * measuring is bench/micro's. */
#include "baton/bench/micro_index.h"
#include "baton/bench/trace.h"
#include "cmd_bench.h"
#include "command.h"
#include "trace_find.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES      1024
#define SYNTHETIC       4000 /* requests */
#define REQUESTS_MAX    (4u << 20)
#define DEFAULT_NAME    "conversation"
#define DEFAULT_WORKERS "8,64,1000"

static int usage(const char *what, const char *got)
{
    fprintf(stderr, "baton bench index: %s%s%s%s\n", what, got ? ", got '" : "",
            got ? got : "", got ? "'" : "");
    return BT_EXIT_USAGE;
}

/* "8,64" with members of 1..most. 0: not so. */
static size_t parse_list(const char *text, uint64_t most, uint32_t *out)
{
    size_t count = 0;

    for (const char *at = text; *at; count++) {
        char *end;
        unsigned long long value;

        errno = 0;
        value = strtoull(at, &end, 10);
        if (count == BT_MICRO_INDEX_LIST_MAX || end == at || *at == '-' ||
            *at == '+' || errno || value < 1 || value > most ||
            (*end && *end != ',') || (*end == ',' && !end[1]))
            return 0;
        out[count] = (uint32_t)value;
        at = end + (*end == ',');
    }
    return count;
}

static int make_synthetic(const struct bench_index_options *o,
                          struct bt_trace *trace, char *source, size_t size)
{
    struct bt_trace_generate_options g;
    char folders[2 * PATH_BYTES];
    enum bt_status status;

    bt_trace_generate_options_init(&g);
    g.requests = o->requests ? (size_t)o->requests : SYNTHETIC;
    g.seed = o->seed;
    status = bt_trace_generate(&g, trace);
    if (status != BT_OK) {
        fprintf(stderr, "baton bench index: %s\n", bt_status_text(status));
        return BT_EXIT_FAILED;
    }
    trace_folders(folders, sizeof(folders));
    snprintf(source, size,
             "made by the generator, since no " DEFAULT_NAME
             "_trace.jsonl is in %.160s",
             folders);
    return 0;
}

static int take_trace(const struct bench_index_options *o,
                      struct bt_trace *trace, char *source, size_t size)
{
    const char *name = o->trace ? o->trace : DEFAULT_NAME;
    struct bt_trace_read_options read;
    char path[PATH_BYTES], error[512] = "";

    if (!trace_find(name, path, sizeof(path)) && !o->trace)
        return make_synthetic(o, trace, source, size);
    bt_trace_read_options_init(&read);
    read.requests_max = (size_t)o->requests;
    read.jitter_ns = 0; /* order counts, not time */
    if (bt_trace_load(path, &read, trace, error, sizeof(error)) != BT_OK) {
        fprintf(stderr, "baton bench index: %s\n", error[0] ? error : path);
        return BT_EXIT_CONFIG;
    }
    snprintf(source, size, "%.250s", path);
    return 0;
}

static int print(const struct bench_index_options *o,
                 const struct bt_micro_index_report *report)
{
    enum bt_status status = o->json
                                ? bt_micro_index_print_json(report, stdout)
                                : bt_micro_index_print_table(report, stdout);

    if (fflush(stdout) == 0 && status == BT_OK)
        return 0;
    fprintf(stderr, "baton bench: standard output cannot be written\n");
    return BT_EXIT_FAILED;
}

static int measure(const struct bench_index_options *o,
                   const struct bt_micro_index_options *m)
{
    struct bt_micro_index_report *report = calloc(1, sizeof(*report));
    enum bt_status status = report ? bt_micro_index(m, report) : BT_NO_MEMORY;
    int code = BT_EXIT_FAILED;

    if (status == BT_OK)
        code = print(o, report);
    else
        fprintf(stderr, "baton bench index: %s\n",
                report && report->error[0] ? report->error
                                           : bt_status_text(status));
    free(report);
    return status == BT_INVALID ? BT_EXIT_USAGE : code;
}

int bench_index_run(const struct bench_index_options *o)
{
    struct bt_micro_index_options m = {.seed = o->seed,
                                       .cache_blocks = (uint32_t)o->cache,
                                       .progress = isatty(STDERR_FILENO)};
    struct bt_trace trace = {.count = 0};
    char source[256] = "";
    int code;

    m.worker_count = parse_list(o->workers ? o->workers : DEFAULT_WORKERS,
                                BT_MICRO_INDEX_WORKERS_MAX, m.workers);
    if (m.worker_count == 0)
        return usage("--workers is N,N,... of 1 to 4096, at most 8",
                     o->workers);
    if (o->block_tokens)
        m.block_count = parse_list(o->block_tokens, 65536, m.block_tokens);
    if (o->block_tokens && m.block_count == 0)
        return usage("--block-tokens is N,N,... of 1 to 65536, at most 8",
                     o->block_tokens);
    if (o->requests > REQUESTS_MAX)
        return usage("--requests is at most 4194304", NULL);
    if (o->cache > 1u << 24)
        return usage("--cache is at most 16777216", NULL);
    code = take_trace(o, &trace, source, sizeof(source));
    if (code != 0)
        return code;
    m.trace = &trace;
    m.source = source;
    if (!o->block_tokens)
        m.block_tokens[m.block_count++] = trace.block_tokens;
    code = measure(o, &m);
    bt_trace_fini(&trace);
    return code;
}
