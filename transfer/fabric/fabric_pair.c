/* Two processes with one rail between them: baton/transfer/pair.h.
 *
 *   sink                       source
 *   (connects)                 allow
 *                         <-   KEY {address, bytes, key}
 *   HASH {offsets}        ->   (checksums only)
 *                         <-   HASHES
 *   get, get, ...
 *
 * Decides how a load becomes gets: pieces that touch become one, a get has at
 * most per_get pieces and GET_BYTES unless it is one piece. Both regions are
 * made from one seed, so the sink knows what must land. */
#include "baton/base/rng.h"
#include "baton/transfer/pair.h"
#include "baton/transfer/runs.h"
#include "fabric.h"
#include "transport_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define GET_BYTES  (1u << 20)
#define HUGE_PAGE  (2u << 20)
#define FLIGHT_MAX 1024u
#define HASHES_MAX 4096u
#define OPEN_NS    5000000000LL
#define END_NS     1000000000LL
#define SEED       20261130u

enum frame_type { FRAME_KEY = 1, FRAME_HASH, FRAME_HASHES };

struct key_frame {
    uint32_t type, size;
    uint64_t address, bytes;
    uint8_t key[BT_WIRE_KEY_MAX];
};
struct hash_frame {
    uint32_t type, count, bytes, zero;
    uint64_t words[HASHES_MAX]; /* offsets, or hashes */
};

struct end {
    struct ev_loop *loop;
    struct bt_transport *transport;
    void *mapped;
    unsigned char *region; /* in it, on a large page */
    size_t bytes;
    struct bt_tmem *mem;
    struct bt_tconn *conn;
    bool is_closed;
};

struct source {
    struct end end;
    struct bt_tlisten *listener;
    ev_io control;
    struct hash_frame answer;
};

/* Pieces first..first+count-1 of the plan. */
struct job {
    size_t first;
    uint32_t count;
    uint64_t bytes;
};

struct slot {
    struct bt_tget get;
    struct bt_pair *pair;
    const struct job *job;
    struct slot *next;
};

struct bt_pair {
    struct end end;
    struct bt_tkey *key;
    uint64_t remote;
    uint64_t *due; /* what the source's region holds */
    enum bt_status status;
    char carrier[128];
    ev_timer limit;
    /* Of the load that runs. */
    const struct bt_pair_load *load;
    struct bt_tpiece *pieces;
    struct job *jobs;
    size_t piece_count, job_count, next, hash_count;
    uint32_t round, out;
    uint64_t *hashes;
    struct slot slots[FLIGHT_MAX];
    struct slot *free_slots;
    struct hash_frame ask;
};

/* ---- both ends ---- */

static bool region_make(struct end *end, size_t bytes, bool fill)
{
    struct bt_rng rng;

    end->mapped = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (end->mapped == MAP_FAILED) {
        end->mapped = NULL;
        return false;
    }
    end->bytes = bytes;
    /* Large pages, as the pools of the tiers have them. */
    end->region = (unsigned char *)end->mapped +
                  (HUGE_PAGE - (uintptr_t)end->mapped % HUGE_PAGE) % HUGE_PAGE;
    (void)madvise(end->region, bytes, MADV_HUGEPAGE);
    bt_rng_seed(&rng, SEED);
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
        uint64_t word = fill ? bt_rng_u64(&rng) : 0;

        memcpy(end->region + i, &word, sizeof(word));
    }
    return true;
}

static enum bt_status end_open(struct end *end,
                               const struct bt_rail_config *rail, size_t bytes,
                               bool fill, char *error_out, size_t error_size)
{
    enum bt_status status;

    if (!region_make(end, bytes, fill)) {
        snprintf(error_out, error_size, "no memory for the region");
        return BT_NO_MEMORY;
    }
    end->loop = ev_loop_new(EVFLAG_AUTO);
    if (end->loop == NULL)
        return BT_NO_MEMORY;
    status = bt_transport_ucx_open(end->loop, rail, &end->transport, error_out,
                                   error_size);
    if (status != BT_OK)
        return status;
    status =
        end->transport->ops->map(end->transport, end->region, bytes, &end->mem);
    if (status != BT_OK)
        snprintf(error_out, error_size, "the region cannot be registered: %s",
                 bt_status_text(status));
    return status;
}

