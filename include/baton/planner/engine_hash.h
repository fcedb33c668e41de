/* vLLM's own block hashes, where they can be computed at all: the CBOR
 * algorithms with a known PYTHONHASHSEED (engine-wire.md 2.7). Not for the
 * index, which is keyed by own keys; for operators who share a cache tier
 * between engines and must know that all of them hash alike.
 *
 *   digest = H(cbor([parent digest, [tokens], extra keys or null]))
 *   root parent = H(cbor(text of the seed))
 *   H = SHA-256 (sha256_cbor), or XXH3-128, canonical byte order (xxhash_cbor)
 *
 * Pure. No allocation.
 */
#ifndef BATON_PLANNER_ENGINE_HASH_H
#define BATON_PLANNER_ENGINE_HASH_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

enum bt_engine_hash {
    BT_ENGINE_HASH_NONE, /* opaque: pickle, or no seed */
    BT_ENGINE_HASH_SHA256_CBOR,
    BT_ENGINE_HASH_XXHASH_CBOR
};
/* "none", "sha256_cbor", "xxhash_cbor". BT_NOT_FOUND. */
enum bt_status bt_engine_hash_find(const char *name, enum bt_engine_hash *out);
const char *bt_engine_hash_name(enum bt_engine_hash kind);

struct bt_engine_digest {
    unsigned char bytes[32];
    uint32_t size; /* 32 or 16 */
};
/* The 64 bits that events carry: the last 8 bytes, big-endian. */
uint64_t bt_engine_digest_handle(const struct bt_engine_digest *digest);

/* Parent of root blocks. seed: as the environment has it, "0". BT_INVALID:
 * NONE, or an empty seed ("random" per process, not known). */
enum bt_status bt_engine_hash_root(enum bt_engine_hash kind, const char *seed,
                                   struct bt_engine_digest *out);

/* One extra key of a block, in the engine's order. */
struct bt_engine_extra {
    const char *text; /* adapter, salt, or identifier of an image */
    size_t bytes;
    int has_offset; /* an image: the pair (text, offset) */
    int64_t offset; /* may be negative */
};
/* One block. extra NULL or count 0: no extra keys. BT_INVALID: NONE, or the
 * parent is of another kind. */
enum bt_status bt_engine_hash_block(enum bt_engine_hash kind,
                                    const struct bt_engine_digest *parent,
                                    const uint32_t *tokens, size_t token_count,
                                    const struct bt_engine_extra *extra,
                                    size_t extra_count,
                                    struct bt_engine_digest *out);

#endif
