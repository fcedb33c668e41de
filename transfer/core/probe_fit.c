/* The line through what pulls of one path took, and how far it holds. Medians
 * of equal pulls, because single ones meet retransmissions and busy machines;
 * relative weights, because a model that is 1 ms off matters at 2 ms and not at
 * 200. What a small size takes may be no part of the line (slow start, a window
 * that grows): then the line begins above it, and its median is kept.
 */
#include "baton/transfer/probe.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define POINTS_MAX   64u
#define SAMPLES_MAX  4096u
#define TOLERANCE    0.05
#define SPREAD_MAX   0.15 /* of the noise that excuses a bad line */
#define MAD_TO_SIGMA 1.4826
#define SIZES_LINE   3u

struct point {
    uint64_t bytes;
    uint32_t descriptors, count;
    double ns;    /* median */
    double noise; /* relative standard error of it */
};
struct points {
    struct point p[POINTS_MAX];
    uint32_t count;
    uint64_t sizes[BT_PROBE_SIZES_MAX]; /* ascending */
    uint32_t size_count;
};
struct line {
    double t[3], error[3]; /* ns; per descriptor; per byte */
    bool good;
};

/* ---- medians ---- */

static void sort(double *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        double x = v[i];
        size_t j = i;

        for (; j > 0 && v[j - 1] > x; j--)
            v[j] = v[j - 1];
        v[j] = x;
    }
}

static double median(double *v, size_t n)
{
    assert(n > 0);
    sort(v, n);
    return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static bool add_size(struct points *s, uint64_t bytes)
{
    uint32_t i = 0;

    while (i < s->size_count && s->sizes[i] < bytes)
        i++;
    if (i < s->size_count && s->sizes[i] == bytes)
        return true;
    if (s->size_count == BT_PROBE_SIZES_MAX)
        return false;
    memmove(&s->sizes[i + 1], &s->sizes[i],
            (s->size_count - i) * sizeof(s->sizes[0]));
    s->sizes[i] = bytes;
    s->size_count++;
    return true;
}

static bool add_point(struct points *s, const struct bt_probe_sample *sample)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->p[i].bytes == sample->bytes &&
            s->p[i].descriptors == sample->descriptors)
            return true;
    }
    if (s->count == POINTS_MAX || !add_size(s, sample->bytes))
        return false;
    s->p[s->count++] = (struct point){.bytes = sample->bytes,
                                      .descriptors = sample->descriptors};
    return true;
}

static void measure_point(struct point *p, const struct bt_probe_sample *v,
                          size_t n)
{
    double ns[SAMPLES_MAX / POINTS_MAX];
    size_t used = 0;

    for (size_t i = 0; i < n && used < SAMPLES_MAX / POINTS_MAX; i++) {
        if (v[i].bytes == p->bytes && v[i].descriptors == p->descriptors)
            ns[used++] = (double)v[i].ns;
    }
    p->count = (uint32_t)used;
    p->ns = median(ns, used);
    for (size_t i = 0; i < used; i++)
        ns[i] = fabs(ns[i] - p->ns);
    p->noise = MAD_TO_SIGMA * median(ns, used) / p->ns / sqrt((double)used);
}

static bool gather(struct points *s, const struct bt_probe_sample *v, size_t n)
{
    memset(s, 0, sizeof(*s));
    if (n > SAMPLES_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (v[i].ns <= 0 || v[i].bytes == 0 || !add_point(s, &v[i]))
            return false;
    }
    for (uint32_t i = 0; i < s->count; i++)
        measure_point(&s->p[i], v, n);
    return s->size_count >= 2;
}

/* ---- least squares ---- */

/* Inverse of a symmetric positive matrix, Gauss-Jordan with scaling by the
 * diagonal; rows that are not used are left alone. */
