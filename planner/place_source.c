/* Where the prefix of a prefill comes from and what the prefill costs others.
 * Decides, for one worker, between recomputing what its device lacks, its own
 * slower tiers, and up to three peers in full or for half of what they have
 * more; leaves the pair's terms to place.c.
 *
 * The source that counts is the one with the least finish + price, finish =
 * max(queue, fetch) + prefill: a fetch that the queue hides is free in time and
 * pays only its price (cost-models.md sections 13, 14, 16; W10). It does not
 * depend on d, so it is found once per worker.
 *
 * Prices, ns of the request's own time: mu per ns of compute; the linear
 * recompute time of blocks copied from a peer times eviction (its attention
 * part is left out, as in W10); for a prefill between the decodes of its own
 * worker, the delay of each of them, weighed by how near the step comes to its
 * limit.
 */
#include "place_parts.h"

#include "baton/base/units.h"
#include "baton/planner/transfer_cost.h"

/* The last prompt token is always computed. */
static uint32_t whole_blocks(const struct bt_place_view *view, uint32_t tokens)
{
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint32_t most = view->prompt_tokens > 0 ? view->prompt_tokens - 1 : 0;

    return (tokens < most ? tokens : most) / blk * blk;
}

static uint32_t at_least(uint32_t tokens, uint32_t least)
{
    return tokens > least ? tokens : least;
}

/* ---- holders ---- */

/* Deeper, or as deep with the lower id. */
static bool is_better_holder(const struct bt_place_view *view, uint32_t tokens,
                             uint32_t w, const struct bt_place_source *than)
{
    if (tokens != than->tokens)
        return tokens > than->tokens;
    return view->workers[w].id.v < view->workers[than->worker].id.v;
}

void place_holders_find(const struct bt_place_view *view,
                        struct place_holders *out)
{
    out->count = 0;
    for (uint32_t w = 0; w < view->worker_count; w++) {
        const struct bt_place_worker *worker = &view->workers[w];
        uint32_t tokens, at = out->count;

        if (worker->overlap_tokens == 0 ||
            !(worker->prefill_ok || worker->decode_ok))
            continue;
        if (at == PLACE_HOLDERS &&
            worker->overlap_tokens < out->best[at - 1].tokens)
            continue;
        tokens = whole_blocks(view, worker->overlap_tokens);
        while (at > 0 &&
               is_better_holder(view, tokens, w, &out->best[at - 1])) {
            if (at < PLACE_HOLDERS)
                out->best[at] = out->best[at - 1];
            at--;
        }
        if (tokens == 0 || at == PLACE_HOLDERS)
            continue;
        out->best[at] = (struct bt_place_source){
            .tokens = tokens, .worker = w, .tier = BT_TIER_DEVICE};
        if (out->count < PLACE_HOLDERS)
            out->count++;
    }
}

/* ---- prices ---- */

/* mu < 0: mean number of requests per prefill worker, those held included. */
double place_mu(const struct bt_place_view *view)
{
    uint64_t waiting = view->waiting;
    uint32_t count = 0;

    if (view->prices == NULL)
        return 0;
    if (view->prices->queue >= 0)
        return view->prices->queue;
    for (uint32_t p = 0; p < view->worker_count; p++) {
        if (!place_p_ok(view, p))
            continue;
        waiting += view->workers[p].prefill_requests;
        count++;
    }
    return count > 0 ? (double)waiting / count : 0;
}

static uint32_t base_of(const struct bt_place_view *view, uint32_t p)
{
    return whole_blocks(view, view->workers[p].overlap_tokens);
}

/* b of the tokens that a peer's copy replaces. */
static double replicated_ns(const struct bt_place_view *view, uint32_t p,
                            const struct bt_place_source *source)
{
    const struct bt_compute_model *m = view->workers[p].model;
    uint32_t base = base_of(view, p);

    if (source->tokens <= base || source->worker == p)
        return 0;
    return m->prefill_b_ms * (double)(source->tokens - base) *
           (double)BT_NS_PER_MS / m->speedup;
}

static int64_t chunk_ns(const struct bt_place_view *view, uint32_t d)
{
    const struct bt_place_worker *w = &view->workers[d];
    uint32_t all = view->prompt_tokens, n = all;

    if (w->chunk_tokens > 0 && w->chunk_tokens < n)
        n = w->chunk_tokens;
    return bt_prefill_ns(w->model, n, all - n); /* the last: the longest */
}

