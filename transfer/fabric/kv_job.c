/* What sinks ask a source for: the parts of a list come in, the owner checks
 * it (at once or later), blocks are hashed when asked for, GRANT goes out, and
 * the job stays until its sink says DONE or is gone, so that the owner knows
 * how many read.
 *
 *   listing --all parts--> check --OK--> hashing --> granted --DONE--> gone
 *                            `--AGAIN--> asked --answer OK--^
 *
 * OPEN again for a job that is there (its connection was lost, or the frame
 * doubled) starts over at GRANT and does not check again. Invariants: a job is
 * in its guest's list until it is gone, in the work list only while hashing; a
 * loop turn hashes at most SLICE_BYTES; `left` once per OK. */
#include "kv_source.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_BYTES (16u << 20)
#define PLAIN_COST  64u /* of a block that is not hashed, in slice bytes */

static struct bt_kv_source *source_of(const struct job *job)
{
    return job->guest->source;
}

static void unwork(struct job *job)
{
    if (job->working)
        TAILQ_REMOVE(&source_of(job)->jobs, job, work_entry);
    job->working = false;
}

static void job_free(struct job *job)
{
    struct bt_kv_source *source = source_of(job);
    const struct bt_kv_source_config *c = &source->config;

    unwork(job);
    TAILQ_REMOVE(&job->guest->jobs, job, entry);
    job->guest->job_count--;
    source->refs -= job->total;
    job->guest->refs -= job->total;
    if (job->is_held && c->left != NULL)
        c->left(c->arg, job->request);
    free(job->refs);
    free(job);
}

static void send_no(struct caller *caller, uint64_t pull, enum bt_status status,
                    const char *text)
{
    struct bt_wire_frame f = {
        .type = BT_WIRE_NO, .pull = pull, .status = (uint32_t)status};

    if (caller == NULL)
        return;
    snprintf(f.text, sizeof(f.text), "%s", text);
    bt_link_send(&caller->link, &f);
}

static void job_refuse(struct job *job, enum bt_status status)
{
    send_no(job->caller, job->pull, status, bt_status_text(status));
    job_free(job);
}

/* ---- hashing ---- */

static void work_soon(struct bt_kv_source *source)
{
    if (ev_is_active(&source->work))
        return;
    ev_timer_set(&source->work, 0, 0);
    ev_timer_start(source->fabric->loop, &source->work);
}

static void hash_part(struct bt_kv_source *source, const struct job *job,
                      uint32_t count)
{
    const unsigned char *region = source->config.region;
    uint64_t bytes = source->config.layout.block_bytes;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = job->blocks[job->hashed + i] * bytes;

        source->hashes[i] =
            job->checksums ? bt_block_checksum(region + at, bytes) : 0;
    }
}

/* Hash and grant what fits into `budget` bytes, at least one block; returns
 * the bytes it cost. */
static uint64_t grant_slice(struct bt_kv_source *source, struct job *job,
                            uint64_t budget)
{
    uint64_t cost =
        job->checksums ? source->config.layout.block_bytes : PLAIN_COST;
    uint64_t fit = budget / cost;
    uint32_t count = job->total - job->hashed;
    struct bt_wire_frame f = {.type = BT_WIRE_GRANT, .pull = job->pull};

    if (fit == 0)
        fit = 1;
    if (count > fit)
        count = (uint32_t)fit;
    if (count > BT_WIRE_GRANT_PART)
        count = BT_WIRE_GRANT_PART;
    hash_part(source, job, count);
    f.total = job->total;
    f.offset = job->hashed;
    f.count = count;
    f.blocks = job->blocks + job->hashed;
    f.hashes = source->hashes;
    job->hashed += count;
    bt_link_send(&job->caller->link, &f);
    return count * cost;
}

static void on_work(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_kv_source *source = w->data;
    uint64_t spent = 0;
    struct job *job;

    (void)loop;
    (void)revents;
    while (spent < SLICE_BYTES && (job = TAILQ_FIRST(&source->jobs)) != NULL) {
        spent += grant_slice(source, job, SLICE_BYTES - spent);
        if (job->hashed < job->total)
            continue;
        unwork(job);
        job->state = JOB_GRANTED;
    }
    if (!TAILQ_EMPTY(&source->jobs))
        work_soon(source);
}

void bt_source_work_init(struct bt_kv_source *source)
{
    TAILQ_INIT(&source->jobs);
    ev_timer_init(&source->work, on_work, 0, 0);
    source->work.data = source;
}

/* From the first block on; nothing to do while nobody listens. */
static void job_work(struct job *job)
{
    struct bt_kv_source *source = source_of(job);

    job->state = JOB_HASHING;
    job->hashed = 0;
    if (job->caller == NULL || job->working)
        return;
    job->working = true;
    TAILQ_INSERT_TAIL(&source->jobs, job, work_entry);
    work_soon(source);
}

/* ---- asking the owner ---- */

/* The owner said yes. */
static enum bt_status job_accept(struct job *job)
{
    struct bt_kv_source *source = source_of(job);

    job->is_held = true;
    for (uint32_t i = 0; i < job->total; i++) {
        if (job->blocks[i] >= source->config.block_count) {
            job_refuse(job, BT_NOT_FOUND);
            return BT_INVALID;
        }
    }
    job_work(job);
    return BT_OK;
}

static bool identity(const struct bt_kv_source *source, struct job *job)
{
    for (uint32_t i = 0; i < job->total; i++) {
        if (source->config.keyed) {
            job->blocks[i] = UINT32_MAX;
            continue;
        }
        if (job->refs[i] >= source->config.block_count)
            return false;
        job->blocks[i] = (uint32_t)job->refs[i];
    }
    return true;
}

