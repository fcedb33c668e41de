/* Torture of sim behind thread: four transports, each called from a thread of
 * its own, 200,000 operations with random closes. Every get that ends well
 * brought the right bytes, every frame is the next one of its connection, each
 * get ends once, each connection closes once and last. Arguments: operations,
 * seed. The seed is printed on failure; thread timing is not in it. */
#include "baton/base/rng.h"
#include "thread.h"

#include <arpa/inet.h>
#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACTORS      4
#define CONNS_MAX   24
#define GETS_MAX    8 /* per connection */
#define PIECES_MAX  4
#define PIECE_BYTES 2000u
#define REGION      (256u << 10)
#define GREETING    1u

#define CHECK(x) ((x) ? (void)0 : (void)broken(#x, __LINE__))

static uint64_t seed = 1;

static void broken(const char *what, int line)
{
    fprintf(stderr, "line %d: %s does not hold; seed %" PRIu64 "\n", line, what,
            seed);
    abort();
}

struct link;

struct pull {
    struct bt_tget get;
    struct link *link;
    bool is_busy;
    struct bt_tpiece pieces[PIECES_MAX];
    uint32_t count;
    unsigned char *to;
};

struct link {
    struct bt_tconn *conn;
    struct actor *actor;
    bool is_used, is_closing, is_ours;
    uint32_t sent, got;
    int failed, gets_out;
    struct bt_tkey *key;
    uint64_t remote;
    struct pull pulls[GETS_MAX];
};

struct greeting {
    uint32_t kind;
    uint16_t key_size;
    uint64_t address;
    uint8_t key[64];
};

struct actor {
    int index;
    pthread_t thread;
    struct ev_loop *loop;
    struct bt_transport *t;
    struct bt_rng rng;
    unsigned char *region, *target;
    struct bt_tmem *region_mem, *target_mem;
    struct greeting greeting;
    struct bt_tlisten *listener;
    struct link links[CONNS_MAX];
    int used;
    uint64_t ops, gets_ok, gets_bad, frames, closes;
};

static struct actor actors[ACTORS];
static uint16_t ports[ACTORS];
static uint64_t ops_each = 50000;
static atomic_int busy_actors;
static pthread_barrier_t ready, over;

static uint32_t below(struct actor *a, uint32_t bound)
{
    return (uint32_t)bt_rng_below(&a->rng, bound);
}

/* ---- upcalls ---- */

static void close_link(struct link *link)
{
    if (link->is_closing)
        return;
    link->is_closing = true;
    link->actor->closes++;
    link->actor->t->ops->close(link->conn);
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct link *link = arg;
    struct greeting g;
    uint32_t number;

    CHECK(!link->is_closing && link->failed == 0);
    CHECK(size >= sizeof(number));
    memcpy(&number, bytes, sizeof(number));
    CHECK(number == ++link->got);
    link->actor->frames++;
    if (link->got != GREETING || !link->is_ours)
        return;
    CHECK(size == sizeof(g));
    memcpy(&g, bytes, sizeof(g));
    link->remote = g.address;
    CHECK(link->actor->t->ops->key_open(link->conn, g.key, g.key_size,
                                        &link->key) == BT_OK);
}

static void on_failed(void *arg, enum bt_status status)
{
    struct link *link = arg;

    CHECK(status != BT_OK && link->failed == 0 && !link->is_closing);
    link->failed++;
    close_link(link);
}

static void on_closed(void *arg)
{
    struct link *link = arg;
    struct actor *a = link->actor;

    CHECK(link->is_used && link->is_closing && link->gets_out == 0);
    if (link->key != NULL)
        a->t->ops->key_close(link->key);
    link->is_used = false;
    a->used--;
}

static const struct bt_tconn_events events = {
    .frame = on_frame, .failed = on_failed, .closed = on_closed};

