/* Memory and gets of the simulated transport. A get is carried by the link as
 * one stretch and lands when its last byte would: the asking end copies, under
 * the lock of the network, after it has checked key and bounds against what
 * the peer has registered at that moment. Invariants: nothing is copied for a
 * get that has ended, a refused get copies nothing and breaks its connection
 * on both ends. */
#include "fabric_sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MEMS_MAX 4096u

struct bt_tkey {
    uint64_t key;
};

static void lock(struct sim *sim)
{
    pthread_mutex_lock(&sim->net->lock);
}

static void unlock(struct sim *sim)
{
    pthread_mutex_unlock(&sim->net->lock);
}

enum bt_status bt_sim_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out)
{
    struct sim *sim = (struct sim *)transport;
    struct bt_tmem *mem = malloc(sizeof(*mem));
    bool room;

    if (mem == NULL)
        return BT_NO_MEMORY;
    *mem = (struct bt_tmem){.address = address, .bytes = bytes};
    lock(sim);
    room = sim->mem_count < MEMS_MAX;
    if (room) {
        LIST_INSERT_HEAD(&sim->mems, mem, entry);
        sim->mem_count++;
    }
    unlock(sim);
    if (!room) {
        free(mem);
        return BT_LIMIT;
    }
    *out = mem;
    return BT_OK;
}

void bt_sim_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    struct sim *sim = (struct sim *)transport;

    lock(sim);
    LIST_REMOVE(mem, entry);
    sim->mem_count--;
    unlock(sim);
    free(mem);
}

enum bt_status bt_sim_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out)
{
    struct sim *sim = (struct sim *)transport;

    if (size < sizeof(mem->key))
        return BT_TOO_LARGE;
    lock(sim);
    if (mem->key == 0)
        mem->key = ++sim->net->key_last;
    memcpy(out, &mem->key, sizeof(mem->key));
    unlock(sim);
    *used_out = sizeof(mem->key);
    return BT_OK;
}

enum bt_status bt_sim_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out)
{
    struct bt_tkey *key;

    (void)base;
    if (size != sizeof(key->key))
        return BT_INVALID;
    key = malloc(sizeof(*key));
    if (key == NULL)
        return BT_NO_MEMORY;
    memcpy(&key->key, bytes, sizeof(key->key));
    *out = key;
    return BT_OK;
}

void bt_sim_key_close(struct bt_tkey *key)
{
    free(key);
}

static bool inside(const struct bt_tmem *mem, uint64_t address, uint64_t bytes)
{
    uint64_t offset = address - (uintptr_t)mem->address;

    return address >= (uintptr_t)mem->address && offset <= mem->bytes &&
           bytes <= mem->bytes - offset;
}

static struct bt_tmem *exported(const struct sim *sim, uint64_t key)
{
    struct bt_tmem *mem;

    LIST_FOREACH(mem, &sim->mems, entry)
    {
        if (mem->key != 0 && mem->key == key)
            return mem;
    }
    return NULL;
}

/* May the asking end touch all of it? */
static bool granted(const struct sim_conn *peer, const struct bt_tget *get)
{
    const struct bt_tmem *mem = exported(peer->sim, get->span.remote_key->key);

    if (!peer->is_allowed || mem == NULL)
        return false;
    for (uint32_t i = 0; i < get->span.count; i++) {
        const struct bt_tpiece *piece = &get->span.pieces[i];

        if (!inside(mem, piece->remote, piece->bytes))
            return false;
    }
    return true;
}

void bt_sim_land(struct bt_tget *get, int64_t now_ns)
{
    struct sim_conn *conn = (struct sim_conn *)get->event.conn;
    struct sim_conn *peer = conn->peer;

    if (get->status != BT_OK)
        return;
    if (peer == NULL) {
        get->status = BT_RESET;
        return;
    }
    if (!granted(peer, get)) {
        get->status = BT_PEER_ERROR;
        bt_sim_fail(peer, BT_PEER_ERROR, now_ns);
        bt_sim_fail(conn, BT_PEER_ERROR, now_ns);
        return;
    }
    for (uint32_t i = 0; i < get->span.count; i++) {
        const struct bt_tpiece *piece = &get->span.pieces[i];
        unsigned char *remote = (unsigned char *)(uintptr_t)piece->remote;

        if (get->event.kind == SIM_GET)
            memmove(piece->local, remote, piece->bytes);
        else
            memmove(remote, piece->local, piece->bytes);
    }
}

/* What only a bug of the caller can break. */
static void check(const struct bt_tspan *span)
{
    uint64_t sum = 0;

    assert(span->count > 0 && span->count <= BT_SIM_PIECES_MAX);
    for (uint32_t i = 0; i < span->count; i++) {
        assert(span->pieces[i].bytes > 0);
        assert(inside(span->local_mem, (uintptr_t)span->pieces[i].local,
                      span->pieces[i].bytes));
        sum += span->pieces[i].bytes;
    }
    assert(sum == span->bytes && sum <= BT_SIM_BYTES_MAX);
}

static void start(struct bt_tconn *base, const struct bt_tspan *span,
                  struct bt_tget *get, enum sim_kind kind)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    const struct sim_net *net = conn->sim->net;
    int64_t now_ns = bt_fabric_now(), due_ns;

    check(span);
    get->event.kind = kind;
    get->event.conn = base;
    get->span = *span;
    get->status = BT_OK;
    lock(conn->sim);
    if (conn->is_closing || conn->is_failed || conn->peer == NULL)
        get->status = BT_CANCELLED;
    if (conn->is_closing)
        due_ns = conn->closed.due_ns - 1; /* which comes last */
    else if (get->status != BT_OK)
        due_ns = now_ns;
    else if (kind == SIM_GET)
        due_ns =
            bt_sim_carry(net, conn->in, span->bytes, now_ns + net->latency_ns) +
            net->latency_ns;
    else
        due_ns = bt_sim_carry(net, conn->out, span->bytes, now_ns) +
                 2 * net->latency_ns;
    bt_sim_post(conn->sim, &get->event, due_ns);
    unlock(conn->sim);
}

void bt_sim_get(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *get)
{
    start(base, span, get, SIM_GET);
}

void bt_sim_put(struct bt_tconn *base, const struct bt_tspan *span,
                struct bt_tget *put)
{
    start(base, span, put, SIM_PUT);
}
