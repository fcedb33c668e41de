/* What a topology file may say: the key table of its walk and conversion, and
 * its lists. Invariant: the rows of one list, and of one class, are
 * neighbours. */
#include "topology_schema.h"

#define U32_LIMIT        4294967295.0
#define NS_DAY           86400e9
#define IN(type, member) offsetof(struct type, member)

#define ROW(path, fallback, values, text, kind, offset, min, max)              \
    {                                                                          \
        {path, fallback, values, text}, kind, offset, min, max, NULL           \
    }
#define NAME(path, offset, text)                                               \
    ROW(path, NULL, "name", text, KEY_TEXT, offset, 0, 0)
#define PLACE(path, offset, text)                                              \
    ROW(path, "", "name, empty = none", text, KEY_OPTIONAL, offset, 0, 0)
#define RATE(path, offset, text)                                               \
    ROW(path, "", "rate, left out = no limit", text, KEY_RATE, offset, 1, 1e15)
#define RAILS(path, offset, text)                                              \
    ROW(path, "0", "0..1024", text, KEY_U32, offset, 0, 1024)
#define IN_CLASS(code, member)                                                 \
    (offsetof(struct bt_topology_file, classes) +                              \
     (code) * sizeof(struct bt_topology_class) +                               \
     offsetof(struct bt_topology_class, member))
#define CLASS(name, code)                                                      \
    ROW("classes." name ".setup", "1ms", "duration, 0us..24h", "per transfer", \
        KEY_DURATION, IN_CLASS(code, setup_ns), 0, NS_DAY),                    \
        ROW("classes." name ".descriptor", "1us", "duration, 0us..24h",        \
            "per run of neighbouring blocks", KEY_DURATION,                    \
            IN_CLASS(code, per_descriptor_ns), 0, NS_DAY),                     \
        RATE("classes." name ".flow_max",                                      \
             IN_CLASS(code, flow_bytes_per_s_max), "of one flow alone")

static const struct key TABLE[] = {
    ROW("topology_schema", "1", "1", "version of this schema", KEY_SCHEMA, 0, 1,
        1),
    NAME("pods[].name", IN(file_pod, name), "unique"),
    RATE("pods[].up", IN(file_pod, up), "out of the pod"),
    RATE("pods[].down", IN(file_pod, down), "into it; left out = up"),
    NAME("racks[].name", IN(file_rack, name), "unique"),
    PLACE("racks[].pod", IN(file_rack, pod), "pod it stands in"),
    RATE("racks[].up", IN(file_rack, up), "its uplinks together"),
    RATE("racks[].down", IN(file_rack, down), "into it; left out = up"),
    NAME("nodes[].name", IN(file_node, name), "unique"),
    PLACE("nodes[].rack", IN(file_node, rack), "rack it stands in"),
    RAILS("nodes[].rails", IN(file_node, rails), "NICs its workers share"),
    RATE("nodes[].rail_rate", IN(file_node, rail_rate), "of one NIC"),
    RATE("nodes[].nvlink", IN(file_node, nvlink),
         "per worker, makes it one NVLink domain"),
    NAME("workers[].name", IN(file_worker, name), "unique"),
    PLACE("workers[].node", IN(file_worker, node), "node it runs on"),
    RAILS("workers[].rails", IN(file_worker, rails),
          "NICs of its own, 0 = the node's"),
    RATE("workers[].rail_rate", IN(file_worker, rail_rate),
         "of one of them; left out = as the node's"),
    RATE("workers[].out", IN(file_worker, out), "it can send"),
    RATE("workers[].in", IN(file_worker, in), "it can take"),
    CLASS("nvlink", BT_PATH_NVLINK),
    CLASS("node", BT_PATH_NODE),
    CLASS("rack", BT_PATH_RACK),
    CLASS("pod", BT_PATH_POD),
    CLASS("cross_pod", BT_PATH_CROSS_POD),
};

static const struct file_list LISTS[LIST_COUNT] = {
    {"pods", sizeof(struct file_pod), CONFIG_GROUPS_MAX},
    {"racks", sizeof(struct file_rack), CONFIG_GROUPS_MAX},
    {"nodes", sizeof(struct file_node), CONFIG_GROUPS_MAX},
    {"workers", sizeof(struct file_worker), CONFIG_WORKERS_MAX},
};

const struct key_table *topology_table(void)
{
    static const struct key_table table = {
        TABLE, sizeof(TABLE) / sizeof(TABLE[0]), true};
    return &table;
}

const struct file_list *topology_list(enum list_id id)
{
    return &LISTS[id];
}
