/* Every payload of engine-wire.md 1.14 through the decoder into the prefix
 * index: the own keys of its third column appear and go as it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv_index_bed.h"

#define KEY_1234 0xcb38e4d7fb2dca5cu
#define DEVICE   (1u << BT_TIER_DEVICE)
#define HOST     (1u << BT_TIER_HOST)

static uint64_t own_key(uint64_t hash)
{
    uint64_t key = 0;
    (void)bt_prefix_index_own_key(at.index, at.worker, at.rank, hash, &key);
    return key;
}

/* Vectors that store one keyed block on their own: handle and own key. */
static const struct {
    const char *name;
    uint64_t handle, key;
    unsigned tiers;
} stored[] = {
    {"V1", 1001, KEY_1234, DEVICE},
    {"V2", 1001, KEY_1234, DEVICE},
    {"V3", 1001, KEY_1234, DEVICE},
    {"V4", 0x18191a1b1c1d1e1f, KEY_1234, DEVICE},
    {"V5", UINT64_MAX, KEY_1234, DEVICE},
    {"V6", UINT64_MAX, KEY_1234, DEVICE},
    {"M1", 0xdab89baa7b5857c0, KEY_1234, DEVICE},
    {"A1", 0xdab89baa7b5857c0, KEY_1234, DEVICE},
    {"R1", 0xdab89baa7b5857c0, 0x6a3242be068cafec, DEVICE},
    {"G1", 0xaaaaaaaaaaaaaaaa, KEY_1234, DEVICE},
    {"G2", 123, 0xd070ee4e528a4152, DEVICE},
    {"G3", 123, 0xd070ee4e528a4152, DEVICE},
    {"G4", 124, 0xd080063aa7699651, HOST},
};

static void each_store_gives_its_key(void **state)
{
    for (size_t i = 0; i < sizeof stored / sizeof stored[0]; i++) {
        assert_int_equal(bed_setup(state), 0);
        assert_int_equal(bed_feed(stored[i].name), BT_OK);
        if (own_key(stored[i].handle) != stored[i].key ||
            bed_tiers(stored[i].key) != stored[i].tiers ||
            bed_stats().blocks != 1 || at.invalid != 0)
            fail_msg("%s: handle %lx has own key %lx, tiers %x", stored[i].name,
                     stored[i].handle, own_key(stored[i].handle),
                     bed_tiers(stored[i].key));
        (void)bed_down(state);
    }
}

static void each_removal_and_clear_undoes(void **state)
{
    static const char *const pairs[][2] = {
        {"V1", "V7"},  {"V2", "V7"},  {"V3", "V7"},  {"V1", "V8"},
        {"V2", "V8"},  {"V3", "X6"},  {"V4", "M4"},  {"V1", "V9"},
        {"V2", "V9"},  {"V2", "V10"}, {"V3", "V10"}, {"M1", "M2"},
        {"A1", "A2"},  {"M1", "A2"},  {"A1", "M2"},  {"R1", "M2"},
        {"M1", "M3"},  {"G1", "A3"},  {"V5", "X7"},  {"V6", "X7"},
        {"V12", "V9"}, {"V13", "M3"}, {"G4", "V10"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_int_equal(bed_feed(pairs[i][0]), BT_OK);
        if (bed_stats().holdings == 0)
            fail_msg("%s leaves nothing", pairs[i][0]);
        assert_int_equal(bed_feed(pairs[i][1]), BT_OK);
        if (bed_stats().holdings != 0 || bed_stats().blocks != 0)
            fail_msg("%s is held after %s", pairs[i][0], pairs[i][1]);
    }
    assert_int_equal(bed_feed("A4"), BT_OK); /* stores, removes, clears */
    assert_int_equal(at.stats.events, 3);
    assert_int_equal(bed_stats().holdings, 0);
}

static void odd_stores_are_only_counted(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("V12"), BT_OK);
    assert_int_equal(at.invalid, 1);
    assert_int_equal(bed_stats().malformed, 1);
    assert_int_equal(bed_feed("V13"), BT_OK);
    assert_int_equal(bed_feed("X4"), BT_OK);
    assert_int_equal(bed_stats().holdings, 4);
    assert_int_equal(bed_stats().blocks, 0);
    assert_int_equal(bed_feed("L1"), BT_INVALID);
    assert_int_equal(bed_stats().holdings, 4);
}

