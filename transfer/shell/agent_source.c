/* The source's side: who may read which blocks. A region is LEASED (the lease
 * table decides), OPEN (anyone who was let in), or KEYED (its owner decides,
 * by an event and an answer).
 *
 * Invariants: blocks under a lease are given back by one event, after their
 * last reader; an ask's slot is free again when it was answered, its reader
 * has left, and both events are in the ring.
 */
#include "agent_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- leases ---- */

enum bt_status bt_agent_leases_init(struct agent_region *region)
{
    const struct bt_agent_config *c = &region->agent->config;
    const struct bt_leases_config config = {
        .leases_max = c->leases_max,
        .blocks_max = c->lease_blocks_max,
        .expired_max = BT_AGENT_EXPIRED_MAX,
    };
    size_t bytes = bt_leases_bytes(&config);
    struct bt_arena arena;

    region->lease_memory = calloc(1, bytes);
    region->scratch = calloc(c->lease_blocks_max, sizeof(*region->scratch));
    if (region->lease_memory == NULL || region->scratch == NULL) {
        bt_agent_leases_fini(region);
        return BT_NO_MEMORY;
    }
    bt_arena_init(&arena, region->lease_memory, bytes);
    enum bt_status status = bt_leases_init(&arena, &config, &region->leases);
    if (status != BT_OK)
        bt_agent_leases_fini(region);
    return status;
}

void bt_agent_leases_fini(struct agent_region *region)
{
    free(region->lease_memory);
    free(region->scratch);
    region->lease_memory = NULL;
    region->scratch = NULL;
    region->leases = NULL;
}

/* The lock is held. */
static int64_t lease_now(const struct agent_region *region)
{
    return region->expire ? INT64_MAX : bt_agent_now();
}

static void over_event(struct agent_region *region,
                       const struct bt_lease_over *over)
{
    struct bt_agent_event event = {.region = region->index,
                                   .owner = over->owner};

    switch (over->why) {
    case BT_LEASE_RELEASED:
        event.kind = BT_AGENT_RELEASED;
        break;
    case BT_LEASE_EXPIRES:
        event.kind = BT_AGENT_EXPIRED;
        break;
    case BT_LEASE_WITHDRAWN:
        event.kind = BT_AGENT_WITHDRAWN;
        break;
    }
    snprintf(event.request_id, sizeof(event.request_id), "%s", over->id);
    (void)bt_agent_ring_push(&region->agent->events, &event); /* has room */
}

/* One lease that is over, if there is one. The lock is held. */
static bool reap_one(struct agent_region *region, struct bt_lease_over *over)
{
    struct bt_agent_stats *stats = &region->agent->stats;

    if (!bt_lease_reap(region->leases, lease_now(region), over)) {
        region->expire = false;
        return false;
    }
    stats->released += over->why == BT_LEASE_RELEASED;
    stats->expired += over->why == BT_LEASE_EXPIRES;
    return true;
}

void bt_agent_leases_reap(struct agent_region *region)
{
    struct bt_agent *agent = region->agent;
    struct bt_lease_over over;
    bool more = region->leases != NULL;

    while (more && bt_agent_ring_room(&agent->events) > 0) {
        pthread_mutex_lock(&agent->lock);
        more = reap_one(region, &over);
        pthread_mutex_unlock(&agent->lock);
        if (more)
            over_event(region, &over);
    }
}

static enum bt_status lease_read(struct agent_region *region,
                                 const struct bt_kv_ask *ask)
{
    pthread_mutex_lock(&region->agent->lock);
    enum bt_status status =
        bt_lease_read(region->leases, ask->request_id, ask->refs, ask->count,
                      lease_now(region));
    pthread_mutex_unlock(&region->agent->lock);
    return status;
}

static void on_released(void *arg, const char *request_id)
{
    struct agent_region *region = arg;

    if (region->leases == NULL)
        return;
    pthread_mutex_lock(&region->agent->lock);
    (void)bt_lease_release(region->leases, request_id);
    pthread_mutex_unlock(&region->agent->lock);
    bt_agent_flush(region->agent);
}

