/* Own block keys: the identity of a KV block (engine-wire.md section 2; same
 * convention as Dynamo's and Mooncake's indexers, so keys interoperate).
 *
 *   NS       = 1337 + (lora ? XXH3_64(lora, seed 0) : 0)
 *                   + (salt ? XXH3_64(salt, seed 1) : 0)      wrapping u64
 *   local[i] = XXH3_64(u32le token x B [|| u64le mm_hash sorted], seed NS)
 *   seq[0]   = local[0];  seq[i] = XXH3_64(u64le seq[i-1] || u64le local[i],
 *                                          seed 1337)
 *
 * seq[i] names the whole prefix up to block i and is the index key. Whoever
 * forges a collision gets a badly priced route and nothing else: engines never
 * see these keys. Pure, no allocation.
 */
#ifndef BATON_PLANNER_BLOCK_HASH_H
#define BATON_PLANNER_BLOCK_HASH_H

#include <stddef.h>
#include <stdint.h>

#define BT_NS_PLAIN 1337u

/* Namespace seed of (adapter name, cache salt); an empty or NULL part does not
 * count. A leading "dynamo-cache-salt:" of the salt is stripped once. */
uint64_t bt_ns_seed(const char *lora, size_t lora_bytes, const char *salt,
                    size_t salt_bytes);

/* Position-independent hash of one block of `count` tokens with `mm_count`
 * multimodal hashes (any order; at most 64 are taken). Adapts to big-endian
 * hosts. */
uint64_t bt_block_local(const uint32_t *tokens, size_t count,
                        const uint64_t *mm, size_t mm_count, uint64_t ns);
/* Chain a block onto its parent's key. */
uint64_t bt_block_chain(uint64_t parent_key, uint64_t local);

/* Keys of the full blocks of a prompt: floor(count / block_tokens) keys, at
 * most keys_max; 0 when block_tokens is 0. Returns the number written. */
size_t bt_block_keys(const uint32_t *tokens, size_t count,
                     uint32_t block_tokens, uint64_t ns, uint64_t *keys_out,
                     size_t keys_max);

/* The same where blocks are SGLang's Eagle windows (engine-wire.md 2.4): block
 * i hashes tokens[i*B .. i*B+B], B + 1 of them: floor((count - 1) / B) keys. */
size_t bt_block_keys_eagle(const uint32_t *tokens, size_t count,
                           uint32_t block_tokens, uint64_t ns,
                           uint64_t *keys_out, size_t keys_max);

/* mm_hash of a multimodal identifier: exactly 64 hex digits -> the first 16 as
 * a number, anything else -> XXH3_64(utf8, seed 0). */
uint64_t bt_mm_hash(const char *identifier, size_t bytes);

#endif
