/* KV event decoder: every vector of engine-wire.md 1.14 against the content
 * and own key that the reference states, and events that must be refused. */
#include "baton/orchestrator/kv_events.h"
#include "baton/planner/block_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test_kv_events_vectors.h"

static uint32_t remaining[256];
static uint64_t hashes[256], mm[64];
static uint32_t tokens[4096];
static uint16_t mm_per_block[256];

static struct bt_kv_scratch scratch_full(void)
{
    struct bt_kv_scratch s = {hashes, 256,          tokens, 4096,     mm,
                              64,     mm_per_block, 256,    remaining};
    return s;
}

struct log {
    char text[4096];
    size_t used;
    uint64_t keys[16]; /* own keys of stores, in order */
    size_t key_count;
    uint64_t ns, parent_key; /* carried from one payload to the next */
};

static void put(struct log *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void put(struct log *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n =
        vsnprintf(l->text + l->used, sizeof l->text - l->used, format, args);
    va_end(args);
    assert_true(n >= 0 && (size_t)n < sizeof l->text - l->used);
    l->used += (size_t)n;
}

static void put_hashes(struct log *l, const uint64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(l, "%s%lx", i > 0 ? "," : "", v[i]);
}

/* Own keys as section 2.5 makes them; Eagle windows are one token longer. */
static void keys_add(struct log *l, const struct bt_kv_store *s)
{
    size_t b = s->block_tokens;
    size_t wide = s->token_count == s->hash_count * b + 1;
    const uint64_t *images = s->mm;
    if (!s->full_attention || s->own_keys != NULL || b == 0 ||
        (!wide && s->token_count != s->hash_count * b))
        return;
    if (!s->has_parent)
        l->ns = bt_ns_seed(s->lora, s->lora_bytes, s->salt, s->salt_bytes);
    for (size_t i = 0; i < s->hash_count; i++) {
        size_t count = s->mm != NULL ? s->mm_per_block[i] : 0;
        uint64_t key =
            bt_block_local(s->tokens + i * b, b + wide, images, count, l->ns);
        if (s->has_parent || i > 0)
            key = bt_block_chain(l->parent_key, key);
        images = images != NULL ? images + count : NULL;
        l->keys[l->key_count++] = l->parent_key = key;
    }
}

static void put_store(struct log *l, const struct bt_kv_store *s)
{
    put(l, "S ");
    put_hashes(l, s->hashes, s->hash_count);
    if (s->has_parent)
        put(l, " <%lx", s->parent);
    put(l, " [");
    for (size_t i = 0; i < s->token_count; i++)
        put(l, "%s%u", i > 0 ? "," : "", s->tokens[i]);
    put(l, "]/%u", s->block_tokens);
    if (s->lora != NULL)
        put(l, " lora=%.*s", (int)s->lora_bytes, s->lora);
    if (s->salt != NULL)
        put(l, " salt=%.*s", (int)s->salt_bytes, s->salt);
    const uint64_t *images = s->mm;
    for (size_t i = 0; s->mm != NULL && i < s->hash_count; i++) {
        put(l, i > 0 ? "|" : " mm=");
        put_hashes(l, images, s->mm_per_block[i]);
        images += s->mm_per_block[i];
    }
    if (s->own_keys != NULL) {
        put(l, " own=");
        put_hashes(l, s->own_keys, s->hash_count);
    }
    if (!s->full_attention)
        put(l, " unkeyed");
}

static void put_removal(struct log *l, const struct bt_kv_event *e)
{
    put(l, "R ");
    for (size_t i = 0; i < e->hash_count; i++) {
        put(l, "%s%lx", i > 0 ? "," : "", e->hashes[i]);
        if (e->remaining != NULL)
            put(l, ":%u", e->remaining[i]);
    }
}

static void note(void *arg, const struct bt_kv_event *e)
{
    static const char *const tier_names[] = {"", " host", " disk", " external"};
    static const char *const spec_names[] = {"", " full", " other"};
    struct log *l = arg;
    if (l->used > 0)
        put(l, "; ");
    switch (e->type) {
    case BT_KV_STORED:
        assert_int_equal(e->tier, e->store.tier);
        put_store(l, &e->store);
        put(l, "%s%s", spec_names[e->spec], e->whole ? "" : " torn");
        keys_add(l, &e->store);
        break;
    case BT_KV_REMOVED:
        put_removal(l, e);
        break;
    case BT_KV_CLEARED:
        put(l, "C");
        break;
    }
    put(l, "%s", tier_names[e->tier]);
    if (e->has_group)
        put(l, " g%u", e->group);
    if (e->has_rank)
        put(l, " rank=%ld", e->rank);
    if (!e->local)
        put(l, " remote");
    if (e->type == BT_KV_CLEARED && e->has_tier)
        put(l, " tier");
}

static size_t unhex(const char *hex, unsigned char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return n;
}

static const char *vector(const char *name)
{
    for (size_t i = 0; i < sizeof kv_vectors / sizeof kv_vectors[0]; i++)
        if (strcmp(kv_vectors[i].name, name) == 0)
            return kv_vectors[i].hex;
    fail_msg("no vector %s", name);
    return NULL;
}

static enum bt_status decode(const char *hex, struct log *l,
                             struct bt_kv_batch_stats *stats)
{
    static unsigned char bytes[16384];
    struct bt_kv_scratch s = scratch_full();
    l->used = l->key_count = 0;
    l->text[0] = '\0';
    size_t n = unhex(hex, bytes);
    unsigned char *exact = malloc(n > 0 ? n : 1); /* for the sanitizer */
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    enum bt_status status = bt_kv_batch_decode(exact, n, &s, stats, note, l);
    free(exact);
    return status;
}

#define V1_TEXT "S 3e9 [1,2,3,4]/4"
#define IMAGE   "123456789abcdef"
#define M1_HASH "dab89baa7b5857c0"

struct expected {
    const char *name, *text;
    uint64_t events, skipped, unknown;
    int rank; /* -1: none */
    uint64_t keys[2];
};

static const struct expected expected[] = {
    {"V1", V1_TEXT, 1, 0, 0, 0, {0xcb38e4d7fb2dca5c}},
    {"V2", V1_TEXT, 1, 0, 0, 0, {0xcb38e4d7fb2dca5c}},
    {"V3", V1_TEXT, 1, 0, 0, 0, {0xcb38e4d7fb2dca5c}},
    {"V4", "S 18191a1b1c1d1e1f [1,2,3,4]/4", 1, 0, 0, 0, {0xcb38e4d7fb2dca5c}},
    {"V5", "S ffffffffffffffff [1,2,3,4]/4", 1, 0, 0, 0, {0xcb38e4d7fb2dca5c}},
    {"V6", "S ffffffffffffffff [1,2,3,4]/4", 1, 0, 0, 0, {0xcb38e4d7fb2dca5c}},
    {"V7", "R 3e9", 1, 0, 0, 0, {0}},
    {"V8", "R 3e9", 1, 0, 0, -1, {0}},
    {"V9", "C", 1, 0, 0, 0, {0}},
    {"V10", "C", 1, 0, 0, -1, {0}},
    {"V11",
     "S b [1,2,3,4]/4; S c <b [5,6,7,8]/4",
     2,
     0,
     1,
     0,
     {0xcb38e4d7fb2dca5c, 0x44a2b2379d6d3c3d}},
    {"V12", "S 15,16 [1,2,3,4,5]/4 torn", 1, 0, 0, 0, {0}},
    {"V13", "S 1f []/0", 1, 0, 0, 0, {0}},
    {"M1",
     "S " M1_HASH " [1,2,3,4]/4 full g0",
     1,
     0,
     0,
     0,
     {0xcb38e4d7fb2dca5c}},
    {"A1",
     "S " M1_HASH " [1,2,3,4]/4 full g0",
     1,
     0,
     0,
     0,
     {0xcb38e4d7fb2dca5c}},
    {"M2", "R " M1_HASH " g0", 1, 0, 0, 0, {0}},
    {"A2", "R " M1_HASH " g0", 1, 0, 0, 0, {0}},
    {"M3", "C", 1, 0, 0, 0, {0}},
    {"A3", "C", 1, 0, 0, 0, {0}},
    {"M4", "R 18191a1b1c1d1e1f", 1, 0, 0, 0, {0}},
    {"A4",
     "S fffffffffffffffb [1,2]/2; R fffffffffffffffb; C",
     3,
     0,
     0,
     -1,
     {0}},
    {"R1",
     "S " M1_HASH " [151644,872,198,9064,374,279,6722,315,5616,30,151645,198,"
     "151644,77091,198,151667]/16 full g0",
     1,
     0,
     0,
     0,
     {0x6a3242be068cafec}},
    {"X1",
     "S 65,66 [1,2,3,4,5,6,7,8]/4 lora=lora-a salt=salt mm=" IMAGE "|" IMAGE
     " full g0",
     1,
     0,
     0,
     0,
     {0x6224eaa093e54698, 0xc6eb2220fd1464aa}},
    {"X2",
     "S 67 <66 [9,10,11,12]/4 lora=lora-a full g0",
     1,
     0,
     0,
     0,
     {0x5937faa5b0c08f97}},
    {"X3", "S 65 []/0 host g0", 1, 0, 0, 0, {0}},
    {"X4",
     "S ca <c8 [1,2,3,4,5,6,7,8]/4 unkeyed other torn g1",
     1,
     0,
     0,
     0,
     {0}},
    {"X5", "R 65:1,66:0 g0", 1, 0, 0, 0, {0}},
    {"X6", "R 3e9", 1, 0, 0, 0, {0}},
    {"X7", "C", 1, 0, 0, -1, {0}},
    {"G1", "S aaaaaaaaaaaaaaaa [1,2,3,4]/4", 1, 0, 0, -1, {0xcb38e4d7fb2dca5c}},
    {"G2", "S 7b [1,2]/2 salt=tenant-a", 1, 0, 0, -1, {0xd070ee4e528a4152}},
    {"G3", "S 7b [1,2]/2 salt=tenant-a", 1, 0, 0, 1, {0xd070ee4e528a4152}},
    {"G4", "S 7c [1,2,3]/2 host", 1, 0, 0, 0, {0xd080063aa7699651}},
};

static void compare(const struct expected *e, const struct log *l,
                    const struct bt_kv_batch_stats *s)
{
    if (strcmp(l->text, e->text) != 0)
        fail_msg("%s: %s, not %s", e->name, l->text, e->text);
    assert_int_equal(s->events, e->events);
    assert_int_equal(s->skipped, e->skipped);
    assert_int_equal(s->unknown_tags, e->unknown);
    assert_int_equal(s->has_rank, e->rank >= 0);
    if (e->rank >= 0)
        assert_int_equal(s->rank, e->rank);
    for (size_t i = 0; i < 2 && e->keys[i] != 0; i++)
        if (l->key_count <= i || l->keys[i] != e->keys[i])
            fail_msg("%s: own key %lx, not %lx", e->name, l->keys[i],
                     e->keys[i]);
}

static void vectors(void **state)
{
    static struct log l; /* X2 needs the namespace and key of X1 */
    struct bt_kv_batch_stats s;
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_int_equal(decode(vector(expected[i].name), &l, &s), BT_OK);
        compare(&expected[i], &l, &s);
    }
    assert_int_equal(decode(vector("M1"), &l, &s), BT_OK);
    assert_true(s.ts > 1789095808.82 && s.ts < 1789095808.84);
    assert_int_equal(sizeof kv_vectors / sizeof kv_vectors[0],
                     sizeof expected / sizeof expected[0] + 1);
}

