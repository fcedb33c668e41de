/* Who runs when on the emulated device. Decides admission (first come, first
 * served; blocks and slots), carries prefills and decode steps out in modelled
 * time, and ends sequences. Times are scheduler.c's, content is seq.c's.
 *
 * Invariants: at most seqs_max sequences in prefill, pull or decode; a
 * sequence is admitted only with all blocks it can come to need, so none is
 * ever preempted.
 */
#include "engine_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TURNS_MAX 4096 /* jobs completed in one go after a late wake-up */

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

/* ---- ends ---- */

static void record_end(struct bt_seq *seq)
{
    struct bt_engine_metrics *m = &seq->engine->metrics;
    int64_t now = seq->last_ns;
    m->success_length++;
    bt_metric_add(m, BT_HIST_E2E, seconds(now - seq->arrived_ns));
    bt_metric_add(m, BT_HIST_INFERENCE, seconds(now - seq->scheduled_ns));
    bt_metric_add(m, BT_HIST_PREFILL,
                  seconds(seq->first_ns - seq->scheduled_ns));
    bt_metric_add(m, BT_HIST_DECODE, seconds(now - seq->first_ns));
    bt_metric_add(m, BT_HIST_PROMPT_TOKENS, seq->prompt_count);
    bt_metric_add(m, BT_HIST_GENERATION_TOKENS, seq->out_count);
    if (seq->out_count > 1) {
        bt_metric_add(m, BT_HIST_TPOT,
                      seconds(now - seq->first_ns) / (seq->out_count - 1));
    }
    bt_metric_add(m, BT_HIST_PREFILL_COMPUTED,
                  seq->prompt_count - seq->pulled_tokens -
                      seq->hit_blocks * seq->oracle.block_tokens);
}

static void finish(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    bt_seq_move(seq, NULL, BT_SEQ_DONE);
    record_end(seq);
    e->totals.finished++;
    seq->leased = seq->remote_decode && bt_handoff_lease(seq);
    bt_seq_release_blocks(seq);
    seq->call->done_count++;
}

void bt_engine_fail(struct bt_seq *seq, int http_status, const char *message)
{
    struct bt_engine *e = seq->engine;
    struct bt_call *call = seq->call;
    bt_seq_move(seq, NULL, BT_SEQ_DONE);
    seq->failed = true;
    bt_seq_release_blocks(seq);
    e->totals.failed++;
    e->metrics.success_error++;
    call->done_count++;
    bt_call_fail(call, http_status, message);
    bt_engine_kick(e);
}

void bt_engine_abort(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    if (seq->state == BT_SEQ_DONE) {
        return;
    }
    e->totals.aborted++;
    e->metrics.success_abort++;
    if (seq->state == BT_SEQ_PULLING) {
        seq->call = NULL;
        bt_agent_cancel(e->agent, seq->pull_id);
        return;
    }
    if (seq->has_remote && seq->block_count == 0) {
        bt_handoff_release(seq); /* never pulled */
    }
    if (e->prefilling == seq) {
        e->prefilling = NULL;
        e->job_fault = BT_FAULT_NONE;
        bt_sched_abort(&e->sched, bt_engine_now());
    }
    bt_seq_move(seq, NULL, BT_SEQ_DONE);
    bt_seq_release_blocks(seq);
}

bool bt_engine_inject(struct bt_seq *seq, enum bt_fault_kind kind)
{
    if (kind == BT_FAULT_NONE) {
        return false;
    }
    if (kind == BT_FAULT_DIE) {
        _exit(137);
    }
    if (kind == BT_FAULT_HANG) {
        bt_seq_move(seq, &seq->engine->hung, BT_SEQ_HUNG);
        return true;
    }
    bt_engine_fail(seq, kind == BT_FAULT_REFUSE ? 503 : 500, "injected fault");
    return true;
}

/* ---- tokens ---- */

