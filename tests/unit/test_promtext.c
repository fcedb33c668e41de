/* Prometheus text: lines as vLLM and SGLang print them, and bad ones. */
#include "baton/orchestrator/promtext.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct seen {
    struct bt_prom_sample sample[16];
    size_t count;
};

static void keep(void *arg, const struct bt_prom_sample *sample)
{
    struct seen *seen = arg;
    assert_true(seen->count < 16);
    seen->sample[seen->count++] = *sample;
}

static void reads_samples(void **state)
{
    static const char text[] =
        "# HELP vllm:num_requests_running Number of requests.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n"
        "\n"
        "plain 1e3\r\n"
        "stamped -2.5 1395066363000\n"
        "  spaced \t { a = \"x\" , b=\"y\", } \t +Inf \t\n"
        "nan_value NaN\n"
        "low -Inf\n"
        "escaped{p=\"a\\\\b\\\"c\\n}\",q=\"z\"} 4\n"
        "empty{} 5\n"
        "exemplar_bucket{le=\"1\"} 6 # {trace=\"t\"} 0.5 1.0\n"
        "end 7";
    struct seen seen = {.count = 0};
    char buf[16];
    (void)state;
    assert_int_equal(bt_prom_read(text, sizeof text - 1, keep, &seen), 0);
    assert_int_equal(seen.count, 10);
    assert_true(bt_prom_is(&seen.sample[0], "vllm:num_requests_running"));
    assert_false(bt_prom_is(&seen.sample[0], "vllm:num_requests"));
    assert_true(seen.sample[0].value == 3.0);
    assert_true(bt_prom_label(&seen.sample[0], "model_name", buf, sizeof buf));
    assert_string_equal(buf, "m");
    assert_false(bt_prom_label(&seen.sample[0], "model", buf, sizeof buf));
    assert_false(bt_prom_label(&seen.sample[0], "model_name", buf, 1));
    assert_true(seen.sample[1].value == 1000.0);
    assert_null(seen.sample[1].labels);
    assert_false(bt_prom_label(&seen.sample[1], "a", buf, sizeof buf));
    assert_true(seen.sample[2].value == -2.5);
    assert_true(isinf(seen.sample[3].value) && seen.sample[3].value > 0);
    assert_true(bt_prom_label(&seen.sample[3], "b", buf, sizeof buf));
    assert_string_equal(buf, "y");
    assert_true(isnan(seen.sample[4].value));
    assert_true(isinf(seen.sample[5].value) && seen.sample[5].value < 0);
    assert_true(bt_prom_label(&seen.sample[6], "p", buf, sizeof buf));
    assert_string_equal(buf, "a\\b\"c\n}");
    assert_true(bt_prom_label(&seen.sample[6], "q", buf, sizeof buf));
    assert_string_equal(buf, "z");
    assert_false(bt_prom_label(&seen.sample[7], "q", buf, sizeof buf));
    assert_true(seen.sample[9].value == 7.0);
}

static void counts_bad_lines(void **state)
{
    static const char *const bad[] = {
        "name",           "name ",
        "1name 2",        "name x",
        "name{a=\"b\" 1", "name{a=b} 1",
        "name{a} 1",      "name{a=\"b\"c=\"d\"} 1",
        "name{a=\"b} 1",  "name 1 x",
        "name 1 2 3",     "name 0x10",
        "{a=\"b\"} 1",    "name{a=\"b\\",
        "<html>",         "name 1e",
        "name{,} 1",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[64];
        struct seen seen = {.count = 0};
        size_t n = strlen(bad[i]);
        memcpy(text, bad[i], n);
        memcpy(text + n, "\ngood 1\n", 8);
        if (bt_prom_read(text, n + 8, keep, &seen) != 1 || seen.count != 1)
            fail_msg("%s: %zu samples", bad[i], seen.count);
    }
}

static void long_lines_are_skipped(void **state)
{
    size_t n = 5000;
    char *text = malloc(n);
    struct seen seen = {.count = 0};
    (void)state;
    assert_non_null(text);
    memset(text, 'a', n);
    memcpy(text + n - 8, " 1\nok 2\n", 8);
    assert_int_equal(bt_prom_read(text, n, keep, &seen), 1);
    assert_int_equal(seen.count, 1);
    assert_int_equal(bt_prom_read(NULL, 0, keep, &seen), 0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_samples),
        cmocka_unit_test(counts_bad_lines),
        cmocka_unit_test(long_lines_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
