/* What the core sends, and what it is told: effects become jobs on workers,
 * ends of jobs become events. A leg to a worker that is down is refused; a
 * hung one takes it and says nothing.
 *
 * A leg P that is done holds its blocks until leg D has pulled them, until the
 * core gives the hand-off up, or until the request ends: a lease that nobody
 * would use longer.
 */
#include "sim_priv.h"

void sim_leg_failed(struct sim *s, uint32_t request, enum bt_leg leg,
                    enum bt_leg_failure how)
{
    struct sim_request *r = &s->requests[request];
    struct bt_event event = {.type = BT_EV_LEG_FAILED};

    sim_prefetch_drop(s, request); /* the leg would have joined or ended it */
    event.u.leg_failed.request = r->id;
    event.u.leg_failed.attempt =
        leg == BT_LEG_PREFILL ? r->prefill_attempt : r->decode_attempt;
    event.u.leg_failed.leg = leg;
    event.u.leg_failed.how = how;
    event.u.leg_failed.status = how == BT_FAIL_HTTP ? 400 : 0;
    event.u.leg_failed.bytes_sent =
        leg == BT_LEG_DECODE && sim_record(s, request)->first_token_ns != 0;
    sim_tell(s, &event);
}

/* Room for the pushed KV of leg P's request on the d that was booked. */
static void push_ahead(struct sim *s, uint32_t leg_p, uint32_t worker)
{
    const struct bt_engine_mode *mode = &s->cluster->mode;
    struct sim_job *p = &s->jobs[leg_p];
    struct sim_request *r = &s->requests[p->request];
    struct sim_job *d;

    if ((mode->overlap == BT_OVERLAP_NONE && !mode->allocate_first) ||
        worker >= s->worker_count || !s->workers[worker].up ||
        worker == p->worker)
        return;
    r->leg_d = sim_job_take(s, p->request, worker);
    d = &s->jobs[r->leg_d];
    d->leg = BT_LEG_DECODE;
    d->pull = true;
    d->attached = false;
    d->source = leg_p;
    s->jobs[leg_p].target = r->leg_d;
    sim_list_put(s, &s->workers[worker].pull_wait, r->leg_d);
    sim_engine_kick(s, worker);
}

static bool fits(const struct sim *s, uint32_t request, uint32_t worker,
                 bool output)
{
    const struct bt_trace_request *t = s->requests[request].trace;
    uint64_t need = t->input_tokens;

    if (output)
        need += t->output_tokens;
    return need <= s->workers[worker].kv_tokens;
}

/* An engine with tiers of its own looks into them, whoever sent the request;
 * what is named is fetched instead. */
static void look_for_prefix(struct sim *s, uint32_t job,
                            const struct bt_place_source *named)
{
    uint32_t worker = s->jobs[job].worker;
    const struct sim_worker *w = &s->workers[worker];
    struct bt_place_source own = {
        .tokens = UINT32_MAX, .worker = worker, .tier = BT_TIER_DISK};

    if (named->tokens > 0)
        sim_fetch_start(s, job, named);
    else if (w->has_tier[BT_TIER_HOST] || w->has_tier[BT_TIER_DISK])
        sim_fetch_start(s, job, &own);
}

void sim_leg_prefill(struct sim *s, const struct bt_effect *fx)
{
    uint32_t request = (uint32_t)fx->cookie, job;
    uint32_t worker = bt_worker_slot(fx->worker);
    struct sim_request *r = &s->requests[request];
    bool joins;

    r->prefill_attempt = fx->attempt;
    if (r->leg_p != SIM_NONE)
        sim_job_end(s, r->leg_p);
    if (!s->workers[worker].up || !fits(s, request, worker, false)) {
        sim_leg_failed(s, request, BT_LEG_PREFILL,
                       s->workers[worker].up ? BT_FAIL_HTTP : BT_FAIL_REFUSED);
        return;
    }
    job = sim_prefetch_take(s, request, worker);
    joins = job != SIM_NONE;
    if (!joins)
        job = sim_job_take(s, request, worker);
    r->leg_p = job;
    s->jobs[job].leg = BT_LEG_PREFILL;
    s->jobs[job].attempt = fx->attempt;
    sim_list_put(s, &s->workers[worker].prefill_wait, job);
    if (!joins)
        look_for_prefix(s, job, &fx->source);
    push_ahead(s, job, bt_worker_slot(fx->peer));
    sim_engine_kick(s, worker);
}

/* A leg D that finds its room taken ahead of it. */
static bool attach(struct sim *s, uint32_t request, uint32_t worker)
{
    struct sim_request *r = &s->requests[request];
    struct sim_job *j;

    if (r->leg_d == SIM_NONE)
        return false;
    j = &s->jobs[r->leg_d];
    if (j->attached || j->worker != worker) {
        sim_job_end(s, r->leg_d);
        return false;
    }
    j->attached = true;
    j->attempt = r->decode_attempt;
    if (j->flow_done) {
        j->state = SIM_JOB_JOIN;
        sim_list_put(s, &s->workers[worker].join, r->leg_d);
        sim_engine_kick(s, worker);
    }
    return true;
}

