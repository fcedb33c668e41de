/* Private to orchestrator/proto: lists of block hashes. */
#ifndef BATON_PROTO_KV_HASHES_H
#define BATON_PROTO_KV_HASHES_H

#include "baton/orchestrator/kv_events.h"
#include "msgpack.h"

bool bt_kv_is_int(const struct msgpack_item *item);
/* One hash: the 64 bits of an integer, or the last 8 bytes of a digest. */
bool bt_kv_hash_of(const struct msgpack_item *item, uint64_t *out);
/* The list (its header and what follows it) into scratch->hashes. False: no
 * list, a bad hash, or more than the scratch holds. */
bool bt_kv_hashes_read(const struct msgpack_item *list, struct msgpack rest,
                       struct bt_kv_scratch *scratch, size_t *count_out);
/* Does one of scratch->hashes[0..count) occur twice? May reorder them
 * (*reordered is set then) and writes into scratch->remaining. */
bool bt_kv_hashes_repeat(struct bt_kv_scratch *scratch, size_t count,
                         bool *reordered);

#endif
