/* Pieces of a placement that policies share: feasibility of a worker for a
 * role, the terms of one side, prefix sources, the naive choice, the search
 * over all candidates, the choice of d at the hand-off. Private to this folder.
 *
 * A policy that looks at pairs by itself uses place_pair() (device prefix
 * only) or place_pair_from() (a given source); place_load_prefix() first,
 * place_finish() last. place_scan*() serve policies that take the best.
 */
#ifndef BATON_PLANNER_PLACE_PARTS_H
#define BATON_PLANNER_PLACE_PARTS_H

#include "baton/planner/place.h"

/* Terms that depend on the prefill worker alone. */
struct place_p {
    int64_t queue_ns, prefill_ns;
    uint32_t overlap;
    int64_t fetch_ns; /* until a loaded prefix is there; 0: none */
    uint64_t fetch_bytes;
    int64_t compute_ns; /* of the prefill, without steps in between */
    int64_t price_ns;   /* compute, evictions, delay of local decodes */
    struct bt_place_source source;
};

/* Terms that depend on the decode worker alone. */
struct place_d {
    int64_t slot_ns, step_ns;
    uint64_t blocks, kv_bytes; /* to be moved from another worker */
    uint32_t overlap;
    bool feasible;
    int64_t start_ns; /* p may not start before; 0: when it likes */
    uint64_t descriptors;
};

/* ---- one side ---- */

/* Without sources and prices: prefix on the device. */
struct place_p place_p_terms(const struct bt_place_view *view, uint32_t p);
struct place_d place_d_terms(const struct bt_place_view *view, uint32_t d);
/* The same, what travels remembered for workers that hold as much. */
struct place_world;
struct place_d place_d_in(struct place_world *world, uint32_t d);
/* p with this source, which must be within its reach: else infinite. No
 * prices. */
struct place_p place_p_from(const struct bt_place_view *view, uint32_t p,
                            const struct bt_place_source *source);
/* d prefills by itself beside its decodes, though there is a pool. */
struct place_p place_local_terms(const struct bt_place_view *view, uint32_t d);
/* d serves alone, there being no pool: in chunks beside its decodes when it
 * says of what size. No limit on the time between tokens closes it. */
struct place_p place_alone_terms(const struct bt_place_view *view, uint32_t d);

static inline int64_t place_add(int64_t a, int64_t b)
{
    return a >= BT_COST_INFINITE - b ? BT_COST_INFINITE : a + b;
}

static inline int64_t place_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t place_from_now(const struct bt_place_view *view,
                                     int64_t at_ns)
{
    if (at_ns <= view->now_ns)
        return 0;
    return at_ns - view->now_ns < BT_COST_INFINITE ? at_ns - view->now_ns
                                                   : BT_COST_INFINITE;
}

/* Of this prompt, of held tokens: the last one is always computed
 * (engine-wire.md 2.6). */
static inline uint32_t place_usable(const struct bt_place_view *view,
                                    uint32_t held)
{
    uint32_t most = view->prompt_tokens > 0 ? view->prompt_tokens - 1 : 0;

    return held < most ? held : most;
}

/* Its queue and usable prefix only. */
static inline struct place_p place_p_queue(const struct bt_place_view *view,
                                           uint32_t p)
{
    const struct bt_place_worker *w = &view->workers[p];

    return (struct place_p){.queue_ns =
                                place_from_now(view, w->prefill_free_ns),
                            .overlap = place_usable(view, w->overlap_tokens)};
}

static inline int64_t place_start(const struct place_p *pt,
                                  const struct place_d *dt)
{
    return place_max(place_max(pt->queue_ns, pt->fetch_ns), dt->start_ns);
}

/* max(start + prefill + transfer, slot) + step, saturating. */
static inline int64_t place_total(const struct place_p *pt,
                                  const struct place_d *dt, int64_t transfer_ns)
{
    int64_t arrival =
        place_add(place_add(place_start(pt, dt), pt->prefill_ns), transfer_ns);

    return place_add(place_max(arrival, dt->slot_ns), dt->step_ns);
}

/* What choices order by. */
static inline int64_t place_score(const struct bt_place_terms *t)
{
    return place_add(t->total_ns, t->price_ns);
}

/* All terms of a pair from its sides. p: the worker that prefills, d itself
 * when d serves alone. */
