/* One pull: open, grant, chunked gets, check of every block, DONE. Which chunk
 * is next is pace.c's, the connection kv_sink.c's. States and their order are
 * BT_PULL_STATES in kv_sink.h.
 *
 * Invariants: every pull ends with one call-back, from the loop; not before its
 * last get has ended, so nothing writes to its blocks afterwards; OK only when
 * every block matched its checksum. A damaged block is fetched once more. A
 * local block is the target of one pull at a time. */
#include "kv_sink.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAMAGED      UINT32_MAX
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

static struct bt_kv_pull *pull_of(struct bt_flow *flow)
{
    return (struct bt_kv_pull *)(void *)((char *)flow -
                                         offsetof(struct bt_kv_pull, flow));
}

static uint64_t block_bytes(const struct bt_kv_pull *pull)
{
    return pull->peer->sink->config.layout.block_bytes;
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

static void tell_source(struct bt_kv_pull *pull)
{
    enum bt_status status = pull->end.status;

    if (status == BT_OK || status == BT_CANCELLED)
        bt_peer_note(pull->peer, BT_WIRE_DONE, pull->request);
}

static void settle(struct bt_kv_pull *pull)
{
    struct bt_kv_sink *sink = pull->peer->sink;

    if (pull->state != PULL_DRAIN || pull->gets > 0)
        return;
    move(pull, PULL_ENDED);
    ev_timer_stop(sink->fabric->loop, &pull->deadline);
    TAILQ_REMOVE(&pull->peer->pulls, pull, entry);
    tell_source(pull);
    unclaim(sink, pull->local, pull->count);
    pull->end.duration_ns = bt_fabric_now() - pull->start_ns;
    TAILQ_INSERT_TAIL(&sink->ended, pull, entry);
    bt_fabric_timer(sink->fabric, &sink->report, 0);
}

void bt_pull_finish(struct bt_kv_pull *pull, enum bt_status status,
                    const char *detail)
{
    if (pull->state == PULL_DRAIN || pull->state == PULL_ENDED)
        return;
    bt_lane_remove(pull->peer->lane, &pull->flow);
    pull->end.status = status;
    snprintf(pull->detail, sizeof(pull->detail), "%s", detail);
    move(pull, PULL_DRAIN);
    settle(pull);
}

void bt_pull_report(struct bt_kv_sink *sink)
{
    struct bt_kv_pull *pull;
    size_t budget = sink->pull_count; /* call-backs may add more */

    for (; budget > 0; budget--) {
        pull = TAILQ_FIRST(&sink->ended);
        if (pull == NULL)
            return;
        TAILQ_REMOVE(&sink->ended, pull, entry);
        sink->pull_count--;
        pull->end.peer = pull->peer->name;
        pull->end.detail = pull->detail;
        bt_meter_note(sink->fabric, pull->peer->lane->link_class, &pull->end);
        pull->fn(pull->arg, &pull->end);
        free(pull->memory);
        free(pull);
    }
}

/* ---- deadline ---- */

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_pull *pull = w->data;
    struct peer *peer = pull->peer;
    int64_t grace_ns = GRACE_BEATS * peer->sink->fabric->heartbeat_ns;

    (void)loop;
    (void)revents;
    if (pull->grace) {
        bt_peer_drop(peer, BT_PEER_DEAD, "gets did not end in time");
        return;
    }
    pull->grace = true;
    bt_pull_finish(pull, BT_TIMEOUT, states[pull->state].waits);
    if (pull->state != PULL_DRAIN)
        return;
    bt_fabric_timer(peer->sink->fabric, w, grace_ns);
}

void bt_kv_pull_cancel(struct bt_kv_pull *pull)
{
    bt_pull_finish(pull, BT_CANCELLED, "by its owner");
}

/* ---- landing ---- */

static void check_block(struct bt_kv_pull *pull, const struct bt_run *run,
                        uint32_t k)
{
    const struct bt_kv_sink_config *c = &pull->peer->sink->config;
    const unsigned char *region = c->region;
    uint64_t bytes = c->layout.block_bytes;
    uint32_t at = run->first + k;

    if (bt_block_checksum(region + (run->local + k) * bytes, bytes) ==
        pull->hashes[pull->order[at]])
        return;
    pull->left[at] = DAMAGED;
    pull->bad++;
}

