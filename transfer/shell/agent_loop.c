/* The agent's thread: opens the fabric, serves messages, hands events to the
 * ring, closes everything in order. Sleeps in libev; a caller wakes it by
 * ev_async, a full event ring by the reader that makes room.
 */
#include "agent_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS 10000000LL /* a lease that is over but still read */

/* ---- events ---- */

void bt_agent_wait(struct bt_agent *agent, struct waiting *waiting)
{
    TAILQ_INSERT_TAIL(&agent->waiting, waiting, entry);
}

void bt_agent_remark(struct bt_agent *agent, enum bt_agent_event_kind kind,
                     const char *peer, const char *detail)
{
    struct bt_agent_event event = {.kind = kind};

    snprintf(event.peer, sizeof(event.peer), "%s", peer);
    snprintf(event.detail, sizeof(event.detail), "%s", detail);
    (void)bt_agent_ring_push(&agent->events, &event);
}

void bt_agent_refresh(struct bt_agent *agent)
{
    struct bt_fabric_meter meters[BT_AGENT_METERS_MAX];
    size_t count = bt_fabric_meters(agent->fabric, meters, BT_AGENT_METERS_MAX);
    struct bt_fabric_stats stats;
    uint32_t rails = bt_fabric_rails(agent->fabric), up = 0;

    bt_fabric_stats(agent->fabric, &stats);
    for (uint32_t i = 0; i < rails && i < BT_RAILS_MAX; i++)
        up += agent->rail_down[i] == 0;
    pthread_mutex_lock(&agent->lock);
    memcpy(agent->meters, meters, count * sizeof(meters[0]));
    agent->meter_count = count;
    agent->stats.refused_auth = stats.refused_key;
    agent->stats.refused_layout = stats.refused_layout;
    agent->stats.doors_shut = stats.doors_shut;
    agent->stats.rails_up = up;
    pthread_mutex_unlock(&agent->lock);
}

static void on_rail(void *arg, const struct bt_kv_rail_event *rail)
{
    struct bt_agent *agent = arg;
    struct bt_agent_event event = {.kind = BT_AGENT_RAIL};
    bool has_carrier = rail->is_up && rail->carrier[0] != '\0';
    const char *why =
        rail->detail[0] != '\0' ? rail->detail : bt_status_text(rail->status);

    if (!rail->is_up)
        agent->rail_down[rail->rail]++;
    else if (!rail->is_first && agent->rail_down[rail->rail] > 0)
        agent->rail_down[rail->rail]--;
    if (has_carrier) {
        pthread_mutex_lock(&agent->lock);
        bt_paths_carrier(&agent->paths, rail->host, rail->port, rail->rail,
                         rail->carrier);
        pthread_mutex_unlock(&agent->lock);
    }
    snprintf(event.peer, sizeof(event.peer), "%s", rail->peer);
    snprintf(event.transport, sizeof(event.transport), "%.63s",
             has_carrier ? rail->carrier : "");
    snprintf(event.detail, sizeof(event.detail),
             "rail %.24s to %.46s:%u %s%.63s", rail->name, rail->host,
             (unsigned int)rail->port,
             !rail->is_up  ? "is down: "
             : has_carrier ? "is up by "
                           : "is up",
             rail->is_up ? event.transport : why);
    bt_agent_refresh(agent);
    (void)bt_agent_ring_push(&agent->events, &event);
}

static void arm(struct bt_agent *agent)
{
    int64_t next = INT64_MAX, now = bt_agent_now();

    pthread_mutex_lock(&agent->lock);
    for (uint32_t i = 0; i < agent->region_count; i++) {
        const struct agent_region *region = &agent->regions[i];
        int64_t at =
            region->leases != NULL ? bt_lease_next(region->leases) : INT64_MAX;

        next = at < next ? at : next;
    }
    pthread_mutex_unlock(&agent->lock);
    ev_timer_stop(agent->loop, &agent->timer);
    if (next == INT64_MAX || bt_agent_ring_room(&agent->events) == 0)
        return;
    ev_now_update(agent->loop);
    int64_t ns = next > now + 1000000 ? next - now : 1000000;
    ev_timer_set(&agent->timer, (double)(next > now ? ns : RETRY_NS) / 1e9, 0);
    ev_timer_start(agent->loop, &agent->timer);
}

void bt_agent_flush(struct bt_agent *agent)
{
    struct waiting *waiting;

    while ((waiting = TAILQ_FIRST(&agent->waiting)) != NULL &&
           bt_agent_ring_room(&agent->events) > 0) {
        /* who sees the event finds the slot free: we alone fill the ring */
        struct bt_agent_event event = waiting->event;

        TAILQ_REMOVE(&agent->waiting, waiting, entry);
        waiting->pushed(agent, waiting);
        (void)bt_agent_ring_push(&agent->events, &event);
    }
    for (uint32_t i = 0; i < agent->region_count; i++)
        bt_agent_leases_reap(&agent->regions[i]);
    arm(agent);
}

/* ---- calls that wait for this thread ---- */

static enum bt_status region_open(struct agent_region *region, char *error_out,
                                  size_t error_size)
{
    struct bt_agent *agent = region->agent;
    enum bt_status status;
    const struct bt_kv_sink_config sink = {
        .name = agent->name,
        .layout = region->config.layout,
        .region = region->config.base,
        .block_count = region->config.block_count,
        .beat_ns = agent->config.beat_ns,
        .region_name = region->name,
        .no_checksums = !agent->config.checksums,
        .rail = on_rail,
        .arg = agent,
    };

    status = bt_kv_sink_create(agent->fabric, &sink, &region->sink);
    if (status != BT_OK) {
        const char *why = bt_fabric_map_error(agent->fabric);

        snprintf(error_out, error_size, "region %.32s: %s", region->name,
                 status == BT_LIMIT && why[0] != '\0' ? why
                                                      : bt_status_text(status));
        return status;
    }
    if (agent->config.listen == NULL)
        return BT_OK;
    status = bt_agent_source_start(region, error_out, error_size);
    if (status != BT_OK) {
        bt_kv_sink_destroy(region->sink);
        region->sink = NULL;
    }
    return status;
}

