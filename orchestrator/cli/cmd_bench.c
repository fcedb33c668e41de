/* baton bench: micro benchmarks with stated units. The measuring is
 * bench/micro's; this file reads options and prints. */
#include "cmd_bench.h"
#include "baton/base/units.h"
#include "baton/bench/cluster.h"
#include "baton/bench/micro.h"
#include "command.h"
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNSET    UINT64_MAX
#define REQUESTS 4000 /* http, when not told */

struct options {
    uint64_t seed, requests, connections, streams, largest, cache, size;
    int64_t duration;
    const char *output, *trace, *workers, *block_tokens, *directory;
    bool verbose;
};

#define AT(member) offsetof(struct options, member)
static const struct bt_option table[] = {
    {"output", 'o', BT_OPTION_STRING, "FORM", "table or json (table)",
     AT(output)},
    {"seed", 's', BT_OPTION_U64, "N", "of generated inputs (1)", AT(seed)},
    {"requests", 'n', BT_OPTION_U64, "N",
     "http: requests per latency figure (4000); index: of the trace (all)",
     AT(requests)},
    {"duration", 'd', BT_OPTION_DURATION, "TIME",
     "http: length of a throughput run (2s)", AT(duration)},
    {"connections", 'c', BT_OPTION_U64, "N",
     "http: connections of a throughput run (32)", AT(connections)},
    {"streams", 0, BT_OPTION_U64, "N",
     "http: streams held open for the memory figure (1000)", AT(streams)},
    {"largest", 0, BT_OPTION_U64, "N",
     "place: leave out fleets beyond N x N workers (1000)", AT(largest)},
    {"trace", 't', BT_OPTION_STRING, "FILE",
     "index: a trace, or the name of one (conversation, else synthetic)",
     AT(trace)},
    {"workers", 'w', BT_OPTION_STRING, "LIST",
     "index: caches that requests are spread over (8,64,1000)", AT(workers)},
    {"block-tokens", 0, BT_OPTION_STRING, "LIST",
     "index: tokens per indexed block (the trace's)", AT(block_tokens)},
    {"cache", 0, BT_OPTION_U64, "N",
     "index: of a worker, in blocks of the trace (by the trace)", AT(cache)},
    {"directory", 0, BT_OPTION_STRING, "DIR",
     "tier: where the files are made ($TMPDIR, else .)", AT(directory)},
    {"size", 0, BT_OPTION_SIZE, "BYTES",
     "tier: of each file and run, a multiple of 2 MiB; transfer: of each run "
     "(1GiB)",
     AT(size)},
    {"verbose", 'v', BT_OPTION_FLAG, NULL, "http: show serve's messages",
     AT(verbose)},
    {NULL, 0, BT_OPTION_FLAG, NULL, NULL, 0},
};
#undef AT

static int usage(const char *what)
{
    fprintf(stderr, "baton bench: %s\n", what);
    return BT_EXIT_USAGE;
}

static int check(const struct options *o)
{
    if (strcmp(o->output, "table") != 0 && strcmp(o->output, "json") != 0)
        return usage("--output is table or json");
    if (o->connections < 1 || o->connections > 1024)
        return usage("--connections is 1 to 1024");
    if (o->streams > 3000)
        return usage("--streams is at most 3000");
    if (o->largest < 2 || o->largest > 1000)
        return usage("--largest is 2 to 1000");
    if (o->duration <= 0 || o->duration > 600 * BT_NS_PER_S)
        return usage("--duration is above 0 and at most 10m");
    return 0;
}

static int run_index(const struct options *o)
{
    const struct bench_index_options index = {
        .trace = o->trace,
        .workers = o->workers,
        .block_tokens = o->block_tokens,
        .requests = o->requests == UNSET ? 0 : o->requests,
        .cache = o->cache == UNSET ? 0 : o->cache,
        .seed = o->seed,
        .json = strcmp(o->output, "json") == 0,
    };

    if (o->requests == 0 || o->cache == 0)
        return usage("index: --requests and --cache are at least 1");
    return bench_index_run(&index);
}

static int run_tier(const struct options *o)
{
    const struct bench_tier_options tier = {
        .directory = o->directory,
        .bytes = o->size,
        .seed = o->seed,
        .json = strcmp(o->output, "json") == 0,
    };

    return bench_tier_run(&tier);
}

