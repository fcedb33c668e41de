/* The calls of the agent: life, memory, source, sink, events. Each checks its
 * arguments, leaves a message or changes what the lock guards, and wakes the
 * thread; only open, close, region and pace wait for it. What happens then is
 * agent_loop.c's.
 */
#include "agent_priv.h"

#include "baton/transfer/wire.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t bt_agent_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void wake(struct bt_agent *agent)
{
    ev_async_send(agent->loop, &agent->wake);
}

/* ---- open: configuration ---- */

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

static const char *config_fault(const struct bt_agent_config *c)
{
    if (c->api_version != BT_AGENT_API_VERSION)
        return "api_version is another one's";
    if (c->name == NULL || c->name[0] == '\0' ||
        strlen(c->name) >= BT_KV_NAME_MAX)
        return "name: 1 to 63 bytes";
    if (c->fabric != NULL && strlen(c->fabric) >= 16)
        return "fabric: no such one";
    if (c->rail_count > BT_RAILS_MAX || (c->rail_count > 0 && c->rails == NULL))
        return "rails: at most 8";
    if (c->transports != NULL && strlen(c->transports) >= 128)
        return "transports: at most 127 bytes";
    if (c->listen != NULL && strlen(c->listen) >= 64)
        return "listen: not an address";
    if (c->listen != NULL && c->key == NULL && !c->insecure &&
        !is_loopback(c->listen))
        return "listen: beyond loopback only with a key (or insecure)";
    if (c->pulls_max > 65536 || c->leases_max > 1u << 20 ||
        c->lease_blocks_max > 1u << 28)
        return "pulls_max, leases_max or lease_blocks_max is too large";
    return NULL;
}

static bool copy_rail(struct bt_agent *agent, uint32_t i)
{
    struct bt_rail_config *rail = &agent->rails[i];
    const char **texts[4] = {&rail->name, &rail->device, &rail->address,
                             &rail->transports};

    for (int t = 0; t < 4; t++) {
        if (*texts[t] == NULL)
            continue;
        agent->rail_texts[i][t] = strdup(*texts[t]);
        if (agent->rail_texts[i][t] == NULL)
            return false;
        *texts[t] = agent->rail_texts[i][t];
    }
    return true;
}

static bool copy_config(struct bt_agent *agent, const struct bt_agent_config *c)
{
    struct bt_agent_config *mine = &agent->config;

    *mine = *c;
    snprintf(agent->name, sizeof(agent->name), "%s", c->name);
    snprintf(agent->fabric_name, sizeof(agent->fabric_name), "%s",
             c->fabric != NULL ? c->fabric : "ucx");
    mine->name = agent->name;
    mine->fabric = agent->fabric_name;
    if (c->transports != NULL) {
        snprintf(agent->transports, sizeof(agent->transports), "%s",
                 c->transports);
        mine->transports = agent->transports;
    }
    if (c->listen != NULL) {
        snprintf(agent->listen, sizeof(agent->listen), "%s", c->listen);
        mine->listen = agent->listen;
    }
    if (c->key != NULL) {
        memcpy(agent->key, c->key, sizeof(agent->key));
        mine->key = agent->key;
    }
    if (c->rail_count > 0)
        memcpy(agent->rails, c->rails, c->rail_count * sizeof(c->rails[0]));
    mine->rails = agent->rails;
    mine->pulls_max = c->pulls_max > 0 ? c->pulls_max : 1024;
    mine->leases_max = c->leases_max > 0 ? c->leases_max : 4096;
    mine->lease_blocks_max =
        c->lease_blocks_max > 0 ? c->lease_blocks_max : 1u << 20;
    for (uint32_t i = 0; i < c->rail_count; i++) {
        if (!copy_rail(agent, i))
            return false;
    }
    return true;
}

/* ---- open: tables and thread ---- */

