/* Stores of one stream whose parent is not known yet (engine-wire.md 1.10):
 * kept for a while, within limits, and handed out when the parent comes. */
#ifndef BATON_EVENTS_KV_PARKED_H
#define BATON_EVENTS_KV_PARKED_H

#include "kv_stream.h"

struct kv_parked_store;

struct kv_parked {
    uint32_t max;
    struct kv_budget *budget;           /* kept */
    struct kv_parked_store *old, *new_; /* by age */
    struct kv_parked_store **parents;   /* buckets, by parent */
    struct kv_parked_block **blocks;    /* buckets, by hash */
    uint32_t count;
    struct bt_stream_counts *counts; /* the caller's */
};

void kv_parked_init(struct kv_parked *p, uint32_t max, struct kv_budget *budget,
                    struct bt_stream_counts *counts);
/* Drops all, uncounted. */
void kv_parked_fini(struct kv_parked *p);
/* Keep a copy of a store that has a parent. What finds no room is counted as
 * parked_dropped. */
void kv_parked_add(struct kv_parked *p, int64_t now_ns,
                   const struct bt_kv_store *store);
/* These hashes were stored: each store that waited for one is handed to fn,
 * then those that waited for its blocks, and so on. fn says whether it was
 * stored; it may not touch p. */
typedef bool (*kv_parked_fn)(void *arg, const struct bt_kv_store *store);
void kv_parked_attach(struct kv_parked *p, const uint64_t *hashes, size_t count,
                      kv_parked_fn fn, void *arg);
/* A block was evicted while it was parked: it and those behind it in its event
 * are left out. */
void kv_parked_removed(struct kv_parked *p, uint64_t hash, enum bt_tier tier);
/* tier NULL: all. */
void kv_parked_clear(struct kv_parked *p, const enum bt_tier *tier);
/* Drop those parked before that time. */
void kv_parked_expire(struct kv_parked *p, int64_t before_ns);

#endif
