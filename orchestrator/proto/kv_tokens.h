/* Private to orchestrator/proto: token_ids of a store. */
#ifndef BATON_PROTO_KV_TOKENS_H
#define BATON_PROTO_KV_TOKENS_H

#include "baton/orchestrator/kv_events.h"
#include "kv_fields.h"

/* Pass the value at m, and set the field. A plain list is read into the
 * scratch at once: it is most of a payload, and one pass over it is enough. */
bool bt_kv_tokens_pass(struct msgpack *m, struct bt_kv_scratch *scratch,
                       struct kv_fields *out);
/* tokens, token_count and eagle of the store. False: no list, a bad token,
 * pairs that do not overlap, or more than the scratch holds. */
bool bt_kv_tokens_take(const struct kv_fields *f, struct bt_kv_scratch *scratch,
                       struct bt_kv_store *store);

#endif
