/* Questions to a prefix index over HTTP and their answers, in the shapes that
 * others already call (engine-wire.md 2.10): `baton index` and the admin
 * listener of `baton serve` answer alike.
 *
 *   POST /query          {model | model_name, token_ids, block_size?,
 *                         lora_name?, cache_salt?, ...}
 *   POST /query_by_hash  {model | model_name, seq_hashes | block_hashes |
 *                         block_hash, block_size?, ...}
 *   both                 tenant_id? ("default"), instance_id? (only this one),
 *                        additional_salt | additionalsalt?, routing_group?
 *
 * The name of the model's field says who asks and in which shape the answer
 * is: `model` Mooncake's, `model_name` Dynamo's. Hashes are own keys of
 * block_hash.h (sequence hashes), as unsigned or signed 64-bit numbers.
 *
 * All figures are tokens = leading blocks * block size. Tiers are cumulative in
 * both shapes: gpu <= cpu <= disk <= longest_matched, the last with external
 * stores. scores and dp / DP are per rank, device tier; the figures of an
 * instance are the largest of its ranks. Every instance that was asked about
 * is in the answer, also with 0. frequencies[i]: ranks, over those instances,
 * that hold all blocks up to and including i in any tier; ends before the
 * first 0. We add to each instance `state` and `cause` of its worst stream and
 * `exact`: true when that state is exact. What is not exact may miss blocks or,
 * when degraded or suspect, name some that are gone.
 */
#ifndef BATON_ORCHESTRATOR_INDEX_QUERY_H
#define BATON_ORCHESTRATOR_INDEX_QUERY_H

#include "baton/base/status.h"
#include "baton/orchestrator/core.h"
#include "baton/orchestrator/json.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_INDEX_TEXT_MAX 256        /* bytes of a name, terminator included */
#define BT_INDEX_BODY_MAX (8u << 20) /* bytes of a request */
#define BT_INDEX_TENANT   "default"  /* where none is named */

enum bt_index_shape { BT_INDEX_DYNAMO, BT_INDEX_MOONCAKE };

struct bt_index_query {
    enum bt_index_shape shape;
    char model[BT_INDEX_TEXT_MAX];
    char tenant[BT_INDEX_TEXT_MAX];
    char instance[BT_INDEX_TEXT_MAX]; /* "" = all */
    char additional_salt[BT_INDEX_TEXT_MAX];
    char routing_group[BT_INDEX_TEXT_MAX];
    uint32_t block_tokens; /* 0: not said */
    bool by_hash;
    uint64_t ns;      /* namespace seed; tokens only */
    uint32_t *tokens; /* owned; NULL when by_hash */
    size_t token_count;
    uint64_t *keys; /* owned; by_hash, else after bt_index_query_keys */
    size_t key_count;
};

struct bt_index_body {
    const char *bytes;
    size_t count;
    bool by_hash;
    size_t items_max; /* tokens or hashes accepted */
};
/* Room for what is wrong with a body: texts that name a key, an index or a byte
 * are written here. */
struct bt_index_fault {
    char text[192];
};
const char *bt_index_fault(struct bt_index_fault *fault, const char *format,
                           ...) __attribute__((format(printf, 2, 3)));
/* NULL, or what is wrong with the body (static text or fault's, for a 400;
 * nothing to free then). "out of memory" is one of them. A key that is known
 * and given twice is wrong. */
const char *bt_index_query_read(const struct bt_index_body *body,
                                struct bt_index_query *out,
                                struct bt_index_fault *fault);
/* A body that must be one JSON object. NULL, or where it is not. */
const char *bt_index_root(const char *body, size_t bytes, struct bt_json *out,
                          struct bt_index_fault *fault);
/* NULL, or that the key is there more than once. */
const char *bt_index_once(const struct bt_json *object, const char *name,
                          struct bt_index_fault *fault);
/* Own keys of the tokens' full blocks, or Eagle windows (block_hash.h); may be
 * called again for the others. Nothing to do when by_hash. BT_NO_MEMORY.
 * block_tokens > 0. */
enum bt_status bt_index_query_keys(struct bt_index_query *query,
                                   uint32_t block_tokens, bool eagle);
void bt_index_query_fini(struct bt_index_query *query);

/* One rank of an instance. */
struct bt_index_row {
    const char *instance;
    uint32_t rank;
    uint32_t row; /* in depths */
    enum bt_stream_state state;
    enum bt_stream_cause cause;
};
struct bt_index_view {
    const char *tenant; /* Mooncake's outer name */
    uint32_t block_tokens;
    const struct bt_index_row *rows; /* those of an instance adjacent */
    size_t row_count;
    const uint32_t *depths; /* [row * BT_TIERS + tier], blocks, cumulative */
};
/* Room that the answer needs at most, bytes. */
size_t bt_index_answer_bytes(const struct bt_index_view *view);
/* One JSON object. BT_NO_MEMORY: nothing useful is in out. */
enum bt_status bt_index_answer(const struct bt_index_view *view,
                               enum bt_index_shape shape, struct bt_text *out);
/* The worse of two: exact, partial, degraded, suspect, syncing, absent. */
bool bt_index_state_is_worse(enum bt_stream_state a, enum bt_stream_state b);

/* Fields of requests: a missing one and null leave *out alone. NULL, or what
 * is wrong. Text: a string without control characters that fits, or (ids) a
 * whole number, taken as its digits. */
const char *bt_index_text_field(const struct bt_json *object, const char *name,
                                char out[BT_INDEX_TEXT_MAX],
                                struct bt_index_fault *fault);
const char *bt_index_u32_field(const struct bt_json *object, const char *name,
                               uint32_t max, uint32_t *out,
                               struct bt_index_fault *fault);

#endif