static bool invert(double a[3][3], const bool use[3], double inverse[3][3])
{
    double scale[3];

    memset(inverse, 0, 9 * sizeof(double));
    for (int i = 0; i < 3; i++) {
        if (use[i] && a[i][i] <= 0)
            return false;
        scale[i] = use[i] ? 1 / sqrt(a[i][i]) : 0;
        inverse[i][i] = use[i] ? 1 : 0;
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            a[i][j] *= scale[i] * scale[j];
    for (int i = 0; i < 3; i++) {
        if (!use[i])
            continue;
        if (a[i][i] < 1e-9)
            return false; /* one regressor is a mix of the others */
        double pivot = a[i][i];
        for (int j = 0; j < 3; j++) {
            a[i][j] /= pivot;
            inverse[i][j] /= pivot;
        }
        for (int k = 0; k < 3; k++) {
            double times = k != i && use[k] ? a[k][i] : 0;

            for (int j = 0; j < 3; j++) {
                a[k][j] -= times * a[i][j];
                inverse[k][j] -= times * inverse[i][j];
            }
        }
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            inverse[i][j] *= scale[i] * scale[j];
    return true;
}

static void row_of(const struct point *p, const bool use[3], double x[3])
{
    x[0] = use[0] ? 1 / p->ns : 0;
    x[1] = use[1] ? p->descriptors / p->ns : 0;
    x[2] = use[2] ? (double)p->bytes / p->ns : 0;
}

static double residual(const struct point *p, const double t[3])
{
    return (t[0] + t[1] * p->descriptors + t[2] * (double)p->bytes) / p->ns - 1;
}

static void errors_of(const struct points *s, uint64_t from, const bool use[3],
                      double inverse[3][3], struct line *line)
{
    double sum = 0;
    int freedom = -(use[0] + use[1] + use[2]);

    for (uint32_t i = 0; i < s->count; i++) {
        double r = residual(&s->p[i], line->t);

        if (s->p[i].bytes < from)
            continue;
        sum += r * r + s->p[i].noise * s->p[i].noise;
        freedom++;
    }
    for (int i = 0; i < 3; i++)
        line->error[i] =
            use[i] ? sqrt(inverse[i][i] * sum / (freedom > 0 ? freedom : 1))
                   : 0;
}

static struct line solve(const struct points *s, uint64_t from,
                         const bool use[3])
{
    double a[3][3] = {{0}}, b[3] = {0}, inverse[3][3], x[3];
    struct line line = {0};

    for (uint32_t n = 0; n < s->count; n++) {
        if (s->p[n].bytes < from)
            continue;
        row_of(&s->p[n], use, x);
        for (int i = 0; i < 3; i++) {
            b[i] += x[i];
            for (int j = 0; j < 3; j++)
                a[i][j] += x[i] * x[j];
        }
    }
    if (!invert(a, use, inverse))
        return line;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            line.t[i] += inverse[i][j] * b[j];
    errors_of(s, from, use, inverse, &line);
    line.good = line.t[2] > 0;
    return line;
}

/* The intercept may be below zero: that is the credit. */
static struct line solve_sound(const struct points *s, uint64_t from)
{
    static const bool all[3] = {true, true, true};
    static const bool no_descriptors[3] = {true, false, true};
    static const bool bytes_only[3] = {false, false, true};
    struct line line = solve(s, from, all);

    if (!line.good || line.t[1] < 0)
        line = solve(s, from, no_descriptors);
    return line.good ? line : solve(s, from, bytes_only);
}

static bool holds(const struct points *s, uint64_t from,
                  const struct line *line)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const struct point *p = &s->p[i];

        if (p->bytes >= from && fabs(residual(p, line->t)) >
                                    TOLERANCE + fmin(2 * p->noise, SPREAD_MAX))
            return false;
    }
    return line->good;
}

/* ---- the result ---- */

