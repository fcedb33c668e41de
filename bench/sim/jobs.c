/* Jobs: one leg of a request on one worker, and the KV it holds there. Decides
 * what counts as used KV and who is evicted; when a job may take room is
 * admit.c's, what it computes engine.c's.
 *
 * KV of a worker = cached blocks (pinned or not) + private tokens (partial
 * tails, prompts being computed, room reserved for output). A job pins the
 * leading blocks of its chain and owns private tokens for the rest. Evicted
 * blocks sink to the next tier, where there is one.
 */
#include "sim_priv.h"

#include <assert.h>
#include <stdlib.h>

uint32_t sim_prompt(const struct sim *s, const struct sim_job *j)
{
    return s->requests[j->request].trace->input_tokens;
}

uint32_t sim_output(const struct sim *s, const struct sim_job *j)
{
    return s->requests[j->request].trace->output_tokens;
}

/* The last token is computed in any case, for its logits. */
uint32_t sim_useful_blocks(const struct sim *s, const struct sim_job *j)
{
    uint32_t blocks = (sim_prompt(s, j) - 1) / s->block_tokens;
    uint32_t known = s->requests[j->request].blocks;

    return blocks < known ? blocks : known;
}

uint32_t sim_job_take(struct sim *s, uint32_t request, uint32_t worker)
{
    uint32_t at = s->job_free, generation;
    struct sim_job *j;

    if (at == SIM_NONE) {
        assert(s->job_count < s->job_capacity);
        at = s->job_count++;
    } else {
        s->job_free = s->jobs[at].link.next;
    }
    j = &s->jobs[at];
    generation = j->generation + 1;
    *j = (struct sim_job){.state = SIM_JOB_WAIT,
                          .generation = generation,
                          .request = request,
                          .worker = worker,
                          .source = SIM_NONE,
                          .target = SIM_NONE,
                          .flow = SIM_NONE,
                          .fetch_from = SIM_NONE,
                          .attached = true};
    s->job_live++;
    return at;
}

void sim_job_free(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    struct sim_request *r = &s->requests[j->request];

    assert(j->pinned == 0 && j->private_kv == 0 && j->flow == SIM_NONE);
    if (r->leg_p == job)
        r->leg_p = SIM_NONE;
    if (r->leg_d == job)
        r->leg_d = SIM_NONE;
    if (r->ahead == job)
        r->ahead = SIM_NONE;
    j->state = SIM_JOB_FREE;
    j->link.next = s->job_free;
    s->job_free = job;
    s->job_live--;
}

void sim_list_put(struct sim *s, struct sim_list *list, uint32_t job)
{
    struct sim_link *link = &s->jobs[job].link;

    link->prev = list->count == 0 ? SIM_NONE : list->last;
    link->next = SIM_NONE;
    if (list->count == 0)
        list->first = job;
    else
        s->jobs[list->last].link.next = job;
    list->last = job;
    list->count++;
}

void sim_list_drop(struct sim *s, struct sim_list *list, uint32_t job)
{
    struct sim_link *link = &s->jobs[job].link;

    assert(list->count > 0);
    if (link->prev == SIM_NONE)
        list->first = link->next;
    else
        s->jobs[link->prev].link.next = link->next;
    if (link->next == SIM_NONE)
        list->last = link->prev;
    else
        s->jobs[link->next].link.prev = link->prev;
    if (--list->count == 0)
        list->first = list->last = SIM_NONE;
}

/* ---- KV ---- */

uint64_t sim_kv_used(const struct sim *s, const struct sim_worker *w)
{
    return w->private_kv + (uint64_t)w->tiers[0].count * s->block_tokens;
}

static uint64_t pop_oldest(struct sim *s, uint32_t worker, uint32_t tier)
{
    struct sim_cache *c = &s->workers[worker].tiers[tier];
    uint64_t id = c->blocks[c->oldest].id;

    sim_cache_remove(c, c->oldest);
    sim_kv_note(s, worker, true, (enum bt_tier)tier, id);
    return id;
}

/* The oldest block of the device sinks to the next tier; what it displaces
 * there sinks further. */
static void evict(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];
    uint64_t id = pop_oldest(s, worker, 0), displaced = 0;

    for (uint32_t tier = 1; tier < 3; tier++) {
        struct sim_cache *c = &w->tiers[tier];
        bool full = c->count == c->capacity;

        if (!w->has_tier[tier])
            continue;
        if (sim_cache_find(c, id) != SIM_NONE ||
            (full && c->oldest == SIM_NONE))
            return;
        if (full)
            displaced = pop_oldest(s, worker, tier);
        sim_cache_unpin(c, sim_cache_insert(c, id));
        sim_kv_note(s, worker, false, (enum bt_tier)tier, id);
        if (!full)
            return;
        id = displaced;
    }
}

