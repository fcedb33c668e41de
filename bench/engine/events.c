/* See events.h. Decides sequence numbers, framing, replay and when a batch
 * leaves; its bytes are events_encode.c's.
 *
 *   stored/removed/cleared -> batch -> flush -> ring (replay) -> PUB
 *                                                 |  faults: drop, twice,
 *                                                 v  after its successor, late
 *
 * Invariants: the ring holds the last `buffer` payloads with consecutive
 * sequence numbers ending at next - 1; a dropped batch is still in the ring,
 * as when the network lost it.
 */
#include "events.h"

#include <errno.h>
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define HASHES_MAX     4096 /* per announced event */
#define DELAYED_MAX    4096
#define READS_PER_TURN 16
#define ENDPOINT_MAX   160
#define TOPIC_MAX      128

struct payload {
    void *bytes;
    size_t size;
};

struct delayed {
    uint64_t sequence;
    double at; /* loop time */
};

struct bt_events {
    struct ev_loop *loop;
    void *context, *pub, *router;
    ev_io router_io;
    ev_prepare prepare;
    ev_timer delay_timer;
    struct bt_event_batch batch;
    uint64_t next;
    struct payload *ring;
    uint32_t ring_size;
    char topic[TOPIC_MAX], endpoint[ENDPOINT_MAX],
        replay_endpoint[ENDPOINT_MAX];
    struct bt_events_faults faults;
    struct bt_rng rng;
    bool has_held; /* reorder: waits for its successor */
    uint64_t held;
    struct delayed delayed[DELAYED_MAX];
    uint32_t delayed_head, delayed_count;
    bool replay_bare;
};

static void put_be64(unsigned char *out, uint64_t v)
{
    for (int i = 7; i >= 0; i--) {
        out[i] = (unsigned char)v;
        v >>= 8;
    }
}

static uint64_t get_be64(const unsigned char *in)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        v = v << 8 | in[i];
    }
    return v;
}

static struct payload *slot(struct bt_events *e, uint64_t sequence)
{
    return &e->ring[sequence % e->ring_size];
}

/* ---- live ---- */

static void send_live(struct bt_events *e, uint64_t sequence)
{
    unsigned char seq[8];
    if (sequence + e->ring_size < e->next) {
        return; /* delayed for so long that it left the ring */
    }
    const struct payload *p = slot(e, sequence);
    put_be64(seq, sequence);
    const int flags = ZMQ_DONTWAIT | ZMQ_SNDMORE;
    if (zmq_send(e->pub, e->topic, strlen(e->topic), flags) < 0 ||
        zmq_send(e->pub, seq, 8, flags) < 0) {
        return; /* PUB drops on overflow, as the real one */
    }
    (void)zmq_send(e->pub, p->bytes, p->size, ZMQ_DONTWAIT);
}

static bool chance(struct bt_events *e, double percent)
{
    return percent > 0 && bt_rng_unit(&e->rng) * 100.0 < percent;
}

static void release_held(struct bt_events *e)
{
    if (e->has_held) {
        e->has_held = false;
        send_live(e, e->held);
    }
}

static void route(struct bt_events *e, uint64_t sequence)
{
    if (chance(e, e->faults.drop)) {
        return;
    }
    if (!e->has_held && chance(e, e->faults.reorder)) {
        e->has_held = true;
        e->held = sequence;
        return;
    }
    send_live(e, sequence);
    if (chance(e, e->faults.duplicate)) {
        send_live(e, sequence);
    }
    release_held(e);
}

static void arm_delay(struct bt_events *e)
{
    if (e->delayed_count == 0 || ev_is_active(&e->delay_timer)) {
        return;
    }
    double wait = e->delayed[e->delayed_head].at - ev_now(e->loop);
    ev_timer_set(&e->delay_timer, wait > 0 ? wait : 0, 0);
    ev_timer_start(e->loop, &e->delay_timer);
}

static void pop_delayed(struct bt_events *e)
{
    uint64_t sequence = e->delayed[e->delayed_head].sequence;
    e->delayed_head = (e->delayed_head + 1) % DELAYED_MAX;
    e->delayed_count--;
    route(e, sequence);
}

static void on_delay(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_events *e = w->data;
    (void)revents;
    while (e->delayed_count > 0 &&
           e->delayed[e->delayed_head].at <= ev_now(loop)) {
        pop_delayed(e);
    }
    arm_delay(e);
}

