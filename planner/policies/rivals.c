/* What the rival rules share. Decides who may be picked, which of equals is
 * taken and what a path costs when it is idle; leaves the costs to the files of
 * the rules. All of them see the same index, ledger and predicted prefill
 * times; what a product does not look at, its file does not ask for.
 *
 * Invariants: an infeasible worker or pair is never picked; each pick draws
 * once for its ties, whatever comes out; the naive choice is drawn first.
 */
#include "rivals.h"

/* Costs this close are equal (baselines section 1). */
#define EQUAL 1e-9

/* A path without a limit: fast enough to cost nothing. */
#define RATE_FREE 1000000000000000000ULL

/* ---- who may be picked ---- */

void rival_begin(struct rival *r, struct bt_policy_state *state,
                 const struct bt_place_view *view)
{
    *r = (struct rival){.state = state,
                        .view = view,
                        .knobs = state->knobs,
                        .p = BT_PLACE_NONE,
                        .d = BT_PLACE_NONE,
                        .some_p = BT_PLACE_NONE,
                        .some_d = BT_PLACE_NONE};
    r->base = place_load_prefix(state, view);
    for (uint32_t w = 0; w < view->worker_count; w++) {
        if (r->some_p == BT_PLACE_NONE && place_p_ok(view, w))
            r->some_p = w;
        if (r->some_d == BT_PLACE_NONE && place_d_ok(view, w))
            r->some_d = w;
    }
    r->pool = r->some_p != BT_PLACE_NONE;
}

void rival_turn(struct rival *r, enum rival_side side)
{
    r->side = side;
    r->draw = bt_rng_u64(&r->state->rng);
}

static bool may_prefill(const struct rival *r, uint32_t p)
{
    if (!place_p_ok(r->view, p) || r->some_d == BT_PLACE_NONE)
        return false;
    if (r->d != BT_PLACE_NONE)
        return place_link_ok(r->view, p, r->d);
    return place_link_ok(r->view, p, r->some_d) || place_p_useful(r->view, p);
}

static bool is_reachable(const struct rival *r, uint32_t d)
{
    if (!r->pool || place_link_ok(r->view, r->some_p, d))
        return true;
    for (uint32_t p = 0; p < r->view->worker_count; p++)
        if (place_p_ok(r->view, p) && place_link_ok(r->view, p, d))
            return true;
    return false;
}

static bool may_decode(const struct rival *r, uint32_t d)
{
    if (!place_d_ok(r->view, d))
        return false;
    if (r->p != BT_PLACE_NONE)
        return place_link_ok(r->view, r->p, d);
    return is_reachable(r, d);
}

bool rival_may(const struct rival *r, uint32_t w)
{
    switch (r->side) {
    case RIVAL_PREFILL:
        return may_prefill(r, w);
    case RIVAL_DECODE:
        return may_decode(r, w);
    case RIVAL_ALONE:
        break;
    }
    return place_d_ok(r->view, w);
}

bool rival_may_serve(const struct rival *r, uint32_t w)
{
    struct bt_place_terms t;

    if (!place_local_ok(r->view, w) &&
        !(place_p_ok(r->view, w) && place_d_ok(r->view, w)))
        return false;
    bt_place_terms(r->view, w, w, &t);
    return t.total_ns < BT_COST_INFINITE;
}

/* ---- the least of a cost ---- */

/* -1, 0, 1: a before, like, after b. */
static int cost_compare(double a, double b)
{
    double near = EQUAL * fmax(fabs(a), fabs(b));

    if (fabs(a - b) <= near)
        return 0;
    return a < b ? -1 : 1;
}

struct least {
    uint32_t w;
    double cost, tie_cost;
    uint64_t tie;
};

static bool is_better(const struct least *a, const struct least *b)
{
    int order = cost_compare(a->cost, b->cost);

    if (order == 0)
        order = cost_compare(a->tie_cost, b->tie_cost);
    return order != 0 ? order < 0 : a->tie < b->tie;
}

uint32_t rival_least(const struct rival *r, rival_cost_fn cost,
                     rival_cost_fn tie_cost)
{
    struct least best = {.w = BT_PLACE_NONE};

    for (uint32_t w = 0; w < r->view->worker_count; w++) {
        struct least one = {.w = w, .tie = place_tie(r->draw, r->view, w)};

        if (!rival_may(r, w))
            continue;
        one.cost = cost(r, w);
        if (!isfinite(one.cost))
            continue;
        if (tie_cost != NULL)
            one.tie_cost = tie_cost(r, w);
        if (best.w == BT_PLACE_NONE || is_better(&one, &best))
            best = one;
    }
    return best.w;
}

