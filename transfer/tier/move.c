/* Moves blocks between two tiers, `depth` blocks under way. Decides the route
 * (straight, or by a staging block), the order, and when a move has ended.
 * Leaves the copying to the pools, the device and memcpy.
 *
 * A lane carries one block at a time:
 *
 *   idle -> staging -> first -> second -> idle      by a staging block
 *   idle --------------> first ---------> idle      straight
 *
 * Invariants: no lane holds memory or a staging block after the call-back;
 * after the first failure, or a cancel, lanes only finish the step they are in;
 * the call-back comes from the loop, never from bt_move_start or _cancel. */
#include "device.h"

#include <assert.h>
#include <ev.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH       8u
#define DEPTH_MAX   256u
#define COUNT_MAX   65536u
#define TURN_BYTES  (UINT64_C(4) << 20) /* of memcpy in one turn of the loop */
#define NVME_ALIGN  4096u
#define POLL_S      0.001
#define QUICK_TURNS 64u /* polls without a pause before it is every POLL_S */

enum step {
    STEP_NONE,
    STEP_COPY,      /* host -> host */
    STEP_TO_DEVICE, /* the device is the target's */
    STEP_FROM_DEVICE,
    STEP_WITHIN, /* device -> device */
    STEP_LOAD,
    STEP_STORE
};
enum lane_state {
    LANE_IDLE,
    LANE_STAGING, /* waits for a staging block */
    LANE_READY,   /* the step is not accepted yet */
    LANE_BUSY     /* the step is under way */
};
static const struct {
    const char *name;
    unsigned next;
} STATES[] = {
    [LANE_IDLE] = {"idle", 1u << LANE_STAGING | 1u << LANE_READY},
    [LANE_STAGING] = {"staging", 1u << LANE_READY | 1u << LANE_IDLE},
    [LANE_READY] = {"ready", 1u << LANE_BUSY | 1u << LANE_IDLE},
    [LANE_BUSY] = {"busy", 1u << LANE_READY | 1u << LANE_IDLE},
};

struct lane {
    struct bt_move *move;
    enum lane_state state;
    uint32_t index;   /* of the block */
    uint32_t step;    /* 0, 1 */
    uint32_t staged;  /* staging block */
    uint32_t ticket;  /* of a device copy */
    bool holds;       /* a staging block */
    bool device_copy; /* polled, not called back */
};
struct bt_move {
    struct ev_loop *loop;
    struct ev_timer timer;
    struct bt_tier_end from, to;
    void *lists; /* the blocks and keys of both */
    struct bt_host_pool *staging;
    uint32_t count, block_bytes, depth, started, active;
    enum step steps[2]; /* the second NONE: straight */
    struct lane *lanes;
    bt_move_fn fn;
    void *arg;
    struct bt_move_end end;
    int64_t start_ns;
    uint32_t quick;
    bool inside; /* turn() */
};

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void to_state(struct lane *l, enum lane_state state)
{
    assert(STATES[l->state].next & 1u << state);
    l->state = state;
}

/* ---- route ---- */

static enum step straight(const struct bt_tier_end *from,
                          const struct bt_tier_end *to)
{
    static const enum step table[3][3] = {
        [BT_MEMORY_HOST] = {[BT_MEMORY_HOST] = STEP_COPY,
                            [BT_MEMORY_DEVICE] = STEP_TO_DEVICE,
                            [BT_MEMORY_NVME] = STEP_STORE},
        [BT_MEMORY_DEVICE] = {[BT_MEMORY_HOST] = STEP_FROM_DEVICE,
                              [BT_MEMORY_DEVICE] = STEP_WITHIN,
                              [BT_MEMORY_NVME] = STEP_NONE},
        [BT_MEMORY_NVME] = {[BT_MEMORY_HOST] = STEP_LOAD,
                            [BT_MEMORY_DEVICE] = STEP_NONE,
                            [BT_MEMORY_NVME] = STEP_NONE},
    };
    enum step step = table[from->kind][to->kind];

    if (step == STEP_WITHIN && !bt_device_reaches(from->device, to->device))
        return STEP_NONE;
    return step;
}

