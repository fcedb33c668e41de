/* Shared by kv_stream.c and kv_replay.c only. */
#ifndef BATON_EVENTS_KV_STREAM_PRIV_H
#define BATON_EVENTS_KV_STREAM_PRIV_H

#include "kv_stream.h"

enum kv_match { KV_MATCH_UNKNOWN, KV_MATCH_SAME, KV_MATCH_OTHER };

uint64_t kv_payload_hash(const struct kv_batch *batch);
enum kv_match kv_recent_match(const struct kv_stream *s, uint64_t seq,
                              uint64_t hash);
/* A batch of a known time, before what this life has said? */
bool kv_is_older(const struct kv_stream *s, const struct kv_batch *batch);

/* Tell what the stream is worth now, if that changed. */
void kv_settle(struct kv_stream *s);
void kv_apply(struct kv_stream *s, const struct kv_batch *batch, uint64_t hash);
/* The first batch that is applied of a life. */
void kv_start(struct kv_stream *s, uint64_t seq);
void kv_set_hole(struct kv_stream *s, enum bt_stream_cause cause);
/* Forget the life; a replay that runs stays asked for. */
void kv_forget(struct kv_stream *s);

bool kv_replay_active(const struct kv_stream *s);
bool kv_replay_possible(const struct kv_stream *s);
void kv_replay_begin(struct kv_stream *s, int64_t now_ns,
                     enum bt_stream_cause cause);
/* Give it up without a result. */
void kv_replay_abandon(struct kv_stream *s);
/* Wants the overlap as proof, also of the dump under way. */
void kv_replay_prove(struct kv_stream *s, int64_t now_ns,
                     enum bt_stream_cause cause);

#endif
