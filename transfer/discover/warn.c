/* What costs operators bandwidth, found on this node: each remark names the
 * device and what to do. Decides when a sign is worth a remark; nothing here
 * changes which rails are chosen. */
#include "discover_priv.h"

#include "baton/base/units.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MTU_RDMA_MIN 4096u
#define DEPTH_MAX    64

void bt_collect_warn(struct bt_node_map *map, enum bt_node_warn kind,
                     const char *format, ...)
{
    struct bt_node_warning *w;
    va_list args;

    if (map->warning_count == BT_NODE_WARNINGS_MAX)
        return;
    w = &map->warnings[map->warning_count++];
    w->kind = kind;
    va_start(args, format);
    vsnprintf(w->text, sizeof(w->text), format, args);
    va_end(args);
}

static bool is_rdma(const struct bt_nic *nic)
{
    return nic->device[0] != '\0';
}

static const char *name_of(const struct bt_nic *nic)
{
    return is_rdma(nic) ? nic->device : nic->netdev;
}

static bool has_rdma(const struct bt_node_map *map)
{
    for (uint32_t i = 0; i < map->nic_count; i++) {
        if (is_rdma(&map->nics[i]))
            return true;
    }
    return false;
}

static void warn_memlock(struct bt_node_map *map)
{
    char size[32];

    if (map->memlock_bytes == UINT64_MAX || !has_rdma(map))
        return;
    bt_size_format(map->memlock_bytes, size, sizeof(size));
    bt_collect_warn(map, BT_WARN_MEMLOCK,
                    "locked memory is limited to %s: registering a KV pool "
                    "will fail; ulimit -l unlimited, or LimitMEMLOCK=infinity",
                    size);
}

static void warn_port(struct bt_node_map *map, const struct bt_nic *nic)
{
    bool only_local = nic->gid_count > 0;

    if (!nic->is_up) {
        bt_collect_warn(map, BT_WARN_PORT_DOWN,
                        "%s port %u is down: it is no rail", name_of(nic),
                        nic->port);
        return;
    }
    if (is_rdma(nic) && nic->mtu != 0 && nic->mtu < MTU_RDMA_MIN)
        bt_collect_warn(map, BT_WARN_MTU_SMALL,
                        "%s port %u has an MTU of %u, %u is usual: raise the "
                        "netdev's and the switch's",
                        name_of(nic), nic->port, nic->mtu, MTU_RDMA_MIN);
    for (uint8_t i = 0; i < nic->gid_count; i++)
        only_local = only_local && nic->gids[i].kind == BT_GID_LINK_LOCAL;
    if (only_local && nic->link == BT_NIC_ROCE)
        bt_collect_warn(map, BT_WARN_LINK_LOCAL,
                        "%s port %u has only link-local GIDs: give %s an "
                        "address, no other subnet can reach it",
                        name_of(nic), nic->port,
                        nic->netdev[0] != '\0' ? nic->netdev : "its netdev");
}

/* The PCIe link below what device and slot could do. */
static void warn_trained(const struct collect *c, const struct bt_nic *nic)
{
    char path[96], now[32], best[32];
    long long width, width_max;

    if (nic->pci[0] == '\0' || c->is_foreign)
        return;
    snprintf(path, sizeof(path), "bus/pci/devices/%s/current_link_width",
             nic->pci);
    width = bt_sys_number(c, path, 0);
    snprintf(path, sizeof(path), "bus/pci/devices/%s/max_link_width", nic->pci);
    width_max = bt_sys_number(c, path, 0);
    snprintf(path, sizeof(path), "bus/pci/devices/%s/current_link_speed",
             nic->pci);
    if (!bt_sys_line(c, path, now, sizeof(now)))
        return;
    snprintf(path, sizeof(path), "bus/pci/devices/%s/max_link_speed", nic->pci);
    if (!bt_sys_line(c, path, best, sizeof(best)))
        return;
    if (width < width_max || strtod(now, NULL) < strtod(best, NULL))
        bt_collect_warn(c->map, BT_WARN_PORT_SLOW,
                        "%s: PCIe trained at %.15s x%lld, it can %.15s x%lld: "
                        "reseat it or try another slot",
                        name_of(nic), now, width, best, width_max);
}

static void warn_mixed_mtu(struct bt_node_map *map)
{
    for (uint32_t i = 0; i < map->nic_count; i++) {
        const struct bt_nic *a = &map->nics[i];

        for (uint32_t j = i + 1; j < map->nic_count; j++) {
            const struct bt_nic *b = &map->nics[j];

            if (a->subnet_bits == 0 || a->subnet != b->subnet ||
                a->subnet_bits != b->subnet_bits || a->mtu == b->mtu ||
                is_rdma(a) != is_rdma(b))
                continue;
            bt_collect_warn(map, BT_WARN_MTU_MIXED,
                            "%s has an MTU of %u and %s of %u on one subnet: "
                            "the smaller one limits or stalls both",
                            name_of(a), a->mtu, name_of(b), b->mtu);
            return; /* one remark says it */
        }
    }
}

