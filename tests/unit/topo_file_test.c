/* Topology files: what they come to by slot, each kind of fault with its line
 * and column (counted by hand in the texts below), and the key of the
 * configuration that names one. */
#include "baton/orchestrator/config.h"
#include "baton/orchestrator/topology_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GB 1000000000ULL

static char folder[64];

static void write_file(const char *name, const char *text, char path[128])
{
    FILE *file;

    (void)snprintf(path, 128, "%s/%s", folder, name);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/baton-topo-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int drop_folder(void **state)
{
    static const char *const names[] = {"t.yaml", "c.yaml"};
    char path[128];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static const char full[] =
    "topology_schema: 1\n"
    "pods:\n  - {name: A, up: 100GB/s, down: 90GB/s}\n"
    "racks:\n  - {name: r0, pod: A, up: 40GB/s}\n  - {name: r1}\n"
    "nodes:\n"
    "  - {name: n0, rack: r0, rails: 8, rail_rate: 400Gbps, nvlink: 450GB/s}\n"
    "  - {name: n1, rack: r1, rails: 1, rail_rate: 5GB/s}\n"
    "  - name: n2\n"
    "workers:\n"
    "  - {name: a, node: n0}\n"
    "  - {name: b, node: n1, rails: 2, in: 7GB/s}\n"
    "  - {name: c}\n"
    "  - {name: d, node: n2, rail_rate: 3GB/s, out: 2GB/s}\n"
    "classes:\n"
    "  rack: {setup: 3ms, descriptor: 7us, flow_max: 1GB/s}\n"
    "  pod: {setup: 0us}\n";

static void check_groups(const struct bt_topology_spec *s)
{
    assert_int_equal(s->pod_count, 1);
    assert_string_equal(s->pods[0].name, "A");
    assert_int_equal(s->pods[0].up_bytes_per_s, 100 * GB);
    assert_int_equal(s->pods[0].down_bytes_per_s, 90 * GB);
    assert_int_equal(s->rack_count, 2);
    assert_int_equal(s->racks[0].pod, 0);
    assert_int_equal(s->racks[0].down_bytes_per_s, 40 * GB);
    assert_int_equal(s->racks[1].pod, BT_LINK_NONE);
    assert_int_equal(s->racks[1].up_bytes_per_s, 0);
    assert_int_equal(s->node_count, 3);
    assert_int_equal(s->nodes[0].rails, 8);
    assert_int_equal(s->nodes[0].rail_bytes_per_s, 50 * GB);
    assert_true(s->nodes[0].nvlink_domain);
    assert_int_equal(s->nodes[0].nvlink_bytes_per_s, 450 * GB);
    assert_int_equal(s->nodes[1].rack, 1);
    assert_false(s->nodes[1].nvlink_domain);
    assert_int_equal(s->nodes[2].rack, BT_LINK_NONE);
}

static void its_own_workers(void **state)
{
    struct bt_topology_file *file = NULL;
    const struct bt_topology_spec *s;
    char path[128], error[512];

    (void)state;
    write_file("t.yaml", full, path);
    assert_int_equal(
        bt_topology_file_load(path, NULL, 0, &file, error, sizeof(error)),
        BT_OK);
    s = bt_topology_file_spec(file);
    check_groups(s);
    assert_int_equal(s->worker_count, 4);
    assert_string_equal(s->workers[1].name, "b");
    assert_int_equal(s->workers[1].node, 1);
    assert_int_equal(s->workers[1].rails, 2);
    assert_int_equal(s->workers[1].nic_in_bytes_per_s, 7 * GB);
    assert_int_equal(s->workers[2].node, BT_LINK_NONE);
    assert_int_equal(s->workers[3].rail_bytes_per_s, 3 * GB);
    assert_int_equal(s->workers[3].nic_out_bytes_per_s, 2 * GB);
    assert_int_equal(s->classes[BT_PATH_RACK].setup_ns, 3000000);
    assert_int_equal(s->classes[BT_PATH_RACK].per_descriptor_ns, 7000);
    assert_int_equal(s->classes[BT_PATH_RACK].flow_bytes_per_s_max, GB);
    assert_int_equal(s->classes[BT_PATH_POD].setup_ns, 0);
    assert_int_equal(s->classes[BT_PATH_POD].per_descriptor_ns, 1000);
    assert_int_equal(s->classes[BT_PATH_CROSS_POD].setup_ns, 1000000);
    assert_int_equal(s->classes[BT_PATH_LOCAL].setup_ns, 0);
    assert_int_equal(
        bt_topology_class_of(bt_topology_file_topology(file), 0, 1),
        BT_PATH_CROSS_POD);
    bt_topology_file_destroy(file);
}

/* Slots in the order of the caller; x is not in the file. */
static void workers_by_name(void **state)
{
    static const char *const names[] = {"d", "x", "b", "a", "c"};
    struct bt_topology_file *file = NULL;
    const struct bt_topology_spec *s;
    char path[128], error[512];

    (void)state;
    write_file("t.yaml", full, path);
    assert_int_equal(
        bt_topology_file_load(path, names, 5, &file, error, sizeof(error)),
        BT_OK);
    s = bt_topology_file_spec(file);
    assert_int_equal(s->worker_count, 5);
    assert_int_equal(s->workers[0].node, 2);
    assert_int_equal(s->workers[1].node, BT_LINK_NONE);
    assert_int_equal(s->workers[2].node, 1);
    assert_int_equal(s->workers[3].node, 0);
    assert_string_equal(s->workers[1].name, "x");
    bt_topology_file_destroy(file);
    file = NULL;
    assert_int_equal(
        bt_topology_file_load(path, names, 4, &file, error, sizeof(error)),
        BT_INVALID);
    assert_null(file);
    assert_non_null(strstr(error, "t.yaml:14:12: unknown worker 'c'"));
}

static const struct {
    const char *yaml;
    enum bt_status status;
    const char *fault; /* after "FILE:" */
} SAMPLES[] = {
    {"wrokers: []\n", BT_INVALID,
     "1:1: unknown key 'wrokers' (did you mean 'workers'?)"},
    {"nodes:\n  - {name: n0, rial_rate: 1GB/s}\n", BT_INVALID,
     "2:16: unknown key 'rial_rate' (did you mean 'rail_rate'?)"},
    {"nodes:\n  - {name: n0, rails: 2, rails: 3}\n", BT_DUPLICATE,
     "2:26: repeated key 'rails'"},
    {"nodes:\n  - {rails: 1}\n", BT_INVALID, "2:5: missing key 'name'"},
    {"racks:\n  - {name: r}\n  - {}\n", BT_INVALID, "3:5: missing key 'name'"},
    {"nodes: {name: n0}\n", BT_TYPE,
     "1:8: expected a list, got a mapping (key: value)"},
    {"nodes:\n  - {name: n0, rail_rate: 50}\n", BT_TYPE,
     "2:27: expected a rate with a unit (such as 12GB/s), got '50'"},
    {"nodes:\n  - {name: n0, rails: 2000}\n", BT_INVALID,
     "2:23: rails is out of range: '2000' (allowed: 0..1024)"},
    {"nodes:\n  - {name: n0, rails: many}\n", BT_TYPE,
     "2:23: expected a whole number, got 'many'"},
    {"racks:\n  - {name: r0}\nnodes:\n  - {name: n0, rack: r1}\n", BT_INVALID,
     "4:22: unknown rack 'r1' (did you mean 'r0'?)"},
    {"racks:\n  - {name: r0, pod: east}\n", BT_INVALID,
     "2:21: unknown pod 'east'"},
    {"workers:\n  - {name: w, node: n0}\n", BT_INVALID,
     "2:21: unknown node 'n0'"},
    {"pods:\n  - name: A\n  - name: B\n  - name: A\n", BT_DUPLICATE,
     "4:11: repeated name 'A'"},
    {"pods:\n  - name: a b\n", BT_INVALID,
     "2:11: a name has 1 to 63 letters, digits or any of ._-, got 'a b'"},
    {"pods:\n  - name: ''\n", BT_TYPE, "2:11: expected name, got ''"},
    {"classes: {rack: {setup: 2}}\n", BT_TYPE,
     "1:25: expected a duration with a unit (such as 30s), got '2'"},
    {"classes: {rak: {setup: 2s}}\n", BT_INVALID,
     "1:11: unknown key 'rak' (did you mean 'rack'?)"},
    {"topology_schema: 2\n", BT_INVALID,
     "1:18: topology_schema is out of range: '2' (allowed: 1)"},
    {"", BT_INVALID, "1:1: the file is empty"},
    {"pods: [\n", BT_INVALID, "2:1: not YAML"},
};

static void faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(SAMPLES) / sizeof(SAMPLES[0]); i++) {
        struct bt_topology_file *file = NULL;
        char path[128], error[512], want[512];

        write_file("t.yaml", SAMPLES[i].yaml, path);
        assert_int_equal(
            bt_topology_file_load(path, NULL, 0, &file, error, sizeof(error)),
            SAMPLES[i].status);
        (void)snprintf(want, sizeof(want), "%s:%s", path, SAMPLES[i].fault);
        if (strncmp(error, want, strlen(want)) != 0)
            fail_msg("got  %s\nnot  %s", error, want);
        assert_null(file);
    }
}

