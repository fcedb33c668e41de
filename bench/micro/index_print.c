/* Words and figures of `baton bench index`: a column per number of workers, the
 * aims beside, then what limits it, as far as it was measured; JSON with one
 * member of "results" per number of workers, of the trace's own blocks, and the
 * runs of other block sizes in "by_block_tokens". */
#include "baton/bench/micro_index.h"
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define AIM_EVENTS  10e6 /* block events/s */
#define AIM_LOOKUPS 1e6  /* look-ups/s at AIM_WORKERS */
#define AIM_P99_US  5.0
#define AIM_WORKERS 64u
#define AIM_BYTES   64.0 /* per block at AIM_SMALL workers */
#define AIM_SMALL   8u

typedef double (*figure_fn)(const struct bt_micro_index_run *r);

struct line {
    const char *name, *json; /* json NULL: table only */
    const char *unit;
    double scale; /* shown = value / scale */
    int digits;
    figure_fn get;
};

#define GET(name, expression)                                                  \
    static double name(const struct bt_micro_index_run *r)                     \
    {                                                                          \
        return (double)(expression);                                           \
    }
#define PER(a, b) ((b) > 0 ? (double)(a) / (double)(b) : -1)
GET(get_events, r->events.best)
GET(get_lookups, r->lookups_only.best)
GET(get_p50, r->p50_us)
GET(get_p99, r->p99_us)
GET(get_p999, r->p999_us)
GET(get_per_block, PER(r->bytes_tight, r->peak_blocks))
GET(get_per_holding, PER(r->bytes_tight, r->peak_holdings))
GET(get_per_block_roomy, PER(r->bytes_roomy, r->peak_blocks))
GET(get_per_holding_roomy, PER(r->bytes_roomy, r->peak_holdings))
GET(get_mixed_events, r->mixed_events)
GET(get_mixed_lookups, r->mixed_lookups)
GET(get_tier_lookups, r->tier_lookups)
GET(get_tier_p50, r->tier_p50_us)
GET(get_tier_p99, r->tier_p99_us)
GET(get_keys, r->keys_per_s)
GET(get_key_ns, PER(1e9, r->keys_per_s))
GET(get_tokens, r->events_from_tokens)
GET(get_array, r->events_from_array_wire)
GET(get_map, r->events_from_map_wire)
GET(get_naive_events, r->naive_events)
GET(get_naive_lookups, r->naive_lookups)
GET(get_events_ratio, PER(r->events.best, r->naive_events))
GET(get_lookups_ratio, PER(r->lookups_only.best, r->naive_lookups))
GET(get_copies, r->copies)
GET(get_chain, PER(r->keys, r->lookups))
GET(get_hit, PER(r->hit_keys, r->keys))
GET(get_stored, r->stored)
GET(get_removed, r->removed)
GET(get_peak_blocks, r->peak_blocks)
GET(get_peak_holdings, r->peak_holdings)
GET(get_cache, r->cache_blocks)
GET(get_arena, r->bytes_tight)
GET(get_evicted, r->evicted + r->dropped)
GET(get_event_ns, PER(1e9, r->events.best))
GET(get_read_ns, r->read_ns)
GET(get_cpu, r->cpu_share)
GET(get_event_instructions, r->events.instructions)
GET(get_event_misses, r->events.cache_misses)
GET(get_lookup_instructions, r->lookups_only.instructions)
GET(get_lookup_misses, r->lookups_only.cache_misses)

