/* One pull from start to call-back: OPEN, GRANT, its job, DONE. What is asked
 * for over which rail and what landed is kv_get.c's, the connections
 * kv_peer.c's and kv_rail.c's. States and their order are BT_PULL_STATES in
 * kv_sink.h.
 *
 * Invariants: every pull ends with one call-back, from the loop; not before its
 * last get has ended, so nothing writes to its blocks afterwards; OK only when
 * every block matched its checksum (if there are any). A local block is the
 * target of one pull at a time. */
#include "kv_sink.h"

#include "baton/transfer/runs.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_BEATS  2 /* heartbeats for landing gets after the deadline */
#define DEADLINE_MAX 86400000000000LL

static const struct {
    const char *name, *waits;
    unsigned int next;
} states[] = {
#define X(state, name, next, waits) {name, waits, next},
    BT_PULL_STATES(X)
#undef X
};

static void move(struct bt_kv_pull *pull, enum pull_state next)
{
    assert(states[pull->state].next & 1u << next);
    pull->state = next;
}

/* ---- local blocks in use ---- */

static void unclaim(struct bt_kv_sink *sink, const uint32_t *local,
                    size_t count)
{
    for (size_t i = 0; i < count; i++)
        sink->target[local[i] / 8] &= (uint8_t) ~(1u << local[i] % 8);
}

static enum bt_status claim(struct bt_kv_sink *sink, const uint32_t *local,
                            size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t bit = (uint8_t)(1u << local[i] % 8);

        if (sink->target[local[i] / 8] & bit) {
            unclaim(sink, local, i);
            return BT_EXISTS;
        }
        sink->target[local[i] / 8] |= bit;
    }
    return BT_OK;
}

/* ---- end ---- */

/* The source counts who reads: it hears of every end. Only one that wants no
 * other try gives the blocks back. */
static void tell_source(struct bt_kv_pull *pull, bool was_open)
{
    enum bt_status status = pull->end.status;
    bool is_over = status == BT_OK || status == BT_CANCELLED;
    struct note done = {.type = BT_WIRE_DONE,
                        .pull = pull->id,
                        .flags = is_over ? BT_WIRE_RELEASE : 0};

    memcpy(done.request, pull->request, sizeof(done.request));
    if (is_over || (was_open && pull->peer->control != NULL))
        bt_peer_note(pull->peer, &done);
}

static void settle(struct bt_kv_pull *pull, bool was_open)
{
    struct peer *peer = pull->peer;
    struct bt_kv_sink *sink = peer->sink;

    if (pull->state != PULL_DRAIN || pull->has_job)
        return;
    move(pull, PULL_ENDED);
    ev_timer_stop(sink->fabric->loop, &pull->deadline);
    ev_timer_stop(sink->fabric->loop, &pull->gate);
    TAILQ_REMOVE(&peer->pulls, pull, entry);
    peer->used_ns = bt_fabric_now();
    tell_source(pull, was_open);
    unclaim(sink, pull->local, pull->count);
    pull->end.duration_ns = peer->used_ns - pull->start_ns;
    TAILQ_INSERT_TAIL(&sink->ended, pull, entry);
    bt_fabric_timer(sink->fabric, &sink->report, 0);
}

void bt_pull_finish(struct bt_kv_pull *pull, enum bt_status status,
                    const char *detail)
{
    bool was_open = pull->state != PULL_WAIT;

    if (pull->state == PULL_DRAIN || pull->state == PULL_ENDED)
        return;
    pull->end.status = status;
    snprintf(pull->detail, sizeof(pull->detail), "%s", detail);
    move(pull, PULL_DRAIN);
    if (pull->has_job)
        bt_gets_stop(pull, status); /* may settle it */
    else
        settle(pull, was_open);
}

static const char *why(enum bt_status status)
{
    if (status == BT_OK)
        return "";
    if (status == BT_CHECKSUM)
        return "a block differs, fetched twice";
    return status == BT_PEER_ERROR ? "gets failed again and again"
                                   : bt_status_text(status);
}

void bt_pull_job_ended(struct bt_kv_pull *pull, const struct bt_job_end *end)
{
    uint64_t again = end->damaged * pull->peer->sink->config.layout.block_bytes;

    if (pull->state == PULL_FETCH) {
        pull->end.status = end->status;
        snprintf(pull->detail, sizeof(pull->detail), "%s", why(end->status));
        move(pull, PULL_DRAIN);
    }
    pull->end.bytes = end->bytes > again ? end->bytes - again : 0;
    pull->end.descriptors += end->damaged;
    pull->end.retries = end->retries;
    pull->end.queued_ns = end->queued_ns;
    pull->end.moved_ns = end->moved_ns;
    settle(pull, true);
}

