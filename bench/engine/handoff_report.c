/* What pulls took: times (set-up, queued, moved), bytes per rail, and the
 * agent's predictions beside what came. Decides how it is shown in
 * /admin/state and /metrics; the figures are the agent's.
 */
#include "engine_priv.h"

#include "baton/orchestrator/promtext.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PATHS_SHOWN 64

void bt_handoff_note(struct bt_engine *e, const struct bt_agent_event *event)
{
    e->pull_times[e->pull_count % BT_ENGINE_PULLS_KEPT] =
        (struct bt_pull_times){
            .estimate_ns = event->estimate_ns,
            .predicted_ns = event->predicted_ns,
            .took_ns = event->duration_ns,
            .bytes = event->bytes,
        };
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

/* ---- /admin/pulls ---- */

json_t *bt_handoff_pulls(const struct bt_engine *e)
{
    uint64_t count = e->pull_count < BT_ENGINE_PULLS_KEPT
                         ? e->pull_count
                         : BT_ENGINE_PULLS_KEPT;
    json_t *list = json_array();
    for (uint64_t i = e->pull_count - count; i < e->pull_count; i++) {
        const struct bt_pull_times *p =
            &e->pull_times[i % BT_ENGINE_PULLS_KEPT];
        json_array_append_new(
            list,
            json_pack("{s:I, s:I, s:I, s:I}", "estimate_ns",
                      (json_int_t)p->estimate_ns, "predicted_ns",
                      (json_int_t)p->predicted_ns, "took_ns",
                      (json_int_t)p->took_ns, "bytes", (json_int_t)p->bytes));
    }
    return json_pack("{s:I, s:o}", "count", (json_int_t)e->pull_count, "pulls",
                     list);
}

/* ---- /admin/state, the rest ---- */

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

/* A part of the page at a time goes through here. */
struct part {
    char bytes[4096]; /* of 8 rails, or both rows of a peer */
    struct bt_text text;
};

static void part_open(struct part *part)
{
    bt_text_init(&part->text, part->bytes, sizeof(part->bytes));
}

static void part_write(struct part *part, FILE *out)
{
    assert(!part->text.overflow);
    fwrite(part->bytes, 1, part->text.used, out);
}

static void seconds_row(struct bt_text *t, const char *name, int64_t ns)
{
    const struct bt_prom_pair labels[] = {{"part", name}, {NULL, NULL}};

    bt_prom_row_fixed(t, "baton_engine_pull_seconds_total", labels,
                      (double)ns / 1e9, 9);
}

static void error_row(struct bt_text *t, const struct bt_agent_path *p,
                      const char *quantile, double value)
{
    char port[8];
    const struct bt_prom_pair labels[] = {
        {"peer", p->name[0] != '\0' ? p->name : p->host},
        {"port", port},
        {"quantile", quantile},
        {NULL, NULL},
    };

    snprintf(port, sizeof(port), "%u", (unsigned int)p->port);
    bt_prom_row_fixed(t, "baton_engine_pull_error", labels, value, 6);
}

static void pulls_part(struct bt_text *t, const struct bt_engine *e)
{
    bt_prom_family(t, "baton_engine_pull_seconds_total", "counter",
                   "Time of KV pulls that ended well, by part.");
    seconds_row(t, "setup", e->setup_ns);
    seconds_row(t, "queued", e->queued_ns);
    seconds_row(t, "moved", e->moved_ns);
    bt_prom_family(t, "baton_engine_pull_bytes_total", "counter",
                   "Bytes of KV pulls, by rail.");
    for (uint32_t i = 0; i < rails_of(e); i++) {
        const struct bt_prom_pair labels[] = {{"rail", rail_name(e, i)},
                                              {NULL, NULL}};

        bt_prom_row_u64(t, "baton_engine_pull_bytes_total", labels,
                        e->rail_bytes[i]);
    }
    bt_prom_family(t, "baton_engine_pull_error", "gauge",
                   "Relative error of predicted pull times, last 256 per "
                   "peer.");
}

void bt_handoff_metrics(struct bt_engine *e, FILE *out)
{
    struct bt_agent_path paths[PATHS_SHOWN];
    size_t count = bt_agent_paths(e->agent, paths, PATHS_SHOWN);
    struct part part;
    part_open(&part);
    pulls_part(&part.text, e);
    part_write(&part, out);
    for (size_t i = 0; i < count; i++) {
        if (paths[i].predicted == 0) {
            continue;
        }
        part_open(&part);
        error_row(&part.text, &paths[i], "0.5", paths[i].error_median);
        error_row(&part.text, &paths[i], "0.95", paths[i].error_p95);
        part_write(&part, out);
    }
}