static const struct line LINES[] = {
    {"block events", "block_events_per_s", "M/s", 1e6, 2, get_events},
    {"  from tokens", "block_events_from_tokens_per_s", "M/s", 1e6, 2,
     get_tokens},
    {"  from the wire, arrays (A)", "block_events_from_wire_a_per_s", "M/s",
     1e6, 2, get_array},
    {"  from the wire, maps (B)", "block_events_from_wire_b_per_s", "M/s", 1e6,
     2, get_map},
    {"  baseline: hash maps", "baseline_block_events_per_s", "M/s", 1e6, 2,
     get_naive_events},
    {"  index over baseline", "block_events_over_baseline", "x", 1, 2,
     get_events_ratio},
    {"request look-ups", "lookups_per_s", "M/s", 1e6, 3, get_lookups},
    {"  keys of them", "lookup_keys_per_s", "M/s", 1e6, 1, get_keys},
    {"  time of a key", "lookup_ns_per_key", "ns", 1, 1, get_key_ns},
    {"  by tier", "tier_lookups_per_s", "M/s", 1e6, 3, get_tier_lookups},
    {"  baseline: hash maps", "baseline_lookups_per_s", "M/s", 1e6, 4,
     get_naive_lookups},
    {"  index over baseline", "lookups_over_baseline", "x", 1, 1,
     get_lookups_ratio},
    {"one look-up amid events, p50", "lookup_p50_us", "us", 1, 2, get_p50},
    {"  p99", "lookup_p99_us", "us", 1, 2, get_p99},
    {"  p99.9", "lookup_p999_us", "us", 1, 2, get_p999},
    {"  by tier, p50", "tier_lookup_p50_us", "us", 1, 2, get_tier_p50},
    {"  by tier, p99", "tier_lookup_p99_us", "us", 1, 2, get_tier_p99},
    {"mixed: block events", "mixed_block_events_per_s", "M/s", 1e6, 2,
     get_mixed_events},
    {"  and look-ups", "mixed_lookups_per_s", "M/s", 1e6, 3, get_mixed_lookups},
    {"memory per block", "bytes_per_block", "bytes", 1, 1, get_per_block},
    {"  per (block, worker)", "bytes_per_holding", "bytes", 1, 1,
     get_per_holding},
    {"  per block, limits 2 x peak", "bytes_per_block_roomy", "bytes", 1, 1,
     get_per_block_roomy},
    {"  per (block, worker), 2 x peak", "bytes_per_holding_roomy", "bytes", 1,
     1, get_per_holding_roomy},
    {"arena, limits at the peak", "arena_bytes", "MB", 1e6, 1, get_arena},
    {"given up for room", "blocks_given_up", "blocks", 1, 0, get_evicted},
    {"log: stored", "blocks_stored", "k", 1e3, 0, get_stored},
    {"  removed", "blocks_removed", "k", 1e3, 0, get_removed},
    {"  different blocks, peak", "peak_blocks", "k", 1e3, 1, get_peak_blocks},
    {"  (block, worker), peak", "peak_holdings", "k", 1e3, 1,
     get_peak_holdings},
    {"  copies per block", "copies_per_block", "", 1, 2, get_copies},
    {"  keys per look-up", "keys_per_lookup", "", 1, 1, get_chain},
    {"  of them cached at the worker", "hit_share", "", 1, 3, get_hit},
    {"  cache per worker", "cache_trace_blocks", "blocks*", 1, 0, get_cache},
    {"time of a block event", "block_event_ns", "ns", 1, 0, get_event_ns},
    {"  dependent random read", "random_read_ns", "ns", 1, 0, get_read_ns},
    {"share of a core that it got", "cpu_share", "", 1, 2, get_cpu},
    {"block event: instructions", "block_event_instructions", "", 1, 0,
     get_event_instructions},
    {"  cache misses", "block_event_cache_misses", "", 1, 2, get_event_misses},
    {"look-up: instructions", "lookup_instructions", "", 1, 0,
     get_lookup_instructions},
    {"  cache misses", "lookup_cache_misses", "", 1, 1, get_lookup_misses},
};
#define LINE_COUNT (sizeof(LINES) / sizeof(LINES[0]))

/* ---- aims ---- */

struct aim {
    const char *name, *json;
    uint32_t workers; /* 0: each */
    double limit;
    bool at_least;
    figure_fn get;
    const char *unit;
};
static const struct aim AIMS[] = {
    {"block events, each", "block_events_per_s", 0, AIM_EVENTS, true,
     get_events, "/s"},
    {"look-ups, 64 workers", "lookups_per_s", AIM_WORKERS, AIM_LOOKUPS, true,
     get_lookups, "/s"},
    {"look-up p99, 64 workers", "lookup_p99_us", AIM_WORKERS, AIM_P99_US, false,
     get_p99, " us"},
    {"bytes per block, 8 workers", "bytes_per_block", AIM_SMALL, AIM_BYTES,
     false, get_per_block, ""},
};
#define AIM_COUNT (sizeof(AIMS) / sizeof(AIMS[0]))

