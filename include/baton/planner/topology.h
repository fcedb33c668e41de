/* Where workers sit and what lies between them: nodes, racks, pods, and every
 * finite resource as a directed link with a rate (cost-models.md section 8:
 * receiver ingress is a link of its own). Compiled once from plain arrays;
 * pure; queries are O(1) and allocate nothing.
 *
 * Path of KV from worker a to worker b, at most BT_PATH_LINKS_MAX links:
 *
 *   same worker   none                                  class local
 *   same nvlink domain   nvlink out of a, into b        class nvlink
 *   same node     out of a's NIC, into b's NIC          class node
 *   same rack     the same                              class rack
 *   same pod      + rack uplink of a, rack downlink of b  class pod
 *   else          + pod uplink, pod downlink            class cross_pod
 *
 * A worker without a node is alone in class unknown: its pairs use the pair
 * link of the configuration, or the defaults.
 */
#ifndef BATON_PLANNER_TOPOLOGY_H
#define BATON_PLANNER_TOPOLOGY_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_PATH_LINKS_MAX 6
#define BT_LINK_NONE      UINT32_MAX

#define BT_PATH_CLASS_LIST(X)                                                  \
    X(BT_PATH_LOCAL, "local")                                                  \
    X(BT_PATH_NVLINK, "nvlink")                                                \
    X(BT_PATH_NODE, "node")                                                    \
    X(BT_PATH_RACK, "rack")                                                    \
    X(BT_PATH_POD, "pod")                                                      \
    X(BT_PATH_CROSS_POD, "cross_pod")                                          \
    X(BT_PATH_UNKNOWN, "unknown")
enum bt_path_class {
#define X(code, name) code,
    BT_PATH_CLASS_LIST(X)
#undef X
        BT_PATH_CLASS_COUNT
};
const char *bt_path_class_name(enum bt_path_class path_class);

#define BT_LINK_KIND_LIST(X)                                                   \
    X(BT_LINK_NIC_OUT, "nic_out")                                              \
    X(BT_LINK_NIC_IN, "nic_in")                                                \
    X(BT_LINK_NVLINK_OUT, "nvlink_out")                                        \
    X(BT_LINK_NVLINK_IN, "nvlink_in")                                          \
    X(BT_LINK_RACK_UP, "rack_up")                                              \
    X(BT_LINK_RACK_DOWN, "rack_down")                                          \
    X(BT_LINK_POD_UP, "pod_up")                                                \
    X(BT_LINK_POD_DOWN, "pod_down")
enum bt_link_kind {
#define X(code, name) code,
    BT_LINK_KIND_LIST(X)
#undef X
        BT_LINK_KIND_COUNT
};
const char *bt_link_kind_name(enum bt_link_kind kind);

/* ---- what is given (arrays of the caller, read during init only; names are
 * copied pointers and must outlive the topology) ---- */

/* Rates are bytes per second and direction, all ranks of a worker together; 0
 * = not a limit (no link object is made). */
struct bt_topology_rack {
    const char *name;
    uint32_t pod; /* index, BT_LINK_NONE: all such racks share one pod */
    uint64_t up_bytes_per_s, down_bytes_per_s; /* uplinks together */
};
struct bt_topology_pod {
    const char *name;
    uint64_t up_bytes_per_s, down_bytes_per_s;
};
/* A node's NICs are shared by its workers unless a worker has its own. */
struct bt_topology_node {
    const char *name;
    uint32_t rack; /* index, BT_LINK_NONE: one rack of all such nodes */
    uint32_t rails;
    uint64_t rail_bytes_per_s;   /* of one rail; node NIC = rails * this */
    bool nvlink_domain;          /* its workers reach each other over NVLink */
    uint64_t nvlink_bytes_per_s; /* per worker and direction */
};
/* By registry slot. */
struct bt_topology_worker {
    uint32_t node;  /* index, BT_LINK_NONE: unplaced */
    uint32_t rails; /* own NICs; 0: the node's, shared */
    uint64_t rail_bytes_per_s;
    uint64_t nic_out_bytes_per_s, nic_in_bytes_per_s; /* overrides; 0: rails */
    const char *name; /* in link names and remarks; NULL: "w<slot>" */
};
/* Cost of a transfer beside its bytes, per path class. */
struct bt_topology_class {
    int64_t setup_ns, per_descriptor_ns;
    uint64_t flow_bytes_per_s_max; /* one flow alone; 0: the links' */
};
struct bt_topology_spec {
    const struct bt_topology_rack *racks;
    uint32_t rack_count;
    const struct bt_topology_pod *pods;
    uint32_t pod_count;
    const struct bt_topology_node *nodes;
    uint32_t node_count;
    const struct bt_topology_worker *workers;
    uint32_t worker_count;
    struct bt_topology_class classes[BT_PATH_CLASS_COUNT];
};

/* ---- compiled ---- */

struct bt_topology_link {
    enum bt_link_kind kind;
    uint32_t owner; /* worker, node, rack or pod index, by kind */
    bool owner_is_worker;
    uint64_t rate_bytes_per_s; /* nominal */
};

struct bt_path {
    enum bt_path_class path_class;
    uint32_t count;
    uint32_t links[BT_PATH_LINKS_MAX];
    int64_t setup_ns, per_descriptor_ns;
    uint64_t rate_bytes_per_s; /* nominal bottleneck; 0: no limit */
};

struct bt_topology;

/* First fault of a spec: what and which index; BT_OK when sound. Impossible
 * references are BT_INVALID, a rack whose uplink is slower than the slowest of
 * its NICs only a warning: see bt_topology_warning. */
enum bt_status bt_topology_check(const struct bt_topology_spec *spec,
                                 char *error_out, size_t error_size);
size_t bt_topology_bytes(const struct bt_topology_spec *spec);
/* NULL: arena too small or the spec does not pass bt_topology_check. */
struct bt_topology *bt_topology_init(struct bt_arena *arena,
                                     const struct bt_topology_spec *spec);

uint32_t bt_topology_worker_count(const struct bt_topology *t);
uint32_t bt_topology_link_count(const struct bt_topology *t);
const struct bt_topology_link *bt_topology_link_at(const struct bt_topology *t,
                                                   uint32_t link);
/* Short name of a link for logs and reports: "w3.nic_out" (or the worker's
 * name), "rack1.up", ... */
void bt_topology_link_name(const struct bt_topology *t, uint32_t link,
                           char *out, size_t size);
enum bt_path_class bt_topology_class_of(const struct bt_topology *t, uint32_t a,
                                        uint32_t b);
/* Path from a to b; class unknown has no links and rate 0. */
void bt_topology_path(const struct bt_topology *t, uint32_t a, uint32_t b,
                      struct bt_path *out);
/* Links in and out of one worker (BT_LINK_NONE where unlimited). */
uint32_t bt_topology_nic_out(const struct bt_topology *t, uint32_t worker);
uint32_t bt_topology_nic_in(const struct bt_topology *t, uint32_t worker);
/* i-th remark on the topology ("rack1 is oversubscribed 4.0:1", "node n2 has
 * one rail, its peers have 8"); false past the end. */
bool bt_topology_warning(const struct bt_topology *t, size_t i, char *out,
                         size_t size);

#endif
