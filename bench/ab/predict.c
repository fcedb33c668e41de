/* What serve predicted beside what came, from its decision log and, for the
 * pulls alone, from the engines that made them; and the workload as a trace for
 * the simulator: all for comparing a run with models. Decides which decisions
 * count: ended well, placed once, not moved at the hand-off; and of transfers
 * and pulls those long enough that HTTP does not rule. What cannot be read
 * leaves its figures unknown. */
#include "baton/bench/stats.h"
#include "baton/bench/trace.h"
#include "baton/orchestrator/json.h"
#include "cluster_priv.h"
#include "demo_priv.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRANSFER_MIN_MS 5
#define LINE_BYTES      16384

struct pairs {
    double *predicted, *realised;
    size_t count, max;
};

static void add_pair(struct pairs *p, double predicted, double realised)
{
    if (p->count == p->max || !(predicted > 0))
        return;
    p->predicted[p->count] = predicted;
    p->realised[p->count++] = realised;
}

static bool number(const struct bt_json *o, const char *name, double *out)
{
    struct bt_json value;

    return bt_json_member(o, name, &value, NULL) &&
           bt_json_double(&value, out) == BT_OK;
}

static bool is_word(const struct bt_json *o, const char *name, const char *word)
{
    struct bt_json value;

    return bt_json_member(o, name, &value, NULL) && bt_json_is(&value, word);
}

static void take_line(const char *line, struct pairs *transfer,
                      struct pairs *total)
{
    double predicted, realised, queued, placements;
    struct bt_json o, moved;

    if (bt_json_parse(line, strlen(line), &o, NULL) != BT_OK ||
        o.type != BT_JSON_OBJECT || !is_word(&o, "outcome", "ok") ||
        !number(&o, "placements", &placements) || placements > 1 ||
        !bt_json_member(&o, "handoff_moved", &moved, NULL) ||
        moved.type != BT_JSON_FALSE)
        return;
    if (number(&o, "pred_transfer_ms", &predicted) &&
        number(&o, "act_transfer_ms", &realised) &&
        predicted >= TRANSFER_MIN_MS)
        add_pair(transfer, predicted, realised);
    if (number(&o, "pred_total_ms", &predicted) &&
        number(&o, "ttft_ms", &realised) && number(&o, "queue_ms", &queued))
        add_pair(total, predicted, realised - queued);
}

static void summarise(struct pairs *p, struct bt_demo_prediction *out)
{
    out->count = p->count;
    out->predicted_ms = bt_stat_mean(p->predicted, p->count);
    out->realised_ms = bt_stat_mean(p->realised, p->count);
    for (size_t i = 0; i < p->count; i++) {
        double off = p->realised[i] - p->predicted[i];

        out->error_mean_ms += fabs(off) / (double)p->count;
        p->realised[i] = off / p->predicted[i];
    }
    bt_stat_sort(p->realised, p->count);
    out->bias = bt_stat_quantile(p->realised, p->count, 0.5);
    for (size_t i = 0; i < p->count; i++)
        p->realised[i] = fabs(p->realised[i]);
    bt_stat_sort(p->realised, p->count);
    out->error_median = bt_stat_quantile(p->realised, p->count, 0.5);
    out->error_p95 = bt_stat_quantile(p->realised, p->count, 0.95);
}

static bool take_room(struct pairs *p, size_t max)
{
    p->max = max;
    p->predicted = calloc(max + 1, sizeof(*p->predicted));
    p->realised = calloc(max + 1, sizeof(*p->realised));
    return p->predicted && p->realised;
}

static void give_room(struct pairs *p)
{
    free(p->predicted);
    free(p->realised);
}

/* ---- pulls ---- */

static void take_pulls(const struct bt_json *state, struct pairs *pulls)
{
    struct bt_json list, pull;
    double foreseen, took;
    size_t cursor = 0;

    if (!bt_json_member(state, "pulls", &list, NULL) ||
        list.type != BT_JSON_ARRAY)
        return;
    while (bt_json_next(&list, &cursor, NULL, &pull)) {
        if (pull.type == BT_JSON_OBJECT &&
            number(&pull, "estimate_ns", &foreseen) &&
            number(&pull, "took_ns", &took) &&
            foreseen >= TRANSFER_MIN_MS * 1e6)
            add_pair(pulls, foreseen / 1e6, took / 1e6);
    }
}

static void pull_predictions(const struct demo *demo,
                             struct bt_cluster *cluster,
                             struct bt_demo_prediction *out)
{
    struct pairs pulls = {0};
    struct bt_json state;
    char *body;

    if (take_room(&pulls, demo->workload.count)) {
        for (uint32_t i = 0; i < cluster->spec.engine_count; i++) {
            if (cluster_get_json(cluster->loop,
                                 bt_cluster_engine_url(cluster, i),
                                 "/admin/pulls", &body, &state) != BT_OK)
                continue;
            take_pulls(&state, &pulls);
            free(body);
        }
        summarise(&pulls, out);
    }
    give_room(&pulls);
}

/* ---- all ---- */

void demo_predictions(const struct demo *demo, struct bt_cluster *cluster,
                      struct bt_demo_result *result)
{
    struct pairs transfer = {0}, total = {0};
    char path[600], *line = malloc(LINE_BYTES);
    FILE *from;

    snprintf(path, sizeof(path), "%s/decisions-%s.jsonl", demo->directory,
             result->policy);
    from = fopen(path, "re");
    if (from && line && take_room(&transfer, demo->workload.count) &&
        take_room(&total, demo->workload.count)) {
        while (fgets(line, LINE_BYTES, from))
            take_line(line, &transfer, &total);
        summarise(&transfer, &result->transfer);
        summarise(&total, &result->total);
    }
    pull_predictions(demo, cluster, &result->pull);
    if (from)
        fclose(from);
    give_room(&transfer);
    give_room(&total);
    free(line);
}

void demo_workload_dump(const struct demo *demo)
{
    struct bt_trace trace;
    enum bt_status status;
    char path[600];

    if (demo->temporary)
        return;
    snprintf(path, sizeof(path), "%s/workload.jsonl", demo->directory);
    errno = 0;
    status =
        bt_workload_trace(&demo->workload, demo->spec.block_tokens, &trace);
    if (status == BT_OK) {
        status = bt_trace_write(&trace, path);
        bt_trace_fini(&trace);
    }
    if (status != BT_OK)
        fprintf(stderr, "baton demo: %s: %s\n", path,
                errno ? strerror(errno) : bt_status_text(status));
}