static bool make_slots(struct bt_agent *agent)
{
    agent->pulls = calloc(agent->config.pulls_max, sizeof(*agent->pulls));
    agent->asks = calloc(BT_AGENT_ASKS_MAX, sizeof(*agent->asks));
    if (agent->pulls == NULL || agent->asks == NULL)
        return false;
    for (uint32_t i = agent->config.pulls_max; i-- > 0;) {
        struct pull_slot *slot = &agent->pulls[i];

        slot->index = i;
        slot->agent = agent;
        slot->next_free = agent->free_pulls;
        agent->free_pulls = slot;
    }
    for (uint32_t i = 0; i < BT_AGENT_ASKS_MAX; i++)
        agent->asks[i].index = i;
    return true;
}

static uint64_t rails_rate(const struct bt_agent *agent)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < agent->config.rail_count; i++) {
        if (agent->rails[i].rate_bytes_per_s == 0)
            return 0; /* one unknown: the sum says nothing */
        sum += agent->rails[i].rate_bytes_per_s;
    }
    return sum;
}

static enum bt_status make_tables(struct bt_agent *agent)
{
    enum bt_status status = BT_NO_MEMORY;

    TAILQ_INIT(&agent->cancels);
    TAILQ_INIT(&agent->answers);
    TAILQ_INIT(&agent->waiting);
    bt_paths_init(&agent->paths, rails_rate(agent));
    if (!make_slots(agent))
        return status;
    status = bt_agent_ring_init(&agent->calls, BT_AGENT_CALLS_MAX,
                                sizeof(struct call), false);
    if (status == BT_OK)
        status = bt_agent_ring_init(&agent->events, BT_AGENT_EVENTS_MAX,
                                    sizeof(struct bt_agent_event), true);
    agent->loop = ev_loop_new(EVFLAG_AUTO);
    if (status == BT_OK && agent->loop == NULL)
        status = BT_IO;
    return status;
}

/* Signals are the caller's: its handlers must not run on this thread. */
static enum bt_status start_thread(struct bt_agent *agent)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&agent->thread, NULL, bt_agent_main, agent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return BT_LIMIT;
    pthread_mutex_lock(&agent->lock);
    while (!agent->started)
        pthread_cond_wait(&agent->cond, &agent->lock);
    enum bt_status status = agent->start_status;
    pthread_mutex_unlock(&agent->lock);
    if (status != BT_OK)
        pthread_join(agent->thread, NULL);
    return status;
}

static void slot_memory_free(struct pull_slot *slot)
{
    free(slot->remote);
    slot->remote = NULL;
}

static void agent_free(struct bt_agent *agent)
{
    for (uint32_t i = 0; agent->pulls != NULL && i < agent->config.pulls_max;
         i++)
        slot_memory_free(&agent->pulls[i]);
    free(agent->pulls);
    if (agent->asks != NULL)
        bt_agent_asks_fini(agent);
    free(agent->asks);
    for (uint32_t i = 0; i < agent->region_count; i++)
        bt_agent_leases_fini(&agent->regions[i]);
    bt_paths_fini(&agent->paths);
    bt_agent_ring_fini(&agent->calls);
    bt_agent_ring_fini(&agent->events);
    if (agent->loop != NULL)
        ev_loop_destroy(agent->loop);
    for (uint32_t i = 0; i < BT_RAILS_MAX; i++) {
        for (int t = 0; t < 4; t++)
            free(agent->rail_texts[i][t]);
    }
    pthread_cond_destroy(&agent->cond);
    pthread_mutex_destroy(&agent->lock);
    pthread_mutex_destroy(&agent->sync_lock);
    free(agent);
}

