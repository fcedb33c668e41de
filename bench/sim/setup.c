/* From a configuration to a world at rest: workers, true network, requests in
 * order of arrival. What the planner is told of it is setup_core.c's.
 *
 * A fabric's own counts replace those of the first pool of each role; further
 * pools of that role are left out then.
 */
#include "sim_priv.h"

#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX     4096u
#define AGGREGATE_CHUNK 2048u

void sim_after(struct sim *s, int64_t at_ns, enum sim_what what, uint32_t a,
               uint64_t b)
{
    struct sim_event event = {.at_ns = at_ns, .what = what, .a = a, .b = b};

    if (!sim_heap_push(&s->heap, event))
        sim_fail(s, BT_NO_MEMORY);
}

/* ---- workers ---- */

static uint32_t pool_count(const struct sim *s, uint32_t pool)
{
    const struct bt_sim_pool *p = &s->cluster->pools[pool];
    uint32_t other = 0;

    if (p->roles == BT_ROLE_PREFILL)
        other = s->fabric->prefill_count;
    else if (p->roles == BT_ROLE_DECODE)
        other = s->fabric->decode_count;
    if (other == 0)
        return p->count;
    for (uint32_t i = 0; i < pool; i++)
        if (s->cluster->pools[i].roles == p->roles)
            return 0;
    return other;
}

static void station_init(struct sim_station *station,
                         const struct bt_sim_pool *pool, bool disk)
{
    struct bt_station model = {
        .servers = SIM_STATION_SERVERS_MAX,
        .rate_bytes_per_s = (double)pool->host.rate_bytes_per_s,
        .first_share = 1,
        .saturation = 1,
        .base_ns = pool->host.setup_ns,
    };

    if (disk)
        model = (struct bt_station){
            .servers = pool->disk_servers == 0 ? 1 : pool->disk_servers,
            .rate_bytes_per_s = (double)pool->disk.rate_bytes_per_s,
            .first_share = pool->disk_first_share,
            .saturation =
                pool->disk_saturation == 0 ? 1 : pool->disk_saturation,
            .base_ns = pool->disk.setup_ns,
        };
    sim_station_init(station, &model);
}

/* Aggregated serving makes all workers alike: what a prefill pool does not say
 * about decode is taken from the first pool that decodes. */
static const struct bt_sim_pool *decode_pool(const struct sim *s)
{
    for (uint32_t i = 0; i < s->cluster->pool_count; i++)
        if ((s->cluster->pools[i].roles & BT_ROLE_DECODE) != 0)
            return &s->cluster->pools[i];
    return &s->cluster->pools[0];
}

static void set_batching(const struct sim *s, struct sim_worker *w)
{
    const struct bt_sim_pool *p = w->pool, *d = decode_pool(s);
    bool decodes = (p->roles & BT_ROLE_DECODE) != 0;

    w->roles = p->roles;
    w->chunk = decodes ? p->local_chunk : p->prefill_chunk;
    w->slots_max = p->decode_slots;
    if (!s->config->aggregated)
        return;
    w->roles = BT_ROLE_BOTH;
    w->chunk = d->local_chunk != 0 ? d->local_chunk : AGGREGATE_CHUNK;
    if (!decodes)
        w->slots_max = d->decode_slots;
}

