/* The sink's end: one connection per source, made when a pull wants it and
 * again after a failure; greeting, own heartbeat, lease renewal. What a pull
 * does is kv_pull.c's. The states and their order are BT_PEER_STATES in
 * kv_sink.h. Invariants: a peer that is dropped ends all its pulls at once; it
 * connects anew only when the transport has closed the old connection, so gets
 * of two connections never mix; no host name is resolved (that could block). */
#include "kv_sink.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_NS 5000000000LL
#define BEAT_NS    5000000000LL
#define STOP_NS    1000000000LL
#define FLUSH_NS   50000000LL

static const struct {
    const char *name, *waits;
    unsigned int next;
} states[] = {
#define X(state, name, next, waits) {name, waits, next},
    BT_PEER_STATES(X)
#undef X
};

static void move(struct peer *peer, enum peer_state next)
{
    assert(states[peer->state].next & 1u << next);
    peer->state = next;
}

static const struct bt_transport_ops *ops_of(const struct peer *peer)
{
    return peer->sink->fabric->transport->ops;
}

/* ---- frames out ---- */

void bt_peer_send(struct peer *peer, const struct bt_wire_frame *frame)
{
    bt_fabric_send(peer->sink->fabric, peer->conn, frame);
}

static void send_request(struct peer *peer, enum bt_wire_type type,
                         const char *request)
{
    struct bt_wire_frame f = {.type = type};

    memcpy(f.request, request, strlen(request) + 1);
    bt_peer_send(peer, &f);
}

static void notes_send(struct peer *peer)
{
    struct note *note;

    while ((note = STAILQ_FIRST(&peer->notes)) != NULL) {
        STAILQ_REMOVE_HEAD(&peer->notes, entry);
        peer->note_count--;
        if (peer->state == PEER_READY)
            send_request(peer, note->type, note->request);
        free(note);
    }
}

void bt_peer_note(struct peer *peer, enum bt_wire_type type,
                  const char *request)
{
    struct note *note;

    if (peer->state == PEER_READY) {
        send_request(peer, type, request);
        return;
    }
    note = peer->note_count < BT_SINK_NOTES_MAX ? malloc(sizeof(*note)) : NULL;
    if (note == NULL)
        return;
    note->type = type;
    memcpy(note->request, request, strlen(request) + 1);
    STAILQ_INSERT_TAIL(&peer->notes, note, entry);
    peer->note_count++;
    bt_peer_want(peer);
}

/* ---- connection ---- */

void bt_peer_drop(struct peer *peer, enum bt_status status, const char *detail)
{
    struct bt_kv_pull *pull, *next;

    if (peer->state == PEER_DOWN || peer->state == PEER_CLOSING)
        return;
    move(peer, PEER_CLOSING);
    ev_timer_stop(peer->sink->fabric->loop, &peer->connect_timer);
    notes_send(peer); /* frees them */
    for (pull = TAILQ_FIRST(&peer->pulls); pull != NULL; pull = next) {
        next = TAILQ_NEXT(pull, entry);
        bt_pull_finish(pull, status, detail);
    }
    ops_of(peer)->close(peer->conn);
}

static void on_failed(void *arg, enum bt_status status)
{
    struct peer *peer = arg;

    if (peer->state == PEER_GREETING)
        bt_peer_drop(peer, BT_REFUSED, bt_status_text(status));
    else
        bt_peer_drop(peer, BT_PEER_DEAD, bt_status_text(status));
}

static void on_closed(void *arg)
{
    struct peer *peer = arg;

    if (peer->key != NULL)
        ops_of(peer)->key_close(peer->key);
    peer->key = NULL;
    peer->conn = NULL;
    move(peer, PEER_DOWN);
    if (!TAILQ_EMPTY(&peer->pulls) || peer->note_count > 0)
        bt_peer_want(peer);
}

static void on_connect_timeout(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    bt_peer_drop(w->data, BT_PEER_DEAD, "no answer to the handshake");
}

static void peer_lane(struct peer *peer)
{
    peer->lane = bt_lane_find(peer->sink->fabric, peer->name);
    if (peer->lane == NULL)
        peer->lane = &peer->own;
}

