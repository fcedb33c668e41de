/* See transport_bed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "transport_bed.h"

#include "baton/base/rng.h"
#include "thread.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GUARD_S 60.0
#define BEAT_S  0.002

/* ---- kinds ---- */

static void no_line(void *arg, const char *line)
{
    (void)arg;
    assert_non_null(line);
}

static enum bt_status traced(bt_topen_fn open, struct ev_loop *loop,
                             const struct bt_rail_config *rail,
                             struct bt_transport **out, char *error,
                             size_t size)
{
    struct bt_transport *inner;
    enum bt_status status = open(loop, rail, &inner, error, size);

    if (status != BT_OK)
        return status;
    *out = bt_transport_trace(inner, no_line, NULL);
    assert_non_null(*out);
    return BT_OK;
}

static enum bt_status unfaulted(bt_topen_fn open, struct ev_loop *loop,
                                const struct bt_rail_config *rail,
                                struct bt_transport **out, char *error,
                                size_t size)
{
    static const struct bt_tfault none = {.seed = 1};
    struct bt_transport *inner;
    enum bt_status status = open(loop, rail, &inner, error, size);

    if (status != BT_OK)
        return status;
    *out = bt_transport_fault(loop, inner, &none);
    assert_non_null(*out);
    return BT_OK;
}

static enum bt_status threaded(bt_topen_fn open, struct ev_loop *loop,
                               const struct bt_rail_config *rail,
                               struct bt_transport **out, char *error,
                               size_t size)
{
    return bt_transport_thread_open(loop, open, rail, out, error, size);
}

/* Rings of two messages: nearly every call waits for room. */
static enum bt_status tiny(bt_topen_fn open, struct ev_loop *loop,
                           const struct bt_rail_config *rail,
                           struct bt_transport **out, char *error, size_t size)
{
    static const struct bt_tthread_sizes sizes = {.ring = 2, .gets = 3};

    return bt_transport_thread_open_sized(loop, open, rail, &sizes, out, error,
                                          size);
}

/* An opener NAME that puts decorator WITH around opener OF. */
#define OPENER(name, with, of)                                                 \
    static enum bt_status name(                                                \
        struct ev_loop *loop, const struct bt_rail_config *rail,               \
        struct bt_transport **out, char *error, size_t size)                   \
    {                                                                          \
        return with(of, loop, rail, out, error, size);                         \
    }
