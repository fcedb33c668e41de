/* KV event decoder: hostile payloads stay within the scratch, every delivered
 * event is well formed, and the result does not depend on old scratch. */
#include "baton/orchestrator/kv_events.h"
#include "fuzz.h"

#include <string.h>

#include "test_kv_events_vectors.h"

#define HASHES_MAX 40
#define TOKENS_MAX 64
#define MM_MAX     8

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
};

static void mix(struct digest *d, uint64_t v)
{
    d->sum = (d->sum ^ v) * 0x100000001b3u + 1;
}

static void mix_text(struct digest *d, const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        mix(d, (unsigned char)at[i]);
}

static void store_look(struct digest *d, const struct bt_kv_store *s)
{
    size_t images = 0;
    FUZZ_CHECK(s->hash_count > 0 && s->hash_count <= HASHES_MAX);
    FUZZ_CHECK(s->token_count <= TOKENS_MAX);
    for (size_t i = 0; i < s->hash_count; i++) {
        mix(d, s->hashes[i]);
        FUZZ_CHECK(!s->has_parent || s->hashes[i] != s->parent);
        for (size_t j = 0; j < i; j++)
            FUZZ_CHECK(s->hashes[i] != s->hashes[j]);
        images += s->mm != NULL ? s->mm_per_block[i] : 0;
    }
    FUZZ_CHECK(images <= MM_MAX);
    for (size_t i = 0; i < images; i++)
        mix(d, s->mm[i]);
    for (size_t i = 0; i < s->token_count; i++)
        mix(d, s->tokens[i]);
    mix_text(d, s->lora, s->lora_bytes);
    mix_text(d, s->salt, s->salt_bytes);
    mix(d, s->block_tokens);
    mix(d, (uint64_t)s->full_attention);
}

static void look(void *arg, const struct bt_kv_event *e)
{
    struct digest *d = arg;
    d->calls++;
    mix(d, (uint64_t)e->type);
    if (e->type == BT_KV_STORED)
        store_look(d, &e->store);
    FUZZ_CHECK(e->type != BT_KV_REMOVED ||
               (e->hash_count > 0 && e->hash_count <= HASHES_MAX));
    for (size_t i = 0; e->type == BT_KV_REMOVED && i < e->hash_count; i++)
        mix(d, e->hashes[i]);
    FUZZ_CHECK(e->tier <= BT_TIER_EXTERNAL);
    mix(d, e->group);
}

static enum bt_status decode(const uint8_t *data, size_t size, int fill,
                             struct digest *d, struct bt_kv_batch_stats *stats)
{
    static uint32_t remaining[HASHES_MAX];
    static uint64_t hashes[HASHES_MAX], mm[MM_MAX];
    static uint32_t tokens[TOKENS_MAX];
    static uint16_t mm_per_block[HASHES_MAX];
    struct bt_kv_scratch s = {hashes, HASHES_MAX,   tokens,     TOKENS_MAX, mm,
                              MM_MAX, mm_per_block, HASHES_MAX, remaining};
    memset(hashes, fill, sizeof hashes);
    memset(tokens, fill, sizeof tokens);
    memset(mm, fill, sizeof mm);
    memset(mm_per_block, fill, sizeof mm_per_block);
    memset(d, 0, sizeof *d);
    memset(stats, fill, sizeof *stats);
    return bt_kv_batch_decode(data, size, &s, stats, look, d);
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
    return 0;
}