static void wrong_parent_namespace_is_another_key(void **state)
{
    static struct log l;
    struct bt_kv_batch_stats s;
    (void)state;
    assert_int_equal(decode(vector("X1"), &l, &s), BT_OK);
    l.ns = bt_ns_seed("lora-a", 6, NULL, 0); /* salt not inherited */
    assert_int_equal(decode(vector("X2"), &l, &s), BT_OK);
    assert_true(l.keys[0] == 0x9806313f650d2b69);
}

static void not_a_batch(void **state)
{
    static const char *const bad[] = {
        "",
        "c0",
        "01",
        "90",
        "91cb3ff0000000000000",
        "dbffffffff",
        "ddffffffff",
        "dfffffffff",
        "c6ffffffff00",
        "92c090",                     /* ts nil */
        "92a1789000",                 /* ts a string */
        "92cb3ff0000000000000c0",     /* events nil */
        "92cb3ff000000000000080",     /* events a map */
        "81a27473cb3ff0000000000000", /* no events */
        "c1",
        "92cb3ff0000000000000ddffffffff00",
        "93cb3ff00000000000009000c0", /* bytes left over */
    };
    static struct log l;
    struct bt_kv_batch_stats s;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (decode(bad[i], &l, &s) != BT_INVALID || l.used > 0)
            fail_msg("%s: %s", bad[i], l.text);
        assert_int_equal(s.events, 0);
    }
    assert_int_equal(decode(vector("L1"), &l, &s), BT_INVALID);
    assert_int_equal(l.used, 0);
    assert_int_equal(decode(vector("V1"), &l, &s), BT_OK);
}

