/* A study's cell made real: the user's cluster with another fabric, sizes and
 * engine mode, its trace or a synthetic one, knowledge and faults. Everything
 * not named by the cell stays the user's. */
#include "study_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_MAX 4000u
#define TELEMETRY_NS 100000000LL

static uint32_t pool_count(const struct bt_sim_cluster *c, unsigned int role)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->pool_count; i++) {
        if (c->pools[i].roles & role)
            count += c->pools[i].count;
    }
    return count;
}

/* The one fabric of the cell, in place 0. */
static void make_fabric(struct study_cell *cell,
                        const struct bt_report_scenario *user,
                        const struct study_world *w)
{
    struct bt_sim_fabric *f = &cell->cluster.fabrics[0];

    *f = user->cluster->fabrics[user->fabric];
    cell->cluster.fabric_count = 1;
    if (w->prefill || w->decode) {
        f->prefill_count = w->prefill;
        f->decode_count = w->decode;
    }
    if (w->nic) {
        uint32_t workers =
            (f->prefill_count ? f->prefill_count
                              : pool_count(user->cluster, BT_ROLE_PREFILL)) +
            (f->decode_count ? f->decode_count
                             : pool_count(user->cluster, BT_ROLE_DECODE));

        snprintf(f->name, sizeof(f->name), "cell");
        f->nic_bytes_per_s = w->nic;
        f->slow_nic_bytes_per_s = w->slow_nic;
        f->racks = w->racks;
        f->rack_up_bytes_per_s =
            w->racks && w->oversubscription
                ? w->nic * workers / w->racks / w->oversubscription
                : 0;
        f->background = w->background;
        f->background_period_ns = w->background > 0 ? 2000000000LL : 0;
        f->degraded_factor = 0;
    }
    if (w->degraded > 0) {
        f->degraded_factor = w->degraded;
        f->degraded_worker = f->prefill_count
                                 ? f->prefill_count
                                 : pool_count(user->cluster, BT_ROLE_PREFILL);
    }
}

static void make_cluster(struct study_cell *cell, const struct study_world *w)
{
    struct bt_sim_cluster *c = &cell->cluster;

    if (w->kv_bytes_per_token)
        c->kv_bytes_per_token = w->kv_bytes_per_token;
    for (uint32_t i = 0; i < c->pool_count; i++) {
        if (w->kv_tokens)
            c->pools[i].kv_tokens = w->kv_tokens;
        if (w->decode_slots)
            c->pools[i].decode_slots = w->decode_slots;
    }
    if (w->layers) {
        c->mode.overlap = BT_OVERLAP_LAYER;
        c->mode.pieces = 80;
        /* pieces can only leave for a worker that is already named */
        c->mode.late_decode = false;
        c->mode.allocate_first = true;
    }
}

static void make_knowledge(struct bt_sim_knowledge *k,
                           const struct study_world *w)
{
    if (w->compute_bias != 0 || w->link_bias != 0) {
        k->compute_bias = w->compute_bias;
        k->link_bias = w->link_bias;
    }
    k->shuffled_costs = k->shuffled_costs || w->shuffled;
    if (w->stale_ns < 0) {
        k->telemetry_ns = 0;
    } else if (w->stale_ns > 0) {
        k->telemetry_lag_ns = w->stale_ns;
        k->telemetry_ns = TELEMETRY_NS;
    }
    if (w->event_loss > 0)
        k->event_loss = w->event_loss;
    k->event_replay = k->event_replay && !w->no_replay;
    k->events_off = k->events_off || w->event_loss >= 1;
}

static enum bt_status generate(struct study_cell *cell,
                               const struct bt_trace *user,
                               const struct study_world *w, uint64_t seed)
{
    struct bt_trace_generate_options g;

    bt_trace_generate_options_init(&g);
    g.seed = seed;
    g.requests = user->count < REQUESTS_MAX ? user->count : REQUESTS_MAX;
    g.input_fixed = w->input;
    g.output_fixed = w->output;
    g.hit_fixed = w->hit;
    if (w->agents) {
        memset(g.mix, 0, sizeof(g.mix));
        g.mix[BT_MIX_AGENT] = 1;
    }
    return bt_trace_generate(&g, &cell->trace);
}

/* A copy without the short prompts. */
static enum bt_status filter(struct study_cell *cell,
                             const struct bt_report_scenario *user,
                             uint32_t input_min)
{
    const struct bt_trace *from = user->trace;
    struct bt_trace *t = &cell->trace;

    *t = *from;
    t->requests = calloc(from->count + 1, sizeof(*t->requests));
    t->blocks = calloc(from->block_count + 1, sizeof(*t->blocks));
    t->count = 0;
    t->capacity = from->count + 1;
    t->block_capacity = from->block_count + 1;
    if (!t->requests || !t->blocks)
        return BT_NO_MEMORY;
    if (from->block_count)
        memcpy(t->blocks, from->blocks, from->block_count * sizeof(*t->blocks));
    for (size_t i = user->first; i < from->count; i++) {
        if (user->count && i >= user->first + user->count)
            break;
        if (from->requests[i].input_tokens >= input_min)
            t->requests[t->count++] = from->requests[i];
    }
    snprintf(t->name, sizeof(t->name), "%.40s>=%u", from->name, input_min);
    return t->count > 0 ? BT_OK : BT_INVALID;
}

