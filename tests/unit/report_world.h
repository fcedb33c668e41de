/* A closed system for the tests of bench/report: a policy has a capacity, and
 * everything a run gives follows from speed, policy and seed. */
#ifndef REPORT_WORLD_H
#define REPORT_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "baton/bench/report.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORLD_REQUESTS 200u

struct world {
    struct bt_sim_cluster cluster;
    struct bt_trace_request requests[WORLD_REQUESTS];
    struct bt_trace trace;
    struct bt_report_setup setup;
};

static inline double world_capacity(const char *policy)
{
    if (strcmp(policy, "joint") == 0)
        return 3.1;
    if (strcmp(policy, "dynamo") == 0)
        return 1.3;
    if (strcmp(policy, "cla:w=2,v=0.5") == 0)
        return 2.2;
    return 1.7;
}

/* TTFT of request i: (1 + i / 100) x (1 + speed / capacity), 1 % more with
 * each seed. */
static inline void world_run(void *arg, const struct bt_sim_config *config,
                             bool keep_samples, struct bt_report_result *out)
{
    double capacity = world_capacity(config->policy);
    double load = config->speed / capacity;
    size_t n = config->trace->count;

    (void)arg;
    if (strcmp(config->policy, "random") == 0 && config->seed == 2)
        kill(getpid(), SIGKILL);
    if (strcmp(config->policy, "jsq") == 0)
        _exit(3);
    if (strcmp(config->policy, "lmetric") == 0) {
        out->status = BT_INVALID;
        snprintf(out->error, sizeof(out->error), "fabric: no such thing");
        return;
    }
    out->all.measured = out->all.ok = n;
    out->all.attainment = load <= 1 ? 0.97 : 0.4;
    out->all.slowdown.p99 = 2;
    out->all.goodput_per_s = 4 * load;
    out->all.ttft.p50 = 1 + load;
    out->all.ttft.p90 = 2 * (1 + load);
    out->all.ttft.p99 = 4 * (1 + load);
    out->all.ttst.p99 = 5 * (1 + load); /* p50 stays 0: cannot be drawn */
    out->all.tpot.p50 = 0.01;
    out->all.tpot.p99 = 0.02;
    out->all.regret_mean_s = config->regret_every ? 0.25 : -1;
    out->all.regret_p99_s = -1;
    out->effects_hash = config->seed * 1000 + (uint64_t)(config->speed * 10);
    out->requests = n;
    out->wall_s = 0.5;
    for (int k = 0; keep_samples && k < BT_REPORT_SAMPLE_COUNT; k++) {
        out->samples[k] = malloc(n * sizeof(float));
        out->sample_count = n;
        for (size_t i = 0; i < n; i++)
            out->samples[k][i] =
                i < n / 10 ? NAN
                           : (float)((1 + (double)i / 100) * (1 + load) *
                                     (1 + 0.01 * (double)config->seed));
    }
}

static inline void world_init(struct world *w, const char *const *policies)
{
    char error[BT_REPORT_ERROR_MIN] = "";
    struct bt_report_scenario *s = &w->setup.scenarios[0];

    memset(w, 0, sizeof(*w));
    snprintf(w->cluster.name, sizeof(w->cluster.name), "closed");
    w->cluster.fabric_count = 2;
    snprintf(w->cluster.fabrics[0].name, BT_SIM_NAME_MAX, "flat");
    snprintf(w->cluster.fabrics[1].name, BT_SIM_NAME_MAX, "racks");
    w->trace.requests = w->requests;
    w->trace.count = WORLD_REQUESTS;
    w->trace.synthetic = true;
    snprintf(w->trace.name, sizeof(w->trace.name), "made");
    bt_report_setup_init(&w->setup);
    w->setup.jobs.run = world_run;
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(s[i].name, sizeof(s[i].name), "%s",
                 w->cluster.fabrics[i].name);
        s[i].cluster = &w->cluster;
        s[i].fabric = i;
        s[i].trace = &w->trace;
        s[i].knowledge = w->setup.base.knowledge;
    }
    w->setup.scenario_count = 1;
    for (; *policies; policies++) {
        if (bt_report_arm_add(&w->setup, *policies, error, sizeof(error)) !=
            BT_OK)
            fail_msg("%s", error);
    }
}

#endif
