/* What the observed times teach: prefill and decode coefficients of a worker,
 * setup, descriptor and byte cost of a path, rate of a shared link. Decides
 * regressors, units, clamps and what is an outlier; the estimators do the
 * arithmetic; who calls with which measurement is the core's.
 *
 *   observed ns -> ratio to estimate -> outlier? -> residuals, CUSUM -> RLS
 *                                                     alarm: P reset
 *
 * Invariants: every coefficient in force is finite and within its clamp; one
 * sample moves its own estimate by no more than PULL_MAX.
 */
#include "baton/planner/calibrate.h"

#include "baton/base/units.h"

#include <math.h>
#include <string.h>

#define SIGMA_REL 0.1  /* of one observation, section 11 */
#define SIGMA_MIN 0.01 /* the histogram resolves no less */
#define OUTLIER   10.0
#define PULL_MAX                                                               \
    1.5 /* of the estimate, either way: what a sample counts as                \
         */

/* A preset may be off by this much; the CUSUM looks for shifts of it. */
/* A sample counts as within so many sigmas of the estimate: once the spread is
 * known, garbage cannot pull far, and a true change opens P and sigma. */
#define PULL_CLIP      3.0
#define PULL_SIGMA     0.03
#define PRIOR_WIDTH    0.5 /* of a coefficient, one sigma */
#define COMPUTE_SIGMA  0.15
#define TRANSFER_SIGMA 0.3
#define CHANGE_SIGMA   0.15
#define CHANGE_CLIP    3.0 /* sigmas: no single sample is a change */

#define PREFILL_LAMBDA  0.99
#define DECODE_LAMBDA   0.995 /* steps are plenty */
#define TRANSFER_LAMBDA 0.98
#define RESIDUAL_DECAY  0.98

/* Units that bring the columns near 1. */
#define KILO       1e3
#define BATCH_UNIT 64.0
#define CTX_UNIT   1e5

/* ---- common ---- */

static double square(double x)
{
    return x * x;
}

struct estimator {
    struct bt_rls *rls;
    struct bt_residual *residual;
    struct bt_cusum *change;
    double sigma; /* relative, of its estimates so far */
};

/* P to its prior. The prior is a share of the coefficient, so it grows along
 * when that has grown far beyond its start: a path that has become 20 times
 * slower would otherwise be followed in steps of its old size. */
static void reopen(struct bt_rls *rls)
{
    for (int i = 0; i < 3; i++)
        rls->p_start[i] =
            fmax(rls->p_start[i], square(PRIOR_WIDTH * rls->theta[i]));
    bt_rls_reset_p(rls);
}

/* One sample into all three; true: a change of regime was found. The residual
 * histogram then starts anew: the old spread says nothing about the new one,
 * and until it has filled the wide default holds. The sample that raised the
 * alarm is not learned: with P wide open it would set theta all alone, and it
 * is the likeliest of all to be garbage. */
static bool learn(const struct estimator *e, const double x[3], double y)
{
    double estimate = bt_rls_predict(e->rls, x);
    double ratio = y / estimate;
    double clip = CHANGE_CLIP * CHANGE_SIGMA;
    double pull = fmin(exp(PULL_CLIP * fmax(e->sigma, PULL_SIGMA)), PULL_MAX);

    if (!(ratio > 0) || !isfinite(ratio)) {
        bt_rls_update(e->rls, x, y);
        return false;
    }
    bt_residual_observe(e->residual, ratio);
    if (bt_cusum_observe(e->change, fmin(fmax(log(ratio), -clip), clip))) {
        reopen(e->rls);
        bt_residual_init(e->residual, e->residual->decay);
        return true;
    }
    if (ratio > pull)
        y = estimate * pull;
    else if (ratio < 1 / pull)
        y = estimate / pull;
    bt_rls_update(e->rls, x, y);
    return false;
}

/* Spread and bias of the ratio together: an estimate that is steadily 30 % off
 * is not certain because it is steady. */
static double ratio_sigma(const struct bt_residual *r, double fallback)
{
    double spread = bt_residual_sigma(r, -1);

    if (spread < 0)
        return fallback;
    return fmax(hypot(spread, bt_residual_quantile(r, 0.5) - 1), SIGMA_MIN);
}

static double sane(double value)
{
    return value >= 0 && isfinite(value) ? value : 0;
}

/* ---- compute of one worker ---- */

/* Coefficients in the learning units, with how far each may move. A preset
 * coefficient can be zero and still be wrong, so the main one lends the others
 * a scale: share[i] of it. */