static struct link *link_new(struct actor *a, struct bt_tconn *conn,
                             bool is_ours)
{
    struct link *link = NULL;

    for (int i = 0; i < CONNS_MAX && link == NULL; i++) {
        if (!a->links[i].is_used)
            link = &a->links[i];
    }
    if (link == NULL)
        return NULL;
    memset(link, 0, sizeof(*link));
    link->conn = conn;
    link->actor = a;
    link->is_used = true;
    link->is_ours = is_ours;
    conn->events = &events;
    conn->arg = link;
    a->used++;
    return link;
}

static void send_number(struct link *link)
{
    unsigned char frame[4096] = {0};
    uint32_t number = ++link->sent;

    memcpy(frame, &number, sizeof(number));
    link->actor->t->ops->send(link->conn, frame,
                              4 + below(link->actor, sizeof(frame) - 4));
}

static void on_accept(void *arg, struct bt_tconn *conn)
{
    struct actor *a = arg;
    struct link *link = link_new(a, conn, false);

    if (link == NULL)
        return; /* full: refused */
    a->t->ops->allow(conn);
    a->greeting.kind = ++link->sent;
    a->t->ops->send(conn, &a->greeting, sizeof(a->greeting));
}

static void on_done(struct bt_tget *get, enum bt_status status)
{
    struct pull *p = (struct pull *)get;
    struct actor *a = p->link->actor;

    CHECK(p->is_busy && p->link->is_used);
    p->is_busy = false;
    p->link->gets_out--;
    if (status != BT_OK) {
        a->gets_bad++;
        CHECK(p->link->is_closing || p->link->failed > 0 ||
              status == BT_RESET || status == BT_CANCELLED);
        return;
    }
    a->gets_ok++;
    for (uint32_t i = 0; i < p->count; i++)
        CHECK(memcmp(p->pieces[i].local, (void *)(uintptr_t)p->pieces[i].remote,
                     p->pieces[i].bytes) == 0);
}

/* ---- what an actor does ---- */

static bool start_get(struct link *link)
{
    struct actor *a = link->actor;
    struct pull *p = &link->pulls[below(a, GETS_MAX)];
    struct bt_tspan span = {.local_mem = a->target_mem,
                            .remote_key = link->key};

    if (link->key == NULL || p->is_busy)
        return false;
    p->count = 1 + below(a, PIECES_MAX);
    p->link = link;
    p->is_busy = true;
    p->get.done = on_done;
    p->to = a->target + (((size_t)(link - a->links) * GETS_MAX) +
                         (size_t)(p - link->pulls)) *
                            PIECES_MAX * PIECE_BYTES;
    for (uint32_t i = 0; i < p->count; i++) {
        p->pieces[i] =
            (struct bt_tpiece){p->to + i * PIECE_BYTES,
                               link->remote + below(a, REGION - PIECE_BYTES),
                               1 + below(a, PIECE_BYTES)};
        span.bytes += p->pieces[i].bytes;
    }
    span.pieces = p->pieces;
    span.count = p->count;
    link->gets_out++;
    a->t->ops->get(link->conn, &span, &p->get);
    return true;
}

static bool start_connect(struct actor *a)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct bt_tconn *conn;
    int other = (a->index + 1 + (int)below(a, ACTORS - 1)) % ACTORS;

    if (a->used >= CONNS_MAX / 2)
        return false; /* leave room for those that come in */
    to.sin_port = htons(ports[other]);
    CHECK(a->t->ops->connect(a->t, (struct sockaddr *)&to, sizeof(to), &conn) ==
          BT_OK);
    CHECK(link_new(a, conn, true) != NULL);
    return true;
}

/* One operation, or none if the connection it picks can take none. */
static bool step(struct actor *a)
{
    struct link *link = &a->links[below(a, CONNS_MAX)];
    uint32_t dice = below(a, 1000);

    if (!link->is_used)
        return start_connect(a);
    if (link->is_closing)
        return false;
    if (dice < 5)
        close_link(link);
    else if (dice < 300)
        send_number(link);
    else
        return start_get(link);
    return true;
}

static void settle(struct actor *a)
{
    for (int i = 0; i < CONNS_MAX; i++) {
        if (a->links[i].is_used)
            close_link(&a->links[i]);
    }
    while (a->used > 0)
        ev_run(a->loop, EVRUN_ONCE);
}

