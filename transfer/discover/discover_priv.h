/* Insides of discovery, shared by the files of this folder. */
#ifndef BATON_TRANSFER_DISCOVER_PRIV_H
#define BATON_TRANSFER_DISCOVER_PRIV_H

#include "baton/transfer/discover.h"

#include <hwloc.h>

/* What is looked at only while a map is made. */
struct collect {
    struct bt_node_map *map;
    const struct bt_discover_options *options;
    const char *sys; /* root of the /sys to read */
    hwloc_topology_t topology;
    bool is_foreign; /* hwloc XML of another machine: no ibverbs, no limits */
};

/* ---- sysfs.c: the little that neither ibverbs nor hwloc tell ---- */

/* First line of sys/PATH without its newline; false: not there. */
bool bt_sys_line(const struct collect *c, const char *path, char *out,
                 size_t size);
/* A number at the start of that line; `absent` when there is none. */
long long bt_sys_number(const struct collect *c, const char *path,
                        long long absent);
bool bt_sys_exists(const struct collect *c, const char *path);
/* Last part of the link sys/PATH ("0000:1b:00.0"); false: not a link. */
bool bt_sys_link(const struct collect *c, const char *path, char *out,
                 size_t size);
/* Is any redirection of peer requests on in the device's ACS? Needs the
 * extended configuration space, which only root may read: false otherwise. */
bool bt_sys_acs_on(const struct collect *c, const char *pci);

/* ---- nics_verbs.c, nics_net.c, nics_hwloc.c ---- */
/* A new NIC of the map, all unknown; NULL: the table is full (a warning). */
struct bt_nic *bt_collect_nic(struct collect *c);
void bt_collect_verbs(struct collect *c);
void bt_collect_netdevs(struct collect *c);
void bt_collect_foreign(struct collect *c);
/* Address and network of a netdev, if it has an IPv4 one. */
void bt_collect_address(struct bt_nic *nic);

/* ---- gpus.c ---- */
void bt_collect_gpus(struct collect *c);
/* "0000:1b:00.0" */
void bt_pci_text(const struct hwloc_pcidev_attr_s *pci, char out[16]);
/* The PCI device of that address, or NULL. */
hwloc_obj_t bt_pci_find(const struct collect *c, const char *pci);
/* NUMA node an object hangs from; -1. */
int bt_numa_of(hwloc_obj_t object);

/* ---- warn.c ---- */
__attribute__((format(printf, 3, 4))) void
bt_collect_warn(struct bt_node_map *map, enum bt_node_warn kind,
                const char *format, ...);
void bt_collect_warnings(struct collect *c);

#endif
