/* Private to bench/ab: the pieces of a demo. */
#ifndef BENCH_AB_DEMO_PRIV_H
#define BENCH_AB_DEMO_PRIV_H

#include "baton/bench/demo.h"
#include "baton/bench/oracle.h"
#include "baton/bench/sim.h"

struct ev_loop;

struct demo {
    const struct bt_demo_options *options;
    struct ev_loop *loop;
    char directory[480];
    bool temporary;
    struct bt_cluster_spec spec;
    struct bt_sim_cluster cluster; /* with --cluster */
    struct bt_oracle oracle;
    struct bt_workload workload;
    struct bt_expected *expected;
    struct bt_demo_report *report;
    size_t running; /* index of the policy in progress */
    char serve_extra[1024];
};

/* The default topology: p0, p1, d0, d1, one slow pair unless uniform. */
void demo_topology(const struct bt_demo_options *options,
                   struct bt_cluster_spec *spec);
/* The same from options->cluster. Message to stderr. */
enum bt_status demo_cluster_read(const struct bt_demo_options *options,
                                 struct bt_sim_cluster *cluster,
                                 struct bt_cluster_spec *spec);
/* Move this process onto a host of a bed. Message to stderr. BT_IO. */
enum bt_status demo_netbed_enter(const char *bed, uint32_t host);
/* The workload as a trace of the simulator, in the demo's directory. */
void demo_workload_dump(const struct demo *demo);
/* Predictions beside what came. */
void demo_predictions(const struct demo *demo, struct bt_cluster *cluster,
                      struct bt_demo_result *result);
/* The workload and the expected answers. Message to stderr. */
enum bt_status demo_workload_make(struct demo *demo);
/* Fill a result from the engines' and serve's counters. */
void demo_collect(struct demo *demo, struct bt_cluster *cluster,
                  struct bt_demo_result *result);

#endif
