/* Online calibration (cost-models.md section 11): recursive least squares with
 * forgetting, residual quantiles, change detection; then the three models that
 * use them: prefill and decode per worker, transfer per path class and pair,
 * and the rate of each shared link. Pure; state is the caller's, fixed size.
 */
#ifndef BATON_PLANNER_CALIBRATE_H
#define BATON_PLANNER_CALIBRATE_H

#include "baton/planner/cost.h"
#include <stdbool.h>
#include <stdint.h>

/* ---- parts ---- */

/* Three regressors, weighted by 1/(sigma_rel y). */
struct bt_rls {
    double theta[3], p[3][3], p_start[3];
    double lambda, sigma_rel;
    double floor[3], ceiling[3]; /* projection after each update */
    uint64_t updates, skipped;   /* skipped: nothing new, or garbage */
};
void bt_rls_init(struct bt_rls *r, const double theta[3], const double p[3],
                 double lambda, double sigma_rel);
/* False: sample refused (y <= 0, not finite) or nothing new in it; only
 * `skipped` changed. */
bool bt_rls_update(struct bt_rls *r, const double x[3], double y);
double bt_rls_predict(const struct bt_rls *r, const double x[3]);
void bt_rls_reset_p(struct bt_rls *r); /* keeps theta */

/* Decayed histogram of y / predicted, 64 log buckets over 0.1..10. */
#define BT_RESIDUAL_BUCKETS 64
struct bt_residual {
    double weight[BT_RESIDUAL_BUCKETS], total, decay;
};
void bt_residual_init(struct bt_residual *r, double decay);
void bt_residual_observe(struct bt_residual *r, double ratio);
double bt_residual_quantile(const struct bt_residual *r,
                            double q); /* 1: none */
/* (p90 - p50) / 1.2816 of the ratio; `fallback` below 8 observations. */
double bt_residual_sigma(const struct bt_residual *r, double fallback);

/* Two-sided CUSUM of z = ln(y / predicted). */
struct bt_cusum {
    double up, down, k, h;
    uint64_t alarms;
};
void bt_cusum_init(struct bt_cusum *c, double sigma); /* k 0.5, h 5 sigma */
bool bt_cusum_observe(struct bt_cusum *c, double z);  /* true: alarm, reset */

/* ---- compute of one worker ---- */

struct bt_compute_calibration {
    struct bt_compute_model model; /* in force, starts as the preset */
    struct bt_compute_model preset;
    struct bt_rls prefill, decode;
    struct bt_residual prefill_residual, decode_residual;
    struct bt_cusum prefill_change, decode_change;
    uint64_t outliers; /* samples beyond 10x of the estimate, not learned */
};
void bt_compute_calibration_init(struct bt_compute_calibration *c,
                                 const struct bt_compute_model *preset);
/* A prefill of n new tokens after h cached ones took ns (service alone). */
void bt_compute_observe_prefill(struct bt_compute_calibration *c,
                                uint64_t new_tokens, uint64_t cached_tokens,
                                int64_t ns);
/* A decode step at (batch, context tokens) took ns. */
void bt_compute_observe_decode(struct bt_compute_calibration *c, uint64_t batch,
                               uint64_t context_tokens, int64_t ns);
/* Relative sigma of the next estimate, bias included; 0.15 until eight samples
 * have come since the start or the last change. */
double bt_compute_prefill_sigma(const struct bt_compute_calibration *c);
double bt_compute_decode_sigma(const struct bt_compute_calibration *c);

/* ---- transfers of one path class or pair ---- */

struct bt_transfer_calibration {
    struct bt_rls rls; /* ms; kilo-descriptors; GB */
    struct bt_residual residual;
    struct bt_cusum change;
    uint64_t nominal_bytes_per_s, observations;
    uint64_t changed_at; /* observations at the last alarm */
    bool changed; /* alarm a short while ago: sigma is raised; ends by itself
                     after 32 quiet observations */
    bool fallback_suspected; /* >= 10x below nominal: silent TCP */
    uint32_t against;        /* transfers in a row that say the opposite */
};
void bt_transfer_calibration_init(struct bt_transfer_calibration *c,
                                  int64_t setup_ns, int64_t per_descriptor_ns,
                                  uint64_t nominal_bytes_per_s);
