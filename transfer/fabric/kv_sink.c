/* A sink's life and its table of sources. Everything that happens between is in
 * kv_peer.c (who is alive), kv_rail.c (connections), kv_pull.c and kv_get.c.
 * Invariants: the table holds at most PEERS_MAX sources; one that is down and
 * without pulls makes room for a new one, so that addresses which lead nowhere
 * never fill it (E21). */
#include "kv_sink.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_NS 5000000000LL
#define BEAT_NS    5000000000LL
#define IDLE_NS    60000000000LL
#define STOP_NS    1000000000LL
#define FLUSH_NS   50000000LL

/* ---- peers ---- */

static struct peer *peer_new(struct bt_kv_sink *sink,
                             const struct bt_peer_where *where)
{
    uint32_t rails = sink->fabric->rail_count;
    struct peer *peer = calloc(1, sizeof(*peer) + rails * sizeof(struct rail));

    if (peer == NULL)
        return NULL;
    peer->sink = sink;
    peer->port = where->port;
    peer->used_ns = bt_fabric_now();
    memcpy(peer->host, where->host, strlen(where->host) + 1);
    memcpy(peer->region_name, where->region, strlen(where->region) + 1);
    TAILQ_INIT(&peer->pulls);
    STAILQ_INIT(&peer->waiting);
    STAILQ_INIT(&peer->unconfirmed);
    for (uint32_t i = 0; i < rails; i++)
        bt_rail_init(&peer->rails[i], peer, i);
    LIST_INSERT_HEAD(&sink->peers, peer, entry);
    sink->peer_count++;
    return peer;
}

void bt_peer_free(struct peer *peer)
{
    struct bt_kv_sink *sink = peer->sink;

    assert(peer->refs == 0 && bt_peer_is_down(peer));
    bt_peer_drop(peer, BT_CANCELLED, ""); /* frees its notes */
    for (uint32_t i = 0; i < sink->fabric->rail_count; i++)
        bt_rail_fini(&peer->rails[i]);
    LIST_REMOVE(peer, entry);
    sink->peer_count--;
    free(peer);
}

/* The one that was of use longest ago, of those that are of none now. */
static bool make_room(struct bt_kv_sink *sink)
{
    struct peer *peer, *oldest = NULL;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        if (peer->refs > 0 || bt_peer_has_work(peer) || !bt_peer_is_down(peer))
            continue;
        if (oldest == NULL || peer->used_ns < oldest->used_ns)
            oldest = peer;
    }
    if (oldest != NULL)
        bt_peer_free(oldest);
    return oldest != NULL;
}

static bool where_ok(const struct bt_peer_where *where)
{
    struct sockaddr_storage address;
    socklen_t size;

    return where->port != 0 && strlen(where->host) < BT_WIRE_ADDRESS &&
           strlen(where->region) < BT_KV_NAME_MAX &&
           bt_fabric_address(where->host, where->port, &address, &size) ==
               BT_OK;
}

struct peer *bt_peer_get(struct bt_kv_sink *sink,
                         const struct bt_peer_where *where,
                         enum bt_status *status_out)
{
    struct bt_peer_where w = *where;
    struct peer *peer;

    if (w.region == NULL)
        w.region = sink->region_name;
    LIST_FOREACH(peer, &sink->peers, entry)
    {
        if (peer->port == w.port && strcmp(peer->host, w.host) == 0 &&
            strcmp(peer->region_name, w.region) == 0)
            return peer;
    }
    *status_out = BT_INVALID;
    if (!where_ok(&w))
        return NULL;
    *status_out = BT_LIMIT;
    if (sink->peer_count == BT_SINK_PEERS_MAX && !make_room(sink))
        return NULL;
    *status_out = BT_NO_MEMORY;
    return peer_new(sink, &w);
}

/* ---- timers ---- */

/* Counts heartbeats without a sign of life, not time: a loop of our own that
 * was held up must not condemn the peer. */
