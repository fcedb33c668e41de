/* Own flows on the links of a topology, as a fluid: running flows have max-min
 * fair rates, which hold until a flow starts, ends or is closed. Decides how
 * many bytes are left at a change; leaves what a new transfer would take to
 * network_estimate.c, what was booked to the ledger.
 *
 * Invariants: a flow is listed on its links while it is planned or running; a
 * flow without a link that limits it finishes as it starts; every turn of a
 * roll ends a flow, starts one or reaches its time.
 */
#include "network_impl.h"

#include "topology_impl.h"

#include "baton/planner/cost.h"

#include <assert.h>
#include <math.h>

#define BACKGROUND_MAX 0.95
/* Less than this is nothing: far below a byte, far above rounding. */
#define BYTES_MIN 1e-6

/* ---- memory ---- */

static size_t fluid_bytes(size_t flows)
{
    return bt_arena_need(flows, sizeof(struct bt_maxmin_flow)) +
           bt_arena_need(flows, sizeof(double)) +
           bt_arena_need(flows, sizeof(uint32_t));
}

static bool fluid_init(struct net_fluid *fluid, struct bt_arena *arena,
                       size_t flows)
{
    fluid->flows = bt_arena_take(arena, flows, sizeof(*fluid->flows));
    fluid->left = bt_arena_take(arena, flows, sizeof(*fluid->left));
    fluid->handle = bt_arena_take(arena, flows, sizeof(*fluid->handle));
    return fluid->flows != NULL && fluid->left != NULL && fluid->handle != NULL;
}

size_t bt_network_bytes(const struct bt_network_limits *limits)
{
    size_t f = limits->flows_max;
    size_t l = bt_topology_link_count(limits->topology);

    return bt_arena_need(1, sizeof(struct bt_network)) +
           bt_arena_need(l, sizeof(struct net_link)) +
           bt_arena_need(l, sizeof(struct net_memo)) +
           bt_arena_need(1 + f * BT_PATH_LINKS_MAX, sizeof(struct net_node)) +
           bt_arena_need(f, sizeof(struct net_flow)) + 2 * fluid_bytes(f + 1) +
           2 * bt_arena_need(f, sizeof(uint32_t)) +
           4 * bt_arena_need(l, sizeof(double)) +
           bt_arena_need(1, bt_maxmin_scratch(f + 1, l));
}

static bool take_memory(struct bt_network *net, struct bt_arena *arena)
{
    size_t f = net->flows_max;
    size_t l = bt_topology_link_count(net->topology);

    net->links = bt_arena_take(arena, l, sizeof(*net->links));
    net->memos = bt_arena_take(arena, l, sizeof(*net->memos));
    net->nodes = bt_arena_take(arena, 1 + f * BT_PATH_LINKS_MAX,
                               sizeof(struct net_node));
    net->flows = bt_arena_take(arena, f, sizeof(*net->flows));
    net->planned = bt_arena_take(arena, f, sizeof(*net->planned));
    net->finished = bt_arena_take(arena, f, sizeof(*net->finished));
    net->rate = bt_arena_take(arena, l, sizeof(*net->rate));
    net->background = bt_arena_take(arena, l, sizeof(*net->background));
    net->capacity = bt_arena_take(arena, l, sizeof(*net->capacity));
    net->passed = bt_arena_take(arena, l, sizeof(*net->passed));
    net->scratch = bt_arena_take(arena, 1, bt_maxmin_scratch(f + 1, l));
    return fluid_init(&net->running, arena, f + 1) &&
           fluid_init(&net->trial, arena, f + 1) && net->links != NULL &&
           net->memos != NULL && net->nodes != NULL && net->flows != NULL &&
           net->planned != NULL && net->finished != NULL && net->rate != NULL &&
           net->background != NULL && net->capacity != NULL &&
           net->passed != NULL && net->scratch != NULL;
}

/* ---- links ---- */

