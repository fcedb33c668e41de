/* The event plane on real ZeroMQ sockets, a sink that keeps a list of what it
 * is told, and scripted publishers. Waits on what the plane says, never on
 * time. */
#ifndef BATON_TESTS_EVENTS_PLANE_RIG_H
#define BATON_TESTS_EVENTS_PLANE_RIG_H

#include "baton/orchestrator/event_plane.h"
#include "kv_wire.h"

#include <ev.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#define RANKS   4
#define LOG_MAX 8192
#define WAIT_S  20.
#define BLOCK   4
#define HISTORY 512
#define MS      INT64_C(1000000)

/* ---- the sink: a plain list of what it was told ---- */

struct told {
    uint64_t hash;
    bool live;
};

struct rank_log {
    struct told blocks[LOG_MAX];
    size_t count;
    unsigned int stores, removes, clears, sizes, countings;
    uint32_t size;
    enum bt_stream_state state;
    enum bt_stream_cause cause;
    bool was_exact;
};

struct world {
    struct ev_loop *loop;
    struct bt_event_plane *plane;
    struct rank_log ranks[RANKS];
    char said[4096];
    bool park; /* answer NOT_FOUND for parents that were not told */
    bool nested_alive;
};

static struct world w;
static int64_t unheard_ns, gone_ns; /* of the next plane */

static inline bool known(const struct rank_log *log, uint64_t hash)
{
    for (size_t i = log->count; i > 0; i--)
        if (log->blocks[i - 1].hash == hash)
            return log->blocks[i - 1].live;
    return false;
}

static inline enum bt_status on_store(void *arg, uint32_t source, uint32_t rank,
                                      const struct bt_kv_store *store)
{
    struct rank_log *log = &w.ranks[rank];

    (void)arg;
    assert_true(source < 4 && rank < RANKS);
    if (w.park && store->has_parent && !known(log, store->parent))
        return BT_NOT_FOUND;
    log->stores++;
    for (size_t i = 0; i < store->hash_count; i++) {
        assert_true(log->count < LOG_MAX);
        log->blocks[log->count++] =
            (struct told){.hash = store->hashes[i], .live = true};
    }
    if (w.nested_alive) {
        w.nested_alive = false;
        bt_event_plane_alive(w.plane, source, 77, 0);
        assert_int_not_equal(log->count, 0); /* not under our hands */
    }
    return BT_OK;
}

static inline void on_remove(void *arg, uint32_t source, uint32_t rank,
                             const struct bt_ev_kv_remove *remove)
{
    struct rank_log *log = &w.ranks[rank];

    (void)arg;
    (void)source;
    log->removes++;
    for (size_t i = 0; i < remove->count; i++)
        for (size_t k = 0; k < log->count; k++)
            if (log->blocks[k].hash == remove->hashes[i])
                log->blocks[k].live = false;
}

static inline void on_clear(void *arg, uint32_t source, uint32_t rank,
                            const struct bt_ev_kv_clear *clear)
{
    (void)arg;
    (void)source;
    (void)clear;
    w.ranks[rank].clears++;
    w.ranks[rank].count = 0;
}

static inline void on_counting(void *arg, uint32_t source, uint32_t rank,
                               enum bt_kv_counting counting)
{
    (void)arg;
    (void)source;
    (void)counting;
    w.ranks[rank].countings++;
}

static inline void on_state(void *arg, uint32_t source, uint32_t rank,
                            enum bt_stream_state state,
                            enum bt_stream_cause cause)
{
    (void)arg;
    (void)source;
    w.ranks[rank].state = state;
    w.ranks[rank].cause = cause;
    w.ranks[rank].was_exact |= state == BT_STREAM_EXACT;
}

static inline void on_size(void *arg, uint32_t source, uint32_t rank,
                           uint32_t block_tokens)
{
    (void)arg;
    (void)source;
    w.ranks[rank].sizes++;
    w.ranks[rank].size = block_tokens;
}

