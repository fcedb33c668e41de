/* Random: any prefill worker, any decode worker within its reach, each with
 * the same chance. Sees nothing.
 */
#include "rivals.h"

/* All are equal, so the seeded tie decides. */
static double nothing(const struct rival *r, uint32_t w)
{
    (void)r;
    (void)w;
    return 0;
}

static uint32_t pick(struct rival *r)
{
    return rival_least(r, nothing, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_random = {
    .name = "random",
    .summary = "uniform choice of a prefill and of a decode worker",
    .place = place,
};
