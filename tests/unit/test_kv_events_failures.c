/* Faults that others shipped in reading KV events (field-failures.md, group
 * (c)), as far as decoder and index bring them out; each test bears the entry's
 * number. Own keys come from engine-wire.md 2.9 where it has them, else from
 * bt_block_local and bt_block_chain, which have vectors of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv_index_bed.h"

#define KEY_0  0xcb38e4d7fb2dca5cu /* B=4: tokens 1..4 */
#define KEY_1  0x44a2b2379d6d3c3du /* 5..8 behind them */
#define DEVICE (1u << BT_TIER_DEVICE)
#define HOST   (1u << BT_TIER_HOST)

static uint32_t tokens[4096]; /* 1, 2, 3 ... */
static uint64_t handles[4096];

static int setup(void **state)
{
    for (uint32_t i = 0; i < 4096; i++) {
        tokens[i] = i + 1;
        handles[i] = 0x1000 + i;
    }
    return bed_setup(state);
}

/* A root store of `blocks` blocks of 4 tokens from tokens[]. */
static struct pk_store root(size_t blocks)
{
    return (struct pk_store){.hashes = handles,
                             .hash_count = blocks,
                             .tokens = tokens,
                             .token_count = 4 * blocks,
                             .block_tokens = 4,
                             .medium = "GPU"};
}

static uint64_t holds(uint32_t worker, uint64_t key)
{
    return (uint64_t)bt_prefix_index_holds(at.index, worker, key);
}

static void c04_clear_is_obeyed_by_rank(void **state)
{
    struct pk_store s = root(3);
    (void)state;
    assert_int_equal(bed_feed("V1"), BT_OK);
    assert_int_equal(bed_feed("V9"), BT_OK);
    assert_int_equal(holds(0, KEY_0), 0);
    assert_int_equal(bed_feed("V3"), BT_OK);
    assert_int_equal(bed_feed("V10"), BT_OK);
    assert_int_equal(holds(0, KEY_0), 0);
    assert_int_equal(bed_feed("V1"), BT_OK);
    at.rank = 1;
    s.tokens = tokens + 100;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_stats().blocks, 4);
    assert_int_equal(bed_feed("M3"), BT_OK); /* rank 1 only */
    assert_int_equal(holds(0, KEY_0), 1);
    assert_int_equal(bed_stats().holdings, 1);
    assert_int_equal(bed_stats().blocks, 1);
}

static void remove_as(int64_t hash, bool is_signed)
{
    unsigned char bytes[64];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    pk_list(&p, 2);
    pk_str(&p, "BlockRemoved");
    pk_list(&p, 1);
    if (is_signed)
        pk_int64(&p, hash);
    else
        pk_uint(&p, (uint64_t)hash);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
}

/* A root store of one block whose hash is a digest. */
static void store_digest(const unsigned char *digest, const uint32_t *block)
{
    unsigned char bytes[256];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    pk_list(&p, 5);
    pk_str(&p, "BlockStored");
    pk_list(&p, 1);
    pk_bin(&p, digest, 32);
    pk_nil(&p);
    pk_list(&p, 4);
    for (size_t i = 0; i < 4; i++)
        pk_uint(&p, block[i]);
    pk_uint(&p, 4);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
}

static void c06_hashes_of_every_form(void **state)
{
    static const char *const forms[] = {"V5", "V6"};
    unsigned char digest[32];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(bed_feed(forms[i % 2]), BT_OK);
        assert_int_equal(holds(0, KEY_0), 1);
        remove_as(-1, i / 2 == 0);
        assert_int_equal(bed_stats().holdings, 0);
    }
    assert_int_equal(bed_feed("V4"), BT_OK);
    remove_as(0x18191a1b1c1d1e1f, false); /* the digest's last 8 bytes */
    assert_int_equal(bed_stats().holdings, 0);
    /* Two digests with the same last 8 bytes: the block that was first stays,
     * the other one is not claimed, and it is counted. */
    memset(digest, 0xaa, sizeof digest);
    store_digest(digest, tokens);
    digest[0] = 0xbb;
    store_digest(digest, tokens + 4);
    assert_int_equal(holds(0, KEY_0), 1);
    assert_int_equal(bed_stats().blocks, 1);
    assert_int_equal(bed_stats().collisions, 1);
}

