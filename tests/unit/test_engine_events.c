/* Event payloads against the vectors of engine-wire.md 1.14 (byte for byte),
 * and back through the orchestrator's decoder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "baton/orchestrator/kv_events.h"
#include "events_encode.h"

#define HASH 0xdab89baa7b5857c0ULL

static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};

static void expect_hex(const struct bt_event_batch *batch, double ts,
                       const char *want)
{
    size_t bytes = 0;
    char hex[1024];
    unsigned char *payload = bt_event_batch_payload(batch, ts, 0, &bytes);
    assert_non_null(payload);
    assert_true(bytes * 2 < sizeof(hex));
    for (size_t i = 0; i < bytes; i++) {
        snprintf(hex + i * 2, 3, "%02x", payload[i]);
    }
    assert_string_equal(hex, want);
    free(payload);
}

static void add_m1(struct bt_event_batch *batch)
{
    const uint64_t hash = HASH;
    const struct bt_event_store store = {.hashes = &hash,
                                         .hash_count = 1,
                                         .tokens = tokens,
                                         .token_count = 4,
                                         .block_tokens = 4};
    bt_event_stored(batch, &store);
}

static void stored_vectors(void **state)
{
    (void)state;
    struct bt_event_batch b;
    assert_int_equal(bt_event_batch_init(&b, BT_ENGINE_EVENTS_MAP, false),
                     BT_OK);
    add_m1(&b);
    expect_hex(
        &b, 1789095808.83,
        "93cb41daa8dbe0351eb8918ba474797065ab426c6f636b53746f726564ac626c6f636b"
        "5f68617368657391cfdab89baa7b5857c0b1706172656e745f626c6f636b5f68617368"
        "c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f69"
        "64c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b657973"
        "91c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae6675"
        "6c6c5f617474656e74696f6e00");
    bt_event_batch_fini(&b);
    assert_int_equal(bt_event_batch_init(&b, BT_ENGINE_EVENTS_ARRAY, false),
                     BT_OK);
    add_m1(&b);
    expect_hex(&b, 1789095808.83,
               "93cb41daa8dbe0351eb8919bab426c6f636b53746f72656491cfdab89baa7b5"
               "857c0c0940102030404c0a3475055c091c000ae66756c6c5f617474656e7469"
               "6f6e00");
    bt_event_batch_fini(&b);
}

static void removed_and_cleared_vectors(void **state)
{
    (void)state;
    struct bt_event_batch b;
    assert_int_equal(bt_event_batch_init(&b, BT_ENGINE_EVENTS_MAP, false),
                     BT_OK);
    bt_event_removed(&b, HASH);
    expect_hex(&b, 1.5,
               "93cb3ff80000000000009184a474797065ac426c6f636b52656d6f766564ac6"
               "26c6f636b5f68617368657391cfdab89baa7b5857c0a66d656469756da34750"
               "55a967726f75705f6964780000");
    bt_event_batch_clear(&b);
    bt_event_cleared(&b);
    expect_hex(&b, 1.5,
               "93cb3ff80000000000009181a474797065b0416c6c426c6f636b73436c65617"
               "2656400");
    bt_event_batch_fini(&b);
    assert_int_equal(bt_event_batch_init(&b, BT_ENGINE_EVENTS_ARRAY, false),
                     BT_OK);
    bt_event_removed(&b, HASH);
    expect_hex(&b, 1.5,
               "93cb3ff80000000000009194ac426c6f636b52656d6f76656491cfdab89baa7"
               "b5857c0a34750550000");
    bt_event_batch_clear(&b);
    bt_event_cleared(&b);
    expect_hex(&b, 1.5,
               "93cb3ff80000000000009191b0416c6c426c6f636b73436c656172656400");
    bt_event_batch_fini(&b);
}

/* ---- through the decoder ---- */

static int seen;

