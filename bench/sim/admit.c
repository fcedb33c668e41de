/* Who may begin on a worker: a prefill needs its turn, KV room for its prompt
 * and, where it stays for decode, a slot; a leg D whose KV comes from
 * elsewhere needs a slot and room before the pull starts.
 *
 * Order is first come, first served, blocked by the first that lacks room;
 * prefills whose prefix is still on the way are passed over. Room for all
 * output is taken at once, so that no running request is ever preempted.
 */
#include "sim_priv.h"

static bool slot_is_free(const struct sim_worker *w)
{
    return w->slots_max == 0 || w->slots < w->slots_max;
}

/* Prompt tokens admitted and not yet computed. */
static uint64_t tokens_ahead(const struct sim *s, const struct sim_worker *w)
{
    uint64_t sum = 0;

    for (uint32_t i = 0, job = w->prefill.first; i < w->prefill.count; i++) {
        const struct sim_job *j = &s->jobs[job];

        sum += sim_prompt(s, j) - j->computed;
        job = j->link.next;
    }
    return sum;
}

static bool take_room(struct sim *s, uint32_t job, uint32_t pin_max,
                      uint64_t reserve)
{
    struct sim_job *j = &s->jobs[job];
    uint32_t pinned = sim_job_pin(s, j, pin_max);
    uint64_t held = (uint64_t)pinned * s->block_tokens;

    if (sim_kv_take(s, job, sim_prompt(s, j) - held + reserve))
        return true;
    sim_job_unpin(s, j, 0);
    return false;
}

static bool admit_prefill(struct sim *s, struct sim_worker *w, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    bool stays = j->leg == BT_LEG_DECODE;
    struct bt_sim_record *record = sim_record(s, j->request);

    if (stays && !slot_is_free(w))
        return false;
    if (!take_room(s, job, sim_useful_blocks(s, j),
                   stays ? sim_output(s, j) : 0))
        return false;
    sim_list_drop(s, &w->prefill_wait, job);
    j->slot = stays;
    w->slots += stays;
    j->state = SIM_JOB_PREFILL;
    j->prefix = j->computed = j->pinned * s->block_tokens;
    j->compute_from_ns = s->now_ns;
    sim_list_put(s, &w->prefill, job);
    record->prefill_start_ns = s->now_ns;
    record->cached_tokens = j->prefix;
    if (stays)
        record->slot_ns = s->now_ns;
    return true;
}

void sim_admit_prefills(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];
    uint64_t ahead = tokens_ahead(s, w);
    uint32_t job = w->prefill_wait.first, n = w->prefill_wait.count;

    for (uint32_t i = 0; i < n; i++) {
        struct sim_job *j = &s->jobs[job];
        uint32_t next = j->link.next;

        if (w->chunk == 0 ? w->prefill.count > 0 : ahead >= w->chunk)
            return;
        if (j->state == SIM_JOB_WAIT && sim_push_may_start(s, j)) {
            if (!admit_prefill(s, w, job))
                return;
            ahead += sim_prompt(s, j) - j->computed;
        }
        job = next;
    }
}

static bool admit_pull(struct sim *s, struct sim_worker *w, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    if (!slot_is_free(w) ||
        !take_room(s, job, s->requests[j->request].blocks, sim_output(s, j)))
        return false;
    sim_list_drop(s, &w->pull_wait, job);
    j->slot = true;
    w->slots++;
    j->state = SIM_JOB_PULL;
    sim_record(s, j->request)->slot_ns = s->now_ns;
    return true;
}

void sim_admit_pulls(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];

    if (!w->up || w->hung)
        return;
    while (w->pull_wait.count > 0) {
        uint32_t job = w->pull_wait.first;

        if (!admit_pull(s, w, job))
            return;
        sim_pull_start(s, job);
    }
}

/* Would a step that ends now change anything? */
bool sim_admit_waits(const struct sim *s, uint32_t worker)
{
    const struct sim_worker *w = &s->workers[worker];

    (void)s;
    return w->join.count > 0 || w->prefill_wait.count > 0;
}
