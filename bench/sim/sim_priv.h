/* Private shapes of the simulator: the world's parts and the calls between
 * its files. README.md has the map. Functions shared by the files of this
 * folder start with sim_; nothing here is seen by the core.
 */
#ifndef BT_SIM_PRIV_H
#define BT_SIM_PRIV_H

#include "baton/base/rng.h"
#include "baton/base/units.h"
#include "baton/bench/sim.h"
#include "baton/planner/transfer_cost.h"

#include <stdio.h>

#define SIM_NONE  UINT32_MAX
#define SIM_NEVER INT64_MAX

/* ---- heap.c: what happens next, by time, then by order of scheduling ---- */

enum sim_what {
    SIM_EV_ARRIVAL,
    SIM_EV_TICK,
    SIM_EV_STEP,       /* a: worker, b: version of its step */
    SIM_EV_FLOW_OPEN,  /* a: job, b: its generation */
    SIM_EV_PIECE,      /* a: job, b: its generation: KV computed meanwhile */
    SIM_EV_NET,        /* b: version of the network's plan */
    SIM_EV_STATION,    /* a: worker * 2 + tier, b: version */
    SIM_EV_STATS,      /* a: worker: look */
    SIM_EV_STATS_OUT,  /* a: worker: the look arrives */
    SIM_EV_KV_OUT,     /* a: batch */
    SIM_EV_KV_REPLAY,  /* a: worker, b: version of what it asked */
    SIM_EV_FAULT,      /* a: fault */
    SIM_EV_FAULT_END,  /* a: fault */
    SIM_EV_CUT_FAIL,   /* a: worker */
    SIM_EV_HEALTH,     /* a: worker, b: incarnation it was lost with */
    SIM_EV_BACKGROUND, /* a: link */
};
struct sim_event {
    int64_t at_ns;
    uint64_t seq, b;
    uint32_t what, a;
};
struct sim_heap {
    struct sim_event *items;
    size_t count, capacity;
    uint64_t seq;
};
/* False: no memory, or SIM_HEAP_MAX events wait. */
#define SIM_HEAP_MAX ((size_t)1 << 24)
bool sim_heap_push(struct sim_heap *heap, struct sim_event event);
bool sim_heap_pop(struct sim_heap *heap, struct sim_event *out);
void sim_heap_fini(struct sim_heap *heap);

/* ---- cache.c: blocks of one tier of one worker ---- */

struct sim_block {
    uint64_t id;
    uint32_t prev, next; /* by last use while not pinned; else unlinked */
    uint32_t chain;      /* of the hash */
    uint32_t pins;
};
struct sim_cache {
    struct sim_block *blocks;
    uint32_t *heads;
    uint32_t mask, capacity, count, pinned, fresh, free_first;
    uint32_t oldest, newest;
};
bool sim_cache_init(struct sim_cache *c, uint32_t capacity);
void sim_cache_fini(struct sim_cache *c);
uint32_t sim_cache_find(const struct sim_cache *c, uint64_t id);
/* Leading ids that are held. */
uint32_t sim_cache_leading(const struct sim_cache *c, const uint64_t *ids,
                           uint32_t count);
/* Pinned once; SIM_NONE: full. id must not be there. */
uint32_t sim_cache_insert(struct sim_cache *c, uint64_t id);
void sim_cache_pin(struct sim_cache *c, uint32_t at);
void sim_cache_unpin(struct sim_cache *c, uint32_t at); /* 0: newest */
/* at must not be pinned. */
void sim_cache_remove(struct sim_cache *c, uint32_t at);

/* ---- net.c: fluid max-min network, true capacities ---- */

