/* Warm restart (index.snapshot): what the index holds and where the streams
 * stand is saved now and then and at the end, and taken up again, worker by
 * worker. Decides when, and what a worker may have back: nothing unless it is
 * the process that it was (its incarnation) and its events can be replayed from
 * where the snapshot was. Layout and checks of the file are orchestrator/
 * index's; that the replayed batches fit is the event plane's to prove.
 *
 * A worker takes up its blocks when it enters service, because only then it is
 * known who it is. Its source begins anew for that, so that nothing that came
 * before mixes with what the snapshot says. All blocks pass through the core's
 * events: the journal has them.
 */
#include "serve_priv.h"

#include "baton/orchestrator/snapshot.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_MAX 256
/* A worker that runs on enters service within seconds; one that starts anew
 * has nothing to take up. */
#define WAIT_S 60.

struct warm {
    struct bt_snapshot *loaded; /* NULL: cold, or all have had theirs */
    bool
        *waits; /* [workers]: has blocks in loaded and was not yet in service */
    double since; /* loop's time of the start, s */
    bool waits_said;
    struct bt_snapshot_trouble trouble;
    struct bt_snapshot_saver *saver;
    ev_timer timer;
};

/* ---- writing ---- */

static void put_entry(void *arg, const struct bt_prefix_entry *entry)
{
    bt_snapshot_entry(arg, entry);
}

static uint32_t ranks_of(const struct bt_worker_config *worker)
{
    return worker->ranks == 0 ? 1 : worker->ranks;
}

static uint32_t block_size_of(const struct bt_serve *serve, uint32_t slot)
{
    return serve->config->models[serve->config->workers[slot].model].block_size;
}

static void put_worker(const struct bt_serve *serve, uint32_t slot,
                       struct bt_snapshot_writer *writer)
{
    const struct bt_worker_config *worker = &serve->config->workers[slot];
    struct bt_stream_mark mark;

    if (bt_event_plane_mark(serve->events, slot, 0, &mark) != BT_OK)
        return; /* no events */
    bt_snapshot_source(writer, &(struct bt_snapshot_source){
                                   .name = worker->name,
                                   .name_bytes = strlen(worker->name),
                                   .block_tokens = block_size_of(serve, slot),
                                   .ranks = ranks_of(worker),
                               });
    for (uint32_t r = 0; r < ranks_of(worker); r++) {
        if (bt_event_plane_mark(serve->events, slot, r, &mark) != BT_OK)
            continue;
        bt_snapshot_rank(writer, r, &mark);
        bt_prefix_index_each(bt_core_index(serve->core),
                             bt_core_row_of(serve->core, slot, r), put_entry,
                             writer);
    }
}

static void fill(void *arg, struct bt_snapshot_writer *writer)
{
    const struct bt_serve *serve = arg;

    for (uint32_t w = 0; w < serve->config->worker_count; w++)
        put_worker(serve, w, writer);
}

static void say_failed(const struct bt_serve *serve, const char *why)
{
    if (bt_snapshot_fails(&serve->warm->trouble, why))
        bt_log(BT_LOG_WARN, "snapshot_failed", "file=%s why=\"%s\"",
               serve->config->index.snapshot, why);
}

static void say_saved(const struct bt_serve *serve, enum bt_status status,
                      const struct bt_snapshot_size *size)
{
    if (status != BT_OK)
        say_failed(serve, bt_snapshot_why(status, size));
    else if (bt_snapshot_recovers(&serve->warm->trouble))
        bt_log(BT_LOG_INFO, "snapshot_recovered",
               "file=%s bytes=%llu entries=%llu", serve->config->index.snapshot,
               (unsigned long long)size->bytes,
               (unsigned long long)size->entries);
    else
        bt_log(BT_LOG_DEBUG, "snapshot_saved", "bytes=%llu entries=%llu",
               (unsigned long long)size->bytes,
               (unsigned long long)size->entries);
}

static void on_saved(void *arg, enum bt_status status,
                     const struct bt_snapshot_size *size, int64_t pause_ns)
{
    struct bt_serve *serve = arg;

    (void)pause_ns;
    say_saved(serve, status, size);
    bt_snapshot_saver_stop(serve->warm->saver);
    serve->warm->saver = NULL;
}

/* Frees the file's content once nobody waits for it. */
static void let_go(struct bt_serve *serve)
{
    struct warm *warm = serve->warm;

    for (uint32_t w = 0; w < serve->config->worker_count; w++)
        if (warm->waits[w])
            return;
    if (warm->loaded != NULL)
        bt_snapshot_free(warm->loaded);
    warm->loaded = NULL;
}

