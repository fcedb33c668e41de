/* The server's side of the event plane: workers with events become its sources
 * (slot = number), and what it tells becomes events of the core. Decides
 * nothing about a stream: order, replays and what counts are orchestrator/
 * events'. A worker whose events show another block size than the model's is
 * reported to workers.c, which refuses it.
 */
#include "serve_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_MAX 192
/* Without its event connection a worker's blocks are believed for so long. */
#define GONE_NS INT64_C(30000000000)

/* ---- what the plane tells ---- */

static enum bt_status on_store(void *arg, uint32_t source, uint32_t rank,
                               const struct bt_kv_store *store)
{
    struct bt_event event = {.type = BT_EV_KV_STORE};

    event.u.kv_store =
        (struct bt_ev_kv_store){.worker = source, .rank = rank, .store = store};
    return serve_step(arg, &event);
}

static void on_remove(void *arg, uint32_t source, uint32_t rank,
                      const struct bt_ev_kv_remove *remove)
{
    struct bt_event event = {.type = BT_EV_KV_REMOVE};

    event.u.kv_remove = *remove;
    event.u.kv_remove.worker = source;
    event.u.kv_remove.rank = rank;
    serve_step(arg, &event);
}

static void on_clear(void *arg, uint32_t source, uint32_t rank,
                     const struct bt_ev_kv_clear *clear)
{
    struct bt_event event = {.type = BT_EV_KV_CLEAR};

    event.u.kv_clear = *clear;
    event.u.kv_clear.worker = source;
    event.u.kv_clear.rank = rank;
    serve_step(arg, &event);
}

static void on_counting(void *arg, uint32_t source, uint32_t rank,
                        enum bt_kv_counting counting)
{
    struct bt_event event = {.type = BT_EV_KV_COUNTING};

    event.u.kv_counting = (struct bt_ev_kv_counting){
        .worker = source, .rank = rank, .counting = counting};
    serve_step(arg, &event);
}

static void on_state(void *arg, uint32_t source, uint32_t rank,
                     enum bt_stream_state state, enum bt_stream_cause cause)
{
    struct bt_serve *serve = arg;
    struct bt_event event = {.type = BT_EV_KV_STREAM};
    struct bt_stream_info info = {0};

    (void)bt_event_plane_stream(serve->events, source, rank, &info);
    if (!info.again)
        bt_log(bt_stream_is_bad(state, cause) ? BT_LOG_WARN : BT_LOG_INFO,
               "kv_stream",
               "worker=%s rank=%" PRIu32 " state=%s cause=%s next=%" PRIu64,
               serve_worker_name(serve, source), rank,
               bt_stream_state_name(state), bt_stream_cause_name(cause),
               info.next);
    event.u.kv_stream = (struct bt_ev_kv_stream){
        .worker = source, .rank = rank, .state = state, .cause = cause};
    serve_step(serve, &event);
}

static void on_block_size(void *arg, uint32_t source, uint32_t rank,
                          uint32_t block_tokens)
{
    struct bt_serve *serve = arg;
    const struct bt_config *config = serve->config;
    uint32_t want = config->models[config->workers[source].model].block_size;

    bt_log(BT_LOG_ERROR, "kv_block_size",
           "worker=%s rank=%" PRIu32 " announced=%" PRIu32
           " configured=%" PRIu32,
           serve_worker_name(serve, source), rank, block_tokens, want);
    workers_block_size(serve, source, block_tokens);
}

static uint64_t on_copies(void *arg, uint32_t source, uint32_t rank)
{
    const struct bt_core *core = ((struct bt_serve *)arg)->core;

    return bt_prefix_index_copies(bt_core_index(core),
                                  bt_core_row_of(core, source, rank), 0,
                                  BT_TIER_DEVICE);
}