static void refresh_link(struct bt_network *net, uint32_t link)
{
    double capacity = (double)net->rate[link] * (1 - net->background[link]);

    net->down -= isinf(net->links[link].ns_per_byte) != 0;
    net->capacity[link] = capacity;
    net->links[link].ns_per_byte = capacity > 0 ? 1e9 / capacity : HUGE_VAL;
    net->down += isinf(net->links[link].ns_per_byte) != 0;
    net->stale = true;
    net->version++;
}

struct bt_network *bt_network_init(struct bt_arena *arena,
                                   const struct bt_network_limits *limits)
{
    struct bt_network *net = bt_arena_take(arena, 1, sizeof(*net));

    if (net == NULL || limits->flows_max == 0 ||
        limits->flows_max > (UINT32_MAX - 1) / BT_PATH_LINKS_MAX)
        return NULL;
    net->topology = limits->topology;
    net->flows_max = limits->flows_max;
    net->rolled_ns = INT64_MIN;
    net->next_start_ns = INT64_MAX;
    net->version = 1;
    if (!take_memory(net, arena))
        return NULL;
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        net->setup_ns[i] = net->topology->classes[i].setup_ns;
    for (uint32_t i = 0; i < bt_topology_link_count(net->topology); i++) {
        net->rate[i] = bt_topology_link_at(net->topology, i)->rate_bytes_per_s;
        refresh_link(net, i);
    }
    net->stale = false;
    return net;
}

const struct bt_topology *bt_network_topology(const struct bt_network *net)
{
    return net->topology;
}

void bt_network_rate_set(struct bt_network *net, uint32_t link,
                         uint64_t bytes_per_s)
{
    assert(link < bt_topology_link_count(net->topology));
    net->rate[link] = bytes_per_s;
    refresh_link(net, link);
}

uint64_t bt_network_rate(const struct bt_network *net, uint32_t link)
{
    assert(link < bt_topology_link_count(net->topology));
    return net->rate[link];
}

void bt_network_setup_set(struct bt_network *net, enum bt_path_class path_class,
                          int64_t ns)
{
    assert(ns >= 0 && ns < BT_COST_INFINITE);
    net->setup_ns[path_class] = ns;
}

int64_t bt_network_setup(const struct bt_network *net,
                         enum bt_path_class path_class)
{
    return net->setup_ns[path_class];
}

void bt_network_background_set(struct bt_network *net, uint32_t link,
                               double share)
{
    assert(link < bt_topology_link_count(net->topology));
    if (!(share > 0))
        share = 0;
    net->background[link] = share < BACKGROUND_MAX ? share : BACKGROUND_MAX;
    refresh_link(net, link);
}

bool bt_network_is_empty(const struct bt_network *net)
{
    return net->held == 0;
}

uint32_t bt_network_flows_on(const struct bt_network *net, uint32_t link)
{
    assert(link < bt_topology_link_count(net->topology));
    return net->links[link].listed;
}

/* ---- the fluid ---- */

void fluid_add(struct net_fluid *fluid, const struct net_flow *flow,
               uint32_t handle, double left)
{
    uint32_t at = fluid->count++;
    struct bt_maxmin_flow *x = &fluid->flows[at];

    x->count = flow->count;
    x->cap_bytes_per_s = flow->cap_bytes_per_s;
    x->rate = 0;
    for (uint32_t k = 0; k < flow->count; k++)
        x->links[k] = flow->links[k];
    fluid->left[at] = left;
    fluid->handle[at] = handle;
}

/* The last one takes its place. */
void fluid_remove(struct net_fluid *fluid, uint32_t at)
{
    uint32_t last = --fluid->count;

    fluid->flows[at] = fluid->flows[last];
    fluid->left[at] = fluid->left[last];
    fluid->handle[at] = fluid->handle[last];
}

