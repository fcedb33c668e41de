/* Prometheus text of the service. What means the same as in `baton serve` has
 * its name (METRICS.md). Label values are names from registrations, escaped;
 * nothing of a query becomes a label.
 */
#include "service_impl.h"

#include "baton/orchestrator/promtext.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 32768u
#define ROW_BYTES  1024u
#define COLUMNS    4u /* per stream */

/* ---- groups ---- */

static void write_index(struct bt_text *t, const struct bt_index_service *s)
{
    struct bt_prefix_index_stats x = s->counts.gone, one_scope;

    for (uint32_t i = 0; i < s->config.scopes_max; i++) {
        if (!s->scopes[i].used)
            continue;
        bt_prefix_index_stats_get(s->scopes[i].index, &one_scope);
        stats_add(&x, &one_scope, true);
    }
    bt_prom_one(t, "baton_kv_index_blocks", "gauge",
                "Distinct block keys known.", (double)x.blocks);
    bt_prom_one(t, "baton_kv_index_holdings", "gauge",
                "Engine blocks believed in, over all workers.",
                (double)x.holdings);
    bt_prom_one(t, "baton_kv_index_bytes", "gauge",
                "Table space of all scopes.", (double)x.bytes);
    bt_prom_one(t, "baton_kv_index_dropped_total", "counter",
                "Blocks not indexed because a table was full.",
                (double)x.dropped);
    bt_prom_one(t, "baton_kv_index_evicted_total", "counter",
                "Blocks given up to make room.", (double)x.evicted);
    bt_prom_one(t, "baton_index_queries_total", "counter",
                "Queries, by any path.", (double)s->counts.queries);
    bt_prom_one(t, "baton_index_refused_total", "counter",
                "Bodies that were not understood or ask for what is not there.",
                (double)s->counts.query_faults);
    bt_prom_one(t, "baton_index_query_blocks_total", "counter",
                "Blocks asked for.", (double)s->counts.query_blocks);
    bt_prom_one(t, "baton_index_hit_blocks_total", "counter",
                "Of them, held by the best rank without a hole.",
                (double)s->counts.hit_blocks);
    bt_prom_one(t, "baton_index_workers", "gauge", "Registrations.",
                (double)s->instance_count);
}

static void write_events(struct bt_text *t, const struct bt_index_service *s)
{
    struct bt_stream_counts c;

    bt_event_plane_counts(s->plane, &c);
    bt_stream_counts_write(&c, t);
}

/* One figure of each stream. */
struct column {
    const char *name, *help;
    double (*get)(const struct bt_index_service *s, const struct instance *in,
                  uint32_t rank);
};

static double get_state(const struct bt_index_service *s,
                        const struct instance *in, uint32_t rank)
{
    (void)s;
    return in->ranks[rank].state;
}

static double get_blocks(const struct bt_index_service *s,
                         const struct instance *in, uint32_t rank)
{
    (void)s;
    return bt_prefix_index_worker_blocks(in->scope->index, in->ranks[rank].row);
}

static double get_lag(const struct bt_index_service *s,
                      const struct instance *in, uint32_t rank)
{
    struct bt_stream_info info;

    return bt_event_plane_stream(s->plane, (uint32_t)(in - s->instances), rank,
                                 &info) == BT_OK
               ? info.lag_s
               : -1;
}

static const struct column columns[] = {
    {"baton_kv_stream_state",
     "0 absent, 1 syncing, 2 exact, 3 partial, 4 degraded, 5 suspect.",
     get_state},
    {"baton_worker_index_blocks", "Blocks it is believed to hold.", get_blocks},
    {"baton_kv_stream_lag_seconds",
     "Arrival less engine's time of the last batch, clock skew included; -1 = "
     "none yet.",
     get_lag},
};

static void put_cell(struct bt_text *t, const struct column *column,
                     const struct instance *in, uint32_t rank, double value)
{
    char number[12], block_size[12];
    const struct bt_prom_pair labels[] = {
        {"worker", in->is.instance},
        {"rank", number},
        {"model", in->is.model},
        {"tenant", in->is.tenant},
        {"block_size", block_size},
        {"additional_salt", in->is.additional_salt},
        {"routing_group", in->is.routing_group},
        {NULL, NULL},
    };

    snprintf(number, sizeof(number), "%u", in->is.first_rank + rank);
    snprintf(block_size, sizeof(block_size), "%u", in->is.block_tokens);
    bt_prom_row(t, column->name, labels, value);
}

static void write_column(struct bt_text *t, const struct bt_index_service *s,
                         const struct column *column)
{
    bt_prom_family(t, column->name, "gauge", column->help);
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        const struct instance *in = &s->instances[i];

        for (uint32_t r = 0; in->scope != NULL && r < in->is.ranks; r++) {
            put_cell(t, column, in, r, column->get(s, in, r));
        }
    }
}

static void write_snapshots(struct bt_text *t, const struct bt_index_service *s)
{
    const struct index_counts *c = &s->counts;

    bt_prom_one(t, "baton_index_snapshots_total", "counter",
                "Snapshots written.", (double)c->saves);
    bt_prom_one(t, "baton_index_snapshot_failures_total", "counter",
                "Snapshots that could not be written.",
                (double)c->save_failures);
    bt_prom_one(t, "baton_index_snapshot_bytes", "gauge", "Size of the last.",
                (double)c->saved.bytes);
    bt_prom_one(t, "baton_index_snapshot_pause_seconds", "gauge",
                "How long the last held the loop up.",
                (double)c->save_pause_ns / 1e9);
    bt_prom_one(t, "baton_index_resumed_blocks", "gauge",
                "Blocks taken from a snapshot at the start.",
                (double)c->resumed_entries);
}

void report_metrics(struct bt_index_service *s, struct bt_httpd_request *req)
{
    size_t ranks = 0;
    struct bt_text t;
    char *buf;

    for (uint32_t i = 0; i < s->config.workers_max; i++)
        if (s->instances[i].scope != NULL)
            ranks += s->instances[i].is.ranks;
    /* Each of five names may have every byte escaped. */
    buf = index_text(&t, HEAD_BYTES + ranks * COLUMNS *
                                          (ROW_BYTES + 10 * BT_INDEX_TEXT_MAX));
    write_index(&t, s);
    write_events(&t, s);
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
        write_column(&t, s, &columns[i]);
    write_snapshots(&t, s);
    index_send(req, BT_PROM_TYPE, buf, &t);
}
