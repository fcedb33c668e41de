/* Private to orchestrator/config: a topology file as it is being read. */
#ifndef BATON_CONFIG_TOPOLOGY_SCHEMA_H
#define BATON_CONFIG_TOPOLOGY_SCHEMA_H

#include "baton/orchestrator/topology_file.h"
#include "schema.h"

/* Elements as written; names owned. */
struct file_pod {
    char *name;
    uint64_t up, down;
};
struct file_rack {
    char *name, *pod;
    uint64_t up, down;
};
struct file_node {
    char *name, *rack;
    uint32_t rails;
    uint64_t rail_rate, nvlink;
};
struct file_worker {
    char *name, *node;
    uint32_t rails;
    uint64_t rail_rate, out, in;
};

enum list_id { LIST_PODS, LIST_RACKS, LIST_NODES, LIST_WORKERS, LIST_COUNT };

struct file_list {
    const char *name; /* "pods" */
    size_t bytes;     /* of an element, whose first member is its name */
    uint32_t max;
};
const struct file_list *topology_list(enum list_id id);

struct bt_topology_file {
    void *items[LIST_COUNT]; /* struct file_pod *, ... */
    uint32_t counts[LIST_COUNT];
    struct bt_topology_class classes[BT_PATH_CLASS_COUNT];

    struct bt_topology_pod *pods;
    struct bt_topology_rack *racks;
    struct bt_topology_node *nodes;
    struct bt_topology_worker *workers;
    char **worker_names; /* by slot, owned */
    struct bt_topology_spec spec;
    void *memory; /* of the compiled one */
    struct bt_topology *topology;
};

/* Positions with text to elements and classes: kinds, ranges, required keys,
 * defaults. */
enum bt_status topology_convert(const struct load *load,
                                struct bt_topology_file *file);

#endif
