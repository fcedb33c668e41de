/* Counters of a cluster after a run: engines' GET /admin/state, serve's
 * GET /admin/v1/summary. A child that does not answer leaves its figures out
 * (unknown), it does not fail the run. */
#include "baton/base/units.h"
#include "baton/bench/stats.h"
#include "baton/orchestrator/json.h"
#include "cluster_priv.h"
#include "demo_priv.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FETCH_NS (3 * BT_NS_PER_S)

static uint64_t get_u64(const struct bt_json *object, const char *name)
{
    struct bt_json value;
    uint64_t number = 0;

    if (bt_json_member(object, name, &value, NULL))
        (void)bt_json_u64(&value, &number);
    return number;
}

static double get_double(const struct bt_json *object, const char *name,
                         double fallback)
{
    struct bt_json value;
    double number = fallback;

    if (bt_json_member(object, name, &value, NULL))
        (void)bt_json_double(&value, &number);
    return number;
}

static void get_name(const struct bt_json *object, const char *name, char *out,
                     size_t size)
{
    struct bt_json value;
    size_t bytes = 0;

    if (bt_json_member(object, name, &value, NULL) &&
        bt_json_string(&value, out, size - 1, &bytes) == BT_OK)
        out[bytes] = '\0';
}

static bool get_object(const struct bt_json *object, const char *name,
                       struct bt_json *out)
{
    return bt_json_member(object, name, out, NULL) &&
           out->type == BT_JSON_OBJECT;
}

static void get_classes(const struct bt_json *state,
                        struct bt_cluster_engine_state *out)
{
    struct bt_json list, entry;
    size_t cursor = 0;

    if (!bt_json_member(state, "kv", &list, NULL) || list.type != BT_JSON_ARRAY)
        return;
    while (out->class_count < BT_CLUSTER_CLASSES_MAX &&
           bt_json_next(&list, &cursor, NULL, &entry)) {
        struct bt_cluster_class *c = &out->classes[out->class_count];

        if (entry.type != BT_JSON_OBJECT)
            continue;
        get_name(&entry, "class", c->name, sizeof(c->name));
        c->bytes = get_u64(&entry, "bytes");
        c->pulls = get_u64(&entry, "pulls");
        out->class_count++;
    }
}

enum bt_status cluster_get_json(struct ev_loop *loop, const char *url,
                                const char *path, char **body_out,
                                struct bt_json *object_out)
{
    char full[URL_MAX + 64];
    size_t bytes = 0;
    int http = 0;
    enum bt_status status;

    snprintf(full, sizeof(full), "%s%s", url, path);
    status = bt_fetch(loop, full, NULL, FETCH_NS, &http, body_out, &bytes);
    if (status != BT_OK)
        return status;
    if (http != 200 ||
        bt_json_parse(*body_out, bytes, object_out, NULL) != BT_OK ||
        object_out->type != BT_JSON_OBJECT) {
        free(*body_out);
        return BT_PEER_ERROR;
    }
    return BT_OK;
}

enum bt_status bt_cluster_engine_state_get(struct bt_cluster *cluster,
                                           uint32_t engine,
                                           struct bt_cluster_engine_state *out)
{
    struct bt_json state, part;
    char *body = NULL;
    enum bt_status status;

    memset(out, 0, sizeof(*out));
    status =
        cluster_get_json(cluster->loop, bt_cluster_engine_url(cluster, engine),
                         "/admin/state", &body, &state);
    if (status != BT_OK)
        return status;
    out->answered = true;
    out->leases = get_u64(&state, "leases");
    if (get_object(&state, "blocks", &part)) {
        out->blocks_held = get_u64(&part, "held");
        out->blocks_leased = get_u64(&part, "leased");
    }
    if (get_object(&state, "requests", &part))
        out->busy = get_u64(&part, "running") + get_u64(&part, "waiting") +
                    get_u64(&part, "pulling") + get_u64(&part, "hung");
    if (get_object(&state, "totals", &part)) {
        out->prefill_computed = get_u64(&part, "prefill_tokens_computed");
        out->prefill_cached = get_u64(&part, "prefill_tokens_cached");
        out->generated = get_u64(&part, "generated_tokens");
    }
    get_classes(&state, out);
    free(body);
    return BT_OK;
}

/* On a bed no pace names a link: it is the one into that engine's host. */
static void name_class(const struct bt_cluster *cluster, uint32_t engine,
                       struct bt_cluster_class *class)
{
    if (cluster->spec.netbed)
        snprintf(class->name, sizeof(class->name), "%s",
                 cluster->spec.engines[engine].name);
}

static void add_class(struct bt_demo_result *result,
                      const struct bt_cluster_class *from)
{
    struct bt_demo_class *to = NULL;

    for (uint32_t i = 0; i < result->class_count && !to; i++) {
        if (strcmp(result->classes[i].name, from->name) == 0)
            to = &result->classes[i];
    }
    if (!to) {
        if (result->class_count == BT_CLUSTER_CLASSES_MAX)
            return;
        to = &result->classes[result->class_count++];
        snprintf(to->name, sizeof(to->name), "%s", from->name);
        to->bytes = 0;
    }
    to->bytes += from->bytes;
}

static void collect_engines(struct bt_cluster *cluster,
                            struct bt_demo_result *result)
{
    double prefill[BT_CLUSTER_ENGINES_MAX], decode[BT_CLUSTER_ENGINES_MAX];
    size_t prefills = 0, decodes = 0;
    struct bt_cluster_engine_state state;

    for (uint32_t i = 0; i < cluster->spec.engine_count; i++) {
        if (bt_cluster_engine_state_get(cluster, i, &state) != BT_OK)
            continue;
        for (uint32_t j = 0; j < state.class_count; j++) {
            name_class(cluster, i, &state.classes[j]);
            if (!cluster->spec.netbed || state.classes[j].bytes > 0)
                add_class(result, &state.classes[j]);
        }
        if (!cluster->spec.engines[i].prefill) {
            decode[decodes++] = (double)state.generated;
            continue;
        }
        prefill[prefills++] = (double)state.prefill_computed;
        result->prefill_tokens_saved += state.prefill_cached;
        result->prefill_tokens_computed += state.prefill_computed;
    }
    result->imbalance_prefill = bt_stat_imbalance(prefill, prefills);
    result->imbalance_decode = bt_stat_imbalance(decode, decodes);
}

static void collect_serve(struct bt_cluster *cluster,
                          struct bt_demo_result *result)
{
    struct bt_json summary, plan;
    double overlap, prompt;
    char *body = NULL;

    result->routing_p50_us = result->routing_p99_us = -1;
    result->prefix_overlap_ratio = -1;
    if (cluster_get_json(cluster->loop, cluster->admin_url, "/admin/v1/summary",
                         &body, &summary) != BT_OK)
        return;
    if (bt_json_member(&summary, "plan_us", &plan, NULL) &&
        plan.type == BT_JSON_OBJECT) {
        result->routing_p50_us = get_double(&plan, "p50", -1);
        result->routing_p99_us = get_double(&plan, "p99", -1);
    }
    overlap = get_double(&summary, "overlap_tokens", 0);
    prompt = get_double(&summary, "prompt_tokens", 0);
    if (prompt > 0)
        result->prefix_overlap_ratio = overlap / prompt;
    free(body);
}

void demo_collect(struct demo *demo, struct bt_cluster *cluster,
                  struct bt_demo_result *result)
{
    (void)demo;
    collect_engines(cluster, result);
    collect_serve(cluster, result);
}
