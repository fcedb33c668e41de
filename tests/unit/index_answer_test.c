/* Queries and answers of the index (index_query.h) over a small one whose keys
 * are the published vectors of engine-wire.md 2.9 (B = 4): what the answers
 * must be was worked out by hand. */
#include "baton/orchestrator/index_query.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 5

/* Tokens 1..12 in blocks of 4, by namespace. */
static const uint64_t plain[] = {0xcb38e4d7fb2dca5c, 0x44a2b2379d6d3c3d,
                                 0xaea1e67a6c80cf84};
static const uint64_t salted[] = {0xd4792f512213711c, 0xec9055172a3b5858};
static const uint64_t adapted[] = {0x5222c2f6c9a499ab, 0xa62e2d1426277c2f};

static const struct bt_index_row rows[] = {
    {"a", 0, 0, BT_STREAM_EXACT, BT_CAUSE_FROM_START},
    {"a", 1, 1, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE},
    {"b", 0, 2, BT_STREAM_EXACT, BT_CAUSE_REPLAYED},
    {"c", 0, 3, BT_STREAM_DEGRADED, BT_CAUSE_GAP},
    {"d", 3, 4, BT_STREAM_ABSENT, BT_CAUSE_NO_EVENTS},
};

struct world {
    void *memory;
    struct bt_prefix_index *index;
};

static void hold(struct world *w, uint32_t row, enum bt_tier tier,
                 const uint64_t *keys, size_t count)
{
    const struct bt_kv_store store = {.own_keys = keys,
                                      .hashes = keys, /* any will do */
                                      .hash_count = count,
                                      .block_tokens = 4,
                                      .tier = tier,
                                      .full_attention = 1};

    assert_int_equal(bt_prefix_index_store(w->index, row, 0, &store), BT_OK);
}

static void world_start(struct world *w)
{
    const struct bt_prefix_index_limits limits = {
        .workers_max = ROWS, .blocks_max = 64, .holdings_max = 128};
    size_t bytes = bt_prefix_index_bytes(&limits);
    struct bt_arena arena;

    w->memory = calloc(1, bytes);
    assert_non_null(w->memory);
    bt_arena_init(&arena, w->memory, bytes);
    w->index = bt_prefix_index_init(&arena, &limits);
    assert_non_null(w->index);
    hold(w, 0, BT_TIER_DEVICE, plain, 3);
    hold(w, 1, BT_TIER_DEVICE, plain, 1);
    hold(w, 1, BT_TIER_HOST, plain + 1, 1);
    hold(w, 1, BT_TIER_EXTERNAL, plain + 2, 1);
    hold(w, 2, BT_TIER_DEVICE, plain, 1);
    hold(w, 2, BT_TIER_HOST, plain + 1, 1);
    hold(w, 2, BT_TIER_DISK, plain + 2, 1);
    hold(w, 2, BT_TIER_DEVICE, adapted, 2);
    hold(w, 3, BT_TIER_DEVICE, salted, 2);
    hold(w, 4, BT_TIER_EXTERNAL, plain, 1);
}

static const char *read_body(const char *text, bool by_hash, size_t max,
                             struct bt_index_query *q)
{
    const struct bt_index_body body = {text, strlen(text), by_hash, max};

    static struct bt_index_fault fault;

    return bt_index_query_read(&body, q, &fault);
}

/* The buffer is as large as bt_index_answer_bytes says and no more. */
static void expect(const char *body, bool by_hash, const char *answer)
{
    struct bt_index_query q;
    uint32_t depths[ROWS * BT_TIERS];
    struct bt_index_view view = {
        .block_tokens = 4, .rows = rows, .row_count = ROWS, .depths = depths};
    struct world w;
    struct bt_text t;
    char *buf;

    world_start(&w);
    assert_null(read_body(body, by_hash, 64, &q));
    assert_int_equal(bt_index_query_keys(&q, 4, false), BT_OK);
    bt_prefix_index_match_tiers(w.index, q.keys, q.key_count, depths);
    view.tenant = q.tenant;
    buf = malloc(bt_index_answer_bytes(&view) + 1);
    assert_non_null(buf);
    bt_text_init(&t, buf, bt_index_answer_bytes(&view));
    assert_int_equal(bt_index_answer(&view, q.shape, &t), BT_OK);
    assert_false(t.overflow);
    buf[t.used] = '\0';
    assert_string_equal(buf, answer);
    free(buf);
    bt_index_query_fini(&q);
    free(w.memory);
}

/* ---- shapes ---- */

