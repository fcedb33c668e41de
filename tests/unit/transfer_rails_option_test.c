/* transfer_rail_add: words of --rail and --transfer-rail. The right values are
 * written out by hand from baton(1), RAILS; columns are counted by finding the
 * faulty part in the word. */
#include "transfer_options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct transfer_rails rails;
static char error[160];

static void same(const char *have, const char *want)
{
    if (want == NULL)
        assert_null(have);
    else
        assert_string_equal(have, want);
}

static void takes(void **state)
{
    const struct {
        const char *text;
        struct bt_rail_config want;
    } cases[] = {
        {"r0=10.0.0.1", {.name = "r0", .address = "10.0.0.1"}},
        {"a.b_c-1=@eth1", {.name = "a.b_c-1", .device = "eth1"}},
        {"r1=10.0.0.1@mlx5_0:1,gid=3",
         {.name = "r1",
          .address = "10.0.0.1",
          .device = "mlx5_0:1",
          .gid = "3"}},
        {"r2=fd00::1@mlx5_1,gid=255,partition=0x8123,mtu=4096,class=255",
         {.name = "r2",
          .address = "fd00::1",
          .device = "mlx5_1",
          .gid = "255",
          .partition = 0x8123,
          .mtu = 4096,
          .traffic_class = 255}},
        {"r3=@m,gid=0,partition=0X7fFf,mtu=256,class=0,rate=200Gbps,"
         "transports=rc_verbs+self",
         {.name = "r3",
          .device = "m",
          .gid = "0",
          .partition = 0x7FFF,
          .mtu = 256,
          .rate_bytes_per_s = 25000000000u,
          .transports = "rc_verbs,self"}},
        {"r4=10.0.0.4,class=104,partition=65535,mtu=1024",
         {.name = "r4",
          .address = "10.0.0.4",
          .partition = 0xFFFF,
          .mtu = 1024,
          .traffic_class = 104}},
    };

    (void)state;
    memset(&rails, 0, sizeof(rails));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct bt_rail_config *want = &cases[i].want;
        const struct bt_rail_config *have = &rails.rails[i];

        if (!transfer_rail_add(&rails, cases[i].text, error, sizeof(error)))
            fail_msg("%s: %s", cases[i].text, error);
        same(have->name, want->name);
        same(have->address, want->address);
        same(have->device, want->device);
        same(have->gid, want->gid);
        same(have->transports, want->transports);
        assert_int_equal(have->partition, want->partition);
        assert_int_equal(have->mtu, want->mtu);
        assert_int_equal(have->traffic_class, want->traffic_class);
        assert_int_equal(have->rate_bytes_per_s, want->rate_bytes_per_s);
    }
    assert_int_equal(rails.count, sizeof(cases) / sizeof(cases[0]));
}

