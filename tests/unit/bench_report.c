/* Renderings of a demo's report: the whole text of a small one, JSON that
 * parses and has the members, width, unknown values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/demo.h"
#include "baton/orchestrator/json.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill_result(struct bt_demo_result *r, const char *policy,
                        double ttft, uint64_t slow)
{
    memset(r, 0, sizeof(*r));
    r->policy = policy;
    r->client.requests = 4;
    r->client.ok = 4;
    r->client.ttft_ms =
        (struct bt_client_quantiles){ttft, ttft - 1, ttft + 1, ttft + 2};
    r->client.ttst_ms =
        (struct bt_client_quantiles){ttft + 10, ttft + 9, ttft + 11, ttft + 12};
    r->client.tpot_ms = (struct bt_client_quantiles){10, 9.5, 11, 12.25};
    r->client.goodput_rps = 3.5;
    r->client.slo_share = 0.75;
    r->prefix_overlap_ratio = 0.4;
    r->prefill_tokens_saved = 1234;
    r->prefill_tokens_computed = 2000;
    snprintf(r->classes[0].name, sizeof(r->classes[0].name), "fast");
    r->classes[0].bytes = 5000000;
    snprintf(r->classes[1].name, sizeof(r->classes[1].name), "slow");
    r->classes[1].bytes = slow;
    r->class_count = 2;
    r->imbalance_prefill = 1.25;
    r->imbalance_decode = 1.0625;
    r->routing_p50_us = 3.25;
    r->routing_p99_us = 12;
    r->ttft_ms = calloc(5, sizeof(double));
    assert_non_null(r->ttft_ms);
    for (int i = 0; i < 4; i++)
        r->ttft_ms[i] = ttft + i;
}

static void fill_report(struct bt_demo_report *report)
{
    memset(report, 0, sizeof(*report));
    bt_demo_options_init(&report->options);
    report->workload.requests = 4;
    report->workload.prompt_tokens = 4000;
    report->workload.answer_tokens = 100;
    report->workload.blocks = 250;
    report->workload.repeated_blocks = 100;
    report->workload.span_ns = 2000000000;
    report->wall_s = 12.34;
    report->count = 2;
    fill_result(&report->results[0], "prefix_load", 100, 2500000);
    fill_result(&report->results[1], "joint", 80, 0);
    bt_demo_compare(report, 1);
}

static char *print(const struct bt_demo_report *report,
                   enum bt_status (*fn)(const struct bt_demo_report *, FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    assert_non_null(to);
    assert_int_equal(fn(report, to), BT_OK);
    fclose(to);
    return text;
}

static const char golden[] =
    "                                 prefix_load         joint\n"
    "requests                                   4             4\n"
    "wrong outputs                              0             0\n"
    "errors                                     0             0\n"
    "TTFT mean, ms                          100.0          80.0\n"
    "TTFT p50, ms                            99.0          79.0\n"
    "TTFT p95, ms                           101.0          81.0\n"
    "TTFT p99, ms                           102.0          82.0\n"
    "TTST mean, ms                          110.0          90.0\n"
    "TTST p50, ms                           109.0          89.0\n"
    "TTST p99, ms                           112.0          92.0\n"
    "TPOT p50, ms                            9.50          9.50\n"
    "TPOT p99, ms                           12.25         12.25\n"
    "goodput in SLO, requests/s              3.50          3.50\n"
    "requests in SLO, %                      75.0          75.0\n"
    "prefix overlap, % of prompt             40.0          40.0\n"
    "prefill tokens saved                    1234          1234\n"
    "KV over fast links, MB                   5.0           5.0\n"
    "KV over slow links, MB                   2.5           0.0\n"
    "prefill imbalance, max/mean             1.25          1.25\n"
    "decode imbalance, max/mean              1.06          1.06\n"
    "routing p50, us                          3.2           3.2\n"
    "routing p99, us                         12.0          12.0\n";

static void test_table(void **state)
{
    struct bt_demo_report report;
    char *text;

    (void)state;
    fill_report(&report);
    text = print(&report, bt_demo_print_table);
    if (strncmp(text, golden, sizeof(golden) - 1) != 0)
        fail_msg("table:\n%s", text);
    assert_non_null(strstr(text, "joint has a mean TTFT 20.0 ms (19.7 %) lower "
                                 "than prefix_load"));
    assert_non_null(strstr(text, "-20.0 .. -20.0 ms over 4 requests"));
    assert_non_null(strstr(text, "40.0 % of the prompt blocks"));
    free(text);
    bt_demo_report_fini(&report);
}

static void test_lines_fit_100_columns(void **state)
{
    struct bt_demo_report report;
    char *text, *line;

    (void)state;
    fill_report(&report);
    for (size_t i = 2; i < BT_DEMO_POLICIES_MAX; i++)
        fill_result(&report.results[i], "a_policy_with_a_long_name", 9, 1);
    for (report.count = 2; report.count <= 5; report.count++) {
        text = print(&report, bt_demo_print_table);
        for (line = text; *line; line += strcspn(line, "\n") + 1)
            assert_true(strcspn(line, "\n") <= 100);
        free(text);
    }
    report.count = BT_DEMO_POLICIES_MAX;
    bt_demo_report_fini(&report);
}

static void get(const struct bt_json *object, const char *name,
                struct bt_json *out)
{
    if (!bt_json_member(object, name, out, NULL))
        fail_msg("no member %s", name);
}

static double number(const struct bt_json *object, const char *name)
{
    struct bt_json value;
    double out = 0;

    get(object, name, &value);
    assert_int_equal(bt_json_double(&value, &out), BT_OK);
    return out;
}

static void test_json(void **state)
{
    struct bt_json root, list, policy, inner;
    struct bt_demo_report report;
    size_t cursor = 0;
    char *text;

    (void)state;
    fill_report(&report);
    report.results[1].routing_p50_us = -1;
    text = print(&report, bt_demo_print_json);
    assert_int_equal(bt_json_parse(text, strlen(text), &root, NULL), BT_OK);
    get(&root, "policies", &list);
    assert_true(bt_json_next(&list, &cursor, NULL, &policy));
    get(&policy, "policy", &inner);
    assert_true(bt_json_is(&inner, "prefix_load"));
    assert_true(number(&policy, "requests") == 4);
    assert_true(number(&policy, "wrong_outputs") == 0);
    get(&policy, "ttft_ms", &inner);
    assert_true(number(&inner, "mean") == 100 && number(&inner, "p99") == 102);
    get(&policy, "kv_bytes", &inner);
    assert_true(number(&inner, "slow") == 2500000);
    get(&policy, "imbalance", &inner);
    assert_true(number(&inner, "prefill") == 1.25);
    get(&policy, "slo", &inner);
    assert_true(number(&inner, "ttft_ms") == 400);
    assert_true(bt_json_next(&list, &cursor, NULL, &policy));
    get(&policy, "routing_us", &inner);
    get(&inner, "p50", &policy);
    assert_int_equal(policy.type, BT_JSON_NULL);
    assert_false(bt_json_next(&list, &cursor, NULL, &policy));
    get(&root, "comparison", &inner);
    assert_true(number(&inner, "pairs") == 4);
    free(text);
    bt_demo_report_fini(&report);
}

/* Only requests that both answered are paired; an interval around 0 is called
 * noise. */
