/* KV from the worker of leg P to that of leg D: how many bytes, when they may
 * start, how they follow the compute where the engine pushes.
 *
 *   pull    d has room and p is done: all bytes at once
 *   push    d took room ahead; with overlap the cached part goes when the
 *           compute starts and the rest piece by piece, else all at its end
 *
 * Leg P's blocks stay until the last byte has arrived.
 */
#include "sim_priv.h"

/* More pieces than this change nothing that can be seen. */
#define PIECES_MAX 32u

int64_t sim_flow_setup_ns(const struct sim *s, uint64_t tokens)
{
    uint64_t per = s->cluster->descriptor_tokens;
    uint64_t regions = s->cluster->mode.descriptors_per_block;

    if (per == 0)
        per = s->block_tokens;
    return s->fabric->setup_ns +
           (int64_t)((tokens + per - 1) / per * (regions == 0 ? 1 : regions)) *
               s->fabric->per_descriptor_ns;
}

uint32_t sim_flow_start(struct sim *s, uint32_t to, uint32_t from, uint32_t job,
                        double bytes, bool more)
{
    struct sim_flow flow = {.left = bytes, .more = more};
    struct bt_path path;
    uint32_t at;

    bt_topology_path(s->truth, from, to, &path);
    flow.tag = (uint64_t)s->jobs[job].generation << 32 | job;
    flow.count = path.count;
    for (uint32_t i = 0; i < path.count; i++)
        flow.links[i] = path.links[i];
    at = sim_net_start(&s->net, s->now_ns, &flow);
    if (at == SIM_NONE)
        sim_fail(s, BT_NO_MEMORY);
    return at;
}

/* Bytes of what d lacks, and of them those that p has before it computes. */
static void size_up(struct sim *s, struct sim_job *d)
{
    const struct sim_job *p = &s->jobs[d->source];
    const struct bt_engine_mode *mode = &s->cluster->mode;
    uint32_t bt = s->block_tokens, held = d->pinned;
    uint32_t blocks = (sim_prompt(s, d) + bt - 1) / bt;
    uint32_t ready = p->prefix / bt;
    double rho = mode->replication == 0 ? 1 : mode->replication;
    double block_bytes = (double)s->cluster->kv_bytes_per_token * bt * rho;

    if (mode->whole_prompt)
        held = 0;
    d->flow_tokens = (blocks - held) * bt;
    d->flow_bytes = block_bytes * (blocks - held);
    d->flow_held = ready > held ? block_bytes * (ready - held) : 0;
}

static bool overlaps(const struct sim *s)
{
    return s->cluster->mode.overlap != BT_OVERLAP_NONE;
}

static double given(const struct sim *s, const struct sim_job *d)
{
    const struct sim_job *p = &s->jobs[d->source];

    if (p->state == SIM_JOB_HOLD)
        return d->flow_bytes;
    return d->flow_held + (d->flow_bytes - d->flow_held) * p->share;
}

/* d's room is taken, or p has come further: starts when both allow. */
void sim_pull_start(struct sim *s, uint32_t job)
{
    struct sim_job *d = &s->jobs[job], *p = &s->jobs[d->source];
    struct bt_sim_record *record = sim_record(s, d->request);

    if (!d->attached && p->state == SIM_JOB_WAIT)
        sim_engine_kick(s, p->worker); /* may have waited for d's room */
    if (d->state != SIM_JOB_PULL || d->flow != SIM_NONE || d->flow_due ||
        d->flow_done)
        return;
    if (p->state != SIM_JOB_HOLD &&
        !(overlaps(s) && p->state == SIM_JOB_PREFILL))
        return;
    size_up(s, d);
    record->transfer_start_ns = s->now_ns;
    record->transfer_bytes = (uint64_t)d->flow_bytes;
    if (d->flow_bytes <= 0) {
        if (p->state == SIM_JOB_HOLD)
            sim_pull_done(s, job);
        return;
    }
    d->flow_due = true;
    sim_after(s, s->now_ns + sim_flow_setup_ns(s, d->flow_tokens),
              SIM_EV_FLOW_OPEN, job, d->generation);
}

