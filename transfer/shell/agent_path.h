/* What an agent knows of its paths: one calibration per (peer, region), the
 * flows on each, the prediction of the next pull, and how earlier ones came
 * out. No locks, no clock: times come in. */
#ifndef BATON_TRANSFER_SHELL_AGENT_PATH_H
#define BATON_TRANSFER_SHELL_AGENT_PATH_H

#include "baton/planner/calibrate.h"
#include "baton/transfer/agent.h"

#include <sys/queue.h>

#define BT_PATHS_MAX       256u
#define BT_PATH_ERRORS_MAX 256u

struct bt_path {
    TAILQ_ENTRY(bt_path) entry; /* least recently used first */
    char host[64], name[BT_KV_NAME_MAX], region[BT_KV_NAME_MAX];
    uint16_t port;
    uint32_t flows;
    bool known; /* the calibration has begun */
    struct bt_transfer_calibration calibration;
    uint64_t pulls, failed, bytes;
    float errors[BT_PATH_ERRORS_MAX]; /* ring */
    uint64_t predicted;
    char carriers[BT_RAILS_MAX][64]; /* "": not known */
};

/* One pull under way. */
struct bt_path_flow {
    TAILQ_ENTRY(bt_path_flow) entry;
    struct bt_path *path; /* NULL: not one of the table's */
    uint64_t bytes;
    int64_t start_ns;
    int64_t predicted_ns;     /* 0: nothing known */
    double own_path, own_all; /* bytes of others beside it, so far */
    /* Foreseen at the start: what those then under way had left, and what they
     * would move if each were followed by another. */
    double least_path, most_path, least_all, most_all;
};

struct bt_paths {
    TAILQ_HEAD(bt_path_list, bt_path) list;
    TAILQ_HEAD(bt_path_flows, bt_path_flow) flows;
    uint32_t count;
    uint64_t ingress_bytes_per_s; /* of all rails together, 0: not known */
    double followed_path, followed_all; /* how often they are: 0..2, learned */
    struct bt_agent_start *starts;      /* malloc'd */
    size_t start_count;
};

void bt_paths_init(struct bt_paths *paths, uint64_t ingress_bytes_per_s);
void bt_paths_fini(struct bt_paths *paths);
/* As bt_agent_calibrate. */
enum bt_status bt_paths_calibrate(struct bt_paths *paths,
                                  const struct bt_agent_start *starts,
                                  size_t count);
/* A pull begins; fills the flow, its prediction included. region: the remote
 * one's name. Without room for the path nothing is predicted. */
void bt_paths_begin(struct bt_paths *paths, struct bt_path_flow *flow,
                    const struct bt_agent_pull *pull, const char *region,
                    uint64_t block_bytes, int64_t now_ns);
/* It ended: learn from it. `event` has everything but predicted_ns, which
 * is set here. */
void bt_paths_end(struct bt_paths *paths, struct bt_path_flow *flow,
                  struct bt_agent_event *event, int64_t now_ns);
/* What carries this rail to that peer, all its regions. */
void bt_paths_carrier(struct bt_paths *paths, const char *host, uint16_t port,
                      uint32_t rail, const char *carrier);
size_t bt_paths_report(const struct bt_paths *paths, struct bt_agent_path *out,
                       size_t max);

#endif