static int64_t running_step_ns(const struct bt_place_worker *w)
{
    if (w->decode_requests == 0)
        return 0;
    return bt_decode_step_ns(w->model, w->decode_requests, w->decode_tokens);
}

static double decode_delay_ns(const struct bt_place_view *view, uint32_t d,
                              const struct place_p *pt)
{
    const struct bt_place_worker *w = &view->workers[d];
    double near = 1;

    if (view->tpot_slo_ns > 0)
        near = (double)place_add(chunk_ns(view, d), running_step_ns(w)) /
               (double)view->tpot_slo_ns;
    return (double)w->decode_requests * (double)pt->compute_ns *
           (near < 1 ? near : 1);
}

void place_p_charge(const struct bt_place_view *view, double mu, uint32_t p,
                    bool beside, struct place_p *pt)
{
    const struct bt_place_prices *prices = view->prices;
    double ns;

    pt->price_ns = 0;
    if (prices == NULL || pt->prefill_ns >= BT_COST_INFINITE)
        return;
    ns = mu * (double)pt->compute_ns;
    if (pt->source.tokens > 0)
        ns += mu * prices->eviction * replicated_ns(view, p, &pt->source);
    if (beside)
        ns += prices->decode * decode_delay_ns(view, p, pt);
    pt->price_ns = ns < (double)BT_COST_INFINITE && ns >= 0 ? (int64_t)(ns + .5)
                                                            : BT_COST_INFINITE;
}

/* ---- what was computed already ---- */

void place_prefill_set(const struct place_world *world,
                       const struct bt_compute_model *model, uint32_t tokens,
                       struct place_prefill *out)
{
    uint32_t prompt = world->view->prompt_tokens;
    struct place_p t = {.prefill_ns = BT_COST_INFINITE};

    if (model != NULL)
        t.prefill_ns = bt_prefill_ns(model, prompt - tokens, tokens);
    t.compute_ns = t.prefill_ns;
    place_p_charge(world->view, world->mu, 0, false, &t);
    *out = (struct place_prefill){.model = model,
                                  .tokens = tokens,
                                  .ns = t.prefill_ns,
                                  .price_ns = t.price_ns};
}

static int64_t prefill_ns(struct place_world *world, uint32_t p,
                          uint32_t tokens)
{
    return place_prefill_of(world, world->view->workers[p].model, tokens)->ns;
}

/* ---- sources ---- */

static uint64_t bytes_of(const struct bt_place_view *view, uint32_t tokens)
{
    uint64_t bytes;

    return __builtin_mul_overflow(view->kv_bytes_per_token, (uint64_t)tokens,
                                  &bytes)
               ? UINT64_MAX
               : bytes;
}

static int64_t tier_ns(const struct bt_tier_model *tier, uint64_t bytes)
{
    const struct bt_link_model link = {
        .rate_bytes_per_s = tier->rate_bytes_per_s, .setup_ns = tier->setup_ns};

    return bt_transfer_ns(&link, bytes, 0, NULL, 0);
}

/* Leading tokens in reach of p's own tiers, whole blocks. */
static uint32_t host_depth(const struct bt_place_view *view, uint32_t p)
{
    const struct bt_place_worker *w = &view->workers[p];

    return at_least(
        w->host.rate_bytes_per_s > 0 ? whole_blocks(view, w->host_tokens) : 0,
        base_of(view, p));
}

static uint32_t disk_depth(const struct bt_place_view *view, uint32_t p)
{
    const struct bt_place_worker *w = &view->workers[p];

    return at_least(
        w->disk.rate_bytes_per_s > 0 ? whole_blocks(view, w->disk_tokens) : 0,
        host_depth(view, p));
}

/* Time from p's own tiers: what host has beyond the device, then the disk. */
static int64_t own_ns(const struct bt_place_view *view, uint32_t p,
                      const struct bt_place_source *source)
{
    const struct bt_place_worker *w = &view->workers[p];
    uint32_t base = base_of(view, p), host = host_depth(view, p);
    uint32_t most = source->tier == BT_TIER_HOST ? host : disk_depth(view, p);

    if (source->tokens > most)
        return BT_COST_INFINITE;
    if (host > source->tokens)
        host = source->tokens;
    return place_add(tier_ns(&w->host, bytes_of(view, host - base)),
                     tier_ns(&w->disk, bytes_of(view, source->tokens - host)));
}

