/* The event plane of an engine: PUB socket, replay ROUTER, replay buffer and
 * the faults that a lossy network would add. One per engine, on its loop;
 * never blocks. */
#ifndef BATON_BENCH_ENGINE_EVENTS_H
#define BATON_BENCH_ENGINE_EVENTS_H

#include "events_encode.h"

#include "baton/base/rng.h"
#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_events;

struct bt_events_config {
    enum bt_engine_event_form form;
    bool hash_bytes;
    const char *endpoint;        /* PUB */
    bool connect;                /* to an orchestrator's socket; else bind */
    const char *replay_endpoint; /* NULL: no replay */
    bool replay_bare;            /* replies without the topic's frame */
    const char *topic;
    uint32_t buffer; /* batches kept for replay */
    uint64_t seed;   /* of the faults' dice */
};

/* What happens to batches on their way out; percentages 0 .. 100. */
struct bt_events_faults {
    double drop, reorder, duplicate, delay_ms;
};

enum bt_status bt_events_create(struct ev_loop *loop,
                                const struct bt_events_config *config,
                                struct bt_events **out, char *error_out,
                                size_t error_size);
void bt_events_destroy(struct bt_events *events);
const char *bt_events_endpoint(const struct bt_events *events);
/* "" without replay. */
const char *bt_events_replay_endpoint(const struct bt_events *events);
/* Before anything was queued. BT_INVALID: too long. */
enum bt_status bt_events_topic(struct bt_events *events, const char *topic);
void bt_events_set_faults(struct bt_events *events,
                          const struct bt_events_faults *faults);

/* Queue events for the next batch; hashes as they are announced. */
void bt_events_stored(struct bt_events *events,
                      const struct bt_event_store *store);
void bt_events_removed(struct bt_events *events, uint64_t hash);
void bt_events_cleared(struct bt_events *events);
/* Publish what is queued as one batch. */
void bt_events_flush(struct bt_events *events);
uint64_t bt_events_next_sequence(const struct bt_events *events);

#endif
