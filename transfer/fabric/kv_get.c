/* From jobs to gets and back: each ready rail is a lane of core/jobs.c; what a
 * lane may ask for now becomes a get of the transport, and what has landed is
 * verified here. Which job, which piece and what is sent again is core/jobs.c's
 * to say, how much may be out core/window.c's. Which rail: the one with the
 * least to do for its rate; to a peer with a pace rule all are flows of one
 * link, and pace.c says when.
 *
 * Invariants: a get that the transport has ended is reported to its job, once;
 * a rail's lane is closed before any get of a broken connection is reported, so
 * that this is no retry of the operation; peer->todo is the sum over its pulls
 * of the bytes not yet asked for. */
#include "kv_sink.h"

#include "baton/transfer/runs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RETRIES_MAX 4u

static struct rail *rail_of(struct bt_flow *flow)
{
    return (struct rail *)(void *)((char *)flow - offsetof(struct rail, flow));
}

static uint64_t block_bytes(const struct bt_kv_sink *sink)
{
    return sink->config.layout.block_bytes;
}

/* ---- bytes to ask for ---- */

static void todo_add(struct bt_kv_pull *pull, uint64_t bytes)
{
    if (pull->state != PULL_FETCH)
        return;
    pull->todo += bytes;
    pull->peer->todo += bytes;
}

static void todo_take(struct bt_kv_pull *pull, uint64_t bytes)
{
    assert(pull->todo >= bytes && pull->peer->todo >= bytes);
    pull->todo -= bytes;
    pull->peer->todo -= bytes;
}

/* ---- ends of jobs ---- */

static void reap(struct bt_kv_sink *sink)
{
    struct bt_job_end end;

    while (bt_jobs_reap(sink->jobs, &end)) {
        struct bt_kv_pull *pull = end.owner;

        todo_take(pull, pull->todo);
        pull->has_job = false;
        bt_pull_job_ended(pull, &end);
    }
}

/* Nothing is left to ask for: a paced link that waits for nobody is idle. */
static void unqueue(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++)
        bt_lane_remove(peer->rule, &peer->rails[i].flow);
}

void bt_gets_stop(struct bt_kv_pull *pull, enum bt_status status)
{
    struct bt_kv_sink *sink = pull->peer->sink;

    todo_take(pull, pull->todo);
    if (pull->peer->todo == 0)
        unqueue(pull->peer);
    (void)bt_jobs_stop(sink->jobs, pull->job, status, bt_fabric_now());
    reap(sink);
}

/* ---- landing ---- */

static void verify(struct bt_kv_pull *pull, uint32_t position)
{
    struct bt_kv_sink *sink = pull->peer->sink;
    const unsigned char *region = sink->config.region;
    uint64_t bytes = block_bytes(sink);
    const unsigned char *block = region + pull->local[position] * bytes;

    if (sink->config.no_checksums || pull->state != PULL_FETCH ||
        bt_block_checksum(block, bytes) == pull->hashes[position])
        return;
    sink->fabric->stats.blocks_damaged++;
    todo_add(pull, bytes);
    (void)bt_jobs_damaged(sink->jobs, pull->job, position);
}

static void report(struct bt_kv_sink *sink, const struct chunk *chunk,
                   enum bt_status status)
{
    uint32_t count = 0;
    enum bt_status told =
        bt_jobs_op_ended(sink->jobs, chunk->op, status, bt_fabric_now(),
                         sink->landed, sink->landed_max, &count);

    assert(told == BT_OK);
    (void)told;
    for (uint32_t i = 0; i < count; i++)
        verify(chunk->pull, sink->landed[i]);
    reap(sink);
}

static void pump_all(struct bt_kv_sink *sink)
{
    struct peer *peer;

    sink->starved = false;
    LIST_FOREACH(peer, &sink->peers, entry)
    bt_gets_pump(peer);
}

/* The lane may have closed meanwhile. */
static void resize(struct rail *rail)
{
    (void)bt_jobs_lane_window(rail->peer->sink->jobs, rail->lane_id,
                              rail->window.bytes, rail->window.op_bytes);
}

