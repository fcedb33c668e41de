/* What pulls took: times (set-up, queued, moved), bytes per rail, and the
 * agent's predictions beside what came. Decides how it is shown in
 * /admin/state and /metrics; the figures are the agent's.
 */
#include "engine_priv.h"

#include <string.h>

#define PATHS_SHOWN 64

void bt_handoff_note(struct bt_engine *e, const struct bt_agent_event *event)
{
    e->pulls[e->pull_count++ % BT_ENGINE_PULLS_SHOWN] = *event;
    e->setup_ns += event->setup_ns;
    e->queued_ns += event->queued_ns;
    e->moved_ns += event->moved_ns;
    for (uint32_t i = 0; i < BT_RAILS_MAX; i++) {
        e->rail_bytes[i] += event->rail_bytes[i];
    }
}

static uint32_t rails_of(const struct bt_engine *e)
{
    return e->rail_count > 0 ? e->rail_count : 1;
}

static const char *rail_name(const struct bt_engine *e, uint32_t rail)
{
    return e->rail_names[rail][0] != '\0' ? e->rail_names[rail] : "rail0";
}

/* ---- /admin/state ---- */

json_t *bt_handoff_meters(struct bt_engine *e)
{
    struct bt_fabric_meter meter[64];
    size_t count = bt_agent_meters(e->agent, meter, 64);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(
            list,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "class",
                      meter[i].link_class, "bytes", (json_int_t)meter[i].bytes,
                      "pulls", (json_int_t)meter[i].pulls, "descriptors",
                      (json_int_t)meter[i].descriptors, "failed",
                      (json_int_t)meter[i].failed, "busy_ns",
                      (json_int_t)meter[i].busy_ns));
    }
    return list;
}

static json_t *rail_bytes(const struct bt_engine *e, const uint64_t *bytes)
{
    json_t *rails = json_object();
    for (uint32_t i = 0; i < rails_of(e); i++) {
        json_object_set_new(rails, rail_name(e, i),
                            json_integer((json_int_t)bytes[i]));
    }
    return rails;
}

static json_t *pull_json(const struct bt_engine *e,
                         const struct bt_agent_event *p)
{
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
        "request_id", p->request_id, "peer", p->peer, "bytes",
        (json_int_t)p->bytes, "descriptors", (json_int_t)p->descriptors,
        "retries", (json_int_t)p->retries, "setup_ns", (json_int_t)p->setup_ns,
        "queued_ns", (json_int_t)p->queued_ns, "moved_ns",
        (json_int_t)p->moved_ns, "duration_ns", (json_int_t)p->duration_ns,
        "predicted_ns", (json_int_t)p->predicted_ns, "estimate_ns",
        (json_int_t)p->estimate_ns, "rail_bytes", rail_bytes(e, p->rail_bytes));
}

static json_t *last_pulls(const struct bt_engine *e)
{
    json_t *list = json_array();
    uint64_t count = e->pull_count < BT_ENGINE_PULLS_SHOWN
                         ? e->pull_count
                         : BT_ENGINE_PULLS_SHOWN;
    for (uint64_t i = e->pull_count - count; i < e->pull_count; i++) {
        json_array_append_new(
            list, pull_json(e, &e->pulls[i % BT_ENGINE_PULLS_SHOWN]));
    }
    return list;
}

static json_t *paths_json(struct bt_engine *e)
{
    struct bt_agent_path paths[PATHS_SHOWN];
    size_t count = bt_agent_paths(e->agent, paths, PATHS_SHOWN);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const struct bt_agent_path *p = &paths[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f, "
                      "s:f}",
                      "peer", p->name, "host", p->host, "port", (int)p->port,
                      "pulls", (json_int_t)p->pulls, "failed",
                      (json_int_t)p->failed, "bytes", (json_int_t)p->bytes,
                      "setup_ns", (json_int_t)p->setup_ns, "descriptor_ns",
                      (json_int_t)p->per_descriptor_ns, "rate_bytes_per_s",
                      (json_int_t)p->rate_bytes_per_s, "predicted",
                      (int)p->predicted, "error_median", p->error_median,
                      "error_p95", p->error_p95));
    }
    return list;
}

/* What another one's pool must have to hold our blocks. */
static json_t *layout_json(const struct bt_engine *e)
{
    char hash[20];
    snprintf(hash, sizeof(hash), "%016llx",
             (unsigned long long)e->layout.model_hash);
    return json_pack("{s:i, s:i, s:I, s:s}", "version", (int)e->layout.version,
                     "block_tokens", (int)e->layout.block_tokens, "block_bytes",
                     (json_int_t)e->layout.block_bytes, "model_hash", hash);
}

json_t *bt_handoff_state(struct bt_engine *e)
{
    struct bt_agent_stats s;
    bt_agent_stats(e->agent, &s);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:o}", "retries",
        (json_int_t)s.retries, "checksum_failures",
        (json_int_t)s.checksum_failures, "refused_auth",
        (json_int_t)s.refused_auth, "refused_layout",
        (json_int_t)s.refused_layout, "ring_full", (json_int_t)s.ring_full,
        "live_leases", (json_int_t)s.live_leases, "rails_up", (int)s.rails_up,
        "layout", layout_json(e), "rails", rail_bytes(e, e->rail_bytes),
        "paths", paths_json(e), "last", last_pulls(e));
}

/* ---- /metrics ---- */

static void type_line(FILE *out, const char *name, const char *type,
                      const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void seconds_line(FILE *out, const char *part, int64_t ns)
{
    fprintf(out, "baton_engine_pull_seconds_total{part=\"%s\"} %.9f\n", part,
            (double)ns / 1e9);
}

static void path_line(FILE *out, const struct bt_agent_path *p)
{
    const char *name = p->name[0] != '\0' ? p->name : p->host;
    if (p->predicted == 0) {
        return;
    }
    fprintf(out,
            "baton_engine_pull_error{peer=\"%s\",port=\"%u\","
            "quantile=\"0.5\"} %.6f\n",
            name, (unsigned int)p->port, p->error_median);
    fprintf(out,
            "baton_engine_pull_error{peer=\"%s\",port=\"%u\","
            "quantile=\"0.95\"} %.6f\n",
            name, (unsigned int)p->port, p->error_p95);
}

void bt_handoff_metrics(struct bt_engine *e, FILE *out)
{
    struct bt_agent_path paths[PATHS_SHOWN];
    size_t count = bt_agent_paths(e->agent, paths, PATHS_SHOWN);
    type_line(out, "baton_engine_pull_seconds_total", "counter",
              "Time of KV pulls that ended well, by part.");
    seconds_line(out, "setup", e->setup_ns);
    seconds_line(out, "queued", e->queued_ns);
    seconds_line(out, "moved", e->moved_ns);
    type_line(out, "baton_engine_pull_bytes_total", "counter",
              "Bytes of KV pulls, by rail.");
    for (uint32_t i = 0; i < rails_of(e); i++) {
        fprintf(out, "baton_engine_pull_bytes_total{rail=\"%s\"} %llu\n",
                rail_name(e, i), (unsigned long long)e->rail_bytes[i]);
    }
    type_line(out, "baton_engine_pull_error", "gauge",
              "Relative error of predicted pull times, last 256 per peer.");
    for (size_t i = 0; i < count; i++) {
        path_line(out, &paths[i]);
    }
}
