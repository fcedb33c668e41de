/* The three parts every calibration is made of: weighted recursive least
 * squares with forgetting, a decayed histogram of observed / predicted, and a
 * two-sided CUSUM. Decides what one sample does to each; what counts as a
 * sample, an outlier or a change of regime is calibrate.c's.
 *
 * Invariants: theta stays within floor..ceiling and finite; P stays symmetric
 * with a bounded trace; a refused sample changes nothing but a counter.
 */
#include "baton/planner/calibrate.h"

#include <math.h>
#include <string.h>

#define N 3

/* Below this a sample says nothing that is not known. With forgetting the
 * figure settles near 1 - lambda, far above. */
#define NEWS_LEAST 1e-6
/* P may reach this many times its start, all directions together. */
#define WINDUP 4.0

void bt_rls_init(struct bt_rls *r, const double theta[3], const double p[3],
                 double lambda, double sigma_rel)
{
    memset(r, 0, sizeof(*r));
    for (int i = 0; i < N; i++) {
        r->theta[i] = theta[i];
        r->p_start[i] = p[i];
        r->ceiling[i] = (double)INFINITY;
    }
    r->lambda = lambda;
    r->sigma_rel = sigma_rel;
    bt_rls_reset_p(r);
}

void bt_rls_reset_p(struct bt_rls *r)
{
    memset(r->p, 0, sizeof(r->p));
    for (int i = 0; i < N; i++)
        r->p[i][i] = r->p_start[i];
}

double bt_rls_predict(const struct bt_rls *r, const double x[3])
{
    return x[0] * r->theta[0] + x[1] * r->theta[1] + x[2] * r->theta[2];
}

/* Trace of P in units of its start: 3 at first. */
static double excess(const struct bt_rls *r)
{
    double trace = 0;

    for (int i = 0; i < N; i++) {
        if (r->p_start[i] > 0)
            trace += r->p[i][i] / r->p_start[i];
    }
    return trace;
}

/* Samples that all look alike would blow up P in every other direction. Taking
 * off a multiple of P S^-1 P undoes the forgetting where P is large and leaves
 * the well known directions, where forgetting is wanted, as they are. */
static void limit_windup(struct bt_rls *r)
{
    double trace = excess(r);
    double q[N][N];
    double share = N * (1 - r->lambda) / trace;

    if (!(trace > N * WINDUP))
        return;
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            q[i][j] = 0;
            for (int k = 0; k < N; k++) {
                if (r->p_start[k] > 0)
                    q[i][j] += r->p[i][k] * r->p[k][j] / r->p_start[k];
            }
        }
    }
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++)
            r->p[i][j] -= share * q[i][j];
    }
}

/* P = (P - g (P x)^T) / lambda; both triangles from one product. */
static void shrink_p(struct bt_rls *r, const double g[N], const double px[N])
{
    bool sound = true;

    for (int i = 0; i < N; i++) {
        for (int j = i; j < N; j++) {
            r->p[i][j] = (r->p[i][j] - g[i] * px[j]) / r->lambda;
            r->p[j][i] = r->p[i][j];
        }
        sound = sound && r->p[i][i] >= 0 && isfinite(r->p[i][i]);
    }
    if (!sound)
        bt_rls_reset_p(r);
    else
        limit_windup(r);
}

static bool sample_ok(const double x[3], double y, double weight)
{
    if (!(y > 0) || !isfinite(y) || !isfinite(weight))
        return false;
    for (int i = 0; i < N; i++) {
        if (!isfinite(x[i] * weight))
            return false;
    }
    return true;
}

/* The step of section 11. The innovation is taken before weighting, so that a
 * sample equal to the prediction gives exactly none. */
bool bt_rls_update(struct bt_rls *r, const double x[3], double y)
{
    double weight = 1 / (r->sigma_rel * y);
    double px[N], g[N];
    double news = 0;
    double e;

    if (!sample_ok(x, y, weight)) {
        r->skipped++;
        return false;
    }
    for (int i = 0; i < N; i++) {
        px[i] = weight *
                (r->p[i][0] * x[0] + r->p[i][1] * x[1] + r->p[i][2] * x[2]);
        news += weight * x[i] * px[i];
    }
    e = weight * (y - bt_rls_predict(r, x));
    if (!(news > NEWS_LEAST) || !isfinite(news) || !isfinite(e)) {
        r->skipped++;
        return false;
    }
    for (int i = 0; i < N; i++) {
        g[i] = px[i] / (r->lambda + news);
        r->theta[i] =
            fmin(fmax(r->theta[i] + g[i] * e, r->floor[i]), r->ceiling[i]);
    }
    shrink_p(r, g, px);
    r->updates++;
    return true;
}

/* ---- residuals ---- */

#define BUCKETS_PER_DECADE (0.5 * BT_RESIDUAL_BUCKETS)
#define RESIDUALS_LEAST    8.0

void bt_residual_init(struct bt_residual *r, double decay)
{
    memset(r, 0, sizeof(*r));
    r->decay = decay;
}

void bt_residual_observe(struct bt_residual *r, double ratio)
{
    double at;

    if (!(ratio > 0) || !isfinite(ratio))
        return;
    at = (log10(ratio) + 1) * BUCKETS_PER_DECADE;
    at = fmin(fmax(at, 0), BT_RESIDUAL_BUCKETS - 1);
    for (int i = 0; i < BT_RESIDUAL_BUCKETS; i++)
        r->weight[i] *= r->decay;
    r->weight[(int)at] += 1;
    r->total = r->total * r->decay + 1;
}

/* Within a bucket the mass counts as spread evenly over the logarithm. */
double bt_residual_quantile(const struct bt_residual *r, double q)
{
    double need = fmin(fmax(q, 0), 1) * r->total;
    double sum = 0;
    double at = BT_RESIDUAL_BUCKETS;

    if (!(r->total > 0))
        return 1;
    for (int i = 0; i < BT_RESIDUAL_BUCKETS; i++) {
        double w = r->weight[i];

        if (w > 0 && sum + w >= need) {
            at = i + (need - sum) / w;
            break;
        }
        sum += w;
    }
    return pow(10, at / BUCKETS_PER_DECADE - 1);
}

/* Weight of `count` observations under decay. */
static double weight_of(double decay, double count)
{
    return decay < 1 ? (1 - pow(decay, count)) / (1 - decay) : count;
}

double bt_residual_sigma(const struct bt_residual *r, double fallback)
{
    if (r->total < weight_of(r->decay, RESIDUALS_LEAST) - 1e-9)
        return fallback;
    return (bt_residual_quantile(r, 0.9) - bt_residual_quantile(r, 0.5)) /
           1.2816;
}

/* ---- change ---- */

void bt_cusum_init(struct bt_cusum *c, double sigma)
{
    memset(c, 0, sizeof(*c));
    c->k = 0.5 * sigma;
    c->h = 5 * sigma;
}

bool bt_cusum_observe(struct bt_cusum *c, double z)
{
    if (!isfinite(z))
        return false;
    c->up = fmax(0, c->up + z - c->k);
    c->down = fmax(0, c->down - z - c->k);
    if (c->up <= c->h && c->down <= c->h)
        return false;
    c->up = 0;
    c->down = 0;
    c->alarms++;
    return true;
}