#define DYNAMO_PLAIN                                                           \
    "{\"scores\":{\"a\":{\"0\":12,\"1\":4},\"b\":{\"0\":4},\"c\":{\"0\":0},"   \
    "\"d\":{\"3\":0}},\"frequencies\":[4,3,3],\"instances\":{"                 \
    "\"a\":{\"longest_matched\":12,\"gpu\":12,\"dp\":{\"0\":12,\"1\":4},"      \
    "\"cpu\":12,\"disk\":12,\"state\":\"partial\",\"cause\":\"joined_late\","  \
    "\"exact\":false},"                                                        \
    "\"b\":{\"longest_matched\":12,\"gpu\":4,\"dp\":{\"0\":4},\"cpu\":8,"      \
    "\"disk\":12,\"state\":\"exact\",\"cause\":\"replayed\",\"exact\":true},"  \
    "\"c\":{\"longest_matched\":0,\"gpu\":0,\"dp\":{\"0\":0},\"cpu\":0,"       \
    "\"disk\":0,\"state\":\"degraded\",\"cause\":\"gap\",\"exact\":false},"    \
    "\"d\":{\"longest_matched\":4,\"gpu\":0,\"dp\":{\"3\":0},\"cpu\":0,"       \
    "\"disk\":0,\"state\":\"absent\",\"cause\":\"no_events\","                 \
    "\"exact\":false}}}"

static void dynamo_has_ranks_and_tiers(void **state)
{
    (void)state;
    expect("{\"model_name\":\"m\",\"token_ids\":"
           "[1,2,3,4,5,6,7,8,9,10,11,12,13],\"block_size\":4}",
           false, DYNAMO_PLAIN);
}

static void signed_hashes_are_the_same_bits(void **state)
{
    (void)state;
    expect("{\"model_name\":\"m\",\"block_hashes\":[-3803038269031200164,"
           "4945711292740353085,-5863151826378895484]}",
           true, DYNAMO_PLAIN);
}

/* All 0 but `cell`, Mooncake's shape. */
static void expect_only(const char *body, bool by_hash, const char *tenant,
                        const char *b, const char *c)
{
    char answer[2048];
    const char *none = "\"longest_matched\":0,\"GPU\":0,\"DP\":{\"0\":0},"
                       "\"CPU\":0,\"DISK\":0";

    snprintf(answer, sizeof(answer),
             "{\"%s\":{\"a\":{\"longest_matched\":0,\"GPU\":0,"
             "\"DP\":{\"0\":0,\"1\":0},\"CPU\":0,\"DISK\":0,"
             "\"state\":\"partial\",\"cause\":\"joined_late\","
             "\"exact\":false},"
             "\"b\":{%s,\"state\":\"exact\",\"cause\":\"replayed\","
             "\"exact\":true},"
             "\"c\":{%s,\"state\":\"degraded\",\"cause\":\"gap\","
             "\"exact\":false},"
             "\"d\":{\"longest_matched\":0,\"GPU\":0,\"DP\":{\"3\":0},"
             "\"CPU\":0,\"DISK\":0,\"state\":\"absent\","
             "\"cause\":\"no_events\",\"exact\":false}}}",
             tenant, b == NULL ? none : b, c == NULL ? none : c);
    expect(body, by_hash, answer);
}

#define EIGHT                                                                  \
    "\"longest_matched\":8,\"GPU\":8,\"DP\":{\"0\":8},\"CPU\":8,\"DISK\":8"

static void mooncake_and_salt(void **state)
{
    (void)state;
    expect_only("{\"model\":\"m\",\"token_ids\":[1,2,3,4,5,6,7,8,9],"
                "\"block_size\":4,\"cache_salt\":\"salt\"}",
                false, "default", NULL, EIGHT);
}

static void mooncake_adapter_and_tenant(void **state)
{
    (void)state;
    expect_only("{\"model\":\"m\",\"token_ids\":[1,2,3,4,5,6,7,8],"
                "\"lora_name\":\"lora-a\",\"cache_salt\":\"salt\","
                "\"tenant_id\":\"t \\\"1\\\"\"}",
                false, "t \\\"1\\\"", EIGHT, NULL);
}

static void mooncake_by_unsigned_hash(void **state)
{
    (void)state;
    expect_only("{\"model\":\"m\",\"seq_hashes\":[15310320433733267740,"
                "17046218147578468440]}",
                true, "default", NULL, EIGHT);
}

/* A prompt below one block, and one that nobody has. */
static void nothing_matches(void **state)
{
    (void)state;
    expect_only("{\"model\":\"m\",\"token_ids\":[1,2,3]}", false, "default",
                NULL, NULL);
    expect_only("{\"model\":\"m\",\"token_ids\":[]}", false, "default", NULL,
                NULL);
    expect_only("{\"model\":\"m\",\"token_ids\":[9,9,9,9,9]}", false, "default",
                NULL, NULL);
}

