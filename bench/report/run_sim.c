/* What a child does for one cell: run the simulator, keep what the outputs
 * need, let the records go. Leaves the definitions of all figures but three to
 * bench/sim/summary.c: the longest wait before dispatch, bytes into the busiest
 * NIC over the mean, and how many transfers a failing NIC still got. */
#include "report_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AVOID_LATER 40u

static float seconds(int64_t from_ns, int64_t to_ns)
{
    return to_ns > 0 ? (float)((double)(to_ns - from_ns) / 1e9) : NAN;
}

static float tpot_of(const struct bt_sim_record *r)
{
    if (r->outcome != BT_OUTCOME_OK || r->output_tokens < 2 ||
        r->first_token_ns == 0)
        return NAN;
    return (float)((double)(r->finished_ns - r->first_token_ns) / 1e9 /
                   (double)(r->output_tokens - 1));
}

static bool take_samples(const struct bt_sim_result *from,
                         struct bt_report_result *out)
{
    for (int i = 0; i < BT_REPORT_SAMPLE_COUNT; i++) {
        out->samples[i] = malloc((from->count + 1) * sizeof(float));
        if (!out->samples[i])
            return false;
    }
    for (size_t i = 0; i < from->count; i++) {
        const struct bt_sim_record *r = &from->records[i];
        bool use = r->measured && r->outcome == BT_OUTCOME_OK;

        out->samples[BT_REPORT_TTFT][i] =
            use ? seconds(r->arrival_ns, r->first_token_ns) : NAN;
        out->samples[BT_REPORT_TTST][i] =
            use ? seconds(r->arrival_ns, r->second_token_ns) : NAN;
        out->samples[BT_REPORT_TPOT][i] = use ? tpot_of(r) : NAN;
    }
    out->sample_count = from->count;
    return true;
}

static double wait_max(const struct bt_sim_result *from)
{
    int64_t max = 0;

    for (size_t i = 0; i < from->count; i++) {
        const struct bt_sim_record *r = &from->records[i];
        int64_t until =
            r->dispatched_ns > 0 ? r->dispatched_ns : r->finished_ns;

        if (r->measured && until - r->arrival_ns > max)
            max = until - r->arrival_ns;
    }
    return (double)max / 1e9;
}

static double nic_imbalance(const struct bt_sim_result *from)
{
    double sum = 0, max = 0;
    size_t count = 0;

    for (size_t i = 0; i < from->link_count; i++) {
        const struct bt_sim_link_use *use = &from->links[i];

        if (use->kind != BT_LINK_NIC_IN || use->bytes <= 0)
            continue;
        sum += use->bytes;
        max = use->bytes > max ? use->bytes : max;
        count++;
    }
    return sum > 0 ? max * (double)count / sum : 0;
}

static const struct bt_sim_fault *nic_fault(const struct bt_sim_config *config)
{
    for (size_t i = 0; i < config->fault_count; i++) {
        if (config->faults[i].kind == BT_SIM_NIC)
            return &config->faults[i];
    }
    return NULL;
}

static bool is_transfer(const struct bt_sim_record *r)
{
    return r->transfer_bytes > 0 && r->dispatched_ns > 0;
}

static bool uses(const struct bt_sim_record *r, uint32_t worker)
{
    return r->p == worker || r->d == worker;
}

/* Transfers through the worker after the fault until the moment from which on
 * its share of all later ones is at most half of what it was before; -1: no
 * such moment with at least AVOID_LATER transfers left to judge by. */