void fluid_solve(const struct bt_network *net, struct net_fluid *fluid)
{
    bt_maxmin_rates(fluid->flows, fluid->count, net->capacity,
                    bt_topology_link_count(net->topology), net->scratch);
}

double fluid_first_end_ns(const struct net_fluid *fluid)
{
    double first = HUGE_VAL;

    for (uint32_t i = 0; i < fluid->count; i++) {
        double end = fluid->left[i] / (fluid->flows[i].rate * PER_NS);

        if (end < first)
            first = end;
    }
    return first;
}

double fluid_moved(const struct net_fluid *fluid, uint32_t at, double span_ns)
{
    double moved = fluid->flows[at].rate * PER_NS * span_ns;
    double left = fluid->left[at] - moved * (1 + 1e-12);

    return left < BYTES_MIN ? fluid->left[at] : moved;
}

/* ---- lists ---- */

static void list_flow(struct bt_network *net, uint32_t handle)
{
    const struct net_flow *f = &net->flows[handle];

    for (uint32_t k = 0; k < f->count; k++) {
        struct net_link *link = &net->links[f->links[k]];
        uint32_t i = net_node_of(handle, k);

        net->nodes[i] = (struct net_node){
            .next = link->first, .left = f->bytes, .start_ns = f->start_ns};
        if (link->first != 0)
            net->nodes[link->first].prev = i;
        link->first = i;
        link->listed++;
    }
}

static void unlist_flow(struct bt_network *net, uint32_t handle)
{
    const struct net_flow *f = &net->flows[handle];

    for (uint32_t k = 0; k < f->count; k++) {
        struct net_link *link = &net->links[f->links[k]];
        const struct net_node *node = &net->nodes[net_node_of(handle, k)];

        if (node->prev != 0)
            net->nodes[node->prev].next = node->next;
        else
            link->first = node->next;
        if (node->next != 0)
            net->nodes[node->next].prev = node->prev;
        link->listed--;
    }
}

static void publish_flow(struct bt_network *net, uint32_t at)
{
    uint32_t n = net_node_of(net->running.handle[at], 0);

    for (uint32_t k = 0; k < net->running.flows[at].count; k++) {
        net->nodes[n + k].left = net->running.left[at];
        net->nodes[n + k].per_ns = net->running.flows[at].rate * PER_NS;
    }
}

/* What the nodes say of the running flows, after a roll or new rates. */
static void publish(struct bt_network *net)
{
    for (uint32_t i = 0; i < net->running.count; i++)
        publish_flow(net, i);
}

/* ---- from planned to running to finished ---- */

/* Alone on all its links: its rate, and nobody else's changes. */
static double lone_rate(const struct bt_network *net, const struct net_flow *f)
{
    double rate = f->cap_bytes_per_s > 0 ? f->cap_bytes_per_s : HUGE_VAL;

    for (uint32_t k = 0; k < f->count; k++) {
        if (net->links[f->links[k]].running != 0)
            return -1;
        if (net->capacity[f->links[k]] < rate)
            rate = net->capacity[f->links[k]];
    }
    return rate;
}

/* True when rates must be solved anew. */
static bool run_flow(struct bt_network *net, uint32_t handle)
{
    struct net_flow *f = &net->flows[handle];
    double rate = lone_rate(net, f);

    f->state = NET_RUNNING;
    f->at = net->running.count;
    fluid_add(&net->running, f, handle, f->bytes);
    for (uint32_t k = 0; k < f->count; k++) {
        f->passed[k] = net->passed[f->links[k]];
        net->links[f->links[k]].running++;
    }
    if (rate < 0)
        return true;
    net->running.flows[f->at].rate = rate;
    publish_flow(net, f->at);
    return false;
}

static bool stop_flow(struct bt_network *net, uint32_t handle)
{
    struct net_flow *f = &net->flows[handle];
    bool shared = false;

    fluid_remove(&net->running, f->at);
    if (f->at < net->running.count)
        net->flows[net->running.handle[f->at]].at = f->at;
    for (uint32_t k = 0; k < f->count; k++) {
        if (--net->links[f->links[k]].running != 0)
            shared = true;
    }
    return shared;
}