static void end_close(struct end *end)
{
    int64_t limit = bt_fabric_now() + END_NS;

    if (end->conn != NULL)
        end->transport->ops->close(end->conn);
    while (end->conn != NULL && !end->is_closed && bt_fabric_now() < limit)
        (void)end->transport->ops->turn(end->transport);
    if (end->mem != NULL)
        end->transport->ops->unmap(end->transport, end->mem);
    if (end->transport != NULL)
        end->transport->ops->destroy(end->transport);
    if (end->loop != NULL)
        ev_loop_destroy(end->loop);
    if (end->mapped != NULL)
        munmap(end->mapped, end->bytes + HUGE_PAGE);
}

/* ---- source ---- */

static void source_frame(void *arg, const void *bytes, size_t size)
{
    struct source *s = arg;
    const struct hash_frame *ask = bytes;
    size_t head = offsetof(struct hash_frame, words);

    if (size < head || ask->type != FRAME_HASH || ask->count > HASHES_MAX ||
        size != head + ask->count * sizeof(ask->words[0]))
        return;
    s->answer = (struct hash_frame){.type = FRAME_HASHES, .count = ask->count};
    for (uint32_t i = 0; i < ask->count; i++) {
        uint64_t at;

        memcpy(&at, &ask->words[i], sizeof(at));
        if (at > s->end.bytes || ask->bytes > s->end.bytes - at)
            return;
        s->answer.words[i] = bt_block_checksum(s->end.region + at, ask->bytes);
    }
    s->end.transport->ops->send(s->end.conn, &s->answer, size);
}

static void source_failed(void *arg, enum bt_status status)
{
    struct source *s = arg;

    (void)status;
    s->end.transport->ops->close(s->end.conn);
}

static void source_closed(void *arg)
{
    struct source *s = arg;

    s->end.conn = NULL;
}

static const struct bt_tconn_events source_events = {
    .frame = source_frame, .failed = source_failed, .closed = source_closed};

/* One sink at a time; a second one is closed (no events are set). */
static void source_accept(void *arg, struct bt_tconn *conn)
{
    struct source *s = arg;
    const struct bt_transport_ops *ops = s->end.transport->ops;
    struct key_frame frame = {.type = FRAME_KEY,
                              .address = (uintptr_t)s->end.region,
                              .bytes = s->end.bytes};
    uint16_t used;

    if (s->end.conn != NULL ||
        ops->key_pack(s->end.transport, s->end.mem, frame.key,
                      sizeof(frame.key), &used) != BT_OK)
        return;
    s->end.conn = conn;
    conn->events = &source_events;
    conn->arg = s;
    frame.size = used;
    ops->allow(conn);
    ops->send(conn, &frame, offsetof(struct key_frame, key) + used);
}

static void on_control(struct ev_loop *loop, ev_io *w, int revents)
{
    char byte;

    (void)revents;
    if (read(w->fd, &byte, 1) <= 0)
        ev_break(loop, EVBREAK_ALL);
}

static enum bt_status source_run(struct source *s,
                                 const struct bt_rail_config *rail, int fd)
{
    struct sockaddr_storage address;
    socklen_t size;
    uint16_t port;
    enum bt_status status =
        bt_fabric_address(rail->address != NULL ? rail->address : "127.0.0.1",
                          0, &address, &size);

    if (status != BT_OK)
        return status;
    status = s->end.transport->ops->listen(
        s->end.transport, (const struct sockaddr *)&address, size,
        source_accept, s, &port, &s->listener);
    if (status != BT_OK)
        return status;
    ev_io_init(&s->control, on_control, fd, EV_READ);
    ev_io_start(s->end.loop, &s->control);
    if (write(fd, &port, sizeof(port)) != sizeof(port))
        status = BT_IO;
    else
        ev_run(s->end.loop, 0);
    ev_io_stop(s->end.loop, &s->control);
    s->end.transport->ops->unlisten(s->listener);
    return status;
}

enum bt_status bt_pair_serve(const struct bt_rail_config *rail,
                             size_t region_bytes, int fd)
{
    struct source *s = calloc(1, sizeof(*s));
    char error[160] = "";
    enum bt_status status;

    if (s == NULL)
        return BT_NO_MEMORY;
    status = end_open(&s->end, rail, region_bytes, true, error, sizeof(error));
    if (status == BT_OK)
        status = source_run(s, rail, fd);
    if (status != BT_OK)
        fprintf(stderr, "pair: %s: %s\n", bt_status_text(status), error);
    end_close(&s->end);
    free(s);
    return status;
}

