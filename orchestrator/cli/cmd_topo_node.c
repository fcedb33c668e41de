/* Shows what discovery found on this node: ports with their rates, GIDs and
 * places, GPUs with their nearest ports, the rails that would be used, and
 * remarks. Decides only how it reads. */
#include "cmd_topo.h"

#include "baton/base/units.h"
#include "baton/transfer/discover.h"
#include "command.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct view {
    const struct bt_node_map *map;
    uint32_t rails[BT_NODE_NICS_MAX], rail_count;
    const char *gpu;
};

static const char *link_name(enum bt_nic_link link)
{
    switch (link) {
    case BT_NIC_INFINIBAND:
        return "infiniband";
    case BT_NIC_ROCE:
        return "roce";
    case BT_NIC_IWARP:
        return "iwarp";
    case BT_NIC_ETHERNET:
        return "ethernet";
    }
    return "?";
}

static const char *gid_name(enum bt_gid_kind kind)
{
    switch (kind) {
    case BT_GID_NONE:
        return "none";
    case BT_GID_LINK_LOCAL:
        return "link-local";
    case BT_GID_IB:
        return "ib";
    case BT_GID_ROCE_V1:
        return "v1";
    case BT_GID_ROCE_V2_IPV6:
        return "v2/ipv6";
    case BT_GID_ROCE_V2_IPV4:
        return "v2/ipv4";
    }
    return "?";
}

static const char *or_dash(const char *text)
{
    return text[0] == '\0' ? "-" : text;
}

static int rail_of(const struct view *v, uint32_t nic)
{
    for (uint32_t i = 0; i < v->rail_count; i++) {
        if (v->rails[i] == nic)
            return (int)i;
    }
    return -1;
}

/* The chosen GID: entry of the port's list, or NULL. */
static const struct bt_gid *gid_of(const struct bt_nic *nic)
{
    int index = bt_gid_choose(nic);

    for (uint8_t i = 0; i < nic->gid_count; i++) {
        if ((int)nic->gids[i].index == index)
            return &nic->gids[i];
    }
    return NULL;
}

/* Is the GID the address of the port's network device? */
static bool is_address(const struct bt_gid *gid, const char *address)
{
    uint8_t raw[16] = {[10] = 0xFF, [11] = 0xFF};

    return (inet_pton(AF_INET, address, raw + 12) == 1 ||
            inet_pton(AF_INET6, address, raw) == 1) &&
           memcmp(raw, gid->raw, sizeof(raw)) == 0;
}

/* The word for --rail and --transfer-rail. Without an address the port is taken
 * by its GID; with one, the GID must be that address (verbs refuses another),
 * and on InfiniBand the fabric needs none. */
static void rail_word(const struct view *v, uint32_t rail, char *out,
                      size_t size)
{
    const struct bt_nic *nic = &v->map->nics[v->rails[rail]];
    const struct bt_gid *gid = gid_of(nic);
    char device[48], index[16] = "";

    if (nic->device[0] == '\0')
        snprintf(device, sizeof(device), "%s", nic->netdev);
    else
        snprintf(device, sizeof(device), "%s:%u", nic->device, nic->port);
    if (nic->link == BT_NIC_ROCE && gid != NULL &&
        (nic->address[0] == '\0' || is_address(gid, nic->address)))
        snprintf(index, sizeof(index), ",gid=%u", gid->index);
    snprintf(out, size, "r%u=%s@%s%s", rail, nic->address, device, index);
}

/* ---- text ---- */

static const char *number(int value, int absent, char text[16])
{
    if (value == absent)
        return "-";
    snprintf(text, 16, "%d", value);
    return text;
}