static inline uint64_t on_copies(void *arg, uint32_t source, uint32_t rank)
{
    (void)arg;
    (void)source;
    return w.ranks[rank].count;
}

static inline void on_say(void *arg, int level, const char *word,
                          const char *text)
{
    size_t at = strlen(w.said);

    (void)arg;
    snprintf(w.said + at, sizeof(w.said) - at, "%d %s %s\n", level, word, text);
}

static inline void plane_start(const char *bind)
{
    struct bt_event_plane_config config;
    struct bt_event_sink sink = {on_store,    on_remove, on_clear,
                                 on_counting, on_state,  on_size,
                                 on_copies,   on_say,    NULL};
    char error[160] = "";

    memset(&w, 0, sizeof(w));
    w.park = true;
    w.loop = ev_loop_new(EVFLAG_AUTO);
    bt_event_plane_config_init(&config);
    config.bind = bind;
    config.sources_max = 4;
    config.silence_ns = 60 * MS;
    config.replay_ns = 5000 * MS;
    config.cooldown_ns = 120 * MS;
    config.busy_silent_ns = 200 * MS;
    config.unheard_ns = unheard_ns;
    config.gone_ns = gone_ns;
    if (bt_event_plane_create(w.loop, &config, &sink, &w.plane, error,
                              sizeof(error)) != BT_OK)
        fail_msg("create: %s", error);
}

static inline void plane_stop(void)
{
    bt_event_plane_destroy(w.plane);
    ev_loop_destroy(w.loop);
}

/* ---- the publisher: what an engine's rank does ---- */

enum framing { FRAMING_OLD, FRAMING_NEW };

struct publisher {
    void *context, *pub, *router;
    char endpoint[128], replay[128], topic[64];
    int label;
    uint64_t seq;
    uint64_t life;
    double ts;
    struct {
        unsigned char bytes[2048];
        size_t size;
    } history[HISTORY];
    uint64_t first;   /* the oldest that is kept */
    bool no_end_mark; /* of its dumps */
    uint64_t lose;    /* the first dump loses this batch; UINT64_MAX none */
    unsigned int asked;
    enum framing framing;
};

static inline void publisher_sockets(struct publisher *p)
{
    int linger = 0;

    p->pub = zmq_socket(p->context, ZMQ_PUB);
    zmq_setsockopt(p->pub, ZMQ_LINGER, &linger, sizeof(linger));
    if (p->replay[0] == '\0')
        return;
    p->router = zmq_socket(p->context, ZMQ_ROUTER);
    zmq_setsockopt(p->router, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_bind(p->router, p->replay), 0);
}

#define PORTS 20

static bool port_is_free(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool good = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;

    if (fd >= 0)
        close(fd);
    return good;
}

/* The first of PORTS free ports that follow each other. */
static inline int port_base(void)
{
    static int at;

    if (at == 0)
        at = 20000 + getpid() % 500 * PORTS;
    for (int tries = 0; tries < 500; tries++, at += PORTS) {
        int good = 0;

        if (at > 32000)
            at = 20000;
        while (good < PORTS && port_is_free(at + good))
            good++;
        if (good == PORTS) {
            at += PORTS;
            return at - PORTS;
        }
    }
    fail_msg("no free ports");
    return 0;
}

/* replay_port 0: none. */
static inline void publisher_open(struct publisher *p, int port,
                                  int replay_port)
{
    memset(p, 0, sizeof(*p));
    p->context = zmq_ctx_new();
    p->label = -1;
    p->lose = UINT64_MAX;
    p->ts = 1000.;
    p->framing = FRAMING_NEW;
    snprintf(p->endpoint, sizeof(p->endpoint), "tcp://127.0.0.1:%d", port);
    if (replay_port != 0)
        snprintf(p->replay, sizeof(p->replay), "tcp://127.0.0.1:%d",
                 replay_port);
    publisher_sockets(p);
    if (port != 0)
        assert_int_equal(zmq_bind(p->pub, p->endpoint), 0);
}

