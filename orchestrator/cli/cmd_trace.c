/* `baton trace`: what a trace holds and what routing by prefix would be worth
 * on it, making one, turning one into Mooncake's JSON lines. Decides options
 * and wording; reading, generating and counting are bench/traces'. The table of
 * statistics is cmd_trace_stats.c's.
 */
#include "cmd_trace.h"
#include "baton/base/units.h"
#include "baton/bench/trace.h"
#include "baton/orchestrator/config.h"
#include "command.h"
#include "trace_find.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNSET        UINT64_MAX
#define ERROR_MIN    512
#define PATH_BYTES   1024
#define CACHE_TOKENS 1536000u /* of a worker, where fleets are compared */

enum { STATS = 1, GENERATE = 2, CONVERT = 4 }; /* where an option belongs */

struct options {
    const char *output, *format, *compute, *kv, *mix, *out, *tiers;
    uint64_t workers, requests, seed, tenants, block_tokens, cache;
    uint64_t input_fixed, output_fixed;
    double rate, burst, output_mean, hit_fixed;
    int64_t jitter;
};

#define AT(member) offsetof(struct options, member)
static const struct bt_option table[] = {
    {"output", 'o', BT_OPTION_STRING, "FORM", "stats: table or json (table)",
     AT(output)},
    {"format", 'f', BT_OPTION_STRING, "NAME",
     "stats, convert: auto, mooncake, bailian, azure or burstgpt (auto)",
     AT(format)},
    {"workers", 'w', BT_OPTION_U64, "N",
     "stats: workers behind random routing, 1..4096 (8)", AT(workers)},
    {"cache", 0, BT_OPTION_U64, "N",
     "stats: blocks of a worker's cache where fleets are compared (1.5M "
     "tokens)",
     AT(cache)},
    {"tiers", 0, BT_OPTION_STRING, "gpu=N,host=M,disk=K",
     "stats: hits by tier; blocks of a worker, M@RATE to load from it",
     AT(tiers)},
    {"compute", 0, BT_OPTION_STRING, "PRESET",
     "stats: compute model of the break-even (h100-70b-tp8)", AT(compute)},
    {"kv", 0, BT_OPTION_STRING, "PRESET",
     "stats: KV geometry of the break-even (llama-3.1-70b)", AT(kv)},
    {"mix", 'm', BT_OPTION_STRING, "KIND=SHARE,...",
     "generate: chat, agent, tool, rag, long (a bit of each)", AT(mix)},
    {"requests", 'n', BT_OPTION_U64, "N", "generate: how many (1000)",
     AT(requests)},
    {"rate", 'r', BT_OPTION_DOUBLE, "R", "generate: requests per second (4)",
     AT(rate)},
    {"burst", 0, BT_OPTION_DOUBLE, "X",
     "generate: 1 Poisson; above: X times the rate in bursts of 5 s (1)",
     AT(burst)},
    {"tenants", 0, BT_OPTION_U64, "N",
     "stats: what a namespace each costs; generate: they share nothing (1)",
     AT(tenants)},
    {"block-tokens", 0, BT_OPTION_U64, "N",
     "generate: tokens per block id (512)", AT(block_tokens)},
    {"output-mean", 0, BT_OPTION_DOUBLE, "N",
     "generate: mean answer of a chat, tokens (343)", AT(output_mean)},
    {"input-fixed", 0, BT_OPTION_U64, "N",
     "generate: all prompts have N tokens, no kinds", AT(input_fixed)},
    {"output-fixed", 0, BT_OPTION_U64, "N",
     "generate: all answers have N tokens", AT(output_fixed)},
    {"hit-fixed", 0, BT_OPTION_DOUBLE, "SHARE",
     "generate: with --input-fixed, leading share common to a tenant (0)",
     AT(hit_fixed)},
    {"seed", 's', BT_OPTION_U64, "N",
     "generate: of everything; convert: of the jitter (1)", AT(seed)},
    {"jitter", 'j', BT_OPTION_DURATION, "TIME",
     "convert: spread each stamp over TIME, at most 1h (0s)", AT(jitter)},
    {"out", 0, BT_OPTION_STRING, "FILE",
     "generate, convert: Mooncake JSON lines go there; required", AT(out)},
    {NULL, 0, BT_OPTION_FLAG, NULL, NULL, 0},
};
#undef AT