static void deep_nesting(void **state)
{
    static char hex[20002];
    static struct log l;
    struct bt_kv_batch_stats s;
    (void)state;
    for (size_t i = 0; i < 10000; i++)
        memcpy(hex + 2 * i, "91", 3);
    assert_int_equal(decode(hex, &l, &s), BT_INVALID);
    /* one event too deep, the next one good */
    (void)snprintf(hex, sizeof hex, "92cb3ff000000000000092");
    for (size_t i = 0; i < 20; i++)
        strncat(hex, "91", 3);
    strncat(hex, "c0", 3);
    strncat(hex, "92ac426c6f636b52656d6f7665649101", 64);
    assert_int_equal(decode(hex, &l, &s), BT_OK);
    assert_string_equal(l.text, "R 1");
    assert_int_equal(s.skipped, 1);
}

static void every_truncation_is_invalid(void **state)
{
    static struct log l;
    static char hex[2048];
    struct bt_kv_batch_stats s;
    (void)state;
    for (size_t i = 0; i < sizeof kv_vectors / sizeof kv_vectors[0]; i++) {
        size_t n = strlen(kv_vectors[i].hex);
        for (size_t cut = 0; cut < n; cut += 2) {
            memcpy(hex, kv_vectors[i].hex, cut);
            hex[cut] = '\0';
            assert_int_equal(decode(hex, &l, &s), BT_INVALID);
        }
    }
}