static int run_transfer(const struct options *o)
{
    const struct bench_transfer_options transfer = {
        .bytes = o->size,
        .seed = o->seed,
        .json = strcmp(o->output, "json") == 0,
    };

    return bench_transfer_run(&transfer);
}

static int run_http(const struct options *o, struct bt_micro_report *report)
{
    char error[BT_CLUSTER_ERROR_MIN] = "";
    struct bt_micro_http_options http;
    enum bt_status status;

    signal(SIGPIPE, SIG_IGN);
    bt_micro_http_options_init(&http);
    http.latency_requests = (uint32_t)o->requests;
    http.connections = (uint32_t)o->connections;
    http.streams = (uint32_t)o->streams;
    http.throughput_ns = o->duration;
    http.verbose = o->verbose;
    http.progress = isatty(STDERR_FILENO);
    status = bt_micro_http(&http, report, error, sizeof(error));
    if (status == BT_OK)
        return 0;
    fprintf(stderr, "baton bench http: %s\n", error);
    return bt_status_class_of(status) == BT_CLASS_PEER ? BT_EXIT_PEER
                                                       : BT_EXIT_FAILED;
}

static int run_place(const struct options *o, struct bt_micro_report *report)
{
    enum bt_status status =
        bt_micro_place(o->seed, (uint32_t)o->largest, report);

    if (status == BT_OK)
        return 0;
    fprintf(stderr, "baton bench place: %s\n", bt_status_text(status));
    return BT_EXIT_FAILED;
}

static int print(const struct options *o, const struct bt_micro_report *report)
{
    enum bt_status status = strcmp(o->output, "json") == 0
                                ? bt_micro_print_json(report, stdout)
                                : bt_micro_print_table(report, stdout);

    if (fflush(stdout) == 0 && status == BT_OK)
        return 0;
    fprintf(stderr, "baton bench: standard output cannot be written\n");
    return BT_EXIT_FAILED;
}

/* http and place: rows with a unit. */
static int run_rows(const struct options *o, bool http)
{
    struct bt_micro_report *report;
    int code;

    if (o->trace || o->workers || o->block_tokens || o->cache != UNSET)
        return usage("--trace, --workers, --block-tokens and --cache belong to "
                     "index");
    if (o->requests < 1 || o->requests > 1000000)
        return usage("--requests is 1 to 1000000");
    report = calloc(1, sizeof(*report));
    if (!report) {
        fprintf(stderr, "baton bench: out of memory\n");
        return BT_EXIT_FAILED;
    }
    code = http ? run_http(o, report) : run_place(o, report);
    if (code == 0)
        code = print(o, report);
    free(report);
    return code;
}

static int run(int argc, char **argv)
{
    struct options o = {.seed = 1,
                        .requests = UNSET,
                        .connections = 32,
                        .streams = 1000,
                        .largest = 1000,
                        .cache = UNSET,
                        .duration = 2 * BT_NS_PER_S,
                        .output = "table"};
    int first,
        code = bt_options_parse(&bt_command_bench, argc, argv, &o, &first);

    if (code >= 0)
        return code;
    code = check(&o);
    if (code != 0)
        return code;
    if (argc - first != 1)
        return usage(
            "say what to measure: http, place, index, tier or transfer");
    if (strcmp(argv[first], "index") == 0)
        return run_index(&o);
    if (strcmp(argv[first], "tier") == 0)
        return run_tier(&o);
    if (strcmp(argv[first], "transfer") == 0)
        return run_transfer(&o);
    if (o.requests == UNSET)
        o.requests = REQUESTS;
    if (strcmp(argv[first], "http") == 0 || strcmp(argv[first], "place") == 0)
        return run_rows(&o, strcmp(argv[first], "http") == 0);
    fprintf(stderr,
            "baton bench: '%s' is none of http, place, index, tier, "
            "transfer\n",
            argv[first]);
    return BT_EXIT_USAGE;
}

const struct bt_command bt_command_bench = {
    .name = "bench",
    .summary =
        "micro benchmarks: HTTP path, placement, index, tiers, transfers",
    .arguments = "http|place|index|tier|transfer",
    .options = table,
    .run = run,
};