static int usage(const char *what)
{
    fprintf(stderr, "baton trace: %s\ntry 'baton trace --help'\n", what);
    return BT_EXIT_USAGE;
}

/* An option that the word does nothing with is a mistake. */
static int misplaced(const struct options *o, unsigned int word,
                     const char *word_name)
{
    const struct {
        const char *name;
        bool given;
        unsigned int words;
    } all[] = {
        {"output", o->output != NULL, STATS},
        {"workers", o->workers != UNSET, STATS},
        {"compute", o->compute != NULL, STATS},
        {"kv", o->kv != NULL, STATS},
        {"format", o->format != NULL, STATS | CONVERT},
        {"mix", o->mix != NULL, GENERATE},
        {"requests", o->requests != UNSET, GENERATE},
        {"rate", o->rate >= 0, GENERATE},
        {"burst", o->burst >= 0, GENERATE},
        {"tenants", o->tenants != UNSET, STATS | GENERATE},
        {"cache", o->cache != UNSET, STATS},
        {"tiers", o->tiers != NULL, STATS},
        {"block-tokens", o->block_tokens != UNSET, GENERATE},
        {"output-mean", o->output_mean >= 0, GENERATE},
        {"input-fixed", o->input_fixed != UNSET, GENERATE},
        {"output-fixed", o->output_fixed != UNSET, GENERATE},
        {"hit-fixed", o->hit_fixed >= 0, GENERATE},
        {"seed", o->seed != UNSET, GENERATE | CONVERT},
        {"jitter", o->jitter >= 0, CONVERT},
        {"out", o->out != NULL, GENERATE | CONVERT},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!all[i].given || (all[i].words & word))
            continue;
        fprintf(stderr,
                "baton trace: --%s does nothing for '%s'\n"
                "try 'baton trace --help'\n",
                all[i].name, word_name);
        return BT_EXIT_USAGE;
    }
    return 0;
}

/* ---- reading ---- */

static int parse_format(const struct options *o, enum bt_trace_format *out)
{
    static const char *const names[] = {"auto", "mooncake", "bailian", "azure",
                                        "burstgpt"};

    *out = BT_TRACE_AUTO;
    if (!o->format)
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(o->format, names[i]) == 0) {
            *out = (enum bt_trace_format)i;
            return 0;
        }
    }
    return usage("--format is auto, mooncake, bailian, azure or burstgpt");
}

static int load(const struct options *o, const char *path,
                struct bt_trace *trace)
{
    struct bt_trace_read_options read;
    char error[ERROR_MIN] = "", found[PATH_BYTES];
    int code;

    bt_trace_read_options_init(&read);
    code = parse_format(o, &read.format);
    if (code != 0)
        return code;
    read.jitter_ns = o->jitter >= 0 ? o->jitter : 0;
    if (o->seed != UNSET)
        read.seed = o->seed;
    memset(trace, 0, sizeof(*trace));
    (void)trace_find(path, found, sizeof(found));
    if (bt_trace_load(found, &read, trace, error, sizeof(error)) == BT_OK)
        return 0;
    fprintf(stderr, "baton trace: %s\n", error);
    return BT_EXIT_CONFIG;
}

static int check_stats(const struct options *o)
{
    const char *form = o->output ? o->output : "table";

    if (strcmp(form, "table") != 0 && strcmp(form, "json") != 0)
        return usage("--output is table or json");
    if (o->workers != UNSET && (o->workers < 1 || o->workers > 4096))
        return usage("--workers is 1 to 4096");
    if (o->cache != UNSET && (o->cache < 1 || o->cache > UINT32_MAX))
        return usage("--cache is 1 to 4294967295");
    if (o->tenants != UNSET && (o->tenants < 2 || o->tenants > 65536))
        return usage("--tenants is 2 to 65536 for stats");
    return 0;
}

