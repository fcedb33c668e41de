/* Standard events of Mooncake (engine-wire.md 2.10): own keys on the wire, next
 * to engines' events in one stream. The keys are those of 2.9 (B=4). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv_index_bed.h"

#define KEY_0    0xcb38e4d7fb2dca5cu /* tokens 1..4 */
#define KEY_1    0x44a2b2379d6d3c3du /* 5..8 behind them */
#define KEY_2    0xaea1e67a6c80cf84u /* 9..12 behind those */
#define LORA_A_0 0xebe499ac3e8056dcu /* 1..4 under lora-a */

static const uint32_t one_to_eight[] = {1, 2, 3, 4, 5, 6, 7, 8};

/* What one event says; the fields of 2.10 in their order. */
struct std_event {
    const char *type, *lora, *more_salt, *medium, *object;
    uint64_t hashes[2];
    size_t hash_count, token_count;
    uint64_t parent;
    bool has_parent, aliases;   /* the master's names, hashes signed */
    int block_size, rank, base; /* -1: left out */
};

static void put_hashes(struct pk *p, const struct std_event *e)
{
    pk_str(p, e->aliases ? "block_hashes" : "seq_hashes");
    pk_list(p, e->hash_count);
    for (size_t i = 0; i < e->hash_count; i++)
        if (e->aliases)
            pk_int64(p, (int64_t)e->hashes[i]);
        else
            pk_uint(p, e->hashes[i]);
}

static void put_number(struct pk *p, const char *name, int value)
{
    pk_str(p, name);
    if (value >= 0)
        pk_uint(p, (uint64_t)value);
    else
        pk_nil(p);
}

static void put_event(struct pk *p, const struct std_event *e)
{
    pk_map(p, 11u + (e->object != NULL) + (e->token_count > 0) +
                  (e->hash_count > 0) + e->has_parent);
    pk_str(p, "event_id");
    pk_uint(p, 7);
    pk_str(p, "timestamp");
    pk_uint(p, 1789095808830);
    pk_text(p, e->aliases ? "type" : "event_type", e->type);
    pk_text(p, "model_name", NULL);
    put_number(p, "block_size", e->block_size);
    pk_text(p, "additional_salt", e->more_salt);
    pk_text(p, "lora_name", e->lora);
    pk_text(p, "backend_id", "host-3");
    pk_text(p, "medium", e->medium);
    put_number(p, "dp_rank", e->rank);
    put_number(p, "base_block_idx", e->base);
    if (e->object != NULL)
        pk_text(p, "object_key", e->object);
    if (e->hash_count > 0)
        put_hashes(p, e);
    if (e->has_parent) {
        pk_str(p, "parent_hash");
        pk_uint(p, e->parent);
    }
    if (e->token_count > 0) {
        pk_str(p, "token_ids");
        pk_list(p, e->token_count);
        for (size_t i = 0; i < e->token_count; i++)
            pk_uint(p, one_to_eight[i]);
    }
}

static struct std_event event_of(const char *type)
{
    return (struct std_event){
        .type = type, .medium = "gpu", .block_size = 4, .rank = -1, .base = -1};
}

static void send(const struct std_event *e)
{
    unsigned char bytes[1024];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    put_event(&p, e);
    assert_false(p.full);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
}

static struct bt_kv_event last;
static unsigned seen;

static void keep(void *arg, const struct bt_kv_event *e)
{
    (void)arg;
    last = *e;
    seen++;
}

/* The same, but only decoded. */
static void look(const struct std_event *e)
{
    static unsigned char bytes[1024];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    put_event(&p, e);
    seen = 0;
    assert_int_equal(
        bt_kv_batch_decode(bytes, p.used, &at.scratch, &at.stats, keep, NULL),
        BT_OK);
}