static bool worker_init(struct sim *s, uint32_t worker, uint32_t pool,
                        uint32_t index)
{
    const struct bt_sim_pool *p = &s->cluster->pools[pool];
    const struct bt_sim_fabric *f = s->fabric;
    struct sim_worker *w = &s->workers[worker];
    uint64_t tokens[3] = {p->kv_tokens, p->host_tokens, p->disk_tokens};
    uint64_t rates[3] = {1, p->host.rate_bytes_per_s, p->disk.rate_bytes_per_s};

    w->pool = p;
    w->compute = p->compute;
    w->rack = f->racks == 0 ? BT_LINK_NONE : index % f->racks;
    set_batching(s, w);
    w->kv_tokens = p->kv_tokens;
    w->nic_bytes_per_s = bt_sim_fabric_nic(f, pool, index);
    w->up = true;
    w->incarnation = 1;
    w->slow = w->nic_factor = 1;
    w->prefill_wait.first = w->pull_wait.first = SIM_NONE;
    w->prefill.first = w->join.first = SIM_NONE;
    for (uint32_t tier = 0; tier < 3; tier++) {
        uint64_t blocks = tokens[tier] / s->block_tokens;

        w->has_tier[tier] = blocks > 0 && rates[tier] > 0;
        if (blocks > UINT32_MAX / 2 ||
            !sim_cache_init(&w->tiers[tier], (uint32_t)blocks))
            return false;
    }
    station_init(&w->stations[0], p, false);
    station_init(&w->stations[1], p, true);
    return true;
}

static enum bt_status setup_workers(struct sim *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->cluster->pool_count; i++)
        n += pool_count(s, i);
    if (n == 0 || n > WORKERS_MAX)
        return BT_INVALID;
    s->workers = calloc(n, sizeof(*s->workers));
    s->kicks = calloc(n, sizeof(*s->kicks));
    if (s->workers == NULL || s->kicks == NULL)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < s->cluster->pool_count; i++) {
        uint32_t count = pool_count(s, i);

        for (uint32_t k = 0; k < count; k++)
            if (!worker_init(s, s->worker_count++, i, k))
                return BT_NO_MEMORY;
    }
    return BT_OK;
}

/* ---- requests ---- */

struct arrival {
    int64_t at_ns;
    size_t index;
};

static int by_time(const void *a, const void *b)
{
    const struct arrival *x = a, *y = b;

    if (x->at_ns != y->at_ns)
        return x->at_ns < y->at_ns ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void order_arrivals(struct sim *s, struct arrival *order)
{
    const struct bt_sim_config *c = s->config;
    const struct bt_trace_request *from = &c->trace->requests[c->first];
    struct bt_rng rng;

    bt_rng_seed(&rng, c->seed ^ 0x6a697474u);
    for (size_t i = 0; i < s->request_count; i++) {
        int64_t at = from[i].arrival_ns - from[0].arrival_ns;

        if (c->jitter_ns > 0)
            at += (int64_t)bt_rng_below(&rng, (uint64_t)c->jitter_ns);
        order[i].at_ns = (int64_t)((double)at / c->speed);
        order[i].index = c->first + i;
    }
    qsort(order, s->request_count, sizeof(*order), by_time);
}

static void setup_request(struct sim *s, size_t i, const struct arrival *a)
{
    const struct bt_trace *trace = s->config->trace;
    const struct bt_trace_request *t = &trace->requests[a->index];
    struct sim_request *r = &s->requests[i];
    uint32_t full = t->input_tokens / s->block_tokens;

    r->trace = t;
    r->leg_p = r->leg_d = r->ahead = SIM_NONE;
    r->blocks = full < t->block_count ? full : t->block_count;
    if (t->block_count > 0) {
        r->ids = &trace->blocks[t->block_at];
        r->keys = &s->keys[t->block_at];
    }
    s->arrivals[i] = a->at_ns;
}

static enum bt_status setup_requests(struct sim *s)
{
    const struct bt_trace *trace = s->config->trace;
    size_t left = trace->count - s->config->first, n = s->config->count;
    struct arrival *order;

    s->request_count = n == 0 || n > left ? left : n;
    s->requests = calloc(s->request_count, sizeof(*s->requests));
    s->arrivals = calloc(s->request_count, sizeof(*s->arrivals));
    s->keys = calloc(trace->block_count + 1, sizeof(*s->keys));
    order = calloc(s->request_count, sizeof(*order));
    /* two legs at a time, and one that is just being replaced */
    s->job_capacity = (uint32_t)(3 * s->request_count + 64);
    s->jobs = calloc(s->job_capacity, sizeof(*s->jobs));
    s->job_free = SIM_NONE;
    if (s->requests == NULL || s->arrivals == NULL || s->keys == NULL ||
        order == NULL || s->jobs == NULL) {
        free(order);
        return BT_NO_MEMORY;
    }
    for (size_t i = 0; i < trace->block_count; i++)
        s->keys[i] = sim_key_of(trace->blocks[i]);
    order_arrivals(s, order);
    for (size_t i = 0; i < s->request_count; i++)
        setup_request(s, i, &order[i]);
    free(order);
    return BT_OK;
}

/* ---- topology ---- */

static enum bt_status compile(struct sim_topology *t)
{
    size_t bytes = bt_topology_bytes(&t->spec);
    struct bt_arena arena;

    t->memory = calloc(1, bytes);
    if (t->memory == NULL)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, t->memory, bytes);
    t->topology = bt_topology_init(&arena, &t->spec);
    return t->topology == NULL ? BT_INVALID : BT_OK;
}