/* The column is that of `at` in the word. */
static void refuses(void **state)
{
    const struct {
        const char *text, *at, *says;
    } cases[] = {
        {"r0", "r0", "NAME=ADDRESS"},
        {"=10.0.0.1", "=", "a name is"},
        {"r 0=10.0.0.1", "r 0", "a name is"},
        {"a1234567890123456789012345678901=x", "a1", "a name is"},
        {"r0=", "", "neither an address"},
        {"r0=,gid=3", ",gid", "neither an address"},
        {"r0=10.0.0.1@", "", "no device"},
        {"r0=10.0.0.1@,gid=3", ",gid", "no device"},
        {"r0=10.0.0.1,", "", "not KEY=VALUE"},
        {"r0=10.0.0.1,gid", "gid", "not KEY=VALUE"},
        {"r0=10.0.0.1,,gid=3", ",gid", "not KEY=VALUE"},
        {"r0=10.0.0.1,gdi=3", "gdi", "did you mean 'gid'"},
        {"r0=10.0.0.1,elephant=3", "elephant", "no key"},
        {"r0=10.0.0.1,gid=3,mtu=1024,gid=4", "gid=4", "twice"},
        {"r0=10.0.0.1,gid=256", "256", "0 to 255"},
        {"r0=10.0.0.1,gid=-1", "-1", "0 to 255"},
        {"r0=10.0.0.1,gid=0x3", "0x3", "0 to 255"},
        {"r0=10.0.0.1,gid=", "", "0 to 255"},
        {"r0=10.0.0.1,partition=0", "0", "0x0001"},
        {"r0=10.0.0.1,partition=0x8000", "0x8", "0x0001"},
        {"r0=10.0.0.1,partition=0x10000", "0x1", "0x0001"},
        {"r0=10.0.0.1,partition=65536", "65536", "0x0001"},
        {"r0=10.0.0.1,partition=0x", "0x", "0x0001"},
        {"r0=10.0.0.1,partition=8g", "8g", "0x0001"},
        {"r0=10.0.0.1,mtu=0", "0", "mtu is"},
        {"r0=10.0.0.1,mtu=128", "128", "mtu is"},
        {"r0=10.0.0.1,mtu=1000", "1000", "mtu is"},
        {"r0=10.0.0.1,mtu=8192", "8192", "mtu is"},
        {"r0=10.0.0.1,mtu=4294967552", "4294", "mtu is"}, /* 2^32 + 256 */
        {"r0=10.0.0.1,class=256", "256", "0 to 255"},
        {"r0=10.0.0.1,class=+1", "+1", "0 to 255"},
        {"r0=10.0.0.1,class= 1", " 1", "0 to 255"},
        {"r0=10.0.0.1,rate=25", "25", "unit"},
        {"r0=10.0.0.1,rate=-1GB/s", "-1", "unit"},
        {"r0=10.0.0.1,transports=", "", "a list"},
        {"taken=10.0.0.1", "taken", "two rails"},
    };

    (void)state;
    memset(&rails, 0, sizeof(rails));
    assert_true(
        transfer_rail_add(&rails, "taken=10.0.0.9", error, sizeof(error)));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *text = cases[i].text, *found = NULL;
        char want[32];

        /* the last one: what is before it has no fault */
        for (const char *at = text; at[0] != '\0' || cases[i].at[0] == '\0';
             at++) {
            if (strncmp(at, cases[i].at, strlen(cases[i].at)) == 0 &&
                (cases[i].at[0] != '\0' || at[0] == '\0'))
                found = at;
            if (at[0] == '\0')
                break;
        }
        assert_non_null(found);
        snprintf(want, sizeof(want), "column %d: ", (int)(found - text) + 1);
        if (transfer_rail_add(&rails, text, error, sizeof(error)))
            fail_msg("%s: taken", text);
        if (strncmp(error, want, strlen(want)) != 0 ||
            strstr(error, cases[i].says) == NULL)
            fail_msg("%s: \"%s\", not %s%s", text, error, want, cases[i].says);
        assert_int_equal(rails.count, 1);
    }
}

static void has_limits(void **state)
{
    char text[300];

    (void)state;
    memset(&rails, 0, sizeof(rails));
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "r0=@", 4);
    assert_false(transfer_rail_add(&rails, text, error, sizeof(error)));
    assert_non_null(strstr(error, "255 characters"));
    text[255] = '\0';
    assert_true(transfer_rail_add(&rails, text, error, sizeof(error)));
    assert_int_equal(strlen(rails.rails[0].device), 251);
    for (int i = 1; i < 8; i++) {
        snprintf(text, sizeof(text), "r%d=10.0.0.%d", i, i);
        assert_true(transfer_rail_add(&rails, text, error, sizeof(error)));
    }
    assert_false(
        transfer_rail_add(&rails, "r8=10.0.0.8", error, sizeof(error)));
    assert_string_equal(error, "more than 8 rails");
    assert_int_equal(rails.count, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes),
        cmocka_unit_test(refuses),
        cmocka_unit_test(has_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