void bt_pull_report(struct bt_kv_sink *sink)
{
    struct bt_kv_pull *pull;
    size_t budget = sink->pull_count; /* call-backs may add more */

    for (; budget > 0; budget--) {
        struct peer *peer;

        pull = TAILQ_FIRST(&sink->ended);
        if (pull == NULL)
            return;
        TAILQ_REMOVE(&sink->ended, pull, entry);
        sink->pull_count--;
        peer = pull->peer;
        pull->end.peer = peer->name;
        pull->end.detail = pull->detail;
        bt_meter_note(sink->fabric,
                      peer->rule != NULL ? peer->rule->link_class : "default",
                      &pull->end);
        pull->fn(pull->arg, &pull->end);
        peer->refs--;
        free(pull->memory);
        free(pull);
    }
}

/* ---- deadline ---- */

/* Its gets do not end: the rails they are on are closed by force. */
static void force(struct bt_kv_pull *pull)
{
    struct peer *peer = pull->peer;

    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++) {
        if (pull->out[i] > 0)
            bt_rail_fail(&peer->rails[i], BT_PEER_DEAD,
                         "gets did not end in time", false);
    }
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_pull *pull = w->data;
    struct bt_fabric *fabric = pull->peer->sink->fabric;

    (void)loop;
    (void)revents;
    if (pull->grace) {
        force(pull);
        return;
    }
    pull->grace = true;
    bt_pull_finish(pull, BT_TIMEOUT, states[pull->state].waits);
    if (pull->state == PULL_DRAIN)
        bt_fabric_timer(fabric, w, GRACE_BEATS * fabric->heartbeat_ns);
}

void bt_kv_pull_cancel(struct bt_kv_pull *pull)
{
    bt_pull_finish(pull, BT_CANCELLED, "by its owner");
}

/* ---- open and grant ---- */

static void send_open(struct bt_kv_pull *pull)
{
    struct peer *peer = pull->peer;
    struct bt_wire_frame f = {
        .type = BT_WIRE_OPEN, .pull = pull->id, .total = pull->count};

    if (!peer->sink->config.no_checksums)
        f.flags = BT_WIRE_CHECKSUMS;
    memcpy(f.request, pull->request, sizeof(f.request));
    for (uint32_t at = 0; at < pull->count; at += f.count) {
        uint32_t rest = pull->count - at;

        f.offset = at;
        f.count = rest < BT_WIRE_OPEN_PART ? rest : BT_WIRE_OPEN_PART;
        f.refs = pull->refs + at;
        bt_link_send(&peer->control->link, &f);
    }
}

void bt_pull_open(struct bt_kv_pull *pull)
{
    struct bt_lane *rule = pull->peer->rule;

    if (pull->count == 0) {
        bt_pull_finish(pull, BT_OK, ""); /* sends DONE */
        return;
    }
    if (pull->state == PULL_WAIT) {
        move(pull, PULL_OPEN);
        pull->gate_ns = bt_fabric_now() + (rule != NULL ? rule->setup_ns : 0);
    }
    pull->granted = 0;
    send_open(pull);
}

/* Neighbours on both sides are one descriptor, however many gets move it. */
static uint32_t runs_of(const struct bt_kv_pull *pull)
{
    struct bt_run *runs =
        calloc(pull->count, sizeof(struct bt_run) + sizeof(uint32_t));
    uint32_t *order, count;

    if (runs == NULL)
        return pull->count; /* at most so many */
    order = (uint32_t *)(void *)(runs + pull->count);
    count = (uint32_t)bt_runs_build(pull->remote, pull->local, pull->count,
                                    order, runs);
    free(runs);
    return count;
}

static void on_gate(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_pull *pull = w->data;

    (void)loop;
    (void)revents;
    if (pull->state == PULL_FETCH && !pull->has_job)
        bt_gets_start(pull);
}

static void granted_all(struct bt_kv_pull *pull)
{
    int64_t now_ns = bt_fabric_now();

    move(pull, PULL_FETCH);
    pull->end.descriptors = runs_of(pull);
    pull->end.setup_ns = now_ns - pull->start_ns;
    if (pull->gate_ns > now_ns) {
        pull->end.setup_ns = pull->gate_ns - pull->start_ns;
        bt_fabric_timer(pull->peer->sink->fabric, &pull->gate,
                        pull->gate_ns - now_ns);
        return;
    }
    pull->gate_ns = now_ns;
    bt_gets_start(pull);
}