static enum bt_status serve(struct bt_agent *agent, struct sync *sync)
{
    enum bt_status status = BT_OK;

    switch (sync->kind) {
    case SYNC_NONE:
        break;
    case SYNC_REGION:
        status = region_open(sync->region, sync->error, sizeof(sync->error));
        break;
    case SYNC_PACE:
        status = bt_fabric_pace(agent->fabric, sync->peer, sync->rate,
                                sync->setup_ns, sync->link_class);
        break;
    }
    return status;
}

static void serve_sync(struct bt_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    struct sync sync = agent->sync;
    pthread_mutex_unlock(&agent->lock);
    if (sync.kind == SYNC_NONE || sync.done)
        return;
    sync.status = serve(agent, &sync);
    sync.done = true;
    pthread_mutex_lock(&agent->lock);
    agent->sync = sync;
    if (sync.kind == SYNC_REGION && sync.status == BT_OK)
        agent->region_count++;
    pthread_cond_broadcast(&agent->cond);
    pthread_mutex_unlock(&agent->lock);
}

/* ---- messages ---- */

/* The sink that asks for regions of that name, else the first. */
static struct bt_kv_sink *sink_for(const struct bt_agent *agent,
                                   const char *remote_region)
{
    for (uint32_t i = 0; i < agent->region_count; i++) {
        if (strcmp(agent->regions[i].name, remote_region) == 0)
            return agent->regions[i].sink;
    }
    return agent->region_count > 0 ? agent->regions[0].sink : NULL;
}

static void serve_note(struct bt_agent *agent, const struct call *call)
{
    struct bt_kv_sink *sink = sink_for(agent, call->remote_region);
    const struct bt_kv_note note = {
        .host = call->host,
        .port = call->port,
        .region = call->remote_region,
        .request_id = call->request_id,
        .release = call->kind == CALL_RELEASE,
    };

    if (sink != NULL)
        bt_kv_sink_note(sink, &note);
}

static void serve_call(struct bt_agent *agent, const struct call *call)
{
    switch (call->kind) {
    case CALL_PULL:
        bt_agent_pull_begin(agent, &agent->pulls[call->slot]);
        break;
    case CALL_BEAT:
    case CALL_RELEASE:
        serve_note(agent, call);
        break;
    }
}

static void on_wake(struct ev_loop *loop, ev_async *w, int revents)
{
    struct bt_agent *agent = w->data;
    struct call call;
    bool was_full;

    (void)revents;
    serve_sync(agent);
    for (uint32_t i = 0; i < BT_AGENT_CALLS_MAX; i++) {
        if (bt_agent_ring_pop(&agent->calls, &call, 1, &was_full) == 0)
            break;
        serve_call(agent, &call);
    }
    bt_agent_pull_cancel(agent);
    bt_agent_answers_send(agent);
    bt_agent_flush(agent);
    pthread_mutex_lock(&agent->lock);
    bool closing = agent->closing;
    pthread_mutex_unlock(&agent->lock);
    if (closing)
        ev_break(loop, EVBREAK_ALL);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    bt_agent_flush(w->data);
}

/* ---- life ---- */

static void tell_started(struct bt_agent *agent, enum bt_status status)
{
    pthread_mutex_lock(&agent->lock);
    agent->start_status = status;
    agent->started = true;
    pthread_cond_broadcast(&agent->cond);
    pthread_mutex_unlock(&agent->lock);
}

static enum bt_status fabric_open(struct bt_agent *agent)
{
    const struct bt_agent_config *c = &agent->config;
    const struct bt_fabric_config fabric = {
        .kind = c->fabric,
        .rails = c->rail_count > 0 ? c->rails : NULL,
        .rail_count = c->rail_count,
        .rail_threads = c->rail_threads,
        .key = c->key,
        .transports = c->transports,
        .heartbeat_ns = c->heartbeat_ns,
        .chunk_bytes = c->chunk_bytes,
        .inflight_max = c->inflight_max,
        .window_target_ns = c->window_target_ns,
    };
    enum bt_status status =
        bt_fabric_create(agent->loop, &fabric, &agent->fabric,
                         agent->start_error, sizeof(agent->start_error));

    if (status == BT_OK)
        bt_agent_refresh(agent);
    return status;
}

static void close_all(struct bt_agent *agent)
{
    for (uint32_t i = 0; i < agent->region_count; i++)
        bt_kv_sink_destroy(agent->regions[i].sink);
    for (uint32_t i = 0; i < agent->region_count; i++)
        bt_kv_source_stop(agent->regions[i].source);
    bt_fabric_destroy(agent->fabric);
}

void *bt_agent_main(void *arg)
{
    struct bt_agent *agent = arg;
    enum bt_status status;

    ev_async_init(&agent->wake, on_wake);
    agent->wake.data = agent;
    ev_async_start(agent->loop, &agent->wake);
    ev_timer_init(&agent->timer, on_timer, 0, 0);
    agent->timer.data = agent;
    status = fabric_open(agent);
    tell_started(agent, status);
    if (status == BT_OK) {
        ev_run(agent->loop, 0);
        close_all(agent);
    }
    ev_timer_stop(agent->loop, &agent->timer);
    ev_async_stop(agent->loop, &agent->wake);
    return NULL;
}