static void publish(struct bt_events *e, uint64_t sequence)
{
    if (e->faults.delay_ms <= 0 && e->delayed_count == 0) {
        route(e, sequence);
        return;
    }
    if (e->delayed_count == DELAYED_MAX) {
        pop_delayed(e);
    }
    uint32_t at = (e->delayed_head + e->delayed_count++) % DELAYED_MAX;
    e->delayed[at].sequence = sequence;
    e->delayed[at].at = ev_now(e->loop) + e->faults.delay_ms / 1000.0;
    arm_delay(e);
}

void bt_events_flush(struct bt_events *e)
{
    struct timespec ts;
    size_t size = 0;
    if (e->batch.count == 0) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &ts);
    double now = (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
    void *bytes = bt_event_batch_payload(&e->batch, now, 0, &size);
    bt_event_batch_clear(&e->batch);
    if (bytes == NULL) {
        return;
    }
    uint64_t sequence = e->next++;
    struct payload *p = slot(e, sequence);
    free(p->bytes);
    p->bytes = bytes;
    p->size = size;
    publish(e, sequence);
}

/* ---- replay ---- */

/* False: the peer's queue is full or it has gone; the rest would be lost. */
static bool reply(struct bt_events *e, zmq_msg_t *peer, const char *topic,
                  uint64_t sequence, const struct payload *p)
{
    unsigned char seq[8];
    zmq_msg_t id;
    const int more = ZMQ_DONTWAIT | ZMQ_SNDMORE;
    put_be64(seq, sequence);
    zmq_msg_init(&id);
    if (zmq_msg_copy(&id, peer) != 0 ||
        zmq_msg_send(&id, e->router, more) < 0) {
        zmq_msg_close(&id);
        return false;
    }
    (void)zmq_send(e->router, "", 0, more);
    if (!e->replay_bare) {
        (void)zmq_send(e->router, topic, strlen(topic), more);
    }
    (void)zmq_send(e->router, seq, 8, more);
    return zmq_send(e->router, p->bytes, p->size, ZMQ_DONTWAIT) >= 0;
}

static void answer(struct bt_events *e, zmq_msg_t *peer, uint64_t start)
{
    unsigned char nothing = 0;
    const struct payload none = {&nothing, 0};
    uint64_t oldest = e->next > e->ring_size ? e->next - e->ring_size : 0;
    bool ok = true;
    for (uint64_t s = start > oldest ? start : oldest; s < e->next && ok; s++) {
        ok = reply(e, peer, e->topic, s, slot(e, s));
    }
    (void)reply(e, peer, "", UINT64_MAX, &none);
}

/* One request: identity, "", start. Anything else is not answered. False when
 * there was none. */
static bool read_request(struct bt_events *e)
{
    zmq_msg_t frame[3];
    int frames = 0, more = 1;
    for (int i = 0; i < 3; i++) {
        zmq_msg_init(&frame[i]);
    }
    while (more) {
        zmq_msg_t extra, *m = frames < 3 ? &frame[frames] : &extra;
        if (m == &extra) {
            zmq_msg_init(&extra);
        }
        int rc = zmq_msg_recv(m, e->router, ZMQ_DONTWAIT);
        more = rc >= 0 && zmq_msg_more(m);
        frames += rc >= 0;
        if (m == &extra) {
            zmq_msg_close(&extra);
        }
    }
    if (frames == 3 && zmq_msg_size(&frame[1]) == 0 &&
        zmq_msg_size(&frame[2]) == 8) {
        answer(e, &frame[0], get_be64(zmq_msg_data(&frame[2])));
    }
    for (int i = 0; i < 3; i++) {
        zmq_msg_close(&frame[i]);
    }
    return frames > 0;
}

/* The fd of a socket is edge triggered and shared by reads and writes: look at
 * the socket itself before every sleep. Left-over work keeps the loop awake. */
static void serve_router(struct bt_events *e)
{
    int left = READS_PER_TURN;
    while (left > 0 && read_request(e)) {
        left--;
    }
    if (left == 0) {
        ev_feed_event(e->loop, &e->router_io, EV_READ);
    }
}

static void on_router(struct ev_loop *loop, ev_io *w, int revents)
{
    (void)loop;
    (void)revents;
    serve_router(w->data);
}