struct sim_flow {
    bool used, more; /* more: bytes will be added, do not end it */
    double left;
    uint64_t tag;
    uint32_t links[BT_PATH_LINKS_MAX], count;
    double rate;
};
struct sim_net {
    uint32_t link_count;
    double *capacity, *bytes; /* per link; bytes passed so far */
    double *loaded;           /* scratch of the check */
    struct sim_flow *flows;
    uint32_t flow_count, flow_capacity, free_hint, live;
    struct bt_maxmin_flow *solver;
    uint32_t *solver_of; /* flow of each entry */
    void *scratch;
    size_t scratch_flows;
    int64_t now_ns;
    bool dirty, over_capacity;
};
bool sim_net_init(struct sim_net *net, uint32_t link_count,
                  const double *capacity);
void sim_net_fini(struct sim_net *net);
uint32_t sim_net_start(struct sim_net *net, int64_t now_ns,
                       const struct sim_flow *flow); /* SIM_NONE: memory */
void sim_net_stop(struct sim_net *net, int64_t now_ns, uint32_t flow);
void sim_net_add(struct sim_net *net, int64_t now_ns, uint32_t flow,
                 double bytes, bool more);
void sim_net_capacity_set(struct sim_net *net, int64_t now_ns, uint32_t link,
                          double bytes_per_s);
/* Rates anew if something changed; when the next flow ends, or SIM_NEVER. */
int64_t sim_net_settle(struct sim_net *net, int64_t now_ns);
/* A flow that has ended by now, or SIM_NONE. The caller stops it. */
uint32_t sim_net_finished(struct sim_net *net, int64_t now_ns);

/* ---- station.c: loads from a slower tier ---- */

#define SIM_STATION_SERVERS_MAX 64u
struct sim_load {
    uint32_t tag;
    double left;
    int64_t bytes_from_ns; /* after the base */
};
struct sim_station {
    struct bt_station model;
    struct sim_load served[SIM_STATION_SERVERS_MAX];
    uint32_t served_count;
    struct sim_load *waiting; /* ring */
    uint32_t head, count, capacity;
    int64_t now_ns;
    uint64_t version;
};
void sim_station_init(struct sim_station *s, const struct bt_station *model);
void sim_station_fini(struct sim_station *s);
bool sim_station_put(struct sim_station *s, int64_t now_ns, uint32_t tag,
                     double bytes); /* false: memory */
void sim_station_drop(struct sim_station *s, int64_t now_ns, uint32_t tag);
int64_t sim_station_next(const struct sim_station *s); /* SIM_NEVER: idle */
/* Tag of a load that has ended by now, SIM_NONE. */
uint32_t sim_station_take(struct sim_station *s, int64_t now_ns);

/* ---- jobs: one leg on one worker ---- */

enum sim_job_state {
    SIM_JOB_FREE,
    SIM_JOB_FETCH,   /* leg P or ahead of it: its prefix is on the way */
    SIM_JOB_WAIT,    /* for KV room, a slot, its turn */
    SIM_JOB_PULL,    /* leg D: room is taken, KV is on the way */
    SIM_JOB_JOIN,    /* leg D: KV is there, starts with the next step */
    SIM_JOB_PREFILL, /* being computed */
    SIM_JOB_DECODE,
    SIM_JOB_HOLD /* leg P: done, blocks are held until they are pulled */
};
struct sim_link { /* place in a list, by job */
    uint32_t prev, next;
};
struct sim_list {
    uint32_t first, last, count;
};
struct sim_job {
    enum sim_job_state state;
    uint32_t generation;
    uint32_t request, attempt, worker;
    enum bt_leg leg;
    bool pull;     /* leg D whose KV comes from another worker */
    bool attached; /* the leg was sent; false: room taken ahead of leg D */
    bool ahead;    /* a fetch without a leg */
    bool slot;     /* holds a decode slot */
    struct sim_link link;
    uint32_t pinned;     /* leading blocks of its chain pinned here */
    uint64_t private_kv; /* tokens of KV beside the pinned blocks */
    uint32_t prefix;     /* tokens that need no compute */
    uint32_t computed;   /* tokens, prefix included */
    uint32_t chunk;      /* of the step in progress */
    uint32_t tokens;     /* answered */
    int64_t token_ns;    /* of the last one */
    int64_t compute_from_ns;
    double share;    /* of the compute that is done, for pushes */
    uint32_t pieces; /* pushed so far */
    /* pull: leg D <- leg P */
    uint32_t source; /* leg D: job of leg P */
    uint32_t target; /* leg P: job of leg D */
    uint32_t flow;   /* SIM_NONE: none */
    bool flow_due;   /* its set-up runs */
    bool flow_done;
    uint32_t flow_tokens;
    double flow_bytes, flow_held, flow_given;
    /* leg P: a prefix on the way */
    uint32_t fetch_from; /* worker */
    uint32_t fetch_blocks, fetch_parts;
    unsigned char *fetch_tiers; /* where each block is pinned at the source */
    double fetch_net;           /* bytes to send */
};