static void before_the_cut_is_delivered(void **state)
{
    static struct log l;
    static char hex[2048];
    struct bt_kv_batch_stats s;
    (void)state;
    (void)snprintf(hex, sizeof hex, "%s", vector("V11"));
    hex[strlen(hex) - 4] = '\0';
    assert_int_equal(decode(hex, &l, &s), BT_INVALID);
    assert_string_equal(l.text, "S b [1,2,3,4]/4");
    assert_int_equal(s.unknown_tags, 1);
}

static void odd_batches(void **state)
{
    static struct log l;
    struct bt_kv_batch_stats s;
    (void)state;
    /* ts an integer, a member too many, a rank that is no number */
    assert_int_equal(
        decode("94039192ac426c6f636b52656d6f7665649107a178c0", &l, &s), BT_OK);
    assert_string_equal(l.text, "R 7");
    assert_true(s.ts > 2.9 && s.ts < 3.1 && !s.has_rank);
    assert_int_equal(
        decode("94039192ac426c6f636b52656d6f766564910702d9", &l, &s),
        BT_INVALID);
    /* SGLang's name of the rank */
    assert_int_equal(decode("83a2747303a66576656e747390ac6174746e5f64705f72616e"
                            "6b05",
                            &l, &s),
                     BT_OK);
    assert_true(s.has_rank && s.rank == 5);
}

