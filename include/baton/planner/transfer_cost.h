/* Transfer arithmetic beside the shared-link model: physical and regression
 * form of an idle path, staged tier paths, overlap with prefill, NVMe station
 * (cost-models.md sections 5, 6, 7, 13, 14, 16). Pure. Durations int64 ns
 * unless the name says seconds; anything not a number, negative or over
 * BT_COST_INFINITE comes out as BT_COST_INFINITE.
 *
 * Placement uses bt_prefill_chunked_ns and writes the overlap with live flows
 * itself (place_transfer.c; on an idle link it equals bt_arrival_ns). Staged
 * paths, the planner's side of the station, Clark's maximum and the physical
 * form are here for estimators to come; no decision uses them yet.
 */
#ifndef BATON_PLANNER_TRANSFER_COST_H
#define BATON_PLANNER_TRANSFER_COST_H

#include "baton/planner/cost.h"
#include <stddef.h>
#include <stdint.h>

/* Regression form: t0 + N * per_descriptor + X / rate; the bare t0 when nothing
 * moves. */
int64_t bt_transfer_additive_ns(int64_t setup_ns, int64_t per_descriptor_ns,
                                double rate_bytes_per_s, uint64_t descriptors,
                                uint64_t bytes);
/* Physical form: t0 + max(N * post / threads, X / rate) + cold; threads 0
 * counts as 1. */
int64_t bt_transfer_max_ns(int64_t setup_ns, int64_t post_ns, uint32_t threads,
                           double rate_bytes_per_s, uint64_t descriptors,
                           uint64_t bytes, int64_t cold_ns);
/* B_eff = min(B, depth * m / (alpha + m / B)), bytes per second; 0 for bad
 * input or m = 0. */
double bt_effective_rate(double rate_bytes_per_s, int64_t alpha_ns,
                         uint64_t operation_bytes, uint32_t depth);

/* A path of stages, pieces of q bytes, store and forward:
 * T = t0 + sum sigma_i + (M - 1) max sigma_i, sigma_i = o_i + q / B_i.
 * piece_bytes 0 or above `bytes`: one piece; no stages or bytes: t0. */
struct bt_stage {
    int64_t overhead_ns;
    double rate_bytes_per_s;
};
#define BT_STAGES_MAX 4
int64_t bt_pipeline_ns(int64_t setup_ns, const struct bt_stage *stages,
                       size_t count, uint64_t bytes, uint64_t piece_bytes);
/* The best piece: q* = sqrt(X o_b / sum_{i != b} 1/B_i) for the stage b that is
 * the bottleneck at that size, or where two of them change places; 64 KiB at
 * least, X at most and for one stage. */
uint64_t bt_pipeline_piece(const struct bt_stage *stages, size_t count,
                           uint64_t bytes);

/* Time from the start of the prefill to the last byte at d: t0 + F with
 * F = max((X_h + X_n)/B, T_c/K + X_n/B, T_c + X_n/(K B)); overlap none
 * (pieces <= 1): T_c + t0 + (X_h + X_n)/B. No bytes: T_c, whatever the link. */
int64_t bt_arrival_ns(int64_t prefill_ns, int64_t setup_ns,
                      double rate_bytes_per_s, uint64_t held_bytes,
                      uint64_t new_bytes, uint32_t pieces);

/* NVMe station (W13): W(q) = W_sat phi(q), phi(q) = f1 + (1 - f1)(q - 1) /
 * (Qsat - 1), per job r = W(q) / q, N servers, a base per job. */
struct bt_station {
    uint32_t servers;
    double rate_bytes_per_s; /* saturated, all jobs together */
    double first_share;      /* f1, 0..1 */
    uint32_t saturation;     /* Qsat, >= 1 */
    int64_t base_ns;
};
/* W(q) of all jobs together, at most `servers` of them; 0 for none or a bad
 * station. */
double bt_station_rate(const struct bt_station *s, uint32_t jobs);
/* Planner's estimate: one more job of `bytes` when `in_service` are served and
 * `queued_bytes` wait before it; rate frozen at its start. A full station first
 * serves the queue at W(servers) and then frees a server: on average after
 * 1/(servers + 1) of a job taken to be as long as this one. */
int64_t bt_station_ns(const struct bt_station *s, uint32_t in_service,
                      uint64_t queued_bytes, uint64_t bytes);

/* E[max] of two independent normals and its sigma (Clark; W14); both INFINITY
 * when a mean or sigma is not finite. */
void bt_clark_max(double mean_a, double sigma_a, double mean_s, double sigma_s,
                  double *mean_out, double *sigma_out);

/* Section 16: least rate at which fetching beats recomputing at depth h, and
 * the shortest worthwhile fetch at h = 0 in tokens (W11); INFINITY where
 * there is none. */
double bt_fetch_crossover_rate(const struct bt_compute_model *m,
                               uint64_t kv_bytes_per_token, uint64_t depth);
double bt_fetch_min_tokens(const struct bt_compute_model *m,
                           uint64_t kv_bytes_per_token, double rate_bytes_per_s,
                           int64_t setup_ns);
/* Chunked prefill: a * ceil(n/q) + b n + c (L^2 - h^2). chunk 0: whole. */
int64_t bt_prefill_chunked_ns(const struct bt_compute_model *m,
                              uint64_t new_tokens, uint64_t cached_tokens,
                              uint64_t chunk_tokens);

#endif
