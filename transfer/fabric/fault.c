/* The decorator fault: spoils what passes by a seeded generator. Which call is
 * hit depends only on the seed and on the order of calls. A connection that
 * fails here stays open underneath, silent both ways, until its owner closes
 * it: so keys and outstanding gets end as they always do.
 * Decides when a spoilt call ends (`queue`, sorted by time, stable); leaves all
 * else to wrap.c. Invariants: every get ends once, before `closed`; nothing is
 * told from inside a call. */
#include "wrap.h"

#include "baton/base/rng.h"
#include "fabric.h"

#include <stdlib.h>
#include <string.h>

#define CHANCE_ALL    10000u
#define COPIES_MAX    64u     /* frames to be sent again */
#define SEND_AGAIN_NS 1000000 /* later by up to this */

enum later_kind { LATER_DONE, LATER_SEND, LATER_FAIL };

struct later {
    TAILQ_ENTRY(later) entry;
    enum later_kind kind;
    struct fault_conn *conn;
    int64_t due_ns;
};

struct fault_conn {
    struct wrap_conn wrap;
    struct later fail;
    bool is_broken; /* by us */
};

struct fault_get {
    struct wrap_get wrap;
    struct later later;
    enum bt_status status;
};

struct fault_frame {
    struct later later;
    size_t size;
    unsigned char bytes[];
};

struct fault {
    struct wrap wrap;
    struct bt_tfault chances;
    struct bt_rng rng;
    struct ev_loop *loop;
    ev_timer timer;
    TAILQ_HEAD(later_list, later) queue;
    uint32_t copies;
};

static struct fault *of(const struct bt_tconn *base)
{
    return (struct fault *)((const struct wrap_conn *)base)->wrap;
}

static bool hit(struct fault *fault, uint16_t chance)
{
    return chance > 0 && bt_rng_below(&fault->rng, CHANCE_ALL) < chance;
}

/* ---- what happens later ---- */

static void arm(struct fault *fault)
{
    const struct later *first = TAILQ_FIRST(&fault->queue);
    int64_t left_ns;

    ev_timer_stop(fault->loop, &fault->timer);
    if (first == NULL)
        return;
    left_ns = first->due_ns - bt_fabric_now();
    ev_now_update(fault->loop);
    ev_timer_set(&fault->timer, left_ns > 0 ? (double)left_ns / 1e9 : 0, 0);
    ev_timer_start(fault->loop, &fault->timer);
}

static void enqueue(struct later *later, enum later_kind kind,
                    struct fault_conn *conn, int64_t after_ns)
{
    struct fault *fault = of(&conn->wrap.base);
    struct later *before;

    later->kind = kind;
    later->conn = conn;
    later->due_ns = bt_fabric_now() + after_ns;
    TAILQ_FOREACH_REVERSE(before, &fault->queue, later_list, entry)
    {
        if (before->due_ns <= later->due_ns)
            break;
    }
    if (before != NULL)
        TAILQ_INSERT_AFTER(&fault->queue, before, later, entry);
    else
        TAILQ_INSERT_HEAD(&fault->queue, later, entry);
    if (later == TAILQ_FIRST(&fault->queue))
        arm(fault);
}

static void send_again(struct fault_frame *frame)
{
    struct fault_conn *conn = frame->later.conn;

    bt_wrap_send(&conn->wrap.base, frame->bytes, frame->size);
    of(&conn->wrap.base)->copies--;
    free(frame);
}

static void happen(struct later *later)
{
    switch (later->kind) {
    case LATER_DONE: {
        struct fault_get *get =
            (struct fault_get *)((char *)later -
                                 offsetof(struct fault_get, later));

        bt_wrap_done(&get->wrap, get->status);
        break;
    }
    case LATER_SEND:
        send_again((struct fault_frame *)later);
        break;
    case LATER_FAIL:
        bt_wrap_failed(&later->conn->wrap, BT_RESET);
        break;
    }
}