void bt_pull_grant(struct bt_kv_pull *pull, const struct bt_wire_frame *f)
{
    if (pull->state != PULL_OPEN)
        return;
    if (f->total != pull->count || f->offset != pull->granted) {
        bt_pull_finish(pull, BT_REFUSED, "GRANT out of order");
        return;
    }
    for (uint32_t i = 0; i < f->count; i++) {
        uint32_t block = bt_wire_block(f, i);

        if (block >= pull->peer->block_count) {
            bt_pull_finish(pull, BT_REFUSED, "GRANT outside the region");
            return;
        }
        pull->remote[f->offset + i] = block;
        pull->hashes[f->offset + i] = bt_wire_hash(f, i);
    }
    pull->granted += f->count;
    if (pull->granted == pull->count)
        granted_all(pull);
}

/* ---- start ---- */

static enum bt_status spec_check(const struct bt_kv_sink *sink,
                                 const struct bt_kv_pull_spec *spec)
{
    if (sink->closing)
        return BT_CANCELLED;
    if (sink->pull_count == BT_SINK_PULLS_MAX || spec->count > BT_WIRE_LIST_MAX)
        return BT_LIMIT;
    if (spec->deadline_ns <= 0 || strlen(spec->request_id) > BT_KV_REQUEST_MAX)
        return BT_INVALID;
    for (size_t i = 0; i < spec->count; i++) {
        if (spec->local[i] >= sink->config.block_count)
            return BT_INVALID;
    }
    return BT_OK;
}

/* One block of memory: u64s first, then the u32s. */
static enum bt_status arrays_fill(struct bt_kv_pull *pull,
                                  const struct bt_kv_pull_spec *spec)
{
    size_t count = spec->count;
    unsigned char *m = calloc(count + 1, 2 * 8 + 2 * 4);

    if (m == NULL)
        return BT_NO_MEMORY;
    pull->memory = m;
    pull->refs = (uint64_t *)(void *)m;
    pull->hashes = pull->refs + count;
    pull->local = (uint32_t *)(void *)(pull->hashes + count);
    pull->remote = pull->local + count;
    pull->count = (uint32_t)count;
    if (count > 0) {
        memcpy(pull->refs, spec->remote, count * sizeof(uint64_t));
        memcpy(pull->local, spec->local, count * sizeof(uint32_t));
    }
    return BT_OK;
}

static void pull_begin(struct bt_kv_pull *pull, struct peer *peer,
                       const struct bt_kv_pull_spec *spec)
{
    struct bt_kv_sink *sink = peer->sink;
    int64_t limit_ns = spec->deadline_ns;

    if (limit_ns > DEADLINE_MAX)
        limit_ns = DEADLINE_MAX;
    pull->peer = peer;
    pull->id = ++sink->next_pull;
    pull->start_ns = bt_fabric_now();
    pull->deadline_ns = pull->start_ns + limit_ns;
    memcpy(pull->request, spec->request_id, strlen(spec->request_id) + 1);
    TAILQ_INSERT_TAIL(&peer->pulls, pull, entry);
    peer->refs++;
    peer->used_ns = pull->start_ns;
    sink->pull_count++;
    ev_timer_init(&pull->deadline, on_deadline, 0, 0);
    ev_timer_init(&pull->gate, on_gate, 0, 0);
    pull->deadline.data = pull;
    pull->gate.data = pull;
    bt_fabric_timer(sink->fabric, &pull->deadline, limit_ns);
}

enum bt_status bt_kv_pull_start(struct bt_kv_sink *sink,
                                const struct bt_kv_pull_spec *spec,
                                bt_kv_pull_fn fn, void *arg,
                                struct bt_kv_pull **out)
{
    const struct bt_peer_where where = {spec->host, spec->region, spec->port};
    enum bt_status status = spec_check(sink, spec);
    struct bt_kv_pull *pull;
    struct peer *peer;

    if (status != BT_OK)
        return status;
    peer = bt_peer_get(sink, &where, &status);
    if (peer == NULL)
        return status;
    pull = calloc(1, sizeof(*pull));
    if (pull == NULL)
        return BT_NO_MEMORY;
    status = arrays_fill(pull, spec);
    if (status != BT_OK)
        goto undo_pull;
    status = claim(sink, spec->local, spec->count);
    if (status != BT_OK)
        goto undo_arrays;
    pull->fn = fn;
    pull->arg = arg;
    pull_begin(pull, peer, spec);
    if (out != NULL)
        *out = pull;
    if (peer->control != NULL)
        bt_pull_open(pull);
    else
        bt_peer_want(peer);
    return BT_OK;

undo_arrays:
    free(pull->memory);
undo_pull:
    free(pull);
    return status;
}
