/* Cluster files: a file with every key against values worked by hand, faults
 * with their place, and the files of bench/clusters/sim, whose rates and
 * capacities come from the figures their comments cite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/sim.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/baton-cluster-XXXXXX";
static struct bt_sim_cluster cluster;

static int make_path(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int drop_path(void **state)
{
    (void)state;
    return unlink(path);
}

static enum bt_status load_text(const char *text, char error[512])
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    error[0] = '\0';
    return bt_sim_cluster_load(path, &cluster, error, 512);
}

static void load_good(const char *file)
{
    char error[512];

    if (bt_sim_cluster_load(file, &cluster, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
}

static const char FULL[] =
    "sim_schema: 1\n"
    "name: all keys\n"
    "model: {kv_bytes_per_token: 1000}\n"
    "engine: {overlap: layer, pieces: 80, allocate_first: true,\n"
    "  decode_delta: false, late_decode: false, descriptor_tokens: 64,\n"
    "  descriptors_per_block: 2, replication: 4}\n"
    "transfer: {setup: 1.8ms, per_descriptor: 2us}\n"
    "pools:\n"
    "  - name: p\n"
    "    role: prefill\n"
    "    count: 4\n"
    "    compute: h100-70b-tp8\n"
    "    decode_ms: [1, 2, 3e-5]\n"
    "    speedup: 2\n"
    "    kv_memory: 1MB\n"
    "    host: {capacity: 2MB, rate: 50GB/s, setup: 1ms}\n"
    "    disk: {capacity: 4MB, rate: 24GB/s, setup: 200us, servers: 3,\n"
    "           saturation: 9, first_share: 0.5}\n"
    "    decode_slots: 7\n"
    "    prefill_chunk: 2048\n"
    "    fetch: true\n"
    "  - {name: d, role: decode, count: 2, prefill_ms: [4, 5, 6],\n"
    "     decode_ms: [7, 8, 9], kv_tokens: 123, local_chunk: 512}\n"
    "  - {name: b, role: both, count: 2, compute: a100-70b-tp8, kv_tokens: 5}\n"
    "fabrics:\n"
    "  - {name: plain, nic: 400Gbps}\n"
    "  - {name: rich, nic: 50GB/s, slow_nic: 10GB/s, racks: 2,\n"
    "     oversubscription: 4, setup: 1ms, per_descriptor: 3us,\n"
    "     background: 0.6, background_period: 2s, prefill_count: 8,\n"
    "     decode_count: 6, degraded: {worker: 15, factor: 0.25}}\n"
    "  - {name: up, nic: 1GB/s, racks: 8, rack_up: 3GB/s}\n";

static void test_pools(void **state)
{
    char error[512];
    const struct bt_sim_pool *p = cluster.pools;

    (void)state;
    if (load_text(FULL, error) != BT_OK)
        fail_msg("%s", error);
    assert_string_equal(cluster.name, "all keys");
    assert_int_equal(cluster.kv_bytes_per_token, 1000);
    assert_int_equal(cluster.descriptor_tokens, 64);
    assert_int_equal(cluster.mode.overlap, BT_OVERLAP_LAYER);
    assert_int_equal(cluster.mode.pieces, 80);
    assert_true(cluster.mode.allocate_first && cluster.mode.whole_prompt);
    assert_false(cluster.mode.late_decode);
    assert_int_equal(cluster.mode.descriptors_per_block, 2);
    assert_int_equal(cluster.mode.replication, 4);
    assert_int_equal(cluster.pool_count, 3);
    assert_int_equal(p[0].roles, BT_ROLE_PREFILL);
    assert_int_equal(p[1].roles, BT_ROLE_DECODE);
    assert_int_equal(p[2].roles, BT_ROLE_BOTH);
    assert_true(p[0].compute.prefill_b_ms == 0.03520); /* of the preset */
    assert_true(p[0].compute.decode_b_ms == 2);        /* put over it */
    assert_true(p[0].compute.speedup == 2);
    assert_true(p[1].compute.prefill_c_ms == 6 && p[1].compute.speedup == 1);
    assert_int_equal(p[0].kv_tokens, 1000);
    assert_int_equal(p[0].host_tokens, 2000);
    assert_int_equal(p[0].host.rate_bytes_per_s, 50000000000);
    assert_int_equal(p[0].host.setup_ns, 1000000);
    assert_int_equal(p[0].disk_tokens, 4000);
    assert_int_equal(p[0].disk.setup_ns, 200000);
    assert_int_equal(p[0].disk_servers, 3);
    assert_int_equal(p[0].disk_saturation, 9);
    assert_true(p[0].disk_first_share == 0.5);
    assert_int_equal(p[0].decode_slots, 7);
    assert_int_equal(p[0].prefill_chunk, 2048);
    assert_true(p[0].fetch && !p[1].fetch);
    assert_int_equal(p[1].local_chunk, 512);
    assert_int_equal(p[1].kv_tokens, 123);
    assert_int_equal(p[1].host_tokens, 0);
    assert_int_equal(p[1].disk_servers, 0);
}