static int64_t peer_ns(const struct bt_place_view *view, uint32_t p,
                       const struct bt_place_source *source)
{
    const struct bt_place_worker *peer = &view->workers[source->worker];
    uint32_t more = source->tokens - base_of(view, p);
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint64_t regions = 1;

    if (!view->workers[p].fetch_ok ||
        source->tokens > whole_blocks(view, peer->overlap_tokens))
        return BT_COST_INFINITE;
    if (view->mode != NULL && view->mode->descriptors_per_block > 1)
        regions = view->mode->descriptors_per_block;
    return bt_place_transfer_ns(view, source->worker, p, view->now_ns,
                                bytes_of(view, more), more / blk * regions);
}

/* Compute side of p once `source` has arrived. */
static void deepen(const struct bt_place_view *view, uint32_t p,
                   const struct bt_place_source *source, int64_t ns,
                   struct place_p *pt)
{
    pt->source = *source;
    pt->overlap = source->tokens;
    pt->fetch_bytes = bytes_of(view, source->tokens - base_of(view, p));
    pt->prefill_ns = pt->compute_ns = ns;
}

static int64_t fetch_ns(const struct bt_place_view *view, uint32_t p,
                        const struct bt_place_source *source)
{
    return source->worker == p ? own_ns(view, p, source)
                               : peer_ns(view, p, source);
}

struct place_p place_p_from(const struct bt_place_view *view, uint32_t p,
                            const struct bt_place_source *source)
{
    struct place_p t = place_p_terms(view, p);

    if (source->tokens <= t.overlap || view->workers[p].model == NULL)
        return t;
    if (source->tokens != whole_blocks(view, source->tokens)) {
        t.prefill_ns = BT_COST_INFINITE;
        return t;
    }
    deepen(view, p, source,
           bt_prefill_ns(view->workers[p].model,
                         view->prompt_tokens - source->tokens, source->tokens),
           &t);
    t.fetch_ns = fetch_ns(view, p, source);
    return t;
}

/* ---- workers alike ---- */

/* No fetch of this option takes less: by the way in of the class when idle, by
 * the way out of the holder with the flows there now. */
static int64_t least_fetch(const struct place_world *world,
                           const struct place_class *c,
                           const struct place_option *o)
{
    const struct place_fabric *fabric = &world->fabric;
    const struct bt_place_view *view = world->view;
    struct place_port out;
    int64_t ns, live;

    if (fabric->network == NULL || !c->in.placed)
        return 0;
    out = place_port_of(fabric, view, o->source.worker, false);
    if (!out.placed)
        return 0;
    ns = place_port_least(fabric, &c->in, o->bytes, 0);
    live = bt_network_out_bound_ns(
        fabric->network, view->now_ns, view->now_ns,
        bt_worker_slot(view->workers[o->source.worker].id), o->bytes);
    live =
        place_add(live > 1 ? live - 2 : 0, place_port_fixed(fabric, &out, 0));
    return place_max(ns, live);
}

static void class_add(struct place_world *world, struct place_class *c,
                      uint32_t p, const struct bt_place_source *source)
{
    const struct bt_place_view *view = world->view;
    struct place_option *o = &c->options[c->count];
    struct place_p t = {.source = *source};
    int64_t ns;

    if (source->tokens <= c->overlap)
        return;
    t.prefill_ns = t.compute_ns = prefill_ns(world, p, source->tokens);
    place_p_charge(view, world->mu, p, false, &t);
    *o = (struct place_option){
        .source = *source,
        .prefill_ns = t.prefill_ns,
        .price_ns = t.price_ns,
        .bytes = bytes_of(view, source->tokens - base_of(view, p))};
    o->least_ns = least_fetch(world, c, o);
    ns = place_add(o->least_ns, o->prefill_ns);
    c->least_ns = ns < c->least_ns ? ns : c->least_ns;
    c->count++;
}

static void class_fill(struct place_world *world, uint32_t p,
                       struct place_class *c)
{
    const struct place_holders *h = &world->holders;
    const struct bt_place_view *view = world->view;
    uint32_t base = base_of(view, p);