/* Each question that was asked. */
static enum bt_status ask(const struct options *o, const struct bt_trace *trace,
                          const struct trace_break_even *even,
                          struct trace_answers *a)
{
    uint64_t sizes[BT_TRACE_TIERS], sums[BT_TRACE_TIERS];
    uint64_t cache =
        o->cache == UNSET ? CACHE_TOKENS / trace->block_tokens : o->cache;
    enum bt_status status = BT_OK;

    a->compute = even->compute;
    a->kv = even->kv;
    a->model = even->model;
    a->kv_bytes_per_token = even->kv_bytes_per_token;
    a->workers = o->workers == UNSET ? 8 : (uint32_t)o->workers;
    status = bt_trace_pays_get(trace, a->workers, (uint32_t)cache, TRACE_LITTLE,
                               &a->pays);
    for (size_t t = 0; t < BT_TRACE_TIERS; t++) {
        sizes[t] = a->tier_options[t].blocks;
        sums[t] = sizes[t] * a->workers;
    }
    if (status == BT_OK && a->has_tiers)
        status = bt_trace_tiers_get(trace, 1, sums, &a->together);
    if (status == BT_OK && a->has_tiers)
        status = bt_trace_tiers_get(trace, a->workers, sizes, &a->spread);
    if (status == BT_OK && a->has_isolation)
        status =
            bt_trace_isolation_get(trace, (uint32_t)o->tenants, &a->isolation);
    return status;
}

static int print_stats(const struct options *o, const struct bt_trace *trace,
                       const struct trace_break_even *even,
                       struct trace_answers *answers)
{
    uint32_t workers = o->workers == UNSET ? 8 : (uint32_t)o->workers;
    struct bt_trace_stats stats;
    enum bt_status status = bt_trace_stats_get(trace, workers, &stats);

    if (status == BT_OK && trace->has_prefixes && trace->block_ids > 0)
        status = ask(o, trace, even, answers);
    else if (status == BT_OK && (o->tiers || o->tenants != UNSET))
        return usage("--tiers and --tenants need a trace with prefixes");
    if (status != BT_OK) {
        fprintf(stderr, "baton trace: %s: %s\n", trace->name,
                bt_status_text(status));
        return BT_EXIT_FAILED;
    }
    if (o->output && strcmp(o->output, "json") == 0)
        return trace_stats_json(trace, &stats, even, answers);
    trace_stats_table(trace, &stats, even, answers);
    return 0;
}

static int run_stats(const struct options *o, const char *path)
{
    struct trace_answers answers = {.has_tiers = o->tiers != NULL,
                                    .has_isolation = o->tenants != UNSET};
    struct trace_break_even even;
    struct bt_trace trace;
    int code = check_stats(o);

    if (code == 0 && o->tiers)
        code = trace_tiers_parse(o->tiers, answers.tier_options);
    if (code == 0)
        code = trace_break_even_get(o->compute ? o->compute : "h100-70b-tp8",
                                    o->kv ? o->kv : "llama-3.1-70b", &even);
    if (code == 0)
        code = load(o, path, &trace);
    if (code != 0)
        return code;
    code = print_stats(o, &trace, &even, &answers);
    bt_trace_fini(&trace);
    return code;
}

/* ---- writing ---- */

static int write_out(const struct bt_trace *trace, const char *path)
{
    double seconds = 0;

    errno = 0;
    if (bt_trace_write(trace, path) != BT_OK) {
        fprintf(stderr, "baton trace: %s: %s\n", path,
                errno ? strerror(errno) : "cannot be written");
        return BT_EXIT_FAILED;
    }
    if (trace->count > 0)
        seconds = (double)trace->requests[trace->count - 1].arrival_ns / 1e9;
    fprintf(stderr, "%s: %zu request%s over %.0f s%s\n", path, trace->count,
            trace->count == 1 ? "" : "s", seconds,
            trace->synthetic ? ", labelled synthetic" : "");
    return 0;
}