static inline void publisher_close(struct publisher *p)
{
    zmq_close(p->pub);
    if (p->router != NULL)
        zmq_close(p->router);
    zmq_ctx_term(p->context);
}

static inline void send_frames(struct publisher *p, const void *seq,
                               size_t seq_bytes, const void *payload,
                               size_t bytes)
{
    zmq_send(p->pub, p->topic, strlen(p->topic), ZMQ_SNDMORE);
    zmq_send(p->pub, seq, seq_bytes, ZMQ_SNDMORE);
    zmq_send(p->pub, payload, bytes, 0);
}

static inline void be64(unsigned char out[8], uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(v >> (56 - 8 * i));
}

/* Hash of the block that batch `seq` of this life stores. */
static inline uint64_t block_of(const struct publisher *p, uint64_t seq)
{
    return (p->life + 1) * 1000000 + (uint64_t)(p->label + 2) * 10000000000 +
           seq;
}

/* Keep a batch in the history and send it, unless it is to be lost. */
static inline void publish(struct publisher *p, const struct kv_wire *wire,
                           bool lost)
{
    unsigned char seq[8];
    uint64_t at = p->seq++;

    assert_true(at < HISTORY && wire->bytes <= sizeof(p->history[at].bytes));
    memcpy(p->history[at].bytes, wire->at, wire->bytes);
    p->history[at].size = wire->bytes;
    be64(seq, at);
    if (!lost)
        send_frames(p, seq, 8, wire->at, wire->bytes);
}

static inline void store_sized(struct publisher *p, bool lost, uint32_t size,
                               bool has_parent, uint64_t parent)
{
    static struct kv_wire wire;
    uint64_t hash = block_of(p, p->seq);
    struct kv_wire_store s = {.hashes = &hash,
                              .count = 1,
                              .has_parent = has_parent,
                              .parent = parent,
                              .first = (uint32_t)p->seq,
                              .size = size,
                              .group = -1};

    wire_begin(&wire, p->ts += 0.5);
    wire_stored(&wire, &s);
    wire_end(&wire, p->label);
    publish(p, &wire, lost);
}

/* One batch: a block that continues nothing. */
static inline void store(struct publisher *p, bool lost)
{
    store_sized(p, lost, BLOCK, false, 0);
}

static inline void restart(struct publisher *p)
{
    p->life++;
    p->seq = 0;
    p->ts += 100.;
}

static inline void dump_one(struct publisher *p, const zmq_msg_t *who,
                            uint64_t seq, const void *payload, size_t bytes)
{
    unsigned char be[8];

    be64(be, seq);
    zmq_send(p->router, zmq_msg_data((zmq_msg_t *)(uintptr_t)who),
             zmq_msg_size(who), ZMQ_SNDMORE);
    zmq_send(p->router, "", 0, ZMQ_SNDMORE);
    if (p->framing == FRAMING_NEW)
        zmq_send(p->router, p->topic, strlen(p->topic), ZMQ_SNDMORE);
    zmq_send(p->router, be, 8, ZMQ_SNDMORE);
    zmq_send(p->router, payload, bytes, 0);
}

static inline void answer(struct publisher *p)
{
    zmq_msg_t frames[3];
    uint64_t from = 0;
    int more = 1, count = 0;
    size_t size = sizeof(more);

    for (int i = 0; i < 3; i++)
        zmq_msg_init(&frames[i]);
    while (more && count < 3) {
        if (zmq_msg_recv(&frames[count], p->router, ZMQ_DONTWAIT) < 0)
            goto done;
        zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &size);
        count++;
    }
    assert_int_equal(count, 3); /* nothing else is answered */
    assert_int_equal(zmq_msg_size(&frames[1]), 0);
    assert_int_equal(zmq_msg_size(&frames[2]), 8);
    for (int i = 0; i < 8; i++)
        from = from << 8 | ((unsigned char *)zmq_msg_data(&frames[2]))[i];
    p->asked++;
    for (uint64_t s = from > p->first ? from : p->first; s < p->seq; s++)
        if (s != p->lose || p->asked > 1)
            dump_one(p, &frames[0], s, p->history[s].bytes, p->history[s].size);
    if (!p->no_end_mark)
        dump_one(p, &frames[0], UINT64_MAX, "", 0);
