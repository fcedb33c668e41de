/* The source's end: greets sinks whose layout agrees, checks what they ask for,
 * hashes those blocks and lets the sink read them. Leases are the caller's:
 * this file only passes on DONE and BEAT. A sink that leaves changes nothing
 * here but the connection.
 *
 *   sink:  accepted --HELLO--> greeted --(silent, reset, malformed)--> closing
 *   job:   OPEN parts --all--> check --ok--> hashing, GRANT parts --> gone
 *
 * Invariants: a job is in its connection's list until it is gone, and in the
 * work list only while hashing; a loop turn hashes at most SLICE_BYTES. */
#include "baton/transfer/runs.h"
#include "fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SINKS_MAX   512u
#define JOBS_MAX    1024u /* per sink */
#define SLICE_BYTES (16u << 20)
#define STOP_NS     1000000000LL

struct job {
    TAILQ_ENTRY(job) entry; /* of its sink */
    TAILQ_ENTRY(job) work_entry;
    struct peer_sink *sink;
    bool working;
    uint64_t pull;
    uint32_t total, received, hashed;
    char request[BT_KV_REQUEST_MAX + 1];
    uint32_t blocks[];
};

struct peer_sink {
    LIST_ENTRY(peer_sink) entry;
    struct bt_kv_source *source;
    struct bt_tconn *conn;
    bool greeted, heard, closing;
    unsigned int missed, job_count;
    char name[BT_KV_NAME_MAX];
    TAILQ_HEAD(, job) jobs;
};

struct bt_kv_source {
    LIST_ENTRY(bt_kv_source) entry;
    struct bt_fabric *fabric;
    struct bt_kv_source_config config;
    char name[BT_KV_NAME_MAX];
    struct bt_tmem *mem;
    struct bt_tlisten *listener;
    uint16_t port, key_size;
    uint8_t key[BT_WIRE_KEY_MAX];
    ev_timer work;
    TAILQ_HEAD(, job) jobs; /* hashing, in order of arrival */
    LIST_HEAD(, peer_sink) sinks;
    size_t sink_count;
    uint64_t hashes[BT_WIRE_GRANT_PART];
};

/* ---- jobs ---- */

static void job_free(struct job *job)
{
    if (job->working)
        TAILQ_REMOVE(&job->sink->source->jobs, job, work_entry);
    TAILQ_REMOVE(&job->sink->jobs, job, entry);
    job->sink->job_count--;
    free(job);
}

static void sink_close(struct peer_sink *sink)
{
    struct job *job, *next;

    if (sink->closing)
        return;
    sink->closing = true;
    for (job = TAILQ_FIRST(&sink->jobs); job != NULL; job = next) {
        next = TAILQ_NEXT(job, entry);
        job_free(job);
    }
    sink->source->fabric->transport->ops->close(sink->conn);
}

static void send_frame(struct peer_sink *sink, const struct bt_wire_frame *f)
{
    bt_fabric_send(sink->source->fabric, sink->conn, f);
}

static void send_no(struct peer_sink *sink, uint64_t pull,
                    enum bt_status status, const char *text)
{
    struct bt_wire_frame f = {
        .type = BT_WIRE_NO, .pull = pull, .status = (uint32_t)status};

    snprintf(f.text, sizeof(f.text), "%s", text);
    send_frame(sink, &f);
}

/* Hash and grant what fits into `budget` bytes, at least one block; returns
 * the bytes hashed. */
static uint64_t hash_slice(struct bt_kv_source *source, struct job *job,
                           uint64_t budget)
{
    uint64_t block_bytes = source->config.layout.block_bytes;
    uint64_t fit = budget / block_bytes;
    uint32_t count = job->total - job->hashed;
    struct bt_wire_frame f = {.type = BT_WIRE_GRANT, .pull = job->pull};

    if (fit == 0)
        fit = 1;
    if (count > fit)
        count = (uint32_t)fit;
    if (count > BT_WIRE_GRANT_PART)
        count = BT_WIRE_GRANT_PART;
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *region = source->config.region;
        uint64_t at = job->blocks[job->hashed + i] * block_bytes;

        source->hashes[i] = bt_block_checksum(region + at, block_bytes);
    }
    f.total = job->total;
    f.offset = job->hashed;
    f.count = count;
    f.hashes = source->hashes;
    job->hashed += count;
    send_frame(job->sink, &f);
    return count * block_bytes;
}

