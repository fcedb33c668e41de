/* Decides where the fields of a KV event are: by name in a map, by position in
 * an array. Positions date from the engine's version (engine-wire.md 1.5), so
 * the tail is told apart by type: a map is SGLang's metadata, a list is
 * extra_keys, an early string the adapter, a late one the kind or locality.
 * What the values mean is left to kv_events.c.
 */
#include "kv_fields.h"

#include <string.h>

static const struct {
    const char *name;
    enum kv_field field;
} names[] = {
    {"type", KV_TAG},
    {"block_hashes", KV_HASHES},
    {"parent_block_hash", KV_PARENT},
    {"token_ids", KV_TOKENS},
    {"block_size", KV_BLOCK_SIZE},
    {"medium", KV_MEDIUM},
    {"lora_name", KV_LORA},
    {"extra_keys", KV_EXTRA},
    {"group_idx", KV_GROUP},
    {"kv_cache_spec_kind", KV_KIND},
    {"locality", KV_LOCALITY},
    {"cache_salt", KV_SALT},
    {"remaining_copy_counts", KV_REMAINING},
};

/* Read the value at m into the field and pass it. */
static bool field_set(struct msgpack *m, enum kv_field field,
                      struct kv_fields *out)
{
    struct msgpack inside = *m;
    bool too_deep = false;
    if (!bt_msgpack_read(&inside, &out->item[field]) ||
        !bt_msgpack_skip(m, &too_deep))
        return false;
    out->rest[field] = inside;
    return !too_deep;
}

static bool value_pass(struct msgpack *m)
{
    bool too_deep = false;
    return bt_msgpack_skip(m, &too_deep) && !too_deep;
}

/* `only`: take no other field than this one (KV_FIELDS: all). */
static bool map_read(struct msgpack *m, uint64_t pairs, enum kv_field only,
                     struct kv_fields *out)
{
    for (uint64_t i = 0; i < pairs; i++) {
        struct msgpack_item key;
        size_t n = 0;
        struct msgpack at = *m;
        if (!value_pass(m) || !bt_msgpack_read(&at, &key))
            return false;
        while (n < sizeof names / sizeof names[0] &&
               !bt_msgpack_is(&key, names[n].name))
            n++;
        bool wanted = n < sizeof names / sizeof names[0] &&
                      (only == KV_FIELDS || names[n].field == only);
        if (wanted ? !field_set(m, names[n].field, out) : !value_pass(m))
            return false;
    }
    return true;
}

static bool is_locality(const struct msgpack_item *item)
{
    return bt_msgpack_is(item, "LOCAL") || bt_msgpack_is(item, "REMOTE");
}

/* Field of a store's element 7 or later, KV_FIELDS when it is of no use. */
static enum kv_field tail_field(const struct kv_fields *f, uint64_t index,
                                const struct msgpack_item *item)
{
    if (item->type == MSGPACK_ARRAY)
        return f->item[KV_EXTRA].type == MSGPACK_NIL ? KV_EXTRA : KV_FIELDS;
    if (item->type == MSGPACK_UINT || item->type == MSGPACK_NEGATIVE)
        return index <= 10 && f->item[KV_GROUP].type == MSGPACK_NIL ? KV_GROUP
                                                                    : KV_FIELDS;
    if (item->type != MSGPACK_STR)
        return KV_FIELDS;
    if (index < 9)
        return KV_LORA;
    if (is_locality(item) ||
        (index >= 12 && f->item[KV_KIND].type != MSGPACK_NIL))
        return KV_LOCALITY;
    return KV_KIND;
}

static bool tail_read(struct msgpack *m, uint64_t index, struct kv_fields *out)
{
    struct msgpack_item item;
    struct msgpack inside = *m;
    if (!bt_msgpack_read(&inside, &item))
        return false;
    if (item.type == MSGPACK_MAP)
        return value_pass(m) && map_read(&inside, item.u, KV_SALT, out);
    enum kv_field field = tail_field(out, index, &item);
    return field == KV_FIELDS ? value_pass(m) : field_set(m, field, out);
}

/* Elements of a store; the deprecated lora_id of place 5 is passed over. */
static bool stored_read(struct msgpack *m, uint64_t count,
                        struct kv_fields *out)
{
    static const enum kv_field head[] = {KV_HASHES,     KV_PARENT, KV_TOKENS,
                                         KV_BLOCK_SIZE, KV_FIELDS, KV_MEDIUM};
    if (count < 5)
        return false;
    for (uint64_t i = 1; i < count; i++) {
        bool good;
        if (i > 6)
            good = tail_read(m, i, out);
        else if (head[i - 1] == KV_FIELDS)
            good = value_pass(m);
        else
            good = field_set(m, head[i - 1], out);
        if (!good)
            return false;
    }
    return true;
}

static bool row_read(struct msgpack *m, uint64_t count,
                     const enum kv_field *fields, uint64_t known,
                     struct kv_fields *out)
{
    for (uint64_t i = 1; i < count; i++)
        if (i <= known ? !field_set(m, fields[i - 1], out) : !value_pass(m))
            return false;
    return true;
}

static bool array_read(struct msgpack *m, uint64_t count, struct kv_fields *out)
{
    static const enum kv_field removed[] = {KV_HASHES, KV_MEDIUM, KV_GROUP,
                                            KV_LOCALITY, KV_REMAINING};
    static const enum kv_field cleared[] = {KV_MEDIUM};
    out->positional = true;
    if (count == 0 || !field_set(m, KV_TAG, out))
        return false;
    if (bt_msgpack_is(&out->item[KV_TAG], "BlockStored"))
        return stored_read(m, count, out);
    if (bt_msgpack_is(&out->item[KV_TAG], "BlockRemoved"))
        return row_read(m, count, removed, 5, out);
    if (bt_msgpack_is(&out->item[KV_TAG], "AllBlocksCleared"))
        return row_read(m, count, cleared, 1, out);
    return true; /* an unknown tag: nothing else matters */
}

bool bt_kv_fields_read(struct msgpack m, struct kv_fields *out)
{
    struct msgpack_item head;
    memset(out, 0, sizeof *out);
    if (!bt_msgpack_read(&m, &head))
        return false;
    bool good = head.type == MSGPACK_ARRAY ? array_read(&m, head.u, out)
                : head.type == MSGPACK_MAP
                    ? map_read(&m, head.u, KV_FIELDS, out)
                    : false;
    return good && out->item[KV_TAG].type == MSGPACK_STR;
}