static void on_prepare(struct ev_loop *loop, ev_prepare *w, int revents)
{
    struct bt_events *e = w->data;
    int ready = 0;
    size_t size = sizeof(ready);
    (void)loop;
    (void)revents;
    if (zmq_getsockopt(e->router, ZMQ_EVENTS, &ready, &size) == 0 &&
        (ready & ZMQ_POLLIN) != 0) {
        serve_router(e);
    }
}

/* ---- queueing ---- */

/* Cut into events that a receiver with bounded tables can take. */
void bt_events_stored(struct bt_events *e, const struct bt_event_store *store)
{
    struct bt_event_store s = *store;
    uint32_t per_block =
        store->hash_count == 0 ? 0 : store->token_count / store->hash_count;
    for (uint32_t at = 0; at < store->hash_count; at += s.hash_count) {
        uint32_t left = store->hash_count - at;
        s.hashes = store->hashes + at;
        s.hash_count = left > HASHES_MAX ? HASHES_MAX : left;
        s.tokens = store->tokens + (size_t)at * per_block;
        s.token_count = s.hash_count * per_block;
        bt_event_stored(&e->batch, &s);
        s.has_parent = true;
        s.parent = s.hashes[s.hash_count - 1];
    }
}

void bt_events_removed(struct bt_events *e, uint64_t hash)
{
    bt_event_removed(&e->batch, hash);
}

void bt_events_cleared(struct bt_events *e)
{
    bt_event_cleared(&e->batch);
}

/* A fault that ends lets go of what it kept back: nothing else might. */
void bt_events_set_faults(struct bt_events *e,
                          const struct bt_events_faults *faults)
{
    e->faults = *faults;
    while (e->faults.delay_ms <= 0 && e->delayed_count > 0) {
        pop_delayed(e);
    }
    if (e->delayed_count == 0) {
        ev_timer_stop(e->loop, &e->delay_timer);
    }
    if (e->faults.reorder <= 0) {
        release_held(e);
    }
}

uint64_t bt_events_next_sequence(const struct bt_events *e)
{
    return e->next;
}

const char *bt_events_endpoint(const struct bt_events *e)
{
    return e->endpoint;
}

const char *bt_events_replay_endpoint(const struct bt_events *e)
{
    return e->replay_endpoint;
}

/* ---- life ---- */

/* ZeroMQ cuts a port to 16 bits and overlooks what follows its digits: the
 * socket would be somewhere else. */
static bool good_port(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');
    if (strncmp(endpoint, "tcp://", 6) != 0 || colon == NULL ||
        strcmp(colon, ":*") == 0) {
        return true; /* or left to ZeroMQ */
    }
    size_t digits = strspn(colon + 1, "0123456789");
    return digits >= 1 && digits <= 5 && colon[1 + digits] == '\0' &&
           strtol(colon + 1, NULL, 10) <= UINT16_MAX;
}

/* Port 0 means "pick one", which ZeroMQ writes as "*". False: too long. */
static bool normal_endpoint(char *out, size_t size, const char *endpoint)
{
    size_t bytes = strlen(endpoint);
    bool pick = bytes >= 2 && strcmp(endpoint + bytes - 2, ":0") == 0;
    int n = snprintf(out, size, "%.*s%s", (int)(pick ? bytes - 1 : bytes),
                     endpoint, pick ? "*" : "");
    return n > 0 && (size_t)n < size;
}

/* 0, or the errno. The endpoint of a connected socket is what was given. */
static int attach(void *socket, bool connect, const char *name, char *end,
                  size_t end_size)
{
    if (connect) {
        snprintf(end, end_size, "%s", name);
        return zmq_connect(socket, name) == 0 ? 0 : zmq_errno();
    }
    if (zmq_bind(socket, name) != 0 ||
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, end, &end_size) != 0) {
        return zmq_errno();
    }
    return 0;
}

/* 0, or the errno of what failed. `end` has ENDPOINT_MAX bytes. */
static int open_socket(struct bt_events *e, int type, bool connect,
                       const char *endpoint, void **socket_out, char *end)
{
    char name[ENDPOINT_MAX];
    int linger = 0, hwm = 100000;
    if (!good_port(endpoint)) {
        return EINVAL;
    }
    if (!normal_endpoint(name, sizeof(name), endpoint)) {
        return ENAMETOOLONG;
    }
    void *socket = zmq_socket(e->context, type);
    if (socket == NULL) {
        return zmq_errno();
    }
    *socket_out = socket; /* closed by destroy, also after a failure */
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    if (type == ZMQ_PUB) { /* the ROUTER keeps 1000, as the real one */
        zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof(hwm));
    }
    return attach(socket, connect, name, end, ENDPOINT_MAX);
}

