/* See block_names.h. Decides how a block's names follow from its content and
 * its parent's names; when a block has content is seq.c's.
 *
 * Invariant: names depend on the content alone (and on the process where hashes
 * are opaque), never on the block's index.
 */
#include "block_names.h"

#include "block_pool.h"

#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum bt_status bt_block_names_init(struct bt_block_names *names, uint32_t count,
                                   enum bt_engine_hash kind, const char *seed,
                                   uint64_t entropy)
{
    struct bt_block_names n = {.kind = kind, .entropy = entropy};
    if (kind != BT_ENGINE_HASH_NONE &&
        bt_engine_hash_root(kind, seed, &n.root) != BT_OK) {
        return BT_INVALID;
    }
    n.own = calloc(count, sizeof(*n.own));
    n.handles = calloc(count, sizeof(*n.handles));
    n.scratch = calloc(count, sizeof(*n.scratch));
    bool whole = n.own != NULL && n.handles != NULL && n.scratch != NULL;
    if (whole && kind != BT_ENGINE_HASH_NONE) {
        n.digests = calloc(count, sizeof(*n.digests));
        whole = n.digests != NULL;
    }
    if (!whole) {
        bt_block_names_fini(&n);
        return BT_NO_MEMORY;
    }
    *names = n;
    return BT_OK;
}

void bt_block_names_fini(struct bt_block_names *names)
{
    free(names->own);
    free(names->handles);
    free(names->scratch);
    free(names->digests);
    memset(names, 0, sizeof(*names));
}

static uint64_t real_hash(struct bt_block_names *names,
                          const struct bt_block_content *c)
{
    bool root = c->parent == BT_POOL_NONE;
    struct bt_engine_extra extra[2];
    size_t count = 0;
    if (c->lora != NULL) {
        extra[count++] =
            (struct bt_engine_extra){.text = c->lora, .bytes = strlen(c->lora)};
    }
    if (c->salt != NULL && root) {
        extra[count++] =
            (struct bt_engine_extra){.text = c->salt, .bytes = c->salt_bytes};
    }
    struct bt_engine_digest *out = &names->digests[c->block];
    enum bt_status status = bt_engine_hash_block(
        names->kind, root ? &names->root : &names->digests[c->parent],
        c->tokens, c->token_count, extra, count, out);
    assert(status == BT_OK);
    (void)status;
    return bt_engine_digest_handle(out);
}

void bt_block_names_set(struct bt_block_names *names,
                        const struct bt_block_content *c)
{
    uint64_t local = bt_block_local(c->tokens, c->token_count, NULL, 0, c->ns);
    names->own[c->block] = c->parent == BT_POOL_NONE
                               ? local
                               : bt_block_chain(names->own[c->parent], local);
    names->handles[c->block] = names->digests != NULL
                                   ? real_hash(names, c)
                                   : bt_mix64(c->key ^ names->entropy);
}
