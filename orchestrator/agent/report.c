/* What the agent knows, as JSON (GET /v1/agent, /v1/pool) and as Prometheus
 * text. Buffers are sized by the limits of what they list; label values are
 * names from our own options, or from peers and then escaped. */
#include "service.h"

#include "baton/orchestrator/promtext.h"
#include "baton/transfer/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES  16384u
#define PATH_BYTES  1024u
#define LAST_BYTES  1536u
#define METER_BYTES 256u
#define METERS      65u

/* ---- pieces ---- */

static void comma(struct bt_text *t, bool *first)
{
    if (!*first)
        bt_text_str(t, ",");
    *first = false;
}

static void key(struct bt_text *t, const char *name)
{
    bt_text_str(t, "\"");
    bt_text_str(t, name);
    bt_text_str(t, "\":");
}

static void number(struct bt_text *t, const char *name, uint64_t value)
{
    key(t, name);
    bt_text_u64(t, value);
    bt_text_str(t, ",");
}

static void text(struct bt_text *t, const char *name, const char *value)
{
    key(t, name);
    bt_text_quoted(t, value, strlen(value));
    bt_text_str(t, ",");
}

static uint32_t rails_of(const struct bt_agent_service *s)
{
    return s->config.rail_count > 0 ? s->config.rail_count : 1;
}

static const char *rail_name(const struct bt_agent_service *s, uint32_t rail)
{
    return s->rail_names[rail][0] != '\0' ? s->rail_names[rail] : "rail0";
}

static void rail_bytes(struct bt_text *t, const struct bt_agent_service *s,
                       const uint64_t *bytes)
{
    bool first = true;

    key(t, "rail_bytes");
    bt_text_str(t, "{");
    for (uint32_t i = 0; i < rails_of(s); i++) {
        comma(t, &first);
        key(t, rail_name(s, i));
        bt_text_u64(t, bytes[i]);
    }
    bt_text_str(t, "}");
}

void service_last_json(struct bt_text *t, const struct bt_agent_service *s,
                       const struct last *last)
{
    bt_text_str(t, "{");
    text(t, "status", bt_status_name(last->status));
    text(t, "peer", last->peer);
    text(t, "request_id", last->request_id);
    text(t, "region", last->region);
    text(t, "detail", last->detail);
    number(t, "bytes", last->bytes);
    number(t, "descriptors", last->descriptors);
    number(t, "retries", last->retries);
    number(t, "setup_ns", (uint64_t)last->setup_ns);
    number(t, "queued_ns", (uint64_t)last->queued_ns);
    number(t, "moved_ns", (uint64_t)last->moved_ns);
    number(t, "duration_ns", (uint64_t)last->duration_ns);
    number(t, "predicted_ns", last->predicted_ns);
    number(t, "estimate_ns", last->estimate_ns);
    rail_bytes(t, s, last->rail_bytes);
    bt_text_str(t, "}");
}

/* ---- /v1/agent ---- */

static void last_list(struct bt_text *t, const struct bt_agent_service *s)
{
    uint64_t count =
        s->last_count < SERVICE_LAST ? s->last_count : SERVICE_LAST;
    bool first = true;

    key(t, "last");
    bt_text_str(t, "[");
    for (uint64_t i = s->last_count - count; i < s->last_count; i++) {
        comma(t, &first);
        service_last_json(t, s, &s->last[i % SERVICE_LAST]);
    }
    bt_text_str(t, "]");
}