void place_combine(const struct bt_place_view *view, uint32_t p, uint32_t d,
                   const struct place_p *pt, const struct place_d *dt,
                   struct bt_place_terms *out);
/* The same with the price of p alone; place_price_pair() adds the rest. */
void place_combine_bare(const struct bt_place_view *view, uint32_t p,
                        uint32_t d, const struct place_p *pt,
                        const struct place_d *dt, struct bt_place_terms *out);
void place_price_pair(const struct bt_place_view *view, uint32_t p, uint32_t d,
                      struct bt_place_terms *out);

/* ---- feasibility ---- */

static inline bool place_fits(const struct bt_place_worker *w, uint64_t tokens)
{
    return w->kv_capacity_tokens == 0 || tokens <= w->kv_capacity_tokens;
}

/* May p prefill, may d decode this request, seen alone? */
static inline bool place_p_ok(const struct bt_place_view *view, uint32_t p)
{
    const struct bt_place_worker *w = &view->workers[p];

    return w->prefill_ok && (w->roles & BT_ROLE_PREFILL) != 0 &&
           w->model != NULL && place_fits(w, view->prompt_tokens);
}

static inline bool place_d_ok(const struct bt_place_view *view, uint32_t d)
{
    const struct bt_place_worker *w = &view->workers[d];

    return w->decode_ok && (w->roles & BT_ROLE_DECODE) != 0 &&
           w->model != NULL &&
           place_fits(w, (uint64_t)view->prompt_tokens + view->output_tokens);
}

/* May d prefill for itself though it is no prefill worker? */
static inline bool place_local_ok(const struct bt_place_view *view, uint32_t d)
{
    return view->workers[d].local_ok && place_d_ok(view, d) &&
           !place_p_ok(view, d);
}
/* Is there a way from p to d for the KV? (p none or p == d: always.) */
bool place_link_ok(const struct bt_place_view *view, uint32_t p, uint32_t d);
/* place_p_ok and at least one decode worker is within reach. */
bool place_p_useful(const struct bt_place_view *view, uint32_t p);
/* False: no prefill worker at all, requests are served by one worker. */
bool place_has_pool(const struct bt_place_view *view);

/* ---- transfer (place_transfer.c) ---- */

/* What is left of the transfer after the prefill, whatever the engine's mode;
 * infinite without a way. */
int64_t place_exposed(const struct bt_place_view *view, uint32_t p, uint32_t d,
                      const struct place_p *pt, const struct place_d *dt);
/* Idle time of the path a -> b at nominal rates: no flow of ours, no learning.
 * 0 for nothing or a == b, BT_COST_INFINITE where the view has no path; and
 * the same path as a link, false without one. */
int64_t place_idle_ns(const struct bt_place_view *view, uint32_t a, uint32_t b,
                      uint64_t bytes, uint64_t descriptors);
bool place_idle_link(const struct bt_place_view *view, uint32_t a, uint32_t b,
                     struct bt_link_model *out);
/* Is what is left of c's transfer longer than so many times the idle one? Then
 * the network is the busy server, and a request that starts now would only
 * join the others there, where nobody can put them in order. times 0: never. */
bool place_is_crowded(const struct bt_place_view *view,
                      const struct bt_place_candidate *c, double times);
/* Link and memory prices of a pair whose terms are known. */
int64_t place_pair_price(const struct bt_place_view *view, uint32_t p,
                         uint32_t d, const struct bt_place_terms *t);

/* For lower bounds: the least fixed costs of a network's paths, over NICs and
 * with NVLink, and whether every link of it is up. */
struct place_fabric {
    const struct bt_network *network; /* NULL: pair links only */
    const struct bt_topology *topology;
    bool up;
    int64_t setup_ns[2], descriptor_ns[2]; /* [with NVLink] */
};
/* Idle way out of (into) a worker. */
struct place_port {
    bool placed; /* false: not in the network, nothing is known */
    bool nvlink; /* it has peers in its NVLink domain */
    double ns_per_byte;
};
void place_fabric_look(const struct bt_place_view *view,
                       struct place_fabric *out);
struct place_port place_port_of(const struct place_fabric *fabric,
                                const struct bt_place_view *view, uint32_t w,
                                bool in);
/* Set-up and posting of the cheapest path through this port. */
int64_t place_port_fixed(const struct place_fabric *fabric,
                         const struct place_port *port, uint64_t descriptors);
