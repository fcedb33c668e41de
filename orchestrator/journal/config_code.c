/* The configuration record: all of struct bt_core_config, its arrays, the
 * policy by name and the specification of the topology. Links are a table of
 * all pairs; equal neighbours are written once with a count, because most
 * fleets have one class. */
#include "codes.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_MAX BT_WORKER_SLOTS_MAX

static void code_compute(struct coder *c, struct bt_compute_model *m)
{
    coder_f64(c, &m->prefill_a_ms);
    coder_f64(c, &m->prefill_b_ms);
    coder_f64(c, &m->prefill_c_ms);
    coder_f64(c, &m->decode_a_ms);
    coder_f64(c, &m->decode_b_ms);
    coder_f64(c, &m->decode_c_ms);
    coder_f64(c, &m->speedup);
}

static void code_tier(struct coder *c, struct bt_tier_model *t)
{
    coder_u64(c, &t->rate_bytes_per_s);
    coder_i64(c, &t->setup_ns);
}

static void code_worker(struct coder *c, struct bt_core_worker_config *w)
{
    uint32_t roles = w->roles;

    coder_u32(c, &roles);
    w->roles = roles;
    coder_u32(c, &w->model);
    code_compute(c, &w->compute);
    coder_u32(c, &w->decode_slots);
    coder_u64(c, &w->kv_capacity_tokens);
    code_tier(c, &w->host);
    code_tier(c, &w->disk);
    coder_bool(c, &w->local_ok);
    coder_bool(c, &w->fetch_ok);
    coder_u32(c, &w->chunk_tokens);
    coder_u32(c, &w->batch_tokens);
    coder_u32(c, &w->ranks);
}

static void code_model(struct coder *c, struct bt_core_model_config *m)
{
    coder_u64(c, &m->kv_bytes_per_token);
    coder_u32(c, &m->block_tokens);
    m->mode.overlap = (enum bt_overlap)coder_enum(c, m->mode.overlap, 3);
    coder_u32(c, &m->mode.pieces);
    coder_bool(c, &m->mode.allocate_first);
    coder_bool(c, &m->mode.whole_prompt);
    coder_bool(c, &m->mode.late_decode);
    coder_u32(c, &m->mode.descriptors_per_block);
    coder_u32(c, &m->mode.replication);
}

static void code_link(struct coder *c, struct bt_core_link_config *l)
{
    coder_u64(c, &l->model.rate_bytes_per_s);
    coder_i64(c, &l->model.setup_ns);
    coder_i64(c, &l->model.per_descriptor_ns);
    coder_u32(c, &l->class_index);
}

static bool same_link(const struct bt_core_link_config *a,
                      const struct bt_core_link_config *b)
{
    return a->model.rate_bytes_per_s == b->model.rate_bytes_per_s &&
           a->model.setup_ns == b->model.setup_ns &&
           a->model.per_descriptor_ns == b->model.per_descriptor_ns &&
           a->class_index == b->class_index;
}

static void write_links(struct coder *c, const struct bt_core_link_config *l,
                        size_t count)
{
    for (size_t i = 0; i < count && !c->bad;) {
        struct bt_core_link_config one = l[i];
        uint32_t run = 1;

        while (i + run < count && run < UINT32_MAX &&
               same_link(&l[i], &l[i + run]))
            run++;
        coder_u32(c, &run);
        code_link(c, &one);
        i += run;
    }
}

static void read_links(struct coder *c, struct bt_core_link_config *l,
                       size_t count)
{
    for (size_t i = 0; i < count && !c->bad;) {
        struct bt_core_link_config one = {0};
        uint32_t run = 0;

        coder_u32(c, &run);
        code_link(c, &one);
        if (run == 0 || run > count - i)
            c->bad = true;
        for (uint32_t k = 0; k < run && !c->bad; k++)
            l[i++] = one;
    }
}

static void code_prices(struct coder *c, struct bt_place_prices *p)
{
    coder_f64(c, &p->queue);
    coder_f64(c, &p->eviction);
    coder_f64(c, &p->link);
    coder_f64(c, &p->hbm);
    coder_f64(c, &p->decode);
}

static void code_limits(struct coder *c, struct bt_core_config *k)
{
    coder_u32(c, &k->requests_max);
    coder_u32(c, &k->queue_max);
    coder_u32(c, &k->index_blocks_max);
    coder_u32(c, &k->index_holdings_max);
    coder_u32(c, &k->approx_blocks_max);
    coder_i64(c, &k->approx_ttl_ns);
    coder_bool(c, &k->self_check);
    coder_u32(c, &k->prompt_blocks_max);
    coder_u32(c, &k->attempts_max);
    coder_f64(c, &k->retry_budget_ratio);
    coder_u32(c, &k->retry_budget_min);
    coder_bool(c, &k->pd_required);
    coder_u32(c, &k->pd_min_tokens);
    coder_u32(c, &k->expected_output_tokens);
    coder_i64(c, &k->lease_ns);
    coder_i64(c, &k->lease_margin_ns);
    coder_i64(c, &k->queue_timeout_ns);
    coder_i64(c, &k->prefill_timeout_ns);
    coder_i64(c, &k->handoff_timeout_ns);
    coder_i64(c, &k->idle_stream_timeout_ns);
    coder_i64(c, &k->suspect_ns);
    coder_u32(c, &k->suspect_failures);
    coder_u64(c, &k->seed);
}

