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
    bool as_maps;
    const char *endpoint, *replay_endpoint, *topic;
    uint32_t buffer;  /* batches kept for replay */
    uint64_t entropy; /* hides the content keys: hashes are opaque */
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
const char *bt_events_replay_endpoint(const struct bt_events *events);
void bt_events_set_faults(struct bt_events *events,
                          const struct bt_events_faults *faults);

/* Queue events for the next batch; hashes are content keys here. */
void bt_events_stored(struct bt_events *events,
                      const struct bt_event_store *store);
void bt_events_removed(struct bt_events *events, uint64_t key);
void bt_events_cleared(struct bt_events *events);
/* Publish what is queued as one batch. */
void bt_events_flush(struct bt_events *events);
uint64_t bt_events_next_sequence(const struct bt_events *events);

#endif