void sim_pull_open(struct sim *s, uint32_t job)
{
    struct sim_job *d = &s->jobs[job];

    d->flow_due = false;
    d->flow_given = given(s, d);
    d->flow = sim_flow_start(s, d->worker, s->jobs[d->source].worker, job,
                             d->flow_given, d->flow_given < d->flow_bytes);
}

void sim_pull_done(struct sim *s, uint32_t job)
{
    struct sim_job *d = &s->jobs[job];
    struct bt_sim_record *record = sim_record(s, d->request);
    uint32_t source = d->source;

    record->transfer_end_ns = s->now_ns;
    sim_metrics_transfer(s, s->jobs[source].worker, d->worker, d->flow_bytes);
    sim_job_store(s, d, s->requests[d->request].blocks);
    d->flow_done = true;
    d->source = SIM_NONE;
    s->jobs[source].target = SIM_NONE;
    sim_job_end(s, source);
    if (!d->attached)
        return;
    d->state = SIM_JOB_JOIN;
    sim_list_put(s, &s->workers[d->worker].join, job);
    sim_engine_kick(s, d->worker);
}

/* The KV will not come. d says that it could not load it. */
void sim_pull_failed(struct sim *s, uint32_t job)
{
    struct sim_job *d = &s->jobs[job];
    uint32_t request = d->request;
    bool attached = d->attached;

    if (d->source != SIM_NONE) /* leg P may have waited for d's room */
        sim_engine_kick(s, s->jobs[d->source].worker);

    if (d->flow != SIM_NONE)
        sim_net_stop(&s->net, s->now_ns, d->flow);
    d->flow = SIM_NONE;
    sim_job_end(s, job);
    if (attached)
        sim_leg_failed(s, request, BT_LEG_DECODE, BT_FAIL_BODY);
}

/* ---- pushes ---- */

bool sim_push_may_start(const struct sim *s, const struct sim_job *p)
{
    if (!s->cluster->mode.allocate_first || p->leg != BT_LEG_PREFILL ||
        p->target == SIM_NONE)
        return true;
    return s->jobs[p->target].state == SIM_JOB_PULL;
}

/* share of the compute of leg P is done. */
void sim_push_computed(struct sim *s, uint32_t leg_p, double share)
{
    struct sim_job *p = &s->jobs[leg_p], *d;
    double more;

    p->share = share;
    if (p->target == SIM_NONE || !overlaps(s))
        return;
    d = &s->jobs[p->target];
    sim_pull_start(s, p->target);
    if (d->flow == SIM_NONE)
        return;
    more = share >= 1 ? d->flow_bytes - d->flow_given
                      : given(s, d) - d->flow_given;
    if (more <= 0)
        return;
    d->flow_given += more;
    sim_net_add(&s->net, s->now_ns, d->flow, more,
                d->flow_given < d->flow_bytes);
}

static uint32_t pieces(const struct sim *s)
{
    uint32_t n = s->cluster->mode.pieces;

    return n == 0 ? 1 : n > PIECES_MAX ? PIECES_MAX : n;
}

/* A whole prompt begins: its pieces are due at equal times. */
void sim_push_plan(struct sim *s, uint32_t leg_p)
{
    struct sim_job *p = &s->jobs[leg_p];
    const struct sim_step *step = &s->workers[p->worker].step;
    int64_t whole = step->end_ns - step->from_ns;
    uint32_t n = pieces(s);

    if (p->target == SIM_NONE || !overlaps(s))
        return;
    sim_pull_start(s, p->target);
    for (uint32_t k = 1; k < n; k++)
        sim_after(s, step->from_ns + whole / n * k, SIM_EV_PIECE, leg_p,
                  p->generation);
}

void sim_push_piece(struct sim *s, uint32_t leg_p)
{
    struct sim_job *p = &s->jobs[leg_p];

    if (p->state != SIM_JOB_PREFILL)
        return;
    p->pieces++;
    sim_push_computed(s, leg_p, (double)p->pieces / pieces(s));
}
