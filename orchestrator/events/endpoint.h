/* Endpoints of the ranks of one engine (engine-wire.md 1.2). */
#ifndef BATON_EVENTS_ENDPOINT_H
#define BATON_EVENTS_ENDPOINT_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

#define ENDPOINT_MAX 256

/* The endpoint of a rank: the port of `base` + rank. BT_INVALID: malformed,
 * the port leaves 1..65535, or a path with ranks; error_out says so. */
enum bt_status endpoint_of_rank(const char *base, uint32_t rank, char *out,
                                size_t size, char *error_out,
                                size_t error_size);
/* All ranks of both; replay may be NULL. BT_INVALID as above, or their ports
 * overlap on one host. */
enum bt_status endpoints_check(const char *events, const char *replay,
                               uint32_t ranks, char *error_out,
                               size_t error_size);

#endif