static void on_got(struct bt_tget *get, enum bt_status status)
{
    struct chunk *chunk = (struct chunk *)get;
    struct rail *rail = chunk->rail;
    struct bt_kv_pull *pull = chunk->pull;
    struct peer *peer = rail->peer;
    struct bt_kv_sink *sink = peer->sink;

    rail->bytes_out -= chunk->bytes;
    if (bt_window_ended(&rail->window, &chunk->timed, bt_fabric_now(),
                        status == BT_OK))
        resize(rail);
    sink->ops_out--;
    pull->out[rail->index]--;
    if (status == BT_OK) {
        rail->heard = true;
        pull->end.rail_bytes[rail->index] += chunk->bytes;
    } else {
        sink->fabric->stats.gets_failed++;
        todo_add(pull, chunk->bytes);
        if (status != BT_PEER_ERROR) /* that one is the get's alone */
            bt_rail_fail(rail, BT_PEER_DEAD, bt_status_text(status), false);
    }
    report(sink, chunk, status);
    if (sink->starved)
        pump_all(sink);
    else
        bt_gets_pump(peer);
}

/* ---- gets: called by the lane ---- */

static uint32_t peek(struct bt_flow *flow, int64_t now_ns)
{
    struct rail *rail = rail_of(flow);
    struct bt_kv_sink *sink = rail->peer->sink;
    uint64_t bytes = bt_jobs_peek(sink->jobs, rail->lane_id, now_ns);

    if (bytes == 0 && sink->ops_out == sink->ops_max)
        sink->starved = true;
    return (uint32_t)bytes;
}

static struct chunk *chunk_at(struct bt_kv_sink *sink, uint32_t op)
{
    struct chunk *chunk = sink->chunks[op];

    if (chunk != NULL)
        return chunk;
    chunk =
        calloc(1, sizeof(*chunk) + sink->pieces_max * sizeof(chunk->pieces[0]));
    sink->chunks[op] = chunk;
    return chunk;
}

static void post(struct rail *rail, struct chunk *chunk,
                 const struct bt_job_op *op)
{
    struct bt_kv_sink *sink = rail->peer->sink;
    unsigned char *region = sink->config.region;
    struct bt_tspan span = {
        .pieces = chunk->pieces,
        .count = op->piece_count,
        .bytes = op->bytes,
        .local_mem = sink->mems[rail->index],
        .remote_key = rail->key,
    };

    for (uint32_t i = 0; i < op->piece_count; i++) {
        chunk->pieces[i] = (struct bt_tpiece){
            .local = region + op->pieces[i].local,
            .remote = rail->peer->region + op->pieces[i].remote,
            .bytes = op->pieces[i].bytes,
        };
    }
    chunk->get.done = on_got;
    chunk->pull = op->owner;
    chunk->rail = rail;
    chunk->op = op->op;
    chunk->bytes = op->bytes;
    chunk->pull->out[rail->index]++;
    rail->bytes_out += op->bytes;
    bt_window_issued(&rail->window, bt_fabric_now(), op->bytes, &chunk->timed);
    sink->ops_out++;
    rail->link.transport->ops->get(rail->link.conn, &span, &chunk->get);
}

static bool issue(struct bt_flow *flow, int64_t now_ns)
{
    struct rail *rail = rail_of(flow);
    struct bt_kv_sink *sink = rail->peer->sink;
    struct bt_job_op op;
    struct chunk *chunk;

    if (!bt_jobs_next(sink->jobs, rail->lane_id, now_ns, &op))
        return false;
    assert(op.op < sink->ops_max && op.piece_count <= sink->pieces_max);
    chunk = chunk_at(sink, op.op);
    if (chunk == NULL) { /* a failed try like others; its pull may end */
        (void)bt_jobs_op_ended(sink->jobs, op.op, BT_NO_MEMORY, now_ns, NULL, 0,
                               NULL);
        reap(sink);
        return rail->peer->todo > 0;
    }
    todo_take(op.owner, op.bytes);
    post(rail, chunk, &op);
    return rail->peer->todo > 0;
}

/* Rates count only when every rail has one. */
static uint64_t rate_of(const struct bt_fabric *fabric, uint32_t rail)
{
    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        if (fabric->rails[i].rate_bytes_per_s == 0)
            return 1;
    }
    return fabric->rails[rail].rate_bytes_per_s;
}

/* Of the rails that could carry something now, the one that would be through
 * with what it has first. */
static struct rail *next_rail(struct peer *peer, int64_t now_ns)
{
    struct bt_fabric *fabric = peer->sink->fabric;
    struct rail *best = NULL;
    double best_s = 0;

    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        struct rail *rail = &peer->rails[i];
        uint32_t bytes =
            rail->state == RAIL_READY ? peek(&rail->flow, now_ns) : 0;
        double load_s =
            (double)(rail->bytes_out + bytes) / (double)rate_of(fabric, i);