static void start_compute(struct bt_rls *rls, const double theta[3], int main,
                          const double share[3], double lambda)
{
    double scale = theta[main] > 0 ? theta[main] : 1;
    double p[3];

    for (int i = 0; i < 3; i++)
        p[i] = square(fmax(PRIOR_WIDTH * theta[i], share[i] * scale));
    bt_rls_init(rls, theta, p, lambda, SIGMA_REL);
    for (int i = 0; i < 3; i++)
        rls->ceiling[i] = OUTLIER * fmax(theta[i], share[i] * scale);
    rls->floor[main] = theta[main] / OUTLIER;
}

void bt_compute_calibration_init(struct bt_compute_calibration *c,
                                 const struct bt_compute_model *preset)
{
    /* Shares: 100 tokens' worth of setup; of a prefill's quadratic term, a
     * twentieth at 10,000 tokens; tenths of a step for batch and context. */
    static const double prefill_share[3] = {0.1, 0.1, 0.005};
    static const double decode_share[3] = {0.1, 0.1, 0.1};
    double prefill[3] = {sane(preset->prefill_a_ms),
                         sane(preset->prefill_b_ms * KILO),
                         sane(preset->prefill_c_ms * KILO * KILO)};
    double decode[3] = {sane(preset->decode_a_ms),
                        sane(preset->decode_b_ms * BATCH_UNIT),
                        sane(preset->decode_c_ms * CTX_UNIT)};

    memset(c, 0, sizeof(*c));
    c->preset = *preset;
    c->model = *preset;
    start_compute(&c->prefill, prefill, 1, prefill_share, PREFILL_LAMBDA);
    start_compute(&c->decode, decode, 0, decode_share, DECODE_LAMBDA);
    bt_residual_init(&c->prefill_residual, RESIDUAL_DECAY);
    bt_residual_init(&c->decode_residual, RESIDUAL_DECAY);
    bt_cusum_init(&c->prefill_change, CHANGE_SIGMA);
    bt_cusum_init(&c->decode_change, CHANGE_SIGMA);
}

/* The model is in the engine's own milliseconds, before its speed-up. */
static double own_ms(const struct bt_compute_calibration *c, int64_t ns)
{
    return (double)ns / (double)BT_NS_PER_MS * c->preset.speedup;
}

/* Something that no clamp allows is no evidence about the coefficients: a
 * stall, a wrong clock, a mixed-up request. */
static bool outlying(const struct bt_rls *rls, const double x[3], double y)
{
    double ratio = y / bt_rls_predict(rls, x);

    return ratio > OUTLIER || ratio < 1 / OUTLIER;
}

void bt_compute_observe_prefill(struct bt_compute_calibration *c,
                                uint64_t new_tokens, uint64_t cached_tokens,
                                int64_t ns)
{
    double n = (double)new_tokens / KILO;
    double h = (double)cached_tokens / KILO;
    double x[3] = {1, n, n * (n + 2 * h)};
    double y = own_ms(c, ns);

    if (new_tokens == 0 || !(y > 0) || !isfinite(y)) {
        c->prefill.skipped++;
        return;
    }
    if (outlying(&c->prefill, x, y)) {
        c->outliers++;
        return;
    }
    learn(&(struct estimator){&c->prefill, &c->prefill_residual,
                              &c->prefill_change, bt_compute_prefill_sigma(c)},
          x, y);
    c->model.prefill_a_ms = c->prefill.theta[0];
    c->model.prefill_b_ms = c->prefill.theta[1] / KILO;
    c->model.prefill_c_ms = c->prefill.theta[2] / (KILO * KILO);
}

void bt_compute_observe_decode(struct bt_compute_calibration *c, uint64_t batch,
                               uint64_t context_tokens, int64_t ns)
{
    double x[3] = {1, (double)batch / BATCH_UNIT,
                   (double)context_tokens / CTX_UNIT};
    double y = own_ms(c, ns);

    if (batch == 0 || !(y > 0) || !isfinite(y)) {
        c->decode.skipped++;
        return;
    }
    if (outlying(&c->decode, x, y)) {
        c->outliers++;
        return;
    }
    learn(&(struct estimator){&c->decode, &c->decode_residual,
                              &c->decode_change, bt_compute_decode_sigma(c)},
          x, y);
    c->model.decode_a_ms = c->decode.theta[0];
    c->model.decode_b_ms = c->decode.theta[1] / BATCH_UNIT;
    c->model.decode_c_ms = c->decode.theta[2] / CTX_UNIT;
}

