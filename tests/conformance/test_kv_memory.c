/* A region that cannot be registered, a rail that cannot be opened: the caller
 * learns which rail and which figures, and nothing is left behind
 * (field-failures E07, E08). The trace decorator below the fault one counts
 * what the transports really did. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "fabric.h"
#include "transport_open.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 8u
#define BLOCK  4096u
#define CYCLES 1000

static int maps, unmaps;

static void on_line(void *arg, const char *line)
{
    (void)arg;
    maps += strncmp(line, "map ", 4) == 0 && strstr(line, "=ok") != NULL;
    unmaps += strncmp(line, "unmap", 5) == 0;
}

/* Rail *arg has no registration left. */
static struct bt_transport *full(void *arg, struct ev_loop *loop, uint32_t rail,
                                 struct bt_transport *inner)
{
    static const struct bt_tfault fault = {.seed = 1, .map_fails = 10000};
    struct bt_transport *traced = bt_transport_trace(inner, on_line, NULL);
    const uint32_t *only = arg;

    assert_non_null(traced);
    return rail == *only ? bt_transport_fault(loop, traced, &fault) : traced;
}

struct bed {
    struct ev_loop *loop;
    struct bt_fabric *fabric;
    unsigned char *region;
};

static void bed_open(struct bed *bed, uint32_t full_rail)
{
    const struct bt_rail_config rails[2] = {{.name = "left"},
                                            {.name = "right"}};
    const struct bt_fabric_config config = {
        .kind = "sim", .rails = rails, .rail_count = 2};
    char error[160] = "";

    maps = unmaps = 0;
    bed->loop = ev_loop_new(EVFLAG_AUTO);
    bed->region = calloc(BLOCKS, BLOCK);
    assert_non_null(bed->region);
    bt_fabric_wrap(full, &full_rail);
    assert_int_equal(bt_fabric_create(bed->loop, &config, &bed->fabric, error,
                                      sizeof(error)),
                     BT_OK);
    bt_fabric_wrap(NULL, NULL);
}

static void bed_close(struct bed *bed)
{
    bt_fabric_destroy(bed->fabric);
    assert_int_equal(maps, unmaps);
    free(bed->region);
    ev_loop_destroy(bed->loop);
}

static enum bt_status hold(void *arg, const struct bt_kv_ask *ask)
{
    (void)arg;
    (void)ask;
    return BT_OK;
}

static enum bt_status start(struct bed *bed, char *error, size_t size)
{
    const struct bt_kv_source_config config = {
        .name = "p0",
        .address = "127.0.0.1",
        .layout = {1, 16, BLOCK, 7},
        .region = bed->region,
        .block_count = BLOCKS,
        .check = hold,
    };
    struct bt_kv_source *source = NULL;
    enum bt_status status =
        bt_kv_source_start(bed->fabric, &config, &source, error, size);

    assert_true(status != BT_OK || source != NULL);
    return status;
}

static enum bt_status create(struct bed *bed)
{
    const struct bt_kv_sink_config config = {
        .name = "d0",
        .layout = {1, 16, BLOCK, 7},
        .region = bed->region,
        .block_count = BLOCKS,
    };
    struct bt_kv_sink *sink = NULL;

    return bt_kv_sink_create(bed->fabric, &config, &sink);
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, part);
}

static void test_registration_refused(void **state)
{
    char error[160] = "";
    struct bed bed;

    (void)state;
    bed_open(&bed, 1);
    assert_string_equal(bt_fabric_map_error(bed.fabric), "");
    assert_int_equal(start(&bed, error, sizeof(error)), BT_LIMIT);
    has(error, "right");
    has(error, "32768 bytes");
    assert_int_equal(maps, 1); /* the left one, given back */
    assert_int_equal(unmaps, 1);
    assert_int_equal(create(&bed), BT_LIMIT);
    has(bt_fabric_map_error(bed.fabric), "right: 32768 bytes");
    assert_int_equal(maps, 2);
    bed_close(&bed);
}

/* Again and again: as many given back as were had, and after it the fabric
 * still works on the rails that do. */
static void test_refused_often(void **state)
{
    char error[160] = "";
    struct bed bed;

    (void)state;
    bed_open(&bed, 1);
    for (int i = 0; i < CYCLES; i++) {
        assert_int_equal(start(&bed, error, sizeof(error)), BT_LIMIT);
        assert_int_equal(create(&bed), BT_LIMIT);
    }
    assert_int_equal(maps, 2 * CYCLES);
    assert_int_equal(unmaps, 2 * CYCLES);
    bed_close(&bed);
    bed_open(&bed, 2); /* there is none of that number */
    assert_int_equal(start(&bed, error, sizeof(error)), BT_OK);
    assert_int_equal(create(&bed), BT_OK);
    assert_int_equal(maps, 4);
    bed_close(&bed);
}

/* The second of two rails names a device that is not here. */
static void test_device_missing(void **state)
{
    const struct bt_rail_config rails[2] = {
        {.name = "left", .device = "lo"},
        {.name = "right", .device = "nosuch0"}};
    const struct bt_fabric_config config = {.rails = rails, .rail_count = 2};
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_fabric *fabric = NULL;
    char error[160] = "";

    (void)state;
    assert_int_equal(
        bt_fabric_create(loop, &config, &fabric, error, sizeof(error)),
        BT_UNSUPPORTED);
    has(error, "right: ");
    has(error, "nosuch0");
    assert_null(fabric);
    ev_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registration_refused),
        cmocka_unit_test(test_refused_often),
        cmocka_unit_test(test_device_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