uint32_t rival_range(const struct rival *r, rival_cost_fn value,
                     double *least_out, double *most_out)
{
    double least = RIVAL_NEVER, most = -RIVAL_NEVER;
    uint32_t count = 0;

    for (uint32_t w = 0; w < r->view->worker_count; w++) {
        double one;

        if (!rival_may(r, w))
            continue;
        one = value(r, w);
        least = fmin(least, one);
        most = fmax(most, one);
        count++;
    }
    *least_out = count > 0 ? least : 0;
    *most_out = count > 0 ? most : 0;
    return count;
}

/* ---- choices ---- */

enum bt_status rival_finish_with(struct rival *r, struct bt_placement *out,
                                 const struct bt_place_candidate *c,
                                 enum bt_reason reason)
{
    if (c->d == BT_PLACE_NONE || c->terms.total_ns >= BT_COST_INFINITE)
        return BT_NO_WORKER;
    out->chosen = *c;
    place_finish(out, r->view, &r->base, reason);
    return BT_OK;
}

static double kv_tokens(const struct rival *r, uint32_t w)
{
    return rival_may_serve(r, w) ? (double)r->view->workers[w].decode_tokens
                                 : RIVAL_NEVER;
}

enum bt_status rival_finish(struct rival *r, struct bt_placement *out,
                            enum bt_reason reason)
{
    struct bt_place_candidate c = place_none();

    if (r->d != BT_PLACE_NONE && (r->p != BT_PLACE_NONE || !r->pool))
        c = place_pair(r->view, r->p, r->d);
    if (c.terms.total_ns >= BT_COST_INFINITE && r->pool) {
        r->p = r->d = BT_PLACE_NONE;
        rival_turn(r, RIVAL_ALONE);
        r->d = rival_least(r, kv_tokens, NULL);
        if (r->d != BT_PLACE_NONE)
            c = place_pair(r->view, r->d, r->d);
        reason = BT_REASON_LOCAL;
    }
    return rival_finish_with(r, out, &c, reason);
}

enum bt_status rival_sequential(struct bt_policy_state *state,
                                const struct bt_place_view *view,
                                struct bt_placement *out, rival_pick_fn pick)
{
    struct rival r;

    rival_begin(&r, state, view);
    if (r.pool) {
        rival_turn(&r, RIVAL_PREFILL);
        r.p = pick(&r);
    }
    if (!r.pool || r.p != BT_PLACE_NONE) {
        rival_turn(&r, r.pool ? RIVAL_DECODE : RIVAL_ALONE);
        r.d = pick(&r);
    }
    return rival_finish(&r, out, BT_REASON_BASELINE);
}

struct least_pair {
    struct least l;
    uint32_t p, d;
};

static void offer_pair(struct rival *r, uint32_t p, uint32_t d,
                       rival_pair_fn cost, struct least_pair *best)
{
    struct least one = {.cost = cost(r, p, d)};

    if (!isfinite(one.cost))
        return;
    one.tie = bt_mix64(place_tie(r->draw, r->view, d)); /* p may be d */
    if (p != BT_PLACE_NONE)
        one.tie = bt_mix64(one.tie ^ place_tie(r->draw, r->view, p));
    if (best->d != BT_PLACE_NONE && !is_better(&one, &best->l))
        return;
    *best = (struct least_pair){.l = one, .p = p, .d = d};
}

enum bt_status rival_joint(struct bt_policy_state *state,
                           const struct bt_place_view *view,
                           struct bt_placement *out, rival_pair_fn cost,
                           void *arg)
{
    struct least_pair best = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE};
    struct rival r;

    rival_begin(&r, state, view);
    r.arg = arg;
    rival_turn(&r, RIVAL_ALONE);
    for (uint32_t p = 0; p < view->worker_count; p++) {
        if (r.pool && rival_may_serve(&r, p))
            offer_pair(&r, p, p, cost, &best);
        else if (!r.pool && place_d_ok(view, p))
            offer_pair(&r, BT_PLACE_NONE, p, cost, &best);
        if (!r.pool || !place_p_ok(view, p))
            continue;
        for (uint32_t d = 0; d < view->worker_count; d++)
            if (d != p && place_d_ok(view, d) && place_link_ok(view, p, d))
                offer_pair(&r, p, d, cost, &best);
    }
    r.p = best.p;
    r.d = best.d;
    return rival_finish(&r, out,
                        r.p == r.d ? BT_REASON_LOCAL : BT_REASON_BASELINE);
}