static void work_soon(struct bt_kv_source *source)
{
    ev_timer_set(&source->work, 0, 0);
    ev_timer_start(source->fabric->loop, &source->work);
}

static void on_work(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_source *source = w->data;
    uint64_t hashed = 0;
    struct job *job, *next;

    (void)loop;
    (void)revents;
    for (job = TAILQ_FIRST(&source->jobs); job != NULL && hashed < SLICE_BYTES;
         job = next) {
        hashed += hash_slice(source, job, SLICE_BYTES - hashed);
        next = job;
        if (job->hashed < job->total)
            continue;
        next = TAILQ_NEXT(job, work_entry);
        job_free(job);
    }
    if (!TAILQ_EMPTY(&source->jobs))
        work_soon(source);
}

static void job_check(struct job *job)
{
    struct bt_kv_source *source = job->sink->source;
    enum bt_status status = BT_OK;

    for (uint32_t i = 0; i < job->total && status == BT_OK; i++) {
        if (job->blocks[i] >= source->config.block_count)
            status = BT_NOT_FOUND;
    }
    if (status == BT_OK && source->config.check != NULL)
        status = source->config.check(source->config.arg, job->request,
                                      job->blocks, job->total);
    if (status != BT_OK) {
        send_no(job->sink, job->pull, status, bt_status_text(status));
        job_free(job);
        return;
    }
    job->working = true;
    TAILQ_INSERT_TAIL(&source->jobs, job, work_entry);
    if (!ev_is_active(&source->work))
        work_soon(source);
}

static struct job *job_find(struct peer_sink *sink, uint64_t pull)
{
    struct job *job;

    TAILQ_FOREACH(job, &sink->jobs, entry)
    {
        if (job->pull == pull)
            return job;
    }
    return NULL;
}

static struct job *job_new(struct peer_sink *sink,
                           const struct bt_wire_frame *f)
{
    struct job *job;

    if (sink->job_count == JOBS_MAX)
        return NULL;
    job = calloc(1, sizeof(*job) + f->total * sizeof(job->blocks[0]));
    if (job == NULL)
        return NULL;
    job->sink = sink;
    job->pull = f->pull;
    job->total = f->total;
    memcpy(job->request, f->request, sizeof(job->request));
    TAILQ_INSERT_TAIL(&sink->jobs, job, entry);
    sink->job_count++;
    return job;
}

/* One part of a block list; parts come in order and are never empty. */
static void on_open(struct peer_sink *sink, const struct bt_wire_frame *f)
{
    struct job *job = job_find(sink, f->pull);

    if (f->count == 0 || (f->offset == 0) != (job == NULL) ||
        (job != NULL && (job->working || job->total != f->total ||
                         job->received != f->offset))) {
        send_no(sink, f->pull, BT_REFUSED, "block list out of order");
        if (job != NULL)
            job_free(job);
        return;
    }
    if (job == NULL)
        job = job_new(sink, f);
    if (job == NULL) {
        send_no(sink, f->pull, BT_REFUSED, "too many pulls at the source");
        return;
    }
    for (uint32_t i = 0; i < f->count; i++)
        job->blocks[f->offset + i] = bt_wire_block(f, i);
    job->received += f->count;
    if (job->received == job->total)
        job_check(job);
}

/* ---- frames ---- */

static void refuse(struct peer_sink *sink, const char *reason)
{
    const struct bt_kv_source_config *c = &sink->source->config;

    send_no(sink, 0, BT_INCOMPATIBLE, reason);
    if (c->refused != NULL)
        c->refused(c->arg, sink->name, reason);
}

