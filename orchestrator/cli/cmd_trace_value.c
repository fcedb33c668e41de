/* How `baton trace stats` answers what an operator asks of his own trace: from
 * which fleet and cache on routing by prefix pays, what the slower tiers are
 * worth after their load times, what namespaces per tenant cost. Words and
 * JSON; counting is bench/traces', times are the planner's compute models.
 */
#include "baton/base/units.h"
#include "baton/planner/cost.h"
#include "cmd_trace.h"
#include "command.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where --tiers gives no rate: the cluster files' node (PCIe 5, NVMe). */
#define HOST_RATE  50000000000u
#define DISK_RATE  24000000000u
#define HOST_SETUP 400000 /* ns, per request */
#define DISK_SETUP 200000

static const char *const TIER_NAMES[BT_TRACE_TIERS] = {"gpu", "host", "disk"};

/* ---- --tiers ---- */

static int usage(const char *text)
{
    fprintf(stderr,
            "baton trace: --tiers is gpu=N,host=M[@RATE],disk=K[@RATE], in "
            "blocks, gpu above 0, such as gpu=3000,host=20000@50GB/s; got "
            "'%s'\n",
            text);
    return BT_EXIT_USAGE;
}

/* "N" or "N@RATE". */
static bool parse_size(char *value, struct trace_tier_options *tier)
{
    char *rate = strchr(value, '@'), *end;

    if (rate)
        *rate++ = '\0';
    errno = 0;
    tier->blocks = strtoull(value, &end, 10);
    if (end == value || *end || value[0] == '-' || value[0] == '+' || errno ||
        tier->blocks > UINT32_MAX)
        return false;
    return !rate || (bt_rate_parse(rate, &tier->rate) == BT_OK && tier->rate);
}

static bool parse_item(char *item, struct trace_tier_options *tiers)
{
    char *value = strchr(item, '=');

    if (!value)
        return false;
    *value++ = '\0';
    for (size_t t = 0; t < BT_TRACE_TIERS; t++)
        if (strcmp(item, TIER_NAMES[t]) == 0)
            return (t > 0 || !strchr(value, '@')) &&
                   parse_size(value, &tiers[t]);
    return false;
}

int trace_tiers_parse(const char *text,
                      struct trace_tier_options tiers[BT_TRACE_TIERS])
{
    memset(tiers, 0, BT_TRACE_TIERS * sizeof(*tiers));
    tiers[1].rate = HOST_RATE;
    tiers[1].setup_ns = HOST_SETUP;
    tiers[2].rate = DISK_RATE;
    tiers[2].setup_ns = DISK_SETUP;
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        char item[64];

        if (length >= sizeof(item))
            return usage(text);
        snprintf(item, sizeof(item), "%.*s", (int)length, at);
        if (!parse_item(item, tiers))
            return usage(text);
        at += length + (at[length] == ',');
    }
    return tiers[0].blocks > 0 ? 0 : usage(text);
}

/* ---- what a tier is worth ---- */

static double prefill_s(const struct bt_compute_model *m, double tokens,
                        double moment)
{
    return (m->prefill_b_ms * tokens + m->prefill_c_ms * moment) / 1e3 /
           m->speedup;
}

struct worth {
    double share;   /* of prompt tokens */
    double saved_s; /* prefill that is not done */
    double load_s;
    double net; /* saved less load, of all prefill time */
};

static struct worth worth_of(const struct trace_answers *a,
                             const struct bt_trace_tiers *all, size_t t)
{
    const struct bt_trace_tier *tier = &all->tiers[t];
    struct worth w = {.share = tier->tokens / all->tokens};

    w.saved_s = prefill_s(&a->model, tier->tokens, tier->moment);
    if (t > 0 && a->tier_options[t].rate > 0)
        w.load_s =
            tier->tokens * (double)a->kv_bytes_per_token /
                (double)a->tier_options[t].rate +
            (double)tier->requests * (double)a->tier_options[t].setup_ns / 1e9;
    w.net =
        (w.saved_s - w.load_s) / prefill_s(&a->model, all->tokens, all->moment);
    return w;
}

