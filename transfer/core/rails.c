/* Which ports become rails, which GID stands for a port, and which ports of two
 * nodes may be paired. Collecting the facts is discover's. Ports are told apart
 * by PCI address, never by their place in a list, so every node decides alike
 * whatever order its devices were found in. Rules and their field failures: see
 * rails.h. */
#include "baton/transfer/rails.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NO_PCI    UINT64_MAX
#define UNPAIRED  UINT32_MAX
#define PKEY_FULL 0x8000u
#define PKEY_BASE 0x7fffu

const char *bt_node_warn_name(enum bt_node_warn kind)
{
    switch (kind) {
    case BT_WARN_MEMLOCK:
        return "memlock";
    case BT_WARN_PORT_DOWN:
        return "port_down";
    case BT_WARN_PORT_SLOW:
        return "port_slow";
    case BT_WARN_MTU_MIXED:
        return "mtu_mixed";
    case BT_WARN_MTU_SMALL:
        return "mtu_small";
    case BT_WARN_ACS:
        return "acs";
    case BT_WARN_NO_RDMA:
        return "no_rdma";
    case BT_WARN_TCP_FORCED:
        return "tcp_forced";
    case BT_WARN_NO_PEER_MEMORY:
        return "no_peer_memory";
    case BT_WARN_GPU_FAR:
        return "gpu_far";
    case BT_WARN_LINK_LOCAL:
        return "link_local";
    }
    return "unknown";
}

/* ---- PCI identity ---- */

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* [domain:]bus:device.function in hex, any case and width: 8 bits per field
 * below the domain. NO_PCI: not an address. */
static uint64_t pci_of(const char *text)
{
    uint64_t value = 0, field = 0;
    unsigned int colons = 0, digits = 0;

    for (; *text != '\0' && *text != '.'; text++) {
        int d = digit(*text);

        if (d >= 0 && digits < 8) {
            field = field << 4 | (uint64_t)d;
            digits++;
        } else if (*text == ':' && digits > 0 && ++colons < 3) {
            value = value << 8 | field;
            field = digits = 0;
        } else {
            return NO_PCI;
        }
    }
    if (*text != '.' || digits == 0 || colons == 0 || digit(text[1]) < 0 ||
        text[2] != '\0')
        return NO_PCI;
    value = value << 8 | field;
    return value << 8 | (uint64_t)digit(text[1]);
}

/* Ports of one card: functions of one PCI device; without PCI (software
 * devices), ports of one RDMA device or netdev. */
static bool same_card(const struct bt_nic *a, const struct bt_nic *b)
{
    uint64_t x = pci_of(a->pci), y = pci_of(b->pci);

    if (x != NO_PCI || y != NO_PCI)
        return x >> 8 == y >> 8;
    if (a->device[0] != '\0' || b->device[0] != '\0')
        return strcmp(a->device, b->device) == 0;
    return strcmp(a->netdev, b->netdev) == 0;
}

/* ---- choice ---- */

struct candidate {
    uint32_t nic;
    bool is_plain; /* Ethernet without RDMA */
    uint32_t rank; /* 0: the first port of its card */
    uint8_t distance;
    uint64_t rate, pci;
};

static const struct bt_gpu *gpu_of(const struct bt_node_map *map,
                                   const char *pci)
{
    uint64_t want = pci == NULL ? NO_PCI : pci_of(pci);

    for (uint32_t i = 0; i < map->gpu_count && want != NO_PCI; i++) {
        if (pci_of(map->gpus[i].pci) == want)
            return &map->gpus[i];
    }
    return NULL;
}

/* Order among ports of one card, and among cards once rank is set. */
static bool better(const struct bt_node_map *map, const struct candidate *a,
                   const struct candidate *b)
{
    const struct bt_nic *x = &map->nics[a->nic], *y = &map->nics[b->nic];
    int names = strcmp(x->device, y->device);

    if (a->is_plain != b->is_plain)
        return b->is_plain;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->distance != b->distance)
        return a->distance < b->distance;
    if (a->rate != b->rate)
        return a->rate > b->rate;
    if (a->pci != b->pci)
        return a->pci < b->pci;
    if (names == 0)
        names = strcmp(x->netdev, y->netdev);
    if (names != 0)
        return names < 0;
    return x->port != y->port ? x->port < y->port : a->nic < b->nic;
}

