/* What the blocks of a pool are called outside: their own key (block_hash.h),
 * which is the truth that an index is held against, and the engine's hash,
 * which KV events carry. Pure bookkeeping, one entry per pool block; an entry
 * means something while its block is registered.
 *
 * Engine hashes are opaque (the content key mixed with a number of this
 * process) or vLLM's real ones, where these are reproducible: engine_hash.h.
 */
#ifndef BATON_BENCH_ENGINE_BLOCK_NAMES_H
#define BATON_BENCH_ENGINE_BLOCK_NAMES_H

#include "baton/base/status.h"
#include "baton/planner/engine_hash.h"
#include <stdint.h>

struct bt_block_names {
    enum bt_engine_hash kind;
    uint64_t entropy;
    uint64_t *own, *handles;
    struct bt_engine_digest root, *digests; /* digests NULL: opaque */
    uint64_t *scratch; /* as many as there are blocks, for callers */
};

/* kind NONE: opaque, seed unused. BT_INVALID: no such hash, or an empty seed;
 * BT_NO_MEMORY. */
enum bt_status bt_block_names_init(struct bt_block_names *names, uint32_t count,
                                   enum bt_engine_hash kind, const char *seed,
                                   uint64_t entropy);
void bt_block_names_fini(struct bt_block_names *names);

/* A block that is about to be registered. */
struct bt_block_content {
    uint32_t block, parent; /* indices; parent BT_POOL_NONE: root */
    uint64_t key;           /* of the content, in the pool */
    const uint32_t *tokens;
    uint32_t token_count;
    uint64_t ns;      /* bt_ns_seed of lora and salt */
    const char *lora; /* NULL: none */
    const char *salt; /* NULL: none; hashed in root blocks only */
    uint32_t salt_bytes;
};
/* The parent has a name. */
void bt_block_names_set(struct bt_block_names *names,
                        const struct bt_block_content *content);

#endif