static void route(struct bt_move *m)
{
    const struct bt_tier_end host = {.kind = BT_MEMORY_HOST};

    m->steps[0] = straight(&m->from, &m->to);
    if (m->steps[0] != STEP_NONE)
        return;
    m->steps[0] = straight(&m->from, &host);
    m->steps[1] = straight(&host, &m->to);
}

static bool good_end(const struct bt_tier_end *e, const struct bt_tier_end *o,
                     uint32_t block_bytes)
{
    switch (e->kind) {
    case BT_MEMORY_NVME:
        return e->nvme && e->keys &&
               bt_nvme_block_bytes(e->nvme) == block_bytes;
    case BT_MEMORY_DEVICE:
        return e->device && e->base && e->blocks;
    case BT_MEMORY_HOST:
        return e->base && e->blocks &&
               (o->kind != BT_MEMORY_NVME ||
                (uintptr_t)e->base % NVME_ALIGN == 0);
    }
    return false;
}

static bool good_staging(const struct bt_move *m)
{
    uint64_t align =
        m->from.kind == BT_MEMORY_NVME || m->to.kind == BT_MEMORY_NVME
            ? NVME_ALIGN
            : 1;

    return m->staging &&
           bt_host_pool_block_bytes(m->staging) >= m->block_bytes &&
           bt_host_pool_block_bytes(m->staging) % align == 0 &&
           bt_host_pool_bytes(m->staging) >=
               2 * bt_host_pool_block_bytes(m->staging);
}

/* ---- steps ---- */

static void turn(struct bt_move *m);

static char *at(const struct bt_move *m, const struct bt_tier_end *e,
                uint32_t index)
{
    return (char *)e->base + (uint64_t)e->blocks[index] * m->block_bytes;
}

static char *source(const struct lane *l)
{
    const struct bt_move *m = l->move;

    return l->step == 0 ? at(m, &m->from, l->index)
                        : bt_host_pool_at(m->staging, l->staged);
}

static char *target(const struct lane *l)
{
    const struct bt_move *m = l->move;

    return l->step == 0 && m->steps[1] != STEP_NONE
               ? bt_host_pool_at(m->staging, l->staged)
               : at(m, &m->to, l->index);
}

static void fail(struct bt_move *m, enum bt_status status)
{
    if (m->end.status == BT_OK)
        m->end.status = status;
}

static void to_idle(struct lane *l)
{
    to_state(l, LANE_IDLE);
    if (l->holds)
        bt_host_pool_put(l->move->staging, l->staged);
    l->holds = false;
    l->move->active--;
}

static void step_ended(struct lane *l, enum bt_status status)
{
    struct bt_move *m = l->move;
    bool last = l->step == 1 || m->steps[1] == STEP_NONE;

    if (status == BT_EXISTS && m->steps[l->step] == STEP_STORE)
        status = BT_OK;
    if (status != BT_OK)
        fail(m, status);
    if (status == BT_OK && last) {
        m->end.moved++;
        m->end.bytes += m->block_bytes;
    }
    if (last || m->end.status != BT_OK) {
        to_idle(l);
        return;
    }
    l->step = 1;
    to_state(l, LANE_READY);
}

static void on_nvme(void *arg, enum bt_status status)
{
    struct lane *l = arg;

    step_ended(l, status);
    turn(l->move);
}

static enum bt_status device_copy(struct lane *l, struct bt_device *device,
                                  enum bt_copy_kind kind)
{
    const struct bt_move *m = l->move;
    const struct bt_device_copy copy = {
        .kind = kind,
        .to = target(l),
        .from = source(l),
        .bytes = m->block_bytes,
        .peer = kind == BT_COPY_WITHIN ? m->to.device : NULL,
    };

