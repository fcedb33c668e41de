/* Lanes and their rings: which jobs have something to send over which lane.
 * Whose turn it is, is decided in jobs_order.c. Invariants: a job is in the
 * ring of each of its open lanes exactly while it is started, not ended and has
 * bytes to send; a lane's slot is used again only when it is closed and nothing
 * of it is out. */
#include "jobs_core.h"

#include <assert.h>

static struct job_lane *lane_get(const struct bt_jobs *jobs,
                                 struct bt_lane_id id)
{
    struct job_lane *lane;

    if (id.index >= jobs->config.lanes_max)
        return NULL;
    lane = &jobs->lanes[id.index];
    if (!lane->is_used || lane->generation != id.generation)
        return NULL;
    return lane;
}

bool bt_job_lane_live(const struct bt_jobs *jobs, struct bt_lane_id id)
{
    const struct job_lane *lane = lane_get(jobs, id);

    return lane != NULL && lane->is_open;
}

bool bt_job_has_other(const struct bt_jobs *jobs, const struct job *job,
                      struct bt_lane_id lane)
{
    for (uint32_t k = 0; k < job->use_count; k++) {
        const struct bt_lane_id *id = &job->uses[k].lane;

        if (id->index != lane.index && bt_job_lane_live(jobs, *id))
            return true;
    }
    return false;
}

/* ---- rings ---- */

static struct job_use *node_at(struct bt_jobs *jobs, uint32_t node)
{
    return &jobs->jobs[node / BT_JOB_LANES_MAX].uses[node % BT_JOB_LANES_MAX];
}

/* Last in turn. */
static void link_node(struct bt_jobs *jobs, struct job_lane *lane,
                      uint32_t node)
{
    struct job_use *use = node_at(jobs, node), *head;

    if (lane->head == JOB_NONE) {
        use->prev = use->next = node;
        lane->head = node;
        return;
    }
    head = node_at(jobs, lane->head);
    use->prev = head->prev;
    use->next = lane->head;
    node_at(jobs, head->prev)->next = node;
    head->prev = node;
}

static void unlink_node(struct bt_jobs *jobs, struct job_lane *lane,
                        uint32_t node)
{
    struct job_use *use = node_at(jobs, node);

    if (use->next == node) {
        lane->head = JOB_NONE;
    } else {
        node_at(jobs, use->prev)->next = use->next;
        node_at(jobs, use->next)->prev = use->prev;
        if (lane->head == node)
            lane->head = use->next;
    }
    use->prev = use->next = JOB_NONE;
}

void bt_job_relink(struct bt_jobs *jobs, struct job *job)
{
    uint32_t first = (uint32_t)(job - jobs->jobs) * BT_JOB_LANES_MAX;
    bool wants = job->to_send > 0 &&
                 (job->state == JOB_OPEN || job->state == JOB_RUNNING);

    for (uint32_t k = 0; k < job->use_count; k++) {
        struct job_use *use = &job->uses[k];
        struct job_lane *lane = &jobs->lanes[use->lane.index];
        bool is_in = use->next != JOB_NONE;

        if (wants && !is_in && bt_job_lane_live(jobs, use->lane))
            link_node(jobs, lane, first + k);
        else if (!wants && is_in)
            unlink_node(jobs, lane, first + k);
    }
    if (wants)
        bt_job_urgency(jobs, job);
}

/* ---- lanes ---- */

enum bt_status bt_jobs_lane_open(struct bt_jobs *jobs,
                                 const struct bt_lane_spec *spec,
                                 struct bt_lane_id *out)
{
    uint32_t index = jobs->lane_free;
    struct job_lane *lane;

    bt_job_settle(jobs);
    if (spec->window_bytes == 0 || spec->window_ops == 0 ||
        spec->op_bytes == 0 || spec->op_pieces == 0 ||
        spec->op_pieces > BT_JOB_PIECES_MAX)
        return BT_INVALID;
    if (index == JOB_NONE)
        return BT_LIMIT;
    lane = &jobs->lanes[index];
    jobs->lane_free = lane->next;
    *lane = (struct job_lane){
        .spec = *spec,
        .generation = lane->generation,
        .is_open = true,
        .is_used = true,
        .head = JOB_NONE,
        .promote_ns = JOB_NEVER,
        .next = JOB_NONE,
    };
    *out = (struct bt_lane_id){index, lane->generation};
    return BT_OK;
}

