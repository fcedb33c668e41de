/* Who may be chosen: ready, of the request's model, of the role, and large
 * enough for prompt + output. Then tiers: of these only the best tier is
 * marked, so a suspect worker or one that failed this request before is taken
 * only when nobody better is left.
 *
 *   decode  0 fresh             prefill  0 fresh
 *           1 suspect                    1 suspect
 *           2 failed its leg P           - had its leg P already
 *           3 that and suspect
 *           4 had its leg D (only if the query allows it)
 *           5 that and suspect
 */
#include "core_internal.h"

#include <string.h>

#define TIER_NONE 255u

static bool may_ever_fit(uint64_t capacity, const struct place_query *q)
{
    uint64_t need = (uint64_t)q->prompt_tokens + q->output_tokens;

    return capacity == 0 || need <= capacity;
}

static bool serves(const struct worker *w, const struct place_query *q,
                   enum bt_role role)
{
    return w->state == BT_WORKER_READY && w->config->model == q->model &&
           (w->config->roles & role) != 0;
}

static unsigned char tier_prefill(const struct bt_core *core,
                                  const struct place_query *q, uint32_t slot)
{
    if (!serves(&core->workers[slot], q, BT_ROLE_PREFILL))
        return TIER_NONE;
    if (q->request != NULL &&
        core_record_tried(q->request, BT_LEG_PREFILL, slot))
        return TIER_NONE;
    return core_worker_is_suspect(core, slot) ? 1 : 0;
}

static unsigned char tier_decode(const struct bt_core *core,
                                 const struct place_query *q, uint32_t slot)
{
    const struct worker *w = &core->workers[slot];
    unsigned int tier = 0;

    if (!serves(w, q, BT_ROLE_DECODE) ||
        !may_ever_fit(w->kv_capacity_tokens, q))
        return TIER_NONE;
    if (q->request != NULL &&
        core_record_tried(q->request, BT_LEG_DECODE, slot)) {
        if (!q->allow_tried_d)
            return TIER_NONE;
        tier = 4;
    } else if (q->request != NULL && core_record_failed_on(q->request, slot)) {
        tier = 2;
    }
    return (unsigned char)(tier +
                           (core_worker_is_suspect(core, slot) ? 1u : 0u));
}

static uint32_t mark_best(const struct bt_core *core,
                          const unsigned char *tiers, enum bt_role role)
{
    uint32_t n = core->config.worker_count, count = 0;
    unsigned char best = TIER_NONE;

    for (uint32_t i = 0; i < n; i++) {
        if (tiers[i] < best)
            best = tiers[i];
    }
    for (uint32_t i = 0; i < n && best != TIER_NONE; i++) {
        if (tiers[i] != best)
            continue;
        core->marks[i] |= (unsigned char)role;
        count++;
    }
    return count;
}

struct eligible core_eligible_mark(const struct bt_core *core,
                                   const struct place_query *q)
{
    struct eligible found;
    uint32_t n = core->config.worker_count;

    memset(core->marks, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        core->tiers_p[i] = tier_prefill(core, q, i);
        core->tiers_d[i] = tier_decode(core, q, i);
    }
    found.p_count = mark_best(core, core->tiers_p, BT_ROLE_PREFILL);
    found.d_count = mark_best(core, core->tiers_d, BT_ROLE_DECODE);
    return found;
}

/* Could any registered decode worker of the model ever hold it, ready or not?
 * Of one that has not spoken yet the configured capacity counts. */
bool core_decode_may_ever_fit(const struct bt_core *core,
                              const struct place_query *q)
{
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        const struct worker *w = &core->workers[i];
        uint64_t capacity = w->kv_capacity_tokens;

        if (capacity == 0)
            capacity = w->config->kv_capacity_tokens;
        if (w->config->model == q->model &&
            (w->config->roles & BT_ROLE_DECODE) != 0 &&
            may_ever_fit(capacity, q))
            return true;
    }
    return false;
}