/* ---- sink ---- */

static void stop(struct bt_pair *pair, enum bt_status status)
{
    if (pair->status == BT_OK)
        pair->status = status;
    ev_break(pair->end.loop, EVBREAK_ALL);
}

static void key_in(struct bt_pair *pair, const struct key_frame *frame,
                   size_t size)
{
    size_t head = offsetof(struct key_frame, key);

    if (size < head || frame->size != size - head ||
        frame->bytes < pair->end.bytes) {
        stop(pair, BT_PEER_ERROR);
        return;
    }
    pair->remote = frame->address;
    stop(pair, pair->end.transport->ops->key_open(pair->end.conn, frame->key,
                                                  frame->size, &pair->key));
}

static void hashes_in(struct bt_pair *pair, const struct hash_frame *frame,
                      size_t size)
{
    size_t head = offsetof(struct hash_frame, words);

    if (pair->load == NULL || size < head ||
        size != head + frame->count * sizeof(frame->words[0]) ||
        frame->count > pair->load->count - pair->hash_count) {
        stop(pair, BT_PEER_ERROR);
        return;
    }
    memcpy(pair->hashes + pair->hash_count, frame->words,
           frame->count * sizeof(frame->words[0]));
    pair->hash_count += frame->count;
    if (pair->hash_count == pair->load->count)
        stop(pair, BT_OK);
}

static void sink_frame(void *arg, const void *bytes, size_t size)
{
    struct bt_pair *pair = arg;
    uint32_t type = 0;

    if (size >= sizeof(type))
        memcpy(&type, bytes, sizeof(type));
    if (type == FRAME_KEY && pair->key == NULL)
        key_in(pair, bytes, size);
    else if (type == FRAME_HASHES)
        hashes_in(pair, bytes, size);
    else
        stop(pair, BT_PEER_ERROR);
}

static void sink_failed(void *arg, enum bt_status status)
{
    struct bt_pair *pair = arg;

    stop(pair, status);
    pair->end.transport->ops->close(pair->end.conn);
}

static void sink_closed(void *arg)
{
    struct bt_pair *pair = arg;

    pair->end.is_closed = true;
    ev_break(pair->end.loop, EVBREAK_ALL);
}

static const struct bt_tconn_events sink_events = {
    .frame = sink_frame, .failed = sink_failed, .closed = sink_closed};

static void on_limit(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    stop(w->data, BT_TIMEOUT);
}

/* The loop until somebody stops it, or so long. */
static enum bt_status run(struct bt_pair *pair, int64_t limit_ns)
{
    ev_now_update(pair->end.loop);
    ev_timer_init(&pair->limit, on_limit, (double)limit_ns / 1e9, 0);
    pair->limit.data = pair;
    ev_timer_start(pair->end.loop, &pair->limit);
    ev_run(pair->end.loop, 0);
    ev_timer_stop(pair->end.loop, &pair->limit);
    return pair->status;
}

static enum bt_status connect_up(struct bt_pair *pair,
                                 const struct bt_rail_config *rail,
                                 uint16_t port)
{
    struct sockaddr_storage address;
    socklen_t size;
    enum bt_status status =
        bt_fabric_address(rail->address != NULL ? rail->address : "127.0.0.1",
                          port, &address, &size);

    if (status != BT_OK)
        return status;
    status = pair->end.transport->ops->connect(
        pair->end.transport, (const struct sockaddr *)&address, size,
        &pair->end.conn);
    if (status != BT_OK)
        return status;
    pair->end.conn->events = &sink_events;
    pair->end.conn->arg = pair;
    return run(pair, OPEN_NS);
}

static bool due_make(struct bt_pair *pair, size_t bytes)
{
    struct bt_rng rng;

    pair->due = malloc(bytes);
    if (pair->due == NULL)
        return false;
    bt_rng_seed(&rng, SEED);
    for (size_t i = 0; i < bytes / sizeof(*pair->due); i++)
        pair->due[i] = bt_rng_u64(&rng);
    return true;
}

