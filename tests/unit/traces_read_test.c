/* Readers of traces without tokens: each format's meaning worked by hand,
 * faults with their place, jitter, and that what is written reads back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define S 1000000000LL

static char path[] = "/tmp/baton-traces-XXXXXX";

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

static void put_file(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Reads the text without jitter; the caller frees the trace. */
static void read_text(const char *text, struct bt_trace *trace)
{
    struct bt_trace_read_options o;
    char error[512] = "";

    bt_trace_read_options_init(&o);
    o.jitter_ns = 0;
    put_file(text, strlen(text));
    if (bt_trace_load(path, &o, trace, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
}

static uint64_t block(const struct bt_trace *t, size_t request, uint32_t i)
{
    assert_true(request < t->count && i < t->requests[request].block_count);
    return t->blocks[t->requests[request].block_at + i];
}

static void test_mooncake(void **state)
{
    struct bt_trace t;

    (void)state;
    read_text("{\"timestamp\": 9000, \"input_length\": 1100, "
              "\"output_length\": 7, \"hash_ids\": [40, 41, 7]}\n"
              "{\"timestamp\": 8000.5, \"input_length\": 1024, "
              "\"output_length\": 0, \"hash_ids\": [40, 99], \"x\": [1]}\r\n\n"
              "{\"timestamp\": 9000, \"input_length\": 1, "
              "\"output_length\": 1, \"hash_ids\": []}",
              &t);
    assert_int_equal(t.count, 3);
    assert_int_equal(t.block_tokens, 512);
    assert_true(t.has_prefixes);
    assert_false(t.synthetic);
    /* sorted, from the first stamp */
    assert_int_equal(t.requests[0].arrival_ns, 0);
    assert_int_equal(t.requests[0].input_tokens, 1024);
    assert_int_equal(t.requests[0].output_tokens, 1); /* never none */
    assert_int_equal(t.requests[1].arrival_ns, 999500000);
    assert_int_equal(t.requests[1].input_tokens, 1100);
    assert_int_equal(t.requests[2].block_count, 0);
    /* ids in order of the file: 40 41 7, then 99 */
    assert_int_equal(t.block_ids, 4);
    assert_int_equal(block(&t, 1, 0), 0);
    assert_int_equal(block(&t, 1, 1), 1);
    assert_int_equal(block(&t, 1, 2), 2);
    assert_int_equal(block(&t, 0, 0), 0);
    assert_int_equal(block(&t, 0, 1), 3);
    bt_trace_fini(&t);
    assert_null(t.requests);
}

/* Ids of contents (the same block after different parents) become chains. */
static void test_ids_become_chains(void **state)
{
    struct bt_trace t;

    (void)state;
    read_text("{\"timestamp\":0,\"input_length\":1024,\"output_length\":1,"
              "\"hash_ids\":[1,5]}\n"
              "{\"timestamp\":1,\"input_length\":1024,\"output_length\":1,"
              "\"hash_ids\":[2,5]}\n"
              "{\"timestamp\":2,\"input_length\":1024,\"output_length\":1,"
              "\"hash_ids\":[1,5]}\n",
              &t);
    assert_int_equal(t.block_ids, 4);
    assert_true(block(&t, 0, 1) != block(&t, 1, 1));
    assert_int_equal(block(&t, 0, 1), block(&t, 2, 1));
    bt_trace_fini(&t);
}

static void test_delays(void **state)
{
#define LINE(fields)                                                           \
    "{" fields ",\"input_length\":5,\"output_length\":3,\"hash_ids\":[1]}\n"
    struct bt_trace t;
    static const int64_t due[] = {0, 200, 500, 1000, 1250};

    (void)state;
    /* without a session from the line before, with one from its last turn */
    read_text(LINE("\"timestamp\":2000,\"session_id\":\"a\"")
                  LINE("\"timestamp\":3000,\"session_id\":7")
                      LINE("\"delay\":500,\"session_id\":\"a\",\"turn\":1")
                          LINE("\"delay\":250,\"session_id\":7,\"turn\":1")
                              LINE("\"timestamp\":2200"),
              &t);
    assert_int_equal(t.count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(t.requests[i].arrival_ns, due[i] * 1000000);
    assert_int_equal(t.requests[0].session, 1);
    assert_int_equal(t.requests[1].session, 0);
    assert_int_equal(t.requests[2].session, 1);
    assert_int_equal(t.requests[2].turn, 1);
    assert_int_equal(t.requests[3].session, 2);
    bt_trace_fini(&t);
    read_text(LINE("\"delay\":100") LINE("\"delay\":100") LINE("\"delay\":50"),
              &t);
    assert_int_equal(t.requests[2].arrival_ns, 150000000);
    bt_trace_fini(&t);
}

static void test_bailian(void **state)
{
#define CHAT(id, parent, at, turn, n, ids)                                     \
    "{\"chat_id\":" #id ",\"parent_chat_id\":" #parent ",\"timestamp\":" #at   \
    ",\"input_length\":" #n ",\"output_length\":4,\"type\":\"text\","          \
    "\"turn\":" #turn ",\"hash_ids\":[" ids "]}\n"
    struct bt_trace t;

    (void)state;
    read_text(
        CHAT(55, -1, 61.114, 1, 20, "10,11") CHAT(60, -1, 61.2, 1, 16, "12")
            CHAT(159, 55, 62.5, 2, 33, "10,13,14")
                CHAT(200, 159, 70, 3, 16, "10") CHAT(300, 999, 71, 2, 16, "10"),
        &t);
    assert_int_equal(t.count, 5);
    assert_int_equal(t.block_tokens, 16);
    assert_int_equal(t.requests[0].session, 1);
    assert_int_equal(t.requests[1].session, 2);
    assert_int_equal(t.requests[2].session, 1);
    assert_int_equal(t.requests[3].session, 1); /* a grandchild */
    assert_int_equal(t.requests[4].session, 3); /* its parent was cut off */
    assert_int_equal(t.requests[2].turn, 1);
    assert_int_equal(t.requests[2].arrival_ns, 1386000000);
    assert_int_equal(block(&t, 2, 0), block(&t, 0, 0));
    assert_true(block(&t, 2, 1) != block(&t, 0, 1));
    bt_trace_fini(&t);
}

static void test_azure(void **state)
{
    struct bt_trace t;

    (void)state;
    read_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
              "2023-11-16 18:17:03.9799600,4808,10\r\n"
              "2023-11-16 18:17:04.0319600,3180,0\r\n"
              "2023-11-17T00:17:04.5+06:00,7,8\n",
              &t);
    assert_int_equal(t.count, 3);
    assert_false(t.has_prefixes);
    assert_int_equal(t.requests[1].arrival_ns, 52000000);
    assert_int_equal(t.requests[1].input_tokens, 3180);
    assert_int_equal(t.requests[1].output_tokens, 1);
    assert_int_equal(t.requests[2].arrival_ns, 520040000);
    assert_int_equal(t.requests[0].block_count, 0);
    bt_trace_fini(&t);
    /* over midnight of a leap day: 2 s; and a month that is not one: */
    read_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
              "2024-02-28 23:59:59,1,1\n2024-02-29 00:00:01,1,1\n"
              "2024-03-01 00:00:01,1,1\n2025-01-01 00:00:01,1,1\n",
              &t);
    assert_int_equal(t.requests[1].arrival_ns, 2 * S);
    assert_int_equal(t.requests[2].arrival_ns, (2 + 86400) * S);
    assert_int_equal(t.requests[3].arrival_ns, (2 + 307 * 86400) * S);
    bt_trace_fini(&t);
}

static void test_burstgpt(void **state)
{
    struct bt_trace t;

    (void)state;
    read_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,"
              "Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
              "7,ChatGPT,0,0,0,Conversation log\n"
              "45.25,GPT-4,417,276,693,API log\n",
              &t);
    assert_int_equal(t.count, 2); /* a failed call is left out */
    assert_int_equal(t.requests[1].arrival_ns, 40250000000);
    assert_int_equal(t.requests[1].input_tokens, 417);
    assert_int_equal(t.requests[1].output_tokens, 276);
    bt_trace_fini(&t);
    read_text("Timestamp,Session ID,Elapsed time,Model,Request tokens,"
              "Response tokens,Total tokens,Log Type\n"
              "5,abc,1.2,ChatGPT,472,18,490,Conversation log\n"
              "6,,1.2,ChatGPT,472,18,490,API log\n"
              "9,abc,1.2,ChatGPT,472,18,490,Conversation log\n",
              &t);
    assert_int_equal(t.requests[0].session, 1);
    assert_int_equal(t.requests[1].session, 0);
    assert_int_equal(t.requests[2].session, 1);
    bt_trace_fini(&t);
}

