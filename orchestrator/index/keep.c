/* Snapshots of the service: what is written for each instance (its streams'
 * marks, its entries, and the registration itself when it came by POST), when,
 * and how they come back. A source's name is its scope and identity, so that
 * blocks can only return to the instance, model and block size they were of.
 */
#include "service_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATOR "\x1f" /* names have no control characters */

static size_t source_name(const struct bt_index_instance *is,
                          char out[BT_SNAPSHOT_NAME_MAX])
{
    int n =
        snprintf(out, BT_SNAPSHOT_NAME_MAX,
                 "%s" SEPARATOR "%u" SEPARATOR "%s" SEPARATOR "%s" SEPARATOR
                 "%s" SEPARATOR "%s" SEPARATOR "%u",
                 is->model, is->block_tokens, is->tenant, is->additional_salt,
                 is->routing_group, is->instance, is->first_rank);

    return (size_t)n;
}

/* ---- writing ---- */

static void put_entry(void *arg, const struct bt_prefix_entry *entry)
{
    bt_snapshot_entry(arg, entry);
}

static void put_instance(const struct bt_index_service *s,
                         const struct instance *in,
                         struct bt_snapshot_writer *writer)
{
    char name[BT_SNAPSHOT_NAME_MAX], note[BT_SNAPSHOT_NOTE_MAX];
    uint32_t source = (uint32_t)(in - s->instances);
    struct bt_stream_mark mark;
    struct bt_text t;

    bt_text_init(&t, note, sizeof(note));
    if (!in->from_file) {
        write_instance(&t, &in->is);
        bt_text_str(&t, "}");
    }
    bt_snapshot_source(writer, &(struct bt_snapshot_source){
                                   .name = name,
                                   .name_bytes = source_name(&in->is, name),
                                   .note = note,
                                   .note_bytes = t.overflow ? 0 : t.used,
                                   .block_tokens = in->is.block_tokens,
                                   .ranks = in->is.ranks,
                               });
    for (uint32_t r = 0; r < in->is.ranks; r++) {
        if (bt_event_plane_mark(s->plane, source, r, &mark) != BT_OK)
            continue;
        bt_snapshot_rank(writer, r, &mark);
        bt_prefix_index_each(in->scope->index, in->ranks[r].row, put_entry,
                             writer);
    }
}

static void fill(void *arg, struct bt_snapshot_writer *writer)
{
    const struct bt_index_service *s = arg;

    for (uint32_t i = 0; i < s->config.workers_max; i++)
        if (s->instances[i].scope != NULL)
            put_instance(s, &s->instances[i], writer);
}

static void note_failed(struct bt_index_service *s, const char *why)
{
    s->counts.save_failures++;
    if (bt_snapshot_fails(&s->save_trouble, why))
        index_say(s, 1, "snapshot_failed", "file=%s why=\"%s\"",
                  s->config.snapshot, why);
}

static void note_saved(struct bt_index_service *s, enum bt_status status,
                       const struct bt_snapshot_size *size)
{
    if (status != BT_OK) {
        note_failed(s, bt_snapshot_why(status, size));
        return;
    }
    if (bt_snapshot_recovers(&s->save_trouble))
        index_say(s, 2, "snapshot_recovered", "file=%s bytes=%llu entries=%llu",
                  s->config.snapshot, (unsigned long long)size->bytes,
                  (unsigned long long)size->entries);
    s->counts.saves++;
    s->counts.saved = *size;
}

static void on_saved(void *arg, enum bt_status status,
                     const struct bt_snapshot_size *size, int64_t pause_ns)
{
    struct bt_index_service *s = arg;

    s->counts.save_pause_ns = (uint64_t)pause_ns;
    note_saved(s, status, size);
    bt_snapshot_saver_stop(s->saver);
    s->saver = NULL;
}

static void on_due(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_index_service *s = timer->data;
    const struct bt_snapshot_job job = {
        .path = s->config.snapshot, .fill = fill, .done = on_saved, .arg = s};
    char error[256];

    (void)events;
    if (s->saver != NULL)
        return; /* a slow disk; the next turn will do */
    if (bt_snapshot_save(loop, &job, &s->saver, error, sizeof(error)) != BT_OK)
        note_failed(s, error);
}

enum bt_status bt_index_service_save(struct bt_index_service *s)
{
    struct bt_snapshot_writer *writer = NULL;
    struct bt_snapshot_size size = {0};
    char error[256];
    enum bt_status status;

    if (s->config.snapshot == NULL)
        return BT_OK;
    if (s->saver != NULL)
        bt_snapshot_saver_stop(s->saver);
    s->saver = NULL;
    status =
        bt_snapshot_open(s->config.snapshot, &writer, error, sizeof(error));
    if (status != BT_OK) {
        note_failed(s, error);
        return status;
    }
    fill(s, writer);
    status = bt_snapshot_commit(writer, &size);
    note_saved(s, status, &size);
    return status;
}

