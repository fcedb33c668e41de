/* Private to orchestrator/proto: identity parts of a store's extra_keys. */
#ifndef BATON_PROTO_KV_EXTRA_H
#define BATON_PROTO_KV_EXTRA_H

#include "baton/orchestrator/kv_events.h"
#include "kv_fields.h"

/* Fill salt, mm and mm_per_block of the store (lora, hashes and parent are set)
 * and clear full_attention when a block's identity cannot be known. False: the
 * event is malformed or larger than the scratch. */
bool bt_kv_extra_read(const struct kv_fields *f, struct bt_kv_scratch *scratch,
                      struct bt_kv_store *store);

#endif