enum bt_status bt_jobs_lane_window(struct bt_jobs *jobs, struct bt_lane_id id,
                                   uint64_t window_bytes, uint32_t op_bytes)
{
    bt_job_settle(jobs);
    if (window_bytes == 0 || op_bytes == 0)
        return BT_INVALID;
    if (!bt_job_lane_live(jobs, id))
        return BT_STALE;
    jobs->lanes[id.index].spec.window_bytes = window_bytes;
    jobs->lanes[id.index].spec.op_bytes = op_bytes;
    return BT_OK;
}

void bt_jobs_lane_rate(struct bt_jobs *jobs, struct bt_lane_id id,
                       uint64_t rate_bytes_per_s)
{
    struct job_lane *lane;
    uint32_t node;

    bt_job_settle(jobs);
    lane = lane_get(jobs, id);
    if (lane == NULL || lane->spec.rate_bytes_per_s == rate_bytes_per_s)
        return;
    lane->spec.rate_bytes_per_s = rate_bytes_per_s;
    node = lane->head;
    if (node == JOB_NONE)
        return;
    do {
        bt_job_urgency(jobs, &jobs->jobs[node / BT_JOB_LANES_MAX]);
        node = node_at(jobs, node)->next;
    } while (node != lane->head);
}

static void lane_retire(struct bt_jobs *jobs, struct job_lane *lane)
{
    if (lane->is_open || lane->ops_out > 0)
        return;
    lane->is_used = false;
    if (++lane->generation == 0)
        lane->generation = 1;
    lane->next = jobs->lane_free;
    jobs->lane_free = (uint32_t)(lane - jobs->lanes);
}

void bt_jobs_lane_close(struct bt_jobs *jobs, struct bt_lane_id id)
{
    struct job_lane *lane;

    bt_job_settle(jobs);
    lane = lane_get(jobs, id);
    if (lane == NULL || !lane->is_open)
        return;
    lane->is_open = false;
    while (lane->head != JOB_NONE) {
        struct job *job = &jobs->jobs[lane->head / BT_JOB_LANES_MAX];

        unlink_node(jobs, lane, lane->head);
        bt_job_urgency(jobs, job);
    }
    lane_retire(jobs, lane);
}

void bt_job_lane_ended(struct bt_jobs *jobs, struct job_lane *lane,
                       uint64_t bytes)
{
    assert(lane->ops_out > 0 && lane->bytes_out >= bytes);
    lane->ops_out--;
    lane->bytes_out -= bytes;
    lane_retire(jobs, lane);
}

/* ---- lanes of a job ---- */

/* Where it goes: the first closed one's place, else at the end. */
static uint32_t use_place(const struct bt_jobs *jobs, const struct job *job)
{
    for (uint32_t k = 0; k < job->use_count; k++) {
        if (!bt_job_lane_live(jobs, job->uses[k].lane))
            return k;
    }
    return job->use_count;
}

enum bt_status bt_jobs_use(struct bt_jobs *jobs, struct bt_job_id id,
                           struct bt_lane_id lane)
{
    struct job *job;
    uint32_t place;

    bt_job_settle(jobs);
    job = bt_job_get(jobs, id);
    if (job == NULL || job->state == JOB_DRAINING || job->state == JOB_ENDED ||
        !bt_job_lane_live(jobs, lane))
        return BT_STALE;
    for (uint32_t k = 0; k < job->use_count; k++) {
        if (job->uses[k].lane.index == lane.index &&
            job->uses[k].lane.generation == lane.generation)
            return BT_EXISTS;
    }
    place = use_place(jobs, job);
    if (place == BT_JOB_LANES_MAX)
        return BT_LIMIT;
    if (place == job->use_count)
        job->use_count++;
    job->uses[place] = (struct job_use){lane, JOB_NONE, JOB_NONE};
    bt_job_relink(jobs, job);
    return BT_OK;
}
