/* Times of a transfer beside the shared-link model of cost.c: idle path in two
 * forms, stages, overlap with the prefill, NVMe station, fetch against
 * recompute. Decides arithmetic only; which links a path crosses and what
 * flows there is the network's.
 *
 * Invariant: durations lie in [0, BT_COST_INFINITE]; a rate that is not a
 * number, infinite, zero or negative makes the result infinite, never free.
 */
#include "baton/planner/transfer_cost.h"

#include "baton/base/units.h"

#include <math.h>
#include <stdbool.h>

#define NS_PER_S     ((double)BT_NS_PER_S)
#define INV_SQRT_2PI 0.3989422804014327
#define PIECE_LEAST  65536.0

/* Nanoseconds as they leave: a NaN fails both comparisons. */
static int64_t to_ns(double ns)
{
    if (!(ns >= 0 && ns < (double)BT_COST_INFINITE))
        return BT_COST_INFINITE;
    return (int64_t)(ns + 0.5);
}

/* A duration as it comes in; negative is refused by an infinite one. */
static double from_ns(int64_t ns)
{
    return ns >= 0 ? (double)ns : (double)INFINITY;
}

static bool rate_ok(double rate)
{
    return rate > 0 && rate <= 1e300;
}

/* ns per byte; infinite for a bad rate. 0 bytes then give NaN: infinite too. */
static double ns_per_byte(double rate)
{
    return rate_ok(rate) ? NS_PER_S / rate : (double)INFINITY;
}

int64_t bt_transfer_additive_ns(int64_t setup_ns, int64_t per_descriptor_ns,
                                double rate_bytes_per_s, uint64_t descriptors,
                                uint64_t bytes)
{
    return to_ns(from_ns(setup_ns) +
                 (double)descriptors * from_ns(per_descriptor_ns) +
                 (double)bytes * ns_per_byte(rate_bytes_per_s));
}

int64_t bt_transfer_max_ns(int64_t setup_ns, int64_t post_ns, uint32_t threads,
                           double rate_bytes_per_s, uint64_t descriptors,
                           uint64_t bytes, int64_t cold_ns)
{
    double posting = (double)descriptors * from_ns(post_ns) /
                     (double)(threads > 0 ? threads : 1);
    double wire = (double)bytes * ns_per_byte(rate_bytes_per_s);

    /* Not fmax: it would swallow a NaN. */
    if (!(posting <= wire))
        wire = posting + (wire - wire);
    return to_ns(from_ns(setup_ns) + wire + from_ns(cold_ns));
}

double bt_effective_rate(double rate_bytes_per_s, int64_t alpha_ns,
                         uint64_t operation_bytes, uint32_t depth)
{
    double m = (double)operation_bytes;
    double one;

    if (!rate_ok(rate_bytes_per_s) || alpha_ns < 0 || operation_bytes == 0)
        return 0;
    one = m / ((double)alpha_ns / NS_PER_S + m / rate_bytes_per_s);
    return fmin(rate_bytes_per_s, one * (double)depth);
}

static bool stages_ok(const struct bt_stage *stages, size_t count)
{
    if (count > BT_STAGES_MAX)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (stages[i].overhead_ns < 0 || !rate_ok(stages[i].rate_bytes_per_s))
            return false;
    }
    return true;
}

/* Time of `pieces` pieces (a double: the search below uses fractions). */
static double staged_ns(const struct bt_stage *stages, size_t count,
                        double piece, double pieces)
{
    double sum = 0;
    double most = 0;

    for (size_t i = 0; i < count; i++) {
        double sigma = (double)stages[i].overhead_ns +
                       piece * NS_PER_S / stages[i].rate_bytes_per_s;

        sum += sigma;
        most = sigma > most ? sigma : most;
    }
    return sum + (pieces - 1) * most;
}

