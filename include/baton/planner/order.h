/* In which order held requests are served (cost-models.md section 17): by
 * slack to their SLO, scaled by length, with ageing so that nothing starves,
 * priority classes and tenant fairness. Pure.
 *
 * Bound on waiting under the slack order: a request that has waited w has key
 * service - ageing * w in the late class, and no request of its priority and
 * tenant share arriving after it can pass it once ageing * w exceeds the
 * longest service: w_max = service_max / ageing, plus the time to serve what
 * was ahead by then.
 */
#ifndef BATON_PLANNER_ORDER_H
#define BATON_PLANNER_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_order_rule {
    BT_ORDER_FCFS, /* by arrival */
    BT_ORDER_WSPT, /* (1 + priority) / max(1, prompt - cached), largest first */
    BT_ORDER_SLACK /* ours */
};

struct bt_order_item {
    int64_t arrival_ns;
    int64_t waited_ns;
    int64_t service_ns; /* least predicted time to the first token if it
                           were dispatched now: fetch + prefill + transfer */
    int64_t slo_ns;     /* TTFT limit of this request; 0: none */
    uint32_t prompt_tokens, cached_tokens;
    int32_t priority;   /* larger is served first, 0 normal */
    double tenant_lead; /* ns of service its tenant had beyond the least
                           served active tenant, >= 0 */
};
struct bt_order_knobs {
    enum bt_order_rule rule;
    double ageing;   /* ns of key per ns waited, e.g. 0.15 */
    double fairness; /* ns of key per ns of tenant lead, e.g. 0.5; 0 off */
};
/* Smaller goes first. Priority beats all else. Total order with ties broken by
 * the caller (arrival number). */
struct bt_order_key {
    int32_t minus_priority;
    uint32_t late; /* 1: cannot meet its SLO any more */
    double value;
};
struct bt_order_key bt_order_key_of(const struct bt_order_knobs *knobs,
                                    const struct bt_order_item *item);
int bt_order_compare(const struct bt_order_key *a,
                     const struct bt_order_key *b);

/* Service per tenant, decayed virtual time; fixed table, LRU replacement. */
#define BT_ORDER_TENANTS 64
struct bt_fairness {
    struct {
        uint64_t tenant;
        double served_ns, weight;
        int64_t used_ns; /* last use, for replacement */
        uint32_t waiting;
    } slots[BT_ORDER_TENANTS];
};
void bt_fairness_init(struct bt_fairness *f);
void bt_fairness_enter(struct bt_fairness *f, uint64_t tenant, int64_t now_ns);
void bt_fairness_leave(struct bt_fairness *f, uint64_t tenant);
void bt_fairness_serve(struct bt_fairness *f, uint64_t tenant,
                       int64_t service_ns);
double bt_fairness_lead(const struct bt_fairness *f, uint64_t tenant);

#endif
