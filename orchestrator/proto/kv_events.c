/* Decides which KV events of a batch are good and delivers them with plain
 * types; sequence, restart and index are left to others. Each event is first
 * passed over as bytes and then read inside its own bounds, so a bad one
 * cannot disturb the next (engine-wire.md 1.7).
 *
 *   batch: [ts, [event ...], rank?] or {"ts", "events", "data_parallel_rank"}
 *   event: [tag, field ...]         or {"type": tag, name: field ...}
 *
 * stats: `events` are those understood (an event without hashes is one, but is
 * not delivered), `skipped` the bad ones, `unknown_tags` the foreign ones.
 */
#include "baton/orchestrator/kv_events.h"

#include "kv_extra.h"
#include "kv_fields.h"
#include <string.h>
#include <strings.h>

#define QUADRATIC_MAX 32
#define DIGEST_MAX    64

struct batch {
    struct bt_kv_scratch *scratch;
    struct bt_kv_batch_stats *stats;
    bt_kv_event_fn fn;
    void *arg;
    bool has_events;
};

static bool is_int(const struct msgpack_item *item)
{
    return item->type == MSGPACK_UINT || item->type == MSGPACK_NEGATIVE;
}

/* An engine hash: an integer's 64 bits, or the last 8 bytes of a digest. */
static bool hash_of(const struct msgpack_item *item, uint64_t *out)
{
    if (is_int(item)) {
        *out = item->u;
        return true;
    }
    if (item->type != MSGPACK_BIN || item->u < 8 || item->u > DIGEST_MAX)
        return false;
    uint64_t v = 0;
    for (size_t i = 0; i < 8; i++)
        v = v << 8 | (unsigned char)item->s[item->u - 8 + i];
    *out = v;
    return true;
}

static bool hashes_read(const struct kv_fields *f,
                        struct bt_kv_scratch *scratch, size_t *count_out)
{
    struct msgpack m = f->rest[KV_HASHES];
    struct msgpack_item item;
    uint64_t count = f->item[KV_HASHES].u;
    if (f->item[KV_HASHES].type != MSGPACK_ARRAY || count > scratch->hashes_max)
        return false;
    for (uint64_t i = 0; i < count; i++)
        if (!bt_msgpack_read(&m, &item) || !hash_of(&item, &scratch->hashes[i]))
            return false;
    *count_out = (size_t)count;
    return true;
}

static void sift(uint64_t *v, size_t root, size_t count)
{
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && v[child] < v[child + 1])
            child++;
        if (v[root] >= v[child])
            return;
        uint64_t t = v[root];
        v[root] = v[child];
        v[child] = t;
    }
}

static void heap_sort(uint64_t *v, size_t count)
{
    for (size_t i = count / 2; i > 0; i--)
        sift(v, i - 1, count);
    for (size_t last = count; last > 1; last--) {
        uint64_t t = v[0];
        v[0] = v[last - 1];
        v[last - 1] = t;
        sift(v, 0, last - 1);
    }
}

/* Does a hash occur twice? May reorder a long list. */
static bool repeats(uint64_t *v, size_t count)
{
    if (count <= QUADRATIC_MAX) {
        for (size_t i = 1; i < count; i++)
            for (size_t j = 0; j < i; j++)
                if (v[i] == v[j])
                    return true;
        return false;
    }
    heap_sort(v, count);
    for (size_t i = 1; i < count; i++)
        if (v[i] == v[i - 1])
            return true;
    return false;
}

/* Hashes of a store into the scratch; false for bad ones and self-reference. */
static bool chain_read(const struct kv_fields *f, struct bt_kv_scratch *scratch,
                       struct bt_kv_store *store)
{
    const struct msgpack_item *parent = &f->item[KV_PARENT];
    size_t count;
    if (!hashes_read(f, scratch, &count))
        return false;
    store->has_parent = parent->type != MSGPACK_NIL;
    if (store->has_parent && !hash_of(parent, &store->parent))
        return false;
    for (size_t i = 0; store->has_parent && i < count; i++)
        if (scratch->hashes[i] == store->parent)
            return false;
    if (repeats(scratch->hashes, count) || !hashes_read(f, scratch, &count))
        return false;
    store->hashes = scratch->hashes;
    store->hash_count = count;
    return true;
}