int64_t bt_pipeline_ns(int64_t setup_ns, const struct bt_stage *stages,
                       size_t count, uint64_t bytes, uint64_t piece_bytes)
{
    uint64_t piece = piece_bytes;
    uint64_t pieces;

    if (!stages_ok(stages, count))
        return BT_COST_INFINITE;
    if (bytes == 0 || count == 0)
        return to_ns(from_ns(setup_ns));
    if (piece == 0 || piece > bytes)
        piece = bytes;
    pieces = bytes / piece + (bytes % piece != 0);
    return to_ns(from_ns(setup_ns) +
                 staged_ns(stages, count, (double)piece, (double)pieces));
}

struct piece_search {
    const struct bt_stage *stages;
    size_t count;
    double bytes;
    double best, best_ns;
};

static void try_piece(struct piece_search *s, double piece)
{
    double ns;

    if (!(piece > PIECE_LEAST))
        piece = PIECE_LEAST;
    if (piece > s->bytes)
        piece = s->bytes;
    ns = staged_ns(s->stages, s->count, piece, s->bytes / piece);
    if (ns < s->best_ns) {
        s->best_ns = ns;
        s->best = piece;
    }
}

/* With stage b as the bottleneck the time is convex in the piece and least at
 * q*. Which stage that is depends on the piece, so each one is tried, and so
 * are the pieces at which two stages change places. */
static void try_bottleneck(struct piece_search *s, size_t b)
{
    const struct bt_stage *slow = &s->stages[b];
    double others = 0;

    for (size_t i = 0; i < s->count; i++) {
        const struct bt_stage *stage = &s->stages[i];
        double faster =
            1 / stage->rate_bytes_per_s - 1 / slow->rate_bytes_per_s;

        if (i == b)
            continue;
        others += 1 / stage->rate_bytes_per_s;
        if (faster != 0)
            try_piece(s, (double)(slow->overhead_ns - stage->overhead_ns) /
                             NS_PER_S / faster);
    }
    try_piece(s,
              sqrt(s->bytes * (double)slow->overhead_ns / NS_PER_S / others));
}

uint64_t bt_pipeline_piece(const struct bt_stage *stages, size_t count,
                           uint64_t bytes)
{
    struct piece_search s = {.stages = stages,
                             .count = count,
                             .bytes = (double)bytes,
                             .best = (double)bytes,
                             .best_ns = (double)INFINITY};

    if (count < 2 || bytes == 0 || !stages_ok(stages, count))
        return bytes;
    for (size_t b = 0; b < count; b++)
        try_bottleneck(&s, b);
    return s.best >= (double)bytes ? bytes : (uint64_t)(s.best + 0.5);
}

int64_t bt_arrival_ns(int64_t prefill_ns, int64_t setup_ns,
                      double rate_bytes_per_s, uint64_t held_bytes,
                      uint64_t new_bytes, uint32_t pieces)
{
    double compute = from_ns(prefill_ns);
    double per_byte, all, fresh, share, last;

    if (held_bytes == 0 && new_bytes == 0)
        return to_ns(compute);
    per_byte = ns_per_byte(rate_bytes_per_s);
    all = ((double)held_bytes + (double)new_bytes) * per_byte;
    if (pieces <= 1)
        return to_ns(compute + from_ns(setup_ns) + all);
    if (!(all < (double)BT_COST_INFINITE))
        return BT_COST_INFINITE;
    fresh = (double)new_bytes * per_byte;
    share = 1 / (double)pieces;
    last = fmax(compute * share + fresh, compute + fresh * share);
    return to_ns(from_ns(setup_ns) + fmax(all, last));
}

static bool station_ok(const struct bt_station *s)
{
    return s->servers > 0 && rate_ok(s->rate_bytes_per_s) &&
           s->first_share >= 0 && s->first_share <= 1 && s->base_ns >= 0;
}

double bt_station_rate(const struct bt_station *s, uint32_t jobs)
{
    uint32_t q = jobs < s->servers ? jobs : s->servers;
    double phi = 1;

    if (!station_ok(s) || q == 0)
        return 0;
    if (q < s->saturation)
        phi = s->first_share + (1 - s->first_share) * (double)(q - 1) /
                                   (double)(s->saturation - 1);
    return s->rate_bytes_per_s * phi;
}

