/* Decides what token_ids says: tokens, or for SGLang's Eagle overlapping pairs
 * of them (engine-wire.md 1.7 rule 4). Whether they fit the hashes is left to
 * kv_decode.c. Invariant: a list counts as plain only when all of it was read
 * into the scratch.
 */
#include "kv_tokens.h"

static bool token_read(const struct msgpack_item *item, uint32_t *out)
{
    if (item->type != MSGPACK_UINT || item->u > UINT32_MAX)
        return false;
    *out = (uint32_t)item->u;
    return true;
}

static bool plain_read(struct msgpack *m, size_t count, uint32_t *tokens)
{
    struct msgpack_item item;
    size_t n = 0;
    while ((n += bt_msgpack_u32s(m, tokens + n, count - n)) < count) {
        if (!bt_msgpack_read(m, &item) || !token_read(&item, &tokens[n]))
            return false;
        n++;
    }
    return true;
}

bool bt_kv_tokens_pass(struct msgpack *m, struct bt_kv_scratch *scratch,
                       struct kv_fields *out)
{
    struct msgpack at = *m;
    struct msgpack_item *list = &out->item[KV_TOKENS];
    bool too_deep = false;
    if (!bt_msgpack_read(&at, list))
        return false;
    out->rest[KV_TOKENS] = at;
    out->plain_tokens = list->type == MSGPACK_ARRAY &&
                        list->u <= scratch->tokens_max &&
                        plain_read(&at, (size_t)list->u, scratch->tokens);
    if (out->plain_tokens) {
        *m = at;
        return true;
    }
    return bt_msgpack_skip(m, &too_deep) && !too_deep;
}

static bool token_add(struct bt_kv_scratch *scratch, size_t *used,
                      const struct msgpack_item *item)
{
    return *used < scratch->tokens_max &&
           token_read(item, &scratch->tokens[(*used)++]);
}

/* [a,b] behind `used` tokens: b, and a in front of the first pair. */
static bool pair_add(struct bt_kv_scratch *scratch, size_t *used,
                     struct msgpack *m)
{
    struct msgpack_item pair, a, b;
    if (!bt_msgpack_read(m, &pair) || pair.type != MSGPACK_ARRAY ||
        pair.u != 2 || !bt_msgpack_read(m, &a) || !bt_msgpack_read(m, &b))
        return false;
    if (*used == 0 && !token_add(scratch, used, &a))
        return false;
    if (a.type != MSGPACK_UINT || scratch->tokens[*used - 1] != a.u)
        return false;
    return token_add(scratch, used, &b);
}

bool bt_kv_tokens_take(const struct kv_fields *f, struct bt_kv_scratch *scratch,
                       struct bt_kv_store *store)
{
    const struct msgpack_item *list = &f->item[KV_TOKENS];
    struct msgpack m = f->rest[KV_TOKENS];
    size_t used = 0;
    if (list->type != MSGPACK_ARRAY)
        return false;
    if (f->plain_tokens) {
        used = (size_t)list->u;
    } else {
        for (uint64_t i = 0; i < list->u; i++)
            if (!pair_add(scratch, &used, &m))
                return false;
        store->eagle = 1;
    }
    store->tokens = scratch->tokens;
    store->token_count = used;
    return true;
}