/* One event between two good removals: what is delivered of it, and stats. */
static void single(const char *event, const char *text, uint64_t skipped,
                   uint64_t unknown)
{
    static struct log l;
    static char hex[8192];
    static char want[4096];
    struct bt_kv_batch_stats s;
    (void)snprintf(hex, sizeof hex,
                   "92cb3ff000000000000093"
                   "92ac426c6f636b52656d6f7665649101%s"
                   "92ac426c6f636b52656d6f7665649102",
                   event);
    (void)snprintf(want, sizeof want, "R 1; %s%sR 2", text,
                   text[0] != '\0' ? "; " : "");
    if (decode(hex, &l, &s) != BT_OK || strcmp(l.text, want) != 0)
        fail_msg("%s: %s, not %s", event, l.text, want);
    assert_int_equal(s.skipped, skipped);
    assert_int_equal(s.unknown_tags, unknown);
}

#define STORED "ab426c6f636b53746f726564"

static void bad_events_are_skipped(void **state)
{
    static const char *const bad[] = {
        "c0",                                       /* no array, no map */
        "90",                                       /* no tag */
        "9105",                                     /* tag a number */
        "80",                                       /* map without type */
        "91" STORED,                                /* only the tag */
        "94" STORED "9101c090",                     /* no block size */
        "95" STORED "c0c09004",                     /* hashes nil */
        "95" STORED "91a101c09004",                 /* hash a string */
        "95" STORED "91c40101c09004",               /* digest of 1 byte */
        "95" STORED "91cb3ff0000000000000c09004",   /* hash a float */
        "95" STORED "920101c0940102030404",         /* a hash twice */
        "95" STORED "910101910104",                 /* equal to the parent */
        "95" STORED "9101a178910104",               /* parent a string */
        "95" STORED "9101c091ff04",                 /* token -1 */
        "95" STORED "9101c091cf000000010000000004", /* token 2^32 */
        "95" STORED "9101c091c004",                 /* token nil */
        "95" STORED "9101c00104",                   /* tokens a number */
        "95" STORED "9101c0910fff",                 /* block size -1 */
        "95" STORED "9101c0910fc0",                 /* block size nil */
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        single(bad[i], "", 1, 0);
    /* group, salt, extra_keys of another type */
    single("94ac426c6f636b52656d6f7665649109c0ff", "", 1, 0);
    single("98" STORED "9101c092010202c0a347505581aa63616368655f73616c7405", "",
           1, 0);
    single("86a474797065" STORED "ac626c6f636b5f6861736865739101"
           "a9746f6b656e5f69647392"
           "0102aa626c6f636b5f73697a6502"
           "aa65787472615f6b657973a178a8"
           "6c6f63616c697479c0",
           "", 1, 0);
    /* Eagle pairs that do not overlap; a pair, then a token; the same token
     * first and then a pair */
    single("95" STORED "9101c09201920102"
           "02",
           "", 1, 0);
    single("95" STORED "9101c09292010292030402", "", 1, 0);
    single("95" STORED "9101c0929201020302", "", 1, 0);
}

static void odd_events_are_taken(void **state)
{
    (void)state;
    single("93a6467574757265c0c0", "", 0, 1);
    single("81a474797065a6467574757265", "", 0, 1);
    /* no hashes: fine, nothing to deliver */
    single("95" STORED "90c0910104", "", 0, 0);
    single("92ac426c6f636b52656d6f76656490", "", 0, 0);
    /* key order, unknown and foreign keys in a map */
    single("84ac626c6f636b5f68617368657391"
           "09"
           "05c0a17881a17901a474797065"
           "ac426c6f636b52656d6f766564",
           "R 9", 0, 0);
    /* removal: medium, group, locality by position */
    single("95ac426c6f636b52656d6f7665649109a343505502a652454d4f5445",
           "R 9 host g2 remote", 0, 0);
    /* clear of one tier only */
    single("92b0416c6c426c6f636b73436c6561726564a44449534b", "C disk tier", 0,
           0);
    single("92b0416c6c426c6f636b73436c6561726564a0", "C", 0, 0);
    single("82a474797065b0416c6c426c6f636b73436c6561726564a66d656469756da44449"
           "534b",
           "C disk tier", 0, 0);
    /* a negative hash in each width is one handle */
    single("92ac426c6f636b52656d6f76656495fbd0fbd1fffbd2fffffffbd3fffffffffffff"
           "ffb",
           "R fffffffffffffffb,fffffffffffffffb,fffffffffffffffb,"
           "fffffffffffffffb,fffffffffffffffb",
           0, 0);
    /* members of types that nobody sends are passed over */
    single("86a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391"
           "07a161c3a162ca3f800000a163c70201aaaaa164d601aaaaaaaa",
           "R 7", 0, 0);
    /* 64-bit token widths, tokens at the limit */
    single("95" STORED "9101c092cf00000000ffffffffd30000000000000001"
           "02",
           "S 1 [4294967295,1]/2", 0, 0);
}

#define HEAD "9101c092010202c0a3475055" /* ... lora_id, medium */
#define CHILD                                                                  \
    "910103"                                                                   \
    "92010202c0a3475055"
#define HEX64                                                                  \
    "d940"                                                                     \
    "30313233343536373839616263646566"                                         \
    "3030313132323333343435353636373738383939616162626363646465656666"         \
    "66656463626139383736353433323130"

/* 63 digits */
#define NOT_HEX                                                                \
    "303132333435363738396162636465663030313132323333343435353636373738383939" \
    "616162626363646465656666666564636261393837363534333231"
#define NOT_HEX_TEXT                                                           \
    "0123456789abcdef00112233445566778899aabbccddeefffedcba987654321"

static void extra_keys(void **state)
{
    (void)state;
    /* salt only */
    single("99" STORED HEAD "c09191a173", "S 1 [1,2]/2 salt=s", 0, 0);
    /* the adapter's name is skipped once; the second is the salt */
    single("99" STORED HEAD "a1789192a178a178", "S 1 [1,2]/2 lora=x salt=x", 0,
           0);
    /* a bare 64-hex string is an image in the array form */
    single("99" STORED HEAD "c09191" HEX64, "S 1 [1,2]/2 mm=" IMAGE, 0, 0);
    /* ... or almost: not hex, so a salt */
    single("99" STORED HEAD "c09191d940"
           "7a" NOT_HEX,
           "S 1 [1,2]/2 salt=z" NOT_HEX_TEXT, 0, 0);
    /* prompt embeddings, a foreign item, a string on a child: no own key */
    single("99" STORED HEAD "c09191c402abcd", "S 1 [1,2]/2 unkeyed", 0, 0);
    single("99" STORED HEAD "c0919107", "S 1 [1,2]/2 unkeyed", 0, 0);
    single("99" STORED HEAD "c091919107", "S 1 [1,2]/2 unkeyed", 0, 0);
    single("99" STORED CHILD "c09191a173", "S 1 <3 [1,2]/2 unkeyed", 0, 0);
    single("99" STORED HEAD "c09192a173a174", "S 1 [1,2]/2 salt=s unkeyed", 0,
           0);
    /* not one entry per hash */
    single("99" STORED HEAD "c092c0c0", "S 1 [1,2]/2 unkeyed", 0, 0);
    single("99" STORED HEAD "c090", "S 1 [1,2]/2 unkeyed", 0, 0);
    single("99" STORED HEAD "c0c0", "S 1 [1,2]/2", 0, 0);
    single("99" STORED HEAD "c09190", "S 1 [1,2]/2", 0, 0);
    single("99" STORED HEAD "c09107", "", 1, 0);
}

#define LEFT                                                                   \
    "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657392"       \
    "0506a66d656469756dc0b572656d61696e696e675f636f70795f636f756e7473"

static void copies_left(void **state)
{
    (void)state;
    single(LEFT "920200", "R 5:2,6:0", 0, 0);
    single(LEFT "c0", "R 5,6", 0, 0);
    /* beyond 32 bits: as many as can be said */
    single(LEFT "92cfffffffffffffffffcefffffffe", "R 5:4294967295,6:4294967294",
           0, 0);
    single(LEFT "9102", "", 1, 0);
    single(LEFT "9202ff", "", 1, 0);
    single(LEFT "02", "", 1, 0);
    /* in the array form they come last */
    single("96ac426c6f636b52656d6f766564910"
           "9c0c0c09103",
           "R 9:3", 0, 0);
}

static void tails_of_the_array_form(void **state)
{
    (void)state;
    single("9d" STORED HEAD
           "c0c000ae66756c6c5f617474656e74696f6ec0a54c4f43414c",
           "S 1 [1,2]/2 full g0", 0, 0);
    single("9d" STORED HEAD
           "c0c001ad6d6c615f617474656e74696f6e08a652454d4f5445",
           "S 1 [1,2]/2 full g1 remote", 0, 0);
    single("9a" STORED HEAD "c0c001", "S 1 [1,2]/2 g1", 0, 0);
    single("9b" STORED HEAD "c0c000a56d616d6261",
           "S 1 [1,2]/2 unkeyed other g0", 0, 0);
    single("9b" STORED HEAD "c0c000b373696e6b5f66756c6c5f617474656e74696f6e",
           "S 1 [1,2]/2 full g0", 0, 0);
    single("9b" STORED HEAD "c0c0c0a7756e6b6e6f776e",
           "S 1 [1,2]/2 unkeyed other", 0, 0);
    /* block_mm_infos after extra_keys shifts the tail */
    single("9c" STORED HEAD "c091c09002ad6d6c615f617474656e74696f6e",
           "S 1 [1,2]/2 full g2", 0, 0);
    single("9d" STORED HEAD "c0c091c002ad6d6c615f617474656e74696f6e08",
           "S 1 [1,2]/2 full g2", 0, 0);
    /* it names an image that extra_keys does not: the block is not known */
    single("9b" STORED HEAD "c0c0918002", "S 1 [1,2]/2 unkeyed g2", 0, 0);
    single("9b" STORED HEAD "c091c0918002", "S 1 [1,2]/2 unkeyed g2", 0, 0);
    /* ... or does */
    single("9b" STORED HEAD "c09191" HEX64 "918002",
           "S 1 [1,2]/2 mm=" IMAGE " g2", 0, 0);
    /* metadata in a map: the salt only, never another tag */
    single("98" STORED HEAD "82a474797065a178aa63616368655f73616c74a173",
           "S 1 [1,2]/2 salt=s", 0, 0);
    single("98" STORED HEAD "84aa7365737369"
           "6f6e5f6964a0a96f776e65727368697081a16101"
           "a869735f6561676c65c3aa63616368655f73616c74a173",
           "S 1 [1,2]/2 salt=s", 0, 0);
    single("98" STORED HEAD "81a96c6f72615f6e616d65a16c", "S 1 [1,2]/2 lora=l",
           0, 0);
    single("99" STORED HEAD "a16c81aa63616368655f73616c74a173",
           "S 1 [1,2]/2 lora=l salt=s", 0, 0);
}

static void mediums(void **state)
{
    static const struct {
        const char *hex, *tier;
    } cases[] = {
        {"c0", ""},
        {"a0", ""},
        {"a3475055", ""},
        {"a6444556494345", ""},
        {"a3787878", ""},
        {"a3637075", " host"},
        {"aa4350555f50494e4e4544", " host"},
        {"a94350555f5449455231", " host"},
        {"a753544f52414745", " disk"},
        {"a46469736b", " disk"},
        {"a44e564d45", " disk"},
        {"a24653", " disk"},
        {"a94350555f5449455232", " disk"},
        {"a34f424a", " external"},
        {"a845585445524e414c", " external"},
        {"a74e4554574f524b", " external"},
        {"a652454d4f5445", " external"},
        {"a6534841524544", " external"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char event[128], text[64];
        (void)snprintf(event, sizeof event,
                       "93ac426c6f636b52656d6f7665649109%s", cases[i].hex);
        (void)snprintf(text, sizeof text, "R 9%s", cases[i].tier);
        single(event, text, 0, 0);
    }
}

static void small_scratch_skips(void **state)
{
    unsigned char bytes[2048];
    struct bt_kv_batch_stats s;
    static struct log l;
    (void)state;
    size_t n = unhex(vector("X1"), bytes);
    for (int i = 0; i < 4; i++) {
        struct bt_kv_scratch small = scratch_full();
        if (i == 0)
            small.hashes_max = 1;
        if (i == 1)
            small.tokens_max = 7;
        if (i == 2)
            small.mm_max = 1;
        if (i == 3)
            small.mm_per_block_max = 1;
        l.used = 0;
        assert_int_equal(bt_kv_batch_decode(bytes, n, &small, &s, note, &l),
                         BT_OK);
        assert_int_equal(s.skipped, 1);
        assert_int_equal(s.events, 0);
        assert_int_equal(l.used, 0);
    }
}

/* Chains that go through each of the repeat check's ways: compared in pairs,
 * by a table, and sorted where the scratch leaves the table no room. */
static void long_chains(void **state)
{
    static const size_t lengths[] = {2, 32, 33, 100, 128, 129, 200, 256};
    static char hex[8192];
    static struct log l;
    struct bt_kv_batch_stats s;
    (void)state;
    for (size_t k = 0; k < 2 * (sizeof lengths / sizeof lengths[0]); k++) {
        size_t count = lengths[k / 2], twice = k % 2;
        size_t n = (size_t)snprintf(hex, sizeof hex,
                                    "92cb3ff000000000000091"
                                    "95" STORED "dc%04zx",
                                    count);
        for (size_t i = 0; i < count; i++)
            n += (size_t)snprintf(
                hex + n, sizeof hex - n, "cd%04zx",
                twice && i == count - 1 ? 0x100 : 0x100 + i * 77 % 257);
        (void)snprintf(hex + n, sizeof hex - n, "c09000");
        assert_int_equal(decode(hex, &l, &s), BT_OK);
        assert_int_equal(s.skipped, (uint64_t)twice);
        if (!twice && count > 3)
            assert_memory_equal(l.text, "S 100,14d,19a,1e7,", 18);
    }
}

/* Hashes made to fall into one place of the table cost no more than sorting. */
static void colliding_hashes(void **state)
{
    static char hex[8192];
    static struct log l;
    struct bt_kv_batch_stats s;
    (void)state;
    size_t n = (size_t)snprintf(hex, sizeof hex,
                                "92cb3ff000000000000091"
                                "95" STORED "dc0064");
    /* inverse of 0x9e3779b97f4a7c15 mod 2^64: products 0, 1, 2 ... */
    for (uint64_t i = 0; i < 100; i++)
        n += (size_t)snprintf(hex + n, sizeof hex - n, "cf%016lx",
                              i * 0xf1de83e19937733du);
    (void)snprintf(hex + n, sizeof hex - n, "c09000");
    assert_int_equal(decode(hex, &l, &s), BT_OK);
    assert_int_equal(s.skipped, 0);
    assert_memory_equal(l.text, "S 0,f1de83e19937733d,e3bd07c3326ee67a,", 38);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(wrong_parent_namespace_is_another_key),
        cmocka_unit_test(not_a_batch),
        cmocka_unit_test(deep_nesting),
        cmocka_unit_test(every_truncation_is_invalid),
        cmocka_unit_test(before_the_cut_is_delivered),
        cmocka_unit_test(odd_batches),
        cmocka_unit_test(bad_events_are_skipped),
        cmocka_unit_test(odd_events_are_taken),
        cmocka_unit_test(extra_keys),
        cmocka_unit_test(copies_left),
        cmocka_unit_test(tails_of_the_array_form),
        cmocka_unit_test(mediums),
        cmocka_unit_test(small_scratch_skips),
        cmocka_unit_test(long_chains),
        cmocka_unit_test(colliding_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
