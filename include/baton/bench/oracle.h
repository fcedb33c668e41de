/* What an emulated engine computes, as functions of the prompt alone. A client
 * checks answers against it, `baton serve` uses the byte tokenizer.
 *
 * Content. A chain value h_t names the token prefix 0..t:
 *   h_-1 = root(model seed, namespace)      h_t = next(h_t-1, token_t)
 * Token t's KV row in a layer is a stream of 64-bit words keyed by (h_t,
 * layer), kv_bytes_per_token / layers bytes. A block is contiguous, layer by
 * layer: the rows of its slots in layer 0, then those of layer 1, ...
 *
 * Output. s_0 absorbs the digest of every block of the prompt (a last partial
 * block over its filled slots only). Token i is token(s_i). Then its own row is
 * appended, and s_i+1 absorbs the digest, as it stands then, of block
 * (i mod n_blocks) of the whole sequence. The engine reads its pool for this,
 * so a lost, stale, swapped or half-filled block changes the text; the oracle
 * computes the rows from the prompt.
 *
 * A cache salt is part of the namespace and thus of the content: a block
 * served across tenants shows as wrong text.
 */
#ifndef BATON_BENCH_ORACLE_H
#define BATON_BENCH_ORACLE_H

#include "baton/base/status.h"
#include "baton/orchestrator/bytes_tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_oracle {
    uint64_t model_seed;         /* see bt_oracle_init */
    uint64_t ns;                 /* bt_ns_seed(adapter, salt) */
    uint32_t block_tokens;       /* 1 .. 4096 */
    uint32_t kv_bytes_per_token; /* all layers */
    uint32_t layers;             /* kv bytes / layers: a multiple of 8 */
};

#define BT_ORACLE_KV_BYTES 256u /* defaults of `baton engine` */
#define BT_ORACLE_LAYERS   4u
#define BT_ORACLE_BLOCK    16u

/* Defaults above for a model (name and --seed) and a namespace seed. */
void bt_oracle_init(struct bt_oracle *o, const char *model, uint64_t seed,
                    uint64_t ns);
/* Are the sizes usable together? */
bool bt_oracle_valid(const struct bt_oracle *o);
uint64_t bt_oracle_block_bytes(const struct bt_oracle *o);

uint64_t bt_oracle_root(const struct bt_oracle *o);
uint64_t bt_oracle_next(uint64_t chain, uint32_t token);
/* Write the rows of the token whose chain value is given into slot `slot` of a
 * block (all layers). */
void bt_oracle_row_write(const struct bt_oracle *o, uint64_t chain,
                         unsigned char *block, uint32_t slot);
/* Digest of the first `filled` slots of a block, over all layers. */
uint64_t bt_oracle_digest(const struct bt_oracle *o, const unsigned char *block,
                          uint32_t filled);
uint64_t bt_oracle_absorb(uint64_t state, uint64_t digest);
/* A printable byte out of 64 (letters, digits, space, full stop): so generated
 * text tokenizes to the very tokens that were generated. */
uint32_t bt_oracle_token(uint64_t state);

/* The first n_out output tokens for a prompt of count > 0 tokens. Speed: about
 * 2 GB of KV a second. BT_INVALID: unusable sizes or empty prompt;
 * BT_NO_MEMORY. */
enum bt_status bt_oracle_output(const struct bt_oracle *o,
                                const uint32_t *tokens, size_t count,
                                size_t n_out, uint32_t *out);

#endif