static void emit(struct bt_seq *seq, int64_t at_ns)
{
    struct bt_engine *e = seq->engine;
    bt_seq_next_token(seq);
    e->totals.generated_tokens++;
    e->metrics.generation_tokens++;
    if (seq->out_count == 1) {
        seq->first_ns = at_ns;
        bt_metric_add(&e->metrics, BT_HIST_TTFT,
                      seconds(at_ns - seq->arrived_ns));
    } else {
        bt_metric_add(&e->metrics, BT_HIST_ITL, seconds(at_ns - seq->last_ns));
    }
    seq->last_ns = at_ns;
    if (seq->out_count == seq->max_tokens) {
        finish(seq);
    }
    bt_call_progress(seq->call);
}

static void end_prefill(struct bt_engine *e)
{
    struct bt_seq *seq = e->prefilling;
    enum bt_fault_kind fault = e->job_fault;
    int64_t end = e->sched.end_ns;
    e->prefilling = NULL;
    e->job_fault = BT_FAULT_NONE;
    if (bt_engine_inject(seq, fault) ||
        bt_engine_inject(seq,
                         bt_faults_fire(&e->faults, BT_PHASE_AFTER_PREFILL))) {
        return;
    }
    bt_metric_add(&e->metrics, BT_HIST_ITERATION_TOKENS,
                  seq->prompt_count -
                      seq->hit_blocks * seq->oracle.block_tokens);
    bt_seq_start_output(seq);
    bt_seq_move(seq, &e->decoding, BT_SEQ_DECODING);
    emit(seq, end);
    if (seq->state == BT_SEQ_DECODING) {
        (void)bt_engine_inject(
            seq, bt_faults_fire(&e->faults, BT_PHASE_BEFORE_DECODE));
    }
}

static void end_step(struct bt_engine *e)
{
    struct bt_seq *next = NULL;
    int64_t end = e->sched.end_ns;
    for (struct bt_seq *seq = e->decoding.head; seq != NULL; seq = next) {
        next = seq->next;
        if (!seq->in_step) {
            continue;
        }
        seq->in_step = false;
        if (seq->out_count >= 2 &&
            bt_engine_inject(
                seq, bt_faults_fire(&e->faults, BT_PHASE_DURING_DECODE))) {
            continue;
        }
        if (seq->out_count == 0) {
            bt_seq_start_output(seq);
        }
        emit(seq, end);
    }
}

/* ---- admission ---- */

static bool slot_free(const struct bt_engine *e)
{
    return e->pulling.count + e->decoding.count + (e->prefilling != NULL) <
           e->seqs_max;
}

/* May the head of this queue have blocks before the head of the other? Not if
 * the other came first and waits for blocks as well. */
static bool my_turn(const struct bt_seq *mine, const struct bt_seq *other)
{
    return other == NULL || mine->serial < other->serial ||
           bt_pool_room(&mine->engine->pool) >= bt_seq_blocks_max(other);
}

static void count_prompt(struct bt_seq *seq, int64_t now)
{
    struct bt_engine *e = seq->engine;
    uint32_t hit = seq->hit_blocks * seq->oracle.block_tokens;
    if (seq->scheduled_ns != 0) {
        return; /* a failed pull that is recomputed is counted once */
    }
    seq->scheduled_ns = now;
    bt_metric_add(&e->metrics, BT_HIST_QUEUE, seconds(now - seq->arrived_ns));
    e->metrics.prefix_queries += seq->prompt_count;
    e->metrics.prefix_hits += hit;
    e->metrics.prompt_tokens += seq->prompt_count;
    e->metrics.prompt_local += hit;
    e->totals.prefill_tokens_cached += hit;
}

static void admit_pulls(struct bt_engine *e, int64_t now)
{
    struct bt_seq *seq;
    while ((seq = e->waiting_pull.head) != NULL && slot_free(e) &&
           my_turn(seq, e->waiting.head) && bt_seq_allocate(seq)) {
        count_prompt(seq, now);
        bt_handoff_pull(seq);
    }
}