static int run_convert(const struct options *o, const char *path)
{
    struct bt_trace trace;
    int code;

    if (!o->out)
        return usage("convert needs --out FILE");
    if (o->jitter > 3600 * BT_NS_PER_S)
        return usage("--jitter is at most 1h");
    code = load(o, path, &trace);
    if (code != 0)
        return code;
    code = write_out(&trace, o->out);
    bt_trace_fini(&trace);
    return code;
}

static int bad_kind(const char *name)
{
    const char *names[BT_MIX_COUNT], *hint;

    for (size_t i = 0; i < BT_MIX_COUNT; i++)
        names[i] = bt_trace_mix_name((enum bt_trace_mix)i);
    hint = bt_nearest(name, names, BT_MIX_COUNT);
    fprintf(stderr, "baton trace: --mix: no kind '%s'", name);
    if (hint)
        fprintf(stderr, " (did you mean '%s'?)", hint);
    fputs("\n", stderr);
    return usage("kinds are chat, agent, tool, rag, long");
}

/* One "KIND=SHARE" of length bytes. */
static int parse_share(const char *text, size_t length,
                       double mix[BT_MIX_COUNT])
{
    char item[48], *equals, *end = NULL;
    size_t kind = 0;
    double share;

    snprintf(item, sizeof(item), "%.*s", (int)length, text);
    equals = strchr(item, '=');
    if (!equals)
        return usage("--mix is KIND=SHARE,KIND=SHARE,...");
    *equals = '\0';
    while (kind < BT_MIX_COUNT &&
           strcmp(bt_trace_mix_name((enum bt_trace_mix)kind), item) != 0)
        kind++;
    if (kind == BT_MIX_COUNT)
        return bad_kind(item);
    share = strtod(equals + 1, &end);
    if (end == equals + 1 || *end || !(share >= 0 && share <= 1e6))
        return usage("--mix: a share is a number >= 0");
    mix[kind] += share;
    return 0;
}

/* Shares need not sum to 1 on the command line. */
static int parse_mix(const char *text, double mix[BT_MIX_COUNT])
{
    double sum = 0;

    memset(mix, 0, BT_MIX_COUNT * sizeof(*mix));
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        int code = parse_share(at, length, mix);

        if (code != 0)
            return code;
        at += length + (at[length] == ',');
    }
    for (size_t i = 0; i < BT_MIX_COUNT; i++)
        sum += mix[i];
    if (!(sum > 0))
        return usage("--mix: all shares are 0");
    for (size_t i = 0; i < BT_MIX_COUNT; i++)
        mix[i] /= sum;
    return 0;
}

static int check_generate(const struct options *o)
{
    if (!o->out)
        return usage("generate needs --out FILE");
    if (o->requests != UNSET && (o->requests < 1 || o->requests > 4194304))
        return usage("--requests is 1 to 4194304");
    if (o->rate >= 0 && !(o->rate > 1e-6 && o->rate < 1e6))
        return usage("--rate is above 0 and below 1e6");
    if (o->burst >= 0 && !(o->burst >= 1 && o->burst <= 1000))
        return usage("--burst is 1 to 1000");
    if (o->tenants != UNSET && (o->tenants < 1 || o->tenants > 4096))
        return usage("--tenants is 1 to 4096");
    if (o->block_tokens != UNSET &&
        (o->block_tokens < 1 || o->block_tokens > 65536))
        return usage("--block-tokens is 1 to 65536");
    if (o->output_mean >= 0 &&
        !(o->output_mean >= 1 && o->output_mean <= 100000))
        return usage("--output-mean is 1 to 100000");
    if (o->input_fixed != UNSET &&
        (o->input_fixed < 1 || o->input_fixed > 1u << 24))
        return usage("--input-fixed is 1 to 16777216");
    if (o->output_fixed != UNSET &&
        (o->output_fixed < 1 || o->output_fixed > 1u << 20))
        return usage("--output-fixed is 1 to 1048576");
    if (o->hit_fixed > 1)
        return usage("--hit-fixed is 0 to 1");
    if (o->hit_fixed >= 0 && o->input_fixed == UNSET)
        return usage("--hit-fixed goes with --input-fixed");
    if (o->mix && o->input_fixed != UNSET)
        return usage("--mix and --input-fixed exclude each other");
    return 0;
}

