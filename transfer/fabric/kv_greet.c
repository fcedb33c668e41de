/* What a source says to a sink, frame by frame: the greeting with or without a
 * key, then grants, refusals and signs of life. Decides what is acceptable in
 * which state; what follows from it is kv_rail.c's, kv_peer.c's and
 * kv_pull.c's. Invariant: with a key nothing but CHALLENGE and NO is heard
 * before the source has proved it. */
#include "kv_sink.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define DENIED_BEATS 2 /* for the source to hear our NO and close */

static struct bt_fabric *fabric_of(const struct rail *rail)
{
    return rail->peer->sink->fabric;
}

/* ---- greeting ---- */

static struct bt_wire_frame hello_of(const struct rail *rail)
{
    const struct peer *peer = rail->peer;
    struct bt_wire_frame f = {.type = BT_WIRE_HELLO,
                              .layout = peer->sink->config.layout,
                              .rail = (uint8_t)rail->index,
                              .session = peer->session};

    memcpy(f.name, peer->sink->name, sizeof(f.name));
    memcpy(f.region_name, peer->region_name, sizeof(f.region_name));
    if (fabric_of(rail)->has_key)
        f.flags = BT_WIRE_KEYED;
    memcpy(f.nonce, rail->link.nonce, sizeof(f.nonce));
    return f;
}

void bt_rail_hello(struct rail *rail)
{
    struct bt_wire_frame f;

    bt_fabric_random(rail->link.nonce, sizeof(rail->link.nonce));
    f = hello_of(rail);
    bt_link_send(&rail->link, &f);
}

/* Tell the source, which closes; it may log who it was. */
static void deny(struct rail *rail, const char *text)
{
    struct bt_wire_frame f = {.type = BT_WIRE_NO, .status = BT_REFUSED};

    snprintf(f.text, sizeof(f.text), "%s", text);
    snprintf(rail->text, sizeof(rail->text), "%s", text);
    rail->why = BT_REFUSED;
    bt_link_send(&rail->link, &f);
    bt_fabric_timer(fabric_of(rail), &rail->timer,
                    DENIED_BEATS * fabric_of(rail)->heartbeat_ns);
}

static void on_challenge(struct rail *rail, const struct bt_wire_frame *f)
{
    struct bt_wire_frame prove = {.type = BT_WIRE_PROVE};
    struct bt_wire_frame hello = hello_of(rail);

    if (!fabric_of(rail)->has_key) {
        deny(rail, "the source wants a key, the sink has none");
        return;
    }
    bt_link_keyed(&rail->link, &hello, f->nonce, true);
    if (!bt_seal_proves(&rail->link.seal, f->proof)) {
        deny(rail, "wrong key");
        return;
    }
    bt_seal_proof(&rail->link.seal, prove.proof);
    bt_link_send(&rail->link, &prove);
    rail->link.sealed = true;
}

/* The leading half of two addresses: 2 bytes of IPv4, 6 of IPv6. */
static bool near(const char *a, const char *b)
{
    struct sockaddr_storage x, y;
    socklen_t size;

    if (bt_fabric_address(a, 1, &x, &size) != BT_OK ||
        bt_fabric_address(b, 1, &y, &size) != BT_OK ||
        x.ss_family != y.ss_family)
        return false;
    if (x.ss_family == AF_INET)
        return memcmp(&((struct sockaddr_in *)&x)->sin_addr,
                      &((struct sockaddr_in *)&y)->sin_addr, 2) == 0;
    return memcmp(&((struct sockaddr_in6 *)&x)->sin6_addr,
                  &((struct sockaddr_in6 *)&y)->sin6_addr, 6) == 0;
}

/* A source that proved nothing must not have us connect anywhere: its further
 * rails are near the address we were given, or near one of ours. */
static bool may_go(const struct peer *peer, const char *address)
{
    const struct bt_fabric *fabric = peer->sink->fabric;

    if (fabric->has_key || address[0] == 0 || near(address, peer->host))
        return true;
    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        if (near(address, fabric->rails[i].address))
            return true;
    }
    return false;
}

static void learn(struct peer *peer, const struct bt_wire_frame *f)
{
    memcpy(peer->name, f->name, sizeof(peer->name));
    peer->rule = bt_lane_find(peer->sink->fabric, peer->name);
    peer->instance = f->session;
    peer->region = f->region;
    peer->block_count = f->block_count;
    peer->remote_count = f->rail_count;
    memcpy(peer->remotes, f->rails, sizeof(peer->remotes));
    peer->is_known = true;
    for (uint32_t i = 0; i < f->rail_count; i++) {
        if (!may_go(peer, f->rails[i].address))
            peer->remotes[i].port = 0;
    }
}

