/* `baton topo` without a file: the devices of this node. */
#ifndef BATON_ORCHESTRATOR_CLI_CMD_TOPO_H
#define BATON_ORCHESTRATOR_CLI_CMD_TOPO_H

#include <stdbool.h>
#include <stdint.h>

struct topo_node_options {
    const char *hwloc_xml; /* NULL: this machine */
    const char *gpu;       /* PCI address the rails are for; NULL: any */
    uint32_t rails;        /* how many to choose */
    bool json;
};
/* An exit code. */
int topo_node(const struct topo_node_options *options);

#endif