/* Only what is due at the beginning: what that leads to comes next time. */
static bool run_due(struct fault *fault)
{
    int64_t now_ns = bt_fabric_now();
    struct later *later;
    bool any = false;

    for (;;) {
        later = TAILQ_FIRST(&fault->queue);
        /* Freed ones are out: NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        if (later == NULL || later->due_ns > now_ns)
            break;
        TAILQ_REMOVE(&fault->queue, later, entry);
        happen(later);
        any = true;
    }
    return any;
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct fault *fault = w->data;

    (void)loop;
    (void)revents;
    (void)run_due(fault);
    arm(fault);
}

static bool turn(struct bt_transport *transport)
{
    struct fault *fault = (struct fault *)transport;
    bool any = run_due(fault);

    arm(fault);
    return bt_wrap_turn(transport) || any;
}

/* ---- calls ---- */

static void break_conn(struct fault_conn *conn)
{
    if (conn->is_broken || conn->wrap.is_closing)
        return;
    conn->is_broken = true;
    enqueue(&conn->fail, LATER_FAIL, conn, 0);
}

static enum bt_status map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out)
{
    struct fault *fault = (struct fault *)transport;

    if (hit(fault, fault->chances.map_fails))
        return BT_LIMIT;
    return bt_wrap_map(transport, address, bytes, out);
}

static void flip(struct fault *fault, unsigned char *bytes, size_t size)
{
    uint64_t bit = bt_rng_below(&fault->rng, size * 8);

    bytes[bit / 8] ^= (unsigned char)(1u << (bit % 8));
}

static struct fault_frame *copy_of(const void *bytes, size_t size)
{
    struct fault_frame *frame = malloc(sizeof(*frame) + size);

    if (frame == NULL)
        return NULL;
    frame->size = size;
    memcpy(frame->bytes, bytes, size);
    return frame;
}

static void send_flipped(struct fault_conn *conn, const void *bytes,
                         size_t size)
{
    struct fault_frame *copy = copy_of(bytes, size);

    if (copy == NULL)
        return; /* lost, which is a fault too */
    flip(of(&conn->wrap.base), copy->bytes, size);
    bt_wrap_send(&conn->wrap.base, copy->bytes, size);
    free(copy);
}

static void send_frame(struct bt_tconn *base, const void *bytes, size_t size)
{
    struct fault_conn *conn = (struct fault_conn *)base;
    struct fault *fault = of(base);
    struct fault_frame *copy = NULL;

    if (hit(fault, fault->chances.conn_fails))
        break_conn(conn);
    if (conn->is_broken || hit(fault, fault->chances.send_drops))
        return;
    if (size > 0 && hit(fault, fault->chances.send_flips))
        send_flipped(conn, bytes, size);
    else
        bt_wrap_send(base, bytes, size);
    if (conn->wrap.is_closing || !hit(fault, fault->chances.send_twice))
        return;
    if (fault->copies < COPIES_MAX)
        copy = copy_of(bytes, size);
    if (copy == NULL)
        return;
    fault->copies++;
    enqueue(&copy->later, LATER_SEND, conn,
            (int64_t)bt_rng_below(&fault->rng, SEND_AGAIN_NS));
}

static void end_later(struct fault_get *get, enum bt_status status,
                      int64_t after_ns)
{
    get->status = status;
    enqueue(&get->later, LATER_DONE, (struct fault_conn *)get->wrap.conn,
            after_ns);
}

static void start(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *outer, bool is_put)
{
    struct fault_conn *conn = (struct fault_conn *)base;
    struct fault *fault = of(base);
    struct fault_get *get =
        (struct fault_get *)bt_wrap_get_new(base, span, outer, is_put);

    if (get == NULL) {
        bt_wrap_plain(base, span, outer, is_put);
        return;
    }
    if (hit(fault, fault->chances.conn_fails))
        break_conn(conn);
    if (conn->is_broken)
        end_later(get, BT_CANCELLED, 0);
    else if (hit(fault, fault->chances.get_fails))
        end_later(get, BT_PEER_ERROR, 0);
    else
        bt_wrap_start(&get->wrap);
}

static void get_call(struct bt_tconn *base, const struct bt_tspan *span,
                     struct bt_tget *outer)
{
    start(base, span, outer, false);
}

static void put_call(struct bt_tconn *base, const struct bt_tspan *span,
                     struct bt_tget *outer)
{
    start(base, span, outer, true);
}

/* What of a connection waits: end its gets, forget the rest. */
static void settle(struct fault_conn *conn, bool ends_gets)
{
    struct fault *fault = of(&conn->wrap.base);
    struct later *later, *next;

    for (later = TAILQ_FIRST(&fault->queue); later != NULL; later = next) {
        next = TAILQ_NEXT(later, entry);
        if (later->conn != conn || (later->kind == LATER_DONE && !ends_gets))
            continue;
        TAILQ_REMOVE(&fault->queue, later, entry);
        if (later->kind == LATER_DONE) {
            happen(later);
            next = TAILQ_FIRST(&fault->queue); /* done may have changed it */
        } else if (later->kind == LATER_SEND) {
            fault->copies--;
            free(later);
        }
    }
}

static void close_conn(struct bt_tconn *base)
{
    if (((struct wrap_conn *)base)->is_closing)
        return;
    settle((struct fault_conn *)base, false);
    bt_wrap_close(base);
}

/* ---- upcalls ---- */

static void frame(struct wrap_conn *conn, const void *bytes, size_t size)
{
    if (!((struct fault_conn *)conn)->is_broken)
        bt_wrap_frame(conn, bytes, size);
}

static void failed(struct wrap_conn *conn, enum bt_status status)
{
    if (((struct fault_conn *)conn)->is_broken)
        return; /* told already, or about to be */
    ((struct fault_conn *)conn)->is_broken = true;
    bt_wrap_failed(conn, status);
}

static void closed(struct wrap_conn *conn)
{
    settle((struct fault_conn *)conn, true);
    bt_wrap_closed(conn);
}

static void flip_landed(struct fault *fault, const struct bt_tspan *span)
{
    uint64_t at = bt_rng_below(&fault->rng, span->bytes);

    for (uint32_t i = 0; i < span->count; i++) {
        if (at < span->pieces[i].bytes) {
            flip(fault, (unsigned char *)span->pieces[i].local + at, 1);
            return;
        }
        at -= span->pieces[i].bytes;
    }
}

static void done(struct wrap_get *g, enum bt_status status)
{
    struct fault *fault = (struct fault *)g->conn->wrap;
    int64_t delay_ns = fault->chances.get_delay_ns;

    if (status == BT_OK && !g->is_put && hit(fault, fault->chances.get_flips))
        flip_landed(fault, &g->span);
    if (delay_ns > 0 && !g->conn->is_closing)
        end_later((struct fault_get *)g, status,
                  (int64_t)bt_rng_below(&fault->rng, (uint64_t)delay_ns + 1));
    else
        bt_wrap_done(g, status);
}

/* ---- begin and end ---- */

static void destroy(struct bt_transport *transport)
{
    struct fault *fault = (struct fault *)transport;
    struct later *later, *next;

    ev_timer_stop(fault->loop, &fault->timer);
    for (later = TAILQ_FIRST(&fault->queue); later != NULL; later = next) {
        next = TAILQ_NEXT(later, entry);
        if (later->kind == LATER_SEND)
            free(later);
    }
    bt_wrap_fini(&fault->wrap);
    free(fault);
}

struct bt_transport *bt_transport_fault(struct ev_loop *loop,
                                        struct bt_transport *inner,
                                        const struct bt_tfault *chances)
{
    static const struct wrap_hooks hooks = {
        .conn_size = sizeof(struct fault_conn),
        .get_size = sizeof(struct fault_get),
        .frame = frame,
        .failed = failed,
        .closed = closed,
        .done = done,
    };
    struct fault *fault = calloc(1, sizeof(*fault));
    struct bt_transport_ops *ops;

    if (fault == NULL)
        return NULL;
    bt_wrap_init(&fault->wrap, inner, &hooks);
    fault->chances = *chances;
    bt_rng_seed(&fault->rng, chances->seed);
    fault->loop = loop;
    ev_timer_init(&fault->timer, on_timer, 0, 0);
    fault->timer.data = fault;
    TAILQ_INIT(&fault->queue);
    ops = &fault->wrap.ops;
    ops->destroy = destroy;
    ops->turn = turn;
    ops->map = map;
    ops->close = close_conn;
    ops->send = send_frame;
    ops->get = get_call;
    ops->put = ops->limits.put ? put_call : NULL;
    return &fault->wrap.base;
}
