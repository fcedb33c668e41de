/* In which order held requests are served (cost-models.md section 17): by
 * slack to their SLO, scaled by length, with ageing, priority classes and
 * tenant fairness; and a turn for the longest waiting. Pure.
 *
 * Requests that can still meet their limit go before those that cannot: once
 * the queue is longer than the limits allow, every late request served first
 * makes one more late. Ageing alone then starves the late ones for as long as
 * the overload lasts, and letting aged requests pass (tried: in the simulator
 * at 1.15 of capacity attainment fell from 97 % to 9 %) lets all of them miss.
 * So a share of the dispatched work goes to the request that has waited
 * longest (a share of the dispatches would not do: the oldest are the longest).
 *
 * Bound on waiting: a request is dispatched before the work dispatched since it
 * came exceeds (own service + that of older ones waiting then + the largest
 * single service) / share, within its priority class.
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
/* Smaller goes first. Priority beats all else, but under WSPT it is a weight
 * (negative: 1/(1 - priority)). Total order with ties broken by the caller
 * (arrival number). NaN or negative factors count as 0. */
struct bt_order_key {
    int32_t minus_priority;
    uint32_t late; /* 1: cannot meet its SLO any more */
    double value;
};
struct bt_order_key bt_order_key_of(const struct bt_order_knobs *knobs,
                                    const struct bt_order_item *item);
int bt_order_compare(const struct bt_order_key *a,
                     const struct bt_order_key *b);

/* Whose turn it is. share: of the work, 0..1; 0: the oldest never has one. */
struct bt_order_turn {
    double share, credit_ns;
};
/* Is the next dispatch the longest waiting's? */
bool bt_order_turn_is_due(const struct bt_order_turn *turn);
/* A dispatch of this service; was_oldest: it was the longest waiting's. */
void bt_order_turn_served(struct bt_order_turn *turn, int64_t service_ns,
                          bool was_oldest);

/* Service per tenant in virtual time (start-time fair queueing); fixed table,
 * the longest idle tenant is replaced. Who becomes active starts level with the
 * least served active one, with the most served when none is active; a lead
 * ends at 60 s; the origin moves before values grow large. With 64 tenants
 * waiting a further one is not tracked: lead 0. weight: 1, or set by the
 * caller after enter. */
#define BT_ORDER_TENANTS 64
struct bt_fairness {
    struct {
        uint64_t tenant;
        double served_ns, weight;
        int64_t used_ns; /* last use, for replacement */
        uint32_t waiting;
    } slots[BT_ORDER_TENANTS];
    double level_ns; /* virtual time now */
};
void bt_fairness_init(struct bt_fairness *f);
/* One more (one fewer) request of the tenant waits. */
void bt_fairness_enter(struct bt_fairness *f, uint64_t tenant, int64_t now_ns);
void bt_fairness_leave(struct bt_fairness *f, uint64_t tenant);
void bt_fairness_serve(struct bt_fairness *f, uint64_t tenant,
                       int64_t service_ns);
double bt_fairness_lead(const struct bt_fairness *f, uint64_t tenant);

#endif