static void test_fabrics(void **state)
{
    char error[512];
    const struct bt_sim_fabric *f = cluster.fabrics;
    uint32_t at = 99;

    (void)state;
    assert_int_equal(load_text(FULL, error), BT_OK);
    assert_int_equal(cluster.fabric_count, 3);
    assert_int_equal(f[0].nic_bytes_per_s, 50000000000);
    assert_int_equal(f[0].setup_ns, 1800000); /* of transfer */
    assert_int_equal(f[0].per_descriptor_ns, 2000);
    assert_int_equal(f[0].rack_up_bytes_per_s, 0);
    assert_int_equal(f[1].setup_ns, 1000000);
    assert_int_equal(f[1].per_descriptor_ns, 3000);
    /* 8 + 6 + 2 workers in 2 racks, mean NIC 30 GB/s, 4:1 */
    assert_int_equal(f[1].rack_up_bytes_per_s, 60000000000);
    assert_int_equal(f[1].slow_nic_bytes_per_s, 10000000000);
    assert_true(f[1].background == 0.6);
    assert_int_equal(f[1].background_period_ns, 2000000000);
    assert_int_equal(f[1].degraded_worker, 15);
    assert_true(f[1].degraded_factor == 0.25);
    assert_int_equal(f[1].prefill_count, 8);
    assert_int_equal(f[1].decode_count, 6);
    assert_int_equal(f[2].rack_up_bytes_per_s, 3000000000);
    assert_int_equal(bt_sim_fabric_nic(&f[1], 0, 1), 10000000000);
    assert_int_equal(bt_sim_fabric_nic(&f[1], 1, 2), f[1].nic_bytes_per_s);
    assert_int_equal(bt_sim_fabric_find(&cluster, "up", &at), BT_OK);
    assert_int_equal(at, 2);
    assert_int_equal(bt_sim_fabric_find(&cluster, "down", &at), BT_NOT_FOUND);
    assert_int_equal(at, 2);
}

/* Of the cluster of the shaped bed: the last decode host alone is slow. */
static void test_slow_pool(void **state)
{
    char error[512];
    const struct bt_sim_fabric *f = cluster.fabrics;

    (void)state;
    assert_int_equal(bt_sim_cluster_load(BATON_SOURCE_DIR
                                         "/bench/clusters/netbed.yaml",
                                         &cluster, error, sizeof(error)),
                     BT_OK);
    assert_string_equal(cluster.pools[0].preset, "h100-70b-tp8");
    assert_int_equal(bt_sim_fabric_nic(&f[0], 0, 1), 50000000);
    assert_int_equal(bt_sim_fabric_nic(&f[0], 1, 1), 50000000);
    assert_int_equal(bt_sim_fabric_nic(&f[0], 2, 0), 10000000);
    assert_int_equal(bt_sim_fabric_nic(&f[1], 2, 0), 50000000);
}

/* FULL with one text put in place of another. */
static enum bt_status load_changed(const char *from, const char *to,
                                   char error[512])
{
    char text[4096];
    const char *at = strstr(FULL, from);

    if (!at)
        fail_msg("'%s' is not in the file", from);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - FULL), FULL, to,
             at + strlen(from));
    return load_text(text, error);
}