static bool topology_take(struct sim_topology *t, uint32_t workers,
                          uint32_t racks)
{
    t->nodes = calloc((size_t)workers + 1, sizeof(*t->nodes));
    t->workers = calloc((size_t)workers + 1, sizeof(*t->workers));
    t->racks = calloc((size_t)racks + 1, sizeof(*t->racks));
    t->spec = (struct bt_topology_spec){.racks = t->racks,
                                        .rack_count = racks,
                                        .nodes = t->nodes,
                                        .node_count = workers,
                                        .workers = t->workers,
                                        .worker_count = workers};
    return t->nodes != NULL && t->workers != NULL && t->racks != NULL;
}

static void topology_fini(struct sim_topology *t)
{
    free(t->nodes);
    free(t->workers);
    free(t->racks);
    free(t->memory);
}

enum bt_status sim_topology(struct sim *s, const uint64_t *nics,
                            uint64_t rack_up, struct sim_topology *out)
{
    uint32_t n = s->worker_count, racks = s->fabric->racks;

    if (!topology_take(out, n, racks))
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        out->nodes[i].name = s->names[i];
        out->nodes[i].rack = s->workers[i].rack;
        out->nodes[i].rails = 1;
        out->nodes[i].rail_bytes_per_s = nics[i];
        out->workers[i].node = i;
    }
    for (uint32_t i = 0; i < racks; i++) {
        out->racks[i].name = s->names[n + i];
        out->racks[i].pod = BT_LINK_NONE;
        out->racks[i].up_bytes_per_s = rack_up;
        out->racks[i].down_bytes_per_s = rack_up;
    }
    for (uint32_t i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        out->spec.classes[i].setup_ns = s->fabric->setup_ns;
        out->spec.classes[i].per_descriptor_ns = s->fabric->per_descriptor_ns;
    }
    return compile(out);
}

static enum bt_status setup_net(struct sim *s)
{
    uint32_t n = s->worker_count, racks = s->fabric->racks;
    uint64_t *nics = calloc((size_t)n + 1, sizeof(*nics));
    double *capacity = NULL;
    enum bt_status status = BT_NO_MEMORY;

    s->names = calloc((size_t)n + racks + 1, sizeof(*s->names));
    if (nics == NULL || s->names == NULL)
        goto undo;
    for (uint32_t i = 0; i < n + racks; i++)
        (void)snprintf(s->names[i], sizeof(s->names[i]), "%s%u",
                       i < n ? "w" : "rack", i < n ? i : i - n);
    for (uint32_t i = 0; i < n; i++)
        nics[i] = s->workers[i].nic_bytes_per_s;
    status = sim_topology(s, nics, s->fabric->rack_up_bytes_per_s,
                          &s->true_topology);
    s->truth = s->true_topology.topology;
    if (status != BT_OK)
        goto undo;
    n = bt_topology_link_count(s->truth);
    capacity = calloc(n + 1u, sizeof(*capacity));
    status = BT_NO_MEMORY;
    if (capacity == NULL)
        goto undo;
    for (uint32_t i = 0; i < n; i++)
        capacity[i] =
            (double)bt_topology_link_at(s->truth, i)->rate_bytes_per_s;
    if (sim_net_init(&s->net, n, capacity))
        status = BT_OK;
undo:
    free(capacity);
    free(nics);
    return status;
}

