/* P11, the time of a decision: the one claim that a simulation cannot judge.
 * Measured here and now by the benchmark behind `baton bench place`, so that
 * the verdict is of this machine and its present load. */
#include "baton/bench/micro.h"
#include "study_priv.h"
#include <stdlib.h>
#include <string.h>

#define FLEET 64u

const struct study_row STUDY_COST = {
    "P11",
    "a decision on 64 x 64 workers, p99, look-up included, this machine now",
    {0},
    "joint",
    {"10 us"},
    {{STUDY_CLAIM, STUDY_DECISION, {50, 0, 10, false}}}};

static void take(const struct bt_micro_report *report,
                 struct study_outcome *out)
{
    for (size_t i = 0; i < report->speed_count; i++) {
        const struct bt_micro_speed *s = &report->speeds[i];
        struct bt_stat_interval *x = &out->difference.relative;

        if (s->prefill != FLEET || s->decode != FLEET)
            continue;
        x->mean = x->low = x->high = s->p99_ns / 1e3;
        out->difference.known = true;
    }
}

enum bt_status study_cost(struct study_outcome *out)
{
    struct bt_micro_report *report = calloc(1, sizeof(*report));
    enum bt_status status;

    memset(out, 0, sizeof(*out));
    out->rival = STUDY_COST.rivals[0];
    out->measure = study_measure_name(STUDY_DECISION);
    if (!report)
        return BT_NO_MEMORY;
    status = bt_micro_place(1, 64, report);
    if (status == BT_OK)
        take(report, out);
    free(report);
    out->verdict =
        bt_report_judge_claim(&STUDY_COST.checks[0].claim, &out->difference);
    return status;
}
