/* Insides of a compiled topology, shared by topology.c (compile, paths),
 * topology_text.c (names, remarks) and network_estimate.c (paths of thousands
 * of candidates). Private to this folder.
 */
#ifndef BATON_PLANNER_TOPOLOGY_IMPL_H
#define BATON_PLANNER_TOPOLOGY_IMPL_H

#include "baton/planner/topology.h"

/* Where a worker sits and what it sends and receives through. Racks and pods
 * that the spec leaves out get the index after the last one. */
struct topology_worker {
    uint32_t node, rack, pod; /* BT_LINK_NONE: on no node */
    uint32_t nic_out, nic_in; /* links, BT_LINK_NONE: unlimited */
    uint32_t nvlink_out, nvlink_in;
    const char *name;
    bool nvlink;       /* its node is an NVLink domain */
    bool nvlink_peers; /* with another worker in it */
};

/* Uplink and downlink, of a rack or of a pod. */
struct topology_group {
    const char *name;
    uint32_t up, down;      /* links, BT_LINK_NONE: unlimited */
    uint32_t parent;        /* pod of a rack */
    uint32_t children;      /* nodes of a rack, racks of a pod */
    double out_sum, in_sum; /* rates of the NICs below it together */
    double out_min;         /* of one NIC below it, 0: none */
};

struct topology_node {
    const char *name;
    uint32_t rack, rails, workers;
    uint64_t rail_bytes_per_s;
    bool nic_made;            /* by the first worker that shares it */
    uint32_t nic_out, nic_in; /* links, BT_LINK_NONE: unlimited */
};

struct bt_topology {
    uint32_t worker_count, node_count, rack_count, pod_count;
    uint32_t link_count;
    struct topology_worker *workers;
    struct topology_node *nodes;
    struct topology_group *racks; /* one more than rack_count, the same */
    struct topology_group *pods;  /* for pods */
    struct bt_topology_link *links;
    struct bt_topology_class classes[BT_PATH_CLASS_COUNT];
    double cap_ns_per_byte[BT_PATH_CLASS_COUNT]; /* of one flow; 0: no cap */
};

struct topology_route {
    enum bt_path_class path_class;
    uint32_t count;
    uint32_t links[BT_PATH_LINKS_MAX];
};

static inline void topology_hop(struct topology_route *route, uint32_t link)
{
    if (link != BT_LINK_NONE)
        route->links[route->count++] = link;
}

static inline bool topology_placed(const struct bt_topology *t, uint32_t worker)
{
    return worker < t->worker_count && t->workers[worker].node != BT_LINK_NONE;
}

/* The links that KV from a to b passes, without those that limit nothing. */
static inline void topology_route(const struct bt_topology *t, uint32_t a,
                                  uint32_t b, struct topology_route *route)
{
    const struct topology_worker *x, *y;

    route->count = 0;
    route->path_class = BT_PATH_LOCAL;
    if (a == b)
        return;
    route->path_class = BT_PATH_UNKNOWN;
    if (!topology_placed(t, a) || !topology_placed(t, b))
        return;
    x = &t->workers[a];
    y = &t->workers[b];
    if (x->node == y->node && x->nvlink) {
        route->path_class = BT_PATH_NVLINK;
        topology_hop(route, x->nvlink_out);
        topology_hop(route, y->nvlink_in);
        return;
    }
    route->path_class = x->node == y->node ? BT_PATH_NODE : BT_PATH_RACK;
    topology_hop(route, x->nic_out);
    topology_hop(route, y->nic_in);
    if (x->rack == y->rack)
        return;
    route->path_class = x->pod == y->pod ? BT_PATH_POD : BT_PATH_CROSS_POD;
    topology_hop(route, t->racks[x->rack].up);
    topology_hop(route, t->racks[y->rack].down);
    if (x->pod == y->pod)
        return;
    topology_hop(route, t->pods[x->pod].up);
    topology_hop(route, t->pods[y->pod].down);
}

#endif