static void missing_file(void **state)
{
    struct bt_topology_file *file = NULL;
    char error[512];

    (void)state;
    assert_int_equal(bt_topology_file_load("/nowhere/t.yaml", NULL, 0, &file,
                                           error, sizeof(error)),
                     BT_NOT_FOUND);
    assert_non_null(strstr(error, "/nowhere/t.yaml"));
}

#define FLEET                                                                  \
    "models:\n  - {name: demo}\nworkers:\n"                                    \
    "  - {name: a, url: 'http://127.0.0.1:1'}\n"                               \
    "  - {name: b, url: 'http://127.0.0.1:2'}\n"

/* Relative to the folder of the configuration. */
static void named_in_the_configuration(void **state)
{
    struct bt_config *config = NULL;
    char path[128], topology[128], error[512];

    (void)state;
    write_file("t.yaml",
               "nodes:\n  - name: n\nworkers:\n  - {name: b, node: n}\n",
               topology);
    write_file("c.yaml", FLEET "topology: t.yaml\n", path);
    assert_int_equal(bt_config_load(path, &config, error, sizeof(error)),
                     BT_OK);
    assert_non_null(config->topology);
    assert_int_equal(bt_topology_file_spec(config->topology)->workers[0].node,
                     BT_LINK_NONE);
    assert_int_equal(bt_topology_file_spec(config->topology)->workers[1].node,
                     0);
    bt_config_destroy(config);
    write_file("t.yaml", "workers:\n  - name: bb\n", topology);
    assert_int_equal(bt_config_load(path, &config, error, sizeof(error)),
                     BT_INVALID);
    assert_non_null(strstr(error, "/t.yaml:2:11: unknown worker 'bb'"));
    write_file("c.yaml", FLEET "topology: /none/t.yaml\n", path);
    assert_int_equal(bt_config_load(path, &config, error, sizeof(error)),
                     BT_NOT_FOUND);
    assert_non_null(strstr(error, "/none/t.yaml: "));
    write_file("c.yaml", FLEET, path);
    assert_int_equal(bt_config_load(path, &config, error, sizeof(error)),
                     BT_OK);
    assert_null(config->topology);
    bt_config_destroy(config);
}

static void the_example_is_good(void **state)
{
    struct bt_topology_file *file = NULL;
    char error[512];

    (void)state;
    assert_int_equal(
        bt_topology_file_load(BATON_SOURCE_DIR "/deploy/config/topology.yaml",
                              NULL, 0, &file, error, sizeof(error)),
        BT_OK);
    bt_topology_file_destroy(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_own_workers),
        cmocka_unit_test(workers_by_name),
        cmocka_unit_test(faults),
        cmocka_unit_test(missing_file),
        cmocka_unit_test(named_in_the_configuration),
        cmocka_unit_test(the_example_is_good),
    };

    return cmocka_run_group_tests_name("topology_file", tests, make_folder,
                                       drop_folder);
}
