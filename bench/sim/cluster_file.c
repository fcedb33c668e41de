/* Cluster files: what the YAML of a simulated fleet may say and what it means.
 * Decides keys, defaults, what is derived (tokens from bytes and the model's
 * KV geometry, a rack's uplink from its oversubscription) and what only holds
 * between keys; leaves syntax, units and ranges to cluster_yaml.c and the world
 * itself to the simulator.
 *
 * Invariants: *out is written only when the whole file is sound; every fault
 * names its place. bench/clusters/sim/README.md documents the keys.
 */
#include "baton/bench/sim.h"
#include "baton/orchestrator/config.h"
#include "baton/planner/kv_geometry.h"
#include "cluster_yaml.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 4096u
#define NAMES_MAX   64u

_Static_assert(YAML_TEXT_MAX == BT_SIM_NAME_MAX, "names fit");

/* ---- what is written ---- */

static const char *const OVERLAPS[] = {"none", "chunk", "layer", NULL};
static const char *const ROLES[] = {"prefill", "decode", "both", NULL};

enum { TOP_MODEL = 2, TOP_ENGINE, TOP_TRANSFER, TOP_POOLS, TOP_FABRICS };
struct top {
    struct yaml_given given;
    uint32_t schema;
    char name[YAML_TEXT_MAX];
};
static const struct yaml_key TOP[] = {
    {"sim_schema", YAML_U32, true, offsetof(struct top, schema), 1, 1, NULL},
    {"name", YAML_TEXT, true, offsetof(struct top, name), 0, 0, NULL},
    [TOP_MODEL] = {"model", YAML_MAP, true, 0, 0, 0, NULL},
    [TOP_ENGINE] = {"engine", YAML_MAP, false, 0, 0, 0, NULL},
    [TOP_TRANSFER] = {"transfer", YAML_MAP, false, 0, 0, 0, NULL},
    [TOP_POOLS] = {"pools", YAML_LIST, true, 0, 0, 0, NULL},
    [TOP_FABRICS] = {"fabrics", YAML_LIST, true, 0, 0, 0, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};

enum { MODEL_KV, MODEL_BYTES };
struct model {
    struct yaml_given given;
    char kv[YAML_TEXT_MAX];
    uint64_t bytes;
};
#define IN(member) offsetof(struct model, member)
static const struct yaml_key MODEL[] = {
    {"kv", YAML_TEXT, false, IN(kv), 0, 0, NULL},
    {"kv_bytes_per_token", YAML_U64, false, IN(bytes), 1, 1e9, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

enum { ENGINE_OVERLAP, ENGINE_PIECES };
struct engine {
    struct yaml_given given;
    uint32_t overlap, pieces, descriptor_tokens, per_block, replication;
    bool allocate_first, decode_delta, late_decode;
};
#define IN(member) offsetof(struct engine, member)
static const struct yaml_key ENGINE[] = {
    {"overlap", YAML_WORD, false, IN(overlap), 0, 0, OVERLAPS},
    {"pieces", YAML_U32, false, IN(pieces), 1, 1024, NULL},
    {"allocate_first", YAML_FLAG, false, IN(allocate_first), 0, 0, NULL},
    {"decode_delta", YAML_FLAG, false, IN(decode_delta), 0, 0, NULL},
    {"late_decode", YAML_FLAG, false, IN(late_decode), 0, 0, NULL},
    {"descriptor_tokens", YAML_U32, false, IN(descriptor_tokens), 1, 65536,
     NULL},
    {"descriptors_per_block", YAML_U32, false, IN(per_block), 1, 4096, NULL},
    {"replication", YAML_U32, false, IN(replication), 1, 64, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

struct transfer {
    struct yaml_given given;
    int64_t setup_ns, per_descriptor_ns;
};
#define IN(member) offsetof(struct transfer, member)
static const struct yaml_key TRANSFER[] = {
    {"setup", YAML_DURATION, false, IN(setup_ns), 0, 60e9, NULL},
    {"per_descriptor", YAML_DURATION, false, IN(per_descriptor_ns), 0, 1e9,
     NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

enum {
    POOL_NAME,
    POOL_ROLE,
    POOL_COUNT,
    POOL_COMPUTE,
    POOL_PREFILL_MS,
    POOL_DECODE_MS,
    POOL_KV_TOKENS,
    POOL_KV_MEMORY,
    POOL_HOST,
    POOL_DISK,
    POOL_PREFILL_CHUNK,
    POOL_LOCAL_CHUNK
};
struct pool {
    struct yaml_given given;
    char name[YAML_TEXT_MAX], compute[YAML_TEXT_MAX];
    uint32_t role, count;
    double prefill_ms[3], decode_ms[3], speedup;
    uint64_t kv_tokens, kv_memory;
    uint32_t slots, prefill_chunk, local_chunk;
    bool fetch;
};
#define IN(member) offsetof(struct pool, member)
static const struct yaml_key POOL[] = {
    [POOL_NAME] = {"name", YAML_TEXT, true, IN(name), 0, 0, NULL},
    [POOL_ROLE] = {"role", YAML_WORD, true, IN(role), 0, 0, ROLES},
    [POOL_COUNT] = {"count", YAML_U32, true, IN(count), 1, WORKERS_MAX, NULL},
    [POOL_COMPUTE] = {"compute", YAML_TEXT, false, IN(compute), 0, 0, NULL},
    [POOL_PREFILL_MS] = {"prefill_ms", YAML_NUMBERS3, false, IN(prefill_ms), 0,
                         1e6, NULL},
    [POOL_DECODE_MS] = {"decode_ms", YAML_NUMBERS3, false, IN(decode_ms), 0,
                        1e6, NULL},
    [POOL_KV_TOKENS] = {"kv_tokens", YAML_U64, false, IN(kv_tokens), 1, 1e12,
                        NULL},
    [POOL_KV_MEMORY] = {"kv_memory", YAML_SIZE, false, IN(kv_memory), 1, 1e16,
                        NULL},
    [POOL_HOST] = {"host", YAML_MAP, false, 0, 0, 0, NULL},
    [POOL_DISK] = {"disk", YAML_MAP, false, 0, 0, 0, NULL},
    [POOL_PREFILL_CHUNK] = {"prefill_chunk", YAML_U32, false, IN(prefill_chunk),
                            0, 1 << 24, NULL},
    [POOL_LOCAL_CHUNK] = {"local_chunk", YAML_U32, false, IN(local_chunk), 0,
                          1 << 24, NULL},
    {"speedup", YAML_DOUBLE, false, IN(speedup), 1e-3, 1e6, NULL},
    {"decode_slots", YAML_U32, false, IN(slots), 1, 65536, NULL},
    {"fetch", YAML_FLAG, false, IN(fetch), 0, 0, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

struct tier {
    struct yaml_given given;
    uint64_t capacity, rate;
    int64_t setup_ns;
    uint32_t servers, saturation;
    double first_share;
};
#define IN(member) offsetof(struct tier, member)
static const struct yaml_key HOST[] = {
    {"capacity", YAML_SIZE, true, IN(capacity), 1, 1e16, NULL},
    {"rate", YAML_RATE, true, IN(rate), 1, 1e13, NULL},
    {"setup", YAML_DURATION, false, IN(setup_ns), 0, 60e9, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
static const struct yaml_key DISK[] = {
    {"capacity", YAML_SIZE, true, IN(capacity), 1, 1e16, NULL},
    {"rate", YAML_RATE, true, IN(rate), 1, 1e13, NULL},
    {"setup", YAML_DURATION, false, IN(setup_ns), 0, 60e9, NULL},
    {"servers", YAML_U32, false, IN(servers), 1, 1024, NULL},
    {"saturation", YAML_U32, false, IN(saturation), 1, 1024, NULL},
    {"first_share", YAML_DOUBLE, false, IN(first_share), 1e-3, 1, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

enum {
    FABRIC_NAME,
    FABRIC_NIC,
    FABRIC_SLOW,
    FABRIC_SLOW_POOL,
    FABRIC_RACKS,
    FABRIC_RACK_UP,
    FABRIC_OVER,
    FABRIC_SETUP,
    FABRIC_DESCRIPTOR,
    FABRIC_BACKGROUND,
    FABRIC_PERIOD,
    FABRIC_DEGRADED,
    FABRIC_PREFILL,
    FABRIC_DECODE
};
struct fabric {
    struct yaml_given given;
    char name[YAML_TEXT_MAX], slow_pool[YAML_TEXT_MAX];
    uint64_t nic, slow_nic, rack_up;
    uint32_t racks, prefill, decode;
    double oversubscription, background;
    int64_t setup_ns, per_descriptor_ns, period_ns;
};
#define IN(member) offsetof(struct fabric, member)
static const struct yaml_key FABRIC[] = {
    [FABRIC_NAME] = {"name", YAML_TEXT, true, IN(name), 0, 0, NULL},
    [FABRIC_NIC] = {"nic", YAML_RATE, true, IN(nic), 1, 1e13, NULL},
    [FABRIC_SLOW] = {"slow_nic", YAML_RATE, false, IN(slow_nic), 1, 1e13, NULL},
    [FABRIC_SLOW_POOL] = {"slow_pool", YAML_TEXT, false, IN(slow_pool), 0, 0,
                          NULL},
    [FABRIC_RACKS] = {"racks", YAML_U32, false, IN(racks), 1, WORKERS_MAX,
                      NULL},
    [FABRIC_RACK_UP] = {"rack_up", YAML_RATE, false, IN(rack_up), 1, 1e15,
                        NULL},
    [FABRIC_OVER] = {"oversubscription", YAML_DOUBLE, false,
                     IN(oversubscription), 1e-2, 1e3, NULL},
    [FABRIC_SETUP] = {"setup", YAML_DURATION, false, IN(setup_ns), 0, 60e9,
                      NULL},
    [FABRIC_DESCRIPTOR] = {"per_descriptor", YAML_DURATION, false,
                           IN(per_descriptor_ns), 0, 1e9, NULL},
    [FABRIC_BACKGROUND] = {"background", YAML_DOUBLE, false, IN(background), 0,
                           0.99, NULL},
    [FABRIC_PERIOD] = {"background_period", YAML_DURATION, false, IN(period_ns),
                       0, 3600e9, NULL},
    [FABRIC_DEGRADED] = {"degraded", YAML_MAP, false, 0, 0, 0, NULL},
    [FABRIC_PREFILL] = {"prefill_count", YAML_U32, false, IN(prefill), 1,
                        WORKERS_MAX, NULL},
    [FABRIC_DECODE] = {"decode_count", YAML_U32, false, IN(decode), 1,
                       WORKERS_MAX, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

enum { DEGRADED_WORKER };
struct degraded {
    struct yaml_given given;
    uint32_t worker;
    double factor;
};
#define IN(member) offsetof(struct degraded, member)
static const struct yaml_key DEGRADED[] = {
    [DEGRADED_WORKER] = {"worker", YAML_U32, true, IN(worker), 0, 0, NULL},
    {"factor", YAML_DOUBLE, true, IN(factor), 1e-3, 1, NULL},
    {NULL, YAML_MAP, false, 0, 0, 0, NULL},
};
#undef IN

/* ---- what it means ---- */

struct load {
    struct yaml_file *file;
    struct bt_sim_cluster *cluster;
    struct transfer transfer; /* defaults of the fabrics */
};

typedef const char *(*name_at_fn)(size_t i);

static enum bt_status unknown_name(struct load *l, int node, const char *what,
                                   const char *name, name_at_fn at)
{
    const char *names[NAMES_MAX], *hint;
    size_t count = 0;

    while (count < NAMES_MAX && at(count)) {
        names[count] = at(count);
        count++;
    }
    hint = bt_nearest(name, names, count);
    if (hint)
        return yaml_fault(l->file, node, BT_NOT_FOUND,
                          "there is no %s '%s' (did you mean '%s'?)", what,
                          name, hint);
    return yaml_fault(l->file, node, BT_NOT_FOUND, "there is no %s '%s'", what,
                      name);
}

static enum bt_status read_model(struct load *l, int node)
{
    struct model m = {.bytes = 0};
    struct bt_kv_geometry geometry;
    enum bt_status status = yaml_read(l->file, node, MODEL, &m);

    if (status != BT_OK)
        return status;
    if (!m.given.at[MODEL_KV] == !m.given.at[MODEL_BYTES])
        return yaml_fault(l->file, node, BT_INVALID,
                          "a model has either kv or kv_bytes_per_token");
    if (m.given.at[MODEL_KV]) {
        if (bt_kv_preset(m.kv, &geometry) != BT_OK)
            return unknown_name(l, m.given.at[MODEL_KV], "KV geometry", m.kv,
                                bt_kv_preset_name);
        m.bytes = bt_kv_bytes_per_token(&geometry);
    }
    l->cluster->kv_bytes_per_token = m.bytes;
    return BT_OK;
}

static enum bt_status read_engine(struct load *l, int node)
{
    struct engine e = {.pieces = 1,
                       .descriptor_tokens = 16,
                       .per_block = 1,
                       .replication = 1,
                       .decode_delta = true,
                       .late_decode = true};
    enum bt_status status = node ? yaml_read(l->file, node, ENGINE, &e) : BT_OK;

    if (status != BT_OK)
        return status;
    if (e.overlap == BT_OVERLAP_NONE && e.given.at[ENGINE_PIECES])
        return yaml_fault(l->file, e.given.at[ENGINE_PIECES], BT_INVALID,
                          "pieces need overlap: chunk or layer");
    if (e.overlap != BT_OVERLAP_NONE && !e.given.at[ENGINE_PIECES])
        return yaml_fault(l->file, e.given.at[ENGINE_OVERLAP], BT_INVALID,
                          "overlap needs pieces");
    l->cluster->descriptor_tokens = e.descriptor_tokens;
    l->cluster->mode =
        (struct bt_engine_mode){.overlap = (enum bt_overlap)e.overlap,
                                .pieces = e.pieces,
                                .allocate_first = e.allocate_first,
                                .whole_prompt = !e.decode_delta,
                                .late_decode = e.late_decode,
                                .descriptors_per_block = e.per_block,
                                .replication = e.replication};
    return BT_OK;
}

static enum bt_status read_compute(struct load *l, const struct pool *p,
                                   struct bt_compute_model *out)
{
    const int *at = p->given.at;

    if (at[POOL_COMPUTE]) {
        if (bt_compute_preset(p->compute, out) != BT_OK)
            return unknown_name(l, at[POOL_COMPUTE], "compute preset",
                                p->compute, bt_compute_preset_name);
    } else if (!at[POOL_PREFILL_MS] || !at[POOL_DECODE_MS]) {
        return yaml_fault(l->file, p->given.node, BT_INVALID,
                          "a pool needs compute: PRESET, or both prefill_ms "
                          "and decode_ms");
    }
    if (at[POOL_PREFILL_MS]) {
        out->prefill_a_ms = p->prefill_ms[0];
        out->prefill_b_ms = p->prefill_ms[1];
        out->prefill_c_ms = p->prefill_ms[2];
    }
    if (at[POOL_DECODE_MS]) {
        out->decode_a_ms = p->decode_ms[0];
        out->decode_b_ms = p->decode_ms[1];
        out->decode_c_ms = p->decode_ms[2];
    }
    out->speedup = p->speedup;
    return BT_OK;
}

/* Bytes of a tier as whole tokens of this model. */
static uint64_t tokens_of(const struct load *l, uint64_t bytes)
{
    return bytes / l->cluster->kv_bytes_per_token;
}

static enum bt_status read_tiers(struct load *l, const struct pool *p,
                                 struct bt_sim_pool *out)
{
    struct tier host = {.setup_ns = 0};
    struct tier disk = {.servers = 4, .saturation = 8, .first_share = 0.25};
    enum bt_status status = BT_OK;

    if (p->given.at[POOL_HOST])
        status = yaml_read(l->file, p->given.at[POOL_HOST], HOST, &host);
    if (status == BT_OK && p->given.at[POOL_DISK])
        status = yaml_read(l->file, p->given.at[POOL_DISK], DISK, &disk);
    if (status != BT_OK)
        return status;
    out->host_tokens = tokens_of(l, host.capacity);
    out->host = (struct bt_tier_model){host.rate, host.setup_ns};
    out->disk_tokens = tokens_of(l, disk.capacity);
    out->disk = (struct bt_tier_model){disk.rate, disk.setup_ns};
    if (out->disk_tokens) {
        out->disk_servers = disk.servers;
        out->disk_saturation = disk.saturation;
        out->disk_first_share = disk.first_share;
    }
    return BT_OK;
}

static enum bt_status check_pool(struct load *l, const struct pool *p,
                                 unsigned int roles)
{
    const int *at = p->given.at;

    for (uint32_t i = 0; i < l->cluster->pool_count; i++)
        if (strcmp(l->cluster->pools[i].name, p->name) == 0)
            return yaml_fault(l->file, at[POOL_NAME], BT_DUPLICATE,
                              "there is a pool '%s' already", p->name);
    if (!at[POOL_KV_TOKENS] == !at[POOL_KV_MEMORY])
        return yaml_fault(l->file, p->given.node, BT_INVALID,
                          "a pool has either kv_tokens or kv_memory");
    if (p->local_chunk && !(roles & BT_ROLE_DECODE))
        return yaml_fault(l->file, at[POOL_LOCAL_CHUNK], BT_INVALID,
                          "local_chunk is of workers that decode");
    if (p->prefill_chunk && roles != BT_ROLE_PREFILL)
        return yaml_fault(l->file, at[POOL_PREFILL_CHUNK], BT_INVALID,
                          "prefill_chunk is of workers that only prefill; "
                          "local_chunk is the one beside decodes");
    return BT_OK;
}

static enum bt_status read_pool(struct load *l, int node)
{
    struct bt_sim_pool *out = &l->cluster->pools[l->cluster->pool_count];
    struct pool p = {.speedup = 1, .slots = 256};
    enum bt_status status = yaml_read(l->file, node, POOL, &p);
    unsigned int roles = p.role + 1; /* enum bt_role is a bit set */

    if (status == BT_OK)
        status = check_pool(l, &p, roles);
    if (status == BT_OK)
        status = read_compute(l, &p, &out->compute);
    if (status == BT_OK)
        status = read_tiers(l, &p, out);
    if (status != BT_OK)
        return status;
    snprintf(out->name, sizeof(out->name), "%s", p.name);
    out->roles = roles;
    if (!p.given.at[POOL_PREFILL_MS] && !p.given.at[POOL_DECODE_MS])
        snprintf(out->preset, sizeof(out->preset), "%s", p.compute);
    out->count = p.count;
    out->kv_tokens =
        p.given.at[POOL_KV_TOKENS] ? p.kv_tokens : tokens_of(l, p.kv_memory);
    if (out->kv_tokens == 0)
        return yaml_fault(l->file, p.given.at[POOL_KV_MEMORY], BT_INVALID,
                          "kv_memory does not hold one token");
    out->decode_slots = p.slots;
    out->prefill_chunk = p.prefill_chunk;
    out->local_chunk = p.local_chunk;
    out->fetch = p.fetch;
    l->cluster->pool_count++;
    return BT_OK;
}

/* Workers of the fleet with a fabric's own counts in force. */
static uint32_t worker_count(const struct bt_sim_cluster *c,
                             const struct bt_sim_fabric *f)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->pool_count; i++) {
        const struct bt_sim_pool *p = &c->pools[i];

        if (p->roles == BT_ROLE_PREFILL && f->prefill_count)
            count += f->prefill_count;
        else if (p->roles == BT_ROLE_DECODE && f->decode_count)
            count += f->decode_count;
        else
            count += p->count;
    }
    return count;
}

static enum bt_status check_counts(struct load *l, const struct fabric *f)
{
    uint32_t pools[BT_ROLE_BOTH + 1] = {0};

    for (uint32_t i = 0; i < l->cluster->pool_count; i++)
        pools[l->cluster->pools[i].roles]++;
    if (f->prefill && pools[BT_ROLE_PREFILL] != 1)
        return yaml_fault(l->file, f->given.at[FABRIC_PREFILL], BT_INVALID,
                          "prefill_count needs exactly one prefill pool");
    if (f->decode && pools[BT_ROLE_DECODE] != 1)
        return yaml_fault(l->file, f->given.at[FABRIC_DECODE], BT_INVALID,
                          "decode_count needs exactly one decode pool");
    return BT_OK;
}

static enum bt_status read_degraded(struct load *l, int node,
                                    struct bt_sim_fabric *out)
{
    struct degraded d = {.factor = 0};
    enum bt_status status = yaml_read(l->file, node, DEGRADED, &d);
    uint32_t workers = worker_count(l->cluster, out);

    if (status != BT_OK)
        return status;
    if (d.worker >= workers)
        return yaml_fault(l->file, d.given.at[DEGRADED_WORKER], BT_INVALID,
                          "worker %u does not exist, there are %u (from 0)",
                          d.worker, workers);
    out->degraded_worker = d.worker;
    out->degraded_factor = d.factor;
    return BT_OK;
}

static enum bt_status check_fabric(struct load *l, const struct fabric *f)
{
    const int *at = f->given.at;

    for (uint32_t i = 0; i < l->cluster->fabric_count; i++)
        if (strcmp(l->cluster->fabrics[i].name, f->name) == 0)
            return yaml_fault(l->file, at[FABRIC_NAME], BT_DUPLICATE,
                              "there is a fabric '%s' already", f->name);
    if (at[FABRIC_SLOW] && f->slow_nic > f->nic)
        return yaml_fault(l->file, at[FABRIC_SLOW], BT_INVALID,
                          "slow_nic is faster than nic");
    if (at[FABRIC_SLOW_POOL] && !at[FABRIC_SLOW])
        return yaml_fault(l->file, at[FABRIC_SLOW_POOL], BT_INVALID,
                          "slow_pool needs slow_nic");
    if (at[FABRIC_RACK_UP] && at[FABRIC_OVER])
        return yaml_fault(l->file, at[FABRIC_OVER], BT_INVALID,
                          "either rack_up or oversubscription");
    if ((at[FABRIC_RACK_UP] || at[FABRIC_OVER]) && f->racks < 2)
        return yaml_fault(l->file, f->given.node, BT_INVALID,
                          "uplinks need racks: 2 or more");
    if (f->background > 0 && !at[FABRIC_RACK_UP] && !at[FABRIC_OVER])
        return yaml_fault(l->file, at[FABRIC_BACKGROUND], BT_INVALID,
                          "background traffic needs limited uplinks: rack_up "
                          "or oversubscription");
    if (at[FABRIC_PERIOD] && !at[FABRIC_BACKGROUND])
        return yaml_fault(l->file, at[FABRIC_PERIOD], BT_INVALID,
                          "background_period needs background");
    return check_counts(l, f);
}

static enum bt_status find_slow_pool(struct load *l, const struct fabric *f,
                                     uint32_t *out)
{
    *out = 0;
    if (!f->given.at[FABRIC_SLOW_POOL])
        return BT_OK;
    for (uint32_t i = 0; i < l->cluster->pool_count; i++)
        if (strcmp(l->cluster->pools[i].name, f->slow_pool) == 0)
            *out = i + 1;
    if (*out)
        return BT_OK;
    return yaml_fault(l->file, f->given.at[FABRIC_SLOW_POOL], BT_NOT_FOUND,
                      "there is no pool '%s'", f->slow_pool);
}

/* NICs of an average rack together, over the ratio. */
static uint64_t uplink(const struct bt_sim_fabric *f, uint32_t workers,
                       double ratio)
{
    double nic = (double)f->nic_bytes_per_s;

    if (f->slow_nic_bytes_per_s)
        nic = (nic + (double)f->slow_nic_bytes_per_s) / 2;
    return (uint64_t)(nic * (double)workers / (double)f->racks / ratio);
}

static enum bt_status place_fabric(struct load *l, const struct fabric *f,
                                   struct bt_sim_fabric *out)
{
    enum bt_status status;
    uint32_t workers;

    *out = (struct bt_sim_fabric){.nic_bytes_per_s = f->nic,
                                  .slow_nic_bytes_per_s = f->slow_nic,
                                  .racks = f->racks,
                                  .rack_up_bytes_per_s = f->rack_up,
                                  .setup_ns = f->setup_ns,
                                  .per_descriptor_ns = f->per_descriptor_ns,
                                  .background = f->background,
                                  .background_period_ns = f->period_ns,
                                  .prefill_count = f->prefill,
                                  .decode_count = f->decode};
    snprintf(out->name, sizeof(out->name), "%s", f->name);
    status = find_slow_pool(l, f, &out->slow_pool);
    if (status != BT_OK)
        return status;
    workers = worker_count(l->cluster, out);
    if (workers > WORKERS_MAX)
        return yaml_fault(l->file, f->given.node, BT_LIMIT,
                          "%u workers, at most %u", workers, WORKERS_MAX);
    if (f->racks > workers)
        return yaml_fault(l->file, f->given.at[FABRIC_RACKS], BT_INVALID,
                          "more racks than workers (%u)", workers);
    if (f->given.at[FABRIC_OVER])
        out->rack_up_bytes_per_s = uplink(out, workers, f->oversubscription);
    return BT_OK;
}

static enum bt_status read_fabric(struct load *l, int node)
{
    struct bt_sim_fabric *out = &l->cluster->fabrics[l->cluster->fabric_count];
    struct fabric f = {.setup_ns = l->transfer.setup_ns,
                       .per_descriptor_ns = l->transfer.per_descriptor_ns};
    enum bt_status status = yaml_read(l->file, node, FABRIC, &f);

    if (status == BT_OK)
        status = check_fabric(l, &f);
    if (status == BT_OK)
        status = place_fabric(l, &f, out);
    if (status == BT_OK && f.given.at[FABRIC_DEGRADED])
        status = read_degraded(l, f.given.at[FABRIC_DEGRADED], out);
    if (status == BT_OK)
        l->cluster->fabric_count++;
    return status;
}

static enum bt_status read_list(struct load *l, int node, const char *what,
                                uint32_t max,
                                enum bt_status (*read)(struct load *, int))
{
    uint32_t count = yaml_count(l->file, node);
    enum bt_status status = BT_OK;

    if (count == 0 || count > max)
        return yaml_fault(l->file, node, BT_LIMIT, "%s: 1 to %u, not %u", what,
                          max, count);
    for (uint32_t i = 0; i < count && status == BT_OK; i++)
        status = read(l, yaml_item(l->file, node, i));
    return status;
}

static enum bt_status check_roles(struct load *l, int node)
{
    unsigned int roles = 0;

    for (uint32_t i = 0; i < l->cluster->pool_count; i++)
        roles |= l->cluster->pools[i].roles;
    if (roles & BT_ROLE_DECODE)
        return BT_OK;
    return yaml_fault(l->file, node, BT_INVALID, "no pool decodes");
}

static enum bt_status read_top(struct load *l)
{
    struct top top = {.schema = 0};
    enum bt_status status = yaml_read(l->file, yaml_root(l->file), TOP, &top);
    const int *at = top.given.at;

    if (status == BT_OK)
        status = read_model(l, at[TOP_MODEL]);
    if (status == BT_OK)
        status = read_engine(l, at[TOP_ENGINE]);
    if (status == BT_OK && at[TOP_TRANSFER])
        status = yaml_read(l->file, at[TOP_TRANSFER], TRANSFER, &l->transfer);
    if (status == BT_OK)
        status =
            read_list(l, at[TOP_POOLS], "pools", BT_SIM_POOLS_MAX, read_pool);
    if (status == BT_OK)
        status = check_roles(l, at[TOP_POOLS]);
    if (status == BT_OK)
        status = read_list(l, at[TOP_FABRICS], "fabrics", BT_SIM_FABRICS_MAX,
                           read_fabric);
    snprintf(l->cluster->name, sizeof(l->cluster->name), "%s", top.name);
    return status;
}

enum bt_status bt_sim_cluster_load(const char *path, struct bt_sim_cluster *out,
                                   char *error_out, size_t error_size)
{
    struct load l = {.cluster = calloc(1, sizeof(*l.cluster))};
    enum bt_status status;

    if (!l.cluster) {
        snprintf(error_out, error_size, "%s: out of memory", path);
        return BT_NO_MEMORY;
    }
    status = yaml_file_open(path, error_out, error_size, &l.file);
    if (status == BT_OK)
        status = read_top(&l);
    if (status == BT_OK)
        *out = *l.cluster;
    yaml_file_close(l.file);
    free(l.cluster);
    return status;
}

uint64_t bt_sim_fabric_nic(const struct bt_sim_fabric *fabric, uint32_t pool,
                           uint32_t index)
{
    bool slow = fabric->slow_nic_bytes_per_s != 0 &&
                (fabric->slow_pool != 0 ? fabric->slow_pool == pool + 1
                                        : index % 2 == 1);

    return slow ? fabric->slow_nic_bytes_per_s : fabric->nic_bytes_per_s;
}

enum bt_status bt_sim_fabric_find(const struct bt_sim_cluster *cluster,
                                  const char *name, uint32_t *index_out)
{
    for (uint32_t i = 0; i < cluster->fabric_count; i++) {
        if (strcmp(cluster->fabrics[i].name, name) != 0)
            continue;
        *index_out = i;
        return BT_OK;
    }
    return BT_NOT_FOUND;
}