/* No transfer through this port takes less. */
int64_t place_port_least(const struct place_fabric *fabric,
                         const struct place_port *port, uint64_t bytes,
                         uint64_t descriptors);
/* The network knows the path of this pair. */
bool place_path_known(const struct bt_place_view *view, uint32_t p, uint32_t d);
/* BT_LINK_NONE: not in the network. */
uint32_t place_node_of(const struct bt_place_view *view, uint32_t w);
uint32_t place_rack_of(const struct bt_place_view *view, uint32_t w);
/* Its own link says that it must not be used, whatever the network says. */
bool place_is_closed(const struct bt_place_view *view, uint32_t p, uint32_t d);

/* ---- prefix sources and prices of p (place_source.c) ---- */

#define PLACE_HOLDERS 3
#define PLACE_MEMO    16 /* powers of two */
#define PLACE_CLASSES 4
struct place_holders {
    uint32_t count;
    struct bt_place_source best[PLACE_HOLDERS]; /* deepest first, then ids */
};
void place_holders_find(const struct bt_place_view *view,
                        struct place_holders *out);

/* What a search may use beyond (p, d) with the device's prefix, and the price
 * of compute in force. */
struct place_wish {
    bool fetch, tiers, local;
    int64_t queue_most_ns; /* leave out prefill workers with a longer queue */
};
/* A prefill behind this many tokens, and what it costs others when it runs on
 * a prefill worker without a source. model NULL: nothing. */
struct place_prefill {
    const struct bt_compute_model *model;
    uint32_t tokens;
    int64_t ns, price_ns;
};

/* A peer's prefix, whole or by half, for any of the workers that are alike. */
struct place_option {
    struct bt_place_source source;
    int64_t prefill_ns, price_ns;
    int64_t least_ns; /* no fetch takes less */
    uint64_t bytes;
};

/* Prefill workers alike: same model, prefix and way in. */
struct place_class {
    const struct bt_compute_model *model; /* NULL: nothing */
    uint32_t overlap;
    struct place_port in;
    uint32_t count;
    struct place_option options[2 * PLACE_HOLDERS];
    int64_t least_ns; /* fetch and prefill of the best of them */
};
struct place_world {
    const struct bt_place_view *view;
    struct place_wish wish;
    double mu;
    struct place_fabric fabric;
    struct place_holders holders; /* empty: no fetch */
    /* Most workers are alike: what was computed for the last ones. */
    struct place_prefill prefills[PLACE_MEMO];
    struct place_class classes[PLACE_CLASSES];
    struct place_d size; /* blocks of the last overlap, if `sized` */
    bool sized;
};
/* Everything the view allows. */
struct place_wish place_wish_all(void);
void place_world_init(struct place_world *world,
                      const struct bt_place_view *view,
                      const struct place_wish *wish);
double place_mu(const struct bt_place_view *view);
/* Set pt->price_ns from the rest of pt. `beside`: the prefill runs between
 * decodes of the same worker. */
void place_p_charge(const struct bt_place_view *view, double mu, uint32_t p,
                    bool beside, struct place_p *pt);
/* Fills the entry of place_prefill_of(). */
void place_prefill_set(const struct place_world *world,
                       const struct bt_compute_model *model, uint32_t tokens,
                       struct place_prefill *out);

static inline const struct place_prefill *
place_prefill_of(struct place_world *world,
                 const struct bt_compute_model *model, uint32_t tokens)
{
    uint32_t at = (tokens ^ tokens >> 4 ^ tokens >> 8) & (PLACE_MEMO - 1);
    struct place_prefill *x = &world->prefills[at];

    if (x->model != model || x->tokens != tokens || model == NULL)
        place_prefill_set(world, model, tokens, x);
    return x;
}

/* place_p_terms() with the times the world remembers. */
static inline void place_p_set(struct place_world *world, uint32_t p,
                               struct place_p *t)
{
    const struct bt_place_worker *w = &world->view->workers[p];

    *t = (struct place_p){0};
    t->queue_ns = place_from_now(world->view, w->prefill_free_ns);
    t->overlap = place_usable(world->view, w->overlap_tokens);
    t->prefill_ns = t->compute_ns =
        place_prefill_of(world, w->model, t->overlap)->ns;
}