    l->device_copy = true;
    return bt_device_copy(device, &copy, &l->ticket);
}

/* BT_AGAIN: done already. */
static enum bt_status begin(struct lane *l)
{
    struct bt_move *m = l->move;

    l->device_copy = false;
    switch (m->steps[l->step]) {
    case STEP_NONE:
        break;
    case STEP_COPY:
        memmove(target(l), source(l), m->block_bytes);
        return BT_AGAIN;
    case STEP_TO_DEVICE:
        return device_copy(l, m->to.device, BT_COPY_TO_DEVICE);
    case STEP_FROM_DEVICE:
        return device_copy(l, m->from.device, BT_COPY_FROM_DEVICE);
    case STEP_WITHIN:
        return device_copy(l, m->from.device, BT_COPY_WITHIN);
    case STEP_LOAD:
        return bt_nvme_load(m->from.nvme, m->from.keys[l->index], target(l),
                            on_nvme, l);
    case STEP_STORE:
        return bt_nvme_store(m->to.nvme, m->to.keys[l->index], source(l),
                             on_nvme, l);
    }
    return BT_BUG;
}

static void poll_device(struct lane *l)
{
    const struct bt_move *m = l->move;
    struct bt_device *device =
        m->steps[l->step] == STEP_TO_DEVICE ? m->to.device : m->from.device;
    enum bt_status status = bt_device_poll(device, l->ticket);

    if (status != BT_AGAIN)
        step_ended(l, status);
}

/* ---- lanes ---- */

static void take_block(struct bt_move *m, struct lane *l)
{
    if (m->end.status != BT_OK || m->started == m->count)
        return;
    l->index = m->started++;
    l->step = 0;
    m->active++;
    to_state(l, m->steps[1] == STEP_NONE ? LANE_READY : LANE_STAGING);
}

static void begin_ready(struct lane *l, uint64_t *budget)
{
    enum bt_status status;

    if (l->move->end.status != BT_OK) {
        to_idle(l);
        return;
    }
    if (*budget == 0)
        return;
    status = begin(l);
    if (status == BT_LIMIT)
        return; /* the pool or the device is full: tried again */
    if (status == BT_OK) {
        to_state(l, LANE_BUSY);
        return;
    }
    if (status == BT_AGAIN)
        *budget -=
            *budget < l->move->block_bytes ? *budget : l->move->block_bytes;
    to_state(l, LANE_BUSY);
    step_ended(l, status == BT_AGAIN ? BT_OK : status);
}

static void step_lane(struct lane *l, uint64_t *budget)
{
    struct bt_move *m = l->move;

    if (l->state == LANE_BUSY && l->device_copy)
        poll_device(l);
    if (l->state == LANE_IDLE)
        take_block(m, l);
    if (l->state == LANE_STAGING) {
        if (m->end.status != BT_OK)
            to_idle(l);
        else if (bt_host_pool_get(m->staging, &l->staged) == BT_OK) {
            l->holds = true;
            to_state(l, LANE_READY);
        }
    }
    if (l->state == LANE_READY)
        begin_ready(l, budget);
}

static void finish(struct bt_move *m)
{
    struct bt_move_end end = m->end;
    bt_move_fn fn = m->fn;
    void *arg = m->arg;

    ev_timer_stop(m->loop, &m->timer);
    end.duration_ns = now_ns() - m->start_ns;
    free(m->lists);
    free(m->lanes);
    free(m);
    fn(arg, &end);
}

/* Polling is quick at first, so that short copies are not rounded up to the
 * loop's millisecond, and then costs nothing to speak of. */