static void print_nic(const struct view *v, uint32_t index)
{
    const struct bt_nic *nic = &v->map->nics[index];
    const struct bt_gid *gid = gid_of(nic);
    char rate[32] = "unknown", rail[16], numa[16], mtu[16], port[48],
         chosen[64] = "-";

    if (nic->rate_bytes_per_s != 0)
        bt_rate_format(nic->rate_bytes_per_s, rate, sizeof(rate));
    snprintf(port, sizeof(port), "%s:%u", or_dash(nic->device), nic->port);
    if (gid != NULL)
        snprintf(chosen, sizeof(chosen), "%u %s", gid->index,
                 gid_name(gid->kind));
    printf("%-5s %-10s %-10s %-10s %-5s %-10s %5s  %-4s %-13s %-14s %s\n",
           number(rail_of(v, index), -1, rail),
           nic->device[0] == '\0' ? "-" : port, or_dash(nic->netdev),
           link_name(nic->link), nic->is_up ? "up" : "down", rate,
           number((int)nic->mtu, 0, mtu), number(nic->numa, -1, numa),
           or_dash(nic->pci), chosen, or_dash(nic->address));
}

static void print_gpu(const struct view *v, const struct bt_gpu *gpu)
{
    static const char *const words[] = {"same switch", "same root", "same NUMA",
                                        "other socket"};
    uint32_t nics[BT_NODE_NICS_MAX];
    uint32_t count = bt_rails_choose(v->map, gpu->pci, 2, nics);
    char numa[16];

    printf("%-13s %-28s %-4s ", gpu->pci, gpu->name,
           number(gpu->numa, -1, numa));
    for (uint32_t i = 0; i < count; i++) {
        const struct bt_nic *nic = &v->map->nics[nics[i]];
        uint8_t d = gpu->distance[nics[i]];

        printf("%s%s (%s)", i > 0 ? ", " : "",
               nic->device[0] != '\0' ? nic->device : nic->netdev,
               d < 4 ? words[d] : "distance unknown");
    }
    printf("%s\n", count == 0 ? "-" : "");
}

static void print_table(const struct view *v)
{
    const struct bt_node_map *map = v->map;
    char size[32], word[160];

    printf("%-5s %-10s %-10s %-10s %-5s %-10s %5s  %-4s %-13s %-14s %s\n",
           "RAIL", "PORT", "NETDEV", "LINK", "STATE", "RATE", "MTU", "NUMA",
           "PCI", "GID", "ADDRESS");
    for (uint32_t i = 0; i < map->nic_count; i++)
        print_nic(v, i);
    if (map->gpu_count > 0)
        printf("\n%-13s %-28s %-4s %s\n", "GPU", "NAME", "NUMA", "RAILS");
    for (uint32_t i = 0; i < map->gpu_count; i++)
        print_gpu(v, &map->gpus[i]);
    printf("\n%u port%s, %u GPU%s, %u NUMA node%s, locked memory %s\n",
           map->nic_count, map->nic_count == 1 ? "" : "s", map->gpu_count,
           map->gpu_count == 1 ? "" : "s", map->numa_count,
           map->numa_count == 1 ? "" : "s",
           map->memlock_bytes == UINT64_MAX
               ? "unlimited"
               : bt_size_format(map->memlock_bytes, size, sizeof(size)));
    for (uint32_t i = 0; i < v->rail_count; i++) {
        rail_word(v, i, word, sizeof(word));
        printf("rail %u: --rail %s\n", i, word);
    }
    for (uint32_t i = 0; i < map->warning_count; i++)
        printf("remark: %s\n", map->warnings[i].text);
}

/* ---- json ---- */

static json_t *gids_json(const struct bt_nic *nic)
{
    json_t *gids = json_array();
    char text[INET6_ADDRSTRLEN];

    for (uint8_t i = 0; i < nic->gid_count; i++) {
        inet_ntop(AF_INET6, nic->gids[i].raw, text, sizeof(text));
        json_array_append_new(
            gids, json_pack("{s:i, s:s, s:s}", "index", nic->gids[i].index,
                            "kind", gid_name(nic->gids[i].kind), "gid", text));
    }
    return gids;
}