static void fields_of_a_store(void **state)
{
    struct std_event e = event_of("stored");
    (void)state;
    e.hashes[0] = KEY_1;
    e.hashes[1] = KEY_2;
    e.hash_count = 2;
    e.parent = KEY_0;
    e.has_parent = true;
    e.medium = "disk";
    e.rank = 3;
    e.base = 1;
    e.token_count = 8;
    look(&e);
    assert_int_equal(seen, 1);
    assert_int_equal(last.type, BT_KV_STORED);
    assert_int_equal(last.tier, BT_TIER_DISK);
    assert_true(last.has_rank && last.rank == 3);
    assert_true(last.whole && last.local && !last.has_group);
    assert_int_equal(last.spec, BT_KV_SPEC_NONE);
    assert_int_equal(last.store.hash_count, 2);
    assert_true(last.store.own_keys == last.store.hashes);
    assert_true(last.store.own_keys[1] == KEY_2 && last.store.own_ns == 0);
    assert_true(last.store.has_parent && last.store.parent == KEY_0);
    assert_int_equal(last.store.token_count, 8);
    assert_int_equal(last.store.block_tokens, 4);
    assert_int_equal(last.store.full_attention, 1);
    e.token_count = 0;
    look(&e);
    assert_true(last.whole);
    e.token_count = 7;
    look(&e);
    assert_false(last.whole);
    e.rank = -1;
    e.base = 0; /* the first block has no parent, whatever stands there */
    look(&e);
    assert_false(last.has_rank || last.store.has_parent);
}

static void what_is_left_out_is_nothing(void **state)
{
    struct std_event e = event_of("stored");
    (void)state;
    e.hashes[0] = KEY_0;
    e.hash_count = 1;
    e.block_size = -1;
    look(&e);
    assert_int_equal(seen, 1);
    assert_int_equal(last.store.block_tokens, 0);
    assert_int_equal(last.store.token_count, 0);
    assert_true(last.whole && last.store.own_keys[0] == KEY_0);
    e.type = "removed";
    look(&e);
    assert_int_equal(last.type, BT_KV_REMOVED);
    assert_true(last.hash_count == 1 && last.hashes[0] == KEY_0);
    e = event_of("cleared");
    e.medium = NULL;
    look(&e);
    assert_true(last.type == BT_KV_CLEARED && !last.has_tier);
    e.medium = "cpu";
    look(&e);
    assert_true(last.has_tier && last.tier == BT_TIER_HOST);
    e = event_of("moved"); /* not one of the three */
    look(&e);
    assert_int_equal(seen, 0);
    assert_int_equal(at.stats.unknown_tags, 1);
    e = event_of("stored"); /* no hashes at all */
    look(&e);
    assert_int_equal(at.stats.skipped, 1);
}

/* Stores of KEY_0 .. KEY_2 in two tiers; a lookup; removal and clear. */
static void applied_as_they_stand(void **state)
{
    static const uint64_t keys[] = {KEY_0, KEY_1, KEY_2};
    struct std_event e = event_of("stored");
    (void)state;
    e.hashes[0] = KEY_0;
    e.hashes[1] = KEY_1;
    e.hash_count = 2;
    send(&e);
    e.hashes[0] = KEY_2; /* no tokens, parent not sent: known all the same */
    e.hash_count = 1;
    e.medium = "cpu";
    send(&e);
    assert_int_equal(bed_depth(0, keys, 3), 3);
    assert_int_equal(bed_tiers(KEY_2), 1u << BT_TIER_HOST);
    e = event_of("removed");
    e.hashes[0] = KEY_1;
    e.hash_count = 1;
    send(&e);
    assert_int_equal(bed_depth(0, keys, 3), 1);
    e = event_of("cleared");
    e.medium = NULL;
    send(&e);
    assert_int_equal(bed_stats().blocks, 0);
}

/* The master's event of one object. */
static void masters_aliases(void **state)
{
    struct std_event e = event_of("BlockStored");
    (void)state;
    e.aliases = true;
    e.object = "m@1@0@1";
    e.hashes[0] = KEY_0; /* as int64: negative */
    e.hash_count = 1;
    e.block_size = -1;
    e.medium = "cpu";
    send(&e);
    assert_int_equal(bed_tiers(KEY_0), 1u << BT_TIER_HOST);
    e.type = "removed";
    send(&e);
    assert_int_equal(bed_tiers(KEY_0), 0);
    e.type = "stored";
    e.object = NULL;
    send(&e);
    assert_int_equal(bed_tiers(KEY_0), 1u << BT_TIER_HOST);
}