/* ---- workers ---- */

struct sim_step {
    bool on, prefill;
    int64_t from_ns, end_ns;
    uint64_t version;
    uint32_t steps;
    double first_ns, growth_ns;
    double prefill_part; /* of its time */
};
struct sim_worker {
    const struct bt_sim_pool *pool;
    struct bt_compute_model compute;
    unsigned int roles;
    uint32_t rack, chunk; /* prefill tokens per step, 0: whole prompts */
    uint32_t slots_max, slots;
    uint64_t kv_tokens, private_kv;
    uint64_t nic_bytes_per_s;
    bool up, cut, kicked;
    uint32_t hung; /* faults that hold it */
    int64_t hung_ns;
    uint64_t incarnation;
    double slow, nic_factor;
    struct sim_cache tiers[3];
    bool has_tier[3];
    struct sim_station stations[2]; /* host, disk */
    struct sim_list prefill_wait, pull_wait, prefill, join;
    uint32_t *batch;
    uint32_t batch_count, batch_capacity;
    uint64_t context; /* of the batch */
    struct sim_step step;
    int64_t busy_ns, prefill_ns;
};

/* ---- requests ---- */

struct sim_request {
    const struct bt_trace_request *trace;
    const uint64_t *ids; /* full blocks */
    const uint64_t *keys;
    uint32_t blocks; /* full ones */
    struct bt_request_id id;
    uint32_t leg_p, leg_d; /* jobs, SIM_NONE */
    uint32_t ahead;        /* job of a prefetch, SIM_NONE */
    uint32_t prefill_attempt, decode_attempt;
    uint64_t session;
    uint32_t finishes;
    bool accepted;
};

/* ---- KV events on their way ---- */

struct sim_kv_item {
    bool remove;
    enum bt_tier tier;
    uint32_t count;
};
struct sim_kv_batch {
    uint32_t worker;
    uint64_t incarnation;
    int64_t sent_ns;
    bool lost;
    struct sim_kv_item *items;
    uint32_t item_count, item_capacity;
    uint64_t *ids, *keys;
    uint32_t id_count, id_capacity;
    uint32_t next_free;
};
/* What the receiver keeps of one worker's stream. */
struct sim_kv_stream {
    int64_t last_ns; /* the last batch arrives */
    uint32_t *held;  /* batches from the first missing one on, by arrival */
    uint32_t held_count, held_capacity;
    bool syncing;    /* a replay is asked for */
    bool silent;     /* and nothing will come of it */
    bool hole;       /* a removal may have been missed for good */
    bool missed;     /* only stores may, since that hole has aged out */
    uint64_t stored; /* blocks on the device, since the hole */
    enum bt_stream_cause hole_cause, exact_cause;
    uint32_t asks; /* in a row that nothing came of */
    int64_t asked_ns;
    uint64_t version; /* of what is asked */
};
struct sim_kv_plane {
    struct sim_kv_batch *pending; /* per worker */
    struct sim_kv_batch spare;    /* buffers to change places with */
    uint32_t *dirty;
    bool *is_dirty;
    uint32_t dirty_count;
    struct sim_kv_stream *streams; /* per worker */
    struct sim_kv_batch **flying;
    uint32_t flying_count, flying_free;
};

