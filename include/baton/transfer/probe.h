/* What it takes to measure the paths between agents: the scratch memory that
 * every agent lets peers read, which pulls to make, the line through what they
 * took, and what that says of other pulls, alone or beside each other. The
 * functions are pure.
 *
 * The probe region of an agent: scratch memory of 4 KiB blocks that anyone who
 * was let in may read, without a lease and under any request id, to measure the
 * path. Its bytes are known, so that a probe can check what it moved. */
#ifndef BATON_TRANSFER_PROBE_H
#define BATON_TRANSFER_PROBE_H

#include "baton/base/rng.h"
#include "baton/base/status.h"
#include "baton/transfer/kv.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_PROBE_REGION      "probe"
#define BT_PROBE_REQUEST     "probe"
#define BT_PROBE_BLOCK_BYTES 4096u

/* What a sink of such blocks must say it has. */
static inline struct bt_kv_layout bt_probe_layout(void)
{
    return (struct bt_kv_layout){.version = 1,
                                 .block_tokens = 1,
                                 .block_bytes = BT_PROBE_BLOCK_BYTES,
                                 .model_hash = 0x70726f6265u};
}

/* Word `i` of the region (8 bytes each, as this machine stores them). */
static inline uint64_t bt_probe_word(uint64_t i)
{
    return bt_mix64(i + 1);
}

static inline void bt_probe_fill(void *base, size_t bytes)
{
    uint64_t *word = base;

    for (size_t i = 0; i < bytes / sizeof(*word); i++)
        word[i] = bt_probe_word(i);
}

/* ---- which pulls ---- */

#define BT_PROBE_POINTS   7u /* sizes and descriptor counts of one path */
#define BT_PROBE_REPEATS  16u
#define BT_PROBE_PLAN_MAX (BT_PROBE_POINTS * BT_PROBE_REPEATS)

struct bt_probe_point {
    uint64_t bytes;       /* whole blocks */
    uint32_t descriptors; /* runs, with a gap of one block between two */
};
struct bt_probe_limits {
    uint64_t bytes_max;        /* of all pulls of the path together */
    int64_t longest_ns;        /* of one pull, about */
    uint64_t blocks;           /* of the smaller probe region of the two */
    uint64_t rate_bytes_per_s; /* what a first pull showed */
    uint32_t repeats;          /* of each point, 1..BT_PROBE_REPEATS */
};
/* Pulls in the order to make them: four sizes, each a quarter of the one
 * before, and three more with many descriptors, `repeats` times each, shuffled,
 * so that what drifts meanwhile hits all points alike. Fewer repeats (not below
 * 3, unless asked), then smaller sizes, until bytes_max holds. out has room for
 * BT_PROBE_PLAN_MAX; returns how many, 0: bytes_max does not allow the
 * smallest plan (largest size 64 KiB). */
size_t bt_probe_plan(const struct bt_probe_limits *limits, struct bt_rng *rng,
                     struct bt_probe_point *out);
uint64_t bt_probe_plan_bytes(const struct bt_probe_point *points, size_t count);

/* ---- the line ---- */

#define BT_PROBE_SIZES_MAX 16u

struct bt_probe_sample {
    uint64_t bytes;
    uint32_t descriptors;
    int64_t ns;
};
/* T = setup + descriptors * per + max(bytes - credit, 0) / rate, from
 * linear_from bytes on (cost-models.md section 11, and the credit: what token
 * buckets and queues of an idle path take at once). */
struct bt_probe_fit {
    double setup_ns, descriptor_ns, byte_ns; /* >= 0 */
    double credit_bytes;                     /* >= 0; then setup_ns is 0 */
    /* Standard errors; that of the intercept for setup and credit. */
    double setup_error_ns, descriptor_error_ns, byte_error_ns;
    /* |measured - line| / line of single pulls from linear_from on */
    double residual_median, residual_p95;
    double sigma; /* 1.4826 * residual_median: of one pull, relative */
    uint64_t linear_from;
    bool is_line;     /* false: even the largest three sizes are none */
    uint32_t samples; /* on the line; the rest is below */
    uint32_t below_count;
    struct {
        uint64_t bytes;
        double ns;                   /* median, one descriptor */
    } below[BT_PROBE_SIZES_MAX + 1]; /* ascending; last: the line's begin */
};
/* Weighted least squares through the medians of equal points, relative errors.
 * Small sizes are left out as long as some point is further from the line than
 * 5 % plus the noise of its median, and three sizes stay. Descriptors that seem
 * to cost less than nothing cost nothing. BT_INVALID: fewer than two sizes,
 * more than 64 points or 16 sizes, a time <= 0, no rate to be seen. */
enum bt_status bt_probe_fit(const struct bt_probe_sample *samples, size_t count,
                            struct bt_probe_fit *out);
/* Below linear_from: between the medians, straight in logarithms. */
double bt_probe_alone_ns(const struct bt_probe_fit *fit, uint64_t bytes,
                         uint32_t descriptors);

/* ---- flows beside each other ---- */

#define BT_PROBE_FLOWS_MAX 64u

/* Rates of the ends, bytes per second; <= 0: no limit. */
struct bt_probe_ends {
    const double *out, *in;
    uint32_t count;
};
struct bt_probe_flow {
    uint32_t from, to; /* ends */
    uint64_t bytes;
    uint32_t descriptors;
    uint64_t window_bytes; /* the sink keeps under way; 0: not known */
    /* It follows the rate (window.h): this long and so much more, up to
     * window_bytes; 0: it does not */
    int64_t window_target_ns;
    uint64_t window_share;
    int64_t start_ns; /* from any moment */
    const struct bt_probe_fit *fit;
    double ns; /* out: from its own start */
};
/* Max-min fair shares of the sender's way out and the receiver's way in, each
 * flow at most as fast as alone, anew whenever a flow begins to move or ends;
 * flows that are there together share the credit. A flow that begins while
 * others leave the same sender first waits for what they have in its queue: a
 * window each. scratch: 16-aligned and zeroed, bt_probe_scratch(count, ends)
 * bytes; may be used again. */
size_t bt_probe_scratch(size_t flows, size_t ends);
void bt_probe_predict(const struct bt_probe_ends *ends,
                      struct bt_probe_flow *flows, size_t count, void *scratch);
/* Rate that flows through one link had together, when the last of them ended
 * span_ns after the first began; bytes chosen in proportion to their rates
 * alone keep the link busy until then. Credit is left out. */
double bt_probe_link_rate(const struct bt_probe_flow *flows, size_t count,
                          double span_ns);

/* ---- errors ---- */

struct bt_probe_error {
    uint32_t count;
    double median, p95, worst; /* of |predicted - measured| / measured */
    double bias;               /* median with its sign; > 0: predicted long */
};
/* Of signed relative errors, which are overwritten. Nearest rank. */
void bt_probe_errors(double *errors, size_t count, struct bt_probe_error *out);

#endif
