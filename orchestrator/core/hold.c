/* Late dispatch: requests that the policy holds back (BT_AGAIN) wait here and
 * not in an engine's queue, where nobody could put them in order any more
 * (cost-models.md section 17). Decides when and whom to ask again; what is
 * chosen, and the veto, are the policy's.
 *
 * A worker that may prefill has room while the work before it is at most
 * lead_ns. A drain asks for those requests whose key is smallest, ask_max of
 * them at most, and
 *
 *   - leaves out one that was asked since the last worker of its model got
 *     room, unless that is long ago or its patience has ended meanwhile: a
 *     vetoed request does not hide those behind it;
 *   - when no prefill worker has room it asks for one request only, since a
 *     policy may hold for reasons of its own, or for two of those not asked
 *     lately when a local prefill could start; and for none at all before
 *     something has ended.
 *
 * Keys come from what was noted when a request was asked about: no view is
 * built for order. Invariant: core->held names exactly the requests with `held`
 * set; all of them wait in the queue, or are on their way in or out of it. */
#include "core_internal.h"

#include "baton/base/units.h"

#include <assert.h>

/* A request is asked about again after this, or after this share of what it
 * has waited: thousands that wait for a crowded network must not be asked about
 * four times a second each. */
#define ASK_AGAIN_NS    (250 * BT_NS_PER_MS)
#define ASK_AGAIN_SHARE 16

static bool is_prefiller(const struct worker *w)
{
    return (w->config->roles & BT_ROLE_PREFILL) != 0;
}

static bool may_prefill(const struct worker *w)
{
    return w->state == BT_WORKER_READY &&
           (is_prefiller(w) || w->config->local_ok);
}

/* Room of the model that the worker's is part of. */
static uint32_t *room_count(struct bt_core *core, const struct worker *w)
{
    struct model_state *m = &core->models[w->config->model];

    return is_prefiller(w) ? &m->room : &m->local_room;
}

/* When the worker has room, absolute; now or earlier: it has. */
static int64_t room_at_ns(const struct bt_core *core, uint32_t slot)
{
    struct bt_ledger_worker booked;

    bt_ledger_worker_get(core->ledger, slot, &booked);
    if (booked.prefill_requests == 0)
        return INT64_MIN;
    return booked.prefill_free_ns - core->config.hold.lead_ns;
}

/* Looks at every worker; the earliest instant at which one gets room. */
static int64_t look_for_room(struct bt_core *core)
{
    int64_t next = INT64_MAX;

    for (uint32_t m = 0; m < core->config.model_count; m++)
        core->models[m].room = core->models[m].local_room = 0;
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        struct worker *w = &core->workers[i];
        struct model_state *m = &core->models[w->config->model];
        bool had = w->has_room;
        int64_t at;

        w->has_room = false;
        if (!may_prefill(w))
            continue;
        at = room_at_ns(core, i);
        w->has_room = at <= core->now_ns;
        *room_count(core, w) += w->has_room;
        m->epoch += w->has_room && !had && is_prefiller(w);
        if (!w->has_room && at < next)
            next = at;
    }
    return next;
}

void core_hold_note_booked(struct bt_core *core, uint32_t slot)
{
    struct worker *w = &core->workers[slot];

    if (!w->has_room || room_at_ns(core, slot) <= core->now_ns)
        return;
    w->has_room = false;
    if (*room_count(core, w) > 0)
        --*room_count(core, w);
    if (room_at_ns(core, slot) < core->drain_at_ns)
        core->drain_at_ns = room_at_ns(core, slot);
}

void core_hold_kick(struct bt_core *core)
{
    core->drain_at_ns = 0;
}

/* ---- what is noted of a request ---- */

static int64_t service_of(const struct bt_place_terms *t)
{
    int64_t sum = t->fetch_ns + t->prefill_ns + t->transfer_ns;

    return sum < BT_COST_INFINITE ? sum : BT_COST_INFINITE;
}