static bool token_add(struct bt_kv_scratch *scratch, size_t *used,
                      const struct msgpack_item *item)
{
    if (item->type != MSGPACK_UINT || item->u > UINT32_MAX ||
        *used == scratch->tokens_max)
        return false;
    scratch->tokens[(*used)++] = (uint32_t)item->u;
    return true;
}

/* [a,b] behind `used` tokens: b, and a in front of the first pair. */
static bool pair_add(struct bt_kv_scratch *scratch, size_t *used,
                     struct msgpack *m)
{
    struct msgpack_item a, b;
    if (!bt_msgpack_read(m, &a) || !bt_msgpack_read(m, &b))
        return false;
    if (*used == 0 && !token_add(scratch, used, &a))
        return false;
    if (a.type != MSGPACK_UINT || scratch->tokens[*used - 1] != a.u)
        return false;
    return token_add(scratch, used, &b);
}

static bool tokens_read(const struct kv_fields *f,
                        struct bt_kv_scratch *scratch,
                        struct bt_kv_store *store)
{
    struct msgpack m = f->rest[KV_TOKENS];
    struct msgpack_item item;
    bool pairs = false;
    size_t used = 0;
    if (f->item[KV_TOKENS].type != MSGPACK_ARRAY)
        return false;
    for (uint64_t i = 0; i < f->item[KV_TOKENS].u; i++) {
        if (!bt_msgpack_read(&m, &item))
            return false;
        bool pair = item.type == MSGPACK_ARRAY && item.u == 2;
        if (i == 0)
            pairs = pair;
        if (pair != pairs)
            return false;
        if (pair ? !pair_add(scratch, &used, &m)
                 : !token_add(scratch, &used, &item))
            return false;
    }
    store->tokens = scratch->tokens;
    store->token_count = used;
    store->eagle = pairs;
    return true;
}

static bool u32_read(const struct msgpack_item *item, uint32_t *out)
{
    if (item->type != MSGPACK_UINT || item->u > UINT32_MAX)
        return false;
    *out = (uint32_t)item->u;
    return true;
}

/* A text field: nil, or a string; empty counts as nil. */
static bool text_read(const struct msgpack_item *item, const char **at,
                      size_t *bytes)
{
    if (item->type == MSGPACK_NIL)
        return true;
    if (item->type != MSGPACK_STR)
        return false;
    if (item->u > 0) {
        *at = item->s;
        *bytes = (size_t)item->u;
    }
    return true;
}

static const struct {
    const char *medium;
    enum bt_tier tier;
} tiers[] = {
    {"CPU", BT_TIER_HOST},         {"CPU_PINNED", BT_TIER_HOST},
    {"CPU_TIER1", BT_TIER_HOST},   {"STORAGE", BT_TIER_DISK},
    {"DISK", BT_TIER_DISK},        {"NVME", BT_TIER_DISK},
    {"FS", BT_TIER_DISK},          {"CPU_TIER2", BT_TIER_DISK},
    {"OBJ", BT_TIER_EXTERNAL},     {"EXTERNAL", BT_TIER_EXTERNAL},
    {"NETWORK", BT_TIER_EXTERNAL}, {"REMOTE", BT_TIER_EXTERNAL},
    {"SHARED", BT_TIER_EXTERNAL},
};

static bool word_is(const struct msgpack_item *item, const char *word)
{
    return item->type == MSGPACK_STR && item->u == strlen(word) &&
           strncasecmp(item->s, word, item->u) == 0;
}

