/* A prefix to the worker of leg P before it computes: from its own slower
 * tiers through their stations, or from a peer over the network (what the
 * peer has on disk is read there first). Only what is really there is
 * fetched; without room for it, or when it fails, the prompt is computed.
 *
 * While it runs, the blocks are pinned where they come from and room for them
 * is taken; what has arrived is cache like any other.
 *
 * A prefetch is the same without a leg: a job of its own, in no list. A leg to
 * the same worker takes the job over and waits for what is left; a leg
 * elsewhere, the end of the request or of either worker ends it.
 */
#include "sim_priv.h"

#include <stdlib.h>

#define NO_TIER 255u

/* Slowest tier allowed: the whole ladder of a worker is looked through. */
static uint32_t tier_of(const struct sim_worker *w, uint64_t id, uint32_t *at)
{
    for (uint32_t tier = 0; tier < 3; tier++) {
        if (tier > 0 && !w->has_tier[tier])
            continue;
        *at = sim_cache_find(&w->tiers[tier], id);
        if (*at != SIM_NONE)
            return tier;
    }
    return NO_TIER;
}

/* Pins what the source holds of blocks [from, to); how many. */
static uint32_t pin_source(struct sim *s, struct sim_job *j, uint32_t from,
                           uint32_t to)
{
    struct sim_worker *source = &s->workers[j->fetch_from];
    const uint64_t *ids = s->requests[j->request].ids;
    uint32_t n = 0, at;

    while (from + n < to) {
        uint32_t tier = tier_of(source, ids[from + n], &at);

        if (tier == NO_TIER)
            break;
        sim_cache_pin(&source->tiers[tier], at);
        j->fetch_tiers[n++] = (unsigned char)tier;
    }
    return n;
}

static void unpin_source(struct sim *s, struct sim_job *j)
{
    struct sim_worker *source = &s->workers[j->fetch_from];
    const uint64_t *ids = s->requests[j->request].ids + j->pinned;

    for (uint32_t i = j->fetch_blocks; i-- > 0;) {
        struct sim_cache *c = &source->tiers[j->fetch_tiers[i]];
        uint32_t at = sim_cache_find(c, ids[i]);

        if (at != SIM_NONE && c->blocks[at].pins > 0)
            sim_cache_unpin(c, at);
    }
    free(j->fetch_tiers);
    j->fetch_tiers = NULL;
}

static void plan_station(struct sim *s, uint32_t worker, uint32_t tier)
{
    struct sim_station *station = &s->workers[worker].stations[tier - 1];
    int64_t next = sim_station_next(station);

    station->version++;
    if (next != SIM_NEVER)
        sim_after(s, next, SIM_EV_STATION, worker * 2 + tier - 1,
                  station->version);
}

static void put(struct sim *s, uint32_t worker, uint32_t tier, uint32_t job,
                double bytes)
{
    struct sim_station *station = &s->workers[worker].stations[tier - 1];

    if (bytes <= 0)
        return;
    s->jobs[job].fetch_parts++;
    if (!sim_station_put(station, s->now_ns, job, bytes))
        sim_fail(s, BT_NO_MEMORY);
    plan_station(s, worker, tier);
}

static void net_part(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    sim_after(s,
              s->now_ns + sim_flow_setup_ns(s, (uint64_t)j->fetch_blocks *
                                                   s->block_tokens),
              SIM_EV_FLOW_OPEN, job, j->generation);
}

/* Loads and flow of a fetch whose blocks are pinned and whose room is taken */
static void send_off(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    double bytes = (double)s->cluster->kv_bytes_per_token * s->block_tokens;
    bool own = j->fetch_from == j->worker;
    double tiers[3] = {0};

    for (uint32_t i = 0; i < j->fetch_blocks; i++)
        tiers[j->fetch_tiers[i]] += bytes;
    if (own)
        put(s, j->worker, 1, job, tiers[1]);
    put(s, j->fetch_from, 2, job, tiers[2]);
    if (own)
        return;
    j->fetch_net = bytes * j->fetch_blocks;
    if (j->fetch_parts == 0)
        net_part(s, job);
    j->fetch_parts++;
}

static bool prepare(struct sim *s, uint32_t job, uint32_t want)
{
    struct sim_job *j = &s->jobs[job];
    uint32_t held = sim_job_pin(s, j, want);

    if (held >= want)
        return false;
    j->fetch_tiers = malloc(want - held);
    if (j->fetch_tiers == NULL) {
        sim_fail(s, BT_NO_MEMORY);
        return false;
    }
    j->fetch_blocks = pin_source(s, j, held, want);
    if (j->fetch_blocks > 0 &&
        sim_kv_take(s, job, (uint64_t)j->fetch_blocks * s->block_tokens))
        return true;
    unpin_source(s, j);
    j->fetch_blocks = 0;
    return false;
}

