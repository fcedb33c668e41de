/* What a new transfer would take among the own flows: the closed form of each
 * link (W6), the exact roll-forward (W7), bounds, what it costs the others, and
 * what passed beside a flow. Leaves every change to network.c.
 *
 * Looks leave no trace but the memo of a crowded link.
 *
 * Invariants: bytes of running flows are taken linearly from the last roll at
 * the rates of that instant, never below 0; the exact estimate works on a
 * trial fluid of its own; everything saturates at BT_COST_INFINITE, and a link
 * that is down makes a cost infinite, never free.
 */
#include "network_impl.h"

#include "baton/planner/cost.h"
#include "topology_impl.h"

#include <assert.h>
#include <math.h>

static int64_t to_cost(double ns)
{
    if (!(ns < (double)BT_COST_INFINITE))
        return BT_COST_INFINITE;
    return (int64_t)(ns + 0.5);
}

/* ---- closed form ---- */

/* One look at a link: when, and how much is to pass. */
struct look {
    int64_t at_ns;
    double since_ns; /* from the last roll to at_ns, >= 0 */
    double bytes;
};

static struct look look_at(const struct bt_network *net, int64_t now_ns,
                           int64_t at_ns, uint64_t bytes)
{
    struct look look = {.at_ns = at_ns > now_ns ? at_ns : now_ns,
                        .bytes = (double)bytes};

    if (look.at_ns > net->rolled_ns && net->running.count > 0)
        look.since_ns = (double)(look.at_ns - net->rolled_ns);
    return look;
}

/* Sum of min(left, bytes) over the flows that have started by look.at_ns or
 * will before until_ns; next_ns: the earliest start not counted. */
static double bytes_ahead(const struct bt_network *net,
                          const struct net_link *link, const struct look *look,
                          int64_t until_ns, int64_t *next_ns)
{
    double sum = 0;

    *next_ns = INT64_MAX;
    for (uint32_t i = link->first; i != 0; i = net->nodes[i].next) {
        const struct net_node *node = &net->nodes[i];
        double left = node->left - node->per_ns * look->since_ns;

        if (node->start_ns > until_ns) {
            if (node->start_ns < *next_ns)
                *next_ns = node->start_ns;
            continue;
        }
        left = left > 0 ? left : 0;
        sum += left < look->bytes ? left : look->bytes;
    }
    return sum;
}

/* Duration on one link alone. Planned flows that start before its end count,
 * which moves the end: every further turn counts at least one more of them. */
static double shared_ns(const struct bt_network *net,
                        const struct net_link *link, const struct look *look)
{
    int64_t until = look->at_ns, next;

    for (;;) {
        double ahead = bytes_ahead(net, link, look, until, &next);
        double ns = (look->bytes + ahead) * link->ns_per_byte;

        if (next == INT64_MAX || (double)(next - look->at_ns) >= ns)
            return ns;
        if (!(ns < (double)BT_COST_INFINITE))
            return ns;
        until = look->at_ns + (int64_t)ceil(ns) - 1;
    }
}

#define CROWD 4

static double crowded_ns(const struct bt_network *net, uint32_t index,
                         const struct look *look)
{
    struct net_memo *memo = &net->memos[index];

    if (memo->version != net->version || memo->at_ns != look->at_ns ||
        memo->bytes != look->bytes)
        *memo =
            (struct net_memo){.version = net->version,
                              .at_ns = look->at_ns,
                              .bytes = look->bytes,
                              .ns = shared_ns(net, &net->links[index], look)};
    return memo->ns;
}

static inline double link_ns(const struct bt_network *net, uint32_t index,
                             const struct look *look)
{
    const struct net_link *link = &net->links[index];

    if (link->first == 0)
        return look->bytes * link->ns_per_byte;
    if (link->listed > CROWD)
        return crowded_ns(net, index, look);
    return shared_ns(net, link, look);
}

int64_t bt_network_transfer_ns(const struct bt_network *net, int64_t now_ns,
                               int64_t at_ns, uint32_t a, uint32_t b,
                               uint64_t bytes, uint64_t descriptors)
{
    const struct bt_topology_class *c;
    struct topology_route route;
    struct look look;
    double worst;

    if (bytes == 0)
        return 0;
    topology_route(net->topology, a, b, &route);
    if (route.path_class == BT_PATH_UNKNOWN)
        return BT_COST_INFINITE;
    look = look_at(net, now_ns, at_ns, bytes);
    worst = look.bytes * net->topology->cap_ns_per_byte[route.path_class];
    for (uint32_t k = 0; k < route.count; k++) {
        double ns = link_ns(net, route.links[k], &look);

        if (!(ns <= worst))
            worst = ns;
    }
    c = &net->topology->classes[route.path_class];
    return to_cost(worst + (double)net->setup_ns[route.path_class] +
                   (double)descriptors * (double)c->per_descriptor_ns);
}

/* ---- bounds ---- */