static const struct fault {
    const char *from, *to;
    enum bt_status status;
    const char *place, *words;
} faults[] = {
    {"name: all", "nmae: all", BT_INVALID,
     ":2:1: ", "unknown key 'nmae' (did you mean 'name'?)"},
    {"name: all keys\n", "", BT_INVALID, ":1:1: ", "key 'name' is missing"},
    {"sim_schema: 1", "sim_schema: 2", BT_INVALID, ":1:13: ", "out of range"},
    {"model:", "name: x\nmodel:", BT_DUPLICATE,
     ":3:1: ", "repeated key 'name'"},
    {"{kv_bytes_per_token: 1000}", "{kv: llama-3.1-70}", BT_NOT_FOUND,
     ":3:13: ", "did you mean 'llama-3.1-70b'?"},
    {"{kv_bytes_per_token: 1000}", "{}", BT_INVALID,
     ":3:8: ", "either kv or kv_bytes_per_token"},
    {"{kv_bytes_per_token: 1000}", "7", BT_TYPE,
     ":3:8: ", "model: expected a mapping"},
    {"overlap: layer", "overlap: layers", BT_TYPE,
     ":4:19: ", "one of none, chunk, layer, got 'layers'"},
    {"pieces: 80, ", "", BT_INVALID, ":4:19: ", "overlap needs pieces"},
    {"overlap: layer", "overlap: none", BT_INVALID,
     ":4:33: ", "pieces need overlap"},
    {"allocate_first: true", "allocate_first: yes", BT_TYPE,
     ":4:54: ", "true or false"},
    {"setup: 1.8ms", "setup: 1.8", BT_TYPE,
     ":7:19: ", "a duration with a unit"},
    {"compute: h100-70b-tp8", "compute: h100-70b-tp8-fp9", BT_NOT_FOUND,
     ":12:14: ", "did you mean 'h100-70b-tp8-fp8'?"},
    {"compute: h100-70b-tp8", "fetch: false", BT_DUPLICATE,
     ":21:5: ", "repeated key 'fetch'"},
    {"prefill_ms: [4, 5, 6],", "", BT_INVALID, ":22:5: ", "needs compute"},
    {"[1, 2, 3e-5]", "[1, 2]", BT_TYPE, ":13:16: ", "three numbers"},
    {"[1, 2, 3e-5]", "[1, x, 3]", BT_TYPE, ":13:20: ", "expected a number"},
    {"[1, 2, 3e-5]", "[1, -2, 3]", BT_INVALID, ":13:20: ", "out of range"},
    {"role: prefill", "role: prefil", BT_TYPE,
     ":10:11: ", "one of prefill, decode, both"},
    {"count: 4", "count: 0", BT_INVALID, ":11:12: ", "out of range"},
    {"count: 4", "count: 1.5", BT_TYPE, ":11:12: ", "a whole number"},
    {"kv_memory: 1MB", "kv_memory: 1MB/s", BT_TYPE, ":15:16: ", "a size"},
    {"kv_memory: 1MB", "kv_memory: 999B", BT_INVALID, ":15:16: ", "one token"},
    {"kv_memory: 1MB", "kv_memory: 1MB\n    kv_tokens: 3", BT_INVALID,
     ":9:5: ", "either kv_tokens or kv_memory"},
    {"prefill_chunk: 2048", "local_chunk: 512", BT_INVALID,
     ":20:18: ", "of workers that decode"},
    {"local_chunk: 512", "prefill_chunk: 512", BT_INVALID,
     ":23:59: ", "only prefill"},
    {"name: d,", "name: p,", BT_DUPLICATE, ":22:12: ", "a pool 'p' already"},
    {"rate: 50GB/s, setup: 1ms", "setup: 1ms", BT_INVALID,
     ":16:11: ", "key 'rate' is missing"},
    {"nic: 400Gbps", "nic: 50", BT_TYPE, ":26:24: ", "a rate with a unit"},
    {"slow_nic: 10GB/s", "slow_nic: 60GB/s", BT_INVALID,
     ":27:41: ", "faster than nic"},
    {"slow_nic: 10GB/s", "slow_pool: d", BT_INVALID,
     ":27:42: ", "slow_pool needs slow_nic"},
    {"slow_nic: 10GB/s", "slow_nic: 10GB/s, slow_pool: none", BT_NOT_FOUND,
     ":27:60: ", "no pool 'none'"},
    {"racks: 2,", "", BT_INVALID, ":27:5: ", "uplinks need racks"},
    {"racks: 8", "racks: 9", BT_INVALID, ":31:35: ", "more racks than workers"},
    {"rack_up: 3GB/s", "rack_up: 3GB/s, oversubscription: 2", BT_INVALID,
     ":31:72: ", "either rack_up or oversubscription"},
    {"nic: 400Gbps", "nic: 400Gbps, background: 0.5", BT_INVALID,
     ":26:45: ", "needs limited uplinks"},
    {"background: 0.6, ", "", BT_INVALID, ":29:25: ", "needs background"},
    {"worker: 15", "worker: 16", BT_INVALID,
     ":30:42: ", "worker 16 does not exist, there are 16"},
    {"factor: 0.25", "factor: 0", BT_INVALID, ":30:54: ", "out of range"},
    {"role: both", "role: prefill", BT_INVALID,
     ":29:61: ", "needs exactly one prefill pool"},
    {"name: up", "name: rich", BT_DUPLICATE, ":31:12: ", "already"},
    {"prefill_count: 8", "prefill_count: 4095", BT_LIMIT,
     ":27:5: ", "4103 workers, at most 4096"},
    {"fabrics:\n", "fabrics: []\nx:\n", BT_INVALID,
     ":26:1: ", "unknown key 'x'"},
    {"name: all keys", "name: [", BT_INVALID, ":", "not YAML"},
    {"  - {name: up", "--- {name: up", BT_INVALID,
     ":31:5: ", "a second document"},
};

