/* Terms of a placement. Decides what a pair costs from its two sides and which
 * pairs are feasible; leaves the transfer to place_transfer.c, prefix sources
 * and prices of p to place_source.c, the search to place_scan.c, the choice to
 * policies/.
 *
 *   now --queue, fetch--> start --prefill--> --transfer--> arrival \
 *   now ------------------------------------slot-----------------> max + step
 *
 * An engine that allocates first starts p only when d has its slot.
 *
 * Invariants: total >= arrival and total >= slot; arrival = start + prefill +
 * transfer; an infeasible pair has an infinite total.
 */
#include "place_parts.h"

#include <assert.h>
#include <string.h>

static const char *const reason_names[] = {
#define X(code, name) name,
    BT_REASON_LIST(X)
#undef X
};

const char *bt_reason_name(enum bt_reason reason)
{
    return (unsigned int)reason < BT_REASON_COUNT ? reason_names[reason]
                                                  : "unknown";
}

/* ---- feasibility ---- */

bool place_p_useful(const struct bt_place_view *view, uint32_t p)
{
    if (!place_p_ok(view, p))
        return false;
    for (uint32_t d = 0; d < view->worker_count; d++)
        if (place_d_ok(view, d) && place_link_ok(view, p, d))
            return true;
    return false;
}

bool place_has_pool(const struct bt_place_view *view)
{
    for (uint32_t p = 0; p < view->worker_count; p++)
        if (place_p_ok(view, p))
            return true;
    return false;
}

/* ---- terms ---- */

struct place_p place_p_terms(const struct bt_place_view *view, uint32_t p)
{
    const struct bt_compute_model *model = view->workers[p].model;
    struct place_p t = place_p_queue(view, p);

    t.prefill_ns =
        model == NULL
            ? BT_COST_INFINITE
            : bt_prefill_ns(model, view->prompt_tokens - t.overlap, t.overlap);
    t.compute_ns = t.prefill_ns;
    return t;
}

static uint32_t block_of(const struct bt_place_view *view)
{
    return view->block_tokens > 0 ? view->block_tokens : 1;
}

/* Blocks of the prompt that d lacks, the partial tail among them. */
static uint64_t blocks_lacking(const struct bt_place_view *view, uint32_t held)
{
    uint32_t blk = block_of(view);
    uint64_t all = ((uint64_t)view->prompt_tokens + blk - 1) / blk;
    uint64_t have =
        view->mode != NULL && view->mode->whole_prompt ? 0 : held / blk;

    return all > have ? all - have : 0;
}

