/* KV event decoder: hostile payloads stay within the scratch, every delivered
 * event is well formed, the result does not depend on old scratch, and a batch
 * of well-formed events is understood to the last one. */
#include "baton/orchestrator/kv_events.h"
#include "fuzz.h"
#include "fuzz_kv.h"

#include <string.h>

#include "test_kv_events_vectors.h"

#define MM_MAX 8

struct fuzz_kv_expect fuzz_kv_expect;

/* For the report: what the inputs were to the decoder. */
static struct {
    uint64_t inputs, batches, events, skipped, unknown, expected;
    uint64_t stored, removed, cleared, blocks, tokens;
    uint64_t keyed, own_keys, images, counted_copies;
} seen;

size_t fuzz_seed(size_t index, uint8_t *out, size_t max)
{
    if (index >= sizeof kv_vectors / sizeof kv_vectors[0])
        return 0;
    const char *hex = kv_vectors[index].hex;
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n && i < max; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return n < max ? n : 0;
}

struct digest {
    uint64_t sum, calls;
    bool quiet; /* leave `seen` alone */
};

static void mix(struct digest *d, uint64_t v)
{
    d->sum = (d->sum ^ v) * 0x100000001b3u + 1;
}

static void mix_text(struct digest *d, const char *at, size_t bytes)
{
    FUZZ_CHECK((at == NULL) == (bytes == 0));
    for (size_t i = 0; i < bytes; i++)
        mix(d, (unsigned char)at[i]);
}

static size_t images_of(const struct bt_kv_store *s)
{
    size_t images = 0;
    FUZZ_CHECK((s->mm == NULL) == (s->mm_per_block == NULL));
    for (size_t i = 0; s->mm != NULL && i < s->hash_count; i++)
        images += s->mm_per_block[i];
    FUZZ_CHECK(images <= MM_MAX);
    return images;
}

static void store_count(const struct bt_kv_store *s, size_t images)
{
    seen.stored++;
    seen.blocks += s->hash_count;
    seen.tokens += s->token_count;
    seen.keyed += bt_kv_store_kind_of(s) == BT_KV_STORE_KEYED;
    seen.own_keys += s->own_keys != NULL;
    seen.images += images;
}

static void store_look(struct digest *d, const struct bt_kv_event *e)
{
    const struct bt_kv_store *s = &e->store;
    size_t images = images_of(s);
    FUZZ_CHECK(s->hash_count > 0 && s->hash_count <= FUZZ_KV_HASHES);
    FUZZ_CHECK(s->token_count <= FUZZ_KV_TOKENS && s->tier == e->tier);
    for (size_t i = 0; i < s->hash_count; i++) {
        mix(d, s->hashes[i]);
        FUZZ_CHECK(!s->has_parent || s->hashes[i] != s->parent);
        for (size_t j = 0; j < i; j++)
            FUZZ_CHECK(s->hashes[i] != s->hashes[j]);
    }
    for (size_t i = 0; i < images; i++)
        mix(d, s->mm[i]);
    for (size_t i = 0; i < s->token_count; i++)
        mix(d, s->tokens[i]);
    mix_text(d, s->lora, s->lora_bytes);
    mix_text(d, s->salt, s->salt_bytes);
    mix(d, s->block_tokens);
    mix(d, (uint64_t)s->full_attention);
    FUZZ_CHECK(s->own_keys == NULL || s->own_keys == s->hashes);
    FUZZ_CHECK(e->spec <= BT_KV_SPEC_OTHER);
    FUZZ_CHECK(!s->full_attention || e->spec != BT_KV_SPEC_OTHER);
    /* the index and the decoder agree on the length rule */
    FUZZ_CHECK(bt_kv_store_kind_of(s) != BT_KV_STORE_KEYED || e->whole);
    FUZZ_CHECK(bt_kv_store_kind_of(s) != BT_KV_STORE_REFUSED);
    if (!d->quiet)
        store_count(s, images);
}

static void removal_look(struct digest *d, const struct bt_kv_event *e)
{
    FUZZ_CHECK(e->hash_count > 0 && e->hash_count <= FUZZ_KV_HASHES);
    for (size_t i = 0; i < e->hash_count; i++) {
        mix(d, e->hashes[i]);
        mix(d, e->remaining != NULL ? e->remaining[i] : 0);
    }
    if (d->quiet)
        return;
    seen.removed++;
    seen.blocks += e->hash_count;
    seen.counted_copies += e->remaining != NULL ? e->hash_count : 0;
}