static void on_renewed(void *arg, const char *request_id)
{
    struct agent_region *region = arg;

    if (region->leases == NULL)
        return;
    pthread_mutex_lock(&region->agent->lock);
    (void)bt_lease_renew(region->leases, request_id,
                         bt_agent_now() + region->lease_ns / 3 * 2);
    pthread_mutex_unlock(&region->agent->lock);
}

/* ---- asks ---- */

static struct ask_slot *ask_take(struct agent_region *region,
                                 const struct bt_kv_ask *ask)
{
    struct bt_agent *agent = region->agent;
    struct ask_slot *slot = NULL;
    size_t each = sizeof(uint64_t) + sizeof(uint32_t);
    uint64_t *refs = malloc(ask->count * each);

    if (refs == NULL)
        return NULL;
    memcpy(refs, ask->refs, ask->count * sizeof(refs[0]));
    pthread_mutex_lock(&agent->lock);
    for (uint32_t i = 0; i < BT_AGENT_ASKS_MAX && slot == NULL; i++)
        slot = agent->asks[i].used ? NULL : &agent->asks[i];
    if (slot != NULL) {
        slot->used = true;
        slot->answered = false;
        slot->lefts = 0;
        slot->region = region;
        slot->ticket = ask->ticket;
        slot->count = (uint32_t)ask->count;
        slot->refs = refs;
        slot->blocks = (uint32_t *)(void *)(refs + ask->count);
    }
    pthread_mutex_unlock(&agent->lock);
    if (slot == NULL)
        free(refs);
    return slot;
}

static void ask_free(struct bt_agent *agent, struct ask_slot *slot)
{
    uint64_t *refs = slot->refs;

    pthread_mutex_lock(&agent->lock);
    slot->used = false;
    slot->refs = NULL;
    slot->blocks = NULL;
    slot->generation++;
    pthread_mutex_unlock(&agent->lock);
    free(refs);
}

/* ASKED is in the ring: now it is the owner's turn. */
static void on_asked(struct bt_agent *agent, struct waiting *waiting)
{
    (void)agent;
    (void)waiting;
}

static void on_left_told(struct bt_agent *agent, struct waiting *waiting)
{
    ask_free(agent, (struct ask_slot *)(void *)waiting);
}

static void ask_event(struct ask_slot *slot, enum bt_agent_event_kind kind,
                      const char *request_id, const char *peer)
{
    struct bt_agent_event *event = &slot->waiting.event;

    memset(event, 0, sizeof(*event));
    event->kind = kind;
    event->id = bt_agent_id(slot->index, slot->generation);
    event->region = slot->region->index;
    event->refs = slot->refs;
    event->ref_count = slot->count;
    snprintf(event->request_id, sizeof(event->request_id), "%s", request_id);
    snprintf(event->peer, sizeof(event->peer), "%s", peer);
    slot->waiting.pushed = kind == BT_AGENT_ASKED ? on_asked : on_left_told;
    bt_agent_wait(slot->region->agent, &slot->waiting);
}

static enum bt_status ask_owner(struct agent_region *region,
                                const struct bt_kv_ask *ask)
{
    struct ask_slot *slot = ask_take(region, ask);

    if (slot == NULL)
        return BT_OVERLOADED;
    ask_event(slot, BT_AGENT_ASKED, ask->request_id, ask->sink);
    bt_agent_flush(region->agent);
    return BT_AGAIN;
}

static void ask_left(struct ask_slot *slot)
{
    char request_id[BT_KV_REQUEST_MAX + 1];

    slot->accepted = false;
    memcpy(request_id, slot->waiting.event.request_id, sizeof(request_id));
    ask_event(slot, BT_AGENT_LEFT, request_id, "");
}

static void answer_send(struct bt_agent *agent, struct ask_slot *slot)
{
    enum bt_status status =
        bt_kv_source_answer(slot->region->source, slot->ticket, slot->status,
                            slot->blocks, slot->count);

    if (slot->status != BT_OK)
        ask_free(agent, slot); /* the owner holds nothing for it */
    else if (status != BT_OK)
        ask_left(slot);
    else
        slot->accepted = true;
}

