/* Which job of a lane goes next: in turn, operation by operation, unless one is
 * urgent. Urgent: bytes left / (time left * rate of its open lanes) has reached
 * promote_percent; among urgent ones the least slack first, slack being time
 * left - bytes left / rate (cost-models.md section 13). Both are kept as points
 * in time, so the passing of time alone changes nothing but the comparison with
 * now, and a lane looks through its ring only when some job of it may be
 * urgent (job_lane.promote_ns). No known rate: never urgent. */
#include "jobs_core.h"

#define NS_PER_S 1000000000ull
#define NEED_MAX 30000000000000000ll /* about a year */

/* bytes / rate. Both are halved until rate * 10^9 fits: 33 bits stay, far more
 * than any estimate is worth. */
static int64_t need_ns(uint64_t bytes, uint64_t rate)
{
    uint64_t ns;

    while (rate > 1ull << 33) {
        rate >>= 1;
        bytes = bytes / 2 + bytes % 2;
    }
    if (bytes / rate >= (uint64_t)NEED_MAX / NS_PER_S)
        return NEED_MAX;
    ns = bytes / rate * NS_PER_S + bytes % rate * NS_PER_S / rate;
    return (int64_t)ns;
}

static int64_t before(int64_t time_ns, int64_t span_ns)
{
    return time_ns < INT64_MIN + span_ns ? INT64_MIN : time_ns - span_ns;
}

static uint64_t rate_of(const struct bt_jobs *jobs, const struct job *job)
{
    uint64_t rate = 0;

    for (uint32_t k = 0; k < job->use_count; k++) {
        struct bt_lane_id id = job->uses[k].lane;
        uint64_t more;

        if (!bt_job_lane_live(jobs, id))
            continue;
        more = jobs->lanes[id.index].spec.rate_bytes_per_s;
        rate = more > UINT64_MAX - rate ? UINT64_MAX : rate + more;
    }
    return rate;
}

void bt_job_urgency(struct bt_jobs *jobs, struct job *job)
{
    uint64_t rate;
    int64_t need;

    if (job->deadline_ns == JOB_NEVER)
        return;
    rate = rate_of(jobs, job);
    job->promote_ns = job->start_by_ns = JOB_NEVER;
    if (rate == 0)
        return;
    need = need_ns(job->missing, rate);
    job->start_by_ns = before(job->deadline_ns, need);
    /* need / (deadline - t) = percent / 100, solved for t */
    job->promote_ns =
        before(job->deadline_ns, need * 100 / jobs->config.promote_percent);
    for (uint32_t k = 0; k < job->use_count; k++) {
        struct job_lane *lane = &jobs->lanes[job->uses[k].lane.index];

        if (job->uses[k].next != JOB_NONE && job->promote_ns < lane->promote_ns)
            lane->promote_ns = job->promote_ns;
    }
}

static const struct job *job_at(const struct bt_jobs *jobs, uint32_t node)
{
    return &jobs->jobs[node / BT_JOB_LANES_MAX];
}

static bool less_slack(const struct job *a, const struct job *b)
{
    if (a->start_by_ns != b->start_by_ns)
        return a->start_by_ns < b->start_by_ns;
    return a->serial < b->serial;
}

static uint32_t most_urgent(const struct bt_jobs *jobs,
                            const struct job_lane *lane, int64_t now_ns,
                            struct job_range *range_out, int64_t *promote_out)
{
    struct bt_lane_id id = {(uint32_t)(lane - jobs->lanes), lane->generation};
    uint32_t node = lane->head, best = JOB_NONE;
    struct job_range range;

    *promote_out = JOB_NEVER;
    do {
        const struct job *job = job_at(jobs, node);

        if (job->promote_ns < *promote_out)
            *promote_out = job->promote_ns;
        if (job->promote_ns <= now_ns &&
            (best == JOB_NONE || less_slack(job, job_at(jobs, best))) &&
            bt_job_source(jobs, job, id, &range)) {
            best = node;
            *range_out = range;
        }
        node = job->uses[node % BT_JOB_LANES_MAX].next;
    } while (node != lane->head);
    return best;
}

uint32_t bt_job_pick(const struct bt_jobs *jobs, const struct job_lane *lane,
                     int64_t now_ns, struct job_range *range_out,
                     int64_t *promote_out)
{
    struct bt_lane_id id = {(uint32_t)(lane - jobs->lanes), lane->generation};
    uint32_t node = lane->head;

    *promote_out = lane->promote_ns;
    if (node == JOB_NONE)
        return JOB_NONE;
    if (lane->promote_ns <= now_ns) {
        node = most_urgent(jobs, lane, now_ns, range_out, promote_out);
        if (node != JOB_NONE)
            return node;
        node = lane->head;
    }
    do {
        const struct job *job = job_at(jobs, node);

        if (bt_job_source(jobs, job, id, range_out))
            return node;
        node = job->uses[node % BT_JOB_LANES_MAX].next;
    } while (node != lane->head);
    return JOB_NONE;
}
