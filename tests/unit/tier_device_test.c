/* Device memory against the fake driver: every way to fail to open, copies both
 * ways, errors of each call, nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "device.h"
#include "fake_cuda.h"
#include <cmocka.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const struct fake_cuda_control *fake;

static int set_up(void **state)
{
    (void)state;
    fake->reset();
    return 0;
}

static int tear_down(void **state)
{
    const char *last;

    (void)state;
    if (fake->faults(&last) != 0)
        print_error("driver: %s\n", last);
    assert_int_equal(fake->faults(&last), 0);
    assert_int_equal(fake->live(), 0);
    return 0;
}

static struct bt_device *open_one(int ordinal)
{
    struct bt_device *device = NULL;
    char error[128] = "";

    assert_int_equal(
        bt_device_open(FAKE_CUDA, ordinal, &device, error, sizeof(error)),
        BT_OK);
    return device;
}

static enum bt_status finish(struct bt_device *device, uint32_t ticket)
{
    enum bt_status status = BT_AGAIN;

    for (int i = 0; i < 1000 && status == BT_AGAIN; i++)
        status = bt_device_poll(device, ticket);
    return status;
}

static void test_identity(void **state)
{
    struct bt_device *a = open_one(0), *b = open_one(1);

    (void)state;
    assert_string_equal(bt_device_pci(a), "0000:1b:00.0");
    assert_string_equal(bt_device_pci(b), "0000:1c:00.0");
    assert_true(bt_device_peer(a));
    bt_device_close(a);
    bt_device_close(b);
    fake->set(1, 0, 2);
    a = open_one(0);
    assert_false(bt_device_peer(a));
    bt_device_close(a);
}

static void refused(const char *library, int ordinal, const char *text)
{
    struct bt_device *device = NULL;
    char error[256] = "";

    assert_int_equal(
        bt_device_open(library, ordinal, &device, error, sizeof(error)),
        BT_UNSUPPORTED);
    assert_null(device);
    if (!strstr(error, text))
        fail_msg("no '%s' in '%s'", text, error);
}

static void test_no_device(void **state)
{
    static const char *const calls[] = {"cuInit",
                                        "cuDeviceGetCount",
                                        "cuDeviceGet",
                                        "cuDeviceGetPCIBusId",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuCtxPushCurrent_v2",
                                        "cuStreamCreate"};

    (void)state;
    refused("/nonexistent/libcuda.so.1", 0, "no device driver");
    refused("libc.so.6", 0, "has no cu");
    refused(FAKE_CUDA, 2, "the driver has 2");
    refused(FAKE_CUDA, -1, "the driver has 2");
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        fake->break_call(calls[i], 1, 999);
        refused(FAKE_CUDA, 0, "(999)");
    }
}

static void test_copies(void **state)
{
    struct bt_device *d = open_one(0);
    unsigned char from[256], to[256] = {0};
    struct bt_device_copy copy = {BT_COPY_TO_DEVICE, NULL, from, 256, NULL};
    uint32_t first, second;
    void *memory;

    (void)state;
    for (int i = 0; i < 256; i++)
        from[i] = (unsigned char)(i * 7);
    assert_int_equal(bt_device_alloc(d, 512, &memory), BT_OK);
    copy.to = (char *)memory + 100;
    assert_int_equal(bt_device_copy(d, &copy, &first), BT_OK);
    assert_int_equal(bt_device_poll(d, first), BT_AGAIN);
    copy = (struct bt_device_copy){BT_COPY_WITHIN, memory, (char *)memory + 200,
                                   100, NULL};
    assert_int_equal(bt_device_copy(d, &copy, &second), BT_OK);
    assert_int_not_equal(first, second);
    assert_int_equal(finish(d, first), BT_OK);
    assert_int_equal(finish(d, second), BT_OK);
    copy = (struct bt_device_copy){BT_COPY_FROM_DEVICE, to, memory, 256, NULL};
    assert_int_equal(bt_device_copy(d, &copy, &first), BT_OK);
    assert_int_equal(to[0], 0); /* not before it is asked for */
    assert_int_equal(finish(d, first), BT_OK);
    assert_memory_equal(to, from + 100, 100);
    assert_memory_equal(to + 100, from, 156);
    bt_device_free(d, memory);
    bt_device_close(d);
}