static void test_jitter(void **state)
{
    char text[8192] = "", error[256];
    struct bt_trace_read_options o;
    struct bt_trace a, b, c;
    size_t moved = 0;

    (void)state;
    /* 25 at 0 and 25 at 2999 ms, as the conversation trace rounds */
    for (int i = 0; i < 50; i++)
        strncat(text,
                i < 25 ? "{\"timestamp\":0,\"input_length\":5,"
                         "\"output_length\":3,\"hash_ids\":[4]}\n"
                       : "{\"timestamp\":2999,\"input_length\":6,"
                         "\"output_length\":3,\"hash_ids\":[4]}\n",
                sizeof(text) - strlen(text) - 1);
    put_file(text, strlen(text));
    bt_trace_read_options_init(&o);
    assert_int_equal(bt_trace_load(path, &o, &a, error, 256), BT_OK);
    assert_int_equal(bt_trace_load(path, &o, &b, error, 256), BT_OK);
    o.seed = 2;
    assert_int_equal(bt_trace_load(path, &o, &c, error, 256), BT_OK);
    for (size_t i = 0; i < 50; i++) {
        int64_t at = a.requests[i].arrival_ns;
        int64_t from = a.requests[i].input_tokens == 5 ? 0 : 2999000000;

        assert_int_equal(at, b.requests[i].arrival_ns);
        assert_true(at >= from && at < from + 3 * S);
        assert_true(i == 0 || at >= a.requests[i - 1].arrival_ns);
        moved += at != c.requests[i].arrival_ns;
    }
    assert_true(moved > 45);
    bt_trace_fini(&a);
    bt_trace_fini(&b);
    bt_trace_fini(&c);
    /* stamps that are not rounded stay, whatever the seed */
    read_text(LINE("\"timestamp\":0") LINE("\"timestamp\":1500"), &a);
    bt_trace_read_options_init(&o);
    assert_int_equal(bt_trace_load(path, &o, &b, error, 256), BT_OK);
    assert_int_equal(b.requests[1].arrival_ns, 1500000000);
    o.requests_max = 1;
    bt_trace_fini(&b);
    assert_int_equal(bt_trace_load(path, &o, &b, error, 256), BT_OK);
    assert_int_equal(b.count, 1);
    bt_trace_fini(&a);
    bt_trace_fini(&b);
}