static void plan_flow(struct bt_network *net, uint32_t handle)
{
    struct net_flow *f = &net->flows[handle];

    f->state = NET_PLANNED;
    f->at = net->planned_count;
    net->planned[net->planned_count++] = handle;
    if (f->start_ns < net->next_start_ns)
        net->next_start_ns = f->start_ns;
}

static void unplan_flow(struct bt_network *net, uint32_t handle)
{
    uint32_t at = net->flows[handle].at;
    uint32_t last = net->planned[--net->planned_count];

    net->planned[at] = last;
    net->flows[last].at = at;
}

static void finish_flow(struct bt_network *net, uint32_t handle, int64_t at_ns)
{
    struct net_flow *f = &net->flows[handle];

    f->state = NET_FINISHED;
    f->finished_ns = at_ns;
    f->at = net->finished_count;
    net->finished[net->finished_count++] = handle;
    for (uint32_t k = 0; k < f->count; k++)
        f->ended[k] = net->passed[f->links[k]];
}

static void unfinish_flow(struct bt_network *net, uint32_t handle)
{
    uint32_t at = net->flows[handle].at;
    uint32_t last = net->finished[--net->finished_count];

    net->finished[at] = last;
    net->flows[last].at = at;
}

/* ---- rolling ---- */

static bool start_due(struct bt_network *net, int64_t at_ns)
{
    bool changed = false;
    int64_t next = INT64_MAX;

    for (uint32_t i = 0; i < net->planned_count;) {
        uint32_t handle = net->planned[i];

        if (net->flows[handle].start_ns <= at_ns) {
            unplan_flow(net, handle);
            changed |= run_flow(net, handle);
            continue;
        }
        if (net->flows[handle].start_ns < next)
            next = net->flows[handle].start_ns;
        i++;
    }
    net->next_start_ns = next;
    return changed;
}

/* The span ends at to_ns. */
static bool drain(struct bt_network *net, double span_ns, int64_t to_ns)
{
    struct net_fluid *run = &net->running;
    bool changed = false;

    for (uint32_t i = 0; i < run->count;) {
        uint32_t handle = run->handle[i];
        double moved = fluid_moved(run, i, span_ns);

        for (uint32_t k = 0; k < run->flows[i].count; k++)
            net->passed[run->flows[i].links[k]] += moved;
        run->left[i] -= moved;
        if (run->left[i] > 0) {
            i++;
            continue;
        }
        changed |= stop_flow(net, handle);
        unlist_flow(net, handle);
        finish_flow(net, handle, to_ns);
    }
    return changed;
}

/* Nanoseconds from `at` after rolled_ns to the next start, not negative. */
static double until_start(const struct bt_network *net, double at)
{
    double start;

    if (net->next_start_ns == INT64_MAX)
        return HUGE_VAL;
    start = (double)(net->next_start_ns - net->rolled_ns) - at;
    return start > 0 ? start : 0;
}

static void roll(struct bt_network *net, double span)
{
    double at = 0;

    for (bool done = false; !done;) {
        double end = fluid_first_end_ns(&net->running);
        double start = until_start(net, at);
        double step = end < start ? end : start;
        bool changed;

        done = at + step >= span;
        step = done ? span - at : step;
        changed = drain(net, step, net->rolled_ns + (int64_t)(at + step));
        if (start <= step)
            changed |= start_due(net, net->next_start_ns);
        if (changed)
            fluid_solve(net, &net->running);
        at += step;
    }
}