/* The policy may tell whom it has in mind; else it is asked as if it had to
 * decide now, on a copy of its state. */
static bool provisional(const struct bt_core *core,
                        const struct bt_place_view *view,
                        const struct bt_placement *answer,
                        struct bt_place_candidate *out)
{
    struct bt_policy_state state = core->policy_state;
    struct bt_place_view at_once = *view;
    struct bt_placement placement;

    if (answer->chosen.d < view->worker_count) {
        *out = answer->chosen;
        return true;
    }
    if (answer->second.d < view->worker_count) {
        *out = answer->second;
        return true;
    }
    at_once.may_hold = false;
    if (core->config.policy->place(&state, &at_once, &placement) != BT_OK)
        return false;
    *out = placement.chosen;
    return true;
}

static struct hold_item *hold_add(struct bt_core *core, struct request *r)
{
    struct hold_item *item = &core->held[core->held_count];

    assert(core->held_count < core->config.requests_max);
    r->held = true;
    r->held_at = core->held_count++;
    *item = (struct hold_item){.slot = core_request_slot_of(core, r),
                               .model = r->ask.model,
                               .number = r->number,
                               .tenant = r->ask.tenant,
                               .order = {
                                   .arrival_ns = r->record.received_ns,
                                   .service_ns = core_fastest_prefill_ns(
                                       core, r->ask.model, r->prompt_tokens),
                                   .slo_ns = r->record.ttft_slo_ns,
                                   .prompt_tokens = r->prompt_tokens,
                                   .priority = r->ask.priority,
                               }};
    return item;
}

void core_hold_forget(struct bt_core *core, struct request *r)
{
    struct hold_item *last;

    if (!r->held)
        return;
    assert(core->held_count > 0);
    last = &core->held[--core->held_count];
    core->requests[last->slot].held_at = r->held_at;
    core->held[r->held_at] = *last;
    r->held = false;
}

void core_hold_note_again(struct bt_core *core, struct request *r,
                          const struct bt_place_view *view,
                          const struct bt_placement *answer)
{
    bool first = !r->held;
    bool says = answer->chosen.d < view->worker_count ||
                answer->second.d < view->worker_count;
    struct hold_item *item;
    struct bt_place_candidate c;

    if (core->held_count == 0) /* nobody has looked for a while */
        core->drain_at_ns = look_for_room(core);
    item = first ? hold_add(core, r) : &core->held[r->held_at];
    item->asked_ns = core->now_ns;
    item->asked_epoch = core->models[item->model].epoch;
    if ((!first && !says) || !provisional(core, view, answer, &c))
        return;
    item->order.service_ns = service_of(&c.terms);
    item->order.cached_tokens = c.p == BT_PLACE_NONE || c.p == c.d
                                    ? c.terms.overlap_d
                                    : c.terms.overlap_p;
    if (first)
        r->record.provisional = c;
    core->likely = c;
    core->likely_of = item->slot;
}

/* ---- the drain ---- */

/* Most held requests in a row are of one tenant. */
struct lead_seen {
    uint64_t tenant;
    double lead;
    bool valid;
};

static double lead_of(const struct bt_core *core, uint64_t tenant,
                      struct lead_seen *seen)
{
    if (core->config.hold.fairness == 0)
        return 0;
    if (!seen->valid || seen->tenant != tenant)
        *seen = (struct lead_seen){
            .tenant = tenant,
            .lead = bt_fairness_lead(&core->fairness, tenant),
            .valid = true,
        };
    return seen->lead;
}

static bool pick_before(const struct hold_pick *a, const struct hold_pick *b)
{
    int order = bt_order_compare(&a->key, &b->key);

    return order != 0 ? order < 0 : a->number < b->number;
}

/* Keeps the picks ascending; the last falls out when there are `max`. */
static uint32_t pick_insert(struct hold_pick *picks, uint32_t count,
                            uint32_t max, const struct hold_pick *pick)
{
    uint32_t at = count;

    if (count == max && !pick_before(pick, &picks[count - 1]))
        return count;
    if (count == max)
        at = count - 1;
    for (; at > 0 && pick_before(pick, &picks[at - 1]); at--)
        picks[at] = picks[at - 1];
    picks[at] = *pick;
    return count < max ? count + 1 : count;
}