static enum bt_status make_trace(struct study_cell *cell,
                                 const struct bt_report_setup *user,
                                 const struct study_world *w)
{
    struct bt_report_scenario *s = &cell->setup.scenarios[0];
    enum bt_status status = BT_OK;

    if (w->input || w->agents)
        status = generate(cell, s->trace, w, user->seeds[0]);
    else if (w->input_min)
        status = filter(cell, s, w->input_min);
    else
        return BT_OK;
    s->trace = &cell->trace;
    s->first = s->count = 0;
    if (w->input || w->agents)
        cell->setup.base.jitter_ns = 0;
    return status;
}

static void make_fault(struct study_cell *cell, const struct study_world *w)
{
    struct bt_report_scenario *s = &cell->setup.scenarios[0];
    size_t count = s->count ? s->count : s->trace->count - s->first;
    size_t at = s->first + (size_t)((double)count * w->nic_fault_at);

    if (w->nic_fault_at <= 0 || at >= s->trace->count)
        return;
    cell->fault.kind = BT_SIM_NIC;
    cell->fault.worker = cell->cluster.fabrics[0].prefill_count
                             ? cell->cluster.fabrics[0].prefill_count
                             : pool_count(&cell->cluster, BT_ROLE_PREFILL);
    cell->fault.factor = 0.25;
    /* arrivals run `speed` times faster than the trace's stamps */
    cell->fault.at_ns =
        (int64_t)((double)(s->trace->requests[at].arrival_ns -
                           s->trace->requests[s->first].arrival_ns) /
                  (cell->speed > 0 ? cell->speed : 1));
    s->faults = &cell->fault;
    s->fault_count = 1;
}

static enum bt_status add_arms(struct study_cell *cell,
                               const struct study_row *row, char *error,
                               size_t size)
{
    enum bt_status status =
        bt_report_arm_add(&cell->setup, row->subject, error, size);

    for (uint32_t i = 0; status == BT_OK && i < STUDY_RIVALS_MAX; i++) {
        cell->rival_first[i] = cell->setup.arm_count;
        if (row->rivals[i])
            status =
                bt_report_arm_add(&cell->setup, row->rivals[i], error, size);
        cell->rival_count[i] = cell->setup.arm_count - cell->rival_first[i];
    }
    return status;
}

enum bt_status study_cell_init(struct study_cell *cell,
                               const struct bt_report_setup *user,
                               const struct study_row *row, char *error_out,
                               size_t error_size)
{
    struct bt_report_scenario *s = &cell->setup.scenarios[0];
    enum bt_status status;

    memset(cell, 0, sizeof(*cell));
    cell->setup = *user;
    cell->setup.arm_count = 0;
    cell->setup.scenario_count = 1;
    cell->setup.keep_samples = true;
    cell->cluster = *s->cluster;
    make_fabric(cell, &user->scenarios[0], &row->world);
    make_cluster(cell, &row->world);
    make_knowledge(&s->knowledge, &row->world);
    s->cluster = &cell->cluster;
    s->fabric = 0;
    snprintf(s->name, sizeof(s->name), "%.60s", row->id);
    status = make_trace(cell, user, &row->world);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "the trace of the cell: %s",
                 bt_status_text(status));
        return status;
    }
    return add_arms(cell, row, error_out, error_size);
}

void study_cell_fini(struct study_cell *cell)
{
    bt_trace_fini(&cell->trace);
}

enum bt_status study_cell_speed(struct study_cell *cell, double load,
                                char *error_out, size_t error_size)
{
    size_t count = cell->setup.arm_count;
    struct bt_report_capacity *c = calloc(count + 1, sizeof(*c));
    struct bt_report_search_options options;
    uint32_t seeds = cell->setup.seed_count;
    enum bt_status status;
    double best = 0;

    if (!c)
        return BT_NO_MEMORY;
    bt_report_search_options_init(&options);
    options.tolerance = 0.05;
    options.verify = false;
    cell->setup.seed_count = 1;
    status = bt_report_capacity_run(&cell->setup, &options, c);
    cell->setup.seed_count = seeds;
    for (size_t i = 0; i < count; i++) {
        if (c[i].error[0])
            snprintf(error_out, error_size, "%s", c[i].error);
        else
            best = fmax(best, c[i].search.low);
    }
    free(c);
    if (status != BT_OK)
        return status;
    if (best <= 0) {
        if (!error_out[0])
            snprintf(error_out, error_size,
                     "no policy meets the SLO rule here at any speed");
        return BT_INVALID;
    }
    cell->speed = best * load;
    return BT_OK;
}

void study_cell_fault(struct study_cell *cell, const struct study_world *world)
{
    make_fault(cell, world);
}