    c->count = 0;
    c->least_ns = BT_COST_INFINITE;
    for (uint32_t i = 0; i < h->count && h->best[i].tokens > base; i++) {
        struct bt_place_source half = h->best[i];

        class_add(world, c, p, &h->best[i]);
        half.tokens = whole_blocks(view, base + (half.tokens - base) / 2);
        class_add(world, c, p, &half);
    }
}

static bool same_port(const struct place_port *a, const struct place_port *b)
{
    return a->placed == b->placed && a->nvlink == b->nvlink &&
           !(a->ns_per_byte < b->ns_per_byte) &&
           !(a->ns_per_byte > b->ns_per_byte);
}

/* What p may fetch; holders there are. */
static const struct place_class *class_of(struct place_world *world, uint32_t p)
{
    const struct bt_place_worker *w = &world->view->workers[p];
    uint32_t overlap = place_usable(world->view, w->overlap_tokens);
    struct place_class *c =
        &world->classes[(overlap ^ overlap >> 4) % PLACE_CLASSES];
    struct place_port in = {.placed = false};

    if (world->fabric.network != NULL)
        in = place_port_of(&world->fabric, world->view, p, true);
    if (c->model == w->model && c->overlap == overlap && same_port(&c->in, &in))
        return c;
    c->model = w->model;
    c->overlap = overlap;
    c->in = in;
    class_fill(world, p, c);
    return c;
}

/* ---- the best source ---- */

struct search {
    struct place_world *world;
    uint32_t p;
    const struct place_p *plain;
    struct place_p best;
    int64_t best_ns; /* finish + price */
};

static int64_t cost_of(const struct place_p *t)
{
    return place_add(
        place_add(place_max(t->queue_ns, t->fetch_ns), t->prefill_ns),
        t->price_ns);
}

static void consider_tier(struct search *s,
                          const struct bt_place_source *source)
{
    const struct bt_place_view *view = s->world->view;
    struct place_p t = *s->plain;
    int64_t ns;

    if (source->tokens <= t.overlap)
        return;
    deepen(view, s->p, source, prefill_ns(s->world, s->p, source->tokens), &t);
    place_p_charge(view, s->world->mu, s->p, false, &t);
    if (cost_of(&t) >= s->best_ns)
        return;
    t.fetch_ns = own_ns(view, s->p, source);
    ns = cost_of(&t);
    if (ns >= s->best_ns)
        return;
    s->best_ns = ns;
    s->best = t;
}

static void consider_tiers(struct search *s)
{
    const struct bt_place_view *view = s->world->view;
    const struct bt_place_worker *w = &view->workers[s->p];
    struct bt_place_source own = {.worker = s->p, .tier = BT_TIER_HOST};

    if (w->host.rate_bytes_per_s > 0 && w->host_tokens > w->overlap_tokens) {
        own.tokens = host_depth(view, s->p);
        consider_tier(s, &own);
    }
    if (w->disk.rate_bytes_per_s > 0 && w->disk_tokens > w->overlap_tokens) {
        own.tokens = disk_depth(view, s->p);
        own.tier = BT_TIER_DISK;
        consider_tier(s, &own);
    }
}

static void consider_peers(struct search *s)
{
    const struct place_class *c = class_of(s->world, s->p);
    const struct place_option *best = NULL;
    int64_t queue = s->plain->queue_ns, fetch_best = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        const struct place_option *o = &c->options[i];
        int64_t rest = place_add(o->prefill_ns, o->price_ns), fetch, ns;

        if (place_add(place_max(queue, o->least_ns), rest) >= s->best_ns)
            continue;
        fetch = peer_ns(s->world->view, s->p, &o->source);
        ns = place_add(place_add(place_max(queue, fetch), o->prefill_ns),
                       o->price_ns);
        if (ns >= s->best_ns)
            continue;
        s->best_ns = ns;
        fetch_best = fetch;
        best = o;
    }
    if (best == NULL)
        return;
    s->best = *s->plain;
    deepen(s->world->view, s->p, &best->source, best->prefill_ns, &s->best);
    s->best.fetch_ns = fetch_best;
    s->best.price_ns = best->price_ns;
}

