/* Decides what one KV event means, field by field: the events of vLLM and
 * SGLang (engine-wire.md 1.6, 1.7) and the standard ones of Mooncake (2.10).
 * Where the fields lie is kv_fields.c's; batches and counting are
 * kv_events.c's; which group and rank counts is the event plane's.
 *
 * Standard events bring our own keys. Two exceptions, both towards a miss:
 * additional_salt names a scope that we do not have, so such blocks are only
 * counted; under an adapter the standard's keys follow another rule than ours
 * (2.2), so the tokens are hashed anew, and without tokens they are counted.
 */
#include "kv_decode.h"

#include "kv_extra.h"
#include "kv_hashes.h"
#include "kv_tokens.h"
#include <string.h>
#include <strings.h>

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
static enum bt_kv_spec spec_of(const struct msgpack_item *kind)
{
    if (kind->type == MSGPACK_NIL)
        return BT_KV_SPEC_NONE;
    return bt_msgpack_is(kind, "full_attention") ||
                   bt_msgpack_is(kind, "mla_attention") ||
                   bt_msgpack_is(kind, "sink_full_attention")
               ? BT_KV_SPEC_FULL
               : BT_KV_SPEC_OTHER;
}

/* What stores and removals have in common. */
static bool common_read(const struct kv_fields *f, struct bt_kv_event *event)
{
    const struct msgpack_item *group = &f->item[KV_GROUP];
    const struct msgpack_item *locality = &f->item[KV_LOCALITY];
    event->has_group = group->type != MSGPACK_NIL;
    if (event->has_group && !u32_read(group, &event->group))
        return false;
    event->tier = tier_of(&f->item[KV_MEDIUM]);
    event->local = locality->type == MSGPACK_NIL || word_is(locality, "LOCAL");
    return true;
}

static enum kv_field first_of(const struct kv_fields *f, enum kv_field a,
                              enum kv_field b)
{
    return f->item[a].type != MSGPACK_NIL ? a : b;
}

/* Hashes and parent of a store; false for bad ones and self-reference. */
static bool chain_read(const struct kv_fields *f, struct bt_kv_scratch *scratch,
                       struct bt_kv_store *store)
{
    enum kv_field list = first_of(f, KV_SEQ_HASHES, KV_HASHES);
    const struct msgpack_item *parent =
        &f->item[first_of(f, KV_PARENT_HASH, KV_PARENT)];
    size_t count;
    bool reordered;
    if (!bt_kv_hashes_read(&f->item[list], f->rest[list], scratch, &count))
        return false;
    store->has_parent = parent->type != MSGPACK_NIL;
    if (store->has_parent && !bt_kv_hash_of(parent, &store->parent))
        return false;
    for (size_t i = 0; store->has_parent && i < count; i++)
        if (scratch->hashes[i] == store->parent)
            return false;
    if (bt_kv_hashes_repeat(scratch, count, &reordered) ||
        (reordered &&
         !bt_kv_hashes_read(&f->item[list], f->rest[list], scratch, &count)))
        return false;
    store->hashes = scratch->hashes;
    store->hash_count = count;
    return true;
}

/* The length rule (engine-wire.md 1.10, 2.4). */
static bool is_whole(const struct bt_kv_store *store)
{
    uint64_t covered = store->token_count - (store->eagle != 0);
    return (uint64_t)store->block_tokens * store->hash_count == covered;
}

static bool stored_decode(const struct kv_fields *f,
                          struct bt_kv_scratch *scratch,
                          struct bt_kv_event *event)
{
    struct bt_kv_store *store = &event->store;
    event->type = BT_KV_STORED;
    if (!common_read(f, event) || !chain_read(f, scratch, store) ||
        !bt_kv_tokens_take(f, scratch, store) ||
        !u32_read(&f->item[KV_BLOCK_SIZE], &store->block_tokens) ||
        !text_read(&f->item[KV_LORA], &store->lora, &store->lora_bytes) ||
        !text_read(&f->item[KV_SALT], &store->salt, &store->salt_bytes))
        return false;
    store->tier = event->tier;
    event->spec = spec_of(&f->item[KV_KIND]);
    event->whole = is_whole(store);
    store->full_attention = event->spec != BT_KV_SPEC_OTHER;
    event->hash_count = store->hash_count;
    return bt_kv_extra_read(f, scratch, store);
}

/* How many copies of each hash are left. */
static bool remaining_read(const struct kv_fields *f,
                           struct bt_kv_scratch *scratch,
                           struct bt_kv_event *event)
{
    const struct msgpack_item *list = &f->item[KV_REMAINING];
    struct msgpack m = f->rest[KV_REMAINING];
    struct msgpack_item left;
    if (list->type == MSGPACK_NIL)
        return true;
    if (list->type != MSGPACK_ARRAY || list->u != event->hash_count ||
        scratch->remaining == NULL)
        return false;
    for (size_t i = 0; i < event->hash_count; i++) {
        if (!bt_msgpack_read(&m, &left) || left.type != MSGPACK_UINT)
            return false;
        scratch->remaining[i] =
            left.u < UINT32_MAX ? (uint32_t)left.u : UINT32_MAX;
    }
    event->remaining = scratch->remaining;
    return true;
}