static void on_hello(struct peer_sink *sink, const struct bt_wire_frame *f)
{
    struct bt_kv_source *source = sink->source;
    struct bt_wire_frame w = {.type = BT_WIRE_WELCOME,
                              .layout = source->config.layout};
    char text[BT_WIRE_TEXT_MAX];

    memcpy(sink->name, f->name, sizeof(sink->name));
    if (bt_wire_layout_match(&source->config.layout, &f->layout, text,
                             sizeof(text)) != BT_OK) {
        refuse(sink, text);
        return;
    }
    sink->greeted = true;
    sink->source->fabric->transport->ops->allow(sink->conn);
    memcpy(w.name, source->name, sizeof(w.name));
    w.region = (uintptr_t)source->config.region;
    w.block_count = source->config.block_count;
    w.key_size = source->key_size;
    memcpy(w.key, source->key, source->key_size);
    send_frame(sink, &w);
}

static void on_ping(struct peer_sink *sink, const struct bt_wire_frame *f)
{
    struct bt_wire_frame pong = {.type = BT_WIRE_PONG, .token = f->token};

    send_frame(sink, &pong);
}

static void dispatch(struct peer_sink *sink, const struct bt_wire_frame *f)
{
    const struct bt_kv_source_config *c = &sink->source->config;

    if (!sink->greeted && f->type != BT_WIRE_HELLO) {
        sink_close(sink);
        return;
    }
    switch (f->type) {
    case BT_WIRE_HELLO:
        on_hello(sink, f);
        break;
    case BT_WIRE_OPEN:
        on_open(sink, f);
        break;
    case BT_WIRE_DONE:
        if (c->released != NULL)
            c->released(c->arg, f->request);
        break;
    case BT_WIRE_BEAT:
        if (c->renewed != NULL)
            c->renewed(c->arg, f->request);
        break;
    case BT_WIRE_PING:
        on_ping(sink, f);
        break;
    case BT_WIRE_PONG:
        break;
    case BT_WIRE_WELCOME:
    case BT_WIRE_GRANT:
    case BT_WIRE_NO:
        sink_close(sink);
        break;
    }
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct peer_sink *sink = arg;
    struct bt_wire_frame f;
    enum bt_status status = bt_wire_decode(bytes, size, &f);

    sink->heard = true;
    if (status == BT_INCOMPATIBLE)
        refuse(sink, "protocol version differs");
    else if (status != BT_OK)
        sink_close(sink);
    else
        dispatch(sink, &f);
}

static void on_failed(void *arg, enum bt_status status)
{
    (void)status;
    sink_close(arg);
}

static void on_closed(void *arg)
{
    struct peer_sink *sink = arg;

    sink->source->sink_count--;
    LIST_REMOVE(sink, entry);
    free(sink);
}

/* No events set: the transport closes the connection. */
static void on_accept(void *arg, struct bt_tconn *conn)
{
    static const struct bt_tconn_events events = {on_frame, on_failed,
                                                  on_closed};
    struct bt_kv_source *source = arg;
    struct peer_sink *sink;

    if (source->sink_count == SINKS_MAX)
        return;
    sink = calloc(1, sizeof(*sink));
    if (sink == NULL)
        return;
    sink->source = source;
    sink->conn = conn;
    TAILQ_INIT(&sink->jobs);
    LIST_INSERT_HEAD(&source->sinks, sink, entry);
    source->sink_count++;
    conn->events = &events;
    conn->arg = sink;
}

/* ---- life ---- */

static void source_heartbeat(struct bt_kv_source *source)
{
    struct peer_sink *sink, *next;

    for (sink = LIST_FIRST(&source->sinks); sink != NULL; sink = next) {
        next = LIST_NEXT(sink, entry);
        sink->missed = sink->heard ? 0 : sink->missed + 1;
        sink->heard = false;
        if (sink->missed > BT_FABRIC_SILENT_SINK)
            sink_close(sink);
    }
}

void bt_kv_source_heartbeat(struct bt_fabric *fabric)
{
    struct bt_kv_source *source;

    LIST_FOREACH(source, &fabric->sources, entry)
    source_heartbeat(source);
}