static void path_json(struct bt_text *t, const struct bt_agent_path *p)
{
    bt_text_str(t, "{");
    text(t, "name", p->name);
    text(t, "host", p->host);
    number(t, "port", p->port);
    text(t, "region", p->region);
    text(t, "transport", p->transport);
    number(t, "pulls", p->pulls);
    number(t, "failed", p->failed);
    number(t, "bytes", p->bytes);
    number(t, "setup_ns", (uint64_t)p->setup_ns);
    number(t, "descriptor_ns", (uint64_t)p->per_descriptor_ns);
    number(t, "rate_bytes_per_s", p->rate_bytes_per_s);
    key(t, "changed");
    bt_text_str(t, p->changed ? "true," : "false,");
    key(t, "fallback_suspected");
    bt_text_str(t, p->fallback_suspected ? "true," : "false,");
    number(t, "predicted", p->predicted);
    key(t, "error_median");
    bt_text_fixed(t, p->error_median, 6);
    bt_text_str(t, ",");
    key(t, "error_p95");
    bt_text_fixed(t, p->error_p95, 6);
    bt_text_str(t, "}");
}

static void paths_list(struct bt_text *t, const struct bt_agent_path *paths,
                       size_t count)
{
    bool first = true;

    key(t, "peers");
    bt_text_str(t, "[");
    for (size_t i = 0; i < count; i++) {
        comma(t, &first);
        path_json(t, &paths[i]);
    }
    bt_text_str(t, "],");
}

static void rails_list(struct bt_text *t, const struct bt_agent_service *s)
{
    key(t, "rails");
    bt_text_str(t, "[");
    for (uint32_t i = 0; i < rails_of(s); i++) {
        const struct bt_rail_config *rail = &s->rails[i];

        bt_text_str(t, i > 0 ? ",{" : "{");
        text(t, "name", rail_name(s, i));
        text(t, "address", rail->address != NULL ? rail->address : "");
        text(t, "device", rail->device != NULL ? rail->device : "");
        key(t, "bytes");
        bt_text_u64(t, s->rail_bytes[i]);
        bt_text_str(t, "}");
    }
    bt_text_str(t, "],");
}

static void transfers(struct bt_text *t, struct bt_agent_service *s)
{
    struct bt_agent_stats a;

    bt_agent_stats(s->agent, &a);
    key(t, "transfers");
    bt_text_str(t, "{");
    number(t, "pulls", a.pulls);
    number(t, "pulls_failed", a.pulls_failed);
    number(t, "bytes", a.bytes);
    number(t, "descriptors", a.descriptors);
    number(t, "retries", a.retries);
    number(t, "checksum_failures", a.checksum_failures);
    number(t, "asked", s->asked);
    number(t, "asks_refused", s->asks_refused);
    number(t, "refused_auth", a.refused_auth);
    number(t, "doors_shut", a.doors_shut);
    number(t, "refused_layout", a.refused_layout);
    number(t, "ring_full", a.ring_full);
    number(t, "live_pulls", a.live_pulls);
    number(t, "rails_up", a.rails_up);
    key(t, "readers");
    bt_text_u64(t, s->ask_count);
    bt_text_str(t, "},");
}

static void regions(struct bt_text *t, const struct bt_agent_service *s)
{
    key(t, "regions");
    bt_text_str(t, "[{");
    text(t, "name", BT_PROBE_REGION);
    number(t, "block_bytes", BT_PROBE_BLOCK_BYTES);
    key(t, "blocks");
    bt_text_u64(t, s->probe_bytes / BT_PROBE_BLOCK_BYTES);
    bt_text_str(t, "}");
    if (s->pool != NULL) {
        bt_text_str(t, ",{");
        text(t, "name", SERVICE_REGION);
        number(t, "block_bytes", s->config.block_bytes);
        key(t, "blocks");
        bt_text_u64(t, pool_slots(s->pool));
        bt_text_str(t, "}");
    }
    bt_text_str(t, "],");
}

static void pool_json(struct bt_text *t, const struct bt_agent_service *s);