static void sort(const struct bt_node_map *map, struct candidate *list,
                 uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        struct candidate held = list[i];
        uint32_t at = i;

        for (; at > 0 && better(map, &held, &list[at - 1]); at--)
            list[at] = list[at - 1];
        list[at] = held;
    }
}

/* Sorted already: a port's rank is the number of its card's ports before. */
static void rank(const struct bt_node_map *map, struct candidate *list,
                 uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < i; k++)
            list[i].rank +=
                same_card(&map->nics[list[i].nic], &map->nics[list[k].nic]);
    }
}

uint32_t bt_rails_choose(const struct bt_node_map *map, const char *gpu_pci,
                         uint32_t want, uint32_t *nics_out)
{
    const struct bt_gpu *gpu = gpu_of(map, gpu_pci);
    struct candidate list[BT_NODE_NICS_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < map->nic_count; i++) {
        const struct bt_nic *nic = &map->nics[i];

        if (!nic->is_up)
            continue;
        list[count++] = (struct candidate){
            .nic = i,
            .is_plain = nic->link == BT_NIC_ETHERNET,
            .distance = gpu == NULL ? 0 : gpu->distance[i],
            .rate = nic->rate_bytes_per_s,
            .pci = pci_of(nic->pci),
        };
    }
    sort(map, list, count);
    rank(map, list, count);
    sort(map, list, count);
    /* TCP beside RDMA would go unnoticed (E18) and slow every job down */
    while (count > 0 && list[count - 1].is_plain && !list[0].is_plain)
        count--;
    if (want > count)
        want = count;
    for (uint32_t i = 0; i < want; i++)
        nics_out[i] = list[i].nic;
    return want;
}

/* ---- GIDs ---- */

/* Is an IPv4-mapped GID in the network of the port's netdev? */
static bool in_network(const struct bt_nic *nic, const struct bt_gid *gid)
{
    uint32_t mask = 0, address = 0;

    if (nic->subnet_bits == 0 || nic->subnet_bits > 32)
        return false;
    mask = UINT32_MAX << (32 - nic->subnet_bits);
    for (int i = 12; i < 16; i++)
        address = address << 8 | gid->raw[i];
    return (address & mask) == (nic->subnet & mask);
}

int bt_gid_choose(const struct bt_nic *nic)
{
    const struct bt_gid *best = NULL;

    for (uint8_t i = 0; i < nic->gid_count; i++) {
        const struct bt_gid *gid = &nic->gids[i];

        if (gid->kind == BT_GID_NONE)
            continue;
        if (best == NULL || gid->kind > best->kind ||
            (gid->kind == BT_GID_ROCE_V2_IPV4 && gid->kind == best->kind &&
             in_network(nic, gid) && !in_network(nic, best)))
            best = gid;
    }
    return best == NULL ? -1 : best->index;
}

/* ---- reach ---- */

/* A port in words, and where a reason goes. */
struct name {
    char text[40];
};
struct why {
    char *out;
    size_t size;
};

static struct name name_of(const struct bt_nic *nic)
{
    struct name name;

    if (nic->device[0] != '\0')
        snprintf(name.text, sizeof(name.text), "%s:%u", nic->device,
                 (unsigned int)nic->port);
    else
        snprintf(name.text, sizeof(name.text), "%s", nic->netdev);
    return name;
}

static const char *link_name(enum bt_nic_link link)
{
    switch (link) {
    case BT_NIC_INFINIBAND:
        return "InfiniBand";
    case BT_NIC_ROCE:
        return "RoCE";
    case BT_NIC_IWARP:
        return "iWARP";
    case BT_NIC_ETHERNET:
        return "plain Ethernet";
    }
    return "unknown";
}

static bool has_kind(const struct bt_nic *nic, enum bt_gid_kind kind)
{
    for (uint8_t i = 0; i < nic->gid_count; i++) {
        if (nic->gids[i].kind == kind)
            return true;
    }
    return false;
}