static void test_comparison(void **state)
{
    struct bt_demo_report report;
    char *text;

    (void)state;
    fill_report(&report);
    report.results[0].ttft_ms[3] = -1;
    report.results[1].ttft_ms[0] = 130;
    report.results[1].ttft_ms[1] = 70;
    bt_demo_compare(&report, 1);
    assert_int_equal(report.comparison.pairs, 3);
    /* (130-100), (70-101), (82-102) */
    assert_true(fabs(report.comparison.ttft_ms.mean + 7) < 1e-9);
    assert_true(fabs(report.comparison.baseline_mean_ms - 101) < 1e-9);
    text = print(&report, bt_demo_print_table);
    assert_non_null(strstr(text, "do not differ in mean TTFT beyond noise"));
    free(text);
    report.results[0].policy = "round_robin";
    bt_demo_compare(&report, 1);
    assert_false(report.comparison.known);
    bt_demo_report_fini(&report);
}

/* What one policy has no figures of is unknown, not 0 %. */
static void test_predictions(void **state)
{
    static const char rows[] =
        "transfer predicted, mean ms             50.0       unknown\n"
        "transfer realised, mean ms              60.0       unknown\n"
        "  median error, %                       21.5       unknown\n"
        "  mean error, ms                        10.0       unknown\n"
        "KV pull predicted, mean ms              50.0       unknown\n"
        "KV pull realised, mean ms               52.0       unknown\n"
        "  median error, %                        4.5       unknown\n"
        "  mean error, ms                         2.5       unknown\n"
        "total predicted, mean ms               120.0          90.0\n"
        "total realised, mean ms                132.0          99.0\n"
        "  median error, %                       10.0          11.0\n";
    struct bt_demo_report report;
    struct bt_demo_result *r = report.results;
    char *text;

    (void)state;
    fill_report(&report);
    r[0].transfer = (struct bt_demo_prediction){4, 50, 60, 0.215, 0.4, 0.2, 10};
    r[0].pull = (struct bt_demo_prediction){4, 50, 52, 0.045, 0.1, 0.04, 2.5};
    r[0].total = (struct bt_demo_prediction){4, 120, 132, 0.1, 0.2, 0.1, 13};
    r[1].total = (struct bt_demo_prediction){4, 90, 99, 0.11, 0.2, 0.1, 9};
    text = print(&report, bt_demo_print_table);
    if (strstr(text, rows) == NULL)
        fail_msg("table:\n%s", text);
    free(text);
    text = print(&report, bt_demo_print_json);
    assert_non_null(strstr(text, "\"predicted_pull\":{\"count\":4,"
                                 "\"predicted_ms\":50.000,"
                                 "\"realised_ms\":52.000,"
                                 "\"error_median\":0.0450,"));
    assert_null(strstr(strstr(text, "\"joint\""), "predicted_pull"));
    free(text);
    bt_demo_report_fini(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_lines_fit_100_columns),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_comparison),
        cmocka_unit_test(test_predictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
