/* What the service says about itself: workers, dump, health, stats. Metrics
 * are metrics.c's. A dump names engine hashes and own keys, never tokens; both
 * as signed numbers, which every JSON reader holds and /query_by_hash takes.
 */
#include "service_impl.h"

#include <stdlib.h>
#include <string.h>

#define DUMP_DEFAULT 10000ul
#define DUMP_MAX     100000ul
#define ENTRY_BYTES  160u /* most that one entry of a dump takes */
#define FIELDS_BYTES 1024u

void field_u64(struct bt_text *t, const char *name, uint64_t value)
{
    bt_text_str(t, ",\"");
    bt_text_str(t, name);
    bt_text_str(t, "\":");
    bt_text_u64(t, value);
}

void field_str(struct bt_text *t, const char *name, const char *value)
{
    bt_text_str(t, ",\"");
    bt_text_str(t, name);
    bt_text_str(t, "\":");
    bt_text_quoted(t, value, strlen(value));
}

void stats_add(struct bt_prefix_index_stats *sum,
               const struct bt_prefix_index_stats *more, bool alive)
{
    sum->stores += more->stores;
    sum->removes += more->removes;
    sum->clears += more->clears;
    sum->unknown_removes += more->unknown_removes;
    sum->unknown_parents += more->unknown_parents;
    sum->malformed += more->malformed;
    sum->dropped += more->dropped;
    sum->evicted += more->evicted;
    sum->collisions += more->collisions;
    if (!alive)
        return;
    sum->blocks += more->blocks;
    sum->holdings += more->holdings;
    sum->shared += more->shared;
    sum->namespaces += more->namespaces;
    sum->bytes += more->bytes;
}

/* ---- workers ---- */

static void add_rank(struct bt_text *t, const struct bt_index_service *s,
                     const struct instance *in, uint32_t r)
{
    struct bt_stream_info info;
    const struct rank *rank = &in->ranks[r];

    bt_text_str(t, "{\"rank\":");
    bt_text_u64(t, in->is.first_rank + r);
    field_str(t, "state", bt_stream_state_name(rank->state));
    field_str(t, "cause", bt_stream_cause_name(rank->cause));
    field_u64(t, "blocks",
              bt_prefix_index_worker_blocks(in->scope->index, rank->row));
    field_u64(t, "wrong_block_size", rank->wrong_size);
    if (bt_event_plane_stream(s->plane, (uint32_t)(in - s->instances), r,
                              &info) == BT_OK) {
        field_u64(t, "next", info.next);
        field_u64(t, "batches", info.counts.batches);
        field_u64(t, "gaps", info.counts.gaps);
        field_u64(t, "missing", info.counts.missing);
        field_u64(t, "resets", info.counts.resets);
        bt_text_str(t, ",\"lag_s\":");
        bt_text_fixed(t, info.lag_s, 6);
    }
    bt_text_str(t, "}");
}

static void add_worker(struct bt_text *t, const struct bt_index_service *s,
                       const struct instance *in)
{
    struct bt_prefix_index_stats stats; /* of its scope */

    write_instance(t, &in->is);
    bt_prefix_index_stats_get(in->scope->index, &stats);
    field_u64(t, "evicted", stats.evicted);
    field_u64(t, "dropped", stats.dropped);
    bt_text_str(t, ",\"streams\":[");
    for (uint32_t r = 0; r < in->is.ranks; r++) {
        if (r > 0)
            bt_text_str(t, ",");
        add_rank(t, s, in, r);
    }
    bt_text_str(t, "]}");
}

void report_workers(struct bt_index_service *s, struct bt_httpd_request *req)
{
    size_t size = 64;
    bool first = true;
    struct bt_text t;
    char *buf;

    for (uint32_t i = 0; i < s->config.workers_max; i++)
        if (s->instances[i].scope != NULL)
            size += BT_SNAPSHOT_NOTE_MAX +
                    (size_t)s->instances[i].is.ranks * FIELDS_BYTES;
    buf = index_text(&t, size);
    bt_text_str(&t, "[");
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        if (s->instances[i].scope == NULL)
            continue;
        if (!first)
            bt_text_str(&t, ",");
        add_worker(&t, s, &s->instances[i]);
        first = false;
    }
    bt_text_str(&t, "]");
    index_send(req, "application/json", buf, &t);
}

/* ---- dump ---- */

struct dump {
    struct bt_text *t;
    unsigned long left;
    bool first, cut;
};

static void dump_entry(void *arg, const struct bt_prefix_entry *entry)
{
    struct dump *d = arg;

    if (d->left == 0) {
        d->cut = true;
        return;
    }
    d->left--;
    bt_text_str(d->t, d->first ? "{\"hash\":" : ",{\"hash\":");
    d->first = false;
    bt_text_i64(d->t, (int64_t)entry->hash);
    if (entry->keyed) {
        bt_text_str(d->t, ",\"seq_hash\":");
        bt_text_i64(d->t, (int64_t)entry->key);
    }
    bt_text_str(d->t, ",\"copies\":[");
    for (int i = 0; i < BT_TIERS; i++) {
        if (i > 0)
            bt_text_str(d->t, ",");
        bt_text_u64(d->t, entry->copies[i]);
    }
    bt_text_str(d->t, "]}");
}