static void on_welcome(struct peer *peer, const struct bt_wire_frame *f)
{
    char text[128];
    struct bt_kv_pull *pull, *next;

    if (bt_wire_layout_match(&f->layout, &peer->sink->config.layout, text,
                             sizeof(text)) != BT_OK) {
        bt_peer_drop(peer, BT_INCOMPATIBLE, text);
        return;
    }
    if (ops_of(peer)->key_open(peer->conn, f->key, f->key_size, &peer->key) !=
        BT_OK) {
        bt_peer_drop(peer, BT_REFUSED, "the source's key cannot be opened");
        return;
    }
    ev_timer_stop(peer->sink->fabric->loop, &peer->connect_timer);
    memcpy(peer->name, f->name, sizeof(peer->name));
    peer->region = f->region;
    peer->block_count = f->block_count;
    peer->missed = 0;
    peer_lane(peer);
    move(peer, PEER_READY);
    notes_send(peer);
    for (pull = TAILQ_FIRST(&peer->pulls); pull != NULL; pull = next) {
        next = TAILQ_NEXT(pull, entry);
        if (pull->state == PULL_WAIT)
            bt_pull_open(pull);
    }
}

/* ---- frames in ---- */

static struct bt_kv_pull *pull_find(struct peer *peer, uint64_t id)
{
    struct bt_kv_pull *pull;

    TAILQ_FOREACH(pull, &peer->pulls, entry)
    {
        if (pull->id == id)
            return pull;
    }
    return NULL;
}

/* What a source may say; anything else is a plain refusal. */
static enum bt_status refusal(uint32_t code)
{
    if (code == BT_NOT_FOUND || code == BT_LEASE_EXPIRED ||
        code == BT_INCOMPATIBLE)
        return (enum bt_status)code;
    return BT_REFUSED;
}

static void on_no(struct peer *peer, const struct bt_wire_frame *f)
{
    struct bt_kv_pull *pull;

    if (f->pull == 0) {
        bt_peer_drop(peer, refusal(f->status), f->text);
        return;
    }
    pull = pull_find(peer, f->pull);
    if (pull != NULL && pull->state == PULL_OPEN)
        bt_pull_finish(pull, refusal(f->status), f->text);
}

static void dispatch(struct peer *peer, const struct bt_wire_frame *f)
{
    struct bt_kv_pull *pull;
    struct bt_wire_frame pong = {.type = BT_WIRE_PONG, .token = f->token};

    switch (f->type) {
    case BT_WIRE_WELCOME:
        if (peer->state == PEER_GREETING)
            on_welcome(peer, f);
        else
            bt_peer_drop(peer, BT_REFUSED, "WELCOME twice");
        break;
    case BT_WIRE_NO:
        on_no(peer, f);
        break;
    case BT_WIRE_GRANT:
        pull = pull_find(peer, f->pull);
        if (pull != NULL) /* else late: ended here meanwhile */
            bt_pull_grant(pull, f);
        break;
    case BT_WIRE_PING:
        bt_peer_send(peer, &pong);
        break;
    case BT_WIRE_PONG:
        break;
    case BT_WIRE_HELLO:
    case BT_WIRE_OPEN:
    case BT_WIRE_DONE:
    case BT_WIRE_BEAT:
        bt_peer_drop(peer, BT_REFUSED, "a sink's frame from a source");
        break;
    }
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct peer *peer = arg;
    struct bt_wire_frame f;
    enum bt_status status = bt_wire_decode(bytes, size, &f);

    peer->heard = true;
    if (status == BT_INCOMPATIBLE)
        bt_peer_drop(peer, BT_INCOMPATIBLE, "protocol version differs");
    else if (status != BT_OK)
        bt_peer_drop(peer, BT_REFUSED, "malformed frame");
    else
        dispatch(peer, &f);
}