static void job_check(struct job *job)
{
    struct bt_kv_source *source = source_of(job);
    const struct bt_kv_source_config *c = &source->config;
    struct bt_kv_ask ask = {
        .request_id = job->request,
        .refs = job->refs,
        .count = job->total,
        .blocks_out = job->blocks,
        .ticket = ++source->next_ticket,
        .sink = job->guest->name,
    };
    enum bt_status status = BT_NOT_FOUND;

    if (identity(source, job))
        status = c->check != NULL ? c->check(c->arg, &ask) : BT_OK;
    job->ticket = ask.ticket;
    if (status == BT_AGAIN)
        job->state = JOB_ASKED;
    else if (status == BT_OK)
        (void)job_accept(job);
    else
        job_refuse(job, status);
}

static struct job *job_by_ticket(struct bt_kv_source *source, uint64_t ticket)
{
    struct guest *guest;
    struct job *job;

    LIST_FOREACH(guest, &source->guests, entry)
    {
        TAILQ_FOREACH(job, &guest->jobs, entry)
        {
            if (job->ticket == ticket && job->state == JOB_ASKED)
                return job;
        }
    }
    return NULL;
}

enum bt_status bt_kv_source_answer(struct bt_kv_source *source, uint64_t ticket,
                                   enum bt_status status,
                                   const uint32_t *blocks, size_t count)
{
    struct job *job = job_by_ticket(source, ticket);

    if (job == NULL)
        return BT_STALE;
    if (status != BT_OK) {
        job_refuse(job, status);
        return BT_OK;
    }
    if (blocks != NULL && count != job->total) {
        job_refuse(job, BT_NOT_FOUND);
        return BT_INVALID;
    }
    if (blocks != NULL)
        memcpy(job->blocks, blocks, count * sizeof(job->blocks[0]));
    return job_accept(job);
}

/* ---- OPEN ---- */

static struct job *job_find(struct guest *guest, uint64_t pull)
{
    struct job *job;

    TAILQ_FOREACH(job, &guest->jobs, entry)
    {
        if (job->pull == pull)
            return job;
    }
    return NULL;
}

static struct job *job_new(struct guest *guest, const struct bt_wire_frame *f)
{
    struct bt_kv_source *source = guest->source;
    struct job *job;

    if (guest->job_count == BT_GUEST_JOBS_MAX ||
        guest->refs + f->total > BT_GUEST_REFS_MAX ||
        source->refs + f->total > BT_SOURCE_REFS_MAX)
        return NULL;
    job = calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    job->refs = calloc(f->total, sizeof(uint64_t) + sizeof(uint32_t));
    if (job->refs == NULL) {
        free(job);
        return NULL;
    }
    job->blocks = (uint32_t *)(void *)(job->refs + f->total);
    job->guest = guest;
    job->pull = f->pull;
    job->total = f->total;
    job->checksums = f->flags & BT_WIRE_CHECKSUMS;
    memcpy(job->request, f->request, sizeof(job->request));
    TAILQ_INSERT_TAIL(&guest->jobs, job, entry);
    guest->job_count++;
    source->refs += job->total;
    guest->refs += job->total;
    return job;
}

static bool in_order(const struct job *job, const struct bt_wire_frame *f)
{
    if (f->count == 0)
        return false;
    if (job == NULL)
        return f->offset == 0;
    return job->total == f->total && strcmp(job->request, f->request) == 0 &&
           (f->offset == 0 || f->offset == job->received);
}

static void job_listed(struct job *job)
{
    switch (job->state) {
    case JOB_LISTING:
        job_check(job);
        break;
    case JOB_ASKED:
        break;
    case JOB_HASHING:
    case JOB_GRANTED:
        job_work(job);
        break;
    }
}

/* One part of a list; parts come in order and are never empty. */
void bt_job_open(struct caller *caller, const struct bt_wire_frame *f)
{
    struct job *job = job_find(caller->guest, f->pull);

    if (!in_order(job, f)) {
        send_no(caller, f->pull, BT_REFUSED, "block list out of order");
        if (job != NULL)
            job_free(job);
        return;
    }
    if (job == NULL)
        job = job_new(caller->guest, f);
    if (job == NULL) {
        send_no(caller, f->pull, BT_REFUSED, "too many pulls at the source");
        return;
    }
    job->caller = caller;
    if (f->offset == 0)
        job->received = 0;
    for (uint32_t i = 0; i < f->count && job->state == JOB_LISTING; i++)
        job->refs[f->offset + i] = bt_wire_ref(f, i);
    job->received += f->count;
    if (job->received == job->total)
        job_listed(job);
}

/* ---- the end ---- */

void bt_job_done(struct caller *caller, const struct bt_wire_frame *f)
{
    const struct bt_kv_source_config *c = &caller->source->config;
    struct job *job = job_find(caller->guest, f->pull);

    if (job != NULL && f->pull != 0)
        job_free(job);
    if ((f->flags & BT_WIRE_RELEASE) && c->released != NULL)
        c->released(c->arg, f->request);
}

void bt_job_orphans(struct caller *caller)
{
    struct job *job;

    TAILQ_FOREACH(job, &caller->guest->jobs, entry)
    {
        if (job->caller != caller)
            continue;
        unwork(job);
        job->caller = NULL;
    }
}

void bt_guest_free(struct guest *guest)
{
    struct job *job, *next;

    assert(LIST_EMPTY(&guest->callers));
    for (job = TAILQ_FIRST(&guest->jobs); job != NULL; job = next) {
        next = TAILQ_NEXT(job, entry);
        job_free(job);
    }
    LIST_REMOVE(guest, entry);
    guest->source->guest_count--;
    free(guest);
}