/* Under way from one peer: what a probe needs to foresee queues. */
static void window_json(struct bt_text *t, const struct bt_agent_service *s)
{
    uint64_t chunk = s->config.chunk_bytes, reads = s->config.inflight_max;
    struct bt_window_limits most = {
        .ops_max = (uint32_t)(reads > 0 ? reads : BT_KV_INFLIGHT),
        .op_max = (uint32_t)(chunk > 0 ? chunk : BT_KV_CHUNK_BYTES),
        .target_ns = s->config.window_target_ns,
    };

    number(t, "window_bytes",
           (uint64_t)most.op_max * most.ops_max * rails_of(s));
    if (most.target_ns < 0)
        return;
    number(t, "window_target_ns",
           most.target_ns > 0 ? (uint64_t)most.target_ns : BT_WINDOW_TARGET_NS);
    number(t, "window_share", bt_window_share(&most) * rails_of(s));
}

void service_report(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    size_t size =
        HEAD_BYTES + SERVICE_PATHS * PATH_BYTES + SERVICE_LAST * LAST_BYTES;
    struct bt_agent_path *paths = calloc(SERVICE_PATHS, sizeof(*paths));
    char *buf = malloc(size);
    struct bt_text t;

    bt_text_init(&t, buf, buf != NULL ? size : 0);
    size_t count =
        paths != NULL ? bt_agent_paths(s->agent, paths, SERVICE_PATHS) : 0;
    bt_text_str(&t, "{");
    text(&t, "name", s->name);
    text(&t, "fabric", s->config.fabric);
    text(&t, "address", s->address);
    number(&t, "port", bt_agent_port(s->agent));
    window_json(&t, s);
    key(&t, "authenticated");
    bt_text_str(&t, s->config.key != NULL ? "true," : "false,");
    rails_list(&t, s);
    regions(&t, s);
    transfers(&t, s);
    paths_list(&t, paths, count);
    if (s->pool != NULL) {
        key(&t, "pool");
        pool_json(&t, s);
        bt_text_str(&t, ",");
    }
    last_list(&t, s);
    bt_text_str(&t, "}");
    free(paths);
    service_send(req, "application/json", buf, &t);
}

/* ---- /v1/pool ---- */

static void nvme_json(struct bt_text *t, const struct pool_state_counts *c)
{
    key(t, "nvme");
    bt_text_str(t, "{");
    number(t, "blocks", c->nvme.blocks);
    number(t, "capacity", c->nvme.capacity);
    number(t, "reads", c->nvme.reads);
    number(t, "writes", c->nvme.writes);
    number(t, "read_bytes", c->nvme.read_bytes);
    number(t, "write_bytes", c->nvme.write_bytes);
    number(t, "checksum_failures", c->nvme.checksum_failures);
    number(t, "io_errors", c->nvme.io_errors);
    number(t, "evicted", c->nvme.evicted);
    number(t, "dropped_at_open", c->nvme.dropped_at_open);
    key(t, "waiting");
    bt_text_u64(t, c->nvme.waiting);
    bt_text_str(t, "},");
}

static void pool_json(struct bt_text *t, const struct bt_agent_service *s)
{
    struct pool_state_counts c;

    pool_report(s->pool, &c);
    bt_text_str(t, "{");
    number(t, "block_bytes", s->config.block_bytes);
    number(t, "slots", c.slots);
    number(t, "held", c.held);
    number(t, "landing", c.landing);
    number(t, "loading", c.loading);
    number(t, "pinned", c.pinned);
    number(t, "storing", c.storing);
    number(t, "page_bytes", c.page_bytes);
    if (c.has_nvme)
        nvme_json(t, &c);
    number(t, "hits_host", c.counters.hits_host);
    number(t, "hits_nvme", c.counters.hits_nvme);
    number(t, "misses", c.counters.misses);
    number(t, "landed", c.counters.landed);
    number(t, "stored", c.counters.stored);
    number(t, "store_failed", c.counters.store_failed);
    number(t, "load_failed", c.counters.load_failed);
    number(t, "evicted", c.counters.evicted);
    number(t, "lost", c.counters.lost);
    key(t, "no_slot");
    bt_text_u64(t, c.counters.refused);
    bt_text_str(t, "}");
}