static void keep_below(const struct points *s, struct bt_probe_fit *fit)
{
    for (uint32_t i = 0; i < s->size_count; i++) {
        double best = 0;
        uint32_t fewest = UINT32_MAX;

        if (s->sizes[i] >= fit->linear_from)
            break;
        for (uint32_t k = 0; k < s->count; k++) {
            const struct point *p = &s->p[k];

            if (p->bytes != s->sizes[i] || p->descriptors >= fewest)
                continue;
            fewest = p->descriptors;
            best = p->ns - (fewest - 1) * fit->descriptor_ns;
        }
        fit->below[fit->below_count].bytes = s->sizes[i];
        fit->below[fit->below_count++].ns = fmax(best, 1);
    }
    fit->below[fit->below_count].bytes = fit->linear_from;
    fit->below[fit->below_count++].ns =
        bt_probe_alone_ns(fit, fit->linear_from, 1);
}

static void keep_residuals(const struct bt_probe_sample *v, size_t n,
                           struct bt_probe_fit *fit)
{
    double r[SAMPLES_MAX];
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        double line = bt_probe_alone_ns(fit, v[i].bytes, v[i].descriptors);

        if (v[i].bytes >= fit->linear_from)
            r[used++] = fabs((double)v[i].ns - line) / line;
    }
    fit->samples = (uint32_t)used;
    fit->residual_median = median(r, used);
    fit->residual_p95 = r[(used * 95 + 99) / 100 - 1];
    fit->sigma = MAD_TO_SIGMA * fit->residual_median;
}

static void keep_line(const struct line *line, struct bt_probe_fit *fit)
{
    double a = line->t[0];

    fit->byte_ns = line->t[2];
    fit->descriptor_ns = line->t[1];
    fit->setup_ns = a > 0 ? a : 0;
    fit->credit_bytes = a < 0 ? -a / fit->byte_ns : 0;
    fit->setup_error_ns = line->error[0];
    fit->descriptor_error_ns = line->error[1];
    fit->byte_error_ns = line->error[2];
}

enum bt_status bt_probe_fit(const struct bt_probe_sample *samples, size_t count,
                            struct bt_probe_fit *out)
{
    struct bt_probe_fit fit = {0};
    struct line line = {0};
    struct points s;
    uint32_t first = 0;

    if (!gather(&s, samples, count))
        return BT_INVALID;
    for (;; first++) {
        line = solve_sound(&s, s.sizes[first]);
        fit.is_line = holds(&s, s.sizes[first], &line);
        if (fit.is_line || first + SIZES_LINE >= s.size_count)
            break;
    }
    if (!line.good)
        return BT_INVALID;
    fit.linear_from = s.sizes[first];
    keep_line(&line, &fit);
    keep_below(&s, &fit);
    keep_residuals(samples, count, &fit);
    *out = fit;
    return BT_OK;
}

static double below_line(const struct bt_probe_fit *fit, uint64_t bytes)
{
    uint32_t i = 0;

    if (bytes <= fit->below[0].bytes)
        return fit->below[0].ns;
    while (i + 2 < fit->below_count && fit->below[i + 1].bytes < bytes)
        i++;
    double x0 = log((double)fit->below[i].bytes);
    double x1 = log((double)fit->below[i + 1].bytes);
    double y0 = log(fit->below[i].ns), y1 = log(fit->below[i + 1].ns);
    return exp(y0 + (y1 - y0) * (log((double)bytes) - x0) / (x1 - x0));
}

double bt_probe_alone_ns(const struct bt_probe_fit *fit, uint64_t bytes,
                         uint32_t descriptors)
{
    double ns = fit->setup_ns;

    if (bytes == 0)
        return 0;
    if (bytes < fit->linear_from && fit->below_count > 1)
        return below_line(fit, bytes) + (descriptors - 1) * fit->descriptor_ns;
    ns += fmax((double)bytes - fit->credit_bytes, 0) * fit->byte_ns;
    return ns + descriptors * fit->descriptor_ns;
}