static uint64_t mul_sat(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Bytes and descriptors of the blocks that travel. */
static void size_up(const struct bt_place_view *view, struct place_d *t)
{
    const struct bt_engine_mode *mode = view->mode;
    uint64_t regions = 1;

    t->kv_bytes = mul_sat(t->blocks * block_of(view), view->kv_bytes_per_token);
    if (mode != NULL && mode->replication > 1)
        t->kv_bytes = mul_sat(t->kv_bytes, mode->replication);
    if (mode != NULL && mode->descriptors_per_block > 1)
        regions = mode->descriptors_per_block;
    t->descriptors = mul_sat(t->blocks, regions);
}

static uint32_t held_at(const struct bt_place_view *view, uint32_t d)
{
    uint32_t held = view->workers[d].overlap_tokens;

    return held < view->prompt_tokens ? held : view->prompt_tokens;
}

/* What travels to a worker that holds so much. */
static struct place_d size_of(const struct bt_place_view *view, uint32_t held)
{
    struct place_d t = {.blocks = blocks_lacking(view, held), .overlap = held};

    size_up(view, &t);
    return t;
}

/* The rest of t, whose size is known. */
static void time_up(const struct bt_place_view *view, uint32_t d,
                    struct place_d *t)
{
    const struct bt_place_worker *w = &view->workers[d];

    t->slot_ns = place_from_now(view, w->decode_free_ns);
    t->feasible = place_d_ok(view, d);
    if (view->mode != NULL && view->mode->allocate_first)
        t->start_ns = t->slot_ns;
    t->step_ns =
        w->model == NULL
            ? BT_COST_INFINITE
            : bt_decode_step_ns(w->model, (uint64_t)w->decode_requests + 1,
                                w->decode_tokens + view->prompt_tokens);
}

struct place_d place_d_terms(const struct bt_place_view *view, uint32_t d)
{
    struct place_d t = size_of(view, held_at(view, d));

    time_up(view, d, &t);
    return t;
}

struct place_d place_d_in(struct place_world *world, uint32_t d)
{
    uint32_t held = held_at(world->view, d);
    struct place_d t;

    if (!world->sized || world->size.overlap != held)
        world->size = size_of(world->view, held);
    world->sized = true;
    t = world->size;
    time_up(world->view, d, &t);
    return t;
}

/* p: the worker that computes the prefill, d itself when d serves alone. */
void place_combine_bare(const struct bt_place_view *view, uint32_t p,
                        uint32_t d, const struct place_p *pt,
                        const struct place_d *dt, struct bt_place_terms *out)
{
    bool moves = p != d;

    out->queue_ns = pt->queue_ns;
    out->fetch_ns = pt->fetch_ns;
    out->prefill_ns = pt->prefill_ns;
    out->transfer_ns = moves ? place_exposed(view, p, d, pt, dt) : 0;
    out->arrival_ns = place_add(place_add(place_start(pt, dt), pt->prefill_ns),
                                out->transfer_ns);
    out->slot_ns = dt->slot_ns;
    out->step_ns = dt->step_ns;
    out->total_ns = place_total(pt, dt, out->transfer_ns);
    out->kv_bytes = moves ? dt->kv_bytes : 0;
    out->fetch_bytes = pt->fetch_bytes;
    out->overlap_p = pt->overlap;
    out->overlap_d = dt->overlap;
    out->price_ns = pt->price_ns;
}

void place_price_pair(const struct bt_place_view *view, uint32_t p, uint32_t d,
                      struct bt_place_terms *out)
{
    if (view->prices != NULL && out->total_ns < BT_COST_INFINITE)
        out->price_ns =
            place_add(out->price_ns, place_pair_price(view, p, d, out));
}

void place_combine(const struct bt_place_view *view, uint32_t p, uint32_t d,
                   const struct place_p *pt, const struct place_d *dt,
                   struct bt_place_terms *out)
{
    place_combine_bare(view, p, d, pt, dt, out);
    place_price_pair(view, p, d, out);
}

static void terms_from(const struct bt_place_view *view, double mu, uint32_t p,
                       uint32_t d, const struct bt_place_source *source,
                       struct bt_place_terms *out)
{
    uint32_t runs_on = p == BT_PLACE_NONE ? d : p;
    bool beside = p == d && place_local_ok(view, d);
    struct place_d dt = place_d_terms(view, d);
    struct place_p pt;

    assert(runs_on < view->worker_count && d < view->worker_count);
    if (beside)
        pt = place_local_terms(view, d);
    else if (p == BT_PLACE_NONE && source->tokens == 0)
        pt = place_alone_terms(view, d);
    else
        pt = place_p_from(view, runs_on, source);
    if (!beside && p != BT_PLACE_NONE && !place_p_ok(view, p))
        pt.prefill_ns = BT_COST_INFINITE;
    if (!dt.feasible)
        dt.slot_ns = BT_COST_INFINITE;
    place_p_charge(view, mu, runs_on, beside, &pt);
    place_combine(view, runs_on, d, &pt, &dt, out);
}

void bt_place_terms(const struct bt_place_view *view, uint32_t p, uint32_t d,
                    struct bt_place_terms *out)
{
    const struct bt_place_source none = {0};

    if (d == BT_PLACE_NONE) {
        memset(out, 0, sizeof(*out));
        out->total_ns = BT_COST_INFINITE;
        return;
    }
    terms_from(view, place_mu(view), p, d, &none, out);
}

/* ---- candidates ---- */

struct bt_place_candidate place_none(void)
{
    struct bt_place_candidate c = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE};

    c.terms.total_ns = BT_COST_INFINITE;
    return c;
}

struct bt_place_candidate place_pair(const struct bt_place_view *view,
                                     uint32_t p, uint32_t d)
{
    const struct bt_place_source none = {0};

    return place_pair_from(view, p, d, &none);
}

struct bt_place_candidate place_pair_from(const struct bt_place_view *view,
                                          uint32_t p, uint32_t d,
                                          const struct bt_place_source *source)
{
    return place_pair_at(view, place_mu(view), p, d, source);
}

struct bt_place_candidate place_pair_at(const struct bt_place_view *view,
                                        double mu, uint32_t p, uint32_t d,
                                        const struct bt_place_source *source)
{
    struct bt_place_candidate c = {.p = p, .d = d};

    if (d == BT_PLACE_NONE)
        return place_none();
    if (source->tokens > 0)
        c.source = *source;
    terms_from(view, mu, p, d, &c.source, &c.terms);
    return c;
}

struct bt_place_candidate place_handoff(const struct bt_place_view *view,
                                        uint32_t p, uint32_t d)
{
    struct bt_place_candidate c = {.p = p, .d = d};
    struct place_p pt = {.overlap = view->prompt_tokens};
    struct place_d dt = place_d_terms(view, d);

    if (!dt.feasible)
        dt.slot_ns = BT_COST_INFINITE;
    dt.start_ns = 0; /* the prefill is over */
    place_combine(view, p, d, &pt, &dt, &c.terms);
    return c;
}

bool place_is_same(const struct bt_place_candidate *a,
                   const struct bt_place_candidate *b)
{
    return a->p == b->p && a->d == b->d;
}