void rival_load(const struct bt_place_view *view, struct bt_placement *out,
                const struct bt_place_source *source)
{
    struct bt_place_candidate c;

    if (source->tokens == 0)
        return;
    c = place_pair_from(view, out->chosen.p, out->chosen.d, source);
    if (c.terms.total_ns >= BT_COST_INFINITE)
        return;
    out->chosen = c;
    if (source->worker != c.p)
        out->reason = BT_REASON_FETCH;
}

/* ---- hand-off ---- */

static struct bt_place_candidate handed(const struct rival *r, uint32_t d)
{
    return d == BT_PLACE_NONE ? place_none() : place_handoff(r->view, r->p, d);
}

/* The runner-up: the least of all but r->d. */
static uint32_t next_best(const struct rival *r, rival_cost_fn cost)
{
    uint32_t best = BT_PLACE_NONE;
    double least = RIVAL_NEVER;

    for (uint32_t d = 0; d < r->view->worker_count; d++) {
        double one;

        if (d == r->d || !rival_may(r, d))
            continue;
        one = cost(r, d);
        if (one < least) {
            best = d;
            least = one;
        }
    }
    return best;
}

enum bt_status rival_handoff(struct rival *r, uint32_t p, rival_cost_fn cost,
                             struct bt_placement *out)
{
    struct bt_placement made = {.reason = BT_REASON_HANDOFF};
    double least, most;

    r->p = p;
    rival_turn(r, RIVAL_DECODE);
    r->d = rival_least(r, cost, NULL);
    made.chosen = handed(r, r->d);
    if (made.chosen.terms.total_ns >= BT_COST_INFINITE)
        return BT_NO_WORKER;
    made.second = handed(r, next_best(r, cost));
    made.baseline = handed(r, place_least_decode(r->view, p, r->draw));
    made.considered = rival_range(r, cost, &least, &most);
    *out = made;
    return BT_OK;
}

/* ---- what rules look at ---- */

uint32_t rival_held(const struct bt_place_view *view, uint32_t w)
{
    uint32_t held = view->workers[w].overlap_tokens;

    return held < view->prompt_tokens ? held : view->prompt_tokens;
}

uint32_t rival_uncached(const struct bt_place_view *view, uint32_t w)
{
    return view->prompt_tokens - rival_held(view, w);
}

double rival_block_tokens(const struct bt_place_view *view)
{
    return view->block_tokens > 0 ? (double)view->block_tokens : 1;
}

double rival_blocks(const struct bt_place_view *view)
{
    return ceil((double)view->prompt_tokens / rival_block_tokens(view));
}

double rival_held_blocks(const struct bt_place_view *view, uint32_t w)
{
    return floor((double)rival_held(view, w) / rival_block_tokens(view));
}

double rival_match(const struct bt_place_view *view, uint32_t w)
{
    return rival_held_blocks(view, w) / fmax(1, rival_blocks(view));
}

static double most_kv(const struct bt_place_view *view)
{
    uint64_t most = 1;

    for (uint32_t w = 0; w < view->worker_count; w++) {
        const struct bt_place_worker *x = &view->workers[w];
        uint64_t size = x->kv_capacity_tokens;

        size = size > 0 ? size : x->decode_tokens;
        most = size > most ? size : most;
    }
    return (double)most;
}

double rival_kv_use(const struct bt_place_view *view, uint32_t w)
{
    const struct bt_place_worker *x = &view->workers[w];
    double total = x->kv_capacity_tokens > 0 ? (double)x->kv_capacity_tokens
                                             : most_kv(view);

    return (double)x->decode_tokens / total;
}

double rival_requests(const struct rival *r, uint32_t w)
{
    const struct bt_place_worker *x = &r->view->workers[w];

    return r->side == RIVAL_PREFILL ? x->prefill_requests : x->decode_requests;
}

double rival_tokens(const struct rival *r, uint32_t w)
{
    const struct bt_place_worker *x = &r->view->workers[w];

    switch (r->side) {
    case RIVAL_PREFILL:
        return (double)x->prefill_tokens;
    case RIVAL_DECODE:
        return (double)x->decode_tokens;
    case RIVAL_ALONE:
        break;
    }
    return (double)x->prefill_tokens + (double)x->decode_tokens;
}

int64_t rival_ttft_ns(const struct bt_place_view *view, uint32_t w)
{
    struct place_p t = place_p_terms(view, w);

    return place_add(t.queue_ns, t.prefill_ns);
}