static void set_timer(struct bt_move *m)
{
    bool busy_elsewhere = true;

    for (uint32_t i = 0; i < m->depth; i++) {
        const struct lane *l = &m->lanes[i];

        if (l->state == LANE_READY || l->state == LANE_STAGING ||
            (l->state == LANE_BUSY && l->device_copy))
            busy_elsewhere = false;
    }
    ev_timer_stop(m->loop, &m->timer);
    if (busy_elsewhere && m->active > 0)
        return; /* a call-back of a pool goes on */
    ev_timer_set(&m->timer, m->quick > 0 ? 0 : POLL_S, 0);
    m->quick -= m->quick > 0;
    ev_timer_start(m->loop, &m->timer);
}

static void turn(struct bt_move *m)
{
    uint64_t budget = TURN_BYTES;
    uint32_t before = m->end.moved;

    if (m->inside)
        return;
    m->inside = true;
    for (uint32_t i = 0; i < m->depth; i++)
        step_lane(&m->lanes[i], &budget);
    m->inside = false;
    if (m->active == 0 && (m->started == m->count || m->end.status != BT_OK)) {
        finish(m);
        return;
    }
    if (m->end.moved != before)
        m->quick = QUICK_TURNS;
    set_timer(m);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    turn(w->data);
}

/* ---- start ---- */

static void copy_list(const struct bt_move *m, struct bt_tier_end *e,
                      uint64_t *room)
{
    if (e->kind == BT_MEMORY_NVME)
        e->keys = memcpy(room, e->keys, m->count * sizeof(*e->keys));
    else
        e->blocks = memcpy(room, e->blocks, m->count * sizeof(*e->blocks));
}

static bool good(const struct bt_move_spec *s)
{
    return s->count > 0 && s->count <= COUNT_MAX && s->block_bytes > 0 &&
           s->depth <= DEPTH_MAX &&
           good_end(&s->from, &s->to, s->block_bytes) &&
           good_end(&s->to, &s->from, s->block_bytes);
}

static enum bt_status fill(struct bt_move *m, const struct bt_move_spec *spec)
{
    uint64_t *lists;

    m->from = spec->from;
    m->to = spec->to;
    m->staging = spec->staging;
    m->count = spec->count;
    m->block_bytes = spec->block_bytes;
    m->depth = spec->depth ? spec->depth : DEPTH;
    route(m);
    if (m->steps[1] != STEP_NONE && !good_staging(m))
        return BT_INVALID;
    lists = malloc(2 * (size_t)m->count * sizeof(*lists));
    m->lists = lists;
    m->lanes = calloc(m->depth, sizeof(*m->lanes));
    if (!m->lists || !m->lanes)
        return BT_NO_MEMORY;
    copy_list(m, &m->from, lists);
    copy_list(m, &m->to, lists + m->count);
    for (uint32_t i = 0; i < m->depth; i++)
        m->lanes[i].move = m;
    return BT_OK;
}

enum bt_status bt_move_start(struct ev_loop *loop,
                             const struct bt_move_spec *spec, bt_move_fn fn,
                             void *arg, struct bt_move **out)
{
    enum bt_status status;
    struct bt_move *m;

    if (!good(spec))
        return BT_INVALID;
    m = calloc(1, sizeof(*m));
    if (!m)
        return BT_NO_MEMORY;
    status = fill(m, spec);
    if (status != BT_OK) {
        free(m->lists);
        free(m->lanes);
        free(m);
        return status;
    }
    m->loop = loop;
    m->fn = fn;
    m->arg = arg;
    m->start_ns = now_ns();
    m->quick = QUICK_TURNS;
    ev_timer_init(&m->timer, on_timer, 0, 0);
    m->timer.data = m;
    ev_timer_start(loop, &m->timer);
    *out = m;
    return BT_OK;
}

void bt_move_cancel(struct bt_move *move)
{
    fail(move, BT_CANCELLED);
    if (move->inside)
        return;
    ev_timer_stop(move->loop, &move->timer);
    ev_timer_set(&move->timer, 0, 0);
    ev_timer_start(move->loop, &move->timer);
}
