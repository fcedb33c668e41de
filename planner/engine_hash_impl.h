/* The bytes that a vLLM block digest is taken of, piece by piece. Private to
 * this folder and its unit test.
 */
#ifndef BATON_PLANNER_ENGINE_HASH_IMPL_H
#define BATON_PLANNER_ENGINE_HASH_IMPL_H

#include "baton/planner/engine_hash.h"

/* The next `size` bytes, not kept by the writer. */
typedef void (*eh_bytes_fn)(void *arg, const unsigned char *bytes, size_t size);

struct eh_block {
    const struct bt_engine_digest *parent;
    const uint32_t *tokens;
    size_t token_count;
    const struct bt_engine_extra *extra;
    size_t extra_count;
};

/* Canonical CBOR of (parent, tokens, extra or null), and of a text. */
void eh_encode_block(const struct eh_block *block, eh_bytes_fn sink, void *arg);
void eh_encode_text(const char *text, size_t size, eh_bytes_fn sink, void *arg);

#endif
