/* Computes the hashes that an engine should have announced for a chain from
 * the start, and compares. Decides which stores can be judged: not those whose
 * extra keys hold more than an adapter and a salt.
 */
#include "kv_identity.h"

enum kv_identity kv_identity_check(enum bt_engine_hash kind,
                                   const struct bt_engine_digest *root,
                                   const struct bt_kv_store *store)
{
    struct bt_engine_digest digest = *root;
    size_t bt = store->block_tokens;

    if (kind == BT_ENGINE_HASH_NONE || store->has_parent ||
        store->own_keys != NULL || store->mm != NULL || store->eagle ||
        store->hash_count == 0 || bt == 0 ||
        store->token_count != store->hash_count * bt)
        return KV_IDENTITY_SKIPPED;
    for (size_t i = 0; i < store->hash_count; i++) {
        struct bt_engine_extra extra[2];
        struct bt_engine_digest block;
        size_t count = 0;

        if (store->lora != NULL)
            extra[count++] = (struct bt_engine_extra){
                .text = store->lora, .bytes = store->lora_bytes};
        if (store->salt != NULL && i == 0)
            extra[count++] = (struct bt_engine_extra){
                .text = store->salt, .bytes = store->salt_bytes};
        if (bt_engine_hash_block(kind, &digest, store->tokens + i * bt, bt,
                                 extra, count, &block) != BT_OK)
            return KV_IDENTITY_SKIPPED;
        if (bt_engine_digest_handle(&block) != store->hashes[i])
            return KV_IDENTITY_OTHER;
        digest = block;
    }
    return KV_IDENTITY_SAME;
}
