/* Makes the map of a node: hwloc first (where things are), then the ports from
 * ibverbs and the kernel, then GPUs and their distances, then remarks. With
 * another machine's XML only that is read. Leaves the choice of rails to
 * core/rails.c. */
#include "discover_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static enum bt_status open_topology(struct collect *c, char *error_out,
                                    size_t error_size)
{
    const char *xml = c->options->hwloc_xml;

    if (hwloc_topology_init(&c->topology) != 0)
        goto failed;
    if (xml != NULL && hwloc_topology_set_xml(c->topology, xml) != 0)
        goto undo_topology;
    hwloc_topology_set_io_types_filter(c->topology,
                                       HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    hwloc_topology_set_type_filter(c->topology, HWLOC_OBJ_BRIDGE,
                                   HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(c->topology) != 0)
        goto undo_topology;
    return BT_OK;

undo_topology:
    hwloc_topology_destroy(c->topology);
failed:
    snprintf(error_out, error_size, "hwloc: %s%s%s",
             xml != NULL ? xml : "this machine", errno != 0 ? ": " : "",
             errno != 0 ? strerror(errno) : "");
    return BT_IO;
}

static void read_memlock(struct bt_node_map *map)
{
    struct rlimit limit;

    map->memlock_bytes = UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY)
        map->memlock_bytes = limit.rlim_cur;
}

static void collect_all(struct collect *c)
{
    int nodes = hwloc_get_nbobjs_by_type(c->topology, HWLOC_OBJ_NUMANODE);

    c->map->numa_count = nodes > 0 ? (uint32_t)nodes : 1;
    if (c->is_foreign) {
        c->map->memlock_bytes = UINT64_MAX;
        bt_collect_foreign(c);
    } else {
        read_memlock(c->map);
        if (!c->options->no_verbs)
            bt_collect_verbs(c);
        bt_collect_netdevs(c);
    }
    bt_collect_gpus(c);
    bt_collect_warnings(c);
}

enum bt_status bt_discover(const struct bt_discover_options *options,
                           struct bt_node_map **out, char *error_out,
                           size_t error_size)
{
    static const struct bt_discover_options none = {0};
    struct collect c = {.options = options != NULL ? options : &none};
    enum bt_status status;

    c.sys = c.options->sys_root != NULL ? c.options->sys_root : "/sys";
    c.is_foreign = c.options->hwloc_xml != NULL;
    c.map = calloc(1, sizeof(*c.map));
    if (c.map == NULL) {
        snprintf(error_out, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    errno = 0;
    status = open_topology(&c, error_out, error_size);
    if (status != BT_OK) {
        free(c.map);
        return status;
    }
    collect_all(&c);
    hwloc_topology_destroy(c.topology);
    *out = c.map;
    return BT_OK;
}

void bt_node_map_free(struct bt_node_map *map)
{
    free(map);
}
