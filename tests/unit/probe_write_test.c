/* What `baton probe --write` writes is read back by the loader that serve and
 * topo use, with the rates and costs that went in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cmd_probe.h"

#include "baton/orchestrator/topology_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void name(struct probe *p, uint32_t i, const char *agent,
                 const char *worker, double out, double in)
{
    snprintf(p->agents[i].name, sizeof(p->agents[i].name), "%s", agent);
    snprintf(p->agents[i].worker, sizeof(p->agents[i].worker), "%s", worker);
    p->out_rate[i] = out;
    p->in_rate[i] = in;
}

static struct probe *three(void)
{
    struct probe *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    p->count = 3;
    p->pairs = calloc(9, sizeof(*p->pairs));
    assert_non_null(p->pairs);
    name(p, 0, "host-a", "p0", 47100000, 23700000);
    name(p, 1, "host b: #1", "d0", 0, 12.5e9); /* no such name in a file */
    name(p, 2, "silent", "d1", 0, 0);          /* nothing measured */
    for (int i = 0; i < 3; i++) {
        p->pairs[i + 1].measured = true;
        p->pairs[i + 1].fit.setup_ns = 1000.0 * (i + 1);
        p->pairs[i + 1].fit.descriptor_ns = 10.0 * (i + 1);
    }
    return p;
}

static void drop(struct probe *p)
{
    free(p->pairs);
    free(p);
}

static void test_comes_back(void **state)
{
    char folder[] = "/tmp/probe_write.XXXXXX", path[64], error[512] = "";
    struct bt_topology_file *file = NULL;
    struct probe *p = three();
    struct bt_path path_ab;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/topo.yaml", folder);
    assert_true(probe_write(p, path));
    if (bt_topology_file_load(path, NULL, 0, &file, error, sizeof(error)) !=
        BT_OK)
        fail_msg("%s", error);
    const struct bt_topology_spec *s = bt_topology_file_spec(file);
    assert_int_equal(s->worker_count, 2);
    assert_string_equal(s->workers[0].name, "p0");
    assert_string_equal(s->workers[1].name, "d0");
    assert_string_equal(s->nodes[s->workers[1].node].name, "host-b---1");
    assert_int_equal(s->workers[0].nic_out_bytes_per_s, 47100000);
    assert_int_equal(s->workers[0].nic_in_bytes_per_s, 23700000);
    assert_int_equal(s->workers[1].nic_out_bytes_per_s, 0);
    assert_int_equal(s->workers[1].nic_in_bytes_per_s, 12500000000);
    bt_topology_path(bt_topology_file_topology(file), 0, 1, &path_ab);
    assert_int_equal(path_ab.path_class, BT_PATH_RACK);
    assert_int_equal(path_ab.rate_bytes_per_s, 47100000);
    assert_int_equal(path_ab.setup_ns, 2000); /* medians */
    assert_int_equal(path_ab.per_descriptor_ns, 20);
    bt_topology_file_destroy(file);
    (void)unlink(path);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left there */
    drop(p);
}

static void test_cannot_write(void **state)
{
    struct probe *p = three();

    (void)state;
    assert_false(probe_write(p, "/nonexistent/topo.yaml"));
    drop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_cannot_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
