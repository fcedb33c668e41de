/* How `baton trace stats` speaks: a table for people that ends with an answer
 * to "is routing by prefix worth it here", and JSON with the same figures.
 * Decides wording and the thresholds of the answer; counts nothing itself.
 */
#include "baton/base/units.h"
#include "baton/orchestrator/config.h"
#include "baton/planner/kv_geometry.h"
#include "baton/planner/transfer_cost.h"
#include "cmd_trace.h"
#include "command.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#define ROWS  6
#define NAMES 64

typedef const char *(*name_at_fn)(size_t i);

static int no_preset(const char *option, const char *name, name_at_fn at)
{
    const char *names[NAMES], *hint;
    size_t count = 0;

    while (count < NAMES && at(count)) {
        names[count] = at(count);
        count++;
    }
    hint = bt_nearest(name, names, count);
    fprintf(stderr, "baton trace: --%s: no preset '%s'", option, name);
    if (hint)
        fprintf(stderr, " (did you mean '%s'?)", hint);
    fputs("\n", stderr);
    return BT_EXIT_USAGE;
}

int trace_break_even_get(const char *compute, const char *kv,
                         struct trace_break_even *out)
{
    struct bt_compute_model model;
    struct bt_kv_geometry geometry;
    uint64_t bytes;

    if (bt_compute_preset(compute, &model) != BT_OK)
        return no_preset("compute", compute, bt_compute_preset_name);
    if (bt_kv_preset(kv, &geometry) != BT_OK)
        return no_preset("kv", kv, bt_kv_preset_name);
    bytes = bt_kv_bytes_per_token(&geometry);
    *out = (struct trace_break_even){
        .compute = compute,
        .kv = kv,
        .model = model,
        .kv_bytes_per_token = bytes,
        .rate_bytes_per_s = bt_fetch_crossover_rate(&model, bytes, 0),
        .deep_rate_bytes_per_s =
            bt_fetch_crossover_rate(&model, bytes, TRACE_DEPTH)};
    return 0;
}

/* ---- table ---- */

static void print_lengths(const struct bt_trace_stats *s)
{
    const uint32_t *rows[2] = {s->input, s->output};
    const double means[2] = {s->input_mean, s->output_mean};
    const char *names[2] = {"prompt", "output"};

    printf("\n%-10s %9s %9s %9s %9s %9s %9s %9s\n", "tokens", "mean", "min",
           "p50", "p90", "p95", "p99", "max");
    for (int i = 0; i < 2; i++) {
        printf("%-10s %9.0f", names[i], means[i]);
        for (int j = 0; j < 6; j++)
            printf(" %9u", rows[i][j]);
        fputs("\n", stdout);
    }
}

static void print_reuse(const struct bt_trace *trace,
                        const struct bt_trace_stats *s)
{
    printf("\nblocks of %u tokens: %llu used, %llu different, %llu used once\n",
           trace->block_tokens, (unsigned long long)s->block_uses,
           (unsigned long long)s->block_unique,
           (unsigned long long)s->block_once);
    printf("seen before: %.1f %% of prompt tokens, %.1f %% of blocks (endless "
           "cache)\n",
           100 * s->ideal_hit_tokens, 100 * s->ideal_hit_blocks);
    printf("requests with a hit: %.1f %%, with more than one block: %.1f %%; "
           "continuations: %.1f %%\n",
           100 * s->requests_with_hit, 100 * s->requests_with_deep_hit,
           100 * s->continuation_share);
    if (s->common_to_all_blocks > 0)
        printf("leading blocks that every request has: %.0f; no reason to "
               "prefer a worker, and \"longest\nprefix wins\" alone would "
               "send all requests to one\n",
               s->common_to_all_blocks);
}

static void print_caches(const struct bt_trace *trace,
                         const struct bt_trace_stats *s)
{
    char name[32];

    snprintf(name, sizeof(name), "%u, at random", s->workers);
    printf("\nshare of prompt tokens found in LRU caches of this size, one for "
           "all or one each\nof %u workers with requests spread at random\n"
           "%10s %14s %12s %16s\n",
           s->workers, "blocks", "tokens", "one for all", name);
    for (int i = 0; i < ROWS; i++)
        printf("%10u %14llu %10.1f %% %14.1f %%\n", s->lru_blocks[i],
               (unsigned long long)s->lru_blocks[i] * trace->block_tokens,
               100 * s->lru_global[i], 100 * s->lru_random[i]);
}

static const char *answer(double gain)
{
    if (gain < TRACE_LITTLE)
        return "hardly";
    return gain < TRACE_SOME ? "a little" : "yes";
}