static void land(struct bt_kv_pull *pull, const struct bt_chunk *chunk)
{
    const struct bt_run *run = &pull->runs[chunk->run];
    uint64_t bytes = block_bytes(pull);
    uint64_t last = (chunk->offset + chunk->bytes - 1) / bytes;

    pull->end.bytes += chunk->bytes;
    for (uint64_t k = chunk->offset / bytes; k <= last; k++) {
        uint32_t *left = &pull->left[run->first + k];

        *left -= (uint32_t)bt_chunk_overlap(chunk, bytes, k);
        if (*left == 0)
            check_block(pull, run, (uint32_t)k);
    }
}

/* Every damaged block becomes a run of its own. */
static void fetch_again(struct bt_kv_pull *pull)
{
    size_t runs = 0;

    for (uint32_t i = 0; i < pull->count; i++) {
        uint32_t at = pull->order[i];

        if (pull->left[i] != DAMAGED)
            continue;
        pull->left[i] = (uint32_t)block_bytes(pull);
        pull->runs[runs++] =
            (struct bt_run){pull->remote[at], pull->local[at], 1, i};
    }
    pull->run_count = runs;
    pull->end.bytes -= runs * block_bytes(pull);
    pull->end.descriptors += (uint32_t)runs;
    pull->cursor = (struct bt_run_cursor){0, 0};
    pull->again = true;
    pull->bad = 0;
    pull->flow.gate_ns = bt_fabric_now();
    bt_lane_add(pull->peer->lane, &pull->flow);
}

static void landed_all(struct bt_kv_pull *pull)
{
    if (pull->bad == 0)
        bt_pull_finish(pull, BT_OK, "");
    else if (!pull->again)
        fetch_again(pull);
    else
        bt_pull_finish(pull, BT_CHECKSUM, "a block differs, fetched twice");
}

static void on_got(struct bt_tget *get, enum bt_status status)
{
    struct chunk *chunk = (struct chunk *)get;
    struct bt_kv_pull *pull = chunk->pull;
    struct peer *peer = pull->peer;

    pull->gets--;
    chunk->next_free = peer->free_chunks;
    peer->free_chunks = chunk;
    if (status == BT_OK)
        peer->heard = true;
    if (status == BT_OK && pull->state == PULL_FETCH) {
        land(pull, &chunk->span);
        if (pull->cursor.run == pull->run_count && pull->gets == 0)
            landed_all(pull);
    }
    settle(pull);
    if (status != BT_OK)
        bt_peer_drop(peer, BT_PEER_DEAD, bt_status_text(status));
    else
        bt_lane_pump(peer->lane);
}

/* ---- gets: called by the lane ---- */

static uint32_t peek(struct bt_flow *flow, uint32_t chunk_max)
{
    struct bt_kv_pull *pull = pull_of(flow);

    if (pull->peer->free_chunks == NULL)
        return 0;
    return (uint32_t)bt_run_peek(pull->runs, pull->run_count, block_bytes(pull),
                                 chunk_max, &pull->cursor);
}

static bool issue(struct bt_flow *flow, uint32_t chunk_max)
{
    struct bt_kv_pull *pull = pull_of(flow);
    struct peer *peer = pull->peer;
    struct bt_kv_sink *sink = peer->sink;
    struct chunk *chunk = peer->free_chunks;
    struct bt_tspan span;

    assert(chunk != NULL);
    if (!bt_run_next(pull->runs, pull->run_count, block_bytes(pull), chunk_max,
                     &pull->cursor, &chunk->span))
        return false;
    peer->free_chunks = chunk->next_free;
    chunk->pull = pull;
    chunk->get.done = on_got;
    pull->gets++;
    chunk->piece = (struct bt_tpiece){
        .local = (unsigned char *)sink->config.region + chunk->span.local,
        .remote = peer->region + chunk->span.remote,
        .bytes = (uint32_t)chunk->span.bytes,
    };
    span = (struct bt_tspan){
        .pieces = &chunk->piece,
        .count = 1,
        .bytes = chunk->span.bytes,
        .local_mem = sink->mem,
        .remote_key = peer->key,
    };
    sink->fabric->transport->ops->get(peer->conn, &span, &chunk->get);
    return pull->cursor.run < pull->run_count;
}

/* ---- open and grant ---- */