static bool config_ok(const struct bt_kv_source_config *c)
{
    return c->name != NULL && strlen(c->name) < BT_KV_NAME_MAX &&
           c->address != NULL && c->region != NULL && c->block_count > 0 &&
           c->layout.block_bytes > 0 && c->layout.block_bytes <= UINT32_MAX;
}

static enum bt_status source_open(struct bt_kv_source *source,
                                  const char **step_out)
{
    struct bt_fabric *fabric = source->fabric;
    const struct bt_transport_ops *ops = fabric->transport->ops;
    const struct bt_kv_source_config *c = &source->config;
    struct sockaddr_storage address;
    socklen_t size;
    enum bt_status status;

    *step_out = "address is not numeric";
    status = bt_fabric_address(c->address, c->port, &address, &size);
    if (status != BT_OK)
        return status;
    *step_out = "register region";
    status =
        ops->map(fabric->transport, c->region,
                 c->block_count * (size_t)c->layout.block_bytes, &source->mem);
    if (status != BT_OK)
        return status;
    *step_out = "pack key";
    status = ops->key_pack(fabric->transport, source->mem, source->key,
                           sizeof(source->key), &source->key_size);
    if (status != BT_OK)
        goto undo_map;
    *step_out = "listen";
    status = ops->listen(fabric->transport, (struct sockaddr *)&address, size,
                         on_accept, source, &source->port, &source->listener);
    if (status != BT_OK)
        goto undo_map;
    return BT_OK;

undo_map:
    ops->unmap(fabric->transport, source->mem);
    return status;
}

enum bt_status bt_kv_source_start(struct bt_fabric *fabric,
                                  const struct bt_kv_source_config *config,
                                  struct bt_kv_source **out, char *error_out,
                                  size_t error_size)
{
    struct bt_kv_source *source;
    const char *step = "configuration";
    enum bt_status status = BT_INVALID;

    source = config_ok(config) ? calloc(1, sizeof(*source)) : NULL;
    if (source == NULL)
        goto failed;
    source->fabric = fabric;
    source->config = *config;
    memcpy(source->name, config->name, strlen(config->name) + 1);
    TAILQ_INIT(&source->jobs);
    LIST_INIT(&source->sinks);
    ev_timer_init(&source->work, on_work, 0, 0);
    source->work.data = source;
    status = source_open(source, &step);
    if (status != BT_OK)
        goto undo_alloc;
    LIST_INSERT_HEAD(&fabric->sources, source, entry);
    *out = source;
    return BT_OK;

undo_alloc:
    free(source);
failed:
    snprintf(error_out, error_size, "kv source %s port %u: %s: %s",
             config->address != NULL ? config->address : "?",
             (unsigned int)config->port, step, bt_status_text(status));
    return status;
}

uint16_t bt_kv_source_port(const struct bt_kv_source *source)
{
    return source->port;
}

static bool no_sinks(void *arg)
{
    return LIST_EMPTY(&((struct bt_kv_source *)arg)->sinks);
}

void bt_kv_source_stop(struct bt_kv_source *source)
{
    struct bt_transport *transport;
    struct peer_sink *sink, *next;

    if (source == NULL)
        return;
    transport = source->fabric->transport;
    transport->ops->unlisten(source->listener);
    LIST_FOREACH(sink, &source->sinks, entry)
    sink_close(sink);
    bt_fabric_settle(source->fabric, no_sinks, source, STOP_NS);
    for (sink = LIST_FIRST(&source->sinks); sink != NULL; sink = next) {
        next = LIST_NEXT(sink, entry);
        sink->conn->events = NULL; /* the transport frees it, later */
        on_closed(sink);
    }
    ev_timer_stop(source->fabric->loop, &source->work);
    transport->ops->unmap(transport, source->mem);
    LIST_REMOVE(source, entry);
    free(source);
}

void bt_kv_sources_stop(struct bt_fabric *fabric)
{
    struct bt_kv_source *source, *next;

    for (source = LIST_FIRST(&fabric->sources); source != NULL; source = next) {
        next = LIST_NEXT(source, entry);
        bt_kv_source_stop(source);
    }
}