void service_report_pool(struct bt_agent_service *s,
                         struct bt_httpd_request *req)
{
    char *buf = malloc(HEAD_BYTES);
    struct bt_text t;

    bt_text_init(&t, buf, buf != NULL ? HEAD_BYTES : 0);
    pool_json(&t, s);
    service_send(req, "application/json", buf, &t);
}

/* ---- /metrics ---- */

struct row {
    const char *name, *type, *help;
    uint64_t value;
};

static void rows(struct bt_text *t, const struct row *row, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bt_prom_family(t, row[i].name, row[i].type, row[i].help);
        bt_prom_row_u64(t, row[i].name, NULL, row[i].value);
    }
}

static void agent_rows(struct bt_text *t, struct bt_agent_service *s)
{
    struct bt_agent_stats a;

    bt_agent_stats(s->agent, &a);
    const struct row list[] = {
        {"baton_agent_pulls_total", "counter", "Pulls that ended.", a.pulls},
        {"baton_agent_pulls_failed_total", "counter",
         "Pulls that did not end well.", a.pulls_failed},
        {"baton_agent_pulled_bytes_total", "counter", "Bytes pulled.", a.bytes},
        {"baton_agent_descriptors_total", "counter", "Coalesced runs of pulls.",
         a.descriptors},
        {"baton_agent_retries_total", "counter", "Reads sent again.",
         a.retries},
        {"baton_agent_checksum_failures_total", "counter",
         "Pulls whose bytes differed from their checksums.",
         a.checksum_failures},
        {"baton_agent_doors_shut_total", "counter",
         "Times that file descriptors ran out.", a.doors_shut},
        {"baton_agent_refused_auth_total", "counter",
         "Peers refused for their key.", a.refused_auth},
        {"baton_agent_refused_layout_total", "counter",
         "Peers refused for their layout.", a.refused_layout},
        {"baton_agent_ring_full_total", "counter",
         "Calls refused because the agent's ring was full.", a.ring_full},
        {"baton_agent_asked_total", "counter", "Pulls of peers from the pool.",
         s->asked},
        {"baton_agent_asks_refused_total", "counter",
         "Pulls of peers from the pool that were refused.", s->asks_refused},
        {"baton_agent_live_pulls", "gauge", "Pulls under way.", a.live_pulls},
        {"baton_agent_readers", "gauge", "Peers reading the pool.",
         s->ask_count},
        {"baton_agent_peers", "gauge", "Peers pulled from.", a.peers},
        {"baton_agent_rails_up", "gauge", "Rails that no peer misses.",
         a.rails_up},
    };

    rows(t, list, sizeof(list) / sizeof(list[0]));
}

static void pool_rows(struct bt_text *t, const struct bt_agent_service *s)
{
    struct pool_state_counts c;

    pool_report(s->pool, &c);
    const struct row list[] = {
        {"baton_agent_pool_slots", "gauge", "Slots in host memory.", c.slots},
        {"baton_agent_pool_held", "gauge", "Slots with a block.", c.held},
        {"baton_agent_pool_pinned", "gauge", "Slots being read.", c.pinned},
        {"baton_agent_pool_nvme_blocks", "gauge", "Blocks on NVMe.",
         c.nvme.blocks},
        {"baton_agent_pool_hits_host_total", "counter",
         "Keys found in host memory.", c.counters.hits_host},
        {"baton_agent_pool_hits_nvme_total", "counter",
         "Keys brought up from NVMe.", c.counters.hits_nvme},
        {"baton_agent_pool_misses_total", "counter", "Keys that no tier had.",
         c.counters.misses},
        {"baton_agent_pool_evicted_total", "counter",
         "Blocks dropped from host memory to make room.", c.counters.evicted},
        {"baton_agent_pool_lost_total", "counter",
         "Evicted blocks with no copy on NVMe.", c.counters.lost},
        {"baton_agent_pool_store_failed_total", "counter",
         "Blocks that could not be stored on NVMe.", c.counters.store_failed},
        {"baton_agent_pool_load_failed_total", "counter",
         "Blocks that could not be read from NVMe.", c.counters.load_failed},
    };

    rows(t, list, sizeof(list) / sizeof(list[0]));
}

