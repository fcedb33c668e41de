/* Discovery against a described machine: tests/lib/data/two_sockets.xml has two
 * sockets; on each a PCIe switch with two GPUs and one InfiniBand HCA; on the
 * first also an HCA of two RoCE ports (the second is down) and a plain NIC
 * behind another root port. And against this machine, of which only what the
 * kernel says elsewhere can be expected. */
#include "baton/transfer/discover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct bt_node_map *described(void)
{
    struct bt_discover_options options = {.hwloc_xml = BATON_SOURCE_DIR
                                          "/tests/lib/data/two_sockets.xml"};
    struct bt_node_map *map = NULL;
    char error[256] = "";

    if (bt_discover(&options, &map, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    return map;
}

static const struct bt_nic *port_of(const struct bt_node_map *map,
                                    const char *device, uint8_t port)
{
    for (uint32_t i = 0; i < map->nic_count; i++) {
        if (strcmp(map->nics[i].device, device) == 0 &&
            map->nics[i].port == port)
            return &map->nics[i];
    }
    fail_msg("%s:%u is not in the map", device, port);
    return NULL;
}

static const struct bt_gpu *gpu_of(const struct bt_node_map *map,
                                   const char *pci)
{
    for (uint32_t i = 0; i < map->gpu_count; i++) {
        if (strcmp(map->gpus[i].pci, pci) == 0)
            return &map->gpus[i];
    }
    fail_msg("GPU %s is not in the map", pci);
    return NULL;
}

static void test_ports(void **state)
{
    struct bt_node_map *map = described();
    const struct bt_nic *nic;

    (void)state;
    assert_int_equal(map->nic_count, 5);
    assert_int_equal(map->numa_count, 2);
    nic = port_of(map, "mlx5_1", 1);
    assert_string_equal(nic->pci, "0000:54:00.0");
    assert_int_equal(nic->link, BT_NIC_INFINIBAND);
    assert_int_equal(nic->numa, 1);
    assert_true(nic->is_up);
    assert_int_equal(nic->gids[0].kind, BT_GID_IB);
    assert_true(nic->subnet == 0xfe80000000000000ull);
    nic = port_of(map, "mlx5_2", 2);
    assert_int_equal(nic->link, BT_NIC_ROCE);
    assert_false(nic->is_up);
    assert_int_equal(nic->numa, 0);
    nic = port_of(map, "", 1);
    assert_string_equal(nic->netdev, "eth0");
    assert_int_equal(nic->link, BT_NIC_ETHERNET);
    bt_node_map_free(map);
}

static uint8_t distance(const struct bt_node_map *map, const char *gpu,
                        const char *device)
{
    const struct bt_nic *nic = port_of(map, device, 1);

    return gpu_of(map, gpu)->distance[nic - map->nics];
}

static void test_distances(void **state)
{
    struct bt_node_map *map = described();

    (void)state;
    assert_int_equal(map->gpu_count, 4);
    assert_string_equal(gpu_of(map, "0000:12:00.0")->name, "H100");
    assert_int_equal(gpu_of(map, "0000:53:00.0")->numa, 1);
    assert_int_equal(distance(map, "0000:12:00.0", "mlx5_0"), 0);
    assert_int_equal(distance(map, "0000:13:00.0", "mlx5_0"), 0);
    assert_int_equal(distance(map, "0000:12:00.0", "mlx5_2"), 1);
    assert_int_equal(distance(map, "0000:12:00.0", "mlx5_1"), 3);
    assert_int_equal(distance(map, "0000:52:00.0", "mlx5_1"), 0);
    assert_int_equal(distance(map, "0000:52:00.0", "mlx5_0"), 3);
    bt_node_map_free(map);
}

/* E10: each GPU gets the HCA under its own switch, whatever its index. */
static void test_rails_follow_the_gpu(void **state)
{
    struct bt_node_map *map = described();
    uint32_t nics[4];

    (void)state;
    assert_int_equal(bt_rails_choose(map, "0000:13:00.0", 1, nics), 1);
    assert_string_equal(map->nics[nics[0]].device, "mlx5_0");
    assert_int_equal(bt_rails_choose(map, "0000:53:00.0", 1, nics), 1);
    assert_string_equal(map->nics[nics[0]].device, "mlx5_1");
    bt_node_map_free(map);
}

static bool warned(const struct bt_node_map *map, enum bt_node_warn kind,
                   const char *word)
{
    for (uint32_t i = 0; i < map->warning_count; i++) {
        if (map->warnings[i].kind == kind &&
            strstr(map->warnings[i].text, word) != NULL)
            return true;
    }
    return false;
}

static void test_remarks(void **state)
{
    struct bt_node_map *map = described();

    (void)state;
    assert_true(warned(map, BT_WARN_PORT_DOWN, "mlx5_2 port 2"));
    assert_true(warned(map, BT_WARN_LINK_LOCAL, "mlx5_2 port 1"));
    assert_false(warned(map, BT_WARN_PORT_DOWN, "mlx5_0"));
    assert_false(warned(map, BT_WARN_GPU_FAR, "GPU"));
    assert_false(warned(map, BT_WARN_NO_RDMA, ""));
    bt_node_map_free(map);
}

static void test_no_such_file(void **state)
{
    struct bt_discover_options options = {.hwloc_xml = "/nonexistent.xml"};
    struct bt_node_map *map = NULL;
    char error[256] = "";

    (void)state;
    assert_int_equal(bt_discover(&options, &map, error, sizeof(error)), BT_IO);
    assert_non_null(strstr(error, "/nonexistent.xml"));
    assert_null(map);
}

/* ---- this machine ---- */

static void test_here(void **state)
{
    struct bt_node_map *map = NULL;
    struct rlimit limit;
    char error[256];
    bool rdma = false;

    (void)state;
    assert_int_equal(bt_discover(NULL, &map, error, sizeof(error)), BT_OK);
    for (uint32_t i = 0; i < map->nic_count; i++) {
        const struct bt_nic *nic = &map->nics[i];

        assert_string_not_equal(nic->netdev, "lo");
        assert_true(nic->device[0] != '\0' || nic->netdev[0] != '\0');
        rdma = rdma || nic->device[0] != '\0';
    }
    assert_int_equal(warned(map, BT_WARN_NO_RDMA, "TCP"), !rdma);
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (limit.rlim_cur == RLIM_INFINITY)
        assert_true(map->memlock_bytes == UINT64_MAX);
    else
        assert_true(map->memlock_bytes == limit.rlim_cur);
    bt_node_map_free(map);
}

/* Files and folders of a NIC below root, in the order they are made. */
static const struct {
    const char *under_class, *text; /* NULL: a folder; %s: the NIC's name */
} nic_files[] = {
    {"", NULL},
    {"/net", NULL},
    {"/net/%s", NULL},
    {"/net/%s/device", NULL},
    {"/net/%s/speed", "25000\n"},
    {"/net/%s/mtu", "9000\n"},
    {"/net/%s/operstate", "up\n"},
};
#define NIC_FILES (sizeof(nic_files) / sizeof(nic_files[0]))

static void nic_path(char out[256], const char *root, const char *name,
                     size_t i)
{
    const char *under = nic_files[i].under_class;
    const char *at = strstr(under, "%s");

    if (at == NULL)
        snprintf(out, 256, "%s/class%s", root, under);
    else
        snprintf(out, 256, "%s/class%.*s%s%s", root, (int)(at - under), under,
                 name, at + 2);
}

static void make_nic(const char *root, const char *name)
{
    char path[256];

    for (size_t i = 0; i < NIC_FILES; i++) {
        FILE *file;

        nic_path(path, root, name, i);
        if (nic_files[i].text == NULL) {
            assert_int_equal(mkdir(path, 0755), 0);
            continue;
        }
        file = fopen(path, "w");
        assert_non_null(file);
        assert_true(fputs(nic_files[i].text, file) >= 0);
        assert_int_equal(fclose(file), 0);
    }
}

static void remove_nic(const char *root, const char *name)
{
    char path[256];

    for (size_t i = NIC_FILES; i-- > 0;) {
        nic_path(path, root, name, i);
        assert_int_equal(remove(path), 0);
    }
    assert_int_equal(rmdir(root), 0);
}

/* Plain NICs are read from the /sys that was named: speed and MTU come from
 * there, with a copy that says 25 Gbit/s. */
static void test_sys_root(void **state)
{
    char root[] = "/tmp/baton_sys_XXXXXX";
    struct bt_discover_options options = {.sys_root = root, .no_verbs = true};
    struct bt_node_map *map = NULL;
    char error[256];
    const char *name = NULL;

    (void)state;
    assert_int_equal(bt_discover(NULL, &map, error, sizeof(error)), BT_OK);
    for (uint32_t i = 0; i < map->nic_count && name == NULL; i++) {
        if (map->nics[i].link == BT_NIC_ETHERNET)
            name = map->nics[i].netdev;
    }
    if (name == NULL) {
        bt_node_map_free(map);
        print_message("no network device here\n");
        skip();
        return;
    }
    assert_non_null(mkdtemp(root));
    make_nic(root, name);
    struct bt_node_map *other = NULL;
    assert_int_equal(bt_discover(&options, &other, error, sizeof(error)),
                     BT_OK);
    assert_true(other->nic_count >= 1);
    for (uint32_t i = 0; i < other->nic_count; i++) {
        if (strcmp(other->nics[i].netdev, name) != 0)
            continue;
        assert_true(other->nics[i].rate_bytes_per_s == 3125000000ull);
        assert_int_equal(other->nics[i].mtu, 9000);
        assert_true(other->nics[i].is_up);
    }
    bt_node_map_free(other);
    remove_nic(root, name); /* name is the map's */
    bt_node_map_free(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ports),
        cmocka_unit_test(test_distances),
        cmocka_unit_test(test_rails_follow_the_gpu),
        cmocka_unit_test(test_remarks),
        cmocka_unit_test(test_no_such_file),
        cmocka_unit_test(test_here),
        cmocka_unit_test(test_sys_root),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
