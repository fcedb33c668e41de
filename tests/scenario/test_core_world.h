/* A tiny fleet around one core for the scenario tests: events in by one-line
 * calls, effects out as one line of text.
 *
 *   A1            request with cookie 1 accepted
 *   P1#1@0        leg P of request 1, attempt 1, to worker slot 0
 *   P1#1@0<1:64   the same, 64 tokens of prefix fetched from slot 1 before
 *   D1#2@3+kv     leg D, attempt 2, to slot 3, with P's parameters
 *   R1@3          hand-off of request 1 released through slot 3
 *   X1#1@0        attempt 1 of request 1 on slot 0 aborted
 *   W1@0<1:64     slot 0 pulls 64 tokens of request 1 from slot 1 ahead of it
 *   F1:ok/200     finished, outcome and status
 *
 * Every call checks the counters' invariant. Times are milliseconds. */
#ifndef TEST_CORE_WORLD_H
#define TEST_CORE_WORLD_H

#include "baton/orchestrator/core.h"

#define WORLD_WORKERS  6
#define WORLD_COOKIES  512
#define WORLD_EFFECTS  64
#define WORLD_LINE     4096
#define WORLD_BLOCK    16u
#define WORLD_START_MS 1000

struct world {
    struct bt_core_config config;
    struct bt_core_worker_config workers[WORLD_WORKERS];
    struct bt_core_link_config links[WORLD_WORKERS * WORLD_WORKERS];
    struct bt_core_model_config models[2];
    void *memory;
    struct bt_arena arena;
    struct bt_core *core;
    int64_t now_ms;
    struct bt_effect items[WORLD_EFFECTS];
    struct bt_effects fx;
    enum bt_status status; /* of the last step */
    struct bt_request_id ids[WORLD_COOKIES];
    struct bt_decision decisions[WORLD_COOKIES]; /* of the finished */
    unsigned int finished[WORLD_COOKIES];
    char line[WORLD_LINE];
};

/* Sets a default: slots 0, 1 prefill, 2, 3 decode, block 16, a policy that
 * takes the earliest first token, lowest slots on a tie; links of 10 GB/s,
 * prefill 1 ms + 0.1 ms per token, decode step 10 ms. Change the configuration,
 * then world_start(). */
void world_init(struct world *w);
/* Makes the core; every worker ready (incarnation 1) and its stream exact. */
void world_start(struct world *w);
/* Makes the core; workers stay pending. */
void world_start_pending(struct world *w);
void world_fini(struct world *w);

/* One event; the effects as text (valid until the next call). */
const char *world_step(struct world *w, const struct bt_event *event);
const char *world_tick(struct world *w, int64_t advance_ms);
const char *world_worker(struct world *w, uint32_t slot,
                         enum bt_worker_state state);
const char *world_ready(struct world *w, uint32_t slot, uint64_t incarnation,
                        uint32_t block_tokens);
void world_stream(struct world *w, uint32_t slot, enum bt_stream_state state);
/* prompt of 100 tokens, known, no keys, max_tokens 10. */
struct bt_ev_request world_ask(uint64_t cookie);
const char *world_send(struct world *w, const struct bt_ev_request *ask);
const char *world_request(struct world *w, uint64_t cookie);
const char *world_gone(struct world *w, uint64_t cookie);
const char *world_prefilled(struct world *w, uint64_t cookie, uint32_t attempt,
                            bool params);
const char *world_http(struct world *w, uint64_t cookie, uint32_t attempt,
                       enum bt_leg leg, int status);
const char *world_fail(struct world *w, uint64_t cookie, uint32_t attempt,
                       enum bt_leg leg, enum bt_leg_failure how);
const char *world_cut(struct world *w, uint64_t cookie, uint32_t attempt,
                      enum bt_leg_failure how); /* leg D, bytes were sent */
/* The answer of leg P with usage. */
const char *world_answered(struct world *w, uint64_t cookie, uint32_t attempt,
                           uint32_t prompt_tokens, uint32_t cached_tokens);
const char *world_first(struct world *w, uint64_t cookie, uint32_t attempt);
const char *world_tokens(struct world *w, uint64_t cookie, uint32_t attempt,
                         uint32_t tokens);
const char *world_done(struct world *w, uint64_t cookie, uint32_t attempt);

struct bt_core_worker_info world_info(const struct world *w, uint32_t slot);
uint32_t world_live(const struct world *w);

#endif
