/* Cost models of the first planner: prefill, decode step, transfer on a link
 * shared by our own flows. Pure. Durations int64 ns, sizes u64 bytes. All
 * functions saturate at BT_COST_INFINITE instead of overflowing; NaN, negative
 * or zero rates make a cost infinite, never free. Sources: cost-models.md
 * sections 3, 4, 5, 8.
 */
#ifndef BATON_PLANNER_COST_H
#define BATON_PLANNER_COST_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

#define BT_COST_INFINITE (INT64_MAX / 4)

/* Prefill of n new tokens after h cached ones: a + b*n + c*n*(n + 2h).
 * Decode step of a batch: a + b*batch + c*sum(context). Milliseconds, as the
 * published tables give them. */
struct bt_compute_model {
    double prefill_a_ms, prefill_b_ms, prefill_c_ms;
    double decode_a_ms, decode_b_ms, decode_c_ms;
    double speedup; /* > 0; emulated engines run this many times faster */
};

/* A named preset ("h100-8b-tp1", ...): cost-models.md section 3. BT_NOT_FOUND
 * leaves model_out untouched; speedup comes out as 1. */
enum bt_status bt_compute_preset(const char *name,
                                 struct bt_compute_model *model_out);
/* Name of preset i, or NULL past the end: for help texts and hints. */
const char *bt_compute_preset_name(size_t i);

int64_t bt_prefill_ns(const struct bt_compute_model *m, uint64_t new_tokens,
                      uint64_t cached_tokens);
int64_t bt_decode_step_ns(const struct bt_compute_model *m, uint64_t batch,
                          uint64_t context_tokens);

/* A link between one prefill and one decode worker. */
struct bt_link_model {
    uint64_t rate_bytes_per_s;
    int64_t setup_ns;          /* per transfer: control round trip, post */
    int64_t per_descriptor_ns; /* per coalesced run */
};

/* Transfer of `bytes` in `descriptors` runs while flows with the given bytes
 * left share the link, equal shares, no later arrivals (W6):
 *   T = setup + descriptors*per_descriptor + (bytes + sum min(left_i, bytes))/C
 * left may be NULL when count is 0. bytes == 0 costs 0. */
int64_t bt_transfer_ns(const struct bt_link_model *link, uint64_t bytes,
                       uint64_t descriptors, const uint64_t *left,
                       size_t count);

#endif