/* Members in another order, what is optional left out. */
static void store_shuffled(void)
{
    unsigned char bytes[256];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_map(&p, 2); /* the batch too: no rank, events first */
    pk_str(&p, "events");
    pk_list(&p, 1);
    pk_map(&p, 5);
    pk_str(&p, "block_size");
    pk_uint(&p, 4);
    pk_str(&p, "token_ids");
    pk_list(&p, 4);
    for (uint32_t i = 1; i <= 4; i++)
        pk_uint(&p, i);
    pk_text(&p, "a new member", "x");
    pk_str(&p, "block_hashes");
    pk_list(&p, 1);
    pk_uint(&p, 1001);
    pk_text(&p, "type", "BlockStored");
    pk_str(&p, "ts");
    pk_float(&p, 1.0);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
}

static void c07_arrays_and_maps_in_one_stream(void **state)
{
    static const char *const forms[] = {"V1", "V2", "V3"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        at.worker = (uint32_t)i;
        assert_int_equal(bed_feed(forms[i]), BT_OK);
        assert_int_equal(holds(at.worker, KEY_0), 1);
    }
    assert_int_equal(bed_stats().blocks, 1);
    at.worker = 0;
    assert_int_equal(bed_feed("V8"), BT_OK); /* no rank */
    assert_false(at.stats.has_rank);
    assert_int_equal(holds(0, KEY_0), 0);
    store_shuffled();
    assert_false(at.stats.has_rank);
    assert_int_equal(holds(0, KEY_0), 1);
    assert_int_equal(at.stats.events, 1);
    assert_int_equal(at.stats.skipped, 0);
}

static struct bt_kv_event last;

static void keep(void *arg, const struct bt_kv_event *e)
{
    (void)arg;
    last = *e;
}

static void look(const struct pk_store *s)
{
    static unsigned char bytes[1024];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    pk_batch(&p, 1);
    pk_stored(&p, s);
    assert_int_equal(
        bt_kv_batch_decode(bytes, p.used, &at.scratch, &at.stats, keep, NULL),
        BT_OK);
}

/* (1) and (2), removals by group, are the event plane's: here only that it is
 * told the groups. */
static void c08_group_medium_adapter_are_kept(void **state)
{
    struct pk_store s = root(1);
    (void)state;
    s.group = 1 + 1;
    look(&s);
    assert_true(last.has_group && last.group == 1 &&
                last.spec == BT_KV_SPEC_NONE);
    s.kind = "sliding_window";
    look(&s);
    assert_true(last.spec == BT_KV_SPEC_OTHER && !last.store.full_attention);
    s = root(1);
    look(&s);
    assert_false(last.has_group);
    /* (3) */
    assert_int_equal(bed_store(&s), BT_OK);
    s.medium = "CPU";
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_tiers(KEY_0), DEVICE | HOST);
    assert_int_equal(bed_remove(handles, 1, "GPU"), BT_OK);
    assert_int_equal(bed_tiers(KEY_0), HOST);
    assert_int_equal(bed_remove(handles, 1, "CPU"), BT_OK);
    /* (4) */
    s.medium = "GPU";
    s.lora = "lora-a";
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(holds(0, 0xebe499ac3e8056dc), 1);
    s.lora = "lora-b";
    s.hashes = handles + 1;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(holds(0, KEY_0), 0);
    assert_int_equal(bed_stats().blocks, 2);
}

/* Three tiers that cut the same 1,024 tokens differently. */
static void c09_each_tier_has_its_block_size(void **state)
{
    static const uint32_t sizes[] = {256, 4, 1024};
    static const char *const media[] = {"GPU", "CPU", "STORAGE"};
    uint64_t keys[256];
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        size_t count = 1024 / sizes[i];
        struct pk_store s = {.hashes = handles + 1000 * i,
                             .hash_count = count,
                             .tokens = tokens,
                             .token_count = 1024,
                             .block_tokens = sizes[i],
                             .medium = media[i]};
        assert_int_equal(bed_store(&s), BT_OK);
        assert_int_equal(
            bt_block_keys(tokens, 1024, sizes[i], BT_NS_PLAIN, keys, 256),
            count);
        assert_int_equal(bed_depth(0, keys, count), count);
        assert_int_equal(bed_tiers(keys[0]), 1u << i);
        /* a size that does not fit its tokens is never keyed */
        s.hashes = handles + 3000;
        s.hash_count = 1;
        s.token_count = 1000;
        s.tokens = tokens + 2000;
        assert_int_equal(bed_store(&s), BT_OK);
        assert_int_equal(at.invalid, i + 1);
    }
    assert_int_equal(bed_stats().blocks, 4 + 256 + 1);
}

