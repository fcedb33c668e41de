/* Ports of the RDMA devices that ibverbs knows: state, rate, MTU, GIDs,
 * partitions. Decides how a GID is named (link-local, RoCE version) and how an
 * active width and speed become bytes per second; which port is used is
 * rails.c's. */
#include "discover_priv.h"

#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* Data rate of one lane in Mbit/s by the speed code of IBTA (bit number), line
 * coding taken off. */
static uint64_t lane_mbit(uint8_t speed)
{
    static const struct {
        uint8_t code;
        uint32_t mbit;
    } speeds[] = {{1, 2000},   {2, 4000},   {4, 8000},   {8, 10000},
                  {16, 13640}, {32, 25000}, {64, 50000}, {128, 100000}};

    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
        if (speeds[i].code == speed)
            return speeds[i].mbit;
    }
    return 0;
}

static uint64_t lanes_of(uint8_t width)
{
    switch (width) {
    case 1:
        return 1;
    case 2:
        return 4;
    case 4:
        return 8;
    case 8:
        return 12;
    case 16:
        return 2;
    default:
        return 0;
    }
}

static enum bt_gid_kind gid_kind(const struct ibv_gid_entry *entry)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0,    0,
                                       0, 0, 0, 0, 0xff, 0xff};
    const uint8_t *raw = entry->gid.raw;

    if (entry->gid_type == IBV_GID_TYPE_IB)
        return BT_GID_IB;
    if (raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80)
        return BT_GID_LINK_LOCAL;
    if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
        return BT_GID_ROCE_V1;
    if (memcmp(raw, mapped, sizeof(mapped)) == 0)
        return BT_GID_ROCE_V2_IPV4;
    return BT_GID_ROCE_V2_IPV6;
}

static void read_gids(struct bt_nic *nic, struct ibv_context *context, int max)
{
    for (int i = 0; i < max && nic->gid_count < BT_NODE_GIDS_MAX; i++) {
        struct ibv_gid_entry entry = {0};
        struct bt_gid *gid = &nic->gids[nic->gid_count];

        if (ibv_query_gid_ex(context, nic->port, (uint32_t)i, &entry, 0) != 0)
            continue;
        memcpy(gid->raw, entry.gid.raw, sizeof(gid->raw));
        gid->index = (uint8_t)i;
        gid->kind = gid_kind(&entry);
        nic->gid_count++;
        if (entry.ndev_ifindex != 0 && nic->netdev[0] == '\0')
            (void)if_indextoname(entry.ndev_ifindex, nic->netdev);
    }
    if (nic->link == BT_NIC_INFINIBAND && nic->gid_count > 0) {
        nic->subnet = 0;
        for (int i = 0; i < 8; i++)
            nic->subnet = nic->subnet << 8 | nic->gids[0].raw[i];
        nic->subnet_bits = 64;
    }
}

static void read_pkeys(struct bt_nic *nic, struct ibv_context *context, int max)
{
    const int room = (int)(sizeof(nic->pkeys) / sizeof(nic->pkeys[0]));

    for (int i = 0; i < max && nic->pkey_count < room; i++) {
        __be16 key;

        if (ibv_query_pkey(context, nic->port, i, &key) != 0 || key == 0)
            continue;
        nic->pkeys[nic->pkey_count++] =
            (uint16_t)((key & 0xff) << 8 | (key >> 8 & 0xff));
    }
}

static void read_pci(const struct collect *c, struct bt_nic *nic)
{
    char path[96];

    snprintf(path, sizeof(path), "class/infiniband/%s/device", nic->device);
    if (!bt_sys_link(c, path, nic->pci, sizeof(nic->pci)) ||
        strchr(nic->pci, ':') == NULL)
        nic->pci[0] = '\0'; /* a software device has none */
    snprintf(path, sizeof(path), "class/infiniband/%s/device/numa_node",
             nic->device);
    nic->numa = (int)bt_sys_number(c, path, -1);
}

static enum bt_nic_link link_of(const struct ibv_device *device,
                                const struct ibv_port_attr *attr)
{
    if (device->transport_type == IBV_TRANSPORT_IWARP)
        return BT_NIC_IWARP;
    return attr->link_layer == IBV_LINK_LAYER_ETHERNET ? BT_NIC_ROCE
                                                       : BT_NIC_INFINIBAND;
}

static void read_port(struct collect *c, struct ibv_context *context,
                      uint8_t port)
{
    struct ibv_port_attr attr;
    struct bt_nic *nic;

    if (ibv_query_port(context, port, &attr) != 0)
        return;
    nic = bt_collect_nic(c);
    if (nic == NULL)
        return;
    snprintf(nic->device, sizeof(nic->device), "%s",
             ibv_get_device_name(context->device));
    nic->port = port;
    nic->link = link_of(context->device, &attr);
    nic->is_up = attr.state == IBV_PORT_ACTIVE;
    nic->rate_bytes_per_s =
        lanes_of(attr.active_width) * lane_mbit(attr.active_speed) * 125000;
    nic->mtu = 128u << attr.active_mtu;
    read_pci(c, nic);
    read_gids(nic, context, attr.gid_tbl_len);
    read_pkeys(nic, context, attr.pkey_tbl_len);
    if (nic->link != BT_NIC_INFINIBAND)
        bt_collect_address(nic);
}

void bt_collect_verbs(struct collect *c)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; list != NULL && i < count; i++) {
        struct ibv_context *context = ibv_open_device(list[i]);
        struct ibv_device_attr attr;

        if (context == NULL)
            continue;
        if (ibv_query_device(context, &attr) == 0) {
            for (uint8_t port = 1; port <= attr.phys_port_cnt; port++)
                read_port(c, context, port);
        }
        ibv_close_device(context);
    }
    if (list != NULL)
        ibv_free_device_list(list);
}