static bool removed_decode(const struct kv_fields *f,
                           struct bt_kv_scratch *scratch,
                           struct bt_kv_event *event)
{
    enum kv_field list = first_of(f, KV_SEQ_HASHES, KV_HASHES);
    event->type = BT_KV_REMOVED;
    event->hashes = scratch->hashes;
    return common_read(f, event) &&
           bt_kv_hashes_read(&f->item[list], f->rest[list], scratch,
                             &event->hash_count) &&
           remaining_read(f, scratch, event);
}

static bool cleared_decode(const struct kv_fields *f, struct bt_kv_event *event)
{
    const struct msgpack_item *medium = &f->item[KV_MEDIUM];
    event->type = BT_KV_CLEARED;
    event->has_tier = medium->type == MSGPACK_STR && medium->u > 0;
    return common_read(f, event);
}

/* ---- standard events ---- */

static bool is_standard(const struct kv_fields *f)
{
    const struct msgpack_item *tag = &f->item[KV_TAG];
    if (f->positional)
        return false;
    return f->item[KV_EVENT_TYPE].type == MSGPACK_STR ||
           f->item[KV_SEQ_HASHES].type != MSGPACK_NIL ||
           f->item[KV_OBJECT].type != MSGPACK_NIL ||
           bt_msgpack_is(tag, "stored") || bt_msgpack_is(tag, "removed") ||
           bt_msgpack_is(tag, "cleared");
}

static void rank_read(const struct kv_fields *f, struct bt_kv_event *event)
{
    const struct msgpack_item *rank = &f->item[KV_RANK];
    event->has_rank = bt_kv_is_int(rank);
    event->rank = event->has_rank ? (int64_t)rank->u : 0;
}

/* Optional in a standard event: no block size, no tokens. */
static bool standard_tokens(const struct kv_fields *f,
                            struct bt_kv_scratch *scratch,
                            struct bt_kv_store *store)
{
    const struct msgpack_item *size = &f->item[KV_BLOCK_SIZE];
    if (size->type != MSGPACK_NIL && !u32_read(size, &store->block_tokens))
        return false;
    return f->item[KV_TOKENS].type == MSGPACK_NIL ||
           bt_kv_tokens_take(f, scratch, store);
}

static bool standard_stored(const struct kv_fields *f,
                            struct bt_kv_scratch *scratch,
                            struct bt_kv_event *event)
{
    struct bt_kv_store *store = &event->store;
    event->type = BT_KV_STORED;
    if (!common_read(f, event) || !chain_read(f, scratch, store) ||
        !standard_tokens(f, scratch, store) ||
        !text_read(&f->item[KV_LORA], &store->lora, &store->lora_bytes) ||
        !text_read(&f->item[KV_MORE_SALT], &store->salt, &store->salt_bytes))
        return false;
    if (f->item[KV_BASE].type == MSGPACK_UINT && f->item[KV_BASE].u == 0)
        store->has_parent = 0;
    store->tier = event->tier;
    event->spec = spec_of(&f->item[KV_KIND]);
    event->whole = store->token_count == 0 || is_whole(store);
    event->hash_count = store->hash_count;
    bool hashed_anew = store->lora != NULL && store->salt == NULL &&
                       store->token_count > 0 && event->whole;
    bool ours = store->lora == NULL && store->salt == NULL;
    store->own_keys = hashed_anew ? NULL : store->hashes;
    store->full_attention =
        event->spec != BT_KV_SPEC_OTHER && (ours || hashed_anew);
    return true;
}

enum kv_verdict bt_kv_event_decode(const struct kv_fields *f,
                                   struct bt_kv_scratch *scratch,
                                   struct bt_kv_event *event)
{
    const struct msgpack_item *tag =
        &f->item[first_of(f, KV_EVENT_TYPE, KV_TAG)];
    bool standard = is_standard(f);
    bool good;
    if (standard)
        rank_read(f, event);
    if (bt_msgpack_is(tag, "BlockStored") ||
        (standard && bt_msgpack_is(tag, "stored")))
        good = standard ? standard_stored(f, scratch, event)
                        : stored_decode(f, scratch, event);
    else if (bt_msgpack_is(tag, "BlockRemoved") ||
             (standard && bt_msgpack_is(tag, "removed")))
        good = removed_decode(f, scratch, event);
    else if (bt_msgpack_is(tag, "AllBlocksCleared") ||
             (standard && bt_msgpack_is(tag, "cleared")))
        good = cleared_decode(f, event);
    else
        return KV_FOREIGN;
    return good ? KV_GOOD : KV_BAD;
}
