/* Insides of the network of own flows, shared by network.c (changes, the fluid
 * model) and network_estimate.c (looks). Private to this folder.
 *
 *   flow   held from open to close: free -> planned <-> running -> finished;
 *          all but free and finished are listed on each link of their path
 *   link   list of nodes, one for each listed flow; a node carries the three
 *          numbers an estimate needs, so that a walk reads nothing else
 *   fluid  the running flows as the solver takes them, dense
 *
 * Every number of bytes is valid at rolled_ns; rates hold from then on.
 */
#ifndef BATON_PLANNER_NETWORK_IMPL_H
#define BATON_PLANNER_NETWORK_IMPL_H

#include "baton/planner/network.h"

#define PER_NS 1e-9

struct net_link {
    double ns_per_byte; /* with background; infinite: down */
    uint32_t first;     /* node, 0: none */
    uint32_t listed, running;
};

/* Number 0 is "none"; a flow's k-th link has 1 + handle * BT_PATH_LINKS_MAX +
 * k. */
struct net_node {
    uint32_t prev, next;
    double left;   /* bytes, all of them until the start */
    double per_ns; /* bytes, 0 until the start */
    int64_t start_ns;
};

/* The last answer for a crowded link: a decision asks an uplink the same for
 * every worker behind it. */
struct net_memo {
    uint64_t version; /* of the network, 0: none */
    int64_t at_ns;
    double bytes, ns;
};

enum net_state { NET_FREE, NET_PLANNED, NET_RUNNING, NET_FINISHED };

struct net_flow {
    enum net_state state;
    uint32_t count;
    uint32_t links[BT_PATH_LINKS_MAX];
    uint32_t at;                   /* in planned[], running or finished[] */
    int64_t start_ns, finished_ns; /* finished: by the model */
    double bytes;
    double cap_bytes_per_s;
    double passed[BT_PATH_LINKS_MAX]; /* by each link before its start */
    double ended[BT_PATH_LINKS_MAX];  /* likewise before it had finished */
};

struct net_fluid {
    struct bt_maxmin_flow *flows;
    double *left;
    uint32_t *handle;
    uint32_t count;
};

struct bt_network {
    const struct bt_topology *topology;
    uint32_t flows_max, held;
    uint32_t down; /* links without capacity */
    int64_t rolled_ns;
    int64_t next_start_ns; /* no planned flow starts before it */
    bool stale;            /* a capacity has changed since the rates */
    uint64_t version;      /* counts changes, 1 at first */
    struct net_link *links;
    struct net_memo *memos; /* by link */
    struct net_node *nodes;
    struct net_flow *flows;
    struct net_fluid running;
    struct net_fluid trial; /* one more, for the exact estimate */
    uint32_t *planned;
    uint32_t planned_count;
    uint32_t *finished; /* by the model, but not closed */
    uint32_t finished_count;
    int64_t setup_ns[BT_PATH_CLASS_COUNT]; /* in force */
    uint64_t *rate;                        /* by link, in force */
    double *background;                    /* share of somebody else */
    double *capacity;                      /* what is left of the rate */
    double *passed;                        /* own bytes so far */
    void *scratch;                         /* of the solver */
};

/* Rolls everything forward to now. */
void network_advance(struct bt_network *net, int64_t now_ns);

/* ---- the fluid, running or on trial ---- */

void fluid_add(struct net_fluid *fluid, const struct net_flow *flow,
               uint32_t handle, double left);
void fluid_remove(struct net_fluid *fluid, uint32_t at);
void fluid_solve(const struct bt_network *net, struct net_fluid *fluid);
/* Nanoseconds until the first flow ends at present rates. */
double fluid_first_end_ns(const struct net_fluid *fluid);
/* Bytes that flow `at` moves in a span, which may be a bit beyond its end. */
double fluid_moved(const struct net_fluid *fluid, uint32_t at, double span_ns);

static inline uint32_t net_node_of(uint32_t handle, uint32_t k)
{
    return 1 + handle * BT_PATH_LINKS_MAX + k;
}

#endif