static void test_faults(void **state)
{
    char error[512];

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        const struct fault *f = &faults[i];
        enum bt_status status;

        memset(&cluster, 0, sizeof(cluster));
        status = load_changed(f->from, f->to, error);
        if (status != f->status || strncmp(error, path, strlen(path)) != 0 ||
            !strstr(error, f->place) || !strstr(error, f->words))
            fail_msg("'%s' for '%s' gave %s, '%s'", f->to, f->from,
                     bt_status_name(status), error);
        assert_int_equal(cluster.pool_count, 0); /* untouched */
    }
}

static void test_files(void **state)
{
    static char big[300000];
    char error[512];

    (void)state;
    assert_int_equal(
        bt_sim_cluster_load("/nonexistent/x", &cluster, error, sizeof(error)),
        BT_NOT_FOUND);
    assert_non_null(strstr(error, "/nonexistent/x: No such file"));
    assert_int_equal(load_text("", error), BT_INVALID);
    assert_non_null(strstr(error, ":1:1: the file is empty"));
    assert_int_equal(load_text("- 1", error), BT_TYPE);
    memset(big, '#', sizeof(big) - 1);
    assert_int_equal(load_text(big, error), BT_TOO_LARGE);
    memset(big, '[', 100000);
    big[100000] = '\0';
    assert_int_equal(load_text(big, error), BT_TOO_LARGE);
    assert_non_null(strstr(error, ":1:4097: more than 4096 brackets"));
    assert_int_equal(
        load_text("sim_schema: 1\nname: x\nmodel: &a {kv: *a}\npools: [*a]\n"
                  "fabrics: []\n",
                  error),
        BT_TYPE); /* it ends */
    assert_int_equal(
        load_changed("pools:\n", "pools: []\nfabrics: []\n#", error),
        BT_INVALID);
    assert_int_equal(
        load_text("sim_schema: 1\nname: x\nmodel: {kv_bytes_per_token: 1}\n"
                  "pools: []\nfabrics: []\n",
                  error),
        BT_LIMIT);
    assert_non_null(strstr(error, ":4:8: pools: 1 to 8, not 0"));
    assert_int_equal(
        load_text("sim_schema: 1\nname: x\nmodel: {kv_bytes_per_token: 1}\n"
                  "pools: [{name: p, role: prefill, count: 1, kv_tokens: 1,\n"
                  "  compute: h100-8b-tp1}]\nfabrics: [{name: f, nic: 1B/s}]\n",
                  error),
        BT_INVALID);
    assert_non_null(strstr(error, ":4:8: no pool decodes"));
}

/* ---- the files that ship ---- */

static const struct bt_sim_fabric *fabric(const char *name)
{
    uint32_t at = 0;

    if (bt_sim_fabric_find(&cluster, name, &at) != BT_OK)
        fail_msg("%s: no fabric '%s'", cluster.name, name);
    return &cluster.fabrics[at];
}

#define DIRECTORY BATON_SOURCE_DIR "/bench/clusters/sim/"