/* ---- words ---- */

static void print_fleet(const struct bt_trace_pays *p)
{
    printf("\nRouting by prefix pays (%.0f %% of prompt tokens or more beyond "
           "random routing) ",
           100 * p->least);
    if (p->workers_from == 0)
        printf("for no fleet\nof up to %u workers with caches of %u blocks; ",
               p->counts[BT_TRACE_PAYS - 1], p->cache_blocks);
    else
        printf("from %u\nworkers on with caches of %u blocks; ",
               p->workers_from, p->cache_blocks);
    printf("with %u workers ", p->workers);
    if (p->blocks_from == 0)
        printf("for no cache\nof %u to %u blocks each.\n", p->blocks[0],
               p->blocks[BT_TRACE_PAYS - 1]);
    else if (p->blocks_to == p->blocks[BT_TRACE_PAYS - 1])
        printf("from %u\nblocks of cache each on, and up to the largest looked "
               "at (%u).\n",
               p->blocks_from, p->blocks_to);
    else
        printf("between %u\nand %u blocks of cache each; above, random routing "
               "finds nearly as much.\n",
               p->blocks_from, p->blocks_to);
}

static void print_pays(const struct bt_trace_pays *p)
{
    char name[32];

    print_fleet(p);
    snprintf(name, sizeof(name), "%u blocks each", p->cache_blocks);
    printf("%10s %22s   %10s   with %u workers\n", "workers", name, "blocks",
           p->workers);
    for (size_t i = 0; i < BT_TRACE_PAYS; i++)
        printf("%10u %+20.1f %%   %10u %+15.1f %%\n", p->counts[i],
               100 * p->by_workers[i], p->blocks[i], 100 * p->by_cache[i]);
}

static void print_tiers(const struct trace_answers *a)
{
    const struct bt_trace_tiers *rows[2] = {&a->together, &a->spread};
    char first[48];

    snprintf(first, sizeof(first), "spread over %u at random", a->workers);
    printf("\nhits by tier, caches of %u workers; LRU that sinks; compute %s, "
           "KV of %s\n%-26s %-5s %9s %11s %11s %9s %9s %10s\n",
           a->workers, a->compute, a->kv, "requests", "tier", "blocks",
           "of prompts", "saved", "load", "worth", "rate");
    for (size_t r = 0; r < 2; r++)
        for (size_t t = 0; t < BT_TRACE_TIERS; t++) {
            struct worth w = worth_of(a, rows[r], t);
            char rate[32] = "-";

            if (a->tier_options[t].blocks == 0)
                continue;
            if (t > 0)
                bt_rate_format(a->tier_options[t].rate, rate, sizeof(rate));
            printf("%-26s %-5s %9llu %9.1f %% %9.1f s %7.1f s %+7.1f %% %10s\n",
                   t ? "" : (r ? first : "one cache of that sum"),
                   TIER_NAMES[t], (unsigned long long)a->tier_options[t].blocks,
                   100 * w.share, w.saved_s, w.load_s, 100 * w.net, rate);
        }
    printf("worth: prefill saved less time to load, of all prefill time; "
           "negative: computing again is faster\n");
}

static void print_isolation(const struct bt_trace_isolation *s)
{
    double cost = s->ideal_shared - s->ideal_own;

    if (s->from_trace)
        printf("\n%u tenants, as the trace says", s->tenants);
    else
        printf("\n%u tenants, %llu conversations given to them at random "
               "(seeded)",
               s->tenants, (unsigned long long)s->conversations);
    printf("; hits with one namespace for all and one each:\n%14s %10s %10s "
           "%10s\n",
           "blocks", "shared", "own", "lost");
    printf("%14s %8.1f %% %8.1f %% %8.1f %%\n", "endless",
           100 * s->ideal_shared, 100 * s->ideal_own, 100 * cost);
    for (size_t i = 0; i < 6; i++)
        printf("%14u %8.1f %% %8.1f %% %8.1f %%\n", s->lru_blocks[i],
               100 * s->lru_shared[i], 100 * s->lru_own[i],
               100 * (s->lru_shared[i] - s->lru_own[i]));
    printf("Isolation costs %.1f points of prompt tokens with endless caches: "
           "%.1f %% more tokens to\ncompute, and %llu different blocks instead "
           "of %llu.\n",
           100 * cost,
           s->ideal_shared < 1 ? 100 * cost / (1 - s->ideal_shared) : 0.0,
           (unsigned long long)s->blocks_own,
           (unsigned long long)s->blocks_shared);
}

