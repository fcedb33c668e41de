/* A source as a sink sees it: which rail carries control, what waits for a
 * connection, when it is dead, and when it is not worth another try. The rails
 * themselves are kv_rail.c's. Invariants: control is a ready rail, or there is
 * none; when control moves, unanswered OPENs and DONEs that may be lost are
 * sent again; a peer without a rail that is ready or greeting ends its pulls;
 * after FAILS_MAX vain attempts in a row it is not tried for a while (E17). */
#include "kv_sink.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAILS_MAX      3u
#define SPARE_FIRST_NS 250000000LL
#define SPARE_MAX_NS   4000000000LL

static uint32_t rail_count(const struct peer *peer)
{
    return peer->sink->fabric->rail_count;
}

bool bt_peer_has(const struct peer *peer, enum rail_state state)
{
    for (uint32_t i = 0; i < rail_count(peer); i++) {
        if (peer->rails[i].state == state)
            return true;
    }
    return false;
}

bool bt_peer_is_down(const struct peer *peer)
{
    for (uint32_t i = 0; i < rail_count(peer); i++) {
        if (peer->rails[i].state != RAIL_DOWN)
            return false;
    }
    return true;
}

bool bt_peer_has_work(const struct peer *peer)
{
    return !TAILQ_EMPTY(&peer->pulls) || peer->waiting_count > 0;
}

/* ---- notes ---- */

static void send_note(struct peer *peer, const struct note *note)
{
    struct bt_wire_frame f = {
        .type = note->type, .pull = note->pull, .flags = note->flags};

    memcpy(f.request, note->request, sizeof(f.request));
    bt_link_send(&peer->control->link, &f);
}

static void notes_free(struct notes *notes, unsigned int *count)
{
    struct note *note;

    while ((note = STAILQ_FIRST(notes)) != NULL) {
        STAILQ_REMOVE_HEAD(notes, entry);
        free(note);
    }
    *count = 0;
}

/* A DONE is kept until a PONG shows that it has arrived; the oldest goes when
 * there are too many. Takes the note. */
static void keep(struct peer *peer, struct note *note)
{
    struct note *oldest = STAILQ_FIRST(&peer->unconfirmed);

    if (note->type != BT_WIRE_DONE) {
        free(note);
        return;
    }
    if (peer->unconfirmed_count == BT_SINK_NOTES_MAX && oldest != NULL) {
        STAILQ_REMOVE_HEAD(&peer->unconfirmed, entry);
        peer->unconfirmed_count--;
        free(oldest);
    }
    note->token = peer->token;
    STAILQ_INSERT_TAIL(&peer->unconfirmed, note, entry);
    peer->unconfirmed_count++;
}

void bt_peer_confirmed(struct peer *peer, uint64_t token)
{
    struct note *note;

    while ((note = STAILQ_FIRST(&peer->unconfirmed)) != NULL &&
           note->token < token) {
        STAILQ_REMOVE_HEAD(&peer->unconfirmed, entry);
        peer->unconfirmed_count--;
        free(note);
    }
}

void bt_peer_note(struct peer *peer, const struct note *note)
{
    struct note *copy;

    peer->used_ns = bt_fabric_now();
    if (peer->control != NULL)
        send_note(peer, note);
    if (peer->control == NULL && peer->waiting_count == BT_SINK_NOTES_MAX)
        return;
    copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return;
    *copy = *note;
    if (peer->control != NULL) {
        keep(peer, copy);
        return;
    }
    STAILQ_INSERT_TAIL(&peer->waiting, copy, entry);
    peer->waiting_count++;
    bt_peer_want(peer);
}

/* ---- control ---- */

static void send_waiting(struct peer *peer)
{
    struct note *note;

    while ((note = STAILQ_FIRST(&peer->waiting)) != NULL) {
        STAILQ_REMOVE_HEAD(&peer->waiting, entry);
        peer->waiting_count--;
        send_note(peer, note);
        keep(peer, note);
    }
}

static void take_control(struct rail *rail)
{
    struct peer *peer = rail->peer;
    struct bt_kv_pull *pull, *next;
    struct note *note;

    peer->control = rail;
    STAILQ_FOREACH(note, &peer->unconfirmed, entry)
    {
        send_note(peer, note);
        note->token = peer->token;
    }
    send_waiting(peer);
    for (pull = TAILQ_FIRST(&peer->pulls); pull != NULL; pull = next) {
        next = TAILQ_NEXT(pull, entry);
        if (pull->state == PULL_WAIT || pull->state == PULL_OPEN)
            bt_pull_open(pull);
    }
}

void bt_peer_rail_ready(struct rail *rail)
{
    struct peer *peer = rail->peer;

    peer->fails = 0;
    peer->cause = BT_OK;
    if (peer->control == NULL)
        take_control(rail);
    for (uint32_t i = 0; i < rail_count(peer); i++) {
        struct rail *other = &peer->rails[i];

        if (other->state == RAIL_DOWN && !ev_is_active(&other->timer))
            (void)bt_rail_connect(other);
    }
}

void bt_peer_rail_lost(struct rail *rail)
{
    struct peer *peer = rail->peer;

    if (peer->control != rail)
        return;
    peer->control = NULL;
    for (uint32_t i = 0; i < rail_count(peer); i++) {
        if (peer->rails[i].state == RAIL_READY) {
            take_control(&peer->rails[i]);
            return;
        }
    }
}