static void dump_rank(struct dump *d, const struct instance *in, uint32_t r)
{
    write_instance(d->t, &in->is);
    field_u64(d->t, "rank", in->is.first_rank + r);
    field_str(d->t, "state", bt_stream_state_name(in->ranks[r].state));
    field_u64(
        d->t, "blocks",
        bt_prefix_index_worker_blocks(in->scope->index, in->ranks[r].row));
    bt_text_str(d->t, ",\"entries\":[");
    d->first = true;
    bt_prefix_index_each(in->scope->index, in->ranks[r].row, dump_entry, d);
    bt_text_str(d->t, "]}");
}

static size_t dump_bytes(const struct bt_index_service *s, unsigned long limit)
{
    size_t size = 256 + (size_t)limit * ENTRY_BYTES;

    for (uint32_t i = 0; i < s->config.workers_max; i++)
        if (s->instances[i].scope != NULL)
            size += (size_t)s->instances[i].is.ranks *
                    (BT_SNAPSHOT_NOTE_MAX + FIELDS_BYTES);
    return size;
}

void report_dump(struct bt_index_service *s, struct bt_httpd_request *req)
{
    const char *given = bt_httpd_query(req, "limit");
    unsigned long limit =
        given == NULL ? DUMP_DEFAULT : strtoul(given, NULL, 10);
    struct dump d = {0};
    struct bt_text t;
    bool first = true;
    char *buf;

    d.t = &t;
    d.left = limit < DUMP_MAX ? limit : DUMP_MAX;
    buf = index_text(&t, dump_bytes(s, d.left));
    bt_text_str(&t, "{\"workers\":[");
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        const struct instance *in = &s->instances[i];

        for (uint32_t r = 0; in->scope != NULL && r < in->is.ranks; r++) {
            if (!first)
                bt_text_str(&t, ",");
            first = false;
            dump_rank(&d, in, r);
        }
    }
    bt_text_str(&t, "],\"truncated\":");
    bt_text_str(&t, d.cut ? "true}" : "false}");
    index_send(req, "application/json", buf, &t);
}

/* ---- health and stats ---- */

void report_health(struct bt_index_service *s, struct bt_httpd_request *req)
{
    uint32_t streams = 0, exact = 0;
    char buf[256];
    struct bt_text t;

    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        const struct instance *in = &s->instances[i];

        for (uint32_t r = 0; in->scope != NULL && r < in->is.ranks; r++) {
            streams++;
            exact += in->ranks[r].state == BT_STREAM_EXACT;
        }
    }
    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"status\":\"ok\"");
    field_u64(&t, "workers", s->instance_count);
    field_u64(&t, "streams", streams);
    field_u64(&t, "exact", exact);
    bt_text_str(&t, "}");
    index_reply(req, 200, buf, t.used);
}

static void add_stats(struct bt_text *t, const struct bt_prefix_index_stats *x)
{
    field_u64(t, "blocks", x->blocks);
    field_u64(t, "holdings", x->holdings);
    field_u64(t, "stores", x->stores);
    field_u64(t, "removes", x->removes);
    field_u64(t, "clears", x->clears);
    field_u64(t, "unknown_removes", x->unknown_removes);
    field_u64(t, "unknown_parents", x->unknown_parents);
    field_u64(t, "malformed", x->malformed);
    field_u64(t, "dropped", x->dropped);
    field_u64(t, "evicted", x->evicted);
    field_u64(t, "collisions", x->collisions);
    field_u64(t, "namespaces", x->namespaces);
    field_u64(t, "bytes", x->bytes);
}

static void add_scope(struct bt_text *t, const struct scope *scope)
{
    struct bt_prefix_index_stats stats;

    bt_prefix_index_stats_get(scope->index, &stats);
    bt_text_str(t, "{\"model_name\":");
    bt_text_quoted(t, scope->like.model, strlen(scope->like.model));
    field_u64(t, "block_size", scope->like.block_tokens);
    field_str(t, "tenant_id", scope->like.tenant);
    field_str(t, "routing_group", scope->like.routing_group);
    field_u64(t, "ranks", scope->row_count);
    add_stats(t, &stats);
    bt_text_str(t, "}");
}

void report_stats(struct bt_index_service *s, struct bt_httpd_request *req)
{
    const struct index_counts *c = &s->counts;
    struct bt_text t;
    bool first = true;
    char *buf = index_text(&t, FIELDS_BYTES + (size_t)s->config.scopes_max *
                                                  (8 * BT_INDEX_TEXT_MAX * 3));

    bt_text_str(&t, "{\"queries\":");
    bt_text_u64(&t, c->queries);
    field_u64(&t, "query_faults", c->query_faults);
    field_u64(&t, "query_blocks", c->query_blocks);
    field_u64(&t, "hit_blocks", c->hit_blocks);
    field_u64(&t, "workers", s->instance_count);
    field_u64(&t, "snapshots", c->saves);
    field_u64(&t, "snapshot_failures", c->save_failures);
    field_u64(&t, "snapshot_bytes", c->saved.bytes);
    field_u64(&t, "snapshot_entries", c->saved.entries);
    field_u64(&t, "snapshot_pause_us", c->save_pause_ns / 1000);
    field_u64(&t, "resumed_entries", c->resumed_entries);
    bt_text_str(&t, ",\"scopes\":[");
    for (uint32_t i = 0; i < s->config.scopes_max; i++) {
        if (!s->scopes[i].used)
            continue;
        if (!first)
            bt_text_str(&t, ",");
        first = false;
        add_scope(&t, &s->scopes[i]);
    }
    bt_text_str(&t, "]}");
    index_send(req, "application/json", buf, &t);
}
