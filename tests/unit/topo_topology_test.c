/* Compiled topologies: paths, classes, links, names, remarks and refusals. */
#include "baton/planner/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define GB 1000000000ULL

static _Alignas(16) unsigned char memory[65536];

static const struct bt_topology *compile(const struct bt_topology_spec *spec)
{
    const struct bt_topology *t;
    struct bt_arena arena;
    char error[128] = "";

    assert_int_equal(bt_topology_check(spec, error, sizeof(error)), BT_OK);
    assert_true(bt_topology_bytes(spec) <= sizeof(memory));
    memset(memory, 0, sizeof(memory));
    bt_arena_init(&arena, memory, bt_topology_bytes(spec));
    t = bt_topology_init(&arena, spec);
    assert_non_null(t);
    return t;
}

/* Two pods; pod A has racks r0 (nodes n0, n1) and r1 (n2), pod B rack r2 (n3),
 * n4 in no rack. Workers: 0, 1 on n0 (NVLink), 2 on n1 with a rail of its own,
 * 3, 4 on n2, 5 on n3, 6 nowhere, 7 on n4. */
static const struct bt_topology_pod pods[] = {{"A", 100 * GB, 90 * GB},
                                              {"B", 0, 80 * GB}};
static const struct bt_topology_rack racks[] = {
    {"r0", 0, 40 * GB, 40 * GB}, {"r1", 0, 0, 30 * GB}, {"r2", 1, 20 * GB, 0}};
static const struct bt_topology_node nodes[] = {
    {"n0", 0, 8, 10 * GB, true, 450 * GB}, {"n1", 0, 8, 10 * GB, false, 0},
    {"n2", 1, 8, 10 * GB, false, 0},       {"n3", 2, 1, 5 * GB, false, 0},
    {"n4", BT_LINK_NONE, 8, 0, false, 0},
};
static const struct bt_topology_worker workers[] = {
    {.node = 0},
    {.node = 0},
    {.node = 1, .rails = 2},
    {.node = 2},
    {.node = 2, .nic_in_bytes_per_s = 7 * GB},
    {.node = 3, .name = "decode-5"},
    {.node = BT_LINK_NONE},
    {.node = 4},
};
static const struct bt_topology_spec spec = {
    .racks = racks,
    .rack_count = 3,
    .pods = pods,
    .pod_count = 2,
    .nodes = nodes,
    .node_count = 5,
    .workers = workers,
    .worker_count = 8,
    .classes[BT_PATH_POD] = {1000, 20, 12 * GB},
};

static const char *name_of(const struct bt_topology *t, uint32_t link)
{
    static char name[64];

    if (link == BT_LINK_NONE)
        return "-";
    bt_topology_link_name(t, link, name, sizeof(name));
    return name;
}

