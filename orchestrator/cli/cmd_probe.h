/* What the files of `baton probe` share.
 *
 *   cmd_probe.c          options, order of the stages, exit code
 *   cmd_probe_http.c     agents over HTTP: who they are, pulls, their clocks
 *   cmd_probe_measure.c  paths alone, then each end with all its paths at once
 *   cmd_probe_verify.c   new transfers, foreseen and then made
 *   cmd_probe_print.c    table, JSON
 *   cmd_probe_write.c    topology file
 */
#ifndef BATON_CLI_CMD_PROBE_H
#define BATON_CLI_CMD_PROBE_H

#include "baton/base/rng.h"
#include "baton/transfer/probe.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PROBE_AGENTS_MAX 32u
#define PROBE_RAILS_MAX  8u
#define PROBE_TOGETHER   8u /* flows at once */
#define PROBE_CASES_MAX  16u
#define PROBE_REASON     200u

struct ev_loop;
struct bt_upstream;

struct probe_agent {
    char url[256]; /* without a slash at the end */
    char name[64], worker[64], fabric[16];
    char host[64]; /* of transfers */
    uint64_t port, blocks;
    uint64_t window_bytes, window_target_ns, window_share;
    char rails[PROBE_RAILS_MAX][32];
    uint32_t rail_count;
    int64_t clock_ns; /* its clock minus ours */
    int64_t round_ns; /* shortest round trip */
    bool reached;
    char reason[PROBE_REASON]; /* why not */
};

/* One pull: what is asked, and what came of it. */
struct probe_pull {
    uint32_t from, to; /* agents; `to` pulls */
    uint64_t bytes;
    uint32_t descriptors;
    bool ok;
    int64_t began_ns; /* by our clock */
    int64_t setup_ns, duration_ns, foreseen_ns;
    uint64_t rail_bytes[PROBE_RAILS_MAX];
    char reason[PROBE_REASON];
};

struct probe_pair {
    bool wanted, measured;
    struct bt_probe_fit fit;
    uint64_t largest, bytes;
    uint32_t pulls;
    int64_t setup_ns; /* median of what the agent says */
    uint64_t rail_bytes[PROBE_RAILS_MAX];
    char reason[PROBE_REASON];
};

/* An end with several paths at once; share: of the slowest flow, 1 = fair. */
struct probe_fan {
    uint32_t flows, rounds;
    double rate_bytes_per_s, share;
};

struct probe_case {
    const char *name;
    uint32_t flows, rounds, failed;
    struct bt_probe_error error;
    double median_max, p95_max; /* limits */
    bool met;
};

struct probe_options {
    uint64_t bytes_max, seed, repeats;
    int64_t seconds_max_ns, longest_ns;
    double share, alone_median, alone_p95, beside_median, beside_p95;
    bool incast, pairwise, verify, verbose, json;
    const char *write;
};

struct probe {
    struct probe_options o;
    struct probe_agent agents[PROBE_AGENTS_MAX];
    uint32_t count;
    struct probe_pair *pairs; /* count * count, [from * count + to] */
    struct probe_fan out[PROBE_AGENTS_MAX], in[PROBE_AGENTS_MAX];
    double out_rate[PROBE_AGENTS_MAX], in_rate[PROBE_AGENTS_MAX];
    double pairwise_ratio; /* moved at once / alone, 0: not measured */
    uint32_t pairwise_flows;
    struct probe_case cases[PROBE_CASES_MAX];
    uint32_t case_count;
    struct bt_rng rng;
    struct ev_loop *loop;
    struct bt_upstream *upstream;
    int64_t began_ns;
    uint64_t bytes; /* of all pulls */
    void *scratch;  /* of bt_probe_predict */
    uint32_t steps, step;
    bool is_terminal, out_of_time;
};

int64_t probe_now_ns(void);
struct probe_pair *probe_pair_of(struct probe *p, uint32_t from, uint32_t to);
/* A line on stderr that is overwritten by the next; nothing without a
 * terminal. NULL: clear. */
void probe_progress(struct probe *p, const char *what);

/* ---- cmd_probe_http.c ---- */
bool probe_http_open(struct probe *p);
void probe_http_close(struct probe *p);
/* Ask all who they are; those that do not answer get a reason. */
void probe_meet(struct probe *p);
/* All at the same moment when they are more than one. Returns how many went
 * well. Waits for all of them. */
uint32_t probe_pulls(struct probe *p, struct probe_pull *pulls, uint32_t count);
/* Leave the links alone, so that probing took at most its share of the time. */
void probe_rest(struct probe *p, int64_t busy_ns);

/* ---- cmd_probe_measure.c ---- */
void probe_measure_paths(struct probe *p);
void probe_measure_ends(struct probe *p);
void probe_measure_pairwise(struct probe *p);

/* ---- cmd_probe_verify.c ---- */
/* True: all limits are met. */
bool probe_verify(struct probe *p);

/* ---- cmd_probe_print.c, cmd_probe_write.c ---- */
void probe_print(const struct probe *p);
bool probe_write(const struct probe *p, const char *path);

#endif
