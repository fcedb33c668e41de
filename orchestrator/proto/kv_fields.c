/* Decides where the fields of a KV event are: by name in a map, by position in
 * an array. Positions date from the engine's version (engine-wire.md 1.5), so
 * the tail is told apart by type: a map is SGLang's metadata, a list is
 * extra_keys and behind it Dynamo's block_mm_infos, an early string the
 * adapter, a late one the kind or locality. What the values mean is left to
 * kv_decode.c. Invariant: every value is passed whole, so an event ends where
 * its last field does.
 */
#include "kv_fields.h"

#include "kv_tokens.h"
#include <string.h>

#define NAME(text, field)                                                      \
    {                                                                          \
        (text), sizeof(text) - 1, (field)                                      \
    }
/* In the order in which vLLM writes them; KV_FIELDS: of no use to us. */
static const struct {
    const char *name;
    size_t bytes;
    enum kv_field field;
} names[] = {
    NAME("type", KV_TAG),
    NAME("block_hashes", KV_HASHES),
    NAME("parent_block_hash", KV_PARENT),
    NAME("token_ids", KV_TOKENS),
    NAME("block_size", KV_BLOCK_SIZE),
    NAME("lora_id", KV_FIELDS),
    NAME("medium", KV_MEDIUM),
    NAME("lora_name", KV_LORA),
    NAME("extra_keys", KV_EXTRA),
    NAME("group_idx", KV_GROUP),
    NAME("kv_cache_spec_kind", KV_KIND),
    NAME("kv_cache_spec_sliding_window", KV_FIELDS),
    NAME("locality", KV_LOCALITY),
    NAME("cache_salt", KV_SALT),
    NAME("session_id", KV_FIELDS),
    NAME("remaining_copy_counts", KV_REMAINING),
    NAME("block_mm_infos", KV_MM_INFOS),
    NAME("event_type", KV_EVENT_TYPE),
    NAME("seq_hashes", KV_SEQ_HASHES),
    NAME("base_block_idx", KV_BASE),
    NAME("parent_hash", KV_PARENT_HASH),
    NAME("additional_salt", KV_MORE_SALT),
    NAME("dp_rank", KV_RANK),
    NAME("object_key", KV_OBJECT),
};
#define NAMES (sizeof names / sizeof names[0])

/* KV_FIELDS: a name that nobody asked for. The search begins at *hint, where
 * the key before this one left off: they mostly come in our order. */
static enum kv_field field_named(const struct msgpack_item *key, size_t *hint)
{
    size_t at = *hint;
    if (key->type != MSGPACK_STR)
        return KV_FIELDS;
    for (size_t i = 0; i < NAMES; i++) {
        bool same = key->u == names[at].bytes &&
                    memcmp(key->s, names[at].name, names[at].bytes) == 0;
        enum kv_field field = names[at].field;
        at = at + 1 < NAMES ? at + 1 : 0;
        if (same) {
            *hint = at;
            return field;
        }
    }
    return KV_FIELDS;
}

/* Read the value at m into the field and pass it. */
static bool field_set(struct msgpack *m, enum kv_field field,
                      struct bt_kv_scratch *scratch, struct kv_fields *out)
{
    struct msgpack inside = *m;
    bool too_deep = false;
    if (field == KV_TOKENS)
        return bt_kv_tokens_pass(m, scratch, out);
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

static bool map_read(struct msgpack *m, uint64_t pairs,
                     struct bt_kv_scratch *scratch, struct kv_fields *out)
{
    size_t hint = 0;
    for (uint64_t i = 0; i < pairs; i++) {
        struct msgpack_item key;
        struct msgpack at = *m;
        if (!value_pass(m) || !bt_msgpack_read(&at, &key))
            return false;
        enum kv_field field = field_named(&key, &hint);
        if (field == KV_FIELDS ? !value_pass(m)
                               : !field_set(m, field, scratch, out))
            return false;
    }
    return true;
}

/* SGLang's map behind the positions: of its contents only what is identity
 * counts; session_id, ownership and is_eagle are not. */
static bool metadata_read(struct msgpack *m, uint64_t pairs,
                          struct kv_fields *out)
{
    size_t hint = 0;
    for (uint64_t i = 0; i < pairs; i++) {
        struct msgpack_item key;
        struct msgpack at = *m;
        if (!value_pass(m) || !bt_msgpack_read(&at, &key))
            return false;
        enum kv_field field = field_named(&key, &hint);
        if (field == KV_SALT || field == KV_LORA
                ? !field_set(m, field, NULL, out)
                : !value_pass(m))
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
        return index <= 8 && f->item[KV_EXTRA].type == MSGPACK_NIL ? KV_EXTRA
               : f->item[KV_MM_INFOS].type == MSGPACK_NIL          ? KV_MM_INFOS
                                                                   : KV_FIELDS;
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
        return value_pass(m) && metadata_read(&inside, item.u, out);
    enum kv_field field = tail_field(out, index, &item);
    return field == KV_FIELDS ? value_pass(m) : field_set(m, field, NULL, out);
}

/* Elements of a store; the deprecated lora_id of place 5 is passed over. */
static bool stored_read(struct msgpack *m, uint64_t count,
                        struct bt_kv_scratch *scratch, struct kv_fields *out)
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
            good = field_set(m, head[i - 1], scratch, out);
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
        if (i <= known ? !field_set(m, fields[i - 1], NULL, out)
                       : !value_pass(m))
            return false;
    return true;
}

/* Pass the elements of an event that nobody knows, however they look. */
static bool foreign_pass(struct msgpack *m, uint64_t count)
{
    for (uint64_t i = 1; i < count; i++)
        if (!bt_msgpack_skip(m, NULL))
            return false;
    return true;
}

static bool array_read(struct msgpack *m, uint64_t count,
                       struct bt_kv_scratch *scratch, struct kv_fields *out)
{
    static const enum kv_field removed[] = {KV_HASHES, KV_MEDIUM, KV_GROUP,
                                            KV_LOCALITY, KV_REMAINING};
    static const enum kv_field cleared[] = {KV_MEDIUM};
    const struct msgpack_item *tag = &out->item[KV_TAG];
    out->positional = true;
    if (count == 0 || !field_set(m, KV_TAG, NULL, out))
        return false;
    if (bt_msgpack_is(tag, "BlockStored"))
        return stored_read(m, count, scratch, out);
    if (bt_msgpack_is(tag, "BlockRemoved"))
        return row_read(m, count, removed, 5, out);
    if (bt_msgpack_is(tag, "AllBlocksCleared"))
        return row_read(m, count, cleared, 1, out);
    return foreign_pass(m, count);
}

bool bt_kv_fields_read(struct msgpack *m, struct bt_kv_scratch *scratch,
                       struct kv_fields *out)
{
    struct msgpack_item head;
    bool good = false;
    memset(out, 0, sizeof *out);
    if (!bt_msgpack_read(m, &head))
        return false;
    if (head.type == MSGPACK_ARRAY)
        good = array_read(m, head.u, scratch, out);
    else if (head.type == MSGPACK_MAP)
        good = map_read(m, head.u, scratch, out);
    return good && (out->item[KV_TAG].type == MSGPACK_STR ||
                    out->item[KV_EVENT_TYPE].type == MSGPACK_STR);
}