static void on_event(void *arg, const struct bt_kv_event *event)
{
    (void)arg;
    switch (seen++) {
    case 0:
        assert_int_equal(event->type, BT_KV_STORED);
        assert_int_equal(event->store.hash_count, 2);
        assert_int_equal(event->store.hashes[1], 12);
        assert_int_equal(event->store.has_parent, 0);
        assert_int_equal(event->store.token_count, 8);
        assert_int_equal(event->store.tokens[7], 8);
        assert_int_equal(event->store.block_tokens, 4);
        assert_int_equal(event->store.lora_bytes, 6);
        assert_memory_equal(event->store.lora, "lora-a", 6);
        assert_int_equal(event->store.salt_bytes, 4);
        assert_memory_equal(event->store.salt, "salt", 4);
        assert_true(event->store.full_attention);
        break;
    case 1:
        assert_int_equal(event->type, BT_KV_STORED);
        assert_int_equal(event->store.has_parent, 1);
        assert_int_equal(event->store.parent, 12);
        assert_int_equal(event->store.salt_bytes, 0);
        break;
    case 2:
        assert_int_equal(event->type, BT_KV_REMOVED);
        assert_int_equal(event->hash_count, 1);
        assert_int_equal(event->hashes[0], 11);
        break;
    default:
        assert_int_equal(event->type, BT_KV_CLEARED);
        break;
    }
}

static void round_trip(enum bt_engine_event_form form, bool hash_bytes)
{
    const uint64_t root[] = {11, 12}, child[] = {13};
    uint64_t hashes[16], mm[16];
    uint32_t ids[64];
    uint16_t per_block[16];
    struct bt_kv_scratch scratch = {hashes, 16,        ids, 64,  mm,
                                    16,     per_block, 16,  NULL};
    struct bt_kv_batch_stats stats;
    struct bt_event_batch b;
    struct bt_event_store store = {.hashes = root,
                                   .hash_count = 2,
                                   .tokens = tokens,
                                   .token_count = 8,
                                   .block_tokens = 4,
                                   .lora = "lora-a",
                                   .lora_id = 1,
                                   .salt = "salt",
                                   .salt_bytes = 4};
    assert_int_equal(bt_event_batch_init(&b, form, hash_bytes), BT_OK);
    bt_event_stored(&b, &store);
    store.hashes = child;
    store.hash_count = 1;
    store.token_count = 4;
    store.has_parent = true;
    store.parent = 12;
    bt_event_stored(&b, &store);
    bt_event_removed(&b, 11);
    bt_event_cleared(&b);
    size_t bytes = 0;
    void *payload = bt_event_batch_payload(&b, 2.0, 0, &bytes);
    seen = 0;
    assert_int_equal(
        bt_kv_batch_decode(payload, bytes, &scratch, &stats, on_event, NULL),
        BT_OK);
    assert_int_equal(seen, 4);
    assert_int_equal(stats.events, 4);
    assert_int_equal(stats.skipped, 0);
    free(payload);
    bt_event_batch_fini(&b);
}

static void decoder_reads_all(void **state)
{
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        round_trip(BT_ENGINE_EVENTS_MAP, bytes);
        round_trip(BT_ENGINE_EVENTS_ARRAY, bytes);
        round_trip(BT_ENGINE_EVENTS_MAP_BATCH, bytes);
    }
}

/* V10 with the rank of V3: its keys and their order. */
static void map_batch_vector(void **state)
{
    (void)state;
    struct bt_event_batch b;
    assert_int_equal(bt_event_batch_init(&b, BT_ENGINE_EVENTS_MAP_BATCH, false),
                     BT_OK);
    bt_event_cleared(&b);
    expect_hex(&b, 1.0,
               "83a27473cb3ff0000000000000a66576656e74739181a474797065b0416c6c"
               "426c6f636b73436c6561726564b2646174615f706172616c6c656c5f72616e"
               "6b00");
    bt_event_batch_fini(&b);
}

/* Only the last 8 bytes are the handle, big-endian, as bin of 32. */
static void bytes_end_with_the_handle(void **state)
{
    (void)state;
    struct bt_event_batch b;
    size_t bytes = 0;
    const unsigned char head[] = {0xc4, 32};
    const unsigned char tail[] = {0xda, 0xb8, 0x9b, 0xaa,
                                  0x7b, 0x58, 0x57, 0xc0};
    assert_int_equal(bt_event_batch_init(&b, BT_ENGINE_EVENTS_ARRAY, true),
                     BT_OK);
    bt_event_removed(&b, HASH);
    unsigned char *payload = bt_event_batch_payload(&b, 1.5, 0, &bytes);
    unsigned char *at = memmem(payload, bytes, head, sizeof(head));
    assert_non_null(at);
    assert_memory_equal(at + 2 + 24, tail, sizeof(tail));
    free(payload);
    bt_event_batch_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_vectors),
        cmocka_unit_test(removed_and_cleared_vectors),
        cmocka_unit_test(decoder_reads_all),
        cmocka_unit_test(map_batch_vector),
        cmocka_unit_test(bytes_end_with_the_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