/* ---- reading ---- */

static void refuse(const struct bt_index_service *s, const char *path,
                   const char *why)
{
    bool kept = bt_snapshot_set_aside(path);

    index_say(s, 0, "snapshot_refused",
              "file=%s why=\"%s\" kept=%s%s start=cold lost=\"all blocks, and "
              "the registrations that came by POST\"",
              path, why, kept ? path : "no", kept ? ".bad" : "");
}

void keep_load(struct bt_index_service *s)
{
    const char *path = s->config.snapshot;
    char error[256];
    enum bt_status status;

    if (path == NULL)
        return;
    status = bt_snapshot_load(path, BT_SNAPSHOT_BYTES_MAX, &s->warm, error,
                              sizeof(error));
    if (status == BT_OK)
        index_say(s, 2, "snapshot_loaded", "file=%s sources=%u entries=%llu",
                  path, bt_snapshot_count(s->warm),
                  (unsigned long long)bt_snapshot_entries(s->warm));
    else if (status != BT_NOT_FOUND)
        refuse(s, path, error);
}

struct resuming {
    struct bt_index_service *s;
    struct instance *in;
    uint64_t entries, lost;
};

static void on_warm_store(void *arg, uint32_t rank,
                          const struct bt_kv_store *store)
{
    struct resuming *r = arg;

    if (bt_prefix_index_store(r->in->scope->index, r->in->ranks[rank].row, 0,
                              store) == BT_OK)
        r->entries += store->hash_count;
    else
        r->lost += store->hash_count;
}

static void on_warm_rank(void *arg, uint32_t rank,
                         const struct bt_stream_mark *mark)
{
    struct resuming *r = arg;
    uint32_t source = (uint32_t)(r->in - r->s->instances);

    if (bt_event_plane_resume(r->s->plane, source, rank, mark) != BT_OK)
        bt_prefix_index_clear(r->in->scope->index, r->in->ranks[rank].row, 0);
}

bool keep_resume(struct bt_index_service *s, struct instance *in)
{
    struct resuming r = {.s = s, .in = in};
    const struct bt_snapshot_visitor visitor = {
        .store = on_warm_store, .rank = on_warm_rank, .arg = &r};
    char name[BT_SNAPSHOT_NAME_MAX];
    struct bt_snapshot_source source;
    uint32_t i;

    (void)source_name(&in->is, name);
    if (s->warm == NULL || bt_snapshot_find(s->warm, name, &i) != BT_OK)
        return false;
    bt_snapshot_at(s->warm, i, &source);
    if (source.ranks != in->is.ranks ||
        source.block_tokens != in->is.block_tokens)
        return false;
    bt_snapshot_visit(s->warm, i, &visitor);
    s->counts.resumed_sources++;
    s->counts.resumed_entries += r.entries;
    index_say(s, 2, "snapshot_resumed", "worker=%s blocks=%llu lost=%llu",
              in->is.instance, (unsigned long long)r.entries,
              (unsigned long long)r.lost);
    return true;
}

void keep_register_again(struct bt_index_service *s)
{
    struct bt_snapshot_source source;
    struct bt_index_instance in;
    struct bt_index_fault says;
    char error[256] = "";

    for (uint32_t i = 0; s->warm != NULL && i < bt_snapshot_count(s->warm);
         i++) {
        bt_snapshot_at(s->warm, i, &source);
        if (source.note_bytes == 0)
            continue;
        if (read_instance(source.note, source.note_bytes, &in, &says) != NULL)
            index_say(s, 1, "snapshot_source", "number=%u why=\"unreadable\"",
                      i);
        else if (member_add(s, &in, false, error, sizeof(error)) != BT_OK)
            index_say(s, 1, "snapshot_source", "worker=%s why=\"%s\"",
                      in.instance, error);
    }
    if (s->warm != NULL)
        bt_snapshot_free(s->warm);
    s->warm = NULL;
}

void keep_start(struct bt_index_service *s)
{
    double every = (double)s->config.snapshot_interval_ns / 1e9;

    ev_timer_init(&s->save_timer, on_due, every, every);
    s->save_timer.data = s;
    if (s->config.snapshot != NULL && every > 0)
        ev_timer_start(s->loop, &s->save_timer);
}

void keep_stop(struct bt_index_service *s)
{
    ev_timer_stop(s->loop, &s->save_timer);
    if (s->saver != NULL)
        bt_snapshot_saver_stop(s->saver);
    if (s->warm != NULL)
        bt_snapshot_free(s->warm);
    s->saver = NULL;
    s->warm = NULL;
}