static void names_are_escaped(void **state)
{
    char name[BT_INDEX_TEXT_MAX], buf[8192];
    uint32_t depths[BT_TIERS] = {1, 1, 1, UINT32_MAX};
    struct bt_index_row row = {name, UINT32_MAX, 0, BT_STREAM_SUSPECT,
                               BT_CAUSE_DISPROVED};
    struct bt_index_view view = {.tenant = "t",
                                 .block_tokens = 1u << 20,
                                 .rows = &row,
                                 .row_count = 1,
                                 .depths = depths};
    struct bt_text t;

    (void)state;
    memset(name, '"', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    bt_text_init(&t, buf, sizeof(buf));
    assert_int_equal(bt_index_answer(&view, BT_INDEX_MOONCAKE, &t), BT_OK);
    assert_false(t.overflow);
    assert_true(t.used <= bt_index_answer_bytes(&view));
    buf[t.used] = '\0';
    assert_non_null(strstr(buf, "\\\"\\\"\\\""));
    /* (2^32 - 1) * 2^20 */
    assert_non_null(strstr(buf, "\"longest_matched\":4503599626321920,"));
    assert_non_null(strstr(buf, "\"state\":\"suspect\""));
}

/* ---- reading ---- */

static void fields_are_read(void **state)
{
    struct bt_index_query q;

    (void)state;
    assert_null(read_body("{\"model_name\":\"m\",\"token_ids\":[1],"
                          "\"instance_id\":7,\"tenant_id\":null,"
                          "\"additionalsalt\":\"x\",\"routing_group\":\"g\","
                          "\"block_size\":64}",
                          false, 1, &q));
    assert_int_equal(q.shape, BT_INDEX_DYNAMO);
    assert_string_equal(q.instance, "7");
    assert_string_equal(q.tenant, "default");
    assert_string_equal(q.additional_salt, "x");
    assert_string_equal(q.routing_group, "g");
    assert_int_equal(q.block_tokens, 64);
    assert_int_equal(q.token_count, 1);
    bt_index_query_fini(&q);
}

static void faults_are_named(void **state)
{
    static const struct {
        bool by_hash;
        const char *body, *says;
    } rows_bad[] = {
        {false, "", "not JSON: it ends too early, at byte 0"},
        {false, "{bad", "not JSON: byte 1 "},
        {false, "{\"model\":\"m\",}", "not JSON: byte 13 "},
        {false, "{\"model\":\"m\"", "ends too early, at byte 12"},
        {false, "{\"model\":\"m\",\"token_ids\":[],\"token_ids\":[1]}",
         "'token_ids' is given 2 times"},
        {false, "{\"model\":\"m\",\"model\":\"n\",\"token_ids\":[1]}",
         "'model' is given 2 times"},
        {true, "{\"model\":\"m\",\"block_hash\":[1,2,\"x\"]}", "block_hash[2]"},
        {false, "{\"model\":\"m\",\"token_ids\":[1,2,-3]}", "token_ids[2]"},
        {false, "[1]", "JSON object"},
        {false, "{\"token_ids\":[1]}", "'model'"},
        {false, "{\"model\":\"m\",\"model_name\":\"m\",\"token_ids\":[1]}",
         "exclude each other"},
        {false, "{\"model\":\"m\"}", "'token_ids' is needed"},
        {false, "{\"model\":\"m\",\"token_ids\":3}", "not an array"},
        {false, "{\"model\":\"m\",\"token_ids\":[1,-1]}", "token id"},
        {false, "{\"model\":\"m\",\"token_ids\":[4294967296]}", "token id"},
        {false, "{\"model\":\"m\",\"token_ids\":[1.5]}", "token id"},
        {false, "{\"model\":\"m\",\"token_ids\":[\"1\"]}", "token id"},
        {false, "{\"model\":\"m\",\"token_ids\":[1,2,3,4,5]}",
         "than the 4 that"},
        {false, "{\"model\":true,\"token_ids\":[]}", "neither a string"},
        {false, "{\"model\":\"a\\u0000b\",\"token_ids\":[]}", "control"},
        {false, "{\"model\":\"m\",\"token_ids\":[1],\"block_size\":0}",
         "'block_size' is 0"},
        {false, "{\"model\":\"m\",\"token_ids\":[1],\"block_size\":\"4\"}",
         "'block_size' is not a whole number"},
        {false, "{\"model\":\"m\",\"token_ids\":[1],\"cache_salt\":1}",
         "'cache_salt' is not a string"},
        {true, "{\"model\":\"m\",\"token_ids\":[1]}", "'seq_hashes'"},
        {true, "{\"model\":\"m\",\"seq_hashes\":[1],\"cache_salt\":\"s\"}",
         "'cache_salt'"},
        {true, "{\"model\":\"m\",\"block_hash\":[18446744073709551616]}",
         "64-bit"},
        {true, "{\"model\":\"m\",\"block_hash\":[-9223372036854775809]}",
         "64-bit"},
        {true, "{\"model\":\"m\",\"block_hashes\":[1,2,3,4,5]}",
         "than the 4 that"},
    };
    struct bt_index_query q;

    (void)state;
    for (size_t i = 0; i < sizeof(rows_bad) / sizeof(rows_bad[0]); i++) {
        const char *fault =
            read_body(rows_bad[i].body, rows_bad[i].by_hash, 4, &q);

        if (fault == NULL || strstr(fault, rows_bad[i].says) == NULL)
            fail_msg("row %zu: '%s'", i, fault == NULL ? "(none)" : fault);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dynamo_has_ranks_and_tiers),
        cmocka_unit_test(signed_hashes_are_the_same_bits),
        cmocka_unit_test(mooncake_and_salt),
        cmocka_unit_test(mooncake_adapter_and_tenant),
        cmocka_unit_test(mooncake_by_unsigned_hash),
        cmocka_unit_test(nothing_matches),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(faults_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