/* 1 met, 0 missed, -1 no such run. */
static int judge(const struct bt_micro_index_report *report,
                 const struct aim *aim, uint32_t block_tokens)
{
    int verdict = -1;

    for (size_t i = 0; i < report->count; i++) {
        const struct bt_micro_index_run *r = &report->runs[i];
        double value = aim->get(r);
        bool met = aim->at_least ? value >= aim->limit : value <= aim->limit;

        if (r->block_tokens != block_tokens ||
            (aim->workers && r->workers != aim->workers))
            continue;
        verdict = met && verdict != 0;
    }
    return verdict;
}

static const char *verdict_name(int verdict)
{
    return verdict < 0 ? "not run" : verdict ? "met" : "MISSED";
}

/* ---- table ---- */

static bool shown(const struct bt_micro_index_report *report,
                  const struct line *line)
{
    for (size_t i = 0; i < report->count; i++)
        if (line->get(&report->runs[i]) >= 0)
            return true;
    return false;
}

static void print_block(const struct bt_micro_index_report *report,
                        uint32_t block_tokens, FILE *to)
{
    fprintf(to, "\nblocks of %u tokens\n%-32s", block_tokens, "workers");
    for (size_t i = 0; i < report->count; i++)
        if (report->runs[i].block_tokens == block_tokens)
            fprintf(to, "%10u", report->runs[i].workers);
    fputs("\n", to);
    for (size_t l = 0; l < LINE_COUNT; l++) {
        const struct line *line = &LINES[l];

        if (!shown(report, line))
            continue;
        fprintf(to, "%-32s", line->name);
        for (size_t i = 0; i < report->count; i++) {
            double value = line->get(&report->runs[i]);

            if (report->runs[i].block_tokens == block_tokens)
                fprintf(to, "%10.*f", line->digits, value / line->scale);
        }
        fprintf(to, "  %s\n", line->unit);
    }
    for (size_t a = 0; a < AIM_COUNT; a++)
        fprintf(to, "%s%s %s %.0f%s: %s\n", a ? "     " : "aim: ", AIMS[a].name,
                AIMS[a].at_least ? ">=" : "<=", AIMS[a].limit, AIMS[a].unit,
                verdict_name(judge(report, &AIMS[a], block_tokens)));
}

static bool first_of_block(const struct bt_micro_index_report *report, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (report->runs[j].block_tokens == report->runs[i].block_tokens)
            return false;
    return true;
}

static void print_method(const struct bt_micro_index_report *report, FILE *to)
{
    const struct bt_micro_index_run *r = &report->runs[0];

    fprintf(
        to,
        "\nTrace: %s, %" PRIu64 " requests, blocks of %u tokens%s.\n"
        "Routing: longest cached prefix among workers with at most 1.25 x "
        "the mean of assigned\nblocks + one longest request; ties by "
        "least assigned, then number. Caches: LRU of so many\nblocks of "
        "the trace (*), tails of chains first; removals one hash an "
        "event, stores in chains\nof at most 8,192 tokens.\n"
        "One thread. Rates: per second of its CPU time, best of 1 to 25 "
        "rounds (by their length), limits at the\nlog's peaks. Look-ups "
        "(a longer prompt costs its keys x the time of a key): in groups of "
        "256\nwith the events held back; single ones by the wall clock, each "
        "before its own request's events,\nless %.0f ns that the clock costs; "
        "least of the rounds. Feeds: the first 8 Mi tokens of the log.\n",
        report->source, r->requests, report->trace_block_tokens,
        report->synthetic ? ", synthetic" : "", report->clock_ns);
}

static void print_limit(const struct bt_micro_index_report *report, FILE *to)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);

    fputs("What limits it: ", to);
    if (report->counters[0])
        fprintf(to, "cache misses not counted (%s).\n", report->counters);
    else
        fputs("instructions and cache misses above, per block event and per "
              "look-up.\n",
              to);
    fputs("For scale: a read that waits for the one before it, anywhere in "
          "memory as large as the\nindex, and what one block event costs, are "
          "the last lines of each table.",
          to);
    if (cache > 0)
        fprintf(to, " Last-level cache:\n%.1f MB.", (double)cache / 1e6);
    fputs("\n", to);
}