/* ---- faults ---- */

#define GOOD LINE("\"timestamp\":1")
#define AZURE                                                                  \
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1,1\n"
#define BURST "Timestamp,Request tokens,Response tokens\n1,2,3\n"

static const struct fault {
    const char *before, *line;
    enum bt_status status;
    const char *place, *words;
} faults[] = {
    {GOOD, "{\"timestamp\":1,", BT_INVALID, ":2:", "malformed JSON"},
    {GOOD, "[1]", BT_TYPE, ":2:1: ", "not a JSON object"},
    {"", "nonsense", BT_INVALID, ":1:1: ", "neither JSON lines nor"},
    {GOOD, LINE("\"timestmp\":1"), BT_INVALID,
     ":2:1: ", "neither 'timestamp' nor 'delay'"},
    {GOOD, LINE("\"timestamp\":-1"), BT_TYPE,
     ":2:14: ", "'timestamp' is not a number >= 0"},
    {GOOD, LINE("\"timestamp\":1e300"), BT_TOO_LARGE, ":2:14: ", "every clock"},
    {GOOD, LINE("\"delay\":\"x\""), BT_TYPE, ":2:10: ", "'delay'"},
    {GOOD,
     "{\"timestamp\":1,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}",
     BT_INVALID, ":2:1: ", "'input_length' is 0"},
    {GOOD,
     "{\"timestamp\":1,\"input_length\":99999999999,\"output_length\":1,"
     "\"hash_ids\":[1]}",
     BT_TOO_LARGE, ":2:31: ", "'input_length' is larger than 16777216"},
    {GOOD, "{\"timestamp\":1,\"input_length\":600,\"output_length\":1}",
     BT_INVALID, ":2:1: ", "'hash_ids' is missing"},
    {GOOD,
     "{\"timestamp\":1,\"input_length\":600,\"output_length\":1,"
     "\"hash_ids\":[1]}",
     BT_INVALID, ":2:64: ", "1 hash ids do not fit input_length 600"},
    {GOOD,
     "{\"timestamp\":1,\"input_length\":6,\"output_length\":1,"
     "\"hash_ids\":[1.5]}",
     BT_TYPE, ":2:63: ", "hash id 0 is not a whole number"},
    {GOOD, LINE("\"timestamp\":1,\"block_size\":16"), BT_INVALID,
     ":2:1: ", "block size 16, the lines before have 512"},
    {GOOD, LINE("\"timestamp\":1,\"session_id\":[]"), BT_TYPE,
     ":2:29: ", "'session_id'"},
    {GOOD, LINE("\"timestamp\":1,\"priority\":0.5"), BT_TYPE,
     ":2:27: ", "'priority'"},
    {CHAT(1, -1, 1, 1, 16, "1"), CHAT(2, x, 1, 1, 16, "1"), BT_INVALID,
     ":2:", "malformed JSON"},
    {CHAT(1, -1, 1, 1, 16, "1"), CHAT(2, 1, 1, 1, 17, "1"), BT_INVALID,
     ":2:", "do not fit input_length 17 (16 tokens"},
    {"", "TIMESTAMP,ContextTokens\n1,2", BT_INVALID,
     ":1:1: ", "no column 'GeneratedTokens'"},
    {AZURE, "2023-11-16 18:17:03.97,1", BT_INVALID,
     ":3:1: ", "2 columns, the header has 3"},
    {AZURE, "2023-02-29 18:17:03.97,1,1", BT_TYPE, ":3:1: ", "not a time"},
    {AZURE, "2023-11-16 18:17:03.,1,1", BT_TYPE, ":3:1: ", "not a time"},
    {AZURE, "2023-11-16 24:17:03,1,1", BT_TYPE, ":3:1: ", "not a time"},
    {AZURE, "2023-11-16 18:17:03.97,x,1", BT_TYPE,
     ":3:24: ", "not a whole number"},
    {AZURE, "2023-11-16 18:17:03.97,0,1", BT_INVALID,
     ":3:24: ", "without context tokens"},
    {AZURE, "2023-11-16 18:17:03.97,1,", BT_TYPE,
     ":3:26: ", "not a whole number"},
    {AZURE, "2023-11-16 18:17:03.97,99999999,1", BT_TOO_LARGE,
     ":3:24: ", "more than 16777216 tokens"},
    {AZURE, "\"2023-11-16 18:17:03.97\",9,1", BT_UNSUPPORTED,
     ":3:1: ", "quotes"},
    {BURST, "1s,2,3", BT_TYPE, ":3:1: ", "not a number of seconds"},
    {BURST, "1,2,-3", BT_TYPE, ":3:5: ", "not a whole number"},
};