static void parents_chain_around_unknown_tags(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("V11"), BT_OK);
    assert_int_equal(at.stats.unknown_tags, 1);
    assert_true(own_key(11) == KEY_1234);
    assert_true(own_key(12) == 0x44a2b2379d6d3c3d);
}

static void namespace_is_inherited(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("X1"), BT_OK);
    assert_int_equal(bed_feed("X2"), BT_OK);
    assert_true(own_key(101) == 0x6224eaa093e54698);
    assert_true(own_key(102) == 0xc6eb2220fd1464aa);
    assert_true(own_key(103) == 0x5937faa5b0c08f97);
    assert_int_equal(bed_tiers(0x9806313f650d2b69), 0); /* without the salt */
}

static void an_orphan_is_not_a_root(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("X2"), BT_OK);
    assert_int_equal(bed_stats().unknown_parents, 1);
    assert_int_equal(bed_stats().blocks, 0);
}

static void placeholder_adds_the_host_tier(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("X1"), BT_OK);
    assert_int_equal(bed_feed("X3"), BT_OK);
    assert_int_equal(bed_tiers(0x6224eaa093e54698), DEVICE | HOST);
    assert_int_equal(bed_tiers(0xc6eb2220fd1464aa), DEVICE);
}

static void remaining_copies_are_set(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("X1"), BT_OK);
    assert_int_equal(bed_feed("X1"), BT_OK);
    assert_int_equal(bed_feed("X1"), BT_OK);
    assert_int_equal(bt_prefix_index_copies(at.index, 0, 0, BT_TIER_DEVICE), 6);
    assert_int_equal(bed_feed("X5"), BT_OK); /* 101: 1, 102: 0 */
    assert_int_equal(bed_tiers(0x6224eaa093e54698), DEVICE);
    assert_int_equal(bed_tiers(0xc6eb2220fd1464aa), 0);
    assert_int_equal(bt_prefix_index_copies(at.index, 0, 0, BT_TIER_DEVICE), 1);
}

static void salts_separate_keys(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("G2"), BT_OK);
    assert_int_equal(bed_tiers(0x9581a6bbf9cef45a), 0); /* unsalted */
}

/* The mark in front of a salt is Dynamo's, not the tenant's (2.2). */
static void marked_salt_is_the_same_tenant(void **state)
{
    static const uint64_t hash = 123;
    static const uint32_t tokens[] = {1, 2};
    struct pk_store s = {.hashes = &hash,
                         .hash_count = 1,
                         .tokens = tokens,
                         .token_count = 2,
                         .block_tokens = 2,
                         .salt = "dynamo-cache-salt:tenant-a"};
    (void)state;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_true(own_key(123) == 0xd070ee4e528a4152);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_store_gives_its_key),
        cmocka_unit_test_setup_teardown(each_removal_and_clear_undoes,
                                        bed_setup, bed_down),
        cmocka_unit_test_setup_teardown(odd_stores_are_only_counted, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(parents_chain_around_unknown_tags,
                                        bed_setup, bed_down),
        cmocka_unit_test_setup_teardown(namespace_is_inherited, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(an_orphan_is_not_a_root, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(placeholder_adds_the_host_tier,
                                        bed_setup, bed_down),
        cmocka_unit_test_setup_teardown(remaining_copies_are_set, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(salts_separate_keys, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(marked_salt_is_the_same_tenant,
                                        bed_setup, bed_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