/* ---- dead or not ---- */

static void end_pulls(struct peer *peer, enum bt_status status,
                      const char *detail)
{
    struct bt_kv_pull *pull, *next;

    notes_free(&peer->waiting, &peer->waiting_count);
    notes_free(&peer->unconfirmed, &peer->unconfirmed_count);
    for (pull = TAILQ_FIRST(&peer->pulls); pull != NULL; pull = next) {
        next = TAILQ_NEXT(pull, entry);
        bt_pull_finish(pull, status, detail);
    }
}

void bt_peer_drop(struct peer *peer, enum bt_status status, const char *detail)
{
    bool was_ready = peer->control != NULL || bt_peer_has(peer, RAIL_READY);

    peer->control = NULL;
    for (uint32_t i = 0; i < rail_count(peer); i++)
        bt_rail_close(&peer->rails[i]);
    if (status != BT_CANCELLED) {
        peer->last_status = status;
        snprintf(peer->last_text, sizeof(peer->last_text), "%s", detail);
    }
    if (!was_ready && status != BT_CANCELLED && ++peer->fails >= FAILS_MAX)
        peer->spare_ns =
            bt_fabric_now() + bt_fabric_backoff(peer->sink->fabric,
                                                peer->fails - FAILS_MAX,
                                                SPARE_FIRST_NS, SPARE_MAX_NS);
    end_pulls(peer, status, detail);
}

static bool spared(struct peer *peer)
{
    char text[sizeof(peer->last_text) + 32];

    if (peer->fails < FAILS_MAX || bt_fabric_now() >= peer->spare_ns)
        return false;
    peer->sink->fabric->stats.connects_spared++;
    snprintf(text, sizeof(text), "not tried again yet: %s", peer->last_text);
    end_pulls(peer, peer->last_status, text);
    return true;
}

void bt_peer_want(struct peer *peer)
{
    bool is_out = false;

    if (peer->sink->closing || !bt_peer_is_down(peer) || spared(peer))
        return;
    peer->cause = BT_OK;
    bt_fabric_random(&peer->session, sizeof(peer->session));
    for (uint32_t i = 0; i < rail_count(peer); i++) {
        is_out = bt_rail_connect(&peer->rails[i]) || is_out;
        if (is_out && !peer->is_known)
            break;
    }
    if (!is_out)
        bt_peer_drop(peer, BT_REFUSED, "no rail can connect");
}

/* ---- timers ---- */

static bool is_any_heard(const struct peer *peer)
{
    for (uint32_t i = 0; i < rail_count(peer); i++) {
        if (peer->rails[i].state == RAIL_READY && peer->rails[i].heard)
            return true;
    }
    return false;
}

/* Why the rail is to be given up, or NULL; any: some rail of its peer was heard
 * in this beat. A source that is held up is silent on all. */
static const char *silence(struct rail *rail, bool any)
{
    unsigned int weight = rail->peer->sink->fabric->beat_weight;

    if (rail->heard)
        rail->missed = rail->missed_alone = 0;
    else {
        rail->missed += weight;
        rail->missed_alone += any ? weight : 0;
    }
    rail->heard = false;
    if (rail->missed_alone >= BT_FABRIC_SILENT_RAIL * BT_FABRIC_BEAT)
        return "silent for two heartbeats in which another rail was not";
    if (rail->missed >= BT_FABRIC_SILENT_SOURCE * BT_FABRIC_BEAT)
        return "silent for five heartbeats";
    return NULL;
}

static void rail_heartbeat(struct rail *rail, bool any)
{
    struct bt_wire_frame ping = {.type = BT_WIRE_PING};
    const char *why;

    if (rail->state != RAIL_READY)
        return;
    why = silence(rail, any);
    if (why != NULL) {
        bt_rail_fail(rail, BT_PEER_DEAD, why, false);
        return;
    }
    ping.token = rail->pinged = ++rail->peer->token;
    rail->asked_ns = bt_fabric_now();
    bt_link_send(&rail->link, &ping);
}

void bt_peer_heartbeat(struct peer *peer)
{
    int64_t idle_ns = bt_fabric_now() - peer->used_ns;
    bool any = is_any_heard(peer);

    for (uint32_t i = 0; i < rail_count(peer); i++)
        rail_heartbeat(&peer->rails[i], any);
    if (peer->refs > 0 || bt_peer_has_work(peer) ||
        idle_ns < peer->sink->config.idle_ns)
        return;
    if (bt_peer_is_down(peer)) {
        bt_peer_free(peer);
        return;
    }
    if (peer->control != NULL)
        peer->sink->fabric->stats.peers_idle++;
    bt_peer_drop(peer, BT_CANCELLED, "idle");
}

void bt_peer_beat(struct peer *peer)
{
    struct bt_wire_frame f = {.type = BT_WIRE_BEAT};
    struct bt_kv_pull *pull;

    if (peer->control == NULL)
        return;
    TAILQ_FOREACH(pull, &peer->pulls, entry)
    {
        memcpy(f.request, pull->request, sizeof(f.request));
        bt_link_send(&peer->control->link, &f);
    }
}
