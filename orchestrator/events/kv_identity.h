/* Does the engine hash as its operator says (engine-wire.md 2.7)? */
#ifndef BATON_EVENTS_KV_IDENTITY_H
#define BATON_EVENTS_KV_IDENTITY_H

#include "baton/planner/engine_hash.h"
#include "baton/planner/prefix_index.h"

enum kv_identity { KV_IDENTITY_SKIPPED, KV_IDENTITY_SAME, KV_IDENTITY_OTHER };

/* Chains from the start only, without images and without overlapping windows;
 * the others are skipped. */
enum kv_identity kv_identity_check(enum bt_engine_hash kind,
                                   const struct bt_engine_digest *root,
                                   const struct bt_kv_store *store);

#endif
