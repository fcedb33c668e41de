/* Topology: compiles nodes, racks and pods into directed links, and says which
 * of them lie between two workers. Leaves names and remarks to topology_text.c,
 * what flows on the links to network.c.
 *
 * Invariants: a link object exists only where a rate is given and somebody
 * uses it; rack and pod indices of a placed worker are always valid, those the
 * spec leaves out share one entry past the last.
 */
#include "topology_impl.h"

#include "baton/planner/cost.h"

#include <assert.h>
#include <stdio.h>

#define ITEMS_MAX (1u << 24)

/* ---- check ---- */

struct fault {
    char *out;
    size_t size;
};

/* False, with the words. */
#define FAULT(fault, ...)                                                      \
    ((void)snprintf((fault)->out, (fault)->size, __VA_ARGS__), false)

static bool check_counts(const struct bt_topology_spec *s,
                         const struct fault *fault)
{
    if (s->worker_count > ITEMS_MAX || s->node_count > ITEMS_MAX ||
        s->rack_count > ITEMS_MAX || s->pod_count > ITEMS_MAX)
        return FAULT(fault, "more than %u items of one kind", ITEMS_MAX);
    if ((s->worker_count != 0 && s->workers == NULL) ||
        (s->node_count != 0 && s->nodes == NULL) ||
        (s->rack_count != 0 && s->racks == NULL) ||
        (s->pod_count != 0 && s->pods == NULL))
        return FAULT(fault, "a count without its array");
    return true;
}

static bool rails_fit(uint32_t rails, uint64_t rate)
{
    uint64_t product;

    return !__builtin_mul_overflow((uint64_t)rails, rate, &product);
}

static bool check_places(const struct bt_topology_spec *s,
                         const struct fault *fault)
{
    for (uint32_t i = 0; i < s->rack_count; i++) {
        uint32_t pod = s->racks[i].pod;

        if (pod != BT_LINK_NONE && pod >= s->pod_count)
            return FAULT(fault, "rack %u: there is no pod %u", i, pod);
    }
    for (uint32_t i = 0; i < s->node_count; i++) {
        const struct bt_topology_node *n = &s->nodes[i];

        if (n->rack != BT_LINK_NONE && n->rack >= s->rack_count)
            return FAULT(fault, "node %u: there is no rack %u", i, n->rack);
        if (!rails_fit(n->rails, n->rail_bytes_per_s))
            return FAULT(fault, "node %u: its rails overflow", i);
    }
    return true;
}

static uint64_t rail_rate(const struct bt_topology_spec *s,
                          const struct bt_topology_worker *w)
{
    if (w->rail_bytes_per_s != 0 || w->node == BT_LINK_NONE)
        return w->rail_bytes_per_s;
    return s->nodes[w->node].rail_bytes_per_s;
}

static bool check_workers(const struct bt_topology_spec *s,
                          const struct fault *fault)
{
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const struct bt_topology_worker *w = &s->workers[i];

        if (w->node != BT_LINK_NONE && w->node >= s->node_count)
            return FAULT(fault, "worker %u: there is no node %u", i, w->node);
        if (!rails_fit(w->rails, rail_rate(s, w)))
            return FAULT(fault, "worker %u: its rails overflow", i);
    }
    return true;
}

static bool check_classes(const struct bt_topology_spec *s,
                          const struct fault *fault)
{
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        const struct bt_topology_class *c = &s->classes[i];

        if (c->setup_ns < 0 || c->setup_ns >= BT_COST_INFINITE ||
            c->per_descriptor_ns < 0 ||
            c->per_descriptor_ns >= BT_COST_INFINITE)
            return FAULT(fault, "class %s: a time outside its range",
                         bt_path_class_name((enum bt_path_class)i));
    }
    return true;
}

enum bt_status bt_topology_check(const struct bt_topology_spec *spec,
                                 char *error_out, size_t error_size)
{
    const struct fault fault = {error_out, error_size};

    if (check_counts(spec, &fault) && check_places(spec, &fault) &&
        check_workers(spec, &fault) && check_classes(spec, &fault))
        return BT_OK;
    return BT_INVALID;
}

/* ---- compile ---- */

static size_t links_max(const struct bt_topology_spec *s)
{
    return 2 * ((size_t)s->node_count + 2 * (size_t)s->worker_count +
                s->rack_count + s->pod_count);
}

size_t bt_topology_bytes(const struct bt_topology_spec *spec)
{
    return bt_arena_need(1, sizeof(struct bt_topology)) +
           bt_arena_need(spec->worker_count, sizeof(struct topology_worker)) +
           bt_arena_need(spec->node_count, sizeof(struct topology_node)) +
           bt_arena_need((size_t)spec->rack_count + 1,
                         sizeof(struct topology_group)) +
           bt_arena_need((size_t)spec->pod_count + 1,
                         sizeof(struct topology_group)) +
           bt_arena_need(links_max(spec), sizeof(struct bt_topology_link));
}

