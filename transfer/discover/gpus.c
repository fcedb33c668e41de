/* GPUs as hwloc sees them on PCI, and how far each is from each NIC:
 *
 *   0  under one PCIe switch      1  under one host bridge
 *   2  on one NUMA node           3  across sockets        255 unknown
 *
 * Decides the distance only; rails.c chooses by it. */
#include "discover_priv.h"

#include <stdio.h>
#include <string.h>

#define VENDOR_NVIDIA 0x10de
#define VENDOR_AMD    0x1002
#define CLASS_VGA     0x0300
#define CLASS_3D      0x0302
#define CLASS_COPROC  0x1200 /* processing accelerators */
#define CLASS_DISPLAY 0x0380
#define DEPTH_MAX     64

void bt_pci_text(const struct hwloc_pcidev_attr_s *pci, char out[16])
{
    snprintf(out, 16, "%04x:%02x:%02x.%x", pci->domain & 0xffffu, pci->bus,
             pci->dev & 0x1fu, pci->func & 7u);
}

hwloc_obj_t bt_pci_find(const struct collect *c, const char *pci)
{
    hwloc_obj_t object = NULL;
    char text[16];

    if (pci[0] == '\0')
        return NULL;
    while ((object = hwloc_get_next_pcidev(c->topology, object)) != NULL) {
        bt_pci_text(&object->attr->pcidev, text);
        if (strcmp(text, pci) == 0)
            return object;
    }
    return NULL;
}

int bt_numa_of(hwloc_obj_t object)
{
    for (int i = 0; i < DEPTH_MAX && object != NULL; i++) {
        if (object->nodeset != NULL &&
            hwloc_bitmap_weight(object->nodeset) == 1)
            return hwloc_bitmap_first(object->nodeset);
        if (object->nodeset != NULL)
            return -1; /* hangs from more than one node */
        object = object->parent;
    }
    return -1;
}

/* Nearest object that is above both. */
static hwloc_obj_t common_of(hwloc_obj_t a, hwloc_obj_t b)
{
    for (int i = 0; i < DEPTH_MAX && a != NULL; i++, a = a->parent) {
        hwloc_obj_t up = b;

        for (int j = 0; j < DEPTH_MAX && up != NULL; j++, up = up->parent) {
            if (up == a)
                return a;
        }
    }
    return NULL;
}

static uint8_t distance_of(hwloc_obj_t gpu, hwloc_obj_t nic)
{
    hwloc_obj_t common;
    int numa;

    if (gpu == NULL || nic == NULL)
        return UINT8_MAX;
    common = common_of(gpu, nic);
    if (common == NULL)
        return UINT8_MAX;
    if (common->type == HWLOC_OBJ_PCI_DEVICE)
        return 0; /* functions of one device */
    if (common->type == HWLOC_OBJ_BRIDGE)
        return common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? 0
                                                                          : 1;
    numa = bt_numa_of(gpu);
    return numa >= 0 && numa == bt_numa_of(nic) ? 2 : 3;
}

static bool is_gpu(const struct hwloc_pcidev_attr_s *pci)
{
    if (pci->vendor_id != VENDOR_NVIDIA && pci->vendor_id != VENDOR_AMD)
        return false;
    return pci->class_id == CLASS_VGA || pci->class_id == CLASS_3D ||
           pci->class_id == CLASS_COPROC || pci->class_id == CLASS_DISPLAY;
}

static void read_gpu(struct collect *c, hwloc_obj_t object)
{
    struct bt_node_map *map = c->map;
    struct bt_gpu *gpu = &map->gpus[map->gpu_count++];
    const char *name = object->name;

    if (name == NULL)
        name = hwloc_obj_get_info_by_name(object, "PCIDevice");
    bt_pci_text(&object->attr->pcidev, gpu->pci);
    snprintf(gpu->name, sizeof(gpu->name), "%s", name == NULL ? "GPU" : name);
    gpu->numa = bt_numa_of(object);
    for (uint32_t i = 0; i < map->nic_count; i++)
        gpu->distance[i] =
            distance_of(object, bt_pci_find(c, map->nics[i].pci));
}

void bt_collect_gpus(struct collect *c)
{
    hwloc_obj_t object = NULL;

    while ((object = hwloc_get_next_pcidev(c->topology, object)) != NULL) {
        if (is_gpu(&object->attr->pcidev) &&
            c->map->gpu_count < BT_NODE_GPUS_MAX)
            read_gpu(c, object);
    }
}