enum bt_status bt_agent_open(const struct bt_agent_config *config,
                             struct bt_agent **out, char *error_out,
                             size_t error_size)
{
    const char *fault = config_fault(config);
    struct bt_agent *agent;
    enum bt_status status = BT_NO_MEMORY;

    if (fault != NULL) {
        snprintf(error_out, error_size, "%s", fault);
        return BT_INVALID;
    }
    agent = calloc(1, sizeof(*agent));
    if (agent == NULL) {
        snprintf(error_out, error_size, "no memory");
        return BT_NO_MEMORY;
    }
    pthread_mutex_init(&agent->lock, NULL);
    pthread_mutex_init(&agent->sync_lock, NULL);
    pthread_cond_init(&agent->cond, NULL);
    if (copy_config(agent, config))
        status = make_tables(agent);
    if (status == BT_OK)
        status = start_thread(agent);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "%s",
                 agent->start_error[0] != '\0' ? agent->start_error
                                               : bt_status_text(status));
        agent_free(agent);
        return status;
    }
    *out = agent;
    return BT_OK;
}

void bt_agent_close(struct bt_agent *agent)
{
    if (agent == NULL)
        return;
    pthread_mutex_lock(&agent->lock);
    agent->closing = true;
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
    pthread_join(agent->thread, NULL);
    agent_free(agent);
}

/* ---- calls that wait ---- */

/* Hand the request to the thread and wait for it; error_out may be NULL. */
static enum bt_status call_thread(struct bt_agent *agent,
                                  const struct sync *request, char *error_out,
                                  size_t error_size)
{
    pthread_mutex_lock(&agent->lock);
    agent->sync = *request;
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
    pthread_mutex_lock(&agent->lock);
    while (!agent->sync.done)
        pthread_cond_wait(&agent->cond, &agent->lock);
    enum bt_status status = agent->sync.status;
    if (status != BT_OK && error_out != NULL)
        snprintf(error_out, error_size, "%s", agent->sync.error);
    agent->sync.kind = SYNC_NONE;
    pthread_mutex_unlock(&agent->lock);
    return status;
}

enum bt_status bt_agent_pace(struct bt_agent *agent, const char *peer,
                             uint64_t rate_bytes_per_s, int64_t setup_ns,
                             const char *link_class)
{
    const struct sync request = {.kind = SYNC_PACE,
                                 .peer = peer,
                                 .rate = rate_bytes_per_s,
                                 .setup_ns = setup_ns,
                                 .link_class = link_class};

    pthread_mutex_lock(&agent->sync_lock);
    enum bt_status status = call_thread(agent, &request, NULL, 0);
    pthread_mutex_unlock(&agent->sync_lock);
    return status;
}

static const char *region_fault(const struct bt_agent *agent,
                                const struct bt_agent_region *r)
{
    if (r->name == NULL || r->name[0] == '\0' ||
        strlen(r->name) >= BT_KV_NAME_MAX)
        return "region name: 1 to 63 bytes";
    if (r->base == NULL || r->block_count == 0 || r->layout.block_bytes == 0 ||
        r->layout.block_bytes > UINT32_MAX)
        return "region: no memory or no blocks";
    for (uint32_t i = 0; i < agent->region_count; i++) {
        if (strcmp(agent->regions[i].name, r->name) == 0)
            return "region: there is one of this name";
    }
    return NULL;
}

static enum bt_status region_add(struct bt_agent *agent,
                                 const struct bt_agent_region *config,
                                 char *error_out, size_t error_size)
{
    struct agent_region *region = &agent->regions[agent->region_count];
    const struct sync request = {.kind = SYNC_REGION, .region = region};

    memset(region, 0, sizeof(*region));
    region->agent = agent;
    region->config = *config;
    region->index = agent->region_count;
    snprintf(region->name, sizeof(region->name), "%s", config->name);
    region->config.name = region->name;
    enum bt_status status = BT_OK;
    if (config->serve == BT_AGENT_SERVE_LEASED)
        status = bt_agent_leases_init(region);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "leases: %s", bt_status_text(status));
        return status;
    }
    status = call_thread(agent, &request, error_out, error_size);
    if (status != BT_OK)
        bt_agent_leases_fini(region);
    return status;
}