/* Least of what the NIC and, with peers there, the NVLink port allow. */
static int64_t port_bound(const struct bt_network *net, const struct look *look,
                          uint32_t nic, bool nvlink_peers, uint32_t nvlink)
{
    double ns, over_nvlink;

    ns = nic == BT_LINK_NONE ? 0 : link_ns(net, nic, look);
    if (!nvlink_peers)
        return to_cost(ns);
    over_nvlink = nvlink == BT_LINK_NONE ? 0 : link_ns(net, nvlink, look);
    return to_cost(ns < over_nvlink ? ns : over_nvlink);
}

int64_t bt_network_out_bound_ns(const struct bt_network *net, int64_t now_ns,
                                int64_t at_ns, uint32_t a, uint64_t bytes)
{
    struct look look = look_at(net, now_ns, at_ns, bytes);
    const struct topology_worker *w;

    if (bytes == 0 || !topology_placed(net->topology, a))
        return 0;
    w = &net->topology->workers[a];
    return port_bound(net, &look, w->nic_out, w->nvlink_peers, w->nvlink_out);
}

int64_t bt_network_in_bound_ns(const struct bt_network *net, int64_t now_ns,
                               int64_t at_ns, uint32_t b, uint64_t bytes)
{
    struct look look = look_at(net, now_ns, at_ns, bytes);
    const struct topology_worker *w;

    if (bytes == 0 || !topology_placed(net->topology, b))
        return 0;
    w = &net->topology->workers[b];
    return port_bound(net, &look, w->nic_in, w->nvlink_peers, w->nvlink_in);
}

/* ---- exact ---- */

#define NEWCOMER UINT32_MAX

/* A roll on trial; times in ns since now. */
struct trial {
    struct bt_network *net;
    struct net_flow newcomer;
    int64_t now_ns;
    int64_t started_ns; /* planned flows up to here are in the fluid */
    double at;
};

/* The earliest planned start not in the fluid yet, the newcomer's included. */
static int64_t next_start(const struct trial *t)
{
    const struct bt_network *net = t->net;
    int64_t next = INT64_MAX;

    if (t->newcomer.start_ns > t->started_ns)
        next = t->newcomer.start_ns;
    for (uint32_t i = 0; i < net->planned_count; i++) {
        int64_t start = net->flows[net->planned[i]].start_ns;

        if (start > t->started_ns && start < next)
            next = start;
    }
    return next;
}

static void start_all(struct trial *t, int64_t at_ns)
{
    struct bt_network *net = t->net;

    for (uint32_t i = 0; i < net->planned_count; i++) {
        const struct net_flow *f = &net->flows[net->planned[i]];

        if (f->start_ns > t->started_ns && f->start_ns <= at_ns)
            fluid_add(&net->trial, f, net->planned[i], f->bytes);
    }
    if (t->newcomer.start_ns > t->started_ns && t->newcomer.start_ns <= at_ns)
        fluid_add(&net->trial, &t->newcomer, NEWCOMER, t->newcomer.bytes);
    t->started_ns = at_ns;
}

/* True when the newcomer has ended. */
static bool drain_trial(struct net_fluid *fluid, double span_ns)
{
    bool ended = false;

    for (uint32_t i = 0; i < fluid->count;) {
        fluid->left[i] -= fluid_moved(fluid, i, span_ns);
        if (fluid->left[i] > 0) {
            i++;
            continue;
        }
        ended |= fluid->handle[i] == NEWCOMER;
        fluid_remove(fluid, i);
    }
    return ended;
}

/* Every turn ends a flow or starts one. Infinite: nothing moves any more. */
static double run_trial(struct trial *t)
{
    struct net_fluid *fluid = &t->net->trial;

    for (;;) {
        int64_t start_ns = next_start(t);
        double start = HUGE_VAL, end;

        fluid_solve(t->net, fluid);
        end = fluid_first_end_ns(fluid);
        if (start_ns != INT64_MAX)
            start = (double)(start_ns - t->now_ns) - t->at;
        start = start > 0 ? start : 0;
        if (isinf(start) && isinf(end))
            return HUGE_VAL;
        if (drain_trial(fluid, end < start ? end : start))
            return t->at + end;
        t->at += end < start ? end : start;
        if (start <= end)
            start_all(t, start_ns);
    }
}

static double exact_moving_ns(struct bt_network *net, int64_t now_ns,
                              int64_t at_ns, const struct net_flow *newcomer)
{
    struct trial t = {.net = net, .newcomer = *newcomer, .now_ns = now_ns};

    network_advance(net, now_ns);
    t.newcomer.start_ns = at_ns;
    t.started_ns = now_ns - 1;
    net->trial.count = 0;
    for (uint32_t i = 0; i < net->running.count; i++)
        fluid_add(&net->trial, &net->flows[net->running.handle[i]],
                  net->running.handle[i], net->running.left[i]);
    return run_trial(&t) - (double)(at_ns - now_ns);
}

