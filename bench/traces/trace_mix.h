/* What requests of each kind look like. Private to bench/traces. */
#ifndef BATON_TRACES_TRACE_MIX_H
#define BATON_TRACES_TRACE_MIX_H

#include "baton/base/rng.h"
#include "baton/bench/trace.h"

struct span {
    uint32_t min, max; /* drawn log-uniformly */
};

/* Tokens, turns and counts of one kind of traffic. A prompt is a system prompt
 * shared by many, then a document shared by some, then what is new. */
struct mix_kind {
    const char *name;
    uint32_t systems; /* system prompts per tenant; 0: none */
    struct span system_tokens;
    uint32_t documents; /* per tenant; 0: none */
    struct span document_tokens;
    struct span first_tokens;  /* new text of the first turn */
    struct span append_tokens; /* and of each further one */
    struct span turns;
    double gap_s;        /* mean time from an arrival to the next turn */
    double output_share; /* of output_mean */
};
const struct mix_kind *mix_kind_of(enum bt_trace_mix kind);

uint32_t mix_draw(struct bt_rng *rng, struct span span);
/* Zipf with exponent 1 over n ranks, by inversion of its continuous form. */
uint32_t mix_zipf(struct bt_rng *rng, uint32_t n);
/* Exponential with that mean, in 1 .. max. */
uint32_t mix_output(struct bt_rng *rng, double mean, uint32_t max);

#endif
