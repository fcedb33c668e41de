/* A bed (serve_bed.h) whose prefill worker has an event plane: an engine's PUB
 * and replay ROUTER in this process, which sends what a test says. Workers are
 * w0 (prefill, with events) and w1 (decode). */
#ifndef BATON_TESTS_EVENT_BED_H
#define BATON_TESTS_EVENT_BED_H

#include "baton/orchestrator/core.h"
#include "serve_bed.h"
#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EVENT_BED_HISTORY 64

struct event_engine {
    void *context, *pub, *router;
    char events[64], replay[64];
    struct {
        unsigned char bytes[16384];
        size_t count;
    } history[EVENT_BED_HISTORY];
    unsigned int next;
    unsigned int first; /* the oldest that it still replays */
    unsigned int asked; /* replays served */
    bool subscribed, mute;
    ev_timer timer;
};

extern struct bed bed;
extern struct event_engine engine;

/* The workers and the engine; the model's blocks have 4 tokens. What a test
 * wants otherwise it says before event_bed_serve, which starts the server and
 * waits for its subscription only. */
void event_bed_open(bool replay);
void event_bed_serve(const char *extra);
/* Both, until the workers are in service. past: a batch that was sent before
 * the server came, or NULL. */
void event_bed_start(bool replay, const char *past);
/* Also of a bed that never had a server. */
void event_bed_finish(void);
/* Wait until somebody has subscribed to the engine. */
void until_subscribed(void);

/* History that was there before the server: needs the replay socket. */
void remember(const char *hex);
/* Send a batch as the next one, or under a number of its own. */
void publish(const char *hex);
void publish_bytes(const void *bytes, size_t count);
void publish_as(uint64_t seq, const char *hex);
void send_frames(const void *seq, size_t seq_bytes, const void *payload,
                 size_t count);

/* Wait for the state of w0's stream, or the blocks it is believed to hold. */
void until_state(enum bt_stream_state state);
void until_blocks(unsigned int n);

#endif
