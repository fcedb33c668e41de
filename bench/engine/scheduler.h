/* When the emulated device is busy: one job at a time, a prefill or a decode
 * step. Pure: time comes in, durations come from the compute model.
 *
 * Continuous batching: sequences join between steps. With both kinds of work
 * ready after idleness a prefill goes first; then they alternate, so that
 * neither starves. Jobs follow each other without a gap even when the caller
 * wakes up late, up to BT_SCHED_LAG_MAX_NS.
 *
 *   IDLE -> PREFILL -> IDLE        times: cost.h, times the slow factor
 *   IDLE -> DECODE  -> IDLE
 */
#ifndef BATON_BENCH_ENGINE_SCHEDULER_H
#define BATON_BENCH_ENGINE_SCHEDULER_H

#include "baton/planner/cost.h"
#include <stdbool.h>
#include <stdint.h>

#define BT_SCHED_LAG_MAX_NS (50 * 1000000LL)

enum bt_sched_kind { BT_SCHED_IDLE, BT_SCHED_PREFILL, BT_SCHED_DECODE };

struct bt_sched {
    struct bt_compute_model model;
    double slow; /* >= 0; 1 = as modelled */
    enum bt_sched_kind running, last;
    int64_t start_ns, end_ns; /* of the running job, else of the last one */
    bool chained; /* the last job ended just now: start where it ended */
    int64_t busy_prefill_ns, busy_decode_ns;
    uint64_t prefills, steps;
};

void bt_sched_init(struct bt_sched *s, const struct bt_compute_model *model);
/* What to start now, given what is ready. IDLE while a job runs. */
enum bt_sched_kind bt_sched_pick(const struct bt_sched *s, bool prefill_ready,
                                 bool decode_ready);
/* Start it; returns its end. */
int64_t bt_sched_prefill(struct bt_sched *s, int64_t now_ns,
                         uint64_t new_tokens, uint64_t cached_tokens);
int64_t bt_sched_decode(struct bt_sched *s, int64_t now_ns, uint64_t batch,
                        uint64_t context_tokens);
/* True when the running job's end has come; the caller then acts on it and
 * calls bt_sched_finish. */
bool bt_sched_due(const struct bt_sched *s, int64_t now_ns);
enum bt_sched_kind bt_sched_finish(struct bt_sched *s);
/* The prefill's request has gone: the device is free at once. */
void bt_sched_abort(struct bt_sched *s, int64_t now_ns);
/* Nothing was ready: the next job starts when it is asked for. */
void bt_sched_rest(struct bt_sched *s);

#endif
