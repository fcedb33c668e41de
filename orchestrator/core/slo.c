/* What a request could get at best, and from it its TTFT limit:
 *
 *     limit = base + factor * prefill of the whole prompt, nothing cached,
 *             on the fastest worker of its model
 *
 * by the configured models, so that a limit does not move while models are
 * learned. Workers with equal models are looked at once: `paces` names one
 * worker of each kind. */
#include "core_internal.h"

static bool same_pace(const struct bt_core_worker_config *a,
                      const struct bt_core_worker_config *b)
{
    const struct bt_compute_model *x = &a->compute, *y = &b->compute;

    return a->model == b->model && x->prefill_a_ms == y->prefill_a_ms &&
           x->prefill_b_ms == y->prefill_b_ms &&
           x->prefill_c_ms == y->prefill_c_ms && x->speedup == y->speedup;
}

static bool model_has_prefill(const struct bt_core *core, uint32_t model)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        if (core->worker_configs[i].model == model &&
            (core->worker_configs[i].roles & BT_ROLE_PREFILL) != 0)
            return true;
    }
    return false;
}

/* Decode workers count only for a model that nobody else prefills. */
void core_paces_find(struct bt_core *core)
{
    uint32_t n = core->config.worker_count;

    for (uint32_t i = 0; i < n; i++) {
        const struct bt_core_worker_config *w = &core->worker_configs[i];
        uint32_t at = 0;

        if ((w->roles & BT_ROLE_PREFILL) == 0 &&
            model_has_prefill(core, w->model))
            continue;
        while (at < core->pace_count &&
               !same_pace(&core->worker_configs[core->paces[at]], w))
            at++;
        if (at == core->pace_count)
            core->paces[core->pace_count++] = i;
    }
}

int64_t core_fastest_prefill_ns(const struct bt_core *core, uint32_t model,
                                uint32_t prompt_tokens)
{
    int64_t best = BT_COST_INFINITE;

    for (uint32_t i = 0; i < core->pace_count; i++) {
        const struct bt_core_worker_config *w =
            &core->worker_configs[core->paces[i]];
        int64_t ns;

        if (w->model != model)
            continue;
        ns = bt_prefill_ns(&w->compute, prompt_tokens, 0);
        if (ns < best)
            best = ns;
    }
    return best;
}

int64_t core_ttft_slo_ns(const struct bt_core *core, uint32_t model,
                         uint32_t prompt_tokens)
{
    const struct bt_core_slo_config *slo = &core->config.slo;
    double limit = (double)slo->ttft_base_ns;

    if (slo->ttft_factor > 0)
        limit += slo->ttft_factor *
                 (double)core_fastest_prefill_ns(core, model, prompt_tokens);
    return limit < (double)BT_COST_INFINITE ? (int64_t)limit : BT_COST_INFINITE;
}
