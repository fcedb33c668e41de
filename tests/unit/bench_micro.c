/* Rows of micro benchmarks: ratios, table, JSON; the raw load's requests are
 * what they claim to be: valid JSON of the wanted size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/micro.h"
#include "baton/orchestrator/openai.h"
#include "load.h"
#include <stdlib.h>
#include <string.h>

static char *print(const struct bt_micro_report *report,
                   enum bt_status (*fn)(const struct bt_micro_report *, FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    assert_non_null(to);
    assert_int_equal(fn(report, to), BT_OK);
    fclose(to);
    return text;
}

static void fill(struct bt_micro_report *report)
{
    memset(report, 0, sizeof(*report));
    bt_micro_add(report, "nginx: requests, 1 KB", 20000, "1/s", NULL);
    bt_micro_add(report, "serve: requests, 1 KB", 5000, "1/s",
                 "nginx: requests, 1 KB");
    bt_micro_add(report, "copy", 12.5, "ns", NULL);
    bt_micro_add(report, "hash", 25, "ns", "copy");
    bt_micro_add(report, "lost", 1.5, "ns", "not there");
    bt_micro_note(report, "a \"note\" of %d\n", 2);
}

static void test_table(void **state)
{
    struct bt_micro_report report;
    char *text;

    (void)state;
    fill(&report);
    text = print(&report, bt_micro_print_table);
    assert_string_equal(
        text,
        "                                                value  unit     "
        "baseline\n"
        "nginx: requests, 1 KB                           20000  1/s\n"
        "serve: requests, 1 KB                            5000  1/s      0.25 "
        "x nginx\n"
        "copy                                             12.5  ns\n"
        "hash                                             25.0  ns       2.00 "
        "x copy\n"
        "lost                                            1.500  ns\n"
        "\na \"note\" of 2\n");
    free(text);
}

static void test_json(void **state)
{
    struct bt_micro_report report;
    struct bt_json root, list, row, value;
    size_t cursor = 0;
    double ratio = 0;
    char *text;

    (void)state;
    fill(&report);
    text = print(&report, bt_micro_print_json);
    assert_int_equal(bt_json_parse(text, strlen(text), &root, NULL), BT_OK);
    assert_true(bt_json_member(&root, "results", &list, NULL));
    assert_true(bt_json_next(&list, &cursor, NULL, &row));
    assert_true(bt_json_member(&row, "baseline", &value, NULL));
    assert_int_equal(value.type, BT_JSON_NULL);
    assert_true(bt_json_next(&list, &cursor, NULL, &row));
    assert_true(bt_json_member(&row, "ratio", &value, NULL));
    assert_int_equal(bt_json_double(&value, &ratio), BT_OK);
    assert_true(ratio == 0.25);
    assert_true(bt_json_member(&row, "unit", &value, NULL));
    assert_true(bt_json_is(&value, "1/s"));
    assert_true(bt_json_member(&root, "notes", &value, NULL));
    assert_true(bt_json_is(&value, "a \"note\" of 2\n"));
    free(text);
}

/* With speeds, those are the results; the rows stand beside. */
static void test_speeds(void **state)
{
    const struct bt_micro_speed speed = {
        .prefill = 64, .decode = 32, .mean_ns = 8000, .p99_ns = 12500};
    struct bt_micro_report report;
    struct bt_json root, list, row, value;
    size_t cursor = 0;
    double number = 0;
    char *text;

    (void)state;
    fill(&report);
    bt_micro_add_speed(&report, &speed);
    text = print(&report, bt_micro_print_json);
    assert_int_equal(bt_json_parse(text, strlen(text), &root, NULL), BT_OK);
    assert_true(bt_json_member(&root, "rows", &list, NULL));
    assert_true(bt_json_member(&root, "results", &list, NULL));
    assert_true(bt_json_next(&list, &cursor, NULL, &row));
    assert_true(bt_json_member(&row, "decode", &value, NULL));
    assert_int_equal(bt_json_double(&value, &number), BT_OK);
    assert_true(number == 32);
    assert_true(bt_json_member(&row, "decisions_per_s", &value, NULL));
    assert_int_equal(bt_json_double(&value, &number), BT_OK);
    assert_true(number == 125000);
    assert_true(bt_json_member(&row, "p99_us", &value, NULL));
    assert_int_equal(bt_json_double(&value, &number), BT_OK);
    assert_true(number == 12.5);
    assert_false(bt_json_next(&list, &cursor, NULL, &row));
    free(text);
    text = print(&report, bt_micro_print_table);
    assert_non_null(strstr(text, "       64       32        125000      12.5"));
    free(text);
}

static void test_rows_are_bounded(void **state)
{
    struct bt_micro_report report;

    (void)state;
    memset(&report, 0, sizeof(report));
    for (int i = 0; i < BT_MICRO_ROWS_MAX + 5; i++)
        bt_micro_add(&report, "row", i, "ns", NULL);
    assert_int_equal(report.count, BT_MICRO_ROWS_MAX);
    for (int i = 0; i < 2000; i++)
        bt_micro_note(&report, "note %d\n", i);
    assert_true(strlen(report.notes) < sizeof(report.notes));
}

static void test_requests_are_valid(void **state)
{
    uint32_t ids[16384];

    (void)state;
    for (size_t size = 60; size < 41000; size += size < 140 ? 1 : 997) {
        struct bt_openai_request request;
        size_t bytes = 0, count = 0;
        char message[200] = "", *text, *body;

        text = load_request_make(size, ",\"max_tokens\":2", &bytes);
        assert_non_null(text);
        body = memmem(text, bytes, "\r\n\r\n", 4);
        assert_non_null(body);
        body += 4;
        assert_int_equal(text + bytes - body, size);
        if (bt_openai_parse(BT_ROUTE_COMPLETIONS, body, size, &request, message,
                            sizeof(message)) != BT_OK)
            fail_msg("size %zu: %s", size, message);
        assert_int_equal(bt_openai_token_ids(&request, ids, 16384, &count),
                         BT_OK);
        assert_int_equal(request.max_tokens, 2);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_speeds),
        cmocka_unit_test(test_rows_are_bounded),
        cmocka_unit_test(test_requests_are_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