enum bt_status bt_agent_region(struct bt_agent *agent,
                               const struct bt_agent_region *region,
                               uint32_t *region_out, char *error_out,
                               size_t error_size)
{
    enum bt_status status = BT_LIMIT;
    const char *fault = "too many regions: at most 16";

    pthread_mutex_lock(&agent->sync_lock);
    if (agent->region_count < BT_AGENT_REGIONS_MAX) {
        status = BT_INVALID;
        fault = region_fault(agent, region);
    }
    if (fault != NULL)
        snprintf(error_out, error_size, "%s", fault);
    else
        status = region_add(agent, region, error_out, error_size);
    if (status == BT_OK)
        *region_out = agent->region_count - 1;
    pthread_mutex_unlock(&agent->sync_lock);
    return status;
}

/* NULL: no such one (yet). Regions never go. */
static struct agent_region *region_at(struct bt_agent *agent, uint32_t index)
{
    pthread_mutex_lock(&agent->lock);
    uint32_t count = agent->region_count;
    pthread_mutex_unlock(&agent->lock);
    return index < count ? &agent->regions[index] : NULL;
}

uint16_t bt_agent_port(const struct bt_agent *agent)
{
    return agent->port;
}

/* ---- source ---- */

static bool publication_ok(const struct agent_region *region,
                           const struct bt_agent_publication *p)
{
    if (region == NULL || region->leases == NULL || p->request_id == NULL ||
        p->lease_ns <= 0)
        return false;
    for (size_t i = 0; i < p->count; i++) {
        if (p->blocks[i] >= region->config.block_count)
            return false;
    }
    return true;
}

enum bt_status bt_agent_publish(struct bt_agent *agent,
                                const struct bt_agent_publication *p)
{
    struct agent_region *region = region_at(agent, p->region);
    enum bt_status status = BT_LIMIT;

    if (!publication_ok(region, p))
        return BT_INVALID;
    pthread_mutex_lock(&agent->lock);
    if (p->count <= agent->config.lease_blocks_max) {
        for (size_t i = 0; i < p->count; i++)
            region->scratch[i] = p->blocks[i];
        status =
            bt_lease_publish(region->leases, p->request_id, region->scratch,
                             p->count, bt_agent_now() + p->lease_ns, p->owner);
    }
    if (status == BT_OK) {
        region->lease_ns = p->lease_ns;
        agent->stats.published++;
    }
    pthread_mutex_unlock(&agent->lock);
    if (status == BT_OK)
        wake(agent); /* it may be the next to expire */
    return status;
}

enum bt_status bt_agent_withdraw(struct bt_agent *agent, uint32_t index,
                                 const char *request_id)
{
    struct agent_region *region = region_at(agent, index);

    if (region == NULL || region->leases == NULL)
        return BT_INVALID;
    pthread_mutex_lock(&agent->lock);
    enum bt_status status = bt_lease_withdraw(region->leases, request_id);
    pthread_mutex_unlock(&agent->lock);
    if (status == BT_OK)
        wake(agent);
    return status;
}

void bt_agent_expire(struct bt_agent *agent, uint32_t index)
{
    struct agent_region *region = region_at(agent, index);

    if (region == NULL || region->leases == NULL)
        return;
    pthread_mutex_lock(&agent->lock);
    region->expire = true;
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
}

void bt_agent_answer(struct bt_agent *agent, uint64_t id, enum bt_status status,
                     const uint32_t *blocks)
{
    uint32_t index = (uint32_t)id;
    struct ask_slot *ask = &agent->asks[index % BT_AGENT_ASKS_MAX];

    pthread_mutex_lock(&agent->lock);
    if (index < BT_AGENT_ASKS_MAX && ask->used && !ask->answered &&
        ask->generation == (uint32_t)(id >> 32)) {
        ask->answered = true;
        ask->status = status;
        if (status == BT_OK) /* room for them was made with the ask */
            memcpy(ask->blocks, blocks, ask->count * sizeof(blocks[0]));
        TAILQ_INSERT_TAIL(&agent->answers, ask, answer_entry);
    }
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
}

/* ---- sink ---- */