static struct bt_order_knobs order_knobs(const struct bt_core *core)
{
    return (struct bt_order_knobs){
        .rule = core->config.policy->order_rule,
        .ageing = core->config.hold.ageing,
        .fairness = core->config.hold.fairness,
    };
}

/* With its key as of now. */
static struct hold_pick pick_of(const struct bt_core *core,
                                const struct bt_order_knobs *knobs,
                                struct hold_item *item, struct lead_seen *seen)
{
    item->order.waited_ns = core->now_ns - item->order.arrival_ns;
    item->order.tenant_lead = lead_of(core, item->tenant, seen);
    return (struct hold_pick){.key = bt_order_key_of(knobs, &item->order),
                              .number = item->number,
                              .slot = item->slot};
}

bool core_hold_is_first(struct bt_core *core, const struct request *r)
{
    const struct bt_order_knobs knobs = order_knobs(core);
    struct hold_item *own = &core->held[r->held_at];
    struct lead_seen seen = {0};
    struct hold_pick first = pick_of(core, &knobs, own, &seen);

    for (uint32_t i = 0; i < core->held_count; i++) {
        struct hold_item *item = &core->held[i];
        struct hold_pick other;

        if (item == own || item->model != own->model)
            continue;
        other = pick_of(core, &knobs, item, &seen);
        if (pick_before(&other, &first))
            return false;
    }
    return true;
}

static bool is_due(const struct bt_core *core, const struct hold_item *item)
{
    int64_t received = item->order.arrival_ns;
    int64_t patience = core->config.hold.patience_ns;
    int64_t again = (item->asked_ns - received) / ASK_AGAIN_SHARE;

    if (again < ASK_AGAIN_NS)
        again = ASK_AGAIN_NS;
    return item->asked_epoch != core->models[item->model].epoch ||
           core->now_ns - item->asked_ns >= again ||
           (item->asked_ns - received < patience &&
            core->now_ns - received >= patience);
}

/* Whom a drain looks for. */
enum look {
    LOOK_ROOM,  /* those due, of models where a prefill worker has room */
    LOOK_LOCAL, /* those due, where only a local prefill could start */
    LOOK_FIRST  /* the first of all */
};
#define LOCAL_ASKS 2u

static uint32_t picks_of(const struct bt_core *core, enum look look)
{
    uint32_t max = core->config.hold.ask_max;

    if (look == LOOK_FIRST)
        return 1;
    if (look == LOOK_LOCAL && max > LOCAL_ASKS)
        max = LOCAL_ASKS;
    return max < core->config.requests_max ? max : core->config.requests_max;
}

static bool is_wanted(const struct bt_core *core, const struct hold_item *item,
                      enum look look)
{
    const struct model_state *m = &core->models[item->model];

    if (look == LOOK_FIRST)
        return true;
    return (look == LOOK_ROOM ? m->room : m->local_room) > 0 &&
           is_due(core, item);
}

/* The longest waiting of a model with room, of the highest priority. */
static const struct hold_item *oldest_of(const struct bt_core *core)
{
    const struct hold_item *best = NULL;

    for (uint32_t i = 0; i < core->held_count; i++) {
        const struct hold_item *item = &core->held[i];
        const struct model_state *m = &core->models[item->model];

        if (m->room + m->local_room == 0)
            continue;
        if (best == NULL || item->order.priority > best->order.priority ||
            (item->order.priority == best->order.priority &&
             item->number < best->number))
            best = item;
    }
    return best;
}

