/* Prometheus text of the service. What means the same as in `baton serve` has
 * its name (METRICS.md). Label values are names from registrations, escaped;
 * nothing of a query becomes a label.
 */
#include "service_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 32768u
#define ROW_BYTES  1024u
#define COLUMNS    4u /* per stream */

static void head(struct bt_text *t, const char *name, const char *type,
                 const char *help)
{
    bt_text_str(t, "# HELP ");
    bt_text_str(t, name);
    bt_text_str(t, " ");
    bt_text_str(t, help);
    bt_text_str(t, "\n# TYPE ");
    bt_text_str(t, name);
    bt_text_str(t, " ");
    bt_text_str(t, type);
    bt_text_str(t, "\n");
}

static void value(struct bt_text *t, double number)
{
    char digits[48];

    snprintf(digits, sizeof(digits),
             floor(number) == number && fabs(number) < 1e15 ? " %.0f\n"
                                                            : " %.9g\n",
             number);
    bt_text_str(t, digits);
}

static void one(struct bt_text *t, const char *name, const char *type,
                const char *help, double number)
{
    head(t, name, type, help);
    bt_text_str(t, name);
    value(t, number);
}

static void label(struct bt_text *t, const char *name, const char *text)
{
    bt_text_str(t, name);
    bt_text_str(t, "=\"");
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            bt_text_str(t, "\\");
        bt_text_add(t, text, 1);
    }
    bt_text_str(t, "\"");
}

static void labelled(struct bt_text *t, const char *name, const char *key,
                     const char *word, uint64_t number)
{
    bt_text_str(t, name);
    bt_text_str(t, "{");
    label(t, key, word);
    bt_text_str(t, "}");
    value(t, (double)number);
}

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
    one(t, "baton_kv_index_blocks", "gauge", "Distinct block keys known.",
        (double)x.blocks);
    one(t, "baton_kv_index_holdings", "gauge",
        "Engine blocks believed in, over all workers.", (double)x.holdings);
    one(t, "baton_kv_index_bytes", "gauge", "Table space of all scopes.",
        (double)x.bytes);
    one(t, "baton_kv_index_dropped_total", "counter",
        "Blocks not indexed because a table was full.", (double)x.dropped);
    one(t, "baton_kv_index_evicted_total", "counter",
        "Blocks given up to make room.", (double)x.evicted);
    one(t, "baton_index_queries_total", "counter", "Queries, by any path.",
        (double)s->counts.queries);
    one(t, "baton_index_refused_total", "counter",
        "Bodies that were not understood or ask for what is not there.",
        (double)s->counts.query_faults);
    one(t, "baton_index_query_blocks_total", "counter", "Blocks asked for.",
        (double)s->counts.query_blocks);
    one(t, "baton_index_hit_blocks_total", "counter",
        "Of them, held by the best rank without a hole.",
        (double)s->counts.hit_blocks);
    one(t, "baton_index_workers", "gauge", "Registrations.",
        (double)s->instance_count);
}

static void write_events(struct bt_text *t, const struct bt_index_service *s)
{
    struct bt_stream_counts c;

    bt_event_plane_counts(s->plane, &c);
    head(t, "baton_kv_events_total", "counter", "KV events by type.");
    labelled(t, "baton_kv_events_total", "type", "stored", c.events[0]);
    labelled(t, "baton_kv_events_total", "type", "removed", c.events[1]);
    labelled(t, "baton_kv_events_total", "type", "cleared", c.events[2]);
    labelled(t, "baton_kv_events_total", "type", "ignored", c.events[3]);
    head(t, "baton_kv_event_errors_total", "counter",
         "Messages or events that could not be used.");
    labelled(t, "baton_kv_event_errors_total", "reason", "frames",
             c.frame_errors);
    labelled(t, "baton_kv_event_errors_total", "reason", "sequence",
             c.sequence_errors);
    labelled(t, "baton_kv_event_errors_total", "reason", "msgpack",
             c.batch_errors);
    labelled(t, "baton_kv_event_errors_total", "reason", "event",
             c.event_errors);
    labelled(t, "baton_kv_event_errors_total", "reason", "unknown_parent",
             c.unknown_parents);
    one(t, "baton_kv_event_batches_total", "counter", "Batches applied.",
        (double)c.batches);
    one(t, "baton_kv_event_gaps_total", "counter", "Holes noticed.",
        (double)c.gaps);
    one(t, "baton_kv_event_missing_total", "counter",
        "Batches that the holes spanned.", (double)c.missing);
    one(t, "baton_kv_event_duplicates_total", "counter",
        "Batches that came twice.", (double)c.duplicates);
    one(t, "baton_kv_event_dropped_total", "counter",
        "Live batches not held during a replay.", (double)c.held_dropped);
    one(t, "baton_kv_index_resets_total", "counter",
        "Times a rank's blocks were forgotten.", (double)c.resets);
    head(t, "baton_kv_event_replays_total", "counter", "Replays by outcome.");
    labelled(t, "baton_kv_event_replays_total", "outcome", "complete",
             c.replays_complete);
    labelled(t, "baton_kv_event_replays_total", "outcome", "partial",
             c.replays_partial);
    labelled(t, "baton_kv_event_replays_total", "outcome", "timeout",
             c.replays_failed);
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

static void write_column(struct bt_text *t, const struct bt_index_service *s,
                         const struct column *column)
{
    head(t, column->name, "gauge", column->help);
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        const struct instance *in = &s->instances[i];

        for (uint32_t r = 0; in->scope != NULL && r < in->is.ranks; r++) {
            bt_text_str(t, column->name);
            bt_text_str(t, "{");
            label(t, "worker", in->is.instance);
            bt_text_str(t, ",rank=\"");
            bt_text_u64(t, in->is.first_rank + r);
            bt_text_str(t, "\",");
            label(t, "model", in->is.model);
            bt_text_str(t, ",");
            label(t, "tenant", in->is.tenant);
            bt_text_str(t, ",block_size=\"");
            bt_text_u64(t, in->is.block_tokens);
            bt_text_str(t, "\",");
            label(t, "additional_salt", in->is.additional_salt);
            bt_text_str(t, ",");
            label(t, "routing_group", in->is.routing_group);
            bt_text_str(t, "}");
            value(t, column->get(s, in, r));
        }
    }
}

static void write_snapshots(struct bt_text *t, const struct bt_index_service *s)
{
    const struct index_counts *c = &s->counts;

    one(t, "baton_index_snapshots_total", "counter", "Snapshots written.",
        (double)c->saves);
    one(t, "baton_index_snapshot_failures_total", "counter",
        "Snapshots that could not be written.", (double)c->save_failures);
    one(t, "baton_index_snapshot_bytes", "gauge", "Size of the last.",
        (double)c->saved.bytes);
    one(t, "baton_index_snapshot_pause_seconds", "gauge",
        "How long the last held the loop up.", (double)c->save_pause_ns / 1e9);
    one(t, "baton_index_resumed_blocks", "gauge",
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
    index_send(req, "text/plain; version=0.0.4", buf, &t);
}
