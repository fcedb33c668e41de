/* One rail to a source: connect, be ready, fail, try again. States and their
 * order are BT_RAIL_STATES in kv_sink.h. While other rails of the peer live, a
 * failed one is tried again with growing pauses and jitter (E16), and each
 * change is told once. Who may go on without it is kv_peer.c's to say.
 * Invariants: a rail connects anew only when the transport has closed the old
 * connection, so gets of two connections never mix; no host name is resolved
 * (that could block). */
#include "kv_sink.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define RETRY_FIRST_NS 50000000LL
#define RETRY_MAX_NS   5000000000LL
#define HURRY_BEATS    2
#define STEADY_NS      5000000000LL /* ready for so long: a fresh start */

static const struct {
    const char *name, *waits;
    unsigned int next;
} states[] = {
#define X(state, name, next, waits) {name, waits, next},
    BT_RAIL_STATES(X)
#undef X
};

static void move(struct rail *rail, enum rail_state next)
{
    assert(states[rail->state].next & 1u << next);
    rail->state = next;
}

static struct bt_fabric *fabric_of(const struct rail *rail)
{
    return rail->peer->sink->fabric;
}

/* ---- telling ---- */

static void tell(struct rail *rail, bool is_up, enum bt_status status,
                 const char *text)
{
    struct peer *peer = rail->peer;
    const struct bt_kv_sink_config *c = &peer->sink->config;
    const struct bt_transport_ops *ops = rail->link.transport->ops;
    char carrier[128] = "";
    struct bt_kv_rail_event event = {
        .peer = peer->name,
        .host = peer->host,
        .port = peer->port,
        .rail = rail->index,
        .name = fabric_of(rail)->rails[rail->index].name,
        .is_up = is_up,
        .is_first = is_up && !rail->is_told_up && !rail->is_told_down,
        .status = status,
        .detail = text,
        .carrier = carrier,
    };

    if ((!event.is_first && rail->is_told_down != is_up) || peer->sink->closing)
        return;
    if (is_up && rail->is_told_down)
        fabric_of(rail)->stats.rails_back++;
    else if (!is_up)
        fabric_of(rail)->stats.rails_lost++;
    rail->is_told_down = !is_up;
    rail->is_told_up |= is_up;
    if (is_up && ops->describe != NULL)
        ops->describe(rail->link.conn, carrier, sizeof(carrier));
    if (c->rail != NULL)
        c->rail(c->arg, &event);
}

/* ---- down again ---- */

void bt_rail_close(struct rail *rail)
{
    ev_timer_stop(fabric_of(rail)->loop, &rail->timer);
    if (rail->state == RAIL_READY)
        bt_gets_rail_lost(rail);
    if (rail->state == RAIL_READY || rail->state == RAIL_GREETING) {
        move(rail, RAIL_CLOSING);
        rail->link.transport->ops->close(rail->link.conn);
    }
}

/* Why the peer will be dropped if none of the rails still tried gets through:
 * what the first one met counts, not that later ones found no way there. */
static void remember(struct peer *peer, enum bt_status status, const char *text)
{
    if (peer->cause != BT_OK)
        return;
    peer->cause = status;
    snprintf(peer->cause_text, sizeof(peer->cause_text), "%s", text);
}

/* Our first rail may be the broken one: another of ours may get through to
 * the only address we know. */
static bool try_next(struct rail *rail)
{
    struct peer *peer = rail->peer;

    if (peer->is_known)
        return false;
    for (uint32_t i = rail->index + 1; i < fabric_of(rail)->rail_count; i++) {
        if (peer->rails[i].state == RAIL_DOWN &&
            bt_rail_connect(&peer->rails[i]))
            return true;
    }
    return false;
}

/* The last rail that was ready is gone: one that greets just now may save the
 * pulls, if it is quick. */
static void hurry(struct peer *peer, bool was_ready)
{
    struct bt_fabric *fabric = peer->sink->fabric;

    for (uint32_t i = 0; was_ready && i < fabric->rail_count; i++) {
        if (peer->rails[i].state == RAIL_GREETING)
            bt_fabric_timer(fabric, &peer->rails[i].timer,
                            HURRY_BEATS * fabric->heartbeat_ns);
    }
}

void bt_rail_fail(struct rail *rail, enum bt_status status, const char *text,
                  bool final)
{
    struct peer *peer = rail->peer;
    bool was_ready = rail->state == RAIL_READY;

    if (rail->state == RAIL_CLOSING || rail->state == RAIL_DOWN)
        return;
    rail->fails++;
    if (was_ready && bt_fabric_now() - rail->ready_ns > STEADY_NS)
        rail->fails = 1;
    if (!was_ready)
        fabric_of(rail)->stats.connects_failed++;
    bt_rail_close(rail);
    if (was_ready)
        bt_peer_rail_lost(rail);
    if (was_ready || peer->control != NULL)
        tell(rail, false, status, text);
    if (peer->control == NULL)
        remember(peer, status, text);
    if (peer->control != NULL)
        bt_gets_pump(peer);
    else if (bt_peer_has(peer, RAIL_GREETING))
        hurry(peer, was_ready);
    else if (final)
        bt_peer_drop(peer, status, text);
    else if (!try_next(rail))
        bt_peer_drop(peer, peer->cause, peer->cause_text);
    if (was_ready)
        peer->fails = 0;
}

