/* Gets from a process of the same host: one copy by process_vm_readv, instead
 * of two through UCX's shared buffers, where the rail names cma.
 *
 *   sink                                     source (allowed this peer)
 *   NEAR_ASK {16 random bytes}          ->   shows them in its memory
 *                                       <-   NEAR {its pid, where}
 *   reads them there: same host, may read, that process
 *
 *   each read:  shown, guard of the key | pieces | shown, guard of the key
 *
 * Not UCX's own cma, which needs a rendezvous, and with that brings down what
 * outlives its peer. Decides whether a get goes this way; any doubt (no
 * permission, other namespace, memory that cannot be read, bounds) sends it
 * over messages, where the source judges it. Puts always go over messages: a
 * check before a write is too early, one behind it too late.
 * Invariants: a get ends well only if every byte came from reads with both
 * marks in front and behind, so the process was the peer, and the memory still
 * exported, while it was read: a source takes the marks away when it closes the
 * connection or unmaps; a pid that was given to somebody else shows neither.
 * The loop is held for at most TURN_BYTES at a time. */
#include "fabric_ucx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#define TURN_BYTES (1u << 20)
#define IOVS_MAX   (BT_UCX_PIECES_MAX + 4u)

struct near_get {
    TAILQ_ENTRY(near_get) entry;
    struct bt_tget *op;
    uint32_t index, used; /* piece, bytes done of it */
};

/* What NEAR says. */
struct near_answer {
    uint64_t pid, shown_at;
};

/* In front of and behind the bytes of a read. */
struct marks {
    unsigned char shown[BT_UCX_NONCE];
    uint64_t guard;
};

struct near_read {
    struct iovec local[IOVS_MAX], remote[IOVS_MAX];
    unsigned long locals, remotes;
    struct marks head, tail;
    size_t bytes;
};

/* ---- making sure ---- */

static void add(struct near_read *r, void *local, uint64_t remote, size_t bytes)
{
    r->local[r->locals++] = (struct iovec){.iov_base = local, .iov_len = bytes};
    r->remote[r->remotes++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)remote, .iov_len = bytes};
    r->bytes += bytes;
}

static void add_marks(struct near_read *r, const struct conn *conn,
                      const struct bt_tkey *key, struct marks *to)
{
    add(r, to->shown, conn->near.shown_at, sizeof(to->shown));
    add(r, &to->guard, key->guard_at, sizeof(to->guard));
}

static bool marks_good(const struct marks *marks, const struct conn *conn,
                       const struct bt_tkey *key)
{
    return memcmp(marks->shown, conn->near.nonce, BT_UCX_NONCE) == 0 &&
           marks->guard == key->guard;
}

static bool read_all(const struct conn *conn, const struct near_read *r)
{
    return process_vm_readv(conn->near.pid, r->local, r->locals, r->remote,
                            r->remotes, 0) == (ssize_t)r->bytes;
}

void bt_ucx_near_ask(struct conn *conn)
{
    struct bt_ucx_near *near = &conn->near;

    if (!conn->ucx->kind.near || near->is_asked ||
        getrandom(near->nonce, BT_UCX_NONCE, 0) != BT_UCX_NONCE)
        return;
    near->is_asked = true;
    bt_ucx_send(conn, AM_NEAR_ASK, near->nonce, BT_UCX_NONCE);
}

/* A peer that may read shows that it is who it says. */
void bt_ucx_near_asked(struct conn *conn, const void *data)
{
    struct near_answer answer = {
        .pid = (uint64_t)getpid(),
        .shown_at = (uintptr_t)conn->near.shown,
    };

    if (!conn->ucx->kind.near || !conn->is_allowed)
        return;
    memcpy(conn->near.shown, data, BT_UCX_NONCE);
    bt_ucx_send(conn, AM_NEAR, &answer, sizeof(answer));
}

/* Our own process is no peer: it holds the nonce anyway. */
void bt_ucx_near_answered(struct conn *conn, const void *data)
{
    struct bt_ucx_near *near = &conn->near;
    struct near_read r = {.bytes = 0};
    struct near_answer answer;

    memcpy(&answer, data, sizeof(answer));
    if (!near->is_asked || near->is_on || answer.pid == 0 ||
        answer.pid > INT32_MAX || answer.pid == (uint64_t)getpid())
        return;
    near->pid = (pid_t)answer.pid;
    near->shown_at = answer.shown_at;
    add(&r, r.head.shown, near->shown_at, BT_UCX_NONCE);
    near->is_on = read_all(conn, &r) &&
                  memcmp(r.head.shown, near->nonce, BT_UCX_NONCE) == 0;
}