void trace_answers_print(const struct trace_answers *a)
{
    print_pays(&a->pays);
    if (a->has_tiers)
        print_tiers(a);
    if (a->has_isolation)
        print_isolation(&a->isolation);
}

/* ---- JSON ---- */

static json_t *pays_json(const struct bt_trace_pays *p)
{
    json_t *workers = json_array(), *caches = json_array();

    for (size_t i = 0; i < BT_TRACE_PAYS; i++) {
        json_array_append_new(workers, json_pack("{s:I,s:f}", "fleet",
                                                 (json_int_t)p->counts[i],
                                                 "gain", p->by_workers[i]));
        json_array_append_new(caches, json_pack("{s:I,s:f}", "blocks",
                                                (json_int_t)p->blocks[i],
                                                "gain", p->by_cache[i]));
    }
    return json_pack(
        "{s:f,s:I,s:o?,s:I,s:o?,s:o,s:o}", "least_gain", p->least,
        "cache_blocks", (json_int_t)p->cache_blocks, "workers_from",
        p->workers_from ? json_integer((json_int_t)p->workers_from) : NULL,
        "workers", (json_int_t)p->workers, "cache_range",
        p->blocks_from ? json_pack("[I,I]", (json_int_t)p->blocks_from,
                                   (json_int_t)p->blocks_to)
                       : NULL,
        "by_workers", workers, "by_cache", caches);
}

static json_t *tier_rows(const struct trace_answers *a,
                         const struct bt_trace_tiers *all)
{
    json_t *rows = json_array();

    for (size_t t = 0; t < BT_TRACE_TIERS; t++) {
        struct worth w = worth_of(a, all, t);

        if (a->tier_options[t].blocks > 0)
            json_array_append_new(
                rows,
                json_pack("{s:s,s:I,s:f,s:f,s:f,s:f,s:I}", "tier",
                          TIER_NAMES[t], "blocks",
                          (json_int_t)a->tier_options[t].blocks, "hit_tokens",
                          w.share, "saved_s", w.saved_s, "load_s", w.load_s,
                          "worth", w.net, "rate_bytes_per_s",
                          (json_int_t)a->tier_options[t].rate));
    }
    return rows;
}

static json_t *isolation_json(const struct bt_trace_isolation *s)
{
    json_t *lru = json_array();

    for (size_t i = 0; i < 6; i++)
        json_array_append_new(lru, json_pack("{s:I,s:f,s:f}", "blocks",
                                             (json_int_t)s->lru_blocks[i],
                                             "shared", s->lru_shared[i], "own",
                                             s->lru_own[i]));
    return json_pack("{s:I,s:b,s:I,s:I,s:I,s:f,s:f,s:o}", "tenants",
                     (json_int_t)s->tenants, "from_trace", (int)s->from_trace,
                     "conversations", (json_int_t)s->conversations,
                     "blocks_shared", (json_int_t)s->blocks_shared,
                     "blocks_own", (json_int_t)s->blocks_own, "ideal_shared",
                     s->ideal_shared, "ideal_own", s->ideal_own, "lru", lru);
}

void trace_answers_json(const struct trace_answers *a, json_t *into)
{
    json_object_set_new(into, "pays", pays_json(&a->pays));
    if (a->has_tiers)
        json_object_set_new(into, "tiers",
                            json_pack("{s:i,s:o,s:o}", "workers",
                                      (int)a->workers, "together",
                                      tier_rows(a, &a->together), "spread",
                                      tier_rows(a, &a->spread)));
    if (a->has_isolation)
        json_object_set_new(into, "isolation", isolation_json(&a->isolation));
}
