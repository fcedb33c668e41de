/* Invariants of the world, looked at after each instant, and at the end those
 * that tie it to the core: every request ended once, the ledger is empty, no
 * block is pinned, nothing is on its way. Failures are counted; the first is
 * kept in words. The run goes on.
 */
#include "sim_priv.h"

void sim_check_failed(struct sim *s, const char *what, uint64_t a, uint64_t b)
{
    struct bt_sim_result *r = s->result;

    if (r->check_failures++ > 0)
        return;
    (void)snprintf(r->first_failure, sizeof(r->first_failure),
                   "%.9f s: %s (%llu, %llu)", (double)s->now_ns * 1e-9, what,
                   (unsigned long long)a, (unsigned long long)b);
}

static void check_worker(struct sim *s, uint32_t i)
{
    const struct sim_worker *w = &s->workers[i];

    if (sim_kv_used(s, w) > w->kv_tokens)
        sim_check_failed(s, "KV over capacity", i, sim_kv_used(s, w));
    if (w->slots_max != 0 && w->slots > w->slots_max)
        sim_check_failed(s, "more requests than slots", i, w->slots);
    if (w->batch_count > w->slots)
        sim_check_failed(s, "a batch larger than its slots", i, w->batch_count);
    if (w->up && !w->hung && !w->step.on &&
        (w->batch_count > 0 || w->join.count > 0 || w->prefill.count > 0))
        sim_check_failed(s, "a worker rests with work to do", i,
                         w->batch_count);
}

/* The sums kept along the way against the jobs they are sums of. */
static void check_sums(struct sim *s)
{
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const struct sim_worker *w = &s->workers[i];
        uint64_t private_kv = 0, slots = 0, context = 0;

        for (uint32_t k = 0; k < s->job_count; k++) {
            const struct sim_job *j = &s->jobs[k];

            if (j->state == SIM_JOB_FREE || j->worker != i)
                continue;
            private_kv += j->private_kv;
            slots += j->slot;
            if (j->state != SIM_JOB_DECODE)
                continue;
            context += sim_prompt(s, j) + j->tokens;
            if (j->private_kv + (uint64_t)j->pinned * s->block_tokens <
                sim_prompt(s, j) + j->tokens)
                sim_check_failed(s, "tokens without room", i, j->request);
        }
        if (private_kv != w->private_kv)
            sim_check_failed(s, "private KV is not its jobs'", i, private_kv);
        if (slots != w->slots)
            sim_check_failed(s, "slots are not its jobs'", i, slots);
        if (context != w->context)
            sim_check_failed(s, "context is not its batch's", i, context);
    }
}

void sim_check(struct sim *s)
{
    if (!s->config->check || s->child)
        return;
    for (uint32_t i = 0; i < s->worker_count; i++)
        check_worker(s, i);
    if (s->net.over_capacity)
        sim_check_failed(s, "a link over capacity", 0, 0);
    s->net.over_capacity = false;
    if (s->result->events % 256 == 0)
        check_sums(s);
}

/* Always, whatever the configuration says: it costs nothing. */
void sim_check_end(struct sim *s)
{
    for (size_t i = 0; i < s->request_count; i++)
        if (s->requests[i].finishes != 1)
            sim_check_failed(s, "a request that did not end once", i,
                             s->requests[i].finishes);
    if (!bt_core_is_idle(s->core))
        sim_check_failed(s, "the core's ledger is not empty", 0, 0);
    if (s->job_live != 0)
        sim_check_failed(s, "legs are left over", s->job_live, 0);
    if (s->net.live != 0)
        sim_check_failed(s, "flows are left over", s->net.live, 0);
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const struct sim_worker *w = &s->workers[i];

        for (uint32_t tier = 0; tier < 3; tier++)
            if (w->tiers[tier].pinned != 0)
                sim_check_failed(s, "blocks are left pinned", i,
                                 w->tiers[tier].pinned);
        if (w->private_kv != 0 || w->slots != 0)
            sim_check_failed(s, "KV or slots are left over", i, w->private_kv);
    }
}