static bool prefill_ready(struct bt_engine *e)
{
    struct bt_seq *seq = e->waiting.head;
    return seq != NULL && e->prefilling == NULL && slot_free(e) &&
           my_turn(seq, e->waiting_pull.head) && bt_seq_allocate(seq);
}

/* The head of the queue has its blocks: content is there at once, the time it
 * takes is modelled. */
static void start_prefill(struct bt_engine *e, int64_t now)
{
    struct bt_seq *seq = e->waiting.head;
    uint32_t hit = seq->hit_blocks * seq->oracle.block_tokens;
    uint32_t computed = seq->prompt_count - hit;
    bt_seq_move(seq, NULL, BT_SEQ_PREFILLING);
    e->prefilling = seq;
    bt_seq_fill(seq, hit);
    bt_seq_announce(seq, seq->hit_blocks);
    int64_t end = bt_sched_prefill(&e->sched, now, computed, hit);
    count_prompt(seq,
                 e->sched.start_ns > seq->arrived_ns ? e->sched.start_ns : now);
    e->metrics.prompt_computed += computed;
    e->totals.prefill_tokens_computed += computed;
    e->job_fault = bt_faults_fire(&e->faults, BT_PHASE_DURING_PREFILL);
    if (e->job_fault != BT_FAULT_NONE) {
        e->sched.end_ns -= (end - e->sched.start_ns) / 2;
    }
}

static void start_step(struct bt_engine *e, int64_t now)
{
    uint64_t context = 0;
    for (struct bt_seq *seq = e->decoding.head; seq; seq = seq->next) {
        seq->in_step = true;
        context += bt_seq_context(seq);
    }
    bt_metric_add(&e->metrics, BT_HIST_ITERATION_TOKENS, e->decoding.count);
    (void)bt_sched_decode(&e->sched, now, e->decoding.count, context);
}

/* False: nothing can start now. */
static bool start_job(struct bt_engine *e, int64_t now)
{
    bool decode = e->decoding.count > 0;
    /* prefill_ready allocates: ask only when it would be picked. */
    if (bt_sched_pick(&e->sched, true, decode) == BT_SCHED_PREFILL &&
        prefill_ready(e)) {
        start_prefill(e, now);
        return true;
    }
    if (decode) {
        start_step(e, now);
    }
    return decode;
}

static void arm(struct bt_engine *e)
{
    struct itimerspec at = {0};
    if (e->sched.running != BT_SCHED_IDLE) {
        at.it_value.tv_sec = e->sched.end_ns / 1000000000;
        at.it_value.tv_nsec = e->sched.end_ns % 1000000000;
    }
    (void)timerfd_settime(e->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

void bt_engine_advance(struct bt_engine *e)
{
    int64_t now = bt_engine_now();
    for (int turn = 0; turn < TURNS_MAX; turn++) {
        if (bt_sched_due(&e->sched, now)) {
            if (bt_sched_finish(&e->sched) == BT_SCHED_PREFILL) {
                end_prefill(e);
            } else {
                end_step(e);
            }
        } else if (e->sched.running != BT_SCHED_IDLE) {
            admit_pulls(e, now);
            break;
        }
        admit_pulls(e, now);
        if (!start_job(e, now)) {
            bt_sched_rest(&e->sched);
            break;
        }
    }
    arm(e);
}

void bt_engine_submit(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    enum bt_fault_phase phase =
        seq->has_remote ? BT_PHASE_BEFORE_DECODE : BT_PHASE_BEFORE_PREFILL;
    e->totals.requests++;
    bt_seq_move(seq, seq->has_remote ? &e->waiting_pull : &e->waiting,
                BT_SEQ_WAITING);
    enum bt_fault_kind fault = bt_faults_fire(&e->faults, phase);
    if (fault != BT_FAULT_NONE && seq->has_remote && fault != BT_FAULT_HANG) {
        bt_handoff_release(seq);
    }
    (void)bt_engine_inject(seq, fault);
    bt_engine_kick(e);
}