static void fill_generate(const struct options *o,
                          struct bt_trace_generate_options *g)
{
    if (o->requests != UNSET)
        g->requests = (size_t)o->requests;
    if (o->seed != UNSET)
        g->seed = o->seed;
    if (o->tenants != UNSET)
        g->tenants = (uint32_t)o->tenants;
    if (o->block_tokens != UNSET)
        g->block_tokens = (uint32_t)o->block_tokens;
    if (o->input_fixed != UNSET)
        g->input_fixed = (uint32_t)o->input_fixed;
    if (o->output_fixed != UNSET)
        g->output_fixed = (uint32_t)o->output_fixed;
    if (o->rate >= 0)
        g->rate_per_s = o->rate;
    if (o->burst >= 0)
        g->burst = o->burst;
    if (o->output_mean >= 0)
        g->output_mean = o->output_mean;
    if (o->hit_fixed >= 0)
        g->hit_fixed = o->hit_fixed;
}

static int run_generate(const struct options *o)
{
    struct bt_trace_generate_options generate;
    struct bt_trace trace = {.count = 0};
    enum bt_status status;
    int code = check_generate(o);

    bt_trace_generate_options_init(&generate);
    if (code == 0 && o->mix)
        code = parse_mix(o->mix, generate.mix);
    if (code != 0)
        return code;
    fill_generate(o, &generate);
    status = bt_trace_generate(&generate, &trace);
    if (status != BT_OK) {
        fprintf(stderr, "baton trace: %s\n",
                status == BT_TOO_LARGE ? "more blocks than a trace may have"
                                       : bt_status_text(status));
        return BT_EXIT_FAILED;
    }
    code = write_out(&trace, o->out);
    bt_trace_fini(&trace);
    return code;
}

static int run(int argc, char **argv)
{
    struct options o = {.workers = UNSET,
                        .requests = UNSET,
                        .seed = UNSET,
                        .tenants = UNSET,
                        .block_tokens = UNSET,
                        .cache = UNSET,
                        .input_fixed = UNSET,
                        .output_fixed = UNSET,
                        .rate = -1,
                        .burst = -1,
                        .output_mean = -1,
                        .hit_fixed = -1,
                        .jitter = -1};
    unsigned int word = 0;
    int first,
        code = bt_options_parse(&bt_command_trace, argc, argv, &o, &first);

    if (code >= 0)
        return code;
    if (first < argc && strcmp(argv[first], "stats") == 0)
        word = STATS;
    else if (first < argc && strcmp(argv[first], "generate") == 0)
        word = GENERATE;
    else if (first < argc && strcmp(argv[first], "convert") == 0)
        word = CONVERT;
    if (word == 0)
        return usage("say what to do: stats FILE, generate or convert FILE");
    if (argc - first != (word == GENERATE ? 1 : 2))
        return usage(word == GENERATE ? "generate takes no file"
                                      : "give one trace file");
    code = misplaced(&o, word, argv[first]);
    if (code != 0)
        return code;
    if (word == GENERATE)
        return run_generate(&o);
    if (word == CONVERT)
        return run_convert(&o, argv[first + 1]);
    return run_stats(&o, argv[first + 1]);
}

const struct bt_command bt_command_trace = {
    .name = "trace",
    .summary = "what a trace holds, and make or convert one",
    .arguments = "stats|generate|convert [FILE]",
    .options = table,
    .run = run,
};
