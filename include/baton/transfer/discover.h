/* What this node has: NICs with their ports, GIDs and rates, GPUs, NUMA nodes
 * and the PCIe distance between them; and which rails to use, by PCI identity
 * and never by visible index. Collecting (ibverbs, hwloc, /sys) is here;
 * choosing is pure (rails.h).
 */
#ifndef BATON_TRANSFER_DISCOVER_H
#define BATON_TRANSFER_DISCOVER_H

#include "baton/transfer/rails.h"

struct bt_discover_options {
    const char *hwloc_xml; /* another machine's, for tests; NULL: this one */
    const char *sys_root;  /* "/sys", or a copy of one for tests */
    bool no_verbs;         /* do not ask ibverbs */
};
/* Allocates; free with bt_node_map_free. Missing pieces (no ibverbs devices,
 * no GPUs) are not errors: they become warnings of the map. BT_NO_MEMORY,
 * BT_IO (hwloc). */
enum bt_status bt_discover(const struct bt_discover_options *options,
                           struct bt_node_map **out, char *error_out,
                           size_t error_size);
void bt_node_map_free(struct bt_node_map *map);

#endif
