/* A run from its configuration to its result: defaults, what a configuration
 * may not be, set-up, the loop, the end. Everything of the world lives in one
 * struct sim that nobody outside sees.
 */
#include "sim_priv.h"

#include "baton/orchestrator/journal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT_MAX ((size_t)4 << 20)
/* Slower ones put arrivals beyond what int64 nanoseconds hold. */
#define SPEED_MIN 1e-6

void bt_sim_config_init(struct bt_sim_config *config)
{
    *config = (struct bt_sim_config){
        .speed = 1,
        .warmup = 0.1,
        .seed = 1,
        .policy = "joint",
        .hold = {.enabled = true,
                 .lead_ns = 20 * BT_NS_PER_MS,
                 .patience_ns = 2 * BT_NS_PER_S,
                 .ask_max = 64,
                 .ageing = 0.15,
                 .oldest_share = 0.02,
                 .fairness = 0.5,
                 .prefetch = true},
        .slo = {.ttft_base_ns = BT_NS_PER_S / 2,
                .ttft_factor = 3,
                .tpot_ns = 50 * BT_NS_PER_MS},
        .knowledge = {.telemetry_ns = 100 * BT_NS_PER_MS,
                      .event_replay = true,
                      .approximate = true,
                      .self_check = true,
                      .approximate_ttl_ns = 3600 * BT_NS_PER_S,
                      .calibrate = true},
    };
}

static bool share_is_sane(double share)
{
    return share >= 0 && share <= 1;
}

static const char *bad_knowledge(const struct bt_sim_knowledge *k)
{
    if (!(k->compute_bias > -1) || !(k->link_bias > -1) ||
        !isfinite(k->compute_bias) || !isfinite(k->link_bias))
        return "knowledge: a bias must be more than -1";
    if (k->telemetry_ns < 0 || k->telemetry_lag_ns < 0 || k->event_lag_ns < 0)
        return "knowledge: a time below 0";
    if (k->approximate && k->approximate_ttl_ns <= 0)
        return "knowledge: approximate_ttl must be above 0";
    if (!share_is_sane(k->event_loss))
        return "knowledge: event_loss is a share, 0..1";
    return NULL;
}

static const char *bad_pool(const struct bt_sim_pool *p)
{
    if (p->roles < BT_ROLE_PREFILL || p->roles > BT_ROLE_BOTH)
        return "a pool without a role";
    if (p->kv_tokens == 0)
        return "a pool without kv_tokens";
    if (!(p->compute.speedup > 0))
        return "a pool whose compute model has no speedup";
    return NULL;
}

static const char *bad_cluster(const struct bt_sim_config *c)
{
    const struct bt_sim_fabric *f;

    if (c->cluster == NULL || c->fabric >= c->cluster->fabric_count ||
        c->cluster->fabric_count > BT_SIM_FABRICS_MAX ||
        c->cluster->pool_count > BT_SIM_POOLS_MAX)
        return "no cluster, or a fabric that it does not have";
    for (uint32_t i = 0; i < c->cluster->pool_count; i++) {
        const char *bad = bad_pool(&c->cluster->pools[i]);

        if (bad != NULL)
            return bad;
    }
    f = &c->cluster->fabrics[c->fabric];
    if (f->nic_bytes_per_s == 0 || f->setup_ns < 0 || f->per_descriptor_ns < 0)
        return "a fabric without a NIC rate, or with a time below 0";
    if (!(f->background >= 0 && f->background < 1) ||
        f->background_period_ns < 0 || !(f->degraded_factor >= 0))
        return "a fabric whose background or degraded factor is no share";
    if (c->cluster->kv_bytes_per_token == 0)
        return "a cluster without kv_bytes_per_token";
    return NULL;
}

static const char *bad_trace(const struct bt_sim_config *c)
{
    if (c->trace == NULL || c->first >= c->trace->count)
        return "no trace, or a slice beyond its end";
    if (c->trace->count > COUNT_MAX)
        return "a trace of more than 4 Mi requests";
    if (!(c->speed >= SPEED_MIN) || !isfinite(c->speed))
        return "speed must be at least 1e-6";
    if (!(c->warmup >= 0 && c->warmup < 1))
        return "warmup is a share below 1";
    if (c->jitter_ns < 0)
        return "jitter below 0";
    if (c->policy == NULL)
        return "no policy";
    return NULL;
}

static const char *bad_fault(const struct bt_sim_config *c, uint32_t workers)
{
    for (size_t i = 0; i < c->fault_count; i++) {
        const struct bt_sim_fault *f = &c->faults[i];

        if ((unsigned int)f->kind >= BT_SIM_FAULT_COUNT ||
            f->worker >= workers || f->at_ns < 0)
            return "a fault of no kind, worker or time";
        if ((f->kind == BT_SIM_SLOW || f->kind == BT_SIM_NIC) &&
            !(f->factor > 0))
            return "a fault whose factor is not more than 0";
    }
    return NULL;
}

static enum bt_status check_config(const struct bt_sim_config *c,
                                   char *error_out, size_t error_size)
{
    const char *bad = bad_trace(c);

    if (bad == NULL)
        bad = bad_cluster(c);
    if (bad == NULL)
        bad = bad_knowledge(&c->knowledge);
    if (bad == NULL)
        return BT_OK;
    (void)snprintf(error_out, error_size, "%s", bad);
    return BT_INVALID;
}

static double wall_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static enum bt_status run(struct sim *s, char *error_out, size_t error_size)
{
    enum bt_status status = sim_setup(s, error_out, error_size);
    const char *bad = bad_fault(s->config, s->worker_count);

    if (status != BT_OK)
        return status;
    if (bad != NULL) {
        (void)snprintf(error_out, error_size, "%s", bad);
        return BT_INVALID;
    }
    status = sim_run_loop(s);
    if (s->journal != NULL && bt_journal_close(s->journal) != BT_OK)
        sim_fail(s, BT_IO);
    s->journal = NULL;
    if (status != BT_OK)
        return status;
    if (s->result->check_failures == 0)
        sim_check_end(s);
    sim_metrics_close(s);
    return s->failed;
}

enum bt_status bt_sim_run(const struct bt_sim_config *config,
                          struct bt_sim_result *out, char *error_out,
                          size_t error_size)
{
    struct sim *s;
    enum bt_status status;
    double from = wall_s();
    size_t n;

    *out = (struct bt_sim_result){0};
    error_out[0] = '\0';
    status = check_config(config, error_out, error_size);
    if (status != BT_OK)
        return status;
    n = config->trace->count - config->first;
    if (config->count != 0 && config->count < n)
        n = config->count;
    s = calloc(1, sizeof(*s));
    out->records = calloc(n, sizeof(*out->records));
    status = BT_NO_MEMORY;
    if (s != NULL && out->records != NULL) {
        s->config = config;
        s->cluster = config->cluster;
        s->fabric = &config->cluster->fabrics[config->fabric];
        s->result = out;
        sim_policy_use(s);
        status = run(s, error_out, error_size);
        sim_policy_use(NULL);
        sim_teardown(s);
    }
    free(s);
    out->wall_s = wall_s() - from;
    if (status == BT_OK)
        return BT_OK;
    if (error_out[0] == '\0')
        (void)snprintf(error_out, error_size, "%s", bt_status_text(status));
    bt_sim_result_fini(out);
    return status;
}

void bt_sim_result_fini(struct bt_sim_result *result)
{
    free(result->records);
    free(result->roles);
    free(result->busy_share);
    free(result->prefill_share);
    free(result->links);
    *result = (struct bt_sim_result){0};
}