void bt_kv_sink_heartbeat(struct bt_fabric *fabric)
{
    struct bt_kv_sink *sink;
    struct peer *peer, *next;

    LIST_FOREACH(sink, &fabric->sinks, entry)
    {
        for (peer = LIST_FIRST(&sink->peers); peer != NULL; peer = next) {
            next = LIST_NEXT(peer, entry);
            bt_peer_heartbeat(peer);
        }
    }
}

static void on_beat(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_sink *sink = w->data;
    struct peer *peer;

    (void)loop;
    (void)revents;
    LIST_FOREACH(peer, &sink->peers, entry)
    bt_peer_beat(peer);
}

static void on_report(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    bt_pull_report(w->data);
}

/* ---- life ---- */

static bool config_ok(const struct bt_kv_sink_config *c)
{
    const char *region = c->region_name;

    return c->name != NULL && strlen(c->name) < BT_KV_NAME_MAX &&
           (region == NULL || strlen(region) < BT_KV_NAME_MAX) &&
           c->region != NULL && c->block_count > 0 &&
           c->layout.block_bytes > 0 && c->layout.block_bytes < UINT32_MAX;
}

static void sink_init(struct bt_kv_sink *sink, struct bt_fabric *fabric,
                      const struct bt_kv_sink_config *config)
{
    const char *region =
        config->region_name != NULL ? config->region_name : "kv";
    int64_t beat_ns = config->beat_ns > 0 ? config->beat_ns : BEAT_NS;
    double beat_s = (double)beat_ns / 1e9;

    sink->fabric = fabric;
    sink->config = *config;
    if (config->connect_timeout_ns <= 0)
        sink->config.connect_timeout_ns = CONNECT_NS;
    if (config->idle_ns <= 0)
        sink->config.idle_ns = IDLE_NS;
    memcpy(sink->name, config->name, strlen(config->name) + 1);
    memcpy(sink->region_name, region, strlen(region) + 1);
    LIST_INIT(&sink->peers);
    TAILQ_INIT(&sink->ended);
    ev_timer_init(&sink->report, on_report, 0, 0);
    ev_timer_init(&sink->beat, on_beat, beat_s, beat_s);
    sink->report.data = sink;
    sink->beat.data = sink;
}

enum bt_status bt_kv_sink_create(struct bt_fabric *fabric,
                                 const struct bt_kv_sink_config *config,
                                 struct bt_kv_sink **out)
{
    struct bt_kv_sink *sink;
    enum bt_status status = BT_NO_MEMORY;

    if (!config_ok(config))
        return BT_INVALID;
    sink = calloc(1, sizeof(*sink));
    if (sink == NULL)
        return BT_NO_MEMORY;
    sink_init(sink, fabric, config);
    sink->target = calloc(config->block_count / 8 + 1, 1);
    if (sink->target == NULL)
        goto undo_sink;
    status = bt_gets_init(sink);
    if (status != BT_OK)
        goto undo_target;
    status = bt_fabric_map(
        fabric, config->region,
        config->block_count * (size_t)config->layout.block_bytes, sink->mems);
    if (status != BT_OK)
        goto undo_gets;
    ev_timer_start(fabric->loop, &sink->beat);
    LIST_INSERT_HEAD(&fabric->sinks, sink, entry);
    *out = sink;
    return BT_OK;

undo_gets:
    bt_gets_fini(sink);
undo_target:
    free(sink->target);
undo_sink:
    free(sink);
    return status;
}

static bool all_sent(void *arg)
{
    struct bt_kv_sink *sink = arg;
    struct peer *peer;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        for (uint32_t i = 0; i < sink->fabric->rail_count; i++) {
            const struct rail *rail = &peer->rails[i];

            if (rail->state == RAIL_READY &&
                !rail->link.transport->ops->sent(rail->link.conn))
                return false;
        }
    }
    return true;
}