static void test_every_file_loads(void **state)
{
    static const char *const fabrics[] = {
        "flat-400gx8", "flat-50",         "flat-100gbe",
        "racks-4to1",  "racks-4to1-100g", "hetero",
        "degraded",    "incast",          "background"};
    DIR *directory = opendir(DIRECTORY);
    struct dirent *entry;
    int files = 0;

    (void)state;
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL) {
        char file[512], name[300];

        if (!strstr(entry->d_name, ".yaml"))
            continue;
        snprintf(file, sizeof(file), DIRECTORY "%s", entry->d_name);
        load_good(file);
        files++;
        snprintf(name, sizeof(name), "%s.yaml", cluster.name);
        assert_string_equal(name, entry->d_name);
        for (size_t i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++)
            assert_int_equal(fabric(fabrics[i])->setup_ns, 1800000);
        assert_int_equal(cluster.mode.overlap, BT_OVERLAP_NONE);
        assert_true(cluster.mode.late_decode && !cluster.mode.whole_prompt);
        assert_int_equal(cluster.pools[1].local_chunk, 512);
        assert_true(cluster.pools[0].fetch);
    }
    closedir(directory);
    assert_true(files >= 7);
}

static void test_h100_70b_8p8d(void **state)
{
    (void)state;
    load_good(DIRECTORY "h100-70b-8p8d.yaml");
    assert_int_equal(cluster.kv_bytes_per_token, 327680);
    assert_int_equal(cluster.pools[0].count, 8);
    assert_int_equal(cluster.pools[1].count, 8);
    /* (8 x 80 x 0.9 - 140) GB = 436 GB, about 1.33 M tokens */
    assert_int_equal(cluster.pools[0].kv_tokens, 436000000000 / 327680);
    assert_int_equal(cluster.pools[1].kv_tokens, cluster.pools[0].kv_tokens);
    assert_true(cluster.pools[0].compute.prefill_b_ms == 0.03520);
    assert_int_equal(fabric("flat-400gx8")->nic_bytes_per_s, 400000000000);
    assert_int_equal(fabric("flat-50")->nic_bytes_per_s, 50000000000);
    assert_int_equal(fabric("flat-100gbe")->nic_bytes_per_s, 12500000000);
    /* 4 workers of 50 GB/s in each of 4 racks, 4:1 */
    assert_int_equal(fabric("racks-4to1")->racks, 4);
    assert_int_equal(fabric("racks-4to1")->rack_up_bytes_per_s, 50000000000);
    assert_int_equal(fabric("racks-4to1-100g")->rack_up_bytes_per_s,
                     12500000000);
    assert_int_equal(fabric("hetero")->slow_nic_bytes_per_s, 6250000000);
    assert_true(fabric("degraded")->degraded_factor == 0.25);
    assert_int_equal(fabric("incast")->prefill_count, 12);
    assert_int_equal(fabric("incast")->decode_count, 4);
    assert_int_equal(fabric("incast")->nic_bytes_per_s, 12500000000);
    assert_true(fabric("background")->background == 0.6);
}

static void test_other_fleets(void **state)
{
    (void)state;
    load_good(DIRECTORY "h100-70b-32p32d.yaml");
    assert_int_equal(cluster.pools[0].count + cluster.pools[1].count, 64);
    /* 16 workers to a rack */
    assert_int_equal(fabric("racks-4to1")->rack_up_bytes_per_s, 200000000000);
    load_good(DIRECTORY "a100-70b-8p8d.yaml");
    assert_true(cluster.pools[0].compute.prefill_a_ms == 20.80);
    load_good(DIRECTORY "h200-deepseek-v3-8p8d.yaml");
    assert_int_equal(cluster.kv_bytes_per_token, 70272);
    load_good(DIRECTORY "h100-qwen3-32b-8p8d.yaml");
    assert_int_equal(cluster.kv_bytes_per_token, 262144);
    load_good(DIRECTORY "h100-70b-8p8d-tiers.yaml");
    assert_int_equal(cluster.pools[1].host_tokens, 1000000000000 / 327680);
    assert_int_equal(cluster.pools[1].host.rate_bytes_per_s, 50000000000);
    assert_int_equal(cluster.pools[0].disk_servers, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_fabrics),
        cmocka_unit_test(test_slow_pool),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_every_file_loads),
        cmocka_unit_test(test_h100_70b_8p8d),
        cmocka_unit_test(test_other_fleets),
    };

    return cmocka_run_group_tests(tests, make_path, drop_path);
}
