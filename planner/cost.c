/* Prefill, decode step and transfer times, and the named presets. Decides what
 * a published coefficient set costs; leaves which worker runs which set, and
 * which flows share a link, to the callers.
 *
 * Invariant: every result lies in [0, BT_COST_INFINITE]; anything not a
 * number, negative or beyond that is infinite, never free.
 */
#include "baton/planner/cost.h"

#include "baton/base/units.h"

#include <string.h>

struct preset {
    const char *name;
    struct bt_compute_model model;
};

/* cost-models.md section 3: a, b, c of prefill, a', b', c' of decode, ms. */
static const struct preset presets[] = {
    {"a100-70b-tp8", {20.80, 0.09637, 5.81e-7, 16.63, 0.0755, 4.09e-5, 1}},
    {"a100-70b-tp4", {15.24, 0.16100, 1.32e-6, 28.19, 0.0993, 6.49e-5, 1}},
    {"h100-8b-tp1", {0.47, 0.01984, 3.80e-7, 6.35, 0.0060, 3.95e-5, 1}},
    {"h100-70b-tp4", {0.04, 0.06451, 2.27e-7, 14.57, 0.0286, 2.48e-5, 1}},
    {"h100-70b-tp8", {6.51, 0.03520, 2.37e-7, 8.86, 0.0228, 1.30e-5, 1}},
    {"h100-70b-tp8-fp8", {7.57, 0.02799, 1.84e-7, 7.06, 0.0286, 8.86e-6, 1}},
    {"h200-8b-tp1", {1.22, 0.02005, 3.75e-7, 4.50, 0.0110, 2.72e-5, 1}},
    {"h200-70b-tp4", {0.21, 0.06167, 4.98e-7, 10.85, 0.0344, 1.60e-5, 1}},
    {"h200-70b-tp8", {6.97, 0.03729, 1.06e-7, 7.19, 0.0271, 9.26e-6, 1}},
    {"h100-qwen3-32b-tp2", {0, 0.05216, 5.72e-7, 13.26, 0.0180, 3.76e-5, 1}},
    {"h100-qwen3-32b-tp4-fp8",
     {2.82, 0.02271, 1.45e-7, 5.71, 0.0194, 1.40e-5, 1}},
};

#define PRESETS (sizeof(presets) / sizeof(presets[0]))

enum bt_status bt_compute_preset(const char *name,
                                 struct bt_compute_model *model_out)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) != 0)
            continue;
        *model_out = presets[i].model;
        return BT_OK;
    }
    return BT_NOT_FOUND;
}

const char *bt_compute_preset_name(size_t i)
{
    return i < PRESETS ? presets[i].name : NULL;
}

/* A NaN fails both comparisons and comes out infinite. */
static int64_t ms_to_ns(double ms, double speedup)
{
    double ns = ms * (double)BT_NS_PER_MS / speedup;

    if (!(speedup > 0) || !(ns >= 0 && ns < (double)BT_COST_INFINITE))
        return BT_COST_INFINITE;
    return (int64_t)(ns + 0.5);
}

int64_t bt_prefill_ns(const struct bt_compute_model *m, uint64_t new_tokens,
                      uint64_t cached_tokens)
{
    double n = (double)new_tokens;
    double h = (double)cached_tokens;

    return ms_to_ns(m->prefill_a_ms + m->prefill_b_ms * n +
                        m->prefill_c_ms * n * (n + 2 * h),
                    m->speedup);
}

int64_t bt_decode_step_ns(const struct bt_compute_model *m, uint64_t batch,
                          uint64_t context_tokens)
{
    return ms_to_ns(m->decode_a_ms + m->decode_b_ms * (double)batch +
                        m->decode_c_ms * (double)context_tokens,
                    m->speedup);
}

static int64_t add_cost(int64_t a, int64_t b)
{
    return a >= BT_COST_INFINITE - b ? BT_COST_INFINITE : a + b;
}

/* bytes at rate, rounded down to ns. The remainder is below one second, where
 * the error of a double is far below a nanosecond. */
static int64_t bytes_ns(uint64_t bytes, uint64_t rate)
{
    uint64_t seconds = bytes / rate;
    double rest = (double)(bytes % rate) * (double)BT_NS_PER_S / (double)rate;

    if (seconds >= (uint64_t)(BT_COST_INFINITE / BT_NS_PER_S))
        return BT_COST_INFINITE;
    return (int64_t)seconds * BT_NS_PER_S + (int64_t)rest;
}

static uint64_t shared_bytes(uint64_t bytes, const uint64_t *left, size_t count)
{
    uint64_t total = bytes;

    for (size_t i = 0; i < count; i++) {
        uint64_t ahead = left[i] < bytes ? left[i] : bytes;

        if (__builtin_add_overflow(total, ahead, &total))
            return UINT64_MAX;
    }
    return total;
}

int64_t bt_transfer_ns(const struct bt_link_model *link, uint64_t bytes,
                       uint64_t descriptors, const uint64_t *left, size_t count)
{
    uint64_t posting;

    if (bytes == 0)
        return 0;
    if (link->rate_bytes_per_s == 0 || link->setup_ns < 0 ||
        link->per_descriptor_ns < 0 || link->setup_ns >= BT_COST_INFINITE)
        return BT_COST_INFINITE;
    if (__builtin_mul_overflow(descriptors, (uint64_t)link->per_descriptor_ns,
                               &posting) ||
        posting >= (uint64_t)BT_COST_INFINITE)
        return BT_COST_INFINITE;
    return add_cost(
        add_cost(link->setup_ns, (int64_t)posting),
        bytes_ns(shared_bytes(bytes, left, count), link->rate_bytes_per_s));
}