#define ALL_OPENERS(kind)                                                      \
    OPENER(thread_##kind, threaded, bt_transport_##kind##_open)                \
    OPENER(trace_##kind, traced, bt_transport_##kind##_open)                   \
    OPENER(fault_##kind, unfaulted, bt_transport_##kind##_open)

ALL_OPENERS(sim)
ALL_OPENERS(ucx)
OPENER(thread_verbs, threaded, bt_transport_verbs_open)
OPENER(tiny_sim, tiny, bt_transport_sim_open)
OPENER(trace_thread_sim, traced, thread_sim)
OPENER(stack_sim, unfaulted, trace_thread_sim)

const struct tbed_kind tbed_kinds[] = {
    {"sim", bt_transport_sim_open, 0, 0},
    {"sim-shaped", bt_transport_sim_open, 50000, 4000000000u},
    {"ucx", bt_transport_ucx_open, 0, 0},
    {"thread-sim", thread_sim, 0, 0},
    {"thread-tiny-sim", tiny_sim, 0, 0},
    {"thread-ucx", thread_ucx, 0, 0},
    {"trace-sim", trace_sim, 0, 0},
    {"trace-ucx", trace_ucx, 0, 0},
    {"fault-sim", fault_sim, 0, 0},
    {"fault-ucx", fault_ucx, 0, 0},
    {"fault-trace-thread-sim-shaped", stack_sim, 50000, 4000000000u},
    {NULL, NULL, 0, 0},
};

const struct tbed_kind tbed_verbs_kinds[] = {
    {"verbs", bt_transport_verbs_open, 0, 0},
    {"thread-verbs", thread_verbs, 0, 0},
    {NULL, NULL, 0, 0},
};

/* UCX over nothing but RDMA: its gets and puts are other code than those of
 * the rows above. */
static const struct tbed_kind tbed_rdma_kinds[] = {
    {"ucx", bt_transport_ucx_open, 0, 0},
    {"thread-ucx", thread_ucx, 0, 0},
    {NULL, NULL, 0, 0},
};

const struct tbed_kind *tbed_choose(void)
{
    const char *fabric = getenv("BATON_FABRIC"), *tls = getenv("UCX_TLS");

    if (fabric != NULL && strcmp(fabric, "verbs") == 0)
        return tbed_verbs_kinds;
    return tls != NULL && strncmp(tls, "rc", 2) == 0 ? tbed_rdma_kinds
                                                     : tbed_kinds;
}

/* ---- the ends ---- */

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void tbed_fill(unsigned char *bytes, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t x = bt_mix64(seed * 0x100000000u + i);

        memcpy(bytes + i, &x, size - i < 8 ? size - i : 8);
    }
}

/* What holds in every upcall of a connection. */
static void upcall_of(const struct tend *end)
{
    assert_int_equal(end->bed->in_call, 0);
    assert_int_equal(end->closed, 0);
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct tend *end = arg;

    upcall_of(end);
    assert_false(end->is_closing);
    assert_int_equal(end->failed, 0);
    end->frames++;
    end->last_size = size;
    if (end->on_frame != NULL)
        end->on_frame(end, bytes, size);
}

static void on_failed(void *arg, enum bt_status status)
{
    struct tend *end = arg;

    upcall_of(end);
    assert_false(end->is_closing);
    assert_int_equal(end->failed, 0);
    assert_int_not_equal(status, BT_OK);
    end->failed++;
    end->why = status;
    tend_close(end);
}

static void on_closed(void *arg)
{
    struct tend *end = arg;

    upcall_of(end);
    assert_true(end->is_closing);
    assert_int_equal(end->gets_out, 0);
    end->closed++;
    end->conn = NULL;
}

static const struct bt_tconn_events events = {
    .frame = on_frame, .failed = on_failed, .closed = on_closed};

static struct tend *end_new(struct tside *side, struct bt_tconn *conn)
{
    struct tend *end = calloc(1, sizeof(*end));

    assert_non_null(end);
    end->bed = side->bed;
    end->transport = side->transport;
    end->conn = conn;
    end->on_frame = side->on_frame;
    end->next_accepted = NULL;
    conn->events = &events;
    conn->arg = end;
    return end;
}

static void on_accept(void *arg, struct bt_tconn *conn)
{
    struct tside *side = arg;
    struct tend *end;

    assert_int_equal(side->bed->in_call, 0);
    side->accepted++;
    if (side->refuses)
        return;
    end = end_new(side, conn);
    *side->accepted_last = end;
    side->accepted_last = &end->next_accepted;
    if (side->allows)
        tend_allow(end);
}

struct tend *tbed_accepted(struct tside *side)
{
    struct tend *end = side->accepted_first;

    if (end == NULL)
        return NULL;
    side->accepted_first = end->next_accepted;
    if (side->accepted_first == NULL)
        side->accepted_last = &side->accepted_first;
    return end;
}

struct tside *tend_side(struct tend *end)
{
    struct tbed *bed = end->bed;

    return end->transport == bed->side[0].transport ? &bed->side[0]
                                                    : &bed->side[1];
}

struct tside *tend_other(struct tend *end)
{
    struct tbed *bed = end->bed;

    return end->transport == bed->side[0].transport ? &bed->side[1]
                                                    : &bed->side[0];
}

/* ---- calls ---- */

static socklen_t address_of(const struct tbed *bed, uint16_t port,
                            struct sockaddr_storage *out)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};

    assert_int_equal(inet_pton(AF_INET, bed->address, &v4.sin_addr), 1);
    memset(out, 0, sizeof(*out));
    memcpy(out, &v4, sizeof(v4));
    return sizeof(v4);
}