/* Those who have not come by now get nothing, and what is known now is saved
 * again. */
static void give_up(struct bt_serve *serve)
{
    memset(serve->warm->waits, 0,
           serve->config->worker_count * sizeof(*serve->warm->waits));
    let_go(serve);
}

/* Nothing is saved for now, and for whom. */
static void say_waits(struct bt_serve *serve)
{
    struct warm *warm = serve->warm;
    uint32_t count = 0, first = 0;

    for (uint32_t w = serve->config->worker_count; w > 0; w--) {
        if (!warm->waits[w - 1])
            continue;
        first = w - 1;
        count++;
    }
    if (warm->waits_said || count == 0)
        return;
    warm->waits_said = true;
    bt_log(
        BT_LOG_INFO, "snapshot_waits",
        "file=%s workers=%u first=%s why=\"not yet in service again; what the "
        "file has of them is kept\"",
        serve->config->index.snapshot, count, serve_worker_name(serve, first));
}

static void on_due(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_serve *serve = timer->data;
    const struct bt_snapshot_job job = {.path = serve->config->index.snapshot,
                                        .fill = fill,
                                        .done = on_saved,
                                        .arg = serve};
    char error[ERROR_MAX];

    (void)events;
    if (ev_now(loop) - serve->warm->since > WAIT_S)
        give_up(serve);
    /* Half of it would not survive the next restart. */
    if (serve->warm->loaded != NULL)
        say_waits(serve);
    if (serve->warm->saver != NULL || serve->warm->loaded != NULL)
        return;
    if (bt_snapshot_save(loop, &job, &serve->warm->saver, error,
                         sizeof(error)) != BT_OK)
        say_failed(serve, error);
}

static void save_now(struct bt_serve *serve)
{
    struct bt_snapshot_writer *writer = NULL;
    struct bt_snapshot_size size = {0};
    char error[ERROR_MAX];
    enum bt_status status;

    status = bt_snapshot_open(serve->config->index.snapshot, &writer, error,
                              sizeof(error));
    if (status != BT_OK) {
        say_failed(serve, error);
        return;
    }
    fill(serve, writer);
    status = bt_snapshot_commit(writer, &size);
    say_saved(serve, status, &size);
}

/* ---- reading ---- */

static void refuse(const struct bt_serve *serve, const char *why)
{
    const char *path = serve->config->index.snapshot;
    bool kept = bt_snapshot_set_aside(path);

    bt_log(BT_LOG_ERROR, "snapshot_refused",
           "file=%s why=\"%s\" kept=%s%s start=cold", path, why,
           kept ? path : "no", kept ? ".bad" : "");
}

/* False: the configuration is another one than the file's. */
static bool fits(struct bt_serve *serve, char *why, size_t size)
{
    struct warm *warm = serve->warm;
    struct bt_snapshot_source source;
    uint32_t i;

    for (uint32_t w = 0; w < serve->config->worker_count; w++) {
        const struct bt_worker_config *worker = &serve->config->workers[w];

        if (bt_snapshot_find(warm->loaded, worker->name, &i) != BT_OK)
            continue;
        bt_snapshot_at(warm->loaded, i, &source);
        if (source.block_tokens != block_size_of(serve, w) ||
            source.ranks != ranks_of(worker)) {
            snprintf(why, size,
                     "worker %.64s: block size %u and %u ranks, the "
                     "configuration says %u and %u",
                     worker->name, source.block_tokens, source.ranks,
                     block_size_of(serve, w), ranks_of(worker));
            return false;
        }
        warm->waits[w] = worker->replay != NULL;
    }
    return true;
}

static void load(struct bt_serve *serve)
{
    const char *path = serve->config->index.snapshot;
    struct warm *warm = serve->warm;
    char why[ERROR_MAX];
    enum bt_status status = bt_snapshot_load(path, BT_SNAPSHOT_BYTES_MAX,
                                             &warm->loaded, why, sizeof(why));

    if (status == BT_NOT_FOUND)
        return;
    if (status != BT_OK) {
        refuse(serve, why);
        return;
    }
    bt_log(BT_LOG_INFO, "snapshot_loaded", "file=%s sources=%u entries=%llu",
           path, bt_snapshot_count(warm->loaded),
           (unsigned long long)bt_snapshot_entries(warm->loaded));
    if (!fits(serve, why, sizeof(why))) {
        refuse(serve, why);
        give_up(serve);
    }
    let_go(serve);
}

struct resuming {
    struct bt_serve *serve;
    uint32_t slot;
    uint64_t incarnation, blocks, lost;
    bool same; /* all its marks are of this incarnation */
};