enum bt_status bt_pair_open(const struct bt_rail_config *rail, uint16_t port,
                            size_t region_bytes, struct bt_pair **out,
                            char *error_out, size_t error_size)
{
    struct bt_pair *pair = calloc(1, sizeof(*pair));
    enum bt_status status;

    if (pair == NULL)
        return BT_NO_MEMORY;
    if (!due_make(pair, region_bytes)) {
        free(pair);
        return BT_NO_MEMORY;
    }
    for (size_t i = 0; i < FLIGHT_MAX; i++) {
        pair->slots[i].pair = pair;
        pair->slots[i].next = pair->free_slots;
        pair->free_slots = &pair->slots[i];
    }
    status =
        end_open(&pair->end, rail, region_bytes, false, error_out, error_size);
    if (status == BT_OK) {
        status = connect_up(pair, rail, port);
        if (status != BT_OK)
            snprintf(error_out, error_size, "no connection: %s",
                     bt_status_text(status));
    }
    if (status != BT_OK) {
        bt_pair_close(pair);
        return status;
    }
    if (pair->end.transport->ops->describe != NULL)
        pair->end.transport->ops->describe(pair->end.conn, pair->carrier,
                                           sizeof(pair->carrier));
    *out = pair;
    return BT_OK;
}

void bt_pair_close(struct bt_pair *pair)
{
    if (pair->key != NULL)
        pair->end.transport->ops->key_close(pair->key);
    end_close(&pair->end);
    free(pair->due);
    free(pair);
}

uint32_t bt_pair_pieces_max(const struct bt_pair *pair)
{
    return pair->end.transport->ops->limits.pieces_max;
}

const char *bt_pair_carrier(const struct bt_pair *pair)
{
    return pair->carrier;
}

/* ---- a load ---- */

static void issue(struct bt_pair *pair);

static void on_got(struct bt_tget *get, enum bt_status status)
{
    struct slot *slot =
        (struct slot *)((char *)get - offsetof(struct slot, get));
    struct bt_pair *pair = slot->pair;

    slot->next = pair->free_slots;
    pair->free_slots = slot;
    pair->out--;
    if (status != BT_OK)
        stop(pair, status);
    issue(pair);
    if (pair->out == 0)
        ev_break(pair->end.loop, EVBREAK_ALL);
}

static void issue(struct bt_pair *pair)
{
    while (pair->status == BT_OK && pair->out < pair->load->in_flight) {
        const struct job *job;
        struct slot *slot = pair->free_slots;
        struct bt_tspan span;

        if (pair->next == pair->job_count) {
            if (pair->round + 1 >= pair->load->rounds)
                return;
            pair->round++;
            pair->next = 0;
        }
        job = &pair->jobs[pair->next++];
        pair->free_slots = slot->next;
        pair->out++;
        slot->get.done = on_got;
        span = (struct bt_tspan){
            .pieces = &pair->pieces[job->first],
            .count = job->count,
            .bytes = job->bytes,
            .local_mem = pair->end.mem,
            .remote_key = pair->key,
        };
        pair->end.transport->ops->get(pair->end.conn, &span, &slot->get);
    }
}

static void plan_jobs(struct bt_pair *pair, uint32_t per_get)
{
    struct job *job = NULL;

    for (size_t i = 0; i < pair->piece_count; i++) {
        if (job == NULL || job->count == per_get ||
            job->bytes + pair->pieces[i].bytes > GET_BYTES) {
            job = &pair->jobs[pair->job_count++];
            *job = (struct job){.first = i};
        }
        job->count++;
        job->bytes += pair->pieces[i].bytes;
    }
}

static enum bt_status plan(struct bt_pair *pair,
                           const struct bt_pair_load *load)
{
    for (size_t i = 0; i < load->count; i++) {
        const struct bt_pair_piece *p = &load->pieces[i];
        unsigned char *local = pair->end.region + p->local;
        uint64_t remote = pair->remote + p->remote;
        struct bt_tpiece *last =
            pair->piece_count > 0 ? &pair->pieces[pair->piece_count - 1] : NULL;

        if (p->bytes == 0 || p->local > pair->end.bytes ||
            p->bytes > pair->end.bytes - p->local ||
            p->remote > pair->end.bytes ||
            p->bytes > pair->end.bytes - p->remote)
            return BT_INVALID;
        if (load->per_get > 1 && last != NULL &&
            (unsigned char *)last->local + last->bytes == local &&
            last->remote + last->bytes == remote &&
            last->bytes + p->bytes <= GET_BYTES)
            last->bytes += p->bytes;
        else
            pair->pieces[pair->piece_count++] = (struct bt_tpiece){
                .local = local, .remote = remote, .bytes = p->bytes};
    }
    plan_jobs(pair, load->per_get);
    return BT_OK;
}