int64_t bt_network_exact_ns(struct bt_network *net, int64_t now_ns,
                            int64_t at_ns, uint32_t a, uint32_t b,
                            uint64_t bytes, uint64_t descriptors)
{
    struct net_flow f = {.bytes = (double)bytes};
    const struct bt_topology_class *c;
    struct topology_route route;
    double ns = 0;

    if (bytes == 0)
        return 0;
    topology_route(net->topology, a, b, &route);
    if (route.path_class == BT_PATH_UNKNOWN)
        return BT_COST_INFINITE;
    c = &net->topology->classes[route.path_class];
    f.count = route.count;
    f.cap_bytes_per_s = (double)c->flow_bytes_per_s_max;
    for (uint32_t k = 0; k < route.count; k++)
        f.links[k] = route.links[k];
    if (f.count > 0)
        ns = exact_moving_ns(net, now_ns, at_ns > now_ns ? at_ns : now_ns, &f);
    else if (f.cap_bytes_per_s > 0)
        ns = f.bytes * 1e9 / f.cap_bytes_per_s;
    return to_cost(ns + (double)net->setup_ns[route.path_class] +
                   (double)descriptors * (double)c->per_descriptor_ns);
}

/* ---- what others lose, what passed beside ---- */

/* The same sum as our own delay, without our own bytes: flows that run, and
 * those planned to start before we would end. All count as having no slack;
 * the caller knows better when some have. */
int64_t bt_network_externality_ns(const struct bt_network *net, int64_t now_ns,
                                  uint32_t a, uint32_t b, uint64_t bytes)
{
    struct look look = look_at(net, now_ns, now_ns, bytes);
    struct topology_route route;
    double worst = 0;

    topology_route(net->topology, a, b, &route);
    for (uint32_t k = 0; k < route.count && bytes > 0; k++) {
        const struct net_link *link = &net->links[route.links[k]];
        double ns;

        if (link->first == 0)
            continue;
        ns = shared_ns(net, link, &look) - look.bytes * link->ns_per_byte;
        if (!(ns <= worst))
            worst = ns;
    }
    return to_cost(worst);
}

static double moved_since_roll(const struct net_node *node, double since_ns)
{
    double moved = node->per_ns * since_ns;

    return moved < node->left ? moved : node->left;
}

/* Which of the flow's links it is; their number: none. */
static uint32_t link_of(const struct net_flow *f, uint32_t link)
{
    uint32_t k = 0;

    while (k < f->count && f->links[k] != link)
        k++;
    return k;
}

uint64_t bt_network_passed_beside(const struct bt_network *net, uint32_t handle,
                                  uint32_t link, int64_t now_ns)
{
    struct look look = look_at(net, now_ns, now_ns, 0);
    const struct net_flow *f;
    double passed, own;
    uint32_t k, mine;

    assert(handle < net->flows_max);
    f = &net->flows[handle];
    k = link_of(f, link);
    if (k == f->count ||
        (f->state != NET_RUNNING && f->state != NET_FINISHED) || f->bytes <= 0)
        return 0;
    passed = net->passed[link] - f->passed[k];
    for (uint32_t i = net->links[link].first; i != 0; i = net->nodes[i].next)
        passed += moved_since_roll(&net->nodes[i], look.since_ns);
    own = f->bytes;
    mine = net_node_of(handle, k);
    if (f->state == NET_RUNNING)
        own -= net->nodes[mine].left -
               moved_since_roll(&net->nodes[mine], look.since_ns);
    return passed > own ? (uint64_t)(passed - own + 0.5) : 0;
}

/* Of the flows that the model still has on the way. Of one that started before
 * f, its present rate tells what it moved since. */
static double unproven_running(const struct bt_network *net,
                               const struct net_flow *f, uint32_t link,
                               int64_t now_ns)
{
    double since = (double)(now_ns - net->rolled_ns), sum = 0;

    for (uint32_t i = net->links[link].first; i != 0; i = net->nodes[i].next) {
        const struct net_node *node = &net->nodes[i];
        const struct net_flow *g = &net->flows[(i - 1) / BT_PATH_LINKS_MAX];
        double moved = g->bytes - node->left + moved_since_roll(node, since);

        if (g->state != NET_RUNNING)
            continue;
        if (g->start_ns < f->start_ns)
            moved = fmin(moved, node->per_ns * (double)(now_ns - f->start_ns));
        sum += moved;
    }
    return sum;
}

/* It took over half as long again as the model gave it. */
static bool was_late(const struct net_flow *f, int64_t now_ns)
{
    return f->state == NET_FINISHED &&
           now_ns - f->start_ns > (f->finished_ns - f->start_ns) * 3 / 2;
}

uint64_t bt_network_unproven_beside(const struct bt_network *net,
                                    uint32_t handle, uint32_t link,
                                    int64_t now_ns)
{
    const struct net_flow *f = &net->flows[handle];
    uint32_t mine = link_of(f, link);
    double sum = 0;

    assert(handle < net->flows_max);
    if (mine == f->count || !was_late(f, now_ns))
        return 0;
    for (uint32_t i = 0; i < net->finished_count; i++) {
        const struct net_flow *g = &net->flows[net->finished[i]];
        uint32_t k = link_of(g, link);

        if (g != f && k < g->count)
            sum += fmax(fmin(g->bytes, g->ended[k] - f->passed[mine]), 0);
    }
    return (uint64_t)(sum + unproven_running(net, f, link, now_ns) + 0.5);
}
