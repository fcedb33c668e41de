/* What one rank's batches mean: decodes them and tells the sink, as far as an
 * event counts at all (engine-wire.md 1.10). */
#ifndef BATON_EVENTS_KV_APPLY_H
#define BATON_EVENTS_KV_APPLY_H

#include "kv_groups.h"
#include "kv_parked.h"
#include "kv_stream.h"

/* Decode errors are held against this many events, or this long. */
#define KV_WINDOW_EVENTS 1000
#define KV_WINDOW_NS     INT64_C(10000000000)
/* Block sizes that are told of at most, of one life. */
#define KV_SIZES_MAX 8

struct kv_apply_config {
    const char *name; /* of the source; kept */
    uint32_t source, rank;
    bool port_is_rank;     /* a label that differs is wrong */
    uint32_t ranks;        /* of the source */
    uint32_t block_tokens; /* 0: the first that is seen */
    enum bt_removals removals;
    enum bt_engine_hash hash;
    struct bt_engine_digest root;
    enum bt_eagle eagle;
    bool *eagle_said;                 /* of the source; with eagle told */
    const struct bt_event_sink *sink; /* kept, and all below */
    struct bt_kv_scratch *scratch;
    struct kv_budget *budget;
    uint32_t parked_max;
    struct kv_stream *stream;
    struct bt_stream_counts *counts;
};

struct kv_apply {
    struct kv_apply_config c;
    struct kv_groups groups;
    struct kv_parked parked;
    enum bt_kv_counting counting; /* as told */
    bool leaks;                   /* AUTO: removals are of last copies */
    bool heals;                   /* blocks it has are announced again */
    uint32_t block_tokens;        /* seen, 0 none */
    uint32_t reference;           /* what they should be, 0 unknown */
    uint32_t sizes[KV_SIZES_MAX];
    uint32_t size_count;
    bool size_bad;
    bool hash_said, label_said;
    bool stored; /* in this batch */
    int64_t now_ns;
    int64_t window_ns;
    uint64_t window_events, window_bad;
    bool errors_said; /* of the window before */
};

void kv_apply_init(struct kv_apply *a, const struct kv_apply_config *config);
void kv_apply_fini(struct kv_apply *a);
void kv_apply_batch(struct kv_apply *a, int64_t now_ns, const void *payload,
                    size_t bytes);
/* The rank begins anew: the sink is told to forget it. */
void kv_apply_forget(struct kv_apply *a);
/* bt_event_plane_heal. */
void kv_apply_heal(struct kv_apply *a, bool on);
/* Go on as a mark says. */
void kv_apply_resume(struct kv_apply *a, const struct bt_stream_mark *mark);

#endif