struct sim_stats {
    struct bt_ev_worker_stats what;
    uint64_t incarnation;
};
#define SIM_STATS_FLYING 4096u

/* What the core may ask in one go: a placement seen by the wrapped policy. */
#define SIM_SEEN_MAX 4096u
struct sim_seen {
    struct bt_placement placement;
    int64_t regret_ns; /* regret < 0: not computed */
};

struct sim_topology {
    struct bt_topology_spec spec;
    struct bt_topology_node *nodes;
    struct bt_topology_worker *workers;
    struct bt_topology_rack *racks;
    void *memory;
    struct bt_topology *topology; /* in memory */
};

struct sim {
    const struct bt_sim_config *config;
    const struct bt_sim_cluster *cluster;
    const struct bt_sim_fabric *fabric;
    struct sim_heap heap;
    struct sim_net net;
    uint64_t net_version;
    int64_t net_planned_ns;
    struct sim_worker *workers;
    uint32_t worker_count;
    uint32_t *kicks, kick_count; /* workers to look at, in order */
    struct sim_job *jobs;
    uint32_t job_count, job_capacity, job_free, job_live;
    struct sim_request *requests;
    int64_t *arrivals;
    size_t request_count, next_arrival, finished;
    bool arrivals_stopped;
    uint64_t *keys; /* per entry of trace->blocks used */
    uint32_t block_tokens;
    int64_t now_ns, measure_from_ns, measure_to_ns;
    enum bt_status failed; /* sticky: the world ran out of something */
    struct bt_rng rng_kv, rng_world;
    /* towards the core */
    struct bt_core *core;
    void *core_memory;
    struct bt_journal_writer *journal;
    struct sim_topology true_topology, told_topology;
    const struct bt_topology *truth;
    char (*names)[16];
    struct bt_core_worker_config *told_workers;
    struct bt_core_link_config *told_links;
    struct bt_core_model_config told_model;
    struct bt_effects effects;
    struct bt_event *out; /* ring of events for the core */
    uint32_t out_head, out_count, out_capacity;
    struct sim_kv_plane kv;
    struct sim_stats *stats; /* ring of SIM_STATS_FLYING per run */
    uint32_t stats_head, stats_count;
    /* policy.c, regret.c */
    struct bt_policy policy;
    const struct bt_policy *real_policy;
    double knobs[BT_POLICY_KNOBS_MAX];
    struct sim_seen *seen;
    uint32_t seen_count, seen_used;
    uint64_t decisions;
    bool oracle;
    uint32_t oracle_width; /* 0: all */
    int64_t regret_ns;     /* of the placement just seen */
    bool child, child_pair_due, child_watching;
    struct bt_place_candidate child_pair; /* also: what the oracle chose */
    uint32_t child_request;
    int64_t child_from_ns;
    int child_pipe;
    /* metrics.c */
    struct bt_sim_result *result;
};

/* setup.c, setup_core.c */
enum bt_status sim_setup(struct sim *s, char *error_out, size_t error_size);
/* One worker per node; rates of the NICs by worker. */
enum bt_status sim_topology(struct sim *s, const uint64_t *nics,
                            uint64_t rack_up, struct sim_topology *out);
enum bt_status sim_setup_core(struct sim *s, char *error_out,
                              size_t error_size);
void sim_teardown(struct sim *s);
void sim_after(struct sim *s, int64_t at_ns, enum sim_what what, uint32_t a,
               uint64_t b);
static inline void sim_fail(struct sim *s, enum bt_status status)
{
    if (s->failed == BT_OK)
        s->failed = status;
}
static inline struct bt_sim_record *sim_record(struct sim *s, uint32_t request)
{
    return &s->result->records[request];
}
/* Ids of blocks are dense; a bijection makes own keys of them. */
static inline uint64_t sim_key_of(uint64_t id)
{
    return bt_mix64(id + 1);
}