static void c11_bad_payloads_then_a_good_one(void **state)
{
    static unsigned char nested[10000];
    static const unsigned char four_gb[] = {0xdb, 0xff, 0xff, 0xff, 0xff};
    unsigned char bytes[256];
    (void)state;
    size_t n = bed_unhex(bed_vector("V2"), bytes, sizeof bytes);
    memset(nested, 0x91, sizeof nested);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(bed_feed("V12"), BT_OK);
        assert_int_equal(bed_feed("V13"), BT_OK);
        assert_int_equal(bed_payload("", 0), BT_INVALID);
        for (size_t cut = 0; cut < n - 1; cut++) /* inside the event */
            assert_int_equal(bed_payload(bytes, cut), BT_INVALID);
        assert_int_equal(bed_payload(four_gb, sizeof four_gb), BT_INVALID);
        assert_int_equal(bed_payload(nested, sizeof nested), BT_INVALID);
        assert_int_equal(bed_feed("L1"), BT_INVALID);
        assert_int_equal(bed_stats().blocks, 0);
        assert_int_equal(bed_feed("V1"), BT_OK);
        assert_int_equal(holds(0, KEY_0), 1);
        assert_int_equal(bed_feed("V9"), BT_OK);
    }
}

static void c12_unknown_type_spoils_nothing(void **state)
{
    (void)state;
    assert_int_equal(bed_feed("V11"), BT_OK);
    assert_int_equal(at.stats.unknown_tags, 1);
    assert_int_equal(at.stats.skipped, 0);
    assert_int_equal(holds(0, KEY_0), 1);
    assert_int_equal(holds(0, KEY_1), 1);
}

/* The namespaces are those of engine-wire.md 2.9. */
static void c14_adapter_and_salt_do_not_meet(void **state)
{
    static const struct {
        const char *lora, *salt;
        uint64_t ns;
    } cases[] = {
        {"X", NULL, 0x715e1e961e1e0a70},
        {NULL, "X", 0x02baa75b0e5def4b},
        {"b", "a", 0x2a50dbb5b4103098},
        {NULL, "ab", 0xad9eb8f4efd985b4},
    };
    struct pk_store s = root(1);
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        s.lora = cases[i].lora;
        s.salt = cases[i].salt;
        s.hashes = handles + i;
        uint64_t key = bt_block_local(tokens, 4, NULL, 0, cases[i].ns);
        assert_int_equal(holds(0, key), 0);
        assert_int_equal(bed_store(&s), BT_OK);
        assert_int_equal(holds(0, key), 1);
    }
    assert_int_equal(bed_stats().blocks, 4);
    assert_int_equal(holds(0, KEY_0), 0);
}

/* Block 0 is text, 1 an image's placeholders (equal for all images), 2 text. */
static void c15_images_do_not_hit_each_other(void **state)
{
    static const char *const cat[] = {NULL, "cat", NULL};
    static const char *const dog[] = {NULL, "dog", NULL};
    struct pk_store s = root(3);
    uint64_t keys[2][3];
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const char *name = i == 0 ? "cat" : "dog";
        uint64_t image = bt_mm_hash(name, 3);
        keys[i][0] = KEY_0;
        keys[i][1] = bt_block_chain(
            KEY_0, bt_block_local(tokens + 4, 4, &image, 1, BT_NS_PLAIN));
        keys[i][2] = bt_block_chain(
            keys[i][1], bt_block_local(tokens + 8, 4, NULL, 0, BT_NS_PLAIN));
    }
    s.images = cat;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_depth(0, keys[0], 3), 3);
    assert_int_equal(bed_depth(0, keys[1], 3), 1); /* only the text before */
    at.worker = 1;
    s.images = dog;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_depth(1, keys[1], 3), 3);
    assert_int_equal(bed_depth(1, keys[0], 3), 1);
    /* An engine that does not say which image it was: no image is hit. */
    at.worker = 2;
    s.images = NULL;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_depth(2, keys[0], 3), 1);
    assert_int_equal(bed_depth(2, keys[1], 3), 1);
}

/* Prompt embeddings: the store's blocks are known by nothing but their hash. */
static void c15_embeddings_are_unknown(void **state)
{
    unsigned char bytes[256];
    struct pk p = {.at = bytes, .max = sizeof bytes};
    (void)state;
    pk_batch(&p, 1);
    pk_list(&p, 9);
    pk_str(&p, "BlockStored");
    pk_hashes(&p, handles, 1);
    pk_nil(&p);
    pk_list(&p, 4);
    for (uint32_t i = 1; i <= 4; i++)
        pk_uint(&p, i);
    pk_uint(&p, 4);
    pk_nil(&p);
    pk_str(&p, "GPU");
    pk_nil(&p);
    pk_list(&p, 1);
    pk_list(&p, 1);
    pk_bin(&p, "0123456789abcdef", 16);
    assert_int_equal(bed_payload(bytes, p.used), BT_OK);
    assert_int_equal(bed_stats().holdings, 1);
    assert_int_equal(bed_stats().blocks, 0);
}