struct tend *tbed_connect(struct tbed *bed, int from, uint16_t port)
{
    struct tside *side = &bed->side[from];
    struct sockaddr_storage to;
    socklen_t size = address_of(bed, port, &to);
    struct bt_tconn *conn = NULL;

    bed->in_call++;
    assert_int_equal(side->transport->ops->connect(
                         side->transport, (struct sockaddr *)&to, size, &conn),
                     BT_OK);
    bed->in_call--;
    return end_new(side, conn);
}

/* What `end` did before, its allow() above all, has been done where the peer
 * can see it: a frame that was sent afterwards has arrived. Calls may cross a
 * thread, and a get that overtakes allow() is refused (transport.h). */
static void tell(struct tend *end, struct tend *peer)
{
    tend_frame_fn fn = peer->on_frame;

    assert_int_equal(peer->frames, 0);
    peer->on_frame = NULL;
    tend_send(end, "allowed", 7);
    tbed_until_int(end->bed, &peer->frames, 1, "word of allow()");
    peer->frames = 0;
    peer->on_frame = fn;
}

void tbed_pair(struct tbed *bed, int from, struct tend **near_out,
               struct tend **far_out)
{
    struct tside *other = &bed->side[!from];
    int accepted = other->accepted;

    assert_null(other->accepted_first);
    *near_out = tbed_connect(bed, from, other->port);
    tbed_until_int(bed, &other->accepted, accepted + 1, "accept");
    *far_out = tbed_accepted(other);
    assert_non_null(*far_out);
    if (other->allows)
        tell(*far_out, *near_out);
}

void tend_send(struct tend *end, const void *bytes, size_t size)
{
    end->bed->in_call++;
    end->transport->ops->send(end->conn, bytes, size);
    end->bed->in_call--;
}

bool tend_sent(struct tend *end)
{
    return end->transport->ops->sent(end->conn);
}

void tend_close(struct tend *end)
{
    if (end->is_closing)
        return;
    end->is_closing = true;
    end->bed->in_call++;
    end->transport->ops->close(end->conn);
    end->bed->in_call--;
}

void tend_allow(struct tend *end)
{
    end->bed->in_call++;
    end->transport->ops->allow(end->conn);
    end->bed->in_call--;
}

void tend_allow_told(struct tend *end, struct tend *peer)
{
    tend_allow(end);
    tell(end, peer);
}

void tend_closed(struct tend *end)
{
    tend_close(end);
    tbed_until_int(end->bed, &end->closed, 1, "closed");
    free(end);
}

enum bt_status tbed_map(struct tside *side, void *at, size_t bytes,
                        struct bt_tmem **out)
{
    struct bt_transport *t = side->transport;
    enum bt_status status;

    side->bed->in_call++;
    status = t->ops->map(t, at, bytes, out);
    side->bed->in_call--;
    return status;
}

void tbed_unmap(struct tside *side, struct bt_tmem *mem)
{
    side->bed->in_call++;
    side->transport->ops->unmap(side->transport, mem);
    side->bed->in_call--;
}

enum bt_status tend_key_bytes(struct tend *end, const uint8_t *bytes,
                              size_t size, struct bt_tkey **out)
{
    enum bt_status status;

    end->bed->in_call++;
    status = end->transport->ops->key_open(end->conn, bytes, size, out);
    end->bed->in_call--;
    return status;
}

struct bt_tkey *tend_key(struct tend *end)
{
    struct tside *other = tend_other(end);
    struct bt_tkey *key = NULL;

    assert_int_equal(tend_key_bytes(end, other->key, other->key_size, &key),
                     BT_OK);
    return key;
}