static void test_faults(void **state)
{
    struct bt_trace_read_options o;
    char text[2048], error[512];

    (void)state;
    bt_trace_read_options_init(&o);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        const struct fault *f = &faults[i];
        struct bt_trace t = {.count = 0};
        enum bt_status status;

        snprintf(text, sizeof(text), "%s%s\n", f->before, f->line);
        put_file(text, strlen(text));
        status = bt_trace_load(path, &o, &t, error, sizeof(error));
        if (status != f->status || strncmp(error, path, strlen(path)) != 0 ||
            !strstr(error, f->place) || !strstr(error, f->words))
            fail_msg("line '%s' gave %s, '%s'", f->line, bt_status_name(status),
                     status == BT_OK ? "" : error);
        assert_null(t.requests);
    }
}

static void test_files(void **state)
{
    size_t bytes = (1u << 20) + 10;
    char *text = malloc(bytes), error[512];
    struct bt_trace_read_options o;
    struct bt_trace t;

    (void)state;
    assert_non_null(text);
    memset(text, ' ', bytes);
    bt_trace_read_options_init(&o);
    put_file(text, bytes);
    free(text);
    assert_int_equal(bt_trace_load(path, &o, &t, error, sizeof(error)),
                     BT_TOO_LARGE);
    assert_non_null(strstr(error, ":1:1: line longer"));
    put_file("\n\n", 2);
    assert_int_equal(bt_trace_load(path, &o, &t, error, sizeof(error)),
                     BT_INVALID);
    assert_non_null(strstr(error, "no requests"));
    assert_int_equal(
        bt_trace_load("/nonexistent/x", &o, &t, error, sizeof(error)),
        BT_NOT_FOUND);
    assert_non_null(strstr(error, "/nonexistent/x: No such file"));
    assert_int_equal(bt_trace_load("/", &o, &t, error, sizeof(error)), BT_IO);
    /* told a wrong format */
    o.format = BT_TRACE_BURSTGPT;
    put_file(AZURE, strlen(AZURE));
    assert_int_equal(bt_trace_load(path, &o, &t, error, sizeof(error)),
                     BT_INVALID);
}

