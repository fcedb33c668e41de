/* Pulls on the agent's thread: a slot filled by a caller becomes a pull of the
 * region's sink, its end becomes an event with what was predicted beside what
 * came. A slot is free again once its event is in the ring.
 */
#include "agent_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bt_agent_slot_move(struct pull_slot *slot, enum slot_state state)
{
    static const unsigned int next[] = {
#define X(from, name, allowed, waits) allowed,
        BT_AGENT_PULL_STATES(X)
#undef X
    };

    assert((next[slot->state] >> state & 1u) != 0);
    slot->state = state;
}

void bt_agent_slot_free(struct bt_agent *agent, struct pull_slot *slot)
{
    free(slot->remote);
    slot->remote = NULL;
    pthread_mutex_lock(&agent->lock);
    bt_agent_slot_move(slot, SLOT_FREE);
    slot->generation++;
    slot->next_free = agent->free_pulls;
    agent->free_pulls = slot;
    agent->stats.live_pulls--;
    pthread_mutex_unlock(&agent->lock);
}

static void on_pushed(struct bt_agent *agent, struct waiting *waiting)
{
    bt_agent_slot_free(agent, (struct pull_slot *)(void *)waiting);
}

static void count_end(struct bt_agent *agent,
                      const struct bt_agent_event *event)
{
    struct bt_agent_stats *stats = &agent->stats;

    stats->pulls++;
    stats->pulls_failed += event->status != BT_OK;
    stats->checksum_failures += event->status == BT_CHECKSUM;
    stats->bytes += event->bytes;
    stats->descriptors += event->descriptors;
    stats->retries += event->retries;
}

/* The event is filled but for what the agent knows by itself. */
static void slot_end(struct pull_slot *slot, struct bt_agent_event *event)
{
    struct bt_agent *agent = slot->agent;
    int64_t now_ns = bt_agent_now();

    event->kind = BT_AGENT_PULLED;
    event->id = bt_agent_id(slot->index, slot->generation);
    event->owner = slot->spec.owner;
    event->region = slot->spec.region;
    event->estimate_ns = slot->spec.estimate_ns;
    memcpy(event->request_id, slot->request_id, sizeof(slot->request_id));
    pthread_mutex_lock(&agent->lock);
    bt_agent_slot_move(slot, SLOT_ENDED);
    if (slot->cancel_queued)
        TAILQ_REMOVE(&agent->cancels, slot, cancel_entry);
    slot->cancel_queued = false;
    bt_paths_end(&agent->paths, &slot->flow, event, now_ns);
    count_end(agent, event);
    agent->stats.peers = agent->paths.count;
    pthread_mutex_unlock(&agent->lock);
    bt_agent_refresh(agent);
    slot->waiting.pushed = on_pushed;
    bt_agent_wait(agent, &slot->waiting);
}

static void on_pulled(void *arg, const struct bt_kv_pull_end *end)
{
    struct pull_slot *slot = arg;
    struct bt_agent_event *event = &slot->waiting.event;

    slot->pull = NULL;
    memset(event, 0, sizeof(*event));
    event->status = end->status;
    event->bytes = end->bytes;
    event->descriptors = end->descriptors;
    event->retries = end->retries;
    event->setup_ns = end->setup_ns;
    event->queued_ns = end->queued_ns;
    event->moved_ns = end->moved_ns;
    event->duration_ns = end->duration_ns;
    memcpy(event->rail_bytes, end->rail_bytes, sizeof(event->rail_bytes));
    snprintf(event->peer, sizeof(event->peer), "%s", end->peer);
    snprintf(event->detail, sizeof(event->detail), "%s", end->detail);
    slot_end(slot, event);
    bt_agent_flush(slot->agent);
}

static void slot_refuse(struct pull_slot *slot, enum bt_status status)
{
    struct bt_agent_event *event = &slot->waiting.event;

    memset(event, 0, sizeof(*event));
    event->status = status;
    snprintf(event->detail, sizeof(event->detail), "not started: %s",
             bt_status_text(status));
    slot_end(slot, event);
}

static enum bt_status fabric_pull(struct pull_slot *slot, int64_t left_ns)
{
    struct agent_region *region = &slot->agent->regions[slot->spec.region];
    const struct bt_kv_pull_spec spec = {
        .host = slot->host,
        .port = slot->spec.port,
        .request_id = slot->request_id,
        .remote = slot->remote,
        .local = slot->local,
        .count = slot->spec.count,
        .deadline_ns = left_ns,
        .region = slot->remote_region,
    };

    return bt_kv_pull_start(region->sink, &spec, on_pulled, slot, &slot->pull);
}

/* As after a cancel under way: the source may have its blocks back. */
static void tell_source(const struct pull_slot *slot)
{
    const struct agent_region *region =
        &slot->agent->regions[slot->spec.region];
    const struct bt_kv_note note = {
        .host = slot->host,
        .port = slot->spec.port,
        .region = slot->remote_region,
        .request_id = slot->request_id,
        .release = true,
    };

    bt_kv_sink_note(region->sink, &note);
}

void bt_agent_pull_begin(struct bt_agent *agent, struct pull_slot *slot)
{
    const struct agent_region *region = &agent->regions[slot->spec.region];
    int64_t now_ns = bt_agent_now();
    int64_t left_ns = slot->called_ns + slot->spec.deadline_ns - now_ns;
    enum bt_status status = BT_OK;

    pthread_mutex_lock(&agent->lock);
    bt_agent_slot_move(slot, SLOT_RUNNING);
    if (slot->cancelled)
        status = BT_CANCELLED;
    bt_paths_begin(&agent->paths, &slot->flow, &slot->spec, slot->remote_region,
                   region->config.layout.block_bytes, now_ns);
    pthread_mutex_unlock(&agent->lock);
    if (status == BT_CANCELLED)
        tell_source(slot);
    if (status == BT_OK && left_ns <= 0)
        status = BT_TIMEOUT;
    if (status == BT_OK)
        status = fabric_pull(slot, left_ns);
    if (status != BT_OK)
        slot_refuse(slot, status);
}

/* Those whose message has not been read yet end when it is. */
void bt_agent_pull_cancel(struct bt_agent *agent)
{
    struct pull_slot *slot;
    struct bt_kv_pull *pull;

    for (;;) {
        pthread_mutex_lock(&agent->lock);
        slot = TAILQ_FIRST(&agent->cancels);
        if (slot != NULL) {
            TAILQ_REMOVE(&agent->cancels, slot, cancel_entry);
            slot->cancel_queued = false;
        }
        pthread_mutex_unlock(&agent->lock);
        if (slot == NULL)
            return;
        pull = slot->pull;
        if (pull != NULL)
            bt_kv_pull_cancel(pull);
    }
}