static void start_watching(struct bt_events *e)
{
    int fd = -1;
    size_t size = sizeof(fd);
    ev_timer_init(&e->delay_timer, on_delay, 0, 0);
    e->delay_timer.data = e;
    if (e->router == NULL) {
        return;
    }
    (void)zmq_getsockopt(e->router, ZMQ_FD, &fd, &size);
    ev_io_init(&e->router_io, on_router, fd, EV_READ);
    e->router_io.data = e;
    ev_io_start(e->loop, &e->router_io);
    ev_prepare_init(&e->prepare, on_prepare);
    e->prepare.data = e;
    ev_prepare_start(e->loop, &e->prepare);
}

/* What the operator wrote wrong is BT_INVALID. */
static enum bt_status bind_status(int error)
{
    switch (error) {
    case 0:
        return BT_OK;
    case EADDRINUSE:
        return BT_EXISTS;
    case EINVAL:
    case ENAMETOOLONG:
    case EPROTONOSUPPORT:
    case ENOCOMPATPROTO:
    case ENODEV: /* no such interface or address */
    case EADDRNOTAVAIL:
        return BT_INVALID;
    default:
        return BT_IO;
    }
}

static enum bt_status open_sockets(struct bt_events *e,
                                   const struct bt_events_config *config,
                                   char *error_out, size_t error_size)
{
    const char *name = config->endpoint;
    const char *verb = config->connect ? "connect to" : "bind";
    int error =
        open_socket(e, ZMQ_PUB, config->connect, name, &e->pub, e->endpoint);
    if (error == 0 && config->replay_endpoint != NULL) {
        name = config->replay_endpoint;
        verb = "bind";
        error = open_socket(e, ZMQ_ROUTER, false, name, &e->router,
                            e->replay_endpoint);
    }
    if (error != 0) {
        snprintf(error_out, error_size, "cannot %s %.80s: %s", verb, name,
                 zmq_strerror(error));
    }
    return bind_status(error);
}

enum bt_status bt_events_topic(struct bt_events *e, const char *topic)
{
    if (strlen(topic) >= TOPIC_MAX) { /* never a cut one */
        return BT_INVALID;
    }
    snprintf(e->topic, sizeof(e->topic), "%s", topic);
    return BT_OK;
}

enum bt_status bt_events_create(struct ev_loop *loop,
                                const struct bt_events_config *config,
                                struct bt_events **out, char *error_out,
                                size_t error_size)
{
    struct bt_events *e = calloc(1, sizeof(*e));
    snprintf(error_out, error_size, "no memory for the event plane");
    if (e == NULL) {
        return BT_NO_MEMORY;
    }
    e->loop = loop;
    e->ring_size = config->buffer > 0 ? config->buffer : 1;
    e->replay_bare = config->replay_bare;
    bt_rng_seed(&e->rng, config->seed);
    enum bt_status status =
        bt_event_batch_init(&e->batch, config->form, config->hash_bytes);
    e->ring = calloc(e->ring_size, sizeof(*e->ring));
    e->context = zmq_ctx_new();
    if (status != BT_OK || e->ring == NULL || e->context == NULL) {
        status = BT_NO_MEMORY;
    } else if (bt_events_topic(e, config->topic) != BT_OK) {
        snprintf(error_out, error_size, "events topic: at most %d bytes",
                 TOPIC_MAX - 1);
        status = BT_INVALID;
    } else {
        status = open_sockets(e, config, error_out, error_size);
    }
    if (status != BT_OK) {
        bt_events_destroy(e);
        return status;
    }
    start_watching(e);
    *out = e;
    return BT_OK;
}

void bt_events_destroy(struct bt_events *e)
{
    if (e == NULL) {
        return;
    }
    ev_io_stop(e->loop, &e->router_io);
    ev_prepare_stop(e->loop, &e->prepare);
    ev_timer_stop(e->loop, &e->delay_timer);
    if (e->pub != NULL) {
        zmq_close(e->pub);
    }
    if (e->router != NULL) {
        zmq_close(e->router);
    }
    if (e->context != NULL) {
        zmq_ctx_term(e->context);
    }
    for (uint32_t i = 0; e->ring != NULL && i < e->ring_size; i++) {
        free(e->ring[i].bytes);
    }
    free(e->ring);
    bt_event_batch_fini(&e->batch);
    free(e);
}