void bt_agent_answers_send(struct bt_agent *agent)
{
    struct ask_slot *slot;

    do {
        pthread_mutex_lock(&agent->lock);
        slot = TAILQ_FIRST(&agent->answers);
        if (slot != NULL)
            TAILQ_REMOVE(&agent->answers, slot, answer_entry);
        pthread_mutex_unlock(&agent->lock);
        if (slot != NULL)
            answer_send(agent, slot);
    } while (slot != NULL);
}

void bt_agent_asks_fini(struct bt_agent *agent)
{
    for (uint32_t i = 0; i < BT_AGENT_ASKS_MAX; i++)
        free(agent->asks[i].refs);
}

/* ---- the source's call-backs ---- */

static enum bt_status on_check(void *arg, const struct bt_kv_ask *ask)
{
    struct agent_region *region = arg;
    enum bt_status status = BT_OK;

    switch (region->config.serve) {
    case BT_AGENT_SERVE_LEASED:
        status = lease_read(region, ask);
        break;
    case BT_AGENT_SERVE_OPEN:
        break;
    case BT_AGENT_SERVE_KEYED:
        status = ask_owner(region, ask);
        break;
    }
    return status;
}

static bool is_reader(const struct ask_slot *slot,
                      const struct agent_region *region, const char *id)
{
    return slot->used && slot->accepted && slot->region == region &&
           strcmp(slot->waiting.event.request_id, id) == 0;
}

/* The source names who left by request id only: readers that share one are let
 * go together, when the last of them has left. */
static void reader_left(struct agent_region *region, const char *id)
{
    struct ask_slot *asks = region->agent->asks, *first = NULL;
    uint32_t readers = 0;

    for (uint32_t i = 0; i < BT_AGENT_ASKS_MAX; i++) {
        if (!is_reader(&asks[i], region, id))
            continue;
        first = first != NULL ? first : &asks[i];
        readers++;
    }
    if (first == NULL || ++first->lefts < readers)
        return;
    for (uint32_t i = 0; i < BT_AGENT_ASKS_MAX; i++) {
        if (is_reader(&asks[i], region, id))
            ask_left(&asks[i]);
    }
}

static void on_left(void *arg, const char *request_id)
{
    struct agent_region *region = arg;

    if (region->leases != NULL) {
        pthread_mutex_lock(&region->agent->lock);
        bt_lease_left(region->leases, request_id);
        pthread_mutex_unlock(&region->agent->lock);
    } else if (region->config.serve == BT_AGENT_SERVE_KEYED) {
        reader_left(region, request_id);
    }
    bt_agent_flush(region->agent);
}

static void on_refused(void *arg, const char *sink, const char *reason)
{
    struct agent_region *region = arg;

    bt_agent_refresh(region->agent);
    bt_agent_remark(region->agent, BT_AGENT_REFUSED, sink, reason);
}

enum bt_status bt_agent_source_start(struct agent_region *region,
                                     char *error_out, size_t error_size)
{
    struct bt_agent *agent = region->agent;
    const struct bt_kv_source_config config = {
        .name = agent->name,
        .address = agent->listen,
        .port = agent->port != 0 ? agent->port : agent->config.port,
        .region_name = region->name,
        .layout = region->config.layout,
        .region = region->config.base,
        .block_count = region->config.block_count,
        .keyed = region->config.serve == BT_AGENT_SERVE_KEYED,
        .check = on_check,
        .released = on_released,
        .renewed = on_renewed,
        .arg = region,
        .refused = on_refused,
        .left = on_left,
    };
    enum bt_status status = bt_kv_source_start(
        agent->fabric, &config, &region->source, error_out, error_size);

    if (status == BT_OK && agent->port == 0) {
        pthread_mutex_lock(&agent->lock);
        agent->port = bt_kv_source_port(region->source);
        pthread_mutex_unlock(&agent->lock);
    }
    return status;
}