struct bt_tkey *tend_target_key(struct tend *end)
{
    struct tside *other = tend_other(end);
    struct bt_tkey *key = NULL;

    assert_int_equal(
        tend_key_bytes(end, other->target_key, other->target_key_size, &key),
        BT_OK);
    return key;
}

void tend_key_close(struct tend *end, struct bt_tkey *key)
{
    end->transport->ops->key_close(key);
}

static void on_done(struct bt_tget *get, enum bt_status status)
{
    struct top *op = (struct top *)get;

    upcall_of(op->end);
    assert_int_equal(op->done, 0);
    op->done++;
    op->status = status;
    op->end->gets_out--;
    if (op->on_done != NULL)
        op->on_done(op);
}

void top_add(struct top *op, void *local, const void *remote, uint32_t bytes)
{
    assert_true(op->count < TBED_PIECES_MAX);
    op->pieces[op->count++] =
        (struct bt_tpiece){local, (uintptr_t)remote, bytes};
}

static struct bt_tspan begin(struct top *op, struct tend *end,
                             struct bt_tmem *local, struct bt_tkey *key)
{
    struct bt_tspan span = {.pieces = op->pieces,
                            .count = op->count,
                            .local_mem = local,
                            .remote_key = key};

    for (uint32_t i = 0; i < op->count; i++)
        span.bytes += op->pieces[i].bytes;
    op->end = end;
    op->done = 0;
    op->get.done = on_done;
    end->gets_out++;
    end->bed->in_call++;
    return span;
}

void top_get(struct top *op, struct tend *end, struct bt_tkey *key)
{
    top_get_into(op, end, key, tend_side(end)->target_mem);
}

void top_get_into(struct top *op, struct tend *end, struct bt_tkey *key,
                  struct bt_tmem *local)
{
    struct bt_tspan span = begin(op, end, local, key);

    end->transport->ops->get(end->conn, &span, &op->get);
    end->bed->in_call--;
}

void top_put(struct top *op, struct tend *end, struct bt_tkey *key)
{
    struct bt_tspan span = begin(op, end, tend_side(end)->region_mem, key);

    end->transport->ops->put(end->conn, &span, &op->get);
    end->bed->in_call--;
}

/* ---- waiting ---- */

void tbed_until(struct tbed *bed, bool (*fn)(void *arg), void *arg,
                const char *what)
{
    double end = now_s() + GUARD_S;

    while (!fn(arg)) {
        ev_run(bed->loop, EVRUN_ONCE);
        if (now_s() > end)
            fail_msg("%s: %s: nothing for %.0f s", bed->kind->name, what,
                     GUARD_S);
    }
}

struct at_least {
    const int *value;
    int least;
};

static bool is_at_least(void *arg)
{
    const struct at_least *a = arg;

    return *a->value >= a->least;
}

void tbed_until_int(struct tbed *bed, const int *value, int least,
                    const char *what)
{
    struct at_least a = {value, least};

    tbed_until(bed, is_at_least, &a, what);
}

void tend_until_failed(struct tend *end, const char *what)
{
    tbed_until_int(end->bed, &end->failed, 1, what);
}

void tbed_round_trips(struct tbed *bed, int count)
{
    struct tend *near, *far;

    tbed_pair(bed, 0, &near, &far);
    near->on_frame = far->on_frame = NULL;
    for (int i = 1; i <= count; i++) {
        tend_send(near, "ping", 4);
        tbed_until_int(bed, &far->frames, i, "ping");
        tend_send(far, "pong", 4);
        tbed_until_int(bed, &near->frames, i, "pong");
    }
    tend_closed(near);
    tend_closed(far);
}

/* ---- begin and end ---- */

static void on_beat(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop; /* only so that EVRUN_ONCE returns */
    (void)w;
    (void)revents;
}