static int64_t transfers_to_avoid(const struct bt_sim_config *config,
                                  const struct bt_sim_result *from)
{
    const struct bt_sim_fault *fault = nic_fault(config);
    uint64_t all[2] = {0, 0}, used[2] = {0, 0}; /* before, after the fault */
    int64_t past = 0;

    for (size_t i = 0; fault && i < from->count; i++) {
        const struct bt_sim_record *r = &from->records[i];
        bool after = r->dispatched_ns >= fault->at_ns;

        all[after] += is_transfer(r);
        used[after] += is_transfer(r) && uses(r, fault->worker);
    }
    for (size_t i = 0; fault && i < from->count; i++) {
        const struct bt_sim_record *r = &from->records[i];

        if (!is_transfer(r) || r->dispatched_ns < fault->at_ns)
            continue;
        if (all[0] == 0 || all[1] < AVOID_LATER)
            return -1;
        if ((double)used[1] / (double)all[1] <=
            0.5 * (double)used[0] / (double)all[0])
            return past;
        all[1]--;
        used[1] -= uses(r, fault->worker);
        past += uses(r, fault->worker);
    }
    return -1;
}

/* What was counted on at the prefill worker against what was there. */
static void credit(const struct bt_sim_result *from,
                   struct bt_report_result *out)
{
    double input = 0, predicted = 0, realised = 0, missing = 0;

    for (size_t i = 0; i < from->count; i++) {
        const struct bt_sim_record *r = &from->records[i];

        if (!r->measured || r->prefill_start_ns <= 0)
            continue;
        input += r->input_tokens;
        predicted += r->predicted_overlap;
        realised += r->cached_tokens;
        if (r->predicted_overlap > r->cached_tokens)
            missing += r->predicted_overlap - r->cached_tokens;
    }
    out->predicted_share = input > 0 ? predicted / input : 0;
    out->realised_share = input > 0 ? realised / input : 0;
    out->wrong_credit = predicted > 0 ? missing / predicted : 0;
}

static void digest(const struct bt_sim_config *config,
                   const struct bt_sim_result *from,
                   struct bt_report_result *out)
{
    bt_sim_summarise(from, &config->slo, -1, &out->all);
    for (int i = 0; i < BT_REPORT_CLASSES; i++)
        bt_sim_summarise(from, &config->slo, i, &out->by_class[i]);
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        out->bytes_by_class[i] = (double)from->bytes_by_class[i];
    out->effects_hash = from->effects_hash;
    out->events = from->events;
    out->requests = from->count;
    out->wall_s = from->wall_s;
    out->sim_s = from->sim_s;
    out->check_failures = from->check_failures;
    snprintf(out->first_failure, sizeof(out->first_failure), "%s",
             from->first_failure);
    credit(from, out);
    out->nic_imbalance = nic_imbalance(from);
    out->wait_max_s = wait_max(from);
    out->prefetches = from->counters.prefetches;
    out->prefetches_used = from->counters.prefetches_used;
    out->transfers_to_avoid = transfers_to_avoid(config, from);
}

void bt_report_run_sim(void *arg, const struct bt_sim_config *config,
                       bool keep_samples, struct bt_report_result *out)
{
    char error[BT_REPORT_ERROR_MIN] = "";
    struct bt_sim_result result;

    (void)arg;
    memset(&result, 0, sizeof(result));
    memset(out, 0, sizeof(*out));
    out->status = bt_sim_run(config, &result, error, sizeof(error));
    if (out->status != BT_OK) {
        snprintf(out->error, sizeof(out->error), "%.250s",
                 error[0] ? error : bt_status_text(out->status));
        return;
    }
    digest(config, &result, out);
    if (keep_samples && !take_samples(&result, out)) {
        out->status = BT_NO_MEMORY;
        snprintf(out->error, sizeof(out->error), "no memory for samples");
    }
    if (out->check_failures > 0) {
        out->status = BT_BUG;
        snprintf(out->error, sizeof(out->error), "%.200s (%llu in all)",
                 out->first_failure, (unsigned long long)out->check_failures);
    }
    bt_sim_result_fini(&result);
}

void bt_report_result_fini(struct bt_report_result *result)
{
    for (int i = 0; i < BT_REPORT_SAMPLE_COUNT; i++) {
        free(result->samples[i]);
        result->samples[i] = NULL;
    }
    result->sample_count = 0;
}
