/* Insides of the decorator thread, shared by the thread files. Each member
 * belongs to one side, except atomics and what a message hands over: C = the
 * caller's thread, I = the inner transport's. */
#ifndef BATON_TRANSFER_FABRIC_THREAD_H
#define BATON_TRANSFER_FABRIC_THREAD_H

#include "ring.h"
#include "transport_open.h"

#include <ev.h>
#include <pthread.h>

/* For tests: how many messages a ring holds (a power of two) and how many gets
 * are with the inner transport at once. */
struct bt_tthread_sizes {
    uint32_t ring, gets;
};
enum bt_status bt_transport_thread_open_sized(
    struct ev_loop *loop, bt_topen_fn open, const struct bt_rail_config *rail,
    const struct bt_tthread_sizes *sizes, struct bt_transport **out,
    char *error_out, size_t error_size);

/* How often a message or get had to wait: ring of calls full, ring of upcalls
 * full, too many gets out. C */
struct bt_tthread_waits {
    uint64_t calls, upcalls, gets;
};
void bt_transport_thread_waits(const struct bt_transport *transport,
                               struct bt_tthread_waits *out);

enum thr_kind {
    /* calls */
    THR_CLOSE,
    THR_ALLOW,
    THR_SEND,
    THR_GET,
    THR_PUT,
    /* upcalls */
    THR_ACCEPT,
    THR_FRAME,
    THR_FAILED,
    THR_CLOSED,
    THR_DONE,
    THR_UNLISTENED,
    /* made on the caller's side, do not cross */
    THR_ENDED,
    THR_BROKEN
};

/* One direction: a ring, and what waits for room in it. Nothing is allocated
 * to wait, every message is embedded in what it is about. */
struct thr_line {
    struct bt_ring ring;
    struct bt_tevent *first, **last; /* producer's */
    _Atomic uint64_t waits;
    struct ev_loop *to; /* the consumer's loop and wake-up */
    ev_async *wake;
};

struct thr_frame {
    struct bt_tevent event;
    size_t size;
    unsigned char bytes[];
};

struct thr_conn {
    struct bt_tconn base; /* C */
    struct thr *thr;
    struct bt_tconn *inner; /* I, after the call that made it */
    struct bt_tevent close, allow, accept, failed, closed, broken;
    enum bt_status why, broken_why;
    _Atomic size_t out_held, in_held; /* bytes of frames under way */
    _Atomic uint64_t frames_gone;     /* have left this process */
    /* C */
    LIST_ENTRY(thr_conn) entry;
    struct bt_tlisten *listener;
    bool is_closing, is_failed, is_allowed;
    uint64_t frames_sent;
    /* I */
    LIST_ENTRY(thr_conn) unsent;
    bool is_unsent, has_failed;
    uint64_t frames_taken;
};

/* A get that is with the inner transport. */
struct thr_job {
    struct bt_tevent event;
    struct bt_tget get; /* I */
    struct bt_tspan span;
    struct bt_tget *outer; /* C */
    struct thr_job *next;  /* C: free ones */
    enum bt_status status;
};

struct bt_tlisten {
    LIST_ENTRY(bt_tlisten) entry; /* C */
    struct bt_tevent gone;
    struct thr *thr;
    struct bt_tlisten *inner;
    bool is_dead; /* C */
    bt_taccept_fn accept;
    void *arg;
};

struct bt_tkey {
    struct thr *thr;
    struct bt_tkey *inner;
};

/* A call that the caller waits for. */
struct thr_call {
    void (*fn)(struct thr *thr, struct thr_call *call);
    enum bt_status status;
    bool is_done;
};

struct thr {
    struct bt_transport base;
    struct bt_transport_ops ops;
    struct thr_line calls, upcalls;
    /* C */
    struct ev_loop *loop;
    ev_async wake;
    struct bt_tevent *here, **here_last;       /* upcalls made on this side */
    struct bt_tevent *waiting, **waiting_last; /* gets for a job */
    uint64_t get_waits;
    struct thr_job *jobs, *free;
    LIST_HEAD(, thr_conn) conns;
    LIST_HEAD(, bt_tlisten) listeners;
    /* I */
    struct bt_transport *inner;
    struct ev_loop *inner_loop;
    ev_async inner_wake;
    ev_prepare prepare;
    ev_timer tick;
    LIST_HEAD(, thr_conn) unsent;
    /* begin and synchronous calls */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct thr_call *call; /* lock */
    bt_topen_fn open;
    const struct bt_rail_config *rail;
    char *error;
    size_t error_size;
};

/* ---- thread_line.c ---- */

bool bt_thr_line_init(struct thr_line *line, uint32_t capacity);
void bt_thr_line_fini(struct thr_line *line);
/* Producer: in order, at once or when there is room. */
void bt_thr_post(struct thr_line *line, struct bt_tevent *event);
/* Producer: move what waits; true: nothing waits any more. */
bool bt_thr_flush(struct thr_line *line);
/* Consumer: next message or NULL; wakes a producer that waits for room. */
struct bt_tevent *bt_thr_take(struct thr_line *line, struct thr_line *back);
void bt_thr_append(struct bt_tevent ***last, struct bt_tevent *event);

/* ---- thread_inner.c: the inner transport's side ---- */

/* The thread: opens the inner transport, answers thr->call (the first one),
 * then runs until bt_thr_stop. */
void *bt_thr_main(void *arg);
/* Synchronous calls, run by the thread. */
void bt_thr_stop(struct thr *thr, struct thr_call *call);
/* A connection of the inner transport now belongs to this one. */
void bt_thr_adopt(struct thr_conn *conn, struct bt_tconn *inner);
struct thr_conn *bt_thr_conn_new(struct thr *thr);
/* Accept of the inner transport; arg is the bt_tlisten. */
void bt_thr_accept(void *arg, struct bt_tconn *inner);

/* ---- thread_call.c: synchronous rows of the ops table ---- */

void bt_thr_call(struct thr *thr, struct thr_call *call,
                 void (*fn)(struct thr *thr, struct thr_call *call));
enum bt_status bt_thr_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out);
void bt_thr_unmap(struct bt_transport *transport, struct bt_tmem *mem);
void bt_thr_why(const struct bt_transport *transport, char *out, size_t size);
void bt_thr_describe(const struct bt_tconn *base, char *out, size_t size);
enum bt_status bt_thr_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out);
enum bt_status bt_thr_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out);
void bt_thr_key_close(struct bt_tkey *key);
enum bt_status bt_thr_listen(struct bt_transport *transport,
                             const struct sockaddr *address, socklen_t size,
                             bt_taccept_fn accept, void *arg,
                             uint16_t *port_out, struct bt_tlisten **out);
void bt_thr_unlisten(struct bt_tlisten *listener);
enum bt_status bt_thr_connect(struct bt_transport *transport,
                              const struct sockaddr *address, socklen_t size,
                              struct bt_tconn **out);

#endif