static uint32_t link_make(struct bt_topology *t, enum bt_link_kind kind,
                          uint32_t owner, uint64_t rate)
{
    if (rate == 0)
        return BT_LINK_NONE;
    t->links[t->link_count] =
        (struct bt_topology_link){.kind = kind,
                                  .owner = owner,
                                  .owner_is_worker = false,
                                  .rate_bytes_per_s = rate};
    return t->link_count++;
}

static uint32_t worker_link(struct bt_topology *t, enum bt_link_kind kind,
                            uint32_t worker, uint64_t rate)
{
    uint32_t link = link_make(t, kind, worker, rate);

    if (link != BT_LINK_NONE)
        t->links[link].owner_is_worker = true;
    return link;
}

static void make_groups(struct bt_topology *t, const struct bt_topology_spec *s)
{
    for (uint32_t i = 0; i < s->pod_count; i++) {
        const struct bt_topology_pod *pod = &s->pods[i];

        t->pods[i].name = pod->name;
        t->pods[i].up = link_make(t, BT_LINK_POD_UP, i, pod->up_bytes_per_s);
        t->pods[i].down =
            link_make(t, BT_LINK_POD_DOWN, i, pod->down_bytes_per_s);
    }
    t->pods[s->pod_count].up = t->pods[s->pod_count].down = BT_LINK_NONE;
    for (uint32_t i = 0; i < s->rack_count; i++) {
        const struct bt_topology_rack *rack = &s->racks[i];
        struct topology_group *group = &t->racks[i];

        group->name = rack->name;
        group->parent = rack->pod == BT_LINK_NONE ? s->pod_count : rack->pod;
        group->up = link_make(t, BT_LINK_RACK_UP, i, rack->up_bytes_per_s);
        group->down =
            link_make(t, BT_LINK_RACK_DOWN, i, rack->down_bytes_per_s);
        t->pods[group->parent].children++;
    }
    t->racks[s->rack_count].up = t->racks[s->rack_count].down = BT_LINK_NONE;
    t->racks[s->rack_count].parent = s->pod_count;
}

static void make_nodes(struct bt_topology *t, const struct bt_topology_spec *s)
{
    for (uint32_t i = 0; i < s->node_count; i++) {
        const struct bt_topology_node *n = &s->nodes[i];

        t->nodes[i] = (struct topology_node){
            .name = n->name,
            .rack = n->rack == BT_LINK_NONE ? s->rack_count : n->rack,
            .rails = n->rails,
            .rail_bytes_per_s = n->rail_bytes_per_s,
            .nic_out = BT_LINK_NONE,
            .nic_in = BT_LINK_NONE};
        t->racks[t->nodes[i].rack].children++;
    }
}

static void place_worker(struct bt_topology *t, uint32_t i, uint32_t node,
                         const char *name)
{
    struct topology_worker *x = &t->workers[i];

    x->node = x->rack = x->pod = BT_LINK_NONE;
    x->nic_out = x->nic_in = BT_LINK_NONE;
    x->nvlink_out = x->nvlink_in = BT_LINK_NONE;
    x->name = name;
    if (node == BT_LINK_NONE)
        return;
    x->node = node;
    x->rack = t->nodes[node].rack;
    x->pod = t->racks[x->rack].parent;
    t->nodes[node].workers++;
}

static void share_nic(struct bt_topology *t, struct topology_worker *x)
{
    struct topology_node *n = &t->nodes[x->node];
    uint64_t rate = n->rails * n->rail_bytes_per_s;

    if (!n->nic_made) {
        n->nic_made = true;
        n->nic_out = link_make(t, BT_LINK_NIC_OUT, x->node, rate);
        n->nic_in = link_make(t, BT_LINK_NIC_IN, x->node, rate);
    }
    x->nic_out = n->nic_out;
    x->nic_in = n->nic_in;
}

static void make_nics(struct bt_topology *t, const struct bt_topology_spec *s,
                      uint32_t i)
{
    const struct bt_topology_worker *w = &s->workers[i];
    struct topology_worker *x = &t->workers[i];
    uint64_t own = w->rails * rail_rate(s, w);
    uint64_t out = w->nic_out_bytes_per_s ? w->nic_out_bytes_per_s : own;
    uint64_t in = w->nic_in_bytes_per_s ? w->nic_in_bytes_per_s : own;

    if (out == 0 || in == 0)
        share_nic(t, x);
    if (out != 0)
        x->nic_out = worker_link(t, BT_LINK_NIC_OUT, i, out);
    if (in != 0)
        x->nic_in = worker_link(t, BT_LINK_NIC_IN, i, in);
}

static void make_nvlink(struct bt_topology *t, const struct bt_topology_spec *s,
                        uint32_t i)
{
    struct topology_worker *x = &t->workers[i];
    const struct bt_topology_node *n = &s->nodes[x->node];

    if (!n->nvlink_domain)
        return;
    x->nvlink = true;
    x->nvlink_peers = t->nodes[x->node].workers > 1;
    x->nvlink_out =
        worker_link(t, BT_LINK_NVLINK_OUT, i, n->nvlink_bytes_per_s);
    x->nvlink_in = worker_link(t, BT_LINK_NVLINK_IN, i, n->nvlink_bytes_per_s);
}