static void paths(void **state)
{
    static const struct {
        uint32_t a, b;
        enum bt_path_class path_class;
        const char *links[BT_PATH_LINKS_MAX + 1];
        uint64_t rate;
    } rows[] = {
        {0, 0, BT_PATH_LOCAL, {NULL}, 0},
        {6, 6, BT_PATH_LOCAL, {NULL}, 0},
        {0, 1, BT_PATH_NVLINK, {"w0.nvlink_out", "w1.nvlink_in"}, 450 * GB},
        {3, 4, BT_PATH_NODE, {"n2.nic_out", "w4.nic_in"}, 7 * GB},
        {4, 3, BT_PATH_NODE, {"n2.nic_out", "n2.nic_in"}, 80 * GB},
        {0, 2, BT_PATH_RACK, {"n0.nic_out", "w2.nic_in"}, 20 * GB},
        {0,
         3,
         BT_PATH_POD,
         {"n0.nic_out", "n2.nic_in", "r0.up", "r1.down"},
         12 * GB},
        {3, 1, BT_PATH_POD, {"n2.nic_out", "n0.nic_in", "r0.down"}, 12 * GB},
        {2,
         5,
         BT_PATH_CROSS_POD,
         {"w2.nic_out", "n3.nic_in", "r0.up", "A.up", "B.down"},
         5 * GB},
        {5,
         0,
         BT_PATH_CROSS_POD,
         {"n3.nic_out", "n0.nic_in", "r2.up", "r0.down", "A.down"},
         5 * GB},
        {7, 4, BT_PATH_CROSS_POD, {"w4.nic_in", "r1.down", "A.down"}, 7 * GB},
        {0, 6, BT_PATH_UNKNOWN, {NULL}, 0},
        {6, 0, BT_PATH_UNKNOWN, {NULL}, 0},
        {0, 99, BT_PATH_UNKNOWN, {NULL}, 0},
    };
    const struct bt_topology *t = compile(&spec);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bt_path path;
        uint32_t n = 0;

        bt_topology_path(t, rows[i].a, rows[i].b, &path);
        assert_int_equal(path.path_class, rows[i].path_class);
        assert_int_equal(bt_topology_class_of(t, rows[i].a, rows[i].b),
                         rows[i].path_class);
        assert_true(path.rate_bytes_per_s == rows[i].rate);
        for (; rows[i].links[n] != NULL; n++) {
            assert_true(n < path.count);
            assert_string_equal(name_of(t, path.links[n]), rows[i].links[n]);
        }
        assert_int_equal(path.count, n);
        assert_int_equal(path.setup_ns,
                         path.path_class == BT_PATH_POD ? 1000 : 0);
        assert_int_equal(path.per_descriptor_ns,
                         path.path_class == BT_PATH_POD ? 20 : 0);
    }
}

static void ports(void **state)
{
    const struct bt_topology *t = compile(&spec);

    (void)state;
    assert_int_equal(bt_topology_worker_count(t), 8);
    assert_string_equal(name_of(t, bt_topology_nic_out(t, 0)), "n0.nic_out");
    assert_int_equal(bt_topology_nic_out(t, 0), bt_topology_nic_out(t, 1));
    assert_string_equal(name_of(t, bt_topology_nic_in(t, 2)), "w2.nic_in");
    assert_int_equal(bt_topology_nic_out(t, 6), BT_LINK_NONE);
    assert_int_equal(bt_topology_nic_in(t, 7), BT_LINK_NONE);
    assert_int_equal(bt_topology_nic_in(t, 8), BT_LINK_NONE);
    for (uint32_t i = 0; i < bt_topology_link_count(t); i++)
        assert_true(bt_topology_link_at(t, i)->rate_bytes_per_s > 0);
    /* r0 2, r1 1, r2 1, A 2, B 1; n0 n2 n3 2 each; w2 2, w4 1; nvlink 4 */
    assert_int_equal(bt_topology_link_count(t), 7 + 6 + 3 + 4);
    assert_true(
        bt_topology_link_at(t, bt_topology_nic_in(t, 2))->owner_is_worker);
}

static void names(void **state)
{
    static struct bt_topology_node bare[] = {
        {NULL, 0, 1, GB, false, 0}, {NULL, BT_LINK_NONE, 1, GB, false, 0}};
    static const struct bt_topology_rack rack = {NULL, 0, GB, GB};
    static const struct bt_topology_pod pod = {NULL, GB, GB};
    static const struct bt_topology_worker two[] = {
        {.node = 0}, {.node = 1, .rails = 1, .name = "late"}};
    static const struct bt_topology_spec anonymous = {.racks = &rack,
                                                      .rack_count = 1,
                                                      .pods = &pod,
                                                      .pod_count = 1,
                                                      .nodes = bare,
                                                      .node_count = 2,
                                                      .workers = two,
                                                      .worker_count = 2};
    const struct bt_topology *t = compile(&anonymous);
    struct bt_path path;

    (void)state;
    bt_topology_path(t, 0, 1, &path);
    assert_int_equal(path.count, 4);
    assert_string_equal(name_of(t, path.links[0]), "node0.nic_out");
    assert_string_equal(name_of(t, path.links[1]), "late.nic_in");
    assert_string_equal(name_of(t, path.links[2]), "rack0.up");
    assert_string_equal(name_of(t, path.links[3]), "pod0.up");
    assert_string_equal(bt_path_class_name(BT_PATH_CROSS_POD), "cross_pod");
    assert_string_equal(bt_link_kind_name(BT_LINK_POD_DOWN), "pod_down");
}