double bt_compute_prefill_sigma(const struct bt_compute_calibration *c)
{
    return ratio_sigma(&c->prefill_residual, COMPUTE_SIGMA);
}

double bt_compute_decode_sigma(const struct bt_compute_calibration *c)
{
    return ratio_sigma(&c->decode_residual, COMPUTE_SIGMA);
}

/* ---- transfers ---- */

#define GB 1e9
/* Rate clamp of section 11, of nominal. */
#define PATH_RATE_MIN 0.05
#define PATH_RATE_MAX 1.05
/* A transfer this long on the wire at nominal rate tells fallback from setup.
 */
#define FALLBACK_WIRE_MS 1.0
#define FALLBACK_RUN     3
#define CALM             32 /* observations after which a change is over */

/* ms per GB at a share of nominal; 1 byte/s at least, so always finite. */
static double ms_per_gb(uint64_t nominal, double share)
{
    double rate = (double)(nominal > 0 ? nominal : 1) * share;

    return GB / rate * 1e3;
}

void bt_transfer_calibration_init(struct bt_transfer_calibration *c,
                                  int64_t setup_ns, int64_t per_descriptor_ns,
                                  uint64_t nominal_bytes_per_s)
{
    double theta[3] = {sane((double)setup_ns / 1e6),
                       sane((double)per_descriptor_ns / 1e3),
                       ms_per_gb(nominal_bytes_per_s, 1)};
    double p[3] = {square(fmax(PRIOR_WIDTH * theta[0], 0.1)),
                   square(fmax(PRIOR_WIDTH * theta[1], 0.1)),
                   square(0.3 * theta[2])};

    memset(c, 0, sizeof(*c));
    c->nominal_bytes_per_s = nominal_bytes_per_s;
    bt_rls_init(&c->rls, theta, p, TRANSFER_LAMBDA, SIGMA_REL);
    c->rls.floor[2] = ms_per_gb(nominal_bytes_per_s, PATH_RATE_MAX);
    c->rls.ceiling[0] = fmax(1e3, OUTLIER * theta[0]);
    c->rls.ceiling[1] = fmax(1e3, OUTLIER * theta[1]);
    c->rls.ceiling[2] = ms_per_gb(nominal_bytes_per_s, PATH_RATE_MIN);
    bt_residual_init(&c->residual, RESIDUAL_DECAY);
    bt_cusum_init(&c->change, CHANGE_SIGMA);
}

/* Ten times slower than the line, without what posting costs, three times
 * running: RDMA that fell back to TCP in silence. Short transfers say nothing
 * either way. */
static void judge_fallback(struct bt_transfer_calibration *c, const double x[3],
                           double y)
{
    double wire = x[2] * ms_per_gb(c->nominal_bytes_per_s, 1);
    bool slow = y - x[1] * c->rls.theta[1] >= OUTLIER * wire;

    if (wire < FALLBACK_WIRE_MS)
        return;
    c->against = slow == c->fallback_suspected ? 0 : c->against + 1;
    if (c->against < FALLBACK_RUN)
        return;
    c->fallback_suspected = slow;
    c->against = 0;
}

/* No sample is refused for being slow: a fallback is real and 90 times slower.
 * learn() takes it in steps instead. */
void bt_transfer_observe(struct bt_transfer_calibration *c,
                         uint64_t descriptors, uint64_t bytes,
                         uint64_t own_bytes, int64_t ns)
{
    double x[3] = {1, (double)descriptors / KILO,
                   ((double)bytes + (double)own_bytes) / GB};
    double y = (double)ns / (double)BT_NS_PER_MS;

    if (bytes == 0 || c->nominal_bytes_per_s == 0 || ns <= 0) {
        c->rls.skipped++;
        return;
    }
    c->observations++;
    if (learn(&(struct estimator){&c->rls, &c->residual, &c->change,
                                  bt_transfer_sigma(c)},
              x, y)) {
        c->changed = true;
        c->changed_at = c->observations;
    }
    if (c->observations - c->changed_at >= CALM)
        c->changed = false;
    judge_fallback(c, x, y);
}

void bt_transfer_model_get(const struct bt_transfer_calibration *c,
                           int64_t *setup_out, int64_t *per_descriptor_out,
                           double *rate_out)
{
    *setup_out = (int64_t)(c->rls.theta[0] * 1e6 + 0.5);
    *per_descriptor_out = (int64_t)(c->rls.theta[1] * 1e3 + 0.5);
    *rate_out = c->nominal_bytes_per_s > 0 ? GB * 1e3 / c->rls.theta[2] : 0;
}

