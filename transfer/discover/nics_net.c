/* Plain network devices: those that no RDMA port already stands for. Loopback,
 * bridges and other devices without a sign of hardware or an address are left
 * out. */
#include "discover_priv.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

struct bt_nic *bt_collect_nic(struct collect *c)
{
    struct bt_nic *nic;

    if (c->map->nic_count == BT_NODE_NICS_MAX)
        return NULL;
    nic = &c->map->nics[c->map->nic_count++];
    memset(nic, 0, sizeof(*nic));
    nic->numa = -1;
    return nic;
}

static uint8_t bits_of(uint32_t mask)
{
    uint8_t bits = 0;

    for (; (mask & 0x80000000u) != 0; mask <<= 1)
        bits++;
    return bits;
}

static void note_address(struct bt_nic *nic, const struct ifaddrs *entry)
{
    const struct sockaddr_in *in = (const void *)entry->ifa_addr;
    const struct sockaddr_in *mask = (const void *)entry->ifa_netmask;
    uint32_t bits = mask == NULL ? 0 : ntohl(mask->sin_addr.s_addr);

    if (inet_ntop(AF_INET, &in->sin_addr, nic->address, sizeof(nic->address)) ==
        NULL)
        nic->address[0] = '\0';
    nic->subnet = ntohl(in->sin_addr.s_addr) & bits;
    nic->subnet_bits = bits_of(bits);
}

void bt_collect_address(struct bt_nic *nic)
{
    struct ifaddrs *list;

    if (nic->netdev[0] == '\0' || getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
            strcmp(i->ifa_name, nic->netdev) == 0) {
            note_address(nic, i);
            break;
        }
    }
    freeifaddrs(list);
}

static bool is_known(const struct collect *c, const char *netdev)
{
    for (uint32_t i = 0; i < c->map->nic_count; i++) {
        if (strcmp(c->map->nics[i].netdev, netdev) == 0)
            return true;
    }
    return false;
}

static void read_netdev(struct collect *c, const char *name)
{
    struct bt_nic *nic = bt_collect_nic(c);
    char path[96], text[32];
    long long mbit;

    if (nic == NULL)
        return;
    snprintf(nic->netdev, sizeof(nic->netdev), "%s", name);
    nic->port = 1;
    nic->link = BT_NIC_ETHERNET;
    snprintf(path, sizeof(path), "class/net/%s/operstate", name);
    nic->is_up =
        bt_sys_line(c, path, text, sizeof(text)) && strcmp(text, "down") != 0;
    snprintf(path, sizeof(path), "class/net/%s/speed", name);
    mbit = bt_sys_number(c, path, 0);
    nic->rate_bytes_per_s = mbit > 0 ? (uint64_t)mbit * 125000 : 0;
    snprintf(path, sizeof(path), "class/net/%s/mtu", name);
    nic->mtu = (uint32_t)bt_sys_number(c, path, 0);
    snprintf(path, sizeof(path), "class/net/%s/device", name);
    if (!bt_sys_link(c, path, nic->pci, sizeof(nic->pci)) ||
        strchr(nic->pci, ':') == NULL)
        nic->pci[0] = '\0';
    snprintf(path, sizeof(path), "class/net/%s/device/numa_node", name);
    nic->numa = (int)bt_sys_number(c, path, -1);
    bt_collect_address(nic);
}

void bt_collect_netdevs(struct collect *c)
{
    struct if_nameindex *list = if_nameindex();

    for (const struct if_nameindex *i = list; i != NULL && i->if_index != 0;
         i++) {
        struct bt_nic probe = {0};
        char path[96];

        if (strcmp(i->if_name, "lo") == 0 || is_known(c, i->if_name))
            continue;
        snprintf(path, sizeof(path), "class/net/%s/device", i->if_name);
        snprintf(probe.netdev, sizeof(probe.netdev), "%s", i->if_name);
        bt_collect_address(&probe);
        if (probe.address[0] != '\0' || bt_sys_exists(c, path))
            read_netdev(c, i->if_name);
    }
    if (list != NULL)
        if_freenameindex(list);
}
