/* Topology of a fleet as a YAML file, strict as the configuration: an unknown
 * or repeated key, a name that does not exist, a value out of its range is an
 * error with file:line:column.
 *
 *   topology_schema: 1
 *   pods:
 *     - {name: pod0, up: 800GB/s, down: 800GB/s}
 *   racks:                          # pod: "" = one pod of all such racks
 *     - {name: r0, pod: pod0, up: 100GB/s, down: 100GB/s}
 *   nodes:                          # rack: "" = one rack of all such nodes
 *     - {name: n0, rack: r0, rails: 8, rail_rate: 50GB/s, nvlink: 450GB/s}
 *   workers:                        # own rails or rates instead of the node's
 *     - {name: p0, node: n0, rails: 4, rail_rate: 50GB/s, out: 200GB/s,
 *        in: 200GB/s}
 *   classes:                        # nvlink node rack pod cross_pod
 *     rack: {setup: 1ms, descriptor: 1us, flow_max: 25GB/s}
 *
 * Rates are per second and direction; one that is left out is no limit, and
 * "down" left out is "up". A node with "nvlink" is one NVLink domain of its
 * workers.
 */
#ifndef BATON_ORCHESTRATOR_TOPOLOGY_FILE_H
#define BATON_ORCHESTRATOR_TOPOLOGY_FILE_H

#include "baton/base/status.h"
#include "baton/planner/topology.h"
#include <stddef.h>
#include <stdint.h>

struct bt_topology_file;

/* Load, check and compile. names: the workers in order of their slots, those
 * the file does not name are on no node, and one it names beyond them is a
 * fault; NULL: the file's own workers, in its order. On failure *out is
 * untouched and error_out (>= 512 bytes) holds "FILE:LINE:COLUMN: what is wrong
 * (did you mean 'x'?)". BT_NOT_FOUND, BT_IO: the file; BT_INVALID, BT_TYPE,
 * BT_DUPLICATE, BT_LIMIT, BT_UNSUPPORTED: its first fault; BT_NO_MEMORY. */
enum bt_status bt_topology_file_load(const char *path, const char *const *names,
                                     uint32_t count,
                                     struct bt_topology_file **out,
                                     char *error_out, size_t error_size);
void bt_topology_file_destroy(struct bt_topology_file *file);

/* Both live as long as the file; workers by slot, with their names. */
const struct bt_topology_spec *
bt_topology_file_spec(const struct bt_topology_file *file);
const struct bt_topology *
bt_topology_file_topology(const struct bt_topology_file *file);

#endif