static void make_workers(struct bt_topology *t,
                         const struct bt_topology_spec *s)
{
    for (uint32_t i = 0; i < s->worker_count; i++)
        place_worker(t, i, s->workers[i].node, s->workers[i].name);
    for (uint32_t i = 0; i < s->worker_count; i++) {
        if (t->workers[i].node == BT_LINK_NONE)
            continue;
        make_nics(t, s, i);
        make_nvlink(t, s, i);
    }
}

/* ---- what hangs below a rack or pod ---- */

static void add_nic(struct topology_group *group,
                    const struct bt_topology_link *link)
{
    double rate = (double)link->rate_bytes_per_s;

    if (link->kind == BT_LINK_NIC_IN) {
        group->in_sum += rate;
        return;
    }
    group->out_sum += rate;
    if (group->out_min <= 0 || rate < group->out_min)
        group->out_min = rate;
}

static void sum_nics(struct bt_topology *t)
{
    for (uint32_t i = 0; i < t->link_count; i++) {
        const struct bt_topology_link *link = &t->links[i];
        uint32_t node, rack;

        if (link->kind != BT_LINK_NIC_IN && link->kind != BT_LINK_NIC_OUT)
            continue;
        node =
            link->owner_is_worker ? t->workers[link->owner].node : link->owner;
        rack = t->nodes[node].rack;
        add_nic(&t->racks[rack], link);
        add_nic(&t->pods[t->racks[rack].parent], link);
    }
}

struct bt_topology *bt_topology_init(struct bt_arena *arena,
                                     const struct bt_topology_spec *spec)
{
    struct bt_topology *t = bt_arena_take(arena, 1, sizeof(*t));
    const struct bt_topology_spec *s = spec;

    if (t == NULL || bt_topology_check(spec, NULL, 0) != BT_OK)
        return NULL;
    t->worker_count = s->worker_count;
    t->node_count = s->node_count;
    t->rack_count = s->rack_count;
    t->pod_count = s->pod_count;
    t->workers = bt_arena_take(arena, s->worker_count, sizeof(*t->workers));
    t->nodes = bt_arena_take(arena, s->node_count, sizeof(*t->nodes));
    t->racks =
        bt_arena_take(arena, (size_t)s->rack_count + 1, sizeof(*t->racks));
    t->pods = bt_arena_take(arena, (size_t)s->pod_count + 1, sizeof(*t->pods));
    t->links = bt_arena_take(arena, links_max(s), sizeof(*t->links));
    if (t->workers == NULL || t->nodes == NULL || t->racks == NULL ||
        t->pods == NULL || t->links == NULL)
        return NULL;
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        t->classes[i] = s->classes[i];
        if (s->classes[i].flow_bytes_per_s_max != 0)
            t->cap_ns_per_byte[i] =
                1e9 / (double)s->classes[i].flow_bytes_per_s_max;
    }
    make_groups(t, s);
    make_nodes(t, s);
    make_workers(t, s);
    sum_nics(t);
    return t;
}

/* ---- queries ---- */

uint32_t bt_topology_worker_count(const struct bt_topology *t)
{
    return t->worker_count;
}

uint32_t bt_topology_link_count(const struct bt_topology *t)
{
    return t->link_count;
}

const struct bt_topology_link *bt_topology_link_at(const struct bt_topology *t,
                                                   uint32_t link)
{
    assert(link < t->link_count);
    return &t->links[link];
}

enum bt_path_class bt_topology_class_of(const struct bt_topology *t, uint32_t a,
                                        uint32_t b)
{
    struct topology_route route;

    topology_route(t, a, b, &route);
    return route.path_class;
}

void bt_topology_path(const struct bt_topology *t, uint32_t a, uint32_t b,
                      struct bt_path *out)
{
    const struct bt_topology_class *c;
    struct topology_route route;
    uint64_t rate;

    topology_route(t, a, b, &route);
    c = &t->classes[route.path_class];
    rate = c->flow_bytes_per_s_max;
    *out = (struct bt_path){.path_class = route.path_class,
                            .count = route.count,
                            .setup_ns = c->setup_ns,
                            .per_descriptor_ns = c->per_descriptor_ns};
    for (uint32_t i = 0; i < route.count; i++) {
        uint64_t of_link = t->links[route.links[i]].rate_bytes_per_s;

        out->links[i] = route.links[i];
        if (rate == 0 || of_link < rate)
            rate = of_link;
    }
    if (route.path_class != BT_PATH_UNKNOWN)
        out->rate_bytes_per_s = rate;
}

uint32_t bt_topology_nic_out(const struct bt_topology *t, uint32_t worker)
{
    return topology_placed(t, worker) ? t->workers[worker].nic_out
                                      : BT_LINK_NONE;
}

uint32_t bt_topology_nic_in(const struct bt_topology *t, uint32_t worker)
{
    return topology_placed(t, worker) ? t->workers[worker].nic_in
                                      : BT_LINK_NONE;
}
