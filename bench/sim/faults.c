/* What goes wrong, and traffic of others. A fault changes the world only; the
 * core learns of it as in production: legs that fail, health checks after a
 * second, transfers that stand still and are given up after five.
 */
#include "sim_priv.h"

#define HEALTH_NS   BT_NS_PER_S
#define CUT_FAIL_NS (5 * BT_NS_PER_S)

/* ---- links ---- */

static double background_of(const struct sim *s, uint32_t link)
{
    const struct bt_topology_link *l = bt_topology_link_at(s->truth, link);
    bool shared = l->kind == BT_LINK_RACK_UP || l->kind == BT_LINK_RACK_DOWN;

    return shared ? s->fabric->background : 0;
}

void sim_background_flip(struct sim *s, uint32_t link, uint64_t on)
{
    const struct bt_topology_link *l = bt_topology_link_at(s->truth, link);
    double share = on != 0 ? background_of(s, link) : 0;

    sim_net_capacity_set(&s->net, s->now_ns, link,
                         (double)l->rate_bytes_per_s * (1 - share));
    if (s->fabric->background_period_ns > 0)
        sim_after(s, s->now_ns + s->fabric->background_period_ns / 2,
                  SIM_EV_BACKGROUND, link, on == 0);
}

/* On-off traffic is on for half of the period; each link has its own phase. */
void sim_background_init(struct sim *s)
{
    int64_t period = s->fabric->background_period_ns;

    if (s->fabric->background <= 0)
        return;
    for (uint32_t i = 0; i < s->net.link_count; i++) {
        int64_t phase = 0;

        if (background_of(s, i) <= 0)
            continue;
        if (period > 0)
            phase = (int64_t)bt_rng_below(&s->rng_world, (uint64_t)period);
        if (period > 0)
            sim_after(s, phase / 2, SIM_EV_BACKGROUND, i, 1);
        else
            sim_background_flip(s, i, 1);
    }
}

static void nic_set(struct sim *s, uint32_t link, double factor)
{
    const struct bt_topology_link *l;

    if (link == BT_LINK_NONE)
        return;
    l = bt_topology_link_at(s->truth, link);
    sim_net_capacity_set(&s->net, s->now_ns, link,
                         (double)l->rate_bytes_per_s * factor);
}

void sim_link_capacity(struct sim *s, uint32_t worker)
{
    const struct sim_worker *w = &s->workers[worker];
    double factor = w->cut ? 0 : w->nic_factor;

    if (s->fabric->degraded_factor > 0 && worker == s->fabric->degraded_worker)
        factor *= s->fabric->degraded_factor;
    nic_set(s, bt_topology_nic_out(s->truth, worker), factor);
    nic_set(s, bt_topology_nic_in(s->truth, worker), factor);
}

/* ---- a worker dies ---- */

static void lose_prefill(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    uint32_t request = j->request;
    bool holds = j->state == SIM_JOB_HOLD;

    sim_leg_release(s, request);
    if (!holds)
        sim_leg_failed(s, request, BT_LEG_PREFILL, BT_FAIL_RESET);
}

static void lose_decode(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    uint32_t request = j->request;
    bool attached = j->attached;

    if (j->flow != SIM_NONE)
        sim_net_stop(&s->net, s->now_ns, j->flow);
    j->flow = SIM_NONE;
    sim_job_end(s, job);
    if (!attached)
        return;
    sim_leg_failed(s, request, BT_LEG_DECODE, BT_FAIL_RESET);
    sim_leg_release(s, request);
}

static void lose_jobs(struct sim *s, uint32_t worker)
{
    for (uint32_t i = 0; i < s->job_count; i++) {
        struct sim_job *j = &s->jobs[i];

        if (j->state == SIM_JOB_FETCH && j->fetch_from == worker &&
            j->worker != worker)
            sim_fetch_end(s, i, false);
        if (j->state == SIM_JOB_FREE || j->worker != worker)
            continue;
        if (j->ahead)
            sim_fetch_end(s, i, false);
        else if (j->leg == BT_LEG_PREFILL)
            lose_prefill(s, i);
        else
            lose_decode(s, i);
    }
}

static void empty_caches(struct sim *s, struct sim_worker *w)
{
    for (uint32_t tier = 0; tier < 3; tier++) {
        uint32_t capacity = w->tiers[tier].capacity;

        if (!w->has_tier[tier])
            continue;
        sim_cache_fini(&w->tiers[tier]);
        if (!sim_cache_init(&w->tiers[tier], capacity))
            sim_fail(s, BT_NO_MEMORY);
    }
}

