/* Reader of Mooncake traces: expansion and scaling worked by hand, faults with
 * their place, and the published figures of the real trace when it is there
 * (README of the traces: 37.4 % of tokens, 36.6 % of blocks repeat). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/workload.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/baton-trace-XXXXXX";

static void put_file(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static enum bt_status read_with(const struct bt_trace_options *options,
                                const char *text, struct bt_workload *w,
                                char *error)
{
    memset(w, 0, sizeof(*w));
    error[0] = '\0';
    put_file(text, strlen(text));
    return bt_trace_read(path, options, w, error, 256);
}

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

static void test_ids_become_prefixes(void **state)
{
    const char *text =
        "{\"timestamp\": 2000, \"input_length\": 1100, \"output_length\": 7, "
        "\"hash_ids\": [0, 5, 6]}\n"
        "{\"timestamp\": 1000, \"input_length\": 1024, \"output_length\": 0, "
        "\"hash_ids\": [0, 9], \"extra\": null}\n";
    struct bt_trace_options options;
    struct bt_workload w;
    char error[256];

    (void)state;
    bt_trace_options_init(&options);
    options.jitter_ns = 0;
    options.vocabulary = 1000;
    assert_int_equal(read_with(&options, text, &w, error), BT_OK);
    assert_int_equal(w.count, 2);
    assert_int_equal(w.requests[0].arrival_ns, 1000000000); /* sorted */
    assert_int_equal(w.requests[0].token_count, 1024);
    assert_int_equal(w.requests[0].max_tokens, 1); /* never none */
    assert_int_equal(w.requests[1].token_count, 1100);
    assert_int_equal(w.requests[1].max_tokens, 7);
    /* id 0 is common: 512 equal tokens, then different ones */
    assert_memory_equal(bt_workload_prompt(&w, 0), bt_workload_prompt(&w, 1),
                        512 * sizeof(uint32_t));
    assert_true(memcmp(bt_workload_prompt(&w, 0) + 512,
                       bt_workload_prompt(&w, 1) + 512, 2048) != 0);
    for (size_t i = 0; i < w.token_count; i++)
        assert_true(w.tokens[i] < 1000);
    bt_workload_fini(&w);
}

static void test_scaling(void **state)
{
    const char *text =
        "{\"timestamp\":8000,\"input_length\":1100,\"output_length\":100,"
        "\"hash_ids\":[1,2,3]}\n\n"
        "{\"timestamp\":16000,\"input_length\":1,\"output_length\":3,"
        "\"hash_ids\":[4]}\r\n"
        "{\"timestamp\":80000,\"input_length\":5,\"output_length\":3,"
        "\"hash_ids\":[4]}";
    struct bt_trace_options options;
    struct bt_workload w;
    char error[256];

    (void)state;
    bt_trace_options_init(&options);
    options.jitter_ns = 0;
    options.speed = 4;
    options.tokens_divisor = 16; /* blocks of 32 */
    options.duration_ns = 10000000000;
    assert_int_equal(read_with(&options, text, &w, error), BT_OK);
    assert_int_equal(w.count, 2); /* the third arrives at 20 s */
    assert_int_equal(w.requests[0].arrival_ns, 2000000000);
    /* 2 full blocks and (1100 - 1024) / 16 */
    assert_int_equal(w.requests[0].token_count, 64 + 4);
    assert_int_equal(w.requests[0].max_tokens, 6);
    assert_int_equal(w.requests[1].token_count, 1);
    assert_int_equal(w.requests[1].max_tokens, 1);
    bt_workload_fini(&w);
}

static void test_jitter_is_seeded_and_bounded(void **state)
{
    const char *line = "{\"timestamp\":3000,\"input_length\":5,"
                       "\"output_length\":3,\"hash_ids\":[4]}\n";
    struct bt_trace_options options;
    struct bt_workload a, b;
    char text[8192] = "", error[256];
    int moved = 0;

    (void)state;
    for (int i = 0; i < 50; i++)
        strncat(text, line, sizeof(text) - strlen(text) - 1);
    bt_trace_options_init(&options);
    assert_int_equal(read_with(&options, text, &a, error), BT_OK);
    assert_int_equal(read_with(&options, text, &b, error), BT_OK);
    for (size_t i = 0; i < 50; i++) {
        int64_t at = a.requests[i].arrival_ns;

        assert_int_equal(at, b.requests[i].arrival_ns);
        assert_true(at >= 3000000000 && at < 6000000000);
        moved += at != 3000000000;
    }
    assert_true(moved > 45);
    bt_workload_fini(&a);
    bt_workload_fini(&b);
}

struct fault {
    const char *line;
    enum bt_status status;
    const char *place; /* ":LINE:COLUMN: " */
    const char *words;
};

#define GOOD                                                                   \
    "{\"timestamp\":1,\"input_length\":1,\"output_length\":1,"                 \
    "\"hash_ids\":[1]}\n"

