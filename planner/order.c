/* The order of held requests, and which tenant has had more than its share.
 * Decides keys and virtual times; leaves the queue, its sorting and the
 * tie-break by arrival number to the core.
 *
 * Invariants: keys of any input are comparable (no NaN). Virtual times stay
 * below REBASE_NS + LEAD_MAX_NS plus one service.
 */
#include "baton/planner/order.h"

#include <string.h>

/* A NaN or negative factor counts as none. */
static double positive(double x)
{
    return x > 0 ? x : 0;
}

static double wspt_value(const struct bt_order_item *item)
{
    double fresh = item->prompt_tokens > item->cached_tokens
                       ? (double)(item->prompt_tokens - item->cached_tokens)
                       : 1;
    double priority = (double)item->priority;

    return -(priority >= 0 ? 1 + priority : 1 / (1 - priority)) / fresh;
}

/* Less than nothing left between the limit and the least time it can take. */
static bool is_late(const struct bt_order_item *item)
{
    int64_t left;

    if (item->slo_ns <= 0)
        return false;
    if (__builtin_sub_overflow(item->slo_ns, item->waited_ns, &left))
        return item->waited_ns > 0;
    return left < item->service_ns;
}

static struct bt_order_key slack_key(const struct bt_order_knobs *knobs,
                                     const struct bt_order_item *item)
{
    double aged = (double)item->service_ns -
                  positive(knobs->ageing) * (double)item->waited_ns;

    return (struct bt_order_key){
        .late = is_late(item),
        .value = aged + positive(knobs->fairness) * positive(item->tenant_lead),
    };
}

struct bt_order_key bt_order_key_of(const struct bt_order_knobs *knobs,
                                    const struct bt_order_item *item)
{
    struct bt_order_key key = {0};

    switch (knobs->rule) {
    case BT_ORDER_FCFS:
        key.value = (double)item->arrival_ns;
        break;
    case BT_ORDER_WSPT:
        /* Its weight already holds the priority. */
        key.value = wspt_value(item);
        return key;
    case BT_ORDER_SLACK:
        key = slack_key(knobs, item);
        break;
    }
    key.minus_priority =
        item->priority > INT32_MIN ? -item->priority : INT32_MAX;
    return key;
}

/* Work that the oldest may be behind or ahead by: keeps sums sane. */
#define CREDIT_MAX_NS 3.6e12

bool bt_order_turn_is_due(const struct bt_order_turn *turn)
{
    return turn->share > 0 && turn->credit_ns >= 0;
}

void bt_order_turn_served(struct bt_order_turn *turn, int64_t service_ns,
                          bool was_oldest)
{
    double service = service_ns > 0 ? (double)service_ns : 0;

    if (turn->share <= 0)
        return;
    if (!was_oldest && turn->credit_ns >= 0)
        return; /* a turn that is due does not grow */
    turn->credit_ns += turn->share * service;
    if (was_oldest)
        turn->credit_ns -= service;
    if (turn->credit_ns < -CREDIT_MAX_NS)
        turn->credit_ns = -CREDIT_MAX_NS;
}

int bt_order_compare(const struct bt_order_key *a, const struct bt_order_key *b)
{
    if (a->minus_priority != b->minus_priority)
        return a->minus_priority < b->minus_priority ? -1 : 1;
    if (a->late != b->late)
        return a->late < b->late ? -1 : 1;
    return (a->value > b->value) - (a->value < b->value);
}

/* ---- tenants: start-time fair queueing ---- */

/* Lead beyond which a tenant is not held back longer: one that was served
 * alone because others could not be must not pay for it for hours. */
#define LEAD_MAX_NS 60e9
#define REBASE_NS   1e15
#define NO_SLOT     BT_ORDER_TENANTS

/* weight 0: the slot is free. */
void bt_fairness_init(struct bt_fairness *f)
{
    memset(f, 0, sizeof(*f));
}

static size_t slot_of(const struct bt_fairness *f, uint64_t tenant)
{
    for (size_t i = 0; i < BT_ORDER_TENANTS; i++) {
        if (f->slots[i].weight > 0 && f->slots[i].tenant == tenant)
            return i;
    }
    return NO_SLOT;
}

/* Virtual time now: the least served of the active ones. When none is active
 * the busy period is over and everybody starts level, with the most served. */
static void settle(struct bt_fairness *f)
{
    double least = -1;
    double most = 0;

    for (size_t i = 0; i < BT_ORDER_TENANTS; i++) {
        double served = f->slots[i].served_ns;

        if (!(f->slots[i].weight > 0))
            continue;
        if (f->slots[i].waiting > 0 && (least < 0 || served < least))
            least = served;
        most = served > most ? served : most;
    }
    f->level_ns = least >= 0 ? least : most;
}

/* A free slot, else that of the idle tenant unused for longest. */
static size_t take_slot(const struct bt_fairness *f)
{
    size_t best = NO_SLOT;

    for (size_t i = 0; i < BT_ORDER_TENANTS; i++) {
        if (!(f->slots[i].weight > 0))
            return i;
        if (f->slots[i].waiting > 0)
            continue;
        if (best == NO_SLOT || f->slots[i].used_ns < f->slots[best].used_ns)
            best = i;
    }
    return best;
}

void bt_fairness_enter(struct bt_fairness *f, uint64_t tenant, int64_t now_ns)
{
    size_t i = slot_of(f, tenant);

    if (i == NO_SLOT) {
        i = take_slot(f);
        if (i == NO_SLOT)
            return; /* all 64 wait: this one goes uncharged */
        f->slots[i].tenant = tenant;
        f->slots[i].weight = 1;
        f->slots[i].waiting = 0;
        f->slots[i].served_ns = f->level_ns;
    }
    if (f->slots[i].waiting == 0 && f->slots[i].served_ns < f->level_ns)
        f->slots[i].served_ns = f->level_ns;
    f->slots[i].used_ns = now_ns;
    if (f->slots[i].waiting < UINT32_MAX)
        f->slots[i].waiting++;
    settle(f);
}

void bt_fairness_leave(struct bt_fairness *f, uint64_t tenant)
{
    size_t i = slot_of(f, tenant);

    if (i != NO_SLOT && f->slots[i].waiting > 0)
        f->slots[i].waiting--;
    settle(f);
}

static void rebase(struct bt_fairness *f)
{
    for (size_t i = 0; i < BT_ORDER_TENANTS; i++)
        f->slots[i].served_ns = positive(f->slots[i].served_ns - f->level_ns);
    settle(f);
}

void bt_fairness_serve(struct bt_fairness *f, uint64_t tenant,
                       int64_t service_ns)
{
    size_t i = slot_of(f, tenant);

    if (i == NO_SLOT || service_ns <= 0)
        return;
    f->slots[i].served_ns += (double)service_ns / f->slots[i].weight;
    settle(f);
    if (f->slots[i].served_ns > f->level_ns + LEAD_MAX_NS)
        f->slots[i].served_ns = f->level_ns + LEAD_MAX_NS;
    if (f->slots[i].served_ns > REBASE_NS)
        rebase(f);
}

double bt_fairness_lead(const struct bt_fairness *f, uint64_t tenant)
{
    size_t i = slot_of(f, tenant);

    return i == NO_SLOT ? 0 : positive(f->slots[i].served_ns - f->level_ns);
}
