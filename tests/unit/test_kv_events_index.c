/* Payloads from the wire through the decoder into the prefix index: the own
 * keys of engine-wire.md 1.14 appear and go as its third column says
 * (field-failures.md C06, C07, C11, C12). */
#include "baton/orchestrator/kv_events.h"
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test_kv_events_vectors.h"

static void *memory;
static struct bt_prefix_index *index_;

static int setup(void **state)
{
    const struct bt_prefix_index_limits limits = {
        .workers_max = 2, .blocks_max = 64, .holdings_max = 64};
    struct bt_arena arena;
    size_t bytes = bt_prefix_index_bytes(&limits);
    (void)state;
    memory = calloc(1, bytes);
    if (memory == NULL)
        return -1;
    bt_arena_init(&arena, memory, bytes);
    index_ = bt_prefix_index_init(&arena, &limits);
    return index_ != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(memory);
    return 0;
}

static void apply(void *arg, const struct bt_kv_event *e)
{
    (void)arg;
    if (e->type == BT_KV_STORED)
        (void)bt_prefix_index_store(index_, 0, 0, &e->store);
    else if (e->type == BT_KV_REMOVED)
        bt_prefix_index_remove(index_, 0, 0, e->hashes, e->hash_count, e->tier);
    else
        bt_prefix_index_clear(index_, 0, 0);
}

static void feed(const char *name)
{
    static uint32_t remaining[64];
    static uint64_t hashes[64], mm[64];
    static uint32_t tokens[256];
    static uint16_t mm_per_block[64];
    static unsigned char bytes[1024];
    struct bt_kv_scratch s = {hashes, 64,           tokens, 256,      mm,
                              64,     mm_per_block, 64,     remaining};
    struct bt_kv_batch_stats stats;
    const char *hex = NULL;
    for (size_t i = 0; i < sizeof kv_vectors / sizeof kv_vectors[0]; i++)
        if (strcmp(kv_vectors[i].name, name) == 0)
            hex = kv_vectors[i].hex;
    assert_non_null(hex);
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    assert_int_equal(bt_kv_batch_decode(bytes, n, &s, &stats, apply, NULL),
                     BT_OK);
}

static int holds(uint64_t key)
{
    return bt_prefix_index_holds(index_, 0, key) != 0;
}

#define KEY_1234 0xcb38e4d7fb2dca5cu

static void each_form_stores_and_removes(void **state)
{
    static const char *const pairs[][2] = {
        {"V1", "V7"},  {"V2", "V8"}, {"V3", "X6"}, {"V4", "M4"}, {"V1", "V9"},
        {"V2", "V10"}, {"M1", "M2"}, {"A1", "A2"}, {"M1", "A2"}, {"A1", "M2"},
        {"M1", "M3"},  {"G1", "A3"}, {"V5", "X7"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        feed(pairs[i][0]);
        if (!holds(KEY_1234))
            fail_msg("%s is not held", pairs[i][0]);
        feed(pairs[i][1]);
        if (holds(KEY_1234))
            fail_msg("%s is held after %s", pairs[i][0], pairs[i][1]);
    }
}

static void unknown_tag_spoils_nothing(void **state)
{
    (void)state;
    feed("V12");
    feed("V13");
    feed("V11");
    assert_true(holds(KEY_1234));
    assert_true(holds(0x44a2b2379d6d3c3d));
    assert_int_equal(bt_prefix_index_worker_blocks(index_, 0), 2);
}

static void namespace_is_inherited(void **state)
{
    (void)state;
    feed("X1");
    feed("X2");
    assert_true(holds(0x6224eaa093e54698));
    assert_true(holds(0xc6eb2220fd1464aa));
    assert_true(holds(0x5937faa5b0c08f97));
    assert_false(holds(0x9806313f650d2b69));
    feed("X4");
    assert_int_equal(bt_prefix_index_worker_blocks(index_, 0), 3);
    feed("X5"); /* a copy of 101 remains, 102 goes */
    assert_true(holds(0x6224eaa093e54698));
    assert_false(holds(0xc6eb2220fd1464aa));
}

static void salts_separate_keys(void **state)
{
    (void)state;
    feed("G2");
    assert_true(holds(0xd070ee4e528a4152));
    assert_false(holds(0x9581a6bbf9cef45a));
}

/* G4: [[1,2],[2,3]] are the tokens 1, 2, 3, one window of 3, in host memory.
 * V12's token count is wrong, and it is no Eagle store: no own key. */
static void eagle_pairs_make_windows(void **state)
{
    struct bt_prefix_index_stats stats;
    (void)state;
    feed("G4");
    bt_prefix_index_stats_get(index_, &stats);
    assert_int_equal(stats.malformed, 0);
    assert_int_equal(bt_prefix_index_tiers(index_, 0, 0xd080063aa7699651),
                     1u << BT_TIER_HOST);
    feed("V12");
    bt_prefix_index_stats_get(index_, &stats);
    assert_int_equal(stats.malformed, 1);
    assert_int_equal(bt_prefix_index_worker_blocks(index_, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_form_stores_and_removes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(unknown_tag_spoils_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(namespace_is_inherited, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(salts_separate_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(eagle_pairs_make_windows, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