struct place_p place_p_best(struct place_world *world, uint32_t p,
                            const struct place_p *plain)
{
    struct search s = {.world = world, .p = p, .plain = plain, .best = *plain};

    place_p_charge(world->view, world->mu, p, false, &s.best);
    s.best_ns = cost_of(&s.best);
    if (world->wish.tiers)
        consider_tiers(&s);
    if (world->view->workers[p].fetch_ok && world->holders.count > 0)
        consider_peers(&s);
    return s.best;
}

/* ---- bounds ---- */

/* The deepest prefix in reach without a peer. */
static uint32_t own_depth(const struct place_world *world, uint32_t p,
                          uint32_t held)
{
    const struct bt_place_worker *w = &world->view->workers[p];

    if (!world->wish.tiers ||
        (w->host.rate_bytes_per_s == 0 && w->disk.rate_bytes_per_s == 0))
        return held;
    return at_least(disk_depth(world->view, p), held);
}

void place_p_floor(struct place_world *world, uint32_t p, struct place_p *t)
{
    uint32_t own = own_depth(world, p, t->overlap), peer = 0;
    int64_t plain = t->prefill_ns, end, least;
    const struct place_prefill *deep;

    if (world->view->workers[p].fetch_ok && world->holders.count > 0)
        peer = world->holders.best[0].tokens;
    deep = place_prefill_of(world, world->view->workers[p].model,
                            at_least(peer, own));
    t->prefill_ns = t->compute_ns = deep->ns;
    t->price_ns = deep->price_ns;
    if (peer <= own || plain >= BT_COST_INFINITE)
        return;
    /* The fetch may take longer than the queue: by how much, at least? */
    end = own > t->overlap ? prefill_ns(world, p, own) : plain;
    end = place_add(t->queue_ns, end);
    least = class_of(world, p)->least_ns;
    if (least < end)
        end = least;
    if (end > place_add(t->queue_ns, t->prefill_ns))
        t->prefill_ns = end - t->queue_ns;
}

/* ---- local prefill ---- */

/* A step of its running requests passes with each chunk. */
static struct place_p chunked_terms(const struct bt_place_view *view,
                                    uint32_t d)
{
    const struct bt_place_worker *w = &view->workers[d];
    struct place_p t = place_p_queue(view, d);
    uint64_t chunk = w->chunk_tokens > 0 ? w->chunk_tokens : UINT32_MAX;
    uint64_t n = view->prompt_tokens - t.overlap;
    uint64_t steps = (n + chunk - 1) / chunk;
    int64_t step = running_step_ns(w), between;

    t.compute_ns = bt_prefill_chunked_ns(w->model, n, t.overlap, chunk);
    if (__builtin_mul_overflow(step, (int64_t)steps, &between) ||
        between >= BT_COST_INFINITE)
        between = BT_COST_INFINITE;
    t.prefill_ns = place_add(t.compute_ns, between);
    return t;
}

struct place_p place_local_terms(const struct bt_place_view *view, uint32_t d)
{
    int64_t step = running_step_ns(&view->workers[d]);
    struct place_p t;

    if (view->tpot_slo_ns <= 0 || step <= 0 ||
        place_add(chunk_ns(view, d), step) <= view->tpot_slo_ns)
        return chunked_terms(view, d);
    t = place_p_queue(view, d);
    t.prefill_ns = BT_COST_INFINITE;
    return t;
}

struct place_p place_alone_terms(const struct bt_place_view *view, uint32_t d)
{
    const struct bt_place_worker *w = &view->workers[d];

    return w->chunk_tokens > 0 && w->model != NULL ? chunked_terms(view, d)
                                                   : place_p_terms(view, d);
}

/* ---- the world of one decision ---- */

struct place_wish place_wish_all(void)
{
    struct place_wish wish = {.fetch = true,
                              .tiers = true,
                              .local = true,
                              .queue_most_ns = INT64_MAX};

    return wish;
}

static bool any_fetches(const struct bt_place_view *view)
{
    for (uint32_t p = 0; p < view->worker_count; p++)
        if (view->workers[p].fetch_ok)
            return true;
    return false;
}

void place_world_init(struct place_world *world,
                      const struct bt_place_view *view,
                      const struct place_wish *wish)
{
    *world =
        (struct place_world){.view = view, .wish = *wish, .mu = place_mu(view)};
    place_fabric_look(view, &world->fabric);
    if (wish->fetch && view->overlap_known && any_fetches(view))
        place_holders_find(view, &world->holders);
}