static enum bt_tier tier_of(const struct msgpack_item *medium)
{
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++)
        if (word_is(medium, tiers[i].medium))
            return tiers[i].tier;
    return BT_TIER_DEVICE;
}

/* Only full attention gets own keys (engine-wire.md 1.10). */
static int is_full_attention(const struct msgpack_item *kind, uint32_t group)
{
    if (kind->type == MSGPACK_NIL)
        return group == 0;
    return bt_msgpack_is(kind, "full_attention") ||
           bt_msgpack_is(kind, "mla_attention") ||
           bt_msgpack_is(kind, "sink_full_attention");
}

/* What stores and removals have in common. */
static bool common_read(const struct kv_fields *f, struct bt_kv_event *event)
{
    const struct msgpack_item *group = &f->item[KV_GROUP];
    const struct msgpack_item *locality = &f->item[KV_LOCALITY];
    if (group->type != MSGPACK_NIL && !u32_read(group, &event->group))
        return false;
    event->tier = tier_of(&f->item[KV_MEDIUM]);
    event->local = locality->type == MSGPACK_NIL || word_is(locality, "LOCAL");
    return true;
}

static bool stored_decode(const struct kv_fields *f,
                          struct bt_kv_scratch *scratch,
                          struct bt_kv_event *event)
{
    struct bt_kv_store *store = &event->store;
    event->type = BT_KV_STORED;
    if (!common_read(f, event) || !chain_read(f, scratch, store) ||
        !tokens_read(f, scratch, store) ||
        !u32_read(&f->item[KV_BLOCK_SIZE], &store->block_tokens) ||
        !text_read(&f->item[KV_LORA], &store->lora, &store->lora_bytes) ||
        !text_read(&f->item[KV_SALT], &store->salt, &store->salt_bytes))
        return false;
    store->tier = event->tier;
    store->full_attention = is_full_attention(&f->item[KV_KIND], event->group);
    event->hash_count = store->hash_count;
    return bt_kv_extra_read(f, scratch, store);
}

/* A hash of which copies remain is not gone: leave it out. */
static bool remaining_drop(const struct kv_fields *f,
                           struct bt_kv_scratch *scratch, size_t *count)
{
    const struct msgpack_item *list = &f->item[KV_REMAINING];
    struct msgpack m = f->rest[KV_REMAINING];
    struct msgpack_item left;
    size_t kept = 0;
    if (list->type == MSGPACK_NIL)
        return true;
    if (list->type != MSGPACK_ARRAY || list->u != *count)
        return false;
    for (size_t i = 0; i < *count; i++) {
        if (!bt_msgpack_read(&m, &left) || left.type != MSGPACK_UINT)
            return false;
        if (left.u == 0)
            scratch->hashes[kept++] = scratch->hashes[i];
    }
    *count = kept;
    return true;
}

static bool removed_decode(const struct kv_fields *f,
                           struct bt_kv_scratch *scratch,
                           struct bt_kv_event *event)
{
    event->type = BT_KV_REMOVED;
    event->hashes = scratch->hashes;
    return common_read(f, event) &&
           hashes_read(f, scratch, &event->hash_count) &&
           remaining_drop(f, scratch, &event->hash_count);
}

static bool cleared_decode(const struct kv_fields *f, struct bt_kv_event *event)
{
    event->type = BT_KV_CLEARED;
    event->has_tier = f->item[KV_MEDIUM].type == MSGPACK_STR;
    return common_read(f, event);
}

static void event_take(struct batch *b, struct msgpack m)
{
    struct kv_fields f;
    struct bt_kv_event event;
    bool good;
    memset(&event, 0, sizeof event);
    if (!bt_kv_fields_read(m, &f)) {
        b->stats->skipped++;
        return;
    }
    const struct msgpack_item *tag = &f.item[KV_TAG];
    if (bt_msgpack_is(tag, "BlockStored")) {
        good = stored_decode(&f, b->scratch, &event);
    } else if (bt_msgpack_is(tag, "BlockRemoved")) {
        good = removed_decode(&f, b->scratch, &event);
    } else if (bt_msgpack_is(tag, "AllBlocksCleared")) {
        good = cleared_decode(&f, &event);
    } else {
        b->stats->unknown_tags++;
        return;
    }
    b->stats->skipped += !good;
    b->stats->events += good;
    if (good && (event.hash_count > 0 || event.type == BT_KV_CLEARED))
        b->fn(b->arg, &event);
}

