/* The demo's fleet from a cluster file of the simulator, so that both run the
 * same one. Decides what of such a file emulated engines can be, and refuses
 * the rest in words: one compute preset for all, no tiers, no racks. */
#include "demo_priv.h"

#include "baton/base/units.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct wanted {
    const struct bt_sim_cluster *cluster;
    const struct bt_sim_fabric *fabric;
    const char *path;
};

static enum bt_status refuse(const struct wanted *w, const char *what)
{
    fprintf(stderr, "baton demo: %s: %s\n", w->path, what);
    return BT_UNSUPPORTED;
}

static enum bt_status check(const struct wanted *w)
{
    const struct bt_sim_cluster *c = w->cluster;
    const struct bt_sim_fabric *f = w->fabric;

    if (f->racks || f->degraded_factor > 0 || f->prefill_count ||
        f->decode_count)
        return refuse(w, "a bed has hosts on one switch: no racks, degraded "
                         "or counts in the fabric");
    if (c->mode.overlap != BT_OVERLAP_NONE || c->mode.whole_prompt ||
        c->mode.replication > 1)
        return refuse(w, "emulated engines pull what they lack after the "
                         "prefill: overlap none, decode_delta, replication 1");
    if (c->kv_bytes_per_token > 65536)
        return refuse(w, "above 65536 bytes of KV per token");
    for (uint32_t i = 0; i < c->pool_count; i++) {
        const struct bt_sim_pool *p = &c->pools[i];

        if (!p->preset[0] || strcmp(p->preset, c->pools[0].preset) != 0 ||
            p->compute.speedup != c->pools[0].compute.speedup)
            return refuse(w, "all pools need the same compute: PRESET and "
                             "speedup");
        if (p->kv_tokens != c->pools[0].kv_tokens ||
            p->decode_slots != c->pools[0].decode_slots)
            return refuse(w, "all pools need the same kv_tokens and "
                             "decode_slots");
        if (p->roles == BT_ROLE_BOTH || p->host_tokens || p->disk_tokens)
            return refuse(w, "pools are prefill or decode, without tiers");
    }
    return BT_OK;
}

static enum bt_status add_pool(const struct wanted *w, uint32_t pool,
                               uint32_t *number, struct bt_cluster_spec *spec)
{
    const struct bt_sim_pool *p = &w->cluster->pools[pool];

    for (uint32_t i = 0; i < p->count; i++) {
        struct bt_cluster_engine *e = &spec->engines[spec->engine_count];
        bool prefill = p->roles == BT_ROLE_PREFILL;

        if (spec->engine_count >= BT_CLUSTER_ENGINES_MAX)
            return refuse(w, "more than 32 engines");
        spec->engine_count++;
        e->prefill = prefill;
        e->nic_bytes_per_s = bt_sim_fabric_nic(w->fabric, pool, i);
        snprintf(e->name, sizeof(e->name), "%c%u", prefill ? 'p' : 'd',
                 number[prefill]++);
    }
    return BT_OK;
}

/* Without a bed: the slower NIC of the two paces the pair. */
static enum bt_status add_links(const struct wanted *w,
                                struct bt_cluster_spec *spec)
{
    for (uint32_t p = 0; p < spec->engine_count; p++) {
        for (uint32_t d = 0; d < spec->engine_count; d++) {
            struct bt_cluster_link *l = &spec->links[spec->link_count];
            uint64_t out = spec->engines[p].nic_bytes_per_s;
            uint64_t in = spec->engines[d].nic_bytes_per_s;

            static_assert(sizeof(l->link_class) ==
                              sizeof(spec->engines[d].name),
                          "a class is named after an engine");

            if (!spec->engines[p].prefill || spec->engines[d].prefill)
                continue;
            if (spec->link_count >= BT_CLUSTER_LINKS_MAX)
                return refuse(w, "more than 64 pairs");
            spec->link_count++;
            *l = (struct bt_cluster_link){.from = p, .to = d};
            /* the same size on both sides */
            memcpy(l->link_class, spec->engines[d].name, sizeof(l->link_class));
            l->rate_bytes_per_s = out < in ? out : in;
            l->setup_ns = w->fabric->setup_ns;
        }
    }
    return BT_OK;
}

static enum bt_status fill(const struct wanted *w,
                           const struct bt_demo_options *o,
                           struct bt_cluster_spec *spec)
{
    uint32_t number[2] = {0, 0};
    enum bt_status status = check(w);

    spec->engine_count = spec->link_count = 0;
    for (uint32_t i = 0; i < w->cluster->pool_count && status == BT_OK; i++)
        status = add_pool(w, i, number, spec);
    if (status == BT_OK && (!number[0] || !number[1]))
        status = refuse(w, "needs prefill and decode workers");
    if (status == BT_OK && !o->netbed)
        status = add_links(w, spec);
    if (status != BT_OK)
        return status;
    spec->kv_bytes_per_token = (uint32_t)w->cluster->kv_bytes_per_token;
    spec->block_tokens = w->cluster->descriptor_tokens;
    spec->block_count =
        (uint32_t)(w->cluster->pools[0].kv_tokens / spec->block_tokens);
    spec->seqs_max = w->cluster->pools[0].decode_slots;
    spec->speedup = w->cluster->pools[0].compute.speedup * o->speedup;
    spec->setup_ns = w->fabric->setup_ns;
    spec->descriptor_ns = w->fabric->per_descriptor_ns;
    return BT_OK;
}

enum bt_status demo_cluster_read(const struct bt_demo_options *o,
                                 struct bt_sim_cluster *cluster,
                                 struct bt_cluster_spec *spec)
{
    struct wanted w = {cluster, NULL, o->cluster};
    char error[512] = "";
    uint32_t fabric = 0;
    enum bt_status status =
        bt_sim_cluster_load(o->cluster, cluster, error, sizeof(error));

    if (status != BT_OK) {
        fprintf(stderr, "baton demo: %s\n", error);
        return status;
    }
    if (o->fabric && bt_sim_fabric_find(cluster, o->fabric, &fabric) != BT_OK) {
        fprintf(stderr, "baton demo: %s has no fabric '%s'\n", o->cluster,
                o->fabric);
        return BT_NOT_FOUND;
    }
    w.fabric = &cluster->fabrics[fabric];
    status = fill(&w, o, spec);
    if (status == BT_OK)
        spec->compute = cluster->pools[0].preset;
    return status;
}