static const struct fault faults[] = {
    {"{\"timestamp\":1,", BT_INVALID, ":2:", "malformed JSON"},
    {"nonsense", BT_INVALID, ":2:1: ", "malformed JSON"},
    {"[1]", BT_TYPE, ":2:1: ", "not a JSON object"},
    {"{\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", BT_INVALID,
     ":2:1: ", "'timestamp' is missing"},
    {"{\"timestamp\":\"1\",\"input_length\":1,\"output_length\":1,"
     "\"hash_ids\":[1]}",
     BT_TYPE, ":2:14: ", "'timestamp' is not a whole number"},
    {"{\"timestamp\":-1,\"input_length\":1,\"output_length\":1,"
     "\"hash_ids\":[1]}",
     BT_TYPE, ":2:14: ", "'timestamp'"},
    {"{\"timestamp\":1,\"input_length\":0,\"output_length\":1,"
     "\"hash_ids\":[]}",
     BT_INVALID, ":2:1: ", "'input_length' is 0"},
    {"{\"timestamp\":1,\"input_length\":99999999999,\"output_length\":1,"
     "\"hash_ids\":[1]}",
     BT_TOO_LARGE, ":2:31: ", "'input_length' is larger than 16777216"},
    {"{\"timestamp\":1,\"input_length\":600,\"output_length\":1,"
     "\"hash_ids\":[1]}",
     BT_INVALID, ":2:", "1 hash ids do not fit input_length 600"},
    {"{\"timestamp\":1,\"input_length\":6,\"output_length\":1,"
     "\"hash_ids\":7}",
     BT_TYPE, ":2:", "'hash_ids' is not an array"},
    {"{\"timestamp\":1,\"input_length\":6,\"output_length\":1,"
     "\"hash_ids\":[1.5]}",
     BT_TYPE, ":2:", "hash id 0 is not a whole number"},
    {"{\"timestamp\":1,\"input_length\":6,\"output_length\":1.5,"
     "\"hash_ids\":[1]}",
     BT_TYPE, ":2:", "'output_length'"},
};

static void test_faults_name_their_place(void **state)
{
    struct bt_trace_options options;
    struct bt_workload w;
    char text[1024], error[256];

    (void)state;
    bt_trace_options_init(&options);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        snprintf(text, sizeof(text), "%s%s\n" GOOD, GOOD, faults[i].line);
        assert_int_equal(read_with(&options, text, &w, error),
                         faults[i].status);
        if (strncmp(error, path, strlen(path)) != 0 ||
            !strstr(error, faults[i].place) || !strstr(error, faults[i].words))
            fail_msg("line '%s' gave '%s'", faults[i].line, error);
        assert_int_equal(w.count, 0);
        assert_null(w.requests);
    }
}

static void test_long_line_and_no_requests(void **state)
{
    size_t bytes = (1u << 20) + 10;
    char *text = malloc(bytes), error[256];
    struct bt_trace_options options;
    struct bt_workload w;

    (void)state;
    assert_non_null(text);
    memset(text, ' ', bytes);
    memset(&w, 0, sizeof(w));
    bt_trace_options_init(&options);
    put_file(text, bytes);
    assert_int_equal(bt_trace_read(path, &options, &w, error, 256),
                     BT_TOO_LARGE);
    assert_non_null(strstr(error, ":1:1: line longer"));
    free(text);
    assert_int_equal(read_with(&options, "\n", &w, error), BT_INVALID);
    assert_non_null(strstr(error, "no requests"));
    assert_int_equal(bt_trace_read("/nonexistent/x", &options, &w, error, 256),
                     BT_NOT_FOUND);
    options.tokens_divisor = 0;
    assert_int_equal(read_with(&options, GOOD, &w, error), BT_INVALID);
}

static void test_limit_of_tokens(void **state)
{
    struct bt_trace_options options;
    struct bt_workload w;
    char error[256];

    (void)state;
    bt_trace_options_init(&options);
    memset(&w, 0, sizeof(w));
    w.tokens_max = 1;
    put_file(GOOD GOOD, strlen(GOOD GOOD));
    assert_int_equal(bt_trace_read(path, &options, &w, error, 256),
                     BT_TOO_LARGE);
    assert_non_null(strstr(error, ":2:1: the trace is larger"));
}

#define REAL BATON_SHARED_DIR "/traces/conversation_trace.jsonl"

static void test_real_trace(void **state)
{
    struct bt_trace_options options;
    struct bt_workload_stats stats;
    struct bt_workload w;
    char error[512];
    double blocks;

    (void)state;
    if (access(REAL, R_OK) != 0) {
        print_message("no %s: skipped\n", REAL);
        skip();
    }
    bt_trace_options_init(&options);
    options.tokens_divisor = 64; /* blocks of 8 tokens */
    memset(&w, 0, sizeof(w));
    assert_int_equal(bt_trace_read(REAL, &options, &w, error, sizeof(error)),
                     BT_OK);
    assert_int_equal(w.count, 12031);
    assert_int_equal(bt_workload_stats_get(&w, 8, &stats), BT_OK);
    /* 288,500 uses; scaled partial tails keep one block each */
    assert_int_equal(stats.blocks, 288500);
    blocks = (double)stats.repeated_blocks / (double)stats.blocks;
    assert_true(fabs(blocks - 0.366) < 0.004);
    assert_true(stats.span_ns > 3530000000000 && stats.span_ns < 3541000000000);
    bt_workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_become_prefixes),
        cmocka_unit_test(test_scaling),
        cmocka_unit_test(test_jitter_is_seeded_and_bounded),
        cmocka_unit_test(test_faults_name_their_place),
        cmocka_unit_test(test_long_line_and_no_requests),
        cmocka_unit_test(test_limit_of_tokens),
        cmocka_unit_test(test_real_trace),
    };
    return cmocka_run_group_tests(tests, make_path, drop_path);
}