static json_t *nics_json(const struct view *v)
{
    json_t *nics = json_array();

    for (uint32_t i = 0; i < v->map->nic_count; i++) {
        const struct bt_nic *nic = &v->map->nics[i];

        json_array_append_new(
            nics,
            json_pack("{s:s, s:s, s:i, s:s, s:b, s:I, s:i, s:i, s:s, s:i, s:i, "
                      "s:s, s:o}",
                      "device", nic->device, "netdev", nic->netdev, "port",
                      nic->port, "link", link_name(nic->link), "up",
                      (int)nic->is_up, "rate_bytes_per_s",
                      (json_int_t)nic->rate_bytes_per_s, "mtu", (int)nic->mtu,
                      "numa", nic->numa, "pci", nic->pci, "rail", rail_of(v, i),
                      "gid_index", bt_gid_choose(nic), "address", nic->address,
                      "gids", gids_json(nic)));
    }
    return nics;
}

static json_t *rails_json(const struct view *v)
{
    json_t *words = json_array();
    char word[160];

    for (uint32_t i = 0; i < v->rail_count; i++) {
        rail_word(v, i, word, sizeof(word));
        json_array_append_new(words, json_string(word));
    }
    return words;
}

static json_t *gpus_json(const struct view *v)
{
    json_t *gpus = json_array();

    for (uint32_t i = 0; i < v->map->gpu_count; i++) {
        const struct bt_gpu *gpu = &v->map->gpus[i];
        json_t *distance = json_array();

        for (uint32_t n = 0; n < v->map->nic_count; n++)
            json_array_append_new(distance, json_integer(gpu->distance[n]));
        json_array_append_new(gpus,
                              json_pack("{s:s, s:s, s:i, s:o}", "pci", gpu->pci,
                                        "name", gpu->name, "numa", gpu->numa,
                                        "distance", distance));
    }
    return gpus;
}

static int print_json(const struct view *v)
{
    json_t *warnings = json_array(), *root;
    char *dump;

    for (uint32_t i = 0; i < v->map->warning_count; i++) {
        const struct bt_node_warning *w = &v->map->warnings[i];

        json_array_append_new(warnings, json_pack("{s:s, s:s}", "kind",
                                                  bt_node_warn_name(w->kind),
                                                  "text", w->text));
    }
    root = json_pack("{s:o, s:o, s:o, s:o, s:i, s:I}", "ports", nics_json(v),
                     "rails", rails_json(v), "gpus", gpus_json(v), "warnings",
                     warnings, "numa_nodes", (int)v->map->numa_count,
                     "memlock_bytes",
                     v->map->memlock_bytes == UINT64_MAX
                         ? (json_int_t)-1
                         : (json_int_t)v->map->memlock_bytes);
    dump = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (dump == NULL) {
        fprintf(stderr, "baton topo: out of memory\n");
        return BT_EXIT_FAILED;
    }
    puts(dump);
    free(dump);
    return BT_EXIT_OK;
}

static bool has_gpu(const struct bt_node_map *map, const char *pci)
{
    for (uint32_t i = 0; i < map->gpu_count; i++) {
        if (strcmp(map->gpus[i].pci, pci) == 0)
            return true;
    }
    return false;
}

int topo_node(const struct topo_node_options *options)
{
    struct bt_discover_options discover = {.hwloc_xml = options->hwloc_xml};
    struct bt_node_map *map = NULL;
    struct view v = {.gpu = options->gpu};
    char error[256];
    int code = BT_EXIT_OK;

    if (bt_discover(&discover, &map, error, sizeof(error)) != BT_OK) {
        fprintf(stderr, "baton topo: %s\n", error);
        return options->hwloc_xml ? BT_EXIT_CONFIG : BT_EXIT_FAILED;
    }
    v.map = map;
    if (v.gpu != NULL && !has_gpu(map, v.gpu)) {
        fprintf(stderr, "baton topo: no GPU at %s here\n", v.gpu);
        bt_node_map_free(map);
        return BT_EXIT_USAGE;
    }
    v.rail_count = bt_rails_choose(map, v.gpu, options->rails, v.rails);
    if (options->json)
        code = print_json(&v);
    else
        print_table(&v);
    bt_node_map_free(map);
    return code;
}