/* Between the removals a lookup stops at the hole; 3 and 4 stay until their own
 * removals come. */
static void c16_children_outlive_their_parent(void **state)
{
    struct pk_store s = root(4);
    uint64_t keys[4];
    (void)state;
    assert_int_equal(bt_block_keys(tokens, 16, 4, BT_NS_PLAIN, keys, 4), 4);
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_depth(0, keys, 4), 4);
    assert_int_equal(bed_remove(handles + 1, 1, "GPU"), BT_OK);
    assert_int_equal(bed_depth(0, keys, 4), 1);
    assert_true(holds(0, keys[2]) && holds(0, keys[3]));
    assert_int_equal(bed_remove(handles + 3, 1, "GPU"), BT_OK);
    assert_int_equal(bed_remove(handles + 2, 1, "GPU"), BT_OK);
    s.hashes = handles + 1;
    s.hash_count = 1;
    s.parent = handles;
    s.tokens = tokens + 4;
    s.token_count = 4;
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(bed_depth(0, keys, 4), 2);
    assert_false(holds(0, keys[2]) || holds(0, keys[3]));
    assert_int_equal(bed_stats().unknown_removes, 0);
    assert_int_equal(at.invalid, 0);
}

/* One engine counts up, one has 64-bit noise, one signed numbers. */
static void c18_engines_hash_as_they_like(void **state)
{
    struct pk_store s = root(8);
    uint64_t keys[8], own[8];
    (void)state;
    assert_int_equal(bt_block_keys(tokens, 32, 4, BT_NS_PLAIN, keys, 8), 8);
    for (uint32_t w = 0; w < 3; w++) {
        at.worker = w;
        for (uint64_t i = 0; i < 8; i++)
            own[i] = w == 0   ? i + 1
                     : w == 1 ? (i + 1) * 0x9e3779b97f4a7c15u
                              : 0 - (i + 1);
        s.hashes = own;
        assert_int_equal(bed_store(&s), BT_OK);
        assert_int_equal(bed_depth(w, keys, 8), 8);
    }
    assert_int_equal(bed_stats().blocks, 8);
    assert_int_equal(bed_remove(own + 7, 1, "GPU"), BT_OK);
    assert_int_equal(bed_depth(2, keys, 8), 7);
    assert_int_equal(bed_depth(0, keys, 8), 8);
}

#define MANY 100000u

/* page_size 1 and one token repeated: as many blocks as tokens, each with its
 * own key because it names the whole prefix. */
static void c19_blocks_of_one_token(void **state)
{
    uint32_t *same = calloc(MANY, sizeof *same);
    uint64_t *hashes = calloc(MANY, sizeof *hashes);
    uint64_t *keys = calloc(MANY, sizeof *keys);
    (void)state;
    assert_non_null(same);
    assert_non_null(hashes);
    assert_non_null(keys);
    for (uint32_t i = 0; i < MANY; i++) {
        same[i] = 7;
        hashes[i] = 1u << 20 | i;
    }
    struct pk_store s = {.hashes = hashes,
                         .hash_count = MANY,
                         .tokens = same,
                         .token_count = MANY,
                         .block_tokens = 1};
    assert_int_equal(bed_up(1u << 17), 0);
    assert_int_equal(bed_store(&s), BT_OK);
    assert_int_equal(at.stats.events, 1);
    assert_int_equal(bed_stats().blocks, MANY);
    assert_int_equal(bt_block_keys(same, MANY, 1, BT_NS_PLAIN, keys, MANY),
                     MANY);
    assert_int_equal(bed_depth(0, keys, MANY), MANY);
    (void)bed_down(state);
    free(same);
    free(hashes);
    free(keys);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, bed_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(c04_clear_is_obeyed_by_rank),
        CASE(c06_hashes_of_every_form),
        CASE(c07_arrays_and_maps_in_one_stream),
        CASE(c08_group_medium_adapter_are_kept),
        CASE(c09_each_tier_has_its_block_size),
        CASE(c11_bad_payloads_then_a_good_one),
        CASE(c12_unknown_type_spoils_nothing),
        CASE(c14_adapter_and_salt_do_not_meet),
        CASE(c15_images_do_not_hit_each_other),
        CASE(c15_embeddings_are_unknown),
        CASE(c16_children_outlive_their_parent),
        CASE(c18_engines_hash_as_they_like),
        cmocka_unit_test(c19_blocks_of_one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