/* ---- all of it ---- */

static void first_events(struct sim *s)
{
    const struct bt_sim_knowledge *known = &s->config->knowledge;

    s->net_planned_ns = SIM_NEVER;
    for (uint32_t i = 0; i < s->worker_count; i++) {
        sim_link_capacity(s, i);
        sim_worker_ready(s, i);
        if (known->telemetry_ns > 0)
            sim_after(s, known->telemetry_ns * (i + 1) / s->worker_count,
                      SIM_EV_STATS, i, 0);
    }
    sim_background_init(s);
    for (uint32_t i = 0; i < s->config->fault_count; i++) {
        const struct bt_sim_fault *f = &s->config->faults[i];

        sim_after(s, f->at_ns, SIM_EV_FAULT, i, 0);
        if (f->until_ns > f->at_ns)
            sim_after(s, f->until_ns, SIM_EV_FAULT_END, i, 0);
    }
    sim_after(s, 100 * BT_NS_PER_MS, SIM_EV_TICK, 0, 0);
    sim_after(s, s->arrivals[0], SIM_EV_ARRIVAL, 0, 0);
}

enum bt_status sim_setup(struct sim *s, char *error_out, size_t error_size)
{
    enum bt_status status;

    s->block_tokens = s->config->trace->block_tokens;
    if (s->block_tokens == 0)
        s->block_tokens = 16;
    bt_rng_seed(&s->rng_kv, s->config->seed ^ 0x6b76u);
    bt_rng_seed(&s->rng_world, s->config->seed ^ 0x776f726cu);
    s->stats = calloc(SIM_STATS_FLYING, sizeof(*s->stats));
    status = s->stats == NULL ? BT_NO_MEMORY : setup_workers(s);
    if (status == BT_INVALID)
        (void)snprintf(error_out, error_size,
                       "a cluster of no workers, or of more than %u",
                       WORKERS_MAX);
    if (status == BT_OK)
        status = setup_requests(s);
    if (status == BT_OK)
        status = setup_net(s);
    if (status == BT_OK && !sim_kv_plane_init(s))
        status = BT_NO_MEMORY;
    if (status == BT_OK)
        status = sim_setup_core(s, error_out, error_size);
    if (status != BT_OK)
        return status;
    sim_metrics_open(s);
    first_events(s);
    return s->failed;
}

void sim_teardown(struct sim *s)
{
    for (uint32_t i = 0; i < s->worker_count; i++) {
        struct sim_worker *w = &s->workers[i];

        for (uint32_t tier = 0; tier < 3; tier++)
            sim_cache_fini(&w->tiers[tier]);
        sim_station_fini(&w->stations[0]);
        sim_station_fini(&w->stations[1]);
        free(w->batch);
    }
    for (uint32_t i = 0; i < s->job_count; i++)
        free(s->jobs[i].fetch_tiers);
    sim_kv_plane_fini(s);
    sim_net_fini(&s->net);
    sim_heap_fini(&s->heap);
    free(s->workers);
    free(s->kicks);
    free(s->jobs);
    free(s->requests);
    free(s->arrivals);
    free(s->keys);
    free(s->core_memory);
    topology_fini(&s->true_topology);
    topology_fini(&s->told_topology);
    free(s->names);
    free(s->told_workers);
    free(s->told_links);
    free(s->effects.items);
    free(s->out);
    free(s->stats);
    free(s->seen);
}
