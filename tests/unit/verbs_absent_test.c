/* The verbs transport on a machine without RDMA devices: a status and a text,
 * nothing left open. Where there are devices, only what cannot exist is asked
 * for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "transport_open.h"

#include <cmocka.h>
#include <dirent.h>
#include <ev.h>
#include <string.h>

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *d;
    int count = 0;

    if (dir == NULL)
        return 0;
    while ((d = readdir(dir)) != NULL)
        count += d->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* What the kernel itself says. */
static bool has_devices(void)
{
    return entries("/sys/class/infiniband_verbs") > 1; /* abi_version */
}

static enum bt_status open_rail(const struct bt_rail_config *rail, char *error)
{
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_transport *const untouched = (struct bt_transport *)&loop;
    struct bt_transport *transport = untouched;
    enum bt_status status;

    assert_non_null(loop);
    memset(error, 0, 160);
    status = bt_transport_verbs_open(loop, rail, &transport, error, 160);
    if (status == BT_OK)
        transport->ops->destroy(transport);
    else
        assert_ptr_equal(transport, untouched);
    assert_int_equal(ev_pending_count(loop), 0);
    ev_loop_destroy(loop);
    return status;
}

static void test_absent(void **state)
{
    const struct bt_rail_config rails[] = {
        {0},
        {.device = "mlx5_0"},
        {.address = "127.0.0.1"},
    };
    char error[160];
    int fds;

    (void)state;
    if (has_devices())
        skip();
    assert_int_equal(open_rail(NULL, error), BT_UNSUPPORTED);
    fds = entries("/proc/self/fd");
    for (size_t i = 0; i < sizeof(rails) / sizeof(rails[0]); i++) {
        assert_int_equal(open_rail(&rails[i], error), BT_UNSUPPORTED);
        assert_string_equal(error, "verbs: no RDMA device on this machine");
    }
    assert_int_equal(entries("/proc/self/fd"), fds);
}

static void test_no_such_device(void **state)
{
    const struct bt_rail_config rail = {.device = "no_such_hca:1"};
    char error[160];

    (void)state;
    assert_int_equal(open_rail(&rail, error), BT_UNSUPPORTED);
    assert_true(strstr(error, "verbs: no ") == error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_no_such_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