static void send_open(struct bt_kv_pull *pull)
{
    struct bt_wire_frame f = {
        .type = BT_WIRE_OPEN, .pull = pull->id, .total = pull->count};

    memcpy(f.request, pull->request, sizeof(f.request));
    for (uint32_t at = 0; at < pull->count; at += f.count) {
        uint32_t rest = pull->count - at;

        f.offset = at;
        f.count = rest < BT_WIRE_OPEN_PART ? rest : BT_WIRE_OPEN_PART;
        f.blocks = pull->remote + at;
        bt_peer_send(pull->peer, &f);
    }
}

void bt_pull_open(struct bt_kv_pull *pull)
{
    struct peer *peer = pull->peer;

    if (pull->count == 0) {
        bt_pull_finish(pull, BT_OK, ""); /* sends DONE */
        return;
    }
    for (uint32_t i = 0; i < pull->count; i++) {
        if (pull->remote[i] >= peer->block_count) {
            bt_pull_finish(pull, BT_NOT_FOUND, "block outside the region");
            return;
        }
    }
    move(pull, PULL_OPEN);
    pull->flow.gate_ns = bt_fabric_now() + peer->lane->setup_ns;
    send_open(pull);
}

void bt_pull_grant(struct bt_kv_pull *pull, const struct bt_wire_frame *f)
{
    int64_t now_ns = bt_fabric_now();

    if (pull->state != PULL_OPEN)
        return;
    if (f->total != pull->count || f->offset != pull->granted) {
        bt_pull_finish(pull, BT_REFUSED, "GRANT out of order");
        return;
    }
    for (uint32_t i = 0; i < f->count; i++)
        pull->hashes[f->offset + i] = bt_wire_hash(f, i);
    pull->granted += f->count;
    if (pull->granted < pull->count)
        return;
    move(pull, PULL_FETCH);
    if (pull->flow.gate_ns < now_ns)
        pull->flow.gate_ns = now_ns;
    bt_lane_add(pull->peer->lane, &pull->flow);
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
static enum bt_status arrays_alloc(struct bt_kv_pull *pull, size_t count)
{
    unsigned char *m = calloc(count + 1, sizeof(struct bt_run) + 8 + 4 * 4);

    if (m == NULL)
        return BT_NO_MEMORY;
    pull->memory = m;
    pull->hashes = (uint64_t *)(void *)m;
    pull->runs = (struct bt_run *)(void *)(m + count * 8);
    pull->remote = (uint32_t *)(void *)(pull->runs + count);
    pull->local = pull->remote + count;
    pull->order = pull->local + count;
    pull->left = pull->order + count;
    return BT_OK;
}

static void arrays_fill(struct bt_kv_pull *pull,
                        const struct bt_kv_pull_spec *spec, uint32_t bytes)
{
    pull->count = (uint32_t)spec->count;
    if (spec->count > 0) {
        memcpy(pull->remote, spec->remote, spec->count * sizeof(uint32_t));
        memcpy(pull->local, spec->local, spec->count * sizeof(uint32_t));
    }
    for (size_t i = 0; i < spec->count; i++)
        pull->left[i] = bytes;
    pull->run_count = bt_runs_build(pull->remote, pull->local, spec->count,
                                    pull->order, pull->runs);
    pull->end.descriptors = (uint32_t)pull->run_count;
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
    pull->flow.peek = peek;
    pull->flow.issue = issue;
    memcpy(pull->request, spec->request_id, strlen(spec->request_id) + 1);
    arrays_fill(pull, spec, (uint32_t)sink->config.layout.block_bytes);
    TAILQ_INSERT_TAIL(&peer->pulls, pull, entry);
    sink->pull_count++;
    ev_timer_init(&pull->deadline, on_deadline, 0, 0);
    pull->deadline.data = pull;
    bt_fabric_timer(sink->fabric, &pull->deadline, limit_ns);
}

enum bt_status bt_kv_pull_start(struct bt_kv_sink *sink,
                                const struct bt_kv_pull_spec *spec,
                                bt_kv_pull_fn fn, void *arg,
                                struct bt_kv_pull **out)
{
    enum bt_status status = spec_check(sink, spec);
    struct bt_kv_pull *pull;
    struct peer *peer;

    if (status != BT_OK)
        return status;
    peer = bt_peer_get(sink, spec->host, spec->port, &status);
    if (peer == NULL)
        return status;
    pull = calloc(1, sizeof(*pull));
    if (pull == NULL)
        return BT_NO_MEMORY;
    status = arrays_alloc(pull, spec->count);
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
    if (peer->state == PEER_READY)
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