static bool all_down(void *arg)
{
    struct bt_kv_sink *sink = arg;
    struct peer *peer;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        if (!bt_peer_is_down(peer))
            return false;
    }
    return true;
}

/* Pulls that wait for a closing connection would make it connect anew. */
static void end_pulls(struct bt_kv_sink *sink)
{
    struct bt_kv_pull *pull, *next;
    struct peer *peer;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        for (pull = TAILQ_FIRST(&peer->pulls); pull != NULL; pull = next) {
            next = TAILQ_NEXT(pull, entry);
            bt_pull_finish(pull, BT_CANCELLED, "the sink is closed");
        }
    }
}

/* A connection that does not close may still write: what it writes to, and
 * what its gets point at, is left alone for ever. */
static void abandon(struct bt_kv_sink *sink)
{
    struct peer *peer;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        for (uint32_t i = 0; i < sink->fabric->rail_count; i++) {
            struct rail *rail = &peer->rails[i];

            bt_rail_fini(rail);
            if (rail->link.conn != NULL)
                rail->link.conn->events = NULL;
        }
    }
    LIST_REMOVE(sink, entry);
}

void bt_kv_sink_destroy(struct bt_kv_sink *sink)
{
    struct bt_fabric *fabric;
    struct peer *peer;

    if (sink == NULL)
        return;
    fabric = sink->fabric;
    sink->closing = true;
    end_pulls(sink);
    bt_fabric_settle(fabric, all_sent, sink, FLUSH_NS);
    LIST_FOREACH(peer, &sink->peers, entry)
    bt_peer_drop(peer, BT_CANCELLED, "the sink is closed");
    bt_fabric_settle(fabric, all_down, sink, STOP_NS);
    bt_pull_report(sink);
    ev_timer_stop(fabric->loop, &sink->report);
    ev_timer_stop(fabric->loop, &sink->beat);
    if (!all_down(sink)) {
        abandon(sink);
        return;
    }
    while ((peer = LIST_FIRST(&sink->peers)) != NULL)
        bt_peer_free(peer);
    bt_fabric_unmap(fabric, sink->mems);
    bt_gets_fini(sink);
    LIST_REMOVE(sink, entry);
    free(sink->target);
    free(sink);
}

void bt_kv_sinks_stop(struct bt_fabric *fabric)
{
    struct bt_kv_sink *sink, *next;

    for (sink = LIST_FIRST(&fabric->sinks); sink != NULL; sink = next) {
        next = LIST_NEXT(sink, entry);
        bt_kv_sink_destroy(sink);
    }
}

/* ---- notes ---- */

void bt_kv_sink_note(struct bt_kv_sink *sink, const struct bt_kv_note *note)
{
    const struct bt_peer_where where = {note->host, note->region, note->port};
    struct note n = {.type = note->release ? BT_WIRE_DONE : BT_WIRE_BEAT,
                     .flags = note->release ? BT_WIRE_RELEASE : 0};
    enum bt_status status;
    struct peer *peer;

    if (strlen(note->request_id) > BT_KV_REQUEST_MAX || sink->closing)
        return;
    memcpy(n.request, note->request_id, strlen(note->request_id) + 1);
    peer = bt_peer_get(sink, &where, &status);
    if (peer != NULL)
        bt_peer_note(peer, &n);
}

void bt_kv_sink_beat(struct bt_kv_sink *sink, const char *host, uint16_t port,
                     const char *request_id)
{
    const struct bt_kv_note note = {
        .host = host, .port = port, .request_id = request_id};

    bt_kv_sink_note(sink, &note);
}

void bt_kv_sink_release(struct bt_kv_sink *sink, const char *host,
                        uint16_t port, const char *request_id)
{
    const struct bt_kv_note note = {
        .host = host, .port = port, .request_id = request_id, .release = true};

    bt_kv_sink_note(sink, &note);
}