/* run.c: events for the core, performed in order after the world's event */
void sim_tell(struct sim *s, const struct bt_event *event);
void sim_step_core(struct sim *s, const struct bt_event *event);
enum bt_status sim_run_loop(struct sim *s);

/* jobs.c: pool, KV room, life */
uint32_t sim_job_take(struct sim *s, uint32_t request, uint32_t worker);
void sim_job_free(struct sim *s, uint32_t job);
void sim_list_put(struct sim *s, struct sim_list *list, uint32_t job);
void sim_list_drop(struct sim *s, struct sim_list *list, uint32_t job);
bool sim_kv_take(struct sim *s, uint32_t job, uint64_t tokens);
uint64_t sim_kv_used(const struct sim *s, const struct sim_worker *w);
uint32_t sim_prompt(const struct sim *s, const struct sim_job *j);
uint32_t sim_output(const struct sim *s, const struct sim_job *j);
/* Leading blocks of its prompt that need no compute if they are held. */
uint32_t sim_useful_blocks(const struct sim *s, const struct sim_job *j);
/* Pin the leading held blocks, at most max; how many. */
uint32_t sim_job_pin(struct sim *s, struct sim_job *j, uint32_t max);
void sim_job_unpin(struct sim *s, struct sim_job *j, uint32_t down_to);
/* Its first `upto` blocks become cache, pinned by it. */
void sim_job_store(struct sim *s, struct sim_job *j, uint32_t upto);
void sim_job_release(struct sim *s, struct sim_job *j); /* KV and pins */
/* Take it out of whatever it is in, with its transfers, and free it. */
void sim_job_end(struct sim *s, uint32_t job);

/* engine.c */
void sim_engine_kick(struct sim *s, uint32_t worker);
bool sim_engine_look(struct sim *s); /* true: somebody had been kicked */
void sim_engine_step_end(struct sim *s, uint32_t worker, uint64_t version);
void sim_engine_drop(struct sim *s, uint32_t worker, uint32_t job);
void sim_engine_stop(struct sim *s, uint32_t worker);

/* admit.c */
void sim_admit_prefills(struct sim *s, uint32_t worker);
void sim_admit_pulls(struct sim *s, uint32_t worker);
bool sim_admit_waits(const struct sim *s, uint32_t worker);

/* legs.c: effects */
void sim_leg_prefill(struct sim *s, const struct bt_effect *fx);
void sim_leg_decode(struct sim *s, const struct bt_effect *fx);
void sim_leg_abort(struct sim *s, const struct bt_effect *fx);
void sim_leg_release(struct sim *s, uint32_t request);
void sim_leg_failed(struct sim *s, uint32_t request, enum bt_leg leg,
                    enum bt_leg_failure how);
void sim_leg_prefilled(struct sim *s, uint32_t job);
void sim_leg_token(struct sim *s, uint32_t job, int64_t at_ns);
void sim_leg_done(struct sim *s, uint32_t job);

/* pull.c: KV from p to d */
void sim_pull_start(struct sim *s, uint32_t job);
void sim_pull_open(struct sim *s, uint32_t job);
void sim_pull_done(struct sim *s, uint32_t job);
void sim_pull_failed(struct sim *s, uint32_t job);
void sim_push_computed(struct sim *s, uint32_t leg_p, double share);
void sim_push_piece(struct sim *s, uint32_t leg_p);
void sim_push_plan(struct sim *s, uint32_t leg_p);
bool sim_push_may_start(const struct sim *s, const struct sim_job *leg_p);

/* fetch.c: a prefix to p */
void sim_fetch_start(struct sim *s, uint32_t job,
                     const struct bt_place_source *source);