static void print_answer(const struct bt_trace_stats *s,
                         const struct trace_break_even *even)
{
    double random = s->lru_random[ROWS - 1];
    double gain = s->ideal_hit_tokens - random;
    char rate[32], deep[32];

    printf("\nIs routing by prefix worth it here? %c%s. Of the %.1f %% that "
           "could be reused, random\nrouting over %u workers keeps %.1f "
           "points; the rest is %.1f %% of all prefill work.\n",
           answer(gain)[0] - 'a' + 'A', answer(gain) + 1,
           100 * s->ideal_hit_tokens, s->workers, 100 * random, 100 * gain);
    if (isfinite(even->rate_bytes_per_s) && even->rate_bytes_per_s < 1e18)
        printf("Moving a prefix to another worker beats computing it above "
               "%s, above %s\nbeyond 32K tokens (%s, %s).\n",
               bt_rate_format((uint64_t)even->rate_bytes_per_s, rate,
                              sizeof(rate)),
               bt_rate_format((uint64_t)even->deep_rate_bytes_per_s, deep,
                              sizeof(deep)),
               even->compute, even->kv);
}

void trace_stats_table(const struct bt_trace *trace,
                       const struct bt_trace_stats *s,
                       const struct trace_break_even *even,
                       const struct trace_answers *answers)
{
    printf("%s%s: %zu requests over %.0f s, %.2f per second, CV of gaps %.2f\n",
           trace->name, trace->synthetic ? " (synthetic)" : "", s->requests,
           s->seconds, s->rate_per_s, s->interarrival_cv);
    if (s->jitter_suspected)
        printf("stamps are rounded: spread them before a replay (baton does "
               "for 3 s stamps; convert --jitter)\n");
    print_lengths(s);
    if (!trace->has_prefixes) {
        printf("\nNo prefix information: what routing by prefix is worth "
               "cannot be told from this trace.\n");
        return;
    }
    print_reuse(trace, s);
    print_caches(trace, s);
    print_answer(s, even);
    trace_answers_print(answers);
}

/* ---- JSON ---- */

static json_t *lengths_json(double mean, const uint32_t v[6])
{
    return json_pack("{s:f,s:i,s:i,s:i,s:i,s:i,s:i}", "mean", mean, "min",
                     (int)v[0], "p50", (int)v[1], "p90", (int)v[2], "p95",
                     (int)v[3], "p99", (int)v[4], "max", (int)v[5]);
}

static json_t *caches_json(const struct bt_trace *trace,
                           const struct bt_trace_stats *s)
{
    json_t *rows = json_array();

    for (int i = 0; rows && i < ROWS; i++)
        json_array_append_new(
            rows,
            json_pack("{s:i,s:I,s:f,s:f}", "blocks", (int)s->lru_blocks[i],
                      "tokens",
                      (json_int_t)s->lru_blocks[i] * trace->block_tokens, "one",
                      s->lru_global[i], "random", s->lru_random[i]));
    return rows;
}

static json_t *reuse_json(const struct bt_trace *trace,
                          const struct bt_trace_stats *s,
                          const struct trace_break_even *even)
{
    return json_pack(
        "{s:i,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:i,s:f,s:i,s:o,s:f,"
        "s:{s:s,s:s,s:f,s:f}}",
        "block_tokens", (int)trace->block_tokens, "block_uses",
        (json_int_t)s->block_uses, "block_unique", (json_int_t)s->block_unique,
        "block_once", (json_int_t)s->block_once, "ideal_hit_tokens",
        s->ideal_hit_tokens, "ideal_hit_blocks", s->ideal_hit_blocks,
        "requests_with_hit", s->requests_with_hit, "requests_with_deep_hit",
        s->requests_with_deep_hit, "common_to_all_blocks",
        (int)s->common_to_all_blocks, "continuation_share",
        s->continuation_share, "workers", (int)s->workers, "lru",
        caches_json(trace, s), "routing_gain",
        s->ideal_hit_tokens - s->lru_random[ROWS - 1], "break_even", "compute",
        even->compute, "kv", even->kv, "bytes_per_s", even->rate_bytes_per_s,
        "bytes_per_s_at_32k", even->deep_rate_bytes_per_s);
}

static json_t *prefixes_json(const struct bt_trace *trace,
                             const struct bt_trace_stats *s,
                             const struct trace_break_even *even,
                             const struct trace_answers *answers)
{
    json_t *all;

    if (!trace->has_prefixes)
        return json_null();
    all = reuse_json(trace, s, even);
    if (all)
        trace_answers_json(answers, all);
    return all;
}

int trace_stats_json(const struct bt_trace *trace,
                     const struct bt_trace_stats *s,
                     const struct trace_break_even *even,
                     const struct trace_answers *answers)
{
    json_t *all = json_pack(
        "{s:s,s:b,s:I,s:f,s:f,s:f,s:b,s:o,s:o,s:o}", "trace", trace->name,
        "synthetic", (int)trace->synthetic, "requests", (json_int_t)s->requests,
        "seconds", s->seconds, "rate_per_s", s->rate_per_s, "interarrival_cv",
        s->interarrival_cv, "stamps_rounded", (int)s->jitter_suspected,
        "prompt_tokens", lengths_json(s->input_mean, s->input), "output_tokens",
        lengths_json(s->output_mean, s->output), "prefixes",
        prefixes_json(trace, s, even, answers));
    int code = BT_EXIT_OK;

    if (!all ||
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0) {
        fprintf(stderr, "baton trace: standard output cannot be written\n");
        code = BT_EXIT_FAILED;
    }
    fputs("\n", stdout);
    json_decref(all);
    return code;
}