/* The engines' names for the types do not hide whose keys these are. */
static void seq_hashes_are_own_keys(void **state)
{
    unsigned char bytes[256];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    (void)state;
    pk_batch(&p, 1);
    pk_map(&p, 2);
    pk_text(&p, "type", "BlockStored");
    pk_str(&p, "seq_hashes");
    pk_list(&p, 1);
    pk_uint(&p, KEY_1);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
    assert_int_equal(bed_tiers(KEY_1), 1u << BT_TIER_DEVICE);
}

/* A scope that we do not have must not answer for the plain one. */
static void salted_scopes_are_counted(void **state)
{
    struct std_event e = event_of("stored");
    (void)state;
    e.hashes[0] = KEY_0;
    e.hash_count = 1;
    e.more_salt = "blue";
    for (int tokens = 0; tokens < 2; tokens++) {
        e.token_count = tokens ? 4 : 0;
        send(&e);
        assert_int_equal(bed_tiers(KEY_0), 0);
    }
    assert_int_equal(bed_stats().holdings, 1);
    e.more_salt = "";
    send(&e);
    assert_int_equal(bed_tiers(KEY_0), 1u << BT_TIER_DEVICE);
}

/* Under an adapter the tokens decide, not what the wire calls the block. */
static void adapters_are_hashed_anew(void **state)
{
    struct std_event e = event_of("stored");
    (void)state;
    e.hashes[0] = KEY_0;
    e.hash_count = 1;
    e.lora = "lora-a";
    e.base = 0;
    send(&e); /* no tokens */
    assert_int_equal(bed_stats().blocks, 0);
    e.hashes[0] = 77;
    e.token_count = 4;
    send(&e);
    assert_int_equal(bed_tiers(LORA_A_0), 1u << BT_TIER_DEVICE);
    assert_int_equal(bed_tiers(77), 0);
    e.hashes[0] = 78;
    e.more_salt = "blue"; /* a scope of its own */
    send(&e);
    assert_int_equal(bed_stats().blocks, 1);
    e.more_salt = NULL;
    e.hashes[0] = 79;
    e.token_count = 3; /* torn */
    send(&e);
    assert_int_equal(bed_stats().blocks, 1);
}

/* One stream: the engine's own event, a standard one, a bad one, an array. */
static void mixed_in_one_batch(void **state)
{
    static const uint64_t hash = 11, other = 12;
    unsigned char bytes[2048];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    struct pk_store engine = {.hashes = &hash,
                              .hash_count = 1,
                              .tokens = one_to_eight,
                              .token_count = 4,
                              .block_tokens = 4};
    struct std_event e = event_of("stored");
    (void)state;
    e.hashes[0] = KEY_2;
    e.hash_count = 1;
    pk_batch(&p, 5);
    pk_stored(&p, &engine);
    put_event(&p, &e);
    e.hash_count = 0;
    put_event(&p, &e);
    pk_list(&p, 2); /* a tag of the standard in an array: foreign */
    pk_str(&p, "stored");
    pk_nil(&p);
    engine.hashes = &other;
    engine.parent = &hash;
    engine.tokens = one_to_eight + 4;
    pk_stored(&p, &engine);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
    assert_int_equal(at.stats.events, 3);
    assert_int_equal(at.stats.skipped, 1);
    assert_int_equal(at.stats.unknown_tags, 1);
    assert_int_equal(bed_stats().blocks, 3);
    assert_int_equal(bed_tiers(KEY_0) & bed_tiers(KEY_1) & bed_tiers(KEY_2),
                     1u << BT_TIER_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fields_of_a_store, bed_setup, bed_down),
        cmocka_unit_test_setup_teardown(what_is_left_out_is_nothing, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(applied_as_they_stand, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(masters_aliases, bed_setup, bed_down),
        cmocka_unit_test_setup_teardown(seq_hashes_are_own_keys, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(salted_scopes_are_counted, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(adapters_are_hashed_anew, bed_setup,
                                        bed_down),
        cmocka_unit_test_setup_teardown(mixed_in_one_batch, bed_setup,
                                        bed_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