double rival_ttft(const struct rival *r, uint32_t w)
{
    return rival_ns(rival_ttft_ns(r->view, w));
}

bool rival_has_room(const struct bt_place_view *view, uint32_t w)
{
    const struct bt_place_worker *x = &view->workers[w];

    return x->kv_capacity_tokens == 0 ||
           x->decode_tokens + view->prompt_tokens + view->output_tokens <=
               x->kv_capacity_tokens;
}

/* ---- idle paths ---- */

static const struct bt_topology *topology_of(const struct bt_place_view *view)
{
    return view->network != NULL ? bt_network_topology(view->network) : NULL;
}

static uint32_t slot_of(const struct bt_place_view *view, uint32_t w)
{
    return bt_worker_slot(view->workers[w].id);
}

enum bt_path_class rival_class_of(const struct bt_place_view *view, uint32_t a,
                                  uint32_t b)
{
    const struct bt_topology *t = topology_of(view);

    if (a == b)
        return BT_PATH_LOCAL;
    return t == NULL
               ? BT_PATH_UNKNOWN
               : bt_topology_class_of(t, slot_of(view, a), slot_of(view, b));
}

/* Bytes of the transfer that p computes: what neither p held nor d holds. */
static uint64_t fresh_bytes(const struct bt_place_view *view,
                            const struct place_p *pt, const struct place_d *dt)
{
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint32_t held = view->mode->whole_prompt ? 0 : dt->overlap / blk * blk;
    uint64_t old;

    if (pt->overlap <= held || dt->blocks == 0)
        return dt->kv_bytes;
    old = (pt->overlap - held) * (dt->kv_bytes / (dt->blocks * blk));
    return dt->kv_bytes > old ? dt->kv_bytes - old : 0;
}

/* Idle time of some of the bytes of a transfer, with their descriptors. */
static int64_t part_ns(const struct bt_place_view *view, uint32_t p, uint32_t d,
                       const struct place_d *dt, uint64_t bytes)
{
    double share = (double)bytes / (double)dt->kv_bytes;

    return place_idle_ns(view, p, d, bytes,
                         (uint64_t)ceil((double)dt->descriptors * share));
}

int64_t rival_idle_left_ns(const struct bt_place_view *view, uint32_t p,
                           uint32_t d, const struct place_p *pt)
{
    struct place_d dt = place_d_terms(view, d);
    uint64_t fresh, pieces;
    int64_t end;

    if (p == d || dt.kv_bytes == 0)
        return 0;
    if (view->mode == NULL || view->mode->overlap == BT_OVERLAP_NONE)
        return place_idle_ns(view, p, d, dt.kv_bytes, dt.descriptors);
    if (pt->prefill_ns >= BT_COST_INFINITE)
        return BT_COST_INFINITE;
    pieces = view->mode->pieces > 0 ? view->mode->pieces : 1;
    fresh = fresh_bytes(view, pt, &dt);
    end = place_max(part_ns(view, p, d, &dt, dt.kv_bytes),
                    place_add(pt->prefill_ns / (int64_t)pieces,
                              part_ns(view, p, d, &dt, fresh)));
    end = place_max(end,
                    place_add(pt->prefill_ns,
                              part_ns(view, p, d, &dt,
                                      fresh / pieces + (fresh % pieces > 0))));
    return end < BT_COST_INFINITE ? end - pt->prefill_ns : BT_COST_INFINITE;
}

/* ---- prefix sources ---- */

uint32_t rival_whole_blocks(const struct bt_place_view *view, uint32_t tokens)
{
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint32_t most = view->prompt_tokens > 0 ? view->prompt_tokens - 1 : 0;

    return (tokens < most ? tokens : most) / blk * blk;
}

struct bt_place_source rival_own_tier(const struct bt_place_view *view,
                                      uint32_t w)
{
    const struct bt_place_worker *x = &view->workers[w];
    struct bt_place_source s = {.worker = w, .tier = BT_TIER_HOST};
    uint32_t held = rival_whole_blocks(view, x->overlap_tokens);

    s.tokens = rival_whole_blocks(view, x->host_tokens);
    if (x->host.rate_bytes_per_s > 0 && s.tokens > held)
        return s;
    s.tokens = rival_whole_blocks(view, x->disk_tokens);
    s.tier = BT_TIER_DISK;
    if (x->disk.rate_bytes_per_s == 0 || s.tokens <= held)
        s.tokens = 0;
    return s;
}
