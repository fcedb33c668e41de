/* Decides which group of a hybrid model is indexed, from what its stores say.
 * Leaves the consequences to kv_apply.c. Invariant: the choice depends on the
 * set of what was seen only, and a told kind beats any guess.
 */
#include "kv_groups.h"

void kv_groups_init(struct kv_groups *g)
{
    *g = (struct kv_groups){.chosen = KV_GROUPS_NONE};
}

static uint32_t lowest(uint64_t mask)
{
    return mask == 0 ? KV_GROUPS_NONE : (uint32_t)__builtin_ctzll(mask);
}

static bool several(uint64_t mask)
{
    return (mask & (mask - 1)) != 0;
}

static uint32_t choose(const struct kv_groups *g)
{
    uint64_t untold = g->untold & ~(g->full | g->other);

    if (g->full != 0)
        return lowest(g->full);
    if (!several(untold | g->other))
        return lowest(untold);
    return lowest(untold & ~g->bent);
}

bool kv_groups_learn(struct kv_groups *g, const struct bt_kv_event *event)
{
    uint32_t before = g->chosen;
    uint64_t bit;

    if (event->group >= KV_GROUPS_MAX)
        return false;
    bit = UINT64_C(1) << event->group;
    switch (event->spec) {
    case BT_KV_SPEC_NONE:
        g->untold |= bit;
        break;
    case BT_KV_SPEC_FULL:
        g->full |= bit;
        break;
    case BT_KV_SPEC_OTHER:
        g->other |= bit;
        break;
    }
    if (!event->whole && event->store.block_tokens != 0)
        g->bent |= bit;
    g->chosen = choose(g);
    return before != KV_GROUPS_NONE && before != g->chosen;
}

bool kv_groups_unsure(const struct kv_groups *g)
{
    uint64_t seen = g->untold | g->full | g->other;

    return seen != 0 && g->full == 0 &&
           (several(seen) || g->chosen == KV_GROUPS_NONE);
}

bool kv_groups_takes(const struct kv_groups *g, const struct bt_kv_event *event)
{
    if (event->type != BT_KV_STORED && !event->has_group)
        return true;
    return event->group == g->chosen;
}

void kv_groups_mark(const struct kv_groups *g, struct bt_stream_mark *out)
{
    out->groups.untold = g->untold;
    out->groups.full = g->full;
    out->groups.other = g->other;
    out->groups.bent = g->bent;
}

void kv_groups_resume(struct kv_groups *g, const struct bt_stream_mark *mark)
{
    g->untold = mark->groups.untold;
    g->full = mark->groups.full;
    g->other = mark->groups.other;
    g->bent = mark->groups.bent;
    g->chosen = choose(g);
}