static void look(void *arg, const struct bt_kv_event *e)
{
    struct digest *d = arg;
    d->calls++;
    mix(d, (uint64_t)e->type);
    switch (e->type) {
    case BT_KV_STORED:
        store_look(d, e);
        break;
    case BT_KV_REMOVED:
        removal_look(d, e);
        break;
    case BT_KV_CLEARED:
        seen.cleared += !d->quiet;
        break;
    }
    FUZZ_CHECK(e->tier <= BT_TIER_EXTERNAL);
    FUZZ_CHECK(e->has_group || e->group == 0);
    FUZZ_CHECK(e->has_rank || e->rank == 0);
    mix(d, e->group);
    mix(d, (uint64_t)e->rank);
}

static enum bt_status decode(const uint8_t *data, size_t size, int fill,
                             struct digest *d, struct bt_kv_batch_stats *stats)
{
    static uint32_t remaining[FUZZ_KV_HASHES], tokens[FUZZ_KV_TOKENS];
    static uint64_t hashes[FUZZ_KV_HASHES], mm[MM_MAX];
    static uint16_t mm_per_block[FUZZ_KV_HASHES];
    struct bt_kv_scratch s = {
        hashes, FUZZ_KV_HASHES, tokens,         FUZZ_KV_TOKENS, mm,
        MM_MAX, mm_per_block,   FUZZ_KV_HASHES, remaining};
    memset(hashes, fill, sizeof hashes);
    memset(tokens, fill, sizeof tokens);
    memset(mm, fill, sizeof mm);
    memset(mm_per_block, fill, sizeof mm_per_block);
    memset(remaining, fill, sizeof remaining);
    memset(d, 0, sizeof *d);
    memset(stats, fill, sizeof *stats);
    d->quiet = fill != 0;
    return bt_kv_batch_decode(data, size, &s, stats, look, d);
}

static void expected_check(enum bt_status status, const struct digest *d,
                           const struct bt_kv_batch_stats *s)
{
    const struct fuzz_kv_expect *e = &fuzz_kv_expect;
    if (!e->armed)
        return;
    FUZZ_CHECK(status == BT_OK && s->skipped == 0);
    FUZZ_CHECK(s->events == e->events && s->unknown_tags == e->unknown);
    FUZZ_CHECK(d->calls == e->delivered);
    fuzz_kv_expect.armed = false;
    seen.expected++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_kv_batch_stats a, b;
    struct digest x, y;
    enum bt_status first = decode(data, size, 0, &x, &a);
    enum bt_status second = decode(data, size, 0xff, &y, &b);
    FUZZ_CHECK(first == second && (first == BT_OK || first == BT_INVALID));
    FUZZ_CHECK(x.sum == y.sum && x.calls == y.calls);
    FUZZ_CHECK(a.events == b.events && a.skipped == b.skipped);
    FUZZ_CHECK(x.calls <= a.events);
    FUZZ_CHECK(a.events + a.skipped + a.unknown_tags <= size);
    expected_check(first, &x, &a);
    seen.inputs++;
    seen.batches += first == BT_OK;
    seen.events += a.events;
    seen.skipped += a.skipped;
    seen.unknown += a.unknown_tags;
    return 0;
}

static void line(const char *name, uint64_t value)
{
    printf("%-28s %12llu\n", name, (unsigned long long)value);
}

void fuzz_report(void)
{
    line("inputs", seen.inputs);
    line("batches decoded to the end", seen.batches);
    line("batches known to be good", seen.expected);
    line("events understood", seen.events);
    line("events skipped", seen.skipped);
    line("events of unknown tags", seen.unknown);
    line("stores delivered", seen.stored);
    line("  with own keys to compute", seen.keyed);
    line("  with own keys given", seen.own_keys);
    line("  images", seen.images);
    line("  tokens", seen.tokens);
    line("removals delivered", seen.removed);
    line("  hashes with copies left", seen.counted_copies);
    line("clears delivered", seen.cleared);
    line("blocks delivered", seen.blocks);
}