static void test_written_reads_back(void **state)
{
    struct bt_trace_generate_options g;
    struct bt_trace a, b;
    struct bt_trace_read_options o;
    char error[512];

    (void)state;
    bt_trace_generate_options_init(&g);
    g.requests = 300;
    g.tenants = 3;
    g.block_tokens = 64;
    assert_int_equal(bt_trace_generate(&g, &a), BT_OK);
    a.requests[7].priority = -2;
    assert_int_equal(bt_trace_write(&a, path), BT_OK);
    bt_trace_read_options_init(&o);
    if (bt_trace_load(path, &o, &b, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    assert_int_equal(b.count, 300);
    assert_int_equal(b.block_tokens, 64);
    assert_int_equal(b.block_ids, a.block_ids);
    assert_true(b.synthetic);
    for (size_t i = 0; i < 300; i++) {
        const struct bt_trace_request *x = &a.requests[i], *y = &b.requests[i];

        assert_int_equal(y->arrival_ns, x->arrival_ns / 1000000 * 1000000);
        assert_int_equal(y->input_tokens, x->input_tokens);
        assert_int_equal(y->output_tokens, x->output_tokens);
        assert_int_equal(y->turn, x->turn);
        assert_int_equal(y->tenant, x->tenant);
        assert_int_equal(y->priority, x->priority);
        assert_int_equal(y->block_count, x->block_count);
        assert_memory_equal(b.blocks + y->block_at, a.blocks + x->block_at,
                            x->block_count * sizeof(uint64_t));
    }
    bt_trace_fini(&b);
    assert_int_equal(bt_trace_write(&a, "/nonexistent/x"), BT_IO);
    if (access("/dev/full", W_OK) == 0)
        assert_int_equal(bt_trace_write(&a, "/dev/full"), BT_IO);
    bt_trace_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mooncake),
        cmocka_unit_test(test_ids_become_chains),
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_bailian),
        cmocka_unit_test(test_azure),
        cmocka_unit_test(test_burstgpt),
        cmocka_unit_test(test_jitter),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_written_reads_back),
    };

    return cmocka_run_group_tests(tests, make_path, drop_path);
}
