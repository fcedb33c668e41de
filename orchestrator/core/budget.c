/* How many retries the fleet may afford: `min` per 10 s whatever the traffic,
 * beyond that `ratio` of the accepted requests (token bucket, at most
 * BUCKET_MAX saved up). Keeps a wave of failures from doubling the load. */
#include "core_internal.h"

#include "baton/base/units.h"

#define ONE        1000000u /* one retry, in millionths */
#define BUCKET_MAX (100u * (uint64_t)ONE)
#define WINDOW_NS  (10 * BT_NS_PER_S)

void core_budget_init(struct retry_budget *budget, double ratio, uint32_t min)
{
    if (!(ratio > 0))
        ratio = 0;
    if (ratio > 100)
        ratio = 100;
    budget->ratio_e6 = (uint64_t)(ratio * ONE + 0.5);
    budget->bucket_e6 = 0;
    budget->min = min;
    budget->used = 0;
    budget->window_start_ns = 0;
}

void core_budget_request(struct retry_budget *budget)
{
    budget->bucket_e6 += budget->ratio_e6;
    if (budget->bucket_e6 > BUCKET_MAX)
        budget->bucket_e6 = BUCKET_MAX;
}

bool core_budget_take(struct bt_core *core)
{
    struct retry_budget *budget = &core->budget;

    if (core->now_ns - budget->window_start_ns >= WINDOW_NS) {
        budget->window_start_ns = core->now_ns;
        budget->used = 0;
    }
    if (budget->used < budget->min) {
        budget->used++;
    } else if (budget->bucket_e6 >= ONE) {
        budget->bucket_e6 -= ONE;
    } else {
        core->counters.retries_denied++;
        return false;
    }
    core->counters.retries++;
    return true;
}