static void on_say(void *arg, int level, const char *word, const char *text)
{
    static const enum bt_log_level levels[] = {BT_LOG_ERROR, BT_LOG_WARN,
                                               BT_LOG_INFO};

    (void)arg;
    bt_log(levels[level < 0 || level > 2 ? 2 : level], word, "%s", text);
}

/* ---- life ---- */

/* How the plane's streams begin; to the core a worker has none of its own. */
static void tell_begin(struct bt_serve *serve, uint32_t slot, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        struct bt_event event = {.type = BT_EV_KV_STREAM};

        event.u.kv_stream = (struct bt_ev_kv_stream){.worker = slot,
                                                     .rank = r,
                                                     .state = BT_STREAM_ABSENT,
                                                     .cause = BT_CAUSE_SILENT};
        serve_step(serve, &event);
    }
}

enum bt_status event_plane_add_worker(struct bt_serve *serve, uint32_t slot)
{
    const struct bt_worker_config *w = &serve->config->workers[slot];
    const struct bt_model_config *model = &serve->config->models[w->model];
    struct bt_event_source_config source = {
        .name = w->name,
        .events = w->events,
        .replay = w->replay,
        .topic = w->events == NULL ? w->events_topic : NULL,
        .ranks = w->ranks == 0 ? 1 : w->ranks,
        .block_tokens = model->block_size,
        .removals = w->removals,
        .hash = model->engine_hash,
        .hash_seed = model->engine_hash_seed,
        .eagle = model->engine.eagle ? BT_EAGLE_ON : BT_EAGLE_OFF,
    };
    char error[ERROR_MAX] = "";
    enum bt_status status;

    if (source.events == NULL && source.topic == NULL)
        return BT_OK;
    status =
        bt_event_plane_add(serve->events, slot, &source, error, sizeof(error));
    if (status != BT_OK)
        bt_log(BT_LOG_ERROR, "kv_endpoint_bad", "worker=%s why=\"%s\"", w->name,
               error[0] == '\0' ? bt_status_text(status) : error);
    /* Also without a source: what an earlier one said is no longer so. */
    tell_begin(serve, slot, source.ranks);
    return status;
}

enum bt_status event_plane_start(struct bt_serve *serve)
{
    const struct bt_config *c = serve->config;
    struct bt_event_plane_config config;
    struct bt_event_sink sink = {.store = on_store,
                                 .remove = on_remove,
                                 .clear = on_clear,
                                 .counting = on_counting,
                                 .state = on_state,
                                 .block_size = on_block_size,
                                 .copies = on_copies,
                                 .say = on_say,
                                 .arg = serve};
    char error[ERROR_MAX] = "";
    enum bt_status status;

    bt_event_plane_config_init(&config);
    config.bind = c->events.bind;
    config.sources_max = c->worker_count > 0 ? c->worker_count : 1;
    config.held_batches = c->events.held_batches;
    config.held_bytes = c->events.held_bytes;
    config.held_total = c->events.held_total;
    config.parked_events = c->events.parked_events;
    config.parked_ns = c->events.parked_ns;
    config.replays_max = c->events.replays_max;
    config.silence_ns = c->events.silence_ns;
    config.replay_ns = c->events.replay_ns;
    config.cooldown_ns = c->events.cooldown_ns;
    config.busy_silent_ns = c->events.busy_silent_ns;
    config.late_ns = c->events.late_ns;
    config.gone_ns = GONE_NS;
    status = bt_event_plane_create(serve->loop, &config, &sink, &serve->events,
                                   error, sizeof(error));
    if (status != BT_OK) {
        bt_log(BT_LOG_ERROR, "kv_events_bad", "why=\"%s\"",
               error[0] == '\0' ? bt_status_text(status) : error);
        return status;
    }
    for (uint32_t i = 0; i < c->worker_count && status == BT_OK; i++)
        status = event_plane_add_worker(serve, i);
    return status;
}

void event_plane_stop(struct bt_serve *serve)
{
    bt_event_plane_destroy(serve->events);
    serve->events = NULL;
}