/* When it is due: before all picks, whatever its key. */
static uint32_t put_oldest_first(const struct bt_core *core, uint32_t count,
                                 uint32_t max)
{
    const struct hold_item *oldest =
        bt_order_turn_is_due(&core->turn) ? oldest_of(core) : NULL;
    uint32_t at = 0;

    if (oldest == NULL)
        return count;
    while (at < count && core->picks[at].slot != oldest->slot)
        at++;
    if (at == count && count < max)
        count++;
    if (at == max)
        at = max - 1;
    for (; at > 0; at--)
        core->picks[at] = core->picks[at - 1];
    core->picks[0] =
        (struct hold_pick){.number = oldest->number, .slot = oldest->slot};
    return count;
}

static uint32_t pick(struct bt_core *core, enum look look)
{
    const struct bt_order_knobs knobs = order_knobs(core);
    uint32_t max = picks_of(core, look), count = 0;
    struct lead_seen seen = {0};

    for (uint32_t i = 0; i < core->held_count; i++) {
        struct hold_item *item = &core->held[i];
        struct hold_pick next;

        if (!is_wanted(core, item, look))
            continue;
        next = pick_of(core, &knobs, item, &seen);
        count = pick_insert(core->picks, count, max, &next);
    }
    return put_oldest_first(core, count, max);
}

/* Asks for the picks in order; false when the effects are full. */
static bool ask(struct bt_core *core, uint32_t count, enum look look,
                struct bt_effects *fx, size_t reserve)
{
    for (uint32_t i = 0; i < count; i++) {
        struct request *r = &core->requests[core->picks[i].slot];
        uint32_t left = core->held_count;
        int64_t service = r->held ? core->held[r->held_at].order.service_ns : 0;
        bool due = bt_order_turn_is_due(&core->turn);

        if (core_effects_room(fx) < UNIT_EFFECTS + reserve)
            return false;
        if (look != LOOK_ROOM || core->models[r->ask.model].room > 0)
            (void)core_request_dispatch(core, r, fx);
        if (core->held_count == left)
            continue;
        bt_order_turn_served(&core->turn, service, due && i == 0);
        if (!due && bt_order_turn_is_due(&core->turn)) {
            core->drain_at_ns = core->now_ns; /* it goes first */
            break;
        }
    }
    return true;
}

/* The next one is asked for as long as the policy takes them. */
static bool probe(struct bt_core *core, struct bt_effects *fx, size_t reserve)
{
    for (uint32_t i = 0; i < core->config.hold.ask_max; i++) {
        uint32_t left = core->held_count;

        if (!ask(core, pick(core, LOOK_FIRST), LOOK_FIRST, fx, reserve))
            return false;
        if (core->held_count == left)
            break;
    }
    return true;
}

static enum look look_for(const struct bt_core *core)
{
    enum look look = LOOK_FIRST;

    for (uint32_t m = 0; m < core->config.model_count; m++) {
        if (core->models[m].room > 0)
            return LOOK_ROOM;
        if (core->models[m].local_room > 0)
            look = LOOK_LOCAL;
    }
    return look;
}

static bool drain(struct bt_core *core, bool kicked, struct bt_effects *fx,
                  size_t reserve)
{
    enum look look = look_for(core);
    uint32_t count;

    if (look != LOOK_ROOM && !kicked)
        return true;
    if (look == LOOK_FIRST)
        return probe(core, fx, reserve);
    count = pick(core, look);
    if (!ask(core, count, look, fx, reserve))
        return false;
    if (look == LOOK_ROOM && count == picks_of(core, look) &&
        look_for(core) == LOOK_ROOM)
        core->drain_at_ns = core->now_ns; /* there may be more */
    return true;
}

void core_hold_drain(struct bt_core *core, struct bt_effects *fx,
                     size_t reserve)
{
    bool kicked = core->drain_at_ns == 0;

    if (!core->config.hold.enabled || core->held_count == 0 ||
        core->now_ns < core->drain_at_ns ||
        core_effects_room(fx) < UNIT_EFFECTS + reserve)
        return;
    core->drain_at_ns = look_for_room(core);
    if (!drain(core, kicked, fx, reserve))
        core->drain_at_ns = 0;
}