done:
    for (int i = 0; i < 3; i++)
        zmq_msg_close(&frames[i]);
}

/* ---- turning ---- */

static struct publisher p[RANKS];
static size_t publishers;

static inline void on_turn(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)timer;
    (void)events;
}

/* Until the plane has something to do, but not for long: the publishers, too,
 * must be looked after. */
static inline void turn(void)
{
    ev_timer most;

    for (size_t i = 0; i < publishers; i++)
        if (p[i].router != NULL)
            answer(&p[i]);
    ev_timer_init(&most, on_turn, 0.0002, 0.);
    ev_timer_start(w.loop, &most);
    ev_run(w.loop, EVRUN_ONCE);
    ev_timer_stop(w.loop, &most);
}

#define UNTIL(condition)                                                       \
    do {                                                                       \
        double limit = ev_time() + WAIT_S;                                     \
        while (!(condition)) {                                                 \
            if (ev_time() > limit)                                             \
                fail_msg("never: %s (rank 0 is %s/%s, %zu blocks)",            \
                         #condition, bt_stream_state_name(w.ranks[0].state),   \
                         bt_stream_cause_name(w.ranks[0].cause),               \
                         w.ranks[0].count);                                    \
            turn();                                                            \
        }                                                                      \
    } while (0)

static inline void add_source(uint32_t number, const char *events,
                              const char *replay, const char *topic,
                              uint32_t ranks)
{
    struct bt_event_source_config c = {.name = "engine",
                                       .events = events,
                                       .replay = replay,
                                       .topic = topic,
                                       .ranks = ranks,
                                       .block_tokens = BLOCK};
    char error[160] = "";

    if (bt_event_plane_add(w.plane, number, &c, error, sizeof(error)) != BT_OK)
        fail_msg("add: %s", error);
}

static inline void info_of(uint32_t rank, struct bt_stream_info *out)
{
    assert_int_equal(bt_event_plane_stream(w.plane, 0, rank, out), BT_OK);
}

static inline uint64_t frame_errors(void)
{
    struct bt_stream_info info;

    info_of(0, &info);
    return info.counts.frame_errors;
}

/* A PUB drops what it sends before the subscription has come: a frame that is
 * counted, and no batch, shows that it has. */
static inline void subscribed(struct publisher *pub, uint32_t rank)
{
    struct bt_stream_info info;
    double limit = ev_time() + WAIT_S;

    info_of(rank, &info);
    for (uint64_t before = info.counts.frame_errors;
         info.counts.frame_errors == before; info_of(rank, &info)) {
        if (ev_time() > limit)
            fail_msg("rank %u never subscribed", rank);
        zmq_send(pub->pub, pub->topic, strlen(pub->topic), ZMQ_SNDMORE);
        zmq_send(pub->pub, "probe", 5, 0);
        turn();
    }
    /* What else is under way must not be counted as the test's own. */
    for (int i = 0; i < 50; i++)
        turn();
}

/* The sink knows exactly what the life from `from` on has stored. */
static inline void check_blocks(const struct publisher *pub, uint32_t rank,
                                uint64_t from)
{
    const struct rank_log *log = &w.ranks[rank];

    assert_int_equal(log->count, pub->seq - from);
    for (size_t i = 0; i < log->count; i++)
        assert_int_equal(log->blocks[i].hash, block_of(pub, from + i));
}

static inline void one_engine(bool replay)
{
    int base = port_base();

    plane_start(NULL);
    publishers = 1;
    publisher_open(&p[0], base, replay ? base + 10 : 0);
    add_source(0, p[0].endpoint, replay ? p[0].replay : NULL, NULL, 1);
}

static inline void stop_all(void)
{
    plane_stop();
    for (size_t i = 0; i < publishers; i++)
        publisher_close(&p[i]);
    publishers = 0;
}

#endif