static void pull_or_serve(struct sim *s, const struct bt_effect *fx,
                          uint32_t request)
{
    uint32_t worker = bt_worker_slot(fx->worker);
    struct sim_request *r = &s->requests[request];
    struct sim_worker *w = &s->workers[worker];
    struct sim_job *j;
    bool joins;

    r->leg_d = sim_prefetch_take(s, request, worker);
    joins = r->leg_d != SIM_NONE;
    if (!joins)
        r->leg_d = sim_job_take(s, request, worker);
    j = &s->jobs[r->leg_d];
    j->leg = BT_LEG_DECODE;
    j->attempt = fx->attempt;
    j->pull = fx->with_params;
    if (!j->pull) { /* whatever was sent before is of no use */
        struct bt_sim_record *record = sim_record(s, request);

        record->transfer_start_ns = record->transfer_end_ns = 0;
        record->transfer_bytes = 0;
    }
    if (j->pull) {
        j->source = r->leg_p;
        s->jobs[r->leg_p].target = r->leg_d;
    }
    sim_list_put(s, j->pull ? &w->pull_wait : &w->prefill_wait, r->leg_d);
    if (!j->pull && !joins)
        look_for_prefix(s, r->leg_d, &fx->source);
    sim_engine_kick(s, worker);
}

void sim_leg_decode(struct sim *s, const struct bt_effect *fx)
{
    uint32_t request = (uint32_t)fx->cookie;
    uint32_t worker = bt_worker_slot(fx->worker);
    struct sim_request *r = &s->requests[request];

    r->decode_attempt = fx->attempt;
    if (!fx->with_params && r->leg_p != SIM_NONE)
        sim_leg_release(s, request);
    if (fx->with_params && attach(s, request, worker))
        return;
    if (r->leg_d != SIM_NONE)
        sim_job_end(s, r->leg_d);
    if (!s->workers[worker].up)
        sim_leg_failed(s, request, BT_LEG_DECODE, BT_FAIL_REFUSED);
    else if (!fits(s, request, worker, true))
        sim_leg_failed(s, request, BT_LEG_DECODE, BT_FAIL_HTTP);
    else if (fx->with_params && r->leg_p == SIM_NONE)
        sim_leg_failed(s, request, BT_LEG_DECODE, BT_FAIL_BODY);
    else
        pull_or_serve(s, fx, request);
}

void sim_leg_abort(struct sim *s, const struct bt_effect *fx)
{
    struct sim_request *r = &s->requests[(uint32_t)fx->cookie];

    if (r->leg_d != SIM_NONE)
        sim_job_end(s, r->leg_d);
    if (fx->leg == BT_LEG_PREFILL)
        sim_leg_release(s, (uint32_t)fx->cookie);
}

/* Leg P lets go of its blocks; a pull that still runs ends first. */
void sim_leg_release(struct sim *s, uint32_t request)
{
    struct sim_request *r = &s->requests[request];

    if (r->leg_p == SIM_NONE)
        return;
    if (s->jobs[r->leg_p].target != SIM_NONE)
        sim_pull_failed(s, s->jobs[r->leg_p].target);
    if (r->leg_p != SIM_NONE)
        sim_job_end(s, r->leg_p);
}

void sim_leg_prefilled(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    struct bt_event event = {.type = BT_EV_PREFILL_DONE};

    sim_record(s, j->request)->prefill_done_ns = s->now_ns;
    event.u.prefill_done = (struct bt_ev_prefill_done){
        .request = s->requests[j->request].id,
        .attempt = j->attempt,
        .has_params = true,
        .prompt_tokens = sim_prompt(s, j),
        .cached_tokens = j->prefix,
    };
    sim_tell(s, &event);
    if (j->target != SIM_NONE)
        sim_pull_start(s, j->target);
}

void sim_leg_token(struct sim *s, uint32_t job, int64_t at_ns)
{
    struct sim_job *j = &s->jobs[job];
    struct bt_sim_record *record = sim_record(s, j->request);
    struct bt_event event = {.type = BT_EV_TOKENS};

    if (j->tokens == 1) {
        record->first_token_ns = at_ns;
        if (!j->pull)
            record->prefill_done_ns = at_ns;
        event.type = BT_EV_FIRST_TOKEN;
        sim_child_first_token(s, j->request);
    } else {
        record->second_token_ns = at_ns;
    }
    event.u.progress =
        (struct bt_ev_progress){.request = s->requests[j->request].id,
                                .attempt = j->attempt,
                                .tokens = j->tokens};
    sim_tell(s, &event);
}

void sim_leg_done(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    struct bt_event event = {.type = BT_EV_DECODE_DONE};

    event.u.progress =
        (struct bt_ev_progress){.request = s->requests[j->request].id,
                                .attempt = j->attempt,
                                .tokens = j->tokens,
                                .cached_tokens = j->pull ? 0 : j->prefix};
    sim_tell(s, &event);
}