static void seconds_of(struct bt_text *t, const char *part, int64_t ns)
{
    const struct bt_prom_pair labels[] = {{"part", part}, {NULL, NULL}};

    bt_prom_row_fixed(t, "baton_agent_pull_seconds_total", labels,
                      (double)ns / 1e9, 9);
}

static void transport_of(struct bt_text *t, const struct bt_agent_path *p)
{
    char port[8];
    const struct bt_prom_pair labels[] = {
        {"peer", p->name},     {"host", p->host},           {"port", port},
        {"region", p->region}, {"transport", p->transport}, {NULL, NULL},
    };

    snprintf(port, sizeof(port), "%u", (unsigned int)p->port);
    bt_prom_row_u64(t, "baton_agent_path_bytes_total", labels, p->bytes);
}

static void error_of(struct bt_text *t, const struct bt_agent_path *p,
                     const char *quantile, double value)
{
    char port[8];
    const struct bt_prom_pair labels[] = {
        {"peer", p->name},      {"host", p->host}, {"port", port},
        {"quantile", quantile}, {NULL, NULL},
    };

    snprintf(port, sizeof(port), "%u", (unsigned int)p->port);
    bt_prom_row_fixed(t, "baton_agent_prediction_error", labels, value, 6);
}

static void path_rows(struct bt_text *t, struct bt_agent_service *s)
{
    struct bt_agent_path *paths = calloc(SERVICE_PATHS, sizeof(*paths));
    size_t count =
        paths != NULL ? bt_agent_paths(s->agent, paths, SERVICE_PATHS) : 0;

    bt_prom_family(
        t, "baton_agent_prediction_error", "gauge",
        "Relative error of predicted pull times, last 256 per peer.");
    for (size_t i = 0; i < count; i++) {
        if (paths[i].predicted == 0)
            continue;
        error_of(t, &paths[i], "0.5", paths[i].error_median);
        error_of(t, &paths[i], "0.95", paths[i].error_p95);
    }
    bt_prom_family(
        t, "baton_agent_path_bytes_total", "counter",
        "Bytes pulled from a region of a peer, and what carries them.");
    for (size_t i = 0; i < count; i++)
        transport_of(t, &paths[i]);
    free(paths);
}

static void rail_rows(struct bt_text *t, const struct bt_agent_service *s)
{
    bt_prom_family(t, "baton_agent_rail_bytes_total", "counter",
                   "Bytes pulled into the pool, by rail.");
    for (uint32_t i = 0; i < rails_of(s); i++) {
        const struct bt_prom_pair labels[] = {{"rail", rail_name(s, i)},
                                              {NULL, NULL}};

        bt_prom_row_u64(t, "baton_agent_rail_bytes_total", labels,
                        s->rail_bytes[i]);
    }
}

void service_metrics(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    size_t size = HEAD_BYTES + SERVICE_PATHS * (2 * 384u + 1024u);
    char *buf = malloc(size);
    struct bt_text t;

    bt_text_init(&t, buf, buf != NULL ? size : 0);
    agent_rows(&t, s);
    if (s->pool != NULL)
        pool_rows(&t, s);
    bt_prom_family(&t, "baton_agent_pull_seconds_total", "counter",
                   "Time of pulls into the pool, by part.");
    seconds_of(&t, "setup", s->setup_ns);
    seconds_of(&t, "queued", s->queued_ns);
    seconds_of(&t, "moved", s->moved_ns);
    rail_rows(&t, s);
    path_rows(&t, s);
    service_send(req, BT_PROM_TYPE, buf, &t);
}