static enum bt_status fetch_hashes(struct bt_pair *pair,
                                   const struct bt_pair_load *load,
                                   int64_t limit_ns)
{
    for (size_t at = 0; at < load->count;) {
        size_t rest = load->count - at;
        uint32_t count =
            rest < HASHES_MAX ? (uint32_t)rest : (uint32_t)HASHES_MAX;

        pair->ask.type = FRAME_HASH;
        pair->ask.count = count;
        pair->ask.bytes = load->pieces[0].bytes;
        for (uint32_t i = 0; i < count; i++)
            pair->ask.words[i] = load->pieces[at + i].remote;
        pair->end.transport->ops->send(pair->end.conn, &pair->ask,
                                       offsetof(struct hash_frame, words) +
                                           count * sizeof(uint64_t));
        at += count;
    }
    return run(pair, limit_ns);
}

static enum bt_status check_hashes(const struct bt_pair *pair,
                                   const struct bt_pair_load *load)
{
    for (size_t i = 0; i < load->count; i++) {
        const struct bt_pair_piece *p = &load->pieces[i];

        if (bt_block_checksum(pair->end.region + p->local, p->bytes) !=
            pair->hashes[i])
            return BT_CHECKSUM;
    }
    return BT_OK;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static enum bt_status measure(struct bt_pair *pair,
                              const struct bt_pair_load *load,
                              struct bt_pair_result *out)
{
    double cpu_s = cpu_seconds();
    int64_t start_ns = bt_fabric_now();
    enum bt_status status = BT_OK;

    if (load->checksums)
        status = fetch_hashes(pair, load, load->limit_ns);
    if (status == BT_OK) {
        issue(pair);
        status = run(pair, load->limit_ns);
    }
    if (status == BT_OK && load->checksums)
        status = check_hashes(pair, load);
    if (status != BT_OK)
        return status;
    *out = (struct bt_pair_result){
        .duration_ns = bt_fabric_now() - start_ns,
        .gets = (uint64_t)pair->job_count * load->rounds,
        .cpu_s = cpu_seconds() - cpu_s,
    };
    for (size_t i = 0; i < load->count; i++)
        out->bytes += (uint64_t)load->pieces[i].bytes * load->rounds;
    return BT_OK;
}

enum bt_status bt_pair_get(struct bt_pair *pair,
                           const struct bt_pair_load *load,
                           struct bt_pair_result *out)
{
    enum bt_status status = BT_NO_MEMORY;

    if (load->count == 0 || load->per_get == 0 || load->in_flight == 0 ||
        load->rounds == 0 || load->in_flight > FLIGHT_MAX ||
        load->per_get > bt_pair_pieces_max(pair))
        return BT_INVALID;
    if (pair->status != BT_OK)
        return pair->status;
    pair->load = load;
    pair->pieces = calloc(load->count, sizeof(*pair->pieces));
    pair->jobs = calloc(load->count, sizeof(*pair->jobs));
    pair->hashes = calloc(load->count, sizeof(*pair->hashes));
    pair->piece_count = pair->job_count = pair->next = pair->hash_count = 0;
    pair->round = 0;
    if (pair->pieces != NULL && pair->jobs != NULL && pair->hashes != NULL)
        status = plan(pair, load);
    if (status == BT_OK)
        status = measure(pair, load, out);
    while (pair->out > 0 && !pair->end.is_closed) {
        pair->end.transport->ops->close(pair->end.conn);
        (void)pair->end.transport->ops->turn(pair->end.transport);
    }
    free(pair->pieces);
    free(pair->jobs);
    free(pair->hashes);
    pair->load = NULL;
    return status;
}

bool bt_pair_verify(const struct bt_pair *pair,
                    const struct bt_pair_piece *pieces, size_t count)
{
    bool same = true;

    for (size_t i = 0; same && i < count; i++)
        same = memcmp((const unsigned char *)pair->due + pieces[i].remote,
                      pair->end.region + pieces[i].local, pieces[i].bytes) == 0;
    return same;
}
