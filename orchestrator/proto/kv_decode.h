/* Private to orchestrator/proto: what one event means. */
#ifndef BATON_PROTO_KV_DECODE_H
#define BATON_PROTO_KV_DECODE_H

#include "baton/orchestrator/kv_events.h"
#include "kv_fields.h"

enum kv_verdict { KV_GOOD, KV_BAD, KV_FOREIGN };
/* Fill the event, which is zero. KV_BAD: malformed, or larger than the scratch.
 * KV_FOREIGN: a tag that is not ours. */
enum kv_verdict bt_kv_event_decode(const struct kv_fields *f,
                                   struct bt_kv_scratch *scratch,
                                   struct bt_kv_event *event);

#endif
