/* A scripted fleet whose core is recorded into a journal, shared by the tests
 * of orchestrator/journal: what is told is told to the core and written. */
#ifndef TEST_JOURNAL_FLEET_H
#define TEST_JOURNAL_FLEET_H

#include "baton/base/units.h"
#include "baton/orchestrator/journal.h"
#include "baton/orchestrator/replay.h"

#define WORKERS  4u
#define BLOCK    16u
#define REQUESTS 40u
#define TOKENS   160u

extern char fleet_path[]; /* made by fleet_file_make */

struct fleet {
    struct bt_core_worker_config workers[WORKERS];
    struct bt_core_link_config links[WORKERS * WORKERS];
    struct bt_core_model_config model;
    struct bt_topology_node nodes[WORKERS];
    struct bt_topology_worker placed[WORKERS];
    struct bt_topology_rack rack;
    struct bt_topology_spec spec;
    struct bt_core_config config;
    void *topology_memory, *memory;
    struct bt_core *core;
    struct bt_effects effects;
    struct bt_effect items[256];
    struct bt_journal_writer *writer;
    int64_t now;
    bool tiers;            /* workers load from their host memory */
    uint32_t last_overlap; /* of the last decision, at p */
    bool ranks;            /* prefill workers have two; guesses, self-check */
    bool small;            /* the index is full most of the time */
    uint32_t rank;         /* of the events that are told */
    uint32_t cached;       /* tokens that leg P says it found */
};

/* How an engine tells of blocks. */
enum store_kind {
    STORE_CHAIN,
    STORE_CHILD,      /* goes on from a block that may be unknown */
    STORE_WINDOW,     /* a group without full attention, same hashes */
    STORE_MALFORMED,  /* one token short */
    STORE_OFFLOADED,  /* hashes only, another tier */
    STORE_OWN_PARENT, /* refused */
    STORE_KINDS
};

/* Group set-up and tear-down. */
int fleet_file_make(void **state);
int fleet_file_drop(void **state);
void fleet_config(struct fleet *f);
/* Makes core and journal; every worker ready, its (first) stream exact. */
void fleet_start(struct fleet *f, bool topology);
void fleet_stop(struct fleet *f);
/* One event, 3 ms after the last; it must be BT_OK, or whatever it is. */
void fleet_step(struct fleet *f, struct bt_event *event);
void fleet_step_any(struct fleet *f, struct bt_event *event);
/* The effect of this type among those of the last step: there must be one. */
struct bt_effect fleet_effect(const struct fleet *f, enum bt_effect_type type);
/* Tokens of request i: a shared half, then its own; values that would be found
 * in the file if they got there. */
void fleet_tokens(uint32_t i, uint32_t *tokens);
/* Engine hash of its block b. */
uint64_t fleet_hash(uint32_t i, uint32_t b);
void fleet_store(struct fleet *f, uint32_t worker, uint32_t i,
                 const uint32_t *tokens);
/* Request i from its arrival to its end. */
void fleet_serve(struct fleet *f, uint32_t i);
/* Blocks [first, last) of chain i, as an engine would tell of them. */
void fleet_store_as(struct fleet *f, enum store_kind kind, uint32_t worker,
                    uint32_t i, uint32_t first, uint32_t last);
void fleet_remove(struct fleet *f, uint32_t worker, uint32_t i, uint32_t first,
                  uint32_t last, enum bt_tier tier);
/* Of the whole file; policy NULL: nobody else is asked. */
void fleet_replay(const char *policy, struct bt_replay_result *result);

#endif