        if (bytes == 0 || (best != NULL && load_s >= best_s))
            continue;
        best = rail;
        best_s = load_s;
    }
    return best;
}

static void wake_windows(struct peer *peer, int64_t now_ns)
{
    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++) {
        struct rail *rail = &peer->rails[i];

        if (rail->state == RAIL_READY && bt_window_wake(&rail->window, now_ns))
            resize(rail);
    }
}

static void pump_free(struct peer *peer)
{
    int64_t now_ns = bt_fabric_now();
    struct rail *rail;

    wake_windows(peer, now_ns);
    while (peer->todo > 0 && (rail = next_rail(peer, now_ns)) != NULL)
        (void)issue(&rail->flow, now_ns);
}

/* All rails of it share the rule's link. */
static void pump_paced(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++) {
        struct rail *rail = &peer->rails[i];

        if (peer->todo == 0 || rail->state != RAIL_READY || rail->flow.queued)
            continue;
        rail->flow.gate_ns = bt_fabric_now();
        bt_lane_add(peer->rule, &rail->flow);
    }
    if (peer->todo == 0)
        unqueue(peer);
    bt_lane_pump(peer->rule);
}

void bt_gets_pump(struct peer *peer)
{
    if (peer->rule != NULL)
        pump_paced(peer);
    else
        pump_free(peer);
}

/* ---- jobs ---- */

static void use_rails(struct bt_kv_pull *pull)
{
    struct peer *peer = pull->peer;

    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++) {
        struct rail *rail = &peer->rails[i];

        if (rail->state == RAIL_READY)
            (void)bt_jobs_use(peer->sink->jobs, pull->job, rail->lane_id);
    }
}

/* An idle link has had these bytes since the gate opened. */
static void queue_since(struct peer *peer, int64_t gate_ns)
{
    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++) {
        struct rail *rail = &peer->rails[i];

        if (rail->state != RAIL_READY || rail->flow.queued)
            continue;
        rail->flow.gate_ns = gate_ns;
        bt_lane_add(peer->rule, &rail->flow);
    }
}

void bt_gets_start(struct bt_kv_pull *pull)
{
    struct peer *peer = pull->peer;
    struct bt_kv_sink *sink = peer->sink;
    int64_t now_ns = bt_fabric_now();
    struct bt_job_spec spec = {
        .remote = pull->remote,
        .local = pull->local,
        .count = pull->count,
        .block_bytes = (uint32_t)block_bytes(sink),
        .deadline_ns = pull->deadline_ns,
        .owner = pull,
    };
    enum bt_status status = bt_jobs_add(sink->jobs, now_ns, &spec, &pull->job);

    if (status != BT_OK) {
        bt_pull_finish(pull, status, "the sink's jobs");
        return;
    }
    pull->has_job = true;
    use_rails(pull);
    status = bt_jobs_start(sink->jobs, pull->job, now_ns);
    assert(status == BT_OK);
    (void)status;
    todo_add(pull, pull->count * block_bytes(sink));
    if (peer->rule != NULL)
        queue_since(peer, pull->gate_ns);
    bt_gets_pump(peer);
}

/* ---- rails ---- */

/* Else a rail that comes later would get next to nothing at first. */
static void follow_others(struct rail *rail)
{
    const struct peer *peer = rail->peer;

    for (uint32_t i = 0; i < peer->sink->fabric->rail_count; i++) {
        const struct rail *other = &peer->rails[i];

        if (other != rail && other->state == RAIL_READY)
            bt_window_follow(&rail->window, &other->window);
    }
}

/* The link of a rule has a clock: there the window is what may land late. */
static void window_start(struct rail *rail)
{
    const struct bt_fabric *fabric = rail->peer->sink->fabric;
    const struct bt_tlimits *limits = &rail->link.transport->ops->limits;
    const struct bt_lane *rule = rail->peer->rule;
    struct bt_window_limits most = {
        .ops_max = fabric->inflight_max,
        .op_max = rule != NULL ? rule->chunk_max : fabric->chunk_bytes,
        .target_ns = rule != NULL ? -1 : fabric->window_target_ns,
    };

    if (limits->bytes_max < most.op_max)
        most.op_max = (uint32_t)limits->bytes_max;
    bt_window_init(&rail->window, &most);
    follow_others(rail);
}