static void on_welcome(struct rail *rail, const struct bt_wire_frame *f)
{
    struct peer *peer = rail->peer;
    char text[128];

    if (fabric_of(rail)->has_key && !rail->link.sealed) {
        deny(rail, "the sink wants a key, the source has none");
        return;
    }
    if (bt_wire_layout_match(&f->layout, &peer->sink->config.layout, text,
                             sizeof(text)) != BT_OK) {
        bt_rail_fail(rail, BT_INCOMPATIBLE, text, true);
        return;
    }
    if (bt_peer_has(peer, RAIL_READY) && peer->instance != f->session) {
        bt_peer_drop(peer, BT_PEER_DEAD, "the source was restarted");
        return;
    }
    if (rail->link.transport->ops->key_open(rail->link.conn, f->key,
                                            f->key_size, &rail->key) != BT_OK) {
        bt_rail_fail(rail, BT_REFUSED, "the source's key cannot be opened",
                     false);
        return;
    }
    if (!bt_peer_has(peer, RAIL_READY))
        learn(peer, f);
    bt_rail_ready(rail);
}

/* ---- frames ---- */

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

/* What a source may say; anything else is a plain refusal. Whoever has not
 * proved the key cannot say what is true of blocks. */
static enum bt_status refusal(const struct rail *rail, uint32_t code)
{
    if (fabric_of(rail)->has_key && !rail->link.sealed)
        return code == BT_INCOMPATIBLE ? BT_INCOMPATIBLE : BT_REFUSED;
    if (code == BT_NOT_FOUND || code == BT_LEASE_EXPIRED ||
        code == BT_INCOMPATIBLE || code == BT_CHECKSUM)
        return (enum bt_status)code;
    return BT_REFUSED;
}

static void on_no(struct rail *rail, const struct bt_wire_frame *f)
{
    struct bt_kv_pull *pull;

    if (f->pull == 0) {
        bt_rail_fail(rail, refusal(rail, f->status), f->text, true);
        return;
    }
    pull = pull_find(rail->peer, f->pull);
    if (pull != NULL && pull->state == PULL_OPEN)
        bt_pull_finish(pull, refusal(rail, f->status), f->text);
}

static void on_grant(struct rail *rail, const struct bt_wire_frame *f)
{
    struct bt_kv_pull *pull = pull_find(rail->peer, f->pull);

    if (pull != NULL && rail == rail->peer->control)
        bt_pull_grant(pull, f); /* else late: it ended, or was asked again */
}

static void greeting(struct rail *rail, const struct bt_wire_frame *f)
{
    if (rail->why != BT_OK)
        return; /* said NO: waits for its end */
    if (f->type == BT_WIRE_CHALLENGE && !rail->link.sealed)
        on_challenge(rail, f);
    else if (f->type == BT_WIRE_WELCOME)
        on_welcome(rail, f);
    else if (f->type == BT_WIRE_NO && f->pull == 0)
        on_no(rail, f);
    else /* pulls are for a greeted source to refuse */
        bt_rail_fail(rail, BT_REFUSED, "no greeting", true);
}

static void dispatch(struct rail *rail, const struct bt_wire_frame *f)
{
    struct bt_wire_frame pong = {.type = BT_WIRE_PONG, .token = f->token};

    switch (f->type) {
    case BT_WIRE_NO:
        on_no(rail, f);
        break;
    case BT_WIRE_GRANT:
        on_grant(rail, f);
        break;
    case BT_WIRE_PING:
        bt_link_send(&rail->link, &pong);
        break;
    case BT_WIRE_PONG:
        if (f->token == rail->pinged)
            bt_window_round_trip(&rail->window,
                                 bt_fabric_now() - rail->asked_ns);
        if (rail == rail->peer->control)
            bt_peer_confirmed(rail->peer, f->token);
        break;
    case BT_WIRE_WELCOME:
    case BT_WIRE_CHALLENGE:
    case BT_WIRE_PROVE:
    case BT_WIRE_HELLO:
    case BT_WIRE_OPEN:
    case BT_WIRE_DONE:
    case BT_WIRE_BEAT:
        bt_rail_fail(rail, BT_PEER_DEAD, "a frame out of place", false);
        break;
    }
}

void bt_rail_frame(void *arg, const void *bytes, size_t size)
{
    struct rail *rail = arg;
    struct bt_wire_frame f;
    const char *text = "";
    enum bt_status status;

    if (rail->state != RAIL_GREETING && rail->state != RAIL_READY)
        return;
    rail->heard = true;
    status = bt_link_open(&rail->link, bytes, size, &f, &text);
    if (status == BT_INCOMPATIBLE)
        bt_rail_fail(rail, status, text, true);
    else if (status != BT_OK && rail->state == RAIL_GREETING)
        bt_rail_fail(rail, BT_REFUSED, text, false);
    else if (status != BT_OK)
        bt_rail_fail(rail, BT_PEER_DEAD, text, false);
    else if (rail->state == RAIL_GREETING)
        greeting(rail, &f);
    else
        dispatch(rail, &f);
}