/* ---- GPUs ---- */

static void warn_acs(const struct collect *c, const struct bt_gpu *gpu)
{
    hwloc_obj_t at = bt_pci_find(c, gpu->pci);

    for (int i = 0; i < DEPTH_MAX && at != NULL; i++, at = at->parent) {
        char pci[16];

        if (at->type != HWLOC_OBJ_BRIDGE ||
            at->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI)
            continue;
        bt_pci_text(&at->attr->bridge.upstream.pci, pci);
        if (!bt_sys_acs_on(c, pci))
            continue;
        bt_collect_warn(c->map, BT_WARN_ACS,
                        "ACS redirects peer traffic at bridge %s above GPU "
                        "%s: GPU to NIC goes through the CPU; switch it off",
                        pci, gpu->pci);
        return;
    }
}

static void warn_gpu(struct collect *c, const struct bt_gpu *gpu)
{
    uint8_t best = UINT8_MAX;

    for (uint32_t i = 0; i < c->map->nic_count; i++) {
        if (is_rdma(&c->map->nics[i]) && c->map->nics[i].is_up &&
            gpu->distance[i] < best)
            best = gpu->distance[i];
    }
    if (best == 3)
        bt_collect_warn(c->map, BT_WARN_GPU_FAR,
                        "GPU %s has no RDMA port on its own socket: transfers "
                        "cross between sockets",
                        gpu->pci);
    if (!c->is_foreign)
        warn_acs(c, gpu);
}

static void warn_peer_memory(const struct collect *c)
{
    if (c->map->gpu_count == 0 || c->is_foreign || !has_rdma(c->map))
        return;
    if (bt_sys_exists(c, "module/nvidia_peermem") ||
        bt_sys_exists(c, "module/nv_peer_mem") ||
        bt_sys_exists(c, "module/amdgpu"))
        return;
    bt_collect_warn(c->map, BT_WARN_NO_PEER_MEMORY,
                    "nvidia_peermem is not loaded: without dma-buf support of "
                    "driver and NIC, GPU memory is staged through the host");
}

static void warn_iommu(const struct collect *c)
{
    if (c->map->gpu_count == 0 || c->is_foreign ||
        !bt_sys_exists(c, "kernel/iommu_groups/0"))
        return;
    bt_collect_warn(c->map, BT_WARN_ACS,
                    "an IOMMU is on: GPU to NIC traffic may go through it; "
                    "iommu=pt keeps it off the path of DMA");
}

/* ---- no RDMA ---- */

/* Does a UCX_TLS list allow any RDMA transport? */
static bool allows_rdma(const char *list)
{
    static const char *const rdma[] = {"all", "ib",  "rc",  "ud",
                                       "dc",  "srd", "rdma"};

    if (list[0] == '^')
        return true;
    for (size_t i = 0; i < sizeof(rdma) / sizeof(rdma[0]); i++) {
        if (strstr(list, rdma[i]) != NULL)
            return true;
    }
    return false;
}

static bool names_rdma(const struct bt_node_map *map, const char *list)
{
    if (strcmp(list, "all") == 0)
        return true;
    for (uint32_t i = 0; i < map->nic_count; i++) {
        if (is_rdma(&map->nics[i]) && strstr(list, map->nics[i].device) != NULL)
            return true;
    }
    return false;
}

static void warn_tcp(struct bt_node_map *map)
{
    const char *transports = getenv("UCX_TLS");
    const char *devices = getenv("UCX_NET_DEVICES");

    if (!has_rdma(map)) {
        bt_collect_warn(map, BT_WARN_NO_RDMA,
                        "no RDMA device: KV will go over TCP");
        return;
    }
    if (transports != NULL && !allows_rdma(transports))
        bt_collect_warn(map, BT_WARN_TCP_FORCED,
                        "UCX_TLS=%.60s leaves no RDMA transport: KV goes over "
                        "TCP",
                        transports);
    if (devices != NULL && !names_rdma(map, devices))
        bt_collect_warn(map, BT_WARN_TCP_FORCED,
                        "UCX_NET_DEVICES=%.60s names no RDMA device: KV goes "
                        "over TCP",
                        devices);
}

void bt_collect_warnings(struct collect *c)
{
    struct bt_node_map *map = c->map;

    if (!c->is_foreign)
        warn_memlock(map);
    for (uint32_t i = 0; i < map->nic_count; i++) {
        warn_port(map, &map->nics[i]);
        warn_trained(c, &map->nics[i]);
    }
    warn_mixed_mtu(map);
    for (uint32_t i = 0; i < map->gpu_count; i++)
        warn_gpu(c, &map->gpus[i]);
    warn_peer_memory(c);
    warn_iommu(c);
    if (!c->is_foreign)
        warn_tcp(map);
}
