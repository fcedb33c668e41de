/* What sequencing needs of a batch before it is decoded: its time and its
 * rank label (engine-wire.md 1.5). */
#ifndef BATON_EVENTS_KV_PEEK_H
#define BATON_EVENTS_KV_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_PEEK_TS_END 1e11 /* s since 1970: 5,000 years */

/* Seconds; 0 when it is not found where engines put it, or is no time (not a
 * number, negative, from KV_PEEK_TS_END on). */
double kv_peek_ts(const void *payload, size_t bytes);
/* Passes over the events. False: no label, or not a batch. */
bool kv_peek_rank(const void *payload, size_t bytes, int64_t *rank_out);

#endif