void network_advance(struct bt_network *net, int64_t now_ns)
{
    if (now_ns <= net->rolled_ns)
        return;
    net->version++;
    if (net->running.count == 0 && net->next_start_ns > now_ns) {
        net->rolled_ns = now_ns;
        return;
    }
    if (net->running.count == 0)
        net->rolled_ns = net->next_start_ns;
    roll(net, (double)(now_ns - net->rolled_ns));
    net->rolled_ns = now_ns;
    publish(net);
}

/* New rates after a change, where they are needed. */
static void refresh_rates(struct bt_network *net, bool changed)
{
    net->version++;
    if (!changed && !net->stale)
        return;
    fluid_solve(net, &net->running);
    net->stale = false;
    publish(net);
}

/* ---- changes ---- */

/* A flow that nothing limits, or of no bytes, has finished already. */
static bool enter(struct bt_network *net, uint32_t handle, int64_t now_ns)
{
    struct net_flow *f = &net->flows[handle];

    if (f->count == 0 || f->bytes <= 0) {
        finish_flow(net, handle, now_ns);
        return false;
    }
    list_flow(net, handle);
    if (f->start_ns <= now_ns)
        return run_flow(net, handle);
    plan_flow(net, handle);
    return false;
}

static bool leave(struct bt_network *net, uint32_t handle)
{
    bool changed = false;

    switch (net->flows[handle].state) {
    case NET_RUNNING:
        changed = stop_flow(net, handle);
        break;
    case NET_PLANNED:
        unplan_flow(net, handle);
        break;
    case NET_FINISHED:
        unfinish_flow(net, handle);
        return false;
    case NET_FREE:
        return false;
    }
    unlist_flow(net, handle);
    return changed;
}

void bt_network_open(struct bt_network *net, uint32_t handle, int64_t now_ns,
                     uint32_t a, uint32_t b, uint64_t bytes, int64_t start_ns)
{
    struct topology_route route;
    struct net_flow *f;

    assert(handle < net->flows_max);
    f = &net->flows[handle];
    assert(f->state == NET_FREE);
    topology_route(net->topology, a, b, &route);
    f->count = route.count;
    for (uint32_t k = 0; k < route.count; k++)
        f->links[k] = route.links[k];
    f->cap_bytes_per_s =
        (double)net->topology->classes[route.path_class].flow_bytes_per_s_max;
    f->bytes = (double)bytes;
    f->start_ns = start_ns;
    net->held++;
    network_advance(net, now_ns);
    refresh_rates(net, enter(net, handle, now_ns));
}

/* Planned for later and still not due: nothing else changes. */
static void postpone(struct bt_network *net, uint32_t handle, int64_t start_ns)
{
    struct net_flow *f = &net->flows[handle];

    net->version++;
    f->start_ns = start_ns;
    for (uint32_t k = 0; k < f->count; k++)
        net->nodes[net_node_of(handle, k)].start_ns = start_ns;
    if (start_ns < net->next_start_ns)
        net->next_start_ns = start_ns;
}

void bt_network_plan(struct bt_network *net, uint32_t handle, int64_t now_ns,
                     int64_t start_ns)
{
    struct net_flow *f;
    bool changed;

    assert(handle < net->flows_max);
    f = &net->flows[handle];
    if (f->state == NET_FREE || f->start_ns == start_ns)
        return;
    if (f->state == NET_PLANNED && f->start_ns > now_ns && start_ns > now_ns) {
        postpone(net, handle, start_ns);
        return;
    }
    network_advance(net, now_ns);
    changed = leave(net, handle);
    f->start_ns = start_ns;
    changed |= enter(net, handle, now_ns);
    refresh_rates(net, changed);
}

void bt_network_close(struct bt_network *net, uint32_t handle, int64_t now_ns)
{
    bool changed;

    assert(handle < net->flows_max);
    if (net->flows[handle].state == NET_FREE)
        return;
    network_advance(net, now_ns);
    changed = leave(net, handle);
    net->flows[handle].state = NET_FREE;
    net->held--;
    refresh_rates(net, changed);
}