double bt_transfer_sigma(const struct bt_transfer_calibration *c)
{
    double sigma = ratio_sigma(&c->residual, TRANSFER_SIGMA);

    return c->changed ? fmax(sigma, TRANSFER_SIGMA) : sigma;
}

/* ---- set-up ---- */

#define SETUP_MOST_NS  1e9
#define SETUP_MOVED    0.1
#define SETUP_MOVED_NS 1e5

void bt_setup_calibration_init(struct bt_setup_calibration *c, int64_t setup_ns)
{
    c->at = 0;
    c->told = fmax((double)setup_ns, 0);
    c->most = fmin(fmax(SETUP_MOST_NS, OUTLIER * c->told),
                   (double)BT_COST_INFINITE / 2);
    for (size_t i = 0; i < BT_SETUP_WINDOW; i++)
        c->seen[i] = c->told;
}

static double setup_median(const struct bt_setup_calibration *c)
{
    double sorted[BT_SETUP_WINDOW];

    for (size_t n = 0; n < BT_SETUP_WINDOW; n++) {
        size_t i = n;

        for (; i > 0 && sorted[i - 1] > c->seen[n]; i--)
            sorted[i] = sorted[i - 1];
        sorted[i] = c->seen[n];
    }
    return sorted[BT_SETUP_WINDOW / 2];
}

bool bt_setup_observe(struct bt_setup_calibration *c, int64_t ns)
{
    double median, moved;

    c->seen[c->at] = fmin(fmax((double)ns, 0), c->most);
    c->at = (c->at + 1) % BT_SETUP_WINDOW;
    median = setup_median(c);
    moved = fabs(median - c->told);
    if (moved <= SETUP_MOVED * c->told || moved <= SETUP_MOVED_NS)
        return false;
    c->told = median;
    return true;
}

int64_t bt_setup_ns(const struct bt_setup_calibration *c)
{
    return (int64_t)(c->told + 0.5);
}

/* ---- shared links ---- */

#define LINK_RATE_MIN 0.02
#define LINK_RATE_MAX 1.05
#define LINK_MOVED    0.1

/* A full window of nominal: until 16 transfers have gone through, one that was
 * held back elsewhere must not speak for the link. */
void bt_link_calibration_init(struct bt_link_calibration *c,
                              uint64_t nominal_bytes_per_s)
{
    memset(c, 0, sizeof(*c));
    c->nominal_bytes_per_s = nominal_bytes_per_s;
    for (size_t i = 0; i < BT_LINK_WINDOW; i++)
        c->seen[i] = (double)nominal_bytes_per_s;
    c->told = (double)nominal_bytes_per_s;
    c->doubt = 1;
}

static double link_rate(const struct bt_link_calibration *c)
{
    double nominal = (double)c->nominal_bytes_per_s;
    double best = 0;

    for (size_t i = 0; i < BT_LINK_WINDOW; i++)
        best = fmax(best, c->seen[i]);
    if (c->doubt > 1 && best < nominal)
        best = fmin(best * c->doubt, nominal);
    return fmin(fmax(best, LINK_RATE_MIN * nominal), LINK_RATE_MAX * nominal);
}

bool bt_link_observe(struct bt_link_calibration *c, uint64_t bytes,
                     uint64_t own_bytes, int64_t ns_without_setup)
{
    double rate;

    if (bytes == 0 || ns_without_setup <= 0)
        return false;
    c->seen[c->at] = ((double)bytes + (double)own_bytes) * (double)BT_NS_PER_S /
                     (double)ns_without_setup;
    c->at = (c->at + 1) % BT_LINK_WINDOW;
    c->fresh = true;
    c->doubt = 1;
    if (c->count < BT_LINK_WINDOW)
        c->count++;
    rate = link_rate(c);
    if (fabs(rate - c->told) <= LINK_MOVED * c->told)
        return false;
    c->told = rate;
    return true;
}

bool bt_link_age(struct bt_link_calibration *c, int64_t now_ns)
{
    double nominal = (double)c->nominal_bytes_per_s;

    if (c->fresh || link_rate(c) >= nominal * (1 - LINK_MOVED)) {
        c->fresh = false;
        c->rested_ns = now_ns;
        return false;
    }
    if (now_ns - c->rested_ns < BT_LINK_AGE_NS)
        return false;
    c->rested_ns = now_ns;
    c->doubt *= 2;
    c->told = link_rate(c);
    return true;
}

uint64_t bt_link_rate(const struct bt_link_calibration *c)
{
    return (uint64_t)(link_rate(c) + 0.5);
}
