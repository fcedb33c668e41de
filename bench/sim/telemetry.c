/* What workers report about themselves: that they are ready, and their load at
 * fixed intervals, as old as the lag when it arrives. A worker that is down or
 * hangs reports nothing.
 */
#include "sim_priv.h"

void sim_worker_ready(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];
    struct bt_event event = {.type = BT_EV_WORKER_STATE};

    event.u.worker_state =
        (struct bt_ev_worker_state){.worker = worker,
                                    .state = BT_WORKER_READY,
                                    .incarnation = w->incarnation,
                                    .block_tokens = s->block_tokens,
                                    .kv_capacity_tokens = w->kv_tokens};
    sim_tell(s, &event);
    if (s->config->knowledge.events_off)
        return;
    sim_kv_forget(s, worker);
    event = (struct bt_event){.type = BT_EV_KV_STREAM};
    event.u.kv_stream.worker = worker;
    event.u.kv_stream.state = BT_STREAM_EXACT;
    event.u.kv_stream.cause = BT_CAUSE_FROM_START;
    sim_tell(s, &event);
}

/* Those whose KV is on the way have a slot and wait, as an engine counts. */
static uint32_t pulling(const struct sim *s, const struct sim_worker *w)
{
    uint32_t others = w->batch_count + w->join.count;
    uint32_t job = w->prefill.first;

    for (uint32_t i = 0; i < w->prefill.count; i++) {
        others += s->jobs[job].slot;
        job = s->jobs[job].link.next;
    }
    return w->slots - others;
}

static void look(const struct sim *s, uint32_t worker,
                 struct bt_ev_worker_stats *out)
{
    const struct sim_worker *w = &s->workers[worker];
    uint64_t in_use =
        w->private_kv + (uint64_t)w->tiers[0].pinned * s->block_tokens;

    out->worker = worker;
    out->running = w->batch_count + w->prefill.count + w->join.count;
    out->waiting = w->prefill_wait.count + w->pull_wait.count + pulling(s, w);
    out->kv_usage = (double)in_use / (double)w->kv_tokens;
}

static void report(struct sim *s, const struct bt_ev_worker_stats *what)
{
    struct bt_event event = {.type = BT_EV_WORKER_STATS};

    event.u.worker_stats = *what;
    sim_tell(s, &event);
}

void sim_stats_look(struct sim *s, uint32_t worker)
{
    const struct bt_sim_knowledge *known = &s->config->knowledge;
    const struct sim_worker *w = &s->workers[worker];
    struct sim_stats *entry;
    uint32_t at;

    sim_after(s, s->now_ns + known->telemetry_ns, SIM_EV_STATS, worker, 0);
    if (!w->up || w->hung || s->stats_count == SIM_STATS_FLYING)
        return;
    at = (s->stats_head + s->stats_count) % SIM_STATS_FLYING;
    entry = &s->stats[at];
    look(s, worker, &entry->what);
    entry->incarnation = w->incarnation;
    if (known->telemetry_lag_ns <= 0) {
        report(s, &entry->what);
        return;
    }
    s->stats_count++;
    sim_after(s, s->now_ns + known->telemetry_lag_ns, SIM_EV_STATS_OUT, worker,
              0);
}

/* The lag is the same for all: first sent, first there. */
void sim_stats_arrive(struct sim *s)
{
    struct sim_stats *entry = &s->stats[s->stats_head];

    s->stats_head = (s->stats_head + 1) % SIM_STATS_FLYING;
    s->stats_count--;
    if (entry->incarnation == s->workers[entry->what.worker].incarnation)
        report(s, &entry->what);
}