/* ---- gets ---- */

/* Up to so many bytes of one get; the marks of each read cost little. */
static void fill(struct near_read *r, const struct near_get *get, size_t most)
{
    const struct bt_tspan *span = &get->op->span;
    uint32_t used = get->used;
    size_t most_bytes = r->bytes + most;

    for (uint32_t i = get->index; i < span->count && r->bytes < most_bytes;
         i++) {
        const struct bt_tpiece *p = &span->pieces[i];
        size_t part = p->bytes - used, room = most_bytes - r->bytes;

        part = part < room ? part : room;
        add(r, (unsigned char *)p->local + used, p->remote + used, part);
        used = 0;
    }
}

static void advance(struct near_get *get, size_t bytes)
{
    const struct bt_tspan *span = &get->op->span;

    while (bytes > 0) {
        size_t left = span->pieces[get->index].bytes - get->used;

        if (bytes < left) {
            get->used += (uint32_t)bytes;
            return;
        }
        bytes -= left;
        get->used = 0;
        get->index++;
    }
}

static void get_free(struct conn *conn, struct near_get *get)
{
    TAILQ_REMOVE(&conn->near.gets, get, entry);
    free(get);
}

/* Bytes that came; 0: not this way. */
static size_t step(struct conn *conn, struct near_get *get)
{
    const struct bt_tkey *key = get->op->span.remote_key;
    struct near_read r;
    size_t bytes;

    r.locals = r.remotes = 0;
    r.bytes = 0;
    r.head = r.tail = (struct marks){.guard = 0};
    add_marks(&r, conn, key, &r.head);
    fill(&r, get, TURN_BYTES);
    add_marks(&r, conn, key, &r.tail);
    bytes = r.bytes - 2 * (BT_UCX_NONCE + sizeof(key->guard));
    if (!read_all(conn, &r) || !marks_good(&r.head, conn, key) ||
        !marks_good(&r.tail, conn, key))
        return 0;
    advance(get, bytes);
    return bytes;
}

/* From the loop, not from a ucp call-back. */
void bt_ucx_near_pump(struct conn *conn)
{
    struct near_get *get;
    size_t bytes = 0;

    while ((get = TAILQ_FIRST(&conn->near.gets)) != NULL &&
           bytes < TURN_BYTES) {
        /* removed before it is freed: NOLINTNEXTLINE(clang-analyzer-unix.*) */
        struct bt_tget *op = get->op;
        size_t came;

        if (conn->is_failed || conn->is_closing)
            return;
        came = step(conn, get);
        bytes += came;
        if (came > 0 && get->index < op->span.count)
            continue;
        get_free(conn, get);
        if (came > 0)
            bt_ucx_op_ended(op, BT_OK);
        else
            bt_ucx_get_message(conn, op);
    }
    if (get != NULL)
        bt_ucx_push_pump(conn);
}

bool bt_ucx_near_get(struct conn *conn, struct bt_tget *op)
{
    const struct bt_tspan *span = &op->span;
    struct near_get *get;

    if (!conn->near.is_on || span->remote_key->guard_at == 0 ||
        !bt_ucx_inside(span))
        return false;
    get = calloc(1, sizeof(*get));
    if (get == NULL)
        return false;
    get->op = op;
    TAILQ_INSERT_TAIL(&conn->near.gets, get, entry);
    bt_ucx_push_pump(conn);
    return true;
}

/* The peer may no longer read: before anything that it names is gone. */
void bt_ucx_near_hide(struct conn *conn)
{
    explicit_bzero(conn->near.shown, sizeof(conn->near.shown));
}

/* The endpoint is closed. */
void bt_ucx_near_end(struct conn *conn)
{
    struct near_get *get;

    while ((get = TAILQ_FIRST(&conn->near.gets)) != NULL) {
        /* removed before it is freed: NOLINTNEXTLINE(clang-analyzer-unix.*) */
        struct bt_tget *op = get->op;

        get_free(conn, get);
        bt_ucx_op_ended(op, BT_CANCELLED);
    }
}