/* A copy that is out at close has ended when close returns; the driver faults
 * a stream that is destroyed under copies. */
static void test_close_amid(void **state)
{
    struct bt_device *d = open_one(1), *keep = open_one(1);
    unsigned char from[64], to[64] = {0};
    struct bt_device_copy copy = {BT_COPY_TO_DEVICE, NULL, from, 64, NULL};
    uint32_t ticket;
    void *memory;

    (void)state;
    memset(from, 9, sizeof(from));
    assert_int_equal(bt_device_alloc(keep, 64, &memory), BT_OK);
    copy.to = memory;
    assert_int_equal(bt_device_copy(d, &copy, &ticket), BT_OK);
    bt_device_close(d);
    copy = (struct bt_device_copy){BT_COPY_FROM_DEVICE, to, memory, 64, NULL};
    assert_int_equal(bt_device_copy(keep, &copy, &ticket), BT_OK);
    assert_int_equal(finish(keep, ticket), BT_OK);
    assert_memory_equal(to, from, 64);
    bt_device_free(keep, memory);
    bt_device_close(keep);
}

static void test_limits(void **state)
{
    struct bt_device *d = open_one(0);
    unsigned char host[8] = {0};
    struct bt_device_copy copy = {BT_COPY_TO_DEVICE, NULL, host, 8, NULL};
    uint32_t tickets[256], extra;
    void *memory;

    (void)state;
    assert_int_equal(bt_device_alloc(d, 8, &memory), BT_OK);
    copy.to = memory;
    for (int i = 0; i < 256; i++)
        assert_int_equal(bt_device_copy(d, &copy, &tickets[i]), BT_OK);
    assert_int_equal(bt_device_copy(d, &copy, &extra), BT_LIMIT);
    for (int i = 0; i < 256; i++)
        assert_int_equal(finish(d, tickets[i]), BT_OK);
    assert_int_equal(bt_device_copy(d, &copy, &extra), BT_OK);
    assert_int_equal(finish(d, extra), BT_OK);
    assert_int_equal(bt_device_pin(d, host, 8), BT_OK);
    assert_int_equal(bt_device_pin(d, host, 8), BT_EXISTS);
    bt_device_unpin(d, host);
    bt_device_free(d, memory);
    bt_device_close(d);
}

static void test_errors(void **state)
{
    static const char *const at_once[] = {
        "cuCtxPushCurrent_v2", "cuEventCreate", "cuMemcpyHtoDAsync_v2",
        "cuEventRecord"};
    struct bt_device *d = open_one(0);
    unsigned char host[8] = {0};
    struct bt_device_copy copy = {BT_COPY_TO_DEVICE, NULL, host, 8, NULL};
    uint32_t ticket = 0;
    void *memory = NULL;

    (void)state;
    fake->break_call("cuMemAlloc_v2", 1, 2);
    assert_int_equal(bt_device_alloc(d, 8, &memory), BT_NO_MEMORY);
    assert_null(memory);
    assert_non_null(strstr(bt_device_error(d), "OUT_OF_MEMORY"));
    assert_int_equal(bt_device_alloc(d, 8, &memory), BT_OK);
    copy.to = memory;
    for (size_t i = 0; i < 4; i++) {
        fake->break_call(at_once[i], 1, 719);
        assert_int_equal(bt_device_copy(d, &copy, &ticket), BT_IO);
    }
    assert_int_equal(bt_device_copy(d, &copy, &ticket), BT_OK);
    fake->break_call("cuEventQuery", 1, 719);
    assert_int_equal(bt_device_poll(d, ticket), BT_IO);
    bt_device_free(d, memory);
    bt_device_close(d);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_identity),   T(test_no_device), T(test_copies),
        T(test_close_amid), T(test_limits),    T(test_errors),
    };
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    fake_cuda_control_fn get;
    void *at = library ? dlsym(library, "fake_cuda_control") : NULL;

    if (!at)
        return 1;
    memcpy(&get, &at, sizeof(at));
    fake = get();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