/* All that is not a pointer. */
static void code_scalars(struct coder *c, struct bt_core_config *k)
{
    coder_bool(c, &k->knobs_set);
    for (size_t i = 0; i < BT_POLICY_KNOBS_MAX; i++)
        coder_f64(c, &k->knobs[i]);
    code_prices(c, &k->prices);
    coder_bool(c, &k->hold.enabled);
    coder_i64(c, &k->hold.lead_ns);
    coder_i64(c, &k->hold.patience_ns);
    coder_u32(c, &k->hold.ask_max);
    coder_f64(c, &k->hold.ageing);
    coder_f64(c, &k->hold.fairness);
    coder_f64(c, &k->hold.oldest_share);
    coder_bool(c, &k->hold.prefetch);
    coder_i64(c, &k->slo.ttft_base_ns);
    coder_f64(c, &k->slo.ttft_factor);
    coder_i64(c, &k->slo.tpot_ns);
    coder_bool(c, &k->calibrate);
    code_limits(c, k);
    coder_u32(c, &k->worker_count);
    coder_u32(c, &k->model_count);
}

/* ---- topology ---- */

static void code_rack(struct coder *c, struct bt_topology_rack *r)
{
    coder_u32(c, &r->pod);
    coder_u64(c, &r->up_bytes_per_s);
    coder_u64(c, &r->down_bytes_per_s);
}

static void code_pod(struct coder *c, struct bt_topology_pod *p)
{
    coder_u64(c, &p->up_bytes_per_s);
    coder_u64(c, &p->down_bytes_per_s);
}

static void code_node(struct coder *c, struct bt_topology_node *n)
{
    coder_u32(c, &n->rack);
    coder_u32(c, &n->rails);
    coder_u64(c, &n->rail_bytes_per_s);
    coder_bool(c, &n->nvlink_domain);
    coder_u64(c, &n->nvlink_bytes_per_s);
}

static void code_placed(struct coder *c, struct bt_topology_worker *w)
{
    coder_u32(c, &w->node);
    coder_u32(c, &w->rails);
    coder_u64(c, &w->rail_bytes_per_s);
    coder_u64(c, &w->nic_out_bytes_per_s);
    coder_u64(c, &w->nic_in_bytes_per_s);
}

static void code_spec_counts(struct coder *c, struct bt_topology_spec *s)
{
    coder_u32(c, &s->rack_count);
    coder_u32(c, &s->pod_count);
    coder_u32(c, &s->node_count);
    coder_u32(c, &s->worker_count);
    for (size_t i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        coder_i64(c, &s->classes[i].setup_ns);
        coder_i64(c, &s->classes[i].per_descriptor_ns);
        coder_u64(c, &s->classes[i].flow_bytes_per_s_max);
    }
}

static void write_name(struct coder *c, const char *name)
{
    char text[64] = "";

    if (name != NULL && strlen(name) < sizeof(text))
        memcpy(text, name, strlen(name) + 1);
    coder_text(c, text, sizeof(text));
}

static void write_spec(struct coder *c, const struct bt_topology_spec *spec)
{
    struct bt_topology_spec s = *spec;

    code_spec_counts(c, &s);
    for (uint32_t i = 0; i < s.rack_count; i++) {
        struct bt_topology_rack one = s.racks[i];

        write_name(c, one.name);
        code_rack(c, &one);
    }
    for (uint32_t i = 0; i < s.pod_count; i++) {
        struct bt_topology_pod one = s.pods[i];

        write_name(c, one.name);
        code_pod(c, &one);
    }
    for (uint32_t i = 0; i < s.node_count; i++) {
        struct bt_topology_node one = s.nodes[i];

        write_name(c, one.name);
        code_node(c, &one);
    }
    for (uint32_t i = 0; i < s.worker_count; i++) {
        struct bt_topology_worker one = s.workers[i];

        code_placed(c, &one);
    }
}

static enum bt_status take_spec(struct journal_config *k)
{
    struct bt_topology_spec *s = &k->spec;
    size_t names;

    if (s->rack_count > COUNT_MAX || s->pod_count > COUNT_MAX ||
        s->node_count > COUNT_MAX || s->worker_count > COUNT_MAX)
        return BT_INVALID;
    names = (size_t)s->rack_count + s->pod_count + s->node_count;
    k->names = calloc(names + 1, sizeof(*k->names));
    k->racks = calloc(s->rack_count + 1, sizeof(*k->racks));
    k->pods = calloc(s->pod_count + 1, sizeof(*k->pods));
    k->nodes = calloc(s->node_count + 1, sizeof(*k->nodes));
    k->placed = calloc(s->worker_count + 1, sizeof(*k->placed));
    if (k->names == NULL || k->racks == NULL || k->pods == NULL ||
        k->nodes == NULL || k->placed == NULL)
        return BT_NO_MEMORY;
    s->racks = k->racks;
    s->pods = k->pods;
    s->nodes = k->nodes;
    s->workers = k->placed;
    return BT_OK;
}