bool sim_kv_take(struct sim *s, uint32_t job, uint64_t tokens)
{
    struct sim_job *j = &s->jobs[job];
    struct sim_worker *w = &s->workers[j->worker];
    uint64_t fixed =
        w->private_kv + (uint64_t)w->tiers[0].pinned * s->block_tokens;

    if (fixed + tokens > w->kv_tokens)
        return false;
    while (sim_kv_used(s, w) + tokens > w->kv_tokens)
        evict(s, j->worker);
    w->private_kv += tokens;
    j->private_kv += tokens;
    return true;
}

uint32_t sim_job_pin(struct sim *s, struct sim_job *j, uint32_t max)
{
    struct sim_cache *c = &s->workers[j->worker].tiers[0];
    const uint64_t *ids = s->requests[j->request].ids;

    while (j->pinned < max) {
        uint32_t at = sim_cache_find(c, ids[j->pinned]);

        if (at == SIM_NONE)
            break;
        sim_cache_pin(c, at);
        j->pinned++;
    }
    return j->pinned;
}

void sim_job_unpin(struct sim *s, struct sim_job *j, uint32_t down_to)
{
    struct sim_cache *c = &s->workers[j->worker].tiers[0];
    const uint64_t *ids = s->requests[j->request].ids;

    while (j->pinned > down_to)
        sim_cache_unpin(c, sim_cache_find(c, ids[--j->pinned]));
}

/* A block that another job stored meanwhile is shared, not kept twice. */
void sim_job_store(struct sim *s, struct sim_job *j, uint32_t upto)
{
    struct sim_worker *w = &s->workers[j->worker];
    const uint64_t *ids = s->requests[j->request].ids;

    while (j->pinned < upto) {
        uint64_t id = ids[j->pinned++];
        uint32_t at = sim_cache_find(&w->tiers[0], id);

        assert(j->private_kv >= s->block_tokens);
        j->private_kv -= s->block_tokens;
        w->private_kv -= s->block_tokens;
        if (at != SIM_NONE) {
            sim_cache_pin(&w->tiers[0], at);
            continue;
        }
        at = sim_cache_insert(&w->tiers[0], id);
        assert(at != SIM_NONE);
        sim_kv_note(s, j->worker, false, BT_TIER_DEVICE, id);
    }
}

void sim_job_release(struct sim *s, struct sim_job *j)
{
    struct sim_worker *w = &s->workers[j->worker];

    sim_job_unpin(s, j, 0);
    w->private_kv -= j->private_kv;
    j->private_kv = 0;
}

/* ---- the end ---- */

static void leave(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    struct sim_worker *w = &s->workers[j->worker];

    switch (j->state) {
    case SIM_JOB_FETCH:
        sim_fetch_end(s, job, false);
        sim_list_drop(s, &w->prefill_wait, job);
        break;
    case SIM_JOB_WAIT:
        sim_list_drop(s, j->pull ? &w->pull_wait : &w->prefill_wait, job);
        break;
    case SIM_JOB_JOIN:
        sim_list_drop(s, &w->join, job);
        break;
    case SIM_JOB_PREFILL:
    case SIM_JOB_DECODE:
        sim_engine_drop(s, j->worker, job);
        break;
    case SIM_JOB_FREE:
    case SIM_JOB_PULL:
    case SIM_JOB_HOLD:
        break;
    }
}

void sim_job_end(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];
    uint32_t worker = j->worker, target = j->target;

    assert(j->state != SIM_JOB_FREE);
    if (target != SIM_NONE && s->jobs[target].flow != SIM_NONE)
        sim_check_failed(s, "blocks released under a live transfer", j->request,
                         worker);
    leave(s, job);
    if (j->flow != SIM_NONE)
        sim_net_stop(&s->net, s->now_ns, j->flow);
    j->flow = SIM_NONE;
    if (j->slot)
        s->workers[worker].slots--;
    j->slot = false;
    if (j->source != SIM_NONE)
        s->jobs[j->source].target = SIM_NONE;
    if (target != SIM_NONE)
        s->jobs[target].source = SIM_NONE;
    sim_job_release(s, j);
    sim_job_free(s, job);
    sim_engine_kick(s, worker);
}