static bool knows_subnet(const struct bt_nic *nic)
{
    return nic->subnet_bits > 0 && nic->subnet_bits <= 64;
}

/* InfiniBand prefixes have 64 bits, IPv4 networks up to 32. */
static bool same_subnet(const struct bt_nic *a, const struct bt_nic *b)
{
    return knows_subnet(a) && knows_subnet(b) &&
           a->subnet_bits == b->subnet_bits && a->subnet == b->subnet;
}

/* Global IPv6 GIDs that share their first 64 bits. */
static bool same_prefix(const struct bt_nic *a, const struct bt_nic *b)
{
    for (uint8_t i = 0; i < a->gid_count; i++) {
        for (uint8_t k = 0; k < b->gid_count; k++) {
            if (a->gids[i].kind == BT_GID_ROCE_V2_IPV6 &&
                b->gids[k].kind == BT_GID_ROCE_V2_IPV6 &&
                memcmp(a->gids[i].raw, b->gids[k].raw, 8) == 0)
                return true;
        }
    }
    return false;
}

static bool both_have(const struct bt_nic *a, const struct bt_nic *b,
                      enum bt_gid_kind kind)
{
    return has_kind(a, kind) && has_kind(b, kind);
}

/* Nothing but link-local GIDs on either side: one wire is all they can be on.
 */
static bool both_local(const struct bt_nic *a, const struct bt_nic *b)
{
    for (int kind = BT_GID_IB; kind <= BT_GID_ROCE_V2_IPV4; kind++) {
        if (has_kind(a, (enum bt_gid_kind)kind) ||
            has_kind(b, (enum bt_gid_kind)kind))
            return false;
    }
    return both_have(a, b, BT_GID_LINK_LOCAL);
}

static bool differ(const struct why *why, const struct bt_nic *a,
                   const struct bt_nic *b, const char *what)
{
    snprintf(why->out, why->size, "%s and %s: %s", name_of(a).text,
             name_of(b).text, what);
    return false;
}

static bool roce_reaches(const struct bt_nic *a, const struct bt_nic *b,
                         const struct why *why)
{
    bool share_v4 = both_have(a, b, BT_GID_ROCE_V2_IPV4);
    bool share_v6 = both_have(a, b, BT_GID_ROCE_V2_IPV6);
    bool share_v1 = both_have(a, b, BT_GID_ROCE_V1);

    if (share_v6 && same_prefix(a, b))
        return true;
    if ((share_v4 || share_v1) && same_subnet(a, b))
        return true;
    if (share_v1 && !share_v4 && !(knows_subnet(a) && knows_subnet(b)))
        return true; /* no addresses to tell wires apart */
    if (both_local(a, b))
        return true;
    if (share_v4 || share_v6 || share_v1)
        return differ(why, a, b, "different subnets");
    return differ(why, a, b, "no RoCE version with a common address family");
}

static bool subnets_reach(const struct bt_nic *a, const struct bt_nic *b,
                          const struct why *why)
{
    switch (a->link) {
    case BT_NIC_ROCE:
        return roce_reaches(a, b, why);
    case BT_NIC_INFINIBAND:
    case BT_NIC_IWARP:
    case BT_NIC_ETHERNET:
        break;
    }
    if (same_subnet(a, b))
        return true;
    return differ(why, a, b,
                  knows_subnet(a) && knows_subnet(b) ? "different subnets"
                                                     : "subnet not known");
}

/* A common partition with a full member on one side at least. */
static bool partitions_meet(const struct bt_nic *a, const struct bt_nic *b,
                            const struct why *why)
{
    char text[80];
    uint16_t limited = 0;

    if (a->pkey_count == 0 || b->pkey_count == 0)
        return true; /* no partitions there */
    for (uint8_t i = 0; i < a->pkey_count; i++) {
        for (uint8_t k = 0; k < b->pkey_count; k++) {
            uint16_t x = a->pkeys[i], y = b->pkeys[k];

            if ((x & PKEY_BASE) != (y & PKEY_BASE) || (x & PKEY_BASE) == 0)
                continue;
            if ((x | y) & PKEY_FULL)
                return true;
            limited = x;
        }
    }
    if (limited == 0)
        return differ(why, a, b, "no partition in common");
    snprintf(text, sizeof(text), "both are limited members of partition 0x%04x",
             (unsigned int)limited);
    return differ(why, a, b, text);
}

