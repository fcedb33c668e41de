/* Steps of a worker. A step is a batch of decodes, one token each, and a
 * piece of prefill; its time comes from the true compute model. What changes
 * the batch waits for the end of the step in progress.
 *
 * While the batch stays the same, many steps are one event: T(k) of k steps
 * is closed (each step is longer than the one before by the growth of the
 * context). The event stands at the first step after which somebody must be
 * told something; newcomers cut it short at the next end of a step.
 */
#include "sim_priv.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define BATCH_MAX (1u << 20)

static int64_t steps_ns(const struct sim_step *step, uint32_t k)
{
    double n = k;

    return (int64_t)(step->first_ns * n +
                     step->growth_ns * (n * (n - 1) * 0.5) + 0.5);
}

static void schedule(struct sim *s, uint32_t worker, uint32_t steps)
{
    struct sim_step *step = &s->workers[worker].step;

    step->steps = steps;
    step->version++;
    step->end_ns = step->from_ns + steps_ns(step, steps);
    sim_after(s, step->end_ns, SIM_EV_STEP, worker, step->version);
}

/* Ends the event at the end of the step that runs now. */
static void cut_short(struct sim *s, uint32_t worker)
{
    struct sim_step *step = &s->workers[worker].step;
    int64_t gone = s->now_ns - step->from_ns;
    double b = step->first_ns - step->growth_ns * 0.5, k;

    if (step->steps <= 1 || s->now_ns >= step->end_ns)
        return;
    if (step->growth_ns > 0)
        k = (sqrt(b * b + 2 * step->growth_ns * (double)gone) - b) /
            step->growth_ns;
    else
        k = step->first_ns > 0 ? (double)gone / step->first_ns : 1;
    if (k > step->steps)
        k = step->steps;
    if (k < 1)
        k = 1;
    while (k > 1 && steps_ns(step, (uint32_t)k - 1) >= gone)
        k -= 1;
    while (k < step->steps && steps_ns(step, (uint32_t)k) < gone)
        k += 1;
    if ((uint32_t)k < step->steps)
        schedule(s, worker, (uint32_t)k);
}

/* ---- end of a step ---- */

static void answer(struct sim *s, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    if (j->tokens <= 2)
        sim_leg_token(s, job, s->now_ns);
    j->token_ns = s->now_ns;
}

static bool batch_add(struct sim *s, struct sim_worker *w, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    if (w->batch_count == w->batch_capacity) {
        uint32_t capacity = w->batch_capacity == 0 ? 64 : w->batch_capacity * 2;
        uint32_t *batch = realloc(w->batch, capacity * sizeof(*batch));

        if (batch == NULL || capacity > BATCH_MAX) {
            free(batch);
            w->batch = NULL;
            w->batch_count = w->batch_capacity = 0;
            sim_fail(s, BT_NO_MEMORY);
            return false;
        }
        w->batch = batch;
        w->batch_capacity = capacity;
    }
    j->state = SIM_JOB_DECODE;
    w->batch[w->batch_count++] = job;
    w->context += sim_prompt(s, j) + j->tokens;
    return true;
}

static void batch_remove(struct sim *s, struct sim_worker *w, uint32_t at)
{
    const struct sim_job *j = &s->jobs[w->batch[at]];

    w->context -= sim_prompt(s, j) + j->tokens;
    for (uint32_t i = at + 1; i < w->batch_count; i++)
        w->batch[i - 1] = w->batch[i];
    w->batch_count--;
}

static void note_gap(struct sim *s, const struct sim_job *j,
                     const struct sim_step *step)
{
    struct bt_sim_record *record = sim_record(s, j->request);
    int64_t gap = 0, last;

    if (j->tokens > 0)
        gap = step->from_ns + steps_ns(step, 1) - j->token_ns;
    last = steps_ns(step, step->steps) - steps_ns(step, step->steps - 1);
    if (step->steps > 1 && last > gap)
        gap = last;
    if (gap > record->gap_max_ns)
        record->gap_max_ns = gap;
}

static void decode_done(struct sim *s, struct sim_worker *w)
{
    uint32_t steps = w->step.steps;

    for (uint32_t i = 0; i < w->batch_count;) {
        uint32_t job = w->batch[i];
        struct sim_job *j = &s->jobs[job];

        if (j->token_ns == s->now_ns) { /* joined by a prefill of this step */
            i++;
            continue;
        }
        note_gap(s, j, &w->step);
        j->tokens += steps;
        w->context += steps;
        answer(s, job);
        if (j->tokens < sim_output(s, j)) {
            i++;
            continue;
        }
        sim_leg_done(s, job);
        sim_job_end(s, job); /* out of the batch */
    }
}

static void prefill_complete(struct sim *s, struct sim_worker *w, uint32_t job)
{
    struct sim_job *j = &s->jobs[job];

    sim_list_drop(s, &w->prefill, job);
    sim_job_store(s, j, s->requests[j->request].blocks);
    if (j->leg == BT_LEG_PREFILL) {
        j->state = SIM_JOB_HOLD;
        sim_leg_prefilled(s, job);
        return;
    }
    j->tokens = 1;
    if (!batch_add(s, w, job))
        return;
    answer(s, job);
    if (sim_output(s, j) > 1)
        return;
    sim_leg_done(s, job);
    sim_job_end(s, job);
}

