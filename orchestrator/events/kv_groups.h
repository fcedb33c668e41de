/* Which KV cache group of a hybrid model is indexed (engine-wire.md 1.10):
 * the lowest that says it is full attention; the only one, if none says what
 * it is; of several that do not, the lowest whose stores always satisfy the
 * length rule, and then the stream is `partial`. */
#ifndef BATON_EVENTS_KV_GROUPS_H
#define BATON_EVENTS_KV_GROUPS_H

#include "baton/orchestrator/event_plane.h"
#include "baton/orchestrator/kv_events.h"
#include <stdbool.h>
#include <stdint.h>

#define KV_GROUPS_MAX  64 /* a group beyond is never indexed */
#define KV_GROUPS_NONE UINT32_MAX

struct kv_groups {
    uint64_t untold, full, other, bent; /* bit masks of groups: kind not told;
                                           full; another; broke the rule */
    uint32_t chosen;                    /* KV_GROUPS_NONE: none */
};

void kv_groups_init(struct kv_groups *g);
/* Learn from a store. True: another group is indexed from now on, and what the
 * former has left is void. */
bool kv_groups_learn(struct kv_groups *g, const struct bt_kv_event *store);
/* The choice is a guess, or there is nothing to choose. */
bool kv_groups_unsure(const struct kv_groups *g);
/* For a warm restart: removals may come before any store does. */
void kv_groups_mark(const struct kv_groups *g, struct bt_stream_mark *out);
void kv_groups_resume(struct kv_groups *g, const struct bt_stream_mark *mark);
/* Is the event of the group that is indexed? */
bool kv_groups_takes(const struct kv_groups *g,
                     const struct bt_kv_event *event);

#endif