/* own_bytes: X_own of our other flows beside it. */
void bt_transfer_observe(struct bt_transfer_calibration *c,
                         uint64_t descriptors, uint64_t bytes,
                         uint64_t own_bytes, int64_t ns);
void bt_transfer_model_get(const struct bt_transfer_calibration *c,
                           int64_t *setup_out, int64_t *per_descriptor_out,
                           double *rate_out);
/* Relative; 0.3 at the start and for a while after a change. */
double bt_transfer_sigma(const struct bt_transfer_calibration *c);

/* ---- what a transfer takes beside its bytes, per path class ----
 *
 * A configured set-up is a guess, and the engine's own part (HTTP, greetings,
 * the step that is under way when the bytes are there) is in none. In force is
 * the median of the last BT_SETUP_WINDOW times less bytes at the rate in force
 * and descriptors, so nothing that happens to fewer than half of the transfers
 * moves it. The window starts full of the configured time. Clamped to 0 .. 1 s
 * or 10 times the configured one. */
#define BT_SETUP_WINDOW 31 /* odd */
struct bt_setup_calibration {
    double seen[BT_SETUP_WINDOW]; /* ns */
    uint32_t at;
    double most, told; /* told: at the last true of an observe */
};
void bt_setup_calibration_init(struct bt_setup_calibration *c,
                               int64_t setup_ns);
/* ns: as above, may be negative. True when the set-up in force moved by more
 * than 10 % and 100 us since the last true. */
bool bt_setup_observe(struct bt_setup_calibration *c, int64_t ns);
int64_t bt_setup_ns(const struct bt_setup_calibration *c);

/* ---- rate of one shared link ----
 *
 * A transfer over several links only shows the slowest, so a link's rate is
 * the best of the last BT_LINK_WINDOW corrected rates (bytes + own bytes) /
 * (time - setup) seen through it: a healthy link shows full rate now and then,
 * a degraded one never. The window starts full of nominal. Clamped to
 * 0.02..1.05 of nominal.
 *
 * A slow link is avoided, and then nothing would ever tell that it is whole
 * again: a rate below nominal that no transfer has confirmed for BT_LINK_AGE_NS
 * doubles, and again after as long, up to nominal. The next transfer ends the
 * doubt either way: fast, it is the best of the window; slow, the window holds
 * again. So a link that stays slow costs a misplaced transfer now and then. */
#define BT_LINK_WINDOW 16
#define BT_LINK_AGE_NS INT64_C(10000000000)
struct bt_link_calibration {
    uint64_t nominal_bytes_per_s;
    double seen[BT_LINK_WINDOW];
    uint32_t count, at;
    double told;  /* rate at the last true of an observe or age */
    double doubt; /* factor on what was seen, 1: none */
    bool fresh;   /* observed since the last bt_link_age() */
    int64_t rested_ns;
};
void bt_link_calibration_init(struct bt_link_calibration *c,
                              uint64_t nominal_bytes_per_s);
/* weight: transfers below 64 MiB or where setup rules are skipped by the
 * caller. True when the rate in force moved by more than 10 % since the last
 * true. */
bool bt_link_observe(struct bt_link_calibration *c, uint64_t bytes,
                     uint64_t own_bytes, int64_t ns_without_setup);
/* To be called now and then, at least every BT_LINK_AGE_NS / 2; now_ns never
 * steps back. True when the rate in force moved. */
bool bt_link_age(struct bt_link_calibration *c, int64_t now_ns);
uint64_t bt_link_rate(const struct bt_link_calibration *c);

#endif