static void prefill_done(struct sim *s, struct sim_worker *w)
{
    uint32_t job = w->prefill.first, n = w->prefill.count;

    for (uint32_t i = 0; i < n; i++) {
        struct sim_job *j = &s->jobs[job];
        uint32_t next = j->link.next, chunk = j->chunk;
        double all = sim_prompt(s, j) - j->prefix;

        j->chunk = 0;
        j->computed += chunk;
        if (chunk > 0 && j->leg == BT_LEG_PREFILL)
            sim_push_computed(s, job, (j->computed - j->prefix) / all);
        if (chunk > 0 && j->computed == sim_prompt(s, j))
            prefill_complete(s, w, job);
        job = next;
    }
}

/* ---- start of a step ---- */

static void join(struct sim *s, struct sim_worker *w)
{
    while (w->join.count > 0) {
        uint32_t job = w->join.first;

        sim_list_drop(s, &w->join, job);
        if (!batch_add(s, w, job))
            return;
    }
}

/* Hands out the prefill tokens of a step and returns their time, ns. One
 * constant part per step, whatever the number of prompts. */
static double prefill_plan(struct sim *s, struct sim_worker *w)
{
    const struct bt_compute_model *m = &w->compute;
    double constant = m->prefill_a_ms * 1e6 / m->speedup, sum = 0;
    uint64_t left = w->chunk == 0 ? UINT64_MAX : w->chunk;
    uint32_t job = w->prefill.first, n = w->chunk == 0 ? 1 : w->prefill.count;

    if (n > w->prefill.count)
        n = w->prefill.count;
    for (uint32_t i = 0; i < n && left > 0; i++) {
        struct sim_job *j = &s->jobs[job];
        uint32_t need = sim_prompt(s, j) - j->computed;

        j->chunk = need < left ? need : (uint32_t)left;
        left -= j->chunk;
        sum += (double)bt_prefill_ns(m, j->chunk, j->computed);
        if (i > 0)
            sum -= constant;
        job = j->link.next;
    }
    return sum * w->slow;
}

/* Steps until somebody in the batch has a first, second or last token. */
static uint32_t steps_to_news(const struct sim *s, const struct sim_worker *w)
{
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < w->batch_count; i++) {
        const struct sim_job *j = &s->jobs[w->batch[i]];
        uint32_t left = sim_output(s, j) - j->tokens;

        if (j->tokens < 2)
            left = 1;
        if (left < least)
            least = left;
    }
    return least;
}

static void begin(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];
    struct sim_step *step = &w->step;
    double prefill, decode = 0;
    uint32_t steps = 1;

    if (!w->up || w->hung || step->on)
        return;
    sim_admit_prefills(s, worker);
    join(s, w);
    if (w->prefill.count == 0 && w->batch_count == 0)
        return;
    prefill = prefill_plan(s, w);
    if (w->batch_count > 0)
        decode =
            (double)bt_decode_step_ns(&w->compute, w->batch_count, w->context) *
            w->slow;
    step->on = true;
    step->from_ns = s->now_ns;
    step->first_ns = prefill + decode;
    step->prefill_part = prefill > 0 ? prefill / (prefill + decode) : 0;
    step->growth_ns = 0;
    if (prefill <= 0) {
        step->growth_ns = w->compute.decode_c_ms * 1e6 / w->compute.speedup *
                          w->slow * w->batch_count;
        steps = steps_to_news(s, w);
    }
    schedule(s, worker, steps);
    if (w->chunk == 0 && w->prefill.count > 0)
        sim_push_plan(s, w->prefill.first);
}

void sim_engine_step_end(struct sim *s, uint32_t worker, uint64_t version)
{
    struct sim_worker *w = &s->workers[worker];

    if (!w->step.on || w->step.version != version || w->hung)
        return;
    sim_metrics_busy(s, worker, w->step.from_ns, s->now_ns,
                     w->step.prefill_part);
    prefill_done(s, w);
    decode_done(s, w);
    w->step.on = false;
    sim_admit_pulls(s, worker);
    begin(s, worker);
}

/* Asks a worker to look whether it can do more; see sim_engine_look. */
void sim_engine_kick(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];

    if (w->kicked)
        return;
    w->kicked = true;
    s->kicks[s->kick_count++] = worker;
}

static void look(struct sim *s, uint32_t worker)
{
    struct sim_worker *w = &s->workers[worker];

    w->kicked = false;
    if (!w->up || w->hung || (w->step.on && s->now_ns >= w->step.end_ns))
        return;
    sim_admit_pulls(s, worker);
    if (!w->step.on)
        begin(s, worker);
    else if (sim_admit_waits(s, worker))
        cut_short(s, worker);
}

/* All workers that were asked, also those asked meanwhile: each look only
 * admits what waits, so that there is an end. */
bool sim_engine_look(struct sim *s)
{
    bool any = s->kick_count > 0;

    while (s->kick_count > 0) {
        uint32_t worker = s->kicks[0];

        s->kick_count--;
        for (uint32_t i = 0; i < s->kick_count; i++)
            s->kicks[i] = s->kicks[i + 1];
        look(s, worker);
    }
    return any;
}

void sim_engine_drop(struct sim *s, uint32_t worker, uint32_t job)
{
    struct sim_worker *w = &s->workers[worker];
    struct sim_job *j = &s->jobs[job];

    if (j->state == SIM_JOB_PREFILL) {
        sim_list_drop(s, &w->prefill, job);
        return;
    }
    for (uint32_t i = 0; i < w->batch_count; i++) {
        if (w->batch[i] != job)
            continue;
        cut_short(s, worker);
        batch_remove(s, w, i);
        return;
    }
}

/* The worker is gone: its step ends nowhere. */
void sim_engine_stop(struct sim *s, uint32_t worker)
{
    struct sim_step *step = &s->workers[worker].step;

    if (step->on)
        sim_metrics_busy(s, worker, step->from_ns, s->now_ns,
                         step->prefill_part);
    step->on = false;
    step->version++;
}