static void read_spec_items(struct coder *c, struct journal_config *k)
{
    char(*name)[64] = k->names;

    for (uint32_t i = 0; i < k->spec.rack_count && !c->bad; i++, name++) {
        coder_text(c, *name, sizeof(*name));
        code_rack(c, &k->racks[i]);
        k->racks[i].name = *name;
    }
    for (uint32_t i = 0; i < k->spec.pod_count && !c->bad; i++, name++) {
        coder_text(c, *name, sizeof(*name));
        code_pod(c, &k->pods[i]);
        k->pods[i].name = *name;
    }
    for (uint32_t i = 0; i < k->spec.node_count && !c->bad; i++, name++) {
        coder_text(c, *name, sizeof(*name));
        code_node(c, &k->nodes[i]);
        k->nodes[i].name = *name;
    }
    for (uint32_t i = 0; i < k->spec.worker_count && !c->bad; i++)
        code_placed(c, &k->placed[i]);
}

static enum bt_status read_spec(struct coder *c, struct journal_config *k)
{
    struct bt_arena arena;
    enum bt_status status;
    char why[128];
    size_t bytes;

    code_spec_counts(c, &k->spec);
    if (c->bad)
        return BT_INVALID;
    status = take_spec(k);
    if (status != BT_OK)
        return status;
    read_spec_items(c, k);
    if (c->bad || bt_topology_check(&k->spec, why, sizeof(why)) != BT_OK)
        return BT_INVALID;
    bytes = bt_topology_bytes(&k->spec);
    k->topology_memory = calloc(1, bytes);
    if (k->topology_memory == NULL)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, k->topology_memory, bytes);
    k->core.topology = bt_topology_init(&arena, &k->spec);
    return k->core.topology != NULL ? BT_OK : BT_INVALID;
}

/* ---- all of it ---- */

void journal_config_write(struct coder *c, const struct bt_core_config *from,
                          const struct bt_topology_spec *spec)
{
    struct bt_core_config k = *from;
    bool has_topology = spec != NULL;

    write_name(c, k.policy->name);
    code_scalars(c, &k);
    for (uint32_t i = 0; i < k.worker_count; i++) {
        struct bt_core_worker_config one = k.workers[i];

        code_worker(c, &one);
    }
    for (uint32_t i = 0; i < k.model_count; i++) {
        struct bt_core_model_config one = k.models[i];

        code_model(c, &one);
    }
    write_links(c, k.links, (size_t)k.worker_count * k.worker_count);
    coder_bool(c, &has_topology);
    if (spec != NULL)
        write_spec(c, spec);
}

static enum bt_status take_arrays(struct journal_config *k)
{
    uint32_t n = k->core.worker_count, models = k->core.model_count;

    if (n == 0 || n > COUNT_MAX || models == 0 || models > COUNT_MAX)
        return BT_INVALID;
    k->workers = calloc(n, sizeof(*k->workers));
    k->models = calloc(models, sizeof(*k->models));
    k->links = calloc((size_t)n * n, sizeof(*k->links));
    if (k->workers == NULL || k->models == NULL || k->links == NULL)
        return BT_NO_MEMORY;
    k->core.workers = k->workers;
    k->core.models = k->models;
    k->core.links = k->links;
    return BT_OK;
}

enum bt_status journal_config_read(struct coder *c, struct journal_config *out)
{
    enum bt_status status;
    uint32_t n;

    coder_text(c, out->policy_name, sizeof(out->policy_name));
    code_scalars(c, &out->core);
    if (c->bad)
        return BT_INVALID;
    status = take_arrays(out);
    if (status != BT_OK)
        return status;
    n = out->core.worker_count;
    for (uint32_t i = 0; i < n && !c->bad; i++)
        code_worker(c, &out->workers[i]);
    for (uint32_t i = 0; i < out->core.model_count && !c->bad; i++)
        code_model(c, &out->models[i]);
    read_links(c, out->links, (size_t)n * n);
    coder_bool(c, &out->has_topology);
    if (c->bad)
        return BT_INVALID;
    if (out->has_topology)
        status = read_spec(c, out);
    out->core.policy = bt_policy_find(out->policy_name);
    return status;
}

void journal_config_fini(struct journal_config *config)
{
    free(config->workers);
    free(config->links);
    free(config->models);
    free(config->racks);
    free(config->pods);
    free(config->nodes);
    free(config->placed);
    free(config->names);
    free(config->topology_memory);
    memset(config, 0, sizeof(*config));
}