static void kill_worker(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];

    if (!w->up)
        return;
    w->up = false;
    sim_engine_stop(s, worker);
    lose_jobs(s, worker);
    empty_caches(s, w);
    sim_kv_forget(s, worker);
    sim_after(s, s->now_ns + HEALTH_NS, SIM_EV_HEALTH, worker, w->incarnation);
}

void sim_fault_health(struct sim *s, uint32_t worker, uint64_t incarnation)
{
    struct bt_event event = {.type = BT_EV_WORKER_STATE};

    if (s->workers[worker].incarnation != incarnation)
        return;
    event.u.worker_state.worker = worker;
    event.u.worker_state.state = BT_WORKER_UNHEALTHY;
    sim_tell(s, &event);
}

static void revive(struct sim *s, uint32_t worker)
{
    if (s->workers[worker].up)
        return;
    s->workers[worker].up = true;
    s->workers[worker].incarnation++;
    sim_worker_ready(s, worker);
}

/* ---- hang and cut ---- */

static void hang(struct sim *s, uint32_t worker)
{
    if (s->workers[worker].hung++ == 0)
        s->workers[worker].hung_ns = s->now_ns;
}

static void unhang(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];
    int64_t lost = s->now_ns - w->hung_ns;

    if (--w->hung > 0)
        return;
    if (w->step.on) {
        w->step.from_ns += lost;
        w->step.end_ns += lost;
        w->step.version++;
        sim_after(s, w->step.end_ns, SIM_EV_STEP, worker, w->step.version);
    }
    sim_engine_kick(s, worker);
}

static bool flow_touches(const struct sim *s, const struct sim_job *j,
                         uint32_t worker)
{
    if (j->flow == SIM_NONE)
        return false;
    if (j->state == SIM_JOB_FETCH)
        return j->worker == worker || j->fetch_from == worker;
    return j->worker == worker ||
           (j->source != SIM_NONE && s->jobs[j->source].worker == worker);
}

void sim_fault_cut_fail(struct sim *s, uint32_t worker)
{
    if (!s->workers[worker].cut)
        return;
    for (uint32_t i = 0; i < s->job_count; i++) {
        struct sim_job *j = &s->jobs[i];
        uint32_t request = j->request;

        if (j->state == SIM_JOB_FREE || !flow_touches(s, j, worker))
            continue;
        if (j->state == SIM_JOB_FETCH) {
            sim_fetch_end(s, i, false);
        } else {
            bool told = j->attached;

            sim_pull_failed(s, i);
            if (told) /* else leg P goes on and its KV is pulled later */
                sim_leg_release(s, request);
        }
    }
    sim_after(s, s->now_ns + CUT_FAIL_NS, SIM_EV_CUT_FAIL, worker, 0);
}

/* ---- begin and end ---- */

void sim_fault_begin(struct sim *s, uint32_t fault)
{
    const struct bt_sim_fault *f = &s->config->faults[fault];
    struct sim_worker *w = &s->workers[f->worker];

    switch (f->kind) {
    case BT_SIM_KILL:
        kill_worker(s, f->worker);
        break;
    case BT_SIM_SLOW:
        w->slow = f->factor;
        break;
    case BT_SIM_NIC:
        w->nic_factor = f->factor;
        sim_link_capacity(s, f->worker);
        break;
    case BT_SIM_CUT:
        w->cut = true;
        sim_link_capacity(s, f->worker);
        sim_after(s, s->now_ns + CUT_FAIL_NS, SIM_EV_CUT_FAIL, f->worker, 0);
        break;
    case BT_SIM_HANG:
        hang(s, f->worker);
        break;
    case BT_SIM_FAULT_COUNT:
        break;
    }
}

void sim_fault_end(struct sim *s, uint32_t fault)
{
    const struct bt_sim_fault *f = &s->config->faults[fault];
    struct sim_worker *w = &s->workers[f->worker];

    switch (f->kind) {
    case BT_SIM_KILL:
        revive(s, f->worker);
        break;
    case BT_SIM_SLOW:
        w->slow = 1;
        break;
    case BT_SIM_NIC:
        w->nic_factor = 1;
        sim_link_capacity(s, f->worker);
        break;
    case BT_SIM_CUT:
        w->cut = false;
        sim_link_capacity(s, f->worker);
        break;
    case BT_SIM_HANG:
        unhang(s, f->worker);
        break;
    case BT_SIM_FAULT_COUNT:
        break;
    }
}
