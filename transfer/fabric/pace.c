/* Lanes: when a paced link carries the next chunk, and of which flow. A rule's
 * lane is shared by all rails to the peer of that name, whatever sink they
 * belong to. Fairness is round robin over chunks of one size, between the pulls
 * of a flow that of core/jobs.c; the clock is core/pacing.c. Leaves the gets to
 * kv_get.c. Invariant: a flow is in at most one lane, once. */
#include "fabric.h"

#include <stdlib.h>
#include <string.h>

#define CHUNKS_PER_PUMP 1024

static void on_wake(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    bt_lane_pump(w->data);
}

static void lane_init(struct bt_lane *lane, struct bt_fabric *fabric)
{
    memset(lane, 0, sizeof(*lane));
    lane->fabric = fabric;
    TAILQ_INIT(&lane->flows);
    lane->chunk_max = fabric->chunk_bytes;
    ev_timer_init(&lane->wake, on_wake, 0, 0);
    lane->wake.data = lane;
    memcpy(lane->link_class, "default", sizeof("default"));
}

void bt_lane_fini(struct bt_lane *lane)
{
    ev_timer_stop(lane->fabric->loop, &lane->wake);
}

void bt_lane_add(struct bt_lane *lane, struct bt_flow *flow)
{
    TAILQ_INSERT_TAIL(&lane->flows, flow, entry);
    flow->queued = true;
    bt_lane_pump(lane);
}

void bt_lane_remove(struct bt_lane *lane, struct bt_flow *flow)
{
    if (!flow->queued)
        return;
    TAILQ_REMOVE(&lane->flows, flow, entry);
    flow->queued = false;
    if (TAILQ_EMPTY(&lane->flows))
        bt_pace_idle(&lane->pace);
}

struct turn {
    int64_t now_ns, wake_ns;
    bool blocked; /* some flow waits for a landing get */
    uint32_t bytes;
};

static struct bt_flow *next_flow(struct bt_lane *lane, struct turn *t)
{
    struct bt_flow *flow;

    t->blocked = false;
    TAILQ_FOREACH(flow, &lane->flows, entry)
    {
        t->bytes = flow->peek(flow, t->now_ns);
        if (t->bytes > 0)
            return flow;
        t->blocked = true;
    }
    return NULL;
}

/* May the link carry it by now? Books it if so. */
static bool admitted(struct bt_lane *lane, const struct bt_flow *flow,
                     struct turn *t)
{
    int64_t due;

    if (lane->pace.rate_bytes_per_s == 0)
        return true;
    bt_pace_begin(&lane->pace, flow->gate_ns, t->now_ns);
    due = bt_pace_due(&lane->pace, t->bytes);
    if (due > t->now_ns) {
        if (due < t->wake_ns)
            t->wake_ns = due;
        return false;
    }
    bt_pace_take(&lane->pace, t->bytes);
    return true;
}

void bt_lane_pump(struct bt_lane *lane)
{
    struct turn t = {.now_ns = bt_fabric_now(), .wake_ns = INT64_MAX};
    struct ev_loop *loop = lane->fabric->loop;
    struct bt_flow *flow = NULL;
    int budget = CHUNKS_PER_PUMP;

    for (; budget > 0; budget--) {
        flow = next_flow(lane, &t);
        if (flow == NULL || !admitted(lane, flow, &t))
            break;
        TAILQ_REMOVE(&lane->flows, flow, entry);
        flow->queued = flow->issue(flow, t.now_ns);
        if (flow->queued)
            TAILQ_INSERT_TAIL(&lane->flows, flow, entry);
    }
    if (budget == 0)
        t.wake_ns = t.now_ns;
    if (budget > 0 && flow == NULL && !t.blocked)
        bt_pace_idle(&lane->pace);
    ev_timer_stop(loop, &lane->wake);
    if (t.wake_ns == INT64_MAX)
        return;
    ev_timer_set(&lane->wake, (double)(t.wake_ns - t.now_ns) / 1e9, 0);
    ev_timer_start(loop, &lane->wake);
}

struct bt_lane *bt_lane_find(struct bt_fabric *fabric, const char *peer)
{
    for (size_t i = 0; i < fabric->rule_count; i++) {
        if (strcmp(fabric->rules[i]->peer, peer) == 0)
            return fabric->rules[i];
    }
    return NULL;
}

enum bt_status bt_fabric_pace(struct bt_fabric *fabric, const char *peer,
                              uint64_t rate_bytes_per_s, int64_t setup_ns,
                              const char *link_class)
{
    struct bt_lane *lane;
    enum bt_status status;

    if (link_class == NULL)
        link_class = "default";
    if (strlen(peer) >= BT_KV_NAME_MAX ||
        strlen(link_class) >= BT_FABRIC_CLASS_MAX || setup_ns < 0)
        return BT_INVALID;
    if (bt_lane_find(fabric, peer) != NULL)
        return BT_DUPLICATE;
    if (fabric->rule_count == BT_FABRIC_RULES_MAX)
        return BT_LIMIT;
    status = bt_meter_add(fabric, link_class);
    if (status != BT_OK)
        return status;
    lane = malloc(sizeof(*lane));
    if (lane == NULL)
        return BT_NO_MEMORY;
    lane_init(lane, fabric);
    bt_pace_init(&lane->pace, rate_bytes_per_s);
    lane->chunk_max = bt_pace_chunk(rate_bytes_per_s, fabric->chunk_bytes);
    lane->setup_ns = setup_ns;
    memcpy(lane->peer, peer, strlen(peer) + 1);
    memcpy(lane->link_class, link_class, strlen(link_class) + 1);
    fabric->rules[fabric->rule_count++] = lane;
    return BT_OK;
}