static void on_look_store(void *arg, uint32_t rank,
                          const struct bt_kv_store *store)
{
    (void)arg;
    (void)rank;
    (void)store;
}

static void on_look_rank(void *arg, uint32_t rank,
                         const struct bt_stream_mark *mark)
{
    struct resuming *r = arg;

    (void)rank;
    if (mark->started && mark->incarnation != r->incarnation)
        r->same = false;
}

static void on_store(void *arg, uint32_t rank, const struct bt_kv_store *store)
{
    struct resuming *r = arg;
    struct bt_event event = {.type = BT_EV_KV_STORE};

    event.u.kv_store = (struct bt_ev_kv_store){
        .worker = r->slot, .rank = rank, .store = store};
    if (serve_step(r->serve, &event) == BT_OK)
        r->blocks += store->hash_count;
    else
        r->lost += store->hash_count;
}

static void clear(struct bt_serve *serve, uint32_t slot, uint32_t rank,
                  bool all)
{
    struct bt_event event = {.type = BT_EV_KV_CLEAR};

    event.u.kv_clear =
        (struct bt_ev_kv_clear){.worker = slot, .rank = rank, .all_ranks = all};
    serve_step(serve, &event);
}

static void on_rank(void *arg, uint32_t rank, const struct bt_stream_mark *mark)
{
    struct resuming *r = arg;

    if (bt_event_plane_resume(r->serve->events, r->slot, rank, mark) != BT_OK)
        clear(r->serve, r->slot, rank, false);
}

static void take_up(struct resuming *r, uint32_t i)
{
    const struct bt_snapshot_visitor look = {
        .store = on_look_store, .rank = on_look_rank, .arg = r};
    const struct bt_snapshot_visitor apply = {
        .store = on_store, .rank = on_rank, .arg = r};
    struct bt_serve *serve = r->serve;
    const char *name = serve_worker_name(serve, r->slot);

    r->same = true;
    bt_snapshot_visit(serve->warm->loaded, i, &look);
    if (!r->same) {
        bt_log(BT_LOG_INFO, "snapshot_stale",
               "worker=%s why=\"another process than it was\"", name);
        return;
    }
    bt_event_plane_remove(serve->events, r->slot);
    clear(serve, r->slot, 0, true);
    if (event_plane_add_worker(serve, r->slot) != BT_OK)
        return;
    bt_snapshot_visit(serve->warm->loaded, i, &apply);
    bt_log(BT_LOG_INFO, "snapshot_resumed", "worker=%s blocks=%llu lost=%llu",
           name, (unsigned long long)r->blocks, (unsigned long long)r->lost);
}

void warm_enter(struct bt_serve *serve, uint32_t slot, uint64_t incarnation)
{
    struct resuming r = {
        .serve = serve, .slot = slot, .incarnation = incarnation};
    struct warm *warm = serve->warm;
    uint32_t i;

    if (warm == NULL || warm->loaded == NULL || !warm->waits[slot])
        return;
    warm->waits[slot] = false;
    if (bt_snapshot_find(warm->loaded, serve->config->workers[slot].name, &i) ==
        BT_OK)
        take_up(&r, i);
    let_go(serve);
}

/* ---- life ---- */

enum bt_status warm_start(struct bt_serve *serve)
{
    double every = (double)serve->config->index.snapshot_interval_ns / 1e9;
    struct warm *warm;

    if (serve->config->index.snapshot == NULL)
        return BT_OK;
    warm = calloc(1, sizeof(*warm));
    if (warm == NULL)
        return BT_NO_MEMORY;
    serve->warm = warm;
    ev_timer_init(&warm->timer, on_due, every, every);
    warm->timer.data = serve;
    warm->since = ev_now(serve->loop);
    warm->waits =
        calloc((size_t)serve->config->worker_count + 1, sizeof(*warm->waits));
    if (warm->waits == NULL)
        return BT_NO_MEMORY;
    load(serve);
    if (every > 0)
        ev_timer_start(serve->loop, &warm->timer);
    return BT_OK;
}

void warm_stop(struct bt_serve *serve)
{
    struct warm *warm = serve->warm;

    if (warm == NULL)
        return;
    ev_timer_stop(serve->loop, &warm->timer);
    if (warm->saver != NULL)
        bt_snapshot_saver_stop(warm->saver);
    /* While somebody waits for his blocks, the file that is there knows more.
     */
    if (warm->waits != NULL && warm->loaded != NULL)
        say_waits(serve);
    if (warm->waits != NULL && warm->loaded == NULL)
        save_now(serve);
    if (warm->loaded != NULL)
        bt_snapshot_free(warm->loaded);
    free(warm->waits);
    free(warm);
    serve->warm = NULL;
}