static void begin(struct actor *a)
{
    const struct bt_rail_config rail = {.device = "torture"};
    const struct bt_tthread_sizes sizes = {.ring = 64, .gets = 32};
    struct sockaddr_in any = {.sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    size_t target = (size_t)CONNS_MAX * GETS_MAX * PIECES_MAX * PIECE_BYTES;
    char error[160];

    a->loop = ev_loop_new(EVFLAG_AUTO);
    bt_rng_seed(&a->rng, seed * 100 + (uint64_t)a->index);
    a->region = malloc(REGION);
    a->target = malloc(target);
    CHECK(a->region != NULL && a->target != NULL);
    for (size_t i = 0; i < REGION; i++)
        a->region[i] = (unsigned char)bt_rng_u64(&a->rng);
    CHECK(bt_transport_thread_open_sized(a->loop, bt_transport_sim_open, &rail,
                                         &sizes, &a->t, error,
                                         sizeof(error)) == BT_OK);
    CHECK(a->t->ops->map(a->t, a->region, REGION, &a->region_mem) == BT_OK);
    CHECK(a->t->ops->map(a->t, a->target, target, &a->target_mem) == BT_OK);
    CHECK(a->t->ops->key_pack(a->t, a->region_mem, a->greeting.key,
                              sizeof(a->greeting.key),
                              &a->greeting.key_size) == BT_OK);
    a->greeting.address = (uintptr_t)a->region;
    CHECK(a->t->ops->listen(a->t, (struct sockaddr *)&any, sizeof(any),
                            on_accept, a, &ports[a->index],
                            &a->listener) == BT_OK);
}

static void on_beat(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)w;
    (void)revents;
}

static void *act(void *arg)
{
    struct actor *a = arg;
    ev_timer beat;

    begin(a);
    ev_timer_init(&beat, on_beat, 0.002, 0.002);
    ev_timer_start(a->loop, &beat);
    pthread_barrier_wait(&ready);
    while (a->ops < ops_each) {
        uint32_t burst = 1 + below(a, 40);
        bool any = false;

        for (uint32_t i = 0; i < burst; i++) {
            if (step(a)) {
                any = true;
                a->ops++;
            }
        }
        ev_run(a->loop, any ? EVRUN_NOWAIT : EVRUN_ONCE);
    }
    atomic_fetch_sub(&busy_actors, 1);
    while (atomic_load(&busy_actors) > 0) /* serve the others */
        ev_run(a->loop, EVRUN_ONCE);
    pthread_barrier_wait(&over);
    settle(a);
    a->t->ops->unlisten(a->listener);
    settle(a);                   /* what was accepted meanwhile */
    pthread_barrier_wait(&over); /* regions are read by others until here */
    a->t->ops->destroy(a->t);
    ev_timer_stop(a->loop, &beat);
    ev_loop_destroy(a->loop);
    free(a->region);
    free(a->target);
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t gets_ok = 0, frames = 0, closes = 0, bad = 0;

    if (argc > 1)
        ops_each = strtoull(argv[1], NULL, 10) / ACTORS;
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    atomic_store(&busy_actors, ACTORS);
    pthread_barrier_init(&ready, NULL, ACTORS);
    pthread_barrier_init(&over, NULL, ACTORS);
    for (int i = 0; i < ACTORS; i++) {
        actors[i].index = i;
        CHECK(pthread_create(&actors[i].thread, NULL, act, &actors[i]) == 0);
    }
    for (int i = 0; i < ACTORS; i++) {
        pthread_join(actors[i].thread, NULL);
        gets_ok += actors[i].gets_ok;
        bad += actors[i].gets_bad;
        frames += actors[i].frames;
        closes += actors[i].closes;
    }
    printf("gets ok=%" PRIu64 " ended early=%" PRIu64 " frames=%" PRIu64
           " closes=%" PRIu64 "\n",
           gets_ok, bad, frames, closes);
    CHECK(gets_ok > 0 && frames > 0 && closes > 0);
    return 0;
}