enum bt_status bt_rails_reach(const struct bt_nic *a, const struct bt_nic *b,
                              char *why_out, size_t why_size)
{
    const struct why why = {why_out, why_size};
    char text[64];

    if (!a->is_up || !b->is_up) {
        snprintf(why_out, why_size, "%s is down",
                 name_of(a->is_up ? b : a).text);
        return BT_INCOMPATIBLE;
    }
    if (a->link != b->link) {
        snprintf(text, sizeof(text), "%s against %s", link_name(a->link),
                 link_name(b->link));
        differ(&why, a, b, text);
        return BT_INCOMPATIBLE;
    }
    if (!subnets_reach(a, b, &why) || !partitions_meet(a, b, &why))
        return BT_INCOMPATIBLE;
    return BT_OK;
}

/* ---- pairs ---- */

/* A matching of my ports to theirs, grown one port at a time by the shortest
 * chain of exchanges, so that an early pair never costs a later one its only
 * partner. */
struct matching {
    const struct bt_nic *const *mine, *const *theirs;
    uint32_t theirs_count;
    uint32_t mine_of[BT_NODE_NICS_MAX];   /* by theirs */
    uint32_t theirs_of[BT_NODE_NICS_MAX]; /* by mine */
};

static bool reaches(const struct matching *m, uint32_t mine, uint32_t theirs)
{
    char why[128];

    return bt_rails_reach(m->mine[mine], m->theirs[theirs], why, sizeof(why)) ==
           BT_OK;
}

/* Give `theirs` to who came for it, and so on back to the start. */
static void exchange(struct matching *m, uint32_t theirs,
                     const uint32_t *came_from)
{
    while (theirs != UNPAIRED) {
        uint32_t mine = came_from[theirs];
        uint32_t before = m->theirs_of[mine];

        m->theirs_of[mine] = theirs;
        m->mine_of[theirs] = mine;
        theirs = before;
    }
}

static void match_one(struct matching *m, uint32_t start)
{
    uint32_t queue[BT_NODE_NICS_MAX], came_from[BT_NODE_NICS_MAX];
    uint32_t head = 0, tail = 0;

    for (uint32_t t = 0; t < m->theirs_count; t++)
        came_from[t] = UNPAIRED;
    queue[tail++] = start;
    while (head < tail) {
        uint32_t mine = queue[head++];

        for (uint32_t t = 0; t < m->theirs_count; t++) {
            if (came_from[t] != UNPAIRED || !reaches(m, mine, t))
                continue;
            came_from[t] = mine;
            if (m->mine_of[t] == UNPAIRED) {
                exchange(m, t, came_from);
                return;
            }
            queue[tail++] = m->mine_of[t];
        }
    }
}

uint32_t bt_rails_pair(const struct bt_nic *const *mine, uint32_t mine_count,
                       const struct bt_nic *const *theirs,
                       uint32_t theirs_count, uint32_t (*pairs_out)[2])
{
    struct matching m = {
        .mine = mine, .theirs = theirs, .theirs_count = theirs_count};
    uint32_t count = 0;

    assert(mine_count <= BT_NODE_NICS_MAX && theirs_count <= BT_NODE_NICS_MAX);
    for (uint32_t i = 0; i < BT_NODE_NICS_MAX; i++)
        m.mine_of[i] = m.theirs_of[i] = UNPAIRED;
    for (uint32_t i = 0; i < mine_count; i++)
        match_one(&m, i);
    for (uint32_t i = 0; i < mine_count; i++) {
        if (m.theirs_of[i] == UNPAIRED)
            continue;
        pairs_out[count][0] = i;
        pairs_out[count++][1] = m.theirs_of[i];
    }
    return count;
}