static enum bt_status pull_check(const struct agent_region *region,
                                 const struct bt_agent_pull *p)
{
    if (region == NULL || p->host == NULL || p->request_id == NULL ||
        p->host[0] == '\0' || strlen(p->host) >= BT_AGENT_HOST_MAX ||
        p->request_id[0] == '\0' || strlen(p->request_id) > BT_KV_REQUEST_MAX ||
        p->deadline_ns <= 0 ||
        (p->remote_region != NULL &&
         strlen(p->remote_region) >= BT_KV_NAME_MAX))
        return BT_INVALID;
    if (p->count > BT_WIRE_LIST_MAX)
        return BT_LIMIT;
    for (size_t i = 0; i < p->count; i++) {
        if (p->local[i] >= region->config.block_count)
            return BT_INVALID;
    }
    return BT_OK;
}

static struct pull_slot *slot_take(struct bt_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    struct pull_slot *slot = agent->free_pulls;
    if (slot != NULL) {
        agent->free_pulls = slot->next_free;
        slot->cancelled = false;
        bt_agent_slot_move(slot, SLOT_CALLED);
        agent->stats.live_pulls++;
    }
    pthread_mutex_unlock(&agent->lock);
    return slot;
}

static bool slot_fill(struct pull_slot *slot, const struct bt_agent_pull *p,
                      const struct agent_region *region)
{
    size_t each = sizeof(uint64_t) + sizeof(uint32_t);

    slot->remote = malloc(p->count > 0 ? p->count * each : 1);
    if (slot->remote == NULL)
        return false;
    slot->local = (uint32_t *)(void *)(slot->remote + p->count);
    if (p->count > 0) {
        memcpy(slot->remote, p->remote, p->count * sizeof(p->remote[0]));
        memcpy(slot->local, p->local, p->count * sizeof(p->local[0]));
    }
    snprintf(slot->host, sizeof(slot->host), "%s", p->host);
    snprintf(slot->request_id, sizeof(slot->request_id), "%s", p->request_id);
    snprintf(slot->remote_region, sizeof(slot->remote_region), "%s",
             p->remote_region != NULL ? p->remote_region : region->name);
    slot->spec = *p;
    slot->spec.host = slot->host;
    slot->spec.request_id = slot->request_id;
    slot->spec.remote_region = slot->remote_region;
    slot->spec.remote = slot->remote;
    slot->spec.local = slot->local;
    slot->called_ns = bt_agent_now();
    return true;
}

static enum bt_status push_call(struct bt_agent *agent, const struct call *call)
{
    enum bt_status status = bt_agent_ring_push(&agent->calls, call);

    if (status == BT_OK) {
        wake(agent);
        return BT_OK;
    }
    pthread_mutex_lock(&agent->lock);
    agent->stats.ring_full++;
    pthread_mutex_unlock(&agent->lock);
    return status;
}

enum bt_status bt_agent_pull(struct bt_agent *agent,
                             const struct bt_agent_pull *pull, uint64_t *id_out)
{
    const struct agent_region *region = region_at(agent, pull->region);
    enum bt_status status = pull_check(region, pull);

    if (status != BT_OK)
        return status;
    struct pull_slot *slot = slot_take(agent);
    if (slot == NULL)
        return BT_LIMIT;
    uint64_t id = bt_agent_id(slot->index, slot->generation);
    struct call call = {.kind = CALL_PULL, .slot = slot->index};
    status =
        slot_fill(slot, pull, region) ? push_call(agent, &call) : BT_NO_MEMORY;
    if (status != BT_OK) {
        bt_agent_slot_free(agent, slot);
        return status;
    }
    *id_out = id;
    return BT_OK;
}

void bt_agent_cancel(struct bt_agent *agent, uint64_t id)
{
    uint32_t index = (uint32_t)id;

    if (index >= agent->config.pulls_max)
        return;
    struct pull_slot *slot = &agent->pulls[index];
    pthread_mutex_lock(&agent->lock);
    if (slot->generation == (uint32_t)(id >> 32) && !slot->cancelled &&
        (slot->state == SLOT_CALLED || slot->state == SLOT_RUNNING)) {
        slot->cancelled = true;
        slot->cancel_queued = true;
        TAILQ_INSERT_TAIL(&agent->cancels, slot, cancel_entry);
    }
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
}

