/* NICs of another machine, from its hwloc XML: what lstopo wrote about its
 * OpenFabrics and network devices. Rates and GIDs beyond the first are not in
 * there and stay unknown. */
#include "discover_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void place(struct bt_nic *nic, hwloc_obj_t os)
{
    hwloc_obj_t at = os;

    while (at != NULL && at->type != HWLOC_OBJ_PCI_DEVICE)
        at = at->parent;
    if (at != NULL)
        bt_pci_text(&at->attr->pcidev, nic->pci);
    nic->numa = bt_numa_of(os);
}

static void read_gid(struct bt_nic *nic, const char *text)
{
    struct bt_gid *gid = &nic->gids[0];
    uint8_t raw[16];

    for (int i = 0; i < 8; i++) {
        char *end;
        unsigned long part = strtoul(text, &end, 16);

        if (end == text || part > UINT16_MAX || *end != (i < 7 ? ':' : '\0'))
            return;
        raw[2 * i] = (uint8_t)(part >> 8);
        raw[2 * i + 1] = (uint8_t)part;
        text = end + 1;
    }
    memcpy(gid->raw, raw, sizeof(gid->raw));
    gid->kind = nic->link == BT_NIC_INFINIBAND ? BT_GID_IB : BT_GID_LINK_LOCAL;
    nic->gid_count = 1;
    if (nic->link != BT_NIC_INFINIBAND)
        return;
    for (int i = 0; i < 8; i++)
        nic->subnet = nic->subnet << 8 | gid->raw[i];
    nic->subnet_bits = 64;
}

static void read_ports(struct collect *c, hwloc_obj_t os)
{
    for (unsigned int port = 1; port <= 16; port++) {
        char key[32];
        const char *state, *gid, *lid;
        struct bt_nic *nic;

        snprintf(key, sizeof(key), "Port%uState", port);
        state = hwloc_obj_get_info_by_name(os, key);
        if (state == NULL)
            break;
        nic = bt_collect_nic(c);
        if (nic == NULL)
            return;
        snprintf(nic->device, sizeof(nic->device), "%s", os->name);
        nic->port = (uint8_t)port;
        nic->is_up = strtol(state, NULL, 10) == 4; /* IBV_PORT_ACTIVE */
        snprintf(key, sizeof(key), "Port%uLID", port);
        lid = hwloc_obj_get_info_by_name(os, key);
        /* only InfiniBand ports have a LID */
        nic->link = lid != NULL && strtol(lid, NULL, 0) != 0 ? BT_NIC_INFINIBAND
                                                             : BT_NIC_ROCE;
        place(nic, os);
        snprintf(key, sizeof(key), "Port%uGID0", port);
        gid = hwloc_obj_get_info_by_name(os, key);
        if (gid != NULL)
            read_gid(nic, gid);
    }
}

static bool is_rdma_too(const struct collect *c, const struct bt_nic *nic)
{
    for (uint32_t i = 0; i < c->map->nic_count; i++) {
        const struct bt_nic *other = &c->map->nics[i];

        if (other != nic && other->device[0] != '\0' && nic->pci[0] != '\0' &&
            strcmp(other->pci, nic->pci) == 0)
            return true;
    }
    return false;
}

static void read_net(struct collect *c, hwloc_obj_t os)
{
    struct bt_nic *nic = bt_collect_nic(c);

    if (nic == NULL)
        return;
    snprintf(nic->netdev, sizeof(nic->netdev), "%s", os->name);
    nic->port = 1;
    nic->link = BT_NIC_ETHERNET;
    nic->is_up = true; /* the XML does not say */
    place(nic, os);
    if (is_rdma_too(c, nic))
        c->map->nic_count--;
}

void bt_collect_foreign(struct collect *c)
{
    hwloc_obj_t os = NULL;

    while ((os = hwloc_get_next_osdev(c->topology, os)) != NULL) {
        if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
            read_ports(c, os);
    }
    while ((os = hwloc_get_next_osdev(c->topology, os)) != NULL) {
        if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK)
            read_net(c, os);
    }
}
