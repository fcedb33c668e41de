/* A node's devices as data, and the choice of rails over them. Pure.
 *
 * Rules (each from a field failure): one port per HCA before a second of the
 * same HCA (E09); each GPU uses the NIC nearest to it, both ends by their own
 * affinity (E10); ends pair only within a subnet, RoCE version and partition
 * (E12, E14); GIDs are chosen by kind, RoCE v2 + IPv4, then v2 + global IPv6,
 * v1 before link-local (E13); a port that is down takes out its own rail only
 * (E15).
 */
#ifndef BATON_TRANSFER_RAILS_H
#define BATON_TRANSFER_RAILS_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_NODE_NICS_MAX     64 /* ports count one by one */
#define BT_NODE_GPUS_MAX     32
#define BT_NODE_GIDS_MAX     16 /* per port */
#define BT_NODE_WARNINGS_MAX 64

enum bt_gid_kind {
    BT_GID_NONE,
    BT_GID_LINK_LOCAL, /* fe80:: */
    BT_GID_IB,
    BT_GID_ROCE_V1,
    BT_GID_ROCE_V2_IPV6,
    BT_GID_ROCE_V2_IPV4
};
enum bt_nic_link {
    BT_NIC_INFINIBAND,
    BT_NIC_ROCE,
    BT_NIC_IWARP,
    BT_NIC_ETHERNET
};
struct bt_gid {
    uint8_t raw[16];
    enum bt_gid_kind kind;
    uint8_t index;
};
/* One port. */
struct bt_nic {
    char device[32]; /* "mlx5_0", "rxe0"; "" for plain Ethernet */
    char netdev[32]; /* "eth1"; "" when there is none */
    char pci[16];    /* "0000:1b:00.0"; "" for a software device */
    uint8_t port;    /* from 1 */
    enum bt_nic_link link;
    bool is_up;
    uint64_t rate_bytes_per_s;     /* active width * speed; 0: not known */
    uint64_t rate_max_bytes_per_s; /* what the port could do */
    uint32_t mtu;                  /* active, bytes */
    int numa;                      /* -1 unknown */
    uint16_t pkeys[16];
    uint8_t pkey_count, gid_count;
    struct bt_gid gids[BT_NODE_GIDS_MAX];
    uint64_t subnet; /* IB subnet prefix, or IPv4 network of the netdev */
    uint8_t subnet_bits;
    char address[48]; /* numeric, of the netdev; "" none */
};
struct bt_gpu {
    char pci[16];
    char name[48];
    int numa;
    /* Steps to each NIC: 0 same PCIe switch, 1 same root port, 2 same NUMA
     * node, 3 across sockets, 255 unknown. */
    uint8_t distance[BT_NODE_NICS_MAX];
};
enum bt_node_warn {
    BT_WARN_MEMLOCK, /* locked memory limit below what RDMA needs */
    BT_WARN_PORT_DOWN,
    BT_WARN_PORT_SLOW, /* trained below what it can do */
    BT_WARN_MTU_MIXED, /* ports of one subnet differ */
    BT_WARN_MTU_SMALL,
    BT_WARN_ACS,        /* ACS or IOMMU redirect signs: peer traffic by CPU */
    BT_WARN_NO_RDMA,    /* only TCP: no verbs device */
    BT_WARN_TCP_FORCED, /* UCX_TLS or UCX_NET_DEVICES exclude RDMA (E18) */
    BT_WARN_NO_PEER_MEMORY, /* GPU but neither nvidia_peermem nor dma-buf */
    BT_WARN_GPU_FAR,        /* no NIC on the GPU's socket */
    BT_WARN_LINK_LOCAL      /* only link-local GIDs */
};
struct bt_node_warning {
    enum bt_node_warn kind;
    char text[160]; /* names the device and what to do */
};
struct bt_node_map {
    uint32_t nic_count, gpu_count, warning_count;
    struct bt_nic nics[BT_NODE_NICS_MAX];
    struct bt_gpu gpus[BT_NODE_GPUS_MAX];
    struct bt_node_warning warnings[BT_NODE_WARNINGS_MAX];
    uint64_t memlock_bytes; /* soft limit; UINT64_MAX: none */
    uint32_t numa_count;
};

/* Indices of the best `want` NICs that are up: RDMA before plain Ethernet, one
 * port per HCA before any second one, nearest to the GPU (pci; NULL or not
 * there: none in particular), faster, then by PCI address. Plain Ethernet only
 * when no RDMA port is up. Returns how many. */
uint32_t bt_rails_choose(const struct bt_node_map *map, const char *gpu_pci,
                         uint32_t want, uint32_t *nics_out);
/* Best GID of a port for peers (E13), as the device counts them (bt_gid.index);
 * among IPv4 ones first that of the netdev's own network. -1: none. */
int bt_gid_choose(const struct bt_nic *nic);
/* May these two ports talk? BT_INCOMPATIBLE with the reason in words (>= 128):
 * a port is down, link types, RoCE versions, subnets (unknown ones: refused,
 * unless RoCE v1 or link-local GIDs are all both have), partitions (limited
 * with limited). */
enum bt_status bt_rails_reach(const struct bt_nic *a, const struct bt_nic *b,
                              char *why_out, size_t why_size);
/* Pair rails of two nodes: as many pairs as can be, each port once, in the
 * order of mine, each with the first of theirs that leaves the earlier ones a
 * partner. At most BT_NODE_NICS_MAX each; pairs_out {mine, theirs} has room for
 * the smaller count. Returns how many. */
uint32_t bt_rails_pair(const struct bt_nic *const *mine, uint32_t mine_count,
                       const struct bt_nic *const *theirs,
                       uint32_t theirs_count, uint32_t (*pairs_out)[2]);
const char *bt_node_warn_name(enum bt_node_warn kind);

#endif