/* Rack r0 holds n0 and two rails of worker 2: 80 + 20 over an uplink of 40. */
static void remarks(void **state)
{
    static const char *const want[] = {
        "r0 is oversubscribed 2.5:1 upwards",
        "r0 is oversubscribed 2.5:1 downwards",
        "r1 is oversubscribed 2.9:1 downwards", /* 80 + 7 over 30 */
        "A is oversubscribed 1.8:1 upwards",    /* 180 over 100 */
        "A is oversubscribed 2.1:1 downwards",  /* 187 over 90 */
        "node n3 has 1 rail, its peers have 8",
        "rails of node n3 are 2.0 times slower than the fastest",
        "w4 sends at 80.0 and receives at 7.0 GB/s",
        "w6 is on no node: pair links are used",
        "w7 has no NIC rate: its NIC limits nothing",
    };
    const struct bt_topology *t = compile(&spec);
    char text[128];
    size_t i = 0;

    (void)state;
    for (; bt_topology_warning(t, i, text, sizeof(text)); i++) {
        assert_true(i < sizeof(want) / sizeof(want[0]));
        assert_string_equal(text, want[i]);
    }
    assert_int_equal(i, sizeof(want) / sizeof(want[0]));
}

static void nothing_placed(void **state)
{
    static const struct bt_topology_spec empty = {.worker_count = 0};
    const struct bt_topology *t = compile(&empty);
    char text[32];

    (void)state;
    assert_int_equal(bt_topology_link_count(t), 0);
    assert_int_equal(bt_topology_class_of(t, 0, 1), BT_PATH_UNKNOWN);
    assert_false(bt_topology_warning(t, 0, text, sizeof(text)));
}

static void refuse(const struct bt_topology_spec *bad, const char *want)
{
    struct bt_arena arena;
    char error[128] = "";

    assert_int_equal(bt_topology_check(bad, error, sizeof(error)), BT_INVALID);
    assert_string_equal(error, want);
    memset(memory, 0, sizeof(memory));
    bt_arena_init(&arena, memory, sizeof(memory));
    assert_null(bt_topology_init(&arena, bad));
}

static void refusals(void **state)
{
    struct bt_topology_spec bad = spec;
    struct bt_topology_node node = nodes[0];
    struct bt_topology_rack rack = racks[0];
    struct bt_topology_worker worker = {.node = 5};
    struct bt_arena arena;

    (void)state;
    bad.classes[BT_PATH_NODE].setup_ns = -1;
    refuse(&bad, "class node: a time outside its range");
    bad = spec;
    bad.workers = &worker;
    bad.worker_count = 1;
    refuse(&bad, "worker 0: there is no node 5");
    worker = (struct bt_topology_worker){
        .node = 0, .rails = 16, .rail_bytes_per_s = UINT64_MAX / 15};
    refuse(&bad, "worker 0: its rails overflow");
    bad = spec;
    bad.nodes = &node;
    bad.node_count = 1;
    node.rack = 3;
    refuse(&bad, "node 0: there is no rack 3");
    node.rack = 0;
    node.rail_bytes_per_s = UINT64_MAX / 7;
    refuse(&bad, "node 0: its rails overflow");
    bad = spec;
    bad.racks = &rack;
    bad.rack_count = 1;
    rack.pod = 2;
    refuse(&bad, "rack 0: there is no pod 2");
    bad = spec;
    bad.pods = NULL;
    refuse(&bad, "a count without its array");
    bt_arena_init(&arena, memory, bt_topology_bytes(&spec) / 2);
    assert_null(bt_topology_init(&arena, &spec));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),          cmocka_unit_test(ports),
        cmocka_unit_test(names),          cmocka_unit_test(remarks),
        cmocka_unit_test(nothing_placed), cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
