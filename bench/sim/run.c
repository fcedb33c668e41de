/* The loop: the next event of the world, then whatever the core says to it,
 * until nothing more happens at this instant; then the network's rates.
 *
 *   world event -> looks of workers -> KV events -> events for the core
 *        ^             ^                                 |
 *        |             +---------- effects --------------+
 *
 * Handlers never call the core: they leave events in a queue, so that a step
 * of the core always sees a world that stands still.
 */
#include "sim_priv.h"

#include "baton/orchestrator/journal.h"
#include <assert.h>
#include <stdlib.h>

#define OUT_MAX      (1u << 22)
#define TICK_NS      (100 * BT_NS_PER_MS)
#define DRAIN_MAX_NS (48LL * 3600 * BT_NS_PER_S) /* after the last arrival */

void sim_tell(struct sim *s, const struct bt_event *event)
{
    uint32_t at;

    if (s->out_count == s->out_capacity) {
        uint32_t n = s->out_capacity == 0 ? 256 : s->out_capacity * 2;
        struct bt_event *out = n > OUT_MAX ? NULL : malloc(n * sizeof(*out));

        if (out == NULL) {
            sim_fail(s, BT_NO_MEMORY);
            return;
        }
        for (uint32_t i = 0; i < s->out_count; i++)
            out[i] = s->out[(s->out_head + i) % s->out_capacity];
        free(s->out);
        s->out = out;
        s->out_head = 0;
        s->out_capacity = n;
    }
    at = (s->out_head + s->out_count++) % s->out_capacity;
    s->out[at] = *event;
}

/* ---- the core ---- */

static void finish(struct sim *s, uint32_t request,
                   const struct bt_decision *decision)
{
    struct sim_request *r = &s->requests[request];

    r->finishes++;
    s->finished++;
    sim_metrics_decision(s, request, decision);
    sim_child_finished(s, request);
    if (r->leg_d != SIM_NONE && s->jobs[r->leg_d].attached)
        sim_job_end(s, r->leg_d);
    sim_leg_release(s, request);
    sim_prefetch_drop(s, request);
}

static void perform(struct sim *s, const struct bt_effect *fx)
{
    uint32_t request = (uint32_t)fx->cookie;
    uint32_t worker = bt_worker_slot(fx->worker);

    sim_hash_effect(s, fx);
    switch (fx->type) {
    case BT_FX_ACCEPTED:
        s->requests[request].id = fx->request;
        s->requests[request].accepted = true;
        break;
    case BT_FX_SEND_PREFILL:
        sim_metrics_sent(s, request, worker, SIM_NONE);
        sim_child_sent(s, request, worker, SIM_NONE);
        sim_leg_prefill(s, fx);
        break;
    case BT_FX_SEND_DECODE:
        if (!fx->with_params) {
            sim_metrics_sent(s, request, SIM_NONE, worker);
            sim_child_sent(s, request, SIM_NONE, worker);
        }
        sim_leg_decode(s, fx);
        break;
    case BT_FX_RELEASE_HANDOFF:
        sim_leg_release(s, request);
        break;
    case BT_FX_ABORT:
        sim_leg_abort(s, fx);
        break;
    case BT_FX_PREFETCH:
        sim_prefetch(s, fx);
        break;
    case BT_FX_FINISHED:
        finish(s, request, fx->decision);
        break;
    }
}

static void refused(struct sim *s, const struct bt_event *event)
{
    uint32_t request = (uint32_t)event->u.request.cookie;

    s->requests[request].finishes++;
    s->finished++;
    sim_record(s, request)->outcome = BT_OUTCOME_SHED;
    sim_record(s, request)->finished_ns = s->now_ns;
    sim_child_finished(s, request);
}

void sim_step_core(struct sim *s, const struct bt_event *event)
{
    struct bt_event now = *event;
    enum bt_status status;

    now.now_ns = s->now_ns;
    sim_policy_begin(s);
    s->effects.count = 0;
    status = bt_core_step(s->core, &now, &s->effects);
    s->result->events++;
    if (s->journal != NULL &&
        bt_journal_event(s->journal, s->core, &now, &s->effects) != BT_OK)
        sim_fail(s, BT_IO);
    if (event->type == BT_EV_REQUEST && status != BT_OK)
        refused(s, event);
    for (size_t i = 0; i < s->effects.count; i++)
        perform(s, &s->effects.items[i]);
}