int64_t bt_station_ns(const struct bt_station *s, uint32_t in_service,
                      uint64_t queued_bytes, uint64_t bytes)
{
    bool full = in_service >= s->servers;
    uint32_t q = full || queued_bytes > 0 ? s->servers : in_service + 1;
    double all = bt_station_rate(s, q);
    double own, wait;

    if (!rate_ok(all))
        return BT_COST_INFINITE;
    own = (double)s->base_ns + (double)bytes * NS_PER_S * (double)q / all;
    wait = (double)queued_bytes * NS_PER_S / all;
    if (full)
        wait += own / ((double)s->servers + 1);
    return to_ns(wait + own);
}

/* Phi(x) by its power series about 0 (Marsaglia, "Evaluating the normal
 * distribution", 2004): erfc is not among the functions of a pure layer. */
static double normal_cdf(double x)
{
    double term = x;
    double sum = x;

    if (x < -8 || x > 8)
        return x > 0;
    for (int i = 3; i < 400; i += 2) {
        double before = sum;

        term *= x * x / i;
        sum += term;
        if (sum == before)
            break;
    }
    return 0.5 + sum * exp(-x * x / 2) * INV_SQRT_2PI;
}

/* Moments about the larger mean, where the other one's share is small: no
 * cancellation however far apart they are. */
void bt_clark_max(double mean_a, double sigma_a, double mean_s, double sigma_s,
                  double *mean_out, double *sigma_out)
{
    bool a_leads = mean_a >= mean_s;
    double high = a_leads ? mean_a : mean_s;
    double gap = a_leads ? mean_a - mean_s : mean_s - mean_a;
    double v_high = a_leads ? sigma_a * sigma_a : sigma_s * sigma_s;
    double v_low = a_leads ? sigma_s * sigma_s : sigma_a * sigma_a;
    double theta = sqrt(v_high + v_low);
    double z = theta > 0 ? gap / theta : (double)INFINITY;
    double below = normal_cdf(-z);
    double phi = exp(-z * z / 2) * INV_SQRT_2PI;
    double first = theta * phi - gap * below;
    double second =
        v_high * (1 - below) + (gap * gap + v_low) * below - gap * theta * phi;

    if (!isfinite(gap) || !isfinite(theta)) {
        *mean_out = (double)INFINITY;
        *sigma_out = (double)INFINITY;
        return;
    }
    *mean_out = high + first;
    *sigma_out = sqrt(fmax(second - first * first, 0));
}

/* Seconds that `ms` of the model's table take on its engine. */
static double model_s(const struct bt_compute_model *m, double ms)
{
    return m->speedup > 0 ? ms / 1e3 / m->speedup : (double)NAN;
}

double bt_fetch_crossover_rate(const struct bt_compute_model *m,
                               uint64_t kv_bytes_per_token, uint64_t depth)
{
    double token_s =
        model_s(m, m->prefill_b_ms + 2 * m->prefill_c_ms * (double)depth);

    return token_s > 0 ? (double)kv_bytes_per_token / token_s
                       : (double)INFINITY;
}

double bt_fetch_min_tokens(const struct bt_compute_model *m,
                           uint64_t kv_bytes_per_token, double rate_bytes_per_s,
                           int64_t setup_ns)
{
    double gain_ns = model_s(m, m->prefill_b_ms) * NS_PER_S -
                     (double)kv_bytes_per_token * ns_per_byte(rate_bytes_per_s);

    return gain_ns > 0 ? from_ns(setup_ns) / gain_ns : (double)INFINITY;
}

int64_t bt_prefill_chunked_ns(const struct bt_compute_model *m,
                              uint64_t new_tokens, uint64_t cached_tokens,
                              uint64_t chunk_tokens)
{
    double n = (double)new_tokens;
    double h = (double)cached_tokens;
    uint64_t chunks = 1;

    if (chunk_tokens > 0 && new_tokens > 0)
        chunks = (new_tokens - 1) / chunk_tokens + 1;
    return to_ns(model_s(m, m->prefill_a_ms * (double)chunks +
                                m->prefill_b_ms * n +
                                m->prefill_c_ms * n * (n + 2 * h)) *
                 NS_PER_S);
}