void bt_peer_want(struct peer *peer)
{
    static const struct bt_tconn_events events = {on_frame, on_failed,
                                                  on_closed};
    struct bt_kv_sink *sink = peer->sink;
    struct bt_wire_frame hello = {.type = BT_WIRE_HELLO,
                                  .layout = sink->config.layout};
    struct sockaddr_storage address;
    struct bt_kv_pull *pull;
    socklen_t size = 0;
    enum bt_status status;

    if (peer->state != PEER_DOWN || sink->closing)
        return;
    status = bt_fabric_address(peer->host, peer->port, &address, &size);
    assert(status == BT_OK); /* bt_peer_get has tried it */
    status =
        ops_of(peer)->connect(sink->fabric->transport,
                              (struct sockaddr *)&address, size, &peer->conn);
    if (status != BT_OK) {
        notes_send(peer);
        while ((pull = TAILQ_FIRST(&peer->pulls)) != NULL)
            bt_pull_finish(pull, BT_REFUSED, bt_status_text(status));
        return;
    }
    peer->conn->events = &events;
    peer->conn->arg = peer;
    move(peer, PEER_GREETING);
    bt_fabric_timer(sink->fabric, &peer->connect_timer,
                    sink->config.connect_timeout_ns);
    memcpy(hello.name, sink->name, sizeof(hello.name));
    bt_peer_send(peer, &hello);
}

static struct peer *peer_new(struct bt_kv_sink *sink, const char *host,
                             uint16_t port)
{
    uint32_t chunks = sink->fabric->inflight_max;
    struct peer *peer = calloc(1, sizeof(*peer));

    if (peer == NULL)
        return NULL;
    peer->chunks = calloc(chunks, sizeof(peer->chunks[0]));
    if (peer->chunks == NULL) {
        free(peer);
        return NULL;
    }
    for (uint32_t i = 0; i < chunks; i++) {
        peer->chunks[i].next_free = peer->free_chunks;
        peer->free_chunks = &peer->chunks[i];
    }
    peer->sink = sink;
    peer->port = port;
    memcpy(peer->host, host, strlen(host) + 1);
    TAILQ_INIT(&peer->pulls);
    STAILQ_INIT(&peer->notes);
    ev_timer_init(&peer->connect_timer, on_connect_timeout, 0, 0);
    peer->connect_timer.data = peer;
    bt_lane_init(&peer->own, sink->fabric);
    peer->lane = &peer->own;
    LIST_INSERT_HEAD(&sink->peers, peer, entry);
    sink->peer_count++;
    return peer;
}

struct peer *bt_peer_get(struct bt_kv_sink *sink, const char *host,
                         uint16_t port, enum bt_status *status_out)
{
    struct sockaddr_storage address;
    struct peer *peer;
    socklen_t size;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        if (peer->port == port && strcmp(peer->host, host) == 0)
            return peer;
    }
    *status_out = BT_INVALID;
    if (port == 0 || strlen(host) >= sizeof(peer->host) ||
        bt_fabric_address(host, port, &address, &size) != BT_OK)
        return NULL;
    *status_out = BT_LIMIT;
    if (sink->peer_count == BT_SINK_PEERS_MAX)
        return NULL;
    *status_out = BT_NO_MEMORY;
    return peer_new(sink, host, port);
}

/* ---- timers ---- */

static void peer_heartbeat(struct peer *peer)
{
    struct bt_wire_frame ping = {.type = BT_WIRE_PING};

    if (peer->state != PEER_READY)
        return;
    peer->missed = peer->heard ? 0 : peer->missed + 1;
    peer->heard = false;
    if (peer->missed >= BT_FABRIC_SILENT_SOURCE) {
        bt_peer_drop(peer, BT_PEER_DEAD, "silent for five heartbeats");
        return;
    }
    bt_peer_send(peer, &ping);
}

/* Counts heartbeats without a sign of life, not time: a loop of our own that
 * was held up must not condemn the peer. */
void bt_kv_sink_heartbeat(struct bt_fabric *fabric)
{
    struct bt_kv_sink *sink;
    struct peer *peer;

    LIST_FOREACH(sink, &fabric->sinks, entry)
    {
        LIST_FOREACH(peer, &sink->peers, entry)
        peer_heartbeat(peer);
    }
}

static void on_beat(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_sink *sink = w->data;
    struct bt_kv_pull *pull;
    struct peer *peer;

    (void)loop;
    (void)revents;
    LIST_FOREACH(peer, &sink->peers, entry)
    {
        if (peer->state != PEER_READY)
            continue;
        TAILQ_FOREACH(pull, &peer->pulls, entry)
        send_request(peer, BT_WIRE_BEAT, pull->request);
    }
}