enum bt_status
bt_micro_index_print_table(const struct bt_micro_index_report *report, FILE *to)
{
    for (size_t i = 0; i < report->count; i++)
        if (first_of_block(report, i))
            print_block(report, report->runs[i].block_tokens, to);
    if (report->count > 0) {
        print_method(report, to);
        print_limit(report, to);
    }
    return ferror(to) ? BT_IO : BT_OK;
}

/* ---- JSON ---- */

/* Sources may hold paths. */
static void quoted(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text >= 0x20)
            fputc(*text, to);
    }
    fputc('"', to);
}

static void run_json(const struct bt_micro_index_run *r, FILE *to)
{
    fprintf(to, "{\"workers\":%u,\"block_tokens\":%u,\"requests\":%" PRIu64,
            r->workers, r->block_tokens, r->requests);
    for (size_t l = 0; l < LINE_COUNT; l++) {
        double value = LINES[l].get(r);

        if (value < 0)
            fprintf(to, ",\"%s\":null", LINES[l].json);
        else
            fprintf(to, ",\"%s\":%.9g", LINES[l].json, value);
    }
    fprintf(to, ",\"lookups_compared_with_baseline\":%" PRIu64 "}",
            r->naive_compared);
}

static void aims_json(const struct bt_micro_index_report *report, FILE *to)
{
    bool first = true;

    for (size_t i = 0; i < report->count; i++)
        for (size_t a = 0; first_of_block(report, i) && a < AIM_COUNT; a++) {
            int v = judge(report, &AIMS[a], report->runs[i].block_tokens);

            fprintf(to,
                    "%s{\"figure\":\"%s\",\"block_tokens\":%u,\"workers\":%s,"
                    "\"%s\":%.9g,\"met\":%s}",
                    first ? "" : ",", AIMS[a].json,
                    report->runs[i].block_tokens,
                    AIMS[a].workers == 0             ? "null"
                    : AIMS[a].workers == AIM_WORKERS ? "64"
                                                     : "8",
                    AIMS[a].at_least ? "at_least" : "at_most", AIMS[a].limit,
                    v < 0 ? "null"
                    : v   ? "true"
                          : "false");
            first = false;
        }
}

/* Blocks of the runs in "results": the trace's own, else the first asked for.
 */
static uint32_t main_blocks(const struct bt_micro_index_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        if (report->runs[i].block_tokens == report->trace_block_tokens)
            return report->trace_block_tokens;
    return report->count > 0 ? report->runs[0].block_tokens : 0;
}

static void runs_json(const struct bt_micro_index_report *report, bool others,
                      FILE *to)
{
    uint32_t blocks = main_blocks(report);
    bool first = true;

    for (size_t i = 0; i < report->count; i++) {
        if ((report->runs[i].block_tokens != blocks) != others)
            continue;
        fputs(first ? "" : ",", to);
        run_json(&report->runs[i], to);
        first = false;
    }
}

enum bt_status
bt_micro_index_print_json(const struct bt_micro_index_report *report, FILE *to)
{
    fputs("{\"results\":[", to);
    runs_json(report, false, to);
    fputs("],\"by_block_tokens\":[", to);
    runs_json(report, true, to);
    fputs("],\"aims\":[", to);
    aims_json(report, to);
    fputs("],\"trace\":", to);
    quoted(to, report->trace);
    fputs(",\"source\":", to);
    quoted(to, report->source);
    fprintf(to,
            ",\"synthetic\":%s,\"trace_block_tokens\":%u,\"seed\":%" PRIu64
            ",\"clock_ns\":%.9g,\"counters\":",
            report->synthetic ? "true" : "false", report->trace_block_tokens,
            report->seed, report->clock_ns);
    if (report->counters[0])
        quoted(to, report->counters);
    else
        fputs("null", to);
    fputs("}\n", to);
    return ferror(to) ? BT_IO : BT_OK;
}
