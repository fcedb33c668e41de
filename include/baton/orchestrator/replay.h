/* Replay of a journal: the recorded core again, event by event, and at each
 * arrival the question what another policy would have chosen in the very state
 * the recorded one saw. Nothing is re-enacted beyond that: later events are
 * the recorded ones, so costs are predictions made in equal states, never
 * outcomes of a world that did not happen (that is `baton sim`).
 */
#ifndef BATON_ORCHESTRATOR_REPLAY_H
#define BATON_ORCHESTRATOR_REPLAY_H

#include "baton/orchestrator/core.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_REPLAY_TOP_MAX 1000u

/* One arrival at which the two policies chose differently. */
struct bt_replay_change {
    uint64_t number; /* of the request, from 1 */
    int64_t at_ns;   /* since the first event */
    uint32_t prompt_tokens;
    struct bt_place_candidate recorded, other; /* worker slots */
};

struct bt_replay_result {
    uint64_t events, requests;
    int64_t span_ns;
    bool whole;          /* the journal has its end record */
    char cut[128];       /* else: where and why it ends */
    bool verified;       /* every effects hash came out as recorded */
    uint64_t differs_at; /* first event whose effects differ, from 1; 0 none */
    uint32_t worker_count;
    char policy[64];
    /* of the other policy; asked == 0 when there was none */
    uint64_t asked, same, changed_p, changed_d, changed_both, changed_source;
    uint64_t held, refused, no_worker;          /* its other answers */
    double recorded_total_s, other_total_s;     /* sums over asked pairs */
    double recorded_changed_s, other_changed_s; /* over changed ones */
    double recorded_bytes, other_bytes; /* KV to be moved, fetches included */
    struct bt_replay_change top[BT_REPLAY_TOP_MAX]; /* largest |difference| */
    size_t top_count;
};

struct bt_replay_options {
    const struct bt_policy *other; /* NULL: verify only */
    double knobs[BT_POLICY_KNOBS_MAX];
    size_t top; /* changes to keep, <= BT_REPLAY_TOP_MAX */
    bool stop_at_difference;
};

/* BT_OK also for a journal that was cut. Else as bt_journal_open, or
 * BT_INCOMPATIBLE: this build has not the recorded policy; BT_NO_MEMORY. */
enum bt_status bt_replay_run(const char *path,
                             const struct bt_replay_options *options,
                             struct bt_replay_result *out, char *error_out,
                             size_t error_size);

#endif