static void note(struct bt_agent *agent, enum call_kind kind, const char *host,
                 uint16_t port, const char *const names[2])
{
    struct call call = {.kind = kind, .port = port};

    if (strlen(host) >= sizeof(call.host) ||
        strlen(names[0]) >= sizeof(call.remote_region) ||
        strlen(names[1]) >= sizeof(call.request_id))
        return;
    snprintf(call.host, sizeof(call.host), "%s", host);
    snprintf(call.remote_region, sizeof(call.remote_region), "%s", names[0]);
    snprintf(call.request_id, sizeof(call.request_id), "%s", names[1]);
    (void)push_call(agent, &call);
}

void bt_agent_beat(struct bt_agent *agent, const char *host, uint16_t port,
                   const char *remote_region, const char *request_id)
{
    const char *const names[2] = {remote_region, request_id};

    note(agent, CALL_BEAT, host, port, names);
}

void bt_agent_release(struct bt_agent *agent, const char *host, uint16_t port,
                      const char *remote_region, const char *request_id)
{
    const char *const names[2] = {remote_region, request_id};

    note(agent, CALL_RELEASE, host, port, names);
}

/* ---- events and figures ---- */

int bt_agent_fd(const struct bt_agent *agent)
{
    return agent->events.fd;
}

size_t bt_agent_progress(struct bt_agent *agent, struct bt_agent_event *out,
                         size_t max)
{
    bool was_full = false;
    size_t n = bt_agent_ring_pop(&agent->events, out, max, &was_full);

    if (was_full)
        wake(agent); /* more may wait outside the ring */
    return n;
}

void bt_agent_stats(struct bt_agent *agent, struct bt_agent_stats *out)
{
    pthread_mutex_lock(&agent->lock);
    *out = agent->stats;
    for (uint32_t i = 0; i < agent->region_count; i++) {
        if (agent->regions[i].leases != NULL)
            out->live_leases += bt_lease_count(agent->regions[i].leases);
    }
    pthread_mutex_unlock(&agent->lock);
}

size_t bt_agent_meters(struct bt_agent *agent, struct bt_fabric_meter *out,
                       size_t max)
{
    pthread_mutex_lock(&agent->lock);
    size_t n = agent->meter_count < max ? agent->meter_count : max;
    memcpy(out, agent->meters, n * sizeof(out[0]));
    pthread_mutex_unlock(&agent->lock);
    return n;
}

enum bt_status bt_agent_calibrate(struct bt_agent *agent,
                                  const struct bt_agent_start *starts,
                                  size_t count)
{
    pthread_mutex_lock(&agent->lock);
    enum bt_status status = bt_paths_calibrate(&agent->paths, starts, count);
    pthread_mutex_unlock(&agent->lock);
    return status;
}

size_t bt_agent_paths(struct bt_agent *agent, struct bt_agent_path *out,
                      size_t max)
{
    pthread_mutex_lock(&agent->lock);
    size_t n = bt_paths_report(&agent->paths, out, max);
    pthread_mutex_unlock(&agent->lock);
    return n;
}

/* ---- dlopen ---- */

const struct bt_agent_table *bt_agent_api(uint32_t api_version)
{
    static const struct bt_agent_table table = {
        .api_version = BT_AGENT_API_VERSION,
        .size = sizeof(table),
        .open = bt_agent_open,
        .close = bt_agent_close,
        .port = bt_agent_port,
        .region = bt_agent_region,
        .publish = bt_agent_publish,
        .withdraw = bt_agent_withdraw,
        .pull = bt_agent_pull,
        .cancel = bt_agent_cancel,
        .fd = bt_agent_fd,
        .progress = bt_agent_progress,
        .stats = bt_agent_stats,
    };

    return api_version == BT_AGENT_API_VERSION ? &table : NULL;
}
