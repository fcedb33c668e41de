/* Decides what the items of extra_keys mean (engine-wire.md 2.5): the adapter's
 * name (skipped), [identifier, offset] of an image, the cache salt of a root's
 * first block, a digest of prompt embeddings. Where an item cannot be told,
 * the store is delivered without own keys: a missed hit, never a false one.
 */
#include "kv_extra.h"

#include "baton/planner/block_hash.h"

struct extra {
    struct bt_kv_scratch *scratch;
    struct bt_kv_store *store;
    bool positional;
    size_t block;    /* whose entry is read */
    size_t mm_total; /* hashes written so far */
    bool salt_taken; /* by this list */
    bool lora_seen;  /* in this entry */
    bool unknown;    /* some item has no known meaning */
};

static bool is_hex64(const struct msgpack_item *item)
{
    if (item->u != 64)
        return false;
    for (size_t i = 0; i < 64; i++) {
        char c = item->s[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
              (c >= 'A' && c <= 'F')))
            return false;
    }
    return true;
}

static bool is_lora(const struct bt_kv_store *store,
                    const struct msgpack_item *item)
{
    if (store->lora == NULL || item->u != store->lora_bytes)
        return false;
    for (size_t i = 0; i < item->u; i++)
        if (item->s[i] != store->lora[i])
            return false;
    return true;
}

static bool mm_add(struct extra *x, const struct msgpack_item *identifier)
{
    uint16_t *count = &x->scratch->mm_per_block[x->block];
    if (x->mm_total == x->scratch->mm_max || *count == UINT16_MAX)
        return false;
    x->scratch->mm[x->mm_total++] = bt_mm_hash(identifier->s, identifier->u);
    (*count)++;
    return true;
}

static bool string_take(struct extra *x, const struct msgpack_item *item)
{
    struct bt_kv_store *store = x->store;
    if (!x->lora_seen && is_lora(store, item)) {
        x->lora_seen = true;
        return true;
    }
    if (x->positional && is_hex64(item))
        return mm_add(x, item);
    if (x->block > 0 || store->has_parent || x->salt_taken || item->u == 0) {
        x->unknown = true;
        return true;
    }
    x->salt_taken = true;
    if (store->salt == NULL) {
        store->salt = item->s;
        store->salt_bytes = (size_t)item->u;
    }
    return true;
}

/* [identifier, offset]; anything else in brackets is unknown. */
static bool pair_take(struct extra *x, struct msgpack inside, uint64_t count)
{
    struct msgpack_item identifier, offset;
    if (count != 2 || !bt_msgpack_read(&inside, &identifier) ||
        identifier.type != MSGPACK_STR || identifier.u == 0 ||
        !bt_msgpack_read(&inside, &offset) ||
        (offset.type != MSGPACK_UINT && offset.type != MSGPACK_NEGATIVE)) {
        x->unknown = true;
        return true;
    }
    return mm_add(x, &identifier);
}

static bool item_take(struct extra *x, struct msgpack *m)
{
    struct msgpack inside = *m;
    struct msgpack_item item;
    if (!bt_msgpack_read(&inside, &item) || !bt_msgpack_skip(m, NULL))
        return false;
    if (item.type == MSGPACK_STR)
        return string_take(x, &item);
    if (item.type == MSGPACK_ARRAY)
        return pair_take(x, inside, item.u);
    if (item.type != MSGPACK_NIL)
        x->unknown = true;
    return true;
}

static bool entry_take(struct extra *x, struct msgpack *m)
{
    struct msgpack_item entry;
    x->lora_seen = false;
    x->scratch->mm_per_block[x->block] = 0;
    if (m->at < m->end && *m->at == 0xc0) { /* nil, as most are */
        m->at++;
        return true;
    }
    if (!bt_msgpack_read(m, &entry))
        return false;
    if (entry.type == MSGPACK_NIL)
        return true;
    if (entry.type != MSGPACK_ARRAY)
        return false;
    for (uint64_t i = 0; i < entry.u; i++)
        if (!item_take(x, m))
            return false;
    return true;
}

static bool list_read(const struct kv_fields *f, struct extra *x)
{
    const struct msgpack_item *list = &f->item[KV_EXTRA];
    struct msgpack m = f->rest[KV_EXTRA];
    if (list->type == MSGPACK_NIL)
        return true;
    if (list->type != MSGPACK_ARRAY)
        return false;
    if (list->u != x->store->hash_count) {
        x->unknown = true;
        return true;
    }
    if (list->u > x->scratch->mm_per_block_max)
        return false;
    for (; x->block < list->u; x->block++)
        if (!entry_take(x, &m))
            return false;
    return true;
}

/* Does Dynamo's list name an image? Its form is not ours to read; the same
 * images are in extra_keys, or the blocks are not known. */
static bool infos_name_images(const struct kv_fields *f)
{
    const struct msgpack_item *list = &f->item[KV_MM_INFOS];
    struct msgpack m = f->rest[KV_MM_INFOS];
    if (list->type != MSGPACK_ARRAY)
        return list->type != MSGPACK_NIL;
    for (uint64_t i = 0; i < list->u; i++) {
        struct msgpack_item entry;
        struct msgpack at = m;
        if (!bt_msgpack_read(&at, &entry) || !bt_msgpack_skip(&m, NULL) ||
            entry.type != MSGPACK_NIL)
            return true;
    }
    return false;
}

bool bt_kv_extra_read(const struct kv_fields *f, struct bt_kv_scratch *scratch,
                      struct bt_kv_store *store)
{
    struct extra x = {
        .scratch = scratch, .store = store, .positional = f->positional};
    if (!list_read(f, &x))
        return false;
    if (x.mm_total > 0) {
        store->mm = scratch->mm;
        store->mm_per_block = scratch->mm_per_block;
    } else if (infos_name_images(f)) {
        x.unknown = true;
    }
    if (x.unknown)
        store->full_attention = 0;
    return true;
}