void sim_fetch_start(struct sim *s, uint32_t job,
                     const struct bt_place_source *source)
{
    struct sim_job *j = &s->jobs[job];
    struct bt_sim_record *record = sim_record(s, j->request);
    uint32_t want = sim_useful_blocks(s, j);

    if (source->tokens / s->block_tokens < want)
        want = source->tokens / s->block_tokens;
    if (source->worker >= s->worker_count || !s->workers[source->worker].up)
        return;
    j->fetch_from = source->worker;
    if (!prepare(s, job, want)) {
        sim_job_release(s, j);
        return;
    }
    j->state = SIM_JOB_FETCH;
    record->source = source->worker;
    record->fetched_tokens = j->fetch_blocks * s->block_tokens;
    record->fetch_bytes +=
        (uint64_t)record->fetched_tokens * s->cluster->kv_bytes_per_token;
    send_off(s, job);
}

void sim_fetch_open(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    j->flow =
        sim_flow_start(s, j->worker, j->fetch_from, job, j->fetch_net, false);
}

void sim_fetch_part_done(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    if (--j->fetch_parts == 0)
        sim_fetch_end(s, job, true);
    else if (j->fetch_net > 0)
        net_part(s, job);
}

void sim_fetch_end(struct sim *s, uint32_t job, bool arrived)
{
    struct sim_job *j = &s->jobs[job];
    struct bt_sim_record *record = sim_record(s, j->request);

    if (j->flow != SIM_NONE)
        sim_net_stop(&s->net, s->now_ns, j->flow);
    j->flow = SIM_NONE;
    if (!arrived) {
        sim_station_drop(&s->workers[j->worker].stations[0], s->now_ns, job);
        sim_station_drop(&s->workers[j->worker].stations[1], s->now_ns, job);
        sim_station_drop(&s->workers[j->fetch_from].stations[1], s->now_ns,
                         job);
        plan_station(s, j->worker, 1);
        plan_station(s, j->worker, 2);
        plan_station(s, j->fetch_from, 2);
        record->fetched_tokens = 0;
    } else if (j->fetch_from != j->worker) {
        sim_metrics_transfer(s, j->fetch_from, j->worker, j->fetch_net);
    }
    unpin_source(s, j);
    if (arrived)
        sim_job_store(s, j, j->pinned + j->fetch_blocks);
    sim_job_release(s, j);
    j->state = SIM_JOB_WAIT;
    j->fetch_parts = j->fetch_blocks = 0;
    sim_engine_kick(s, j->worker);
    if (j->ahead)
        sim_job_free(s, job);
}

/* ---- ahead of the leg ---- */

void sim_prefetch(struct sim *s, const struct bt_effect *fx)
{
    uint32_t request = (uint32_t)fx->cookie;
    uint32_t worker = bt_worker_slot(fx->worker), job;

    if (!s->workers[worker].up)
        return;
    job = sim_job_take(s, request, worker);
    s->jobs[job].leg = BT_LEG_PREFILL;
    s->jobs[job].ahead = true;
    s->jobs[job].attached = false;
    sim_fetch_start(s, job, &fx->source);
    if (s->jobs[job].state == SIM_JOB_FETCH)
        s->requests[request].ahead = job;
    else
        sim_job_free(s, job);
}

void sim_prefetch_drop(struct sim *s, uint32_t request)
{
    if (s->requests[request].ahead != SIM_NONE)
        sim_fetch_end(s, s->requests[request].ahead, false);
}

/* The leg that comes is the job from here on. */
uint32_t sim_prefetch_take(struct sim *s, uint32_t request, uint32_t worker)
{
    struct sim_request *r = &s->requests[request];
    uint32_t job = r->ahead;

    if (job == SIM_NONE)
        return SIM_NONE;
    if (s->jobs[job].worker != worker) {
        sim_prefetch_drop(s, request);
        return SIM_NONE;
    }
    r->ahead = SIM_NONE;
    s->jobs[job].ahead = false;
    s->jobs[job].attached = true;
    return job;
}

void sim_fetch_station(struct sim *s, uint32_t worker, uint32_t tier,
                       uint64_t version)
{
    struct sim_station *station = &s->workers[worker].stations[tier - 1];
    uint32_t job;

    if (station->version != version)
        return;
    for (job = sim_station_take(station, s->now_ns); job != SIM_NONE;
         job = sim_station_take(station, s->now_ns))
        sim_fetch_part_done(s, job);
    plan_station(s, worker, tier);
}

/* ---- the network's ends ---- */

void sim_net_event(struct sim *s, uint64_t version)
{
    uint32_t flow;

    if (version != s->net_version)
        return;
    s->net_planned_ns = SIM_NEVER;
    s->net.dirty = true;
    for (flow = sim_net_finished(&s->net, s->now_ns); flow != SIM_NONE;
         flow = sim_net_finished(&s->net, s->now_ns)) {
        uint32_t job = (uint32_t)s->net.flows[flow].tag;

        sim_net_stop(&s->net, s->now_ns, flow);
        s->jobs[job].flow = SIM_NONE;
        if (s->jobs[job].state == SIM_JOB_FETCH)
            sim_fetch_part_done(s, job);
        else
            sim_pull_done(s, job);
    }
}

/* At the end of each instant in which the network changed. */
void sim_net_plan(struct sim *s)
{
    int64_t next;

    if (!s->net.dirty)
        return;
    next = sim_net_settle(&s->net, s->now_ns);
    if (next == s->net_planned_ns)
        return;
    s->net_planned_ns = next;
    s->net_version++;
    if (next != SIM_NEVER)
        sim_after(s, next, SIM_EV_NET, 0, s->net_version);
}