static inline struct place_p place_p_plain(struct place_world *world,
                                           uint32_t p)
{
    struct place_p t;

    place_p_set(world, p, &t);
    return t;
}
/* From place_p_plain() to what no source could make better: prefill and price
 * from below. */
void place_p_floor(struct place_world *world, uint32_t p, struct place_p *t);
/* p with the source that ends its prefill soonest, prices included. plain:
 * place_p_terms(p). */
struct place_p place_p_best(struct place_world *world, uint32_t p,
                            const struct place_p *plain);

/* ---- search (place_scan.c) ---- */

/* Order of candidates: by total + price, then ids; or by total + price, then
 * fewer bytes moved, then least loaded d, then ids. */
enum place_order { PLACE_ORDER_IDS, PLACE_ORDER_LOAD };

/* The first max feasible candidates in this order, each with the best source of
 * its p, and how many there are in all. out beyond them stays untouched. */
size_t place_scan_all(const struct bt_place_view *view, enum place_order order,
                      struct bt_place_candidate *out, size_t max);

/* The best and the second best pair by PLACE_ORDER_LOAD (place_none() where
 * there is none), and how many feasible pairs there are. */
struct place_scan {
    struct bt_place_candidate best, second;
    uint32_t feasible;
};
void place_scan(const struct bt_place_view *view, struct place_scan *out);
void place_scan_wish(const struct bt_place_view *view,
                     const struct place_wish *wish, struct place_scan *out);
/* The same in a world that is there already. */
void place_scan_world(struct place_world *world, struct place_scan *out);

/* The KV of the whole prompt lies on p now: the d that starts to decode first,
 * max(transfer, slot) + step + prices. p itself only if it has both roles.
 * feasible counts the decode workers within reach. */
void place_scan_handoff(const struct bt_place_view *view, uint32_t p,
                        struct place_scan *out);
/* Its terms for one d: queue, fetch and prefill are 0. */
struct bt_place_candidate place_handoff(const struct bt_place_view *view,
                                        uint32_t p, uint32_t d);

/* ---- candidates ---- */

struct bt_place_candidate place_none(void);
/* Device prefix only: source.tokens is 0. */
struct bt_place_candidate place_pair(const struct bt_place_view *view,
                                     uint32_t p, uint32_t d);
/* The same with the price of compute in force. */
struct bt_place_candidate place_pair_at(const struct bt_place_view *view,
                                        double mu, uint32_t p, uint32_t d,
                                        const struct bt_place_source *source);
/* With a given source; p == d without a prefill role: local prefill. */
struct bt_place_candidate place_pair_from(const struct bt_place_view *view,
                                          uint32_t p, uint32_t d,
                                          const struct bt_place_source *source);
/* The same worker pair, whatever the source. */
bool place_is_same(const struct bt_place_candidate *a,
                   const struct bt_place_candidate *b);

/* Order of two equal loads: uniform, from one draw per decision. */
uint64_t place_tie(uint64_t draw, const struct bt_place_view *view, uint32_t w);

/* The naive sequential choice; p and d are BT_PLACE_NONE without a feasible
 * pair. Draws once from the generator. */
struct bt_place_candidate place_load_prefix(struct bt_policy_state *state,
                                            const struct bt_place_view *view);

/* The same in a world that is there already. */
struct bt_place_candidate place_load_prefix_in(struct bt_policy_state *state,
                                               struct place_world *world);

/* Feasible decode worker with the fewest KV tokens reserved within reach of p
 * (none: any), or BT_PLACE_NONE. */
uint32_t place_least_decode(const struct bt_place_view *view, uint32_t p,
                            uint64_t draw);

/* Fill second, baseline, considered and the reason of a choice whose own
 * reason is `reason`. */
void place_finish(struct bt_placement *out, const struct bt_place_view *view,
                  const struct bt_place_candidate *baseline,
                  enum bt_reason reason);

void place_finish_scan(struct bt_placement *out,
                       const struct bt_place_view *view,
                       const struct place_scan *scan,
                       const struct bt_place_candidate *baseline,
                       enum bt_reason reason);

extern const struct bt_policy bt_policy_round_robin;
extern const struct bt_policy bt_policy_least_loaded;
extern const struct bt_policy bt_policy_prefix_load;
extern const struct bt_policy bt_policy_joint;

#endif