static void on_report(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    bt_pull_report(w->data);
}

/* ---- life ---- */

enum bt_status bt_kv_sink_create(struct bt_fabric *fabric,
                                 const struct bt_kv_sink_config *config,
                                 struct bt_kv_sink **out)
{
    const struct bt_kv_layout *layout = &config->layout;
    struct bt_kv_sink *sink;
    enum bt_status status = BT_NO_MEMORY;
    double beat_s;

    if (config->name == NULL || strlen(config->name) >= BT_KV_NAME_MAX ||
        config->region == NULL || config->block_count == 0 ||
        layout->block_bytes == 0 || layout->block_bytes >= UINT32_MAX)
        return BT_INVALID;
    sink = calloc(1, sizeof(*sink));
    if (sink == NULL)
        return BT_NO_MEMORY;
    sink->fabric = fabric;
    sink->config = *config;
    if (config->connect_timeout_ns <= 0)
        sink->config.connect_timeout_ns = CONNECT_NS;
    beat_s = (double)(config->beat_ns > 0 ? config->beat_ns : BEAT_NS) / 1e9;
    memcpy(sink->name, config->name, strlen(config->name) + 1);
    LIST_INIT(&sink->peers);
    TAILQ_INIT(&sink->ended);
    sink->target = calloc(config->block_count / 8 + 1, 1);
    if (sink->target == NULL)
        goto undo_sink;
    status = fabric->transport->ops->map(
        fabric->transport, config->region,
        config->block_count * (size_t)layout->block_bytes, &sink->mem);
    if (status != BT_OK)
        goto undo_target;
    ev_timer_init(&sink->report, on_report, 0, 0);
    ev_timer_init(&sink->beat, on_beat, beat_s, beat_s);
    sink->report.data = sink;
    sink->beat.data = sink;
    ev_timer_start(fabric->loop, &sink->beat);
    LIST_INSERT_HEAD(&fabric->sinks, sink, entry);
    *out = sink;
    return BT_OK;

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
        if (peer->state == PEER_READY && !ops_of(peer)->sent(peer->conn))
            return false;
    }
    return true;
}

static bool all_down(void *arg)
{
    struct bt_kv_sink *sink = arg;
    struct peer *peer;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        if (peer->state != PEER_DOWN)
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

static void peer_free(struct peer *peer)
{
    ev_timer_stop(peer->sink->fabric->loop, &peer->connect_timer);
    notes_send(peer); /* frees them */
    bt_lane_fini(&peer->own);
    LIST_REMOVE(peer, entry);
    free(peer->chunks);
    free(peer);
}

/* A connection that does not close may still write: what it writes to, and
 * what its gets point at, is left alone for ever. */
static void abandon(struct bt_kv_sink *sink)
{
    struct peer *peer;

    LIST_FOREACH(peer, &sink->peers, entry)
    {
        bt_lane_fini(&peer->own);
        if (peer->conn != NULL)
            peer->conn->events = NULL;
    }
    LIST_REMOVE(sink, entry);
}

void bt_kv_sink_destroy(struct bt_kv_sink *sink)
{
    struct bt_fabric *fabric;
    struct peer *peer, *next;

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
    for (peer = LIST_FIRST(&sink->peers); peer != NULL; peer = next) {
        next = LIST_NEXT(peer, entry);
        peer_free(peer);
    }
    fabric->transport->ops->unmap(fabric->transport, sink->mem);
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

static void note_to(struct bt_kv_sink *sink, const char *host, uint16_t port,
                    enum bt_wire_type type, const char *request_id)
{
    enum bt_status status;
    struct peer *peer;

    if (strlen(request_id) > BT_KV_REQUEST_MAX)
        return;
    peer = bt_peer_get(sink, host, port, &status);
    if (peer != NULL)
        bt_peer_note(peer, type, request_id);
}

void bt_kv_sink_beat(struct bt_kv_sink *sink, const char *host, uint16_t port,
                     const char *request_id)
{
    note_to(sink, host, port, BT_WIRE_BEAT, request_id);
}

void bt_kv_sink_release(struct bt_kv_sink *sink, const char *host,
                        uint16_t port, const char *request_id)
{
    note_to(sink, host, port, BT_WIRE_DONE, request_id);
}