void bt_gets_rail_ready(struct rail *rail)
{
    struct peer *peer = rail->peer;
    struct bt_kv_sink *sink = peer->sink;
    struct bt_fabric *fabric = sink->fabric;
    const struct bt_tlimits *limits = &rail->link.transport->ops->limits;
    struct bt_lane_spec spec;
    struct bt_kv_pull *pull;
    enum bt_status status;

    rail->flow.peek = peek;
    rail->flow.issue = issue;
    window_start(rail);
    spec = (struct bt_lane_spec){
        .window_bytes = rail->window.bytes,
        .window_ops = fabric->inflight_max,
        .op_bytes = rail->window.op_bytes,
        .op_pieces = sink->pieces_max,
        .rate_bytes_per_s = fabric->rails[rail->index].rate_bytes_per_s,
    };
    if (limits->pieces_max < spec.op_pieces)
        spec.op_pieces = limits->pieces_max;
    status = bt_jobs_lane_open(sink->jobs, &spec, &rail->lane_id);
    assert(status == BT_OK); /* a rail has one, and there are enough */
    (void)status;
    TAILQ_FOREACH(pull, &peer->pulls, entry)
    {
        if (pull->has_job && pull->state == PULL_FETCH)
            (void)bt_jobs_use(sink->jobs, pull->job, rail->lane_id);
    }
}

void bt_gets_rail_lost(struct rail *rail)
{
    bt_lane_remove(rail->peer->rule, &rail->flow);
    bt_jobs_lane_close(rail->peer->sink->jobs, rail->lane_id);
}

/* ---- life ---- */

static uint32_t pieces_of(const struct bt_fabric *fabric)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        uint32_t n = fabric->rails[i].transport->ops->limits.pieces_max;

        if (n > most)
            most = n;
    }
    return most < BT_JOB_PIECES_MAX ? most : BT_JOB_PIECES_MAX;
}

static uint32_t ops_of(const struct bt_fabric *fabric)
{
    uint64_t some = (uint64_t)fabric->inflight_max * fabric->rail_count * 8;

    if (some < BT_SINK_OPS_MIN)
        some = BT_SINK_OPS_MIN;
    return some < UINT16_MAX ? (uint32_t)some : UINT16_MAX;
}

static enum bt_status jobs_make(struct bt_kv_sink *sink)
{
    struct bt_jobs_config config = {
        .jobs_max = BT_SINK_PULLS_MAX,
        .blocks_max = BT_WIRE_LIST_MAX,
        .blocks_total_max = sink->config.block_count, /* one pull per block */
        .lanes_max = BT_SINK_PEERS_MAX * sink->fabric->rail_count,
        .ops_max = sink->ops_max,
        .retries_max = RETRIES_MAX,
    };
    size_t bytes = bt_jobs_bytes(&config);
    struct bt_arena arena;

    sink->jobs_memory = calloc(1, bytes);
    if (sink->jobs_memory == NULL)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, sink->jobs_memory, bytes);
    return bt_jobs_init(&arena, &config, &sink->jobs);
}

enum bt_status bt_gets_init(struct bt_kv_sink *sink)
{
    uint64_t landed = sink->fabric->chunk_bytes / block_bytes(sink);
    enum bt_status status = BT_NO_MEMORY;

    if (landed > BT_WIRE_LIST_MAX)
        landed = BT_WIRE_LIST_MAX;
    sink->landed_max = (uint32_t)landed + BT_JOB_PIECES_MAX + 2;
    sink->pieces_max = pieces_of(sink->fabric);
    sink->ops_max = ops_of(sink->fabric);
    sink->landed = calloc(sink->landed_max, sizeof(sink->landed[0]));
    sink->chunks = calloc(sink->ops_max, sizeof(struct chunk *));
    if (sink->landed != NULL && sink->chunks != NULL)
        status = jobs_make(sink);
    if (status != BT_OK)
        bt_gets_fini(sink);
    return status;
}

void bt_gets_fini(struct bt_kv_sink *sink)
{
    for (uint32_t i = 0; sink->chunks != NULL && i < sink->ops_max; i++)
        free(sink->chunks[i]);
    free((void *)sink->chunks);
    free(sink->landed);
    free(sink->jobs_memory);
    sink->chunks = NULL;
    sink->landed = NULL;
    sink->jobs_memory = NULL;
}