static void try_later(struct rail *rail)
{
    struct bt_fabric *fabric = fabric_of(rail);
    unsigned int tries = rail->fails > 0 ? rail->fails - 1 : 0;

    bt_fabric_timer(
        fabric, &rail->timer,
        bt_fabric_backoff(fabric, tries, RETRY_FIRST_NS, RETRY_MAX_NS));
}

static void on_failed(void *arg, enum bt_status status)
{
    struct rail *rail = arg;

    if (rail->why != BT_OK)
        bt_rail_fail(rail, rail->why, rail->text, true);
    else if (rail->state == RAIL_GREETING)
        bt_rail_fail(rail, BT_REFUSED, bt_status_text(status), false);
    else
        bt_rail_fail(rail, BT_PEER_DEAD, bt_status_text(status), false);
}

static void on_closed(void *arg)
{
    struct rail *rail = arg;
    struct peer *peer = rail->peer;

    if (rail->key != NULL)
        rail->link.transport->ops->key_close(rail->key);
    rail->key = NULL;
    rail->link.conn = NULL;
    explicit_bzero(&rail->link.seal, sizeof(rail->link.seal));
    move(rail, RAIL_DOWN);
    if (peer->sink->closing)
        return;
    /* Also while another one greets: without a pause, gets that break every
     * connection would have two rails bring each other back for ever. */
    if (peer->control != NULL || bt_peer_has(peer, RAIL_GREETING))
        try_later(rail);
    else if (bt_peer_has_work(peer))
        bt_peer_want(peer);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct rail *rail = w->data;

    (void)loop;
    (void)revents;
    if (rail->state == RAIL_DOWN && rail->peer->control != NULL)
        (void)bt_rail_connect(rail);
    else if (rail->state == RAIL_GREETING && rail->why != BT_OK)
        bt_rail_fail(rail, rail->why, rail->text, true);
    else if (rail->state == RAIL_GREETING)
        bt_rail_fail(rail, BT_PEER_DEAD, "no answer to the handshake", false);
}

/* ---- up ---- */

/* Ours and theirs pair in order; extra ones of ours start over. */
static enum bt_status address_of(const struct rail *rail,
                                 struct sockaddr_storage *out,
                                 socklen_t *size_out)
{
    const struct peer *peer = rail->peer;
    uint32_t remote =
        peer->is_known ? rail->index % (peer->remote_count + 1u) : 0;
    const struct bt_wire_rail *r;

    if (remote == 0)
        return bt_fabric_address(peer->host, peer->port, out, size_out);
    r = &peer->remotes[remote - 1];
    if (r->port == 0)
        return BT_REFUSED;
    return bt_fabric_address(r->address[0] != 0 ? r->address : peer->host,
                             r->port, out, size_out);
}

static enum bt_status connect_rail(struct rail *rail)
{
    struct sockaddr_storage address;
    socklen_t size = 0;
    enum bt_status status = address_of(rail, &address, &size);

    if (status != BT_OK)
        return status;
    return rail->link.transport->ops->connect(rail->link.transport,
                                              (struct sockaddr *)&address, size,
                                              &rail->link.conn);
}

bool bt_rail_connect(struct rail *rail)
{
    static const struct bt_tconn_events events = {bt_rail_frame, on_failed,
                                                  on_closed};
    struct peer *peer = rail->peer;
    enum bt_status status;

    if (peer->sink->closing)
        return false;
    fabric_of(rail)->stats.connects++;
    status = connect_rail(rail);
    if (status != BT_OK) {
        rail->fails++;
        fabric_of(rail)->stats.connects_failed++;
        if (peer->control != NULL) {
            tell(rail, false, status, bt_status_text(status));
            try_later(rail);
        }
        return false;
    }
    rail->link.conn->events = &events;
    rail->link.conn->arg = rail;
    rail->link.sealed = false;
    rail->why = BT_OK;
    move(rail, RAIL_GREETING);
    bt_fabric_timer(fabric_of(rail), &rail->timer,
                    peer->sink->config.connect_timeout_ns);
    bt_rail_hello(rail);
    return true;
}

void bt_rail_ready(struct rail *rail)
{
    ev_timer_stop(fabric_of(rail)->loop, &rail->timer);
    rail->missed = rail->missed_alone = 0;
    rail->heard = true;
    rail->ready_ns = bt_fabric_now();
    move(rail, RAIL_READY);
    bt_gets_rail_ready(rail);
    if (rail->state != RAIL_READY)
        return;
    tell(rail, true, BT_OK, "");
    bt_peer_rail_ready(rail);
    bt_gets_pump(rail->peer);
}

/* ---- life ---- */

void bt_rail_init(struct rail *rail, struct peer *peer, uint32_t index)
{
    struct bt_fabric *fabric = peer->sink->fabric;

    rail->peer = peer;
    rail->index = index;
    rail->link.fabric = fabric;
    rail->link.transport = fabric->rails[index].transport;
    ev_timer_init(&rail->timer, on_timer, 0, 0);
    rail->timer.data = rail;
}

void bt_rail_fini(struct rail *rail)
{
    ev_timer_stop(fabric_of(rail)->loop, &rail->timer);
}