static bool events_take(struct batch *b, struct msgpack *m)
{
    struct msgpack_item list;
    if (!bt_msgpack_read(m, &list) || list.type != MSGPACK_ARRAY)
        return false;
    b->has_events = true;
    for (uint64_t i = 0; i < list.u; i++) {
        struct msgpack event = *m;
        if (!bt_msgpack_skip(m, NULL))
            return false;
        event.end = m->at;
        event_take(b, event);
    }
    return true;
}

static bool ts_take(struct batch *b, struct msgpack *m)
{
    struct msgpack_item ts;
    if (!bt_msgpack_read(m, &ts))
        return false;
    if (ts.type == MSGPACK_FLOAT)
        b->stats->ts = ts.f;
    else if (is_int(&ts))
        b->stats->ts = (double)(int64_t)ts.u;
    else
        return false;
    return true;
}

static bool rank_take(struct batch *b, struct msgpack *m)
{
    struct msgpack_item rank;
    struct msgpack at = *m;
    if (!bt_msgpack_skip(m, NULL) || !bt_msgpack_read(&at, &rank))
        return false;
    if (is_int(&rank)) {
        b->stats->has_rank = true;
        b->stats->rank = (int64_t)rank.u;
    }
    return true;
}

static bool array_batch(struct batch *b, struct msgpack *m, uint64_t count)
{
    if (count < 2 || !ts_take(b, m) || !events_take(b, m))
        return false;
    if (count > 2 && !rank_take(b, m))
        return false;
    for (uint64_t i = 3; i < count; i++)
        if (!bt_msgpack_skip(m, NULL))
            return false;
    return true;
}

static bool map_batch(struct batch *b, struct msgpack *m, uint64_t pairs)
{
    for (uint64_t i = 0; i < pairs; i++) {
        struct msgpack at = *m;
        struct msgpack_item key;
        bool good;
        if (!bt_msgpack_skip(m, NULL) || !bt_msgpack_read(&at, &key))
            return false;
        if (bt_msgpack_is(&key, "ts"))
            good = ts_take(b, m);
        else if (bt_msgpack_is(&key, "events") && !b->has_events)
            good = events_take(b, m);
        else if (bt_msgpack_is(&key, "data_parallel_rank") ||
                 bt_msgpack_is(&key, "attn_dp_rank"))
            good = rank_take(b, m);
        else
            good = bt_msgpack_skip(m, NULL);
        if (!good)
            return false;
    }
    return b->has_events;
}

enum bt_status bt_kv_batch_decode(const void *payload, size_t bytes,
                                  struct bt_kv_scratch *scratch,
                                  struct bt_kv_batch_stats *stats_out,
                                  bt_kv_event_fn fn, void *arg)
{
    struct batch b = {
        .scratch = scratch, .stats = stats_out, .fn = fn, .arg = arg};
    struct msgpack m = {.at = payload};
    struct msgpack_item head;
    bool good = false;
    memset(stats_out, 0, sizeof *stats_out);
    if (bytes == 0)
        return BT_INVALID;
    m.end = m.at + bytes;
    if (!bt_msgpack_read(&m, &head))
        return BT_INVALID;
    if (head.type == MSGPACK_ARRAY)
        good = array_batch(&b, &m, head.u);
    else if (head.type == MSGPACK_MAP)
        good = map_batch(&b, &m, head.u);
    return good && m.at == m.end ? BT_OK : BT_INVALID;
}
