/* baton demo: options of the policy comparison on an embedded cluster. The
 * runs are bench/ab's; this file only reads what the user wants. */
#include "baton/base/units.h"
#include "baton/bench/demo.h"
#include "baton/planner/place.h"
#include "command.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct options {
    struct bt_option_list policies;
    uint64_t seed, requests, trace_tokens, port, rails;
    double rate, trace_scale, speedup;
    int64_t duration, slo_ttft, slo_tpot;
    const char *trace, *directory, *output, *cluster, *fabric, *netbed;
    bool uniform, verbose, keep, hosts;
};

#define AT(member) offsetof(struct options, member)
static const struct bt_option table[] = {
    {"policy", 'p', BT_OPTION_LIST, "NAME",
     "run this policy only; repeatable (default: all four)", AT(policies)},
    {"seed", 's', BT_OPTION_U64, "N", "of workload and placement (1)",
     AT(seed)},
    {"requests", 'n', BT_OPTION_U64, "N",
     "number of requests, 0: rate x duration (0)", AT(requests)},
    {"rate", 'r', BT_OPTION_DOUBLE, "R", "arrivals per second (16)", AT(rate)},
    {"duration", 'd', BT_OPTION_DURATION, "TIME", "of the arrivals (9s)",
     AT(duration)},
    {"trace", 't', BT_OPTION_STRING, "FILE",
     "Mooncake JSONL instead of the generator", AT(trace)},
    {"trace-scale", 0, BT_OPTION_DOUBLE, "X",
     "replay the trace X times faster (4)", AT(trace_scale)},
    {"trace-tokens", 0, BT_OPTION_U64, "N",
     "divide the trace's lengths by N, 1..512 (16)", AT(trace_tokens)},
    {"uniform", 'u', BT_OPTION_FLAG, NULL, "all links equal and fast",
     AT(uniform)},
    {"cluster", 'c', BT_OPTION_STRING, "FILE",
     "fleet from a cluster file of the simulator", AT(cluster)},
    {"fabric", 'f', BT_OPTION_STRING, "NAME", "of that file (its first)",
     AT(fabric)},
    {"netbed", 0, BT_OPTION_STRING, "BED",
     "run the engines on the hosts of a bed, see tests/e2e/netbed", AT(netbed)},
    {"rails", 0, BT_OPTION_U64, "N", "links of each host, 1 or 2 (1)",
     AT(rails)},
    {"hosts", 0, BT_OPTION_FLAG, NULL,
     "print host, engine and rate of each in B/s, and end", AT(hosts)},
    {"speedup", 0, BT_OPTION_DOUBLE, "X",
     "run the emulated engines X times faster (1)", AT(speedup)},
    {"slo-ttft", 0, BT_OPTION_DURATION, "TIME", "for goodput (400ms)",
     AT(slo_ttft)},
    {"slo-tpot", 0, BT_OPTION_DURATION, "TIME", "for goodput (25ms)",
     AT(slo_tpot)},
    {"output", 'o', BT_OPTION_STRING, "FORM", "table or json (table)",
     AT(output)},
    {"dir", 0, BT_OPTION_STRING, "DIR",
     "keep logs, decisions and request records there", AT(directory)},
    {"keep", 'k', BT_OPTION_FLAG, NULL,
     "leave the last cluster up until Ctrl-C", AT(keep)},
    {"port", 0, BT_OPTION_U64, "PORT", "of the API (any free one)", AT(port)},
    {"verbose", 'v', BT_OPTION_FLAG, NULL, "show the children's messages",
     AT(verbose)},
    {NULL, 0, BT_OPTION_FLAG, NULL, NULL, 0},
};
#undef AT

static int usage(const char *what)
{
    fprintf(stderr, "baton demo: %s\n", what);
    return BT_EXIT_USAGE;
}

static int take_policies(const struct bt_option_list *list,
                         struct bt_demo_options *out)
{
    if (list->count == 0)
        return 0;
    if (list->count > BT_DEMO_POLICIES_MAX)
        return usage("at most 8 policies");
    for (size_t i = 0; i < list->count; i++) {
        if (!bt_policy_find(list->items[i])) {
            fprintf(stderr,
                    "baton demo: no policy '%s'; there are:", list->items[i]);
            for (size_t j = 0; bt_policy_at(j); j++)
                fprintf(stderr, " %s", bt_policy_at(j)->name);
            fputc('\n', stderr);
            return BT_EXIT_USAGE;
        }
        out->policies[i] = list->items[i];
    }
    out->policy_count = list->count;
    return 0;
}