void sim_fetch_open(struct sim *s, uint32_t job);
void sim_fetch_part_done(struct sim *s, uint32_t job);
void sim_fetch_end(struct sim *s, uint32_t job, bool arrived);
void sim_fetch_station(struct sim *s, uint32_t worker, uint32_t tier,
                       uint64_t version);
/* A fetch without a leg; a leg may take it over: the job, or SIM_NONE when
 * nothing is on the way to that worker (then it is ended). */
void sim_prefetch(struct sim *s, const struct bt_effect *fx);
uint32_t sim_prefetch_take(struct sim *s, uint32_t request, uint32_t worker);
void sim_prefetch_drop(struct sim *s, uint32_t request);

/* flows of jobs: tag = generation << 32 | job */
uint32_t sim_flow_start(struct sim *s, uint32_t to, uint32_t from, uint32_t job,
                        double bytes, bool more);
int64_t sim_flow_setup_ns(const struct sim *s, uint64_t tokens);
void sim_net_event(struct sim *s, uint64_t version);
void sim_net_plan(struct sim *s);

/* kv_plane.c */
bool sim_kv_plane_init(struct sim *s);
void sim_kv_plane_fini(struct sim *s);
void sim_kv_note(struct sim *s, uint32_t worker, bool remove, enum bt_tier tier,
                 uint64_t id);
bool sim_kv_flush(struct sim *s); /* true: the core was told something */
void sim_kv_arrive(struct sim *s, uint32_t batch);
void sim_kv_replay(struct sim *s, uint32_t worker, uint64_t version);
void sim_kv_forget(struct sim *s, uint32_t worker);

/* telemetry.c, faults.c */
void sim_stats_look(struct sim *s, uint32_t worker);
void sim_stats_arrive(struct sim *s);
void sim_worker_ready(struct sim *s, uint32_t worker);
void sim_fault_begin(struct sim *s, uint32_t fault);
void sim_fault_end(struct sim *s, uint32_t fault);
void sim_fault_cut_fail(struct sim *s, uint32_t worker);
void sim_fault_health(struct sim *s, uint32_t worker, uint64_t incarnation);
void sim_background_flip(struct sim *s, uint32_t link, uint64_t on);
void sim_background_init(struct sim *s);
void sim_link_capacity(struct sim *s, uint32_t worker);

/* policy.c, regret.c */
enum bt_status sim_policy_init(struct sim *s, char *error_out,
                               size_t error_size);
void sim_policy_begin(struct sim *s); /* of a core step */
const struct sim_seen *sim_policy_seen(struct sim *s, uint32_t p, uint32_t d);
void sim_policy_use(struct sim *s); /* this thread's policies ask this sim */
/* True times of the candidates by forks. True: place s->child_pair (this is a
 * child, or the oracle). */
bool sim_truth(struct sim *s, const struct bt_place_view *view,
               const struct bt_placement *placement);
void sim_child_sent(struct sim *s, uint32_t request, uint32_t p, uint32_t d);
void sim_child_first_token(struct sim *s, uint32_t request);
void sim_child_finished(struct sim *s, uint32_t request);
void sim_child_ended(struct sim *s); /* does not return in a child */

/* check.c */
void sim_check(struct sim *s);
void sim_check_end(struct sim *s);
void sim_check_failed(struct sim *s, const char *what, uint64_t a, uint64_t b);

/* metrics.c */
void sim_metrics_open(struct sim *s);
void sim_metrics_busy(struct sim *s, uint32_t worker, int64_t from_ns,
                      int64_t to_ns, double prefill_part);
void sim_metrics_sent(struct sim *s, uint32_t request, uint32_t p, uint32_t d);
void sim_metrics_decision(struct sim *s, uint32_t request,
                          const struct bt_decision *decision);
void sim_metrics_transfer(struct sim *s, uint32_t a, uint32_t b, double bytes);
void sim_metrics_close(struct sim *s);
void sim_hash_effect(struct sim *s, const struct bt_effect *fx);

#endif