static void side_open(struct tbed *bed, int index)
{
    struct tside *side = &bed->side[index];
    const bool is_rdma = tbed_choose() != tbed_kinds;
    const struct bt_rail_config rail = {
        .device = is_rdma ? getenv("BATON_FABRIC_DEVICE") : NULL,
        .address = is_rdma ? bed->address : NULL,
        .sim_latency_ns = bed->kind->sim_latency_ns,
        .sim_rate_bytes_per_s = bed->kind->sim_rate,
    };
    char error[160] = "";
    enum bt_status status;

    side->bed = bed;
    side->allows = true;
    side->accepted_last = &side->accepted_first;
    status = bed->kind->open(bed->loop, &rail, &side->transport, error,
                             sizeof(error));
    if (status != BT_OK)
        fail_msg("%s: %s", bed->kind->name, error);
    side->region = malloc(TBED_REGION);
    side->target = calloc(1, TBED_REGION);
    assert_non_null(side->region);
    assert_non_null(side->target);
    tbed_fill(side->region, TBED_REGION, (uint64_t)index + 1);
    assert_int_equal(
        tbed_map(side, side->region, TBED_REGION, &side->region_mem), BT_OK);
    assert_int_equal(
        tbed_map(side, side->target, TBED_REGION, &side->target_mem), BT_OK);
}

enum bt_status tbed_listen(struct tside *side, uint16_t port)
{
    struct bt_transport *t = side->transport;
    struct sockaddr_storage at;
    socklen_t size = address_of(side->bed, port, &at);
    enum bt_status status;

    side->bed->in_call++;
    status = t->ops->listen(t, (struct sockaddr *)&at, size, on_accept, side,
                            &side->port, &side->listener);
    side->bed->in_call--;
    return status;
}

static void pack(struct tside *side, struct bt_tmem *mem, uint8_t key[256],
                 uint16_t *size_out)
{
    struct bt_transport *t = side->transport;

    assert_int_equal(t->ops->key_pack(t, mem, key, 256, size_out), BT_OK);
}

void tbed_open(struct tbed *bed, const struct tbed_kind *kind)
{
    const char *address = getenv("BATON_FABRIC_ADDRESS");

    memset(bed, 0, sizeof(*bed));
    bed->kind = kind;
    bed->address = address != NULL ? address : "127.0.0.1";
    bed->loop = ev_loop_new(EVFLAG_AUTO);
    assert_non_null(bed->loop);
    ev_timer_init(&bed->beat, on_beat, BEAT_S, BEAT_S);
    ev_timer_start(bed->loop, &bed->beat);
    for (int i = 0; i < TBED_SIDES; i++)
        side_open(bed, i);
    for (int i = 0; i < TBED_SIDES; i++) {
        struct tside *side = &bed->side[i];

        pack(side, side->region_mem, side->key, &side->key_size);
        pack(side, side->target_mem, side->target_key, &side->target_key_size);
        assert_int_equal(tbed_listen(side, 0), BT_OK);
        assert_true(side->port > 0);
    }
}

void tbed_close(struct tbed *bed)
{
    struct tend *end;

    for (int i = 0; i < TBED_SIDES; i++) {
        while ((end = tbed_accepted(&bed->side[i])) != NULL)
            tend_closed(end); /* came late, of a connection that is gone */
    }
    for (int i = 0; i < TBED_SIDES; i++) {
        struct tside *side = &bed->side[i];
        struct bt_transport *t = side->transport;

        if (t == NULL)
            continue;
        t->ops->unlisten(side->listener);
        tbed_unmap(side, side->region_mem);
        tbed_unmap(side, side->target_mem);
        bed->in_call++;
        t->ops->destroy(t);
        bed->in_call--;
    }
    for (int i = 0; i < TBED_SIDES; i++) {
        free(bed->side[i].region);
        free(bed->side[i].target);
    }
    ev_timer_stop(bed->loop, &bed->beat);
    ev_loop_destroy(bed->loop);
}