static int check_fleet(const struct options *o)
{
    if (o->cluster && (!o->cluster[0] || o->uniform))
        return usage("--cluster names a file and goes without --uniform");
    if (!o->cluster && (o->fabric || o->netbed || o->hosts))
        return usage("--fabric, --netbed and --hosts need --cluster");
    if (o->netbed && (!o->netbed[0] ||
                      o->netbed[strspn(o->netbed, "abcdefghijklmnopqrstuvwxyz"
                                                  "0123456789-")] != '\0'))
        return usage("--netbed is the name that netbed.sh printed");
    if (o->rails < 1 || o->rails > 2)
        return usage("--rails is 1 or 2");
    return 0;
}

static int check(const struct options *o)
{
    if (strcmp(o->output, "table") != 0 && strcmp(o->output, "json") != 0)
        return usage("--output is table or json");
    if (!(o->rate > 0) || o->rate > 100000)
        return usage("--rate is above 0 and at most 100000");
    if (o->duration <= 0 || o->duration > 24 * 3600 * BT_NS_PER_S)
        return usage("--duration is above 0 and at most 24h");
    if (o->requests > 200000 || (double)o->duration / 1e9 * o->rate > 200000)
        return usage("at most 200000 requests");
    if (!o->requests && !o->trace && (double)o->duration / 1e9 * o->rate < 1)
        return usage("--rate x --duration is less than one request");
    if (!(o->speedup > 0) || !(o->trace_scale > 0))
        return usage("--speedup and --trace-scale are above 0");
    if (o->trace_tokens < 1 || o->trace_tokens > 512)
        return usage("--trace-tokens is 1 to 512");
    if (o->slo_ttft <= 0 || o->slo_tpot <= 0)
        return usage("--slo-ttft and --slo-tpot are above 0");
    if (o->directory && !o->directory[0])
        return usage("--dir is empty");
    if (o->trace && !o->trace[0])
        return usage("--trace is empty");
    if (o->port > 65535)
        return usage("--port is at most 65535");
    if (o->seed > INT64_MAX)
        return usage("--seed is at most 9223372036854775807");
    return 0;
}

static void fill(const struct options *o, struct bt_demo_options *out)
{
    out->seed = o->seed;
    out->requests = (size_t)o->requests;
    out->rate_per_s = o->rate;
    out->duration_ns = o->duration;
    out->trace = o->trace;
    out->trace_speed = o->trace_scale;
    out->trace_divisor = o->trace_tokens;
    out->uniform = o->uniform;
    out->cluster = o->cluster;
    out->fabric = o->fabric;
    out->netbed = o->netbed;
    out->rails = (uint32_t)o->rails;
    out->hosts = o->hosts;
    out->speedup = o->speedup;
    out->slo_ttft_ns = o->slo_ttft;
    out->slo_tpot_ns = o->slo_tpot;
    out->directory = o->directory;
    out->port = o->port;
    out->verbose = o->verbose;
    out->json = strcmp(o->output, "json") == 0;
    out->keep = o->keep;
    out->progress = isatty(STDERR_FILENO) && !o->verbose;
}

static int run(int argc, char **argv)
{
    struct bt_demo_options demo;
    struct options o;
    int first, code;

    bt_demo_options_init(&demo);
    memset(&o, 0, sizeof(o));
    o.seed = demo.seed;
    o.rate = demo.rate_per_s;
    o.duration = demo.duration_ns;
    o.trace_scale = demo.trace_speed;
    o.trace_tokens = demo.trace_divisor;
    o.speedup = demo.speedup;
    o.slo_ttft = demo.slo_ttft_ns;
    o.slo_tpot = demo.slo_tpot_ns;
    o.rails = demo.rails;
    o.output = "table";
    code = bt_options_parse(&bt_command_demo, argc, argv, &o, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return usage("no arguments are expected, only options");
    code = check(&o);
    if (code == 0)
        code = check_fleet(&o);
    if (code == 0)
        code = take_policies(&o.policies, &demo);
    if (code != 0)
        return code;
    fill(&o, &demo);
    return bt_demo_run(&demo);
}

const struct bt_command bt_command_demo = {
    .name = "demo",
    .summary = "compare policies on an embedded cluster with real KV bytes",
    .arguments = "",
    .options = table,
    .run = run,
};