static bool drain_one(struct sim *s)
{
    struct bt_event event;

    if (s->out_count == 0)
        return false;
    event = s->out[s->out_head];
    s->out_head = (s->out_head + 1) % s->out_capacity;
    s->out_count--;
    sim_step_core(s, &event);
    return true;
}

static void settle(struct sim *s)
{
    bool any = true;

    while (any && s->failed == BT_OK) {
        any = sim_engine_look(s);
        any |= sim_kv_flush(s);
        any |= drain_one(s);
    }
    sim_net_plan(s);
    sim_check(s);
}

/* ---- the world ---- */

static void arrive(struct sim *s)
{
    size_t i = s->next_arrival++;
    const struct sim_request *r = &s->requests[i];
    struct bt_event event = {.type = BT_EV_REQUEST};

    if (s->arrivals_stopped)
        return;
    event.u.request = (struct bt_ev_request){
        .cookie = i,
        .prompt_tokens = r->trace->input_tokens,
        .tokens_known = true,
        .keys = r->keys,
        .key_count = r->blocks,
        .max_tokens = s->config->knowledge.output_known != 0
                          ? r->trace->output_tokens
                          : 0,
        .pd_allowed = !s->config->aggregated,
        .body_bytes = 4ull * r->trace->input_tokens,
        .tenant = r->trace->tenant,
        .priority = r->trace->priority,
    };
    sim_tell(s, &event);
    if (s->next_arrival < s->request_count)
        sim_after(s, s->arrivals[s->next_arrival], SIM_EV_ARRIVAL, 0, 0);
}

static void tick(struct sim *s)
{
    struct bt_event event = {.type = BT_EV_TICK};

    sim_tell(s, &event);
    sim_after(s, s->now_ns + TICK_NS, SIM_EV_TICK, 0, 0);
}

static void flow_open(struct sim *s, uint32_t job, uint64_t generation)
{
    const struct sim_job *j = &s->jobs[job];

    if (j->generation != generation)
        return;
    if (j->state == SIM_JOB_FETCH)
        sim_fetch_open(s, job);
    else if (j->state == SIM_JOB_PULL && j->flow_due)
        sim_pull_open(s, job);
}

static void handle(struct sim *s, const struct sim_event *e)
{
    switch ((enum sim_what)e->what) {
    case SIM_EV_ARRIVAL:
        arrive(s);
        break;
    case SIM_EV_TICK:
        tick(s);
        break;
    case SIM_EV_STEP:
        sim_engine_step_end(s, e->a, e->b);
        break;
    case SIM_EV_FLOW_OPEN:
        flow_open(s, e->a, e->b);
        break;
    case SIM_EV_PIECE:
        if (s->jobs[e->a].generation == e->b)
            sim_push_piece(s, e->a);
        break;
    case SIM_EV_NET:
        sim_net_event(s, e->b);
        break;
    case SIM_EV_STATION:
        sim_fetch_station(s, e->a / 2, e->a % 2 + 1, e->b);
        break;
    case SIM_EV_STATS:
        sim_stats_look(s, e->a);
        break;
    case SIM_EV_STATS_OUT:
        sim_stats_arrive(s);
        break;
    case SIM_EV_KV_OUT:
        sim_kv_arrive(s, e->a);
        break;
    case SIM_EV_KV_REPLAY:
        sim_kv_replay(s, e->a, e->b);
        break;
    case SIM_EV_FAULT:
        sim_fault_begin(s, e->a);
        break;
    case SIM_EV_FAULT_END:
        sim_fault_end(s, e->a);
        break;
    case SIM_EV_CUT_FAIL:
        sim_fault_cut_fail(s, e->a);
        break;
    case SIM_EV_HEALTH:
        sim_fault_health(s, e->a, e->b);
        break;
    case SIM_EV_BACKGROUND:
        sim_background_flip(s, e->a, e->b);
        break;
    }
}

enum bt_status sim_run_loop(struct sim *s)
{
    int64_t limit = s->arrivals[s->request_count - 1] + DRAIN_MAX_NS;
    struct sim_event e;

    settle(s);
    while (s->failed == BT_OK && s->finished < s->request_count) {
        if (!sim_heap_pop(&s->heap, &e) || e.at_ns > limit) {
            sim_check_failed(s, "requests do not end", s->finished,
                             s->request_count);
            break;
        }
        assert(e.at_ns >= s->now_ns);
        s->now_ns = e.at_ns;
        handle(s, &e);
        settle(s);
    }
    sim_child_ended(s);
    return s->failed;
}
